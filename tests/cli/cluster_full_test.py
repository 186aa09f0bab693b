"""Handoffs at full size between two processes: 108,998,656, 517,983,232 (a delta) and 954,190,848 bytes, every plane equal.

usage: cluster_full_test.py KVPACK CLUSTER_HELPER [unittest arguments]

Where network namespaces can be made, sender and receiver have one each, joined by a virtual cable; else they share the
loopback device. The output says which.
"""
import importlib.util
import json
import pathlib
import subprocess
import sys
import time
import unittest

spec = importlib.util.spec_from_file_location("cluster", pathlib.Path(__file__).with_name("cluster_cli_test.py"))
cluster = importlib.util.module_from_spec(spec)
spec.loader.exec_module(cluster)
cluster.PATIENCE_S = 900

NAMESPACES = ("kvpack-send", "kvpack-receive")
ADDRESS = "10.231.77.2"


def ip(*words):
    return subprocess.run(["ip", *words], capture_output=True).returncode == 0


def make_namespaces():
    """Two namespaces and a cable between them. False where that is not allowed."""
    sender, receiver = NAMESPACES
    drop_namespaces()
    made = all([ip("netns", "add", sender), ip("netns", "add", receiver),
                ip("link", "add", "kvs0", "netns", sender, "type", "veth", "peer", "name", "kvr0", "netns", receiver),
                ip("-n", sender, "addr", "add", "10.231.77.1/24", "dev", "kvs0"),
                ip("-n", receiver, "addr", "add", ADDRESS + "/24", "dev", "kvr0"),
                ip("-n", sender, "link", "set", "kvs0", "up"), ip("-n", receiver, "link", "set", "kvr0", "up")])
    if not made:
        drop_namespaces()
    return made


def drop_namespaces():
    for name in NAMESPACES:
        ip("netns", "delete", name)


class FullSize(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        try:
            cls.separate = make_namespaces()
        except FileNotFoundError:
            cls.separate = False
        print("network namespaces joined by a veth pair" if cls.separate else "loopback: no network namespaces here",
              flush=True)

    @classmethod
    def tearDownClass(cls):
        if cls.separate:
            drop_namespaces()

    def setUp(self):
        self.cluster = cluster.Cluster()
        self.cluster.setUp()
        self.addCleanup(self.cluster.doCleanups)
        self.tool = cluster.KVPACK
        if self.separate:
            self.cluster.settings("receiver.json", listen=ADDRESS + ":0")

    def transfer(self, tokens, payload_bytes, *words):
        c = self.cluster
        words_in = lambda name: ["ip", "netns", "exec", name] if self.separate else []
        receiver = subprocess.Popen(
            [*words_in(NAMESPACES[1]), self.tool, "receive", str(c.folder / "receiver.json"), "--store", str(c.receiving),
             "--json", *c.common(), "--inbox", "--once"], stdout=subprocess.PIPE, text=True)
        try:
            c.settings("producer.json", receiver=json.loads(receiver.stdout.readline())["address"])
            started = time.monotonic()
            sent = cluster.run(*words_in(NAMESPACES[0]), self.tool, "send", c.folder / "producer.json", "--store", c.sending,
                               "--json", *c.common(), "--tokens", c.folder / f"{tokens}.u32", *words)
            seconds = time.monotonic() - started
            receipt = json.loads(receiver.stdout.readline())
            self.assertEqual(receiver.wait(timeout=cluster.PATIENCE_S), cluster.DONE)
        finally:
            receiver.kill()
            receiver.communicate()
        self.assertEqual(json.loads(sent.stdout)["payload_bytes"], payload_bytes)
        self.assertEqual(receipt["installed_bytes"], payload_bytes)
        self.assertEqual(c.planes(c.receiving, tokens), c.planes(c.sending, tokens))
        wire_s = receipt["transfer_commit_ns"] / 1e9
        print(f"{payload_bytes:>13,} bytes: {seconds:.1f} s from store to store, {wire_s:.1f} s of them transfer, every plane "
              "equal", flush=True)

    def test_short(self):
        self.cluster.save(self.cluster.sending, 2047)
        self.transfer(2047, 108_998_656)

    def test_deep(self):
        self.cluster.save(self.cluster.sending, 65535)
        self.transfer(65535, 954_190_848)

    def test_delta(self):
        self.cluster.save(self.cluster.sending, 65535)
        self.cluster.save(self.cluster.receiving, 32768)
        self.transfer(65535, 517_983_232, "--prefix-cut", 32768)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=1)
