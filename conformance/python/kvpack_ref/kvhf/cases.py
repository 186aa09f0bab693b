"""The cases of KVHF in the vector file, made from fixed inputs (fields: conformance/vectors/handoff.md)."""
import json
import struct

from ..handoff import canonical as cj
from ..handoff.cases import REMOVED, C, H, changed, outcome, pattern, x64
from . import begin as kv_begin
from . import frame as kv_frame
from . import seal as kv_seal
from . import verifier as kv_verifier

LIMITS = {"max_cached_tokens": 32, "max_clock_skew_ms": 20, "max_context_tokens": 64, "max_frame_bytes": 1024,
          "max_layers": 64, "max_session_ms": 1000, "max_total_bytes": 4096, "now_unix_ms": 110}
TOKENS = [10, 20, 30, 40]
CANARY = {"post_rope_k_sha256": x64("d"), "post_rope_v_sha256": x64("e"), "sample_token_count": 1,
          "sample_token_start": 0}


def _kv_fixture_begin(**over):
    begin = {"cached_token_count": 2, "created_unix_ms": 100, "deadline_unix_ms": 200,
             "endpoints": {"consumer_engine_abi": "ferrite-qwen25-f16-v1", "consumer_node": "mac-m3-ultra",
                           "producer_engine_abi": "vllm-0.21.0-gb10-v1", "producer_node": "dgx-spark",
                           "trust_domain": "lab-prefill"},
             "expected_layer_frames": 2, "expected_payload_bytes": 16,
             "geometry": {"head_dim": 2, "max_context_tokens": 32, "num_kv_heads": 1, "num_layers": 1},
             "identity": {"adapter_sha256": x64("0"), "chat_template_sha256": x64("1"),
                          "context_policy_sha256": x64("2"),
                          "model_revision": "repo@revision", "model_sha256": x64("3"),
                          "tokenizer_revision": "tokenizer@revision", "tokenizer_sha256": x64("4")},
             "portable_abi": kv_begin.ABI_V1, "precision": {"compute": "float16", "kv": "float16",
                                                            "weights": "q4_k_m"},
             "protocol": kv_frame.PROTOCOL, "schema_version": 1, "strategy": kv_frame.STRATEGY,
             "token_ids_sha256": cj.token_ids_sha256([10, 20, 30]), "transfer_id": x64("a")}
    begin.update(over)
    return begin


def kv_class(label, first, until, heads, dim, window=0, roles=("key", "value"), step=1):
    return {"class": label, "dtype": "float16", "except": [], "from": first, "head_dim": dim,
            "kv_heads": heads,
            "roles": list(roles), "step": step, "until": until, "window_tokens": window}


def typed_kv_begin(begin):
    return kv_frame.decode("begin", C(begin))


def _kv_v2(table, transfer_digit, heads=0, dim=0, abi=kv_begin.ABI_V2, consumer="ferrite-gemma4-f16-v1",
           **over):
    begin = _kv_fixture_begin(
        cached_token_count=3, layout_table=table, portable_abi=abi, transfer_id=x64(transfer_digit),
        token_ids_sha256=cj.token_ids_sha256(TOKENS),
        geometry={"head_dim": dim, "max_context_tokens": 32, "num_kv_heads": heads,
                  "num_layers": max(c["until"] for c in table)})
    begin["endpoints"]["consumer_engine_abi"] = consumer
    begin.update(over)
    begin["expected_layer_frames"], begin["expected_payload_bytes"] = kv_begin.totals(typed_kv_begin(begin))
    return begin


def _windowed():
    return _kv_v2([kv_class("gqa-windowed", 0, 4, 1, 2, 1), kv_class("gqa-full", 4, 6, 2, 4)], "b")


