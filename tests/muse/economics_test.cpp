#include "kvpack/muse/economics.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <thread>

#include "muse/muse_vectors.h"

namespace kvpack::muse {
namespace economics_test {

using muse::testing::vector_at;

// The text of a number that the vectors hold as a decimal fraction.
constexpr double kRatios[] = {10.0, 20.0, 20.0};
constexpr double kAverages[] = {10.0, 12.5, 14.375};

TEST(MuseEconomics, BytesOfACutAreTheKnownOnes) {
  const JsonObject& answers = *vector_at({"economics", "kv_bytes"}).as_object();
  ASSERT_GE(answers.size(), 13U);
  for (const JsonMember& answer : answers)
    EXPECT_EQ(kv_bytes(std::stoull(answer.key)), *answer.value.as_unsigned()) << answer.key;
}

TEST(MuseEconomics, WorkAvoidedIsLinearInTokens) {
  EXPECT_EQ(gflops_floor(0), 0.0);
  EXPECT_EQ(gflops_floor(1), 60.0);
  EXPECT_EQ(gflops_floor(256), 15'360.0);
  EXPECT_EQ(gflops_floor(4000), 240'000.0);
}

TEST(MuseEconomics, EverythingBeginsAtZero) {
  const Economics economics;
  EXPECT_EQ(economics.report(), EconomicsReport{});
  EXPECT_EQ(economics.report().hit_rate(), 0.0);
}

TEST(MuseEconomics, RestoresWithoutTimesGiveNoSpeedup) {
  Economics economics;
  economics.record_restore(256, EconomicsTier::kSsd);
  economics.record_restore(256, EconomicsTier::kSsd);
  economics.record_prefill_miss(17);
  const EconomicsReport report = economics.report();
  EXPECT_EQ(report.hit_rate(), 2.0 / 3.0);
  EXPECT_EQ(report.restore_speedup, 0.0);
  EXPECT_FALSE(report.restore_speedup_measured);
  EXPECT_EQ(report.seconds_saved, 0.0);
  EXPECT_EQ(report.gflops_avoided, 0.0);
  EXPECT_EQ(report.restore_ops, 2U);
  EXPECT_EQ(report.prefill_ops, 1U);
  EXPECT_EQ(report.bytes_served_from_cache, 2 * kv_bytes(256));
  EXPECT_EQ(report.tiers[1], (TierEconomics{2 * kv_bytes(256), 0, 2}));
  EXPECT_EQ(report.tiers[0], TierEconomics{});
  EXPECT_EQ(report.tiers[2], TierEconomics{});
}

TEST(MuseEconomics, ASuffixIsWorkAndNoMiss) {
  Economics economics;
  economics.record_restore(256, EconomicsTier::kResident);
  economics.record_prefill_suffix(17);
  const EconomicsReport report = economics.report();
  EXPECT_EQ(report.cache_hits, 1U);
  EXPECT_EQ(report.cache_misses, 0U);
  EXPECT_EQ(report.bytes_recomputed, 905'216U);
  EXPECT_EQ(report.prefill_ops, 1U);
}

TEST(MuseEconomics, ManifestBytesAreTakenAsTheyAre) {
  Economics economics;
  economics.record_restore(256, EconomicsTier::kRemote, 14'439'680);
  economics.record_restore(0, EconomicsTier::kRemote, 0);
  EXPECT_EQ(economics.report().bytes_served_from_cache, 14'439'680U);
  EXPECT_EQ(economics.report().tiers[2], (TierEconomics{14'439'680, 0, 2}));
}

TEST(MuseEconomics, SpeedupIsAMovingAverage) {
  Economics economics;
  for (std::size_t i = 0; i < std::size(kRatios); ++i) {
    economics.record_restore(100, EconomicsTier::kSsd, {}, RestoreTiming{kRatios[i] * 0.5, 0.5});
    EXPECT_EQ(economics.report().restore_speedup, kAverages[i]);
    EXPECT_TRUE(economics.report().restore_speedup_measured);
  }
  EXPECT_EQ(economics.report().seconds_saved, 4.5 + 9.5 + 9.5);
  EXPECT_EQ(economics.report().gflops_avoided, 3 * 6000.0);
}

TEST(MuseEconomics, ASlowRestoreSavesNothingAndTakesNothingAway) {
  Economics economics;
  economics.record_restore(1, EconomicsTier::kSsd, {}, RestoreTiming{1.0, 4.0});
  EXPECT_EQ(economics.report().restore_speedup, 0.25);
  EXPECT_EQ(economics.report().seconds_saved, 0.0);
}

TEST(MuseEconomics, TimesThatAreNoTimesDoNotCount) {
  Economics economics;
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const RestoreTiming& timing : {RestoreTiming{0, 1}, RestoreTiming{1, 0}, RestoreTiming{-1, 1},
                                      RestoreTiming{1, -1}, RestoreTiming{kNan, 1}, RestoreTiming{1, kNan},
                                      RestoreTiming{kInfinity, 1}, RestoreTiming{1, kInfinity}})
    economics.record_restore(1, EconomicsTier::kSsd, {}, timing);
  EXPECT_EQ(economics.report().cache_hits, 8U);
  EXPECT_FALSE(economics.report().restore_speedup_measured);
  EXPECT_EQ(economics.report().gflops_avoided, 0.0);
}

TEST(MuseEconomics, ContinuationsAndTransfersTouchNoHitsBytesOrTiers) {
  Economics economics;
  economics.record_session_continuation(100);
  economics.record_disagg_prefill(100, 5'324'800);
  EconomicsReport expected;
  expected.session_continuation_hits = 1;
  expected.disagg_prefills = 1;
  expected.disagg_bytes_installed = 5'324'800;
  EXPECT_EQ(economics.report(), expected);
}

TEST(MuseEconomics, EventsWithoutTokensAreNone) {
  Economics economics;
  economics.record_prefill_suffix(0);
  economics.record_session_continuation(0);
  economics.record_disagg_prefill(0, 99);
  EXPECT_EQ(economics.report(), EconomicsReport{});
}

TEST(MuseEconomics, CountersSaturate) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
  Economics economics;
  economics.record_restore(1, EconomicsTier::kSsd, kMost - 1);
  economics.record_restore(1, EconomicsTier::kSsd, 5);
  economics.record_disagg_prefill(1, kMost);
  economics.record_disagg_prefill(1, 1);
  for (int i = 0; i < 8; ++i) economics.record_prefill_miss(kMost);
  const EconomicsReport report = economics.report();
  EXPECT_EQ(report.bytes_served_from_cache, kMost);
  EXPECT_EQ(report.tiers[1].resident_bytes, kMost);
  EXPECT_EQ(report.disagg_bytes_installed, kMost);
  EXPECT_EQ(report.bytes_recomputed, kMost);
  EXPECT_EQ(report.cache_misses, 8U);
}

TEST(MuseEconomics, ThreadsCountTogether) {
  Economics economics;
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&economics] {
        for (int i = 0; i < 500; ++i) {
          economics.record_restore(1, EconomicsTier::kSsd, 1);
          economics.record_prefill_miss(0);
        }
      });
  }
  EXPECT_EQ(economics.report().cache_hits, 2000U);
  EXPECT_EQ(economics.report().cache_misses, 2000U);
  EXPECT_EQ(economics.report().bytes_served_from_cache, 2000U);
}

