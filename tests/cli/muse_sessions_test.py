#!/usr/bin/env python3
"""kvpack muse sessions: the Muse cuts of a store and what is said of each.
usage: muse_sessions_test.py TOOL [unittest arguments]"""
import json
import os
import sys
import time
import unittest

import cli_test
import store_cli_test

ABI = "muser-muse-glimmer-f16-logits-v2"
VOCABULARY = 128
LAYERS = 52
IDENTITY = {"model_sha256": "01" * 32, "adapter_sha256": "00" * 32, "tokenizer_sha256": "02" * 32,
            "chat_template_sha256": "03" * 32, "context_policy_sha256": "04" * 32, "model_revision": "m@1",
            "tokenizer_revision": "t@1", "weight_precision": "nvfp4"}


def kv_bytes(tokens):
    return 13312 * tokens + 39936 * min(tokens, 2048)


class Sessions(store_cli_test.Case):
    def setUp(self):
        super().setUp()
        self.store("init", "--quota", 1 << 30)

    def label(self, **changes):
        fields = dict(IDENTITY, schema="kvpack.muse-identity.v1", layout="muse-glimmer-30b", producer_engine_abi=ABI,
                      consumer_engine_abi=ABI, qk_scale_factor="3ff0000000000000",
                      output_multiplier="3ff0000000000000", final_logit_softcap="403e000000000000",
                      post_norm_eps="3e45798ee0000000")
        fields.update(changes)
        return json.dumps(fields, sort_keys=True, separators=(",", ":"))

    def put(self, tokens, label, logits=True, *more):
        """Saves a cut with the planes of a Muse session."""
        self.write(f"input-{tokens}/plane.bin", bytes(range(256)) * 2 * tokens)
        self.write(f"input-{tokens}/logits.bin", bytes(4 * VOCABULARY))
        states = [{"layer": layer, "name": "attn." + name, "dtype": "f16", "shape": [tokens, 2, 128],
                   "file": "plane.bin"} for layer in range(LAYERS) for name in "kv"]
        if logits:
            states.append({"layer": LAYERS, "name": "decoder.last_logits", "dtype": "f32", "shape": [1, VOCABULARY],
                           "token_axis_rule": "tail-window", "token_start": tokens - 1, "file": "logits.bin"})
        return self.store("put", self.input(tokens, states=states), "--label", label, *more)

    def sessions(self):
        value = self.json("muse", "sessions", *self.keys, "s")
        self.assertEqual((value["ok"], value["kind"]), (True, "store_muse_sessions"))
        return value

    def test_an_empty_store_has_none(self):
        value = self.sessions()
        self.assertEqual((value["sessions"], value["other_cuts"]), ([], 0))
        self.assertEqual(self.run_tool("muse", "sessions", *self.keys, "s").stdout.strip(), b"")

    def test_each_session_says_under_what_it_was_saved(self):
        before = time.time_ns()
        self.put(300, self.label())
        self.put(40, self.label(model_revision="m@2", weight_precision="q4_k_xl"), logits=False)
        self.store("put", self.input(600), "--label", "somebody else's")
        self.store("put", self.input(700))
        value = self.sessions()
        self.assertEqual(value["other_cuts"], 2)
        exact, bare = value["sessions"]
        self.assertEqual(exact["identity"], IDENTITY)
        self.assertEqual(exact["layout"], "muse-glimmer-30b")
        self.assertEqual((exact["token_count"], exact["exact"], exact["logits_bytes"]), (300, True, 4 * VOCABULARY))
        self.assertEqual(exact["restored_bytes"], kv_bytes(300) + 4 * VOCABULARY)
        self.assertEqual(bare["identity"], dict(IDENTITY, model_revision="m@2", weight_precision="q4_k_xl"))
        self.assertEqual((bare["token_count"], bare["exact"], bare["logits_bytes"]), (40, False, 0))
        self.assertEqual(bare["restored_bytes"], kv_bytes(40))
        listed = {cut["manifest_id"]: cut for cut in self.store("ls")["cuts"]}
        for session in value["sessions"]:
            cut = listed[session["manifest_id"]]
            self.assertEqual(session["stored_bytes"], cut["manifest_bytes"] + cut["chunk_bytes"])
            for name in ("shared_bytes", "published_ns", "access_ns", "expires_ns", "state", "key_epoch"):
                self.assertEqual(session[name], cut[name])
            self.assertLessEqual(session["age_ms"], (time.time_ns() - before) // 1_000_000 + 1)
            self.assertEqual(session["state"], "available")

    def test_lines_for_people(self):
        self.put(300, self.label(model_revision="m\u001b[2J@1"))
        self.put(40, self.label(), logits=False)
        ids = [session["manifest_id"] for session in self.sessions()["sessions"]]
        done = self.run_tool("muse", "sessions", *self.keys, "s")
        self.assertNotIn(b"\x1b", done.stdout)
        first, second = [line.split() for line in done.stdout.decode().splitlines()]
        self.assertEqual([first[0], first[1], first[2], first[3]], [ids[0], "300", "tokens", "exact"])
        self.assertEqual([second[0], second[1], second[3], second[4]], [ids[1], "40", "KV", "only"])
        self.assertEqual(second[-3:], ["m@1", "t@1", "nvfp4"])

    def test_no_token_is_shown(self):
        self.put(300, self.label())
        done = self.run_tool("muse", "sessions", *self.keys, "s", "--json")
        for token in self.tokens[:300]:
            self.assertNotIn(b":%d" % token, done.stdout)
            self.assertNotIn(b",%d" % token, done.stdout)

    def test_a_label_that_is_almost_one_is_another_cut(self):
        self.put(40, self.label(schema="kvpack.muse-identity.v2"))
        self.assertEqual((self.sessions()["sessions"], self.sessions()["other_cuts"]), ([], 1))

    def test_the_store_is_opened_for_reading(self):
        self.put(40, self.label())
        before = self.everything()
        self.sessions()
        self.assertEqual(self.everything(), before)
        other = ["--key", "other.key", "--tenant-id", "acme"]
        self.refused("muse", "sessions", *other, "s", category="authentication")
        self.refused("muse", "sessions", *self.keys, "none", category="io", code=5)
        self.refused("muse", "sessions", "s", category="usage", code=2)
        self.refused("muse", "sessions", *self.keys, category="usage", code=2)


if __name__ == "__main__":
    cli_test.TOOL = os.path.abspath(sys.argv.pop(1))
    unittest.main()
