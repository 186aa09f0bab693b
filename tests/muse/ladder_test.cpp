#include "kvpack/muse/ladder.h"

#include <gtest/gtest.h>

#include <ostream>

namespace kvpack::muse {

// How a failed comparison is shown.
static void PrintTo(const LadderChoice& choice, std::ostream* out) {
  static const char* const kNames[] = {"miss", "session", "resident", "durable", "remote"};
  *out << kNames[static_cast<std::size_t>(choice.source)] << " " << choice.cut;
}

namespace ladder_test {

using enum ReuseSource;

constexpr LadderRules kDeepestRules{};
constexpr LadderRules kUpstreamRules{ReuseMode::kUpstream, kBlockTokens};

LadderChoice deepest(const LadderFound& found) {
  return choose_local(kDeepestRules, found);
}
LadderChoice upstream(const LadderFound& found) {
  return choose_local(kUpstreamRules, found);
}

// With a durable tier.
LadderFound with_store(std::uint64_t request, std::uint64_t current, std::uint64_t durable,
                       std::uint64_t resident) {
  return {.request_tokens = request,
          .current_cut = current,
          .current_has_logits = true,
          .has_durable = true,
          .durable_cut = durable,
          .resident_cut = resident,
          .resident_has_logits = true};
}

TEST(Ladder, ServesTheDeepestCutThatIsWorthIt) {
  EXPECT_EQ(deepest(with_store(5000, 300, 4096, 0)), (LadderChoice{kDurable, 4096}));
  EXPECT_EQ(upstream(with_store(5000, 300, 4096, 0)), (LadderChoice{kCurrentSession, 300}));
  EXPECT_EQ(deepest(with_store(5000, 0, 512, 256)), (LadderChoice{kDurable, 512}));
  EXPECT_EQ(upstream(with_store(5000, 0, 512, 256)), (LadderChoice{kResident, 256}));
  EXPECT_EQ(deepest(with_store(5000, 0, 256, 256)), (LadderChoice{kResident, 256}));
  EXPECT_EQ(deepest(with_store(5000, 0, 256, 0)), (LadderChoice{kDurable, 256}));
  EXPECT_EQ(deepest(with_store(5000, 0, 512, 512)), (LadderChoice{kResident, 512}));
  EXPECT_EQ(deepest(with_store(5000, 0, 0, 0)), (LadderChoice{kMiss, 0}));
  EXPECT_EQ(deepest(with_store(5000, 4000, 4096, 0)), (LadderChoice{kCurrentSession, 4000}));
  EXPECT_EQ(deepest(with_store(5000, 3840, 4096, 0)), (LadderChoice{kDurable, 4096}));
  EXPECT_EQ(deepest(with_store(5000, 3841, 4096, 0)), (LadderChoice{kCurrentSession, 3841}));
  EXPECT_EQ(deepest(with_store(100, 0, 100, 0)), (LadderChoice{kDurable, 100}));
  EXPECT_EQ(deepest(with_store(768, 0, 768, 0)), (LadderChoice{kDurable, 768}));
}

TEST(Ladder, WithoutAStoreTheResidentTierStandsAlone) {
  LadderFound found = with_store(600, 0, 0, 512);
  found.has_durable = false;
  EXPECT_EQ(deepest(found), (LadderChoice{kResident, 512}));
  EXPECT_EQ(upstream(found), (LadderChoice{kResident, 512}));
  found.durable_cut = 600;  // of a tier that is not there
  EXPECT_EQ(deepest(found), (LadderChoice{kResident, 512}));
}

TEST(Ladder, AResidentCutIsNeverBelievedBeyondTheStore) {
  for (const LadderRules& rules : {kDeepestRules, kUpstreamRules}) {
    EXPECT_EQ(choose_local(rules, with_store(600, 0, 256, 512)), (LadderChoice{kDurable, 256}));
    EXPECT_EQ(choose_local(rules, with_store(600, 0, 0, 512)), (LadderChoice{kMiss, 0}));
    EXPECT_EQ(choose_local(rules, with_store(600, 0, 599, 600)), (LadderChoice{kDurable, 599}));
  }
  EXPECT_EQ(resident_cap(true, 0), 0U);
  EXPECT_EQ(resident_cap(true, 300), 300U);
  EXPECT_EQ(resident_cap(false, 0), std::numeric_limits<std::uint64_t>::max());
}

TEST(Ladder, AWholeRequestNeedsItsFinalLogits) {
  LadderFound found = with_store(768, 0, 768, 768);
  EXPECT_EQ(deepest(found), (LadderChoice{kResident, 768}));
  found.resident_has_logits = false;
  EXPECT_EQ(deepest(found), (LadderChoice{kDurable, 768}));
  EXPECT_EQ(upstream(found), (LadderChoice{kDurable, 768}));
  found.request_tokens = 769;  // an ancestor needs none
  EXPECT_EQ(deepest(found), (LadderChoice{kResident, 768}));
  EXPECT_EQ(upstream(found), (LadderChoice{kResident, 768}));
}

TEST(Ladder, ASessionWithoutLogitsIsServedUpToItsLastToken) {
  LadderFound found = with_store(768, 768, 0, 0);
  found.current_has_logits = false;
  EXPECT_EQ(deepest(found), (LadderChoice{kCurrentSession, 767}));
  EXPECT_EQ(upstream(found), (LadderChoice{kCurrentSession, 768}));  // its caller looks at the logits
  found.durable_cut = 768;
  EXPECT_EQ(deepest(found), (LadderChoice{kCurrentSession, 767}));
  found.request_tokens = 800;
  EXPECT_EQ(deepest(found), (LadderChoice{kCurrentSession, 768}));
  found = with_store(1, 1, 0, 0);
  found.current_has_logits = false;
  EXPECT_EQ(deepest(found), (LadderChoice{kMiss, 0}));
}

TEST(Ladder, ALivePrefixWinsOverAllUnderUpstreamRules) {
  EXPECT_EQ(upstream(with_store(600, 256, 599, 512)), (LadderChoice{kCurrentSession, 256}));
}

TEST(Ladder, RemoteIsAskedWhenEnoughIsLeft) {
  EXPECT_TRUE(asks_remote(kDeepestRules, 256, {}));
  EXPECT_FALSE(asks_remote(kDeepestRules, 255, {}));
  EXPECT_TRUE(asks_remote(kDeepestRules, 1024, {kDurable, 768}));
  EXPECT_FALSE(asks_remote(kDeepestRules, 1023, {kDurable, 768}));
  EXPECT_FALSE(asks_remote(kDeepestRules, 768, {kDurable, 768}));
  EXPECT_TRUE(takes_remote(kDeepestRules, {kDurable, 768}, 1024));
  EXPECT_FALSE(takes_remote(kDeepestRules, {kDurable, 768}, 1023));
  EXPECT_FALSE(takes_remote(kDeepestRules, {kDurable, 768}, 0));
  EXPECT_TRUE(takes_remote(kDeepestRules, {}, 256));
  EXPECT_FALSE(takes_remote(kDeepestRules, {}, 255));
}

TEST(Ladder, UnderUpstreamRulesAnyLocalHitKeepsRemoteFromBeingAsked) {
  EXPECT_FALSE(asks_remote(kUpstreamRules, 100'000, {kResident, 1}));
  EXPECT_TRUE(asks_remote(kUpstreamRules, 1, {}));
  EXPECT_TRUE(takes_remote(kUpstreamRules, {}, 1));
  EXPECT_FALSE(takes_remote(kUpstreamRules, {}, 0));
  EXPECT_FALSE(takes_remote(kUpstreamRules, {kResident, 1}, 500));
}

// The rules of either mode, said again in another way, over every small table.
class EveryTable : public ::testing::Test {
 protected:
  template <class Check>
  static void for_each(const Check& check) {
    std::size_t tables = 0;
    for (std::uint64_t request = 0; request <= 5; ++request)
      for (std::uint64_t current = 0; current <= request; ++current)
        for (std::uint64_t durable = 0; durable <= request; ++durable)
          for (std::uint64_t resident = 0; resident <= request; ++resident)
            for (unsigned flags = 0; flags < 8; ++flags) {
              const LadderFound found{request, current,  (flags & 1) != 0, (flags & 2) != 0,
                                      durable, resident, (flags & 4) != 0};
              for (std::uint64_t gain = 0; gain <= 4; ++gain) check(found, gain);
              ++tables;
            }
    EXPECT_EQ(tables, 8U * (1 + 8 + 27 + 64 + 125 + 216));
  }
  // A resident cut as far as it counts.
  static std::uint64_t usable_resident(const LadderFound& found) {
    if (found.has_durable && found.resident_cut > found.durable_cut) return 0;
    if (found.resident_cut == found.request_tokens && !found.resident_has_logits) return 0;
    return found.resident_cut;
  }
};

TEST_F(EveryTable, DeepestModeTakesNoTierOverACheaperOneForLessThanTheGain) {
  for_each([](const LadderFound& found, std::uint64_t gain) {
    const LadderChoice chosen = choose_local({ReuseMode::kDeepest, gain}, found);
    const std::uint64_t least = gain == 0 ? 1 : gain;
    const bool session_repeats_one = found.current_cut == found.request_tokens && !found.current_has_logits;
    const std::uint64_t c = found.current_cut == 0 ? 0 : found.current_cut - (session_repeats_one ? 1 : 0);
    const std::uint64_t r = usable_resident(found);
    const std::uint64_t d = found.has_durable ? found.durable_cut : 0;
    // Who is better of two, of which the first is cheaper.
    const auto dearer_wins = [&](std::uint64_t cheap, std::uint64_t dear) {
      return dear != 0 && (cheap == 0 || dear >= cheap + least);
    };
    const bool r_over_c = dearer_wins(c, r);
    const bool d_over_both = dearer_wins(r_over_c ? r : c, d);
    ASSERT_EQ(chosen.source == kDurable, d_over_both);
    ASSERT_EQ(chosen.source == kResident, r_over_c && !d_over_both);
    ASSERT_EQ(chosen.source == kCurrentSession, c != 0 && !r_over_c && !d_over_both);
    ASSERT_EQ(chosen.source == kMiss, c + r + d == 0);
    const std::uint64_t cuts[] = {0, c, r, d};
    ASSERT_EQ(chosen.cut, cuts[static_cast<std::size_t>(chosen.source)]);
    // Nothing that was left lying would have saved enough.
    ASSERT_LT(std::max({c, r, d}), chosen.cut + (chosen.cut == 0 ? 1 : least));
  });
}

TEST_F(EveryTable, UpstreamModeTakesTheFirstTierThatHasAnything) {
  for_each([](const LadderFound& found, std::uint64_t gain) {
    const LadderChoice chosen = choose_local({ReuseMode::kUpstream, gain}, found);
    LadderChoice expected;
    if (found.current_cut != 0) {
      expected = {kCurrentSession, found.current_cut};
    } else if (usable_resident(found) != 0) {
      expected = {kResident, found.resident_cut};
    } else if (found.has_durable && found.durable_cut != 0) {
      expected = {kDurable, found.durable_cut};
    }
    ASSERT_EQ(chosen, expected);
  });
}

TEST_F(EveryTable, RemoteIsAskedExactlyWhereItCouldGainEnough) {
  for_each([](const LadderFound& found, std::uint64_t gain) {
    for (const ReuseMode mode : {ReuseMode::kDeepest, ReuseMode::kUpstream}) {
      const LadderRules rules{mode, gain};
      const LadderChoice local = choose_local(rules, found);
      bool could_be_taken = false;
      for (std::uint64_t cut = 1; cut <= found.request_tokens; ++cut)
        could_be_taken = could_be_taken || takes_remote(rules, local, cut);
      const bool asked = asks_remote(rules, found.request_tokens, local);
      ASSERT_EQ(asked, could_be_taken);
      ASSERT_FALSE(takes_remote(rules, local, 0));
    }
  });
}

TEST_F(EveryTable, OneTierServesAndTheOthersSayWhyNot) {
  for_each([](const LadderFound& found, std::uint64_t gain) {
    for (const ReuseMode mode : {ReuseMode::kDeepest, ReuseMode::kUpstream}) {
      const LadderRules rules{mode, gain};
      const LadderChoice chosen = choose_local(rules, found);
      const auto reasons = why_passed_over(rules, found, chosen);
      for (std::size_t tier = 0; tier < reasons.size(); ++tier)
        ASSERT_EQ(reasons[tier] == PassedOver::kServed, tier + 1 == static_cast<std::size_t>(chosen.source));
      ASSERT_EQ(reasons[2] == PassedOver::kAbsent, !found.has_durable);
      ASSERT_EQ(std::ranges::count(reasons, PassedOver::kFailed), 0);
    }
  });
}

TEST(Ladder, ReasonsAreThoseOfTheRules) {
  using enum PassedOver;
  const auto reasons = [](const LadderRules& rules, const LadderFound& found) {
    return why_passed_over(rules, found, choose_local(rules, found));
  };
  using Reasons = std::array<PassedOver, 3>;
  EXPECT_EQ(reasons(kDeepestRules, with_store(5000, 300, 4096, 512)),
            (Reasons{kAnotherServed, kAnotherServed, kServed}));
  EXPECT_EQ(reasons(kDeepestRules, with_store(5000, 4000, 4096, 0)),
            (Reasons{kServed, kNothingFound, kGainTooSmall}));
  EXPECT_EQ(reasons(kUpstreamRules, with_store(5000, 300, 4096, 512)),
            (Reasons{kServed, kNotAsked, kNotAsked}));
  EXPECT_EQ(reasons(kUpstreamRules, with_store(5000, 0, 512, 256)),
            (Reasons{kNothingFound, kServed, kAnotherServed}));
  LadderFound found = with_store(768, 0, 768, 768);
  found.resident_has_logits = false;
  EXPECT_EQ(reasons(kDeepestRules, found), (Reasons{kNothingFound, kNoFinalLogits, kServed}));
  found.has_durable = false;
  EXPECT_EQ(reasons(kDeepestRules, found), (Reasons{kNothingFound, kNoFinalLogits, kAbsent}));
}

TEST(Ladder, TransferActions) {
  using enum TransferAction;
  EXPECT_EQ(transfer_action(511, 512), kServeLocal);
  EXPECT_EQ(transfer_action(512, 512), kServeLocal);
  EXPECT_EQ(transfer_action(256, 512), kArmDelta);
  EXPECT_EQ(transfer_action(255, 512), kFullTransfer);
  EXPECT_EQ(transfer_action(0, 512), kFullTransfer);
  EXPECT_EQ(transfer_action(0, 0), kFullTransfer);
  EXPECT_EQ(transfer_action(1, 1), kFullTransfer);
  EXPECT_EQ(transfer_action(1, 2), kServeLocal);
  EXPECT_EQ(transfer_action(256, 512, 0), kFullTransfer);
  EXPECT_EQ(transfer_action(256, 512, 128), kArmDelta);
  EXPECT_EQ(transfer_action(256, 512, 100), kFullTransfer);
  EXPECT_EQ(transfer_action(256, 257), kServeLocal);
  EXPECT_EQ(transfer_action(256, 258), kArmDelta);
}

TEST(Ladder, DeltasAreArmedFromTiersOnly) {
  for (const ReuseSource source : {kResident, kDurable, kRemote}) {
    EXPECT_TRUE(may_arm_delta(source, 256, 512));
    EXPECT_TRUE(may_arm_delta(source, 510, 512));
    EXPECT_FALSE(may_arm_delta(source, 511, 512));
    EXPECT_FALSE(may_arm_delta(source, 0, 0));
    EXPECT_FALSE(may_arm_delta(source, std::numeric_limits<std::uint64_t>::max(), 512));
  }
  EXPECT_FALSE(may_arm_delta(kCurrentSession, 256, 512));
  EXPECT_FALSE(may_arm_delta(kMiss, 0, 512));
}

}  // namespace ladder_test
}  // namespace kvpack::muse
