// A control stream between enrolled ends: TLS, whole frames, and a deadline and a stop for every step.
// docs/protocol/receiver.md §Control channel
#pragma once

#include <stdlib.h>  // NOLINT(modernize-deprecated-headers): Asio asks for libstdc++'s macros first.

#include <asio/ip/tcp.hpp>

#include "kvpack/net/socket_address.h"
#include "net/socket_wait.h"
#include "net/tls.h"

namespace kvpack::net {

// For one thread at a time. Every call blocks, up to what its `until` says.
// @error of every call: kTimeout `timed out talking to the peer`; kCancelled `operation was cancelled`; kIo;
// kTls
class ControlConnection {
 public:
  explicit ControlConnection(const Clock& clock) : clock_(&clock), socket_(io_) {}
  ControlConnection(const ControlConnection&) = delete;
  ControlConnection& operator=(const ControlConnection&) = delete;

  // Connects and shakes hands. @error those of TlsConnection
  Status connect(FileSystem& fs, const SocketAddress& peer, const TlsFiles& files, TlsPeer expected,
                 const Until& until);
  // Shakes hands on a socket that accept has put into accepted(). @error those of TlsConnection
  Status serve(FileSystem& fs, const TlsFiles& files, TlsPeer expected, const Until& until);
  asio::ip::tcp::socket& accepted() noexcept { return socket_; }

  Status send(ByteSpan frame, const Until& until);
  // The body of the next frame. What stands behind it is kept for the next call.
  // @error kControl  those of ControlFrameReader; kIo `I/O: unexpected end of file`
  Result<Bytes> receive(std::uint32_t max_body_bytes, const Until& until);
  // Waits for a peer that keeps silent. @return true: it has sent something, closed or broken off, or the
  // deadline has come; false: until.stop came first
  bool stirs(const Until& until);
  // Says goodbye as far as that is possible at once.
  void close() noexcept;

  // `ip:port`, or `unknown`
  std::string peer() const;
  // After the handshake.
  const TlsConnection& tls() const noexcept { return *tls_; }

 private:
  Status tune();
  Status shake_hands(TlsConnection tls, const Until& until);
  Status wait(TlsIo io, const Until& until);

  const Clock* clock_;
  asio::io_context io_{1};
  asio::ip::tcp::socket socket_;
  std::optional<TlsConnection> tls_;
  Bytes rest_;  // Came behind a frame.
};

}  // namespace kvpack::net
