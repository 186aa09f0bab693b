#include "kvpack/base/bytes.h"

#include <gtest/gtest.h>

#include "kvpack/base/hex.h"
#include "kvpack/base/io.h"

namespace kvpack::bytes_test {
namespace {

TEST(CheckedArithmetic, RefusesOverflowAndKeepsTheEdges) {
  constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();
  EXPECT_EQ(checked_add<std::uint64_t>(kMax, 0), kMax);
  EXPECT_EQ(checked_add<std::uint64_t>(kMax, 1), std::nullopt);
  EXPECT_EQ(checked_mul<std::uint64_t>(0, kMax), 0U);
  EXPECT_EQ(checked_mul<std::uint64_t>(kMax, 1), kMax);
  EXPECT_EQ(checked_mul<std::uint64_t>(std::uint64_t{1} << 32, std::uint64_t{1} << 32), std::nullopt);
  EXPECT_EQ(checked_add<std::uint8_t>(200, 56), std::nullopt);
}

TEST(ByteReader, ShortReadFailsAndMovesNothing) {
  const Bytes data{1, 2, 3};
  ByteReader reader(data);
  const auto missing = reader.le<std::uint32_t>("too short");
  ASSERT_FALSE(missing.has_value());
  EXPECT_EQ(missing.error().verdict(), "truncated:too short");
  EXPECT_EQ(*reader.le<std::uint16_t>("x"), 0x0201);
  EXPECT_EQ(*reader.be<std::uint8_t>("x"), 3);
  EXPECT_TRUE(reader.done());
}

TEST(ByteWriter, WritesLittleEndian) {
  ByteWriter out;
  out.le(std::uint32_t{0x01020304});
  out.le(std::uint64_t{0xff});
  EXPECT_EQ(to_hex(out.view()), "04030201ff00000000000000");
  EXPECT_EQ(to_hex(be_bytes(std::uint16_t{0x0102})), "0102");
}

TEST(Hex, AcceptsOnlyLowerCaseDigitsOfTheRightCount) {
  EXPECT_EQ(from_hex("00ff"), (Bytes{0x00, 0xff}));
  EXPECT_EQ(from_hex(""), Bytes{});
  for (const char* bad : {"0", "FF", "0g", " 00", "0x00"}) EXPECT_EQ(from_hex(bad), std::nullopt) << bad;
  Bytes out{7, 7};
  EXPECT_FALSE(from_hex("00zz", out));
  EXPECT_EQ(out, (Bytes{7, 7}));
}

TEST(SpanSource, RefusesReadsPastTheEndWithoutOverflow) {
  const Bytes data{1, 2, 3, 4};
  SpanSource source(data);
  Bytes out(2);
  EXPECT_TRUE(source.read_at(2, out).has_value());
  EXPECT_EQ(out, (Bytes{3, 4}));
  EXPECT_FALSE(source.read_at(3, out).has_value());
  EXPECT_FALSE(source.read_at(std::numeric_limits<std::uint64_t>::max(), out).has_value());
}

}  // namespace
}  // namespace kvpack::bytes_test
