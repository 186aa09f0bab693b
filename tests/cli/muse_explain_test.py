#!/usr/bin/env python3
"""kvpack muse explain: each field of an identity changed alone is named, as stored and as asked.
usage: muse_explain_test.py TOOL [unittest arguments]"""
import json
import os
import sys
import unittest

import cli_test
import muse_cli_test
import store_cli_test
from cli_test import ID, MODEL

ABI = "muser-muse-glimmer-f16-logits-v2"


class Explain(store_cli_test.Case):
    def setUp(self):
        super().setUp()
        self.write("muse.gguf", muse_cli_test.Model().bytes())
        self.label = dict(self.json("muse", "identity", "muse.gguf", *muse_cli_test.REVISIONS)["identity"],
                          schema="kvpack.muse-identity.v1", layout="muse-glimmer-30b",
                          producer_engine_abi=ABI, consumer_engine_abi=ABI, qk_scale_factor="3ff0000000000000",
                          output_multiplier="3ff0000000000000", final_logit_softcap="403e000000000000",
                          post_norm_eps="3e45798ee0000000")
        self.store("init", "--quota", 1 << 30)

    def put(self, tokens, label, **model):
        description = self.input(tokens, **model)
        text = label if isinstance(label, str) else json.dumps(label, sort_keys=True, separators=(",", ":"))
        self.store("put", description, "--label", text)

    def explain(self, *more):
        value = self.json("muse", "explain", *self.keys, "s", "muse.gguf", *muse_cli_test.REVISIONS, *more)
        self.assertEqual(value["kind"], "store_muse_explain")
        return value

    def test_the_same_identity_is_equal(self):
        self.put(300, self.label)
        self.put(600, self.label)
        self.put(900, "somebody else's", model={name: ID(30 + i) for i, name in enumerate(MODEL)})
        value = self.explain()
        self.assertTrue(value["equal"])
        self.assertEqual(value["identities"], [{"cuts": 2, "deepest_tokens": 600, "equal": True, "differences": []}])
        self.assertEqual(value["other_cuts"], 1)

    def test_each_field_alone_is_named(self):
        self.put(300, self.label)
        for field in ("model_sha256", "adapter_sha256", "tokenizer_sha256", "chat_template_sha256",
                      "context_policy_sha256", "model_revision", "tokenizer_revision", "weight_precision",
                      "qk_scale_factor", "output_multiplier", "final_logit_softcap", "post_norm_eps", "layout",
                      "producer_engine_abi", "consumer_engine_abi"):
            with self.subTest(field):
                root = "s-" + field
                self.store("init", "--quota", 1 << 30, root=root)
                stored = self.label[field]
                other = "nvfp4" if field == "weight_precision" else ("0" if stored[0] != "0" else "1") + stored[1:]
                label = json.dumps(dict(self.label, **{field: other}), sort_keys=True, separators=(",", ":"))
                self.store("put", self.input(300), "--label", label, root=root)
                value = self.json("muse", "explain", *self.keys, root, "muse.gguf", *muse_cli_test.REVISIONS)
                self.assertFalse(value["equal"])
                self.assertEqual(value["identities"][0]["differences"],
                                 [{"field": field, "stored": other, "asked": stored}])

    def test_prose_says_stored_and_asked(self):
        self.put(300, dict(self.label, model_revision="m@0"))
        prose = self.run_tool("muse", "explain", *self.keys, "s", "muse.gguf", *muse_cli_test.REVISIONS).stdout.decode()
        self.assertIn("1 cuts, the deepest at 300 tokens: another identity", prose)
        self.assertIn("  model_revision\n    stored m@0\n    asked  m@1\n", prose)

    def test_mistakes_have_their_codes(self):
        self.refused("muse", "explain", *self.keys, "s", "muse.gguf", category="usage", code=2)
        self.refused("muse", "explain", *self.keys, "missing", "muse.gguf", *muse_cli_test.REVISIONS, category="io", code=5)
        self.write("empty.gguf", b"")
        self.refused("muse", "explain", *self.keys, "s", "empty.gguf", *muse_cli_test.REVISIONS, category="io", code=4)


if __name__ == "__main__":
    cli_test.TOOL = os.path.abspath(sys.argv.pop(1))
    unittest.main()
