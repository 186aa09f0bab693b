#include "kvpack/core/family.h"

#include <gtest/gtest.h>

#include <functional>

#include "cli/reference_fixtures.h"
#include "support/mutate.h"
#include "support/random_manifest.h"
#include "support/verdict.h"

namespace kvpack::family_test {
namespace {

using kvpack::testing::context_of;
using kvpack::testing::ManifestGenerator;
using kvpack::testing::verdict;
using kvpack::testing::with_appended;
using kvpack::testing::with_bit_flipped;
using kvpack::testing::with_bytes;
using kvpack::testing::with_le;

constexpr std::string_view kTruncated = "truncated:truncated canonical object";
// Offsets in the encoding of sample(): the first state's name ends at 120 + 6 + 1.
constexpr std::size_t kFirstState = 127;

/// States k and v of layer 0 and k of layer 1; v depends on k.
RepresentationFamily sample() {
  RepresentationFamily family = fixtures::family(Codec::kRaw);
  StaticState state = family.states[0];
  family.states.clear();
  for (const StateKey& key : {StateKey{0, "k"}, StateKey{0, "v"}, StateKey{1, "k"}}) {
    state.key = key;
    family.states.push_back(state);
  }
  family.states[1].dependencies = {{0, "k"}};
  return family;
}

Bytes sample_bytes() {
  return *encode_family(sample());
}

std::string decode(ByteSpan bytes) {
  return verdict(decode_family(bytes));
}

TEST(Family, EncodesThePublishedBytes) {
  const std::string hex =
      "4b5646414d31000001000000020202020202020202020202020202020202020202020202020202020202020201000000"
      "000100000303030303030303030303030303030303030303030303030303030303030303040404040404040404040404"
      "040404040404040404040404040404040404040401000000000000000b00617474656e74696f6e2e6b01000100010001"
      "00010001000000040000000000000002000000000000000004000000000000000000";
  EXPECT_EQ(to_hex(*encode_family(fixtures::family(Codec::kRaw))), hex);
  EXPECT_EQ(*decode_family(*from_hex(hex)), fixtures::family(Codec::kRaw));
}

TEST(Family, RoundTripsEveryEnumValueAndRank) {
  for (std::uint16_t dtype = 1; dtype <= 9; ++dtype)
    for (std::uint16_t layout = 1; layout <= 2; ++layout)
      for (std::uint16_t rule = 1; rule <= 3; ++rule)
        for (std::uint8_t rank = 1; rank <= 8; ++rank) {
          RepresentationFamily family = sample();
          StaticState& state = family.states[2];
          state.dtype = static_cast<DType>(dtype);
          state.codec = static_cast<Codec>(1 + dtype % 2);
          state.layout = static_cast<Layout>(layout);
          state.token_axis_rule = static_cast<TokenAxisRule>(rule);
          state.dimensions.assign(rank, 2);
          family.mode = static_cast<RepresentationMode>(1 + rank % 2);
          const Bytes bytes = *encode_family(family);
          EXPECT_EQ(*decode_family(bytes), family);
        }
}

TEST(Family, EveryTruncationIsTruncated) {
  const Bytes bytes = sample_bytes();
  for (std::size_t n = 0; n < bytes.size(); ++n) EXPECT_EQ(decode(ByteSpan(bytes).first(n)), kTruncated) << n;
}

TEST(Family, EveryBitFlipIsRefusedOrAnotherFamily) {
  const Bytes bytes = sample_bytes();
  for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    const Bytes flipped = with_bit_flipped(bytes, bit);
    const auto decoded = decode_family(flipped);
    if (!decoded.has_value()) continue;
    EXPECT_NE(*decoded, sample()) << bit;
    EXPECT_EQ(*encode_family(*decoded), flipped) << bit;
  }
}

TEST(Family, PrefixIsCheckedInOrder) {
  const Bytes bytes = sample_bytes();
  EXPECT_EQ(decode(with_bit_flipped(bytes, 0)), "bad_magic:invalid canonical object magic");
  EXPECT_EQ(decode(with_le<std::uint16_t>(bytes, 8, 2)), "bad_magic:unsupported family version");
  EXPECT_EQ(decode(with_le<std::uint16_t>(bytes, 8, 0)), "bad_magic:unsupported family version");
  EXPECT_EQ(decode(with_le<std::uint16_t>(bytes, 10, 1)), "reserved:family reserved field is nonzero");
  EXPECT_EQ(decode(with_le<std::uint16_t>(bytes, 46, 1)), "reserved:family reserved field is nonzero");
  EXPECT_EQ(decode(with_appended(bytes, 0)), "reserved:trailing canonical bytes");
  EXPECT_EQ(decode(with_le<std::uint16_t>(with_bit_flipped(bytes, 7), 8, 2)),
            "bad_magic:invalid canonical object magic");
  EXPECT_EQ(decode(with_le<std::uint32_t>(bytes, 8, 0x00010002)), "bad_magic:unsupported family version");
  EXPECT_EQ(decode(ByteSpan(with_le<std::uint16_t>(bytes, 8, 2)).first(9)), kTruncated);
  EXPECT_EQ(decode(ByteSpan(with_le<std::uint16_t>(bytes, 8, 2)).first(10)),
            "bad_magic:unsupported family version");
}

TEST(Family, FieldsAreCheckedAsTheyAreRead) {
  const Bytes bytes = sample_bytes();
  const auto at = [&](std::size_t offset, std::uint16_t value) {
    return decode(with_le(bytes, kFirstState + offset, value));
  };
  EXPECT_EQ(decode(with_le<std::uint16_t>(bytes, 44, 3)), "unknown_enum:unknown representation mode 3");
  EXPECT_EQ(at(0, 2), "unknown_enum:unknown cache kind 2");
  EXPECT_EQ(at(2, 10), "unknown_enum:unknown dtype 10");
  EXPECT_EQ(at(2, 0), "unknown_enum:unknown dtype 0");
  EXPECT_EQ(at(4, 3), "unknown_enum:unknown codec 3");
  EXPECT_EQ(at(8, 300), "unknown_enum:unknown layout 300");
  EXPECT_EQ(at(10, 4), "unknown_enum:unknown token axis rule 4");
  EXPECT_EQ(at(12, 0x0100), "reserved:family state reserved byte is nonzero");
  EXPECT_EQ(decode(with_le<std::uint8_t>(bytes, kFirstState + 22, 0)),
            "bounds:family state rank is outside 1..=8");
  EXPECT_EQ(decode(with_le<std::uint8_t>(bytes, kFirstState + 22, 9)),
            "bounds:family state rank is outside 1..=8");
  EXPECT_EQ(at(39, 65), "bounds:too many state dependencies");
  EXPECT_EQ(decode(with_le<std::uint32_t>(bytes, 116, 0)), "bounds:family state count is outside bounds");
  EXPECT_EQ(decode(with_le<std::uint32_t>(bytes, 116, 65537)), "bounds:family state count is outside bounds");
  EXPECT_EQ(decode(with_le<std::uint32_t>(bytes, 116, 0xffffffff)),
            "bounds:family state count is outside bounds");
  EXPECT_EQ(decode(with_le<std::uint32_t>(bytes, 116, 65536)), kTruncated);
  EXPECT_EQ(decode(with_le<std::uint32_t>(bytes, 116, 2)), "reserved:trailing canonical bytes");
  EXPECT_EQ(decode(with_bytes(bytes, 126, Bytes{0xff})), "semantics:state name is not UTF-8");
}

TEST(Family, AnUnknownEnumComesBeforeAShortReadBehindIt) {
  const Bytes bytes = with_le<std::uint16_t>(sample_bytes(), kFirstState + 2, 99);
  EXPECT_EQ(decode(ByteSpan(bytes).first(kFirstState + 4)), "unknown_enum:unknown dtype 99");
  EXPECT_EQ(decode(ByteSpan(bytes).first(kFirstState + 3)), kTruncated);
}

TEST(Family, MeaningIsNotJudgedByTheDecoder) {
  RepresentationFamily family = sample();
  family.engine_cache_abi = {};
  family.page_size_tokens = 0;
  family.states[0].key.name = "";
  family.states[0].codec_version = 77;
  family.states[1].token_axis = 200;
  family.states[2].dimensions = {0, 0, 0};
  family.states[2].dependencies = {{5, std::string("a\0b", 3)}};
  EXPECT_EQ(*decode_family(*encode_family(family)), family);
}

TEST(Family, WhatDoesNotFitIsNotEncoded) {
  RepresentationFamily family = sample();
  family.states.clear();
  EXPECT_EQ(verdict(encode_family(family)), "bounds:family state count is outside bounds");
  family = sample();
  family.states.resize(kMaxStates + 1);
  EXPECT_EQ(verdict(encode_family(family)), "bounds:family state count is outside bounds");
  family = sample();
  family.states[1].key.name.assign(65536, 'x');
  EXPECT_EQ(verdict(encode_family(family)), "bounds:string is too long");
  family = sample();
  family.states[1].dependencies = {{0, std::string(65536, 'x')}};
  EXPECT_EQ(verdict(encode_family(family)), "bounds:string is too long");
  family = sample();
  family.states[0].dimensions.resize(256);
  EXPECT_EQ(verdict(encode_family(family)), "bounds:family state rank exceeds u8");
  family = sample();
  family.states[0].dependencies.resize(65536);
  EXPECT_EQ(verdict(encode_family(family)), "bounds:too many state dependencies");
  EXPECT_EQ(verdict(IdentifiedFamily::create(family)), "bounds:too many state dependencies");
}

TEST(Family, WhatTheFieldsHoldButTheFormatDoesNotIsRefusedByTheDecoder) {
  RepresentationFamily family = sample();
  family.states[0].dimensions.assign(9, 1);
  EXPECT_EQ(decode(*encode_family(family)), "bounds:family state rank is outside 1..=8");
  family = sample();
  family.states[2].dependencies.assign(65, {0, "k"});
  EXPECT_EQ(decode(*encode_family(family)), "bounds:too many state dependencies");
}

TEST(Family, StatesAreFoundByTheirWholeKey) {
  const RepresentationFamily family = sample();
  for (const StaticState& state : family.states) EXPECT_EQ(find_state(family, state.key), &state);
  for (const StateKey& absent : {StateKey{0, ""}, StateKey{0, "kk"}, StateKey{1, "v"}, StateKey{2, "k"}})
    EXPECT_EQ(find_state(family, absent), nullptr);
}

TEST(Family, IdIsComputedOnceOverTheObject) {
  const IdentifiedFamily family = *IdentifiedFamily::create(sample());
  EXPECT_EQ(family.family(), sample());
  EXPECT_EQ(family.id(), (Id32{sha256({with_nul("kvpack/v1/representation-family"), sample_bytes()})}));
}

// ---- rules F1 to F17 ----

struct Fault {
  std::string rule;
  std::string verdict;
  std::function<void(RepresentationFamily&)> apply;
};

// One way at least to break each rule. Each fault touches fields of its own, or fields whose later fault does
// not mend it, so that any two can be applied together.
std::vector<Fault> faults() {
  const std::string axis = "semantics:family token axis is outside its rank";
  const std::string one = "semantics:family must have exactly one declared token dimension";
  return {
      {"F1 abi", "semantics:representation family contains a zero identity",
       [](auto& f) { f.engine_cache_abi = {}; }},
      {"F1 topology", "semantics:representation family contains a zero identity",
       [](auto& f) { f.topology = {}; }},
      {"F1 shards", "semantics:representation family contains a zero identity",
       [](auto& f) { f.shard_map = {}; }},
      {"F2", "semantics:representation family page size must be nonzero",
       [](auto& f) { f.page_size_tokens = 0; }},
      {"F4 long", "semantics:invalid state name", [](auto& f) { f.states[0].key.name.assign(256, 'a'); }},
      {"F6", "codec:unsupported family codec version", [](auto& f) { f.states[0].codec_version = 2; }},
      {"F7", axis, [](auto& f) { f.states[0].token_axis = 2; }},
      {"F12", "semantics:contiguous family cannot require strided token gathering",
       [](auto& f) { f.states[0].token_axis_rule = TokenAxisRule::kGather; }},
      {"F5", "semantics:family states are not unique canonical order",
       [](auto& f) { f.states[1].key.name = std::string("a"); }},
      {"F8", one, [](auto& f) { f.states[1].dimensions[0] = 6; }},
      {"F10", "semantics:family elements-per-token is not canonical",
       [](auto& f) { f.states[1].elements_per_token = 5; }},
      {"F4 nul", "semantics:invalid state name",
       [](auto& f) { f.states[2].key.name = std::string("a\0b", 3); }},
      {"F9", "bounds:family elements-per-token overflows u64",
       [](auto& f) {
         f.states[2].dimensions = {0, 1ULL << 32, 1ULL << 32};
       }},
      {"F14", "graph:state depends on itself", [](auto& f) { f.states[0].dependencies = {f.states[0].key}; }},
      {"F15", "graph:state dependency is missing",
       [](auto& f) {
         f.states[1].dependencies = {{9, "k"}};
       }},
      {"F16", "graph:state dependencies are not unique canonical order",
       [](auto& f) {
         f.states[2].dependencies = {{0, "v"}, {0, "v"}};
       }},
  };
}

std::string judge(const std::function<void(RepresentationFamily&)>& edit) {
  RepresentationFamily family = sample();
  edit(family);
  return verdict(validate_family(family));
}

TEST(FamilyRules, TheSampleIsValid) {
  EXPECT_EQ(verdict(validate_family(sample())), "ok");
  EXPECT_EQ(verdict(validate_family(fixtures::family(Codec::kLossless))), "ok");
}

TEST(FamilyRules, EachFaultGetsItsVerdict) {
  for (const Fault& fault : faults()) EXPECT_EQ(judge(fault.apply), fault.verdict) << fault.rule;
}

TEST(FamilyRules, OfTwoFaultsTheFirstInOrderWins) {
  const auto all = faults();
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::size_t j = i + 1; j < all.size(); ++j) {
      const auto both = [&](RepresentationFamily& family) {
        all[j].apply(family);
        all[i].apply(family);
      };
      EXPECT_EQ(judge(both), all[i].verdict) << all[i].rule << " before " << all[j].rule;
    }
  }
}

