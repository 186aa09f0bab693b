/// When cuts were last used, kept in memory until it is written down with the counters. docs/format/store.md
/// §Removal
#pragma once

#include <mutex>
#include <unordered_map>

#include "kvpack/core/ids.h"

namespace kvpack::store {

/// Usable from several threads at once.
class AccessLog {
 public:
  using Times = std::unordered_map<Id32, std::uint64_t, Id32Hash>;

  /// @param now_ns  nanoseconds since 1970
  void note(const Id32& manifest_id, std::uint64_t now_ns) {
    const std::lock_guard lock(mutex_);
    std::uint64_t& time = times_[manifest_id];
    time = std::max(time, now_ns);
  }
  /// What has been noted since the last call.
  Times take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(times_, {});
  }

 private:
  std::mutex mutex_{};
  Times times_{};
};

}  // namespace kvpack::store
