/// KVHF SEAL: what binds begin, headers and payload into one artifact, with or without a tenant key.
/// Hash inputs and the rules of the seal: docs/protocol/kvhf.md §Hashes and SEAL, §Pre-RoPE family and
/// canary.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvpack/handoff/kvhf_layer.h"

namespace kvpack::kvhf {

/// Digests of sample rows after rotation, which the consumer's engine must reproduce before it commits. This
/// library checks presence and form; the engine compares (check_canary).
struct Canary {
  std::string post_rope_k_sha256;
  std::string post_rope_v_sha256;
  std::uint32_t sample_token_count = 0;
  std::uint32_t sample_token_start = 0;
  friend bool operator==(const Canary&, const Canary&) = default;
};

/// What the artifact digest covers beside begin and headers.
struct SealCore {
  std::optional<Canary> canary;  ///< Mandatory in the pre-RoPE family, forbidden outside.
  std::uint64_t completed_unix_ms = 0;
  std::string descriptor_chain_sha256;
  std::uint32_t frame_count = 0;
  std::uint64_t payload_bytes = 0;
  std::string payload_sha256;
  std::vector<std::uint32_t> prompt_token_ids;  ///< All prompt tokens: one more than were cached.
  std::string protocol = std::string(kProtocol);
  std::uint32_t schema_version = kSchemaVersion;
  std::string token_ids_sha256;
  std::string transfer_id;
  // `strategy` has one value, as in Begin.
  friend bool operator==(const SealCore&, const SealCore&) = default;
};

/// On the wire one flat object.
struct Seal {
  std::optional<std::string> artifact_hmac_sha256;  ///< Present exactly when the begin names a key.
  std::string artifact_sha256;
  SealCore core;
  friend bool operator==(const Seal&, const Seal&) = default;
};

/// C(core): the core alone.
Bytes encode_seal_core(const SealCore& core);
/// C(seal): the core's members and the two artifact members in one object.
Bytes encode_seal(const Seal& seal);

/// @error kValidation  length, or not the canonical form
/// @error kCanonical   not JSON, a field of another type, a missing, repeated or unknown key
Result<Seal> decode_seal(ByteSpan json, std::size_t max_bytes = FrameLimits{}.max_json_bytes);

/// The canonical bytes that the artifact covers, gathered header by header: `C(begin) LF`, then `C(header)
/// LF` for each plane. Its size is bounded by the begin's JSON and its walk.
class Transcript {
 public:
  explicit Transcript(const ValidatedBegin& begin);

  void add(const LayerHeader& header);
  std::uint32_t headers() const noexcept { return headers_; }

  std::string descriptor_chain_sha256() const;
  std::string artifact_sha256(const SealCore& core) const;
  /// The tag under the tenant key, as a digest string.
  std::string artifact_hmac_sha256(const SealCore& core, const handoff::MacKey& key) const;

 private:
  Bytes bytes_;
  std::size_t begin_bytes_;  ///< Where the first header stands.
  std::uint32_t headers_ = 0;
};

/// What was received before the seal.
struct StreamFacts {
  std::uint64_t payload_bytes = 0;
  std::string payload_sha256;
};

/// Whether the seal closes exactly the stream that `transcript` and `facts` record. Checks the form of a tag,
/// not its value. One text for every violation, so that a peer learns nothing from it.
/// @error kValidation
Status check_seal(const ValidatedBegin& begin, const Transcript& transcript, const StreamFacts& facts,
                  const Seal& seal);

/// The engine's half of the canary: its own digests against those of the seal. @error kValidation
Status check_canary(const Canary& canary, std::string_view post_rope_k_sha256,
                    std::string_view post_rope_v_sha256);

/// A seal that has closed its stream. Made by Verifier alone.
class SealWitness {
 public:
  const Seal& seal() const noexcept { return seal_; }
  const std::string& transfer_id() const noexcept { return seal_.core.transfer_id; }
  const std::string& artifact_sha256() const noexcept { return seal_.artifact_sha256; }
  const std::string& descriptor_chain_sha256() const noexcept { return seal_.core.descriptor_chain_sha256; }
  const std::string& payload_sha256() const noexcept { return seal_.core.payload_sha256; }
  /// SHA-256 of the begin's canonical bytes.
  const Digest32& begin_digest() const noexcept { return begin_digest_; }

  /// Checks the tag under the tenant key, in constant time. Possession of the key authenticates; the key id
  /// of the begin is only a name.
  /// @error kValidation  no tag, or another one
  Status authenticate(const handoff::MacKey& key) const;

