#include "kvpack/core/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace kvpack::half_test {
namespace {

static_assert(half_to_float(0x3c00) == 1.0F && float_to_half(1.0F) == 0x3c00);  // usable in constants

// By the definition of the format, without bit tricks.
double value_of(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int mantissa = bits & 0x3ff;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

TEST(Half, EveryFiniteValueIsExactAndComesBack) {
  for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    if (!half_is_finite(half)) continue;
    const float value = half_to_float(half);
    ASSERT_EQ(static_cast<double>(value), value_of(half)) << bits;
    ASSERT_EQ(std::signbit(value), (bits & 0x8000) != 0) << bits;
    ASSERT_EQ(float_to_half(value), half);
  }
}

TEST(Half, InfinitiesComeBack) {
  EXPECT_EQ(half_to_float(0x7c00), std::numeric_limits<float>::infinity());
  EXPECT_EQ(half_to_float(0xfc00), -std::numeric_limits<float>::infinity());
  EXPECT_EQ(float_to_half(std::numeric_limits<float>::infinity()), 0x7c00);
  EXPECT_EQ(float_to_half(-std::numeric_limits<float>::infinity()), 0xfc00);
  EXPECT_FALSE(half_is_finite(0x7c00));
  EXPECT_FALSE(half_is_finite(0xfe00));
  EXPECT_TRUE(half_is_finite(0x7bff));
}

TEST(Half, NanKeepsItsPayloadWideningAndLosesItNarrowing) {
  EXPECT_EQ(std::bit_cast<std::uint32_t>(half_to_float(0x7e00)), 0x7fc00000U);
  EXPECT_EQ(std::bit_cast<std::uint32_t>(half_to_float(0x7c01)), 0x7fc02000U);
  EXPECT_EQ(std::bit_cast<std::uint32_t>(half_to_float(0xfdff)), 0xffffe000U);
  EXPECT_EQ(float_to_half(std::bit_cast<float>(0x7f800001U)), 0x7e00);
  EXPECT_EQ(float_to_half(std::bit_cast<float>(0xffc12345U)), 0x7e00);
}

TEST(Half, NarrowingMatchesKnownValues) {
  const std::pair<float, std::uint16_t> known[] = {{0.0F, 0},
                                                   {-0.0F, 0x8000},
                                                   {1.0F, 0x3c00},
                                                   {-2.0F, 0xc000},
                                                   {65504.0F, 0x7bff},
                                                   {65520.0F, 0x7c00},
                                                   {65519.0F, 0x7bff},
                                                   {65488.0F, 0x7bfe},
                                                   {1 + 0x1p-11F, 0x3c00},
                                                   {1 + 0x3p-11F, 0x3c02},
                                                   {0x1p-24F, 1},
                                                   {-0x1p-24F, 0x8001},
                                                   {0x1p-25F, 0},
                                                   {0x1.8p-24F, 2},
                                                   {0x1.4p-24F, 1},
                                                   {0x1p-14F, 0x0400},
                                                   {0x1.ff8p-15F, 0x03ff},
                                                   {0x1.ffcp-15F, 0x0400},
                                                   {1e30F, 0x7c00},
                                                   {-1e30F, 0xfc00},
                                                   {std::numeric_limits<float>::denorm_min(), 0}};
  for (const auto& [value, bits] : known) EXPECT_EQ(float_to_half(value), bits) << value;
}

TEST(Half, MagnitudesBelowTheSmallestSubnormalVanish) {
  EXPECT_EQ(float_to_half(0x1.000002p-25F), 0);  // IEEE 754 would round up to 2^-24
  EXPECT_EQ(float_to_half(0x1.fffffep-25F), 0);
  EXPECT_EQ(float_to_half(-0x1.fffffep-25F), 0x8000);
}

// Every float beside a half and beside the middle between two, against the nearest-even rule.
TEST(Half, NarrowingRoundsToNearestEven) {
  for (std::uint16_t bits = 1; bits < 0x7bff; ++bits) {
    const double low = value_of(bits);
    const double high = value_of(static_cast<std::uint16_t>(bits + 1));
    const auto middle = static_cast<float>((low + high) / 2);
    const auto even = static_cast<std::uint16_t>((bits & 1) == 0 ? bits : bits + 1);
    ASSERT_EQ(float_to_half(middle), even) << bits;
    ASSERT_EQ(float_to_half(std::nextafter(middle, 0.0F)), bits) << bits;
    ASSERT_EQ(float_to_half(std::nextafter(middle, 1e9F)), bits + 1) << bits;
  }
}

}  // namespace
}  // namespace kvpack::half_test
