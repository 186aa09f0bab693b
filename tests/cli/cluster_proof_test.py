"""Proofs of the cluster that need processes: transfers between two network namespaces, receivers that are killed, a producer in
another language, many transfers to one receiver. What one process can show is in tests/net/*_proof_test.cpp.

usage: cluster_proof_test.py KVPACK CLUSTER_HELPER [--full] [--engine PEER] [unittest arguments]

Reduced, the sizes are small and the soak short. --full moves 108,998,656, 517,983,232 (a delta) and 954,190,848 bytes and soaks
with 500 transfers. --engine also hands a llama.cpp session over, between two processes of that program.

Where network namespaces can be made, sender and receiver have one each, joined by a virtual cable; else they share the
loopback device. The output says which.
"""
import importlib.util
import json
import os
import pathlib
import signal
import ssl
import subprocess
import sys
import threading
import time
import unittest

import wire_producer

FULL = "--full" in sys.argv
ENGINE = sys.argv[sys.argv.index("--engine") + 1] if "--engine" in sys.argv else None
sys.argv = [word for word in sys.argv if word not in ("--full", "--engine", ENGINE)]

spec = importlib.util.spec_from_file_location("cluster", pathlib.Path(__file__).with_name("cluster_cli_test.py"))
cluster = importlib.util.module_from_spec(spec)
spec.loader.exec_module(cluster)
if FULL:
    cluster.PATIENCE_S = 900
KVPACK, HELPER, DONE, REFUSED, IO = cluster.KVPACK, cluster.HELPER, cluster.DONE, cluster.REFUSED, cluster.IO

NAMESPACES = tuple(f"kvpack-{os.getpid()}-{end}" for end in ("send", "receive"))
ADDRESS = "10.231.77.2"
STALE = "replayed or stale generation"
PROMPT = list(range(8))


def ip(*words):
    return subprocess.run(["ip", *words], capture_output=True).returncode == 0


def make_namespaces():
    """Two namespaces and a cable between them. False where that is not allowed."""
    sender, receiver = NAMESPACES
    try:
        made = all([ip("netns", "add", sender), ip("netns", "add", receiver),
                    ip("link", "add", "kvs0", "netns", sender, "type", "veth", "peer", "name", "kvr0", "netns", receiver),
                    ip("-n", sender, "addr", "add", "10.231.77.1/24", "dev", "kvs0"),
                    ip("-n", receiver, "addr", "add", ADDRESS + "/24", "dev", "kvr0"),
                    ip("-n", sender, "link", "set", "kvs0", "up"), ip("-n", receiver, "link", "set", "kvr0", "up")])
    except FileNotFoundError:
        return False
    if not made:
        drop_namespaces()
    return made


def drop_namespaces():
    for name in NAMESPACES:
        ip("netns", "delete", name)


class Proof(cluster.Pair):
    """An enrolled pair, and what both kinds of producers send to it."""

    def generation(self, number):
        """The next one that `kvpack send` takes."""
        path = self.folder / "generation.json"
        path.write_text(json.dumps({"next_generation": number}))
        path.chmod(0o600)

    def python_send(self, generation, tokens=None, how=None, **changes):
        """By the producer in Python. @return the transfer, and what the receiver says"""
        config = wire_producer.load(self.folder)
        transfer = wire_producer.Transfer(config, tokens or PROMPT, generation, **changes)
        return transfer, wire_producer.send(config, transfer, **(how or {}))

    def assert_committed(self, receiver):
        self.assertEqual(receiver.receipt()["end"], "committed")

    def local(self, **settings):
        path = self.folder / "local.json"
        path.write_text(json.dumps({"schema": "kvpack.receiver.local.v1", **settings}))
        return ["--local", path]


