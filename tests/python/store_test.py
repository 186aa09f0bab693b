"""Saving into a store, finding, restoring."""
import array
import pathlib
import threading

import support
from support import MODEL, OTHER_MODEL, TOKEN_BYTES, StoreCase, identity, make_planes, make_tokens
import kvpack


def chunks_of(root):
    """The chunk files of a store."""
    return set(pathlib.Path(root).rglob("*.kvchunk"))


def flip_a_bit(root, spared=()):
    """Damages the payload of one chunk of a store that is not spared."""
    path = min(chunks_of(root).difference(spared))
    damaged = bytearray(path.read_bytes())
    damaged[4200] ^= 1
    path.chmod(0o600)
    path.write_bytes(damaged)


class Collecting(kvpack.Sink):
    """Takes every byte by `write`, except for states that are lent."""

    def __init__(self, lent=()):
        self.lent = lent
        self.calls = []
        self.memory = {}
        self.live = None
        self.pieces = 0

    def begin(self, cut):
        self.calls.append("begin")
        self.memory = {index: bytearray(state.size_bytes) for index, state in enumerate(cut.states)}

    def lend(self, index, size):
        assert size == len(self.memory[index])
        return self.memory[index] if index in self.lent else None

    def write(self, index, offset, data):
        assert data.readonly and index not in self.lent
        self.memory[index][offset:offset + len(data)] = data
        self.pieces += 1

    def commit(self):
        self.calls.append("commit")
        self.live = [bytes(self.memory[index]) for index in sorted(self.memory)]

    def abort(self):
        self.calls.append("abort")

    def reset(self):
        self.calls.append("reset")


