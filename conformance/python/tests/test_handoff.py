"""The Handoff V2 reference against worked values, its own endpoint, and its command line."""
import io
import json
import os
import random
import stat
import subprocess
import sys
import tempfile
import unittest

PYTHON = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, PYTHON)

import handoff_endpoint  # noqa: E402
from kvpack_ref import canonical_json  # noqa: E402
from kvpack_ref.handoff import canonical as cj  # noqa: E402
from kvpack_ref.handoff import cases, frame, mac, manifest, stream, vectors  # noqa: E402
from kvpack_ref.handoff.errors import Refusal  # noqa: E402
from kvpack_ref.handoff.receiver import RecordingSink  # noqa: E402

VECTORS = os.path.join(os.path.dirname(PYTHON), "vectors", "handoff_vectors.json")
TRANSFERS = {t["name"]: t for t in cases.transfers()}
POLICY = stream.Policy(cases.KEY, "k", 2, 15)


def stream_of(name):
    return bytes.fromhex("".join(TRANSFERS[name]["frames_hex"]))


class Refused:
    """assertRefused: the category and the exact text."""

    def assertRefused(self, category, message, call, *args):
        with self.assertRaises(Refusal) as caught:
            call(*args)
        self.assertEqual(caught.exception.category, category)
        if message is not None:
            self.assertEqual(caught.exception.message, message)


class CanonicalJson(Refused, unittest.TestCase):
    def test_agrees_with_the_codec_of_the_durable_formats(self):
        rng = random.Random(7)

        def value(depth):
            kind = rng.randrange(6 if depth < 4 else 4)
            if kind == 0:
                return rng.choice([True, False, None])
            if kind == 1:
                return rng.randrange(2**64)
            if kind < 4:
                return "".join(chr(rng.choice([rng.randrange(0xD800), 0x1F600, 0x7F, 0x22, 0x5C])) for _ in range(5))
            if kind == 4:
                return [value(depth + 1) for _ in range(rng.randrange(4))]
            return {f"{rng.randrange(99)}\u00e9": value(depth + 1) for _ in range(rng.randrange(4))}

        for _ in range(300):
            v = value(0)
            encoded = cj.canonical(v)
            self.assertEqual(encoded, canonical_json.encode(v))
            self.assertEqual(cj.plain(cj.parse(encoded)), v)

    def test_refuses_what_a_lenient_library_takes(self):
        for text in (b"NaN", b"Infinity", b"[-Infinity]", b"\xef\xbb\xbf{}", b"{}\0", b"'a'", b"01", b"-", b"1.", b".5",
                     b"+1", b"\x0b1", b'"\t"', b'"\\x"', b'"\\ud800"', b'"\\udc00\\ud800"', b'"\xff"', b"[1,]", b"", b"{1:2}",
                     b"[" * 128 + b"]" * 128, b"[" * 100000, b'{"a":' * 128 + b"1" + b"}" * 128):
            self.assertRefused("json", None, cj.parse, text)

    def test_numbers_that_are_no_u64_are_no_integers(self):
        for token in (b"-0", b"-1", b"1.0", b"1e2", b"18446744073709551616", b"9" * 5000):
            self.assertRefused("json", None, cj.u64, cj.parse(token))
        self.assertEqual(cj.u64(cj.parse(b"18446744073709551615")), cj.U64_MAX)
        self.assertRefused("json", None, cj.u64, cj.parse(b"true"))
        self.assertRefused("json", None, cj.u32, cj.parse(b"4294967296"))

    def test_brackets_in_strings_are_not_depth(self):
        self.assertEqual(cj.parse(b'"' + b"[" * 200 + b'"'), "[" * 200)
        self.assertEqual(cj.parse(b"[" * 127 + b"]" * 127)[0][0], cj.parse(b"[" * 125 + b"]" * 125))

    def test_repeated_keys_stay_visible(self):
        self.assertEqual(cj.find_repeated_key(cj.parse(b'{"a":[{"b":1,"c":{"d":1,"d":2}}],"a":1}')), "d")
        self.assertIsNone(cj.find_repeated_key(cj.parse(b'{"a":{"b":1},"c":{"b":1}}')))


