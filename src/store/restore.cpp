#include "kvpack/store/restore.h"

#include <unordered_set>

#include "store/cut_faults.h"
#include "store/prefix_walk.h"
#include "store/restore_plan.h"
#include "store/restore_run.h"
#include "store/store_objects.h"
#include "store/stored_chunks.h"

namespace kvpack {

using namespace store;  // the facade of what lives there

namespace {

/// How often a restore of the deepest cut looks again because a file of it has vanished.
constexpr unsigned kLookAgain = 2;

/// Counts a restore by how it ends.
Result<RestoredCut> counted_restore(Store& store, const AuthenticatedPlan& plan, RestoreSink& sink,
                                    const RestoreRequest& request, Pins::Pin pin) {
  StoreContext& context = store.context();
  context.counters.add(Counter::kRestoresAttempted);
  auto restored = run_restore(store, plan, sink, request, std::move(pin));
  context.counters.add(restored.has_value() ? Counter::kRestoresCommitted : Counter::kRestoresRefused);
  if (restored.has_value()) context.counters.add(Counter::kRestoreBytes, restored->restored_bytes);
  flush_counters_when_due(context);
  return restored;
}

/// One call of restore_deepest.
class DeepestSearch {
 public:
  DeepestSearch(Store& store, const PrefixQuery& query, RestoreSink& sink, const RestoreRequest& request)
      : store_(store),
        context_(store.context()),
        query_(query),
        sink_(sink),
        request_(request),
        faults_(context_) {}

  Result<DeepestRestore> run() {
    KVPACK_TRY_ASSIGN(const PrefixWalk walk, PrefixWalk::create(context_, query_));
    KVPACK_TRY(check_not_cancelled(request_.cancel));
    const std::uint64_t requested = walk.requested_cut().token_count;
    DeepestRestore result;
    result.suffix_tokens = requested;
    for (unsigned round = 0; round <= kLookAgain; ++round) {
      KVPACK_TRY_ASSIGN(const auto found, walk.find(kMaxPrefixHits));
      KVPACK_TRY_ASSIGN(const bool vanished, try_all(found, result));
      if (!vanished) break;
    }
    count_lookup(context_, result.restored ? std::optional(result.restored->cut.token_count) : std::nullopt,
                 requested);
    if (result.restored) result.suffix_tokens = requested - result.restored->cut.token_count;
    result.faults = std::move(faults_).take();
    return result;
  }

 private:
  /// Until one is restored. @return whether looking again may find what this look has missed
  Result<bool> try_all(std::span<const FoundCut> found, DeepestRestore& result) {
    while (!found.empty() && !result.restored) {
      const auto end = std::ranges::find_if(
          found, [&](const FoundCut& cut) { return cut.hit.token_count != found.front().hit.token_count; });
      const auto count = static_cast<std::size_t>(end - found.begin());
      for (const CutChoice least : {CutChoice::kTake, CutChoice::kLast}) {
        KVPACK_TRY_ASSIGN(const bool vanished, try_node(found.first(count), least, result));
        if (vanished) return true;
      }
      found = found.subspan(count);
    }
    return false;
  }

  /// The cuts of one node. @param least  kTake: what the sink takes last is left for another time
  Result<bool> try_node(std::span<const FoundCut> found, CutChoice least, DeepestRestore& result) {
    for (const FoundCut& cut : found) {
      if (result.restored) break;
      if (passed_over_.contains(cut.hit.manifest_id)) continue;
      KVPACK_TRY_ASSIGN(const bool withdrawn, faults_.is_withdrawn(cut.hit.manifest_id, cut.hit.token_count));
      if (!withdrawn) {
        ObjectKind stage = ObjectKind::kManifest;
        bool begun = false;
        CutChoice choice = CutChoice::kTake;
        auto restored = try_one(cut, least, stage, begun, choice);
        if (restored.has_value()) {
          result.restored = *std::move(restored);
          if (choice == CutChoice::kSkip) passed_over_.insert(cut.hit.manifest_id);
          continue;
        }
        // Everything was in place a moment ago.
        if (begun && restored.error().code == ErrorCode::kNotFound && is_about_object(restored.error()))
          return true;
        // Not an object of ours: the sink says that something of its own is absent.
        if (begun && restored.error().code == ErrorCode::kNotFound) return std::move(restored.error());
        KVPACK_TRY(faults_.pass_over(stage, std::move(restored.error()), cut.hit.token_count,
                                     look_at_hit(context_, cut, query_, request_.limits)));
      }
      passed_over_.insert(cut.hit.manifest_id);
    }
    return false;
  }

