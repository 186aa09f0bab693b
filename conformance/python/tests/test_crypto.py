"""The primitives against published test vectors, and the two AEADs against each other."""

import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from kvpack_ref import crypto, frames, keys, sidecar  # noqa: E402  the path comes first
from kvpack_ref.fixtures import ROOT, TENANT, ramp  # noqa: E402
from kvpack_ref.scalars import LOSSLESS  # noqa: E402


class Primitives(unittest.TestCase):
    def test_aead_matches_rfc_8439(self):
        key, nonce = ramp(0x80, 32), bytes.fromhex("070000004041424344454647")
        aad = bytes.fromhex("50515253c0c1c2c3c4c5c6c7")
        text = (b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for "
                b"the future, sunscreen would be it.")
        box = crypto.own_seal(key, nonce, text, aad)
        self.assertEqual(box[:16].hex(), "d31a8d34648e60db7b86afbc53ef7ec2")
        self.assertEqual(box[-16:].hex(), "1ae10b594f09e26a7e902ecbd0600691")
        self.assertEqual(crypto.own_unseal(key, nonce, box, aad), text)
        self.assertEqual(crypto.seal(key, nonce, text, aad), box)

    def test_both_aeads_agree_and_refuse(self):
        key, nonce = ramp(1, 32), ramp(2, 12)
        for size in (0, 1, 63, 64, 65, 300):
            box = crypto.own_seal(key, nonce, ramp(3, size), ramp(4, size % 17))
            self.assertEqual(crypto.seal(key, nonce, ramp(3, size), ramp(4, size % 17)), box)
            for unseal in (crypto.unseal, crypto.own_unseal):
                self.assertEqual(unseal(key, nonce, box, ramp(4, size % 17)), ramp(3, size))
                self.assertIsNone(unseal(key, nonce, box[:-1] + bytes([box[-1] ^ 1]), ramp(4, size % 17)))
                self.assertIsNone(unseal(key, nonce, box, b"other"))
                self.assertIsNone(unseal(key, nonce, box[:15], b""))

    def test_hkdf_matches_rfc_5869(self):
        self.assertEqual(crypto.hkdf(ramp(0, 13), b"\x0b" * 22, ramp(0xF0, 10)).hex(),
                         "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf")

    def test_keys_are_distinct_and_stable_ones_survive_an_epoch(self):
        first, second = (keys.derive_schedule(ROOT, ROOT, TENANT, epoch) for epoch in (7, 8))
        self.assertEqual(len(set(first.values())), 7)
        kept = {name for name in first if first[name] == second[name]}
        self.assertEqual(kept, set(keys.STABLE_LABELS))

    def test_half_rounding(self):
        for value, bits in ((0.0, 0), (-0.0, 0x8000), (1.0, 0x3C00), (65504.0, 0x7BFF), (65519.0, 0x7BFF),
                            (65520.0, 0x7C00), (2.0 ** -24, 1), (2.0 ** -25, 0), (1 + 2.0 ** -11, 0x3C00),
                            (1 + 3 * 2.0 ** -11, 0x3C02), (65488.0, 0x7BFE), (float("nan"), 0x7E00),
                            (float("-inf"), 0xFC00)):
            self.assertEqual(sidecar.half_bits(value), bits, value)
        for bits in filter(sidecar.is_finite, range(65536)):
            self.assertEqual(sidecar.half_bits(sidecar.half_value(bits)), bits)

    def test_packets_come_back_and_never_outgrow_their_bound(self):
        state = 12345
        for size in range(1, 400):
            data = bytearray()
            while len(data) < size:
                state = (state * 1103515245 + 12345) & 0x7FFFFFFF
                data += bytes([state >> 20 & 3]) * (1 + (state >> 8) % 5)
            data = bytes(data[:size])
            frame = frames.encode_frame(LOSSLESS, data)
            self.assertLessEqual(len(frame), 16 + size + -(-size // 128))
            self.assertEqual(frames.decode_frame(LOSSLESS, frame, size), data)


if __name__ == "__main__":
    unittest.main()
