/// KVPKV2 frames: a 20-byte preamble, a JSON header tagged by its kind, and for segments a payload.
/// docs/protocol/handoff.md §Frames. Reading a stream piece by piece: handoff/frame_decoder.h.
#pragma once

#include <variant>

#include "kvpack/handoff/seal.h"

namespace kvpack::handoff {

inline constexpr std::size_t kPreambleBytes = 20;
inline constexpr Magic kFrameMagic = magic("KVPKV2");

/// Largest lengths that a frame may announce, both inclusive. Checked before anything is allocated.
struct FrameLimits {
  std::uint32_t max_header_bytes = 8'388'608;
  std::uint64_t max_payload_bytes = 536'870'912;
};

/// The lengths in a preamble.
struct Preamble {
  std::uint32_t header_bytes = 0;
  std::uint64_t payload_bytes = 0;
};

/// @error kInvalidFrame `bad frame magic`, `payload length exceeds platform`, `frame lengths exceed bounds`
Result<Preamble> decode_preamble(std::span<const std::uint8_t, kPreambleBytes> bytes,
                                 const FrameLimits& limits);

struct BeginFrame {
  BeginManifest manifest;
  /// Tokens at the front of the prompt that the receiver already holds; 0 is a full transfer. On the wire it
  /// is a key of the manifest object, but no digest covers it: only the admission rules make it trustworthy.
  std::uint64_t prefix_cut = 0;
};
struct SegmentFrame {
  std::uint32_t sequence = 0;
  std::optional<SegmentDescriptor> descriptor;  ///< Present in deferred mode.
  std::uint64_t payload_bytes = 0;              ///< At least 1; the payload follows the header.
};
struct SealFrame {
  SealManifest manifest;
};
struct AckFrame {
  std::string transfer_id;
  std::uint64_t generation = 0;
};
struct AbortFrame {
  std::string reason;
};

/// When a refused producer may try again.
enum class Retry : std::uint8_t { kNever, kNewGeneration, kLater };

/// A receiver's refusal: its last frame, at most one, never once the ledger was asked to reserve. Sent only
/// to a producer that has asked for it, because every other one refuses the unknown kind.
struct RefusalFrame {
  std::string category;  ///< One of refusal_categories().
  Retry retry = Retry::kNever;
  std::string text;  ///< At most kMaxRefusalTextBytes; empty where it could name a path.
};
inline constexpr std::size_t kMaxRefusalTextBytes = 512;
std::span<const std::string_view> refusal_categories() noexcept;
/// The error code that a category of a refusal stands for; kIo for one that has no code of its own.
ErrorCode refusal_code(std::string_view category) noexcept;
std::string_view retry_name(Retry retry) noexcept;
/// What a willing producer is told of an error. @param from_sink  the engine's sink has refused
RefusalFrame make_refusal(const Error& error, bool from_sink);

using Frame = std::variant<BeginFrame, SegmentFrame, SealFrame, AckFrame, AbortFrame, RefusalFrame>;

/// How headers are read.
struct HeaderRules {
  bool strict = true;     ///< Refuse a repeated key anywhere in a header.
  bool refusals = false;  ///< Know the kind `refusal`: only where the peers have agreed on it.
};

/// Reads a header: JSON, repeated keys, field audit, typed parse, then what its kind says about the payload.
/// @error kJson kInvalidFrame
Result<Frame> decode_header(ByteSpan json, std::uint64_t payload_bytes, const HeaderRules& rules);

/// Whole frames without payload, headers canonical. A cut of 0 writes no `prefix_cut`.
/// @error kInvalidFrame `frame exceeds configured bounds`
/// @error kValidation `manifest text is not UTF-8`
Result<Bytes> encode_begin_frame(const BeginManifest& begin, std::uint64_t prefix_cut,
                                 const FrameLimits& limits = {});
Result<Bytes> encode_seal_frame(const SealManifest& seal, const FrameLimits& limits = {});
Result<Bytes> encode_abort_frame(std::string_view reason, const FrameLimits& limits = {});
/// @error also kValidation `refusal names no category of the protocol`
Result<Bytes> encode_refusal_frame(const RefusalFrame& refusal, const FrameLimits& limits = {});
/// As upstream's receiver writes it: kind, transfer_id, generation in this order.
Result<Bytes> encode_ack_frame(std::string_view transfer_id, std::uint64_t generation,
                               const FrameLimits& limits = {});
/// Preamble and header of a segment; the payload follows them on the wire, so that it need not be copied.
/// @param descriptor  in deferred mode, else nullptr
/// @error kInvalidFrame `payload frame cannot be empty`, `frame exceeds configured bounds`
Result<Bytes> encode_segment_head(std::uint32_t sequence, const SegmentDescriptor* descriptor,
                                  std::uint64_t payload_bytes, const FrameLimits& limits = {});

// ---------------------------------------------------------------------------------------------------------

namespace detail {

inline constexpr std::array<std::string_view, 2> kManifestFrameKeys{"kind", "manifest"};
inline constexpr std::array<std::string_view, 13> kWireBeginKeys{
    "components", "created_unix_ms", "deferred_segments", "expires_unix_ms", "generation",
    "hmac",       "identity",        "multimodal",        "prefix_cut",      "prompt_token_ids",
    "protocol",   "segments",        "transfer_id"};
inline constexpr std::array<std::string_view, 3> kSegmentFrameKeys{"descriptor", "kind", "sequence"};
inline constexpr std::array<std::string_view, 3> kAckFrameKeys{"generation", "kind", "transfer_id"};
inline constexpr std::array<std::string_view, 2> kAbortFrameKeys{"kind", "reason"};
inline constexpr std::array<std::string_view, 4> kRefusalFrameKeys{"category", "kind", "retry", "text"};
inline constexpr std::array<std::string_view, 3> kRetryNames{"never", "new-generation", "later"};
inline constexpr std::array<std::string_view, 20> kRefusalCategories{
    "Canonical",      "Cancelled",     "DeadlineExceeded", "Io",      "Validation", "Invalid",
    "Json",           "Tls",           "Config",           "LeafPin", "Alpn",       "Replay",
    "ZeroGeneration", "ProducerAbort", "MissingBegin",     "Busy",    "Control",    "Install",
    "Limit",          "Timeout"};

inline Error invalid_frame(std::string text) {
  return fail(ErrorCode::kInvalidFrame, std::move(text));
}

/// The keys of one object, in document order, against the closed list. Anything else than an object is left
/// to the typed parse.
inline Status audit_object(const JsonValue* value, std::string_view label,
                           std::span<const std::string_view> keys) {
  const JsonObject* members = value == nullptr ? nullptr : value->as_object();
  if (members == nullptr) return success();
  std::size_t guess = 0;
  for (const JsonMember& member : *members) {
    if (guess >= keys.size() || keys[guess] != member.key)
      guess = static_cast<std::size_t>(std::ranges::find(keys, member.key) - keys.begin());
    if (guess == keys.size())
      return invalid_frame(std::string(label) + " carries unknown field `" + member.key +
                           "`: the producer is newer than this receiver");
    ++guess;
  }
  return success();
}

inline Status audit_each(const JsonValue* list, std::string_view label,
                         std::span<const std::string_view> keys) {
  const JsonArray* items = list == nullptr ? nullptr : list->as_array();
  if (items == nullptr) return success();
  for (const JsonValue& item : *items) KVPACK_TRY(audit_object(&item, label, keys));
  return success();
}

inline const JsonValue* member_of(const JsonValue* value, std::string_view key) {
  return value == nullptr ? nullptr : value->find(key);
}

inline Status audit_begin(const JsonValue& header) {
  KVPACK_TRY(audit_object(&header, "begin frame", kManifestFrameKeys));
  const JsonValue* manifest = header.find("manifest");
  KVPACK_TRY(audit_object(manifest, "begin manifest", kWireBeginKeys));
  KVPACK_TRY(audit_object(member_of(manifest, "identity"), "exact identity", kIdentityKeys));
  KVPACK_TRY(audit_object(member_of(manifest, "multimodal"), "multimodal identity", kMultimodalKeys));
  KVPACK_TRY(audit_object(member_of(manifest, "hmac"), "HMAC identity", kHmacKeys));
  KVPACK_TRY(audit_each(member_of(manifest, "components"), "component", kComponentKeys));
  return audit_each(member_of(manifest, "segments"), "segment descriptor", kDescriptorKeys);
}

inline Status audit_segment(const JsonValue& header) {
  KVPACK_TRY(audit_object(&header, "segment frame", kSegmentFrameKeys));
  return audit_object(header.find("descriptor"), "deferred segment descriptor", kDescriptorKeys);
}

inline Status audit_seal(const JsonValue& header) {
  KVPACK_TRY(audit_object(&header, "seal frame", kManifestFrameKeys));
  const JsonValue* manifest = header.find("manifest");
  KVPACK_TRY(audit_object(manifest, "seal manifest", kSealKeys));
  return audit_object(member_of(manifest, "core"), "seal core", kSealCoreKeys);
}

inline Status no_payload(std::uint64_t payload_bytes) {
  if (payload_bytes != 0) return invalid_frame("control frame carries payload");
  return success();
}

/// The cut is looked up in the raw JSON, because the typed manifest has no place for it.
inline Result<std::uint64_t> lift_prefix_cut(const JsonValue& header) {
  const JsonValue* cut = member_of(header.find("manifest"), "prefix_cut");
  if (cut == nullptr) return std::uint64_t{0};
  if (cut->as_unsigned() == nullptr) return invalid_frame("begin prefix_cut is not an unsigned integer");
  return *cut->as_unsigned();
}

inline Result<Frame> decode_begin_header(const JsonValue& header, std::uint64_t payload_bytes) {
  KVPACK_TRY(audit_begin(header));
  const JsonPath root;
  KVPACK_TRY_ASSIGN(const JsonFields fields,
                    JsonFields::open(header, kManifestFrameKeys, UnknownKeys::kRefuse, root));
  KVPACK_TRY_ASSIGN(const JsonValue* manifest, fields.required("manifest"));
  BeginFrame frame;
  KVPACK_TRY_ASSIGN(frame.manifest, parse_begin(*manifest, fields.path("manifest")));
  KVPACK_TRY(no_payload(payload_bytes));
  KVPACK_TRY_ASSIGN(frame.prefix_cut, lift_prefix_cut(header));
  return Frame(std::move(frame));
}

inline Result<Frame> decode_segment_header(const JsonValue& header, std::uint64_t payload_bytes) {
  KVPACK_TRY(audit_segment(header));
  const JsonPath root;
  KVPACK_TRY_ASSIGN(const JsonFields fields,
                    JsonFields::open(header, kSegmentFrameKeys, UnknownKeys::kRefuse, root));
  SegmentFrame frame;
  KVPACK_TRY_ASSIGN(frame.sequence, fields.number<std::uint32_t>("sequence"));
  if (const JsonValue* descriptor = fields.optional("descriptor")) {
    KVPACK_TRY_ASSIGN(frame.descriptor, parse_descriptor(*descriptor, fields.path("descriptor")));
  }
  if (payload_bytes == 0) return invalid_frame("empty segment");
  // Known before the payload is read, so it is refused before a byte of it is asked for.
  if (frame.descriptor.has_value() && frame.descriptor->sequence != frame.sequence)
    return invalid_frame("segment sequence differs from its descriptor");
  frame.payload_bytes = payload_bytes;
  return Frame(std::move(frame));
}

inline Result<Frame> decode_seal_header(const JsonValue& header, std::uint64_t payload_bytes) {
  KVPACK_TRY(audit_seal(header));
  const JsonPath root;
  KVPACK_TRY_ASSIGN(const JsonFields fields,
                    JsonFields::open(header, kManifestFrameKeys, UnknownKeys::kRefuse, root));
  KVPACK_TRY_ASSIGN(const JsonValue* manifest, fields.required("manifest"));
  SealFrame frame;
  KVPACK_TRY_ASSIGN(frame.manifest, parse_seal(*manifest, fields.path("manifest")));
  KVPACK_TRY(no_payload(payload_bytes));
  return Frame(std::move(frame));
}

inline Result<Frame> decode_ack_header(const JsonValue& header, std::uint64_t payload_bytes) {
  KVPACK_TRY(audit_object(&header, "ACK frame", kAckFrameKeys));
  const JsonPath root;
  KVPACK_TRY_ASSIGN(const JsonFields fields,
                    JsonFields::open(header, kAckFrameKeys, UnknownKeys::kRefuse, root));
  AckFrame frame;
  KVPACK_TRY_ASSIGN(frame.generation, fields.number<std::uint64_t>("generation"));
  KVPACK_TRY_ASSIGN(frame.transfer_id, fields.text("transfer_id"));
  KVPACK_TRY(no_payload(payload_bytes));
  return Frame(std::move(frame));
}

inline Result<Frame> decode_abort_header(const JsonValue& header, std::uint64_t payload_bytes) {
  KVPACK_TRY(audit_object(&header, "abort frame", kAbortFrameKeys));
  const JsonPath root;
  KVPACK_TRY_ASSIGN(const JsonFields fields,
                    JsonFields::open(header, kAbortFrameKeys, UnknownKeys::kRefuse, root));
  AbortFrame frame;
  KVPACK_TRY_ASSIGN(frame.reason, fields.text("reason"));
  KVPACK_TRY(no_payload(payload_bytes));
  return Frame(std::move(frame));
}

inline Result<Frame> decode_refusal_header(const JsonValue& header, std::uint64_t payload_bytes) {
  KVPACK_TRY(audit_object(&header, "refusal frame", kRefusalFrameKeys));
  const JsonPath root;
  KVPACK_TRY_ASSIGN(const JsonFields fields,
                    JsonFields::open(header, kRefusalFrameKeys, UnknownKeys::kRefuse, root));
  RefusalFrame frame;
  KVPACK_TRY_ASSIGN(const std::size_t category, fields.choice("category", kRefusalCategories));
  frame.category = kRefusalCategories[category];
  KVPACK_TRY_ASSIGN(const std::size_t retry, fields.choice("retry", kRetryNames));
  frame.retry = static_cast<Retry>(retry);
  KVPACK_TRY_ASSIGN(frame.text, fields.text("text"));
  if (frame.text.size() > kMaxRefusalTextBytes) return json_field_error(fields.path("text"), "is too long");
  KVPACK_TRY(no_payload(payload_bytes));
  return Frame(std::move(frame));
}

/// A header in its canonical form, of a kind that comes often or is large, with nothing to refuse about it.
/// Nothing otherwise: then the parser says what it is.
inline std::optional<Frame> scan_header(ByteSpan json, std::uint64_t payload_bytes) {
  JsonScan in(json);
  if (in.fixed(R"({"kind":"begin","manifest":)")) {
    BeginFrame frame;
    if (!scan_json(in, frame.manifest, frame.prefix_cut) || !in.fixed("}") || !in.done()) return std::nullopt;
    if (payload_bytes != 0) return std::nullopt;
    return Frame(std::move(frame));
  }
  if (in.fixed(R"({"kind":"seal","manifest":)")) {
    SealFrame frame;
    if (!scan_json(in, frame.manifest) || !in.fixed("}") || !in.done()) return std::nullopt;
    if (payload_bytes != 0) return std::nullopt;
    return Frame(std::move(frame));
  }
  SegmentFrame frame;
  if (in.fixed(R"({"descriptor":)")) {
    if (!scan_json(in, frame.descriptor.emplace()) || !in.fixed(",")) return std::nullopt;
  } else if (!in.fixed("{")) {
    return std::nullopt;
  }
  if (!in.fixed(R"("kind":"segment","sequence":)") || !in.number(frame.sequence)) return std::nullopt;
  if (!in.fixed("}") || !in.done() || payload_bytes == 0) return std::nullopt;
  if (frame.descriptor.has_value() && frame.descriptor->sequence != frame.sequence) return std::nullopt;
  frame.payload_bytes = payload_bytes;
  return Frame(std::move(frame));
}

/// Preamble and header in one buffer, so that they leave in one write and one TLS record.
inline Result<Bytes> encode_head(ByteSpan header, std::uint64_t payload_bytes, const FrameLimits& limits) {
  if (header.size() > limits.max_header_bytes || payload_bytes > limits.max_payload_bytes)
    return invalid_frame("frame exceeds configured bounds");
  ByteWriter out;
  out.reserve(kPreambleBytes + header.size());
  out.bytes(kFrameMagic);
  out.le(static_cast<std::uint32_t>(header.size()));
  out.le(payload_bytes);
  out.bytes(header);
  return std::move(out).take();
}

/// Texts that come from a caller end up in JSON, which has no spelling for bytes that are no UTF-8.
inline Status check_texts(std::initializer_list<std::string_view> texts) {
  if (!std::ranges::all_of(texts, [](std::string_view text) { return is_utf8(text); }))
    return invalid_handoff("manifest text is not UTF-8");
  return success();
}

inline Status check_texts(const SegmentDescriptor& descriptor) {
  return check_texts({descriptor.shape.component_id, descriptor.shape.element_type, descriptor.sha256});
}

inline Status check_texts(const BeginManifest& begin) {
  const ExactIdentity& identity = begin.identity;
  KVPACK_TRY(
      check_texts({begin.protocol, begin.transfer_id, begin.hmac.key_id, identity.adapter_sha256,
                   identity.chat_template_sha256, identity.context_policy_sha256, identity.model_revision,
                   identity.model_sha256, identity.tokenizer_revision, identity.tokenizer_sha256}));
  if (begin.multimodal.has_value())
    KVPACK_TRY(check_texts({begin.multimodal->image_sequence_sha256, begin.multimodal->preprocessing_sha256,
                            begin.multimodal->projector_sha256}));
  for (const Component& component : begin.components)
    KVPACK_TRY(check_texts({component.id, component.identity_sha256}));
  for (const SegmentDescriptor& segment : begin.segments) KVPACK_TRY(check_texts(segment));
  return success();
}

}  // namespace detail

inline std::span<const std::string_view> refusal_categories() noexcept {
  return detail::kRefusalCategories;
}
inline std::string_view retry_name(Retry retry) noexcept {
  return detail::kRetryNames[static_cast<std::size_t>(retry)];
}

inline Result<Preamble> decode_preamble(std::span<const std::uint8_t, kPreambleBytes> bytes,
                                        const FrameLimits& limits) {
  if (!std::ranges::equal(bytes.first<kFrameMagic.size()>(), kFrameMagic))
    return detail::invalid_frame("bad frame magic");
  const Preamble out{.header_bytes = load_le<std::uint32_t>(bytes, 8),
                     .payload_bytes = load_le<std::uint64_t>(bytes, 12)};
  if constexpr (sizeof(std::size_t) < sizeof(std::uint64_t)) {
    if (out.payload_bytes > std::numeric_limits<std::size_t>::max())
      return detail::invalid_frame("payload length exceeds platform");
  }
  if (out.header_bytes == 0 || out.header_bytes > limits.max_header_bytes ||
      out.payload_bytes > limits.max_payload_bytes)
    return detail::invalid_frame("frame lengths exceed bounds");
  return out;
}

namespace detail {

/// A header in any spelling.
inline Result<Frame> parse_header(ByteSpan json, std::uint64_t payload_bytes, const HeaderRules& rules) {
  KVPACK_TRY_ASSIGN(const JsonDocument document, parse_json_document(json, json.size()));
  if (rules.strict && document.repeated_key.has_value())
    return invalid_frame("header repeats the key `" + *document.repeated_key + "`");
  const JsonValue& header = document.value;
  const JsonValue* kind = header.find("kind");
  const std::string* name = kind == nullptr ? nullptr : kind->as_string();
  if (name != nullptr) {
    if (*name == "begin") return decode_begin_header(header, payload_bytes);
    if (*name == "segment") return decode_segment_header(header, payload_bytes);
    if (*name == "seal") return decode_seal_header(header, payload_bytes);
    if (*name == "ack") return decode_ack_header(header, payload_bytes);
    if (*name == "abort") return decode_abort_header(header, payload_bytes);
    if (rules.refusals && *name == "refusal") return decode_refusal_header(header, payload_bytes);
  }
  return fail(ErrorCode::kJson, "header is not an object of a known kind");
}

}  // namespace detail

inline Result<Frame> decode_header(ByteSpan json, std::uint64_t payload_bytes, const HeaderRules& rules) {
  if (auto frame = detail::scan_header(json, payload_bytes)) return *std::move(frame);
  return detail::parse_header(json, payload_bytes, rules);
}

inline Result<Bytes> encode_begin_frame(const BeginManifest& begin, std::uint64_t prefix_cut,
                                        const FrameLimits& limits) {
  KVPACK_TRY(detail::check_texts(begin));
  const Bytes header = json_bytes([&](auto& out) {
    out.fixed(R"({"kind":"begin","manifest":)");
    detail::put_json(begin, prefix_cut, out);
    out.fixed("}");
  });
  return detail::encode_head(header, 0, limits);
}

inline Result<Bytes> encode_segment_head(std::uint32_t sequence, const SegmentDescriptor* descriptor,
                                         std::uint64_t payload_bytes, const FrameLimits& limits) {
  if (payload_bytes == 0) return detail::invalid_frame("payload frame cannot be empty");
  if (descriptor != nullptr) KVPACK_TRY(detail::check_texts(*descriptor));
  const Bytes header = json_bytes([&](auto& out) {
    out.fixed("{");
    if (descriptor != nullptr) {
      out.fixed(R"("descriptor":)");
      detail::put_json(*descriptor, out);
      out.fixed(",");
    }
    out.fixed(R"("kind":"segment","sequence":)");
    out.number(sequence);
    out.fixed("}");
  });
  return detail::encode_head(header, payload_bytes, limits);
}

inline Result<Bytes> encode_seal_frame(const SealManifest& seal, const FrameLimits& limits) {
  KVPACK_TRY(detail::check_texts({seal.core.begin_sha256, seal.core.descriptor_sha256,
                                  seal.core.payload_sha256, seal.core.transfer_id, seal.hmac_sha256}));
  const Bytes header = json_bytes([&](auto& out) {
    out.fixed(R"({"kind":"seal","manifest":)");
    detail::put_json(seal, out);
    out.fixed("}");
  });
  return detail::encode_head(header, 0, limits);
}

inline Result<Bytes> encode_abort_frame(std::string_view reason, const FrameLimits& limits) {
  KVPACK_TRY(detail::check_texts({reason}));
  Bytes header;
  JsonWriter(header).open_object().member("kind", "abort").member("reason", reason).close_object();
  return detail::encode_head(header, 0, limits);
}

inline Result<Bytes> encode_ack_frame(std::string_view transfer_id, std::uint64_t generation,
                                      const FrameLimits& limits) {
  KVPACK_TRY(detail::check_texts({transfer_id}));
  Bytes header;
  JsonWriter(header)
      .open_object()
      .member("kind", "ack")
      .member("transfer_id", transfer_id)
      .member("generation", generation)
      .close_object();
  return detail::encode_head(header, 0, limits);
}

inline Result<Bytes> encode_refusal_frame(const RefusalFrame& refusal, const FrameLimits& limits) {
  if (std::ranges::find(refusal_categories(), refusal.category) == refusal_categories().end())
    return detail::invalid_handoff("refusal names no category of the protocol");
  KVPACK_TRY(detail::check_texts({refusal.text}));
  if (refusal.text.size() > kMaxRefusalTextBytes)
    return detail::invalid_frame("frame exceeds configured bounds");
  Bytes header;
  JsonWriter(header)
      .open_object()
      .member("category", refusal.category)
      .member("kind", "refusal")
      .member("retry", retry_name(refusal.retry))
      .member("text", refusal.text)
      .close_object();
  return detail::encode_head(header, 0, limits);
}

namespace detail {

struct CategoryOfCode {
  ErrorCode code;
  std::string_view category;
};
inline constexpr std::array<CategoryOfCode, 21> kCategoryOfCode{{
    {ErrorCode::kCanonical, "Canonical"},
    {ErrorCode::kCancelled, "Cancelled"},
    {ErrorCode::kDeadlineExceeded, "DeadlineExceeded"},
    {ErrorCode::kValidation, "Validation"},
    {ErrorCode::kInvalidFrame, "Invalid"},
    {ErrorCode::kJson, "Json"},
    {ErrorCode::kTls, "Tls"},
    {ErrorCode::kConfig, "Config"},
    {ErrorCode::kLeafPin, "LeafPin"},
    {ErrorCode::kAlpn, "Alpn"},
    {ErrorCode::kReplay, "Replay"},
    {ErrorCode::kZeroGeneration, "ZeroGeneration"},
    {ErrorCode::kProducerAbort, "ProducerAbort"},
    {ErrorCode::kMissingBegin, "MissingBegin"},
    {ErrorCode::kBusy, "Busy"},
    {ErrorCode::kControl, "Control"},
    {ErrorCode::kInstall, "Install"},
    {ErrorCode::kQuota, "Limit"},
    {ErrorCode::kNoMemory, "Limit"},
    {ErrorCode::kLimit, "Limit"},
    {ErrorCode::kTimeout, "Timeout"},
}};

/// The category that a refusal names for an error code. What the peer has no word for is an Io of ours.
inline std::string_view refusal_category(ErrorCode code) noexcept {
  const auto found = std::ranges::find(kCategoryOfCode, code, &CategoryOfCode::code);
  return found == kCategoryOfCode.end() ? "Io" : found->category;
}

inline bool names_no_text(std::string_view category) noexcept {
  return category == "Io" || category == "Config" || category == "Tls" || category == "Install";
}

inline Retry refusal_retry(std::string_view category) noexcept {
  if (category == "Replay" || category == "ZeroGeneration") return Retry::kNewGeneration;
  constexpr std::array<std::string_view, 6> kLater{"Busy", "Limit", "Timeout", "Io", "Config", "Install"};
  return std::ranges::find(kLater, category) != kLater.end() ? Retry::kLater : Retry::kNever;
}

}  // namespace detail

inline ErrorCode refusal_code(std::string_view category) noexcept {
  const auto found = std::ranges::find(detail::kCategoryOfCode, category, &detail::CategoryOfCode::category);
  return found == detail::kCategoryOfCode.end() ? ErrorCode::kIo : found->code;
}

inline RefusalFrame make_refusal(const Error& error, bool from_sink) {
  const std::string_view category = from_sink ? "Install" : detail::refusal_category(error.code);
  RefusalFrame out{.category = std::string(category), .retry = detail::refusal_retry(category), .text = {}};
  if (detail::names_no_text(category) || !is_utf8(error.message)) return out;
  out.text = utf8_prefix(error.message, kMaxRefusalTextBytes);
  return out;
}

}  // namespace kvpack::handoff
