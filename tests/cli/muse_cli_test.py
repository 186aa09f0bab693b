#!/usr/bin/env python3
"""The commands over Muse model files from outside: identities recomputed here, each step of a check, refusals.
usage: muse_cli_test.py TOOL [unittest arguments]"""
import hashlib
import os
import struct
import sys
import unittest

import cli_test

LAYERS = 52
REVISIONS = ["--model-revision", "m@1", "--tokenizer-revision", "t@1"]
U32, F32, BOOL, STRING, ARRAY, F64 = 4, 6, 7, 8, 9, 12


def string(text):
    data = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(data)) + data


class Model:
    """A model file with the KV geometry of Muse and almost no weights: all matrices lie on the same bytes."""

    def __init__(self):
        self.pairs = {"general.architecture": (STRING, string("muse-glimmer")),
                      "tokenizer.ggml.model": (STRING, string("none"))}
        for key, value in {"vocab_size": 512, "context_length": 131072, "embedding_length": 8, "block_count": LAYERS,
                           "feed_forward_length": 8, "attention.head_count": 4, "attention.head_count_kv": 2,
                           "attention.key_length": 128, "attention.value_length": 128,
                           "attention.sliding_window": 2048, "attention.sliding_window_pattern": 4,
                           "rope.dimension_count": 128}.items():
            self.u32("muse-glimmer." + key, value)
        for key, value in {"attention.layer_norm_rms_epsilon": 1e-5, "logit_scale": 1.0,
                           "rope.freq_base": 500000.0}.items():
            self.f32("muse-glimmer." + key, value)
        self.tensors = [("token_embd", [8, 512]), ("output", [8, 512]), ("output_norm", [8])]
        for layer in range(LAYERS):
            for name, shape in (("attn_norm", [8]), ("attn_q", [8, 512]), ("attn_k", [8, 256]), ("attn_v", [8, 256]),
                                ("attn_q_norm", [128]), ("attn_k_norm", [128]), ("attn_gate", [8, 512]),
                                ("attn_output", [512, 8]), ("post_attention_norm", [8]), ("ffn_norm", [8]),
                                ("ffn_gate", [8, 8]), ("ffn_up", [8, 8]), ("ffn_down", [8, 8]), ("post_ffw_norm", [8])):
                self.tensors.append((f"blk.{layer}.{name}", shape))
        self.types = {}
        self.data = struct.pack("<f", 1.0) * (8 * 512)

    def u32(self, key, value):
        self.pairs[key] = (U32, struct.pack("<I", value))

    def f32(self, key, value):
        self.pairs[key] = (F32, struct.pack("<f", value))

    def bytes(self):
        out = b"GGUF" + struct.pack("<IQQ", 3, len(self.tensors), len(self.pairs))
        for key, (kind, value) in self.pairs.items():
            out += string(key) + struct.pack("<I", kind) + value
        for name, shape in self.tensors:
            out += string(name + ".weight") + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
            out += struct.pack("<IQ", self.types.get(name, 0), 0)
        return out + bytes(-len(out) % 32) + self.data


def sha256(data):
    return hashlib.sha256(data).hexdigest()


class Case(cli_test.Case):
    def setUp(self):
        super().setUp()
        self.model = Model()

    def write_model(self, name="muse.gguf"):
        data = self.model.bytes()
        self.write(name, data)
        return data

    def identity(self, *more):
        return self.json("muse", "identity", "muse.gguf", *REVISIONS, *more)["identity"]

    def refused_identity(self, *more, category="expectation", message=None, code=4):
        return self.refused("muse", "identity", "muse.gguf", *REVISIONS, *more, category=category, message=message,
                            code=code)


