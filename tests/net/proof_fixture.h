// A receiver on trial: every attempt must end as it should, in its counter, its receipt and, where peers have
// agreed on it, its refusal frame; and the same receiver must take a healthy transfer afterwards, because
// only who could have said yes has refused.
#pragma once

#include "net/client_connection.h"
#include "net/cluster_fixture.h"
#include "net/relay.h"

namespace kvpack::net::testing {

// The frames of a transfer, as they travel.
using Frames = std::vector<Bytes>;

class ProofCluster : public Cluster {
 protected:
  using Text = ::testing::Matcher<std::string>;

  // What a producer goes to work with.
  struct Attempt {
    ProducerConfig config;
    OutgoingTransfer transfer;
    std::int64_t clock_shift_ms = 0;
  };

  void start() {
    Cluster::start();
    seen_ = {};
  }
  void stop() {
    Cluster::stop();
    next_receipt_ = host_.receipt_count();
  }
  void restart() {
    stop();
    start();
  }

  Attempt honest() const { return {producer_config_, transfer_, 0}; }
  std::string outcome_of(const Attempt& attempt, SegmentSource& source, const SendOptions& options = {}) {
    PatientClock clock;
    clock.set_wall_shift_ms(attempt.clock_shift_ms);
    const auto sent = send_handoff(fs_, clock, attempt.config, attempt.transfer, source, options);
    return sent.has_value() ? "acknowledged" : sent.error().verdict();
  }
  std::string outcome_of(const Attempt& attempt, const SendOptions& options = {}) {
    MemorySource source(3, 4096);
    return outcome_of(attempt, source, options);
  }
  void set_next_generation(std::uint64_t generation) {
    write_file(producer_config_.generation_ledger,
               "{\"next_generation\":" + std::to_string(generation) + "}\n", kPrivate);
  }

  AttemptReceipt next() { return host_.receipt(next_receipt_++); }

  // The next attempt to end is the only one that has ended, and this is how.
  void expect_ended(AttemptEnd end, const Text& verdict, bool refusal_sent) {
    const AttemptReceipt receipt = next();
    EXPECT_EQ(receipt.end, end) << attempt_end_name(receipt.end);
    EXPECT_THAT(receipt.error.has_value() ? receipt.error->verdict() : "no error", verdict);
    EXPECT_EQ(receipt.refusal_sent, refusal_sent);
    EXPECT_EQ(receipt.installed_bytes, 0U);
    // What is not committed is dropped, once.
    if (receipt.sink != nullptr) {
      const auto& sink = static_cast<const KeepingSink&>(*receipt.sink);
      EXPECT_FALSE(sink.live.has_value());
      EXPECT_LE(sink.count("abort"), 1U);
    }
    expect_counted(end, refusal_sent);
  }
  void expect_counted(AttemptEnd end, bool refusal_sent) {
    const ReceiverCounters before = std::exchange(seen_, receiver_->counters());
    for (std::size_t i = 0; i < seen_.ends.size(); ++i)
      EXPECT_EQ(seen_.ends[i] - before.ends[i], i == static_cast<std::size_t>(end) ? 1U : 0U)
          << attempt_end_name(static_cast<AttemptEnd>(i));
    EXPECT_EQ(seen_.refusals_sent - before.refusals_sent, refusal_sent ? 1U : 0U);
  }
  // Several have ended, whose order is no matter: as many of each kind.
  void expect_all_ended(std::size_t count, AttemptEnd end, const Text& verdict) {
    for (std::size_t i = 0; i < count; ++i) {
      const AttemptReceipt receipt = next();
      EXPECT_EQ(receipt.end, end) << attempt_end_name(receipt.end);
      EXPECT_THAT(receipt.error.has_value() ? receipt.error->verdict() : "no error", verdict);
    }
    const ReceiverCounters before = std::exchange(seen_, receiver_->counters());
    const auto kind = static_cast<std::size_t>(end);
    EXPECT_EQ(seen_.ends[kind] - before.ends[kind], count);
  }

