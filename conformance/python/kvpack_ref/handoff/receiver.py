"""The atomic receiver and the sink it drives (docs/protocol/handoff.md section 8)."""
from .canonical import canonical, is_digest
from .errors import Refusal, validation
from .mac import verify_hex
from .manifest import RangeTable, RunningSeal, check_descriptor, check_payload, component_ids


class Sink:
    """An engine's detached shadow. Every call but `abort` may raise a Refusal; nothing live changes before `commit`."""

    def begin(self, begin):
        """Opens a shadow."""

    def segment_ready(self, descriptor, payload):
        """Stages one verified segment."""

    def prepare_commit(self, seal):
        """Does every step that can fail."""

    def commit(self):
        """Swaps the shadow in."""

    def abort(self):
        """Discards the shadow."""


class RecordingSink(Sink):
    """Lists the calls it gets and fails at the one it is told to fail at. `live` is the committed generation."""

    def __init__(self, fails_at=None):
        self.calls, self.live = [], None
        self._fails_at, self._generation = fails_at, None

    def _call(self, name):
        self.calls.append(name)
        if name == self._fails_at:
            raise validation(f"sink {name}")

    def begin(self, begin):
        self._generation = begin["generation"]
        self._call("begin")

    def segment_ready(self, descriptor, payload):
        self._call("segment_ready")

    def prepare_commit(self, seal):
        self._call("prepare_commit")

    def commit(self):
        self._call("commit")
        self.live = self._generation

    def abort(self):
        self._call("abort")


class Receiver:
    """One transfer: receiving, then prepared, then committed; aborted at the first refusal."""

    def __init__(self, begin, key, sink, max_segments=None, max_total_bytes=None):
        self._begin, self._key, self._sink = begin, key, sink
        self._max_segments, self._max_total_bytes = max_segments, max_total_bytes
        self._running = RunningSeal(begin)
        self._ranges, self._component_ids, self._seen = RangeTable(), component_ids(begin), set()
        self.state = "receiving"
        sink.begin(begin)

    def abort(self):
        """Discards the transfer. Does nothing once it has been committed or aborted."""
        if self.state in ("receiving", "prepared"):
            self.state = "aborted"
            self._sink.abort()

    def _guarded(self, body, *args):
        try:
            body(*args)
        except Refusal:
            self.abort()
            raise

    def segment(self, sequence, payload):
        """A segment whose descriptor was declared in the begin."""
        self._guarded(self._segment, sequence, payload)

    def _segment(self, sequence, payload):
        if self.state != "receiving":
            raise validation("segment outside receiving state")
        declared = self._begin["segments"]
        if self._running.count >= len(declared):
            raise validation("extra segment")
        descriptor = declared[self._running.count]
        if descriptor["sequence"] != sequence:
            raise validation("dropped, duplicate, or reordered segment")
        self._accept(descriptor, payload)

    def deferred_segment(self, descriptor, payload):
        """A segment that brings its descriptor."""
        self._guarded(self._deferred_segment, descriptor, payload)

    def _deferred_segment(self, descriptor, payload):
        if self.state != "receiving" or not self._begin["deferred_segments"]:
            raise validation("deferred segment outside deferred receiving mode")
        if self._max_segments is not None and self._running.count >= self._max_segments:
            raise validation(f"transfer exceeds {self._max_segments} segments")
        if descriptor["sequence"] != self._running.count:
            raise validation("dropped, duplicate, or reordered deferred segment")
        check_descriptor(descriptor, self._component_ids, self._ranges)
        bound = self._max_total_bytes
        if bound is not None and self._running.total_bytes + descriptor["byte_len"] > bound:
            raise validation(f"transfer exceeds {bound} payload bytes")
        self._accept(descriptor, payload)

    def _accept(self, descriptor, payload):
        check_payload(descriptor, payload)
        self._running.add(descriptor, payload)
        self._sink.segment_ready(descriptor, payload)
        self._seen.add(descriptor["component_id"])
        self._running.count += 1

    def prepare_commit(self, seal):
        """Verifies the seal over everything received and lets the sink prepare."""
        self._guarded(self._prepare_commit, seal)

    def _prepare_commit(self, seal):
        deferred = self._begin["deferred_segments"]
        count = self._running.count
        complete = count > 0 if deferred else count == len(self._begin["segments"])
        if self.state != "receiving" or not complete:
            raise validation("seal before every segment")
        if deferred and any(c["required"] and c["id"] not in self._seen for c in self._begin["components"]):
            raise validation("required component has no deferred segment")
        if seal["core"] != self._running.core():
            raise validation("seal identity or digest mismatch")
        if not is_digest(seal["hmac_sha256"]):
            raise validation("seal HMAC digest must be lowercase SHA-256")
        verify_hex(self._key, canonical(seal["core"]), seal["hmac_sha256"])
        self._sink.prepare_commit(seal)
        self.state = "prepared"

    def commit(self):
        """Makes the transfer live."""
        self._guarded(self._commit)

    def _commit(self):
        if self.state != "prepared":
            raise validation("commit before prepared seal")
        self._sink.commit()
        self.state = "committed"