class Identity(Case):
    def test_fields_come_from_the_file_and_from_the_operator(self):
        data = self.write_model()
        result = self.json("muse", "identity", "muse.gguf", *REVISIONS)
        self.assertEqual(result["identity"], {
            "model_sha256": sha256(data), "adapter_sha256": "0" * 64,
            "tokenizer_sha256": "3c95a3a397d8e672a8a58969b2922079af3b77ef129d537fb40c20fcd1aa1f53",
            "chat_template_sha256": sha256(b""),
            "context_policy_sha256": "becb2021926ba8df312f3e342f8686aec9cb262b8a1f0fd4ccf50a2a18928f2b",
            "model_revision": "m@1", "tokenizer_revision": "t@1", "weight_precision": "q4_k_xl"})
        self.assertEqual(result["kind"], "muse_identity")
        digest = hashlib.sha256(b"muser-resident-identity-v1\0")
        fields = result["identity"]
        for name in ("model", "adapter", "tokenizer", "chat_template", "context_policy"):
            digest.update(bytes.fromhex(fields[name + "_sha256"]))
        for name in ("model_revision", "tokenizer_revision", "weight_precision"):
            digest.update(string(fields[name]))
        self.assertEqual(result["resident_digest"], digest.hexdigest())
        prose = self.run_tool("muse", "identity", "muse.gguf", *REVISIONS).stdout.decode()
        self.assertEqual([line.split() for line in prose.splitlines()],
                         [[name, fields[name]] for name in
                          ("model_sha256", "adapter_sha256", "tokenizer_sha256", "chat_template_sha256",
                           "context_policy_sha256", "model_revision", "tokenizer_revision", "weight_precision")])

    def test_stored_identities_change_with_what_they_are_made_of(self):
        self.write_model()
        base = self.json("muse", "identity", "muse.gguf", *REVISIONS)["stored"]
        self.assertEqual(len(base), 9)
        other = self.json("muse", "identity", "muse.gguf", "--model-revision", "m@2", "--tokenizer-revision", "t@1")["stored"]
        self.assertEqual([k for k in base if base[k] != other[k]], ["weights_config"])
        self.write("policy.txt", b"window 1024")
        other = self.json("muse", "identity", "muse.gguf", *REVISIONS, "--context-policy", "policy.txt")["stored"]
        self.assertEqual([k for k in base if base[k] != other[k]], ["position_semantics"])
        self.model.u32("muse-glimmer.context_length", 65536)
        self.write_model()
        self.assertIsNone(self.json("muse", "identity", "muse.gguf", *REVISIONS)["stored"])

    def test_adapters_count_with_content_order_and_scale(self):
        self.write_model()
        self.write("a:b.gguf", b"first")
        self.write("c.gguf", b"second")
        wanted = hashlib.sha256(b"kvpack/muse-adapters/v1\0" + hashlib.sha256(b"first").digest() + struct.pack("<d", 0.5)
                                + hashlib.sha256(b"second").digest() + struct.pack("<d", -1)).hexdigest()
        got = self.identity("--adapter", "a:b.gguf:0.5", "--adapter", "c.gguf:-1")["adapter_sha256"]
        self.assertEqual(got, wanted)
        self.assertNotEqual(self.identity("--adapter", "c.gguf:-1", "--adapter", "a:b.gguf:0.5")["adapter_sha256"], wanted)
        for text in ("c.gguf", "c.gguf:", "c.gguf:x", "c.gguf:1x", ":1", "c.gguf: 1"):
            self.refused_identity("--adapter", text, category="usage", code=2)
        self.refused_identity("--adapter", "c.gguf:inf", message="adapter scale must be finite")
        error = self.refused_identity("--adapter", "none.gguf:1", category="io", code=5)
        self.assertEqual(error["object"], "none.gguf")

    def test_policy_template_and_tokenizer_are_digests_of_bytes(self):
        self.model.pairs["tokenizer.chat_template"] = (STRING, string("{{ messages }}"))
        self.model.u32("tokenizer.ggml.bos_token_id", 1)
        self.write_model()
        self.write("policy.txt", b"window 1024")
        fields = self.identity("--context-policy", "policy.txt")
        self.assertEqual(fields["context_policy_sha256"], sha256(b"window 1024"))
        self.assertEqual(fields["chat_template_sha256"], sha256(b"{{ messages }}"))
        self.assertEqual(fields["tokenizer_sha256"],
                         "d8ebfceb0406781afb3156f4a0bf3434d28f2684bf3e33f1e89f7f869a2fc091")
        self.refused_identity("--context-policy", "none.txt", category="io", code=5)

    def test_precision_is_the_files_or_the_operators_word(self):
        key = "muser.weight_precision"
        self.write_model()
        self.assertEqual(self.identity("--weight-precision", "bf16")["weight_precision"], "bf16")
        self.model.pairs[key] = (STRING, string("mxfp4"))
        self.write_model()
        self.refused_identity(message="muser.weight_precision is mxfp4: the weight precision must be named")
        self.assertEqual(self.identity("--weight-precision", "mxfp4")["weight_precision"], "mxfp4")
        self.model.tensors.append(("extra", [64]))
        self.model.types["extra"] = 40
        self.write_model()
        self.refused_identity("--weight-precision", "mxfp4",
                              message="muser.weight_precision must be nvfp4 for a model with NVFP4 tensors")
        self.model.pairs[key] = (STRING, string("nvfp4"))
        self.write_model()
        self.assertEqual(self.identity()["weight_precision"], "nvfp4")
        self.refused_identity("--weight-precision", "bf16",
                              message="weight precision bf16 contradicts the model file, which is nvfp4")

    def test_what_is_chosen_later_is_no_name(self):
        self.write_model()
        for text in ("auto", "Default", " ", "A U T O"):
            self.refused("muse", "identity", "muse.gguf", "--model-revision", text, "--tokenizer-revision", "t",
                         category="expectation", message="identity field model_revision must be a resolved value")
            self.refused("muse", "identity", "muse.gguf", "--model-revision", "m", "--tokenizer-revision", text,
                         category="expectation", message="identity field tokenizer_revision must be a resolved value")
            self.refused_identity("--weight-precision", text,
                                  message="identity field weight_precision must be a resolved value")
        self.refused("muse", "identity", "muse.gguf", "--model-revision", "m", category="usage", code=2)
        self.refused("muse", "identity", "muse.gguf", "--model-revision", "", "--tokenizer-revision", "t",
                     category="usage", code=2)


