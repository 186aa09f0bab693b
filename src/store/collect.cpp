#include "store/collect.h"

#include <queue>
#include <unordered_map>

#include "store/disk_reserve.h"

namespace kvpack::store {
namespace {

/// Candidates that one search for victims looks at when they turn out to have been used by readers.
constexpr std::size_t kMaxLookedAt = 1'024;

struct PendingRow {
  std::int64_t row = 0;
  Id32 id{};
  std::uint64_t bytes = 0;
};

/// The statements of one kind of object.
struct KindSql {
  std::string_view pending;
  std::string_view remove;
};

// An object that an upload has planned is never removed: the upload may be about to name it again.
constexpr KindSql kManifestSql{
    .pending =
        "SELECT manifest, manifest_id, file_bytes FROM manifests"
        " WHERE state <> 1 AND state <= ?1 AND manifest > ?2 AND children = 0 AND NOT EXISTS"
        " (SELECT 1 FROM upload_objects WHERE kind = 2 AND object_id = manifest_id)"
        " ORDER BY manifest LIMIT ?3",
    .remove = "DELETE FROM manifests WHERE manifest = ?"};
constexpr KindSql kChunkSql{
    .pending =
        "SELECT chunk, object_key, object_bytes FROM chunks"
        " WHERE state <> 1 AND state <= ?1 AND chunk > ?2 AND refcount = 0 AND NOT EXISTS"
        " (SELECT 1 FROM upload_objects WHERE kind = 1 AND object_id = object_key)"
        " ORDER BY chunk LIMIT ?3",
    .remove = "DELETE FROM chunks WHERE chunk = ?"};

Result<bool> is_pinned(StoreContext& context, ObjectKind kind, const Id32& id) {
  // Readers pin cuts; chunks are pinned by saves of this process alone.
  return context.pins.is_pinned(kind == ObjectKind::kManifest ? &context.files.pins() : nullptr, id);
}

Result<std::vector<PendingRow>> pending_rows(sqlite::Database& db, const KindSql& sql, Removable which,
                                             std::int64_t after) {
  std::vector<PendingRow> rows;
  const RowState last = which == Removable::kEvicting ? RowState::kEvicting : RowState::kDamaged;
  KVPACK_TRY_ASSIGN(auto row, db.prepare(sql.pending));
  row.bind(number(last), after, kRemovalBatch);
  for (;;) {
    KVPACK_TRY_ASSIGN(const bool more, row.step());
    if (!more) return rows;
    rows.push_back({row.integer(0), row.id(1), row.count(2)});
  }
}

Status delete_row(sqlite::Database& db, ObjectKind kind, std::int64_t row) {
  if (kind == ObjectKind::kManifest) {
    KVPACK_TRY(db.run("DELETE FROM manifest_chunks WHERE manifest = ?", row));
    KVPACK_TRY(db.run("DELETE FROM prefixes WHERE manifest = ?", row));
  }
  return db.run(kind == ObjectKind::kManifest ? kManifestSql.remove : kChunkSql.remove, row);
}

struct BatchResult {
  Removal removal{};
  std::optional<std::int64_t> last{};  ///< Row at which the batch ended; nothing when it was the last one.
};

/// One batch behind row `after`: files, then their directories, then the rows. The transaction keeps uploads
/// from planning the objects meanwhile.
Result<BatchResult> remove_batch(StoreContext& context, sqlite::Database& db, ObjectKind kind,
                                 Removable which, std::int64_t after) {
  const KindSql& sql = kind == ObjectKind::kManifest ? kManifestSql : kChunkSql;
  KVPACK_TRY_ASSIGN(const auto rows, pending_rows(db, sql, which, after));
  BatchResult batch;
  if (rows.size() == kRemovalBatch) batch.last = rows.back().row;
  std::vector<PendingRow> gone;
  DirtyDirectories dirty;
  for (const PendingRow& row : rows) {
    KVPACK_TRY_ASSIGN(const bool pinned, is_pinned(context, kind, row.id));
    if (pinned) continue;
    auto unlinked = context.files.unlink_object(kind, row.id, dirty);
    if (unlinked.has_value()) {
      gone.push_back(row);
    } else if (is_no_space(unlinked.error())) {
      return std::move(unlinked.error());
    } else if (!batch.removal.fault) {
      batch.removal.fault = std::move(unlinked.error()).with("object", row.id.hex());
    }
  }
  KVPACK_TRY(dirty.sync_all());
  for (const PendingRow& row : gone) {
    KVPACK_TRY(delete_row(db, kind, row.row));
    batch.removal.bytes += row.bytes;
  }
  (kind == ObjectKind::kManifest ? batch.removal.manifests : batch.removal.chunks) = gone.size();
  return batch;
}

/// All batches of one kind.
Result<Removal> remove_kind(StoreContext& context, ObjectKind kind, Removable which) {
  Removal total;
  std::optional<std::int64_t> after = 0;
  while (after) {
    KVPACK_TRY_ASSIGN(BatchResult batch, with_reserve(context.files.root(), [&] {
                        return context.catalog->write([&](sqlite::Database& db) {
                          return remove_batch(context, db, kind, which, *after);
                        });
                      }));
    after = batch.last;
    context.counters.add(Counter::kManifestsEvicted, batch.removal.manifests);
    context.counters.add(Counter::kChunksCollected, batch.removal.chunks);
    context.counters.add(Counter::kBytesCollected, batch.removal.bytes);
    total.add(std::move(batch.removal));
  }
  return total;
}

/// Whether anything is pending, without waiting for the writer.
Result<bool> has_pending(StoreContext& context) {
  return context.catalog->read([](sqlite::Database& db) -> Result<bool> {
    KVPACK_TRY_ASSIGN(const auto manifest,
                      db.number("SELECT manifest FROM manifests WHERE state <> 1 LIMIT 1"));
    if (manifest) return true;
    KVPACK_TRY_ASSIGN(const auto chunk, db.number("SELECT chunk FROM chunks WHERE state <> 1 LIMIT 1"));
    return chunk.has_value();
  });
}

// --- selection ------------------------------------------------------------------------------------------

Status make_evicting(sqlite::Database& db, std::int64_t manifest) {
  KVPACK_TRY(db.run("DELETE FROM prefixes WHERE manifest = ?", manifest));
  return db.run("UPDATE manifests SET state = 2 WHERE manifest = ?", manifest);
}

/// The rows of a query of (row, id) that nobody pins, as far as one batch goes. The query gives them in the
/// order in which they are to go.
Result<std::vector<std::int64_t>> unpinned_rows(StoreContext& context, sqlite::Statement& query,
                                                ObjectKind kind) {
  std::vector<std::int64_t> rows;
  while (rows.size() < kRemovalBatch) {
    KVPACK_TRY_ASSIGN(const bool more, query.step());
    if (!more) break;
    // Asked again once the row is invisible. Here it saves a cut that is in use from becoming so.
    KVPACK_TRY_ASSIGN(const bool pinned, is_pinned(context, kind, query.id(1)));
    if (!pinned) rows.push_back(query.integer(0));
  }
  query.reset();
  return rows;
}

Result<std::size_t> select_expired(StoreContext& context, sqlite::Database& db) {
  KVPACK_TRY_ASSIGN(
      auto query,
      db.prepare("SELECT manifest, manifest_id FROM manifests"
                 " WHERE expires_ns IS NOT NULL AND expires_ns <= ?1 AND state = 1 AND children = 0"
                 " AND NOT EXISTS"
                 " (SELECT 1 FROM upload_objects WHERE kind = 2 AND object_id = manifest_id)"
                 " ORDER BY expires_ns"));
  query.bind(context.now_ns());
  KVPACK_TRY_ASSIGN(const auto rows, unpinned_rows(context, query, ObjectKind::kManifest));
  for (const std::int64_t row : rows) KVPACK_TRY(make_evicting(db, row));
  return rows.size();
}

Result<std::size_t> select_unused_chunks(StoreContext& context, sqlite::Database& db) {
  KVPACK_TRY_ASSIGN(auto query,
                    db.prepare("SELECT chunk, object_key FROM chunks"
                               " WHERE refcount = 0 AND state = 1 AND NOT EXISTS"
                               " (SELECT 1 FROM upload_objects WHERE kind = 1 AND object_id = object_key)"
                               " ORDER BY created_ns, chunk"));
  KVPACK_TRY_ASSIGN(const auto rows, unpinned_rows(context, query, ObjectKind::kChunk));
  for (const std::int64_t row : rows) KVPACK_TRY(db.run("UPDATE chunks SET state = 2 WHERE chunk = ?", row));
  return rows.size();
}

/// A cut that may be evicted.
struct EvictionCandidate {
  std::uint64_t access_ns = 0;  ///< By its row, or by its file when a reader has used it since.
  std::int64_t manifest = 0;