class BetweenNamespaces(Proof):
    @classmethod
    def setUpClass(cls):
        cls.separate = make_namespaces()
        print("network namespaces joined by a veth pair" if cls.separate else "loopback: no network namespaces here",
              flush=True)

    @classmethod
    def tearDownClass(cls):
        if cls.separate:
            drop_namespaces()

    def setUp(self):
        super().setUp()
        if self.separate:
            self.settings("receiver.json", listen=ADDRESS + ":0")

    def within(self, name):
        return ["ip", "netns", "exec", name] if self.separate else []

    def transfer(self, tokens, payload_bytes, *words):
        receiver = subprocess.Popen(
            [*self.within(NAMESPACES[1]), KVPACK, "receive", str(self.folder / "receiver.json"), "--store", str(self.receiving),
             "--json", *self.common(), "--inbox", "--once"], stdout=subprocess.PIPE, text=True)
        try:
            self.settings("producer.json", receiver=json.loads(receiver.stdout.readline())["address"])
            started = time.monotonic()
            sent = cluster.run(*self.within(NAMESPACES[0]), KVPACK, "send", self.folder / "producer.json", "--store",
                               self.sending, "--json", *self.common(), "--tokens", self.folder / f"{tokens}.u32", *words)
            seconds = time.monotonic() - started
            receipt = json.loads(receiver.stdout.readline())
            self.assertEqual(receiver.wait(timeout=cluster.PATIENCE_S), DONE)
        finally:
            receiver.kill()
            receiver.communicate()
        self.assertEqual(json.loads(sent.stdout)["payload_bytes"], payload_bytes)
        self.assertEqual(receipt["installed_bytes"], payload_bytes)
        self.assertEqual(self.planes(self.receiving, tokens), self.planes(self.sending, tokens))
        wire_s = receipt["transfer_commit_ns"] / 1e9
        print(f"{payload_bytes:>13,} bytes: {seconds:.1f} s from store to store, {wire_s:.1f} s of them transfer, every plane "
              "equal", flush=True)

    def test_short(self):
        tokens = 2047 if FULL else 600
        self.save(self.sending, tokens)
        self.transfer(tokens, 108_998_656 if FULL else cluster.full_bytes(tokens))

    def test_delta(self):
        tokens, cut = (65535, 32768) if FULL else (600, 512)
        self.save(self.sending, tokens)
        self.save(self.receiving, cut)
        self.transfer(tokens, 517_983_232 if FULL else 4 * cluster.TOKEN_BYTES * (tokens - cut), "--prefix-cut", cut)

    @unittest.skipUnless(FULL, "--full")
    def test_deep(self):
        self.save(self.sending, 65535)
        self.transfer(65535, 954_190_848)


class Killed(Proof):
    def stop_in(self, call):
        """A receiver whose engine stops in this call, and what `kvpack send` makes of its end by kill -9."""
        receiver = subprocess.Popen([HELPER, "stop-in", call, str(self.folder)], stdout=subprocess.PIPE, text=True)
        try:
            self.settings("producer.json", receiver=json.loads(receiver.stdout.readline())["address"])
            sent = []
            sender = threading.Thread(target=lambda: sent.append(self.send(300, code=IO)))
            sender.start()
            self.assertEqual(json.loads(receiver.stdout.readline()), {"kind": call})
        finally:
            receiver.kill()
            receiver.communicate()
        sender.join()
        self.assertEqual(len(sent), 1, "the producer did not end with its connection")
        ledger = json.loads((self.folder / "replay.json").read_text())
        return ledger["highest_generation"].get("test-key:1", 0)

    def test_between_reservation_and_acknowledgement(self):
        self.save(self.sending, 300)
        self.assertEqual(self.stop_in("commit"), 1, "the generation was not on the medium before the commit")
        with self.receiver("--inbox", "--count", 2) as receiver:
            self.generation(1)
            refused = self.send(300, code=REFUSED)["error"]
            self.assertEqual((refused["message"], refused["refused_by"], refused["retry"]),
                             (STALE, "receiver", "new-generation"))
            receipt = receiver.receipt()
            self.assertEqual((receipt["end"], receipt["refusal_sent"]), ("ledger", True))
            self.send(300)
            self.assert_committed(receiver)
            receiver.end()
        self.assertEqual(self.planes(self.receiving, 300), self.planes(self.sending, 300))
        self.assert_nothing_half_done([300])

    def test_before_the_reservation(self):
        self.save(self.sending, 300)
        self.assertEqual(self.stop_in("prepare"), 0)
        with self.receiver("--inbox", "--once") as receiver:
            self.generation(1)
            self.send(300)
            self.assert_committed(receiver)
        self.assert_nothing_half_done([300])

    def test_at_every_frame_of_a_transfer_into_a_store(self):
        for generation in range(1, 6):
            with self.receiver("--inbox") as receiver:
                config = wire_producer.load(self.folder)
                transfer = wire_producer.Transfer(config, PROMPT, generation)
                with wire_producer.connect(config) as connection:
                    for part in transfer.frames[:generation]:
                        connection.sendall(part)
                    receiver.process.kill()
                    receiver.process.communicate()
                    self.assertIsNone(wire_producer.answer(connection))
        self.assert_nothing_half_done([])
        with self.receiver("--inbox", "--once") as receiver:
            _, said = self.python_send(6)
            self.assertEqual(said["kind"], "ack")
            self.assert_committed(receiver)
        self.assert_nothing_half_done([len(PROMPT)])

    def test_two_receivers_on_one_ledger(self):
        with self.receiver("--inbox") as first:
            other = self.folder / "other"
            cluster.run(KVPACK, "store", "init", other, "--key", self.folder / "store.key", "--tenant-id", cluster.TENANT)
            second = cluster.run(KVPACK, "receive", self.folder / "receiver.json", "--store", other, "--json",
                                 *self.common(), "--inbox", code=cluster.USAGE)
            self.assertEqual(json.loads(second.stdout)["error"]["message"], "replay ledger is in use by another receiver")
            self.assertEqual(self.python_send(1)[1]["kind"], "ack")
            self.assert_committed(first)
            # The lock dies with the process, however that ends.
            first.process.kill()
            first.process.communicate()
        with self.receiver("--inbox") as second:
            self.assertEqual(self.python_send(1)[1]["text"], STALE)
            self.assertEqual(second.receipt()["end"], "ledger")
            self.assertEqual(self.python_send(2)[1]["kind"], "ack")
            self.assert_committed(second)


