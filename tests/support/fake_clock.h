// A clock that the test moves.
#pragma once

#include <atomic>

#include "kvpack/base/clock.h"

namespace kvpack::testing {

// Time stands still until the test moves it.
class FakeClock final : public Clock {
 public:
  std::uint64_t wall_ms() const override { return wall_ms_.load(); }
  std::uint64_t monotonic_ns() const override { return monotonic_ns_.load(); }
  void advance_ms(std::uint64_t ms) {
    wall_ms_ += ms;
    monotonic_ns_ += ms * 1'000'000;
  }
  void set_wall_ms(std::uint64_t ms) { wall_ms_ = ms; }

 private:
  std::atomic<std::uint64_t> wall_ms_{1'800'000'000'000};
  std::atomic<std::uint64_t> monotonic_ns_{1'000'000'000};
};

}  // namespace kvpack::testing