  bool operator>(const EvictionCandidate& other) const noexcept {
    return std::pair(access_ns, manifest) > std::pair(other.access_ns, other.manifest);
  }
};

/// Gives candidates in the order of their last access. The catalog knows what this process has used; what
/// readers have used is known by the access time of the manifest's file, which is looked at on the way.
class EvictionOrder {
 public:
  EvictionOrder(StoreContext& context, sqlite::Statement query)
      : context_(context), query_(std::move(query)) {}

  Result<std::optional<EvictionCandidate>> next() {
    for (;;) {
      if (!peeked_ && looked_at_ < kMaxLookedAt) KVPACK_TRY(peek());
      if (!known_.empty() && (!peeked_ || known_.top().access_ns <= peeked_->access_ns)) {
        const EvictionCandidate candidate = known_.top();
        known_.pop();
        moved_.erase(candidate.manifest);
        return std::optional(candidate);
      }
      if (!peeked_) return std::optional<EvictionCandidate>();
      KVPACK_TRY(look_at_peeked());
    }
  }
  /// Cuts that were passed over because a reader has used them, with the time of that.
  const std::unordered_map<std::int64_t, std::uint64_t>& moved() const noexcept { return moved_; }

 private:
  Status peek() {
    KVPACK_TRY_ASSIGN(const bool more, query_.step());
    if (!more) {
      looked_at_ = kMaxLookedAt;
      return success();
    }
    ++looked_at_;
    peeked_ = EvictionCandidate{query_.count(2), query_.integer(0)};
    peeked_id_ = query_.id(1);
    return success();
  }
  Status look_at_peeked() {
    EvictionCandidate candidate = *std::exchange(peeked_, std::nullopt);
    KVPACK_TRY_ASSIGN(const bool pinned, is_pinned(context_, ObjectKind::kManifest, peeked_id_));
    if (pinned) {
      --looked_at_;
      return success();
    }
    const std::uint64_t access_ns = std::min(file_access_ns(), context_.now_ns());
    if (access_ns > candidate.access_ns) {
      candidate.access_ns = access_ns;
      moved_.emplace(candidate.manifest, access_ns);
    }
    known_.push(candidate);
    return success();
  }
  /// A file that cannot be asked has not been used.
  std::uint64_t file_access_ns() const {
    const auto facts = context_.files.object_facts(ObjectKind::kManifest, peeked_id_);
    if (!facts.has_value() || facts->access_time_ns < 0) return 0;
    return static_cast<std::uint64_t>(facts->access_time_ns);
  }

