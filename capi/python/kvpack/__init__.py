"""kvpack: KV caches saved, moved and given back as exactly the bytes that were asked for.

Python over the C interface (capi/kvpack_c.h), by ctypes alone. A guide is docs/python.md.

Handles (Keys, Family, Store, ...) free what they hold when they are closed or forgotten, `with` closes them, and a closed
one refuses every call. They may be used by several threads at once, whom a call does not keep from running. Every refusal
is an Error with a code, a category, a text and facts.
"""
from ._library import version
from .cache import LOGITS, Cache, CacheRestored, CacheSaved, factor_digest, factor_digest_file
from .cut import BorrowedCut, Cut
from .errors import (AuthenticationError, BusyError, CancelledError, Error, ExpectationError, FormatError, LibraryError,
                     MachineError, MisuseError, NotFoundError, QuotaError, StorageError, TransferError)
from .family import TOKENS, Family, PlaneInfo, State
from .identity import Identity, Model, field_names
from .keys import Keys
from .pack import (ChunkInfo, PackHeader, PackSet, PackSetInfo, Record, Report, inspect_chunk, inspect_pack, verify_pack,
                   write_pack_set)
from .planes import Plane
from .sink import MemorySink, Sink
from .store import Cancel, Fault, Hit, Hold, Restored, Saved, Store, StoredCut, StoreInfo, Upkeep, Watermarks

__all__ = [
    "AuthenticationError", "BorrowedCut", "BusyError", "Cache", "CacheRestored", "CacheSaved", "Cancel",
    "CancelledError", "ChunkInfo", "Cut", "Error", "ExpectationError", "factor_digest", "factor_digest_file",
    "Family", "Fault", "field_names", "FormatError", "Hit", "Hold", "Identity", "inspect_chunk", "inspect_pack",
    "Keys", "LibraryError", "LOGITS", "MachineError", "MemorySink", "MisuseError", "Model", "NotFoundError",
    "PackHeader", "PackSet", "PackSetInfo", "Plane", "PlaneInfo", "QuotaError", "Record", "Report", "Restored",
    "Saved", "Sink", "State", "StorageError", "Store", "StoredCut", "StoreInfo", "TOKENS", "TransferError", "Upkeep",
    "verify_pack", "version", "Watermarks", "write_pack_set",
]
