"""Begin manifest, segment descriptors and seal: structs, rules, digests (docs/protocol/handoff.md sections 4 to 7)."""
import bisect
import hashlib
import re

from .canonical import (U32_MAX, U64_MAX, Struct, boolean, canonical, is_digest, list_of, nullable, one_of,
                        parse,
                        sha256_hex, string, u32, u64)
from .errors import validation
from .mac import tag_hex

PROTOCOL = "kvpack-live-handoff-v2"
MAX_SEGMENTS = 1_048_576
COMPONENT_KINDS = ("target_kv", "dflash_context", "vision_context")
SEGMENT_ROLES = ("nope_key", "nope_value", "swa_key", "swa_value", "nope_tile", "swa_tile", "dflash_key",
                 "dflash_value", "auxiliary")
ELEMENT_BYTES = {"f16_le": 2, "f32_le": 4}

ExactIdentity = Struct({"adapter_sha256": string, "chat_template_sha256": string,
                        "context_policy_sha256": string,
                        "model_revision": string, "model_sha256": string, "tokenizer_revision": string,
                        "tokenizer_sha256": string}, closed=True)
MultimodalIdentity = Struct({"projector_sha256": string, "preprocessing_sha256": string,
                             "image_sequence_sha256": string})
HmacIdentity = Struct({"key_id": string, "epoch": u64})
Component = Struct({"id": string, "kind": one_of(COMPONENT_KINDS), "required": boolean,
                    "identity_sha256": string})
SegmentDescriptor = Struct({"sequence": u32, "component_id": string, "role": one_of(SEGMENT_ROLES),
                            "logical_start": u64, "logical_count": u64, "element_type": string,
                            "elements_per_token": u32, "byte_len": u64, "sha256": string},
                           {"layer": (nullable(u32), lambda: None)})
BeginManifest = Struct({"protocol": string, "transfer_id": string, "generation": u64, "created_unix_ms": u64,
                        "expires_unix_ms": u64, "identity": ExactIdentity, "prompt_token_ids": list_of(u32),
                        "hmac": HmacIdentity, "components": list_of(Component),
                        "segments": list_of(SegmentDescriptor)},
                       {"multimodal": (nullable(MultimodalIdentity), lambda: None),
                        "deferred_segments": (boolean, lambda: False)})
SealCore = Struct({"transfer_id": string, "generation": u64, "begin_sha256": string,
                   "descriptor_sha256": string,
                   "payload_sha256": string, "segment_count": u32, "total_bytes": u64})
SealManifest = Struct({"core": SealCore, "hmac_sha256": string})

_TRANSFER_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


def parse_begin(data):
    return BeginManifest(parse(data))


def parse_descriptor(data):
    return SegmentDescriptor(parse(data))


def parse_seal(data):
    return SealManifest(parse(data))


def canonical_begin(begin):
    """C(begin): `multimodal` always, `deferred_segments` only when true."""
    if begin["deferred_segments"]:
        return canonical(begin)
    return canonical({k: v for k, v in begin.items() if k != "deferred_segments"})


def _digest(value, label):
    if not is_digest(value):
        raise validation(f"{label} digest must be lowercase SHA-256")


class RangeTable:
    """The logical ranges seen so far, per component, role and layer."""

    def __init__(self):
        self._ranges = {}

    def add(self, descriptor):
        """Records a descriptor's range; refuses overflow and overlap."""
        start = descriptor["logical_start"]
        stop = start + descriptor["logical_count"]
        if stop > U64_MAX:
            raise validation("segment logical range overflow")
        key = (descriptor["component_id"], descriptor["role"], descriptor["layer"])
        held = self._ranges.setdefault(key, [])
        at = bisect.bisect_left(held, (start, start))
        if (at > 0 and held[at - 1][1] > start) or (at < len(held) and held[at][0] < stop):
            raise validation("overlapping segment logical ranges")
        held.insert(at, (start, stop))


def check_descriptor(descriptor, component_ids, ranges):
    """Section 6 for one descriptor; its range goes into `ranges`."""
    counts = (descriptor["logical_count"], descriptor["elements_per_token"], descriptor["byte_len"])
    if descriptor["component_id"] not in component_ids or 0 in counts:
        raise validation("segment has unknown component or empty range")
    _digest(descriptor["sha256"], "segment")
    width = ELEMENT_BYTES.get(descriptor["element_type"])
    if width is None:
        raise validation("unsupported segment element type")
    product = counts[0] * counts[1] * width
    if product > U64_MAX:
        raise validation("segment byte geometry overflow")
    if product != descriptor["byte_len"]:
        raise validation("segment byte length disagrees with row geometry")
    ranges.add(descriptor)


def check_payload(descriptor, payload):
    if len(payload) != descriptor["byte_len"] or sha256_hex(payload) != descriptor["sha256"]:
        raise validation("segment length or digest mismatch")


def component_ids(begin):
    return {c["id"] for c in begin["components"]}


