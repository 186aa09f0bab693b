/// Canonical PackBits: the run-length coding inside a lossless codec frame. One plaintext has exactly one
/// coding. Rule and proof of the one-pass check: docs/format/chunk.md §Lossless packets.
///
/// A packet is a control byte c and L = (c & 0x7f) + 1, so 1 <= L <= 128. Below 0x80, L literal bytes follow;
/// from 0x80 on, one byte follows that is repeated L times.
#pragma once

#include <bit>
#include <cstring>

#include "kvpack/base/bytes.h"

namespace kvpack {

inline constexpr std::size_t kPackBitsMaxPacketBytes = 128;  ///< Plaintext bytes of one packet at most.

/// The most bytes that `n` plaintext bytes can take: one control byte per 128 literals.
constexpr std::size_t packbits_max_bytes(std::size_t n) noexcept {
  return n + n / kPackBitsMaxPacketBytes + (n % kPackBitsMaxPacketBytes != 0 ? 1 : 0);
}

/// Writes the canonical packets of `plaintext` to the front of `out`. Allocates nothing.
/// @pre out.size() >= packbits_max_bytes(plaintext.size()); the two do not overlap
/// @return the number of bytes written. Behind them, up to packbits_max_bytes, `out` is undefined.
std::size_t packbits_encode(ByteSpan plaintext, MutableByteSpan out) noexcept;

/// Fills all of `out` from `packets` and proves on the way that they are what packbits_encode would write.
/// `out` is scratch until success: a refusal may come after part or all of it was written.
/// @pre the two do not overlap
/// @error kTruncated  a packet lacks its bytes
/// @error kBounds     the packets give more or fewer bytes than out.size()
/// @error kReserved   the packets are well-formed but not the canonical ones; comes after every other check
Status packbits_decode(ByteSpan packets, MutableByteSpan out);

// -----------------------------------------------------------------------------------------------------------

namespace detail {

/// Eight bytes as one word, the first byte lowest. @pre at + 8 <= bytes.size()
inline std::uint64_t load_word(ByteSpan bytes, std::size_t at) noexcept {
  if constexpr (std::endian::native != std::endian::little) return load_le<std::uint64_t>(bytes, at);
  std::uint64_t word = 0;
  std::memcpy(&word, &bytes[at], sizeof(word));
  return word;
}

/// A bit in the lowest zero byte of `word`; nothing below it. Bits above it mean nothing.
constexpr std::uint64_t mark_zero_byte(std::uint64_t word) noexcept {
  return (word - 0x0101010101010101U) & ~word & 0x8080808080808080U;
}

constexpr std::size_t marked_byte(std::uint64_t marks) noexcept {
  return static_cast<std::size_t>(std::countr_zero(marks)) / 8;
}

/// @pre at + 2 < bytes.size()
inline bool begins_triple(ByteSpan bytes, std::size_t at) noexcept {
  return bytes[at] == bytes[at + 1] && bytes[at + 1] == bytes[at + 2];
}

/// The first position in [from, limit) whose byte equals the two behind it, or `limit`.
/// @pre from <= limit and limit + 2 <= bytes.size(), unless from == limit
inline std::size_t first_triple(ByteSpan bytes, std::size_t from, std::size_t limit) noexcept {
  for (; limit - from >= 8; from += 8) {
    const std::uint64_t second = load_word(bytes, from + 1);
    const std::uint64_t differ = (load_word(bytes, from) ^ second) | (second ^ load_word(bytes, from + 2));
    if (const std::uint64_t marks = mark_zero_byte(differ); marks != 0) return from + marked_byte(marks);
  }
  while (from < limit && !begins_triple(bytes, from)) ++from;
  return from;
}

/// How many bytes from `at` on equal the first of them, at most `limit` - `at`. @pre at < limit
inline std::size_t run_length(ByteSpan bytes, std::size_t at, std::size_t limit) noexcept {
  const std::uint64_t same = bytes[at] * std::uint64_t{0x0101010101010101U};
  std::size_t end = at + 1;
  // Short runs come in crowds, where a look at single bytes is cheaper than a word.
  for (const std::size_t near = std::min(limit, at + 4); end < near; ++end)
    if (bytes[end] != bytes[at]) return end - at;
  for (; limit - end >= 8; end += 8) {
    const std::uint64_t differ = load_word(bytes, end) ^ same;
    if (differ != 0) return end + marked_byte(differ) - at;
  }
  while (end < limit && bytes[end] == bytes[at]) ++end;
  return end - at;
}

/// Copies a literal of `length` bytes, or a whole packet's worth where both sides have room: a copy of fixed
/// length is a few moves, far cheaper than a call for the few bytes that most literals have.
inline void copy_literal(ByteSpan from, MutableByteSpan to, std::size_t length) noexcept {
  if (from.size() >= kPackBitsMaxPacketBytes && to.size() >= kPackBitsMaxPacketBytes) {
    std::memcpy(to.data(), from.data(), kPackBitsMaxPacketBytes);
    return;
  }
  std::memcpy(to.data(), from.data(), length);
}

/// The same for a repeat.
inline void fill_repeat(std::uint8_t byte, MutableByteSpan to, std::size_t length) noexcept {
  if (to.size() >= kPackBitsMaxPacketBytes) {
    std::memset(to.data(), byte, kPackBitsMaxPacketBytes);
    return;
  }
  std::memset(to.data(), byte, length);
}

}  // namespace detail

// The rule names runs, the code names triples; they agree. A literal that starts at `s` ends at the first
// position t >= s that begins three equal bytes: t is the start of its run counted from s, or else t - 1
// would be such a position too. And t == s means that the packet is a repeat.
inline std::size_t packbits_encode(ByteSpan plaintext, MutableByteSpan out) noexcept {
  assert(out.size() >= packbits_max_bytes(plaintext.size()));
  out = out.first(packbits_max_bytes(plaintext.size()));
  const std::size_t n = plaintext.size();
  const std::size_t triple_end = n < 3 ? 0 : n - 2;
  std::size_t written = 0;
  std::size_t at = 0;
  while (at < n) {
    const std::size_t packet_end = std::min(at + kPackBitsMaxPacketBytes, n);
    const std::size_t limit = std::max(at, std::min(packet_end, triple_end));
    const std::size_t triple = detail::first_triple(plaintext, at, limit);
    const std::size_t literal_end = triple < limit ? triple : packet_end;
    if (literal_end > at) {
      const std::size_t length = literal_end - at;
      out[written++] = static_cast<std::uint8_t>(length - 1);
      detail::copy_literal(plaintext.subspan(at), out.subspan(written), length);
      written += length;
      at = literal_end;
    }
    if (triple == limit) continue;
    do {
      const std::size_t length = detail::run_length(plaintext, at, std::min(at + kPackBitsMaxPacketBytes, n));
      out[written++] = static_cast<std::uint8_t>(0x80 | (length - 1));
      out[written++] = plaintext[at];
      at += length;
    } while (at < triple_end && detail::begins_triple(plaintext, at));
  }
  return written;
}

// Packets are canonical exactly if
//   a repeat is at least 3 long, and one shorter than 128 is not followed by its own byte;
//   no position of a literal begins three equal bytes of the plaintext, also across packets;
//   a literal shorter than 128 is not followed by a literal.
// Read from the front, these leave the encoder no other packet at any place.
inline Status packbits_decode(ByteSpan packets, MutableByteSpan out) {
  enum class Last { kNone, kFullRepeat, kShortRepeat, kFullLiteral, kShortLiteral };
  Last last = Last::kNone;
  bool canonical = true;
  std::size_t at = 0;
  std::size_t filled = 0;
  while (at < packets.size()) {
    const std::uint8_t control = packets[at++];
    const std::size_t length = std::size_t{control & 0x7fU} + 1;
    const bool full = length == kPackBitsMaxPacketBytes;
    const bool repeat = control >= 0x80;
    if (repeat && at == packets.size())
      return fail(ErrorCode::kTruncated, "truncated lossless repeat packet");
    if (!repeat && packets.size() - at < length)
      return fail(ErrorCode::kTruncated, "truncated lossless literal packet");
    if (out.size() - filled < length) return fail(ErrorCode::kBounds, "lossless frame expands past bound");

    const std::uint8_t first = packets[at];
    const bool continues = filled > 0 && out[filled - 1] == first;
    if (repeat) {
      canonical &= length >= 3 && !(continues && last != Last::kFullRepeat);
      detail::fill_repeat(first, out.subspan(filled), length);
      at += 1;
      last = full ? Last::kFullRepeat : Last::kShortRepeat;
    } else {
      canonical &= last != Last::kShortLiteral && !(continues && last == Last::kShortRepeat);
      if (continues && last == Last::kFullLiteral)
        canonical &= out[filled - 2] != first && (length < 2 || packets[at + 1] != first);
      if (length >= 3) {
        const std::size_t limit = at + length - 2;
        canonical &= detail::first_triple(packets, at, limit) == limit;
      }
      detail::copy_literal(packets.subspan(at), out.subspan(filled), length);
      at += length;
      last = full ? Last::kFullLiteral : Last::kShortLiteral;
    }
    filled += length;
  }
  if (filled != out.size()) return fail(ErrorCode::kBounds, "lossless decoded length mismatch");
  if (!canonical) return fail(ErrorCode::kReserved, "codec frame is not canonical");
  return success();
}

}  // namespace kvpack
