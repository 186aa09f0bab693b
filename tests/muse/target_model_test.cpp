#include "kvpack/muse/target_model.h"

#include <gtest/gtest.h>

namespace kvpack::muse::target_model_test {
namespace {

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

}  // namespace
}  // namespace kvpack::muse::target_model_test
