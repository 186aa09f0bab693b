#include "kvpack/muse/identity_label.h"

#include <gtest/gtest.h>

#include "muse/muse_fixtures.h"
#include "support/verdict.h"

namespace kvpack::muse::identity_label_test {
namespace {

using kvpack::testing::verdict;
using testing::test_config;
using testing::test_identity;

IdentityLabel test_label() {
  return identity_label(test_config(), test_identity());
}

TEST(MuseIdentityLabel, IsCanonicalJsonOfFieldsScalarsAndNames) {
  const auto text = write_identity_label(test_label());
  ASSERT_EQ(verdict(text), "ok");
  const auto repeat = [](const char* byte) {
    std::string hex;
    for (int i = 0; i < 32; ++i) hex += byte;
    return hex;
  };
  EXPECT_EQ(
      *text,
      "{\"adapter_sha256\":\"" + repeat("00") + "\",\"chat_template_sha256\":\"" + repeat("03") +
          "\",\"consumer_engine_abi\":\"muser-muse-glimmer-f16-logits-v2\",\"context_policy_sha256\":\"" +
          repeat("04") +
          "\",\"final_logit_softcap\":\"4034000000000000\",\"layout\":\"muse-glimmer-30b\","
          "\"model_revision\":\"test-muse\",\"model_sha256\":\"" +
          repeat("01") +
          "\",\"output_multiplier\":\"3fc91a5560000000\",\"post_norm_eps\":\"3e45798ee0000000\","
          "\"producer_engine_abi\":\"muser-muse-glimmer-f16-logits-v2\","
          "\"qk_scale_factor\":\"400ef5c280000000\",\"schema\":\"kvpack.muse-identity.v1\","
          "\"tokenizer_revision\":\"test-tokenizer\",\"tokenizer_sha256\":\"" +
          repeat("02") + "\",\"weight_precision\":\"nvfp4\"}");
  const auto again = read_identity_label(*text);
  ASSERT_EQ(verdict(again), "ok");
  EXPECT_EQ(again->identity, test_identity());
  EXPECT_EQ(again->scalars, scalar_math(test_config()));
  EXPECT_TRUE(compare_identity_labels(*again, test_label()).empty());
}

TEST(MuseIdentityLabel, EachFieldThatDiffersIsNamed) {
  const auto differs = [](auto change) {
    IdentityLabel asked = test_label();
    change(asked);
    return compare_identity_labels(test_label(), asked);
  };
  using Differences = std::vector<LabelDifference>;
  const auto id_change = [&](Id32 MuseIdentity::*field, std::string_view name) {
    const IdentityLabel stored = test_label();
    EXPECT_EQ(differs([&](IdentityLabel& l) { (l.identity.*field).bytes[0] ^= 1; }),
              (Differences{{name, (stored.identity.*field).hex(), [&] {
                              Id32 id = stored.identity.*field;
                              id.bytes[0] ^= 1;
                              return id.hex();
                            }()}}));
  };
  id_change(&MuseIdentity::model_sha256, "model_sha256");
  id_change(&MuseIdentity::adapter_sha256, "adapter_sha256");
  id_change(&MuseIdentity::tokenizer_sha256, "tokenizer_sha256");
  id_change(&MuseIdentity::chat_template_sha256, "chat_template_sha256");
  id_change(&MuseIdentity::context_policy_sha256, "context_policy_sha256");
  EXPECT_EQ(differs([](IdentityLabel& l) { l.identity.model_revision = "other"; }),
            (Differences{{"model_revision", "test-muse", "other"}}));
  EXPECT_EQ(differs([](IdentityLabel& l) { l.identity.tokenizer_revision = "other"; }),
            (Differences{{"tokenizer_revision", "test-tokenizer", "other"}}));
  EXPECT_EQ(differs([](IdentityLabel& l) { l.identity.weight_precision = "q4_k_xl"; }),
            (Differences{{"weight_precision", "nvfp4", "q4_k_xl"}}));
  EXPECT_EQ(differs([](IdentityLabel& l) { l.scalars.qk_scale_factor = 3.87; }),
            (Differences{{"qk_scale_factor", "400ef5c280000000", "400ef5c28f5c28f6"}}));
  EXPECT_EQ(differs([](IdentityLabel& l) { l.scalars.output_multiplier = 1; }),
            (Differences{{"output_multiplier", "3fc91a5560000000", "3ff0000000000000"}}));
  EXPECT_EQ(differs([](IdentityLabel& l) { l.scalars.final_logit_softcap = 0; }),
            (Differences{{"final_logit_softcap", "4034000000000000", "0000000000000000"}}));
  EXPECT_EQ(differs([](IdentityLabel& l) { l.scalars.post_norm_eps = 1e-8; }),
            (Differences{{"post_norm_eps", "3e45798ee0000000", "3e45798ee2308c3a"}}));
  EXPECT_EQ(differs([](IdentityLabel& l) { l.layout = "x"; }),
            (Differences{{"layout", "muse-glimmer-30b", "x"}}));
  // In the order of the fields, whatever the order of the JSON.
  EXPECT_EQ(differs([](IdentityLabel& l) {
              l.consumer_engine_abi = "c";
              l.producer_engine_abi = "p";
              l.identity.weight_precision = "w";
            }),
            (Differences{{"weight_precision", "nvfp4", "w"},
                         {"producer_engine_abi", "muser-muse-glimmer-f16-logits-v2", "p"},
                         {"consumer_engine_abi", "muser-muse-glimmer-f16-logits-v2", "c"}}));
}

TEST(MuseIdentityLabel, ScalarsAreComparedByTheirBits) {
  IdentityLabel stored = test_label();
  IdentityLabel asked = test_label();
  stored.scalars.final_logit_softcap = 0.0;
  asked.scalars.final_logit_softcap = -0.0;
  EXPECT_EQ(compare_identity_labels(stored, asked).size(), 1u);
  stored.scalars.qk_scale_factor = asked.scalars.qk_scale_factor = std::nan("");
  EXPECT_EQ(compare_identity_labels(stored, asked).size(), 1u);
}

TEST(MuseIdentityLabel, OnlyTheCanonicalFormIsRead) {
  const std::string text = *write_identity_label(test_label());
  EXPECT_EQ(read_identity_label(text + " ").error().code, ErrorCode::kValidation);
  EXPECT_EQ(read_identity_label(" " + text).error().code, ErrorCode::kValidation);
  EXPECT_EQ(read_identity_label("").error().code, ErrorCode::kValidation);
  EXPECT_EQ(read_identity_label(std::string(16'385, ' ')).error().code, ErrorCode::kValidation);
  EXPECT_EQ(read_identity_label("qwen, fp16").error().code, ErrorCode::kCanonical);
  for (std::size_t cut = 1; cut < text.size(); ++cut)
    EXPECT_FALSE(read_identity_label(text.substr(0, cut)).has_value()) << cut;
  const auto with = [&](std::string_view from, std::string_view to) {
    std::string changed = text;
    changed.replace(changed.find(from), from.size(), to);
    const auto read = read_identity_label(changed);
    return read.has_value() ? std::string("ok") : std::string(category_token(read.error().code));
  };
  EXPECT_EQ(with("kvpack.muse-identity.v1", "kvpack.muse-identity.v2"), "canonical");
  EXPECT_EQ(with("\"layout\"", "\"layouz\""), "canonical");
  EXPECT_EQ(with("4034000000000000", "403400000000000"), "canonical");
  EXPECT_EQ(with("4034000000000000", "403400000000000G"), "canonical");
  EXPECT_EQ(with("0101", "01"), "canonical");
  EXPECT_EQ(with("\"nvfp4\"", "4"), "canonical");
}

TEST(MuseIdentityLabel, WhatAStoreCannotHoldIsRefused) {
  constexpr const char* kRefused = "expectation:identity label does not fit a store";
  IdentityLabel label = test_label();
  label.identity.model_revision = "\xff";
  EXPECT_EQ(verdict(write_identity_label(label)), kRefused);
  label.identity.model_revision.assign(16'385, 'x');
  EXPECT_EQ(verdict(write_identity_label(label)), kRefused);
  // Short enough as text, and too long once it is escaped.
  label.identity.model_revision.assign(3'000, '\x01');
  EXPECT_EQ(verdict(write_identity_label(label)), kRefused);
  // The longest texts that an identity may have fit.
  label.identity.model_revision.assign(1'024, '\x01');
  label.identity.tokenizer_revision.assign(1'024, '\x01');
  EXPECT_EQ(verdict(write_identity_label(label)), "ok");
}

}  // namespace
}  // namespace kvpack::muse::identity_label_test
