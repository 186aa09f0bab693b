"""The incremental verifier, the coordinator and the receiver of a recorded stream (docs/protocol/kvhf.md)."""
import hashlib
import struct
from dataclasses import dataclass

from ..handoff.canonical import U64_MAX, sha256_hex
from ..handoff.errors import validation
from .begin import check_header, validate, walk
from .frame import FrameReader
from .seal import authenticate, check_seal

_EXPONENT = 0x7F800000


@dataclass(frozen=True)
class Witness:
    """A stream whose seal has verified."""
    begin: dict
    headers: list
    seal: dict


def check_finite(payload):
    """The gate of pre-RoPE key planes: f32 little-endian without NaN and infinity."""
    if len(payload) % 4:
        raise validation(f"pre-RoPE Key plane length {len(payload)} is not a multiple of the f32 element width")
    if any(bits & _EXPONENT == _EXPONENT for (bits,) in struct.iter_unpack("<I", payload)):
        raise validation("pre-RoPE Key plane contains a non-finite (NaN/Inf) f32 element")


class Verifier:
    """Takes a transfer plane by plane. A plane that is refused changes nothing."""

    def __init__(self, begin, limits):
        validate(begin, limits)
        self.begin, self.planes, self.headers = begin, walk(begin), []
        self._limits, self._payload_bytes, self._payload = limits, 0, hashlib.sha256()
        self._sealed = False

    def check_next_header(self, header):
        """Judges a header before its payload is read."""
        if self._sealed:
            raise validation("cannot validate a layer header after the terminal seal")
        check_header(self.begin, self.planes, len(self.headers), header)
        if header["byte_length"] > self._limits.max_frame_bytes:
            raise validation("layer descriptor exceeds the configured frame bound")

    def plane(self, header, payload):
        """Accepts the next plane."""
        if self._sealed:
            raise validation("cannot verify a layer plane after the terminal seal")
        index = len(self.headers)
        check_header(self.begin, self.planes, index, header)
        if (header["byte_length"] > self._limits.max_frame_bytes or len(payload) != header["byte_length"]
                or sha256_hex(payload) != header["sha256"]):
            raise validation(f"layer frame {index} length or SHA-256 mismatch")
        if index < len(self.planes) and self.planes[index].float32:
            check_finite(payload)
        total = self._payload_bytes + len(payload)
        if total > U64_MAX:
            raise validation("payload byte count overflow")
        if total > min(self._limits.max_total_bytes, self.begin["expected_payload_bytes"]):
            raise validation("received payload exceeds its declared or configured total bound")
        self._payload_bytes = total
        self._payload.update(payload)
        self.headers.append(header)

    def seal(self, seal):
        """Verifies the seal over everything accepted."""
        if self._sealed:
            raise validation("terminal seal was already verified")
        check_seal(self.begin, self.headers, self._payload_bytes, self._payload.hexdigest(), seal)
        self._sealed = True
        return Witness(self.begin, self.headers, seal)


class Coordinator:
    """Turns planes into one ready event per layer, without files."""

    def __init__(self, begin, limits):
        self._verifier = Verifier(begin, limits)
        self._pending = None
        self._prepared = self._published = False
        self.ready = []

    def ingest(self, header, payload, permit):
        """One plane; a key brings the layer's permit. Completed layers are appended to `ready`."""
        if self._prepared:
            raise validation("cannot ingest a plane after terminal seal preparation")
        if header["role"] == "key" and not permit:
            raise validation("a K plane payload requires a pre-acquired layer permit")
        if header["role"] == "value" and permit:
            raise validation("a V plane cannot acquire a second layer permit")
        self._verifier.plane(header, payload)
        plane = self._verifier.planes[len(self._verifier.headers) - 1]
        if plane.layout_class is not None and plane.layout_class["roles"] == ["key"]:
            self.ready.append(plane.layer)
        elif plane.role == "key":
            if self._pending is not None:
                raise validation("received another K plane before its V plane")
            self._pending = header
        else:
            self._pair(header)

    def _pair(self, header):
        if self._pending is None:
            raise validation("received V without a pending K plane")
        if (header["layer"], header["sequence"]) != (self._pending["layer"], self._pending["sequence"] + 1):
            raise validation("verified layer pair is not one adjacent K-then-V pair")
        self._pending = None
        self.ready.append(header["layer"])

    def prepare_seal(self, seal):
        if self._pending is not None:
            raise validation("cannot seal with an incomplete K/V layer pair")
        self._verifier.seal(seal)
        self._prepared = True

    def publish(self):
        if not self._prepared:
            raise validation("cannot publish before terminal seal verification")
        if self._published:
            raise validation("bundle cannot be published in its current state")
        self._published = True

    def abort(self):
        self._pending = None


def receive(data, limits, key=None, on_plane=None):
    """Judges a recorded stream as far as the sealed witness; `on_plane(header, payload)` sees each verified plane."""
    reader = FrameReader(data)
    kind, begin = reader.header()
    if kind != "begin":
        raise validation("first live handoff frame must be BEGIN")
    reader.payload()
    verifier = Verifier(begin, limits)
    for index in range(len(verifier.planes)):
        kind, header = reader.header()
        if kind == "abort":
            raise validation(f"producer aborted handoff with code {header['code']}")
        if kind != "layer" or header["sequence"] != index:
            raise validation(f"expected ordered layer frame {index}")
        verifier.check_next_header(header)
        payload = reader.payload()
        verifier.plane(header, payload)
        if on_plane is not None:
            on_plane(header, payload)
    kind, seal = reader.header()
    if kind != "seal":
        raise validation("expected terminal SEAL after all layer frames")
    witness = verifier.seal(seal)
    if key is not None:
        if begin["hmac_key_id"] is None:
            raise validation("receiver armed for artifact HMAC but begin declares no hmac_key_id")
        authenticate(begin, witness.headers, seal, key)
    return witness


def reassemble(frame_count, arrivals):
    """The sequences that leave the reassembler of a sprayed session after all `arrivals`, in order."""
    waiting, released = set(), []
    for sequence in arrivals:
        if sequence >= frame_count:
            raise validation(f"sprayed layer sequence {sequence} exceeds the declared frame count")
        if sequence < len(released) or sequence in waiting:
            raise validation(f"duplicate sprayed layer sequence {sequence}")
        waiting.add(sequence)
        while len(released) in waiting:
            waiting.remove(len(released))
            released.append(len(released))
    return released
