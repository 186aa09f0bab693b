"""Stores: cuts kept durably in one directory, saved under what they were computed from, found by their tokens."""
import contextlib
import ctypes
import dataclasses
import os
import threading
from typing import Any, Callable, Iterable, Optional, Sequence, Tuple, Union

from . import _structs as c
from ._buffers import View, lent_memory, memory_at, tokens_of
from ._callbacks import Callbacks, Notices, function_address
from ._handles import Handle
from ._library import call, describe_error, lib
from ._values import (Id, IdLike, choice, flag, id_at, id_bytes, identity, listed, name_of, number, optional_identity,
                      path, threads, utf8)
from .cut import Progress, progress_callback
from .errors import Error, bad_argument, wrong_state
from .family import Family, PlaneInfo, check_family
from .identity import Auxiliary, Identity, Model, auxiliary_array, cut_fields, model_struct
from .keys import Keys, check_keys
from .planes import PlaneArray, PlaneLike
from .sink import MemorySink, Sink, SinkCall


@dataclasses.dataclass(frozen=True)
class StoredCut:
    """A cut that is in a store. depth is the number of manifests between it and its full base."""

    manifest_id: Id
    token_root: Id
    auxiliary_root: Id
    token_count: int
    restored_bytes: int
    depth: int


@dataclasses.dataclass(frozen=True)
class Saved:
    """What a save has published, and what it has cost.

    Attributes:
        cuts: ascending; the last is that of all tokens.
        replayed: it was in the store already, and nothing has been written.
        source_bytes: plaintext of the chunks that were saved.
        written_chunks, written_object_bytes: those that were encoded.
        shared_chunks, shared_object_bytes: those that the store had already.
    """

    cuts: Tuple[StoredCut, ...]
    replayed: bool
    publication: int
    source_bytes: int
    written_chunks: int
    written_object_bytes: int
    shared_chunks: int
    shared_object_bytes: int
    manifest_bytes: int

    @property
    def manifest_id(self) -> Id:
        """Of the cut of all tokens."""
        return self.cuts[-1].manifest_id


@dataclasses.dataclass(frozen=True)
class Hit:
    """The deepest cut that is a prefix of an input: a hint, nothing has been authenticated. False after a miss."""

    found: bool
    token_count: int
    suffix_tokens: int
    manifest_id: Optional[Id]

    def __bool__(self) -> bool:
        return self.found


@dataclasses.dataclass(frozen=True)
class Restored:
    """What has been restored. False after a miss; only suffix_tokens and fault_count say something then.

    Attributes:
        token_count: tokens of the cut.
        suffix_tokens: tokens of the input behind it: what is left to compute.
        fault_count: deeper cuts that were passed over; on_fault of the store was told which.
        states, planes: what was restored where no sink was given; `states[i].array(planes[i])` is a numpy array.
        hold: the right to go on reading, where it was asked for.
    """

    restored: bool
    manifest_id: Optional[Id]
    token_count: int
    token_root: Optional[Id]
    restored_bytes: int
    suffix_tokens: int
    fault_count: int
    states: Tuple[PlaneInfo, ...] = ()
    planes: Tuple[Any, ...] = dataclasses.field(default=(), repr=False)
    hold: "Optional[Hold]" = None

    def __bool__(self) -> bool:
        return self.restored


@dataclasses.dataclass(frozen=True)
class Fault:
    """An object that turned out absent or wrong.

    Attributes:
        id: object key of a chunk, or manifest id of a pack.
        object: "chunk" or "pack".
        action: "skipped" (nothing was moved) or "quarantined".
        token_count: of the cut in which it was met; 0 outside of a lookup.
        path: of the object's file.
        error: what is wrong.
    """

    id: Id
    object: str
    action: str
    token_count: int
    path: str
    error: Error


@dataclasses.dataclass(frozen=True)
class Watermarks:
    """How full a store may get, in thousandths of its quota: stop < begin < emergency < promotion <= 1000."""

    stop: int = 750
    begin: int = 850
    emergency: int = 920
    promotion: int = 950
    quarantine: int = 10


