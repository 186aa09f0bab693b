"""Key rings: roots, tenant, and the epochs that may be opened."""
import ctypes
import os
from typing import List, Mapping, Optional, Union

from . import _structs as c
from ._buffers import View
from ._handles import Handle
from ._library import call, lib
from ._values import Id, IdLike, flag, id_at, number, optional_identity, pairs_of, path, utf8
from .errors import bad_argument

Root = Union[bytes, bytearray, memoryview, "os.PathLike[str]", str]
"""32 secret bytes, or the path of a file of them: mode 0600, one link, no symbolic link."""


class Keys(Handle):
    """A key ring; immutable, for any number of threads. The library wipes it with the last handle that uses it."""

    _what = "key ring"

    def __init__(self, root: Optional[Root] = None, *, operator: Union[str, bytes, None] = None,
                 tenant: Optional[IdLike] = None, epoch_roots: Optional[Mapping[int, Root]] = None,
                 minimum_epoch: int = 0, active_epoch: int = 0, only_epoch_roots: bool = False):
        """
        Args:
            root: the root that never changes for a store. Bytes are copied; wipe your own, which a `bytearray` allows.
            operator: the operator's name of the tenant; or
            tenant: the tenant namespace itself.
            epoch_roots: epochs that have a root of their own.
            minimum_epoch: oldest epoch to be opened; 0: active_epoch less 63.
            active_epoch: newest one, and the one to write; 0: every epoch is readable, 1 is written.
            only_epoch_roots: epochs without a root of their own are not found.

        Raises:
            Error: STATE, SEMANTICS, NOT_FOUND, IO as kvpack_keys_new.
        """
        views: List[View] = []
        try:
            options = c.kvpack_keys_options(
                minimum_epoch=number(minimum_epoch, "minimum_epoch"),
                active_epoch=number(active_epoch, "active_epoch"),
                only_epoch_roots=flag(only_epoch_roots, "only_epoch_roots"))
            options.stable_root, options.stable_root_size, options.stable_root_path = _root(root, "root", views)
            if operator is not None:
                options.operator_id = name = utf8(operator, "operator")
                options.operator_id_size = len(name)
            options.tenant = optional_identity(tenant, "tenant")
            roots = [c.kvpack_epoch_root(number(epoch, "epoch_roots"), *_root(value, "epoch_roots", views))
                     for epoch, value in pairs_of(epoch_roots, "epoch_roots")]
            options.epoch_roots = (c.kvpack_epoch_root * len(roots))(*roots) if roots else None
            options.epoch_root_count = len(roots)
            made = ctypes.c_void_p()
            call(lib.kvpack_keys_new, ctypes.byref(made), ctypes.byref(options))
        finally:
            for view in views:
                view.release()
        self._own(made.value, lib.kvpack_keys_free)

    @property
    def tenant(self) -> Id:
        """The tenant namespace that all identities of this ring are bound to."""
        with self._use() as pointer:
            return id_at(lib.kvpack_keys_tenant(pointer))


def _root(root, name, views):
    """Address, size and path of a root."""
    if root is None:
        return None, 0, None
    if isinstance(root, (str, os.PathLike)):
        return None, 0, path(root, name)
    view = View(root, name)
    views.append(view)
    return view.address, view.size, None


def check_keys(keys) -> Keys:
    """Refuses what is no key ring."""
    if not isinstance(keys, Keys):
        raise bad_argument("keys", "is a %s, not Keys" % type(keys).__name__)
    return keys
