/// Time as a seam: what a person calls now, and what intervals are measured by.
#pragma once

#include <cstdint>

namespace kvpack {

/// Usable from several threads at once.
class Clock {
 public:
  virtual ~Clock() = default;
  /// Milliseconds since 1970 (UTC). May jump either way when the system's clock is set.
  virtual std::uint64_t wall_ms() const = 0;
  /// Nanoseconds since a fixed moment of this process. Never goes back.
  virtual std::uint64_t monotonic_ns() const = 0;
};

/// The operating system's.
class SystemClock final : public Clock {
 public:
  std::uint64_t wall_ms() const override;
  std::uint64_t monotonic_ns() const override;
};

}  // namespace kvpack
