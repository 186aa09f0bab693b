"""Transform descriptors: an ordered list of repack operations, and their executor."""

import collections

from .crypto import sha256
from .errors import Reject, need
from .scalars import Reader, ZERO_ID, fits, le

MAGIC = b"KVXFM1\0\0"
PERMUTE_HEAD_PAIRS, REORDER_PLANES, REGROUP_LAYERS, PAD_OR_TRIM, DTYPE_CAST, ROPE_PERMUTE = range(1, 7)
FP8 = 3
NEOX_TO_INTERLEAVED, INTERLEAVED_TO_NEOX = 1, 2
MAX_LABEL, MAX_OPS, MAX_WIDTH, MAX_TARGET, MAX_HEAD_DIM = 128, 64, 16384, 1 << 30, 4096

Descriptor = collections.namedtuple("Descriptor", "name source_layout ops")
Permutation = collections.namedtuple("Permutation", "tag order")
PadOrTrim = collections.namedtuple("PadOrTrim", "target_bytes")
DtypeCast = collections.namedtuple("DtypeCast", "source target scale_id")
RopePermute = collections.namedtuple("RopePermute", "direction head_dim")
Plane = collections.namedtuple("Plane", "tokens kv_heads head_dim element_bytes")


def encode_op(op):
    if isinstance(op, Permutation):
        return le(2, op.tag) + le(2, len(op.order)) + b"".join([le(4, i) for i in op.order])
    if isinstance(op, PadOrTrim):
        return le(2, PAD_OR_TRIM) + le(8, op.target_bytes)
    if isinstance(op, DtypeCast):
        scale = b"\0" + ZERO_ID if op.scale_id is None else b"\1" + op.scale_id
        return le(2, DTYPE_CAST) + le(2, op.source) + le(2, op.target) + scale
    return le(2, ROPE_PERMUTE) + le(2, op.direction) + le(4, op.head_dim)


def encode_transform(descriptor):
    validate(descriptor)
    labels = [le(2, len(label)) + label for label in (descriptor.name, descriptor.source_layout)]
    ops = [encode_op(op) for op in descriptor.ops]
    return MAGIC + le(2, 1) + b"".join(labels) + le(2, len(ops)) + b"".join(ops)


def transform_id(descriptor):
    return sha256(encode_transform(descriptor))


def decode_transform(data):
    r = Reader(data, MAGIC)
    need(r.num(2) == 1, "bad_magic", "invalid transform descriptor version")
    name, source_layout = _read_label(r), _read_label(r)
    ops = [_read_op(r) for _ in range(r.num(2))]
    r.end()
    descriptor = Descriptor(name, source_layout, ops)
    validate(descriptor)
    return descriptor


def _read_label(r):
    label = r.raw(r.num(2))
    try:
        label.decode("utf-8")
    except UnicodeDecodeError:
        raise Reject("semantics", "state name is not UTF-8") from None
    return label


def _read_op(r):
    tag = r.num(2)
    if tag in (PERMUTE_HEAD_PAIRS, REORDER_PLANES, REGROUP_LAYERS):
        return Permutation(tag, r.nums(4, r.num(2)))
    if tag == PAD_OR_TRIM:
        return PadOrTrim(r.num(8))
    if tag == DTYPE_CAST:
        source, target = r.enum((1, 2, FP8), "cast dtype"), r.enum((1, 2, FP8), "cast dtype")
        marker, scale = r.num(1), r.raw(32)
        need(marker == 1 or (marker == 0 and scale == ZERO_ID), "semantics",
             "transform dtype-cast scale-id marker is outside the v1 bounds")
        return DtypeCast(source, target, scale if marker else None)
    if tag == ROPE_PERMUTE:
        return RopePermute(r.enum((1, 2), "rope direction"), r.num(4))
    raise Reject("unknown_enum", "unknown transform op %d" % tag)


