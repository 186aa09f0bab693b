"""Pack set cases: damage that checksums catch, and forgeries with root, HMAC and seal made good again."""

import copy
import dataclasses

from . import chunk, crypto, fixtures, merkle, pack, pack_set
from .case import Case
from .fixtures import EPOCH, KEYS, RING, ROOT, TENANT, ident, ramp
from .keys import derive_schedule
from .pack_set import CHUNK, PACK, Record
from .rings import ring
from .scalars import PAGE, ZERO_ID, le, un
from .words import difference, flip, word

NOT_CANONICAL = "graph:pack set inventory is not canonical"
NOT_ITS_RECORD = "graph:pack set entry does not describe its record"
BAD_PARENT = "authentication:manifest parent is incompatible with its authenticated child"
NO_EPOCH = "not_found:key epoch is outside the readable window"
LAYOUT = "bounds:pack set inventory is outside bounds"
GAPS = "bounds:pack set records are not contiguous"
NO_CHAIN = "graph:pack set packs are not one chain"


def cases():
    """All of them, in the order of the checks."""
    sets = fixtures.pack_sets()
    rows = _damage(sets["one"]) + _two_faults() + _key_rings() + _forged_footers(sets["one"])
    rows += _forged_entries(sets["one"], sets["chain3"]) + _compositions() + _wrong_keys()
    return rows + _mixed_epochs() + _parts(sets) + _proofs(sets)


def _both(name, data_word, answer, kind="pack_set"):
    """The same answer with keys and without."""
    request = "verdict %s %s" % (kind, data_word)
    return [Case(name + "-keys", "fixture", request, answer),
            Case(name + "-no-keys", "none", request, answer)]


def _damage(one):
    rows = []
    footer = len(one) - PAGE
    damages = [
        ("step-1-short", "@one/cut:28671", "truncated:truncated pack set"),
        ("step-1-empty", "-", "truncated:truncated pack set"),
        ("step-2-magic", "@one" + flip(0), "bad_magic:invalid pack set magic"),
        ("step-3-version", "@one" + flip(8), "bad_magic:invalid pack set header contract"),
        ("step-3-header-bytes", "@one" + flip(10), "bad_magic:invalid pack set header contract"),
        ("step-3-alignment", "@one" + flip(14), "bad_magic:invalid pack set header contract"),
        ("step-4-flags", "@one" + flip(16), "reserved:unknown pack set flags"),
        ("step-5-zero-word", "@one" + flip(20), "reserved:pack set header reserved bytes are nonzero"),
        ("step-5-tail", "@one" + flip(4095, 128), "reserved:pack set header reserved bytes are nonzero"),
        ("step-6-cut", "@one/cut:32767", "truncated:pack set does not end with its commit footer"),
        ("step-6-page-cut", "@one/cut:28672", "truncated:pack set does not end with its commit footer"),
        ("step-6-byte-after", "@one/add:00", "truncated:pack set does not end with its commit footer"),
        ("step-6-page-after", "@one/fill:4096:00", "truncated:pack set does not end with its commit footer"),
        ("step-7-version", "@one" + flip(footer + 8), "bad_magic:invalid pack set footer contract"),
        ("step-7-footer-bytes", "@one" + flip(footer + 11), "bad_magic:invalid pack set footer contract"),
        ("step-8-first-zero", "@one" + flip(footer + 12),
         "reserved:pack set footer reserved bytes are nonzero"),
        ("step-8-second-zero", "@one" + flip(footer + 63),
         "reserved:pack set footer reserved bytes are nonzero"),
        ("step-8-tail", "@one" + flip(footer + 224), "reserved:pack set footer reserved bytes are nonzero"),
        ("step-9-count", "@one" + flip(footer + 16), "checksum:pack set seal mismatch"),
        ("step-9-hmac", "@one" + flip(footer + 160), "checksum:pack set seal mismatch"),
        ("step-12-tenant", "@one" + flip(32), "checksum:pack set header digest mismatch"),
        ("step-12-digest", "@one" + flip(64), "checksum:pack set header digest mismatch"),
        ("step-16-padding", "@one" + flip(24832), "reserved:pack set inventory padding is nonzero"),
        ("step-17-entry", "@one" + flip(24576, 2), "checksum:pack set merkle root mismatch"),
        ("r1-padding", "@one" + flip(21276), "reserved:pack set record padding is nonzero"),
        ("r2-chunk", "@one" + flip(4096), "checksum:pack set record digest mismatch"),
        ("r2-pack", "@one" + flip(12288), "checksum:pack set record digest mismatch"),
    ]
    for name, data_word, answer in damages:
        rows += _both(name, data_word, answer)
    return rows


