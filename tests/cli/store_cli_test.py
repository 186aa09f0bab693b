#!/usr/bin/env python3
"""The store commands from outside: round trips, misses, keys, damage and repair, pack sets, refusals.
usage: store_cli_test.py TOOL [unittest arguments]"""
import fcntl
import json
import os
import pathlib
import random
import signal
import struct
import subprocess
import sys
import time
import unittest

import cli_test
from cli_test import ID, MODEL

TOKENS = 1000


class Case(cli_test.Case):
    def setUp(self):
        super().setUp()
        rng = random.Random(11)
        self.tokens = [rng.randrange(1 << 32) for _ in range(TOKENS)]
        self.k_rows = rng.randbytes(TOKENS * 32)
        self.v_rows = [rng.randbytes(TOKENS * 16) for _ in range(2)]

    def planes(self, tokens):
        return self.k_rows[:tokens * 32], b"".join(rows[:tokens * 16] for rows in self.v_rows)

    def input(self, tokens, **changes):
        """A description of the first `tokens` tokens, in a folder of its own."""
        folder = f"input-{tokens}"
        k, v = self.planes(tokens)
        self.write(f"{folder}/tokens.u32", struct.pack("<%dI" % tokens, *self.tokens[:tokens]))
        self.write(f"{folder}/k.bin", k)
        self.write(f"{folder}/v.bin", v)
        description = {
            "schema": "kvpack.description.v1",
            "family": {"engine_cache_abi": ID(2), "topology": ID(3), "shard_map": ID(4)},
            "model": {name: ID(10 + i) for i, name in enumerate(MODEL)},
            "auxiliary": [{"type_id": ID(20), "value_id": ID(21)}],
            "tokens": "tokens.u32",
            "spans": {"rule": "aligned", "grain_tokens": 256},
            "states": [
                {"layer": 0, "name": "k", "dtype": "f16", "shape": [tokens, 2, 8], "file": "k.bin"},
                {"layer": 0, "name": "v", "dtype": "f16", "shape": [2, tokens, 8], "token_axis": 1, "file": "v.bin",
                 "dependencies": [{"layer": 0, "name": "k"}]},
            ],
        }
        description.update(changes)
        self.write(f"{folder}/DESC.json", json.dumps(description).encode())
        return f"{folder}/DESC.json"

    def store(self, command, *args, code=0, root="s", keys=None):
        value = self.json("store", command, *(keys or self.keys), root, *args, code=code)
        if code == 0:
            self.assertTrue(value["ok"])
            self.assertEqual(value["kind"], "store_" + command)
        return value

    def store_refused(self, command, *args, root="s", keys=None, **expected):
        return self.refused("store", command, *(keys or self.keys), root, *args, **expected)

    def check_planes(self, folder, tokens):
        k, v = self.planes(tokens)
        self.assertEqual((self.folder / folder / "plane-00000.bin").read_bytes(), k)
        self.assertEqual((self.folder / folder / "plane-00001.bin").read_bytes(), v)

    def objects(self, kind, root="s"):
        return sorted((self.folder / root / "objects" / kind).glob("*/*.kv*"))

    def everything(self, root="s"):
        """Names and content of all object files and the directories around them."""
        return {str(path): path.read_bytes() if path.is_file() else None
                for path in sorted((self.folder / root / "objects").rglob("*"))}

    def damage(self, path):
        data = bytearray(path.read_bytes())
        data[5000] ^= 1
        path.write_bytes(data)

    def restored(self, description, out, **more):
        return self.store("restore", description, "--out", out, **more)


