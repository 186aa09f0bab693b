// A cable that is cut: at every frame boundary, inside frames and inside the handshake, by silence, by a
// reset and by the end of the stream, on the way there and on the way back.
#include "net/proof_fixture.h"

namespace kvpack::net::cable_proof_test {

using ::testing::AnyOf;
using testing::Frames;
using ::testing::HasSubstr;
using testing::MemorySource;
using testing::PatientClock;
using testing::Relay;
using ::testing::StartsWith;

constexpr std::size_t kSegments = 3;
constexpr std::uint64_t kFirstGeneration = 100;

class CableProof : public testing::ProofCluster {
 protected:
  // A producer behind a cable of its own, which is cut when the receiver has read exactly the begin and so
  // many segments.
  struct Cabled {
    explicit Cabled(std::uint16_t port) : relay(port) {}
    Relay relay;
    std::thread producer;
    std::string heard;
  };

  std::string send_and_cut(Relay& relay, std::uint64_t generation, std::size_t boundary, Relay::Cut how,
                           const std::function<void()>& when_cut = {}) {
    Attempt attempt = honest();
    attempt.config.receiver.port = relay.port();
    // Of its own: producers that wait for each other would cut nothing.
    attempt.config.generation_ledger = folder_.path("generation-" + std::to_string(generation) + ".json");
    testing::write_file(attempt.config.generation_ledger,
                        "{\"next_generation\": " + std::to_string(generation) + "}\n", testing::kPrivate);
    MemorySource source(kSegments, 4096);
    source.before_next = [&](std::size_t sent) -> Status {
      if (sent != boundary) return success();
      EXPECT_TRUE(host_.wait_for_segments(generation, sent));
      relay.cut(how);
      if (when_cut) when_cut();
      return success();
    };
    return outcome_of(attempt, source);
  }
  void expect_healthy_above(std::uint64_t generation) {
    set_next_generation(generation);
    expect_healthy();
  }
};

TEST_F(CableProof, ResetOrHungUpAtEveryFrameBoundary) {
  start();
  std::uint64_t generation = kFirstGeneration;
  for (const auto how : {Relay::Cut::kReset, Relay::Cut::kHangUp}) {
    for (std::size_t boundary = 0; boundary <= kSegments; ++boundary) {
      SCOPED_TRACE(::testing::Message() << "behind segment " << boundary);
      Relay relay(producer_config_.receiver.port);
      EXPECT_THAT(send_and_cut(relay, ++generation, boundary, how), StartsWith("io:"));
      expect_ended(AttemptEnd::kTransfer, AnyOf(StartsWith("io:"), StartsWith("tls:")), false);
      // No number was used up: the same one may come again.
      expect_healthy_above(generation);
    }
  }
}

// All of them wait for the same deadline, so all wait at the same time.
TEST_F(CableProof, SilentAtEveryFrameBoundary) {
  settings_.max_transfers = kSegments + 1;
  receiver_config_.timeout_ms = receiver_config_.wait_for_producer_ms = 5'000;
  producer_config_.timeout_ms = 5'000;
  start();
  std::vector<std::unique_ptr<Cabled>> cables;
  std::mutex mutex;
  std::condition_variable changed;
  for (std::size_t boundary = 0; boundary <= kSegments; ++boundary) {
    cables.push_back(std::make_unique<Cabled>(producer_config_.receiver.port));
    bool is_cut = false;
    Cabled& cable = *cables.back();
    cable.producer = std::thread([&, boundary] {
      cable.heard =
          send_and_cut(cable.relay, kFirstGeneration + boundary, boundary, Relay::Cut::kSilent, [&] {
            const std::scoped_lock lock(mutex);
            is_cut = true;
            changed.notify_all();
          });
    });
    std::unique_lock lock(mutex);
    EXPECT_TRUE(changed.wait_for(lock, std::chrono::seconds(30), [&] { return is_cut; }));
  }
  for (const auto& cable : cables) {
    cable->producer.join();
    EXPECT_EQ(cable->heard, "timeout:timed out talking to the peer");
  }
  for (std::size_t i = 0; i <= kSegments; ++i) {
    const AttemptReceipt receipt = next();
    EXPECT_EQ(receipt.end, AttemptEnd::kTransfer);
    EXPECT_EQ(receipt.error->verdict(), "timeout:timed out waiting for the next frame");
    EXPECT_TRUE(receipt.refusal_sent);
  }
  seen_ = receiver_->counters();
  EXPECT_EQ(seen_.ends[static_cast<std::size_t>(AttemptEnd::kTransfer)], kSegments + 1);
  expect_healthy_above(kFirstGeneration);
}

// In the preamble, in the header, before the payload, in the payload and before its last byte, of every
// frame.
TEST_F(CableProof, TheStreamEndsInsideAFrame) {
  start();
  std::uint64_t generation = kFirstGeneration;
  for (std::size_t broken = 0; broken < kSegments + 2; ++broken) {
    const std::size_t header = load_le<std::uint32_t>(frames_of(begin_of(generation))[broken], 8);
    constexpr std::size_t kAllButOne = 0;
    for (const std::size_t bytes :
         std::initializer_list<std::size_t>{1, 19, 20, 20 + header / 2, 20 + header, kAllButOne}) {
      const Frames frames = frames_of(begin_of(++generation));
      const std::size_t cut = bytes == kAllButOne ? frames[broken].size() - 1 : bytes;
      if (cut >= frames[broken].size()) continue;
      SCOPED_TRACE(::testing::Message() << "frame " << broken << ", byte " << cut);
      auto peer = dial();
      ASSERT_TRUE(peer.has_value()) << peer.error().verdict();
      for (std::size_t i = 0; i < broken; ++i) ASSERT_TRUE(put(*peer, frames[i]));
      ASSERT_TRUE(put(*peer, ByteSpan(frames[broken]).first(cut)));
      peer->close();
      // What ends inside a payload is a frame that says more than it has.
      const AttemptReceipt receipt = next();
      EXPECT_EQ(receipt.end, broken == 0 ? AttemptEnd::kBegin : AttemptEnd::kTransfer);
      EXPECT_THAT(receipt.error->verdict(),
                  AnyOf(StartsWith("io:"), "invalid_frame:truncated segment payload"));
      seen_ = receiver_->counters();
    }
  }
  expect_healthy_above(generation);
}

TEST_F(CableProof, CutInsideTheHandshake) {
  start();
  for (const auto how : {Relay::Cut::kReset, Relay::Cut::kHangUp}) {
    // Inside the ClientHello, and inside the certificate.
    for (const std::uint64_t bytes : {1U, 5U, 100U, 700U}) {
      SCOPED_TRACE(::testing::Message() << bytes << " bytes");
      Relay relay(producer_config_.receiver.port);
      relay.cut_behind(bytes, how);
      Attempt attempt = honest();
      attempt.config.receiver.port = relay.port();
      EXPECT_THAT(outcome_of(attempt), AnyOf(StartsWith("io:"), StartsWith("tls:")));
      expect_ended(AttemptEnd::kHandshake, AnyOf(StartsWith("io:"), StartsWith("tls:")), false);
      expect_healthy();
    }
  }
}

// The acknowledgement is lost: the transfer is there, its number is used up, and the producer cannot know.
TEST_F(CableProof, TheAnswerIsLost) {
  start();
  Relay relay(producer_config_.receiver.port);
  Attempt attempt = honest();
  attempt.config.receiver.port = relay.port();
  MemorySource source(kSegments, 4096);
  source.before_next = [&](std::size_t sent) -> Status {
    if (sent == kSegments) relay.lose_answers();
    return success();
  };
  std::stop_source given_up;
  std::string heard;
  std::thread producer([&] {
    PatientClock clock;
    const auto sent =
        send_handoff(fs_, clock, attempt.config, attempt.transfer, source, {.stop = given_up.get_token()});
    heard = sent.has_value() ? "acknowledged" : sent.error().verdict();
  });
  // The receiver has said what it had to say, and waits for no answer for long.
  const AttemptReceipt receipt = next();
  given_up.request_stop();
  producer.join();
  EXPECT_EQ(heard, "cancelled:operation was cancelled");
  expect_committed(receipt, kSegments);
  set_next_generation(1);
  EXPECT_EQ(outcome(), "replay:replayed or stale generation");
  expect_ended(AttemptEnd::kLedger, "replay:replayed or stale generation", true);
  expect_healthy();
}

}  // namespace kvpack::net::cable_proof_test
