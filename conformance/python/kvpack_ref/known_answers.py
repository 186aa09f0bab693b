"""Known answers of every other operation, and its refusals."""

import struct

from . import fixtures, keys, objects, rotation, semantic_cases, sidecar, transform
from .case import Case
from .crypto import sha256
from .fixtures import AUXILIARY, MODEL, ROOT, ident, ramp
from .merkle import leaf_hash
from .object_cases import KEY, SPAN
from .scalars import PAGE, StateKey, encode_key, le
from .words import flip

PAIRS = b"".join(a + b for a, b in AUXILIARY).hex()
MODEL_HEX = b"".join(MODEL).hex()


def cases():
    rows = _frames() + _merkle() + _cut_chain() + _transform() + _transform_refusals() + _rotation()
    rows += _sidecar() + _sidecar_refusals() + _keys() + _identities() + _encoders() + _limits()
    return rows + _other_rings()


def _none(rows, prefix):
    """Cases that need no keys."""
    return [Case(prefix + name, "none", request, answer) for name, request, answer in rows]


def _tokens(*tokens):
    return b"".join(le(4, token) for token in tokens).hex()


# ----------------------------------------------------------------------------------------------- frames

def _frame(magic, body, size):
    return (magic + le(2, 1) + le(2, 0) + le(4, size)).hex() + body


def _frames():
    lossless, raw = b"KVRLE1\0\0", b"KVRAW1\0\0"
    rows = []
    for name, plaintext, packets in (
            ("distinct", ramp(0, 16), "0f" + ramp(0, 16).hex()),
            ("mixed", b"aaabbbbccdefgh", "826183620663636465666768"), ("run-130", b"Z" * 130, "ff5a015a5a"),
            ("run-129", b"Z" * 129, "ff5a005a"), ("run-131", b"Z" * 131, "ff5a825a"),
            ("run-128", b"Z" * 128, "ff5a"), ("run-2", b"ZZ", "015a5a"), ("run-3", b"ZZZ", "825a"),
            ("one-byte", b"Z", "005a"), ("run-256", b"Z" * 256, "ff5aff5a"),
            ("straddling-pair", ramp(0, 127) + b"\xaa\xaa", "7f" + ramp(0, 127).hex() + "aa00aa"),
            ("straddling-run", ramp(0, 127) + b"\xaa" * 3, "7e" + ramp(0, 127).hex() + "82aa"),
            ("literal-129", ramp(0, 129), "7f" + ramp(0, 128).hex() + "0080"),
            ("pairs", b"aabbcc" + b"d" * 3, "05" + b"aabbcc".hex() + "8264")):
        frame = _frame(lossless, packets, len(plaintext))
        rows.append((name, "encode frame lossless " + plaintext.hex(), "ok\t" + frame))
        rows.append((name + "-back", "decode frame lossless %s %d" % (frame, len(plaintext)),
                     "ok\t" + plaintext.hex()))
    size = "bounds:chunk plaintext must be in 1..=4 MiB"
    for codec in ("raw", "lossless"):
        rows += [(codec + "-empty", "encode frame %s -" % codec, size),
                 (codec + "-over", "encode frame %s -/fill:4194305:00" % codec, size)]
    largest = _frame(raw, "/fill:4194304:5a", 4194304)
    rows += [("raw-largest", "encode frame raw -/fill:4194304:5a", "ok\t" + largest),
             ("raw-largest-back", "verdict frame raw %s 4194304" % largest, "ok")]
    canonical = "reserved:codec frame is not canonical"
    length = "bounds:codec frame decoded length mismatch"
    repeat = "truncated:truncated lossless repeat packet"
    literal = "truncated:truncated lossless literal packet"
    expands, short = "bounds:lossless frame expands past bound", "bounds:lossless decoded length mismatch"
    for name, body, size, answer in (
            ("literal-for-run", "0361616162", 4, canonical), ("run-for-pair", "81610062", 3, canonical),
            ("split-run", "80610161610062", 4, canonical), ("split-literal", "006100620063", 3, canonical),
            ("run-127-and-3", "fe5a825a", 130, canonical), ("repeat-alone", "82", 3, repeat),
            ("second-repeat-alone", "ff5aff", 256, repeat), ("literal-cut", "026162", 3, literal),
            ("literal-alone", "00", 1, literal), ("repeat-expands", "83610062", 3, expands),
            ("literal-expands", "0361626364", 3, expands), ("cut-before-expands", "7f61", 3, literal),
            ("repeat-cut-before-expands", "ff", 3, repeat), ("short", "8261", 4, short),
            ("nothing", "", 1, short), ("more", "82610062", 3, expands)):
        rows.append((name, "verdict frame lossless %s %d" % (_frame(lossless, body, size), size), answer))
    frame = _frame(raw, "6162", 2)
    for name, data_word, expected, answer in (
            ("cut", frame + "/cut:15", 2, "truncated:truncated codec frame"),
            ("empty", "-", 2, "truncated:truncated codec frame"),
            ("magic", frame + flip(0), 2, "bad_magic:codec frame magic does not match codec"),
            ("lossless-magic", frame + "/set:0:" + lossless.hex(), 2,
             "bad_magic:codec frame magic does not match codec"),
            ("version", frame + flip(8), 2, "bad_magic:unsupported codec frame version"),
            ("reserved", frame + flip(11), 2, "reserved:codec frame reserved field is nonzero"),
            ("other-length", frame, 3, length), ("zero", frame + "/set:12:00000000", 0, length),
            ("over", frame + "/set:12:01004000", 4194305, length),
            ("expected-huge", frame, (1 << 32) + 2, length),
            ("short", frame + "/cut:17", 2, "bounds:raw frame length mismatch"),
            ("long", frame + "/add:00", 2, "bounds:raw frame length mismatch"), ("whole", frame, 2, "ok")):
        rows.append(("raw-decode-" + name, "verdict frame raw %s %d" % (data_word, expected), answer))
    rows.append(("raw-magic-in-lossless", "verdict frame lossless %s 2" % frame,
                 "bad_magic:codec frame magic does not match codec"))
    return _none(rows, "frame-")


