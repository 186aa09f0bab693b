/// What one Muse model file says about its model: counts, scalars, and which layers slide. docs/adapters.md
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace kvpack::muse {

/// How a layer attends.
enum class LayerKind : std::uint8_t {
  kSlidingRope,  ///< SWA: a trailing window of rows, rotated for their absolute position.
  kFullNoPe,     ///< NoPE: every row, never rotated.
};

/// Counts in elements, scalars as the model file has them (f32).
struct MuseConfig {
  std::uint64_t n_layers = 0;
  std::uint64_t hidden_dim = 0;
  std::uint64_t n_heads = 0;
  std::uint64_t n_kv_heads = 0;
  std::uint64_t head_dim = 0;
  std::uint64_t value_head_dim = 0;
  std::uint64_t intermediate_dim = 0;
  std::uint64_t vocab_size = 0;
  std::uint64_t context_length = 0;  ///< tokens
  float rms_eps = 0;
  float post_norm_eps = 0;
  float rope_base_swa = 0;
  float rope_base_full = 0;
  std::uint64_t rope_dim = 0;
  std::uint64_t sliding_window = 0;  ///< tokens
  std::vector<LayerKind> layer_kinds{};
  float final_logit_softcap = 0;  ///< 0 disables it.
  float logit_scale = 0;
  float qk_scale_factor = 0;
  std::optional<std::uint32_t> bos_token_id{};
  std::vector<std::uint32_t> eos_tokens{};

  /// Elements of one query row.
  std::uint64_t attn_dim() const noexcept { return n_heads * head_dim; }
  /// Elements of one K or V row.
  std::uint64_t kv_dim() const noexcept { return n_kv_heads * head_dim; }

  friend bool operator==(const MuseConfig&, const MuseConfig&) = default;
};

}  // namespace kvpack::muse
