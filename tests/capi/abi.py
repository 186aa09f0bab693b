#!/usr/bin/env python3
"""Compares the C library's binary interface with the committed baseline (abigail-tools).

usage: abi.py BASELINE HEADER LIBRARY            status 1 when something that programs rely on has changed
       abi.py BASELINE HEADER LIBRARY --write    renew the baseline
       abi.py BASELINE HEADER LIBRARY --self-test   the comparison must see a change and a stripped library

Additions are no break: they are listed, with the advice to renew the baseline. abidiff reads debug information
only and passes anything without it, so a library that has none is refused here.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile

# Only what the header declares is interface; what handles point to is not.
PUBLIC_ONLY = ["--drop-private-types", "--exported-interfaces-only"]


def has_debug_info(library):
    sections = subprocess.run(["readelf", "-SW", library], check=True, capture_output=True, text=True).stdout
    return ".debug_info" in sections


def describe(header, library):
    """The baseline's text; the place of the source tree is no part of it."""
    text = subprocess.run(
        ["abidw", "--no-corpus-path", "--no-comp-dir-path", "--no-show-locs", "--header-file", header]
        + PUBLIC_ONLY + [library], check=True, capture_output=True, text=True).stdout
    root = os.path.dirname(os.path.dirname(os.path.abspath(header)))
    return text.replace("path='%s/" % root, "path='")


def differences(baseline, header, library, *more):
    """abidiff's report; empty when nothing differs."""
    run = subprocess.run(["abidiff", "--header-file2", header] + PUBLIC_ONLY + list(more) + [baseline, library],
                         capture_output=True, text=True)
    if run.returncode == 0:
        return ""
    return (run.stdout + run.stderr).strip() or "abidiff ended with %d" % run.returncode


def check(options):
    if not has_debug_info(options.library):
        print("abi: %s has no debug information, so nothing can be compared; build with -g" % options.library)
        return 1
    broken = differences(options.baseline, options.header, options.library, "--no-added-syms")
    if broken:
        print(broken)
        print("abi: BROKEN: programs that were built against the baseline would misbehave")
        return 1
    added = differences(options.baseline, options.header, options.library)
    if added:
        print(added)
        print("abi: only additions; renew the baseline with %s --write" % os.path.basename(__file__))
    print("abi: compatible with the baseline")
    return 0


def self_test(options):
    with tempfile.TemporaryDirectory() as folder:
        stripped = os.path.join(folder, "stripped.so")
        shutil.copy(options.library, stripped)
        subprocess.run(["strip", "--strip-debug", stripped], check=True)
        if check(argparse.Namespace(baseline=options.baseline, header=options.header, library=stripped)) == 0:
            print("abi: a stripped library passed")
            return 1
        with open(options.baseline, encoding="utf-8") as source:
            text = source.read()
        changed, count = re.subn(r"(<class-decl name='kvpack_id' size-in-bits=')256'", r"\g<1>128'", text)
        other = os.path.join(folder, "changed.abi")
        with open(other, "w", encoding="utf-8") as out:
            out.write(changed)
        if count == 0 or not differences(other, options.header, options.library, "--no-added-syms"):
            print("abi: a changed struct passed")
            return 1
    print("abi: the comparison sees a changed struct and a stripped library")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("baseline")
    parser.add_argument("header")
    parser.add_argument("library")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--self-test", action="store_true")
    options = parser.parse_args()
    if options.self_test:
        return self_test(options)
    if not options.write:
        return check(options)
    if not has_debug_info(options.library):
        print("abi: %s has no debug information; build with -g" % options.library)
        return 1
    with open(options.baseline, "w", encoding="utf-8") as out:
        out.write(describe(options.header, options.library))
    return 0


if __name__ == "__main__":
    sys.exit(main())
