/// Signals as calls: SIGINT and SIGTERM end long commands in an orderly way.
#pragma once

#include <atomic>
#include <functional>
#include <stop_token>
#include <thread>

namespace kvpack::cli {

/// While it lives, the first SIGINT or SIGTERM is a call of `stop`, from a thread of its own, and the second
/// one ends the process as if nobody watched. To be made before any other thread, and once at a time.
class SignalWatch {
 public:
  explicit SignalWatch(std::function<void()> stop);
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;
  ~SignalWatch();

  bool was_stopped() const noexcept { return stopped_.load(); }

 private:
  void watch(const std::stop_token& over);

  std::function<void()> stop_;
  std::atomic<bool> stopped_{false};
  std::jthread thread_;
};

}  // namespace kvpack::cli
