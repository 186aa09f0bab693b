#include "cli/bench/rounds.h"

#include <gtest/gtest.h>

namespace kvpack::cli::bench {
namespace bench_rounds_test {
namespace {

/// Variants that take as long as a script says, on a clock of their own.
struct Stage {
  double now = 0;
  std::vector<std::string> calls{};
  std::vector<unsigned> cores{};

  Variant variant(const std::string& name, std::vector<double> seconds) {
    return {.work = [this, name, seconds, at = std::size_t{0}]() mutable -> Status {
              calls.push_back(name);
              now += seconds[at++ % seconds.size()];
              return success();
            },
            .cores = 1,
            .before = [this]() -> Status {
              now += 1'000;
              return success();
            },
            .after = [this]() -> Status {
              now += 1'000;
              return success();
            }};
  }
  RoundLoop loop(std::size_t rounds) {
    return {.rounds = rounds,
            .clock = [this] { return now; },
            .use_cores = [this](unsigned count) { cores.push_back(count); }};
  }
};

TEST(BenchRounds, EveryRoundBeginsWithAnotherVariantBehindOneThatDoesNotCount) {
  Stage stage;
  const std::vector<Variant> variants{stage.variant("a", {9, 1}), stage.variant("b", {9, 2}),
                                      stage.variant("c", {9, 3})};
  const auto samples = run_rounds(variants, stage.loop(4));
  ASSERT_TRUE(samples.has_value());
  EXPECT_EQ(stage.calls, (std::vector<std::string>{"a", "b", "c", "a", "b", "c", "b", "c", "a", "c", "a", "b",
                                                   "a", "b", "c"}));
  EXPECT_EQ(samples->rounds(), 4U);
}

TEST(BenchRounds, OnlyTheWorkIsTimed) {
  Stage stage;
  const std::vector<Variant> variants{stage.variant("a", {7, 1, 2, 3})};
  const auto samples = run_rounds(variants, stage.loop(3));
  ASSERT_TRUE(samples.has_value());
  EXPECT_EQ(samples->seconds[0], (std::vector<double>{1, 2, 3}));
}

TEST(BenchRounds, EachVariantGetsItsCores) {
  Stage stage;
  std::vector<Variant> variants{stage.variant("a", {1}), stage.variant("b", {1})};
  variants[1].cores = 2;
  ASSERT_TRUE(run_rounds(variants, stage.loop(2)).has_value());
  EXPECT_EQ(stage.cores, (std::vector<unsigned>{1, 2, 1, 2, 2, 1}));
}

TEST(BenchRounds, AnErrorEndsTheRunBehindItsCleaningUp) {
  Stage stage;
  int cleaned = 0;
  const std::vector<Variant> variants{{.work = []() -> Status { return fail(ErrorCode::kIo, "no room"); },
                                       .after = [&]() -> Status {
                                         ++cleaned;
                                         return fail(ErrorCode::kIo, "and no broom");
                                       }}};
  const auto samples = run_rounds(variants, stage.loop(3));
  ASSERT_FALSE(samples.has_value());
  EXPECT_EQ(samples.error().message, "no room");
  EXPECT_EQ(cleaned, 1);
}

TEST(BenchRounds, WhatComesBeforeMayFailToo) {
  Stage stage;
  const std::vector<Variant> variants{
      {.work = []() -> Status { return success(); },
       .before = []() -> Status { return fail(ErrorCode::kIo, "no place"); }}};
  const auto samples = run_rounds(variants, stage.loop(3));
  ASSERT_FALSE(samples.has_value());
  EXPECT_EQ(samples.error().message, "no place");
}

TEST(BenchRounds, RoundThatTimeDoesNotSufficeForIsDropped) {
  // Two turns warm up, two are a round.
  for (const auto& [turns, rounds] : std::initializer_list<std::pair<int, std::size_t>>{
           {0, 0}, {1, 0}, {2, 0}, {3, 0}, {4, 1}, {5, 1}, {6, 2}, {100, 5}}) {
    Stage stage;
    RoundLoop loop = stage.loop(5);
    loop.out_of_time = [&stage, most = static_cast<std::size_t>(turns)] {
      return stage.calls.size() >= most;
    };
    const std::vector<Variant> variants{stage.variant("a", {1}), stage.variant("b", {1})};
    const auto samples = run_rounds(variants, loop);
    ASSERT_TRUE(samples.has_value());
    EXPECT_EQ(stage.calls.size(), std::min<std::size_t>(static_cast<std::size_t>(turns), 12)) << turns;
    for (const std::vector<double>& seconds : samples->seconds) EXPECT_EQ(seconds.size(), rounds) << turns;
  }
}

TEST(BenchRounds, RatioIsMedianOverMedianAndItsRangeThatOfTheRounds) {
  const Samples samples{{{10, 20, 30}, {5, 4, 30}}};
  const Ratio ratio = ratio_of(samples, {0}, {1});
  EXPECT_DOUBLE_EQ(ratio.median, 20.0 / 5);
  EXPECT_DOUBLE_EQ(ratio.min, 1);
  EXPECT_DOUBLE_EQ(ratio.max, 5);
}

TEST(BenchRounds, RatiosOfSumsTakeTheMediansOfTheirParts) {
  const Samples samples{{{1, 2, 9}, {4, 3, 8}, {2, 4, 1}}};
  const Term numerator[]{{0}, {1, 2}};
  const Term denominator[]{{2, 3}};
  const Ratio ratio = ratio_of(samples, numerator, denominator);
  EXPECT_DOUBLE_EQ(ratio.median, (2.0 + 2 * 4) / (3 * 2));
  EXPECT_DOUBLE_EQ(ratio.min, (2.0 + 2 * 3) / 12);
  EXPECT_DOUBLE_EQ(ratio.max, (9.0 + 2 * 8) / 3);
}

TEST(BenchRounds, MedianOfAnEvenNumberIsTheUpperOfTheTwo) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 2, 3}), 3);
  EXPECT_EQ(median({7}), 7);
}

TEST(BenchRounds, RateIsOverTheMedianAndItsRangeOverTheExtremes) {
  const Ratio rate = rate_of({{{1, 1}, {4, 2, 8}}}, 1, 16);
  EXPECT_DOUBLE_EQ(rate.median, 4);
  EXPECT_DOUBLE_EQ(rate.min, 2);
  EXPECT_DOUBLE_EQ(rate.max, 8);
}

TEST(BenchRounds, SpreadIsSlowestOverFastest) {
  EXPECT_DOUBLE_EQ(spread_of({{{4, 2, 3}}}, 0), 2);
  EXPECT_DOUBLE_EQ(spread_of({{{5}}}, 0), 1);
}

}  // namespace
}  // namespace bench_rounds_test
}  // namespace kvpack::cli::bench