class SaveAndRestore(StoreCase):
    def test_what_was_saved_comes_back(self):
        store = self.create()
        saved = self.save(store, 700)
        self.assertFalse(saved.replayed)
        self.assertEqual([cut.token_count for cut in saved.cuts], [700])
        self.assertEqual(saved.cuts[0].restored_bytes, 2 * 700 * TOKEN_BYTES)
        restored = store.restore(self.family, MODEL, make_tokens(700))
        self.assertTrue(restored)
        self.assertEqual((restored.token_count, restored.suffix_tokens), (700, 0))
        self.assertEqual(restored.manifest_id, saved.manifest_id)
        self.assertEqual([bytes(plane) for plane in restored.planes], make_planes(700))
        self.assertEqual([(state.layer, state.name, state.shape) for state in restored.states],
                         [(0, "k", (700, 2, 4)), (0, "v", (700, 2, 4))])
        self.assertIsNone(restored.hold)

    def test_another_process_finds_what_was_saved(self):
        with self.create() as store:
            self.save(store, 512)
        with kvpack.Store.open(self.root, self.keys) as store:
            self.assertEqual(store.find(self.family, MODEL, make_tokens(900)).token_count, 512)
            with kvpack.Store.open_read_only(self.root, self.keys) as reader:
                self.assertTrue(reader.stats().read_only)
                self.assertTrue(reader.restore(self.family, MODEL, make_tokens(512)))
                with self.refused(206):
                    self.save(reader, 512)
            with self.refused(208, kind=kvpack.BusyError):
                kvpack.Store.open(self.root, self.keys)

    def test_a_longer_prompt_goes_on_from_the_deepest_prefix(self):
        store = self.create()
        saved = self.save(store, 700, export_stride_tokens=256)
        self.assertEqual([cut.token_count for cut in saved.cuts], [256, 512, 700])
        tokens = make_tokens(600)
        tokens[555] += 1
        hit = store.find(self.family, MODEL, tokens)
        self.assertTrue(hit)
        self.assertEqual((hit.token_count, hit.suffix_tokens, hit.manifest_id), (512, 88, saved.cuts[1].manifest_id))
        restored = store.restore(self.family, MODEL, tokens)
        self.assertEqual((restored.token_count, restored.suffix_tokens), (512, 88))
        self.assertEqual([bytes(plane) for plane in restored.planes],
                         [plane[:512 * TOKEN_BYTES] for plane in make_planes(700)])

    def test_a_miss_is_no_error(self):
        store = self.create()
        self.save(store, 512)
        for model, tokens in ((OTHER_MODEL, make_tokens(512)), (MODEL, [1] + make_tokens(511)), (MODEL, [])):
            hit = store.find(self.family, model, tokens)
            self.assertFalse(hit)
            self.assertIsNone(hit.manifest_id)
            restored = store.restore(self.family, model, tokens)
            self.assertFalse(restored)
            self.assertEqual((restored.token_count, restored.suffix_tokens), (0, len(tokens)))
            self.assertEqual(restored.planes, ())

    def test_a_second_save_is_a_replay(self):
        store = self.create()
        first = self.save(store, 512)
        second = self.save(store, 512)
        self.assertTrue(second.replayed)
        self.assertEqual(second.manifest_id, first.manifest_id)
        self.assertEqual(store.stats().saves_replayed, 1)

    def test_a_delta_is_written_on_its_parent(self):
        store = self.create()
        parent = self.save(store, 512)
        saved = self.save(store, 900, parent=parent.manifest_id)
        self.assertEqual(saved.cuts[0].depth, 1)
        restored = store.restore(self.family, MODEL, make_tokens(900))
        self.assertEqual([bytes(plane) for plane in restored.planes], make_planes(900))
        with self.refused(208, kind=kvpack.BusyError):
            store.evict(parent.manifest_id)
        self.assertEqual(store.evict(saved.manifest_id.hex()).manifests_evicted, 1)
        with self.refused(207, kind=kvpack.NotFoundError):
            store.evict(saved.manifest_id)

    def test_other_inputs_are_part_of_what_is_found(self):
        store = self.create()
        image = [(identity(50), identity(51))]
        self.save(store, 512, auxiliary=image)
        self.assertFalse(store.find(self.family, MODEL, make_tokens(512)))
        self.assertTrue(store.find(self.family, MODEL, make_tokens(512), auxiliary=image))
        self.assertTrue(store.restore(self.family, MODEL, make_tokens(512), auxiliary=image))

    def test_memory_of_every_kind_is_taken(self):
        store = self.create()
        key, value = make_planes(512)
        for number, planes in enumerate(([key, bytearray(value)], [memoryview(key), array.array("H", value)])):
            store.save(self.family, MODEL, array.array("I", make_tokens(512)), planes, grain_tokens=256,
                       idempotency_key=identity(70 + number))
        restored = store.restore(self.family, MODEL, array.array("q", make_tokens(512)))
        self.assertEqual([bytes(plane) for plane in restored.planes], [key, value])

    def test_planes_are_read_where_they_do_not_lie_in_memory(self):
        store = self.create()
        key, value = make_planes(900)

        def reader(plane, step):
            left = [plane]

            def read(room):
                piece = left[0][:min(step, len(room))]
                room[:len(piece)] = piece
                left[0] = left[0][len(piece):]
                return len(piece)
            return read

        saved = store.save(self.family, MODEL, make_tokens(900), [reader(key, 1000), kvpack.Plane(reader(value, 1 << 30))],
                           grain_tokens=256, parallelism=2)
        self.assertEqual(saved.cuts[0].token_count, 900)
        restored = store.restore(self.family, MODEL, make_tokens(900))
        self.assertEqual([bytes(plane) for plane in restored.planes], [key, value])

    def test_restored_into_the_callers_memory(self):
        store = self.create()
        self.save(store, 512)
        memory = [bytearray(512 * TOKEN_BYTES + 8), bytearray(512 * TOKEN_BYTES)]
        restored = store.restore(self.family, MODEL, make_tokens(512), into=memory, parallelism=2)
        self.assertIs(restored.planes[0], memory[0])
        self.assertEqual(bytes(memory[1]), make_planes(512)[1])
        memory[0].append(1)  # Nobody holds it any more.

    def test_a_sink_takes_pieces_and_lends_memory(self):
        store = self.create()
        saved = self.save(store, 900)
        for lent in ((), (1,), (0, 1)):
            sink = Collecting(lent)
            restored = store.restore_cut(saved.manifest_id, sink=sink, parallelism=2)
            self.assertTrue(restored)
            self.assertEqual(sink.live, make_planes(900))
            self.assertEqual(sink.calls, ["begin", "commit"])
            self.assertEqual(sink.pieces, 4 * (2 - len(lent)))

    def test_a_cut_is_restored_by_its_id_when_it_is_the_expected_one(self):
        store = self.create()
        saved = self.save(store, 512)
        expected = kvpack.Identity(model=MODEL, family=self.family, fields={"token_count": 512})
        self.assertTrue(store.restore_cut(saved.manifest_id.hex(), expected=expected))
        with self.refused(203, "identity field weights_config differs", kvpack.ExpectationError) as caught:
            store.restore_cut(saved.manifest_id, expected=kvpack.Identity(model=OTHER_MODEL))
        self.assertEqual(caught.exception.fact("field"), "weights_config")
        self.assertEqual(caught.exception.fact("expected"), identity(20).hex())
        with self.refused(207, kind=kvpack.NotFoundError):
            store.restore_cut(identity(200))

    def test_progress_is_told_to_the_end(self):
        store = self.create()
        self.save(store, 900)
        told = []
        store.restore(self.family, MODEL, make_tokens(900), progress=lambda done, total: told.append((done, total)))
        total = 2 * 900 * TOKEN_BYTES
        self.assertEqual(told[0], (0, total))
        self.assertEqual(told[-1], (total, total))
        self.assertEqual(told, sorted(told))

    def test_a_cancelled_restore_ends(self):
        store = self.create()
        self.save(store, 512)
        with kvpack.Cancel() as cancel:
            self.assertTrue(store.restore(self.family, MODEL, make_tokens(512), cancel=cancel))
            cancel.request()
            with self.refused(209, kind=kvpack.CancelledError):
                store.restore(self.family, MODEL, make_tokens(512), cancel=cancel)

    def test_a_hold_keeps_the_cut(self):
        store = self.create()
        saved = self.save(store, 512)
        restored = store.restore(self.family, MODEL, make_tokens(512), hold=True)
        with restored.hold as hold:
            self.assertEqual(len(hold.id), 32)
            self.assertEqual(store.stats().holds, 1)
            with self.refused(208, kind=kvpack.BusyError):
                store.evict(saved.manifest_id)
        self.assertEqual(store.stats().holds, 0)
        with self.refused(4, "the hold is closed"):
            hold.release()
        store.evict(saved.manifest_id)

    def test_a_hold_is_released_once(self):
        store = self.create()
        self.save(store, 512)
        hold = store.restore(self.family, MODEL, make_tokens(512), hold=True).hold
        with hold:
            hold.release()
            with self.refused(206):
                hold.release()
        self.assertTrue(hold.closed)

    def test_upkeep_and_numbers(self):
        store = self.create(quota_bytes=1 << 30, watermarks=kvpack.Watermarks(stop=500))
        self.save(store, 512)
        info = store.stats()
        self.assertEqual((info.quota_bytes, info.manifests, info.pressure, info.read_only), (1 << 30, 1, "normal", False))
        upkeep = store.maintain()
        self.assertEqual((upkeep.manifests_evicted, upkeep.emergency, upkeep.blocked), (0, False, False))
        self.assertEqual(store.collect().chunks_collected, 0)

    def test_a_cut_may_expire(self):
        store = self.create()
        self.save(store, 512, time_to_live_ms=1)
        threading.Event().wait(0.01)
        self.assertFalse(store.find(self.family, MODEL, make_tokens(512)))


