"""Key rings that the corpora name, as the words after `keys`."""

from .fixtures import ROOT, TENANT, ident
from .keys import KeyRing


def _words(root, tenant, *epochs):
    return [root.hex(), root.hex(), tenant.hex()] + [str(epoch) for epoch in epochs]


RINGS = {
    "none": ["none"],
    "fixture": _words(ROOT, TENANT, 7),
    "other-root": _words(ident(98), TENANT, 7),
    "other-tenant": _words(ROOT, ident(9), 7),
    "epoch-8": _words(ROOT, TENANT, 8),
    "epochs-7-8": _words(ROOT, TENANT, 7, 8),
    "epochs-7-9": _words(ROOT, TENANT, 7, 9),
    "epochs-8-9": _words(ROOT, TENANT, 8, 9),
    "epochs-7-8-9": _words(ROOT, TENANT, 7, 8, 9),
}


def ring(name):
    words = RINGS[name]
    return None if words == ["none"] else KeyRing(*map(bytes.fromhex, words[:3]), map(int, words[3:]))
