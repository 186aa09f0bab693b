// The smallest HTTP server that a monitoring system can read from: GET /metrics, one answer per connection.
// docs/operations.md §Monitoring a receiver
#pragma once

#include <stdlib.h>  // NOLINT(modernize-deprecated-headers): Asio asks for libstdc++'s macros first.

#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <set>

#include "kvpack/net/socket_address.h"

namespace kvpack::net {

// Serves from the loop of its owner, which runs and ends it. Requests are at most kMaxRequestBytes long and
// end kDeadlineMs after their connection came; more than kMaxConnections at a time are closed at once.
class MetricsEndpoint {
 public:
  static constexpr std::size_t kMaxConnections = 8;
  static constexpr std::size_t kMaxRequestBytes = 4096;
  static constexpr int kDeadlineMs = 5000;

  // @param page  called for each answer
  MetricsEndpoint(asio::io_context& io, std::function<std::string()> page);
  MetricsEndpoint(const MetricsEndpoint&) = delete;
  MetricsEndpoint& operator=(const MetricsEndpoint&) = delete;
  ~MetricsEndpoint();

  // @error kIo `bind {address}: {e}`
  Status listen(const SocketAddress& address);
  // With the port that the system chose where 0 was asked for.
  SocketAddress address() const;
  void start();
  // Closes everything.
  void close() noexcept;

 private:
  class Connection;
  void accept_next();
  void take(asio::ip::tcp::socket socket);

  asio::ip::tcp::acceptor acceptor_;
  asio::steady_timer pause_;
  std::function<std::string()> page_;
  std::set<std::shared_ptr<Connection>> connections_;
};

}  // namespace kvpack::net
