"""A cache in two calls: one directory, states as a blob or as planes, saved and restored by their tokens alone."""
import contextlib
import ctypes
import dataclasses
import os
from typing import Any, Callable, Dict, Iterable, Optional, Sequence, Tuple, Union

from . import _structs as c
from ._buffers import Loans, View, memory_at, tokens_of
from ._callbacks import Callbacks, Notices, function_address
from ._handles import Handle
from ._library import call, lib, text
from ._values import Id, IdLike, flag, id_bytes, identity, listed, name_of, number, path, threads, utf8
from .cut import Progress, progress_callback
from .errors import bad_argument
from .family import State, state_options
from .identity import Auxiliary, Model, auxiliary_array, model_struct
from .keys import check_keys
from .planes import PlaneArray
from .store import Cancel, Store

LOGITS = c.CACHE_LOGITS
"""Stands for the logits among the parts of a state; the others are the planes in the order in which they were described,
or 0 for the blob."""

Log = Callable[[str, str], None]
"""Told (level, line): "warning" when something was refused, or damaged and passed over, and "info"."""

Lend = Callable[[int, int], Any]
"""Given (part, size), gives writable memory of at least that size, or None for new memory. For a plane it is called before
anything is read, and again when the next shallower cut is tried; what it gives is undefined until the restore has ended."""


@dataclasses.dataclass(frozen=True)
class CacheSaved:
    """What a save has done.

    Attributes:
        replayed: all of it was there already, and nothing was written.
        cut_count: prefixes at which it can be found, its whole length among them.
        manifest_id: of the cut of all tokens.
        restored_bytes: payload of that cut.
        shared_object_bytes: of chunks that the cache had already.
    """

    replayed: bool
    cut_count: int
    token_count: int
    manifest_id: Id
    restored_bytes: int
    written_object_bytes: int
    shared_object_bytes: int


@dataclasses.dataclass(frozen=True)
class CacheRestored:
    """What was restored; False after a miss.

    Attributes:
        token_count: of the cut.
        reusable_tokens: tokens that need not be computed: those of the cut, less one where it is the whole prompt and has
            no logits: that token has to be dropped and computed.
        suffix_tokens: tokens of the prompt that are left to compute.
        fault_count: deeper cuts that were damaged and passed over.
        planes: the state of a cache of planes, in the order in which they were described.
        token_starts: first token of each plane: not 0 for a tail window.
        blob: the state of a cache of blobs.
        logits: of the last token of the cut, or None.
    """

    restored: bool
    token_count: int
    reusable_tokens: int
    suffix_tokens: int
    restored_bytes: int
    fault_count: int
    manifest_id: Optional[Id]
    planes: Tuple[Any, ...] = dataclasses.field(default=(), repr=False)
    token_starts: Tuple[int, ...] = ()
    blob: Any = dataclasses.field(default=None, repr=False)
    logits: Any = dataclasses.field(default=None, repr=False)

    def __bool__(self) -> bool:
        return self.restored


