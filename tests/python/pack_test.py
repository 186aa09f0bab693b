"""Packs and pack sets: written, inspected, verified, opened, refused."""
import os

import support
from support import MODEL, OTHER_MODEL, TOKEN_BYTES, StoreCase, identity, make_planes, make_tokens
import kvpack


class Sets(StoreCase):
    def setUp(self):
        super().setUp()
        self.path = os.path.join(self.folder, "session.kvset")

    def write(self, **options):
        options.setdefault("grain_tokens", 256)
        return kvpack.write_pack_set(self.path, self.keys, self.family, MODEL, make_tokens(700), make_planes(700), **options)

    def test_a_set_gives_back_what_was_saved(self):
        written = self.write(parallelism=2)
        with kvpack.PackSet(self.path, self.keys) as pack_set:
            self.assertEqual(pack_set.info, written)
            self.assertEqual(written.tenant, self.keys.tenant)
            self.assertEqual(written.file_bytes, os.path.getsize(self.path))
            self.assertEqual([record.kind for record in pack_set], ["chunk"] * 6 + ["pack"])
            cut = pack_set.cut()
        # The set is closed, and its cut goes on.
        self.assertEqual((cut.level, cut.token_count, cut.depth, cut.chunk_count, cut.total_bytes),
                         ("authenticated", 700, 0, 6, 2 * 700 * TOKEN_BYTES))
        self.assertEqual(cut.manifest_id, written.head_manifest_id)
        self.assertEqual([bytes(plane) for plane in cut.restore(parallelism=2)], make_planes(700))
        self.assertEqual(cut.verify(), "authenticated")
        memory = [bytearray(700 * TOKEN_BYTES) for _ in range(2)]
        self.assertIs(cut.restore(memory)[0], memory[0])
        self.assertEqual([bytes(plane) for plane in memory], make_planes(700))

    def test_a_cut_says_what_differs(self):
        self.write()
        cut = kvpack.PackSet(self.path, self.keys).cut()
        cut.expect(kvpack.Identity(model=MODEL, family=self.family, fields={"token_count": 700}))
        with self.refused(203, "identity field weights_config differs", kvpack.ExpectationError):
            cut.expect(kvpack.Identity(model=OTHER_MODEL))
        fields = cut.identity().fields()
        self.assertEqual(list(fields), kvpack.field_names())
        self.assertEqual(fields["token_count"], "700")
        self.assertEqual(fields["adapters"], identity(11).hex())
        self.assertEqual(kvpack.Identity().fields(), {})
        with self.refused(1):
            kvpack.Identity(fields={"colour": "1"})
        with self.refused(1):
            kvpack.Identity(fields={"topology": "1"})

    def test_verified_with_and_without_keys(self):
        self.write()
        with kvpack.PackSet(self.path, self.keys) as pack_set:
            told = []
            report = pack_set.verify(parallelism=2, progress=lambda *numbers: told.append(numbers))
            self.assertEqual((report.level, report.records, report.packs, report.chunks, report.unchecked),
                             ("authenticated", 7, 1, 6, ()))
            self.assertEqual(told[-1][0], told[-1][1])
        with kvpack.PackSet(self.path) as pack_set:
            report = pack_set.verify()
            self.assertEqual(report.level, "framing")
            self.assertTrue(report.unchecked)
            with self.refused(207, kind=kvpack.NotFoundError):
                pack_set.cut()

    def test_without_keys_a_plain_set_is_restored_only_when_that_is_said(self):
        self.write(encrypt=False)
        cut = kvpack.PackSet(self.path).cut()
        self.assertEqual(cut.level, "integrity")
        with self.refused(206):
            cut.restore()
        self.assertEqual([bytes(plane) for plane in cut.restore(integrity_only=True)], make_planes(700))

    def test_a_set_in_memory_is_borrowed(self):
        self.write()
        with open(self.path, "rb") as file:
            memory = bytearray(file.read())
        pack_set = kvpack.PackSet(memory, self.keys)
        cut = pack_set.cut()
        pack_set.close()
        with self.assertRaises(BufferError):
            memory.append(0)
        self.assertEqual(cut.verify(), "authenticated")
        cut.close()
        memory.append(0)
        with self.assertRaises(kvpack.Error):
            kvpack.PackSet(memory, self.keys)
        memory.append(0)

    def test_records_are_found_read_inspected_and_proved(self):
        info = self.write()
        pack_set = kvpack.PackSet(self.path, self.keys)
        head = pack_set.find(info.head_manifest_id)
        self.assertEqual(head, len(pack_set) - 1)
        pack = pack_set.read(head)
        for header in (kvpack.inspect_pack(pack), kvpack.verify_pack(pack, self.keys), kvpack.verify_pack(pack)):
            self.assertEqual((header.manifest_id, header.tenant, header.key_epoch, header.encrypted),
                             (info.head_manifest_id, self.keys.tenant, 1, True))
        with self.refused(109, kind=kvpack.AuthenticationError):
            kvpack.verify_pack(pack, support.make_keys(first=98))
        chunk = pack_set.read(0)
        record = pack_set.record(0)
        told = kvpack.inspect_chunk(memoryview(chunk))
        self.assertEqual((told.object_key, told.content_id, told.object_bytes, told.codec, told.encrypted),
                         (record.identity, record.relation, len(chunk), "raw", True))
        self.assertIn(info.merkle_root.hex(), pack_set.prove(0).decode())
        with self.refused(207, kind=kvpack.NotFoundError):
            pack_set.find(identity(200))
        for outside in (7, 1 << 63):
            with self.assertRaises(kvpack.Error):
                pack_set.record(outside)
        with self.refused(1, "argument index is outside"):
            pack_set.read(-1)

    def test_damage_is_refused_with_its_place(self):
        self.write()
        with open(self.path, "rb") as file:
            good = file.read()
        for damaged, code in ((good[:-1], 105), (b"x" + good[1:], 102), (b"", 105), (good[:100], 105)):
            with self.subTest(size=len(damaged)), self.assertRaises(kvpack.FormatError) as caught:
                kvpack.PackSet(damaged, self.keys)
            self.assertGreaterEqual(caught.exception.code, 100)
        with kvpack.PackSet(good, self.keys) as pack_set:
            at = pack_set.record(0).offset + 4200
        flipped = bytearray(good)
        flipped[at] ^= 1
        with kvpack.PackSet(flipped, self.keys) as pack_set:
            with self.refused(103, kind=kvpack.FormatError) as caught:
                pack_set.verify()
            self.assertEqual(caught.exception.fact("record"), "0")
            with self.assertRaises(kvpack.FormatError):
                pack_set.cut().restore()

    def test_a_failed_save_leaves_no_file(self):
        for planes in (make_planes(699), make_planes(700)[:1], [make_planes(700)[0], lambda room: 0]):
            with self.assertRaises(kvpack.Error):
                kvpack.write_pack_set(self.path, self.keys, self.family, MODEL, make_tokens(700), planes)
            self.assertEqual(os.listdir(self.folder), [])

    def test_progress_may_end_a_verification(self):
        self.write()

        def stop(done, total):
            raise KeyboardInterrupt

        pack_set = kvpack.PackSet(self.path, self.keys)
        for call in (pack_set.verify, pack_set.cut().verify, pack_set.cut().restore):
            with self.assertRaises(KeyboardInterrupt):
                call(progress=stop)

    def test_limits_and_wrong_arguments(self):
        self.write()
        pack_set = kvpack.PackSet(self.path, self.keys)
        with self.refused(204, kind=kvpack.QuotaError):
            pack_set.cut(max_memory_bytes=100)
        with self.refused(1, "argument into is 1 planes, and the cut has 2"):
            pack_set.cut().restore([bytearray(9)])
        with self.refused(206):
            pack_set.cut().restore([bytearray(9), bytearray(9)])
        with self.refused(1, "argument keys is a int, not Keys"):
            kvpack.PackSet(self.path, 3)
        with self.refused(1, "argument source is a int"):
            kvpack.PackSet(3)
        with self.refused(207, kind=kvpack.NotFoundError):
            kvpack.PackSet(self.path + "x")
        with self.refused(1, "argument expected is a int, not an Identity"):
            pack_set.cut().expect(3)