class AnotherLanguage(Proof):
    def test_all_pairings_of_old_and_new(self):
        """The kit's producer, old and new, with a receiver that offers refusals and one that does not."""
        generation = 0
        for offered in (True, False):
            with self.receiver("--inbox", *self.local(refusals=offered)) as receiver:
                for alpn in ([wire_producer.REFUSALS, wire_producer.PLAIN], [wire_producer.PLAIN]):
                    with self.subTest(receiver_offers=offered, producer_offers=alpn):
                        generation += 1
                        transfer, said = self.python_send(generation, how={"alpn": alpn})
                        self.assertEqual(said, {"kind": "ack", "transfer_id": f"python-{generation}",
                                                "generation": generation})
                        self.assert_committed(receiver)
                        foreign = {**transfer.begin["identity"], "adapter_sha256": "1" * 64}
                        generation += 1
                        _, said = self.python_send(generation, how={"alpn": alpn}, identity=foreign)
                        understood = offered and len(alpn) == 2
                        text = "model/tokenizer/template/adapter identity mismatch"
                        self.assertEqual(said, {"category": "Validation", "kind": "refusal", "retry": "never", "text": text}
                                         if understood else None)
                        receipt = receiver.receipt()
                        self.assertEqual((receipt["end"], receipt["refusal_sent"]), ("verify", understood))
                        self.assertEqual(receipt["error"]["message"], text)

    def test_its_planes_arrive(self):
        with self.receiver("--inbox", "--once") as receiver:
            transfer, said = self.python_send(1, list(range(600)))
            self.assertEqual(said["kind"], "ack")
            self.assert_committed(receiver)
        (self.folder / "600.u32").write_bytes(b"".join(t.to_bytes(4, "little") for t in range(600)))
        self.assertEqual(self.planes(self.receiving, 600), transfer.planes())

    def test_what_tls_refuses(self):
        with self.receiver("--inbox") as receiver:
            config = wire_producer.load(self.folder)
            for how, text in (({"certificate": False}, "TLS: "), ({"version": ssl.TLSVersion.TLSv1_2}, "TLS: "),
                              ({"alpn": []}, "peer did not negotiate exact Muser handoff ALPN"),
                              ({"alpn": ["h2"]}, "TLS: ")):
                with self.subTest(**how):
                    try:
                        with wire_producer.connect(config, **how) as connection:
                            self.assertIsNone(wire_producer.answer(connection))
                    except (ConnectionError, ssl.SSLError):
                        pass
                    receipt = receiver.receipt()
                    self.assertEqual((receipt["end"], receipt["refusal_sent"]), ("handshake", False))
                    self.assertTrue(receipt["error"]["message"].startswith(text), receipt)
            self.assertEqual(self.python_send(1)[1]["kind"], "ack")
            self.assert_committed(receiver)


