// Handoff V2: the key that seals, and the values that both sides take.
#include "handoff_values.h"
#include "kvpack/handoff/mac_key_file.h"

namespace kvpack::capi {

namespace {

constexpr std::uint64_t kMacKeyOptionsV0 = KVPACK_SIZE_UP_TO(kvpack_mac_key_options, reserved);

constexpr std::string_view kF16 = "f16_le";
constexpr std::string_view kF32 = "f32_le";

}  // namespace

Result<std::string_view> read_element_type(std::uint32_t dtype) {
  if (dtype == KVPACK_DTYPE_F16) return kF16;
  if (dtype == KVPACK_DTYPE_F32) return kF32;
  return bad_argument("dtype", "must be F16 or F32");
}

std::string to_digest(const kvpack_id& id) {
  return to_hex(ByteSpan(id.bytes));
}
kvpack_id from_digest(std::string_view digest) {
  kvpack_id out{};
  static_cast<void>(from_hex(digest, MutableByteSpan(out.bytes)));
  return out;
}

Result<std::string> read_string(const char* data, std::uint64_t size, std::string_view name) {
  KVPACK_TRY_ASSIGN(const std::string_view text, read_text(data, size, name));
  return std::string(text);
}

Result<std::vector<std::uint32_t>> read_tokens(const std::uint32_t* tokens, std::uint64_t count,
                                               std::string_view name) {
  KVPACK_TRY_ASSIGN(const auto given, read_array(tokens, count, name));
  return std::vector<std::uint32_t>(given.begin(), given.end());
}

Result<std::vector<ByteSpan>> read_payload(const kvpack_span* payload, std::uint64_t count) {
  KVPACK_TRY_ASSIGN(const auto given, read_array(payload, count, "payload"));
  std::vector<ByteSpan> pieces;
  pieces.reserve(given.size());
  for (const kvpack_span& piece : given) {
    KVPACK_TRY_ASSIGN(const ByteSpan bytes, read_bytes(piece.data, piece.size, "payload"));
    pieces.push_back(bytes);
  }
  return pieces;
}

FrameLimits read_frame_limits(std::uint32_t max_header_bytes, std::uint64_t max_payload_bytes) {
  FrameLimits limits;
  if (max_header_bytes != 0) limits.max_header_bytes = max_header_bytes;
  if (max_payload_bytes != 0) limits.max_payload_bytes = max_payload_bytes;
  return limits;
}

Result<ExactIdentity> read_identity(const kvpack_handoff_identity& identity) {
  ExactIdentity out{.adapter_sha256 = to_digest(identity.adapter_sha256),
                    .chat_template_sha256 = to_digest(identity.chat_template_sha256),
                    .context_policy_sha256 = to_digest(identity.context_policy_sha256),
                    .model_revision = {},
                    .model_sha256 = to_digest(identity.model_sha256),
                    .tokenizer_revision = {},
                    .tokenizer_sha256 = to_digest(identity.tokenizer_sha256)};
  KVPACK_TRY_ASSIGN(out.model_revision,
                    read_string(identity.model_revision, identity.model_revision_size, "model_revision"));
  KVPACK_TRY_ASSIGN(
      out.tokenizer_revision,
      read_string(identity.tokenizer_revision, identity.tokenizer_revision_size, "tokenizer_revision"));
  return out;
}

kvpack_handoff_identity from_identity(const ExactIdentity& identity) {
  return {.adapter_sha256 = from_digest(identity.adapter_sha256),
          .chat_template_sha256 = from_digest(identity.chat_template_sha256),
          .context_policy_sha256 = from_digest(identity.context_policy_sha256),
          .model_sha256 = from_digest(identity.model_sha256),
          .tokenizer_sha256 = from_digest(identity.tokenizer_sha256),
          .model_revision = identity.model_revision.c_str(),
          .model_revision_size = identity.model_revision.size(),
          .tokenizer_revision = identity.tokenizer_revision.c_str(),
          .tokenizer_revision_size = identity.tokenizer_revision.size()};
}

std::optional<MultimodalIdentity> to_multimodal(const kvpack_handoff_multimodal* identity) {
  if (identity == nullptr) return std::nullopt;
  return MultimodalIdentity{.image_sequence_sha256 = to_digest(identity->image_sequence_sha256),
                            .preprocessing_sha256 = to_digest(identity->preprocessing_sha256),
                            .projector_sha256 = to_digest(identity->projector_sha256)};
}

kvpack_handoff_multimodal from_multimodal(const MultimodalIdentity& identity) {
  return {.image_sequence_sha256 = from_digest(identity.image_sequence_sha256),
          .preprocessing_sha256 = from_digest(identity.preprocessing_sha256),
          .projector_sha256 = from_digest(identity.projector_sha256)};
}

Result<std::optional<std::uint32_t>> read_layer(const kvpack_handoff_shape& shape) {
  KVPACK_TRY_ASSIGN(const bool has_layer, read_flag(shape.has_layer, "has_layer"));
  if (has_layer) return std::optional<std::uint32_t>(shape.layer);
  if (shape.layer != 0) return bad_argument("layer", "needs has_layer");
  return std::optional<std::uint32_t>();
}

Result<SegmentShape> read_shape(const kvpack_handoff_shape& shape) {
  KVPACK_TRY(check_reserved(shape.reserved));
  SegmentShape out;
  KVPACK_TRY_ASSIGN(out.component_id,
                    read_string(shape.component_id, shape.component_id_size, "component_id"));
  KVPACK_TRY_ASSIGN(out.role, read_enum<SegmentRole>(shape.role, KVPACK_ROLE_AUXILIARY, "role"));
  KVPACK_TRY_ASSIGN(out.layer, read_layer(shape));
  out.logical_start = shape.logical_start;
  out.logical_count = shape.logical_count;
  KVPACK_TRY_ASSIGN(out.element_type, read_element_type(shape.dtype));
  out.elements_per_token = shape.elements_per_token;
  return out;
}

kvpack_handoff_segment from_descriptor(const SegmentDescriptor& descriptor) {
  const SegmentShape& shape = descriptor.shape;
  kvpack_handoff_segment out{};
  out.shape = {.component_id = shape.component_id.c_str(),
               .component_id_size = shape.component_id.size(),
               .logical_start = shape.logical_start,
               .logical_count = shape.logical_count,
               .role = from_enum(shape.role),
               .has_layer = shape.layer.has_value() ? 1U : 0U,
               .layer = shape.layer.value_or(0),
               .dtype = shape.element_type == kF16 ? KVPACK_DTYPE_F16 : KVPACK_DTYPE_F32,
               .elements_per_token = shape.elements_per_token,
               .reserved = 0};
  out.sha256 = from_digest(descriptor.sha256);
  out.byte_len = descriptor.byte_len;
  out.sequence = descriptor.sequence;
  return out;
}

kvpack_handoff_seal from_seal(const SealCore& core) {
  kvpack_handoff_seal out{};
  out.struct_size = sizeof(out);
  out.transfer_id = core.transfer_id.c_str();
  out.transfer_id_size = core.transfer_id.size();
  out.generation = core.generation;
  out.begin_sha256 = from_digest(core.begin_sha256);
  out.descriptor_sha256 = from_digest(core.descriptor_sha256);
  out.payload_sha256 = from_digest(core.payload_sha256);
  out.total_bytes = core.total_bytes;
  out.segment_count = core.segment_count;
  return out;
}

}  // namespace kvpack::capi

