#include "kvpack/core/rotation.h"

#include <gtest/gtest.h>

#include "support/mutate.h"
#include "support/verdict.h"

namespace kvpack::rotation_test {
namespace {

using testing::verdict;
using testing::with_appended;
using testing::with_bit_flipped;
using testing::with_le;

// Where the fields of a descriptor lie; the table of the Qwen2.5 descriptor has 512 bytes.
constexpr std::size_t kConventionsAt = 12, kSecondReservedAt = 30, kDimensionAt = 32, kCoefficientsAt = 36,
                      kModelAt = 68, kTableBytesAt = 100, kTableAt = 104, kTableHashAt = kTableAt + 512;

RotationFamily qwen25() {
  return *qwen25_rotation_family(Id32::filled(7));
}

Bytes qwen25_bytes() {
  return *encode_rotation_family(qwen25());
}

std::string verdict(ByteSpan bytes) {
  return verdict(decode_rotation_family(bytes));
}

// The descriptor with another table and, where that is wanted, a hash that fits it.
Bytes with_table(std::uint32_t dimension, const Bytes& table, bool repair_hash = true) {
  Bytes out = qwen25_bytes();
  out.resize(kTableAt);
  store_le<std::uint32_t>(out, kDimensionAt, dimension);
  store_le<std::uint32_t>(out, kTableBytesAt, static_cast<std::uint32_t>(table.size()));
  out.insert(out.end(), table.begin(), table.end());
  const Digest32 hash = repair_hash ? sha256(table) : Digest32{};
  out.insert(out.end(), hash.begin(), hash.end());
  return out;
}

TEST(RotationFamily, PinnedQwen25MatchesItsKnownDigests) {
  const RotationFamily family = qwen25();
  EXPECT_EQ(family.rotary_dimension, 128U);
  EXPECT_EQ(family.increments.size(), 64U);
  const Bytes bytes = qwen25_bytes();
  ASSERT_EQ(bytes.size(), 648U);
  EXPECT_EQ(to_hex(sha256(ByteSpan(bytes).subspan(kTableAt, 512))),
            "c5d5123c8af3ba4f7ce778f43fe5dfb4160dba702f29c20e88c9a02dd5243813");
  EXPECT_EQ(to_hex(ByteSpan(bytes).subspan(kCoefficientsAt, 32)),
            "d2e8c7c62e2ca328b1cd7e4d8462e40ef88eede5335ebf2122d61952d7dbd950");
  EXPECT_EQ(to_hex(sha256(bytes)), "4d0726616a01d2b29369ff38343d6700c84a1b22af11513f09be1ec08fd416e2");
  EXPECT_EQ(to_hex(ByteSpan(bytes).first(kCoefficientsAt)),
            "4b5652544131000001000000010001000100010001000100010001000100000080000000");
  const auto back = decode_rotation_family(bytes);
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(*back, family);
}

TEST(RotationFamily, IdentityAndBoundAbiMatchKnownValues) {
  const auto identity = rotation_family_id(qwen25());
  ASSERT_TRUE(identity.has_value());
  EXPECT_EQ(identity->hex(), "14a6a33b0c39face17deaa3eba8830ef6238145801edf521d7e415d174d60621");
  EXPECT_EQ(rotation_bound_engine_cache_abi(Id32::filled(3), *identity).hex(),
            "4b5fae03719074842f48a1880f9765422356788a2e62d20b7466175cebbece01");
}

TEST(RotationFamily, WithoutARotationTheAbiIsUnchanged) {
  EXPECT_EQ(rotation_bound_engine_cache_abi(Id32::filled(3), std::nullopt), Id32::filled(3));
}

TEST(RotationFamily, PinnedTableIsCheckedAgainstItsDigest) {
  auto altered = kQwen25Increments;
  altered[63] += 1;
  EXPECT_EQ(verdict(detail::pinned_qwen25_family(altered, Id32::filled(7))),
            "semantics:pinned qwen2.5 rotation table hash does not match its family constant");
  EXPECT_EQ(verdict(qwen25_rotation_family(Id32{})),
            "semantics:rotation descriptor contains a zero identity");
}

TEST(RotationFamily, DecodeRefusesEachHeaderFaultWithItsText) {
  const Bytes good = qwen25_bytes();
  EXPECT_EQ(verdict(with_le<std::uint8_t>(good, 0, 'X')), "bad_magic:invalid canonical object magic");
  EXPECT_EQ(verdict(with_le<std::uint16_t>(good, 8, 2)), "bad_magic:unsupported rotation family version");
  EXPECT_EQ(verdict(with_le<std::uint16_t>(good, 10, 1)),
            "reserved:rotation family reserved field is nonzero");
  EXPECT_EQ(verdict(with_le<std::uint16_t>(good, kSecondReservedAt, 1)),
            "reserved:rotation family secondary reserved field is nonzero");
  EXPECT_EQ(verdict(with_appended(good, 0)), "reserved:trailing canonical bytes");
}

TEST(RotationFamily, EachConventionHasTheOneValueOne) {
  const std::string_view names[] = {
      "rotation coefficient set",     "rotation sincos order",   "rotation phase origin",
      "rotation position convention", "rotation pairing",        "rotation denormal policy",
      "rotation f32 rounding",        "rotation f16 cache cast", "rotation operation order"};
  for (std::size_t i = 0; i < std::size(names); ++i)
    for (const std::uint16_t value : std::initializer_list<std::uint16_t>{0, 2, 65535})
      EXPECT_EQ(verdict(with_le<std::uint16_t>(qwen25_bytes(), kConventionsAt + 2 * i, value)),
                "unknown_enum:unknown " + std::string(names[i]) + " " + std::to_string(value));
}

TEST(RotationFamily, DecodeRefusesEachValueFaultWithItsText) {
  const Bytes good = qwen25_bytes();
  for (const std::uint32_t dimension : {0U, 1U, 127U, 4098U, 0xffffffffU})
    EXPECT_EQ(verdict(with_le(good, kDimensionAt, dimension)),
              "bounds:rotation rotary dimension is outside the v1 bounds");
  EXPECT_EQ(verdict(with_le(good, kDimensionAt, 126U)),
            "bounds:rotation frac64 table does not match rotary dimension");
  constexpr char kZeroIdentity[] = "semantics:rotation descriptor contains a zero identity";
  Bytes zero = good;
  std::fill_n(zero.begin() + kModelAt, 32, std::uint8_t{0});
  EXPECT_EQ(verdict(zero), kZeroIdentity);
  zero = good;
  std::fill_n(zero.begin() + kCoefficientsAt, 32, std::uint8_t{0});
  EXPECT_EQ(verdict(zero), kZeroIdentity);
  constexpr char kHash[] = "semantics:rotation frac64 table hash does not match authenticated bytes";
  EXPECT_EQ(verdict(with_le<std::uint8_t>(good, kTableHashAt, 0)), kHash);
  EXPECT_EQ(verdict(with_le<std::uint8_t>(good, kTableAt, 0)), kHash);
  Bytes table(ByteSpan(good).subspan(kTableAt, 512).begin(), ByteSpan(good).subspan(kTableAt, 512).end());
  store_le<std::uint64_t>(table, 8 * 5, 0);
  EXPECT_EQ(verdict(with_table(128, table)), "semantics:rotation frac64 table contains a zero increment");
  for (std::size_t at = 0; at < table.size(); at += 8) store_le<std::uint64_t>(table, at, (at + 1) << 32);
  EXPECT_EQ(verdict(with_table(128, table)),
            "semantics:rotation frac64 table is only a lifted 32-bit frequency table");
  store_le<std::uint64_t>(table, 504, 1);
  EXPECT_EQ(verdict(with_table(128, table)), "ok");
}

TEST(RotationFamily, ATableOfAnyLengthIsReadBeforeItIsJudged) {
  constexpr char kLength[] = "bounds:rotation frac64 table does not match rotary dimension";
  for (const std::size_t n : std::initializer_list<std::size_t>{0, 1, 511, 513, 4096})
    EXPECT_EQ(verdict(with_table(128, Bytes(n, 1))), kLength) << n;
  Bytes longer = with_table(0, Bytes(5, 1));
  longer.push_back(0);
  EXPECT_EQ(verdict(longer), "reserved:trailing canonical bytes");
  EXPECT_EQ(verdict(with_le(qwen25_bytes(), kTableBytesAt, 0xffffffffU)),
            "truncated:truncated canonical object");
}

TEST(RotationFamily, TheFirstOfTwoFaultsIsReported) {
  // From the last check to the first, each fault added to those before.
  Bytes bad = with_table(128, Bytes(512, 0), false);  // zero increments, wrong hash
  EXPECT_EQ(verdict(bad), "semantics:rotation frac64 table hash does not match authenticated bytes");
  std::fill_n(bad.begin() + kModelAt, 32, std::uint8_t{0});
  EXPECT_EQ(verdict(bad), "semantics:rotation descriptor contains a zero identity");
  bad = with_le(bad, kDimensionAt, 64U);
  EXPECT_EQ(verdict(bad), "bounds:rotation frac64 table does not match rotary dimension");
  bad = with_le(bad, kDimensionAt, 3U);
  EXPECT_EQ(verdict(bad), "bounds:rotation rotary dimension is outside the v1 bounds");
  bad.push_back(0);
  EXPECT_EQ(verdict(bad), "reserved:trailing canonical bytes");
  bad = with_le<std::uint16_t>(bad, kSecondReservedAt, 1);
  EXPECT_EQ(verdict(bad), "reserved:rotation family secondary reserved field is nonzero");
  bad = with_le<std::uint16_t>(bad, kConventionsAt + 16, 9);
  EXPECT_EQ(verdict(bad), "unknown_enum:unknown rotation operation order 9");
  bad = with_le<std::uint16_t>(bad, kConventionsAt, 9);
  EXPECT_EQ(verdict(bad), "unknown_enum:unknown rotation coefficient set 9");
  bad = with_le<std::uint16_t>(bad, 10, 9);
  EXPECT_EQ(verdict(bad), "reserved:rotation family reserved field is nonzero");
  bad = with_le<std::uint16_t>(bad, 8, 9);
  EXPECT_EQ(verdict(bad), "bad_magic:unsupported rotation family version");
}

TEST(RotationFamily, SmallestAndLargestDimensionsAreLegal) {
  for (const std::uint32_t dimension : {kMinRotaryDimension, kMaxRotaryDimension}) {
    RotationFamily family = qwen25();
    family.rotary_dimension = dimension;
    family.increments.assign(dimension / 2, 1);
    const auto bytes = encode_rotation_family(family);
    ASSERT_TRUE(bytes.has_value());
    EXPECT_EQ(*decode_rotation_family(*bytes), family);
  }
}

TEST(RotationFamily, EncodeAndIdentityValidateFirst) {
  RotationFamily bad = qwen25();
  bad.increments[1] = 0;
  constexpr char kZero[] = "semantics:rotation frac64 table contains a zero increment";
  EXPECT_EQ(verdict(validate_rotation_family(bad)), kZero);
  EXPECT_EQ(verdict(encode_rotation_family(bad)), kZero);
  EXPECT_EQ(verdict(rotation_family_id(bad)), kZero);
  bad.increments.pop_back();
  EXPECT_EQ(verdict(encode_rotation_family(bad)),
            "bounds:rotation frac64 table does not match rotary dimension");
  bad.rotary_dimension = 7;
  EXPECT_EQ(verdict(encode_rotation_family(bad)),
            "bounds:rotation rotary dimension is outside the v1 bounds");
}

TEST(RotationFamily, EveryTruncationIsTruncated) {
  const Bytes good = qwen25_bytes();
  for (std::size_t n = 0; n < good.size(); ++n)
    EXPECT_EQ(verdict(ByteSpan(good).first(n)), "truncated:truncated canonical object") << n;
}

TEST(RotationFamily, EveryBitFlipIsRefusedOrIsAnotherFamily) {
  const Bytes good = qwen25_bytes();
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    const Bytes bad = with_bit_flipped(good, bit);
    const bool free_identity = bit / 8 >= kCoefficientsAt && bit / 8 < kTableBytesAt;
    EXPECT_EQ(decode_rotation_family(bad).has_value(), free_identity) << bit;
  }
}

}  // namespace
}  // namespace kvpack::rotation_test
