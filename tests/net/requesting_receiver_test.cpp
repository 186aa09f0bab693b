#include "kvpack/net/requesting_receiver.h"

#include "net/control_fixture.h"

namespace kvpack::net::requesting_receiver_test {

using testing::ControlCluster;
using testing::Gate;
using ::testing::HasSubstr;
using testing::MemorySource;
using ::testing::StartsWith;
using testing::verdict_of;
using testing::wait_for_stop;

class RequestingReceiverTest : public ControlCluster {
 protected:
  void start_both() {
    start_producer();
    start_requesting();
  }
  // A transfer that nobody has asked for, or under another request's id.
  std::string sent_unasked(const std::string& request_id) {
    OutgoingTransfer transfer{.prompt_token_ids = {1, 2, 3},
                              .multimodal = {},
                              .prefix_cut = 0,
                              .request_id = request_id,
                              .has_dflash = false};
    ProducerConfig aimed = producer_config_;
    aimed.receiver = {"127.0.0.1", requesting_->address().port};
    MemorySource source(1, 512);
    const auto sent = send_handoff(fs_, clock_, aimed, transfer, source);
    return sent.has_value() ? "acknowledged" : sent.error().verdict();
  }
};

TEST_F(RequestingReceiverTest, AsksTakesAndTellsWhatTheProducerMeasured) {
  start_both();
  const auto receipt = fetch();
  ASSERT_TRUE(receipt.has_value()) << receipt.error().verdict();
  EXPECT_THAT(receipt->request_id, StartsWith("muser-"));
  EXPECT_EQ(receipt->attempt.transfer_id, receipt->request_id + "-1");
  EXPECT_EQ(receipt->attempt.end, AttemptEnd::kCommitted);
  EXPECT_EQ(receipt->attempt.sink, nullptr);
  EXPECT_EQ(receipt->attempt.installed_bytes, 3U * 4096U);
  ASSERT_TRUE(receipt->producer.has_value());
  EXPECT_EQ(receipt->producer->payload_bytes, 3U * 4096U);
  EXPECT_EQ(receipt->producer->prefill_tokens, 3U);
  EXPECT_GT(receipt->control_ns, 0U);
  EXPECT_GE(receipt->total_ns, receipt->control_ns);
  EXPECT_EQ(verdict_of(jobs_.attempt(0)), "committed ok");
  EXPECT_FALSE(jobs_.attempt(0).receiver_left);
  EXPECT_EQ(fetched({7, 8}), "committed");
  EXPECT_EQ(host_.receipt(1).generation, 2U);
}

TEST_F(RequestingReceiverTest, ARequestThatHasNoBoundaryTokenIsNotMade) {
  start_both();
  EXPECT_EQ(fetched({1}), "validation:remote prefill needs a held boundary token (receiver refusal)");
  EXPECT_EQ(fetched({}), "validation:remote prefill needs a held boundary token (receiver refusal)");
  EXPECT_EQ(fetched(), "committed");
}

TEST_F(RequestingReceiverTest, WithoutAControlChannelItDoesNotStart) {
  const auto receiver = RequestingReceiver::start(fs_, clock_, receiver_config_, settings_, nullptr, host_);
  ASSERT_FALSE(receiver.has_value());
  EXPECT_EQ(receiver.error().verdict(), "config:receiver configuration has no producer_control");
}

TEST_F(RequestingReceiverTest, NothingIsTakenThatWasNotAskedFor) {
  start_both();
  EXPECT_THAT(sent_unasked("muser-1-1"), HasSubstr("belongs to another request"));
  EXPECT_EQ(host_.admitted().size(), 0U);
  EXPECT_EQ(fetched(), "committed");
  EXPECT_THAT(sent_unasked("muser-1-1"), HasSubstr("belongs to another request"));
  EXPECT_EQ(host_.admitted().size(), 1U);
}

TEST_F(RequestingReceiverTest, StaleConnectionsAreCountedAndPassedOver) {
  jobs_.job = [this](const ControlRequest& asked_for, const std::stop_token& stop) {
    EXPECT_THAT(sent_unasked("muser-1-1"), HasSubstr("transfer muser-1-1-1 belongs to another request"));
    // Behind the same characters another number.
    EXPECT_THAT(sent_unasked(asked_for.request_id + "9"), HasSubstr("belongs to another request"));
    return send_segments(asked_for, stop);
  };
  start_both();
  EXPECT_EQ(fetched(), "committed");
  EXPECT_EQ(host_.admitted().size(), 1U);
}

TEST_F(RequestingReceiverTest, AProducerThatNeverComesIsNotWaitedForForever) {
  receiver_config_.wait_for_producer_ms = 400;
  jobs_.job = [this](const ControlRequest&, const std::stop_token& stop) -> Result<ControlReceipt> {
    sent_unasked("muser-1-1");
    wait_for_stop(stop);
    return fail(ErrorCode::kCancelled, "operation was cancelled");
  };
  start_both();
  EXPECT_EQ(fetched(),
            "timeout:timed out waiting for the GX10 producer (dropped 1 stale connections, last: transfer "
            "muser-1-1-1 belongs to another request) (waiting for the producer connection)");
  EXPECT_TRUE(jobs_.attempt(0).receiver_left);
  jobs_.job = [](const ControlRequest&, const std::stop_token& stop) -> Result<ControlReceipt> {
    wait_for_stop(stop);
    return fail(ErrorCode::kCancelled, "operation was cancelled");
  };
  EXPECT_EQ(fetched(),
            "timeout:timed out waiting for the GX10 producer (waiting for the producer connection)");
}

TEST_F(RequestingReceiverTest, AProducerThatFailsLaterIsBelievedAtOnce) {
  jobs_.job = [](const ControlRequest&, const std::stop_token&) -> Result<ControlReceipt> {
    return fail(ErrorCode::kControl, "no such prompt");
  };
  start_both();
  EXPECT_EQ(fetched(), "control:no such prompt (producer control channel)");
  // It says committed, and nothing has come.
  jobs_.job = [](const ControlRequest&, const std::stop_token&) -> Result<ControlReceipt> {
    return ControlReceipt{1, 2, 3, 4, 5, 6, 7, 8, 9};
  };
  EXPECT_EQ(fetched(), "control:GX10 producer closed the control stream (producer control channel)");
  jobs_.job = [this](const ControlRequest& asked_for, const std::stop_token& stop) {
    return send_segments(asked_for, stop);
  };
  EXPECT_EQ(fetched(), "committed");
}

TEST_F(RequestingReceiverTest, AnUnreachableOrUnwillingProducerIsOfTheControlChannel) {
  start_both();
  receiver_config_.producer_control->address.port = 1;
  requesting_.reset();
  start_requesting();
  EXPECT_THAT(fetched(), StartsWith("io:I/O: 127.0.0.1:1: "));
  EXPECT_THAT(fetched(), HasSubstr("(producer control channel)"));
  aim_at(server_->address());
  receiver_config_.advertised_receiver_host = "127.0.0.2";
  requesting_.reset();
  start_requesting();
  EXPECT_EQ(fetched(), "control:prefill control request names another receiver (producer control channel)");
}

TEST_F(RequestingReceiverTest, AnotherPromptUnderTheRightIdIsRefused) {
  jobs_.job = [this](const ControlRequest& asked_for, const std::stop_token& stop) {
    ControlRequest other = asked_for;
    other.prompt_token_ids[0] ^= 1;
    return send_segments(other, stop);
  };
  start_both();
  EXPECT_EQ(fetched(),
            "validation:remote prompt tokens differ from the exact request (producer verification)");
  EXPECT_EQ(verdict_of(jobs_.attempt(0)),
            "failed validation:remote prompt tokens differ from the exact request");
}

TEST_F(RequestingReceiverTest, AnotherIdentityUnderTheRightIdIsRefused) {
  const auto good = producer_config_.identity;
  start_both();
  producer_config_.identity.adapter_sha256[0] = '0';
  EXPECT_EQ(fetched(),
            "validation:model/tokenizer/template/adapter identity mismatch (producer verification)");
  producer_config_.identity = good;
  EXPECT_EQ(fetched(), "committed");
}

TEST_F(RequestingReceiverTest, WhatTheEngineRefusesIsOfTheEngine) {
  host_.fails_at = "prepare_commit";
  start_both();
  EXPECT_THAT(fetched(), HasSubstr("(engine install)"));
  host_.fails_at.clear();
  EXPECT_EQ(fetched(), "committed");
}

TEST_F(RequestingReceiverTest, ATransferThatBreaksOffIsMidTransfer) {
  MemorySource source(3, 4096);
  source.before_next = [](std::size_t sent) -> Status {
    if (sent == 2) return fail(ErrorCode::kState, "engine is gone");
    return success();
  };
  jobs_.job = [&](const ControlRequest& asked_for, const std::stop_token& stop) {
    return send_segments(asked_for, stop, source);
  };
  start_both();
  EXPECT_EQ(fetched(), "producer_abort:producer failure (mid-transfer)");
}

TEST_F(RequestingReceiverTest, AStopMidTransferEndsTheProducersSend) {
  std::stop_source stop;
  Gate stopped;
  jobs_.job = [&](const ControlRequest& asked_for, const std::stop_token& cancelled) {
    MemorySource source(3, 4096);
    source.before_next = [&](std::size_t sent) -> Status {
      if (sent != 2) return success();
      host_.wait_for_admission();
      stop.request_stop();
      // The closed stream is what tells.
      wait_for_stop(cancelled);
      return fail(ErrorCode::kCancelled, "operation was cancelled");
    };
    return send_segments(asked_for, cancelled, source);
  };
  start_both();
  EXPECT_EQ(fetched({1, 2, 3, 4}, stop.get_token()), "cancelled:operation was cancelled (mid-transfer)");
  const ControlAttempt attempt = jobs_.attempt(0);
  EXPECT_EQ(verdict_of(attempt), "failed cancelled:operation was cancelled");
  EXPECT_TRUE(attempt.receiver_left);
  EXPECT_NE(host_.receipt(0).end, AttemptEnd::kCommitted);
}

TEST_F(RequestingReceiverTest, AStopBeforeAnythingHasComeIsACancellation) {
  std::stop_source stop;
  jobs_.job = [&](const ControlRequest&, const std::stop_token& cancelled) -> Result<ControlReceipt> {
    stop.request_stop();
    wait_for_stop(cancelled);
    return fail(ErrorCode::kCancelled, "operation was cancelled");
  };
  start_both();
  EXPECT_THAT(fetched({1, 2, 3, 4}, stop.get_token()), StartsWith("cancelled:operation was cancelled"));
}

// A producer that has been acknowledged and then takes longer than the receiver waits.
TEST_F(RequestingReceiverTest, LateTelemetryIsAbsentAndUndoesNothing) {
  Gate fetched_already;
  jobs_.job = [&](const ControlRequest& asked_for, const std::stop_token& stop) {
    auto sent = send_segments(asked_for, stop);
    fetched_already.pass();
    wait_for_stop(stop);  // The receiver's leaving has been seen.
    return sent;
  };
  start_both();
  const auto receipt = fetch();
  fetched_already.open();
  ASSERT_TRUE(receipt.has_value()) << receipt.error().verdict();
  EXPECT_FALSE(receipt->producer.has_value());
  EXPECT_EQ(receipt->attempt.end, AttemptEnd::kCommitted);
  const ControlAttempt attempt = jobs_.attempt(0);
  EXPECT_EQ(verdict_of(attempt), "committed ok");
  EXPECT_TRUE(attempt.receiver_left);
}

TEST_F(RequestingReceiverTest, OneRequestAtATime) {
  Gate running;
  Gate go_on;
  jobs_.job = [&](const ControlRequest& asked_for, const std::stop_token& stop) {
    running.open();
    go_on.pass();
    return send_segments(asked_for, stop);
  };
  start_both();
  std::thread first([this] { EXPECT_EQ(fetched(), "committed"); });
  running.pass();
  EXPECT_EQ(fetched(), "busy:another remote prefill is running (receiver refusal)");
  go_on.open();
  first.join();
}

TEST_F(RequestingReceiverTest, AMultimodalRequestPinsItsDigests) {
  const handoff::MultimodalIdentity identity{std::string(64, 'b'), std::string(64, 'c'),
                                             std::string(64, 'd')};
  const PrefillOrder order{
      .token_ids = {},
      .segments = {std::vector<std::uint32_t>{1}, ControlImage{"aGk=", std::string(64, 'a'), 2},
                   std::vector<std::uint32_t>{5}},
      .multimodal = identity};
  start_both();
  const auto receipt = requesting_->fetch(order);
  ASSERT_TRUE(receipt.has_value()) << receipt.error().verdict();
  EXPECT_EQ(jobs_.attempt(0).positions, 4U);
  jobs_.job = [this](const ControlRequest& asked_for, const std::stop_token& stop) {
    ControlRequest other = asked_for;
    other.multimodal->projector_sha256[0] = '0';
    return send_segments(other, stop);
  };
  const auto refused = requesting_->fetch(order);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().verdict(), "validation:multimodal identity differs from the armed request");
}

}  // namespace kvpack::net::requesting_receiver_test
