"""The kit itself: data files, protocol, runner and audit."""

import argparse
import contextlib
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

PYTHON = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
KIT = os.path.dirname(PYTHON)
sys.path[:0] = [PYTHON, KIT]

import make_vectors  # noqa: E402  the path comes first
import run as runner  # noqa: E402
import run_handoff as handoff_runner  # noqa: E402
from kvpack_ref import drive, operations, protocol, replay, rings, sweeps, words  # noqa: E402

RUN = [sys.executable, os.path.join(KIT, "run.py")]
AUDIT = os.path.join(KIT, "audit.py")


class DataFiles(unittest.TestCase):
    def test_are_what_the_codec_makes(self):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            self.assertEqual(make_vectors.check(make_vectors.make_files()), 0, out.getvalue())
        self.assertEqual(make_vectors.check_sweeps(), [])

    def test_production_list_has_its_published_shape(self):
        with open(os.path.join(KIT, "vectors", "production_v1.sha256"), "rb") as source:
            text = source.read()
        self.assertEqual(len(text), 60720)
        self.assertEqual(hashlib.sha256(text).hexdigest(),
                         "f0668b72319fc953597884cc7f37bdbf0ef073614334f7610491855536964e85")

    def test_cases_have_names_of_their_own(self):
        for path in ("pins.tsv", "vectors/objects.tsv", "vectors/pack_set_cases.tsv",
                     "vectors/known_answers.tsv", "vectors/blobs.tsv", "vectors/canonical_json.tsv"):
            names = [case.name for case in replay.corpus(path)]
            self.assertEqual(len(names), len(set(names)), path)

    def test_sweeps_cover_every_case_and_accept_none(self):
        recorded = replay.load_sweeps()
        slots = replay.load_slots(replay.load_values())
        for sweep in sweeps.recorded():
            for operation in sweeps.OPERATIONS:
                total = sweeps.size_of(slots[sweep.slot], operation)
                answers = sweeps.answers_of(recorded[sweep.name], operation, total)
                self.assertIsNotNone(answers, (sweep.name, operation))
                self.assertFalse([a for a in answers if a.startswith("ok")], (sweep.name, operation))

    def test_words_give_their_bytes_back(self):
        session = protocol.Session()
        for data in (b"", b"\0" * 31, b"\0" * 32, b"a" + b"\0" * 100 + b"b", b"\0" * 40 + b"\1" * 40,
                     b"\n" * 50):
            self.assertEqual(session.bytes_word(words.word(data)), data)
        session.slots["base"] = bytes(100)
        changed = bytes(10) + b"\1" + bytes(20) + b"\2\3" + bytes(67)
        self.assertEqual(session.bytes_word(words.difference("@base", bytes(100), changed)), changed)


class Protocol(unittest.TestCase):
    def setUp(self):
        self.session = protocol.Session(operations.TABLE)

    def ask(self, request):
        return self.session.answer(request.replace(" ", "\t"))

    def test_bytes_words(self):
        self.assertEqual(self.ask("slot a 0011"), "ok\t2")
        for word, leaf in (("@a", "0011"), ("@a/cut:1", "00"), ("@a/cut:0", ""), ("@a/xor:1:ff", "00ee"),
                           ("@a/set:0:aabb", "aabb"), ("@a/add:22/fill:2:33", "0011223333"),
                           ("-", ""), ("-/add:01/cut:1", "01"), ("@a/add:", "0011"), ("@a/xor:2:", "0011")):
            wanted = hashlib.sha256(b"\0" + bytes.fromhex(leaf)).hexdigest()
            self.assertEqual(self.ask("encode merkle_root " + word), "ok\t" + wanted, word)

    def test_malformed_requests_are_faults_and_harm_nothing(self):
        self.ask("slot a 0011")
        for request in ("slot a 001", "slot a 00GG", "slot a AA", "slot A 00", "slot", "slot a 00 00",
                        "slot %s 00" % ("x" * 33), "encode frame raw", "encode frame zip 00",
                        "decode frame raw 00 01", "decode frame raw 00 -1",
                        "decode frame raw 00 18446744073709551616", "encode merkle_root @b",
                        "encode merkle_root @a/cut:3", "encode merkle_root @a/xor:1:0000",
                        "encode merkle_root @a/set:3:00", "encode merkle_root @a/nop:1",
                        "encode merkle_root @a/cut", "encode merkle_root @a/fill:1:0000",
                        "encode merkle_root -/fill:314572801:00", "encode merkle_root /cut:0", "keys",
                        "keys none none", "keys 00 00 00 1", "encode key prefix 7", "hello there", "drop",
                        "encode chunk 00 00 00 7 00 none none none", "verdict merkle_path 00 0 1 00"):
            self.assertTrue(self.ask(request).startswith("fault:"), request)
        self.assertEqual(self.ask("encode merkle_root @a/cut:0"),
                         "ok\t" + hashlib.sha256(b"\0").hexdigest())

    def test_unknown_operations_are_unsupported(self):
        for request in ("", "encode", "encode nothing", "sing family 00", "verdict key prefix 7"):
            self.assertEqual(self.ask(request), "unsupported", request)

    def test_slots_are_bounded(self):
        for i in range(256):
            self.assertEqual(self.ask("slot s%d -" % i), "ok\t0")
        self.assertTrue(self.ask("slot more -").startswith("fault:"))
        self.assertEqual(self.ask("slot s0 00"), "ok\t1")
        self.assertEqual(self.ask("drop s0"), "ok")
        self.assertEqual(self.ask("slot more -"), "ok\t0")

    def test_refused_ring_leaves_the_old_one(self):
        fixture = " ".join(["keys"] + rings.RINGS["fixture"])
        self.assertEqual(self.ask(fixture), "ok")
        self.assertEqual(self.ask(fixture[:-1] + "0"), "semantics:key epoch must be nonzero")
        self.assertTrue(self.ask("encode key prefix 7").startswith("ok\t"))
        self.assertEqual(self.ask("keys none"), "ok")
        self.assertTrue(self.ask("encode key prefix 7").startswith("fault:"))


