/// Multi-head latents turned into the per-head keys and values that a plain attention kernel reads.
/// docs/format/model-files.md §Latent expansion
#pragma once

#include <span>
#include <vector>

#include "kvpack/core/ids.h"

namespace kvpack::muse {

enum class MlaTarget : std::uint8_t {
  kNaivePerHead,  ///< `naive-per-head`: keys and values of each head.
  kAbsorbedMqa,   ///< `absorbed-mqa`: the kernel reads latents; there is nothing to expand.
};

/// What is needed to expand latents. Elements per token: `latent_dim` of c_KV and behind them `rope_dim` of
/// the rotated key part.
struct MlaExpansion {
  Id32 w_kvb_sha256{};           ///< Of the up-projection.
  Id32 rope_config_sha256{};     ///< Of the rotation under which the key part was stored.
  std::uint32_t latent_dim = 0;  ///< 1 to 65536
  std::uint32_t rope_dim = 0;    ///< 1 to 1024
  std::uint32_t num_heads = 0;   ///< 1 to 1024
  std::uint32_t head_dim = 0;    ///< 1 to 1024, without the rotated part
  MlaTarget target = MlaTarget::kNaivePerHead;

  std::uint64_t record_elements() const noexcept { return std::uint64_t{latent_dim} + rope_dim; }
  std::uint64_t head_elements() const noexcept { return std::uint64_t{num_heads} * head_dim; }
  /// Elements of W_KVb, row-major [latent_dim][2 * num_heads * head_dim]; below 2^38 for any valid
  /// descriptor.
  std::uint64_t w_kvb_elements() const noexcept { return latent_dim * 2 * head_elements(); }

  friend bool operator==(const MlaExpansion&, const MlaExpansion&) = default;
};

/// @error kExpectation `mla expansion descriptor geometry is outside the bounded nonzero dims`
Status validate_mla_expansion(const MlaExpansion& expansion);

/// Reads a descriptor: a JSON object with exactly the keys `schema_version` (1), `w_kvb_sha256`,
/// `rope_config_sha256`, `latent_dim`, `rope_dim`, `num_heads`, `head_dim` and `target_layout`.
/// @error kExpectation `mla expansion descriptor ...`, in this order: `is not valid json`, `schema version is
///        unsupported`, `hashes must be 64 lowercase hexadecimal digits`; as validate_mla_expansion
Result<MlaExpansion> parse_mla_expansion(ByteSpan json);

struct ExpandedLatents {
  std::vector<float> k_nope;  ///< [tokens][num_heads][head_dim]
  std::vector<float> v;       ///< [tokens][num_heads][head_dim]
  std::vector<float> k_rope;  ///< [tokens][rope_dim], as it was stored
};

/// Expands the records of whole tokens. Each sum is of f32 products in f32, over the latent rows in ascending
/// order and without fused operations: the same inputs give the same bits on every machine.
/// @param latents  [tokens][latent_dim + rope_dim]
/// @param w_kvb    w_kvb_elements() of them: in each row, the key columns of head 0, 1, .., then the value
/// columns
/// @param max_bytes  the result may take at most this
/// @error kExpectation as validate_mla_expansion; `mla expansion target absorbed-mqa consumes latents without
///        expansion`; `mla latent stream is empty or not a whole number of per-token records`; `mla W_KVb
///        element count does not match the descriptor geometry`; kLimit `expanded latents exceed the memory
///        limit`
Result<ExpandedLatents> expand_latents(const MlaExpansion& expansion, std::span<const float> latents,
                                       std::span<const float> w_kvb, std::uint64_t max_bytes);

}  // namespace kvpack::muse
