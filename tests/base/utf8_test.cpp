#include "kvpack/base/utf8.h"

#include <gtest/gtest.h>

#include <array>

#include "kvpack/base/hex.h"

namespace kvpack::utf8_test {
namespace {

TEST(Utf8, FollowsRfc3629) {
  for (const std::string_view good : {"", "a", "\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf",
                                      "\xee\x80\x80", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"})
    EXPECT_TRUE(is_utf8(good)) << to_hex(byte_view(good));
  for (const std::string_view bad :
       {"\x80", "\xc0\x80", "\xc1\xbf", "\xc2", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xe1\x80",
        "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff", "\xf1\x80\x80", "a\xc3("})
    EXPECT_FALSE(is_utf8(bad)) << to_hex(byte_view(bad));
}

// Every text of two bytes against the definition.
TEST(Utf8, TwoBytesFollowTheDefinition) {
  for (unsigned first = 0; first < 256; ++first)
    for (unsigned second = 0; second < 256; ++second) {
      const bool valid =
          first < 0x80 ? second < 0x80 : first >= 0xc2 && first <= 0xdf && second >= 0x80 && second < 0xc0;
      const std::array<std::uint8_t, 2> bytes{static_cast<std::uint8_t>(first),
                                              static_cast<std::uint8_t>(second)};
      ASSERT_EQ(is_utf8(text_view(bytes)), valid) << to_hex(bytes);
    }
}

}  // namespace
}  // namespace kvpack::utf8_test