  StoreContext& context_;
  sqlite::Statement query_;
  std::size_t looked_at_ = 0;
  std::optional<EvictionCandidate> peeked_{};
  Id32 peeked_id_{};
  std::priority_queue<EvictionCandidate, std::vector<EvictionCandidate>, std::greater<>> known_{};
  std::unordered_map<std::int64_t, std::uint64_t> moved_{};
};

/// What goes when victims go, chunks that nobody else names included.
class FreedBytes {
 public:
  Status add(sqlite::Database& db, std::int64_t manifest) {
    KVPACK_TRY_ASSIGN(const auto file,
                      db.number("SELECT file_bytes FROM manifests WHERE manifest = ?", manifest));
    total_ += static_cast<std::uint64_t>(file.value_or(0));
    KVPACK_TRY_ASSIGN(auto row, db.prepare("SELECT c.chunk, c.refcount, c.object_bytes FROM manifest_chunks u"
                                           " JOIN chunks c ON c.chunk = u.chunk WHERE u.manifest = ?"));
    row.bind(manifest);
    for (;;) {
      KVPACK_TRY_ASSIGN(const bool more, row.step());
      if (!more) return success();
      if (++named_[row.integer(0)] == row.count(1)) total_ += row.count(2);
    }
  }
  std::uint64_t total() const noexcept { return total_; }

