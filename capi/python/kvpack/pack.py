"""Packs and pack sets: written, inspected, verified, opened."""
import ctypes
import dataclasses
import os
from typing import Any, Iterable, Iterator, Optional, Sequence, Tuple, Union

from . import _structs as c
from ._buffers import View, memory_at, tokens_of
from ._callbacks import Callbacks
from ._handles import Handle
from ._library import call, lib, text
from ._values import Id, IdLike, choice, flag, id_bytes, identity, name_of, number, path, threads
from .cut import Cut, Progress, progress_callback
from .errors import wrong_state
from .family import Family, check_family
from .identity import Auxiliary, Model, auxiliary_array, model_struct
from .keys import Keys, check_keys
from .planes import PlaneArray, PlaneLike


@dataclasses.dataclass(frozen=True)
class PackHeader:
    """The header page of a pack. Unless `verify_pack` gave it with keys, nothing in it is authenticated."""

    tenant: Id
    manifest_id: Id
    key_epoch: int
    manifest_bytes: int
    stored_manifest_bytes: int
    encrypted: bool


@dataclasses.dataclass(frozen=True)
class ChunkInfo:
    """What a chunk object says about itself. Nothing in it is authenticated."""

    tenant: Id
    family_id: Id
    content_id: Id
    object_key: Id
    key_epoch: int
    codec: str
    encrypted: bool
    plaintext_bytes: int
    object_bytes: int


@dataclasses.dataclass(frozen=True)
class PackSetInfo:
    """What a pack set says about itself."""

    tenant: Id
    key_epoch: int
    record_count: int
    file_bytes: int
    head_manifest_id: Id
    merkle_root: Id


@dataclasses.dataclass(frozen=True)
class Record:
    """Where a record of a set lies and what it is: kind is "chunk" or "pack"; relation is the content id of a chunk,
    or the parent of a pack, zero for a full one."""

    kind: str
    offset: int
    object_bytes: int
    padded_bytes: int
    key_epoch: int
    identity: Id
    digest: Id
    relation: Id


@dataclasses.dataclass(frozen=True)
class Report:
    """What a verification has shown: level is "authenticated", "integrity" or "framing"; unchecked says in words what
    could not be checked for want of keys."""

    level: str
    records: int
    packs: int
    chunks: int
    unchecked: Tuple[str, ...]


def inspect_pack(pack: Any) -> PackHeader:
    """Looks at the header page of a pack alone."""
    header = c.kvpack_pack_header()
    with View(pack, "pack") as view:
        call(lib.kvpack_pack_inspect, ctypes.byref(header), view.address, view.size)
    return _pack_header(header)


def verify_pack(pack: Any, keys: Optional[Keys] = None) -> PackHeader:
    """Checks a pack's bytes: with keys, that their holder wrote them; without, that no accident has damaged them."""
    header = c.kvpack_pack_header()
    with View(pack, "pack") as view, _optional(keys) as ring:
        options = c.kvpack_pack_options(keys=ring)
        call(lib.kvpack_pack_verify, ctypes.byref(header), view.address, view.size, ctypes.byref(options))
    return _pack_header(header)


def inspect_chunk(chunk: Any) -> ChunkInfo:
    """Checks what a chunk object says about itself, and gives it."""
    info = c.kvpack_chunk_info()
    with View(chunk, "object") as view:
        call(lib.kvpack_chunk_inspect, ctypes.byref(info), view.address, view.size)
    return ChunkInfo(id_bytes(info.tenant), id_bytes(info.family_id), id_bytes(info.content_id),
                     id_bytes(info.object_key), info.key_epoch, name_of(info.codec, c.CODECS), bool(info.encrypted),
                     info.plaintext_bytes, info.object_bytes)


