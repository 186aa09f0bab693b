#include "kvpack/core/state_declaration.h"

#include <gtest/gtest.h>

#include "kvpack/base/hex.h"
#include "kvpack/crypto/sha256.h"
#include "support/mutate.h"
#include "support/verdict.h"

namespace kvpack::state_declaration_test {
namespace {

using testing::verdict;
using testing::with_appended;
using testing::with_bit_flipped;
using testing::with_le;

StateDeclaration fixture() {
  return {{7, "attention.k"}, {{320, 4, 8}}, {{64, 4, 8}}, {32, 8, 1}, 256, 64, 320, 0, 9};
}

// Where the fields of the fixture lie.
constexpr std::size_t kNameBytesAt = 16, kNameAt = 18, kFullRankAt = 29, kSegmentRankAt = 54,
                      kStrideCountAt = 79;

Bytes fixture_bytes() {
  return *encode_state_declaration(fixture());
}

std::string verdict(ByteSpan bytes) {
  return verdict(decode_state_declaration(bytes));
}

TEST(StateDeclaration, MatchesUpstreamVector) {  // conformance/vectors: fixture/*/state_declaration
  const Bytes bytes = fixture_bytes();
  EXPECT_EQ(to_hex(bytes),
            "4b5653545331000001000000070000000b00617474656e74696f6e2e6b03400100000000000004000000000000000800"
            "000000000000034000000000000000040000000000000008000000000000000320000000000000000800000000000000"
            "0100000000000000000100000000000040000000000000004001000000000000000000000000000009000000");
  EXPECT_EQ(to_hex(sha256(bytes)), "756bdce7159d3cb9858e45eb31bdfccb28195b0840f6461c49e89a96ac50622d");
  const auto back = decode_state_declaration(bytes);
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(*back, fixture());
}

TEST(StateDeclaration, DecodesWhatOnlyValidationWouldRefuse) {
  StateDeclaration odd = fixture();
  odd.key.name = std::string(300, 'x') + std::string(1, '\0');
  odd.strides.clear();
  odd.window = ~std::uint64_t{0};
  const auto back = decode_state_declaration(*encode_state_declaration(odd));
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(*back, odd);
}

TEST(StateDeclaration, DecodeRefusesEachFaultWithItsText) {
  const Bytes good = fixture_bytes();
  EXPECT_EQ(verdict(with_le<std::uint8_t>(good, 0, 'k')), "bad_magic:invalid canonical object magic");
  EXPECT_EQ(verdict(with_le<std::uint8_t>(good, 8, 2)), "bad_magic:unsupported state-schema version");
  EXPECT_EQ(verdict(with_le<std::uint8_t>(good, 9, 1)), "bad_magic:unsupported state-schema version");
  EXPECT_EQ(verdict(with_le<std::uint8_t>(good, 10, 1)), "reserved:state-schema reserved field is nonzero");
  EXPECT_EQ(verdict(with_le<std::uint8_t>(good, kNameAt, 0xff)), "semantics:state name is not UTF-8");
  EXPECT_EQ(verdict(with_le<std::uint8_t>(good, kNameBytesAt + 1, 1)),
            "truncated:truncated canonical object");
  for (const std::size_t at : {kFullRankAt, kSegmentRankAt}) {
    EXPECT_EQ(verdict(with_le<std::uint8_t>(good, at, 0)), "bounds:state rank must be in 1..=8");
    EXPECT_EQ(verdict(with_le<std::uint8_t>(good, at, 9)), "bounds:state rank must be in 1..=8");
  }
  Bytes zero = good;
  store_le<std::uint64_t>(zero, kFullRankAt + 1, 0);
  EXPECT_EQ(verdict(zero), "bounds:state dimensions must be nonzero");
  EXPECT_EQ(verdict(with_le<std::uint8_t>(good, kStrideCountAt, 9)), "bounds:too many state strides");
  EXPECT_EQ(verdict(with_appended(good, 0)), "reserved:trailing canonical bytes");
}

TEST(StateDeclaration, TheFirstOfTwoFaultsIsReported) {
  Bytes bad = with_le<std::uint8_t>(fixture_bytes(), kStrideCountAt, 9);
  bad = with_le<std::uint8_t>(bad, kSegmentRankAt, 0);
  EXPECT_EQ(verdict(bad), "bounds:state rank must be in 1..=8");
  bad = with_le<std::uint8_t>(bad, kNameAt, 0xff);
  EXPECT_EQ(verdict(bad), "semantics:state name is not UTF-8");
  bad = with_le<std::uint8_t>(bad, 10, 1);
  EXPECT_EQ(verdict(bad), "reserved:state-schema reserved field is nonzero");
  bad = with_le<std::uint8_t>(bad, 8, 0);
  EXPECT_EQ(verdict(bad), "bad_magic:unsupported state-schema version");
  bad = with_le<std::uint8_t>(bad, 0, 0);
  EXPECT_EQ(verdict(bad), "bad_magic:invalid canonical object magic");
  // A short read of the dimensions comes before a zero among them.
  Bytes zero = fixture_bytes();
  store_le<std::uint64_t>(zero, kFullRankAt + 1, 0);
  EXPECT_EQ(verdict(ByteSpan(zero).first(kFullRankAt + 20)), "truncated:truncated canonical object");
}

TEST(StateDeclaration, EncodeRefusesWhatHasNoEncoding) {
  StateDeclaration bad = fixture();
  bad.strides.assign(9, 1);
  EXPECT_EQ(verdict(encode_state_declaration(bad)), "bounds:too many state strides");
  bad.segment_shape.dimensions = {1, 0};
  EXPECT_EQ(verdict(encode_state_declaration(bad)), "bounds:state dimensions must be nonzero");
  bad.full_shape.dimensions.clear();
  EXPECT_EQ(verdict(encode_state_declaration(bad)), "bounds:state rank must be in 1..=8");
  bad.key.name.assign(65'536, 'x');
  EXPECT_EQ(verdict(encode_state_declaration(bad)), "bounds:string is too long");
}

TEST(StateDeclaration, EveryTruncationIsTruncated) {
  const Bytes good = fixture_bytes();
  for (std::size_t n = 0; n < good.size(); ++n)
    EXPECT_EQ(verdict(ByteSpan(good).first(n)), "truncated:truncated canonical object") << n;
}

TEST(StateDeclaration, EveryBitFlipIsRefusedOrIsAnotherDeclaration) {
  const Bytes good = fixture_bytes();
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    const Bytes bad = with_bit_flipped(good, bit);
    const auto declaration = decode_state_declaration(bad);
    if (!declaration.has_value()) continue;
    EXPECT_GE(bit / 8, 12U);
    EXPECT_NE(*declaration, fixture());
    EXPECT_EQ(*encode_state_declaration(*declaration), bad);
  }
}

}  // namespace
}  // namespace kvpack::state_declaration_test
