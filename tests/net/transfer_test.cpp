#include <stdlib.h>  // NOLINT(modernize-deprecated-headers): Asio asks for libstdc++'s macros first.

#include <asio/connect.hpp>
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/write.hpp>

#include "net/cluster_fixture.h"

namespace kvpack::net::transfer_test {

using testing::Authority;
using testing::Cluster;
using ::testing::HasSubstr;
using testing::MemorySource;
using ::testing::StartsWith;

TEST_F(Cluster, ATransferArrivesWholeAndIsAcknowledged) {
  start();
  MemorySource source(5, 1U << 20);
  const auto sent = send(source);
  ASSERT_TRUE(sent.has_value()) << sent.error().verdict();
  EXPECT_EQ(sent->generation, 1U);
  EXPECT_EQ(sent->segments, 5U);
  EXPECT_EQ(sent->payload_bytes, 5U << 20);
  const AttemptReceipt receipt = host_.receipt(0);
  EXPECT_EQ(receipt.end, AttemptEnd::kCommitted);
  EXPECT_FALSE(receipt.error.has_value());
  EXPECT_EQ(receipt.transfer_id, sent->transfer_id);
  EXPECT_EQ(receipt.generation, 1U);
  EXPECT_EQ(receipt.installed_segments, 5U);
  EXPECT_EQ(receipt.installed_bytes, 5U << 20);
  EXPECT_EQ(receipt.peer_leaf_sha256, *receiver_config_.peer_leaf_sha256.begin());
  EXPECT_GT(receipt.phases.reserve_ns, 0U);
  EXPECT_GE(receipt.phases.total_ns, receipt.phases.transfer_commit_ns);
  Bytes expected;
  MemorySource again(5, 1U << 20);
  for (auto segment = *again.next(); segment.has_value(); segment = *again.next())
    expected.insert(expected.end(), segment->payload[0].begin(), segment->payload[0].end());
  EXPECT_TRUE(host_.sink(0).payload() == expected);
  EXPECT_EQ(receiver_->counters().installed_bytes, 5U << 20);
}

TEST_F(Cluster, OneTransferAfterTheOtherAndNoneTwice) {
  start();
  for (std::uint64_t generation = 1; generation <= 3; ++generation) {
    MemorySource source(2, 1024);
    const auto sent = send(source);
    ASSERT_TRUE(sent.has_value()) << sent.error().verdict();
    EXPECT_EQ(sent->generation, generation);
  }
  // A ledger of generations that was set back.
  std::filesystem::remove(producer_config_.generation_ledger);
  EXPECT_EQ(outcome(), "replay:replayed or stale generation");
  const AttemptReceipt receipt = host_.receipt(3);
  EXPECT_EQ(receipt.end, AttemptEnd::kLedger);
  EXPECT_TRUE(receipt.refusal_sent);
}

TEST_F(Cluster, AReplayIsRefusedAfterARestart) {
  start();
  EXPECT_EQ(outcome(), "acknowledged");
  EXPECT_EQ(outcome(), "acknowledged");
  stop();
  start();
  std::filesystem::remove(producer_config_.generation_ledger);
  EXPECT_EQ(outcome(), "replay:replayed or stale generation");
  EXPECT_EQ(outcome(), "replay:replayed or stale generation");
  EXPECT_EQ(outcome(), "acknowledged");
}

// Both ends old and new in all four pairings: a refusal is read where both want it, and is a closed
// connection elsewhere.
TEST_F(Cluster, ARefusalIsForThoseWhoAskForIt) {
  for (const bool receiver_offers : {true, false}) {
    settings_.refusals = receiver_offers;
    start();
    for (const bool producer_offers : {true, false}) {
      const SendOptions options{.refusals = producer_offers};
      EXPECT_EQ(outcome(options), "acknowledged");
      const auto good = producer_config_.identity;
      producer_config_.identity.adapter_sha256[0] = '0';
      handoff::RequestExpectations expected;
      expected.identity = good;
      expected.max_context_tokens = 100;
      expected.target_identity_sha256 = std::string(64, 'f');
      host_.expected = &expected;
      const std::string refused = outcome(options);
      if (receiver_offers && producer_offers) {
        EXPECT_EQ(refused, "validation:model/tokenizer/template/adapter identity mismatch");
      } else {
        EXPECT_THAT(refused, StartsWith("io:"));
      }
      producer_config_.identity = good;
      EXPECT_EQ(outcome(options), "acknowledged");
      host_.expected = nullptr;
    }
    stop();
  }
}

TEST_F(Cluster, AWrongLeafIsRefusedLikeNoCertificate) {
  const auto stranger = authority_.issue("stranger");
  const std::string chain = std::exchange(producer_config_.certificate_chain, stranger.chain);
  const std::string key = std::exchange(producer_config_.private_key, stranger.key);
  start();
  EXPECT_THAT(outcome(), ::testing::AnyOf(StartsWith("io:"), StartsWith("tls:")));
  const AttemptReceipt receipt = host_.receipt(0);
  EXPECT_EQ(receipt.end, AttemptEnd::kHandshake);
  EXPECT_EQ(receipt.error->verdict(), "leaf_pin:peer leaf certificate pin mismatch");
  EXPECT_FALSE(receipt.refusal_sent);
  producer_config_.certificate_chain = chain;
  producer_config_.private_key = key;
  EXPECT_EQ(outcome(), "acknowledged");
}

TEST_F(Cluster, AnotherAuthorityIsRefusedOnBothEnds) {
  const Authority other(folder_, "other");
  const auto stranger = other.issue("stranger");
  const ProducerConfig good = producer_config_;
  start();
  producer_config_.receiver.port = receiver_->address().port;
  const std::uint16_t port = receiver_->address().port;
  producer_config_.certificate_chain = stranger.chain;
  producer_config_.private_key = stranger.key;
  EXPECT_NE(outcome(), "acknowledged");
  EXPECT_EQ(host_.receipt(0).end, AttemptEnd::kHandshake);
  producer_config_ = good;
  producer_config_.receiver = {"127.0.0.1", port};
  producer_config_.peer_ca = other.path();
  EXPECT_THAT(outcome(), StartsWith("tls:"));
  producer_config_.peer_ca = good.peer_ca;
  producer_config_.server_name = "elsewhere";
  EXPECT_THAT(outcome(), StartsWith("tls:"));
  producer_config_.server_name = good.server_name;
  producer_config_.peer_leaf_sha256 = {std::string(64, '0')};
  EXPECT_EQ(outcome(), "leaf_pin:peer leaf certificate pin mismatch");
  producer_config_.peer_leaf_sha256 = good.peer_leaf_sha256;
  EXPECT_EQ(outcome(), "acknowledged");
}

TEST_F(Cluster, AForeignKeyIsRefusedAtTheSeal) {
  const std::string other = folder_.path("other.key");
  testing::write_file(other, std::string(32, '\x08'), testing::kPrivate);
  const std::string good = std::exchange(producer_config_.hmac_key_file, other);
  start();
  EXPECT_EQ(outcome(), "validation:artifact HMAC tag rejected");
  EXPECT_EQ(host_.receipt(0).end, AttemptEnd::kVerify);
  producer_config_.hmac_key_file = good;
  EXPECT_EQ(outcome(), "acknowledged");
  producer_config_.hmac_epoch = 3;
  EXPECT_EQ(outcome(), "validation:wrong HMAC key id or replayed epoch");
  producer_config_.hmac_epoch = 5;
  EXPECT_EQ(outcome(), "acknowledged");
}

TEST_F(Cluster, ThePreviousKeyIsAcceptedWhileItIsNamed) {
  const std::string old = folder_.path("old.key");
  testing::write_file(old, std::string(32, '\x09'), testing::kPrivate);
  settings_.hmac_previous = {{"old", old, 2}};
  start();
  EXPECT_EQ(outcome(), "acknowledged");
  producer_config_.hmac_key_file = old;
  producer_config_.hmac_key_id = "old";
  producer_config_.hmac_epoch = 2;
  EXPECT_EQ(outcome(), "acknowledged");
  stop();
  settings_.hmac_previous.clear();
  start();
  EXPECT_EQ(outcome(), "validation:wrong HMAC key id or replayed epoch");
}

TEST_F(Cluster, TheEnginesRefusalNamesNoText) {
  host_.fails_at = "prepare_commit";
  start();
  EXPECT_EQ(outcome(), "install:receiver refused the transfer: Install");
  EXPECT_EQ(host_.receipt(0).end, AttemptEnd::kInstall);
  // Behind the reservation a producer hears nothing but success.
  host_.fails_at = "commit";
  EXPECT_THAT(outcome(), StartsWith("io:"));
  EXPECT_EQ(host_.receipt(1).end, AttemptEnd::kInstall);
  EXPECT_FALSE(host_.receipt(1).refusal_sent);
  host_.fails_at.clear();
  EXPECT_EQ(outcome(), "acknowledged");
}

TEST_F(Cluster, AProducerThatGivesUpSaysSo) {
  start();
  MemorySource source(3, 4096);
  source.before_next = [](std::size_t sent) -> Status {
    if (sent == 2) return fail(ErrorCode::kState, "engine is gone");
    return success();
  };
  EXPECT_EQ(outcome(source), "state:engine is gone");
  const AttemptReceipt receipt = host_.receipt(0);
  EXPECT_EQ(receipt.end, AttemptEnd::kTransfer);
  EXPECT_EQ(receipt.error->verdict(), "producer_abort:producer failure");
  EXPECT_EQ(outcome(), "acknowledged");
}

TEST_F(Cluster, AStalledPeerHoldsUpNobody) {
  // Longer than the producer's patience: one after the other would be too late.
  settings_.handshake_timeout_ms = 10'000;
  producer_config_.timeout_ms = 5'000;
  start();
  asio::io_context io;
  const asio::ip::tcp::endpoint endpoint(asio::ip::make_address("127.0.0.1"), receiver_->address().port);
  std::vector<asio::ip::tcp::socket> silent;
  for (int i = 0; i < 20; ++i) {
    silent.emplace_back(io);
    silent.back().connect(endpoint);
  }
  EXPECT_EQ(outcome(), "acknowledged");
  EXPECT_EQ(host_.receipt(0).end, AttemptEnd::kCommitted);
  silent.clear();
  for (std::size_t i = 1; i < 21; ++i) EXPECT_EQ(host_.receipt(i).end, AttemptEnd::kHandshake) << i;
  EXPECT_EQ(outcome(), "acknowledged");
}

TEST_F(Cluster, GarbageIsRefused) {
  start();
  asio::io_context io;
  asio::ip::tcp::socket socket(io);
  socket.connect({asio::ip::make_address("127.0.0.1"), receiver_->address().port});
  asio::write(socket, asio::buffer(std::string("GET / HTTP/1.1\r\nHost: x\r\n\r\n")));
  EXPECT_EQ(host_.receipt(0).end, AttemptEnd::kHandshake);
  EXPECT_EQ(outcome(), "acknowledged");
}

TEST_F(Cluster, TooManyConnectionsAreClosedAtOnce) {
  settings_.max_connections = 4;
  start();
  asio::io_context io;
  const asio::ip::tcp::endpoint endpoint(asio::ip::make_address("127.0.0.1"), receiver_->address().port);
  std::vector<asio::ip::tcp::socket> silent;
  for (int i = 0; i < 12; ++i) {
    silent.emplace_back(io);
    silent.back().connect(endpoint);
  }
  for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(host_.receipt(i).end, AttemptEnd::kExcess) << i;
  silent.clear();
  for (std::size_t i = 8; i < 12; ++i) EXPECT_EQ(host_.receipt(i).end, AttemptEnd::kHandshake) << i;
  EXPECT_EQ(outcome(), "acknowledged");
}

// The second producer's begin waits while the first one's transfer runs.
TEST_F(Cluster, TransfersWaitForTheirTurn) {
  start();
  std::mutex mutex;
  std::condition_variable changed;
  bool first_is_running = false;
  bool second_has_asked = false;
  std::size_t admitted_meanwhile = 0;
  MemorySource slow(2, 4096);
  slow.before_next = [&](std::size_t sent) -> Status {
    if (sent != 1) return success();
    std::unique_lock lock(mutex);
    first_is_running = true;
    changed.notify_all();
    changed.wait(lock, [&] { return second_has_asked; });
    // Long enough for a begin frame that need not wait.
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    admitted_meanwhile = host_.admitted().size();
    return success();
  };
  std::thread first([&] { EXPECT_EQ(outcome(slow), "acknowledged"); });
  {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return first_is_running; });
  }
  MemorySource quick(1, 4096);
  quick.before_next = [&](std::size_t) -> Status {
    const std::scoped_lock lock(mutex);
    second_has_asked = true;
    changed.notify_all();
    return success();
  };
  EXPECT_EQ(outcome(quick), "acknowledged");
  first.join();
  EXPECT_EQ(admitted_meanwhile, 1U);
  EXPECT_THAT(host_.admitted(), ::testing::ElementsAre(1, 2));
}

