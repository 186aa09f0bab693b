"""The published inputs: keys, one-state fixtures, delta chains, the sidecar plane, and vectors of them."""

import collections
import struct

from . import (chunk, cut_chain, frames, identities, keys, objects, pack, pack_set, rotation, sidecar,
               transform)
from .objects import Declaration, Delta, Family, FamilyState, Group, Manifest, RealizedState
from .objects import Schema, Span
from .scalars import CODECS, LOSSLESS, RAW, StateKey


def ident(byte):
    return bytes([byte]) * 32


def ramp(first, count):
    """`count` bytes that count up from `first`, modulo 256."""
    return bytes((first + i) & 255 for i in range(count))


ROOT, TENANT, EPOCH = ident(99), ident(1), 7
RING = keys.KeyRing(ROOT, ROOT, TENANT, [EPOCH])
KEYS = RING.schedule(EPOCH)
STATE_KEY = StateKey(0, b"attention.k")
MODEL = tuple(ident(byte) for byte in (10, 11, 12, 13, 14))
AUXILIARY = [(ident(20), ident(21))]
OPERATOR = b"tenant-alpha"
DECLARATION = Declaration(StateKey(7, b"attention.k"), [320, 4, 8], [64, 4, 8], [32, 8, 1], 256, 64, 320, 0,
                          9)
SUITES = [(codec, chunk_mode, pack_mode) for codec in ("raw", "lossless")
          for chunk_mode in ("plain", "encrypted") for pack_mode in ("plain", "encrypted")]

Stage = collections.namedtuple("Stage", "family plaintext placement ref chunk manifest manifest_id pack "
                                        "chunk_box pack_box sidecar")


def family(codec, dtype=1):
    state = FamilyState(STATE_KEY, 1, dtype, codec, 1, 1, 1, 0, 4, [0, 4], [])
    return Family(ident(2), 1, 256, ident(3), ident(4), [state])


def input_cut(of_family, tokens):
    return identities.derive_input_cut(KEYS["prefix"], TENANT, MODEL, of_family, AUXILIARY, tokens)[0]


def one_state_manifest(of_family, cut, delta, span, ref):
    """A manifest of four one-byte elements per token, in one chunk."""
    total, start = cut.token_count, span.token_start
    count = total - start
    realized = RealizedState(STATE_KEY, [total, 4], [count, 4], [4, 1], start, count, 4 * start, 4 * count,
                             4 * total, total, 0, [span])
    schema = Schema(delta, [realized], [Group(1, [STATE_KEY])], 4 * count, 4 * total)
    return Manifest(TENANT, EPOCH, MODEL, cut, of_family, schema, [(STATE_KEY, [ref])])


def _stage(of_family, token_count, span, plaintext, delta, chunk_box, pack_box):
    placement = chunk.Placement(of_family, STATE_KEY, span)
    ref, data = chunk.encode_chunk(plaintext, TENANT, placement, EPOCH, KEYS, chunk_box)
    cut = input_cut(of_family, list(range(1, token_count + 1)))
    manifest = one_state_manifest(of_family, cut, delta, span, ref)
    manifest_id, packed = pack.encode_pack(manifest, KEYS, pack_box)
    return Stage(of_family, plaintext, placement, ref, data, manifest, manifest_id, packed, chunk_box,
                 pack_box, None)


def _box(mode, salt, nonce):
    return (ramp(salt, 16), ramp(nonce, 12)) if mode == "encrypted" else None


def fixture(codec, chunk_mode, pack_mode):
    return _stage(family(CODECS[codec]), 4, Span(0, 4, 0, 16), ramp(0, 16), None,
                  _box(chunk_mode, 0xA0, 0xB0), _box(pack_mode, 0xC0, 0xD0))


def chain(codec, chunk_mode, pack_mode):
    """Eight stages, each one token longer: a full manifest and seven deltas."""
    stages = []
    for s in range(8):
        parent = stages[-1] if stages else None
        delta = parent and Delta(s, parent.manifest_id, parent.manifest.cut)
        stages.append(_stage(family(CODECS[codec]), s + 1, Span(s, 1, 4 * s, 4), ramp(4 * s, 4), delta,
                             _box(chunk_mode, 0x20 + s, 0x40 + s), _box(pack_mode, 0x60 + s, 0x80 + s)))
    return stages


PLANE = ((1.0, 0.5, -1.0, 2.0), (0.0, 1.5, -0.5, 1.0), (-2.0, 0.25, 3.0, 0.0), (4.0, -0.75, 0.5, 1.0))
PLANE_BYTES = b"".join(struct.pack("<e", value) for row in PLANE for value in row)


def sidecar_chunk():
    """A chunk of binary16 values with the sidecar derived from them; it has no manifest."""
    of_family = family(RAW, dtype=6)
    placement = chunk.Placement(of_family, STATE_KEY, Span(0, 4, 0, 32))
    stats = sidecar.encode_sidecar(sidecar.derive_sidecar(4, 4, 2, PLANE_BYTES))
    ref, data = chunk.encode_chunk(PLANE_BYTES, TENANT, placement, EPOCH, KEYS, None, stats)
    return Stage(of_family, PLANE_BYTES, placement, ref, data, None, None, None, None, None, stats)


def set_of(stages, epoch=EPOCH, ring=RING):
    return pack_set.encode_set(ring, epoch, [s.pack for s in stages], [s.chunk for s in stages])


