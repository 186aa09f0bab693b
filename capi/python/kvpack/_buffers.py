"""Memory of Python objects, as the buffer protocol gives it: read-only ones too, held until they are released."""
import array
import contextlib
import ctypes
import gc
import sys
from ctypes import POINTER, c_char_p, c_int, c_ssize_t, c_void_p

from .errors import bad_argument


class Py_buffer(ctypes.Structure):
    """The struct of CPython's buffer protocol, which is a part of its stable interface."""

    _fields_ = [("buf", c_void_p), ("obj", c_void_p), ("len", c_ssize_t), ("itemsize", c_ssize_t),
                ("readonly", c_int), ("ndim", c_int), ("format", c_char_p), ("shape", POINTER(c_ssize_t)),
                ("strides", POINTER(c_ssize_t)), ("suboffsets", POINTER(c_ssize_t)), ("internal", c_void_p)]


_get = ctypes.pythonapi.PyObject_GetBuffer
_get.restype, _get.argtypes = c_int, [ctypes.py_object, POINTER(Py_buffer), c_int]
_release = ctypes.pythonapi.PyBuffer_Release
_release.restype, _release.argtypes = None, [POINTER(Py_buffer)]
_is_contiguous = ctypes.pythonapi.PyBuffer_IsContiguous
_is_contiguous.restype, _is_contiguous.argtypes = c_int, [POINTER(Py_buffer), ctypes.c_char]

_FULL_READ_ONLY = 0x11C
_WRITABLE = 0x1


class View:
    """The memory of an object, which keeps still and stays there until `release`."""

    _buffer = None

    def __init__(self, source, name, writable=False):
        taken = Py_buffer()
        if isinstance(source, str):
            raise bad_argument(name, "is a text, not memory")
        try:
            _get(source, ctypes.byref(taken), _FULL_READ_ONLY | (_WRITABLE if writable else 0))
        except TypeError:
            raise bad_argument(name, "is a %s, which does not give its memory (of a tensor on the CPU give .numpy())"
                               % type(source).__name__) from None
        except (BufferError, ValueError) as problem:
            raise bad_argument(name, "does not lend its memory%s: %s"
                               % (" for writing" if writable else "", problem)) from None
        if not _is_contiguous(ctypes.byref(taken), b"C"):
            _release(ctypes.byref(taken))
            raise bad_argument(name, "is strided: its elements do not lie one behind the other; give a contiguous copy")
        self._buffer = taken
        self.address = taken.buf
        self.size = taken.len
        self.itemsize = taken.itemsize
        self.format = (taken.format or b"B").decode()

    def release(self):
        taken, self._buffer = self._buffer, None
        if taken is not None:
            _release(ctypes.byref(taken))

    def __del__(self):
        self.release()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.release()


class Loans:
    """Memory that is lent to the library until the end of the `with`, in pieces that do not overlap."""

    def __init__(self):
        self._views = {}

    def lend(self, part, memory, size, out):
        """Writes the address of a part's memory to `out`. A part that is lent again has other memory from then on."""
        self._take_back(part)
        view = View(memory, "data", writable=True)
        if view.size < size:
            raise bad_argument("data", "lends %d bytes, and part %d takes %d" % (view.size, part, size))
        for other, taken in self._views.items():
            if view.address < taken.address + taken.size and taken.address < view.address + view.size:
                raise bad_argument("data", "lends part %d memory that part %d has" % (part, other))
        self._views[part] = view
        c_void_p.from_address(out).value = view.address

    def address(self, part):
        """Where a part was lent; None when it was not."""
        view = self._views.get(part)
        return None if view is None else view.address

    def _take_back(self, part):
        view = self._views.pop(part, None)
        if view is not None:
            view.release()

    def take_back_all(self):
        for part in list(self._views):
            self._take_back(part)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.take_back_all()


_view_of = ctypes.pythonapi.PyMemoryView_FromMemory
_view_of.restype, _view_of.argtypes = ctypes.py_object, [c_void_p, c_ssize_t, c_int]


def memory_at(address, size, writable):
    """Memory of the library's as a memoryview, without a copy."""
    return _view_of(address, size, 0x200 if writable else 0x100) if size else memoryview(b"")


@contextlib.contextmanager
def lent_memory(address, size, writable):
    """The same during the body. Whatever still looks at it at its end is refused: the memory is about to go.

    What the frames of an exception hold is dropped, with their variables.
    """
    view = memory_at(address, size, writable)
    try:
        yield view
    except BaseException as problem:
        if not _taken_back(view):
            _drop_frames(problem.__traceback__)
            _taken_back(view)
        raise
    if not _taken_back(view):
        raise bad_argument("data", "outlives its callback: something over it is still there; keep a copy")


def _taken_back(view):
    """Releases a view, unless an array stands over it or another view shares its memory."""
    # What all views of one memory share, and nothing else refers to: this view does, the list, and the question.
    shared = gc.get_referents(view)
    if len(shared) == 1 and sys.getrefcount(shared[0]) > 3:
        return False
    try:
        view.release()
    except BufferError:
        return False
    return True


def _drop_frames(traceback):
    while traceback is not None:
        # A frame that still runs, as this package's own do, says so.
        with contextlib.suppress(RuntimeError):
            traceback.tb_frame.clear()
        traceback = traceback.tb_next


def tokens_of(tokens, name="tokens"):
    """A token list as something with 32-bit unsigned elements, and how many there are."""
    if isinstance(tokens, (bytes, bytearray, str)):
        raise bad_argument(name, "is a %s, not a list of numbers" % type(tokens).__name__)
    try:
        view = memoryview(tokens)
    except (TypeError, ValueError):
        view = None
    if view is not None:
        if view.ndim != 1:
            raise bad_argument(name, "has %d dimensions, not one" % view.ndim)
        if view.itemsize == 4 and view.format in ("I", "=I", "<I", "L") and view.c_contiguous:
            return tokens, len(view)
        tokens = view.tolist()
    try:
        listed = array.array("I", tokens)
    except (TypeError, ValueError, OverflowError):
        raise bad_argument(name, "has an element that is no number from 0 to 4294967295") from None
    return listed, len(listed)
