// Manifests and packs, bytes to bytes.
#include "handles.h"

namespace kvpack::capi {

namespace {

constexpr std::uint64_t kLimitsV0 = KVPACK_SIZE_UP_TO(kvpack_limits, max_restored_bytes);
constexpr std::uint64_t kManifestInfoV0 = KVPACK_SIZE_UP_TO(kvpack_manifest_info, is_delta);
constexpr std::uint64_t kPackPlaneInfoV0 = KVPACK_SIZE_UP_TO(kvpack_plane_info, token_count);
constexpr std::uint64_t kPackHeaderV0 = KVPACK_SIZE_UP_TO(kvpack_pack_header, reserved);
constexpr std::uint64_t kPackEncodeOptionsV0 = KVPACK_SIZE_UP_TO(kvpack_pack_encode_options, random_user);
constexpr std::uint64_t kPackOptionsV0 = KVPACK_SIZE_UP_TO(kvpack_pack_options, limits);

template <class U>
Result<U> narrow_limit(U given, U bound, std::string_view name) {
  if (given > bound) return bad_argument(name, "may be narrowed, not widened");
  return given == 0 ? bound : given;
}

kvpack_manifest_info describe_manifest(const CutManifest& manifest) noexcept {
  kvpack_manifest_info info{};
  info.tenant = from_id(manifest.tenant);
  info.key_epoch = manifest.key_epoch;
  info.model = from_model(manifest.semantic_model);
  info.cut = from_cut(manifest.input_cut);
  if (const auto& parent = manifest.schema.kind.parent) {
    info.parent_manifest_id = from_id(parent->manifest_id);
    info.parent_cut = from_cut(parent->cut);
    info.is_delta = 1;
  }
  info.depth = manifest.schema.kind.depth;
  info.state_count = manifest.family.states.size();
  info.group_count = manifest.schema.groups.size();
  info.segment_bytes = manifest.schema.segment_restored_bytes;
  info.complete_bytes = manifest.schema.complete_restored_bytes;
  return info;
}

kvpack_pack_header describe_header(const PackHeader& header) noexcept {
  kvpack_pack_header out{};
  out.stored_manifest_bytes = header.stored_manifest_bytes;
  out.manifest_bytes = header.manifest_bytes;
  out.key_epoch = header.key_epoch;
  out.tenant = from_id(header.tenant);
  out.manifest_id = from_id(header.manifest_id);
  out.encrypted = header.encrypted ? 1 : 0;
  return out;
}

/// How a pack is opened, with the ring kept alive.
struct PackAccess {
  Keys keys;
  std::shared_ptr<const KeySchedule>
      schedule;  ///< Of the epoch that the caller names; null for the pack's own.
  ManifestLimits limits;
};

Result<PackAccess> read_pack_options(const kvpack_pack_options* options) {
  KVPACK_TRY_ASSIGN(const auto known, read_optional_options(options, kPackOptionsV0, "options"));
  PackAccess access;
  KVPACK_TRY_ASSIGN(access.keys, read_optional_keys(known.keys));
  KVPACK_TRY_ASSIGN(access.limits, read_limits(known.limits));
  if (known.epoch == 0) return access;
  if (access.keys == nullptr) return bad_argument("epoch", "needs keys");
  KVPACK_TRY_ASSIGN(access.schedule, access.keys->ring.schedule(known.epoch));
  return access;
}

Result<OpenedPack> open_with(const PackAccess& access, ByteSpan pack) {
  if (access.schedule != nullptr) return open_pack(pack, *access.schedule, access.limits);
  if (access.keys != nullptr) return open_pack(pack, access.keys->ring, access.limits);
  KVPACK_TRY_ASSIGN(UnauthenticatedPack checked, check_pack_without_keys(pack, access.limits));
  if (!checked.manifest) return fail(ErrorCode::kNotFound, "no key opens the manifest");
  return OpenedPack{checked.header, *std::move(checked.manifest)};
}

Result<PackHeader> verify_with(const PackAccess& access, ByteSpan pack) {
  if (access.schedule != nullptr) return verify_pack(pack, *access.schedule);
  KVPACK_TRY_ASSIGN(const PackHeader header, check_pack_frame(pack));
  if (access.keys == nullptr) return header;
  KVPACK_TRY_ASSIGN(const auto schedule, access.keys->ring.schedule(header.key_epoch));
  return verify_pack(pack, *schedule);
}

/// A list of a manifest at an index. Manifests that were only decoded need not have as many of each list.
template <class T>
Result<const T*> element_at(const std::vector<T>& list, std::uint64_t index, std::string_view name) {
  if (index >= list.size()) return bad_argument(name, "is outside the manifest");
  return &list[static_cast<std::size_t>(index)];
}

}  // namespace

Result<ManifestLimits> read_limits(const kvpack_limits* limits) {
  KVPACK_TRY_ASSIGN(const auto known, read_optional_options(limits, kLimitsV0, "limits"));
  ManifestLimits out;
  KVPACK_TRY_ASSIGN(out.max_states, narrow_limit(known.max_states, out.max_states, "max_states"));
  KVPACK_TRY_ASSIGN(out.max_chunks_per_state, narrow_limit(known.max_chunks_per_state,
                                                           out.max_chunks_per_state, "max_chunks_per_state"));
  KVPACK_TRY_ASSIGN(out.max_restored_bytes,
                    narrow_limit(known.max_restored_bytes, out.max_restored_bytes, "max_restored_bytes"));
  return out;
}

kvpack_plane_info describe_plane(const StaticState& fixed, const RealizedState& realized) noexcept {
  kvpack_plane_info info{};
  const std::uint32_t width = dtype_width_bytes(fixed.dtype);
  info.name = fixed.key.name.c_str();
  info.name_size = fixed.key.name.size();
  info.layer = fixed.key.layer;
  info.dtype = static_cast<std::uint32_t>(fixed.dtype);
  info.dtype_bytes = width;
  info.token_axis_rule = static_cast<std::uint32_t>(fixed.token_axis_rule);
  info.token_axis = fixed.token_axis;
  const auto& dimensions = realized.full_shape.dimensions;
  info.rank = static_cast<std::uint32_t>(std::min<std::size_t>(dimensions.size(), kMaxRank));
  std::copy_n(dimensions.begin(), info.rank, std::begin(info.dimensions));
  for (std::size_t i = 0; i < std::min<std::size_t>(realized.strides.size(), kMaxRank); ++i)
    info.byte_strides[i] = checked_mul<std::uint64_t>(realized.strides[i], width)
                               .value_or(std::numeric_limits<std::uint64_t>::max());
  info.size_bytes = realized.complete_physical_bytes;
  const bool tail = fixed.token_axis_rule == TokenAxisRule::kTailWindow;
  info.token_start = tail ? realized.logical_start : 0;
  if (fixed.token_axis < dimensions.size()) info.token_count = dimensions[fixed.token_axis];
  return info;
}

ChunkSpan to_span(const kvpack_chunk_span& span) noexcept {
  return {span.token_start, span.token_count, span.plaintext_offset, span.plaintext_bytes};
}

kvpack_chunk_span from_span(const ChunkSpan& span) noexcept {
  return {span.token_start, span.token_count, span.plaintext_offset, span.plaintext_bytes, 0};
}

ChunkRef to_ref(const kvpack_chunk_ref& ref) noexcept {
  return {to_id(ref.content_id), to_id(ref.object_key), to_id(ref.stored_object_digest),
          ref.key_epoch,         ref.plaintext_bytes,   ref.object_bytes};
}

kvpack_chunk_ref from_ref(const ChunkRef& ref) noexcept {
  return {from_id(ref.content_id), from_id(ref.object_key), from_id(ref.stored_object_digest),
          ref.key_epoch,           ref.plaintext_bytes,     ref.object_bytes};
}

}  // namespace kvpack::capi

