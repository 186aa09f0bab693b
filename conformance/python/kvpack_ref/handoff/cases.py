"""The cases of Handoff V2 in the vector file, made from fixed inputs (fields: conformance/vectors/handoff.md)."""
import copy
import hashlib
import json
import struct

from . import canonical as cj
from . import frame, ledger, mac, manifest, stream
from .admission import ArmedRequest, admit
from .delta import span_schedule
from .errors import Refusal
from .receiver import Receiver, RecordingSink

KEY = b"\x09" * 32
REMOVED = object()
H = cj.sha256_hex
C = cj.canonical


def x64(digit):
    return digit * 64


def camel(category):
    return "".join(part.capitalize() for part in category.split("_"))


def outcome(body):
    """What `body` ends in, as category and message; a library's own words are null."""
    try:
        body()
    except Refusal as r:
        own_words = r.category in ("json", "canonical", "io")
        return {"category": camel(r.category), "message": None if own_words or not r.message else r.message}
    return {"category": "ok", "message": None}


def changed(base, *edits):
    """A copy of `base` with (path, value) edits; the value REMOVED takes the key out."""
    out = copy.deepcopy(base)
    for path, value in edits:
        at = out
        for step in path[:-1]:
            at = at[step]
        if value is REMOVED:
            del at[path[-1]]
        else:
            at[path[-1]] = value
    return out