# ----------------------------------------------------------------------------------------------- Merkle

LEAVES = ("-", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f")
ROOTS = {1: "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
         2: "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
         3: "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
         5: "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
         7: "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
         8: "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328"}
PATHS = {(0, 8): ("96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
                  "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
                  "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4"),
         (2, 3): (ROOTS[2],),
         (6, 7): ("0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a",
                  "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7")}


def _merkle():
    rows = [("root-0", "encode merkle_root", "bounds:merkle tree has no leaves"),
            ("root-200", " ".join(["encode merkle_root"] + [le(4, i).hex() for i in range(200)]), None)]
    for n, root in ROOTS.items():
        rows.append(("root-%d" % n, " ".join(("encode merkle_root",) + LEAVES[:n]), "ok\t" + root))
    outside = "bounds:merkle leaf index is outside the tree"
    wrong = "bounds:merkle audit path has the wrong length"
    for (index, n), path in PATHS.items():
        name = "%d-of-%d" % (index, n)
        leaf = leaf_hash(bytes.fromhex(LEAVES[index].replace("-", ""))).hex()

        def check(at=index, count=n, root=ROOTS[n], path=path, leaf=leaf):
            return " ".join(["verdict merkle_path", leaf, str(at), str(count), root] + list(path))

        rows += [("path-" + name, " ".join(("encode merkle_path", str(index)) + LEAVES[:n]),
                  "\t".join(("ok",) + path)),
                 ("check-" + name, check(), "ok"), ("outside-" + name, check(at=n), outside),
                 ("huge-" + name, check(at=(1 << 64) - 1), outside),
                 ("empty-" + name, check(count=0), outside),
                 ("short-" + name, check(path=path[:-1]), wrong),
                 ("long-" + name, check(path=path + (ROOTS[1],)), wrong),
                 ("root-" + name, check(root=ROOTS[1]), "checksum:merkle root mismatch"),
                 ("leaf-" + name, check(leaf=ROOTS[2]), "checksum:merkle root mismatch")]
    rows += [("path-outside", "encode merkle_path 3 00 10 20", outside),
             ("path-of-nothing", "encode merkle_path 0", outside),
             ("path-0-of-1", "encode merkle_path 0 -", "ok"),
             ("check-0-of-1", "verdict merkle_path %s 0 1 %s" % (ROOTS[1], ROOTS[1]), "ok")]
    return _none(rows, "merkle-")


# -------------------------------------------------------------------------------------------- cut chain

GOLDEN_TIPS = ("9719e6c4c15299bcd372bbc82fa7bd66da1ce6eff0d9e560f88ee950f67a4bdf",
               "01f3e699e6163a5476de16c269e4b42e9101fb16278fe8db9857b3e8d00a07ca",
               "4fed72eb6d5348b472f4c4e9ea2a046d4a7e3036cab6f4b629a68eaa7deed563",
               "074af1e1afbc34306fed857383ce96b331d042f270d176d791b5c3bd456cf05d")


def _cut_chain():
    start = "encode cut_chain %s %s " % (ident(7).hex(), ident(3).hex())
    all_tokens, half = _tokens(*range(1024)), _tokens(*range(256))
    rows = [("golden", start + "flat:256 " + all_tokens, "ok\t" + "".join(GOLDEN_TIPS)),
            ("in-pieces", start + "flat:256 %s - %s %s" % (_tokens(*range(100)), _tokens(*range(100, 513)),
                                                           _tokens(*range(513, 1024))),
             "ok\t-\t-\t%s\t%s" % ("".join(GOLDEN_TIPS[:2]), "".join(GOLDEN_TIPS[2:]))),
            ("partial", start + "flat:257 " + half, "ok\t-"), ("no-push", start + "flat:1", "ok"),
            ("two-tier-as-flat", start + "two-tier:0:1:256 " + all_tokens, "ok\t" + "".join(GOLDEN_TIPS)),
            ("two-tier-head", start + "two-tier:512:256:512 " + all_tokens, None),
            ("513th-cut", start + "flat:1 %s %s" % (_tokens(*range(511)), _tokens(1)), None),
            ("overflow", start + "flat:1 %s %s %s" % (_tokens(*range(513)), _tokens(1), "-"),
             "ok\tbounds:cut chain exceeds 512 cuts\tpoisoned:cut chain deriver is poisoned"
             "\tpoisoned:cut chain deriver is poisoned"),
            ("overflow-keeps-earlier-push", start + "flat:256 %s %s" % (
                half, "-/fill:%d:00" % (4 * 256 * 512)), "ok\t%s\tbounds:cut chain exceeds 512 cuts"
             % GOLDEN_TIPS[0])]
    for policy, message in (("flat:0", "cut stride is zero"), ("two-tier:0:0:0", "cut head stride is zero"),
                            ("two-tier:0:1:0", "cut tail stride is zero"),
                            ("two-tier:5:2:3", "cut head region is not a multiple of the head stride"),
                            ("two-tier:4:2:3", "cut head region is not a multiple of the tail stride")):
        rows.append(("policy-" + policy.replace(":", "-"), start + policy, "semantics:" + message))
    return _none(rows, "cut_chain-")


# -------------------------------------------------------------------------------------------- transform

def _descriptor(*ops):
    return transform.MAGIC + le(2, 1) + le(2, 1) + b"n" + le(2, 1) + b"s" + le(2, len(ops)) + b"".join(ops)


def _permutation(tag, *order):
    return le(2, tag) + le(2, len(order)) + b"".join(le(4, i) for i in order)


PAIR_SWAP, LAYERS = _permutation(1, 1, 0), _permutation(3, 2, 0, 1)
TO_INTERLEAVED, TO_NEOX = (le(2, 6) + le(2, d) + le(4, 4) for d in (1, 2))
PAD_5, PAD_2 = (le(2, 4) + le(8, n) for n in (5, 2))
CAST = le(2, 5) + le(2, 1) + le(2, 2) + bytes(33)


def _run(name, ops, shape, plane, answer):
    return (name, "encode transform_execute %s %s %s" % (_descriptor(*ops).hex(), shape, plane.hex() or "-"),
            answer)


def _transform():
    mismatch = "bounds:transform plane bytes do not match the declared shape"
    rows = [
        _run("head-pairs", [PAIR_SWAP], "2 4 2 1", ramp(0, 16), "ok\t04050607000102030c0d0e0f08090a0b"),
        _run("layers", [LAYERS], "1 1 6 1", b"aabbcc", "ok\t" + b"ccaabb".hex()),
        _run("planes", [_permutation(2, 1, 0)], "2 1 1 2", b"aabb", "ok\t" + b"bbaa".hex()),
        _run("rope", [TO_INTERLEAVED], "1 1 4 1", ramp(10, 4), "ok\t0a0c0b0d"),
        _run("rope-two-bytes", [TO_INTERLEAVED], "1 1 4 2", ramp(0, 8), "ok\t0001040502030607"),
        _run("rope-back", [TO_NEOX], "1 1 4 1", bytes([10, 12, 11, 13]), "ok\t0a0b0c0d"),
        _run("pad", [PAD_5], "1 1 3 1", b"abc", "ok\t6162630000"),
        _run("trim", [PAD_2], "1 1 3 1", b"abc", "ok\t6162"),
        _run("no-ops", [], "1 1 1 1", b"abc", "ok\t616263"),
        _run("there-and-back", [TO_INTERLEAVED, TO_NEOX], "2 3 4 1", ramp(0, 24), "ok\t" + ramp(0, 24).hex()),
        _run("after-trim", [PAD_2, TO_NEOX], "1 1 4 1", ramp(0, 4), mismatch),
        _run("cast", [CAST], "1 1 1 2", b"ab",
             "semantics:transform dtype-cast is not bit-exact; the executor rejects lossy casts"),
        _run("short-plane", [PAD_5], "1 1 4 1", b"abc", mismatch),
        _run("overflow", [PAD_5], "%d 2 1 1" % (1 << 63), b"", "bounds:transform plane byte count overflows"),
        _run("odd-heads", [_permutation(1, 0)], "1 3 2 1", ramp(0, 6),
             "bounds:transform head-pair order does not match the declared kv heads"),
        _run("pair-width", [_permutation(1, 0)], "1 4 1 1", ramp(0, 4),
             "bounds:transform head-pair order does not match the declared kv heads"),
        _run("slabs", [LAYERS], "1 1 4 1", ramp(0, 4),
             "bounds:transform slab count does not divide the plane bytes"),
        _run("rope-dim", [TO_NEOX], "1 1 8 1", ramp(0, 8),
             "bounds:transform rope head dim does not match the declared plane shape")]
    for i, what in enumerate(("tokens", "kv heads", "head dim", "element bytes")):
        shape = " ".join("0" if at >= i else "1" for at in range(4))
        rows.append(_run("zero-%d" % i, [PAD_5], shape, b"", "bounds:transform plane has zero " + what))
    every = _descriptor(PAIR_SWAP, _permutation(3, 1, 2, 0), TO_NEOX, PAD_5, CAST).hex()
    for index, answer in enumerate((PAIR_SWAP.hex(), LAYERS.hex(), TO_INTERLEAVED.hex(), "none", "none")):
        rows.append(("inverse-%d" % index, "encode transform_inverse %s %d" % (every, index),
                     "ok\t" + answer))
    one_rope = ("4b5658464d3100000100" "16007177656e32352d37622d746f2d63616e6f6e6963616c"
                "0a007177656e322e352d3762" "0100" "0600010004000000")
    rows.append(("one-rope", "decode transform " + one_rope, "ok\t" + one_rope))
    return _none(rows, "transform-")


def _transform_refusals():
    def labelled(name, source):
        return transform.MAGIC + le(2, 1) + le(2, len(name)) + name + le(2, len(source)) + source + le(2, 0)

    def rope(direction, dim):
        return le(2, 6) + le(2, direction) + le(4, dim)

    def cast(source, target, marker, scale):
        return le(2, 5) + le(2, source) + le(2, target) + le(1, marker) + scale

    name = "bounds:transform name is outside the v1 bounds"
    source = "bounds:transform source layout is outside the v1 bounds"
    width = "bounds:transform permutation width is outside the v1 bounds"
    pad = "bounds:transform pad-or-trim target is outside the v1 bounds"
    marker = "semantics:transform dtype-cast scale-id marker is outside the v1 bounds"
    presence = "semantics:transform dtype-cast scale-id presence must match fp8e4m3 endpoints"
    dim = "bounds:transform rope-permute head dim is outside the v1 bounds"
    rows = [
        ("magic", transform.MAGIC[:7] + b"1", "bad_magic:invalid canonical object magic"),
        ("version", transform.MAGIC + le(2, 2), "bad_magic:invalid transform descriptor version"),
        ("cut", transform.MAGIC, "truncated:truncated canonical object"),
        ("trailing", _descriptor() + b"\0", "reserved:trailing canonical bytes"),
        ("name-empty", labelled(b"", b"s"), name), ("name-129", labelled(b"n" * 129, b"s"), name),
        ("name-128", labelled(b"n" * 128, b"s" * 128), "ok"),
        ("name-not-ascii", labelled("é".encode(), b"s"), name),
        ("name-not-utf8", labelled(b"\xff", b"s"), "semantics:state name is not UTF-8"),
        ("source-empty", labelled(b"n", b""), source), ("source-129", labelled(b"n", b"s" * 129), source),
        ("source-not-ascii", labelled(b"n", "é".encode()), source), ("no-ops", _descriptor(), "ok"),
        ("64-ops", _descriptor(*[PAD_5] * 64), "ok"),
        ("65-ops", _descriptor(*[PAD_5] * 65), "bounds:transform op count is outside the v1 bounds"),
        ("unknown-op", _descriptor(le(2, 7)), "unknown_enum:unknown transform op 7"),
        ("op-zero", _descriptor(le(2, 0)), "unknown_enum:unknown transform op 0"),
        ("unknown-op-past-the-bound", _descriptor(*[PAD_5] * 65 + [le(2, 9)]),
         "unknown_enum:unknown transform op 9"),
        ("width-0", _descriptor(_permutation(1)), width),
        ("width-16384", _descriptor(_permutation(2, *range(16384))), "ok"),
        ("width-16385", _descriptor(_permutation(2, *range(16385))), width),
        ("index", _descriptor(_permutation(3, 0, 2)),
         "semantics:transform permutation index is outside the permutation width"),
        ("repeat", _descriptor(_permutation(3, 0, 0)),
         "semantics:transform permutation repeats a source index"),
        ("pad-0", _descriptor(le(2, 4) + le(8, 0)), pad),
        ("pad-largest", _descriptor(le(2, 4) + le(8, 1 << 30)), "ok"),
        ("pad-over", _descriptor(le(2, 4) + le(8, (1 << 30) + 1)), pad),
        ("cast-from", _descriptor(cast(4, 1, 0, bytes(32))), "unknown_enum:unknown cast dtype 4"),
        ("cast-to", _descriptor(cast(1, 0, 0, bytes(32))), "unknown_enum:unknown cast dtype 0"),
        ("cast-marker", _descriptor(cast(1, 2, 2, bytes(32))), marker),
        ("cast-hidden-scale", _descriptor(cast(1, 2, 0, ident(7))), marker),
        ("cast-same", _descriptor(cast(2, 2, 0, bytes(32))),
         "semantics:transform dtype-cast endpoints must differ"),
        ("cast-no-scale", _descriptor(cast(1, 3, 0, bytes(32))), presence),
        ("cast-useless-scale", _descriptor(cast(1, 2, 1, ident(7))), presence),
        ("cast-scale", _descriptor(cast(3, 2, 1, ident(7))), "ok"),
        ("cast-zero-scale", _descriptor(cast(3, 2, 1, bytes(32))), "ok"),
        ("rope-direction", _descriptor(rope(3, 4)), "unknown_enum:unknown rope direction 3"),
        ("rope-0", _descriptor(rope(1, 0)), dim), ("rope-odd", _descriptor(rope(1, 3)), dim),
        ("rope-2", _descriptor(rope(1, 2)), "ok"), ("rope-4096", _descriptor(rope(1, 4096)), "ok"),
        ("rope-4098", _descriptor(rope(1, 4098)), dim)]
    return _none([(n, "verdict transform " + data.hex(), answer) for n, data, answer in rows],
                 "transform-decode-")


def _rotation():
    digest = "semantics:rotation frac64 table hash does not match authenticated bytes"
    zero = "semantics:rotation descriptor contains a zero identity"
    rows = [
        ("version", flip(8), "bad_magic:unsupported rotation family version"),
        ("reserved", flip(10), "reserved:rotation family reserved field is nonzero"),
        ("secondary", flip(30), "reserved:rotation family secondary reserved field is nonzero"),
        ("dimension-0", "/set:32:00000000", "bounds:rotation rotary dimension is outside the v1 bounds"),
        ("dimension-odd", flip(32), "bounds:rotation rotary dimension is outside the v1 bounds"),
        ("dimension-large", "/set:32:02100000", "bounds:rotation rotary dimension is outside the v1 bounds"),
        ("dimension-other", flip(32, 2), "bounds:rotation frac64 table does not match rotary dimension"),
        ("table-cut", "/set:100:ffffffff", "truncated:truncated canonical object"),
        ("coefficient-zero", "/set:36:" + "00" * 32, zero), ("model-zero", "/set:68:" + "00" * 32, zero),
        ("table", flip(104), digest), ("digest", flip(616), digest),
        ("trailing", "/add:00", "reserved:trailing canonical bytes"),
        ("cut", "/cut:647", "truncated:truncated canonical object")]
    for i, what in enumerate(("coefficient set", "sincos order", "phase origin", "position convention",
                              "pairing", "denormal policy", "f32 rounding", "f16 cache cast",
                              "operation order")):
        rows.append(("enum-%d" % i, "/set:%d:0200" % (12 + 2 * i),
                     "unknown_enum:unknown rotation %s 2" % what))
    out = [(name, "verdict rotation @rotation" + edits, answer) for name, edits, answer in rows]
    for name, table, answer in (
            ("zero-increment", le(8, 3) + bytes(8),
             "semantics:rotation frac64 table contains a zero increment"),
            ("lifted", le(8, 3 << 32) * 2,
             "semantics:rotation frac64 table is only a lifted 32-bit frequency table"),
            ("small", le(8, 3 << 32) + le(8, 1), "ok")):
        out.append((name, "verdict rotation " + _rotation_bytes(4, table), answer))
    return _none(out, "rotation-")


def _rotation_bytes(dimension, table):
    head = rotation.MAGIC + le(2, 1) + le(2, 0) + le(2, 1) * 9 + le(2, 0) + le(4, dimension)
    return (head + ident(1) + ident(2) + le(4, len(table)) + table + sha256(table)).hex()


# ---------------------------------------------------------------------------------------------- sidecar

def _halves(*bits):
    return struct.pack("<%dH" % len(bits), *bits).hex()


def _sidecar():
    shape = "bounds:stats sidecar shape is outside bounded limits"
    norm = "semantics:stats sidecar key norm is not a finite non-negative value"
    rows = [
        ("fixture", "encode sidecar 4 4 2 " + fixtures.PLANE_BYTES.hex(),
         "ok\t4b56535343310000010000000400000000c0004400ba003e00bc0042000000400400000000417c3f3a4338440200"
         "0300000038440000020000003a430000"),
        ("subnormal", "encode sidecar 1 1 1 " + _halves(1), None),
        ("negative-zero-first", "encode sidecar 2 1 2 " + _halves(0x8000, 0), None),
        ("positive-zero-first", "encode sidecar 2 1 2 " + _halves(0, 0x8000), None),
        ("equal-norms", "encode sidecar 3 1 2 " + _halves(0x3C00, 0xBC00, 0x3C00), None),
        ("more-sinks-than-tokens", "encode sidecar 2 1 8 " + _halves(0x3C00, 0x4000), None),
        ("one-largest", "encode sidecar 1 1 1 " + _halves(0x7BFF), None),
        ("two-largest", "encode sidecar 1 2 1 " + _halves(0x7BFF, 0x7BFF), norm),
        ("rounding", "encode sidecar 2 3 1 " + _halves(0x3555, 0x3666, 0x3777, 0x0401, 0x8002, 0x1234), None),
        ("largest-shape", "encode sidecar 768 512 8 -/fill:786432:3c", None),
        ("tokens-0", "encode sidecar 0 1 1 -", shape), ("tokens-769", "encode sidecar 769 1 1 -", shape),
        ("channels-0", "encode sidecar 1 0 1 -", shape), ("channels-513", "encode sidecar 1 513 1 -", shape),
        ("sinks-0", "encode sidecar 1 1 0 0000", shape), ("sinks-9", "encode sidecar 1 1 9 0000", shape),
        ("bytes", "encode sidecar 1 1 1 00",
         "bounds:stats sidecar source bytes do not match the declared shape")]
    for name, bits in (("infinity", 0x7C00), ("nan", 0xFE01)):
        rows.append((name, "encode sidecar 1 2 1 " + _halves(0, bits),
                     "semantics:stats sidecar source contains a non-finite element"))
    return _none(rows, "sidecar-")


def _sidecar_refusals():
    ranges = "semantics:stats sidecar channel range is not finite and ordered"
    norm = "semantics:stats sidecar key norm is not a finite non-negative value"
    top = "semantics:stats sidecar sink scores are not the exact top-m norms"
    rows = [
        ("long", "/fill:3797:00", "bounds:stats sidecar exceeds the chunk header capacity"),
        ("trailing", "/fill:3796:00", "reserved:trailing canonical bytes"),
        ("version", "/set:8:0200", "bad_magic:unsupported stats sidecar version"),
        ("reserved", "/set:10:0100", "reserved:stats sidecar reserved field is nonzero"),
        ("channels-0", "/set:12:00000000", "bounds:stats sidecar channel count is outside bounds"),
        ("channels-513", "/set:12:01020000", "bounds:stats sidecar channel count is outside bounds"),
        ("minimum-nan", "/set:16:017c", ranges), ("maximum-infinite", "/set:18:007c", ranges),
        ("unordered", "/set:16:0045", ranges), ("signed-zero-range", "/set:28:00000080", "ok"),
        ("tokens-0", "/set:32:00000000", "bounds:stats sidecar token count is outside bounds"),
        ("tokens-769", "/set:32:01030000", "bounds:stats sidecar token count is outside bounds"),
        ("norm-negative", "/set:36:00c1", norm), ("norm-infinite", "/set:36:007c", norm),
        ("norm-nan", "/set:36:ff7f", norm), ("norm-negative-zero", "/set:36:0080", "ok"),
        ("sinks-0", "/set:44:0000", "bounds:stats sidecar sink count is outside bounds"),
        ("sinks-9", "/set:44:0900", "bounds:stats sidecar sink count is outside bounds"),
        ("sink-reserved", "/set:52:0100", "reserved:stats sidecar sink reserved field is nonzero"),
        ("sink-token", "/set:46:02000000", top), ("sink-score", "/set:50:3944", top),
        ("sink-order", "/set:46:020000003a4300000300000038440000", top),
        ("more-sinks-than-tokens", "/cut:32/add:0100000000410200" + "0000000000410000" * 2, top)]
    return _none([(name, "verdict sidecar @sidecar" + edits, answer) for name, edits, answer in rows],
                 "sidecar-decode-")


# ------------------------------------------------------------------------------------- keys, identities

def _keys():
    rows = [Case("key-%s-%d" % (name, epoch), "epochs-7-8", "encode key %s %d" % (name, epoch), None)
            for epoch in (7, 8) for name in keys.KEY_NAMES]
    root = ROOT.hex()
    two_roots = "encode tenant_namespace %s %s %d %s"
    tenant = "ok\t2f9dce2ec3bf28978971c30df73a5352a2208e0fd9151b85aea18600f94f6727"
    operator = fixtures.OPERATOR.hex()
    rows += [Case("key-no-epoch", "fixture", "encode key prefix 8",
                  "not_found:key epoch is outside the readable window")]
    rows += _none([("epoch-7", two_roots % (root, root, 7, operator), tenant),
                   ("epoch-9", two_roots % (root, root, 9, operator), tenant),
                   ("epoch-root-unused", two_roots % (root, ident(98).hex(), 7, operator), tenant),
                   ("epoch-0", two_roots % (root, root, 0, operator), "semantics:key epoch must be nonzero")],
                  "tenant_namespace-")
    return rows


def _identities():
    cut = "encode input_cut @family %s %s " % (MODEL_HEX, PAIRS)
    zero = "semantics:auxiliary identity contains a zero component"
    two_pairs = PAIRS + (ident(1) + ident(2)).hex()
    rows = [
        ("auxiliary-none", "encode auxiliary_root -", None),
        ("auxiliary-one", "encode auxiliary_root " + PAIRS,
         "ok\td3158ae6a3a68c5c15bce285b3772d868908332c376118829f7289266d590cb0"),
        ("auxiliary-twice", "encode auxiliary_root " + PAIRS * 2, None),
        ("auxiliary-two", "encode auxiliary_root " + two_pairs, None),
        ("auxiliary-two-reversed", "encode auxiliary_root " + two_pairs[128:] + PAIRS, None),
        ("auxiliary-zero-value", "encode auxiliary_root " + PAIRS + (ident(1) + bytes(32)).hex(), zero),
        ("cut-4", cut + _tokens(1, 2, 3, 4), None), ("cut-none", cut + "-", None),
        ("cut-255", cut + _tokens(*range(255)), None), ("cut-256", cut + _tokens(*range(256)), None),
        ("cut-257", cut + _tokens(*range(257)), None), ("cut-600", cut + _tokens(*range(600)), None),
        ("cut-large-tokens", cut + _tokens(0xFFFFFFFF, 0), None),
        ("cut-zero-pair", "encode input_cut @family %s %s %s" % (MODEL_HEX, "00" * 64, _tokens(1)), zero),
        ("cut-bad-family", "encode input_cut @family/cut:20 %s - -" % MODEL_HEX,
         "truncated:truncated canonical object"),
        ("content", "encode content_id @family %s %s %s" % (KEY, SPAN, ramp(0, 16).hex()),
         "ok\t044f1371d1f1b47ee76939ce30ca763e80e8c933025cee833ab7fe624473f255"),
        ("content-length", "encode content_id @family %s %s %s" % (KEY, SPAN, ramp(0, 15).hex()),
         "semantics:chunk plaintext does not match its declared span"),
        ("content-no-tokens", "encode content_id @family %s %s/set:8:00 %s" % (KEY, SPAN, ramp(0, 16).hex()),
         "semantics:chunk plaintext does not match its declared span"),
        ("object-key-plain", "encode object_key @family 044f1371d1f1b47ee76939ce30ca763e80e8c933025cee833ab7f"
         "e624473f255 7 raw none none none",
         "ok\tf82101db5aa8610154d29ad7a5e74cfc5ccac4438014b1d237b3be64becf8ad3"),
        ("object-key-encrypted", "encode object_key @family 044f1371d1f1b47ee76939ce30ca763e80e8c933025cee833"
         "ab7fe624473f255 7 raw %s %s none" % (ramp(0xA0, 16).hex(), ramp(0xB0, 12).hex()),
         "ok\ta3efdbbbfee7c81658311d9bc93c104291695474660083e604fd2fa46ae4037f"),
        ("object-key-stats", "encode object_key @family %s 7 lossless none none %s"
         % (ident(5).hex(), ident(6).hex()), None),
        ("object-key-no-epoch", "encode object_key @family %s 8 raw none none none" % ident(5).hex(),
         "not_found:key epoch is outside the readable window"),
        ("namespace", "encode namespace_id " + fixtures.OPERATOR.hex(),
         "ok\t30258b37d8b80b6dc9aa5a43c975e89db57bb235c41031066b445f3e15453e50"),
        ("namespace-empty", "encode namespace_id -", None)]
    out = [Case("id-" + name, "fixture", request, answer) for name, request, answer in rows]
    return out + _none([
        ("model", "encode semantic_model_id " + MODEL_HEX,
         "ok\t30fe53475440d73c431520661e7a22af32f6f6c7f3bdacba0a5b7a85eb1dabab"),
        ("stats-digest", "encode stats_digest @sidecar", None),
        ("stats-digest-cut", "encode stats_digest @sidecar/cut:61", "truncated:truncated canonical object"),
        ("rotation", "encode rotation_id @rotation",
         "ok\t14a6a33b0c39face17deaa3eba8830ef6238145801edf521d7e415d174d60621"),
        ("rotation-abi", "encode rotation_abi %s 14a6a33b0c39face17deaa3eba8830ef6238145801edf521d7e415d174d6"
         "0621" % ident(3).hex(), "ok\t4b5fae03719074842f48a1880f9765422356788a2e62d20b7466175cebbece01"),
        ("restore-chain-1", "encode restore_chain " + ident(1).hex(), None),
        ("restore-chain-3", "encode restore_chain " + (ident(1) + ident(2) + ident(3)).hex(), None),
        ("family-cut", "encode family_id @family/cut:177", "truncated:truncated canonical object"),
        ("manifest-trailing", "encode manifest_id @manifest/add:00", "reserved:trailing canonical bytes")],
        "id-")


# --------------------------------------------------------------------------------- encoders and limits

def _encoders():
    plaintext, box = ramp(0, 16).hex(), "%s %s" % (ramp(0xA0, 16).hex(), ramp(0xB0, 12).hex())
    mismatch = "semantics:chunk plaintext does not match its declared span"

    def encode(family="@family", key=KEY, span=SPAN, epoch=7, plain=plaintext, box="none none", stats="none"):
        return "encode chunk %s %s %s %d %s %s %s" % (family, key, span, epoch, plain, box, stats)

    def span_of(count, size):
        return objects.encode_span(objects.Span(0, count, 0, size)).hex()

    def of_halves(count, stats):
        return encode(family="@sidecar_family", span=span_of(count, 8 * count),
                      plain=fixtures.PLANE_BYTES[:8 * count].hex(), stats=stats)

    narrow = sidecar.encode_sidecar(sidecar.derive_sidecar(4, 2, 1, fixtures.PLANE_BYTES[:16])).hex()
    unlike = "semantics:stats sidecar does not match its chunk"
    capacity = "bounds:stats sidecar exceeds the chunk header capacity"
    inventory = "graph:pack set inventory is not canonical"
    rows = [
        ("chunk-epoch-0", encode(epoch=0), "semantics:chunk key epoch must be nonzero"),
        ("chunk-epoch-8", encode(epoch=8), "not_found:key epoch is outside the readable window"),
        ("chunk-length", encode(plain=plaintext + "00"), mismatch),
        ("chunk-no-tokens", encode(span=span_of(0, 16)), mismatch),
        ("chunk-epoch-before-length", encode(epoch=0, plain="-"),
         "semantics:chunk key epoch must be nonzero"),
        ("chunk-absent-state", encode(key=encode_key(StateKey(1, b"k")).hex()),
         "semantics:chunk state is absent from representation family"),
        ("chunk-codec-version", encode(family="@family/set:143:0200"),
         "codec:unsupported chunk codec version"),
        ("chunk-empty", encode(span=span_of(4, 0), plain="-"),
         "bounds:chunk plaintext must be in 1..=4 MiB"),
        ("chunk-over", encode(span=span_of(4, 4194305), plain="-/fill:4194305:00"),
         "bounds:chunk plaintext must be in 1..=4 MiB"),
        ("chunk-sidecar-empty", encode(stats="-"), capacity),
        ("chunk-sidecar-long", encode(stats="@sidecar/fill:3797:00"), capacity),
        ("chunk-sidecar-invalid", encode(stats="@sidecar/cut:61"), "truncated:truncated canonical object"),
        ("chunk-sidecar-other-dtype", encode(stats="@sidecar"), unlike),
        ("chunk-sidecar-own", of_halves(4, "@sidecar"), None),
        ("chunk-sidecar-other-tokens", of_halves(3, "@sidecar"), unlike),
        ("chunk-sidecar-other-channels", of_halves(4, narrow), unlike),
        ("chunk-family-invalid", encode(family="@family/cut:177"), "truncated:truncated canonical object"),
        ("chunk-exact-page", encode(span=span_of(4, 4080), plain="-/fill:4080:07"), None),
        ("chunk-page-and-byte", encode(span=span_of(4, 4081), plain="-/fill:4081:07"), None),
        ("chunk-tag-opens-page", encode(span=span_of(4, 4080), plain="-/fill:4080:07", box=box), None),
        ("chunk-largest", encode(span=span_of(4, 4194304), plain="-/fill:4194304:07"), None),
        ("pack-epoch-0", "encode pack 7 @manifest/set:44:%s none none" % le(8, 0).hex(),
         "semantics:key epoch must be nonzero"),
        ("pack-invalid", "encode pack 7 @manifest/cut:795 none none", "truncated:truncated canonical object"),
        ("pack-rule", "encode pack 7 @manifest/set:276:%s none none" % le(8, 0).hex(),
         "semantics:input cut identity is invalid"),
        ("pack-no-epoch", "encode pack 8 @manifest none none",
         "not_found:key epoch is outside the readable window"),
        ("set-one", "verdict pack_set @one", "ok\tauthenticated"),
        ("set-missing-chunk", "encode pack_set 7 1 @pack", inventory),
        ("set-other-chunk", "encode pack_set 7 1 @pack @chunk_re", inventory),
        ("set-extra-chunk", "encode pack_set 7 1 @pack @chunk @chunk_re", inventory),
        ("set-chunk-twice", "encode pack_set 7 1 @pack @chunk @chunk", inventory),
        ("set-damaged-pack", "encode pack_set 7 1 @pack%s @chunk" % flip(PAGE),
         "authentication:manifest HMAC authentication failed"),
        ("set-no-epoch", "encode pack_set 8 1 @pack @chunk",
         "not_found:key epoch is outside the readable window")]
    return [Case("encode-" + name, "fixture", request, answer) for name, request, answer in rows]


def _limits():
    counts = "bounds:manifest, family, and schema state counts differ or exceed bounds"
    chunks = "bounds:state chunk count is outside bounds"
    totals = "bounds:manifest restored byte totals are invalid"
    three = objects.encode_manifest(semantic_cases.base()).hex()
    rows = [("exact", three, "3 2 96", "ok"), ("states", three, "2 2 96", counts),
            ("chunks", three, "3 1 96", chunks), ("bytes", three, "3 2 95", totals),
            ("delta", objects.encode_manifest(fixtures.chain("raw", "plain", "plain")[7].manifest).hex(),
             "1 1 32", "ok")]
    rows += _related_manifests()
    return _none([(name, "verdict valid_manifest %s %s" % (data, limits), answer)
                  for name, data, limits, answer in rows], "limits-")


def _related_manifests():
    """A delta on an arbitrary parent, its limits, and the full manifest that compacts it."""
    stage = fixtures.fixture("raw", "plain", "plain")
    parent_cut = fixtures.input_cut(stage.family, [1, 2])
    second = objects.Span(2, 2, 8, 8)
    refs = [objects.ChunkRef(ident(40 + i), ident(50 + i), ident(60 + i), 7, 8, 8192) for i in (0, 1)]
    default = "65536 65536 4398046511104"

    def delta(depth, cut):
        return fixtures.one_state_manifest(stage.family, stage.manifest.cut,
                                           objects.Delta(depth, ident(50), cut), second, refs[1])

    def row(name, manifest, answer):
        return name, objects.encode_manifest(manifest).hex(), default, answer

    stranger = objects.InputCut(parent_cut.token_root, ident(55), 2)
    compacted = fixtures.one_state_manifest(stage.family, stage.manifest.cut, None, objects.Span(0, 2, 0, 8),
                                            refs[0])
    compacted.schema.states[0].spans.append(second)
    compacted.payload[0][1].append(refs[1])
    return [row("delta-depth-7", delta(7, parent_cut), "ok"),
            row("delta-depth-8", delta(8, parent_cut), "graph:delta depth is outside 1..=7"),
            row("delta-other-auxiliary", delta(7, stranger),
                "graph:delta parent cut is not a compatible strict prefix"),
            row("compacted", compacted, "ok")]


def _other_rings():
    return [Case("key-namespace-" + ring, ring, "encode key namespace 7", None)
            for ring in ("other-tenant", "other-root")]
