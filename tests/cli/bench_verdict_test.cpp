#include "cli/bench/verdict.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

namespace kvpack::cli::bench {
namespace bench_verdict_test {
namespace {

constexpr double kNoNumber = std::numeric_limits<double>::quiet_NaN();

Figure figure_of(const GoalPart& part, double ratio, const Control& control = {}) {
  return {.part = &part, .ratio = {ratio, ratio, ratio}, .control = control};
}
Verdict verdict_of(const GoalPart& part, double ratio, const Control& control = {}) {
  return judge(figure_of(part, ratio, control), true).verdict;
}

TEST(BenchGoals, AreThoseThatWereSet) {
  const GoalPart& g2 = goal_part("G2");
  EXPECT_EQ(g2.bars.gate, 3.0);
  EXPECT_EQ(g2.bars.goal, 4.2);
  EXPECT_EQ(g2.bars.moonshot, 5.2);
  EXPECT_EQ(g2.control, ControlKind::kTwoThreads);
  EXPECT_TRUE(goal_part("G17").bars.at_most);
  EXPECT_FALSE(goal_part("G9", "N").bars.gate.has_value());
  for (int i = 1; i <= 19; ++i)
    EXPECT_TRUE(std::ranges::any_of(goal_parts(), [&](const GoalPart& part) {
      return part.id == "G" + std::to_string(i);
    })) << i;
}

TEST(BenchGoals, BarsRiseInTheBetterDirection) {
  for (const GoalPart& part : goal_parts()) {
    const auto better = [&](const std::optional<double>& a, const std::optional<double>& b) {
      return !a || !b || (part.bars.at_most ? *a > *b : *a < *b);
    };
    EXPECT_TRUE(better(part.bars.gate, part.bars.goal)) << part.id;
    EXPECT_TRUE(better(part.bars.goal, part.bars.moonshot)) << part.id;
    EXPECT_TRUE(part.bars.gate || part.bars.goal || part.bars.moonshot) << part.id;
  }
}

TEST(BenchGoals, WithoutSixteenLanesFourAreWhatCounts) {
  const auto gate = [](std::string_view id, std::string_view part = {}) {
    return *bars_here(goal_part(id, part), false).gate;
  };
  EXPECT_DOUBLE_EQ(gate("G1"), 1.5);
  EXPECT_DOUBLE_EQ(gate("G2"), 1.5 * 1.7);
  EXPECT_DOUBLE_EQ(gate("G3"), 1.5);
  EXPECT_DOUBLE_EQ(gate("G4", "1 thread"), 1.5 * 0.8);
  EXPECT_DOUBLE_EQ(gate("G4", "2 threads"), 1.5 * 0.8 * 1.7);
  EXPECT_DOUBLE_EQ(gate("G6"), 1.5 * 0.8);
  EXPECT_DOUBLE_EQ(gate("G7"), 1.5 * 0.8 * 1.7);
  EXPECT_DOUBLE_EQ(gate("G8"), 1.3);
  EXPECT_DOUBLE_EQ(*bars_here(goal_part("G7"), false).moonshot, 1.95 * 0.8 * 1.7);
  for (const GoalPart& part : goal_parts()) EXPECT_EQ(bars_here(part, true).gate, part.bars.gate);
}

TEST(BenchGoals, AreNamedInAList) {
  using Ids = std::vector<std::string_view>;
  EXPECT_EQ(parse_goal_ids("G6"), (Ids{"G6"}));
  EXPECT_EQ(parse_goal_ids("G13,G1,G13,G4"), (Ids{"G1", "G4", "G13"}));
  for (const char* const wrong :
       {"", "G0", "G20", "g1", "G1,", ",G1", "G1 ,G2", "1", "G", "G01", "G1,,G2", "all"})
    EXPECT_FALSE(parse_goal_ids(wrong).has_value()) << wrong;
}

TEST(BenchVerdict, HighestBarThatIsMetIsReached) {
  const Bars most{2, 3, 4};
  EXPECT_EQ(reached_by(most, 1.99), Reached::kNone);
  EXPECT_EQ(reached_by(most, 2), Reached::kGate);
  EXPECT_EQ(reached_by(most, 3), Reached::kGoal);
  EXPECT_EQ(reached_by(most, 4), Reached::kMoonshot);
  const Bars least{.gate = 1.15, .goal = 1.0, .moonshot = 0.75, .at_most = true};
  EXPECT_EQ(reached_by(least, 1.16), Reached::kNone);
  EXPECT_EQ(reached_by(least, 1.15), Reached::kGate);
  EXPECT_EQ(reached_by(least, 1.0), Reached::kGoal);
  EXPECT_EQ(reached_by(least, 0.75), Reached::kMoonshot);
  EXPECT_EQ(reached_by({.goal = 2}, 1), Reached::kNone);
  EXPECT_EQ(reached_by({.goal = 2}, 2), Reached::kGoal);
  EXPECT_EQ(reached_by(most, kNoNumber), Reached::kNone);
}

TEST(BenchVerdict, MissedGateFailsOnAQuietMachine) {
  EXPECT_EQ(verdict_of(goal_part("G1"), 2.0, {.spread = 1.25}), Verdict::kPass);
  EXPECT_EQ(verdict_of(goal_part("G1"), 1.99, {.spread = 1.25}), Verdict::kFail);
  EXPECT_EQ(verdict_of(goal_part("G17"), 1.15, {.spread = 1}), Verdict::kPass);
  EXPECT_EQ(verdict_of(goal_part("G17"), 1.16, {.spread = 1.6}), Verdict::kFail);
  EXPECT_EQ(verdict_of(goal_part("G19", "thread"), 4097, {.spread = 9}), Verdict::kFail);
}

TEST(BenchVerdict, MissedGateOnOneThreadNeedsAQuietBaseline) {
  const Judgement judgement = judge(figure_of(goal_part("G1"), 1, {.spread = 1.26}), true);
  EXPECT_EQ(judgement.verdict, Verdict::kInconclusive);
  EXPECT_EQ(judgement.reason, "the baseline moved by 1.26, more than 1.25");
  EXPECT_EQ(verdict_of(goal_part("G1"), 1, {.spread = kNoNumber}), Verdict::kInconclusive);
}

TEST(BenchVerdict, MissedGateOfADeviceNeedsAQuietOne) {
  EXPECT_EQ(verdict_of(goal_part("G5", "W"), 0.5, {.spread = 1.6}), Verdict::kFail);
  EXPECT_EQ(judge(figure_of(goal_part("G5", "W"), 0.5, {.spread = 1.61}), true).reason,
            "the baseline moved by 1.61, more than 1.6");
  for (const auto& [id, part] : std::initializer_list<std::pair<std::string_view, std::string_view>>{
           {"G5", "W"}, {"G9", "R"}, {"G12", "B"}, {"G12", "N"}, {"G18", ""}})
    EXPECT_EQ(verdict_of(goal_part(id, part), 0.1, {.spread = 2}), Verdict::kInconclusive) << id;
  EXPECT_EQ(verdict_of(goal_part("G17"), 3, {.spread = 2}), Verdict::kInconclusive);
}

TEST(BenchVerdict, MissedGateOnTwoThreadsNeedsBothOfThemBeforeAndAfter) {
  const auto verdict = [](double before, double after) {
    return verdict_of(goal_part("G2"), 1, {.spread = 9, .gain_before = before, .gain_after = after});
  };
  EXPECT_EQ(verdict(1.7, 1.7), Verdict::kFail);
  EXPECT_EQ(verdict(1.69, 2.0), Verdict::kInconclusive);
  EXPECT_EQ(verdict(2.0, 1.69), Verdict::kInconclusive);
  EXPECT_EQ(verdict(2.0, kNoNumber), Verdict::kInconclusive);
  EXPECT_EQ(judge(figure_of(goal_part("G7"), 1, {.gain_before = 1.9, .gain_after = 1.2}), true).reason,
            "the machine gave 1.20 of two threads, less than 1.7");
}

TEST(BenchVerdict, WhatIsReachedPassesWhateverTheMachineDid) {
  EXPECT_EQ(verdict_of(goal_part("G1"), 2.5, {.spread = 3}), Verdict::kPass);
  EXPECT_EQ(verdict_of(goal_part("G2"), 3.5, {.gain_before = 1, .gain_after = 1}), Verdict::kPass);
}

TEST(BenchVerdict, FigureWithoutAGateDoesNotFail) {
  const Judgement judgement = judge(figure_of(goal_part("G9", "N"), 0.1, {.spread = 1}), true);
  EXPECT_EQ(judgement.verdict, Verdict::kPass);
  EXPECT_EQ(judgement.reached, Reached::kNone);
}

TEST(BenchVerdict, FigureThatProvesNothingIsInconclusiveWhateverItIs) {
  for (const double ratio : {0.1, 100.0}) {
    Figure figure = figure_of(goal_part("G5", "W"), ratio);
    figure.not_valid = "files lie in memory";
    const Judgement judgement = judge(figure, true);
    EXPECT_EQ(judgement.verdict, Verdict::kInconclusive);
    EXPECT_EQ(judgement.reason, "files lie in memory");
  }
}

TEST(BenchVerdict, FigureThatWasNotMeasuredReachesNothing) {
  // A ratio of 0 would be within any bar that is an upper one.
  const Figure figure{.part = &goal_part("G17"), .not_valid = "no disk", .measured = false};
  const Judgement judgement = judge(figure, true);
  EXPECT_EQ(judgement.verdict, Verdict::kInconclusive);
  EXPECT_EQ(judgement.reached, Reached::kNone);
  EXPECT_EQ(judgement.reason, "no disk");
}

TEST(BenchVerdict, NarrowMachineIsJudgedByNarrowBars) {
  EXPECT_EQ(judge(figure_of(goal_part("G1"), 1.6), true).verdict, Verdict::kFail);
  EXPECT_EQ(judge(figure_of(goal_part("G1"), 1.6), false).verdict, Verdict::kPass);
}

}  // namespace
}  // namespace bench_verdict_test
}  // namespace kvpack::cli::bench
