"""Callbacks into Python: what they raise never reaches C, and comes out of the call in which they ran."""
import collections
import ctypes
import sys
import threading
from typing import Any, Deque, Dict, Tuple

from . import _structs as c
from ._handles import inside
from .errors import Error, bad_argument


def function_address(callback):
    """A callback as a member of a struct."""
    return None if callback is None else ctypes.cast(callback, ctypes.c_void_p).value


class Notices:
    """What the library tells in callbacks that return nothing, told on by the thread whose call has ended: so the listener
    may use the handle, and what it raises comes out of that call.

    The queue is apart from the listener: a handle keeps the callback, and must not be kept by what it listens with.
    """

    def __init__(self, listener, name):
        if listener is not None and not callable(listener):
            raise bad_argument(name, "cannot be called")
        self._listener = listener
        self._queue: Deque[Tuple[Any, Any]] = collections.deque()

    def callback(self, prototype, describe):
        """A callback that notes down what `describe` makes of its arguments; None when nobody listens."""
        queue = self._queue

        def note(*arguments):
            try:
                queue.append((None, describe(*arguments)))
            except BaseException as raised:
                queue.append((raised, None))

        return None if self._listener is None else prototype(note)

    def tell(self):
        """Tells everything that is waiting."""
        while self._queue:
            try:
                raised, notice = self._queue.popleft()
            except IndexError:  # Another thread was quicker.
                return
            if raised is not None:
                raise raised
            self._listener(*notice)


class _Lost:
    """What was raised before a callback's guard had begun: an interrupt, the recursion limit. ctypes gives C a word of the
    stack then, and the exception to sys.unraisablehook, which is ours as long as a call with callbacks is running."""

    def __init__(self):
        self._lock = threading.RLock()
        self._owners: Dict[str, "Callbacks"] = {}
        self._previous = sys.__unraisablehook__
        self._inside = threading.local()

    def watch(self, function, owner):
        with self._lock:
            if not self._owners and sys.unraisablehook != self._take:
                self._previous, sys.unraisablehook = sys.unraisablehook, self._take
            self._owners[repr(function)] = owner

    def forget(self, owner):
        with self._lock:
            self._owners = {name: other for name, other in self._owners.items() if other is not owner}
            if not self._owners and sys.unraisablehook == self._take:
                sys.unraisablehook = self._previous

    def _take(self, unraisable):
        # From Python 3.13 on the function is named in the message alone.
        named = (unraisable.err_msg or "") if unraisable.object is None else repr(unraisable.object)
        for name, owner in list(self._owners.items()):
            if name in named:
                owner.keep(unraisable.exc_value or unraisable.exc_type())
                return
        # Another's hook, put in place behind ours, may call ours.
        if getattr(self._inside, "telling", False):
            sys.__unraisablehook__(unraisable)
            return
        self._inside.telling = True
        try:
            self._previous(unraisable)
        finally:
            self._inside.telling = False


_lost = _Lost()


class Callbacks:
    """The callbacks of one call. They live until the end of the `with`, which re-raises what they raised first.

    ctypes gives C whatever lies on the stack when a callback raises, which may be 0: so each is guarded here. Before the
    guard has begun nothing can be guarded: whoever makes callbacks also keeps account of what they have done, and checks
    it before he believes a success.
    """

    def __init__(self, *busy):
        self._busy = busy
        self._kept = []
        self._raised = None
        self._lock = threading.RLock()

    def _guarded(self, prototype, function, failure, outranks=False):
        def run(*arguments):
            try:
                before = inside.busy
                inside.busy = before + self._busy
                try:
                    function(*arguments)
                finally:
                    inside.busy = before
                return success
            except BaseException as raised:
                self.keep(raised, outranks)
                return failure

        success = None if failure is None else c.OK
        made = prototype(run)
        self._kept.append(made)
        _lost.watch(run, self)
        return made

    def status(self, prototype, function, outranks=False):
        """A callback that returns a status: 0 when `function` returns, KVPACK_ERR_CALLBACK when it raises. What one that
        outranks the others raises counts even when it was not the first."""
        return self._guarded(prototype, function, c.ERR_CALLBACK, outranks)

    def silent(self, prototype, function):
        """A callback that returns nothing."""
        return self._guarded(prototype, function, None)

    def keep(self, raised, outranks=False):
        """What is to come out of the call: the first one, or one that outranks it, with the first as its context."""
        with self._lock:
            if self._raised is None:
                self._raised = raised
            elif outranks:
                raised.__context__ = self._raised
                self._raised = raised

    def __enter__(self):
        return self

    def __exit__(self, kind, problem, traceback):
        self._kept.clear()
        _lost.forget(self)
        raised, self._raised = self._raised, None
        if raised is None or raised is problem or not (problem is None or isinstance(problem, Error)):
            return
        context = raised.__context__
        try:
            # What the library says about it is only that a callback failed.
            raise raised
        finally:
            raised.__context__ = context
            del raised
