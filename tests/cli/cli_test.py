#!/usr/bin/env python3
"""The contract of the kvpack command line, checked from outside. usage: cli_test.py TOOL [unittest arguments]"""
import hashlib
import json
import os
import pathlib
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

TOOL = None
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
ID = lambda byte: ("%02x" % byte) * 32
MODEL = ["weights_config", "adapters", "tokenizer_template", "position_semantics", "qualified_math"]


def npy(descr, shape, data):
    header = "{'descr': '%s', 'fortran_order': False, 'shape': %s, }" % (descr, tuple(shape))
    header += " " * (-(len(header) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + data


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="kvpack-cli-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.random = random.Random(7)
        self.write("s.key", bytes([99]) * 32, 0o600)
        self.write("other.key", bytes([98]) * 32, 0o600)
        self.keys = ["--key", "s.key", "--tenant-id", "acme"]

    def write(self, name, data, mode=0o644):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        path.chmod(mode)
        return path

    def run_tool(self, *args, code=0):
        done = subprocess.run([TOOL, *map(str, args)], cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertEqual(done.returncode, code, f"{args}\n{done.stdout.decode()}\n{done.stderr.decode()}")
        return done

    def json(self, *args, code=0):
        done = self.run_tool(*args, "--json", code=code)
        self.assertEqual(done.stdout.count(b"\n"), 1, "one JSON value on one line")
        return json.loads(done.stdout)

    def refused(self, *args, category, message=None, code=4):
        value = self.json(*args, code=code)
        self.assertFalse(value["ok"])
        self.assertEqual(value["error"]["category"], category, value)
        if message is not None:
            self.assertEqual(value["error"]["message"], message)
        return value["error"]

    def describe(self, tokens=600, **changes):
        self.write("tokens.u32", struct.pack("<%dI" % tokens, *range(tokens)))
        self.k = self.random.randbytes(tokens * 2 * 8 * 2)
        self.v = self.random.randbytes(tokens * 2 * 8 * 2)
        self.write("k.bin", self.k)
        self.write("v.bin", self.v)
        description = {
            "schema": "kvpack.description.v1",
            "family": {"engine_cache_abi": ID(2), "topology": ID(3), "shard_map": ID(4)},
            "model": {name: ID(10 + i) for i, name in enumerate(MODEL)},
            "auxiliary": [{"type_id": ID(20), "value_id": ID(21)}],
            "tokens": "tokens.u32",
            "spans": {"rule": "aligned", "grain_tokens": 256},
            "states": [
                {"layer": 0, "name": "k", "dtype": "f16", "shape": [tokens, 2, 8], "file": "k.bin"},
                {"layer": 0, "name": "v", "dtype": "f16", "shape": [2, tokens, 8], "token_axis": 1, "codec": "lossless",
                 "file": "v.bin", "dependencies": [{"layer": 0, "name": "k"}]},
            ],
        }
        description.update(changes)
        self.write("DESC.json", json.dumps(description).encode())
        return description

    def pack(self, *more, out="cache", description="DESC.json"):
        value = self.json("pack", *self.keys, description, "--out", out, *more)
        return f"{out}/{value['file']}", value

    def files(self, folder):
        return sorted(os.listdir(self.folder / folder))


class Keys(Case):
    def test_keygen_makes_a_private_key_and_never_replaces(self):
        self.run_tool("keygen", "new.key")
        path = self.folder / "new.key"
        self.assertEqual(path.stat().st_mode & 0o777, 0o600)
        self.assertEqual(len(path.read_bytes()), 32)
        before = path.read_bytes()
        self.refused("keygen", "new.key", category="expectation", message="target exists with different bytes")
        self.assertEqual(path.read_bytes(), before)
        self.refused("keygen", "missing/new.key", category="io", code=5)

    def test_misuse_is_usage_and_a_missing_key_file_is_io(self):
        self.describe()
        path, _ = self.pack()
        for arguments in (["--tenant-id", "acme"], ["--epoch", "1"], ["--key", "s.key"],
                          ["--key", "s.key", "--tenant-id", "a", "--tenant", ID(1)],
                          ["--key", "s.key", "--tenant", "12"], ["--key", "s.key", "--tenant", ID(0)],
                          ["--key", "s.key", "--tenant-id", "a", "--min-epoch", "1"],
                          ["--key", "s.key", "--tenant-id", "a", "--epoch", "0"],
                          ["--key", "s.key", "--tenant-id", "a", "--epoch", "70", "--min-epoch", "1"],
                          ["--key", "s.key", "--tenant-id", "a", "--epoch-key", "x=s.key"],
                          ["--key", "s.key", "--tenant-id", "a", "--epoch-key", "1=s.key", "--epoch-key", "1=s.key"]):
            self.refused("verify", *arguments, path, category="usage", code=2)
        self.refused("verify", "--key", "none.key", "--tenant-id", "acme", path, category="io", code=5)

    def test_values_are_never_empty_and_numbers_are_decimal(self):
        self.describe()
        path, _ = self.pack()
        for arguments in (["--key", ""], ["--expect", ""], ["--chunks", ""], ["--pack", ""], ["--tenant-id", ""], [""]):
            self.refused("verify", *arguments, path, category="usage", code=2)
        for number in ("-1", "0x1", "1.5", "+1", " 1", "18446744073709551616", "one"):
            for command in (["verify", *self.keys, path, "--epoch", number], ["verify", path, "--threads", number],
                            ["pack", *self.keys, "DESC.json", "--out", "out", "--epoch", number],
                            ["unpack", *self.keys, path, "--out", "p", "--max-memory", number],
                            ["set", "prove", "s.kvset", number]):
                self.refused(*command, category="usage", code=2)
        self.assertFalse((self.folder / "out").exists())

    def test_key_files_of_the_wrong_size_type_or_mode_are_usage(self):
        self.describe()
        path, _ = self.pack()
        self.write("short.key", bytes(31), 0o600)
        self.write("open.key", bytes([9]) * 32, 0o640)
        self.write("zero.key", bytes(32), 0o600)
        os.link(self.write("linked.key", bytes([9]) * 32, 0o600), self.folder / "second-name.key")
        for name in ("short.key", "open.key", "zero.key", "linked.key"):
            self.refused("verify", "--key", name, "--tenant-id", "acme", path, category="usage", code=2)

    def test_another_key_tenant_or_epoch_window(self):
        self.describe()
        path, value = self.pack("--epoch", "7")
        self.assertEqual(value["key_epoch"], 7)
        self.json("verify", *self.keys, path)
        self.json("verify", "--key", "s.key", "--tenant", value["tenant"], path)
        refusal = "manifest HMAC authentication failed"
        self.refused("verify", "--key", "other.key", "--tenant-id", "acme", path, category="authentication", message=refusal)
        self.refused("verify", "--key", "s.key", "--tenant-id", "other", path, category="authentication", message=refusal)
        outside = "key epoch is outside the readable window"
        self.refused("verify", *self.keys, "--epoch", "6", path, category="not_found", message=outside, code=3)
        self.refused("verify", *self.keys, "--epoch", "9", "--min-epoch", "8", path, category="not_found", code=3)
        self.json("verify", *self.keys, "--epoch", "70", path)
        self.refused("verify", *self.keys, "--epoch", "71", path, category="not_found", code=3)

    def test_epoch_roots_of_their_own(self):
        self.describe()
        path, _ = self.pack("--epoch", "2", "--epoch-key", "2=other.key")
        self.json("verify", *self.keys, "--epoch-key", "2=other.key", path)
        self.refused("verify", *self.keys, path, category="authentication")


class PackAndUnpack(Case):
    def test_round_trip_and_the_description_that_unpack_leaves(self):
        self.describe()
        for encrypt in ([], ["--encrypt"]):
            out = "enc" if encrypt else "plain"
            path, value = self.pack(*encrypt, out=out)
            self.assertEqual(value["token_count"], 600)
            self.assertEqual(len(self.files(out)), value["chunk_count"] + 1)
            planes = "planes-" + out
            result = self.json("unpack", *self.keys, path, "--out", planes)
            self.assertTrue(result["authenticated"])
            self.assertEqual((self.folder / planes / "plane-00000.bin").read_bytes(), self.k)
            self.assertEqual((self.folder / planes / "plane-00001.bin").read_bytes(), self.v)
            again, _ = self.pack(*encrypt, out=out + "-again", description=planes + "/DESC.json")
            content = lambda p: [c["content_id"] for s in self.json("inspect", *self.keys, p)["states"] for c in s["chunks"]]
            self.assertEqual(content(path), content(again))
        self.assertEqual(self.files("plain"), self.files("plain-again"))

    def test_unpack_wants_keys_or_says_that_it_does_without(self):
        self.describe()
        path, _ = self.pack()
        self.refused("unpack", path, "--out", "p", category="usage", code=2)
        self.refused("unpack", *self.keys, "--integrity-only", path, "--out", "p", category="usage", code=2)
        self.assertFalse(self.json("unpack", "--integrity-only", path, "--out", "p")["authenticated"])
        self.refused("unpack", *self.keys, path, "--out", "p", category="expectation", message="target exists")
        encrypted, _ = self.pack("--encrypt", out="enc")
        self.refused("unpack", "--integrity-only", encrypted, "--out", "q", category="not_found", code=3)
        self.refused("unpack", *self.keys, "--max-memory", "1000", path, "--out", "q", category="quota", code=5)
        self.assertFalse((self.folder / "q").exists())

    def test_chunks_of_one_state_can_be_chosen(self):
        description = self.describe()
        description["states"][0]["chunk_tokens"] = [1, 599]
        self.write("DESC.json", json.dumps(description).encode())
        path, _ = self.pack()
        counts = [[span["token_count"] for span in state["spans"]] for state in self.json("inspect", path)["states"]]
        self.assertEqual(counts, [[1, 599], [256, 256, 88]])
        description["states"][0]["chunk_tokens"] = [600, 1]
        self.write("DESC.json", json.dumps(description).encode())
        self.refused("pack", *self.keys, "DESC.json", "--out", "no", category="usage", code=2,
                     message="given chunk token counts do not partition the state")

    def test_every_amount_of_memory_can_be_the_limit(self):
        self.describe()
        path, _ = self.pack()
        bytes_needed = len(self.k) + len(self.v)
        for limit in (0, bytes_needed - 1):
            error = self.refused("unpack", *self.keys, "--max-memory", limit, path, "--out", "p", category="quota", code=5)
            self.assertEqual(error["message"], "restore exceeds the memory limit")
        self.json("unpack", *self.keys, "--max-memory", bytes_needed, path, "--out", "p")

    def test_many_packs_at_once_into_one_folder(self):
        self.describe()
        command = [TOOL, "pack", *self.keys, "DESC.json", "--out", "cache", "--json"]
        running = [subprocess.Popen(command, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(8)]
        outputs = [process.communicate() for process in running]
        self.assertEqual([process.returncode for process in running], [0] * 8, outputs)
        self.assertEqual(len({output for output, _ in outputs}), 1)
        self.assertEqual(len(self.files("cache")), 7)
        self.json("verify", *self.keys, "cache/" + json.loads(outputs[0][0])["file"])

    def test_what_is_in_the_way_of_a_name_is_never_followed_or_replaced(self):
        self.describe()
        path, value = self.pack()
        for number, obstacle in enumerate((lambda p: p.mkdir(), lambda p: p.symlink_to(self.folder / path),
                                           lambda p: p.symlink_to("nowhere"), lambda p: os.mkfifo(p))):
            folder = self.folder / f"way{number}"
            folder.mkdir()
            obstacle(folder / value["file"])
            error = self.refused("pack", *self.keys, "DESC.json", "--out", folder.name, category="expectation",
                                 message="target exists with different bytes")
            self.assertEqual(error["object"], f"{folder.name}/{value['file']}")
            self.assertEqual(self.files(folder.name), [value["file"]])
            target = self.folder / f"target{number}"
            obstacle(target)
            for command, message in ((["set", "create", *self.keys, target.name, path], "target exists with different bytes"),
                                     (["unpack", *self.keys, path, "--out", target.name], "target exists"),
                                     (["keygen", target.name], "target exists with different bytes")):
                error = self.refused(*command, category="expectation", message=message)
                self.assertEqual(error["object"], target.name)

    def test_npy_strides_and_tail_windows(self):
        description = self.describe(tokens=10)
        self.write("k.npy", npy("<f2", [10, 2, 8], self.k))
        strided = bytearray(os.urandom(10 * 48))
        self.write("s.bin", bytes(strided[:9 * 48 + 32]))
        window = os.urandom(4 * 8)
        self.write("w.bin", window)
        description["states"][0].update(file="k.npy", format="npy")
        description["states"] += [
            {"layer": 1, "name": "s", "dtype": "u8", "shape": [10, 32], "layout": "strided", "byte_strides": [48, 1],
             "file": "s.bin"},
            {"layer": 2, "name": "w", "dtype": "f32", "shape": [4, 2], "token_axis_rule": "tail-window",
             "token_start": 6, "file": "w.bin"}]
        self.write("DESC.json", json.dumps(description).encode())
        path, _ = self.pack()
        self.run_tool("unpack", *self.keys, path, "--out", "p")
        self.assertEqual((self.folder / "p/plane-00000.bin").read_bytes(), self.k)
        restored = (self.folder / "p/plane-00002.bin").read_bytes()
        for token in range(10):
            self.assertEqual(restored[token * 48:token * 48 + 32], strided[token * 48:token * 48 + 32])
        self.assertEqual((self.folder / "p/plane-00003.bin").read_bytes(), window)
        self.pack(out="again", description="p/DESC.json")
        self.assertEqual(self.files("cache"), self.files("again"))

    def test_deltas_grow_and_verify_with_their_parents(self):
        parents = []
        full = os.urandom(9 * 10 * 32)
        for stage in range(9):
            n = (stage + 1) * 10
            self.describe(tokens=n, states=[
                {"layer": 0, "name": "k", "dtype": "f16", "shape": [n, 16], "file": "full.bin"}])
            self.write("full.bin", full[:n * 32])
            path, value = self.pack(*(["--parent", parents[-1]] if parents else []))
            parents.append(path)
            self.assertEqual(value["depth"], stage if stage < 8 else 0)
            result = self.json("verify", *self.keys, path)
            self.assertEqual(result["pack_count"], stage + 1 if stage < 8 else 1)
        self.run_tool("unpack", *self.keys, parents[7], "--out", "p7")
        self.assertEqual((self.folder / "p7/plane-00000.bin").read_bytes(), full[:80 * 32])
        self.run_tool("set", "create", *self.keys, "c.kvset", parents[7])
        self.assertEqual(self.json("verify", *self.keys, "c.kvset")["pack_count"], 8)
        (self.folder / parents[2]).unlink()
        error = self.refused("verify", *self.keys, parents[7], category="not_found", code=3)
        self.assertEqual(error["object"], pathlib.Path(parents[2]).stem)

    def test_a_failed_pack_leaves_nothing(self):
        description = self.describe()
        self.write("v.bin", self.v[:-2])
        error = self.refused("pack", *self.keys, "DESC.json", "--out", "cache", category="usage", code=2)
        self.assertEqual((error["state"], error["found"], error["expected"]), ("v", str(len(self.v) - 2), str(len(self.v))))
        self.assertFalse((self.folder / "cache").exists())
        self.write("v.bin", self.v)
        description["states"][1]["file"] = "absent.bin"
        self.write("DESC.json", json.dumps(description).encode())
        self.refused("pack", *self.keys, "DESC.json", "--out", "cache", category="io", code=5)
        self.assertFalse((self.folder / "cache").exists())

    def test_the_folder_itself_may_be_the_current_one(self):
        self.describe()
        os.mkdir(self.folder / "here")
        path, value = self.pack(out=".")
        self.assertTrue((self.folder / value["file"]).exists())

    def test_existing_files_are_adopted_when_equal_and_never_overwritten(self):
        self.describe()
        path, _ = self.pack()
        before = self.files("cache")
        self.pack()
        self.assertEqual(self.files("cache"), before)
        shutil.copytree(self.folder / "cache", self.folder / "other")
        victim = sorted((self.folder / "other").glob("*.kvchunk"))[1]
        victim.write_bytes(b"x" + victim.read_bytes()[1:])
        for name in self.files("other"):
            if name != victim.name:
                (self.folder / "other" / name).unlink()
        self.refused("pack", *self.keys, "DESC.json", "--out", "other", category="expectation",
                     message="target exists with different bytes")
        self.assertEqual(self.files("other"), [victim.name])
        self.assertEqual(victim.read_bytes()[:1], b"x")
        self.assertTrue((self.folder / path).exists())

    def test_descriptions_are_read_strictly(self):
        good = self.describe()
        for change, part in (({"extra": 1}, "extra"), ({"schema": "x"}, "schema"), ({"tokens": None}, "tokens"),
                             ({"input_cut": {"token_root": ID(1), "auxiliary_root": ID(1), "token_count": 600}}, "input_cut"),
                             ({"family": {"engine_cache_abi": "auto", "topology": ID(3), "shard_map": ID(4)}},
                              "engine_cache_abi"), ({"spans": {"rule": "other"}}, "rule")):
            bad = dict(good, **change)
            self.write("DESC.json", json.dumps(bad).encode())
            error = self.refused("pack", *self.keys, "DESC.json", "--out", "cache", category="usage", code=2)
            self.assertIn(part, error["message"])
        self.write("DESC.json", b'{"schema": 1.5}')
        self.refused("pack", *self.keys, "DESC.json", "--out", "cache", category="usage", code=2)


class Damage(Case):
    def setUp(self):
        super().setUp()
        self.describe()
        self.path, self.value = self.pack()
        self.chunks = {c["object_key"]: (s["name"], span) for s in self.json("inspect", self.path)["states"]
                       for c, span in zip(s["chunks"], s["spans"])}
        self.run_tool("set", "create", *self.keys, "s.kvset", self.path)

    def flip(self, name, offset):
        data = bytearray((self.folder / name).read_bytes())
        data[offset] ^= 1
        self.write("damaged/" + pathlib.Path(name).name, bytes(data))
        return "damaged/" + pathlib.Path(name).name

    def test_every_kind_of_damage_is_named(self):
        key, (state, span) = sorted(self.chunks.items())[2]
        self.assertEqual(len(self.chunks), 6)
        shutil.copytree(self.folder / "cache", self.folder / "damaged")
        self.flip(f"cache/{key}.kvchunk", 4200)
        for keys in (self.keys, []):
            error = self.refused("verify", *keys, "damaged/" + pathlib.Path(self.path).name, category="authentication",
                                 message="chunk object digest mismatch")
            self.assertEqual(error["object"], key)
            self.assertEqual((error["layer"], error["state"]), (0, state))
            self.assertEqual(error["tokens"], [span["token_start"], span["token_count"]])
        self.refused("verify", *self.keys, self.flip(self.path, 5000), "--chunks", "cache", category="authentication",
                     message="manifest HMAC authentication failed")
        self.refused("verify", self.flip(self.path, 5000), "--chunks", "cache", category="authentication",
                     message="manifest content identity mismatch")
        self.refused("verify", self.flip(self.path, 0), category="bad_magic")
        set_bytes = (self.folder / "s.kvset").read_bytes()
        error = self.refused("verify", self.flip("s.kvset", 4096 + 4200), category="checksum",
                             message="pack set record digest mismatch")
        self.assertEqual(error["record"], 0)
        self.write("cut.kvset", set_bytes[:-4096])
        self.refused("verify", "cut.kvset", category="truncated", message="pack set does not end with its commit footer")

    def test_absent_chunks_are_not_found_and_wrong_ones_refused(self):
        key = sorted(self.chunks)[0]
        chunk = self.folder / "cache" / (key + ".kvchunk")
        original = chunk.read_bytes()
        chunk.unlink()
        error = self.refused("verify", *self.keys, self.path, category="not_found", code=3)
        self.assertEqual(error["object"], key)
        chunk.write_bytes(original[:5000])
        self.refused("verify", *self.keys, self.path, category="bounds", message="invalid chunk object length")
        chunk.write_bytes(original + bytes(4096))
        self.refused("verify", *self.keys, self.path, category="bounds", message="invalid chunk size fields")
        chunk.unlink()
        chunk.symlink_to(self.folder / "k.bin")
        self.refused("verify", *self.keys, self.path, category="io", code=5)

    def test_levels_and_what_stays_unchecked(self):
        self.assertEqual(self.json("verify", *self.keys, self.path)["level"], "authenticated")
        self.assertEqual(self.json("verify", *self.keys, self.path)["unchecked"], [])
        without = self.json("verify", self.path)
        self.assertEqual((without["level"], without["authenticated"]), ("integrity", False))
        self.assertTrue(any("HMAC" in what for what in without["unchecked"]))
        self.assertEqual(self.json("verify", "s.kvset")["level"], "integrity")
        key = sorted(self.chunks)[0]
        lone = self.json("verify", *self.keys, f"cache/{key}.kvchunk")
        self.assertEqual(lone["level"], "framing")
        self.assertIn("chunk payload", lone["unchecked"])
        self.assertEqual(self.json("verify", *self.keys, f"cache/{key}.kvchunk", "--pack", self.path)["level"], "authenticated")
        encrypted, _ = self.pack("--encrypt", out="enc")
        self.assertEqual(self.json("verify", encrypted)["level"], "framing")
        done = self.run_tool("verify", self.path)
        self.assertIn(b"integrity only, not authenticated", done.stdout)

    def test_a_chunk_with_a_damaged_name_is_damaged_and_not_merely_another_one(self):
        key = sorted(self.chunks)[0]
        damaged = self.flip(f"cache/{key}.kvchunk", 150)
        for keys in (self.keys, []):
            for pack in (["--pack", self.path], []):
                self.refused("verify", *keys, *pack, damaged, category="authentication", message="chunk header digest mismatch")
        self.refused("inspect", damaged, category="authentication", message="chunk header digest mismatch")

    def test_only_files_are_opened(self):
        os.mkfifo(self.folder / "fifo")
        for name in ("cache", "fifo", "/dev/null", "/dev/stdin", "-", "absent"):
            for command in ("verify", "inspect"):
                self.refused(command, name, category="io", code=5)
        (self.folder / "link.kvset").symlink_to("s.kvset")
        self.assertEqual(self.json("verify", *self.keys, "link.kvset")["level"], "authenticated")

    def test_files_that_claim_to_be_huge_are_refused_at_once(self):
        for name, size, category in (("s.kvset", 1 << 42, "truncated"), (self.path, 1 << 42, "bad_magic")):
            shutil.copy(self.folder / name, self.folder / "huge")
            os.truncate(self.folder / "huge", size)
            for command in ("verify", "inspect"):
                self.refused(command, "huge", category=category)

    def test_over_long_files_are_judged_not_only_measured(self):
        with open(self.folder / self.path, "rb") as pack:
            self.write("long.kvpack", pack.read())
        os.truncate(self.folder / "long.kvpack", 400 << 20)
        self.refused("verify", *self.keys, "long.kvpack", category="bad_magic",
                     message="invalid production commit footer magic")
        self.refused("inspect", "long.kvpack", category="bad_magic")
        key = sorted(self.chunks)[0]
        self.write("long.kvchunk", (self.folder / "cache" / (key + ".kvchunk")).read_bytes())
        os.truncate(self.folder / "long.kvchunk", 10 << 20)
        for command in ("verify", "inspect"):
            self.refused(command, "long.kvchunk", category="bounds", message="invalid chunk object length")

    def test_a_plain_delta_on_an_encrypted_parent_without_keys_is_framing(self):
        self.describe(tokens=100, states=[{"layer": 0, "name": "k", "dtype": "f16", "shape": [100, 16], "file": "k.bin"}])
        base, _ = self.pack("--encrypt", out="mixed")
        self.describe(tokens=120, states=[{"layer": 0, "name": "k", "dtype": "f16", "shape": [120, 16], "file": "k.bin"}])
        child, _ = self.pack("--parent", base, out="mixed")
        self.assertEqual(self.json("verify", child)["level"], "framing")
        self.assertEqual(self.json("verify", *self.keys, child)["level"], "authenticated")

    def test_an_expectation_cannot_fall_away_by_accident(self):
        for content in ({}, {"manifest_id": None}):
            self.write("empty.json", json.dumps(content).encode())
            self.refused("verify", *self.keys, "--expect", "empty.json", self.path, category="usage", code=2)

    def test_what_inspect_says_of_an_identity_is_an_expectation(self):
        self.write("seen.json", json.dumps(self.json("inspect", self.path)["identity"]).encode())
        self.json("verify", *self.keys, "--expect", "seen.json", self.path)
        self.assertFalse(self.json("explain", *self.keys, "seen.json", "seen.json")["authenticated"])
        self.assertTrue(self.json("explain", *self.keys, self.path, "s.kvset")["authenticated"])

    def test_a_chunk_that_the_pack_does_not_name_is_not_found(self):
        self.describe()
        other, _ = self.pack(out="other")
        key = [name for name in self.files("other") if name.endswith(".kvchunk")][0]
        self.refused("verify", *self.keys, "other/" + key, "--pack", self.path, category="not_found", code=3)

    def test_several_files_give_an_array_and_the_largest_code(self):
        results = self.json("verify", *self.keys, self.path, "absent.kvpack", "s.kvset", code=5)
        self.assertEqual([r["ok"] for r in results], [True, False, True])
        self.assertEqual(results[1]["error"]["category"], "io")
        results = self.json("verify", *self.keys, self.path, self.flip("s.kvset", 100), code=4)
        self.assertEqual(results[1]["error"]["category"], "reserved")

    def test_errors_are_printed_whatever_is_quiet(self):
        for files in ([self.path, "absent"], ["absent"]):
            done = self.run_tool("verify", "--quiet", *files, code=5)
            self.assertEqual(done.stdout, b"")
            self.assertIn(b"absent", done.stderr)

    def test_expectations_name_the_field_and_both_values(self):
        self.write("good.json", json.dumps({"weights_config": ID(10), "token_count": 600,
                                            "manifest_id": self.value["manifest_id"]}).encode())
        for target in (self.path, "s.kvset"):
            self.json("verify", *self.keys, "--expect", "good.json", target)
            for field, bad in (("adapters", ID(99)), ("engine_cache_abi", ID(99)), ("token_count", 599)):
                self.write("bad.json", json.dumps({field: bad}).encode())
                for command in (["verify"], ["unpack", "--out", "never"]):
                    error = self.refused(*command, *self.keys, "--expect", "bad.json", target, category="expectation",
                                         message=f"identity field {field} differs")
                    self.assertEqual(error["field"], field)
                    self.assertEqual(error["expected"], str(bad))
                self.assertFalse((self.folder / "never").exists())
        self.write("unknown.json", b'{"wieghts": 1}')
        self.refused("verify", *self.keys, "--expect", "unknown.json", self.path, category="usage", code=2)


class Sets(Case):
    def setUp(self):
        super().setUp()
        self.describe()
        self.path, self.value = self.pack()
        self.created = self.json("set", "create", *self.keys, "s.kvset", self.path)

    def test_create_is_deterministic_and_never_replaces(self):
        self.json("set", "create", *self.keys, "s.kvset", self.path)
        self.json("set", "create", *self.keys, "t.kvset", self.path)
        self.assertEqual((self.folder / "s.kvset").read_bytes(), (self.folder / "t.kvset").read_bytes())
        self.assertEqual((self.folder / "s.kvset").stat().st_mode & 0o777, 0o600)
        self.write("u.kvset", b"x")
        self.refused("set", "create", *self.keys, "u.kvset", self.path, category="expectation",
                     message="target exists with different bytes")
        self.refused("set", "create", "v.kvset", self.path, category="usage", code=2)

    def test_a_damaged_chain_makes_no_set(self):
        name = [n for n in self.files("cache") if n.endswith(".kvchunk")][0]
        data = bytearray((self.folder / "cache" / name).read_bytes())
        data[-1] ^= 1
        (self.folder / "cache" / name).write_bytes(bytes(data))
        self.refused("set", "create", *self.keys, "x.kvset", self.path, category="reserved",
                     message="chunk padding is nonzero")
        self.assertEqual([n for n in self.files(".") if "x.kvset" in n or "partial" in n], [])

    def test_list_extract_and_back(self):
        listed = self.json("set", "list", "s.kvset")
        self.assertEqual(listed["record_count"], 7)
        self.assertEqual(listed["entries"][-1]["identity"], self.value["manifest_id"])
        result = self.json("set", "extract", *self.keys, "s.kvset", "--out", "ex")
        self.assertTrue(result["authenticated"])
        self.assertEqual(self.files("ex"), self.files("cache"))
        for name in self.files("ex"):
            self.assertEqual((self.folder / "ex" / name).read_bytes(), (self.folder / "cache" / name).read_bytes())
        data = bytearray((self.folder / "s.kvset").read_bytes())
        data[5000] ^= 1
        self.write("bad.kvset", bytes(data))
        self.refused("set", "extract", "bad.kvset", "--out", "never", category="checksum")
        self.assertFalse((self.folder / "never").exists())

    def test_proofs(self):
        for index in range(7):
            self.write("p.json", self.run_tool("set", "prove", "s.kvset", index).stdout)
            result = self.json("verify", *self.keys, "p.json")
            self.assertEqual((result["kind"], result["record"], result["authenticated"]), ("proof", index, True))
            name = result["record_identity"] + (".kvchunk" if index < 6 else ".kvpack")
            self.assertEqual(self.json("verify", "p.json", "--record", "cache/" + name)["level"], "integrity")
            wrong = [n for n in self.files("cache") if n != name][0]
            self.refused("verify", "p.json", "--record", "cache/" + wrong, category="checksum",
                         message="pack set record digest mismatch")
        self.refused("set", "prove", "s.kvset", 7, category="bounds", message="merkle leaf index is outside the tree")
        self.write("bad.json", b'{"entry":"00"}')
        self.refused("verify", "bad.json", category="reserved")

    def test_unpack_from_a_set(self):
        self.run_tool("unpack", *self.keys, "s.kvset", "--out", "p")
        self.assertEqual((self.folder / "p/plane-00000.bin").read_bytes(), self.k)


class InspectAndExplain(Case):
    def test_inspect_gives_what_is_known(self):
        self.describe()
        path, value = self.pack()
        seen = self.json("inspect", path)
        for field in ("kind", "manifest_id", "tenant", "key_epoch", "token_count", "depth", "parent", "states", "totals"):
            self.assertIn(field, seen)
        self.assertEqual((seen["authenticated"], seen["encrypted"]), (False, False))
        self.assertEqual(seen["states"][1]["shape"], [2, 600, 8])
        self.assertTrue(self.json("inspect", *self.keys, path)["authenticated"])
        encrypted, _ = self.pack("--encrypt", out="enc")
        closed = self.json("inspect", encrypted)
        self.assertEqual((closed["encrypted"], closed["states"], closed["token_count"]), (True, None, None))
        self.assertEqual(self.json("inspect", *self.keys, encrypted)["token_count"], 600)
        self.run_tool("set", "create", *self.keys, "s.kvset", path)
        self.assertEqual(self.json("inspect", "s.kvset")["head"]["manifest_id"], value["manifest_id"])
        self.refused("inspect", "tokens.u32", category="bad_magic")
        self.write("tiny", b"KV")
        self.refused("inspect", "tiny", category="truncated")

    def test_no_output_shows_tokens(self):
        self.write("marked", b"")
        self.describe(tokens=300)
        marker = 0x5EC2E77A
        self.write("tokens.u32", struct.pack("<300I", *([marker] * 300)))
        path, _ = self.pack()
        for command in (["inspect", path], ["verify", *self.keys, path], ["inspect", *self.keys, "--json", path]):
            output = self.run_tool(*command)
            self.assertNotIn(str(marker).encode(), output.stdout + output.stderr)
        for name in self.files("cache"):
            self.assertNotIn(struct.pack("<I", marker), (self.folder / "cache" / name).read_bytes())

    def test_nothing_that_a_file_says_reaches_the_terminal_unescaped(self):
        description = self.describe()
        description["states"][0]["name"] = "\x1b[31mk\x07\u0085"
        description["states"][1]["dependencies"][0]["name"] = description["states"][0]["name"]
        self.write("DESC.json", json.dumps(description).encode())
        path, _ = self.pack()
        description["states"][0]["codec"] = "lossless"
        self.write("other.json", json.dumps(description).encode())
        outputs = [self.run_tool("inspect", path), self.run_tool("explain", path, "other.json")]
        for name in self.files("cache"):
            if name.endswith(".kvchunk"):
                (self.folder / "cache" / name).unlink()
        outputs.append(self.run_tool("verify", path, code=3))
        for done in outputs:
            for control in (b"\x1b", b"\x07", b"\xc2\x85"):
                self.assertNotIn(control, done.stdout + done.stderr)
        self.assertIn(b"\\u001b[31mk", outputs[2].stderr)

    def test_with_keys_explain_knows_the_roots_of_a_description(self):
        self.describe()
        path, _ = self.pack()
        compared = self.json("explain", path, "DESC.json")["compared"]
        self.assertNotIn("token_root", compared)
        same = self.json("explain", *self.keys, path, "DESC.json")
        self.assertTrue(same["equal"])
        self.assertEqual(set(same["compared"]) - set(compared), {"token_root", "auxiliary_root"})
        self.write("tokens.u32", struct.pack("<600I", *range(1, 601)))
        other = self.json("explain", *self.keys, path, "DESC.json")
        self.assertEqual([d["field"] for d in other["differences"]], ["token_root"])

    def test_explain_names_every_field(self):
        description = self.describe()
        path, _ = self.pack()
        self.assertTrue(self.json("explain", path, "DESC.json")["equal"])
        description["model"]["adapters"] = ID(77)
        description["states"][0]["codec"] = "lossless"
        self.write("other.json", json.dumps(description).encode())
        result = self.json("explain", path, "other.json")
        self.assertFalse(result["equal"])
        self.assertEqual([d["field"] for d in result["differences"]], ["adapters", "family_id"])
        self.assertEqual(result["differences"][0]["b"], ID(77))
        self.assertEqual(result["family_details"][0]["field"], "state 0/k")


class Tool(Case):
    def test_vectors_are_the_published_list(self):
        published = (ROOT / "conformance/vectors/production_v1.sha256").read_bytes()
        self.assertEqual(self.run_tool("vectors").stdout, published)
        self.run_tool("vectors", "--emit", "v")
        rows = [line.split("\t") for line in published.decode().splitlines() if not line.startswith("#")]
        self.assertEqual(len(rows), 520)
        for suite, name, size, digest in rows:
            data = (self.folder / "v" / suite / (name + ".bin")).read_bytes()
            self.assertEqual((str(len(data)), hashlib.sha256(data).hexdigest()), (size, digest))

    def test_vectors_as_json(self):
        rows = self.json("vectors")["vectors"]
        lines = ["\t".join((r["suite"], r["name"], str(r["bytes"]), r["sha256"])) for r in rows]
        published = (ROOT / "conformance/vectors/production_v1.sha256").read_text().splitlines()
        self.assertEqual(lines, [line for line in published if not line.startswith("#")])

    def test_output_that_cannot_be_written_is_an_error(self):
        if not os.path.exists("/dev/full"):
            self.skipTest("no /dev/full here")
        for arguments in (["vectors"], ["--help"], ["keygen", "k", "--json"]):
            with open("/dev/full", "wb") as full:
                done = subprocess.run([TOOL, *arguments], cwd=self.folder, stdout=full, stderr=subprocess.PIPE)
            self.assertEqual(done.returncode, 5, arguments)
            self.assertIn(b"standard output cannot be written", done.stderr)

    def test_closed_streams_are_not_mistaken_for_files(self):
        self.describe()
        command = " ".join([TOOL, "pack", *self.keys, "DESC.json", "--out cache --json"])
        for streams, code in ((">&-", 5), ("2>&-", 0), ("<&-", 0), ("<&- >&- 2>&-", 5)):
            done = subprocess.run(["sh", "-c", f"{command} {streams}"], cwd=self.folder, stdout=subprocess.DEVNULL)
            self.assertEqual(done.returncode, code, streams)
        pack = [name for name in self.files("cache") if name.endswith(".kvpack")][0]
        self.json("verify", *self.keys, "cache/" + pack)

    def test_names_that_are_no_utf8_still_give_json(self):
        self.describe()
        path, _ = self.pack()
        name = b"s\xff.kvset"
        for arguments in (["set", "create", *self.keys, name, path, "--json"], ["verify", name, path, "--json"],
                          ["verify", b"absent\xff", "--json"], ["keygen", b"k\xff", "--json"]):
            done = subprocess.run([TOOL, *arguments], cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            self.assertIn("?", json.dumps(json.loads(done.stdout.decode("utf-8"))))

    def test_usage(self):
        self.assertIn(b"Exit codes", self.run_tool("--help").stdout)
        for command in ("keygen", "pack", "unpack", "inspect", "verify", "set", "explain", "vectors"):
            self.assertIn(b"kvpack", self.run_tool(command, "--help").stdout)
        self.run_tool("--version")
        self.run_tool(code=2)
        self.refused("bogus", category="usage", code=2)
        self.refused("verify", category="usage", code=2)


if __name__ == "__main__":
    TOOL = os.path.abspath(sys.argv.pop(1))
    unittest.main()
