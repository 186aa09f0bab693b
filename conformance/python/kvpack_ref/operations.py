"""The operations of conformance/README.md on the durable formats."""

import functools

from . import (blob, canonical_json, chunk, crypto, cut_chain, frames, identities, keys, merkle, objects,
               pack, pack_set, rotation, sidecar, transform, validate)
from .errors import Reject
from .protocol import Table, Fault, fault_unless, number, records, sized
from .scalars import CODECS, Reader, un

TABLE = Table()
operation = TABLE.operation


# ---------------------------------------------------------------------------------- words with structure

@functools.lru_cache(maxsize=64)
def _family(data):
    return objects.decode_family(data)


def _exactly(read, data):
    """`read` of the whole of data, where anything else is a malformed request."""
    reader = Reader(data)
    try:
        value = read(reader)
        reader.end()
    except Reject as refusal:
        raise Fault(str(refusal)) from None
    return value


def _placement(family, key, span):
    return chunk.Placement(_family(family), _exactly(Reader.key, key), _exactly(objects.read_span, span))


def _codec(word):
    fault_unless(word in CODECS, "unknown codec")
    return CODECS[word]


def _box(salt, nonce):
    fault_unless((salt is None) == (nonce is None), "salt and nonce come together")
    return None if salt is None else (sized(salt, crypto.SALT_BYTES), sized(nonce, crypto.NONCE_BYTES))


def _tokens(data):
    return [un(token, 0, 4) for token in records(data, 4)]


def _pairs(data):
    return [(pair[:32], pair[32:]) for pair in records(data, 64)]


def _model(data):
    return tuple(records(sized(data, 160), 32))


def _join(pieces):
    return b"".join(pieces)


# --------------------------------------------------------------------------------------- canonical objects

_OBJECTS = {
    "family": (objects.decode_family, objects.encode_family),
    "schema": (objects.decode_schema, objects.encode_schema),
    "declaration": (objects.decode_declaration, objects.encode_declaration),
    "manifest": (objects.decode_manifest, objects.encode_manifest),
    "sidecar": (sidecar.decode_sidecar, sidecar.encode_sidecar),
    "transform": (transform.decode_transform, transform.encode_transform),
    "rotation": (rotation.decode_rotation, rotation.encode_rotation),
}


def _register_objects():
    for kind, (decode, encode) in _OBJECTS.items():
        @operation("decode/verdict", kind, "b")
        def decode_object(_, data, decode=decode, encode=encode):
            return (encode(decode(data)),)


_register_objects()


@operation("verdict", "valid_family", "b")
def _valid_family(_, data):
    validate.check_family(objects.decode_family(data))
    return ()


@operation("verdict", "valid_manifest", "bnnn")
def _valid_manifest(_, data, *limits):
    validate.check_manifest(objects.decode_manifest(data), validate.Limits(*limits))
    return ()


# --------------------------------------------------------------------- frames, sidecar, auxiliary descriptors

@operation("encode", "frame", "wb")
def _encode_frame(_, codec, plaintext):
    return (frames.encode_frame(_codec(codec), plaintext),)


@operation("decode/verdict", "frame", "wbn")
def _decode_frame(_, codec, frame, expected):
    return (frames.decode_frame(_codec(codec), frame, expected),)


@operation("encode", "blob_rows", "nnn")
def _blob_rows(_, row_bytes, tokens, length):
    return (str(blob.rows_in_cut(length, row_bytes, tokens)),)


@operation("encode", "blob", "nnb")
def _encode_blob(_, row_bytes, tokens, data):
    return (blob.encode_blob(data, row_bytes, tokens),)


@operation("decode/verdict", "blob", "nb")
def _decode_blob(_, row_bytes, rows):
    return (blob.decode_blob(rows, row_bytes),)


@operation("encode", "sidecar", "nnnb")
def _encode_sidecar(_, tokens, channels, sinks, plane):
    data = sidecar.encode_sidecar(sidecar.derive_sidecar(tokens, channels, sinks, plane))
    sidecar.decode_sidecar(data)
    return (data,)


@operation("encode", "transform_execute", "bnnnnb")
def _execute(_, descriptor, *words):
    return (transform.execute_all(transform.decode_transform(descriptor), transform.Plane(*words[:4]),
                                  words[4]),)


@operation("encode", "transform_inverse", "bn")
def _inverse(_, descriptor, index):
    ops = transform.decode_transform(descriptor).ops
    fault_unless(index < len(ops), "no such op")
    inverse = transform.invert(ops[index])
    return (None if inverse is None else transform.encode_op(inverse),)


