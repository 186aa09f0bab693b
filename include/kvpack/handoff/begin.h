/// The begin manifest: who sends what to whom, judged before a payload byte is read.
/// docs/protocol/handoff.md §Begin.
#pragma once

#include <set>

#include "kvpack/handoff/segment.h"

namespace kvpack::handoff {

inline constexpr std::string_view kProtocol = "kvpack-live-handoff-v2";
inline constexpr std::size_t kMaxTransferIdBytes = 128;
inline constexpr std::uint32_t kDefaultMaxSegments = 1'048'576;

/// Everything that must be equal on both sides for a state to be usable.
struct ExactIdentity {
  std::string adapter_sha256;
  std::string chat_template_sha256;
  std::string context_policy_sha256;
  std::string model_revision;
  std::string model_sha256;
  std::string tokenizer_revision;
  std::string tokenizer_sha256;

  friend bool operator==(const ExactIdentity&, const ExactIdentity&) = default;
};

struct MultimodalIdentity {
  std::string image_sequence_sha256;
  std::string preprocessing_sha256;
  std::string projector_sha256;

  friend bool operator==(const MultimodalIdentity&, const MultimodalIdentity&) = default;
};

struct HmacIdentity {
  std::uint64_t epoch = 0;
  std::string key_id;

  friend bool operator==(const HmacIdentity&, const HmacIdentity&) = default;
};

/// The first message of a transfer. A prefix cut travels beside it (BeginFrame) and is never hashed.
struct BeginManifest {
  std::vector<Component> components;
  std::uint64_t created_unix_ms = 0;
  bool deferred_segments = false;  ///< Descriptors come with the segments instead of here.
  std::uint64_t expires_unix_ms = 0;
  std::uint64_t generation = 0;
  HmacIdentity hmac;
  ExactIdentity identity;
  std::optional<MultimodalIdentity> multimodal;
  std::vector<std::uint32_t> prompt_token_ids;  ///< Without the boundary token, which the consumer evaluates.
  std::string protocol{kProtocol};
  std::vector<SegmentDescriptor> segments;  ///< Empty in deferred mode.
  std::string transfer_id;

  friend bool operator==(const BeginManifest&, const BeginManifest&) = default;
};

/// What `begin_sha256` is the digest of.
Bytes canonical_begin(const BeginManifest& begin);
/// The typed parse; unknown keys are ignored except in the exact identity. @error kJson
Result<BeginManifest> parse_begin(const JsonValue& value, const JsonPath& path);
Result<ExactIdentity> parse_exact_identity(const JsonValue& value, const JsonPath& path);
Result<MultimodalIdentity> parse_multimodal_identity(const JsonValue& value, const JsonPath& path);

/// A key id that a receiver accepts, with the lowest epoch it still accepts.
struct AcceptedKeyId {
  std::string key_id;
  std::uint64_t minimum_epoch = 0;
};

/// What a begin is judged against.
struct BeginRules {
  std::uint64_t now_unix_ms = 0;
  std::span<const AcceptedKeyId> keys;           ///< Ids distinct.
  std::optional<std::uint32_t> max_segments;     ///< Of a declared begin; none is no bound of ours.
  std::optional<std::uint64_t> max_total_bytes;  ///< Sum of a declared begin's payloads.
};

/// A begin that has passed every check, with its digest.
class ValidatedBegin {
 public:
  /// The checks in their order, first violation wins. @error kValidation
  static Result<ValidatedBegin> validate(BeginManifest begin, const BeginRules& rules);

  const BeginManifest& manifest() const noexcept { return begin_; }
  const std::string& sha256_hex() const noexcept { return sha256_hex_; }