using namespace kvpack;
using namespace kvpack::capi;

kvpack_status kvpack_mac_key_new(kvpack_mac_key** out, const kvpack_mac_key_options* options,
                                 kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_pointer(out, "out"));
    KVPACK_TRY_ASSIGN(const auto known, read_options(options, kMacKeyOptionsV0, "options"));
    KVPACK_TRY(check_reserved(known.reserved));
    KVPACK_TRY_ASSIGN(const bool producer, read_flag(known.producer_file, "producer_file"));
    if ((known.secret != nullptr) == (known.path != nullptr))
      return bad_argument("secret", "must be given as bytes or as a path, and not as both");
    if (known.path == nullptr) {
      KVPACK_TRY_ASSIGN(const ByteSpan secret, read_bytes(known.secret, known.secret_size, "secret"));
      KVPACK_TRY_ASSIGN(MacKey key, MacKey::from_slice(secret));
      *out = new kvpack_mac_key(std::move(key));
      return success();
    }
    SystemFileSystem fs;
    KVPACK_TRY_ASSIGN(
        MacKey key, producer ? read_producer_mac_key(fs, known.path) : read_consumer_mac_key(fs, known.path));
    *out = new kvpack_mac_key(std::move(key));
    return success();
  });
}

void kvpack_mac_key_free(kvpack_mac_key* key) {
  free_handle(key);
}

kvpack_status kvpack_handoff_payload_sha256(kvpack_id* out, const kvpack_span* payload,
                                            uint64_t payload_count, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_pointer(out, "out"));
    KVPACK_TRY_ASSIGN(const auto pieces, read_payload(payload, payload_count));
    Sha256 hash;
    for (const ByteSpan piece : pieces) hash.update(piece);
    *out = from_id(hash.finish());
    return success();
  });
}
