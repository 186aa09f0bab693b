"""Turns the data files of the kit into cases: what an endpoint is asked, and what it must answer."""

import os
import struct

from . import fixtures, tables
from .case import Case
from .crypto import sha256
from .fixtures import AUXILIARY, MODEL, OPERATOR, SUITES, ident, ramp
from .object_cases import KEY
from .objects import Span, encode_span
from .scalars import CODECS, le, un
from .slots import SLOTS
from .sweeps import Run
from .words import flip, word

DEVELOPMENT_MAGICS = (b"IOKVPK1\0", b"IOKVREC\0", b"IOKVCM1\0", b"IOKVFTR\0", b"IOKVLZ1\0", b"IOKVQ81\0",
                      b"IOKVENC\0")
DEFAULT_LIMITS = "65536 65536 4398046511104"
PAIRS = b"".join(a + b for a, b in AUXILIARY).hex()


def load_values():
    """{table: {(suite, name): bytes}} out of the vector files."""
    return {name: tables.read_values(os.path.join(tables.VECTORS, name + ".tsv"))
            for name in ("production_v1", "extras", "pack_sets")}


def load_slots(values):
    return {slot: values[table][suite, name] for slot, (table, suite, name) in SLOTS.items()}


def _ok(*values):
    return "\t".join(["ok"] + [v if isinstance(v, str) else v.hex() for v in values])


# ------------------------------------------------------------------------------------- production vectors

def production(values):
    """Every value of production_v1, as the answer of the operation that makes it."""
    rows = values["production_v1"]
    out = []
    for suite in SUITES:
        tail = "/".join(suite)
        get = {name: value for (s, name), value in rows.items() if s == "fixture/" + tail}
        out += _fixture("fixture/%s/" % tail, suite, get)
        for s in range(8):
            prefix = "delta-chain/%s/stage-%d/" % (tail, s)
            names = ("manifest", "chunk", "pack", "manifest-id", "plaintext")
            parts = {name: rows["delta-chain/" + tail, "stage-%d/%s" % (s, name)] for name in names}
            # One state in one chunk: the manifest ends in the only reference.
            parts.update(family=get["family"], ref=parts["manifest"][-112:], span=Span(s, 1, 4 * s, 4))
            out += _stage(prefix, parts, _boxes(suite, (0x20 + s, 0x40 + s), (0x60 + s, 0x80 + s)))
    return out


def _boxes(suite, *starts):
    """The SALT and NONCE words of chunk and pack."""
    return ["%s %s" % (ramp(salt, 16).hex(), ramp(nonce, 12).hex()) if mode == "encrypted" else "none none"
            for (salt, nonce), mode in zip(starts, suite[1:])]


def _stage(prefix, parts, boxes):
    chunk, pack, manifest, manifest_id, ref = (parts[name] for name in ("chunk", "pack", "manifest",
                                                                        "manifest-id", "ref"))
    plaintext, family = parts["plaintext"].hex(), parts["family"].hex()
    state = "%s %s %s" % (family, KEY, encode_span(parts["span"]).hex())
    codec = "raw" if un(chunk, 20, 2) == CODECS["raw"] else "lossless"
    header = _ok(str(int(boxes[1] != "none none")), str(un(pack, 24, 8)), str(len(manifest)), "7", ident(1),
                 manifest_id)
    rows = [
        ("chunk", "encode chunk %s 7 %s %s none" % (state, plaintext, boxes[0]), _ok(ref, chunk)),
        ("chunk-decode", "decode chunk %s %s %s" % (state, ref.hex(), word(chunk)), _ok(plaintext, "none")),
        ("chunk_id", "encode content_id %s %s" % (state, plaintext), _ok(ref[:32])),
        ("object_key", "encode object_key %s %s 7 %s %s none" % (family, ref[:32].hex(), codec, boxes[0]),
         _ok(ref[32:64])),
        ("manifest", "decode manifest " + manifest.hex(), _ok(manifest)),
        ("manifest-rules", "verdict valid_manifest %s %s" % (manifest.hex(), DEFAULT_LIMITS), "ok"),
        ("manifest_id", "encode manifest_id " + manifest.hex(), _ok(manifest_id)),
        ("pack", "encode pack 7 %s %s" % (manifest.hex(), boxes[1]), _ok(manifest_id, pack)),
        ("pack-decode", "decode pack 7 " + word(pack), _ok(manifest)),
        ("pack-verify", "decode pack_verify 7 " + word(pack), header),
        ("pack-header", "decode pack_header " + word(pack), header)]
    return [Case(prefix + name, "fixture", request, answer) for name, request, answer in rows]


