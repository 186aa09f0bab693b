#include "kvpack/muse/session_artifact.h"

namespace kvpack::muse {
namespace {

Status check_token_count(std::span<const std::uint32_t> tokens) {
  if (tokens.empty()) return fail(ErrorCode::kState, "zero is not a durable Muse session cut");
  if (tokens.size() > std::numeric_limits<std::uint32_t>::max())
    return fail(ErrorCode::kState, "Muse session token count exceeds u32");
  return success();
}

/// The ranges add up to what the descriptor says.
Status check_byte_bounds(const PortableDescriptor& descriptor, std::span<const RealizedState> realized) {
  PortableDescriptor totals;
  for (const RealizedState& state : realized)
    KVPACK_TRY(add_state_bytes(totals, state.complete_physical_bytes));
  if (totals.restored_bytes != descriptor.restored_bytes ||
      totals.bytes_per_state != descriptor.bytes_per_state)
    return fail(ErrorCode::kExpectation, "Muse descriptor byte bounds do not match the session ranges");
  return success();
}

/// Ranges, shapes, strides and sizes, without the way they are cut into chunks.
bool same_declaration(const RealizedState& stored, const RealizedState& expected) {
  RealizedState plain = stored;
  plain.chunk_spans.clear();
  return plain == expected;
}

Status check_token_identity(const AuthenticatedPlan& plan, const KeySchedule& keys,
                            const PortableDescriptor& runtime, std::span<const std::uint32_t> tokens) {
  KVPACK_TRY_ASSIGN(const IdentifiedFamily family, IdentifiedFamily::create(runtime.family));
  KVPACK_TRY_ASSIGN(const DerivedInput input,
                    derive_input(keys, runtime.semantic_model, family.id(), {}, tokens));
  if (input.cut != plan.cut())
    return fail(ErrorCode::kAuthentication, "Muse session prompt-token identity mismatch");
  return success();
}

}  // namespace

Result<SessionWriter> SessionWriter::begin(Store& store, const PortableDescriptor& descriptor,
                                           std::span<const std::uint32_t> tokens, const SessionTerms& terms) {
  KVPACK_TRY(check_token_count(tokens));
  KVPACK_TRY_ASSIGN(std::vector<RealizedState> realized, realized_states(descriptor, tokens.size()));
  KVPACK_TRY(check_nope_invariant(descriptor));
  KVPACK_TRY(check_byte_bounds(descriptor, realized));
  KVPACK_TRY_ASSIGN(const IdentifiedFamily family, IdentifiedFamily::create(descriptor.family));
  std::vector<SaveState> states;
  states.reserve(realized.size());
  for (std::size_t i = 0; i < realized.size(); ++i)
    states.push_back({.key = realized[i].key,
                      .token_start = realized[i].logical_start,
                      .atomic_group = descriptor.states[i].atomic_group});
  SaveRequest request;
  request.idempotency_key = terms.idempotency_key;
  request.family = &family;
  request.semantic_model = descriptor.semantic_model;
  request.tokens = tokens;
  request.states = states;
  request.spans = terms.spans;
  request.encrypt = terms.encrypt;
  request.publication = terms.publication;
  request.time_to_live_ms = terms.time_to_live_ms;
  request.label = terms.label;
  request.parallelism = terms.parallelism;
  KVPACK_TRY_ASSIGN(SaveSession session, SaveSession::begin(store, request));
  SessionReceipt receipt{.input_cut = session.cut(),
                         .token_digest = session_token_digest(tokens),
                         .tail_coverage = tail_coverage(descriptor, realized),
                         .restored_bytes = descriptor.restored_bytes,
                         .publication = terms.publication};
  return SessionWriter(std::move(session), std::move(realized), std::move(receipt));
}

const RealizedState* SessionWriter::find(const StateKey& key) const noexcept {
  const auto found = std::ranges::find(realized_, key, &RealizedState::key);
  return found == realized_.end() ? nullptr : &*found;
}

Status SessionWriter::next_plane(const StateKey& key, ByteSpan plane) {
  if (is_replay())
    return fail(ErrorCode::kState, "idempotency retry is already published; commit without writing states");
  const StateKey* next = next_key();
  const RealizedState* state = find(key);
  // A key out of turn is the session's to refuse, which ends it.
  if (next != nullptr && *next == key && plane.size() != state->complete_physical_bytes)
    return in_state(
        fail(ErrorCode::kState, "session plane has " + std::to_string(plane.size()) + " bytes, expected " +
                                    std::to_string(state->complete_physical_bytes)),
        key);
  return session_.write_state(key, plane);
}

Status SessionWriter::write_planes(std::span<const ByteSpan> planes) {
  if (is_replay())
    return fail(ErrorCode::kState, "idempotency retry is already published; commit without writing states");
  const StateKey* next = next_key();
  const std::size_t left =
      next == nullptr ? 0 : static_cast<std::size_t>(realized_.data() + realized_.size() - find(*next));
  if (planes.size() != left)
    return fail(ErrorCode::kState,
                "session has " + std::to_string(left) + " planes left, not " + std::to_string(planes.size()));
  for (std::size_t i = 0; i < left; ++i) {
    const RealizedState& state = realized_[realized_.size() - left + i];
    if (planes[i].size() != state.complete_physical_bytes)
      return in_state(
          fail(ErrorCode::kState, "session plane has " + std::to_string(planes[i].size()) +
                                      " bytes, expected " + std::to_string(state.complete_physical_bytes)),
          state.key);
  }
  return session_.write_states(planes);
}

Result<SessionReceipt> SessionWriter::commit() {
  KVPACK_TRY_ASSIGN(const SaveResult saved, session_.commit());
  return detail::published_receipt(std::move(receipt_), saved);
}

Result<SessionReceipt> detail::published_receipt(SessionReceipt begun, const SaveResult& saved) {
  if (saved.head().restored_bytes != begun.restored_bytes)
    return fail(ErrorCode::kAuthentication, "published Muse session byte total changed");
  begun.manifest_id = saved.head().manifest_id;
  begun.replayed = saved.replayed;
  begun.written = saved.written;
  begun.shared = saved.shared;
  return begun;
}

Result<OpenedSession> open_session(Store& store, const Id32& manifest_id, const PortableDescriptor& runtime,
                                   std::span<const std::uint32_t> tokens, std::uint64_t minimum_epoch) {
  KVPACK_TRY(check_token_count(tokens));
  KVPACK_TRY_ASSIGN(AuthenticatedPlan plan, kvpack::plan(store, manifest_id));
  if (plan.key_epoch() < minimum_epoch) return fail(ErrorCode::kNotFound, "artifact not found");
  KVPACK_TRY_ASSIGN(TailCoverage coverage, check_session(plan, store.active_keys(), runtime, tokens));
  return OpenedSession{std::move(plan), session_token_digest(tokens), std::move(coverage)};
}

Result<TailCoverage> check_session(const AuthenticatedPlan& plan, const KeySchedule& keys,
                                   const PortableDescriptor& runtime, std::span<const std::uint32_t> tokens) {
  KVPACK_TRY(check_token_identity(plan, keys, runtime, tokens));
  const CutManifest& manifest = plan.chain().head();
  KVPACK_TRY_ASSIGN(const PortableDescriptor stored, stored_descriptor(manifest));
  KVPACK_TRY_ASSIGN(const std::vector<RealizedState> expected, realized_states(stored, tokens.size()));
  if (!std::ranges::equal(manifest.schema.states, expected, same_declaration))
    return fail(ErrorCode::kAuthentication, "Muse session state ranges do not match the registered layout");
  TailCoverage coverage = tail_coverage(stored, expected);
  KVPACK_TRY(check_resume(stored, runtime, coverage, tokens.size()));
  KVPACK_TRY(check_nope_invariant(stored));
  if (stored != runtime) return fail(ErrorCode::kAuthentication, "Muse session portable descriptor mismatch");
  return coverage;
}

Status check_nope_invariant(const PortableDescriptor& descriptor) {
  const Layout& layout = detail::muse_layout();
  const std::vector<std::uint32_t> classes = class_of_layer(layout);
  for (std::uint32_t layer = 0; layer < layout.num_layers; ++layer) {
    const LayoutClass& c = layout.classes[classes[layer]];
    if (c.rope_convention != RopeConvention::kNone) continue;
    for (const std::string_view name : state_names(c)) {
      const StateKey key{layer, std::string(name)};
      const auto found = std::ranges::find(descriptor.family.states, key, &StaticState::key);
      if (found == descriptor.family.states.end())
        return in_state(fail(ErrorCode::kExpectation,
                             "muse session save: a NoPE-class state is missing from the descriptor"),
                        key);
      if (found->token_axis_rule != TokenAxisRule::kDirect || found->dtype != DType::kF16)
        return in_state(
            fail(ErrorCode::kExpectation,
                 "muse session save: a NoPE-class plane carries a windowed axis or a non-F16 dtype — the "
                 "rotation / pre-rotation-capture path must never be invoked for a NoPE class"),
            key);
    }
  }
  return success();
}

std::vector<CoverageShortfall> coverage_shortfalls(const TailCoverage& coverage, std::uint64_t cached) {
  const Layout& layout = detail::muse_layout();
  std::vector<CoverageShortfall> shortfalls;
  for (const LayoutClass& c : layout.classes) {
    if (c.window_tokens == 0) continue;
    const std::uint64_t required = std::min<std::uint64_t>(c.window_tokens, cached);
    detail::each_layer(c, [&](std::uint32_t layer) {
      for (const std::string_view name : state_names(c)) {
        StateKey key{layer, std::string(name)};
        const auto found = coverage.find(key);
        const std::uint64_t present = found == coverage.end() ? 0 : found->second;
        if (present < required) shortfalls.push_back({std::move(key), required, present});
      }
      return true;
    });
  }
  return shortfalls;
}

Status check_resume(const PortableDescriptor& stored, const PortableDescriptor& runtime,
                    const TailCoverage& coverage, std::uint64_t cached) {
  if (semantic_model_id(stored.semantic_model) != semantic_model_id(runtime.semantic_model))
    return fail(
        ErrorCode::kAuthentication,
        "muse session resume: semantic model identity mismatch "
        "(weights/adapters/tokenizer/position-semantics/qualified-math digest disagrees) — fail closed, "
        "never a best-effort restore");
  KVPACK_TRY_ASSIGN(const IdentifiedFamily stored_family, IdentifiedFamily::create(stored.family));
  KVPACK_TRY_ASSIGN(const IdentifiedFamily runtime_family, IdentifiedFamily::create(runtime.family));
  if (stored_family.id() != runtime_family.id())
    return fail(ErrorCode::kAuthentication,
                "muse session resume: representation family identity mismatch (engine cache ABI / geometry "
                "disagrees) — fail closed, never a best-effort restore");
  const auto shortfalls = coverage_shortfalls(coverage, cached);
  if (!shortfalls.empty())
    return in_state(fail(ErrorCode::kNotFound, "muse session resume: tail window is not covered"),
                    shortfalls.front().key);
  return success();
}

Result<PortableDescriptor> stored_descriptor(const CutManifest& manifest) {
  PortableDescriptor stored{.semantic_model = manifest.semantic_model, .family = manifest.family};
  std::map<StateKey, std::uint32_t> groups;
  for (const AtomicGroup& group : manifest.schema.groups)
    for (const StateKey& key : group.states) groups.emplace(key, group.id);
  for (const RealizedState& state : manifest.schema.states) {
    const auto group = groups.find(state.key);
    stored.states.push_back({state.key, state.strides, group == groups.end() ? 0 : group->second});
    KVPACK_TRY(add_state_bytes(stored, state.complete_physical_bytes));
  }
  if (stored.states.empty())
    return fail(ErrorCode::kAuthentication, "Muse session has no authenticated state planes");
  return stored;
}

}  // namespace kvpack::muse
