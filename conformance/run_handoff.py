#!/usr/bin/env python3
"""Checks an implementation of Handoff V2 and KVHF through the line protocol of HANDOFF.md.

Runs every case of vectors/handoff_vectors.json, corrupts the recorded streams at every position, and has the reference
and the implementation verify each other's transfers. Exit status: 0 all agreed, 1 something did not, 2 usage.
"""
import argparse
import collections
import json
import os
import queue
import random
import shlex
import struct
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "python"))

import handoff_endpoint  # noqa: E402
from kvpack_ref import drive, kernels, kvhf  # noqa: E402
from kvpack_ref.handoff import canonical as cj  # noqa: E402
from kvpack_ref.handoff import manifest, stream  # noqa: E402
from kvpack_ref.handoff.delta import span_schedule  # noqa: E402
from kvpack_ref.handoff.errors import Refusal  # noqa: E402
from kvpack_ref.handoff.receiver import RecordingSink  # noqa: E402
from kvpack_ref.kvhf import begin as kv_begin  # noqa: E402
from kvpack_ref.kvhf import bundle as kv_bundle  # noqa: E402
from kvpack_ref.kvhf import frame as kv_frame  # noqa: E402
from kvpack_ref.kvhf import verifier as kv_verifier  # noqa: E402

VECTORS = os.path.join(HERE, "vectors", "handoff_vectors.json")
SHORT_STREAM_BYTES = 8192
LONG_STRIDE = 1999
KVHF_STRIDE = 13
KVHF_WHOLE = ("v1", "prerope-keyed")
FREE_TEXT = ("json", "canonical", "io", "missing_begin", "replay", "zero_generation")
ANSWER_TIMEOUT_S = 120
IN_FLIGHT = 256

Case = collections.namedtuple("Case", "group name request check")


# ----------------------------------------------------------------------------------------------- words

