/// What every part of an open store shares. Made by Store::create and its siblings; the parts are free
/// functions over it, each in a file named for what it does.
#pragma once

#include <atomic>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "kvpack/store/store_options.h"
#include "store/access_log.h"
#include "store/catalog.h"
#include "store/held_cuts.h"
#include "store/pins.h"
#include "store/restore_holds.h"
#include "store/store_counters.h"
#include "store/store_files.h"
#include "store/upload_sessions.h"

namespace kvpack::store {

struct StoreContext {
  StoreOptions options;  ///< Validated; quotas, limits and seams are filled in.
  bool read_only = false;
  Id32 tenant{};
  std::shared_ptr<const KeySchedule> active_keys{};  ///< Of options.epochs.active.
  Id32 incarnation{};                                ///< Of this handle, random: who owns an upload.
  StoreFiles files;
  std::unique_ptr<File> lock{};  ///< Held for life by the writer; null in a reader.
  std::unique_ptr<Catalog> catalog{};
  /// In a reader: the file that `catalog` was opened from, and whether its medium is taken to be one that
  /// cannot be written. Both and `catalog` itself change under the gate alone (read_catalog).
  FileFacts catalog_file{};
  bool catalog_is_immutable = false;
  std::shared_mutex catalog_gate{};
  Pins pins{};
  RestoreHolds holds{};
  HeldCuts held{};
  AccessLog accesses{};
  UploadSessions sessions{};
  std::atomic<std::size_t> staged_files{0};  ///< Temporary files of all uploads that are open.
  /// Held while it is judged what lies where an object is to be linked.
  std::recursive_mutex target_mutex{};
  StoreCounters counters{};
  std::atomic<std::uint64_t> flushed_ns{0};  ///< Monotonic time of the last flush of counters.
  std::atomic<std::uint64_t> last_wall_ns{0};
  std::atomic<std::uint64_t> pruned_uploads_ns{0};  ///< Failed uploads up to this time have been forgotten.
  std::atomic<unsigned> quarantined_objects{0};     ///< By this handle; bounded by kMaxQuarantinedObjects.

  FileSystem& fs() const { return *options.file_system; }
  Clock& clock() const { return *options.clock; }
  RandomSource& random() const { return *options.random; }
  const KeyRing& keys() const { return *options.keys; }

  /// Nanoseconds since 1970. Never goes back within a handle.
  std::uint64_t now_ns() {
    const std::uint64_t now = clock().wall_ms() * 1'000'000;
    std::uint64_t last = last_wall_ns.load();
    while (now > last && !last_wall_ns.compare_exchange_weak(last, now)) {
    }
    return std::max(now, last);
  }
  /// Seconds since 1970, likewise: the endurance window's unit.
  std::uint64_t now_second() { return now_ns() / 1'000'000'000; }
};

inline constexpr unsigned kMaxQuarantinedObjects = 64;

/// @error kState `store is open for reading only`, `store directory was removed: {path}`
Status check_writable(const StoreContext& context);

/// 32 random bytes, never all zero.
Result<Id32> random_id(StoreContext& context);

/// Opens, or after a rebuild by another process opens again, the catalog of a read-only handle, and checks
/// that it is this tenant's.
Status open_reading_catalog(StoreContext& context);

/// Adds what has been counted, and the times of accesses, to the catalog; keeps them when that fails.
Status flush_counters(StoreContext& context);
/// The same when the last time is 30 seconds ago, best effort. Does nothing in a reader.
void flush_counters_when_due(StoreContext& context);

/// Whether an error says that the volume, the user's disk quota or the catalog has no room left.
bool is_no_space(const Error& error);

}  // namespace kvpack::store
