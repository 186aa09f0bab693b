"""Canonical JSON and the JSON rules of every message (docs/protocol/handoff.md section 1).

Parsed objects stay lists of (key, value) pairs, so that a repeated key is still there to be refused, and a number that
is no unsigned 64-bit integer becomes NOT_AN_INTEGER, which no typed field takes.
"""
import hashlib
import json
import struct

from .errors import Refusal, validation

U32_MAX = 2**32 - 1
U64_MAX = 2**64 - 1
MAX_DEPTH = 127
HEX_DIGITS = frozenset("0123456789abcdef")
ABSENT = object()
NOT_AN_INTEGER = object()


class Pairs(list):
    """A parsed JSON object: (key, value) pairs in document order, repeats included."""

    def get(self, key):
        """The value of the last pair with this key, or ABSENT."""
        for k, v in reversed(self):
            if k == key:
                return v
        return ABSENT


def canonical(value):
    """The canonical bytes of a value made of dict, list, str, int (u64), bool and None."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8")


def _integer(token):
    if token[0] == "-" or len(token) > 20 or int(token) > U64_MAX:
        return NOT_AN_INTEGER
    return int(token)


def _constant(token):
    raise Refusal("json", f"unexpected token {token}")


# The scanner knows the grammar of RFC 8259; NaN and Infinity, its one addition, end in _constant.
_DECODER = json.JSONDecoder(object_pairs_hook=Pairs, parse_int=_integer, parse_float=lambda _: NOT_AN_INTEGER,
                            parse_constant=_constant)


def _check_tree(value):
    """Nesting and surrogates, which the scanner lets through."""
    stack = [(value, 1)]
    while stack:
        v, depth = stack.pop()
        if isinstance(v, str):
            if any("\ud800" <= c <= "\udfff" for c in v):
                raise Refusal("json", "lone surrogate escape")
            continue
        if not isinstance(v, list):
            continue
        if depth > MAX_DEPTH:
            raise Refusal("json", "nesting is too deep")
        for item in v:
            if isinstance(v, Pairs):
                stack.append((item[0], depth + 1))
                item = item[1]
            stack.append((item, depth + 1))


def parse(data):
    """The one JSON value that is `data` (bytes). Refused: json."""
    try:
        text = data.decode("utf-8")
        value = _DECODER.decode(text)
    except (UnicodeDecodeError, json.JSONDecodeError) as e:
        raise Refusal("json", str(e)) from None
    except RecursionError:
        raise Refusal("json", "nesting is too deep") from None
    if "\\u" in text or text.count("[") + text.count("{") > MAX_DEPTH:
        _check_tree(value)
    return value


def find_repeated_key(value):
    """The first key met twice in one object, depth first in document order, or None."""
    if isinstance(value, Pairs):
        seen = set()
        for key, item in value:
            if key in seen:
                return key
            seen.add(key)
            inner = find_repeated_key(item)
            if inner is not None:
                return inner
    elif isinstance(value, list):
        for item in value:
            inner = find_repeated_key(item)
            if inner is not None:
                return inner
    return None


def plain(value):
    """A parsed value as dict, list, str, int, bool and None. Refused: json (floats, repeated keys)."""
    if value is NOT_AN_INTEGER:
        raise Refusal("json", "number is not an unsigned 64-bit integer")
    if isinstance(value, Pairs):
        out = {}
        for key, item in value:
            if key in out:
                raise Refusal("json", f"repeated key {key!r}")
            out[key] = plain(item)
        return out
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value


def decode_strict(data, max_bytes, typed, encode=canonical):
    """Section 1.3: bounded, parsed by `typed`, and equal to its own canonical form.

    `typed` turns the parsed value into a dict and `encode` that dict into its canonical bytes.
    """
    if not 1 <= len(data) <= max_bytes:
        raise validation(f"JSON length {len(data)} is outside 1..={max_bytes}")
    try:
        value = typed(parse(data))
    except Refusal as r:
        raise (Refusal("canonical", r.message) if r.category == "json" else r) from None
    if encode(value) != data:
        raise validation("JSON is not in the canonical compact sorted-key encoding")
    return value


def sha256_hex(data):
    return hashlib.sha256(data).hexdigest()


def is_digest(value):
    """A digest string: exactly 64 characters out of 0-9a-f."""
    return isinstance(value, str) and len(value) == 64 and HEX_DIGITS.issuperset(value)


def token_ids_sha256(ids):
    """The digest that names a token sequence (docs/protocol/handoff.md, Digests)."""
    return sha256_hex(b"kvpack-live-token-ids-v1\0" + b"".join(struct.pack("<I", t) for t in ids))


# ---------------------------------------------------------------------------------------- typed parse

def integer(top):
    def parse_integer(v):
        if isinstance(v, int) and not isinstance(v, bool) and v <= top:
            return v
        raise Refusal("json", f"expected an integer up to {top}")
    return parse_integer


u32 = integer(U32_MAX)
u64 = integer(U64_MAX)


def string(v):
    if isinstance(v, str):
        return v
    raise Refusal("json", "expected a string")


def boolean(v):
    if isinstance(v, bool):
        return v
    raise Refusal("json", "expected a boolean")


def one_of(names):
    def parse_enum(v):
        if isinstance(v, str) and v in names:
            return v
        raise Refusal("json", "unknown variant")
    return parse_enum


def list_of(item, count=None):
    def parse_list(v):
        if not isinstance(v, list) or isinstance(v, Pairs) or count not in (None, len(v)):
            raise Refusal("json", "expected an array")
        return [item(x) for x in v]
    return parse_list


def nullable(item):
    return lambda v: None if v is None else item(v)


class Struct:
    """A typed JSON object.

    `required` maps names to types; `optional` maps names to (type, the function that makes the value of an absent
    key). Unknown keys are ignored, or refused with `closed`. A positional array never stands for a struct.
    """

    def __init__(self, required, optional=None, closed=False):
        self.types = dict(required)
        self.defaults = {}
        for name, (kind, default) in (optional or {}).items():
            self.types[name] = kind
            self.defaults[name] = default
        self.closed = closed

    def keys(self):
        return self.types.keys()

    def __call__(self, v):
        if not isinstance(v, Pairs):
            raise Refusal("json", "expected an object")
        out = {}
        for key, item in v:
            kind = self.types.get(key)
            if kind is None:
                if self.closed:
                    raise Refusal("json", f"unknown field {key!r}")
                continue
            if key in out:
                raise Refusal("json", f"duplicate field {key!r}")
            out[key] = kind(item)
        for key in self.types:
            if key not in out:
                if key not in self.defaults:
                    raise Refusal("json", f"missing field {key!r}")
                out[key] = self.defaults[key]()
        return out
