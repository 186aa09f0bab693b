#!/usr/bin/env python3
"""The handoff and KVHF commands from outside: verdicts of the vectors, round trips, interoperability both ways with the
Python reference, refusals. usage: handoff_cli_test.py TOOL [unittest arguments]"""
import concurrent.futures
import copy
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import unittest

import cli_test
from cli_test import ROOT

sys.path.insert(0, str(ROOT / "conformance/python"))

from kvpack_ref import kvhf  # noqa: E402
from kvpack_ref.handoff import frame  # noqa: E402
from kvpack_ref.handoff.delta import span_schedule  # noqa: E402
from kvpack_ref.kvhf import bundle  # noqa: E402

VECTORS = json.loads((ROOT / "conformance/vectors/handoff_vectors.json").read_text())
TRANSFERS = {t["name"]: t for t in VECTORS["transfers"]}
LIVE = {t["name"]: t for t in VECTORS["kvhf"]}
CATEGORIES = {"Canonical": "canonical", "Invalid": "invalid_frame", "Io": "io", "Json": "json",
              "MissingBegin": "missing_begin", "ProducerAbort": "producer_abort", "Validation": "validation"}
TAMPERED_TAG = "artifact HMAC tag rejected"


def stream_of(transfer):
    return b"".join(bytes.fromhex(f) for f in transfer["frames_hex"])


def recorded(case):
    """The stream of a vector case, whose parts are frames of the transfers or bytes."""
    data = b""
    for part in case["parts"]:
        name, slash, index = part.partition("/")
        data += bytes.fromhex(TRANSFERS[name]["frames_hex"][int(index)] if slash else part)
    return data


def header_of(frame_bytes):
    length = struct.unpack_from("<I", frame_bytes, 8)[0]
    return json.loads(frame_bytes[20:20 + length])


def raw_frame(header, payload=b""):
    data = header if isinstance(header, bytes) else json.dumps(header).encode()
    return b"KVPKV2\0\0" + struct.pack("<IQ", len(data), len(payload)) + data + payload


