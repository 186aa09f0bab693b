// The span schedule that the vectors of the handoff are made with, written for the tests: groups of windowed
// layers first, then the tiles of the others.
#pragma once

#include "kvpack/handoff/admission.h"

namespace kvpack::testing {

inline std::optional<std::vector<handoff::ScheduleRow>> span_schedule(std::uint64_t position,
                                                                      std::uint64_t cut) {
  using handoff::SegmentRole;
  if (position == 0 || cut >= position || cut % 256 != 0) return std::nullopt;
  constexpr std::uint32_t kRowElements = 6656;
  const std::uint64_t window = std::max(cut, position > 2048 ? position - 2048 : 0);
  std::vector<handoff::ScheduleRow> rows;
  for (const std::uint32_t head : {0U, 17U, 34U}) {
    for (std::uint64_t start = cut; start < position; start += 512) {
      const std::uint64_t stop = std::min(start + 512, position);
      const std::uint64_t first = std::max(start, window);
      if (stop > window)
        rows.push_back({SegmentRole::kSwaTile, head, first, stop - first, "f16_le", kRowElements});
    }
  }
  for (std::uint64_t start = cut; start < position; start += 512)
    rows.push_back({SegmentRole::kNopeTile, std::nullopt, start,
                    std::min<std::uint64_t>(512, position - start), "f16_le", kRowElements});
  return rows;
}

}  // namespace kvpack::testing