def _kv_row(name, begin, planes, tokens, canary=None, key=None, tags=True):
    typed = typed_kv_begin(begin)
    recorded = kv_seal.produce(typed, planes, tokens, 150, canary, key, tags)
    witness = kv_verifier.receive(recorded, kv_begin.Limits(**LIMITS), key)
    encoded, seal, header = kv_frame.encode(typed), witness.seal, kv_frame.encode(witness.headers[0])
    core, raw_seal = kv_frame.encode(kv_seal.core_of(seal)), kv_frame.encode(seal)
    return {"name": name, "begin_bytes": len(encoded), "begin_sha256": H(encoded),
            "headers": len(witness.headers),
            "header0_bytes": len(header), "header0_sha256": H(header),
            "descriptor_chain_sha256": seal["descriptor_chain_sha256"],
            "payload_sha256": seal["payload_sha256"],
            "core_bytes": len(core), "core_sha256": H(core), "artifact_sha256": seal["artifact_sha256"],
            "artifact_hmac_sha256": seal["artifact_hmac_sha256"], "seal_bytes": len(raw_seal),
            "seal_sha256": H(raw_seal),
            "stream_bytes": len(recorded), "stream_sha256": H(recorded),
            "walk": [[p.layer, p.role] for p in kv_begin.walk(typed)], "begin": begin,
            "planes_hex": [p.hex() for p in planes], "prompt_token_ids": tokens, "completed_unix_ms": 150,
            "canary": canary, "key_hex": key.hex() if key else None, "value_dtype_tags": tags,
            "stream_hex": recorded.hex()}


def _prerope_begin():
    begin = _kv_v2([kv_class("gqa-full", 0, 2, 1, 4)], "c", heads=1, dim=4, abi=kv_begin.ABI_PREROPE)
    begin["endpoints"] = {**begin["endpoints"], "consumer_engine_abi": "ferrite-qwen25-f16-v1",
                          "consumer_node": "mac-m3-ultra", "producer_engine_abi": "ferrite-qwen25-f16-v1",
                          "producer_node": "mac-m3-ultra"}
    return begin


def kvhf():
    out = [_kv_row("v1", _kv_fixture_begin(), [b"\1" * 8, b"\2" * 8], [10, 20, 30]),
           _kv_row("v2-windowed", _windowed(), [b"\7" * 4] * 8 + [b"\x09" * 48] * 4, TOKENS)]
    pre, planes = _prerope_begin(), [b"\5" * 48, b"\x09" * 24] * 2
    out.append(_kv_row("prerope", pre, planes, TOKENS, CANARY, tags=False))
    out.append(_kv_row("prerope-keyed", {**pre, "hmac_key_id": "tenant-a"}, planes, TOKENS, CANARY,
                       b"\xaa" * 32, False))
    table = [kv_class("gqa-full", 0, 2, 1, 2), kv_class("gqa-windowed", 2, 4, 1, 2, 1)]
    for schedule in (None, "layer-order", "decode-priority"):
        begin = _kv_v2(table, "e", **({"schedule": schedule} if schedule else {}))
        planes = [pattern(f"{p.layer}/{p.role}", p.byte_len) for p in kv_begin.walk(typed_kv_begin(begin))]
        out.append(_kv_row(f"v2-schedule-{schedule or 'absent'}", begin, planes, TOKENS))
    latent = _kv_v2([kv_class("mla-latent", 0, 4, 1, 6, roles=("key",))], "f", heads=1, dim=6)
    out.append(_kv_row("v2-mla-latent", latent, [pattern(f"mla/{n}", 36) for n in range(4)], TOKENS))
    return out


