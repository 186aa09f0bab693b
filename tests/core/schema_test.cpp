#include "kvpack/core/schema.h"

#include <gtest/gtest.h>

#include "cli/reference_fixtures.h"
#include "support/mutate.h"
#include "support/random_manifest.h"
#include "support/verdict.h"

namespace kvpack::schema_test {
namespace {

using kvpack::testing::ManifestGenerator;
using kvpack::testing::verdict;
using kvpack::testing::with_appended;
using kvpack::testing::with_bit_flipped;
using kvpack::testing::with_bytes;
using kvpack::testing::with_le;

constexpr std::string_view kTruncated = "truncated:truncated canonical object";

RealizedCutSchema full_schema() {
  return fixtures::reference_stage({}).manifest.schema;
}

RealizedCutSchema delta_schema() {
  return fixtures::delta_chain({})[2].manifest.schema;
}

std::string decode(ByteSpan bytes) {
  return verdict(decode_schema(bytes));
}

TEST(Schema, EncodesThePublishedBytes) {
  const std::string hex =
      "4b56524353310000010000000000000001000000000000000b00617474656e74696f6e2e6b0204000000000000000400"
      "000000000000020400000000000000040000000000000002040000000000000001000000000000000000000000000000"
      "040000000000000000000000000000001000000000000000100000000000000004000000000000000000000000000000"
      "010000000000000000000000040000000000000000000000000000001000000001000000010000000100000000000000"
      "0b00617474656e74696f6e2e6b10000000000000001000000000000000";
  EXPECT_EQ(to_hex(*encode_schema(full_schema())), hex);
  EXPECT_EQ(*decode_schema(*from_hex(hex)), full_schema());
}

TEST(Schema, DeltaCarriesItsParentIn104BytesMore) {
  const Bytes full = *encode_schema(full_schema());
  const Bytes delta = *encode_schema(delta_schema());
  EXPECT_EQ(delta.size(), full.size() + 104);
  EXPECT_EQ(*decode_schema(delta), delta_schema());
  EXPECT_EQ(to_hex(ByteSpan(delta).subspan(12, 4)), "01020000");
}

TEST(Schema, EveryTruncationIsTruncated) {
  for (const RealizedCutSchema& schema : {full_schema(), delta_schema()}) {
    const Bytes bytes = *encode_schema(schema);
    for (std::size_t n = 0; n < bytes.size(); ++n)
      EXPECT_EQ(decode(ByteSpan(bytes).first(n)), kTruncated) << n;
  }
}

TEST(Schema, EveryBitFlipIsRefusedOrAnotherSchema) {
  for (const RealizedCutSchema& schema : {full_schema(), delta_schema()}) {
    const Bytes bytes = *encode_schema(schema);
    for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
      const Bytes flipped = with_bit_flipped(bytes, bit);
      const auto decoded = decode_schema(flipped);
      if (!decoded.has_value()) continue;
      EXPECT_NE(*decoded, schema) << bit;
      EXPECT_EQ(*encode_schema(*decoded), flipped) << bit;
    }
  }
}

TEST(Schema, PrefixIsCheckedInOrder) {
  const Bytes bytes = *encode_schema(full_schema());
  EXPECT_EQ(decode(with_bit_flipped(bytes, 3)), "bad_magic:invalid canonical object magic");
  EXPECT_EQ(decode(with_le<std::uint16_t>(bytes, 8, 2)), "bad_magic:unsupported realized-schema version");
  EXPECT_EQ(decode(with_le<std::uint16_t>(bytes, 10, 1)),
            "reserved:realized-schema reserved field is nonzero");
  EXPECT_EQ(decode(with_appended(bytes, 7)), "reserved:trailing canonical bytes");
}

TEST(Schema, KindIsCheckedReservedThenDepthThenTag) {
  const Bytes bytes = *encode_schema(full_schema());
  const auto kind = [&](std::uint8_t tag, std::uint8_t depth, std::uint16_t reserved) {
    return decode(with_le(with_bytes(bytes, 12, Bytes{tag, depth}), 14, reserved));
  };
  EXPECT_EQ(kind(0, 0, 1), "reserved:manifest-kind reserved field is nonzero");
  EXPECT_EQ(kind(0, 0, 0x0100), "reserved:manifest-kind reserved field is nonzero");
  EXPECT_EQ(kind(0, 1, 0), "reserved:full manifest carries a delta depth");
  EXPECT_EQ(kind(9, 0, 0), "unknown_enum:unknown manifest kind 9");
  EXPECT_EQ(kind(255, 1, 0), "unknown_enum:unknown manifest kind 255");
  EXPECT_EQ(kind(9, 1, 1), "reserved:manifest-kind reserved field is nonzero");
  EXPECT_EQ(decode(ByteSpan(with_bytes(bytes, 12, Bytes{9, 0, 0, 0})).first(16)),
            "unknown_enum:unknown manifest kind 9");
  EXPECT_EQ(decode(ByteSpan(with_bytes(bytes, 12, Bytes{9, 0, 0, 0})).first(15)), kTruncated);
}

TEST(Schema, AnyDeltaDepthDecodes) {
  for (const int depth : {0, 1, 7, 8, 255}) {
    RealizedCutSchema schema = delta_schema();
    schema.kind.depth = static_cast<std::uint8_t>(depth);
    EXPECT_EQ(decode_schema(*encode_schema(schema))->kind.depth, depth);
  }
}

TEST(Schema, CountsAreBoundedAsTheyAreRead) {
  const Bytes bytes = *encode_schema(full_schema());
  const std::size_t strides = 20 + 13 + 17 + 17 + 4;
  const std::size_t spans = strides + 17 + 7 * 8;
  const std::size_t groups = spans + 4 + 28;
  const auto at = [&](std::size_t offset, std::uint32_t value) {
    return decode(with_le(bytes, offset, value));
  };
  const auto bounded = [&](std::size_t offset, const std::string& text) {
    EXPECT_EQ(at(offset, 0), text);
    EXPECT_EQ(at(offset, 65537), text);
    EXPECT_EQ(at(offset, 0xffffffff), text);
    EXPECT_NE(at(offset, 65536), text);  // allowed, so the next field is what ends the reading
  };
  bounded(16, "bounds:realized state count is outside bounds");
  bounded(spans, "bounds:state chunk-span count is outside bounds");
  bounded(groups, "bounds:atomic-group count is outside bounds");
  bounded(groups + 8, "bounds:atomic-group state count is outside bounds");
  EXPECT_EQ(decode(with_le<std::uint8_t>(bytes, strides, 9)), "bounds:too many state strides");
  EXPECT_EQ(decode(with_le<std::uint8_t>(bytes, strides - 34, 0)), "bounds:state rank must be in 1..=8");
  EXPECT_EQ(decode(with_le<std::uint8_t>(bytes, strides - 17, 9)), "bounds:state rank must be in 1..=8");
  EXPECT_EQ(decode(with_le<std::uint64_t>(bytes, strides - 8, 0)), "bounds:state dimensions must be nonzero");
  EXPECT_EQ(decode(with_bytes(bytes, 26, Bytes{0xff})), "semantics:state name is not UTF-8");
  EXPECT_EQ(decode(with_bytes(bytes, groups + 18, Bytes{0xff})), "semantics:state name is not UTF-8");
}

TEST(Schema, StrideCountIsItsOwn) {
  for (const std::size_t count : {0U, 1U, 8U}) {
    RealizedCutSchema schema = full_schema();
    schema.states[0].strides.assign(count, 0);
    EXPECT_EQ(*decode_schema(*encode_schema(schema)), schema);
  }
}

TEST(Schema, WhatDoesNotFitIsNotEncoded) {
  const auto encode = [](auto edit) {
    RealizedCutSchema schema = full_schema();
    edit(schema);
    return verdict(encode_schema(schema));
  };
  EXPECT_EQ(encode([](auto& s) { s.states.clear(); }), "bounds:realized state count is outside bounds");
  EXPECT_EQ(encode([](auto& s) { s.states.resize(65537, s.states[0]); }),
            "bounds:realized state count is outside bounds");
  EXPECT_EQ(encode([](auto& s) { s.groups.clear(); }), "bounds:atomic-group count is outside bounds");
  EXPECT_EQ(encode([](auto& s) { s.groups.resize(65537, s.groups[0]); }),
            "bounds:atomic-group count is outside bounds");
  EXPECT_EQ(encode([](auto& s) { s.groups[0].states.clear(); }),
            "bounds:atomic-group state count is outside bounds");
  EXPECT_EQ(encode([](auto& s) { s.groups[0].states.resize(65537); }),
            "bounds:atomic-group state count is outside bounds");
  EXPECT_EQ(encode([](auto& s) { s.states[0].chunk_spans.clear(); }),
            "bounds:state chunk-span count is outside bounds");
  EXPECT_EQ(encode([](auto& s) { s.states[0].chunk_spans.resize(65537); }),
            "bounds:state chunk-span count is outside bounds");
  EXPECT_EQ(encode([](auto& s) { s.states[0].strides.resize(9); }), "bounds:too many state strides");
  EXPECT_EQ(encode([](auto& s) { s.states[0].full_shape.dimensions.clear(); }),
            "bounds:state rank must be in 1..=8");
  EXPECT_EQ(encode([](auto& s) { s.states[0].segment_shape.dimensions = {0}; }),
            "bounds:state dimensions must be nonzero");
  EXPECT_EQ(encode([](auto& s) { s.states[0].key.name.assign(65536, 'x'); }), "bounds:string is too long");
  EXPECT_EQ(encode([](auto& s) { s.groups[0].states[0].name.assign(65536, 'x'); }),
            "bounds:string is too long");
  RealizedCutSchema empty;
  EXPECT_EQ(verdict(realized_cut_schema_id(empty)), "bounds:realized state count is outside bounds");
}

TEST(Schema, AFullKindIsWrittenWithoutDepth) {
  RealizedCutSchema schema = full_schema();
  schema.kind.depth = 3;  // meaningless without a parent
  EXPECT_EQ(*encode_schema(schema), *encode_schema(full_schema()));
}

TEST(SchemaProperties, RandomSchemasRoundTrip) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    const RealizedCutSchema schema = ManifestGenerator(seed).manifest().schema;
    ASSERT_EQ(*decode_schema(*encode_schema(schema)), schema) << seed;
  }
}

TEST(SchemaProperties, DamagedSchemasAreRefusedOrCanonical) {
  for (std::uint64_t seed = 1; seed <= 2000; ++seed) {
    ManifestGenerator random(seed);
    Bytes bytes = *encode_schema(seed % 2 == 0 ? full_schema() : delta_schema());
    for (std::uint64_t n = random.between(1, 4); n > 0; --n)
      bytes[random.below(bytes.size())] = static_cast<std::uint8_t>(random.below(256));
    if (random.one_in(4)) bytes.resize(random.below(bytes.size()));
    const auto decoded = decode_schema(bytes);
    if (decoded.has_value()) {
      ASSERT_EQ(*encode_schema(*decoded), bytes) << seed;
    }
  }
}

}  // namespace
}  // namespace kvpack::schema_test
