#include "kvpack/muse/handoff_rung.h"

#include "kvpack/muse/reuse_ladder.h"
#include "muse/memory_session.h"
#include "muse/memory_store.h"
#include "support/verdict.h"

namespace kvpack::muse::handoff_rung_test {
namespace {

using kvpack::testing::verdict;
using testing::counting_tokens;
using testing::MemorySession;
using testing::snapshot_of;
using testing::test_config;
using testing::test_identity;

class MuseHandoffRung : public ::testing::Test {
 protected:
  MuseHandoffRung()
      : store_(fixture_.create()),
        cache_(*store_, *TargetModel::create(identity_label(test_config(), test_identity()))),
        rung_(cache_, [this](std::span<const std::uint32_t> request, const std::stop_token&) {
          return bring(request);
        }) {}

  // A producer in this process: computes the prompt and leaves it in the store.
  Result<std::uint64_t> bring(std::span<const std::uint32_t> request) {
    ++brought_;
    if (failure_) return *failure_;
    if (forgets_) return std::uint64_t{1};
    const CacheSnapshot snapshot = snapshot_of(counting_tokens(request.size() - 1));
    KVPACK_TRY_ASSIGN(SessionWriter writer, cache_.write(snapshot));
    KVPACK_TRY_ASSIGN(const SessionReceipt saved, writer.commit());
    return saved.restored_bytes;
  }
  ReuseLadder ladder() { return ReuseLadder({.remote = &rung_}); }

  testing::MemoryStoreFixture fixture_;
  std::unique_ptr<Store> store_;
  PrefixCache cache_;
  HandoffRung rung_;
  int brought_ = 0;
  bool forgets_ = false;
  std::optional<Error> failure_;
};

TEST_F(MuseHandoffRung, OffersAllButTheBoundaryToken) {
  const auto offer = [&](std::size_t tokens) { return *rung_.resolve(counting_tokens(tokens), {}); };
  EXPECT_FALSE(offer(0).has_value());
  EXPECT_FALSE(offer(1).has_value());
  EXPECT_EQ(offer(2), (RungCut{1, {}}));
  EXPECT_EQ(offer(300), (RungCut{299, {}}));
  EXPECT_EQ(offer(kMaxContextTokens), (RungCut{kMaxContextTokens - 1, {}}));
  EXPECT_FALSE(offer(kMaxContextTokens + 1).has_value());
  EXPECT_EQ(brought_, 0);
}

TEST_F(MuseHandoffRung, TheLadderServesWhatWasBroughtAndBringsItOnce) {
  for (int round = 0; round < 2; ++round) {
    MemorySession session;
    const auto served = ladder().prepare(session, counting_tokens(601));
    ASSERT_EQ(verdict(served), "ok");
    EXPECT_EQ(served->source, ReuseSource::kRemote);
    EXPECT_EQ(served->cut, 600U);
    EXPECT_EQ(served->tokens_to_compute, 1U);
    EXPECT_EQ(served->bytes_read, kv_bytes(600));
    EXPECT_EQ(served->bytes_transferred, round == 0 ? kv_bytes(600) : 0U);
    EXPECT_TRUE(session.live() == snapshot_of(counting_tokens(600)));
    EXPECT_TRUE(session.logits().empty());
    EXPECT_EQ(brought_, 1);
  }
}

TEST_F(MuseHandoffRung, WhatALiveSessionNearlyHasIsNotBrought) {
  MemorySession session(500);
  const auto served = ladder().prepare(session, counting_tokens(600));
  ASSERT_EQ(verdict(served), "ok");
  EXPECT_EQ(served->source, ReuseSource::kCurrentSession);
  EXPECT_EQ(brought_, 0);
}

TEST_F(MuseHandoffRung, AProducerThatFailsIsAFaultAndTheRestServes) {
  failure_ = fail(ErrorCode::kControl, "GX10 producer rejected the request");
  MemorySession session(3);
  const auto served = ladder().prepare(session, counting_tokens(600));
  ASSERT_EQ(verdict(served), "ok");
  EXPECT_EQ(served->source, ReuseSource::kCurrentSession);
  ASSERT_EQ(served->faults.size(), 1U);
  EXPECT_EQ(served->faults[0].error.verdict(), "control:GX10 producer rejected the request");
  EXPECT_TRUE(session.live() == snapshot_of(counting_tokens(3)));
}

TEST_F(MuseHandoffRung, WhatIsNotFoundAgainIsNotInstalled) {
  forgets_ = true;
  constexpr const char* kUndiscoverable = "integrity:handoff is not discoverable in the receiving store";
  const RungCut offer{599, {}};
  EXPECT_EQ(verdict(rung_.fetch(offer, counting_tokens(600), {})), kUndiscoverable);
  MemorySession session(3);
  EXPECT_EQ(verdict(rung_.restore(session, offer, counting_tokens(600), {})), kUndiscoverable);
  EXPECT_TRUE(session.live() == snapshot_of(counting_tokens(3)));
}

TEST_F(MuseHandoffRung, ACancelledRequestBringsNothing) {
  std::stop_source stop;
  stop.request_stop();
  EXPECT_EQ(verdict(rung_.fetch({599, {}}, counting_tokens(600), stop.get_token())),
            "cancelled:operation was cancelled");
  EXPECT_EQ(brought_, 0);
}

}  // namespace
}  // namespace kvpack::muse::handoff_rung_test
