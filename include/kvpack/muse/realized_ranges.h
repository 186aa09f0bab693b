/// What the states of a Muse descriptor are at one cut: ranges, declarations, chunks, room. What a session
/// stores and what a resume demands are both computed here. docs/format/muse.md §Realized ranges
#pragma once

#include <map>

#include "kvpack/core/schema.h"
#include "kvpack/core/span_policy.h"
#include "kvpack/core/state_declaration.h"
#include "kvpack/muse/prefill_descriptor.h"

namespace kvpack::muse {

/// Per tail-window state, how many of the last tokens are there.
using TailCoverage = std::map<StateKey, std::uint64_t>;

/// The states of a cut of `tokens` tokens, in the order of the descriptor and without chunk spans. Proves on
/// the way that the descriptor is one of a Muse cache: 104 states, or 105 with the logits.
/// @param tokens  of the cut, at least 1
/// @error kExpectation `Muse descriptor state inventories disagree`, `Muse descriptor state order is not
///        canonical`; of the logits `Muse exact logits state has invalid dimensions`, `Muse exact logits
///        state geometry is invalid`; of any other `Muse descriptor state names a layer outside the
///        registered layout`, `Muse descriptor state geometry disagrees with its registered layout class`;
///        kState `descriptor byte size overflow`
Result<std::vector<RealizedState>> realized_states(const PortableDescriptor& descriptor,
                                                   std::uint64_t tokens);

/// What a producer declares of one state. @param atomic_group  of the descriptor
StateDeclaration state_declaration(const RealizedState& state, std::uint32_t atomic_group);

/// Of all tail-window states, the logits among them.
/// @pre `realized` is of this descriptor
TailCoverage tail_coverage(const PortableDescriptor& descriptor, std::span<const RealizedState> realized);

/// The schema of a full manifest at this cut.
/// @error as realized_states; kState `one logical state token does not fit in a bounded chunk`; as plan_spans
Result<RealizedCutSchema> realized_cut_schema(const PortableDescriptor& descriptor, std::uint64_t tokens,
                                              const SpanPolicy& policy);

/// Chunks of all states.
std::uint64_t chunk_count(const RealizedCutSchema& schema) noexcept;

/// Room that a session reserves: its payload and the most that headers, padding and the manifest add.
/// @error kState `descriptor byte size overflow`
Result<std::uint64_t> upload_reservation_bytes(const RealizedCutSchema& schema);

// ---------------------------------------------------------------------------------------------------------------

namespace detail {

inline constexpr std::size_t kKvStates = std::size_t{kLayers} * 2;

inline bool is_logits_key(const StateKey& key) {
  return key.layer == kLogitsLayer && key.name == kLogitsState;
}

/// What all states of a descriptor have in common.
inline bool has_common_form(const StaticState& state) {
  return state.cache_kind == CacheKind::kOrdinaryKv && state.codec == Codec::kRaw &&
         state.codec_version == 1 && state.layout == kvpack::Layout::kContiguous && state.token_axis == 0 &&
         state.dependencies.empty();
}

inline Status check_logits_state(const StaticState& state, const ExportDeclaration& declared) {
  if (state.dimensions.size() != 2 || state.dimensions[0] != 0 || state.dimensions[1] == 0)
    return fail(ErrorCode::kExpectation, "Muse exact logits state has invalid dimensions");
  const std::uint64_t vocabulary = state.dimensions[1];
  if (!has_common_form(state) || state.dtype != DType::kF32 ||
      state.token_axis_rule != TokenAxisRule::kTailWindow || state.elements_per_token != vocabulary ||
      declared.strides != std::vector<std::uint64_t>{vocabulary, 1} ||
      declared.atomic_group != kLogitsLayer + 1)
    return fail(ErrorCode::kExpectation, "Muse exact logits state geometry is invalid");
  return success();
}

inline Status check_class_state(const LayoutClass& c, const StaticState& state,
                                const ExportDeclaration& declared, std::uint64_t tokens) {
  const auto names = state_names(c);
  const TokenAxisRule rule = c.window_tokens == 0 ? TokenAxisRule::kDirect : TokenAxisRule::kTailWindow;
  const std::uint64_t row = c.row_elements();
  if (tokens == 0 || std::ranges::find(names, state.key.name) == names.end() || !has_common_form(state) ||
      state.dtype != DType::kF16 || state.token_axis_rule != rule || state.elements_per_token != row ||
      state.dimensions != std::vector<std::uint64_t>{0, c.kv_heads, c.head_dim} ||
      declared.strides != std::vector<std::uint64_t>{row, c.head_dim, 1} ||
      declared.atomic_group != state.key.layer + 1)
    return in_state(fail(ErrorCode::kExpectation,
                         "Muse descriptor state geometry disagrees with its registered layout class"),
                    state.key);
  return success();
}

/// @pre the state has been checked against its class
inline Result<RealizedState> realize(const StaticState& state, const ExportDeclaration& declared,
                                     std::uint64_t tokens, std::uint64_t count) {
  const auto elements = checked_mul(count, state.elements_per_token);
  const auto bytes =
      elements ? checked_mul<std::uint64_t>(*elements, dtype_width_bytes(state.dtype)) : std::nullopt;
  if (!bytes) return in_state(fail(ErrorCode::kState, "descriptor byte size overflow"), state.key);
  Shape shape{state.dimensions};
  shape.dimensions[0] = count;
  return RealizedState{.key = state.key,
                       .full_shape = shape,
                       .segment_shape = shape,
                       .strides = declared.strides,
                       .logical_start = tokens - count,
                       .logical_count = count,
                       .physical_span_bytes = *bytes,
                       .complete_physical_bytes = *bytes,
                       .absolute_position = tokens};
}

inline const Layout& muse_layout() {
  return *std::ranges::find(registered_layouts(), kLayoutName, &Layout::name);
}

}  // namespace detail

inline Result<std::vector<RealizedState>> realized_states(const PortableDescriptor& descriptor,
                                                          std::uint64_t tokens) {
  const auto& states = descriptor.family.states;
  if (states.size() != descriptor.states.size() ||
      (states.size() != detail::kKvStates && states.size() != detail::kKvStates + 1))
    return fail(ErrorCode::kExpectation, "Muse descriptor state inventories disagree");
  for (std::size_t i = 0; i < states.size(); ++i)
    if (states[i].key != descriptor.states[i].key)
      return in_state(fail(ErrorCode::kExpectation, "Muse descriptor state order is not canonical"),
                      states[i].key);

  const Layout& layout = detail::muse_layout();
  const std::vector<std::uint32_t> classes = class_of_layer(layout);
  std::vector<RealizedState> realized;
  realized.reserve(states.size());
  for (std::size_t i = 0; i < states.size(); ++i) {
    const StaticState& state = states[i];
    std::uint64_t count = std::min<std::uint64_t>(tokens, 1);
    if (detail::is_logits_key(state.key)) {
      KVPACK_TRY(detail::check_logits_state(state, descriptor.states[i]));
    } else {
      if (state.key.layer >= layout.num_layers)
        return in_state(fail(ErrorCode::kExpectation,
                             "Muse descriptor state names a layer outside the registered layout"),
                        state.key);
      const LayoutClass& c = layout.classes[classes[state.key.layer]];
      KVPACK_TRY(detail::check_class_state(c, state, descriptor.states[i], tokens));
      count = c.window_tokens == 0 ? tokens : std::min<std::uint64_t>(c.window_tokens, tokens);
    }
    KVPACK_TRY_ASSIGN(RealizedState one, detail::realize(state, descriptor.states[i], tokens, count));
    realized.push_back(std::move(one));
  }
  return realized;
}

inline StateDeclaration state_declaration(const RealizedState& state, std::uint32_t atomic_group) {
  return {.key = state.key,
          .full_shape = state.full_shape,
          .segment_shape = state.segment_shape,
          .strides = state.strides,
          .logical_start = state.logical_start,
          .logical_count = state.logical_count,
          .absolute_position = state.absolute_position,
          .window = state.window,
          .atomic_group = atomic_group};
}

inline TailCoverage tail_coverage(const PortableDescriptor& descriptor,
                                  std::span<const RealizedState> realized) {
  TailCoverage coverage;
  for (std::size_t i = 0; i < realized.size(); ++i)
    if (descriptor.family.states[i].token_axis_rule == TokenAxisRule::kTailWindow)
      coverage.emplace(realized[i].key, realized[i].logical_count);
  return coverage;
}

inline Result<RealizedCutSchema> realized_cut_schema(const PortableDescriptor& descriptor,
                                                     std::uint64_t tokens, const SpanPolicy& policy) {
  RealizedCutSchema schema;
  KVPACK_TRY_ASSIGN(schema.states, realized_states(descriptor, tokens));
  std::map<std::uint32_t, AtomicGroup> groups;
  for (std::size_t i = 0; i < schema.states.size(); ++i) {
    RealizedState& state = schema.states[i];
    const StaticState& fixed = descriptor.family.states[i];
    const auto token_bytes =
        checked_mul<std::uint64_t>(fixed.elements_per_token, dtype_width_bytes(fixed.dtype));
    if (!token_bytes || *token_bytes > kMaxChunkPlaintextBytes)
      return in_state(fail(ErrorCode::kState, "one logical state token does not fit in a bounded chunk"),
                      state.key);
    auto spans = plan_spans(fixed, state.logical_start, state.logical_count, policy);
    if (!spans.has_value()) return in_state(std::move(spans.error()), state.key);
    state.chunk_spans = *std::move(spans);
    AtomicGroup& group = groups[descriptor.states[i].atomic_group];
    group.id = descriptor.states[i].atomic_group;
    group.states.push_back(state.key);
    const auto sum = checked_add(schema.complete_restored_bytes, state.complete_physical_bytes);
    if (!sum) return fail(ErrorCode::kState, "descriptor byte size overflow");
    schema.complete_restored_bytes = schema.segment_restored_bytes = *sum;
  }
  for (auto& [id, group] : groups) schema.groups.push_back(std::move(group));
  return schema;
}

inline std::uint64_t chunk_count(const RealizedCutSchema& schema) noexcept {
  std::uint64_t chunks = 0;
  for (const RealizedState& state : schema.states) chunks += state.chunk_spans.size();
  return chunks;
}

inline Result<std::uint64_t> upload_reservation_bytes(const RealizedCutSchema& schema) {
  constexpr std::uint64_t kChunkOverheadBytes = 49'152;
  constexpr std::uint64_t kManifestBytes = 8'192;
  constexpr std::uint64_t kManifestStateBytes = 2'048;
  constexpr std::uint64_t kManifestChunkBytes = 192;
  // At most 65,536 states of 65,536 chunks: these products stay far below the range.
  const std::uint64_t overhead = kManifestBytes + kManifestStateBytes * schema.states.size() +
                                 (kChunkOverheadBytes + kManifestChunkBytes) * chunk_count(schema);
  const auto sum = checked_add(schema.complete_restored_bytes, overhead);
  if (!sum) return fail(ErrorCode::kState, "descriptor byte size overflow");
  return *sum;
}

}  // namespace kvpack::muse
