#include "kvpack/core/prefix_chain.h"

#include <gtest/gtest.h>

#include <numeric>

#include "cli/reference_fixtures.h"
#include "support/verdict.h"

namespace kvpack::prefix_chain_test {
namespace {

using kvpack::testing::verdict;

std::vector<std::uint32_t> counting(std::size_t count) {
  std::vector<std::uint32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), 0U);
  return tokens;
}

Id32 raw_family_id() {
  return IdentifiedFamily::create(fixtures::family(Codec::kRaw))->id();
}

DerivedInput derive(std::span<const std::uint32_t> tokens) {
  return *derive_input(fixtures::key_schedule(), fixtures::semantic_model(), raw_family_id(),
                       fixtures::auxiliary_inputs(), tokens);
}

TEST(AuxiliaryRoot, MatchesThePublishedValue) {
  EXPECT_EQ(auxiliary_input_root(fixtures::key_schedule(), fixtures::auxiliary_inputs())->hex(),
            "d3158ae6a3a68c5c15bce285b3772d868908332c376118829f7289266d590cb0");
}

TEST(AuxiliaryRoot, OrderAndRepeatsMatterAndEmptyIsLegal) {
  const KeySchedule keys = fixtures::key_schedule();
  const AuxiliaryInputId a{Id32::filled(1), Id32::filled(2)};
  const AuxiliaryInputId b{Id32::filled(3), Id32::filled(4)};
  const std::vector<std::vector<AuxiliaryInputId>> lists{
      {}, {a}, {b}, {a, b}, {b, a}, {a, a}, {{a.value_id, a.type_id}}};
  std::vector<Id32> seen;
  for (const auto& list : lists) {
    const auto root = auxiliary_input_root(keys, list);
    ASSERT_TRUE(root.has_value());
    EXPECT_EQ(std::ranges::count(seen, *root), 0);
    seen.push_back(*root);
  }
}

TEST(AuxiliaryRoot, ZeroComponentsAreRefused) {
  const KeySchedule keys = fixtures::key_schedule();
  const std::string text = "semantics:auxiliary identity contains a zero component";
  const AuxiliaryInputId good{Id32::filled(1), Id32::filled(2)};
  for (const AuxiliaryInputId& bad : {AuxiliaryInputId{Id32{}, Id32::filled(1)},
                                      AuxiliaryInputId{Id32::filled(1), Id32{}}, AuxiliaryInputId{}}) {
    EXPECT_EQ(verdict(auxiliary_input_root(keys, std::array{bad})), text);
    EXPECT_EQ(verdict(auxiliary_input_root(keys, std::array{good, bad})), text);
    EXPECT_EQ(verdict(derive_input(keys, fixtures::semantic_model(), raw_family_id(), std::array{bad}, {})),
              text);
  }
}

TEST(PrefixChain, TokenRootsAreThePublishedOnes) {
  const auto root = [](Codec codec) {
    return fixtures::input_cut(*IdentifiedFamily::create(fixtures::family(codec)), 4).token_root.hex();
  };
  EXPECT_EQ(root(Codec::kRaw), "481a9ce5bfb252926cb8372c5e06fa2635a7b9e878598ae97d21e6dfc05c1a90");
  EXPECT_EQ(root(Codec::kLossless), "0a5a8d0ffceffd37ebfb1e37645f0ffafb0d1df87aac903ddae95a8dbb04af00");
}

// The chain as the format writes it down, frame by frame.
std::vector<PrefixNode> by_the_rule(std::span<const std::uint32_t> tokens, const Id32& auxiliary_root) {
  const KeySchedule keys = fixtures::key_schedule();
  const HmacKey& prefix = keys.prefix_mac();
  const Id32 context{
      hmac_sha256(prefix, {with_nul("kvpack/v1/prefix-context"), keys.tenant(),
                           semantic_model_id(fixtures::semantic_model()), raw_family_id(), auxiliary_root})};
  Id32 parent{hmac_sha256(prefix, {with_nul("kvpack/v1/prefix-root"), context})};
  std::vector<PrefixNode> nodes;
  for (std::size_t start = 0, block = 0; start < tokens.size(); start += 256, ++block) {
    const std::size_t n = std::min<std::size_t>(256, tokens.size() - start);
    ByteWriter frame;
    frame.bytes(with_nul("kvpack/v1/prefix-node"));
    frame.bytes(context);
    frame.bytes(parent);
    frame.le(static_cast<std::uint64_t>(block));
    frame.le(static_cast<std::uint64_t>(start));
    frame.le(static_cast<std::uint32_t>(n));
    frame.le(static_cast<std::uint32_t>(4 * n));
    for (std::size_t i = 0; i < n; ++i) frame.le(tokens[start + i]);
    parent = Id32{hmac_sha256(prefix, {frame.view()})};
    nodes.push_back({parent, start + n, n == 256});
  }
  return nodes;
}

