"""The structs and codes of kvpack_c.h that this package uses, under their names there.

tests/python/layout_test.py compares every offset, size and code with the header, through a C compiler.
"""
import ctypes
from ctypes import c_char_p, c_int32, c_uint8, c_uint32, c_uint64, c_void_p

ABI_MAJOR = 1
ABI_MINOR = 0

OK = 0
ERR_INVALID_ARGUMENT = 1
ERR_BAD_HANDLE = 4
ERR_WRONG_STATE = 5
ERR_CALLBACK = 7
ERR_AUTHENTICATION = 109
ERR_EXPECTATION = 203
ERR_QUOTA = 204
ERR_NOT_FOUND = 207
ERR_BUSY = 208
ERR_CANCELLED = 209
ERR_NO_MEMORY = 900

MAX_RANK = 8
CACHE_LOGITS = (1 << 64) - 1
MAX_PARALLELISM = 256

DTYPES = {"u8": 1, "u32": 2, "i8": 3, "i16": 4, "i32": 5, "f16": 6, "bf16": 7, "f32": 8, "f64": 9}
CODECS = {"raw": 1, "lossless": 2}
MODES = {"native": 1, "portable": 2}
AXIS_RULES = {"direct": 1, "gather": 2, "tail_window": 3}
SPAN_RULES = {"aligned": 0, "upstream": 1}
RECORDS = {"chunk": 1, "pack": 2}
LEVELS = {"authenticated": 1, "integrity": 2, "framing": 3}
FAULT_ACTIONS = {"skipped": 1, "quarantined": 2}
LOG_LEVELS = {"warning": 1, "info": 2}
PRESSURES = {"normal": 0, "evicting": 1, "emergency": 2, "promotion_stopped": 3}


class Fixed(ctypes.Structure):
    """A struct without struct_size: fixed for good."""


class Sized(ctypes.Structure):
    """A struct that begins with struct_size, which is set to what this package knows."""

    def __init__(self, **values):
        super().__init__(**values)
        self.struct_size = ctypes.sizeof(self)


class kvpack_id(Fixed):
    _fields_ = [("bytes", c_uint8 * 32)]


class kvpack_state_key(Fixed):
    _fields_ = [("name", c_char_p), ("name_size", c_uint64), ("layer", c_uint32), ("reserved", c_uint32)]


class kvpack_model(Fixed):
    _fields_ = [(name, kvpack_id) for name in (
        "weights_config", "adapters", "tokenizer_template", "position_semantics", "qualified_math")]


class kvpack_auxiliary_input(Fixed):
    _fields_ = [("type_id", kvpack_id), ("value_id", kvpack_id)]


class kvpack_input_cut(Fixed):
    _fields_ = [("token_root", kvpack_id), ("auxiliary_root", kvpack_id), ("token_count", c_uint64)]


class kvpack_chunk_span(Fixed):
    _fields_ = [("token_start", c_uint64), ("token_count", c_uint64), ("plaintext_offset", c_uint64),
                ("plaintext_bytes", c_uint32), ("reserved", c_uint32)]


class kvpack_chunk_ref(Fixed):
    _fields_ = [("content_id", kvpack_id), ("object_key", kvpack_id), ("stored_object_digest", kvpack_id),
                ("key_epoch", c_uint64), ("plaintext_bytes", c_uint32), ("object_bytes", c_uint32)]


class kvpack_epoch_root(Fixed):
    _fields_ = [("epoch", c_uint64), ("root", c_void_p), ("root_size", c_uint64), ("root_path", c_char_p)]


class kvpack_keys_options(Sized):
    _fields_ = [("struct_size", c_uint64), ("stable_root", c_void_p), ("stable_root_size", c_uint64),
                ("stable_root_path", c_char_p), ("operator_id", c_char_p), ("operator_id_size", c_uint64),
                ("tenant", ctypes.POINTER(kvpack_id)), ("epoch_roots", ctypes.POINTER(kvpack_epoch_root)),
                ("epoch_root_count", c_uint64), ("minimum_epoch", c_uint64), ("active_epoch", c_uint64),
                ("only_epoch_roots", c_uint32), ("reserved", c_uint32)]


class kvpack_family_options(Sized):
    _fields_ = [("struct_size", c_uint64), ("engine_cache_abi", kvpack_id), ("topology", kvpack_id),
                ("shard_map", kvpack_id), ("mode", c_uint32), ("page_size_tokens", c_uint32)]


