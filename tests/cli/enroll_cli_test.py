"""kvpack enroll: two folders enrolled as two machines, and what is refused on the way. usage: enroll_cli_test.py KVPACK"""
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import unittest

TOOL = None

MODEL = {
    "identity": {
        "adapter_sha256": "a" * 64, "chat_template_sha256": "b" * 64, "context_policy_sha256": "c" * 64,
        "model_revision": "m", "model_sha256": "d" * 64, "tokenizer_revision": "t", "tokenizer_sha256": "e" * 64},
    "target_cache_identity_sha256": "f" * 64}


class Enroll(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        with open(self.path("model.json"), "w", encoding="utf-8") as file:
            json.dump(MODEL, file)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def run_tool(self, *arguments):
        # Beside other work the volume may be too slow for a ledger, which is no matter of these tests.
        for _ in range(30):
            done = subprocess.run([TOOL, "enroll", *arguments], capture_output=True, text=True, timeout=300,
                                  cwd=self.folder.name)
            if "durable-reserve tail" not in done.stderr:
                return done
        self.skipTest("the volume of the temporary folder is too slow for a replay ledger")

    def enroll(self, *arguments):
        done = self.run_tool(*arguments, "--json")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stderr, "")
        value = json.loads(done.stdout)
        self.assertTrue(value["ok"])
        return value

    def refuse(self, code, *arguments):
        done = self.run_tool(*arguments, "--json")
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        value = json.loads(done.stdout)
        self.assertFalse(value["ok"])
        return value["error"]

    def files(self, name):
        return sorted(os.listdir(self.path(name)))

    def read_json(self, name):
        with open(self.path(name), encoding="utf-8") as file:
            return json.load(file)

    def prepare(self):
        self.enroll("ca", "ca")
        made = self.enroll("request", "receiver", "--role", "receiver", "--server-name", "gpu1.example")
        self.enroll("request", "producer/", "--role", "producer", "--server-name", "gpu2.example")
        self.enroll("sign", "ca", "receiver/request.pem", "--out", "gpu1.pem")
        self.enroll("sign", "ca", "producer/request.pem", "--out", "gpu2.pem")
        shutil.copy2(self.path("receiver/hmac.key"), self.path("producer/hmac.key"))
        return made

    RECEIVER = ("finish", "receiver", "--role", "receiver", "--certificate", "gpu1.pem", "--ca", "ca/ca.pem", "--peer",
                "gpu2.pem", "--model", "model.json", "--listen", "127.0.0.1:29590")
    PRODUCER = ("finish", "producer", "--role", "producer", "--certificate", "gpu2.pem", "--ca", "ca/ca.pem", "--peer",
                "gpu1.pem", "--model", "model.json", "--receiver", "gpu1.example:29590")

    def test_two_machines(self):
        made = self.prepare()
        self.assertEqual(made["key_id"], "kvpack-1")
        receiver = self.enroll(*self.RECEIVER, "--metrics-listen", "127.0.0.1:9464", "--receipts", "receipts.jsonl")
        producer = self.enroll(*self.PRODUCER)
        self.assertEqual(receiver["key_check"], made["key_check"])
        self.assertEqual(producer["key_check"], made["key_check"])
        self.assertEqual(receiver["model_check"], producer["model_check"])
        self.assertEqual(receiver["peers"], [producer["certificate"]])
        self.assertEqual(producer["peers"], [receiver["certificate"]])
        self.assertEqual(receiver["certificate"]["name"], "gpu1.example")
        config = self.read_json("receiver/receiver.json")
        self.assertEqual(config["schema_version"], 1)
        self.assertEqual(config["peer_leaf_sha256"], [producer["certificate"]["sha256"]])
        self.assertEqual(config["identity"], MODEL["identity"])
        self.assertEqual(config["hmac_key_id"], "kvpack-1")
        self.assertEqual(self.read_json("receiver/local.json"),
                         {"schema": "kvpack.receiver.local.v1", "metrics_listen": "127.0.0.1:9464",
                          "receipts": os.path.realpath(self.path("receipts.jsonl"))})
        self.assertEqual(self.read_json("receiver/replay.json"), {"highest_generation": {}})
        config = self.read_json("producer/producer.json")
        self.assertEqual(config["schema"], "kvpack.producer.v1")
        self.assertEqual(config["server_name"], "gpu1.example")
        self.assertEqual(config["peer_leaf_sha256"], [receiver["certificate"]["sha256"]])
        self.assertEqual(self.files("producer"),
                         ["ca.pem", "certificate.pem", "hmac.key", "producer.json", "request.pem", "tls.key"])
        for name in ("ca/ca.key", "receiver/tls.key", "receiver/hmac.key", "producer/tls.key"):
            self.assertEqual(stat.S_IMODE(os.stat(self.path(name)).st_mode), 0o600, name)

    def test_prose_names_the_next_step_and_no_secret(self):
        self.enroll("ca", "ca")
        done = self.run_tool("request", "receiver", "--role", "receiver", "--server-name", "gpu1.example")
        self.assertEqual(done.returncode, 0)
        said = done.stdout + done.stderr
        self.assertIn("request.pem", said)
        with open(self.path("receiver/hmac.key"), encoding="utf-8") as file:
            self.assertNotIn(file.read().strip(), said)

    def test_nothing_is_replaced_and_a_key_is_signed_once(self):
        self.prepare()
        before = self.files("receiver")
        self.assertEqual(self.refuse(4, "ca", "ca")["message"], "target exists")
        self.assertEqual(
            self.refuse(4, "request", "receiver", "--role", "receiver", "--server-name", "gpu1.example")["message"],
            "target exists")
        error = self.refuse(4, "sign", "ca", "producer/request.pem", "--out", "again.pem")
        self.assertEqual(error["message"], "public key is already enrolled")
        self.assertFalse(os.path.exists(self.path("again.pem")))
        self.assertEqual(self.files("receiver"), before)
        self.enroll(*self.RECEIVER)
        self.enroll(*self.RECEIVER)
        error = self.refuse(4, *self.RECEIVER, "--epoch", "2")
        self.assertEqual(error["message"], "target exists with different bytes")

    def test_what_does_not_fit_leaves_the_folder_alone(self):
        self.prepare()
        before = self.files("receiver")
        swapped = [{"gpu1.pem": "gpu2.pem", "gpu2.pem": "gpu1.pem"}.get(a, a) for a in self.RECEIVER]
        self.assertIn("certificate is not for the key", self.refuse(4, *swapped)["message"])
        os.chmod(self.path("receiver/hmac.key"), 0o640)
        self.assertIn("group/other", self.refuse(2, *self.RECEIVER)["message"])
        os.chmod(self.path("receiver/hmac.key"), 0o600)
        self.assertEqual(self.files("receiver"), before)
        error = self.refuse(4, *self.PRODUCER[:-1], "elsewhere:29590")
        self.assertEqual(error["message"], "certificate is not for elsewhere")

    def test_mistakes_are_usage(self):
        self.prepare()
        for arguments in ((), ("request", "x", "--role", "boss", "--server-name", "a"),
                          ("request", "x", "--role", "producer", "--server-name", "a", "--key-id", "k"),
                          ("request", "x", "--role", "receiver", "--server-name", ""),
                          ("request", "x", "--role", "receiver", "--server-name", "a b"),
                          ("sign", "ca", "producer/request.pem"),
                          self.RECEIVER[:-2], self.PRODUCER[:-2], (*self.RECEIVER, "--receiver", "a:1"),
                          (*self.PRODUCER, "--listen", "127.0.0.1:1"), (*self.RECEIVER, "--epoch", "0"),
                          (*self.RECEIVER, "--epoch", "-1"), (*self.RECEIVER, "--metrics-listen", "0.0.0.0:1")):
            self.assertEqual(self.run_tool(*arguments).returncode, 2, arguments)
        self.assertFalse(os.path.exists(self.path("x")))

    def test_missing_files_are_io_errors(self):
        self.prepare()
        self.refuse(5, "sign", "ca", "missing.pem", "--out", "x.pem")
        self.refuse(5, "sign", "missing", "producer/request.pem", "--out", "x.pem")
        self.refuse(5, *[{"model.json": "missing.json"}.get(a, a) for a in self.RECEIVER])


if __name__ == "__main__":
    TOOL = os.path.abspath(sys.argv.pop(1))
    unittest.main()
