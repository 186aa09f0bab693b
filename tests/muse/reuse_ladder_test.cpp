#include "kvpack/muse/reuse_ladder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "support/muse_snapshots.h"

namespace kvpack::muse {
namespace reuse_ladder_test {

using kvpack::testing::counted_logits;
using kvpack::testing::counted_tokens;
using kvpack::testing::FakeSession;
using kvpack::testing::narrow_snapshot;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using enum ReuseSource;

constexpr ErrorCode kFine{};

Id32 manifest_of(std::uint64_t cut) {
  Id32 id = Id32::filled(0xaa);
  store_le<std::uint64_t>(id.bytes, 0, cut);
  return id;
}

// Makes a prefix of 0, 1, 2, .. live, as a tier would.
Result<std::uint64_t> install_prefix(LiveSession& session, std::uint64_t cut, bool with_logits) {
  const CacheSnapshot snapshot = narrow_snapshot(static_cast<std::size_t>(cut));
  if (with_logits) {
    KVPACK_TRY(install_exactly(session, snapshot, counted_logits()));
  } else {
    KVPACK_TRY(session.install(snapshot));
  }
  return payload_bytes(snapshot) + 128 * 4;
}

class FakeDurable final : public DurableRung {
 public:
  Id32 identity_digest() const override { return identity; }
  bool is_strict() const override { return strict; }
  Result<std::optional<RungCut>> find_deepest(std::span<const std::uint32_t> tokens) override {
    asked_for.push_back(tokens.size());
    if (find_error != kFine) return fail(find_error, "durable lookup");
    std::optional<RungCut> best;
    for (const auto& [cut, error] : cuts)
      if (cut <= tokens.size() && (cut == tokens.size() || cut % 256 == 0))
        best = RungCut{cut, manifest_of(cut)};
    if (beyond) best = RungCut{tokens.size() + 1, manifest_of(1)};
    return best;
  }
  Result<std::uint64_t> restore(LiveSession& session, const RungCut& cut,
                                std::span<const std::uint32_t> tokens, const std::stop_token&) override {
    EXPECT_EQ(cut.manifest_id, manifest_of(cut.cut));
    EXPECT_GE(tokens.size(), cut.cut);
    if (cuts.at(cut.cut) != kFine) {
      Error error = fail(cuts.at(cut.cut), "durable restore");
      // Of an engine's own failure nobody can say which object it is about.
      if (names_object) error.context.push_back({"object", cut.manifest_id.hex()});
      return error;
    }
    return install_prefix(session, cut.cut, gives_logits);
  }

  Id32 identity = Id32::filled(7);
  bool strict = false, gives_logits = true, beyond = false, names_object = true;
  ErrorCode find_error = kFine;
  std::map<std::uint64_t, ErrorCode> cuts{};  // and what their restore says
  std::vector<std::size_t> asked_for{};
};

class FakeRemote final : public RemoteRung {
 public:
  Result<std::optional<RungCut>> resolve(std::span<const std::uint32_t>, const std::stop_token&) override {
    calls.push_back("resolve");
    if (resolve_error != kFine) return fail(resolve_error, "remote resolve");
    if (cut == 0) return std::optional<RungCut>();
    return std::optional(RungCut{cut, manifest_of(cut)});
  }
  Result<std::uint64_t> fetch(const RungCut&, std::span<const std::uint32_t>,
                              const std::stop_token&) override {
    calls.push_back("fetch");
    if (fetch_error != kFine) return fail(fetch_error, "remote fetch");
    return std::uint64_t{77};
  }
  Result<std::uint64_t> restore(LiveSession& session, const RungCut& what, std::span<const std::uint32_t>,
                                const std::stop_token&) override {
    calls.push_back("restore");
    if (restore_error != kFine) return fail(restore_error, "remote restore");
    return install_prefix(session, what.cut, gives_logits);
  }

  std::uint64_t cut = 0;
  bool gives_logits = true;
  ErrorCode resolve_error = kFine, fetch_error = kFine, restore_error = kFine;
  std::vector<std::string> calls{};
};

class ReuseLadderTest : public ::testing::Test {
 protected:
  ReuseLadderTest() { session_.geometry_.elements_per_token = 1; }