def pattern(label, count):
    """A payload without a pattern: SHA-256 of `label:0`, `label:1`, ... cut to length."""
    blocks = (hashlib.sha256(f"{label}:{i}".encode()).digest() for i in range(-(-count // 32)))
    return b"".join(blocks)[:count]


# -------------------------------------------------------------------------------------------- fixtures

def descriptor(sequence, payload, component="target", role="nope_key", layer=3, start=0, count=1,
               element_type="f16_le",
               elements=1):
    return {"sequence": sequence, "component_id": component, "role": role, "layer": layer,
            "logical_start": start,
            "logical_count": count, "element_type": element_type, "elements_per_token": elements,
            "byte_len": len(payload), "sha256": H(payload)}


MULTIMODAL = {"projector_sha256": x64("1"), "preprocessing_sha256": x64("2"),
              "image_sequence_sha256": x64("3")}
DFLASH = {"id": "dflash", "kind": "dflash_context", "required": True, "identity_sha256": x64("9")}


def fixture_begin(**over):
    """One declared segment of one target component."""
    begin = {"protocol": manifest.PROTOCOL, "transfer_id": "t", "generation": 7, "created_unix_ms": 10,
             "expires_unix_ms": 20,
             "identity": {"model_sha256": x64("a"), "model_revision": "muse-rev",
                          "tokenizer_sha256": x64("b"),
                          "tokenizer_revision": "tok-rev", "chat_template_sha256": x64("c"),
                          "context_policy_sha256": x64("e"), "adapter_sha256": x64("d")},
             "prompt_token_ids": [1], "multimodal": None, "hmac": {"key_id": "k", "epoch": 2},
             "components": [{"id": "target", "kind": "target_kv", "required": True,
                             "identity_sha256": x64("f")}],
             "segments": [descriptor(0, b"\x01\x02")]}
    begin.update(over)
    return begin


def typed_begin(begin):
    return manifest.parse_begin(C(begin))


def transfer(name, begin, descriptors, payloads, key=KEY, key_id="k", min_epoch=2, now=15, cut=0):
    """One transfer: inputs, every digest, every frame."""
    typed = typed_begin(begin)
    seal = manifest.sign(typed, descriptors, payloads, key)
    recorded = stream.produce(typed, descriptors, payloads, key, cut)
    raw = manifest.canonical_begin(typed)
    frames, at = [], 0
    while at < len(recorded):
        header_bytes, payload_bytes = struct.unpack_from("<IQ", recorded, at + 8)
        end = at + frame.PREAMBLE_BYTES + header_bytes + payload_bytes
        frames.append(recorded[at:end])
        at = end
    core = C(seal["core"])
    return {"name": name, "key_hex": key.hex(), "key_id": key_id, "min_epoch": min_epoch, "now_unix_ms": now,
            "begin": begin, "prefix_cut": cut, "begin_canonical_bytes": len(raw), "begin_sha256": H(raw),
            "descriptor_sha256": seal["core"]["descriptor_sha256"],
            "payload_sha256": seal["core"]["payload_sha256"],
            "core_canonical": core.decode(), "core_sha256": H(core), "hmac_sha256": seal["hmac_sha256"],
            "seal_manifest_sha256": H(C(seal)), "frame_bytes": [len(f) for f in frames],
            "frame_sha256": [H(f) for f in frames], "stream_bytes": len(recorded),
            "stream_sha256": H(recorded),
            "descriptors": descriptors, "payloads_hex": [p.hex() for p in payloads],
            "frames_hex": [f.hex() for f in frames]}


def muse_transfer(name, position, cut, deferred):
    rows = span_schedule(position, cut)
    payloads = [pattern(f"{name}/{r['sequence']}", r["byte_len"]) for r in rows]
    descriptors = [{**r, "sha256": H(p)} for r, p in zip(rows, payloads)]
    begin = fixture_begin(transfer_id="muser-77-1-5", prompt_token_ids=list(range(1, position + 1)),
                          segments=[] if deferred else descriptors)
    if deferred:
        begin["deferred_segments"] = True
    return transfer(name, begin, descriptors, payloads, cut=cut)


def transfers():
    p, q = b"\x01\x02", b"\x05\x06\x07\x08"
    deferred = {"deferred_segments": True, "segments": []}
    out = [transfer("declared", fixture_begin(), [descriptor(0, p)], [p]),
           transfer("deferred", fixture_begin(**deferred), [descriptor(0, p)], [p])]
    rows = [descriptor(0, p, role="nope_tile", layer=None),
            descriptor(1, q, component="dflash", role="dflash_key", layer=0, element_type="f32_le")]
    two = {"multimodal": MULTIMODAL, "components": fixture_begin()["components"] + [DFLASH]}
    out.append(transfer("two-component", fixture_begin(segments=rows, **two), rows, [p, q]))
    out.append(transfer("two-component-deferred", fixture_begin(segments=[], deferred_segments=True, **two),
                        rows, [p, q]))
    loop = fixture_begin(transfer_id="loop", generation=9, created_unix_ms=10, expires_unix_ms=30,
                         hmac={"key_id": "loop-key", "epoch": 4})
    loop["identity"] = {"adapter_sha256": x64("a"), "chat_template_sha256": x64("b"),
                        "context_policy_sha256": x64("c"),
                        "model_revision": "m", "model_sha256": x64("d"), "tokenizer_revision": "t",
                        "tokenizer_sha256": x64("e")}
    payload = b"\x01\x02\x03\x04"
    rows = [descriptor(0, payload, element_type="f32_le")]
    loop["segments"] = rows
    args = {"key": b"\x07" * 32, "key_id": "loop-key", "min_epoch": 4, "now": 20}
    out.append(transfer("loop-declared", loop, rows, [payload], **args))
    out.append(transfer("loop-deferred", {**loop, "segments": [], "deferred_segments": True}, rows, [payload],
                        **args))
    out.append(muse_transfer("delta-declared-257-256", 257, 256, False))
    out.append(muse_transfer("delta-deferred-257-256", 257, 256, True))
    return out


# ------------------------------------------------------------------------------------------ json, mac

def json_vectors():
    probes = [
        ("order", {"b": 1, "a": {"d": 2, "c": [3, {"f": 4, "e": 5}]}}),
        ("escapes", {"s": '"\\/\b\f\n\r\t\x00\x1f\x7f'}),
        ("unicode-keys", {"z": 1, "\u00e9": "\u00e9\u20ac\U0001f600\u2028", "\uffff": 3, "\U00010000": 2}),
        ("atoms", {"n": cj.U64_MAX, "t": True, "f": False, "z": None, "e": [], "o": {}}),
        ("prefix-key-first", {"identity_sha256": 1, "id": 2}),
        ("underscore-and-case", {"a_b": 1, "aB": 2, "a1": 3, "ab": 4}),
    ]
    written = [{"name": name, "input": json.dumps({k: v[k] for k in reversed(list(v))}, ensure_ascii=True,
                                                  indent=1),
                "canonical_hex": C(v).hex(), "sha256": H(C(v))} for name, v in probes]
    strict = [{"name": name, "bytes_hex": raw.hex(), "max": top,
               **outcome(lambda: cj.decode_strict(raw, top, cj.plain))}
              for name, raw, top in (
                  ("canonical", b'{"a":1}', 7), ("too-long", b'{"a":1}', 6), ("empty", b"", 6),
                  ("blank", b'{"a": 1}', 99), ("order", b'{"b":1,"a":1}', 99),
                  ("escape", b'{"a":"\\u0041"}', 99),
                  ("solidus", b'{"a":"\\/"}', 99), ("upper-hex", b'{"a":"\\u001F"}', 99),
                  ("lower-hex", b'{"a":"\\u001f"}', 99))]
    parsed = [{"name": name, "bytes_hex": raw.hex(), "category": outcome(lambda: cj.parse(raw))["category"]}
              for name, raw in (
                  ("depth-127", b"[" * 127 + b"]" * 127), ("depth-128", b"[" * 128 + b"]" * 128),
                  ("bom", b"\xef\xbb\xbf1"), ("trailing-comma", b"[1,]"), ("vertical-tab", b"\x0b1"),
                  ("overlong-utf8", b'"\xc0\x80"'), ("utf8-surrogate", b'"\xed\xa0\x80"'),
                  ("escaped-pair", b'"\\ud83d\\ude00"'), ("swapped-pair", b'"\\ude00\\ud83d"'),
                  ("plus", b"+1"),
                  ("bare-point", b"1."), ("empty", b""), ("two", b"1 2"), ("nul-behind", b"{}\x00"),
                  ("nan", b"NaN"), ("infinity", b"[-Infinity]"), ("leading-zero", b"01"),
                  ("raw-nul", b'"\x00"'),
                  ("single-quotes", b"{'a':1}"), ("lone-high", b'"\\ud83d"'), ("upper-true", b"True"),
                  ("depth-in-string", b'"' + b"[" * 200 + b'"'))]
    ids = [[], [10, 20, 30], [10, 20, 30, 40], [cj.U32_MAX]]
    return {"canonical": written, "strict_decode": strict, "parse": parsed,
            "token_ids": [{"ids": i, "sha256": cj.token_ids_sha256(i)} for i in ids]}


def _key_file(name, content):
    row = {"name": name, "content_hex": content.hex(), "bytes": len(content),
           "consumer": outcome(lambda: mac.key_from_file_content(content))}
    if row["consumer"]["category"] == "ok":
        row["key_hex"] = mac.key_from_file_content(content).hex()
    return row


def mac_vectors():
    plain = [{"key_hex": k.hex(), "stream_hex": s.hex(), "tag": mac.tag_hex(k, s)} for k, s in (
        (KEY, b""), (b"\x5a" * 32, b"round transcript"), (b"\xaa" * 32, b"authenticated artifact stream"))]
    domain = [{"key_hex": k.hex(), "domain": d.decode(), "stream_hex": s.hex(),
               "mac_input_hex": mac.domain_stream(d, s).hex(), "tag": mac.tag_domain_hex(k, d, s)} for k, d,
               s in (
        (b"\x5a" * 32, b"muser-verifier-round-v1", b"round transcript"),
        (b"\x5a" * 32, b"muser-verifier-session-v1", b"round transcript"),
        (b"\x5a" * 32, b"muser-verifier-round-v1", b""), (KEY, b"d", b""))]
    good = mac.tag_hex(KEY, b"")
    verify = [{"key_hex": KEY.hex(), "stream_hex": "", "expected": e,
               **outcome(lambda: mac.verify_hex(KEY, b"", e))}
              for e in (good, good.upper(), good[:-2], good + "00", good[:-1], "zz", "", x64("0"), H(b""))]
    good = mac.tag_domain_hex(KEY, b"d", b"")
    domain_verify = [{"key_hex": KEY.hex(), "domain": d.decode(), "stream_hex": s.hex(), "expected": e,
                      **outcome(lambda: mac.verify_domain_hex(KEY, d, s, e))}
                     for d, s, e in ((b"d", b"", good), (b"e", b"", good), (b"d", b"x", good),
                                     (b"d", b"", good.upper()),
                                     (b"d", b"", "00"), (b"", b"", good), (b"", b"", "00"))]
    raw, text = bytes(range(32)), bytes(range(32)).hex().encode()
    files = [_key_file(name, content) for name, content in (
        ("raw", raw), ("raw-spaces", b" " * 32), ("raw-plus-lf", raw + b"\n"), ("hex", text),
        ("hex-lf", text + b"\n"),
        ("hex-crlf-crlf", text + b"\r\n\r\n"), ("hex-space", text + b" "), ("hex-front-space", b" " + text),
        ("hex-upper", text.upper()), ("hex-63", text[:-1]), ("hex-65", text + b"0"), ("empty", b""),
        ("not-utf8", b"\xff" * 33), ("size-4096", text + b"\n" * (4096 - 64)),
        ("size-4097", text + b"\n" * (4097 - 64)))]
    return {"plain": plain, "domain": domain, "verify": verify, "domain_verify": domain_verify,
            "key_files": files}


# -------------------------------------------------------------------------------------------- handoff

def begin_cases():
    base = fixture_begin()
    second = descriptor(1, b"\x03\x04", start=1)
    first = base["segments"][0]
    rows = [
        ("valid", [], {}), ("valid-now-equals-expires", [], {"now": 20}),
        ("valid-future-created", [], {"now": 1}),
        ("valid-higher-epoch", [], {"min_epoch": 1}), ("valid-generation-zero", [(["generation"], 0)], {}),
        ("valid-deferred", [(["deferred_segments"], True), (["segments"], [])], {}),
        ("protocol", [(["protocol"], "kvpack-live-handoff-v1")], {}),
        ("transfer-id-empty", [(["transfer_id"], "")], {}),
        ("transfer-id-129", [(["transfer_id"], "a" * 129)], {}),
        ("transfer-id-128", [(["transfer_id"], "a" * 128)], {}),
        ("transfer-id-slash", [(["transfer_id"], "a/b")], {}),
        ("transfer-id-non-ascii-letter", [(["transfer_id"], "\u00e9")], {}),
        ("expires-equals-created", [(["expires_unix_ms"], 10)], {"now": 10}), ("expired", [], {"now": 21}),
        ("key-id", [(["hmac", "key_id"], "j")], {}), ("epoch-below-minimum", [], {"min_epoch": 3}),
    ]
    for field in ("model", "adapter", "chat_template", "context_policy", "tokenizer"):
        rows.append((f"identity-{field}", [(["identity", field + "_sha256"], x64("A"))], {}))
    rows += [
        ("identity-order-model-before-adapter", [(["identity", "model_sha256"], "x"),
                                                 (["identity", "adapter_sha256"], "x")],
         {}),
        ("identity-order-adapter-before-tokenizer", [(["identity", "tokenizer_sha256"], "x"),
                                                     (["identity", "adapter_sha256"], "x")], {}),
    ]
    rows += [(f"multimodal-{field}", [(["multimodal"], {**MULTIMODAL, field: x64("g")})],
              {}) for field in MULTIMODAL]
    component = base["components"][0]
    rows += [
        ("no-components", [(["components"], [])], {}), ("declared-without-segments", [(["segments"], [])],
                                                        {}),
        ("deferred-with-segments", [(["deferred_segments"], True)], {}),
        ("empty-prompt", [(["prompt_token_ids"], [])], {}),
        ("component-empty-id", [(["components", 0, "id"], "")], {}),
        ("component-duplicate", [(["components"], [component, component])], {}),
        ("component-digest", [(["components", 0, "identity_sha256"], x64("F"))], {}),
        ("component-duplicate-before-digest",
         [(["components"], [component, {**component, "identity_sha256": "x"}])], {}),
        ("target-not-required", [(["components", 0, "required"], False)], {}),
        ("target-missing", [(["components", 0, "kind"], "vision_context")], {}),
        ("sequence-gap", [(["segments", 0, "sequence"], 1)], {}),
        ("segment-unknown-component", [(["segments", 0, "component_id"], "other")], {}),
        ("segment-count-zero", [(["segments", 0, "logical_count"], 0)], {}),
        ("segment-elements-zero", [(["segments", 0, "elements_per_token"], 0)], {}),
        ("segment-bytes-zero", [(["segments", 0, "byte_len"], 0)], {}),
        ("segment-digest", [(["segments", 0, "sha256"], x64("A"))], {}),
        ("segment-digest-before-type", [(["segments", 0, "sha256"], ""),
                                        (["segments", 0, "element_type"], "u8")], {}),
        ("segment-type", [(["segments", 0, "element_type"], "bf16_le")], {}),
        ("segment-geometry-overflow", [(["segments", 0, "logical_count"], cj.U64_MAX)], {}),
        ("segment-byte-length", [(["segments", 0, "byte_len"], 4)], {}),
        ("segment-range-overflow", [(["segments", 0, "logical_start"], cj.U64_MAX)], {}),
        ("segment-range-last", [(["segments", 0, "logical_start"], cj.U64_MAX - 1)], {}),
        ("segment-overlap", [(["segments"], [first, {**second, "logical_start": 0}])], {}),
        ("segment-adjacent", [(["segments"], [first, second])], {}),
        ("segment-same-range-other-role",
         [(["segments"], [first, {**second, "logical_start": 0, "role": "nope_value"}])],
         {}),
        ("segment-same-range-null-layer",
         [(["segments"], [first, {**second, "logical_start": 0, "layer": None}])], {}),
        ("dflash-without-segments", [(["components"], [component, DFLASH])], {}),
        ("dflash-optional-without-segments", [(["components"], [component, {**DFLASH, "required": False}])],
         {}),
        ("order-protocol-before-id", [(["protocol"], "x"), (["transfer_id"], "")], {}),
        ("order-id-before-lifetime", [(["transfer_id"], "")], {"now": 99}),
        ("order-lifetime-before-epoch", [], {"now": 99, "min_epoch": 9}),
        ("order-epoch-before-identity", [(["identity", "model_sha256"], "x")], {"min_epoch": 9}),
        ("order-mode-before-prompt", [(["prompt_token_ids"], []), (["segments"], [])], {}),
    ]
    out = []
    for name, edits, context in rows:
        m = changed(base, *edits)
        c = {"now_unix_ms": context.get("now", 15), "key_id": "k", "min_epoch": context.get("min_epoch", 2)}
        out.append({"name": name, **c, "manifest": m,
                    **outcome(lambda: manifest.validate_begin(typed_begin(m), *c.values()))})
    return out


def _frame_rows():
    begin, p = fixture_begin(), b"\x01\x02"
    d = descriptor(0, p)
    seal = manifest.sign(typed_begin(begin), [d], [p], KEY)
    raw = C(begin).decode()
    whole = '{"kind":"begin","manifest":' + raw + "}"

    def header(value, payload=b""):
        return frame.write_frame(value if isinstance(value, (bytes, dict)) else value.encode(), payload)

    def begin_with(edits, **keys):
        return header({"kind": "begin", "manifest": {**changed(begin, *edits), **keys}})

    good = header({"kind": "begin", "manifest": begin})
    rows = [
        ("begin", good), ("begin-whitespace", header(" \t\r\n" + whole.replace(",", " ,\n") + " ")),
        ("begin-kind-last", header('{"manifest":' + raw + ',"kind":"begin"}')),
        ("begin-multimodal-absent", begin_with([(["multimodal"], REMOVED)])),
        ("begin-layer-absent", begin_with([(["segments", 0, "layer"], REMOVED)])),
        ("begin-deferred-null", begin_with([(["deferred_segments"], None)])),
        ("begin-deferred-false-written", begin_with([(["deferred_segments"], False)])),
        ("begin-segments-absent", begin_with([(["segments"], REMOVED)])), ("short-preamble", good[:19]),
        ("bad-magic", b"X" + good[1:]), ("header-zero", frame.MAGIC + struct.pack("<IQ", 0, 0)),
        ("header-too-long", frame.MAGIC + struct.pack("<IQ", frame.MAX_HEADER_BYTES + 1, 0)),
        ("payload-too-long", frame.MAGIC + struct.pack("<IQ", 2, frame.MAX_PAYLOAD_BYTES + 1) + b"{}"),
        ("payload-2^64-1", frame.MAGIC + struct.pack("<IQ", 2, cj.U64_MAX) + b"{}"),
        ("short-header", frame.MAGIC + struct.pack("<IQ", 3, 0) + b"{}"), ("not-json", header("{")),
        ("trailing-json", header(whole + "x")), ("bom", header(b"\xef\xbb\xbf" + whole.encode())),
        ("invalid-utf8", header(whole.encode().replace(b"muse-rev", b"muse-\xff"))),
        ("control-character", header(whole.replace("muse-rev", "muse-\x01"))),
        ("lone-surrogate", header(whole.replace("muse-rev", "\\ud800"))),
        ("escaped-nul", header(whole.replace("muse-rev", "\\u0000"))),
        ("unknown-kind", header('{"kind":"hello"}')),
        ("kind-missing", header("{}")), ("header-array", header('["ack","t",1]')),
        ("header-string", header('"ack"')),
    ]
    for token in ("7.0", "7e0", "-0", "-7", "07", "18446744073709551616", '"7"', "null", "true"):
        rows.append((f"generation-{token}", header(whole.replace('"generation":7', f'"generation":{token}'))))
    rows += [
        ("generation-2^64-1", begin_with([(["generation"], cj.U64_MAX)])),
        ("token-2^32", begin_with([(["prompt_token_ids"], [cj.U32_MAX + 1])])),
        ("unknown-manifest-key", begin_with([(["compression"], "zstd")])),
        ("unknown-identity-key", begin_with([(["identity", "lora"], "x")])),
        ("unknown-hmac-key", begin_with([(["hmac", "alg"], "x")])),
        ("unknown-component-key", begin_with([(["components", 0, "codec"], "x")])),
        ("unknown-descriptor-key", begin_with([(["segments", 0, "codec"], "x")])),
        ("unknown-multimodal-key", begin_with([(["multimodal"], {"x": 1})])),
        ("unknown-frame-key", header(whole[:-1] + ',"v":1}')),
        ("unknown-role", begin_with([(["segments", 0, "role"], "nope")])),
        ("unknown-kind-of-component", begin_with([(["components", 0, "kind"], "kv")])),
        ("audit-before-typed", begin_with([(["compression"], 1), (["generation"], "x")])),
        ("audit-frame-before-manifest", header(whole[:-2] + ',"zz":1},"yy":1}')),
        ("begin-with-payload", header(whole, b"x")),
        ("duplicate-manifest-key", header(whole.replace('"generation":7', '"generation":7,"generation":7'))),
        ("duplicate-nested-key", header(whole.replace('"epoch":2', '"epoch":2,"epoch":2'))),
        ("duplicate-prefix-cut",
         header(whole.replace('"protocol"', '"prefix_cut":256,"prefix_cut":512,"protocol"'))),
        ("positional-hmac", header(whole.replace('{"epoch":2,"key_id":"k"}', '["k",2]'))),
        ("enum-as-object", header(whole.replace('"role":"nope_key"', '"role":{"nope_key":null}'))),
    ]
    rows += [(f"prefix-cut-{cut}", begin_with([], prefix_cut=cut)) for cut in (0, 256, 512, cj.U64_MAX)]
    for token in ('"512"', "512.0", "512.5", "-1", "-0", "true", "null", "18446744073709551616", "[]"):
        rows.append((f"prefix-cut-{token}",
                     header(whole.replace('"protocol"', f'"prefix_cut":{token},"protocol"'))))
    seg = '{"kind":"segment","sequence":0'
    ack = '{"kind":"ack","transfer_id":"t","generation":7'
    with_descriptor = {"kind": "segment", "sequence": 0, "descriptor": d}
    rows += [
        ("segment-declared", header(seg + "}", p)), ("segment-descriptor-null",
                                                     header(seg + ',"descriptor":null}', p)),
        ("segment-deferred", header(with_descriptor, p)), ("segment-empty", header(seg + "}")),
        ("segment-truncated", header(seg + "}", p)[:-1]),
        ("segment-sequence-differs", header({**with_descriptor, "sequence": 1}, p)),
        ("segment-unknown-key", header(seg + ',"codec":1}', p)),
        ("segment-descriptor-unknown-key", header(changed(with_descriptor, (["descriptor", "codec"], 1)), p)),
        ("segment-sequence-2^32", header(seg.replace("0", "4294967296") + "}", p)),
        ("seal", header({"kind": "seal", "manifest": seal})),
        ("seal-with-payload", header({"kind": "seal", "manifest": seal}, b"x")),
        ("seal-core-unknown-key", header({"kind": "seal", "manifest": changed(seal, (["core", "x"], 1))})),
        ("seal-manifest-unknown-key", header({"kind": "seal", "manifest": changed(seal, (["x"], 1))})),
        ("ack", header(ack + "}")), ("ack-unknown-key", header(ack + ',"x":1}')),
        ("ack-with-payload", header(ack + "}", b"x")), ("abort",
                                                        header('{"kind":"abort","reason":"producer failure"}')),
        ("abort-unknown-key", header('{"kind":"abort","reason":"r","code":1}')),
        ("abort-without-reason", header('{"kind":"abort"}')),
    ]
    return rows


def frame_cases():
    out = []
    for name, raw in _frame_rows():
        row = {"name": name, "frame_hex": raw.hex()}
        for mode, strict in (("plain", False), ("strict", True)):
            def body():
                read = frame.FrameReader(raw, strict).next()
                row.setdefault("kind", read["kind"])
                if read["kind"] == "begin":
                    row["prefix_cut"] = read["prefix_cut"]
            row[mode] = outcome(body)
        if name in ("positional-hmac", "enum-as-object", "header-array"):
            row["note"] = "a struct is an object and an enum a string, in both modes"
        out.append(row)
    return out


def written_frames():
    """Frames that no transfer above shows, as they are written."""
    rows = [("ack", {"transfer_id": "t", "generation": 7}, frame.write_ack("t", 7)),
            ("ack", {"transfer_id": 'q"\\\n\u00e9', "generation": cj.U64_MAX},
             frame.write_ack('q"\\\n\u00e9', cj.U64_MAX)),
            ("abort", {"reason": "producer failure"}, frame.write_abort("producer failure")),
            ("abort", {"reason": ""}, frame.write_abort(""))]
    return [{"kind": kind, **fields, "frame_hex": raw.hex(), "frame_bytes": len(raw), "frame_sha256": H(raw)}
            for kind, fields, raw in rows]


def sign_cases():
    """Signing: what is refused, and a transfer without segments."""
    p, q = b"\x01\x02", b"\x03\x04"
    rows = [descriptor(0, p), descriptor(1, q, start=1)]
    out = []
    for name, descriptors, payloads in (
            ("two", rows, [p, q]), ("none", [], []), ("payload-missing", rows, [p]),
            ("descriptor-missing", rows[:1], [p, q]),
            ("sequence", [rows[0], {**rows[1], "sequence": 2}], [p, q]),
            ("length", [rows[0], {**rows[1], "byte_len": 4}], [p, q]), ("payload", rows, [p, b"\x03\x05"]),
            ("digest-upper", [{**rows[0], "sha256": rows[0]["sha256"].upper()}, rows[1]], [p, q])):
        row = {"name": name, "key_hex": KEY.hex(), "begin": fixture_begin(segments=rows), "descriptors": descriptors,
               "payloads_hex": [x.hex() for x in payloads]}
        verdict = outcome(lambda: row.update(seal=manifest.sign(typed_begin(row["begin"]), descriptors, payloads, KEY)))
        out.append({**row, **verdict})
    return out


def _receiver_row(name, begin, ops, fails_at=None):
    sink = RecordingSink(fails_at)

    def body():
        receiver = Receiver(typed_begin(begin), KEY, sink)
        calls = {"seg": receiver.segment, "def": receiver.deferred_segment, "seal": receiver.prepare_commit,
                 "commit": receiver.commit, "drop": receiver.abort}
        try:
            for op, *args in ops:
                calls[op](*args)
        finally:
            receiver.abort()
    verdict = outcome(body)
    return {"name": name, "begin": begin, "key_hex": KEY.hex(), "sink_fails_at": fails_at,
            "ops": [[x.hex() if isinstance(x, bytes) else x for x in op] for op in ops],
            "sink_calls": sink.calls, "live_generation": sink.live, **verdict}


def receiver_cases():
    p, q = b"\x01\x02", b"\x03\x04"
    d0, d1 = descriptor(0, p), descriptor(1, q, start=1)
    dec = fixture_begin(segments=[d0, d1])
    dfr = fixture_begin(segments=[], deferred_segments=True)
    two = fixture_begin(segments=[], deferred_segments=True, components=dec["components"] + [DFLASH])

    def sign(begin, rows, payloads):
        return manifest.sign(typed_begin(begin), rows, payloads, KEY)

    s, sd = sign(dec, [d0, d1], [p, q]), sign(dfr, [d0, d1], [p, q])
    tag = sd["hmac_sha256"]
    declared = [("seg", 0, p), ("seg", 1, q)]
    deferred = [("def", d0, p), ("def", d1, q)]

    def seal_with(value):
        return ("seal", {**sd, "hmac_sha256": value})

    rows = [
        ("declared", dec, declared + [("seal", s), ("commit",)], None),
        ("deferred", dfr, deferred + [("seal", sd), ("commit",)], None),
        ("declared-reordered", dec, [("seg", 1, q)], None),
        ("declared-extra", dec, declared + [("seg", 2, q)], None),
        ("declared-duplicate", dec, [("seg", 0, p), ("seg", 0, p)], None),
        ("declared-with-descriptor", dec, [("def", d0, p)], None),
        ("deferred-without-descriptor", dfr, [("seg", 0, p)], None),
        ("deferred-gap", dfr, [("def", d1, q)], None),
        ("deferred-overlap", dfr, [("def", d0, p), ("def", {**d1, "logical_start": 0}, q)], None),
        ("payload-flipped", dec, [("seg", 0, b"\x01\x03")], None),
        ("payload-short", dec, [("seg", 0, b"\x01")], None),
        ("seal-early", dec, [("seg", 0, p), ("seal", s)], None),
        ("seal-without-segments", dfr, [("seal", sd)], None),
        ("required-component-missing", two, [("def", d0, p), ("seal", sign(two, [d0], [p]))], None),
        ("seal-other-generation", dec, declared + [("seal", changed(s, (["core", "generation"], 8)))], None),
        ("seal-upper-case-tag", dfr, deferred + [seal_with(tag.upper())], None),
        ("seal-wrong-key", dfr, deferred + [seal_with(mac.tag_hex(b"\x08" * 32, C(sd["core"])))], None),
        ("seal-sha256-instead-of-hmac", dfr, deferred + [seal_with(H(C(sd["core"])))], None),
        ("commit-before-seal", dec, [("seg", 0, p), ("commit",)], None),
        ("commit-twice", dec, declared + [("seal", s), ("commit",), ("commit",)], None),
        ("segment-after-seal", dec, declared + [("seal", s), ("seg", 2, q)], None),
        ("sink-begin-fails", dec, [], "begin"), ("sink-segment-fails", dec, [("seg", 0, p)], "segment_ready"),
        ("sink-prepare-fails", dec, declared + [("seal", s)], "prepare_commit"),
        ("sink-commit-fails", dec, declared + [("seal", s), ("commit",)], "commit"),
        ("drop-while-receiving", dec, [("seg", 0, p), ("drop",)], None),
        ("drop-while-prepared", dec, declared + [("seal", s), ("drop",)], None),
    ]
    return [_receiver_row(*row) for row in rows]


def deferred_descriptor_cases():
    """The descriptor rules of the begin cases again, each descriptor arriving with its segment."""
    payloads = [b"\x01\x02", b"\x03\x04"]
    out = []
    for case in begin_cases():
        if case["name"].startswith("segment-"):
            begin = fixture_begin(segments=[], deferred_segments=True)
            ops = [("def", d, p) for d, p in zip(case["manifest"]["segments"], payloads)]
            out.append(_receiver_row(case["name"], begin, ops))
    return out


def admission_cases():
    def begin_for(prompt, cut=0):
        segments = [{**r, "sha256": H(b"")} for r in span_schedule(len(prompt), cut)]
        return fixture_begin(prompt_token_ids=prompt, segments=segments, transfer_id="muser-77-1-5")

    prompt = list(range(1, 301))
    base = {"identity": fixture_begin()["identity"], "prompt": prompt, "target": x64("f"), "dflash": None,
            "multimodal": None, "prefix": "muser-77-1", "max_context": 4096, "held": prompt[:256],
            "strict": False}
    b, bc = begin_for(prompt), begin_for(prompt, 256)
    parts = b["components"]

    def edit(m, path, value):
        return changed(m, (path, value))

    def ident(value):
        return edit(b, ["transfer_id"], value)

    changed_prompt = prompt[:17] + [9] + prompt[18:]
    rows = [
        ("full", b, 0, {}), ("delta-256", bc, 256, {}),
        ("generation-zero", edit(b, ["generation"], 0), 0, {}),
        ("other-request", ident("muser-77-2-5"), 0, {}),
        ("opaque-id", ident("0123456789abcdef0123456789abcdef"), 0, {}),
        ("prefix-only-by-string", ident("muser-77-10-5"), 0, {}),
        ("prefix-only-by-string-strict", ident("muser-77-10-5"), 0, {"strict": True}),
        ("prefix-strict-dash", b, 0, {"strict": True}),
        ("prefix-strict-equal", ident("muser-77-1"), 0, {"strict": True}),
        ("opaque-id-strict", ident("abc"), 0, {"strict": True}),
        ("no-prefix-expected", ident("muser-99-9-1"), 0, {"prefix": None}),
        ("identity-adapter", edit(b, ["identity", "adapter_sha256"], x64("0")), 0, {}),
        ("identity-revision", edit(b, ["identity", "model_revision"], "x"), 0, {}),
        ("prompt", edit(b, ["prompt_token_ids"], changed_prompt), 0, {}),
        ("prompt-too-long", b, 0, {"max_context": 299}),
        ("multimodal-unexpected", edit(b, ["multimodal"], MULTIMODAL), 0, {}),
        ("multimodal-missing", b, 0, {"multimodal": MULTIMODAL}),
        ("target-identity", b, 0, {"target": x64("0")}),
        ("two-targets", edit(b, ["components"], parts + [{**parts[0], "id": "t2"}]), 0, {}),
        ("dflash-unexpected", edit(b, ["components"], parts + [DFLASH]), 0, {}),
        ("dflash-missing", b, 0, {"dflash": x64("9")}),
        ("dflash-not-required", edit(b, ["components"], parts + [{**DFLASH, "required": False}]), 0,
         {"dflash": x64("9")}),
        ("dflash-good", edit(b, ["components"], parts + [DFLASH]), 0, {"dflash": x64("9")}),
        ("vision", edit(b, ["components"], parts + [{**DFLASH, "id": "v", "kind": "vision_context"}]), 0, {}),
        ("cut-128", b, 128, {}), ("cut-300", b, 300, {}), ("cut-512", b, 512, {}),
        ("held-short", bc, 256, {"held": prompt[:200]}),
        ("held-differs", bc, 256, {"held": prompt[:100] + [9] + prompt[101:256]}),
        ("cut-with-full-schedule", b, 256, {}),
        ("cut-first-segment-widened", changed(bc, (["segments", 0, "logical_start"], 0),
                                              (["segments", 0, "logical_count"], 300)), 256, {}),
        ("cut-segment-removed", edit(bc, ["segments"], bc["segments"][:-1]), 256, {}),
        ("cut-deferred", changed(bc, (["segments"], []), (["deferred_segments"], True)), 256, {}),
        ("order-identity-before-prompt", changed(b, (["identity", "adapter_sha256"], x64("0")),
                                                 (["prompt_token_ids"], [1])), 0, {}),
    ]
    out = []
    for name, m, cut, over in rows:
        x = {**base, **over}
        armed = ArmedRequest(x["identity"], x["prompt"], x["multimodal"], x["target"], x["dflash"],
                             x["prefix"],
                             x["max_context"], x["held"], x["strict"])
        out.append({"name": name, "manifest": m, "prefix_cut": cut, "expected": x,
                    **outcome(lambda: admit(typed_begin(m), cut, armed))})
    return out


def house_time_cases():
    limits = {"max_clock_skew_ms": 30_000, "max_lifetime_ms": 3_600_000}
    out = []
    for name, created, expires, now, started in (
            ("good", 1000, 901000, 1500, 900), ("equal-start", 900, 901000, 1500, 900),
            ("before-start", 899, 901000, 1500, 900), ("skew-limit", 31500, 901000, 1500, 900),
            ("past-skew", 31501, 901000, 1500, 900), ("clock-at-max", cj.U64_MAX - 1, cj.U64_MAX, cj.U64_MAX,
                                                      0),
            ("lifetime-limit", 1000, 3601000, 1500, 900), ("lifetime-above", 1000, 3601001, 1500, 900),
            ("order-skew-first", 31501, cj.U64_MAX, 1500, 40000)):
        times = {"created_unix_ms": created, "expires_unix_ms": expires, "now_unix_ms": now,
                 "started_unix_ms": started}
        out.append({"name": name, **times, **limits,
                    **outcome(lambda: manifest.check_times(*times.values(), *limits.values()))})
    return out


def _stream_rows():
    """(name, stream, changes of the policy)."""
    by_name = {t["name"]: t for t in transfers()}

    def frames_of(name):
        return [bytes.fromhex(f) for f in by_name[name]["frames_hex"]]

    one, late = frames_of("declared"), frames_of("deferred")
    two, two_late = frames_of("two-component"), frames_of("two-component-deferred")
    delta, delta_late = frames_of("delta-declared-257-256"), frames_of("delta-deferred-257-256")
    begin = by_name["declared"]["begin"]
    raw, p = C(begin).decode(), b"\x01\x02"

    def header(text):
        return frame.write_frame(text.encode())

    spaced = header('{ "kind" : "begin" ,\n"manifest" : ' + raw + " }")
    order = ("protocol", "transfer_id", "generation", "created_unix_ms", "expires_unix_ms", "identity",
             "prompt_token_ids", "multimodal", "hmac", "components", "segments")
    declaration = header('{"kind":"begin","manifest":' + json.dumps({k: begin[k] for k in order},
                                                                    separators=(",", ":"))
                         + "}")
    repeated = header('{"kind":"begin","manifest":' + raw.replace('"protocol"',
                                                                  '"prefix_cut":0,"prefix_cut":0,"protocol"')
                      + "}")
    zero = typed_begin(fixture_begin(generation=0))
    rows = [("empty", b"", {}), ("begin-only", one[0], {}), ("no-seal", one[0] + one[1], {}),
            ("segment-first", one[1] + one[2], {}), ("ack-first", frame.write_ack("t", 7), {}),
            ("abort-first", frame.write_abort("r"), {}), ("begin-twice", one[0] + b"".join(one), {}),
            ("ack-inside", one[0] + frame.write_ack("t", 7) + one[1] + one[2], {}),
            ("abort-inside", one[0] + one[1] + frame.write_abort("out of memory"), {}),
            ("abort-empty-reason", one[0] + frame.write_abort(""), {}),
            ("declared-frame-with-descriptor", one[0] + late[1] + one[2], {}),
            ("deferred-frame-without-descriptor", late[0] + one[1] + late[2], {}),
            ("seal-of-other-mode", one[0] + one[1] + late[2], {}),
            ("segments-swapped", two[0] + two[2] + two[1] + two[3], {}),
            ("deferred-swapped", two_late[0] + two_late[2] + two_late[1] + two_late[3], {}),
            ("required-component-missing", two_late[0] + two_late[1] + two_late[3], {}),
            ("begin-spaced", spaced + one[1] + one[2], {}),
            ("begin-declaration-order", declaration + one[1] + one[2], {}),
            ("repeated-key-plain", repeated + one[1] + one[2], {"strict": False}),
            ("repeated-key-strict", repeated + one[1] + one[2], {}),
            ("generation-zero", stream.produce(zero, begin["segments"], [p], KEY), {}),
            ("seal-twice", b"".join(one) + one[2], {}),
            ("seal-twice-connection", b"".join(one) + one[2], {"recorded": False}),
            ("byte-behind", b"".join(one) + b"\0", {}),
            ("byte-behind-bad-seal", one[0] + one[1] + late[2] + b"\0", {}),
            ("wrong-key", b"".join(one), {"key_hex": "08" * 32}),
            ("wrong-key-id", b"".join(one), {"key_id": "j"}),
            ("old-epoch", b"".join(one), {"min_epoch": 3}), ("at-expiry", b"".join(one), {"now_unix_ms": 20}),
            ("expired", b"".join(one), {"now_unix_ms": 21}),
            ("max-segments-declared", b"".join(two), {"max_segments": 1}),
            ("max-segments-deferred", b"".join(two_late), {"max_segments": 1}),
            ("max-segments-fits", b"".join(two_late), {"max_segments": 2}),
            ("max-bytes-declared", b"".join(two), {"max_total_bytes": 5}),
            ("max-bytes-deferred", b"".join(two_late), {"max_total_bytes": 5}),
            ("max-bytes-fits", b"".join(two), {"max_total_bytes": 6})]

    def with_cut(frames, source, cut):
        return frame.write_begin(typed_begin(by_name[source]["begin"]), cut) + b"".join(frames[1:])

    full = typed_begin(by_name["declared"]["begin"] | {"prompt_token_ids": list(range(1, 258))})
    for label, frames, source in (("declared", delta, "delta-declared-257-256"), ("deferred", delta_late,
                                                                                   "delta-deferred-257-256")):
        rows += [(f"cut-missing-{label}", with_cut(frames, source, 0), {}),
                 (f"cut-unaligned-{label}", with_cut(frames, source, 128), {}),
                 (f"cut-past-prompt-{label}", with_cut(frames, source, 512), {})]
    late_full = {**full, "segments": [], "deferred_segments": True}
    rows += [("cut-other-schedule-declared", stream.produce(full, begin["segments"], [p], KEY, 256), {}),
             ("cut-other-schedule-deferred", stream.produce(late_full, begin["segments"], [p], KEY, 256), {}),
             ("cut-segment-dropped-deferred", b"".join(delta_late[:4] + delta_late[5:]), {})]
    return rows


def _parts(data, known):
    """A stream as pieces: `transfer/frame` for a frame of a recorded transfer, else hex."""
    parts, at = [], 0
    while at < len(data):
        end = len(data)
        if end - at >= frame.PREAMBLE_BYTES:
            header_bytes, payload_bytes = struct.unpack_from("<IQ", data, at + 8)
            end = min(end, at + frame.PREAMBLE_BYTES + header_bytes + payload_bytes)
        piece = data[at:end].hex()
        parts.append(known.get(piece, piece))
        at = end
    return parts


def stream_cases():
    known = {f: f"{t['name']}/{n}" for t in transfers() for n, f in enumerate(t["frames_hex"])}
    base = {"key_hex": KEY.hex(), "key_id": "k", "min_epoch": 2, "now_unix_ms": 15, "strict": True,
            "recorded": True,
            "max_segments": None, "max_total_bytes": None}
    out = []
    for name, data, over in _stream_rows():
        x = {**base, **over}
        policy = stream.Policy(bytes.fromhex(x["key_hex"]), x["key_id"], x["min_epoch"], x["now_unix_ms"],
                               x["strict"],
                               x["recorded"], x["max_segments"] or manifest.MAX_SEGMENTS,
                               x["max_total_bytes"])
        sink, row = RecordingSink(), {"name": name, **x, "parts": _parts(data, known), "stream_sha256": H(data)}
        verdict = outcome(lambda: row.update(prefix_cut=stream.receive(data, policy, sink).prefix_cut))
        calls = [c for c in sink.calls if c != "prepare_commit"]
        out.append({**row, "sink_calls": calls, "live_generation": sink.live, **verdict})
    return out


# ------------------------------------------------------------------------------------ ledger, schedule

def ledger_vectors():
    files = []
    for name, state in (("empty", {}), ("loop", {"loop-key:4": 9}),
                        ("sorted", {"b:2": 1, "a:10": 2, "a:2": cj.U64_MAX, "a:b:1": 3, "\u00e9:1": 4,
                                    'q"\\\n:1': 5})):
        raw = ledger.render(state)
        files.append({"name": name, "state": state, "text": raw.decode(), "bytes": len(raw),
                      "sha256": H(raw)})
    parsed = []
    for name, raw in (
            ("empty-file", b""), ("truncated", ledger.render({"k:1": 5})[:-6]),
            ("extra-key", b'{"highest_generation":{},"v":1}'), ("missing-key", b"{}"),
            ("duplicate-top", b'{"highest_generation":{},"highest_generation":{}}'),
            ("negative", b'{"highest_generation":{"k:1":-1}}'),
            ("float", b'{"highest_generation":{"k:1":1.0}}'),
            ("too-big", b'{"highest_generation":{"k:1":18446744073709551616}}'),
            ("array", b'{"highest_generation":[]}'),
            ("trailing", b'{"highest_generation":{}} x'),
            ("trailing-space-ok", b'{"highest_generation":{}} \n'),
            ("compact-ok", b'{"highest_generation":{"k:1":7}}')):
        verdict = outcome(lambda: ledger.load(raw))
        parsed.append({"name": name, "bytes_hex": raw.hex(), "category": verdict["category"],
                       "message": None})
    trace, book = [], ledger.Ledger()
    for op in (("admit", "k", 4, 0), ("admit", "k", 4, 1), ("reserve", "k", 4, 9), ("admit", "k", 4, 9),
               ("admit", "k", 4, 8), ("admit", "k", 4, 10), ("admit", "k", 5, 1), ("admit", "j", 4, 1),
               ("reserve", "k", 5, 1), ("reserve", "k", 4, 10), ("reserve", "k", 4, 10), ("fail_persist",),
               ("reserve", "k", 4, 11), ("admit", "k", 4, 12), ("reload",), ("admit", "k", 4, 10),
               ("reserve", "k", 4, 11), ("reserve", "k", 4, cj.U64_MAX), ("admit", "k", 4, cj.U64_MAX)):
        verdict = {"category": "ok", "message": None}
        if op[0] == "fail_persist":
            book.persist_fails = True
        elif op[0] == "reload":
            book = ledger.Ledger(book.file)
        else:
            verdict = outcome(lambda: getattr(book, op[0])(*op[1:]))
        if verdict["message"]:
            verdict["message"] = "replay ledger is latched degraded until restart: {e}"
        trace.append({"op": list(op), **verdict, "file_sha256": H(book.file)})
    return {"files": files, "parse": parsed, "trace": trace, "trace_final_file": book.file.decode()}


def schedule_vectors():
    table = []
    for position, cut in (
            (1, 0), (511, 0), (512, 0), (513, 0), (2047, 0), (2048, 0), (2049, 0), (2561, 0), (4096, 0),
            (8191, 0),
            (16383, 0), (32767, 0), (32768, 0), (65535, 0), (130814, 0), (131007, 0), (131071, 0), (257, 256),
            (300, 256),
            (2047, 1024), (2049, 1024), (4096, 512), (65535, 32768), (65535, 61440), (65535, 65280),
            (131071, 65536)):
        rows = span_schedule(position, cut)
        swa = [r for r in rows if r["role"] == "swa_tile"]
        row = {"position": position, "cut": cut, "swa_segments": len(swa),
               "nope_segments": len(rows) - len(swa),
               "payload_bytes": sum(r["byte_len"] for r in rows),
               "first_tile_complete_after_tokens": min(cut + 512, position),
               "first": [rows[0][k] for k in ("role", "layer", "logical_start", "logical_count")],
               "rows_sha256": H(C(rows))}
        if len(rows) <= 20:
            row["rows"] = [[r[k] for k in ("sequence", "role", "layer", "logical_start",
                                           "logical_count")] for r in rows]
        table.append(row)
    dflash = []
    for position, geometry in ((1, (5, 1024, 64, 2048)), (2047, (5, 1024, 64, 2048)),
                               (2112, (5, 1024, 64, 2048)),
                               (2113, (5, 1024, 64, 2048)), (4096, (5, 1024, 64, 2048)),
                               (2047, (5, 1024, 64, 1024))):
        rows = span_schedule(position, 0, geometry)
        extra = [r for r in rows if r["component_id"] == "dflash"]
        dflash.append({"position": position, "geometry": list(geometry), "segments": len(rows),
                       "dflash_segments": len(extra), "dflash_bytes": sum(r["byte_len"] for r in extra),
                       "rows_sha256": H(C(rows))})
    return {"rows_sha256_is": "SHA-256 of canonical JSON of the descriptor list without sha256",
            "table": table,
            "dflash": dflash, "invalid": [[0, 0], [2049, 2049], [2049, 4096], [2049, 128], [256, 256]]}
