#include "kvpack/store/lookup.h"

#include "store/cut_faults.h"
#include "store/prefix_walk.h"
#include "store/restore_plan.h"
#include "store/store_objects.h"
#include "store/stored_chunks.h"

namespace kvpack {

using namespace store;  // the facade of what lives there

namespace {

/// A hit made a candidate: its chain authenticates the matched prefix and its chunks are in place.
Result<RestoreCandidate> authenticate_hit(StoreContext& context, ChainReader& chains, const FoundCut& found,
                                          const PrefixQuery& query, const InputCutId& requested,
                                          ObjectKind& stage) {
  stage = ObjectKind::kManifest;
  KVPACK_TRY(check_row_agrees(found));
  KVPACK_TRY_ASSIGN(const ManifestChain chain, chains.authenticate(found.hit.manifest_id));
  KVPACK_TRY(check_matched_prefix(chain, found, query));
  stage = ObjectKind::kChunk;
  KVPACK_TRY(check_stored_chunks(context, chain));
  KVPACK_TRY_ASSIGN(const RestoreResources resources, restore_resources(chain));
  std::vector<Id32> ids;
  for (const ChainLink& link : chain.links()) ids.push_back(link.manifest_id);
  return RestoreCandidate{.tier = RestoreTier::kLocal,
                          .matched_cut = found.cut,
                          .requested_cut = requested,
                          .suffix_tokens = found.hit.suffix_tokens,
                          .manifest_id = found.hit.manifest_id,
                          .chain_id = restore_chain_id(ids),
                          .key_epoch = chain.head().key_epoch,
                          .restored_bytes = chain.head().schema.complete_restored_bytes,
                          .resources = resources};
}

/// Deepest first, then by manifest id.
void put_in_order(std::vector<RestoreCandidate>& candidates) {
  std::ranges::sort(candidates, [](const RestoreCandidate& a, const RestoreCandidate& b) {
    if (a.matched_cut.token_count != b.matched_cut.token_count)
      return a.matched_cut.token_count > b.matched_cut.token_count;
    return a.manifest_id < b.manifest_id;
  });
}

}  // namespace

Result<std::vector<PrefixHit>> resolve(Store& store, const PrefixQuery& query, std::size_t bound) {
  KVPACK_TRY_ASSIGN(const PrefixWalk walk, PrefixWalk::create(store.context(), query));
  KVPACK_TRY_ASSIGN(const auto found, walk.find(std::min(bound, kMaxPrefixHits)));
  std::vector<PrefixHit> hits;
  for (const FoundCut& cut : found)
    if (cut.row_agrees) hits.push_back(cut.hit);
  count_lookup(store.context(), hits.empty() ? std::nullopt : std::optional(hits.front().token_count),
               walk.requested_cut().token_count);
  return hits;
}

Result<std::optional<PrefixHit>> find_deepest(Store& store, const PrefixQuery& query) {
  KVPACK_TRY_ASSIGN(const auto hits, resolve(store, query, 1));
  return hits.empty() ? std::optional<PrefixHit>() : std::optional(hits.front());
}

Result<RestoreCandidates> candidates(Store& store, const PrefixQuery& query,
                                     const CandidateOptions& options) {
  StoreContext& context = store.context();
  if (options.maximum < 2 || options.maximum > kMaxPrefixHits + 1)
    return fail(ErrorCode::kExpectation, "restore request epoch or candidate bound is invalid");
  KVPACK_TRY_ASSIGN(const PrefixWalk walk, PrefixWalk::create(context, query));
  KVPACK_TRY(validate_family(query.family->family()));
  KVPACK_TRY_ASSIGN(const auto found, walk.find(options.maximum - 1));
  const InputCutId& requested = walk.requested_cut();
  RestoreCandidates result;
  CutFaults faults(context);
  ChainReader chains(context, options.limits);
  for (const FoundCut& cut : found) {
    KVPACK_TRY_ASSIGN(const bool withdrawn, faults.is_withdrawn(cut.hit.manifest_id, cut.hit.token_count));
    if (withdrawn) continue;
    ObjectKind stage = ObjectKind::kManifest;
    auto candidate = authenticate_hit(context, chains, cut, query, requested, stage);
    if (candidate.has_value()) {
      result.candidates.push_back(*std::move(candidate));
    } else {
      KVPACK_TRY(faults.pass_over(stage, std::move(candidate.error()), cut.hit.token_count,
                                  look_at_hit(context, cut, query, options.limits)));
    }
  }
  put_in_order(result.candidates);
  count_lookup(context,
               result.candidates.empty() ? std::nullopt
                                         : std::optional(result.candidates.front().matched_cut.token_count),
               requested.token_count);
  result.candidates.push_back({.tier = RestoreTier::kRecompute,
                               .matched_cut = walk.empty_cut(),
                               .requested_cut = requested,
                               .suffix_tokens = requested.token_count});
  result.faults = std::move(faults).take();
  return result;
}

}  // namespace kvpack