  void make_live(std::size_t tokens, bool with_logits = true) {
    session_.live = narrow_snapshot(tokens);
    session_.final_logits = with_logits ? counted_logits() : std::vector<float>();
    session_.calls.clear();
  }
  void keep_resident(std::size_t tokens, bool with_logits = true) {
    const ResidentScope scope = has_durable_ ? ResidentScope(durable_.identity) : std::nullopt;
    const auto logits = counted_logits();
    const auto given = with_logits ? std::optional(std::span<const float>(logits)) : std::nullopt;
    ASSERT_TRUE(*resident_.insert(scope, narrow_snapshot(tokens), given));
  }
  void store(std::uint64_t cut, ErrorCode on_restore = kFine) { durable_.cuts[cut] = on_restore; }

  ReuseLadder ladder() {
    return ReuseLadder({.resident = &resident_,
                        .durable = has_durable_ ? &durable_ : nullptr,
                        .remote = has_remote_ ? &remote_ : nullptr},
                       {mode_, min_gain_});
  }
  ReuseReport prepared(std::size_t request) {
    auto report = ladder().prepare(session_, counted_tokens(request));
    EXPECT_TRUE(report.has_value()) << (report.has_value() ? "" : report.error().verdict());
    if (!report.has_value()) return {};
    EXPECT_EQ(report->request_tokens, request);
    EXPECT_EQ(report->tokens_to_compute, request - report->cut);
    if (report->source != kMiss && report->source != kCurrentSession) {
      EXPECT_EQ(*session_.live, narrow_snapshot(static_cast<std::size_t>(report->cut)));
    }
    return *std::move(report);
  }
  std::string served(std::size_t request) {
    const ReuseReport report = prepared(request);
    static const char* const kNames[] = {"miss", "session", "resident", "durable", "remote"};
    return kNames[static_cast<std::size_t>(report.source)] + (" " + std::to_string(report.cut));
  }
  std::string refused(std::size_t request) {
    const auto report = ladder().prepare(session_, counted_tokens(request));
    return report.has_value() ? "ok" : report.error().verdict();
  }

