"""The KVHF reference: worked values, bundles, corruptions, and its command line."""
import json
import os
import random
import subprocess
import sys
import tempfile
import unittest

PYTHON = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, PYTHON)

import handoff_endpoint  # noqa: E402
from kvpack_ref import kvhf  # noqa: E402
from kvpack_ref.handoff import canonical as cj  # noqa: E402
from kvpack_ref.handoff.errors import Refusal  # noqa: E402
from kvpack_ref.kvhf import begin as kv_begin  # noqa: E402
from kvpack_ref.kvhf import bundle, cases, frame, verifier  # noqa: E402

ROWS = {r["name"]: r for r in cases.kvhf()}
LIMITS = kvhf.Limits(**cases.LIMITS)


def stream_of(name):
    return bytes.fromhex(ROWS[name]["stream_hex"])


def key_of(name):
    digits = ROWS[name]["key_hex"]
    return bytes.fromhex(digits) if digits else None


class Streams(unittest.TestCase):
    def test_worked_values(self):
        self.assertEqual(ROWS["v1"]["stream_sha256"], "40f59f853c64c6804c6fd6a3a5c6796487341b11fa23704eb606b7e0a6007a62")
        self.assertEqual(ROWS["v2-windowed"]["stream_sha256"],
                         "f2aa0da40161ca1267ba57dfea5ff329abb4ff841b6f66212435e109c8db886e")
        self.assertEqual(ROWS["prerope"]["stream_sha256"],
                         "7a4dc9d42fcc2ac87804e6f16f3989f36e638c769bd33afce42d4b52a134bec1")
        self.assertEqual(ROWS["prerope-keyed"]["artifact_hmac_sha256"],
                         "bea93149641eb76158962b47e2246a61b83d51563e31ea66b8429f0a5870a2c7")

    def test_schedules_change_the_order_or_only_the_hash(self):
        absent, written, first = (ROWS[f"v2-schedule-{n}"] for n in ("absent", "layer-order", "decode-priority"))
        self.assertEqual([n for n, _ in first["walk"]], [2, 2, 3, 3, 0, 0, 1, 1])
        self.assertEqual(absent["walk"], written["walk"])
        self.assertEqual(absent["core_sha256"], written["core_sha256"])
        self.assertNotEqual(absent["artifact_sha256"], written["artifact_sha256"])

    def test_a_sample_of_every_corruption_is_refused(self):
        rng = random.Random(5)
        for name in ROWS:
            data = stream_of(name)
            frames = len(handoff_endpoint.split_frames(data))
            edits = [f"xor:{rng.randrange(len(data))}:{1 << rng.randrange(8):02x}" for _ in range(150)]
            edits += [f"cut:{rng.randrange(len(data))}" for _ in range(50)]
            edits += [f"drop:{n}" for n in range(frames)] + [f"{k}:{n}" for n in range(frames - 1) for k in ("double", "swap")]
            for edit in edits:
                with self.subTest(transfer=name, edit=edit), self.assertRaises(Refusal):
                    verifier.receive(handoff_endpoint.apply_edit(data, edit), LIMITS, key_of(name))

    def test_a_refused_plane_changes_nothing(self):
        witness = verifier.receive(stream_of("v1"), LIMITS)
        planes = [bytes.fromhex(p) for p in ROWS["v1"]["planes_hex"]]
        check = kvhf.Verifier(witness.begin, LIMITS)
        self.assertRaises(Refusal, check.plane, witness.headers[0], b"\3" * 8)
        self.assertRaises(Refusal, check.plane, witness.headers[1], planes[1])
        self.assertEqual(check.headers, [])
        for header, payload in zip(witness.headers, planes):
            check.plane(header, payload)
        self.assertEqual(check.seal(witness.seal).seal, witness.seal)

    def test_header_and_payload_are_read_in_two_calls(self):
        reader = frame.FrameReader(stream_of("v1"))
        self.assertRaises(Refusal, reader.payload)
        self.assertEqual(reader.header()[0], "begin")
        self.assertRaises(Refusal, reader.header)
        self.assertEqual(reader.payload(), b"")
        self.assertEqual(reader.header()[0], "layer")
        self.assertEqual(reader.payload(), b"\1" * 8)

    def test_layout_bounds_are_judged_before_layers_are_listed(self):
        begin = dict(ROWS["v2-windowed"]["begin"])
        begin["layout_table"] = [{**begin["layout_table"][0], "until": cj.U32_MAX}]
        typed = frame.decode("begin", cj.canonical(begin))
        with self.assertRaises(Refusal) as caught:
            kv_begin.validate(typed, LIMITS)
        self.assertEqual(caught.exception.message, "layout table contains an invalid layer class")


