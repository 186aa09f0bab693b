"""Canonical objects: representation family, realized cut schema, state declaration and cut manifest.

Decoding enforces the wire form alone; the rules of meaning are in `validate`.
"""

import dataclasses
from typing import List, Optional, Tuple

from .errors import need
from .scalars import (DTYPE_BYTES, MAX_COUNT, MAX_DEPENDENCIES, MAX_MANIFEST, Reader, StateKey, encode_key,
                      le)

FAMILY_MAGIC = b"KVFAM1\0\0"
SCHEMA_MAGIC = b"KVRCS1\0\0"
DECLARATION_MAGIC = b"KVSTS1\0\0"
MANIFEST_MAGIC = b"KVMNF1\0\0"


@dataclasses.dataclass
class FamilyState:
    key: StateKey
    cache_kind: int
    dtype: int
    codec: int
    codec_version: int
    layout: int
    token_axis_rule: int
    token_axis: int
    elements_per_token: int
    dimensions: List[int]
    dependencies: List[StateKey]


@dataclasses.dataclass
class Family:
    engine_cache_abi: bytes
    mode: int
    page_size_tokens: int
    topology: bytes
    shard_map: bytes
    states: List[FamilyState]


@dataclasses.dataclass
class InputCut:
    token_root: bytes
    auxiliary_root: bytes
    token_count: int


@dataclasses.dataclass
class Delta:
    """The kind of a delta manifest; a full manifest has None in its place."""

    depth: int
    parent: bytes
    parent_cut: InputCut


@dataclasses.dataclass
class Span:
    token_start: int
    token_count: int
    plaintext_offset: int
    plaintext_bytes: int


_POSITIONS = ("logical_start", "logical_count", "physical_offset_bytes", "physical_span_bytes",
              "complete_physical_bytes", "absolute_position", "window")


@dataclasses.dataclass
class RealizedState:
    key: StateKey
    full_shape: List[int]
    segment_shape: List[int]
    strides: List[int]
    logical_start: int
    logical_count: int
    physical_offset_bytes: int
    physical_span_bytes: int
    complete_physical_bytes: int
    absolute_position: int
    window: int
    spans: List[Span]


@dataclasses.dataclass
class Group:
    id: int
    members: List[StateKey]


@dataclasses.dataclass
class Schema:
    delta: Optional[Delta]
    states: List[RealizedState]
    groups: List[Group]
    segment_restored_bytes: int
    complete_restored_bytes: int


@dataclasses.dataclass
class ChunkRef:
    content_id: bytes
    object_key: bytes
    stored_digest: bytes
    key_epoch: int
    plaintext_bytes: int
    object_bytes: int


@dataclasses.dataclass
class Manifest:
    tenant: bytes
    key_epoch: int
    model: Tuple[bytes, ...]
    cut: InputCut
    family: Family
    schema: Schema
    payload: List[Tuple[StateKey, List[ChunkRef]]]


@dataclasses.dataclass
class Declaration:
    key: StateKey
    full_shape: List[int]
    segment_shape: List[int]
    strides: List[int]
    logical_start: int
    logical_count: int
    absolute_position: int
    window: int
    atomic_group: int


# ------------------------------------------------------------------------------------------------ encode

def standalone(magic, body):
    return magic + le(2, 1) + le(2, 0) + body


def _u64s(values):
    return b"".join([le(8, v) for v in values])


def encode_shape(dimensions):
    return le(1, len(dimensions)) + _u64s(dimensions)


def encode_cut(cut):
    return cut.token_root + cut.auxiliary_root + le(8, cut.token_count)


def encode_span(span):
    head = (span.token_start, span.token_count, span.plaintext_offset)
    return _u64s(head) + le(4, span.plaintext_bytes)


def encode_ref(ref):
    return (ref.content_id + ref.object_key + ref.stored_digest + le(8, ref.key_epoch)
            + le(4, ref.plaintext_bytes) + le(4, ref.object_bytes))


def _family_state(s):
    need(len(s.dependencies) < 65536, "bounds", "too many state dependencies")
    need(len(s.dimensions) < 256, "bounds", "family state rank exceeds u8")
    words = (s.cache_kind, s.dtype, s.codec, s.codec_version, s.layout, s.token_axis_rule)
    out = [encode_key(s.key)] + [le(2, w) for w in words]
    out += [le(1, s.token_axis), b"\0", le(8, s.elements_per_token), encode_shape(s.dimensions)]
    out += [le(2, len(s.dependencies))] + [encode_key(d) for d in s.dependencies]
    return b"".join(out)


def _family_body(f):
    head = [f.engine_cache_abi, le(2, f.mode), bytes(2), le(4, f.page_size_tokens), f.topology, f.shard_map]
    return b"".join(head + [le(4, len(f.states))] + [_family_state(s) for s in f.states])


def _kind(delta):
    if delta is None:
        return bytes(4)
    return b"\1" + le(1, delta.depth) + bytes(2) + delta.parent + encode_cut(delta.parent_cut)


def _shapes(s):
    return (encode_key(s.key) + encode_shape(s.full_shape) + encode_shape(s.segment_shape)
            + encode_shape(s.strides))


def _realized_state(s):
    out = [_shapes(s), _u64s([getattr(s, name) for name in _POSITIONS]), le(4, len(s.spans))]
    return b"".join(out + [encode_span(span) for span in s.spans])


def _group(group):
    head = [le(4, group.id), le(4, len(group.members))]
    return b"".join(head + [encode_key(member) for member in group.members])


def _schema_body(s):
    out = [_kind(s.delta), le(4, len(s.states))] + [_realized_state(r) for r in s.states]
    out += [le(4, len(s.groups))] + [_group(group) for group in s.groups]
    return b"".join(out) + _u64s([s.segment_restored_bytes, s.complete_restored_bytes])


