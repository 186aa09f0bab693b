#include "net/metrics.h"

#include <asio/connect.hpp>
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/read.hpp>
#include <asio/write.hpp>

#include "net/cluster_fixture.h"
#include "net/metrics_endpoint.h"

namespace kvpack::net::metrics_test {

using testing::Cluster;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::string page_of(const ReceiverMetrics& metrics, const ReceiverCounters& counters = {}) {
  return metrics.text(counters, 1'234'567);
}

/// The value of a series, or `absent`.
std::string value_of(const std::string& page, const std::string& series) {
  const std::size_t at = page.find("\n" + series + " ");
  if (at == std::string::npos) return "absent";
  const std::size_t begin = at + series.size() + 2;
  return page.substr(begin, page.find('\n', begin) - begin);
}

TEST(ReceiverMetrics, CountsByOutcomeAndCategory) {
  ReceiverMetrics metrics;
  AttemptReceipt receipt;
  metrics.note(receipt);
  receipt.end = AttemptEnd::kVerify;
  receipt.error = fail(ErrorCode::kValidation, "wrong V2 protocol");
  metrics.note(receipt);
  metrics.note(receipt);
  receipt.error = fail(ErrorCode::kNoMemory, "out of memory");
  metrics.note(receipt);
  ReceiverCounters counters;
  counters.ends[static_cast<std::size_t>(AttemptEnd::kVerify)] = 3;
  counters.accepted = 4;
  counters.open_connections = 2;
  counters.installed_bytes = 1ULL << 63;
  counters.degraded = true;
  const std::string page = page_of(metrics, counters);
  EXPECT_EQ(value_of(page, "kvpack_receiver_attempts_total{end=\"verify\"}"), "3");
  EXPECT_EQ(value_of(page, "kvpack_receiver_attempts_total{end=\"committed\"}"), "0");
  EXPECT_EQ(value_of(page, "kvpack_receiver_errors_total{category=\"validation\"}"), "2");
  EXPECT_EQ(value_of(page, "kvpack_receiver_errors_total{category=\"no_memory\"}"), "1");
  EXPECT_EQ(value_of(page, "kvpack_receiver_errors_total{category=\"replay\"}"), "absent");
  EXPECT_EQ(value_of(page, "kvpack_receiver_connections_total"), "4");
  EXPECT_EQ(value_of(page, "kvpack_receiver_open_connections"), "2");
  EXPECT_EQ(value_of(page, "kvpack_receiver_installed_bytes_total"), "9223372036854775808");
  EXPECT_EQ(value_of(page, "kvpack_receiver_degraded"), "1");
  EXPECT_EQ(value_of(page, "kvpack_receiver_ledger_was_missing"), "0");
  EXPECT_EQ(value_of(page, "kvpack_receiver_start_time_seconds"), "1234");
  EXPECT_THAT(page, Not(HasSubstr("wrong V2 protocol")));
}

TEST(ReceiverMetrics, EveryOutcomeIsThereFromTheStart) {
  const std::string page = page_of({});
  for (std::size_t i = 0; i < static_cast<std::size_t>(AttemptEnd::kCount); ++i) {
    const std::string name(attempt_end_name(static_cast<AttemptEnd>(i)));
    EXPECT_EQ(value_of(page, "kvpack_receiver_attempts_total{end=\"" + name + "\"}"), "0") << name;
  }
}

TEST(ReceiverMetrics, PhasesFallIntoCumulativeBuckets) {
  ReceiverMetrics metrics;
  AttemptReceipt receipt;
  for (const std::uint64_t ns :
       {std::uint64_t{100'000}, std::uint64_t{100'001}, std::uint64_t{999'999'999'999}}) {
    receipt.phases.reserve_ns = ns;
    metrics.note(receipt);
  }
  const std::string page = page_of(metrics);
  const auto bucket = [&](const std::string& phase, const std::string& bound) {
    return value_of(page,
                    "kvpack_receiver_phase_seconds_bucket{phase=\"" + phase + "\",le=\"" + bound + "\"}");
  };
  EXPECT_EQ(bucket("reserve", "0.0001"), "1");
  EXPECT_EQ(bucket("reserve", "0.0005"), "2");
  EXPECT_EQ(bucket("reserve", "300"), "2");
  EXPECT_EQ(bucket("reserve", "+Inf"), "3");
  EXPECT_EQ(value_of(page, "kvpack_receiver_phase_seconds_count{phase=\"reserve\"}"), "3");
  EXPECT_EQ(value_of(page, "kvpack_receiver_phase_seconds_sum{phase=\"reserve\"}"), "1000.0002");
  // Not reached is not short.
  EXPECT_EQ(bucket("commit", "+Inf"), "0");
  receipt.phases.reserve_ns = ~std::uint64_t{0};
  metrics.note(receipt);
  metrics.note(receipt);
  EXPECT_EQ(value_of(page_of(metrics), "kvpack_receiver_phase_seconds_sum{phase=\"reserve\"}"),
            "18446744073.709551615");
}

// Every line is a comment or a series with a number, and every family is described before its samples.
TEST(ReceiverMetrics, ThePageIsWellFormed) {
  ReceiverMetrics metrics;
  AttemptReceipt receipt;
  receipt.error = fail(ErrorCode::kTls, "TLS: \"quoted\"\n");
  metrics.note(receipt);
  std::istringstream page(page_of(metrics));
  std::string family;
  std::size_t samples = 0;
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with("# TYPE ")) family = line.substr(7, line.find(' ', 7) - 7);
    if (line.starts_with("#")) continue;
    ++samples;
    EXPECT_TRUE(line.starts_with(family)) << line;
    const std::size_t blank = line.rfind(' ');
    ASSERT_NE(blank, std::string::npos) << line;
    EXPECT_EQ(line.find_first_not_of("0123456789.", blank + 1), std::string::npos) << line;
  }
  EXPECT_GT(samples, 100U);
}

class Scrape : public Cluster {
 protected:
  void start_with_metrics() {
    settings_.metrics_listen = SocketAddress{"127.0.0.1", 0};
    ASSERT_NO_FATAL_FAILURE(start());
    ASSERT_TRUE(receiver_->metrics_address().has_value());
    endpoint_ = {asio::ip::make_address("127.0.0.1"), receiver_->metrics_address()->port};
  }
  /// What comes back until the other side closes.
  std::string ask(const std::string& request) {
    asio::ip::tcp::socket socket(io_);
    socket.connect(endpoint_);
    asio::error_code error;
    asio::write(socket, asio::buffer(request), error);
    return rest_of(socket);
  }
  std::string rest_of(asio::ip::tcp::socket& socket) {
    asio::error_code error;
    std::string out;
    asio::read(socket, asio::dynamic_buffer(out), error);
    return out;
  }

