/// Canonical JSON of structs whose keys are known: written into room of the exact size, and read in one pass
/// from bytes that are canonical. docs/protocol/handoff.md §Canonical JSON.
///
/// A struct has one function template that says what stands in its text, piece by piece. Over JsonSize it
/// counts, over JsonFill it writes. The reader has no verdict of its own: what JsonScan does not take goes to
/// the parser of core/canonical_json.h, which alone says what is wrong, or that nothing is.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kvpack/base/byte_blocks.h"
#include "kvpack/base/utf8.h"

namespace kvpack {

/// The length of a text that has not been written yet.
class JsonSize {
 public:
  /// What stands between values, as it is: brackets, commas, keys with their colon.
  void fixed(std::string_view text) noexcept { bytes_ += text.size(); }
  /// A string, with its quotes and escapes. @pre UTF-8
  void text(std::string_view text) noexcept;
  void number(std::uint64_t value) noexcept;
  /// Numbers with commas between them.
  void numbers(std::span<const std::uint32_t> values) noexcept;

  std::size_t bytes() const noexcept { return bytes_; }
  /// Whether no string has an escape.
  bool plain() const noexcept { return plain_; }

 private:
  std::size_t bytes_ = 0;
  bool plain_ = true;
};

/// Writes the pieces that a JsonSize has counted.
class JsonFill {
 public:
  /// @param room   as long as the text
  /// @param plain  what JsonSize said
  JsonFill(MutableByteSpan room, bool plain) noexcept : room_(room), plain_(plain) {}

  void fixed(std::string_view text) noexcept;
  void text(std::string_view text) noexcept;
  void number(std::uint64_t value) noexcept;
  void numbers(std::span<const std::uint32_t> values) noexcept;

  bool full() const noexcept { return at_ == room_.size(); }

 private:
  MutableByteSpan room_;
  std::size_t at_ = 0;
  bool plain_;
};

/// The text that `put` describes. @param put  called with a JsonSize&, then with a JsonFill&
template <class Put>
Bytes json_bytes(const Put& put);

/// Reads a text from front to back. A function that gives false has met something else than it reads, which
/// may still be right in another spelling; the scan is then of no further use.
class JsonScan {
 public:
  explicit JsonScan(ByteSpan input) noexcept : in_(input) {}

  bool fixed(std::string_view text) noexcept;
  /// A string without escapes. Gives false, too, for one that is not UTF-8.
  bool text(std::string& out);
  /// The same as a view into the input.
  bool view(std::string_view& out) noexcept;
  /// A string out of a closed list, as its place there.
  bool choice(std::span<const std::string_view> names, std::size_t& out) noexcept;
  bool boolean(bool& out) noexcept;
  template <std::unsigned_integral U>
  bool number(U& out) noexcept;
  /// An array of numbers, with its brackets.
  bool numbers(std::vector<std::uint32_t>& out);
  /// An array, with its brackets. @param item  JsonScan& -> bool, called at each element
  template <class Item>
  bool array(const Item& item);

  bool done() const noexcept { return at_ == in_.size(); }
  std::size_t left() const noexcept { return in_.size() - at_; }

 private:
  bool long_number(std::uint64_t& out) noexcept;
  std::size_t short_numbers(std::span<std::uint32_t> out) noexcept;