TEST(FamilyRules, StateCountIsBounded) {
  const std::string text = "bounds:family state count is outside bounds";
  EXPECT_EQ(judge([](auto& f) { f.states.clear(); }), text);
  EXPECT_EQ(judge([](auto& f) { f.states.resize(kMaxStates + 1); }), text);
  EXPECT_EQ(judge([](auto& f) {
              f.states.clear();
              f.page_size_tokens = 0;
            }),
            "semantics:representation family page size must be nonzero");
}

TEST(FamilyRules, NamesHaveOneTo255BytesWithoutNul) {
  EXPECT_EQ(judge([](auto& f) { f.states[0].key.name = ""; }), "semantics:invalid state name");
  EXPECT_EQ(judge([](auto& f) { f.states[2].key.name.assign(255, 'x'); }), "ok");
  EXPECT_EQ(judge([](auto& f) { f.states[2].key.name.assign(256, 'x'); }), "semantics:invalid state name");
  EXPECT_EQ(judge([](auto& f) { f.states[2].key.name = std::string(1, '\0'); }),
            "semantics:invalid state name");
}

TEST(FamilyRules, StatesAscendWithoutRepeats) {
  const std::string text = "semantics:family states are not unique canonical order";
  EXPECT_EQ(judge([](auto& f) { f.states[1].key = f.states[0].key; }), text);
  EXPECT_EQ(judge([](auto& f) { std::swap(f.states[1], f.states[2]); }), text);
}

