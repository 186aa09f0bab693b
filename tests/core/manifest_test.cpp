#include "kvpack/core/manifest.h"

#include <gtest/gtest.h>

#include "cli/reference_fixtures.h"
#include "support/mutate.h"
#include "support/random_manifest.h"
#include "support/verdict.h"

namespace kvpack::manifest_test {
namespace {

using kvpack::testing::ManifestGenerator;
using kvpack::testing::verdict;
using kvpack::testing::with_appended;
using kvpack::testing::with_bit_flipped;
using kvpack::testing::with_bytes;
using kvpack::testing::with_le;

constexpr std::string_view kTruncated = "truncated:truncated canonical object";

// Places in the 796 bytes of the reference manifest.
constexpr std::size_t kFamilyBody = 284;
constexpr std::size_t kSchemaBody = 450;
constexpr std::size_t kPayloadCount = 659;
constexpr std::size_t kChunkCount = 680;

CutManifest full_manifest() {
  return fixtures::reference_stage({}).manifest;
}

CutManifest delta_manifest() {
  return fixtures::delta_chain({})[3].manifest;
}

std::string decode(ByteSpan bytes) {
  return verdict(decode_manifest(bytes));
}

TEST(Manifest, LayoutIsThePublishedMap) {
  const CutManifest manifest = full_manifest();
  const Bytes bytes = *encode_manifest(manifest);
  ASSERT_EQ(bytes.size(), 796U);
  const auto piece = [&](std::size_t from, std::size_t to) {
    return to_hex(ByteSpan(bytes).subspan(from, to - from));
  };
  const auto body = [](const Bytes& object) { return to_hex(ByteSpan(object).subspan(12)); };
  EXPECT_EQ(piece(0, 12), "4b564d4e4631000001000000");
  EXPECT_EQ(piece(12, 44), fixtures::tenant().hex());
  EXPECT_EQ(piece(44, 52), "0700000000000000");
  EXPECT_EQ(piece(52, 84), Id32::filled(10).hex());
  EXPECT_EQ(piece(212, 244), manifest.input_cut.token_root.hex());
  EXPECT_EQ(piece(kFamilyBody, kSchemaBody), body(*encode_family(manifest.family)));
  EXPECT_EQ(piece(kSchemaBody, kPayloadCount), body(*encode_schema(manifest.schema)));
  EXPECT_EQ(piece(kPayloadCount, kPayloadCount + 4), "01000000");
  EXPECT_EQ(piece(kChunkCount, kChunkCount + 4), "01000000");
  const ChunkRef& ref = manifest.payload[0].chunks[0];
  EXPECT_EQ(piece(684, 796), ref.content_id.hex() + ref.object_key.hex() + ref.stored_object_digest.hex() +
                                 "0700000000000000"
                                 "10000000"
                                 "00200000");
  EXPECT_EQ((*encode_manifest(fixtures::delta_chain({})[1].manifest)).size(), 900U);
}

TEST(Manifest, RoundTripsEveryFixture) {
  for (const fixtures::Mode& mode : fixtures::modes()) {
    const auto stage = fixtures::reference_stage(mode);
    EXPECT_EQ(*decode_manifest(stage.manifest_bytes), stage.manifest);
    EXPECT_EQ(manifest_id(stage.manifest_bytes), stage.manifest_id);
    EXPECT_EQ(verdict(validate_manifest(stage.manifest)), "ok");
    for (const fixtures::Stage& link : fixtures::delta_chain(mode)) {
      EXPECT_EQ(*decode_manifest(link.manifest_bytes), link.manifest);
      EXPECT_EQ(verdict(validate_manifest(link.manifest)), "ok");
    }
  }
}

TEST(Manifest, EveryTruncationIsTruncated) {
  for (const CutManifest& manifest : {full_manifest(), delta_manifest()}) {
    const Bytes bytes = *encode_manifest(manifest);
    for (std::size_t n = 0; n < bytes.size(); ++n)
      EXPECT_EQ(decode(ByteSpan(bytes).first(n)), kTruncated) << n;
  }
}

TEST(Manifest, EveryBitFlipIsRefusedOrAnotherManifest) {
  for (const CutManifest& manifest : {full_manifest(), delta_manifest()}) {
    const Bytes bytes = *encode_manifest(manifest);
    for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
      const Bytes flipped = with_bit_flipped(bytes, bit);
      const auto decoded = decode_manifest(flipped);
      if (!decoded.has_value()) continue;
      EXPECT_NE(*decoded, manifest) << bit;
      EXPECT_EQ(*encode_manifest(*decoded), flipped) << bit;
    }
  }
}

TEST(Manifest, PrefixIsCheckedInOrder) {
  const Bytes bytes = *encode_manifest(full_manifest());
  EXPECT_EQ(decode(with_bit_flipped(bytes, 0)), "bad_magic:invalid canonical object magic");
  EXPECT_EQ(decode(with_le<std::uint16_t>(bytes, 8, 2)), "bad_magic:unsupported manifest version");
  EXPECT_EQ(decode(with_le<std::uint16_t>(bytes, 10, 1)), "reserved:manifest reserved field is nonzero");
  EXPECT_EQ(decode(with_appended(bytes, 0)), "reserved:trailing canonical bytes");
  EXPECT_EQ(decode(with_bytes(bytes, 0, byte_view("IOKVPK1"))), "bad_magic:invalid canonical object magic");
}

TEST(Manifest, EmbeddedBodiesAreCheckedInWireOrder) {
  const Bytes bytes = *encode_manifest(full_manifest());
  const Bytes bad_family = with_le<std::uint16_t>(bytes, kFamilyBody + 34, 1);
  const Bytes bad_schema = with_le<std::uint16_t>(bytes, kSchemaBody + 2, 1);
  const Bytes bad_payload = with_le<std::uint32_t>(bytes, kPayloadCount, 0);
  EXPECT_EQ(decode(bad_family), "reserved:family reserved field is nonzero");
  EXPECT_EQ(decode(bad_schema), "reserved:manifest-kind reserved field is nonzero");
  EXPECT_EQ(decode(bad_payload), "bounds:manifest state count is outside bounds");
  EXPECT_EQ(decode(with_le<std::uint16_t>(bad_schema, kFamilyBody + 34, 1)),
            "reserved:family reserved field is nonzero");
  EXPECT_EQ(decode(with_le<std::uint16_t>(bad_payload, kSchemaBody + 2, 1)),
            "reserved:manifest-kind reserved field is nonzero");
  EXPECT_EQ(decode(with_le<std::uint32_t>(bytes, kPayloadCount, 65537)),
            "bounds:manifest state count is outside bounds");
  EXPECT_EQ(decode(with_le<std::uint32_t>(bytes, kPayloadCount, 65536)), kTruncated);
  EXPECT_EQ(decode(with_le<std::uint32_t>(bytes, kChunkCount, 0)),
            "bounds:state chunk count is outside bounds");
  EXPECT_EQ(decode(with_le<std::uint32_t>(bytes, kChunkCount, 65537)),
            "bounds:state chunk count is outside bounds");
  EXPECT_EQ(decode(with_le<std::uint32_t>(bytes, kChunkCount, 65536)), kTruncated);
  EXPECT_EQ(decode(with_bytes(bytes, kPayloadCount + 10, Bytes{0xc0})), "semantics:state name is not UTF-8");
}

TEST(Manifest, LongerThan256MiBIsRefusedBeforeItIsRead) {
  Bytes bytes(kMaxManifestBytes);
  EXPECT_EQ(decode(bytes), "bad_magic:invalid canonical object magic");
  bytes.push_back(0);
  EXPECT_EQ(decode(bytes), "bounds:manifest exceeds production bound");
}

TEST(Manifest, WhatDoesNotFitIsNotEncoded) {
  const auto encode = [](auto edit) {
    CutManifest manifest = full_manifest();
    edit(manifest);
    return verdict(encode_manifest(manifest));
  };
  EXPECT_EQ(encode([](auto& m) { m.payload.clear(); }), "bounds:manifest state count is outside bounds");
  EXPECT_EQ(encode([](auto& m) { m.payload.resize(65537); }),
            "bounds:manifest state count is outside bounds");
  EXPECT_EQ(encode([](auto& m) { m.payload[0].chunks.clear(); }),
            "bounds:state chunk count is outside bounds");
  EXPECT_EQ(encode([](auto& m) { m.payload[0].chunks.resize(65537); }),
            "bounds:state chunk count is outside bounds");
  EXPECT_EQ(encode([](auto& m) { m.payload[0].key.name.assign(65536, 'x'); }), "bounds:string is too long");
  EXPECT_EQ(encode([](auto& m) { m.family.states.clear(); }), "bounds:family state count is outside bounds");
  EXPECT_EQ(encode([](auto& m) { m.schema.groups.clear(); }), "bounds:atomic-group count is outside bounds");
}

TEST(ManifestGeometry, ContiguousStridesAreRowMajor) {
  EXPECT_EQ(*contiguous_strides({{5}}), (std::vector<std::uint64_t>{1}));
  EXPECT_EQ(*contiguous_strides({{2, 3, 4}}), (std::vector<std::uint64_t>{12, 4, 1}));
  EXPECT_EQ(verdict(contiguous_strides({{1ULL << 32, 1ULL << 32}})),
            "bounds:contiguous stride calculation overflows u64");
}

TEST(ManifestGeometry, FootprintReachesBehindTheLastElement) {
  const std::vector<std::uint64_t> strides{10, 2};
  EXPECT_EQ(*physical_footprint_bytes({{3, 4}}, strides, 2), (2 * 10 + 3 * 2 + 1) * 2U);
  EXPECT_EQ(*physical_footprint_bytes({{1, 1}}, strides, 8), 8U);
  const std::string overflow = "bounds:state physical footprint overflows u64";
  EXPECT_EQ(verdict(physical_footprint_bytes({{3}}, std::vector<std::uint64_t>{1ULL << 63}, 1)), overflow);
  EXPECT_EQ(
      verdict(physical_footprint_bytes({{2, 2}}, std::vector<std::uint64_t>{1ULL << 63, 1ULL << 63}, 1)),
      overflow);
  EXPECT_EQ(verdict(physical_footprint_bytes({{2}}, std::vector<std::uint64_t>{~0ULL}, 1)), overflow);
  EXPECT_EQ(verdict(physical_footprint_bytes({{2}}, std::vector<std::uint64_t>{1ULL << 62}, 8)), overflow);
  EXPECT_EQ(*physical_footprint_bytes({{2}}, std::vector<std::uint64_t>{~0ULL - 1}, 1), ~0ULL);
}

TEST(ManifestProperties, RandomManifestsAreValidAndRoundTrip) {
  for (std::uint64_t seed = 1; seed <= 500; ++seed) {
    const CutManifest manifest = ManifestGenerator(seed).manifest();
    ASSERT_EQ(verdict(validate_manifest(manifest)), "ok") << seed;
    const Bytes bytes = *encode_manifest(manifest);
    ASSERT_EQ(*decode_manifest(bytes), manifest) << seed;
  }
}

// Whatever survives damage is canonical, and judging it ends in a verdict, not in an overflow.
TEST(ManifestProperties, DamagedManifestsAreRefusedOrCanonical) {
  for (std::uint64_t seed = 1; seed <= 1500; ++seed) {
    ManifestGenerator random(seed);
    Bytes bytes = *encode_manifest(random.manifest());
    for (std::uint64_t n = random.between(1, 3); n > 0; --n)
      bytes[random.below(bytes.size())] = static_cast<std::uint8_t>(random.below(256));
    if (random.one_in(5)) bytes.resize(random.below(bytes.size()));
    const auto decoded = decode_manifest(bytes);
    if (!decoded.has_value()) continue;
    ASSERT_EQ(*encode_manifest(*decoded), bytes) << seed;
    (void)validate_manifest(*decoded);
  }
}

}  // namespace
}  // namespace kvpack::manifest_test
