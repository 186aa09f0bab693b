"""The vector file of the live protocols, conformance/vectors/handoff_vectors.json."""
import json

from ..kvhf import cases as kv_cases
from . import cases

SCHEMA = "kvpack.handoff-vectors.v1"


def vectors():
    """The whole file as a value."""
    return {"schema": SCHEMA,
            "source": "kvpack_ref, from docs/protocol and fixed inputs alone; message null = the library's own words, or none",
            "json": cases.json_vectors(), "mac": cases.mac_vectors(), "transfers": cases.transfers(),
            "begin_cases": cases.begin_cases(),
            "frame_cases": cases.frame_cases(), "written_frames": cases.written_frames(),
            "receiver_cases": cases.receiver_cases(),
            "deferred_descriptor_cases": cases.deferred_descriptor_cases(),
            "admission_cases": cases.admission_cases(),
            "house_time_cases": cases.house_time_cases(), "stream_cases": cases.stream_cases(),
            "kvhf": kv_cases.kvhf(),
            "kvhf_begin_cases": kv_cases.kvhf_begin_cases(),
            "kvhf_layout_cases": kv_cases.kvhf_layout_cases(),
            "kvhf_frame_cases": kv_cases.kvhf_frame_cases(),
            "kvhf_header_cases": kv_cases.kvhf_header_cases(),
            "kvhf_stream_cases": kv_cases.kvhf_stream_cases(),
            "kvhf_session_cases": kv_cases.kvhf_session_cases(),
            "kvhf_spray_cases": kv_cases.kvhf_spray_cases(), "kvhf_armed_cases": kv_cases.kvhf_armed_cases(),
            "ledger": cases.ledger_vectors(),
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