TEST(MuseEconomics, JsonHasTheKnownNames) {
  Economics economics;
  economics.record_restore(256, EconomicsTier::kSsd, 1000, RestoreTiming{2.5, 1.0});
  economics.record_restore(256, EconomicsTier::kResident, 10);
  economics.record_prefill_miss(17);
  economics.record_session_continuation(3);
  economics.record_disagg_prefill(4, 50);
  EXPECT_EQ(
      economics_json(economics.report()),
      "{\"cache_hits\":2,\"cache_misses\":1,\"hit_rate\":0.6666666666666666,"
      "\"bytes_served_from_cache\":1010,\"bytes_recomputed\":905216,\"restore_ops\":2,\"prefill_ops\":1,"
      "\"restore_speedup\":2.5,"
      "\"derived\":{\"seconds_saved\":1.5,\"gflops_avoided\":15360,\"joules_saved\":0},"
      "\"tiers\":{\"resident\":{\"resident_bytes\":10,\"capacity_bytes\":0,\"hits\":1},"
      "\"ssd\":{\"resident_bytes\":1000,\"capacity_bytes\":0,\"hits\":1},"
      "\"remote\":{\"resident_bytes\":0,\"capacity_bytes\":0,\"hits\":0}},"
      "\"session_continuation_hits\":1,\"disagg_prefills\":1,\"disagg_bytes_installed\":50}");
  EXPECT_TRUE(parse_json_document(byte_view(economics_json(economics.report()))).has_value());
}

