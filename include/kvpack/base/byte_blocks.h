/// Questions about 64 bytes at a time, answered with one bit for each. Three forms that agree: SSE2, which
/// every x86-64 has; NEON, which every Armv8 has; and words of 64 bits for all others.
#pragma once

#include <bit>
#include <utility>

#include "kvpack/base/bytes.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#elif defined(__ARM_NEON) && defined(__aarch64__) && !defined(__ARM_BIG_ENDIAN)
#include <arm_neon.h>
#endif

namespace kvpack {

/// Each form has these functions. Bit i of a mask, counted from the lowest, belongs to bytes[at + i].
///   equal_to(bytes, at, byte)   which bytes are `byte`. @pre 64 bytes from `at` on
///   equal_to_next(bytes, at)    which bytes equal the one behind them. @pre 65 bytes from `at` on
///   copy_equal_to_next(bytes, at, to, place)  the same, and copies the 64 to where they do not overlap
///   digits(bytes, at)           which bytes are decimal digits. @pre 64 bytes from `at` on
///   has_triple(bytes, at)       whether one of 64 bytes equals the two behind it. @pre 66 bytes from `at` on
///   plain_text(bytes, at)       how many bytes until one that is not ASCII, is below 0x20, or is a quote or
///   backslash;
///                               64 when none of 64 is. @pre 64 bytes from `at` on
struct WordBlocks {
  static std::uint64_t equal_to(ByteSpan bytes, std::size_t at, std::uint8_t byte) noexcept {
    std::uint64_t mask = 0;
    for (std::size_t i = 0; i < 64; i += 8) mask |= zero_bytes(load(bytes, at + i) ^ (byte * kOnes)) << i;
    return mask;
  }
  static std::uint64_t equal_to_next(ByteSpan bytes, std::size_t at) noexcept {
    std::uint64_t mask = 0;
    for (std::size_t i = 0; i < 64; i += 8)
      mask |= zero_bytes(load(bytes, at + i) ^ load(bytes, at + i + 1)) << i;
    return mask;
  }
  static std::uint64_t copy_equal_to_next(ByteSpan bytes, std::size_t at, MutableByteSpan to,
                                          std::size_t place) noexcept {
    std::memcpy(&to[place], &bytes[at], 64);
    return equal_to_next(bytes, at);
  }
  static std::uint64_t digits(ByteSpan bytes, std::size_t at) noexcept {
    std::uint64_t mask = 0;
    for (std::size_t i = 0; i < 64; ++i)
      mask |= std::uint64_t{bytes[at + i] >= '0' && bytes[at + i] <= '9'} << i;
    return mask;
  }
  static bool has_triple(ByteSpan bytes, std::size_t at) noexcept {
    std::uint64_t marks = 0;
    for (std::size_t i = 0; i < 64; i += 8) {
      const std::uint64_t second = load(bytes, at + i + 1);
      marks |= mark_zero((load(bytes, at + i) ^ second) | (second ^ load(bytes, at + i + 2)));
    }
    return marks != 0;
  }

  static std::size_t plain_text(ByteSpan bytes, std::size_t at) noexcept {
    std::size_t i = 0;
    while (i < 64 && bytes[at + i] >= 0x20 && bytes[at + i] < 0x80 && bytes[at + i] != '"' &&
           bytes[at + i] != '\\')
      ++i;
    return i;
  }

  /// Eight bytes as one word, the first byte lowest. @pre at + 8 <= bytes.size()
  static std::uint64_t load(ByteSpan bytes, std::size_t at) noexcept {
    if constexpr (std::endian::native != std::endian::little) return load_le<std::uint64_t>(bytes, at);
    std::uint64_t word = 0;
    std::memcpy(&word, &bytes[at], sizeof(word));
    return word;
  }

 private:
  static constexpr std::uint64_t kOnes = 0x0101010101010101;

  /// The highest bit of each byte that is zero, exactly.
  static constexpr std::uint64_t mark_zero(std::uint64_t word) noexcept {
    constexpr std::uint64_t kLow = 0x7f * kOnes;
    return ~(((word & kLow) + kLow) | word | kLow);
  }
  /// The same, one bit a byte: a product that moves the eighth bit of byte i to bit 56 + i.
  static constexpr std::uint64_t zero_bytes(std::uint64_t word) noexcept {
    return ((mark_zero(word) >> 7) * 0x0102040810204080) >> 56;
  }
};

#if defined(__SSE2__)
class Sse2Blocks {
  static __m128i load(ByteSpan bytes, std::size_t at) noexcept {
    __m128i vector;
    std::memcpy(&vector, &bytes[at], sizeof(vector));
    return vector;
  }
  static std::uint64_t mask(__m128i vector) noexcept {
    return static_cast<std::uint32_t>(_mm_movemask_epi8(vector));
  }
  template <class Part>
  static auto in_four(const Part& part) noexcept {
    return (part(0) | part(16)) | (part(32) | part(48));
  }