class Frames(Refused, unittest.TestCase):
    def test_every_truncation_of_every_frame_is_refused(self):
        for transfer in ("declared", "deferred", "two-component-deferred"):
            for digits in TRANSFERS[transfer]["frames_hex"]:
                data = bytes.fromhex(digits)
                for length in range(len(data)):
                    self.assertRaises(Refusal, frame.FrameReader(data[:length]).next)

    def test_lengths_are_judged_before_anything_is_read(self):
        huge = frame.MAGIC + b"\x02\0\0\0" + b"\xff" * 8
        self.assertRefused("invalid", "frame lengths exceed bounds", frame.FrameReader(huge).next)

    def test_writers_refuse_what_readers_would(self):
        self.assertRefused("invalid", "payload frame cannot be empty", frame.write_segment, 0, None, b"")
        self.assertRefused("invalid", "frame exceeds configured bounds", frame.write_frame, b"")
        self.assertRefused("invalid", "frame exceeds configured bounds", frame.write_frame,
                           b" " * (frame.MAX_HEADER_BYTES + 1))

    def test_the_typed_begin_never_carries_the_cut(self):
        begin = manifest.parse_begin(cj.canonical(cases.fixture_begin()))
        with_cut = frame.FrameReader(frame.write_begin(begin, 256)).next()
        self.assertEqual(with_cut["prefix_cut"], 256)
        self.assertEqual(manifest.canonical_begin(with_cut["manifest"]), manifest.canonical_begin(begin))


class Streams(Refused, unittest.TestCase):
    def test_recorded_transfers_are_accepted(self):
        for t in TRANSFERS.values():
            policy = stream.Policy(bytes.fromhex(t["key_hex"]), t["key_id"], t["min_epoch"], t["now_unix_ms"])
            sink = RecordingSink()
            done = stream.receive(stream_of(t["name"]), policy, sink)
            self.assertEqual((done.prefix_cut, sink.live), (t["prefix_cut"], t["begin"]["generation"]))

    def test_a_sample_of_every_corruption_is_refused_and_aborts_once(self):
        rng = random.Random(11)
        for t in TRANSFERS.values():
            data = stream_of(t["name"])
            policy = stream.Policy(bytes.fromhex(t["key_hex"]), t["key_id"], t["min_epoch"], t["now_unix_ms"])
            edits = [f"xor:{rng.randrange(len(data))}:{1 << rng.randrange(8):02x}" for _ in range(150)]
            edits += [f"cut:{rng.randrange(len(data))}" for _ in range(50)]
            edits += [f"{kind}:{n}" for n in range(len(t["frames_hex"])) for kind in ("drop", "double")]
            edits += [f"swap:{n}" for n in range(len(t["frames_hex"]) - 1)]
            for edit in edits:
                sink = RecordingSink()
                with self.subTest(transfer=t["name"], edit=edit), self.assertRaises(Refusal):
                    stream.receive(handoff_endpoint.apply_edit(data, edit), policy, sink)
                self.assertEqual(sink.calls.count("abort"), 1 if sink.calls else 0)
                self.assertIsNone(sink.live)

    def test_over_a_connection_nothing_after_the_seal_is_read(self):
        policy = stream.Policy(cases.KEY, "k", 2, 15, recorded=False)
        doubled = handoff_endpoint.apply_edit(stream_of("declared"), "double:2")
        self.assertEqual(stream.receive(doubled, policy).prefix_cut, 0)
        self.assertRefused("invalid", "recorded stream carries bytes after the seal", stream.receive, doubled, POLICY)

    def test_deferred_descriptor_ranges_are_checked_however_they_arrive(self):
        ranges = manifest.RangeTable()
        base = cases.descriptor(0, b"\1\2")
        for start, count in ((10, 5), (0, 5), (20, 5), (5, 5), (15, 5)):
            ranges.add({**base, "logical_start": start, "logical_count": count})
        for start, count in ((0, 1), (4, 2), (24, 2), (0, 30), (12, 1)):
            self.assertRefused("validation", "overlapping segment logical ranges", ranges.add,
                               {**base, "logical_start": start, "logical_count": count})
        ranges.add({**base, "logical_start": 12, "logical_count": 1, "layer": None})


class Sinks(unittest.TestCase):
    def test_a_sink_that_refuses_stops_the_transfer(self):
        for at in ("begin", "segment_ready", "prepare_commit", "commit"):
            sink = RecordingSink(at)
            with self.assertRaises(Refusal) as caught:
                stream.receive(stream_of("declared"), POLICY, sink)
            self.assertEqual(caught.exception.message, f"sink {at}")
            self.assertEqual(sink.calls.count("abort"), 0 if at == "begin" else 1)
            self.assertIsNone(sink.live)


class KeyFiles(Refused, unittest.TestCase):
    def test_only_private_regular_files_are_read(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "key")
            with open(path, "wb") as f:
                f.write(cases.KEY.hex().encode() + b"\n")
            os.chmod(path, 0o644)
            self.assertRefused("config", "HMAC key must not be accessible by group/other", mac.read_key_file, path)
            os.chmod(path, 0o600)
            self.assertEqual(mac.read_key_file(path), cases.KEY)
            link = os.path.join(folder, "link")
            os.symlink(path, link)
            self.assertRefused("config", "HMAC key must be a regular non-symlink file", mac.read_key_file, link)
            self.assertRefused("config", "HMAC key must be a regular non-symlink file", mac.read_key_file, folder)
            self.assertRefused("io", None, mac.read_key_file, path + ".missing")


