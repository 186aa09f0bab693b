"""The text tables of the kit: TAB-separated lines, `#` lines are comments."""

import os

from .case import Case
from .crypto import sha256
from .protocol import Session
from .words import word

KIT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
VECTORS = os.path.join(KIT, "vectors")


def render(comment, rows):
    """The text of a table."""
    lines = ["# " + line for line in comment] + ["\t".join(map(str, row)) for row in rows]
    return "\n".join(lines) + "\n"


def read(path):
    """The rows of a table file, as lists of strings."""
    with open(path, encoding="utf-8") as source:
        lines = source.read().splitlines()
    return [line.split("\t") for line in lines if line and not line.startswith("#")]


def value_rows(values):
    """suite, name, bytes, sha256, value of (suite, name, bytes)."""
    return [(suite, name, len(value), sha256(value).hex(), word(value)) for suite, name, value in values]


def read_values(path):
    """{(suite, name): bytes} of such a table, each checked against its length and digest."""
    session, out = Session(), {}
    for suite, name, size, digest, text in read(path):
        value = session.bytes_word(text)
        if len(value) != int(size) or sha256(value).hex() != digest:
            raise ValueError("%s: %s %s is damaged" % (path, suite, name))
        out[suite, name] = value
    return out


def case_rows(cases):
    """case, ring, request, answer; long bytes of an answer are written as words."""
    for case in cases:
        head, *words = case.answer.split("\t")
        if head == "ok":
            words = [_shorter(text) for text in words]
        yield [case.name, case.ring, case.request, head] + words


def read_cases(path):
    """The cases of a table, answers exactly as an endpoint writes them."""
    return [Case(name, ring, request, expand("\t".join(answer)))
            for name, ring, request, *answer in read(path)]


def expand(answer):
    """An answer as an endpoint writes it: bytes in word form become hex."""
    head, *words = answer.split("\t")
    if head == "ok":
        session = Session()
        words = [session.bytes_word(text).hex() if "/" in text else text for text in words]
    return "\t".join([head] + words)


def _shorter(text):
    """An answer's hex in word form where that is much shorter."""
    if len(text) < 256 or set(text) - set("0123456789abcdef"):
        return text
    compact = word(bytes.fromhex(text))
    return compact if 2 * len(compact) < len(text) else text
