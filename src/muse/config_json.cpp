#include "kvpack/muse/config_json.h"

#include <bit>

#include "kvpack/base/hex.h"

namespace kvpack::muse {

namespace {

constexpr std::size_t kMaxConfigJsonBytes = std::size_t{1} << 20;

struct CountField {
  std::string_view name;
  std::uint64_t MuseConfig::*member;
};
constexpr CountField kCounts[] = {
    {"n_layers", &MuseConfig::n_layers},
    {"hidden_dim", &MuseConfig::hidden_dim},
    {"n_heads", &MuseConfig::n_heads},
    {"n_kv_heads", &MuseConfig::n_kv_heads},
    {"head_dim", &MuseConfig::head_dim},
    {"value_head_dim", &MuseConfig::value_head_dim},
    {"intermediate_dim", &MuseConfig::intermediate_dim},
    {"vocab_size", &MuseConfig::vocab_size},
    {"context_length", &MuseConfig::context_length},
    {"rope_dim", &MuseConfig::rope_dim},
    {"sliding_window", &MuseConfig::sliding_window},
};

struct ScalarField {
  std::string_view name;
  float MuseConfig::*member;
};
constexpr ScalarField kScalars[] = {
    {"rms_eps", &MuseConfig::rms_eps},
    {"post_norm_eps", &MuseConfig::post_norm_eps},
    {"rope_base_swa", &MuseConfig::rope_base_swa},
    {"rope_base_full", &MuseConfig::rope_base_full},
    {"final_logit_softcap", &MuseConfig::final_logit_softcap},
    {"logit_scale", &MuseConfig::logit_scale},
    {"qk_scale_factor", &MuseConfig::qk_scale_factor},
};

constexpr std::string_view kLayerKinds = "layer_kinds";
constexpr std::string_view kBos = "bos_token_id";
constexpr std::string_view kEos = "eos_tokens";
/// By LayerKind.
constexpr std::string_view kKindNames[] = {"swa", "nope"};

std::vector<std::string_view> all_keys() {
  std::vector<std::string_view> keys;
  for (const CountField& field : kCounts) keys.push_back(field.name);
  for (const ScalarField& field : kScalars) keys.push_back(field.name);
  keys.insert(keys.end(), {kLayerKinds, kBos, kEos});
  return keys;
}

std::string scalar_text(float value) {
  return to_hex(be_bytes(std::bit_cast<std::uint32_t>(value)));
}

Result<float> parse_scalar(const JsonFields& fields, std::string_view name) {
  KVPACK_TRY_ASSIGN(const std::string text, fields.text(name));
  std::array<std::uint8_t, 4> bytes{};
  if (!from_hex(text, bytes))
    return json_field_error(fields.path(name), "must be the 8 lower-case hex digits of an f32");
  std::ranges::reverse(bytes);
  return std::bit_cast<float>(load_le<std::uint32_t>(bytes, 0));
}

Result<std::vector<LayerKind>> parse_kinds(const JsonFields& fields) {
  KVPACK_TRY_ASSIGN(const JsonArray* items, fields.array(kLayerKinds));
  const JsonPath path = fields.path(kLayerKinds);
  std::vector<LayerKind> kinds;
  for (std::size_t i = 0; i < items->size(); ++i) {
    const std::string* text = (*items)[i].as_string();
    const auto* found = text == nullptr ? std::end(kKindNames) : std::ranges::find(kKindNames, *text);
    if (found == std::end(kKindNames)) return json_field_error({path, i}, "must be `swa` or `nope`");
    kinds.push_back(static_cast<LayerKind>(found - std::begin(kKindNames)));
  }
  return kinds;
}

}  // namespace

Bytes encode_muse_config(const MuseConfig& config) {
  JsonValue value = JsonValue::object();
  for (const CountField& field : kCounts) value.set(field.name, config.*field.member);
  for (const ScalarField& field : kScalars) value.set(field.name, scalar_text(config.*field.member));
  JsonValue kinds = JsonValue::array();
  for (const LayerKind kind : config.layer_kinds) kinds.push(kKindNames[static_cast<std::size_t>(kind)]);
  value.set(kLayerKinds, std::move(kinds));
  value.set(kBos, config.bos_token_id ? JsonValue(*config.bos_token_id) : JsonValue());
  JsonValue eos = JsonValue::array();
  for (const std::uint32_t token : config.eos_tokens) eos.push(token);
  value.set(kEos, std::move(eos));
  return canonical_json(value);
}

Result<MuseConfig> parse_muse_config(ByteSpan json) {
  KVPACK_TRY_ASSIGN(const JsonValue value, parse_json(json, kMaxConfigJsonBytes));
  const JsonPath root;
  const std::vector<std::string_view> keys = all_keys();
  KVPACK_TRY_ASSIGN(const JsonFields fields, JsonFields::open(value, keys, UnknownKeys::kRefuse, root));
  MuseConfig config;
  for (const CountField& field : kCounts) {
    KVPACK_TRY_ASSIGN(config.*field.member, fields.number<std::uint64_t>(field.name));
  }
  for (const ScalarField& field : kScalars) {
    KVPACK_TRY_ASSIGN(config.*field.member, parse_scalar(fields, field.name));
  }
  KVPACK_TRY_ASSIGN(config.layer_kinds, parse_kinds(fields));
  KVPACK_TRY(fields.required(kBos));
  KVPACK_TRY_ASSIGN(config.bos_token_id, fields.optional_number<std::uint32_t>(kBos));
  KVPACK_TRY_ASSIGN(const JsonArray* eos, fields.array(kEos));
  const JsonPath eos_path = fields.path(kEos);
  for (std::size_t i = 0; i < eos->size(); ++i) {
    KVPACK_TRY_ASSIGN(const auto token, json_unsigned<std::uint32_t>((*eos)[i], {eos_path, i}));
    config.eos_tokens.push_back(token);
  }
  return config;
}

}  // namespace kvpack::muse
