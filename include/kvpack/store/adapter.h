/// What an engine's adapter owes a store, as a concept, and the two things that are done through one: saving
/// what is live, and going on from the deepest cut that is stored. docs/architecture.md §Store
#pragma once

#include <concepts>

#include "kvpack/store/restore.h"
#include "kvpack/store/save.h"

namespace kvpack {

/// Under what an engine's state is saved and found. Compared before anything is changed.
struct EngineIdentity {
  SemanticModelId semantic_model{};
  const IdentifiedFamily* family = nullptr;  ///< Its ABI identity changes with everything that bytes mean.
};

/// One live state, initialised bytes alone, in logical token order.
struct EnginePlane {
  SaveState layout;
  ByteSpan bytes{};               ///< In the engine's memory; keeps still until the save has ended.
  StateSource* source = nullptr;  ///< Instead of `bytes`, where the memory cannot be read directly.
};

/// Everything that is live at one cut, and from which input it was computed.
struct EngineInventory {
  std::vector<std::uint32_t> tokens{};  ///< A copy; never stored.
  std::vector<AuxiliaryInputId> auxiliary{};
  std::vector<EnginePlane> planes{};  ///< In any order.
};

/// An engine that can be saved from and restored into. Calls come from the thread that saves or restores,
/// except that lent memory is filled by several threads.
///
/// To save: exclude_mutation, synchronize, inventory, then the planes are read; allow_mutation ends it,
/// whatever has happened.
///
/// To restore: synchronize; then, for each cut that is tried, check_restore, begin_restore, lend for each
/// state, write_verified_chunk for those that were not lent, commit_restore. The calls from begin_restore on
/// have the duties of RestoreSink. A failure of check_restore leaves nothing to undo; after a failure from
/// begin_restore on come abort_restore and then always reset_restore, whose own failure outranks the first.
template <class E>
concept EngineAdapter = requires(E& engine, const E& idle, const AuthenticatedPlan& plan, std::size_t state,
                                 std::uint64_t offset, ByteSpan plaintext) {
  { idle.identity() } -> std::convertible_to<EngineIdentity>;
  /// Nothing computes, extends or drops tokens from here on. @error then allow_mutation is not called
  { engine.exclude_mutation() } -> std::same_as<Status>;
  { engine.allow_mutation() }
  noexcept->std::same_as<void>;
  /// What a device has been told to do has been done.
  { engine.synchronize() } -> std::same_as<Status>;
  /// The complete list: a state that is left out is lost.
  { engine.inventory() } -> std::same_as<Result<EngineInventory>>;
  /// Compares every descriptor of the plan with the engine's own. Changes nothing.
  { engine.check_restore(plan) } -> std::same_as<Status>;
  { engine.begin_restore(plan) } -> std::same_as<Status>;
  { engine.lend(state) } -> std::same_as<MutableByteSpan>;
  { engine.write_verified_chunk(state, offset, plaintext) } -> std::same_as<Status>;
  { engine.commit_restore() } -> std::same_as<Status>;
  { engine.abort_restore() }
  noexcept->std::same_as<void>;
  { engine.reset_restore() } -> std::same_as<Status>;
};

/// Saves what is live in an engine. A save that has been published already is not written again.
/// @param how  kind, parent, stride, spans, encryption and so on; identity, tokens and states come from the
///             engine
/// @error kState `engine inventory names one state twice`; kExpectation `engine inventory does not match its
///        representation family`, both with `layer` and `state`; what the engine says; as SaveSession
template <EngineAdapter E>
Result<SaveResult> save_from_engine(Store& store, E& engine, const SaveRequest& how = {});

/// Whether the cut stays held after it has become live. An engine that goes on reading lent memory that is
/// backed by the store's files holds; one that has copied everything releases.
enum class AfterRestore : std::uint8_t { kRelease, kHold };

/// Restores the deepest stored cut of an input into an engine, which then goes on at
/// `restored->cut.token_count` and computes the suffix. A miss leaves the engine as it is.
/// @param tokens  the complete input
/// @error as restore_deepest; what the engine says
template <EngineAdapter E>
Result<DeepestRestore> restore_into_engine(Store& store, E& engine, std::span<const std::uint32_t> tokens,
                                           std::span<const AuxiliaryInputId> auxiliary = {},
                                           const RestoreRequest& how = {},
                                           AfterRestore after = AfterRestore::kRelease);

// ---------------------------------------------------------------------------------------------------------------

namespace detail {

/// Planes in family order; every state of the family exactly once.
inline Status put_in_family_order(std::vector<EnginePlane>& planes, const RepresentationFamily& family) {
  const auto key_of = [](const EnginePlane& plane) -> const StateKey& { return plane.layout.key; };
  std::ranges::sort(planes, {}, key_of);
  const auto twice = std::ranges::adjacent_find(planes, {}, key_of);
  if (twice != planes.end())
    return in_state(fail(ErrorCode::kState, "engine inventory names one state twice"), key_of(*twice));
  for (std::size_t i = 0; i < std::max(planes.size(), family.states.size()); ++i) {
    if (i < planes.size() && i < family.states.size() && key_of(planes[i]) == family.states[i].key) continue;
    const bool is_unknown =
        i >= family.states.size() || (i < planes.size() && key_of(planes[i]) < family.states[i].key);
    return in_state(
        fail(ErrorCode::kExpectation, "engine inventory does not match its representation family"),
        is_unknown ? key_of(planes[i]) : family.states[i].key);
  }
  return success();
}

/// Lets an engine go on when a save ends.
template <class E>
class MutationLock {
 public:
  static Result<MutationLock> take(E& engine) {
    KVPACK_TRY(engine.exclude_mutation());
    return MutationLock(engine);
  }
  MutationLock(MutationLock&& other) noexcept : engine_(std::exchange(other.engine_, nullptr)) {}
  MutationLock& operator=(MutationLock&&) = delete;
  ~MutationLock() {
    if (engine_ != nullptr) engine_->allow_mutation();
  }

