#include "cli/signal_watch.h"

#include <pthread.h>

#include <csignal>
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
  constexpr timespec kLook{0, 100'000'000};
  const sigset_t set = stop_signals();
  while (!over.stop_requested()) {
    if (sigtimedwait(&set, nullptr, &kLook) < 0) continue;
    if (!stopped_.exchange(true)) {
      stop_();
      continue;
    }
    // Whoever asks twice does not want to wait.
    std::_Exit(128 + SIGINT);
  }
}

}  // namespace kvpack::cli
