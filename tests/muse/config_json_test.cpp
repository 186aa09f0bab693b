#include "kvpack/muse/config_json.h"

#include <gtest/gtest.h>

#include "support/verdict.h"

namespace kvpack::muse::config_json_test {
namespace {

using namespace kvpack::testing;

MuseConfig some_config() {
  return {.n_layers = 2,
          .hidden_dim = 6656,
          .n_heads = 32,
          .n_kv_heads = 2,
          .head_dim = 128,
          .value_head_dim = 128,
          .intermediate_dim = 19968,
          .vocab_size = 202048,
          .context_length = 131072,
          .rms_eps = 1e-5F,
          .post_norm_eps = 1e-8F,
          .rope_base_swa = 500'000.0F,
          .rope_base_full = 500'000.0F,
          .rope_dim = 128,
          .sliding_window = 2048,
          .layer_kinds = {LayerKind::kSlidingRope, LayerKind::kFullNoPe},
          .final_logit_softcap = 20.0F,
          .logit_scale = 0.25F,
          .qk_scale_factor = 3.87F,
          .bos_token_id = 200'000,
          .eos_tokens = {200'001, 200'008}};
}

constexpr std::string_view kText =
    R"({"bos_token_id":200000,"context_length":131072,"eos_tokens":[200001,200008],"final_logit_softcap":"41a00000",)"
    R"("head_dim":128,"hidden_dim":6656,"intermediate_dim":19968,"layer_kinds":["swa","nope"],)"
    R"("logit_scale":"3e800000","n_heads":32,"n_kv_heads":2,"n_layers":2,"post_norm_eps":"322bcc77",)"
    R"("qk_scale_factor":"4077ae14","rms_eps":"3727c5ac","rope_base_full":"48f42400","rope_base_swa":"48f42400",)"
    R"("rope_dim":128,"sliding_window":2048,"value_head_dim":128,"vocab_size":202048})";

TEST(ConfigJson, IsCanonicalAndReadBack) {
  const Bytes json = encode_muse_config(some_config());
  EXPECT_EQ(text_view(json), kText);
  const auto parsed = parse_muse_config(json);
  ASSERT_EQ(verdict(parsed), "ok");
  EXPECT_EQ(*parsed, some_config());
}

TEST(ConfigJson, AbsentTokensAreNull) {
  MuseConfig config = some_config();
  config.bos_token_id.reset();
  config.eos_tokens.clear();
  const Bytes json = encode_muse_config(config);
  EXPECT_NE(text_view(json).find(R"("bos_token_id":null)"), std::string_view::npos);
  EXPECT_NE(text_view(json).find(R"("eos_tokens":[])"), std::string_view::npos);
  const auto parsed = parse_muse_config(json);
  ASSERT_EQ(verdict(parsed), "ok");
  EXPECT_EQ(*parsed, config);
}

TEST(ConfigJson, EveryFieldIsRequiredAndNoOtherIsKnown) {
  const auto value = parse_json(byte_view(kText));
  ASSERT_EQ(verdict(value), "ok");
  ASSERT_EQ(value->as_object()->size(), 21U);
  for (const JsonMember& member : *value->as_object()) {
    JsonValue without = JsonValue::object();
    for (const JsonMember& other : *value->as_object())
      if (other.key != member.key) without.set(other.key, other.value.clone());
    EXPECT_EQ(verdict(parse_muse_config(canonical_json(without))), "json:`" + member.key + "` is missing");
  }
  JsonValue more = value->clone();
  more.set("attn_scale", "3f800000");
  EXPECT_EQ(verdict(parse_muse_config(canonical_json(more))), "json:`attn_scale` is not a known key");
}

TEST(ConfigJson, OtherFormsAreRefused) {
  const auto with = [](std::string_view key, JsonValue replacement) {
    JsonValue value = *parse_json(byte_view(kText));
    value.set(key, std::move(replacement));
    return verdict(parse_muse_config(canonical_json(value)));
  };
  const std::string digits = "json:`rms_eps` must be the 8 lower-case hex digits of an f32";
  EXPECT_EQ(with("rms_eps", "3727C5AC"), digits);
  EXPECT_EQ(with("rms_eps", "3727c5a"), digits);
  EXPECT_EQ(with("rms_eps", "0x3727c5ac"), digits);
  EXPECT_EQ(with("rms_eps", std::uint64_t{1}).substr(0, 15), "json:`rms_eps` ");
  EXPECT_EQ(with("n_layers", "2").substr(0, 16), "json:`n_layers` ");
  JsonValue kinds = JsonValue::array();
  kinds.push("swa").push("full");
  EXPECT_EQ(with("layer_kinds", std::move(kinds)), "json:`layer_kinds[1]` must be `swa` or `nope`");
  JsonValue tokens = JsonValue::array();
  tokens.push(std::uint64_t{1} << 32);
  EXPECT_EQ(with("eos_tokens", std::move(tokens)).substr(0, 21), "json:`eos_tokens[0]` ");
  EXPECT_EQ(with("bos_token_id", std::uint64_t{1} << 32).substr(0, 20), "json:`bos_token_id` ");
  EXPECT_EQ(with("eos_tokens", JsonValue()).substr(0, 18), "json:`eos_tokens` ");
  EXPECT_EQ(verdict(parse_muse_config(byte_view("[]"))), "json:JSON value must be an object");
}

TEST(ConfigJson, BitsOfNotANumberSurvive) {
  MuseConfig config = some_config();
  config.rms_eps = std::bit_cast<float>(0x7fc12345U);
  const auto parsed = parse_muse_config(encode_muse_config(config));
  ASSERT_EQ(verdict(parsed), "ok");
  EXPECT_EQ(std::bit_cast<std::uint32_t>(parsed->rms_eps), 0x7fc12345U);
}

}  // namespace
}  // namespace kvpack::muse::config_json_test