class VectorFile(unittest.TestCase):
    def test_is_what_the_reference_makes(self):
        with open(VECTORS, encoding="ascii") as f:
            self.assertEqual(f.read(), vectors.render(vectors.vectors()))

    def test_holds_the_worked_values_of_the_protocol_document(self):
        t = TRANSFERS
        self.assertEqual(t["declared"]["begin_sha256"], "321ac5235149effa512da83536cee0dda6deb21b7543dea045f0bd3d85c2f486")
        self.assertEqual(t["declared"]["hmac_sha256"], "db17f6c24a908a7c23a29b81d65850bbe001712f2da86298a4281484a849ef46")
        self.assertEqual(t["declared"]["stream_sha256"],
                         "869e538b2614f0ebb4ae762ca65b4238302a4b1a8d4783af94c24268d6c50b34")
        self.assertEqual(t["deferred"]["stream_sha256"],
                         "9e91964c675a11afcc20d16f02e02710d720a02ab404349fc86e7dc09bf9ee10")
        self.assertEqual(t["two-component"]["begin_sha256"],
                         "17e6e4a8b4083187745209bf0d3aec5c5528a9f398c7e578d2132d3e8b4d0f64")
        self.assertEqual(t["loop-deferred"]["hmac_sha256"],
                         "8ad1082ee32f767f84d1df96de528c4498e860eb5a3a93698be6c60342068f60")
        begin = manifest.parse_begin(cj.canonical(t["deferred"]["begin"]))
        self.assertEqual(cj.sha256_hex(frame.write_begin(begin, 256)),
                         "0935fc416d4783142e175bced39636aa31eb86e76e8ebd2f23d20d92795a95ab")

    def test_is_ascii_with_one_case_per_line(self):
        with open(VECTORS, encoding="ascii") as f:
            lines = f.read().split("\n")
        for line in lines:
            if line.startswith("{\"name\""):
                json.loads(line.rstrip(","))


class Endpoint(unittest.TestCase):
    def setUp(self):
        self.endpoint = handoff_endpoint.Endpoint()

    def ask(self, *words):
        return self.endpoint.answer("\t".join(words))

    def test_malformed_requests_are_faults_and_leave_it_running(self):
        key = "09" * 32
        for words in ((), ("encode",), ("encode", "mac", key), ("encode", "mac", key, "0"), ("encode", "mac", key, "AA"),
                      ("encode", "mac", "00", "-"), ("encode", "mac", key, "@s"), ("slot", "S", "-"), ("slot", "s", ""),
                      ("verdict", "handoff_stream", "-"), ("verdict", "kvhf_stream", "-"),
                      ("encode", "mac", key, "00/xor:1:00"), ("encode", "mac", key, "00/cut:2"),
                      ("encode", "mac", key, "00/cut:01"), ("encode", "mac", key, "00/fill:1:0011"),
                      ("encode", "mac", key, "00/fill:999999999:00"), ("encode", "mac", key, "00/drop:1"),
                      ("encode", "mac", key, "00/swap:0"), ("encode", "mac", key, "00/turn:0"),
                      ("verdict", "handoff_times", "1", "2", "3"), ("encode", "handoff_frame", "hello"),
                      ("verdict", "handoff_receiver", key, cj.canonical(cases.fixture_begin()).hex(), "none", "seg", "0"),
                      ("encode", "span_schedule", "1", "0", "00"), ("ledger", "admit", "6b")):
            self.assertRegex(self.ask(*words), "^(fault:|unsupported$)", words)
        self.assertEqual(self.ask("encode", "mac", key, "-"), "ok\t" + mac.tag_hex(cases.KEY, b"").encode().hex())

    def test_unknown_requests_are_unsupported(self):
        for words in (("hi",), ("encode", "pack"), ("decode", "__class__"), ("answer", "x"), ("bytes", "-")):
            self.assertEqual(self.ask(*words), "unsupported")

    def test_messages_that_quote_the_peer_are_escaped(self):
        header = b'{"kind":"ack","a\\t\\\\\\u00e9\\n":1}'
        answer = self.ask("decode", "handoff_frame", "1", frame.write_frame(header).hex())
        self.assertEqual(answer, "invalid:ACK frame carries unknown field `a\\x09\\x5c\\xc3\\xa9\\x0a`: "
                                 "the producer is newer than this receiver")

    def test_edits_apply_left_to_right(self):
        self.assertEqual(self.ask("slot", "s", "0011223344/cut:4/xor:1:ff/set:0:aabb/add:cc/fill:2:dd"), "ok\t7")
        self.assertEqual(self.endpoint.bytes("@s").hex(), "aabb2233ccdddd")
        data = stream_of("two-component")
        pieces = handoff_endpoint.split_frames(data)
        self.assertEqual(b"".join(pieces), data)
        self.ask("slot", "f", data.hex())
        self.assertEqual(self.endpoint.bytes("@f/drop:0/swap:0/double:2"),
                         pieces[2] + pieces[1] + pieces[3] + pieces[3])

    def test_it_runs_as_a_program(self):
        lines = "hello\nencode\tmac\t" + "09" * 32 + "\t-\n\nnonsense\n"
        done = subprocess.run([sys.executable, os.path.join(PYTHON, "handoff_endpoint.py")], input=lines.encode(),
                              stdout=subprocess.PIPE, check=True)
        answers = done.stdout.decode().split("\n")
        self.assertEqual(answers[0], "ok\tkvpack-endpoint/1\tpython")
        self.assertEqual([a[:11] for a in answers[2:]], ["unsupported", "unsupported", ""])


