#!/usr/bin/env python3
"""What completes the tool's command lines, in the shells themselves. usage: completion_test.py TOOL [unittest arguments]"""
import json
import shutil
import subprocess
import sys
import tempfile
import unittest

TOOL = None


def script_of(shell, *more):
    return subprocess.run([TOOL, "completion", shell, *more], capture_output=True, text=True, check=True).stdout


class Completion(unittest.TestCase):
    def in_bash(self, *words):
        done = subprocess.run(
            ["bash", "-c", 'source /dev/stdin; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _kvpack; '
                           'printf "%s\\n" "${COMPREPLY[@]}"', "bash", *words],
            input=script_of("bash"), capture_output=True, text=True, check=True)
        self.assertEqual(done.stderr, "")
        return done.stdout.split()

    def test_bash_completes_commands_below_commands_and_options(self):
        self.assertEqual(self.in_bash("kvpack", "sto"), ["store"])
        self.assertIn("put", self.in_bash("kvpack", "store", ""))
        self.assertEqual(self.in_bash("kvpack", "store", "pu"), ["put"])
        self.assertEqual(self.in_bash("kvpack", "store", "put", "--js"), ["--json"])
        self.assertEqual(self.in_bash("kvpack", "--vers"), ["--version"])
        self.assertIn("--json", self.in_bash("kvpack", "verify", "x.kvpack", "--"))
        # Files are left to the shell.
        self.assertEqual(self.in_bash("kvpack", "verify", "x"), [])

    def test_every_command_of_the_help_is_offered(self):
        help_text = subprocess.run([TOOL, "--help"], capture_output=True, text=True, check=True).stdout
        listed = [line.split()[0] for line in help_text.split("Subcommands:")[1].splitlines()
                  if line.startswith("  ") and line[2] != " "]
        self.assertGreater(len(listed), 10)
        self.assertEqual(sorted(self.in_bash("kvpack", "")), sorted(listed))

    def test_zsh(self):
        if not shutil.which("zsh"):
            self.skipTest("zsh is not installed")
        with tempfile.NamedTemporaryFile("w", suffix=".zsh") as file:
            file.write(script_of("zsh"))
            file.flush()
            done = subprocess.run(
                ["zsh", "-f", "-c", f'autoload -U compinit && compinit -u -D; source {file.name}; '
                                    'COMP_WORDS=(kvpack store pu); COMP_CWORD=2; _kvpack_commands "kvpack store"'],
                capture_output=True, text=True, check=True)
        self.assertIn("put", done.stdout.split())

    def test_fish(self):
        if not shutil.which("fish"):
            self.skipTest("fish is not installed")
        for line, wanted in (("kvpack sto", "store"), ("kvpack store pu", "put"), ("kvpack store put --js", "--json")):
            done = subprocess.run(["fish", "--no-config", "-c", f'source -; complete -C "{line}"'],
                                  input=script_of("fish"), capture_output=True, text=True, check=True)
            self.assertEqual([answer.split("\t")[0] for answer in done.stdout.splitlines()], [wanted], line)

    def test_json_and_refusals(self):
        answer = json.loads(script_of("bash", "--json"))
        self.assertEqual((answer["kind"], answer["shell"]), ("completion", "bash"))
        self.assertEqual(answer["script"], script_of("bash"))
        self.assertEqual(subprocess.run([TOOL, "completion", "csh"], capture_output=True).returncode, 2)
        self.assertEqual(subprocess.run([TOOL, "completion"], capture_output=True).returncode, 2)


if __name__ == "__main__":
    TOOL = sys.argv.pop(1)
    unittest.main()
