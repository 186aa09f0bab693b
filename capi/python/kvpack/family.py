"""Families: which states a cache has, and how each is laid out, whatever its length."""
import ctypes
import dataclasses
from typing import Any, Iterable, List, Sequence, Tuple

from . import _structs as c
from ._handles import Handle
from ._library import call, lib
from ._values import Id, IdLike, choice, id_at, identity, listed, listed_pairs, name_of, number, utf8
from .errors import bad_argument

TOKENS = 0
"""Stands for the token axis among the dimensions of a state."""

_NUMPY = {"u8": "u1", "u32": "<u4", "i8": "i1", "i16": "<i2", "i32": "<i4", "f16": "<f2", "bf16": "<u2", "f32": "<f4",
          "f64": "<f8"}


@dataclasses.dataclass(frozen=True)
class State:
    """One state of a cache, for example the keys of layer 3.

    Attributes:
        layer: which layer.
        name: 1 to 255 bytes of UTF-8, for example "attention.k".
        dtype: u8, u32, i8, i16, i32, f16, bf16, f32 or f64.
        shape: dimensions, outermost first, with TOKENS exactly once.
        axis_rule: direct, gather or tail_window.
        codec: raw or lossless.
        dependencies: (layer, name) of states without which this one is useless.
    """

    layer: int
    name: str
    dtype: str
    shape: Sequence[int]
    axis_rule: str = "direct"
    codec: str = "raw"
    dependencies: Sequence[Tuple[int, str]] = ()


@dataclasses.dataclass(frozen=True)
class PlaneInfo:
    """A plane as it comes back: the memory of one state at one cut.

    Attributes:
        shape: in elements, with `token_count` at the token axis.
        byte_strides: distance of neighbours in each dimension; row-major for contiguous states.
        size_bytes: memory that the plane takes.
        token_start: first token in it, not 0 for a tail window.
        payload_bytes: bytes of its elements, without what byte strides leave out.
    """

    layer: int
    name: str
    dtype: str
    axis_rule: str
    token_axis: int
    shape: Tuple[int, ...]
    byte_strides: Tuple[int, ...]
    size_bytes: int
    token_start: int
    token_count: int
    payload_bytes: int

    def array(self, memory: Any) -> Any:
        """The memory as a numpy array of this shape, without a copy. bf16, which numpy lacks, comes as uint16."""
        import numpy
        return numpy.ndarray(self.shape, dtype=_NUMPY[self.dtype], buffer=memory, strides=self.byte_strides)


def plane_info(function, pointer, index) -> PlaneInfo:
    """What kvpack_cut_state and its like say about a state."""
    info = c.kvpack_plane_info()
    call(function, pointer, ctypes.byref(info), index)
    rank = min(info.rank, c.MAX_RANK)
    shape = tuple(info.dimensions[:rank])
    payload_bytes = info.dtype_bytes
    for dimension in shape:
        payload_bytes *= dimension
    return PlaneInfo(info.layer, _name(info), name_of(info.dtype, c.DTYPES),
                     name_of(info.token_axis_rule, c.AXIS_RULES), info.token_axis, shape,
                     tuple(info.byte_strides[:rank]), info.size_bytes, info.token_start, info.token_count, payload_bytes)


def _name(info) -> str:
    return (info.name or b"").decode("utf-8", "backslashreplace")


class Family(Handle):
    """A family with its identity; immutable. Its states are in order of layer, then name, and planes in theirs."""

    _what = "family"

    def __init__(self, states: Iterable[State], *, engine_cache_abi: IdLike, topology: IdLike, shard_map: IdLike,
                 mode: str = "native", page_size_tokens: int = 0):
        """
        Args:
            states: in any order.
            engine_cache_abi: changes whenever the meaning or order of cache bytes does.
            topology, shard_map: of the engine's adapter, none zero.
            mode: native or portable.
            page_size_tokens: 0: 256.

        Raises:
            Error: SEMANTICS, BOUNDS, CODEC, GRAPH by the family rules, with layer and state.
        """
        options = c.kvpack_family_options(
            engine_cache_abi=identity(engine_cache_abi, "engine_cache_abi"), topology=identity(topology, "topology"),
            shard_map=identity(shard_map, "shard_map"), mode=choice(mode, c.MODES, "mode"),
            page_size_tokens=number(page_size_tokens, "page_size_tokens", 32))
        builder, made = ctypes.c_void_p(), ctypes.c_void_p()
        call(lib.kvpack_family_builder_new, ctypes.byref(builder), ctypes.byref(options))
        try:
            for state in listed(states, "states"):
                call(lib.kvpack_family_builder_add_state, builder, ctypes.byref(state_options(state)))
            call(lib.kvpack_family_builder_build, builder, ctypes.byref(made))
        finally:
            lib.kvpack_family_builder_free(builder)
        self._own(made.value, lib.kvpack_family_free)
        self._states = self._read_states()

    def _read_states(self) -> Tuple[State, ...]:
        found: List[State] = []
        with self._use() as pointer:
            for index in range(lib.kvpack_family_state_count(pointer)):
                info = c.kvpack_state_info()
                call(lib.kvpack_family_state, pointer, ctypes.byref(info), index)
                found.append(State(info.layer, _name(info), name_of(info.dtype, c.DTYPES),
                                   tuple(info.dimensions[:min(info.rank, c.MAX_RANK)]),
                                   name_of(info.token_axis_rule, c.AXIS_RULES), name_of(info.codec, c.CODECS)))
        return tuple(found)

    @property
    def id(self) -> Id:
        """The family's identity."""
        with self._use() as pointer:
            return id_at(lib.kvpack_family_id(pointer))

    @property
    def states(self) -> Tuple[State, ...]:
        """The states in the family's order, without their dependencies."""
        return self._states

    def index(self, layer: int, name: str) -> int:
        """Where a state stands in the family's order.

        Raises:
            KeyError: there is no such state.
        """
        for index, state in enumerate(self._states):
            if (state.layer, state.name) == (layer, name):
                return index
        raise KeyError((layer, name))


def state_options(state) -> c.kvpack_state_options:
    """A state as C describes it."""
    if not isinstance(state, State):
        raise bad_argument("states", "has a %s, not a State" % type(state).__name__)
    name = utf8(state.name, "name")
    dimensions = [number(value, "shape") for value in listed(state.shape, "shape")]
    needed = [(utf8(other, "dependencies"), number(layer, "dependencies", 32))
              for layer, other in listed_pairs(state.dependencies, "dependencies")]
    keys = [c.kvpack_state_key(other, len(other), layer) for other, layer in needed]
    return c.kvpack_state_options(
        name=name, name_size=len(name), layer=number(state.layer, "layer", 32),
        dtype=choice(state.dtype, c.DTYPES, "dtype"),
        dimensions=(ctypes.c_uint64 * len(dimensions))(*dimensions), dimension_count=len(dimensions),
        token_axis_rule=choice(state.axis_rule, c.AXIS_RULES, "axis_rule"),
        codec=choice(state.codec, c.CODECS, "codec"),
        dependencies=(c.kvpack_state_key * len(keys))(*keys), dependency_count=len(keys))


def check_family(family) -> Family:
    """Refuses what is no family."""
    if not isinstance(family, Family):
        raise bad_argument("family", "is a %s, not a Family" % type(family).__name__)
    return family
