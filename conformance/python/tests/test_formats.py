"""Properties of the formats that no single vector shows."""

import os
import random
import sys
import unittest
from decimal import ROUND_HALF_EVEN, Decimal, localcontext

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from kvpack_ref import (chunk, fixtures, merkle, objects, pack, pack_set, rotation,  # noqa: E402
                        semantic_cases, sidecar, transform, validate)
from kvpack_ref.errors import Reject, verdict  # noqa: E402
from kvpack_ref.fixtures import EPOCH, KEYS, RING, TENANT  # noqa: E402
from kvpack_ref.scalars import le  # noqa: E402


def small_objects():
    """(name, bytes, decode, encode) of one object per kind."""
    manifest = fixtures.chain("raw", "plain", "plain")[7].manifest
    yield "family", objects.encode_family(manifest.family), objects.decode_family, objects.encode_family
    yield "schema", objects.encode_schema(manifest.schema), objects.decode_schema, objects.encode_schema
    yield "manifest", objects.encode_manifest(manifest), objects.decode_manifest, objects.encode_manifest
    yield ("declaration", objects.encode_declaration(fixtures.DECLARATION), objects.decode_declaration,
           objects.encode_declaration)
    yield ("sidecar", fixtures.sidecar_chunk().sidecar, sidecar.decode_sidecar, sidecar.encode_sidecar)
    yield ("transform", transform.encode_transform(fixtures.EVERY_OP), transform.decode_transform,
           transform.encode_transform)
    yield ("rotation", rotation.encode_rotation(rotation.qwen25(TENANT)), rotation.decode_rotation,
           rotation.encode_rotation)
    base = objects.encode_manifest(semantic_cases.base(delta=True))
    yield "three states", base, objects.decode_manifest, objects.encode_manifest


class Objects(unittest.TestCase):
    def test_come_back_as_they_were(self):
        for name, data, decode, encode in small_objects():
            self.assertEqual(encode(decode(data)), data, name)

    def test_every_truncation_is_truncated(self):
        for name, data, decode, _ in small_objects():
            for size in range(len(data)):
                answer = verdict(lambda: decode(data[:size]))
                self.assertEqual(answer, "truncated:truncated canonical object", (name, size))

    def test_whatever_decodes_is_canonical_and_the_rest_is_refused(self):
        rng = random.Random(1)
        for name, data, decode, encode in small_objects():
            for _ in range(400):
                damaged = bytearray(data)
                for _ in range(rng.randint(1, 3)):
                    damaged[rng.randrange(len(data))] = rng.choice((0, 1, 2, 255, rng.randrange(256)))
                damaged = bytes(damaged)
                try:
                    value = decode(damaged)
                    self.assertEqual(encode(value), damaged, name)
                    if isinstance(value, objects.Manifest):
                        validate.check_manifest(value)
                except Reject:
                    pass

    def test_a_long_dependency_chain_is_no_cycle(self):
        family = fixtures.family(1)
        prototype = family.states[0]
        names = [prototype.key._replace(layer=layer) for layer in range(3000)]
        family.states = [semantic_cases.put(fixtures.family(1).states[0], key=name) for name in names]
        for state, name in zip(family.states, names[1:]):
            state.dependencies = [name]
        self.assertEqual(verdict(lambda: validate.check_family(family)), "ok")
        family.states[-1].dependencies = [names[0]]
        self.assertEqual(verdict(lambda: validate.check_family(family)), "graph:state dependency cycle")


class Containers(unittest.TestCase):
    def test_chunks_and_packs_come_back(self):
        for suite in fixtures.SUITES:
            for stage in [fixtures.fixture(*suite)] + fixtures.chain(*suite):
                opened = chunk.decode_chunk(stage.chunk, stage.ref, stage.placement, TENANT, KEYS)
                self.assertEqual(opened, (stage.plaintext, None))
                self.assertEqual(pack.decode_pack(stage.pack, KEYS), stage.manifest)
                keyless = pack.decode_without_keys(stage.pack)
                self.assertEqual(keyless, None if suite[2] == "encrypted" else stage.manifest)
                placement = stage.placement if keyless else None
                chunk.check_without_keys(stage.chunk, stage.ref, TENANT, placement)

    def test_sidecar_comes_back(self):
        stage = fixtures.sidecar_chunk()
        self.assertEqual(chunk.decode_chunk(stage.chunk, stage.ref, stage.placement, TENANT, KEYS),
                         (stage.plaintext, stage.sidecar))

    def test_set_writer_gives_the_same_file_for_any_chunk_order(self):
        stages = fixtures.chain("raw", "plain", "plain")[:3]
        packs, chunks = [s.pack for s in stages], [s.chunk for s in stages]
        files = {pack_set.encode_set(RING, EPOCH, packs, order) for order in (chunks, chunks[::-1])}
        self.assertEqual(len(files), 1)

    def test_every_record_of_a_set_can_be_proved(self):
        for name, data in fixtures.pack_sets().items():
            opened = pack_set.open_set(data, RING)
            for index, entry in enumerate(opened.entries):
                proof = pack_set.prove(data, index, RING)
                record = data[entry.offset:entry.offset + entry.size]
                for ring in (RING, None):
                    pack_set.check_proof(proof, ring, record)


class Merkle(unittest.TestCase):
    def test_every_path_of_every_small_tree(self):
        for count in range(1, 34):
            leaves = [le(4, i) for i in range(count)]
            root = merkle.root(leaves)
            for index in range(count):
                path, leaf = merkle.audit_path(index, leaves), merkle.leaf_hash(leaves[index])
                merkle.check_path(leaf, index, count, path, root)
                for other in range(count):
                    if other != index:
                        answer = verdict(lambda: merkle.check_path(leaf, other, count, path, root))
                        self.assertNotEqual(answer, "ok")

    def test_root_follows_the_recursive_definition(self):
        def recursive(leaves):
            if len(leaves) == 1:
                return merkle.leaf_hash(leaves[0])
            split = 1
            while 2 * split < len(leaves):
                split *= 2
            return merkle.node_hash(recursive(leaves[:split]), recursive(leaves[split:]))

        for count in range(1, 70):
            leaves = [bytes([i]) * i for i in range(count)]
            self.assertEqual(merkle.root(leaves), recursive(leaves))


class Rotation(unittest.TestCase):
    def test_pinned_table_is_the_nearest_integers(self):
        with localcontext() as context:
            context.prec = 80

            def arctangent_of_inverse(n):
                term = total = Decimal(1) / n
                k = 1
                while abs(term) > Decimal(10) ** -78:
                    term, k = -term / (n * n), k + 2
                    total += term / k
                return total

            turn = 8 * (4 * arctangent_of_inverse(5) - arctangent_of_inverse(239))
            log = Decimal(10 ** 6).ln()
            table = [int((Decimal(1 << 64) * (-log * i / 64).exp() / turn).to_integral_value(ROUND_HALF_EVEN))
                     for i in range(64)]
        self.assertEqual(table, rotation.QWEN25_INCREMENTS)


if __name__ == "__main__":
    unittest.main()
