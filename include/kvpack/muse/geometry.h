/// The numbers of Muse Glimmer 30B that its caches are made of. docs/format/muse.md
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

namespace kvpack::muse {

inline constexpr std::string_view kArchitecture = "muse-glimmer";
inline constexpr std::string_view kLayoutName = "muse-glimmer-30b";
inline constexpr std::string_view kCacheAbi = "muser-muse-glimmer-f16-logits-v2";
inline constexpr std::string_view kPortableAbi = "canonical-kv-v2";

inline constexpr std::uint32_t kLayers = 52;
inline constexpr std::uint32_t kSlidingLayers = 39;
inline constexpr std::uint32_t kNoPeLayers = 13;
inline constexpr std::uint32_t kKvHeads = 2;
inline constexpr std::uint32_t kHeadDim = 128;
inline constexpr std::uint32_t kRowElements = kKvHeads * kHeadDim;  ///< of one K or V row
inline constexpr std::uint32_t kRowBytes = kRowElements * 2;        ///< f16
inline constexpr std::uint32_t kWindowTokens = 2048;
inline constexpr std::uint32_t kMaxContextTokens = 131'072;
inline constexpr std::uint32_t kBlockTokens = 256;  ///< of prefix chains, resident cuts and delta cuts
inline constexpr std::uint32_t kPublicationTokens = 2048;
inline constexpr std::uint32_t kLogitsLayer = 52;
inline constexpr std::string_view kLogitsState = "decoder.last_logits";
inline constexpr float kPostNormEpsilon = 1e-8F;

/// Whether the layer slides. Every fourth, from layer 3 on, is a NoPE layer.
constexpr bool is_sliding(std::uint32_t layer) noexcept {
  return layer % 4 != 3;
}

/// Bytes of all K and V rows that a cut of `tokens` holds.
constexpr std::uint64_t nope_bytes(std::uint64_t tokens) noexcept {
  return tokens * kNoPeLayers * 2 * kRowBytes;
}
constexpr std::uint64_t swa_bytes(std::uint64_t tokens) noexcept {
  return std::min<std::uint64_t>(tokens, kWindowTokens) * kSlidingLayers * 2 * kRowBytes;
}
constexpr std::uint64_t kv_bytes(std::uint64_t tokens) noexcept {
  return nope_bytes(tokens) + swa_bytes(tokens);
}

static_assert(kv_bytes(65'535) == 954'190'848 && kv_bytes(130'814) == 1'823'184'896);

}  // namespace kvpack::muse
