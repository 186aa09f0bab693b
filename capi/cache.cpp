// Caches in two calls: a directory with its key and its store, states as a blob or as planes.
#include "kvpack/crypto/sha256.h"
#include "kvpack/muse/identity.h"
#include "kvpack/muse/model_identity.h"
#include "kvpack/store/cache_directory.h"
#include "kvpack/store/state_cache.h"
#include "store_handle.h"

namespace kvpack::capi {

namespace {

constexpr std::uint64_t kCacheOptionsV0 = KVPACK_SIZE_UP_TO(kvpack_cache_options, log_user);
constexpr std::uint64_t kCacheSaveOptionsV0 = KVPACK_SIZE_UP_TO(kvpack_cache_save_options, label_size);
constexpr std::uint64_t kCacheSavedV0 = KVPACK_SIZE_UP_TO(kvpack_cache_saved, shared_object_bytes);
constexpr std::uint64_t kCacheRestoreOptionsV0 =
    KVPACK_SIZE_UP_TO(kvpack_cache_restore_options, progress_user);
constexpr std::uint64_t kCacheRestoredV0 = KVPACK_SIZE_UP_TO(kvpack_cache_restored, manifest_id);

static_assert(KVPACK_CACHE_LOGITS == kLogitsPart);

/// An open cache. Its store is shared with handles that were made of it.
struct OpenCache {
  std::shared_ptr<OpenStore> open;
  StateCache cache;
  std::shared_ptr<PayloadMemory> memory;  ///< Null: the heap.
  Log log;
  bool encrypt;
};

// ---- opening ----

Result<Keys> keys_of_root(SecretKey root, std::string_view tenant_name) {
  KVPACK_TRY_ASSIGN(const Id32 tenant, derive_tenant_namespace(root, byte_view(tenant_name)));
  KVPACK_TRY_ASSIGN(KeySchedule stable, KeySchedule::derive(root, root, tenant, 1));
  KVPACK_TRY_ASSIGN(KeyRing ring, KeyRing::create({.stable_root = std::move(root),
                                                   .tenant = tenant,
                                                   .window = std::optional<EpochWindow>(EpochWindow{})}));
  return Keys(std::make_shared<const KeyMaterial>(
      KeyMaterial{std::move(ring), std::move(stable), EpochWindow{}, from_id(tenant)}));
}

/// The caller's keys, or those of the key file.
Result<Keys> open_keys(const kvpack_cache_options& options, bool create) {
  if (options.keys != nullptr) {
    KVPACK_TRY(check_keys(options.keys));
    if (options.key_path != nullptr) return bad_argument("key_path", "must be NULL where keys are given");
    if (options.tenant != nullptr) return bad_argument("tenant", "must be NULL where keys are given");
    return options.keys->keys;
  }
  const std::string path =
      options.key_path != nullptr ? std::string(options.key_path) : cache_key_path(options.directory);
  SystemFileSystem fs;
  SystemRandom random;
  KVPACK_TRY_ASSIGN(SecretKey root, open_cache_key(fs, random, options.directory, path, create));
  return keys_of_root(std::move(root), options.tenant == nullptr ? kDefaultCacheTenant : options.tenant);
}

Result<std::vector<StateSpec>> read_cache_states(const kvpack_cache_options& options) {
  std::vector<StateSpec> states;
  if (options.state_count == 0) return states;
  KVPACK_TRY(check_pointer(options.states, "states"));
  if (options.state_count > kMaxStates)
    return fail(ErrorCode::kBounds, "family state count is outside bounds");
  const auto* next = reinterpret_cast<const std::uint8_t*>(options.states);
  const std::uint64_t distance = options.states->struct_size;
  for (std::uint64_t i = 0; i < options.state_count; ++i) {
    const auto* state = reinterpret_cast<const kvpack_state_options*>(next);
    // Compared before anything past it is read: the elements stand as far apart as the first one says.
    KVPACK_TRY_ASSIGN(const std::uint64_t size, read_struct_size(state, kStateOptionsV0, "states"));
    if (size != distance)
      return misuse(KVPACK_ERR_STRUCT_SIZE, "struct states has several sizes").with("argument", "states");
    KVPACK_TRY_ASSIGN(const auto known, read_options(state, kStateOptionsV0, "states"));
    KVPACK_TRY_ASSIGN(StateSpec spec, read_state_options(known));
    states.push_back(std::move(spec));
    next += distance;
  }
  return states;
}

Result<StateCacheConfig> read_cache_config(const kvpack_cache_options& options) {
  StateCacheConfig config;
  config.semantic_model = to_model(options.model);
  config.identity = {.engine_cache_abi = to_id(options.engine_cache_abi),
                     .topology = to_id(options.topology),
                     .shard_map = to_id(options.shard_map)};
  KVPACK_TRY_ASSIGN(config.states, read_cache_states(options));
  if (options.row_bytes != 0) config.row_bytes = options.row_bytes;
  KVPACK_TRY_ASSIGN(config.logits, read_flag(options.with_logits, "with_logits"));
  KVPACK_TRY_ASSIGN(const bool stays, read_flag(options.cannot_step_back, "cannot_step_back"));
  config.steps_back = !stays;
  return config;
}

/// All that needs no file, so that a mistake makes none.
struct CacheOpening {
  StateCacheConfig config;
  StoreOptions store;
  std::shared_ptr<PayloadMemory> memory{};
  bool create = false;
  bool read_only = false;
  bool encrypt = true;
};

Result<CacheOpening> read_opening(const kvpack_cache_options& options) {
  KVPACK_TRY(check_pointer(options.directory, "directory"));
  KVPACK_TRY(check_reserved(options.reserved));
  CacheOpening opening;
  KVPACK_TRY_ASSIGN(opening.config, read_cache_config(options));
  KVPACK_TRY(StateCache::check(opening.config));
  KVPACK_TRY_ASSIGN(opening.create, read_flag(options.create, "create"));
  KVPACK_TRY_ASSIGN(opening.read_only, read_flag(options.read_only, "read_only"));
  if (opening.create && opening.read_only) return bad_argument("create", "must be 0 where read_only is set");
  KVPACK_TRY_ASSIGN(const bool unencrypted, read_flag(options.unencrypted, "unencrypted"));
  opening.encrypt = !unencrypted;
  StoreOptions& store = opening.store;
  store.root = cache_store_root(options.directory);
  if (options.quota_bytes != 0) store.quota_bytes = options.quota_bytes;
  store.memory.shadow_bytes = options.max_memory_bytes;
  if (options.max_parallelism > 256) return bad_argument("max_parallelism", "must be at most 256");
  if (options.max_parallelism != 0) store.memory.parallelism = options.max_parallelism;
  KVPACK_TRY_ASSIGN(store.strict, read_flag(options.strict, "strict"));
  KVPACK_TRY_ASSIGN(opening.memory, read_memory(options.allocate, options.release, options.memory_user));
  const Log log(options.log, options.log_user);
  if (log.listens()) store.on_fault = [log](const StoreFault& fault) { log.tell_fault(fault); };
  return opening;
}

Result<std::shared_ptr<const OpenCache>> open_cache(const kvpack_cache_options& options) {
  KVPACK_TRY_ASSIGN(CacheOpening opening, read_opening(options));
  auto open = std::make_shared<OpenStore>();
  KVPACK_TRY_ASSIGN(open->keys, open_keys(options, opening.create));
  opening.store.keys = std::shared_ptr<const KeyRing>(open->keys, &open->keys->ring);
  opening.store.epochs = open->keys->epochs;
  if (opening.read_only) {
    KVPACK_TRY_ASSIGN(open->store, Store::open_read_only(std::move(opening.store)));
  } else {
    KVPACK_TRY_ASSIGN(open->store, open_cache_store(opening.store, opening.create));
  }
  KVPACK_TRY_ASSIGN(StateCache cache, StateCache::create(*open->store, std::move(opening.config)));
  open->log = Log(options.log, options.log_user);
  const Log log = open->log;
  return std::make_shared<const OpenCache>(
      OpenCache{std::move(open), std::move(cache), std::move(opening.memory), log, opening.encrypt});
}

/// Members of what belongs to the store, which is there already.
Status check_no_store_options(const kvpack_cache_options& options) {
  const std::pair<std::string_view, bool> given[] = {{"directory", options.directory != nullptr},
                                                     {"create", options.create != 0},
                                                     {"read_only", options.read_only != 0},
                                                     {"keys", options.keys != nullptr},
                                                     {"key_path", options.key_path != nullptr},
                                                     {"tenant", options.tenant != nullptr},
                                                     {"quota_bytes", options.quota_bytes != 0},
                                                     {"max_memory_bytes", options.max_memory_bytes != 0},
                                                     {"max_parallelism", options.max_parallelism != 0},
                                                     {"strict", options.strict != 0}};
  for (const auto& [name, is_given] : given)
    if (is_given) return bad_argument(name, "belongs to the store, which is open already");
  return success();
}

Result<std::shared_ptr<const OpenCache>> open_cache_beside(const OpenCache& beside,
                                                           const kvpack_cache_options& options) {
  KVPACK_TRY(check_no_store_options(options));
  KVPACK_TRY(check_reserved(options.reserved));
  KVPACK_TRY_ASSIGN(StateCacheConfig config, read_cache_config(options));
  KVPACK_TRY_ASSIGN(const bool unencrypted, read_flag(options.unencrypted, "unencrypted"));
  KVPACK_TRY_ASSIGN(std::shared_ptr<PayloadMemory> memory,
                    read_memory(options.allocate, options.release, options.memory_user));
  KVPACK_TRY_ASSIGN(StateCache cache, StateCache::create(*beside.open->store, std::move(config)));
  return std::make_shared<const OpenCache>(OpenCache{beside.open, std::move(cache), std::move(memory),
                                                     Log(options.log, options.log_user), !unencrypted});
}

// ---- saving ----

Result<std::vector<CachePlane>> read_cache_planes(const kvpack_cache_save_options& options) {
  std::vector<CachePlane> planes;
  if (options.plane_count == 0) return planes;
  KVPACK_TRY(check_pointer(options.planes, "planes"));
  if (options.plane_count > kMaxStates) return bad_argument("plane_count", "is larger than any cache's");
  const auto* next = reinterpret_cast<const std::uint8_t*>(options.planes);
  const std::uint64_t distance = options.planes->struct_size;
  for (std::uint64_t i = 0; i < options.plane_count; ++i) {
    const auto* plane = reinterpret_cast<const kvpack_plane*>(next);
    KVPACK_TRY_ASSIGN(const std::uint64_t size, read_struct_size(plane, kPlaneV0, "planes"));
    if (size != distance)
      return misuse(KVPACK_ERR_STRUCT_SIZE, "struct planes has several sizes").with("argument", "planes");
    KVPACK_TRY_ASSIGN(const auto known, read_options(plane, kPlaneV0, "planes"));
    KVPACK_TRY(check_reserved(known.reserved));
    if (known.byte_strides != nullptr || known.byte_stride_count != 0)
      return bad_argument("byte_strides", "must be NULL: planes of a cache are row-major");
    if (known.sidecar_sinks != 0) return bad_argument("sidecar_sinks", "must be 0");
    if (known.token_count != 0 && (known.token_start > options.token_count ||
                                   known.token_count != options.token_count - known.token_start))
      return bad_argument("token_count", "does not reach the end of the cut");
    KVPACK_TRY_ASSIGN(const ByteSpan bytes, read_bytes(known.data, known.data_size, "planes.data"));
    planes.push_back({.bytes = bytes, .token_start = known.token_start});
    next += distance;
  }
  return planes;
}

/// What is saved, and the memory that it points to.
struct GivenSave {
  CacheSave save;
  std::vector<AuxiliaryInputId> auxiliary;
  std::vector<CachePlane> planes;
};

Result<GivenSave> read_cache_save(const kvpack_cache_save_options& options) {
  GivenSave given;
  KVPACK_TRY_ASSIGN(given.save.tokens, read_array(options.tokens, options.token_count, "tokens"));
  KVPACK_TRY_ASSIGN(given.auxiliary, read_auxiliary(options.auxiliary, options.auxiliary_count));
  KVPACK_TRY_ASSIGN(given.save.blob, read_bytes(options.blob, options.blob_size, "blob"));
  KVPACK_TRY_ASSIGN(given.planes, read_cache_planes(options));
  KVPACK_TRY_ASSIGN(given.save.logits, read_bytes(options.logits, options.logits_size, "logits"));
  given.save.checkpoint_stride_tokens = options.checkpoint_stride_tokens;
  if (options.time_to_live_ms != 0) given.save.time_to_live_ms = options.time_to_live_ms;
  KVPACK_TRY_ASSIGN(const std::string_view label, read_text(options.label, options.label_size, "label"));
  given.save.label = label;
  return given;
}

kvpack_cache_saved describe_save(const CacheSaved& saved) noexcept {
  kvpack_cache_saved out{};
  out.replayed = saved.replayed ? 1 : 0;
  out.cut_count = static_cast<std::uint32_t>(saved.cuts.size());
  out.token_count = saved.head().cut.token_count;
  out.manifest_id = from_id(saved.head().manifest_id);
  out.restored_bytes = saved.head().restored_bytes;
  out.written_object_bytes = saved.written.object_bytes;
  out.shared_object_bytes = saved.shared.object_bytes;
  return out;
}

void log_save(const Log& log, const CacheSaved& saved) noexcept {
  log.tell(KVPACK_LOG_INFO, [&] {
    std::string text = saved.replayed ? "already there: " : "saved: ";
    text += std::to_string(saved.head().cut.token_count) + " tokens, " +
            std::to_string(saved.head().restored_bytes) + " bytes";
    if (!saved.replayed)
      text += "; " + std::to_string(saved.written.object_bytes) + " bytes written, " +
              std::to_string(saved.shared.object_bytes) + " shared";
    return text;
  });
}

// ---- restoring ----

/// What is wanted, and the memory that it points to.
struct GivenRestore {
  CacheRestoreRequest request;
  std::vector<AuxiliaryInputId> auxiliary;
};

Result<GivenRestore> read_cache_restore(const kvpack_cache_restore_options* options) {
  KVPACK_TRY_ASSIGN(const auto known, read_options(options, kCacheRestoreOptionsV0, "options"));
  GivenRestore given;
  KVPACK_TRY_ASSIGN(given.request.tokens, read_array(known.tokens, known.token_count, "tokens"));
  KVPACK_TRY_ASSIGN(given.auxiliary, read_auxiliary(known.auxiliary, known.auxiliary_count));
  KVPACK_TRY(check_optional_handle(known.cancel, "cancel"));
  if (known.cancel != nullptr) given.request.how.cancel = known.cancel->source.get_token();
  if (known.progress != nullptr)
    given.request.how.progress = [tell = known.progress, user = known.progress_user](
                                     std::uint64_t done_bytes, std::uint64_t total_bytes) {
      return run_callback("progress", [&] { return tell(user, done_bytes, total_bytes); });
    };
  if (known.lend != nullptr)
    given.request.lend = [lend = known.lend, user = known.lend_user](
                             std::size_t part, std::uint64_t bytes) -> Result<MutableByteSpan> {
      void* data = nullptr;
      KVPACK_TRY(run_callback("lend", [&] { return lend(user, part, &data, bytes); }));
      if (data == nullptr) return MutableByteSpan{};
      return lend_bytes(data, bytes, "data");
    };
  return given;
}

kvpack_cache_restored describe_cache_restore(const CacheRestore& done) noexcept {
  kvpack_cache_restored out{};
  out.restored = done.state ? 1 : 0;
  out.has_logits = done.has_logits ? 1 : 0;
  out.token_count = done.token_count;
  out.reusable_tokens = done.reusable_tokens;
  out.suffix_tokens = done.suffix_tokens;
  out.restored_bytes = done.restored_bytes;
  out.fault_count = done.faults.size();
  out.manifest_id = from_id(done.manifest_id);
  return out;
}

void log_restore(const Log& log, const CacheRestore& done, std::size_t wanted) noexcept {
  log.tell(KVPACK_LOG_INFO, [&] {
    const std::string of = " of " + std::to_string(wanted) + " tokens";
    if (!done.state) return "miss: nothing" + of;
    std::string text = "restored: " + std::to_string(done.token_count) + of + ", ";
    text += std::to_string(done.restored_bytes) + " bytes";
    return text + (done.has_logits ? ", with logits" : ", without logits");
  });
}

Error unresolved_factor() {
  return fail(ErrorCode::kExpectation, "identity factor must be a resolved value");
}

}  // namespace

}  // namespace kvpack::capi

