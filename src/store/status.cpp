#include "kvpack/store/status.h"

#include "store/catalog_reading.h"
#include "store/quarantine.h"
#include "store/quota_share.h"
#include "store/store_context.h"
#include "store/upload.h"

namespace kvpack {

using namespace store;

namespace {

constexpr std::size_t kCutPage = 256;
constexpr std::size_t kMaxListedFiles = 1'000'000;

StorePressure pressure_of(const StoreStatus& status, const StoreWatermarks& marks) {
  const std::uint64_t used = status.durable_bytes + status.reserved_bytes;
  if (reaches_share(used, status.quota_bytes, marks.promotion)) return StorePressure::kPromotionStopped;
  if (reaches_share(used, status.quota_bytes, marks.emergency)) return StorePressure::kEmergency;
  if (reaches_share(used, status.quota_bytes, marks.begin)) return StorePressure::kEvicting;
  return StorePressure::kNormal;
}

Status read_totals(sqlite::Database& db, StoreStatus& status) {
  KVPACK_TRY_ASSIGN(
      auto row,
      db.prepare("SELECT quota_bytes, staging_quota_bytes, durable_bytes, reserved_bytes, shared_bytes,"
                 " quarantine_bytes, manifests, chunks, key_epoch, minimum_epoch, catalog_epoch,"
                 " created_ns FROM store"));
  KVPACK_TRY_ASSIGN(const bool found, row.step());
  if (!found) return fail(ErrorCode::kCatalog, "catalog: the store row is missing");
  std::uint64_t* const fields[] = {
      &status.quota_bytes,  &status.staging_quota_bytes, &status.durable_bytes, &status.reserved_bytes,
      &status.shared_bytes, &status.quarantine_bytes,    &status.manifests,     &status.chunks,
      &status.key_epoch,    &status.minimum_epoch,       &status.catalog_epoch, &status.created_ns};
  int column = 0;
  for (std::uint64_t* field : fields) *field = row.count(column++);
  return success();
}

Status read_counts(sqlite::Database& db, StoreStatus& status) {
  const std::pair<std::string_view, std::uint64_t*> counts[] = {
      {"SELECT count(*) FROM manifests WHERE state <> 1", &status.pending_manifests},
      {"SELECT count(*) FROM chunks WHERE state <> 1", &status.pending_chunks},
      {"SELECT count(*) FROM uploads WHERE state IN (1, 2, 3)", &status.active_uploads}};
  for (const auto& [sql, field] : counts) {
    KVPACK_TRY_ASSIGN(const auto count, db.number(sql));
    *field = static_cast<std::uint64_t>(count.value_or(0));
  }
  return success();
}

Status read_counters(const StoreContext& context, sqlite::Database& db, StoreStatus& status) {
  for (std::size_t i = 0; i < kCounterNames.size(); ++i) {
    KVPACK_TRY_ASSIGN(const auto value,
                      db.number("SELECT value FROM counters WHERE name = ?", kCounterNames[i]));
    status.counters.push_back({.name = kCounterNames[i],
                               .recorded = static_cast<std::uint64_t>(value.value_or(0)),
                               .pending = context.counters.value(static_cast<Counter>(i))});
  }
  return success();
}

// --- cuts -----------------------------------------------------------------------------------------------

StoredCut cut_of_row(const sqlite::Statement& row) {
  StoredCut cut;
  cut.manifest_id = row.id(1);
  if (!row.is_null(2)) cut.parent_id = row.id(2);
  cut.depth = static_cast<unsigned>(row.count(3));
  cut.children = row.count(4);
  cut.token_count = row.count(5);
  cut.key_epoch = row.count(6);
  cut.semantic_id = row.id(7);
  cut.family_id = row.id(8);
  cut.label = row.text(9);
  cut.file_bytes = row.count(10);
  cut.restored_bytes = row.count(11);
  cut.published_ns = row.count(12);
  cut.access_ns = row.count(13);
  if (!row.is_null(14)) cut.expires_ns = row.count(14);
  cut.state = static_cast<CutState>(row.integer(15));
  return cut;
}

Status add_chunk_sizes(sqlite::Database& db, std::int64_t manifest, StoredCut& cut) {
  KVPACK_TRY_ASSIGN(
      auto row,
      db.prepare("SELECT count(*), coalesce(sum(c.object_bytes), 0),"
                 " coalesce(sum(CASE WHEN c.refcount > 1 THEN c.object_bytes END), 0)"
                 " FROM manifest_chunks u JOIN chunks c ON c.chunk = u.chunk WHERE u.manifest = ?"));
  KVPACK_TRY(row.bind(manifest).step());
  cut.chunks = row.count(0);
  cut.chunk_bytes = row.count(1);
  cut.shared_bytes = row.count(2);
  return success();
}

struct CutPage {
  std::vector<StoredCut> cuts{};
  std::int64_t last = 0;
};

/// The cuts behind a row, one short transaction for each page, so that a long listing keeps no snapshot.
Result<CutPage> read_cut_page(sqlite::Database& db, std::int64_t after) {
  CutPage page;
  page.last = after;
  KVPACK_TRY_ASSIGN(
      auto row,
      db.prepare(
          "SELECT m.manifest, m.manifest_id, p.manifest_id, m.depth, m.children, m.token_count, m.key_epoch,"
          " m.semantic_id, m.family_id, i.label, m.file_bytes, m.restored_bytes, m.published_ns,"
          " m.access_ns, m.expires_ns, m.state FROM manifests m"
          " LEFT JOIN manifests p ON p.manifest = m.parent"
          " LEFT JOIN identities i ON i.semantic_id = m.semantic_id AND i.family_id = m.family_id"
          " WHERE m.manifest > ?1 ORDER BY m.manifest LIMIT ?2"));
  row.bind(after, kCutPage);
  for (;;) {
    KVPACK_TRY_ASSIGN(const bool more, row.step());
    if (!more) return page;
    page.last = row.integer(0);
    page.cuts.push_back(cut_of_row(row));
    KVPACK_TRY(add_chunk_sizes(db, page.last, page.cuts.back()));
  }
}

std::string_view quarantine_kind_name(std::int64_t kind) {
  switch (static_cast<QuarantineKind>(kind)) {
    case QuarantineKind::kDuplicateChunk: return "duplicate_chunk";
    case QuarantineKind::kUploadManifest: return "upload_manifest";
    case QuarantineKind::kRestartPartial: return "restart_partial";
    case QuarantineKind::kRecoveredQuarantine: return "recovered_quarantine";
    case QuarantineKind::kDamagedObject: return "damaged_object";
  }
  return "unknown";
}

}  // namespace

std::string_view pressure_name(StorePressure pressure) {
  switch (pressure) {
    case StorePressure::kNormal: return "normal";
    case StorePressure::kEvicting: return "evicting";
    case StorePressure::kEmergency: return "emergency";
    case StorePressure::kPromotionStopped: return "promotion stopped";
  }
  return "unknown";
}

Result<StoreStatus> status(Store& store) {
  StoreContext& context = store.context();
  if (!context.read_only) KVPACK_TRY(abort_lapsed_uploads(context));
  return read_catalog(context, [&](sqlite::Database& db) -> Result<StoreStatus> {
    StoreStatus status;
    KVPACK_TRY(read_totals(db, status));
    KVPACK_TRY(read_counts(db, status));
    KVPACK_TRY(read_counters(context, db, status));
    status.quarantine_cap_bytes = quota_share(status.quota_bytes, context.options.watermarks.quarantine);
    status.holds = context.holds.held().holds;
    status.pressure = pressure_of(status, context.options.watermarks);
    return status;
  });
}

Status list_cuts(Store& store, const std::function<bool(const StoredCut&)>& visit) {
  StoreContext& context = store.context();
  std::int64_t after = 0;
  for (;;) {
    KVPACK_TRY_ASSIGN(const CutPage page,
                      read_catalog(context, [&](sqlite::Database& db) { return read_cut_page(db, after); }));
    for (const StoredCut& cut : page.cuts)
      if (!visit(cut)) return success();
    if (page.cuts.size() < kCutPage) return success();
    after = page.last;
  }
}

Result<std::vector<ChunkSharing>> chunk_sharing(Store& store) {
  return read_catalog(store.context(), [](sqlite::Database& db) -> Result<std::vector<ChunkSharing>> {
    std::vector<ChunkSharing> sharing;
    KVPACK_TRY_ASSIGN(auto row, db.prepare("SELECT refcount, count(*), sum(object_bytes) FROM chunks"
                                           " GROUP BY refcount ORDER BY refcount"));
    for (;;) {
      KVPACK_TRY_ASSIGN(const bool more, row.step());
      if (!more) return sharing;
      sharing.push_back({row.count(0), row.count(1), row.count(2)});
    }
  });
}

Result<std::vector<QuarantineGroup>> quarantine_groups(Store& store, std::size_t max_groups) {
  return read_catalog(store.context(), [&](sqlite::Database& db) -> Result<std::vector<QuarantineGroup>> {
    std::vector<QuarantineGroup> groups;
    KVPACK_TRY_ASSIGN(auto row, db.prepare("SELECT kind, reason, count(*), sum(file_bytes), max(created_ns),"
                                           " min(expires_ns) FROM quarantine GROUP BY kind, reason"
                                           " ORDER BY count(*) DESC, kind, reason LIMIT ?"));
    row.bind(std::min(max_groups, kMaxListedFiles));
    for (;;) {
      KVPACK_TRY_ASSIGN(const bool more, row.step());
      if (!more) return groups;
      groups.push_back({.kind = std::string(quarantine_kind_name(row.integer(0))),
                        .reason = row.text(1),
                        .files = row.count(2),
                        .file_bytes = row.count(3),
                        .newest_ns = row.count(4),
                        .next_expiry_ns = row.count(5)});
    }
  });
}

Result<std::vector<QuarantinedFile>> quarantined_files(Store& store, std::size_t max_files) {
  StoreContext& context = store.context();
  return read_catalog(context, [&](sqlite::Database& db) -> Result<std::vector<QuarantinedFile>> {
    std::vector<QuarantinedFile> files;
    KVPACK_TRY_ASSIGN(auto row,
                      db.prepare("SELECT path_token, kind, object_id, file_bytes, created_ns, expires_ns,"
                                 " reason FROM quarantine ORDER BY expires_ns, created_ns LIMIT ?"));
    row.bind(std::min(max_files, kMaxListedFiles));
    for (;;) {
      KVPACK_TRY_ASSIGN(const bool more, row.step());
      if (!more) return files;
      QuarantinedFile file;
      file.path = join_path(context.files.quarantine().path(), row.text(0));
      file.kind = quarantine_kind_name(row.integer(1));
      if (!row.is_null(2)) file.object = row.id(2);
      file.file_bytes = row.count(3);
      file.created_ns = row.count(4);
      file.expires_ns = row.count(5);
      file.reason = row.text(6);
      files.push_back(std::move(file));
    }
  });
}

}  // namespace kvpack
