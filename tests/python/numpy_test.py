"""numpy arrays in and out. The package does without numpy; with it, arrays need no copies."""
import unittest

import support
from support import MODEL, StoreCase, make_tokens
import kvpack

try:
    import numpy
except ImportError:
    numpy = None


@unittest.skipUnless(numpy, "left out: no numpy")
class Numpy(StoreCase):
    def planes(self, tokens=512):
        generator = numpy.random.default_rng(7)
        return [generator.standard_normal((tokens, 2, 4)).astype(numpy.float16) for _ in range(2)]

    def test_arrays_are_saved_and_restored_with_their_shape(self):
        store = self.create()
        planes = self.planes()
        tokens = numpy.array(make_tokens(512), dtype=numpy.uint32)
        store.save(self.family, MODEL, tokens, planes)
        for query in (tokens, tokens.astype(numpy.int64), list(tokens)):
            restored = store.restore(self.family, MODEL, query)
            for state, plane, memory in zip(restored.states, planes, restored.planes):
                array = state.array(memory)
                self.assertEqual((array.dtype, array.shape), (numpy.float16, (512, 2, 4)))
                self.assertTrue(numpy.array_equal(array, plane))

    def test_restored_into_arrays(self):
        store = self.create()
        planes = self.planes()
        store.save(self.family, MODEL, make_tokens(512), planes)
        into = [numpy.zeros((512, 2, 4), numpy.float16) for _ in planes]
        self.assertTrue(store.restore(self.family, MODEL, make_tokens(512), into=into))
        for plane, array in zip(planes, into):
            self.assertTrue(numpy.array_equal(plane, array))

    def test_read_only_arrays_are_saved_and_not_restored_into(self):
        store = self.create()
        planes = self.planes()
        for plane in planes:
            plane.flags.writeable = False
        store.save(self.family, MODEL, make_tokens(512), planes)
        with self.refused(1, "argument data does not lend its memory for writing"):
            store.restore(self.family, MODEL, make_tokens(512), into=planes)

    def test_strided_arrays_are_refused_by_name(self):
        store = self.create()
        key, value = self.planes(1024)
        for strided in (value[::2], value[:512, :, ::-1], numpy.asfortranarray(value[:512]), value[:512].transpose(0, 2, 1)):
            with self.refused(1, r"argument planes \(layer 0, v\) is strided: .* give a contiguous copy"):
                store.save(self.family, MODEL, make_tokens(512), [key[:512], strided])
        for into in ([numpy.zeros((1024, 2, 4), numpy.float16)[::2]] * 2,):
            store.save(self.family, MODEL, make_tokens(512), [key[:512], value[:512]])
            with self.refused(1, "argument data is strided"):
                store.restore(self.family, MODEL, make_tokens(512), into=into)
        with self.refused(1, "argument tokens has 2 dimensions"):
            store.find(self.family, MODEL, numpy.zeros((2, 2), numpy.uint32))
        with self.refused(1, "argument tokens has an element that is no number"):
            store.find(self.family, MODEL, numpy.zeros(4, numpy.float32))
        self.assertFalse(store.find(self.family, MODEL, numpy.arange(1024, dtype=numpy.uint32)[::2]))

    def test_strides_that_are_named_are_followed(self):
        """An engine's memory, heads outermost: [heads][tokens][head_dim]."""
        store = self.create()
        planes = self.planes()
        paged = [numpy.ascontiguousarray(plane.transpose(1, 0, 2)) for plane in planes]
        given = [kvpack.Plane(plane, byte_strides=plane.transpose(1, 0, 2).strides) for plane in paged]
        saved = store.save(self.family, MODEL, make_tokens(512), given)
        plain = store.save(self.family, MODEL, make_tokens(512), planes)
        self.assertEqual(plain.manifest_id, saved.manifest_id)
        restored = store.restore(self.family, MODEL, make_tokens(512))
        self.assertTrue(numpy.array_equal(restored.states[1].array(restored.planes[1]), planes[1]))

    def test_bfloat16_comes_as_its_bits(self):
        store = self.create()
        family = support.make_family(dtype="bf16")
        bits = [numpy.arange(512 * 8, dtype=numpy.uint16).reshape(512, 2, 4)] * 2
        store.save(family, MODEL, make_tokens(512), bits)
        restored = store.restore(family, MODEL, make_tokens(512))
        self.assertTrue(numpy.array_equal(restored.states[0].array(restored.planes[0]), bits[0]))

    def test_a_sink_copies_pieces_into_an_array(self):
        store = self.create()
        planes = self.planes()
        store.save(self.family, MODEL, make_tokens(512), planes, grain_tokens=256)
        flat = numpy.zeros((2, 512 * 8), numpy.float16)

        class Into(kvpack.Sink):
            def write(self, index, offset, data):
                piece = numpy.frombuffer(data, numpy.float16)
                flat[index, offset // 2:offset // 2 + len(piece)] = piece

            def commit(self):
                pass

        self.assertTrue(store.restore(self.family, MODEL, make_tokens(512), sink=Into()))
        self.assertTrue(numpy.array_equal(flat.reshape(2, 512, 2, 4), numpy.stack(planes)))

    def test_an_array_over_the_librarys_memory_is_refused(self):
        store = self.create()
        store.save(self.family, MODEL, make_tokens(512), self.planes())
        kept = []

        class Keeping(kvpack.Sink):
            def write(self, index, offset, data):
                kept.append(numpy.frombuffer(data, numpy.float16))

            def commit(self):
                pass

        with self.refused(1, "argument data outlives its callback"):
            store.restore(self.family, MODEL, make_tokens(512), sink=Keeping())
        kept.clear()

    def test_a_tensor_that_gives_no_memory_says_what_to_do(self):
        class Tensor:
            pass

        with self.refused(1, r"is a Tensor, which does not give its memory \(of a tensor on the CPU give .numpy\(\)\)"):
            self.create().save(self.family, MODEL, make_tokens(512), [Tensor(), Tensor()])


if __name__ == "__main__":
    support.main()
