#!/usr/bin/env python3
"""Answers the line protocol of conformance/README.md on standard input, by the Python reference codec."""

import sys

from kvpack_ref import operations, protocol

if __name__ == "__main__":
    sys.stdin.reconfigure(encoding="ascii", errors="replace", newline="\n")
    sys.stdout.reconfigure(encoding="ascii", errors="backslashreplace", newline="\n")
    protocol.serve(protocol.Session(operations.TABLE), sys.stdin, sys.stdout)
