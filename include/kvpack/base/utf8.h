/// UTF-8 as RFC 3629 defines it: names and texts of every format are judged by this one function.
#pragma once

#include <algorithm>
#include <string_view>

#include "kvpack/base/bytes.h"

namespace kvpack {

/// True for well-formed UTF-8: no overlong form, no surrogate, nothing above U+10FFFF. Empty text is
/// well-formed.
inline bool is_utf8(std::string_view text) noexcept {
  const ByteSpan bytes = byte_view(text);
  const auto continues = [&](std::size_t at, std::uint8_t low, std::uint8_t high) {
    return at < bytes.size() && bytes[at] >= low && bytes[at] <= high;
  };
  std::size_t i = 0;
  while (i < bytes.size()) {
    const std::uint8_t lead = bytes[i];
    if (lead < 0x80) {
      i += 1;
    } else if (lead >= 0xc2 && lead <= 0xdf) {
      if (!continues(i + 1, 0x80, 0xbf)) return false;
      i += 2;
    } else if (lead >= 0xe0 && lead <= 0xef) {
      const std::uint8_t low = lead == 0xe0 ? 0xa0 : 0x80;
      const std::uint8_t high = lead == 0xed ? 0x9f : 0xbf;
      if (!continues(i + 1, low, high) || !continues(i + 2, 0x80, 0xbf)) return false;
      i += 3;
    } else if (lead >= 0xf0 && lead <= 0xf4) {
      const std::uint8_t low = lead == 0xf0 ? 0x90 : 0x80;
      const std::uint8_t high = lead == 0xf4 ? 0x8f : 0xbf;
      if (!continues(i + 1, low, high) || !continues(i + 2, 0x80, 0xbf) || !continues(i + 3, 0x80, 0xbf))
        return false;
      i += 4;
    } else {
      return false;
    }
  }
  return true;
}

/// The longest front of at most `max_bytes` that does not end inside a character. @pre text is UTF-8
inline std::string_view utf8_prefix(std::string_view text, std::size_t max_bytes) noexcept {
  std::size_t length = std::min(text.size(), max_bytes);
  while (length > 0 && length < text.size() && (static_cast<unsigned char>(text[length]) & 0xc0) == 0x80)
    --length;
  return text.substr(0, length);
}

}  // namespace kvpack
