"""Canonical JSON of the handoff kind: compact, keys sorted by their UTF-8 bytes, unsigned integers only.

`parse` accepts what the format's JSON inputs may be, `encode` writes the one canonical form, `strict`
demands that the input is already in it. Refusals of `parse` have category `canonical`; their text is this
parser's own.
"""

from .errors import Reject, need

MAX_DEPTH = 127
_ESCAPES = {0x22: '\\"', 0x5C: "\\\\", 8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r"}
_ESCAPES.update({c: "\\u%04x" % c for c in range(32) if c not in _ESCAPES})
_UNESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_SPACE = " \t\n\r"
_DIGITS = "0123456789"
_HEX = "0123456789abcdefABCDEF"


def encode(value):
    """Canonical bytes of dict, list, str, bool, None and int in 0..2^64-1."""
    out = []
    _write(value, out)
    return "".join(out).encode("utf-8")


def _write(value, out):
    if value is None or value is True or value is False:
        out.append({None: "null", True: "true", False: "false"}[value])
    elif isinstance(value, int):
        if not 0 <= value < 1 << 64:
            raise ValueError("integer outside u64")
        out.append(str(value))
    elif isinstance(value, str):
        out.append('"%s"' % value.translate(_ESCAPES))
    elif isinstance(value, list):
        out.append("[")
        for i, item in enumerate(value):
            out.append("," if i else "")
            _write(item, out)
        out.append("]")
    elif isinstance(value, dict):
        out.append("{")
        # Code-point order of str is the byte order of its UTF-8.
        for i, key in enumerate(sorted(value)):
            out.append("," if i else "")
            _write(key, out)
            out.append(":")
            _write(value[key], out)
        out.append("}")
    else:
        raise TypeError("no canonical form for %s" % type(value).__name__)


def strict(data, max_bytes, typed=lambda value: value):
    """What `typed` makes of JSON text that is exactly its own canonical form.

    `typed` refuses values of another shape, which counts as part of the parse.
    """
    need(1 <= len(data) <= max_bytes, "validation",
         "JSON length %d is outside 1..=%d" % (len(data), max_bytes))
    value = parse(data)
    out = typed(value)
    need(encode(value) == data, "validation", "JSON is not in the canonical compact sorted-key encoding")
    return out


def parse(data):
    """The one value in `data`; duplicate keys, floats, negative numbers and depth over 127 are refused."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise Reject("canonical", "invalid UTF-8") from None
    parser = _Parser(text)
    value = parser.value(0)
    parser.skip_space()
    if parser.at != len(text):
        parser.fail("trailing characters")
    return value


class _Parser:
    def __init__(self, text):
        self.text = text
        self.at = 0

    def fail(self, message):
        raise Reject("canonical", "%s at character %d" % (message, self.at))

    def peek(self):
        return self.text[self.at:self.at + 1]

    def skip_space(self):
        while self.peek() and self.peek() in _SPACE:
            self.at += 1

    def take(self, token, message):
        if not self.text.startswith(token, self.at):
            self.fail(message)
        self.at += len(token)

    def value(self, depth):
        self.skip_space()
        head = self.peek()
        if head == "{":
            return self.container(depth, "}", {})
        if head == "[":
            return self.container(depth, "]", [])
        if head == '"':
            return self.string()
        for token, value in (("true", True), ("false", False), ("null", None)):
            if self.text.startswith(token, self.at):
                self.at += len(token)
                return value
        return self.number()

    def container(self, depth, close, out):
        if depth == MAX_DEPTH:
            self.fail("nesting is too deep")
        self.at += 1
        self.skip_space()
        if self.peek() == close:
            self.at += 1
            return out
        while True:
            if close == "}":
                self.member(depth, out)
            else:
                out.append(self.value(depth + 1))
            self.skip_space()
            if self.peek() == close:
                self.at += 1
                return out
            self.take(",", "expected , or %s" % close)

    def member(self, depth, out):
        self.skip_space()
        if self.peek() != '"':
            self.fail("expected a key")
        key = self.string()
        if key in out:
            self.fail("duplicate key")
        self.skip_space()
        self.take(":", "expected :")
        out[key] = self.value(depth + 1)

    def number(self):
        start = self.at
        while self.peek() and self.peek() in _DIGITS:
            self.at += 1
        digits = self.text[start:self.at]
        if not digits or (digits[0] == "0" and len(digits) > 1) or (self.peek() and self.peek() in ".eE"):
            self.fail("expected an unsigned integer or another value")
        # 20 digits hold 2^64-1; a longer token is never converted.
        if len(digits) > 20 or int(digits) >= 1 << 64:
            self.fail("integer is outside u64")
        return int(digits)

    def string(self):
        self.at += 1
        out = []
        while True:
            c = self.peek()
            if not c or c < " ":
                self.fail("unterminated string or raw control character")
            self.at += 1
            if c == '"':
                return "".join(out)
            out.append(self.escape() if c == "\\" else c)

    def escape(self):
        c = self.peek()
        self.at += 1
        if c in _UNESCAPES:
            return _UNESCAPES[c]
        if c != "u":
            self.fail("invalid escape")
        unit = self.hex4()
        if 0xDC00 <= unit < 0xE000:
            self.fail("lone surrogate")
        if 0xD800 <= unit < 0xDC00:
            self.take("\\u", "lone surrogate")
            low = self.hex4()
            if not 0xDC00 <= low < 0xE000:
                self.fail("lone surrogate")
            unit = 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00)
        return chr(unit)

    def hex4(self):
        digits = self.text[self.at:self.at + 4]
        if len(digits) != 4 or any(d not in _HEX for d in digits):
            self.fail("invalid escape")
        self.at += 4
        return int(digits, 16)
