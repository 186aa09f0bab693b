#!/usr/bin/env python3
"""Writes the header-only rooms as one header, kvpack.hpp.

usage: amalgamate.py INCLUDE_FOLDER LICENSE OUT [--version V] [--forward FOLDER]

What needs nlohmann/json, directly or through another header, stands behind KVPACK_WITH_JSON. What needs a compiled
file (the file system, the clock) is left out: the set below. --forward fills a folder with headers of the old names that
include the new one, so that a program written against the rooms can be built on it.
"""
import argparse
import pathlib
import re
import sys

ROOMS = ("base", "crypto", "core", "handoff")
COMPILED = {"kvpack/base/fs.h", "kvpack/base/clock.h"}
JSON_LIBRARY = "<nlohmann/json.hpp>"

OWN_INCLUDE = re.compile(r'^#include "(kvpack/[^"]+)"\s*$', re.MULTILINE)
SYSTEM_INCLUDE = re.compile(r"^#include (<[^>]+>)\s*$")
PRAGMA = re.compile(r"^#pragma once\s*$", re.MULTILINE)


class Headers:
    def __init__(self, include):
        self.text = {}
        for room in ROOMS:
            for path in sorted((include / "kvpack" / room).glob("*.h")):
                self.text[f"kvpack/{room}/{path.name}"] = path.read_text(encoding="utf-8")
        self.below = {name: OWN_INCLUDE.findall(text) for name, text in self.text.items()}

    def reaches(self, name, judge):
        """Whether the header, or one that it includes however deep, is one that `judge` says yes to."""
        return judge(name) or any(self.reaches(other, judge) for other in self.below[name])

    def in_order(self, names):
        """Each behind what it includes."""
        done = []

        def visit(name):
            if name in done:
                return
            for other in self.below[name]:
                visit(other)
            done.append(name)

        for name in sorted(names):
            visit(name)
        return done


def split_system(text):
    """The outside headers that are included whatever the machine, and the text without them. What stands behind an #if
    is for some machines only, and stays where it is."""
    found, kept, depth = [], [], 0
    for line in text.splitlines():
        depth += line.startswith("#if")
        depth -= line.startswith("#endif")
        match = SYSTEM_INCLUDE.match(line) if depth == 0 else None
        if match:
            found.append(match.group(1))
        else:
            kept.append(line)
    return found, "\n".join(kept)


def body(text):
    text = split_system(OWN_INCLUDE.sub("", PRAGMA.sub("", text)))[1]
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def amalgamate(headers, licence, version):
    kept = [n for n in headers.text if not headers.reaches(n, lambda name: name in COMPILED)]
    with_json = {n for n in kept if headers.reaches(n, lambda name: JSON_LIBRARY in headers.text[name])}
    order = headers.in_order(kept)
    plain = [n for n in order if n not in with_json]
    json = [n for n in order if n in with_json]

    def system(names):
        return sorted({i for n in names for i in split_system(headers.text[n])[0]})

    first = system(plain)
    out = [f"// kvpack {version}: the header-only rooms in one file. Generated: edit the headers it is made of.",
           "// Needs C++20 and OpenSSL's libcrypto. With KVPACK_WITH_JSON defined, and nlohmann/json to be found, it holds",
           "// the handoff protocol and proofs too.", "//"]
    out += ["// " + line if line else "//" for line in licence.strip().splitlines()]
    out += ["#pragma once", ""]
    out += [f"#include {name}" for name in first]
    for name in plain:
        out += ["", f"// ==== {name}", "", body(headers.text[name])]
    out += ["", "#ifdef KVPACK_WITH_JSON", ""]
    out += [f"#include {name}" for name in system(json) if name not in first]
    for name in json:
        out += ["", f"// ==== {name}", "", body(headers.text[name])]
    out += ["", "#endif  // KVPACK_WITH_JSON", ""]
    return "\n".join(out), kept


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("include", type=pathlib.Path)
    parser.add_argument("licence", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--version", default="")
    parser.add_argument("--forward", type=pathlib.Path)
    args = parser.parse_args()
    headers = Headers(args.include)
    text, kept = amalgamate(headers, args.licence.read_text(encoding="utf-8"), args.version)
    args.out.write_text(text, encoding="utf-8")
    if args.forward:
        for name in kept:
            path = args.forward / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text('#pragma once\n#include "kvpack.hpp"\n', encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
