// Puts frames of the control channel together from what a connection gives. docs/protocol/receiver.md
// §Control channel
#pragma once

#include <algorithm>

#include "kvpack/net/control.h"

namespace kvpack::net {

// One frame. Its memory grows with what has come, never by what a preamble claims.
class ControlFrameReader {
 public:
  explicit ControlFrameReader(std::uint32_t max_body_bytes) noexcept : max_body_bytes_(max_body_bytes) {}

  // Takes bytes off the front of `input`, none from behind the frame.
  // @return whether the frame is whole
  // @error kControl `prefill control frame magic mismatch`, `prefill control frame length is outside bounds`
  Result<bool> push(ByteSpan& input) {
    if (preamble_bytes_ < kControlPreambleBytes) {
      const std::size_t n = std::min(input.size(), kControlPreambleBytes - preamble_bytes_);
      std::copy_n(input.begin(), n, preamble_.begin() + static_cast<std::ptrdiff_t>(preamble_bytes_));
      preamble_bytes_ += n;
      input = input.subspan(n);
      if (preamble_bytes_ < kControlPreambleBytes) return false;
      KVPACK_TRY_ASSIGN(body_bytes_, read_control_preamble(preamble_));
      if (body_bytes_ > max_body_bytes_)
        return fail(ErrorCode::kControl, "prefill control frame length is outside bounds");
    }
    const std::size_t n = std::min(input.size(), body_bytes_ - body_.size());
    body_.insert(body_.end(), input.begin(), input.begin() + static_cast<std::ptrdiff_t>(n));
    input = input.subspan(n);
    return body_.size() == body_bytes_;
  }

  // What the frame holds. @pre push has said that it is whole
  Bytes take_body() && { return std::move(body_); }
  std::size_t held_bytes() const noexcept { return body_.size(); }

 private:
  std::uint32_t max_body_bytes_;
  std::array<std::uint8_t, kControlPreambleBytes> preamble_{};
  std::size_t preamble_bytes_ = 0;
  std::size_t body_bytes_ = 0;
  Bytes body_;
};

}  // namespace kvpack::net
