// Identities and configurations that the tests of the Muse room share.
#pragma once

#include <cmath>

#include "kvpack/muse/muse_descriptor.h"

namespace kvpack::muse::testing {

inline constexpr std::uint64_t kTestVocabulary = 128;
inline constexpr std::uint64_t kReleaseVocabulary = 202'048;

// The identity `test` of the vectors.
inline MuseIdentity test_identity() {
  return {.model_sha256 = Id32::filled(1),
          .adapter_sha256 = {},
          .tokenizer_sha256 = Id32::filled(2),
          .chat_template_sha256 = Id32::filled(3),
          .context_policy_sha256 = Id32::filled(4),
          .model_revision = "test-muse",
          .tokenizer_revision = "test-tokenizer",
          .weight_precision = "nvfp4"};
}

// The release checkpoint's numbers, with a vocabulary of the test's.
inline MuseConfig test_config(std::uint64_t vocabulary = kTestVocabulary) {
  MuseConfig config{.n_layers = kLayers,
                    .hidden_dim = 6'656,
                    .n_heads = 32,
                    .n_kv_heads = kKvHeads,
                    .head_dim = kHeadDim,
                    .value_head_dim = kHeadDim,
                    .intermediate_dim = 19'968,
                    .vocab_size = vocabulary,
                    .context_length = kMaxContextTokens,
                    .rms_eps = 1e-5F,
                    .post_norm_eps = kPostNormEpsilon,
                    .rope_base_swa = 500'000.0F,
                    .rope_base_full = 500'000.0F,
                    .rope_dim = kHeadDim,
                    .sliding_window = kWindowTokens,
                    .final_logit_softcap = 20.0F,
                    .logit_scale = static_cast<float>(1.0 / std::sqrt(26.0)),
                    .qk_scale_factor = 3.87F,
                    .eos_tokens = {200'001, 200'008}};
  for (std::uint32_t layer = 0; layer < kLayers; ++layer)
    config.layer_kinds.push_back(is_sliding(layer) ? LayerKind::kSlidingRope : LayerKind::kFullNoPe);
  return config;
}

}  // namespace kvpack::muse::testing
