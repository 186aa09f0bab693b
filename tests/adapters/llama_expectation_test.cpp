// What the states of models have to look like, out of metadata alone.
#include "llama/expectation.h"

#include <gtest/gtest.h>

namespace kvpack::llama_expectation_test {
namespace {

using namespace llama_state;

MetadataValue number(std::uint64_t value) {
  return {false, {value}};
}
MetadataValue list(std::vector<std::uint64_t> values) {
  return {true, std::move(values)};
}

/// Four layers, 8 heads of 16, of which 2 have K and V.
ModelFacts model(std::string architecture) {
  ModelFacts facts;
  facts.architecture = std::move(architecture);
  facts.layer_count = 4;
  facts.metadata = {{"embedding_length", number(128)},
                    {"attention.head_count", number(8)},
                    {"attention.head_count_kv", number(2)}};
  return facts;
}

StateLayout expect(const ModelFacts& facts) {
  auto layout = expect_state(facts);
  EXPECT_TRUE(layout.has_value()) << layout.error().verdict();
  return layout.has_value() ? *std::move(layout) : StateLayout{};
}

std::string verdict(const ModelFacts& facts) {
  const auto layout = expect_state(facts);
  return layout.has_value() ? "accepted" : layout.error().verdict();
}

std::vector<std::uint32_t> layers_in(const CacheLayout& cache) {
  std::vector<std::uint32_t> layers;
  for (const CacheLayer& layer : cache.layers) layers.push_back(layer.layer);
  return layers;
}

using Layers = std::vector<std::uint32_t>;

TEST(LlamaExpectation, FullAttentionIsOneCache) {
  const StateLayout layout = expect(model("llama"));
  ASSERT_EQ(layout.caches.size(), 1U);
  EXPECT_FALSE(layout.recurrent.has_value());
  EXPECT_EQ(layers_in(layout.caches[0]), (Layers{0, 1, 2, 3}));
  EXPECT_EQ(layout.caches[0].layers[0].key_row_bytes, 2U * 16 * 2);
  EXPECT_EQ(layout.caches[0].layers[0].value_row_bytes, 2U * 16 * 2);
  EXPECT_TRUE(layout.caches[0].has_values);
  EXPECT_EQ(describe_layout(layout), "planes: 4 layers of attention");
}

TEST(LlamaExpectation, HeadsAreThoseOfTheMetadataOrDivideTheEmbedding) {
  ModelFacts facts = model("qwen3");
  facts.metadata["attention.key_length"] = number(32);
  facts.metadata["attention.value_length"] = number(64);
  EXPECT_EQ(expect(facts).caches[0].layers[0].key_row_bytes, 2U * 32 * 2);
  EXPECT_EQ(expect(facts).caches[0].layers[0].value_row_bytes, 2U * 64 * 2);
  facts.metadata["attention.head_count_kv"] = list({1, 2, 0, 4});
  const StateLayout varied = expect(facts);
  EXPECT_EQ(varied.caches[0].layers[3].key_row_bytes, 4U * 32 * 2);
  EXPECT_EQ(varied.caches[0].layers[2].key_row_bytes, 0U);  // A header without a plane.
  facts.metadata.erase("attention.head_count_kv");
  EXPECT_EQ(expect(facts).caches[0].layers[0].key_row_bytes, 8U * 32 * 2);
}

TEST(LlamaExpectation, RowsAreOfTheTypesOfTheContext) {
  ModelFacts facts = model("llama");
  facts.key_type = kTypeQ8_0;
  facts.value_type = kTypeQ4_0;
  const StateLayout layout = expect(facts);
  EXPECT_EQ(layout.caches[0].layers[0].key_row_bytes, 34U);
  EXPECT_EQ(layout.caches[0].layers[0].value_row_bytes, 18U);
  EXPECT_EQ(layout.caches[0].value_element_bytes, 0U);
  facts.metadata["attention.key_length"] = number(17);
  EXPECT_EQ(verdict(facts), "expectation:row size is outside bounds");
  facts.key_type = 12;
  EXPECT_EQ(verdict(facts), "expectation:cache type is not known");
}

TEST(LlamaExpectation, SlidingLayersAreTheSecondCache) {
  ModelFacts facts = model("gemma3");
  facts.window_tokens = 32;
  facts.layer_count = 7;
  const StateLayout layout = expect(facts);
  ASSERT_EQ(layout.caches.size(), 2U);
  EXPECT_EQ(layers_in(layout.caches[0]), (Layers{5}));
  EXPECT_EQ(layers_in(layout.caches[1]), (Layers{0, 1, 2, 3, 4, 6}));
  EXPECT_EQ(layout.caches[0].window.rule, WindowRule::kNone);
  EXPECT_EQ(layout.caches[1].window.rule, WindowRule::kSliding);
  EXPECT_EQ(layout.caches[1].window.tokens, 32U);
  facts.metadata["attention.sliding_window_pattern"] = number(2);
  EXPECT_EQ(layers_in(expect(facts).caches[0]), (Layers{1, 3, 5}));
  facts.metadata["attention.sliding_window_pattern"] = list({1, 0, 0, 1, 1, 1, 0});
  EXPECT_EQ(layers_in(expect(facts).caches[0]), (Layers{1, 2, 6}));
  facts.metadata["attention.sliding_window_pattern"] = number(0);
  EXPECT_TRUE(layers_in(expect(facts).caches[0]).empty());  // The cells are there all the same.
  facts.metadata["attention.sliding_window_pattern"] = list({1, 0});
  EXPECT_EQ(verdict(facts),
            "expectation:metadata attention.sliding_window_pattern has not one number for each layer");
  facts.window_tokens = 0;
  EXPECT_EQ(expect(facts).caches.size(), 1U);
}

TEST(LlamaExpectation, EveryArchitectureHasItsOwnPattern) {
  const auto full = [](std::string architecture, std::uint32_t layers) {
    ModelFacts facts = model(std::move(architecture));
    facts.window_tokens = 16;
    facts.layer_count = layers;
    return layers_in(expect(facts).caches[0]);
  };
  EXPECT_EQ(full("gpt-oss", 4), (Layers{1, 3}));
  EXPECT_EQ(full("llama4", 5), (Layers{3}));
  EXPECT_EQ(full("cohere2moe", 5), (Layers{0, 4}));  // The full one comes first.
  EXPECT_EQ(full("muse-glimmer", 8), (Layers{3, 7}));
  EXPECT_EQ(full("exaone4", 4), (Layers{0, 1, 2, 3}));  // Only the large one slides.
  EXPECT_EQ(full("exaone4", 64).size(), 16U);
  EXPECT_EQ(full("qwen2", 4), (Layers{0, 1, 2, 3}));  // Has a window in its file and none in effect.
  ModelFacts facts = model("mimo2");
  facts.window_tokens = 16;
  EXPECT_EQ(verdict(facts), "expectation:metadata attention.sliding_window_pattern is missing");
  facts = model("llama4");
  facts.window_tokens = 8192;
  EXPECT_EQ(expect(facts).caches[1].window.rule, WindowRule::kChunked);
}

TEST(LlamaExpectation, LayersThatUseTheRowsOfOthersHaveNone) {
  ModelFacts facts = model("gemma4");
  facts.window_tokens = 16;
  facts.metadata["attention.sliding_window_pattern"] = list({1, 0, 1, 0});
  facts.metadata["attention.shared_kv_layers"] = number(2);
  facts.metadata["attention.key_length_swa"] = number(8);
  facts.metadata["attention.value_length_swa"] = number(4);
  const StateLayout layout = expect(facts);
  EXPECT_EQ(layers_in(layout.caches[0]), (Layers{1}));
  EXPECT_EQ(layers_in(layout.caches[1]), (Layers{0}));
  EXPECT_EQ(layout.caches[0].layers[0].key_row_bytes, 2U * 16 * 2);
  EXPECT_EQ(layout.caches[1].layers[0].key_row_bytes, 2U * 8 * 2);
  EXPECT_EQ(layout.caches[1].layers[0].value_row_bytes, 2U * 4 * 2);
}

TEST(LlamaExpectation, LatentsHaveNoValues) {
  ModelFacts facts = model("deepseek2");
  facts.metadata["attention.head_count_kv"] = number(1);
  facts.metadata["attention.key_length"] = number(576);
  facts.metadata["attention.key_length_mla"] = number(192);
  facts.metadata["attention.value_length_mla"] = number(128);
  const StateLayout layout = expect(facts);
  EXPECT_FALSE(layout.caches[0].has_values);
  EXPECT_EQ(layout.caches[0].layers[0].key_row_bytes, 576U * 2);
  EXPECT_EQ(describe_layout(layout), "planes: 4 layers of latents");
  facts.metadata.erase("attention.value_length_mla");
  EXPECT_TRUE(expect(facts).caches[0].has_values);
}

TEST(LlamaExpectation, AnIndexerHasACacheOfItsOwn) {
  ModelFacts facts = model("deepseek32");
  facts.draft_layer_count = 1;
  facts.metadata["attention.key_length_mla"] = number(192);
  facts.metadata["attention.value_length_mla"] = number(128);
  facts.metadata["attention.indexer.key_length"] = number(64);
  const StateLayout layout = expect(facts);
  ASSERT_EQ(layout.caches.size(), 2U);
  EXPECT_TRUE(layout.caches[1].is_index);
  EXPECT_EQ(layers_in(layout.caches[1]), (Layers{0, 1, 2, 3}));
  EXPECT_EQ(layout.caches[1].layers[0].key_row_bytes, 64U * 2);
  EXPECT_EQ(describe_layout(layout), "planes: 4 layers of latents, 4 layers of index keys");
  facts.metadata.erase("attention.indexer.key_length");
  EXPECT_EQ(verdict(facts), "expectation:row size is outside bounds");
}

ModelFacts with_states(std::string architecture) {
  ModelFacts facts = model(std::move(architecture));
  facts.metadata["ssm.conv_kernel"] = number(4);
  facts.metadata["ssm.inner_size"] = number(256);
  facts.metadata["ssm.state_size"] = number(16);
  return facts;
}

TEST(LlamaExpectation, RecurrentModelsHaveTwoRowsForEachLayer) {
  ModelFacts facts = with_states("mamba");
  facts.is_recurrent = true;
  const StateLayout layout = expect(facts);
  EXPECT_TRUE(layout.caches.empty());
  ASSERT_TRUE(layout.recurrent.has_value());
  EXPECT_EQ(layout.recurrent->layer_count, 4U);
  ASSERT_EQ(layout.recurrent->layers.size(), 4U);
  EXPECT_EQ(layout.recurrent->layers[0].first_row_bytes, 3U * 256 * 4);
  EXPECT_EQ(layout.recurrent->layers[0].second_row_bytes, 16U * 256 * 4);
  facts.metadata["ssm.group_count"] = number(2);
  EXPECT_EQ(expect(facts).recurrent->layers[0].first_row_bytes, 3U * (256 + 2 * 2 * 16) * 4);
  EXPECT_EQ(describe_layout(layout), "planes: 4 recurrent layers");
}

TEST(LlamaExpectation, OtherRecurrencesHaveRowsOfOtherSizes) {
  ModelFacts facts = model("rwkv7");
  facts.is_recurrent = true;
  facts.metadata["wkv.head_size"] = number(64);
  EXPECT_EQ(expect(facts).recurrent->layers[0].first_row_bytes, 2U * 128 * 4);
  EXPECT_EQ(expect(facts).recurrent->layers[0].second_row_bytes, 128U * 64 * 4);
  facts = model("lfm2");
  facts.is_hybrid = true;
  facts.metadata["shortconv.l_cache"] = number(3);
  facts.metadata["attention.head_count_kv"] = list({0, 0, 2, 0});
  EXPECT_EQ(expect(facts).recurrent->layers[0].first_row_bytes, 2U * 128 * 4);
  EXPECT_EQ(expect(facts).recurrent->layers[0].second_row_bytes, 0U);
  facts = model("kimi-linear");
  facts.is_hybrid = true;
  facts.metadata["kda.head_dim"] = number(32);
  facts.metadata["attention.head_count_kv"] = list({0, 0, 0, 1});
  EXPECT_EQ(expect(facts).recurrent->layers[0].first_row_bytes, 3U * 3 * 8 * 32 * 4);
  EXPECT_EQ(expect(facts).recurrent->layers[0].second_row_bytes, 32U * 32 * 8 * 4);
  facts = model("minimax-01");
  facts.is_hybrid = true;
  facts.layer_count = 8;
  EXPECT_EQ(expect(facts).recurrent->layers[0].first_row_bytes, 0U);
  EXPECT_EQ(expect(facts).recurrent->layers[0].second_row_bytes, 16U * 16 * 8 * 4);
}

TEST(LlamaExpectation, HybridsHaveBoth) {
  ModelFacts facts = with_states("jamba");
  facts.is_hybrid = true;
  facts.metadata["attention.head_count_kv"] = list({0, 2, 0, 0});
  StateLayout layout = expect(facts);
  EXPECT_EQ(layers_in(layout.caches[0]), (Layers{1}));
  EXPECT_EQ(layout.recurrent->layers.size(), 3U);
  EXPECT_EQ(layout.recurrent->layer_count, 4U);
  facts = with_states("falcon-h1");
  facts.is_hybrid = true;
  layout = expect(facts);
  EXPECT_EQ(layout.caches[0].layers.size(), 4U);
  EXPECT_EQ(layout.recurrent->layers.size(), 4U);
  facts = with_states("qwen3next");
  facts.is_hybrid = true;
  layout = expect(facts);
  EXPECT_EQ(layers_in(layout.caches[0]), (Layers{3}));
  facts.metadata["attention.recurrent_layers"] = list({0, 1, 1, 0});
  EXPECT_EQ(layers_in(expect(facts).caches[0]), (Layers{0, 3}));
  facts.metadata.erase("attention.recurrent_layers");
  facts.metadata["full_attention_interval"] = number(0);
  EXPECT_EQ(verdict(facts), "expectation:metadata full_attention_interval is 0");
  facts = with_states("nemotron_h");
  facts.is_hybrid = true;
  facts.metadata["attention.head_count_kv"] = list({0, 2, 0, 0});
  facts.metadata["feed_forward_length"] = list({0, 0, 512, 0});
  layout = expect(facts);
  EXPECT_EQ(layers_in(layout.caches[0]), (Layers{1}));
  ASSERT_EQ(layout.recurrent->layers.size(), 2U);
  EXPECT_EQ(layout.recurrent->layers[1].layer, 3U);
}

TEST(LlamaExpectation, GridPositionsMakeCellsLonger) {
  ModelFacts facts = model("qwen2vl");
  facts.has_grid_positions = true;
  EXPECT_TRUE(expect(facts).caches[0].extended_cells);
}

TEST(LlamaExpectation, DraftLayersAreNoneOfTheSequence) {
  ModelFacts facts = model("glm4moe");
  facts.draft_layer_count = 1;
  EXPECT_EQ(layers_in(expect(facts).caches[0]), (Layers{0, 1, 2, 3}));
}

TEST(LlamaExpectation, WhatIsNotKnownIsNotGuessed) {
  EXPECT_EQ(verdict(model("deepseek4")), "expectation:architecture deepseek4 keeps parts of its own");
  EXPECT_EQ(verdict(model("llama5")), "expectation:architecture llama5 is not known");
  ModelFacts facts = model("llama");
  facts.layer_count = 0;
  EXPECT_EQ(verdict(facts), "expectation:layer count is outside bounds");
  facts.layer_count = kMaxLayersPerCache;
  facts.draft_layer_count = 1;
  EXPECT_EQ(verdict(facts), "expectation:layer count is outside bounds");
  facts.layer_count = 0xffffffff;
  facts.draft_layer_count = 0xffffffff;
  EXPECT_EQ(verdict(facts), "expectation:layer count is outside bounds");
}

TEST(LlamaExpectation, NumbersThatFitNothingAreRefused) {
  ModelFacts facts = model("llama");
  facts.metadata["attention.key_length"] = number(~std::uint64_t{0});
  EXPECT_EQ(verdict(facts), "expectation:row size is outside bounds");
  facts = model("llama");
  facts.metadata["attention.head_count_kv"] = list({1, 2});
  EXPECT_EQ(verdict(facts), "expectation:metadata attention.head_count_kv has not one number for each layer");
  facts = with_states("mamba");
  facts.is_recurrent = true;
  facts.metadata["ssm.inner_size"] = number(std::uint64_t{1} << 60);
  EXPECT_EQ(verdict(facts), "expectation:recurrent row size is outside bounds");
  facts = model("mamba");
  facts.is_recurrent = true;
  EXPECT_EQ(verdict(facts), "expectation:recurrent row size is outside bounds");
  facts = with_states("jamba");
  facts.is_hybrid = true;
  EXPECT_EQ(verdict(facts), "expectation:no layer recurs");
}

}  // namespace
}  // namespace kvpack::llama_expectation_test