 private:
  ValidatedBegin(BeginManifest begin, std::string sha256_hex)
      : begin_(std::move(begin)), sha256_hex_(std::move(sha256_hex)) {}
  BeginManifest begin_;
  std::string sha256_hex_;
};

/// The clock rules of strict mode, in their order.
struct TimeRules {
  std::uint64_t max_clock_skew_ms = 30'000;
  std::uint64_t max_lifetime_ms = 3'600'000;
  std::optional<std::uint64_t> started_unix_ms;  ///< When this receiver loaded its ledger; none without one.
};

/// `now > expires`, said so that a skewed clock is named. @error kValidation
Status check_not_expired(const BeginManifest& begin, std::uint64_t now_unix_ms);
/// @error kValidation  created ahead of the clock; created before the receiver's start; lifetime too long
Status check_times(const BeginManifest& begin, std::uint64_t now_unix_ms, const TimeRules& rules);

// ---------------------------------------------------------------------------------------------------------

namespace detail {

inline constexpr std::array<std::string_view, 12> kBeginKeys{
    "components", "created_unix_ms", "deferred_segments", "expires_unix_ms", "generation", "hmac",
    "identity",   "multimodal",      "prompt_token_ids",  "protocol",        "segments",   "transfer_id"};
inline constexpr std::array<std::string_view, 4> kComponentKeys{"id", "identity_sha256", "kind", "required"};
inline constexpr std::array<std::string_view, 2> kHmacKeys{"epoch", "key_id"};
inline constexpr std::array<std::string_view, 7> kIdentityKeys{
    "adapter_sha256", "chat_template_sha256", "context_policy_sha256", "model_revision",
    "model_sha256",   "tokenizer_revision",   "tokenizer_sha256"};
inline constexpr std::array<std::string_view, 3> kMultimodalKeys{"image_sequence_sha256",
                                                                 "preprocessing_sha256", "projector_sha256"};

inline Result<Component> parse_component(const JsonValue& value, const JsonPath& path) {
  KVPACK_TRY_ASSIGN(const JsonFields fields,
                    JsonFields::open(value, kComponentKeys, UnknownKeys::kIgnore, path));
  Component out;
  KVPACK_TRY_ASSIGN(out.id, fields.text("id"));
  KVPACK_TRY_ASSIGN(out.identity_sha256, fields.text("identity_sha256"));
  KVPACK_TRY_ASSIGN(const std::size_t kind, fields.choice("kind", kComponentKindNames));
  out.kind = static_cast<ComponentKind>(kind);
  KVPACK_TRY_ASSIGN(out.required, fields.boolean("required"));
  return out;
}

inline Result<HmacIdentity> parse_hmac_identity(const JsonValue& value, const JsonPath& path) {
  KVPACK_TRY_ASSIGN(const JsonFields fields, JsonFields::open(value, kHmacKeys, UnknownKeys::kIgnore, path));
  HmacIdentity out;
  KVPACK_TRY_ASSIGN(out.epoch, fields.number<std::uint64_t>("epoch"));
  KVPACK_TRY_ASSIGN(out.key_id, fields.text("key_id"));
  return out;
}

/// Every element of an array field through one parser.
template <class T, class Parse>
Result<std::vector<T>> parse_list(const JsonFields& fields, std::string_view key, const Parse& parse) {
  KVPACK_TRY_ASSIGN(const JsonArray* items, fields.array(key));
  const JsonPath path = fields.path(key);
  std::vector<T> out;
  out.reserve(items->size());
  for (std::size_t i = 0; i < items->size(); ++i) {
    KVPACK_TRY_ASSIGN(T item, parse((*items)[i], JsonPath(path, i)));
    out.push_back(std::move(item));
  }
  return out;
}

inline Status check_identities(const BeginManifest& begin) {
  const ExactIdentity& identity = begin.identity;
  KVPACK_TRY(check_digest(identity.model_sha256, "model identity"));
  KVPACK_TRY(check_digest(identity.adapter_sha256, "adapter identity"));
  KVPACK_TRY(check_digest(identity.chat_template_sha256, "chat template identity"));
  KVPACK_TRY(check_digest(identity.context_policy_sha256, "context policy identity"));
  KVPACK_TRY(check_digest(identity.tokenizer_sha256, "tokenizer identity"));
  if (!begin.multimodal.has_value()) return success();
  KVPACK_TRY(check_digest(begin.multimodal->projector_sha256, "projector"));
  KVPACK_TRY(check_digest(begin.multimodal->preprocessing_sha256, "preprocessing"));
  return check_digest(begin.multimodal->image_sequence_sha256, "image sequence");
}

inline bool is_transfer_id(std::string_view id) noexcept {
  return !id.empty() && id.size() <= kMaxTransferIdBytes && std::ranges::all_of(id, [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  });
}

inline Status check_components(const std::vector<Component>& components) {
  std::set<std::string_view> ids;
  for (const Component& component : components) {
    if (component.id.empty() || !ids.insert(component.id).second)
      return invalid_handoff("empty or duplicate component id");
    KVPACK_TRY(check_digest(component.identity_sha256, "component identity"));
  }
  const auto is_required_target = [](const Component& c) {
    return c.kind == ComponentKind::kTargetKv && c.required;
  };
  if (!std::ranges::any_of(components, is_required_target))
    return invalid_handoff("a required target KV component is mandatory");
  return success();
}

inline std::uint64_t saturating_add(std::uint64_t a, std::uint64_t b) noexcept {
  return checked_add(a, b).value_or(std::numeric_limits<std::uint64_t>::max());
}

inline Error too_many_segments(std::uint32_t limit) {
  return invalid_handoff("transfer exceeds " + std::to_string(limit) + " segments");
}
inline Error too_many_bytes(std::uint64_t limit) {
  return invalid_handoff("transfer exceeds " + std::to_string(limit) + " payload bytes");
}

inline Status check_declared_segments(const BeginManifest& begin, const BeginRules& rules) {
  if (rules.max_segments.has_value() && begin.segments.size() > *rules.max_segments)
    return too_many_segments(*rules.max_segments);
  SegmentRules segment_rules(begin.components);
  bool has_dflash = false;
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < begin.segments.size(); ++i) {
    const SegmentDescriptor& segment = begin.segments[i];
    if (segment.sequence != i)
      return invalid_handoff("segment sequences must be contiguous in declared wire order");
    KVPACK_TRY_ASSIGN(const std::size_t component, segment_rules.admit(segment));
    has_dflash = has_dflash || begin.components[component].kind == ComponentKind::kDflashContext;
    total = saturating_add(total, segment.byte_len);
  }
  const auto is_required_dflash = [](const Component& c) {
    return c.kind == ComponentKind::kDflashContext && c.required;
  };
  if (!begin.deferred_segments && !has_dflash && std::ranges::any_of(begin.components, is_required_dflash))
    return invalid_handoff("required DFlash component has no segments");
  if (rules.max_total_bytes.has_value() && total > *rules.max_total_bytes)
    return too_many_bytes(*rules.max_total_bytes);
  return success();
}

inline Status check_begin(const BeginManifest& begin, const BeginRules& rules) {
  if (begin.protocol != kProtocol) return invalid_handoff("wrong V2 protocol");
  if (!is_transfer_id(begin.transfer_id)) return invalid_handoff("invalid transfer id");
  if (begin.expires_unix_ms <= begin.created_unix_ms || rules.now_unix_ms > begin.expires_unix_ms)
    return invalid_handoff("expired or invalid handoff lifetime");
  const auto accepts = [&](const AcceptedKeyId& key) {
    return key.key_id == begin.hmac.key_id && begin.hmac.epoch >= key.minimum_epoch;
  };
  if (!std::ranges::any_of(rules.keys, accepts))
    return invalid_handoff("wrong HMAC key id or replayed epoch");
  KVPACK_TRY(check_identities(begin));
  if (begin.components.empty() || begin.deferred_segments != begin.segments.empty())
    return invalid_handoff("V2 requires components and exactly one declared/deferred segment mode");
  if (begin.prompt_token_ids.empty()) return invalid_handoff("V2 prompt token sequence is empty");
  KVPACK_TRY(check_components(begin.components));
  return check_declared_segments(begin, rules);
}

}  // namespace detail

