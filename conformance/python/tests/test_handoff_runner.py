"""The runner must notice an implementation that is wrong, silent or gone."""
import os
import subprocess
import sys
import tempfile
import unittest

PYTHON = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RUNNER = os.path.join(os.path.dirname(PYTHON), "run_handoff.py")

LIAR = """
import sys
sys.path.insert(0, {python!r})
import handoff_endpoint
endpoint = handoff_endpoint.Endpoint()
for line in sys.stdin:
    answer = endpoint.answer(line.rstrip("\\n"))
    {lie}
    print(answer, flush=True)
"""


class Runner(unittest.TestCase):
    def run_with(self, lie, *args):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "liar.py")
            with open(path, "w", encoding="utf-8") as f:
                f.write(LIAR.format(python=PYTHON, lie=lie))
            return self.run_command(f"{sys.executable} {path}", *args)

    def run_command(self, command, *args):
        return subprocess.run([sys.executable, RUNNER, "--impl", command, "--show", "2", *args], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=300)

    def test_the_reference_agrees_in_every_group(self):
        done = subprocess.run([sys.executable, RUNNER, "--sample", "300", "--cross", "8"], stdout=subprocess.PIPE)
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_a_wrong_text_is_noticed(self):
        done = self.run_with('answer = answer.replace("extra segment", "extra segments")', "--only", "receiver")
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"DISAGREES receiver: declared-extra", done.stdout)

    def test_an_accepted_corruption_is_noticed(self):
        lie = 'answer = "ok\\t74\\t7\\t0\\tbegin,commit\\t7" if "/xor:" in line else answer'
        self.assertEqual(self.run_with(lie, "--only", "sweep", "--sample", "50").returncode, 1)

    def test_a_missing_abort_is_noticed(self):
        lie = 'answer = answer.replace(",abort", "")'
        self.assertEqual(self.run_with(lie, "--only", "sweep", "--sample", "50").returncode, 1)

    def test_an_unsupported_group_is_a_failure_unless_skipped(self):
        lie = 'answer = "unsupported" if line.startswith("ledger") else answer'
        self.assertEqual(self.run_with(lie, "--only", "ledger,json").returncode, 1)
        self.assertEqual(self.run_with(lie, "--only", "ledger,json", "--skip", "ledger").returncode, 0)

    def test_an_endpoint_that_ends_is_noticed(self):
        done = self.run_with('sys.exit(3) if line.startswith("verdict") else None', "--only", "json")
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"ended with status 3", done.stdout)

    def test_an_exit_status_at_the_end_of_input_is_noticed(self):
        lie = "import atexit, os; atexit.register(os._exit, 5)"
        self.assertEqual(self.run_with(lie, "--only", "json").returncode, 1)

    def test_what_does_not_speak_the_protocol(self):
        self.assertEqual(self.run_command("cat", "--only", "json").returncode, 1)

    def test_usage(self):
        self.assertEqual(self.run_command("cat", "--only", "nothing").returncode, 2)
        self.assertEqual(self.run_command("cat", "--vectors", "/nonexistent").returncode, 2)
        self.assertEqual(self.run_command("/nonexistent/endpoint").returncode, 2)


if __name__ == "__main__":
    unittest.main()