def encode_family(family):
    return standalone(FAMILY_MAGIC, _family_body(family))


def encode_schema(schema):
    return standalone(SCHEMA_MAGIC, _schema_body(schema))


def encode_declaration(d):
    numbers = (d.logical_start, d.logical_count, d.absolute_position, d.window)
    return standalone(DECLARATION_MAGIC, _shapes(d) + _u64s(numbers) + le(4, d.atomic_group))


def encode_manifest(m):
    out = [m.tenant, le(8, m.key_epoch), *m.model, encode_cut(m.cut), _family_body(m.family),
           _schema_body(m.schema), le(4, len(m.payload))]
    for key, refs in m.payload:
        out += [encode_key(key), le(4, len(refs))] + [encode_ref(ref) for ref in refs]
    return standalone(MANIFEST_MAGIC, b"".join(out))


# ------------------------------------------------------------------------------------------------ decode

def _read_family_state(r):
    key = r.key()
    cache_kind = r.enum((1,), "cache kind")
    dtype = r.enum(DTYPE_BYTES, "dtype")
    codec = r.enum((1, 2), "codec")
    codec_version = r.num(2)
    layout = r.enum((1, 2), "layout")
    rule = r.enum((1, 2, 3), "token axis rule")
    axis = r.num(1)
    need(r.num(1) == 0, "reserved", "family state reserved byte is nonzero")
    per_token = r.num(8)
    rank = r.num(1)
    need(1 <= rank <= 8, "bounds", "family state rank is outside 1..=8")
    dimensions = r.nums(8, rank)
    count = r.num(2)
    need(count <= MAX_DEPENDENCIES, "bounds", "too many state dependencies")
    dependencies = [r.key() for _ in range(count)]
    return FamilyState(key, cache_kind, dtype, codec, codec_version, layout, rule, axis, per_token,
                       dimensions, dependencies)


def _read_family_body(r):
    abi = r.raw(32)
    mode = r.enum((1, 2), "representation mode")
    need(r.num(2) == 0, "reserved", "family reserved field is nonzero")
    page, topology, shard_map = r.num(4), r.raw(32), r.raw(32)
    count = r.count(MAX_COUNT, "family state count is outside bounds")
    return Family(abi, mode, page, topology, shard_map, [_read_family_state(r) for _ in range(count)])


def read_cut(r):
    return InputCut(r.raw(32), r.raw(32), r.num(8))


def read_span(r):
    return Span(r.num(8), r.num(8), r.num(8), r.num(4))


def read_ref(r):
    return ChunkRef(r.raw(32), r.raw(32), r.raw(32), r.num(8), r.num(4), r.num(4))


def _read_kind(r):
    tag, depth = r.num(1), r.num(1)
    need(r.num(2) == 0, "reserved", "manifest-kind reserved field is nonzero")
    if tag == 0:
        need(depth == 0, "reserved", "full manifest carries a delta depth")
        return None
    need(tag == 1, "unknown_enum", "unknown manifest kind %d" % tag)
    return Delta(depth, r.raw(32), read_cut(r))


def _read_shapes(r):
    key, full, segment = r.key(), r.shape(), r.shape()
    strides = r.num(1)
    need(strides <= 8, "bounds", "too many state strides")
    return key, full, segment, r.nums(8, strides)


def _read_realized_state(r):
    head = _read_shapes(r)
    positions = r.nums(8, len(_POSITIONS))
    count = r.count(MAX_COUNT, "state chunk-span count is outside bounds")
    return RealizedState(*head, *positions, [read_span(r) for _ in range(count)])


def _read_group(r):
    group_id = r.num(4)
    count = r.count(MAX_COUNT, "atomic-group state count is outside bounds")
    return Group(group_id, [r.key() for _ in range(count)])


def _read_schema_body(r):
    delta = _read_kind(r)
    count = r.count(MAX_COUNT, "realized state count is outside bounds")
    states = [_read_realized_state(r) for _ in range(count)]
    count = r.count(MAX_COUNT, "atomic-group count is outside bounds")
    groups = [_read_group(r) for _ in range(count)]
    return Schema(delta, states, groups, r.num(8), r.num(8))


def _read_payload(r):
    key = r.key()
    count = r.count(MAX_COUNT, "state chunk count is outside bounds")
    return key, [read_ref(r) for _ in range(count)]


def _read_manifest_body(r):
    tenant, epoch = r.raw(32), r.num(8)
    model = tuple(r.raw(32) for _ in range(5))
    cut, family, schema = read_cut(r), _read_family_body(r), _read_schema_body(r)
    count = r.count(MAX_COUNT, "manifest state count is outside bounds")
    return Manifest(tenant, epoch, model, cut, family, schema, [_read_payload(r) for _ in range(count)])


def _read_declaration_body(r):
    return Declaration(*_read_shapes(r), *r.nums(8, 4), r.num(4))


def _decode(data, magic, what, read, encode):
    reader = Reader(data, magic)
    reader.preface(what)
    value = read(reader)
    reader.end()
    need(encode(value) == data, "reserved", "%s encoding is not canonical" % what)
    return value


def decode_family(data):
    return _decode(data, FAMILY_MAGIC, "family", _read_family_body, encode_family)


def decode_schema(data):
    return _decode(data, SCHEMA_MAGIC, "realized-schema", _read_schema_body, encode_schema)


def decode_declaration(data):
    return _decode(data, DECLARATION_MAGIC, "state-schema", _read_declaration_body, encode_declaration)


def decode_manifest(data):
    need(len(data) <= MAX_MANIFEST, "bounds", "manifest exceeds production bound")
    return _decode(data, MANIFEST_MAGIC, "manifest", _read_manifest_body, encode_manifest)
