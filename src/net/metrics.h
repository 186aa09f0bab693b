// What a receiver tells a monitoring system: counts by outcome and category, and how long phases take.
// docs/operations.md §Monitoring a receiver
#pragma once

#include "kvpack/net/receiver.h"

namespace kvpack::net {

// Counts and waiting times of all attempts since the start. One thread at a time.
class ReceiverMetrics {
 public:
  void note(const AttemptReceipt& receipt) noexcept;

  // Prometheus' text format, version 0.0.4. The same series every time but for the categories, which appear
  // with their first error.
  std::string text(const ReceiverCounters& counters, std::uint64_t started_unix_ms) const;

 private:
  static constexpr std::array<std::uint64_t, 13> kBoundsNs{
      100'000,     500'000,       1'000'000,     5'000'000,      10'000'000,     50'000'000,     100'000'000,
      500'000'000, 1'000'000'000, 5'000'000'000, 10'000'000'000, 60'000'000'000, 300'000'000'000};
  static constexpr std::size_t kPhaseCount = 10;
  static constexpr std::size_t kCategoryCount = 1000;  // Error codes are below.

  struct Histogram {
    std::array<std::uint64_t, kBoundsNs.size()> counts{};  // each without those of smaller bounds
    std::uint64_t count = 0;
    std::uint64_t sum_ns = 0;

    void add(std::uint64_t ns) noexcept;
  };

  std::array<std::uint64_t, kCategoryCount> errors_{};
  std::array<Histogram, kPhaseCount> phases_{};
};

}  // namespace kvpack::net
