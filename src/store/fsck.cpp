#include "kvpack/store/fsck.h"

#include <algorithm>
#include <unordered_set>

#include "store/collect.h"
#include "store/damage.h"
#include "store/disk_reserve.h"
#include "store/findings.h"
#include "store/invariant_repair.h"
#include "store/invariants.h"
#include "store/object_check.h"
#include "store/object_files.h"
#include "store/store_objects.h"

namespace kvpack {

using namespace store;  // the facade of what lives there

namespace {

/// Rows that one read transaction takes at most.
constexpr int kRowPage = 1'024;
/// Lines of SQLite's own check that are reported.
constexpr int kDatabaseLines = 20;
constexpr std::string_view kRowDisagrees = "the row does not say what its object says";

/// The row of an available object.
struct CheckedRow {
  std::int64_t row = 0;
  Id32 id;
  std::uint64_t file_bytes = 0;
};

/// What a file is against its row.
enum class FileVerdict : std::uint8_t { kWhole, kMissing, kWrongLength, kNoFile };

Result<FileVerdict> judge_file(const StoreFiles& files, ObjectKind kind, const CheckedRow& row) {
  const auto facts = files.object_facts(kind, row.id);
  if (!facts.has_value() && facts.error().code == ErrorCode::kNotFound) return FileVerdict::kMissing;
  if (!facts.has_value()) return Error(facts.error());
  if (facts->kind != FileKind::kRegular) return FileVerdict::kNoFile;
  return facts->size_bytes == row.file_bytes ? FileVerdict::kWhole : FileVerdict::kWrongLength;
}

Result<bool> is_available(sqlite::Database& db, ObjectKind kind, const Id32& id) {
  KVPACK_TRY_ASSIGN(const auto row,
                    db.number(kind == ObjectKind::kChunk
                                  ? "SELECT chunk FROM chunks WHERE object_key = ? AND state = 1"
                                  : "SELECT manifest FROM manifests WHERE manifest_id = ? AND state = 1",
                              id));
  return row.has_value();
}

/// Whether a file of this object may be there: it has a row, or an unfinished upload has planned it.
Result<bool> is_expected(sqlite::Database& db, ObjectKind kind, const Id32& id) {
  KVPACK_TRY_ASSIGN(const auto row, db.number(kind == ObjectKind::kChunk
                                                  ? "SELECT chunk FROM chunks WHERE object_key = ?"
                                                  : "SELECT manifest FROM manifests WHERE manifest_id = ?",
                                              id));
  if (row) return true;
  KVPACK_TRY_ASSIGN(const auto plan,
                    db.number("SELECT upload FROM upload_objects WHERE kind = ? AND object_id = ? LIMIT 1",
                              number(kind), id));
  return plan.has_value();
}

/// The columns of a manifest's row that its manifest says too.
Result<bool> row_says(sqlite::Database& db, std::int64_t row, const CutManifest& manifest) {
  KVPACK_TRY_ASSIGN(const IdentifiedFamily family, IdentifiedFamily::create(manifest.family));
  KVPACK_TRY_ASSIGN(auto stored, db.prepare("SELECT m.depth, m.key_epoch, m.semantic_id, m.family_id,"
                                            " m.token_count, m.restored_bytes, p.manifest_id FROM manifests m"
                                            " LEFT JOIN manifests p ON p.manifest = m.parent"
                                            " WHERE m.manifest = ?"));
  KVPACK_TRY_ASSIGN(const bool found, stored.bind(row).step());
  const auto& parent = manifest.schema.kind.parent;
  if (!found || stored.count(0) != manifest.schema.kind.depth || stored.count(1) != manifest.key_epoch ||
      stored.id(2) != semantic_model_id(manifest.semantic_model) || stored.id(3) != family.id() ||
      stored.count(4) != manifest.input_cut.token_count ||
      stored.count(5) != manifest.schema.complete_restored_bytes ||
      stored.id(6) != (parent ? parent->manifest_id : Id32{}))
    return false;
  KVPACK_TRY_ASSIGN(const auto prefixes,
                    db.number("SELECT count(*) FROM prefixes WHERE manifest = ?1 AND prefix_id = ?2", row,
                              manifest.input_cut.token_root));
  KVPACK_TRY_ASSIGN(const auto all, db.number("SELECT count(*) FROM prefixes WHERE manifest = ?", row));
  return prefixes == 1 && all == 1;
}

/// One check. Each object is looked at on its own, in transactions of its own: others go on meanwhile.
class StoreCheck {
 public:
  StoreCheck(StoreContext& context, const FsckOptions& options, Findings findings)
      : context_(context), options_(options), findings_(std::move(findings)), chunks_(context) {}