using namespace kvpack;        // NOLINT(google-build-using-namespace)
using namespace kvpack::capi;  // NOLINT(google-build-using-namespace)

kvpack_status kvpack_manifest_decode(kvpack_manifest** out, const void* object, uint64_t object_size,
                                     kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_pointer(out, "out"));
    KVPACK_TRY_ASSIGN(const ByteSpan bytes, read_bytes(object, object_size, "object"));
    KVPACK_TRY_ASSIGN(CutManifest manifest, decode_manifest(bytes));
    *out = new kvpack_manifest(std::make_shared<const CutManifest>(std::move(manifest)), manifest_id(bytes));
    return success();
  });
}

kvpack_status kvpack_manifest_validate(const kvpack_manifest* manifest, const kvpack_limits* limits,
                                       kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(manifest, "manifest"));
    KVPACK_TRY_ASSIGN(const ManifestLimits known, read_limits(limits));
    return validate_manifest(*manifest->manifest, known);
  });
}

kvpack_status kvpack_manifest_encode(const kvpack_manifest* manifest, kvpack_bytes** out,
                                     kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(manifest, "manifest"));
    KVPACK_TRY(check_pointer(out, "out"));
    KVPACK_TRY_ASSIGN(Bytes object, encode_manifest(*manifest->manifest));
    *out = new kvpack_bytes(std::move(object));
    return success();
  });
}