class Damage(StoreCase):
    def test_a_damaged_cut_is_passed_over_and_told(self):
        faults = []
        store = self.create(on_fault=faults.append)
        self.save(store, 512)
        flip_a_bit(self.root)
        restored = store.restore(self.family, MODEL, make_tokens(512))
        self.assertFalse(restored)
        self.assertEqual(restored.fault_count, 1)
        self.assertEqual([(fault.object, fault.action, fault.token_count) for fault in faults],
                         [("chunk", "quarantined", 512)])
        self.assertIsInstance(faults[0].error, kvpack.Error)
        self.assertIn(self.root, faults[0].path)

    def test_a_strict_store_raises(self):
        store = self.create(strict=True)
        self.save(store, 512)
        flip_a_bit(self.root)
        with self.assertRaises(kvpack.FormatError) as caught:
            store.restore(self.family, MODEL, make_tokens(512))
        self.assertIsNotNone(caught.exception.fact("object"))

    def test_what_on_fault_raises_comes_out_of_the_call(self):
        class Told(Exception):
            pass

        def tell(fault):
            store.stats()  # It may use the store.
            raise Told(fault.action)

        store = self.create(on_fault=tell)
        self.save(store, 512)
        flip_a_bit(self.root)
        with self.assertRaisesRegex(Told, "quarantined"):
            store.restore(self.family, MODEL, make_tokens(512))
        self.assertFalse(store.restore(self.family, MODEL, make_tokens(512)))

    def test_other_keys_do_not_open_it(self):
        self.create().close()
        with self.refused(109, kind=kvpack.AuthenticationError):
            kvpack.Store.open(self.root, support.make_keys(first=98))


