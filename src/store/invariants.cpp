#include "store/invariants.h"

#include "store/catalog_reading.h"

namespace kvpack::store {
namespace {

/// A counter of the `store` row and the sum that it stands for.
struct MaintainedSum {
  const char* name;
  std::string_view stored;
  std::string_view sum;
};

constexpr MaintainedSum kMaintainedSums[] = {
    {"durable_bytes", "SELECT durable_bytes FROM store",
     "SELECT (SELECT coalesce(sum(object_bytes), 0) FROM chunks)"
     " + (SELECT coalesce(sum(file_bytes), 0) FROM manifests)"},
    {"reserved_bytes", "SELECT reserved_bytes FROM store",
     "SELECT coalesce(sum(reserved_bytes), 0) FROM uploads"},
    {"shared_bytes", "SELECT shared_bytes FROM store",
     "SELECT coalesce(sum((refcount - 1) * object_bytes), 0) FROM chunks WHERE refcount > 1"},
    {"quarantine_bytes", "SELECT quarantine_bytes FROM store",
     "SELECT coalesce(sum(file_bytes), 0) FROM quarantine"},
    {"manifests", "SELECT manifests FROM store", "SELECT count(*) FROM manifests"},
    {"chunks", "SELECT chunks FROM store", "SELECT count(*) FROM chunks"},
};

/// Rows that must not be there.
struct ForbiddenRows {
  const char* what;
  std::string_view count;
};

constexpr ForbiddenRows kForbiddenRows[] = {
    {"chunks whose refcount is not the number of manifests that name them",
     "SELECT count(*) FROM chunks c WHERE refcount <>"
     " (SELECT count(*) FROM manifest_chunks WHERE chunk = c.chunk)"},
    {"manifests whose children are miscounted",
     "SELECT count(*) FROM manifests m WHERE children <>"
     " (SELECT count(*) FROM manifests WHERE parent = m.manifest)"},
    {"manifests that are not one level below their parent, in its epoch",
     "SELECT count(*) FROM manifests m JOIN manifests p ON p.manifest = m.parent"
     " WHERE m.depth <> p.depth + 1 OR m.key_epoch <> p.key_epoch"},
    {"prefixes of cuts that are not available",
     "SELECT count(*) FROM prefixes x JOIN manifests m ON m.manifest = x.manifest WHERE m.state <> 1"},
    {"available manifests on a parent that is not",
     "SELECT count(*) FROM manifests m JOIN manifests p ON p.manifest = m.parent"
     " WHERE m.state = 1 AND p.state <> 1"},
    {"available manifests with a chunk that is not",
     "SELECT count(*) FROM manifest_chunks u JOIN manifests m ON m.manifest = u.manifest"
     " JOIN chunks c ON c.chunk = u.chunk WHERE m.state = 1 AND c.state <> 1"},
    {"reservations of uploads that have ended",
     "SELECT count(*) FROM uploads WHERE state IN (4, 5, 6) AND reserved_bytes <> 0"},
    {"plans of uploads that have ended",
     "SELECT count(*) FROM upload_objects o JOIN uploads u ON u.upload = o.upload WHERE u.state IN (4, 5, "
     "6)"},
    {"generations that have not been given out",
     "SELECT (SELECT count(*) FROM chunks WHERE generation >= (SELECT sequence FROM store))"
     " + (SELECT count(*) FROM manifests WHERE generation >= (SELECT sequence FROM store))"},
};

Status find_violations(sqlite::Database& db, std::vector<std::string>& violations) {
  KVPACK_TRY_ASSIGN(const auto rows, db.number("SELECT count(*) FROM store"));
  if (rows != 1) violations.push_back("there is one store row");
  for (const MaintainedSum& kept : kMaintainedSums) {
    KVPACK_TRY_ASSIGN(const auto stored, db.number(kept.stored));
    KVPACK_TRY_ASSIGN(const auto sum, db.number(kept.sum));
    if (stored != sum)
      violations.push_back(std::string(kept.name) + " is " + std::to_string(stored.value_or(0)) +
                           ", its rows add up to " + std::to_string(sum.value_or(0)));
  }
  for (const ForbiddenRows& forbidden : kForbiddenRows) {
    KVPACK_TRY_ASSIGN(const auto count, db.number(forbidden.count));
    if (count != 0)
      violations.push_back(std::to_string(count.value_or(0)) + " " + std::string(forbidden.what));
  }
  KVPACK_TRY_ASSIGN(auto dangling, db.prepare("PRAGMA foreign_key_check"));
  KVPACK_TRY_ASSIGN(const bool any, dangling.step());
  if (any) violations.push_back("a row of " + dangling.text(0) + " refers to nothing");
  return success();
}

}  // namespace

Result<std::vector<std::string>> violated_invariants(StoreContext& context) {
  return read_catalog(context, [](sqlite::Database& db) -> Result<std::vector<std::string>> {
    std::vector<std::string> violations;
    KVPACK_TRY(find_violations(db, violations));
    return violations;
  });
}

Status check_invariants(StoreContext& context) {
  KVPACK_TRY_ASSIGN(const auto violations, violated_invariants(context));
  if (violations.empty()) return success();
  return fail(ErrorCode::kIntegrity, "store invariant does not hold: " + violations.front());
}

}  // namespace kvpack::store
