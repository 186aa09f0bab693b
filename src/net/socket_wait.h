// Waiting for one socket up to a deadline, or until somebody says stop.
#pragma once

#include <algorithm>
#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <asio/socket_base.hpp>
#include <chrono>
#include <optional>
#include <stop_token>

#include "kvpack/base/clock.h"
#include "kvpack/base/result.h"

namespace kvpack::net {

inline constexpr std::uint64_t kNoDeadline = ~std::uint64_t{0};

// How long a step may take.
struct Until {
  std::uint64_t deadline_ns = kNoDeadline;  // of the monotonic clock
  std::stop_token stop{};                   // ends the wait at once
};

// @error kCancelled `operation was cancelled`; kTimeout `timed out talking to the peer`
inline Status check_until(const Clock& clock, const Until& until) {
  if (until.stop.stop_requested()) return fail(ErrorCode::kCancelled, "operation was cancelled");
  if (clock.monotonic_ns() >= until.deadline_ns)
    return fail(ErrorCode::kTimeout, "timed out talking to the peer");
  return success();
}

// Waits until a socket or an acceptor is ready or broken, which its next use tells.
// @param io  the event loop that the socket belongs to, which nobody else runs
// @error as check_until
template <class Socket>
Status wait_for_socket(asio::io_context& io, Socket& socket, asio::socket_base::wait_type what,
                       const Clock& clock, const Until& until) {
  constexpr std::uint64_t kLongestWaitNs = 60'000'000'000;
  bool is_over = false;
  io.restart();
  socket.async_wait(what, [&is_over](const asio::error_code&) { is_over = true; });
  Status verdict = success();
  {
    const std::stop_callback wake(until.stop, [&io] { asio::post(io, [] {}); });
    while (!is_over) {
      verdict = check_until(clock, until);
      if (!verdict.has_value()) break;
      const std::uint64_t rest_ns = until.deadline_ns - clock.monotonic_ns();
      // A deadline that has just come makes this number huge, and the bound harmless.
      io.run_one_for(std::chrono::nanoseconds(std::min(rest_ns, kLongestWaitNs)));
    }
  }
  if (is_over) return success();
  asio::error_code ignored;
  socket.cancel(ignored);
  // The handler sees its end before what it refers to goes.
  while (!is_over) io.run_one();
  return verdict;
}

}  // namespace kvpack::net