TEST(FamilyRules, TokenAxisAndRank) {
  const std::string axis = "semantics:family token axis is outside its rank";
  const std::string one = "semantics:family must have exactly one declared token dimension";
  const auto shape = [](std::vector<std::uint64_t> dimensions, std::uint8_t token_axis,
                        std::uint64_t per_token) {
    return judge([&](RepresentationFamily& f) {
      f.states[0].dimensions = std::move(dimensions);
      f.states[0].token_axis = token_axis;
      f.states[0].elements_per_token = per_token;
    });
  };
  EXPECT_EQ(shape({0}, 0, 1), "ok");  // one element per token
  EXPECT_EQ(shape({3, 0, 5}, 1, 15), "ok");
  EXPECT_EQ(shape({2, 2, 2, 2, 2, 2, 2, 0}, 7, 128), "ok");
  EXPECT_EQ(shape({}, 0, 1), axis);
  EXPECT_EQ(shape({2, 2, 2, 2, 2, 2, 2, 2, 0}, 8, 256), axis);
  EXPECT_EQ(shape({0, 4}, 2, 4), axis);
  EXPECT_EQ(shape({0, 4}, 255, 4), axis);
  EXPECT_EQ(shape({0, 4}, 1, 4), one);
  EXPECT_EQ(shape({0, 0}, 0, 1), one);
  EXPECT_EQ(shape({6, 4}, 0, 24), one);
  EXPECT_EQ(shape({0, 4}, 0, 0), "semantics:family elements-per-token is not canonical");
  EXPECT_EQ(shape({0, 1ULL << 63, 2}, 0, 0), "bounds:family elements-per-token overflows u64");
  EXPECT_EQ(shape({0, ~0ULL}, 0, ~0ULL), "ok");
}