  asio::io_context io_;
  asio::ip::tcp::endpoint endpoint_;
};

TEST_F(Scrape, TheNumbersFollowTheTransfers) {
  ASSERT_NO_FATAL_FAILURE(start_with_metrics());
  EXPECT_EQ(outcome(), "acknowledged");
  std::filesystem::remove(producer_config_.generation_ledger);
  EXPECT_EQ(outcome(), "replay:replayed or stale generation");
  static_cast<void>(host_.receipt(1));
  const std::string page = ask("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_THAT(page,
              StartsWith("HTTP/1.0 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"));
  EXPECT_EQ(value_of(page, "kvpack_receiver_attempts_total{end=\"committed\"}"), "1");
  EXPECT_EQ(value_of(page, "kvpack_receiver_attempts_total{end=\"ledger\"}"), "1");
  EXPECT_EQ(value_of(page, "kvpack_receiver_errors_total{category=\"replay\"}"), "1");
  EXPECT_EQ(value_of(page, "kvpack_receiver_refusals_sent_total"), "1");
  EXPECT_EQ(value_of(page, "kvpack_receiver_installed_bytes_total"), "12288");
  EXPECT_EQ(value_of(page, "kvpack_receiver_ledger_was_missing"), "1");
  EXPECT_EQ(value_of(page, "kvpack_receiver_phase_seconds_count{phase=\"reserve\"}"), "1");
  const std::size_t body = page.find("\r\n\r\n") + 4;
  EXPECT_THAT(page, HasSubstr("Content-Length: " + std::to_string(page.size() - body) + "\r\n"));
}

TEST_F(Scrape, NothingElseIsServed) {
  ASSERT_NO_FATAL_FAILURE(start_with_metrics());
  EXPECT_THAT(ask("GET / HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.0 404 Not Found\r\n"));
  EXPECT_THAT(ask("GET /metrics/../etc HTTP/1.0\n\n"), StartsWith("HTTP/1.0 404 Not Found\r\n"));
  EXPECT_THAT(ask("POST /metrics HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.0 405 Method Not Allowed\r\n"));
  for (const char* garbage : {"\r\n\r\n", "GET\r\n\r\n", "GET /metrics\r\n\r\n",
                              "GET /metrics FTP/1.0\r\n\r\n", "\x16\x03\x01\x02\n\n"})
    EXPECT_THAT(ask(garbage), StartsWith("HTTP/1.0 400 Bad Request\r\n")) << garbage;
  EXPECT_THAT(ask("GET /metrics HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.0 200 OK\r\n"));
}

TEST_F(Scrape, ARequestWithoutEndIsClosedUnanswered) {
  ASSERT_NO_FATAL_FAILURE(start_with_metrics());
  EXPECT_EQ(ask(std::string(MetricsEndpoint::kMaxRequestBytes + 1, 'x')), "");
  EXPECT_EQ(ask("GET /metrics HTTP/1.1\r\nX: " + std::string(1U << 20, 'y')), "");
  EXPECT_THAT(ask("GET /metrics HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.0 200 OK\r\n"));
  EXPECT_EQ(outcome(), "acknowledged");
}

TEST_F(Scrape, SilentConnectionsAreFewAndHoldUpNobody) {
  ASSERT_NO_FATAL_FAILURE(start_with_metrics());
  std::vector<asio::ip::tcp::socket> silent;
  for (std::size_t i = 0; i <= MetricsEndpoint::kMaxConnections; ++i) {
    silent.emplace_back(io_);
    silent.back().connect(endpoint_);
  }
  // The one too many is closed at once, the others by their deadline or the stop.
  EXPECT_EQ(rest_of(silent.back()), "");
  EXPECT_EQ(outcome(), "acknowledged");
  stop();
  for (auto& socket : silent) EXPECT_EQ(rest_of(socket), "");
}

TEST_F(Scrape, ThereIsNoEndpointUnlessAskedFor) {
  start();
  EXPECT_FALSE(receiver_->metrics_address().has_value());
  stop();
  ASSERT_NO_FATAL_FAILURE(start_with_metrics());
  settings_.metrics_listen = receiver_->metrics_address();
  receiver_config_.replay_ledger = folder_.path("other.json");
  const auto second = bind();
  ASSERT_FALSE(second.has_value());
  EXPECT_THAT(second.error().verdict(), StartsWith("io:bind " + settings_.metrics_listen->text() + ": "));
}

}  // namespace kvpack::net::metrics_test
