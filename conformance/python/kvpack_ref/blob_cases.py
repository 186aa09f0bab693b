"""Blob cases: rows and their refusals, and a pack of one state that holds a blob."""

from . import blob, chunk, fixtures, objects, pack
from .case import Case
from .fixtures import EPOCH, KEYS, TENANT, ident, ramp
from .objects import Family, FamilyState, Group, Manifest, RealizedState, Schema, Span
from .scalars import CONTIGUOUS, NATIVE, RAW, TAIL_WINDOW, StateKey, encode_key, le
from .words import word

ROW = 4096
DEFAULT_LIMITS = "65536 65536 4398046511104"
STATE_KEY = StateKey(0, b"opaque")
TOKENS = 300
BLOB = ramp(7, 251) + bytes(5000) + ramp(1, 100)  # two rows
U8 = 1


def cases():
    return [Case("blob-" + name, "none", request, answer)
            for name, request, answer in _rows() + _encoder() + _decoder() + _order()] + _pack()


def _rows():
    """How many rows, from the length alone, so that lengths may be what no memory holds."""
    rows = [("rows-%d-%d" % (row, length), "encode blob_rows %d %d %d" % (row, tokens, length),
             "ok\t%d" % count)
            for row, tokens, length, count in (
                (4096, 1, 0, 1), (4096, 1, 4088, 1), (4096, 2, 4089, 2), (65536, 1, 65528, 1),
                (65536, 2, 65529, 2), (4194304, 1, 4194296, 1), (4194304, (1 << 64) - 1, (1 << 64) - 4194312,
                                                                (1 << 42) - 1))]
    text = "bounds:blob row bytes must be a power of two from 4096 to 4194304"
    rows += [("row-bytes-%d" % row, "encode blob_rows %d 1 0" % row, text)
             for row in (0, 1, 2048, 4095, 4097, 12288, 8388608, 1 << 63)]
    refused = "state:blob of %d bytes takes %s rows of %d bytes, but the cut has %d tokens: %s would do"
    for name, row, tokens, length, count, would in (
            ("next", 4096, 1, 4089, "2", "row bytes 8192"), ("largest", 4096, 1, 4194296, "1024",
                                                             "row bytes 4194304"),
            ("none", 4096, 1, 4194297, "1025", "no row bytes"),
            ("no-tokens", 4096, 0, 0, "1", "no row bytes"),
            ("at-the-largest", 4194304, 1, 4194297, "2", "no row bytes"),
            ("length-overflows", 4096, 1, (1 << 64) - 8, "too many", "no row bytes"),
            ("rows-overflow", 4096, (1 << 64) - 1, (1 << 64) - 9, "too many", "no row bytes")):
        rows.append(("too-long-" + name, "encode blob_rows %d %d %d" % (row, tokens, length),
                     refused % (length, count, row, tokens, would)))
    return rows


def _encoder():
    rows = []
    for name, data, row in (("empty", b"", 4096), ("one-byte", b"\x5a", 4096),
                            ("full-row", b"\xa5" * 4088, 4096), ("one-more", b"\xa5" * 4089, 4096),
                            ("zeros", bytes(100), 8192), ("two-rows", BLOB, 4096), ("one-row", BLOB, 8192)):
        encoded = blob.encode_blob(data, row, 2)
        rows += [(name, "encode blob %d 2 %s" % (row, word(data)), "ok\t" + word(encoded)),
                 (name + "-back", "decode blob %d %s" % (row, word(encoded)), "ok\t" + (word(data) or "-"))]
    rows.append(("too-long", "encode blob 4096 1 %s" % word(BLOB),
                 "state:blob of 5351 bytes takes 2 rows of 4096 bytes, but the cut has 1 tokens: "
                 "row bytes 8192 would do"))
    return rows


