// Everything that a receiver must refuse, each under its own name, and each followed by a transfer that it
// takes.
#include "net/proof_fixture.h"

namespace kvpack::net::refusal_proof_test {

using ::testing::AllOf;
using ::testing::AnyOf;
using testing::Authority;
using testing::Descriptor;
using testing::dial_loopback;
using testing::Frames;
using ::testing::HasSubstr;
using testing::MemorySource;
using testing::Relay;
using ::testing::StartsWith;

class RefusalProof : public testing::ProofCluster {
 protected:
  // An enrolled producer that states something wrong, once where refusals are read and once where not.
  void expect_refused(const std::string& name, const std::function<void(Attempt&)>& change, AttemptEnd end,
                      const Text& verdict) {
    for (const bool reads_refusals : {true, false}) {
      SCOPED_TRACE(name + (reads_refusals ? ", told why" : ", told nothing"));
      Attempt attempt = honest();
      change(attempt);
      const std::string heard = outcome_of(attempt, {.refusals = reads_refusals});
      EXPECT_THAT(heard, reads_refusals ? verdict : Text(StartsWith("io:")));
      expect_ended(end, verdict, reads_refusals);
      // Above all that were tried.
      set_next_generation(1 + highest());
      expect_healthy();
    }
  }
  std::uint64_t highest() {
    const std::vector<std::uint64_t> all = host_.admitted();
    return all.empty() ? 0 : std::ranges::max(all);
  }
  std::string key_file(const std::string& name, char filling) {
    testing::write_file(folder_.path(name), std::string(32, filling), testing::kPrivate);
    return folder_.path(name);
  }
};

TEST_F(RefusalProof, AGenerationThatIsNotNew) {
  start();
  expect_healthy();
  expect_healthy();
  set_next_generation(20);
  expect_healthy();
  constexpr const char* kStale = "replay:replayed or stale generation";
  expect_refused(
      "the same", [&](Attempt&) { set_next_generation(highest()); }, AttemptEnd::kLedger, kStale);
  expect_refused(
      "one below", [&](Attempt&) { set_next_generation(highest() - 1); }, AttemptEnd::kLedger, kStale);
  expect_refused(
      "the first", [&](Attempt&) { set_next_generation(1); }, AttemptEnd::kLedger, kStale);
}

TEST_F(RefusalProof, AForeignIdentity) {
  start();
  constexpr const char* kForeign = "validation:model/tokenizer/template/adapter identity mismatch";
  const auto flip = [](std::string& digest) { digest[17] = digest[17] == '0' ? '1' : '0'; };
  using Identity = handoff::ExactIdentity;
  for (const auto field :
       {&Identity::adapter_sha256, &Identity::chat_template_sha256, &Identity::context_policy_sha256,
        &Identity::model_sha256, &Identity::tokenizer_sha256})
    expect_refused(
        "a digest", [&](Attempt& a) { flip(a.config.identity.*field); }, AttemptEnd::kVerify, kForeign);
  for (const auto field : {&Identity::model_revision, &Identity::tokenizer_revision})
    expect_refused(
        "a revision", [&](Attempt& a) { (a.config.identity.*field) += "2"; }, AttemptEnd::kVerify, kForeign);
  expect_refused(
      "the layout", [&](Attempt& a) { flip(a.config.target_cache_identity_sha256); }, AttemptEnd::kVerify,
      "validation:target cache component identity mismatch");
}

TEST_F(RefusalProof, AnotherKeyOrEpoch) {
  start();
  const std::string other = key_file("other.key", '\x08');
  expect_refused(
      "another key", [&](Attempt& a) { a.config.hmac_key_file = other; }, AttemptEnd::kVerify,
      "validation:artifact HMAC tag rejected");
  constexpr const char* kWrong = "validation:wrong HMAC key id or replayed epoch";
  expect_refused(
      "another id", [](Attempt& a) { a.config.hmac_key_id = "loop-key-2"; }, AttemptEnd::kVerify, kWrong);
  expect_refused(
      "a retired epoch", [](Attempt& a) { a.config.hmac_epoch = 3; }, AttemptEnd::kVerify, kWrong);
}

TEST_F(RefusalProof, AWrongTime) {
  start();
  expect_refused(
      "expired", [](Attempt& a) { a.clock_shift_ms = -60'000; }, AttemptEnd::kVerify,
      AllOf(StartsWith("validation:handoff expired at "), HasSubstr("check producer/receiver clock skew")));
  expect_refused(
      "from the future", [](Attempt& a) { a.clock_shift_ms = 600'000; }, AttemptEnd::kVerify,
      AllOf(StartsWith("validation:handoff created at "), HasSubstr(" is ahead of the receiver clock ")));
  expect_refused(
      "from before the start",
      [](Attempt& a) {
        a.clock_shift_ms = -600'000;
        a.config.timeout_ms = 900'000;
      },
      AttemptEnd::kVerify,
      AllOf(StartsWith("validation:handoff created at "), HasSubstr(" predates this receiver's start at ")));
  expect_refused(
      "valid for too long", [](Attempt& a) { a.config.timeout_ms = 3'600'001; }, AttemptEnd::kVerify,
      "validation:handoff lifetime 3600001 ms exceeds 3600000 ms");
}

TEST_F(RefusalProof, MoreThanTheLimits) {
  settings_.max_segments = 3;
  settings_.max_segment_bytes = 8192;
  settings_.memory_limit_bytes = 2 * 8192 + 3 * 4096;
  start();
  const auto send_instead = [&](std::size_t segments, std::size_t bytes, AttemptEnd end,
                                const Text& verdict) {
    MemorySource source(segments, bytes);
    EXPECT_THAT(outcome(source), verdict);
    expect_ended(end, verdict, true);
    expect_healthy();
  };
  expect_healthy();
  send_instead(4, 1024, AttemptEnd::kVerify, "validation:transfer exceeds 3 segments");
  send_instead(2, 8192, AttemptEnd::kVerify, "validation:transfer exceeds 12288 payload bytes");
  send_instead(1, 8704, AttemptEnd::kTransfer, "invalid_frame:frame lengths exceed bounds");
}

TEST_F(RefusalProof, APeerThatIsNotEnrolled) {
  start();
  const Authority elsewhere(folder_, "elsewhere");
  const Authority::Leaf stranger = authority_.issue("stranger");
  const Authority::Leaf foreigner = elsewhere.issue("foreigner");
  const Authority::Leaf late = authority_.issue("late", "localhost", 0);
  receiver_config_.peer_leaf_sha256.insert({foreigner.sha256, late.sha256});
  restart();
  const auto expect_turned_away = [&](const Authority::Leaf& leaf, const Text& verdict) {
    SCOPED_TRACE(leaf.chain);
    Attempt attempt = honest();
    attempt.config.certificate_chain = leaf.chain;
    attempt.config.private_key = leaf.key;
    EXPECT_THAT(outcome_of(attempt), AnyOf(StartsWith("io:"), StartsWith("tls:")));
    expect_ended(AttemptEnd::kHandshake, verdict, false);
    expect_healthy();
  };
  expect_turned_away(stranger, "leaf_pin:peer leaf certificate pin mismatch");
  // Pinned, but not of the CA; pinned and of the CA, but ended.
  expect_turned_away(foreigner, StartsWith("tls:TLS: "));
  expect_turned_away(late, StartsWith("tls:TLS: "));
  // Another protocol over TLS.
  for (const std::string_view name : {std::string_view("h2"), kControlAlpn}) {
    EXPECT_FALSE(dial({name}).has_value());
    expect_ended(AttemptEnd::kHandshake, StartsWith("tls:TLS: "), false);
    expect_healthy();
  }
}

TEST_F(RefusalProof, WhatIsNoTls) {
  start();
  const std::vector<std::string> openings{"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
                                          "SSH-2.0-scan\r\n",
                                          std::string(1000, '\xff'),
                                          std::string(1000, '\0'),
                                          "\x16\x03\x01\x02",
                                          std::string("\x16\x03\x01\xff\xff", 5) + std::string(70'000, 'a'),
                                          std::string("\x15\x03\x03\x00\x02\x02\x28", 7)};
  for (const std::string& opening : openings) {
    Descriptor socket = dial_loopback(producer_config_.receiver.port);
    // The receiver may have closed before it has taken everything.
    static_cast<void>(::send(socket.get(), opening.data(), opening.size(), MSG_NOSIGNAL));
    ::shutdown(socket.get(), SHUT_WR);
    expect_ended(AttemptEnd::kHandshake, AnyOf(StartsWith("tls:TLS: "), StartsWith("io:")), false);
  }
  expect_healthy();
}

TEST_F(RefusalProof, APortScan) {
  constexpr std::size_t kKnocks = 100;
  settings_.max_connections = 2 * kKnocks;
  start();
  for (std::size_t i = 0; i < kKnocks; ++i) {
    Descriptor socket = dial_loopback(producer_config_.receiver.port);
    if (i % 2 == 1) socket.reset();
  }
  // The system may take back a connection that was reset before it was accepted. What is accepted has an end.
  ASSERT_TRUE(eventually([&] {
    const ReceiverCounters counters = receiver_->counters();
    const auto ended = [&](AttemptEnd end) { return counters.ends[static_cast<std::size_t>(end)]; };
    return counters.accepted >= kKnocks / 2 && counters.open_connections == 0 &&
           ended(AttemptEnd::kHandshake) + ended(AttemptEnd::kExcess) == counters.accepted;
  }));
  EXPECT_EQ(outcome(), "acknowledged");
  EXPECT_TRUE(eventually(
      [&] { return receiver_->counters().ends[static_cast<std::size_t>(AttemptEnd::kCommitted)] == 1; }));
}

TEST_F(RefusalProof, TwoHundredSilentConnections) {
  settings_.handshake_timeout_ms = 60'000;
  start();
  std::vector<Descriptor> silent;
  for (int i = 0; i < 200; ++i) silent.push_back(dial_loopback(producer_config_.receiver.port));
  const auto excess = [&] {
    return receiver_->counters().ends[static_cast<std::size_t>(AttemptEnd::kExcess)];
  };
  ASSERT_TRUE(eventually([&] { return excess() == 200 - settings_.max_connections; }));
  EXPECT_EQ(receiver_->counters().open_connections, settings_.max_connections);
  // Nobody else gets in, until they are gone.
  EXPECT_THAT(outcome(), AnyOf(StartsWith("io:"), StartsWith("tls:")));
  ASSERT_TRUE(eventually([&] { return excess() == 201 - settings_.max_connections; }));
  silent.clear();
  ASSERT_TRUE(eventually([&] { return receiver_->counters().open_connections == 0; }));
  EXPECT_EQ(receiver_->counters().ends[static_cast<std::size_t>(AttemptEnd::kHandshake)],
            settings_.max_connections);
  EXPECT_EQ(outcome(), "acknowledged");
}

TEST_F(RefusalProof, TwoHundredEnrolledConnectionsAtOnce) {
  settings_.max_connections = 201;
  receiver_config_.timeout_ms = receiver_config_.wait_for_producer_ms = 120'000;
  start();
  std::vector<ClientConnection> idle;
  for (int i = 0; i < 200; ++i) {
    auto peer = dial();
    ASSERT_TRUE(peer.has_value()) << peer.error().verdict();
    idle.push_back(*std::move(peer));
  }
  expect_healthy();
  EXPECT_GE(receiver_->counters().open_connections, 200U);
  idle.clear();
  expect_all_ended(200, AttemptEnd::kBegin, StartsWith("io:"));
  expect_healthy();
}

// ---- streams of an enrolled peer that break the protocol

class StreamProof : public RefusalProof {
 protected:
  // Written by a peer that reads refusals and by one that does not.
  void expect_stream_refused(const std::string& name, const std::function<Bytes(std::uint64_t)>& stream,
                             AttemptEnd end, const std::string& verdict) {
    for (const bool reads_refusals : {true, false}) {
      SCOPED_TRACE(name + (reads_refusals ? ", told why" : ", told nothing"));
      auto peer = reads_refusals ? dial() : dial({kHandoffAlpn});
      ASSERT_TRUE(peer.has_value()) << peer.error().verdict();
      static_cast<void>(put(*peer, stream(++generation_)));
      const std::string said = last_words(*peer);
      if (reads_refusals) {
        const std::string text = verdict.substr(verdict.find(':') + 1);
        EXPECT_THAT(said, AllOf(HasSubstr("\"kind\":\"refusal\""), HasSubstr("\"text\":\"" + text + "\"")));
      } else {
        EXPECT_EQ(said, "");
      }
      peer->close();
      expect_ended(end, verdict, reads_refusals);
    }
    set_next_generation(++generation_);
    expect_healthy();
  }
  // A stream with one frame exchanged.
  Bytes with(std::uint64_t generation, const std::function<void(Frames&)>& change) const {
    Frames frames = frames_of(begin_of(generation));
    change(frames);
    return handoff::testing::joined(frames);
  }
  static Bytes preamble(std::uint32_t header, std::uint64_t payload) {
    Bytes out{'K', 'V', 'P', 'K', 'V', '2', 0, 0};
    for (const std::uint8_t byte : le_bytes(header)) out.push_back(byte);
    for (const std::uint8_t byte : le_bytes(payload)) out.push_back(byte);
    return out;
  }
  static Bytes framed(std::string_view header) {
    Bytes out = preamble(static_cast<std::uint32_t>(header.size()), 0);
    out.insert(out.end(), header.begin(), header.end());
    return out;
  }
  static void replace(Bytes& frame, std::string_view from, std::string_view to) {
    ASSERT_EQ(from.size(), to.size());
    const ByteSpan wanted = byte_view(from);
    const auto found = std::search(frame.begin(), frame.end(), wanted.begin(), wanted.end());
    ASSERT_NE(found, frame.end());
    std::ranges::copy(byte_view(to), found);
  }

  std::uint64_t generation_ = 100;
};

TEST_F(StreamProof, WhatIsNoBeginFrame) {
  start();
  const auto always = [](Bytes bytes) { return [bytes](std::uint64_t) { return bytes; }; };
  constexpr auto kBegin = AttemptEnd::kBegin;
  expect_stream_refused("garbage", always(Bytes(100, 0x5a)), kBegin, "invalid_frame:bad frame magic");
  constexpr const char* kBounds = "invalid_frame:frame lengths exceed bounds";
  expect_stream_refused("no header", always(preamble(0, 0)), kBegin, kBounds);
  expect_stream_refused("a header too long", always(preamble(8'388'609, 0)), kBegin, kBounds);
  expect_stream_refused("a payload beyond everything", always(preamble(2, ~std::uint64_t{0})), kBegin,
                        kBounds);
  expect_stream_refused(
      "another frame", [&](std::uint64_t g) { return frames_of(begin_of(g)).back(); }, kBegin,
      "missing_begin:expected begin frame");
  expect_stream_refused("an acknowledgement", always(*handoff::encode_ack_frame("x", 1)), kBegin,
                        "missing_begin:expected begin frame");
}

TEST_F(StreamProof, WhatABeginFrameMustNotSay) {
  start();
  expect_stream_refused(
      "generation zero", [&](std::uint64_t) { return *handoff::encode_begin_frame(begin_of(0), 0); },
      AttemptEnd::kLedger, "zero_generation:handoff generation zero is never installable");
  expect_stream_refused(
      "a newer producer's field",
      [&](std::uint64_t g) {
        Bytes frame = *handoff::encode_begin_frame(begin_of(g), 0);
        replace(frame, "\"transfer_id\"", "\"compression\"");
        return frame;
      },
      AttemptEnd::kBegin,
      "invalid_frame:begin manifest carries unknown field `compression`: the producer is newer "
      "than this receiver");
  expect_stream_refused(
      "no prompt",
      [&](std::uint64_t g) {
        handoff::BeginManifest begin = begin_of(g);
        begin.prompt_token_ids.clear();
        return *handoff::encode_begin_frame(begin, 0);
      },
      AttemptEnd::kVerify, "validation:V2 prompt token sequence is empty");
  expect_stream_refused(
      "an id that is no name",
      [&](std::uint64_t g) {
        handoff::BeginManifest begin = begin_of(g);
        begin.transfer_id = "../x";
        return *handoff::encode_begin_frame(begin, 0);
      },
      AttemptEnd::kVerify, "validation:invalid transfer id");
}

TEST_F(StreamProof, WhatMustNotComeBehindABegin) {
  start();
  const auto changed = [&](const std::function<void(Frames&)>& change) {
    return [this, change](std::uint64_t generation) { return with(generation, change); };
  };
  constexpr auto kVerify = AttemptEnd::kVerify;
  constexpr const char* kOrder = "validation:dropped, duplicate, or reordered deferred segment";
  expect_stream_refused("a second begin", changed([](Frames& f) { f.insert(f.begin() + 1, f[0]); }), kVerify,
                        "validation:duplicate begin");
  expect_stream_refused("an acknowledgement", changed([](Frames& f) {
                          f.insert(f.begin() + 1, *handoff::encode_ack_frame("x", 1));
                        }),
                        kVerify, "validation:producer sent an ACK to the receiver");
  expect_stream_refused("a segment twice", changed([](Frames& f) { f.insert(f.begin() + 1, f[1]); }), kVerify,
                        kOrder);
  expect_stream_refused("segments exchanged", changed([](Frames& f) { std::swap(f[1], f[2]); }), kVerify,
                        kOrder);
  expect_stream_refused("a segment left out", changed([](Frames& f) { f.erase(f.begin() + 2); }), kVerify,
                        kOrder);
  expect_stream_refused("the last segment left out", changed([](Frames& f) { f.erase(f.end() - 2); }),
                        kVerify, "validation:seal identity or digest mismatch");
  expect_stream_refused("no segment", changed([](Frames& f) { f.erase(f.begin() + 1, f.end() - 1); }),
                        kVerify, "validation:seal before every segment");
  expect_stream_refused("a payload bit", changed([](Frames& f) { f[2].back() ^= 1; }), kVerify,
                        "validation:segment length or digest mismatch");
  expect_stream_refused(
      "the seal of another transfer",
      [&](std::uint64_t g) {
        return with(g, [&](Frames& f) { f.back() = frames_of(begin_of(g + 50)).back(); });
      },
      kVerify, "validation:seal identity or digest mismatch");
  expect_stream_refused(
      "a cut that nobody holds",
      [&](std::uint64_t g) {
        Frames frames = frames_of(begin_of(g));
        frames[0] = *handoff::encode_begin_frame(begin_of(g), 256);
        return handoff::testing::joined(frames);
      },
      kVerify, "validation:delta prefix cut is not a 256-aligned cut inside the prompt");
  expect_stream_refused("an abort", changed([](Frames& f) { f[2] = *handoff::encode_abort_frame("gone"); }),
                        AttemptEnd::kTransfer, "producer_abort:gone");
}

// A recording of a whole connection is worth nothing, and the frames of a committed transfer neither.
TEST_F(StreamProof, ACapturedTransferSentAgain) {
  start();
  Relay relay(producer_config_.receiver.port);
  Attempt attempt = honest();
  attempt.config.receiver.port = relay.port();
  EXPECT_EQ(outcome_of(attempt), "acknowledged");
  expect_committed(next(), 3);
  const Bytes recording = relay.captured();
  ASSERT_GT(recording.size(), 3U * 4096);
  Descriptor socket = dial_loopback(producer_config_.receiver.port);
  static_cast<void>(::send(socket.get(), recording.data(), recording.size(), MSG_NOSIGNAL));
  ::shutdown(socket.get(), SHUT_WR);
  expect_ended(AttemptEnd::kHandshake, AnyOf(StartsWith("tls:TLS: "), StartsWith("io:")), false);
  expect_healthy();

  const Bytes frames = with(50, [](Frames&) {});
  auto first = dial();
  ASSERT_TRUE(put(*first, frames));
  EXPECT_THAT(last_words(*first), HasSubstr("\"kind\":\"ack\""));
  first->close();
  expect_committed(next(), 3);
  generation_ = 50;
  expect_stream_refused(
      "the same frames", [&](std::uint64_t) { return frames; }, AttemptEnd::kLedger,
      "replay:replayed or stale generation");
}

}  // namespace kvpack::net::refusal_proof_test
