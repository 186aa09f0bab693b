#!/usr/bin/env python3
"""Writes a C test that holds the sizes of version 1.0, as tests/capi/structs_test.c lists them, against the least sizes
that the library accepts.

usage: make_struct_sizes.py HEADER LIST OUTPUT SOURCE...

A struct may grow at its end; what a program of version 1.0 gives must go on being read, so the least size is not to grow
with it. Every struct of the header must be in the list.
"""
import re
import sys

HEAD = """/* Made from structs_test.c and the sources of the library by make_struct_sizes.py. */
#include <stddef.h>

#include "check.h"

/* Up to and with a member, as a whole struct of 64-bit machines: aligned to eight bytes. */
#define LEAST(type, member) \\
  ((offsetof(type, member) + sizeof(((type*)0)->member) + 7) / 8 * 8)

int main(void) {
"""


def read(path):
    with open(path, encoding="utf-8") as source:
        return source.read()


def main():
    header, listed, output = sys.argv[1:4]
    sizes = dict(re.findall(r"FIRST_VERSION\((\w+), (\d+)\)", read(listed)))
    sized = re.findall(r"^typedef struct (\w+) \{\s*uint64_t struct_size;", read(header), re.MULTILINE)
    fixed = set(re.findall(r"^typedef struct (\w+) \{", read(header), re.MULTILINE)) - set(sized)
    unlisted = sorted(set(sized) - set(sizes) | fixed - set(re.findall(r"FIXED\((\w+), \d+\)", read(listed))))
    if unlisted or not sized:
        sys.exit("not listed in %s: %s" % (listed, ", ".join(unlisted) or "any struct"))
    lines = []
    for path in sorted(sys.argv[4:]):
        for kind, member in re.findall(r"KVPACK_SIZE_UP_TO\((kvpack_\w+),\s*(\w+)\)", read(path)):
            if kind not in sizes:
                sys.exit("%s: %s is not listed" % (path, kind))
            lines.append("  CHECK(sizeof(void*) != 8 || LEAST(%s, %s) == %s);" % (kind, member, sizes[kind]))
    if not lines:
        sys.exit("no least sizes found")
    with open(output, "w", encoding="utf-8") as out:
        out.write(HEAD + "\n".join(lines) + "\n  return check_result();\n}\n")


if __name__ == "__main__":
    main()
