#include "engine/tiny_models.h"

#include <cmath>
#include <fstream>

namespace kvpack::engine_models {

namespace {

using kvpack::testing::GgufWriter;
using Dimensions = std::vector<std::uint64_t>;

// Q heads on KV heads of kHead elements. Some architectures want the Q heads to fill the embedding exactly.
constexpr std::uint32_t kHead = 64, kHeads = 4, kKvHeads = 2, kEmbedding = kHead * kHeads;
constexpr std::uint32_t kFeedForward = 128, kExperts = 4, kExpertsUsed = 2, kExpertFeedForward = 64;
// MLA: what a layer keeps of a token are kLatent + kRope elements.
constexpr std::uint32_t kLatent = 96, kRope = 32, kQueryRank = 64, kMlaKey = 64, kMlaValue = 32;
constexpr std::uint32_t kIndexerHeads = 2, kIndexerKey = 64, kIndexerTopK = 24;
constexpr std::uint32_t kConvolution = 4, kStateSize = 16, kStepRank = 8;

constexpr std::uint64_t kStep = 0x9e3779b97f4a7c15U;

constexpr std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

// A model file in the making: keys under the architecture's prefix, tensors with numbers from their names.
class Builder {
 public:
  Builder(std::string_view architecture, std::uint64_t seed) : prefix_(architecture), seed_(seed) {
    file.string("general.architecture", architecture);
    file.string("tokenizer.ggml.model", "none");
    prefix_ += ".";
    u32("vocab_size", kVocabulary).u32("context_length", 8192);
    f32("attention.layer_norm_rms_epsilon", 1e-5F);
  }

  Builder& u32(std::string_view key, std::uint32_t value) {
    file.u32(prefix_ + std::string(key), value);
    return *this;
  }
  Builder& f32(std::string_view key, float value) {
    file.f32(prefix_ + std::string(key), value);
    return *this;
  }
  Builder& array(std::string_view key, const std::vector<std::uint32_t>& values) {
    file.array(prefix_ + std::string(key), muse::GgufType::kU32, values);
    return *this;
  }
  Builder& f32s(std::string_view key, const std::vector<float>& values) {
    std::vector<std::uint32_t> bits;
    for (const float value : values) bits.push_back(std::bit_cast<std::uint32_t>(value));
    file.array(prefix_ + std::string(key), muse::GgufType::kF32, bits);
    return *this;
  }

  // Uniform around `middle`, so that a product keeps the size of what it is multiplied with.
  void random(const std::string& name, const Dimensions& dimensions, float middle = 0.0F) {
    std::uint64_t count = 1, state = seed_ + 1;
    for (const std::uint64_t n : dimensions) count *= n;
    for (const char c : name) state = mixed(state ^ static_cast<unsigned char>(c)) + kStep;
    const float reach = dimensions.size() == 1 ? 0.1F : std::sqrt(3.0F / static_cast<float>(dimensions[0]));
    Bytes data(count * 4);
    for (std::uint64_t i = 0; i < count; ++i) {
      state += kStep;
      const float unit = static_cast<float>(mixed(state) >> 40) * 0x1p-23F - 1.0F;
      store_le(MutableByteSpan(data), 4 * i, std::bit_cast<std::uint32_t>(middle + unit * reach));
    }
    file.tensor(name, muse::kGgufTensorF32, dimensions, data);
  }
  void weight(const std::string& name, const Dimensions& dimensions) { random(name + ".weight", dimensions); }
  void bias(const std::string& name, const Dimensions& dimensions) { random(name + ".bias", dimensions); }
  void norm(const std::string& name, std::uint64_t size) { random(name + ".weight", {size}, 1.0F); }
  std::string block(std::uint32_t layer, std::string_view name) const {
    return "blk." + std::to_string(layer) + "." + std::string(name);
  }

  GgufWriter file;