class kvpack_state_options(Sized):
    _fields_ = [("struct_size", c_uint64), ("name", c_char_p), ("name_size", c_uint64), ("layer", c_uint32),
                ("dtype", c_uint32), ("dimensions", ctypes.POINTER(c_uint64)), ("dimension_count", c_uint64),
                ("token_axis_rule", c_uint32), ("codec", c_uint32), ("layout", c_uint32),
                ("reserved", c_uint32), ("dependencies", ctypes.POINTER(kvpack_state_key)),
                ("dependency_count", c_uint64)]


class kvpack_state_info(Sized):
    _fields_ = [("struct_size", c_uint64), ("name", c_char_p), ("name_size", c_uint64), ("layer", c_uint32),
                ("dtype", c_uint32), ("dtype_bytes", c_uint32), ("codec", c_uint32), ("layout", c_uint32),
                ("token_axis_rule", c_uint32), ("token_axis", c_uint32), ("rank", c_uint32),
                ("dimensions", c_uint64 * MAX_RANK), ("elements_per_token", c_uint64),
                ("dependency_count", c_uint64)]


class kvpack_plane_info(Sized):
    _fields_ = [("struct_size", c_uint64), ("name", c_char_p), ("name_size", c_uint64), ("layer", c_uint32),
                ("dtype", c_uint32), ("dtype_bytes", c_uint32), ("token_axis_rule", c_uint32),
                ("token_axis", c_uint32), ("rank", c_uint32), ("dimensions", c_uint64 * MAX_RANK),
                ("byte_strides", c_uint64 * MAX_RANK), ("size_bytes", c_uint64), ("token_start", c_uint64),
                ("token_count", c_uint64)]


class kvpack_cut_builder_options(Sized):
    _fields_ = [("struct_size", c_uint64), ("keys", c_void_p), ("family", c_void_p), ("epoch", c_uint64),
                ("model", kvpack_model), ("tokens", c_void_p), ("token_count", c_uint64),
                ("auxiliary", c_void_p), ("auxiliary_count", c_uint64), ("known_cut", c_void_p),
                ("parent", c_void_p), ("span_rule", c_uint32), ("grain_tokens", c_uint32),
                ("window_grain_tokens", c_uint32), ("encrypt_chunks", c_uint32),
                ("encrypt_manifest", c_uint32), ("parallelism", c_uint32), ("random", c_void_p),
                ("random_user", c_void_p)]


class kvpack_plane(Sized):
    _fields_ = [("struct_size", c_uint64), ("data", c_void_p), ("data_size", c_uint64),
                ("token_start", c_uint64), ("token_count", c_uint64),
                ("byte_strides", ctypes.POINTER(c_uint64)), ("byte_stride_count", c_uint64),
                ("sidecar_sinks", c_uint32), ("reserved", c_uint32)]


class kvpack_saved_chunk(Sized):
    _fields_ = [("struct_size", c_uint64), ("state_index", c_uint64), ("span", kvpack_chunk_span),
                ("ref", kvpack_chunk_ref), ("object", c_void_p), ("object_size", c_uint64)]


class kvpack_cut_options(Sized):
    _fields_ = [("struct_size", c_uint64), ("keys", c_void_p), ("pack", c_void_p), ("pack_size", c_uint64),
                ("read_pack", c_void_p), ("read_chunk", c_void_p), ("read_user", c_void_p),
                ("pack_set", c_void_p), ("limits", c_void_p), ("max_memory_bytes", c_uint64)]


class kvpack_restore_options(Sized):
    _fields_ = [("struct_size", c_uint64), ("integrity_only", c_uint32), ("parallelism", c_uint32),
                ("progress", c_void_p), ("progress_user", c_void_p)]


class kvpack_shadow(Fixed):
    _fields_ = [("data", c_void_p), ("size", c_uint64), ("byte_strides", ctypes.POINTER(c_uint64)),
                ("byte_stride_count", c_uint64)]


class kvpack_pack_set_writer_options(Sized):
    _fields_ = [("struct_size", c_uint64), ("keys", c_void_p), ("epoch", c_uint64), ("append", c_void_p),
                ("append_user", c_void_p), ("path", c_char_p)]


class kvpack_pack_set_info(Sized):
    _fields_ = [("struct_size", c_uint64), ("tenant", kvpack_id), ("key_epoch", c_uint64),
                ("record_count", c_uint64), ("inventory_offset", c_uint64), ("file_bytes", c_uint64),
                ("head_manifest_id", kvpack_id), ("merkle_root", kvpack_id)]


