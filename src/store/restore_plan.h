/// From a chain to everything that its restore needs to know. docs/format/store.md §Reading
#pragma once

#include "kvpack/store/restore.h"
#include "store/restore_holds.h"
#include "store/store_context.h"

namespace kvpack::store {

/// What a restore of the chain takes. @error kQuota it cannot be added up
Result<RestoreResources> restore_resources(const ManifestChain& chain);

/// What it is charged on so many threads.
MemoryCharge memory_charge(const RestoreResources& resources, unsigned parallelism);

/// Whether it fits when nothing else is there.
/// @error kQuota `authenticated restore plan exceeds declared resource limits`
Status check_charge(const StoreMemoryLimits& limits, const MemoryCharge& charge);

class PlanBuilder {
 public:
  /// @param chain  authenticated, its chunks in place
  /// @error kQuota as check_charge, for one thread; kBounds
  static Result<AuthenticatedPlan> build(const StoreContext& context, ManifestChain chain);
};

}  // namespace kvpack::store