FAKE = '''
import sys
sys.path.insert(0, %r)
from kvpack_ref import operations, protocol
session = protocol.Session(operations.TABLE, name="fake")
for number, line in enumerate(sys.stdin):
    answer = session.answer(line.rstrip("\\n"))
    %s
    print(answer, flush=True)
'''


class Runner(unittest.TestCase):
    def run_kit(self, *arguments):
        done = subprocess.run(RUN + list(arguments), capture_output=True, text=True, timeout=120)
        return done.returncode, done.stdout + done.stderr

    def fake(self, line):
        path = os.path.join(self.folder, "fake.py")
        with open(path, "w", encoding="utf-8") as out:
            out.write(FAKE % (PYTHON, line))
        return "%s %s" % (sys.executable, path)

    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def test_own_endpoint_passes_everything_but_the_whole_sweeps(self):
        status, text = self.run_kit("--sample", "10")
        self.assertEqual(status, 0, text)
        self.assertIn("passed: ", text)

    def test_wrong_answer_fails(self):
        command = self.fake('answer = answer.replace("manifest version", "manifest release")')
        status, text = self.run_kit("--impl", command, "--only", "rejections,pins")
        self.assertEqual(status, 1)
        self.assertIn("unsupported manifest release", text)
        status, text = self.run_kit("--impl", command, "--only", "rejections")
        self.assertEqual(status, 0, "rejections compare the category alone")

    def test_unsupported_fails_unless_allowed(self):
        command = self.fake('answer = "unsupported" if line.startswith("encode\\tkey") else answer')
        status, text = self.run_kit("--impl", command, "--only", "vectors")
        self.assertEqual(status, 1)
        self.assertIn("requests of encode key\n", text)
        status, text = self.run_kit("--impl", command, "--only", "vectors", "--allow", "encode key")
        self.assertEqual(status, 0)
        self.assertIn("encode key (allowed)", text)

    def test_death_and_silence_fail(self):
        for line, told in (("sys.exit(3) if number > 30 else None", "ended"),
                           ("import time; time.sleep(9 if number > 30 else 0)", "silent"),
                           # Either is noticed first: one answer too many, or the next request answered by the surplus one.
                           ('answer += "\\nok"', "more answers|FAILED: an endpoint answered")):
            status, text = self.run_kit("--impl", self.fake(line), "--only", "pins", "--timeout", "2")
            self.assertEqual(status, 1, text)
            self.assertRegex(text, told)

    def test_kernels_are_asked_one_by_one_or_listed_as_absent(self):
        line = ('import os; taken = os.environ.get("KVPACK_SHA256_KERNEL", "a"); '
                'states = [k + (":absent" if k == "c" else ":taken" if k == taken else ":here") '
                'for k in "abc"]; '
                'answer = "\\t".join(["ok"] + states) if line.strip() == "kernels" else answer')
        status, text = self.run_kit("--impl", self.fake(line), "--only", "pins", "--kernels", "all")
        self.assertEqual(status, 0, text)
        for told in ("kernels: a (this machine's choice)\n", "kernels: b\n", "kernels: c: not run"):
            self.assertIn(told, text)
        self.assertEqual(text.count("passed: "), 2)
        wrong = line + '; answer = answer.replace("footer", "trailer") if taken == "b" else answer'
        status, text = self.run_kit("--impl", self.fake(wrong), "--only", "pins", "--kernels", "all")
        self.assertEqual(status, 1, text)
        self.assertIn("FAILED: ", text.split("kernels: b\n")[1])
        status, text = self.run_kit("--impl", self.fake(wrong), "--only", "pins", "--kernels", "a")
        self.assertEqual(status, 0, text)
        status, text = self.run_kit("--impl", self.fake(line), "--list-kernels")
        self.assertEqual((status, text), (0, "SHA-256 kernels run: a b\nSHA-256 kernels not run, this machine does "
                                             "not have them: c\n"))

    def test_further_kernels_are_asked_a_sample_or_as_much_as_the_first(self):
        def samples(*options):
            with mock.patch.object(runner, "run", return_value=0) as asked, \
                    mock.patch.object(runner.kernels, "run_each", lambda impl, names, run: run(False) or run(True)), \
                    mock.patch.object(sys, "argv", ["run.py", "--kernels", "all", *options]):
                self.assertEqual(runner.main(), 0)
            return [call.args[2] for call in asked.call_args_list]
        self.assertEqual(samples("--full"), [None, 200])
        self.assertEqual(samples("--full", "--kernel-sample", "20"), [None, 20])
        self.assertEqual(samples("--full", "--kernel-sample", "0"), [None, None])
        self.assertEqual(samples("--sample", "60", "--kernel-sample", "0"), [60, 60])

        def handoff(*options):
            given = argparse.Namespace(skip=[], sample=None, full=True, cross=64, kernel_sample=options[0])
            asked = handoff_runner.sampled_arguments(given)
            return asked.sample, asked.full, asked.cross
        self.assertEqual(handoff(20), (20, False, 16))
        self.assertEqual(handoff(0), (None, True, 64))

    def test_kernels_that_are_not_taken_fail(self):
        deaf = 'answer = "ok\\ta:taken\\tb:here" if line.strip() == "kernels" else answer'
        for names, told in (("all", "does not take the kernels b"), ("z", "has no kernels called z")):
            status, text = self.run_kit("--impl", self.fake(deaf), "--only", "pins", "--kernels", names)
            self.assertEqual(status, 1)
            self.assertIn(told, text)

    def test_two_implementations_are_told_apart(self):
        command = self.fake('answer = answer.replace("footer", "trailer")')
        status, text = self.run_kit("--only", "pins", "--against", command)
        self.assertEqual(status, 1)
        self.assertIn("pack-digest-and-footer (--against)", text)

    def test_ask_keeps_order_over_many_requests(self):
        endpoint = drive.Endpoint("%s %s" % (sys.executable, os.path.join(PYTHON, "endpoint.py")))
        requests = ["encode\tframe\traw\t%04x" % i for i in range(5000)]
        answers = endpoint.ask(requests)
        self.assertEqual([answer[-4:] for answer in answers], ["%04x" % i for i in range(5000)])
        self.assertEqual(endpoint.ask([]), [])
        self.assertEqual(endpoint.close(), 0)