  Result<FsckReport> run() {
    KVPACK_TRY(findings_.tell());
    KVPACK_TRY_ASSIGN(const bool readable, check_database());
    if (readable) {
      KVPACK_TRY(check_invariants_of_rows());
      for (const ObjectKind kind : {ObjectKind::kManifest, ObjectKind::kChunk}) KVPACK_TRY(check_files(kind));
      if (options_.deep) KVPACK_TRY(check_contents());
      // What has been withdrawn goes before files without a row are looked for.
      if (options_.repair) KVPACK_TRY(remove_pending(context_, Removable::kEvictingOrDamaged));
      for (const ObjectKind kind : {ObjectKind::kManifest, ObjectKind::kChunk})
        KVPACK_TRY(check_orphans(kind));
    }
    KVPACK_TRY(findings_.tell());
    report_.found = findings_.found();
    report_.repaired = findings_.repaired();
    report_.bytes_read = findings_.bytes_read();
    report_.findings = std::move(findings_).take();
    return std::move(report_);
  }

 private:
  template <class Body>
  auto read(Body&& body) {
    return context_.catalog->read(std::forward<Body>(body));
  }
  template <class Body>
  auto write(Body&& body) {
    return with_reserve(context_.files.root(), [&] { return context_.catalog->write(body); });
  }

  Result<bool> check_database();
  Status check_invariants_of_rows();
  Status check_files(ObjectKind kind);
  Status check_file(ObjectKind kind, const CheckedRow& row);
  Status check_contents();
  Status check_manifest(const CheckedRow& row);
  Status check_chunks_of(const CutManifest& manifest);
  Status check_chunk_row(const ChunkRef& ref, std::int64_t& row, bool& agrees);
  Status check_unnamed_chunks();
  Status check_orphans(ObjectKind kind);
  Status judge_orphan(ObjectKind kind, const ObjectFile& file);
  Status remove_orphans(ObjectKind kind);
  Result<std::vector<CheckedRow>> available_rows(ObjectKind kind, std::int64_t after);
  Status note_content(ObjectKind kind, const Id32& id, std::uint64_t bytes, const Error& error,
                      const LookAgain& look);
  Result<bool> withdraw_object(ObjectKind kind, const Id32& id);
  FsckFinding finding_of(FsckProblem problem, ObjectKind kind, const Id32& id, std::uint64_t bytes,
                         std::string text) const {
    return {.problem = problem,
            .object = fault_object(kind),
            .id = id,
            .path = context_.files.object_path(kind, id),
            .bytes = bytes,
            .text = std::move(text)};
  }

