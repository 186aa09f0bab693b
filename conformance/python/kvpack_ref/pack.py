"""Pack files: one cut manifest, optionally encrypted, under a keyed commit footer."""

import collections

from . import crypto, identities
from .errors import need
from .objects import decode_manifest, encode_manifest
from .scalars import MAX_MANIFEST, PAGE, all_zero, digest_blanked, le, un
from .validate import DEFAULT_LIMITS, check_manifest

MAGIC = b"KVPKP1\0\0"
FOOTER_MAGIC = b"KVCMT1\0\0"
DIGEST_AT = 148

Header = collections.namedtuple("Header", "encrypted stored_bytes plaintext_bytes key_epoch tenant "
                                          "manifest_id salt nonce")


def encode_pack(manifest, keys, box=None):
    """(manifest id, pack). `box` is (salt, nonce) to encrypt with."""
    check_manifest(manifest)
    canonical = encode_manifest(manifest)
    need(len(canonical) <= MAX_MANIFEST, "bounds", "manifest exceeds production bound")
    return wrap_manifest(canonical, manifest.tenant, manifest.key_epoch, keys, box)


def wrap_manifest(canonical, tenant, epoch, keys, box=None):
    """The pack around manifest bytes, which are not looked at."""
    manifest_id = identities.manifest_id(canonical)
    salt, nonce = box or (bytes(crypto.SALT_BYTES), bytes(crypto.NONCE_BYTES))
    stored = len(canonical) + (crypto.TAG_BYTES if box else 0)
    head = MAGIC + le(2, 1) + le(2, PAGE) + le(4, PAGE) + le(4, box is not None) + le(4, 0)
    head += le(8, stored) + le(8, len(canonical)) + le(8, epoch) + le(8, 0)
    head += tenant + manifest_id + salt + nonce
    head = head.ljust(PAGE, b"\0")
    head = head[:DIGEST_AT] + crypto.sha256(head) + head[DIGEST_AT + 32:]
    body = canonical
    if box:
        body = crypto.seal(_data_key(keys, salt, manifest_id), nonce, canonical, head)
    total = stored + 2 * PAGE
    footer = FOOTER_MAGIC + le(2, 1) + le(2, PAGE) + le(4, 0) + le(8, stored) + le(8, epoch)
    footer += le(8, 0) + le(8, total) + manifest_id + _footer_mac(keys, head, body, epoch, total)
    return manifest_id, head + body + footer.ljust(PAGE, b"\0")


def decode_pack(data, keys, limits=DEFAULT_LIMITS):
    """The manifest. `keys` is the schedule of the header's epoch."""
    header = verify_pack(data, keys)
    canonical = data[PAGE:-PAGE]
    if header.encrypted:
        need(len(canonical) >= crypto.TAG_BYTES, "truncated", "truncated encrypted manifest")
        key = _data_key(keys, header.salt, header.manifest_id)
        canonical = crypto.unseal(key, header.nonce, canonical, data[:PAGE])
        need(canonical is not None, "authentication", "manifest AEAD authentication failed")
    return _open_manifest(header, canonical, limits)


def decode_without_keys(data):
    """What can be checked of a pack without keys. The manifest, or None when it is encrypted."""
    header = _check_framing(data)
    if header.encrypted:
        need(len(data) - 2 * PAGE >= crypto.TAG_BYTES, "truncated", "truncated encrypted manifest")
        return None
    return _open_manifest(header, data[PAGE:-PAGE], DEFAULT_LIMITS)


def verify_pack(data, keys):
    """The authenticated header; the manifest is not opened."""
    header = _check_framing(data)
    wanted = _footer_mac(keys, data[:PAGE], data[PAGE:-PAGE], header.key_epoch, len(data))
    need(crypto.same_tag(wanted, data[-PAGE:][80:112]), "authentication",
         "manifest HMAC authentication failed")
    return header


def inspect_header(data):
    """The header of a pack, unauthenticated: used to choose keys by its epoch."""
    need(len(data) >= PAGE, "truncated", "truncated production pack header")
    header = _parse_header(data)
    _check_header_digest(data)
    return header


def _parse_header(data):
    need(data[:8] == MAGIC, "bad_magic", "invalid production pack magic")
    need((un(data, 8, 2), un(data, 10, 2), un(data, 12, 4)) == (1, PAGE, PAGE), "bad_magic",
         "invalid production pack header contract")
    flags = un(data, 16, 4)
    need(flags & ~1 == 0, "reserved", "unknown pack flags")
    need(all_zero(data[20:24]) and all_zero(data[48:56]) and all_zero(data[180:PAGE]), "reserved",
         "pack header reserved bytes are nonzero")
    need(flags or all_zero(data[120:148]), "reserved", "unencrypted manifest salt or nonce is nonzero")
    return Header(bool(flags), un(data, 24, 8), un(data, 32, 8), un(data, 40, 8), data[56:88],
                  data[88:120], data[120:136], data[136:148])


def _check_header_digest(data):
    need(digest_blanked(crypto.sha256, data[:PAGE], DIGEST_AT, DIGEST_AT + 32)
         == data[DIGEST_AT:DIGEST_AT + 32], "checksum", "pack header digest mismatch")


def _check_framing(data):
    need(len(data) >= 2 * PAGE, "truncated", "truncated production pack")
    header = _parse_header(data)
    need(header.stored_bytes <= MAX_MANIFEST + crypto.TAG_BYTES and header.plaintext_bytes <= MAX_MANIFEST,
         "bounds", "manifest exceeds production bound")
    footer = data[-PAGE:]
    need(footer[:8] == FOOTER_MAGIC, "bad_magic", "invalid production commit footer magic")
    need((un(footer, 8, 2), un(footer, 10, 2)) == (1, PAGE) and all_zero(footer[12:16])
         and all_zero(footer[32:40]) and all_zero(footer[112:]), "reserved",
         "invalid production commit footer")
    bound = (un(footer, 16, 8), un(footer, 24, 8), un(footer, 40, 8), footer[48:80])
    need(len(data) - 2 * PAGE == header.stored_bytes
         and bound == (header.stored_bytes, header.key_epoch, len(data), header.manifest_id), "bounds",
         "pack footer binding mismatch")
    _check_header_digest(data)
    return header


def _open_manifest(header, canonical, limits):
    need(len(canonical) == header.plaintext_bytes
         and identities.manifest_id(canonical) == header.manifest_id, "authentication",
         "manifest content identity mismatch")
    manifest = decode_manifest(canonical)
    need((manifest.tenant, manifest.key_epoch) == (header.tenant, header.key_epoch), "authentication",
         "manifest header identity mismatch")
    check_manifest(manifest, limits)
    return manifest


def _footer_mac(keys, head, body, epoch, total):
    return crypto.mac(keys["manifest_auth"], b"kvpack/v1/manifest-auth\0", head, body, le(8, len(body)),
                      le(8, epoch), le(8, total))


def _data_key(keys, salt, manifest_id):
    return crypto.hkdf(salt, keys["manifest_encryption"], b"kvpack/v1/manifest-aead\0" + manifest_id)
