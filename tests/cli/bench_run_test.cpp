#include "cli/bench/bench_run.h"

#include <gtest/gtest.h>

namespace kvpack::cli::bench {
namespace bench_run_test {
namespace {

constexpr double kLimit = 10;

/// A run whose time goes by only when a variant is at work.
class Timed {
 public:
  Timed() : run_(fs_, options(), kOpensslSha256, [this](const std::string&) { ++reports_; }) {}

  BenchRun& run() { return run_; }
  int reports() const { return reports_; }
  void pass(double seconds) { now_ += seconds; }
  Variant taking(double seconds) {
    return {.work = [this, seconds]() -> Status {
      pass(seconds);
      return success();
    }};
  }

 private:
  BenchOptions options() {
    BenchOptions out;
    out.seconds = kLimit;
    out.now = [this] { return now_; };
    return out;
  }

  double now_ = 1'000;
  int reports_ = 0;
  SystemFileSystem fs_{};
  BenchRun run_;
};

TEST(BenchRun, ATurnIsTheMostThatTheLimitIsExceededBy) {
  Timed timed;
  const std::vector<Variant> variants{timed.taking(2), timed.taking(1)};
  const auto samples = timed.run().measure("x", variants, wall_seconds);
  ASSERT_TRUE(samples.has_value());
  // Three seconds warm up; two rounds fit behind them, and a turn of the third, which is begun in time.
  EXPECT_EQ(samples->rounds(), 2U);
  EXPECT_EQ(samples->seconds[1].size(), 2U);
  EXPECT_EQ(timed.run().seconds_used(), kLimit + 1);
}

TEST(BenchRun, FewRoundsMakeAFigureInconclusive) {
  Timed timed;
  const std::vector<Variant> variants{timed.taking(2), timed.taking(1)};
  const auto samples = timed.run().measure("x", variants, wall_seconds);
  ASSERT_TRUE(samples.has_value());
  timed.run().add({.part = &goal_part("G1"), .ratio = {9, 9, 9}}, *samples);
  const Figure& figure = timed.run().figures().back();
  EXPECT_TRUE(figure.measured);
  EXPECT_EQ(figure.not_valid, "2 rounds within the time, fewer than 5");
  EXPECT_EQ(judge(figure, true).verdict, Verdict::kInconclusive);
}

TEST(BenchRun, WarmingUpIsWithinTheLimitToo) {
  Timed timed;
  const std::vector<Variant> variants{timed.taking(6), timed.taking(6), timed.taking(6)};
  const auto samples = timed.run().measure("x", variants, wall_seconds);
  ASSERT_TRUE(samples.has_value());
  EXPECT_EQ(samples->rounds(), 0U);
  EXPECT_EQ(timed.run().seconds_used(), 12);
  // Whatever else could be said against the figure.
  for (const char* not_valid : {"", "less data than the goal speaks of"}) {
    timed.run().add({.part = &goal_part("G1"), .not_valid = not_valid}, *samples);
    EXPECT_FALSE(timed.run().figures().back().measured);
    EXPECT_EQ(timed.run().figures().back().not_valid, "0 rounds within the time, fewer than 5");
  }
}

TEST(BenchRun, NothingIsBegunBehindTheLimit) {
  Timed timed;
  EXPECT_TRUE(timed.run().time_left().has_value());
  timed.pass(kLimit);
  const Status left = timed.run().time_left();
  ASSERT_FALSE(left.has_value());
  EXPECT_EQ(left.error().code, ErrorCode::kIo);
  EXPECT_EQ(left.error().message, "no time is left");
  const std::vector<Variant> variants{timed.taking(1)};
  const auto samples = timed.run().measure("x", variants, wall_seconds);
  ASSERT_TRUE(samples.has_value());
  EXPECT_EQ(samples->rounds(), 0U);
  EXPECT_EQ(timed.reports(), 0);
  EXPECT_EQ(*timed.run().two_thread_gain(), 0);
  EXPECT_EQ(timed.run().seconds_used(), kLimit);
}

}  // namespace
}  // namespace bench_run_test
}  // namespace kvpack::cli::bench