def kvhf_begin_cases():
    v1, two = _kv_fixture_begin(), _windowed()
    t = ["layout_table"]
    rows = [
        ("v1", v1, [], {}), ("v2", two, [], {}), ("schema", v1, [(["schema_version"], 2)], {}),
        ("protocol", v1, [(["protocol"], "x")], {}), ("abi-v2-on-v1", v1,
                                                      [(["portable_abi"], kv_begin.ABI_V2)], {}),
        ("abi-v1-on-v2", two, [(["portable_abi"], kv_begin.ABI_V1)], {}),
        ("abi-unknown", two, [(["portable_abi"], "canonical-kv-prerope-v3")], {}),
        ("prerope-with-f16-bytes", two, [(["portable_abi"], kv_begin.ABI_PREROPE)], {}),
        ("cached-zero", v1, [(["cached_token_count"], 0)], {}),
        ("cached-33", v1, [(["cached_token_count"], 33)], {}),
        ("cached-equals-context", v1, [(["geometry", "max_context_tokens"], 2)], {}),
        ("context-65", v1, [(["geometry", "max_context_tokens"], 65)], {}),
        ("layers-zero", v1, [(["geometry", "num_layers"], 0)], {}),
        ("layers-65", v1, [(["geometry", "num_layers"], 65)], {}),
        ("heads-zero", v1, [(["geometry", "num_kv_heads"], 0)], {}),
        ("schedule-on-v1", v1, [(["schedule"], "layer-order")], {}),
        ("schedule-unknown", two, [(["schedule"], "k-first")], {}),
        ("step-zero", two, [(t + [0, "step"], 0)], {}),
        ("from-until", two, [(t + [0, "from"], 4)], {}),
        ("until-huge", two, [(t + [1, "until"], cj.U32_MAX)], {}),
        ("frame-bound", two, [], {"max_frame_bytes": 32}),
        ("frame-bound-fits", two, [], {"max_frame_bytes": 48}),
        ("except-outside", two, [(t + [0, "except"], [9])], {}),
        ("except-twice", two, [(t + [0, "except"], [1, 1])], {}),
        ("roles-swapped", two, [(t + [0, "roles"], ["value", "key"])], {}),
        ("roles-key", two, [(t + [0, "roles"], ["key"])], {}),
        ("roles-empty", two, [(t + [0, "roles"], [])], {}),
        ("class-label", two, [(t + [0, "class"], "a b")], {}),
        ("class-dtype", two, [(t + [0, "dtype"], "float32")], {}),
        ("class-heads", two, [(t + [0, "kv_heads"], 0)], {}),
        ("class-no-layer", two, [(t + [0, "except"], [0, 1, 2, 3])], {}),
        ("layer-twice", two, [(t + [1, "from"], 3)], {}),
        ("layer-missing", two, [(t, two["layout_table"][:1])], {}),
        ("flat-geometry-set", two, [(["geometry", "num_kv_heads"], 1)], {}),
        ("single-class-geometry", two, [(t, two["layout_table"][:1]), (["geometry", "num_layers"], 4),
                                        (["geometry", "num_kv_heads"], 1), (["geometry", "head_dim"], 4)],
                                        {}),
        ("frames", two, [(["expected_layer_frames"], 11)], {}),
        ("bytes", two, [(["expected_payload_bytes"], 223)], {}),
        ("total-bound", two, [], {"max_total_bytes": 223}),
        ("weights", v1, [(["precision", "weights"], "fp8_e4m3")], {}),
        ("weights-q4-k-xl", v1, [(["precision", "weights"], "q4_k_xl")], {}),
        ("compute", v1, [(["precision", "compute"], "bfloat16")], {}),
        ("label-space", v1, [(["endpoints", "trust_domain"], "a b")], {}),
        ("label-slash", v1, [(["identity", "model_revision"], "a/b")], {}),
        ("transfer-id", v1, [(["transfer_id"], x64("A"))], {}),
        ("key-id-65", v1, [(["hmac_key_id"], "k" * 65)], {}),
        ("key-id-64", v1, [(["hmac_key_id"], "k" * 64)], {}),
        ("session-overflow", v1, [(["created_unix_ms"], cj.U64_MAX)], {}),
        ("created-zero", v1, [(["created_unix_ms"], 0)], {}),
        ("created-130", v1, [(["created_unix_ms"], 130)], {}),
        ("created-131", v1, [(["created_unix_ms"], 131)], {}),
        ("deadline-equals-created", v1, [(["deadline_unix_ms"], 100)], {}),
        ("deadline-too-far", v1, [(["deadline_unix_ms"], 1101)], {}),
        ("deadline-passed", v1, [(["created_unix_ms"], 90), (["deadline_unix_ms"], 105)], {}),
    ]
    out = []
    for name, base, edits, over in rows:
        m, limits = changed(base, *edits), {**LIMITS, **over}
        out.append({"name": name, "limits": limits, "manifest": m,
                    **outcome(lambda: kv_begin.validate(typed_kv_begin(m), kv_begin.Limits(**limits)))})
    return out


