"""A cache in two calls: blobs and planes, saved and restored by their tokens."""
import hashlib
import os
from unittest import mock

import support
from support import HEAD_DIM, HEADS, MODEL, TOKEN_BYTES, StoreCase, identity, make_planes, make_tokens
from store_test import chunks_of, flip_a_bit
import kvpack
from kvpack import _callbacks

BLOB = bytes(range(251)) * 2000


class CacheCase(StoreCase):
    def setUp(self):
        super().setUp()
        self.directory = os.path.join(self.folder, "cache")

    def open(self, **options):
        options.setdefault("create", not options.get("read_only", False))
        cache = kvpack.Cache(self.directory, options.pop("model", MODEL), engine_cache_abi=identity(2),
                             topology=identity(3), shard_map=identity(4), **options)
        self.addCleanup(cache.close)
        return cache

    def states(self):
        return [kvpack.State(0, name, "f16", (kvpack.TOKENS, HEADS, HEAD_DIM)) for name in ("v", "k")]


class Blobs(CacheCase):
    def test_a_blob_comes_back(self):
        with self.open() as cache:
            saved = cache.save(make_tokens(512), BLOB)
            self.assertEqual((saved.replayed, saved.token_count, saved.cut_count), (False, 512, 1))
            self.assertTrue(cache.save(make_tokens(512), bytearray(BLOB)).replayed)
        with self.open(create=False) as cache:
            restored = cache.restore(make_tokens(700))
            self.assertTrue(restored)
            self.assertEqual((restored.token_count, restored.reusable_tokens, restored.suffix_tokens), (512, 512, 188))
            self.assertEqual(bytes(restored.blob), BLOB)
            self.assertEqual((restored.planes, restored.logits, restored.manifest_id), ((), None, saved.manifest_id))
            # The whole prompt, without logits: its last token is to be computed again.
            self.assertEqual(cache.restore(make_tokens(512)).reusable_tokens, 511)

    def test_a_miss_is_no_error(self):
        cache = self.open()
        restored = cache.restore(make_tokens(512))
        self.assertFalse(restored)
        self.assertEqual((restored.blob, restored.suffix_tokens, restored.manifest_id), (None, 512, None))
        cache.save(make_tokens(512), BLOB)
        cache.close()
        other = kvpack.Model(*[identity(byte) for byte in (20, 11, 12, 13, 14)])
        self.assertFalse(self.open(model=other).restore(make_tokens(512)))

    def test_logits_come_with_the_last_token(self):
        cache = self.open(with_logits=True)
        logits = bytes(range(200))
        cache.save(make_tokens(512), BLOB, logits=logits)
        restored = cache.restore(make_tokens(512))
        self.assertEqual((bytes(restored.blob), bytes(restored.logits)), (BLOB, logits))
        self.assertEqual((restored.reusable_tokens, restored.suffix_tokens), (512, 0))

    def test_memory_is_lent_by_whoever_wants_to(self):
        cache = self.open(with_logits=True)
        cache.save(make_tokens(512), BLOB, logits=b"logits")
        mine = {0: bytearray(len(BLOB)), kvpack.LOGITS: bytearray(6)}
        asked = []

        def lend(part, size):
            asked.append((part, size))
            return mine[part]

        restored = cache.restore(make_tokens(512), lend=lend)
        self.assertEqual(sorted(asked), [(0, len(BLOB)), (kvpack.LOGITS, 6)])
        self.assertIs(restored.blob, mine[0])
        self.assertEqual((bytes(mine[0]), bytes(mine[kvpack.LOGITS])), (BLOB, b"logits"))
        mine[0].append(0)  # Nobody holds it any more.
        self.assertEqual(bytes(cache.restore(make_tokens(512), lend=lambda part, size: None).blob), BLOB)

    def test_what_was_not_lent_is_copied(self):
        cache = self.open()
        cache.save(make_tokens(512), BLOB)
        made = _callbacks.Callbacks._guarded

        def guarded(callbacks, prototype, target, failure, outranks=False):
            return made(callbacks, prototype, lambda *_: None, failure, outranks)

        with mock.patch.object(_callbacks.Callbacks, "_guarded", guarded):
            restored = cache.restore(make_tokens(512))
        self.assertEqual(bytes(restored.blob), BLOB)

    def test_the_log_is_told_behind_each_call(self):
        lines = []
        cache = self.open(log=lambda level, line: lines.append((level, line)))
        cache.save(make_tokens(512), BLOB)
        cache.restore(make_tokens(512))
        self.assertEqual([level for level, _ in lines], ["info"] * len(lines))
        self.assertIn("saved: 512 tokens", lines[-2][1])
        self.assertIn("restored: 512 of 512 tokens", lines[-1][1])
        flip_a_bit(self.directory)
        self.assertFalse(cache.restore(make_tokens(512)))
        self.assertIn("warning", [level for level, _ in lines])
        with self.assertRaises(kvpack.Error):
            cache.save([], BLOB)
        self.assertEqual(lines[-1][0], "warning")

    def test_what_the_log_raises_comes_out_of_the_call(self):
        class Told(Exception):
            pass

        def tell(level, line):
            raise Told(line)

        cache = self.open()
        cache.close()
        with self.assertRaises(Told):
            cache = self.open(log=tell)
            cache.save(make_tokens(512), BLOB)


