/// Bytes: views, checked arithmetic, one bounded reader and one writer for every wire format.
#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "kvpack/base/result.h"

namespace kvpack {

using ByteSpan = std::span<const std::uint8_t>;
using MutableByteSpan = std::span<std::uint8_t>;
using Bytes = std::vector<std::uint8_t>;

/// The bytes of a text, as a view. `char` may alias anything, so this one cast is defined.
inline ByteSpan byte_view(std::string_view text) noexcept {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

/// The characters of a byte string, as a view.
inline std::string_view text_view(ByteSpan bytes) noexcept {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// A domain string or magic with its terminating NUL: `with_nul("kvpack/v1/manifest")`.
template <std::size_t N>
consteval std::array<std::uint8_t, N> with_nul(const char (&text)[N]) {
  std::array<std::uint8_t, N> out{};
  for (std::size_t i = 0; i < N; ++i) out[i] = static_cast<std::uint8_t>(text[i]);
  return out;
}

/// A text without its terminating NUL.
template <std::size_t N>
consteval std::array<std::uint8_t, N - 1> without_nul(const char (&text)[N]) {
  std::array<std::uint8_t, N - 1> out{};
  for (std::size_t i = 0; i + 1 < N; ++i) out[i] = static_cast<std::uint8_t>(text[i]);
  return out;
}

using Magic = std::array<std::uint8_t, 8>;

/// An eight-byte magic: up to eight characters, padded with NUL.
template <std::size_t N>
consteval Magic magic(const char (&text)[N]) {
  static_assert(N <= 9);
  Magic out{};
  for (std::size_t i = 0; i + 1 < N; ++i) out[i] = static_cast<std::uint8_t>(text[i]);
  return out;
}

/// a + b, or nothing on overflow. Lengths and offsets from outside are added no other way.
template <std::unsigned_integral U>
constexpr std::optional<U> checked_add(U a, U b) noexcept {
  if (b > std::numeric_limits<U>::max() - a) return std::nullopt;
  return static_cast<U>(a + b);
}

/// a * b, or nothing on overflow.
template <std::unsigned_integral U>
constexpr std::optional<U> checked_mul(U a, U b) noexcept {
  if (a != 0 && b > std::numeric_limits<U>::max() / a) return std::nullopt;
  return static_cast<U>(a * b);
}

/// The smallest multiple of `unit` that is not below `n`. @pre the result fits.
constexpr std::uint64_t round_up(std::uint64_t n, std::uint64_t unit) noexcept {
  return (n + unit - 1) / unit * unit;
}

inline bool all_zero(ByteSpan bytes) noexcept {
  // The range equals itself moved by one byte exactly when all bytes are equal; memcmp does that in vectors.
  return bytes.empty() ||
         (bytes[0] == 0 && std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0);
}

/// Room for `n` bytes in a buffer that is used again and again; what was in it is gone. One that is too small
/// is given back before a larger one is asked for: growing it would hold both, and the larger one with room
/// to spare.
inline MutableByteSpan room_in(Bytes& buffer, std::size_t n) {
  if (buffer.size() < n) {
    Bytes().swap(buffer);
    buffer.resize(n);
  }
  return MutableByteSpan(buffer).first(n);
}

/// Copies `from` to the front of `to`. One memcpy whatever the optimiser thinks of iterators: payloads come
/// this way.
/// @pre from.size() <= to.size(); no overlap
inline void copy_bytes(ByteSpan from, MutableByteSpan to) noexcept {
  assert(from.size() <= to.size());
  if (!from.empty()) std::memcpy(to.data(), from.data(), from.size());
}

/// How many bytes spans of memory hold together. @pre the sum fits
template <class Byte>
constexpr std::size_t sum_of_sizes(std::span<const std::span<Byte>> pieces) noexcept {
  std::size_t sum = 0;
  for (const std::span<Byte> piece : pieces) sum += piece.size();
  return sum;
}

/// Copies pieces, one behind the other, to the front of `to`.
/// @pre to.size() >= sum_of_sizes(pieces); no overlap
inline void join_pieces(std::span<const ByteSpan> pieces, MutableByteSpan to) noexcept {
  for (const ByteSpan piece : pieces) {
    copy_bytes(piece, to);
    to = to.subspan(piece.size());
  }
}

/// The way back: fills all pieces from the front of `from`. @pre from.size() >= sum_of_sizes(pieces); no
/// overlap
inline void split_into_pieces(ByteSpan from, std::span<const MutableByteSpan> pieces) noexcept {
  for (const MutableByteSpan piece : pieces) {
    copy_bytes(from.first(piece.size()), piece);
    from = from.subspan(piece.size());
  }
}

/// Little-endian load and store at a fixed place of a fixed-size header. @pre the range lies inside `bytes`.
template <std::unsigned_integral U>
constexpr U load_le(ByteSpan bytes, std::size_t offset) noexcept {
  std::uint64_t value = 0;
  for (std::size_t i = sizeof(U); i-- > 0;) value = (value << 8) | bytes[offset + i];
  return static_cast<U>(value);
}
template <std::unsigned_integral U>
constexpr void store_le(MutableByteSpan bytes, std::size_t offset, U value) noexcept {
  for (std::size_t i = 0; i < sizeof(U); ++i)
    bytes[offset + i] = static_cast<std::uint8_t>(std::uint64_t{value} >> (8 * i));
}

/// The little-endian bytes of an integer, for hash inputs.
template <std::unsigned_integral U>
constexpr std::array<std::uint8_t, sizeof(U)> le_bytes(U value) noexcept {
  std::array<std::uint8_t, sizeof(U)> out{};
  store_le<U>(out, 0, value);
  return out;
}

/// Big-endian, where a protocol says so.
template <std::unsigned_integral U>
constexpr std::array<std::uint8_t, sizeof(U)> be_bytes(U value) noexcept {
  std::array<std::uint8_t, sizeof(U)> out{};
  for (std::size_t i = 0; i < sizeof(U); ++i)
    out[i] = static_cast<std::uint8_t>(std::uint64_t{value} >> (8 * (sizeof(U) - 1 - i)));
  return out;
}

/// Reads a byte string from front to back. A failed read moves nothing.
class ByteReader {
 public:
  explicit ByteReader(ByteSpan input) noexcept : rest_(input) {}

  ByteSpan rest() const noexcept { return rest_; }
  bool done() const noexcept { return rest_.empty(); }

  /// The next `n` bytes as a view into the input. @error kTruncated with the text `what`
  Result<ByteSpan> take(std::size_t n, std::string_view what) {
    if (n > rest_.size()) return fail(ErrorCode::kTruncated, std::string(what));
    const ByteSpan head = rest_.first(n);
    rest_ = rest_.subspan(n);
    return head;
  }

  template <std::unsigned_integral U>
  Result<U> le(std::string_view what) {
    KVPACK_TRY_ASSIGN(const ByteSpan raw, take(sizeof(U), what));
    return load_le<U>(raw, 0);
  }

  template <std::unsigned_integral U>
  Result<U> be(std::string_view what) {
    KVPACK_TRY_ASSIGN(const ByteSpan raw, take(sizeof(U), what));
    std::uint64_t value = 0;
    for (const std::uint8_t b : raw) value = (value << 8) | b;
    return static_cast<U>(value);
  }

 private:
  ByteSpan rest_;
};

/// Appends wire fields to a byte string that it owns.
class ByteWriter {
 public:
  ByteWriter() = default;
  /// @param room  memory to be used again; what is in it goes
  explicit ByteWriter(Bytes room) noexcept : out_(std::move(room)) { out_.clear(); }

  /// @pre `data` is no view of this writer's own bytes
  void bytes(ByteSpan data) {
    // Not insert: g++ 12 takes its inlined form for a write past the end and warns whoever includes this.
    const std::size_t at = out_.size();
    out_.resize(at + data.size());
    std::ranges::copy(data, out_.begin() + static_cast<std::ptrdiff_t>(at));
  }

  template <std::unsigned_integral U>
  void le(U value) {
    bytes(le_bytes(value));
  }

  void reserve(std::size_t n) { out_.reserve(n); }
  const Bytes& view() const noexcept { return out_; }
  Bytes take() && { return std::move(out_); }

 private:
  Bytes out_;
};

}  // namespace kvpack