class Check(Case):
    def steps(self, code=0):
        value = self.json("muse", "check", "muse.gguf", code=code)
        return value, [(step["step"], step["passed"]) for step in value["steps"]]

    def stops_at(self, step, message, category="expectation"):
        self.write_model()
        order = ["structure", "configuration", "geometry", "rotation", "scalars", "family"]
        value, steps = self.steps(code=4)
        self.assertEqual(steps, [(name, True) for name in order[:order.index(step)]] + [(step, False)])
        self.assertEqual((value["ok"], value["error"]["category"], value["error"]["message"]), (False, category, message))
        done = self.run_tool("muse", "check", "muse.gguf", code=4)
        self.assertEqual(len(done.stdout.splitlines()), order.index(step))
        self.assertIn(message, done.stderr.decode())

    def test_a_model_that_fits_passes_every_step(self):
        self.write_model()
        value, steps = self.steps()
        self.assertEqual(steps, [(name, True) for name in
                                 ("structure", "configuration", "geometry", "rotation", "scalars", "family")])
        self.assertEqual(value["engine_cache_abi"], "bf7ffe1956d98ffdaa90a266d1416aacd1091337a2efcbc8e617e0a4a5fc9a40")
        self.assertEqual(value["steps"][0]["detail"], "17 metadata pairs, 731 tensors")
        prose = self.run_tool("muse", "check", "muse.gguf").stdout.decode()
        self.assertEqual([line.split()[0] for line in prose.splitlines()], [name for name, _ in steps])
        self.assertIn("39 sliding and 13 full layers", prose)
        self.assertIn(value["family_id"], prose)
        self.assertEqual(self.run_tool("muse", "check", "-q", "muse.gguf").stdout, b"")

    def test_the_family_of_the_released_vocabulary_is_the_known_one(self):
        self.model.u32("muse-glimmer.vocab_size", 202048)
        self.model.tensors = [(n, [8, 202048] if s == [8, 512] and n in ("token_embd", "output") else s)
                              for n, s in self.model.tensors]
        self.model.data = bytes(self.model.data) + bytes(8 * 202048 * 4 - len(self.model.data))
        self.write_model()
        value, _ = self.steps()
        self.assertEqual(value["family_id"], "4a57ca119f280b0bf1da77feb0234bc57726b7af51935aa40aa5167d8d4d4502")

    def test_structure(self):
        data = self.write_model()
        self.write("muse.gguf", data[:1000])
        error = self.refused("muse", "check", "muse.gguf", category="expectation",
                             message="gguf tensor count is outside the parse bounds")
        self.write("muse.gguf", data[:30000])
        error = self.refused("muse", "check", "muse.gguf", category="io", message="gguf metadata ends early")
        self.assertEqual(error["object"], "muse.gguf")
        self.write("muse.gguf", data[:-1])
        self.refused("muse", "check", "muse.gguf", category="expectation",
                     message="gguf tensor lies outside the file: token_embd.weight")
        self.write("muse.gguf", b"GGML" + data[4:])
        self.refused("muse", "check", "muse.gguf", category="expectation", message="gguf metadata has a bad magic")
        self.refused("muse", "check", "none.gguf", category="io", code=5)
        self.refused("muse", "check", ".", category="io", code=5)

    def test_configuration(self):
        self.model.pairs["general.architecture"] = (STRING, string("llama"))
        self.stops_at("configuration", 'not a muse-glimmer checkpoint: general.architecture = "llama"')
        self.model = Model()
        del self.model.tensors[100]
        self.stops_at("configuration", "missing required tensor: blk.6.post_ffw_norm.weight")

    def test_geometry(self):
        prefix = "Muser Muse geometry disagrees with the qualified kvpack layout: "
        for key, value, what in (("attention.sliding_window", 1024, "SWA window"),
                                 ("context_length", 65536, "maximum context"),
                                 ("attention.sliding_window_pattern", 2, "39-SWA/13-NoPE partition"),
                                 ("block_count", 51, "layer count")):
            self.model = Model()
            self.model.u32("muse-glimmer." + key, value)
            self.stops_at("geometry", prefix + what)

    def test_rotation(self):
        self.model.f32("muse-glimmer.rope.freq_base_swa", 10000.0)
        self.stops_at("rotation", "model disagrees with layout muse-glimmer-30b: rotary base")
        self.model = Model()
        self.model.u32("muse-glimmer.rope.dimension_count", 64)
        self.stops_at("rotation", "model disagrees with layout muse-glimmer-30b: rotary dimensions")

    def test_scalars(self):
        for value in (0.0, -1.0, float("nan")):
            self.model = Model()
            self.model.f32("muse-glimmer.logit_scale", value)
            self.stops_at("scalars", "portable prefill v2 weights scalar-math fields are outside the supported bounds")

    def test_family(self):
        self.model.u32("muse-glimmer.vocab_size", 0)
        self.model.tensors = [(n, [8, 0] if s == [8, 512] and n in ("token_embd", "output") else s)
                              for n, s in self.model.tensors]
        self.stops_at("family", "vocabulary is outside 1..1048576")

    def test_names_from_the_file_cannot_move_the_terminal(self):
        self.model.pairs["general.architecture"] = (STRING, string("a\x1b[2Jb"))
        self.write_model()
        done = self.run_tool("muse", "check", "muse.gguf", code=4)
        self.assertNotIn(b"\x1b", done.stdout + done.stderr)


if __name__ == "__main__":
    cli_test.TOOL = os.path.abspath(sys.argv.pop(1))
    unittest.main()
