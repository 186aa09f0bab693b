"""Numbers, texts and identities on their way into C, where a number that does not fit would be cut off silently."""
import collections.abc
import ctypes
import operator
import os
from typing import Optional, Union

from . import _structs as c
from .errors import bad_argument

Id = bytes
"""A 32-byte identity."""

IdLike = Union[bytes, str]
"""32 bytes, or 64 hexadecimal digits."""


def number(value, name, bits=64):
    """An unsigned number of so many bits."""
    try:
        value = operator.index(object() if isinstance(value, bool) else value)  # type: ignore[arg-type]
    except TypeError:
        raise bad_argument(name, "is a %s, not a number" % type(value).__name__) from None
    if not 0 <= value < 1 << bits:
        raise bad_argument(name, "is outside 0 to %d" % ((1 << bits) - 1))
    return value


def listed(values, name):
    """The values of an iterable."""
    try:
        return tuple(values)
    except TypeError:
        raise bad_argument(name, "is a %s, not a list" % type(values).__name__) from None


def listed_pairs(values, name):
    """The pairs of an iterable."""
    pairs = listed(values, name)
    for pair in pairs:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise bad_argument(name, "has an element that is no pair")
    return pairs


def pairs_of(values, name):
    """The pairs of a mapping; none of None."""
    if values is None:
        return ()
    if not isinstance(values, collections.abc.Mapping):
        raise bad_argument(name, "is a %s, not a mapping" % type(values).__name__)
    return tuple(values.items())


def flag(value, name):
    """True or false as 1 or 0."""
    if not isinstance(value, bool) and value not in (0, 1):
        raise bad_argument(name, "is neither true nor false")
    return int(value)


def threads(value):
    """How many threads; 0 leaves it to the library."""
    value = number(value, "parallelism", 32)
    if value > c.MAX_PARALLELISM:
        raise bad_argument("parallelism", "must be at most %d" % c.MAX_PARALLELISM)
    return value


def choice(value, values, name):
    """The number of a named value."""
    if not isinstance(value, str) or value not in values:
        raise bad_argument(name, "is none of " + ", ".join(values))
    return values[value]


def name_of(value, values):
    """The name of a number; the number itself where this package does not know it."""
    for known, candidate in values.items():
        if candidate == value:
            return known
    return str(value)


def utf8(value, name):
    """A text with its length, NUL bytes included."""
    if isinstance(value, str):
        try:
            return value.encode("utf-8")
        except UnicodeEncodeError:
            raise bad_argument(name, "is not UTF-8") from None
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    raise bad_argument(name, "is a %s, not a text" % type(value).__name__)


def path(value, name):
    """A path, which ends where C sees a NUL."""
    try:
        encoded = os.fsencode(value)
    except TypeError:
        raise bad_argument(name, "is a %s, not a path" % type(value).__name__) from None
    except UnicodeEncodeError:
        raise bad_argument(name, "is no path of this system") from None
    if b"\0" in encoded:
        raise bad_argument(name, "has a NUL byte")
    return encoded


def identity(value, name) -> c.kvpack_id:
    """An identity as C has it."""
    if isinstance(value, str):
        try:
            value = bytes.fromhex(value)
        except ValueError:
            raise bad_argument(name, "is not 64 hexadecimal digits") from None
    if not isinstance(value, (bytes, bytearray)) or len(value) != 32:
        raise bad_argument(name, "is not 32 bytes")
    return c.kvpack_id((ctypes.c_uint8 * 32)(*value))


def optional_identity(value, name):
    """A pointer to an identity, or NULL."""
    return None if value is None else ctypes.pointer(identity(value, name))


def id_bytes(value: c.kvpack_id) -> Id:
    """An identity as Python has it."""
    return bytes(value.bytes)


def id_at(address: Optional[int]) -> Id:
    """The identity at an address of the library's."""
    if not address:
        raise bad_argument("handle", "has no identity")
    return ctypes.string_at(address, 32)
