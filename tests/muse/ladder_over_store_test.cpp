// The ladder over a real store, a real resident tier and a session in memory.
#include "kvpack/muse/durable_rung.h"
#include "kvpack/muse/reuse_ladder.h"
#include "muse/memory_session.h"
#include "muse/memory_store.h"
#include "support/verdict.h"

namespace kvpack::muse::ladder_over_store_test {
namespace {

using kvpack::testing::verdict;
using testing::counting_tokens;
using testing::logits_of;
using testing::MemorySession;
using testing::snapshot_of;
using testing::test_config;
using testing::test_identity;
using enum ReuseSource;

class LadderOverAStore : public ::testing::Test {
 protected:
  LadderOverAStore() {
    store_ = fixture_.create();
    attach(test_identity());
  }
  void attach(const MuseIdentity& identity) {
    rung_.reset();
    auto made = DurableCache::create(*store_, test_config(), identity);
    ASSERT_EQ(verdict(made), "ok");
    cache_.emplace(*std::move(made));
    rung_.emplace(*cache_);
  }
  Id32 save(std::size_t cut) {
    MemorySession session(cut);
    auto receipt = cache_->save(session);
    EXPECT_EQ(verdict(receipt), "ok");
    return receipt.has_value() ? receipt->manifest_id : Id32{};
  }
  void keep(std::size_t cut) {
    const auto logits = logits_of(cut);
    auto kept = resident_.insert(rung_->identity_digest(), snapshot_of(counting_tokens(cut)),
                                 std::span<const float>(logits), testing::kTestVocabulary);
    EXPECT_EQ(verdict(kept), "ok");
  }
  ReuseReport prepared(std::size_t request, const LadderRules& rules = {}) {
    session_ = MemorySession();
    const ReuseLadder ladder({.resident = &resident_, .durable = &*rung_}, rules);
    auto report = ladder.prepare(session_, counting_tokens(request));
    EXPECT_EQ(verdict(report), "ok");
    if (!report.has_value()) return {};
    if (report->cut != 0) {
      EXPECT_TRUE(session_.live() == snapshot_of(counting_tokens(static_cast<std::size_t>(report->cut))));
    }
    return *std::move(report);
  }
  std::string served(std::size_t request, const LadderRules& rules = {}) {
    const ReuseReport report = prepared(request, rules);
    static const char* const kNames[] = {"miss", "session", "resident", "durable", "remote"};
    return kNames[static_cast<std::size_t>(report.source)] + (" " + std::to_string(report.cut));
  }

  testing::MemoryStoreFixture fixture_;
  std::unique_ptr<Store> store_;
  std::optional<DurableCache> cache_;
  std::optional<DurableCacheRung> rung_;
  ResidentTier resident_ = *ResidentTier::create();
  MemorySession session_;
};

TEST_F(LadderOverAStore, TheStoreLimitsWhatMemoryIsBelieved) {
  save(256);
  keep(512);
  EXPECT_EQ(served(600), "durable 256");
  keep(256);
  EXPECT_EQ(served(600), "resident 256");
  keep(600);
  EXPECT_EQ(served(600), "resident 256");
}

TEST_F(LadderOverAStore, EqualDepthComesFromMemoryAndAnotherIdentityMisses) {
  save(512);
  keep(512);
  EXPECT_EQ(served(600), "resident 512");
  MuseIdentity other = test_identity();
  other.model_sha256.bytes[0] ^= 1;
  attach(other);
  EXPECT_EQ(served(600), "miss 0");
  // Where the store would let memory serve, memory has nothing under this identity.
  save(512);
  EXPECT_EQ(served(600), "durable 512");
}

TEST_F(LadderOverAStore, ADurableHitOfTheWholeRequestBringsItsLogits) {
  save(300);
  const ReuseReport report = prepared(300);
  EXPECT_EQ(report.source, kDurable);
  EXPECT_EQ(report.tokens_to_compute, 0u);
  EXPECT_EQ(report.bytes_read, kv_bytes(300) + 4 * testing::kTestVocabulary);
  EXPECT_TRUE(std::ranges::equal(session_.logits(), logits_of(300)));
}

}  // namespace
}  // namespace kvpack::muse::ladder_over_store_test
