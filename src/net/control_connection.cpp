#include "net/control_connection.h"

#include <sys/socket.h>

#include <cerrno>

#include "net/control_frame_reader.h"

namespace kvpack::net {

namespace {

constexpr std::size_t kPieceBytes = 16'384;

Error control_io_error(const asio::error_code& error) {
  return fail(ErrorCode::kIo, "I/O: " + error.message());
}

}  // namespace

Status ControlConnection::tune() {
  asio::error_code error;
  socket_.set_option(asio::ip::tcp::no_delay(true), error);
  if (!error) socket_.non_blocking(true, error);
  if (error) return control_io_error(error);
  return success();
}

Status ControlConnection::wait(TlsIo io, const Until& until) {
  return wait_for_socket(
      io_, socket_, io == TlsIo::kWantWrite ? asio::socket_base::wait_write : asio::socket_base::wait_read,
      *clock_, until);
}

Status ControlConnection::connect(FileSystem& fs, const SocketAddress& peer, const TlsFiles& files,
                                  TlsPeer expected, const Until& until) {
  // What is wrong on this side is known before the peer hears of us.
  KVPACK_TRY_ASSIGN(TlsConnection tls, TlsConnection::client(fs, files, std::move(expected)));
  asio::error_code error;
  const auto ip = asio::ip::make_address(peer.ip, error);
  const asio::ip::tcp::endpoint endpoint(ip, peer.port);
  if (!error) socket_.open(endpoint.protocol(), error);
  if (error) return control_io_error(error);
  KVPACK_TRY(tune());
  // Asio's own connect would wait for as long as the system does.
  int outcome =
      ::connect(socket_.native_handle(), endpoint.data(), static_cast<socklen_t>(endpoint.size())) == 0
          ? 0
          : errno;
  if (outcome == EINPROGRESS) {
    KVPACK_TRY(wait_for_socket(io_, socket_, asio::socket_base::wait_write, *clock_, until));
    socklen_t size = sizeof outcome;
    if (::getsockopt(socket_.native_handle(), SOL_SOCKET, SO_ERROR, &outcome, &size) != 0) outcome = errno;
  }
  error.assign(outcome, asio::error::get_system_category());
  if (error) return fail(ErrorCode::kIo, "I/O: " + peer.text() + ": " + error.message());
  return shake_hands(std::move(tls), until);
}

Status ControlConnection::serve(FileSystem& fs, const TlsFiles& files, TlsPeer expected, const Until& until) {
  KVPACK_TRY(tune());
  KVPACK_TRY_ASSIGN(TlsConnection tls, TlsConnection::server(fs, files, std::move(expected)));
  return shake_hands(std::move(tls), until);
}

Status ControlConnection::shake_hands(TlsConnection tls, const Until& until) {
  KVPACK_TRY(tls.attach(socket_.native_handle()));
  tls_.emplace(std::move(tls));
  for (;;) {
    KVPACK_TRY_ASSIGN(const TlsIo step, tls_->handshake());
    if (step == TlsIo::kDone) return success();
    KVPACK_TRY(wait(step, until));
  }
}

Status ControlConnection::send(ByteSpan frame, const Until& until) {
  while (!frame.empty()) {
    KVPACK_TRY(check_until(*clock_, until));
    std::size_t n = 0;
    KVPACK_TRY_ASSIGN(const TlsIo step, tls_->write(frame, n));
    if (step == TlsIo::kClosed) return fail(ErrorCode::kIo, "I/O: connection is closed");
    frame = frame.subspan(n);
    if (step != TlsIo::kDone) KVPACK_TRY(wait(step, until));
  }
  return success();
}

Result<Bytes> ControlConnection::receive(std::uint32_t max_body_bytes, const Until& until) {
  ControlFrameReader reader(max_body_bytes);
  Bytes came = std::exchange(rest_, {});
  for (;;) {
    ByteSpan input = came;
    KVPACK_TRY_ASSIGN(const bool is_whole, reader.push(input));
    if (is_whole) {
      rest_.assign(input.begin(), input.end());
      return std::move(reader).take_body();
    }
    // Also of a peer that never lets the socket run dry.
    KVPACK_TRY(check_until(*clock_, until));
    came.resize(kPieceBytes);
    std::size_t n = 0;
    KVPACK_TRY_ASSIGN(const TlsIo step, tls_->read(came, n));
    came.resize(n);
    if (step == TlsIo::kClosed) return fail(ErrorCode::kIo, "I/O: unexpected end of file");
    if (step != TlsIo::kDone) KVPACK_TRY(wait(step, until));
  }
}

bool ControlConnection::stirs(const Until& until) {
  if (!rest_.empty()) return true;
  for (;;) {
    rest_.resize(1);
    std::size_t n = 0;
    const auto step = tls_->read(rest_, n);
    rest_.resize(n);
    if (!step.has_value() || *step == TlsIo::kDone || *step == TlsIo::kClosed) return true;
    const Status waited = wait(*step, until);
    if (!waited.has_value()) return waited.error().code != ErrorCode::kCancelled;
  }
}

void ControlConnection::close() noexcept {
  if (tls_.has_value()) static_cast<void>(tls_->close_notify());
  asio::error_code ignored;
  socket_.shutdown(asio::socket_base::shutdown_both, ignored);
  socket_.close(ignored);
}

std::string ControlConnection::peer() const {
  asio::error_code error;
  const auto endpoint = socket_.remote_endpoint(error);
  if (error) return "unknown";
  return SocketAddress{endpoint.address().to_string(), endpoint.port()}.text();
}

}  // namespace kvpack::net