  StoreContext& context_;
  const FsckOptions& options_;
  Findings findings_;
  FsckReport report_{};
  ChunkCheck chunks_;
  std::unordered_set<std::int64_t> checked_chunks_{};  ///< Rows of chunks whose content has been looked at.
  std::vector<FsckFinding> orphans_{};                 ///< To be removed together.
};

/// SQLite's own check. @return whether the rows can be relied on at all
Result<bool> StoreCheck::check_database() {
  std::vector<std::string> lines;
  const Status checked = read([&](sqlite::Database& db) -> Status {
    KVPACK_TRY_ASSIGN(auto line,
                      db.prepare("PRAGMA integrity_check(" + std::to_string(kDatabaseLines) + ")"));
    for (;;) {
      KVPACK_TRY_ASSIGN(const bool more, line.step());
      if (!more) return success();
      if (line.text(0) != "ok") lines.push_back(line.text(0));
    }
  });
  if (!checked.has_value()) lines.push_back(checked.error().message);
  for (std::string& line : lines)
    findings_.add(
        {.problem = FsckProblem::kDatabase, .path = context_.catalog->path(), .text = std::move(line)});
  return lines.empty();
}

Status StoreCheck::check_invariants_of_rows() {
  KVPACK_TRY_ASSIGN(std::vector<std::string> violations, violated_invariants(context_));
  bool repaired = false;
  if (!violations.empty() && options_.repair) {
    KVPACK_TRY(write([](sqlite::Database& db) { return repair_invariants(db); }));
    KVPACK_TRY(remove_pending(context_, Removable::kEvictingOrDamaged));
    KVPACK_TRY_ASSIGN(const auto left, violated_invariants(context_));
    repaired = left.empty();
  }
  for (std::string& violation : violations)
    findings_.add({.problem = FsckProblem::kInvariant,
                   .path = context_.catalog->path(),
                   .text = std::move(violation),
                   .repaired = repaired});
  return success();
}

// --- rows and their files ---------------------------------------------------------------------------------

Result<std::vector<CheckedRow>> StoreCheck::available_rows(ObjectKind kind, std::int64_t after) {
  return read([&](sqlite::Database& db) -> Result<std::vector<CheckedRow>> {
    std::vector<CheckedRow> rows;
    KVPACK_TRY_ASSIGN(auto row, db.prepare(kind == ObjectKind::kChunk
                                               ? "SELECT chunk, object_key, object_bytes FROM chunks"
                                                 " WHERE state = 1 AND chunk > ? ORDER BY chunk LIMIT ?"
                                               : "SELECT manifest, manifest_id, file_bytes FROM manifests"
                                                 " WHERE state = 1 AND manifest > ? ORDER BY manifest LIMIT "
                                                 "?"));
    row.bind(after, kRowPage);
    for (;;) {
      KVPACK_TRY_ASSIGN(const bool more, row.step());
      if (!more) return rows;
      rows.push_back({row.integer(0), row.id(1), row.count(2)});
    }
  });
}

Status StoreCheck::check_files(ObjectKind kind) {
  for (std::int64_t after = 0;;) {
    KVPACK_TRY_ASSIGN(const auto rows, available_rows(kind, after));
    if (rows.empty()) return success();
    for (const CheckedRow& row : rows) {
      ++(kind == ObjectKind::kChunk ? report_.chunks : report_.manifests);
      KVPACK_TRY(findings_.note_object());
      KVPACK_TRY(check_file(kind, row));
    }
    after = rows.back().row;
  }
}

/// Withdraws an object that cannot be used, unless somebody else has done so. @return whether it did
Result<bool> StoreCheck::withdraw_object(ObjectKind kind, const Id32& id) {
  return write([&](sqlite::Database& db) { return withdraw(db, kind, id); });
}

Status StoreCheck::check_file(ObjectKind kind, const CheckedRow& row) {
  const auto verdict = judge_file(context_.files, kind, row);
  if (!verdict.has_value()) {
    findings_.add(
        finding_of(FsckProblem::kUnreadable, kind, row.id, row.file_bytes, verdict.error().message));
    return success();
  }
  if (*verdict == FileVerdict::kWhole) return success();
  // It may have been evicted between the two looks.
  KVPACK_TRY_ASSIGN(const bool available,
                    read([&](sqlite::Database& db) { return is_available(db, kind, row.id); }));
  if (!available) return success();
  FsckFinding finding = finding_of(FsckProblem::kWrongFile, kind, row.id, row.file_bytes,
                                   "the file has another length than its row");
  if (*verdict == FileVerdict::kMissing) {
    finding.problem = FsckProblem::kMissingFile;
    finding.text = "the row has no file";
  } else if (*verdict == FileVerdict::kNoFile) {
    finding.text = "something else than a regular file has the object's name";
  }
  if (options_.repair && *verdict == FileVerdict::kWrongLength) {
    const auto look = [&](const Id32&) -> Status {
      KVPACK_TRY_ASSIGN(const FileVerdict now, judge_file(context_.files, kind, row));
      if (now != FileVerdict::kWrongLength) return success();
      return fail(ErrorCode::kAuthentication, finding.text);
    };
    KVPACK_TRY_ASSIGN(finding.repaired, quarantine_damaged(context_, kind, row.id, finding.text, look));
  } else if (options_.repair) {
    KVPACK_TRY_ASSIGN(const bool withdrawn, withdraw_object(kind, row.id));
    // What is no file of ours is for somebody else to remove.
    finding.repaired = withdrawn && *verdict == FileVerdict::kMissing;
  }
  findings_.add(std::move(finding));
  return success();
}

// --- contents ----------------------------------------------------------------------------------------------

Status StoreCheck::check_contents() {
  for (std::int64_t after = 0;;) {
    KVPACK_TRY_ASSIGN(const auto rows, available_rows(ObjectKind::kManifest, after));
    if (rows.empty()) break;
    for (const CheckedRow& row : rows) KVPACK_TRY(check_manifest(row));
    after = rows.back().row;
  }
  return check_unnamed_chunks();
}

/// An object that could not be read or is not what it should be.
Status StoreCheck::note_content(ObjectKind kind, const Id32& id, std::uint64_t bytes, const Error& error,
                                const LookAgain& look) {
  // That the file is missing has been reported, or it has been evicted meanwhile.
  if (error.code == ErrorCode::kNotFound && error.message == "artifact not found") return success();
  const bool damaged = is_damage(error);
  if (!damaged && error.code != ErrorCode::kIo && error.code != ErrorCode::kNotFound) return error;
  KVPACK_TRY_ASSIGN(const bool available,
                    read([&](sqlite::Database& db) { return is_available(db, kind, id); }));
  if (!available) return success();
  FsckFinding finding = finding_of(damaged ? FsckProblem::kDamagedObject : FsckProblem::kUnreadable, kind, id,
                                   bytes, error.message);
  // What has another length than its row has been reported already.
  const auto verdict = judge_file(context_.files, kind, {0, id, bytes});
  if (verdict.has_value() && *verdict != FileVerdict::kWhole) return success();
  if (damaged && options_.repair) {
    KVPACK_TRY_ASSIGN(finding.repaired, quarantine_damaged(context_, kind, id, error.message, look));
  }
  findings_.add(std::move(finding));
  return success();
}

Status StoreCheck::check_manifest(const CheckedRow& row) {
  KVPACK_TRY(findings_.note_object());
  const auto open = [&]() -> Result<StoredManifest> {
    KVPACK_TRY_ASSIGN(StoredManifest opened, open_stored_manifest(context_, row.id));
    if (!opened.manifest)
      return fail(ErrorCode::kAuthentication, "manifest candidate belongs to another tenant");
    return opened;
  };
  const auto stored = open();
  if (!stored.has_value())
    return note_content(ObjectKind::kManifest, row.id, row.file_bytes, stored.error(),
                        [&](const Id32&) -> Status {
                          KVPACK_TRY(open());
                          return success();
                        });
  KVPACK_TRY(findings_.note_read(stored->file_bytes));
  KVPACK_TRY_ASSIGN(const bool agrees, read([&](sqlite::Database& db) -> Result<bool> {
                      KVPACK_TRY_ASSIGN(const bool available,
                                        is_available(db, ObjectKind::kManifest, row.id));
                      return available ? row_says(db, row.row, *stored->manifest) : Result<bool>(true);
                    }));
  if (!agrees) {
    FsckFinding finding = finding_of(FsckProblem::kInvariant, ObjectKind::kManifest, row.id, row.file_bytes,
                                     std::string(kRowDisagrees));
    // A save of the same tokens makes the row again.
    if (options_.repair) {
      KVPACK_TRY_ASSIGN(finding.repaired, withdraw_object(ObjectKind::kManifest, row.id));
    }
    findings_.add(std::move(finding));
  }
  return check_chunks_of(*stored->manifest);
}

/// The row of a reference's object, and whether it agrees with it. 0: there is none that can be used.
Status StoreCheck::check_chunk_row(const ChunkRef& ref, std::int64_t& row, bool& agrees) {
  return read([&](sqlite::Database& db) -> Status {
    KVPACK_TRY_ASSIGN(auto stored,
                      db.prepare("SELECT chunk, content_id, object_digest, key_epoch, plaintext_bytes,"
                                 " object_bytes FROM chunks WHERE object_key = ? AND state = 1"));
    KVPACK_TRY_ASSIGN(const bool found, stored.bind(ref.object_key).step());
    row = found ? stored.integer(0) : 0;
    agrees = found && stored.id(1) == ref.content_id && stored.id(2) == ref.stored_object_digest &&
             stored.count(3) == ref.key_epoch && stored.count(4) == ref.plaintext_bytes &&
             stored.count(5) == ref.object_bytes;
    return success();
  });
}

Status StoreCheck::check_chunks_of(const CutManifest& manifest) {
  KVPACK_TRY_ASSIGN(const IdentifiedFamily family, IdentifiedFamily::create(manifest.family));
  for (std::size_t s = 0; s < manifest.payload.size(); ++s) {
    const PayloadState& state = manifest.payload[s];
    for (std::size_t k = 0; k < state.chunks.size(); ++k) {
      const ChunkRef& ref = state.chunks[k];
      std::int64_t row = 0;
      bool agrees = false;
      KVPACK_TRY(check_chunk_row(ref, row, agrees));
      if (row == 0 || !checked_chunks_.insert(row).second) continue;
      KVPACK_TRY(findings_.note_object());
      if (!agrees) {
        FsckFinding finding = finding_of(FsckProblem::kInvariant, ObjectKind::kChunk, ref.object_key,
                                         ref.object_bytes, std::string(kRowDisagrees));
        if (options_.repair) {
          KVPACK_TRY_ASSIGN(finding.repaired, withdraw_object(ObjectKind::kChunk, ref.object_key));
        }
        findings_.add(std::move(finding));
        continue;
      }
      const auto check = [&](const Id32&) {
        return chunks_.check(ref, manifest.schema.states[s].chunk_spans[k], state.key, family);
      };
      const Status checked = check(ref.object_key);
      if (checked.has_value()) {
        KVPACK_TRY(findings_.note_read(ref.object_bytes));
      } else {
        KVPACK_TRY(
            note_content(ObjectKind::kChunk, ref.object_key, ref.object_bytes, checked.error(), check));
      }
    }
  }
  return success();
}

/// Chunks of which no readable manifest says what they hold.
Status StoreCheck::check_unnamed_chunks() {
  for (std::int64_t after = 0;;) {
    std::vector<ChunkRef> refs;
    std::vector<std::int64_t> rows;
    KVPACK_TRY(read([&](sqlite::Database& db) -> Status {
      KVPACK_TRY_ASSIGN(auto row, db.prepare("SELECT chunk, object_key, content_id, object_digest, key_epoch,"
                                             " plaintext_bytes, object_bytes FROM chunks"
                                             " WHERE state = 1 AND chunk > ? ORDER BY chunk LIMIT ?"));
      row.bind(after, kRowPage);
      for (;;) {
        KVPACK_TRY_ASSIGN(const bool more, row.step());
        if (!more) return success();
        rows.push_back(row.integer(0));
        refs.push_back({.content_id = row.id(2),
                        .object_key = row.id(1),
                        .stored_object_digest = row.id(3),
                        .key_epoch = row.count(4),
                        .plaintext_bytes = static_cast<std::uint32_t>(row.count(5)),
                        .object_bytes = static_cast<std::uint32_t>(row.count(6))});
      }
    }));
    if (rows.empty()) return success();
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (checked_chunks_.contains(rows[i])) continue;
      KVPACK_TRY(findings_.note_object());
      const auto check = [&](const Id32&) { return chunks_.check(refs[i]); };
      const Status checked = check(refs[i].object_key);
      if (checked.has_value()) {
        KVPACK_TRY(findings_.note_read(refs[i].object_bytes));
      } else {
        KVPACK_TRY(note_content(ObjectKind::kChunk, refs[i].object_key, refs[i].object_bytes, checked.error(),
                                check));
      }
    }
    after = rows.back();
  }
}

// --- files and their rows
// -----------------------------------------------------------------------------------

Status StoreCheck::check_orphans(ObjectKind kind) {
  KVPACK_TRY(visit_object_files(context_.files, kind,
                                [&](const ObjectFile& file) { return judge_orphan(kind, file); }));
  return remove_orphans(kind);
}

Status StoreCheck::judge_orphan(ObjectKind kind, const ObjectFile& file) {
  KVPACK_TRY(findings_.note_object());
  if (!file.id) {
    findings_.add({.problem = FsckProblem::kForeignEntry,
                   .path = join_path(file.shard->path(), file.name),
                   .bytes = file.facts.size_bytes,
                   .text = "not the name and place of an object file"});
    return success();
  }
  const auto expected = [&] {
    return read([&](sqlite::Database& db) { return is_expected(db, kind, *file.id); });
  };
  KVPACK_TRY_ASSIGN(bool known, expected());
  if (known) return success();
  // It may have been removed with its row, and even saved again, since the directory was read.
  const auto now = file.shard->facts(file.name);
  if (!now.has_value() && now.error().code == ErrorCode::kNotFound) return success();
  if (!now.has_value()) return Error(now.error());
  KVPACK_TRY_ASSIGN(known, expected());
  if (known || !now->is_same_file(file.facts)) return success();
  FsckFinding finding =
      finding_of(FsckProblem::kOrphanFile, kind, *file.id, file.facts.size_bytes, "the file has no row");
  if (!options_.repair) {
    findings_.add(std::move(finding));
    return success();
  }
  orphans_.push_back(std::move(finding));
  return orphans_.size() == kRemovalBatch ? remove_orphans(kind) : success();
}

Status StoreCheck::remove_orphans(ObjectKind kind) {
  if (orphans_.empty()) return success();
  // Inside a write transaction nobody can plan an object that is looked at here.
  const auto remove = [&](sqlite::Database& db) -> Status {
    DirtyDirectories dirty;
    for (FsckFinding& orphan : orphans_) {
      KVPACK_TRY_ASSIGN(const bool expected, is_expected(db, kind, *orphan.id));
      if (!expected) KVPACK_TRY(context_.files.unlink_object(kind, *orphan.id, dirty));
      orphan.repaired = true;
    }
    return dirty.sync_all();
  };
  KVPACK_TRY(write(remove));
  for (FsckFinding& orphan : orphans_) findings_.add(std::move(orphan));
  orphans_.clear();
  return success();
}

}  // namespace

std::string_view fsck_problem_name(FsckProblem problem) noexcept {
  switch (problem) {
    case FsckProblem::kDatabase: return "database";
    case FsckProblem::kInvariant: return "invariant";
    case FsckProblem::kMissingFile: return "missing_file";
    case FsckProblem::kWrongFile: return "wrong_file";
    case FsckProblem::kDamagedObject: return "damaged_object";
    case FsckProblem::kUnreadable: return "unreadable";
    case FsckProblem::kOrphanFile: return "orphan_file";
    case FsckProblem::kForeignEntry: return "foreign_entry";
    case FsckProblem::kIncompleteCut: return "incomplete_cut";
  }
  return "database";
}

Result<FsckReport> fsck(Store& store, const FsckOptions& options) {
  KVPACK_TRY(check_writable(store.context()));
  KVPACK_TRY_ASSIGN(Findings findings, Findings::create(options.max_findings, options.progress));
  return StoreCheck(store.context(), options, std::move(findings)).run();
}

}  // namespace kvpack
