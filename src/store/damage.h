/// What happens to an object that turned out absent or wrong. docs/format/store.md §Damage
#pragma once

#include <functional>

#include "store/store_context.h"

namespace kvpack::store {

/// Looks once more at the object that seemed damaged, and says what is wrong with it now. Called with the
/// catalog's writer kept out, so that what it finds whole has been healed and is not moved: two who met the
/// same damage report it one after the other, and a save may come in between. It may read rows.
using LookAgain = std::function<Status(const Id32& object)>;

/// Deals with a fault of an object: damage (store_objects.h), which the caller has met twice and `look` meets
/// again, is quarantined and every cut that needs the object is withdrawn; an absent or unreadable object is
/// left alone, as is everything in strict mode, in a read-only handle and once this handle has moved 64
/// objects. Tells `on_fault`. Not inside a transaction.
/// @param token_count  of the cut in which it was met; 0 outside of a lookup
StoreFault handle_damage(StoreContext& context, ObjectKind kind, const Id32& id, Error error,
                         std::uint64_t token_count, const LookAgain& look);

/// Quarantines a damaged object and withdraws every cut that needs it, in strict mode too. Tells nobody. Not
/// inside a transaction.
/// @return false when it is left alone: it has been healed, it has no row that can be found, its file is no
///         regular one, or this handle has moved 64 objects
Result<bool> quarantine_damaged(StoreContext& context, ObjectKind kind, const Id32& id,
                                const std::string& reason, const LookAgain& look);

/// The object that an error names, if it names one.
std::optional<Id32> object_of(const Error& error);

/// Takes an object and every cut that needs it out of sight, inside an open write transaction: the rows
/// become DAMAGED and their prefixes go. Files are left alone.
/// @return false when the object has no row that can be found, so that there is nothing to withdraw
Result<bool> withdraw(sqlite::Database& db, ObjectKind kind, const Id32& id);

}  // namespace kvpack::store
