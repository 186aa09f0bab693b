#include "kvpack/net/control_server.h"

#include <asio/write.hpp>

#include "net/control_fixture.h"
#include "support/mutate.h"

namespace kvpack::net::control_server_test {

using testing::ControlCluster;
using testing::Gate;
using ::testing::StartsWith;
using testing::verdict_of;
using testing::wait_for_stop;

class ControlServerTest : public ControlCluster {
 protected:
  // Sends these bytes over TLS as an enrolled receiver. @return what is heard of them: the end of the attempt
  std::string end_of(ByteSpan bytes) {
    ControlConnection connection(clock_);
    EXPECT_TRUE(connect(connection).has_value());
    EXPECT_TRUE(connection.send(bytes, soon()).has_value());
    return verdict_of(jobs_.attempt(next_attempt_++));
  }
  std::string end_of_body(std::string_view body) { return end_of(*encode_control_frame(byte_view(body))); }
  Bytes request_frame(const ControlRequest& what) const {
    return *encode_control_frame(encode_control_request(what));
  }

  std::size_t next_attempt_ = 0;
};

// A job that moves nothing.
Result<ControlReceipt> idle_job(const ControlRequest&, const std::stop_token&) {
  return ControlReceipt{1, 2, 3, 4, 5, 6, 7, 8, 9};
}

TEST_F(ControlServerTest, AcceptsRunsTheJobAndSaysWhatItMeasured) {
  jobs_.job = idle_job;
  start_producer();
  auto client = ask(request());
  ASSERT_TRUE(client.has_value()) << client.error().verdict();
  const auto end = client->next(30'000);
  ASSERT_TRUE(end.has_value()) << end.error().verdict();
  EXPECT_EQ(end->status, ControlStatus::kCommitted);
  EXPECT_EQ(end->receipt, (ControlReceipt{1, 2, 3, 4, 5, 6, 7, 8, 9}));
  const ControlAttempt attempt = jobs_.attempt(0);
  EXPECT_EQ(verdict_of(attempt), "committed ok");
  EXPECT_EQ(attempt.request_id, "r-1");
  EXPECT_EQ(attempt.positions, 3U);
  EXPECT_EQ(attempt.peer_leaf_sha256, *producer_config_.peer_leaf_sha256.begin());
  EXPECT_EQ(attempt.receipt, end->receipt);
  EXPECT_FALSE(attempt.receiver_left);
}

TEST_F(ControlServerTest, AReceiptOutOfOrderIsLeftOutAndTheCommitStands) {
  jobs_.job = [](const ControlRequest&, const std::stop_token&) -> Result<ControlReceipt> {
    return ControlReceipt{};
  };
  start_producer();
  auto client = ask(request());
  ASSERT_TRUE(client.has_value());
  const auto end = client->next(30'000);
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->status, ControlStatus::kCommitted);
  EXPECT_FALSE(end->receipt.has_value());
  EXPECT_EQ(verdict_of(jobs_.attempt(0)), "committed ok");
}

TEST_F(ControlServerTest, ARequestOutsideItsBoundsIsToldSo) {
  server_options_.limits.vocabulary = 100;
  server_options_.limits.max_positions = 5;
  start_producer();
  constexpr const char* kBounds = "control:prefill control request violates its closed bounds";
  const auto refused_with = [&](auto change) {
    ControlRequest changed = request();
    change(changed);
    ControlConnection connection(clock_);
    EXPECT_TRUE(connect(connection).has_value());
    EXPECT_TRUE(connection.send(request_frame(changed), soon()).has_value());
    const auto body = connection.receive(16'384, soon());
    const std::string seen = verdict_of(jobs_.attempt(next_attempt_++));
    if (!body.has_value()) return seen + ", " + body.error().verdict();
    const auto response = decode_control_response(*body);
    EXPECT_EQ(response->status, ControlStatus::kFailed);
    EXPECT_EQ(response->request_id, changed.request_id);
    return seen + ", control:" + *response->error;
  };
  const std::string both = std::string("refused ") + kBounds + ", " + kBounds;
  EXPECT_EQ(refused_with([](ControlRequest& r) { r.deadline_unix_ms = 1; }), both);
  EXPECT_EQ(refused_with([](ControlRequest& r) { r.prompt_token_ids = {1}; }), both);
  EXPECT_EQ(refused_with([](ControlRequest& r) { r.prompt_token_ids = {1, 2, 3, 4, 5, 6}; }), both);
  EXPECT_EQ(refused_with([](ControlRequest& r) { r.prompt_token_ids = {1, 100}; }), both);
  EXPECT_EQ(refused_with([](ControlRequest& r) { r.receiver_port = 0; }), both);
  EXPECT_EQ(refused_with([](ControlRequest& r) { r.receiver_port = 65'536; }), both);
  EXPECT_EQ(refused_with([](ControlRequest& r) { r.receiver_host = "a/b"; }), both);
  EXPECT_EQ(refused_with([](ControlRequest& r) { r.request_id = "a b"; }), both);
  // Nothing that long is repeated.
  EXPECT_EQ(refused_with([](ControlRequest& r) { r.request_id = std::string(129, 'a'); }),
            std::string("refused ") + kBounds + ", io:I/O: unexpected end of file");
  constexpr const char* kElsewhere = "control:prefill control request names another receiver";
  for (const char* host : {"127.0.0.2", "localhost", "169.254.169.254", "::1"})
    EXPECT_EQ(refused_with([&](ControlRequest& r) { r.receiver_host = host; }),
              std::string("refused ") + kElsewhere + ", " + kElsewhere)
        << host;
}

TEST_F(ControlServerTest, WhatIsNoRequestIsClosed) {
  start_producer();
  EXPECT_EQ(end_of(Bytes(kControlPreambleBytes, 0)),
            "unreadable control:prefill control frame magic mismatch");
  const Bytes good = request_frame(request());
  const auto with_length = [&](std::uint32_t length) {
    return end_of(kvpack::testing::with_le(good, kControlMagic.size(), length));
  };
  constexpr const char* kLength = "unreadable control:prefill control frame length is outside bounds";
  EXPECT_EQ(with_length(0), kLength);
  EXPECT_EQ(with_length(2'097'153), kLength);
  EXPECT_EQ(with_length(kMaxControlFrameBytes), kLength);
  EXPECT_EQ(with_length(~0U), kLength);
  EXPECT_THAT(end_of_body("{"), StartsWith("unreadable control:"));
  EXPECT_THAT(end_of_body("[]"), StartsWith("unreadable control:"));
  EXPECT_THAT(end_of_body("{\"schema_version\":3}"), StartsWith("unreadable control:"));
  const std::string body(text_view(ByteSpan(good).subspan(kControlPreambleBytes)));
  EXPECT_EQ(end_of_body(" " + body),
            "unreadable control:JSON is not in the canonical compact sorted-key encoding");
  EXPECT_THAT(end_of_body(body.substr(0, body.size() - 1) + ",\"z\":1}"), StartsWith("unreadable control:"));
  // Half a frame, then nothing.
  ControlConnection half(clock_);
  ASSERT_TRUE(connect(half).has_value());
  ASSERT_TRUE(half.send(ByteSpan(good).first(20), soon()).has_value());
  half.close();
  EXPECT_EQ(verdict_of(jobs_.attempt(next_attempt_++)), "unreadable io:I/O: unexpected end of file");
  jobs_.job = idle_job;
  EXPECT_EQ(asked(request()), "accepted");
}

TEST_F(ControlServerTest, OnlyEnrolledReceiversGetThroughTheHandshake) {
  start_producer();
  const ReceiverConfig good = receiver_config_;
  const auto stranger = authority_.issue("stranger");
  receiver_config_.certificate_chain = stranger.chain;
  receiver_config_.private_key = stranger.key;
  EXPECT_NE(asked(request()), "accepted");
  EXPECT_EQ(verdict_of(jobs_.attempt(0)), "handshake leaf_pin:peer leaf certificate pin mismatch");
  const testing::Authority elsewhere(folder_, "elsewhere");
  const auto foreigner = elsewhere.issue("foreigner");
  receiver_config_.certificate_chain = foreigner.chain;
  receiver_config_.private_key = foreigner.key;
  EXPECT_NE(asked(request()), "accepted");
  EXPECT_THAT(verdict_of(jobs_.attempt(1)), StartsWith("handshake tls:"));
  receiver_config_ = good;
  for (const std::string_view name : {kHandoffAlpn, kRefusalAlpn}) {
    ControlConnection connection(clock_);
    TlsPeer peer = producer_peer();
    peer.alpn = {name};
    const auto shaken = connection.connect(fs_, server_->address(), receiver_files(), peer, soon());
    EXPECT_EQ(shaken.error().code, ErrorCode::kTls);
  }
  EXPECT_THAT(verdict_of(jobs_.attempt(2)), StartsWith("handshake tls:"));
  EXPECT_THAT(verdict_of(jobs_.attempt(3)), StartsWith("handshake tls:"));
  asio::io_context io;
  asio::ip::tcp::socket plain(io);
  plain.connect({asio::ip::make_address("127.0.0.1"), server_->address().port});
  asio::write(plain, asio::buffer(std::string("GET / HTTP/1.1\r\nHost: x\r\n\r\n")));
  EXPECT_THAT(verdict_of(jobs_.attempt(4)), StartsWith("handshake tls:"));
  jobs_.job = idle_job;
  EXPECT_EQ(asked(request()), "accepted");
}

TEST_F(ControlServerTest, SilentPeersHoldUpNobody) {
  server_options_.handshake_timeout_ms = 600'000;
  server_options_.request_timeout_ms = 600'000;
  jobs_.job = idle_job;
  start_producer();
  asio::io_context io;
  std::vector<asio::ip::tcp::socket> silent;
  for (int i = 0; i < 6; ++i) {
    silent.emplace_back(io);
    silent.back().connect({asio::ip::make_address("127.0.0.1"), server_->address().port});
  }
  ControlConnection wordless(clock_);
  ASSERT_TRUE(connect(wordless).has_value());
  ControlConnection stuck(clock_);
  ASSERT_TRUE(connect(stuck).has_value());
  ASSERT_TRUE(stuck.send(ByteSpan(request_frame(request())).first(40), soon()).has_value());
  EXPECT_EQ(asked(request()), "accepted");
  EXPECT_EQ(verdict_of(jobs_.attempt(0)), "committed ok");
  stop_producer();
  for (std::size_t i = 1; i < 9; ++i)
    EXPECT_EQ(jobs_.attempt(i).error->verdict(), "cancelled:operation was cancelled");
}

TEST_F(ControlServerTest, SilenceEndsAtItsDeadline) {
  server_options_.handshake_timeout_ms = 1;
  start_producer();
  asio::io_context io;
  asio::ip::tcp::socket silent(io);
  silent.connect({asio::ip::make_address("127.0.0.1"), server_->address().port});
  EXPECT_EQ(verdict_of(jobs_.attempt(0)), "handshake timeout:timed out talking to the peer");
  stop_producer();
  server_options_.handshake_timeout_ms = 30'000;
  server_options_.request_timeout_ms = 1;
  start_producer();
  ControlConnection wordless(clock_);
  ASSERT_TRUE(connect(wordless).has_value());
  EXPECT_EQ(verdict_of(jobs_.attempt(1)), "unreadable timeout:timed out talking to the peer");
}

TEST_F(ControlServerTest, MoreSilentPeersThanItReadsWaitForRoom) {
  server_options_.handshake_timeout_ms = 200;
  jobs_.job = idle_job;
  start_producer();
  asio::io_context io;
  std::vector<asio::ip::tcp::socket> silent;
  for (int i = 0; i < 20; ++i) {
    silent.emplace_back(io);
    silent.back().connect({asio::ip::make_address("127.0.0.1"), server_->address().port});
  }
  for (std::size_t i = 0; i < 20; ++i)
    EXPECT_EQ(verdict_of(jobs_.attempt(i)), "handshake timeout:timed out talking to the peer");
  stop_producer();
  server_options_.handshake_timeout_ms = 30'000;
  start_producer();
  EXPECT_EQ(asked(request()), "accepted");
}

TEST_F(ControlServerTest, AFailedJobIsToldAndTheNextOneRuns) {
  std::optional<Error> failure;
  jobs_.job = [&](const ControlRequest&, const std::stop_token&) -> Result<ControlReceipt> {
    return *failure;
  };
  start_producer();
  const auto told = [&](Error error) {
    failure = std::move(error);
    auto client = ask(request());
    if (!client.has_value()) return client.error().verdict();
    const auto end = client->next(30'000);
    if (!end.has_value()) return end.error().verdict();
    EXPECT_EQ(end->status, ControlStatus::kFailed);
    EXPECT_EQ(jobs_.attempt(next_attempt_++).error->verdict(), failure->verdict());
    return *end->error;
  };
  EXPECT_EQ(told(fail(ErrorCode::kControl, "no such prompt")), "no such prompt");
  // Texts that may name files stay at home.
  EXPECT_EQ(told(fail(ErrorCode::kIo, "open /etc/secret: gone")), "GX10 producer failed: Io");
  EXPECT_EQ(told(fail(ErrorCode::kConfig, "/etc/secret")), "GX10 producer failed: Config");
  EXPECT_EQ(told(fail(ErrorCode::kTls, "/etc/secret")), "GX10 producer failed: Tls");
  EXPECT_EQ(told(fail(ErrorCode::kInternal, "/etc/secret")), "GX10 producer failed: Io");
  EXPECT_EQ(told(fail(ErrorCode::kReplay, "replayed or stale generation").with("refused_by", "receiver")),
            "replayed or stale generation");
  EXPECT_EQ(told(fail(ErrorCode::kControl, "")), "GX10 producer failed: Control");
  EXPECT_EQ(told(fail(ErrorCode::kControl, "\xff")), "GX10 producer failed: Control");
  EXPECT_EQ(told(fail(ErrorCode::kIo, std::string(5000, 'x')).with("refused_by", "receiver")),
            std::string(1024, 'x'));
  EXPECT_EQ(told(fail(ErrorCode::kControl, std::string(5000, 'x'))), std::string(512, 'x'));
}

TEST_F(ControlServerTest, ARefusalAndAFailureLeaveTheServerArmed) {
  jobs_.job = idle_job;
  start_producer();
  for (int i = 0; i < 3; ++i) {
    ControlRequest late = request();
    late.receiver_host = "elsewhere";
    EXPECT_EQ(asked(late), "control:prefill control request names another receiver");
    EXPECT_EQ(asked(request()), "accepted");
  }
}

TEST_F(ControlServerTest, AReceiverThatLeavesCancelsTheJob) {
  Gate running;
  jobs_.job = [&](const ControlRequest&, const std::stop_token& stop) -> Result<ControlReceipt> {
    running.open();
    wait_for_stop(stop);
    return fail(ErrorCode::kCancelled, "operation was cancelled");
  };
  start_producer();
  {
    auto client = ask(request());
    ASSERT_TRUE(client.has_value());
    running.pass();
    client->close();
  }
  const ControlAttempt attempt = jobs_.attempt(0);
  EXPECT_EQ(verdict_of(attempt), "failed cancelled:operation was cancelled");
  EXPECT_TRUE(attempt.receiver_left);
  jobs_.job = idle_job;
  EXPECT_EQ(asked(request()), "accepted");
}

TEST_F(ControlServerTest, AReceiverThatSpeaksCancelsTheJobAndHearsOfIt) {
  jobs_.job = [&](const ControlRequest&, const std::stop_token& stop) -> Result<ControlReceipt> {
    wait_for_stop(stop);
    return fail(ErrorCode::kCancelled, "operation was cancelled");
  };
  start_producer();
  ControlConnection connection(clock_);
  ASSERT_TRUE(connect(connection).has_value());
  ASSERT_TRUE(connection.send(request_frame(request()), soon()).has_value());
  const auto accepted = connection.receive(16'384, soon());
  ASSERT_TRUE(accepted.has_value());
  EXPECT_EQ(decode_control_response(*accepted)->status, ControlStatus::kAccepted);
  ASSERT_TRUE(connection.send(Bytes{1}, soon()).has_value());
  const auto failed = connection.receive(16'384, soon());
  ASSERT_TRUE(failed.has_value()) << failed.error().verdict();
  EXPECT_EQ(decode_control_response(*failed)->error, "operation was cancelled");
  EXPECT_TRUE(jobs_.attempt(0).receiver_left);
}

// More than its frame, even one byte: it has not kept silent.
TEST_F(ControlServerTest, ARequestWithSomethingBehindItIsNotBegun) {
  start_producer();
  Bytes frame = request_frame(request());
  frame.push_back(0);
  EXPECT_EQ(end_of(frame), "abandoned cancelled:receiver left before its turn");
}

TEST_F(ControlServerTest, WhatWasAcknowledgedIsCommittedThoughTheReceiverHasLeft) {
  jobs_.job = [&](const ControlRequest& what, const std::stop_token& stop) {
    wait_for_stop(stop);
    return idle_job(what, stop);
  };
  start_producer();
  {
    auto client = ask(request());
    ASSERT_TRUE(client.has_value());
  }
  const ControlAttempt attempt = jobs_.attempt(0);
  EXPECT_EQ(verdict_of(attempt), "committed ok");
  EXPECT_TRUE(attempt.receiver_left);
}

TEST_F(ControlServerTest, RequestsAreServedOneAfterTheOther) {
  jobs_.job = [](const ControlRequest& what, const std::stop_token& stop) {
    std::this_thread::yield();
    return idle_job(what, stop);
  };
  start_producer();
  std::vector<std::thread> receivers;
  for (int i = 0; i < 6; ++i)
    receivers.emplace_back([this, i] {
      auto client = ask(request("r-" + std::to_string(i)));
      ASSERT_TRUE(client.has_value()) << client.error().verdict();
      const auto end = client->next(30'000);
      ASSERT_TRUE(end.has_value()) << end.error().verdict();
      EXPECT_EQ(end->status, ControlStatus::kCommitted);
    });
  for (std::thread& receiver : receivers) receiver.join();
}

TEST_F(ControlServerTest, WhoHasLeftBeforeItsTurnIsPassedOver) {
  Gate running;
  Gate go_on;
  jobs_.job = [&](const ControlRequest& what, const std::stop_token& stop) {
    running.open();
    go_on.pass();
    return idle_job(what, stop);
  };
  start_producer();
  auto first = ask(request());
  ASSERT_TRUE(first.has_value());
  running.pass();
  ControlConnection impatient(clock_);
  ASSERT_TRUE(connect(impatient).has_value());
  ASSERT_TRUE(impatient.send(request_frame(request("r-2")), soon()).has_value());
  impatient.close();
  go_on.open();
  EXPECT_EQ(verdict_of(jobs_.attempt(0)), "committed ok");
  EXPECT_EQ(verdict_of(jobs_.attempt(1)), "abandoned cancelled:receiver left before its turn");
}

TEST_F(ControlServerTest, AStopCancelsTheJobAndTellsItsReceiver) {
  Gate running;
  jobs_.job = [&](const ControlRequest&, const std::stop_token& stop) -> Result<ControlReceipt> {
    running.open();
    wait_for_stop(stop);
    return fail(ErrorCode::kCancelled, "operation was cancelled");
  };
  start_producer();
  auto client = ask(request());
  ASSERT_TRUE(client.has_value());
  running.pass();
  server_->stop();
  const auto end = client->next(30'000);
  ASSERT_TRUE(end.has_value()) << end.error().verdict();
  EXPECT_EQ(end->status, ControlStatus::kFailed);
  EXPECT_FALSE(jobs_.attempt(0).receiver_left);
}

TEST_F(ControlServerTest, OneProducerForOneLock) {
  server_options_.lock_file = folder_.path("accelerator.lock");
  start_producer();
  const auto second = [&] {
    const auto server = ControlServer::bind(fs_, clock_, producer_config_, server_options_, jobs_);
    return server.has_value() ? "bound" : server.error().verdict();
  };
  EXPECT_EQ(second(), "busy:another process holds " + server_options_.lock_file);
  stop_producer();
  EXPECT_EQ(second(), "bound");
  EXPECT_EQ(std::filesystem::status(server_options_.lock_file).permissions(), testing::kPrivate);
}

TEST_F(ControlServerTest, WhatCannotBeBoundDoesNotStart) {
  const auto refusal = [&] {
    const auto server = ControlServer::bind(fs_, clock_, producer_config_, server_options_, jobs_);
    return server.has_value() ? "bound" : server.error().verdict();
  };
  start_producer();
  producer_config_.control_listen = server_->address();
  EXPECT_THAT(refusal(), StartsWith("io:bind " + server_->address().text() + ": "));
  producer_config_.control_listen.reset();
  EXPECT_EQ(refusal(), "config:producer settings name no control");
}

TEST_F(ControlServerTest, AReceiptLineHoldsNoToken) {
  ControlAttempt attempt{.end = ControlEnd::kFailed,
                         .error = fail(ErrorCode::kControl, "no such prompt"),
                         .ended_unix_ms = 7,
                         .peer = "127.0.0.1:1",
                         .peer_leaf_sha256 = "ab",
                         .request_id = "r-1",
                         .positions = 3};
  EXPECT_EQ(receipt_json(attempt),
            R"({"end":"failed","ended_unix_ms":7,"error":{"category":"control","message":"no such prompt"},)"
            R"("peer":"127.0.0.1:1","peer_leaf_sha256":"ab","positions":3,"receiver_left":false,)"
            R"("request_id":"r-1"})");
}

}  // namespace kvpack::net::control_server_test
