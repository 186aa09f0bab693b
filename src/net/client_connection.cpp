#include "net/client_connection.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <asio/connect.hpp>
#include <asio/steady_timer.hpp>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace kvpack::net {

namespace {

constexpr int kReceiveBufferBytes = 8'388'608;
constexpr std::size_t kInputBytes = 16'384;
constexpr std::uint64_t kNsPerMs = 1'000'000;
/// How long a stop that nobody else tells of may go unnoticed.
constexpr std::uint64_t kStopLookMs = 100;

Error io_error(const std::string& text) {
  return fail(ErrorCode::kIo, "I/O: " + text);
}
Error timed_out() {
  return fail(ErrorCode::kTimeout, "timed out talking to the peer");
}

std::uint64_t left_ns(const Clock& clock, std::uint64_t deadline_ns) {
  const std::uint64_t now = clock.monotonic_ns();
  return deadline_ns > now ? deadline_ns - now : 0;
}

Error cancelled() {
  return fail(ErrorCode::kCancelled, "operation was cancelled");
}

/// A question to the system's resolver, which can neither be interrupted nor given a deadline. The thread
/// that asks it shares this with the one that waits, and whoever is last clears it away.
struct NameQuestion {
  std::mutex mutex;
  std::condition_variable answered;
  std::optional<asio::error_code> error;
  std::vector<asio::ip::tcp::endpoint> addresses;
};

void ask_resolver(const std::shared_ptr<NameQuestion>& question, const HostPort& peer) {
  asio::io_context io;
  asio::error_code error;
  std::vector<asio::ip::tcp::endpoint> addresses;
  for (const auto& found : asio::ip::tcp::resolver(io).resolve(peer.host, std::to_string(peer.port), error))
    addresses.push_back(found.endpoint());
  const std::scoped_lock lock(question->mutex);
  question->addresses = std::move(addresses);
  question->error = error;
  question->answered.notify_all();
}

Result<std::vector<asio::ip::tcp::endpoint>> resolve(const Clock& clock, const HostPort& peer,
                                                     std::uint64_t deadline_ns, const std::stop_token& stop) {
  asio::error_code not_literal;
  if (const auto ip = asio::ip::make_address(peer.host, not_literal); !not_literal)
    return std::vector{asio::ip::tcp::endpoint(ip, peer.port)};
  const auto question = std::make_shared<NameQuestion>();
  std::thread([question, peer] { ask_resolver(question, peer); }).detach();
  std::unique_lock lock(question->mutex);
  while (!question->error.has_value()) {
    if (stop.stop_requested()) return cancelled();
    const std::uint64_t rest_ns = left_ns(clock, deadline_ns);
    if (rest_ns == 0) return timed_out();
    question->answered.wait_for(lock, std::chrono::nanoseconds(std::min(rest_ns, kStopLookMs * kNsPerMs)));
  }
  if (*question->error) return io_error(peer.host + ": " + question->error->message());
  return std::move(question->addresses);
}

/// The first of the peer's addresses that answers.
Result<asio::ip::tcp::socket> connect(asio::io_context& io, const Clock& clock, const HostPort& peer,
                                      std::uint64_t deadline_ns, const std::stop_token& stop) {
  KVPACK_TRY_ASSIGN(const auto addresses, resolve(clock, peer, deadline_ns, stop));
  asio::error_code error;
  asio::ip::tcp::socket socket(io);
  asio::error_code connected = asio::error::would_block;
  asio::async_connect(socket, addresses, [&](const asio::error_code& done, const asio::ip::tcp::endpoint&) {
    connected = done;
  });
  for (std::uint64_t rest_ns = left_ns(clock, deadline_ns);
       connected == asio::error::would_block && rest_ns != 0 && !stop.stop_requested();
       rest_ns = left_ns(clock, deadline_ns))
    io.run_for(std::chrono::nanoseconds(std::min(rest_ns, kStopLookMs * kNsPerMs)));
  if (connected == asio::error::would_block) {
    socket.close(error);
    // Lets the handler see its end before what it refers to goes.
    io.restart();
    io.run();
    return stop.stop_requested() ? cancelled() : timed_out();
  }
  if (connected) return io_error(peer.host + ": " + connected.message());
  return socket;
}

}  // namespace

