"""Every argument of every call replaced by what does not belong there: refused with code, category and text, or served."""
import ctypes
import os

import support
from support import MODEL, StoreCase, identity, make_family, make_keys, make_planes, make_tokens
import kvpack

# With what is easily mistaken: no value, wrong kinds, numbers that C would cut off, texts that C would end early.
ODD = [None, True, -1, 0, 1 << 32, 1 << 64, 1.5, float("nan"), "", "a\0b", "\ud800", "text", b"", b"\0" * 32, bytearray(3),
       memoryview(b"abcd")[::2], [], [None], [1, 2, 3], {}, {"a": 1}, object(), int, len, ctypes.c_void_p(1)]


class Everything(StoreCase):
    maxDiff = None

    def sweep(self, call, **arguments):
        """One argument at a time; what is served is right by its own tests."""
        refused, problems = 0, []
        for name in arguments:
            for odd in ODD + self.closed:
                given = dict(arguments, **{name: odd})
                try:
                    outcome = call(**given)
                except kvpack.Error as error:
                    self.assertTrue(error.code > 0 and error.category and error.message, (name, odd))
                    refused += 1
                except BaseException as problem:
                    # What can be called was called, and what it raised has come out.
                    if odd not in (int, len):
                        problems.append("%s=%.40r: %s: %s" % (name, odd, type(problem).__name__, problem))
                else:
                    if isinstance(outcome, kvpack.Store):
                        outcome.close()
        self.assertEqual(problems, [])
        self.assertGreater(refused, len(arguments))

    def setUp(self):
        super().setUp()
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.folder)
        self.closed = [make_keys(), make_family(), kvpack.Identity(), kvpack.Cancel()]
        for handle in self.closed:
            handle.close()

    def test_making_handles(self):
        self.sweep(kvpack.Keys, root=support.SECRET, operator=None, tenant=identity(1), epoch_roots=None, minimum_epoch=0,
                   active_epoch=1, only_epoch_roots=False)
        self.sweep(kvpack.Family, states=[kvpack.State(0, "k", "f16", (kvpack.TOKENS, 2))], engine_cache_abi=identity(2),
                   topology=identity(3), shard_map=identity(4), mode="native", page_size_tokens=0)
        self.sweep(lambda **state: kvpack.Family([kvpack.State(**state)], engine_cache_abi=identity(2),
                                                 topology=identity(3), shard_map=identity(4)),
                   layer=0, name="k", dtype="f16", shape=(kvpack.TOKENS, 2), axis_rule="direct", codec="raw",
                   dependencies=())
        self.sweep(kvpack.Identity, model=MODEL, family=self.family, fields={"token_count": 3})
        self.sweep(kvpack.factor_digest, value="text")
        self.sweep(kvpack.factor_digest_file, file=__file__, progress=None)

    def test_stores(self):
        # Some of what it is opened with stays, such as a later epoch.
        kvpack.Store.create(self.root + "2", self.keys).close()
        self.sweep(kvpack.Store.open, root=self.root + "2", keys=self.keys, active_epoch=0, minimum_epoch=0, catalog_epoch=0,
                   quota_bytes=0, staging_quota_bytes=0, endurance_bytes_per_five_minutes=None, watermarks=None,
                   max_shadow_bytes=0, max_scratch_bytes=0, max_holds=0, max_parallelism=0, strict=False, on_fault=None)
        store = self.create()
        self.save(store, 512)
        question = dict(family=self.family, model=MODEL, tokens=make_tokens(9))
        self.sweep(store.find, auxiliary=None, minimum_epoch=0, **question)
        self.sweep(store.restore, auxiliary=None, minimum_epoch=0, into=None, sink=None, parallelism=0, cancel=None,
                   progress=None, hold=False, **dict(question, tokens=make_tokens(512)))
        self.sweep(store.restore_cut, manifest_id=identity(200), expected=None, into=None, sink=None, parallelism=0,
                   cancel=None, progress=None, hold=False)
        self.sweep(store.maintain, head_room_bytes=-1)
        self.sweep(store.evict, manifest_id=identity(200))
        # One byte short, so that little of what is served elsewhere has to be written here.
        short = [plane[:-1] for plane in make_planes(9)]
        self.sweep(store.save, planes=short, auxiliary=None, atomic_groups=None, parent=None, idempotency_key=None,
                   export_stride_tokens=0, span_rule="aligned", grain_tokens=0, window_grain_tokens=0, encrypt=True,
                   parallelism=0, max_restored_bytes=0, publication=0, time_to_live_ms=0, label="", **question)
        self.sweep(lambda **plane: store.save(self.family, MODEL, make_tokens(9), [kvpack.Plane(**plane), short[1]]),
                   data=make_planes(9)[0], token_start=0, byte_strides=None, sidecar_sinks=0)
        restored = store.restore(self.family, MODEL, make_tokens(512))
        self.assertEqual([bytes(plane) for plane in restored.planes], make_planes(512))

    def test_packs(self):
        path = os.path.join(self.folder, "a.kvset")
        written = dict(target=path, keys=self.keys, family=self.family, model=MODEL, tokens=make_tokens(9),
                       planes=[plane[:-1] for plane in make_planes(9)])
        self.sweep(kvpack.write_pack_set, auxiliary=None, epoch=0, span_rule="aligned", grain_tokens=0, encrypt=True,
                   parallelism=0, **written)
        path += "2"
        kvpack.write_pack_set(**dict(written, target=path, planes=make_planes(9)))
        self.sweep(kvpack.PackSet, source=path, keys=self.keys)
        pack_set = kvpack.PackSet(path, self.keys)
        for call in (pack_set.record, pack_set.read, pack_set.prove):
            self.sweep(call, index=0)
        self.sweep(pack_set.find, wanted=identity(200))
        self.sweep(pack_set.verify, parallelism=0, progress=None)
        self.sweep(pack_set.cut, max_memory_bytes=1)
        cut = pack_set.cut()
        self.sweep(cut.verify, parallelism=0, progress=None)
        self.sweep(cut.restore, into=None, parallelism=0, integrity_only=False, progress=None)
        self.sweep(cut.expect, expected=kvpack.Identity())
        pack = pack_set.read(len(pack_set) - 1)
        self.sweep(kvpack.inspect_pack, pack=pack)
        self.sweep(kvpack.verify_pack, pack=pack, keys=self.keys)
        self.sweep(kvpack.inspect_chunk, chunk=pack_set.read(0))

    def test_caches(self):
        directory = os.path.join(self.folder, "cache")
        opened = dict(engine_cache_abi=identity(2), topology=identity(3), shard_map=identity(4))

        def open_and_close(**options):
            kvpack.Cache(**options).close()

        self.sweep(open_and_close, directory=directory, model=MODEL, states=None, row_bytes=0, with_logits=False,
                   can_step_back=True, read_only=True, keys=None, key_path=None, tenant=None, quota_bytes=0,
                   max_memory_bytes=0, max_parallelism=0, encrypt=True, strict=False, log=None, **opened)
        cache = kvpack.Cache(directory, MODEL, create=True, **opened)
        self.addCleanup(cache.close)
        self.sweep(cache.save, tokens=[], state=b"blob", logits=None, auxiliary=None, checkpoint_stride_tokens=0,
                   time_to_live_ms=0, label="")
        self.sweep(cache.restore, tokens=[1, 2, 3], auxiliary=None, lend=None, cancel=None, progress=None)


if __name__ == "__main__":
    support.main()
