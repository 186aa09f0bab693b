"""The engine's side of a restore: where the bytes go, and when they become live."""
from typing import Any, List, Optional, Sequence, Tuple

from . import _structs as c
from ._buffers import Loans, lent_memory
from ._callbacks import function_address
from ._values import listed
from .cut import BorrowedCut
from .errors import bad_argument, wrong_state
from .family import PlaneInfo
from .identity import Identity


class Sink:
    """A fresh generation of an engine's state, which nothing live knows before `commit`.

    The order is begin; lend for each state; write; commit. After a failure of begin or of anything behind it come abort
    and reset, which may come again for the next cut that is tried. All calls are made by the thread that restores. What
    they raise ends the restore and comes out of it. None of them may use the store that restores.
    """

    def begin(self, cut: BorrowedCut) -> None:
        """Makes room for the cut, having compared it: `cut.expect`, `cut.states`. Raises when it is not wanted."""

    def lend(self, index: int, size: int) -> Any:
        """Writable memory of at least `size` bytes for a state, laid out as `cut.states` says; None asks for `write`
        instead. It is filled by several threads before the last check: undefined until commit."""
        return None

    def write(self, index: int, offset: int, data: memoryview) -> None:
        """Takes a piece of a state that was not lent, after its last check, in any order. `offset` is in bytes of the
        row-major plane. `data` is the library's memory and is gone when this returns: keep a copy."""
        raise NotImplementedError

    def commit(self) -> None:
        """Makes the whole generation live, at once. Every byte has been verified, and lent or written."""
        raise NotImplementedError

    def abort(self) -> None:
        """Drops the generation that was begun, or the part of it that there is."""

    def reset(self) -> None:
        """After each abort: forces a known state, which matters when a commit has failed halfway. What it raises outranks
        what came before: nobody knows what is live."""


class MemorySink(Sink):
    """Restores into memory: the caller's, or new bytearrays.

    Attributes:
        states: the planes that were restored, once that is done; else empty.
        planes: their memory, in the same order; else empty.
    """

    def __init__(self, into: Optional[Sequence[Any]] = None, expected: Optional[Identity] = None):
        """
        Args:
            into: writable memory, one per state and at least as large as its plane; undefined after a failure.
            expected: what a cut must be, or it is refused before a chunk is read.
        """
        self.states: Tuple[PlaneInfo, ...] = ()
        self.planes: List[Any] = []
        self._into = into
        self._expected = expected
        self._found: Tuple[PlaneInfo, ...] = ()
        self._memory: List[Any] = []

    def begin(self, cut: BorrowedCut) -> None:
        if self._expected is not None:
            cut.expect(self._expected)
        self._found = cut.states
        if self._into is None:
            self._memory = [bytearray(state.size_bytes) for state in self._found]
            return
        self._memory = list(listed(self._into, "into"))
        if len(self._memory) != len(self._found):
            raise bad_argument("into", "is %d planes, and the cut has %d" % (len(self._memory), len(self._found)))

    def lend(self, index: int, size: int) -> Any:
        return self._memory[index]

    def commit(self) -> None:
        self.states, self.planes = self._found, self._memory

    def abort(self) -> None:
        self.states, self.planes, self._found, self._memory = (), [], (), []


class SinkCall:
    """A sink during one restore, as kvpack_restore_sink.

    Keeps account of what was called and of every byte that was written: a callback that could not even begin may have
    told the library of a success (see Callbacks), and must not be believed.
    """

    def __init__(self, sink, callbacks):
        if not isinstance(sink, Sink):
            raise bad_argument("sink", "is a %s, not a Sink" % type(sink).__name__)
        self._sink = sink
        self._cut = None
        self._missing = {}
        self._loans = Loans()
        self._open = False
        self._committed = False
        self.struct = c.kvpack_restore_sink()
        for name, prototype in (("begin", c.sink_begin_fn), ("lend", c.sink_lend_fn), ("write", c.sink_write_fn),
                                ("commit", c.user_status_fn), ("reset", c.user_status_fn)):
            # After a failed reset nobody knows what is live, which matters more than why it came to that.
            made = callbacks.status(prototype, getattr(self, "_" + name), outranks=name == "reset")
            setattr(self.struct, name, function_address(made))
        self.struct.abort = function_address(callbacks.silent(c.user_void_fn, self._abort))

    def _begin(self, _, cut):
        self._forget()
        shown = BorrowedCut(cut)
        self._missing = {index: state.payload_bytes for index, state in enumerate(shown.states)}
        self._cut = shown
        self._open = True
        self._sink.begin(shown)

    def _lend(self, _, index, out, size):
        self._check_begun()
        memory = self._sink.lend(index, size)
        if memory is None:
            return
        self._loans.lend(index, memory, size, out)
        self._missing.pop(index, None)

    def _write(self, _, index, offset, data, size):
        self._check_begun()
        with lent_memory(data, size, False) as piece:
            self._sink.write(index, offset, piece)
        self._missing[index] -= size

    def _commit(self, _):
        self._check_begun()
        if any(self._missing.values()):
            raise wrong_state("the sink was not shown every byte")
        self._sink.commit()
        self._open, self._committed = False, True
        self._forget()

    def _abort(self, _):
        self._open = False
        self._forget()
        self._sink.abort()

    def _reset(self, _):
        self._sink.reset()

    def _check_begun(self):
        if self._cut is None:
            raise wrong_state("the sink was not begun")

    def _forget(self):
        """What was lent goes back, and the cut is no longer to be looked at."""
        self._loans.take_back_all()
        if self._cut is not None:
            self._cut._end()
        self._cut, self._missing = None, {}

    def check(self):
        """Refuses a success of the library's that the sink knows nothing of."""
        if not self._committed:
            raise wrong_state("the sink was not committed")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._forget()
        if self._open:
            self._abort(None)
            self._reset(None)