def kvhf_layout_cases():
    """Further begins: layouts that are accepted, with their walk, and strict decoding."""
    two = _windowed()
    t = ["layout_table"]
    split = changed(two, (t, [kv_class("gqa-windowed", 0, 4, 1, 2, 1), kv_class("gqa-full", 1, 2, 2, 4),
                              kv_class("gqa-full", 4, 6, 2, 4)]),
                    (t + [0, "except"], [1]))
    split["expected_layer_frames"], split["expected_payload_bytes"] = kv_begin.totals(typed_kv_begin(split))
    single = changed(two, (t, two["layout_table"][:1]),
                     (["geometry"], {"head_dim": 2, "max_context_tokens": 32,
                                                                        "num_kv_heads": 1, "num_layers": 4}),
                     (["expected_layer_frames"], 8), (["expected_payload_bytes"], 32))
    rows = [("v1", C(_kv_fixture_begin())), ("v2", C(two)), ("single-class", C(single)),
            ("except-and-same-label", C(split)),
            ("stride", C(_kv_v2([kv_class("even", 0, 4, 1, 2, step=2),
                                 kv_class("odd", 1, 4, 1, 2, 1, step=2)], "b"))),
            ("decode-priority", C(_kv_v2([kv_class("full", 0, 2, 1, 2), kv_class("window", 2, 4, 1, 2, 1)],
                                         "b",
                                         schedule="decode-priority"))),
            ("latent-and-ordinary", C(_kv_v2([kv_class("mla-latent", 0, 2, 1, 6, roles=("key",)),
                                              kv_class("gqa-full", 2, 3, 1, 2)], "b"))),
            ("latent-other-label",
             C(_kv_v2([kv_class("gqa-latent", 0, 2, 1, 6, roles=("key",))], "b", heads=1, dim=6))),
            ("prerope", C(_prerope_begin())),
            ("window-above-cached",
             C(changed(single, (t + [0, "window_tokens"], 99), (["expected_payload_bytes"], 96)))),
            ("blank", C(two).replace(b",", b", ", 1)), ("schedule-null", C({**two, "schedule": None})),
            ("layout-empty", C({**_kv_fixture_begin(), "layout_table": []})),
            ("layout-null", C({**_kv_fixture_begin(), "layout_table": None})),
            ("unknown-key", C({**two, "x": 1})),
            ("unknown-class-key", C(changed(two, (t + [0, "x"], 1)))),
            ("missing-key", C(changed(two, (["protocol"], REMOVED)))),
            ("role-unknown", C(changed(two, (t + [0, "roles"], ["query"])))),
            ("strategy-unknown", C({**two, "strategy": "x"})),
            ("count-2^32", C({**two, "cached_token_count": 2**32})),
            ("empty", b"")]
    out = []
    for name, raw in rows:
        row = {"name": name, "limits": LIMITS, "json_hex": raw.hex()}

        def body():
            typed = kv_frame.decode("begin", raw)
            kv_begin.validate(typed, kv_begin.Limits(**LIMITS))
            row["walk"] = [[p.layer, p.role] for p in kv_begin.walk(typed)]
        verdict = outcome(body)
        out.append({**row, **verdict})
    return out