 private:
  friend class Verifier;
  SealWitness(Seal seal, Transcript transcript, Digest32 begin_digest)
      : seal_(std::move(seal)), transcript_(std::move(transcript)), begin_digest_(begin_digest) {}
  Seal seal_;
  Transcript transcript_;
  Digest32 begin_digest_;
};

// ---------------------------------------------------------------------------------------------------------

namespace detail {

inline constexpr std::array<std::string_view, 4> kCanaryKeys{"post_rope_k_sha256", "post_rope_v_sha256",
                                                             "sample_token_count", "sample_token_start"};
inline constexpr std::array<std::string_view, 14> kSealKeys{
    "artifact_hmac_sha256",    "artifact_sha256", "canary",         "completed_unix_ms",
    "descriptor_chain_sha256", "frame_count",     "payload_bytes",  "payload_sha256",
    "prompt_token_ids",        "protocol",        "schema_version", "strategy",
    "token_ids_sha256",        "transfer_id"};

inline Result<Canary> read_canary(const JsonFields& fields) {
  Canary out;
  KVPACK_TRY_ASSIGN(out.post_rope_k_sha256, fields.text("post_rope_k_sha256"));
  KVPACK_TRY_ASSIGN(out.post_rope_v_sha256, fields.text("post_rope_v_sha256"));
  KVPACK_TRY_ASSIGN(out.sample_token_count, fields.number<std::uint32_t>("sample_token_count"));
  KVPACK_TRY_ASSIGN(out.sample_token_start, fields.number<std::uint32_t>("sample_token_start"));
  return out;
}

inline Result<Seal> read_seal(const JsonDocument& document) {
  const JsonPath root;
  KVPACK_TRY_ASSIGN(const JsonFields fields,
                    JsonFields::open(document.value, kSealKeys, UnknownKeys::kRefuse, root));
  Seal out;
  SealCore& core = out.core;
  KVPACK_TRY_ASSIGN(out.artifact_hmac_sha256, fields.optional_text("artifact_hmac_sha256"));
  KVPACK_TRY_ASSIGN(out.artifact_sha256, fields.text("artifact_sha256"));
  if (fields.optional("canary") != nullptr) {
    KVPACK_TRY_ASSIGN(core.canary, read_struct(fields, "canary", kCanaryKeys, read_canary));
  }
  KVPACK_TRY_ASSIGN(core.completed_unix_ms, fields.number<std::uint64_t>("completed_unix_ms"));
  KVPACK_TRY_ASSIGN(core.descriptor_chain_sha256, fields.text("descriptor_chain_sha256"));
  KVPACK_TRY_ASSIGN(core.frame_count, fields.number<std::uint32_t>("frame_count"));
  KVPACK_TRY_ASSIGN(core.payload_bytes, fields.number<std::uint64_t>("payload_bytes"));
  KVPACK_TRY_ASSIGN(core.payload_sha256, fields.text("payload_sha256"));
  KVPACK_TRY_ASSIGN(core.prompt_token_ids, read_u32_list(fields, "prompt_token_ids"));
  KVPACK_TRY_ASSIGN(core.protocol, fields.text("protocol"));
  KVPACK_TRY_ASSIGN(core.schema_version, fields.number<std::uint32_t>("schema_version"));
  KVPACK_TRY(fields.choice("strategy", kStrategyNames));
  KVPACK_TRY_ASSIGN(core.token_ids_sha256, fields.text("token_ids_sha256"));
  KVPACK_TRY_ASSIGN(core.transfer_id, fields.text("transfer_id"));
  return out;
}

inline void write_core_members(const SealCore& core, JsonWriter& json) {
  if (core.canary) {
    json.key("canary").open_object();
    json.member("post_rope_k_sha256", core.canary->post_rope_k_sha256);
    json.member("post_rope_v_sha256", core.canary->post_rope_v_sha256);
    json.member("sample_token_count", core.canary->sample_token_count);
    json.member("sample_token_start", core.canary->sample_token_start).close_object();
  }
  json.member("completed_unix_ms", core.completed_unix_ms);
  json.member("descriptor_chain_sha256", core.descriptor_chain_sha256);
  json.member("frame_count", core.frame_count).member("payload_bytes", core.payload_bytes);
  json.member("payload_sha256", core.payload_sha256).key("prompt_token_ids").open_array();
  for (const std::uint32_t token : core.prompt_token_ids) json.number(token);
  json.close_array().member("protocol", core.protocol).member("schema_version", core.schema_version);
  json.member("strategy", kStrategy).member("token_ids_sha256", core.token_ids_sha256);
  json.member("transfer_id", core.transfer_id);
}

inline bool canary_is_well_formed(const Canary& canary, std::uint32_t cached) {
  // The sum of two u32 fits in u64, so a start near 2^32 cannot wrap.
  return canary.sample_token_count > 0 &&
         std::uint64_t{canary.sample_token_start} + canary.sample_token_count <= cached &&
         is_digest_text(canary.post_rope_k_sha256) && is_digest_text(canary.post_rope_v_sha256);
}

inline bool canary_is_allowed(const Begin& begin, const SealCore& core) {
  if (!begin.is_prerope()) return !core.canary;
  return core.canary && canary_is_well_formed(*core.canary, begin.cached_token_count);
}

inline bool tag_is_well_formed(const Begin& begin, const Seal& seal) {
  if (begin.hmac_key_id.has_value() != seal.artifact_hmac_sha256.has_value()) return false;
  return !seal.artifact_hmac_sha256 || is_digest_text(*seal.artifact_hmac_sha256);
}

inline bool core_matches(const Begin& begin, const Transcript& transcript, const StreamFacts& facts,
                         const SealCore& core) {
  return core.schema_version == kSchemaVersion && core.protocol == kProtocol &&
         core.transfer_id == begin.transfer_id && core.frame_count == begin.expected_layer_frames &&
         core.frame_count == transcript.headers() && core.payload_bytes == begin.expected_payload_bytes &&
         core.payload_bytes == facts.payload_bytes && core.payload_sha256 == facts.payload_sha256 &&
         core.descriptor_chain_sha256 == transcript.descriptor_chain_sha256() &&
         core.token_ids_sha256 == begin.token_ids_sha256 &&
         core.prompt_token_ids.size() == std::size_t{begin.cached_token_count} + 1 &&
         core.token_ids_sha256 == token_ids_sha256(core.prompt_token_ids) &&
         core.completed_unix_ms >= begin.created_unix_ms && core.completed_unix_ms <= begin.deadline_unix_ms;
}

}  // namespace detail

inline Bytes encode_seal_core(const SealCore& core) {
  Bytes out;
  JsonWriter json(out);
  json.open_object();
  detail::write_core_members(core, json);
  json.close_object();
  return out;
}

inline Bytes encode_seal(const Seal& seal) {
  Bytes out;
  JsonWriter json(out);
  json.open_object();
  // Both keys sort in front of every key of the core.
  if (seal.artifact_hmac_sha256) json.member("artifact_hmac_sha256", *seal.artifact_hmac_sha256);
  json.member("artifact_sha256", seal.artifact_sha256);
  detail::write_core_members(seal.core, json);
  json.close_object();
  return out;
}

inline Result<Seal> decode_seal(ByteSpan json, std::size_t max_bytes) {
  return decode_canonical_struct(json, max_bytes, detail::read_seal, encode_seal);
}

inline Transcript::Transcript(const ValidatedBegin& begin)
    : bytes_(begin.canonical()), begin_bytes_(begin.canonical().size() + 1) {
  bytes_.push_back('\n');
}

inline void Transcript::add(const LayerHeader& header) {
  const Bytes canonical = encode_layer_header(header);
  bytes_.insert(bytes_.end(), canonical.begin(), canonical.end());
  bytes_.push_back('\n');
  ++headers_;
}

inline std::string Transcript::descriptor_chain_sha256() const {
  return to_hex(
      sha256({with_nul("kvpack-live-descriptor-chain-v1"), ByteSpan(bytes_).subspan(begin_bytes_)}));
}

inline std::string Transcript::artifact_sha256(const SealCore& core) const {
  return to_hex(sha256({with_nul("kvpack-live-artifact-v1"), bytes_, encode_seal_core(core)}));
}

inline std::string Transcript::artifact_hmac_sha256(const SealCore& core, const handoff::MacKey& key) const {
  return to_hex(
      hmac_sha256(key.hmac(), {with_nul("kvpack-live-artifact-mac-v1"), bytes_, encode_seal_core(core)}));
}

inline Status check_seal(const ValidatedBegin& begin, const Transcript& transcript, const StreamFacts& facts,
                         const Seal& seal) {
  if (!detail::core_matches(begin.begin(), transcript, facts, seal.core) ||
      seal.artifact_sha256 != transcript.artifact_sha256(seal.core) ||
      !detail::canary_is_allowed(begin.begin(), seal.core) ||
      !detail::tag_is_well_formed(begin.begin(), seal))
    return fail(ErrorCode::kValidation, "terminal seal does not authenticate the complete ordered handoff");
  return success();
}

inline Status check_canary(const Canary& canary, std::string_view post_rope_k_sha256,
                           std::string_view post_rope_v_sha256) {
  if (canary.post_rope_k_sha256 != post_rope_k_sha256 || canary.post_rope_v_sha256 != post_rope_v_sha256)
    return fail(ErrorCode::kValidation, "pre-RoPE canary does not match the consumer's pinned-kernel rows");
  return success();
}

inline Status SealWitness::authenticate(const handoff::MacKey& key) const {
  if (!seal_.artifact_hmac_sha256)
    return fail(ErrorCode::kValidation, "sealed artifact carries no HMAC tag to authenticate");
  // The form of the tag was checked with the seal.
  const std::string expected = transcript_.artifact_hmac_sha256(seal_.core, key);
  if (!constant_time_equal(byte_view(expected), byte_view(*seal_.artifact_hmac_sha256)))
    return fail(ErrorCode::kValidation, "artifact HMAC tag rejected");
  return success();
}

}  // namespace kvpack::kvhf
