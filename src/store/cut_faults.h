/// What a lookup does about a cut that is not whole: passes over it or ends. docs/format/store.md §Damage
#pragma once

#include "kvpack/core/chain.h"
#include "store/damage.h"
#include "store/prefix_walk.h"

namespace kvpack::store {

/// Whether an error is about an object, by the `object` in its context.
bool is_about_object(const Error& error);

/// Reports damage or a failed read of an object that the error names; does nothing for other errors.
/// @param kind  of the object
/// @param token_count  of the cut
std::optional<StoreFault> report_object_error(StoreContext& context, ObjectKind kind, const Error& error,
                                              std::uint64_t token_count, const LookAgain& look);

/// Looks again at a cut of which an object seemed damaged: at its chain, at whether its chunks are in place,
/// and where the object is one of them at all of it. Refers to `context` and `limits`.
LookAgain look_at_cut(StoreContext& context, const Id32& manifest_id, const ManifestLimits& limits);
/// The same for a cut that a query has found: also whether it is what the query asks for. Refers to all.
LookAgain look_at_hit(StoreContext& context, const FoundCut& found, const PrefixQuery& query,
                      const ManifestLimits& limits);

/// The faults of one lookup.
class CutFaults {
 public:
  explicit CutFaults(StoreContext& context) noexcept : context_(&context) {}
  CutFaults(const CutFaults&) = delete;
  CutFaults& operator=(const CutFaults&) = delete;
  /// Counts the lookup when it has met any.
  ~CutFaults();

  /// Success: the cut is passed over, reported unless something of it is only absent. Else the error itself.
  Status pass_over(ObjectKind kind, Error error, std::uint64_t token_count, const LookAgain& look);

  /// Whether damage that this lookup met has withdrawn another of its cuts too; that is reported like the
  /// damage itself.
  Result<bool> is_withdrawn(const Id32& manifest_id, std::uint64_t token_count);

  bool empty() const noexcept { return faults_.empty(); }
  std::vector<StoreFault> take() && { return std::move(faults_); }

 private:
  StoreContext* context_;
  std::vector<StoreFault> faults_{};
  std::optional<std::size_t> last_quarantined_{};
  bool any_ = false;
};

}  // namespace kvpack::store