def validate_begin(begin, now_ms, key_id, min_epoch, max_segments=None):
    """Section 5. `max_segments` (strict mode, S7) bounds the declared segments; None leaves them unbounded."""
    if begin["protocol"] != PROTOCOL:
        raise validation("wrong V2 protocol")
    if not _TRANSFER_ID.fullmatch(begin["transfer_id"]):
        raise validation("invalid transfer id")
    if begin["expires_unix_ms"] <= begin["created_unix_ms"] or now_ms > begin["expires_unix_ms"]:
        raise validation("expired or invalid handoff lifetime")
    if begin["hmac"]["key_id"] != key_id or begin["hmac"]["epoch"] < min_epoch:
        raise validation("wrong HMAC key id or replayed epoch")
    for field, label in (("model_sha256", "model identity"), ("adapter_sha256", "adapter identity"),
                         ("chat_template_sha256", "chat template identity"),
                         ("context_policy_sha256", "context policy identity"),
                         ("tokenizer_sha256", "tokenizer identity")):
        _digest(begin["identity"][field], label)
    if begin["multimodal"] is not None:
        for field, label in (("projector_sha256", "projector"), ("preprocessing_sha256", "preprocessing"),
                             ("image_sequence_sha256", "image sequence")):
            _digest(begin["multimodal"][field], label)
    deferred = begin["deferred_segments"]
    if not begin["components"] or bool(begin["segments"]) == deferred:
        raise validation("V2 requires components and exactly one declared/deferred segment mode")
    if not begin["prompt_token_ids"]:
        raise validation("V2 prompt token sequence is empty")
    _check_components(begin["components"])
    if max_segments is not None and len(begin["segments"]) > max_segments:
        raise validation(f"transfer exceeds {max_segments} segments")
    ids, ranges = component_ids(begin), RangeTable()
    for index, descriptor in enumerate(begin["segments"]):
        if descriptor["sequence"] != index:
            raise validation("segment sequences must be contiguous in declared wire order")
        check_descriptor(descriptor, ids, ranges)
    if not deferred:
        _check_declared_dflash(begin)


def _check_components(components):
    ids = set()
    for component in components:
        if not component["id"] or component["id"] in ids:
            raise validation("empty or duplicate component id")
        ids.add(component["id"])
        _digest(component["identity_sha256"], "component identity")
    if not any(c["kind"] == "target_kv" and c["required"] for c in components):
        raise validation("a required target KV component is mandatory")


def _check_declared_dflash(begin):
    dflash = [c for c in begin["components"] if c["kind"] == "dflash_context"]
    ids = {c["id"] for c in dflash}
    if any(c["required"] for c in dflash) and not any(d["component_id"] in ids for d in begin["segments"]):
        raise validation("required DFlash component has no segments")


def check_expiry(begin, now_ms):
    """Section 10 step 3: names a skewed clock before the begin rules can only say `expired`."""
    expires = begin["expires_unix_ms"]
    if now_ms > expires:
        raise validation(f"handoff expired at {expires} unix ms while the receiver clock reads {now_ms} unix ms: "
                         "check producer/receiver clock skew")


def check_times(created_ms, expires_ms, now_ms, started_ms, max_clock_skew_ms, max_lifetime_ms):
    """Rules S4 to S6 of strict mode; `started_ms` is when the receiver loaded its ledger."""
    if created_ms > min(U64_MAX, now_ms + max_clock_skew_ms):
        raise validation(f"handoff created at {created_ms} unix ms is ahead of the receiver clock {now_ms} unix ms: "
                         "check producer/receiver clock skew")
    if created_ms < started_ms:
        raise validation(f"handoff created at {created_ms} unix ms predates this receiver's start at {started_ms} "
                         "unix ms")
    lifetime = max(0, expires_ms - created_ms)
    if lifetime > max_lifetime_ms:
        raise validation(f"handoff lifetime {lifetime} ms exceeds {max_lifetime_ms} ms")


# ------------------------------------------------------------------------------------------------ seal

class RunningSeal:
    """The seal core that a transfer must end with, accumulated segment by segment."""

    def __init__(self, begin):
        self._begin = begin
        self._descriptors = hashlib.sha256()
        self._payloads = hashlib.sha256()
        self.count = 0
        self.total_bytes = 0

    def add(self, descriptor, payload):
        self._descriptors.update(canonical(descriptor))
        self._payloads.update(payload)
        if self.total_bytes + len(payload) > U64_MAX:
            raise validation("total byte count overflow")
        self.total_bytes += len(payload)

    def core(self):
        return {"transfer_id": self._begin["transfer_id"], "generation": self._begin["generation"],
                "begin_sha256": sha256_hex(canonical_begin(self._begin)),
                "descriptor_sha256": self._descriptors.hexdigest(),
                "payload_sha256": self._payloads.hexdigest(),
                "segment_count": self.count, "total_bytes": self.total_bytes}


def sign(begin, descriptors, payloads, key):
    """The seal manifest of a transfer (section 7). The descriptors are not compared with the begin's."""
    if len(descriptors) != len(payloads):
        raise validation("descriptor/payload count mismatch")
    running = RunningSeal(begin)
    for index, (descriptor, payload) in enumerate(zip(descriptors, payloads)):
        if (descriptor["sequence"] != index or descriptor["byte_len"] != len(payload)
                or descriptor["sha256"] != sha256_hex(payload)):
            raise validation("cannot sign mismatched segment material")
        running.add(descriptor, payload)
        running.count += 1
    if running.count > U32_MAX:
        raise validation("segment count exceeds u32")
    core = running.core()
    return {"core": core, "hmac_sha256": tag_hex(key, canonical(core))}