@dataclasses.dataclass(frozen=True)
class StoreInfo:
    """What a store holds and what has happened to it: the members of kvpack_store_info. pressure is "normal",
    "evicting", "emergency" or "promotion_stopped"."""

    quota_bytes: int
    staging_quota_bytes: int
    durable_bytes: int
    reserved_bytes: int
    shared_bytes: int
    quarantine_bytes: int
    quarantine_cap_bytes: int
    manifests: int
    chunks: int
    pending_manifests: int
    pending_chunks: int
    active_uploads: int
    holds: int
    key_epoch: int
    minimum_epoch: int
    catalog_epoch: int
    created_unix_ns: int
    pressure: str
    read_only: bool
    saves_attempted: int
    saves_committed: int
    saves_replayed: int
    saves_refused: int
    save_bytes_written: int
    save_bytes_shared: int
    lookups_exact: int
    lookups_ancestor: int
    lookups_miss: int
    lookups_fault: int
    restores_attempted: int
    restores_committed: int
    restores_refused: int
    restore_bytes: int
    objects_quarantined: int
    manifests_evicted: int
    chunks_collected: int
    bytes_collected: int


@dataclasses.dataclass(frozen=True)
class Upkeep:
    """What one round of upkeep has done. emergency: the store is still at that mark; blocked: the aim was not reached,
    and everything that is left is in use."""

    before_bytes: int
    after_bytes: int
    manifests_evicted: int
    chunks_collected: int
    bytes_freed: int
    emergency: bool
    blocked: bool


class Cancel(Handle):
    """By which another thread ends restores."""

    _what = "cancel"

    def __init__(self):
        made = ctypes.c_void_p()
        call(lib.kvpack_cancel_new, ctypes.byref(made))
        self._own(made.value, lib.kvpack_cancel_free)

    def request(self) -> None:
        """Ends every restore that has been given it, now and later, with CancelledError, unless it is past its last
        chunk."""
        with self._use() as pointer:
            lib.kvpack_cancel_request(pointer)


class Hold(Handle):
    """The right to go on reading a restored cut: it stays in the store, and its memory stays accounted for, until it is
    released, which the end of a `with` does. One that is only forgotten or closed releases nothing."""

    _what = "hold"

    def __init__(self, pointer, keep):
        self._own(pointer, lib.kvpack_store_hold_free, keep)
        self._releasing = threading.Lock()
        self._released = False

    @property
    def id(self) -> Id:
        """Names the hold."""
        with self._use() as pointer:
            return id_at(lib.kvpack_store_hold_id(pointer))

    def release(self) -> None:
        """Says that the engine no longer needs the cut.

        Raises:
            StorageError: STATE it has been released already.
        """
        with self._use() as pointer, self._releasing:
            call(lib.kvpack_store_hold_release, pointer)
            self._released = True

    def __exit__(self, *problem):
        try:
            if not self._released and not self.closed:
                self.release()
        finally:
            self.close()


OnFault = Callable[[Fault], None]


