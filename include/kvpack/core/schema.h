/// Realized cut schema KVRCS1: what a family looks like at one cut, and how it is cut into chunks.
/// Layout: docs/format/schema.md. What it must satisfy is judged with the manifest (core/manifest.h).
#pragma once

#include <optional>
#include <vector>

#include "kvpack/core/identity.h"
#include "kvpack/core/state.h"

namespace kvpack {

/// What a delta stands on.
struct DeltaParent {
  Id32 manifest_id;
  InputCutId cut;

  friend bool operator==(const DeltaParent&, const DeltaParent&) = default;
};

/// Full (no parent, depth 0) or a delta of depth 1 to 7 on a parent.
struct ManifestKind {
  std::uint8_t depth = 0;
  std::optional<DeltaParent> parent{};

  bool is_delta() const noexcept { return parent.has_value(); }
  friend bool operator==(const ManifestKind&, const ManifestKind&) = default;
};

/// One state at this cut. Positions are tokens of the whole input; strides are elements of the full shape.
struct RealizedState {
  StateKey key;
  Shape full_shape;     ///< The complete state.
  Shape segment_shape;  ///< The part that this manifest carries.
  std::vector<std::uint64_t> strides{};
  std::uint64_t logical_start = 0;
  std::uint64_t logical_count = 0;
  std::uint64_t physical_offset_bytes = 0;
  std::uint64_t physical_span_bytes = 0;
  std::uint64_t complete_physical_bytes = 0;
  std::uint64_t absolute_position = 0;
  std::uint64_t window = 0;
  std::vector<ChunkSpan> chunk_spans{};

  friend bool operator==(const RealizedState&, const RealizedState&) = default;
};

/// States that are restored together or not at all.
struct AtomicGroup {
  std::uint32_t id = 0;
  std::vector<StateKey> states{};

  friend bool operator==(const AtomicGroup&, const AtomicGroup&) = default;
};

struct RealizedCutSchema {
  ManifestKind kind;
  std::vector<RealizedState> states{};
  std::vector<AtomicGroup> groups{};
  std::uint64_t segment_restored_bytes = 0;
  std::uint64_t complete_restored_bytes = 0;