 private:
  std::string prefix_;
  std::uint64_t seed_;
};

void add_sizes(Builder& model, std::uint32_t layers, std::uint32_t embedding = kEmbedding) {
  model.u32("embedding_length", embedding).u32("block_count", layers);
  model.u32("feed_forward_length", kFeedForward);
  model.weight("token_embd", {embedding, kVocabulary});
}

void add_heads(Builder& model) {
  model.u32("attention.head_count", kHeads).u32("attention.head_count_kv", kKvHeads);
  model.u32("attention.key_length", kHead).u32("attention.value_length", kHead);
  model.u32("rope.dimension_count", kHead);
}

void add_window(Builder& model) {
  model.u32("attention.sliding_window", kWindowTokens).u32("attention.sliding_window_pattern", 2);
}

void add_output(Builder& model) {
  model.weight("output", {kEmbedding, kVocabulary});
}

void add_attention(Builder& model, std::uint32_t layer) {
  model.norm(model.block(layer, "attn_norm"), kEmbedding);
  model.weight(model.block(layer, "attn_q"), {kEmbedding, kHeads * kHead});
  model.weight(model.block(layer, "attn_k"), {kEmbedding, kKvHeads * kHead});
  model.weight(model.block(layer, "attn_v"), {kEmbedding, kKvHeads * kHead});
  model.weight(model.block(layer, "attn_output"), {kHeads * kHead, kEmbedding});
}

void add_head_norms(Builder& model, std::uint32_t layer) {
  model.norm(model.block(layer, "attn_q_norm"), kHead);
  model.norm(model.block(layer, "attn_k_norm"), kHead);
}

void add_feed_forward(Builder& model, std::uint32_t layer) {
  model.norm(model.block(layer, "ffn_norm"), kEmbedding);
  model.weight(model.block(layer, "ffn_gate"), {kEmbedding, kFeedForward});
  model.weight(model.block(layer, "ffn_up"), {kEmbedding, kFeedForward});
  model.weight(model.block(layer, "ffn_down"), {kFeedForward, kEmbedding});
}

void add_expert_sizes(Builder& model) {
  model.u32("expert_count", kExperts).u32("expert_used_count", kExpertsUsed);
  model.u32("expert_feed_forward_length", kExpertFeedForward);
}

void add_experts(Builder& model, std::uint32_t layer) {
  model.weight(model.block(layer, "ffn_gate_inp"), {kEmbedding, kExperts});
  model.weight(model.block(layer, "ffn_gate_exps"), {kEmbedding, kExpertFeedForward, kExperts});
  model.weight(model.block(layer, "ffn_up_exps"), {kEmbedding, kExpertFeedForward, kExperts});
  model.weight(model.block(layer, "ffn_down_exps"), {kExpertFeedForward, kEmbedding, kExperts});
}

void add_shared_expert(Builder& model, std::uint32_t layer) {
  model.weight(model.block(layer, "ffn_gate_shexp"), {kEmbedding, kExpertFeedForward});
  model.weight(model.block(layer, "ffn_up_shexp"), {kEmbedding, kExpertFeedForward});
  model.weight(model.block(layer, "ffn_down_shexp"), {kExpertFeedForward, kEmbedding});
}

void make_llama(Builder& model) {
  add_sizes(model, 2);
  add_heads(model);
  model.norm("output_norm", kEmbedding);
  for (std::uint32_t layer = 0; layer < 2; ++layer) {
    add_attention(model, layer);
    add_feed_forward(model, layer);
  }
}

void make_qwen2vl(Builder& model) {
  make_llama(model);
  model.array("rope.dimension_sections", {8, 12, 12, 0});
}

void make_qwen3moe(Builder& model) {
  add_sizes(model, 2);
  add_heads(model);
  add_expert_sizes(model);
  model.norm("output_norm", kEmbedding);
  for (std::uint32_t layer = 0; layer < 2; ++layer) {
    add_attention(model, layer);
    add_head_norms(model, layer);
    model.norm(model.block(layer, "ffn_norm"), kEmbedding);
    add_experts(model, layer);
  }
}

void make_gemma3(Builder& model) {
  add_sizes(model, 2);
  add_heads(model);
  add_window(model);
  model.norm("output_norm", kEmbedding);
  for (std::uint32_t layer = 0; layer < 2; ++layer) {
    add_attention(model, layer);
    add_head_norms(model, layer);
    model.norm(model.block(layer, "post_attention_norm"), kEmbedding);
    add_feed_forward(model, layer);
    model.norm(model.block(layer, "post_ffw_norm"), kEmbedding);
  }
}

void make_muse(Builder& model) {
  make_gemma3(model);
  add_output(model);
  model.f32("logit_scale", 1.0F).f32("rope.freq_base", 500'000.0F);
  for (std::uint32_t layer = 0; layer < 2; ++layer)
    model.weight(model.block(layer, "attn_gate"), {kEmbedding, kHeads * kHead});
}

void make_gpt_oss(Builder& model) {
  add_sizes(model, 2);
  add_heads(model);
  add_window(model);
  add_expert_sizes(model);
  model.norm("output_norm", kEmbedding);
  add_output(model);
  for (std::uint32_t layer = 0; layer < 2; ++layer) {
    add_attention(model, layer);
    model.bias(model.block(layer, "attn_output"), {kEmbedding});
    model.weight(model.block(layer, "attn_sinks"), {kHeads});
    model.norm(model.block(layer, "post_attention_norm"), kEmbedding);
    add_experts(model, layer);
    model.bias(model.block(layer, "ffn_gate_inp"), {kExperts});
    model.bias(model.block(layer, "ffn_gate_exps"), {kExpertFeedForward, kExperts});
    model.bias(model.block(layer, "ffn_up_exps"), {kExpertFeedForward, kExperts});
    model.bias(model.block(layer, "ffn_down_exps"), {kEmbedding, kExperts});
  }
}

// Its window is 8,192 tokens whatever the file says, and without a fourth layer it cannot compute: that one
// keeps every token.
void make_llama4(Builder& model) {
  constexpr std::uint32_t kLayers = 4;
  add_sizes(model, kLayers);
  add_heads(model);
  add_expert_sizes(model);
  model.u32("attention.sliding_window", kWindowTokens).u32("interleave_moe_layer_step", kLayers);
  model.norm("output_norm", kEmbedding);
  for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
    add_attention(model, layer);
    if (layer + 1 < kLayers) add_feed_forward(model, layer);
  }
  model.norm(model.block(kLayers - 1, "ffn_norm"), kEmbedding);
  add_experts(model, kLayers - 1);
  add_shared_expert(model, kLayers - 1);
}

// The first layer has an ordinary feed forward, the second experts.
void make_deepseek2(Builder& model) {
  add_sizes(model, 2);
  model.u32("attention.head_count", kHeads).u32("attention.head_count_kv", 1);
  model.u32("attention.q_lora_rank", kQueryRank).u32("attention.kv_lora_rank", kLatent);
  model.u32("attention.key_length", kLatent + kRope).u32("attention.value_length", kLatent);
  model.u32("attention.key_length_mla", kMlaKey).u32("attention.value_length_mla", kMlaValue);
  model.u32("rope.dimension_count", kRope).u32("leading_dense_block_count", 1);
  add_expert_sizes(model);
  model.u32("expert_shared_count", 1);
  model.norm("output_norm", kEmbedding);
  for (std::uint32_t layer = 0; layer < 2; ++layer) {
    model.norm(model.block(layer, "attn_norm"), kEmbedding);
    model.weight(model.block(layer, "attn_q_a"), {kEmbedding, kQueryRank});
    model.norm(model.block(layer, "attn_q_a_norm"), kQueryRank);
    model.weight(model.block(layer, "attn_q_b"), {kQueryRank, kHeads * kMlaKey});
    model.weight(model.block(layer, "attn_kv_a_mqa"), {kEmbedding, kLatent + kRope});
    model.norm(model.block(layer, "attn_kv_a_norm"), kLatent);
    model.weight(model.block(layer, "attn_k_b"), {kMlaKey - kRope, kLatent, kHeads});
    model.weight(model.block(layer, "attn_v_b"), {kLatent, kMlaValue, kHeads});
    model.weight(model.block(layer, "attn_output"), {kHeads * kMlaValue, kEmbedding});
  }
  add_feed_forward(model, 0);
  model.norm(model.block(1, "ffn_norm"), kEmbedding);
  add_experts(model, 1);
  add_shared_expert(model, 1);
}

void make_deepseek32(Builder& model) {
  make_deepseek2(model);
  model.u32("expert_gating_func", 2);  // Sigmoid.
  model.u32("attention.indexer.head_count", kIndexerHeads);
  model.u32("attention.indexer.key_length", kIndexerKey).u32("attention.indexer.top_k", kIndexerTopK);
  for (std::uint32_t layer = 0; layer < 2; ++layer) {
    model.norm(model.block(layer, "indexer.k_norm"), kIndexerKey);
    model.bias(model.block(layer, "indexer.k_norm"), {kIndexerKey});
    model.weight(model.block(layer, "indexer.proj"), {kEmbedding, kIndexerHeads});
    model.weight(model.block(layer, "indexer.attn_k"), {kEmbedding, kIndexerKey});
    model.weight(model.block(layer, "indexer.attn_q_b"), {kQueryRank, kIndexerHeads * kIndexerKey});
  }
}

void add_recurrent_sizes(Builder& model, std::uint32_t embedding) {
  model.u32("ssm.conv_kernel", kConvolution).u32("ssm.inner_size", 2 * embedding);
  model.u32("ssm.state_size", kStateSize).u32("ssm.time_step_rank", kStepRank);
}

void add_recurrent(Builder& model, std::uint32_t layer, std::uint32_t embedding) {
  const std::uint32_t inner = 2 * embedding;
  model.norm(model.block(layer, "attn_norm"), embedding);
  model.weight(model.block(layer, "ssm_in"), {embedding, 2 * inner});
  model.weight(model.block(layer, "ssm_conv1d"), {kConvolution, inner});
  model.bias(model.block(layer, "ssm_conv1d"), {inner});
  model.weight(model.block(layer, "ssm_x"), {inner, kStepRank + 2 * kStateSize});
  model.weight(model.block(layer, "ssm_dt"), {kStepRank, inner});
  model.bias(model.block(layer, "ssm_dt"), {inner});
  model.random(model.block(layer, "ssm_a"), {kStateSize, inner}, -1.0F);  // Negative: else it grows.
  model.random(model.block(layer, "ssm_d"), {inner}, 1.0F);
  model.weight(model.block(layer, "ssm_out"), {inner, embedding});
}

void make_mamba(Builder& model) {
  constexpr std::uint32_t kMambaEmbedding = 64;
  add_sizes(model, 2, kMambaEmbedding);
  add_recurrent_sizes(model, kMambaEmbedding);
  model.norm("output_norm", kMambaEmbedding);
  for (std::uint32_t layer = 0; layer < 2; ++layer) add_recurrent(model, layer, kMambaEmbedding);
}

// Layer 1 has attention.
void add_mixed_heads(Builder& model) {
  model.u32("attention.head_count", kHeads).array("attention.head_count_kv", {0, kKvHeads, 0});
}

void make_jamba(Builder& model) {
  add_sizes(model, 3);
  add_mixed_heads(model);
  add_recurrent_sizes(model, kEmbedding);
  model.norm("output_norm", kEmbedding);
  for (std::uint32_t layer = 0; layer < 3; ++layer) {
    if (layer == 1) {
      add_attention(model, layer);
    } else {
      add_recurrent(model, layer, kEmbedding);
      model.norm(model.block(layer, "ssm_dt_norm"), kStepRank);
      model.norm(model.block(layer, "ssm_b_norm"), kStateSize);
      model.norm(model.block(layer, "ssm_c_norm"), kStateSize);
    }
    add_feed_forward(model, layer);
  }
}

void make_lfm2(Builder& model) {
  constexpr std::uint32_t kShortConvolution = 3;
  add_sizes(model, 3);
  add_mixed_heads(model);
  model.u32("shortconv.l_cache", kShortConvolution);
  model.norm("token_embd_norm", kEmbedding);
  for (std::uint32_t layer = 0; layer < 3; ++layer) {
    if (layer == 1) {
      add_attention(model, layer);
      add_head_norms(model, layer);
    } else {
      model.norm(model.block(layer, "attn_norm"), kEmbedding);
      model.weight(model.block(layer, "shortconv.conv"), {kShortConvolution, kEmbedding});
      model.weight(model.block(layer, "shortconv.in_proj"), {kEmbedding, 3 * kEmbedding});
      model.weight(model.block(layer, "shortconv.out_proj"), {kEmbedding, kEmbedding});
    }
    add_feed_forward(model, layer);
  }
}

// Layer 0 slides. Layer 1 also keeps one row for every four tokens and an indexer's keys for them, layer 2
// one row for every 128 tokens. Without one of each the engine dies.
void make_deepseek4(Builder& model) {
  constexpr std::uint32_t kStreams = 4, kMix = (2 + kStreams) * kStreams, kOutputGroups = 2, kOutputRank = 32;
  constexpr std::uint32_t kLayers = 3, kRatio = 4, kLongRatio = 128;
  add_sizes(model, kLayers);
  model.u32("attention.head_count", kHeads).u32("attention.head_count_kv", 1);
  model.u32("attention.key_length", kHead).u32("attention.value_length", kHead);
  model.u32("rope.dimension_count", kRope).u32("attention.q_lora_rank", kQueryRank);
  model.u32("attention.sliding_window", kWindowTokens);
  add_expert_sizes(model);
  model.u32("expert_shared_count", 1).u32("expert_gating_func", 4);  // The root of softplus.
  model.f32("expert_weights_scale", 1.0F);
  model.file.boolean("deepseek4.expert_weights_norm", 1);
  model.f32s("swiglu_clamp_exp", {10.0F, 10.0F, 10.0F});
  model.u32("attention.indexer.head_count", kIndexerHeads);
  model.u32("attention.indexer.key_length", kIndexerKey).u32("attention.indexer.top_k", kIndexerTopK);
  model.u32("attention.output_group_count", kOutputGroups).u32("attention.output_lora_rank", kOutputRank);
  model.f32("attention.compress_rope_freq_base", 160'000.0F)
      .array("attention.compress_ratios", {0, kRatio, kLongRatio});
  model.u32("hyper_connection.count", kStreams).u32("hyper_connection.sinkhorn_iterations", 2);
  model.f32("hyper_connection.epsilon", 1e-6F).u32("hash_layer_count", 0);
  model.norm("output_norm", kEmbedding);
  add_output(model);
  model.weight("output_hc_fn", {kStreams * kEmbedding, kStreams});
  model.weight("output_hc_base", {kStreams});
  model.norm("output_hc_scale", 1);
  for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
    model.norm(model.block(layer, "attn_norm"), kEmbedding);
    model.weight(model.block(layer, "attn_sinks"), {kHeads});
    model.weight(model.block(layer, "attn_q_a"), {kEmbedding, kQueryRank});
    model.norm(model.block(layer, "attn_q_a_norm"), kQueryRank);
    model.weight(model.block(layer, "attn_q_b"), {kQueryRank, kHeads * kHead});
    model.weight(model.block(layer, "attn_kv"), {kEmbedding, kHead});
    model.norm(model.block(layer, "attn_kv_a_norm"), kHead);
    model.weight(model.block(layer, "attn_output_a"),
                 {kHeads * kHead / kOutputGroups, kOutputRank * kOutputGroups});
    model.weight(model.block(layer, "attn_output_b"), {kOutputRank * kOutputGroups, kEmbedding});
    for (const std::string part : {"hc_attn", "hc_ffn"}) {
      model.weight(model.block(layer, part + "_fn"), {kStreams * kEmbedding, kMix});
      model.weight(model.block(layer, part + "_base"), {kMix});
      model.norm(model.block(layer, part + "_scale"), 3);
    }
    model.norm(model.block(layer, "ffn_norm"), kEmbedding);
    add_experts(model, layer);
    model.bias(model.block(layer, "exp_probs_b"), {kExperts});
    add_shared_expert(model, layer);
  }
  model.weight(model.block(1, "attn_compressor_kv"), {kEmbedding, 2 * kHead});
  model.weight(model.block(1, "attn_compressor_gate"), {kEmbedding, 2 * kHead});
  model.weight(model.block(1, "attn_compressor_ape"), {2 * kHead, kRatio});
  model.norm(model.block(1, "attn_compressor_norm"), kHead);
  model.weight(model.block(2, "attn_compressor_kv"), {kEmbedding, kHead});
  model.weight(model.block(2, "attn_compressor_gate"), {kEmbedding, kHead});
  model.weight(model.block(2, "attn_compressor_ape"), {kHead, kLongRatio});
  model.norm(model.block(2, "attn_compressor_norm"), kHead);
  model.weight(model.block(1, "indexer.proj"), {kEmbedding, kIndexerHeads});
  model.weight(model.block(1, "indexer.attn_q_b"), {kQueryRank, kIndexerHeads * kIndexerKey});
  model.weight(model.block(1, "indexer_compressor_kv"), {kEmbedding, 2 * kIndexerKey});
  model.weight(model.block(1, "indexer_compressor_gate"), {kEmbedding, 2 * kIndexerKey});
  model.weight(model.block(1, "indexer_compressor_ape"), {2 * kIndexerKey, kRatio});
  model.norm(model.block(1, "indexer_compressor_norm"), kIndexerKey);
}

struct Maker {
  std::string_view architecture;
  void (*make)(Builder&);
};
constexpr std::array kMakers{
    Maker{"llama", make_llama},           Maker{"qwen3moe", make_qwen3moe},
    Maker{"gemma3", make_gemma3},         Maker{"gpt-oss", make_gpt_oss},
    Maker{"llama4", make_llama4},         Maker{"deepseek2", make_deepseek2},
    Maker{"deepseek32", make_deepseek32}, Maker{"mamba", make_mamba},
    Maker{"jamba", make_jamba},           Maker{"lfm2", make_lfm2},
    Maker{"qwen2vl", make_qwen2vl},       Maker{"muse-glimmer", make_muse},
    Maker{"deepseek4", make_deepseek4},
};
static_assert(kMakers.size() == kTinyModels.size());

}  // namespace

GgufWriter tiny_model(std::string_view architecture, std::uint64_t seed) {
  Builder model(architecture, seed);
  std::ranges::find(kMakers, architecture, &Maker::architecture)->make(model);
  return std::move(model.file);
}

bool write_tiny_model(std::string_view architecture, const std::string& path, std::uint64_t seed) {
  const Bytes bytes = tiny_model(architecture, seed).finish();
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  out.close();
  return out.good();
}

}  // namespace kvpack::engine_models
