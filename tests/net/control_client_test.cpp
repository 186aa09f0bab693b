#include "kvpack/net/control_client.h"

#include "kvpack/base/hex.h"
#include "kvpack/crypto/sha256.h"
#include "net/control_fixture.h"
#include "net/control_frame_reader.h"
#include "support/verdict.h"

namespace kvpack::net::control_client_test {

using kvpack::testing::verdict;
using testing::ControlCluster;
using testing::Gate;
using ::testing::StartsWith;

ControlResponse response(ControlStatus status, std::optional<std::string> error = std::nullopt,
                         std::optional<ControlReceipt> receipt = std::nullopt, std::string id = "r-1") {
  return {std::move(id), status, std::move(error), receipt};
}

// A producer that says what the test wants, whatever it is asked.
class ControlClientTest : public ControlCluster {
 protected:
  using Script = std::function<void(ControlConnection&)>;

  ControlClientTest() : acceptor_(io_, {asio::ip::make_address("127.0.0.1"), 0}) {
    aim_at({"127.0.0.1", acceptor_.local_endpoint().port()});
  }
  ~ControlClientTest() override { join(); }
  void join() {
    if (producer_.joinable()) producer_.join();
  }

  // Takes one connection. @param script  runs when the request has been read
  void play(Script script, std::string_view alpn = kControlAlpn) {
    join();
    producer_ = std::thread([this, script = std::move(script), alpn] {
      ControlConnection connection(clock_);
      acceptor_.accept(connection.accepted());
      const TlsPeer receiver{
          .leaf_sha256 = producer_config_.peer_leaf_sha256, .alpn = {alpn}, .server_name = {}};
      const auto shaken = connection.serve(
          fs_, {producer_config_.certificate_chain, producer_config_.private_key, producer_config_.peer_ca},
          receiver, soon());
      if (!shaken.has_value()) return;
      const auto body = connection.receive(kMaxControlFrameBytes, soon());
      if (!body.has_value()) return;
      const auto seen = decode_control_request(*body);
      ASSERT_TRUE(seen.has_value()) << seen.error().verdict();
      request_ = *seen;
      script(connection);
    });
  }
  void play_bytes(Bytes bytes) {
    play([this, bytes = std::move(bytes)](ControlConnection& connection) {
      EXPECT_TRUE(connection.send(bytes, soon()).has_value());
    });
  }
  void play_responses(const std::vector<ControlResponse>& responses) {
    Bytes bytes;
    for (const ControlResponse& said : responses) {
      const Bytes frame = *encode_control_frame(encode_control_response(said));
      bytes.insert(bytes.end(), frame.begin(), frame.end());
    }
    play_bytes(std::move(bytes));
  }
  std::string answer_to(const std::vector<ControlResponse>& responses) {
    play_responses(responses);
    return asked(request());
  }
  std::string answer_to_body(std::string_view body) {
    play_bytes(*encode_control_frame(byte_view(body)));
    return asked(request());
  }