  /// @return nothing where the sink does not take it, or not yet
  Result<std::optional<RestoredCut>> try_one(const FoundCut& cut, CutChoice least, ObjectKind& stage,
                                             bool& begun, CutChoice& choice) {
    KVPACK_TRY(check_not_cancelled(request_.cancel));
    // Pinned before its rows and files are looked at, so that what is seen stays.
    KVPACK_TRY(check_row_agrees(cut));
    KVPACK_TRY_ASSIGN(Pins::Pin pin, pin_cut(context_, cut.hit.manifest_id));
    KVPACK_TRY_ASSIGN(ManifestChain chain,
                      authenticate_chain(context_, cut.hit.manifest_id, request_.limits));
    KVPACK_TRY(check_matched_prefix(chain, cut, query_));
    stage = ObjectKind::kChunk;
    KVPACK_TRY(check_stored_chunks(context_, chain));
    KVPACK_TRY_ASSIGN(const AuthenticatedPlan plan, PlanBuilder::build(context_, std::move(chain)));
    choice = sink_.choose(plan);
    if (choice > least) return std::optional<RestoredCut>();
    begun = true;
    KVPACK_TRY_ASSIGN(RestoredCut restored, counted_restore(store_, plan, sink_, request_, std::move(pin)));
    return std::optional(std::move(restored));
  }

  Store& store_;
  StoreContext& context_;
  const PrefixQuery& query_;
  RestoreSink& sink_;
  const RestoreRequest& request_;
  CutFaults faults_;
  std::unordered_set<Id32, Id32Hash> passed_over_{};
};

}  // namespace

RestoreHold::RestoreHold(RestoreHold&& other) noexcept
    : store_(std::exchange(other.store_, nullptr)), restore_id_(other.restore_id_) {}

RestoreHold& RestoreHold::operator=(RestoreHold&& other) noexcept {
  if (this != &other) {
    store_ = std::exchange(other.store_, nullptr);
    restore_id_ = other.restore_id_;
  }
  return *this;
}

Status RestoreHold::release() {
  if (store_ == nullptr || !release_restore(*store_, restore_id_))
    return fail(ErrorCode::kState, "restore resources were already released or are unknown");
  return success();
}

bool release_restore(Store& store, const Id32& restore_id) {
  return store.context().held.release(restore_id, store.context().holds);
}

Result<RestoredCut> restore(Store& store, const AuthenticatedPlan& plan, RestoreSink& sink,
                            const RestoreRequest& request) {
  StoreContext& context = store.context();
  KVPACK_TRY_ASSIGN(Pins::Pin pin, pin_cut(context, plan.manifest_id()));
  auto restored = counted_restore(store, plan, sink, request, std::move(pin));
  if (!restored.has_value())
    (void)report_object_error(context, ObjectKind::kChunk, restored.error(), plan.cut().token_count,
                              look_at_cut(context, plan.manifest_id(), request.limits));
  return restored;
}

Result<DeepestRestore> restore_deepest(Store& store, const PrefixQuery& query, RestoreSink& sink,
                                       const RestoreRequest& request) {
  return DeepestSearch(store, query, sink, request).run();
}

}  // namespace kvpack