def _fixture(prefix, suite, get):
    plaintext, family, model = ramp(0, 16), get["family"].hex(), b"".join(MODEL).hex()
    ref = get["chunk_id"] + get["object_key"] + get["object_digest"] + le(8, 7) + le(4, 16) + le(4, 8192)
    parts = dict(get, ref=ref, plaintext=plaintext, span=Span(0, 4, 0, 16))
    parts["manifest-id"] = get["manifest_id"]
    out = _stage(prefix, parts, _boxes(suite, (0xA0, 0xB0), (0xC0, 0xD0)))
    rows = [("state_declaration", "decode declaration " + get["state_declaration"].hex(),
             get["state_declaration"]), ("family", "decode family " + family, get["family"]),
            ("schema", "decode schema " + get["schema"].hex(), get["schema"]),
            ("semantic_id", "encode semantic_model_id " + model, get["semantic_id"]),
            ("family_id", "encode family_id " + family, get["family_id"]),
            ("schema_id", "encode schema_id " + get["schema"].hex(), get["schema_id"]),
            ("namespace_id", "encode namespace_id " + OPERATOR.hex(), get["namespace_id"]),
            ("auxiliary_root", "encode auxiliary_root " + PAIRS, get["auxiliary_root"])]
    for codec in CODECS:
        frame = get[codec + "_frame"]
        rows += [(codec + "_frame", "encode frame %s %s" % (codec, plaintext.hex()), frame),
                 (codec + "_frame-decode", "decode frame %s %s 16" % (codec, frame.hex()), plaintext)]
    rows += [(name, "encode key %s 7" % name[4:], get[name]) for name in get if name.startswith("key/")]
    out += [Case(prefix + name, "fixture", request, _ok(value)) for name, request, value in rows]
    request = "encode input_cut %s %s %s %s" % (family, model, PAIRS, struct.pack("<4I", 1, 2, 3, 4).hex())
    root = get["token_root"]
    out.append(Case(prefix + "token_root", "fixture", request,
                    _ok(root, get["auxiliary_root"], "4", "4:0:" + root.hex())))
    return out


# ------------------------------------------------------------------------------------------------- extras

def extras(values):
    """Every value of extras.tsv, as the answer of the operation that makes it."""
    rows, production_rows = values["extras"], values["production_v1"]
    root = ident(99).hex()
    singles = [
        ("rotation", "descriptor", "encode rotation_qwen25 " + ident(7).hex()),
        ("rotation", "identity", "encode rotation_id " + rows["rotation", "descriptor"].hex()),
        ("rotation", "bound_abi_of_id3",
         "encode rotation_abi %s %s" % (ident(3).hex(), rows["rotation", "identity"].hex())),
        ("namespace", "store_tenant_alpha_root99",
         "encode tenant_namespace %s %s 7 %s" % (root, root, OPERATOR.hex()))]
    singles += [(kind, name, "decode %s %s" % (kind, rows[kind, name].hex())) for kind, name in (
        ("rotation", "descriptor"), ("transform", "every_op"), ("transform", "one_rope"))]
    singles += [("transform", name + "_id", "encode transform_id " + rows["transform", name].hex())
                for name in ("every_op", "one_rope")]
    singles += [("packbits", name, "encode frame lossless " + plaintext.hex())
                for name, plaintext in fixtures.PACKETS.items()]
    out = [Case("%s/%s" % (suite, name), "none", request, _ok(rows[suite, name]))
           for suite, name, request in singles]
    tips = b"".join(rows["cut-chain", "flat256_%d" % i] for i in range(4))
    out.append(Case("cut-chain/flat256", "none", "encode cut_chain %s %s flat:256 %s" % (
        ident(7).hex(), ident(3).hex(), struct.pack("<1024I", *range(1024)).hex()), _ok(tips)))
    cut = "encode input_cut %s %s " % (production_rows["fixture/raw/plain/plain", "family"].hex(),
                                       b"".join(MODEL).hex())
    out.append(Case("prefix/empty", "fixture", cut + "- -", _ok(
        rows["prefix", "empty_tokens_empty_aux_root"], rows["prefix", "empty_aux_root"], "0")))
    nodes = [(256, 1, "node_256_reusable"), (512, 1, "node_512_reusable"), (600, 0, "node_600_partial")]
    words = ["%d:%d:%s" % (count, full, rows["prefix", name].hex()) for count, full, name in nodes]
    out.append(Case("prefix/600", "fixture", cut + PAIRS + " " + struct.pack("<600I", *range(600)).hex(), _ok(
        rows["prefix", "node_600_partial"], production_rows["fixture/raw/plain/plain", "auxiliary_root"],
        "600", *words)))
    return out + _sidecar({name: value for (suite, name), value in rows.items() if suite == "sidecar"})


