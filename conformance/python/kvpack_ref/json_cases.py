"""Canonical JSON: texts, and the canonical form or the refusal they must get."""

from .case import Case

# A text and its canonical form.
FORMS = [
    (b"null", b"null"), (b" true\n", b"true"), (b"\t\r\n false ", b"false"), (b"0", b"0"), (b"10", b"10"),
    (b"18446744073709551615", b"18446744073709551615"), (b"[]", b"[]"), (b"{}", b"{}"), (b"[ ]", b"[]"),
    (b"{ }", b"{}"), (b'""', b'""'), (b'[1, 2,\n3]', b"[1,2,3]"), (b'{"b":1,"a":2}', b'{"a":2,"b":1}'),
    (b'{"id":1,"identity_sha256":2,"i":3}', b'{"i":3,"id":1,"identity_sha256":2}'),
    (b'{"a_b":1,"ab":2,"aB":3,"a0":4}', b'{"a0":4,"aB":3,"a_b":1,"ab":2}'),
    (b'[{"z":{"y":1,"x":[{"b":0,"a":0}]},"a":0}]', b'[{"a":0,"z":{"x":[{"a":0,"b":0}],"y":1}}]'),
    ('{"\u00e9":1,"z":2}'.encode(), '{"z":2,"\u00e9":1}'.encode()),
    ('{"\U0001f600":1,"\uffff":2}'.encode(), '{"\uffff":2,"\U0001f600":1}'.encode()),
    (rb'"\u0041\u00e9\u2028"', '"A\u00e9\u2028"'.encode()), (rb'"\ud83d\ude00"', '"\U0001f600"'.encode()),
    (rb'"\"\\\/\b\f\n\r\t"', rb'"\"\\/\b\f\n\r\t"'), (rb'"\u0000\u0001\u001F"', rb'"\u0000\u0001\u001f"'),
    (rb'"\u0008\u0009\u000a\u000C\u000d\u0022\u005c"', rb'"\b\t\n\f\r\"\\"'),
    (b'"\x7f/"', b'"\x7f/"'), (rb'"\u007f"', b'"\x7f"'), (rb'{"\u0061":1}', b'{"a":1}'),
    (b"[" * 127 + b"]" * 127, b"[" * 127 + b"]" * 127),
    (b'{"a":' * 127 + b"1" + b"}" * 127, b'{"a":' * 127 + b"1" + b"}" * 127)]

REFUSED = [
    b"", b" ", b"nul", b"nulll", b"True", b"'a'", b"01", b"-0", b"-1", b"+1", b"1.0", b"1.", b".5", b"1e2",
    b"1E2", b"1e", b"18446744073709551616", b"100000000000000000000", b"9" * 400, b"0x10", b"1 2", b"[1,]",
    b"[,1]", b"[1 2]", b"[", b"]", b"{", b"}", b"[1", b'{"a"}', b'{"a":}', b'{"a":1,}', b"{,}", b"{1:2}",
    b'{"a":1 "b":2}', b'{"a":1,"a":1}', rb'{"a":1,"\u0061":2}', b'[{"b":{"a":1,"a":2}}]', b'"', b'"a',
    b'"\\"', b'"\\x"', b'"\\u12"', b'"\\u12g4"', rb'"\ud83d"', rb'"\ude00"', rb'"\ud83dx"', rb'"\ud83d\n"',
    rb'"\ud83d\u0041"', rb'"\ud83d\ud83d"', b'"\x00"', b'"\x1f"', b'"\t"', b'"\n"', b'"\xff"', b'"\xc0\x80"',
    b'"\xed\xa0\xbd"', b'"\xf4\x90\x80\x80"', b"\xef\xbb\xbf{}", b"{}\x00", b"\x00{}", b"{}x", b"\x0b1",
    b"\xc2\xa01", b"NaN", b"Infinity", b"//\n1", b"[" * 128 + b"]" * 128, b'{"a":' * 128 + b"1" + b"}" * 128,
    b"[" * 100000]

NOT_CANONICAL = "validation:JSON is not in the canonical compact sorted-key encoding"


def cases():
    rows = []
    for i, (text, form) in enumerate(FORMS):
        rows.append(("form-%d" % i, "encode canonical_json " + text.hex(), "ok\t" + form.hex()))
        rows.append(("strict-%d" % i, "verdict canonical_json 1048576 " + text.hex(),
                     "ok" if text == form else NOT_CANONICAL))
        rows.append(("strict-form-%d" % i, "verdict canonical_json 1048576 " + form.hex(), "ok"))
    for i, text in enumerate(REFUSED):
        rows.append(("refused-%d" % i, "encode canonical_json " + _word(text), "canonical:"))
        if text:
            rows.append(("strict-refused-%d" % i, "verdict canonical_json 1048576 " + _word(text),
                         "canonical:"))
    for name, size, text, answer in (
            ("empty", 10, "-", "validation:JSON length 0 is outside 1..=10"),
            ("over", 1, b"10".hex(), "validation:JSON length 2 is outside 1..=1"),
            ("over-before-parse", 2, b"xyz".hex(), "validation:JSON length 3 is outside 1..=2"),
            ("exact", 2, b"10".hex(), "ok"),
            ("huge-bound", (1 << 64) - 1, "-",
             "validation:JSON length 0 is outside 1..=18446744073709551615")):
        rows.append(("length-" + name, "verdict canonical_json %d %s" % (size, text), answer))
    return [Case(name, "none", request, answer) for name, request, answer in rows]


def _word(text):
    if len(text) > 1000:
        return "-/fill:%d:%02x" % (len(text), text[0])
    return text.hex() or "-"
