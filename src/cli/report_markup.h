/// Pieces of HTML and SVG. Whatever is not markup of ours goes through `escaped`.
#pragma once

#include <fmt/core.h>

#include <string>
#include <string_view>

#include "kvpack/base/utf8.h"

namespace kvpack::cli {

/// `text` as content or attribute value. What HTML cannot hold comes as U+FFFD, text that is no UTF-8 with a
/// `?` for each byte above 127.
inline std::string escaped(std::string_view text) {
  const bool as_it_is = is_utf8(text);
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const auto byte = static_cast<unsigned char>(c);
    const bool is_c1 = as_it_is && byte == 0xc2 && static_cast<unsigned char>(text[i + 1]) < 0xa0;
    if (is_c1) ++i;
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '"') {
      out += "&quot;";
    } else if (c == '\'') {
      out += "&#39;";
    } else if (byte < 0x20 || byte == 0x7f || is_c1) {
      out += "\xef\xbf\xbd";
    } else {
      out += byte >= 0x80 && !as_it_is ? '?' : c;
    }
  }
  return out;
}

/// 1234567 as 1,234,567.
inline std::string grouped(std::uint64_t number) {
  std::string text = std::to_string(number);
  for (std::size_t at = text.size(); at > 3; at -= 3) text.insert(at - 3, 1, ',');
  return text;
}

/// 1 chunk, 2 chunks.
inline std::string counted(std::uint64_t number, std::string_view noun) {
  return fmt::format("{} {}{}", grouped(number), noun, number == 1 ? "" : "s");
}

/// 12.3 MiB; whole below 1 KiB.
inline std::string bytes_text(std::uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  // 1023.95 would be shown as 1024.0.
  for (; value >= (unit == 0 ? 1024.0 : 1023.95); ++unit) value /= 1024.0;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

/// A part in percent; `-` of nothing.
inline std::string percent_text(std::uint64_t part, std::uint64_t whole) {
  if (whole == 0) return "-";
  return fmt::format("{:.1f} %", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

/// A figure of the report: its name and value for programs, `text` for people. The names are those of --json.
inline std::string figure(std::string_view name, std::uint64_t value, std::string_view text) {
  return fmt::format("<data data-name=\"{}\" value=\"{}\">{}</data>", escaped(name), value, escaped(text));
}
inline std::string count_figure(std::string_view name, std::uint64_t value) {
  return figure(name, value, grouped(value));
}
inline std::string bytes_figure(std::string_view name, std::uint64_t value) {
  return figure(name, value, bytes_text(value));
}

}  // namespace kvpack::cli