  asio::io_context io_;
  asio::ip::tcp::acceptor acceptor_;
  std::thread producer_;
  ControlRequest request_;
};

TEST_F(ControlClientTest, SendsTheRequestAndTakesAccepted) {
  play_responses({response(ControlStatus::kAccepted)});
  const ControlRequest what = request();
  auto client = ask(what);
  ASSERT_TRUE(client.has_value()) << client.error().verdict();
  join();
  EXPECT_EQ(request_, what);
}

TEST_F(ControlClientTest, TheFirstResponseMustBeAccepted) {
  play_responses({response(ControlStatus::kFailed, "no room")});
  const auto refused = ask(request());
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().verdict(), "control:no room");
  ASSERT_EQ(refused.error().context.size(), 1U);
  EXPECT_EQ(refused.error().context[0].key, "refused_by");
  EXPECT_EQ(refused.error().context[0].value, "producer");
  EXPECT_EQ(answer_to({response(ControlStatus::kCommitted)}), "control:GX10 producer rejected the request");
  constexpr const char* kInvalid = "control:prefill control response identity or status is invalid";
  EXPECT_EQ(answer_to({response(ControlStatus::kAccepted, std::nullopt, std::nullopt, "r-2")}), kInvalid);
  EXPECT_EQ(answer_to({response(ControlStatus::kAccepted, "why")}), kInvalid);
  EXPECT_EQ(answer_to({response(ControlStatus::kFailed)}), kInvalid);
  EXPECT_EQ(answer_to({response(ControlStatus::kFailed, "")}), kInvalid);
  EXPECT_EQ(answer_to({response(ControlStatus::kFailed, std::string(1025, 'x'))}), kInvalid);
  EXPECT_EQ(answer_to({response(ControlStatus::kFailed, std::string(1024, 'x'))}),
            "control:" + std::string(1024, 'x'));
  const ControlReceipt receipt{1, 2, 3, 4, 5, 6, 7, 8, 9};
  EXPECT_EQ(answer_to({response(ControlStatus::kAccepted, std::nullopt, receipt)}),
            "control:only a committed control response may carry a receipt");
}