class PackSet(Handle):
    """An open pack set: one file with one chain of packs and every chunk it refers to; immutable."""

    _what = "pack set"

    def __init__(self, source: Union[str, "os.PathLike[str]", Any], keys: Optional[Keys] = None):
        """Opens a set by header, inventory and footer alone.

        Args:
            source: the path of a file, or memory that holds one, which is borrowed until the set and its cuts are
                closed.
            keys: None: integrity only, not authenticated.

        Raises:
            Error: as kvpack_pack_set_open, with record.
        """
        options = c.kvpack_pack_set_options()
        view = None
        if isinstance(source, (str, os.PathLike)):
            options.path = path(source, "source")
        else:
            view = View(source, "source")
            options.data, options.data_size = view.address, view.size
        made = ctypes.c_void_p()
        try:
            with _optional(keys) as ring:
                options.keys = ring
                call(lib.kvpack_pack_set_open, ctypes.byref(made), ctypes.byref(options))
        except BaseException:
            if view is not None:
                view.release()
            raise
        # The view goes with the last handle over it; cuts keep it too.
        self._own(made.value, lib.kvpack_pack_set_free, (view,))

    @property
    def info(self) -> PackSetInfo:
        """What the set says about itself."""
        info = c.kvpack_pack_set_info()
        with self._use() as pointer:
            call(lib.kvpack_pack_set_get_info, pointer, ctypes.byref(info))
        return _set_info(info)

    def __len__(self) -> int:
        with self._use() as pointer:
            return lib.kvpack_pack_set_record_count(pointer)

    def record(self, index: int) -> Record:
        """The entry of a record."""
        entry = c.kvpack_pack_set_entry()
        with self._use() as pointer:
            call(lib.kvpack_pack_set_get_entry, pointer, ctypes.byref(entry), number(index, "index"))
        return Record(name_of(entry.kind, c.RECORDS), entry.offset, entry.object_bytes, entry.padded_bytes,
                      entry.key_epoch, id_bytes(entry.identity), id_bytes(entry.digest), id_bytes(entry.relation))

    def __iter__(self) -> Iterator[Record]:
        return (self.record(index) for index in range(len(self)))

    def find(self, wanted: IdLike) -> int:
        """Index of the record with this identity.

        Raises:
            NotFoundError: there is none.
        """
        index = ctypes.c_uint64()
        with self._use() as pointer:
            call(lib.kvpack_pack_set_find, pointer, ctypes.byref(index), ctypes.byref(identity(wanted, "identity")))
        return index.value

    def read(self, index: int) -> bytes:
        """Reads one record and checks it against its entry."""
        return self._bytes(lib.kvpack_pack_set_read, index)

    def prove(self, index: int) -> bytes:
        """A proof, as canonical JSON, that ties a record to the set's footer."""
        return self._bytes(lib.kvpack_pack_set_prove, index)

    def _bytes(self, function, index):
        made = ctypes.c_void_p()
        with self._use() as pointer:
            call(function, pointer, ctypes.byref(made), number(index, "index"))
        try:
            return memory_at(lib.kvpack_bytes_data(made), lib.kvpack_bytes_size(made), False).tobytes()
        finally:
            lib.kvpack_bytes_free(made)

    def verify(self, *, parallelism: int = 0, progress: Optional[Progress] = None) -> Report:
        """Verifies the whole set, each record read once.

        Raises:
            Error: the first failure, with record, object, layer, state and tokens as far as they are known.
        """
        made = ctypes.c_void_p()
        with self._use() as pointer, Callbacks() as callbacks:
            options = c.kvpack_verify_options(parallelism=threads(parallelism))
            options.progress = progress_callback(callbacks, progress)
            call(lib.kvpack_pack_set_verify, pointer, ctypes.byref(made), ctypes.byref(options))
        try:
            return Report(name_of(lib.kvpack_report_level(made), c.LEVELS), lib.kvpack_report_record_count(made),
                          lib.kvpack_report_pack_count(made), lib.kvpack_report_chunk_count(made),
                          tuple(text(lib.kvpack_report_unchecked(made, i))
                                for i in range(lib.kvpack_report_unchecked_count(made))))
        finally:
            lib.kvpack_report_free(made)

    def cut(self, *, max_memory_bytes: int = 0) -> Cut:
        """Opens the set's head cut; no chunk is read.

        Args:
            max_memory_bytes: most memory of all planes together; 0: 4 TiB.
        """
        made = ctypes.c_void_p()
        with self._use() as pointer:
            options = c.kvpack_cut_options(pack_set=pointer, max_memory_bytes=number(max_memory_bytes, "max_memory_bytes"))
            call(lib.kvpack_cut_open, ctypes.byref(made), ctypes.byref(options))
            return Cut(made.value, self._owned.keep)


