"""Blobs: bytes of any length as a state of whole rows (docs/format/blob.md)."""

from .errors import Reject, need
from .scalars import U64_END, le, un

MIN_ROW_BYTES, MAX_ROW_BYTES = 4096, 4194304
LENGTH_BYTES = 8


def check_row_bytes(row_bytes):
    need(row_bytes in (1 << n for n in range(12, 23)), "bounds",
         "blob row bytes must be a power of two from 4096 to 4194304")


def rows_of(blob_bytes, row_bytes):
    """Rows that a blob takes, or None where they are more bytes than a u64 counts."""
    content = LENGTH_BYTES + blob_bytes
    rows = -(-content // row_bytes)
    return rows if content < U64_END and rows * row_bytes < U64_END else None


def rows_in_cut(blob_bytes, row_bytes, tokens):
    """The same for a cut, which has to have as many tokens."""
    check_row_bytes(row_bytes)
    rows = rows_of(blob_bytes, row_bytes)
    if rows is not None and rows <= tokens:
        return rows
    text = "blob of %d bytes takes %s rows of %d bytes, but the cut has %d tokens: " % (
        blob_bytes, "too many" if rows is None else rows, row_bytes, tokens)
    larger = row_bytes * 2
    while larger <= MAX_ROW_BYTES:
        fewer = rows_of(blob_bytes, larger)
        if fewer is not None and fewer <= tokens:
            raise Reject("state", text + "row bytes %d would do" % larger)
        larger *= 2
    raise Reject("state", text + "no row bytes would do")


def encode_blob(blob, row_bytes, tokens):
    """The rows."""
    rows = rows_in_cut(len(blob), row_bytes, tokens)
    return (le(LENGTH_BYTES, len(blob)) + blob).ljust(rows * row_bytes, b"\0")


def decode_blob(rows, row_bytes):
    """The blob in its rows."""
    check_row_bytes(row_bytes)
    need(len(rows) >= LENGTH_BYTES, "truncated", "blob ends inside its length")
    need(len(rows) % row_bytes == 0, "bounds", "blob is not a number of whole rows")
    length = un(rows, 0, LENGTH_BYTES)
    need(length <= len(rows) - LENGTH_BYTES, "bounds", "blob is longer than its rows")
    need(rows_of(length, row_bytes) * row_bytes == len(rows), "bounds", "blob has more rows than it needs")
    end = LENGTH_BYTES + length
    need(not any(rows[end:]), "reserved", "blob padding is nonzero")
    return rows[LENGTH_BYTES:end]