def kvhf_frame_cases():
    begin = _kv_fixture_begin()
    row = kvhf()[0]
    data = bytes.fromhex(row["stream_hex"])
    first = kv_frame.ENVELOPE_BYTES + row["begin_bytes"]
    layer = data[first:first + kv_frame.ENVELOPE_BYTES + row["header0_bytes"] + 8]
    seal = data[-(kv_frame.ENVELOPE_BYTES + row["seal_bytes"]):]
    good = kv_frame.write_frame("begin", C(begin))
    names = {"protocol": kv_frame.PROTOCOL, "schema_version": 1, "transfer_id": x64("a")}
    ack = {**names, "artifact_sha256": row["artifact_sha256"], "status": "committed"}
    abort = {**names, "code": "receiver_rejected"}

    def envelope(version=1, kind=1, reserved=0, json_bytes=2, payload_bytes=0, magic=kv_frame.MAGIC):
        return magic + struct.pack(">BBHIQ", version, kind, reserved, json_bytes, payload_bytes)

    def raw(kind, value, payload=b""):
        return kv_frame.write_frame(kind, C(value), payload)

    rows = [("begin", good, {}), ("layer", layer, {}), ("seal", seal, {}), ("ack", raw("ack", ack), {}),
            ("abort", raw("abort", abort), {}), ("empty", b"", {}), ("envelope-19", good[:19], {}),
            ("magic", envelope(magic=b"KVHG") + b"{}", {}), ("version", envelope(version=2) + b"{}", {}),
            ("reserved-low", envelope(reserved=1) + b"{}", {}),
            ("reserved-high", envelope(reserved=256) + b"{}", {}),
            ("version-before-kind", envelope(version=2, kind=9) + b"{}", {}),
            ("kind-0", envelope(kind=0) + b"{}", {}),
            ("kind-6", envelope(kind=6) + b"{}", {}), ("kind-before-lengths", envelope(kind=6, json_bytes=0),
                                                       {}),
            ("json-zero", envelope(json_bytes=0), {}), ("json-too-long", envelope(json_bytes=(1 << 20) + 1),
                                                        {}),
            ("json-at-limit", good, {"max_json": len(C(begin))}),
            ("json-past-limit", good, {"max_json": len(C(begin)) - 1}),
            ("payload-2^64-1", envelope(kind=2, payload_bytes=cj.U64_MAX) + b"{}", {}),
            ("payload-past-limit", layer, {"max_payload": 7}),
            ("payload-at-limit", layer, {"max_payload": 8}),
            ("payload-on-begin", envelope(payload_bytes=1) + b"{}x", {}),
            ("payload-on-seal", envelope(kind=3, payload_bytes=1) + b"{}x", {}),
            ("json-short", good[:-1], {}), ("payload-short", layer[:-1], {}),
            ("payload-other-length", raw("layer", {**json.loads(layer[20:-8]), "byte_length": 9}, b"\1" * 8),
             {}),
            ("not-json", envelope() + b"{]", {}), ("keys-missing", envelope() + b"{}", {}),
            ("blank", raw("ack", ack).replace(b"{", b" {", 1).replace(struct.pack(">I", len(C(ack))),
                                                                    struct.pack(">I", len(C(ack)) + 1), 1),
                                                                    {}),
            ("ack-unknown-key", raw("ack", {**ack, "x": 1}), {}),
            ("abort-without-code", raw("abort", names), {}),
            ("layer-dtype-null", raw("layer", {**json.loads(layer[20:-8]), "dtype": None}, b"\1" * 8), {}),
            ("layer-shape-2", raw("layer", {**json.loads(layer[20:-8]), "shape": [2, 2]}, b"\1" * 8), {}),
            ("seal-canary-null", raw("seal", {**json.loads(seal[20:]), "canary": None}), {})]
    out = []
    for name, data, over in rows:
        limits = {"max_json": kv_frame.MAX_JSON_BYTES, "max_payload": kv_frame.MAX_PAYLOAD_BYTES, **over}
        case = {"name": name, **limits, "frame_hex": data.hex()}

        def body():
            reader = kv_frame.FrameReader(data, **limits)
            kind, _ = reader.header()
            reader.payload()
            case["kind"] = kind
        verdict = outcome(body)
        out.append({**case, **verdict})
    return out


def _fixture(name):
    row = next(r for r in kvhf() if r["name"] == name)
    data = bytes.fromhex(row["stream_hex"])
    key = bytes.fromhex(row["key_hex"]) if row["key_hex"] else None
    witness = kv_verifier.receive(data, kv_begin.Limits(**LIMITS), key)
    return row, witness, [bytes.fromhex(p) for p in row["planes_hex"]]


def kvhf_header_cases():
    """(name, fixture, walk position, position whose header is sent, edits)."""
    rows = [
        ("v1-key", "v1", 0, []), ("v1-value", "v1", 1, []), ("v1-dtype", "v1", 0, [(["dtype"], "float16")]),
        ("v1-layout-class", "v1", 0, [(["layout_class"], "gqa-full")]),
        ("v1-role", "v1", 0, [(["role"], "value")]),
        ("v1-layer", "v1", 0, [(["layer"], 1)]), ("v1-start", "v1", 0, [(["logical_token_start"], 1)]),
        ("v1-end", "v1", 0, [(["logical_token_end"], 1)]), ("v1-shape", "v1", 0, [(["shape"], [2, 2, 1])]),
        ("v1-bytes", "v1", 0, [(["byte_length"], 7)]), ("v1-digest", "v1", 0, [(["sha256"], x64("A"))]),
        ("v1-transfer", "v1", 0, [(["transfer_id"], x64("b"))]),
        ("v1-schema", "v1", 0, [(["schema_version"], 2)]),
        ("v1-sequence", "v1", 0, [(["sequence"], 1)]),
        ("v2-windowed", "v2-windowed", 0, []), ("v2-full", "v2-windowed", 8, []),
        ("v2-shape", "v2-windowed", 0, [(["shape"], [1, 1, 4])]),
        ("v2-start-1", "v2-windowed", 0, [(["logical_token_start"], 1)]),
        ("v2-start-0", "v2-windowed", 0, [(["logical_token_start"], 0)]),
        ("v2-float32", "v2-windowed", 0, [(["dtype"], "float32")]),
        ("v2-empty-dtype", "v2-windowed", 0, [(["dtype"], "")]),
        ("v2-other-class", "v2-windowed", 0, [(["layout_class"], "gqa-full")]),
        ("v2-class-absent", "v2-windowed", 0, [(["layout_class"], REMOVED)]),
        ("v2-dtype-absent", "v2-windowed", 0, [(["dtype"], REMOVED)]),
        ("v2-inverted", "v2-windowed", 0, [(["logical_token_start"], 4)]),
        ("v2-inverted-before-contract", "v2-windowed", 0, [(["logical_token_start"], 4), (["sha256"], "x")]),
        ("v2-digest", "v2-windowed", 0, [(["sha256"], "")]),
        ("prerope-key", "prerope", 0, []), ("prerope-value", "prerope", 1, []),
        ("prerope-key-untagged", "prerope", 0, [(["dtype"], REMOVED)]),
        ("prerope-key-float16", "prerope", 0, [(["dtype"], "float16")]),
        ("prerope-key-half", "prerope", 0, [(["byte_length"], 24)]),
        ("prerope-value-float32", "prerope", 1, [(["dtype"], "float32")]),
        ("prerope-value-float16", "prerope", 1, [(["dtype"], "float16")]), ("latent", "v2-mla-latent", 3, [])
    ]
    rows = [(name, fixture, index, index, edits) for name, fixture, index, edits in rows]
    rows += [("v2-plane-8-at-0", "v2-windowed", 0, 8, []), ("v2-past-the-end", "v2-windowed", 12, 8, [])]
    out = []
    for name, fixture, index, source, edits in rows:
        witness = _fixture(fixture)[1]
        header = changed({k: v for k, v in witness.headers[source].items() if v is not None}, *edits)
        verdict = outcome(lambda: kv_begin.check_header(witness.begin, kv_begin.walk(witness.begin), index,
                                                        kv_frame.decode("layer", C(header))))
        out.append({"name": name, "fixture": fixture, "index": index, "limits": LIMITS, "header": header,
                    **verdict})
    return out


