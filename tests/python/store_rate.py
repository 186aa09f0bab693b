"""How fast the package saves and restores through callbacks, beside the same calls in C.

usage: store_rate.py [--megabytes 100] [--rounds 5] [--folder FOLDER] [--least RATIO]

Both save two planes through a reader and restore them through `write`, in pieces of 256 KiB, on one thread, C and Python
in turn; what is compared is the best round of each. With --least the exit code says whether Python reached that part of C's rate.
"""
import argparse
import array
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import support
import kvpack

TOKEN_BYTES = 1024
GRAIN = 256


def build(folder):
    """The C program, against the library that the package has loaded."""
    library = pathlib.Path(kvpack._library.lib._name).resolve()
    program = os.path.join(folder, "store_rate")
    subprocess.run([os.environ.get("CC", "cc"), "-O2", "-D_POSIX_C_SOURCE=200809L", "-I", str(support.HEADER.parent),
                    str(pathlib.Path(__file__).with_name("store_rate.c")), str(library),
                    "-Wl,-rpath," + str(library.parent), "-o", program], check=True)
    return program


class Engine(kvpack.Sink):
    """Two planes, given by readers and taken by writes."""

    def __init__(self, size):
        self.planes = [bytes([state + 1]) * size for state in range(2)]
        self.shadow = [bytearray(b"\xff" * size) for _ in range(2)]
        # A bytearray copies twice what is put into a slice of it.
        self.views = [memoryview(plane) for plane in self.shadow]
        self.taken = 0

    def reader(self, state):
        plane, at = memoryview(self.planes[state]), 0

        def read(room):
            nonlocal at
            size = min(len(room), len(plane) - at)
            room[:size] = plane[at:at + size]
            at += size
            return size
        return read

    def write(self, index, offset, data):
        self.views[index][offset:offset + len(data)] = data
        self.taken += 1

    def commit(self):
        pass


def python_round(root, tokens, family):
    engine = Engine(len(tokens) * TOKEN_BYTES)
    with kvpack.Store.create(root, support.make_keys(), max_parallelism=1) as store:
        began = time.monotonic()
        store.save(family, support.MODEL, tokens, [engine.reader(0), engine.reader(1)], grain_tokens=GRAIN)
        saved = time.monotonic() - began
        began = time.monotonic()
        restored = store.restore(family, support.MODEL, tokens, sink=engine)
        seconds = time.monotonic() - began
    assert restored and engine.shadow[1] == engine.planes[1]
    assert engine.taken == 2 * len(tokens) // GRAIN
    return saved, seconds


def c_round(program, root, tokens):
    printed = subprocess.run([program, root, str(len(tokens)), "1"], check=True, stdout=subprocess.PIPE,
                             universal_newlines=True).stdout
    return tuple(float(value) for value in printed.split())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", default=None)
    parser.add_argument("--least", type=float, default=0)
    arguments = parser.parse_args()

    tokens = array.array("I", support.make_tokens(arguments.megabytes * 1000000 // (2 * TOKEN_BYTES * GRAIN) * GRAIN))
    megabytes = 2 * len(tokens) * TOKEN_BYTES / 1e6
    family = kvpack.Family([kvpack.State(0, name, "u8", (kvpack.TOKENS, TOKEN_BYTES)) for name in ("k", "v")],
                           engine_cache_abi=support.identity(2), topology=support.identity(3),
                           shard_map=support.identity(4))
    folder = tempfile.mkdtemp(dir=arguments.folder)
    found = {"C": [], "Python": []}
    try:
        program = build(folder)
        for number in range(arguments.rounds):
            root = os.path.join(folder, "store")
            for name, run in (("C", lambda: c_round(program, root, tokens)),
                              ("Python", lambda: python_round(root, tokens, family))):
                found[name].append(run())
                shutil.rmtree(root)
    finally:
        shutil.rmtree(folder)
    worst = 9.0
    for which, what in enumerate(("save", "restore")):
        c, python = (min(times[which] for times in found[name]) for name in ("C", "Python"))
        worst = min(worst, c / python)
        print("%-8s C %7.1f MB/s   Python %7.1f MB/s   ratio %.3f" % (what, megabytes / c, megabytes / python, c / python))
    return 1 if worst < arguments.least else 0


if __name__ == "__main__":
    sys.exit(main())