 public:
  static std::uint64_t equal_to(ByteSpan bytes, std::size_t at, std::uint8_t byte) noexcept {
    const __m128i all = _mm_set1_epi8(static_cast<char>(byte));
    return in_four([&](std::size_t i) { return mask(_mm_cmpeq_epi8(load(bytes, at + i), all)) << i; });
  }
  static std::uint64_t equal_to_next(ByteSpan bytes, std::size_t at) noexcept {
    return in_four([&](std::size_t i) {
      return mask(_mm_cmpeq_epi8(load(bytes, at + i), load(bytes, at + i + 1))) << i;
    });
  }
  static std::uint64_t copy_equal_to_next(ByteSpan bytes, std::size_t at, MutableByteSpan to,
                                          std::size_t place) noexcept {
    return in_four([&](std::size_t i) {
      const __m128i first = load(bytes, at + i);
      std::memcpy(&to[place + i], &first, sizeof(first));
      return mask(_mm_cmpeq_epi8(first, load(bytes, at + i + 1))) << i;
    });
  }
  static std::uint64_t digits(ByteSpan bytes, std::size_t at) noexcept {
    const __m128i below = _mm_set1_epi8('0' - 1);
    const __m128i above = _mm_set1_epi8('9' + 1);
    return in_four([&](std::size_t i) {
      const __m128i text = load(bytes, at + i);
      return mask(_mm_and_si128(_mm_cmpgt_epi8(text, below), _mm_cmplt_epi8(text, above))) << i;
    });
  }
  static bool has_triple(ByteSpan bytes, std::size_t at) noexcept {
    const __m128i found = in_four([&](std::size_t i) {
      const __m128i second = load(bytes, at + i + 1);
      return _mm_and_si128(_mm_cmpeq_epi8(load(bytes, at + i), second),
                           _mm_cmpeq_epi8(second, load(bytes, at + i + 2)));
    });
    return mask(found) != 0;
  }
  static std::size_t plain_text(ByteSpan bytes, std::size_t at) noexcept {
    const __m128i quote = _mm_set1_epi8('"');
    const __m128i backslash = _mm_set1_epi8('\\');
    const __m128i blank = _mm_set1_epi8(' ');
    const std::uint64_t others = in_four([&](std::size_t i) {
      const __m128i text = load(bytes, at + i);
      // As signed numbers, bytes that are not ASCII are below a blank too.
      const __m128i low = _mm_cmplt_epi8(text, blank);
      const __m128i marks = _mm_or_si128(_mm_cmpeq_epi8(text, quote), _mm_cmpeq_epi8(text, backslash));
      return mask(_mm_or_si128(low, marks)) << i;
    });
    return static_cast<std::size_t>(std::countr_zero(others));
  }
};
using NativeBlocks = Sse2Blocks;
#elif defined(__ARM_NEON) && defined(__aarch64__) && !defined(__ARM_BIG_ENDIAN)
class NeonBlocks {
  static uint8x16_t load(ByteSpan bytes, std::size_t at) noexcept { return vld1q_u8(&bytes[at]); }
  /// One bit of each byte is kept, another for each of eight neighbours, which are then added up.
  template <class Part>
  static std::uint64_t mask(const Part& part) noexcept {
    constexpr std::uint64_t kBits = 0x8040201008040201;
    const uint8x16_t bits = vreinterpretq_u8_u64(vdupq_n_u64(kBits));
    const uint8x16_t low = vpaddq_u8(vandq_u8(part(0), bits), vandq_u8(part(16), bits));
    const uint8x16_t high = vpaddq_u8(vandq_u8(part(32), bits), vandq_u8(part(48), bits));
    const uint8x16_t quarter = vpaddq_u8(low, high);
    return vgetq_lane_u64(vreinterpretq_u64_u8(vpaddq_u8(quarter, quarter)), 0);
  }

 public:
  static std::uint64_t equal_to(ByteSpan bytes, std::size_t at, std::uint8_t byte) noexcept {
    const uint8x16_t all = vdupq_n_u8(byte);
    return mask([&](std::size_t i) { return vceqq_u8(load(bytes, at + i), all); });
  }
  static std::uint64_t equal_to_next(ByteSpan bytes, std::size_t at) noexcept {
    return mask([&](std::size_t i) { return vceqq_u8(load(bytes, at + i), load(bytes, at + i + 1)); });
  }
  static std::uint64_t copy_equal_to_next(ByteSpan bytes, std::size_t at, MutableByteSpan to,
                                          std::size_t place) noexcept {
    return mask([&](std::size_t i) {
      const uint8x16_t first = load(bytes, at + i);
      vst1q_u8(&to[place + i], first);
      return vceqq_u8(first, load(bytes, at + i + 1));
    });
  }
  static std::uint64_t digits(ByteSpan bytes, std::size_t at) noexcept {
    const uint8x16_t zero = vdupq_n_u8('0');
    const uint8x16_t nine = vdupq_n_u8(9);
    return mask([&](std::size_t i) { return vcleq_u8(vsubq_u8(load(bytes, at + i), zero), nine); });
  }
  static bool has_triple(ByteSpan bytes, std::size_t at) noexcept {
    const auto part = [&](std::size_t i) {
      const uint8x16_t second = load(bytes, at + i + 1);
      return vandq_u8(vceqq_u8(load(bytes, at + i), second), vceqq_u8(second, load(bytes, at + i + 2)));
    };
    return vmaxvq_u8(vorrq_u8(vorrq_u8(part(0), part(16)), vorrq_u8(part(32), part(48)))) != 0;
  }
  static std::size_t plain_text(ByteSpan bytes, std::size_t at) noexcept {
    const uint8x16_t quote = vdupq_n_u8('"');
    const uint8x16_t backslash = vdupq_n_u8('\\');
    const int8x16_t blank = vdupq_n_s8(' ');
    const std::uint64_t others = mask([&](std::size_t i) {
      const uint8x16_t text = load(bytes, at + i);
      // As signed numbers, bytes that are not ASCII are below a blank too.
      const uint8x16_t low = vcltq_s8(vreinterpretq_s8_u8(text), blank);
      return vorrq_u8(low, vorrq_u8(vceqq_u8(text, quote), vceqq_u8(text, backslash)));
    });
    return static_cast<std::size_t>(std::countr_zero(others));
  }
};
using NativeBlocks = NeonBlocks;
#else
using NativeBlocks = WordBlocks;
#endif

}  // namespace kvpack