def _stream_with_seal(witness, planes, key=None, begin=None, canary=REMOVED, tokens=None, completed=150,
                      edits=()):
    """A stream whose seal is made for its changes, so that only the rule under test fails."""
    begin = begin or witness.begin
    seal = kv_seal.make_seal(begin, witness.headers, planes, tokens or witness.seal["prompt_token_ids"],
                             completed,
                             witness.seal["canary"] if canary is REMOVED else canary, key)
    seal = changed(seal, *edits)
    layers = b"".join(kv_frame.write_frame("layer", h, p) for h, p in zip(witness.headers, planes))
    return kv_frame.write_frame("begin", begin) + layers + kv_frame.write_frame("seal", seal)


def _kvhf_stream_rows():
    """(name, stream, key, changes of the limits)."""
    row, v1, planes = _fixture("v1")
    data = bytes.fromhex(row["stream_hex"])
    frames = [kv_frame.write_frame("begin", v1.begin)]
    frames += [kv_frame.write_frame("layer", h, p) for h, p in zip(v1.headers, planes)]
    frames.append(kv_frame.write_frame("seal", v1.seal))
    abort = kv_frame.write_frame("abort", {"code": "producer_failed", "protocol": kv_frame.PROTOCOL,
                                           "schema_version": 1,
                                           "transfer_id": x64("a")})
    rows = [("v1", data, None, {}), ("empty", b"", None, {}), ("begin-only", frames[0], None, {}),
            ("layer-first", frames[1], None, {}), ("begin-twice", frames[0] * 2, None, {}),
            ("layers-swapped", frames[0] + frames[2] + frames[1] + frames[3], None, {}),
            ("layer-twice", frames[0] + frames[1] * 2, None, {}),
            ("seal-early", frames[0] + frames[1] + frames[3], None, {}),
            ("layer-for-seal", b"".join(frames[:3]) + frames[1], None, {}),
            ("abort-first", abort, None, {}), ("abort-for-layer", frames[0] + frames[1] + abort, None, {}),
            ("abort-for-seal", b"".join(frames[:3]) + abort, None, {}),
            ("seal-twice", data + frames[3], None, {}),
            ("wrong-payload", data.replace(b"\1" * 8, b"\3" * 8), None, {}),
            ("key-on-unkeyed", data, b"\xaa" * 32, {}), ("at-deadline", data, None, {"now_unix_ms": 200}),
            ("past-deadline", data, None, {"now_unix_ms": 201}),
            ("token-count", _stream_with_seal(v1, planes, tokens=[10, 20]), None, {}),
            ("other-tokens", _stream_with_seal(v1, planes, tokens=[10, 20, 31]), None, {}),
            ("completed-early", _stream_with_seal(v1, planes, completed=99), None, {}),
            ("completed-at-created", _stream_with_seal(v1, planes, completed=100), None, {}),
            ("completed-at-deadline", _stream_with_seal(v1, planes, completed=200), None, {}),
            ("completed-late", _stream_with_seal(v1, planes, completed=201), None, {}),
            ("canary-not-prerope", _stream_with_seal(v1, planes, canary=CANARY), None, {}),
            ("tag-without-key-id", _stream_with_seal(v1, planes, key=b"\xaa" * 32), None, {})]
    for field, value in (("artifact_sha256", x64("0")), ("descriptor_chain_sha256", x64("0")),
                         ("payload_sha256", x64("0")),
                         ("frame_count", 1), ("payload_bytes", 15), ("schema_version", 2), ("protocol", "x"),
                         ("transfer_id", x64("b"))):
        rows.append((f"seal-{field}", _stream_with_seal(v1, planes, edits=[([field], value)]), None, {}))
    _, pre, planes = _fixture("prerope")
    for name, canary in (("canary-absent", None), ("canary-digest",
                                                   {**CANARY, "post_rope_k_sha256": x64("z")}),
                         ("canary-start", {**CANARY, "sample_token_start": 3}),
                         ("canary-count-zero", {**CANARY, "sample_token_count": 0}),
                         ("canary-whole-window", {**CANARY, "sample_token_count": 3}),
                         ("canary-saturating", {**CANARY, "sample_token_start": cj.U32_MAX,
                                                "sample_token_count": 1})):
        rows.append((name, _stream_with_seal(pre, planes, canary=canary), None, {}))
    for name, bits in (("nan", 0x7FC00000), ("infinity", 0x7F800000), ("negative-infinity", 0xFF800000),
                       ("largest-finite", 0x7F7FFFFF)):
        changed_planes = [struct.pack("<I", bits) + planes[0][4:], *planes[1:]]
        rows.append((f"prerope-key-{name}", kv_seal.produce(pre.begin, changed_planes, TOKENS, 150, CANARY),
                     None, {}))
    nan_value = [planes[0], b"\x00\x7e" * 12, *planes[2:]]
    rows.append(("prerope-value-not-scanned", kv_seal.produce(pre.begin, nan_value, TOKENS, 150, CANARY),
                 None, {}))
    keyed_row, keyed, planes = _fixture("prerope-keyed")
    data, key = bytes.fromhex(keyed_row["stream_hex"]), b"\xaa" * 32
    rows += [("keyed", data, key, {}), ("keyed-not-armed", data, None, {}),
             ("keyed-zero-key", data, b"\0" * 32, {}),
             ("keyed-other-key", data, b"\xab" * 32, {}),
             ("keyed-tag-stripped", _stream_with_seal(keyed, planes), key, {}),
             ("keyed-tag-upper", _stream_with_seal(keyed, planes, key, edits=[
                 (["artifact_hmac_sha256"], keyed_row["artifact_hmac_sha256"].upper())]), key, {}),
             ("keyed-sha256-for-tag", _stream_with_seal(keyed, planes, key, edits=[
                 (["artifact_hmac_sha256"], keyed_row["artifact_sha256"])]), key, {})]
    return rows