TEST_F(Cluster, AReceiverWithABadKeyOrLedgerDoesNotStart) {
  const auto refusal = [&] {
    const auto receiver = bind();
    return receiver.has_value() ? "started" : receiver.error().verdict();
  };
  std::filesystem::permissions(receiver_config_.hmac_key_file, std::filesystem::perms::group_read,
                               std::filesystem::perm_options::add);
  EXPECT_EQ(refusal(), "config:HMAC key must not be accessible by group/other");
  std::filesystem::permissions(receiver_config_.hmac_key_file, testing::kPrivate);
  testing::write_file(receiver_config_.replay_ledger, "{", testing::kPrivate);
  EXPECT_THAT(refusal(), StartsWith("config:replay ledger: "));
  std::filesystem::remove(receiver_config_.replay_ledger);
  EXPECT_EQ(refusal(), "started");
  start();
  EXPECT_EQ(refusal(), "config:replay ledger is in use by another receiver");
}

TEST_F(Cluster, StopFinishesWhatIsRunning) {
  start();
  MemorySource source(3, 4096);
  source.before_next = [&](std::size_t sent) -> Status {
    if (sent != 1) return success();
    host_.wait_for_admission();
    receiver_->stop();
    return success();
  };
  EXPECT_EQ(outcome(source), "acknowledged");
  thread_.join();
  EXPECT_THAT(outcome(), StartsWith("io:"));
}

}  // namespace kvpack::net::transfer_test
