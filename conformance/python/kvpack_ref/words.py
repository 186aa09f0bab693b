"""Writing bytes as words of the line protocol, short and still readable."""

import re

SHORTEST_FILL = 32
JOINED_GAP = 16
_RUN = re.compile(rb"(.)\1{%d,}" % (SHORTEST_FILL - 1), re.DOTALL)


def word(data):
    """The bytes themselves: hex, with every long run of one byte as a fill."""
    pieces, at = [], 0
    for run in _RUN.finditer(data):
        if run.start() > at:
            pieces.append("add:" + data[at:run.start()].hex())
        pieces.append("fill:%d:%02x" % (run.end() - run.start(), data[run.start()]))
        at = run.end()
    if at < len(data):
        pieces.append("add:" + data[at:].hex())
    if pieces and pieces[0].startswith("add:"):
        pieces[0] = pieces[0][4:]
    else:
        pieces.insert(0, "-")
    return "/".join(pieces)


def difference(base_word, base, data):
    """Bytes of the same length as a base, as edits that set what differs."""
    ranges = []
    for at in range(len(base)):
        if base[at] != data[at]:
            if ranges and at - ranges[-1][1] < JOINED_GAP:
                ranges[-1][1] = at + 1
            else:
                ranges.append([at, at + 1])
    return "/".join([base_word] + ["set:%d:%s" % (start, data[start:end].hex()) for start, end in ranges])


def flip(offset, mask=1):
    """The edit that xors one byte."""
    return "/xor:%d:%02x" % (offset, mask)
