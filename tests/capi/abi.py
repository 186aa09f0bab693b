#!/usr/bin/env python3
"""Compares the C library's binary interface with the committed baseline (abigail-tools).

usage: abi.py BASELINE HEADER LIBRARY                status 1 when something that programs rely on has changed
       abi.py BASELINE HEADER LIBRARY --write        renew the baseline
       abi.py BASELINE HEADER LIBRARY --self-test    the comparison must see breaks and let growth pass

Growth is no break: new functions, and members at the end of a struct that begins with struct_size. It is listed, with
the advice to renew the baseline. abidiff reads debug information only and passes anything without it, so a library that
has none, or not that of types (-g1), is refused here.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile

STRUCT = re.compile(r"    <class-decl name='(\w+)' size-in-bits='(\d+)'.*?</class-decl>\n", re.DOTALL)
MEMBER = re.compile(r"      <data-member .*?</data-member>\n", re.DOTALL)


class NothingToCompare(Exception):
    """The library does not say what its types are."""


def describe(header, library):
    """The interface as text: what the header declares, and not what handles point to. The place of the source
    tree is no part of it."""
    sections = subprocess.run(["readelf", "-SW", library], check=True, capture_output=True, text=True).stdout
    if ".debug_info" not in sections:
        raise NothingToCompare("%s has no debug information; build with -g" % library)
    # A folder with the header alone: of a folder abidw compares names, of a single header the path, and the path in the
    # debug information is that of another tree when a compiler cache has served the object.
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(header, folder)
        text = subprocess.run(
            ["abidw", "--no-corpus-path", "--no-comp-dir-path", "--no-show-locs", "--drop-private-types",
             "--exported-interfaces-only", "--headers-dir", folder, library],
            check=True, capture_output=True, text=True).stdout
    with open(header, encoding="utf-8") as source:
        declared = set(re.findall(r"^typedef struct (\w+) \{", source.read(), re.MULTILINE))
    missing = declared - {match.group(1) for match in STRUCT.finditer(text)}
    if not declared or missing:
        raise NothingToCompare("%s has no debug information of %d structs of the header, such as %s; build with -g"
                               % (library, len(missing), min(missing, default="any")))
    return re.sub(r"path='[^']*/(capi/[^'/]+)'", r"path='\1'", text)


def differences(old, new, *options):
    """abidiff's report on two descriptions; empty when nothing differs."""
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for name, text in (("old.abi", old), ("new.abi", new)):
            paths.append(os.path.join(folder, name))
            with open(paths[-1], "w", encoding="utf-8") as out:
                out.write(text)
        run = subprocess.run(["abidiff"] + list(options) + paths, capture_output=True, text=True)
    if run.returncode == 0:
        return ""
    return (run.stdout + run.stderr).strip() or "abidiff ended with %d" % run.returncode


def without_growth(old, new):
    """The new description without the members that structs with struct_size have gained at their ends."""
    before = {match.group(1): match for match in STRUCT.finditer(old)}

    def shrink(match):
        known = before.get(match.group(1))
        members = MEMBER.findall(match.group(0))
        count = len(MEMBER.findall(known.group(0))) if known else len(members)
        if len(members) <= count or "name='struct_size'" not in members[0]:
            return match.group(0)
        text = match.group(0).replace("size-in-bits='%s'" % match.group(2), "size-in-bits='%s'" % known.group(2), 1)
        for member in members[count:]:
            text = text.replace(member, "", 1)
        return text

    return STRUCT.sub(shrink, new)


def judge(old, new):
    """What is broken, and what has been added."""
    broken = differences(old, without_growth(old, new), "--no-added-syms")
    return broken, "" if broken else differences(old, new)


def check(options):
    new = describe(options.header, options.library)
    with open(options.baseline, encoding="utf-8") as source:
        broken, added = judge(source.read(), new)
    if broken:
        print(broken)
        print("abi: BROKEN: programs that were built against the baseline would misbehave")
        return 1
    if added:
        print(added)
        print("abi: the interface has grown; renew the baseline with %s --write" % os.path.basename(__file__))
    print("abi: compatible with the baseline")
    return 0


def self_test(options):
    """Changes the description in ways that must be seen, and in one that must pass."""
    with tempfile.TemporaryDirectory() as folder:
        stripped = os.path.join(folder, "stripped.so")
        shutil.copy(options.library, stripped)
        subprocess.run(["strip", "--strip-debug", stripped], check=True)
        try:
            describe(options.header, stripped)
            print("abi: a stripped library is not told from a whole one")
            return 1
        except NothingToCompare:
            pass
    new = describe(options.header, options.library)
    grown = next(match for match in STRUCT.finditer(new) if match.group(1) == "kvpack_verify_options")
    shorter = grown.group(0).replace(MEMBER.findall(grown.group(0))[-1], "").replace("size-in-bits='256'",
                                                                                   "size-in-bits='192'")
    cases = {
        "a struct of another size": (re.sub(r"(name='kvpack_id' size-in-bits=')256", r"\g<1>128", new), True),
        "a member elsewhere": (new.replace(grown.group(0), grown.group(0).replace("'96'", "'224'")), True),
        "a member that is gone": (new, True),
        "a function that is gone": (new.replace("kvpack_version", "kvpack_versions"), True),
        "another parameter": (re.sub(r"(<function-decl name='kvpack_bytes_size'.*?<parameter type-id=')([\w-]+)",
                                     r"\g<1>type-id-2", new, flags=re.DOTALL), True),
        "a member at the end": (new.replace(grown.group(0), shorter), False),
    }
    for what, (old, is_break) in cases.items():
        compared = new.replace(grown.group(0), shorter) if what == "a member that is gone" else new
        broken, added = judge(old, compared)
        if bool(broken) != is_break or (not is_break and not added):
            print("abi: %s is %s" % (what, "not seen" if is_break else "called a break"))
            return 1
    print("abi: %d changes judged as they should be, and a stripped library is refused" % len(cases))
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("baseline")
    parser.add_argument("header")
    parser.add_argument("library")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--self-test", action="store_true")
    options = parser.parse_args()
    try:
        if options.self_test:
            return self_test(options)
        if not options.write:
            return check(options)
        text = describe(options.header, options.library)
    except NothingToCompare as problem:
        print("abi: nothing can be compared: %s" % problem)
        return 1
    with open(options.baseline, "w", encoding="utf-8") as out:
        out.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