class Planes(CacheCase):
    def test_planes_answer_longer_prompts(self):
        cache = self.open(states=self.states(), quota_bytes=1 << 30)
        planes = make_planes(700)
        saved = cache.save(make_tokens(700), planes, checkpoint_stride_tokens=256)
        self.assertEqual(saved.token_count, 700)
        self.assertEqual(saved.cut_count, 3)
        restored = cache.restore(make_tokens(600) + [1])
        self.assertEqual((restored.token_count, restored.token_starts), (512, (0, 0)))
        self.assertEqual([bytes(plane) for plane in restored.planes], [plane[:512 * TOKEN_BYTES] for plane in planes])
        mine = [bytearray(512 * TOKEN_BYTES) for _ in range(2)]
        restored = cache.restore(make_tokens(600), lend=lambda part, size: mine[part])
        self.assertIs(restored.planes[1], mine[1])
        self.assertEqual(bytes(mine[0]), planes[0][:512 * TOKEN_BYTES])

    def test_damage_gives_the_next_shallower_cut(self):
        cache = self.open(states=self.states())
        cache.save(make_tokens(512), make_planes(512))
        spared = chunks_of(self.directory)
        cache.save(make_tokens(700), make_planes(700))
        flip_a_bit(self.directory, spared)
        restored = cache.restore(make_tokens(700))
        self.assertEqual((restored.token_count, restored.fault_count), (512, 1))
        self.assertEqual([bytes(plane) for plane in restored.planes], make_planes(512))

    def test_readers_of_another_process_and_its_store(self):
        cache = self.open(states=self.states())
        cache.save(make_tokens(512), make_planes(512))
        reader = self.open(states=self.states(), read_only=True)
        self.assertTrue(reader.restore(make_tokens(512)))
        with self.refused(206):
            reader.save(make_tokens(512), make_planes(512))
        with cache.store() as store:
            self.assertGreater(store.stats().manifests, 0)
            with self.refused(5, "the store is busy with the call in which this callback runs"):
                cache.restore(make_tokens(512), lend=lambda part, size: store.stats())
        cache.close()
        with self.refused(4, "the store is closed"):
            store.stats()

    def test_other_inputs_are_part_of_what_is_found(self):
        cache = self.open(states=self.states())
        image = [(identity(50), identity(51))]
        cache.save(make_tokens(512), make_planes(512), auxiliary=image)
        self.assertFalse(cache.restore(make_tokens(512)))
        self.assertTrue(cache.restore(make_tokens(512), auxiliary=image))


