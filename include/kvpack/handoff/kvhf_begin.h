/// KVHF BEGIN: what a transfer declares before a plane moves, and every rule it must pass.
/// Fields, rules and their order: docs/protocol/kvhf.md §BEGIN.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvpack/handoff/begin.h"
#include "kvpack/handoff/kvhf_envelope.h"
#include "kvpack/handoff/kvhf_layout_table.h"

namespace kvpack::kvhf {

using handoff::is_digest_text;

inline constexpr std::string_view kProtocol = "kvpack-live-f16-le-v1";
inline constexpr std::string_view kStrategy = "consumer_last_prompt_token";
inline constexpr std::uint32_t kSchemaVersion = 1;
inline constexpr std::string_view kAbiFlat = "canonical-kv-f16-le-v1";
inline constexpr std::string_view kAbiTable = "canonical-kv-v2";
inline constexpr std::string_view kAbiPreRope = "canonical-kv-prerope-v2";

/// Who talks to whom. Five labels of at most 256 bytes.
struct Endpoints {
  std::string consumer_engine_abi;
  std::string consumer_node;
  std::string producer_engine_abi;
  std::string producer_node;
  std::string trust_domain;
  friend bool operator==(const Endpoints&, const Endpoints&) = default;
};

/// The flat geometry. With a table of several classes the two shape fields are 0.
struct Geometry {
  std::uint32_t head_dim = 0;
  std::uint32_t max_context_tokens = 0;
  std::uint32_t num_kv_heads = 0;
  std::uint32_t num_layers = 0;
  friend bool operator==(const Geometry&, const Geometry&) = default;
};

struct Precision {
  std::string compute;
  std::string kv;
  std::string weights;
  friend bool operator==(const Precision&, const Precision&) = default;
};

/// The first frame of a transfer. An empty `layout_table` means protocol v1, any other v2.
struct Begin {
  std::uint32_t cached_token_count = 0;  ///< Positions shipped: the prompt without its last token.
  std::uint64_t created_unix_ms = 0;
  std::uint64_t deadline_unix_ms = 0;
  Endpoints endpoints;
  std::uint32_t expected_layer_frames = 0;
  std::uint64_t expected_payload_bytes = 0;
  Geometry geometry;
  std::optional<std::string> hmac_key_id;  ///< Names the tenant key; then the seal must carry a tag.
  handoff::ExactIdentity identity;  ///< Five digest strings and two revision labels of at most 256 bytes.
  std::vector<LayoutClass> layout_table;
  std::string portable_abi;
  Precision precision;
  std::string protocol = std::string(kProtocol);
  std::optional<std::string> schedule;  ///< `layer-order` or `decode-priority`; v2 only.
  std::uint32_t schema_version = kSchemaVersion;
  std::string token_ids_sha256;  ///< Of all prompt tokens, the last one included.
  std::string transfer_id;       ///< A digest string.
  // `strategy` has one value, which the codec writes and demands, and is therefore no field.

  /// Key planes travel as f32, before rotation.
  bool is_prerope() const noexcept { return !layout_table.empty() && portable_abi == kAbiPreRope; }
  friend bool operator==(const Begin&, const Begin&) = default;
};

/// What a receiver admits. All bounds are inclusive.
struct Limits {
  std::uint64_t max_cached_tokens = 32'767;
  std::uint64_t max_clock_skew_ms = 30'000;  ///< How far ahead of `now` a begin may have been created.
  std::uint64_t max_context_tokens = 32'768;
  std::uint64_t max_frame_bytes = 67'108'864;
  std::uint64_t max_layers = 64;
  std::uint64_t max_session_ms = 900'000;
  std::uint64_t max_total_bytes = 4'294'967'296;
  std::uint64_t now_unix_ms = 1;  ///< The receiver's time when BEGIN arrived; the caller must set it.
};

/// A begin that has passed every rule, with its canonical bytes and its walk. Made by `validate` alone.
class ValidatedBegin {
 public:
  const Begin& begin() const noexcept { return begin_; }
  const Bytes& canonical() const noexcept { return canonical_; }
  /// SHA-256 of the canonical bytes: names this transfer among all others.
  const Digest32& digest() const noexcept { return digest_; }
  /// One step for each LAYER frame; the sequence number is the index.
  const std::vector<WalkStep>& walk() const noexcept { return walk_; }
  const Limits& limits() const noexcept { return limits_; }
  /// The class a step belongs to, or null in v1.
  const LayoutClass* layout_class(const WalkStep& step) const noexcept {
    return begin_.layout_table.empty() ? nullptr : &begin_.layout_table[step.class_index];
  }

