/// Reading rows in whatever process: a reader looks before each transaction whether the catalog is still the
/// file that it has open. docs/format/store.md §Pins
#pragma once

#include "store/store_context.h"

namespace kvpack::store {

/// The file that the catalog's name means now. @error kNotFound kIo
Result<FileFacts> catalog_file_facts(const StoreContext& context);
/// Whether there is a write-ahead log beside it, or there may be.
bool has_catalog_log(const StoreContext& context);

/// In a reader: opens the catalog again when a rebuild has put another one in its place. Keeps the old one
/// while there is none.
/// @error as Store::open_read_only
Status follow_catalog(StoreContext& context);

/// Catalog::read, in a reader of the catalog that is there now. `body` must not read again.
template <class Body>
auto read_catalog(StoreContext& context, Body&& body) -> std::invoke_result_t<Body, sqlite::Database&> {
  if (!context.read_only) return context.catalog->read(std::forward<Body>(body));
  KVPACK_TRY(follow_catalog(context));
  const std::shared_lock lock(context.catalog_gate);
  return context.catalog->read(std::forward<Body>(body));
}

}  // namespace kvpack::store
