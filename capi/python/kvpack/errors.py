"""What a refusal looks like: one code, one text, and facts that say where."""
from typing import Dict, Optional, Tuple, Type

from . import _structs as c


class LibraryError(ImportError):
    """libkvpack_c is not there, or is none that this package can work with."""


class Error(Exception):
    """A call was refused.

    Attributes:
        code: the kvpack_status of the call; its meaning never changes.
        category: its name, for example "authentication" or "invalid_argument".
        message: what went wrong, in one line. From code 100 on the texts are those of docs/format.
        facts: (name, value) pairs that say where: object, record, layer, state, tokens, field, found, expected,
            argument, callback, returned. Values may quote an untrusted file: escape them before they are shown.
    """

    def __init__(self, code: int, category: str, message: str, facts: Tuple[Tuple[str, str], ...] = ()):
        super().__init__(code, category, message, facts)
        self.code = code
        self.category = category
        self.message = message
        self.facts = facts

    def __str__(self) -> str:
        told = "".join(", %s=%s" % (name, ascii(value)) for name, value in self.facts)
        return "%s: %s (code %d%s)" % (self.category, self.message, self.code, told)

    def fact(self, name: str) -> Optional[str]:
        """The first fact of this name, or None."""
        for key, value in self.facts:
            if key == name:
                return value
        return None


class MisuseError(Error):
    """A mistake in calling, codes 1 to 99: a wrong argument, a handle that was closed, a callback that failed."""


class FormatError(Error):
    """Codes 100 to 199: bytes are damaged, do not fit together, or are none of this format."""


class AuthenticationError(FormatError):
    """Not written by the holder of these keys, or another object."""


class StorageError(Error):
    """Codes 200 to 299: the system, the store, or what was asked of it."""


class ExpectationError(StorageError):
    """Intact, but not what was expected; the fact `field` says what differs."""


class QuotaError(StorageError):
    """A limit on memory or space would be exceeded."""


class NotFoundError(StorageError):
    """An object is absent, or an epoch has no key."""


class BusyError(StorageError):
    """Somebody else holds it."""


class CancelledError(StorageError):
    """The caller wanted it to end."""


class TransferError(Error):
    """Codes 300 to 399: frames, JSON and configurations."""


class MachineError(Error):
    """Codes from 900 on: no memory, or a fault of the library."""


_BY_CODE: Dict[int, Type[Error]] = {
    c.ERR_AUTHENTICATION: AuthenticationError, c.ERR_EXPECTATION: ExpectationError, c.ERR_QUOTA: QuotaError,
    c.ERR_NOT_FOUND: NotFoundError, c.ERR_BUSY: BusyError, c.ERR_CANCELLED: CancelledError,
}
_BY_HUNDRED: Dict[int, Type[Error]] = {0: MisuseError, 1: FormatError, 2: StorageError, 3: TransferError}


def error_class(code: int) -> Type[Error]:
    """The class of errors with this code."""
    return _BY_CODE.get(code, _BY_HUNDRED.get(code // 100, MachineError))


def bad_argument(name: str, problem: str) -> MisuseError:
    """What the library itself would say about an argument that it is never shown."""
    return MisuseError(c.ERR_INVALID_ARGUMENT, "invalid_argument", "argument %s %s" % (name, problem),
                       (("argument", name),))


def wrong_state(message: str) -> MisuseError:
    """The thing is finished, busy, or of another process."""
    return MisuseError(c.ERR_WRONG_STATE, "wrong_state", message)


def closed_handle(what: str) -> MisuseError:
    """The thing was closed."""
    return MisuseError(c.ERR_BAD_HANDLE, "bad_handle", "the %s is closed" % what)