class Cache(Handle):
    """An open cache: one directory, one identity, one kind of state; for any number of threads. One handle in any process
    writes, any number read."""

    _what = "cache"

    def __init__(self, directory: Union[str, "os.PathLike[str]"], model: Model, *, engine_cache_abi: IdLike,
                 topology: IdLike, shard_map: IdLike, states: Optional[Sequence[State]] = None, row_bytes: int = 0,
                 with_logits: bool = False, can_step_back: bool = True, create: bool = False, read_only: bool = False,
                 keys: Optional[Handle] = None, key_path: Union[str, "os.PathLike[str]", None] = None,
                 tenant: Optional[str] = None, quota_bytes: int = 0, max_memory_bytes: int = 0, max_parallelism: int = 0,
                 encrypt: bool = True, strict: bool = False, log: Optional[Log] = None):
        """Opens a cache. A change of the identities, the states, row_bytes or with_logits gives another cache in the same
        directory: what was saved before is not found.

        Args:
            directory: holds `store.key` and `store`.
            engine_cache_abi: changes whenever the meaning or order of state bytes does. `factor_digest` makes identities.
            topology, shard_map: parallel shape; and which part of it this engine has.
            states: planes; None: a state is one blob.
            row_bytes: rows of a blob and of logits: a power of two, 4,096 to 4,194,304; 0: 65,536.
            with_logits: a save may give the logits of the last token.
            can_step_back: False: the engine cannot drop its last token and compute it again.
            create: makes directory, key and store where they are missing.
            read_only: beside a writer, or without one; for restores alone.
            keys: a key ring instead of the key file.
            key_path: where the key file is; None: `store.key` in the directory.
            tenant: with a key file: who shares this cache.
            quota_bytes: above it what was used longest ago is evicted; 0: 64 GiB, or what the store has.
            max_memory_bytes: of states that are being restored; 0: half of the memory.
            strict: damage fails a restore, instead of being passed over.
            log: told what the handle does, by the thread whose call it was, at its end.

        Raises:
            Error: as kvpack_cache_open.
        """
        options = c.kvpack_cache_options(
            directory=path(directory, "directory"), model=model_struct(model),
            engine_cache_abi=identity(engine_cache_abi, "engine_cache_abi"), topology=identity(topology, "topology"),
            shard_map=identity(shard_map, "shard_map"), row_bytes=number(row_bytes, "row_bytes"),
            with_logits=flag(with_logits, "with_logits"), cannot_step_back=1 - flag(can_step_back, "can_step_back"),
            create=flag(create, "create"), read_only=flag(read_only, "read_only"),
            key_path=None if key_path is None else path(key_path, "key_path"),
            tenant=None if tenant is None else path(utf8(tenant, "tenant"), "tenant"),
            quota_bytes=number(quota_bytes, "quota_bytes"), max_memory_bytes=number(max_memory_bytes, "max_memory_bytes"),
            max_parallelism=threads(max_parallelism), unencrypted=1 - flag(encrypt, "encrypt"),
            strict=flag(strict, "strict"))
        described = None if states is None else listed(states, "states")
        if described is not None:
            array = (c.kvpack_state_options * max(1, len(described)))(*[state_options(state) for state in described])
            options.states, options.state_count = ctypes.addressof(array), len(described)
        notices = Notices(log, "log")
        note = notices.callback(c.log_fn, _describe_line)
        options.log = function_address(note)
        made = ctypes.c_void_p()
        try:
            with contextlib.ExitStack() as scope:
                if keys is not None:
                    options.keys = scope.enter_context(check_keys(keys)._use())
                call(lib.kvpack_cache_open, ctypes.byref(made), ctypes.byref(options))
        except BaseException:
            notices.tell()
            raise
        self._notices = notices
        self._states = described
        self._own(made.value, lib.kvpack_cache_free, (note,))
        notices.tell()

    @contextlib.contextmanager
    def _call(self):
        """The cache's pointer during a call, and then what it has to say."""
        try:
            with self._use() as pointer:
                yield pointer
        finally:
            self._notices.tell()

    def save(self, tokens: Iterable[int], state: Any, *, logits: Any = None, auxiliary: Optional[Auxiliary] = None,
             checkpoint_stride_tokens: int = 0, time_to_live_ms: int = 0, label: str = "") -> CacheSaved:
        """Saves what was computed for a list of tokens, durable and to be found when the call returns.

        Args:
            tokens: the complete list.
            state: the blob, or one plane for each state. Memory keeps still during the call.
            logits: of the last token, in whatever form.
            auxiliary: images and other inputs that are no tokens.
            checkpoint_stride_tokens: of planes that hold every token: a cut at each multiple too, a multiple of 256.
                Each is hashed from the first token on: n cuts cost about n / 2 times the whole.
            time_to_live_ms: then it is found no more; 0: no limit.
            label: name of the model for people; no secret.

        Raises:
            Error: as kvpack_cache_save.
        """
        token_list, token_count = tokens_of(tokens)
        described = utf8(label, "label")
        options = c.kvpack_cache_save_options(
            checkpoint_stride_tokens=number(checkpoint_stride_tokens, "checkpoint_stride_tokens"),
            time_to_live_ms=number(time_to_live_ms, "time_to_live_ms"), label=described or None,
            label_size=len(described))
        done = c.kvpack_cache_saved()
        with contextlib.ExitStack() as scope:
            kept = _set_input(options, token_list, token_count, auxiliary, scope)  # noqa: F841  options points to it
            if self._states is None:
                blob = scope.enter_context(View(state, "state"))
                options.blob, options.blob_size = blob.address, blob.size
            else:
                planes = scope.enter_context(PlaneArray(self._states, state, readers_allowed=False))
                options.planes, options.plane_count = ctypes.addressof(planes.array), planes.count
            if logits is not None:
                given = scope.enter_context(View(logits, "logits"))
                options.logits, options.logits_size = given.address, given.size
            pointer = scope.enter_context(self._call())
            call(lib.kvpack_cache_save, pointer, ctypes.byref(done), ctypes.byref(options))
        return CacheSaved(bool(done.replayed), done.cut_count, done.token_count, id_bytes(done.manifest_id),
                          done.restored_bytes, done.written_object_bytes, done.shared_object_bytes)

    def restore(self, tokens: Iterable[int], *, auxiliary: Optional[Auxiliary] = None, lend: Optional[Lend] = None,
                cancel: Optional[Cancel] = None, progress: Optional[Progress] = None) -> CacheRestored:
        """Restores the deepest cut that is a prefix of the tokens. A miss is no error. Nothing is given out before all of it
        has been verified; what is damaged is logged, put aside, and the next shallower cut taken.

        Args:
            lend: gives the memory; None: new bytearrays.

        Raises:
            Error: as kvpack_cache_restore; what lend or progress raises.
        """
        token_list, token_count = tokens_of(tokens)
        if lend is not None and not callable(lend):
            raise bad_argument("lend", "cannot be called")
        if cancel is not None and not isinstance(cancel, Cancel):
            raise bad_argument("cancel", "is a %s, not a Cancel" % type(cancel).__name__)
        options = c.kvpack_cache_restore_options()
        done = c.kvpack_cache_restored()
        state = ctypes.c_void_p()
        lent: Dict[int, Any] = {}
        try:
            with contextlib.ExitStack() as scope:
                kept = _set_input(options, token_list, token_count, auxiliary, scope)  # noqa: F841  options points to it
                if cancel is not None:
                    options.cancel = scope.enter_context(cancel._use())
                pointer = scope.enter_context(self._call())
                loans = scope.enter_context(Loans())
                callbacks = scope.enter_context(Callbacks(self._owned.group))
                options.progress = progress_callback(callbacks, progress)

                def give(_, part, out, size):
                    memory = None if lend is None else lend(part, size)
                    lent[part] = bytearray(size) if memory is None else memory
                    loans.lend(part, lent[part], size, out)

                options.lend = function_address(callbacks.status(c.cache_lend_fn, give))
                call(lib.kvpack_cache_restore, pointer, ctypes.byref(state), ctypes.byref(done), ctypes.byref(options))
                parts = self._parts(state, lent, loans, done) if state else {}
        finally:
            lib.kvpack_cache_state_free(state)
        restored = bool(done.restored)
        return CacheRestored(restored, done.token_count, done.reusable_tokens, done.suffix_tokens, done.restored_bytes,
                             done.fault_count, id_bytes(done.manifest_id) if restored else None, **parts)

    def _parts(self, state, lent, loans, done):
        """The memory of a restored state by its names: what was lent, or a copy of what the library kept."""
        def memory(part):
            size = ctypes.c_uint64()
            address = lib.kvpack_cache_state_data(state, ctypes.byref(size), part)
            if address is not None and address == loans.address(part):
                return lent[part]
            # Lending may not have taken place: an interrupt can come before a callback.
            return bytearray(memory_at(address, size.value, False))

        parts = {"logits": memory(LOGITS) if done.has_logits else None}
        if self._states is None:
            parts["blob"] = memory(0)
            return parts
        parts["planes"] = tuple(memory(index) for index in range(len(self._states)))
        parts["token_starts"] = tuple(lib.kvpack_cache_state_token_start(state, index)
                                      for index in range(len(self._states)))
        return parts

    def store(self) -> Store:
        """The cache's store, for everything else that can be done with one. It is to be closed too."""
        made = ctypes.c_void_p()
        with self._call() as pointer:
            call(lib.kvpack_cache_store, pointer, ctypes.byref(made))
            return Store._of(made.value, self._notices, self._owned.keep[0], self._owned.group)


