// A TLS connection to a named peer that blocks up to a deadline. docs/protocol/receiver.md §TLS
#pragma once

#include <stdlib.h>  // NOLINT(modernize-deprecated-headers): Asio asks for libstdc++'s macros first.

#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <stop_token>

#include "kvpack/base/clock.h"
#include "kvpack/net/socket_address.h"
#include "net/tls.h"

namespace kvpack::net {

class ClientConnection {
 public:
  // Reads the credentials, resolves, connects and shakes hands. @param deadline_ns  of the monotonic clock,
  // for this and all later calls. @param stop  ends whatever waits
  // @error kTimeout kIo kCancelled, and those of TlsConnection
  static Result<ClientConnection> open(FileSystem& fs, const Clock& clock, const HostPort& peer,
                                       const TlsFiles& files, TlsPeer expected, std::uint64_t deadline_ns,
                                       std::stop_token stop = {});

  // Before anything is written: the system sends at most this fast. Only where the system can. @error kConfig
  // `GX10 handoff TCP pacing could not be pinned`
  Status pin_pacing(std::uint64_t bytes_per_second);

  // Brings the deadline of all later calls forward to at most `ms` from now.
  void hurry(std::uint64_t ms) noexcept;

  // Writes all of `bytes`, and takes what comes in meanwhile. @return false when `input` holds something: it
  // is for the caller to judge, and the rest is not written
  Result<bool> write(ByteSpan bytes, Bytes& input);
  // What is there, waiting for at least one byte. Empty: the peer has closed.
  Result<Bytes> read_some();
  // What is there now, perhaps nothing. @param closed  whether the peer has closed
  Result<Bytes> poll_input(bool& closed);
  // Says goodbye as far as that is possible at once.
  void close() noexcept;

  const TlsConnection& tls() const noexcept { return *tls_; }

 private:
  ClientConnection(const Clock& clock, std::unique_ptr<asio::io_context> io, asio::ip::tcp::socket socket,
                   std::uint64_t deadline_ns, std::stop_token stop)
      : clock_(&clock),
        io_(std::move(io)),
        socket_(std::move(socket)),
        deadline_ns_(deadline_ns),
        stop_(std::move(stop)) {}
  Status wait(TlsIo io, bool also_readable = false);

  const Clock* clock_;
  std::unique_ptr<asio::io_context> io_;  // Before the socket, which dies first.
  asio::ip::tcp::socket socket_;
  std::optional<TlsConnection> tls_;
  std::uint64_t deadline_ns_;
  std::stop_token stop_;
};

}  // namespace kvpack::net
