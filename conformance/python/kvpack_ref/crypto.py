"""SHA-256, HMAC-SHA-256, HKDF-SHA-256 and ChaCha20-Poly1305 (RFC 8439).

The AEAD comes from the `cryptography` package where that is installed, else from the code below; both give
the same bytes.
"""

import hashlib
import hmac
import struct

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
except ImportError:
    ChaCha20Poly1305 = None

TAG_BYTES = 16
SALT_BYTES = 16
NONCE_BYTES = 12


def sha256(*parts):
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.digest()


def mac(key, *parts):
    """HMAC-SHA-256 of the concatenated parts."""
    return hmac.digest(key, b"".join(parts), "sha256")


def hkdf(salt, ikm, info):
    """The first 32 bytes of HKDF-SHA-256 (RFC 5869), which is one round of its expansion."""
    return mac(mac(salt, ikm), info, b"\x01")


def same_tag(a, b):
    return hmac.compare_digest(a, b)


def seal(key, nonce, plaintext, aad):
    """Ciphertext followed by its tag."""
    if ChaCha20Poly1305 is None:
        return own_seal(key, nonce, plaintext, aad)
    return ChaCha20Poly1305(key).encrypt(nonce, plaintext, aad)


def unseal(key, nonce, box, aad):
    """The plaintext, or None when the box does not authenticate."""
    if ChaCha20Poly1305 is None:
        return own_unseal(key, nonce, box, aad)
    try:
        return ChaCha20Poly1305(key).decrypt(nonce, box, aad)
    except InvalidTag:
        return None


def own_seal(key, nonce, plaintext, aad):
    ciphertext = _xor_stream(key, nonce, plaintext)
    return ciphertext + _poly1305(key, nonce, aad, ciphertext)


def own_unseal(key, nonce, box, aad):
    ciphertext, tag = box[:-TAG_BYTES], box[-TAG_BYTES:]
    if len(box) < TAG_BYTES or not same_tag(_poly1305(key, nonce, aad, ciphertext), tag):
        return None
    return _xor_stream(key, nonce, ciphertext)


_ROUNDS = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15),
           (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))


def _chacha_block(key, counter, nonce):
    mask = 0xFFFFFFFF
    start = struct.unpack("<4I", b"expand 32-byte k") + struct.unpack("<8I", key)
    start += (counter,) + struct.unpack("<3I", nonce)
    x = list(start)
    for _ in range(10):
        for a, b, c, d in _ROUNDS:
            for add_to, added, mixed, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
                x[add_to] = (x[add_to] + x[added]) & mask
                v = x[mixed] ^ x[add_to]
                x[mixed] = ((v << turn) | (v >> (32 - turn))) & mask
    return struct.pack("<16I", *[(u + v) & mask for u, v in zip(x, start)])


def _xor_stream(key, nonce, data):
    out = bytearray()
    for at in range(0, len(data), 64):
        keystream = _chacha_block(key, 1 + at // 64, nonce)
        out += bytes(p ^ q for p, q in zip(data[at:at + 64], keystream))
    return bytes(out)


def _poly1305(key, nonce, aad, ciphertext):
    one_time = _chacha_block(key, 0, nonce)[:32]
    r = int.from_bytes(one_time[:16], "little") & 0x0FFFFFFC0FFFFFFC0FFFFFFC0FFFFFFF
    s = int.from_bytes(one_time[16:], "little")
    message = aad + bytes(-len(aad) % 16) + ciphertext + bytes(-len(ciphertext) % 16)
    message += struct.pack("<QQ", len(aad), len(ciphertext))
    total = 0
    for at in range(0, len(message), 16):
        total = (total + int.from_bytes(message[at:at + 16] + b"\x01", "little")) * r % ((1 << 130) - 5)
    return ((total + s) & ((1 << 128) - 1)).to_bytes(16, "little")