using namespace kvpack;        // NOLINT(google-build-using-namespace)
using namespace kvpack::capi;  // NOLINT(google-build-using-namespace)

struct kvpack_cache final : Handle<handle_tag("KVcache")> {
  explicit kvpack_cache(std::shared_ptr<const OpenCache> given) noexcept : shared(std::move(given)) {}
  std::shared_ptr<const OpenCache> shared;
};

struct kvpack_cache_state final : Handle<handle_tag("KVcachst")> {
  RestoredState state{};
};

kvpack_status kvpack_cache_open(kvpack_cache** out, const kvpack_cache_options* options,
                                kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_pointer(out, "out"));
    KVPACK_TRY_ASSIGN(const auto known, read_options(options, kCacheOptionsV0, "options"));
    auto opened = open_cache(known);
    if (!opened.has_value()) {
      Log(known.log, known.log_user).tell_failure("opening", opened.error());
      return std::move(opened.error());
    }
    *out = new kvpack_cache(*std::move(opened));
    return success();
  });
}

kvpack_status kvpack_cache_open_beside(kvpack_cache** out, const kvpack_cache* beside,
                                       const kvpack_cache_options* options, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_pointer(out, "out"));
    KVPACK_TRY(check_handle(beside, "beside"));
    KVPACK_TRY_ASSIGN(const auto known, read_options(options, kCacheOptionsV0, "options"));
    auto opened = open_cache_beside(*beside->shared, known);
    if (!opened.has_value()) {
      Log(known.log, known.log_user).tell_failure("opening", opened.error());
      return std::move(opened.error());
    }
    *out = new kvpack_cache(*std::move(opened));
    return success();
  });
}

