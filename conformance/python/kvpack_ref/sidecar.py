"""Statistics sidecar of a chunk, and its derivation from a binary16 plane."""

import collections
import math
import struct

from .errors import need
from .objects import standalone
from .scalars import MAX_SIDECAR, Reader, le

MAGIC = b"KVSSC1\0\0"
MAX_CHANNELS, MAX_TOKENS, MAX_SINKS = 512, 768, 8

# ranges: (minimum bits, maximum bits) per channel; norms: bits per token; sinks: (token, score bits).
Sidecar = collections.namedtuple("Sidecar", "ranges norms sinks")


def encode_sidecar(sidecar):
    out = [le(4, len(sidecar.ranges))] + [le(2, low) + le(2, high) for low, high in sidecar.ranges]
    out += [le(4, len(sidecar.norms))] + [le(2, norm) for norm in sidecar.norms]
    out += [le(2, len(sidecar.sinks))] + [le(4, token) + le(2, score) + bytes(2)
                                          for token, score in sidecar.sinks]
    return standalone(MAGIC, b"".join(out))


def decode_sidecar(data):
    need(len(data) <= MAX_SIDECAR, "bounds", "stats sidecar exceeds the chunk header capacity")
    r = Reader(data, MAGIC)
    r.preface("stats sidecar")
    ranges, norms, sinks = [], [], []
    for _ in range(r.count(MAX_CHANNELS, "stats sidecar channel count is outside bounds")):
        low, high = r.num(2), r.num(2)
        need(is_finite(low) and is_finite(high) and half_value(low) <= half_value(high), "semantics",
             "stats sidecar channel range is not finite and ordered")
        ranges.append((low, high))
    for _ in range(r.count(MAX_TOKENS, "stats sidecar token count is outside bounds")):
        norm = r.num(2)
        need(is_finite(norm) and not half_value(norm) < 0, "semantics",
             "stats sidecar key norm is not a finite non-negative value")
        norms.append(norm)
    for _ in range(r.count(MAX_SINKS, "stats sidecar sink count is outside bounds", 2)):
        token, score = r.num(4), r.num(2)
        need(r.num(2) == 0, "reserved", "stats sidecar sink reserved field is nonzero")
        sinks.append((token, score))
    r.end()
    need(len(sinks) <= len(norms) and sinks == top_norms(norms, len(sinks)), "semantics",
         "stats sidecar sink scores are not the exact top-m norms")
    sidecar = Sidecar(ranges, norms, sinks)
    need(encode_sidecar(sidecar) == data, "reserved", "stats sidecar is not canonical")
    return sidecar


def derive_sidecar(tokens, channels, sinks, plane):
    """`plane` is binary16 [tokens, channels], token-major; `sinks` bounds how many tokens are named."""
    need(1 <= tokens <= MAX_TOKENS and 1 <= channels <= MAX_CHANNELS and 1 <= sinks <= MAX_SINKS, "bounds",
         "stats sidecar shape is outside bounded limits")
    need(len(plane) == 2 * tokens * channels, "bounds",
         "stats sidecar source bytes do not match the declared shape")
    cells = struct.unpack("<%dH" % (tokens * channels), plane)
    need(all(map(is_finite, cells)), "semantics", "stats sidecar source contains a non-finite element")
    ranges = []
    for channel in range(channels):
        # min and max keep the first of equal values, which decides the sign of a zero.
        column = cells[channel::channels]
        ranges.append((min(column, key=half_value), max(column, key=half_value)))
    norms = []
    for token in range(tokens):
        row = [half_value(bits) for bits in cells[token * channels:(token + 1) * channels]]
        total = 0.0
        for value in row:
            total += value * value
        norms.append(half_bits(math.sqrt(total)))
    return Sidecar(ranges, norms, top_norms(norms, min(sinks, tokens)))


def top_norms(norms, count):
    """(token, bits) by descending norm in IEEE total order, ties by ascending token."""
    order = sorted(range(len(norms)), key=lambda token: (-_total_order(norms[token]), token))
    return [(token, norms[token]) for token in order[:count]]


def _total_order(bits):
    return -1 - (bits & 0x7FFF) if bits & 0x8000 else bits


def is_finite(bits):
    return bits & 0x7C00 != 0x7C00


def half_value(bits):
    return struct.unpack("<e", bits.to_bytes(2, "little"))[0]


def half_bits(value):
    """The format's rounding to binary16, by way of binary32; not IEEE between 2^-25 and 2^-24."""
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    sign, exponent, mantissa = (bits >> 16) & 0x8000, ((bits >> 23) & 255) - 127, bits & 0x7FFFFF
    if exponent == 128 and mantissa:
        return 0x7E00
    if exponent > 15:
        return sign | 0x7C00
    if exponent < -24:
        return sign
    shift = 13
    if exponent < -14:
        mantissa |= 0x800000
        shift += -14 - exponent
    kept, dropped, half = mantissa >> shift, mantissa & ((1 << shift) - 1), 1 << (shift - 1)
    kept += dropped > half or (dropped == half and kept & 1)
    # A carry out of the mantissa moves into the exponent by plain addition.
    return sign | (kept if exponent < -14 else ((exponent + 15) << 10) + kept)
