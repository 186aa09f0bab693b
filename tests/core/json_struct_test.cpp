#include "kvpack/core/json_struct.h"

#include <gtest/gtest.h>

#include <random>

#include "kvpack/core/canonical_json.h"
#include "support/mutate.h"

namespace kvpack::json_struct_test {
namespace {

std::string filled_text(const std::string& text) {
  return std::string(text_view(json_bytes([&](auto& out) { out.text(text); })));
}
std::string filled_number(std::uint64_t value) {
  return std::string(text_view(json_bytes([&](auto& out) { out.number(value); })));
}
std::string filled_numbers(const std::vector<std::uint32_t>& values) {
  return std::string(text_view(json_bytes([&](auto& out) {
    out.fixed("[");
    out.numbers(values);
    out.fixed("]");
  })));
}
std::string general_numbers(const std::vector<std::uint32_t>& values) {
  JsonValue array = JsonValue::array();
  for (const std::uint32_t value : values) array.push(value);
  return canonical_json_text(array);
}

// All that have a power of ten as a neighbour, and the ends.
std::vector<std::uint64_t> interesting_numbers() {
  std::vector<std::uint64_t> out{0, 1, std::numeric_limits<std::uint64_t>::max(),
                                 std::numeric_limits<std::uint32_t>::max()};
  for (std::uint64_t power = 10;; power *= 10) {
    for (const std::uint64_t value : {power - 1, power, power + 1, power / 2, 2 * power + 7})
      out.push_back(value);
    if (power > std::numeric_limits<std::uint64_t>::max() / 10) return out;
  }
}

// Numbers of all lengths alike.
std::uint32_t number_of_any_length(std::mt19937_64& random) {
  return static_cast<std::uint32_t>(random() >> (32 + random() % 32));
}

TEST(JsonFill, WritesNumbersAsTheGeneralWriterDoes) {
  for (const std::uint64_t value : interesting_numbers()) {
    EXPECT_EQ(filled_number(value), std::to_string(value));
    // The same with more behind it, where there is room for more than the number.
    const Bytes text = json_bytes([&](auto& out) {
      out.number(value);
      out.fixed("012345678901234567890123456789");
    });
    EXPECT_EQ(text_view(text), std::to_string(value) + "012345678901234567890123456789");
  }
  for (std::uint32_t value = 0; value < 1'000; ++value)
    for (const std::uint64_t unit : {1ULL, 1'000ULL, 1'000'000ULL, 1'000'000'000ULL}) {
      const Bytes text = json_bytes([&](auto& out) {
        out.number(value * unit + value % unit);
        out.fixed("                        ");
      });
      ASSERT_EQ(text_view(text), std::to_string(value * unit + value % unit) + "                        ");
    }
}

TEST(JsonFill, WritesArraysOfNumbersAsTheGeneralWriterDoes) {
  std::mt19937_64 random(1);
  for (std::size_t count = 0; count < 200; ++count) {
    for (int kind = 0; kind < 3; ++kind) {
      std::vector<std::uint32_t> values(count);
      for (std::uint32_t& value : values)
        value = kind == 0   ? number_of_any_length(random)
                : kind == 1 ? static_cast<std::uint32_t>(random() % 200'000)
                            : static_cast<std::uint32_t>(random() % 12);
      ASSERT_EQ(filled_numbers(values), general_numbers(values));
      const Bytes alone = json_bytes([&](auto& out) { out.numbers(values); });
      ASSERT_EQ("[" + std::string(text_view(alone)) + "]", general_numbers(values));
    }
  }
}

TEST(JsonFill, WritesEveryTextAsTheGeneralWriterDoes) {
  for (int byte = 0; byte < 128; ++byte) {
    for (const std::size_t place : {0U, 1U, 7U, 8U, 40U, 62U, 63U, 64U, 69U}) {
      std::string text(70, 'a');
      text[place] = static_cast<char>(byte);
      ASSERT_EQ(filled_text(text), canonical_json_text(text));
      text.resize(place + 1);
      ASSERT_EQ(filled_text(text), canonical_json_text(text));
    }
  }
  EXPECT_EQ(filled_text(""), R"("")");
  for (const char* text : {"\xc3\xa9", "a\xe2\x82\xac", "\xf0\x9f\x98\x80 and \"more\""})
    EXPECT_EQ(filled_text(text), canonical_json_text(text));
}

// What the general reader says of an array of u32 in canonical form.
std::optional<std::vector<std::uint32_t>> general_numbers(ByteSpan text) {
  const auto value = decode_canonical_json(text, 1 << 20);
  if (!value.has_value() || value->as_array() == nullptr) return std::nullopt;
  std::vector<std::uint32_t> out;
  for (const JsonValue& item : *value->as_array()) {
    if (item.as_unsigned() == nullptr || *item.as_unsigned() > 0xffffffff) return std::nullopt;
    out.push_back(static_cast<std::uint32_t>(*item.as_unsigned()));
  }
  return out;
}
std::optional<std::vector<std::uint32_t>> scanned_numbers(ByteSpan text) {
  JsonScan scan(text);
  std::vector<std::uint32_t> out;
  if (!scan.numbers(out) || !scan.done()) return std::nullopt;
  return out;
}

TEST(JsonScan, ReadsArraysOfNumbersOfAnyLength) {
  std::mt19937_64 random(2);
  for (std::size_t count = 0; count < 1'400; count += count < 100 ? 1 : 97) {
    for (int kind = 0; kind < 2; ++kind) {
      std::vector<std::uint32_t> values(count);
      for (std::uint32_t& value : values)
        value = kind == 0 ? number_of_any_length(random) : static_cast<std::uint32_t>(random() % 200'000);
      const std::string text = filled_numbers(values);
      ASSERT_EQ(scanned_numbers(byte_view(text)), values);
    }
  }
}

TEST(JsonScan, TakesAnArrayOfNumbersExactlyWhenItIsCanonical) {
  std::mt19937_64 random(3);
  std::vector<std::uint32_t> values{0, 10, 7, 4'294'967'295, 1'000'000, 1'234'567, 99'999'999, 12'345'678};
  while (values.size() < 60) values.push_back(number_of_any_length(random));
  std::size_t taken = 0;
  const auto expect_same = [&](const Bytes& text) {
    const auto general = general_numbers(text);
    ASSERT_EQ(scanned_numbers(text), general) << text_view(text);
    taken += general.has_value() ? 1 : 0;
  };
  for (const std::size_t count : {1U, 4U, 60U}) {
    const std::string whole =
        filled_numbers({values.begin(), values.begin() + static_cast<std::ptrdiff_t>(count)});
    const ByteSpan text = byte_view(whole);
    for (std::size_t at = 0; at < text.size(); ++at) {
      expect_same(Bytes(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at)));
      for (const char c : {'0', '1', '9', ',', '[', ']', ' ', '-', '.', 'e', '/', ':', '\0'}) {
        Bytes changed = testing::copy_of(text);
        changed[at] = static_cast<std::uint8_t>(c);
        expect_same(changed);
        Bytes longer = testing::copy_of(text);
        longer.insert(longer.begin() + static_cast<std::ptrdiff_t>(at), static_cast<std::uint8_t>(c));
        expect_same(longer);
      }
      expect_same(testing::with_xor(text, at, 0x80));
      Bytes shorter = testing::copy_of(text);
      shorter.erase(shorter.begin() + static_cast<std::ptrdiff_t>(at));
      expect_same(shorter);
    }
  }
  EXPECT_GT(taken, 500U);
}

TEST(JsonScan, TakesANumberOnlyInItsOneSpelling) {
  const auto number = [](std::string_view text) -> std::optional<std::uint64_t> {
    JsonScan scan(byte_view(text));
    std::uint64_t out = 0;
    if (!scan.number(out) || !scan.done()) return std::nullopt;
    return out;
  };
  for (const std::uint64_t value : interesting_numbers()) EXPECT_EQ(number(std::to_string(value)), value);
  for (const char* text : {"", "00", "01", "-0", "-1", "+1", "1.0", "1e2", " 1", "1 ", "18446744073709551616",
                           "99999999999999999999", "100000000000000000000", "0000000001"})
    EXPECT_EQ(number(text), std::nullopt) << text;

  JsonScan narrow(byte_view("4294967296          "));
  std::uint32_t out = 5;
  EXPECT_FALSE(narrow.number(out));
  JsonScan small(byte_view("256     "));
  std::uint8_t byte = 5;
  EXPECT_FALSE(small.number(byte));
  JsonScan fits(byte_view("255     "));
  ASSERT_TRUE(fits.number(byte));
  EXPECT_EQ(byte, 255);
  EXPECT_EQ(fits.left(), 5U);
}

TEST(JsonScan, TakesAStringWithoutEscapesAndNoOther) {
  const auto read = [](const std::string& text) -> std::optional<std::string> {
    JsonScan scan(byte_view(text));
    std::string out;
    if (!scan.text(out) || !scan.done()) return std::nullopt;
    return out;
  };
  for (int byte = 0; byte < 256; ++byte) {
    for (const std::size_t place : {0U, 1U, 62U, 63U, 64U, 90U}) {
      std::string text(150, 'x');
      text[place] = static_cast<char>(byte);
      const bool plain = byte >= 0x20 && byte < 0x80 && byte != '"' && byte != '\\';
      ASSERT_EQ(read('"' + text + '"').has_value(), plain) << byte;
      if (plain) {
        ASSERT_EQ(read('"' + text + '"'), text);
      }
      text.resize(place + 1);
      ASSERT_EQ(read('"' + text + '"').has_value(), plain) << byte;
    }
  }
  for (const char* text : {"\xc3\xa9", "a\xe2\x82\xac", "\xf0\x9f\x98\x80", "", "\x7f"})
    EXPECT_EQ(read('"' + std::string(text) + '"'), text);
  for (const char* text : {"\xc3", "\xe2\x82", "\xed\xa0\x80", "\xc0\x80", "\xff"})
    EXPECT_EQ(read('"' + std::string(text) + '"'), std::nullopt);
  for (const char* text : {"", "\"", "\"a", "a\"", "'a'", "\"a\"b", "\"a\\u0062\""})
    EXPECT_EQ(read(text), std::nullopt) << text;
}

TEST(JsonScan, ReadsWordsOfAListAndTruthValues) {
  constexpr std::array<std::string_view, 3> kNames{"one", "two", "three"};
  std::size_t place = 0;
  JsonScan three(byte_view(R"("three")"));
  EXPECT_TRUE(three.choice(kNames, place) && place == 2 && three.done());
  JsonScan four(byte_view(R"("four")"));
  EXPECT_FALSE(four.choice(kNames, place));
  bool value = false;
  JsonScan both(byte_view("truefalsenull"));
  EXPECT_TRUE(both.boolean(value) && value);
  EXPECT_TRUE(both.boolean(value) && !value);
  EXPECT_FALSE(both.boolean(value));
  EXPECT_TRUE(both.fixed("null") && both.done() && !both.fixed("x"));
}

TEST(JsonScan, ReadsArraysOfAnything) {
  const auto count = [](std::string_view text) -> std::optional<int> {
    JsonScan scan(byte_view(text));
    int items = 0;
    const bool read = scan.array([&](JsonScan& item) { return ++items, item.fixed("x"); });
    return read && scan.done() ? std::optional(items) : std::nullopt;
  };
  EXPECT_EQ(count("[]"), 0);
  EXPECT_EQ(count("[x]"), 1);
  EXPECT_EQ(count("[x,x,x]"), 3);
  for (const char* text : {"", "[", "[x", "[x,", "[x,]", "[,x]", "x", "[x]]", "[x x]", "[ x]", "[y]"})
    EXPECT_EQ(count(text), std::nullopt) << text;
}

}  // namespace
}  // namespace kvpack::json_struct_test
