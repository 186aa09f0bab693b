#include "kvpack/muse/target_model.h"

#include <gtest/gtest.h>

#include <set>

#include "kvpack/muse/muse_descriptor.h"
#include "kvpack/muse/realized_ranges.h"
#include "muse/muse_fixtures.h"
#include "support/verdict.h"

namespace kvpack::muse::target_model_test {
namespace {

using kvpack::testing::verdict;
using testing::test_config;
using testing::test_identity;

TargetModel model() {
  IdentityLabel label;
  label.identity.model_sha256 = Id32{sha256(byte_view("model"))};
  label.identity.tokenizer_sha256 = Id32{sha256(byte_view("tokenizer"))};
  label.identity.chat_template_sha256 = Id32{sha256(byte_view("template"))};
  label.identity.context_policy_sha256 = Id32{sha256(byte_view("policy"))};
  label.identity.model_revision = "rev-1";
  label.identity.tokenizer_revision = "tok-1";
  label.identity.weight_precision = "q4_k_xl";
  label.scalars = {.qk_scale_factor = 0.125,
                   .output_multiplier = 0.5,
                   .final_logit_softcap = 0,
                   .post_norm_eps = 0.0009765625};
  label.layout = std::string(kLayoutName);
  label.producer_engine_abi = std::string(kCacheAbi);
  label.consumer_engine_abi = std::string(kCacheAbi);
  return *TargetModel::create(std::move(label));
}

/// A text of the identity, and what it is called.
struct Field {
  std::string handoff::ExactIdentity::*member;
  std::string name;
};
const std::vector<Field>& fields() {
  static const std::vector<Field> all{
      {&handoff::ExactIdentity::model_sha256, "model_sha256"},
      {&handoff::ExactIdentity::model_revision, "model_revision"},
      {&handoff::ExactIdentity::adapter_sha256, "adapter_sha256"},
      {&handoff::ExactIdentity::tokenizer_sha256, "tokenizer_sha256"},
      {&handoff::ExactIdentity::tokenizer_revision, "tokenizer_revision"},
      {&handoff::ExactIdentity::chat_template_sha256, "chat_template_sha256"},
      {&handoff::ExactIdentity::context_policy_sha256, "context_policy_sha256"}};
  return all;
}

TEST(TargetModelConfiguration, OfTheModelIsAccepted) {
  const TargetModel own = model();
  EXPECT_TRUE(check_configured_identity(own, exact_identity(own.label().identity), own.cache_identity().hex())
                  .has_value());
}

TEST(TargetModelConfiguration, EveryFieldThatDiffersIsNamedWithBothValues) {
  const TargetModel own = model();
  for (const Field& field : fields()) {
    handoff::ExactIdentity configured = exact_identity(own.label().identity);
    configured.*field.member = "other";
    const Status checked = check_configured_identity(own, configured, own.cache_identity().hex());
    ASSERT_FALSE(checked.has_value()) << field.name;
    EXPECT_EQ(checked.error().verdict(),
              "expectation:" + field.name + " of the configuration is not that of the identity");
    const std::vector<Context>& facts = checked.error().context;
    ASSERT_EQ(facts.size(), 3U);
    EXPECT_EQ(facts[0].value, field.name);
    EXPECT_EQ(facts[1].value, "other");
    EXPECT_EQ(facts[2].value, exact_identity(own.label().identity).*field.member);
  }
  const Status checked = check_configured_identity(own, exact_identity(own.label().identity), "other");
  ASSERT_FALSE(checked.has_value());
  EXPECT_EQ(checked.error().message,
            "target_cache_identity_sha256 of the configuration is not that of the identity");
}

TEST(TargetModelConfiguration, TheFirstFieldThatDiffersIsTheOneNamed) {
  const TargetModel own = model();
  handoff::ExactIdentity configured = exact_identity(own.label().identity);
  for (auto field = fields().rbegin(); field != fields().rend(); ++field) {
    configured.*field->member = "other";
    const Status checked = check_configured_identity(own, configured, "other");
    ASSERT_FALSE(checked.has_value());
    EXPECT_EQ(checked.error().message, field->name + " of the configuration is not that of the identity");
  }
}

TEST(TargetModelConfiguration, AnEnrolmentIsGivenTheSevenStringsAndTheCacheIdentity) {
  const TargetModel own = model();
  const auto parsed = parse_json(byte_view(enrolment_text(own)));
  ASSERT_TRUE(parsed.has_value());
  const auto identity = handoff::parse_exact_identity(*parsed->find("identity"), JsonPath());
  ASSERT_TRUE(identity.has_value());
  EXPECT_EQ(*identity, exact_identity(own.label().identity));
  EXPECT_EQ(*parsed->find("target_cache_identity_sha256")->as_string(), own.cache_identity().hex());
  EXPECT_EQ(parsed->as_object()->size(), 2U);
}

IdentityLabel test_label() {
  return identity_label(test_config(), test_identity());
}

TEST(MuseTargetModel, IsOfThisLayoutAndCacheAlone) {
  EXPECT_EQ(verdict(TargetModel::create(test_label())), "ok");
  IdentityLabel label = test_label();
  label.layout = "other";
  EXPECT_EQ(verdict(TargetModel::create(label)),
            "expectation:identity is of layout other, not of muse-glimmer-30b");
  const std::string abi =
      "expectation:identity is of a cache ABI other than muser-muse-glimmer-f16-logits-v2";
  label = test_label();
  label.producer_engine_abi = "other";
  EXPECT_EQ(verdict(TargetModel::create(label)), abi);
  label = test_label();
  label.consumer_engine_abi.clear();
  EXPECT_EQ(verdict(TargetModel::create(label)), abi);
  // Layout before ABI.
  label.layout.clear();
  EXPECT_EQ(verdict(TargetModel::create(label)),
            "expectation:identity is of layout , not of muse-glimmer-30b");
}

TEST(MuseTargetModel, HasTheStatesOfAHandoffAndNoLogits) {
  const TargetModel model = *TargetModel::create(test_label());
  const auto& states = model.family().family().states;
  EXPECT_EQ(states.size(), 2U * kLayers);
  for (const auto& state : states) EXPECT_FALSE(detail::is_logits_key(state.key));
  for (const std::uint64_t cut : {1U, 256U, 2048U, 5000U}) {
    const auto descriptor = model.descriptor(cut);
    ASSERT_EQ(verdict(descriptor), "ok") << cut;
    EXPECT_EQ(descriptor->semantic_model, model.semantic_model()) << cut;
    EXPECT_EQ(descriptor->family, model.family().family()) << cut;
  }
}

TEST(MuseTargetModel, ACutOfNothingOrOfTheWholeContextHasNoDescriptor) {
  const TargetModel model = *TargetModel::create(test_label());
  EXPECT_FALSE(model.descriptor(0).has_value());
  EXPECT_TRUE(model.descriptor(kMaxContextTokens - 1).has_value());
  // However long: numbers beyond the context do not come out short.
  const std::string refused = verdict(model.descriptor(kMaxContextTokens));
  EXPECT_NE(refused, "ok");
  EXPECT_EQ(verdict(model.descriptor(std::uint64_t{1} << 32 | 1U)), refused);
  EXPECT_EQ(verdict(model.descriptor(~std::uint64_t{0})), refused);
}

// Both ends compare this one digest: whatever tells caches apart changes it.
TEST(MuseTargetModel, EveryPartOfTheIdentityChangesTheDigest) {
  std::set<Id32> seen{TargetModel::create(test_label())->cache_identity()};
  EXPECT_EQ(*seen.begin(), TargetModel::create(test_label())->cache_identity());
  const auto changed = [&](auto change) {
    IdentityLabel label = test_label();
    change(label);
    const auto model = TargetModel::create(std::move(label));
    EXPECT_EQ(verdict(model), "ok");
    return model.has_value() && seen.insert(model->cache_identity()).second;
  };
  EXPECT_TRUE(changed([](IdentityLabel& l) { l.identity.model_sha256.bytes[0] ^= 1; }));
  EXPECT_TRUE(changed([](IdentityLabel& l) { l.identity.adapter_sha256.bytes[31] ^= 1; }));
  EXPECT_TRUE(changed([](IdentityLabel& l) { l.identity.tokenizer_sha256.bytes[0] ^= 1; }));
  EXPECT_TRUE(changed([](IdentityLabel& l) { l.identity.chat_template_sha256.bytes[0] ^= 1; }));
  EXPECT_TRUE(changed([](IdentityLabel& l) { l.identity.context_policy_sha256.bytes[0] ^= 1; }));
  EXPECT_TRUE(changed([](IdentityLabel& l) { l.identity.model_revision += "x"; }));
  EXPECT_TRUE(changed([](IdentityLabel& l) { l.identity.tokenizer_revision += "x"; }));
  EXPECT_TRUE(changed([](IdentityLabel& l) { l.identity.weight_precision = "q4_k_xl"; }));
  EXPECT_TRUE(changed([](IdentityLabel& l) { l.scalars.qk_scale_factor += 1; }));
  EXPECT_TRUE(changed([](IdentityLabel& l) { l.scalars.output_multiplier += 1; }));
  EXPECT_TRUE(changed([](IdentityLabel& l) { l.scalars.final_logit_softcap += 1; }));
  EXPECT_TRUE(changed([](IdentityLabel& l) { l.scalars.post_norm_eps += 1; }));
}

TEST(MuseTargetModel, TheDigestIsOfBothIdsUnderADomainOfItsOwn) {
  const TargetModel model = *TargetModel::create(test_label());
  const ByteSpan domain = byte_view("kvpack/muse-target-cache/v1");
  Bytes message(domain.begin(), domain.end());
  message.push_back(0);
  for (const Id32& id : {semantic_model_id(model.semantic_model()), model.family().id()}) {
    const auto length = le_bytes(std::uint64_t{32});
    message.insert(message.end(), length.begin(), length.end());
    message.insert(message.end(), id.bytes.begin(), id.bytes.end());
  }
  EXPECT_EQ(model.cache_identity(), Id32{sha256(message)});
}

}  // namespace
}  // namespace kvpack::muse::target_model_test