class Case(cli_test.Case):
    def setUp(self):
        super().setUp()
        self.write("mac.key", bytes([9]) * 32, 0o600)

    def verify(self, stream, *more, now=15, key="mac.key", key_id="k", min_epoch=2):
        if isinstance(stream, bytes):
            self.write("in.kvpkv2", stream)
            stream = "in.kvpkv2"
        return ["handoff", "verify", "--mac-key", key, "--key-id", key_id, "--min-epoch", min_epoch, "--now-ms", now,
                *more, stream]

    def schedule_file(self, position, cut):
        rows = span_schedule(position, cut)
        keys = ("role", "layer", "logical_start", "logical_count", "element_type", "elements_per_token")
        self.write("schedule.json", json.dumps({"prompt_token_count": position, "prefix_cut": cut,
                                                "segments": [{k: r[k] for k in keys} for r in rows]}).encode())
        return ["--schedule", "schedule.json"]

    def reference(self, module, *args, code=0):
        environment = dict(os.environ, PYTHONPATH=str(ROOT / "conformance/python"))
        done = subprocess.run([sys.executable, "-m", f"kvpack_ref.{module}", *map(str, args)], cwd=self.folder,
                              env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertEqual(done.returncode, code, done.stderr.decode())
        return done

    def describe_transfer(self, transfer, keep=("component_id", "element_type", "elements_per_token", "layer",
                                                "logical_count", "logical_start", "role")):
        """BEGIN.json and payload files of a vector's transfer, the segments cut down to the keys in `keep`."""
        begin = copy.deepcopy(transfer["begin"])
        begin["segments"] = [{k: d[k] for k in keep if k in d} for d in transfer["descriptors"]]
        if transfer["prefix_cut"]:
            begin["prefix_cut"] = transfer["prefix_cut"]
        self.write("BEGIN.json", json.dumps(begin, indent=2).encode())
        names = []
        for index, payload in enumerate(transfer["payloads_hex"]):
            names.append(f"p{index}.bin")
            self.write(names[-1], bytes.fromhex(payload))
        return begin, names

    def make(self, names, *more, out="out.kvpkv2", key="mac.key"):
        return ["handoff", "make", "--mac-key", key, "--out", out, *more, "BEGIN.json", *names]

    def only_files(self, *names):
        self.assertEqual(sorted(set(self.files(".")) - set(names)), sorted(self.before - set(names)))


class Make(Case):
    def test_writes_the_bytes_of_the_vectors(self):
        for name, transfer in TRANSFERS.items():
            with self.subTest(name):
                _, payloads = self.describe_transfer(transfer)
                key = "key-" + name
                self.write(key, transfer["key_hex"].encode() + b"\n", 0o600)
                out = name + ".kvpkv2"
                result = self.json(*self.make(payloads, out=out, key=key))
                data = (self.folder / out).read_bytes()
                self.assertEqual(data, stream_of(transfer))
                self.assertEqual((result["file_bytes"], result["begin_sha256"], result["prefix_cut"], result["mode"]),
                                 (len(data), transfer["begin_sha256"], transfer["prefix_cut"],
                                  "deferred" if transfer["begin"].get("deferred_segments") else "declared"))
                # The same once more is no change, and nothing is ever replaced.
                self.json(*self.make(payloads, out=out, key=key))
                self.write("other.key", bytes([8]) * 32, 0o600)
                self.refused(*self.make(payloads, out=out, key="other.key"), category="expectation",
                             message="target exists with different bytes")
                self.assertEqual((self.folder / out).read_bytes(), data)

    def test_round_trip_through_inspect_and_verify(self):
        for name in ("two-component", "two-component-deferred", "delta-declared-257-256", "delta-deferred-257-256"):
            with self.subTest(name):
                transfer = TRANSFERS[name]
                _, payloads = self.describe_transfer(transfer)
                self.run_tool(*self.make(payloads, out=name))
                seen = self.json("handoff", "inspect", name)
                self.assertTrue(seen["complete"])
                self.assertEqual(seen["begin"]["prefix_cut"], transfer["prefix_cut"])
                self.assertEqual([s["sha256"] for s in seen["segments"]], [d["sha256"] for d in transfer["descriptors"]])
                self.assertEqual(seen["seal"]["hmac_sha256"], transfer["hmac_sha256"])
                data = (self.folder / name).read_bytes()
                for segment, payload in zip(seen["segments"], transfer["payloads_hex"]):
                    at = segment["payload_offset"]
                    self.assertEqual(data[at:at + segment["payload_bytes"]].hex(), payload)
                done = self.json(*self.verify(name))
                self.assertEqual((done["generation"], done["segment_count"]), (7, len(payloads)))

    def test_the_reference_accepts_what_is_made_and_the_other_way_round(self):
        for name in ("declared", "deferred", "delta-declared-257-256", "delta-deferred-257-256"):
            with self.subTest(name):
                transfer = TRANSFERS[name]
                begin, payloads = self.describe_transfer(transfer)
                self.run_tool(*self.make(payloads, out=name + ".ours"))
                self.reference("handoff", "verify", "--mac-key", "mac.key", "--key-id", "k", "--min-epoch", 2, "--now-ms", 15,
                               name + ".ours")
                begin.pop("prefix_cut", None)
                self.write("theirs.json", json.dumps(begin).encode())
                files = [word for payload in payloads for word in ("--payload", payload)]
                self.reference("handoff", "produce", "--mac-key", "mac.key", "--begin", "theirs.json", "--cut",
                               transfer["prefix_cut"], "--out", name + ".theirs", *files)
                self.assertEqual((self.folder / (name + ".theirs")).read_bytes(),
                                 (self.folder / (name + ".ours")).read_bytes())
                self.json(*self.verify(name + ".theirs"))

    def test_what_is_said_of_a_payload_must_be_so(self):
        transfer = TRANSFERS["two-component-deferred"]
        for mode in (True, False):
            begin, payloads = self.describe_transfer(transfer)
            begin["deferred_segments"] = mode
            self.before = set(self.files("."))
            for key, value in (("sha256", "0" * 64), ("byte_len", 4)):
                bad = copy.deepcopy(begin)
                bad["segments"][0][key] = value
                self.write("BEGIN.json", json.dumps(bad).encode())
                error = self.refused(*self.make(payloads), category="validation",
                                     message="cannot sign mismatched segment material")
                self.assertEqual(error["file"], "p0.bin")
            for key, value in (("sha256", transfer["descriptors"][0]["sha256"]), ("byte_len", 2), ("sequence", 0)):
                begin["segments"][0][key] = value
            self.write("BEGIN.json", json.dumps(begin).encode())
            self.run_tool(*self.make(payloads))
            (self.folder / "out.kvpkv2").unlink()
            self.only_files()

    def test_a_begin_that_a_receiver_would_refuse_is_not_written(self):
        begin, payloads = self.describe_transfer(TRANSFERS["declared"])
        self.before = set(self.files("."))
        invalid = [({"generation": 0}, "zero_generation", "handoff generation zero is never installable"),
                   ({"transfer_id": "a/b"}, "validation", "invalid transfer id"),
                   ({"protocol": "x"}, "validation", "wrong V2 protocol"),
                   ({"expires_unix_ms": 10}, "validation", "expired or invalid handoff lifetime"),
                   ({"prompt_token_ids": []}, "validation", "V2 prompt token sequence is empty"),
                   ({"prefix_cut": 100}, "validation",
                    "delta prefix cut is not a 256-aligned cut inside the prompt"),
                   ({"components": []}, "validation",
                    "V2 requires components and exactly one declared/deferred segment mode")]
        for change, category, message in invalid:
            self.write("BEGIN.json", json.dumps({**begin, **change}).encode())
            self.refused(*self.make(payloads), category=category, message=message)
        segment = begin["segments"][0]
        for change, message in (({"component_id": "x"}, "segment has unknown component or empty range"),
                                ({"element_type": "f64"}, "unsupported segment element type"),
                                ({"logical_count": 2}, "segment byte length disagrees with row geometry")):
            for deferred in (True, False):
                self.write("BEGIN.json", json.dumps({**begin, "deferred_segments": deferred,
                                                     "segments": [{**segment, **change}]}).encode())
                self.refused(*self.make(payloads), category="validation", message=message)
        self.only_files()

    def test_a_malformed_begin_is_misuse_and_names_its_place(self):
        begin, payloads = self.describe_transfer(TRANSFERS["declared"])
        self.before = set(self.files("."))
        segment = begin["segments"][0]
        changes = [({"extra": 1}, "`extra` is not a known key"), ({"segments": None}, "segments"),
                   ({"hmac": {"key_id": "k", "epoch": 2, "x": 1}}, "hmac.x"), ({"hmac": {"key_id": "k", "epoch": 0}},
                                                                             "`hmac.epoch` must be at least 1"),
                   ({"segments": [{**segment, "layr": 3}]}, "segments[0].layr"),
                   ({"segments": [{**segment, "role": "x"}]}, "segments[0].role"),
                   ({"segments": [{**segment, "sequence": 1}]}, "segments[0].sequence"),
                   ({"components": [{**begin["components"][0], "y": 1}]}, "components[0].y"),
                   ({"prefix_cut": "256"}, "prefix_cut"), ({"generation": -1}, "generation"),
                   ({"created_unix_ms": 1.5}, "created_unix_ms")]
        for change, part in changes:
            self.write("BEGIN.json", json.dumps({**begin, **change}).encode())
            error = self.refused(*self.make(payloads), category="usage", code=2)
            if part not in ("generation", "created_unix_ms"):
                self.assertIn(part, error["message"])
        self.write("BEGIN.json", b'{"a":1,"a":2}')
        self.refused(*self.make(payloads), category="usage", code=2)
        self.write("BEGIN.json", json.dumps(begin).encode())
        self.refused(*self.make([]), category="usage", code=2)
        self.refused(*self.make(payloads + ["mac.key"]), category="usage", code=2)
        self.refused(*self.make(["absent.bin"]), category="io", code=5)
        self.refused(*self.make(payloads, out="absent/out"), category="io", code=5)
        self.refused("handoff", "make", "--mac-key", "mac.key", "--out", "x", "absent.json", "p0.bin", category="io", code=5)
        self.only_files()

    def test_an_empty_payload_and_a_missing_component_are_refused(self):
        begin, payloads = self.describe_transfer(TRANSFERS["two-component-deferred"])
        begin["segments"] = begin["segments"][:1]
        self.write("BEGIN.json", json.dumps(begin).encode())
        self.before = set(self.files("."))
        self.refused(*self.make(payloads[:1]), category="validation", message="required component has no deferred segment")
        for deferred in (True, False):
            self.write("BEGIN.json", json.dumps({**begin, "deferred_segments": deferred}).encode())
            self.write("p0.bin", b"")
            self.refused(*self.make(payloads[:1]), category="validation",
                         message="segment has unknown component or empty range")
            os.truncate(self.folder / "p0.bin", 536870913)
            self.refused(*self.make(payloads[:1]), category="invalid_frame", message="frame exceeds configured bounds")
        self.only_files()


class Verify(Case):
    def test_every_stream_of_the_vectors(self):
        seen = set()
        for case in VECTORS["stream_cases"]:
            if not case["recorded"]:
                continue
            with self.subTest(case["name"]):
                self.write("case.key", bytes.fromhex(case["key_hex"]), 0o600)
                data = recorded(case)
                more = [] if case["strict"] else ["--no-strict"]
                if case["strict"] and case["max_segments"] is not None:
                    more += ["--max-segments", case["max_segments"]]
                if case["strict"] and case["max_total_bytes"] is not None:
                    more += ["--max-bytes", case["max_total_bytes"]]
                arguments = self.verify(data, *more, now=case["now_unix_ms"], key="case.key", key_id=case["key_id"],
                                        min_epoch=case["min_epoch"])
                if case["category"] == "ok":
                    result = self.json(*arguments)
                    self.assertEqual((result["generation"], result["prefix_cut"]),
                                     (case["live_generation"], case.get("prefix_cut", 0)))
                else:
                    self.refused(*arguments, category=CATEGORIES[case["category"]], message=case["message"])
                seen.add(case["category"])
        self.assertEqual(seen, {"ok", "Io", "Validation", "Invalid", "MissingBegin", "ProducerAbort"})

    def test_json_refusals_are_refusals_and_no_misuse(self):
        good = stream_of(TRANSFERS["declared"])
        begin = header_of(good)
        for header in (b"{", b"[]", b'{"kind":"begin"}', {"kind": "other"}, {**begin, "manifest": 1},
                       b"\xef\xbb\xbf" + json.dumps(begin).encode()):
            self.refused(*self.verify(raw_frame(header)), category="json")
        self.refused(*self.verify(b"x" * 30), category="invalid_frame", message="bad frame magic")
        self.refused(*self.verify(good[:8] + struct.pack("<IQ", 2, 2 ** 64 - 1) + b"{}"), category="invalid_frame",
                     message="frame lengths exceed bounds")
        begin["manifest"]["compression"] = "none"
        self.refused(*self.verify(raw_frame(begin)), category="invalid_frame",
                     message="begin manifest carries unknown field `compression`: the producer is newer than this receiver")

    def test_a_commit_says_what_was_not_checked(self):
        result = self.json(*self.verify(stream_of(TRANSFERS["declared"])))
        self.assertEqual((result["ok"], result["level"], result["mode"], result["key_id"], result["epoch"], result["strict"]),
                         (True, "authenticated", "declared", "k", 2, True))
        self.assertEqual(result["unchecked"], ["replay ledger", "armed request"])
        prose = self.run_tool(*self.verify("in.kvpkv2")).stdout.decode()
        self.assertEqual(prose, "in.kvpkv2: transfer t generation 7 committed: declared, 1 segments, 2 bytes; unchecked: "
                                "replay ledger, armed request\n")
        for name in ("delta-declared-257-256", "delta-deferred-257-256"):
            result = self.json(*self.verify(stream_of(TRANSFERS[name])))
            self.assertEqual((result["prefix_cut"], result["prefix_cut_under_seal"]), (256, False))
            self.assertEqual(result["unchecked"], ["replay ledger", "armed request"])
            self.assertIn("prefix cut 256, which is not under the seal",
                          self.run_tool(*self.verify("in.kvpkv2")).stdout.decode())
            self.assertEqual(self.json(*self.verify("in.kvpkv2", *self.schedule_file(257, 256))), result)

    def test_a_schedule_is_that_of_one_length_and_one_cut(self):
        for name, message in (
                ("delta-declared-257-256", "declared target schedule is not the span schedule for the prefix cut"),
                ("delta-deferred-257-256", "delta prefix cut cannot form a span schedule")):
            stream = stream_of(TRANSFERS[name])
            for position, cut in ((300, 256), (257, 0)):
                self.refused(*self.verify(stream, *self.schedule_file(position, cut)), category="validation", message=message)
        # Of a full transfer no schedule is asked.
        self.json(*self.verify(stream_of(TRANSFERS["declared"]), *self.schedule_file(257, 256)))
        for text in (b"[]", b'{"prompt_token_count":1,"prefix_cut":0}',
                     b'{"prompt_token_count":1,"prefix_cut":0,"segments":[{"role":"x"}]}',
                     b'{"prompt_token_count":1,"prefix_cut":0,"segments":[],"more":1}'):
            self.write("schedule.json", text)
            self.refused(*self.verify(stream, "--schedule", "schedule.json"), category="usage", code=2)
        self.refused(*self.verify(stream, "--schedule", "absent.json"), category="io", code=5)

    def test_a_delta_of_another_layout_comes_with_its_schedule(self):
        rows = [{"role": "auxiliary", "layer": 5, "logical_start": 256, "logical_count": 1, "element_type": "f32_le",
                 "elements_per_token": 3}]
        self.write("schedule.json", json.dumps({"prompt_token_count": 257, "prefix_cut": 256, "segments": rows}).encode())
        self.write("p.bin", bytes(12))
        for name, message in (
                ("delta-declared-257-256", "declared target schedule is not the span schedule for the prefix cut"),
                ("delta-deferred-257-256", "deferred target stream is not the span schedule for the prefix cut")):
            begin = {**TRANSFERS[name]["begin"], "prefix_cut": 256, "segments": [{**rows[0], "component_id": "target"}]}
            self.write("BEGIN.json", json.dumps(begin).encode())
            self.run_tool(*self.make(["p.bin"], out=name))
            self.refused(*self.verify(name), category="validation", message=message)
            self.assertEqual(self.json(*self.verify(name, "--schedule", "schedule.json"))["segment_count"], 1)

    def test_strict_rules_and_what_turns_them_off(self):
        def stream(**change):
            begin, payloads = self.describe_transfer({**TRANSFERS["declared"],
                                                      "begin": {**TRANSFERS["declared"]["begin"], **change}})
            (self.folder / "strict").unlink(missing_ok=True)
            self.run_tool(*self.make(payloads, out="strict"))
            return "strict"

        ahead = stream(created_unix_ms=40_000, expires_unix_ms=50_000)
        self.refused(*self.verify(ahead, now=9_999), category="validation",
                     message="handoff created at 40000 unix ms is ahead of the receiver clock 9999 unix ms: check "
                             "producer/receiver clock skew")
        self.json(*self.verify(ahead, now=10_000))
        self.json(*self.verify(ahead, "--max-clock-skew-ms", 30_001, now=9_999))
        self.json(*self.verify(ahead, "--no-strict", now=9_999))
        # Nothing has started, so a creation long before the clock is no fault.
        self.json(*self.verify(ahead, now=50_000))
        long = stream(created_unix_ms=0, expires_unix_ms=3_600_001)
        self.refused(*self.verify(long), category="validation", message="handoff lifetime 3600001 ms exceeds 3600000 ms")
        self.json(*self.verify(long, "--max-lifetime-ms", 3_600_001))
        self.assertFalse(self.json(*self.verify(long, "--no-strict"))["strict"])
        for limit in ("--max-clock-skew-ms", "--max-lifetime-ms", "--max-segments", "--max-bytes"):
            self.refused(*self.verify(long, "--no-strict", limit, 1), category="usage", code=2)
        good = stream_of(TRANSFERS["two-component-deferred"])
        self.refused(*self.verify(good, "--max-segments", 1), category="validation", message="transfer exceeds 1 segments")
        self.refused(*self.verify(good, "--max-bytes", 5), category="validation", message="transfer exceeds 5 payload bytes")
        self.json(*self.verify(good, "--max-bytes", 6, "--max-segments", 2, "--strict"))

    def test_without_a_clock_the_machines_is_taken(self):
        self.write("in.kvpkv2", stream_of(TRANSFERS["declared"]))
        arguments = ["handoff", "verify", "--mac-key", "mac.key", "--key-id", "k", "--min-epoch", 2, "in.kvpkv2"]
        self.assertIn("handoff expired at 20 unix ms", self.refused(*arguments, category="validation")["message"])

    def test_key_files(self):
        stream = stream_of(TRANSFERS["declared"])
        _, payloads = self.describe_transfer(TRANSFERS["declared"])
        hexed = bytes([9] * 32).hex().encode()
        for content in (bytes([9]) * 32, hexed, hexed + b"\n", hexed + b"\r\n\n"):
            self.write("good.key", content, 0o400)
            self.json(*self.verify(stream, key="good.key"))
            self.json(*self.make(payloads, key="good.key"))
            (self.folder / "good.key").unlink()
        self.write("padded.key", b" " + hexed + b" \n", 0o600)
        self.json(*self.make(payloads, key="padded.key"))
        text = "live handoff validation failed: MAC key must be 64 lowercase hexadecimal digits"
        self.refused(*self.verify(stream, key="padded.key"), category="usage", code=2, message=text)
        self.before = set(self.files(".")) - {"out.kvpkv2"}
        (self.folder / "out.kvpkv2").unlink()
        for content, mode, theirs, ours in (
                (bytes([9]) * 32, 0o640, "HMAC key must not be accessible by group/other",
                 "HMAC key file must not be accessible by group/other"),
                (bytes([9]) * 31, 0o600, text, "HMAC key must be 32 raw bytes or 64 lowercase hex digits"),
                (b"\xff" * 33, 0o600, "HMAC key is not UTF-8 hex", "HMAC key must be 32 raw bytes or 64 lowercase hex digits"),
                (hexed.upper().replace(b"0", b"A"), 0o600, text, "HMAC key must use lowercase hexadecimal"),
                (b"z" * 64, 0o600, text, "HMAC key is not lowercase hexadecimal"),
                (b"0" * 4097, 0o600, "HMAC key file is too large", "HMAC key file is unexpectedly large")):
            (self.folder / "bad.key").unlink(missing_ok=True)
            self.write("bad.key", content, mode)
            self.refused(*self.verify(stream, key="bad.key"), category="usage", code=2, message=theirs)
            self.refused(*self.make(payloads, key="bad.key"), category="usage", code=2, message=ours)
        os.symlink("mac.key", self.folder / "link.key")
        for arguments in (self.verify(stream, key="link.key"), self.make(payloads, key="link.key")):
            self.refused(*arguments, category="usage", code=2, message="HMAC key must be a regular non-symlink file")
        for arguments in (self.verify(stream, key="absent.key"), self.make(payloads, key="absent.key")):
            self.refused(*arguments, category="io", code=5)
        self.assertFalse((self.folder / "out.kvpkv2").exists())

    def test_misuse(self):
        self.write("in.kvpkv2", stream_of(TRANSFERS["declared"]))
        full = self.verify("in.kvpkv2")
        for option in ("--mac-key", "--key-id", "--min-epoch"):
            at = full.index(option)
            self.refused(*full[:at], *full[at + 2:], category="usage", code=2)
        self.refused(*full[:-1], category="usage", code=2)
        self.refused(*full, "--min-epoch", "-1", category="usage", code=2)
        self.refused("handoff", category="usage", code=2)
        self.refused(*self.verify("absent"), category="io", code=5)
        self.refused(*self.verify("."), category="io", code=5)

    def damaged(self, variants):
        """Runs verify over many streams, and gives back those it did not refuse with exit code 4."""
        def run(numbered):
            index, data = numbered
            path = self.write(f"damaged-{index}", data)
            done = subprocess.run([cli_test.TOOL, *map(str, self.verify(str(path))), "--quiet"], cwd=self.folder,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            path.unlink()
            return None if (done.returncode, done.stdout) == (4, b"") and done.stderr else (index, done)
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            return [bad for bad in pool.map(run, enumerate(variants)) if bad is not None]

    def test_truncations_and_flipped_bits_of_a_recording_are_refused(self):
        chance = random.Random(5)
        for name in ("declared", "deferred"):
            good = stream_of(TRANSFERS[name])
            ends = [0]
            for piece in TRANSFERS[name]["frames_hex"]:
                ends.append(ends[-1] + len(piece) // 2)
            cuts = set(range(0, len(good), 41)) | {e + d for e in ends for d in (-2, -1, 0, 1, 8, 12, 20, 21)}
            variants = [good[:n] for n in sorted(cuts) if 0 <= n < len(good)]
            for _ in range(60):
                at = chance.randrange(len(good))
                variants.append(good[:at] + bytes([good[at] ^ (1 << chance.randrange(8))]) + good[at + 1:])
            variants += [good + b"\0", good + good]
            self.assertEqual(self.damaged(variants), [])


class Inspect(Case):
    def test_what_frames_say(self):
        seen = self.json("handoff", "inspect", self.write("in", stream_of(TRANSFERS["two-component"])))
        self.assertEqual((seen["kind"], seen["authenticated"], seen["complete"]), ("handoff", False, True))
        self.assertEqual(seen["frame_counts"], {"abort": 0, "ack": 0, "begin": 1, "refusal": 0, "seal": 1, "segment": 2})
        self.assertEqual((seen["begin"]["begin_sha256"], seen["begin"]["prompt_token_count"],
                          seen["begin"]["declared_segment_count"]), (TRANSFERS["two-component"]["begin_sha256"], 1, 2))
        self.assertEqual(seen["payload_bytes"], 6)
        self.assertEqual((seen["segments"][1]["role"], seen["segments"][1]["descriptor_in_frame"]), ("dflash_key", False))
        self.assertEqual(len(self.json("handoff", "inspect", "--list", 1, "in")["segments"]), 1)
        self.assertEqual(self.json("handoff", "inspect", "--list", 0, "in")["segments"], [])
        self.refused("handoff", "inspect", "--list", 1048577, "in", category="usage", code=2)
        self.assertEqual(json.loads(self.run_tool("handoff", "inspect", "in").stdout), seen)

    def test_a_receivers_frames_and_other_orders(self):
        answers = frame.write_ack("t", 7) + frame.write_abort("out of memory") + raw_frame(
            {"kind": "refusal", "category": "Busy", "retry": "later", "text": ""})
        seen = self.json("handoff", "inspect", self.write("answers", answers))
        self.assertFalse(seen["complete"])
        self.assertEqual((seen["ack"], seen["abort"], seen["refusal"]),
                         ({"generation": 7, "transfer_id": "t"}, {"reason": "out of memory"},
                          {"category": "Busy", "retry": "later", "text": ""}))
        good = stream_of(TRANSFERS["declared"])
        self.assertFalse(self.json("handoff", "inspect", self.write("twice", good + good))["complete"])

    def test_what_stood_in_front_of_a_fault_is_shown(self):
        good = stream_of(TRANSFERS["declared"])
        first = len(TRANSFERS["declared"]["frames_hex"][0]) // 2
        second = first + len(TRANSFERS["declared"]["frames_hex"][1]) // 2
        for data, category, message, frames in (
                (b"", "io", "stream ended between frames", 0), (good[:10], "io", "stream ended inside a frame", 0),
                (good[:first + 19], "io", "stream ended inside a frame", 1),
                (good[:second - 1], "invalid_frame", "truncated segment payload", 1),
                (good + b"x" * 20, "invalid_frame", "bad frame magic", 3),
                (good[:second] + raw_frame(b"{}"), "json", None, 2),
                (raw_frame({"kind": "ack", "transfer_id": "t", "generation": 1}, b"x"), "invalid_frame",
                 "control frame carries payload", 0),
                (good[:8] + struct.pack("<IQ", 8388609, 0), "invalid_frame", "frame lengths exceed bounds", 0)):
            value = self.json("handoff", "inspect", self.write("in", data), code=4)
            self.assertEqual((value["ok"], value["error"]["category"], sum(value["frame_counts"].values())),
                             (False, category, frames))
            self.assertFalse(value["complete"])
            if message is not None:
                self.assertEqual(value["error"]["message"], message)
            self.assertEqual(value["begin"] is None, frames == 0)
        # As prose both parts are there, on their own channels.
        done = self.run_tool("handoff", "inspect", self.write("in", good[:second - 1]), code=4)
        self.assertIn(b"truncated segment payload", done.stderr)
        self.assertEqual(json.loads(done.stdout)["begin"]["transfer_id"], "t")

    def test_repeated_keys_are_refused_unless_strict_mode_is_off(self):
        header = b'{"kind":"ack","transfer_id":"t","generation":1,"generation":1}'
        self.write("in", raw_frame(b'{"kind":"abort","reason":"x"}'.replace(b"}", b',"reason":"y"}')))
        self.refused("handoff", "inspect", "in", category="invalid_frame", message="header repeats the key `reason`")
        self.refused("handoff", "inspect", self.write("in", raw_frame(header)), "--no-strict", category="json")
        begin = json.dumps(header_of(stream_of(TRANSFERS["declared"])))
        self.write("in", raw_frame(begin.replace('"manifest": {', '"manifest": {"prefix_cut": 1, "prefix_cut": 2, ').encode()))
        self.refused("handoff", "inspect", "in", category="invalid_frame", message="header repeats the key `prefix_cut`")
        self.assertEqual(self.json("handoff", "inspect", "in", "--no-strict")["begin"]["prefix_cut"], 2)

    def test_no_prompt_and_no_control_character_reaches_the_terminal(self):
        begin = header_of(stream_of(TRANSFERS["declared"]))
        begin["manifest"]["prompt_token_ids"] = [1590863738] * 3
        begin["manifest"]["identity"]["model_revision"] = "\x1b[2J\x9b2J\x7f\u2028"
        path = self.write("in", raw_frame(json.dumps(begin, ensure_ascii=False).replace("\x1b", "\\u001b").encode()))
        for arguments in (["handoff", "inspect", path], ["handoff", "inspect", path, "--json"], self.verify(str(path))):
            done = self.run_tool(*arguments, code=0 if "inspect" in arguments else 4)
            self.assertNotIn(b"1590863738", done.stdout + done.stderr)
            self.assertNotIn(b"\x1b", done.stdout + done.stderr)
        prose = self.run_tool("handoff", "inspect", path).stdout
        self.assertNotIn("\x9b".encode(), prose)
        self.assertNotIn(b"\x7f", prose)
        self.assertEqual(json.loads(prose)["begin"]["identity"]["model_revision"], "\x1b[2J\x9b2J\x7f\u2028")
        good = TRANSFERS["declared"]["frames_hex"]
        reason = frame.write_abort("\x1b[1mok\n\x9b\nkvpack: fine")
        done = self.run_tool(*self.verify(bytes.fromhex(good[0]) + reason), code=4)
        self.assertEqual(done.stderr, b"kvpack: in.kvpkv2: producer_abort: \\u001b[1mok\\u000a\\u009b\\u000akvpack: fine\n")
        begin["manifest"]["\x1b"] = 1
        done = self.run_tool(*self.verify(raw_frame(begin)), code=4)
        self.assertNotIn(b"\x1b", done.stderr)


class Kvhf(Case):
    LIMITS = {"max_cached_tokens": "--max-cached-tokens", "max_clock_skew_ms": "--max-clock-skew-ms",
              "max_context_tokens": "--max-context-tokens", "max_frame_bytes": "--max-frame-bytes",
              "max_layers": "--max-layers", "max_session_ms": "--max-session-ms", "max_total_bytes": "--max-total-bytes",
              "now_unix_ms": "--now-ms"}

    def stream(self, name):
        return bytes.fromhex(LIVE[name]["stream_hex"])

    def key_of(self, name, path="live.key"):
        (self.folder / path).unlink(missing_ok=True)
        self.write(path, bytes.fromhex(LIVE[name]["key_hex"]), 0o600)
        return ["--mac-key", path]

    def test_every_stream_of_the_vectors(self):
        seen = set()
        for case in VECTORS["kvhf_stream_cases"]:
            with self.subTest(case["name"]):
                limits = [w for key, option in self.LIMITS.items() for w in (option, case["limits"][key])]
                if case["key_hex"] is not None:
                    self.write("case.key", bytes.fromhex(case["key_hex"]), 0o600)
                    limits += ["--mac-key", "case.key"]
                arguments = ["kvhf", "verify", *limits, self.write("in", bytes.fromhex(case["stream_hex"]))]
                if case["name"] == "seal-twice":
                    # A session never looks behind its seal; a file must not carry what nobody has judged.
                    self.refused(*arguments, category="validation", message="recorded stream carries bytes after the seal")
                elif case["category"] == "ok":
                    result = self.json(*arguments)
                    self.assertEqual(result["authenticated"], case["key_hex"] is not None)
                else:
                    self.refused(*arguments, category=CATEGORIES[case["category"]], message=case["message"])
                seen.add(case["category"])
        self.assertEqual(seen, {"ok", "Io", "Validation"})

    def test_every_transfer_as_stream_and_as_bundle(self):
        for name, transfer in LIVE.items():
            with self.subTest(name):
                stream = self.write(name + ".kvhf", self.stream(name))
                key = self.key_of(name) if transfer["key_hex"] else []
                bundle.write(str(self.folder / name), self.stream(name), kvhf.Limits(now_unix_ms=150))
                for path, form in ((stream, "stream"), (name, "bundle")):
                    result = self.json("kvhf", "verify", "--now-ms", 150, *key, path)
                    self.assertEqual((result["form"], result["artifact_sha256"], result["layer_frames"]),
                                     (form, transfer["artifact_sha256"], transfer["headers"]))
                    self.assertEqual(result["level"], "authenticated" if key else "integrity")
                    self.assertEqual("rows of the canary" in result["unchecked"], name.startswith("prerope"))
                    seen = self.json("kvhf", "inspect", path)
                    self.assertTrue(seen["complete"])
                    self.assertEqual(len(seen["layers"]), transfer["headers"])
                    self.assertEqual(seen["begin"], transfer["begin"])
                    self.assertEqual(seen["seal"]["artifact_sha256"], transfer["artifact_sha256"])
                    self.assertEqual(seen["seal"]["prompt_token_count"], len(transfer["prompt_token_ids"]))
                    self.assertNotIn("prompt_token_ids", json.dumps(seen))

    def test_the_reference_produces_what_is_accepted(self):
        transfer = LIVE["prerope-keyed"]
        self.write("begin.json", json.dumps(transfer["begin"]).encode())
        self.write("canary.json", json.dumps(transfer["canary"]).encode())
        files = []
        for index, plane in enumerate(transfer["planes_hex"]):
            files += ["--plane", self.write(f"plane{index}", bytes.fromhex(plane))]
        key = self.key_of("prerope-keyed")
        self.reference("kvhf", "produce", *key, "--begin", "begin.json", "--canary", "canary.json", "--completed-ms", 150,
                       "--tokens", ",".join(map(str, transfer["prompt_token_ids"])), "--out", "theirs.kvhf", *files)
        self.assertTrue(self.json("kvhf", "verify", "--now-ms", 150, *key, "theirs.kvhf")["authenticated"])
        self.reference("kvhf", "unpack", "--now-ms", 150, *key, "theirs.kvhf", "theirs")
        self.assertTrue(self.json("kvhf", "verify", "--now-ms", 150, *key, "theirs")["authenticated"])

    def test_keys(self):
        self.write("in", self.stream("prerope-keyed"))
        bundle.write(str(self.folder / "b"), self.stream("prerope-keyed"), kvhf.Limits(now_unix_ms=150))
        bundle.write(str(self.folder / "plain"), self.stream("v1"), kvhf.Limits(now_unix_ms=150))
        self.write("plain.kvhf", self.stream("v1"))
        key = self.key_of("prerope-keyed")
        for path in ("in", "b"):
            self.refused("kvhf", "verify", "--now-ms", 150, "--mac-key", "mac.key", path, category="validation",
                         message=TAMPERED_TAG)
            open_result = self.json("kvhf", "verify", "--now-ms", 150, path)
            self.assertFalse(open_result["authenticated"])
            self.assertEqual(open_result["unchecked"], ["armed expectations", "HMAC of the artifact", "rows of the canary"])
            self.assertIn(b"integrity only, not authenticated", self.run_tool("kvhf", "verify", "--now-ms", 150, path).stdout)
        self.refused("kvhf", "verify", "--now-ms", 150, *key, "plain", category="validation",
                     message="sealed artifact carries no HMAC tag to authenticate")
        self.refused("kvhf", "verify", "--now-ms", 150, *key, "plain.kvhf", category="validation",
                     message="receiver armed for artifact HMAC but begin declares no hmac_key_id")
        (self.folder / "live.key").chmod(0o644)
        self.refused("kvhf", "verify", "--now-ms", 150, *key, "in", category="usage", code=2,
                     message="HMAC key must not be accessible by group/other")

    def test_damaged_bundles(self):
        late = "handoff creation/deadline is invalid or expired"
        verify = ["kvhf", "verify", "--now-ms", 150, "b"]

        def fresh():
            shutil.rmtree(self.folder / "b", ignore_errors=True)
            bundle.write(str(self.folder / "b"), self.stream("v2-windowed"), kvhf.Limits(now_unix_ms=150))
            return self.folder / "b"

        fresh()
        self.refused("kvhf", "verify", "--now-ms", 201, "b", category="validation", message=late)
        self.refused("kvhf", "verify", "b", category="validation", message=late)
        (fresh() / "READY").write_text("0" * 64 + "\n")
        self.refused(*verify, category="validation", message="READY marker does not match the sealed artifact")
        self.assertFalse(self.json("kvhf", "inspect", "b")["ready"])
        (fresh() / "layers/stray").write_bytes(b"x")
        self.refused(*verify, category="validation", message="layers directory contains missing or unexpected entries")
        self.assertFalse(self.json("kvhf", "inspect", "b")["complete"])
        plane = fresh() / "layers/00000-k.f16le"
        plane.write_bytes(b"\0" * plane.stat().st_size)
        self.refused(*verify, category="validation", message="layer frame 0 length or SHA-256 mismatch")
        begin = fresh() / "begin.json"
        begin.write_bytes(begin.read_bytes().replace(b"{", b'{"a":1,', 1))
        self.refused(*verify, category="canonical")
        value = self.json("kvhf", "inspect", "b", code=4)
        self.assertEqual((value["error"]["category"], value["error"]["object"]), ("canonical", "begin.json"))
        begin.write_bytes(b" " + json.dumps(LIVE["v2-windowed"]["begin"], sort_keys=True, separators=(",", ":")).encode())
        self.refused(*verify, category="validation", message="JSON is not in the canonical compact sorted-key encoding")
        (fresh() / "seal.json").unlink()
        self.refused(*verify, category="io", code=5)
        unsealed = self.json("kvhf", "inspect", "b")
        self.assertEqual((unsealed["seal"], unsealed["complete"], unsealed["layer_header_count"]), (None, False, 12))
        (fresh() / "layers/00002-v.f16le").unlink()
        self.refused(*verify, category="io", code=5)
        self.assertEqual([e["payload_file"] for e in self.json("kvhf", "inspect", "b")["layers"]][5], None)
        (fresh() / "layers/00000-k.json").write_bytes(b"{}")
        self.assertEqual(self.json("kvhf", "inspect", "b", code=4)["error"]["object"], "layers/00000-k.json")
        fresh()
        os.symlink("b", self.folder / "link")
        self.refused("kvhf", "verify", "--now-ms", 150, "link", category="validation",
                     message="bundle must not be a symlink: link")
        self.refused("kvhf", "verify", "--now-ms", 150, "absent", category="io", code=5)
        self.refused("kvhf", "inspect", "absent", category="io", code=5)
        self.assertEqual(len(self.json("kvhf", "inspect", "--list", 3, "b")["layers"]), 3)

    def test_every_truncation_of_a_stream(self):
        good = self.stream("v1")
        for n in sorted(set(range(0, len(good), 97)) | {len(good) - 1}):
            self.refused("kvhf", "verify", "--now-ms", 150, self.write("in", good[:n]), category="io",
                         message="unexpected end of file")
            value = self.json("kvhf", "inspect", "in", code=0 if n in self.ends(good) else 4)
            self.assertFalse(value["complete"])

    def ends(self, data):
        """Where the frames of a stream end."""
        ends, at = set(), 0
        while at < len(data):
            json_bytes, payload_bytes = struct.unpack_from(">IQ", data, at + 8)
            at += 20 + json_bytes + payload_bytes
            ends.add(at)
        return ends

    def test_inspect_shows_what_stood_in_front_of_a_fault(self):
        good = self.stream("v1")
        value = self.json("kvhf", "inspect", self.write("in", good + b"x" * 20), code=4)
        self.assertEqual((value["error"]["category"], value["error"]["message"], value["frame_counts"]["layer"]),
                         ("validation", "invalid frame magic, version, or reserved flags", 2))
        self.assertEqual(value["seal"]["artifact_sha256"], LIVE["v1"]["artifact_sha256"])
        self.refused("kvhf", "inspect", self.write("in", b"KVHF\x01\x02\0\0" + struct.pack(">IQ", 2, 2 ** 64 - 1)),
                     category="validation", message="frame lengths violate the configured bounds or frame kind")
        self.refused("kvhf", "inspect", self.write("in", b""), category="io")


class Help(Case):
    def test_help_teaches(self):
        for command in (["handoff"], ["handoff", "make"], ["handoff", "inspect"], ["handoff", "verify"], ["kvhf"],
                        ["kvhf", "inspect"], ["kvhf", "verify"]):
            text = self.run_tool(*command, "--help").stdout
            self.assertIn(b"docs/" if len(command) == 1 else b"Example", text)
        self.refused("kvhf", category="usage", code=2)


if __name__ == "__main__":
    cli_test.TOOL = os.path.abspath(sys.argv.pop(1))
    unittest.main()