def kvhf_stream_cases():
    out = []
    for name, data, key, over in _kvhf_stream_rows():
        limits = {**LIMITS, **over}
        verdict = outcome(lambda: kv_verifier.receive(data, kv_begin.Limits(**limits), key))
        out.append({"name": name, "limits": limits, "key_hex": key.hex() if key else None,
                    "stream_hex": data.hex(),
                    **verdict})
    return out


def kvhf_session_cases():
    """Coordinator calls: plane (permit, header, payload), seal, publish, abort."""
    out = []

    def planes_of(name, permits=None):
        row, witness, planes = _fixture(name)
        ops = [["plane", h["role"] == "key" if permits is None else permits[n], h, p]
               for n, (h, p) in enumerate(zip(witness.headers, planes))]
        return row["begin"], ops, ["seal", witness.seal]

    rows = []
    for name in ("v1", "v2-windowed", "prerope", "v2-schedule-decode-priority", "v2-mla-latent"):
        begin, ops, seal = planes_of(name)
        rows.append((name, begin, [*ops, seal, ["publish"]]))
    begin, ops, seal = planes_of("v1")
    rows += [("key-without-permit", begin, planes_of("v1", [False, False])[1]),
             ("value-with-permit", begin, planes_of("v1", [True, True])[1]),
             ("seal-with-pending-key", begin, [ops[0], seal]), ("seal-without-planes", begin, [seal]),
             ("publish-before-seal", begin, [*ops, ["publish"]]),
             ("plane-after-seal", begin, [*ops, seal, ops[0]]),
             ("value-first", begin, [ops[1]]), ("wrong-payload", begin, [[*ops[0][:3], b"\3" * 8]]),
             ("seal-twice", begin, [*ops, seal, seal]), ("abort", begin, [ops[0], ["abort"]]),
             ("invalid-begin", {**begin, "cached_token_count": 0}, [])]
    for name, begin, ops in rows:
        ready, limits = [], kv_begin.Limits(**LIMITS)

        def body():
            session = kv_verifier.Coordinator(typed_kv_begin(begin), limits)
            calls = {"plane": lambda permit, h, p: session.ingest(h, p, permit), "seal": session.prepare_seal,
                     "publish": session.publish, "abort": session.abort}
            try:
                for op, *args in ops:
                    calls[op](*args)
            finally:
                ready.extend(session.ready)
        verdict = outcome(body)
        shown = []
        for op in ops:
            row = [x.hex() if isinstance(x, bytes) else x for x in op]
            shown.append([{k: v for k, v in x.items() if v is not None} if isinstance(x,
                dict) else x for x in row])
        out.append({"name": name, "limits": LIMITS, "begin": begin, "ops": shown, "ready_layers": ready,
                    **verdict})
    return out


