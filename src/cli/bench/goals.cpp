#include "cli/bench/goals.h"

#include <algorithm>
#include <array>
#include <cassert>

namespace kvpack::cli::bench {

namespace goal_table {
namespace {

using enum ControlKind;

// Two threads give 1.7 of what four lanes give on one; restoring and encryption take a fifth of it.
constexpr double kTwoCores = 1.7;
constexpr double kWithMore = 0.8;

constexpr GoalPart kParts[]{
    {"G1", "", "save, no file, 1 thread", "N", {2.0, 2.4, 2.7}, kOneThread, "G3", 1},
    {"G2", "", "save, no file, 2 threads", "N", {3.0, 4.2, 5.2}, kTwoThreads, "G3", kTwoCores},
    {"G3", "", "save, no file, 1 thread, SHA-NI alone", "N", {1.5, 1.8, 1.95}, kOneThread},
    {"G4", "1 thread", "save encrypted, no file", "N", {1.7, 2.0, 2.2}, kOneThread, "G3", kWithMore},
    {"G4",
     "2 threads",
     "save encrypted, no file",
     "N",
     {2.6, 3.8, 4.3},
     kTwoThreads,
     "G3",
     kWithMore* kTwoCores},
    {"G5", "W", "save, durable", "W", {0.70, 0.85, 0.95}, kDevice},
    {"G5", "N", "save, durable", "N", {{}, 1.9, {}}, kDevice},
    {"G6", "", "restore warm, 1 thread", "N", {1.8, 2.3, 2.7}, kOneThread, "G3", kWithMore},
    {"G7", "", "restore warm, 2 threads", "N", {2.8, 4.2, 5.2}, kTwoThreads, "G3", kWithMore* kTwoCores},
    {"G8", "", "restore of one chunk", "N", {1.3, 1.5, 1.7}, kOneThread},
    {"G9", "R", "restore cold", "R", {0.60, 0.75, 0.90}, kDevice},
    {"G9", "N", "restore cold", "N", {{}, 3.5, {}}, kDevice},
    {"G10", "", "handoff: receive, 1 thread", "N", {1.4, 1.65, 1.9}, kOneThread},
    {"G11", "", "handoff: receive, 2 threads", "S1", {0.85, 0.95, 0.99}, kTwoThreads},
    {"G12", "B", "handoff: receive over TLS", "B", {1.0, 1.2, 1.4}, kDevice},
    {"G12", "N", "handoff: receive over TLS", "N", {1.1, 1.3, {}}, kDevice},
    {"G13", "f16 normal", "PackBits encode", "scalar", {8, 18, {}}, kOneThread},
    {"G13", "zero-heavy", "PackBits encode", "scalar", {4, 8, {}}, kOneThread},
    {"G13", "memcpy", "PackBits encode, f16 normal", "memcpy", {{}, {}, 0.8}, kOneThread},
    {"G14", "half zero", "PackBits encode", "scalar", {2, 4, 6}, kOneThread},
    {"G14", "runs of 3", "PackBits encode", "scalar", {0.8, 1.0, 1.2}, kOneThread},
    {"G15", "", "PackBits decode with its proof, f16 normal", "scalar", {4, 7, 12}, kOneThread},
    {"G16", "encode", "begin manifest", "nlohmann", {20, 45, 60}, kOneThread},
    {"G16", "decode", "begin manifest", "nlohmann", {8, 25, 35}, kOneThread},
    {"G17", "", "publish 4 KiB, time", "bare calls", {1.15, 1.0, 0.75, true}, kDevice},
    {"G18", "", "publish 32 x 64 KiB", "one by one", {1.5, 2.4, 3.0}, kDevice},
    {"G19", "thread", "restore: extra KiB per thread", "bytes", {4096, {}, {}, true}, kNone},
    {"G19", "chunk", "restore: extra KiB per chunk in flight", "bytes", {{}, 128, 12, true}, kNone},
};

constexpr std::size_t kGoals = 19;

}  // namespace
}  // namespace goal_table

std::span<const GoalPart> goal_parts() {
  return goal_table::kParts;
}

const GoalPart& goal_part(std::string_view id, std::string_view part) {
  const auto found = std::ranges::find_if(
      goal_table::kParts, [&](const GoalPart& one) { return one.id == id && one.part == part; });
  assert(found != std::end(goal_table::kParts));
  return *found;
}

Bars bars_here(const GoalPart& part, bool sixteen_lanes) {
  if (sixteen_lanes || part.narrow_as.empty()) return part.bars;
  Bars bars = goal_part(part.narrow_as).bars;
  for (std::optional<double>* const bar : {&bars.gate, &bars.goal, &bars.moonshot})
    if (bar->has_value()) **bar *= part.narrow_factor;
  return bars;
}

std::optional<std::vector<std::string_view>> parse_goal_ids(std::string_view list) {
  std::array<bool, goal_table::kGoals + 1> wanted{};
  for (;;) {
    const std::size_t comma = list.find(',');
    const std::string_view name = list.substr(0, comma);
    const auto known = std::ranges::find(goal_table::kParts, name, &GoalPart::id);
    if (known == std::end(goal_table::kParts)) return std::nullopt;
    std::size_t number = 0;
    for (const char digit : name.substr(1)) number = number * 10 + static_cast<std::size_t>(digit - '0');
    wanted[number] = true;
    if (comma == std::string_view::npos) break;
    list.remove_prefix(comma + 1);
  }
  std::vector<std::string_view> ids;
  for (const GoalPart& part : goal_table::kParts) {
    std::size_t number = 0;
    for (const char digit : part.id.substr(1)) number = number * 10 + static_cast<std::size_t>(digit - '0');
    if (wanted[number] && (ids.empty() || ids.back() != part.id)) ids.push_back(part.id);
  }
  return ids;
}

}  // namespace kvpack::cli::bench
