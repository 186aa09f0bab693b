"""Rotation family descriptors: identity material for how a cache was rotated; nothing executes it."""

import collections
import struct

from .crypto import sha256
from .errors import need
from .scalars import Reader, ZERO_ID, le

MAGIC = b"KVRTA1\0\0"
ENUMS = ("rotation coefficient set", "rotation sincos order", "rotation phase origin",
         "rotation position convention", "rotation pairing", "rotation denormal policy",
         "rotation f32 rounding", "rotation f16 cache cast", "rotation operation order")

Rotation = collections.namedtuple("Rotation", "rotary_dimension coefficient_id model_id table table_digest")

QWEN25_DIMENSION = 128
QWEN25_COEFFICIENTS = bytes.fromhex("d2e8c7c62e2ca328b1cd7e4d8462e40ef88eede5335ebf2122d61952d7dbd950")
QWEN25_TABLE_DIGEST = bytes.fromhex("c5d5123c8af3ba4f7ce778f43fe5dfb4160dba702f29c20e88c9a02dd5243813")
# Entry i is the integer nearest to 2^64 * 1000000^(-i/64) / (2 pi).
QWEN25_INCREMENTS = [int(word, 16) for word in """
    28be60db9391054a 20d53d2925f67455 1a754bcdf1528959 1552352f8941b08d
    112e743e936615ee 0dd875b948b28ead 0b28467931a8dd3d 08fdb50634ad64e9
    073ed00d7f5d2561 05d6afb33f733a7b 04b47b368f3b0d41 03ca9f315c34f772
    030e2b042f8045f4 02764dd2da302666 01fbecf10dbdd0de 01994ece8966ef84
    0149d66800919d8c 0109cc07b015a4eb 00d630c00191eafb 00ac9a8b11cb9296
    008b176173e0158c 007015edf6892b10 005a52c769d29a9f 0048c94f8f79e94e
    003aa782077acd6f 002f442137d117bb 002616cb87806cce 001eb19a1cf78363
    0018bbfcb87996fd 0013ee9518d1aadc 00100fe04cd6d8fa 000cf185f65ff0fe
    000a6e2d468c2d51 000867bdbcb5c01e 0006c5f6bbe3aaa2 0005754d1a81587f
    000466011629d480 00038b61b8a6110a 0002db34db71109b 00024d3cad9ee4b5
    0001dad5016848ff 00017ea3c3643613 00013458e2f59024 0000f87aac61553d
    0000c83c2a081074 0000a15b9a548735 0000820768b7bde8 000068c8660680c0
    000054703b647f64 0000440b458d556a 000036d52f1b06a3 00002c2fc14c3c4e
    0000239b7d4cc4a1 00001cb1a55dd54b 0000171f6e711b4a 000012a220a7cd4a
    00000f03f853d5b6 00000c19a21a93bc 000009c0341a7f16 000007db8bce124f
    00000654fd1ccb29 0000051a42d73fea 0000041ca3eab5fa 00000350430ff7cb""".split()]


def encode_rotation(r):
    validate(r)
    head = MAGIC + le(2, 1) + le(2, 0) + le(2, 1) * len(ENUMS) + le(2, 0) + le(4, r.rotary_dimension)
    return head + r.coefficient_id + r.model_id + le(4, len(r.table)) + r.table + r.table_digest


def decode_rotation(data):
    r = Reader(data, MAGIC)
    need(r.num(2) == 1, "bad_magic", "unsupported rotation family version")
    need(r.num(2) == 0, "reserved", "rotation family reserved field is nonzero")
    for what in ENUMS:
        r.enum((1,), what)
    need(r.num(2) == 0, "reserved", "rotation family secondary reserved field is nonzero")
    rotation = Rotation(r.num(4), r.raw(32), r.raw(32), r.raw(r.num(4)), r.raw(32))
    r.end()
    validate(rotation)
    need(encode_rotation(rotation) == data, "reserved", "rotation family encoding is not canonical")
    return rotation


def validate(r):
    need(2 <= r.rotary_dimension <= 4096 and r.rotary_dimension % 2 == 0, "bounds",
         "rotation rotary dimension is outside the v1 bounds")
    need(len(r.table) == r.rotary_dimension // 2 * 8, "bounds",
         "rotation frac64 table does not match rotary dimension")
    need(ZERO_ID not in (r.model_id, r.coefficient_id), "semantics",
         "rotation descriptor contains a zero identity")
    need(sha256(r.table) == r.table_digest, "semantics",
         "rotation frac64 table hash does not match authenticated bytes")
    increments = struct.unpack("<%dQ" % (len(r.table) // 8), r.table)
    need(0 not in increments, "semantics", "rotation frac64 table contains a zero increment")
    need(any(v & 0xFFFFFFFF for v in increments), "semantics",
         "rotation frac64 table is only a lifted 32-bit frequency table")


def qwen25(model_id):
    """The pinned descriptor of Qwen2.5, for one model representation."""
    table = struct.pack("<64Q", *QWEN25_INCREMENTS)
    digest = sha256(table)
    need(digest == QWEN25_TABLE_DIGEST, "semantics",
         "pinned qwen2.5 rotation table hash does not match its family constant")
    return Rotation(QWEN25_DIMENSION, QWEN25_COEFFICIENTS, model_id, table, digest)


def rotation_id(rotation):
    return sha256(b"kvpack/v1/rotation-family\0", encode_rotation(rotation))


def bound_abi(base_abi, identity):
    """The engine cache ABI id of a cache rotated so."""
    return sha256(b"kvpack/v1/rotation-bound-engine-cache-abi\0", base_abi, identity)