const kvpack_id* kvpack_manifest_id(const kvpack_manifest* manifest) {
  return is_live(manifest) ? &manifest->id : nullptr;
}

kvpack_status kvpack_manifest_get_info(const kvpack_manifest* manifest, kvpack_manifest_info* out,
                                       kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(manifest, "manifest"));
    KVPACK_TRY_ASSIGN(const auto output,
                      OutputStruct<kvpack_manifest_info>::check(out, kManifestInfoV0, "out"));
    output.fill(describe_manifest(*manifest->manifest));
    return success();
  });
}

kvpack_status kvpack_manifest_family(const kvpack_manifest* manifest, kvpack_family** out,
                                     kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(manifest, "manifest"));
    KVPACK_TRY(check_pointer(out, "out"));
    KVPACK_TRY_ASSIGN(IdentifiedFamily family, IdentifiedFamily::create(manifest->manifest->family));
    *out = new kvpack_family(std::make_shared<const IdentifiedFamily>(std::move(family)));
    return success();
  });
}

kvpack_status kvpack_manifest_state(const kvpack_manifest* manifest, kvpack_plane_info* out,
                                    uint64_t state_index, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(manifest, "manifest"));
    KVPACK_TRY_ASSIGN(const auto output,
                      OutputStruct<kvpack_plane_info>::check(out, kPackPlaneInfoV0, "out"));
    const CutManifest& known = *manifest->manifest;
    KVPACK_TRY_ASSIGN(const auto* const fixed, element_at(known.family.states, state_index, "state_index"));
    KVPACK_TRY_ASSIGN(const auto* const realized,
                      element_at(known.schema.states, state_index, "state_index"));
    output.fill(describe_plane(*fixed, *realized));
    return success();
  });
}

uint64_t kvpack_manifest_chunk_count(const kvpack_manifest* manifest, uint64_t state_index) {
  if (!is_live(manifest) || state_index >= manifest->manifest->payload.size()) return 0;
  return manifest->manifest->payload[static_cast<std::size_t>(state_index)].chunks.size();
}

kvpack_status kvpack_manifest_chunk(const kvpack_manifest* manifest, kvpack_chunk_span* span,
                                    kvpack_chunk_ref* ref, uint64_t state_index, uint64_t index,
                                    kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(manifest, "manifest"));
    const CutManifest& known = *manifest->manifest;
    KVPACK_TRY_ASSIGN(const auto* const payload, element_at(known.payload, state_index, "state_index"));
    KVPACK_TRY_ASSIGN(const auto* const realized,
                      element_at(known.schema.states, state_index, "state_index"));
    KVPACK_TRY_ASSIGN(const auto* const found_ref, element_at(payload->chunks, index, "index"));
    KVPACK_TRY_ASSIGN(const auto* const found_span, element_at(realized->chunk_spans, index, "index"));
    if (span != nullptr) *span = from_span(*found_span);
    if (ref != nullptr) *ref = from_ref(*found_ref);
    return success();
  });
}