class Values(StoreCase):
    def test_keys_come_from_bytes_and_files(self):
        path = os.path.join(self.folder, "store.key")
        with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "wb") as file:
            file.write(support.SECRET)
        by_file = kvpack.Keys(path, operator="acme", active_epoch=3)
        by_bytes = kvpack.Keys(bytearray(support.SECRET), operator=b"acme", epoch_roots={2: identity(7)}, active_epoch=3)
        self.assertEqual(by_file.tenant, by_bytes.tenant)
        self.assertNotEqual(by_file.tenant, self.keys.tenant)
        os.chmod(path, 0o644)
        with self.refused(206):
            kvpack.Keys(path, operator="acme")

    def test_wrong_keys_are_refused(self):
        for code, arguments in ((1, dict(root=b"short", operator="a")), (206, dict(root=bytes(32), operator="a")),
                                (1, dict(root=3, operator="a")), (1, dict(root=identity(1), tenant=b"x")),
                                (207, dict(root="/nowhere/key", operator="a")),
                                (1, dict(root=identity(1), operator=3)),
                                (1, dict(root=identity(1), operator="a", epoch_roots={-1: identity(2)})),
                                (206, dict(root=identity(1), operator="a", minimum_epoch=9, active_epoch=3)), (1, {})):
            with self.subTest(arguments=arguments), self.refused(code):
                kvpack.Keys(**arguments)

    def test_a_family_is_in_its_own_order(self):
        self.assertEqual([state.name for state in self.family.states], ["k", "v"])
        self.assertEqual(self.family.states[0].shape, (kvpack.TOKENS, 2, 4))
        self.assertEqual(self.family.index(0, "v"), 1)
        with self.assertRaises(KeyError):
            self.family.index(1, "v")
        needing = kvpack.Family(
            [kvpack.State(0, "k", "bf16", (2, kvpack.TOKENS, 4)),
             kvpack.State(0, "index", "u32", (kvpack.TOKENS,), dependencies=[(0, "k")])],
            engine_cache_abi=identity(2).hex(), topology=identity(3), shard_map=identity(4))
        self.assertEqual([(state.name, state.dtype) for state in needing.states], [("index", "u32"), ("k", "bf16")])

    def test_wrong_families_are_refused(self):
        good = kvpack.State(0, "k", "f16", (kvpack.TOKENS, 2))
        for message, states in (("argument dtype is none of u8", [kvpack.State(0, "k", "f8", (0, 2))]),
                                ("argument dtype is none of u8", [kvpack.State(0, "k", 6, (0, 2))]),
                                ("argument states has a int, not a State", [3]),
                                ("argument layer is outside", [kvpack.State(-1, "k", "f16", (0, 2))]),
                                ("argument shape is a float", [kvpack.State(0, "k", "f16", (0, 2.0))]),
                                (None, []), (None, [good, good]),
                                (None, [kvpack.State(0, "", "f16", (0, 2))]),
                                (None, [kvpack.State(0, "k" * 256, "f16", (0, 2))]),
                                (None, [kvpack.State(0, "k", "f16", (2, 2))]),
                                (None, [kvpack.State(0, "k", "f16", (0,) * 9)]),
                                (None, [kvpack.State(0, "k", "f16", ())])):
            with self.subTest(states=states), self.assertRaises(kvpack.Error) as caught:
                kvpack.Family(states, engine_cache_abi=identity(2), topology=identity(3), shard_map=identity(4))
            if message:
                self.assertIn(message, caught.exception.message)


if __name__ == "__main__":
    support.main()