def validate(descriptor):
    for label, what in ((descriptor.name, "name"), (descriptor.source_layout, "source layout")):
        need(1 <= len(label) <= MAX_LABEL and max(label) < 128, "bounds",
             "transform %s is outside the v1 bounds" % what)
    need(len(descriptor.ops) <= MAX_OPS, "bounds", "transform op count is outside the v1 bounds")
    for op in descriptor.ops:
        validate_op(op)


def validate_op(op):
    if isinstance(op, Permutation):
        need(1 <= len(op.order) <= MAX_WIDTH, "bounds",
             "transform permutation width is outside the v1 bounds")
        seen = set()
        for index in op.order:
            need(index < len(op.order), "semantics",
                 "transform permutation index is outside the permutation width")
            need(index not in seen, "semantics", "transform permutation repeats a source index")
            seen.add(index)
    elif isinstance(op, PadOrTrim):
        need(1 <= op.target_bytes <= MAX_TARGET, "bounds",
             "transform pad-or-trim target is outside the v1 bounds")
    elif isinstance(op, DtypeCast):
        need(op.source != op.target, "semantics", "transform dtype-cast endpoints must differ")
        need((op.scale_id is not None) == (FP8 in (op.source, op.target)), "semantics",
             "transform dtype-cast scale-id presence must match fp8e4m3 endpoints")
    else:
        need(2 <= op.head_dim <= MAX_HEAD_DIM and op.head_dim % 2 == 0, "bounds",
             "transform rope-permute head dim is outside the v1 bounds")


def invert(op):
    """The op that undoes this one, or None where there is none."""
    if isinstance(op, Permutation):
        return op._replace(order=[op.order.index(i) for i in range(len(op.order))])
    if isinstance(op, RopePermute):
        return op._replace(direction=3 - op.direction)
    return None


def execute(op, shape, data):
    """One op on a plane [tokens, kv_heads, head_dim] of elements, row-major."""
    validate_op(op)
    for size, what in zip(shape, ("tokens", "kv heads", "head dim", "element bytes")):
        need(size != 0, "bounds", "transform plane has zero " + what)
    total = 1
    for size in shape:
        total = fits(total * size, "transform plane byte count overflows")
    need(len(data) == total, "bounds", "transform plane bytes do not match the declared shape")
    if isinstance(op, Permutation):
        return _permute(op, shape, data)
    if isinstance(op, PadOrTrim):
        return data[:op.target_bytes].ljust(op.target_bytes, b"\0")
    need(isinstance(op, RopePermute), "semantics",
         "transform dtype-cast is not bit-exact; the executor rejects lossy casts")
    need(op.head_dim == shape.head_dim, "bounds",
         "transform rope head dim does not match the declared plane shape")
    half = op.head_dim // 2
    order = [i for pair in range(half) for i in (pair, pair + half)]
    if op.direction == INTERLEAVED_TO_NEOX:
        order = [order.index(i) for i in range(op.head_dim)]
    return _gather(data, op.head_dim * shape.element_bytes, order)


def execute_all(descriptor, shape, data):
    for op in descriptor.ops:
        data = execute(op, shape, data)
    return data


def _permute(op, shape, data):
    if op.tag == PERMUTE_HEAD_PAIRS:
        need(shape.kv_heads % 2 == 0 and len(op.order) == shape.kv_heads // 2, "bounds",
             "transform head-pair order does not match the declared kv heads")
        return _gather(data, shape.kv_heads * shape.head_dim * shape.element_bytes, op.order)
    need(len(data) % len(op.order) == 0, "bounds",
         "transform slab count does not divide the plane bytes")
    return _gather(data, len(data), op.order)


def _gather(data, row_bytes, order):
    """Each row is cut into equal parts, which are put in the given order."""
    part = row_bytes // len(order)
    return b"".join([data[row + i * part:row + (i + 1) * part]
                     for row in range(0, len(data), row_bytes) for i in order])