 private:
  explicit MutationLock(E& engine) : engine_(&engine) {}
  E* engine_;
};

/// An engine as a sink. Until it has been begun there is nothing to abort or reset.
template <class E>
class EngineSink final : public RestoreSink {
 public:
  explicit EngineSink(E& engine) : engine_(engine) {}

  Status begin_restore(const AuthenticatedPlan& plan) override {
    KVPACK_TRY(engine_.check_restore(plan));
    begun_ = true;
    return engine_.begin_restore(plan);
  }
  MutableByteSpan lend(std::size_t state) override { return engine_.lend(state); }
  Status write_verified_chunk(std::size_t state, std::uint64_t offset, ByteSpan plaintext) override {
    return engine_.write_verified_chunk(state, offset, plaintext);
  }
  Status commit_restore() override { return engine_.commit_restore(); }
  void abort_restore() noexcept override {
    if (begun_) engine_.abort_restore();
  }
  Status reset_restore() override {
    if (!std::exchange(begun_, false)) return success();
    return engine_.reset_restore();
  }

 private:
  E& engine_;
  bool begun_ = false;
};

inline Status write_engine_planes(SaveSession& session, const std::vector<EnginePlane>& planes) {
  const bool in_memory =
      std::ranges::all_of(planes, [](const EnginePlane& plane) { return plane.source == nullptr; });
  if (in_memory) {
    std::vector<ByteSpan> views;
    views.reserve(planes.size());
    for (const EnginePlane& plane : planes) views.push_back(plane.bytes);
    return session.write_states(views);
  }
  for (const EnginePlane& plane : planes) {
    if (plane.source != nullptr) {
      KVPACK_TRY(session.write_state(plane.layout.key, *plane.source));
    } else {
      KVPACK_TRY(session.write_state(plane.layout.key, plane.bytes));
    }
  }
  return success();
}

}  // namespace detail

template <EngineAdapter E>
Result<SaveResult> save_from_engine(Store& store, E& engine, const SaveRequest& how) {
  KVPACK_TRY_ASSIGN(const auto quiet, detail::MutationLock<E>::take(engine));
  KVPACK_TRY(engine.synchronize());
  KVPACK_TRY_ASSIGN(EngineInventory inventory, engine.inventory());
  const EngineIdentity identity = engine.identity();
  KVPACK_TRY(detail::put_in_family_order(inventory.planes, identity.family->family()));
  std::vector<SaveState> states;
  states.reserve(inventory.planes.size());
  for (const EnginePlane& plane : inventory.planes) states.push_back(plane.layout);
  SaveRequest request = how;
  request.family = identity.family;
  request.semantic_model = identity.semantic_model;
  request.tokens = inventory.tokens;
  request.auxiliary = inventory.auxiliary;
  request.states = states;
  // Whatever fails from here on, the session takes everything back when it dies.
  KVPACK_TRY_ASSIGN(SaveSession session, SaveSession::begin(store, request));
  if (!session.is_replay() || request.kind == SaveKind::kCutExport)
    KVPACK_TRY(detail::write_engine_planes(session, inventory.planes));
  return session.commit();
}

template <EngineAdapter E>
Result<DeepestRestore> restore_into_engine(Store& store, E& engine, std::span<const std::uint32_t> tokens,
                                           std::span<const AuxiliaryInputId> auxiliary,
                                           const RestoreRequest& how, AfterRestore after) {
  KVPACK_TRY(engine.synchronize());
  const EngineIdentity identity = engine.identity();
  PrefixQuery query;
  query.semantic_model = identity.semantic_model;
  query.family = identity.family;
  query.auxiliary = auxiliary;
  query.tokens = tokens;
  detail::EngineSink<E> sink(engine);
  KVPACK_TRY_ASSIGN(DeepestRestore deepest, restore_deepest(store, query, sink, how));
  if (deepest.restored && after == AfterRestore::kRelease) KVPACK_TRY(deepest.restored->hold.release());
  return deepest;
}

}  // namespace kvpack