# Two bytes of `one`, each xored, and the verdict that comes first.
TWO_FAULTS = [
    ((100, 1), (28672, 1), "reserved:pack set header reserved bytes are nonzero"),
    ((64, 1), (28680, 1), "bad_magic:invalid pack set footer contract"),
    ((28704, 1), (28900, 1), "reserved:pack set footer reserved bytes are nonzero"),
    ((64, 1), (28864, 1), "checksum:pack set seal mismatch"),
    ((28832, 1), (24832, 1), "checksum:pack set seal mismatch"),
    ((64, 1), (24576, 2), "checksum:pack set header digest mismatch"),
    ((24576, 2), (24832, 1), "reserved:pack set inventory padding is nonzero"),
    ((24576, 2), (4096, 1), "checksum:pack set merkle root mismatch"),
    ((12288, 1), (21276, 1), "reserved:pack set record padding is nonzero"),
    ((4096, 1), (21276, 1), "checksum:pack set record digest mismatch"),
]


def _two_faults():
    rows = []
    for i, (first, second, answer) in enumerate(TWO_FAULTS):
        rows += _both("two-faults-%d" % i, "@one" + flip(*first) + flip(*second), answer)
    return rows


def _key_rings():
    return [Case("step-15-" + name, name, "verdict pack_set @one", answer) for name, answer in (
        ("other-tenant", "authentication:pack set tenant mismatch"), ("epoch-8", NO_EPOCH),
        ("other-root", "authentication:pack set HMAC authentication failed"))]


def forge(data, fields=(), entries=(), fix_root=True):
    """Overwrite footer fields {offset: bytes} and entry fields (index, offset, bytes), then seal again."""
    footer, body = bytearray(data[-PAGE:]), bytearray(data[:-PAGE])
    start, size = un(footer, 24, 8), un(footer, 32, 8)
    for index, offset, value in entries:
        at = start + 128 * index + offset
        body[at:at + len(value)] = value
    if fix_root:
        footer[96:128] = merkle.root([bytes(body[at:at + 128]) for at in range(start, start + size, 128)])
    for offset, value in dict(fields).items():
        footer[offset:offset + len(value)] = value
    return bytes(body) + pack_set.seal_footer(bytes(footer[:160]), KEYS)


def _forged_footers(one):
    rows = []
    for name, fields, answer in (
            ("step-10-longer", {40: le(8, 1 << 63)}, "bounds:pack set length mismatch"),
            ("step-10-shorter", {40: le(8, len(one) - PAGE)}, "bounds:pack set length mismatch"),
            ("step-11-count-huge", {16: le(8, 1 << 63)}, LAYOUT),
            ("step-11-count-one", {16: le(8, 1), 32: le(8, 128)}, LAYOUT),
            ("step-11-count-over", {16: le(8, (1 << 20) + 1), 32: le(8, 128 * ((1 << 20) + 1))}, LAYOUT),
            ("step-11-bytes", {32: le(8, 255)}, LAYOUT),
            ("step-11-bytes-wrap", {16: le(8, 2), 32: le(8, (1 << 63) + 256)}, LAYOUT),
            ("step-11-unaligned", {24: le(8, 24577)}, LAYOUT),
            ("step-11-offset", {24: le(8, 20480)}, LAYOUT),
            ("step-11-no-room", {16: le(8, 1 << 20), 32: le(8, 128 << 20)}, LAYOUT),
            ("step-13-epoch", {48: le(8, 8)}, "bounds:pack set footer binding mismatch"),
            ("step-13-digest", {128: b"\1" * 32}, "bounds:pack set footer binding mismatch"),
            ("step-25-head", {64: b"\1" * 32}, "graph:pack set does not end with its head pack")):
        rows += _both(name, difference("@one", one, forge(one, fields)), answer)
    stages = [fixtures.fixture("raw", "plain", "plain")]
    for name, tenant, epoch, answer in (
            ("step-14-epoch", TENANT, 0, "semantics:key epoch must be nonzero"),
            ("step-14-tenant", ZERO_ID, EPOCH, "semantics:tenant namespace is zero"),
            ("step-14-both", ZERO_ID, 0, "semantics:key epoch must be nonzero")):
        data = pack_set.assemble(tenant, epoch, KEYS, _records(stages))
        rows += _both(name, difference("@one", one, data), answer)
    return rows


