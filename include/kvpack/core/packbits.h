/// Canonical PackBits: the run-length coding inside a lossless codec frame. One plaintext has exactly one
/// coding. Rule and proof of the one-pass check: docs/format/chunk.md §Lossless packets.
///
/// A packet is a control byte c and L = (c & 0x7f) + 1, so 1 <= L <= 128. Below 0x80, L literal bytes follow;
/// from 0x80 on, one byte follows that is repeated L times.
#pragma once

#include "kvpack/base/byte_blocks.h"

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
    const std::uint64_t second = WordBlocks::load(bytes, from + 1);
    const std::uint64_t differ =
        (WordBlocks::load(bytes, from) ^ second) | (second ^ WordBlocks::load(bytes, from + 2));
    if (const std::uint64_t marks = mark_zero_byte(differ); marks != 0) return from + marked_byte(marks);
  }
  while (from < limit && !begins_triple(bytes, from)) ++from;
  return from;
}

/// How many bytes from `at` on equal the first of them, at most `limit` - `at`. @pre at < limit
inline std::size_t run_length(ByteSpan bytes, std::size_t at, std::size_t limit) noexcept {
  std::size_t end = at + 1;
  while (end < limit && bytes[end] == bytes[at]) ++end;
  return end - at;
}

/// The place of the lowest bit that is set. @pre there is one
inline std::size_t lowest_bit(std::uint64_t mask) noexcept {
  return static_cast<std::size_t>(std::countr_zero(mask));
}

/// Copies a literal and up to a full packet, which takes a few moves where the exact length would take a
/// call.
/// @pre there is room for a full packet on both sides
inline void copy_literal(ByteSpan from, std::size_t at, MutableByteSpan to, std::size_t filled,
                         std::size_t length) noexcept {
  if (length <= 32) {
    std::memcpy(&to[filled], &from[at], 32);
  } else {
    std::memcpy(&to[filled], &from[at], kPackBitsMaxPacketBytes);
  }
}

/// Writes packets one after the other. Between packets no more has been written than packbits_max_bytes of
/// what was read: a literal of less than 128 bytes, which alone adds a control byte to fewer, is followed by
/// a repeat, which saves one, or by the end. So where `n` bytes are left to read, `n` can be written.
///
/// The places in input and output are members between functions and locals inside of them: a byte that is
/// written could be one of a member, as far as a compiler knows.
template <class Blocks>
class PackBitsEncoder {
 public:
  PackBitsEncoder(ByteSpan plaintext, MutableByteSpan out) noexcept : in_(plaintext), out_(out) {}

  std::size_t run() noexcept {
    while (in_.size() - at_ >= kAhead)
      if (pack_long()) pack_short();
    while (at_ < in_.size()) pack_next();
    return written_;
  }

 private:
  /// Bytes that must be left for packets to be sought in blocks: two full packets and a block.
  static constexpr std::size_t kAhead = 2 * kPackBitsMaxPacketBytes + 64;
  /// Packets shorter than this come in crowds.
  static constexpr std::size_t kShort = 32;

  /// Of 63 positions those that begin three equal bytes.
  static std::uint64_t triples_of(std::uint64_t equal_to_next) noexcept {
    return equal_to_next & (equal_to_next >> 1);
  }
  static std::size_t put_repeat(std::uint8_t byte, std::size_t length, MutableByteSpan out,
                                std::size_t written) noexcept {
    out[written] = static_cast<std::uint8_t>(0x80 | (length - 1));
    out[written + 1] = byte;
    return written + 2;
  }
  /// @pre room for a full packet
  static std::size_t put_literal(ByteSpan in, std::size_t at, std::size_t length, MutableByteSpan out,
                                 std::size_t written) noexcept {
    out[written] = static_cast<std::uint8_t>(length - 1);
    copy_literal(in, at, out, written + 1, length);
    return written + 1 + length;
  }

