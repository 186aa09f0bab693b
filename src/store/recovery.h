/// Finishes at open what a crash has interrupted. docs/format/store.md §Recovery
#pragma once

#include "store/store_context.h"

namespace kvpack::store {

/// Evictions are finished, uploads of other incarnations are aborted, partial and unknown quarantine files
/// are entered, pin files of dead readers removed. In each step files are removed and their directories
/// synced before the rows go. The cost does not depend on the number of stored cuts.
/// @error kState `store directory holds an unexpected entry: {path}`,
///        `store directory holds more than 10000 entries: {path}`; kCatalog kIo
Status recover(StoreContext& context);

}  // namespace kvpack::store