def _set_input(options, token_list, token_count, auxiliary, scope):
    """Sets the members that say which input; gives what they point to."""
    inputs = auxiliary_array(auxiliary)
    view = scope.enter_context(View(token_list, "tokens"))
    options.tokens, options.token_count = view.address if token_count else None, token_count
    if inputs is not None:
        options.auxiliary, options.auxiliary_count = ctypes.addressof(inputs), len(inputs)
    return inputs


def _describe_line(_, level, line):
    return name_of(level, c.LOG_LEVELS), text(ctypes.string_at(line))


def factor_digest(value: Union[str, bytes]) -> Id:
    """An identity out of what it stands for: SHA-256 of a resolved value.

    Raises:
        ExpectationError: it is empty, or one of the words `auto` and `default`, whatever the case.
    """
    encoded = utf8(value, "value")
    out = c.kvpack_id()
    call(lib.kvpack_factor_digest, ctypes.byref(out), encoded, len(encoded))
    return id_bytes(out)


def factor_digest_file(file: Union[str, "os.PathLike[str]"], progress: Optional[Progress] = None) -> Id:
    """The same for a file, such as weights, adapters or a tokenizer: SHA-256 of what is in it.

    Raises:
        Error: EXPECTATION it is empty; NOT_FOUND, IO it cannot be read; what progress raises.
    """
    out = c.kvpack_id()
    with Callbacks() as callbacks:
        call(lib.kvpack_factor_digest_file, ctypes.byref(out), path(file, "path"), progress_callback(callbacks, progress),
             None)
    return id_bytes(out)
