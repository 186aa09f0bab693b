/// The identity under which the demo's caches are saved, and the family that describes them.
///
/// Each digest is D(domain, parts) = SHA-256(domain || NUL || for each part: u64 length || part), integers
/// and the bits of f32 numbers little-endian, except that the first is the plain SHA-256 of the model file:
///
///   weights_config      SHA-256 of the GGUF file
///   adapters            D("kvpack-demo/adapters/v1", "none")
///   tokenizer_template  D("kvpack-demo/tokenizer/v1", value of tokenizer.ggml.model)
///   position_semantics  D("kvpack-demo/position/v1", u32 window, u32 RoPE dimensions, f32 RoPE base,
///                         f32 norm epsilon, f32 post-norm epsilon)
///   qualified_math      D("kvpack-demo/math/v1", CPU features, threads, batch and attention as one text)
///   engine_cache_abi    D("kvpack-demo/engine-cache-abi/v1", state format, i32 element type, row layout)
///   topology            D("kvpack-demo/topology/v1", one part for each sub-cache: u32 window, u32 layers)
///   shard_map           D("kvpack-demo/shard-map/v1", "one rank, keys then values, layers ascending")
///
/// Whether V lies transposed in the engine's memory is not part of it: planes are the same either way.
/// Whether flash attention computed them is, in qualified_math.
#pragma once

#include <bit>

#include "engine/demo/engine.h"
#include "kvpack/core/family_builder.h"

namespace kvpack::demo {

inline constexpr std::string_view kKeyName = "attn.k";
inline constexpr std::string_view kValueName = "attn.v";
inline constexpr std::uint64_t kKvHeads = 2, kHeadDim = 128;

/// The five digests of the model.
SemanticModelId semantic_model(const EngineFacts& facts);

/// 104 states, `(layer, attn.k)` and `(layer, attn.v)` of 52 layers, each `[tokens][2][128]` f16. Layers with
/// a window are tail-window states, the others direct ones.
Result<IdentifiedFamily> kv_family(const EngineFacts& facts, const llama::StateLayout& layout);

// ---------------------------------------------------------------------------------------------------------------------

namespace detail {

/// D of the comment above.
class DomainHash {
 public:
  explicit DomainHash(std::string_view domain) {
    hash_.update(byte_view(domain));
    hash_.update(with_nul(""));
  }
  DomainHash& part(ByteSpan bytes) {
    hash_.update(le_bytes(std::uint64_t{bytes.size()}));
    hash_.update(bytes);
    return *this;
  }
  DomainHash& text(std::string_view text) { return part(byte_view(text)); }
  DomainHash& u32(std::uint32_t value) { return part(le_bytes(value)); }
  DomainHash& f32(float value) { return u32(std::bit_cast<std::uint32_t>(value)); }
  Id32 finish() { return Id32{hash_.finish()}; }

 private:
  Sha256 hash_;
};

}  // namespace detail

inline SemanticModelId semantic_model(const EngineFacts& facts) {
  using detail::DomainHash;
  return {.weights_config = facts.model_sha256,
          .adapters = DomainHash("kvpack-demo/adapters/v1").text("none").finish(),
          .tokenizer_template = DomainHash("kvpack-demo/tokenizer/v1").text(facts.tokenizer).finish(),
          .position_semantics = DomainHash("kvpack-demo/position/v1")
                                    .u32(facts.window_tokens)
                                    .u32(facts.rope_dimensions)
                                    .f32(facts.rope_base)
                                    .f32(facts.norm_epsilon)
                                    .f32(facts.post_norm_epsilon)
                                    .finish(),
          .qualified_math = DomainHash("kvpack-demo/math/v1").text(facts.math).finish()};
}

inline Result<IdentifiedFamily> kv_family(const EngineFacts& facts, const llama::StateLayout& layout) {
  using detail::DomainHash;
  DomainHash topology("kvpack-demo/topology/v1");
  std::vector<StateSpec> states;
  for (const llama::CacheLayout& cache : layout.caches) {
    const TokenAxisRule rule = cache.window_tokens == 0 ? TokenAxisRule::kDirect : TokenAxisRule::kTailWindow;
    ByteWriter part;
    part.le(cache.window_tokens);
    for (const std::uint32_t layer : cache.layers) {
      part.le(layer);
      for (const std::string_view name : {kKeyName, kValueName})
        states.push_back({.layer = layer,
                          .name = std::string(name),
                          .dtype = DType::kF16,
                          .dimensions = {kTokenAxis, kKvHeads, kHeadDim},
                          .token_axis_rule = rule});
    }
    topology.part(part.view());
  }
  const Id32 abi = DomainHash("kvpack-demo/engine-cache-abi/v1")
                       .text(facts.state_format)
                       .u32(static_cast<std::uint32_t>(llama::kTypeF16))
                       .text("[kv_heads 2][head_dim 128], head-major; K after norm and RoPE")
                       .finish();
  const Id32 shards =
      DomainHash("kvpack-demo/shard-map/v1").text("one rank, keys then values, layers ascending").finish();
  return build_family({.engine_cache_abi = abi, .topology = topology.finish(), .shard_map = shards},
                      std::move(states));
}

}  // namespace kvpack::demo
