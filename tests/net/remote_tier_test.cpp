// The reuse ladder asks a resident producer over the control channel, takes its handoff into a store, finds
// it again there and makes it live: every part the real one, over loopback.
#include <list>

#include "kvpack/muse/handoff_rung.h"
#include "kvpack/muse/handoff_source.h"
#include "kvpack/muse/prefix_installer.h"
#include "kvpack/muse/reuse_ladder.h"
#include "muse/memory_session.h"
#include "muse/memory_store.h"
#include "net/control_fixture.h"
#include "support/verdict.h"

namespace kvpack::net::remote_tier_test {

using kvpack::testing::verdict;
using muse::testing::counting_tokens;
using muse::testing::MemorySession;
using muse::testing::snapshot_of;

// Takes every handoff into a store.
class StoringHost final : public ReceiverHost {
 public:
  explicit StoringHost(const muse::PrefixCache& cache) : cache_(&cache) {}

  Result<Admission> admit(const handoff::BeginFrame& begin) override {
    Transfer& transfer = transfers_.emplace_back(*cache_);
    transfer.sink.emplace(transfer.installer, muse::HandoffSinkOptions{.prefix_cut = begin.prefix_cut});
    return Admission{&*transfer.sink, nullptr};
  }
  void ended(const AttemptReceipt& receipt) noexcept override {
    transfers_.remove_if([&](const Transfer& transfer) { return &*transfer.sink == receipt.sink; });
  }

 private:
  struct Transfer {
    explicit Transfer(const muse::PrefixCache& cache) : installer(cache) {}
    muse::PrefixInstaller installer;
    std::optional<muse::HandoffSink> sink;
  };
  const muse::PrefixCache* cache_;
  std::list<Transfer> transfers_;
};

class OutgoingSnapshot final : public SegmentSource {
 public:
  explicit OutgoingSnapshot(const muse::HandoffSource& source) : source_(&source) {}
  Result<std::optional<OutgoingSegment>> next() override {
    std::optional<OutgoingSegment> segment;
    if (next_ < source_->segment_count()) segment = {source_->shape(next_), source_->payload(next_)};
    ++next_;
    return segment;
  }

 private:
  const muse::HandoffSource* source_;
  std::size_t next_ = 0;
};

class RemoteTierTest : public testing::ControlCluster {
 protected:
  RemoteTierTest()
      : store_(fixture_.create()),
        cache_(*store_, *muse::TargetModel::create(muse::identity_label(muse::testing::test_config(),
                                                                        muse::testing::test_identity()))),
        host_of_store_(cache_),
        rung_(cache_, [this](std::span<const std::uint32_t> request, const std::stop_token& cancel) {
          return bring(request, cancel);
        }) {
    jobs_.job = [this](const ControlRequest& request, const std::stop_token& stop) {
      return compute_and_send(request, stop);
    };
  }

  // Both ends call what this class has.
  ~RemoteTierTest() override {
    stop_producer();
    requesting_.reset();
  }

  void start_receiving() {
    clock_.hold();
    auto receiver = RequestingReceiver::start(fs_, clock_, receiver_config_, settings_, muse::span_schedule,
                                              host_of_store_);
    clock_.go_on();
    ASSERT_TRUE(receiver.has_value()) << receiver.error().verdict();
    requesting_ = *std::move(receiver);
  }
  Result<std::uint64_t> bring(std::span<const std::uint32_t> request, const std::stop_token& cancel) {
    KVPACK_TRY_ASSIGN(const PrefillReceipt receipt,
                      requesting_->fetch({.token_ids = {request.begin(), request.end()}}, cancel));
    return receipt.attempt.installed_bytes;
  }
  Result<ControlReceipt> compute_and_send(const ControlRequest& request, const std::stop_token& stop) {
    KVPACK_TRY_ASSIGN(const auto prompt, handoff::prompt_of_request(request.prompt_token_ids));
    KVPACK_TRY_ASSIGN(const auto source, muse::HandoffSource::open(snapshot_of(prompt), 0));
    OutgoingSnapshot segments(source);
    return send_segments(request, stop, segments);
  }

  muse::testing::MemoryStoreFixture fixture_;
  std::unique_ptr<Store> store_;
  muse::PrefixCache cache_;
  StoringHost host_of_store_;
  muse::HandoffRung rung_;
};

TEST_F(RemoteTierTest, TheLadderAsksTakesAndInstalls) {
  start_producer();
  start_receiving();
  const muse::ReuseLadder ladder({.remote = &rung_});
  MemorySession session(10);
  const auto served = ladder.prepare(session, counting_tokens(301));
  ASSERT_EQ(verdict(served), "ok");
  EXPECT_EQ(served->source, muse::ReuseSource::kRemote);
  EXPECT_EQ(served->cut, 300U);
  EXPECT_EQ(served->bytes_transferred, muse::kv_bytes(300));
  EXPECT_TRUE(session.live() == snapshot_of(counting_tokens(300)));
  EXPECT_EQ(testing::verdict_of(jobs_.attempt(0)), "committed ok");
  // What is here already is not asked for again.
  stop_producer();
  MemorySession another;
  const auto again = ladder.prepare(another, counting_tokens(301));
  ASSERT_EQ(verdict(again), "ok");
  EXPECT_EQ(again->source, muse::ReuseSource::kRemote);
  EXPECT_EQ(again->bytes_transferred, 0U);
  EXPECT_TRUE(another.live() == snapshot_of(counting_tokens(300)));
}

TEST_F(RemoteTierTest, AProducerThatIsGoneOrFailsLeavesTheSessionAsItWas) {
  start_producer();
  start_receiving();
  const muse::ReuseLadder ladder({.remote = &rung_});
  jobs_.job = [](const ControlRequest&, const std::stop_token&) -> Result<ControlReceipt> {
    return fail(ErrorCode::kControl, "engine is gone");
  };
  MemorySession session(10);
  const auto failed = ladder.prepare(session, counting_tokens(301));
  ASSERT_EQ(verdict(failed), "ok");
  EXPECT_EQ(failed->source, muse::ReuseSource::kCurrentSession);
  ASSERT_EQ(failed->faults.size(), 1U);
  EXPECT_EQ(failed->faults[0].error.verdict(), "control:engine is gone");
  stop_producer();
  const auto gone = ladder.prepare(session, counting_tokens(301));
  ASSERT_EQ(verdict(gone), "ok");
  ASSERT_EQ(gone->faults.size(), 1U);
  EXPECT_EQ(gone->faults[0].error.code, ErrorCode::kIo);
  EXPECT_TRUE(session.live() == snapshot_of(counting_tokens(10)));
}

// The request is cancelled while the handoff is on its way: nothing of it stays.
TEST_F(RemoteTierTest, ACancelledClimbEndsTheTransfer) {
  std::stop_source stop;
  start_producer();
  start_receiving();
  jobs_.job = [&](const ControlRequest& request, const std::stop_token& cancelled) {
    stop.request_stop();
    testing::wait_for_stop(cancelled);
    return compute_and_send(request, cancelled);
  };
  const muse::ReuseLadder ladder({.remote = &rung_});
  MemorySession session(10);
  EXPECT_EQ(verdict(ladder.prepare(session, counting_tokens(301), stop.get_token())),
            "cancelled:operation was cancelled");
  EXPECT_TRUE(session.live() == snapshot_of(counting_tokens(10)));
  EXPECT_FALSE(cache_.find_exactly(counting_tokens(300))->has_value());
}

}  // namespace kvpack::net::remote_tier_test