class kvpack_pack_set_entry(Sized):
    _fields_ = [("struct_size", c_uint64), ("kind", c_uint32), ("reserved", c_uint32), ("offset", c_uint64),
                ("object_bytes", c_uint64), ("padded_bytes", c_uint64), ("key_epoch", c_uint64),
                ("identity", kvpack_id), ("digest", kvpack_id), ("relation", kvpack_id)]


class kvpack_pack_set_options(Sized):
    _fields_ = [("struct_size", c_uint64), ("keys", c_void_p), ("path", c_char_p), ("data", c_void_p),
                ("data_size", c_uint64), ("read_at", c_void_p), ("read_at_user", c_void_p),
                ("read_at_size", c_uint64)]


class kvpack_verify_options(Sized):
    _fields_ = [("struct_size", c_uint64), ("parallelism", c_uint32), ("reserved", c_uint32),
                ("progress", c_void_p), ("progress_user", c_void_p)]


class kvpack_pack_header(Sized):
    _fields_ = [("struct_size", c_uint64), ("stored_manifest_bytes", c_uint64), ("manifest_bytes", c_uint64),
                ("key_epoch", c_uint64), ("tenant", kvpack_id), ("manifest_id", kvpack_id),
                ("encrypted", c_uint32), ("reserved", c_uint32)]


class kvpack_pack_options(Sized):
    _fields_ = [("struct_size", c_uint64), ("keys", c_void_p), ("epoch", c_uint64), ("limits", c_void_p)]


class kvpack_chunk_info(Sized):
    _fields_ = [("struct_size", c_uint64), ("encrypted", c_uint32), ("codec", c_uint32),
                ("plaintext_bytes", c_uint32), ("frame_bytes", c_uint32), ("payload_bytes", c_uint32),
                ("object_bytes", c_uint32), ("key_epoch", c_uint64), ("tenant", kvpack_id),
                ("family_id", kvpack_id), ("content_id", kvpack_id), ("object_key", kvpack_id),
                ("header_digest", kvpack_id), ("sidecar", c_void_p), ("sidecar_size", c_uint64)]


class kvpack_store_fault(Sized):
    _fields_ = [("struct_size", c_uint64), ("id", kvpack_id), ("object", c_uint32), ("action", c_uint32),
                ("token_count", c_uint64), ("path", c_void_p), ("path_size", c_uint64), ("error", c_void_p)]


class kvpack_store_watermarks(Fixed):
    _fields_ = [(name, c_uint32) for name in (
        "stop", "begin", "emergency", "promotion", "quarantine", "reserved")]


class kvpack_store_options(Sized):
    _fields_ = [("struct_size", c_uint64), ("directory", c_char_p), ("keys", c_void_p),
                ("active_epoch", c_uint64), ("minimum_epoch", c_uint64), ("catalog_epoch", c_uint64),
                ("quota_bytes", c_uint64), ("staging_quota_bytes", c_uint64),
                ("endurance_bytes_per_five_minutes", ctypes.POINTER(c_uint64)),
                ("watermarks", ctypes.POINTER(kvpack_store_watermarks)), ("max_shadow_bytes", c_uint64),
                ("max_scratch_bytes", c_uint64), ("max_holds", c_uint64), ("max_parallelism", c_uint32),
                ("strict", c_uint32), ("on_fault", c_void_p), ("fault_user", c_void_p),
                ("log", c_void_p), ("log_user", c_void_p)]


class kvpack_store_info(Sized):
    _fields_ = [("struct_size", c_uint64)] + [(name, c_uint64) for name in (
        "quota_bytes", "staging_quota_bytes", "durable_bytes", "reserved_bytes", "shared_bytes",
        "quarantine_bytes", "quarantine_cap_bytes", "manifests", "chunks", "pending_manifests",
        "pending_chunks", "active_uploads", "holds", "key_epoch", "minimum_epoch", "catalog_epoch",
        "created_unix_ns")] + [("pressure", c_uint32), ("read_only", c_uint32)] + [
            (name, c_uint64) for name in (
                "saves_attempted", "saves_committed", "saves_replayed", "saves_refused", "save_bytes_written",
                "save_bytes_shared", "lookups_exact", "lookups_ancestor", "lookups_miss", "lookups_fault",
                "restores_attempted", "restores_committed", "restores_refused", "restore_bytes",
                "objects_quarantined", "manifests_evicted", "chunks_collected", "bytes_collected")]