class Making(Case):
    def test_init_makes_a_private_store_once(self):
        value = self.store("init", "--quota", 1 << 30, "--staging-quota", 1 << 20)
        self.assertEqual((value["quota_bytes"], value["staging_quota_bytes"]), (1 << 30, 1 << 20))
        self.assertEqual((self.folder / "s").stat().st_mode & 0o777, 0o700)
        self.store_refused("init", category="expectation", message="store root is not empty: s")
        self.store_refused("init", root="missing/s", category="io", code=5)

    def test_a_store_needs_keys_and_a_place(self):
        self.refused("store", "init", "s", category="usage", code=2, message="--key is needed")
        self.refused("store", "init", *self.keys, category="usage", code=2)
        self.refused("store", category="usage", code=2)
        self.assertFalse((self.folder / "s").exists())
        description = self.input(300)
        for command, arguments in (("put", [description]), ("find", [description]), ("ls", []), ("stat", []),
                                   ("report", []), ("gc", []), ("fsck", []), ("rebuild", []), ("export", [ID(1), "x.kvset"]),
                                   ("restore", [description, "--out", "p"])):
            self.store_refused(command, *arguments, category="io", code=5)
            self.refused("store", command, "s", *arguments, category="usage", code=2)
        self.assertFalse((self.folder / "s").exists())

    def test_numbers_and_ids_are_checked_before_anything_is_opened(self):
        description = self.input(300)
        for command, arguments in (("init", ["--quota", "0"]), ("init", ["--quota", "-1"]), ("init", ["--quota", "1e9"]),
                                   ("put", [description, "--parent", "12"]),
                                   ("put", [description, "--parent", ID(1), "--parent-deepest"]),
                                   ("put", [description, "--export-stride", "100"]),
                                   ("put", [description, "--export-stride", "0"]),
                                   ("put", [description, "--export-stride", "256", "--parent-deepest"]),
                                   ("put", [description, "--ttl", "99999999999999999"]),
                                   ("put", [description, "--idempotency-key", "key"]),
                                   ("put", [description, "--encrypt", "--label", ""]),
                                   ("gc", ["--head-room", "1"]), ("gc", ["--evict", ID(1), "--maintain"]),
                                   ("restore", ["--out", "p"]), ("restore", [description, "--manifest", ID(1), "--out", "p"]),
                                   ("restore", [description, "--out", "p", "--max-memory", "0"]),
                                   ("restore", ["--manifest", "x", "--out", "p"]), ("export", ["x", "x.kvset"])):
            self.store_refused(command, *arguments, category="usage", code=2)
        self.assertFalse((self.folder / "s").exists())

    def test_help_of_every_command(self):
        self.assertIn(b"A walk", self.run_tool("store", "--help").stdout)
        for command in ("init", "put", "find", "restore", "ls", "stat", "report", "gc", "fsck", "rebuild", "import", "export"):
            self.assertIn(b"--tenant-id", self.run_tool("store", command, "--help").stdout)