TEST(FamilyRules, PortableMeansContiguousDirectOrTailWindow) {
  const std::string portable = "semantics:portable family requires contiguous direct token streams";
  const auto of = [](RepresentationMode mode, Layout layout, TokenAxisRule rule) {
    return judge([&](RepresentationFamily& f) {
      f.mode = mode;
      f.states[1].layout = layout;
      f.states[1].token_axis_rule = rule;
    });
  };
  using enum Layout;
  using enum TokenAxisRule;
  EXPECT_EQ(of(RepresentationMode::kPortable, kContiguous, kDirect), "ok");
  EXPECT_EQ(of(RepresentationMode::kPortable, kContiguous, kTailWindow), "ok");
  EXPECT_EQ(of(RepresentationMode::kPortable, kContiguous, kGather),
            "semantics:contiguous family cannot require strided token gathering");
  for (const TokenAxisRule rule : {kDirect, kGather, kTailWindow}) {
    EXPECT_EQ(of(RepresentationMode::kPortable, kStrided, rule), portable);
    EXPECT_EQ(of(RepresentationMode::kNative, kStrided, rule), "ok");
  }
  EXPECT_EQ(of(RepresentationMode::kNative, kContiguous, kTailWindow), "ok");
}

TEST(FamilyRules, DependenciesAreKnownAscendingAndAcyclic) {
  const StateKey k{0, "k"};
  const StateKey v{0, "v"};
  const StateKey z{1, "k"};
  const auto depends = [](std::size_t state, std::vector<StateKey> on) {
    return judge([&](RepresentationFamily& f) { f.states[state].dependencies = std::move(on); });
  };
  EXPECT_EQ(depends(2, {k, v}), "ok");
  EXPECT_EQ(depends(1, {z}), "ok");  // forward
  EXPECT_EQ(depends(2, {v, k}), "graph:state dependencies are not unique canonical order");
  EXPECT_EQ(depends(2, {k, k}), "graph:state dependencies are not unique canonical order");
  EXPECT_EQ(depends(0, {v}), "graph:state dependency cycle");
  // Per dependency: itself, then missing, then order.
  EXPECT_EQ(depends(2, {v, {9, "k"}}), "graph:state dependency is missing");
  EXPECT_EQ(depends(2, {v, k, {9, "k"}}), "graph:state dependencies are not unique canonical order");
  EXPECT_EQ(depends(2, {{9, "k"}, z}), "graph:state dependency is missing");
}

