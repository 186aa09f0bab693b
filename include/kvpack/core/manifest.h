/// Cut manifest KVMNF1: one cut of one input under one model, and where each of its bytes is.
/// Layout and rules M1 to M44: docs/format/manifest.md.
#pragma once

#include <vector>

#include "kvpack/core/family.h"
#include "kvpack/core/schema.h"

namespace kvpack {

/// By what a manifest knows one chunk object.
struct ChunkRef {
  static constexpr std::size_t kWireBytes = 112;

  Id32 content_id;
  Id32 object_key;
  Id32 stored_object_digest;
  std::uint64_t key_epoch = 0;
  std::uint32_t plaintext_bytes = 0;
  std::uint32_t object_bytes = 0;

  friend bool operator==(const ChunkRef&, const ChunkRef&) = default;
};

/// The chunks of one state, in the order of its spans.
struct PayloadState {
  StateKey key;
  std::vector<ChunkRef> chunks{};

  friend bool operator==(const PayloadState&, const PayloadState&) = default;
};

struct CutManifest {
  Id32 tenant;
  std::uint64_t key_epoch = 0;
  SemanticModelId semantic_model;
  InputCutId input_cut;
  RepresentationFamily family;
  RealizedCutSchema schema;
  std::vector<PayloadState> payload{};

