"""What a callback raises comes out of the call, never reaches C, and nothing half done is believed."""
import gc
import sys
import unittest
from unittest import mock

import support
from support import MODEL, StoreCase, make_planes, make_tokens
import kvpack
from kvpack import _callbacks, _structs
from store_test import Collecting


class Stop(BaseException):
    """Not an Exception, like KeyboardInterrupt."""


class Failing(Collecting):
    """Raises at one of its methods."""

    def __init__(self, where, what, lent=()):
        super().__init__(lent)
        self.where = where
        self.what = what

    def _maybe(self, name):
        if self.where == name:
            raise self.what

    def begin(self, cut):
        super().begin(cut)
        self.cut = cut
        self._maybe("begin")

    def lend(self, index, size):
        self._maybe("lend")
        return super().lend(index, size)

    def write(self, index, offset, data):
        self._maybe("write")
        super().write(index, offset, data)

    def commit(self):
        self._maybe("commit")
        super().commit()

    def abort(self):
        super().abort()
        self._maybe("abort")

    def reset(self):
        super().reset()
        self._maybe("reset")


class Raising(StoreCase):
    def setUp(self):
        super().setUp()
        self.store = self.create()
        self.saved = self.save(self.store, 700)

    def test_the_very_exception_comes_out_of_a_restore(self):
        for where in ("begin", "lend", "write", "commit"):
            for what in (ValueError("mine"), Stop(), KeyboardInterrupt(), SystemExit(3), MemoryError()):
                for call in (lambda sink: self.store.restore(self.family, MODEL, make_tokens(700), sink=sink),
                             lambda sink: self.store.restore_cut(self.saved.manifest_id, sink=sink, parallelism=2)):
                    with self.subTest(where=where, what=what):
                        sink = Failing(where, what)
                        with self.assertRaises(type(what)) as caught:
                            call(sink)
                        self.assertIs(caught.exception, what)
                        self.assertIsNone(what.__context__)
                        self.assertEqual(sink.calls, ["begin", "abort", "reset"])
                        self.assertIsNone(sink.live)
                        # The cut that the sink was shown is gone.
                        with self.refused(4, "the cut is closed"):
                            sink.cut.states
        # Whatever a sink does, it is not taken for damage.
        self.assertEqual(self.store.stats().objects_quarantined, 0)
        self.assertTrue(self.store.restore(self.family, MODEL, make_tokens(700)))

    def test_an_error_of_the_library_keeps_its_code(self):
        error = kvpack.AuthenticationError(109, "authentication", "mine")
        with self.assertRaises(kvpack.AuthenticationError) as caught:
            self.store.restore(self.family, MODEL, make_tokens(700), sink=Failing("begin", error))
        self.assertIs(caught.exception, error)
        self.assertTrue(self.store.restore(self.family, MODEL, make_tokens(700)))

    def test_abort_and_reset_may_raise_too(self):
        for where, wanted in (("abort", "first"), ("reset", "second")):
            first = ValueError("first")
            sink = Failing(where, ValueError("second"))
            sink.commit = mock.Mock(side_effect=first)
            with self.assertRaisesRegex(ValueError, wanted) as caught:
                self.store.restore(self.family, MODEL, make_tokens(700), sink=sink)
            self.assertEqual(sink.calls, ["begin", "abort", "reset"])
            self.assertIs(caught.exception.__context__, None if where == "abort" else first)

    def test_progress_may_end_the_work(self):
        def tell(done, total):
            if done:
                raise Stop()

        sink = Collecting()
        with self.assertRaises(Stop):
            self.store.restore(self.family, MODEL, make_tokens(700), sink=sink, progress=tell)
        self.assertEqual(sink.calls, ["begin", "abort", "reset"])

    def test_a_hold_is_not_left_behind(self):
        with self.assertRaises(Stop):
            self.store.restore(self.family, MODEL, make_tokens(700), sink=Failing("commit", Stop()), hold=True)
        self.assertEqual(self.store.stats().holds, 0)

    def test_a_reader_may_raise(self):
        def read(room):
            raise Stop()

        for planes in ([read, read], [make_planes(900)[0], read]):
            with self.assertRaises(Stop):
                self.store.save(self.family, MODEL, make_tokens(900), planes)
        self.assertEqual(self.store.stats().manifests, 1)

    def test_a_reader_gives_a_number_that_fits(self):
        for given, message in ((None, "argument read size is a NoneType, not a number"), (-1, "is outside 0 to"),
                               (1 << 40, "argument read size is 1099511627776, and there is room for"),
                               (True, "is a bool, not a number")):
            with self.subTest(given=given), self.refused(1, message):
                self.store.save(self.family, MODEL, make_tokens(900), [lambda room: given, make_planes(900)[1]])

    def test_a_reader_that_ends_early_is_refused(self):
        with self.assertRaises(kvpack.Error):
            self.store.save(self.family, MODEL, make_tokens(900), [lambda room: 0, make_planes(900)[1]])
        self.assertEqual(self.store.stats().manifests, 1)

    def test_the_store_is_busy_with_the_callback(self):
        class Asking(Collecting):
            def begin(inner, cut):
                super().begin(cut)
                self.store.stats()

        with self.refused(5, "the store is busy with the call in which this callback runs"):
            self.store.restore(self.family, MODEL, make_tokens(700), sink=Asking())
        self.store.stats()

    def test_the_store_may_be_closed_in_a_callback(self):
        class Closing(Collecting):
            def write(inner, index, offset, data):
                super().write(index, offset, data)
                self.store.close()

        sink = Closing()
        self.assertTrue(self.store.restore(self.family, MODEL, make_tokens(700), sink=sink))
        self.assertEqual(sink.live, make_planes(700))
        with self.refused(4, "the store is closed"):
            self.store.stats()

    def test_nothing_stays_behind(self):
        sink = Failing("write", ValueError())
        for _ in range(3):
            with self.assertRaises(ValueError):
                self.store.restore(self.family, MODEL, make_tokens(700), sink=sink)
        gc.collect()
        self.assertEqual([thing for thing in gc.get_objects() if isinstance(thing, _callbacks.Callbacks)], [])


