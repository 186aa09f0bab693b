"""Sessions that a receiver asks for: `kvpack serve` and `kvpack receive --request` as two processes on loopback, and the
producer of docs/examples around an engine of its own.

usage: control_cli_test.py KVPACK CLUSTER_HELPER RESIDENT_PRODUCER [unittest arguments]
"""
import importlib.util
import json
import pathlib
import signal
import socket
import subprocess
import sys
import unittest

RESIDENT_PRODUCER = sys.argv[3]
spec = importlib.util.spec_from_file_location("cluster", pathlib.Path(__file__).with_name("cluster_cli_test.py"))
cluster = importlib.util.module_from_spec(spec)
spec.loader.exec_module(cluster)

SUSPECT_ENGINE = 75


def free_port():
    """Of a receiver that a producer is told of, which has to name its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Producer:
    """A resident producer, once it listens."""

    def __init__(self, c, words):
        self.process = subprocess.Popen([str(w) for w in words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        first = json.loads(line) if line else {}
        if first.get("kind") != "listening":
            raise AssertionError(f"no producer: {line} {self.process.communicate()}")
        c.settings("receiver.json", listen=f"127.0.0.1:{free_port()}", advertised_receiver_host="127.0.0.1",
                   producer_control={"address": first["address"], "server_name": "localhost"})

    def line(self):
        return json.loads(self.process.stdout.readline())

    def end(self, signal_number=None):
        if signal_number is not None:
            self.process.send_signal(signal_number)
        self.process.communicate(timeout=cluster.PATIENCE_S)
        return self.process.returncode

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


class Control(unittest.TestCase):
    def setUp(self):
        self.c = cluster.Cluster()
        self.c.setUp()
        self.addCleanup(self.c.doCleanups)
        self.c.settings("producer.json", control={"listen": "127.0.0.1:0"})

    def producer(self, *words):
        started = Producer(self.c, words)
        self.addCleanup(started.kill)
        return started

    def serve(self, *words):
        return self.producer(cluster.KVPACK, "serve", self.c.folder / "producer.json", "--store", self.c.sending, "--json",
                             *self.c.common(), *words)

    def resident(self, *words):
        return self.producer(RESIDENT_PRODUCER, self.c.folder / "producer.json", *words)

    def request_file(self, tokens, name="request.u32"):
        path = self.c.folder / name
        path.write_bytes(b"".join(token.to_bytes(4, "little") for token in tokens))
        return path

    def asked_for(self, count):
        """The tokens of the helper's cut of so many, and a boundary token."""
        return self.request_file([i * 7 % 512 for i in range(count)] + [5])

    def ask(self, request, code=cluster.DONE):
        done = cluster.run(cluster.KVPACK, "receive", self.c.folder / "receiver.json", "--store", self.c.receiving, "--json",
                           *self.c.common(), "--tokens", request, "--request", code=code)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def error_of(self, request, code=cluster.REFUSED):
        return self.ask(request, code)[-1]["error"]

    def test_what_is_asked_for_arrives(self):
        self.c.save(self.c.sending, 300)
        server = self.serve("--once")
        lines = self.ask(self.asked_for(300))
        self.assertEqual([line["kind"] for line in lines], ["listening", "receipt", "prefill"])
        prefill = lines[-1]
        self.assertEqual(prefill["installed_bytes"], cluster.full_bytes(300))
        self.assertEqual(prefill["transfer_id"], prefill["request_id"] + "-1")
        self.assertEqual(prefill["producer"]["prefill_tokens"], 300)
        self.assertEqual(prefill["producer"]["payload_bytes"], cluster.full_bytes(300))
        told = server.line()
        self.assertEqual((told["kind"], told["ok"], told["end"], told["positions"]), ("request", True, "committed", 301))
        self.assertEqual(told["request_id"], prefill["request_id"])
        self.assertEqual(told["receipt"], prefill["producer"])
        self.assertEqual(server.end(), cluster.DONE)
        self.assertEqual(self.c.planes(self.c.receiving, 300), self.c.planes(self.c.sending, 300))
        self.c.assert_nothing_half_done([300])

    def test_a_prompt_that_the_store_has_not_is_refused_and_the_next_one_served(self):
        self.c.save(self.c.sending, 300)
        server = self.serve()
        error = self.error_of(self.asked_for(299))
        self.assertEqual(error["message"], "no cut of the store is exactly this prompt")
        self.assertEqual((error["phase"], error["refused_by"]), ("producer control channel", "producer"))
        self.assertEqual(server.line()["end"], "failed")
        self.ask(self.asked_for(300))
        self.assertEqual(server.line()["end"], "committed")
        self.assertEqual(server.end(signal.SIGTERM), cluster.DONE)
        self.c.assert_nothing_half_done([300])

    def test_another_host_is_not_connected_to(self):
        self.c.save(self.c.sending, 300)
        self.serve()
        self.c.settings("receiver.json", advertised_receiver_host="127.0.0.2")
        self.assertEqual(self.error_of(self.asked_for(300))["message"], "prefill control request names another receiver")

    def test_one_producer_per_lock(self):
        self.serve()
        refused = cluster.run(cluster.KVPACK, "serve", self.c.folder / "producer.json", "--store", self.c.sending, "--json",
                              *self.c.common(), code=cluster.IO)
        self.assertEqual(json.loads(refused.stdout)["error"]["message"],
                         f"another process holds {self.c.folder}/generation.json.serve.lock")

    def test_options_that_do_not_go_together(self):
        request = self.asked_for(3)
        common = [cluster.KVPACK, "receive", self.c.folder / "receiver.json", "--store", self.c.receiving, *self.c.common()]
        for words in (["--request"], ["--request", "--inbox"], ["--request", "--tokens", request]):
            cluster.run(*common, *words, code=cluster.USAGE)
        self.c.settings("producer.json", control=None)
        cluster.run(cluster.KVPACK, "serve", self.c.folder / "producer.json", "--store", self.c.sending, *self.c.common(),
                    code=cluster.USAGE)

    def test_nobody_answers(self):
        self.c.settings("receiver.json", listen=f"127.0.0.1:{free_port()}", advertised_receiver_host="127.0.0.1",
                        producer_control={"address": "127.0.0.1:1", "server_name": "localhost"})
        self.assertEqual(self.error_of(self.asked_for(3), code=cluster.IO)["phase"], "producer control channel")

    def test_the_example_computes_what_it_is_asked_for(self):
        producer = self.resident()
        prefill = self.ask(self.asked_for(300))[-1]
        self.assertEqual(prefill["installed_bytes"], cluster.full_bytes(300))
        self.assertEqual(producer.line()["end"], "committed")
        self.c.assert_nothing_half_done([300])
        self.assertEqual(producer.end(signal.SIGTERM), cluster.DONE)

    def test_an_error_after_the_engine_was_touched_ends_the_process(self):
        producer = self.resident()
        good = json.loads((self.c.folder / "receiver.json").read_text())["minimum_hmac_epoch"]
        self.c.settings("receiver.json", minimum_hmac_epoch=good + 1)
        error = self.error_of(self.asked_for(300))
        self.assertEqual(error["message"], "wrong HMAC key id or replayed epoch")
        told = producer.line()
        self.assertEqual((told["end"], told["error"]["message"]), ("failed", "wrong HMAC key id or replayed epoch"))
        self.assertEqual(producer.end(), SUSPECT_ENGINE)

    def test_three_errors_in_a_row_end_the_process(self):
        producer = self.resident()
        bad = self.request_file([1, 600, 5], "bad.u32")
        for request in (bad, bad, self.asked_for(3), bad, bad, bad):
            if request == bad:
                self.assertEqual(self.error_of(request)["message"],
                                 "prefill control request violates its closed bounds")
            else:
                self.ask(request)
        self.assertEqual(producer.end(), SUSPECT_ENGINE)

    def test_an_engine_that_hangs_ends_the_process(self):
        producer = self.resident(200)
        error = self.error_of(self.request_file([13, 1, 5], "hang.u32"))
        self.assertEqual(error["message"], "GX10 producer closed the control stream")
        self.assertEqual(producer.end(), SUSPECT_ENGINE)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]], verbosity=1)