namespace detail {

template <class Out>
void put_json(const Component& component, Out& out) {
  out.fixed(R"({"id":)");
  out.text(component.id);
  out.fixed(R"(,"identity_sha256":)");
  out.text(component.identity_sha256);
  out.fixed(R"(,"kind":")");
  out.fixed(component_kind_name(component.kind));
  out.fixed(component.required ? R"(","required":true})" : R"(","required":false})");
}

template <class Out>
void put_json(const ExactIdentity& identity, Out& out) {
  out.fixed(R"({"adapter_sha256":)");
  out.text(identity.adapter_sha256);
  out.fixed(R"(,"chat_template_sha256":)");
  out.text(identity.chat_template_sha256);
  out.fixed(R"(,"context_policy_sha256":)");
  out.text(identity.context_policy_sha256);
  out.fixed(R"(,"model_revision":)");
  out.text(identity.model_revision);
  out.fixed(R"(,"model_sha256":)");
  out.text(identity.model_sha256);
  out.fixed(R"(,"tokenizer_revision":)");
  out.text(identity.tokenizer_revision);
  out.fixed(R"(,"tokenizer_sha256":)");
  out.text(identity.tokenizer_sha256);
  out.fixed("}");
}

template <class Out>
void put_json(const std::optional<MultimodalIdentity>& multimodal, Out& out) {
  if (!multimodal.has_value()) return out.fixed("null");
  out.fixed(R"({"image_sequence_sha256":)");
  out.text(multimodal->image_sequence_sha256);
  out.fixed(R"(,"preprocessing_sha256":)");
  out.text(multimodal->preprocessing_sha256);
  out.fixed(R"(,"projector_sha256":)");
  out.text(multimodal->projector_sha256);
  out.fixed("}");
}

