/// Prefill layouts: which layers a model caches, in which shape, over which window, rotated how. The
/// registered ones as data, and the rules for any other. docs/format/muse.md §Layouts
#pragma once

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvpack/base/bytes.h"
#include "kvpack/core/limits.h"
#include "kvpack/muse/geometry.h"

namespace kvpack::muse {

/// Which elements of a head a rotation turns together.
enum class RopeConvention : std::uint8_t {
  kNeox,         ///< i and i + dims/2
  kInterleaved,  ///< 2i and 2i + 1
  kNone,         ///< Nothing is rotated (NoPE).
};

/// The word that is hashed: `neox`, `interleaved`, `none`.
constexpr std::string_view rope_convention_label(RopeConvention convention) noexcept {
  switch (convention) {
    case RopeConvention::kNeox: return "neox";
    case RopeConvention::kInterleaved: return "interleaved";
    case RopeConvention::kNone: return "none";
  }
  return "none";
}

inline constexpr std::string_view kMlaLatent = "mla-latent";  ///< Label of classes with one latent per token.
inline constexpr std::string_view kGqaFull = "gqa-full";
inline constexpr std::string_view kGqaWindowed = "gqa-windowed";

/// Layers of one kind: from, from + step, .. below until, without `except`.
struct LayoutClass {
  std::string label;
  std::uint32_t from = 0;
  std::uint32_t until = 0;
  std::uint32_t step = 1;
  std::vector<std::uint32_t> except{};
  std::uint32_t kv_heads = 0;
  std::uint32_t head_dim = 0;
  std::uint32_t window_tokens = 0;   ///< 0: every token is kept.
  std::uint64_t rope_base_bits = 0;  ///< Bits of an f64.
  std::uint32_t rope_dims = 0;
  std::string rope_scaling = "none";  ///< A canonical scaling label.
  RopeConvention rope_convention = RopeConvention::kNone;

  double rope_base() const noexcept { return std::bit_cast<double>(rope_base_bits); }
  /// Elements of one row of one state.
  std::uint64_t row_elements() const noexcept { return std::uint64_t{kv_heads} * head_dim; }
  bool is_latent() const noexcept { return label == kMlaLatent; }

  friend bool operator==(const LayoutClass&, const LayoutClass&) = default;
};

/// Classes that partition the layers of a model. Their order counts: it is hashed.
struct Layout {
  std::string name;  ///< Where it comes from; never hashed.
  std::uint32_t num_layers = 0;
  std::vector<LayoutClass> classes{};

