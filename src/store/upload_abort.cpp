#include "store/disk_reserve.h"
#include "store/upload.h"
#include "store/upload_rows.h"

namespace kvpack::store {
namespace {

constexpr std::uint64_t kSessionLeaseNs = std::uint64_t{15} * 60 * 1'000'000'000;
constexpr std::uint64_t kImportLeaseNs = std::uint64_t{24} * 3'600 * 1'000'000'000;

struct PlannedObject {
  ObjectKind kind = ObjectKind::kChunk;
  Id32 id;
};

/// Whether the file of a planned object may be removed as far as the catalog knows.
Result<bool> belongs_to_nobody_else(sqlite::Database& db, std::int64_t upload, ObjectKind kind,
                                    const Id32& id) {
  KVPACK_TRY_ASSIGN(const auto row, db.number(kind == ObjectKind::kChunk
                                                  ? "SELECT chunk FROM chunks WHERE object_key = ?"
                                                  : "SELECT manifest FROM manifests WHERE manifest_id = ?",
                                              id));
  if (row) return false;
  KVPACK_TRY_ASSIGN(const auto other,
                    db.number("SELECT 1 FROM upload_objects o JOIN uploads u ON u.upload = o.upload"
                              " WHERE o.kind = ? AND o.object_id = ? AND o.upload <> ?"
                              " AND u.state IN (1, 2, 3)",
                              number(kind), id, upload));
  return !other.has_value();
}

/// Nothing of ours is ever anything but a regular file in a directory.
Result<bool> is_foreign(const StoreContext& context, ObjectKind kind, const Id32& id) {
  const auto shard = context.files.objects(kind).facts(shard_name(id));
  if (!shard.has_value() && shard.error().code == ErrorCode::kNotFound) return false;
  if (!shard.has_value()) return Error(shard.error());
  if (shard->kind != FileKind::kDirectory) return true;
  const auto facts = context.files.object_facts(kind, id);
  if (facts.has_value()) return facts->kind != FileKind::kRegular;
  if (facts.error().code == ErrorCode::kNotFound) return false;
  return Error(facts.error());
}

struct ActiveUpload {
  std::int64_t upload = 0;
  UploadKind kind = UploadKind::kSingleCut;
  std::uint64_t updated_ns = 0;
  bool ours = false;
};

Result<std::vector<ActiveUpload>> active_uploads(StoreContext& context, sqlite::Database& db) {
  std::vector<ActiveUpload> active;
  KVPACK_TRY_ASSIGN(auto row, db.prepare("SELECT upload, kind, updated_ns, owner FROM uploads"
                                         " WHERE state IN (1, 2, 3) ORDER BY updated_ns"));
  for (;;) {
    KVPACK_TRY_ASSIGN(const bool found, row.step());
    if (!found) return active;
    active.push_back({.upload = row.integer(0),
                      .kind = static_cast<UploadKind>(row.integer(1)),
                      .updated_ns = row.count(2),
                      .ours = row.id(3) == context.incarnation});
  }
}

/// A session that is in the middle of a call has not lapsed, however long that takes.
bool has_lapsed(StoreContext& context, const ActiveUpload& upload, const UploadSessions::Session* session) {
  const std::uint64_t silent_ns =
      session == nullptr ? kSessionLeaseNs : context.clock().monotonic_ns() - session->last_call_ns;
  if (upload.kind != UploadKind::kImport) return upload.ours && silent_ns >= kSessionLeaseNs;
  return silent_ns >= kSessionLeaseNs && context.now_ns() - upload.updated_ns >= kImportLeaseNs &&
         context.now_ns() >= upload.updated_ns;
}

Status abort_if_lapsed(StoreContext& context, sqlite::Database& db, const ActiveUpload& upload) {
  const auto session = context.sessions.find(upload.upload);
  std::unique_lock<std::mutex> alone;
  if (session != nullptr) {
    alone = std::unique_lock(session->working, std::try_to_lock);
    if (!alone.owns_lock()) return success();
  }
  if (!has_lapsed(context, upload, session.get())) return success();
  return abort_upload(context, db, upload.upload);
}

}  // namespace

Status check_claim(sqlite::Database& db, const UploadClaim& claim, const char* refusal) {
  KVPACK_TRY_ASSIGN(auto row, db.prepare("SELECT fence, state FROM uploads WHERE upload = ?"));
  KVPACK_TRY_ASSIGN(const bool found, row.bind(claim.upload).step());
  if (!found) return fail(ErrorCode::kNotFound, "artifact not found");
  if (row.count(0) != claim.fence) return fail(ErrorCode::kState, "upload session was superseded");
  if (row.integer(1) > number(UploadState::kVerified)) return fail(ErrorCode::kState, refusal);
  return success();
}

Result<std::int64_t> next_generation(sqlite::Database& db) {
  KVPACK_TRY_ASSIGN(const auto sequence,
                    db.number("UPDATE store SET sequence = sequence + 1 RETURNING sequence - 1"));
  if (!sequence) return fail(ErrorCode::kCatalog, "catalog: the store row is missing");
  return *sequence;
}

Status plan_object(sqlite::Database& db, std::int64_t upload, ObjectKind kind, const Id32& id,
                   PlanPhase phase) {
  return db.run(
      "INSERT INTO upload_objects (upload, kind, object_id, phase) VALUES (?, ?, ?, ?)"
      " ON CONFLICT (upload, kind, object_id) DO UPDATE SET phase = max(phase, excluded.phase)",
      upload, number(kind), id, number(phase));
}

Status remove_planned_object(StoreContext& context, sqlite::Database& db, std::int64_t upload,
                             ObjectKind kind, const Id32& id, DirtyDirectories& dirty) {
  KVPACK_TRY_ASSIGN(const bool ours_alone, belongs_to_nobody_else(db, upload, kind, id));
  if (!ours_alone) return success();
  KVPACK_TRY_ASSIGN(const bool foreign, is_foreign(context, kind, id));
  if (foreign) return success();
  KVPACK_TRY(context.files.unlink_object(kind, id, dirty));
  return success();
}

Status undo_plans(StoreContext& context, sqlite::Database& db, std::int64_t upload) {
  if (const auto session = context.sessions.find(upload)) session->ended = true;
  std::vector<PlannedObject> planned;
  {
    KVPACK_TRY_ASSIGN(
        auto row, db.prepare("SELECT kind, object_id FROM upload_objects WHERE upload = ? AND phase = 1"));
    row.bind(upload);
    for (;;) {
      KVPACK_TRY_ASSIGN(const bool found, row.step());
      if (!found) break;
      planned.push_back({static_cast<ObjectKind>(row.integer(0)), row.id(1)});
    }
  }
  DirtyDirectories dirty;
  for (const PlannedObject& object : planned)
    KVPACK_TRY(remove_planned_object(context, db, upload, object.kind, object.id, dirty));
  KVPACK_TRY(dirty.sync_all());
  return db.run("DELETE FROM upload_objects WHERE upload = ? AND phase = 1", upload);
}

Status return_endurance(sqlite::Database& db, std::uint64_t ticket_second, std::uint64_t bytes) {
  return db.run("UPDATE endurance SET bytes = max(0, bytes - ?2) WHERE second = ?1", ticket_second, bytes);
}

Status abort_upload(StoreContext& context, sqlite::Database& db, std::int64_t upload) {
  std::uint64_t unwritten = 0;
  std::uint64_t ticket_second = 0;
  {
    KVPACK_TRY_ASSIGN(auto row, db.prepare("SELECT expected_bytes, written_bytes, ticket_second FROM uploads"
                                           " WHERE upload = ? AND state IN (1, 2, 3)"));
    KVPACK_TRY_ASSIGN(const bool active, row.bind(upload).step());
    if (!active) return success();
    unwritten = row.count(0) - std::min(row.count(0), row.count(1));
    ticket_second = row.count(2);
  }
  KVPACK_TRY(undo_plans(context, db, upload));
  KVPACK_TRY(db.run("DELETE FROM upload_objects WHERE upload = ?", upload));
  KVPACK_TRY(return_endurance(db, ticket_second, unwritten));
  return db.run(
      "UPDATE uploads SET state = 5, reserved_bytes = 0, reason = 'cancelled', updated_ns = ?2"
      " WHERE upload = ?1",
      upload, context.now_ns());
}

Status abort_lapsed_uploads(StoreContext& context) {
  KVPACK_TRY_ASSIGN(const auto active,
                    context.catalog->read([&](sqlite::Database& db) { return active_uploads(context, db); }));
  Status first = success();
  for (const ActiveUpload& upload : active) {
    if (!has_lapsed(context, upload, context.sessions.find(upload.upload).get())) continue;
    Status done = with_reserve(context.files.root(), [&] {
      return context.catalog->write(
          [&](sqlite::Database& db) { return abort_if_lapsed(context, db, upload); });
    });
    if (!done.has_value() && first.has_value()) first = std::move(done);
  }
  return first;
}

}  // namespace kvpack::store