kvpack_status kvpack_cache_save(kvpack_cache* cache, kvpack_cache_saved* out,
                                const kvpack_cache_save_options* options, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(cache, "cache"));
    KVPACK_TRY_ASSIGN(const auto output,
                      OutputStruct<kvpack_cache_saved>::check_optional(out, kCacheSavedV0, "out"));
    KVPACK_TRY_ASSIGN(const auto known, read_options(options, kCacheSaveOptionsV0, "options"));
    KVPACK_TRY_ASSIGN(GivenSave given, read_cache_save(known));
    const OpenCache& open = *cache->shared;
    given.save.auxiliary = given.auxiliary;
    given.save.planes = given.planes;
    given.save.encrypt = open.encrypt;
    const auto saved = open.cache.save(given.save);
    if (!saved.has_value()) {
      open.log.tell_failure("save", saved.error());
      return Error(saved.error());
    }
    output.fill(describe_save(*saved));
    log_save(open.log, *saved);
    return success();
  });
}

kvpack_status kvpack_cache_restore(kvpack_cache* cache, kvpack_cache_state** state,
                                   kvpack_cache_restored* out, const kvpack_cache_restore_options* options,
                                   kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(cache, "cache"));
    KVPACK_TRY(check_pointer(state, "state"));
    KVPACK_TRY_ASSIGN(const auto output,
                      OutputStruct<kvpack_cache_restored>::check_optional(out, kCacheRestoredV0, "out"));
    KVPACK_TRY_ASSIGN(GivenRestore given, read_cache_restore(options));
    const OpenCache& open = *cache->shared;
    given.request.auxiliary = given.auxiliary;
    given.request.memory = open.memory;
    auto handle = std::make_unique<kvpack_cache_state>();
    auto done = open.cache.restore(given.request);
    if (!done.has_value()) {
      open.log.tell_failure("restore", done.error());
      return std::move(done.error());
    }
    log_restore(open.log, *done, given.request.tokens.size());
    output.fill(describe_cache_restore(*done));
    if (done->state) handle->state = *std::move(done->state);
    *state = done->state ? handle.release() : nullptr;
    return success();
  });
}

