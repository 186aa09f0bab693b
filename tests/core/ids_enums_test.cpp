#include <gtest/gtest.h>

#include <unordered_set>

#include "kvpack/core/enums.h"
#include "kvpack/core/ids.h"
#include "support/verdict.h"

namespace kvpack::ids_enums_test {
namespace {

using kvpack::testing::verdict;

TEST(Id32, HexIsLowerCaseAndRoundTrips) {
  Id32 id;
  for (std::size_t i = 0; i < id.bytes.size(); ++i) id.bytes[i] = static_cast<std::uint8_t>(0xf8 + i);
  const std::string hex = "f8f9fafbfcfdfeff000102030405060708090a0b0c0d0e0f1011121314151617";
  EXPECT_EQ(id.hex(), hex);
  EXPECT_EQ(Id32::from_hex(hex), id);
}

TEST(Id32, OtherSpellingsAreRefused) {
  const std::string good(64, 'a');
  EXPECT_TRUE(Id32::from_hex(good));
  EXPECT_FALSE(Id32::from_hex(""));
  EXPECT_FALSE(Id32::from_hex(good.substr(1)));
  EXPECT_FALSE(Id32::from_hex(good.substr(2)));
  EXPECT_FALSE(Id32::from_hex(good + "aa"));
  for (const char bad : {'A', 'g', ' ', '\0', '/', ':', '`', '\n'}) {
    for (const std::size_t at : {std::size_t{0}, std::size_t{63}}) {
      std::string text = good;
      text[at] = bad;
      EXPECT_FALSE(Id32::from_hex(text)) << static_cast<int>(bad) << " at " << at;
    }
  }
}

TEST(Id32, OnlyAllZeroIsZero) {
  EXPECT_TRUE(Id32{}.is_zero());
  for (std::size_t i = 0; i < 32; ++i) {
    Id32 id;
    id.bytes[i] = 1;
    EXPECT_FALSE(id.is_zero()) << i;
  }
  EXPECT_FALSE(Id32::filled(1).is_zero());
}

TEST(Id32, OrderIsThatOfUnsignedBytes) {
  EXPECT_LT(Id32::filled(0x7f), Id32::filled(0x80));
  Id32 low = Id32::filled(5);
  Id32 high = low;
  high.bytes[31] = 6;
  EXPECT_LT(low, high);
  low.bytes[0] = 9;
  EXPECT_LT(high, low);
}

TEST(Id32, HashesAndCopiesFromBytes) {
  std::unordered_set<Id32, Id32Hash> set{Id32::filled(1), Id32::filled(2), Id32::filled(1)};
  EXPECT_EQ(set.size(), 2U);
  const Bytes raw(32, 3);
  EXPECT_EQ(Id32::from_bytes(raw), Id32::filled(3));
}

template <WireEnum E>
void expect_closed(std::string_view what, std::initializer_list<std::string_view> names) {
  EXPECT_EQ(EnumTraits<E>::kNames.size(), names.size());
  std::uint64_t value = 1;
  for (const std::string_view name : names) {
    const auto decoded = enum_from_wire<E>(value);
    ASSERT_TRUE(decoded.has_value());
    EXPECT_EQ(static_cast<std::uint64_t>(*decoded), value);
    EXPECT_EQ(enum_name(*decoded), name);
    EXPECT_EQ(enum_from_name<E>(name), *decoded);
    ++value;
  }
  for (const std::uint64_t unknown : {std::uint64_t{0}, value, std::uint64_t{255}, std::uint64_t{65535}})
    EXPECT_EQ(verdict(enum_from_wire<E>(unknown)),
              "unknown_enum:unknown " + std::string(what) + " " + std::to_string(unknown));
  EXPECT_EQ(enum_from_name<E>(""), std::nullopt);
  EXPECT_EQ(enum_from_name<E>("Raw"), std::nullopt);
}

TEST(Enums, ListedValuesDecodeAndAllOthersAreRefused) {
  expect_closed<CacheKind>("cache kind", {"ordinary-kv"});
  expect_closed<DType>("dtype", {"u8", "u32", "i8", "i16", "i32", "f16", "bf16", "f32", "f64"});
  expect_closed<Codec>("codec", {"raw", "lossless"});
  expect_closed<Layout>("layout", {"contiguous", "strided"});
  expect_closed<RepresentationMode>("representation mode", {"native", "portable"});
  expect_closed<TokenAxisRule>("token axis rule", {"direct", "gather", "tail-window"});
}

TEST(Enums, EveryDtypeHasItsWidth) {
  const std::array<std::uint32_t, 9> widths{1, 4, 1, 2, 4, 2, 2, 4, 8};
  for (std::size_t i = 0; i < widths.size(); ++i)
    EXPECT_EQ(dtype_width_bytes(static_cast<DType>(i + 1)), widths[i]) << i + 1;
}

}  // namespace
}  // namespace kvpack::ids_enums_test
