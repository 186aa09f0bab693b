/// Which uploads of this handle somebody is working on.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>

#include "kvpack/base/clock.h"

namespace kvpack::store {

/// Usable from several threads at once.
class UploadSessions {
 public:
  struct Session {
    /// Held from the plan of a batch until its files are linked, by whoever takes the upload over, and by
    /// whoever aborts it: what is planned is linked under the eyes of nobody else. Taken before the catalog's
    /// lock; inside a transaction it is tried only.
    std::mutex working{};
    /// Somebody else has begun to undo what was planned. Files may be gone whether that commits or not, so
    /// this session settles nothing any more.
    std::atomic<bool> ended{false};
    std::atomic<std::uint64_t> last_call_ns{0};  ///< Monotonic.
  };

  /// A new session of an upload; who held it before is not found any more.
  std::shared_ptr<Session> begin(std::int64_t upload, const Clock& clock) {
    auto session = std::make_shared<Session>();
    session->last_call_ns = clock.monotonic_ns();
    const std::lock_guard lock(mutex_);
    std::erase_if(sessions_, [](const auto& entry) { return entry.second.expired(); });
    sessions_[upload] = session;
    return session;
  }

  /// The living session of an upload, or null.
  std::shared_ptr<Session> find(std::int64_t upload) const {
    const std::lock_guard lock(mutex_);
    const auto found = sessions_.find(upload);
    return found == sessions_.end() ? nullptr : found->second.lock();
  }

 private:
  mutable std::mutex mutex_{};
  std::map<std::int64_t, std::weak_ptr<Session>> sessions_{};
};

}  // namespace kvpack::store