class Store(Handle):
    """An open store, for any number of threads. One handle in any process writes, any number read.

    `on_fault` is called by the thread whose call met a fault, when that call has ended; what it raises comes out of
    there. It may use the store.
    """

    _what = "store"
    _notices: Notices

    def __init__(self, *_):
        raise TypeError("Store.create, Store.open and Store.open_read_only make stores")

    @classmethod
    def create(cls, root: Union[str, "os.PathLike[str]"], keys: Keys, **options: Any) -> "Store":
        """Makes a store in a directory that is absent or empty. Options as those of `open`."""
        return cls._open(lib.kvpack_store_create, root, keys, **options)

    @classmethod
    def open(cls, root: Union[str, "os.PathLike[str]"], keys: Keys, **options: Any) -> "Store":
        """Opens a store for writing and finishes whatever a crash has interrupted.

        Options:
            active_epoch, minimum_epoch, catalog_epoch: 0: as the keys say; 1.
            quota_bytes, staging_quota_bytes: 0: what the store has; a new one 64 GiB, and all of it.
            endurance_bytes_per_five_minutes: None: no limit. 0 refuses every write.
            watermarks: Watermarks; None: the defaults.
            max_shadow_bytes, max_scratch_bytes, max_holds, max_parallelism: 0: half of the memory, 256 MiB, 1,024, 4.
            strict: damage fails the call, and nothing is moved; else it is quarantined and passed over.
            on_fault: told about every Fault.

        Raises:
            Error: as kvpack_store_open: STATE, BUSY, AUTHENTICATION, NOT_FOUND, CATALOG, IO.
        """
        return cls._open(lib.kvpack_store_open, root, keys, **options)

    @classmethod
    def open_read_only(cls, root: Union[str, "os.PathLike[str]"], keys: Keys, **options: Any) -> "Store":
        """Opens a store for looking up and restoring, beside a writer or without one. Quotas are ignored."""
        return cls._open(lib.kvpack_store_open_read_only, root, keys, **options)

    @classmethod
    def _open(cls, function, root, keys, *, on_fault: Optional[OnFault] = None, watermarks: Optional[Watermarks] = None,
              endurance_bytes_per_five_minutes: Optional[int] = None, max_parallelism: int = 0, strict: bool = False,
              **numbers: int) -> "Store":
        unknown = set(numbers) - {"active_epoch", "minimum_epoch", "catalog_epoch", "quota_bytes", "staging_quota_bytes",
                                  "max_shadow_bytes", "max_scratch_bytes", "max_holds"}
        if unknown:
            raise TypeError("unknown options: " + ", ".join(sorted(unknown)))
        options = c.kvpack_store_options(
            directory=path(root, "root"), max_parallelism=threads(max_parallelism), strict=flag(strict, "strict"),
            **{name: number(value, name) for name, value in numbers.items()})
        if endurance_bytes_per_five_minutes is not None:
            options.endurance_bytes_per_five_minutes = ctypes.pointer(
                ctypes.c_uint64(number(endurance_bytes_per_five_minutes, "endurance_bytes_per_five_minutes")))
        if watermarks is not None and not isinstance(watermarks, Watermarks):
            raise bad_argument("watermarks", "is a %s, not Watermarks" % type(watermarks).__name__)
        if watermarks is not None:
            options.watermarks = ctypes.pointer(c.kvpack_store_watermarks(
                **{field.name: number(getattr(watermarks, field.name), field.name, 32)
                   for field in dataclasses.fields(Watermarks)}))
        notices = Notices(on_fault, "on_fault")
        tell = notices.callback(c.fault_fn, _describe_fault)
        options.on_fault = function_address(tell)
        made = ctypes.c_void_p()
        with check_keys(keys)._use() as ring:
            options.keys = ring
            call(function, ctypes.byref(made), ctypes.byref(options))
        return cls._of(made.value, notices, tell)

    @classmethod
    def _of(cls, pointer, notices, callback, group=None) -> "Store":
        self = cls.__new__(cls)
        self._notices = notices
        # A hold keeps the C store open, and with it whoever is told something.
        self._own(pointer, lib.kvpack_store_free, (callback,), group)
        notices.tell()
        return self

    @contextlib.contextmanager
    def _call(self):
        """The store's pointer during a call, and then the faults that it met."""
        try:
            with self._use() as pointer:
                yield pointer
        finally:
            self._notices.tell()

    # ---- upkeep ----

    def stats(self) -> StoreInfo:
        """Sizes, counts and counters, at a cost that does not depend on what is stored."""
        info = c.kvpack_store_info()
        with self._call() as pointer:
            call(lib.kvpack_store_get_info, pointer, ctypes.byref(info))
        values = {field.name: getattr(info, field.name) for field in dataclasses.fields(StoreInfo)}
        values["pressure"] = name_of(info.pressure, c.PRESSURES)
        values["read_only"] = bool(info.read_only)
        return StoreInfo(**values)

    def maintain(self, head_room_bytes: int = 0) -> Upkeep:
        """Everything that is due: every minute or so."""
        return self._upkeep(lib.kvpack_store_maintain, number(head_room_bytes, "head_room_bytes"))

    def collect(self) -> Upkeep:
        """Removes what cannot be found any more. Works on a full disk."""
        return self._upkeep(lib.kvpack_store_collect)

    def evict(self, manifest_id: IdLike) -> Upkeep:
        """Evicts one cut and collects what only it has used.

        Raises:
            NotFoundError: there is no such cut.
            BusyError: it is held, has descendants, or a save needs it.
        """
        return self._upkeep(lib.kvpack_store_evict, ctypes.byref(identity(manifest_id, "manifest_id")))

    def _upkeep(self, function, *arguments):
        done = c.kvpack_store_upkeep()
        with self._call() as pointer:
            call(function, pointer, ctypes.byref(done), *arguments)
        return Upkeep(done.before_bytes, done.after_bytes, done.manifests_evicted, done.chunks_collected,
                      done.bytes_freed, bool(done.emergency), bool(done.blocked))

    # ---- saving ----

    def save(self, family: Family, model: Model, tokens: Iterable[int], planes: Sequence[PlaneLike], *,
             auxiliary: Optional[Auxiliary] = None, atomic_groups: Optional[Sequence[int]] = None,
             parent: Optional[IdLike] = None, idempotency_key: Optional[IdLike] = None, export_stride_tokens: int = 0,
             span_rule: str = "aligned", grain_tokens: int = 0, window_grain_tokens: int = 0, encrypt: bool = True,
             parallelism: int = 0, max_restored_bytes: int = 0, publication: int = 0, time_to_live_ms: int = 0,
             label: str = "") -> Saved:
        """Saves one cut, or one at every multiple of a stride. All of it becomes durable and visible at once, or nothing
        stays of it; what the store has already is not written again. Memory that is given keeps still during the call.

        Args:
            tokens: the complete list of the cut, for a delta too; an array of 32-bit unsigned numbers is not copied.
            planes: one per state, in the family's order: memory, a Reader, or a Plane with more than its memory.
            auxiliary: inputs that are no tokens.
            atomic_groups: per state, none 0: those of one group are restored together; None: all.
            parent: manifest id of a stored cut, on which a delta is written.
            idempotency_key: under which a retry is the same save; None: made of what is saved.
            export_stride_tokens: a cut at every multiple, a multiple of 256, and at the end; 0: one cut.
            grain_tokens: tokens of a chunk, a multiple of 256; 0: 2048.
            encrypt: False: new objects are authenticated but not encrypted.
            parallelism: threads; 0: as many as the store allows.
            time_to_live_ms: then the cut is found no more; 0: no limit.
            label: name of model and family for people; no secret.

        Raises:
            Error: as kvpack_store_save; what a Reader raises.
        """
        token_list, token_count = tokens_of(tokens)
        described = utf8(label, "label")
        options = c.kvpack_store_save_options(
            parent=optional_identity(parent, "parent"),
            idempotency_key=optional_identity(idempotency_key, "idempotency_key"),
            export_stride_tokens=number(export_stride_tokens, "export_stride_tokens"),
            span_rule=choice(span_rule, c.SPAN_RULES, "span_rule"), grain_tokens=number(grain_tokens, "grain_tokens", 32),
            window_grain_tokens=number(window_grain_tokens, "window_grain_tokens", 32),
            unencrypted=1 - flag(encrypt, "encrypt"), parallelism=threads(parallelism),
            max_restored_bytes=number(max_restored_bytes, "max_restored_bytes"),
            publication=number(publication, "publication"), time_to_live_ms=number(time_to_live_ms, "time_to_live_ms"),
            label=described or None, label_size=len(described))
        inputs = auxiliary_array(auxiliary)
        groups = _group_array(atomic_groups, check_family(family))
        saved = ctypes.c_void_p()
        with PlaneArray(family.states, planes) as given, View(token_list, "tokens") as token_view, family._use() as layout:
            live = c.kvpack_engine_inventory(
                tokens=token_view.address if token_count else None, token_count=token_count,
                auxiliary=_address(inputs), auxiliary_count=len(inputs) if inputs else 0,
                planes=_address(given.array), plane_count=given.count, atomic_groups=_address(groups))
            semantic = model_struct(model)
            with self._call() as store:
                if given.has_readers:
                    self._save_with_readers(store, saved, options, live, semantic, layout, given.readers)
                else:
                    options.family, options.model = layout, semantic
                    for name in ("tokens", "token_count", "auxiliary", "auxiliary_count", "planes", "plane_count",
                                 "atomic_groups"):
                        setattr(options, name, getattr(live, name))
                    call(lib.kvpack_store_save, store, ctypes.byref(saved), ctypes.byref(options))
        try:
            return _describe_saved(saved)
        finally:
            lib.kvpack_store_saved_free(saved)

    def _save_with_readers(self, store, saved, options, live, semantic, layout, readers):
        def inventory(_, out_address):
            out = c.kvpack_engine_inventory.from_address(out_address)
            if out.struct_size < ctypes.sizeof(c.kvpack_engine_inventory):
                raise wrong_state("the library knows less of an inventory than this package says")
            for name, _type in c.kvpack_engine_inventory._fields_[1:]:
                setattr(out, name, getattr(live, name))

        def read_plane(_, index, address, size, read_size):
            with lent_memory(address, size, True) as room:
                given = number(readers[index](room), "read size")
                if given > size:
                    raise bad_argument("read size", "is %d, and there is room for %d" % (given, size))
            ctypes.c_uint64.from_address(read_size).value = given

        engine = c.kvpack_engine(model=semantic, family=layout)
        with Callbacks(self._owned.group) as callbacks:
            for name, prototype, function in (("inventory", c.inventory_fn, inventory),
                                              ("read_plane", c.read_plane_fn, read_plane)):
                setattr(engine, name, function_address(callbacks.status(prototype, function)))
            call(lib.kvpack_store_save_from_engine, store, ctypes.byref(saved), ctypes.byref(engine),
                 ctypes.byref(options))

    # ---- finding and restoring ----

    @contextlib.contextmanager
    def _query(self, family, model, tokens, auxiliary, minimum_epoch):
        token_list, token_count = tokens_of(tokens)
        inputs = auxiliary_array(auxiliary)
        with View(token_list, "tokens") as view, check_family(family)._use() as layout:
            yield c.kvpack_store_query(
                model=model_struct(model), family=layout, tokens=view.address if token_count else None,
                token_count=token_count, auxiliary=_address(inputs), auxiliary_count=len(inputs) if inputs else 0,
                minimum_epoch=number(minimum_epoch, "minimum_epoch"))

    def find(self, family: Family, model: Model, tokens: Iterable[int], *, auxiliary: Optional[Auxiliary] = None,
             minimum_epoch: int = 0) -> Hit:
        """Finds the deepest cut of an input, at about the cost of hashing its tokens. Never waits for a writer.

        Cuts of whole blocks of 256 tokens are found by every input that begins with them; one that ends inside a block
        is found by exactly its own tokens.

        Args:
            minimum_epoch: cuts of older key epochs do not count; 0: the window of the store alone.
        """
        hit = c.kvpack_store_hit()
        with self._query(family, model, tokens, auxiliary, minimum_epoch) as query, self._call() as store:
            call(lib.kvpack_store_find_deepest, store, ctypes.byref(hit), ctypes.byref(query))
        return Hit(bool(hit.found), hit.token_count, hit.suffix_tokens,
                   id_bytes(hit.manifest_id) if hit.found else None)

    def restore(self, family: Family, model: Model, tokens: Iterable[int], *, auxiliary: Optional[Auxiliary] = None,
                minimum_epoch: int = 0, into: Optional[Sequence[Any]] = None, sink: Optional[Sink] = None,
                parallelism: int = 0, cancel: Optional[Cancel] = None, progress: Optional[Progress] = None,
                hold: bool = False) -> Restored:
        """Restores the deepest cut of an input that is whole. A damaged one is reported, quarantined and passed over; in
        a strict store it is the error. A miss is no error.

        Args:
            into: writable memory for each state, undefined after a failure; None: new bytearrays.
            sink: takes the bytes instead.
            parallelism: threads; 0: as many as the store allows.
            cancel: by which another thread ends it.
            progress: told how many bytes are verified and in place; from 0 again for each further cut that is tried.
            hold: keep the cut until `Restored.hold` is released.

        Raises:
            Error: as kvpack_store_restore_deepest; what the sink or progress raises.
        """
        if sink is None:
            sink = MemorySink(into, Identity(model=model, family=check_family(family)))
        elif into is not None:
            raise bad_argument("into", "stands beside a sink")
        with self._query(family, model, tokens, auxiliary, minimum_epoch) as query:
            return self._restore(lib.kvpack_store_restore_deepest, query, sink, parallelism, cancel, progress, hold)

    def restore_cut(self, manifest_id: IdLike, *, expected: Optional[Identity] = None,
                    into: Optional[Sequence[Any]] = None, sink: Optional[Sink] = None, parallelism: int = 0,
                    cancel: Optional[Cancel] = None, progress: Optional[Progress] = None,
                    hold: bool = False) -> Restored:
        """Restores one cut, whatever it was computed from: `expected`, or the sink, judges that.

        Raises:
            Error: as kvpack_store_restore; what the sink or progress raises.
        """
        if sink is None:
            sink = MemorySink(into, expected)
        elif into is not None or expected is not None:
            raise bad_argument("into" if into is not None else "expected", "stands beside a sink")
        return self._restore(lib.kvpack_store_restore, identity(manifest_id, "manifest_id"), sink, parallelism, cancel,
                             progress, hold)

    def _restore(self, function, wanted, sink, parallelism, cancel, progress, hold):
        options = c.kvpack_store_restore_options(parallelism=threads(parallelism))
        restored = c.kvpack_store_restored()
        held = ctypes.c_void_p()
        keep = ()
        if cancel is not None and not isinstance(cancel, Cancel):
            raise bad_argument("cancel", "is a %s, not a Cancel" % type(cancel).__name__)
        try:
            with self._call() as store, contextlib.ExitStack() as scope:
                if cancel is not None:
                    options.cancel = scope.enter_context(cancel._use())
                callbacks = scope.enter_context(Callbacks(self._owned.group))
                options.progress = progress_callback(callbacks, progress)
                target = scope.enter_context(SinkCall(sink, callbacks))
                keep = self._owned.keep
                call(function, store, ctypes.byref(restored), ctypes.byref(held) if flag(hold, "hold") else None,
                     ctypes.byref(wanted), ctypes.byref(target.struct), ctypes.byref(options))
                if restored.restored:
                    target.check()
        except BaseException:
            # Restored, but nobody will hear of it: the cut is not to stay held.
            if held:
                lib.kvpack_store_hold_release(held, None)
                lib.kvpack_store_hold_free(held)
            raise
        return _describe_restored(restored, sink, Hold(held.value, keep) if held else None)


