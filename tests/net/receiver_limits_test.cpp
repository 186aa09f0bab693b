#include <stdlib.h>  // NOLINT(modernize-deprecated-headers): Asio asks for libstdc++'s macros first.

#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <stdexcept>

#include "net/client_connection.h"
#include "net/cluster_fixture.h"

namespace kvpack::net::receiver_limits_test {

using testing::MemorySource;
using ::testing::StartsWith;

class ReceiverLimits : public testing::Cluster {
 protected:
  /// A connection of the enrolled producer on which nothing is said yet.
  Result<ClientConnection> connect() {
    TlsPeer peer{.leaf_sha256 = producer_config_.peer_leaf_sha256,
                 .alpn = {kRefusalAlpn, kHandoffAlpn},
                 .server_name = producer_config_.server_name};
    return ClientConnection::open(
        fs_, clock_, producer_config_.receiver,
        {producer_config_.certificate_chain, producer_config_.private_key, producer_config_.peer_ca},
        std::move(peer), clock_.monotonic_ns() + 60'000'000'000);
  }
};

TEST_F(ReceiverLimits, ABeginWhoseTurnDoesNotComeIsBusy) {
  receiver_config_.timeout_ms = 2'000;
  receiver_config_.wait_for_producer_ms = 2'000;
  start();
  std::string second;
  std::atomic<bool> has_ended = false;
  std::thread other;
  MemorySource first(1'000, 512);
  first.before_next = [&](std::size_t sent) -> Status {
    if (sent == 0) {
      host_.wait_for_admission();
      other = std::thread([&] {
        second = outcome();
        has_ended = true;
      });
    }
    // Goes on slowly, so that its own pauses are none too long.
    if (!has_ended) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return success();
  };
  EXPECT_EQ(outcome(first), "acknowledged");
  other.join();
  EXPECT_EQ(second, "busy:receiver is busy with another transfer");
  const AttemptReceipt refused = host_.receipt(0);
  EXPECT_EQ(refused.end, AttemptEnd::kBusy);
  EXPECT_TRUE(refused.refusal_sent);
  EXPECT_EQ(host_.receipt(1).end, AttemptEnd::kCommitted);
  EXPECT_EQ(receiver_->counters().ends[static_cast<std::size_t>(AttemptEnd::kBusy)], 1U);
  EXPECT_EQ(outcome(), "acknowledged");
}

// Eight headers of the largest size fit; whoever comes ninth is told so, and the room is free again once they
// have gone.
TEST_F(ReceiverLimits, BeginFramesHoldABoundedMemoryTogether) {
  start();
  constexpr std::size_t kHeaderBytes = 8U << 20;
  constexpr std::size_t kAtOnce = 8;
  Bytes begin = *handoff::encode_abort_frame("x");
  begin.resize(handoff::kPreambleBytes);
  store_le<std::uint32_t>(begin, 8, kHeaderBytes);
  begin.resize(kHeaderBytes, ' ');
  std::vector<ClientConnection> holders;
  for (std::size_t i = 0; i < kAtOnce; ++i) {
    auto connection = connect();
    ASSERT_TRUE(connection.has_value()) << connection.error().verdict();
    Bytes input;
    ASSERT_TRUE(connection->write(begin, input).has_value());
    holders.push_back(*std::move(connection));
  }
  auto refused = connect();
  ASSERT_TRUE(refused.has_value()) << refused.error().verdict();
  Bytes input;
  static_cast<void>(refused->write(begin, input));
  const AttemptReceipt receipt = host_.receipt(0);
  EXPECT_EQ(receipt.end, AttemptEnd::kBusy);
  ASSERT_TRUE(receipt.error.has_value());
  EXPECT_EQ(receipt.error->verdict(), "busy:receiver is busy with other begin frames");
  EXPECT_TRUE(receipt.refusal_sent);
  for (ClientConnection& holder : holders) holder.close();
  // One of them may have been turned away as well, by the first bytes of the ninth.
  std::size_t held = 0;
  for (std::size_t i = 1; i <= kAtOnce; ++i) held += host_.receipt(i).end == AttemptEnd::kBegin ? 1 : 0;
  EXPECT_GE(held, kAtOnce - 1);
  EXPECT_EQ(outcome(), "acknowledged");
}

TEST_F(ReceiverLimits, AnExceptionOfTheHostEndsEveryAttempt) {
  class ThrowingHost final : public ReceiverHost {
   public:
    Result<Admission> admit(const handoff::BeginFrame&) override { throw std::runtime_error("engine"); }
    void ended(const AttemptReceipt& receipt) noexcept override { receipts.push_back(receipt); }
    std::vector<AttemptReceipt> receipts;
  };
  ThrowingHost host;
  clock_.hold();
  auto receiver = Receiver::bind(fs_, clock_, receiver_config_, settings_, muse::span_schedule, host);
  clock_.go_on();
  ASSERT_TRUE(receiver.has_value()) << receiver.error().verdict();
  producer_config_.receiver = HostPort{"127.0.0.1", (*receiver)->address().port};
  bool has_thrown = false;
  std::thread loop([&] {
    try {
      static_cast<void>((*receiver)->run());
    } catch (const std::runtime_error&) {
      has_thrown = true;
    }
  });
  asio::io_context io;
  asio::ip::tcp::socket silent(io);
  silent.connect(asio::ip::tcp::endpoint(asio::ip::make_address("127.0.0.1"), (*receiver)->address().port));
  EXPECT_THAT(outcome(), StartsWith("io:"));
  loop.join();
  EXPECT_TRUE(has_thrown);
  ASSERT_EQ(host.receipts.size(), 2U);
  for (const AttemptReceipt& receipt : host.receipts) {
    EXPECT_EQ(receipt.end, AttemptEnd::kStopped);
    ASSERT_TRUE(receipt.error.has_value());
    EXPECT_EQ(receipt.error->verdict(), "internal:an exception");
  }
  EXPECT_EQ((*receiver)->counters().open_connections, 0U);
}

TEST_F(ReceiverLimits, AProducerReadsItsCredentialsBeforeItConnects) {
  start();
  producer_config_.private_key = folder_.path("absent.pem");
  EXPECT_THAT(outcome(), StartsWith("not_found:"));
  producer_config_.receiver = {"receiver.invalid", 1};
  EXPECT_THAT(outcome(), StartsWith("not_found:"));
  EXPECT_EQ(receiver_->counters().accepted, 0U);
}

TEST_F(ReceiverLimits, AHostWithoutAnAddressIsAnErrorOfItsName) {
  start();
  producer_config_.receiver.host = "receiver.invalid";
  EXPECT_THAT(outcome(), StartsWith("io:I/O: receiver.invalid: "));
  producer_config_.receiver.host = "localhost";
  EXPECT_EQ(outcome(), "acknowledged");
}

}  // namespace kvpack::net::receiver_limits_test