TEST_F(ControlClientTest, WhatIsNoResponseIsRefused) {
  play_bytes(Bytes(kControlPreambleBytes, 1));
  EXPECT_EQ(asked(request()), "control:prefill control frame magic mismatch");
  const auto preamble = [](std::uint32_t length) {
    Bytes out(kControlMagic.begin(), kControlMagic.end());
    const auto bytes = le_bytes(length);
    out.insert(out.end(), bytes.begin(), bytes.end());
    return out;
  };
  for (const std::uint32_t length : {0U, 16'385U, kMaxControlFrameBytes, ~0U}) {
    play_bytes(preamble(length));
    EXPECT_EQ(asked(request()), "control:prefill control frame length is outside bounds") << length;
  }
  play_bytes(preamble(100));
  EXPECT_EQ(asked(request()), "io:I/O: unexpected end of file");
  EXPECT_THAT(answer_to_body("}"), StartsWith("control:"));
  EXPECT_EQ(answer_to_body(R"({"request_id":"r-1", "schema_version":1,"status":"accepted"})"),
            "control:JSON is not in the canonical compact sorted-key encoding");
  EXPECT_THAT(answer_to_body(R"({"request_id":"r-1","schema_version":1,"status":"accepted","z":1})"),
              StartsWith("control:"));
  EXPECT_THAT(answer_to_body(R"({"request_id":"r-1","schema_version":1,"status":"maybe"})"),
              StartsWith("control:"));
  play([](ControlConnection& connection) { connection.close(); });
  EXPECT_EQ(asked(request()), "io:I/O: unexpected end of file");
}

TEST_F(ControlClientTest, TheProducerMustBeTheOneThatIsPinned) {
  const ReceiverConfig good = receiver_config_;
  play([](ControlConnection&) {});
  receiver_config_.peer_leaf_sha256 = {std::string(64, '0')};
  EXPECT_EQ(asked(request()), "leaf_pin:peer leaf certificate pin mismatch");
  receiver_config_ = good;
  play([](ControlConnection&) {});
  receiver_config_.producer_control->server_name = "elsewhere";
  EXPECT_THAT(asked(request()), StartsWith("tls:"));
  receiver_config_ = good;
  play([](ControlConnection&) {}, kHandoffAlpn);
  EXPECT_THAT(asked(request()), StartsWith("tls:"));
}

TEST_F(ControlClientTest, NothingIsSentThatNoProducerWouldTake) {
  constexpr const char* kBounds = "control:prefill control request violates its closed bounds";
  ControlRequest wrong = request();
  wrong.prompt_token_ids = {1};
  EXPECT_EQ(asked(wrong), kBounds);
  wrong = request();
  wrong.deadline_unix_ms = clock_.wall_ms();
  EXPECT_EQ(asked(wrong), kBounds);
  wrong = request();
  wrong.receiver_port = 0;
  EXPECT_EQ(asked(wrong), kBounds);
  receiver_config_.producer_control.reset();
  EXPECT_EQ(asked(request()), "config:receiver configuration has no producer_control");
}

TEST_F(ControlClientTest, ASilentProducerIsWaitedForUntilTheDeadline) {
  Gate over;
  play([&](ControlConnection&) { over.pass(); });
  ControlRequest brief = request();
  brief.deadline_unix_ms = clock_.wall_ms() + 300;
  EXPECT_EQ(asked(brief), "timeout:timed out talking to the peer");
  over.open();
  join();
  // The system takes the connection, and nobody shakes hands.
  brief.deadline_unix_ms = clock_.wall_ms() + 100;
  EXPECT_EQ(asked(brief), "timeout:timed out talking to the peer");
}

TEST_F(ControlClientTest, AStopEndsTheWait) {
  Gate over;
  std::stop_source stop;
  play([&](ControlConnection&) {
    stop.request_stop();
    over.pass();
  });
  EXPECT_EQ(verdict(ask(request(), stop.get_token())), "cancelled:operation was cancelled");
  over.open();
}

TEST_F(ControlClientTest, NobodyListens) {
  receiver_config_.producer_control->address.port = 1;
  EXPECT_THAT(asked(request()), StartsWith("io:I/O: 127.0.0.1:1: "));
}

TEST_F(ControlClientTest, TheReceiptIsTelemetryAndAnythingElseIsAbsent) {
  const ControlReceipt receipt{1, 2, 3, 4, 5, 6, 7, 8, 9};
  const auto seen = [&](const std::vector<ControlResponse>& behind) {
    std::vector<ControlResponse> all{response(ControlStatus::kAccepted)};
    all.insert(all.end(), behind.begin(), behind.end());
    play_responses(all);
    auto client = ask(request());
    EXPECT_TRUE(client.has_value());
    return client.has_value() ? client->receipt(30'000) : std::nullopt;
  };
  EXPECT_EQ(seen({response(ControlStatus::kCommitted, std::nullopt, receipt)}), receipt);
  EXPECT_FALSE(seen({response(ControlStatus::kCommitted)}).has_value());
  EXPECT_FALSE(seen({}).has_value());
  EXPECT_FALSE(seen({response(ControlStatus::kFailed, "late")}).has_value());
  EXPECT_FALSE(seen({response(ControlStatus::kAccepted)}).has_value());
  EXPECT_FALSE(seen({response(ControlStatus::kCommitted, std::nullopt, receipt, "r-2")}).has_value());
  ControlReceipt wrong = receipt;
  wrong.payload_wire_ns = 0;
  EXPECT_FALSE(seen({response(ControlStatus::kCommitted, std::nullopt, wrong)}).has_value());
  // One that comes only after the wait.
  Gate late;
  play([&](ControlConnection& connection) {
    static_cast<void>(connection.send(
        *encode_control_frame(encode_control_response(response(ControlStatus::kAccepted))), soon()));
    late.pass();
    static_cast<void>(connection.send(*encode_control_frame(encode_control_response(
                                          response(ControlStatus::kCommitted, std::nullopt, receipt))),
                                      soon()));
  });
  auto client = ask(request());
  ASSERT_TRUE(client.has_value());
  EXPECT_FALSE(client->receipt(1).has_value());
  late.open();
}

TEST(ControlFrameReader, TakesAFrameInAnyPiecesAndNothingBehindIt) {
  const Bytes body{1, 2, 3, 4, 5, 6, 7};
  Bytes stream = *encode_control_frame(body);
  const std::size_t frame_bytes = stream.size();
  stream.insert(stream.end(), {9, 9, 9});
  for (std::size_t piece = 1; piece <= stream.size(); ++piece) {
    ControlFrameReader reader(7);
    std::size_t taken = 0;
    for (bool whole = false; !whole;) {
      const ByteSpan given = ByteSpan(stream).subspan(taken, std::min(piece, stream.size() - taken));
      ByteSpan rest = given;
      const auto pushed = reader.push(rest);
      ASSERT_TRUE(pushed.has_value());
      whole = *pushed;
      taken += given.size() - rest.size();
    }
    EXPECT_EQ(taken, frame_bytes) << piece;
    EXPECT_EQ(std::move(reader).take_body(), body) << piece;
  }
}

TEST(ControlFrameReader, KeepsToItsBoundAndHoldsOnlyWhatHasCome) {
  const Bytes frame = *encode_control_frame(Bytes(8));
  ControlFrameReader narrow(7);
  ByteSpan input = frame;
  EXPECT_EQ(verdict(narrow.push(input)), "control:prefill control frame length is outside bounds");
  ControlFrameReader reader(kMaxControlFrameBytes);
  Bytes claim = frame;
  store_le(MutableByteSpan(claim), kControlMagic.size(), kMaxControlFrameBytes);
  input = claim;
  EXPECT_EQ(*reader.push(input), false);
  EXPECT_EQ(reader.held_bytes(), 8U);
}

TEST(ControlRequestIds, AreNeverMintedTwice) {
  const std::string first = mint_request_id(77);
  const std::string second = mint_request_id(77);
  EXPECT_THAT(first, StartsWith("muser-77-"));
  EXPECT_NE(first, second);
}

TEST(ControlImages, AreWitnessedAsPositionsAndJudgedBeforeTheyAreUsed) {
  ControlRequest request{.request_id = "r-1",
                         .deadline_unix_ms = 99,
                         .receiver_host = "127.0.0.1",
                         .receiver_port = 1,
                         .prompt_token_ids = {},
                         .segments = {},
                         .multimodal = {}};
  EXPECT_TRUE(decode_control_images(request)->empty());
  const Bytes one{'h', 'i'};
  const Bytes two{'y', 'o', 'u', '!'};
  const auto digest_one = sha256(one);
  const auto digest_two = sha256(two);
  Bytes both(digest_one.begin(), digest_one.end());
  both.insert(both.end(), digest_two.begin(), digest_two.end());
  request.segments.emplace_back(std::vector<std::uint32_t>{5});
  request.segments.emplace_back(ControlImage{"aGk=", to_hex(digest_one), 2});
  request.segments.emplace_back(ControlImage{"eW91IQ==", to_hex(digest_two), 1});
  request.segments.emplace_back(std::vector<std::uint32_t>{6, 7});
  request.multimodal =
      handoff::MultimodalIdentity{to_hex(sha256(both)), std::string(64, 'b'), std::string(64, 'c')};
  ASSERT_TRUE(check_control_request(request, 0).has_value());
  EXPECT_THAT(request_positions(request),
              ::testing::ElementsAre(5, 0x7fffffff, 0x7fffffff, 0x7fffffff, 6, 7));
  const auto images = decode_control_images(request);
  ASSERT_TRUE(images.has_value()) << images.error().verdict();
  EXPECT_THAT(*images, ::testing::ElementsAre(one, two));
  const auto with_image = [&](std::string base64, std::string digest) {
    ControlRequest changed = request;
    changed.segments[1] = ControlImage{std::move(base64), std::move(digest), 2};
    return verdict(decode_control_images(changed));
  };
  for (const char* base64 : {"aGk", "aGk==", "aGk =", "aGl=", "=aGk", "a=k=", "aG-=", "====", "aGk=aGk=", ""})
    EXPECT_EQ(with_image(base64, to_hex(digest_one)),
              "control:multimodal image segment violates its closed bounds")
        << base64;
  EXPECT_EQ(with_image("aGk=", to_hex(digest_two)), "control:multimodal image digest mismatch");
  request.multimodal->image_sequence_sha256[0] ^= 1;
  EXPECT_EQ(verdict(decode_control_images(request)), "control:multimodal image sequence digest mismatch");
}

}  // namespace kvpack::net::control_client_test
