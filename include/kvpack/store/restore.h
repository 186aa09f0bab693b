/// Restoring a cut: an authenticated plan, a sink that the engine gives, and a hold that keeps the cut until
/// the engine no longer needs it. docs/operations.md §Restore
#pragma once

#include <functional>
#include <memory>
#include <stop_token>

#include "kvpack/core/chain.h"
#include "kvpack/core/cut_restore.h"
#include "kvpack/store/lookup.h"

namespace kvpack {

namespace store {
class PlanBuilder;
class HoldMaker;
}  // namespace store

/// One state of a cut as it will be restored.
struct PlannedState {
  StateKey key;
  const StaticState* fixed = nullptr;       ///< Inside the plan's chain.
  const RealizedState* realized = nullptr;  ///< Likewise; of the head.
  PlaneLayout layout{};                     ///< How lent memory is filled.
  std::uint64_t token_start = 0;            ///< First token of the plane: 0, or where a tail window begins.
  std::uint64_t token_count = 0;
  std::uint64_t plaintext_bytes = 0;          ///< Payload, without gaps.
  std::uint64_t complete_physical_bytes = 0;  ///< Memory of the plane.
  std::uint32_t group = 0;                    ///< Atomic group: its states become live together.
  std::uint64_t chunk_count = 0;
};

/// A cut whose manifests have been authenticated and whose chunks have been seen, with everything that is
/// known before the first of them is read. Immutable; may outlive the store.
class AuthenticatedPlan {
 public:
  const Id32& manifest_id() const noexcept { return chain_->head_id(); }
  const Id32& chain_id() const noexcept { return chain_id_; }
  const InputCutId& cut() const noexcept { return chain_->head().input_cut; }
  std::uint64_t key_epoch() const noexcept { return chain_->head().key_epoch; }
  std::uint64_t restored_bytes() const noexcept { return chain_->head().schema.complete_restored_bytes; }
  const ManifestChain& chain() const noexcept { return *chain_; }
  const RestorePlan& operations() const noexcept { return operations_; }
  const std::vector<PlannedState>& states() const noexcept { return states_; }
  const RestoreResources& resources() const noexcept { return resources_; }

 private:
  friend class store::PlanBuilder;
  AuthenticatedPlan(std::shared_ptr<const ManifestChain> chain, RestorePlan operations)
      : chain_(std::move(chain)), operations_(std::move(operations)) {}
  std::shared_ptr<const ManifestChain> chain_;
  RestorePlan operations_;
  Id32 chain_id_{};
  std::vector<PlannedState> states_{};
  RestoreResources resources_{};
};

/// Authenticates a candidate again and plans its restore.
/// @error kExpectation it is no candidate of this store; kAuthentication `restore candidate changed before
///        plan construction`; kNotFound the cut or a file of it is gone; kQuota `authenticated restore plan
///        exceeds declared resource limits`; what is wrong with an object, with `object`; kCatalog kIo
Result<AuthenticatedPlan> plan(Store& store, const RestoreCandidate& candidate,
                               const ManifestLimits& limits = {});
/// Plans the restore of a cut that is known by its manifest's id.
Result<AuthenticatedPlan> plan(Store& store, const Id32& manifest_id, const ManifestLimits& limits = {});

/// What a sink thinks of a cut that restore_deepest has found.
enum class CutChoice : std::uint8_t {
  kTake,
  kLast,  ///< Where no other cut of the same tokens is whole.
  kSkip,  ///< Of no use, although nothing is wrong with it: no fault.
};

/// Where a restored cut goes: a fresh generation of the engine's, invisible to it until it is committed. All
/// calls come from the thread that restores.
class RestoreSink {
 public:
  virtual ~RestoreSink() = default;

  /// Asked by restore_deepest alone, of each cut before it is begun; of one and the same the answer is always
  /// the same.
  virtual CutChoice choose(const AuthenticatedPlan& plan) const {
    (void)plan;
    return CutChoice::kTake;
  }

  /// Makes room for a new generation. Whatever runs goes on with the old one.
  virtual Status begin_restore(const AuthenticatedPlan& plan) = 0;

  /// Memory of `complete_physical_bytes` for a state, which the store fills in the layout of the plan, from
  /// several threads and before the last check: its content is undefined until commit. An empty span asks
  /// for write_verified_chunk instead. Called once per state after begin_restore.
  /// @param state  index into plan.states()
  virtual MutableByteSpan lend(std::size_t state) {
    (void)state;
    return {};
  }

