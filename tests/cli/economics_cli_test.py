#!/usr/bin/env python3
"""`kvpack economics` from outside: figures, table, chart, refusals. usage: economics_cli_test.py TOOL [unittest arguments]"""
import os
import re
import sys
import unittest
import xml.etree.ElementTree as xml

import cli_test

CONTEXT, WINDOW = 131072, 2048
SVG = "{http://www.w3.org/2000/svg}"


def payload(tokens):
    return 13312 * tokens + 39936 * min(tokens, WINDOW)


class Economics(cli_test.Case):
    def economics(self, prefill, wire, *more):
        return self.json("economics", "--prefill-tps", prefill, "--wire", wire, *more)

    def test_figures_are_those_of_the_formula(self):
        for prefill, wire, verify, latency in (("900", "0.5", "1.5", "0"), ("20000", "0.1", None, "0.25"), ("1.5", "12.5", "3", "7.000001")):
            more = ["--latency", latency] + (["--verify", verify] if verify else [])
            value = self.economics(prefill, wire, *more)
            self.assertEqual((value["ok"], value["kind"]), (True, "economics"))
            self.assertEqual((value["prefill_tokens_per_second"], value["wire_gigabytes_per_second"],
                              value["verify_gigabytes_per_second"], value["latency_seconds"]), (prefill, wire, verify, latency))
            per_byte = 1 / (float(wire) * 1e9) + (1 / (float(verify) * 1e9) if verify else 0)
            move = lambda n: float(latency) + payload(n) * per_byte
            compute = lambda n: n / float(prefill)
            self.assertEqual([row["tokens"] for row in value["rows"]], [256, 1024, 2048, 8192, 32768, 65536, 131072])
            for row in value["rows"]:
                n = row["tokens"]
                self.assertEqual(row["payload_bytes"], payload(n))
                self.assertAlmostEqual(row["move_us"], move(n) * 1e6, delta=1)
                self.assertAlmostEqual(row["recompute_us"], compute(n) * 1e6, delta=1)
                self.assertEqual(row["faster"], "move" if move(n) < compute(n) else "recompute")
            wins = [n for n in range(256, CONTEXT + 1, 256) if move(n) < compute(n)]
            expected = next((n for n in wins if len(range(n, CONTEXT + 1, 256)) == len([m for m in wins if m >= n])), None)
            self.assertEqual(value["break_even_tokens"], expected)

    def test_known_answer(self):
        value = self.economics("900", "0.5", "--verify", "1.5", "--payload", "256")
        self.assertEqual(value["break_even_tokens"], 256)
        self.assertEqual(value["rows"], [{"tokens": 256, "payload_bytes": 13631488, "move_us": 36351,
                                          "recompute_us": 284444, "faster": "move"}])

    def test_never(self):
        self.assertIsNone(self.economics("1000000", "0.001")["break_even_tokens"])
        done = self.run_tool("economics", "--prefill-tps", "1000000", "--wire", "0.001")
        self.assertIn(b"moving is never faster, up to 131072 tokens", done.stdout)

    def test_rows_are_those_that_were_asked_for(self):
        value = self.economics("900", "1", "--payload", "1", "--payload", "131072", "--payload", "5")
        self.assertEqual([row["tokens"] for row in value["rows"]], [1, 131072, 5])

    def test_the_table_says_the_same(self):
        done = self.run_tool("economics", "--prefill-tps", "900", "--wire", "0.5", "--verify", "1.5")
        lines = done.stdout.decode().splitlines()
        self.assertEqual(lines[0], "prefill 900 tokens/s, wire 0.5 GB/s, verification 1.5 GB/s, 0 s for each move")
        self.assertEqual(lines[3].split(), ["256", "13631488", "36.4", "ms", "284", "ms", "move"])
        self.assertEqual(lines[-1], "moving is faster from 256 tokens on")
        self.assertEqual(self.run_tool("economics", "--prefill-tps", "900", "--wire", "0.5", "--quiet").stdout, b"")

    def chart(self, name, *arguments):
        value = self.economics(*arguments, "--svg", name)
        self.assertEqual(value["svg"], name)
        return xml.parse(self.folder / name).getroot()

    def test_the_chart_is_one_document_with_both_lines(self):
        root = self.chart("chart.svg", "900", "0.5", "--verify", "1.5")
        self.assertEqual(root.tag, SVG + "svg")
        self.assertIn("Moving is faster from 256 tokens on", root.find(SVG + "desc").text)
        lines = root.findall(SVG + "polyline")
        self.assertEqual(len(lines), 2)
        for line in lines:
            points = [tuple(map(float, point.split(","))) for point in line.get("points").split()]
            self.assertEqual(len(points), 145)
            xs, ys = zip(*points)
            self.assertEqual(list(xs), sorted(xs))
            self.assertEqual(list(ys), sorted(ys, reverse=True))  # more tokens take longer
            self.assertTrue(all(76 <= x <= 800 for x in xs) and all(56 <= y <= 384 for y in ys))
        self.assertEqual(len([line for line in root.findall(SVG + "line") if line.get("class") == "be-at"]), 1)

    def test_the_chart_asks_for_nothing(self):
        self.chart("chart.svg", "900", "0.5")
        text = (self.folder / "chart.svg").read_text()
        self.assertNotIn("<script", text)
        self.assertEqual(re.findall(r"https?://[^\"]*", text), ["http://www.w3.org/2000/svg"])
        self.assertNotIn("url(", text)
        self.assertNotIn("nan", text)
        self.assertNotIn("inf", text)

    def test_a_chart_without_a_break_even_has_no_mark(self):
        root = self.chart("chart.svg", "1000000", "0.001")
        self.assertIn("never faster", root.find(SVG + "desc").text)
        self.assertEqual([line for line in root.findall(SVG + "line") if line.get("class") == "be-at"], [])

    def test_extreme_numbers_can_be_drawn(self):
        for i, (prefill, wire, more) in enumerate((("0.000001", "999999999.999999", []), ("999999999.999999", "0.000001", []),
                                                   ("1", "1", ["--latency", "999999999"]))):
            text = xml.tostring(self.chart(f"{i}.svg", prefill, wire, *more)).decode()
            self.assertNotIn("nan", text)

    def test_a_file_is_not_replaced(self):
        self.write("there.svg", b"mine")
        self.refused("economics", "--prefill-tps", "900", "--wire", "1", "--svg", "there.svg", category="expectation",
                     message="target exists with different bytes")
        self.assertEqual((self.folder / "there.svg").read_bytes(), b"mine")
        self.chart("chart.svg", "900", "1")
        self.chart("chart.svg", "900", "1")  # the same bytes: done already
        self.refused("economics", "--prefill-tps", "900", "--wire", "1", "--svg", "no/chart.svg", category="io", code=5)

    def test_numbers_are_decimal_and_bounded(self):
        for bad in ("", "0", "0.0", "-1", "+1", "1e3", "0x10", "1.", ".5", "1,5", " 1", "1 ", "nan", "inf", "1234567890", "1.1234567"):
            for arguments in (["--prefill-tps", bad, "--wire", "1"], ["--prefill-tps", "1", "--wire", bad],
                              ["--prefill-tps", "1", "--wire", "1", "--verify", bad]):
                self.refused("economics", *arguments, category="usage", code=2)
            if bad not in ("0", "0.0"):
                self.refused("economics", "--prefill-tps", "1", "--wire", "1", "--latency", bad, category="usage", code=2)
        for tokens in ("0", "131073", "-1", "1.5", ""):
            self.refused("economics", "--prefill-tps", "1", "--wire", "1", "--payload", tokens, category="usage", code=2)

    def test_rates_are_needed(self):
        self.refused("economics", category="usage", code=2)
        self.refused("economics", "--wire", "1", category="usage", code=2)
        self.refused("economics", "--prefill-tps", "1", category="usage", code=2)

    def test_help_has_the_formula_and_an_example(self):
        text = self.run_tool("economics", "--help").stdout.decode()
        self.assertIn("13312 N + 39936 min(N, 2048)", text)
        self.assertIn("kvpack economics --prefill-tps 900", text)


if __name__ == "__main__":
    cli_test.TOOL = os.path.abspath(sys.argv.pop(1))
    unittest.main()
