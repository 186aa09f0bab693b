"""KVPKV2 frames (docs/protocol/handoff.md section 9)."""
import struct

from .canonical import (ABSENT, NOT_AN_INTEGER, Pairs, Struct, canonical, find_repeated_key, nullable, parse, string,
                        u32, u64)
from .errors import Refusal, invalid
from .manifest import (BeginManifest, Component, ExactIdentity, HmacIdentity, MultimodalIdentity, SealCore,
                       SealManifest, SegmentDescriptor)

MAGIC = b"KVPKV2\0\0"
PREAMBLE_BYTES = 20
MAX_HEADER_BYTES = 8 << 20
MAX_PAYLOAD_BYTES = 512 << 20

_HEADERS = {
    "begin": Struct({"kind": string, "manifest": BeginManifest}, closed=True),
    "segment": Struct({"kind": string, "sequence": u32}, {"descriptor": (nullable(SegmentDescriptor), lambda: None)},
                      closed=True),
    "seal": Struct({"kind": string, "manifest": SealManifest}, closed=True),
    "ack": Struct({"kind": string, "transfer_id": string, "generation": u64}, closed=True),
    "abort": Struct({"kind": string, "reason": string}, closed=True),
}


def write_frame(header, payload=b""):
    """A frame around `header`, a dict (written canonically) or the header's bytes."""
    raw = header if isinstance(header, bytes) else canonical(header)
    if not 1 <= len(raw) <= MAX_HEADER_BYTES or len(payload) > MAX_PAYLOAD_BYTES:
        raise invalid("frame exceeds configured bounds")
    return MAGIC + struct.pack("<IQ", len(raw), len(payload)) + raw + payload


def write_begin(begin, cut=0):
    """The begin frame; a cut travels beside the typed manifest and is in no digest."""
    manifest = {k: v for k, v in begin.items() if k != "deferred_segments" or v}
    if cut:
        manifest["prefix_cut"] = cut
    return write_frame({"kind": "begin", "manifest": manifest})


def write_segment(sequence, descriptor, payload):
    """A segment frame; `descriptor` is None in declared mode."""
    if not payload:
        raise invalid("payload frame cannot be empty")
    header = {"kind": "segment", "sequence": sequence}
    if descriptor is not None:
        header["descriptor"] = descriptor
    return write_frame(header, payload)


def write_seal(seal):
    return write_frame({"kind": "seal", "manifest": seal})


def write_abort(reason):
    return write_frame({"kind": "abort", "reason": reason})


def write_ack(transfer_id, generation):
    """The acknowledgement, its keys in the order in which receivers write them."""
    header = b'{"kind":"ack","transfer_id":' + canonical(transfer_id) + b',"generation":%d}' % generation
    return write_frame(header)


def _known(obj, label, keys):
    """Refuses the first unknown key of an object; anything but an object is left to the typed parse."""
    if not isinstance(obj, Pairs):
        return Pairs()
    for key, _ in obj:
        if key not in keys:
            raise invalid(f"{label} carries unknown field `{key}`: the producer is newer than this receiver")
    return obj


def _items(obj, key):
    value = obj.get(key)
    return value if isinstance(value, list) and not isinstance(value, Pairs) else []


def audit(header):
    """The field audit of section 9.3 on a parsed header."""
    if not isinstance(header, Pairs):
        return
    kind = header.get("kind")
    if kind == "begin":
        frame = _known(header, "begin frame", ("kind", "manifest"))
        manifest = _known(frame.get("manifest"), "begin manifest", {*BeginManifest.keys(), "prefix_cut"})
        _known(manifest.get("identity"), "exact identity", ExactIdentity.keys())
        _known(manifest.get("multimodal"), "multimodal identity", MultimodalIdentity.keys())
        _known(manifest.get("hmac"), "HMAC identity", HmacIdentity.keys())
        for component in _items(manifest, "components"):
            _known(component, "component", Component.keys())
        for descriptor in _items(manifest, "segments"):
            _known(descriptor, "segment descriptor", SegmentDescriptor.keys())
    elif kind == "segment":
        frame = _known(header, "segment frame", ("kind", "sequence", "descriptor"))
        _known(frame.get("descriptor"), "deferred segment descriptor", SegmentDescriptor.keys())
    elif kind == "seal":
        frame = _known(header, "seal frame", ("kind", "manifest"))
        manifest = _known(frame.get("manifest"), "seal manifest", SealManifest.keys())
        _known(manifest.get("core"), "seal core", SealCore.keys())
    elif kind == "ack":
        _known(header, "ACK frame", ("kind", "transfer_id", "generation"))
    elif kind == "abort":
        _known(header, "abort frame", ("kind", "reason"))


def _lift_cut(header):
    cut = header.get("manifest").get("prefix_cut")
    if cut is ABSENT:
        return 0
    if cut is NOT_AN_INTEGER or isinstance(cut, bool) or not isinstance(cut, int):
        raise invalid("begin prefix_cut is not an unsigned integer")
    return cut


class FrameReader:
    """Reads frames from bytes. `strict` refuses repeated keys in a header (rule S1)."""

    def __init__(self, data, strict=True):
        self._data = memoryview(data)
        self._at = 0
        self._strict = strict

    @property
    def rest_bytes(self):
        """How many bytes have not been read."""
        return len(self._data) - self._at

    def _take(self, count, refusal):
        if count > self.rest_bytes:
            raise refusal
        self._at += count
        return bytes(self._data[self._at - count:self._at])

    def next(self):
        """The next frame as a dict: kind, the fields of its header, payload, and for a begin prefix_cut."""
        preamble = self._take(PREAMBLE_BYTES, Refusal("io", "unexpected end of file"))
        if preamble[:8] != MAGIC:
            raise invalid("bad frame magic")
        header_bytes, payload_bytes = struct.unpack_from("<IQ", preamble, 8)
        if not 1 <= header_bytes <= MAX_HEADER_BYTES or payload_bytes > MAX_PAYLOAD_BYTES:
            raise invalid("frame lengths exceed bounds")
        header = parse(self._take(header_bytes, Refusal("io", "unexpected end of file")))
        if self._strict:
            repeated = find_repeated_key(header)
            if repeated is not None:
                raise invalid(f"header repeats the key `{repeated}`")
        audit(header)
        kind = header.get("kind") if isinstance(header, Pairs) else None
        if not isinstance(kind, str) or kind not in _HEADERS:
            raise Refusal("json", "unknown frame kind")
        frame = _HEADERS[kind](header)
        if kind == "segment":
            return self._segment(frame, payload_bytes)
        if payload_bytes:
            raise invalid("control frame carries payload")
        if kind == "begin":
            frame["prefix_cut"] = _lift_cut(header)
        return frame

    def _segment(self, frame, payload_bytes):
        if payload_bytes == 0:
            raise invalid("empty segment")
        frame["payload"] = self._take(payload_bytes, invalid("truncated segment payload"))
        descriptor = frame["descriptor"]
        if descriptor is not None and descriptor["sequence"] != frame["sequence"]:
            raise invalid("segment sequence differs from its descriptor")
        return frame
