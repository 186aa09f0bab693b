/// What kvpack wants to reach: each goal a ratio to a baseline of the same run, with three bars.
/// docs/performance.md §Goals.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvpack::cli::bench {

/// The bars of a figure, in the direction that is better. Not every figure has all.
struct Bars {
  std::optional<double> gate{};      ///< Must hold.
  std::optional<double> goal{};      ///< What the product is built for.
  std::optional<double> moonshot{};  ///< What the hardware might allow.
  bool at_most = false;              ///< Less is better.
};

/// What must be sound for a missed gate to mean anything.
enum class ControlKind : std::uint8_t {
  kOneThread,   ///< The baseline's slowest round over its fastest: at most 1.25.
  kTwoThreads,  ///< One SHA-256 stream on two threads over one, before and after: at least 1.7.
  kDevice,      ///< As kOneThread, of a disk or socket: at most 1.6.
  kNone,        ///< Bytes are counted, not seconds.
};

/// One figure that is judged. A goal that speaks of several has several, under one id.
struct GoalPart {
  std::string_view id;         ///< `G1` to `G19`
  std::string_view part;       ///< Which figure of the goal; empty when there is one.
  std::string_view operation;  ///< For people.
  std::string_view baseline;   ///< What the ratio is to.
  Bars bars{};
  ControlKind control = ControlKind::kOneThread;
  /// Of a goal that is set for sixteen lanes, what is judged where there are none: the bars of the goal with
  /// this id, times the factor. Empty: the same bars everywhere.
  std::string_view narrow_as{};
  double narrow_factor = 1;
};

/// All figures, in the order of the goals.
std::span<const GoalPart> goal_parts();

/// The figure of that name, which there is.
const GoalPart& goal_part(std::string_view id, std::string_view part = {});

/// The bars that this machine is judged by. @param sixteen_lanes  AVX-512 is there and may be used
Bars bars_here(const GoalPart& part, bool sixteen_lanes);

/// `G1,G6` as ids, each once, in the order of the goals.
/// @return nothing when one of them is no goal
std::optional<std::vector<std::string_view>> parse_goal_ids(std::string_view list);

}  // namespace kvpack::cli::bench
