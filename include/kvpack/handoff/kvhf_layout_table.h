/// KVHF layout table and walk: which plane travels when, over which tokens, with how many bytes.
/// Rules and their order: docs/protocol/kvhf.md §Layout table and §Schedule and walk.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvpack/base/bytes.h"

namespace kvpack::kvhf {

/// The two planes of a layer. A key plane of the pre-RoPE family is f32, every other plane f16.
enum class Role : std::uint8_t { kKey, kValue };

constexpr std::string_view role_name(Role role) noexcept {
  return role == Role::kKey ? "key" : "value";
}

/// One class of layers that share a shape: layers `from, from + step, ... < until` without those in `except`.
struct LayoutClass {
  std::string label;  ///< JSON key `class`. 1 to 64 label characters. Labels need not be unique.
  std::string dtype;  ///< `float16`, also where the key planes travel as f32.
  std::vector<std::uint32_t> except;  ///< Layers in [from, until), each once; need not lie on the stride.
  std::uint32_t from = 0;
  std::uint32_t head_dim = 0;  ///< Elements of one head.
  std::uint32_t kv_heads = 0;
  std::vector<Role> roles;  ///< [key, value]; [key] alone for the class `mla-latent`.
  std::uint32_t step = 0;
  std::uint32_t until = 0;
  std::uint32_t window_tokens = 0;  ///< Only the trailing tokens are shipped; 0 means all cached tokens.

