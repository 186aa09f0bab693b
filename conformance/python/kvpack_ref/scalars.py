"""Constants, integers, state keys and the bounded reader that every canonical object is decoded with."""

import collections

from .errors import Reject, need

PAGE = 4096
MAX_PLAINTEXT = 4 << 20
FRAME_HEADER = 16
MAX_CODEC_OVERHEAD = FRAME_HEADER + (MAX_PLAINTEXT + 127) // 128
MAX_CHUNK_OBJECT = PAGE + MAX_PLAINTEXT + MAX_CODEC_OVERHEAD + 16 + PAGE
MAX_MANIFEST = 256 << 20
MAX_RESTORED = 4 << 40
MAX_COUNT = 65536
MAX_DEPENDENCIES = 64
MAX_DEPTH = 7
MAX_SIDECAR = PAGE - 236 - 2
BLOCK_TOKENS = 256
U64_END = 1 << 64
ZERO_ID = bytes(32)

RAW, LOSSLESS = 1, 2
CODECS = {"raw": RAW, "lossless": LOSSLESS}
CONTIGUOUS, STRIDED = 1, 2
NATIVE, PORTABLE = 1, 2
DIRECT, GATHER, TAIL_WINDOW = 1, 2, 3
DTYPE_BYTES = {1: 1, 2: 4, 3: 1, 4: 2, 5: 4, 6: 2, 7: 2, 8: 4, 9: 8}

# Tuples compare as the format orders keys: by layer, then by the raw bytes of the name.
StateKey = collections.namedtuple("StateKey", "layer name")


def le(size, value):
    return value.to_bytes(size, "little")


def un(data, at, size):
    return int.from_bytes(data[at:at + size], "little")


def fits(value, message):
    """The value, unless it leaves u64."""
    if not 0 <= value < U64_END:
        raise Reject("bounds", message)
    return value


def all_zero(data):
    return data.count(0) == len(data)


def page_up(size):
    return -(-size // PAGE) * PAGE


def digest_blanked(digest, data, start, end):
    """digest(data with [start, end) zero), the rule of every header digest."""
    return digest(data[:start], bytes(end - start), data[end:])


def encode_key(key):
    need(len(key.name) < 65536, "bounds", "string is too long")
    return le(4, key.layer) + le(2, len(key.name)) + key.name


class Reader:
    """Reads a canonical object front to back; a short read is the shared truncation error."""

    def __init__(self, data, magic=None):
        self.data = data
        self.at = 0
        if magic is not None:
            need(len(data) >= 8, "truncated", "truncated canonical object")
            need(data[:8] == magic, "bad_magic", "invalid canonical object magic")
            self.at = 8

    def raw(self, size):
        end = self.at + size
        if end > len(self.data):
            raise Reject("truncated", "truncated canonical object")
        piece = self.data[self.at:end]
        self.at = end
        return piece

    def num(self, size):
        return int.from_bytes(self.raw(size), "little")

    def nums(self, size, count):
        return [self.num(size) for _ in range(count)]

    def preface(self, what):
        """Version and reserved word, with the texts of the object named."""
        need(self.num(2) == 1, "bad_magic", "unsupported %s version" % what)
        need(self.num(2) == 0, "reserved", "%s reserved field is nonzero" % what)

    def enum(self, allowed, what):
        value = self.num(2)
        if value not in allowed:
            raise Reject("unknown_enum", "unknown %s %d" % (what, value))
        return value

    def count(self, limit, message, size=4):
        value = self.num(size)
        need(1 <= value <= limit, "bounds", message)
        return value

    def key(self):
        layer = self.num(4)
        name = self.raw(self.num(2))
        try:
            name.decode("utf-8")
        except UnicodeDecodeError:
            raise Reject("semantics", "state name is not UTF-8") from None
        return StateKey(layer, name)

    def shape(self):
        rank = self.num(1)
        need(1 <= rank <= 8, "bounds", "state rank must be in 1..=8")
        dimensions = self.nums(8, rank)
        need(0 not in dimensions, "bounds", "state dimensions must be nonzero")
        return dimensions

    def end(self):
        need(self.at == len(self.data), "reserved", "trailing canonical bytes")
