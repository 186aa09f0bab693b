"""The vector file of the live protocols, conformance/vectors/handoff_vectors.json."""
import json

from ..kvhf import cases as kv_cases
from . import cases

SCHEMA = "kvpack.handoff-vectors.v1"
SOURCE = "kvpack_ref, from docs/protocol and fixed inputs; message null = the library's own words, or none"


def vectors():
    """The whole file as a value."""
    handoff = ("begin_cases", "frame_cases", "written_frames", "sign_cases", "receiver_cases",
               "deferred_descriptor_cases",
               "admission_cases", "house_time_cases", "stream_cases")
    kvhf = ("kvhf", "kvhf_begin_cases", "kvhf_layout_cases", "kvhf_frame_cases", "kvhf_header_cases",
            "kvhf_stream_cases",
            "kvhf_session_cases", "kvhf_spray_cases", "kvhf_armed_cases")
    return {"schema": SCHEMA, "source": SOURCE, "json": cases.json_vectors(), "mac": cases.mac_vectors(),
            "transfers": cases.transfers(), **{name: getattr(cases, name)() for name in handoff},
            **{name: getattr(kv_cases, name)() for name in kvhf}, "ledger": cases.ledger_vectors(),
            "schedule": cases.schedule_vectors()}


def render(value):
    """JSON with one case per line, so that a difference can be read."""
    def line(x):
        return json.dumps(x, ensure_ascii=True, separators=(",", ":"))

    def block(x):
        if isinstance(x, list) and x and isinstance(x[0], dict):
            return "[\n" + ",\n".join(map(line, x)) + "\n]"
        if isinstance(x, dict):
            return "{\n" + ",\n".join(line(k) + ":" + block(y) for k, y in x.items()) + "\n}"
        return line(x)
    return block(value) + "\n"
