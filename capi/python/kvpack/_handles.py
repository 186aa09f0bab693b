"""Handles of the library: freed once, never while a call uses them, and refused after that.

A handle belongs to the process that made it. After a fork the child refuses to use its copies, and frees none.
"""
import contextlib
import os
import threading
import weakref
from typing import Tuple

from .errors import closed_handle, wrong_state

_forks = 0


def _count_fork():
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_fork)


class _Inside(threading.local):
    """The handles whose calls have called back, of this thread."""

    def __init__(self):
        self.busy: Tuple[object, ...] = ()


inside = _Inside()


class Owned:
    """What a handle points to. Outlives the object of the user's as long as a call is in it. Handles of one group are
    busy together."""

    def __init__(self, what, pointer, free, keep=(), group=None):
        self.group = self if group is None else group
        self.what = what
        self.pointer = pointer
        self.free = free
        self.keep = keep
        self.uses = 0
        self.closed = False
        # Reentrant: the collector may run in the middle, and with it a __del__ of somebody's that uses the handle.
        self.lock = threading.RLock()
        self.forks = _forks

    def enter(self):
        if self.forks != _forks:
            raise wrong_state("the %s was made before this process was forked" % self.what)
        if self.group in inside.busy:
            raise wrong_state("the %s is busy with the call in which this callback runs" % self.what)
        with self.lock:
            self.uses += 1
            if not self.closed:
                return self.pointer
        self.leave()
        raise closed_handle(self.what)

    def leave(self):
        with self.lock:
            self.uses -= 1
            pointer = self._take_unused()
        self._release(pointer)

    def close(self):
        if self.forks != _forks:
            return
        with self.lock:
            self.closed = True
            pointer = self._take_unused()
        self._release(pointer)

    def _take_unused(self):
        """The pointer, once, when the handle is closed and no call is in it."""
        if not self.closed or self.uses > 0:
            return None
        pointer, self.pointer = self.pointer, None
        return pointer

    def _release(self, pointer):
        if pointer is not None:
            self.free(pointer)
            self.keep = ()


class Handle:
    """Base of what owns a handle. Closing twice is fine; under a running call it is freed when that call has ended."""

    _what = "handle"
    _owned: Owned

    def _own(self, pointer, free, keep=(), group=None):
        self._owned = Owned(self._what, pointer, free, keep, group)
        # Also at the end of the process: a store that is closed writes its counters down.
        weakref.finalize(self, self._owned.close)

    @contextlib.contextmanager
    def _use(self):
        """The pointer, which stays good in the body."""
        owned = self._owned
        pointer = owned.enter()
        try:
            yield pointer
        finally:
            owned.leave()

    def close(self) -> None:
        """Frees the handle. Whatever is asked of it afterwards is refused."""
        self._owned.close()

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._owned.closed

    def __enter__(self):
        self._owned.enter()
        self._owned.leave()
        return self

    def __exit__(self, *_):
        self.close()