class SavingAndRestoring(Case):
    def setUp(self):
        super().setUp()
        self.store("init")

    def test_round_trip(self):
        description = self.input(600)
        saved = self.store("put", description, "--label", "model A")
        self.assertEqual((saved["token_count"], saved["depth"], saved["replayed"]), (600, 0, False))
        self.assertEqual(saved["written"]["chunks"], 6)
        self.assertEqual([cut["manifest_id"] for cut in saved["cuts"]], [saved["manifest_id"]])
        found = self.store("find", description)
        self.assertEqual((found["manifest_id"], found["token_count"], found["suffix_tokens"]), (saved["manifest_id"], 600, 0))
        restored = self.restored(description, "planes")
        self.assertEqual((restored["token_count"], restored["plane_count"], restored["faults"]), (600, 2, []))
        self.check_planes("planes", 600)
        self.assertEqual((self.folder / "planes").stat().st_mode & 0o777, 0o700)
        self.restored_by_id(saved["manifest_id"])
        cut, = self.store("ls")["cuts"]
        self.assertEqual((cut["manifest_id"], cut["token_count"], cut["label"], cut["state"], cut["chunk_count"]),
                         (saved["manifest_id"], 600, "model A", "available", 6))
        status = self.store("stat")
        self.assertEqual((status["cuts"], status["chunks"], status["pressure"]), (1, 6, "normal"))
        self.assertEqual(status["counters"]["saves_committed"], 1)
        again = self.store("put", description)
        self.assertTrue(again["replayed"])
        self.assertEqual(again["manifest_id"], saved["manifest_id"])

    def restored_by_id(self, manifest_id):
        value = self.store("restore", "--manifest", manifest_id, "--out", "by-id")
        self.assertEqual(value["manifest_id"], manifest_id)
        self.check_planes("by-id", 600)
        self.store_refused("restore", "--manifest", ID(5), "--out", "none", category="not_found", code=3,
                           message="artifact not found")
        self.assertFalse((self.folder / "none").exists())

    def test_prose_names_what_happened(self):
        description = self.input(600)
        keys = ["store", "put", *self.keys, "s", description]
        self.assertIn(b"600 tokens, depth 0, 1 cuts, 6 new chunks, 0 shared", self.run_tool(*keys).stdout)
        self.assertIn(b"in the store already", self.run_tool(*keys).stdout)
        self.assertIn(b"600 of 600 tokens", self.run_tool("store", "find", *self.keys, "s", description).stdout)
        self.assertIn(b"600 tokens depth 0", self.run_tool("store", "ls", *self.keys, "s").stdout)
        self.assertIn(b"1 cuts, 6 chunks", self.run_tool("store", "stat", *self.keys, "s").stdout)
        self.assertEqual(self.run_tool("store", "stat", *self.keys, "s", "--quiet").stdout, b"")

    def test_what_restore_leaves_is_for_pack_and_not_for_put(self):
        self.store("put", self.input(600))
        self.restored(self.input(600), "planes")
        self.json("pack", *self.keys, "planes/DESC.json", "--out", "cache")
        for command, arguments in (("put", []), ("find", []), ("restore", ["--out", "again"])):
            self.store_refused(command, "planes/DESC.json", *arguments, category="usage", code=2,
                               message="a store finds cuts by their tokens: the description needs `tokens`, not "
                                       "`input_cut`")

    def test_deltas_stand_on_the_deepest_prefix_or_on_a_named_one(self):
        first = self.store("put", self.input(512), "--parent-deepest")
        self.assertIsNone(first["parent_manifest_id"])
        second = self.store("put", self.input(600), "--parent-deepest")
        self.assertEqual((second["parent_manifest_id"], second["depth"]), (first["manifest_id"], 1))
        self.assertEqual(second["written"]["chunks"], 2)
        self.assertTrue(self.store("put", self.input(600), "--parent-deepest")["replayed"])
        third = self.store("put", self.input(700), "--parent", second["manifest_id"])
        self.assertEqual(third["depth"], 2)
        # Cuts between two blocks of 256 tokens are of their own input alone.
        found = self.store("find", self.input(1000))
        self.assertEqual((found["manifest_id"], found["token_count"], found["suffix_tokens"]),
                         (first["manifest_id"], 512, 488))
        restored = self.restored(self.input(1000), "planes")
        self.assertEqual((restored["token_count"], restored["suffix_tokens"]), (512, 488))
        self.check_planes("planes", 512)
        self.restored(self.input(700), "whole")
        self.check_planes("whole", 700)
        self.store_refused("put", self.input(800), "--parent", ID(9), category="not_found", code=3,
                           message="artifact not found")
        self.store_refused("put", self.input(512), "--parent", third["manifest_id"], category="expectation")
        self.assertEqual(len(self.store("ls")["cuts"]), 3)

    def test_checkpoints_from_one_pass(self):
        saved = self.store("put", self.input(600), "--export-stride", 256)
        self.assertEqual([(cut["token_count"], cut["depth"]) for cut in saved["cuts"]], [(256, 0), (512, 1), (600, 2)])
        self.assertEqual(self.store("find", self.input(300))["token_count"], 256)
        self.restored(self.input(599), "planes")
        self.check_planes("planes", 512)
        self.assertTrue(self.store("put", self.input(600), "--export-stride", 256)["replayed"])

    def test_a_miss_is_clean(self):
        message = "no cut of the store is a prefix of this input"
        self.store_refused("find", self.input(600), category="not_found", code=3, message=message)
        self.store("put", self.input(600))
        others = ({"model": {name: ID(50 + i) for i, name in enumerate(MODEL)}}, {"auxiliary": []},
                  {"family": {"engine_cache_abi": ID(5), "topology": ID(3), "shard_map": ID(4)}})
        for change in others:
            description = self.input(700, **change)
            self.store_refused("find", description, category="not_found", code=3, message=message)
            self.store_refused("restore", description, "--out", "p", category="not_found", code=3, message=message)
        self.store_refused("find", self.input(599), category="not_found", code=3, message=message)
        self.assertFalse((self.folder / "p").exists())

    def test_encrypted_unless_plain(self):
        self.store("put", self.input(300))
        inside = lambda: any(self.k_rows[:64] in path.read_bytes() for path in self.objects("chunks"))
        self.assertFalse(inside())
        self.store("init", root="plain")
        self.store("put", self.input(300), "--plain", root="plain")
        self.assertTrue(any(self.k_rows[:64] in path.read_bytes() for path in self.objects("chunks", "plain")))
        other = self.store("put", self.input(300), "--plain")
        self.assertEqual((other["replayed"], other["shared"]["chunks"]), (False, 4))
        self.assertEqual(self.store("put", self.input(300), "--plain", "--idempotency-key", ID(7))["idempotency_key"], ID(7))
        self.store_refused("put", self.input(300), "--idempotency-key", ID(7), category="expectation",
                           message="idempotency key was reused with a different immutable declaration")
        self.assertFalse(inside())

    def test_descriptions_that_do_not_fit(self):
        description = json.loads((self.folder / self.input(300)).read_text())

        def refused_as(message, change):
            changed = json.loads(json.dumps(description))
            change(changed)
            self.write("input-300/bad.json", json.dumps(changed).encode())
            error = self.store_refused("put", "input-300/bad.json", category="usage", code=2)
            self.assertEqual(error["message"], message)

        groups = "`groups` must name every state once, in groups from 1 on"
        k, v = {"layer": 0, "name": "k"}, {"layer": 0, "name": "v"}
        refused_as("a store divides states by `spans`: `chunk_tokens` cannot be chosen",
                   lambda d: d["states"][0].update(chunk_tokens=[300]))
        refused_as("plane does not hold the tokens of the cut", lambda d: d["states"][0].update(token_start=1))
        for bad in ([{"id": 0, "states": [k, v]}], [{"id": 1, "states": [k]}], [{"id": 1, "states": [k, k, v]}],
                    [{"id": 1, "states": [k]}, {"id": 1, "states": [v]}], [{"id": 1, "states": [k, v, {"layer": 1, "name": "k"}]}]):
            refused_as(groups, lambda d: d.update(groups=bad))
        self.write("input-300/k.bin", b"short")
        refused_as("plane file does not have the size of its shape", lambda d: None)
        self.store_refused("put", "absent.json", category="io", code=5)
        self.write("broken.json", b"{")
        self.store_refused("put", "broken.json", category="usage", code=2)
        self.assertEqual(self.store("ls")["cuts"], [])

    def test_states_of_two_groups(self):
        groups = [{"id": 2, "states": [{"layer": 0, "name": "v"}]}, {"id": 1, "states": [{"layer": 0, "name": "k"}]}]
        description = self.input(300, groups=groups)
        value = json.loads((self.folder / description).read_text())
        del value["states"][1]["dependencies"]
        self.write(description, json.dumps(value).encode())
        self.store("put", description)
        self.restored(description, "planes")
        self.check_planes("planes", 300)
        left = json.loads((self.folder / "planes/DESC.json").read_text())
        self.assertEqual([group["id"] for group in left["groups"]], [1, 2])

    def test_the_target_of_a_restore_must_be_free(self):
        self.store("put", self.input(300))
        (self.folder / "taken").mkdir()
        error = self.store_refused("restore", self.input(300), "--out", "taken", category="expectation",
                                   message="target exists")
        self.assertEqual(error["object"], "taken")
        self.store_refused("restore", self.input(300), "--out", "missing/p", category="io", code=5)
        k, v = self.planes(300)
        self.store_refused("restore", self.input(300), "--out", "p", "--max-memory", len(k) + len(v) - 1, category="quota",
                           code=5)
        self.assertFalse((self.folder / "p").exists())
        self.restored(self.input(300), "p")

    def test_quotas_and_the_endurance_budget(self):
        self.store("init", "--quota", 20000, root="small")
        self.store_refused("put", self.input(600), root="small", category="quota", code=5)
        self.assertEqual(self.objects("chunks", "small"), [])
        self.store("gc", "--quota", 1 << 30, "--staging-quota", 1 << 30, root="small")
        self.store_refused("put", self.input(600), "--endurance", 0, root="small", category="quota", code=5,
                           message="five-minute endurance budget exhausted")
        self.store("put", self.input(600), root="small")
        self.assertEqual(self.store("stat", root="small")["quota_bytes"], 1 << 30)

    def test_many_processes_at_once(self):
        self.store("put", self.input(512))
        commands = [["find", "s", self.input(1000)], ["restore", "s", self.input(1000), "--out"], ["ls", "s"], ["stat", "s"]]
        running = []
        for number in range(12):
            command, *arguments = commands[number % 4]
            if command == "restore":
                arguments.append(f"p{number}")
            running.append(subprocess.Popen([cli_test.TOOL, "store", command, *self.keys, *arguments, "--json"], cwd=self.folder,
                                            stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        self.store("put", self.input(700), "--parent-deepest")
        for process in running:
            output, complaint = process.communicate()
            self.assertEqual(process.returncode, 0, complaint)
            self.assertTrue(json.loads(output)["ok"])

    def test_a_killed_put_leaves_no_trace_that_is_found(self):
        self.store("put", self.input(256))
        rng = random.Random(5)
        for _ in range(6):
            command = [cli_test.TOOL, "store", "put", *self.keys, "s", self.input(1000), "--export-stride", "256"]
            process = subprocess.Popen(command, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            time.sleep(rng.random() * 0.1)
            process.send_signal(signal.SIGKILL)
            process.communicate()
            self.assertIn(self.store("find", self.input(1000))["token_count"], (256, 1000))
        self.store("put", self.input(1000), "--export-stride", 256)
        self.store("fsck", "--deep", "--repair")
        self.restored(self.input(1000), "planes")
        self.check_planes("planes", 1000)


class Keys(Case):
    def setUp(self):
        super().setUp()
        self.store("init")
        self.saved = self.store("put", self.input(600))

    def test_another_key_or_tenant_is_refused_and_touches_nothing(self):
        before = self.everything()
        for keys in (["--key", "other.key", "--tenant-id", "acme"], ["--key", "s.key", "--tenant-id", "other"]):
            for command, arguments in (("find", [self.input(600)]), ("put", [self.input(700)]), ("ls", []), ("gc", []),
                                       ("fsck", ["--deep", "--repair"]), ("stat", []), ("rebuild", []),
                                       ("restore", [self.input(600), "--out", "p"])):
                self.store_refused(command, *arguments, keys=keys, category="authentication",
                                   message="store belongs to another tenant or key")
        self.assertEqual(self.everything(), before)
        self.assertFalse((self.folder / "p").exists())

    def test_rotation(self):
        second = [*self.keys, "--epoch", "2", "--epoch-key", "2=other.key"]
        rotated = self.store("put", self.input(700), "--parent-deepest", keys=second)
        self.assertIsNone(rotated["parent_manifest_id"])
        self.assertEqual(self.store("find", self.input(700), keys=second)["token_count"], 700)
        self.store_refused("put", self.input(800), category="state",
                           message="key epochs cannot move backward in an existing catalog")
        self.store_refused("find", self.input(800), keys=[*self.keys, "--epoch", "2"], category="authentication",
                           message="store key does not match epoch 2")
        narrow = [*second, "--min-epoch", "2"]
        self.assertEqual(self.store("gc", "--retire", keys=narrow)["cuts_retired"], 1)
        cut, = self.store("ls", keys=narrow)["cuts"]
        self.assertEqual((cut["manifest_id"], cut["key_epoch"]), (rotated["manifest_id"], 2))

    def test_the_catalog_epoch_moves_forward_only(self):
        self.store("gc", "--catalog-epoch", 3)
        self.assertEqual(self.store("stat", "--catalog-epoch", 3)["catalog_epoch"], 3)
        self.store_refused("gc", "--catalog-epoch", 2, category="state",
                           message="catalog epoch cannot move backward in an existing catalog")

    def test_a_second_writer_is_told_and_readers_go_on(self):
        with open(self.folder / "s/store.lock", "r+b") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for command, arguments in (("put", [self.input(700)]), ("gc", []), ("fsck", []), ("rebuild", [])):
                error = self.store_refused(command, *arguments, category="io", code=5)
                self.assertRegex(error["message"], r"^store is open elsewhere: pid \d+$")
            self.store("find", self.input(600))
            self.restored(self.input(600), "planes")
        self.store("gc")

    def test_a_root_that_others_can_read_is_refused_as_a_state(self):
        (self.folder / "s").chmod(0o755)
        error = self.store_refused("gc", category="state")
        self.assertRegex(error["message"], r"^store directory is not private: .*s$")


class Upkeep(Case):
    def setUp(self):
        super().setUp()
        self.store("init")

    def test_expired_cuts_are_not_found_and_collected(self):
        self.store("put", self.input(600), "--ttl", 1)
        self.store("put", self.input(256))
        time.sleep(1.1)
        self.assertEqual(self.store("find", self.input(600))["token_count"], 256)
        report = self.store("gc")
        self.assertEqual(report["cuts_evicted"], 1)
        self.assertGreater(report["bytes_freed"], 0)
        self.assertFalse(report["blocked"])
        self.assertEqual(len(self.objects("manifests")), 1)

    def test_eviction_of_one_cut(self):
        parent = self.store("put", self.input(512))["manifest_id"]
        child = self.store("put", self.input(600), "--parent-deepest")["manifest_id"]
        self.store_refused("gc", "--evict", parent, category="io", code=5, message="resource is busy")
        self.assertEqual(self.store("gc", "--evict", child)["cuts_evicted"], 1)
        self.assertEqual(self.store("find", self.input(600))["token_count"], 512)
        self.store_refused("gc", "--evict", child, category="not_found", code=3)
        self.store_refused("gc", "--evict", "child", category="usage", code=2)
        self.store("gc", "--evict", parent)
        self.assertEqual(self.objects("chunks"), [])
        self.assertIsNone(self.store("put", self.input(600), "--parent-deepest")["parent_manifest_id"])
        self.restored(self.input(600), "planes")
        self.check_planes("planes", 600)

    def test_maintenance_makes_head_room(self):
        self.store("put", self.input(600))
        used = self.store("stat")["durable_bytes"]
        report = self.store("gc", "--maintain", "--quota", used * 2)
        self.assertEqual(report["cuts_evicted"], 0)
        report = self.store("gc", "--maintain", "--head-room", used)
        self.assertEqual((report["cuts_evicted"], report["after_bytes"] <= report["before_bytes"]), (1, True))
        self.assertEqual(self.store("stat")["cuts"], 0)


class DamageAndRepair(Case):
    def setUp(self):
        super().setUp()
        self.store("init")
        self.shallow = self.store("put", self.input(512))["manifest_id"]
        before = set(self.objects("chunks"))
        self.deep = self.store("put", self.input(768), "--parent-deepest")["manifest_id"]
        self.late = sorted(set(self.objects("chunks")) - before)

    def test_damage_is_passed_over_by_readers_and_moved_by_repair(self):
        self.damage(self.late[0])
        key = self.late[0].stem
        value = self.restored(self.input(768), "planes")
        self.assertEqual((value["token_count"], value["suffix_tokens"]), (512, 256))
        self.check_planes("planes", 512)
        fault, = value["faults"]
        self.assertEqual((fault["kind"], fault["object"], fault["action"], fault["token_count"]), ("chunk", key, "skipped", 768))
        self.assertIn(fault["category"], ("authentication", "checksum"))
        self.store_refused("restore", self.input(768), "--strict", "--out", "no", category=fault["category"])
        self.store_refused("restore", "--manifest", self.deep, "--out", "no", category=fault["category"])
        self.store_refused("export", self.deep, "no.kvset", category=fault["category"])
        self.assertFalse({"no", "no.kvset"} & {*self.files(".")})

        self.assertEqual(self.store("fsck")["found"], 0)
        value = self.store("fsck", "--deep", code=4)
        self.assertEqual((value["ok"], value["kind"], value["error"]["category"]), (False, "store_fsck", "integrity"))
        self.assertEqual(value["error"]["message"], f"store has {value['found']} problems")
        self.assertEqual({finding["object"] for finding in value["findings"]}, {key})
        self.assertEqual({finding["problem"] for finding in value["findings"]}, {"damaged_object"})
        self.assertTrue(self.late[0].exists())
        value = self.store("fsck", "--deep", "--repair")
        self.assertEqual(value["found"], value["repaired"])
        self.assertFalse(self.late[0].exists())
        self.assertEqual(len(self.store("stat")["quarantined_files"]), 1)
        self.assertEqual(self.store("find", self.input(768))["manifest_id"], self.shallow)
        self.assertEqual(self.store("fsck", "--deep")["found"], 0)

        healed = self.store("put", self.input(768), "--parent-deepest")
        self.assertFalse(healed["replayed"])
        self.restored(self.input(768), "healed")
        self.check_planes("healed", 768)

    def test_a_put_finds_a_whole_parent(self):
        manifest = [path for path in self.objects("manifests") if path.stem == self.deep][0]
        self.damage(manifest)
        value = self.store("put", self.input(1000), "--parent-deepest")
        self.assertEqual(value["parent_manifest_id"], self.shallow)
        self.assertFalse(manifest.exists())

    def test_prose_of_a_check(self):
        self.damage(self.late[0])
        done = self.run_tool("store", "fsck", *self.keys, "s", "--deep", code=4)
        self.assertIn(b"damaged_object " + self.late[0].stem.encode(), done.stdout)
        self.assertIn(b"integrity: store has", done.stderr)
        done = self.run_tool("store", "fsck", *self.keys, "s", "--deep", "--repair")
        self.assertIn(b"[repaired]", done.stdout)

    def test_missing_and_unknown_files(self):
        stray = self.late[0]
        content = stray.read_bytes()
        self.store("gc", "--evict", self.deep)
        missing = self.objects("chunks")[0]
        missing.unlink()
        stray.parent.mkdir(mode=0o700, exist_ok=True)
        stray.write_bytes(content)
        stray.chmod(0o600)
        foreign = self.folder / "s/objects/chunks/notes.txt"
        foreign.write_bytes(b"mine")
        value = self.store("fsck", code=4)
        self.assertEqual({finding["problem"] for finding in value["findings"]}, {"missing_file", "orphan_file", "foreign_entry"})
        self.assertTrue(stray.exists())
        self.store("fsck", "--repair", code=4)
        self.assertEqual(foreign.read_bytes(), b"mine")
        foreign.unlink()
        self.assertEqual(self.store("fsck", "--deep")["found"], 0)
        self.store("gc")
        self.assertEqual(self.objects("chunks") + self.objects("manifests"), [])
        self.store_refused("find", self.input(768), category="not_found", code=3)

    def test_rebuild_of_a_lost_catalog(self):
        for path in (self.folder / "s/catalog").iterdir():
            path.unlink()
        for command, arguments in (("find", [self.input(768)]), ("gc", [])):
            error = self.store_refused(command, *arguments, category="state")
            self.assertRegex(error["message"], r"^catalog is missing, rebuild it: ")
        before = self.everything()
        self.store_refused("rebuild", keys=["--key", "other.key", "--tenant-id", "acme"], category="authentication",
                           message="store belongs to another tenant or key")
        self.assertEqual(self.everything(), before)
        value = self.store("rebuild", "--quota", 1 << 30)
        self.assertEqual((value["cuts"], value["chunks"], value["found"]), (2, 6, 0))
        self.assertEqual(self.store("find", self.input(768))["manifest_id"], self.deep)
        self.restored(self.input(768), "planes")
        self.check_planes("planes", 768)
        self.assertEqual(self.store("stat")["quota_bytes"], 1 << 30)

    def test_rebuild_keeps_the_old_catalog_and_leaves_out_what_is_not_whole(self):
        self.late[0].unlink()
        value = self.store("rebuild")
        self.assertEqual(value["cuts"], 1)
        self.assertEqual([f["problem"] for f in value["findings"] if f["object"] == self.deep], ["incomplete_cut"])
        self.assertRegex(pathlib.Path(value["backup_path"]).name, r"^catalog\.backup-\d+$")
        self.assertEqual(self.store("find", self.input(768))["manifest_id"], self.shallow)


class PackSets(Case):
    def setUp(self):
        super().setUp()
        self.store("init")
        self.store("put", self.input(512))
        self.head = self.store("put", self.input(768), "--parent-deepest")["manifest_id"]

    def export(self, name="a.kvset", root="s"):
        value = self.store("export", self.head, name, root=root)
        return (self.folder / name).read_bytes(), value

    def test_a_set_goes_through_another_store_unchanged(self):
        data, value = self.export()
        self.assertEqual((value["head_manifest_id"], value["record_count"], value["file_bytes"]), (self.head, 8, len(data)))
        self.json("verify", *self.keys, "a.kvset")
        self.store("init", root="t")
        imported = self.store("import", "a.kvset", root="t")
        self.assertEqual((imported["manifest_id"], imported["replayed"], imported["record_count"]), (self.head, False, 8))
        self.assertEqual([(cut["token_count"], cut["depth"]) for cut in imported["cuts"]], [(512, 0), (768, 1)])
        self.assertEqual(self.store("find", self.input(768), root="t")["manifest_id"], self.head)
        self.restored(self.input(1000), "planes", root="t")
        self.check_planes("planes", 768)
        self.assertEqual(self.export("b.kvset", root="t")[0], data)
        self.assertTrue(self.store("import", "a.kvset", root="t")["replayed"])
        self.export()

    def test_sets_of_the_other_commands_are_the_same(self):
        data, _ = self.export()
        self.json("set", "extract", *self.keys, "a.kvset", "--out", "objects")
        self.json("set", "create", *self.keys, "c.kvset", f"objects/{self.head}.kvpack")
        self.assertEqual((self.folder / "c.kvset").read_bytes(), data)

    def test_what_is_wrong_with_a_set_leaves_the_store_as_it_was(self):
        self.export()
        self.store("init", root="t")
        data = bytearray((self.folder / "a.kvset").read_bytes())
        data[20000] ^= 1
        self.write("damaged.kvset", bytes(data))
        self.store_refused("import", "damaged.kvset", root="t", category="checksum")
        self.store_refused("import", "absent.kvset", root="t", category="io", code=5)
        other = ["--key", "other.key", "--tenant-id", "acme"]
        self.store("init", root="u", keys=other)
        self.store_refused("import", "a.kvset", root="u", keys=other, category="authentication",
                           message="pack set tenant mismatch")
        for root in ("t", "u"):
            self.assertEqual(self.objects("chunks", root) + self.objects("manifests", root), [])

    def test_an_export_never_replaces(self):
        self.write("mine.kvset", b"mine")
        error = self.store_refused("export", self.head, "mine.kvset", category="expectation",
                                   message="target exists with different bytes")
        self.assertEqual(error["object"], "mine.kvset")
        self.assertEqual((self.folder / "mine.kvset").read_bytes(), b"mine")
        self.store_refused("export", ID(9), "none.kvset", category="not_found", code=3, message="artifact not found")
        self.store_refused("export", self.head, "missing/x.kvset", category="io", code=5)
        self.assertFalse((self.folder / "none.kvset").exists())


class FullVolume(Case):
    def fill(self, volume):
        with open(volume / "filler", "ab", buffering=0) as filler:
            size = 1 << 20
            while size:
                try:
                    filler.write(b"x" * size)
                except OSError:
                    size //= 2

    def test_a_full_catalog_is_an_io_error_and_a_collection_makes_room(self):
        volume = self.folder / "volume"
        volume.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m,mode=700", "none", volume],
                          capture_output=True).returncode != 0:
            self.skipTest("mounting is not allowed here")
        self.addCleanup(subprocess.run, ["umount", "-l", volume], check=True)
        root = "volume/s"
        self.store("init", root=root)
        head = self.store("put", self.input(300), root=root)["manifest_id"]
        self.fill(volume)
        # With the room of the reserve.
        self.store("gc", "--evict", head, root=root)
        (volume / "s" / "reserve.bin").unlink()
        self.fill(volume)
        error = self.store_refused("put", self.input(600), root=root, category="io", code=5)
        self.assertEqual((error["message"].split(":")[0], error["space"]), ("catalog", "full"))
        (volume / "filler").unlink()
        self.store("put", self.input(600), root=root)
        self.store("fsck", "--deep", root=root)


if __name__ == "__main__":
    cli_test.TOOL = os.path.abspath(sys.argv.pop(1))
    unittest.main()