template <class T, class Out>
void put_list(const std::vector<T>& items, Out& out) {
  out.fixed("[");
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i != 0) out.fixed(",");
    put_json(items[i], out);
  }
  out.fixed("]");
}

/// The manifest object; a cut that is not 0 stands in it on the wire, and only there.
template <class Out>
void put_json(const BeginManifest& begin, std::uint64_t prefix_cut, Out& out) {
  out.fixed(R"({"components":)");
  put_list(begin.components, out);
  out.fixed(R"(,"created_unix_ms":)");
  out.number(begin.created_unix_ms);
  if (begin.deferred_segments) out.fixed(R"(,"deferred_segments":true)");
  out.fixed(R"(,"expires_unix_ms":)");
  out.number(begin.expires_unix_ms);
  out.fixed(R"(,"generation":)");
  out.number(begin.generation);
  out.fixed(R"(,"hmac":{"epoch":)");
  out.number(begin.hmac.epoch);
  out.fixed(R"(,"key_id":)");
  out.text(begin.hmac.key_id);
  out.fixed(R"(},"identity":)");
  put_json(begin.identity, out);
  out.fixed(R"(,"multimodal":)");
  put_json(begin.multimodal, out);
  if (prefix_cut != 0) {
    out.fixed(R"(,"prefix_cut":)");
    out.number(prefix_cut);
  }
  out.fixed(R"(,"prompt_token_ids":[)");
  out.numbers(begin.prompt_token_ids);
  out.fixed(R"(],"protocol":)");
  out.text(begin.protocol);
  out.fixed(R"(,"segments":)");
  put_list(begin.segments, out);
  out.fixed(R"(,"transfer_id":)");
  out.text(begin.transfer_id);
  out.fixed("}");
}

inline bool scan_json(JsonScan& in, Component& out) {
  std::size_t kind = 0;
  if (!in.fixed(R"({"id":)") || !in.text(out.id)) return false;
  if (!in.fixed(R"(,"identity_sha256":)") || !in.text(out.identity_sha256)) return false;
  if (!in.fixed(R"(,"kind":)") || !in.choice(kComponentKindNames, kind)) return false;
  out.kind = static_cast<ComponentKind>(kind);
  return in.fixed(R"(,"required":)") && in.boolean(out.required) && in.fixed("}");
}

inline bool scan_json(JsonScan& in, ExactIdentity& out) {
  if (!in.fixed(R"({"adapter_sha256":)") || !in.text(out.adapter_sha256)) return false;
  if (!in.fixed(R"(,"chat_template_sha256":)") || !in.text(out.chat_template_sha256)) return false;
  if (!in.fixed(R"(,"context_policy_sha256":)") || !in.text(out.context_policy_sha256)) return false;
  if (!in.fixed(R"(,"model_revision":)") || !in.text(out.model_revision)) return false;
  if (!in.fixed(R"(,"model_sha256":)") || !in.text(out.model_sha256)) return false;
  if (!in.fixed(R"(,"tokenizer_revision":)") || !in.text(out.tokenizer_revision)) return false;
  return in.fixed(R"(,"tokenizer_sha256":)") && in.text(out.tokenizer_sha256) && in.fixed("}");
}

inline bool scan_json(JsonScan& in, std::optional<MultimodalIdentity>& out) {
  if (in.fixed("null")) return true;
  MultimodalIdentity& value = out.emplace();
  if (!in.fixed(R"({"image_sequence_sha256":)") || !in.text(value.image_sequence_sha256)) return false;
  if (!in.fixed(R"(,"preprocessing_sha256":)") || !in.text(value.preprocessing_sha256)) return false;
  return in.fixed(R"(,"projector_sha256":)") && in.text(value.projector_sha256) && in.fixed("}");
}