@operation("encode", "rotation_qwen25", "b")
def _rotation_qwen25(_, model_id):
    return (rotation.encode_rotation(rotation.qwen25(sized(model_id, 32))),)


# ---------------------------------------------------------------------------------------- chunks and packs

@operation("encode", "chunk", "bbbnbooo")
def _encode_chunk(session, family, key, span, epoch, plaintext, salt, nonce, stats):
    ring = session.need_ring()
    placement, box = _placement(family, key, span), _box(salt, nonce)
    # Epoch 0 has no schedule; the encoder refuses it before it looks at a key.
    schedule = ring.schedule(epoch) if epoch else ring.stable()
    ref, data = chunk.encode_chunk(plaintext, ring.tenant, placement, epoch, schedule, box, stats)
    return objects.encode_ref(ref), data


@operation("decode/verdict", "chunk", "bbbbb")
def _decode_chunk(session, family, key, span, reference, data):
    ring = session.need_ring()
    ref = _exactly(objects.read_ref, reference)
    placement, schedule = _placement(family, key, span), ring.schedule(ref.key_epoch)
    return chunk.decode_chunk(data, ref, placement, ring.tenant, schedule)


@operation("encode", "pack", "nboo")
def _encode_pack(session, epoch, manifest, salt, nonce):
    schedule = session.need_ring().schedule(epoch)
    return pack.encode_pack(objects.decode_manifest(manifest), schedule, _box(salt, nonce))


@operation("decode/verdict", "pack", "nb")
def _decode_pack(session, epoch, data):
    schedule = session.need_ring().schedule(epoch)
    return (objects.encode_manifest(pack.decode_pack(data, schedule)),)


@operation("decode/verdict", "pack_verify", "nb")
def _verify_pack(session, epoch, data):
    return _header_words(pack.verify_pack(data, session.need_ring().schedule(epoch)))


@operation("decode/verdict", "pack_header", "b")
def _pack_header(_, data):
    return _header_words(pack.inspect_header(data))


def _header_words(header):
    return (int(header.encrypted), header.stored_bytes, header.plaintext_bytes, header.key_epoch,
            header.tenant, header.manifest_id)


# ---------------------------------------------------------------------------------------------- identities

@operation("encode", "semantic_model_id", "b")
def _semantic_model_id(_, model):
    return (identities.semantic_model_id(_model(model)),)


@operation("encode", "family_id", "b")
def _family_id(_, data):
    return (identities.family_id(_family(data)),)


@operation("encode", "schema_id", "b")
def _schema_id(_, data):
    return (identities.schema_id(objects.decode_schema(data)),)


@operation("encode", "manifest_id", "b")
def _manifest_id(_, data):
    return (identities.manifest_id(objects.encode_manifest(objects.decode_manifest(data))),)


@operation("encode", "namespace_id", "b")
def _namespace_id(session, operator):
    return (keys.namespace_id(session.need_ring().stable()["namespace"], operator),)


@operation("encode", "tenant_namespace", "bbnb")
def _tenant_namespace(_, stable_root, epoch_root, epoch, operator):
    return (keys.tenant_namespace(sized(stable_root, 32), sized(epoch_root, 32), epoch, operator),)


@operation("encode", "auxiliary_root", "b")
def _auxiliary_root(session, pairs):
    ring = session.need_ring()
    return (identities.auxiliary_root(ring.stable()["prefix"], ring.tenant, _pairs(pairs)),)


@operation("encode", "input_cut", "bbbb")
def _input_cut(session, family, model, pairs, tokens):
    ring = session.need_ring()
    cut, nodes = identities.derive_input_cut(ring.stable()["prefix"], ring.tenant, _model(model),
                                             _family(family), _pairs(pairs), _tokens(tokens))
    words = ["%d:%d:%s" % (node.token_count, node.reusable, node.id.hex()) for node in nodes]
    return [cut.token_root, cut.auxiliary_root, cut.token_count] + words


@operation("encode", "content_id", "bbbb")
def _content_id(session, family, key, span, plaintext):
    ring = session.need_ring()
    where = _placement(family, key, span)
    return (identities.content_id(ring.stable()["chunk_identity"], ring.tenant,
                                  identities.family_id(where.family), where.key, where.span, plaintext),)


