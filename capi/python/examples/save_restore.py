"""save_restore.py FOLDER: saves a small KV cache, finds the deepest prefix of a longer prompt, and goes on from it."""
import hashlib
import os
import pathlib
import sys

import kvpack

HEADS, HEAD_DIM, SAVED, WANTED = 2, 8, 700, 1000


def digest(text: str) -> bytes:
    """What an identity is made of. A real adapter hashes weights, tokenizer and settings."""
    return hashlib.sha256(text.encode()).digest()


def compute(start: int, end: int, state: int) -> bytes:
    """The engine's work: here, numbers that depend on their place."""
    return b"".join((31 * token + 7 * state).to_bytes(2, "little") * (HEADS * HEAD_DIM) for token in range(start, end))


def main(folder: pathlib.Path) -> None:
    secret = folder / "store.key"
    with open(os.open(secret, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
        file.write(os.urandom(32))
    keys = kvpack.Keys(secret, operator="example", active_epoch=1)
    model = kvpack.Model(digest("weights"), digest("no adapter"), digest("tokenizer"), digest("rope"), digest("kernels"))
    family = kvpack.Family(
        [kvpack.State(layer, name, "f16", (kvpack.TOKENS, HEADS, HEAD_DIM))
         for layer in range(2) for name in ("attention.k", "attention.v")],
        engine_cache_abi=digest("example 1"), topology=digest("one device"), shard_map=digest("whole"))
    tokens = [17 * i % 1000 for i in range(WANTED)]

    with kvpack.Store.create(folder / "store", keys, quota_bytes=1 << 30) as store:
        planes = [compute(0, SAVED, state) for state in range(len(family.states))]
        saved = store.save(family, model, tokens[:SAVED], planes, export_stride_tokens=256, label="example")
        print("saved:", ", ".join("%d tokens" % cut.token_count for cut in saved.cuts))

    # Another process: the deepest prefix of a longer prompt becomes what its engine runs on.
    with kvpack.Store.open(folder / "store", keys, on_fault=lambda fault: print("damaged:", fault)) as store:
        restored = store.restore(family, model, tokens)
        print("restored: %d tokens, %d are left to compute" % (restored.token_count, restored.suffix_tokens))
        live = [bytes(plane) + compute(restored.token_count, WANTED, state)
                for state, plane in enumerate(restored.planes)]
        assert live == [compute(0, WANTED, state) for state in range(len(family.states))]

        # One bit of the identity differs: another cache, which is not there.
        other = kvpack.Model(digest("weights 2"), *[getattr(model, field) for field in (
            "adapters", "tokenizer_template", "position_semantics", "qualified_math")])
        assert not store.find(family, other, tokens)
        try:
            store.restore_cut(saved.manifest_id, expected=kvpack.Identity(model=other))
        except kvpack.ExpectationError as refusal:
            print("refused:", refusal.message)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