TEST(MuseEconomics, SourcesOfTheLadderAreCountedUnderTheirTier) {
  EXPECT_EQ(economics_tier(ReuseSource::kResident), EconomicsTier::kResident);
  EXPECT_EQ(economics_tier(ReuseSource::kDurable), EconomicsTier::kSsd);
  EXPECT_EQ(economics_tier(ReuseSource::kRemote), EconomicsTier::kRemote);
  EXPECT_EQ(economics_tier(ReuseSource::kCurrentSession), std::nullopt);
  EXPECT_EQ(economics_tier(ReuseSource::kMiss), std::nullopt);
}

// --- moving or computing
// ----------------------------------------------------------------------------------------

MoveCosts costs(double prefill, double wire, std::optional<double> verify = std::nullopt, double fixed = 0) {
  return {prefill, wire, verify, fixed};
}

TEST(MuseBreakEven, TwoHundredFiftySixTokensAtKnownRates) {
  const MoveCosts known = costs(900, 0.5e9, 1.5e9);
  EXPECT_NEAR(move_seconds(known, 256), 0.036, 0.0005);
  EXPECT_NEAR(recompute_seconds(known, 256), 0.284, 0.0005);
  EXPECT_EQ(break_even_tokens(known), 256U);
}

TEST(MuseBreakEven, EveryTokenInTheWindowCostsTheSame) {
  const MoveCosts some = costs(900, 1e9, std::nullopt, 0.5);
  EXPECT_DOUBLE_EQ(move_seconds(some, 0), 0.5);
  EXPECT_DOUBLE_EQ(move_seconds(some, 2048), 0.5 + 2048 * 53'248 / 1e9);
  EXPECT_DOUBLE_EQ(move_seconds(some, 2049), 0.5 + (2048 * 53'248.0 + 13'312) / 1e9);
}

// By the closed form: below the window, then beyond it.
std::optional<double> closed_form(const MoveCosts& c) {
  const double k = c.seconds_per_byte(), per_token = 1 / c.prefill_tokens_per_second;
  const double inside = per_token - 53'248 * k, beyond = per_token - 13'312 * k;
  if (inside > 0) {
    const double tokens = c.fixed_seconds / inside;
    if (tokens < 2048) return tokens;
  }
  if (beyond > 0) return (c.fixed_seconds + 81'788'928 * k) / beyond;
  return std::nullopt;
}

TEST(MuseBreakEven, AgreesWithTheClosedForm) {
  int reached = 0, never = 0;
  for (const double prefill : {100.0, 900.0, 3'000.0, 20'000.0, 60'000.0})
    for (const double wire : {1e6, 5e7, 1.2e8, 5e8, 9e8, 1.25e9})
      for (const double fixed : {0.0, 0.01, 0.7, 30.0}) {
        const MoveCosts c = costs(prefill, wire, 1.5e9, fixed);
        const auto exact = closed_form(c);
        const auto found = break_even_tokens(c);
        if (!exact || *exact >= 131'072) {
          EXPECT_EQ(found, std::nullopt) << prefill << " " << wire << " " << fixed;
          ++never;
          continue;
        }
        ASSERT_TRUE(found.has_value()) << prefill << " " << wire << " " << fixed;
        EXPECT_EQ(*found % 256, 0U);
        EXPECT_GT(static_cast<double>(*found), *exact);
        EXPECT_LE(static_cast<double>(*found), *exact + 256);
        ++reached;
      }
  EXPECT_GT(reached, 20);
  EXPECT_GT(never, 20);
}

TEST(MuseBreakEven, MayComeBeyondTheWindowOnly) {
  // 53,248 bytes for each token are dearer than computing it, 13,312 are cheaper.
  const MoveCosts c = costs(10'000, 3e8);
  EXPECT_GT(move_seconds(c, 2048), recompute_seconds(c, 2048));
  const auto tokens = break_even_tokens(c);
  ASSERT_TRUE(tokens.has_value());
  EXPECT_GT(*tokens, 2048U);
  EXPECT_LT(move_seconds(c, *tokens), recompute_seconds(c, *tokens));
  EXPECT_GE(move_seconds(c, *tokens - 256), recompute_seconds(c, *tokens - 256));
}

}  // namespace economics_test
}  // namespace kvpack::muse