@operation("encode", "object_key", "bbnwooo")
def _object_key(session, family, content, epoch, codec, salt, nonce, stats_digest):
    ring = session.need_ring()
    stats = stats_digest and sized(stats_digest, 32)
    return (identities.object_key(ring.schedule(epoch)["object_identity"], ring.tenant,
                                  identities.family_id(_family(family)), sized(content, 32), epoch,
                                  _codec(codec), _box(salt, nonce), stats),)


@operation("encode", "stats_digest", "b")
def _stats_digest(_, data):
    return (crypto.sha256(sidecar.encode_sidecar(sidecar.decode_sidecar(data))),)


@operation("encode", "transform_id", "b")
def _transform_id(_, data):
    return (transform.transform_id(transform.decode_transform(data)),)


@operation("encode", "rotation_id", "b")
def _rotation_id(_, data):
    return (rotation.rotation_id(rotation.decode_rotation(data)),)


@operation("encode", "rotation_abi", "bb")
def _rotation_abi(_, base_abi, identity):
    return (rotation.bound_abi(sized(base_abi, 32), sized(identity, 32)),)


@operation("encode", "restore_chain", "b")
def _restore_chain(_, manifest_ids):
    return (identities.restore_chain_id(records(manifest_ids, 32)),)


@operation("encode", "key", "wn")
def _key(session, name, epoch):
    fault_unless(name in keys.KEY_NAMES, "unknown key name")
    return (session.need_ring().schedule(epoch)[name],)


# ------------------------------------------------------------------------------------ cut chain and Merkle

@operation("encode", "cut_chain", "bbwb*")
def _cut_chain(_, key, namespace, policy, *pushes):
    name, *numbers = policy.split(":")
    policies = {("flat", 1): cut_chain.flat, ("two-tier", 3): cut_chain.two_tier}
    fault_unless((name, len(numbers)) in policies, "unknown stride policy")
    strides = policies[name, len(numbers)](*map(number, numbers))
    deriver = cut_chain.CutChain(sized(key, 32), sized(namespace, 32), strides)
    return [_push(deriver, _tokens(tokens)) for tokens in pushes]


def _push(deriver, tokens):
    try:
        return _join(deriver.push(tokens))
    except Reject as refusal:
        return str(refusal)


@operation("encode", "merkle_root", "b*")
def _merkle_root(_, *leaves):
    return (merkle.root(leaves),)


@operation("encode", "merkle_path", "nb*")
def _merkle_path(_, index, *leaves):
    return merkle.audit_path(index, leaves)


@operation("verdict", "merkle_path", "bnnbb*")
def _check_merkle_path(_, leaf, index, count, root, *path):
    merkle.check_path(sized(leaf, 32), index, count, [sized(p, 32) for p in path], sized(root, 32))
    return ()


# ------------------------------------------------------------------------------------------------ pack set

@operation("encode", "pack_set", "nnb*")
def _encode_set(session, epoch, pack_count, *files):
    fault_unless(pack_count <= len(files), "fewer files than packs")
    return (pack_set.encode_set(session.need_ring(), epoch, files[:pack_count], files[pack_count:]),)


@operation("decode/verdict", "pack_set_open", "b")
def _open_set(session, data):
    opened = pack_set.open_set(data, session.ring)
    inventory = _join(pack_set.encode_entry(entry) for entry in opened.entries)
    return opened.tenant, opened.key_epoch, opened.head, opened.root, inventory


@operation("verdict", "pack_set", "b")
def _verify_set(session, data):
    return (pack_set.verify_set(data, session.ring),)


@operation("decode/verdict", "pack_set_record", "bn")
def _set_record(session, data, index):
    opened = pack_set.open_set(data, session.ring)
    fault_unless(index < len(opened.entries), "no such record")
    entry = opened.entries[index]
    return entry.kind, pack_set.read_record(data, entry, opened.tenant)


@operation("verdict", "pack_set_footer", "b")
def _set_footer(session, footer):
    pack_set.check_footer(sized(footer, 4096), session.ring)
    return ()


@operation("encode", "pack_set_proof", "bn")
def _prove(session, data, index):
    return (pack_set.prove(data, index, session.ring),)


@operation("verdict", "pack_set_proof", "bo")
def _check_proof(session, proof, record):
    pack_set.check_proof(proof, session.ring, record)
    return ()


# ------------------------------------------------------------------------------------------ canonical JSON

@operation("encode", "canonical_json", "b")
def _encode_json(_, text):
    return (canonical_json.encode(canonical_json.parse(text)),)


@operation("verdict", "canonical_json", "nb")
def _strict_json(_, max_bytes, text):
    canonical_json.strict(text, max_bytes)
    return ()