class kvpack_store_upkeep(Sized):
    _fields_ = [("struct_size", c_uint64)] + [(name, c_uint64) for name in (
        "before_bytes", "after_bytes", "manifests_evicted", "chunks_collected", "bytes_freed")] + [
            ("emergency", c_uint32), ("blocked", c_uint32)]


class kvpack_store_save_options(Sized):
    _fields_ = [("struct_size", c_uint64), ("family", c_void_p), ("model", kvpack_model),
                ("tokens", c_void_p), ("token_count", c_uint64), ("auxiliary", c_void_p),
                ("auxiliary_count", c_uint64), ("planes", c_void_p), ("plane_count", c_uint64),
                ("atomic_groups", c_void_p), ("parent", ctypes.POINTER(kvpack_id)),
                ("idempotency_key", ctypes.POINTER(kvpack_id)), ("export_stride_tokens", c_uint64),
                ("span_rule", c_uint32), ("grain_tokens", c_uint32), ("window_grain_tokens", c_uint32),
                ("unencrypted", c_uint32), ("parallelism", c_uint32), ("reserved", c_uint32),
                ("max_restored_bytes", c_uint64), ("publication", c_uint64), ("time_to_live_ms", c_uint64),
                ("label", c_char_p), ("label_size", c_uint64)]


class kvpack_stored_cut(Fixed):
    _fields_ = [("manifest_id", kvpack_id), ("cut", kvpack_input_cut), ("restored_bytes", c_uint64),
                ("depth", c_uint32), ("reserved", c_uint32)]


class kvpack_store_saved_info(Sized):
    _fields_ = [("struct_size", c_uint64), ("replayed", c_uint32), ("reserved", c_uint32)] + [
        (name, c_uint64) for name in (
            "publication", "source_bytes", "written_chunks", "written_object_bytes", "shared_chunks",
            "shared_object_bytes", "manifest_bytes")]


class kvpack_store_query(Sized):
    _fields_ = [("struct_size", c_uint64), ("model", kvpack_model), ("family", c_void_p),
                ("tokens", c_void_p), ("token_count", c_uint64), ("auxiliary", c_void_p),
                ("auxiliary_count", c_uint64), ("minimum_epoch", c_uint64)]


class kvpack_store_hit(Sized):
    _fields_ = [("struct_size", c_uint64), ("found", c_uint32), ("reserved", c_uint32),
                ("token_count", c_uint64), ("suffix_tokens", c_uint64), ("manifest_id", kvpack_id)]


class kvpack_restore_sink(Sized):
    _fields_ = [("struct_size", c_uint64), ("user", c_void_p), ("begin", c_void_p), ("lend", c_void_p),
                ("write", c_void_p), ("commit", c_void_p), ("abort", c_void_p), ("reset", c_void_p)]


class kvpack_store_restore_options(Sized):
    _fields_ = [("struct_size", c_uint64), ("parallelism", c_uint32), ("reserved", c_uint32),
                ("cancel", c_void_p), ("limits", c_void_p), ("progress", c_void_p),
                ("progress_user", c_void_p)]


class kvpack_store_restored(Sized):
    _fields_ = [("struct_size", c_uint64), ("restored", c_uint32), ("reserved", c_uint32),
                ("manifest_id", kvpack_id), ("cut", kvpack_input_cut), ("restored_bytes", c_uint64),
                ("suffix_tokens", c_uint64), ("fault_count", c_uint64)]


class kvpack_engine_inventory(Sized):
    _fields_ = [("struct_size", c_uint64), ("tokens", c_void_p), ("token_count", c_uint64),
                ("auxiliary", c_void_p), ("auxiliary_count", c_uint64), ("planes", c_void_p),
                ("plane_count", c_uint64), ("atomic_groups", c_void_p)]


class kvpack_engine(Sized):
    _fields_ = [("struct_size", c_uint64), ("user", c_void_p), ("model", kvpack_model),
                ("family", c_void_p), ("sink", c_void_p), ("synchronize", c_void_p),
                ("exclude_mutation", c_void_p), ("allow_mutation", c_void_p), ("inventory", c_void_p),
                ("read_plane", c_void_p), ("check", c_void_p)]