  friend bool operator==(const Layout&, const Layout&) = default;
};

/// Most layers of a layout: each has at least one state, and a family has no more states than this.
inline constexpr std::uint32_t kMaxLayoutLayers = kMaxStates;
/// Longest label of a class or a scaling, in bytes.
inline constexpr std::size_t kMaxLayoutLabelBytes = 1'024;

/// The layouts that are known by name. The order counts for registry_name.
std::span<const Layout> registered_layouts();

/// @error kExpectation `portable prefill layout is outside the registered v2 layouts`
Result<const Layout*> registered_layout(std::string_view name);

/// Names of the states of a layer of this class, in order: `attn.kv_latent`, or `attn.k` and `attn.v`.
std::span<const std::string_view> state_names(const LayoutClass& layout_class) noexcept;

/// A layout that is not registered, before it is used.
/// @error kExpectation `portable prefill v2 ` and: `owned layout has no layers or no classes`, `owned layout
///        class bounds are outside the v2 bounds`, `owned layout classes overlap`, `mla-latent class must be
///        a single-vector full-coverage record`, `owned layout classes do not partition the layer range`
Status validate_owned_layout(const Layout& layout);

/// Rotation of one class: a NoPE class has base 0 and no dimensions, any other a base above 1, an even number
/// of dimensions within the head, and a canonical scaling label.
/// @error kExpectation
Status validate_rope(const LayoutClass& layout_class);

/// The classes by layer: element i is the index of the class of layer i.
/// @pre registered, or validate_owned_layout has passed
std::vector<std::uint32_t> class_of_layer(const Layout& layout);

/// The first registered layout that equals this one in everything but the name; empty when there is none.
std::string_view registry_name(const Layout& layout);

/// `{kind}:{factor}`, the factor in shortest decimal form without exponent that reads back as the same f64.
/// @param kind  `linear`, `ntk` or `yarn`
/// @return empty when there is no such label: another kind, or a factor that is not positive and finite
std::string canonical_scaling_label(std::string_view kind, double factor);

/// `none`, or what canonical_scaling_label gives for the number that the text says.
bool is_canonical_scaling_label(std::string_view text);

// ---------------------------------------------------------------------------------------------------------------

namespace detail {

inline LayoutClass windowed_class(LayoutClass c, std::uint32_t window) {
  c.label = kGqaWindowed;
  c.window_tokens = window;
  return c;
}

/// A class of full coverage; `base` 0 with no dimensions is a NoPE class.
inline LayoutClass full_class(std::uint32_t from, std::uint32_t until, std::uint32_t step,
                              std::uint32_t kv_heads, std::uint32_t head_dim, double base, std::uint32_t dims,
                              RopeConvention convention) {
  return {.label = std::string(kGqaFull),
          .from = from,
          .until = until,
          .step = step,
          .kv_heads = kv_heads,
          .head_dim = head_dim,
          .rope_base_bits = std::bit_cast<std::uint64_t>(base),
          .rope_dims = dims,
          .rope_convention = convention};
}

/// from, from + step, .. below until
inline std::vector<std::uint32_t> layer_series(std::uint32_t from, std::uint32_t until, std::uint32_t step) {
  std::vector<std::uint32_t> layers;
  for (std::uint32_t layer = from; layer < until; layer += step) layers.push_back(layer);
  return layers;
}

inline std::vector<Layout> make_registered_layouts() {
  using enum RopeConvention;
  LayoutClass gpt_oss_windowed = windowed_class(full_class(0, 36, 2, 8, 64, 150'000.0, 64, kNeox), 128);
  LayoutClass gpt_oss_full = full_class(1, 36, 2, 8, 64, 150'000.0, 64, kNeox);
  gpt_oss_windowed.rope_scaling = gpt_oss_full.rope_scaling = "yarn:32";
  LayoutClass gemma_windowed = windowed_class(full_class(0, 60, 1, 16, 256, 10'000.0, 256, kNeox), 1'024);
  gemma_windowed.except = layer_series(5, 60, 6);
  LayoutClass muse_windowed = windowed_class(
      full_class(0, kLayers, 1, kKvHeads, kHeadDim, 500'000.0, kHeadDim, kInterleaved), kWindowTokens);
  muse_windowed.except = layer_series(3, kLayers, 4);
  std::vector<Layout> layouts;
  layouts.push_back({"qwen2.5-7b", 28, {full_class(0, 28, 1, 4, 128, 1'000'000.0, 128, kNeox)}});
  layouts.push_back({"gpt-oss-120b", 36, {std::move(gpt_oss_windowed), std::move(gpt_oss_full)}});
  layouts.push_back(
      {"gemma4-31b", 60, {std::move(gemma_windowed), full_class(5, 60, 6, 4, 512, 1'000'000.0, 512, kNeox)}});
  layouts.push_back(
      {std::string(kLayoutName),
       kLayers,
       {std::move(muse_windowed), full_class(3, kLayers, 4, kKvHeads, kHeadDim, 0.0, 0, kNone)}});
  return layouts;
}

/// Calls `visit` with each layer of the class, ascending, until it returns false.
/// @pre until <= kMaxLayoutLayers
template <class Visit>
bool each_layer(const LayoutClass& c, Visit&& visit) {
  std::vector<bool> excepted(c.until, false);
  for (const std::uint32_t layer : c.except)
    if (layer < c.until) excepted[layer] = true;
  const std::uint64_t step = std::max(c.step, std::uint32_t{1});
  for (std::uint64_t layer = c.from; layer < c.until; layer += step)
    if (!excepted[static_cast<std::size_t>(layer)] && !visit(static_cast<std::uint32_t>(layer))) return false;
  return true;
}

inline Status validate_class_bounds(const LayoutClass& c, std::uint32_t num_layers) {
  const bool except_inside =
      std::ranges::all_of(c.except, [&](std::uint32_t layer) { return layer >= c.from && layer < c.until; });
  if (c.from >= c.until || c.until > num_layers || c.step == 0 || c.kv_heads == 0 || c.head_dim == 0 ||
      c.label.empty() || c.label.size() > kMaxLayoutLabelBytes ||
      c.rope_scaling.size() > kMaxLayoutLabelBytes || !except_inside)
    return fail(ErrorCode::kExpectation,
                "portable prefill v2 owned layout class bounds are outside the v2 bounds");
  return success();
}

/// Digits of a positive finite number with the exponent put into the place of the point.
inline std::string plain_decimal(double value) {
  std::array<char, 32> buffer{};
  const auto written =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::scientific);
  const std::string_view text(buffer.data(), static_cast<std::size_t>(written.ptr - buffer.data()));
  const std::size_t e = text.find('e');
  std::string digits(text.substr(0, 1));
  if (e > 2) digits += text.substr(2, e - 2);
  const std::string_view exponent_text = text.substr(e + 1 + (text[e + 1] == '+' ? 1 : 0));
  int exponent = 0;
  std::from_chars(exponent_text.data(), exponent_text.data() + exponent_text.size(), exponent);
  if (exponent < 0) return "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + digits;
  const std::size_t whole = static_cast<std::size_t>(exponent) + 1;
  if (digits.size() <= whole) return digits + std::string(whole - digits.size(), '0');
  return digits.substr(0, whole) + "." + digits.substr(whole);
}

inline constexpr std::array<std::string_view, 3> kScalingKinds{"linear", "ntk", "yarn"};

}  // namespace detail

inline std::span<const Layout> registered_layouts() {
  static const std::vector<Layout> layouts = detail::make_registered_layouts();
  return layouts;
}

inline Result<const Layout*> registered_layout(std::string_view name) {
  const auto layouts = registered_layouts();
  const auto found = std::ranges::find(layouts, name, &Layout::name);
  if (found == layouts.end())
    return fail(ErrorCode::kExpectation, "portable prefill layout is outside the registered v2 layouts");
  return &*found;
}

inline std::span<const std::string_view> state_names(const LayoutClass& layout_class) noexcept {
  static constexpr std::array<std::string_view, 1> kLatent{"attn.kv_latent"};
  static constexpr std::array<std::string_view, 2> kKeyAndValue{"attn.k", "attn.v"};
  if (layout_class.is_latent()) return kLatent;
  return kKeyAndValue;
}

inline Status validate_owned_layout(const Layout& layout) {
  if (layout.num_layers == 0 || layout.classes.empty())
    return fail(ErrorCode::kExpectation, "portable prefill v2 owned layout has no layers or no classes");
  if (layout.num_layers > kMaxLayoutLayers)
    return fail(ErrorCode::kExpectation,
                "portable prefill v2 owned layout class bounds are outside the v2 bounds");
  std::vector<bool> seen(layout.num_layers, false);
  for (const LayoutClass& c : layout.classes) {
    KVPACK_TRY(detail::validate_class_bounds(c, layout.num_layers));
    const bool disjoint = detail::each_layer(c, [&](std::uint32_t layer) {
      if (seen[layer]) return false;
      seen[layer] = true;
      return true;
    });
    if (!disjoint) return fail(ErrorCode::kExpectation, "portable prefill v2 owned layout classes overlap");
    if (c.is_latent() && (c.kv_heads != 1 || c.window_tokens != 0))
      return fail(ErrorCode::kExpectation,
                  "portable prefill v2 mla-latent class must be a single-vector full-coverage record");
  }
  if (std::ranges::find(seen, false) != seen.end())
    return fail(ErrorCode::kExpectation,
                "portable prefill v2 owned layout classes do not partition the layer range");
  return success();
}

inline Status validate_rope(const LayoutClass& layout_class) {
  const double base = layout_class.rope_base();
  if (layout_class.rope_convention == RopeConvention::kNone) {
    if (base != 0.0 || layout_class.rope_dims != 0)
      return fail(ErrorCode::kExpectation,
                  "NoPE class (rope_convention None) must have freq_base 0 and dimension_count 0");
    return success();
  }
  if (!std::isfinite(base) || base <= 1.0)
    return fail(ErrorCode::kExpectation,
                "portable prefill v2 rope freq_base is outside the supported bounds");
  const std::uint32_t dims = layout_class.rope_dims;
  if (dims < 2 || dims % 2 != 0 || dims > layout_class.head_dim)
    return fail(ErrorCode::kExpectation, "portable prefill v2 rope dimension_count is outside the v2 bounds");
  if (!is_canonical_scaling_label(layout_class.rope_scaling))
    return fail(ErrorCode::kExpectation, "portable prefill v2 rope scaling label is not canonical");
  return success();
}

inline std::vector<std::uint32_t> class_of_layer(const Layout& layout) {
  std::vector<std::uint32_t> classes(layout.num_layers, 0);
  for (std::size_t i = 0; i < layout.classes.size(); ++i)
    detail::each_layer(layout.classes[i], [&](std::uint32_t layer) {
      classes[layer] = static_cast<std::uint32_t>(i);
      return true;
    });
  return classes;
}

inline std::string_view registry_name(const Layout& layout) {
  for (const Layout& registered : registered_layouts())
    if (registered.num_layers == layout.num_layers && registered.classes == layout.classes)
      return registered.name;
  return {};
}

inline std::string canonical_scaling_label(std::string_view kind, double factor) {
  if (std::ranges::find(detail::kScalingKinds, kind) == detail::kScalingKinds.end()) return {};
  if (!std::isfinite(factor) || factor <= 0.0) return {};
  return std::string(kind) + ":" + detail::plain_decimal(factor);
}

inline bool is_canonical_scaling_label(std::string_view text) {
  if (text == "none") return true;
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos || text.size() > kMaxLayoutLabelBytes) return false;
  const std::string_view number = text.substr(colon + 1);
  double factor = 0;
  const auto read = std::from_chars(number.data(), number.data() + number.size(), factor);
  if (read.ec != std::errc() || read.ptr != number.data() + number.size()) return false;
  return canonical_scaling_label(text.substr(0, colon), factor) == text;
}

}  // namespace kvpack::muse