TEST(FamilyRules, DependenciesAreLookedAtAfterAllStates) {
  EXPECT_EQ(judge([](auto& f) {
              f.states[0].dependencies = {{9, "k"}};
              f.states[2].codec_version = 2;
            }),
            "codec:unsupported family codec version");
}

RepresentationFamily chain_of(std::uint32_t count) {
  RepresentationFamily family = fixtures::family(Codec::kRaw);
  const StaticState state = family.states[0];
  family.states.assign(count, state);
  for (std::uint32_t i = 0; i < count; ++i) {
    family.states[i].key = {i, "k"};
    if (i + 1 < count) family.states[i].dependencies = {{i + 1, "k"}};
  }
  return family;
}

TEST(FamilyRules, ThePathMayBeAsLongAsTheFamily) {
  RepresentationFamily family = chain_of(kMaxStates);
  EXPECT_EQ(verdict(validate_family(family)), "ok");
  family.states.back().dependencies = {family.states.front().key};
  EXPECT_EQ(verdict(validate_family(family)), "graph:state dependency cycle");
  family = chain_of(kMaxStates);
  EXPECT_EQ(*decode_family(*encode_family(family)), family);
}

TEST(FamilyRules, ErrorsNameTheState) {
  RepresentationFamily family = sample();
  family.states[1].codec_version = 2;
  const auto status = validate_family(family);
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(context_of(status.error(), "layer"), "0");
  EXPECT_EQ(context_of(status.error(), "state"), "v");
}

TEST(FamilyProperties, RandomFamiliesAreValidAndRoundTrip) {
  for (std::uint64_t seed = 1; seed <= 500; ++seed) {
    const RepresentationFamily family = ManifestGenerator(seed).family();
    ASSERT_EQ(verdict(validate_family(family)), "ok") << seed;
    const Bytes bytes = *encode_family(family);
    ASSERT_EQ(*decode_family(bytes), family) << seed;
  }
}

// Random damage never crashes, never grows memory by a number from outside, and what decodes is canonical.
TEST(FamilyProperties, DamagedFamiliesAreRefusedOrCanonical) {
  for (std::uint64_t seed = 1; seed <= 2000; ++seed) {
    ManifestGenerator random(seed);
    Bytes bytes = *encode_family(random.family());
    for (std::uint64_t n = random.between(1, 4); n > 0; --n)
      bytes[random.below(bytes.size())] = static_cast<std::uint8_t>(random.below(256));
    if (random.one_in(4)) bytes.resize(random.below(bytes.size()));
    const auto decoded = decode_family(bytes);
    if (!decoded.has_value()) continue;
    ASSERT_EQ(*encode_family(*decoded), bytes) << seed;
    (void)validate_family(*decoded);
  }
}

}  // namespace
}  // namespace kvpack::family_test
