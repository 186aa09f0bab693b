#include "cli/signal_watch.h"

#include <signal.h>

#include <chrono>
#include <cstdlib>

namespace kvpack::cli {

namespace {

sigset_t stop_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  return set;
}

}  // namespace

SignalWatch::SignalWatch(std::function<void()> stop) : stop_(std::move(stop)) {
  const sigset_t set = stop_signals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  thread_ = std::jthread([this](const std::stop_token& over) { watch(over); });
}

SignalWatch::~SignalWatch() {
  thread_.request_stop();
  thread_.join();
  const sigset_t set = stop_signals();
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

void SignalWatch::watch(const std::stop_token& over) {
  constexpr std::chrono::milliseconds kLook(100);
  const sigset_t set = stop_signals();
  while (!over.stop_requested()) {
    // Waiting for a signal and no longer than so long is one call on some systems, and none on others.
    sigset_t pending;
    sigemptyset(&pending);
    sigpending(&pending);
    if (sigismember(&pending, SIGINT) != 1 && sigismember(&pending, SIGTERM) != 1) {
      std::this_thread::sleep_for(kLook);
      continue;
    }
    int taken = 0;
    if (sigwait(&set, &taken) != 0) continue;
    if (!stopped_.exchange(true)) {
      stop_();
      continue;
    }
    // Whoever asks twice does not want to wait.
    std::_Exit(128 + SIGINT);
  }
}

}  // namespace kvpack::cli