 private:
  friend Result<ValidatedBegin> validate(Begin begin, const Limits& limits);
  ValidatedBegin(Begin begin, Limits limits);
  Begin begin_;
  Bytes canonical_;
  Digest32 digest_;
  std::vector<WalkStep> walk_;
  Limits limits_;
};

/// Applies the rules of the begin; the first violation wins. Nothing is allocated by an unchecked number.
/// @error kValidation
Result<ValidatedBegin> validate(Begin begin, const Limits& limits);

/// What a consumer has armed itself for. Schedule, key id, times and transfer id are not armed.
struct ArmedExpectations {
  std::uint32_t cached_token_count = 0;
  Endpoints endpoints;
  Geometry geometry;
  handoff::ExactIdentity identity;
  std::vector<LayoutClass> layout_table;
  std::string portable_abi;
  Precision precision;
  std::string token_ids_sha256;
};

/// The armed fields of a begin, for a consumer that has one at hand.
ArmedExpectations armed_from(const Begin& begin);

/// Compares a begin with the armed expectations. @error kValidation
Status check_armed(const Begin& begin, const ArmedExpectations& armed);

/// Frames and payload bytes that a begin should declare. @error kValidation the sums overflow
Result<WalkTotals> totals_of(const Begin& begin);

/// C(begin): the canonical bytes that the artifact binds. @pre texts are UTF-8
Bytes encode_begin(const Begin& begin);

/// @param max_bytes  at most this long
/// @error kValidation  length, or not the canonical form
/// @error kCanonical   not JSON, a field of another type, a missing, repeated or unknown key
Result<Begin> decode_begin(ByteSpan json, std::size_t max_bytes = FrameLimits{}.max_json_bytes);

/// The digest that names a token sequence: docs/protocol/handoff.md §Digests.
std::string token_ids_sha256(std::span<const std::uint32_t> tokens);

// ---------------------------------------------------------------------------------------------------------

namespace detail {

inline constexpr std::array<std::string_view, 5> kEndpointKeys{
    "consumer_engine_abi", "consumer_node", "producer_engine_abi", "producer_node", "trust_domain"};
inline constexpr std::array<std::string_view, 4> kGeometryKeys{"head_dim", "max_context_tokens",
                                                               "num_kv_heads", "num_layers"};
inline constexpr std::array<std::string_view, 3> kPrecisionKeys{"compute", "kv", "weights"};
inline constexpr std::array<std::string_view, 10> kClassKeys{
    "class", "dtype", "except", "from", "head_dim", "kv_heads", "roles", "step", "until", "window_tokens"};
inline constexpr std::array<std::string_view, 18> kBeginKeys{"cached_token_count",
                                                             "created_unix_ms",
                                                             "deadline_unix_ms",
                                                             "endpoints",
                                                             "expected_layer_frames",
                                                             "expected_payload_bytes",
                                                             "geometry",
                                                             "hmac_key_id",
                                                             "identity",
                                                             "layout_table",
                                                             "portable_abi",
                                                             "precision",
                                                             "protocol",
                                                             "schedule",
                                                             "schema_version",
                                                             "strategy",
                                                             "token_ids_sha256",
                                                             "transfer_id"};
inline constexpr std::array<std::string_view, 2> kRoleNames{"key", "value"};
inline constexpr std::array<std::string_view, 1> kStrategyNames{kStrategy};

/// Reads a member that stands for a struct.
template <class F>
auto read_struct(const JsonFields& fields, std::string_view key, std::span<const std::string_view> keys,
                 const F& read) -> decltype(read(std::declval<const JsonFields&>())) {
  KVPACK_TRY_ASSIGN(const JsonValue* value, fields.required(key));
  const JsonPath path = fields.path(key);
  KVPACK_TRY_ASSIGN(const JsonFields inner, JsonFields::open(*value, keys, UnknownKeys::kRefuse, path));
  return read(inner);
}

inline Result<Endpoints> read_endpoints(const JsonFields& fields) {
  Endpoints out;
  KVPACK_TRY_ASSIGN(out.consumer_engine_abi, fields.text("consumer_engine_abi"));
  KVPACK_TRY_ASSIGN(out.consumer_node, fields.text("consumer_node"));
  KVPACK_TRY_ASSIGN(out.producer_engine_abi, fields.text("producer_engine_abi"));
  KVPACK_TRY_ASSIGN(out.producer_node, fields.text("producer_node"));
  KVPACK_TRY_ASSIGN(out.trust_domain, fields.text("trust_domain"));
  return out;
}

inline Result<Geometry> read_geometry(const JsonFields& fields) {
  Geometry out;
  KVPACK_TRY_ASSIGN(out.head_dim, fields.number<std::uint32_t>("head_dim"));
  KVPACK_TRY_ASSIGN(out.max_context_tokens, fields.number<std::uint32_t>("max_context_tokens"));
  KVPACK_TRY_ASSIGN(out.num_kv_heads, fields.number<std::uint32_t>("num_kv_heads"));
  KVPACK_TRY_ASSIGN(out.num_layers, fields.number<std::uint32_t>("num_layers"));
  return out;
}

inline Result<Precision> read_precision(const JsonFields& fields) {
  Precision out;
  KVPACK_TRY_ASSIGN(out.compute, fields.text("compute"));
  KVPACK_TRY_ASSIGN(out.kv, fields.text("kv"));
  KVPACK_TRY_ASSIGN(out.weights, fields.text("weights"));
  return out;
}

inline Result<std::vector<Role>> read_roles(const JsonFields& fields) {
  KVPACK_TRY_ASSIGN(const JsonArray* items, fields.array("roles"));
  const JsonPath path = fields.path("roles");
  std::vector<Role> out;
  for (std::size_t i = 0; i < items->size(); ++i) {
    const std::string* name = (*items)[i].as_string();
    const auto found = name == nullptr ? kRoleNames.end() : std::ranges::find(kRoleNames, *name);
    if (found == kRoleNames.end())
      return json_field_error(JsonPath(path, i), "is not one of the known names");
    out.push_back(found == kRoleNames.begin() ? Role::kKey : Role::kValue);
  }
  return out;
}

inline Result<std::vector<std::uint32_t>> read_u32_list(const JsonFields& fields, std::string_view key) {
  KVPACK_TRY_ASSIGN(const JsonArray* items, fields.array(key));
  const JsonPath path = fields.path(key);
  std::vector<std::uint32_t> out;
  out.reserve(items->size());
  for (std::size_t i = 0; i < items->size(); ++i) {
    KVPACK_TRY_ASSIGN(const auto number, json_unsigned<std::uint32_t>((*items)[i], JsonPath(path, i)));
    out.push_back(number);
  }
  return out;
}

inline Result<LayoutClass> read_class(const JsonValue& value, const JsonPath& path) {
  KVPACK_TRY_ASSIGN(const JsonFields fields, JsonFields::open(value, kClassKeys, UnknownKeys::kRefuse, path));
  LayoutClass out;
  KVPACK_TRY_ASSIGN(out.label, fields.text("class"));
  KVPACK_TRY_ASSIGN(out.dtype, fields.text("dtype"));
  KVPACK_TRY_ASSIGN(out.except, read_u32_list(fields, "except"));
  KVPACK_TRY_ASSIGN(out.from, fields.number<std::uint32_t>("from"));
  KVPACK_TRY_ASSIGN(out.head_dim, fields.number<std::uint32_t>("head_dim"));
  KVPACK_TRY_ASSIGN(out.kv_heads, fields.number<std::uint32_t>("kv_heads"));
  KVPACK_TRY_ASSIGN(out.roles, read_roles(fields));
  KVPACK_TRY_ASSIGN(out.step, fields.number<std::uint32_t>("step"));
  KVPACK_TRY_ASSIGN(out.until, fields.number<std::uint32_t>("until"));
  KVPACK_TRY_ASSIGN(out.window_tokens, fields.number<std::uint32_t>("window_tokens"));
  return out;
}

inline Result<std::vector<LayoutClass>> read_table(const JsonFields& fields) {
  std::vector<LayoutClass> table;
  const JsonValue* value = fields.optional("layout_table");
  if (value == nullptr) return table;
  const JsonPath path = fields.path("layout_table");
  KVPACK_TRY_ASSIGN(const JsonArray* items, json_array(*value, path));
  for (std::size_t i = 0; i < items->size(); ++i) {
    KVPACK_TRY_ASSIGN(LayoutClass entry, read_class((*items)[i], JsonPath(path, i)));
    table.push_back(std::move(entry));
  }
  return table;
}

inline Result<Begin> read_begin(const JsonDocument& document) {
  const JsonPath root;
  KVPACK_TRY_ASSIGN(const JsonFields fields,
                    JsonFields::open(document.value, kBeginKeys, UnknownKeys::kRefuse, root));
  Begin out;
  KVPACK_TRY_ASSIGN(out.cached_token_count, fields.number<std::uint32_t>("cached_token_count"));
  KVPACK_TRY_ASSIGN(out.created_unix_ms, fields.number<std::uint64_t>("created_unix_ms"));
  KVPACK_TRY_ASSIGN(out.deadline_unix_ms, fields.number<std::uint64_t>("deadline_unix_ms"));
  KVPACK_TRY_ASSIGN(out.endpoints, read_struct(fields, "endpoints", kEndpointKeys, read_endpoints));
  KVPACK_TRY_ASSIGN(out.expected_layer_frames, fields.number<std::uint32_t>("expected_layer_frames"));
  KVPACK_TRY_ASSIGN(out.expected_payload_bytes, fields.number<std::uint64_t>("expected_payload_bytes"));
  KVPACK_TRY_ASSIGN(out.geometry, read_struct(fields, "geometry", kGeometryKeys, read_geometry));
  KVPACK_TRY_ASSIGN(out.hmac_key_id, fields.optional_text("hmac_key_id"));
  KVPACK_TRY_ASSIGN(const JsonValue* identity, fields.required("identity"));
  const JsonPath identity_path = fields.path("identity");
  KVPACK_TRY_ASSIGN(out.identity, handoff::parse_exact_identity(*identity, identity_path));
  KVPACK_TRY_ASSIGN(out.layout_table, read_table(fields));
  KVPACK_TRY_ASSIGN(out.portable_abi, fields.text("portable_abi"));
  KVPACK_TRY_ASSIGN(out.precision, read_struct(fields, "precision", kPrecisionKeys, read_precision));
  KVPACK_TRY_ASSIGN(out.protocol, fields.text("protocol"));
  KVPACK_TRY_ASSIGN(out.schedule, fields.optional_text("schedule"));
  KVPACK_TRY_ASSIGN(out.schema_version, fields.number<std::uint32_t>("schema_version"));
  KVPACK_TRY(fields.choice("strategy", kStrategyNames));
  KVPACK_TRY_ASSIGN(out.token_ids_sha256, fields.text("token_ids_sha256"));
  KVPACK_TRY_ASSIGN(out.transfer_id, fields.text("transfer_id"));
  return out;
}

inline void write_class(const LayoutClass& entry, JsonWriter& json) {
  json.open_object().member("class", entry.label).member("dtype", entry.dtype);
  json.key("except").open_array();
  for (const std::uint32_t layer : entry.except) json.number(layer);
  json.close_array().member("from", entry.from).member("head_dim", entry.head_dim);
  json.member("kv_heads", entry.kv_heads).key("roles").open_array();
  for (const Role role : entry.roles) json.string(role_name(role));
  json.close_array().member("step", entry.step).member("until", entry.until);
  json.member("window_tokens", entry.window_tokens).close_object();
}

/// Every message that a begin shares with the rules of its table stands there.
inline Error bad_geometry() {
  return fail(ErrorCode::kValidation, "geometry or cached-token count is outside configured bounds");
}

inline Status check_geometry(const Begin& begin, const Limits& limits) {
  const Geometry& geometry = begin.geometry;
  const std::uint32_t cached = begin.cached_token_count;
  if (cached == 0 || cached > limits.max_cached_tokens ||
      geometry.max_context_tokens > limits.max_context_tokens || cached >= geometry.max_context_tokens ||
      geometry.num_layers == 0 || geometry.num_layers > limits.max_layers)
    return bad_geometry();
  return success();
}

inline FlatShape flat_shape(const Begin& begin) {
  return {begin.geometry.num_layers, begin.geometry.num_kv_heads, begin.geometry.head_dim};
}

inline Status check_layout(const Begin& begin, const Limits& limits) {
  if (!begin.layout_table.empty()) {
    KVPACK_TRY(check_layout_table(begin.layout_table, flat_shape(begin), begin.cached_token_count,
                                  begin.is_prerope(), limits.max_frame_bytes));
    if (begin.schedule && *begin.schedule != kLayerOrder && *begin.schedule != kDecodePriority)
      return fail(ErrorCode::kValidation, "layout table declares an unknown wire schedule");
    return success();
  }
  if (begin.schedule) return fail(ErrorCode::kValidation, "wire schedule requires a v2 layout table");
  if (begin.geometry.num_kv_heads == 0 || begin.geometry.head_dim == 0) return bad_geometry();
  return success();
}

inline Status check_totals(const Begin& begin, const Limits& limits) {
  KVPACK_TRY_ASSIGN(const WalkTotals totals, totals_of(begin));
  if (begin.expected_layer_frames != totals.frames || begin.expected_payload_bytes != totals.payload_bytes ||
      totals.payload_bytes > limits.max_total_bytes ||
      totals.payload_bytes / totals.frames > limits.max_frame_bytes)
    return fail(ErrorCode::kValidation, "declared frame or payload bounds do not match geometry");
  return success();
}

inline Status check_precision(const Precision& precision) {
  static constexpr std::array<std::string_view, 5> kWeights{"q4_k_m", "q4_k_xl", "nvfp4", "mxfp4", "bf16"};
  if (precision.compute != kFloat16 || precision.kv != kFloat16 ||
      std::ranges::find(kWeights, precision.weights) == kWeights.end())
    return fail(ErrorCode::kValidation,
                "v1 requires q4_k_m, q4_k_xl, nvfp4, mxfp4, or bf16 weights with float16 compute and KV");
  return success();
}

inline Status check_names(const Begin& begin) {
  const Endpoints& ends = begin.endpoints;
  const handoff::ExactIdentity& identity = begin.identity;
  const bool labels =
      std::ranges::all_of(std::array{&ends.consumer_engine_abi, &ends.consumer_node,
                                     &ends.producer_engine_abi, &ends.producer_node, &ends.trust_domain,
                                     &identity.model_revision, &identity.tokenizer_revision},
                          [](const std::string* text) { return is_label(*text, 256); });
  const bool digests =
      std::ranges::all_of(std::array{&begin.transfer_id, &begin.token_ids_sha256, &identity.adapter_sha256,
                                     &identity.chat_template_sha256, &identity.context_policy_sha256,
                                     &identity.model_sha256, &identity.tokenizer_sha256},
                          [](const std::string* text) { return is_digest_text(*text); });
  if (!labels || !digests || (begin.hmac_key_id && !is_label(*begin.hmac_key_id, 64)))
    return fail(ErrorCode::kValidation, "identity contains an invalid label or SHA-256");
  return success();
}

inline Status check_times(const Begin& begin, const Limits& limits) {
  const auto last_deadline = checked_add(begin.created_unix_ms, limits.max_session_ms);
  if (!last_deadline) return fail(ErrorCode::kValidation, "session deadline overflow");
  // Forward only: how long ago the begin was created is bounded by its deadline.
  const std::uint64_t latest_created = checked_add(limits.now_unix_ms, limits.max_clock_skew_ms)
                                           .value_or(std::numeric_limits<std::uint64_t>::max());
  if (begin.created_unix_ms == 0 || begin.created_unix_ms > latest_created ||
      begin.deadline_unix_ms <= begin.created_unix_ms || begin.deadline_unix_ms > *last_deadline ||
      limits.now_unix_ms > begin.deadline_unix_ms)
    return fail(ErrorCode::kValidation, "handoff creation/deadline is invalid or expired");
  return success();
}

inline bool abi_is_allowed(const Begin& begin) {
  if (begin.layout_table.empty()) return begin.portable_abi == kAbiFlat;
  return begin.portable_abi == kAbiTable || begin.portable_abi == kAbiPreRope;
}

}  // namespace detail

inline std::string token_ids_sha256(std::span<const std::uint32_t> tokens) {
  Sha256 hash;
  hash.update(with_nul("kvpack-live-token-ids-v1"));
  for (const std::uint32_t token : tokens) hash.update(le_bytes(token));
  return to_hex(hash.finish());
}

inline Bytes encode_begin(const Begin& begin) {
  Bytes out;
  JsonWriter json(out);
  json.open_object();
  json.member("cached_token_count", begin.cached_token_count);
  json.member("created_unix_ms", begin.created_unix_ms).member("deadline_unix_ms", begin.deadline_unix_ms);
  json.key("endpoints").open_object();
  json.member("consumer_engine_abi", begin.endpoints.consumer_engine_abi);
  json.member("consumer_node", begin.endpoints.consumer_node);
  json.member("producer_engine_abi", begin.endpoints.producer_engine_abi);
  json.member("producer_node", begin.endpoints.producer_node);
  json.member("trust_domain", begin.endpoints.trust_domain).close_object();
  json.member("expected_layer_frames", begin.expected_layer_frames);
  json.member("expected_payload_bytes", begin.expected_payload_bytes);
  json.key("geometry").open_object();
  json.member("head_dim", begin.geometry.head_dim);
  json.member("max_context_tokens", begin.geometry.max_context_tokens);
  json.member("num_kv_heads", begin.geometry.num_kv_heads);
  json.member("num_layers", begin.geometry.num_layers).close_object();
  if (begin.hmac_key_id) json.member("hmac_key_id", *begin.hmac_key_id);
  json.key("identity").open_object();
  json.member("adapter_sha256", begin.identity.adapter_sha256);
  json.member("chat_template_sha256", begin.identity.chat_template_sha256);
  json.member("context_policy_sha256", begin.identity.context_policy_sha256);
  json.member("model_revision", begin.identity.model_revision);
  json.member("model_sha256", begin.identity.model_sha256);
  json.member("tokenizer_revision", begin.identity.tokenizer_revision);
  json.member("tokenizer_sha256", begin.identity.tokenizer_sha256).close_object();
  if (!begin.layout_table.empty()) {
    json.key("layout_table").open_array();
    for (const LayoutClass& entry : begin.layout_table) detail::write_class(entry, json);
    json.close_array();
  }
  json.member("portable_abi", begin.portable_abi);
  json.key("precision").open_object();
  json.member("compute", begin.precision.compute).member("kv", begin.precision.kv);
  json.member("weights", begin.precision.weights).close_object();
  json.member("protocol", begin.protocol);
  if (begin.schedule) json.member("schedule", *begin.schedule);
  json.member("schema_version", begin.schema_version).member("strategy", kStrategy);
  json.member("token_ids_sha256", begin.token_ids_sha256).member("transfer_id", begin.transfer_id);
  json.close_object();
  return out;
}

inline Result<Begin> decode_begin(ByteSpan json, std::size_t max_bytes) {
  return decode_canonical_struct(json, max_bytes, detail::read_begin, encode_begin);
}

inline Result<WalkTotals> totals_of(const Begin& begin) {
  if (begin.layout_table.empty()) return flat_totals(detail::flat_shape(begin), begin.cached_token_count);
  return table_totals(begin.layout_table, begin.cached_token_count, begin.is_prerope());
}

inline ValidatedBegin::ValidatedBegin(Begin begin, Limits limits)
    : begin_(std::move(begin)),
      canonical_(encode_begin(begin_)),
      digest_(sha256(canonical_)),
      limits_(limits) {
  walk_ = begin_.layout_table.empty() ? flat_walk(detail::flat_shape(begin_), begin_.cached_token_count)
                                      : table_walk(begin_.layout_table, begin_.cached_token_count,
                                                   begin_.is_prerope(), begin_.schedule == kDecodePriority);
}

inline Result<ValidatedBegin> validate(Begin begin, const Limits& limits) {
  if (begin.schema_version != kSchemaVersion || begin.protocol != kProtocol || !detail::abi_is_allowed(begin))
    return fail(ErrorCode::kValidation, "unsupported live handoff schema, protocol, ABI, or strategy");
  KVPACK_TRY(detail::check_geometry(begin, limits));
  KVPACK_TRY(detail::check_layout(begin, limits));
  KVPACK_TRY(detail::check_totals(begin, limits));
  KVPACK_TRY(detail::check_precision(begin.precision));
  KVPACK_TRY(detail::check_names(begin));
  KVPACK_TRY(detail::check_times(begin, limits));
  return ValidatedBegin(std::move(begin), limits);
}

inline ArmedExpectations armed_from(const Begin& begin) {
  return {begin.cached_token_count, begin.endpoints,    begin.geometry,  begin.identity,
          begin.layout_table,       begin.portable_abi, begin.precision, begin.token_ids_sha256};
}

inline Status check_armed(const Begin& begin, const ArmedExpectations& armed) {
  if (armed.cached_token_count == std::numeric_limits<std::uint32_t>::max())
    return fail(ErrorCode::kValidation, "armed prompt token count overflows at its boundary token");
  const bool equal = begin.cached_token_count == armed.cached_token_count &&
                     begin.endpoints == armed.endpoints && begin.geometry == armed.geometry &&
                     begin.identity == armed.identity && begin.layout_table == armed.layout_table &&
                     begin.portable_abi == armed.portable_abi && begin.precision == armed.precision &&
                     begin.token_ids_sha256 == armed.token_ids_sha256;
  const bool known_abi =
      begin.portable_abi == kAbiFlat || begin.portable_abi == kAbiTable || begin.portable_abi == kAbiPreRope;
  if (!equal || begin.protocol != kProtocol || begin.schema_version != kSchemaVersion || !known_abi)
    return fail(ErrorCode::kValidation, "BEGIN does not match the complete armed fixture and identity tuple");
  return success();
}

}  // namespace kvpack::kvhf
