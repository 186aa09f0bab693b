/// The descriptor of a Muse cache: geometry gate, portable descriptor, scalar math, exact logits.
/// docs/format/muse.md §Muse descriptor
#pragma once

#include "kvpack/muse/config.h"
#include "kvpack/muse/prefill_descriptor.h"

namespace kvpack::muse {

/// Scalars of a model's graph that its weights file does not show in any tensor.
struct ScalarMath {
  double qk_scale_factor = 0;
  double output_multiplier = 0;
  double final_logit_softcap = 0;  ///< 0: disabled.
  double post_norm_eps = 0;

  friend bool operator==(const ScalarMath&, const ScalarMath&) = default;
};

/// The scalars of a configuration, widened from f32: a decimal that is no f32 is another model.
ScalarMath scalar_math(const MuseConfig& config) noexcept;

/// The weights_config digest of a model whose scalars count (K4).
/// @error kExpectation `portable prefill v2 weights scalar-math fields are outside the supported bounds`
Result<Id32> bind_scalar_math(const Id32& weights_config, const ScalarMath& scalars);

/// Most logits of one token.
inline constexpr std::uint64_t kMaxVocabulary = 1'048'576;

/// Adds the plane of the last token's logits behind the states of a Muse descriptor, and validates the
/// family.
/// @param vocabulary  logits; 1 to kMaxVocabulary
/// @error kExpectation `vocabulary is outside 1..1048576`; kState `descriptor byte size overflow`; as
///        validate_family
Status add_logits_state(PortableDescriptor& descriptor, std::uint64_t vocabulary);

/// Whether a configuration has the geometry that caches are kept for, at a cut of `cached` tokens.
/// @error kExpectation `Muser Muse geometry disagrees with the qualified kvpack layout: {what}`; in this
/// order
///        `layer count`, `KV head geometry`, `SWA window`, `maximum context`, `cached token count`,
///        `39-SWA/13-NoPE partition`
Status check_muse_geometry(const MuseConfig& config, std::uint64_t cached);

/// What prefill_descriptor derives a Muse descriptor from. @pre cached < 2^32
PrefillInput muse_prefill_input(const MuseIdentity& identity, std::uint32_t cached);

/// The complete descriptor of a cut: 52 layers of K and V, and the logits of its last token.
/// @param cached  tokens of the cut
/// @error as check_muse_geometry, derive_descriptor, bind_scalar_math, add_logits_state, in this order. A cut
/// of
///        the whole context passes the gate and is refused by derive_descriptor.
Result<PortableDescriptor> muse_descriptor(const MuseConfig& config, const MuseIdentity& identity,
                                           std::uint64_t cached);

// ---------------------------------------------------------------------------------------------------------------

inline ScalarMath scalar_math(const MuseConfig& config) noexcept {
  return {.qk_scale_factor = config.qk_scale_factor,
          .output_multiplier = config.logit_scale,
          .final_logit_softcap = config.final_logit_softcap,
          .post_norm_eps = config.post_norm_eps};
}

inline Result<Id32> bind_scalar_math(const Id32& weights_config, const ScalarMath& scalars) {
  const auto positive = [](double value) { return std::isfinite(value) && value > 0.0; };
  if (!positive(scalars.qk_scale_factor) || !positive(scalars.output_multiplier) ||
      !std::isfinite(scalars.final_logit_softcap) || scalars.final_logit_softcap < 0.0 ||
      !positive(scalars.post_norm_eps))
    return fail(ErrorCode::kExpectation,
                "portable prefill v2 weights scalar-math fields are outside the supported bounds");
  const auto bits = [](double value) { return le_bytes(std::bit_cast<std::uint64_t>(value)); };
  const auto qk = bits(scalars.qk_scale_factor);
  const auto multiplier = bits(scalars.output_multiplier);
  const auto softcap = bits(scalars.final_logit_softcap);
  const auto epsilon = bits(scalars.post_norm_eps);
  return domain_hash(with_nul("kvpack/spark-prefill/weights-config-scalar-math/v1"),
                     {weights_config, qk, multiplier, softcap, epsilon});
}

inline Status add_logits_state(PortableDescriptor& descriptor, std::uint64_t vocabulary) {
  if (vocabulary == 0 || vocabulary > kMaxVocabulary)
    return fail(ErrorCode::kExpectation, "vocabulary is outside 1..1048576");
  KVPACK_TRY(add_state_bytes(descriptor, vocabulary * dtype_width_bytes(DType::kF32)));
  const StateKey key{kLogitsLayer, std::string(kLogitsState)};
  descriptor.family.states.push_back({.key = key,
                                      .dtype = DType::kF32,
                                      .token_axis_rule = TokenAxisRule::kTailWindow,
                                      .elements_per_token = vocabulary,
                                      .dimensions = {0, vocabulary}});
  descriptor.states.push_back({key, {vocabulary, 1}, kLogitsLayer + 1});
  return validate_family(descriptor.family);
}

inline Status check_muse_geometry(const MuseConfig& config, std::uint64_t cached) {
  const auto refuse = [](std::string_view what) {
    return fail(ErrorCode::kExpectation,
                "Muser Muse geometry disagrees with the qualified kvpack layout: " + std::string(what));
  };
  if (config.n_layers != kLayers) return refuse("layer count");
  if (config.n_kv_heads != kKvHeads || config.head_dim != kHeadDim) return refuse("KV head geometry");
  if (config.sliding_window != kWindowTokens) return refuse("SWA window");
  if (config.context_length != kMaxContextTokens) return refuse("maximum context");
  if (cached == 0 || cached > config.context_length) return refuse("cached token count");
  bool partition = config.layer_kinds.size() == kLayers;
  for (std::uint32_t layer = 0; partition && layer < kLayers; ++layer)
    partition = (config.layer_kinds[layer] == LayerKind::kSlidingRope) == is_sliding(layer);
  if (!partition) return refuse("39-SWA/13-NoPE partition");
  return success();
}

inline PrefillInput muse_prefill_input(const MuseIdentity& identity, std::uint32_t cached) {
  return {.identity = identity,
          .producer_engine_abi = std::string(kCacheAbi),
          .consumer_engine_abi = std::string(kCacheAbi),
          .portable_abi = std::string(kPortableAbi),
          .compute_precision = std::string(kFloat16),
          .kv_precision = std::string(kFloat16),
          .cached_token_count = cached,
          .max_context_tokens = kMaxContextTokens,
          .layout_name = std::string(kLayoutName)};
}

inline Result<PortableDescriptor> muse_descriptor(const MuseConfig& config, const MuseIdentity& identity,
                                                  std::uint64_t cached) {
  KVPACK_TRY(check_muse_geometry(config, cached));
  KVPACK_TRY_ASSIGN(PortableDescriptor descriptor,
                    derive_descriptor(muse_prefill_input(identity, static_cast<std::uint32_t>(cached))));
  KVPACK_TRY_ASSIGN(descriptor.semantic_model.weights_config,
                    bind_scalar_math(descriptor.semantic_model.weights_config, scalar_math(config)));
  KVPACK_TRY(add_logits_state(descriptor, config.vocab_size));
  return descriptor;
}

}  // namespace kvpack::muse
