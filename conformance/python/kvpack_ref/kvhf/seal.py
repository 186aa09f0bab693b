"""Hashes, seal and the producer (docs/protocol/kvhf.md sections 7 and 8)."""
import hashlib

from ..handoff.canonical import is_digest, sha256_hex, token_ids_sha256
from ..handoff.errors import validation
from ..handoff.mac import tag_hex, verify_hex
from .begin import is_prerope, walk
from .frame import PROTOCOL, SCHEMA_VERSION, encode, write_frame

CHAIN_DOMAIN = b"kvpack-live-descriptor-chain-v1\0"
ARTIFACT_DOMAIN = b"kvpack-live-artifact-v1\0"
MAC_DOMAIN = b"kvpack-live-artifact-mac-v1\0"
_SEAL_ONLY = ("artifact_hmac_sha256", "artifact_sha256")


def core_of(seal):
    """The seal core inside a flattened seal."""
    return {k: v for k, v in seal.items() if k not in _SEAL_ONLY}


def artifact_stream(begin, headers, core):
    """What artifact digest and tag cover, behind their domain strings."""
    return encode(begin) + b"\n" + b"".join(encode(h) + b"\n" for h in headers) + encode(core)


def descriptor_chain(headers):
    return sha256_hex(CHAIN_DOMAIN + b"".join(encode(h) + b"\n" for h in headers))


def artifact_sha256(begin, headers, core):
    return sha256_hex(ARTIFACT_DOMAIN + artifact_stream(begin, headers, core))


def authenticate(begin, headers, seal, key):
    """The keyed check of a sealed artifact."""
    tag = seal["artifact_hmac_sha256"]
    if tag is None:
        raise validation("sealed artifact carries no HMAC tag to authenticate")
    verify_hex(key, MAC_DOMAIN + artifact_stream(begin, headers, core_of(seal)), tag)


def is_canary(canary, cached):
    start, count = canary["sample_token_start"], canary["sample_token_count"]
    return (count > 0 and start + count <= cached and is_digest(canary["post_rope_k_sha256"])
            and is_digest(canary["post_rope_v_sha256"]))


def check_seal(begin, headers, payload_bytes, payload_sha256, seal):
    """Section 7, one combined test."""
    core = core_of(seal)
    canary, tag = seal["canary"], seal["artifact_hmac_sha256"]
    prompt_digest = token_ids_sha256(seal["prompt_token_ids"])
    good = (
        seal["schema_version"] == SCHEMA_VERSION and seal["protocol"] == PROTOCOL
        and seal["strategy"] == begin["strategy"] and seal["transfer_id"] == begin["transfer_id"]
        and seal["frame_count"] == begin["expected_layer_frames"] == len(headers)
        and seal["payload_bytes"] == begin["expected_payload_bytes"] == payload_bytes
        and seal["payload_sha256"] == payload_sha256
        and seal["descriptor_chain_sha256"] == descriptor_chain(headers)
        and seal["token_ids_sha256"] == begin["token_ids_sha256"] == prompt_digest
        and len(seal["prompt_token_ids"]) == begin["cached_token_count"] + 1
        and begin["created_unix_ms"] <= seal["completed_unix_ms"] <= begin["deadline_unix_ms"]
        and seal["artifact_sha256"] == artifact_sha256(begin, headers, core)
        and (canary is not None and is_canary(canary, begin["cached_token_count"]) if is_prerope(begin)
             else canary is None)
        and (tag is not None) == (begin["hmac_key_id"] is not None) and (tag is None or is_digest(tag)))
    if not good:
        raise validation("terminal seal does not authenticate the complete ordered handoff")


def make_header(begin, plane, sequence, payload, tags=True):
    """The LAYER header of a plane; without `tags` a dtype equal to the default float16 is left out."""
    header = {"byte_length": len(payload), "layer": plane.layer, "logical_token_end": plane.end,
              "logical_token_start": plane.start, "role": plane.role, "schema_version": SCHEMA_VERSION,
              "sequence": sequence, "sha256": sha256_hex(payload), "shape": plane.shape,
              "transfer_id": begin["transfer_id"]}
    if plane.layout_class is not None:
        header["layout_class"] = plane.layout_class["class"]
        dtype = "float32" if plane.float32 else plane.layout_class["dtype"]
        if tags or dtype != "float16":
            header["dtype"] = dtype
    return header


def make_seal(begin, headers, payloads, tokens, completed_ms, canary=None, key=None):
    """The flattened seal of a complete transfer; with a key it carries the tag."""
    payload = hashlib.sha256()
    for plane in payloads:
        payload.update(plane)
    core = {"completed_unix_ms": completed_ms, "descriptor_chain_sha256": descriptor_chain(headers),
            "frame_count": len(headers), "payload_bytes": sum(map(len, payloads)),
            "payload_sha256": payload.hexdigest(), "prompt_token_ids": tokens, "protocol": PROTOCOL,
            "schema_version": SCHEMA_VERSION, "strategy": begin["strategy"],
            "token_ids_sha256": token_ids_sha256(tokens),
            "transfer_id": begin["transfer_id"], "canary": canary}
    seal = {**core, "artifact_sha256": artifact_sha256(begin, headers, core)}
    if key is not None:
        seal["artifact_hmac_sha256"] = tag_hex(key, MAC_DOMAIN + artifact_stream(begin, headers, core))
    return seal


def produce(begin, payloads, tokens, completed_ms, canary=None, key=None, tags=True):
    """BEGIN, one LAYER per plane of the walk, SEAL."""
    planes = walk(begin)
    if len(planes) != len(payloads):
        raise validation(f"the walk has {len(planes)} planes, {len(payloads)} were given")
    headers = [make_header(begin, plane, n, payload, tags) for n,
               (plane, payload) in enumerate(zip(planes, payloads))]
    seal = make_seal(begin, headers, payloads, tokens, completed_ms, canary, key)
    layers = [write_frame("layer", h, p) for h, p in zip(headers, payloads)]
    return write_frame("begin", begin) + b"".join(layers) + write_frame("seal", seal)
