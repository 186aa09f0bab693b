// Peers that are slow on purpose: a byte now and then keeps nothing alive, and holds up nobody.
#include "net/proof_fixture.h"

namespace kvpack::net::deadline_proof_test {

using testing::Descriptor;
using testing::dial_loopback;
using testing::Frames;
using ::testing::HasSubstr;

// A transfer of as many rows as one likes.
class EndlessTransfer {
 public:
  explicit EndlessTransfer(const handoff::BeginManifest& begin)
      : key_(*handoff::MacKey::from_hex(to_hex(Bytes(32, 7)))),
        sender_(*handoff::Sender::open(begin, 0, key_)) {}
  const Bytes& begin() const { return sender_.begin_frame(); }
  Bytes segment() {
    const Bytes row(512, 3);
    Bytes frame = *sender_.add_segment({.component_id = "target",
                                        .role = handoff::SegmentRole::kNopeKey,
                                        .layer = 3,
                                        .logical_start = sender_.segment_count(),
                                        .logical_count = 1,
                                        .element_type = "f16_le",
                                        .elements_per_token = 256},
                                       ByteSpan(row));
    frame.insert(frame.end(), row.begin(), row.end());
    return frame;
  }

 private:
  handoff::MacKey key_;
  handoff::Sender sender_;
};

class DeadlineProof : public testing::ProofCluster {
 protected:
  // Calls `drip` again and again until it says that the peer is gone. @return how often it was called
  static std::size_t drip(const std::function<bool()>& drip) {
    std::size_t count = 0;
    while (drip() && count < 10'000) {
      ++count;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return count;
  }
  AttemptReceipt of(AttemptEnd end, std::size_t among) {
    for (std::size_t i = 0; i < among; ++i)
      if (AttemptReceipt receipt = host_.receipt(i); receipt.end == end) return receipt;
    ADD_FAILURE() << "no receipt ends with " << attempt_end_name(end);
    return {};
  }
};

TEST_F(DeadlineProof, AByteNowAndThen) {
  settings_.max_transfers = 2;
  settings_.handshake_timeout_ms = 3'000;
  receiver_config_.timeout_ms = receiver_config_.wait_for_producer_ms = 3'000;
  start();
  const Frames frames = frames_of(begin_of(100));

  std::size_t handshake_bytes = 0;
  std::thread handshake([&] {
    // A record that promises 512 bytes of a ClientHello.
    const Bytes opening{0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3};
    const Descriptor socket = dial_loopback(producer_config_.receiver.port);
    handshake_bytes = drip([&, at = std::size_t{0}]() mutable {
      const std::uint8_t byte = at < opening.size() ? opening[at] : 0;
      ++at;
      std::uint8_t ignored = 0;
      return ::send(socket.get(), &byte, 1, MSG_NOSIGNAL) == 1 &&
             ::recv(socket.get(), &ignored, 1, MSG_DONTWAIT) != 0;
    });
  });
  std::size_t begin_bytes = 0;
  std::string begin_refusal;
  std::thread begin([&] {
    auto peer = dial();
    ASSERT_TRUE(peer.has_value()) << peer.error().verdict();
    begin_bytes = drip([&, at = std::size_t{0}]() mutable {
      Bytes input;
      const auto written = peer->write(ByteSpan(frames[0]).subspan(at++, 1), input);
      begin_refusal.append(text_view(input));
      return written.has_value() && *written;
    });
    peer->close();
  });
  std::size_t payload_bytes = 0;
  std::string payload_refusal;
  std::thread payload([&] {
    auto peer = dial();
    ASSERT_TRUE(peer.has_value()) << peer.error().verdict();
    ASSERT_TRUE(put(*peer, frames[0]));
    ASSERT_TRUE(put(*peer, frames[1]));
    const std::size_t payload_start = frames[2].size() - 4096;
    ASSERT_TRUE(put(*peer, ByteSpan(frames[2]).first(payload_start)));
    payload_bytes = drip([&, at = payload_start]() mutable {
      Bytes input;
      const auto written = peer->write(ByteSpan(frames[2]).subspan(at++, 1), input);
      payload_refusal.append(text_view(input));
      return written.has_value() && *written;
    });
    peer->close();
  });
  // While they drip.
  EXPECT_TRUE(host_.wait_for_segments(100, 1));
  EXPECT_EQ(outcome(), "acknowledged");
  handshake.join();
  begin.join();
  payload.join();

  EXPECT_GT(handshake_bytes, 3U);
  EXPECT_GT(begin_bytes, 3U);
  EXPECT_GT(payload_bytes, 3U);
  constexpr std::size_t kAttempts = 4;
  const AttemptReceipt shaken = of(AttemptEnd::kHandshake, kAttempts);
  EXPECT_EQ(shaken.error->verdict(), "timeout:timed out waiting for the TLS handshake");
  EXPECT_FALSE(shaken.refusal_sent);
  const AttemptReceipt begun = of(AttemptEnd::kBegin, kAttempts);
  EXPECT_EQ(begun.error->verdict(), "timeout:timed out waiting for the begin frame");
  EXPECT_TRUE(begun.refusal_sent);
  EXPECT_THAT(begin_refusal, HasSubstr("timed out waiting for the begin frame"));
  const AttemptReceipt transferred = of(AttemptEnd::kTransfer, kAttempts);
  EXPECT_EQ(transferred.error->verdict(), "timeout:timed out waiting for the rest of a frame");
  EXPECT_TRUE(transferred.refusal_sent);
  EXPECT_THAT(payload_refusal, HasSubstr("timed out waiting for the rest of a frame"));
  const ReceiverCounters counters = receiver_->counters();
  for (const auto end :
       {AttemptEnd::kCommitted, AttemptEnd::kHandshake, AttemptEnd::kBegin, AttemptEnd::kTransfer})
    EXPECT_EQ(counters.ends[static_cast<std::size_t>(end)], 1U) << attempt_end_name(end);
  EXPECT_EQ(counters.refusals_sent, 2U);
  next_receipt_ = kAttempts;
  set_next_generation(200);
  expect_healthy();
}

// Every frame is in time, and there is always another one.
TEST_F(DeadlineProof, ATransferWithoutAnEnd) {
  settings_.max_transfer_ms = 2'000;
  start();
  EndlessTransfer transfer(begin_of(100));
  auto peer = dial();
  ASSERT_TRUE(peer.has_value()) << peer.error().verdict();
  ASSERT_TRUE(put(*peer, transfer.begin()));
  std::string refusal;
  const std::size_t segments = drip([&] {
    Bytes input;
    const auto written = peer->write(transfer.segment(), input);
    refusal.append(text_view(input));
    return written.has_value() && *written;
  });
  peer->close();
  EXPECT_GT(segments, 3U);
  EXPECT_THAT(refusal, HasSubstr("timed out waiting for the end of the transfer"));
  expect_ended(AttemptEnd::kTransfer, "timeout:timed out waiting for the end of the transfer", true);
  expect_healthy();
}

}  // namespace kvpack::net::deadline_proof_test
