#!/usr/bin/env python3
"""Makes conformance/vectors/muse_vectors.json: identities, geometry and descriptors of the Muse adapter.

usage: make_muse_vectors.py [--check | --write] [FILE]

Written from docs/format, standard library alone; nothing is read but the file that is compared. Rotated planes are
those of this machine's libm.
"""
import argparse
import hashlib
import hmac
import json
import math
import pathlib
import struct
import sys

# ----------------------------------------------------------------- primitives


def u8(v):
    return struct.pack("<B", v)


def u16(v):
    return struct.pack("<H", v)


def u32(v):
    return struct.pack("<I", v)


def u64(v):
    return struct.pack("<Q", v)


def i64(v):
    return struct.pack("<q", v)


def sha(*parts):
    h = hashlib.sha256()
    for p in parts:
        h.update(p)
    return h.digest()


def mac(key, *parts):
    h = hmac.new(key, digestmod=hashlib.sha256)
    for p in parts:
        h.update(p)
    return h.digest()


def hkdf(salt, ikm, info, length=32):
    prk = hmac.new(salt, ikm, hashlib.sha256).digest()
    out, block, n = b"", b"", 1
    while len(out) < length:
        block = hmac.new(prk, block + info + bytes([n]), hashlib.sha256).digest()
        out += block
        n += 1
    return out[:length]


def domain_id(domain, parts):
    """SHA-256(domain || for each part: u64le(len) || part)."""
    h = hashlib.sha256(domain)
    for p in parts:
        h.update(u64(len(p)))
        h.update(p)
    return h.digest()


def f64_bits(x):
    return struct.unpack("<Q", struct.pack("<d", x))[0]


