/// Lower-case hexadecimal, the only spelling of ids in names, reports and JSON.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "kvpack/base/bytes.h"

namespace kvpack {

inline std::string to_hex(ByteSpan bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  out.reserve(bytes.size() * 2);
  for (const std::uint8_t b : bytes) {
    out.push_back(kDigits[b >> 4]);
    out.push_back(kDigits[b & 15]);
  }
  return out;
}

/// Writes the bytes that `text` spells into `out`. False, and `out` untouched, unless `text` has exactly
/// 2 * out.size() lower-case digits.
inline bool from_hex(std::string_view text, MutableByteSpan out) noexcept {
  const auto value = [](char c) -> int {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return -1;
  };
  if (text.size() % 2 != 0 || text.size() / 2 != out.size()) return false;
  for (const char c : text)
    if (value(c) < 0) return false;
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = static_cast<std::uint8_t>(value(text[2 * i]) * 16 + value(text[2 * i + 1]));
  return true;
}

/// The bytes that `text` spells, or nothing when it is not an even number of lower-case digits.
inline std::optional<Bytes> from_hex(std::string_view text) {
  Bytes out(text.size() / 2);
  if (!from_hex(text, out)) return std::nullopt;
  return out;
}

}  // namespace kvpack
