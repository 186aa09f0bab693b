#include "kvpack/muse/model_config.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kvpack/core/half.h"
#include "support/gguf_writer.h"
#include "support/verdict.h"

namespace kvpack::muse::model_config_test {
namespace {

using namespace kvpack::testing;

const std::string kPrefix = "muse-glimmer.";

Result<MuseConfig> config_of(const GgufWriter& file) {
  const Bytes bytes = file.finish();
  SpanSource source(bytes);
  KVPACK_TRY_ASSIGN(const GgufFile opened, GgufFile::open(source, is_model_key));
  return read_model_config(opened);
}

std::string refusal(const GgufWriter& file) {
  return verdict(config_of(file));
}

TEST(ModelConfig, ReadsEveryField) {
  GgufWriter file = small_muse_model();
  file.f32(kPrefix + "final_logit_softcapping", 20.0F).f32(kPrefix + "rope.freq_base_swa", 12.0F);
  file.u32("tokenizer.ggml.bos_token_id", 3).u32("tokenizer.ggml.eos_token_id", 7);
  file.u32("tokenizer.ggml.eot_token_id", 5).u32("tokenizer.ggml.eom_token_id", 7);
  const auto config = config_of(file);
  ASSERT_EQ(verdict(config), "ok");
  const MuseConfig wanted{.n_layers = 2,
                          .hidden_dim = 6,
                          .n_heads = 4,
                          .n_kv_heads = 2,
                          .head_dim = 2,
                          .value_head_dim = 2,
                          .intermediate_dim = 10,
                          .vocab_size = 12,
                          .context_length = 64,
                          .rms_eps = 1e-5F,
                          .post_norm_eps = 1e-8F,
                          .rope_base_swa = 12.0F,
                          .rope_base_full = 500'000.0F,
                          .rope_dim = 2,
                          .sliding_window = 8,
                          .layer_kinds = {LayerKind::kSlidingRope, LayerKind::kFullNoPe},
                          .final_logit_softcap = 20.0F,
                          .logit_scale = 0.25F,
                          .qk_scale_factor = 3.5F,
                          .bos_token_id = 3,
                          .eos_tokens = {7, 5}};
  EXPECT_EQ(*config, wanted);
  EXPECT_EQ(config->attn_dim(), 8U);
  EXPECT_EQ(config->kv_dim(), 4U);
}

TEST(ModelConfig, AbsentKeysHaveTheirDefaults) {
  GgufWriter file = small_muse_model();
  for (const char* key : {"attention.head_count_kv", "attention.key_length", "attention.value_length",
                          "context_length", "rope.dimension_count", "rope.freq_base", "vocab_size"})
    file.erase(kPrefix + key);
  file.u32(kPrefix + "embedding_length", 8);
  file.strings("tokenizer.ggml.tokens", std::vector<std::string>(12, "t"));
  // The default head is 8 / 4 wide, and there are as many KV heads as heads: all of it is another shape.
  for (GgufWriter::Tensor& tensor : file.tensors) {
    for (std::uint64_t& n : tensor.dimensions)
      if (n == 6) n = 8;
    if (tensor.name.ends_with("attn_k.weight") || tensor.name.ends_with("attn_v.weight"))
      tensor.dimensions[1] = 8;
  }
  file.tensor("padding", kGgufTensorF32, {200}, Bytes(800));
  const auto config = config_of(file);
  ASSERT_EQ(verdict(config), "ok");
  EXPECT_EQ(config->n_kv_heads, 4U);
  EXPECT_EQ(config->head_dim, 2U);
  EXPECT_EQ(config->value_head_dim, 2U);
  EXPECT_EQ(config->context_length, 2048U);
  EXPECT_EQ(config->final_logit_softcap, 30.0F);
  EXPECT_EQ(config->rope_base_full, 10'000.0F);
  EXPECT_EQ(config->rope_base_swa, 10'000.0F);
  EXPECT_EQ(config->rope_dim, 2U);
  EXPECT_EQ(config->vocab_size, 12U);
  EXPECT_EQ(config->bos_token_id, std::nullopt);
  EXPECT_TRUE(config->eos_tokens.empty());
}

TEST(ModelConfig, CountsMayBeWrittenAsU64) {
  GgufWriter file = small_muse_model();
  file.u64(kPrefix + "block_count", 2)
      .u64(kPrefix + "attention.sliding_window", (std::uint64_t{1} << 32) + 8);
  const auto config = config_of(file);
  ASSERT_EQ(verdict(config), "ok");
  EXPECT_EQ(config->n_layers, 2U);
  EXPECT_EQ(config->sliding_window, 8U);
}

TEST(ModelConfig, TheArchitectureIsAskedForFirst) {
  GgufWriter file = small_muse_model();
  file.erase(kPrefix + "block_count");
  file.string("general.architecture", "llama");
  EXPECT_EQ(refusal(file), "expectation:not a muse-glimmer checkpoint: general.architecture = \"llama\"");
  file.erase("general.architecture");
  EXPECT_EQ(refusal(file), "expectation:not a muse-glimmer checkpoint: general.architecture = \"\"");
  file.u32("general.architecture", 1);
  EXPECT_EQ(refusal(file), "expectation:not a muse-glimmer checkpoint: general.architecture = \"\"");
}

TEST(ModelConfig, RequiredKeysAreAskedForInTheirOrder) {
  GgufWriter file = small_muse_model();
  const std::vector<std::string> order = {"block_count",
                                          "embedding_length",
                                          "attention.head_count",
                                          "feed_forward_length",
                                          "attention.layer_norm_rms_epsilon",
                                          "attention.sliding_window",
                                          "logit_scale"};
  for (auto key = order.rbegin(); key != order.rend(); ++key) {
    GgufWriter other = file;
    other.string(kPrefix + *key, "x");
    EXPECT_EQ(refusal(other), "expectation:missing required GGUF metadata key: " + kPrefix + *key);
    file.erase(kPrefix + *key);
    EXPECT_EQ(refusal(file), "expectation:missing required GGUF metadata key: " + kPrefix + *key);
  }
}

TEST(ModelConfig, OptionalKeysOfAnotherTypeAreNoDefaults) {
  for (const char* key : {"attention.head_count_kv", "attention.key_length", "attention.value_length",
                          "context_length", "final_logit_softcapping", "rope.freq_base", "rope.freq_base_swa",
                          "rope.dimension_count", "vocab_size"}) {
    GgufWriter file = small_muse_model();
    file.string(kPrefix + key, "4");
    EXPECT_EQ(refusal(file), "expectation:unexpected type of GGUF metadata key: " + kPrefix + key);
  }
  for (const char* key : {"tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id",
                          "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    GgufWriter file = small_muse_model();
    file.i32(key, 4);
    EXPECT_EQ(refusal(file), std::string("expectation:unexpected type of GGUF metadata key: ") + key);
  }
}

TEST(ModelConfig, AbsurdCountsAreGeometry) {
  const auto with = [](const std::string& key, std::uint32_t value) {
    GgufWriter file = small_muse_model();
    file.u32(kPrefix + key, value).erase(kPrefix + "attention.sliding_window_pattern");
    return refusal(file);
  };
  const std::string geometry = "expectation:inconsistent geometry: ";
  EXPECT_EQ(with("block_count", 0), geometry + "block_count 0 is outside 1..4096");
  EXPECT_EQ(with("block_count", 4097), geometry + "block_count 4097 is outside 1..4096");
  EXPECT_EQ(with("block_count", 0xffffffff), geometry + "block_count 4294967295 is outside 1..4096");
  EXPECT_EQ(with("attention.head_count", 0), geometry + "n_heads is zero");
  EXPECT_EQ(with("attention.head_count_kv", 0), geometry + "n_kv_heads is zero");
}

TEST(ModelConfig, HeadsMustFit) {
  GgufWriter file = small_muse_model();
  file.u32(kPrefix + "attention.head_count_kv", 3);
  EXPECT_EQ(refusal(file), "expectation:inconsistent geometry: n_heads 4 not divisible by n_kv_heads 3");
  file = small_muse_model();
  file.u32(kPrefix + "attention.key_length", 3);
  EXPECT_EQ(refusal(file), "expectation:inconsistent geometry: head_dim 3 must be even for RoPE");
  file.u32(kPrefix + "attention.key_length", 0);
  EXPECT_EQ(refusal(file), "expectation:inconsistent geometry: head_dim is zero");
}

std::string kinds_of(const GgufWriter& file) {
  const auto config = config_of(file);
  if (!config.has_value()) return verdict(config);
  std::string text;
  for (const LayerKind kind : config->layer_kinds) text += kind == LayerKind::kSlidingRope ? 's' : 'f';
  return text;
}

TEST(ModelConfig, ThePatternIsAPeriodOrAList) {
  const std::string key = kPrefix + "attention.sliding_window_pattern";
  GgufWriter file = small_muse_model();
  EXPECT_EQ(kinds_of(file.u32(key, 0)), "ss");
  EXPECT_EQ(kinds_of(file.u32(key, 1)), "ff");
  EXPECT_EQ(kinds_of(file.u32(key, 2)), "sf");
  EXPECT_EQ(kinds_of(file.u64(key, ~std::uint64_t{0})), "ss");
  EXPECT_EQ(kinds_of(file.i32(key, 2)), "sf");
  EXPECT_EQ(kinds_of(file.u8(key, 2)), "sf");
  EXPECT_EQ(kinds_of(file.array(key, GgufType::kBool, std::vector<std::uint8_t>{0, 5})), "fs");
  EXPECT_EQ(kinds_of(file.array(key, GgufType::kU8, std::vector<std::uint8_t>{5, 0})), "sf");
  EXPECT_EQ(kinds_of(file.array(key, GgufType::kU32, std::vector<std::uint32_t>{1, 1})), "ss");
  EXPECT_EQ(kinds_of(file.array(key, GgufType::kI32, std::vector<std::uint32_t>{0, 0xffffffff})), "fs");
}

TEST(ModelConfig, AnyOtherPatternIsFatal) {
  const std::string key = kPrefix + "attention.sliding_window_pattern";
  const std::string fatal =
      "expectation:muse-glimmer.attention.sliding_window_pattern missing or malformed; cannot resolve SWA "
      "pattern";
  GgufWriter file = small_muse_model();
  EXPECT_EQ(kinds_of(file.erase(key)), fatal);
  EXPECT_EQ(kinds_of(file.i32(key, -1)), fatal);
  EXPECT_EQ(kinds_of(file.f32(key, 2)), fatal);
  EXPECT_EQ(kinds_of(file.boolean(key, 1)), fatal);
  EXPECT_EQ(kinds_of(file.string(key, "4")), fatal);
  EXPECT_EQ(kinds_of(file.array(key, GgufType::kBool, std::vector<std::uint8_t>{1})), fatal);
  EXPECT_EQ(kinds_of(file.array(key, GgufType::kBool, std::vector<std::uint8_t>{1, 0, 1})), fatal);
  EXPECT_EQ(kinds_of(file.array(key, GgufType::kI64, std::vector<std::uint64_t>{1, 0})), fatal);
  EXPECT_EQ(kinds_of(file.strings(key, {"1", "0"})), fatal);
}

TEST(ModelConfig, EveryTensorIsRequiredInItsOrder) {
  const GgufWriter good = small_muse_model();
  std::vector<std::string> order;
  for (const GgufWriter::Tensor& tensor : good.tensors) order.push_back(tensor.name);
  ASSERT_EQ(order.size(), 31U);
  GgufWriter file = good;
  for (auto name = order.rbegin(); name != order.rend(); ++name) {
    GgufWriter shaped = file;
    auto& dimensions = shaped.find_tensor(*name).dimensions;
    std::string wanted = "[";
    for (std::size_t i = 0; i < dimensions.size(); ++i)
      wanted += (i == 0 ? "" : ", ") + std::to_string(dimensions[i]);
    dimensions = {1, 0};
    EXPECT_EQ(refusal(shaped),
              "expectation:tensor " + *name + ": expected shape " + wanted + "], found [1, 0]");
    file.erase_tensor(*name);
    EXPECT_EQ(refusal(file), "expectation:missing required tensor: " + *name);
  }
}

TEST(ModelConfig, TheOrderOfTheFileDoesNotMatter) {
  GgufWriter file = small_muse_model();
  std::ranges::reverse(file.tensors);
  EXPECT_EQ(refusal(file), "ok");
  file.find_tensor("blk.1.attn_q.weight").dimensions = {1, 2, 0};
  file.find_tensor("blk.0.ffn_up.weight").dimensions = {0};
  EXPECT_EQ(refusal(file), "expectation:tensor blk.0.ffn_up.weight: expected shape [6, 10], found [0]");
}

TEST(ModelConfig, TensorsOfOtherNamesAreNotCounted) {
  for (const char* name :
       {"blk.00.attn_q.weight", "blk.0.attn_q.bias", "blk.0.attn_q", "blk.0attn_q.weight",
        "blk.2.attn_q.weight", "blk.+0.attn_q.weight", "blk..attn_q.weight", "attn_q.weight"}) {
    GgufWriter file = small_muse_model();
    file.find_tensor("blk.0.attn_q.weight").name = name;
    EXPECT_EQ(refusal(file), "expectation:missing required tensor: blk.0.attn_q.weight") << name;
  }
}

// A model whose norms are the given ones, layer by layer.
GgufWriter with_norms(std::uint32_t type, const std::vector<std::pair<Bytes, Bytes>>& norms) {
  GgufWriter file = small_muse_model();
  for (std::size_t layer = 0; layer < norms.size(); ++layer) {
    const std::string b = "blk." + std::to_string(layer) + ".";
    file.erase_tensor(b + "attn_q_norm.weight");
    file.erase_tensor(b + "attn_k_norm.weight");
    file.tensor(b + "attn_q_norm.weight", type, {2}, norms[layer].first);
    file.tensor(b + "attn_k_norm.weight", type, {2}, norms[layer].second);
  }
  return file;
}

std::string learned(const std::string& q, const std::string& k, const std::string& value) {
  return "expectation:inconsistent geometry: attn_q_norm/attn_k_norm are not the expected constant "
         "broadcasts (q_const=" +
         q + ", k_const=" + k + ", k_value=" + value +
         "); this checkpoint may carry a genuinely learned QK-norm";
}

TEST(ModelConfig, TheScaleIsTheConstantOfTheQNorms) {
  const Bytes one = f32_bytes({1, 1});
  const Bytes scale = f32_bytes({3.87F, 3.87F});
  const auto config = config_of(with_norms(kGgufTensorF32, {{scale, one}, {scale, one}}));
  ASSERT_EQ(verdict(config), "ok");
  EXPECT_EQ(config->qk_scale_factor, 3.87F);
  EXPECT_EQ(refusal(with_norms(kGgufTensorF32, {{scale, one}, {f32_bytes({3.87F, 3.8F}), one}})),
            learned("false", "true", "1"));
  EXPECT_EQ(refusal(with_norms(kGgufTensorF32, {{scale, one}, {scale, f32_bytes({1.5F, 1})}})),
            learned("true", "false", "1"));
  const Bytes half = f32_bytes({0.5F, 0.5F});
  EXPECT_EQ(refusal(with_norms(kGgufTensorF32, {{scale, half}, {scale, half}})),
            learned("true", "true", "0.5"));
  const float nan = std::nanf("");
  EXPECT_EQ(refusal(with_norms(kGgufTensorF32, {{scale, f32_bytes({nan, 1})}, {scale, one}})),
            learned("true", "false", "1"));
  EXPECT_EQ(refusal(with_norms(kGgufTensorF32, {{f32_bytes({nan, 1}), one}, {scale, one}})),
            learned("false", "true", "1"));
  EXPECT_EQ(
      refusal(with_norms(kGgufTensorF32, {{scale, f32_bytes({nan, nan})}, {scale, f32_bytes({nan, nan})}})),
      learned("true", "false", "NaN"));
  EXPECT_EQ(refusal(with_norms(kGgufTensorF32, {{scale, f32_bytes({1e-10F, 2})}, {scale, one}})),
            learned("true", "false", "0.0000000001"));
}

TEST(ModelConfig, NormsOfSixteenBitsAreWidened) {
  const auto halves = [](float value) {
    ByteWriter out;
    for (int i = 0; i < 2; ++i) out.le(float_to_half(value));
    return std::move(out).take();
  };
  auto config =
      config_of(with_norms(kGgufTensorF16, {{halves(3.875F), halves(1)}, {halves(3.875F), halves(1)}}));
  ASSERT_EQ(verdict(config), "ok");
  EXPECT_EQ(config->qk_scale_factor, 3.875F);
  const auto brain = [](float value) {
    ByteWriter out;
    for (int i = 0; i < 2; ++i) out.le(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16));
    return std::move(out).take();
  };
  config = config_of(with_norms(kGgufTensorBf16, {{brain(3.875F), brain(1)}, {brain(3.875F), brain(1)}}));
  ASSERT_EQ(verdict(config), "ok");
  EXPECT_EQ(config->qk_scale_factor, 3.875F);
}

TEST(ModelConfig, NormsOfOtherTypesAreRefused) {
  GgufWriter file = small_muse_model();
  file.find_tensor("blk.1.attn_k_norm.weight").type = 24;
  EXPECT_EQ(refusal(file), "expectation:unsupported dtype I8 for tensor blk.1.attn_k_norm.weight");
}

TEST(ModelConfig, RotationIsThatOfTheRegisteredLayout) {
  const MuseConfig good{.head_dim = 128, .value_head_dim = 128, .rope_base_swa = 500'000.0F, .rope_dim = 128};
  EXPECT_EQ(verdict(check_model_rotation(good)), "ok");
  const std::string disagrees = "expectation:model disagrees with layout muse-glimmer-30b: ";
  MuseConfig config = good;
  config.value_head_dim = 64;
  EXPECT_EQ(verdict(check_model_rotation(config)), disagrees + "value head dimension");
  config.rope_dim = 64;
  EXPECT_EQ(verdict(check_model_rotation(config)), disagrees + "rotary dimensions");
  config.rope_base_swa = std::nanf("");
  EXPECT_EQ(verdict(check_model_rotation(config)), disagrees + "rotary base");
}

}  // namespace
}  // namespace kvpack::muse::model_config_test
