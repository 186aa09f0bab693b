/// Memory that restores and saves have been admitted to, and cuts that are held after a restore.
/// docs/operations.md §Memory
#pragma once

#include <cstdint>
#include <mutex>

#include "kvpack/base/result.h"
#include "kvpack/store/store_options.h"

namespace kvpack::store {

/// What one session takes.
struct MemoryCharge {
  std::uint64_t shadow_bytes = 0;
  std::uint64_t scratch_bytes = 0;
  std::uint64_t holds = 0;
};

/// Usable from several threads at once.
class RestoreHolds {
 public:
  /// Admits a charge or refuses it; nothing waits.
  /// @error kQuota `authenticated restore plan exceeds declared resource limits` (alone beyond the limits),
  ///        `concurrent restore resources exceed declared limits` (with what others hold)
  Status charge(const StoreMemoryLimits& limits, const MemoryCharge& charge);
  void release(const MemoryCharge& charge) noexcept;
  MemoryCharge held() const;

 private:
  mutable std::mutex mutex_{};
  MemoryCharge held_{};
};

}  // namespace kvpack::store