class KeptMemory(StoreCase):
    """Memory of the library's that a callback does not let go of."""

    def setUp(self):
        super().setUp()
        self.store = self.create()
        self.save(self.store, 512)

    def test_what_outlives_a_callback_is_refused(self):
        kept = []
        for keep in (kept.append, lambda data: kept.append(data[1:]), lambda data: kept.append(memoryview(data)),
                     lambda data: kept.append(data.cast("H"))):
            sink = Collecting()
            sink.write = lambda index, offset, data: keep(data)
            if keep == kept.append:
                # The view itself is taken back.
                self.store.restore(self.family, MODEL, make_tokens(512), sink=sink)
                with self.assertRaisesRegex(ValueError, "released"):
                    bytes(kept[0])
            else:
                with self.refused(1, "argument data outlives its callback"):
                    self.store.restore(self.family, MODEL, make_tokens(512), sink=sink)
            kept.clear()

    def test_what_an_exception_holds_is_dropped(self):
        def write(index, offset, data):
            mine = data[1:]
            raise ValueError(len(mine))

        sink = Collecting()
        sink.write = write
        with self.assertRaises(ValueError) as caught:
            self.store.restore(self.family, MODEL, make_tokens(512), sink=sink)
        frames = []
        traceback = caught.exception.__traceback__
        while traceback is not None:
            frames.append(traceback.tb_frame)
            traceback = traceback.tb_next
        self.assertNotIn("mine", [name for frame in frames for name in frame.f_locals])


