/// One piece of work at a time beside the thread that begins it.
#pragma once

#include <atomic>
#include <exception>
#include <system_error>
#include <thread>
#include <utility>

#include "kvpack/base/result.h"

namespace kvpack::store {

/// Whoever begins also waits, one thread at a time. Its end waits for the work.
class BackgroundTask {
 public:
  /// Runs `work` on a thread of its own, or at once where the system gives none.
  /// @param work  () -> Status @pre what ran before has been waited for
  template <class Work>
  void begin(Work work) {
    try {
      thread_ = std::jthread([this, work] { run(work); });
    } catch (const std::system_error&) {
      run(work);
    }
  }

  /// The work has ended and not succeeded: wait() tells how.
  bool has_failed() const noexcept { return failed_; }

  /// Waits for the end of the work. @return what came of it, once; success when there was none. Throws what
  /// it threw.
  Status wait() {
    if (thread_.joinable()) thread_.join();
    failed_ = false;
    if (thrown_) std::rethrow_exception(std::exchange(thrown_, nullptr));
    return std::exchange(status_, success());
  }
  /// Waits, and forgets what came of it.
  void finish() noexcept {
    if (thread_.joinable()) thread_.join();
    failed_ = false;
    thrown_ = nullptr;
    status_ = success();
  }

 private:
  template <class Work>
  void run(const Work& work) {
    try {
      status_ = work();
    } catch (...) {
      thrown_ = std::current_exception();
    }
    failed_ = thrown_ != nullptr || !status_.has_value();
  }

  std::atomic<bool> failed_{false};
  Status status_ = success();
  std::exception_ptr thrown_{};
  std::jthread thread_{};  ///< Last: it ends before the others go.
};

}  // namespace kvpack::store
