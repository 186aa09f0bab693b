"""Muse sessions between two stores over TLS: `kvpack send` and `kvpack receive` as two processes on loopback.

usage: cluster_cli_test.py KVPACK CLUSTER_HELPER [unittest arguments]
"""
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest

KVPACK, HELPER = sys.argv[1:3]
TENANT = "cluster-test"
DONE, USAGE, NOT_FOUND, REFUSED, IO = 0, 2, 3, 4, 5
PATIENCE_S = 120
TOKEN_BYTES = 13312


def full_bytes(tokens):
    """Payload of a whole transfer."""
    return TOKEN_BYTES * tokens + 3 * TOKEN_BYTES * min(tokens, 2048)


def run(*words, code=DONE):
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True, timeout=PATIENCE_S)
    if done.returncode != code:
        raise AssertionError(f"{words}: exit code {done.returncode}, not {code}\n{done.stdout}\n{done.stderr}")
    return done


class Receiver:
    """A receiving process, once it listens. Its lines are read as they come."""

    def __init__(self, cluster, *words):
        self.process = subprocess.Popen(
            [KVPACK, "receive", str(cluster.folder / "receiver.json"), "--store", str(cluster.receiving), "--json",
             *cluster.common(), *map(str, words)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        first = json.loads(line) if line else {}
        if first.get("kind") != "listening":
            self.end()
            raise AssertionError(f"no receiver: {line} {self.errors}")
        cluster.settings("producer.json", receiver=first["address"])

    def receipt(self):
        return json.loads(self.process.stdout.readline())

    def end(self, signal_number=None):
        if signal_number is not None:
            self.process.send_signal(signal_number)
        rest, self.errors = self.process.communicate(timeout=PATIENCE_S)
        self.rest = [json.loads(line) for line in rest.splitlines()]
        return self.process.returncode

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


class Pair(unittest.TestCase):
    """An enrolled sender and receiver, each with a store."""

    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)
        self.folder = pathlib.Path(self.temporary.name)
        run(HELPER, "enroll", self.folder)
        run(KVPACK, "keygen", self.folder / "store.key")
        self.sending, self.receiving = self.folder / "sending", self.folder / "receiving"
        for store in (self.sending, self.receiving):
            run(KVPACK, "store", "init", store, "--key", self.folder / "store.key", "--tenant-id", TENANT)

    def common(self):
        return ["--identity", str(self.folder / "identity.json"), "--key", str(self.folder / "store.key"),
                "--tenant-id", TENANT]

    def settings(self, name, **changes):
        path = self.folder / name
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    def helper(self, command, store, *words):
        return run(HELPER, command, store, self.folder / "store.key", TENANT, self.folder / "identity.json",
                   *words).stdout

    def save(self, store, tokens, *words):
        return self.helper("save", store, self.folder / f"{tokens}.u32", tokens, *words).strip()

    def digest(self, store, tokens):
        return self.helper("digest", store, self.folder / f"{tokens}.u32").splitlines()

    def planes(self, store, tokens):
        """Digests of all planes of the cut of exactly these tokens."""
        lines = self.digest(store, tokens)
        self.assertEqual(lines[0], f"cut {tokens}")
        return lines[2:]

    @contextlib.contextmanager
    def receiver(self, *words):
        receiver = Receiver(self, *words)
        try:
            yield receiver
        finally:
            receiver.kill()

    def send(self, tokens, *words, code=DONE):
        done = run(KVPACK, "send", self.folder / "producer.json", "--store", self.sending, "--json", *self.common(),
                   "--tokens", self.folder / f"{tokens}.u32", *words, code=code)
        return json.loads(done.stdout)

    def cuts(self, store):
        listed = run(KVPACK, "store", "ls", store, "--key", self.folder / "store.key", "--tenant-id", TENANT, "--json")
        return [(cut["token_count"], cut["state"]) for cut in json.loads(listed.stdout)["cuts"]]

    def assert_nothing_half_done(self, cuts):
        """The store is whole and has exactly these cuts."""
        self.assertEqual(self.cuts(self.receiving), [(tokens, "available") for tokens in cuts])
        run(KVPACK, "store", "fsck", self.receiving, "--deep", "--key", self.folder / "store.key", "--tenant-id", TENANT)


class Cluster(Pair):
    def test_a_whole_session_arrives(self):
        self.save(self.sending, 600)
        with self.receiver("--inbox", "--once") as receiver:
            sent = self.send(600)
            receipt = receiver.receipt()
            self.assertEqual(receiver.end(), DONE)
        self.assertEqual((sent["kind"], sent["ok"], sent["ack"]), ("send", True, True))
        self.assertEqual((sent["token_count"], sent["prefix_cut"], sent["generation"]), (600, 0, 1))
        self.assertEqual(sent["payload_bytes"], full_bytes(600))
        self.assertEqual((receipt["kind"], receipt["end"], receipt["ok"]), ("receipt", "committed", True))
        self.assertEqual(receipt["transfer_id"], sent["transfer_id"])
        self.assertEqual(receipt["installed_bytes"], full_bytes(600))
        self.assertEqual(receipt["installed_segments"], sent["segments"])
        self.assertEqual(receipt["token_count"], 600)
        self.assertEqual(self.planes(self.receiving, 600), self.planes(self.sending, 600))
        self.assert_nothing_half_done([600])

    def test_an_exact_session_leaves_its_logits_at_home(self):
        self.save(self.sending, 300, 1000)
        with self.receiver("--inbox", "--once") as receiver:
            self.send(300)
            self.assertEqual(receiver.end(), DONE)
        self.assertEqual(self.digest(self.sending, 300)[1], "vocabulary 1000")
        self.assertEqual(self.digest(self.receiving, 300)[1], "vocabulary 0")
        self.assertEqual(self.planes(self.receiving, 300), self.planes(self.sending, 300))

    def test_a_delta_stands_on_what_the_store_holds(self):
        self.save(self.sending, 2600)
        self.save(self.receiving, 2304)
        with self.receiver("--inbox", "--once") as receiver:
            sent = self.send(2600, "--prefix-cut", 2304)
            self.assertEqual(receiver.receipt()["prefix_cut"], 2304)
            self.assertEqual(receiver.end(), DONE)
        self.assertEqual(sent["payload_bytes"], TOKEN_BYTES * 296 * 4)
        self.assertEqual(self.planes(self.receiving, 2600), self.planes(self.sending, 2600))
        self.assert_nothing_half_done([2304, 2600])

    def test_a_delta_on_what_the_store_does_not_hold_is_refused(self):
        self.save(self.sending, 600)
        self.save(self.receiving, 300)
        with self.receiver("--inbox", "--once") as receiver:
            refused = self.send(600, "--prefix-cut", 256, code=REFUSED)
            self.assertEqual(receiver.receipt()["end"], "verify")
            self.assertEqual(receiver.end(), REFUSED)
        self.assertEqual(refused["error"]["message"],
                         "delta prefix cut names a prefix the receiving session does not hold")
        self.assertEqual(refused["error"]["refused_by"], "receiver")
        self.assert_nothing_half_done([300])

    def test_an_armed_request_takes_its_prompt_alone(self):
        self.save(self.sending, 300)
        request = self.folder / "request.u32"
        prompt = (self.folder / "300.u32").read_bytes()
        request.write_bytes(prompt + (5).to_bytes(4, "little"))
        with self.receiver("--tokens", request) as receiver:
            self.send(300)
            self.assertEqual(receiver.end(), DONE)
        request.write_bytes(prompt[:-4] + (9).to_bytes(4, "little") + (5).to_bytes(4, "little"))
        with self.receiver("--tokens", request) as receiver:
            refused = self.send(300, code=REFUSED)
            self.assertEqual(receiver.end(), REFUSED)
        self.assertEqual(refused["error"]["message"], "remote prompt tokens differ from the exact request")
        self.assert_nothing_half_done([300])

    def test_a_replay_is_refused(self):
        self.save(self.sending, 300)
        with self.receiver("--inbox", "--count", 2) as receiver:
            self.send(300)
            self.assertEqual(receiver.receipt()["end"], "committed")
            (self.folder / "generation.json").unlink()
            refused = self.send(300, code=REFUSED)
            self.assertEqual(receiver.receipt()["end"], "ledger")
            self.assertEqual(receiver.end(), REFUSED)
        self.assertEqual(refused["error"]["message"], "replayed or stale generation")
        self.assert_nothing_half_done([300])

    def test_another_identity_is_refused_on_both_ends(self):
        self.save(self.sending, 300)
        good = json.loads((self.folder / "producer.json").read_text())
        other = {**good["identity"], "adapter_sha256": "1" * 64}
        self.settings("producer.json", identity=other)
        refused = self.send(300, code=REFUSED)
        self.assertEqual(refused["error"]["message"], "adapter_sha256 of the configuration is not that of the identity")
        self.assertFalse((self.folder / "generation.json").exists(), "a generation was taken")
        self.settings("producer.json", identity=good["identity"], target_cache_identity_sha256="2" * 64)
        refused = self.send(300, code=REFUSED)
        self.assertEqual(refused["error"]["message"],
                         "target_cache_identity_sha256 of the configuration is not that of the identity")
        self.settings("producer.json", **good)
        self.settings("receiver.json", identity=other)
        refused = run(KVPACK, "receive", self.folder / "receiver.json", "--store", self.receiving, "--json",
                      *self.common(), "--inbox", code=REFUSED)
        self.assertEqual(json.loads(refused.stdout)["error"]["message"],
                         "adapter_sha256 of the configuration is not that of the identity")

    def test_a_store_without_the_prompt_sends_nothing(self):
        self.save(self.sending, 300)
        (self.folder / "7.u32").write_bytes((77).to_bytes(4, "little") * 7)
        self.assertEqual(self.send(7, code=NOT_FOUND)["error"]["message"],
                         "no cut of the store is a prefix of this input")
        self.assertEqual(self.send(300, "--prefix-cut", 100, code=USAGE)["error"]["message"],
                         "--prefix-cut must be a multiple of 256 below the 300 tokens of the cut")
        self.send(300, code=IO)  # Nobody listens.

    def test_a_named_cut_is_sent(self):
        shallow = self.save(self.sending, 300)
        self.save(self.sending, 600)
        with self.receiver("--inbox", "--once") as receiver:
            self.assertEqual(self.send(600, "--cut", shallow)["token_count"], 300)
            self.assertEqual(receiver.end(), DONE)
        self.assert_nothing_half_done([300])

    def test_a_signal_ends_an_inbox(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.receiver("--inbox") as receiver:
                self.assertEqual(receiver.end(number), DONE)
        self.assert_nothing_half_done([])

    def test_a_refused_transfer_is_no_failure_of_the_inbox(self):
        self.save(self.sending, 600)
        with self.receiver("--inbox") as receiver:
            self.send(600, "--prefix-cut", 256, code=REFUSED)
            self.assertEqual(receiver.receipt()["end"], "verify")
            self.assertEqual(receiver.end(signal.SIGTERM), DONE)

    def test_receipts_are_kept(self):
        self.save(self.sending, 300)
        (self.folder / "local.json").write_text(
            json.dumps({"schema": "kvpack.receiver.local.v1", "receipts": "receipts.jsonl", "store": "receiving"}))
        with self.receiver("--inbox", "--once", "--local", self.folder / "local.json") as receiver:
            self.send(300)
            shown = receiver.receipt()
            receiver.end()
        kept = (self.folder / "receipts.jsonl").read_text().splitlines()
        self.assertEqual(len(kept), 1)
        self.assertEqual({**shown, **json.loads(kept[0])}, shown)
        self.assertEqual(os.stat(self.folder / "receipts.jsonl").st_mode & 0o777, 0o600)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=1)
