#include "kvpack/muse/layout_sidecar.h"

#include "kvpack/core/canonical_json.h"

namespace kvpack::muse {

namespace {

constexpr std::uint64_t kMaxSidecarNumber = std::numeric_limits<std::uint32_t>::max();

Error sidecar_refused(std::string_view why) {
  return fail(ErrorCode::kExpectation, "prefill layout sidecar " + std::string(why));
}

Result<std::string> read_text(const JsonValue& object, std::string_view key, std::string_view otherwise) {
  const JsonValue* value = object.find(key);
  const std::string* text = value == nullptr ? nullptr : value->as_string();
  if (text == nullptr || text->empty()) return sidecar_refused(otherwise);
  return *text;
}

const std::uint64_t* find_unsigned(const JsonValue& object, std::string_view key) {
  const JsonValue* value = object.find(key);
  return value == nullptr ? nullptr : value->as_unsigned();
}

Status read_u32(const JsonValue& object, std::string_view key, std::uint32_t& out) {
  const std::uint64_t* number = find_unsigned(object, key);
  if (number == nullptr) return sidecar_refused("field is missing or not an unsigned integer");
  if (*number > kMaxSidecarNumber) return sidecar_refused("numeric field exceeds u32::MAX");
  out = static_cast<std::uint32_t>(*number);
  return success();
}

Status read_except(const JsonValue& object, LayoutClass& c) {
  const JsonValue* value = object.find("except");
  const JsonArray* items = value == nullptr ? nullptr : value->as_array();
  if (items == nullptr) return sidecar_refused("class except list is missing");
  for (const JsonValue& item : *items) {
    if (item.as_unsigned() == nullptr) return sidecar_refused("class except entry is not an integer");
    if (*item.as_unsigned() > kMaxSidecarNumber) return sidecar_refused("numeric field exceeds u32::MAX");
    c.except.push_back(static_cast<std::uint32_t>(*item.as_unsigned()));
  }
  std::vector<std::uint32_t> sorted = c.except;
  std::ranges::sort(sorted);
  if (std::ranges::adjacent_find(sorted) != sorted.end())
    return sidecar_refused("class except list contains a duplicate entry");
  return success();
}

Status check_bounds(const LayoutClass& c, std::uint32_t num_layers) {
  if (c.from >= c.until || c.until > num_layers || c.step == 0 || c.kv_heads == 0 || c.head_dim == 0)
    return sidecar_refused("class bounds are outside the v2 bounds");
  for (const std::uint32_t layer : c.except)
    if (layer < c.from || layer >= c.until)
      return sidecar_refused("class except list is outside the class span");
  return success();
}

Status check_latent(const JsonValue& object, const LayoutClass& c) {
  if (!c.is_latent()) {
    if (object.find("latent_dim") != nullptr || object.find("rope_dim") != nullptr)
      return sidecar_refused("latent_dim/rope_dim are only legal on mla-latent classes");
    return success();
  }
  const auto positive = [&](std::string_view key) -> Result<std::uint64_t> {
    const std::uint64_t* number = find_unsigned(object, key);
    if (number == nullptr || *number == 0)
      return sidecar_refused("mla-latent class " + std::string(key) +
                             " is missing or not a positive integer");
    return *number;
  };
  KVPACK_TRY_ASSIGN(const std::uint64_t latent, positive("latent_dim"));
  KVPACK_TRY_ASSIGN(const std::uint64_t rope, positive("rope_dim"));
  if (c.kv_heads != 1 || checked_add(latent, rope) != std::optional<std::uint64_t>(c.head_dim))
    return sidecar_refused("mla-latent record must be one vector of latent_dim + rope_dim elements");
  return success();
}

/// A JSON number of any form.
std::optional<double> real_of(const JsonValue* value) {
  if (value == nullptr) return std::nullopt;
  if (value->as_unsigned() != nullptr) return static_cast<double>(*value->as_unsigned());
  return value->as_real() == nullptr ? std::nullopt : std::optional(*value->as_real());
}

Status read_rope(const JsonValue& object, LayoutClass& c) {
  const JsonValue* rope = object.find("rope");
  if (rope == nullptr || rope->as_object() == nullptr) return sidecar_refused("class rope is missing");
  const auto base = real_of(rope->find("freq_base"));
  if (!base || !std::isfinite(*base) || *base <= 1.0)
    return sidecar_refused("class rope freq_base is missing or outside the supported bounds");
  const std::uint64_t* dims = find_unsigned(*rope, "dimension_count");
  if (dims == nullptr || *dims < 2 || *dims % 2 != 0 || *dims > c.head_dim)
    return sidecar_refused("class rope dimension_count is outside the v2 bounds");
  const JsonValue* scaling = rope->find("scaling");
  if (scaling == nullptr || scaling->as_string() == nullptr ||
      !is_canonical_scaling_label(*scaling->as_string()))
    return sidecar_refused("class rope scaling is missing or not a canonical label");
  const JsonValue* convention = rope->find("convention");
  const std::string* label = convention == nullptr ? nullptr : convention->as_string();
  constexpr std::array kConventions{RopeConvention::kNeox, RopeConvention::kInterleaved,
                                    RopeConvention::kNone};
  const auto* known = label == nullptr
                          ? kConventions.end()
                          : std::ranges::find(kConventions, std::string_view(*label), rope_convention_label);
  if (known == kConventions.end())
    return sidecar_refused("class rope convention is missing or outside the closed set");
  c.rope_base_bits = std::bit_cast<std::uint64_t>(*base);
  c.rope_dims = static_cast<std::uint32_t>(*dims);
  c.rope_scaling = *scaling->as_string();
  c.rope_convention = *known;
  return success();
}

Result<LayoutClass> read_class(const JsonValue& object, std::uint32_t num_layers) {
  LayoutClass c;
  KVPACK_TRY_ASSIGN(c.label, read_text(object, "class", "class name is missing or empty"));
  KVPACK_TRY(read_u32(object, "from", c.from));
  KVPACK_TRY(read_u32(object, "until", c.until));
  KVPACK_TRY(read_u32(object, "step", c.step));
  KVPACK_TRY(read_u32(object, "kv_heads", c.kv_heads));
  KVPACK_TRY(read_u32(object, "head_dim", c.head_dim));
  KVPACK_TRY(read_u32(object, "window_tokens", c.window_tokens));
  KVPACK_TRY(read_except(object, c));
  KVPACK_TRY(check_bounds(c, num_layers));
  KVPACK_TRY(check_latent(object, c));
  const bool windowed = c.label != kGqaFull && !c.is_latent();
  if (windowed != (c.window_tokens > 0))
    return sidecar_refused("window_tokens are only legal on windowed classes");
  KVPACK_TRY(read_rope(object, c));
  return c;
}

Status check_partition(const Layout& layout) {
  std::vector<bool> seen(layout.num_layers, false);
  for (const LayoutClass& c : layout.classes) {
    const bool disjoint = detail::each_layer(c, [&](std::uint32_t layer) {
      if (seen[layer]) return false;
      seen[layer] = true;
      return true;
    });
    if (!disjoint) return sidecar_refused("classes overlap");
  }
  if (std::ranges::find(seen, false) != seen.end())
    return sidecar_refused("classes do not partition the layer range");
  return success();
}

}  // namespace

Result<Layout> parse_layout_sidecar(ByteSpan json) {
  const auto document = parse_json_document(json, kMaxSidecarBytes);
  if (!document.has_value() || document->repeated_key) return sidecar_refused("is not valid json");
  const JsonValue& root = document->value;
  Layout layout;
  KVPACK_TRY_ASSIGN(layout.name, read_text(root, "name", "name is missing or empty"));
  const std::uint64_t* layers = find_unsigned(root, "num_layers");
  if (layers == nullptr) return sidecar_refused("field is missing or not an unsigned integer");
  if (*layers == 0 || *layers > kMaxSidecarLayers)
    return sidecar_refused("num_layers is outside the v2 bounds");
  layout.num_layers = static_cast<std::uint32_t>(*layers);
  const JsonValue* classes = root.find("classes");
  if (classes == nullptr || classes->as_array() == nullptr || classes->as_array()->empty())
    return sidecar_refused("classes are missing or empty");
  for (const JsonValue& item : *classes->as_array()) {
    KVPACK_TRY_ASSIGN(LayoutClass c, read_class(item, layout.num_layers));
    layout.classes.push_back(std::move(c));
  }
  KVPACK_TRY(check_partition(layout));
  return layout;
}

}  // namespace kvpack::muse