  /// Full literals, then one that a run ends, and the packets of that run. @return whether both are short
  bool pack_long() noexcept {
    const ByteSpan in = in_;
    const MutableByteSpan out = out_;
    std::size_t at = at_;
    std::size_t written = written_;
    bool both_short = false;
    while (in.size() - at >= kAhead) {
      // The bytes go to where they belong in a literal while it is found out how many of them do.
      const std::uint64_t low = Blocks::copy_equal_to_next(in, at, out, written + 1);
      const std::uint64_t high = Blocks::copy_equal_to_next(in, at + 64, out, written + 65);
      const std::uint64_t last = in[at + 128] == in[at + 129] ? 1 : 0;
      const std::uint64_t low_triples = low & (low >> 1 | high << 63);
      const std::uint64_t high_triples = high & (high >> 1 | last << 63);
      if ((low_triples | high_triples) == 0) {
        out[written] = kPackBitsMaxPacketBytes - 1;
        written += 1 + kPackBitsMaxPacketBytes;
        at += kPackBitsMaxPacketBytes;
        continue;
      }
      const std::size_t literal = low_triples != 0 ? lowest_bit(low_triples) : 64 + lowest_bit(high_triples);
      if (literal > 0) {
        out[written] = static_cast<std::uint8_t>(literal - 1);
        written += 1 + literal;
        at += literal;
      }
      const std::size_t run = run_from(at);
      const std::size_t rest = run % kPackBitsMaxPacketBytes;
      for (std::size_t packets = run / kPackBitsMaxPacketBytes; packets > 0; --packets)
        written = put_repeat(in[at], kPackBitsMaxPacketBytes, out, written);
      if (rest >= 3) written = put_repeat(in[at], rest, out, written);
      at += rest >= 3 ? run : run - rest;
      both_short = literal < kShort && run < kShort;
      if (both_short) break;
    }
    at_ = at;
    written_ = written;
    return both_short;
  }

  /// How many bytes from `at` on equal the first, to the end of the input.
  std::size_t run_from(std::size_t at) const noexcept {
    const std::uint8_t byte = in_[at];
    std::size_t end = at + 1;
    for (; in_.size() - end >= 64; end += 64)
      if (const std::uint64_t other = ~Blocks::equal_to(in_, end, byte); other != 0)
        return end + lowest_bit(other) - at;
    while (end < in_.size() && in_[end] == byte) ++end;
    return end - at;
  }

  /// Packets that can be told from 64 bytes alone, by sums over their bits: no branch depends on the lengths
  /// of short packets, which no processor can foretell. Ends at 64 bytes that have none.
  void pack_short() noexcept {
    const ByteSpan in = in_;
    const MutableByteSpan out = out_;
    std::size_t at = at_;
    std::size_t written = written_;
    while (in.size() - at >= kAhead) {
      const std::size_t window = at;
      const std::uint64_t whole = Blocks::equal_to_next(in, window);
      // A run that may go on behind the window is left for the next one.
      const int cut_off = std::countl_one(whole);
      const std::uint64_t equal = cut_off == 64 ? 0 : whole & (~std::uint64_t{0} >> cut_off);
      std::uint64_t triples = triples_of(equal);
      if (triples == 0) break;
      std::size_t length = 0;
      do {
        const std::size_t begin = window + lowest_bit(triples);
        if (begin > at) written = put_literal(in, at, begin - at, out, written);
        // Adding the first of the ones of a run clears them and sets the bit behind them.
        const std::uint64_t after = equal + (triples & (~triples + 1));
        at = window + lowest_bit(after & ~equal) + 1;
        length = at - begin;
        written = put_repeat(in[begin], length, out, written);
        triples &= after;
      } while (triples != 0);
      // Where the next runs are as long as the last one, a processor foretells it, and need not wait for the
      // length of one to begin with the next.
      if (length > 7) continue;
      const std::size_t last = 8 * (length - 1);
      while (in.size() - at >= kAhead) {
        const std::uint64_t word = WordBlocks::load(in, at);
        const std::uint64_t differ = word ^ (word >> 8);
        if ((differ & ((std::uint64_t{1} << last) - 1)) != 0 || (differ >> last & 0xff) == 0) break;
        written = put_repeat(static_cast<std::uint8_t>(word & 0xff), length, out, written);
        at += length;
      }
    }
    at_ = at;
    written_ = written;
  }