class kvpack_cache_options(Sized):
    _fields_ = [("struct_size", c_uint64), ("directory", c_char_p), ("model", kvpack_model),
                ("engine_cache_abi", kvpack_id), ("topology", kvpack_id), ("shard_map", kvpack_id),
                ("states", c_void_p), ("state_count", c_uint64), ("row_bytes", c_uint64),
                ("with_logits", c_uint32), ("cannot_step_back", c_uint32), ("create", c_uint32),
                ("read_only", c_uint32), ("keys", c_void_p), ("key_path", c_char_p), ("tenant", c_char_p),
                ("quota_bytes", c_uint64), ("max_memory_bytes", c_uint64), ("max_parallelism", c_uint32),
                ("unencrypted", c_uint32), ("strict", c_uint32), ("reserved", c_uint32),
                ("allocate", c_void_p), ("release", c_void_p), ("memory_user", c_void_p), ("log", c_void_p),
                ("log_user", c_void_p)]


class kvpack_cache_save_options(Sized):
    _fields_ = [("struct_size", c_uint64), ("tokens", c_void_p), ("token_count", c_uint64),
                ("auxiliary", c_void_p), ("auxiliary_count", c_uint64), ("blob", c_void_p),
                ("blob_size", c_uint64), ("planes", c_void_p), ("plane_count", c_uint64),
                ("logits", c_void_p), ("logits_size", c_uint64), ("checkpoint_stride_tokens", c_uint64),
                ("time_to_live_ms", c_uint64), ("label", c_char_p), ("label_size", c_uint64)]


class kvpack_cache_saved(Sized):
    _fields_ = [("struct_size", c_uint64), ("replayed", c_uint32), ("cut_count", c_uint32),
                ("token_count", c_uint64), ("manifest_id", kvpack_id), ("restored_bytes", c_uint64),
                ("written_object_bytes", c_uint64), ("shared_object_bytes", c_uint64)]


class kvpack_cache_restore_options(Sized):
    _fields_ = [("struct_size", c_uint64), ("tokens", c_void_p), ("token_count", c_uint64),
                ("auxiliary", c_void_p), ("auxiliary_count", c_uint64), ("lend", c_void_p),
                ("lend_user", c_void_p), ("cancel", c_void_p), ("progress", c_void_p),
                ("progress_user", c_void_p)]


class kvpack_cache_restored(Sized):
    _fields_ = [("struct_size", c_uint64), ("restored", c_uint32), ("has_logits", c_uint32),
                ("token_count", c_uint64), ("reusable_tokens", c_uint64), ("suffix_tokens", c_uint64),
                ("restored_bytes", c_uint64), ("fault_count", c_uint64), ("manifest_id", kvpack_id)]


# Callbacks. Pointers come as integers, so that nothing is converted before it has been looked at.
append_fn = ctypes.CFUNCTYPE(c_int32, c_void_p, c_void_p, c_uint64)
progress_fn = ctypes.CFUNCTYPE(c_int32, c_void_p, c_uint64, c_uint64)
fault_fn = ctypes.CFUNCTYPE(None, c_void_p, c_void_p)
chunk_sink_fn = ctypes.CFUNCTYPE(c_int32, c_void_p, c_void_p)
sink_begin_fn = ctypes.CFUNCTYPE(c_int32, c_void_p, c_void_p)
sink_lend_fn = ctypes.CFUNCTYPE(c_int32, c_void_p, c_uint64, c_void_p, c_uint64)
sink_write_fn = ctypes.CFUNCTYPE(c_int32, c_void_p, c_uint64, c_uint64, c_void_p, c_uint64)
user_status_fn = ctypes.CFUNCTYPE(c_int32, c_void_p)
user_void_fn = ctypes.CFUNCTYPE(None, c_void_p)
inventory_fn = ctypes.CFUNCTYPE(c_int32, c_void_p, c_void_p)
log_fn = ctypes.CFUNCTYPE(None, c_void_p, c_uint32, c_void_p)
cache_lend_fn = ctypes.CFUNCTYPE(c_int32, c_void_p, c_uint64, c_void_p, c_uint64)
read_plane_fn = ctypes.CFUNCTYPE(c_int32, c_void_p, c_uint64, c_void_p, c_uint64, c_void_p)


def structs():
    """Every struct of the header that is described here."""
    return [value for name, value in sorted(globals().items())
            if name.startswith("kvpack_") and isinstance(value, type)]


# A library reads struct_size before anything else; a layout without it in front would be read as something else.
for _struct in structs():
    if issubclass(_struct, Sized) and (_struct.struct_size.offset, _struct.struct_size.size) != (0, 8):
        raise ImportError("kvpack: %s does not begin with struct_size" % _struct.__name__)