inline bool scan_json(JsonScan& in, std::vector<Component>& out) {
  return in.array([&](JsonScan& item) { return scan_json(item, out.emplace_back()); });
}

inline bool scan_json(JsonScan& in, std::vector<SegmentDescriptor>& out) {
  return in.array([&](JsonScan& item) {
    const std::size_t before = item.left();
    if (!scan_json(item, out.emplace_back())) return false;
    // What is left is descriptors of about this length; even of the shortest it is no more memory than text.
    if (out.size() == 1) out.reserve(1 + item.left() / (before - item.left() + 1));
    return true;
  });
}

/// The manifest as it stands on the wire.
inline bool scan_json(JsonScan& in, BeginManifest& out, std::uint64_t& prefix_cut) {
  if (!in.fixed(R"({"components":)") || !scan_json(in, out.components)) return false;
  if (!in.fixed(R"(,"created_unix_ms":)") || !in.number(out.created_unix_ms)) return false;
  out.deferred_segments = in.fixed(R"(,"deferred_segments":true)");
  if (!in.fixed(R"(,"expires_unix_ms":)") || !in.number(out.expires_unix_ms)) return false;
  if (!in.fixed(R"(,"generation":)") || !in.number(out.generation)) return false;
  if (!in.fixed(R"(,"hmac":{"epoch":)") || !in.number(out.hmac.epoch)) return false;
  if (!in.fixed(R"(,"key_id":)") || !in.text(out.hmac.key_id)) return false;
  if (!in.fixed(R"(},"identity":)") || !scan_json(in, out.identity)) return false;
  if (!in.fixed(R"(,"multimodal":)") || !scan_json(in, out.multimodal)) return false;
  prefix_cut = 0;
  if (in.fixed(R"(,"prefix_cut":)") && (!in.number(prefix_cut) || prefix_cut == 0)) return false;
  if (!in.fixed(R"(,"prompt_token_ids":)") || !in.numbers(out.prompt_token_ids)) return false;
  if (!in.fixed(R"(,"protocol":)") || !in.text(out.protocol)) return false;
  if (!in.fixed(R"(,"segments":)") || !scan_json(in, out.segments)) return false;
  return in.fixed(R"(,"transfer_id":)") && in.text(out.transfer_id) && in.fixed("}");
}

}  // namespace detail

inline Bytes canonical_begin(const BeginManifest& begin) {
  return json_bytes([&](auto& out) { detail::put_json(begin, 0, out); });
}

inline Result<ExactIdentity> parse_exact_identity(const JsonValue& value, const JsonPath& path) {
  KVPACK_TRY_ASSIGN(const JsonFields fields,
                    JsonFields::open(value, detail::kIdentityKeys, UnknownKeys::kRefuse, path));
  ExactIdentity out;
  KVPACK_TRY_ASSIGN(out.adapter_sha256, fields.text("adapter_sha256"));
  KVPACK_TRY_ASSIGN(out.chat_template_sha256, fields.text("chat_template_sha256"));
  KVPACK_TRY_ASSIGN(out.context_policy_sha256, fields.text("context_policy_sha256"));
  KVPACK_TRY_ASSIGN(out.model_revision, fields.text("model_revision"));
  KVPACK_TRY_ASSIGN(out.model_sha256, fields.text("model_sha256"));
  KVPACK_TRY_ASSIGN(out.tokenizer_revision, fields.text("tokenizer_revision"));
  KVPACK_TRY_ASSIGN(out.tokenizer_sha256, fields.text("tokenizer_sha256"));
  return out;
}

inline Result<MultimodalIdentity> parse_multimodal_identity(const JsonValue& value, const JsonPath& path) {
  KVPACK_TRY_ASSIGN(const JsonFields fields,
                    JsonFields::open(value, detail::kMultimodalKeys, UnknownKeys::kIgnore, path));
  MultimodalIdentity out;
  KVPACK_TRY_ASSIGN(out.image_sequence_sha256, fields.text("image_sequence_sha256"));
  KVPACK_TRY_ASSIGN(out.preprocessing_sha256, fields.text("preprocessing_sha256"));
  KVPACK_TRY_ASSIGN(out.projector_sha256, fields.text("projector_sha256"));
  return out;
}

