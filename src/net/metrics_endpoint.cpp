#include "net/metrics_endpoint.h"

#include <array>
#include <asio/write.hpp>
#include <chrono>

namespace kvpack::net {

namespace {

/// The answer to a whole request header.
std::string answer(std::string_view request, const std::function<std::string()>& page) {
  const auto reply = [](std::string_view status, std::string_view more, const std::string& body) {
    return "HTTP/1.0 " + std::string(status) +
           "\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n" + std::string(more) +
           "Content-Length: " + std::to_string(body.size()) + "\r\nConnection: close\r\n\r\n" + body;
  };
  const std::string_view line = request.substr(0, request.find_first_of("\r\n"));
  const std::size_t first = line.find(' ');
  const std::size_t last = line.rfind(' ');
  if (first == std::string_view::npos || first == last || !line.substr(last + 1).starts_with("HTTP/1."))
    return reply("400 Bad Request", "", "not an HTTP request\n");
  if (line.substr(0, first) != "GET") return reply("405 Method Not Allowed", "Allow: GET\r\n", "GET only\n");
  if (line.substr(first + 1, last - first - 1) != "/metrics")
    return reply("404 Not Found", "", "see /metrics\n");
  return reply("200 OK", "", page());
}

bool is_complete(std::string_view request) {
  return request.find("\r\n\r\n") != std::string_view::npos || request.find("\n\n") != std::string_view::npos;
}

}  // namespace

class MetricsEndpoint::Connection final : public std::enable_shared_from_this<Connection> {
 public:
  Connection(MetricsEndpoint& endpoint, asio::ip::tcp::socket socket)
      : endpoint_(&endpoint), socket_(std::move(socket)), deadline_(socket_.get_executor()) {}

  void start() {
    deadline_.expires_after(std::chrono::milliseconds(kDeadlineMs));
    deadline_.async_wait([self = shared_from_this()](const asio::error_code& error) {
      if (!error) self->end();
    });
    read_on();
  }
  void close() noexcept {
    asio::error_code ignored;
    socket_.close(ignored);
    deadline_.cancel();
  }

 private:
  void read_on() {
    socket_.async_read_some(asio::buffer(piece_),
                            [self = shared_from_this()](const asio::error_code& error, std::size_t n) {
                              if (error) return self->end();
                              self->take(n);
                            });
  }
  void take(std::size_t n) {
    request_.append(piece_.data(), n);
    // What is too long for a header is no request of ours; nobody is owed an explanation.
    if (request_.size() > kMaxRequestBytes) return end();
    if (!is_complete(request_)) return read_on();
    answer_ = answer(request_, endpoint_->page_);
    asio::async_write(socket_, asio::buffer(answer_),
                      [self = shared_from_this()](const asio::error_code&, std::size_t) { self->end(); });
  }
  void end() {
    const auto self = shared_from_this();
    asio::error_code ignored;
    socket_.shutdown(asio::ip::tcp::socket::shutdown_both, ignored);
    close();
    endpoint_->connections_.erase(self);
  }

  MetricsEndpoint* endpoint_;
  asio::ip::tcp::socket socket_;
  asio::steady_timer deadline_;
  std::array<char, 1024> piece_{};
  std::string request_;
  std::string answer_;
};

MetricsEndpoint::MetricsEndpoint(asio::io_context& io, std::function<std::string()> page)
    : acceptor_(io), pause_(io), page_(std::move(page)) {}

MetricsEndpoint::~MetricsEndpoint() = default;

Status MetricsEndpoint::listen(const SocketAddress& address) {
  asio::error_code error;
  const auto ip = asio::ip::make_address(address.ip, error);
  const asio::ip::tcp::endpoint endpoint(ip, address.port);
  if (!error) acceptor_.open(endpoint.protocol(), error);
  if (!error) acceptor_.set_option(asio::socket_base::reuse_address(true), error);
  if (!error) acceptor_.bind(endpoint, error);
  if (!error) acceptor_.listen(static_cast<int>(kMaxConnections), error);
  if (error) return fail(ErrorCode::kIo, "bind " + address.text() + ": " + error.message());
  return success();
}

SocketAddress MetricsEndpoint::address() const {
  asio::error_code error;
  const auto endpoint = acceptor_.local_endpoint(error);
  if (error) return {};
  return {endpoint.address().to_string(), endpoint.port()};
}

void MetricsEndpoint::start() {
  accept_next();
}

void MetricsEndpoint::accept_next() {
  acceptor_.async_accept([this](const asio::error_code& error, asio::ip::tcp::socket socket) {
    if (!acceptor_.is_open()) return;
    if (!error) {
      take(std::move(socket));
      return accept_next();
    }
    // Out of descriptors, most likely: waiting a little is better than spinning.
    pause_.expires_after(std::chrono::milliseconds(100));
    pause_.async_wait([this](const asio::error_code& aborted) {
      if (!aborted && acceptor_.is_open()) accept_next();
    });
  });
}

void MetricsEndpoint::take(asio::ip::tcp::socket socket) {
  if (connections_.size() >= kMaxConnections) return;
  const auto connection = std::make_shared<Connection>(*this, std::move(socket));
  connections_.insert(connection);
  connection->start();
}

void MetricsEndpoint::close() noexcept {
  asio::error_code ignored;
  acceptor_.close(ignored);
  pause_.cancel();
  for (const auto& connection : connections_) connection->close();
}

}  // namespace kvpack::net
