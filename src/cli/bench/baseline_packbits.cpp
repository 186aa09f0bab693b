#include "cli/bench/baseline_packbits.h"

#include <cstring>

namespace kvpack::cli::bench {

namespace scalar_packbits {
namespace {

constexpr std::size_t kMost = 128;

}  // namespace
}  // namespace scalar_packbits

// Plain pointers, as in any such program: bounds are checked by hand, so that nobody can say that ours is
// fast because this one is held back.
std::size_t scalar_packbits_encode(ByteSpan plain, MutableByteSpan out) {
  const std::uint8_t* const bytes = plain.data();
  const std::size_t n = plain.size();
  std::uint8_t* to = out.data();
  std::size_t at = 0;
  while (at < n) {
    std::size_t run = 1;
    while (run < scalar_packbits::kMost && at + run < n && bytes[at + run] == bytes[at]) ++run;
    if (run >= 3) {
      *to++ = static_cast<std::uint8_t>(0x80 | (run - 1));
      *to++ = bytes[at];
      at += run;
      continue;
    }
    std::size_t end = at;
    while (end < n && end - at < scalar_packbits::kMost &&
           !(end + 2 < n && bytes[end] == bytes[end + 1] && bytes[end] == bytes[end + 2]))
      ++end;
    *to++ = static_cast<std::uint8_t>(end - at - 1);
    std::memcpy(to, bytes + at, end - at);
    to += end - at;
    at = end;
  }
  return static_cast<std::size_t>(to - out.data());
}

bool scalar_packbits_decode(ByteSpan packets, MutableByteSpan out) {
  std::size_t at = 0;
  std::size_t filled = 0;
  while (at < packets.size()) {
    const std::uint8_t control = packets[at++];
    const std::size_t length = std::size_t{control & 0x7fU} + 1;
    const std::size_t held = control >= 0x80 ? 1 : length;
    if (packets.size() - at < held || out.size() - filled < length) return false;
    if (control >= 0x80) {
      std::memset(out.data() + filled, packets[at], length);
    } else {
      std::memcpy(out.data() + filled, packets.data() + at, length);
    }
    at += held;
    filled += length;
  }
  return filled == out.size();
}

}  // namespace kvpack::cli::bench
