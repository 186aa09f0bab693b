/// What happens to an object that turned out absent or wrong. docs/format/store.md §Damage
#pragma once

#include "store/store_context.h"

namespace kvpack::store {

/// Whether an error met while reading an object says that the object is wrong (`Authentication`, `Codec` and
/// the errors of the format), as against absent, unreadable, or nothing to do with the object. The caller
/// reads it once more before it believes that.
bool is_damage(const Error& error);
/// Whether a lookup passes over the candidate after such an error: damage, a missing file, a failed read.
/// Everything else is returned to the caller of the lookup.
bool is_object_fault(const Error& error);

/// Deals with a fault of an object: damage is quarantined and every cut that needs the object is withdrawn;
/// an absent or unreadable object is left alone, as is everything in strict mode, in a read-only handle and
/// once this handle has moved 64 objects. Tells `on_fault`. Not inside a transaction.
/// @param token_count  of the cut in which it was met; 0 outside of a lookup
StoreFault handle_damage(StoreContext& context, ObjectKind kind, const Id32& id, Error error,
                         std::uint64_t token_count);

/// Takes an object and every cut that needs it out of sight, inside an open write transaction: the rows
/// become DAMAGED and their prefixes go. Files are left alone.
/// @return false when the object has no row that can be found, so that there is nothing to withdraw
Result<bool> withdraw(sqlite::Database& db, ObjectKind kind, const Id32& id);

}  // namespace kvpack::store
