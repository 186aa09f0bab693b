// Stores: opening, faults, status, upkeep.
#include <algorithm>

#include "kvpack/store/status.h"
#include "kvpack/store/upkeep.h"
#include "store_handle.h"

namespace kvpack::capi {

namespace {

constexpr std::uint64_t kStoreOptionsV0 = KVPACK_SIZE_UP_TO(kvpack_store_options, log_user);
constexpr std::uint64_t kStoreInfoV0 = KVPACK_SIZE_UP_TO(kvpack_store_info, bytes_collected);
constexpr std::uint64_t kStoreUpkeepV0 = KVPACK_SIZE_UP_TO(kvpack_store_upkeep, blocked);

static_assert(KVPACK_PRESSURE_PROMOTION_STOPPED == static_cast<int>(StorePressure::kPromotionStopped));

Result<EpochWindow> read_epochs(const kvpack_store_options& options, const EpochWindow& ring) {
  EpochWindow window;
  window.active = options.active_epoch == 0 ? ring.active : options.active_epoch;
  const std::uint64_t oldest =
      window.active >= kMaxReadableEpochs ? window.active - (kMaxReadableEpochs - 1) : 1;
  window.minimum_readable =
      options.minimum_epoch == 0 ? std::max(oldest, ring.minimum_readable) : options.minimum_epoch;
  return window;
}

Result<StoreWatermarks> read_watermarks(const kvpack_store_watermarks* given) {
  if (given == nullptr) return StoreWatermarks{};
  KVPACK_TRY(check_reserved(given->reserved));
  return StoreWatermarks{.stop = given->stop,
                         .begin = given->begin,
                         .emergency = given->emergency,
                         .promotion = given->promotion,
                         .quarantine = given->quarantine};
}

Result<StoreMemoryLimits> read_memory_limits(const kvpack_store_options& options) {
  StoreMemoryLimits limits;
  limits.shadow_bytes = options.max_shadow_bytes;
  if (options.max_scratch_bytes != 0) limits.scratch_bytes = options.max_scratch_bytes;
  if (options.max_holds != 0) limits.holds = options.max_holds;
  if (options.max_parallelism > 256) return bad_argument("max_parallelism", "must be at most 256");
  if (options.max_parallelism != 0) limits.parallelism = options.max_parallelism;
  return limits;
}

std::optional<std::uint64_t> unless_zero(std::uint64_t value) noexcept {
  return value == 0 ? std::nullopt : std::optional<std::uint64_t>(value);
}

void tell_fault(kvpack_fault_fn callback, void* user, const StoreFault& fault) {
  kvpack_error error(static_cast<kvpack_status>(fault.error.code));
  error.message = fault.error.message;
  for (const Context& fact : fault.error.context) error.context.emplace_back(fact.key, fact.value);
  kvpack_store_fault given{};
  given.struct_size = sizeof(given);
  given.id = from_id(fault.id);
  given.object = fault.object == StoreFault::Object::kChunk ? KVPACK_RECORD_CHUNK : KVPACK_RECORD_PACK;
  given.action =
      fault.action == StoreFault::Action::kSkipped ? KVPACK_FAULT_SKIPPED : KVPACK_FAULT_QUARANTINED;
  given.token_count = fault.token_count;
  given.path = fault.path.c_str();
  given.path_size = fault.path.size();
  given.error = &error;
  // Nothing depends on who listens, so nobody is told when it throws.
  (void)run_callback("on_fault", [&] {
    callback(user, &given);
    return KVPACK_OK;
  });
}

Result<StoreOptions> read_store_options(const kvpack_store_options& known) {
  StoreOptions options;
  KVPACK_TRY(check_pointer(known.directory, "directory"));
  KVPACK_TRY(check_keys(known.keys));
  const Keys& keys = known.keys->keys;
  options.root = known.directory;
  options.keys = std::shared_ptr<const KeyRing>(keys, &keys->ring);
  KVPACK_TRY_ASSIGN(options.epochs, read_epochs(known, keys->epochs));
  if (known.catalog_epoch != 0) options.catalog_epoch = known.catalog_epoch;
  options.quota_bytes = unless_zero(known.quota_bytes);
  options.staging_quota_bytes = unless_zero(known.staging_quota_bytes);
  if (known.endurance_bytes_per_five_minutes != nullptr)
    options.endurance_bytes_per_five_minutes = *known.endurance_bytes_per_five_minutes;
  KVPACK_TRY_ASSIGN(options.watermarks, read_watermarks(known.watermarks));
  KVPACK_TRY_ASSIGN(options.memory, read_memory_limits(known));
  KVPACK_TRY_ASSIGN(options.strict, read_flag(known.strict, "strict"));
  const Log log(known.log, known.log_user);
  if (known.on_fault != nullptr || log.listens())
    options.on_fault = [log, callback = known.on_fault, user = known.fault_user](const StoreFault& fault) {
      log.tell_fault(fault);
      if (callback != nullptr) tell_fault(callback, user, fault);
    };
  return options;
}

/// @param open_with  StoreOptions -> Result<std::unique_ptr<Store>>
template <class Open>
Status open_store(kvpack_store** out, const kvpack_store_options* options, Open&& open_with) {
  KVPACK_TRY(check_pointer(out, "out"));
  KVPACK_TRY_ASSIGN(const auto known, read_options(options, kStoreOptionsV0, "options"));
  KVPACK_TRY_ASSIGN(StoreOptions given, read_store_options(known));
  auto open = std::make_shared<OpenStore>();
  open->keys = known.keys->keys;
  open->log = Log(known.log, known.log_user);
  KVPACK_TRY_ASSIGN(open->store, open->log.watch("opening", open_with(std::move(given))));
  *out = new kvpack_store(std::move(open));
  return success();
}

kvpack_store_info describe_store(const Store& store, const StoreStatus& status) {
  kvpack_store_info info{};
  info.quota_bytes = status.quota_bytes;
  info.staging_quota_bytes = status.staging_quota_bytes;
  info.durable_bytes = status.durable_bytes;
  info.reserved_bytes = status.reserved_bytes;
  info.shared_bytes = status.shared_bytes;
  info.quarantine_bytes = status.quarantine_bytes;
  info.quarantine_cap_bytes = status.quarantine_cap_bytes;
  info.manifests = status.manifests;
  info.chunks = status.chunks;
  info.pending_manifests = status.pending_manifests;
  info.pending_chunks = status.pending_chunks;
  info.active_uploads = status.active_uploads;
  info.holds = status.holds;
  info.key_epoch = status.key_epoch;
  info.minimum_epoch = status.minimum_epoch;
  info.catalog_epoch = status.catalog_epoch;
  info.created_unix_ns = status.created_ns;
  info.pressure = static_cast<std::uint32_t>(status.pressure);
  info.read_only = store.is_read_only() ? 1 : 0;
  static constexpr std::pair<std::string_view, std::uint64_t kvpack_store_info::*> kCounters[] = {
      {"saves_attempted", &kvpack_store_info::saves_attempted},
      {"saves_committed", &kvpack_store_info::saves_committed},
      {"saves_replayed", &kvpack_store_info::saves_replayed},
      {"saves_refused", &kvpack_store_info::saves_refused},
      {"save_bytes_written", &kvpack_store_info::save_bytes_written},
      {"save_bytes_shared", &kvpack_store_info::save_bytes_shared},
      {"lookups_exact", &kvpack_store_info::lookups_exact},
      {"lookups_ancestor", &kvpack_store_info::lookups_ancestor},
      {"lookups_miss", &kvpack_store_info::lookups_miss},
      {"lookups_fault", &kvpack_store_info::lookups_fault},
      {"restores_attempted", &kvpack_store_info::restores_attempted},
      {"restores_committed", &kvpack_store_info::restores_committed},
      {"restores_refused", &kvpack_store_info::restores_refused},
      {"restore_bytes", &kvpack_store_info::restore_bytes},
      {"objects_quarantined", &kvpack_store_info::objects_quarantined},
      {"manifests_evicted", &kvpack_store_info::manifests_evicted},
      {"chunks_collected", &kvpack_store_info::chunks_collected},
      {"bytes_collected", &kvpack_store_info::bytes_collected}};
  for (const StoreCounter& counter : status.counters)
    for (const auto& [name, member] : kCounters)
      if (counter.name == name) info.*member = counter.recorded + counter.pending;
  return info;
}

/// @param work  (Store&) -> Result<MaintenanceReport>
template <class Work>
Status run_upkeep(kvpack_store* store, kvpack_store_upkeep* out, Work&& work) {
  KVPACK_TRY(check_handle(store, "store"));
  KVPACK_TRY_ASSIGN(const auto output,
                    OutputStruct<kvpack_store_upkeep>::check_optional(out, kStoreUpkeepV0, "out"));
  const Log& log = store->open->log;
  KVPACK_TRY_ASSIGN(const MaintenanceReport report, log.watch("upkeep", work(*store->open->store)));
  log.tell(KVPACK_LOG_INFO, [&] {
    return "upkeep: " + std::to_string(report.manifests_evicted) + " cuts evicted, " +
           std::to_string(report.chunks_collected) + " chunks collected, " +
           std::to_string(report.bytes_freed) + " bytes freed";
  });
  kvpack_store_upkeep done{};
  done.before_bytes = report.before_bytes;
  done.after_bytes = report.after_bytes;
  done.manifests_evicted = report.manifests_evicted;
  done.chunks_collected = report.chunks_collected;
  done.bytes_freed = report.bytes_freed;
  done.emergency = report.emergency ? 1 : 0;
  done.blocked = report.blocked ? 1 : 0;
  output.fill(done);
  return success();
}

}  // namespace

}  // namespace kvpack::capi

