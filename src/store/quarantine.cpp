#include "store/quarantine.h"

#include "store/disk_reserve.h"
#include "store/quota_share.h"

namespace kvpack::store {
namespace {

struct PruneRound {
  std::size_t removed = 0;
  bool over_cap = false;  ///< Afterwards.
};

/// Entries that go in one round: those that have expired, and while the cap is exceeded the oldest. Both come
/// first in the order of expiry, since every entry lives as long as any other.
Result<std::vector<std::pair<std::int64_t, std::string>>> entries_to_prune(StoreContext& context,
                                                                           sqlite::Database& db,
                                                                           std::uint64_t& quarantine_bytes) {
  const std::uint64_t now = context.now_ns();
  const std::uint64_t cap = quarantine_cap_bytes(context);
  std::vector<std::pair<std::int64_t, std::string>> entries;
  KVPACK_TRY_ASSIGN(auto row, db.prepare("SELECT entry, path_token, file_bytes, expires_ns FROM quarantine"
                                         " ORDER BY expires_ns, created_ns LIMIT ?"));
  row.bind(kQuarantineRound);
  for (;;) {
    KVPACK_TRY_ASSIGN(const bool found, row.step());
    if (!found || (row.count(3) > now && quarantine_bytes <= cap)) return entries;
    entries.emplace_back(row.integer(0), row.text(1));
    quarantine_bytes -= std::min(quarantine_bytes, row.count(2));
  }
}

Result<PruneRound> prune_round(StoreContext& context) {
  return with_reserve(context.files.root(), [&] {
    return context.catalog->write([&](sqlite::Database& db) -> Result<PruneRound> {
      KVPACK_TRY_ASSIGN(const auto held, db.number("SELECT quarantine_bytes FROM store"));
      auto quarantine_bytes = static_cast<std::uint64_t>(std::max<std::int64_t>(held.value_or(0), 0));
      KVPACK_TRY_ASSIGN(const auto entries, entries_to_prune(context, db, quarantine_bytes));
      PruneRound round;
      round.over_cap = quarantine_bytes > quarantine_cap_bytes(context);
      if (entries.empty()) return round;
      Directory& quarantine = context.files.quarantine();
      for (const auto& [entry, token] : entries) {
        // A token that is no name of a file has none here; its row goes all the same.
        if (!check_file_name(token).has_value()) continue;
        const Status gone = quarantine.unlink(token);
        if (!gone.has_value() && gone.error().code != ErrorCode::kNotFound) return Error(gone.error());
      }
      KVPACK_TRY(quarantine.sync());
      for (const auto& [entry, token] : entries)
        KVPACK_TRY(db.run("DELETE FROM quarantine WHERE entry = ?", entry));
      round.removed = entries.size();
      return round;
    });
  });
}

}  // namespace

std::uint64_t quarantine_cap_bytes(const StoreContext& context) {
  return quota_share(*context.options.quota_bytes, context.options.watermarks.quarantine);
}

Status insert_quarantine_entry(StoreContext& context, sqlite::Database& db, const QuarantineEntry& entry) {
  const std::uint64_t now = context.now_ns();
  return db.run(
      "INSERT INTO quarantine (path_token, kind, object_id, file_bytes, created_ns, expires_ns, reason)"
      " VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (path_token) DO NOTHING",
      entry.path_token, number(entry.kind), entry.object, entry.file_bytes, now, now + kQuarantineLifetimeNs,
      entry.reason);
}

Status move_to_quarantine(StoreContext& context, Directory& from, std::string_view name,
                          std::string_view path_token) {
  Directory& quarantine = context.files.quarantine();
  // What has the name already is the same file, after a power cut that kept both names of a rename. To rename
  // one name of a file to another one of it would do nothing.
  const Status gone = quarantine.unlink(path_token);
  if (!gone.has_value() && gone.error().code != ErrorCode::kNotFound) return gone;
  return from.rename(name, quarantine, path_token);
}

Status quarantine_file(StoreContext& context, Directory& from, std::string_view name, QuarantineKind kind,
                       const std::optional<Id32>& object, const std::string& reason) {
  KVPACK_TRY_ASSIGN(const FileFacts facts, from.facts(name));
  if (facts.kind != FileKind::kRegular)
    return fail(ErrorCode::kState, "quarantine takes regular files: " + join_path(from.path(), name));
  KVPACK_TRY_ASSIGN(const Id32 random, random_id(context));
  const QuarantineEntry entry{.path_token = random.hex() + ".quarantine",
                              .kind = kind,
                              .object = object,
                              .file_bytes = facts.size_bytes,
                              .reason = reason};
  // A crash in between leaves a file without an entry, which the next open enters.
  KVPACK_TRY(move_to_quarantine(context, from, name, entry.path_token));
  KVPACK_TRY(from.sync());
  KVPACK_TRY(context.files.quarantine().sync());
  KVPACK_TRY(with_reserve(context.files.root(), [&] {
    return context.catalog->write(
        [&](sqlite::Database& db) { return insert_quarantine_entry(context, db, entry); });
  }));
  // Best effort: what is wrong with older entries is reported by the next maintenance.
  (void)prune_round(context);
  return success();
}

Status prune_quarantine(StoreContext& context) {
  for (;;) {
    KVPACK_TRY_ASSIGN(const PruneRound round, prune_round(context));
    if (round.removed < kQuarantineRound) return success();
  }
}

Status enforce_quarantine(StoreContext& context) {
  KVPACK_TRY_ASSIGN(const PruneRound round, prune_round(context));
  if (round.over_cap) return fail(ErrorCode::kQuota, "quarantine capacity requires bounded maintenance");
  return success();
}

}  // namespace kvpack::store