def f32_widen(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def f32_bits(x):
    return struct.unpack("<I", struct.pack("<f", x))[0]


# -------------------------------------------------------------- layout tables

NEOX, INTER, NONE = "neox", "interleaved", "none"


def cls(name, frm, until, step, exc, kv, hd, win, base, rdim, scal, conv):
    return dict(cls=name, frm=frm, until=until, step=step, exc=list(exc), kv=kv,
                hd=hd, win=win, base=f64_bits(base), rdim=rdim, scal=scal, conv=conv)


MUSE_FULL = list(range(3, 52, 4))
GEMMA_FULL = list(range(5, 60, 6))
REGISTRY = {
    "qwen2.5-7b": (28, [cls("gqa-full", 0, 28, 1, [], 4, 128, 0, 1e6, 128, "none", NEOX)]),
    "gpt-oss-120b": (36, [
        cls("gqa-windowed", 0, 36, 2, [], 8, 64, 128, 150000.0, 64, "yarn:32", NEOX),
        cls("gqa-full", 1, 36, 2, [], 8, 64, 0, 150000.0, 64, "yarn:32", NEOX)]),
    "gemma4-31b": (60, [
        cls("gqa-windowed", 0, 60, 1, GEMMA_FULL, 16, 256, 1024, 10000.0, 256, "none", NEOX),
        cls("gqa-full", 5, 60, 6, [], 4, 512, 0, 1e6, 512, "none", NEOX)]),
    "muse-glimmer-30b": (52, [
        cls("gqa-windowed", 0, 52, 1, MUSE_FULL, 2, 128, 2048, 500000.0, 128, "none", INTER),
        cls("gqa-full", 3, 52, 4, [], 2, 128, 0, 0.0, 0, "none", NONE)]),
}


def layers(c):
    return [l for l in range(c["frm"], c["until"], max(c["step"], 1)) if l not in c["exc"]]


def state_names(c):
    return ["attn.kv_latent"] if c["cls"] == "mla-latent" else ["attn.k", "attn.v"]


def bare_geometry(c):
    out = b"".join(u32(c[k]) for k in ("frm", "until", "step", "kv", "hd", "win"))
    return out + b"".join(u32(e) for e in c["exc"])


def lp32(text):
    b = text.encode()
    return u32(len(b)) + b


def labeled_geometry(c):
    names = state_names(c)
    out = bare_geometry(c) + lp32(c["cls"]) + u32(len(names))
    out += b"".join(lp32(n) for n in names)
    out += u64(c["base"]) + u32(c["rdim"]) + lp32(c["scal"]) + lp32(c["conv"])
    return out


def pin_bytes(pin):
    return b"".join(lp32(pin[k]) for k in ("engine", "kernel", "dtype_path", "convention"))


# ------------------------------------------------------------- family objects

DT_F16, DT_F32 = 6, 8
DIRECT, TAIL = 1, 3
WIDTH = {DT_F16: 2, DT_F32: 4}


def family_state(layer, name, dtype, rule, ept, dims):
    return dict(layer=layer, name=name, dtype=dtype, rule=rule, ept=ept, dims=dims)


def enc_key(s):
    b = s["name"].encode()
    return u32(s["layer"]) + u16(len(b)) + b


def enc_family_state(s):
    out = enc_key(s)
    out += u16(1) + u16(s["dtype"]) + u16(1) + u16(1) + u16(1) + u16(s["rule"])
    out += u8(0) + u8(0) + u64(s["ept"]) + u8(len(s["dims"]))
    out += b"".join(u64(d) for d in s["dims"])      # 0 encodes the token axis
    return out + u16(0)


def enc_family(f):
    out = b"KVFAM1\0\0" + u16(1) + u16(0)
    out += f["abi"] + u16(2) + u16(0) + u32(256) + f["topology"] + f["shard"]
    out += u32(len(f["states"]))
    return out + b"".join(enc_family_state(s) for s in f["states"])


def family_id(f):
    return sha(b"kvpack/v1/representation-family\0", enc_family(f))


def semantic_id(m):
    return sha(b"kvpack/v1/semantic-model\0", m["weights_config"], m["adapters"],
               m["tokenizer_template"], m["position_semantics"], m["qualified_math"])


def derive(inp, classes):
    """The v2 descriptor core."""
    pre = inp["portable_abi"] == "canonical-kv-prerope-v2"
    sem = dict(
        weights_config=domain_id(b"kvpack/spark-prefill/weights-config/v1\0",
                                 [inp["model_sha256"], inp["model_revision"].encode(),
                                  inp["weight_precision"].encode()]),
        adapters=domain_id(b"kvpack/spark-prefill/adapters/v1\0", [inp["adapter_sha256"]]),
        tokenizer_template=domain_id(b"kvpack/spark-prefill/tokenizer-template/v1\0",
                                     [inp["tokenizer_sha256"], inp["chat_template_sha256"],
                                      inp["tokenizer_revision"].encode()]),
        position_semantics=domain_id(b"kvpack/spark-prefill/position-semantics/v1\0",
                                     [inp["context_policy_sha256"], u32(inp["max_context_tokens"])]),
        qualified_math=domain_id(b"kvpack/spark-prefill/qualified-math/v1\0",
                                 [inp["producer_engine_abi"].encode(),
                                  inp["consumer_engine_abi"].encode(),
                                  inp["compute_precision"].encode(),
                                  inp["kv_precision"].encode()]))
    bare = b"".join(bare_geometry(c) for c in classes) + u32(inp["max_context_tokens"])
    lab = b"".join(labeled_geometry(c) for c in classes) + u32(inp["max_context_tokens"])
    parts = [inp["portable_abi"].encode(), inp["consumer_engine_abi"].encode(), lab,
             inp.get("transform") or b""]
    if inp.get("pin"):
        parts.append(pin_bytes(inp["pin"]))
    fam = dict(abi=domain_id(b"kvpack/spark-prefill/engine-cache-abi/v3\0", parts),
               topology=domain_id(b"kvpack/spark-prefill/topology/v2\0", [bare]),
               shard=domain_id(b"kvpack/spark-prefill/shard-map/v2\0",
                               [b"single-rank-layout-table-declared-order"]),
               states=[])
    states, top, total = [], 0, 0
    order = sorted(((l, c) for c in classes for l in layers(c)), key=lambda t: t[0])
    cached = inp["cached_token_count"]
    for layer, c in order:
        ept = c["kv"] * c["hd"]
        window = cached if c["win"] == 0 else min(c["win"], cached)
        rule = DIRECT if c["win"] == 0 else TAIL
        for name in state_names(c):
            dt = DT_F32 if pre and name == "attn.k" else DT_F16
            nbytes = window * ept * WIDTH[dt]
            top = max(top, nbytes)
            total += nbytes
            fam["states"].append(family_state(layer, name, dt, rule, ept, [0, c["kv"], c["hd"]]))
            states.append(dict(layer=layer, name=name, strides=[ept, c["hd"], 1],
                               group=layer + 1, tokens=window, bytes=nbytes))
    return dict(sem=sem, fam=fam, states=states, bytes_per_state=top, restored_bytes=total,
                bare=bare, labeled=lab)


def bind_k4(d, qk, om, cap, eps):
    bits = [f64_bits(v) for v in (qk, om, cap, eps)]
    d["sem"] = dict(d["sem"])
    d["sem"]["weights_config"] = domain_id(
        b"kvpack/spark-prefill/weights-config-scalar-math/v1\0",
        [d["sem"]["weights_config"]] + [u64(b) for b in bits])
    return d


LOGITS_LAYER, LOGITS_NAME = 52, "decoder.last_logits"


def add_logits(d, vocab):
    d["fam"]["states"].append(family_state(LOGITS_LAYER, LOGITS_NAME, DT_F32, TAIL, vocab, [0, vocab]))
    d["states"].append(dict(layer=LOGITS_LAYER, name=LOGITS_NAME, strides=[vocab, 1],
                            group=LOGITS_LAYER + 1, tokens=1, bytes=vocab * 4))
    d["bytes_per_state"] = max(d["bytes_per_state"], vocab * 4)
    d["restored_bytes"] += vocab * 4
    return d


# ------------------------------------------------------------ Muse adapter

CACHE_ABI = "muser-muse-glimmer-f16-logits-v2"


def identity(model, adapter, tok, chat, ctx, mrev, trev, prec):
    return dict(model_sha256=model, adapter_sha256=adapter, tokenizer_sha256=tok,
                chat_template_sha256=chat, context_policy_sha256=ctx, model_revision=mrev,
                tokenizer_revision=trev, weight_precision=prec)


def identity_digest(i):
    h = hashlib.sha256(b"muser-resident-identity-v1\0")
    for k in ("model_sha256", "adapter_sha256", "tokenizer_sha256", "chat_template_sha256",
              "context_policy_sha256"):
        h.update(i[k])
    for k in ("model_revision", "tokenizer_revision", "weight_precision"):
        b = i[k].encode()
        h.update(u64(len(b)))
        h.update(b)
    return h.digest()


def muse_descriptor(ident, cached, vocab, qk=3.87, om=0.19611613, cap=20.0, eps=1e-8):
    inp = dict(ident, producer_engine_abi=CACHE_ABI, consumer_engine_abi=CACHE_ABI,
               portable_abi="canonical-kv-v2", compute_precision="float16",
               kv_precision="float16", cached_token_count=cached, max_context_tokens=131072)
    d = derive(inp, REGISTRY["muse-glimmer-30b"][1])
    # config scalars are f32 widened exactly to f64 before their bits are taken
    d = bind_k4(d, f32_widen(qk), f32_widen(om), f32_widen(cap), f32_widen(eps))
    return add_logits(d, vocab)


MAX_CHUNK = 4 * 1024 * 1024


def declared(d, cached):
    """Realized state ranges, shapes and chunk spans of a Full session manifest."""
    out = []
    for fs, st in zip(d["fam"]["states"], d["states"]):
        width = WIDTH[fs["dtype"]]
        count = st["tokens"]
        start = cached - count
        shape = [count if x == 0 else x for x in fs["dims"]]
        bpt = fs["ept"] * width
        per = max(MAX_CHUNK // bpt, 1)
        spans, t = [], start
        while t < start + count:
            n = min(per, start + count - t)
            spans.append((t, n, t * bpt, n * bpt))
            t += n
        out.append(dict(layer=fs["layer"], name=fs["name"], shape=shape, strides=st["strides"],
                        start=start, count=count, pos=cached, group=st["group"], width=width,
                        bpt=bpt, spans=spans, bytes=count * bpt))
    return out


def enc_shape(s):
    return u8(len(s)) + b"".join(u64(x) for x in s)


def footprint(shape, strides, width):
    return (sum((d - 1) * s for d, s in zip(shape, strides)) + 1) * width


def enc_state_declaration(r):
    out = b"KVSTS1\0\0" + u16(1) + u16(0) + enc_key(r) + enc_shape(r["shape"]) * 2
    out += u8(len(r["strides"])) + b"".join(u64(s) for s in r["strides"])
    return out + u64(r["start"]) + u64(r["count"]) + u64(r["pos"]) + u64(0) + u32(r["group"])


def enc_realized(rows):
    out = b"KVRCS1\0\0" + u16(1) + u16(0) + u8(0) + u8(0) + u16(0) + u32(len(rows))
    for r in rows:
        fp = footprint(r["shape"], r["strides"], r["width"])
        out += enc_key(r) + enc_shape(r["shape"]) * 2
        out += u8(len(r["strides"])) + b"".join(u64(s) for s in r["strides"])
        out += u64(r["start"]) + u64(r["count"]) + u64(0) + u64(fp) + u64(fp)
        out += u64(r["pos"]) + u64(0) + u32(len(r["spans"]))
        for a, b, c, e in r["spans"]:
            out += u64(a) + u64(b) + u64(c) + u32(e)
    groups = {}
    for r in rows:
        groups.setdefault(r["group"], []).append(r)
    out += u32(len(groups))
    for g in sorted(groups):
        out += u32(g) + u32(len(groups[g])) + b"".join(enc_key(r) for r in groups[g])
    total = sum(r["bytes"] for r in rows)
    return out + u64(total) + u64(total)


# ---------------------------------------------------------- keyed identities


def key_schedule(root, tenant, epoch):
    def ex(salt, label):
        return hkdf(salt, root, label)
    es = tenant + u64(epoch)
    return dict(namespace=ex(tenant, b"kvpack/v1/stable/namespace"),
                prefix=ex(tenant, b"kvpack/v1/stable/prefix"),
                chunk_identity=ex(tenant, b"kvpack/v1/stable/chunk-identity"),
                manifest_auth=ex(es, b"kvpack/v1/epoch/manifest-auth"))


def tenant_namespace(root, operator, epoch):
    boot = key_schedule(root, sha(operator), epoch)
    return mac(boot["namespace"], b"kvpack/v1/namespace\0", u32(len(operator)), operator)


def prefix_chain(key, tenant, sem, fam, tokens):
    aux = mac(key, b"kvpack/v1/auxiliary-input-root\0", tenant, u32(0))
    ctx = mac(key, b"kvpack/v1/prefix-context\0", tenant, sem, fam, aux)
    parent = mac(key, b"kvpack/v1/prefix-root\0", ctx)
    nodes = []
    for i in range(0, len(tokens), 256):
        blk = tokens[i:i + 256]
        framed = ctx + parent + u64(i // 256) + u64(i) + u32(len(blk)) + u32(4 * len(blk))
        framed += b"".join(u32(t) for t in blk)
        parent = mac(key, b"kvpack/v1/prefix-node\0", framed)
        nodes.append(dict(token_count=i + len(blk), id=parent, reusable=len(blk) == 256))
    return aux, nodes


def chunk_id(key, tenant, fam, layer, name, span, plain):
    n = name.encode()
    return mac(key, b"kvpack/v1/chunk-content\0", tenant, fam, u32(layer), u16(len(n)), n,
               u64(span[0]), u64(span[1]), u64(span[2]), u32(len(plain)), plain)


# --------------------------------------------------------------- half floats


def f16_to_f32(b):
    return struct.unpack("<e", u16(b))[0]


def round_mant(m, shift):
    dropped, kept, half = m & ((1 << shift) - 1), m >> shift, 1 << (shift - 1)
    return kept + (1 if dropped > half or (dropped == half and kept & 1) else 0)


def f32_to_f16(x):
    """Nearest even, with magnitudes in (2^-25, 2^-24) flushed to zero."""
    if x != x:
        return 0x7E00
    bits = f32_bits(x)
    sign, e, m = (bits >> 16) & 0x8000, ((bits >> 23) & 0xFF) - 127, bits & 0x7FFFFF
    if e > 15:
        return sign | 0x7C00
    if e < -24:
        return sign
    if e >= -14:
        r = round_mant(m, 13)
        return sign | ((e + 16) << 10) if r == 0x400 else sign | ((e + 15) << 10) | r
    return sign | round_mant(m | 0x800000, 13 + (-14 - e))


def to_f32(x):
    try:
        return struct.unpack("<f", struct.pack("<f", x))[0]
    except OverflowError:
        return math.copysign(math.inf, x)


def relocate_k(c, delta, plane):
    b = bytearray(plane)
    rot, half = c["rdim"], c["rdim"] // 2
    base = struct.unpack("<d", u64(c["base"]))[0]
    cs = []
    for i in range(half):
        ang = float(delta) * math.pow(base, -2.0 * i / rot)
        cs.append((math.cos(ang), math.sin(ang)))
    for head in range(0, len(b), c["hd"] * 2):
        for i, (co, si) in enumerate(cs):
            o0, o1 = (2 * i, 2 * i + 1) if c["conv"] == INTER else (i, i + half)
            lo, hi = head + 2 * o0, head + 2 * o1
            x0 = f16_to_f32(struct.unpack_from("<H", b, lo)[0])
            x1 = f16_to_f32(struct.unpack_from("<H", b, hi)[0])
            struct.pack_into("<H", b, lo, f32_to_f16(to_f32(x0 * co - x1 * si)))
            struct.pack_into("<H", b, hi, f32_to_f16(to_f32(x0 * si + x1 * co)))
    return bytes(b)


# ----------------------------------------------------------------- economics


def kv_bytes(t):
    return 13 * 1024 * t + 39 * 1024 * min(t, 2048)


# ---------------------------------------------------------------------- main


def hx(b):
    return b.hex()


def sem_hex(m):
    out = {k: hx(v) for k, v in m.items()}
    out["semantic_model_id"] = hx(semantic_id(m))
    return out


def make_vectors():
    V = {"schema": "muse-vectors.v1",
         "note": "hex is lowercase; integers are decimal; see muse.md"}

    rep = lambda b: bytes([b]) * 32
    test_id = identity(rep(1), rep(0), rep(2), rep(3), rep(4), "test-muse", "test-tokenizer", "nvfp4")
    rel_id = identity(bytes.fromhex("7e9b74b7c8875e9e265695df9613bf6290f2392e479ce740495a129019c488d8"),
                      rep(0),
                      bytes.fromhex("61e73226502f8f54455555990c0000852247bbec32b107730ec544bc0b738055"),
                      bytes.fromhex("114f55ebdc1804c1af371197b9fdf2d6bb925966c9dfe46b73782a71bc07965e"),
                      rep(4), "a0532f7263ee67f1e0a5f5c5fdcd50dd62fc9aa4", "embedded", "q4_k_xl")

    # 1. MuseIdentity digest ------------------------------------------------
    def with_(i, **kw):
        j = dict(i)
        j.update(kw)
        return j
    variants = {
        "test": test_id,
        "test.model_bit_flip": with_(test_id, model_sha256=bytes([0]) + rep(1)[1:]),
        "test.precision_q4_k_xl": with_(test_id, weight_precision="q4_k_xl"),
        "test.tokenizer_revision_other": with_(test_id, tokenizer_revision="other-tokenizer"),
        "test.field_boundary_shift": with_(test_id, model_revision="test-mus",
                                           tokenizer_revision="etest-tokenizer"),
        "release_shaped": rel_id,
    }
    V["muse_identity"] = {
        n: {"fields": {k: (hx(v) if isinstance(v, bytes) else v) for k, v in i.items()},
            "digest": hx(identity_digest(i))} for n, i in variants.items()}
    assert len({identity_digest(i) for i in variants.values()}) == len(variants)
    dg = identity_digest(test_id)
    V["radix_scope_words"] = {
        "test_identity": [1] + list(struct.unpack("<8I", dg)),
        "no_identity": [0] * 9}

    # 2. layers -------------------------------------------------------------
    c_swa, c_full = REGISTRY["muse-glimmer-30b"][1]
    assert len(layers(c_swa)) == 39 and layers(c_full) == MUSE_FULL
    assert sorted(layers(c_swa) + layers(c_full)) == list(range(52))
    V["muse_layers"] = {"nope": layers(c_full), "swa": layers(c_swa)}

    # 3. K4 -----------------------------------------------------------------
    def k4_vec(prev, scal):
        bits = [f64_bits(s) for s in scal]
        out = domain_id(b"kvpack/spark-prefill/weights-config-scalar-math/v1\0",
                        [prev] + [u64(b) for b in bits])
        return {"prior_weights_config": hx(prev),
                "bits": {"qk_scale_factor": "%016x" % bits[0], "output_multiplier": "%016x" % bits[1],
                         "final_logit_softcapping": "%016x" % bits[2], "post_norm_eps": "%016x" % bits[3]},
                "preimage_length": 51 + 8 + 32 + 4 * 16,
                "bound_weights_config": hx(out)}
    assert len(b"kvpack/spark-prefill/weights-config-scalar-math/v1\0") == 51
    base = derive(dict(test_id, producer_engine_abi=CACHE_ABI, consumer_engine_abi=CACHE_ABI,
                       portable_abi="canonical-kv-v2", compute_precision="float16",
                       kv_precision="float16", cached_token_count=256, max_context_tokens=131072),
                  [c_swa, c_full])
    assert f32_bits(0.19611613) == f32_bits(0.19611613513818404)
    f32s = [f32_widen(3.87), f32_widen(0.19611613), 20.0, f32_widen(1e-8)]
    f64s = [3.87, 0.19611613513818404, 20.0, 1e-8]
    V["k4"] = {
        "adapter_f32_widened": k4_vec(base["sem"]["weights_config"], f32s),
        "config_json_f64": k4_vec(base["sem"]["weights_config"], f64s),
        "f32_decimal": {"qk_scale_factor": repr(f32s[0]), "output_multiplier": repr(f32s[1]),
                        "post_norm_eps": repr(f32s[3])},
        "f32_bits": {"qk_scale_factor": "%08x" % f32_bits(3.87),
                     "output_multiplier": "%08x" % f32_bits(0.19611613),
                     "final_logit_softcap": "%08x" % f32_bits(20.0),
                     "post_norm_eps": "%08x" % f32_bits(1e-8)}}

    # 4. Muse family --------------------------------------------------------
    V["muse_family"] = {
        "labeled_geometry_windowed": hx(labeled_geometry(c_swa)),
        "labeled_geometry_full": hx(labeled_geometry(c_full)),
        "labeled_geometry_all": hx(base["labeled"]),
        "labeled_geometry_all_length": len(base["labeled"]),
        "bare_geometry_all": hx(base["bare"]),
        "bare_geometry_all_length": len(base["bare"]),
        "engine_cache_abi": hx(base["fam"]["abi"]),
        "topology": hx(base["fam"]["topology"]),
        "shard_map": hx(base["fam"]["shard"]),
        "without_logits": {"states": 104, "canonical_length": len(enc_family(base["fam"])),
                           "canonical_sha256": hx(sha(enc_family(base["fam"]))),
                           "representation_family_id": hx(family_id(base["fam"]))}}
    for vocab in (128, 202048):
        d = muse_descriptor(test_id, 256, vocab)
        V["muse_family"]["with_logits_vocab_%d" % vocab] = {
            "states": len(d["states"]), "canonical_length": len(enc_family(d["fam"])),
            "canonical_sha256": hx(sha(enc_family(d["fam"]))),
            "representation_family_id": hx(family_id(d["fam"]))}
    V["muse_family"]["first_state_bytes"] = hx(enc_family_state(base["fam"]["states"][0]))
    V["muse_family"]["nope_state_layer3_k_bytes"] = hx(enc_family_state(base["fam"]["states"][6]))
    V["muse_family"]["logits_state_bytes_vocab_202048"] = hx(
        enc_family_state(muse_descriptor(test_id, 256, 202048)["fam"]["states"][-1]))

    # 5. semantic models ----------------------------------------------------
    V["semantic_models"] = {
        "test_identity.unbound": sem_hex(base["sem"]),
        "test_identity.bound": sem_hex(muse_descriptor(test_id, 256, 128)["sem"]),
        "release_shaped.bound": sem_hex(muse_descriptor(rel_id, 256, 202048)["sem"])}

    # 6. descriptor sizes ---------------------------------------------------
    rows = {}
    for cached in (1, 256, 257, 2047, 2048, 2049, 4096, 65535, 65536, 130814, 130815, 131071):
        d = muse_descriptor(test_id, cached, 202048)
        decl = declared(d, cached)
        nope, swa, lg = decl[6], decl[0], decl[-1]
        assert sum(r["bytes"] for r in decl) == d["restored_bytes"]
        assert d["restored_bytes"] - 202048 * 4 == kv_bytes(cached)
        rows[str(cached)] = {
            "states": len(d["states"]),
            "nope_state_bytes": nope["bytes"], "nope_range": [nope["start"], nope["count"]],
            "swa_state_bytes": swa["bytes"], "swa_range": [swa["start"], swa["count"]],
            "logits_state_bytes": lg["bytes"], "logits_range": [lg["start"], lg["count"]],
            "kv_bytes": kv_bytes(cached), "bytes_per_state": d["bytes_per_state"],
            "restored_bytes": d["restored_bytes"],
            "chunks": {"nope_per_state": len(nope["spans"]), "swa_per_state": len(swa["spans"]),
                       "logits": 1, "total": sum(len(r["spans"]) for r in decl)},
            "nope_first_and_last_span": [nope["spans"][0], nope["spans"][-1]],
            "swa_span": swa["spans"][0], "logits_span": lg["spans"][0],
            "realized_cut_schema_id": hx(sha(b"kvpack/v1/realized-cut-schema\0", enc_realized(decl))),
            "realized_schema_length": len(enc_realized(decl))}
    V["descriptor_sizes_vocab_202048"] = rows
    d256 = muse_descriptor(test_id, 256, 128)
    r256 = declared(d256, 256)
    V["realized_schema_vocab_128_cut_256"] = {
        "realized_cut_schema_id": hx(sha(b"kvpack/v1/realized-cut-schema\0", enc_realized(r256))),
        "length": len(enc_realized(r256)), "restored_bytes": d256["restored_bytes"],
        "bytes_per_state": d256["bytes_per_state"]}
    d4k = declared(muse_descriptor(test_id, 4096, 202048), 4096)
    V["state_declaration_bytes_cut_4096"] = {
        "layer0_attn.k": hx(enc_state_declaration(d4k[0])),
        "layer3_attn.k": hx(enc_state_declaration(d4k[6])),
        "logits_vocab_202048": hx(enc_state_declaration(d4k[-1]))}
    assert kv_bytes(130814) == 1823184896          # measured deep wire payload
    assert kv_bytes(65535) == 954190848            # measured full transfer
    assert 13 * 1024 * (65535 - 32768) + 39 * 1024 * 2048 == 517983232   # measured delta

    # 7. other registered layouts -------------------------------------------
    common = dict(model_sha256=rep(1), adapter_sha256=rep(2), tokenizer_sha256=rep(3),
                  chat_template_sha256=rep(4), context_policy_sha256=rep(5),
                  model_revision="model@revision", tokenizer_revision="tokenizer@revision",
                  producer_engine_abi="vllm-0.21", consumer_engine_abi="ferrite-v1",
                  portable_abi="canonical-kv-v2", compute_precision="float16",
                  kv_precision="float16", weight_precision="q4_k_m",
                  cached_token_count=16383, max_context_tokens=32768)
    reg = {}

    def summary(d):
        return {"states": len(d["states"]), "bytes_per_state": d["bytes_per_state"],
                "restored_bytes": d["restored_bytes"], "engine_cache_abi": hx(d["fam"]["abi"]),
                "topology": hx(d["fam"]["topology"]), "shard_map": hx(d["fam"]["shard"]),
                "representation_family_id": hx(family_id(d["fam"])),
                "semantic_model_id": hx(semantic_id(d["sem"]))}
    for name, (_n, cl) in REGISTRY.items():
        reg[name] = summary(derive(common, cl))
    assert reg["qwen2.5-7b"]["restored_bytes"] == 16383 * 512 * 2 * 56
    assert reg["gpt-oss-120b"]["restored_bytes"] == 16383 * 1024 * 36 + 128 * 1024 * 36
    assert reg["gemma4-31b"]["restored_bytes"] == 16383 * 4096 * 20 + 1024 * 8192 * 100
    reg["qwen2.5-7b+transform07"] = summary(derive(dict(common, transform=rep(7)),
                                                   REGISTRY["qwen2.5-7b"][1]))
    pin = dict(engine="ferrite-metal", kernel="rope_store_kv_batch_cached",
               dtype_path="f32-k-in-f16-cache", convention="neox")
    pr = derive(dict(common, portable_abi="canonical-kv-prerope-v2", pin=pin),
                REGISTRY["qwen2.5-7b"][1])
    reg["qwen2.5-7b+prerope"] = dict(summary(pr), pin_identity_bytes=hx(pin_bytes(pin)))
    assert pr["restored_bytes"] == 16383 * 512 * 4 * 28 + 16383 * 512 * 2 * 28
    mla = [cls("mla-latent", 0, 3, 1, [], 1, 20, 0, 10000.0, 4, "none", NEOX)]
    reg["mla-fixture"] = summary(derive(common, mla))
    assert reg["mla-fixture"]["restored_bytes"] == 16383 * 20 * 2 * 3
    V["registry_fixture_input"] = {k: (hx(v) if isinstance(v, bytes) else v) for k, v in common.items()}
    V["registry_fixture"] = reg
    sess = dict(model_sha256=rep(0x82), adapter_sha256=rep(0), tokenizer_sha256=rep(0x11),
                chat_template_sha256=rep(0x22), context_policy_sha256=rep(0x33),
                model_revision="muse-glimmer-30b@Q4_K_XL",
                tokenizer_revision="muse-glimmer-30b-tokenizer@1",
                producer_engine_abi="llama.cpp-pr26841", consumer_engine_abi="ferrite-metal-v1",
                portable_abi="canonical-kv-v2", compute_precision="float16",
                kv_precision="float16", weight_precision="q4_k_m",
                cached_token_count=4096, max_context_tokens=131072)
    sd = bind_k4(derive(sess, [c_swa, c_full]), *f64s)
    V["session_fixture_104_states"] = dict(summary(sd), semantic=sem_hex(sd["sem"]))

    # 8. keyed prefix authority and chunk identity --------------------------
    root, operator = rep(0x42), b"muser-durable-test"
    tenant = tenant_namespace(root, operator, 1)
    ks = key_schedule(root, tenant, 1)
    sem = semantic_id(d256["sem"])
    fam = family_id(d256["fam"])
    cut = {}
    for n in (256, 257, 512):
        aux, nodes = prefix_chain(ks["prefix"], tenant, sem, fam, list(range(n)))
        cut[str(n)] = {"auxiliary_input_root": hx(aux),
                       "nodes": [{"token_count": x["token_count"], "id": hx(x["id"]),
                                  "reusable": x["reusable"]} for x in nodes]}
    assert cut["257"]["nodes"][0] == cut["256"]["nodes"][0] == cut["512"]["nodes"][0]
    plane = bytes([3]) * (256 * 512)
    span = r256[6]["spans"][0]
    V["keyed_fixture"] = {
        "root_key": hx(root), "operator_tenant_id": operator.decode(), "key_epoch": 1,
        "tenant_namespace": hx(tenant), "prefix_key": hx(ks["prefix"]),
        "chunk_identity_key": hx(ks["chunk_identity"]),
        "semantic_model_id": hx(sem), "representation_family_id": hx(fam), "vocab": 128,
        "tokens": "0,1,2,..,n-1", "input_cut": cut,
        "chunk_layer3_attn.k_cut256": {"plaintext": "131072 bytes of 0x03", "span": span,
                                       "chunk_id": hx(chunk_id(ks["chunk_identity"], tenant, fam, 3,
                                                               "attn.k", span, plane))}}

    # 9. idempotency keys and token digests ---------------------------------
    toks = list(range(256))
    tb = b"".join(u32(t) for t in toks)
    V["derived_keys"] = {
        "portable_prefill_token_ids_sha256(0..255)": hx(sha(b"kvpack-live-token-ids-v1\0", tb)),
        "durable_prompt_idempotency(0..255)": hx(sha(b"muser-durable-prompt-v1\0", tb)),
        "remote_import_idempotency": {
            "manifest_id": hx(rep(0xA1)), "prefix_id": hx(rep(0xB2)), "cut": 256,
            "publication_generation": 1,
            "value": hx(sha(b"muser/remote-durable-import/v1\0", rep(0xA1), rep(0xB2), u64(256), u64(1)))}}

    # 10. halves and relocation ---------------------------------------------
    V["f32_to_f16"] = {("%08x" % f32_bits(x)): "%04x" % f32_to_f16(x) for x in
                       (0.0, -0.0, 1.0, -2.0, 65504.0, 65519.0, 65520.0, 1.0 + 2.0 ** -11,
                        1.0 + 2.0 ** -11 + 2.0 ** -20, 2.0 ** -14, 2.0 ** -24, 2.0 ** -25,
                        1.5 * 2.0 ** -25, 1.5 * 2.0 ** -24)}
    vals = [((i * 37) % 101 - 50) / 16.0 for i in range(256)]
    k_in = b"".join(u16(f32_to_f16(v)) for v in vals)
    rel = {"input_rule": "element i of one token (2 heads x 128) = ((i*37) mod 101 - 50)/16, f16 LE",
           "input_sha256": hx(sha(k_in)), "input_first_16_bytes": hx(k_in[:16])}
    for delta in (1, -1, 512, -2048, 131072):
        o = relocate_k(c_swa, delta, k_in)
        rel["delta_%d" % delta] = {"sha256": hx(sha(o)), "first_16_bytes": hx(o[:16]),
                                   "last_16_bytes": hx(o[-16:])}
    V["relocation_muse_swa_k"] = rel

    # 11. economics ----------------------------------------------------------
    V["economics"] = {
        "kv_bytes": {str(t): kv_bytes(t) for t in (0, 17, 100, 256, 2048, 4000, 5000, 8000, 65535,
                                                    65536, 130814, 130815, 131072)},
        "gflops_avoided_linear": {str(t): 2.0 * 30e9 * t / 1e9 for t in (1, 256, 4000)},
        "speedup_ema_after": {"ratios": [10.0, 20.0, 20.0],
                              "values": [10.0, 12.5, 14.375]}}

    return json.dumps(V, indent=1, sort_keys=False) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--check", action="store_true", help="is the file what this program makes?")
    mode.add_argument("--write", action="store_true")
    parser.add_argument("file", nargs="?", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parents[1] / "vectors/muse_vectors.json")
    options = parser.parse_args()
    text = make_vectors()
    if options.write:
        options.file.write_text(text, encoding="ascii")
    elif options.file.read_text(encoding="ascii") != text:
        print(f"{options.file} is not what this program makes", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
