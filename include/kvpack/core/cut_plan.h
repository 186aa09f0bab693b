/// What a cut to be written consists of, judged before the first chunk is. docs/format/chain.md §Writing
#pragma once

#include <algorithm>
#include <vector>

#include "kvpack/core/chain.h"
#include "kvpack/core/plane.h"
#include "kvpack/core/prefix_chain.h"
#include "kvpack/core/span_policy.h"

namespace kvpack {

/// One state's memory, as the caller has it. It is read only during the call and must keep still.
struct PlaneView {
  ByteSpan bytes;  ///< Holds tokens [token_start, token_start + token_count).
  std::uint64_t token_start = 0;
  std::uint64_t token_count = 0;
  std::vector<std::uint64_t> byte_strides{};  ///< One per dimension; empty for a row-major plane.
};

/// Everything that a cut is made of. What is pointed to must outlive the call.
struct CutInput {
  const KeySchedule* keys = nullptr;
  const IdentifiedFamily* family = nullptr;
  SemanticModelId semantic_model{};
  std::span<const AuxiliaryInputId> auxiliary{};
  std::span<const std::uint32_t> tokens{};  ///< The complete list of the cut, for a delta too.
  /// A cut that is known by its identity alone, as after a restore: `tokens` and `auxiliary` are then empty,
  /// there are no prefix nodes, and a parent cannot be proved.
  const InputCutId* known_cut = nullptr;
  std::span<const PlaneView>
      planes{};  ///< One per state, in family order. A tail-window plane holds its window.
  std::span<const AtomicGroup> groups{};  ///< Empty: one group of all states.
  std::span<const std::uint16_t>
      sidecar_sinks{};  ///< Per state the sinks of its statistics sidecar, 0 none; or empty.
  SpanPolicy spans{};
  /// Per state the token counts of its chunks in order, or an empty list where the policy chooses; or empty.
  std::span<const std::vector<std::uint64_t>> chunk_tokens{};
  bool encrypt_chunks = false;
  bool encrypt_manifest = false;
  const ManifestChain* parent =
      nullptr;               ///< Writes a delta on this cut; at depth 7 a full manifest by reference.
  unsigned parallelism = 1;  ///< Threads. Changes no byte and no verdict.
  /// Hash chunks, as many together as they can; must outlive the writer. Change no byte and no verdict.
  const Sha256Kernels* sha256 = &kOpensslSha256;
};

/// Whether a cut's planes are there when it is planned, or come state by state.
enum class PlaneBytes : std::uint8_t {
  kGiven,  ///< Each plane's `bytes` is proved to hold its shape.
  kLater,  ///< `bytes` are not looked at; the rest of a PlaneView says how they will lie.
};

/// One state on its way into a manifest.
struct StatePlan {
  const StaticState* fixed = nullptr;
  std::uint64_t plane_start = 0;  ///< First token of the plane.
  PlaneLayout layout{};           ///< Of the plane.
  RealizedState realized{};
  std::vector<ChunkRef> refs{};  ///< One per span; those of chunks that have not been written are empty.
  std::uint16_t sinks = 0;       ///< Of its statistics sidecars.
};

// ---------------------------------------------------------------------------------------------------------------

namespace detail {

inline Error bad_plane(const StaticState& state, std::string message) {
  return in_state(fail(ErrorCode::kState, std::move(message)), state.key);
}

inline Status check_plane_size(const StatePlan& plan, ByteSpan bytes) {
  if (plan.layout.footprint_bytes() <= bytes.size()) return success();
  return bad_plane(*plan.fixed, "plane is shorter than its shape")
      .with("found", std::to_string(bytes.size()))
      .with("expected", std::to_string(plan.layout.footprint_bytes()));
}

/// The realized strides, in elements: the plane's own for a strided state, row-major otherwise.
inline Result<std::vector<std::uint64_t>> realized_strides(const StaticState& fixed,
                                                           std::span<const std::uint64_t> byte_strides,
                                                           const Shape& full_shape) {
  if (fixed.layout == Layout::kContiguous || byte_strides.empty()) return contiguous_strides(full_shape);
  std::vector<std::uint64_t> strides(byte_strides.begin(), byte_strides.end());
  for (std::uint64_t& stride : strides) stride /= dtype_width_bytes(fixed.dtype);
  return strides;
}

/// Range, shapes, strides and sizes of one state in a manifest that carries tokens [start, cut); no spans
/// yet.
/// @param byte_strides  of the plane, valid for the state; or empty
inline Result<RealizedState> realize_state(const StaticState& fixed,
                                           std::span<const std::uint64_t> byte_strides, std::uint64_t start,
                                           std::uint64_t cut) {
  const bool tail = fixed.token_axis_rule == TokenAxisRule::kTailWindow;
  const std::uint32_t width = dtype_width_bytes(fixed.dtype);
  RealizedState r;
  r.key = fixed.key;
  r.logical_start = start;
  r.logical_count = cut - start;
  r.absolute_position = cut;
  r.full_shape = shape_with_tokens(fixed, tail ? r.logical_count : cut);
  r.segment_shape = shape_with_tokens(fixed, r.logical_count);
  KVPACK_TRY_ASSIGN(r.strides, realized_strides(fixed, byte_strides, r.full_shape));
  // The footprint proves that the sums of the overlap test fit; it is of the whole cut, not of one plane.
  KVPACK_TRY_ASSIGN(r.complete_physical_bytes, physical_footprint_bytes(r.full_shape, r.strides, width));
  if (strides_may_overlap(r.full_shape, r.strides))
    return in_state(fail(ErrorCode::kSemantics, "strided state cannot be restored: its elements overlap"),
                    fixed.key);
  const auto offset_elements = checked_mul(tail ? 0 : start, r.strides[fixed.token_axis]);
  const auto offset = offset_elements ? checked_mul<std::uint64_t>(*offset_elements, width) : std::nullopt;
  if (!offset) return fail(ErrorCode::kBounds, "physical token offset overflows u64");
  r.physical_offset_bytes = *offset;
  KVPACK_TRY_ASSIGN(r.physical_span_bytes, physical_footprint_bytes(r.segment_shape, r.strides, width));
  return r;
}

/// Everything about one state but its spans. A plane that is given is proved to hold what will be read.
inline Result<StatePlan> plan_state(const StaticState& fixed, const PlaneView& plane, PlaneBytes bytes,
                                    std::uint64_t cut, std::uint64_t parent_tokens) {
  const bool tail = fixed.token_axis_rule == TokenAxisRule::kTailWindow;
  const auto plane_end = checked_add(plane.token_start, plane.token_count);
  const std::uint64_t start = tail ? plane.token_start : parent_tokens;
  if (!plane_end || plane.token_count == 0 || *plane_end != cut || plane.token_start > start)
    return bad_plane(fixed, "plane does not hold the tokens of the cut");
  if (tail && parent_tokens != 0)
    return in_state(fail(ErrorCode::kSemantics, "tail-window states require one nonempty full snapshot"),
                    fixed.key);

  StatePlan plan{.fixed = &fixed, .plane_start = plane.token_start};
  auto layout = plane.byte_strides.empty()
                    ? PlaneLayout::row_major(fixed, plane.token_count)
                    : PlaneLayout::strided(fixed, plane.token_count, plane.byte_strides);
  if (!layout.has_value()) return in_state(std::move(layout.error()), fixed.key);
  plan.layout = *std::move(layout);
  if (bytes == PlaneBytes::kGiven) KVPACK_TRY(check_plane_size(plan, plane.bytes));
  KVPACK_TRY_ASSIGN(plan.realized, realize_state(fixed, plane.byte_strides, start, cut));
  return plan;
}

/// Spans of the token counts that the caller chose.
inline Result<std::vector<ChunkSpan>> given_spans(const StaticState& fixed, const RealizedState& state,
                                                  std::span<const std::uint64_t> token_counts) {
  const auto refuse = [] {
    return fail(ErrorCode::kState, "given chunk token counts do not partition the state");
  };
  KVPACK_TRY_ASSIGN(const std::uint64_t bytes_per_token,
                    check_span_range(fixed, state.logical_start, state.logical_count));
  if (token_counts.size() > kMaxChunksPerState)
    return fail(ErrorCode::kBounds, "state chunk count is outside bounds");
  std::vector<ChunkSpan> spans;
  std::uint64_t token = state.logical_start;
  const std::uint64_t end = state.logical_start + state.logical_count;
  for (const std::uint64_t count : token_counts) {
    if (count == 0 || count > end - token || count > kMaxChunkPlaintextBytes / bytes_per_token)
      return refuse();
    spans.push_back(
        {token, count, token * bytes_per_token, static_cast<std::uint32_t>(count * bytes_per_token)});
    token += count;
  }
  if (token != end) return refuse();
  return spans;
}

/// Chooses the spans of a planned state and makes room for their references.
inline Status plan_chunks(const CutInput& input, std::size_t index, StatePlan& plan) {
  const StaticState& fixed = *plan.fixed;
  RealizedState& r = plan.realized;
  const bool chosen = !input.chunk_tokens.empty() && !input.chunk_tokens[index].empty();
  auto spans = chosen ? given_spans(fixed, r, input.chunk_tokens[index])
                      : plan_spans(fixed, r.logical_start, r.logical_count, input.spans);
  if (!spans.has_value()) return in_state(std::move(spans.error()), fixed.key);
  r.chunk_spans = *std::move(spans);
  plan.refs.resize(r.chunk_spans.size());
  return success();
}

/// The rules for standing on a parent: it is a strict prefix under the same identity and in the active epoch.
inline Status check_delta_parent(const CutInput& input, const Id32& auxiliary_root) {
  const CutManifest& parent = input.parent->head();
  const std::uint64_t parent_tokens = parent.input_cut.token_count;
  if (parent_tokens >= input.tokens.size())
    return fail(ErrorCode::kExpectation, "delta parent cut is not a strict prefix of the child input");
  PrefixChain chain(*input.keys, input.semantic_model, input.family->id(), auxiliary_root);
  std::vector<PrefixNode> nodes;
  chain.push(input.tokens.first(static_cast<std::size_t>(parent_tokens)), nodes);
  chain.finish(nodes);
  if (chain.tip() != parent.input_cut.token_root || auxiliary_root != parent.input_cut.auxiliary_input_root)
    return fail(ErrorCode::kExpectation, "delta parent cut does not identify the exact child prefix");
  const std::uint64_t epoch = input.keys->epoch();
  const bool chunks_in_epoch = std::ranges::all_of(parent.payload, [&](const PayloadState& state) {
    return std::ranges::all_of(state.chunks, [&](const ChunkRef& ref) { return ref.key_epoch == epoch; });
  });
  if (parent.semantic_model != input.semantic_model || parent.family != input.family->family() ||
      parent.tenant != input.keys->tenant() || parent.key_epoch != epoch || !chunks_in_epoch)
    return fail(ErrorCode::kExpectation, "delta parent is not compatible with the declared child");
  return success();
}

/// The eighth append compacts: what it needs is checked before anything is written.
inline Status check_compaction(const ManifestChain& chain, const std::vector<StatePlan>& plans) {
  if (chain.links().size() != kMaxChainLinks)
    return fail(ErrorCode::kAuthentication, "reference compaction requires one full base plus seven deltas");
  for (std::size_t i = 0; i < plans.size(); ++i) {
    std::size_t chunks = plans[i].refs.size();
    for (const ChainLink& link : chain.links()) chunks += link.manifest.payload[i].chunks.size();
    if (chunks > kMaxChunksPerState)
      return in_state(fail(ErrorCode::kQuota, "reference compaction exceeds its authenticated chunk bound"),
                      plans[i].fixed->key);
  }
  return success();
}

/// Widens a delta's segments to the whole cut: the parents' chunks by reference, then its own. Nothing is
/// re-encoded.
inline void compact_by_reference(const ManifestChain& chain, std::vector<StatePlan>& plans) {
  for (std::size_t i = 0; i < plans.size(); ++i) {
    RealizedState& r = plans[i].realized;
    std::vector<ChunkSpan> spans;
    std::vector<ChunkRef> refs;
    for (const ChainLink& link : chain.links()) {
      const auto& old_spans = link.manifest.schema.states[i].chunk_spans;
      const auto& old_refs = link.manifest.payload[i].chunks;
      spans.insert(spans.end(), old_spans.begin(), old_spans.end());
      refs.insert(refs.end(), old_refs.begin(), old_refs.end());
    }
    spans.insert(spans.end(), r.chunk_spans.begin(), r.chunk_spans.end());
    refs.insert(refs.end(), plans[i].refs.begin(), plans[i].refs.end());
    r.segment_shape = r.full_shape;
    r.logical_start = 0;
    r.logical_count = r.absolute_position;
    r.physical_offset_bytes = 0;
    r.physical_span_bytes = r.complete_physical_bytes;
    r.chunk_spans = std::move(spans);
    plans[i].refs = std::move(refs);
  }
}

inline std::vector<AtomicGroup> one_group_of_all(const RepresentationFamily& family) {
  AtomicGroup all{.id = 1};
  for (const StaticState& state : family.states) all.states.push_back(state.key);
  return {all};
}

/// Plans every state after the input has been checked against the family.
inline Result<std::vector<StatePlan>> plan_cut(const CutInput& input, PlaneBytes bytes,
                                               std::uint64_t token_count, std::uint64_t parent_tokens) {
  const auto& states = input.family->family().states;
  if (input.planes.size() != states.size())
    return fail(ErrorCode::kState, "one plane is needed for each state of the family")
        .with("found", std::to_string(input.planes.size()))
        .with("expected", std::to_string(states.size()));
  if (!input.sidecar_sinks.empty() && input.sidecar_sinks.size() != states.size())
    return fail(ErrorCode::kState, "one sidecar sink count is needed for each state of the family");
  if (!input.chunk_tokens.empty() && input.chunk_tokens.size() != states.size())
    return fail(ErrorCode::kState, "one list of chunk token counts is needed for each state of the family");
  std::vector<StatePlan> plans;
  plans.reserve(states.size());
  for (std::size_t i = 0; i < states.size(); ++i) {
    KVPACK_TRY_ASSIGN(StatePlan plan,
                      plan_state(states[i], input.planes[i], bytes, token_count, parent_tokens));
    KVPACK_TRY(plan_chunks(input, i, plan));
    if (!input.sidecar_sinks.empty()) plan.sinks = input.sidecar_sinks[i];
    if (plan.sinks != 0 && states[i].dtype != DType::kF16)
      return bad_plane(states[i], "statistics sidecars are for f16 states");
    plans.push_back(std::move(plan));
  }
  return plans;
}

/// The identity of the input and its prefix nodes, derived from tokens or taken as known.
inline Result<DerivedInput> identify_input(const CutInput& input) {
  if (input.known_cut == nullptr) {
    if (input.tokens.empty())
      return fail(ErrorCode::kState, "zero is a recomputation cut, not a durable artifact");
    return derive_input(*input.keys, input.semantic_model, input.family->id(), input.auxiliary, input.tokens);
  }
  if (!input.tokens.empty() || !input.auxiliary.empty() || input.parent != nullptr)
    return fail(ErrorCode::kState, "a cut known by identity takes no tokens, auxiliary inputs or parent");
  return DerivedInput{*input.known_cut, {}};
}

/// Byte totals of the schema. @error kBounds they overflow
inline Status sum_restored_bytes(const std::vector<StatePlan>& plans, RealizedCutSchema& schema) {
  for (const StatePlan& plan : plans) {
    const std::uint32_t width = dtype_width_bytes(plan.fixed->dtype);
    KVPACK_TRY_ASSIGN(const std::uint64_t segment,
                      shape_bytes(plan.realized.segment_shape, width, "segment byte count overflows u64"));
    KVPACK_TRY_ASSIGN(const std::uint64_t complete,
                      shape_bytes(plan.realized.full_shape, width, "complete byte count overflows u64"));
    const auto segment_sum = checked_add(schema.segment_restored_bytes, segment);
    const auto complete_sum = checked_add(schema.complete_restored_bytes, complete);
    if (!segment_sum) return fail(ErrorCode::kBounds, "segment restored byte total overflows u64");
    if (!complete_sum) return fail(ErrorCode::kBounds, "complete restored byte total overflows u64");
    schema.segment_restored_bytes = *segment_sum;
    schema.complete_restored_bytes = *complete_sum;
  }
  return success();
}

}  // namespace detail

}  // namespace kvpack
