#include "store/restore_plan.h"

#include <map>

#include "store/cut_faults.h"
#include "store/store_objects.h"
#include "store/stored_chunks.h"

namespace kvpack {

using namespace store;  // the facade of what lives there

namespace store {
namespace {

Error plan_too_large() {
  return fail(ErrorCode::kQuota, "authenticated restore plan exceeds declared resource limits");
}

/// A valid manifest has each state in exactly one group.
std::map<StateKey, std::uint32_t> groups_by_state(const RealizedCutSchema& schema) {
  std::map<StateKey, std::uint32_t> groups;
  for (const AtomicGroup& group : schema.groups)
    for (const StateKey& key : group.states) groups.emplace(key, group.id);
  return groups;
}

std::vector<PlannedState> plan_states(const RestorePlan& operations) {
  const RealizedCutSchema& schema = operations.chain().head().schema;
  const auto groups = groups_by_state(schema);
  std::vector<PlannedState> states;
  states.reserve(operations.states().size());
  for (std::size_t i = 0; i < operations.states().size(); ++i) {
    const StateRestore& state = operations.states()[i];
    states.push_back({.key = state.key,
                      .fixed = state.fixed,
                      .realized = &schema.states[i],
                      .layout = state.layout,
                      .token_start = state.token_start,
                      .token_count = state.token_count,
                      .plaintext_bytes = state.token_count * state.layout.bytes_per_token(),
                      .complete_physical_bytes = state.complete_physical_bytes,
                      .group = groups.find(state.key)->second});
  }
  for (const ChainChunk& chunk : operations.chunks()) ++states[chunk.state_index].chunk_count;
  return states;
}

/// Authenticates a cut, sees its chunks, and plans; what is wrong with an object is reported.
/// @param expected  of a candidate; may be null
Result<AuthenticatedPlan> plan_cut(StoreContext& context, const Id32& manifest_id,
                                   const RestoreCandidate* expected, const ManifestLimits& limits) {
  const auto refuse = [&](ObjectKind kind, Error error, std::uint64_t token_count) {
    (void)report_object_error(context, kind, error, token_count, look_at_cut(context, manifest_id, limits));
    return error;
  };
  auto chain = authenticate_chain(context, manifest_id, limits);
  if (!chain.has_value())
    return refuse(ObjectKind::kManifest, std::move(chain.error()),
                  expected != nullptr ? expected->matched_cut.token_count : 0);
  const std::uint64_t token_count = chain->head().input_cut.token_count;
  if (auto stored = check_stored_chunks(context, *chain); !stored.has_value())
    return refuse(ObjectKind::kChunk, std::move(stored.error()), token_count);
  KVPACK_TRY_ASSIGN(AuthenticatedPlan plan, PlanBuilder::build(context, *std::move(chain)));
  if (expected != nullptr &&
      (plan.cut() != expected->matched_cut || plan.chain_id() != expected->chain_id ||
       plan.key_epoch() != expected->key_epoch || plan.restored_bytes() != expected->restored_bytes ||
       plan.resources() != expected->resources))
    return fail(ErrorCode::kAuthentication, "restore candidate changed before plan construction");
  return plan;
}

}  // namespace

Result<RestoreResources> restore_resources(const ManifestChain& chain) {
  RestoreResources sum;
  const auto add = [](std::uint64_t& to, std::uint64_t more) {
    const auto total = checked_add(to, more);
    if (total) to = *total;
    return total.has_value();
  };
  for (const RealizedState& state : chain.head().schema.states)
    if (!add(sum.shadow_bytes, state.complete_physical_bytes)) return plan_too_large();
  std::uint64_t object_bytes = 0;
  std::uint64_t plaintext_bytes = 0;
  for (const ChainLink& link : chain.links())
    for (const PayloadState& payload : link.manifest.payload)
      for (const ChunkRef& ref : payload.chunks) {
        if (!add(sum.pinned_bytes, ref.object_bytes)) return plan_too_large();
        ++sum.references;
        object_bytes = std::max<std::uint64_t>(object_bytes, ref.object_bytes);
        plaintext_bytes = std::max<std::uint64_t>(plaintext_bytes, ref.plaintext_bytes);
      }
  sum.scratch_bytes_per_thread = object_bytes + plaintext_bytes;
  return sum;
}

MemoryCharge memory_charge(const RestoreResources& resources, unsigned parallelism) {
  return {.shadow_bytes = resources.shadow_bytes,
          .scratch_bytes = resources.scratch_bytes_per_thread * parallelism,
          .holds = 1};
}

Status check_charge(const StoreMemoryLimits& limits, const MemoryCharge& charge) {
  if (charge.shadow_bytes > limits.shadow_bytes || charge.scratch_bytes > limits.scratch_bytes ||
      charge.holds > limits.holds)
    return plan_too_large();
  return success();
}

Result<AuthenticatedPlan> PlanBuilder::build(const StoreContext& context, ManifestChain chain) {
  KVPACK_TRY_ASSIGN(const RestoreResources resources, restore_resources(chain));
  KVPACK_TRY(check_charge(context.options.memory, memory_charge(resources, 1)));
  auto shared = std::make_shared<const ManifestChain>(std::move(chain));
  // The store's own limits have been checked.
  KVPACK_TRY_ASSIGN(RestorePlan operations,
                    RestorePlan::create(*shared, std::numeric_limits<std::uint64_t>::max()));
  std::vector<PlannedState> states = plan_states(operations);
  std::vector<Id32> ids;
  for (const ChainLink& link : shared->links()) ids.push_back(link.manifest_id);
  AuthenticatedPlan plan(std::move(shared), std::move(operations));
  plan.chain_id_ = restore_chain_id(ids);
  plan.states_ = std::move(states);
  plan.resources_ = resources;
  return plan;
}

}  // namespace store

Result<AuthenticatedPlan> plan(Store& store, const RestoreCandidate& candidate,
                               const ManifestLimits& limits) {
  if (candidate.tier != RestoreTier::kLocal)
    return fail(ErrorCode::kExpectation, "restore candidate is no cut of this store");
  return plan_cut(store.context(), candidate.manifest_id, &candidate, limits);
}

Result<AuthenticatedPlan> plan(Store& store, const Id32& manifest_id, const ManifestLimits& limits) {
  return plan_cut(store.context(), manifest_id, nullptr, limits);
}

}  // namespace kvpack