  friend bool operator==(const LayoutClass&, const LayoutClass&) = default;
};

/// Half-open range of token positions.
struct TokenRange {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
  std::uint32_t size() const noexcept { return end - begin; }
  friend bool operator==(const TokenRange&, const TokenRange&) = default;
};

/// What one LAYER frame must carry. Its place in the walk is its sequence number.
struct WalkStep {
  std::uint32_t layer = 0;
  Role role = Role::kKey;
  TokenRange tokens;
  std::uint32_t kv_heads = 0;
  std::uint32_t head_dim = 0;
  std::uint64_t plane_bytes = 0;
  std::uint32_t class_index = 0;  ///< Place of the class in the table; 0 where there is no table.
  bool single_role = false;       ///< The layer is complete with this plane.
};

/// Frames and payload bytes of a whole transfer.
struct WalkTotals {
  std::uint32_t frames = 0;
  std::uint64_t payload_bytes = 0;
  friend bool operator==(const WalkTotals&, const WalkTotals&) = default;
};

/// The flat shape that the begin declares beside the table.
struct FlatShape {
  std::uint32_t num_layers = 0;
  std::uint32_t num_kv_heads = 0;
  std::uint32_t head_dim = 0;
};

inline constexpr std::string_view kFloat16 = "float16";
inline constexpr std::string_view kFloat32 = "float32";
inline constexpr std::string_view kLatentClass = "mla-latent";
inline constexpr std::string_view kLayerOrder = "layer-order";
inline constexpr std::string_view kDecodePriority = "decode-priority";

/// 1 to `max_bytes` printable ASCII characters without space, backslash, slash and double quote.
bool is_label(std::string_view text, std::size_t max_bytes) noexcept;

/// The tokens whose rows a class ships, out of `cached` cached ones.
TokenRange class_tokens(const LayoutClass& entry, std::uint32_t cached) noexcept;

/// How many layers a class has. @pre step > 0, from < until, and `except` within them without repeats
std::uint32_t class_layer_count(const LayoutClass& entry);

/// The layers of a class, ascending. Sized by class_layer_count, so check the table first.
std::vector<std::uint32_t> class_layers(const LayoutClass& entry);

/// Bytes of one plane, or nothing when they pass u64. @param prerope key planes are f32
std::optional<std::uint64_t> plane_bytes(const LayoutClass& entry, Role role, std::uint32_t cached,
                                         bool prerope) noexcept;

/// The rules of a non-empty table, per class in table order and then over all of it.
/// @param max_frame_bytes  limit of one plane, in bytes
/// @error kValidation  first violation
Status check_layout_table(const std::vector<LayoutClass>& table, const FlatShape& flat, std::uint32_t cached,
                          bool prerope, std::uint64_t max_frame_bytes);

/// Frames and bytes of a checked table. @error kValidation the sums overflow
Result<WalkTotals> table_totals(const std::vector<LayoutClass>& table, std::uint32_t cached, bool prerope);

/// The same without a table: a key and a value plane for each layer. @error kValidation the sums overflow
Result<WalkTotals> flat_totals(const FlatShape& flat, std::uint32_t cached);

/// The order in which a checked table is sent. @param decode_priority windowed classes first
std::vector<WalkStep> table_walk(const std::vector<LayoutClass>& table, std::uint32_t cached, bool prerope,
                                 bool decode_priority);

/// What frame `sequence` carries without a table: the key plane of layer sequence / 2 when it is even, else
/// the value plane. Defined past the last layer too. @pre the plane's bytes fit in u64
WalkStep flat_step(const FlatShape& flat, std::uint32_t cached, std::uint32_t sequence) noexcept;

/// The order without a table: layer 0 key, layer 0 value, layer 1 key, ... @pre flat_totals succeeded
std::vector<WalkStep> flat_walk(const FlatShape& flat, std::uint32_t cached);

// ---------------------------------------------------------------------------------------------------------

namespace detail {

inline Error payload_overflow() {
  return fail(ErrorCode::kValidation, "declared payload size overflows u64");
}
inline Error frame_count_overflow() {
  return fail(ErrorCode::kValidation, "layer-frame count overflow");
}
inline Error bad_class() {
  return fail(ErrorCode::kValidation, "layout table contains an invalid layer class");
}

/// tokens * heads * dim * width, or nothing when it passes u64.
inline std::optional<std::uint64_t> plane_product(std::uint32_t tokens, std::uint32_t heads,
                                                  std::uint32_t dim, std::uint32_t width) noexcept {
  const std::uint64_t rows = std::uint64_t{tokens} * heads;  // Two u32 factors always fit.
  const auto elements = checked_mul<std::uint64_t>(rows, dim);
  if (!elements) return std::nullopt;
  return checked_mul<std::uint64_t>(*elements, width);
}

inline std::uint32_t element_width(Role role, bool prerope) noexcept {
  return role == Role::kKey && prerope ? 4 : 2;
}

inline bool roles_allowed(const LayoutClass& entry) {
  static const std::vector<Role> kPair{Role::kKey, Role::kValue};
  static const std::vector<Role> kSingle{Role::kKey};
  return entry.roles == kPair || (entry.label == kLatentClass && entry.roles == kSingle);
}

inline bool except_allowed(const LayoutClass& entry) {
  std::vector<std::uint32_t> sorted = entry.except;
  std::ranges::sort(sorted);
  if (std::ranges::adjacent_find(sorted) != sorted.end()) return false;
  return sorted.empty() || (sorted.front() >= entry.from && sorted.back() < entry.until);
}

inline Status check_class(const LayoutClass& entry, const FlatShape& flat, std::uint32_t cached, bool prerope,
                          std::uint64_t max_frame_bytes) {
  if (entry.step == 0 || entry.from >= entry.until || entry.until > flat.num_layers) return bad_class();
  std::uint64_t widest = 0;
  for (const Role role : entry.roles) {
    const auto bytes = plane_bytes(entry, role, cached, prerope);
    if (!bytes) return payload_overflow();
    widest = std::max(widest, *bytes);
  }
  if (widest > max_frame_bytes)
    return fail(ErrorCode::kValidation, "layout table class exceeds the per-frame byte bound");
  if (!except_allowed(entry))
    return fail(ErrorCode::kValidation, "layout table contains an out-of-range or duplicate except entry");
  if (!roles_allowed(entry))
    return fail(ErrorCode::kValidation, "layout table classes must declare roles [key, value]");
  if (!is_label(entry.label, 64) || class_layer_count(entry) == 0 || entry.kv_heads == 0 ||
      entry.head_dim == 0 || entry.dtype != kFloat16)
    return bad_class();
  return success();
}

}  // namespace detail

inline bool is_label(std::string_view text, std::size_t max_bytes) noexcept {
  return !text.empty() && text.size() <= max_bytes && std::ranges::all_of(text, [](char c) {
    return c >= '!' && c <= '~' && c != '\\' && c != '/' && c != '"';
  });
}

inline TokenRange class_tokens(const LayoutClass& entry, std::uint32_t cached) noexcept {
  const std::uint32_t window = entry.window_tokens == 0 ? cached : std::min(entry.window_tokens, cached);
  return {cached - window, cached};
}

inline std::uint32_t class_layer_count(const LayoutClass& entry) {
  const std::uint64_t span = entry.until - entry.from;
  std::uint64_t count = (span + entry.step - 1) / entry.step;
  for (const std::uint32_t layer : entry.except) count -= (layer - entry.from) % entry.step == 0 ? 1 : 0;
  return static_cast<std::uint32_t>(count);
}

inline std::vector<std::uint32_t> class_layers(const LayoutClass& entry) {
  std::vector<std::uint32_t> skipped = entry.except;
  std::ranges::sort(skipped);
  std::vector<std::uint32_t> layers;
  layers.reserve(class_layer_count(entry));
  for (std::uint64_t layer = entry.from; layer < entry.until; layer += entry.step) {
    const auto value = static_cast<std::uint32_t>(layer);
    if (!std::ranges::binary_search(skipped, value)) layers.push_back(value);
  }
  return layers;
}

inline std::optional<std::uint64_t> plane_bytes(const LayoutClass& entry, Role role, std::uint32_t cached,
                                                bool prerope) noexcept {
  return detail::plane_product(class_tokens(entry, cached).size(), entry.kv_heads, entry.head_dim,
                               detail::element_width(role, prerope));
}

inline Status check_layout_table(const std::vector<LayoutClass>& table, const FlatShape& flat,
                                 std::uint32_t cached, bool prerope, std::uint64_t max_frame_bytes) {
  for (const LayoutClass& entry : table)
    KVPACK_TRY(detail::check_class(entry, flat, cached, prerope, max_frame_bytes));

  std::vector<bool> taken(flat.num_layers);
  std::size_t covered = 0;
  for (const LayoutClass& entry : table) {
    for (const std::uint32_t layer : class_layers(entry)) {
      if (taken[layer])
        return fail(ErrorCode::kValidation, "layout table assigns a layer to more than one class");
      taken[layer] = true;
      ++covered;
    }
  }
  if (covered != flat.num_layers)
    return fail(ErrorCode::kValidation, "layout table must cover every declared layer exactly once");

  if (table.size() == 1) {
    if (flat.num_kv_heads != table[0].kv_heads || flat.head_dim != table[0].head_dim)
      return fail(ErrorCode::kValidation, "flat geometry disagrees with the single-class layout table");
    return success();
  }
  if (flat.num_kv_heads != 0 || flat.head_dim != 0)
    return fail(ErrorCode::kValidation, "multi-class layout table requires zero flat kv_heads/head_dim");
  return success();
}

inline Result<WalkTotals> table_totals(const std::vector<LayoutClass>& table, std::uint32_t cached,
                                       bool prerope) {
  // Disjoint classes hold at most 2^32 layers with two roles each, so the count of frames fits in u64.
  std::uint64_t frames = 0;
  for (const LayoutClass& entry : table)
    frames += std::uint64_t{class_layer_count(entry)} * entry.roles.size();
  if (frames > std::numeric_limits<std::uint32_t>::max()) return detail::frame_count_overflow();

  std::uint64_t total = 0;
  for (const LayoutClass& entry : table) {
    const std::uint64_t layers = class_layer_count(entry);
    for (const Role role : entry.roles) {
      const auto plane = plane_bytes(entry, role, cached, prerope);
      const auto bytes = plane ? checked_mul<std::uint64_t>(layers, *plane) : std::nullopt;
      const auto sum = bytes ? checked_add<std::uint64_t>(total, *bytes) : std::nullopt;
      if (!sum) return detail::payload_overflow();
      total = *sum;
    }
  }
  return WalkTotals{static_cast<std::uint32_t>(frames), total};
}

inline Result<WalkTotals> flat_totals(const FlatShape& flat, std::uint32_t cached) {
  const std::uint64_t frames = std::uint64_t{2} * flat.num_layers;
  if (frames > std::numeric_limits<std::uint32_t>::max()) return detail::frame_count_overflow();
  const auto plane = detail::plane_product(cached, flat.num_kv_heads, flat.head_dim, 2);
  const auto total = plane ? checked_mul<std::uint64_t>(frames, *plane) : std::nullopt;
  if (!total) return detail::payload_overflow();
  return WalkTotals{static_cast<std::uint32_t>(frames), *total};
}

inline std::vector<WalkStep> table_walk(const std::vector<LayoutClass>& table, std::uint32_t cached,
                                        bool prerope, bool decode_priority) {
  std::vector<std::uint32_t> order(table.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::uint32_t>(i);
  if (decode_priority)
    std::stable_partition(order.begin(), order.end(),
                          [&](std::uint32_t i) { return table[i].window_tokens > 0; });

  std::vector<WalkStep> walk;
  for (const std::uint32_t index : order) {
    const LayoutClass& entry = table[index];
    for (const std::uint32_t layer : class_layers(entry)) {
      for (const Role role : entry.roles) {
        walk.push_back({layer, role, class_tokens(entry, cached), entry.kv_heads, entry.head_dim,
                        plane_bytes(entry, role, cached, prerope).value_or(0), index,
                        entry.roles.size() == 1});
      }
    }
  }
  return walk;
}

inline WalkStep flat_step(const FlatShape& flat, std::uint32_t cached, std::uint32_t sequence) noexcept {
  return {sequence / 2,
          sequence % 2 == 0 ? Role::kKey : Role::kValue,
          {0, cached},
          flat.num_kv_heads,
          flat.head_dim,
          detail::plane_product(cached, flat.num_kv_heads, flat.head_dim, 2).value_or(0),
          0,
          false};
}

inline std::vector<WalkStep> flat_walk(const FlatShape& flat, std::uint32_t cached) {
  std::vector<WalkStep> walk(std::size_t{2} * flat.num_layers);
  for (std::size_t i = 0; i < walk.size(); ++i)
    walk[i] = flat_step(flat, cached, static_cast<std::uint32_t>(i));
  return walk;
}

}  // namespace kvpack::kvhf
