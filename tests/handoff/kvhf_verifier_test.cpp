#include "kvpack/handoff/kvhf_verifier.h"

#include <gmock/gmock.h>

#include "handoff/kvhf_support.h"
#include "kvpack/crypto/sha256_machine.h"

namespace kvpack::kvhf::kvhf_verifier_test {
namespace {

using kvpack::testing::with_bit_flipped;

constexpr const char* kBadSeal =
    "validation:terminal seal does not authenticate the complete ordered handoff";

// Everything up to the seal.
Verifier fed(const Fixture& fixture, const Sha256Kernels& sha256 = kOpensslSha256) {
  Verifier verifier(validated(fixture), sha256);
  const auto headers = headers_of(fixture);
  for (std::size_t i = 0; i < headers.size(); ++i) {
    const auto plane = verifier.add_plane(headers[i], fixture.planes[i]);
    EXPECT_TRUE(plane.has_value()) << fixture.name << " " << verdict(plane);
  }
  return verifier;
}

std::string seal_verdict(const Fixture& fixture, const Seal& seal) {
  Verifier verifier = fed(fixture);
  return verdict(verifier.seal(seal));
}

std::string core_verdict(const Fixture& fixture, const std::function<void(SealCore&)>& edit) {
  SealCore core = seal_of(fixture).core;
  edit(core);
  return seal_verdict(fixture, resealed(fixture, core));
}

TEST(KvhfLayer, VectorsGiveTheirVerdicts) {
  for (const JsonValue& row : cases("kvhf_header_cases")) {
    const ValidatedBegin begin = validated(fixture(text_at(row, "fixture")));
    const auto header = decode_layer_header(canonical_json(at(row, "header")));
    ASSERT_TRUE(header.has_value()) << text_at(row, "name") << " " << verdict(header);
    const auto index = static_cast<std::uint32_t>(number_at(row, "index"));
    expect_verdict(row, verdict(check_layer_header(begin, index, *header)));
  }
}

TEST(KvhfLayer, RangeThatOverflowsTheByteProductHasItsOwnText) {
  Fixture latent = fixture("v2-mla-latent");
  LayoutClass& entry = latent.begin.layout_table[0];
  entry.kv_heads = entry.head_dim = 0x8000'0000U;
  entry.until = 1;
  entry.window_tokens = 1;
  latent.begin.geometry.num_layers = 1;
  latent.begin.geometry.num_kv_heads = latent.begin.geometry.head_dim = 0x8000'0000U;
  latent.begin.expected_layer_frames = 1;
  latent.begin.expected_payload_bytes = 1ULL << 63;
  Limits limits = test_limits();
  limits.max_frame_bytes = limits.max_total_bytes = std::numeric_limits<std::uint64_t>::max();
  const auto begin = validate(latent.begin, limits);
  ASSERT_TRUE(begin.has_value()) << verdict(begin);
  LayerHeader header = make_layer_header(*begin, 0, std::string(64, '0'), DtypeTags::kWrite);
  EXPECT_EQ(verdict(check_layer_header(*begin, 0, header)), "ok");
  header.logical_token_start = 0;
  EXPECT_EQ(verdict(check_layer_header(*begin, 0, header)), "validation:layer frame 0 byte bound overflow");
}

TEST(KvhfSeal, FixturesReproduceEveryDigest) {
  for (const Fixture& fixture : fixtures()) {
    const JsonValue& row = *fixture.row;
    const std::vector<LayerHeader> headers = headers_of(fixture);
    const Bytes header0 = encode_layer_header(headers[0]);
    EXPECT_EQ(header0.size(), number_at(row, "header0_bytes")) << fixture.name;
    EXPECT_EQ(to_hex(sha256(header0)), text_at(row, "header0_sha256")) << fixture.name;

    for (const Sha256Kernels* kernels : available_sha256_kernels()) {
      Verifier with = fed(fixture, *kernels);
      ASSERT_EQ(verdict(with.seal(seal_of(fixture))), "ok") << fixture.name << " " << kernels->name;
    }
    Verifier verifier = fed(fixture);
    const auto witness = verifier.seal(seal_of(fixture));
    ASSERT_TRUE(witness.has_value()) << fixture.name << " " << verdict(witness);
    EXPECT_EQ(witness->descriptor_chain_sha256(), text_at(row, "descriptor_chain_sha256"));
    EXPECT_EQ(witness->payload_sha256(), text_at(row, "payload_sha256"));
    EXPECT_EQ(witness->artifact_sha256(), text_at(row, "artifact_sha256"));
    EXPECT_EQ(witness->transfer_id(), fixture.begin.transfer_id);
    EXPECT_EQ(to_hex(witness->begin_digest()), text_at(row, "begin_sha256"));
    const Bytes core = encode_seal_core(witness->seal().core);
    EXPECT_EQ(core.size(), number_at(row, "core_bytes")) << fixture.name;
    EXPECT_EQ(to_hex(sha256(core)), text_at(row, "core_sha256")) << fixture.name;
    const Bytes seal = encode_seal(witness->seal());
    EXPECT_EQ(seal.size(), number_at(row, "seal_bytes")) << fixture.name;
    EXPECT_EQ(to_hex(sha256(seal)), text_at(row, "seal_sha256")) << fixture.name;
    EXPECT_EQ(witness->seal().artifact_hmac_sha256.value_or(""), text_at(row, "artifact_hmac_sha256"));
    EXPECT_EQ(*decode_seal(seal), witness->seal());
  }
}

// Values of docs/protocol/kvhf.md, worked bytes, so that they do not depend on the vector file alone.
TEST(KvhfSeal, WorkedValuesOfTheFlatTransfer) {
  const Fixture v1 = fixture("v1");
  EXPECT_EQ(v1.stream.size(), 2'580U);
  EXPECT_EQ(to_hex(sha256(v1.stream)), "40f59f853c64c6804c6fd6a3a5c6796487341b11fa23704eb606b7e0a6007a62");
  Verifier verifier = fed(v1);
  const auto witness = verifier.seal(seal_of(v1));
  ASSERT_TRUE(witness.has_value());
  EXPECT_EQ(witness->artifact_sha256(), "00b1f215f2448dadf5514a4d162931d84a2e889e4384dbf5cf3e8170af7036c2");
  EXPECT_EQ(witness->descriptor_chain_sha256(),
            "29e8a78dc5e8d0cbe739b2fc1a8f4b106291a9759410126b98b3a1d7933fa40a");
  EXPECT_EQ(witness->payload_sha256(), "93e083d5a69fd3023d9943c1fe0d04b1a31d833b1e054da7227beba73fb96e10");
}

TEST(KvhfSeal, EachMemberIsBound) {
  const Fixture v1 = fixture("v1");
  EXPECT_EQ(core_verdict(v1, [](SealCore&) {}), "ok");
  EXPECT_EQ(core_verdict(v1, [](SealCore& c) { c.schema_version = 2; }), kBadSeal);
  EXPECT_EQ(core_verdict(v1, [](SealCore& c) { c.protocol = "x"; }), kBadSeal);
  EXPECT_EQ(core_verdict(v1, [](SealCore& c) { c.transfer_id[0] = 'b'; }), kBadSeal);
  EXPECT_EQ(core_verdict(v1, [](SealCore& c) { c.frame_count = 1; }), kBadSeal);
  EXPECT_EQ(core_verdict(v1, [](SealCore& c) { c.payload_bytes = 15; }), kBadSeal);
  EXPECT_EQ(core_verdict(v1, [](SealCore& c) { c.payload_sha256[0] = '0'; }), kBadSeal);
  EXPECT_EQ(core_verdict(v1, [](SealCore& c) { c.descriptor_chain_sha256[0] = '0'; }), kBadSeal);
  EXPECT_EQ(core_verdict(v1, [](SealCore& c) { c.token_ids_sha256[0] = '0'; }), kBadSeal);
  EXPECT_EQ(core_verdict(v1, [](SealCore& c) { c.prompt_token_ids[0] = 11; }), kBadSeal);
  EXPECT_EQ(core_verdict(v1, [](SealCore& c) { c.prompt_token_ids.push_back(1); }), kBadSeal);
  EXPECT_EQ(core_verdict(v1, [](SealCore& c) { c.completed_unix_ms = 99; }), kBadSeal);
  EXPECT_EQ(core_verdict(v1, [](SealCore& c) { c.completed_unix_ms = 201; }), kBadSeal);
  EXPECT_EQ(core_verdict(v1, [](SealCore& c) { c.completed_unix_ms = 100; }), "ok");
  EXPECT_EQ(core_verdict(v1, [](SealCore& c) { c.completed_unix_ms = 200; }), "ok");
  EXPECT_EQ(core_verdict(v1, [](SealCore& c) { c.canary = fixture("prerope").canary; }), kBadSeal);
  Seal seal = seal_of(v1);
  seal.artifact_sha256[0] = '1';
  EXPECT_EQ(seal_verdict(v1, seal), kBadSeal);
}

TEST(KvhfSeal, EveryFlippedBitOfTheSealIsRefused) {
  for (const std::string_view name : {"v1", "prerope-keyed"}) {
    const Fixture from = fixture(name);
    const Bytes json = encode_seal(seal_of(from));
    const auto key = from.mac_key();
    for (std::size_t bit = 0; bit < json.size() * 8; ++bit) {
      const auto seal = decode_seal(with_bit_flipped(json, bit));
      if (!seal.has_value()) continue;
      Verifier again = fed(from);
      const auto witness = again.seal(*seal);
      // A tag that is still a digest string is left to the key.
      const bool refused = !witness.has_value() || (key && !witness->authenticate(*key).has_value());
      EXPECT_TRUE(refused) << name << " bit " << bit;
    }
  }
}

TEST(KvhfSeal, CanaryIsMandatoryAndWellFormedForPreRopeOnly) {
  const Fixture pre = fixture("prerope");
  EXPECT_EQ(core_verdict(pre, [](SealCore&) {}), "ok");
  EXPECT_EQ(core_verdict(pre, [](SealCore& c) { c.canary.reset(); }), kBadSeal);
  EXPECT_EQ(core_verdict(pre, [](SealCore& c) { c.canary->sample_token_count = 0; }), kBadSeal);
  EXPECT_EQ(core_verdict(pre, [](SealCore& c) { c.canary->sample_token_start = 3; }), kBadSeal);
  EXPECT_EQ(core_verdict(pre, [](SealCore& c) { c.canary->sample_token_count = 3; }), "ok");
  EXPECT_EQ(core_verdict(pre, [](SealCore& c) { c.canary->sample_token_count = 4; }), kBadSeal);
  EXPECT_EQ(
      core_verdict(
          pre, [](SealCore& c) { c.canary->sample_token_start = std::numeric_limits<std::uint32_t>::max(); }),
      kBadSeal);
  EXPECT_EQ(core_verdict(pre, [](SealCore& c) { c.canary->post_rope_k_sha256 = std::string(64, 'z'); }),
            kBadSeal);
  EXPECT_EQ(core_verdict(pre, [](SealCore& c) { c.canary->post_rope_v_sha256.pop_back(); }), kBadSeal);
}

TEST(KvhfSeal, EngineComparesTheCanary) {
  const Canary canary = *fixture("prerope").canary;
  EXPECT_EQ(verdict(check_canary(canary, canary.post_rope_k_sha256, canary.post_rope_v_sha256)), "ok");
  const std::string refused = "validation:pre-RoPE canary does not match the consumer's pinned-kernel rows";
  EXPECT_EQ(verdict(check_canary(canary, canary.post_rope_v_sha256, canary.post_rope_v_sha256)), refused);
  EXPECT_EQ(verdict(check_canary(canary, canary.post_rope_k_sha256, canary.post_rope_k_sha256)), refused);
}

TEST(KvhfSeal, TagNeedsItsKeyIdAndTheOtherWayRound) {
  const Fixture keyed = fixture("prerope-keyed");
  Seal seal = seal_of(keyed);
  seal.artifact_hmac_sha256.reset();
  EXPECT_EQ(seal_verdict(keyed, seal), kBadSeal);
  seal = seal_of(keyed);
  (*seal.artifact_hmac_sha256)[0] = 'B';
  EXPECT_EQ(seal_verdict(keyed, seal), kBadSeal);
  seal = seal_of(fixture("v1"));
  seal.artifact_hmac_sha256 = std::string(64, '0');
  EXPECT_EQ(seal_verdict(fixture("v1"), seal), kBadSeal);
}

TEST(KvhfSeal, OnlyTheTenantKeyAuthenticates) {
  const Fixture keyed = fixture("prerope-keyed");
  Verifier verifier = fed(keyed);
  const auto witness = verifier.seal(seal_of(keyed));
  ASSERT_TRUE(witness.has_value());
  EXPECT_EQ(verdict(witness->authenticate(*keyed.mac_key())), "ok");
  const Bytes zero(32, 0);
  EXPECT_EQ(verdict(witness->authenticate(*handoff::MacKey::from_slice(zero))),
            "validation:artifact HMAC tag rejected");

  // A plain digest in the tag's place does not pass, whoever computed it.
  Seal forged = seal_of(keyed);
  forged.artifact_hmac_sha256 = forged.artifact_sha256;
  Verifier other = fed(keyed);
  const auto forged_witness = other.seal(forged);
  ASSERT_TRUE(forged_witness.has_value());
  EXPECT_EQ(verdict(forged_witness->authenticate(*keyed.mac_key())), "validation:artifact HMAC tag rejected");

  Verifier unkeyed = fed(fixture("v1"));
  EXPECT_EQ(verdict(unkeyed.seal(seal_of(fixture("v1")))->authenticate(*keyed.mac_key())),
            "validation:sealed artifact carries no HMAC tag to authenticate");
}

TEST(KvhfVerifier, RefusedPlaneChangesNothing) {
  const Fixture v1 = fixture("v1");
  const auto headers = headers_of(v1);
  Verifier verifier(validated(v1));
  const std::string mismatch = "validation:layer frame 0 length or SHA-256 mismatch";
  EXPECT_EQ(verdict(verifier.add_plane(headers[0], Bytes(8, 3))), mismatch);
  EXPECT_EQ(verdict(verifier.add_plane(headers[0], Bytes(7, 1))), mismatch);
  EXPECT_EQ(verdict(verifier.add_plane(headers[1], v1.planes[1])),
            "validation:layer frame 0 does not match the ordered canonical tensor contract");
  EXPECT_EQ(verdict(verifier.seal(seal_of(v1))), kBadSeal);
  EXPECT_EQ(verifier.next_sequence(), 0U);
  EXPECT_EQ(verifier.payload_bytes(), 0U);
  ASSERT_TRUE(verifier.add_plane(headers[0], v1.planes[0]).has_value());
  EXPECT_EQ(verdict(verifier.seal(seal_of(v1))), kBadSeal) << "one plane is missing";
  ASSERT_TRUE(verifier.add_plane(headers[1], v1.planes[1]).has_value());
  Seal wrong = seal_of(v1);
  wrong.core.frame_count = 1;
  EXPECT_EQ(verdict(verifier.seal(wrong)), kBadSeal);
  EXPECT_EQ(verdict(verifier.seal(seal_of(v1))), "ok") << "a refused seal changes nothing either";
}

TEST(KvhfVerifier, NothingFollowsTheSeal) {
  const Fixture v1 = fixture("v1");
  Verifier verifier = fed(v1);
  ASSERT_TRUE(verifier.seal(seal_of(v1)).has_value());
  EXPECT_TRUE(verifier.is_sealed());
  EXPECT_EQ(verdict(verifier.seal(seal_of(v1))), "validation:terminal seal was already verified");
  EXPECT_EQ(verdict(verifier.check_next_header(headers_of(v1)[0])),
            "validation:cannot validate a layer header after the terminal seal");
  EXPECT_EQ(verdict(verifier.add_plane(headers_of(v1)[0], v1.planes[0])),
            "validation:cannot verify a layer plane after the terminal seal");
}

TEST(KvhfVerifier, FramesPastTheWalkAreRefused) {
  const Fixture v1 = fixture("v1");
  Verifier flat = fed(v1);
  LayerHeader extra = headers_of(v1)[0];
  extra.sequence = 2;
  extra.layer = 1;
  EXPECT_EQ(verdict(flat.check_next_header(extra)), "ok") << "the total bound refuses it";
  EXPECT_EQ(verdict(flat.add_plane(extra, v1.planes[0])),
            "validation:received payload exceeds its declared or configured total bound");

  const Fixture v2 = fixture("v2-windowed");
  Verifier table = fed(v2);
  EXPECT_EQ(verdict(table.add_plane(headers_of(v2)[0], v2.planes[0])),
            "validation:layer frame 12 is outside the declared layout table");
}

TEST(KvhfVerifier, FiniteGateLooksAtPreRopeKeysOnly) {
  const Fixture pre = fixture("prerope");
  const ValidatedBegin begin = validated(pre);
  const auto with_bits = [&](std::uint32_t sequence, std::uint32_t bits) {
    Bytes payload = pre.planes[sequence];
    store_le(payload, payload.size() - 4, bits);
    Verifier verifier(begin);
    if (sequence == 1) {
      EXPECT_TRUE(verifier.add_plane(headers_of(pre)[0], pre.planes[0]).has_value());
    }
    LayerHeader header = make_layer_header(begin, sequence, to_hex(sha256(payload)), DtypeTags::kOmitDefault);
    return verdict(verifier.add_plane(std::move(header), std::move(payload)));
  };
  const std::string refused = "validation:pre-RoPE Key plane contains a non-finite (NaN/Inf) f32 element";
  EXPECT_EQ(with_bits(0, 0x7fc0'0000U), refused);
  EXPECT_EQ(with_bits(0, 0x7f80'0000U), refused);
  EXPECT_EQ(with_bits(0, 0xff80'0000U), refused);
  EXPECT_EQ(with_bits(0, 0x7f80'0001U), refused) << "signalling";
  EXPECT_EQ(with_bits(0, 0x7f7f'ffffU), "ok");
  EXPECT_EQ(with_bits(1, 0x7c00'7c00U), "ok") << "values are f16 and never scanned";
  EXPECT_EQ(verdict(check_finite_f32(Bytes(6, 0))),
            "validation:pre-RoPE Key plane length 6 is not a multiple of the f32 element width");
}

TEST(KvhfVerifier, PairsAreAdjacentKeyThenValue) {
  const Fixture v2 = fixture("v2-windowed");
  const auto headers = headers_of(v2);
  const auto planes = [&] {
    std::vector<VerifiedPlane> out;
    Verifier verifier(validated(v2));
    for (std::size_t i = 0; i < 4; ++i) out.push_back(*verifier.add_plane(headers[i], v2.planes[i]));
    return out;
  };
  const std::string refused = "validation:verified layer pair is not one adjacent K-then-V pair";
  auto p = planes();
  EXPECT_EQ(verdict(VerifiedLayer::pair(std::move(p[0]), std::move(p[3]))), refused);
  p = planes();
  EXPECT_EQ(verdict(VerifiedLayer::pair(std::move(p[1]), std::move(p[0]))), refused);
  p = planes();
  EXPECT_EQ(verdict(VerifiedLayer::pair(std::move(p[0]), std::move(p[2]))), refused);
  p = planes();
  Fixture other = v2;
  other.begin.created_unix_ms = 101;
  Verifier another(validated(other));
  VerifiedPlane stranger = *another.add_plane(headers[0], v2.planes[0]);
  EXPECT_EQ(verdict(VerifiedLayer::pair(std::move(stranger), std::move(p[1]))), refused);
  auto fresh = planes();
  const auto good = VerifiedLayer::pair(std::move(fresh[2]), std::move(fresh[3]));
  ASSERT_TRUE(good.has_value());
  EXPECT_EQ(good->layer(), 1U);
  EXPECT_EQ(good->value()->header().role, Role::kValue);
  EXPECT_TRUE(std::ranges::equal(good->key().payload(), v2.planes[2]));

  p = planes();
  EXPECT_EQ(verdict(VerifiedLayer::single(std::move(p[0]))),
            "validation:verified single-role layer is not a key-role plane");
  const Fixture latent = fixture("v2-mla-latent");
  Verifier verifier(validated(latent));
  auto single = VerifiedLayer::single(*verifier.add_plane(headers_of(latent)[0], latent.planes[0]));
  ASSERT_TRUE(single.has_value());
  EXPECT_FALSE(single->value().has_value());
}

TEST(KvhfVerifier, PayloadCanBeTakenOver) {
  const Fixture v1 = fixture("v1");
  Verifier verifier(validated(v1));
  VerifiedPlane plane = *verifier.add_plane(headers_of(v1)[0], v1.planes[0]);
  EXPECT_EQ(std::move(plane).take_payload(), v1.planes[0]);
}

}  // namespace
}  // namespace kvpack::kvhf::kvhf_verifier_test
