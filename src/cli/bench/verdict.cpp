#include "cli/bench/verdict.h"

#include <fmt/core.h>

namespace kvpack::cli::bench {

std::string_view verdict_name(Verdict verdict) noexcept {
  switch (verdict) {
    case Verdict::kPass: return "pass";
    case Verdict::kFail: return "fail";
    case Verdict::kInconclusive: return "inconclusive";
  }
  return "";
}

std::string_view reached_name(Reached reached) noexcept {
  switch (reached) {
    case Reached::kNone: return "none";
    case Reached::kGate: return "gate";
    case Reached::kGoal: return "goal";
    case Reached::kMoonshot: return "moonshot";
  }
  return "";
}

Reached reached_by(const Bars& bars, double value) noexcept {
  const auto meets = [&](const std::optional<double>& bar) {
    return bar.has_value() && (bars.at_most ? value <= *bar : value >= *bar);
  };
  if (meets(bars.moonshot)) return Reached::kMoonshot;
  if (meets(bars.goal)) return Reached::kGoal;
  if (meets(bars.gate)) return Reached::kGate;
  return Reached::kNone;
}

std::string unsound(ControlKind kind, const Control& control) {
  switch (kind) {
    case ControlKind::kOneThread:
      // Written so that what is no number is unsound too.
      if (!(control.spread <= kMostSpreadOneThread))
        return fmt::format("the baseline moved by {:.2f}, more than {}", control.spread,
                           kMostSpreadOneThread);
      return {};
    case ControlKind::kDevice:
      if (!(control.spread <= kMostSpreadDevice))
        return fmt::format("the baseline moved by {:.2f}, more than {}", control.spread, kMostSpreadDevice);
      return {};
    case ControlKind::kTwoThreads:
      for (const double gain : {control.gain_before, control.gain_after})
        if (!(gain >= kLeastGainTwoThreads))
          return fmt::format("the machine gave {:.2f} of two threads, less than {}", gain,
                             kLeastGainTwoThreads);
      return {};
    case ControlKind::kNone: return {};
  }
  return {};
}

Judgement judge(const Figure& figure, bool sixteen_lanes) {
  Judgement judgement;
  judgement.bars = bars_here(*figure.part, sixteen_lanes);
  if (!figure.measured) {
    judgement.reason = figure.not_valid;
    return judgement;
  }
  judgement.reached = reached_by(judgement.bars, figure.ratio.median);
  if (!figure.not_valid.empty()) {
    judgement.reason = figure.not_valid;
    return judgement;
  }
  if (!judgement.bars.gate.has_value() || judgement.reached != Reached::kNone) {
    judgement.verdict = Verdict::kPass;
    return judgement;
  }
  judgement.reason = unsound(figure.part->control, figure.control);
  if (judgement.reason.empty()) judgement.verdict = Verdict::kFail;
  return judgement;
}

}  // namespace kvpack::cli::bench
