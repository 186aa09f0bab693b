"""Chunk objects: one span of one state, framed, optionally encrypted, bound to its keyed identity."""

import collections

from . import crypto, frames, identities
from .errors import Reject, need
from .objects import ChunkRef
from .scalars import (FRAME_HEADER, MAX_CHUNK_OBJECT, MAX_CODEC_OVERHEAD, MAX_PLAINTEXT, MAX_SIDECAR, PAGE,
                      all_zero, digest_blanked, le, page_up, un)
from .sidecar import decode_sidecar

MAGIC = b"KVCHK1\0\0"
F16 = 6
DIGEST_AT = 204
SIDECAR_AT = 238

# Where a chunk belongs: its span, and the state of the family it is a part of.
Placement = collections.namedtuple("Placement", "family key span")
Header = collections.namedtuple("Header", "encrypted codec plaintext_bytes frame_bytes key_epoch tenant "
                                          "family_id content_id object_key salt nonce payload sidecar")


def encode_chunk(plaintext, tenant, placement, epoch, keys, box=None, sidecar=None):
    """(reference, object). `box` is (salt, nonce) to encrypt with, `sidecar` the canonical sidecar bytes."""
    family, key, span = placement
    need(epoch != 0, "semantics", "chunk key epoch must be nonzero")
    need(span.plaintext_bytes == len(plaintext) and span.token_count, "semantics",
         "chunk plaintext does not match its declared span")
    state = find_state(family, key)
    need(state.codec_version == 1, "codec", "unsupported chunk codec version")
    frame = frames.encode_frame(state.codec, plaintext)
    family_id = identities.family_id(family)
    content = identities.content_id(keys["chunk_identity"], tenant, family_id, key, span, plaintext)
    stats = None
    if sidecar is not None:
        need(1 <= len(sidecar) <= MAX_SIDECAR, "bounds",
             "stats sidecar exceeds the chunk header capacity")
        told = decode_sidecar(sidecar)
        need((state.dtype, len(told.ranges), len(told.norms))
             == (F16, state.elements_per_token, span.token_count), "semantics",
             "stats sidecar does not match its chunk")
        stats = crypto.sha256(sidecar)
    object_key = identities.object_key(keys["object_identity"], tenant, family_id, content, epoch,
                                       state.codec, box, stats)
    payload_bytes = len(frame) + (crypto.TAG_BYTES if box else 0)
    total = page_up(PAGE + payload_bytes)
    need(total <= MAX_CHUNK_OBJECT, "bounds", "encoded chunk object exceeds bound")
    salt, nonce = box or (bytes(crypto.SALT_BYTES), bytes(crypto.NONCE_BYTES))
    head = MAGIC + le(2, 1) + le(2, PAGE) + le(4, PAGE) + le(4, box is not None) + le(2, state.codec)
    head += le(2, 1) + le(4, len(plaintext)) + le(4, len(frame)) + le(4, payload_bytes) + le(4, total)
    head += le(8, epoch) + tenant + family_id + content + object_key + salt + nonce + bytes(32)
    head += b"" if sidecar is None else le(2, len(sidecar)) + sidecar
    head = head.ljust(PAGE, b"\0")
    head = head[:DIGEST_AT] + crypto.sha256(head) + head[DIGEST_AT + 32:]
    payload = frame
    if box:
        payload = crypto.seal(_data_key(keys, salt, content, object_key), nonce, frame, head)
    data = (head + payload).ljust(total, b"\0")
    ref = ChunkRef(content, object_key, crypto.sha256(data), epoch, len(plaintext), total)
    return ref, data


def decode_chunk(data, ref, placement, tenant, keys):
    """(plaintext, sidecar bytes or None); `keys` is the schedule of the reference's epoch."""
    header = parse_chunk(data)
    family_id = _check_placement(data, header, ref, placement, tenant)
    stats = None if header.sidecar is None else crypto.sha256(header.sidecar)
    box = (header.salt, header.nonce) if header.encrypted else None
    recomputed = identities.object_key(keys["object_identity"], tenant, family_id, header.content_id,
                                       ref.key_epoch, header.codec, box, stats)
    _check_names(header, ref, recomputed)
    frame = header.payload
    if header.encrypted:
        key = _data_key(keys, header.salt, header.content_id, header.object_key)
        frame = crypto.unseal(key, header.nonce, frame, data[:PAGE])
        need(frame is not None, "authentication", "chunk AEAD authentication failed")
    need(len(frame) == header.frame_bytes, "bounds", "chunk encoded length mismatch")
    plaintext = frames.decode_frame(header.codec, frame, header.plaintext_bytes)
    content = identities.content_id(keys["chunk_identity"], tenant, family_id, placement.key,
                                    placement.span, plaintext)
    need(content == header.content_id, "authentication", "chunk plaintext identity mismatch")
    return plaintext, header.sidecar


