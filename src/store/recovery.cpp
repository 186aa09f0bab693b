#include "store/recovery.h"

#include "kvpack/crypto/sha256.h"
#include "store/collect.h"
#include "store/disk_reserve.h"
#include "store/quarantine.h"
#include "store/upload.h"

namespace kvpack::store {
namespace {

constexpr std::size_t kMaxRecoveredEntries = 10'000;
constexpr std::uint64_t kImportLifetimeNs = std::uint64_t{24} * 3'600 * 1'000'000'000;
constexpr std::string_view kPartialSuffix = ".partial";
constexpr std::string_view kStagedSuffix = ".kvpack.partial";

/// A name as a message may show it.
std::string printable_name(std::string_view name) {
  static constexpr char kHexDigits[] = "0123456789abcdef";
  std::string text;
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      text += c;
    } else {
      text += {'\\', 'x', kHexDigits[byte >> 4], kHexDigits[byte & 15]};
    }
  }
  return text;
}

Error unexpected_entry(const Directory& directory, std::string_view name) {
  return fail(ErrorCode::kState, "store directory holds an unexpected entry: " +
                                     join_path(directory.path(), printable_name(name)));
}

/// The names for which `wanted` holds, which returns a Result<bool>.
template <class Wanted>
Result<std::vector<std::string>> bounded_names(Directory& directory, Wanted&& wanted) {
  std::vector<std::string> names;
  Status status = success();
  KVPACK_TRY(directory.list([&](std::string_view name) {
    auto take = wanted(name);
    if (!take.has_value()) {
      status = std::move(take.error());
    } else if (*take && names.size() == kMaxRecoveredEntries) {
      status =
          fail(ErrorCode::kState, "store directory holds more than " + std::to_string(kMaxRecoveredEntries) +
                                      " entries: " + directory.path());
    } else if (*take) {
      names.emplace_back(name);
    }
    return status.has_value();
  }));
  KVPACK_TRY(std::move(status));
  return names;
}

Result<FileFacts> regular_facts(Directory& directory, const std::string& name) {
  KVPACK_TRY_ASSIGN(const FileFacts facts, directory.facts(name));
  if (facts.kind != FileKind::kRegular) return unexpected_entry(directory, name);
  return facts;
}

/// Uploads whose session has died with its process. Imports are kept for a day, to be gone on with.
Status abort_orphaned_uploads(StoreContext& context) {
  const std::uint64_t now = context.now_ns();
  const std::uint64_t oldest_import = now - std::min(now, kImportLifetimeNs);
  KVPACK_TRY_ASSIGN(const auto uploads,
                    context.catalog->read([&](sqlite::Database& db) -> Result<std::vector<std::int64_t>> {
                      std::vector<std::int64_t> found;
                      KVPACK_TRY_ASSIGN(auto row,
                                        db.prepare("SELECT upload FROM uploads WHERE state IN (1, 2, 3)"
                                                   " AND owner <> ?1 AND (kind <> 3 OR updated_ns <= ?2)"
                                                   " ORDER BY updated_ns"));
                      row.bind(context.incarnation, oldest_import);
                      for (;;) {
                        KVPACK_TRY_ASSIGN(const bool more, row.step());
                        if (!more) return found;
                        found.push_back(row.integer(0));
                      }
                    }));
  for (const std::int64_t upload : uploads)
    KVPACK_TRY(with_reserve(context.files.root(), [&] {
      return context.catalog->write([&](sqlite::Database& db) { return abort_upload(context, db, upload); });
    }));
  return success();
}

/// Nothing but staged manifests of imports may be here.
Status check_uploads_directory(StoreContext& context) {
  KVPACK_TRY_ASSIGN(const auto directory, context.files.objects().open_directory("uploads"));
  KVPACK_TRY_ASSIGN(const auto names,
                    bounded_names(*directory, [](std::string_view) { return Result<bool>(true); }));
  for (const std::string& name : names) {
    std::string_view id = name;
    if (!id.ends_with(kStagedSuffix)) return unexpected_entry(*directory, name);
    id.remove_suffix(kStagedSuffix.size());
    if (!Id32::from_hex(id)) return unexpected_entry(*directory, name);
    KVPACK_TRY(regular_facts(*directory, name));
  }
  return success();
}

std::string restart_token(const StoreContext& context, std::string_view name) {
  const Digest32 digest = sha256({with_nul("kvpack/v1/restart-partial"), context.tenant, byte_view(name)});
  return "restart-" + Id32::from_bytes(digest).hex() + ".quarantine";
}

/// Half-written files are evidence of what was going on when the process died.
Status quarantine_partials(StoreContext& context) {
  Directory& partials = context.files.partials();
  return context.catalog->write([&](sqlite::Database& db) -> Status {
    KVPACK_TRY_ASSIGN(const auto names, bounded_names(partials, [&](std::string_view name) -> Result<bool> {
                        if (!name.ends_with(kPartialSuffix)) return unexpected_entry(partials, name);
                        return true;
                      }));
    if (names.empty()) return success();
    for (const std::string& name : names) {
      KVPACK_TRY_ASSIGN(const FileFacts facts, regular_facts(partials, name));
      const QuarantineEntry entry{.path_token = restart_token(context, name),
                                  .kind = QuarantineKind::kRestartPartial,
                                  .file_bytes = facts.size_bytes,
                                  .reason = "partial recovered during restart"};
      KVPACK_TRY(move_to_quarantine(context, partials, name, entry.path_token));
      KVPACK_TRY(insert_quarantine_entry(context, db, entry));
    }
    KVPACK_TRY(partials.sync());
    return context.files.quarantine().sync();
  });
}

/// Files that were moved here by a process that died before it could enter them.
Status enter_unknown_quarantine_files(StoreContext& context) {
  Directory& quarantine = context.files.quarantine();
  return context.catalog->write([&](sqlite::Database& db) -> Status {
    KVPACK_TRY_ASSIGN(const auto names, bounded_names(quarantine, [&](std::string_view name) -> Result<bool> {
                        KVPACK_TRY_ASSIGN(
                            const auto entry,
                            db.number("SELECT entry FROM quarantine WHERE path_token = ?", name));
                        return !entry.has_value();
                      }));
    if (names.empty()) return success();
    for (const std::string& name : names) {
      if (printable_name(name) != name) return unexpected_entry(quarantine, name);
      KVPACK_TRY_ASSIGN(const FileFacts facts, regular_facts(quarantine, name));
      const QuarantineEntry entry{.path_token = name,
                                  .kind = QuarantineKind::kRecoveredQuarantine,
                                  .file_bytes = facts.size_bytes,
                                  .reason = "uncataloged quarantine file recovered during restart"};
      KVPACK_TRY(insert_quarantine_entry(context, db, entry));
    }
    // The name of such a file may not be durable yet.
    return quarantine.sync();
  });
}

}  // namespace

Status recover(StoreContext& context) {
  Directory& root = context.files.root();
  // Uploads first: what they have planned is not removed.
  KVPACK_TRY(abort_orphaned_uploads(context));
  // An object that cannot be removed stays invisible and is tried again by every collection.
  KVPACK_TRY(remove_pending(context, Removable::kEvicting));
  KVPACK_TRY(check_uploads_directory(context));
  KVPACK_TRY(with_reserve(root, [&] { return quarantine_partials(context); }));
  KVPACK_TRY(with_reserve(root, [&] { return enter_unknown_quarantine_files(context); }));
  return Pins::sweep(context.files.pins());
}

}  // namespace kvpack::store
