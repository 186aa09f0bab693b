/// What the digests of a saved cut were made of, as text beside it in the store: the digests alone could not
/// say which of the fields differs. docs/format/muse.md §Identity label
#pragma once

#include <string>
#include <vector>

#include "kvpack/core/canonical_json.h"
#include "kvpack/muse/muse_descriptor.h"

namespace kvpack::muse {

/// The fields of an identity as an operator names them. No token, no prompt, no key.
struct IdentityLabel {
  MuseIdentity identity{};
  ScalarMath scalars{};
  std::string layout{};
  std::string producer_engine_abi{};
  std::string consumer_engine_abi{};
};

/// Of what a Muse cache is saved under.
IdentityLabel identity_label(const MuseConfig& config, const MuseIdentity& identity);

/// Canonical JSON, which is what SaveRequest::label takes.
/// @error kExpectation `identity label does not fit a store`: a text is not UTF-8, or all of them together
/// are too
///        long
Result<std::string> write_identity_label(const IdentityLabel& label);

/// @error kValidation it is too long, or not the canonical form; kCanonical it is no label
Result<IdentityLabel> read_identity_label(std::string_view text);

/// One field that differs. Digests and scalar bits are hex.
struct LabelDifference {
  std::string_view field;
  std::string stored;
  std::string asked;