TEST(PrefixChain, FollowsTheRuleAtEveryBlockBoundary) {
  const Id32 auxiliary = *auxiliary_input_root(fixtures::key_schedule(), fixtures::auxiliary_inputs());
  for (const std::size_t count : {1U, 2U, 255U, 256U, 257U, 511U, 512U, 513U, 600U, 1024U}) {
    const auto tokens = counting(count);
    const DerivedInput derived = derive(tokens);
    EXPECT_EQ(derived.nodes, by_the_rule(tokens, auxiliary)) << count;
    EXPECT_EQ(derived.cut.token_root, derived.nodes.back().id);
    EXPECT_EQ(derived.cut.auxiliary_input_root, auxiliary);
    EXPECT_EQ(derived.cut.token_count, count);
  }
}

TEST(PrefixChain, EmptyInputGivesTheRootOfTheEmptySequence) {
  const DerivedInput derived = derive({});
  EXPECT_TRUE(derived.nodes.empty());
  EXPECT_EQ(derived.cut.token_count, 0U);
  EXPECT_FALSE(derived.cut.token_root.is_zero());
}

TEST(PrefixChain, SplittingTheTokensOverCallsChangesNothing) {
  const KeySchedule keys = fixtures::key_schedule();
  const auto tokens = counting(1000);
  const DerivedInput whole = derive(tokens);
  for (const std::size_t step : {1U, 3U, 255U, 256U, 257U, 999U}) {
    PrefixChain chain(keys, fixtures::semantic_model(), raw_family_id(), whole.cut.auxiliary_input_root);
    std::vector<PrefixNode> nodes;
    for (std::size_t at = 0; at < tokens.size(); at += step)
      chain.push(std::span(tokens).subspan(at, std::min(step, tokens.size() - at)), nodes);
    EXPECT_EQ(nodes.size(), 3U);
    EXPECT_EQ(chain.token_count(), 768U);
    chain.finish(nodes);
    EXPECT_EQ(nodes, whole.nodes) << step;
    EXPECT_EQ(chain.tip(), whole.cut.token_root);
    EXPECT_EQ(chain.token_count(), 1000U);
    chain.finish(nodes);  // nothing is pending, so nothing is added
    EXPECT_EQ(nodes, whole.nodes);
  }
}

TEST(PrefixChain, ATokenChangesItsOwnNodeAndAllLaterOnes) {
  auto tokens = counting(1024);
  const DerivedInput before = derive(tokens);
  tokens[300] ^= 1;
  const DerivedInput after = derive(tokens);
  EXPECT_EQ(before.nodes[0], after.nodes[0]);
  for (const std::size_t i : {1U, 2U, 3U}) EXPECT_NE(before.nodes[i].id, after.nodes[i].id);
}

TEST(PrefixChain, ContextKeepsModelsFamiliesAndTenantsApart) {
  const auto tokens = counting(5);
  const auto root = [&](const KeySchedule& keys, const SemanticModelId& model, const Id32& family,
                        std::span<const AuxiliaryInputId> auxiliary) {
    return derive_input(keys, model, family, auxiliary, tokens)->cut.token_root;
  };
  const KeySchedule keys = fixtures::key_schedule();
  const KeySchedule of_next_epoch = fixtures::key_schedule(8);
  const KeySchedule other_tenant =
      *KeySchedule::derive(fixtures::root_key(), fixtures::root_key(), Id32::filled(9), 7);
  SemanticModelId other_model = fixtures::semantic_model();
  other_model.qualified_math = Id32::filled(9);
  const auto model = fixtures::semantic_model();
  const Id32 reference = root(keys, model, raw_family_id(), fixtures::auxiliary_inputs());
  EXPECT_EQ(root(of_next_epoch, model, raw_family_id(), fixtures::auxiliary_inputs()), reference);
  EXPECT_NE(root(other_tenant, model, raw_family_id(), fixtures::auxiliary_inputs()), reference);
  EXPECT_NE(root(keys, other_model, raw_family_id(), fixtures::auxiliary_inputs()), reference);
  EXPECT_NE(root(keys, model, Id32::filled(9), fixtures::auxiliary_inputs()), reference);
  EXPECT_NE(root(keys, model, raw_family_id(), {}), reference);
}

}  // namespace
}  // namespace kvpack::prefix_chain_test