  /// A piece of a state that was not lent, after its last check; in any order.
  /// @param logical_offset  of the piece in the row-major plane of the state, in bytes
  virtual Status write_verified_chunk(std::size_t state, std::uint64_t logical_offset,
                                      ByteSpan plaintext) = 0;

  /// Makes the whole generation live, at once. Called when every chunk has been verified.
  virtual Status commit_restore() = 0;

  /// Drops the generation that was begun, or the part of it that there is. The old one is untouched.
  virtual void abort_restore() noexcept = 0;

  /// After abort_restore, each time: forces a known state, which matters when the commit has failed halfway.
  /// When this fails the engine's state is unknown, and its error is what the caller gets.
  virtual Status reset_restore() { return success(); }
};

struct RestoreRequest {
  unsigned parallelism = 0;  ///< Threads; 0: what the store was opened with, which is also the most.
  std::stop_token cancel{};
  ManifestLimits limits{};  ///< What the caller is willing to handle, for restore_deepest.
  /// Told how many bytes of payload have been verified and placed, and how many there are: 0 once the sink
  /// has been begun, then more after each chunk, all of them before the commit. For each cut that
  /// restore_deepest tries it begins again. One call at a time and in ascending order, from any of the
  /// threads that read, also while the sink takes a piece. What it returns ends the restore like an error of
  /// the sink; then it is not called again for this cut.
  std::function<Status(std::uint64_t done_bytes, std::uint64_t total_bytes)> progress{};
};

/// Keeps a restored cut in the store, and its memory accounted for, until it is released. Dropping the handle
/// releases nothing: the engine may still be reading. The store must outlive it.
class RestoreHold {
 public:
  RestoreHold() = default;
  RestoreHold(RestoreHold&& other) noexcept;
  RestoreHold& operator=(RestoreHold&& other) noexcept;
  ~RestoreHold() = default;

  const Id32& restore_id() const noexcept { return restore_id_; }
  /// The engine no longer needs the source.
  /// @error kState `restore resources were already released or are unknown`
  Status release();

 private:
  friend class store::HoldMaker;
  RestoreHold(Store& store, const Id32& restore_id) : store_(&store), restore_id_(restore_id) {}
  Store* store_ = nullptr;
  Id32 restore_id_{};
};

/// Releases the hold of a dropped handle. @return false when it is unknown or has been released
bool release_restore(Store& store, const Id32& restore_id);

/// A cut that is live in the engine.
struct RestoredCut {
  Id32 manifest_id;
  InputCutId cut;
  std::uint64_t restored_bytes = 0;
  RestoreHold hold;
};

/// Restores what was planned: memory is admitted, the cut is pinned and its rows are looked at once more,
/// every chunk is read and verified, then the sink commits. After a failure from begin_restore on the sink is
/// aborted and reset. A damaged object is reported, and quarantined unless the store is strict.
/// @error kCancelled `operation was cancelled`; kQuota `authenticated restore plan exceeds declared resource
///        limits`, `concurrent restore resources exceed declared limits`, both before begin_restore;
///        kNotFound the cut or a file of it is gone; kAuthentication `chunk catalog reference mismatch`,
///        `pinned chunk metadata mismatch`; what a chunk's checks say, with `object`, `layer`, `state` and
///        `tokens`; kSemantics elements of a lent strided state overlap; kState lent memory is too short;
///        what the sink or the progress callback says; kCatalog kIo
Result<RestoredCut> restore(Store& store, const AuthenticatedPlan& plan, RestoreSink& sink,
                            const RestoreRequest& request = {});

struct DeepestRestore {
  std::optional<RestoredCut> restored;  ///< Nothing: a miss, everything is to be computed.
  std::uint64_t suffix_tokens = 0;      ///< Tokens of the input behind the restored cut.
  std::vector<StoreFault> faults;       ///< Deeper cuts that were passed over, and why.
};

/// Restores the deepest cut of the input that is whole and that the sink does not skip; of several of the
/// same tokens the newest, those that it takes last behind the others. One that is damaged is reported and
/// quarantined, and the next one is tried; a strict store returns the damage as the error and moves nothing.
/// A file that vanishes meanwhile makes it look again, at most twice.
/// @error as find_deepest and restore
Result<DeepestRestore> restore_deepest(Store& store, const PrefixQuery& query, RestoreSink& sink,
                                       const RestoreRequest& request = {});

}  // namespace kvpack