class Refusals(CacheCase):
    def test_wrong_arguments_are_named(self):
        cache = self.open(states=self.states())
        for message, call in (
                ("argument planes are 1, and there are 2 states", lambda: cache.save([1], make_planes(1)[:1])),
                ("argument tokens has an element", lambda: cache.save([-1], make_planes(1))),
                ("argument label is a int", lambda: cache.save([1], make_planes(1), label=3)),
                ("argument logits is a int", lambda: cache.save([1], make_planes(1), logits=3)),
                ("argument lend cannot be called", lambda: cache.restore([1], lend=3)),
                ("argument progress cannot be called", lambda: cache.restore([1], progress=3)),
                ("argument cancel is a int, not a Cancel", lambda: cache.restore([1], cancel=3)),
                ("argument log cannot be called", lambda: self.open(log=3)),
                ("argument keys is a int, not Keys", lambda: self.open(keys=3)),
                ("argument create must be 0 where read_only", lambda: self.open(create=True, read_only=True)),
                ("argument states has a int", lambda: self.open(states=[3])),
                ("argument model is a int", lambda: self.open(model=3))):
            with self.subTest(message=message), self.refused(1, message):
                call()
        with self.refused(1, "argument state is a int"):
            kvpack.Cache(os.path.join(self.folder, "other"), MODEL, engine_cache_abi=identity(2), topology=identity(3),
                         shard_map=identity(4), create=True).save([1], 3)

    def test_one_writes(self):
        self.open()
        with self.refused(208, kind=kvpack.BusyError):
            self.open()
        with self.refused(207, kind=kvpack.NotFoundError):
            self.directory += "x"
            self.open(create=False)

    def test_what_a_callback_raises_comes_out(self):
        cache = self.open(states=self.states())
        cache.save(make_tokens(512), make_planes(512))

        def fail(*_):
            raise KeyboardInterrupt

        for options in (dict(lend=fail), dict(progress=fail)):
            with self.assertRaises(KeyboardInterrupt):
                cache.restore(make_tokens(512), **options)
        with self.refused(1, "lends 1 bytes, and part . takes"):
            cache.restore(make_tokens(512), lend=lambda part, size: bytearray(1))
        memory = bytearray(512 * TOKEN_BYTES)
        with self.refused(1, "lends part . memory that part . has"):
            cache.restore(make_tokens(512), lend=lambda part, size: memory)
        with kvpack.Cancel() as cancel, self.refused(209, kind=kvpack.CancelledError):
            cancel.request()
            cache.restore(make_tokens(512), cancel=cancel)
        self.assertTrue(cache.restore(make_tokens(512)))

    def test_a_closed_cache_refuses_every_call(self):
        cache = self.open()
        cache.close()
        for call in (lambda: cache.save([1], BLOB), lambda: cache.restore([1]), cache.store):
            with self.refused(4, "the cache is closed"):
                call()


class Digests(StoreCase):
    def test_identities_are_made_of_what_they_stand_for(self):
        self.assertEqual(kvpack.factor_digest("weights"), hashlib.sha256(b"weights").digest())
        for unresolved in ("", "auto", b"Default"):
            with self.refused(203, kind=kvpack.ExpectationError):
                kvpack.factor_digest(unresolved)
        with self.refused(1, "argument value is a int"):
            kvpack.factor_digest(3)

    def test_and_of_files(self):
        path = os.path.join(self.folder, "weights")
        with open(path, "wb") as file:
            file.write(BLOB)
        told = []
        self.assertEqual(kvpack.factor_digest_file(path, lambda *numbers: told.append(numbers)),
                         hashlib.sha256(BLOB).digest())
        self.assertEqual(told[-1], (len(BLOB), len(BLOB)))

        def stop(done, total):
            raise KeyboardInterrupt

        with self.assertRaises(KeyboardInterrupt):
            kvpack.factor_digest_file(path, stop)
        with self.refused(207, kind=kvpack.NotFoundError):
            kvpack.factor_digest_file(path + "x")


if __name__ == "__main__":
    support.main()
