/// Steps of opening a store that a rebuild takes too. docs/format/store.md §Opening
#pragma once

#include "store/store_context.h"

namespace kvpack::store {

/// A context of valid options, with nothing open yet. @error kState as Store::open
Result<std::unique_ptr<StoreContext>> make_closed_context(StoreOptions options);

/// Opens the root and takes the writer's lock, which the context keeps.
/// @error kState `store directory is not private: {path}`; kBusy `store is open elsewhere: pid {n}`;
/// kNotFound
///        kIo
Result<std::unique_ptr<Directory>> lock_root(StoreContext& context);

/// Enters tenant, epochs and quotas in the open catalog, or compares them with what it has.
/// @error as Store::open
Status register_in_catalog(StoreContext& context);

}  // namespace kvpack::store
