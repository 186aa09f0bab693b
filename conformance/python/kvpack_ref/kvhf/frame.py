"""KVHF frames: big-endian envelope, strictly decoded JSON, payload (docs/protocol/kvhf.md section 1)."""
import struct

from ..handoff.canonical import Struct, canonical, decode_strict, list_of, nullable, one_of, string, u32, u64
from ..handoff.errors import Refusal, validation
from ..handoff.manifest import ExactIdentity

MAGIC = b"KVHF"
SCHEMA_VERSION = 1
PROTOCOL = "kvpack-live-f16-le-v1"
STRATEGY = "consumer_last_prompt_token"
ENVELOPE_BYTES = 20
MAX_JSON_BYTES = 1 << 20
MAX_PAYLOAD_BYTES = 64 << 20
KINDS = {1: "begin", 2: "layer", 3: "seal", 4: "abort", 5: "ack"}
NUMBERS = {name: number for number, name in KINDS.items()}


def _fields(kind, names):
    return {name: kind for name in names.split()}


def _none():
    return None


Endpoints = Struct(_fields(string,
                           "consumer_engine_abi consumer_node producer_engine_abi producer_node trust_domain"),
                   closed=True)
Geometry = Struct(_fields(u32, "head_dim max_context_tokens num_kv_heads num_layers"), closed=True)
Precision = Struct(_fields(string, "compute kv weights"), closed=True)
Role = one_of(("key", "value"))
LayoutClass = Struct({**_fields(string, "class dtype"), "except": list_of(u32), "roles": list_of(Role),
                      **_fields(u32, "from head_dim kv_heads step until window_tokens")}, closed=True)
Begin = Struct({**_fields(u32, "cached_token_count expected_layer_frames schema_version"),
                **_fields(u64, "created_unix_ms deadline_unix_ms expected_payload_bytes"),
                **_fields(string, "portable_abi protocol token_ids_sha256 transfer_id"),
                "endpoints": Endpoints,
                "geometry": Geometry, "identity": ExactIdentity, "precision": Precision,
                "strategy": one_of((STRATEGY,))},
               {"hmac_key_id": (nullable(string), _none),
                "layout_table": (nullable(list_of(LayoutClass)), list),
                "schedule": (nullable(string), _none)}, closed=True)
LayerHeader = Struct({"byte_length": u64, "role": Role, "sha256": string, "shape": list_of(u32, 3),
                      "transfer_id": string,
                      **_fields(u32, "layer logical_token_end logical_token_start schema_version sequence")},
                     {"dtype": (nullable(string), _none), "layout_class": (nullable(string), _none)},
                     closed=True)
Canary = Struct({**_fields(string, "post_rope_k_sha256 post_rope_v_sha256"),
                 **_fields(u32, "sample_token_count sample_token_start")}, closed=True)
Seal = Struct({**_fields(u64, "completed_unix_ms payload_bytes"),
               **_fields(u32, "frame_count schema_version"),
               **_fields(string, "artifact_sha256 descriptor_chain_sha256 payload_sha256 protocol token_ids_sha256"),
               "prompt_token_ids": list_of(u32), "strategy": one_of((STRATEGY,)), "transfer_id": string},
              {"artifact_hmac_sha256": (nullable(string), _none), "canary": (nullable(Canary), _none)},
              closed=True)
Abort = Struct({**_fields(string, "code protocol transfer_id"), "schema_version": u32}, closed=True)
Ack = Struct({**_fields(string, "artifact_sha256 protocol status transfer_id"), "schema_version": u32},
             closed=True)
MANIFESTS = {"begin": Begin, "layer": LayerHeader, "seal": Seal, "abort": Abort, "ack": Ack}
_OPTIONAL = frozenset(name for s in MANIFESTS.values() for name in s.defaults)


def encode(manifest):
    """C(manifest): an absent option and an empty layout table are left out."""
    return canonical({k: v for k, v in manifest.items() if k not in _OPTIONAL or v not in (None, [])})


def decode(kind, data, max_bytes=MAX_JSON_BYTES):
    """One manifest, strictly decoded."""
    return decode_strict(data, max_bytes, MANIFESTS[kind], encode)


def write_frame(kind, manifest, payload=b"", max_json=MAX_JSON_BYTES, max_payload=MAX_PAYLOAD_BYTES):
    """A frame; the manifest's bytes may be given instead of the manifest."""
    raw = manifest if isinstance(manifest, bytes) else encode(manifest)
    if not 1 <= len(raw) <= max_json:
        raise validation(f"frame JSON length {len(raw)} is outside configured bounds")
    if len(payload) > max_payload:
        raise validation(f"frame payload length {len(payload)} exceeds {max_payload}")
    return MAGIC + struct.pack(">BBHIQ", SCHEMA_VERSION, NUMBERS[kind], 0, len(raw),
                               len(payload)) + raw + payload


class FrameReader:
    """Reads a frame in two calls, header then payload, so that a receiver can act between them."""

    def __init__(self, data, max_json=MAX_JSON_BYTES, max_payload=MAX_PAYLOAD_BYTES):
        self._data, self._at = memoryview(data), 0
        self._max_json, self._max_payload = max_json, max_payload
        self._pending = None

    def _take(self, count):
        if count > len(self._data) - self._at:
            raise Refusal("io", "unexpected end of file")
        self._at += count
        return bytes(self._data[self._at - count:self._at])

    def header(self):
        """(kind, manifest) of the next frame."""
        if self._pending is not None:
            raise validation("cannot read another frame header before consuming the pending payload")
        envelope = self._take(ENVELOPE_BYTES)
        version, number, reserved, json_bytes, payload_bytes = struct.unpack_from(">BBHIQ", envelope, 4)
        if envelope[:4] != MAGIC or version != SCHEMA_VERSION or reserved:
            raise validation("invalid frame magic, version, or reserved flags")
        kind = KINDS.get(number)
        if kind is None:
            raise validation(f"unknown live handoff frame kind {number}")
        if not 1 <= json_bytes <= self._max_json or payload_bytes > self._max_payload or (
                payload_bytes and kind != "layer"):
            raise validation("frame lengths violate the configured bounds or frame kind")
        manifest = decode(kind, self._take(json_bytes), self._max_json)
        if kind == "layer" and manifest["byte_length"] != payload_bytes:
            raise validation("layer header length does not equal frame payload length")
        self._pending = payload_bytes
        return kind, manifest

    def payload(self):
        """The payload of the frame whose header was read last."""
        if self._pending is None:
            raise validation("no pending frame header to consume")
        payload = self._take(self._pending)
        self._pending = None
        return payload
