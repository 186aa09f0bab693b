"""Handles are freed once, never under a call, and refuse what is asked of them afterwards."""
import array
import gc
import os
import sys
import threading
import unittest
import weakref

import support
from support import MODEL, StoreCase, identity, make_family, make_keys, make_planes, make_tokens
import kvpack
from kvpack import _library
from store_test import Collecting


class Counted:
    """Counts calls of a function of the library."""

    def __init__(self, name):
        self.name = name
        self.count = 0

    def __enter__(self):
        self.real = getattr(_library.lib, self.name)

        def counting(*arguments):
            self.count += 1
            return self.real(*arguments)

        setattr(_library.lib, self.name, counting)
        return self

    def __exit__(self, *_):
        setattr(_library.lib, self.name, self.real)


class Lifetime(StoreCase):
    def test_closing_twice_frees_once(self):
        with Counted("kvpack_keys_free") as freed:
            keys = make_keys()
            keys.close()
            keys.close()
            self.assertTrue(keys.closed)
            del keys
            gc.collect()
            self.assertEqual(freed.count, 1)

    def test_what_is_forgotten_is_freed(self):
        with Counted("kvpack_family_free") as families, Counted("kvpack_identity_free") as identities:
            family = make_family()
            known = kvpack.Identity(model=MODEL, family=family)
            gone = [weakref.ref(family), weakref.ref(known)]
            del family, known
            gc.collect()
            self.assertEqual([ref() for ref in gone], [None, None])
            self.assertEqual((families.count, identities.count), (1, 1))

    def test_a_store_with_callbacks_is_freed_when_it_is_forgotten(self):
        with Counted("kvpack_store_free") as freed:
            around = []
            store = kvpack.Store.create(self.root, self.keys, on_fault=around.append)
            around.append(store)
            gone = weakref.ref(store)
            del store, around
            gc.collect()
            self.assertIsNone(gone())
            self.assertEqual(freed.count, 1)
        kvpack.Store.open(self.root, self.keys).close()  # It is not held any more.

    def test_a_closed_handle_refuses_every_call(self):
        store = self.create()
        saved = self.save(store, 512)
        hold = store.restore(self.family, MODEL, make_tokens(512), hold=True).hold
        target = os.path.join(self.folder, "a.kvset")
        kvpack.write_pack_set(target, self.keys, self.family, MODEL, make_tokens(512), make_planes(512))
        pack_set = kvpack.PackSet(target, self.keys)
        cut = pack_set.cut()
        known = cut.identity()
        cancel = kvpack.Cancel()
        tokens, planes = make_tokens(512), make_planes(512)
        keys, family = make_keys(), make_family()
        for handle in (store, hold, pack_set, cut, known, cancel, keys, family):
            handle.close()
        for what, calls in {
            "store": [store.stats, store.maintain, store.collect, lambda: store.evict(saved.manifest_id),
                      lambda: store.find(self.family, MODEL, tokens), lambda: store.restore(self.family, MODEL, tokens),
                      lambda: store.restore_cut(saved.manifest_id),
                      lambda: store.save(self.family, MODEL, tokens, planes), store.__enter__],
            "hold": [hold.release, lambda: hold.id],
            "pack set": [lambda: pack_set.info, lambda: len(pack_set), lambda: pack_set.record(0), pack_set.verify,
                         lambda: pack_set.read(0), lambda: pack_set.prove(0), lambda: pack_set.find(saved.manifest_id),
                         pack_set.cut],
            "cut": [cut.verify, cut.restore, cut.identity, lambda: cut.level, lambda: cut.states, lambda: cut.depth,
                    lambda: cut.token_count, lambda: cut.manifest_id, lambda: cut.total_bytes],
            "identity": [known.fields, lambda: known.get("topology")],
            "cancel": [cancel.request],
            "key ring": [lambda: keys.tenant, lambda: kvpack.PackSet(target, keys),
                         lambda: kvpack.Store.open(self.root, keys),
                         lambda: kvpack.write_pack_set(target, keys, self.family, MODEL, tokens, planes)],
            "family": [lambda: family.id, lambda: kvpack.Identity(family=family)],
        }.items():
            for call in calls:
                with self.subTest(what=what), self.refused(4, "the %s is closed" % what, kvpack.MisuseError):
                    call()

    def test_a_hold_outlives_its_store(self):
        store = self.create(on_fault=print)
        self.save(store, 512)
        hold = store.restore(self.family, MODEL, make_tokens(512), hold=True).hold
        store.close()
        del store
        gc.collect()
        hold.release()
        hold.close()
        kvpack.Store.open(self.root, self.keys).close()

    def test_handles_go_in_any_order(self):
        keys, family = make_keys(), make_family()
        store = kvpack.Store.create(self.root, keys)
        keys.close()
        store.save(family, MODEL, make_tokens(512), make_planes(512))
        known = kvpack.Identity(family=family)
        family.close()
        self.assertEqual(known.get("topology"), identity(3).hex())
        store.close()

    def test_memory_is_held_during_a_call(self):
        store = self.create()
        memory, value = bytearray(make_planes(512)[0]), make_planes(512)[1]
        left = [value]

        def read(room):
            with self.assertRaises(BufferError):
                memory.append(0)
            piece, left[0] = left[0][:len(room)], left[0][len(room):]
            room[:len(piece)] = piece
            return len(piece)

        store.save(self.family, MODEL, make_tokens(512), [memory, read])
        memory.append(0)

    def test_memory_goes_back_after_a_call(self):
        store = self.create()
        memory = [bytearray(plane) for plane in make_planes(512)]
        tokens = array.array("I", make_tokens(512))
        store.save(self.family, MODEL, tokens, memory)
        with self.assertRaises(kvpack.Error):
            store.save(self.family, MODEL, tokens, memory, grain_tokens=3)
        for one in memory:
            one.append(0)  # BufferError while somebody holds it.
        tokens.append(0)


