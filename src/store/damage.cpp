#include "store/damage.h"

#include "store/disk_reserve.h"
#include "store/quarantine.h"
#include "store/store_objects.h"

namespace kvpack::store {
namespace {

// The manifests that need an object and, since a delta is nothing without its parent, all their descendants.
constexpr std::string_view kWithdrawUsersOfChunk =
    "UPDATE manifests SET state = 3 WHERE state = 1 AND manifest IN ("
    "WITH RECURSIVE hit (manifest) AS (SELECT manifest FROM manifest_chunks WHERE chunk = ?1"
    " UNION SELECT m.manifest FROM hit JOIN manifests m ON m.parent = hit.manifest)"
    " SELECT manifest FROM hit)";
constexpr std::string_view kForgetPrefixesOfChunk =
    "DELETE FROM prefixes WHERE manifest IN ("
    "WITH RECURSIVE hit (manifest) AS (SELECT manifest FROM manifest_chunks WHERE chunk = ?1"
    " UNION SELECT m.manifest FROM hit JOIN manifests m ON m.parent = hit.manifest)"
    " SELECT manifest FROM hit)";
constexpr std::string_view kWithdrawManifest =
    "UPDATE manifests SET state = 3 WHERE state = 1 AND manifest IN ("
    "WITH RECURSIVE hit (manifest) AS (VALUES (?1)"
    " UNION SELECT m.manifest FROM hit JOIN manifests m ON m.parent = hit.manifest)"
    " SELECT manifest FROM hit)";
constexpr std::string_view kForgetPrefixesOfManifest =
    "DELETE FROM prefixes WHERE manifest IN ("
    "WITH RECURSIVE hit (manifest) AS (VALUES (?1)"
    " UNION SELECT m.manifest FROM hit JOIN manifests m ON m.parent = hit.manifest)"
    " SELECT manifest FROM hit)";

/// Takes one of the objects that this handle may move. @return false when none is left
bool take_quarantine_slot(StoreContext& context) {
  unsigned taken = context.quarantined_objects.load();
  do {
    if (taken >= kMaxQuarantinedObjects) return false;
  } while (!context.quarantined_objects.compare_exchange_weak(taken, taken + 1));
  return true;
}

/// Whether the second look meets damage of the object too.
bool is_still_damaged(const Id32& id, const LookAgain& look) {
  const Status again = look(id);
  return !again.has_value() && is_damage(again.error()) && object_of(again.error()).value_or(id) == id;
}

/// Withdraws the object and moves its file. @return false when there was nothing to withdraw
Result<bool> quarantine_object(StoreContext& context, ObjectKind kind, const Id32& id,
                               const std::string& reason, const LookAgain& look) {
  KVPACK_TRY_ASSIGN(const auto shard, context.files.objects(kind).open_directory(shard_name(id)));
  const std::string name = object_file_name(kind, id);
  KVPACK_TRY_ASSIGN(const Id32 random, random_id(context));
  QuarantineEntry entry{.path_token = random.hex() + ".damaged.quarantine",
                        .kind = QuarantineKind::kDamagedObject,
                        .object = id,
                        .reason = reason};
  FileFacts damaged;
  KVPACK_TRY_ASSIGN(const bool withdrawn, with_reserve(context.files.root(), [&] {
                      return context.catalog->write([&](sqlite::Database& db) -> Result<bool> {
                        KVPACK_TRY_ASSIGN(damaged, shard->facts(name));
                        if (damaged.kind != FileKind::kRegular || !is_still_damaged(id, look)) return false;
                        entry.file_bytes = damaged.size_bytes;
                        KVPACK_TRY_ASSIGN(const bool found, withdraw(db, kind, id));
                        if (found) KVPACK_TRY(insert_quarantine_entry(context, db, entry));
                        return found;
                      });
                    }));
  if (!withdrawn) return false;
  // From here on nobody finds the object, and a save may put another file in its place. When the damaged one
  // cannot be moved, that save or the collector removes it.
  const std::lock_guard alone(context.target_mutex);
  const auto there = shard->facts(name);
  if (there.has_value() && there->is_same_file(damaged) &&
      move_to_quarantine(context, *shard, name, entry.path_token).has_value()) {
    (void)shard->sync();
    (void)context.files.quarantine().sync();
  }
  return true;
}

}  // namespace

Result<bool> withdraw(sqlite::Database& db, ObjectKind kind, const Id32& id) {
  const bool is_chunk = kind == ObjectKind::kChunk;
  KVPACK_TRY_ASSIGN(const auto row,
                    db.number(is_chunk ? "SELECT chunk FROM chunks WHERE object_key = ? AND state = 1"
                                       : "SELECT manifest FROM manifests WHERE manifest_id = ? AND state = 1",
                              id));
  if (!row) return false;
  if (is_chunk) KVPACK_TRY(db.run("UPDATE chunks SET state = 3 WHERE chunk = ?", *row));
  KVPACK_TRY(db.run(is_chunk ? kForgetPrefixesOfChunk : kForgetPrefixesOfManifest, *row));
  KVPACK_TRY(db.run(is_chunk ? kWithdrawUsersOfChunk : kWithdrawManifest, *row));
  return true;
}

std::optional<Id32> object_of(const Error& error) {
  for (const Context& fact : error.context)
    if (fact.key == "object") return Id32::from_hex(fact.value);
  return std::nullopt;
}

Result<bool> quarantine_damaged(StoreContext& context, ObjectKind kind, const Id32& id,
                                const std::string& reason, const LookAgain& look) {
  if (!take_quarantine_slot(context)) return false;
  auto quarantined = quarantine_object(context, kind, id, reason, look);
  if (!quarantined.has_value() || !*quarantined) {
    --context.quarantined_objects;
    return quarantined;
  }
  context.counters.add(Counter::kObjectsQuarantined);
  // Best effort: a quarantine above its cap is reported by the next reservation.
  (void)prune_quarantine(context);
  return true;
}

StoreFault handle_damage(StoreContext& context, ObjectKind kind, const Id32& id, Error error,
                         std::uint64_t token_count, const LookAgain& look) {
  StoreFault fault{
      .object = kind == ObjectKind::kChunk ? StoreFault::Object::kChunk : StoreFault::Object::kManifest,
      .action = StoreFault::Action::kSkipped,
      .id = id,
      .path = context.files.object_path(kind, id),
      .error = std::move(error),
      .token_count = token_count};
  if (is_damage(fault.error) && !context.options.strict && !context.read_only) {
    const auto quarantined = quarantine_damaged(context, kind, id, fault.error.message, look);
    if (quarantined.has_value() && *quarantined) fault.action = StoreFault::Action::kQuarantined;
  }
  if (context.options.on_fault) context.options.on_fault(fault);
  return fault;
}

}  // namespace kvpack::store
