"""The example connector against a stub of vLLM: a paged cache saved by one engine and taken up by another."""
import logging
import os
import sys
import unittest

import support
from support import StoreCase, identity, make_tokens
from store_test import flip_a_bit

try:
    import numpy
except ImportError:
    numpy = None
else:
    import vllm_stub
    torch = vllm_stub.install()
    sys.path.insert(0, str(support.PACKAGE / "examples"))
    import vllm_connector

LAYERS = ["model.layers.%d.self_attn.attn" % layer for layer in range(2)]
BLOCK, HEADS, HEAD_SIZE, BLOCKS = 16, 2, 4, 100


def value(token, layer, head, column):
    """What a token's cache holds, wherever it lies."""
    return (token * 31 + layer * 7 + head * 3 + column) % 60000


class Engine:
    """One engine with its two connectors, and a paged cache per layer."""

    def __init__(self, config, spec):
        caches = vllm_stub.cache_config(spec, LAYERS)
        self.scheduler = vllm_connector.KvpackConnector(config, vllm_stub.KVConnectorRole.SCHEDULER, caches)
        self.worker = vllm_connector.KvpackConnector(config, vllm_stub.KVConnectorRole.WORKER, caches)
        self.layers = {name: vllm_stub.Tensor(numpy.zeros((BLOCKS, HEADS, BLOCK, 2 * HEAD_SIZE), numpy.uint16),
                                              spec.dtype) for name in LAYERS}
        self.worker.register_kv_caches(self.layers)
        self.compute_blocks = []

    def find(self, request_id, tokens, computed=0, **more):
        """What the scheduler does with a new request; gives how many tokens are taken from outside."""
        request = vllm_stub.request(request_id, tokens, **more)
        found, later = self.scheduler.get_num_new_matched_tokens(request, computed)
        assert later is False
        self.scheduler.update_state_after_alloc(request, None, found)
        return found

    def run(self, output, compute):
        """One step: loads, computes, saves; gives the blocks that were not loaded."""
        self.worker.bind_connector_metadata(self.scheduler.build_connector_meta(output))
        self.worker.start_load_kv(None)
        for name in LAYERS:
            self.worker.wait_for_layer_load(name)
            self.worker.save_kv_layer(name, self.layers[name], None)
        for tokens, blocks, start, end in compute:
            for layer, name in enumerate(LAYERS):
                for at in range(start, end):
                    for head in range(HEADS):
                        for column in range(2 * HEAD_SIZE):
                            self.layers[name].array[blocks[at // BLOCK], head, at % BLOCK, column] = value(
                                tokens[at], layer, head, column)
        self.worker.wait_for_save()
        self.worker.clear_connector_metadata()
        return self.worker.get_block_ids_with_load_errors()

    def holds(self, tokens, blocks, start, end):
        """Whether the cache of these tokens lies in these blocks."""
        return all(self.layers[name].array[blocks[at // BLOCK], head, at % BLOCK, column] == value(
            tokens[at], layer, head, column)
            for layer, name in enumerate(LAYERS) for at in range(start, end)
            for head in range(HEADS) for column in range(2 * HEAD_SIZE))

    def prefill(self, request_id, tokens, blocks):
        """A prompt that is computed in one step."""
        found = self.find(request_id, tokens)
        failed = self.run(vllm_stub.step(new=[vllm_stub.new_request(request_id, tokens, blocks, found)],
                                         scheduled={request_id: len(tokens) - found}),
                          [(tokens, blocks, found, len(tokens))])
        return found, failed

    def close(self):
        self.scheduler.shutdown()
        self.worker.shutdown()


@unittest.skipUnless(numpy, "left out: no numpy")
class Connector(StoreCase):
    def setUp(self):
        super().setUp()
        key = os.path.join(self.folder, "store.key")
        with open(os.open(key, os.O_CREAT | os.O_WRONLY, 0o600), "wb") as file:
            file.write(support.SECRET)
        self.options = dict(kvpack_store=self.root, kvpack_key=key, kvpack_operator="acme", kvpack_model={
            name: identity(10 + number).hex() for number, name in enumerate((
                "weights_config", "adapters", "tokenizer_template", "position_semantics", "qualified_math"))})
        self.spec = vllm_stub.FullAttentionSpec(BLOCK, HEADS, HEAD_SIZE, HEAD_SIZE, torch.bfloat16)
        logging.disable(logging.WARNING)
        self.addCleanup(logging.disable, logging.NOTSET)

    def engine(self, **options):
        engine = Engine(vllm_stub.vllm_config(**dict(self.options, **options)), self.spec)
        self.addCleanup(engine.close)
        return engine

    def test_a_longer_prompt_goes_on_from_what_another_engine_saved(self):
        tokens = make_tokens(700)
        first = self.engine()
        blocks = list(range(50, 94))
        self.assertEqual(first.prefill("a", tokens, blocks), (0, set()))
        first.close()
        second = self.engine()
        longer = tokens[:600] + [1, 2, 3]
        other = list(range(3, 41))[::-1]
        self.assertEqual(second.find("b", longer), 512)
        failed = second.run(vllm_stub.step(new=[vllm_stub.new_request("b", longer, other, 512)], scheduled={"b": 91}), [])
        self.assertEqual(failed, set())
        self.assertTrue(second.holds(longer, other, 0, 512))
        self.assertFalse(second.holds(longer, other, 512, 513))

    def test_what_the_engine_has_itself_is_not_loaded_again(self):
        tokens = make_tokens(700)
        engine = self.engine()
        engine.prefill("a", tokens, list(range(44)))
        blocks = list(range(50, 94))
        self.assertEqual(engine.find("b", tokens, computed=256), 256)
        engine.run(vllm_stub.step(new=[vllm_stub.new_request("b", tokens, blocks, 512)], scheduled={"b": 188}), [])
        self.assertFalse(engine.layers[LAYERS[0]].array[blocks[:16]].any())
        self.assertTrue(engine.holds(tokens, blocks, 256, 512))
        self.assertEqual(engine.find("c", tokens, computed=512), 0)

    def test_the_last_token_is_always_left_to_be_computed(self):
        tokens = make_tokens(512)
        engine = self.engine()
        engine.prefill("a", tokens, list(range(32)))
        self.assertEqual(engine.find("b", tokens), 256)
        self.assertEqual(engine.find("c", tokens + [1]), 512)
        self.assertEqual(engine.find("d", make_tokens(256)), 0)
        self.assertEqual(engine.find("e", []), 0)

    def test_a_prompt_that_is_computed_in_pieces_is_saved_with_its_last_one(self):
        tokens = make_tokens(700)
        blocks = list(range(44))
        engine = self.engine()
        engine.find("a", tokens)
        engine.run(vllm_stub.step(new=[vllm_stub.new_request("a", tokens, blocks[:20], 0)], scheduled={"a": 320}),
                   [(tokens, blocks, 0, 320)])
        self.assertEqual(engine.find("b", tokens), 0)
        engine.run(vllm_stub.step(cached=[("a", blocks[20:], 320)], scheduled={"a": 380}), [(tokens, blocks, 320, 700)])
        self.assertEqual(engine.find("b", tokens), 512)
        engine.run(vllm_stub.step(cached=[("a", None, 700)], scheduled={"a": 1}), [])
        self.assertEqual(engine.worker._store.stats().saves_attempted, 1)

    def test_a_request_that_was_preempted_has_other_blocks(self):
        tokens = make_tokens(700)
        first, blocks = list(range(20)), list(range(40, 84))
        engine = self.engine()
        engine.find("a", tokens)
        engine.run(vllm_stub.step(new=[vllm_stub.new_request("a", tokens, first, 0)], scheduled={"a": 320}), [])
        engine.run(vllm_stub.step(cached=[("a", blocks, 0)], resumed=["a"], scheduled={"a": 700}),
                   [(tokens, blocks, 0, 700)])
        again = list(range(50))
        self.assertEqual(engine.find("b", tokens), 512)
        engine.run(vllm_stub.step(new=[vllm_stub.new_request("b", tokens, again, 512)], scheduled={"b": 188}), [])
        self.assertTrue(engine.holds(tokens, again, 0, 512))
        engine.run(vllm_stub.step(finished=["a", "b"]), [])
        self.assertEqual(engine.scheduler._prompts, {})

    def test_what_is_damaged_is_computed_again(self):
        tokens = make_tokens(700)
        engine = self.engine()
        engine.prefill("a", tokens, list(range(44)))
        blocks = list(range(50, 94))
        self.assertEqual(engine.find("b", tokens), 512)
        flip_a_bit(self.root)
        failed = engine.run(vllm_stub.step(new=[vllm_stub.new_request("b", tokens, blocks, 512)], scheduled={"b": 188}), [])
        self.assertIn(failed, (set(blocks[:32]), set(blocks[16:32])))
        self.assertTrue(engine.holds(tokens, blocks, 0, 512 - BLOCK * len(failed)))
        self.assertEqual(engine.worker.get_block_ids_with_load_errors(), set())

    def test_a_save_that_fails_ends_nothing(self):
        engine = self.engine()
        engine.worker._store.close()
        self.assertEqual(engine.prefill("a", make_tokens(700), list(range(44))), (0, set()))

    def test_requests_that_are_more_than_their_tokens_are_left_alone(self):
        tokens = make_tokens(700)
        engine = self.engine()
        engine.prefill("a", tokens, list(range(44)))
        for more in (dict(mm_features=["image"]), dict(lora_request=object()), dict(cache_salt="salt"),
                     dict(prompt_embeds=numpy.zeros(3))):
            before = engine.worker._store.stats().saves_attempted
            self.assertEqual(engine.find("b", tokens, **more), 0)
            other = [5] + tokens
            self.assertEqual(engine.find("c", other, **more), 0)
            engine.run(vllm_stub.step(new=[vllm_stub.new_request("c", other, list(range(44)), 0)], scheduled={"c": 701}),
                       [])
            self.assertEqual(engine.worker._store.stats().saves_attempted, before)

    def test_another_model_finds_nothing(self):
        first = self.engine()
        first.prefill("a", make_tokens(700), list(range(44)))
        first.close()
        other = dict(self.options["kvpack_model"], adapters=identity(99).hex())
        self.assertEqual(self.engine(kvpack_model=other).find("b", make_tokens(700)), 0)

    def test_caches_that_it_does_not_know_are_refused(self):
        role = vllm_stub.KVConnectorRole.SCHEDULER
        plain = dict(block_size=BLOCK, num_kv_heads=HEADS, head_size=HEAD_SIZE, head_size_v=HEAD_SIZE, dtype=torch.bfloat16)

        def make(spec=self.spec, world_size=1, groups=1):
            config = vllm_stub.cache_config(spec, LAYERS)
            config.kv_cache_groups *= groups
            return vllm_connector.KvpackConnector(vllm_stub.vllm_config(world_size, **self.options), role, config)

        for message, arguments in (
                ("one worker", dict(world_size=2)), ("one kind", dict(groups=2)),
                ("plain caches", dict(spec=vllm_stub.FullAttentionSpec(**dict(plain, kv_quant_mode=1)))),
                ("plain caches", dict(spec=vllm_stub.FullAttentionSpec(**dict(plain, sliding_window=4096)))),
                ("divides 256", dict(spec=vllm_stub.FullAttentionSpec(**dict(plain, block_size=48)))),
                ("torch.int8", dict(spec=vllm_stub.FullAttentionSpec(**dict(plain, dtype=torch.int8))))):
            with self.subTest(message=message), self.assertRaisesRegex(ValueError, message):
                make(**arguments)
        for missing in ("kvpack_store", "kvpack_key", "kvpack_operator", "kvpack_model"):
            options = dict(self.options, **{missing: None})
            with self.assertRaisesRegex(ValueError, "needs %s in" % missing):
                vllm_connector.KvpackConnector(vllm_stub.vllm_config(**options), role,
                                               vllm_stub.cache_config(self.spec, LAYERS))
        wrong = {name: vllm_stub.Tensor(numpy.zeros((2, BLOCKS, BLOCK, HEADS, HEAD_SIZE), numpy.uint16), torch.bfloat16)
                 for name in LAYERS}
        with self.assertRaisesRegex(ValueError, "does not know the layout"):
            make().register_kv_caches(wrong)


if __name__ == "__main__":
    support.main()
