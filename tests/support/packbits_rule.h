// PackBits as docs/format/chunk.md words it, byte by byte: what the library's coder is held against, in its
// result by tests and fuzzing, in its speed by benchmarks.
#pragma once

#include "kvpack/core/packbits.h"

namespace kvpack::packbits_rule {

// @pre out.size() >= packbits_max_bytes(plaintext.size()) @return the bytes written
inline std::size_t encode(ByteSpan plaintext, MutableByteSpan out) {
  const auto run = [&](std::size_t i) {
    std::size_t j = i + 1;
    while (j < plaintext.size() && j - i < 128 && plaintext[j] == plaintext[i]) ++j;
    return j - i;
  };
  std::size_t written = 0;
  std::size_t i = 0;
  while (i < plaintext.size()) {
    if (const std::size_t r = run(i); r >= 3) {
      out[written++] = static_cast<std::uint8_t>(0x80 | (r - 1));
      out[written++] = plaintext[i];
      i += r;
      continue;
    }
    const std::size_t start = i;
    i += run(i);
    while (i < plaintext.size() && i - start < 128) {
      const std::size_t r = run(i);
      if (r >= 3) break;
      if (i - start + r > 128) {
        i = start + 128;
        break;
      }
      i += r;
    }
    out[written++] = static_cast<std::uint8_t>(i - start - 1);
    std::memcpy(&out[written], &plaintext[start], i - start);
    written += i - start;
  }
  return written;
}

inline Bytes encoded(ByteSpan plaintext) {
  Bytes out(packbits_max_bytes(plaintext.size()));
  out.resize(encode(plaintext, out));
  return out;
}

// Fills `out` from packets, whatever their form. @return whether they are well-formed and fill it
inline bool expand(ByteSpan packets, MutableByteSpan out) {
  std::size_t i = 0;
  std::size_t filled = 0;
  while (i < packets.size()) {
    const std::uint8_t control = packets[i++];
    const std::size_t length = (control & 0x7fU) + 1;
    if (out.size() - filled < length) return false;
    if (control >= 0x80) {
      if (i == packets.size()) return false;
      std::memset(&out[filled], packets[i++], length);
    } else {
      if (packets.size() - i < length) return false;
      std::memcpy(&out[filled], &packets[i], length);
      i += length;
    }
    filled += length;
  }
  return filled == out.size();
}

// Expand, encode again, compare: the definition of canonical. @param again  room for
// packbits_max_bytes(out.size())
inline bool expand_canonical(ByteSpan packets, MutableByteSpan out, MutableByteSpan again) {
  if (!expand(packets, out)) return false;
  return std::ranges::equal(again.first(encode(out, again)), packets);
}

}  // namespace kvpack::packbits_rule
