/// The cache of a Muse session as engine and adapter hand it to each other, in memory alone: 52 layers of K
/// and V rows in logical token order. docs/muse-reuse.md §Snapshot
#pragma once

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "kvpack/muse/geometry.h"
#include "kvpack/muse/shared_bytes.h"

namespace kvpack::muse {

/// How a plane holds its elements, little-endian.
enum class ElementEncoding : std::uint8_t {
  kF16Le,  ///< 2 bytes: what accelerators hold, and all that is ever stored.
  kF32Le,  ///< 4 bytes: the reference engine on a CPU.
};

constexpr std::uint32_t element_bytes(ElementEncoding encoding) noexcept {
  return encoding == ElementEncoding::kF16Le ? 2 : 4;
}

/// K and V rows of one layer: tokens [logical_start, logical_start + logical_count), ascending.
///
/// Each plane is row-major `[token][kv_head][head_dim]`. However the engine lays its cache out (a ring,
/// heads outermost) does not show: whoever exports linearises, whoever installs scatters. K rows of sliding
/// layers are rotated for their absolute position already; those of NoPE layers never are.
struct LayerSnapshot {
  std::uint32_t layer = 0;
  std::uint64_t logical_start = 0;
  std::uint64_t logical_count = 0;
  ElementEncoding encoding = ElementEncoding::kF16Le;
  SharedBytes key{};
  SharedBytes value{};

  friend bool operator==(const LayerSnapshot&, const LayerSnapshot&) = default;
};

/// Everything that is live after `position` tokens, but for the final logits. Copies share the planes.
struct CacheSnapshot {
  std::uint64_t position = 0;
  std::vector<std::uint32_t> tokens{};  ///< The complete history, `position` of them.
  std::uint32_t elements_per_token = kRowElements;
  std::vector<LayerSnapshot> layers{};  ///< All 52, in order.

  friend bool operator==(const CacheSnapshot&, const CacheSnapshot&) = default;
};

/// Tokens that a layer holds at a cut.
struct LogicalRange {
  std::uint64_t start = 0;
  std::uint64_t count = 0;

  friend bool operator==(const LogicalRange&, const LogicalRange&) = default;
};

/// All tokens of a NoPE layer, the last `window_tokens` of a sliding one.
constexpr LogicalRange logical_range(std::uint32_t layer, std::uint64_t position,
                                     std::uint64_t window_tokens = kWindowTokens) noexcept {
  const std::uint64_t count = is_sliding(layer) ? std::min(position, window_tokens) : position;
  return {position - count, count};
}

/// Bytes of one K or V plane, or nothing when they do not fit 64 bits.
constexpr std::optional<std::uint64_t> plane_bytes(std::uint64_t tokens, std::uint32_t elements_per_token,
                                                   ElementEncoding encoding) noexcept {
  return checked_mul(tokens, std::uint64_t{elements_per_token} * element_bytes(encoding));
}

/// Checks position, tokens, row width, the number of layers, then layer by layer its number, range and plane
/// sizes; reads no plane.
/// @param window_tokens  of the session's sliding layers
/// @error kExpectation  the first violation, with a text of docs/muse-reuse.md §Snapshot
Status validate_snapshot(const CacheSnapshot& snapshot, std::uint64_t window_tokens = kWindowTokens);

/// The encoding of all layers, or nothing when they differ or there are none.
std::optional<ElementEncoding> snapshot_encoding(const CacheSnapshot& snapshot) noexcept;

/// Bytes of all planes. @pre the snapshot is valid
std::uint64_t payload_bytes(const CacheSnapshot& snapshot) noexcept;

/// True when no element is infinite or NaN.
bool all_finite(std::span<const float> logits) noexcept;

// ---------------------------------------------------------------------------------------------------------------

namespace detail {

inline Error snapshot_error(std::string message) {
  return fail(ErrorCode::kExpectation, std::move(message));
}

inline Status validate_layer(const CacheSnapshot& snapshot, std::size_t ordinal,
                             std::uint64_t window_tokens) {
  const LayerSnapshot& layer = snapshot.layers[ordinal];
  if (layer.layer != ordinal)
    return snapshot_error("cache snapshot layer order has " + std::to_string(layer.layer) + " at ordinal " +
                          std::to_string(ordinal));
  const std::string name = "cache snapshot layer " + std::to_string(ordinal);
  const LogicalRange range = logical_range(layer.layer, snapshot.position, window_tokens);
  if (layer.logical_start != range.start || layer.logical_count != range.count) {
    // The end that was claimed may be past 2^64: it is shown as far as it goes.
    const auto end = checked_add(layer.logical_start, layer.logical_count)
                         .value_or(std::numeric_limits<std::uint64_t>::max());
    return snapshot_error(name + " has range " + std::to_string(layer.logical_start) + ".." +
                          std::to_string(end) + ", expected " + std::to_string(range.start) + ".." +
                          std::to_string(snapshot.position));
  }
  const auto bytes = plane_bytes(range.count, snapshot.elements_per_token, layer.encoding);
  if (!bytes) return snapshot_error(name + " size overflow");
  if (layer.key.size() != *bytes || layer.value.size() != *bytes)
    return snapshot_error(name + " has K/V bytes " + std::to_string(layer.key.size()) + "/" +
                          std::to_string(layer.value.size()) + ", expected " + std::to_string(*bytes));
  return success();
}

}  // namespace detail

inline Status validate_snapshot(const CacheSnapshot& snapshot, std::uint64_t window_tokens) {
  using detail::snapshot_error;
  if (snapshot.position == 0) return snapshot_error("cache snapshot position must be nonzero");
  if (snapshot.tokens.size() != snapshot.position)
    return snapshot_error("cache snapshot carries " + std::to_string(snapshot.tokens.size()) +
                          " tokens for position " + std::to_string(snapshot.position));
  if (snapshot.elements_per_token == 0) return snapshot_error("cache snapshot row width must be nonzero");
  if (snapshot.layers.size() != kLayers)
    return snapshot_error("cache snapshot carries " + std::to_string(snapshot.layers.size()) +
                          " layers, expected " + std::to_string(kLayers));
  for (std::size_t i = 0; i < snapshot.layers.size(); ++i)
    KVPACK_TRY(detail::validate_layer(snapshot, i, window_tokens));
  return success();
}

inline std::optional<ElementEncoding> snapshot_encoding(const CacheSnapshot& snapshot) noexcept {
  if (snapshot.layers.empty()) return std::nullopt;
  const ElementEncoding first = snapshot.layers.front().encoding;
  const bool agree = std::ranges::all_of(snapshot.layers,
                                         [&](const LayerSnapshot& layer) { return layer.encoding == first; });
  return agree ? std::optional(first) : std::nullopt;
}

inline std::uint64_t payload_bytes(const CacheSnapshot& snapshot) noexcept {
  std::uint64_t sum = 0;
  for (const LayerSnapshot& layer : snapshot.layers) sum += layer.key.size() + layer.value.size();
  return sum;
}

inline bool all_finite(std::span<const float> logits) noexcept {
  return std::ranges::all_of(logits, [](float value) { return std::isfinite(value); });
}

}  // namespace kvpack::muse
