"""Identities of models, families, schemas, manifests, chunks and inputs."""

import collections

from .crypto import mac, sha256
from .errors import need
from .objects import InputCut, encode_family, encode_schema
from .scalars import BLOCK_TOKENS, ZERO_ID, encode_key, le

Node = collections.namedtuple("Node", "token_count reusable id")


def semantic_model_id(model):
    return sha256(b"kvpack/v1/semantic-model\0", *model)


def family_id(family):
    return sha256(b"kvpack/v1/representation-family\0", encode_family(family))


def schema_id(schema):
    return sha256(b"kvpack/v1/realized-cut-schema\0", encode_schema(schema))


def manifest_id(canonical):
    return sha256(b"kvpack/v1/manifest\0", canonical)


def restore_chain_id(manifest_ids):
    """`manifest_ids` from the root to the leaf."""
    return sha256(b"kvpack/v1/restore-chain\0", le(8, len(manifest_ids)), *manifest_ids)


def auxiliary_root(prefix_key, tenant, pairs):
    """`pairs` of (type id, value id) in the caller's order."""
    frame = [le(4, len(pairs))]
    for ordinal, (type_id, value_id) in enumerate(pairs):
        need(ZERO_ID not in (type_id, value_id), "semantics",
             "auxiliary identity contains a zero component")
        frame += [le(8, ordinal), le(4, 32), type_id, le(4, 32), value_id]
    return mac(prefix_key, b"kvpack/v1/auxiliary-input-root\0", tenant, *frame)


def derive_input_cut(prefix_key, tenant, model, family, pairs, tokens):
    """The input cut of a token list, and the node of each of its blocks."""
    root = auxiliary_root(prefix_key, tenant, pairs)
    context = mac(prefix_key, b"kvpack/v1/prefix-context\0", tenant, semantic_model_id(model),
                  family_id(family), root)
    node = mac(prefix_key, b"kvpack/v1/prefix-root\0", context)
    nodes = []
    for start in range(0, len(tokens), BLOCK_TOKENS):
        block = tokens[start:start + BLOCK_TOKENS]
        count = len(block)
        node = mac(prefix_key, b"kvpack/v1/prefix-node\0", context, node, le(8, start // BLOCK_TOKENS),
                   le(8, start), le(4, count), le(4, 4 * count), *[le(4, token) for token in block])
        nodes.append(Node(start + count, count == BLOCK_TOKENS, node))
    return InputCut(node, root, len(tokens)), nodes


def content_id(identity_key, tenant, family_identity, key, span, plaintext):
    need(span.token_count != 0 and span.plaintext_bytes == len(plaintext), "semantics",
         "chunk plaintext does not match its declared span")
    return mac(identity_key, b"kvpack/v1/chunk-content\0", tenant, family_identity, encode_key(key),
               le(8, span.token_start), le(8, span.token_count), le(8, span.plaintext_offset),
               le(4, len(plaintext)), plaintext)


def object_key(identity_key, tenant, family_identity, content, epoch, codec, box, stats_digest=None):
    """`box` is (salt, nonce) of an encrypted object, None of a plain one; the codec version is 1."""
    salt, nonce = box or (bytes(16), bytes(12))
    stats = () if stats_digest is None else (b"kvpack/v1/chunk-object-stats\0", stats_digest)
    return mac(identity_key, b"kvpack/v1/chunk-object\0", tenant, family_identity, content, le(8, epoch),
               le(2, codec), le(2, 1), le(1, box is not None), salt, nonce, *stats)