  /// The next packet, looked for byte by byte.
  void pack_next() noexcept {
    const std::size_t n = in_.size();
    const std::size_t packet_end = std::min(at_ + kPackBitsMaxPacketBytes, n);
    const std::size_t triple_end = n < 3 ? 0 : n - 2;
    const std::size_t limit = std::max(at_, std::min(packet_end, triple_end));
    const std::size_t triple = first_triple(in_, at_, limit);
    if (triple == at_ && triple < limit) {
      const std::size_t length = run_length(in_, at_, packet_end);
      written_ = put_repeat(in_[at_], length, out_, written_);
      at_ += length;
      return;
    }
    const std::size_t length = (triple < limit ? triple : packet_end) - at_;
    out_[written_] = static_cast<std::uint8_t>(length - 1);
    std::memcpy(&out_[written_ + 1], &in_[at_], length);
    written_ += 1 + length;
    at_ += length;
  }

  ByteSpan in_;
  MutableByteSpan out_;
  std::size_t at_ = 0;
  std::size_t written_ = 0;
};

/// Whether one of the positions of a literal, but the last two, begins three equal bytes.
/// @pre length <= 128 and at + length <= bytes.size()
template <class Blocks>
bool literal_has_triple(ByteSpan bytes, std::size_t at, std::size_t length) noexcept {
  if (length >= 66) return Blocks::has_triple(bytes, at) || Blocks::has_triple(bytes, at + length - 66);
  if (length < 3) return false;
  if (bytes.size() - at >= 65) {
    const std::uint64_t equal = Blocks::equal_to_next(bytes, at);
    const std::uint64_t positions = (std::uint64_t{1} << (length - 2)) - 1;
    return (equal & (equal >> 1) & positions) != 0;
  }
  const std::size_t limit = at + length - 2;
  return first_triple(bytes, at, limit) != limit;
}

/// Fills with a repeat, in the way of copy_literal where there is room.
inline void fill_repeat(std::uint8_t byte, MutableByteSpan out, std::size_t at, std::size_t length) noexcept {
  if (out.size() - at < kPackBitsMaxPacketBytes) {
    std::memset(&out[at], byte, length);
  } else if (length <= 32) {
    std::memset(&out[at], byte, 32);
  } else {
    std::memset(&out[at], byte, kPackBitsMaxPacketBytes);
  }
}

// Packets are canonical exactly if
//   a repeat is at least 3 long, and one shorter than 128 is not followed by its own byte;
//   no position of a literal begins three equal bytes of the plaintext, also across packets;
//   a literal shorter than 128 is not followed by a literal.
// Read from the front, these leave the encoder no other packet at any place.
template <class Blocks>
Status packbits_decode(ByteSpan packets, MutableByteSpan out) {
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
      fill_repeat(first, out, filled, length);
      at += 1;
      last = full ? Last::kFullRepeat : Last::kShortRepeat;
    } else {
      canonical &= last != Last::kShortLiteral && !(continues && last == Last::kShortRepeat);
      if (continues && last == Last::kFullLiteral)
        canonical &= out[filled - 2] != first && (length < 2 || packets[at + 1] != first);
      canonical &= !literal_has_triple<Blocks>(packets, at, length);
      if (packets.size() - at >= kPackBitsMaxPacketBytes && out.size() - filled >= kPackBitsMaxPacketBytes) {
        copy_literal(packets, at, out, filled, length);
      } else {
        std::memcpy(&out[filled], &packets[at], length);
      }
      at += length;
      last = full ? Last::kFullLiteral : Last::kShortLiteral;
    }
    filled += length;
  }
  if (filled != out.size()) return fail(ErrorCode::kBounds, "lossless decoded length mismatch");
  if (!canonical) return fail(ErrorCode::kReserved, "codec frame is not canonical");
  return success();
}

}  // namespace detail

// The rule names runs, the code names triples; they agree. A literal that starts at `s` ends at the first
// position t >= s that begins three equal bytes: t is the start of its run counted from s, or else t - 1
// would be such a position too. And t == s means that the packet is a repeat.
inline std::size_t packbits_encode(ByteSpan plaintext, MutableByteSpan out) noexcept {
  assert(out.size() >= packbits_max_bytes(plaintext.size()));
  out = out.first(packbits_max_bytes(plaintext.size()));
  return detail::PackBitsEncoder<NativeBlocks>(plaintext, out).run();
}

inline Status packbits_decode(ByteSpan packets, MutableByteSpan out) {
  return detail::packbits_decode<NativeBlocks>(packets, out);
}

}  // namespace kvpack