  FakeSession session_;
  ResidentTier resident_ = *ResidentTier::create();
  FakeDurable durable_;
  FakeRemote remote_;
  bool has_durable_ = true, has_remote_ = false;
  ReuseMode mode_ = ReuseMode::kDeepest;
  std::uint64_t min_gain_ = 256;
};

TEST_F(ReuseLadderTest, ALiveSessionIsGivenUpForADeeperCut) {
  make_live(300);
  store(4096);
  EXPECT_EQ(served(5000), "durable 4096");
  make_live(300);
  mode_ = ReuseMode::kUpstream;
  EXPECT_EQ(served(5000), "session 300");
  EXPECT_THAT(session_.calls, IsEmpty());
}

TEST_F(ReuseLadderTest, ResidentAndDurable) {
  store(512);
  keep_resident(256);
  EXPECT_EQ(served(600), "durable 512");
  mode_ = ReuseMode::kUpstream;
  EXPECT_EQ(served(600), "session 512");
  session_.live.reset();
  EXPECT_EQ(served(600), "resident 256");
}

TEST_F(ReuseLadderTest, ResidentIsBelievedAsDeepAsTheStore) {
  store(256);
  keep_resident(512);
  EXPECT_EQ(served(600), "durable 256");
  session_.live.reset();
  keep_resident(256);
  EXPECT_EQ(served(600), "resident 256");
  session_.live.reset();
  keep_resident(600);
  EXPECT_EQ(served(600), "resident 256");
}

TEST_F(ReuseLadderTest, AnExactResidentEntryIsNotBelievedBeyondTheStore) {
  store(256);
  keep_resident(600);
  for (const ReuseMode mode : {ReuseMode::kDeepest, ReuseMode::kUpstream}) {
    mode_ = mode;
    session_.live.reset();
    EXPECT_EQ(served(600), "durable 256");
  }
}

TEST_F(ReuseLadderTest, AStoreMissHidesTheResidentTier) {
  keep_resident(512);
  for (const ReuseMode mode : {ReuseMode::kDeepest, ReuseMode::kUpstream}) {
    mode_ = mode;
    EXPECT_EQ(served(600), "miss 0");
  }
  EXPECT_THAT(session_.calls, IsEmpty());
  EXPECT_EQ(resident_.stats().queries, 2U);
}

TEST_F(ReuseLadderTest, EqualDepthIsServedFromMemory) {
  store(512);
  keep_resident(512);
  EXPECT_EQ(served(600), "resident 512");
  session_.live.reset();
  durable_.identity = Id32::filled(8);  // another model, of which memory has nothing
  EXPECT_EQ(served(600), "durable 512");
}

TEST_F(ReuseLadderTest, WithoutAStoreMemoryServesUnscoped) {
  has_durable_ = false;
  keep_resident(512);
  EXPECT_EQ(served(600), "resident 512");
  const ReuseReport report = prepared(600);
  EXPECT_EQ(report.tier(kDurable), (TierReport{false, 0, PassedOver::kAbsent}));
}

TEST_F(ReuseLadderTest, AGainBelowTheLeastKeepsTheSession) {
  make_live(4000);
  store(4096);
  EXPECT_EQ(served(5000), "session 4000");
  min_gain_ = 96;
  EXPECT_EQ(served(5000), "durable 4096");
}

TEST_F(ReuseLadderTest, AnExactEntryWithoutLogitsDoesNotHideItsAncestor) {
  keep_resident(768, false);
  keep_resident(512);
  store(768);
  EXPECT_EQ(served(768), "durable 768");
  session_.live.reset();
  durable_.cuts.clear();
  store(512);
  EXPECT_EQ(served(768), "resident 512");
}

TEST_F(ReuseLadderTest, UnderUpstreamRulesItDoes) {
  mode_ = ReuseMode::kUpstream;
  keep_resident(768, false);
  keep_resident(512);
  has_durable_ = false;
  const ResidentScope unscoped;
  ASSERT_TRUE(*resident_.insert(unscoped, narrow_snapshot(768)));
  ASSERT_TRUE(*resident_.insert(unscoped, narrow_snapshot(512)));
  const ReuseReport report = prepared(768);
  EXPECT_EQ(report.source, kMiss);
  EXPECT_EQ(report.tier(kResident), (TierReport{true, 768, PassedOver::kNoFinalLogits}));
}

TEST_F(ReuseLadderTest, AShortRequestIsServedWhole) {
  store(100);
  EXPECT_EQ(served(100), "durable 100");
  EXPECT_EQ(session_.final_logits, counted_logits());
}

TEST_F(ReuseLadderTest, ExactResidentHitsBringTheirLogits) {
  has_durable_ = false;
  keep_resident(513, false);
  EXPECT_EQ(served(513), "miss 0");
  keep_resident(513);
  const ReuseReport report = prepared(513);
  EXPECT_EQ(report.source, kResident);
  EXPECT_EQ(report.tokens_to_compute, 0U);
  EXPECT_EQ(session_.final_logits, counted_logits());
  EXPECT_EQ(report.bytes_read, 104U * 513 * 2 + 512);
  session_.live.reset();
  EXPECT_EQ(served(514), "miss 0");
}

TEST_F(ReuseLadderTest, AncestorsComeWithoutLogits) {
  has_durable_ = false;
  keep_resident(512);
  const ReuseReport report = prepared(600);
  EXPECT_EQ(report.bytes_read, 104U * 512 * 2);
  EXPECT_TRUE(session_.final_logits.empty());
  EXPECT_THAT(session_.calls, ElementsAre("install"));
}

TEST_F(ReuseLadderTest, ASessionThatIsTheWholeRequestNeedsItsLogits) {
  has_durable_ = false;
  make_live(300);
  EXPECT_EQ(served(300), "session 300");
  make_live(300, false);
  EXPECT_EQ(served(300), "session 299");
  EXPECT_EQ(served(301), "session 300");
  mode_ = ReuseMode::kUpstream;
  EXPECT_EQ(served(300), "session 300");
}

TEST_F(ReuseLadderTest, ASessionThatPartsFromTheRequestIsNoPrefix) {
  has_durable_ = false;
  make_live(300);
  EXPECT_EQ(served(299), "miss 0");
  session_.live->tokens[7] = 999;
  EXPECT_EQ(served(400), "miss 0");
  EXPECT_EQ(session_.live->tokens[7], 999U);
}

TEST_F(ReuseLadderTest, AnEmptyRequestIsAMiss) {
  has_remote_ = true;
  remote_.cut = 256;
  for (const ReuseMode mode : {ReuseMode::kDeepest, ReuseMode::kUpstream}) {
    mode_ = mode;
    EXPECT_EQ(served(0), "miss 0");
  }
  EXPECT_THAT(remote_.calls, IsEmpty());
}

TEST_F(ReuseLadderTest, AStoreThatFailsFailsTheRequest) {
  keep_resident(512);
  durable_.find_error = ErrorCode::kCatalog;
  for (const ReuseMode mode : {ReuseMode::kDeepest, ReuseMode::kUpstream}) {
    mode_ = mode;
    EXPECT_EQ(refused(600), "catalog:durable lookup");
  }
  EXPECT_THAT(session_.calls, IsEmpty());
}

TEST_F(ReuseLadderTest, AStoreThatPointsOutsideTheRequestFailsIt) {
  durable_.beyond = true;
  EXPECT_EQ(refused(600), "expectation:durable prefix result is outside the request");
}

TEST_F(ReuseLadderTest, ADamagedCutIsReportedAndTheNextOneServes) {
  store(256);
  store(512, ErrorCode::kNotFound);
  store(800, ErrorCode::kAuthentication);
  keep_resident(512);
  const ReuseReport report = prepared(800);
  // 800 is damaged; down to 512 the store vouches again, and memory has it.
  EXPECT_EQ(report.source, kResident);
  EXPECT_EQ(report.cut, 512U);
  ASSERT_EQ(report.faults.size(), 1U);
  EXPECT_EQ(report.faults[0].tier, kDurable);
  EXPECT_EQ(report.faults[0].cut, 800U);
  EXPECT_EQ(report.faults[0].error.verdict(), "authentication:durable restore");
  EXPECT_EQ(report.tier(kDurable), (TierReport{true, 800, PassedOver::kFailed}));
  EXPECT_THAT(durable_.asked_for, ElementsAre(800, 768));
}

TEST_F(ReuseLadderTest, DamageLeadsDownToTheFirstWholeCut) {
  store(256);
  store(512, ErrorCode::kNotFound);
  store(700, ErrorCode::kCodec);
  const ReuseReport report = prepared(700);
  EXPECT_EQ(report.source, kDurable);
  EXPECT_EQ(report.cut, 256U);
  EXPECT_EQ(report.faults.size(), 2U);
  EXPECT_EQ(report.tier(kDurable).why, PassedOver::kServed);
  EXPECT_THAT(durable_.asked_for, ElementsAre(700, 512, 256));
}

TEST_F(ReuseLadderTest, DamageOfEverythingLeavesTheSession) {
  make_live(300);
  for (const std::uint64_t cut : {256U, 512U, 768U}) store(cut, ErrorCode::kIo);
  EXPECT_EQ(served(800), "session 300");  // 768 is tried; 512 gains less than 256
  EXPECT_THAT(durable_.asked_for, ElementsAre(800, 512));
  session_.live.reset();
  const ReuseReport report = prepared(800);
  EXPECT_EQ(report.source, kMiss);
  EXPECT_EQ(report.faults.size(), 3U);
  EXPECT_EQ(report.tier(kDurable).why, PassedOver::kFailed);
}

TEST_F(ReuseLadderTest, WhatConcernsMoreThanOneCutFailsTheRequest) {
  store(256);
  for (const ErrorCode code :
       {ErrorCode::kCatalog, ErrorCode::kState, ErrorCode::kQuota, ErrorCode::kCancelled,
        ErrorCode::kExpectation, ErrorCode::kInstall, ErrorCode::kPoisoned, ErrorCode::kInternal}) {
    store(512, code);
    EXPECT_EQ(refused(600), std::string(category_token(code)) + ":durable restore");
  }
}

TEST_F(ReuseLadderTest, AnEnginesFailureIsNoDamageOfACut) {
  store(256);
  durable_.names_object = false;
  for (const ErrorCode code : {ErrorCode::kIo, ErrorCode::kIntegrity, ErrorCode::kAuthentication}) {
    store(512, code);
    EXPECT_EQ(refused(600), std::string(category_token(code)) + ":durable restore");
  }
}

TEST_F(ReuseLadderTest, ACutThatIsGoneIsPassedOverByAStrictStoreToo) {
  store(256);
  store(512, ErrorCode::kNotFound);
  durable_.strict = true;
  EXPECT_EQ(served(600), "durable 256");
}

TEST_F(ReuseLadderTest, DamageIsAnErrorWhereTheStoreIsStrictAndUnderUpstreamRules) {
  store(256);
  store(512, ErrorCode::kAuthentication);
  durable_.strict = true;
  EXPECT_EQ(refused(600), "authentication:durable restore");
  durable_.strict = false;
  mode_ = ReuseMode::kUpstream;
  EXPECT_EQ(refused(600), "authentication:durable restore");
}

TEST_F(ReuseLadderTest, WholeRequestsWithoutLogitsAreRefused) {
  store(600);
  durable_.gives_logits = false;
  EXPECT_EQ(refused(600), "expectation:invalid cache snapshot: durable exact hit omitted final logits");
  has_durable_ = false;
  has_remote_ = true;
  remote_.cut = 600;
  remote_.gives_logits = false;
  session_.live.reset();
  EXPECT_EQ(refused(600), "expectation:invalid cache snapshot: remote exact hit omitted final logits");
}

TEST_F(ReuseLadderTest, APeerIsAskedForWhatIsLeft) {
  has_remote_ = true;
  remote_.cut = 768;
  store(256);
  const ReuseReport report = prepared(800);
  EXPECT_EQ(report.source, kRemote);
  EXPECT_EQ(report.cut, 768U);
  EXPECT_EQ(report.bytes_transferred, 77U);
  EXPECT_EQ(report.bytes_read, 104U * 768 * 2 + 512);
  EXPECT_EQ(report.tier(kRemote), (TierReport{true, 768, PassedOver::kServed}));
  EXPECT_EQ(report.tier(kDurable), (TierReport{true, 256, PassedOver::kAnotherServed}));
  EXPECT_THAT(remote_.calls, ElementsAre("resolve", "fetch", "restore"));
}

TEST_F(ReuseLadderTest, APeerIsNotAskedForLess) {
  has_remote_ = true;
  remote_.cut = 700;
  store(512);
  EXPECT_EQ(served(767), "durable 512");
  EXPECT_THAT(remote_.calls, IsEmpty());
  session_.live.reset();
  const ReuseReport report = prepared(800);
  EXPECT_EQ(report.cut, 512U);
  EXPECT_EQ(report.tier(kRemote), (TierReport{true, 700, PassedOver::kGainTooSmall}));
  EXPECT_THAT(remote_.calls, ElementsAre("resolve"));
  session_.live.reset();
  remote_.cut = 0;
  EXPECT_EQ(prepared(800).tier(kRemote), (TierReport{true, 0, PassedOver::kNothingFound}));
}

TEST_F(ReuseLadderTest, UnderUpstreamRulesAPeerIsAskedOnAMissAlone) {
  mode_ = ReuseMode::kUpstream;
  has_remote_ = true;
  remote_.cut = 768;
  store(256);
  EXPECT_EQ(served(800), "durable 256");
  EXPECT_THAT(remote_.calls, IsEmpty());
  session_.live.reset();
  durable_.cuts.clear();
  EXPECT_EQ(served(800), "remote 768");
}

TEST_F(ReuseLadderTest, APeerThatFailsIsReportedAndTheBestIsServed) {
  has_remote_ = true;
  remote_.cut = 768;
  store(256);
  for (ErrorCode* const where : {&remote_.resolve_error, &remote_.fetch_error, &remote_.restore_error}) {
    *where = ErrorCode::kAuthentication;
    session_.live.reset();
    const ReuseReport report = prepared(800);
    *where = kFine;
    EXPECT_EQ(report.source, kDurable);
    ASSERT_EQ(report.faults.size(), 1U);
    EXPECT_EQ(report.faults[0].tier, kRemote);
    EXPECT_EQ(report.faults[0].error.code, ErrorCode::kAuthentication);
    EXPECT_EQ(report.tier(kRemote).why, PassedOver::kFailed);
  }
  remote_.cut = 801;
  session_.live.reset();
  const ReuseReport report = prepared(800);
  EXPECT_EQ(report.source, kDurable);
  EXPECT_EQ(report.faults[0].error.verdict(), "expectation:remote prefix result is outside the request");
}

TEST_F(ReuseLadderTest, APeerThatFailedIsNotAskedAgainForOneRequest) {
  has_remote_ = true;
  remote_.resolve_error = ErrorCode::kTimeout;
  store(256);
  store(512, ErrorCode::kNotFound);
  EXPECT_EQ(served(800), "durable 256");
  EXPECT_THAT(remote_.calls, ElementsAre("resolve"));
}

TEST_F(ReuseLadderTest, AnOfferIsJudgedAgainWhenTheStoreTurnsOutDamaged) {
  has_remote_ = true;
  remote_.cut = 700;
  store(512, ErrorCode::kNotFound);
  const ReuseReport report = prepared(800);
  EXPECT_EQ(report.source, kRemote);
  EXPECT_EQ(report.cut, 700U);
  EXPECT_EQ(report.faults.size(), 1U);
  EXPECT_THAT(remote_.calls, ElementsAre("resolve", "fetch", "restore"));
}

TEST_F(ReuseLadderTest, CancellationAndAnUnknownSessionAreFinalWhoeverReportsThem) {
  has_remote_ = true;
  remote_.cut = 768;
  remote_.fetch_error = ErrorCode::kCancelled;
  EXPECT_EQ(refused(800), "cancelled:remote fetch");
  remote_.fetch_error = kFine;
  remote_.restore_error = ErrorCode::kInstall;
  EXPECT_EQ(refused(800), "install:remote restore");
}

TEST_F(ReuseLadderTest, UnderUpstreamRulesAPeersErrorIsTheRequests) {
  mode_ = ReuseMode::kUpstream;
  has_remote_ = true;
  remote_.resolve_error = ErrorCode::kTimeout;
  EXPECT_EQ(refused(800), "timeout:remote resolve");
}

TEST_F(ReuseLadderTest, CancelledBeforeAnythingIsAsked) {
  std::stop_source source;
  source.request_stop();
  const auto report = ladder().prepare(session_, counted_tokens(600), source.get_token());
  ASSERT_FALSE(report.has_value());
  EXPECT_EQ(report.error().verdict(), "cancelled:operation was cancelled");
  EXPECT_THAT(durable_.asked_for, IsEmpty());
}

TEST_F(ReuseLadderTest, WhatTheSessionRefusesFailsTheRequest) {
  has_durable_ = false;
  keep_resident(512);
  session_.geometry_.max_context_tokens = 500;
  EXPECT_EQ(refused(600),
            "expectation:invalid cache snapshot: position 512 exceeds the context of 500 tokens");
}

class TransferPlans : public ReuseLadderTest {
 protected:
  TransferPlan planned(std::size_t request) {
    auto plan = ladder().prepare_remote(session_, counted_tokens(request));
    EXPECT_TRUE(plan.has_value());
    return plan.has_value() ? *std::move(plan) : TransferPlan{};
  }
};

TEST_F(TransferPlans, AnAlignedCutIsInstalledForADelta) {
  store(256);
  const TransferPlan plan = planned(512);
  EXPECT_EQ(plan.action, TransferAction::kArmDelta);
  EXPECT_EQ(plan.report.source, kDurable);
  EXPECT_EQ(plan.report.cut, 256U);
  EXPECT_EQ(session_.tokens().size(), 256U);
}

TEST_F(TransferPlans, AlmostEverythingIsServedFromHere) {
  store(512);
  EXPECT_EQ(planned(513).action, TransferAction::kServeLocal);
  EXPECT_EQ(session_.tokens().size(), 512U);
}

TEST_F(TransferPlans, AFullTransferInstallsNothing) {
  make_live(255);
  const TransferPlan plan = planned(512);
  EXPECT_EQ(plan.action, TransferAction::kFullTransfer);
  EXPECT_EQ(plan.report.source, kMiss);
  EXPECT_EQ(plan.report.cut, 0U);
  EXPECT_EQ(plan.report.tier(kCurrentSession), (TierReport{true, 255, PassedOver::kNoUseForTransfer}));
  EXPECT_THAT(session_.calls, IsEmpty());
  session_.live.reset();
  const TransferPlan empty = planned(512);
  EXPECT_EQ(empty.action, TransferAction::kFullTransfer);
  EXPECT_EQ(empty.report.source, kMiss);
}

TEST_F(TransferPlans, ADamagedCutIsNotArmed) {
  store(256);
  store(512, ErrorCode::kNotFound);
  const TransferPlan plan = planned(800);
  EXPECT_EQ(plan.action, TransferAction::kArmDelta);
  EXPECT_EQ(plan.report.cut, 256U);
  EXPECT_EQ(plan.report.faults.size(), 1U);
}

TEST_F(TransferPlans, WhatAPeerHasIsNotFetchedWithoutUse) {
  has_remote_ = true;
  remote_.cut = 700;
  const TransferPlan plan = planned(800);
  EXPECT_EQ(plan.action, TransferAction::kFullTransfer);
  EXPECT_EQ(plan.report.source, kMiss);
  EXPECT_EQ(plan.report.tier(kRemote), (TierReport{true, 700, PassedOver::kNoUseForTransfer}));
  EXPECT_THAT(remote_.calls, ElementsAre("resolve"));
  EXPECT_THAT(session_.calls, IsEmpty());
  remote_.cut = 768;
  EXPECT_EQ(planned(800).action, TransferAction::kArmDelta);
  EXPECT_EQ(session_.tokens().size(), 768U);
}

TEST_F(TransferPlans, UnderUpstreamRulesItIsInstalledBeforeItIsJudged) {
  mode_ = ReuseMode::kUpstream;
  has_remote_ = true;
  remote_.cut = 700;
  const TransferPlan plan = planned(800);
  EXPECT_EQ(plan.action, TransferAction::kFullTransfer);
  EXPECT_EQ(plan.report.source, kRemote);
  EXPECT_EQ(session_.tokens().size(), 700U);
}

TEST_F(ReuseLadderTest, ReportsAreCountedOnce) {
  Economics economics;
  record_reuse(
      economics,
      {.source = kDurable, .cut = 256, .request_tokens = 273, .tokens_to_compute = 17, .bytes_read = 999});
  EconomicsReport report = economics.report();
  EXPECT_EQ(report.cache_hits, 1U);
  EXPECT_EQ(report.cache_misses, 0U);
  EXPECT_EQ(report.bytes_recomputed, 905'216U);
  EXPECT_EQ(report.tiers[1].hits, 1U);
  EXPECT_EQ(report.bytes_served_from_cache, 999U);
  record_reuse(economics, {.source = kResident, .cut = 256, .request_tokens = 256, .bytes_read = 5});
  record_reuse(economics, {.source = kRemote, .cut = 256, .request_tokens = 256, .bytes_read = 7});
  record_reuse(economics,
               {.source = kCurrentSession, .cut = 100, .request_tokens = 117, .tokens_to_compute = 17});
  record_reuse(economics, {.request_tokens = 17, .tokens_to_compute = 17});
  record_reuse(economics, {});
  report = economics.report();
  EXPECT_EQ(report.cache_hits, 3U);
  EXPECT_EQ(report.cache_misses, 1U);
  EXPECT_EQ(report.tiers[0].resident_bytes, kv_bytes(256));
  EXPECT_EQ(report.tiers[2].resident_bytes, 7U);
  EXPECT_EQ(report.session_continuation_hits, 1U);
  EXPECT_EQ(report.bytes_recomputed, 3 * 905'216U);
  EXPECT_EQ(report.prefill_ops, 3U);
}

}  // namespace reuse_ladder_test
}  // namespace kvpack::muse
