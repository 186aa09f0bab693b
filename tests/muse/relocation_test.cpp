#include "kvpack/muse/relocation.h"

#include <gtest/gtest.h>

#include <random>

#include "kvpack/base/hex.h"
#include "muse/muse_vectors.h"

namespace kvpack::muse {
namespace relocation_test {

using muse::testing::vector_at;
using muse::testing::vector_text;

constexpr const char* kWidth = "expectation:relocate: invalid rotary width / kv_heads for delta-rotation";
constexpr const char* kBase =
    "expectation:relocate: delta-rotation requires freq_base > 1.0 (a NoPE class must dispatch through the "
    "RopeConvention::None no-op path, never here)";
constexpr const char* kLength =
    "expectation:relocate: plane byte length is not a whole number of tokens for this class's geometry";

// One token of two heads: element i is ((i * 37) mod 101 - 50) / 16.
Bytes known_token() {
  Bytes plane(kRowBytes);
  for (std::size_t i = 0; i < kRowElements; ++i) {
    const int element = static_cast<int>(i * 37 % 101) - 50;
    store_le<std::uint16_t>(plane, 2 * i, float_to_half(static_cast<float>(element) / 16));
  }
  return plane;
}

Bytes random_plane(std::size_t tokens, std::uint64_t seed = 1) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<float> values(-4, 4);
  Bytes plane(tokens * kRowBytes);
  for (std::size_t at = 0; at < plane.size(); at += 2)
    store_le<std::uint16_t>(plane, at, float_to_half(values(random)));
  return plane;
}

float element(const Bytes& plane, std::size_t i) {
  return half_to_float(load_le<std::uint16_t>(plane, 2 * i));
}

std::string verdict(const Result<RelocationAction>& result) {
  return result.has_value() ? "ok" : result.error().verdict();
}

TEST(MuseRelocation, MatchesTheKnownRotations) {
  const Bytes token = known_token();
  ASSERT_EQ(to_hex(sha256(token)), vector_text({"relocation_muse_swa_k", "input_sha256"}));
  for (const std::int64_t delta : {1, -1, 512, -2048, 131'072}) {
    const std::string name = "delta_" + std::to_string(delta);
    Bytes plane = token;
    const auto action = relocate_plane(kMuseSliding, "attn.k", plane, delta);
    ASSERT_EQ(verdict(action), "ok");
    EXPECT_EQ(*action, RelocationAction::kDeltaRotated);
    EXPECT_EQ(to_hex(ByteSpan(plane).first(16)),
              vector_text({"relocation_muse_swa_k", name, "first_16_bytes"}));
    EXPECT_EQ(to_hex(ByteSpan(plane).last(16)),
              vector_text({"relocation_muse_swa_k", name, "last_16_bytes"}));
#ifdef __GLIBC__  // Another mathematical library may round a sine differently.
    EXPECT_EQ(to_hex(sha256(plane)), vector_text({"relocation_muse_swa_k", name, "sha256"})) << name;
#endif
    Bytes elsewhere(plane.size());
    ASSERT_EQ(verdict(relocate_plane_into(kMuseSliding, "attn.k", token, elsewhere, delta)), "ok");
    EXPECT_EQ(elsewhere, plane) << name;
  }
}

TEST(MuseRelocation, RoundsToHalfAsTheFormatSays) {
  const JsonObject& answers = *vector_at({"f32_to_f16"}).as_object();
  ASSERT_GE(answers.size(), 14U);
  for (const JsonMember& answer : answers) {
    const auto single = static_cast<std::uint32_t>(std::stoul(answer.key, nullptr, 16));
    Bytes stored(2);
    detail::store_half(stored, 0, std::bit_cast<float>(single));
    EXPECT_EQ(load_le<std::uint16_t>(stored, 0), std::stoul(*answer.value.as_string(), nullptr, 16))
        << answer.key;
  }
}

TEST(MuseRelocation, WhatDoesNotRotateIsNotTouched) {
  const Bytes before = random_plane(3);
  const auto action_of = [&](const RotaryClass& rotary, std::string_view state, std::int64_t delta) {
    Bytes plane = before;
    Bytes elsewhere(plane.size());
    const auto in_place = relocate_plane(rotary, state, plane, delta);
    const auto into = relocate_plane_into(rotary, state, before, elsewhere, delta);
    EXPECT_EQ(plane, before);
    EXPECT_EQ(elsewhere, before);
    EXPECT_EQ(*in_place, *into);
    return *in_place;
  };
  using enum RelocationAction;
  EXPECT_EQ(action_of(kMuseNoPe, "attn.k", 512), kMemcpyNoOp);
  EXPECT_EQ(action_of(kMuseNoPe, "attn.k", 0), kMemcpyNoOp);
  EXPECT_EQ(action_of(kMuseNoPe, "attn.v", -7), kMemcpyNoOp);
  EXPECT_EQ(action_of(kMuseSliding, "attn.v", 512), kMemcpyNoOp);
  EXPECT_EQ(action_of(kMuseSliding, "attn.kv_latent", 512), kMemcpyNoOp);
  EXPECT_EQ(action_of(kMuseSliding, "attn.k", 0), kIdentityDelta);
}

TEST(MuseRelocation, NothingIsAskedOfAPlaneThatDoesNotRotate) {
  Bytes odd(7, 3);
  EXPECT_EQ(verdict(relocate_plane(kMuseNoPe, "attn.k", odd, 9)), "ok");
  EXPECT_EQ(verdict(relocate_plane(RotaryClass{RotaryPairing::kNeox}, "attn.k", odd, 0)), "ok");
}

TEST(MuseRelocation, RefusalsInOrderChangeNothing) {
  const Bytes before = random_plane(1);
  const auto refused = [&](RotaryClass rotary, std::size_t bytes = kRowBytes) {
    Bytes plane(before.begin(), before.begin() + static_cast<std::ptrdiff_t>(bytes));
    const Bytes unchanged = plane;
    Bytes elsewhere(plane.size(), 0xee);
    const std::string said = verdict(relocate_plane(rotary, "attn.k", plane, 5));
    EXPECT_EQ(plane, unchanged);
    EXPECT_EQ(verdict(relocate_plane_into(rotary, "attn.k", before, elsewhere, 5)),
              bytes == kRowBytes ? said : "state:relocate: the target has another length");
    EXPECT_EQ(elsewhere, Bytes(plane.size(), 0xee));
    return said;
  };
  RotaryClass rotary = kMuseSliding;
  EXPECT_EQ(refused(rotary, 510), kLength);
  EXPECT_EQ(refused(rotary, 2), kLength);
  for (const double base : {1.0, 0.0, -2.0, std::numeric_limits<double>::quiet_NaN()}) {
    rotary.freq_base = base;
    EXPECT_EQ(refused(rotary, 510), kBase) << base;
  }
  for (const std::uint32_t dims : {0U, 63U, 130U}) {
    rotary.dims = dims;
    EXPECT_EQ(refused(rotary, 510), kWidth) << dims;
  }
  rotary = kMuseSliding;
  rotary.kv_heads = 0;
  EXPECT_EQ(refused(rotary), kWidth);
  rotary.kv_heads = rotary.head_dim = 0xffff'fffe;
  EXPECT_EQ(refused(rotary), kLength);
}

TEST(MuseRelocation, AnEmptyPlaneHasNoTokens) {
  EXPECT_EQ(verdict(relocate_plane(kMuseSliding, "attn.k", {}, 5)), "ok");
}

TEST(MuseRelocation, PairsAreThoseOfTheConvention) {
  // base^(-2i/4) with base 4 gives 1 and 1/2: two pairs that turn differently.
  RotaryClass rotary{RotaryPairing::kInterleaved, 4.0, 4, 1, 6};
  const float values[] = {1, 2, 3, 4, 5, 6};
  const auto rotated = [&](RotaryPairing pairing) {
    Bytes plane(12);
    for (std::size_t i = 0; i < 6; ++i) store_le<std::uint16_t>(plane, 2 * i, float_to_half(values[i]));
    rotary.pairing = pairing;
    Bytes elsewhere(12);
    EXPECT_EQ(verdict(relocate_plane_into(rotary, "attn.k", plane, elsewhere, 1)), "ok");
    EXPECT_EQ(verdict(relocate_plane(rotary, "attn.k", plane, 1)), "ok");
    EXPECT_EQ(plane, elsewhere);
    return plane;
  };
  const double c0 = std::cos(1.0), s0 = std::sin(1.0), c1 = std::cos(0.5), s1 = std::sin(0.5);
  const Bytes adjacent = rotated(RotaryPairing::kInterleaved);
  EXPECT_NEAR(element(adjacent, 0), 1 * c0 - 2 * s0, 1e-3);
  EXPECT_NEAR(element(adjacent, 1), 1 * s0 + 2 * c0, 2e-3);
  EXPECT_NEAR(element(adjacent, 2), 3 * c1 - 4 * s1, 1e-3);
  EXPECT_NEAR(element(adjacent, 3), 3 * s1 + 4 * c1, 3e-3);
  const Bytes halves = rotated(RotaryPairing::kNeox);
  EXPECT_NEAR(element(halves, 0), 1 * c0 - 3 * s0, 1e-3);
  EXPECT_NEAR(element(halves, 2), 1 * s0 + 3 * c0, 2e-3);
  EXPECT_NEAR(element(halves, 1), 2 * c1 - 4 * s1, 1e-3);
  EXPECT_NEAR(element(halves, 3), 2 * s1 + 4 * c1, 3e-3);
  for (const Bytes& plane : {adjacent, halves}) {
    EXPECT_EQ(element(plane, 4), 5.0F);
    EXPECT_EQ(element(plane, 5), 6.0F);
  }
}

TEST(MuseRelocation, StepsComposeWithinTheirRounding) {
  const Bytes start = random_plane(64);
  Bytes twice = start, once = start, back = start;
  for (const std::int64_t delta : {300, 212})
    ASSERT_EQ(verdict(relocate_plane(kMuseSliding, "attn.k", twice, delta)), "ok");
  ASSERT_EQ(verdict(relocate_plane(kMuseSliding, "attn.k", once, 512)), "ok");
  for (const std::int64_t delta : {900, -900})
    ASSERT_EQ(verdict(relocate_plane(kMuseSliding, "attn.k", back, delta)), "ok");
  for (std::size_t i = 0; i < start.size() / 2; ++i) {
    ASSERT_NEAR(element(twice, i), element(once, i), 0.01) << i;
    ASSERT_NEAR(element(back, i), element(start, i), 0.02) << i;
  }
  EXPECT_NE(once, start);
}

class Session : public ::testing::Test {
 protected:
  Session() {
    for (std::uint32_t layer = 0; layer < kLayers; ++layer)
      for (const char* name : {"attn.k", "attn.v"}) {
        Bytes& plane = memory_[{layer, name}] = random_plane(2, layer);
        planes_[{layer, name}] = plane;
      }
  }
  std::map<StateKey, Bytes> memory_;
  std::map<StateKey, MutableByteSpan> planes_;
};

TEST_F(Session, SixtyFivePlanesStayAndThirtyNineRotate) {
  const auto before = memory_;
  const auto report = relocate_session(planes_, 512);
  ASSERT_TRUE(report.has_value());
  EXPECT_EQ(*report, (RelocationReport{65, 39, 0, true}));
  for (const auto& [key, plane] : memory_)
    EXPECT_EQ(plane != before.at(key), is_sliding(key.layer) && key.name == "attn.k")
        << key.layer << key.name;
}

TEST_F(Session, NothingMovesByNothing) {
  const auto before = memory_;
  const auto report = relocate_session(planes_, 0);
  ASSERT_TRUE(report.has_value());
  EXPECT_EQ(*report, (RelocationReport{65, 0, 39, true}));
  EXPECT_EQ(memory_, before);
}

TEST_F(Session, AMissingPlaneIsFoundBeforeAnyIsRotated) {
  const auto before = memory_;
  for (const StateKey& key : {StateKey{51, "attn.v"}, StateKey{0, "attn.k"}}) {
    auto planes = planes_;
    planes.erase(key);
    const auto report = relocate_session(planes, 512);
    ASSERT_FALSE(report.has_value());
    EXPECT_EQ(report.error().verdict(), "not_found:relocate: a plane of the layout is missing");
    EXPECT_EQ(report.error().context[0].value, std::to_string(key.layer));
  }
  EXPECT_EQ(relocate_session({}, 512).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(memory_, before);
}

TEST_F(Session, ATornPlaneIsFoundBeforeAnyIsRotated) {
  const auto before = memory_;
  planes_[{50, "attn.k"}] = planes_[{50, "attn.k"}].first(511);
  const auto report = relocate_session(planes_, 512);
  ASSERT_FALSE(report.has_value());
  EXPECT_EQ(report.error().verdict(), kLength);
  EXPECT_EQ(memory_, before);
}

TEST_F(Session, TheReportSeesANoPePlaneThatARotationReached) {
  planes_[{0, "attn.k"}] = memory_[{3, "attn.v"}];
  const auto report = relocate_session(planes_, 512);
  ASSERT_TRUE(report.has_value());
  EXPECT_FALSE(report->nope_bytes_identical);
}

}  // namespace relocation_test
}  // namespace kvpack::muse
