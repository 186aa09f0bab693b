#include "kvpack/store/upkeep.h"
#include "store/disk_reserve.h"
#include "store/store_context.h"

namespace kvpack {

using namespace store;

namespace {

/// Rows of a query of one column.
Result<std::vector<std::int64_t>> column_of(sqlite::Statement& query) {
  std::vector<std::int64_t> values;
  for (;;) {
    KVPACK_TRY_ASSIGN(const bool more, query.step());
    if (!more) break;
    values.push_back(query.integer(0));
  }
  query.reset();
  return values;
}

// Chunks of older epochs are found through the manifests that name them, for there are few of those (CROSS
// keeps that order of the join). One that nobody names is collected in any case, and one that an available
// manifest names is not withdrawn.
constexpr std::string_view kOldChunks =
    " FROM manifests m CROSS JOIN manifest_chunks u ON u.manifest = m.manifest"
    " CROSS JOIN chunks c ON c.chunk = u.chunk WHERE m.key_epoch < ?1 AND c.key_epoch < ?1 AND c.state = 1"
    " AND NOT EXISTS (SELECT 1 FROM manifest_chunks o JOIN manifests n ON n.manifest = o.manifest"
    " WHERE o.chunk = c.chunk AND n.state = 1)";

Result<RetirementReport> withdraw_older(sqlite::Database& db, std::uint64_t minimum, std::uint64_t bound) {
  RetirementReport report;
  KVPACK_TRY_ASSIGN(auto manifests,
                    db.prepare("SELECT manifest FROM manifests WHERE key_epoch < ?1 AND state = 1"
                               " LIMIT ?2"));
  KVPACK_TRY_ASSIGN(const auto old_manifests, column_of(manifests.bind(minimum, bound)));
  for (const std::int64_t manifest : old_manifests) {
    KVPACK_TRY(db.run("DELETE FROM prefixes WHERE manifest = ?", manifest));
    KVPACK_TRY(db.run("UPDATE manifests SET state = 2 WHERE manifest = ?", manifest));
  }
  report.manifests = old_manifests.size();
  KVPACK_TRY_ASSIGN(auto chunks,
                    db.prepare("SELECT DISTINCT c.chunk" + std::string(kOldChunks) + " LIMIT ?2"));
  KVPACK_TRY_ASSIGN(const auto old_chunks, column_of(chunks.bind(minimum, bound - report.manifests)));
  for (const std::int64_t chunk : old_chunks)
    KVPACK_TRY(db.run("UPDATE chunks SET state = 2 WHERE chunk = ?", chunk));
  report.chunks = old_chunks.size();
  KVPACK_TRY_ASSIGN(const auto left_manifests,
                    db.number("SELECT count(*) FROM manifests WHERE key_epoch < ?1 AND state = 1", minimum));
  KVPACK_TRY_ASSIGN(const auto left_chunks,
                    db.number("SELECT count(DISTINCT c.chunk)" + std::string(kOldChunks), minimum));
  report.remaining = static_cast<std::uint64_t>(left_manifests.value_or(0) + left_chunks.value_or(0));
  return report;
}

}  // namespace

Result<RetirementReport> retire_epochs(Store& store, std::uint64_t minimum_epoch, std::uint64_t max_objects) {
  StoreContext& context = store.context();
  KVPACK_TRY(check_writable(context));
  if (minimum_epoch != context.options.epochs.minimum_readable)
    return fail(ErrorCode::kExpectation, "retirement minimum is not the minimum readable epoch");
  if (max_objects == 0 || max_objects > kMaxRetirementObjects)
    return fail(ErrorCode::kExpectation, "retirement bound must be 1 to 10000");
  return with_reserve(context.files.root(), [&] {
    return context.catalog->write(
        [&](sqlite::Database& db) { return withdraw_older(db, minimum_epoch, max_objects); });
  });
}

}  // namespace kvpack
