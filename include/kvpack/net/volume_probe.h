/// How long a volume takes to make a replay ledger durable: a receiver on a slow one would stall every
/// commit, so it refuses to start. docs/protocol/receiver.md §Volume probe
#pragma once

#include <span>
#include <vector>

#include "kvpack/base/clock.h"
#include "kvpack/base/fs.h"

namespace kvpack::net {

/// The slowest reservation that a receiver starts with.
inline constexpr std::uint64_t kMaxReserveTailNs = 100'000'000;

struct VolumeProbeOptions {
  std::uint32_t iterations = 20;
  std::uint32_t payload_bytes = 4096;
  std::string_view file_prefix = "ledger-probe";
};

/// What a reservation does, again and again: create, write, sync, rename, sync of the directory. Nothing
/// stays in the directory, which is made where it is missing.
/// @return  one sample per iteration in nanoseconds, in the order of measurement
/// @error kIo  `create replay ledger directory: `, `create ledger probe file: `, `write+fsync ledger probe
/// file: `,
///        `rename ledger probe file: `, `fsync replay ledger directory: `, each with what the system says
Result<std::vector<std::uint64_t>> probe_volume(FileSystem& fs, const Clock& clock,
                                                std::string_view directory,
                                                const VolumeProbeOptions& options = {});

/// The verdict over the worst sample. @error kConfig the tail is above kMaxReserveTailNs; `replay ledger
/// probe produced no samples`
Status judge_volume(std::string_view directory, std::span<const std::uint64_t> samples_ns);

/// Of samples in any order; all 0 of none.
struct VolumeProbeSummary {
  std::uint64_t min_ns = 0;
  std::uint64_t median_ns = 0;
  std::uint64_t p99_ns = 0;
  std::uint64_t max_ns = 0;
};
VolumeProbeSummary summarize_samples(std::span<const std::uint64_t> samples_ns);

/// For people: the largest unit that leaves a whole part, such as `700ms` or `1.5s`.
std::string duration_text(std::uint64_t ns);

}  // namespace kvpack::net
