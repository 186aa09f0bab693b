#!/usr/bin/env python3
"""Asks that a test pins each number which the header gives to programs: those of its enums and of its macros.

usage: numbers.py HEADER TEST

A test pins one with NUMBER(name, value). Whether the values agree is for the test to say.
"""
import re
import sys

from header import COMMENT


def main():
    header, test = sys.argv[1:]
    with open(header, encoding="utf-8") as source:
        code = COMMENT.sub("", source.read())
    with open(test, encoding="utf-8") as source:
        pinned = set(re.findall(r"\bNUMBER\((\w+), \w+\);", source.read()))
    given = set(re.findall(r"#define (KVPACK_\w+) (?:\d|UINT)", code))
    for body in re.findall(r"\benum\s*\w*\s*\{([^}]*)\}", code):
        given.update(re.findall(r"\bKVPACK_\w+(?=\s*[=,}]|\s*\Z)", body))
    for name in sorted(given - pinned):
        print("no test pins the number of " + name)
    for name in sorted(pinned - given):
        print("pinned, and not in the header: " + name)
    print("numbers: %d" % len(given))
    return 1 if given != pinned or not given else 0


if __name__ == "__main__":
    sys.exit(main())