def kvhf_spray_cases():
    out = []
    for name, count, arrivals in (("in-order", 3, [0, 1, 2]), ("shuffled", 6, [1, 0, 3, 5, 2, 4]),
                                  ("gap", 6, [0, 2, 3]),
                                  ("reversed", 4, [3, 2, 1, 0]), ("none", 4, []),
                                  ("waiting-twice", 4, [2, 2]),
                                  ("delivered-twice", 4, [0, 0]), ("past-the-end", 4, [0, 4]),
                                  ("largest", 4, [cj.U32_MAX])):
        case = {"name": name, "frames": count, "arrivals": arrivals}
        verdict = outcome(lambda: case.update(released=kv_verifier.reassemble(count, arrivals)))
        out.append({**case, **verdict})
    return out


def kvhf_armed_cases():
    v1, pre = _kv_fixture_begin(), _prerope_begin()
    rows = [("equal", v1, v1), ("other-schedule", _windowed(), {**_windowed(), "schedule": "layer-order"}),
            ("other-key-id", {**v1, "hmac_key_id": "a"}, v1),
            ("other-window", {**v1, "deadline_unix_ms": 201}, v1),
            ("other-transfer", {**v1, "transfer_id": x64("d")}, v1),
            ("producer-abi", v1, changed(v1, (["endpoints", "producer_engine_abi"], "x"))),
            ("consumer-abi", v1, changed(v1, (["endpoints", "consumer_engine_abi"], "x"))),
            ("geometry", v1, changed(v1, (["geometry", "max_context_tokens"], 31))),
            ("identity", v1, changed(v1, (["identity", "adapter_sha256"], x64("9")))),
            ("precision", v1, changed(v1, (["precision", "weights"], "bf16"))),
            ("tokens", v1, {**v1, "token_ids_sha256": x64("0")}),
            ("count", v1, {**v1, "cached_token_count": 3}),
            ("layout", _windowed(), changed(_windowed(), (["layout_table", 0, "window_tokens"], 2))),
            ("abi-prerope-armed-plain", pre, {**pre, "portable_abi": kv_begin.ABI_V2}),
            ("abi-plain-armed-prerope", {**pre, "portable_abi": kv_begin.ABI_V2}, pre),
            ("schema", {**v1, "schema_version": 2}, {**v1, "schema_version": 2}),
            ("abi-unknown", {**v1, "portable_abi": "x"}, {**v1, "portable_abi": "x"}),
            ("count-overflow", {**v1, "cached_token_count": cj.U32_MAX},
             {**v1, "cached_token_count": cj.U32_MAX})]
    return [{"name": name, "begin": begin, "armed": armed,
             **outcome(lambda: kv_begin.check_armed(typed_kv_begin(begin), typed_kv_begin(armed)))}
            for name, begin, armed in rows]
