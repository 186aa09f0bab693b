#include "kvpack/net/socket_address.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

namespace kvpack::net {

namespace {

struct Split {
  std::string_view host;
  std::uint16_t port;
  bool bracketed;
};

std::optional<Split> split_port(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return std::nullopt;
  Split out{text.substr(0, colon), 0, false};
  const std::string_view digits = text.substr(colon + 1);
  const char* end = digits.data() + digits.size();
  const auto parsed = std::from_chars(digits.data(), end, out.port);
  if (digits.empty() || parsed.ec != std::errc{} || parsed.ptr != end) return std::nullopt;
  if (out.host.size() >= 2 && out.host.front() == '[' && out.host.back() == ']') {
    out.host = out.host.substr(1, out.host.size() - 2);
    out.bracketed = true;
  }
  return out;
}

bool is_ip(int family, std::string_view text) {
  std::array<unsigned char, sizeof(in6_addr)> address{};
  return ::inet_pton(family, std::string(text).c_str(), address.data()) == 1 &&
         text.find('\0') == std::string_view::npos;
}

Error not_an_address(std::string_view text, std::string_view expected) {
  return fail(ErrorCode::kConfig, std::string(text).append(" is not ").append(expected));
}

}  // namespace

Result<SocketAddress> parse_socket_address(std::string_view text) {
  const auto split = split_port(text);
  if (!split.has_value() || !is_ip(split->bracketed ? AF_INET6 : AF_INET, split->host))
    return not_an_address(text, "ip:port");
  return SocketAddress{std::string(split->host), split->port};
}

Result<HostPort> parse_host_port(std::string_view text) {
  const auto split = split_port(text);
  const auto is_host_character = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' ||
           c == '_' || c == '-';
  };
  const bool ok =
      split.has_value() && split->port != 0 && !split->host.empty() && split->host.size() <= 253 &&
      (split->bracketed ? is_ip(AF_INET6, split->host) : std::ranges::all_of(split->host, is_host_character));
  if (!ok) return not_an_address(text, "host:port");
  return HostPort{std::string(split->host), split->port};
}

}  // namespace kvpack::net
