/// KVHF LAYER header: which plane the payload of a frame is.
/// Fields and rules: docs/protocol/kvhf.md §LAYER headers.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "kvpack/handoff/kvhf_begin.h"

namespace kvpack::kvhf {

/// The manifest of one LAYER frame. The payload is `[token][kv_head][head_dim]`, row-major, little-endian
/// f16, or f32 for a key plane of the pre-RoPE family.
struct LayerHeader {
  std::uint64_t byte_length = 0;
  std::optional<std::string> dtype;  ///< v2 only; absent stands for `float16`.
  std::uint32_t layer = 0;
  std::optional<std::string> layout_class;  ///< v2 only, and then mandatory.
  std::uint32_t logical_token_end = 0;
  std::uint32_t logical_token_start = 0;
  Role role = Role::kKey;
  std::uint32_t schema_version = kSchemaVersion;
  std::uint32_t sequence = 0;
  std::string sha256;                    ///< Digest string of the payload.
  std::array<std::uint32_t, 3> shape{};  ///< tokens, kv_heads, head_dim
  std::string transfer_id;

  friend bool operator==(const LayerHeader&, const LayerHeader&) = default;
};

/// C(header). @pre texts are UTF-8
Bytes encode_layer_header(const LayerHeader& header);

/// @error kValidation  length, or not the canonical form
/// @error kCanonical   not JSON, a field of another type, a missing, repeated or unknown key
Result<LayerHeader> decode_layer_header(ByteSpan json, std::size_t max_bytes = FrameLimits{}.max_json_bytes);

/// Whether `header` is what the walk demands at place `sequence`. The payload is not looked at.
/// @error kValidation  first violation
Status check_layer_header(const ValidatedBegin& begin, std::uint32_t sequence, const LayerHeader& header);

/// Whether a v2 header names the element type where it is the default, `float16`. Both are accepted; the
/// hashes differ.
enum class DtypeTags : std::uint8_t { kWrite, kOmitDefault };

/// The header that a producer sends at place `sequence`.
/// @pre sequence < begin.walk().size()
LayerHeader make_layer_header(const ValidatedBegin& begin, std::uint32_t sequence, std::string payload_sha256,
                              DtypeTags tags);

/// The element type that travels at a step: `float32` for key planes of the pre-RoPE family, else `float16`.
std::string_view wire_dtype(const ValidatedBegin& begin, const WalkStep& step) noexcept;

// ---------------------------------------------------------------------------------------------------------

namespace detail {

inline constexpr std::array<std::string_view, 12> kLayerKeys{"byte_length",
                                                             "dtype",
                                                             "layer",
                                                             "layout_class",
                                                             "logical_token_end",
                                                             "logical_token_start",
                                                             "role",
                                                             "schema_version",
                                                             "sequence",
                                                             "sha256",
                                                             "shape",
                                                             "transfer_id"};

inline Result<LayerHeader> read_layer_header(const JsonDocument& document) {
  const JsonPath root;
  KVPACK_TRY_ASSIGN(const JsonFields fields,
                    JsonFields::open(document.value, kLayerKeys, UnknownKeys::kRefuse, root));
  LayerHeader out;
  KVPACK_TRY_ASSIGN(out.byte_length, fields.number<std::uint64_t>("byte_length"));
  KVPACK_TRY_ASSIGN(out.dtype, fields.optional_text("dtype"));
  KVPACK_TRY_ASSIGN(out.layer, fields.number<std::uint32_t>("layer"));
  KVPACK_TRY_ASSIGN(out.layout_class, fields.optional_text("layout_class"));
  KVPACK_TRY_ASSIGN(out.logical_token_end, fields.number<std::uint32_t>("logical_token_end"));
  KVPACK_TRY_ASSIGN(out.logical_token_start, fields.number<std::uint32_t>("logical_token_start"));
  KVPACK_TRY_ASSIGN(const std::size_t role, fields.choice("role", kRoleNames));
  out.role = role == 0 ? Role::kKey : Role::kValue;
  KVPACK_TRY_ASSIGN(out.schema_version, fields.number<std::uint32_t>("schema_version"));
  KVPACK_TRY_ASSIGN(out.sequence, fields.number<std::uint32_t>("sequence"));
  KVPACK_TRY_ASSIGN(out.sha256, fields.text("sha256"));
  KVPACK_TRY_ASSIGN(const std::vector<std::uint32_t> shape, read_u32_list(fields, "shape"));
  if (shape.size() != out.shape.size())
    return json_field_error(fields.path("shape"), "must have three elements");
  std::ranges::copy(shape, out.shape.begin());
  KVPACK_TRY_ASSIGN(out.transfer_id, fields.text("transfer_id"));
  return out;
}

inline Error layer_error(std::uint32_t sequence, std::string_view problem) {
  return fail(ErrorCode::kValidation, "layer frame " + std::to_string(sequence) + " " + std::string(problem));
}

/// What v1 and v2 demand alike.
inline bool matches_step(const ValidatedBegin& begin, const WalkStep& step, std::uint32_t sequence,
                         const LayerHeader& header) {
  const std::array<std::uint32_t, 3> shape{step.tokens.size(), step.kv_heads, step.head_dim};
  return header.schema_version == kSchemaVersion && header.transfer_id == begin.begin().transfer_id &&
         header.sequence == sequence && header.layer == step.layer && header.role == step.role &&
         header.logical_token_start == step.tokens.begin && header.logical_token_end == step.tokens.end &&
         header.shape == shape && header.byte_length == step.plane_bytes && is_digest_text(header.sha256);
}

}  // namespace detail

inline Bytes encode_layer_header(const LayerHeader& header) {
  Bytes out;
  JsonWriter json(out);
  json.open_object().member("byte_length", header.byte_length);
  if (header.dtype) json.member("dtype", *header.dtype);
  json.member("layer", header.layer);
  if (header.layout_class) json.member("layout_class", *header.layout_class);
  json.member("logical_token_end", header.logical_token_end);
  json.member("logical_token_start", header.logical_token_start);
  json.member("role", role_name(header.role)).member("schema_version", header.schema_version);
  json.member("sequence", header.sequence).member("sha256", header.sha256);
  json.key("shape").open_array();
  for (const std::uint32_t extent : header.shape) json.number(extent);
  json.close_array().member("transfer_id", header.transfer_id).close_object();
  return out;
}

inline Result<LayerHeader> decode_layer_header(ByteSpan json, std::size_t max_bytes) {
  return decode_canonical_struct(json, max_bytes, detail::read_layer_header, encode_layer_header);
}

inline std::string_view wire_dtype(const ValidatedBegin& begin, const WalkStep& step) noexcept {
  return begin.begin().is_prerope() && step.role == Role::kKey ? kFloat32 : kFloat16;
}

inline Status check_layer_header(const ValidatedBegin& begin, std::uint32_t sequence,
                                 const LayerHeader& header) {
  if (begin.begin().layout_table.empty()) {
    // Frames past the last layer are refused by the total bound of the payload, not by their header.
    const WalkStep step =
        flat_step(detail::flat_shape(begin.begin()), begin.begin().cached_token_count, sequence);
    if (!detail::matches_step(begin, step, sequence, header) || header.dtype || header.layout_class)
      return detail::layer_error(sequence, "does not match the ordered canonical tensor contract");
    return success();
  }
  if (sequence >= begin.walk().size())
    return detail::layer_error(sequence, "is outside the declared layout table");
  const WalkStep& step = begin.walk()[sequence];
  if (header.logical_token_end < header.logical_token_start)
    return detail::layer_error(sequence, "has an inverted token range");
  if (!detail::plane_product(header.logical_token_end - header.logical_token_start, step.kv_heads,
                             step.head_dim, detail::element_width(step.role, begin.begin().is_prerope())))
    return detail::layer_error(sequence, "byte bound overflow");
  if (!detail::matches_step(begin, step, sequence, header) ||
      header.layout_class != begin.layout_class(step)->label ||
      header.dtype.value_or(std::string(kFloat16)) != wire_dtype(begin, step))
    return detail::layer_error(sequence, "does not match the v2 layout-table contract");
  return success();
}

inline LayerHeader make_layer_header(const ValidatedBegin& begin, std::uint32_t sequence,
                                     std::string payload_sha256, DtypeTags tags) {
  assert(sequence < begin.walk().size());
  const WalkStep& step = begin.walk()[sequence];
  LayerHeader out;
  out.byte_length = step.plane_bytes;
  if (const LayoutClass* entry = begin.layout_class(step)) {
    out.layout_class = entry->label;
    const std::string_view dtype = wire_dtype(begin, step);
    if (tags == DtypeTags::kWrite || dtype != kFloat16) out.dtype = std::string(dtype);
  }
  out.layer = step.layer;
  out.logical_token_end = step.tokens.end;
  out.logical_token_start = step.tokens.begin;
  out.role = step.role;
  out.sequence = sequence;
  out.sha256 = std::move(payload_sha256);
  out.shape = {step.tokens.size(), step.kv_heads, step.head_dim};
  out.transfer_id = begin.begin().transfer_id;
  return out;
}

}  // namespace kvpack::kvhf
