"""Line protocol of conformance/README.md: words, slots, and the dispatch of one request to its operation."""

import collections
import re

from .errors import Reject
from .keys import KeyRing

MAX_WORD_BYTES = 300 << 20
MAX_SLOTS = 256
MAX_EPOCHS = 64
PROTOCOL = "kvpack-endpoint/1"

_NAME = re.compile(r"[a-z0-9_.]{1,32}\Z")
_HEX = re.compile(r"(?:[0-9a-f]{2})*\Z")
_NUMBER = re.compile(r"(?:0|[1-9][0-9]{0,19})\Z")

# arguments: one letter per word, b bytes, o optional bytes, n number, w the word itself; a final * lets
# the letter before it occur any number of times. function(session, *arguments) gives the result words.
Operation = collections.namedtuple("Operation", "arguments function")


class Fault(Exception):
    """The request itself is malformed."""


class Table(dict):
    """Operations by (verb, kind)."""

    def operation(self, verbs, kind, arguments):
        """Decorator. `decode/verdict` also registers the verdict, which gives no result words."""
        def register(function):
            for verb in verbs.split("/"):
                silent = verb == "verdict" and verbs != "verdict"
                self[verb, kind] = Operation(arguments, _without_results(function) if silent else function)
            return function
        return register


def _without_results(function):
    def judge(session, *arguments):
        function(session, *arguments)
        return ()
    return judge


def fault_unless(condition, text):
    if not condition:
        raise Fault(text)


def number(word):
    fault_unless(_NUMBER.match(word), "not a number")
    value = int(word)
    fault_unless(value < 1 << 64, "number is outside u64")
    return value


def hexadecimal(word):
    fault_unless(_HEX.match(word), "not lower-case hex of even length")
    return bytes.fromhex(word)


def sized(data, size):
    fault_unless(len(data) == size, "not %d bytes" % size)
    return data


def records(data, size):
    """`data` cut into pieces of `size` bytes."""
    fault_unless(len(data) % size == 0, "not a multiple of %d bytes" % size)
    return [data[at:at + size] for at in range(0, len(data), size)]


def show(value):
    """One result word."""
    if value is None:
        return "none"
    if isinstance(value, (bytes, bytearray)):
        return value.hex() or "-"
    return str(value)


# ------------------------------------------------------------------------------------------- bytes words

def _cut(data, size):
    size = number(size)
    fault_unless(size <= len(data), "cut is longer than the bytes")
    return data[:size]


def _replace(data, offset, piece, combine):
    at, piece = number(offset), hexadecimal(piece)
    end = at + len(piece)
    fault_unless(end <= len(data), "edit lies outside the bytes")
    return b"".join((data[:at], combine(data[at:end], piece), data[end:]))


def _xor(data, offset, piece):
    return _replace(data, offset, piece, lambda old, new: bytes(a ^ b for a, b in zip(old, new)))


def _set(data, offset, piece):
    return _replace(data, offset, piece, lambda old, new: new)


def _add(data, piece):
    return data + hexadecimal(piece)


def _fill(data, count, byte):
    count = number(count)
    fault_unless(len(data) + count <= MAX_WORD_BYTES, "bytes are too long")
    return data + sized(hexadecimal(byte), 1) * count


# By name: how many arguments follow the name, and the function.
EDITS = {"cut": (1, _cut), "xor": (2, _xor), "set": (2, _set), "add": (1, _add), "fill": (2, _fill)}


def edited(data, edits):
    """The bytes after edits such as `xor:0:01`, applied in order."""
    for edit in edits:
        name, *arguments = edit.split(":")
        count, edit_bytes = EDITS.get(name, (-1, None))
        fault_unless(len(arguments) == count, "unknown edit")
        data = edit_bytes(data, *arguments)
        fault_unless(len(data) <= MAX_WORD_BYTES, "bytes are too long")
    return data


# ----------------------------------------------------------------------------------------------- session

class Session:
    """What one endpoint remembers between requests: slots, the key ring, and a table's own context."""

    def __init__(self, *tables, name="python"):
        self.name = name
        self.slots = {}
        self.ring = None
        self.context = {}
        self._operations = {}
        for table in tables:
            self._operations.update(table)

    def need_ring(self):
        fault_unless(self.ring, "no keys are set")
        return self.ring

    def answer(self, line):
        """The answer to one request line, both without their line ends."""
        words = line.split("\t")
        try:
            results = self._run(words)
        except Reject as refusal:
            return str(refusal)
        except Fault as fault:
            return "fault:%s" % fault
        if results is None:
            return "unsupported"
        return "\t".join(["ok"] + [show(value) for value in results])

    def _run(self, words):
        control = {"hello": self._hello, "slot": self._slot, "drop": self._drop, "keys": self._keys}
        if words[0] in control:
            return control[words[0]](words[1:])
        operation = self._operations.get(tuple(words[:2]))
        if operation is None:
            return None
        return operation.function(self, *self._arguments(operation.arguments, words[2:]))

    def _arguments(self, letters, words):
        if letters.endswith("*"):
            fixed, repeated = letters[:-2], letters[-2]
            letters = fixed + repeated * max(0, len(words) - len(fixed))
        fault_unless(len(words) == len(letters), "wrong number of words")
        read = {"b": self.bytes_word, "o": self.optional_bytes, "n": number, "w": str}
        return [read[letter](word) for letter, word in zip(letters, words)]

    def bytes_word(self, word):
        base, *edits = word.split("/")
        if base == "-":
            data = b""
        elif base[:1] == "@":
            fault_unless(base[1:] in self.slots, "unknown slot")
            data = self.slots[base[1:]]
        else:
            fault_unless(base, "empty word")
            data = hexadecimal(base)
        return edited(data, edits)

    def optional_bytes(self, word):
        return None if word == "none" else self.bytes_word(word)

    def _hello(self, words):
        fault_unless(not words, "wrong number of words")
        return PROTOCOL, self.name

    def _slot(self, words):
        fault_unless(len(words) == 2 and _NAME.match(words[0]), "slot wants a name and bytes")
        data = self.bytes_word(words[1])
        fault_unless(words[0] in self.slots or len(self.slots) < MAX_SLOTS, "too many slots")
        self.slots[words[0]] = data
        return (len(data),)

    def _drop(self, words):
        fault_unless(len(words) == 1 and _NAME.match(words[0]), "drop wants a name")
        self.slots.pop(words[0], None)
        return ()

    def _keys(self, words):
        if words == ["none"]:
            self.ring = None
            return ()
        fault_unless(4 <= len(words) <= 3 + MAX_EPOCHS, "keys wants two roots, a tenant and epochs")
        roots = [sized(self.bytes_word(word), 32) for word in words[:3]]
        self.ring = KeyRing(*roots, [number(word) for word in words[3:]])
        return ()


def serve(session, requests, answers):
    """Answer every line of a text stream until it ends."""
    for line in requests:
        answers.write(session.answer(line.rstrip("\n")) + "\n")
        answers.flush()