Result<ClientConnection> ClientConnection::open(FileSystem& fs, const Clock& clock, const HostPort& peer,
                                                const TlsFiles& files, TlsPeer expected,
                                                std::uint64_t deadline_ns, std::stop_token stop) {
  // What is wrong on this side is known before the peer hears of us.
  KVPACK_TRY_ASSIGN(TlsConnection tls, TlsConnection::client(fs, files, std::move(expected)));
  auto io = std::make_unique<asio::io_context>(1);
  KVPACK_TRY_ASSIGN(asio::ip::tcp::socket socket, connect(*io, clock, peer, deadline_ns, stop));
  asio::error_code error;
  socket.set_option(asio::ip::tcp::no_delay(true), error);
  if (!error) socket.non_blocking(true, error);
  if (error) return io_error(error.message());
  // A wish. The send buffer is left to the system, which grows it as the path needs.
  socket.set_option(asio::socket_base::receive_buffer_size(kReceiveBufferBytes), error);
  ClientConnection out(clock, std::move(io), std::move(socket), deadline_ns, std::move(stop));
  KVPACK_TRY(tls.attach(out.socket_.native_handle()));
  out.tls_.emplace(std::move(tls));
  for (;;) {
    KVPACK_TRY_ASSIGN(const TlsIo step, out.tls_->handshake());
    if (step == TlsIo::kDone) return out;
    KVPACK_TRY(out.wait(step));
  }
}

Status ClientConnection::pin_pacing(std::uint64_t bytes_per_second) {
#ifdef SO_MAX_PACING_RATE
  const int descriptor = socket_.native_handle();
  std::uint64_t seen = 0;
  socklen_t size = sizeof seen;
  if (::setsockopt(descriptor, SOL_SOCKET, SO_MAX_PACING_RATE, &bytes_per_second, sizeof bytes_per_second) !=
          0 ||
      ::getsockopt(descriptor, SOL_SOCKET, SO_MAX_PACING_RATE, &seen, &size) != 0 || seen != bytes_per_second)
    return fail(ErrorCode::kConfig, "GX10 handoff TCP pacing could not be pinned");
#else
  static_cast<void>(bytes_per_second);
#endif
  return success();
}

void ClientConnection::hurry(std::uint64_t ms) noexcept {
  deadline_ns_ = std::min(deadline_ns_, clock_->monotonic_ns() + ms * kNsPerMs);
}

/// @param also_readable  come back as well when there is something to read
Status ClientConnection::wait(TlsIo io, bool also_readable) {
  constexpr std::uint64_t kMaxWaitMs = 60'000;
  const std::uint64_t look_ms = stop_.stop_possible() ? kStopLookMs : kMaxWaitMs;
  pollfd poll_descriptor{socket_.native_handle(), 0, 0};
  if (io == TlsIo::kWantRead || also_readable) poll_descriptor.events |= POLLIN;
  if (io == TlsIo::kWantWrite) poll_descriptor.events |= POLLOUT;
  for (;;) {
    if (stop_.stop_requested()) return cancelled();
    const std::uint64_t rest_ns = left_ns(*clock_, deadline_ns_);
    if (rest_ns == 0) return timed_out();
    const int wait_ms = static_cast<int>(std::min(look_ms, rest_ns / kNsPerMs + 1));
    const int ready = ::poll(&poll_descriptor, 1, wait_ms);
    if (ready > 0) return success();
    if (ready < 0 && errno != EINTR) return io_error("poll failed");
  }
}

Result<bool> ClientConnection::write(ByteSpan bytes, Bytes& input) {
  for (bool look = true; !bytes.empty();) {
    if (std::exchange(look, false)) {
      bool closed = false;
      KVPACK_TRY_ASSIGN(input, poll_input(closed));
      if (!input.empty() || closed) return false;
    }
    std::size_t n = 0;
    KVPACK_TRY_ASSIGN(const TlsIo step, tls_->write(bytes, n));
    if (step == TlsIo::kClosed) return io_error("connection is closed");
    bytes = bytes.subspan(n);
    if (step == TlsIo::kDone) continue;
    // While the peer takes no more it may be saying why.
    KVPACK_TRY(wait(step, true));
    look = true;
  }
  return true;
}

Result<Bytes> ClientConnection::poll_input(bool& closed) {
  Bytes out(kInputBytes);
  std::size_t n = 0;
  KVPACK_TRY_ASSIGN(const TlsIo step, tls_->read(out, n));
  closed = step == TlsIo::kClosed;
  out.resize(n);
  return out;
}

Result<Bytes> ClientConnection::read_some() {
  Bytes out(kInputBytes);
  for (;;) {
    std::size_t n = 0;
    KVPACK_TRY_ASSIGN(const TlsIo step, tls_->read(out, n));
    if (step == TlsIo::kDone || step == TlsIo::kClosed) {
      out.resize(n);
      return out;
    }
    KVPACK_TRY(wait(step));
  }
}

void ClientConnection::close() noexcept {
  static_cast<void>(tls_->close_notify());
  asio::error_code ignored;
  socket_.shutdown(asio::socket_base::shutdown_send, ignored);
}

}  // namespace kvpack::net
