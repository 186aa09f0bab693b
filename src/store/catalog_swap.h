/// A rebuilt catalog takes the place of the old one by renaming whole directories, so that an old write-ahead
/// log can never meet a new database. docs/format/store.md §Rebuild
#pragma once

#include "kvpack/base/clock.h"
#include "store/store_files.h"

namespace kvpack::store {

/// Finishes a swap that was interrupted after the old catalog had been moved away, or removes an unfinished
/// `catalog.new/`.
Status finish_catalog_swap(Directory& root);

/// Puts the database in `catalog.new/`, which is closed and has no log, in the place of the current one,
/// which becomes `catalog.backup-<unix seconds>/`. Whenever it is interrupted, finish_catalog_swap ends it.
/// @return path of the old catalog; empty when there was none
Result<std::string> swap_in_new_catalog(Directory& root, const Clock& clock);

}  // namespace kvpack::store
