/// Files that are kept as evidence for 24 hours and never read as objects again. docs/format/store.md
/// §Quarantine
#pragma once

#include "store/store_context.h"

namespace kvpack::store {

inline constexpr std::uint64_t kQuarantineLifetimeNs = std::uint64_t{24} * 3'600 * 1'000'000'000;
/// Entries that one round of pruning removes at most.
inline constexpr std::size_t kQuarantineRound = 1'024;

/// What the catalog says about one quarantined file.
struct QuarantineEntry {
  std::string path_token{};  ///< Name of the file in `quarantine/`.
  QuarantineKind kind = QuarantineKind::kDamagedObject;
  std::optional<Id32> object{};
  std::uint64_t file_bytes = 0;
  std::string reason{};
};

/// How many bytes quarantined files may take.
std::uint64_t quarantine_cap_bytes(const StoreContext& context);

/// Enters a file, inside an open write transaction. A token that is known already changes nothing.
Status insert_quarantine_entry(StoreContext& context, sqlite::Database& db, const QuarantineEntry& entry);

/// Moves a file into quarantine. It is durable once `from` and the quarantine have been synced. Enters
/// nothing.
Status move_to_quarantine(StoreContext& context, Directory& from, std::string_view name,
                          std::string_view path_token);

/// Moves a regular file into quarantine, enters it, and prunes one round. Not inside a transaction.
/// @error kState the file is not a regular one; kNotFound kIo kCatalog
Status quarantine_file(StoreContext& context, Directory& from, std::string_view name, QuarantineKind kind,
                       const std::optional<Id32>& object, const std::string& reason);

/// Removes expired entries, and the oldest ones while the cap is exceeded, in rounds until nothing more can
/// be removed. An over-full quarantine is no error here.
Status prune_quarantine(StoreContext& context);

/// One round, for a save that is about to reserve.
/// @error kQuota `quarantine capacity requires bounded maintenance`
Status enforce_quarantine(StoreContext& context);

}  // namespace kvpack::store
