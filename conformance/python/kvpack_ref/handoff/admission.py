"""Request admission (docs/protocol/handoff.md section 11, docs/protocol/delta.md)."""
from dataclasses import dataclass

from .delta import check_cut, check_declared_schedule
from .errors import validation

REQUEST_NAMESPACE = "muser-"


@dataclass(frozen=True)
class ArmedRequest:
    """What a receiver expects of the next transfer.

    `prompt` is the request without its boundary token, `held` the receiving session's token history at arm time,
    `target` and `dflash` component identity digests (`dflash` None: no draft context), `request_id` None accepts any
    transfer id. `strict` demands the exact request id, or that id followed by `-` (rule S3).
    """
    identity: dict
    prompt: list
    multimodal: dict
    target: str
    dflash: str
    request_id: str
    max_context: int
    held: list
    strict: bool = True


def names_request(transfer_id, request_id, strict):
    """Whether a transfer id belongs to a request; ids outside the namespace belong to any."""
    if not transfer_id.startswith(request_id):
        return not transfer_id.startswith(REQUEST_NAMESPACE)
    return not strict or transfer_id[len(request_id):][:1] in ("", "-")


def admit(begin, cut, armed):
    """The rows of section 11 and of delta.md, in order."""
    if begin["generation"] == 0:
        raise validation("handoff generation zero is never installable")
    if armed.request_id is not None and not names_request(begin["transfer_id"], armed.request_id, armed.strict):
        raise validation("handoff transfer id names a different request")
    if begin["identity"] != armed.identity:
        raise validation("model/tokenizer/template/adapter identity mismatch")
    prompt = begin["prompt_token_ids"]
    if prompt != armed.prompt:
        raise validation("remote prompt tokens differ from the exact request")
    if not 1 <= len(prompt) <= armed.max_context:
        raise validation("remote prefix is outside the armed context bound")
    if begin["multimodal"] != armed.multimodal:
        raise validation("multimodal identity differs from the armed request")
    _check_components(begin, armed)
    if cut == 0:
        return
    check_cut(begin, cut)
    if len(armed.held) < cut or armed.held[:cut] != prompt[:cut]:
        raise validation("delta prefix cut names a prefix the receiving session does not hold")
    if not begin["deferred_segments"]:
        check_declared_schedule(begin, cut)


def _check_components(begin, armed):
    def exactly_one(kind, identity):
        found = [c for c in begin["components"] if c["kind"] == kind]
        return len(found) == 1 and found[0]["required"] and found[0]["identity_sha256"] == identity

    if not exactly_one("target_kv", armed.target):
        raise validation("target cache component identity mismatch")
    present = any(c["kind"] == "dflash_context" for c in begin["components"])
    if present if armed.dflash is None else not exactly_one("dflash_context", armed.dflash):
        raise validation("DFlash component identity or requirement mismatch")
    if any(c["kind"] == "vision_context" for c in begin["components"]):
        raise validation("vision state is represented by the multimodal identity, not a cache component")