def check_without_keys(data, ref, tenant, placement=None):
    """What can be checked without keys; without the placement (in an encrypted manifest) still less."""
    header = parse_chunk(data)
    if placement is None:
        _check_digests(data, ref)
    else:
        _check_placement(data, header, ref, placement, tenant)
    _check_names(header, ref, header.object_key)
    if not header.encrypted:
        frames.decode_frame(header.codec, header.payload, header.plaintext_bytes)


def parse_chunk(data):
    """The header and payload of an object whose framing is sound: all that needs only the bytes."""
    need(PAGE <= len(data) <= MAX_CHUNK_OBJECT and len(data) % PAGE == 0, "bounds",
         "invalid chunk object length")
    need(data[:8] == MAGIC, "bad_magic", "invalid production chunk magic")
    need((un(data, 8, 2), un(data, 10, 2), un(data, 12, 4)) == (1, PAGE, PAGE), "bad_magic",
         "invalid chunk header contract")
    flags, codec = un(data, 16, 4), un(data, 20, 2)
    need(flags & ~1 == 0, "reserved", "unknown chunk flags")
    if codec not in frames.MAGICS:
        raise Reject("unknown_enum", "unknown codec %d" % codec)
    need(un(data, 22, 2) == 1, "codec", "unsupported chunk codec version")
    plaintext_bytes, frame_bytes, payload_bytes, object_bytes = (un(data, at, 4) for at in (24, 28, 32, 36))
    need(1 <= plaintext_bytes <= MAX_PLAINTEXT
         and FRAME_HEADER <= frame_bytes <= MAX_PLAINTEXT + MAX_CODEC_OVERHEAD
         and object_bytes == len(data), "bounds", "invalid chunk size fields")
    need(payload_bytes == frame_bytes + (crypto.TAG_BYTES if flags else 0), "bounds",
         "chunk payload length does not match encryption mode")
    end = PAGE + payload_bytes
    need(end <= len(data), "truncated", "truncated chunk payload")
    need(all_zero(data[end:]), "reserved", "chunk padding is nonzero")
    sidecar = _parse_sidecar(data)
    need(flags or all_zero(data[176:204]), "reserved", "unencrypted chunk salt or nonce is nonzero")
    return Header(bool(flags), codec, plaintext_bytes, frame_bytes, un(data, 40, 8), data[48:80],
                  data[80:112], data[112:144], data[144:176], data[176:192], data[192:204],
                  data[PAGE:end], sidecar)


def _parse_sidecar(data):
    size = un(data, 236, 2)
    if size == 0:
        need(all_zero(data[SIDECAR_AT:PAGE]), "reserved", "chunk header reserved bytes are nonzero")
        return None
    need(size <= MAX_SIDECAR, "bounds", "chunk stats sidecar length is outside bounds")
    sidecar = data[SIDECAR_AT:SIDECAR_AT + size]
    decode_sidecar(sidecar)
    need(all_zero(data[SIDECAR_AT + size:PAGE]), "reserved", "chunk header sidecar padding is nonzero")
    return sidecar


def _check_placement(data, header, ref, placement, tenant):
    need(len(data) == ref.object_bytes
         and header.plaintext_bytes == ref.plaintext_bytes == placement.span.plaintext_bytes, "bounds",
         "chunk reference size mismatch")
    _check_digests(data, ref)
    state = find_state(placement.family, placement.key)
    need((header.codec, 1) == (state.codec, state.codec_version), "semantics",
         "chunk codec does not match representation family")
    family_id = identities.family_id(placement.family)
    need((header.tenant, header.family_id, header.key_epoch) == (tenant, family_id, ref.key_epoch),
         "authentication", "chunk namespace, family, or epoch mismatch")
    return family_id


def _check_digests(data, ref):
    need(crypto.sha256(data) == ref.stored_digest, "authentication", "chunk object digest mismatch")
    need(digest_blanked(crypto.sha256, data[:PAGE], DIGEST_AT, DIGEST_AT + 32)
         == data[DIGEST_AT:DIGEST_AT + 32], "authentication", "chunk header digest mismatch")


def _check_names(header, ref, recomputed_key):
    need(header.content_id == ref.content_id and header.object_key == ref.object_key == recomputed_key,
         "authentication", "chunk identity or object key mismatch")


def _data_key(keys, salt, content, object_key):
    return crypto.hkdf(salt, keys["chunk_encryption"], b"kvpack/v1/chunk-aead\0" + content + object_key)


def find_state(family, key):
    for state in family.states:
        if state.key == key:
            return state
    raise Reject("semantics", "chunk state is absent from representation family")
