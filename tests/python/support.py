"""What the tests of the Python package share: where things are, and a small cache with its keys and store."""
import contextlib
import os
import pathlib
import shutil
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PACKAGE = ROOT / "capi" / "python"
HEADER = ROOT / "capi" / "kvpack_c.h"
sys.path.insert(0, str(PACKAGE))
sys.dont_write_bytecode = True
# Run by hand, a test uses what was built last by one of the usual presets.
for built in ("dev", "release"):
    if (ROOT / "build" / built / "libkvpack_c.so").exists():
        os.environ.setdefault("KVPACK_LIBRARY", str(ROOT / "build" / built / "libkvpack_c.so"))

import kvpack  # noqa: E402  the path comes first

HEADS, HEAD_DIM = 2, 4
TOKEN_BYTES = 2 * HEADS * HEAD_DIM
STATES = 2
SECRET = bytes([99]) * 32


def identity(byte):
    """An identity that is easy to tell from others."""
    return bytes([byte]) * 32


MODEL = kvpack.Model(identity(10), identity(11), identity(12), identity(13), identity(14))
OTHER_MODEL = kvpack.Model(identity(20), identity(11), identity(12), identity(13), identity(14))


def make_keys(first=99, **options):
    """A ring of one tenant."""
    options.setdefault("active_epoch", 1)
    return kvpack.Keys(bytes([first]) + SECRET[1:], tenant=identity(1), **options)


def make_family(codec="raw", dtype="f16"):
    """Keys and values of one layer, [tokens][heads][head_dim]."""
    return kvpack.Family(
        [kvpack.State(0, name, dtype, (kvpack.TOKENS, HEADS, HEAD_DIM), codec=codec) for name in ("v", "k")],
        engine_cache_abi=identity(2), topology=identity(3), shard_map=identity(4))


def make_tokens(count):
    """A prompt of which every longer one begins like it."""
    return [7 * i + 3 for i in range(count)]


def make_planes(tokens, token_bytes=TOKEN_BYTES, states=STATES):
    """Bytes that depend on their place; a longer cache begins like a shorter one."""
    return [bytes(((i * 2654435761 + state * 97) >> 13) & 0xFF for i in range(tokens * token_bytes))
            for state in range(states)]


class StoreCase(unittest.TestCase):
    """A store in a folder of its own."""

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="kvpack-python-")
        self.addCleanup(shutil.rmtree, self.folder, True)
        self.root = os.path.join(self.folder, "store")
        self.keys = make_keys()
        self.family = make_family()

    def create(self, **options):
        options.setdefault("max_parallelism", 2)
        store = kvpack.Store.create(self.root, self.keys, **options)
        self.addCleanup(store.close)
        return store

    def save(self, store, count, **options):
        options.setdefault("grain_tokens", 256)
        return store.save(self.family, MODEL, make_tokens(count), make_planes(count), **options)

    @contextlib.contextmanager
    def refused(self, code, message=None, kind=kvpack.Error):
        """Expects an Error with this code, and with this text or, as a pattern, part of it."""
        with self.assertRaises(kind) as caught:
            yield caught
        self.assertEqual(caught.exception.code, code, str(caught.exception))
        self.assertTrue(caught.exception.category)
        if message is not None:
            self.assertRegex(caught.exception.message, message)


def main():
    """Runs the tests of the calling file, each by its name; what is left out says why."""
    unittest.main(module="__main__", verbosity=2)
