// A clock for tests in which a receiver starts.
#pragma once

#include <atomic>

#include "kvpack/base/clock.h"

namespace kvpack::net::testing {

// The system's clock, which can be held: how long a busy machine takes for a volume probe is no matter of
// these tests.
class PatientClock final : public Clock {
 public:
  std::uint64_t wall_ms() const override {
    return system_.wall_ms() + static_cast<std::uint64_t>(shift_ms_.load());
  }
  std::uint64_t monotonic_ns() const override {
    const std::uint64_t held = held_ns_.load();
    return held != 0 ? held : system_.monotonic_ns();
  }
  void hold() { held_ns_ = system_.monotonic_ns(); }
  void go_on() { held_ns_ = 0; }
  // Sets the wall clock to so far from the system's.
  void set_wall_shift_ms(std::int64_t ms) { shift_ms_ = ms; }

 private:
  SystemClock system_;
  std::atomic<std::int64_t> shift_ms_{0};
  std::atomic<std::uint64_t> held_ns_{0};
};

}  // namespace kvpack::net::testing
