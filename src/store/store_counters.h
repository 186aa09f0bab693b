/// What has happened, counted in memory and added to the catalog now and then. docs/operations.md §Counters
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string_view>

namespace kvpack::store {

enum class Counter : std::size_t {
  kSavesAttempted,
  kSavesCommitted,
  kSavesReplayed,
  kSavesRefused,
  kSaveBytesWritten,
  kSaveBytesShared,
  kLookupsExact,
  kLookupsAncestor,
  kLookupsMiss,
  kLookupsFault,
  kRestoresAttempted,
  kRestoresCommitted,
  kRestoresRefused,
  kRestoreBytes,
  kObjectsQuarantined,
  kManifestsEvicted,
  kChunksCollected,
  kBytesCollected,
  kCount
};

/// Names in the catalog, in `stat` and in reports, in the order of Counter.
inline constexpr std::array<std::string_view, static_cast<std::size_t>(Counter::kCount)> kCounterNames{
    "saves_attempted",    "saves_committed",    "saves_replayed",   "saves_refused", "save_bytes_written",
    "save_bytes_shared",  "lookups_exact",      "lookups_ancestor", "lookups_miss",  "lookups_fault",
    "restores_attempted", "restores_committed", "restores_refused", "restore_bytes", "objects_quarantined",
    "manifests_evicted",  "chunks_collected",   "bytes_collected"};

/// Usable from several threads at once.
class StoreCounters {
 public:
  void add(Counter counter, std::uint64_t n = 1) noexcept {
    at(counter).fetch_add(n, std::memory_order_relaxed);
  }
  std::uint64_t value(Counter counter) const noexcept {
    return values_[static_cast<std::size_t>(counter)].load(std::memory_order_relaxed);
  }
  /// What has been counted since the last call.
  std::uint64_t take(Counter counter) noexcept { return at(counter).exchange(0, std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t>& at(Counter counter) noexcept {
    return values_[static_cast<std::size_t>(counter)];
  }
  std::array<std::atomic<std::uint64_t>, static_cast<std::size_t>(Counter::kCount)> values_{};
};

}  // namespace kvpack::store
