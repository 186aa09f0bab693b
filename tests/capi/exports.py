#!/usr/bin/env python3
"""Compares the symbols that the C library exports with the functions that its header declares.

usage: exports.py HEADER LIBRARY [--nm NM]
"""
import argparse
import subprocess
import sys

from header import functions_of


def exported(nm, library):
    """Names of the defined dynamic symbols; the version node itself, which nm calls absolute, is none."""
    lines = subprocess.run([nm, "-D", "--defined-only", library], check=True, capture_output=True,
                           text=True).stdout.splitlines()
    rows = [line.split() for line in lines]
    return {row[-1].split("@")[0] for row in rows if row[-2] != "A"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("header")
    parser.add_argument("library")
    parser.add_argument("--nm", default="nm")
    options = parser.parse_args()
    declared = {function.name for function in functions_of(options.header)}
    found = exported(options.nm, options.library)
    for name in sorted(declared - found):
        print("declared and not exported: " + name)
    for name in sorted(found - declared):
        print("exported and not declared: " + name)
    print("exports: %d functions" % len(declared))
    return 1 if declared != found or not declared else 0


if __name__ == "__main__":
    sys.exit(main())
