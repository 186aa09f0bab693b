"""Names under which the corpora refer to vectors: `@pack` in a request is the row named here."""

from . import fixtures

_PLAIN, _ENCRYPTED = "fixture/raw/plain/plain", "fixture/lossless/encrypted/encrypted"

# name: (file under vectors/, suite, row)
SLOTS = {
    "declaration": ("production_v1", _PLAIN, "state_declaration"),
    "family": ("production_v1", _PLAIN, "family"),
    "schema": ("production_v1", _PLAIN, "schema"),
    "manifest": ("production_v1", _PLAIN, "manifest"),
    "raw_frame": ("production_v1", _PLAIN, "raw_frame"),
    "lossless_frame": ("production_v1", _PLAIN, "lossless_frame"),
    "chunk": ("production_v1", _PLAIN, "chunk"),
    "pack": ("production_v1", _PLAIN, "pack"),
    "delta_manifest": ("production_v1", "delta-chain/raw/plain/plain", "stage-7/manifest"),
    "chunk_re": ("production_v1", "fixture/raw/encrypted/plain", "chunk"),
    "chunk_lp": ("production_v1", "fixture/lossless/plain/plain", "chunk"),
    "family_l": ("production_v1", _ENCRYPTED, "family"),
    "manifest_e": ("production_v1", _ENCRYPTED, "manifest"),
    "chunk_e": ("production_v1", _ENCRYPTED, "chunk"),
    "pack_e": ("production_v1", _ENCRYPTED, "pack"),
    "sidecar": ("extras", "sidecar", "sidecar"),
    "sidecar_family": ("extras", "sidecar", "family"),
    "sidecar_chunk": ("extras", "sidecar", "chunk"),
    "rotation": ("extras", "rotation", "descriptor"),
    "every_op": ("extras", "transform", "every_op"),
    "one_rope": ("extras", "transform", "one_rope"),
    "one": ("pack_sets", "pack-set", "one"),
    "chain3": ("pack_sets", "pack-set", "chain3"),
    "chain8": ("pack_sets", "pack-set", "chain8"),
}


def tables():
    """{file: {(suite, row): value}} of everything a slot can name."""
    sets = {("pack-set", name): value for name, value in fixtures.pack_sets().items()}
    return {"production_v1": {(suite, name): value for suite, name, value in fixtures.vectors()},
            "extras": {(suite, name): value for suite, name, value in fixtures.extras()}, "pack_sets": sets}


def values(from_tables):
    """{slot name: bytes}."""
    return {slot: from_tables[table][suite, name] for slot, (table, suite, name) in SLOTS.items()}