 private:
  std::unordered_map<std::int64_t, std::uint64_t> named_{};  ///< By how many victims.
  std::uint64_t total_ = 0;
};

Result<std::size_t> select_least_recent(StoreContext& context, sqlite::Database& db, std::uint64_t bytes) {
  std::vector<std::int64_t> victims;
  std::unordered_map<std::int64_t, std::uint64_t> moved;
  {
    KVPACK_TRY_ASSIGN(auto query,
                      db.prepare("SELECT manifest, manifest_id, access_ns FROM manifests"
                                 " WHERE children = 0 AND state = 1 AND NOT EXISTS"
                                 " (SELECT 1 FROM upload_objects WHERE kind = 2 AND object_id = manifest_id)"
                                 " ORDER BY access_ns, manifest"));
    EvictionOrder order(context, std::move(query));
    FreedBytes freed;
    while (victims.size() < kRemovalBatch && (victims.empty() || freed.total() < bytes)) {
      KVPACK_TRY_ASSIGN(const auto victim, order.next());
      if (!victim) break;
      KVPACK_TRY(freed.add(db, victim->manifest));
      victims.push_back(victim->manifest);
    }
    moved = order.moved();
  }
  for (const auto& [manifest, access_ns] : moved)
    KVPACK_TRY(db.run("UPDATE manifests SET access_ns = ? WHERE manifest = ?", access_ns, manifest));
  for (const std::int64_t victim : victims) KVPACK_TRY(make_evicting(db, victim));
  return victims.size();
}

Result<std::size_t> select_manifest(StoreContext& context, sqlite::Database& db, const Id32& id) {
  KVPACK_TRY_ASSIGN(auto row, db.prepare("SELECT manifest, state, children, EXISTS"
                                         " (SELECT 1 FROM upload_objects WHERE kind = 2 AND object_id = ?1)"
                                         " FROM manifests WHERE manifest_id = ?1"));
  KVPACK_TRY_ASSIGN(const bool found, row.bind(id).step());
  if (!found) return fail(ErrorCode::kNotFound, "artifact not found");
  KVPACK_TRY_ASSIGN(const bool pinned, is_pinned(context, ObjectKind::kManifest, id));
  if (pinned || row.count(2) != 0 || row.integer(3) != 0) return fail(ErrorCode::kBusy, "resource is busy");
  if (row.integer(1) != number(RowState::kAvailable)) return std::size_t{0};
  KVPACK_TRY(make_evicting(db, row.integer(0)));
  return std::size_t{1};
}

}  // namespace

void Removal::add(Removal other) {
  manifests += other.manifests;
  chunks += other.chunks;
  bytes += other.bytes;
  selected += other.selected;
  if (!fault) fault = std::move(other.fault);
}

Result<Removal> remove_pending(StoreContext& context, Removable which) {
  Removal total;
  KVPACK_TRY_ASSIGN(const bool pending, has_pending(context));
  if (!pending) return total;
  // A damaged parent can go only when its children have gone.
  for (;;) {
    KVPACK_TRY_ASSIGN(Removal manifests, remove_kind(context, ObjectKind::kManifest, which));
    const bool more = manifests.manifests != 0;
    total.add(std::move(manifests));
    if (!more) break;
  }
  KVPACK_TRY_ASSIGN(Removal chunks, remove_kind(context, ObjectKind::kChunk, which));
  total.add(std::move(chunks));
  return total;
}

namespace {

/// Runs a selection, and removes what it has selected. The selection is committed before anybody's pins are
/// asked about for good: who pins a cut after that finds it gone, who has pinned it before keeps its files.
template <class Select>
Result<Removal> select_and_remove(StoreContext& context, Select&& body) {
  KVPACK_TRY_ASSIGN(const std::size_t selected,
                    with_reserve(context.files.root(), [&] { return context.catalog->write(body); }));
  KVPACK_TRY_ASSIGN(Removal total, remove_pending(context, Removable::kEvictingOrDamaged));
  total.selected = selected;
  return total;
}

}  // namespace

Result<Removal> collect_round(StoreContext& context) {
  KVPACK_TRY_ASSIGN(Removal total, select_and_remove(context, [&](sqlite::Database& db) {
                      return select_expired(context, db);
                    }));
  KVPACK_TRY_ASSIGN(Removal chunks, select_and_remove(context, [&](sqlite::Database& db) {
                      return select_unused_chunks(context, db);
                    }));
  total.add(std::move(chunks));
  return total;
}

Result<Removal> evict_least_recent(StoreContext& context, std::uint64_t bytes) {
  return select_and_remove(context,
                           [&](sqlite::Database& db) { return select_least_recent(context, db, bytes); });
}

Result<Removal> evict_manifest(StoreContext& context, const Id32& manifest_id) {
  return select_and_remove(context,
                           [&](sqlite::Database& db) { return select_manifest(context, db, manifest_id); });
}

}  // namespace kvpack::store
