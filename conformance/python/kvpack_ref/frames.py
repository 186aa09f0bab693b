"""Codec frames: raw, and the canonical run-length form called lossless."""

from .errors import need
from .scalars import FRAME_HEADER, LOSSLESS, MAX_PLAINTEXT, RAW, le, un

MAGICS = {RAW: b"KVRAW1\0\0", LOSSLESS: b"KVRLE1\0\0"}


def encode_frame(codec, plaintext):
    need(1 <= len(plaintext) <= MAX_PLAINTEXT, "bounds", "chunk plaintext must be in 1..=4 MiB")
    body = plaintext if codec == RAW else encode_packets(plaintext)
    return MAGICS[codec] + le(2, 1) + le(2, 0) + le(4, len(plaintext)) + body


def encode_packets(data):
    """The one canonical packet sequence; at most one control byte more per 128 bytes."""
    out, at = bytearray(), 0
    while at < len(data):
        run = _run(data, at)
        if run >= 3:
            out += bytes((0x80 | (run - 1), data[at]))
            at += run
            continue
        start = at
        while at < len(data) and at - start < 128:
            run = _run(data, at)
            if run >= 3:
                break
            # A pair that straddles the 128th byte is split: its second byte opens the next packet.
            at = min(at + run, start + 128)
        out.append(at - start - 1)
        out += data[start:at]
    return bytes(out)


def _run(data, at):
    """How many equal bytes start here, at most 128."""
    end, stop = at + 1, min(len(data), at + 128)
    while end < stop and data[end] == data[at]:
        end += 1
    return end - at


def decode_frame(codec, frame, expected):
    """The plaintext of a frame that must hold `expected` bytes."""
    need(len(frame) >= FRAME_HEADER, "truncated", "truncated codec frame")
    need(frame[:8] == MAGICS[codec], "bad_magic", "codec frame magic does not match codec")
    need(un(frame, 8, 2) == 1, "bad_magic", "unsupported codec frame version")
    need(un(frame, 10, 2) == 0, "reserved", "codec frame reserved field is nonzero")
    need(un(frame, 12, 4) == expected and 1 <= expected <= MAX_PLAINTEXT, "bounds",
         "codec frame decoded length mismatch")
    body = frame[FRAME_HEADER:]
    if codec == RAW:
        need(len(body) == expected, "bounds", "raw frame length mismatch")
        return body
    plaintext = _decode_packets(body, expected)
    need(encode_packets(plaintext) == body, "reserved", "codec frame is not canonical")
    return plaintext


def _decode_packets(body, expected):
    out, at = bytearray(), 0
    while at < len(body):
        size = (body[at] & 0x7F) + 1
        repeat = body[at] >= 0x80
        at += 1
        if repeat:
            need(at < len(body), "truncated", "truncated lossless repeat packet")
            piece = body[at:at + 1] * size
            at += 1
        else:
            need(at + size <= len(body), "truncated", "truncated lossless literal packet")
            piece = body[at:at + size]
            at += size
        need(len(out) + size <= expected, "bounds", "lossless frame expands past bound")
        out += piece
    need(len(out) == expected, "bounds", "lossless decoded length mismatch")
    return bytes(out)