const void* kvpack_cache_state_data(const kvpack_cache_state* state, uint64_t* size, uint64_t part) {
  const ByteSpan bytes = is_live(state) ? state->state.part(static_cast<std::size_t>(part)) : ByteSpan{};
  if (size != nullptr) *size = bytes.size();
  return bytes.empty() ? nullptr : bytes.data();
}

uint64_t kvpack_cache_state_token_start(const kvpack_cache_state* state, uint64_t part) {
  return is_live(state) ? state->state.token_start(static_cast<std::size_t>(part)) : 0;
}

void kvpack_cache_state_free(kvpack_cache_state* state) {
  free_handle(state);
}

kvpack_status kvpack_cache_store(const kvpack_cache* cache, kvpack_store** out, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(cache, "cache"));
    KVPACK_TRY(check_pointer(out, "out"));
    *out = new kvpack_store(cache->shared->open);
    return success();
  });
}

void kvpack_cache_free(kvpack_cache* cache) {
  free_handle(cache);
}

kvpack_status kvpack_factor_digest(kvpack_id* out, const void* value, uint64_t value_size,
                                   kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_pointer(out, "out"));
    KVPACK_TRY_ASSIGN(const ByteSpan bytes, read_bytes(value, value_size, "value"));
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (!muse::is_resolved(text)) return unresolved_factor();
    *out = from_id(Id32{sha256(bytes)});
    return success();
  });
}

kvpack_status kvpack_factor_digest_file(kvpack_id* out, const char* path, kvpack_progress_fn progress,
                                        void* progress_user, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_pointer(out, "out"));
    KVPACK_TRY(check_pointer(path, "path"));
    SystemFileSystem fs;
    KVPACK_TRY_ASSIGN(auto file, fs.open_file(path, Links::kFollow));
    KVPACK_TRY_ASSIGN(FileSource source, FileSource::open(std::move(file)));
    if (source.size_bytes() == 0) return unresolved_factor();
    Status told = success();
    const auto digest = muse::source_sha256(source, [&](std::uint64_t done_bytes) {
      if (progress != nullptr)
        told = run_callback("progress",
                            [&] { return progress(progress_user, done_bytes, source.size_bytes()); });
      return told.has_value();
    });
    KVPACK_TRY(std::move(told));
    if (!digest.has_value()) return Error(digest.error());
    *out = from_id(*digest);
    return success();
  });
}
