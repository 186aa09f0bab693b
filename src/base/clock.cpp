#include "kvpack/base/clock.h"

#include <chrono>

namespace kvpack {

std::uint64_t SystemClock::wall_ms() const {
  using std::chrono::duration_cast;
  const auto since_1970 = std::chrono::system_clock::now().time_since_epoch();
  const auto ms = duration_cast<std::chrono::milliseconds>(since_1970).count();
  return ms < 0 ? 0 : static_cast<std::uint64_t>(ms);
}

std::uint64_t SystemClock::monotonic_ns() const {
  using std::chrono::duration_cast;
  const auto since_start = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(duration_cast<std::chrono::nanoseconds>(since_start).count());
}

}  // namespace kvpack