inline Result<BeginManifest> parse_begin(const JsonValue& value, const JsonPath& path) {
  KVPACK_TRY_ASSIGN(const JsonFields fields,
                    JsonFields::open(value, detail::kBeginKeys, UnknownKeys::kIgnore, path));
  BeginManifest out;
  KVPACK_TRY_ASSIGN(out.components,
                    detail::parse_list<Component>(fields, "components", detail::parse_component));
  KVPACK_TRY_ASSIGN(out.created_unix_ms, fields.number<std::uint64_t>("created_unix_ms"));
  KVPACK_TRY_ASSIGN(out.deferred_segments, fields.boolean_or("deferred_segments", false));
  KVPACK_TRY_ASSIGN(out.expires_unix_ms, fields.number<std::uint64_t>("expires_unix_ms"));
  KVPACK_TRY_ASSIGN(out.generation, fields.number<std::uint64_t>("generation"));
  KVPACK_TRY_ASSIGN(const JsonValue* hmac, fields.required("hmac"));
  KVPACK_TRY_ASSIGN(out.hmac, detail::parse_hmac_identity(*hmac, fields.path("hmac")));
  KVPACK_TRY_ASSIGN(const JsonValue* identity, fields.required("identity"));
  KVPACK_TRY_ASSIGN(out.identity, parse_exact_identity(*identity, fields.path("identity")));
  if (const JsonValue* multimodal = fields.optional("multimodal")) {
    KVPACK_TRY_ASSIGN(out.multimodal, parse_multimodal_identity(*multimodal, fields.path("multimodal")));
  }
  KVPACK_TRY_ASSIGN(out.prompt_token_ids, detail::parse_list<std::uint32_t>(fields, "prompt_token_ids",
                                                                            json_unsigned<std::uint32_t>));
  KVPACK_TRY_ASSIGN(out.protocol, fields.text("protocol"));
  KVPACK_TRY_ASSIGN(out.segments,
                    detail::parse_list<SegmentDescriptor>(fields, "segments", parse_descriptor));
  KVPACK_TRY_ASSIGN(out.transfer_id, fields.text("transfer_id"));
  return out;
}

inline Result<ValidatedBegin> ValidatedBegin::validate(BeginManifest begin, const BeginRules& rules) {
  KVPACK_TRY(detail::check_begin(begin, rules));
  std::string sha256_hex = to_hex(sha256(canonical_begin(begin)));
  return ValidatedBegin(std::move(begin), std::move(sha256_hex));
}

inline Status check_not_expired(const BeginManifest& begin, std::uint64_t now_unix_ms) {
  if (now_unix_ms > begin.expires_unix_ms)
    return detail::invalid_handoff("handoff expired at " + std::to_string(begin.expires_unix_ms) +
                                   " unix ms while the receiver clock reads " + std::to_string(now_unix_ms) +
                                   " unix ms: check producer/receiver clock skew");
  return success();
}

inline Status check_times(const BeginManifest& begin, std::uint64_t now_unix_ms, const TimeRules& rules) {
  const std::uint64_t created = begin.created_unix_ms;
  const std::uint64_t latest = detail::saturating_add(now_unix_ms, rules.max_clock_skew_ms);
  if (created > latest)
    return detail::invalid_handoff("handoff created at " + std::to_string(created) +
                                   " unix ms is ahead of the receiver clock " + std::to_string(now_unix_ms) +
                                   " unix ms: check producer/receiver clock skew");
  if (rules.started_unix_ms.has_value() && created < *rules.started_unix_ms)
    return detail::invalid_handoff("handoff created at " + std::to_string(created) +
                                   " unix ms predates this receiver's start at " +
                                   std::to_string(*rules.started_unix_ms) + " unix ms");
  // A begin that expires before it was created has no lifetime; its own check refuses it.
  const std::uint64_t lifetime = begin.expires_unix_ms > created ? begin.expires_unix_ms - created : 0;
  if (lifetime > rules.max_lifetime_ms)
    return detail::invalid_handoff("handoff lifetime " + std::to_string(lifetime) + " ms exceeds " +
                                   std::to_string(rules.max_lifetime_ms) + " ms");
  return success();
}

}  // namespace kvpack::handoff
