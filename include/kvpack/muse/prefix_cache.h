/// Cuts of a Muse model in a store as prefixes: planes without final logits, as a handoff leaves them, and
/// exact sessions of which only the planes are wanted. docs/muse-handoff.md §Stores
#pragma once

#include "kvpack/muse/session_artifact.h"
#include "kvpack/muse/staged_session.h"
#include "kvpack/muse/target_model.h"

namespace kvpack::muse {

/// A stored cut of the model.
struct PrefixCut {
  Id32 manifest_id{};
  std::uint64_t cut = 0;         ///< tokens
  std::uint64_t vocabulary = 0;  ///< Final logits that it has; 0: none.

  friend bool operator==(const PrefixCut&, const PrefixCut&) = default;
};

/// A stored cut in memory, read and verified.
struct ReadPrefix {
  CacheSnapshot snapshot{};
  std::uint64_t restored_bytes = 0;  ///< With the logits, where it has them.
};

/// Reads and writes such cuts in one store, which must outlive it. Usable from several threads, as the store
/// is.
class PrefixCache {
 public:
  PrefixCache(Store& store, TargetModel model) : store_(&store), model_(std::move(model)) {}

  Store& store() const noexcept { return *store_; }
  const TargetModel& model() const noexcept { return model_; }

  /// The deepest cut that is a prefix of the tokens, whether it has logits or not.
  /// @error as kvpack::find_deepest, list_cuts and identify
  Result<std::optional<PrefixCut>> find_deepest(std::span<const std::uint32_t> tokens) const;
  /// A cut of exactly these tokens. @error as find_deepest
  Result<std::optional<PrefixCut>> find_exactly(std::span<const std::uint32_t> tokens) const;
  /// What a manifest is, once authenticated.
  /// @error as kvpack::plan; kExpectation `cut is of another model`, `cut is of another cache form`
  Result<PrefixCut> identify(const Id32& manifest_id) const;

  /// Reads and verifies a cut.
  /// @param tokens  begin with the cut's
  /// @param how     threads, cancellation, progress
  /// @error kExpectation `cut is longer than the tokens`; as open_session, kvpack::restore and
  ///        StagedSession::assemble_snapshot
  Result<ReadPrefix> read(const PrefixCut& cut, std::span<const std::uint32_t> tokens,
                          const RestoreRequest& how = {}) const;

  /// Writes every plane. Nobody sees the cut before the commit of what is returned, and dropping that leaves
  /// nothing behind. A cut that is stored already is not written again.
  /// @param terms  `label` is not looked at
  /// @error kExpectation  of validate_snapshot, `prefix needs f16 planes of 256 elements`; as SessionWriter
  Result<SessionWriter> write(const CacheSnapshot& snapshot, const SessionTerms& terms = {}) const;

 private:
  Result<std::optional<PrefixCut>> find_in(const IdentifiedFamily& family, std::uint64_t vocabulary,
                                           std::span<const std::uint32_t> tokens) const;
  Result<PortableDescriptor> descriptor(const PrefixCut& cut) const;

  Store* store_;
  TargetModel model_;
};

}  // namespace kvpack::muse