  friend bool operator==(const LabelDifference&, const LabelDifference&) = default;
};

/// Every field that differs: the eight of the identity in their order, then the four scalars, layout,
/// producer and consumer. Scalars are compared by their bits.
std::vector<LabelDifference> compare_identity_labels(const IdentityLabel& stored, const IdentityLabel& asked);

// ---------------------------------------------------------------------------------------------------------------

namespace detail {

inline constexpr std::size_t kMaxIdentityLabelBytes = 16'384;  ///< The column of the store.
inline constexpr std::string_view kIdentityLabelSchema = "kvpack.muse-identity.v1";

/// Calls `visit(name, text)` with each field, in the order of comparison.
template <class Visit>
void each_label_field(const IdentityLabel& label, Visit&& visit) {
  const MuseIdentity& identity = label.identity;
  const auto bits = [](double value) { return to_hex(be_bytes(std::bit_cast<std::uint64_t>(value))); };
  visit("model_sha256", identity.model_sha256.hex());
  visit("adapter_sha256", identity.adapter_sha256.hex());
  visit("tokenizer_sha256", identity.tokenizer_sha256.hex());
  visit("chat_template_sha256", identity.chat_template_sha256.hex());
  visit("context_policy_sha256", identity.context_policy_sha256.hex());
  visit("model_revision", identity.model_revision);
  visit("tokenizer_revision", identity.tokenizer_revision);
  visit("weight_precision", identity.weight_precision);
  visit("qk_scale_factor", bits(label.scalars.qk_scale_factor));
  visit("output_multiplier", bits(label.scalars.output_multiplier));
  visit("final_logit_softcap", bits(label.scalars.final_logit_softcap));
  visit("post_norm_eps", bits(label.scalars.post_norm_eps));
  visit("layout", label.layout);
  visit("producer_engine_abi", label.producer_engine_abi);
  visit("consumer_engine_abi", label.consumer_engine_abi);
}

inline constexpr std::array<std::string_view, 16> kLabelKeys{"adapter_sha256",
                                                             "chat_template_sha256",
                                                             "consumer_engine_abi",
                                                             "context_policy_sha256",
                                                             "final_logit_softcap",
                                                             "layout",
                                                             "model_revision",
                                                             "model_sha256",
                                                             "output_multiplier",
                                                             "post_norm_eps",
                                                             "producer_engine_abi",
                                                             "qk_scale_factor",
                                                             "schema",
                                                             "tokenizer_revision",
                                                             "tokenizer_sha256",
                                                             "weight_precision"};

inline Result<Id32> label_id(const JsonFields& fields, std::string_view key) {
  KVPACK_TRY_ASSIGN(const std::string text, fields.text(key));
  const auto id = Id32::from_hex(text);
  if (!id) return json_field_error(fields.path(key), "must be 64 lower-case hexadecimal digits");
  return *id;
}

inline Result<double> label_scalar(const JsonFields& fields, std::string_view key) {
  KVPACK_TRY_ASSIGN(const std::string text, fields.text(key));
  std::array<std::uint8_t, 8> bytes{};
  if (!from_hex(text, bytes))
    return json_field_error(fields.path(key), "must be 16 lower-case hexadecimal digits");
  std::uint64_t bits = 0;
  for (const std::uint8_t byte : bytes) bits = (bits << 8) | byte;
  return std::bit_cast<double>(bits);
}

inline Result<IdentityLabel> parse_identity_label(const JsonDocument& document) {
  const JsonPath root;
  KVPACK_TRY_ASSIGN(const JsonFields fields,
                    JsonFields::open(document.value, kLabelKeys, UnknownKeys::kRefuse, root));
  KVPACK_TRY_ASSIGN(const std::string schema, fields.text("schema"));
  if (schema != kIdentityLabelSchema)
    return json_field_error(fields.path("schema"), "must be kvpack.muse-identity.v1");
  IdentityLabel label;
  MuseIdentity& identity = label.identity;
  KVPACK_TRY_ASSIGN(identity.model_sha256, label_id(fields, "model_sha256"));
  KVPACK_TRY_ASSIGN(identity.adapter_sha256, label_id(fields, "adapter_sha256"));
  KVPACK_TRY_ASSIGN(identity.tokenizer_sha256, label_id(fields, "tokenizer_sha256"));
  KVPACK_TRY_ASSIGN(identity.chat_template_sha256, label_id(fields, "chat_template_sha256"));
  KVPACK_TRY_ASSIGN(identity.context_policy_sha256, label_id(fields, "context_policy_sha256"));
  KVPACK_TRY_ASSIGN(identity.model_revision, fields.text("model_revision"));
  KVPACK_TRY_ASSIGN(identity.tokenizer_revision, fields.text("tokenizer_revision"));
  KVPACK_TRY_ASSIGN(identity.weight_precision, fields.text("weight_precision"));
  KVPACK_TRY_ASSIGN(label.scalars.qk_scale_factor, label_scalar(fields, "qk_scale_factor"));
  KVPACK_TRY_ASSIGN(label.scalars.output_multiplier, label_scalar(fields, "output_multiplier"));
  KVPACK_TRY_ASSIGN(label.scalars.final_logit_softcap, label_scalar(fields, "final_logit_softcap"));
  KVPACK_TRY_ASSIGN(label.scalars.post_norm_eps, label_scalar(fields, "post_norm_eps"));
  KVPACK_TRY_ASSIGN(label.layout, fields.text("layout"));
  KVPACK_TRY_ASSIGN(label.producer_engine_abi, fields.text("producer_engine_abi"));
  KVPACK_TRY_ASSIGN(label.consumer_engine_abi, fields.text("consumer_engine_abi"));
  return label;
}

/// @pre all texts are UTF-8
inline Bytes encode_identity_label(const IdentityLabel& label) {
  JsonValue value = JsonValue::object();
  value.set("schema", kIdentityLabelSchema);
  each_label_field(label, [&](std::string_view name, std::string_view text) { value.set(name, text); });
  return canonical_json(value);
}

}  // namespace detail

inline IdentityLabel identity_label(const MuseConfig& config, const MuseIdentity& identity) {
  return {.identity = identity,
          .scalars = scalar_math(config),
          .layout = std::string(kLayoutName),
          .producer_engine_abi = std::string(kCacheAbi),
          .consumer_engine_abi = std::string(kCacheAbi)};
}

inline Result<std::string> write_identity_label(const IdentityLabel& label) {
  bool fits = true;
  std::size_t bytes = 0;
  detail::each_label_field(label, [&](std::string_view, std::string_view text) {
    fits = fits && text.size() <= detail::kMaxIdentityLabelBytes && is_utf8(text);
    bytes += text.size();
  });
  if (fits && bytes <= detail::kMaxIdentityLabelBytes) {
    const Bytes encoded = detail::encode_identity_label(label);
    if (encoded.size() <= detail::kMaxIdentityLabelBytes) return std::string(text_view(encoded));
  }
  return fail(ErrorCode::kExpectation, "identity label does not fit a store");
}

inline Result<IdentityLabel> read_identity_label(std::string_view text) {
  return decode_canonical_struct(byte_view(text), detail::kMaxIdentityLabelBytes,
                                 detail::parse_identity_label, detail::encode_identity_label);
}

inline std::vector<LabelDifference> compare_identity_labels(const IdentityLabel& stored,
                                                            const IdentityLabel& asked) {
  std::vector<LabelDifference> fields;
  detail::each_label_field(stored, [&](std::string_view name, std::string_view text) {
    fields.push_back({name, std::string(text), {}});
  });
  std::size_t next = 0;
  detail::each_label_field(
      asked, [&](std::string_view, std::string_view text) { fields[next++].asked = std::string(text); });
  std::erase_if(fields, [](const LabelDifference& field) { return field.stored == field.asked; });
  return fields;
}

}  // namespace kvpack::muse