  // The receiver takes a transfer, and has every byte of it.
  void expect_healthy() {
    ASSERT_EQ(outcome_of(honest()), "acknowledged");
    expect_committed(next(), 3);
  }
  void expect_committed(const AttemptReceipt& receipt, std::size_t segments) {
    ASSERT_EQ(receipt.end, AttemptEnd::kCommitted)
        << (receipt.error.has_value() ? receipt.error->verdict() : std::string());
    EXPECT_FALSE(receipt.error.has_value());
    EXPECT_EQ(receipt.installed_segments, segments);
    Bytes expected;
    MemorySource again(segments, 4096);
    for (auto segment = *again.next(); segment.has_value(); segment = *again.next())
      expected.insert(expected.end(), segment->payload[0].begin(), segment->payload[0].end());
    EXPECT_TRUE(static_cast<const KeepingSink&>(*receipt.sink).payload() == expected);
    seen_ = receiver_->counters();
  }
  // A condition that another thread brings about.
  template <class Condition>
  static bool eventually(const Condition& condition) {
    for (int i = 0; i < 30'000; ++i) {
      if (condition()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }

  // ---- a peer that writes what it likes

  Result<ClientConnection> dial(std::vector<std::string_view> alpn = {kRefusalAlpn, kHandoffAlpn},
                                std::optional<std::uint16_t> port = std::nullopt) {
    const ProducerConfig& config = producer_config_;
    return ClientConnection::open(
        fs_, clock_, {"127.0.0.1", port.value_or(config.receiver.port)},
        {config.certificate_chain, config.private_key, config.peer_ca},
        {.leaf_sha256 = config.peer_leaf_sha256, .alpn = std::move(alpn), .server_name = config.server_name},
        clock_.monotonic_ns() + 30'000'000'000U);
  }
  static bool put(ClientConnection& peer, ByteSpan bytes) {
    Bytes input;
    const auto written = peer.write(bytes, input);
    return written.has_value() && *written;
  }
  // Everything that still comes.
  static std::string last_words(ClientConnection& peer) {
    std::string out;
    for (;;) {
      const auto input = peer.read_some();
      if (!input.has_value() || input->empty()) return out;
      out += text_view(*input);
    }
  }

  handoff::BeginManifest begin_of(std::uint64_t generation) const {
    handoff::BeginManifest begin;
    begin.components = {
        {"target", handoff::ComponentKind::kTargetKv, true, producer_config_.target_cache_identity_sha256}};
    begin.created_unix_ms = clock_.wall_ms();
    begin.expires_unix_ms = begin.created_unix_ms + 600'000;
    begin.deferred_segments = true;
    begin.generation = generation;
    begin.hmac = {.epoch = producer_config_.hmac_epoch, .key_id = producer_config_.hmac_key_id};
    begin.identity = producer_config_.identity;
    begin.prompt_token_ids = transfer_.prompt_token_ids;
    begin.transfer_id = "raw-" + std::to_string(generation);
    return begin;
  }
  // Begin, one frame for each segment, seal.
  Frames frames_of(const handoff::BeginManifest& begin, std::size_t segments = 3) const {
    const handoff::MacKey key = *handoff::MacKey::from_hex(to_hex(Bytes(32, 7)));
    handoff::Sender sender = *handoff::Sender::open(begin, 0, key);
    Frames out{sender.begin_frame()};
    MemorySource source(segments, 4096);
    for (auto segment = *source.next(); segment.has_value(); segment = *source.next()) {
      Bytes frame = *sender.add_segment(segment->shape, segment->payload);
      for (const ByteSpan piece : segment->payload) frame.insert(frame.end(), piece.begin(), piece.end());
      out.push_back(std::move(frame));
    }
    out.push_back(*sender.finish());
    return out;
  }

  std::size_t next_receipt_ = 0;
  ReceiverCounters seen_;  // what has been accounted for
};

}  // namespace kvpack::net::testing
