"""kvpack probe: what it prints, what it leaves, what it refuses. usage: probe_cli_test.py KVPACK"""
import json
import os
import subprocess
import sys
import tempfile
import unittest

TOOL = None


def probe(*arguments):
    return subprocess.run([TOOL, "probe", *arguments], capture_output=True, text=True, timeout=120)


class Probe(unittest.TestCase):
    def test_json_has_the_published_keys(self):
        with tempfile.TemporaryDirectory() as folder:
            done = probe(folder, "--iterations", "5", "--max-tail-ms", "600000", "--json")
            self.assertEqual(done.returncode, 0, done.stderr)
            value = json.loads(done.stdout)
            self.assertEqual(
                set(value),
                {"schema", "directory", "iterations", "payload_bytes", "min_ms", "median_ms", "p99_ms", "max_ms",
                 "max_tail_ms", "verdict", "ok"})
            self.assertEqual(value["schema"], "muser.durable-fsync-probe.v1")
            self.assertEqual(value["verdict"], "pass")
            self.assertEqual((value["iterations"], value["payload_bytes"]), (5, 4096))
            self.assertEqual(value["directory"], folder)
            self.assertLessEqual(value["min_ms"], value["median_ms"])
            self.assertLessEqual(value["median_ms"], value["p99_ms"])
            self.assertLessEqual(value["p99_ms"], value["max_ms"])
            self.assertGreater(value["max_ms"], 0)
            self.assertEqual(os.listdir(folder), [])

    def test_a_volume_that_is_too_slow_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            done = probe(folder, "--iterations", "2", "--max-tail-ms", "0")
            self.assertEqual(done.returncode, 4)
            self.assertIn("not fit for a replay ledger", done.stderr)
            self.assertIn("#", done.stderr)
            self.assertEqual(json.loads(probe(folder, "--iterations", "2", "--max-tail-ms", "0", "--json").stdout)
                             ["verdict"], "fail")

    def test_the_histogram_counts_every_sample(self):
        with tempfile.TemporaryDirectory() as folder:
            done = probe(folder, "--iterations", "20", "--bytes", "1", "--max-tail-ms", "600000")
            counts = [int(line.split()[2]) for line in done.stderr.splitlines() if line.startswith("  under ")]
            self.assertEqual(sum(counts), 20)

    def test_mistakes_are_usage(self):
        with tempfile.TemporaryDirectory() as folder:
            for arguments in ([], [folder, "--iterations", "0"], [folder, "--bytes", "-1"],
                              [folder, "--max-tail-ms", "nan"], [folder, "--max-tail-ms", "-1"]):
                self.assertEqual(probe(*arguments).returncode, 2, arguments)

    def test_a_missing_directory_is_an_io_error_and_not_made(self):
        with tempfile.TemporaryDirectory() as folder:
            missing = os.path.join(folder, "missing")
            self.assertEqual(probe(missing).returncode, 5)
            self.assertFalse(os.path.exists(missing))


if __name__ == "__main__":
    TOOL = os.path.abspath(sys.argv.pop(1))
    unittest.main()
