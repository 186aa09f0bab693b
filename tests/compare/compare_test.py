"""compare_test.py [LLAMA_PEER LIBRARIES]: the comparison on 8 MiB, and what it must find of kvpack."""
import json
import pathlib
import subprocess
import sys
import tempfile
import types
import unittest

sys.dont_write_bytecode = True
import compare  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
PEER = []


class Comparison(unittest.TestCase):
    def test_finds_what_each_tool_does_with_damage(self):
        with tempfile.TemporaryDirectory() as folder:
            figures = pathlib.Path(folder) / "figures.json"
            done = subprocess.run(
                [sys.executable, str(HERE / "compare.py"), "--mib", "8", "--rounds", "1", "--kills", "1", "--dir", folder,
                 "--only", "kvpack,llama,safetensors,LMCache,cp", "--json", str(figures)]
                + (["--peer"] + PEER if PEER else []), stdout=subprocess.PIPE, text=True, check=True)
            found = {tool["name"]: tool for tool in json.loads(figures.read_text())["tools"]}
            self.assertEqual([figures], list(pathlib.Path(folder).iterdir()), "it tidies up")
        for name in ("kvpack", "kvpack, encrypted"):
            self.assertEqual("refused", found[name]["flipped"])
            self.assertEqual("refused", found[name]["truncated"])
            self.assertEqual("not found", found[name]["other model"])
            self.assertIn("old one right", found[name]["killed"])
        self.assertEqual("accepted; its check refuses", found["cp, sha256sum"]["flipped"])
        self.assertEqual("accepted", found["LMCache local disk"]["truncated"])
        self.assertEqual(bool(PEER), "llama.cpp session file" in found)
        if PEER:
            self.assertEqual("accepted", found["llama.cpp session file"]["flipped"])
            self.assertEqual("accepted", found["llama.cpp session file"]["other model"])
        self.assertIn("| kvpack |", done.stdout)

    def test_shows_what_is_done_once_apart_and_sizes_everywhere(self):
        tool = {"name": "kvpack", "bytes": 150, "prepare": [], "save": [1.0], "durable": [2.0], "restore": [0.5], "proof": [],
                "flipped": "a", "truncated": "b", "other model": "c", "killed": "d", "proves": "", "silent about": "", "note": ""}
        backup = dict(tool, name="restic", prepare=[3.0, 1.0, 2.0])
        data = types.SimpleNamespace(bytes=100)
        rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in compare.tables([tool, backup], data)[:4]]
        made_ready = rows[0].index("made ready once, s")
        self.assertEqual(["", "2.00"], [row[made_ready] for row in rows[2:]])
        shown = compare.summary([tool, backup], data)
        self.assertEqual(3, len(shown), "the README shows no tools for backups")
        self.assertEqual(["kvpack", "1.5000", "1.00 x"], [cell.strip() for cell in shown[2].split("|")[1:4]])

    def test_renews_what_stands_between_markers_and_nothing_else(self):
        with tempfile.TemporaryDirectory() as folder:
            document = pathlib.Path(folder) / "page.md"
            document.write_text("a\n<!-- compare: figures -->\nold\n<!-- compare: end -->\nb\n")
            self.assertTrue(compare.write_into(document, "figures", ["new", "lines"]))
            self.assertEqual("a\n<!-- compare: figures -->\nnew\nlines\n<!-- compare: end -->\nb\n", document.read_text())
            self.assertFalse(compare.write_into(document, "other", ["x"]))


if __name__ == "__main__":
    PEER = sys.argv[1:]
    unittest.main(argv=sys.argv[:1])
