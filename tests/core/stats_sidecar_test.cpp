#include "kvpack/core/stats_sidecar.h"

#include <gtest/gtest.h>

#include "kvpack/base/hex.h"
#include "support/mutate.h"
#include "support/verdict.h"

namespace kvpack::stats_sidecar_test {
namespace {

using testing::verdict;
using testing::with_appended;
using testing::with_bit_flipped;
using testing::with_le;

Bytes unhex(std::string_view text) {
  return *from_hex(text);
}

// 4 tokens x 4 channels.
const Bytes kPlane = unhex("003c003800bc00400000003e00b8003c00c0003400420000004400ba0038003c");
constexpr std::string_view kSidecarHex =
    "4b56535343310000010000000400000000c0004400ba003e00bc0042000000400400000000417c3f3a4338440200030000003844"
    "00"
    "00020000003a430000";

// Where the fields of that sidecar lie.
constexpr std::size_t kChannelsAt = 16, kTokenCountAt = 32, kNormsAt = 36, kSinkCountAt = 44, kSinksAt = 46;

Bytes sidecar_bytes() {
  return unhex(kSidecarHex);
}

std::string verdict(ByteSpan bytes) {
  return verdict(decode_stats_sidecar(bytes));
}

Bytes plane_of(std::size_t cells, std::uint16_t bits) {
  Bytes plane;
  for (std::size_t i = 0; i < cells; ++i) {
    plane.push_back(static_cast<std::uint8_t>(bits));
    plane.push_back(static_cast<std::uint8_t>(bits >> 8));
  }
  return plane;
}

TEST(StatsSidecar, DerivedFromTheFixtureMatchesItsBytes) {
  const auto sidecar = derive_stats_sidecar(kPlane, 4, 4, 2);
  ASSERT_TRUE(sidecar.has_value());
  const auto bits = float_to_half;
  EXPECT_EQ(sidecar->channels, (std::vector<ChannelRange>{{bits(-2.0F), bits(4.0F)},
                                                          {bits(-0.75F), bits(1.5F)},
                                                          {bits(-1.0F), bits(3.0F)},
                                                          {bits(0.0F), bits(2.0F)}}));
  EXPECT_EQ(sidecar->sinks,
            (std::vector<AttentionSink>{{3, bits(std::sqrt(17.8125F))}, {2, bits(std::sqrt(13.0625F))}}));
  const auto bytes = encode_stats_sidecar(*sidecar);
  ASSERT_TRUE(bytes.has_value());
  EXPECT_EQ(to_hex(*bytes), kSidecarHex);
  EXPECT_EQ(to_hex(stats_digest(*bytes)), "29bb8a043ff82f46b27d2f9787d381d1497f026ccd92421aff108844e08b47d2");
  const auto back = decode_stats_sidecar(*bytes);
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(*back, *sidecar);
}

TEST(StatsSidecar, LargestLegalShapeFitsTheHeader) {
  const auto sidecar = derive_stats_sidecar(plane_of(768 * 512, 0x3c00), 768, 512, 8);
  ASSERT_TRUE(sidecar.has_value());
  const auto bytes = encode_stats_sidecar(*sidecar);
  ASSERT_TRUE(bytes.has_value());
  EXPECT_EQ(bytes->size(), 3670U);
  EXPECT_EQ(verdict(*bytes), "ok");
}

TEST(StatsSidecar, FewerTokensThanSinksMakeEveryTokenASink) {
  const auto sidecar = derive_stats_sidecar(kPlane, 4, 4, 8);
  ASSERT_TRUE(sidecar.has_value());
  std::vector<std::uint32_t> order;
  for (const AttentionSink& sink : sidecar->sinks) order.push_back(sink.token_index);
  EXPECT_EQ(order, (std::vector<std::uint32_t>{3, 2, 0, 1}));
}

TEST(StatsSidecar, EqualNormsRankByToken) {
  const auto sidecar = derive_stats_sidecar(plane_of(6, 0x3c00), 6, 1, 3);
  ASSERT_TRUE(sidecar.has_value());
  EXPECT_EQ(sidecar->sinks, (std::vector<AttentionSink>{{0, 0x3c00}, {1, 0x3c00}, {2, 0x3c00}}));
}

TEST(StatsSidecar, OfZerosWithBothSignsTheFirstOneMetStays) {
  EXPECT_EQ(derive_stats_sidecar(unhex("00000080"), 2, 1, 1)->channels[0], (ChannelRange{0, 0}));
  EXPECT_EQ(derive_stats_sidecar(unhex("00800000"), 2, 1, 1)->channels[0], (ChannelRange{0x8000, 0x8000}));
}

TEST(StatsSidecar, NormIsRoundedToFloatAndThenToHalf) {
  // 2^-24 twice: sqrt(2) * 2^-24 rounds to 2^-24.
  EXPECT_EQ(derive_stats_sidecar(plane_of(2, 0x0001), 1, 2, 1)->norm_bits[0], 0x0001);
  EXPECT_EQ(derive_stats_sidecar(plane_of(512, 0x3c00), 1, 512, 1)->norm_bits[0],
            float_to_half(static_cast<float>(std::sqrt(512.0))));
}

TEST(StatsSidecar, ANormThatOverflowsCannotBeEncoded) {
  const auto sidecar = derive_stats_sidecar(plane_of(2, 0x7bff), 1, 2, 1);
  ASSERT_TRUE(sidecar.has_value());
  EXPECT_EQ(sidecar->norm_bits[0], 0x7c00);
  EXPECT_EQ(verdict(encode_stats_sidecar(*sidecar)),
            "semantics:stats sidecar key norm is not a finite non-negative value");
}

TEST(StatsSidecar, DerivationRefusesShapesInOrder) {
  constexpr char kShape[] = "bounds:stats sidecar shape is outside bounded limits";
  EXPECT_EQ(verdict(derive_stats_sidecar({}, 0, 1, 1)), kShape);
  EXPECT_EQ(verdict(derive_stats_sidecar({}, 769, 1, 1)), kShape);
  EXPECT_EQ(verdict(derive_stats_sidecar({}, 1, 0, 1)), kShape);
  EXPECT_EQ(verdict(derive_stats_sidecar({}, 1, 513, 1)), kShape);
  EXPECT_EQ(verdict(derive_stats_sidecar({}, 1, 1, 0)), kShape);
  EXPECT_EQ(verdict(derive_stats_sidecar({}, 1, 1, 9)), kShape);
  EXPECT_EQ(verdict(derive_stats_sidecar({}, std::uint64_t{1} << 63, 2, 1)), kShape);
  constexpr char kBytes[] = "bounds:stats sidecar source bytes do not match the declared shape";
  EXPECT_EQ(verdict(derive_stats_sidecar(ByteSpan(kPlane).first(31), 4, 4, 2)), kBytes);
  EXPECT_EQ(verdict(derive_stats_sidecar(kPlane, 4, 3, 2)), kBytes);
  for (const std::uint16_t bits : std::initializer_list<std::uint16_t>{0x7c00, 0xfc00, 0x7e00, 0x7c01})
    EXPECT_EQ(verdict(derive_stats_sidecar(with_le<std::uint16_t>(kPlane, 30, bits), 4, 4, 2)),
              "semantics:stats sidecar source contains a non-finite element");
}

TEST(StatsSidecar, DecodeRefusesEachFaultWithItsText) {
  const Bytes good = sidecar_bytes();
  EXPECT_EQ(verdict(good), "ok");
  EXPECT_EQ(verdict(Bytes(3859)), "bounds:stats sidecar exceeds the chunk header capacity");
  EXPECT_EQ(verdict(Bytes(3858)), "bad_magic:invalid canonical object magic");
  EXPECT_EQ(verdict(with_le<std::uint16_t>(good, 0, 0)), "bad_magic:invalid canonical object magic");
  EXPECT_EQ(verdict(with_le<std::uint16_t>(good, 8, 2)), "bad_magic:unsupported stats sidecar version");
  EXPECT_EQ(verdict(with_le<std::uint16_t>(good, 10, 1)), "reserved:stats sidecar reserved field is nonzero");
  for (const std::uint32_t count : {0U, 513U, 0xffffffffU})
    EXPECT_EQ(verdict(with_le<std::uint32_t>(good, 12, count)),
              "bounds:stats sidecar channel count is outside bounds");
  constexpr char kRange[] = "semantics:stats sidecar channel range is not finite and ordered";
  EXPECT_EQ(verdict(with_le<std::uint16_t>(good, kChannelsAt, 0xfc00)), kRange);
  EXPECT_EQ(verdict(with_le<std::uint16_t>(good, kChannelsAt + 2, 0x7c00)), kRange);
  EXPECT_EQ(verdict(with_le<std::uint16_t>(good, kChannelsAt + 2, 0x7e00)), kRange);
  EXPECT_EQ(verdict(with_le<std::uint16_t>(good, kChannelsAt + 2, 0xc100)), kRange);  // max below min
  for (const std::uint32_t count : {0U, 769U, 0xffffffffU})
    EXPECT_EQ(verdict(with_le<std::uint32_t>(good, kTokenCountAt, count)),
              "bounds:stats sidecar token count is outside bounds");
  constexpr char kNorm[] = "semantics:stats sidecar key norm is not a finite non-negative value";
  EXPECT_EQ(verdict(with_le<std::uint16_t>(good, kNormsAt, 0x7c00)), kNorm);
  EXPECT_EQ(verdict(with_le<std::uint16_t>(good, kNormsAt, 0x8001)), kNorm);
  for (const std::uint16_t count : std::initializer_list<std::uint16_t>{0, 9, 0xffff})
    EXPECT_EQ(verdict(with_le<std::uint16_t>(good, kSinkCountAt, count)),
              "bounds:stats sidecar sink count is outside bounds");
  EXPECT_EQ(verdict(with_le<std::uint16_t>(good, kSinksAt + 6, 1)),
            "reserved:stats sidecar sink reserved field is nonzero");
  EXPECT_EQ(verdict(with_appended(good, 0)), "reserved:trailing canonical bytes");
  constexpr char kTop[] = "semantics:stats sidecar sink scores are not the exact top-m norms";
  EXPECT_EQ(verdict(with_le<std::uint32_t>(good, kSinksAt, 2)), kTop);
  EXPECT_EQ(verdict(with_le<std::uint32_t>(good, kSinksAt, 0xffffffff)), kTop);
  EXPECT_EQ(verdict(with_le<std::uint16_t>(good, kSinksAt + 4, 0x4437)), kTop);
  EXPECT_EQ(verdict(with_le<std::uint16_t>(good, kNormsAt, 0x4500)),
            kTop);  // another token is the largest now
}

TEST(StatsSidecar, MoreSinksThanTokensAreRefused) {
  Bytes bytes =
      unhex("4b56535343310000010000000100000000000000010000000000020000000000000000000000000000000000");
  EXPECT_EQ(verdict(bytes), "semantics:stats sidecar sink scores are not the exact top-m norms");
}

TEST(StatsSidecar, NegativeZeroNormRanksBelowZero) {
  StatsSidecar sidecar{{{0, 0}}, {0x8000, 0x0000}, {{1, 0x0000}}};
  const auto bytes = encode_stats_sidecar(sidecar);
  ASSERT_TRUE(bytes.has_value());
  EXPECT_EQ(verdict(*bytes), "ok");
  sidecar.sinks = {{0, 0x8000}};
  EXPECT_EQ(verdict(encode_stats_sidecar(sidecar)),
            "semantics:stats sidecar sink scores are not the exact top-m norms");
  // Mixed zeros in a range are ordered either way.
  sidecar = {{{0x0000, 0x8000}}, {0x0000}, {{0, 0x0000}}};
  EXPECT_EQ(verdict(*encode_stats_sidecar(sidecar)), "ok");
}

TEST(StatsSidecar, TheFirstOfTwoFaultsIsReported) {
  Bytes bad = with_le<std::uint16_t>(sidecar_bytes(), kSinksAt, 0);  // sinks
  bad.push_back(0);
  EXPECT_EQ(verdict(bad), "reserved:trailing canonical bytes");
  bad = with_le<std::uint16_t>(bad, kSinksAt + 6, 1);
  EXPECT_EQ(verdict(bad), "reserved:stats sidecar sink reserved field is nonzero");
  bad = with_le<std::uint16_t>(bad, kSinkCountAt, 0);
  EXPECT_EQ(verdict(bad), "bounds:stats sidecar sink count is outside bounds");
  bad = with_le<std::uint16_t>(bad, kNormsAt, 0xffff);
  EXPECT_EQ(verdict(bad), "semantics:stats sidecar key norm is not a finite non-negative value");
  bad = with_le<std::uint32_t>(bad, kTokenCountAt, 0);
  EXPECT_EQ(verdict(bad), "bounds:stats sidecar token count is outside bounds");
  bad = with_le<std::uint16_t>(bad, kChannelsAt, 0x7c00);
  EXPECT_EQ(verdict(bad), "semantics:stats sidecar channel range is not finite and ordered");
  // A faulty range comes before the end of input behind it.
  EXPECT_EQ(verdict(ByteSpan(bad).first(kChannelsAt + 4)),
            "semantics:stats sidecar channel range is not finite and ordered");
  bad = with_le<std::uint32_t>(bad, 12, 0);
  EXPECT_EQ(verdict(bad), "bounds:stats sidecar channel count is outside bounds");
}

TEST(StatsSidecar, EncodeRefusesWhatDecodeWouldRefuse) {
  const StatsSidecar good = *decode_stats_sidecar(sidecar_bytes());
  StatsSidecar bad = good;
  bad.channels.clear();
  EXPECT_EQ(verdict(encode_stats_sidecar(bad)), "bounds:stats sidecar channel count is outside bounds");
  bad.channels.assign(513, {});
  EXPECT_EQ(verdict(encode_stats_sidecar(bad)), "bounds:stats sidecar channel count is outside bounds");
  bad = good;
  bad.channels[1] = {0x4000, 0x3c00};
  EXPECT_EQ(verdict(encode_stats_sidecar(bad)),
            "semantics:stats sidecar channel range is not finite and ordered");
  bad = good;
  bad.norm_bits.assign(769, 0);
  EXPECT_EQ(verdict(encode_stats_sidecar(bad)), "bounds:stats sidecar token count is outside bounds");
  bad = good;
  bad.sinks.assign(9, {});
  EXPECT_EQ(verdict(encode_stats_sidecar(bad)), "bounds:stats sidecar sink count is outside bounds");
}

TEST(StatsSidecar, EveryTruncationIsTruncated) {
  const Bytes good = sidecar_bytes();
  for (std::size_t n = 0; n < good.size(); ++n)
    EXPECT_EQ(verdict(ByteSpan(good).first(n)), "truncated:truncated canonical object") << n;
}

// The chunk's digests protect the numbers; the sidecar itself must never accept a second spelling.
TEST(StatsSidecar, EveryBitFlipIsRefusedOrIsAnotherCanonicalSidecar) {
  const Bytes good = sidecar_bytes();
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    const Bytes bad = with_bit_flipped(good, bit);
    const auto sidecar = decode_stats_sidecar(bad);
    if (!sidecar.has_value()) continue;
    EXPECT_GE(bit / 8, kChannelsAt);
    EXPECT_EQ(*encode_stats_sidecar(*sidecar), bad);
  }
}

}  // namespace
}  // namespace kvpack::stats_sidecar_test