def write_pack_set(target: Union[str, "os.PathLike[str]"], keys: Keys, family: Family, model: Model,
                   tokens: Iterable[int], planes: Sequence[PlaneLike], *, auxiliary: Optional[Auxiliary] = None,
                   epoch: int = 0, span_rule: str = "aligned", grain_tokens: int = 0, encrypt: bool = True,
                   parallelism: int = 0) -> PackSetInfo:
    """Saves a cache into one file, which appears complete and durable, or not at all.

    Args:
        planes: one per state, in the family's order.
        epoch: key epoch to write; 0: the ring's active one.
        grain_tokens: a multiple of 256; 0: 2048.

    Raises:
        Error: as kvpack_cut_builder_save and kvpack_pack_set_writer_finish.
    """
    encrypt = flag(encrypt, "encrypt")
    options = c.kvpack_cut_builder_options(
        epoch=number(epoch, "epoch"), model=model_struct(model), span_rule=choice(span_rule, c.SPAN_RULES, "span_rule"),
        grain_tokens=number(grain_tokens, "grain_tokens", 32), encrypt_chunks=encrypt, encrypt_manifest=encrypt,
        parallelism=threads(parallelism))
    token_list, options.token_count = tokens_of(tokens)
    inputs = auxiliary_array(auxiliary)
    if inputs is not None:
        options.auxiliary, options.auxiliary_count = ctypes.addressof(inputs), len(inputs)
    info = c.kvpack_pack_set_info()
    with check_keys(keys)._use() as ring, check_family(family)._use() as described, View(token_list, "tokens") as token_view, \
            PlaneArray(family.states, planes, readers_allowed=False) as given, \
            _Writer(target, ring, options.epoch) as writer:
        options.keys, options.family, options.tokens = ring, described, token_view.address
        builder = ctypes.c_void_p()
        call(lib.kvpack_cut_builder_new, ctypes.byref(builder), ctypes.byref(options))
        try:
            for index in range(given.count):
                call(lib.kvpack_cut_builder_set_plane, builder, index, ctypes.byref(given.array[index]))
            writer.save(builder)
        finally:
            lib.kvpack_cut_builder_free(builder)
        call(lib.kvpack_pack_set_writer_finish, writer.pointer, ctypes.byref(info))
    return _set_info(info)


class _Writer:
    """A kvpack_pack_set_writer of one call; freed without `finish`, it leaves no file."""

    def __init__(self, target, keys, epoch):
        options = c.kvpack_pack_set_writer_options(keys=keys, epoch=epoch, path=path(target, "target"))
        self.pointer = ctypes.c_void_p()
        call(lib.kvpack_pack_set_writer_new, ctypes.byref(self.pointer), ctypes.byref(options))

    def save(self, builder):
        """The cut's chunks, in the order in which they come, and its pack."""
        saved = ctypes.c_void_p()
        with Callbacks() as callbacks:
            sink = callbacks.status(c.chunk_sink_fn, self._add_chunk)
            call(lib.kvpack_cut_builder_save, builder, ctypes.byref(saved), sink, None)
        try:
            size = ctypes.c_uint64()
            pack = lib.kvpack_saved_cut_pack(saved, ctypes.byref(size))
            # Refuses a pack whose chunks are not all there, whatever the callback has told the builder.
            call(lib.kvpack_pack_set_writer_add_pack, self.pointer, pack, size, None)
        finally:
            lib.kvpack_saved_cut_free(saved)

    def _add_chunk(self, _, chunk_address):
        chunk = c.kvpack_saved_chunk.from_address(chunk_address)
        if chunk.struct_size < ctypes.sizeof(c.kvpack_saved_chunk):
            raise wrong_state("the library says less about a chunk than this package reads")
        call(lib.kvpack_pack_set_writer_add_chunk, self.pointer, ctypes.byref(chunk.ref), chunk.object,
             chunk.object_size)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        lib.kvpack_pack_set_writer_free(self.pointer)


class _optional:
    """The pointer of keys that may be None."""

    def __init__(self, keys):
        self._use = None if keys is None else check_keys(keys)._use()

    def __enter__(self):
        return None if self._use is None else self._use.__enter__()

    def __exit__(self, *problem):
        return None if self._use is None else self._use.__exit__(*problem)


def _pack_header(header):
    return PackHeader(id_bytes(header.tenant), id_bytes(header.manifest_id), header.key_epoch, header.manifest_bytes,
                      header.stored_manifest_bytes, bool(header.encrypted))


def _set_info(info):
    return PackSetInfo(id_bytes(info.tenant), info.key_epoch, info.record_count, info.file_bytes,
                       id_bytes(info.head_manifest_id), id_bytes(info.merkle_root))
