"""Merkle tree of RFC 6962 section 2.1 over SHA-256."""

from .crypto import sha256
from .errors import need


def leaf_hash(data):
    return sha256(b"\0", data)


def node_hash(left, right):
    return sha256(b"\1", left, right)


def root(leaves):
    """The root of a non-empty list, in one pass over a stack of complete subtrees."""
    need(leaves, "bounds", "merkle tree has no leaves")
    stack = []
    for count, data in enumerate(leaves):
        top = leaf_hash(data)
        # Each trailing one bit of the count is a complete subtree waiting for its right sibling.
        while count & 1:
            top = node_hash(stack.pop(), top)
            count >>= 1
        stack.append(top)
    top = stack.pop()
    while stack:
        top = node_hash(stack.pop(), top)
    return top


def audit_path(index, leaves):
    """Siblings from the leaf upward."""
    count = len(leaves)
    need(index < count, "bounds", "merkle leaf index is outside the tree")
    if count == 1:
        return []
    split = 1 << ((count - 1).bit_length() - 1)
    if index < split:
        return audit_path(index, leaves[:split]) + [root(leaves[split:])]
    return audit_path(index - split, leaves[split:]) + [root(leaves[:split])]


def check_path(leaf, index, count, path, expected_root):
    """Refuse unless the leaf hash is leaf `index` of the `count` under that root."""
    need(index < count, "bounds", "merkle leaf index is outside the tree")
    sides, last, at = [], count - 1, index
    while last:
        if at & 1:
            sides.append("left")
        elif at < last:
            sides.append("right")
        at, last = at >> 1, last >> 1
    need(len(path) == len(sides), "bounds", "merkle audit path has the wrong length")
    for side, sibling in zip(sides, path):
        leaf = node_hash(sibling, leaf) if side == "left" else node_hash(leaf, sibling)
    need(leaf == expected_root, "checksum", "merkle root mismatch")
