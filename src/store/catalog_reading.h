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

/// Whether the open catalog has lost its name. @pre the gate is held
bool is_catalog_moved(const StoreContext& context);
/// Gives whoever swaps catalogs a little time.
void wait_for_swap();

/// Catalog::read, in a reader of the catalog that is there now. `body` must not read again.
template <class Body>
auto read_catalog(StoreContext& context, Body&& body) -> std::invoke_result_t<Body, sqlite::Database&> {
  if (!context.read_only) return context.catalog->read(std::forward<Body>(body));
  constexpr int kMaxSwapWaits = 200;  // a second
  for (int waits = 0;; ++waits) {
    KVPACK_TRY(follow_catalog(context));
    {
      const std::shared_lock lock(context.catalog_gate);
      bool begun = false;
      using Answer = std::invoke_result_t<Body, sqlite::Database&>;
      auto answer = context.catalog->read([&](sqlite::Database& db) -> Answer {
        KVPACK_TRY(db.execute("SELECT 1 FROM sqlite_schema LIMIT 1"));  // opens what lies beside the catalog
        begun = true;
        return body(db);
      });
      // Another connection may be opened, by the catalog's name, while a swap has moved it away.
      if (answer.has_value() || begun || waits == kMaxSwapWaits || !is_catalog_moved(context)) return answer;
    }
    wait_for_swap();
  }
}

}  // namespace kvpack::store