class Document(unittest.TestCase):
    def test_the_example_conversation_is_true(self):
        with open(os.path.join(os.path.dirname(PYTHON), "HANDOFF.md"), encoding="utf-8") as f:
            block = f.read().split("## Example")[1].split("```")[1]
        lines = block.strip().split("\n")
        endpoint = handoff_endpoint.Endpoint()
        self.assertGreater(len(lines), 10)
        for request, answer in zip(lines[::2], lines[1::2]):
            request = request[2:].replace(stream_of("declared").hex()[:44] + "...", stream_of("declared").hex())
            self.assertEqual(endpoint.answer(request), answer[2:])


class CommandLine(unittest.TestCase):
    def run_module(self, *args, data=b""):
        return subprocess.run([sys.executable, "-m", "kvpack_ref.handoff", *args], cwd=PYTHON, input=data,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def write(self, folder, name, data, mode=0o600):
        path = os.path.join(folder, name)
        with open(path, "wb") as f:
            f.write(data)
        os.chmod(path, mode)
        return path

    def test_produces_the_recorded_streams_and_verifies_them(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, extra in (("declared", []), ("deferred", []), ("two-component", []),
                                ("delta-declared-257-256", ["--cut", "256", "--schedule"]),
                                ("delta-deferred-257-256", ["--cut", "256", "--schedule"])):
                t = TRANSFERS[name]
                key = self.write(folder, "key", bytes.fromhex(t["key_hex"]))
                begin = self.write(folder, "begin", json.dumps({**t["begin"], "segments": []}).encode())
                rows = [{k: v for k, v in d.items() if k not in ("sha256", "byte_len", "sequence")}
                        for d in t["descriptors"]]
                segments = self.write(folder, "segments", json.dumps(rows).encode())
                args = ["produce", "--mac-key", key, "--begin", begin, *(extra or ["--segments", segments])]
                for n, payload in enumerate(t["payloads_hex"]):
                    args += ["--payload", self.write(folder, f"payload-{n}", bytes.fromhex(payload))]
                made = self.run_module(*args)
                self.assertEqual(made.returncode, 0, made.stderr)
                self.assertEqual(made.stdout, stream_of(name))
                checked = self.run_module("verify", "--mac-key", key, "--key-id", "k", "--min-epoch", "2", "--now-ms", "15",
                                          "-", data=made.stdout)
                self.assertEqual(checked.returncode, 0, checked.stderr)
                self.assertIn(b"verified: transfer " + t["begin"]["transfer_id"].encode(), checked.stdout)

    def test_exit_status_tells_refusal_from_file_error(self):
        with tempfile.TemporaryDirectory() as folder:
            key = self.write(folder, "key", cases.KEY)
            args = ["verify", "--mac-key", key, "--key-id", "k", "--min-epoch", "2", "--now-ms", "21"]
            self.assertEqual(self.run_module(*args, "-", data=stream_of("declared")).returncode, 4)
            self.assertEqual(self.run_module(*args, os.path.join(folder, "none")).returncode, 5)
            self.assertEqual(self.run_module("verify").returncode, 2)
            self.assertEqual(self.run_module("--help").returncode, 0)
            os.chmod(key, stat.S_IRUSR | stat.S_IRGRP)
            self.assertEqual(self.run_module(*args, "-", data=stream_of("declared")).returncode, 4)


if __name__ == "__main__":
    unittest.main(buffer=isinstance(sys.stdout, io.StringIO))
