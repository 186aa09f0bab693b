"""Planes: the memory of a state on its way into a save."""
import contextlib
import ctypes
import dataclasses
from typing import Any, Callable, List, Optional, Sequence, Union

from . import _structs as c
from ._buffers import View
from ._values import listed, number
from .errors import bad_argument

Reader = Callable[[memoryview], int]
"""Gives what comes next of a plane: fills the front of the memory and returns how many bytes, 0 at the end alone. The
tokens come row-major, tokens outermost, from the first that is written on (of a delta, from the first behind the
parent). Called by one thread at a time, which may be any of those that save."""


@dataclasses.dataclass(frozen=True)
class Plane:
    """One state's memory where its shape alone does not say enough.

    Attributes:
        data: anything that gives its memory by the buffer protocol, read-only or not, contiguous; or a Reader.
        token_start: first token in it; not 0 for a tail window or a plane without the parent's.
        byte_strides: for each dimension the distance of neighbours inside `data`; None: row-major.
        sidecar_sinks: sinks of the statistics sidecar, 1 to 8, of an f16 state; 0: no sidecar.
    """

    data: Any = dataclasses.field(repr=False)
    token_start: int = 0
    byte_strides: Optional[Sequence[int]] = None
    sidecar_sinks: int = 0


PlaneLike = Union[Plane, Reader, Any]
"""A Plane, or only its data."""


class PlaneArray:
    """The planes of one call as an array of kvpack_plane, their memory held until the end of the `with`."""

    def __init__(self, states, planes, readers_allowed=True):
        planes = listed(planes, "planes")
        if len(planes) != len(states):
            raise bad_argument("planes", "are %d, and there are %d states" % (len(planes), len(states)))
        self.count = len(planes)
        self.array = (c.kvpack_plane * max(1, self.count))()
        self.readers: List[Optional[Reader]] = []
        self._held = contextlib.ExitStack()
        with self._held:
            for state, plane, out in zip(states, planes, self.array):
                self._add(state, plane, out, readers_allowed)
            self._held = self._held.pop_all()

    def _add(self, state, plane, out, readers_allowed):
        name = "planes (layer %d, %s)" % (state.layer, state.name)
        if not isinstance(plane, Plane):
            plane = Plane(plane)
        out.struct_size = ctypes.sizeof(out)
        out.token_start = number(plane.token_start, name)
        out.sidecar_sinks = number(plane.sidecar_sinks, name, 32)
        if plane.byte_strides is not None:
            strides = [number(value, name) for value in listed(plane.byte_strides, name)]
            out.byte_strides = (ctypes.c_uint64 * len(strides))(*strides)
            out.byte_stride_count = len(strides)
        if callable(plane.data) and readers_allowed:
            if plane.byte_strides is not None:
                raise bad_argument(name, "has byte strides, and is read in order")
            self.readers.append(plane.data)
            return
        self.readers.append(None)
        view = self._held.enter_context(View(plane.data, name))
        out.data, out.data_size = view.address, view.size

    @property
    def has_readers(self) -> bool:
        """Whether one of the planes is read instead of lying in memory."""
        return any(reader is not None for reader in self.readers)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._held.close()