def pack_sets():
    """The worked examples, by name."""
    return {"one": set_of([fixture("raw", "plain", "plain")]),
            "chain3": set_of(chain("raw", "plain", "plain")[:3]),
            "chain8": set_of(chain("lossless", "encrypted", "encrypted"))}


def vectors():
    """(suite, name, value) of every row of production_v1, in its order."""
    for suite in SUITES:
        stage = fixture(*suite)
        for name, value in _fixture_rows(stage):
            yield "fixture/" + "/".join(suite), name, value
        for s, stage in enumerate(chain(*suite)):
            rows = (("manifest", objects.encode_manifest(stage.manifest)), ("chunk", stage.chunk),
                    ("pack", stage.pack), ("manifest-id", stage.manifest_id),
                    ("plaintext", stage.plaintext))
            for name, value in rows:
                yield "delta-chain/" + "/".join(suite), "stage-%d/%s" % (s, name), value


def _fixture_rows(stage):
    manifest = stage.manifest
    rows = [("state_declaration", objects.encode_declaration(DECLARATION)),
            ("family", objects.encode_family(stage.family)),
            ("schema", objects.encode_schema(manifest.schema)),
            ("manifest", objects.encode_manifest(manifest)),
            ("raw_frame", frames.encode_frame(RAW, stage.plaintext)),
            ("lossless_frame", frames.encode_frame(LOSSLESS, stage.plaintext)),
            ("chunk", stage.chunk), ("pack", stage.pack),
            ("semantic_id", identities.semantic_model_id(MODEL)),
            ("family_id", identities.family_id(stage.family)),
            ("schema_id", identities.schema_id(manifest.schema)), ("manifest_id", stage.manifest_id),
            ("namespace_id", keys.namespace_id(KEYS["namespace"], OPERATOR)),
            ("token_root", manifest.cut.token_root), ("auxiliary_root", manifest.cut.auxiliary_root),
            ("chunk_id", stage.ref.content_id), ("object_key", stage.ref.object_key),
            ("object_digest", stage.ref.stored_digest)]
    return rows + [("key/" + name, KEYS[name]) for name in keys.KEY_NAMES]


TRANSFORM_LABELS = (b"qwen25-7b-to-canonical", b"qwen2.5-7b")
EVERY_OP = transform.Descriptor(*TRANSFORM_LABELS, [
    transform.Permutation(transform.PERMUTE_HEAD_PAIRS, [1, 0, 3, 2]),
    transform.Permutation(transform.REORDER_PLANES, [1, 0]),
    transform.Permutation(transform.REGROUP_LAYERS, [2, 0, 1]),
    transform.PadOrTrim(4096), transform.DtypeCast(1, transform.FP8, ident(7)),
    transform.RopePermute(transform.INTERLEAVED_TO_NEOX, 128)])
ONE_ROPE = transform.Descriptor(*TRANSFORM_LABELS,
                                [transform.RopePermute(transform.NEOX_TO_INTERLEAVED, 4)])
PACKETS = {"mixed": b"aaabbbbccdefgh", "run129": b"Z" * 129, "run130": b"Z" * 130, "run131": b"Z" * 131,
           "straddle": ramp(0, 127) + b"\xaa\xaa",
           "literal300": bytes((i * 7) & 255 for i in range(300))}


def extras():
    """(suite, name, value) of the known answers beyond production_v1."""
    stage = sidecar_chunk()
    yield "sidecar", "sidecar", stage.sidecar
    yield "sidecar", "plaintext", stage.plaintext
    yield "sidecar", "family", objects.encode_family(stage.family)
    yield "sidecar", "family_id", identities.family_id(stage.family)
    yield "sidecar", "chunk", stage.chunk
    yield "sidecar", "chunk_id", stage.ref.content_id
    yield "sidecar", "object_key", stage.ref.object_key
    yield "sidecar", "object_digest", stage.ref.stored_digest
    pinned = rotation.qwen25(ident(7))
    identity = rotation.rotation_id(pinned)
    yield "rotation", "descriptor", rotation.encode_rotation(pinned)
    yield "rotation", "identity", identity
    yield "rotation", "bound_abi_of_id3", rotation.bound_abi(ident(3), identity)
    for name, descriptor in (("every_op", EVERY_OP), ("one_rope", ONE_ROPE)):
        yield "transform", name, transform.encode_transform(descriptor)
        yield "transform", name + "_id", transform.transform_id(descriptor)
    tips = cut_chain.CutChain(ident(7), ident(3), cut_chain.flat(256)).push(list(range(1024)))
    for i, tip in enumerate(tips):
        yield "cut-chain", "flat256_%d" % i, tip
    _, nodes = identities.derive_input_cut(KEYS["prefix"], TENANT, MODEL, family(RAW), AUXILIARY,
                                           list(range(600)))
    for node in nodes:
        kind = "reusable" if node.reusable else "partial"
        yield "prefix", "node_%d_%s" % (node.token_count, kind), node.id
    empty, _ = identities.derive_input_cut(KEYS["prefix"], TENANT, MODEL, family(RAW), [], [])
    yield "prefix", "empty_tokens_empty_aux_root", empty.token_root
    yield "prefix", "empty_aux_root", empty.auxiliary_root
    yield "namespace", "store_tenant_alpha_root99", keys.tenant_namespace(ROOT, ROOT, EPOCH, OPERATOR)
    for name, plaintext in PACKETS.items():
        yield "packbits", name, frames.encode_frame(LOSSLESS, plaintext)
