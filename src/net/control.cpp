#include "kvpack/net/control.h"

#include <algorithm>

#include "kvpack/base/hex.h"
#include "kvpack/core/canonical_json.h"
#include "kvpack/crypto/sha256.h"
#include "kvpack/handoff/mac_key.h"

namespace kvpack::net {

namespace {

constexpr std::size_t kMaxRequestIdBytes = 128;
constexpr std::size_t kMaxHostBytes = 253;
constexpr std::size_t kMaxErrorBytes = 1024;
constexpr std::size_t kMaxImageCharacters = 50'331'648;
constexpr std::uint64_t kMaxProjectedTokens = 4096;
constexpr std::size_t kMaxImages = 8;
constexpr std::size_t kMaxImageBytes = 33'554'432;
constexpr std::uint64_t kMinPositions = 2;

constexpr std::array<std::string_view, 3> kStatusNames{"accepted", "committed", "failed"};

struct ReceiptField {
  std::string_view name;
  std::uint64_t ControlReceipt::*member;
};
constexpr std::array<ReceiptField, 9> kReceiptFields{{
    {"prefill_start_unix_ns", &ControlReceipt::prefill_start_unix_ns},
    {"prefill_end_unix_ns", &ControlReceipt::prefill_end_unix_ns},
    {"state_saved_unix_ns", &ControlReceipt::state_saved_unix_ns},
    {"transfer_start_unix_ns", &ControlReceipt::transfer_start_unix_ns},
    {"first_segment_sent_unix_ns", &ControlReceipt::first_segment_sent_unix_ns},
    {"transfer_acked_unix_ns", &ControlReceipt::transfer_acked_unix_ns},
    {"prefill_tokens", &ControlReceipt::prefill_tokens},
    {"payload_bytes", &ControlReceipt::payload_bytes},
    {"payload_wire_ns", &ControlReceipt::payload_wire_ns},
}};

Error invalid_control(std::string text) {
  return fail(ErrorCode::kControl, std::move(text));
}

bool is_alphanumeric(char c) noexcept {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

bool is_name(std::string_view text, std::size_t max_bytes, std::string_view also) noexcept {
  return !text.empty() && text.size() <= max_bytes && std::ranges::all_of(text, [&](char c) {
    return is_alphanumeric(c) || also.find(c) != std::string_view::npos;
  });
}

JsonValue tokens_json(std::span<const std::uint32_t> tokens) {
  JsonValue out = JsonValue::array();
  for (const std::uint32_t token : tokens) out.push(token);
  return out;
}

JsonValue segment_json(const ControlSegment& segment) {
  JsonValue out = JsonValue::object();
  if (const auto* tokens = std::get_if<std::vector<std::uint32_t>>(&segment)) {
    out.set("kind", "tokens");
    out.set("token_ids", tokens_json(*tokens));
    return out;
  }
  const auto& image = std::get<ControlImage>(segment);
  out.set("kind", "image");
  out.set("data_base64", image.data_base64);
  out.set("sha256", image.sha256);
  out.set("projected_tokens", image.projected_tokens);
  return out;
}

// ---- reading

Result<std::vector<std::uint32_t>> read_tokens(const JsonFields& fields, std::string_view key) {
  KVPACK_TRY_ASSIGN(const JsonArray* items, fields.array(key));
  const JsonPath path = fields.path(key);
  std::vector<std::uint32_t> tokens;
  tokens.reserve(items->size());
  for (std::size_t i = 0; i < items->size(); ++i) {
    const JsonPath place(path, i);
    KVPACK_TRY_ASSIGN(const std::uint32_t token, json_unsigned<std::uint32_t>((*items)[i], place));
    tokens.push_back(token);
  }
  return tokens;
}

Result<ControlSegment> read_segment(const JsonValue& value, const JsonPath& path) {
  static constexpr std::array<std::string_view, 5> kKeys{"data_base64", "kind", "projected_tokens", "sha256",
                                                         "token_ids"};
  static constexpr std::array<std::string_view, 2> kKinds{"image", "tokens"};
  KVPACK_TRY_ASSIGN(const JsonFields fields, JsonFields::open(value, kKeys, UnknownKeys::kRefuse, path));
  KVPACK_TRY_ASSIGN(const std::size_t kind, fields.choice("kind", kKinds));
  // Keys of the other kind are not looked at: they change the encoding, which is compared.
  if (kind == 1) {
    KVPACK_TRY_ASSIGN(std::vector<std::uint32_t> tokens, read_tokens(fields, "token_ids"));
    return ControlSegment(std::move(tokens));
  }
  ControlImage image;
  KVPACK_TRY_ASSIGN(image.data_base64, fields.text("data_base64"));
  KVPACK_TRY_ASSIGN(image.sha256, fields.text("sha256"));
  KVPACK_TRY_ASSIGN(image.projected_tokens, fields.number<std::uint64_t>("projected_tokens"));
  return ControlSegment(std::move(image));
}

Result<std::vector<ControlSegment>> read_segments(const JsonFields& fields) {
  KVPACK_TRY_ASSIGN(const JsonArray* items, fields.array("segments"));
  const JsonPath path = fields.path("segments");
  std::vector<ControlSegment> segments;
  for (std::size_t i = 0; i < items->size(); ++i) {
    const JsonPath place(path, i);
    KVPACK_TRY_ASSIGN(ControlSegment segment, read_segment((*items)[i], place));
    segments.push_back(std::move(segment));
  }
  return segments;
}

Result<ControlRequest> parse_request(const JsonDocument& document) {
  static constexpr std::array<std::string_view, 8> kKeys{
      "deadline_unix_ms", "multimodal", "prompt_token_ids", "receiver_host",
      "receiver_port",    "request_id", "schema_version",   "segments"};
  const JsonPath root;
  KVPACK_TRY_ASSIGN(const JsonFields fields,
                    JsonFields::open(document.value, kKeys, UnknownKeys::kRefuse, root));
  KVPACK_TRY_ASSIGN(const auto version, fields.number<std::uint32_t>("schema_version"));
  if (version != 1 && version != 2) return json_field_error(fields.path("schema_version"), "must be 1 or 2");
  ControlRequest request;
  KVPACK_TRY_ASSIGN(request.request_id, fields.text("request_id"));
  KVPACK_TRY_ASSIGN(request.deadline_unix_ms, fields.number<std::uint64_t>("deadline_unix_ms"));
  KVPACK_TRY_ASSIGN(request.receiver_host, fields.text("receiver_host"));
  KVPACK_TRY_ASSIGN(request.receiver_port, fields.number<std::uint64_t>("receiver_port"));
  if (version == 1) {
    KVPACK_TRY_ASSIGN(request.prompt_token_ids, read_tokens(fields, "prompt_token_ids"));
    return request;
  }
  KVPACK_TRY_ASSIGN(request.segments, read_segments(fields));
  KVPACK_TRY_ASSIGN(const JsonValue* multimodal, fields.required("multimodal"));
  const JsonPath path = fields.path("multimodal");
  KVPACK_TRY_ASSIGN(request.multimodal, handoff::parse_multimodal_identity(*multimodal, path));
  return request;
}

Result<ControlReceipt> parse_receipt(const JsonValue& value, const JsonPath& path) {
  static constexpr auto kKeys = [] {
    std::array<std::string_view, kReceiptFields.size()> keys{};
    for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = kReceiptFields[i].name;
    return keys;
  }();
  KVPACK_TRY_ASSIGN(const JsonFields fields, JsonFields::open(value, kKeys, UnknownKeys::kRefuse, path));
  ControlReceipt receipt;
  for (const ReceiptField& field : kReceiptFields) {
    KVPACK_TRY_ASSIGN(receipt.*field.member, fields.number<std::uint64_t>(field.name));
  }
  return receipt;
}

Result<ControlResponse> parse_response(const JsonDocument& document) {
  static constexpr std::array<std::string_view, 5> kKeys{"error", "receipt", "request_id", "schema_version",
                                                         "status"};
  const JsonPath root;
  KVPACK_TRY_ASSIGN(const JsonFields fields,
                    JsonFields::open(document.value, kKeys, UnknownKeys::kRefuse, root));
  KVPACK_TRY_ASSIGN(const auto version, fields.number<std::uint32_t>("schema_version"));
  if (version != 1) return json_field_error(fields.path("schema_version"), "must be 1");
  ControlResponse response;
  KVPACK_TRY_ASSIGN(response.request_id, fields.text("request_id"));
  KVPACK_TRY_ASSIGN(const std::size_t status, fields.choice("status", kStatusNames));
  response.status = static_cast<ControlStatus>(status);
  KVPACK_TRY_ASSIGN(response.error, fields.optional_text("error"));
  if (const JsonValue* receipt = fields.optional("receipt")) {
    const JsonPath path = fields.path("receipt");
    KVPACK_TRY_ASSIGN(response.receipt, parse_receipt(*receipt, path));
  }
  return response;
}

template <class T>
Result<T> as_control_error(Result<T> result) {
  if (!result.has_value()) result.error().code = ErrorCode::kControl;
  return result;
}

// ---- judging

Status check_tokens(std::span<const std::uint32_t> tokens, std::uint64_t vocabulary, std::string_view text) {
  const bool known = std::ranges::all_of(tokens, [&](std::uint32_t token) { return token < vocabulary; });
  if (tokens.empty() || !known) return invalid_control(std::string(text));
  return success();
}

Status check_image(const ControlImage& image) {
  if (image.data_base64.empty() || image.data_base64.size() > kMaxImageCharacters ||
      !handoff::is_digest_text(image.sha256) || image.projected_tokens == 0 ||
      image.projected_tokens > kMaxProjectedTokens)
    return invalid_control("multimodal image segment violates its closed bounds");
  return success();
}

Status check_multimodal_request(const ControlRequest& request, const ControlLimits& limits) {
  constexpr std::string_view kBounds = "multimodal prefill control request violates its closed bounds";
  const handoff::MultimodalIdentity& identity = *request.multimodal;
  for (const std::string* digest :
       {&identity.projector_sha256, &identity.preprocessing_sha256, &identity.image_sequence_sha256})
    if (!handoff::is_digest_text(*digest)) return invalid_control(std::string(kBounds));
  std::uint64_t positions = 0;
  std::size_t images = 0;
  for (const ControlSegment& segment : request.segments) {
    if (const auto* tokens = std::get_if<std::vector<std::uint32_t>>(&segment)) {
      KVPACK_TRY(check_tokens(*tokens, limits.vocabulary,
                              "multimodal token segment is empty or outside vocabulary"));
      positions += tokens->size();
      continue;
    }
    KVPACK_TRY(check_image(std::get<ControlImage>(segment)));
    positions += std::get<ControlImage>(segment).projected_tokens;
    ++images;
  }
  if (positions < kMinPositions || positions > std::min(limits.max_positions, kMaxControlPositions) ||
      images == 0 || images > kMaxImages)
    return invalid_control(std::string(kBounds));
  if (std::holds_alternative<ControlImage>(request.segments.back()))
    return invalid_control("multimodal request must hold a final text boundary token");
  return success();
}

/// The six bits of a character of base64; 64 of any other.
std::uint32_t base64_value(char c) noexcept {
  if (c >= 'A' && c <= 'Z') return static_cast<std::uint32_t>(c - 'A');
  if (c >= 'a' && c <= 'z') return static_cast<std::uint32_t>(c - 'a') + 26;
  if (c >= '0' && c <= '9') return static_cast<std::uint32_t>(c - '0') + 52;
  if (c == '+') return 62;
  return c == '/' ? 63 : 64;
}

/// The bytes of padded base64 without anything else; nothing when it is not exactly that.
std::optional<Bytes> decode_base64(std::string_view text) {
  if (text.empty() || text.size() % 4 != 0) return std::nullopt;
  const std::size_t padding = text.ends_with("==") ? 2U : text.ends_with('=') ? 1U : 0U;
  const std::string_view digits = text.substr(0, text.size() - padding);
  Bytes out;
  out.reserve(text.size() / 4 * 3);
  std::uint32_t held = 0;
  unsigned bits = 0;
  for (const char c : digits) {
    const std::uint32_t value = base64_value(c);
    if (value == 64) return std::nullopt;
    held = (held << 6) | value;
    bits += 6;
    if (bits < 8) continue;
    bits -= 8;
    out.push_back(static_cast<std::uint8_t>(held >> bits));
    held &= (1U << bits) - 1;
  }
  // Bits that no byte takes would let one image be written in several ways.
  if (held != 0) return std::nullopt;
  return out;
}

}  // namespace

Result<Bytes> encode_control_frame(ByteSpan body) {
  if (body.empty() || body.size() > kMaxControlFrameBytes)
    return invalid_control("prefill control frame exceeds bounds");
  ByteWriter out;
  out.bytes(kControlMagic);
  out.le(static_cast<std::uint32_t>(body.size()));
  out.bytes(body);
  return std::move(out).take();
}

Result<std::uint32_t> read_control_preamble(std::span<const std::uint8_t, kControlPreambleBytes> preamble) {
  if (!std::ranges::equal(preamble.first<kControlMagic.size()>(), kControlMagic))
    return invalid_control("prefill control frame magic mismatch");
  const auto length = load_le<std::uint32_t>(preamble, kControlMagic.size());
  if (length == 0 || length > kMaxControlFrameBytes)
    return invalid_control("prefill control frame length is outside bounds");
  return length;
}

Bytes encode_control_request(const ControlRequest& request) {
  JsonValue out = JsonValue::object();
  out.set("schema_version", request.multimodal.has_value() ? 2U : 1U);
  out.set("request_id", request.request_id);
  out.set("deadline_unix_ms", request.deadline_unix_ms);
  out.set("receiver_host", request.receiver_host);
  out.set("receiver_port", request.receiver_port);
  if (!request.multimodal.has_value()) {
    out.set("prompt_token_ids", tokens_json(request.prompt_token_ids));
    return canonical_json(out);
  }
  JsonValue segments = JsonValue::array();
  for (const ControlSegment& segment : request.segments) segments.push(segment_json(segment));
  out.set("segments", std::move(segments));
  JsonValue identity = JsonValue::object();
  identity.set("image_sequence_sha256", request.multimodal->image_sequence_sha256);
  identity.set("preprocessing_sha256", request.multimodal->preprocessing_sha256);
  identity.set("projector_sha256", request.multimodal->projector_sha256);
  out.set("multimodal", std::move(identity));
  return canonical_json(out);
}

Bytes encode_control_response(const ControlResponse& response) {
  JsonValue out = JsonValue::object();
  out.set("schema_version", 1U);
  out.set("request_id", response.request_id);
  out.set("status", kStatusNames[static_cast<std::size_t>(response.status)]);
  if (response.error) out.set("error", *response.error);
  if (response.receipt) out.set("receipt", control_receipt_json(*response.receipt));
  return canonical_json(out);
}

JsonValue control_receipt_json(const ControlReceipt& receipt) {
  JsonValue out = JsonValue::object();
  for (const ReceiptField& field : kReceiptFields) out.set(field.name, receipt.*field.member);
  return out;
}

Result<ControlRequest> decode_control_request(ByteSpan body) {
  return as_control_error(
      decode_canonical_struct(body, kMaxControlFrameBytes, parse_request, encode_control_request));
}

Result<ControlResponse> decode_control_response(ByteSpan body) {
  return as_control_error(
      decode_canonical_struct(body, kMaxControlFrameBytes, parse_response, encode_control_response));
}

Status check_control_request(const ControlRequest& request, std::uint64_t now_unix_ms,
                             const ControlLimits& limits) {
  constexpr std::string_view kBounds = "prefill control request violates its closed bounds";
  constexpr std::uint64_t kMaxPort = 65'535;
  if (!is_name(request.request_id, kMaxRequestIdBytes, "._-") || request.deadline_unix_ms <= now_unix_ms ||
      !is_name(request.receiver_host, kMaxHostBytes, ".:_-") || request.receiver_port == 0 ||
      request.receiver_port > kMaxPort)
    return invalid_control(std::string(kBounds));
  if (request.multimodal.has_value()) return check_multimodal_request(request, limits);
  if (request.prompt_token_ids.size() < kMinPositions ||
      request.prompt_token_ids.size() > std::min(limits.max_positions, kMaxControlPositions))
    return invalid_control(std::string(kBounds));
  return check_tokens(request.prompt_token_ids, limits.vocabulary, kBounds);
}

std::vector<std::uint32_t> request_positions(const ControlRequest& request) {
  if (!request.multimodal.has_value()) return request.prompt_token_ids;
  std::vector<std::uint32_t> positions;
  for (const ControlSegment& segment : request.segments) {
    if (const auto* tokens = std::get_if<std::vector<std::uint32_t>>(&segment))
      positions.insert(positions.end(), tokens->begin(), tokens->end());
    else
      positions.insert(positions.end(),
                       static_cast<std::size_t>(std::get<ControlImage>(segment).projected_tokens),
                       kControlTokenBound);
  }
  return positions;
}

Result<std::vector<Bytes>> decode_control_images(const ControlRequest& request) {
  std::vector<Bytes> images;
  if (!request.multimodal.has_value()) return images;
  Bytes digests;
  for (const ControlSegment& segment : request.segments) {
    const auto* image = std::get_if<ControlImage>(&segment);
    if (image == nullptr) continue;
    std::optional<Bytes> bytes = decode_base64(image->data_base64);
    if (!bytes || bytes->empty() || bytes->size() > kMaxImageBytes)
      return invalid_control("multimodal image segment violates its closed bounds");
    const auto digest = sha256(*bytes);
    if (to_hex(digest) != image->sha256) return invalid_control("multimodal image digest mismatch");
    digests.insert(digests.end(), digest.begin(), digest.end());
    images.push_back(*std::move(bytes));
  }
  if (to_hex(sha256(digests)) != request.multimodal->image_sequence_sha256)
    return invalid_control("multimodal image sequence digest mismatch");
  return images;
}

Status check_control_response(const ControlResponse& response, std::string_view request_id) {
  const bool says_why = response.error.has_value();
  if (response.request_id != request_id || says_why != (response.status == ControlStatus::kFailed) ||
      (says_why && (response.error->empty() || response.error->size() > kMaxErrorBytes)))
    return invalid_control("prefill control response identity or status is invalid");
  if (!response.receipt) return success();
  if (response.status != ControlStatus::kCommitted)
    return invalid_control("only a committed control response may carry a receipt");
  return check_control_receipt(*response.receipt);
}

Status check_control_receipt(const ControlReceipt& receipt) {
  if (receipt.prefill_tokens == 0 || receipt.payload_bytes == 0 || receipt.payload_wire_ns == 0 ||
      receipt.prefill_start_unix_ns > receipt.prefill_end_unix_ns ||
      receipt.prefill_end_unix_ns > receipt.state_saved_unix_ns ||
      receipt.transfer_start_unix_ns > receipt.first_segment_sent_unix_ns ||
      receipt.first_segment_sent_unix_ns > receipt.transfer_acked_unix_ns)
    return invalid_control("prefill producer receipt phase order is invalid");
  return success();
}

}  // namespace kvpack::net
