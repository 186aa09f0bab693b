/// The chunks of a cut as the catalog and the file system have them, against what its authenticated manifests
/// say. docs/format/store.md §Resolve
#pragma once

#include "kvpack/core/chain.h"
#include "store/store_context.h"

namespace kvpack::store {

/// Every chunk has an AVAILABLE row that agrees with its reference, and a regular file of the right length.
/// Errors about a chunk name it as `object`.
/// @error kNotFound `artifact not found`; kAuthentication `local chunk catalog disagrees with authenticated
///        manifest`, `local chunk object metadata disagrees with authenticated manifest`; kCatalog kIo
Status check_stored_chunks(StoreContext& context, const ManifestChain& chain);

/// Looks at every row of a chain again, in one read transaction. What is pinned by then cannot lose a file
/// any more.
/// @error kNotFound `artifact not found`: the cut has been withdrawn; kAuthentication `chunk catalog
/// reference
///        mismatch`; kCatalog
Status check_rows_again(StoreContext& context, const ManifestChain& chain);

}  // namespace kvpack::store