  friend bool operator==(const RealizedCutSchema&, const RealizedCutSchema&) = default;
};

/// The standalone object. @error kBounds a count, rank or name does not fit
Result<Bytes> encode_schema(const RealizedCutSchema& schema);
/// Decodes and proves canonicity; does not validate. @error kTruncated kBadMagic kReserved kUnknownEnum
/// kBounds kSemantics
Result<RealizedCutSchema> decode_schema(ByteSpan bytes);
/// @error kBounds the schema cannot be encoded
Result<Id32> realized_cut_schema_id(const RealizedCutSchema& schema);

/// Body without the 12-byte object prefix, as manifests embed it.
Status write_schema_body(ByteWriter& out, const RealizedCutSchema& schema);
Result<RealizedCutSchema> read_schema_body(CanonicalReader& in);

// ---------------------------------------------------------------------------------------------------------------

inline constexpr ObjectTexts kSchemaTexts{magic("KVRCS1"), "unsupported realized-schema version",
                                          "realized-schema reserved field is nonzero",
                                          "realized-schema encoding is not canonical"};

namespace detail {

inline constexpr std::uint8_t kFullTag = 0;
inline constexpr std::uint8_t kDeltaTag = 1;

inline void write_manifest_kind(ByteWriter& out, const ManifestKind& kind) {
  out.le(kind.is_delta() ? kDeltaTag : kFullTag);
  out.le(kind.is_delta() ? kind.depth : std::uint8_t{0});
  out.le(std::uint16_t{0});
  if (!kind.parent) return;
  out.bytes(kind.parent->manifest_id);
  write_input_cut(out, kind.parent->cut);
}

inline Result<ManifestKind> read_manifest_kind(CanonicalReader& in) {
  KVPACK_TRY_ASSIGN(const auto tag, in.le<std::uint8_t>());
  ManifestKind kind;
  KVPACK_TRY_ASSIGN(kind.depth, in.le<std::uint8_t>());
  KVPACK_TRY(in.zero<std::uint16_t>("manifest-kind reserved field is nonzero"));
  if (tag == kFullTag) {
    if (kind.depth != 0) return fail(ErrorCode::kReserved, "full manifest carries a delta depth");
    return kind;
  }
  if (tag != kDeltaTag) return fail_unknown_enum("manifest kind", tag);
  DeltaParent parent;
  KVPACK_TRY_ASSIGN(parent.manifest_id, in.id());
  KVPACK_TRY_ASSIGN(parent.cut, read_input_cut(in));
  kind.parent = parent;
  return kind;
}

/// Shared with the state declaration: `u8 count || count x u64`.
inline Status write_strides(ByteWriter& out, const std::vector<std::uint64_t>& strides) {
  if (strides.size() > kMaxRank) return fail(ErrorCode::kBounds, "too many state strides");
  out.le(static_cast<std::uint8_t>(strides.size()));
  for (const std::uint64_t s : strides) out.le(s);
  return success();
}

inline Result<std::vector<std::uint64_t>> read_strides(CanonicalReader& in) {
  KVPACK_TRY_ASSIGN(const auto count, in.le<std::uint8_t>());
  if (count > kMaxRank) return fail(ErrorCode::kBounds, "too many state strides");
  std::vector<std::uint64_t> strides;
  for (std::uint8_t i = 0; i < count; ++i) {
    KVPACK_TRY_ASSIGN(const auto s, in.le<std::uint64_t>());
    strides.push_back(s);
  }
  return strides;
}

inline Status write_realized_state(ByteWriter& out, const RealizedState& state) {
  KVPACK_TRY(write_state_key(out, state.key));
  KVPACK_TRY(write_shape(out, state.full_shape));
  KVPACK_TRY(write_shape(out, state.segment_shape));
  KVPACK_TRY(write_strides(out, state.strides));
  for (const std::uint64_t v :
       {state.logical_start, state.logical_count, state.physical_offset_bytes, state.physical_span_bytes,
        state.complete_physical_bytes, state.absolute_position, state.window})
    out.le(v);
  if (state.chunk_spans.empty() || state.chunk_spans.size() > kMaxChunksPerState)
    return fail(ErrorCode::kBounds, "state chunk-span count is outside bounds");
  out.le(static_cast<std::uint32_t>(state.chunk_spans.size()));
  for (const ChunkSpan& span : state.chunk_spans) write_chunk_span(out, span);
  return success();
}

inline Result<RealizedState> read_realized_state(CanonicalReader& in) {
  RealizedState state;
  KVPACK_TRY_ASSIGN(state.key, read_state_key(in));
  KVPACK_TRY_ASSIGN(state.full_shape, read_shape(in));
  KVPACK_TRY_ASSIGN(state.segment_shape, read_shape(in));
  KVPACK_TRY_ASSIGN(state.strides, read_strides(in));
  for (std::uint64_t* v :
       {&state.logical_start, &state.logical_count, &state.physical_offset_bytes, &state.physical_span_bytes,
        &state.complete_physical_bytes, &state.absolute_position, &state.window}) {
    KVPACK_TRY_ASSIGN(*v, in.le<std::uint64_t>());
  }
  KVPACK_TRY_ASSIGN(const auto count,
                    in.count<std::uint32_t>(kMaxChunksPerState, "state chunk-span count is outside bounds"));
  for (std::uint32_t i = 0; i < count; ++i) {
    KVPACK_TRY_ASSIGN(const ChunkSpan span, read_chunk_span(in));
    state.chunk_spans.push_back(span);
  }
  return state;
}

inline Status write_atomic_group(ByteWriter& out, const AtomicGroup& group) {
  if (group.states.empty() || group.states.size() > kMaxStates)
    return fail(ErrorCode::kBounds, "atomic-group state count is outside bounds");
  out.le(group.id);
  out.le(static_cast<std::uint32_t>(group.states.size()));
  for (const StateKey& key : group.states) KVPACK_TRY(write_state_key(out, key));
  return success();
}

inline Result<AtomicGroup> read_atomic_group(CanonicalReader& in) {
  AtomicGroup group;
  KVPACK_TRY_ASSIGN(group.id, in.le<std::uint32_t>());
  KVPACK_TRY_ASSIGN(const auto count,
                    in.count<std::uint32_t>(kMaxStates, "atomic-group state count is outside bounds"));
  for (std::uint32_t i = 0; i < count; ++i) {
    KVPACK_TRY_ASSIGN(StateKey key, read_state_key(in));
    group.states.push_back(std::move(key));
  }
  return group;
}

}  // namespace detail

inline Status write_schema_body(ByteWriter& out, const RealizedCutSchema& schema) {
  detail::write_manifest_kind(out, schema.kind);
  if (schema.states.empty() || schema.states.size() > kMaxStates)
    return fail(ErrorCode::kBounds, "realized state count is outside bounds");
  out.le(static_cast<std::uint32_t>(schema.states.size()));
  for (const RealizedState& state : schema.states) KVPACK_TRY(detail::write_realized_state(out, state));
  if (schema.groups.empty() || schema.groups.size() > kMaxAtomicGroups)
    return fail(ErrorCode::kBounds, "atomic-group count is outside bounds");
  out.le(static_cast<std::uint32_t>(schema.groups.size()));
  for (const AtomicGroup& group : schema.groups) KVPACK_TRY(detail::write_atomic_group(out, group));
  out.le(schema.segment_restored_bytes);
  out.le(schema.complete_restored_bytes);
  return success();
}

inline Result<RealizedCutSchema> read_schema_body(CanonicalReader& in) {
  RealizedCutSchema schema;
  KVPACK_TRY_ASSIGN(schema.kind, detail::read_manifest_kind(in));
  KVPACK_TRY_ASSIGN(const auto states,
                    in.count<std::uint32_t>(kMaxStates, "realized state count is outside bounds"));
  for (std::uint32_t i = 0; i < states; ++i) {
    KVPACK_TRY_ASSIGN(RealizedState state, detail::read_realized_state(in));
    schema.states.push_back(std::move(state));
  }
  KVPACK_TRY_ASSIGN(const auto groups,
                    in.count<std::uint32_t>(kMaxAtomicGroups, "atomic-group count is outside bounds"));
  for (std::uint32_t i = 0; i < groups; ++i) {
    KVPACK_TRY_ASSIGN(AtomicGroup group, detail::read_atomic_group(in));
    schema.groups.push_back(std::move(group));
  }
  KVPACK_TRY_ASSIGN(schema.segment_restored_bytes, in.le<std::uint64_t>());
  KVPACK_TRY_ASSIGN(schema.complete_restored_bytes, in.le<std::uint64_t>());
  return schema;
}

inline Result<Bytes> encode_schema(const RealizedCutSchema& schema) {
  ByteWriter out;
  write_object_prefix(out, kSchemaTexts.magic);
  KVPACK_TRY(write_schema_body(out, schema));
  return std::move(out).take();
}

inline Result<RealizedCutSchema> decode_schema(ByteSpan bytes) {
  return decode_object<RealizedCutSchema>(bytes, kSchemaTexts, read_schema_body, encode_schema);
}

inline Result<Id32> realized_cut_schema_id(const RealizedCutSchema& schema) {
  KVPACK_TRY_ASSIGN(const Bytes object, encode_schema(schema));
  return hashed_identity(with_nul("kvpack/v1/realized-cut-schema"), object);
}

}  // namespace kvpack
