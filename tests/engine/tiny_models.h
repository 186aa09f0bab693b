// Random models of many architectures, small enough to be written and loaded in an instant: what an adapter
// of llama.cpp meets in the wild, as far as the cache is concerned. All weights are f32 and pseudo-random
// numbers of our own, the same on every machine; vocabulary 128, windows of 32 tokens where the architecture
// has a choice (llama4 has none: chunks of 8,192), two layers or a few more where kinds of layers are mixed,
// heads of 64 elements.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "support/gguf_writer.h"

namespace kvpack::engine_models {

inline constexpr std::uint32_t kVocabulary = 128;
inline constexpr std::uint32_t kWindowTokens = 32;

// What a model keeps of what it has read.
enum class CacheKind {
  kAttention,  // Every token.
  kWindow,     // Every token in some layers, those of a window in the others.
  kLatent,     // Every token, K alone.
  kIndexed,    // The same and the keys of an indexer.
  kRecurrent,  // One row for each layer.
  kHybrid,     // Recurrent layers among such that keep every token.
  kPlaces,     // Every token with three coordinates.
  kOther,      // Parts that no other architecture has.
};

struct TinyModel {
  std::string_view architecture;
  CacheKind kind = CacheKind::kAttention;
};

inline constexpr std::array kTinyModels{
    TinyModel{"llama", CacheKind::kAttention},    TinyModel{"qwen3moe", CacheKind::kAttention},
    TinyModel{"gemma3", CacheKind::kWindow},      TinyModel{"gpt-oss", CacheKind::kWindow},
    TinyModel{"llama4", CacheKind::kWindow},      TinyModel{"deepseek2", CacheKind::kLatent},
    TinyModel{"deepseek32", CacheKind::kIndexed}, TinyModel{"mamba", CacheKind::kRecurrent},
    TinyModel{"jamba", CacheKind::kHybrid},       TinyModel{"lfm2", CacheKind::kHybrid},
    TinyModel{"qwen2vl", CacheKind::kPlaces},     TinyModel{"muse-glimmer", CacheKind::kWindow},
    TinyModel{"deepseek4", CacheKind::kOther},
};

// The file of a model of kTinyModels. Another seed gives another model of exactly the same shape.
kvpack::testing::GgufWriter tiny_model(std::string_view architecture, std::uint64_t seed = 0);

// Writes it. False: the disk would not have it.
bool write_tiny_model(std::string_view architecture, const std::string& path, std::uint64_t seed = 0);

}  // namespace kvpack::engine_models
