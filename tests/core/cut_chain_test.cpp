#include "kvpack/core/cut_chain.h"

#include <gtest/gtest.h>

#include <numeric>

#include "support/verdict.h"

namespace kvpack::cut_chain_test {
namespace {

using testing::verdict;

const HmacKey& key() {
  static const HmacKey kKey((ByteSpan(Bytes(32, 0x07))));
  return kKey;
}
const Id32 kNamespace = Id32::filled(0x03);

std::vector<std::uint32_t> tokens_up_to(std::size_t n) {
  std::vector<std::uint32_t> tokens(n);
  std::iota(tokens.begin(), tokens.end(), 0U);
  return tokens;
}

CutChain chain(CutStride stride) {
  return CutChain(key(), kNamespace, stride);
}

// The definition, written apart from the deriver.
Id32 step(const Id32& tip, std::span<const std::uint32_t> tokens) {
  Bytes bytes;
  for (const std::uint32_t t : tokens)
    for (const std::uint8_t b : le_bytes(t)) bytes.push_back(b);
  return Id32{hmac_sha256(key(), {with_nul("kvpack/v1/cut-chain"), tip, bytes})};
}

TEST(CutChain, MatchesTheGoldenTips) {
  auto deriver = chain(*CutStride::flat(256));
  EXPECT_EQ(deriver.tip(), step(kNamespace, {}));
  const auto cuts = deriver.push(tokens_up_to(1024));
  ASSERT_TRUE(cuts.has_value());
  ASSERT_EQ(cuts->size(), 4U);
  EXPECT_EQ((*cuts)[0].hex(), "9719e6c4c15299bcd372bbc82fa7bd66da1ce6eff0d9e560f88ee950f67a4bdf");
  EXPECT_EQ((*cuts)[1].hex(), "01f3e699e6163a5476de16c269e4b42e9101fb16278fe8db9857b3e8d00a07ca");
  EXPECT_EQ((*cuts)[2].hex(), "4fed72eb6d5348b472f4c4e9ea2a046d4a7e3036cab6f4b629a68eaa7deed563");
  EXPECT_EQ((*cuts)[3].hex(), "074af1e1afbc34306fed857383ce96b331d042f270d176d791b5c3bd456cf05d");
  EXPECT_EQ(deriver.tip(), (*cuts)[3]);
  EXPECT_EQ(deriver.cut_count(), 4U);
}

TEST(CutChain, SplittingTheTokensOverCallsChangesNothing) {
  const auto tokens = tokens_up_to(1000);
  const auto whole = chain(*CutStride::flat(256)).push(tokens);
  for (const std::size_t piece : std::initializer_list<std::size_t>{1, 3, 255, 256, 257, 999}) {
    auto deriver = chain(*CutStride::flat(256));
    std::vector<Id32> cuts;
    for (std::size_t at = 0; at < tokens.size(); at += piece) {
      const auto some = deriver.push(std::span(tokens).subspan(at, std::min(piece, tokens.size() - at)));
      ASSERT_TRUE(some.has_value());
      cuts.insert(cuts.end(), some->begin(), some->end());
    }
    EXPECT_EQ(cuts, *whole) << piece;
  }
}

TEST(CutChain, APartialCutIsCarriedAndNeverEmitted) {
  auto deriver = chain(*CutStride::flat(4));
  EXPECT_TRUE(deriver.push(tokens_up_to(3))->empty());
  EXPECT_TRUE(deriver.push({})->empty());
  EXPECT_EQ(deriver.tip(), step(kNamespace, {}));
  const std::vector<std::uint32_t> last{3};
  EXPECT_EQ(*deriver.push(last), std::vector<Id32>{step(step(kNamespace, {}), tokens_up_to(4))});
}

TEST(CutChain, TwoTierStrideDependsOnWhereACutStarts) {
  const auto stride = CutStride::two_tier(8, 2, 4);
  ASSERT_TRUE(stride.has_value());
  EXPECT_EQ(stride->at(0), 2U);
  EXPECT_EQ(stride->at(7), 2U);
  EXPECT_EQ(stride->at(8), 4U);
  const auto tokens = tokens_up_to(17);
  std::vector<Id32> expected;
  Id32 tip = step(kNamespace, {});
  std::size_t at = 0;
  for (const std::size_t length : std::initializer_list<std::size_t>{2, 2, 2, 2, 4, 4}) {
    tip = step(tip, std::span(tokens).subspan(at, length));
    expected.push_back(tip);
    at += length;
  }
  EXPECT_EQ(*chain(*stride).push(tokens), expected);
}

TEST(CutChain, TwoTierWithoutAHeadIsFlat) {
  EXPECT_EQ(*chain(*CutStride::two_tier(0, 7, 4)).push(tokens_up_to(12)),
            *chain(*CutStride::flat(4)).push(tokens_up_to(12)));
}

TEST(CutChain, NamespaceAndKeySeparateChains) {
  const auto tokens = tokens_up_to(4);
  const auto stride = *CutStride::flat(4);
  const HmacKey other_key((ByteSpan(Bytes(32, 0x08))));
  const auto base = *CutChain(key(), kNamespace, stride).push(tokens);
  EXPECT_NE(*CutChain(key(), Id32::filled(4), stride).push(tokens), base);
  EXPECT_NE(*CutChain(other_key, kNamespace, stride).push(tokens), base);
}

TEST(CutChain, StridesAreCheckedInOrder) {
  EXPECT_EQ(verdict(CutStride::flat(0)), "semantics:cut stride is zero");
  EXPECT_EQ(verdict(CutStride::two_tier(5, 0, 0)), "semantics:cut head stride is zero");
  EXPECT_EQ(verdict(CutStride::two_tier(5, 2, 0)), "semantics:cut tail stride is zero");
  EXPECT_EQ(verdict(CutStride::two_tier(5, 2, 3)),
            "semantics:cut head region is not a multiple of the head stride");
  EXPECT_EQ(verdict(CutStride::two_tier(4, 2, 3)),
            "semantics:cut head region is not a multiple of the tail stride");
  EXPECT_EQ(verdict(CutStride::two_tier(6, 2, 3)), "ok");
  EXPECT_EQ(verdict(CutStride::two_tier(0, 2, 3)), "ok");
}

TEST(CutChain, AnEndlessStrideNeverCompletes) {
  auto deriver = chain(*CutStride::flat(~std::uint64_t{0}));
  EXPECT_TRUE(deriver.push(tokens_up_to(1000))->empty());
}

TEST(CutChain, TheCutAfter512PoisonsTheDeriver) {
  auto deriver = chain(*CutStride::flat(1));
  EXPECT_EQ(deriver.push(tokens_up_to(512))->size(), 512U);
  const std::vector<std::uint32_t> one{1};
  const auto overflow = deriver.push(one);
  ASSERT_FALSE(overflow.has_value());
  EXPECT_EQ(overflow.error().verdict(), "bounds:cut chain exceeds 512 cuts");
  for (const std::span<const std::uint32_t> tokens : {std::span<const std::uint32_t>(one), {}}) {
    const auto later = deriver.push(tokens);
    ASSERT_FALSE(later.has_value());
    EXPECT_EQ(later.error().verdict(), "poisoned:cut chain deriver is poisoned");
  }
}

TEST(CutChain, OverflowLosesTheCutsOfTheSameCall) {
  auto deriver = chain(*CutStride::flat(1));
  ASSERT_TRUE(deriver.push(tokens_up_to(510)).has_value());
  EXPECT_EQ(deriver.push(tokens_up_to(3)).error().verdict(), "bounds:cut chain exceeds 512 cuts");
}

TEST(CutChain, AnOpenCutBehindThe512thIsNoFault) {
  auto deriver = chain(*CutStride::flat(2));
  EXPECT_EQ(deriver.push(tokens_up_to(1025))->size(), 512U);
}

}  // namespace
}  // namespace kvpack::cut_chain_test