kvpack_status kvpack_manifest_group(const kvpack_manifest* manifest, uint32_t* group_id,
                                    uint64_t* state_count, uint64_t group_index, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(manifest, "manifest"));
    KVPACK_TRY_ASSIGN(const auto* const group,
                      element_at(manifest->manifest->schema.groups, group_index, "group_index"));
    if (group_id != nullptr) *group_id = group->id;
    if (state_count != nullptr) *state_count = group->states.size();
    return success();
  });
}

kvpack_status kvpack_manifest_group_state(const kvpack_manifest* manifest, kvpack_state_key* out,
                                          uint64_t group_index, uint64_t index, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(manifest, "manifest"));
    KVPACK_TRY(check_pointer(out, "out"));
    KVPACK_TRY_ASSIGN(const auto* const group,
                      element_at(manifest->manifest->schema.groups, group_index, "group_index"));
    KVPACK_TRY_ASSIGN(const auto* const key, element_at(group->states, index, "index"));
    *out = from_state_key(*key);
    return success();
  });
}

void kvpack_manifest_free(kvpack_manifest* manifest) {
  free_handle(manifest);
}

kvpack_status kvpack_pack_encode(kvpack_bytes** out, const kvpack_manifest* manifest,
                                 const kvpack_pack_encode_options* options, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_pointer(out, "out"));
    KVPACK_TRY(check_handle(manifest, "manifest"));
    KVPACK_TRY_ASSIGN(const auto known, read_options(options, kPackEncodeOptionsV0, "options"));
    KVPACK_TRY(check_keys(known.keys));
    KVPACK_TRY(check_reserved(known.reserved));
    KVPACK_TRY_ASSIGN(const bool encrypt, read_flag(known.encrypt, "encrypt"));
    const CutManifest& content = *manifest->manifest;
    KVPACK_TRY_ASSIGN(const auto schedule,
                      known.keys->keys->ring.schedule(known.epoch == 0 ? content.key_epoch : known.epoch));
    Random random(known.random, known.random_user);
    KVPACK_TRY_ASSIGN(EncodedPack pack, encode_pack(content, *schedule, encrypt, random));
    *out = new kvpack_bytes(std::move(pack.bytes));
    return success();
  });
}

kvpack_status kvpack_pack_open(kvpack_manifest** out, kvpack_pack_header* header, const void* pack,
                               uint64_t pack_size, const kvpack_pack_options* options, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_pointer(out, "out"));
    KVPACK_TRY_ASSIGN(const auto output,
                      OutputStruct<kvpack_pack_header>::check_optional(header, kPackHeaderV0, "header"));
    KVPACK_TRY_ASSIGN(const ByteSpan bytes, read_bytes(pack, pack_size, "pack"));
    KVPACK_TRY_ASSIGN(const PackAccess access, read_pack_options(options));
    KVPACK_TRY_ASSIGN(OpenedPack opened, open_with(access, bytes));
    auto manifest = std::make_shared<const CutManifest>(std::move(opened.manifest));
    *out = new kvpack_manifest(std::move(manifest), opened.header.manifest_id);
    output.fill(describe_header(opened.header));
    return success();
  });
}

kvpack_status kvpack_pack_verify(kvpack_pack_header* out, const void* pack, uint64_t pack_size,
                                 const kvpack_pack_options* options, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY_ASSIGN(const auto output,
                      OutputStruct<kvpack_pack_header>::check_optional(out, kPackHeaderV0, "out"));
    KVPACK_TRY_ASSIGN(const ByteSpan bytes, read_bytes(pack, pack_size, "pack"));
    KVPACK_TRY_ASSIGN(const PackAccess access, read_pack_options(options));
    KVPACK_TRY_ASSIGN(const PackHeader header, verify_with(access, bytes));
    output.fill(describe_header(header));
    return success();
  });
}

kvpack_status kvpack_pack_inspect(kvpack_pack_header* out, const void* pack, uint64_t pack_size,
                                  kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY_ASSIGN(const auto output, OutputStruct<kvpack_pack_header>::check(out, kPackHeaderV0, "out"));
    KVPACK_TRY_ASSIGN(const ByteSpan bytes, read_bytes(pack, pack_size, "pack"));
    KVPACK_TRY_ASSIGN(const PackHeader header, inspect_pack_header(bytes));
    output.fill(describe_header(header));
    return success();
  });
}