class Threads(StoreCase):
    def run_all(self, functions):
        problems = []

        def run(function):
            try:
                function()
            except BaseException as problem:
                problems.append(problem)

        threads = [threading.Thread(target=run, args=(function,)) for function in functions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(problems, [])

    def test_two_threads_save_at_once(self):
        """Each is inside its save when the other is: a thread that kept the interpreter would never meet the other."""
        store = self.create()
        meeting = threading.Barrier(2, timeout=60)

        def save(first):
            planes = make_planes(512)
            met = []

            def read(room):
                if not met:
                    meeting.wait()
                    met.append(True)
                piece, planes[0] = planes[0][:len(room)], planes[0][len(room):]
                room[:len(piece)] = piece
                return len(piece)

            store.save(self.family, MODEL, [first] + make_tokens(511), [read, planes[1]])

        self.run_all([lambda: save(1), lambda: save(2)])
        self.assertEqual(store.stats().manifests, 2)

    def test_others_run_while_a_call_works(self):
        store = self.create()
        self.save(store, 512)
        inside, ended = threading.Event(), threading.Event()

        class Waiting(Collecting):
            def commit(self):
                inside.set()
                assert ended.wait(60)
                super().commit()

        def look():
            assert inside.wait(60)
            self.assertTrue(store.find(self.family, MODEL, make_tokens(512)))
            ended.set()

        self.run_all([lambda: store.restore(self.family, MODEL, make_tokens(512), sink=Waiting()), look])

    def test_a_store_that_is_closed_under_a_call_ends_with_it(self):
        inside, ended = threading.Event(), threading.Event()

        class Waiting(Collecting):
            def write(self, index, offset, data):
                inside.set()
                assert ended.wait(60)
                super().write(index, offset, data)

        sink = Waiting()

        def close():
            assert inside.wait(60)
            store.close()
            self.assertEqual(freed.count, 0)
            ended.set()

        with Counted("kvpack_store_free") as freed:
            store = self.create()
            self.save(store, 512)
            self.run_all([lambda: store.restore(self.family, MODEL, make_tokens(512), sink=sink), close])
            self.assertEqual(freed.count, 1)
        self.assertEqual(sink.live, make_planes(512))
        self.assertTrue(store.closed)
        kvpack.Store.open(self.root, self.keys).close()

    def test_many_threads_use_what_is_immutable(self):
        store = self.create()
        self.save(store, 512)

        def work():
            for _ in range(20):
                self.assertEqual(self.family.id, make_family().id)
                self.assertEqual(kvpack.Identity(model=MODEL, family=self.family).get("topology"), identity(3).hex())
                self.assertTrue(store.restore(self.family, MODEL, make_tokens(512)))

        self.run_all([work] * 4)


@unittest.skipUnless(hasattr(os, "fork"), "left out: no fork on this system")
class Fork(StoreCase):
    def test_a_child_refuses_the_handles_of_its_parent_and_frees_none(self):
        store = self.create()
        self.save(store, 512)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                refused = 0
                for call in (store.stats, lambda: self.family.id, lambda: self.keys.tenant):
                    try:
                        call()
                    except kvpack.MisuseError as error:
                        refused += error.code == 5 and "before this process was forked" in error.message
                store.close()
                own = kvpack.Store.open_read_only(self.root, make_keys())
                found = own.find(make_family(), MODEL, make_tokens(512))
                own.close()
                code = 0 if refused == 3 and found else 2
            finally:
                os._exit(code)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertTrue(store.restore(self.family, MODEL, make_tokens(512)))
        self.save(store, 700)


class AtExit(StoreCase):
    def test_a_store_is_closed_at_the_end_of_the_process(self):
        import subprocess
        code = ("import sys; sys.path.insert(0, %r)\nimport support, kvpack\n"
                "store = kvpack.Store.create(%r, support.make_keys())\n"
                "store.save(support.make_family(), support.MODEL, support.make_tokens(512), support.make_planes(512))\n"
                "keep = [store]; keep.append(keep)\n" % (os.path.dirname(os.path.abspath(__file__)), self.root))
        subprocess.run([sys.executable, "-B", "-c", code], check=True)
        with kvpack.Store.open(self.root, self.keys) as store:
            self.assertEqual(store.stats().saves_committed, 1)


if __name__ == "__main__":
    support.main()
