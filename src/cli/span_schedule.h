/// The span schedule of a delta transfer, for verifiers that know no engine: docs/protocol/delta.md §Span
/// schedule.
#pragma once

#include "kvpack/handoff/admission.h"

namespace kvpack::cli {

/// The target segments that transfer tokens [cut, position), in wire order.
/// @return  nothing when `position` is 0, `cut` is not below it, or `cut` is not a multiple of 256
inline std::optional<std::vector<handoff::ScheduleRow>> span_schedule(std::uint64_t position,
                                                                      std::uint64_t cut) {
  using handoff::SegmentRole;
  constexpr std::uint64_t kTileTokens = 512;
  constexpr std::uint64_t kWindowTokens = 2048;
  constexpr std::uint32_t kRowElements = 6656;
  constexpr std::array<std::uint32_t, 3> kWindowedHeads{0, 17, 34};

  if (position == 0 || cut >= position || cut % handoff::kCutAlignmentTokens != 0) return std::nullopt;
  const std::uint64_t window_start = std::max(cut, position > kWindowTokens ? position - kWindowTokens : 0);
  std::vector<handoff::ScheduleRow> rows;
  const auto emit = [&](SegmentRole role, std::optional<std::uint32_t> layer, std::uint64_t first_token) {
    for (std::uint64_t start = cut; start < position;) {
      const std::uint64_t stop = start + std::min(kTileTokens, position - start);
      if (stop > first_token) {
        const std::uint64_t first = std::max(start, first_token);
        rows.push_back({role, layer, first, stop - first, "f16_le", kRowElements});
      }
      start = stop;
    }
  };
  for (const std::uint32_t head : kWindowedHeads) emit(SegmentRole::kSwaTile, head, window_start);
  emit(SegmentRole::kNopeTile, std::nullopt, cut);
  return rows;
}

}  // namespace kvpack::cli
