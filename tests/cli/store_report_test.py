#!/usr/bin/env python3
"""`kvpack store report`: what the page and the JSON say of known stores, what is refused, and the page in a browser.
usage: store_report_test.py TOOL [unittest arguments]"""
import html.parser
import http.server
import json
import os
import pathlib
import re
import shutil
import sqlite3
import struct
import subprocess
import sys
import tempfile
import threading
import unittest
import zlib

import cli_test
import store_cli_test
from cli_test import ID

CHARTS = ["chart-quota", "chart-sharing", "chart-tree", "chart-use"]
ALL_CHARTS = CHARTS + ["chart-economics"]


class Page(html.parser.HTMLParser):
    """What a program finds in a page: figures, elements, texts."""

    def __init__(self, text):
        super().__init__()
        self.figures, self.elements, self.texts, self.open = {}, [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.elements.append((tag, attributes))
        self.open.append(tag)
        if tag == "data":
            name = attributes["data-name"]
            assert name not in self.figures, f"two figures are called {name}"
            self.figures[name] = int(attributes["value"])

    def handle_endtag(self, tag):
        if tag in self.open:
            while self.open.pop() != tag:
                pass

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style",):
            self.texts.append(data)

    def count(self, tag, name=None):
        return sum(1 for other, attributes in self.elements
                   if other == tag and (name is None or name in attributes.get("class", "").split()))

    def text(self):
        return " ".join(" ".join(self.texts).split())


def numbers(value, path=""):
    """All numbers of a JSON value by their path."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return {}
    if isinstance(value, int):
        return {path: value}
    items = value.items() if isinstance(value, dict) else enumerate(value)
    found = {}
    for key, inner in items:
        found.update(numbers(inner, f"{path}.{key}" if path else str(key)))
    return found


class Case(store_cli_test.Case):
    def setUp(self):
        super().setUp()
        self.made = self.store("init", "--quota", 4 << 20)

    def catalog(self, *statements):
        """Changes the catalog behind the store's back, as a hostile neighbour would, or to have known counters."""
        with sqlite3.connect(self.folder / "s/catalog/catalog.sqlite") as db:
            for statement, *values in statements:
                db.execute(statement, values)
        db.close()

    def report(self, *arguments, name="r.html"):
        value = self.store("report", "--out", name, *arguments)
        self.assertEqual(value["file"], name)
        text = (self.folder / name).read_text(encoding="utf-8")
        return value, Page(text), text

    def conversation(self):
        """Five cuts: a chain of three, a branch, and one of its own."""
        self.first = self.store("put", self.input(256), "--label", "Label<of>Acme")["manifest_id"]
        self.second = self.store("put", self.input(512), "--parent-deepest")["manifest_id"]
        self.store("put", self.input(600), "--parent-deepest")
        self.third = self.store("put", self.input(768), "--parent-deepest")["manifest_id"]
        self.alone = self.store("put", self.input(300))["manifest_id"]


class Contents(Case):
    def test_an_empty_store(self):
        value, page, _ = self.report()
        self.assertEqual(value["sizes"]["durable_bytes"], 0)
        self.assertEqual(value["sizes"]["free_bytes"], value["sizes"]["quota_bytes"])
        self.assertEqual((value["tree"]["cuts"], value["findings"], value["quarantine"]["groups"]), ([], [], []))
        self.assertIsNone(value["economics"]["served_tokens"])
        self.assertIn("Nothing to report.", page.text())
        self.assertIn("No cut is shown.", page.text())
        self.assertIn("no chunk is stored", page.text())
        self.assertEqual(page.count("svg"), 3)

    def test_sizes_and_sharing_are_those_of_the_objects(self):
        self.conversation()
        value, page, _ = self.report()
        sizes = value["sizes"]
        bytes_of = lambda kind: sum(path.stat().st_size for path in self.objects(kind))
        self.assertEqual((sizes["cuts"], sizes["chunks"]), (5, len(self.objects("chunks"))))
        self.assertEqual(sizes["chunk_bytes"], bytes_of("chunks"))
        self.assertEqual(sizes["manifest_bytes"], bytes_of("manifests"))
        self.assertEqual(sizes["durable_bytes"], bytes_of("chunks") + bytes_of("manifests"))
        self.assertEqual(sizes["free_bytes"], (4 << 20) - sizes["durable_bytes"])
        self.assertEqual(sizes["token_count"], 256 + 512 + 600 + 768 + 300)
        self.assertEqual(sizes["restored_bytes"], (256 + 512 + 600 + 768 + 300) * 64)
        status = self.store("stat")
        self.assertEqual(value["sharing"]["saved_bytes"], status["shared_bytes"])
        classes = value["sharing"]["classes"]
        self.assertEqual([one["least_cuts"] for one in classes], [0, 1, 2, 3, 4, 5, 9, 17, 65])
        self.assertEqual(sum(one["chunks"] for one in classes), sizes["chunks"])
        self.assertEqual(sum(one["object_bytes"] for one in classes), sizes["chunk_bytes"])
        self.assertEqual(sum(one["saved_bytes"] for one in classes), status["shared_bytes"])
        # The first two blocks are named by the cut of 256 tokens and by the one of 300.
        self.assertEqual((classes[2]["chunks"], classes[2]["saved_bytes"]), (2, status["shared_bytes"]))
        self.assertGreater(status["shared_bytes"], 0)

    def test_the_tree_is_that_of_the_parents(self):
        self.conversation()
        value, page, _ = self.report()
        tree = value["tree"]
        self.assertEqual((tree["roots"], tree["omitted_cuts"], tree["omitted_bytes"]), (2, 0, 0))
        listed = {cut["manifest_id"]: cut for cut in self.store("ls")["cuts"]}
        self.assertEqual({cut["manifest_id"] for cut in tree["cuts"]}, set(listed))
        for cut in tree["cuts"]:
            known = listed[cut["manifest_id"]]
            for name in ("parent_manifest_id", "state", "token_count", "depth", "shared_bytes"):
                self.assertEqual(cut[name], known[name])
            self.assertEqual(cut["own_bytes"], known["manifest_bytes"] + known["chunk_bytes"])
            self.assertEqual((cut["hidden_cuts"], cut["hidden_bytes"]), (0, 0))
        # The larger tree first, its parents before their children.
        self.assertEqual([cut["token_count"] for cut in tree["cuts"]], [256, 512, 768, 600, 300])
        self.assertEqual((page.count("circle", "cut"), page.count("circle", "a"), page.count("circle", "b")), (5, 2, 3))
        self.assertIn(self.alone, page.text())

    def test_the_largest_cuts_are_shown_and_the_rest_is_summed_up(self):
        self.conversation()
        whole = self.report()[0]["tree"]["cuts"]
        total = sum(cut["own_bytes"] for cut in whole)
        for most in (0, 1, 2, 4):
            tree = self.report("--max-cuts", most, "--force")[0]["tree"]
            shown = tree["cuts"]
            self.assertEqual((len(shown), tree["omitted_cuts"], tree["roots"]), (most, 5 - most, 2))
            self.assertEqual(sum(cut["own_bytes"] for cut in shown) + tree["omitted_bytes"], total)
            ids = {cut["manifest_id"] for cut in shown}
            self.assertTrue(all(cut["parent_manifest_id"] in ids | {None} for cut in shown))
        shown, = self.report("--max-cuts", 1, "--force")[0]["tree"]["cuts"]
        self.assertEqual((shown["manifest_id"], shown["hidden_cuts"]), (self.first, 3))
        on_it = [cut["own_bytes"] for cut in whole if cut["token_count"] in (512, 600, 768)]
        self.assertEqual(shown["hidden_bytes"], sum(on_it))

    def test_many_cuts_make_a_page_of_bounded_length(self):
        self.conversation()
        now = 10 ** 18
        row = ("INSERT INTO manifests (manifest_id, parent, depth, key_epoch, semantic_id, family_id, token_count,"
               " file_bytes, restored_bytes, generation, publication, published_ns, access_ns)"
               " VALUES (?, NULL, 0, 1, ?, ?, ?, ?, 64, 1, 1, ?, ?)")
        self.catalog(*((row, struct.pack(">QQQQ", 1, 2, 3, n + 1), bytes([7]) * 32, bytes([7]) * 32, n + 1, 9000 + n, now,
                        now) for n in range(3000)))
        value, page, text = self.report()
        self.assertEqual((value["sizes"]["cuts"], len(value["tree"]["cuts"]), value["tree"]["omitted_cuts"]), (3005, 100, 2905))
        self.assertEqual(value["tree"]["roots"], 3002)
        self.assertEqual(value["sizes"]["manifest_bytes"] + value["sizes"]["chunk_bytes"], value["sizes"]["durable_bytes"])
        self.assertEqual(page.count("circle", "cut"), 100)
        self.assertLess(len(text), 150_000)

    def test_page_and_json_have_the_same_numbers(self):
        self.conversation()
        self.damage(self.objects("chunks")[0])
        self.store("fsck", "--deep", "--repair")
        self.catalog(("UPDATE counters SET value = 77 WHERE name = 'lookups_exact'",),
                     ("INSERT OR REPLACE INTO counters VALUES ('restore_bytes', 6400)",))
        value, page, _ = self.report("--prefill-tps", 900, "--wire", 500_000_000)
        known = numbers(value)
        for name, number in page.figures.items():
            self.assertEqual(number, known[name], name)
        missing = {re.sub(r"\d+", "N", name) for name in set(known) - set(page.figures)}
        self.assertEqual(missing, {"sharing.classes.N.least_cuts", "sharing.classes.N.most_cuts"})

    def test_counters_findings_and_quarantine(self):
        self.conversation()
        self.damage(self.objects("chunks")[0])
        self.store("fsck", "--deep", "--repair")
        values = {"lookups_exact": 60, "lookups_ancestor": 30, "lookups_miss": 10, "lookups_fault": 2, "restores_committed": 9,
                  "restores_refused": 1, "saves_committed": 20, "saves_refused": 4, "manifests_evicted": 15}
        self.catalog(*(("INSERT OR REPLACE INTO counters VALUES (?, ?)", *item) for item in values.items()))
        value, page, _ = self.report()
        for name, number in values.items():
            self.assertEqual(value["counters"][name], number)
        findings = {finding["name"]: (finding["level"], finding["count"]) for finding in value["findings"]}
        self.assertEqual(findings["damage_met"], ("problem", 2))
        self.assertEqual(findings["objects_quarantined"], ("problem", value["counters"]["objects_quarantined"]))
        self.assertEqual(findings["saves_refused"], ("notice", 4))
        self.assertEqual(findings["restores_refused"], ("notice", 1))
        self.assertEqual(findings["evicted_soon"], ("notice", 15))
        levels = [finding["level"] for finding in value["findings"]]
        self.assertEqual(levels, sorted(levels, reverse=True))
        group, = value["quarantine"]["groups"]
        self.assertEqual((group["kind"], group["files"], value["quarantine"]["files"]), ("damaged_object", 1, 1))
        self.assertEqual(group["reason"], self.store("stat")["quarantined_files"][0]["reason"])
        self.assertIn("90.0 %", page.text())
        self.assertEqual((page.count("li", "problem"), page.count("li", "notice")),
                         (levels.count("problem"), levels.count("notice")))

    def test_a_full_store_says_so(self):
        self.conversation()
        used = self.store("stat")["durable_bytes"]
        for quota, name in ((used * 100 // 86, "quota_pressure"), (used * 100 // 93, "quota_exhausted"), (used // 2, "quota_exhausted")):
            self.catalog(("UPDATE store SET quota_bytes = ?", quota))
            value, _, _ = self.report("--force")
            self.assertIn(name, [finding["name"] for finding in value["findings"]])
        self.assertEqual(value["sizes"]["free_bytes"], 0)

    def test_expired_and_damaged_cuts(self):
        self.conversation()
        self.catalog(("UPDATE manifests SET expires_ns = 1 WHERE token_count = 300",),
                     ("UPDATE manifests SET state = 3 WHERE token_count = 768",))
        value, page, _ = self.report()
        findings = {finding["name"]: finding["count"] for finding in value["findings"]}
        self.assertEqual((findings["cuts_expired"], findings["cuts_damaged"]), (1, 1))
        self.assertEqual((page.count("rect", "gone"), page.count("circle", "cut")), (1, 4))

    def test_economics(self):
        self.conversation()
        self.catalog(("INSERT OR REPLACE INTO counters VALUES ('restore_bytes', 640000000)",),
                     ("INSERT OR REPLACE INTO counters VALUES ('restores_committed', 12)",),
                     ("INSERT OR REPLACE INTO counters VALUES ('lookups_exact', 3)",),
                     ("INSERT OR REPLACE INTO counters VALUES ('lookups_ancestor', 2)",),
                     ("INSERT OR REPLACE INTO counters VALUES ('lookups_miss', 1)",))
        economics = self.report()[0]["economics"]
        self.assertEqual((economics["hits"], economics["misses"], economics["restores"]), (5, 1, 12))
        # 64 bytes for each token.
        self.assertEqual((economics["served_bytes"], economics["served_tokens"]), (640_000_000, 10_000_000))
        self.assertEqual([economics[name] for name in ("recompute_ms", "move_ms", "prefill_tokens_per_second")], [None] * 3)
        economics = self.report("--prefill-tps", 1000, "--wire", 320_000_000, "--force")[0]["economics"]
        self.assertEqual((economics["recompute_ms"], economics["move_ms"]), (10_000_000, 2_000))
        self.assertEqual(economics["muse_break_even_tokens"], 256)
        # At so many tokens in a second a cache is never moved faster.
        value, page, _ = self.report("--prefill-tps", 10 ** 15, "--wire", 1, "--force")
        self.assertIsNone(value["economics"]["muse_break_even_tokens"])
        self.assertIn("never", page.text())
        self.assertEqual((value["economics"]["recompute_ms"], value["economics"]["move_ms"]), (0, 640_000_000_000))

    def test_nothing_of_the_tenant_is_told(self):
        self.conversation()
        value, _, text = self.report()
        told = text + json.dumps(value)
        for secret in ("Label", "acme", self.made["tenant"], str(self.folder), "input-", (bytes([99]) * 32).hex(),
                       *(str(token) for token in self.tokens[:50])):
            self.assertNotIn(secret, told)
        self.assertIn("Label<of>Acme", json.dumps(self.store("ls")))

    def test_text_cannot_become_markup(self):
        self.conversation()
        hostile = "</title><script>alert(1)</script>\"'&<img src=http://evil.test/x>\x01\x7f\u0085\u20ac"
        self.catalog(("INSERT INTO quarantine (path_token, kind, file_bytes, created_ns, expires_ns, reason)"
                      " VALUES ('x', 5, 7, ?, ?, ?)", 2 ** 63 - 1, 2 ** 63 - 1, hostile))
        value, page, text = self.report("--title", hostile.replace("\x01", ""))
        self.assertEqual(page.count("script") + page.count("img"), 0)
        self.assertNotRegex(text, "[\x00-\x09\x0b-\x1f\x7f-\x9f]")
        self.assertIn("\u20ac", text)
        self.assertEqual(value["quarantine"]["groups"][0]["reason"], hostile)

    def test_the_page_needs_nothing_beside_it(self):
        self.conversation()
        _, page, text = self.report()
        policy, = [attributes["content"] for tag, attributes in page.elements if attributes.get("http-equiv")]
        self.assertEqual(policy, "default-src 'none'; style-src 'unsafe-inline'")
        for tag, attributes in page.elements:
            self.assertNotIn(tag, ("script", "link", "img", "iframe", "object", "a", "base", "form"))
            self.assertFalse({"src", "href", "xlink:href", "action"} & set(attributes), (tag, attributes))
            self.assertFalse([name for name in attributes if name.startswith("on")])
        self.assertNotIn("url(", text)
        self.assertNotIn("@import", text)
        self.assertNotIn("//", text)

    def test_charts_are_named_for_those_who_do_not_see_them(self):
        self.conversation()
        _, page, _ = self.report()
        ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
        self.assertEqual(len(ids), len(set(ids)))
        charts = [attributes for tag, attributes in page.elements if tag == "svg"]
        self.assertEqual([chart["id"] for chart in charts], CHARTS)
        for chart in charts:
            self.assertEqual(chart["role"], "img")
            for named in chart["aria-labelledby"].split():
                self.assertIn(named, ids)
        self.assertIn(("html", {"lang": "en"}), page.elements)


class Running(Case):
    def test_beside_a_writer_and_without_changing_anything(self):
        self.conversation()
        before = {path: path.read_bytes() for path in (self.folder / "s").rglob("*")
                  if path.is_file() and path.suffix not in (".sqlite-wal", ".sqlite-shm")}
        import fcntl
        with open(self.folder / "s/store.lock", "r+b") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.report()
        for path, content in before.items():
            self.assertEqual(path.read_bytes(), content, path)

    def test_a_page_replaces_only_when_told_to(self):
        self.conversation()
        self.write("r.html", b"mine")
        error = self.store_refused("report", "--out", "r.html", category="expectation",
                                   message="target exists with different bytes")
        self.assertEqual(error["object"], "r.html")
        self.assertEqual((self.folder / "r.html").read_bytes(), b"mine")
        self.report("--force")
        self.assertEqual((self.folder / "r.html").stat().st_mode & 0o777, 0o600)
        (self.folder / "folder").mkdir()
        (self.folder / "link").symlink_to("r.html")
        for name in ("folder", "link"):
            self.store_refused("report", "--out", name, "--force", category="expectation", message="target is no regular file")
        self.store_refused("report", "--out", "missing/r.html", category="io", code=5)
        self.report("--force", name="new.html")
        self.assertEqual([name for name in self.files(".") if name.startswith(".kvpack")], [])

    def test_refusals(self):
        self.refused("store", "report", *self.keys, "absent", "--out", "r.html", category="io", code=5)
        self.store_refused("report", "--out", "r.html", keys=["--key", "other.key", "--tenant-id", "acme"],
                           category="authentication", message="store belongs to another tenant or key")
        for arguments in (["--max-cuts", "5001", "--out", "r.html"], ["--max-cuts", "-1", "--out", "r.html"], ["--out", ""],
                          ["--prefill-tps", "0", "--out", "r.html"], ["--wire", "0", "--out", "r.html"], ["--title", "", "--out", "r.html"],
                          ["--wire", "1e9", "--out", "r.html"], ["--force"]):
            self.store_refused("report", *arguments, category="usage", code=2)
        self.assertFalse((self.folder / "r.html").exists())
        done = self.run_tool("store", "report", *self.keys, "s", code=2)
        self.assertIn(b"--out is needed, or --json", done.stderr)

    def test_without_a_page_and_as_prose(self):
        self.conversation()
        value = self.store("report")
        self.assertIsNone(value["file"])
        self.assertEqual(value["sizes"]["cuts"], 5)
        self.assertEqual([name for name in self.files(".") if name.endswith(".html")], [])
        done = self.run_tool("store", "report", *self.keys, "s", "-o", "r.html")
        self.assertRegex(done.stdout.decode(), r"^r\.html: 5 cuts, [\d.]+ KiB of 4\.0 MiB, 0 problems\n$")


class RecordingProxy:
    """Answers every request that a browser makes of anybody, and keeps its name, but for its own errands."""

    OWN_ERRANDS = re.compile(r"(http://|connect )([a-z0-9-]+\.)*(google|googleapis|gvt1)\.com[:/]")

    def __init__(self, pages):
        proxy = self
        self.requests = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                proxy.note(self.path)
                body = pages.get(self.path)
                self.send_response(200 if body else 404)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.end_headers()
                self.wfile.write(body or b"")

            def do_CONNECT(self):
                proxy.note("connect " + self.path)
                self.send_error(403)

            do_POST = do_HEAD = do_GET

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def note(self, request):
        if not self.OWN_ERRANDS.match(request):
            self.requests.append(request)

    def close(self):
        self.server.shutdown()
        self.server.server_close()


def decode_png(data):
    """Width, height and rows of (red, green, blue) bytes of an 8-bit RGB or RGBA picture."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, packed = 8, b""
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at:at + 8])
        content = data[at + 8:at + 8 + length]
        if kind == b"IHDR":
            width, height, depth, color, _, _, interlaced = struct.unpack(">IIBBBBB", content)
            assert depth == 8 and color in (2, 6) and not interlaced
        if kind == b"IDAT":
            packed += content
        at += 12 + length
    size = 3 if color == 2 else 4
    raw = zlib.decompress(packed)
    stride, rows, above = width * size, [], bytes(width * size)
    for y in range(height):
        kind, row = raw[y * (stride + 1)], bytearray(raw[y * (stride + 1) + 1:(y + 1) * (stride + 1)])
        if kind == 2:
            row = bytearray((a + b) & 255 for a, b in zip(row, above))
        elif kind:
            for i in range(stride):
                left = row[i - size] if i >= size else 0
                if kind == 1:
                    guess = left
                elif kind == 3:
                    guess = (left + above[i]) // 2
                else:
                    corner = above[i - size] if i >= size else 0
                    p = left + above[i] - corner
                    guess = min((left, above[i], corner), key=lambda value: abs(p - value))
                row[i] = (row[i] + guess) & 255
        rows.append(bytes(row))
        above = row
    return width, height, lambda x, y: tuple(rows[y][x * size:x * size + 3])


# Measures the page from inside, in a copy that may run a script.
PROBE = """
<script>
const result = {texts: [], marks: [], page: {}};
const rgb = text => text.match(/[0-9.]+/g).slice(0, 3).map(Number);
for (const chart of document.querySelectorAll("svg")) {
  const frame = chart.getBoundingClientRect();
  for (const text of chart.querySelectorAll("text")) {
    const box = text.getBoundingClientRect();
    result.texts.push({chart: chart.id, text: text.textContent, box: [box.left, box.top, box.right, box.bottom],
                       inside: box.left >= frame.left - 1 && box.right <= frame.right + 1 && box.top >= frame.top - 1 &&
                               box.bottom <= frame.bottom + 1, color: rgb(getComputedStyle(text).fill)});
  }
  for (const mark of chart.querySelectorAll("rect.a, rect.b, rect.c, rect.d, rect.e, circle.cut")) {
    const box = mark.getBoundingClientRect();
    const style = getComputedStyle(mark);
    if (style.opacity == "1" && box.width >= 6)
      result.marks.push({chart: chart.id, x: (box.left + box.right) / 2, y: (box.top + box.bottom) / 2, color: rgb(style.fill)});
  }
}
const body = getComputedStyle(document.body);
result.page = {background: rgb(body.backgroundColor), color: rgb(body.color), width: document.documentElement.scrollWidth,
               height: document.documentElement.scrollHeight};
document.body.setAttribute("data-probe", JSON.stringify(result));
</script>
"""
POLICY = re.compile(r"<meta http-equiv=\"Content-Security-Policy\"[^>]*>")


def luminance(color):
    channels = [value / 255 for value in color]
    linear = [value / 12.92 if value <= 0.03928 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a, b):
    light, dark = sorted((luminance(a), luminance(b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


class InTheBrowser(Case):
    WIDTH, HEIGHT = 1000, 3200

    @classmethod
    def setUpClass(cls):
        cls.browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
        if cls.browser is None:
            raise RuntimeError("this test looks at the page in a browser, and chromium is not installed: "
                               "`apt-get install chromium`, which `./run test` does")

    def setUp(self):
        super().setUp()
        self.conversation()
        self.catalog(*(("INSERT OR REPLACE INTO counters VALUES (?, ?)", name, value) for name, value in
                       (("lookups_exact", 60), ("lookups_ancestor", 30), ("lookups_miss", 10), ("restores_committed", 80),
                        ("restores_refused", 7), ("saves_refused", 2), ("restore_bytes", 6_400_000))))
        _, _, self.text = self.report("--title", "Store <1> & others", "--prefill-tps", 900, "--wire", 100_000)

    def browse(self, url, *arguments, pages=None, dark=False):
        """Runs the browser on one page. Everything that it asks of the network, and what it prints."""
        profile = tempfile.mkdtemp(prefix="kvpack-browser-", dir=self.folder)
        proxy = RecordingProxy(pages or {})
        try:
            done = subprocess.run(
                [self.browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
                 "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-default-apps",
                 "--disable-domain-reliability", "--disable-dev-shm-usage", "--no-pings", "--hide-scrollbars",
                 "--force-device-scale-factor=1",
                 f"--user-data-dir={profile}", f"--proxy-server=127.0.0.1:{proxy.port}", "--proxy-bypass-list=<-loopback>",
                 f"--blink-settings=preferredColorScheme={0 if dark else 1}", f"--window-size={self.WIDTH},{self.HEIGHT}",
                 "--virtual-time-budget=3000", *arguments, url],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=300, cwd=self.folder)
        finally:
            proxy.close()
        self.assertEqual(done.returncode, 0, done.stderr.decode(errors="replace"))
        return done.stdout.decode("utf-8"), proxy.requests

    def probe(self, dark=False):
        self.write("probe.html", POLICY.sub("", self.text).replace("</body>", PROBE + "</body>").encode())
        dom, _ = self.browse(f"file://{self.folder}/probe.html", "--dump-dom", dark=dark)
        body, = [attributes for tag, attributes in Page(dom).elements if tag == "body"]
        return json.loads(body["data-probe"])

    def screenshot(self, name, dark=False):
        self.browse(f"file://{self.folder}/r.html", f"--screenshot={self.folder}/{name}", dark=dark)
        return decode_png((self.folder / name).read_bytes())

    def test_what_is_drawn(self):
        dom, _ = self.browse(f"file://{self.folder}/r.html", "--dump-dom")
        page = Page(dom)
        self.assertEqual([attributes["id"] for tag, attributes in page.elements if tag == "svg"], ALL_CHARTS)
        self.assertEqual((page.count("circle", "cut"), page.count("path", "path"), page.count("li", "notice")), (5, 5, 2))
        for text in ("Store <1> & others", "Sizes", "Sharing", "Prefixes", "Hits and refusals", "Findings and quarantine",
                     "Economics", "768 tokens,", "a part of it 30", "4.0 MiB", "90.0 %"):
            self.assertIn(text, page.text())
        self.assertEqual(page.figures, Page(self.text).figures)

    def test_nothing_is_asked_of_the_network(self):
        page = "http://report.test/r.html"
        beacon = b"<img src=\"http://evil.test/beacon\"><link rel=stylesheet href=\"http://evil.test/style\"></body>"
        pages = {page: self.text.encode()}
        dom, requests = self.browse(page, "--dump-dom", pages=pages)
        self.assertIn("chart-tree", dom)
        self.assertEqual(requests, [page])
        # If there were something, it would be seen; and the policy of the page would stop it.
        allowed = {page: POLICY.sub("", self.text).encode().replace(b"</body>", beacon)}
        self.assertLess({"http://evil.test/beacon", "http://evil.test/style"}, set(self.browse(page, "--dump-dom", pages=allowed)[1]))
        stopped = {page: self.text.encode().replace(b"</body>", beacon)}
        self.assertEqual(self.browse(page, "--dump-dom", pages=stopped)[1], [page])

    def test_texts_lie_within_their_charts_and_not_on_each_other(self):
        texts = self.probe()["texts"]
        self.assertGreater(len(texts), 40)
        for text in texts:
            self.assertTrue(text["inside"], text)
        for i, one in enumerate(texts):
            for other in texts[i + 1:]:
                left, top = max(one["box"][0], other["box"][0]), max(one["box"][1], other["box"][1])
                right, bottom = min(one["box"][2], other["box"][2]), min(one["box"][3], other["box"][3])
                self.assertFalse(right - left > 1 and bottom - top > 3, (one, other))

    def test_light_and_dark_are_legible(self):
        light, dark = self.probe(), self.probe(dark=True)
        self.assertGreater(luminance(light["page"]["background"]), 0.9)
        self.assertLess(luminance(dark["page"]["background"]), 0.05)
        for seen in (light, dark):
            background = seen["page"]["background"]
            self.assertGreater(contrast(seen["page"]["color"], background), 7)
            for text in seen["texts"]:
                self.assertGreaterEqual(contrast(text["color"], background), 4.5, text)
            for mark in seen["marks"]:
                self.assertGreaterEqual(contrast(mark["color"], background), 3, mark)
            self.assertLessEqual(seen["page"]["width"], self.WIDTH)

    def test_the_picture_shows_the_charts(self):
        for dark in (False, True):
            seen = self.probe(dark=dark)
            width, height, pixel = self.screenshot("dark.png" if dark else "light.png", dark=dark)
            self.assertEqual((width, height), (self.WIDTH, self.HEIGHT))
            near = lambda a, b: all(abs(one - other) <= 3 for one, other in zip(a, b))
            self.assertTrue(near(pixel(3, 3), seen["page"]["background"]), pixel(3, 3))
            drawn = {}
            for mark in seen["marks"]:
                if mark["y"] >= height:
                    continue
                self.assertTrue(near(pixel(int(mark["x"]), int(mark["y"])), mark["color"]), (mark, dark))
                drawn.setdefault(mark["chart"], set()).add(tuple(mark["color"]))
            self.assertEqual(sorted(drawn), sorted(ALL_CHARTS))
            self.assertGreaterEqual(len(set().union(*drawn.values())), 4)
            for text in seen["texts"]:
                left, top, right, bottom = map(int, text["box"])
                if bottom >= height:
                    continue
                inked = {pixel(x, y) for x in range(left, right + 1) for y in range(top, bottom + 1)}
                self.assertGreater(len(inked), 2, text)


if __name__ == "__main__":
    cli_test.TOOL = os.path.abspath(sys.argv.pop(1))
    unittest.main()
