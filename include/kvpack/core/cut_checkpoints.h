/// Many cuts from one pass over a state: a chain of checkpoints. docs/format/chain.md §Checkpoints
#pragma once

#include "kvpack/core/cut_writer.h"

namespace kvpack {

/// The manifests of a written cut at every multiple of the stride and at its end, in order: a full one, then
/// deltas on the one before, and behind a delta of depth 7 a full one again.
/// @param writer  all its states are written; it stands on no parent, knows its tokens, has no tail-window
///                state, and no chunk crosses a multiple of the stride (SpanPolicy::Rule::kCheckpoints)
/// @param stride_tokens  a multiple of 256, not zero
/// @error kState `cut-aware chunk inventory does not cover the exact manifest range`; as encode_pack
Result<std::vector<BuiltCut>> build_checkpoints(const CutWriter& writer, std::uint64_t stride_tokens,
                                                const ChunkSink& sink, RandomSource& random);

/// The nodes at which build_checkpoints makes manifests.
/// @param nodes  of the whole input, ascending
std::vector<PrefixNode> checkpoint_nodes(std::span<const PrefixNode> nodes, std::uint64_t stride_tokens);

// ---------------------------------------------------------------------------------------------------------------

namespace detail {

/// The chunks of a state that lie in tokens [start, cut).
inline Status select_chunks(const StatePlan& plan, const ChunkSink& sink, std::uint64_t start,
                            std::uint64_t cut, RealizedState& realized, PayloadState& payload) {
  const auto& spans = plan.realized.chunk_spans;
  const auto by_start = [](const ChunkSpan& span) { return span.token_start; };
  const auto first = std::ranges::lower_bound(spans, start, {}, by_start);
  const auto last = std::ranges::lower_bound(first, spans.end(), cut, {}, by_start);
  if (first == last || first->token_start != start ||
      std::prev(last)->token_start + std::prev(last)->token_count != cut)
    return in_state(
        fail(ErrorCode::kState, "cut-aware chunk inventory does not cover the exact manifest range"),
        plan.fixed->key);
  realized.chunk_spans.assign(first, last);
  for (auto i = first; i != last; ++i)
    payload.chunks.push_back(sink.settled(plan.refs[static_cast<std::size_t>(i - spans.begin())]));
  return success();
}

/// The manifest of one checkpoint. @param previous  what a delta stands on; null: a full manifest
inline Result<BuiltCut> build_checkpoint(const CutWriter& writer, const PrefixNode& node,
                                         const BuiltCut* previous, const ChunkSink& sink,
                                         RandomSource& random) {
  BuiltCut built{writer.outline(), {}};
  CutManifest& manifest = built.manifest;
  manifest.input_cut.token_root = node.id;
  manifest.input_cut.token_count = node.token_count;
  std::uint64_t start = 0;
  if (previous != nullptr) {
    const CutManifest& parent = previous->manifest;
    start = parent.input_cut.token_count;
    manifest.schema.kind = {.depth = static_cast<std::uint8_t>(parent.schema.kind.depth + 1),
                            .parent = DeltaParent{previous->pack.manifest_id, parent.input_cut}};
  }
  std::vector<StatePlan> plans;
  for (const StatePlan& plan : writer.plans()) {
    // A strided state keeps the strides of the whole pass; a contiguous one has those of its own shape.
    std::vector<std::uint64_t> byte_strides;
    if (plan.fixed->layout == Layout::kStrided)
      for (const std::uint64_t stride : plan.realized.strides)
        byte_strides.push_back(stride * dtype_width_bytes(plan.fixed->dtype));
    StatePlan part{.fixed = plan.fixed};
    KVPACK_TRY_ASSIGN(part.realized, realize_state(*plan.fixed, byte_strides, start, node.token_count));
    PayloadState payload{plan.fixed->key};
    KVPACK_TRY(select_chunks(plan, sink, start, node.token_count, part.realized, payload));
    manifest.payload.push_back(std::move(payload));
    plans.push_back(std::move(part));
  }
  KVPACK_TRY(sum_restored_bytes(plans, manifest.schema));
  for (StatePlan& plan : plans) manifest.schema.states.push_back(std::move(plan.realized));
  KVPACK_TRY_ASSIGN(built.pack, encode_pack(manifest, writer.keys(), writer.encrypts_manifest(), random));
  return built;
}

}  // namespace detail

inline std::vector<PrefixNode> checkpoint_nodes(std::span<const PrefixNode> nodes,
                                                std::uint64_t stride_tokens) {
  std::vector<PrefixNode> chosen;
  for (const PrefixNode& node : nodes)
    if (node.token_count % stride_tokens == 0 || &node == &nodes.back()) chosen.push_back(node);
  return chosen;
}

inline Result<std::vector<BuiltCut>> build_checkpoints(const CutWriter& writer, std::uint64_t stride_tokens,
                                                       const ChunkSink& sink, RandomSource& random) {
  assert(writer.states_written() == writer.plans().size());
  std::vector<BuiltCut> cuts;
  for (const PrefixNode& node : checkpoint_nodes(writer.prefix_nodes(), stride_tokens)) {
    const bool full = cuts.empty() || cuts.back().manifest.schema.kind.depth == kMaxDeltaDepth;
    KVPACK_TRY_ASSIGN(BuiltCut built,
                      detail::build_checkpoint(writer, node, full ? nullptr : &cuts.back(), sink, random));
    cuts.push_back(std::move(built));
  }
  return cuts;
}

}  // namespace kvpack
