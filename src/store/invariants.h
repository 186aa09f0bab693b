/// What holds in every catalog between two transactions. docs/format/store.md §Catalog
#pragma once

#include "store/store_context.h"

namespace kvpack::store {

/// Everything that does not hold, in words; empty in a sound catalog. Reads every row; touches no object.
Result<std::vector<std::string>> violated_invariants(StoreContext& context);

/// @error kIntegrity `store invariant does not hold: {the first one}`
Status check_invariants(StoreContext& context);

}  // namespace kvpack::store
