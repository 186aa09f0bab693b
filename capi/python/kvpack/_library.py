"""libkvpack_c: where it is found, whether it fits, and its functions."""
import ctypes
import ctypes.util
import os
import sys
from ctypes import c_char_p, c_int32, c_uint32, c_uint64, c_void_p

from . import _structs as c
from .errors import LibraryError, error_class

# Functions by what they return; each with its parameters, where handles, structs and arrays are pointers. A c_void_p
# takes what ctypes.byref gives. tests/python/layout_test.py compares all of this with the header.
P, TEXT, U32, U64 = c_void_p, c_char_p, c_uint32, c_uint64
STATUS = c_int32
PROTOTYPES = {
    "kvpack_abi_version": (U32, []),
    "kvpack_version": (TEXT, []),
    "kvpack_has_feature": (c_int32, [TEXT]),
    "kvpack_status_name": (TEXT, [STATUS]),
    "kvpack_error_status": (STATUS, [P]),
    "kvpack_error_category": (TEXT, [P]),
    "kvpack_error_message": (TEXT, [P]),
    "kvpack_error_context_count": (U64, [P]),
    "kvpack_error_context_key": (TEXT, [P, U64]),
    "kvpack_error_context_value": (TEXT, [P, U64]),
    "kvpack_error_free": (None, [P]),
    "kvpack_bytes_data": (P, [P]),
    "kvpack_bytes_size": (U64, [P]),
    "kvpack_bytes_free": (None, [P]),
    "kvpack_keys_new": (STATUS, [P, P, P]),
    "kvpack_keys_tenant": (P, [P]),
    "kvpack_keys_free": (None, [P]),
    "kvpack_family_builder_new": (STATUS, [P, P, P]),
    "kvpack_family_builder_add_state": (STATUS, [P, P, P]),
    "kvpack_family_builder_build": (STATUS, [P, P, P]),
    "kvpack_family_builder_free": (None, [P]),
    "kvpack_family_id": (P, [P]),
    "kvpack_family_state_count": (U64, [P]),
    "kvpack_family_state": (STATUS, [P, P, U64, P]),
    "kvpack_family_free": (None, [P]),
    "kvpack_cut_builder_new": (STATUS, [P, P, P]),
    "kvpack_cut_builder_set_plane": (STATUS, [P, U64, P, P]),
    "kvpack_cut_builder_save": (STATUS, [P, P, P, P, P]),
    "kvpack_cut_builder_free": (None, [P]),
    "kvpack_saved_cut_pack": (P, [P, P]),
    "kvpack_saved_cut_manifest_id": (P, [P]),
    "kvpack_saved_cut_free": (None, [P]),
    "kvpack_cut_open": (STATUS, [P, P, P]),
    "kvpack_cut_level": (U32, [P]),
    "kvpack_cut_token_count": (U64, [P]),
    "kvpack_cut_depth": (U32, [P]),
    "kvpack_cut_manifest_id": (P, [P]),
    "kvpack_cut_state_count": (U64, [P]),
    "kvpack_cut_chunk_count": (U64, [P]),
    "kvpack_cut_total_bytes": (U64, [P]),
    "kvpack_cut_state": (STATUS, [P, P, U64, P]),
    "kvpack_cut_restore": (STATUS, [P, P, U64, P, P]),
    "kvpack_cut_verify": (STATUS, [P, P, P]),
    "kvpack_cut_expect": (STATUS, [P, P, P]),
    "kvpack_cut_free": (None, [P]),
    "kvpack_identity_new": (STATUS, [P, P]),
    "kvpack_identity_of_cut": (STATUS, [P, P, P]),
    "kvpack_identity_set": (STATUS, [P, TEXT, TEXT, P]),
    "kvpack_identity_set_model": (STATUS, [P, P, P]),
    "kvpack_identity_set_family": (STATUS, [P, P, P]),
    "kvpack_identity_field_count": (U64, []),
    "kvpack_identity_field_name": (TEXT, [U64]),
    "kvpack_identity_get": (TEXT, [P, TEXT]),
    "kvpack_identity_free": (None, [P]),
    "kvpack_pack_set_writer_new": (STATUS, [P, P, P]),
    "kvpack_pack_set_writer_add_chunk": (STATUS, [P, P, P, U64, P]),
    "kvpack_pack_set_writer_add_pack": (STATUS, [P, P, U64, P, P]),
    "kvpack_pack_set_writer_finish": (STATUS, [P, P, P]),
    "kvpack_pack_set_writer_free": (None, [P]),
    "kvpack_pack_set_open": (STATUS, [P, P, P]),
    "kvpack_pack_set_get_info": (STATUS, [P, P, P]),
    "kvpack_pack_set_record_count": (U64, [P]),
    "kvpack_pack_set_get_entry": (STATUS, [P, P, U64, P]),
    "kvpack_pack_set_find": (STATUS, [P, P, P, P]),
    "kvpack_pack_set_read": (STATUS, [P, P, U64, P]),
    "kvpack_pack_set_verify": (STATUS, [P, P, P, P]),
    "kvpack_pack_set_prove": (STATUS, [P, P, U64, P]),
    "kvpack_pack_set_free": (None, [P]),
    "kvpack_report_level": (U32, [P]),
    "kvpack_report_record_count": (U64, [P]),
    "kvpack_report_pack_count": (U64, [P]),
    "kvpack_report_chunk_count": (U64, [P]),
    "kvpack_report_unchecked_count": (U64, [P]),
    "kvpack_report_unchecked": (TEXT, [P, U64]),
    "kvpack_report_free": (None, [P]),
    "kvpack_store_create": (STATUS, [P, P, P]),
    "kvpack_store_open": (STATUS, [P, P, P]),
    "kvpack_store_open_read_only": (STATUS, [P, P, P]),
    "kvpack_store_get_info": (STATUS, [P, P, P]),
    "kvpack_store_maintain": (STATUS, [P, P, U64, P]),
    "kvpack_store_collect": (STATUS, [P, P, P]),
    "kvpack_store_evict": (STATUS, [P, P, P, P]),
    "kvpack_store_free": (None, [P]),
    "kvpack_store_save": (STATUS, [P, P, P, P]),
    "kvpack_store_save_from_engine": (STATUS, [P, P, P, P, P]),
    "kvpack_store_saved_cut_count": (U64, [P]),
    "kvpack_store_saved_cuts": (P, [P]),
    "kvpack_store_saved_get_info": (STATUS, [P, P, P]),
    "kvpack_store_saved_free": (None, [P]),
    "kvpack_store_find_deepest": (STATUS, [P, P, P, P]),
    "kvpack_store_restore_deepest": (STATUS, [P, P, P, P, P, P, P]),
    "kvpack_store_restore": (STATUS, [P, P, P, P, P, P, P]),
    "kvpack_store_hold_id": (P, [P]),
    "kvpack_store_hold_release": (STATUS, [P, P]),
    "kvpack_store_hold_free": (None, [P]),
    "kvpack_cancel_new": (STATUS, [P, P]),
    "kvpack_cancel_request": (None, [P]),
    "kvpack_cancel_free": (None, [P]),
    "kvpack_cache_open": (STATUS, [P, P, P]),
    "kvpack_cache_save": (STATUS, [P, P, P, P]),
    "kvpack_cache_restore": (STATUS, [P, P, P, P, P]),
    "kvpack_cache_state_data": (P, [P, P, U64]),
    "kvpack_cache_state_token_start": (U64, [P, U64]),
    "kvpack_cache_state_free": (None, [P]),
    "kvpack_cache_store": (STATUS, [P, P, P]),
    "kvpack_cache_free": (None, [P]),
    "kvpack_factor_digest": (STATUS, [P, P, U64, P]),
    "kvpack_factor_digest_file": (STATUS, [P, TEXT, P, P, P]),
    "kvpack_pack_verify": (STATUS, [P, P, U64, P, P]),
    "kvpack_pack_inspect": (STATUS, [P, P, U64, P]),
    "kvpack_chunk_inspect": (STATUS, [P, P, U64, P]),
}