def _sidecar(get):
    family, stats, plaintext = get["family"].hex(), get["sidecar"], get["plaintext"].hex()
    state = "%s %s %s" % (family, KEY, encode_span(Span(0, 4, 0, 32)).hex())
    ref = get["chunk_id"] + get["object_key"] + get["object_digest"] + le(8, 7) + le(4, 32) + le(4, 8192)
    rows = [("sidecar", "encode sidecar 4 4 2 " + plaintext, _ok(stats)),
            ("sidecar-decode", "decode sidecar " + stats.hex(), _ok(stats)),
            ("family_id", "encode family_id " + family, _ok(get["family_id"])),
            ("chunk_id", "encode content_id %s %s" % (state, plaintext), _ok(get["chunk_id"])),
            ("chunk", "encode chunk %s 7 %s none none %s" % (state, plaintext, stats.hex()),
             _ok(ref, get["chunk"])),
            ("chunk-decode", "decode chunk %s %s %s" % (state, ref.hex(), word(get["chunk"])),
             _ok(plaintext, stats)),
            ("object_key", "encode object_key %s %s 7 raw none none %s" % (
                family, get["chunk_id"].hex(), sha256(stats).hex()), _ok(get["object_key"]))]
    return [Case("sidecar/" + name, "fixture", request, answer) for name, request, answer in rows]


# --------------------------------------------------------------------------------------- the other corpora

def pack_sets(values):
    """The worked examples: written, opened record by record, verified."""
    rows = values["production_v1"]
    out = []
    for name, suite, stages, level in (("one", "fixture/raw/plain/plain", [""], "integrity"),
                                       ("chain3", "delta-chain/raw/plain/plain", range(3), "integrity"),
                                       ("chain8", "delta-chain/lossless/encrypted/encrypted", range(8),
                                        "framing")):
        prefixes = ["stage-%d/" % s if name != "one" else "" for s in stages]
        packs, chunks = ([rows[suite, prefix + part] for prefix in prefixes] for part in ("pack", "chunk"))
        # The writer takes chunks in any order.
        files = [word(data) for data in packs + chunks[::-1]]
        value = values["pack_sets"]["pack-set", name]
        out += [Case(name + "-write", "fixture", "encode pack_set 7 %d %s" % (len(packs), " ".join(files)),
                     _ok(value)),
                Case(name + "-keys", "fixture", "verdict pack_set @" + name, _ok("authenticated")),
                Case(name + "-no-keys", "none", "verdict pack_set @" + name, _ok(level))]
        records = [pair for both in zip(chunks, packs) for pair in zip(("1", "2"), both)]
        for ring in ("fixture", "none"):
            out += [Case("%s-record-%d-%s" % (name, i, ring), ring,
                         "decode pack_set_record @%s %d" % (name, i), _ok(kind, data))
                    for i, (kind, data) in enumerate(records)]
    return out


def rejections():
    """rejections.tsv: a mutation of a fixture, and the category it must be refused with."""
    out = []
    for case, kind, field, operation, offset, value, category in tables.read(
            os.path.join(tables.KIT, "rejections.tsv")):
        number = int(value)
        edit = {"truncate": "/cut:" + offset, "xor": flip(int(offset), number & 255),
                "append-zero": "/add:00",
                "set-u8": "/set:%s:%s" % (offset, le(1, number & 255).hex()),
                "set-u16": "/set:%s:%s" % (offset, le(2, number).hex()),
                "legacy-magic": "/set:0:" + DEVELOPMENT_MAGICS[number % 7].hex()}[operation]
        slot = {"state_declaration": "declaration"}.get(field, field)
        request = {"state": "verdict declaration @%s%s", "family": "verdict valid_family @%s%s",
                   "schema": "verdict schema @%s%s",
                   "manifest": "verdict valid_manifest @%s%s " + DEFAULT_LIMITS}[kind] % (slot, edit)
        out.append(Case(case, "none", request, category + ":"))
    return out


def semantic():
    """semantic.tsv: one manifest or more per rule."""
    return [Case("%s %s" % (rule, name), "none", "verdict valid_manifest %s %s" % (manifest, DEFAULT_LIMITS),
                 verdict)
            for rule, name, verdict, manifest in tables.read(os.path.join(tables.KIT, "semantic.tsv"))]


def load_sweeps():
    """{sweep name: runs} of sweeps.tsv."""
    out = {}
    for name, operation, first, last, answer in tables.read(os.path.join(tables.VECTORS, "sweeps.tsv")):
        out.setdefault(name, []).append(Run(operation, int(first), int(last), answer))
    return out


def corpus(path):
    return tables.read_cases(os.path.join(tables.KIT, path))


def agrees(answer, expected):
    """Whether an answer is the expected one.

    One that ends in a colon names the category alone, and of category canonical only that is compared.
    """
    if expected.endswith(":") or expected.startswith("canonical:"):
        return answer.partition(":")[0] == expected.partition(":")[0]
    return answer == expected