def _decoder():
    short, whole = "truncated:blob ends inside its length", "bounds:blob is not a number of whole rows"
    longer, more = "bounds:blob is longer than its rows", "bounds:blob has more rows than it needs"
    padding = "reserved:blob padding is nonzero"
    good = word(blob.encode_blob(BLOB, ROW, 2))
    end = 8 + len(BLOB)
    rows = [("cut-%d" % size, "verdict blob 4096 %s/cut:%d" % (good, size), short if size < 8 else whole)
            for size in (0, 1, 7, 8, 9, 4095, 4097, end, 8191)]
    rows += [("whole", "verdict blob 4096 " + good, "ok"),
             ("cut-to-a-row", "verdict blob 4096 %s/cut:4096" % good, longer),
             ("add-a-byte", "verdict blob 4096 %s/add:00" % good, whole),
             ("add-a-row", "verdict blob 4096 %s/fill:4096:00" % good, more),
             ("under-a-smaller-row", "verdict blob 4096 %s" % word(blob.encode_blob(b"", 8192, 1)), more),
             ("under-a-larger-row", "verdict blob 8192 %s" % word(blob.encode_blob(b"", 4096, 1)), whole),
             ("row-bytes", "verdict blob 4095 " + good,
              "bounds:blob row bytes must be a power of two from 4096 to 4194304")]
    for name, length, answer in (
            ("exact", 8184, "ok"), ("one-over", 8185, longer), ("to-the-first-row", 4088, more),
            ("just-two-rows", 4089, padding), ("shorter", len(BLOB) - 1, padding), ("none", 0, more),
            ("one-longer", len(BLOB) + 1, "ok"), ("largest", (1 << 64) - 1, longer),
            ("wraps", (1 << 64) - 8, longer)):
        rows.append(("length-" + name, "verdict blob 4096 %s/set:0:%s" % (good, le(8, length).hex()), answer))
    rows += [("padding-%d-%d" % (at, mask), "verdict blob 4096 %s/xor:%d:%02x" % (good, at, mask), answer)
             for at, mask, answer in ((end - 1, 1, "ok"), (end, 1, padding), (end + 1, 128, padding),
                                      (8191, 1, padding), (8191, 255, padding))]
    # One bit of the length at a time.
    for bit in range(64):
        length = len(BLOB) ^ (1 << bit)
        if length > 8184:
            answer = longer
        elif length < 4089:
            answer = more
        else:
            answer = padding if length < len(BLOB) else "ok"
        rows.append(("length-bit-%d" % bit,
                     "verdict blob 4096 %s/xor:%d:%02x" % (good, bit // 8, 1 << bit % 8), answer))
    return rows


def _order():
    """Which of two faults speaks first."""
    return [("order-row-bytes-before-length", "verdict blob 5000 00",
             "bounds:blob row bytes must be a power of two from 4096 to 4194304"),
            ("order-length-before-rows", "verdict blob 4096 00000000000000",
             "truncated:blob ends inside its length"),
            ("order-rows-before-longer", "verdict blob 4096 ffffffffffffffff00",
             "bounds:blob is not a number of whole rows"),
            ("order-longer-before-padding", "verdict blob 4096 ffffffffffffffff/fill:4088:01",
             "bounds:blob is longer than its rows"),
            ("order-more-before-padding", "verdict blob 4096 0000000000000000/fill:8184:01",
             "bounds:blob has more rows than it needs")]


def family():
    """What a cache that keeps blobs in rows of 4,096 bytes puts into every pack."""
    state = FamilyState(STATE_KEY, 1, U8, RAW, 1, CONTIGUOUS, TAIL_WINDOW, 0, ROW, [0, ROW], [])
    return Family(ident(2), NATIVE, 256, ident(3), ident(4), [state])


def _pack():
    """A cut of 300 tokens whose last two rows hold the blob: two chunks of one row, a manifest, a pack."""
    rows = blob.encode_blob(BLOB, ROW, TOKENS)
    of_family, count = family(), len(rows) // ROW
    start = TOKENS - count
    spans, refs, out = [], [], []
    state = "%s %s" % (objects.encode_family(of_family).hex(), encode_key(STATE_KEY).hex())
    for i in range(count):
        span = Span(start + i, 1, (start + i) * ROW, ROW)
        plaintext = rows[i * ROW:(i + 1) * ROW]
        placement = chunk.Placement(of_family, STATE_KEY, span)
        ref, data = chunk.encode_chunk(plaintext, TENANT, placement, EPOCH, KEYS)
        ref_word = objects.encode_ref(ref).hex()
        spans.append(span)
        refs.append(ref)
        place = "%s %s" % (state, objects.encode_span(span).hex())
        out += [("chunk-%d" % i, "encode chunk %s 7 %s none none none" % (place, word(plaintext)),
                 "ok\t%s\t%s" % (ref_word, word(data))),
                ("chunk-%d-back" % i, "decode chunk %s %s %s" % (place, ref_word, word(data)),
                 "ok\t%s\tnone" % word(plaintext))]
    realized = RealizedState(STATE_KEY, [count, ROW], [count, ROW], [ROW, 1], start, count, 0, count * ROW,
                             count * ROW, TOKENS, 0, spans)
    schema = Schema(None, [realized], [Group(1, [STATE_KEY])], count * ROW, count * ROW)
    cut = fixtures.input_cut(of_family, list(range(1, TOKENS + 1)))
    manifest = Manifest(TENANT, EPOCH, fixtures.MODEL, cut, of_family, schema, [(STATE_KEY, refs)])
    canonical = objects.encode_manifest(manifest)
    manifest_id, packed = pack.encode_pack(manifest, KEYS, None)
    # A row for each token at the most.
    realized.logical_count = TOKENS + 1
    more_rows = "verdict valid_manifest %s %s" % (objects.encode_manifest(manifest).hex(), DEFAULT_LIMITS)
    out += [("family", "decode family " + state.split()[0], "ok\t" + state.split()[0]),
            ("family-rules", "verdict valid_family " + state.split()[0], "ok"),
            ("manifest", "decode manifest " + canonical.hex(), "ok\t" + canonical.hex()),
            ("manifest-rules", "verdict valid_manifest %s %s" % (canonical.hex(), DEFAULT_LIMITS), "ok"),
            ("manifest-more-rows-than-tokens", more_rows,
             "semantics:tail-window states require one nonempty full snapshot"),
            ("pack", "encode pack 7 %s none none" % canonical.hex(),
             "ok\t%s\t%s" % (manifest_id.hex(), word(packed))),
            ("pack-back", "decode pack 7 " + word(packed), "ok\t" + canonical.hex())]
    return [Case("blob-pack-" + name, "fixture", request, answer) for name, request, answer in out]
