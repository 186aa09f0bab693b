/// A literal IP address with a port: `127.0.0.1:29590`, `[::1]:29590`. Host names are not looked up here.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "kvpack/base/result.h"

namespace kvpack::net {

struct SocketAddress {
  std::string ip;  ///< As text; without brackets.
  std::uint16_t port = 0;

  bool is_v6() const noexcept { return ip.find(':') != std::string::npos; }
  std::string text() const { return (is_v6() ? "[" + ip + "]" : ip) + ":" + std::to_string(port); }
  /// Whether only this machine can reach it.
  bool is_loopback() const noexcept { return ip == "::1" || ip.starts_with("127."); }

  friend bool operator==(const SocketAddress&, const SocketAddress&) = default;
};

/// @error kConfig `{text} is not ip:port`
Result<SocketAddress> parse_socket_address(std::string_view text);

/// A host and a port; the host may be a name.
struct HostPort {
  std::string host;
  std::uint16_t port = 0;
};
/// `host:port` or `[v6]:port`, the host 1 to 253 characters of `[A-Za-z0-9.:_-]`, the port not 0.
/// @error kConfig `{text} is not host:port`
Result<HostPort> parse_host_port(std::string_view text);

}  // namespace kvpack::net