class Bundles(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = os.path.join(os.path.realpath(self.folder.name), "bundle")

    def test_published_bundles_reopen(self):
        for name in ROWS:
            path = self.path + name
            artifact = bundle.write(path, stream_of(name), LIMITS, key_of(name))
            self.assertEqual(kvhf.open_bundle(path, LIMITS).seal["artifact_sha256"], artifact)
        self.assertFalse([n for n in os.listdir(self.folder.name) if n.endswith(".partial")])

    def test_a_refused_stream_leaves_nothing(self):
        self.assertRaises(Refusal, bundle.write, self.path, stream_of("v1")[:-1], LIMITS)
        self.assertEqual(os.listdir(self.folder.name), [])

    def test_every_flipped_byte_of_every_file_is_refused(self):
        bundle.write(self.path, stream_of("v1"), LIMITS)
        for root, _, names in os.walk(self.path):
            for name in names:
                path = os.path.join(root, name)
                with open(path, "rb") as f:
                    data = f.read()
                for at in range(0, len(data), 1 if len(data) < 100 else 37):
                    with open(path, "wb") as f:
                        f.write(data[:at] + bytes([data[at] ^ 1]) + data[at + 1:])
                    with self.subTest(file=name, at=at):
                        self.assertRaises(Refusal, kvhf.open_bundle, self.path, LIMITS)
                with open(path, "wb") as f:
                    f.write(data)
        kvhf.open_bundle(self.path, LIMITS)

    def test_what_is_no_bundle(self):
        cases_ = [(self.path, "io")]
        os.mkdir(self.path + ".empty")
        cases_.append((self.path + ".empty", "io"))
        os.symlink(self.path + ".empty", self.path + ".link")
        cases_.append((self.path + ".link", "validation"))
        open(self.path + ".file", "wb").close()
        cases_.append((self.path + ".file", "validation"))
        for path, category in cases_:
            with self.assertRaises(Refusal) as caught:
                kvhf.open_bundle(path, LIMITS)
            self.assertEqual(caught.exception.category, category)


class CommandLine(unittest.TestCase):
    def test_produce_verify_unpack_and_reopen(self):
        row = ROWS["prerope-keyed"]
        with tempfile.TemporaryDirectory() as folder:
            def file(name, data):
                path = os.path.join(folder, name)
                with open(path, "wb") as f:
                    f.write(data)
                os.chmod(path, 0o600)
                return path

            def run(*args, data=b""):
                return subprocess.run([sys.executable, "-m", "kvpack_ref.kvhf", *args], cwd=PYTHON, input=data,
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            begin = {**row["begin"], "expected_layer_frames": 0, "expected_payload_bytes": 0}
            key = file("key", bytes.fromhex(row["key_hex"]))
            planes = [a for n, p in enumerate(row["planes_hex"]) for a in ("--plane", file(f"plane-{n}", bytes.fromhex(p)))]
            made = run("produce", "--mac-key", key, "--begin", file("begin", json.dumps(begin).encode()), "--tokens",
                       "10,20,30,40", "--completed-ms", "150", "--canary", file("canary", json.dumps(row["canary"]).encode()),
                       *planes)
            self.assertEqual(made.returncode, 0, made.stderr)
            common = ("--mac-key", key, "--now-ms", "150")
            self.assertEqual(run("verify", *common, "-", data=made.stdout).returncode, 0)
            self.assertEqual(run("verify", *common, "-", data=made.stdout[:-1]).returncode, 4)
            where = os.path.join(folder, "bundle")
            self.assertEqual(run("unpack", *common, "-", where, data=made.stdout).returncode, 0)
            self.assertEqual(run("bundle", *common, where).returncode, 0)
            self.assertEqual(run("bundle", "--mac-key", file("other", b"\0" * 32), "--now-ms", "150", where).returncode, 4)
            self.assertEqual(run("verify", "--now-ms", "150", os.path.join(folder, "none")).returncode, 5)


if __name__ == "__main__":
    unittest.main()