  friend bool operator==(const CutManifest&, const CutManifest&) = default;
};

/// What a reader is willing to handle. May be narrowed; a larger number than the default counts as the
/// default.
struct ManifestLimits {
  std::uint32_t max_states = kMaxStates;
  std::uint32_t max_chunks_per_state = kMaxChunksPerState;
  std::uint64_t max_restored_bytes = kDefaultMaxRestoredBytes;
};

/// The canonical plaintext object. @error kBounds a count or name does not fit
Result<Bytes> encode_manifest(const CutManifest& manifest);
/// Decodes and proves canonicity; does not validate.
/// @error kBounds kTruncated kBadMagic kReserved kUnknownEnum kSemantics
Result<CutManifest> decode_manifest(ByteSpan bytes);
/// Rules M1 to M44 in order, the family's among them. @error kSemantics kBounds kCodec kGraph, with layer and
/// state
Status validate_manifest(const CutManifest& manifest, const ManifestLimits& limits = {});
/// SHA-256 over the domain and the canonical plaintext.
Id32 manifest_id(ByteSpan canonical_plaintext);

/// Where a state's bytes lie and what they measure, as rules M16 to M33 compute it.
struct StateGeometry {
  std::uint64_t logical_start = 0;  ///< First token that this manifest carries.
  std::uint64_t logical_count = 0;  ///< Tokens that this manifest carries.
  std::uint64_t full_tokens = 0;    ///< Size of the token axis of the full shape.
  std::uint64_t bytes_per_token = 0;
  std::uint64_t physical_offset_bytes = 0;
  std::uint64_t segment_span_bytes = 0;  ///< Footprint of the segment under the strides.
  std::uint64_t complete_span_bytes = 0;
  std::uint64_t segment_bytes = 0;  ///< Payload of the segment, without gaps.
  std::uint64_t complete_bytes = 0;
};

/// Strides of a contiguous row-major array, in elements.
/// @error kBounds `contiguous stride calculation overflows u64`
Result<std::vector<std::uint64_t>> contiguous_strides(const Shape& shape);

/// Bytes from the first to behind the last element: (sum of (dim - 1) * stride, plus 1) * width.
/// @error kBounds `state physical footprint overflows u64`
Result<std::uint64_t> physical_footprint_bytes(const Shape& shape, std::span<const std::uint64_t> strides,
                                               std::uint32_t width_bytes);

// ---------------------------------------------------------------------------------------------------------------

inline constexpr ObjectTexts kManifestTexts{magic("KVMNF1"), "unsupported manifest version",
                                            "manifest reserved field is nonzero",
                                            "manifest encoding is not canonical"};
inline constexpr std::string_view kManifestTooLarge = "manifest exceeds production bound";

namespace detail {

inline void write_chunk_ref(ByteWriter& out, const ChunkRef& ref) {
  out.bytes(ref.content_id);
  out.bytes(ref.object_key);
  out.bytes(ref.stored_object_digest);
  out.le(ref.key_epoch);
  out.le(ref.plaintext_bytes);
  out.le(ref.object_bytes);
}

inline Result<ChunkRef> read_chunk_ref(CanonicalReader& in) {
  ChunkRef ref;
  KVPACK_TRY_ASSIGN(ref.content_id, in.id());
  KVPACK_TRY_ASSIGN(ref.object_key, in.id());
  KVPACK_TRY_ASSIGN(ref.stored_object_digest, in.id());
  KVPACK_TRY_ASSIGN(ref.key_epoch, in.le<std::uint64_t>());
  KVPACK_TRY_ASSIGN(ref.plaintext_bytes, in.le<std::uint32_t>());
  KVPACK_TRY_ASSIGN(ref.object_bytes, in.le<std::uint32_t>());
  return ref;
}

inline Status write_payload_state(ByteWriter& out, const PayloadState& state) {
  KVPACK_TRY(write_state_key(out, state.key));
  if (state.chunks.empty() || state.chunks.size() > kMaxChunksPerState)
    return fail(ErrorCode::kBounds, "state chunk count is outside bounds");
  out.le(static_cast<std::uint32_t>(state.chunks.size()));
  for (const ChunkRef& ref : state.chunks) write_chunk_ref(out, ref);
  return success();
}

inline Result<PayloadState> read_payload_state(CanonicalReader& in) {
  PayloadState state;
  KVPACK_TRY_ASSIGN(state.key, read_state_key(in));
  KVPACK_TRY_ASSIGN(const auto count,
                    in.count<std::uint32_t>(kMaxChunksPerState, "state chunk count is outside bounds"));
  for (std::uint32_t i = 0; i < count; ++i) {
    KVPACK_TRY_ASSIGN(const ChunkRef ref, read_chunk_ref(in));
    state.chunks.push_back(ref);
  }
  return state;
}

inline Result<CutManifest> read_manifest_body(CanonicalReader& in) {
  CutManifest manifest;
  KVPACK_TRY_ASSIGN(manifest.tenant, in.id());
  KVPACK_TRY_ASSIGN(manifest.key_epoch, in.le<std::uint64_t>());
  KVPACK_TRY_ASSIGN(manifest.semantic_model, read_semantic_model(in));
  KVPACK_TRY_ASSIGN(manifest.input_cut, read_input_cut(in));
  KVPACK_TRY_ASSIGN(manifest.family, read_family_body(in));
  KVPACK_TRY_ASSIGN(manifest.schema, read_schema_body(in));
  KVPACK_TRY_ASSIGN(const auto count,
                    in.count<std::uint32_t>(kMaxStates, "manifest state count is outside bounds"));
  for (std::uint32_t i = 0; i < count; ++i) {
    KVPACK_TRY_ASSIGN(PayloadState state, read_payload_state(in));
    manifest.payload.push_back(std::move(state));
  }
  return manifest;
}

/// M1 to M4.
inline Status validate_manifest_identity(const CutManifest& manifest) {
  if (manifest.tenant.is_zero()) return fail(ErrorCode::kSemantics, "tenant namespace is zero");
  if (manifest.key_epoch == 0) return fail(ErrorCode::kSemantics, "key epoch must be nonzero");
  const SemanticModelId& model = manifest.semantic_model;
  for (const Id32* id : {&model.weights_config, &model.adapters, &model.tokenizer_template,
                         &model.position_semantics, &model.qualified_math})
    if (id->is_zero())
      return fail(ErrorCode::kSemantics, "semantic model identity contains a zero component");
  const InputCutId& cut = manifest.input_cut;
  if (cut.token_root.is_zero() || cut.auxiliary_input_root.is_zero() || cut.token_count == 0)
    return fail(ErrorCode::kSemantics, "input cut identity is invalid");
  return success();
}

/// M6 to M8.
inline Status validate_manifest_kind(const ManifestKind& kind, const InputCutId& cut) {
  if (!kind.parent) return success();
  const DeltaParent& parent = *kind.parent;
  if (parent.manifest_id.is_zero() || parent.cut.token_root.is_zero() ||
      parent.cut.auxiliary_input_root.is_zero())
    return fail(ErrorCode::kGraph, "delta parent identity is invalid");
  if (kind.depth == 0 || kind.depth > kMaxDeltaDepth)
    return fail(ErrorCode::kGraph, "delta depth is outside 1..=7");
  if (parent.cut.auxiliary_input_root != cut.auxiliary_input_root || parent.cut.token_count == 0 ||
      parent.cut.token_count >= cut.token_count)
    return fail(ErrorCode::kGraph, "delta parent cut is not a compatible strict prefix");
  return success();
}

/// M10 to M14.
inline Status validate_groups(const RepresentationFamily& family, const std::vector<AtomicGroup>& groups) {
  std::vector<bool> grouped(family.states.size(), false);
  std::size_t covered = 0;
  std::uint32_t previous_id = 0;
  for (const AtomicGroup& group : groups) {
    if (group.id == 0 || group.id <= previous_id)
      return fail(ErrorCode::kSemantics, "atomic groups are not unique canonical order");
    previous_id = group.id;
    const StateKey* previous = nullptr;
    for (const StateKey& key : group.states) {
      const StaticState* found = find_state(family, key);
      if (found == nullptr)
        return in_state(fail(ErrorCode::kGraph, "atomic group names an unknown state"), key);
      if (previous != nullptr && key <= *previous)
        return in_state(fail(ErrorCode::kSemantics, "atomic-group states are not unique canonical order"),
                        key);
      previous = &key;
      const auto index = static_cast<std::size_t>(found - family.states.data());
      if (grouped[index])
        return in_state(fail(ErrorCode::kGraph, "state appears in multiple atomic groups"), key);
      grouped[index] = true;
      ++covered;
    }
  }
  if (covered != family.states.size())
    return fail(ErrorCode::kGraph, "atomic groups do not cover the complete family inventory");
  return success();
}

/// M17 and M18 of one shape.
inline Status validate_realized_shape(const StaticState& fixed, const Shape& shape, std::uint64_t tokens) {
  if (shape.dimensions.size() != fixed.dimensions.size())
    return fail(ErrorCode::kSemantics, "realized shape rank does not match family rank");
  for (std::size_t i = 0; i < shape.dimensions.size(); ++i)
    if (shape.dimensions[i] != (i == fixed.token_axis ? tokens : fixed.dimensions[i]))
      return fail(ErrorCode::kSemantics, "realized shape does not satisfy static family dimensions");
  return success();
}

/// M22 to M24.
inline Status validate_strides(const StaticState& fixed, const RealizedState& state) {
  const auto& dimensions = state.full_shape.dimensions;
  if (state.strides.size() != dimensions.size() ||
      std::ranges::find(state.strides, std::uint64_t{0}) != state.strides.end())
    return fail(ErrorCode::kSemantics, "realized state strides do not match its rank");
  if (fixed.layout != Layout::kContiguous) return success();
  std::uint64_t expected = 1;
  for (std::size_t i = dimensions.size(); i-- > 0;) {
    if (state.strides[i] != expected)
      return fail(ErrorCode::kSemantics, "contiguous state has noncanonical strides");
    const auto next = checked_mul(expected, dimensions[i]);
    if (!next) return fail(ErrorCode::kBounds, "contiguous stride calculation overflows u64");
    expected = *next;
  }
  return success();
}

inline Result<std::uint64_t> shape_bytes(const Shape& shape, std::uint32_t width, std::string_view overflow) {
  KVPACK_TRY_ASSIGN(const std::uint64_t elements, shape_elements(shape));
  const auto bytes = checked_mul<std::uint64_t>(elements, width);
  if (!bytes) return fail(ErrorCode::kBounds, std::string(overflow));
  return *bytes;
}

/// M16 to M29: range, shapes, strides and sizes of one state.
inline Result<StateGeometry> validate_geometry(const CutManifest& manifest, const StaticState& fixed,
                                               const RealizedState& state) {
  const std::uint64_t cut = manifest.input_cut.token_count;
  const bool tail = fixed.token_axis_rule == TokenAxisRule::kTailWindow;
  const auto& parent = manifest.schema.kind.parent;
  StateGeometry g;
  if (tail) {
    if (parent || state.logical_count == 0 || state.logical_count > cut)
      return fail(ErrorCode::kSemantics, "tail-window states require one nonempty full snapshot");
    g.logical_start = cut - state.logical_count;
    g.logical_count = state.logical_count;
    g.full_tokens = g.logical_count;
  } else {
    g.logical_start = parent ? parent->cut.token_count : 0;
    g.logical_count = cut - g.logical_start;
    g.full_tokens = cut;
  }
  KVPACK_TRY(validate_realized_shape(fixed, state.full_shape, g.full_tokens));
  KVPACK_TRY(validate_realized_shape(fixed, state.segment_shape, g.logical_count));
  if (state.logical_start != g.logical_start || state.logical_count != g.logical_count ||
      state.absolute_position != cut || state.window != 0)
    return fail(ErrorCode::kSemantics, "realized state range does not match the exact manifest cut");
  KVPACK_TRY(validate_strides(fixed, state));

  const std::uint32_t width = dtype_width_bytes(fixed.dtype);
  KVPACK_TRY_ASSIGN(g.segment_bytes,
                    shape_bytes(state.segment_shape, width, "segment byte count overflows u64"));
  KVPACK_TRY_ASSIGN(g.complete_bytes,
                    shape_bytes(state.full_shape, width, "complete byte count overflows u64"));
  const std::uint64_t first_token = tail ? 0 : g.logical_start;
  const auto offset_elements = checked_mul(first_token, state.strides[fixed.token_axis]);
  const auto offset = offset_elements ? checked_mul<std::uint64_t>(*offset_elements, width) : std::nullopt;
  if (!offset) return fail(ErrorCode::kBounds, "physical token offset overflows u64");
  g.physical_offset_bytes = *offset;
  KVPACK_TRY_ASSIGN(g.segment_span_bytes,
                    physical_footprint_bytes(state.segment_shape, state.strides, width));
  KVPACK_TRY_ASSIGN(g.complete_span_bytes, physical_footprint_bytes(state.full_shape, state.strides, width));
  if (state.physical_offset_bytes != g.physical_offset_bytes ||
      state.physical_span_bytes != g.segment_span_bytes ||
      state.complete_physical_bytes != g.complete_span_bytes)
    return fail(ErrorCode::kSemantics, "realized physical span is not canonical");
  return g;
}

/// M37 and M38.
inline Status validate_chunk_ref(const ChunkRef& ref) {
  if (ref.content_id.is_zero() || ref.object_key.is_zero() || ref.stored_object_digest.is_zero() ||
      ref.key_epoch == 0)
    return fail(ErrorCode::kSemantics, "chunk reference contains a zero identity");
  if (ref.object_bytes % kAlignment != 0 || ref.object_bytes <= kPageBytes ||
      ref.object_bytes > kMaxChunkObjectBytes)
    return fail(ErrorCode::kSemantics, "chunk object size is not aligned");
  return success();
}

/// M30 to M42: the spans partition the segment, and each has its reference.
inline Status validate_spans(const StaticState& fixed, const RealizedState& state,
                             const PayloadState& payload, const ManifestLimits& limits, StateGeometry& g) {
  if (state.chunk_spans.empty() || state.chunk_spans.size() > limits.max_chunks_per_state ||
      payload.chunks.size() != state.chunk_spans.size())
    return fail(ErrorCode::kBounds, "state chunk count is outside bounds");
  const auto bytes_per_token =
      checked_mul<std::uint64_t>(fixed.elements_per_token, dtype_width_bytes(fixed.dtype));
  if (!bytes_per_token) return fail(ErrorCode::kBounds, "bytes per token overflows u64");
  if (*bytes_per_token == 0 || *bytes_per_token > kMaxChunkPlaintextBytes)
    return fail(ErrorCode::kBounds, "one state token does not fit in a bounded chunk");
  g.bytes_per_token = *bytes_per_token;
  const auto base = checked_mul(g.logical_start, g.bytes_per_token);
  if (!base) return fail(ErrorCode::kBounds, "state plaintext base offset overflows u64");

  std::uint64_t token = g.logical_start;
  std::uint64_t offset = *base;
  for (std::size_t i = 0; i < state.chunk_spans.size(); ++i) {
    const ChunkSpan& span = state.chunk_spans[i];
    const ChunkRef& ref = payload.chunks[i];
    if (span.token_start != token || span.token_count == 0 || span.plaintext_offset != offset)
      return fail(ErrorCode::kSemantics, "chunk spans are not a contiguous token/byte partition")
          .with("tokens", token_range_text(span));
    const auto bytes = checked_mul(span.token_count, g.bytes_per_token);
    if (!bytes) return fail(ErrorCode::kBounds, "chunk span byte count overflows u64");
    if (*bytes != span.plaintext_bytes || *bytes == 0 || *bytes > kMaxChunkPlaintextBytes ||
        ref.plaintext_bytes != span.plaintext_bytes)
      return fail(ErrorCode::kSemantics, "chunk span has a noncanonical plaintext size")
          .with("tokens", token_range_text(span));
    if (auto status = validate_chunk_ref(ref); !status.has_value())
      return std::move(status.error()).with("tokens", token_range_text(span));
    const auto next_token = checked_add(token, span.token_count);
    if (!next_token) return fail(ErrorCode::kBounds, "chunk token range overflows u64");
    const auto next_offset = checked_add(offset, *bytes);
    if (!next_offset) return fail(ErrorCode::kBounds, "chunk byte range overflows u64");
    token = *next_token;
    offset = *next_offset;
  }
  const auto end_token = checked_add(g.logical_start, g.logical_count);
  if (!end_token) return fail(ErrorCode::kBounds, "state token range overflows u64");
  const auto end_offset = checked_mul(*end_token, g.bytes_per_token);
  if (!end_offset) return fail(ErrorCode::kBounds, "state plaintext end offset overflows u64");
  if (token != *end_token || offset != *end_offset)
    return fail(ErrorCode::kSemantics, "chunk spans do not cover the complete realized state segment");
  return success();
}

}  // namespace detail

inline Result<std::vector<std::uint64_t>> contiguous_strides(const Shape& shape) {
  std::vector<std::uint64_t> strides(shape.dimensions.size());
  std::uint64_t stride = 1;
  for (std::size_t i = strides.size(); i-- > 0;) {
    strides[i] = stride;
    const auto next = checked_mul(stride, shape.dimensions[i]);
    if (!next) return fail(ErrorCode::kBounds, "contiguous stride calculation overflows u64");
    stride = *next;
  }
  return strides;
}

inline Result<std::uint64_t> physical_footprint_bytes(const Shape& shape,
                                                      std::span<const std::uint64_t> strides,
                                                      std::uint32_t width_bytes) {
  const auto overflow = [] { return fail(ErrorCode::kBounds, "state physical footprint overflows u64"); };
  std::uint64_t last_element = 0;
  for (std::size_t i = 0; i < shape.dimensions.size(); ++i) {
    const auto reach = checked_mul(shape.dimensions[i] - 1, strides[i]);
    const auto sum = reach ? checked_add(last_element, *reach) : std::nullopt;
    if (!sum) return overflow();
    last_element = *sum;
  }
  const auto elements = checked_add<std::uint64_t>(last_element, 1);
  const auto bytes = elements ? checked_mul<std::uint64_t>(*elements, width_bytes) : std::nullopt;
  if (!bytes) return overflow();
  return *bytes;
}

inline Id32 manifest_id(ByteSpan canonical_plaintext) {
  return hashed_identity(with_nul("kvpack/v1/manifest"), canonical_plaintext);
}

inline Result<Bytes> encode_manifest(const CutManifest& manifest) {
  ByteWriter out;
  write_object_prefix(out, kManifestTexts.magic);
  out.bytes(manifest.tenant);
  out.le(manifest.key_epoch);
  write_semantic_model(out, manifest.semantic_model);
  write_input_cut(out, manifest.input_cut);
  KVPACK_TRY(write_family_body(out, manifest.family));
  KVPACK_TRY(write_schema_body(out, manifest.schema));
  if (manifest.payload.empty() || manifest.payload.size() > kMaxStates)
    return fail(ErrorCode::kBounds, "manifest state count is outside bounds");
  out.le(static_cast<std::uint32_t>(manifest.payload.size()));
  for (const PayloadState& state : manifest.payload) KVPACK_TRY(detail::write_payload_state(out, state));
  return std::move(out).take();
}

inline Result<CutManifest> decode_manifest(ByteSpan bytes) {
  if (bytes.size() > kMaxManifestBytes) return fail(ErrorCode::kBounds, std::string(kManifestTooLarge));
  return decode_object<CutManifest>(bytes, kManifestTexts, detail::read_manifest_body, encode_manifest);
}

inline Status validate_manifest(const CutManifest& manifest, const ManifestLimits& asked) {
  const ManifestLimits limits{
      .max_states = std::min(asked.max_states, kMaxStates),
      .max_chunks_per_state = std::min(asked.max_chunks_per_state, kMaxChunksPerState),
      .max_restored_bytes = std::min(asked.max_restored_bytes, kDefaultMaxRestoredBytes)};
  KVPACK_TRY(detail::validate_manifest_identity(manifest));
  KVPACK_TRY(validate_family(manifest.family));
  KVPACK_TRY(detail::validate_manifest_kind(manifest.schema.kind, manifest.input_cut));
  const std::size_t count = manifest.family.states.size();
  const RealizedCutSchema& schema = manifest.schema;
  if (schema.states.size() != count || manifest.payload.size() != count || count > limits.max_states)
    return fail(ErrorCode::kBounds, "manifest, family, and schema state counts differ or exceed bounds");
  KVPACK_TRY(detail::validate_groups(manifest.family, schema.groups));

  std::uint64_t segment_total = 0;
  std::uint64_t complete_total = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const StaticState& fixed = manifest.family.states[i];
    const RealizedState& state = schema.states[i];
    const PayloadState& payload = manifest.payload[i];
    if (fixed.key != state.key || state.key != payload.key)
      return in_state(fail(ErrorCode::kSemantics, "family, realized schema, and payload state order differ"),
                      fixed.key);
    auto geometry = detail::validate_geometry(manifest, fixed, state);
    if (!geometry.has_value()) return in_state(std::move(geometry.error()), fixed.key);
    if (auto status = detail::validate_spans(fixed, state, payload, limits, *geometry); !status.has_value())
      return in_state(std::move(status.error()), fixed.key);
    const auto segment = checked_add(segment_total, geometry->segment_bytes);
    if (!segment) return fail(ErrorCode::kBounds, "segment restored byte total overflows u64");
    const auto complete = checked_add(complete_total, geometry->complete_bytes);
    if (!complete) return fail(ErrorCode::kBounds, "complete restored byte total overflows u64");
    segment_total = *segment;
    complete_total = *complete;
  }
  if (schema.segment_restored_bytes != segment_total || schema.complete_restored_bytes != complete_total ||
      complete_total > limits.max_restored_bytes)
    return fail(ErrorCode::kBounds, "manifest restored byte totals are invalid");
  return success();
}

}  // namespace kvpack