  ByteSpan in_;
  std::size_t at_ = 0;
};

// ---------------------------------------------------------------------------------------------------------

namespace detail {

inline constexpr std::uint64_t kEachByte = 0x0101010101010101;

constexpr bool needs_escape(std::uint8_t byte) noexcept {
  return byte < 0x20 || byte == '"' || byte == '\\';
}
/// Whether one of eight bytes does.
constexpr bool any_needs_escape(std::uint64_t word) noexcept {
  const auto any_zero = [](std::uint64_t x) { return (x - kEachByte) & ~x & (0x80 * kEachByte); };
  const std::uint64_t control = (word - 0x20 * kEachByte) & ~word & (0x80 * kEachByte);
  return (control | any_zero(word ^ ('"' * kEachByte)) | any_zero(word ^ ('\\' * kEachByte))) != 0;
}

inline bool has_escapes(ByteSpan text) noexcept {
  std::size_t at = 0;
  while (text.size() - at >= 64 && NativeBlocks::plain_text(text, at) == 64) at += 64;
  for (; text.size() - at >= 8; at += 8)
    if (any_needs_escape(WordBlocks::load(text, at))) return true;
  // What is left, and some of it twice.
  const std::size_t size = text.size();
  if (at == size) return false;
  if (size >= 8) return any_needs_escape(WordBlocks::load(text, size - 8));
  if (size >= 4) {
    std::array<std::uint32_t, 2> ends{};
    std::memcpy(&ends[0], &text[0], 4);
    std::memcpy(&ends[1], &text[size - 4], 4);
    return any_needs_escape(ends[0] | std::uint64_t{ends[1]} << 32);
  }
  return std::ranges::any_of(text, needs_escape);
}

/// The letter behind the backslash; 'u' where four digits follow.
constexpr char escape_letter(std::uint8_t byte) noexcept {
  switch (byte) {
    case '"': return '"';
    case '\\': return '\\';
    case '\b': return 'b';
    case '\t': return 't';
    case '\n': return 'n';
    case '\f': return 'f';
    case '\r': return 'r';
    default: return 'u';
  }
}

constexpr std::size_t count_digits(std::uint64_t value) noexcept {
  std::size_t digits = 1;
  for (; value >= 1'000'000; value /= 1'000'000) digits += 6;
  return digits + std::size_t{value > 9} + std::size_t{value > 99} + std::size_t{value > 999} +
         std::size_t{value > 9'999} + std::size_t{value > 99'999};
}

/// The texts of 0 to 999 in words, the first character lowest: with zeros in front and a comma behind, or
/// without, and their length in the fourth byte.
struct ThreeDigits {
  std::array<std::uint32_t, 1'000> padded{};
  std::array<std::uint32_t, 1'000> leading{};
};
inline constexpr ThreeDigits kThreeDigits = [] {
  ThreeDigits out;
  for (std::uint32_t i = 0; i < 1'000; ++i) {
    const std::uint32_t text = (i / 100 + '0') | (i / 10 % 10 + '0') << 8 | (i % 10 + '0') << 16;
    const auto length = static_cast<std::uint32_t>(count_digits(i));
    out.padded[i] = text | std::uint32_t{','} << 24;
    out.leading[i] = text >> (8 * (3 - length)) | length << 24;
  }
  return out;
}();

/// The number of eight digits, one a byte, the first one lowest.
constexpr std::uint32_t of_eight_digits(std::uint64_t digits) noexcept {
  const std::uint64_t twos = ((digits * (10 * 0x100 + 1)) >> 8) & 0x00ff00ff'00ff00ff;
  const std::uint64_t fours = ((twos * (100 * 0x10000 + 1)) >> 16) & 0x0000ffff'0000ffff;
  return static_cast<std::uint32_t>((fours * (10'000 * 0x100000000U + 1)) >> 32);
}

/// A number of up to seven digits at this place, and behind it another byte.
struct ShortNumber {
  std::size_t digits = 0;  ///< 0 where there is none, or a longer one, or a zero in front.
  std::uint32_t value = 0;
};
/// @pre eight bytes from `at` on
inline ShortNumber short_number(ByteSpan bytes, std::size_t at) noexcept {
  const std::uint64_t values = WordBlocks::load(bytes, at) ^ ('0' * kEachByte);
  // A bit in the lowest byte that is no digit; nothing below it.
  const std::uint64_t others = ((values + 0x76 * kEachByte) | values) & (0x80 * kEachByte);
  const auto digits = static_cast<std::size_t>(std::countr_zero(others)) / 8;
  if (digits == 0 || digits == 8 || ((values & 0xff) == 0 && digits > 1)) return {};
  return {digits, of_eight_digits(values << (8 * (8 - digits)))};
}

inline void store_text(MutableByteSpan bytes, std::size_t at, std::uint32_t word) noexcept {
  if constexpr (std::endian::native == std::endian::little) {
    std::memcpy(&bytes[at], &word, sizeof(word));
  } else {
    store_le<std::uint32_t>(bytes, at, word);
  }
}

// Places go through these functions by value: as a member, every byte that is written could change one.

/// Writes a text as it is. @return where it ends
inline std::size_t put_fixed(MutableByteSpan room, std::size_t at, std::string_view text) noexcept {
  assert(text.size() <= room.size() - at);
  std::memcpy(room.data() + at, text.data(), text.size());
  return at + text.size();
}

/// The same; a call for a copy costs more than the bytes that most texts have.
inline std::size_t put_plain(MutableByteSpan room, std::size_t at, std::string_view text) noexcept {
  const std::size_t size = text.size();
  if (size < 4 || size > 8) return put_fixed(room, at, text);
  assert(size <= room.size() - at);
  std::memcpy(&room[at], &text[0], 4);
  std::memcpy(&room[at + size - 4], &text[size - 4], 4);
  return at + size;
}

/// The same with its escapes.
inline std::size_t put_escaped(MutableByteSpan room, std::size_t at, std::string_view text) noexcept {
  static constexpr char kHex[] = "0123456789abcdef";
  for (const std::uint8_t byte : byte_view(text)) {
    if (!needs_escape(byte)) {
      room[at++] = byte;
      continue;
    }
    const char letter = escape_letter(byte);
    room[at++] = '\\';
    room[at++] = static_cast<std::uint8_t>(letter);
    if (letter != 'u') continue;
    for (const char digit : {'0', '0', kHex[byte >> 4], kHex[byte & 15]})
      room[at++] = static_cast<std::uint8_t>(digit);
  }
  return at;
}

/// Writes the front of a number, below 1,000, and more bytes, which what follows writes over. @return where
/// it ends
inline std::size_t put_leading(MutableByteSpan room, std::size_t at, std::uint64_t value) noexcept {
  const std::uint32_t text = kThreeDigits.leading[value];
  store_text(room, at, text);
  return at + (text >> 24);
}
/// Three digits and a comma.
inline void put_padded(MutableByteSpan room, std::size_t at, std::uint64_t value) noexcept {
  store_text(room, at, kThreeDigits.padded[value]);
}

/// The room for a number behind which there is something else, with all that is written over.
inline constexpr std::size_t kNumberRoom = 24;

/// Writes a number. @return where it ends
inline std::size_t put_number(MutableByteSpan room, std::size_t at, std::uint64_t value) noexcept {
  if (room.size() - at < kNumberRoom) {
    const std::size_t end = at + count_digits(value);
    assert(end <= room.size());
    for (std::size_t i = end; i-- > at; value /= 10) room[i] = static_cast<std::uint8_t>('0' + value % 10);
    return end;
  }
  // The front first: its bytes too many belong to the next three digits.
  constexpr std::uint64_t kThousand = 1'000, kMillion = 1'000'000, kBillion = 1'000'000'000;
  if (value < kThousand) return put_leading(room, at, value);
  if (value < kMillion) {
    at = put_leading(room, at, value / kThousand);
  } else if (value < kBillion) {
    at = put_leading(room, at, value / kMillion);
    put_padded(room, at, value / kThousand % kThousand);
    at += 3;
  } else {
    at = put_number(room, at, value / kBillion);
    put_padded(room, at, value / kMillion % kThousand);
    put_padded(room, at + 3, value / kThousand % kThousand);
    at += 6;
  }
  put_padded(room, at, value % kThousand);
  return at + 3;
}

}  // namespace detail

inline void JsonSize::text(std::string_view text) noexcept {
  const ByteSpan bytes = byte_view(text);
  bytes_ += bytes.size() + 2;
  if (!detail::has_escapes(bytes)) return;
  plain_ = false;
  for (const std::uint8_t byte : bytes)
    if (detail::needs_escape(byte)) bytes_ += detail::escape_letter(byte) == 'u' ? 5 : 1;
}

inline void JsonSize::number(std::uint64_t value) noexcept {
  bytes_ += detail::count_digits(value);
}

inline void JsonSize::numbers(std::span<const std::uint32_t> values) noexcept {
  std::size_t sum = values.empty() ? 0 : values.size() - 1;
  // Comparisons, many at a time: a branch for each digit would be wrong for every other number.
  constexpr std::size_t kTurn = 64;
  for (; values.size() >= kTurn; values = values.subspan(kTurn)) {
    std::uint32_t digits = kTurn;
    for (std::size_t i = 0; i < kTurn; ++i) {
      const std::uint32_t value = values[i];
      digits += std::uint32_t{value > 9} + std::uint32_t{value > 99} + std::uint32_t{value > 999} +
                std::uint32_t{value > 9'999} + std::uint32_t{value > 99'999} +
                std::uint32_t{value > 999'999} + std::uint32_t{value > 9'999'999} +
                std::uint32_t{value > 99'999'999} + std::uint32_t{value > 999'999'999};
    }
    sum += digits;
  }
  for (const std::uint32_t value : values) sum += detail::count_digits(value);
  bytes_ += sum;
}

inline void JsonFill::fixed(std::string_view text) noexcept {
  at_ = detail::put_fixed(room_, at_, text);
}

inline void JsonFill::text(std::string_view text) noexcept {
  fixed("\"");
  at_ = plain_ ? detail::put_plain(room_, at_, text) : detail::put_escaped(room_, at_, text);
  fixed("\"");
}

inline void JsonFill::number(std::uint64_t value) noexcept {
  at_ = detail::put_number(room_, at_, value);
}

inline void JsonFill::numbers(std::span<const std::uint32_t> values) noexcept {
  const MutableByteSpan room = room_;
  std::size_t at = at_;
  std::size_t i = 0;
  while (i < values.size()) {
    // Most numbers of a vocabulary are here; a comma stands behind all but the last.
    for (; i + 1 < values.size() && room.size() - at >= detail::kNumberRoom; ++i) {
      const std::uint32_t value = values[i];
      if (value - 1'000 >= 999'000) break;
      at = detail::put_leading(room, at, value / 1'000);
      detail::put_padded(room, at, value % 1'000);
      at += 4;
    }
    at = detail::put_number(room, at, values[i]);
    if (++i < values.size()) room[at++] = ',';
  }
  at_ = at;
}

template <class Put>
Bytes json_bytes(const Put& put) {
  JsonSize size;
  put(size);
  Bytes out(size.bytes());
  JsonFill fill(out, size.plain());
  put(fill);
  assert(fill.full());
  return out;
}

inline bool JsonScan::fixed(std::string_view text) noexcept {
  if (left() < text.size() || std::memcmp(in_.data() + at_, text.data(), text.size()) != 0) return false;
  at_ += text.size();
  return true;
}

inline bool JsonScan::view(std::string_view& out) noexcept {
  if (!fixed("\"")) return false;
  const std::size_t begin = at_;
  bool ascii = true;
  std::size_t end = begin;
  for (;; ++end) {
    if (in_.size() - end >= 64) end += static_cast<std::size_t>(NativeBlocks::plain_text(in_, end));
    if (end == in_.size()) return false;
    const std::uint8_t byte = in_[end];
    if (byte == '"') break;
    if (detail::needs_escape(byte)) return false;
    ascii = ascii && byte < 0x80;
  }
  out = text_view(in_.subspan(begin, end - begin));
  at_ = end + 1;
  return ascii || is_utf8(out);
}

inline bool JsonScan::text(std::string& out) {
  std::string_view found;
  if (!view(found)) return false;
  out = found;
  return true;
}

inline bool JsonScan::choice(std::span<const std::string_view> names, std::size_t& out) noexcept {
  std::string_view name;
  if (!view(name)) return false;
  out = static_cast<std::size_t>(std::ranges::find(names, name) - names.begin());
  return out < names.size();
}

inline bool JsonScan::boolean(bool& out) noexcept {
  out = fixed("true");
  return out || fixed("false");
}

inline bool JsonScan::long_number(std::uint64_t& out) noexcept {
  const std::size_t begin = at_;
  std::uint64_t value = 0;
  for (; at_ < in_.size() && in_[at_] >= '0' && in_[at_] <= '9'; ++at_) {
    const std::uint64_t digit = in_[at_] - std::uint64_t{'0'};
    if (value > (std::numeric_limits<std::uint64_t>::max() - digit) / 10) return false;
    value = 10 * value + digit;
  }
  if (at_ == begin || (in_[begin] == '0' && at_ - begin > 1)) return false;
  out = value;
  return true;
}

template <std::unsigned_integral U>
bool JsonScan::number(U& out) noexcept {
  if (left() >= 8) {
    const detail::ShortNumber number = detail::short_number(in_, at_);
    if (number.digits != 0 && number.value <= std::numeric_limits<U>::max()) {
      out = static_cast<U>(number.value);
      at_ += number.digits;
      return true;
    }
  }
  std::uint64_t value = 0;
  if (!long_number(value) || value > std::numeric_limits<U>::max()) return false;
  out = static_cast<U>(value);
  return true;
}

/// Numbers of up to seven digits with a comma behind each, as many as are easily had. @return how many
inline std::size_t JsonScan::short_numbers(std::span<std::uint32_t> out) noexcept {
  const ByteSpan in = in_;
  std::size_t at = at_;
  std::size_t count = 0;
  // Where numbers end in 64 bytes is known at once, so that none waits for the end of the one before.
  while (in.size() - at >= 72 && out.size() - count >= 32) {
    std::uint64_t commas = NativeBlocks::equal_to(in, at, ',');
    const std::uint64_t behind = commas << 1 | 1;  // A number begins here.
    const std::uint64_t zeros = NativeBlocks::equal_to(in, at, '0') & behind & ~(commas >> 1);
    const std::uint64_t up_to_last = commas == 0 ? 0 : ~std::uint64_t{0} >> std::countl_zero(commas);
    const std::uint64_t others = ~(NativeBlocks::digits(in, at) | commas) | (commas & behind) | zeros;
    if (commas == 0 || (others & up_to_last) != 0) break;
    const std::size_t block = at;
    std::size_t begin = at;
    std::size_t taken = count;
    std::size_t lengths = 0;
    for (; commas != 0; commas &= commas - 1) {
      const std::size_t end = block + static_cast<std::size_t>(std::countr_zero(commas));
      const std::size_t length = end - begin;
      lengths |= length;
      const std::uint64_t text = WordBlocks::load(in, begin) << ((64 - 8 * length) & 63);
      out[taken++] = detail::of_eight_digits(text & 0x0f * detail::kEachByte);
      begin = end + 1;
    }
    if (lengths > 7) break;
    count = taken;
    at = begin;
  }
  while (in.size() - at >= 8 && count < out.size()) {
    const detail::ShortNumber number = detail::short_number(in, at);
    if (number.digits == 0 || in[at + number.digits] != ',') break;
    out[count++] = number.value;
    at += number.digits + 1;
  }
  at_ = at;
  return count;
}

inline bool JsonScan::numbers(std::vector<std::uint32_t>& out) {
  if (!fixed("[")) return false;
  if (fixed("]")) return true;
  // Through a small buffer, so that memory grows by what is really there.
  std::array<std::uint32_t, 512> some{};
  for (;;) {
    const std::size_t count = short_numbers(some);
    out.insert(out.end(), some.begin(), some.begin() + static_cast<std::ptrdiff_t>(count));
    if (count == some.size()) continue;
    if (!number(out.emplace_back())) return false;
    if (fixed("]")) return true;
    if (!fixed(",")) return false;
  }
}

template <class Item>
bool JsonScan::array(const Item& item) {
  if (!fixed("[")) return false;
  if (fixed("]")) return true;
  do {
    if (!item(*this)) return false;
  } while (fixed(","));
  return fixed("]");
}

}  // namespace kvpack