def candidates(environment=os.environ, folder=os.path.dirname(os.path.abspath(__file__)), platform=sys.platform):
    """Where the library may be, in the order of trying: KVPACK_LIBRARY alone when it is set; else the files beside
    the package, then what the system's loader knows."""
    chosen = environment.get("KVPACK_LIBRARY")
    if chosen:
        return [chosen]
    names = ["libkvpack_c.so.1", "libkvpack_c.so"]
    if platform == "darwin":
        names = ["libkvpack_c.1.dylib", "libkvpack_c.dylib"]
    elif platform == "win32":
        names = ["kvpack_c.dll"]
    beside = [os.path.join(folder, name) for name in names]
    found = [path for path in beside if os.path.exists(path)]
    return found + names + [name for name in [ctypes.util.find_library("kvpack_c")] if name]


def load(paths):
    """The first library that loads, with its functions declared."""
    problems = []
    for path in paths:
        try:
            library = ctypes.CDLL(path)
            break
        except OSError as problem:
            problems.append(str(problem))
    else:
        raise LibraryError("kvpack: libkvpack_c cannot be loaded; KVPACK_LIBRARY may name it. Tried: "
                           + "; ".join(problems))
    check_version(library, path)
    for name, (result, parameters) in PROTOTYPES.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise LibraryError("kvpack: %s has no %s" % (path, name)) from None
        function.restype = result
        function.argtypes = parameters
    return library


def check_version(library, path):
    """Refuses a library whose structs may be others than those described here."""
    try:
        version = library.kvpack_abi_version
    except AttributeError:
        raise LibraryError("kvpack: %s is no libkvpack_c" % path) from None
    version.restype, version.argtypes = c_uint32, []
    major, minor = divmod(version(), 65536)
    if major != c.ABI_MAJOR or minor < c.ABI_MINOR:
        raise LibraryError("kvpack: %s has interface %d.%d, and this package needs %d.%d"
                           % (path, major, minor, c.ABI_MAJOR, c.ABI_MINOR))


lib = load(candidates())


def text(raw):
    """A text of the library's, which is UTF-8, or quotes what may be none."""
    return None if raw is None else raw.decode("utf-8", "backslashreplace")


def take_error(status, pointer):
    """The exception for a failed call, whose error handle it frees."""
    category = text(lib.kvpack_status_name(status)) or "unknown"
    if not pointer:
        return error_class(status)(status, category, "the call failed")
    try:
        return describe_error(pointer)
    finally:
        lib.kvpack_error_free(pointer)


def describe_error(pointer):
    """The exception that says what an error handle says."""
    status = lib.kvpack_error_status(pointer)
    facts = tuple((text(lib.kvpack_error_context_key(pointer, i)), text(lib.kvpack_error_context_value(pointer, i)))
                  for i in range(lib.kvpack_error_context_count(pointer)))
    return error_class(status)(status, text(lib.kvpack_error_category(pointer)) or "unknown",
                               text(lib.kvpack_error_message(pointer)) or "", facts)


def call(function, *arguments):
    """Calls a fallible function, whose last parameter is the error. Raises what it refuses with."""
    error = c_void_p()
    status = function(*arguments, ctypes.byref(error))
    if status != c.OK:
        raise take_error(status, error.value)


def version() -> str:
    """Version of the library that is loaded, for example "1.0.0"."""
    return text(lib.kvpack_version())