class Skipped(StoreCase):
    """A callback that cannot begin, as when an interrupt or the recursion limit comes first, is not run by ctypes, which
    gives C a word of the stack instead: 0 in the worst case."""

    def setUp(self):
        super().setUp()
        self.store = self.create()
        self.save(self.store, 700)

    def skip(self, skipped, function):
        """Runs `function` while one kind of callback does nothing and is taken for a success."""
        made = _callbacks.Callbacks._guarded

        def guarded(callbacks, prototype, target, failure, outranks=False):
            if getattr(target, "__name__", "") == skipped:
                target = lambda *_: None
            return made(callbacks, prototype, target, failure, outranks)

        with mock.patch.object(_callbacks.Callbacks, "_guarded", guarded):
            return function()

    def test_no_restore_is_believed_of_which_a_part_did_not_happen(self):
        for skipped, message in (("_begin", "the sink was not begun"), ("_write", "the sink was not shown every byte"),
                                 ("_commit", "the sink was not committed")):
            with self.subTest(skipped=skipped):
                sink = Collecting()
                with self.refused(5, message):
                    self.skip(skipped, lambda: self.store.restore(self.family, MODEL, make_tokens(700), sink=sink,
                                                                  hold=True))
                self.assertIsNone(sink.live)
                self.assertEqual(sink.calls[-2:], ["abort", "reset"])
                self.assertEqual(self.store.stats().holds, 0)

    def test_memory_that_was_not_lent_is_not_believed(self):
        with self.assertRaises(Exception):
            self.skip("_lend", lambda: self.store.restore(self.family, MODEL, make_tokens(700)))

    def test_no_save_is_believed_of_which_a_part_did_not_happen(self):
        def read(room):
            raise AssertionError("not reached")

        for skipped in ("inventory", "read_plane"):
            with self.subTest(skipped=skipped), self.assertRaises(kvpack.Error):
                self.skip(skipped, lambda: self.store.save(self.family, MODEL, make_tokens(900), [read, read]))
        self.assertEqual(self.store.stats().manifests, 1)

    def test_no_set_is_believed_of_which_a_chunk_is_missing(self):
        with self.assertRaises(kvpack.Error):
            self.skip("_add_chunk", lambda: kvpack.write_pack_set(
                self.folder + "/a.kvset", self.keys, self.family, MODEL, make_tokens(512), make_planes(512)))

    def test_the_recursion_limit_inside_a_callback(self):
        def deep(number):
            return deep(number + 1)

        sink = Collecting()
        sink.write = lambda index, offset, data: deep(0)
        with self.assertRaises(RecursionError):
            self.store.restore(self.family, MODEL, make_tokens(700), sink=sink)
        self.assertEqual(sink.calls, ["begin", "abort", "reset"])

    def test_the_recursion_limit_before_a_callback(self):
        """Some of the depths leave room for the call and none for its callbacks."""
        limit = sys.getrecursionlimit()

        def at_depth(depth):
            if depth:
                return at_depth(depth - 1)
            return self.store.restore(self.family, MODEL, tokens)

        tokens = make_tokens(700)
        wanted = make_planes(700)
        outcomes = set()
        for depth in range(limit - 120, limit, 2):
            try:
                restored = at_depth(depth)
            except Exception:  # ctypes wraps what its own conversions meet.
                outcomes.add("refused")
                continue
            self.assertEqual([bytes(plane) for plane in restored.planes], wanted)
            outcomes.add("restored")
        self.assertEqual(outcomes, {"restored", "refused"})
        self.assertTrue(self.store.restore(self.family, MODEL, tokens))


class Lost(StoreCase):
    """What is raised before the guard of a callback comes out of the call all the same."""

    def raising(self, skipped):
        """Callbacks of one name raise without a guard, as an interrupt right at their beginning does."""
        made = _callbacks.Callbacks._guarded

        def guarded(callbacks, prototype, target, failure, outranks=False):
            callback = made(callbacks, prototype, target, failure, outranks)
            if getattr(target, "__name__", "") != skipped:
                return callback

            def run(*_):
                raise Stop(skipped)

            callback = prototype(run)
            callbacks._kept.append(callback)
            _callbacks._lost.watch(run, callbacks)
            return callback
        return mock.patch.object(_callbacks.Callbacks, "_guarded", guarded)

    def test_it_comes_out_of_a_restore(self):
        store = self.create()
        self.save(store, 700)
        for skipped in ("_begin", "_lend", "_write", "_commit"):
            with self.subTest(skipped=skipped), self.raising(skipped), self.assertRaisesRegex(Stop, skipped):
                store.restore(self.family, MODEL, make_tokens(700), sink=Collecting())
        self.assertEqual(store.stats().objects_quarantined, 0)

    def test_a_lost_abort_is_made_good(self):
        store = self.create()
        self.save(store, 700)
        sink = Failing("commit", ValueError("first"))
        with self.raising("_abort"), self.assertRaisesRegex(ValueError, "first"):
            store.restore(self.family, MODEL, make_tokens(700), sink=sink)
        self.assertIn("abort", sink.calls)

    def test_others_hear_what_is_not_ours(self):
        heard = []
        before, sys.unraisablehook = sys.unraisablehook, lambda unraisable: heard.append(unraisable.exc_value)
        try:
            with _callbacks.Callbacks() as callbacks:
                callbacks.status(_structs.user_status_fn, lambda _: None)
                Other = type("Other", (), {"__del__": lambda self: 1 / 0})
                Other()
            after = sys.unraisablehook
        finally:
            sys.unraisablehook = before
        self.assertEqual([type(one) for one in heard], [ZeroDivisionError])
        self.assertNotEqual(after, _callbacks._lost._take)


class Codes(unittest.TestCase):
    def test_a_callback_that_raises_returns_the_error_code(self):
        with self.assertRaisesRegex(ValueError, "mine"), _callbacks.Callbacks() as callbacks:
            def fail(*_):
                raise ValueError("mine")

            made = callbacks.status(_structs.user_status_fn, fail)
            fine = callbacks.status(_structs.user_status_fn, lambda _: 3)
            self.assertEqual([made(None), made(None), fine(None)], [7, 7, 0])


if __name__ == "__main__":
    support.main()