using namespace kvpack;        // NOLINT(google-build-using-namespace)
using namespace kvpack::capi;  // NOLINT(google-build-using-namespace)

kvpack_status kvpack_store_create(kvpack_store** out, const kvpack_store_options* options,
                                  kvpack_error** error) {
  return guard(error, [&] { return open_store(out, options, Store::create); });
}

kvpack_status kvpack_store_open(kvpack_store** out, const kvpack_store_options* options,
                                kvpack_error** error) {
  return guard(error, [&] { return open_store(out, options, Store::open); });
}

kvpack_status kvpack_store_open_read_only(kvpack_store** out, const kvpack_store_options* options,
                                          kvpack_error** error) {
  return guard(error, [&] { return open_store(out, options, Store::open_read_only); });
}

kvpack_status kvpack_store_get_info(kvpack_store* store, kvpack_store_info* out, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(store, "store"));
    KVPACK_TRY_ASSIGN(const auto output, OutputStruct<kvpack_store_info>::check(out, kStoreInfoV0, "out"));
    KVPACK_TRY_ASSIGN(const StoreStatus found, status(*store->open->store));
    output.fill(describe_store(*store->open->store, found));
    return success();
  });
}

kvpack_status kvpack_store_maintain(kvpack_store* store, kvpack_store_upkeep* out, uint64_t head_room_bytes,
                                    kvpack_error** error) {
  return guard(error, [&] {
    return run_upkeep(store, out, [&](Store& open) { return maintain(open, head_room_bytes); });
  });
}

kvpack_status kvpack_store_collect(kvpack_store* store, kvpack_store_upkeep* out, kvpack_error** error) {
  return guard(error, [&] { return run_upkeep(store, out, [](Store& open) { return collect(open); }); });
}

kvpack_status kvpack_store_evict(kvpack_store* store, kvpack_store_upkeep* out, const kvpack_id* manifest_id,
                                 kvpack_error** error) {
  return guard(error, [&] {
    return run_upkeep(store, out, [&](Store& open) -> Result<MaintenanceReport> {
      KVPACK_TRY(check_pointer(manifest_id, "manifest_id"));
      return evict(open, to_id(*manifest_id));
    });
  });
}

void kvpack_store_free(kvpack_store* store) {
  free_handle(store);
}