class Audit(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.root)
        for room in ("include", "src", "capi", "conformance"):
            os.mkdir(os.path.join(self.root, room))
        self.put("src/a.cpp", "a")
        self.facts = {"upstream": {"repository": "r", "commit": "0" * 40, "tag": "t", "tree": "1" * 40},
                      "deviations": [{"id": "one", "reason": "why", "tests": ["src/a.cpp"]}]}
        self.put_facts()

    def put(self, path, text):
        with open(os.path.join(self.root, path), "w", encoding="utf-8") as out:
            out.write(text)

    def put_facts(self):
        self.put("conformance/upstream.json", json.dumps(self.facts))

    def audit(self, *arguments):
        done = subprocess.run([sys.executable, AUDIT, "--root", self.root] + list(arguments),
                              capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout + done.stderr

    def test_written_record_verifies_until_something_changes(self):
        self.assertEqual(self.audit()[0], 1)
        self.assertEqual(self.audit("--write")[0], 0)
        self.assertEqual(self.audit()[0], 0)
        with open(os.path.join(self.root, "provenance.json"), encoding="utf-8") as source:
            record = json.load(source)
        self.assertEqual(record["schema"], "kvpack.provenance.v1")
        self.assertEqual(record["files"]["src/a.cpp"], hashlib.sha256(b"a").hexdigest())
        self.assertEqual(record["upstream"], self.facts["upstream"])
        os.mkdir(os.path.join(self.root, "src", "__pycache__"))
        self.put("src/__pycache__/x.pyc", "x")
        self.assertEqual(self.audit()[0], 0)
        self.put("src/b.cpp", "b")
        self.assertIn("unrecorded src/b.cpp", self.audit()[1])
        os.remove(os.path.join(self.root, "src/b.cpp"))
        self.put("src/a.cpp", "b")
        self.assertIn("changed    src/a.cpp", self.audit()[1])
        self.put("src/a.cpp", "a")
        self.put("provenance.json", json.dumps(record))
        self.assertIn("the way it is written", self.audit()[1])

    def test_facts_are_checked(self):
        good = json.dumps(self.facts)
        for edit in (lambda f: f["upstream"].update(commit="main"), lambda f: f["upstream"].pop("tree"),
                     lambda f: f["deviations"][0].update(tests=[]), lambda f: f["deviations"].append(
                         dict(f["deviations"][0])), lambda f: f["deviations"][0].update(tests=["src/none"]),
                     lambda f: f["deviations"][0].update(id="No"), lambda f: f.update(more=1)):
            self.facts = json.loads(good)
            edit(self.facts)
            self.put_facts()
            status, text = self.audit("--write")
            self.assertEqual(status, 1)
            self.assertIn("refused: ", text)
        self.assertFalse(os.path.exists(os.path.join(self.root, "provenance.json")))

    def test_links_are_refused(self):
        os.symlink("a.cpp", os.path.join(self.root, "src/link"))
        self.assertIn("not a regular file", self.audit("--write")[1])


if __name__ == "__main__":
    unittest.main()