class Refusals(StoreCase):
    def test_wrong_arguments_are_named(self):
        store = self.create()
        tokens, planes = make_tokens(512), make_planes(512)
        for message, arguments in (
                ("argument planes are 1, and there are 2 states", dict(planes=planes[:1])),
                ("argument planes is a int, not a list", dict(planes=3)),
                ("argument auxiliary is a int, not a list", dict(auxiliary=3)),
                ("argument atomic_groups is a int, not a list", dict(atomic_groups=3)),
                (r"argument planes \(layer 0, k\) is a int, which does not give its memory", dict(planes=[3, planes[1]])),
                (r"argument planes \(layer 0, v\) is a text", dict(planes=[planes[0], "v"])),
                ("argument tokens has an element that is no number", dict(tokens=[-1])),
                ("argument tokens has an element that is no number", dict(tokens=[1 << 32])),
                ("argument tokens has an element that is no number", dict(tokens=["a"])),
                ("argument tokens has an element that is no number", dict(tokens=3)),
                ("argument tokens is a bytes", dict(tokens=b"abcd")),
                ("argument model is a int, not a Model", dict(model=3)),
                ("argument weights_config is not 32 bytes", dict(model=kvpack.Model(b"", b"", b"", b"", b""))),
                ("argument family is a int, not a Family", dict(family=3)),
                ("argument grain_tokens is outside", dict(grain_tokens=-1)),
                ("argument grain_tokens is outside", dict(grain_tokens=1 << 32)),
                ("argument grain_tokens is a str", dict(grain_tokens="256")),
                ("argument publication is outside", dict(publication=1 << 64)),
                ("argument span_rule is none of aligned, upstream", dict(span_rule="other")),
                ("argument parallelism must be at most 256", dict(parallelism=257)),
                ("argument encrypt is neither true nor false", dict(encrypt=2)),
                ("argument parent is not 32 bytes", dict(parent=b"x")),
                ("argument parent is not 64 hexadecimal digits", dict(parent="x")),
                ("argument atomic_groups are 1", dict(atomic_groups=[1])),
                ("argument auxiliary has an element that is no pair", dict(auxiliary=[identity(1)])),
                ("argument label is a int, not a text", dict(label=3)),
        ):
            given = dict(dict(family=self.family, model=MODEL, tokens=tokens, planes=planes), **arguments)
            with self.subTest(message=message), self.refused(1, message, kvpack.MisuseError) as caught:
                store.save(**given)
            self.assertIsNotNone(caught.exception.fact("argument"))

    def test_what_the_library_refuses_is_raised_with_its_facts(self):
        store = self.create()
        with self.assertRaises(kvpack.Error) as caught:
            store.save(self.family, MODEL, make_tokens(512), make_planes(511))
        self.assertGreaterEqual(caught.exception.code, 100)
        self.assertIn(caught.exception.category, str(caught.exception))
        self.assertIn("(code %d" % caught.exception.code, str(caught.exception))
        self.assertEqual(store.stats().manifests, 0)

    def test_memory_that_cannot_be_filled_is_refused(self):
        store = self.create()
        self.save(store, 512)
        size = 512 * TOKEN_BYTES
        for message, memory in (("does not lend its memory for writing", [bytes(size), bytearray(size)]),
                                ("lends 7 bytes, and part 1 takes %d" % size, [bytearray(size), bytearray(7)]),
                                ("lends part 1 memory that part 0 has", [bytearray(size)] * 2),
                                ("argument into is 1 planes, and the cut has 2", [bytearray(size)])):
            with self.subTest(message=message), self.refused(1, message):
                store.restore(self.family, MODEL, make_tokens(512), into=memory)
        self.assertTrue(store.restore(self.family, MODEL, make_tokens(512)))

    def test_options_that_exclude_each_other(self):
        store = self.create()
        with self.refused(1, "stands beside a sink"):
            store.restore(self.family, MODEL, [1], into=[], sink=Collecting())
        with self.refused(1, "stands beside a sink"):
            store.restore_cut(identity(1), expected=kvpack.Identity(), sink=Collecting())
        with self.refused(1, "argument sink is a int, not a Sink"):
            store.restore(self.family, MODEL, [1], sink=3)
        with self.refused(1, "argument cancel is a int, not a Cancel"):
            store.restore(self.family, MODEL, [1], cancel=3)
        with self.refused(1, "argument progress cannot be called"):
            store.restore(self.family, MODEL, [1], progress=3)

    def test_a_store_is_made_by_its_three_names(self):
        with self.assertRaises(TypeError):
            kvpack.Store(self.root, self.keys)
        with self.assertRaisesRegex(TypeError, "unknown options: colour"):
            kvpack.Store.create(self.root, self.keys, colour=3)
        with self.refused(1, "argument keys is a str, not Keys"):
            kvpack.Store.create(self.root, "keys")
        with self.refused(1, "argument root has a NUL byte"):
            kvpack.Store.create("a\0b", self.keys)
        with self.refused(1, "argument root is a int, not a path"):
            kvpack.Store.create(3, self.keys)
        with self.refused(1, "argument on_fault cannot be called"):
            kvpack.Store.create(self.root, self.keys, on_fault=3)
        with self.refused(207, kind=kvpack.NotFoundError):
            kvpack.Store.open(self.root, self.keys)

    def test_no_writing_where_none_is_allowed(self):
        store = self.create(endurance_bytes_per_five_minutes=0)
        with self.refused(205):
            self.save(store, 512)


if __name__ == "__main__":
    support.main()