def _records(stages):
    """The canonical records of a chain of one-chunk stages."""
    out = []
    for stage in stages:
        out.append(_chunk_record(stage))
        out.append(_pack_record(stage))
    return out


def _chunk_record(stage):
    return Record(CHUNK, stage.chunk, stage.ref.key_epoch, stage.ref.object_key, stage.ref.content_id)


def _pack_record(stage):
    return Record(PACK, stage.pack, stage.manifest.key_epoch, stage.manifest_id,
                  pack_set.parent_of(stage.manifest))


def _forged_entries(one, three):
    rows = []
    ones = b"\1" * 32
    zero = "semantics:pack set entry contains a zero identity"
    reserved = "reserved:pack set entry reserved field is nonzero"
    size = "bounds:pack set record size is outside bounds"
    digest = "checksum:pack set record digest mismatch"
    for name, edit, answer in (
            ("step-18-kind-3", (0, 0, le(2, 3)), "unknown_enum:unknown pack set record kind 3"),
            ("step-18-kind-0", (1, 0, le(2, 0)), "unknown_enum:unknown pack set record kind 0"),
            ("step-18-kind-high", (0, 0, le(2, 257)), "unknown_enum:unknown pack set record kind 257"),
            ("step-19-first", (0, 2, b"\1"), reserved), ("step-19-last", (0, 7, b"\1"), reserved),
            ("step-20-epoch", (0, 24, bytes(8)), zero), ("step-20-identity", (1, 32, bytes(32)), zero),
            ("step-20-digest", (0, 64, bytes(32)), zero), ("step-20-relation", (0, 96, bytes(32)), zero),
            ("step-21-overlap", (1, 8, le(8, PAGE)), GAPS), ("step-21-gap", (0, 8, le(8, 2 * PAGE)), GAPS),
            ("step-22-chunk-small", (0, 16, le(8, PAGE)), size),
            ("step-22-chunk-unaligned", (0, 16, le(8, 8193)), size),
            ("step-22-chunk-large", (0, 16, le(8, 4235296 // PAGE * PAGE + PAGE)), size),
            ("step-22-pack-small", (1, 16, le(8, 8191)), size),
            ("step-22-pack-large", (1, 16, le(8, (256 << 20) + 16 + 8193)), size),
            ("step-22-pack-huge", (1, 16, le(8, 1 << 63)), size),
            ("step-23-first-not-zero", (1, 96, ones), NO_CHAIN),
            ("step-24-short", (1, 16, le(8, 8192)), GAPS),
            ("step-24-long", (1, 16, le(8, 12289)), GAPS),
            ("step-25-last-is-chunk", (1, 0, le(2, 1) + bytes(6) + le(8, 12288) + le(8, 12288) + le(8, 7)
                                       + ones * 3), "graph:pack set does not end with its head pack"),
            ("r2-size", (1, 16, le(8, 8987)), digest), ("r2-digest", (1, 64, ones), digest),
            ("r3-chunk-key", (0, 32, ones), NOT_ITS_RECORD),
            ("r3-chunk-content", (0, 96, ones), NOT_ITS_RECORD),
            ("r3-chunk-epoch", (0, 24, le(8, 8)), NOT_ITS_RECORD),
            ("r3-pack-epoch", (1, 24, le(8, 8)), NOT_ITS_RECORD)):
        rows += _both(name, difference("@one", one, forge(one, entries=[edit])), answer)
    unrooted = forge(one, entries=[(0, 96, ones)], fix_root=False)
    rows += _both("step-17-root", difference("@one", one, unrooted),
                  "checksum:pack set merkle root mismatch")
    rows += _both("step-23-parent", difference("@chain3", three, forge(three, entries=[(3, 96, ones)])),
                  NO_CHAIN)
    renamed = forge(one, {64: ones}, [(1, 32, ones)])
    rows += _both("r3-pack-id", difference("@one", one, renamed), NOT_ITS_RECORD)
    nine = [Record(PACK, bytes(2 * PAGE), EPOCH, ident(i + 1), ident(i) if i else ZERO_ID) for i in range(9)]
    rows += _both("step-23-ninth-pack", word(pack_set.assemble(TENANT, EPOCH, KEYS, nine)), NO_CHAIN)
    rows += _both("r3-magic-eighth-pack", word(pack_set.assemble(TENANT, EPOCH, KEYS, nine[:8])),
                  NOT_ITS_RECORD)
    return rows + _forged_headers()


def _forged_headers():
    """Entries true to the bytes, over objects whose own headers say something else."""
    stage = fixtures.fixture("raw", "plain", "plain")
    rows = []
    for name, index, offset, value in (
            ("chunk-magic", 0, 0, b"\0"), ("chunk-object-bytes", 0, 36, le(4, 4096)),
            ("chunk-tenant", 0, 48, b"\2"), ("pack-magic", 1, 0, b"\0"),
            ("pack-stored-bytes", 1, 24, le(8, (1 << 64) - 1)), ("pack-tenant", 1, 56, b"\2")):
        records = _records([stage])
        data = bytearray(records[index].data)
        data[offset:offset + len(value)] = value
        records[index] = records[index]._replace(data=bytes(data))
        forged = pack_set.assemble(TENANT, EPOCH, KEYS, records)
        rows += _both("r3-" + name, difference("@one", fixtures.set_of([stage]), forged), NOT_ITS_RECORD)
    return rows


def _repacked(stage, edit):
    """The stage with its manifest edited and packed again, whatever the rules say of it."""
    manifest = copy.deepcopy(stage.manifest)
    edit(manifest)
    manifest_id, data = pack.wrap_manifest(pack.encode_manifest(manifest), manifest.tenant,
                                           manifest.key_epoch, KEYS, stage.pack_box)
    return stage._replace(manifest=manifest, manifest_id=manifest_id, pack=data)


def _compositions():
    """Valid objects, wrongly put together."""
    stages = fixtures.chain("raw", "plain", "plain")[:3]
    rows = []

    def add(name, records, answer):
        rows.extend(_both(name, word(pack_set.assemble(TENANT, EPOCH, KEYS, records)), answer))

    add("step-23-base-left-out", _records(stages[1:]), NO_CHAIN)
    add("step-23-two-bases", _records([stages[0], stages[0]]), NO_CHAIN)

    def deeper(manifest):
        manifest.schema.delta.depth = 2

    add("d-depth", _records([stages[0], _repacked(stages[1], deeper)]), BAD_PARENT)

    def other_cut(manifest):
        manifest.schema.delta.parent_cut.token_root = ident(77)

    add("d-parent-cut", _records([stages[0], _repacked(stages[1], other_cut)]), BAD_PARENT)

    def other_model(manifest):
        manifest.model = manifest.model[:4] + (ident(15),)

    add("d-model", _records([stages[0], _repacked(stages[1], other_model)]), BAD_PARENT)

    def other_page(manifest):
        manifest.family.page_size_tokens = 128

    add("d-family", _records([stages[0], _repacked(stages[1], other_page)]), BAD_PARENT)

    def later_epoch(manifest):
        manifest.key_epoch = 8

    child = _repacked(stages[1], later_epoch)
    child = child._replace(pack=pack.wrap_manifest(pack.encode_manifest(child.manifest), TENANT, 8,
                                                   derive_schedule(ROOT, ROOT, TENANT, 8))[1])
    data_word = word(pack_set.assemble(TENANT, EPOCH, KEYS, _records([stages[0], child])))
    rows.append(Case("d-epoch-keys", "epochs-7-8", "verdict pack_set " + data_word, BAD_PARENT))
    rows.append(Case("d-epoch-no-keys", "none", "verdict pack_set " + data_word, BAD_PARENT))
    records = _records(stages)
    add("e-chunks-left-out", [r for r in records if r.kind == PACK], NOT_CANONICAL)
    add("e-last-chunk-left-out", records[:4] + records[5:], NOT_CANONICAL)
    add("e-chunk-too-many", [records[2]] + records[:2] + records[2:4], NOT_CANONICAL)
    add("e-chunks-after-packs", [records[1], records[0]] + records[2:], NOT_CANONICAL)
    add("e-chunk-twice", [records[0]] + records, NOT_CANONICAL)
    resized = _repacked(stages[0], lambda m: setattr(m.payload[0][1][0], "object_bytes", 3 * PAGE))
    add("e-reference-size", _records([resized]), NOT_CANONICAL)
    add("c-manifest-rule", _records([_repacked(stages[0], lambda m: setattr(m.schema.groups[0], "id", 0))]),
        "semantics:atomic groups are not unique canonical order")
    add("c-manifest-bytes", [records[0], _wrapped_garbage(stages[0])],
        "bad_magic:invalid canonical object magic")
    return rows + _forged_chunks(stages[0])


def _wrapped_garbage(stage):
    manifest_id, data = pack.wrap_manifest(bytes(100), TENANT, EPOCH, KEYS)
    return Record(PACK, data, EPOCH, manifest_id, pack_set.parent_of(stage.manifest))


def _forged_chunks(stage):
    """A chunk that its manifest, its entry and its digests agree on, yet is no chunk of theirs."""
    rows = []

    def add(name, edit, answer):
        data = bytearray(stage.chunk)
        edit(data)
        data[204:236] = bytes(32)
        data[204:236] = crypto.sha256(data[:PAGE])
        data = bytes(data)
        ref = dataclasses.replace(stage.ref, stored_digest=crypto.sha256(data))
        renamed = _repacked(stage, lambda m: m.payload.__setitem__(0, (m.payload[0][0], [ref])))
        forged = renamed._replace(chunk=data, ref=ref)
        rows.extend(_both(name, word(pack_set.assemble(TENANT, EPOCH, KEYS, _records([forged]))), answer))

    def other_family(data):
        data[80] ^= 1

    def other_codec(data):
        data[20] = 2

    def wrong_frame(data):
        data[PAGE + 12] ^= 1

    add("f-family", other_family, "authentication:chunk namespace, family, or epoch mismatch")
    add("f-codec", other_codec, "semantics:chunk codec does not match representation family")
    add("f-frame", wrong_frame, "bounds:codec frame decoded length mismatch")
    return rows


def _wrong_keys():
    """Objects under another root: only a reader with keys can tell."""
    other = ring("other-root").schedule(EPOCH)
    stage = fixtures.fixture("raw", "plain", "plain")
    rows = []

    def add(name, records, answer):
        request = "verdict pack_set " + word(pack_set.assemble(TENANT, EPOCH, KEYS, records))
        rows.append(Case(name + "-keys", "fixture", request, answer))
        rows.append(Case(name + "-no-keys", "none", request, "ok\tintegrity"))

    packed = pack.wrap_manifest(pack.encode_manifest(stage.manifest), TENANT, EPOCH, other)[1]
    add("c-foreign-pack", _records([stage._replace(pack=packed)]),
        "authentication:manifest HMAC authentication failed")
    ref, data = chunk.encode_chunk(stage.plaintext, TENANT, stage.placement, EPOCH, other)
    foreign = _repacked(stage, lambda m: m.payload.__setitem__(0, (m.payload[0][0], [ref])))
    add("f-foreign-chunk", _records([foreign._replace(chunk=data, ref=ref)]),
        "authentication:chunk identity or object key mismatch")
    return rows


def _mixed_epochs():
    """A set of epoch 9, its pack of epoch 8, the pack's chunk of epoch 7."""
    wide = ring("epochs-7-8-9")
    stage = fixtures.fixture("raw", "encrypted", "encrypted")
    manifest = dataclasses.replace(stage.manifest, key_epoch=8)
    manifest_id, data = pack.encode_pack(manifest, wide.schedule(8), (ramp(0xC0, 16), ramp(0xD0, 12)))
    stage = stage._replace(manifest=manifest, manifest_id=manifest_id, pack=data)
    request = "verdict pack_set " + word(pack_set.assemble(TENANT, 9, wide.schedule(9), _records([stage])))
    return [Case("mixed-" + name, name, request, answer) for name, answer in (
        ("epochs-7-8-9", "ok\tauthenticated"), ("epochs-8-9", NO_EPOCH), ("epochs-7-9", NO_EPOCH),
        ("epochs-7-8", NO_EPOCH), ("none", "ok\tframing"))]


def _parts(sets):
    """Opening, single records and the footer alone."""
    rows = []
    for name, data in sets.items():
        opened = pack_set.open_set(data, RING)
        inventory = b"".join(map(pack_set.encode_entry, opened.entries)).hex()
        answer = "\t".join(["ok", opened.tenant.hex(), str(opened.key_epoch), opened.head.hex(),
                           opened.root.hex(), inventory])
        for keys in ("fixture", "none"):
            rows.append(Case("open-%s-%s" % (name, keys), keys, "decode pack_set_open @" + name, answer))
            rows.append(Case("footer-%s-%s" % (name, keys), keys,
                             "verdict pack_set_footer " + word(data[-PAGE:]), "ok"))
    one = sets["one"]
    rows.append(Case("open-damaged-record", "fixture", "verdict pack_set_open @one" + flip(4096), "ok"))
    for index in (0, 1):
        damaged = "verdict pack_set_record @one%s %d" % (flip(4096), index)
        rows.append(Case("record-%d-beside-damage" % index, "fixture", damaged,
                         "ok" if index else "checksum:pack set record digest mismatch"))
    footer = word(one[-PAGE:])
    for keys, answer in (("other-root", "authentication:pack set HMAC authentication failed"),
                         ("epoch-8", NO_EPOCH), ("other-tenant",
                                                 "authentication:pack set HMAC authentication failed")):
        rows.append(Case("footer-" + keys, keys, "verdict pack_set_footer " + footer, answer))
    for name, offset, answer in (
            ("magic", 0, "truncated:pack set does not end with its commit footer"),
            ("contract", 8, "bad_magic:invalid pack set footer contract"),
            ("reserved", 300, "reserved:pack set footer reserved bytes are nonzero"),
            ("seal", 200, "checksum:pack set seal mismatch")):
        rows += _both("footer-" + name, footer + flip(offset), answer, "pack_set_footer")
    layout = word(forge(one, {24: le(8, 20480)})[-PAGE:])
    return rows + _both("footer-layout", layout, LAYOUT, "pack_set_footer")


def _proofs(sets):
    rows = []
    for name, index in (("one", 0), ("one", 1), ("chain3", 3), ("chain8", 15)):
        proof = pack_set.prove(sets[name], index)
        rows.append(Case("proof-make-%s-%d" % (name, index), "fixture",
                         "encode pack_set_proof @%s %d" % (name, index), "ok\t" + proof.hex()))
        rows += _both("proof-%s-%d" % (name, index), proof.hex() + " none", "ok", "pack_set_proof")
    rows.append(Case("proof-make-outside", "fixture", "encode pack_set_proof @one 2",
                     "bounds:merkle leaf index is outside the tree"))
    rows += _proof_texts(pack_set.prove(sets["one"], 0))
    return rows + _forged_proofs(sets["one"])


def _proof_texts(proof):
    rows = []
    not_canonical = "validation:JSON is not in the canonical compact sorted-key encoding"
    refused = "canonical:"
    for name, text, answer in (
            ("space", proof + b" ", not_canonical), ("escape", proof.replace(b'"e', b'"\\u0065', 1),
                                                     not_canonical),
            ("order", b'{"index":0,' + proof[1:].replace(b'"index":0,', b""), not_canonical),
            ("empty", b"", "validation:JSON length 0 is outside 1..=65536"),
            ("long", b" " * 65537, "validation:JSON length 65537 is outside 1..=65536"),
            ("unknown-member", proof[:-1] + b',"z":0}', refused),
            ("missing-member", proof.replace(b'"index":0,', b""), refused),
            ("kind", proof.replace(b"proof.v1", b"proof.v2"), refused),
            ("index-text", proof.replace(b'"index":0', b'"index":"0"'), refused),
            ("index-float", proof.replace(b'"index":0', b'"index":0.0'), refused),
            ("upper-case", proof.replace(b"4b5653434d31", b"4B5653434D31"), refused),
            ("short-entry", proof.replace(b'"entry":"01', b'"entry":"'), refused),
            ("long-path", proof.replace(b'"path":[', b'"path":[' + b'"%s",' % (b"00" * 32) * 20), refused),
            ("not-an-object", b"[]", refused)):
        rows += _both("proof-text-" + name, (word(text) if len(text) > 60000 else text.hex() or "-")
                      + " none", answer, "pack_set_proof")
    return rows


def _forged_proofs(one):
    rows = []
    proof = pack_set.prove(one, 0)
    mismatch = "checksum:merkle root mismatch"

    def add(name, text, answer, record="none"):
        rows.extend(_both("proof-" + name, text.hex() + " " + record, answer, "pack_set_proof"))

    add("index-outside", proof.replace(b'"index":0', b'"index":2'),
        "bounds:merkle leaf index is outside the tree")
    add("other-index", proof.replace(b'"index":0', b'"index":1'), mismatch)
    add("no-path", proof[:proof.index(b'"path":[')] + b'"path":[]}',
        "bounds:merkle audit path has the wrong length")
    add("entry", proof.replace(b'"entry":"01', b'"entry":"02'), mismatch)
    add("footer-seal", proof.replace(one[-PAGE:][40:48].hex().encode(), b"00" * 8),
        "checksum:pack set seal mismatch")
    for name, fields, entries, answer in (
            ("kind", {}, [(0, 0, le(2, 3))], "unknown_enum:unknown pack set record kind 3"),
            ("reserved", {}, [(0, 3, b"\1")], "reserved:pack set entry reserved field is nonzero"),
            ("zero", {}, [(0, 64, bytes(32))], "semantics:pack set entry contains a zero identity"),
            ("size", {}, [(0, 16, le(8, PAGE))], "bounds:pack set record size is outside bounds"),
            ("layout", {24: le(8, 20480)}, [], LAYOUT)):
        data = forge(one, fields, entries)
        add("forged-" + name, _raw_proof(one, data, 0), answer)
    chunk_data = one[PAGE:3 * PAGE]
    add("record", proof, "ok", word(chunk_data))
    add("record-damaged", proof, "checksum:pack set record digest mismatch", word(chunk_data) + flip(7))
    add("record-other", _raw_proof(one, forge(one, {}, [(0, 96, b"\1" * 32)]), 0), NOT_ITS_RECORD,
        word(chunk_data))
    request = "verdict pack_set_proof %s none" % proof.hex()
    rows.append(Case("proof-other-root", "other-root", request,
                     "authentication:pack set HMAC authentication failed"))
    rows.append(Case("proof-epoch-8", "epoch-8", request, NO_EPOCH))
    return rows


def _raw_proof(one, data, index):
    """A proof over a forged file, which `prove` itself would refuse to open."""
    raw = [data[at:at + 128] for at in (len(one) - 2 * PAGE, len(one) - 2 * PAGE + 128)]
    return pack_set.proof_text(raw, index, data[-PAGE:])
