#!/usr/bin/env python3
"""`kvpack bench` from outside, with little data: that it runs, what it writes, what it refuses. How fast anything is, is no
matter of this. usage: bench_cli_test.py TOOL [unittest arguments]"""
import json
import os
import subprocess
import sys
import unittest
import xml.etree.ElementTree as xml

import cli_test

SMALL = ["--quick", "--data", "4"]
GOALS = [f"G{i}" for i in range(1, 20)]
KEYS = {"id", "part", "operation", "baseline", "ratio", "min", "max", "at_most", "gate", "goal", "moonshot", "kernel",
        "control", "reached", "verdict", "reason"}


class Bench(cli_test.Case):
    def setUp(self):
        super().setUp()
        self.place = self.folder / "place"
        self.place.mkdir()

    def bench(self, *arguments, code=0):
        return self.run_tool("bench", *arguments, "--dir", self.place, code=code)

    def check(self, value, ids):
        self.assertEqual((value["schema"], value["ok"], value["quick"], value["rounds"]), ("kvpack.bench.v1", True, True, 3))
        self.assertEqual(sorted({goal["id"] for goal in value["goals"]}), sorted(ids))
        for goal in value["goals"]:
            self.assertEqual(set(goal), KEYS)
            self.assertIn(goal["verdict"], ("pass", "fail", "inconclusive"))
            self.assertIn(goal["reached"], ("none", "gate", "goal", "moonshot"))
            if goal["ratio"] is not None:
                self.assertGreater(goal["max"], 0)
                self.assertLessEqual(goal["min"], goal["max"])
            else:
                self.assertEqual(goal["verdict"], "inconclusive")
                self.assertNotEqual(goal["reason"], "")
        for key in ("cpu", "compiler", "build_type", "kernel", "file_system"):
            self.assertNotEqual(value["machine"][key], "")
        self.assertEqual(value["failed_gates"], sum(goal["verdict"] == "fail" for goal in value["goals"]))

    def test_every_goal_runs_and_nothing_stays(self):
        done = self.bench(*SMALL, "--json", "--json-file", self.place / "out.json")
        value = json.loads(done.stdout)
        self.check(value, GOALS)
        for goal in value["goals"]:
            if goal["id"] == "G12":
                self.assertRegex(goal["kernel"], ", TLS_[A-Z0-9_]+$")
            # Everything was made, but for what may be lacking: lanes of the processor, a count of the system, kinds of files of
            # the file system. Why is there then.
            if goal["id"] not in ("G3", "G5", "G9", "G17", "G18", "G19"):
                self.assertIsNotNone(goal["ratio"], goal)
        # 4 MiB are one chunk, and these speak of 64, or of longer turns.
        for goal in value["goals"]:
            if goal["id"] in ("G1", "G2", "G5", "G6", "G7", "G9", "G11", "G13", "G14", "G15"):
                self.assertEqual(goal["verdict"], "inconclusive", goal)
        with open(self.place / "out.json", "rb") as file:
            self.assertEqual(json.load(file)["goals"], value["goals"])
        self.assertEqual(os.listdir(self.place), ["out.json"])

    def test_table_and_document_say_the_same(self):
        document = self.place / "doc.md"
        with open(document, "w", encoding="utf-8") as file:
            file.write("# A\n<!-- kvpack bench: begin -->\nold\n<!-- kvpack bench: end -->\n# B\n")
        done = self.bench(*SMALL, "--only", "G13", "--markdown", document)
        self.assertIn(b"3 rounds (quick)", done.stdout)
        self.assertIn(b"G13", done.stdout)
        with open(document, encoding="utf-8") as file:
            text = file.read()
        self.assertTrue(text.startswith("# A\n<!-- kvpack bench: begin -->\n"))
        self.assertTrue(text.endswith("<!-- kvpack bench: end -->\n# B\n"))
        self.assertEqual(text.count("| G13 |"), 3)
        self.assertNotIn("old", text)
        self.assertEqual(os.listdir(self.place), ["doc.md"])

    def test_a_failed_gate_refuses_where_that_is_asked_for(self):
        # One lane does not gain what the goal speaks of, unless the machine was too busy to say so.
        arguments = ["bench", *SMALL, "--only", "G10", "--kernel", "openssl", "--json", "--dir", self.place]
        for more in ([], ["--check"]):
            done = subprocess.run([cli_test.TOOL, *map(str, arguments), *more], capture_output=True)
            value = json.loads(done.stdout)
            self.check(value, ["G10"])
            self.assertEqual((value["machine"]["kernel"], value["goals"][0]["kernel"]), ("openssl", "openssl"))
            self.assertEqual(done.returncode, 4 if more and value["failed_gates"] else 0, value)

    def test_nothing_is_begun_when_the_time_is_used_up(self):
        value = json.loads(self.bench("--quick", "--seconds", "0", "--check", "--json").stdout)
        self.check(value, GOALS)
        for goal in value["goals"]:
            self.assertEqual((goal["ratio"], goal["verdict"], goal["reason"]), (None, "inconclusive", "no time is left"))
        self.assertEqual((value["rows"], os.listdir(self.place)), ([], []))

    def test_rows_of_a_processor_without_sha_instructions(self):
        def rows(**variables):
            environment = {name: text for name, text in os.environ.items() if name != "OPENSSL_ia32cap"}
            return subprocess.run([cli_test.TOOL, "bench", "--rows-without-sha", "--quick", "--dir", self.place],
                                  capture_output=True, text=True, env={**environment, **variables})
        with open("/proc/cpuinfo") as file:
            if " sha_ni" in file.read():
                refused = rows()
                self.assertEqual((refused.returncode, refused.stdout), (2, ""))
                self.assertIn("OpenSSL has SHA instructions here; start with OPENSSL_ia32cap=:~0x20000000", refused.stderr)
        done = rows(OPENSSL_ia32cap=":~0x20000000")
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = [line.split("\t") for line in done.stdout.splitlines()]
        self.assertIn(len(lines), (2, 4))
        for median, least, most, kernel, unit, operation in lines:
            self.assertTrue(0 < float(least) <= float(most) and 0 < float(median), lines)
            self.assertIn(kernel, ("openssl", "avx512-plain"))
            self.assertEqual(unit, "x N")
            self.assertRegex(operation, "^(save|restore) of 16 chunks of 1 MiB, .*, without SHA instructions$")
        self.assertEqual(os.listdir(self.place), [])

    def test_chart(self):
        path = self.place / "chart.svg"
        self.bench(*SMALL, "--only", "G15", "--plot", path, "--threads", "1")
        root = xml.parse(path).getroot()
        self.assertEqual(root.tag, "{http://www.w3.org/2000/svg}svg")
        self.assertGreater(len(root.findall("{http://www.w3.org/2000/svg}polyline")), 2)

    def test_refusals(self):
        for arguments in (["--only", "G20"], ["--only", ""], ["--kernel", "fast"], ["--data", "0"], ["--data", "257"],
                          ["--seconds", "226"], ["--seconds", "-1"]):
            self.bench("--quick", *arguments, code=2)
        self.run_tool("bench", "--dir", self.place / "missing", code=5)


if __name__ == "__main__":
    cli_test.TOOL = os.path.abspath(sys.argv.pop(1))
    unittest.main()
