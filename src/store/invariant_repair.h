/// Making the rows of a catalog agree with each other again. docs/operations.md §Repair
#pragma once

#include "store/schema.h"

namespace kvpack::store {

/// Computes counters again, inside an open write transaction, and withdraws cuts that stand on what is not
/// available: they become DAMAGED, for a collection to remove. Files are left alone.
Status repair_invariants(sqlite::Database& db);

}  // namespace kvpack::store