def word(value):
    """A bytes, text, number, flag or absent value as a word."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, (dict, list)):
        value = cj.canonical(value)
    data = value.encode("utf-8") if isinstance(value, str) else value
    return data.hex() or "-"


def hexed(digits):
    """A hex string of the vector file as a word."""
    return "none" if digits is None else digits or "-"


def tokens(ids):
    return word(struct.pack(f"<{len(ids)}I", *ids))


def request(*words):
    return "\t".join(words)


def snake(category):
    return "".join("_" + c.lower() if c.isupper() else c for c in category).lstrip("_")


# ---------------------------------------------------------------------------------------------- checks

def same_refusal(answer, category, message):
    """Whether a refusal word carries this category and, where it is pinned, this text."""
    got, colon, text = answer.partition(":")
    if not colon or got != category:
        return False
    if message is None or category in FREE_TEXT:
        return True
    return answer == handoff_endpoint.refusal_word(Refusal(category, message))


def expects(row, values=(), then=None):
    """A check for a vector row: its category and message, `values` after an ok, `then` after either."""
    def check(words):
        rest = list(values) if row["category"] == "ok" else []
        rest += then or []
        good = words[0] == "ok" if row["category"] == "ok" else same_refusal(words[0], snake(row["category"]),
                                                                             row["message"])
        if good and words[1:] == rest:
            return None
        return "expected " + " ".join([row["category"], str(row["message"]), *rest])[:300]
    return check


def ok(*values):
    return expects({"category": "ok", "message": None}, values)


def any_ok(words):
    return None if words[0] == "ok" else "expected ok"


def digest_is(sha256):
    """One result of bytes with this SHA-256."""
    def check(words):
        if len(words) == 2 and words[0] == "ok" and cj.sha256_hex(unhex(words[1])) == sha256:
            return None
        return f"expected ok and bytes of SHA-256 {sha256}"
    return check


def unhex(text):
    return b"" if text == "-" else bytes.fromhex(text)


# --------------------------------------------------------------------------------- cases of the vectors

def json_cases(v):
    for r in v["json"]["canonical"]:
        yield r["name"], request("encode", "canonical_json", word(r["input"])), ok(r["canonical_hex"])
    for r in v["json"]["strict_decode"]:
        yield r["name"], request("verdict", "canonical_json", word(r["max"]), hexed(r["bytes_hex"])), expects(r)
    for r in v["json"]["parse"]:
        check = any_ok if r["category"] == "ok" else expects({"category": "Canonical", "message": None})
        yield r["name"], request("encode", "canonical_json", hexed(r["bytes_hex"])), check
    for r in v["json"]["token_ids"]:
        yield str(r["ids"]), request("encode", "token_ids", tokens(r["ids"])), ok(word(r["sha256"]))


def mac_cases(v):
    m = v["mac"]
    for r in m["plain"]:
        yield r["tag"], request("encode", "mac", r["key_hex"], hexed(r["stream_hex"])), ok(word(r["tag"]))
    for r in m["verify"]:
        yield r["expected"], request("verdict", "mac", r["key_hex"], hexed(r["stream_hex"]),
                                     word(r["expected"])), expects(r)
    for r in m["domain"]:
        yield r["tag"], request("encode", "domain_mac", r["key_hex"], word(r["domain"]), hexed(r["stream_hex"])), ok(
            word(r["tag"]))
        yield "input " + r["tag"], request("encode", "mac", r["key_hex"], r["mac_input_hex"]), ok(word(r["tag"]))
    for r in m["domain_verify"]:
        yield r["expected"], request("verdict", "domain_mac", r["key_hex"], word(r["domain"]), hexed(r["stream_hex"]),
                                     word(r["expected"])), expects(r)
    for r in m["key_files"]:
        yield r["name"], request("decode", "mac_key_file", hexed(r["content_hex"])), expects(
            r["consumer"], [r.get("key_hex", "")])


def begin_cases(v):
    for t in v["transfers"]:
        yield t["name"], request("encode", "handoff_begin", word(t["begin"])), digest_is(t["begin_sha256"])
        for d in t["descriptors"]:
            yield f"{t['name']}/{d['sequence']}", request("encode", "handoff_descriptor", word(spaced(d))), ok(word(d))
    for r in v["begin_cases"]:
        yield r["name"], request("verdict", "handoff_begin", word(r["manifest"]), word(r["now_unix_ms"]),
                                 word(r["key_id"]), word(r["min_epoch"])), expects(r)


def spaced(value):
    """JSON text that is not canonical: reversed keys, blanks."""
    return json.dumps({k: value[k] for k in reversed(sorted(value))}, indent=1)


def seal_cases(v):
    for t in v["transfers"]:
        seal = {"core": json.loads(t["core_canonical"]), "hmac_sha256": t["hmac_sha256"]}
        payloads = [hexed(p) for p in t["payloads_hex"]]
        yield t["name"], request("encode", "handoff_sign", t["key_hex"], word(t["begin"]), word(t["descriptors"]),
                                 *payloads), ok(word(seal))
        yield t["name"] + " canonical", request("encode", "handoff_seal", word(spaced(seal))), digest_is(
            t["seal_manifest_sha256"])
    for r in v["sign_cases"]:
        yield r["name"], request("encode", "handoff_sign", r["key_hex"], word(r["begin"]), word(r["descriptors"]),
                                 *map(hexed, r["payloads_hex"])), expects(r, [word(r.get("seal"))])


def frame_cases(v):
    for r in v["frame_cases"]:
        for mode, strict in (("plain", "0"), ("strict", "1")):
            yield f"{r['name']} {mode}", request("decode", "handoff_frame", strict, hexed(r["frame_hex"])), read_frame(
                r, r[mode])
    for r in v["written_frames"]:
        fields = [word(r[k]) for k in ("transfer_id", "generation", "reason") if k in r]
        yield r["kind"], request("encode", "handoff_frame", r["kind"], *fields), ok(r["frame_hex"])
        yield r["kind"] + " read", request("decode", "handoff_frame", "1", r["frame_hex"]), ok(r["kind"], *fields)
    for t in v["transfers"]:
        deferred = t["begin"].get("deferred_segments", False)
        seal = word({"core": json.loads(t["core_canonical"]), "hmac_sha256": t["hmac_sha256"]})
        contents = [("begin", word(t["prefix_cut"]), word(t["begin"]))]
        for d, payload in zip(t["descriptors"], t["payloads_hex"]):
            contents.append(("segment", word(d["sequence"]), word(d) if deferred else "none", hexed(payload)))
        contents.append(("seal", seal))
        for n, (fields, frame_hex) in enumerate(zip(contents, t["frames_hex"])):
            yield f"{t['name']}/{n}", request("encode", "handoff_frame", *fields), ok(frame_hex)
            yield f"{t['name']}/{n} read", request("decode", "handoff_frame", "1", frame_hex), ok(*fields)


def read_frame(row, verdict):
    def check(words):
        if verdict["category"] != "ok":
            return expects(verdict)(words)
        want = ["ok", row["kind"]] + ([word(row["prefix_cut"])] if row["kind"] == "begin" else [])
        return None if words[:len(want)] == want else "expected " + " ".join(want)
    return check


def receiver_cases(v):
    for group in ("receiver_cases", "deferred_descriptor_cases"):
        for r in v[group]:
            ops = []
            for name, *args in r["ops"]:
                ops += [name, *(hexed(a) if isinstance(a, str) else word(a) for a in args)]
            line = request("verdict", "handoff_receiver", r["key_hex"], word(r["begin"]), r["sink_fails_at"] or "none",
                           *ops)
            yield r["name"], line, expects(r, then=[",".join(r["sink_calls"]) or "-", word(r["live_generation"])])


def admission_cases(v):
    for r in v["admission_cases"]:
        x = r["expected"]
        armed = {**v["transfers"][0]["begin"], "identity": x["identity"], "prompt_token_ids": x["prompt"],
                 "multimodal": x["multimodal"]}
        yield r["name"], request(
            "verdict", "handoff_admission", word(r["manifest"]), word(r["prefix_cut"]), word(armed), word(x["target"]),
            word(x["dflash"]), word(x["prefix"]), word(x["max_context"]), tokens(x["held"]),
            word(x["strict"])), expects(r)
    for r in v["house_time_cases"]:
        fields = ("created_unix_ms", "expires_unix_ms", "now_unix_ms", "started_unix_ms", "max_clock_skew_ms",
                  "max_lifetime_ms")
        yield r["name"], request("verdict", "handoff_times", *(word(r[k]) for k in fields)), expects(r)


def handoff_context(r, strict=True, recorded=True):
    return request("handoff_context", r["key_hex"], word(r["key_id"]), word(r["min_epoch"]), word(r["now_unix_ms"]),
                   word(r.get("strict", strict)), word(r.get("recorded", recorded)), word(r.get("max_segments")),
                   word(r.get("max_total_bytes")))


def without_prepare(check):
    """Whether a prepare_commit call shows is not compared."""
    def relaxed(words):
        calls = [",".join(c for c in w.split(",") if c != "prepare_commit") if "begin" in w.split(",") else w
                 for w in words[1:]]
        return check([words[0], *calls])
    return relaxed


def stream_cases(v):
    frames = {f"{t['name']}/{n}": f for t in v["transfers"] for n, f in enumerate(t["frames_hex"])}
    for t in v["transfers"]:
        calls = ["begin"] + ["segment_ready"] * len(t["descriptors"]) + ["prepare_commit", "commit"]
        begin = t["begin"]
        yield t["name"] + " context", handoff_context(t), ok()
        yield t["name"], request("verdict", "handoff_stream", "".join(t["frames_hex"])), ok(
            word(begin["transfer_id"]), word(begin["generation"]), word(t["prefix_cut"]), ",".join(calls),
            word(begin["generation"]))
    for r in v["stream_cases"]:
        data = "".join(frames.get(part, part) for part in r["parts"])
        first = json.loads(v["transfers"][0]["core_canonical"])
        generation = r["live_generation"]
        transfer = "muser-77-1-5" if r["name"].startswith("cut-missing") else first["transfer_id"]
        yield r["name"] + " context", handoff_context(r), ok()
        yield r["name"], request("verdict", "handoff_stream", hexed(data)), without_prepare(expects(
            r, [word(transfer), word(generation), word(r.get("prefix_cut"))],
            [",".join(r["sink_calls"]) or "-", word(generation)]))


def produce_cases(v):
    for t in v["transfers"]:
        yield t["name"], request("encode", "handoff_stream", t["key_hex"], word(t["begin"]), word(t["prefix_cut"]),
                                 word(t["descriptors"]), *map(hexed, t["payloads_hex"])), digest_is(t["stream_sha256"])


def schedule_cases(v):
    for r in v["schedule"]["table"]:
        yield f"{r['position']},{r['cut']}", request("encode", "span_schedule", word(r["position"]), word(r["cut"]),
                                                     "none"), digest_is(r["rows_sha256"])
    for r in v["schedule"]["dflash"]:
        yield f"{r['position']} dflash", request("encode", "span_schedule", word(r["position"]), "0",
                                                 tokens(r["geometry"])), digest_is(r["rows_sha256"])
    for position, cut in v["schedule"]["invalid"]:
        yield f"{position},{cut}", request("encode", "span_schedule", word(position), word(cut), "none"), ok("none")


def ledger_cases(v):
    book = v["ledger"]
    for r in book["files"]:
        yield r["name"], request("decode", "ledger_file", word(r["text"])), ok(word(r["text"]))
    for r in book["parse"]:
        check = any_ok if r["category"] == "ok" else expects(r)
        yield r["name"], request("decode", "ledger_file", hexed(r["bytes_hex"])), check
    yield "new", request("ledger", "new"), ok(word(book["files"][0]["text"]))
    for n, r in enumerate(book["trace"]):
        name, *args = r["op"]
        yield f"trace {n} {name}", request("ledger", name, *map(word, args)), ledger_step(r)


def ledger_step(row):
    def check(words):
        verdict, message = words[0], row["message"]
        if row["category"] == "ok":
            good = verdict == "ok"
        elif message is not None and message.endswith("{e}"):
            good = verdict.startswith(snake(row["category"]) + ":" + message.removesuffix("{e}"))
        else:
            good = same_refusal(verdict, snake(row["category"]), message)
        if good and len(words) == 2 and cj.sha256_hex(unhex(words[1])) == row["file_sha256"]:
            return None
        return f"expected {row['category']} {message} and a file of SHA-256 {row['file_sha256']}"
    return check


# ------------------------------------------------------------------------------------- cases of KVHF

def limits_word(limits):
    return ",".join(str(limits[k]) for k in (
        "max_cached_tokens", "max_clock_skew_ms", "max_context_tokens", "max_frame_bytes", "max_layers",
        "max_session_ms", "max_total_bytes", "now_unix_ms"))


def walk_word(walk):
    return ",".join(f"{layer}{role[0]}" for layer, role in walk)


def kvhf_limits(v):
    return v["kvhf_stream_cases"][0]["limits"]


def kvhf_frame_cases(v):
    for r in v["kvhf_frame_cases"]:
        def check(words, r=r):
            if r["category"] == "ok":
                return None if words[:2] == ["ok", r["kind"]] else f"expected ok {r['kind']}"
            return expects(r)(words)
        yield r["name"], request("decode", "kvhf_frame", word(r["max_json"]), word(r["max_payload"]),
                                 hexed(r["frame_hex"])), check
    for r in v["kvhf"]:
        data = unhex(r["stream_hex"])
        for n, piece in enumerate(handoff_endpoint.split_frames(data)):
            reader = kv_frame.FrameReader(piece)
            kind, value = reader.header()
            fields = [kind, word(kv_frame.encode(value)), word(reader.payload())]
            yield f"{r['name']}/{n}", request("encode", "kvhf_frame", *fields), ok(word(piece))
            line = request("decode", "kvhf_frame", "1048576", "67108864", word(piece))
            yield f"{r['name']}/{n} read", line, ok(*fields)


def kvhf_begin_cases(v):
    for r in v["kvhf"]:
        b = r["begin"]
        yield r["name"], request("verdict", "kvhf_begin", limits_word(kvhf_limits(v)), word(b)), ok(
            word(b["expected_layer_frames"]), word(b["expected_payload_bytes"]), walk_word(r["walk"]))
    for r in v["kvhf_begin_cases"]:
        check = any_ok if r["category"] == "ok" else expects(r)
        yield r["name"], request("verdict", "kvhf_begin", limits_word(r["limits"]), word(r["manifest"])), check
    for r in v["kvhf_layout_cases"]:
        def check(words, r=r):
            if r["category"] != "ok":
                return expects(r)(words)
            good = words[0] == "ok" and words[-1] == walk_word(r["walk"]) and words[1] == str(len(r["walk"]))
            return None if good else f"expected ok and the walk {walk_word(r['walk'])}"
        yield r["name"], request("verdict", "kvhf_begin", limits_word(r["limits"]), hexed(r["json_hex"])), check
    for r in v["kvhf_armed_cases"]:
        yield r["name"], request("verdict", "kvhf_armed", word(r["begin"]), word(r["armed"])), expects(r)
    begins = {r["name"]: r["begin"] for r in v["kvhf"]}
    for r in v["kvhf_header_cases"]:
        yield r["name"], request("verdict", "kvhf_header", limits_word(r["limits"]), word(begins[r["fixture"]]),
                                 word(r["index"]), word(r["header"])), expects(r)


def kvhf_stream_cases(v):
    limits = limits_word(kvhf_limits(v))
    for r in v["kvhf"]:
        yield r["name"], request(
            "encode", "kvhf_stream", hexed(r["key_hex"]), word(r["value_dtype_tags"]), word(r["completed_unix_ms"]),
            word(r["begin"]), tokens(r["prompt_token_ids"]), word(r["canary"]), *r["planes_hex"]), digest_is(
                r["stream_sha256"])
        yield r["name"] + " context", request("kvhf_context", limits, hexed(r["key_hex"])), ok()
        yield r["name"] + " verify", request("verdict", "kvhf_stream", r["stream_hex"]), ok(
            *(word(r[k]) for k in ("artifact_sha256", "descriptor_chain_sha256", "payload_sha256")))
    for r in v["kvhf_stream_cases"]:
        yield r["name"] + " context", request("kvhf_context", limits_word(r["limits"]), hexed(r["key_hex"])), ok()
        check = any_ok if r["category"] == "ok" else expects(r)
        yield r["name"], request("verdict", "kvhf_stream", hexed(r["stream_hex"])), check


def kvhf_session_cases(v):
    for r in v["kvhf_session_cases"]:
        ops = []
        for name, *args in r["ops"]:
            ops += [name, *(hexed(a) if isinstance(a, str) else word(a) for a in args)]
        line = request("verdict", "kvhf_session", limits_word(r["limits"]), word(r["begin"]), *ops)
        yield r["name"], line, expects(r, then=[",".join(map(str, r["ready_layers"])) or "-"])
    for r in v["kvhf_spray_cases"]:
        yield r["name"], request("verdict", "kvhf_spray", word(r["frames"]), tokens(r["arrivals"])), expects(
            r, [tokens(r.get("released", []))])


def bundle_cases(v, folder):
    """Bundles written by either side and opened by the other; one change per file; what may not be there."""
    limits_fields = kvhf_limits(v)
    limits, typed = limits_word(limits_fields), kvhf.Limits(**limits_fields)
    for r in v["kvhf"]:
        theirs, ours = os.path.join(folder, r["name"]), os.path.join(folder, r["name"] + ".ours")
        artifact = word(r["artifact_sha256"])
        kv_bundle.write(ours, unhex(r["stream_hex"]), typed)

        def opens(words, path=theirs, artifact=r["artifact_sha256"]):
            if words != ["ok", word(artifact)]:
                return f"expected ok {artifact}"
            try:
                return None if kvhf.open_bundle(path, typed).seal["artifact_sha256"] == artifact else "other artifact"
            except Refusal as e:
                return f"the reference refuses the bundle: {e}"
        yield r["name"] + " write", request("encode", "kvhf_bundle", limits, word(theirs), r["stream_hex"]), opens
        yield r["name"] + " open", request("verdict", "kvhf_bundle", limits, word(ours)), ok(artifact)
    again = os.path.join(folder, "v1.ours")
    yield "exists", request("encode", "kvhf_bundle", limits, word(again), v["kvhf"][0]["stream_hex"]), expects(
        {"category": "Validation", "message": f"bundle output already exists: {again}"})
    source = next(r for r in v["kvhf"] if r["name"] == "prerope")
    for name, change in bundle_changes():
        path = os.path.join(folder, "changed." + name.replace("/", "."))
        kv_bundle.write(path, unhex(source["stream_hex"]), typed)
        change(path)
        yield name, request("verdict", "kvhf_bundle", limits, word(path)), reference_outcome(
            lambda path=path: kvhf.open_bundle(path, typed))


def bundle_changes():
    def flip(name):
        def change(path):
            with open(os.path.join(path, name), "r+b") as f:
                f.seek(3)
                byte = f.read(1)[0]
                f.seek(3)
                f.write(bytes([byte ^ 1]))
        return change

    def remove(name):
        return lambda path: os.remove(os.path.join(path, name))

    def add(name):
        def change(path):
            with open(os.path.join(path, name), "wb") as f:
                f.write(b"x")
        return change

    def link(name):
        def change(path):
            target = os.path.join(path, name)
            os.rename(target, target + ".moved")
            os.symlink(target + ".moved", target)
        return change

    def empty(name):
        return lambda path: open(os.path.join(path, name), "wb").close()

    files = ("begin.json", "seal.json", "READY", "layers/00000-k.json", "layers/00000-k.f32le", "layers/00001-v.json",
             "layers/00001-v.f16le")
    for name in files:
        yield "flip/" + name, flip(name)
        yield "remove/" + name, remove(name)
        yield "empty/" + name, empty(name)
    for name in ("begin.json", "seal.json", "READY"):
        yield "link/" + name, link(name)
    yield "stray", add("layers/00002-k.json")
    yield "beside", add("note.txt")


def reference_outcome(body):
    """A check against what the reference does with the same input."""
    try:
        body()
        return any_ok
    except Refusal as r:
        return expects({"category": r.category, "message": r.message})


# ------------------------------------------------------------------------------------------ corruption

def corruptions(data, stride, doubled_last):
    """The edits of the sweep: every bit and truncation (of every `stride`-th byte), every frame edit."""
    for at in range(0, len(data), stride):
        for bit in range(8):
            yield f"/xor:{at}:{1 << bit:02x}"
        yield f"/cut:{at}"
    count = len(handoff_endpoint.split_frames(data))
    for n in range(count):
        yield f"/drop:{n}"
        if doubled_last or n + 1 < count:
            yield f"/double:{n}"
        if n + 1 < count:
            yield f"/swap:{n}"


def apply(data, edit):
    return handoff_endpoint.apply_edit(data, edit[1:])


def refused_as(answer, refusal):
    if same_refusal(answer, refusal.category, refusal.message):
        return True
    # A receiver that judges a segment before its payload is read names the segment's own fault.
    early = refusal.category == "invalid" and refusal.message == "truncated segment payload"
    return early and answer.startswith("validation:")


def check_corrupted(policy, data, edit):
    def check(words):
        sink = RecordingSink()
        try:
            stream.receive(apply(data, edit), policy, sink)
        except Refusal as r:
            if not refused_as(words[0], r):
                return f"expected {r}"
            calls = words[1].split(",") if len(words) == 3 else []
            aborts = 1 if calls[:1] == ["begin"] else 0
            if len(words) != 3 or calls.count("abort") != aborts or "commit" in calls or words[2] != "none":
                return "the sink was not aborted exactly once with nothing live"
            return None
        return "the reference accepts this stream"
    return check


def sweep_cases(v):
    for t in v["transfers"]:
        data = unhex("".join(t["frames_hex"]))
        policy = stream.Policy(unhex(t["key_hex"]), t["key_id"], t["min_epoch"], t["now_unix_ms"])
        setup = [request("slot", "s", word(data)), handoff_context(t)]
        stride = 1 if len(data) < SHORT_STREAM_BYTES else LONG_STRIDE
        for edit in corruptions(data, stride, True):
            yield setup, f"{t['name']}{edit}", request("verdict", "handoff_stream", "@s" + edit), check_corrupted(
                policy, data, edit)


def check_corrupted_kvhf(limits, key, data, edit):
    def check(words):
        try:
            kv_verifier.receive(apply(data, edit), limits, key)
        except Refusal as r:
            return None if same_refusal(words[0], r.category, r.message) and len(words) == 1 else f"expected {r}"
        return "the reference accepts this stream"
    return check


def kvhf_sweep_cases(v, full):
    limits_fields = kvhf_limits(v)
    limits = kvhf.Limits(**limits_fields)
    for r in v["kvhf"]:
        data, key = unhex(r["stream_hex"]), unhex(r["key_hex"]) if r["key_hex"] else None
        setup = [request("slot", "s", word(data)),
                 request("kvhf_context", limits_word(limits_fields), hexed(r["key_hex"]))]
        stride = 1 if full or r["name"] in KVHF_WHOLE else KVHF_STRIDE
        for edit in corruptions(data, stride, False):
            yield setup, f"{r['name']}{edit}", request("verdict", "kvhf_stream", "@s" + edit), check_corrupted_kvhf(
                limits, key, data, edit)


def sampled(rows, count, seed):
    """`count` of the rows, spread by a seeded choice; None takes all. Setup lines go in front of their first use."""
    rows = list(rows)
    chosen = range(len(rows)) if count is None or count >= len(rows) else sorted(
        random.Random(seed).sample(range(len(rows)), count))
    held = None
    for n in chosen:
        setup, name, line, check = rows[n]
        if setup is not held:
            for text in setup:
                yield name + " setup", text, any_ok
            held = setup
        yield name, line, check


# ------------------------------------------------------------------------------------- cross production

def random_text(rng, alphabet="abcdefXYZ019-_. \u00e9\u20ac\U0001f600\"\\\n/"):
    return "".join(rng.choice(alphabet) for _ in range(rng.randrange(1, 12)))


def random_digest(rng):
    return rng.randbytes(32).hex()


def random_transfer(rng, deferred):
    """Begin, descriptors, payloads, key and cut of a valid transfer."""
    components = [{"id": "target", "kind": "target_kv", "required": True, "identity_sha256": random_digest(rng)}]
    if rng.random() < 0.4:
        components.append({"id": random_text(rng), "kind": "dflash_context", "required": False,
                           "identity_sha256": random_digest(rng)})
    rows, ends = [], collections.Counter()
    for n in range(rng.randrange(1, 8)):
        # The first one is the target's, which every deferred transfer needs.
        component = rng.choice(components) if n else components[0]
        role, layer = rng.choice(manifest.SEGMENT_ROLES), rng.choice([None, 0, 3, 2**32 - 1])
        place = (component["id"], role, layer)
        count, elements = rng.randrange(1, 6), rng.randrange(1, 9)
        rows.append({"component_id": component["id"], "role": role, "layer": layer, "logical_start": ends[place],
                     "logical_count": count, "element_type": rng.choice(["f16_le", "f32_le"]),
                     "elements_per_token": elements})
        ends[place] += count + rng.randrange(2)
    payloads = [rng.randbytes(r["logical_count"] * r["elements_per_token"] * manifest.ELEMENT_BYTES[r["element_type"]])
                for r in rows]
    prompt = [rng.randrange(2**32) for _ in range(rng.randrange(1, 20))]
    return finish_transfer(rng, deferred, components, rows, payloads, prompt)


def random_delta(rng, deferred):
    """The same of a delta."""
    rows = span_schedule(257, 256)
    components = [{"id": "target", "kind": "target_kv", "required": True, "identity_sha256": random_digest(rng)}]
    payloads = [rng.randbytes(r["byte_len"]) for r in rows]
    prompt = [rng.randrange(2**32) for _ in range(257)]
    return finish_transfer(rng, deferred, components, rows, payloads, prompt, 256)


def finish_transfer(rng, deferred, components, rows, payloads, prompt, cut=0):
    descriptors = stream.describe(rows, payloads)
    created = rng.randrange(2**40)
    digests = {k: random_digest(rng) for k in ("model_sha256", "adapter_sha256", "tokenizer_sha256",
                                               "chat_template_sha256", "context_policy_sha256")}
    multimodal = {k: random_digest(rng) for k in ("projector_sha256", "preprocessing_sha256", "image_sequence_sha256")}
    begin = {"protocol": manifest.PROTOCOL, "transfer_id": f"t-{rng.randrange(2**64)}",
             "generation": rng.randrange(1, 2**64), "created_unix_ms": created,
             "expires_unix_ms": created + rng.randrange(1, 900000),
             "identity": {**digests, "model_revision": random_text(rng), "tokenizer_revision": random_text(rng)},
             "prompt_token_ids": prompt, "hmac": {"key_id": random_text(rng), "epoch": rng.randrange(1, 2**64)},
             "multimodal": rng.choice([None, multimodal]),
             "components": components, "segments": descriptors}
    if deferred:
        begin.update(deferred_segments=True, segments=[])
    return begin, descriptors, payloads, rng.randbytes(32), cut


def random_kvhf(rng):
    """BEGIN, planes, tokens, canary, key, tags of a valid KVHF transfer."""
    layers, prerope = rng.randrange(1, 5), rng.random() < 0.3
    cached = rng.randrange(1, 9)
    split = rng.randrange(1, layers + 1)
    bounds = [(0, split)] + ([(split, layers)] if split < layers else [])
    table = [{"class": f"class-{n}", "dtype": "float16", "except": [], "from": lo, "until": hi, "step": 1,
              "head_dim": rng.randrange(1, 5), "kv_heads": rng.randrange(1, 4), "roles": ["key", "value"],
              "window_tokens": rng.choice([0, 0, 1, 3, 99])} for n, (lo, hi) in enumerate(bounds)]
    v1 = not prerope and rng.random() < 0.3
    single = len(table) == 1 or v1
    prompt = [rng.randrange(2**32) for _ in range(cached + 1)]
    begin = {"cached_token_count": cached, "created_unix_ms": 100, "deadline_unix_ms": 200,
             "endpoints": {k: "node-1" for k in ("consumer_engine_abi", "consumer_node", "producer_engine_abi",
                                                 "producer_node", "trust_domain")},
             "expected_layer_frames": 0, "expected_payload_bytes": 0,
             "geometry": {"head_dim": table[0]["head_dim"] if single else 0, "max_context_tokens": 32,
                          "num_kv_heads": table[0]["kv_heads"] if single else 0, "num_layers": layers},
             "identity": {**{k + "_sha256": random_digest(rng) for k in ("adapter", "chat_template", "context_policy",
                                                                         "model", "tokenizer")},
                          "model_revision": "m@1", "tokenizer_revision": "t@1"},
             "portable_abi": kv_begin.ABI_PREROPE if prerope else kv_begin.ABI_V1 if v1 else kv_begin.ABI_V2,
             "precision": {"compute": "float16", "kv": "float16", "weights": rng.choice(kv_begin.WEIGHTS)},
             "protocol": kv_frame.PROTOCOL, "schema_version": 1, "strategy": kv_frame.STRATEGY,
             "token_ids_sha256": cj.token_ids_sha256(prompt), "transfer_id": random_digest(rng)}
    if not v1:
        begin["layout_table"] = table
        if rng.random() < 0.5:
            begin["schedule"] = rng.choice(["layer-order", "decode-priority"])
    key = rng.choice([None, rng.randbytes(32)])
    if key is not None:
        begin["hmac_key_id"] = "tenant-a"
    typed = kv_frame.decode("begin", cj.canonical(begin))
    begin["expected_layer_frames"], begin["expected_payload_bytes"] = kv_begin.totals(typed)
    # Halves and floats of small magnitude: every key plane is finite.
    planes = [bytes(b & 0x3F for b in rng.randbytes(p.byte_len)) for p in kv_begin.walk(typed)]
    canary = {"post_rope_k_sha256": random_digest(rng), "post_rope_v_sha256": random_digest(rng),
              "sample_token_count": 1, "sample_token_start": cached - 1} if prerope else None
    return begin, planes, prompt, canary, key, rng.random() < 0.5


def cross_cases(v, count, seed):
    rng = random.Random(seed)
    limits_fields = kvhf_limits(v)
    for n in range(count):
        # Every second one is deferred, and of each sixteen the last two are deltas.
        deferred, delta = n % 2 == 1, n % 16 >= 14
        begin, descriptors, payloads, key, cut = (random_delta if delta else random_transfer)(rng, deferred)
        what = f"handoff {n} {'deferred' if deferred else 'declared'} {'delta' if delta else 'full'}"
        typed = manifest.parse_begin(cj.canonical(begin))
        ours = stream.produce(typed, descriptors, payloads, key, cut)
        context = {"key_hex": key.hex(), "key_id": begin["hmac"]["key_id"], "min_epoch": begin["hmac"]["epoch"],
                   "now_unix_ms": begin["expires_unix_ms"]}
        policy = stream.Policy(key, context["key_id"], context["min_epoch"], context["now_unix_ms"])
        yield f"{what} context", handoff_context(context), ok()
        yield f"{what} reference to implementation", request("verdict", "handoff_stream", word(ours)), accepted(
            begin["transfer_id"], begin["generation"], cut)
        line = request("encode", "handoff_stream", key.hex(), word(begin), word(cut), word(descriptors),
                       *map(word, payloads))
        yield f"{what} implementation to reference", line, produced(
            ours, lambda data, policy=policy: stream.receive(data, policy))
    for n in range(count):
        begin, planes, prompt, canary, key, tags = random_kvhf(rng)
        limits = kvhf.Limits(**limits_fields)
        typed = kv_frame.decode("begin", cj.canonical(begin))
        ours = kvhf.produce(typed, planes, prompt, 150, canary, key, tags)
        yield f"kvhf {n} context", request("kvhf_context", limits_word(limits_fields), word(key)), ok()
        yield f"kvhf {n} reference to implementation", request("verdict", "kvhf_stream", word(ours)), any_ok
        yield f"kvhf {n} implementation to reference", request(
            "encode", "kvhf_stream", word(key), word(tags), "150", word(begin), tokens(prompt), word(canary),
            *map(word, planes)), produced(ours, lambda data, key=key: kv_verifier.receive(data, limits, key))


def accepted(transfer_id, generation, cut):
    def check(words):
        want = ["ok", word(transfer_id), word(generation), word(cut)]
        return None if words[:4] == want and words[5:] == [word(generation)] else "expected " + " ".join(want)
    return check


def produced(ours, verify):
    def check(words):
        if words[0] != "ok" or len(words) != 2:
            return "expected ok and a stream"
        theirs = unhex(words[1])
        try:
            verify(theirs)
        except Refusal as r:
            return f"the reference refuses the stream: {r}"
        return None if theirs == ours else f"differs from the reference's bytes, SHA-256 {cj.sha256_hex(ours)}"
    return check


# ------------------------------------------------------------------------------------------- the runner

class EndpointDied(Exception):
    """The implementation ended, or stopped answering."""


class Implementation:
    """The endpoint as a process; requests go out ahead of the answers."""

    def __init__(self, command):
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._answers = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for raw in self._process.stdout:
            self._answers.put(raw)
        self._answers.put(None)

    def send(self, lines):
        """Writes lines from another thread, so that a full pipe cannot stop both sides."""
        def write():
            try:
                self._process.stdin.write(b"".join(line.encode("ascii") + b"\n" for line in lines))
                self._process.stdin.flush()
            except OSError:
                pass  # the missing answers tell
        writer = threading.Thread(target=write, daemon=True)
        writer.start()
        return writer

    def receive(self):
        try:
            raw = self._answers.get(timeout=ANSWER_TIMEOUT_S)
        except queue.Empty:
            raise EndpointDied(f"no answer for {ANSWER_TIMEOUT_S} seconds") from None
        if raw is None or not raw.endswith(b"\n"):
            raise EndpointDied(f"the endpoint ended with status {self._process.wait()}")
        return raw[:-1].decode("ascii", "backslashreplace").split("\t")

    def close(self):
        """Ends the input; the exit status, or None when the endpoint does not end."""
        try:
            self._process.stdin.close()
            return self._process.wait(timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
            return None


GROUPS = {"json": json_cases, "mac": mac_cases, "begin": begin_cases, "seal": seal_cases, "frame": frame_cases,
          "receiver": receiver_cases, "admission": admission_cases, "stream": stream_cases, "produce": produce_cases,
          "schedule": schedule_cases, "ledger": ledger_cases, "kvhf_frame": kvhf_frame_cases,
          "kvhf_begin": kvhf_begin_cases, "kvhf_stream": kvhf_stream_cases, "kvhf_session": kvhf_session_cases}
ALL_GROUPS = (*GROUPS, "bundle", "sweep", "kvhf_sweep", "cross")


# They hash nothing that is large.
KERNEL_FREE = ("json", "schedule", "ledger", "kvhf_frame", "kvhf_begin")


def all_cases(v, args, folder):
    chosen = set(args.only or ALL_GROUPS) - set(args.skip)
    for group in ALL_GROUPS:
        if group not in chosen:
            continue
        if group == "bundle":
            rows = bundle_cases(v, folder)
        elif group == "sweep":
            rows = sampled(sweep_cases(v), args.sample, args.seed)
        elif group == "kvhf_sweep":
            rows = sampled(kvhf_sweep_cases(v, args.full), args.sample, args.seed)
        elif group == "cross":
            rows = cross_cases(v, args.cross, args.seed)
        else:
            rows = GROUPS[group](v)
        for name, line, check in rows:
            yield Case(group, name, line, check)


def batches(cases):
    """Cases in runs that go out together: many short requests, or one long one."""
    batch, size = [], 0
    for case in cases:
        if batch and (len(batch) >= IN_FLIGHT or size + len(case.request) > 1 << 20):
            yield batch
            batch, size = [], 0
        batch.append(case)
        size += len(case.request)
    if batch:
        yield batch


def run(args, v, peer):
    """Asks everything; returns the number of disagreements."""
    passed, failed, unsupported, kinds = (collections.Counter() for _ in range(4))
    started = time.monotonic()
    try:
        peer.send(["hello"])
        hello = peer.receive()
        if hello[:2] != ["ok", "kvpack-endpoint/1"] or len(hello) != 3:
            print(f"the endpoint does not speak kvpack-endpoint/1: {' '.join(hello)[:200]}")
            peer.close()
            return 1
        print(f"implementation: {hello[2]}")
        with tempfile.TemporaryDirectory(prefix="kvpack-handoff-") as folder:
            for batch in batches(all_cases(v, args, os.path.realpath(folder))):
                writer = peer.send([case.request for case in batch])
                for case in batch:
                    words = peer.receive()
                    if words == ["unsupported"]:
                        unsupported[case.group] += 1
                        kinds[kind_of(case.request)] += 1
                        continue
                    problem = case.check(words)
                    if problem is None:
                        passed[case.group] += 1
                    else:
                        failed[case.group] += 1
                        if sum(failed.values()) <= args.show:
                            print(f"DISAGREES {case.group}: {case.name}\n  request  {case.request[:160]}\n"
                                  f"  answer   {' '.join(words)[:300]}\n  {problem}")
                writer.join()
        status = peer.close()
        if status != 0:
            print(f"the endpoint ended with status {status} at the end of its input")
            failed["end"] += 1
    except EndpointDied as e:
        print(f"{e}")
        failed["end"] += 1
        peer.close()
    for group in (*ALL_GROUPS, "end"):
        if passed[group] + failed[group] + unsupported[group]:
            print(f"{group:13} {passed[group]:7} agreed {failed[group]:6} disagreed {unsupported[group]:6} unsupported")
    for group in ALL_GROUPS:
        if group in args.skip:
            print(f"{group:13} skipped")
    for kind, count in sorted(kinds.items()):
        print(f"unsupported   {count:7} requests of {kind}{' (allowed)' if kind in args.allow else ''}")
    allowed = sum(count for kind, count in kinds.items() if kind in args.allow)
    bad = sum(failed.values()) + sum(unsupported.values()) - allowed
    print(f"{sum(passed.values())} agreed, {bad} not, {allowed} unsupported and allowed, in "
          f"{time.monotonic() - started:.1f} s")
    return bad


def kind_of(line):
    """Verb and kind of a request; of a request that is a verb alone, the verb."""
    words = line.split("\t", 2)
    return " ".join(words[:2]) if words[0] in ("encode", "decode", "verdict", "ledger") else words[0]


def group_list(text):
    names = [n for n in text.split(",") if n]
    for name in names:
        if name not in ALL_GROUPS:
            raise argparse.ArgumentTypeError(f"no group {name}; there are {', '.join(ALL_GROUPS)}")
    return names


def kind_list(text):
    return [kind.strip() for kind in text.split(",") if kind.strip()]


def main():
    default = shlex.join([sys.executable, os.path.join(HERE, "python", "handoff_endpoint.py")])
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--impl", default=default, metavar="CMD",
                        help="command of the endpoint; default: the Python one")
    parser.add_argument("--vectors", default=VECTORS, metavar="FILE")
    parser.add_argument("--only", type=group_list, metavar="GROUP,...", help="these groups alone")
    parser.add_argument("--skip", type=group_list, default=[], metavar="GROUP,...", help="all groups but these")
    parser.add_argument("--allow", type=kind_list, default=[], metavar="KIND,...",
                        help="requests that may be unsupported, such as 'encode handoff_sign'; they are counted")
    parser.add_argument("--sample", type=int, metavar="N", help="N cases of each corruption sweep instead of all")
    parser.add_argument("--full", action="store_true", help="every position of every KVHF stream")
    parser.add_argument("--cross", type=int, default=64, metavar="N",
                        help="transfers in each direction (default 64; 16 hold every mode)")
    parser.add_argument("--seed", type=int, default=1, help="of the sample and of the cross production")
    parser.add_argument("--show", type=int, default=20, metavar="N", help="how many disagreements are printed")
    kernels.add_arguments(parser)
    args = parser.parse_args()
    try:
        with open(args.vectors, encoding="utf-8") as f:
            v = json.load(f)
        command = shlex.split(args.impl)
        if not command:
            raise ValueError("--impl is empty")
        if args.list_kernels:
            kernels.list_states(args.impl)
            return 0
        if args.kernels:
            def under_kernels(is_extra):
                return 1 if run(sampled_arguments(args) if is_extra else args, v, Implementation(command)) else 0
            return 1 if kernels.run_each(args.impl, args.kernels, under_kernels) else 0
        peer = Implementation(command)
    except drive.Died as death:
        print(f"the endpoint {death}")
        return 1
    except (OSError, ValueError) as e:
        parser.error(str(e))
    return 1 if run(args, v, peer) else 0


def sampled_arguments(args):
    """What is asked under further kernels: all that hashes payloads, and of sweeps a sample, if one is wanted."""
    changed = {"skip": sorted(set(args.skip) | set(KERNEL_FREE))}
    if args.kernel_sample:
        changed.update(sample=args.kernel_sample, full=False, cross=min(args.cross, 16))
    return argparse.Namespace(**{**vars(args), **changed})


if __name__ == "__main__":
    sys.exit(main())
