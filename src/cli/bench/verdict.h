/// How a figure is judged: which bars it reaches, and whether a missed gate says something about kvpack or
/// only about the machine. docs/performance.md §How it is measured
#pragma once

#include <string>
#include <string_view>

#include "cli/bench/goals.h"
#include "cli/bench/rounds.h"

namespace kvpack::cli::bench {

enum class Verdict : std::uint8_t { kPass, kFail, kInconclusive };
enum class Reached : std::uint8_t { kNone, kGate, kGoal, kMoonshot };

std::string_view verdict_name(Verdict verdict) noexcept;
std::string_view reached_name(Reached reached) noexcept;

inline constexpr double kMostSpreadOneThread = 1.25;
inline constexpr double kMostSpreadDevice = 1.6;
inline constexpr double kLeastGainTwoThreads = 1.7;
inline constexpr std::size_t kLeastRounds = 5;
inline constexpr std::size_t kQuickRounds = 3;

/// What the machine itself did meanwhile.
struct Control {
  double spread = 1;       ///< Of the baseline.
  double gain_before = 0;  ///< Of a SHA-256 stream on two threads over one.
  double gain_after = 0;
};

/// One measured figure.
struct Figure {
  const GoalPart* part = nullptr;
  Ratio ratio{};
  Control control{};
  std::string kernel{};     ///< Which SHA-256 kernels ran, and with TLS its suite; empty where none matter.
  std::string not_valid{};  ///< Why this figure proves nothing on this machine; empty: it does.
  bool measured = true;     ///< False: there is no ratio at all, and not_valid says why.
};

struct Judgement {
  Bars bars{};
  Reached reached = Reached::kNone;
  Verdict verdict = Verdict::kInconclusive;
  std::string reason{};  ///< Why it is inconclusive, or empty.
};

/// The highest bar that a value reaches.
Reached reached_by(const Bars& bars, double value) noexcept;

/// Why the control does not allow a missed gate to count, or empty when it is sound.
std::string unsound(ControlKind kind, const Control& control);

/// Pass: the gate, or the lack of one, is met. Fail: it is missed and the control is sound. Inconclusive:
/// otherwise, and whatever the ratio is where the figure is not valid.
Judgement judge(const Figure& figure, bool sixteen_lanes);

}  // namespace kvpack::cli::bench
