#include "kvpack/handoff/seal.h"

#include "handoff/handoff_support.h"

namespace kvpack::handoff::seal_test {
namespace {

using namespace kvpack::handoff::testing;

struct Material {
  BeginManifest begin;
  std::vector<SegmentDescriptor> descriptors;
  std::vector<Bytes> payloads;

  Result<SealManifest> sign_with(const MacKey& key) const {
    const std::vector<ByteSpan> views(payloads.begin(), payloads.end());
    return sign(begin, descriptors, views, key);
  }
};

Material material_of(const JsonValue& c) {
  Material out{begin_of(at(c, "begin")), {}, {}};
  for (const JsonValue& d : list(c, "descriptors")) out.descriptors.push_back(descriptor_of(d));
  for (const JsonValue& p : list(c, "payloads_hex")) out.payloads.push_back(*from_hex(*p.as_string()));
  return out;
}

TEST(Seal, EveryDigestOfTheTransfersMatches) {
  for (const JsonValue& transfer : list(vectors(), "transfers")) {
    SCOPED_TRACE(text(transfer, "name"));
    const auto seal = material_of(transfer).sign_with(key_of(transfer));
    ASSERT_TRUE(seal.has_value());
    EXPECT_EQ(seal->core.descriptor_sha256, text(transfer, "descriptor_sha256"));
    EXPECT_EQ(seal->core.payload_sha256, text(transfer, "payload_sha256"));
    EXPECT_EQ(text_view(canonical_seal_core(seal->core)), text(transfer, "core_canonical"));
    EXPECT_EQ(to_hex(sha256(canonical_seal_core(seal->core))), text(transfer, "core_sha256"));
    EXPECT_EQ(seal->hmac_sha256, text(transfer, "hmac_sha256"));
    EXPECT_EQ(to_hex(sha256(canonical_seal(*seal))), text(transfer, "seal_manifest_sha256"));
    EXPECT_EQ(seal_of(*parse_json(canonical_seal(*seal))), *seal);
  }
}

TEST(Seal, SigningMatchesTheVectors) {
  for (const JsonValue& c : list(vectors(), "sign_cases")) {
    SCOPED_TRACE(text(c, "name"));
    const auto seal = material_of(c).sign_with(key_of(c));
    expect_outcome(seal, c);
    if (seal.has_value()) {
      EXPECT_EQ(canonical_seal(*seal), canonical_json(at(c, "seal")));
    }
  }
}

TEST(Seal, TheTranscriptCountsWithoutOverflow) {
  SealTranscript transcript;
  SegmentDescriptor descriptor = small_descriptor();
  descriptor.byte_len = std::numeric_limits<std::uint64_t>::max();
  ASSERT_TRUE(transcript.add(descriptor).has_value());
  EXPECT_EQ(verdict(transcript.add(small_descriptor(1))), "validation:total byte count overflow");
  EXPECT_EQ(transcript.segment_count(), 1U);
}

TEST(Seal, TypedParseNeedsEveryField) {
  const JsonPath root;
  const JsonValue whole = *parse_json(canonical_seal(SealManifest{}));
  for (const JsonMember& member : *whole.find("core")->as_object()) {
    JsonValue core = JsonValue::object();
    for (const JsonMember& other : *whole.find("core")->as_object())
      if (other.key != member.key) core.set(other.key, other.value.clone());
    JsonValue less = JsonValue::object();
    less.set("core", std::move(core)).set("hmac_sha256", "");
    EXPECT_EQ(verdict(parse_seal(less, root)), "json:`core." + member.key + "` is missing");
  }
  EXPECT_EQ(verdict(parse_seal(JsonValue::object(), root)), "json:`core` is missing");
}

}  // namespace
}  // namespace kvpack::handoff::seal_test
