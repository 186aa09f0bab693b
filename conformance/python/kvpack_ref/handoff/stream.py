"""Whole transfers: the producer, and the receive loop over a recorded stream (docs/protocol/handoff.md section 10)."""
from dataclasses import dataclass

from .canonical import sha256_hex
from .delta import DeferredWitness, check_cut, check_declared_schedule
from .errors import Refusal, bare, invalid, validation
from .frame import FrameReader, write_begin, write_seal, write_segment
from .manifest import MAX_SEGMENTS, check_expiry, sign, validate_begin
from .receiver import Receiver, Sink


def describe(rows, payloads):
    """Descriptors from rows in wire order: sequence, byte_len and sha256 come from the position and the payload."""
    if len(rows) != len(payloads):
        raise validation("descriptor/payload count mismatch")
    return [{**row, "layer": row.get("layer"), "sequence": index, "byte_len": len(payload),
             "sha256": sha256_hex(payload)} for index, (row, payload) in enumerate(zip(rows, payloads))]


def produce(begin, descriptors, payloads, key, cut=0):
    """The stream of a producer: begin, one frame per segment, seal; every header canonical.

    A begin with `deferred_segments` sends each descriptor with its segment; otherwise the begin has declared them.
    """
    seal = sign(begin, descriptors, payloads, key)
    frames = [write_begin(begin, cut)]
    for descriptor, payload in zip(descriptors, payloads):
        frames.append(write_segment(descriptor["sequence"],
                                    descriptor if begin["deferred_segments"] else None, payload))
    frames.append(write_seal(seal))
    return b"".join(frames)


@dataclass(frozen=True)
class Policy:
    """How a recorded stream is judged.

    `recorded` refuses bytes after the seal. `strict` turns on the rules of strict mode that need no clock of the
    receiver; `max_segments` and `max_total_bytes` (None: no bound) count only then.
    """
    key: bytes
    key_id: str
    min_epoch: int
    now_ms: int
    strict: bool = True
    recorded: bool = True
    max_segments: int = MAX_SEGMENTS
    max_total_bytes: int = None


@dataclass(frozen=True)
class Committed:
    """A transfer whose seal has verified. The cut is not under the seal."""
    begin: dict
    prefix_cut: int


class _CutSink(Sink):
    """Passes calls on to the caller's sink; judges the cut once the seal has verified, before the sink prepares."""

    def __init__(self, sink, begin, cut):
        self._sink, self._begin, self._cut = sink, begin, cut
        self._witness = DeferredWitness(begin, cut)

    def begin(self, begin):
        self._sink.begin(begin)

    def segment_ready(self, descriptor, payload):
        self._witness.add(descriptor)
        self._sink.segment_ready(descriptor, payload)

    def prepare_commit(self, seal):
        if self._cut:
            check_cut(self._begin, self._cut)
            if self._begin["deferred_segments"]:
                self._witness.check()
            else:
                check_declared_schedule(self._begin, self._cut)
        self._sink.prepare_commit(seal)

    def commit(self):
        self._sink.commit()

    def abort(self):
        self._sink.abort()


def receive(data, policy, sink=None):
    """Judges a recorded stream. Returns Committed, or raises the first Refusal with nothing committed."""
    reader = FrameReader(data, policy.strict)
    first = reader.next()
    if first["kind"] != "begin":
        raise bare("missing_begin")
    begin, cut = first["manifest"], first["prefix_cut"]
    max_segments = policy.max_segments if policy.strict else None
    max_total_bytes = policy.max_total_bytes if policy.strict else None
    check_expiry(begin, policy.now_ms)
    validate_begin(begin, policy.now_ms, policy.key_id, policy.min_epoch, max_segments)
    if max_total_bytes is not None and sum(d["byte_len"] for d in begin["segments"]) > max_total_bytes:
        raise validation(f"transfer exceeds {max_total_bytes} payload bytes")
    receiver = Receiver(begin, policy.key, _CutSink(sink or Sink(), begin, cut), max_segments,
                        max_total_bytes)
    try:
        _frames(reader, receiver, policy)
    except Refusal:
        receiver.abort()
        raise
    return Committed(begin, cut)


def _frames(reader, receiver, policy):
    while True:
        frame = reader.next()
        kind = frame["kind"]
        if kind == "segment":
            if frame["descriptor"] is None:
                receiver.segment(frame["sequence"], frame["payload"])
            else:
                receiver.deferred_segment(frame["descriptor"], frame["payload"])
        elif kind == "seal":
            if policy.recorded and reader.rest_bytes:
                raise invalid("recorded stream carries bytes after the seal")
            receiver.prepare_commit(frame["manifest"])
            receiver.commit()
            return
        elif kind == "abort":
            raise Refusal("producer_abort", frame["reason"])
        elif kind == "begin":
            raise validation("duplicate begin")
        else:
            raise validation("producer sent an ACK to the receiver")