def _describe_fault(_, address):
    fault = c.kvpack_store_fault.from_address(address)
    if fault.struct_size < ctypes.sizeof(c.kvpack_store_fault):
        raise wrong_state("the library says less about a fault than this package reads")
    return (Fault(id_bytes(fault.id), name_of(fault.object, c.RECORDS), name_of(fault.action, c.FAULT_ACTIONS),
                  fault.token_count, os.fsdecode(memory_at(fault.path, fault.path_size, False).tobytes()),
                  describe_error(fault.error)),)


def _address(array):
    return None if array is None else ctypes.addressof(array)


def _group_array(groups, family):
    if groups is None:
        return None
    groups = [number(group, "atomic_groups", 32) for group in listed(groups, "atomic_groups")]
    if len(groups) != len(family.states):
        raise bad_argument("atomic_groups", "are %d, and the family has %d states" % (len(groups), len(family.states)))
    return (ctypes.c_uint32 * len(groups))(*groups)


def _describe_saved(saved):
    info = c.kvpack_store_saved_info()
    call(lib.kvpack_store_saved_get_info, saved, ctypes.byref(info))
    count = lib.kvpack_store_saved_cut_count(saved)
    cuts = (c.kvpack_stored_cut * count).from_address(lib.kvpack_store_saved_cuts(saved))
    return Saved(tuple(StoredCut(id_bytes(cut.manifest_id), *cut_fields(cut.cut), cut.restored_bytes, cut.depth)
                       for cut in cuts),
                 bool(info.replayed), info.publication, info.source_bytes, info.written_chunks,
                 info.written_object_bytes, info.shared_chunks, info.shared_object_bytes, info.manifest_bytes)


def _describe_restored(restored, sink, hold):
    done = bool(restored.restored)
    memory = isinstance(sink, MemorySink) and done
    return Restored(done, id_bytes(restored.manifest_id) if done else None, restored.cut.token_count,
                    id_bytes(restored.cut.token_root) if done else None, restored.restored_bytes,
                    restored.suffix_tokens, restored.fault_count, sink.states if memory else (),
                    tuple(sink.planes) if memory else (), hold)