class Soak(Proof):
    def resident(self, receiver):
        """Resident bytes and open descriptors of the process."""
        process = pathlib.Path("/proc", str(receiver.process.pid))
        kilobytes = next(line.split()[1] for line in (process / "status").read_text().splitlines() if line.startswith("VmRSS"))
        return int(kilobytes) * 1024, len(os.listdir(process / "fd"))

    def wait_for_descriptors(self, receiver, count):
        for _ in range(600):
            if self.resident(receiver)[1] == count:
                return
            time.sleep(0.05)
        self.fail(f"{self.resident(receiver)[1]} descriptors, not {count}")

    def test_memory_and_descriptors_are_stable(self):
        """Committed, refused, cut and scanned in turn. The cut is the same, so the store does not grow with them."""
        count = 500 if FULL else 30
        with self.receiver("--inbox") as receiver:
            config = wire_producer.load(self.folder)
            generation = 0
            for done in range(10 + count):
                if done == 10:
                    before, descriptors = self.resident(receiver)
                generation += 1
                self.assertEqual(self.python_send(generation)[1]["kind"], "ack")
                self.assert_committed(receiver)
                if done % 5 == 1:
                    self.assertEqual(self.python_send(generation)[1]["text"], STALE)
                    self.assertEqual(receiver.receipt()["end"], "ledger")
                if done % 5 == 2:
                    generation += 1
                    transfer = wire_producer.Transfer(config, PROMPT, generation)
                    with wire_producer.connect(config) as connection:
                        connection.sendall(b"".join(transfer.frames[:3]))
                    self.assertEqual(receiver.receipt()["end"], "transfer")
                if done % 5 == 3:
                    host, port = config["receiver"].rsplit(":", 1)
                    wire_producer.socket.create_connection((host, int(port))).close()
                    self.assertEqual(receiver.receipt()["end"], "handshake")
            self.wait_for_descriptors(receiver, descriptors)
            growth = self.resident(receiver)[0] - before
            print(f"{count} transfers: {growth:,} bytes more than after the first 10, {descriptors} descriptors", flush=True)
            self.assertLess(growth, 4 << 20)
            receiver.end(signal.SIGTERM)

    def test_fifty_idle_connections(self):
        with self.receiver("--inbox") as receiver:
            config = wire_producer.load(self.folder)
            self.python_send(1)
            self.assert_committed(receiver)
            before, descriptors = self.resident(receiver)
            idle = [wire_producer.connect(config) for _ in range(50)]
            self.python_send(2)
            self.assert_committed(receiver)
            growth = self.resident(receiver)[0] - before
            print(f"50 idle connections: {growth // 50:,} bytes each", flush=True)
            self.assertLess(growth, 50 * (256 << 10))
            for connection in idle:
                connection.close()
            for _ in idle:
                self.assertEqual(receiver.receipt()["end"], "begin")
            self.wait_for_descriptors(receiver, descriptors)
            self.python_send(3)
            self.assert_committed(receiver)


@unittest.skipUnless(ENGINE, "no engine")
class RealEngine(Proof):
    """A session of llama.cpp in one process goes on in another."""

    def peer(self, *words):
        done = subprocess.run([ENGINE, *map(str, words)], capture_output=True, text=True, timeout=cluster.PATIENCE_S)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.splitlines()

    def test_a_session_goes_on_in_another_process(self):
        tokens = 2047 if FULL else 300
        model = self.folder / "model.gguf"
        self.peer("model", model)
        expected = self.peer("local", model, tokens)
        receiver = subprocess.Popen([ENGINE, "receive", str(self.folder), str(model), str(tokens)],
                                    stdout=subprocess.PIPE, text=True)
        try:
            self.settings("producer.json", receiver=receiver.stdout.readline().strip())
            sent = self.peer("send", self.folder, model, tokens)
            out, _ = receiver.communicate(timeout=cluster.PATIENCE_S)
        finally:
            receiver.kill()
            receiver.communicate()
        self.assertEqual(receiver.returncode, 0)
        self.assertEqual(len(expected), 105)
        self.assertEqual(out.splitlines(), expected)
        self.assertEqual(json.loads(sent[-1])["payload_bytes"], cluster.full_bytes(tokens))
        print(f"llama.cpp: {tokens} tokens, {cluster.full_bytes(tokens):,} bytes, 104 planes and the next logits equal",
              flush=True)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=1)
