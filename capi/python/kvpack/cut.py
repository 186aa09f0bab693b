"""Open cuts: what they are, whether they are the wanted ones, and their planes."""
import contextlib
import ctypes
from typing import Any, Callable, List, Optional, Sequence, Tuple

from . import _structs as c
from ._buffers import View
from ._callbacks import Callbacks, function_address
from ._handles import Handle
from ._library import call, lib
from ._values import Id, flag, id_at, listed, name_of, threads
from .errors import bad_argument, closed_handle
from .family import PlaneInfo, plane_info
from .identity import Identity

Progress = Callable[[int, int], None]
"""Told (done, total) in bytes, one call at a time, from any of the threads. Raising ends the work."""


class CutView:
    """What can be asked of any open cut."""

    def _use(self):
        raise NotImplementedError

    def _ask(self, function):
        with self._use() as pointer:
            return function(pointer)

    @property
    def level(self) -> str:
        """"authenticated" with keys, "integrity" without."""
        return name_of(self._ask(lib.kvpack_cut_level), c.LEVELS)

    @property
    def token_count(self) -> int:
        """How many tokens the cut has."""
        return self._ask(lib.kvpack_cut_token_count)

    @property
    def depth(self) -> int:
        """0 for a full manifest, else the number of parents."""
        return self._ask(lib.kvpack_cut_depth)

    @property
    def manifest_id(self) -> Id:
        """Identity of the head manifest."""
        with self._use() as pointer:
            return id_at(lib.kvpack_cut_manifest_id(pointer))

    @property
    def chunk_count(self) -> int:
        """How many chunks the whole chain has."""
        return self._ask(lib.kvpack_cut_chunk_count)

    @property
    def total_bytes(self) -> int:
        """Memory that all planes take together."""
        return self._ask(lib.kvpack_cut_total_bytes)

    @property
    def states(self) -> Tuple[PlaneInfo, ...]:
        """Every plane as it comes back, in the family's order."""
        with self._use() as pointer:
            count = lib.kvpack_cut_state_count(pointer)
            return tuple(plane_info(lib.kvpack_cut_state, pointer, index) for index in range(count))

    def identity(self) -> Identity:
        """All fields by which this cut may differ from another."""
        with self._use() as pointer:
            return Identity._of_cut(pointer)

    def expect(self, expected: Identity) -> None:
        """Compares the cut with what is expected, before anything is restored.

        Raises:
            ExpectationError: the first field that differs, with field, expected and found.
        """
        if not isinstance(expected, Identity):
            raise bad_argument("expected", "is a %s, not an Identity" % type(expected).__name__)
        with self._use() as pointer, expected._use() as wanted:
            call(lib.kvpack_cut_expect, pointer, wanted)


class BorrowedCut(CutView):
    """A cut that a store shows to a sink. Good until commit or abort has returned, and refused after that."""

    def __init__(self, pointer):
        self._pointer = pointer

    @contextlib.contextmanager
    def _use(self):
        if self._pointer is None:
            raise closed_handle("cut")
        yield self._pointer

    def _end(self):
        self._pointer = None


class Cut(CutView, Handle):
    """A cut that has been opened from a pack set; immutable, for any number of threads."""

    _what = "cut"
    _use = Handle._use

    def __init__(self, pointer, keep):
        self._own(pointer, lib.kvpack_cut_free, keep)

    def verify(self, *, parallelism: int = 0, progress: Optional[Progress] = None) -> str:
        """Verifies every chunk and keeps nothing.

        Returns:
            what the success shows: `level`.

        Raises:
            Error: the first failure in chunk order, with object, layer, state and tokens.
        """
        with self._use() as pointer, Callbacks() as callbacks:
            options = self._options(callbacks, parallelism, progress)
            call(lib.kvpack_cut_verify, pointer, ctypes.byref(options))
        return self.level

    def restore(self, into: Optional[Sequence[Any]] = None, *, parallelism: int = 0, integrity_only: bool = False,
                progress: Optional[Progress] = None) -> List[Any]:
        """Restores every plane.

        Args:
            into: writable memory, one per state and at least as large as its plane; it is scratch until success and
                must not be used after a failure. None: new bytearrays.
            integrity_only: without keys; whatever comes back may be anyone's.

        Returns:
            the memory, in the family's order. `states[i].array(memory[i])` is a numpy array over it.
        """
        states = self.states
        memory = [bytearray(state.size_bytes) for state in states] if into is None else list(listed(into, "into"))
        if len(memory) != len(states):
            raise bad_argument("into", "is %d planes, and the cut has %d" % (len(memory), len(states)))
        shadows = (c.kvpack_shadow * max(1, len(states)))()
        with contextlib.ExitStack() as held:
            for state, one, shadow in zip(states, memory, shadows):
                view = held.enter_context(View(one, "into (layer %d, %s)" % (state.layer, state.name), writable=True))
                shadow.data, shadow.size = view.address, view.size
            pointer = held.enter_context(self._use())
            callbacks = held.enter_context(Callbacks())
            options = self._options(callbacks, parallelism, progress)
            options.integrity_only = flag(integrity_only, "integrity_only")
            call(lib.kvpack_cut_restore, pointer, shadows, len(states), ctypes.byref(options))
        return memory

    @staticmethod
    def _options(callbacks, parallelism, progress):
        options = c.kvpack_restore_options(parallelism=threads(parallelism))
        options.progress = progress_callback(callbacks, progress)
        return options


def progress_callback(callbacks, progress):
    """A progress function as C calls it, or NULL."""
    if progress is None:
        return None
    if not callable(progress):
        raise bad_argument("progress", "cannot be called")
    return function_address(callbacks.status(c.progress_fn, lambda _, done, total: progress(done, total)))
