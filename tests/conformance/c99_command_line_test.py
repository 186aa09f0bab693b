#!/usr/bin/env python3
"""The command line of the C99 reader on the vectors: what it says of a file, and what it writes of it.

usage: c99_command_line_test.py PROGRAM
"""
import json
import os
import subprocess
import sys
import tempfile
import unittest

KIT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "conformance")
sys.path.insert(0, os.path.join(KIT, "python"))

from kvpack_ref import replay  # noqa: E402

PROGRAM = ""
PLAIN, SEALED = "fixture/raw/plain/plain", "fixture/lossless/encrypted/encrypted"
TENANT = ["--tenant", "01" * 32]


class CommandLine(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.values = replay.load_values()
        cls.rows = cls.values["production_v1"]
        with open(os.path.join(KIT, "vectors", "handoff_vectors.json"), encoding="utf-8") as f:
            cls.transfers = {t["name"]: t for t in json.load(f)["transfers"]}

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="kvpack-c99-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.root = self.file("root", b"\x63" * 32)
        self.keys = ["--root", self.root, *TENANT]

    def file(self, name, data):
        path = os.path.join(self.folder, name)
        with open(path, "wb") as f:
            f.write(data)
        return path

    def run_it(self, *words):
        done = subprocess.run([PROGRAM, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
        return done.returncode, done.stdout.decode().strip(), done.stderr.decode().strip()

    def verified(self, data, *options):
        return self.run_it("verify", self.file("object", data), *options)

    def decoded(self, data, *options):
        """What is written, or the status where nothing is."""
        out = os.path.join(self.folder, "out")
        status, _, _ = self.run_it("decode", self.file("object", data), out, *options)
        if status != 0:
            self.assertFalse(os.path.exists(out), "a refusal has written a file")
            return status
        with open(out, "rb") as f:
            data = f.read()
        os.remove(out)
        return data

    def test_pack(self):
        pack, manifest = self.rows[PLAIN, "pack"], self.rows[PLAIN, "manifest"]
        self.assertEqual(self.verified(pack)[:2], (0, "pack: integrity only, not authenticated"))
        self.assertEqual(self.verified(pack, *self.keys)[:2], (0, "pack: authenticated"))
        self.assertEqual(self.decoded(pack), manifest)
        damaged = pack[:4106] + bytes([pack[4106] ^ 1]) + pack[4107:]
        status, out, err = self.verified(damaged, *self.keys)
        self.assertEqual((status, out), (1, ""))
        self.assertTrue(err.endswith(": authentication:manifest HMAC authentication failed"), err)

    def test_encrypted_pack(self):
        pack = self.rows[SEALED, "pack"]
        self.assertEqual(self.verified(pack)[:2],
                         (0, "pack: integrity only, not authenticated; the manifest is encrypted"))
        self.assertEqual(self.decoded(pack), 1)
        self.assertEqual(self.decoded(pack, *self.keys), self.rows[SEALED, "manifest"])

    def test_keys_of_another_tenant(self):
        status, _, err = self.verified(self.rows[PLAIN, "pack"], "--root", self.root, "--operator", "tenant-alpha")
        self.assertEqual(status, 1)
        self.assertTrue(err.endswith(": authentication:manifest HMAC authentication failed"), err)

    def test_chunk(self):
        chunk = self.rows[PLAIN, "chunk"]
        pack = ["--pack", self.file("pack", self.rows[PLAIN, "pack"])]
        self.assertEqual(self.verified(chunk)[:2],
                         (0, "chunk: well formed; nothing is authenticated without --pack"))
        self.assertEqual(self.verified(chunk, *pack)[:2], (0, "chunk: integrity only, not authenticated"))
        self.assertEqual(self.verified(chunk, *pack, *self.keys)[:2], (0, "chunk: authenticated"))
        self.assertEqual(self.decoded(chunk, *pack, *self.keys), bytes(range(16)))
        other = self.rows["delta-chain/raw/plain/plain", "stage-0/chunk"]
        self.assertEqual(self.verified(other, *pack)[0], 1)

    def test_encrypted_chunk(self):
        chunk = self.rows[SEALED, "chunk"]
        pack = ["--pack", self.file("pack", self.rows[SEALED, "pack"])]
        self.assertEqual(self.decoded(chunk, *pack), 1)
        self.assertEqual(self.decoded(chunk, *pack, *self.keys), bytes(range(16)))

    def test_pack_set(self):
        one, chain8 = (self.values["pack_sets"]["pack-set", name] for name in ("one", "chain8"))
        self.assertEqual(self.verified(one)[:2], (0, "pack set: integrity only, not authenticated"))
        self.assertEqual(self.verified(one, *self.keys)[:2], (0, "pack set: authenticated"))
        self.assertEqual(self.verified(chain8, *self.keys)[:2], (0, "pack set: authenticated"))
        self.assertIn("a manifest is encrypted", self.verified(chain8)[1])
        self.assertEqual(self.decoded(one, "--record", "0", *self.keys), self.rows[PLAIN, "chunk"])
        self.assertEqual(self.decoded(one, "--record", "1"), self.rows[PLAIN, "pack"])
        self.assertEqual(self.decoded(one, "--record", "2"), 2)
        self.assertEqual(self.verified(one[:-1])[0], 1)

    def test_handoff(self):
        for name in ("declared", "deferred", "two-component", "delta-deferred-257-256"):
            t = self.transfers[name]
            stream = bytes.fromhex("".join(t["frames_hex"]))
            options = ["--mac-key", self.file("mac", bytes.fromhex(t["key_hex"])), "--key-id", t["key_id"],
                       "--min-epoch", str(t["min_epoch"]), "--now", str(t["now_unix_ms"])]
            self.assertEqual(self.verified(stream, *options)[0], 0)
            payloads = b"".join(map(bytes.fromhex, t["payloads_hex"]))
            self.assertEqual(self.decoded(stream, *options), payloads)
            self.assertEqual(self.decoded(stream[:-1], *options), 1)
            late = options[:-1] + [str(t["begin"]["expires_unix_ms"] + 1)]
            status, _, err = self.verified(stream, *late)
            self.assertEqual(status, 1)
            self.assertIn("validation:handoff expired at", err)

    def test_other_objects(self):
        for name, verdict in (("family", "family: valid"), ("schema", "schema: well formed"),
                              ("state_declaration", "state declaration: well formed"),
                              ("manifest", "manifest: valid, not authenticated")):
            self.assertEqual(self.verified(self.rows[PLAIN, name])[:2], (0, verdict))
        extras = self.values["extras"]
        self.assertEqual(self.verified(extras["sidecar", "sidecar"])[0], 0)
        self.assertEqual(self.verified(extras["transform", "every_op"])[0], 0)
        self.assertEqual(self.verified(extras["rotation", "descriptor"])[0], 0)
        self.assertEqual(self.verified(b"IOKVPK1\0" + bytes(100))[0], 1)
        self.assertEqual(self.verified(b"")[0], 1)

    def test_nothing_is_overwritten(self):
        self.file("out", b"mine")
        status, _, err = self.run_it("decode", self.file("object", self.rows[PLAIN, "pack"]),
                                     os.path.join(self.folder, "out"))
        self.assertEqual(status, 3)
        self.assertTrue(err.endswith(": exists"), err)

    def test_wrong_usage(self):
        for words in ([], ["verify"], ["verify", "a", "b"], ["decode", "a"], ["verify", "a", "--other"],
                      ["verify", self.root, "--tenant", "01"], ["verify", self.root, "--root", self.root],
                      ["endpoint", "a"]):
            self.assertEqual(self.run_it(*words)[0], 2, words)
        self.assertEqual(self.run_it("verify", os.path.join(self.folder, "absent"))[0], 3)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()
