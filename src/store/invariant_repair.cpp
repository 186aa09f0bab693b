#include "store/invariant_repair.h"

namespace kvpack::store {
namespace {

/// In this order: triggers count from what is there, so the counters are right before rows go, and once more
/// afterwards.
constexpr const char* kRecount =
    "UPDATE chunks SET refcount = (SELECT count(*) FROM manifest_chunks u WHERE u.chunk = chunks.chunk);"
    "UPDATE manifests SET children ="
    " (SELECT count(*) FROM manifests m WHERE m.parent = manifests.manifest);"
    "UPDATE store SET"
    " durable_bytes = (SELECT coalesce(sum(object_bytes), 0) FROM chunks)"
    " + (SELECT coalesce(sum(file_bytes), 0) FROM manifests),"
    " reserved_bytes = (SELECT coalesce(sum(reserved_bytes), 0) FROM uploads),"
    " shared_bytes = (SELECT coalesce(sum((refcount - 1) * object_bytes), 0) FROM chunks WHERE refcount > 1),"
    " quarantine_bytes = (SELECT coalesce(sum(file_bytes), 0) FROM quarantine),"
    " manifests = (SELECT count(*) FROM manifests), chunks = (SELECT count(*) FROM chunks),"
    " sequence = max(sequence, 1 + (SELECT coalesce(max(generation), 0) FROM chunks),"
    " 1 + (SELECT coalesce(max(generation), 0) FROM manifests));";

constexpr const char* kDropDangling =
    "DELETE FROM manifest_chunks WHERE manifest NOT IN (SELECT manifest FROM manifests)"
    " OR chunk NOT IN (SELECT chunk FROM chunks);"
    "UPDATE uploads SET reserved_bytes = 0 WHERE state IN (4, 5, 6) AND reserved_bytes <> 0;"
    "DELETE FROM upload_objects WHERE upload NOT IN (SELECT upload FROM uploads WHERE state IN (1, 2, 3));";

constexpr const char* kWithdraw =
    "UPDATE manifests SET state = 3 WHERE state = 1 AND manifest IN ("
    "WITH RECURSIVE hit (manifest) AS ("
    "SELECT m.manifest FROM manifests m LEFT JOIN manifests p ON p.manifest = m.parent WHERE m.parent IS NOT"
    " NULL AND (p.manifest IS NULL OR p.state <> 1 OR m.depth <> p.depth + 1 OR m.key_epoch <> p.key_epoch)"
    " UNION SELECT u.manifest FROM manifest_chunks u LEFT JOIN chunks c ON c.chunk = u.chunk"
    " WHERE c.state IS NOT 1"
    " UNION SELECT m.manifest FROM hit JOIN manifests m ON m.parent = hit.manifest)"
    " SELECT manifest FROM hit);"
    "DELETE FROM prefixes WHERE manifest NOT IN (SELECT manifest FROM manifests WHERE state = 1);";

}  // namespace

Status repair_invariants(sqlite::Database& db) {
  KVPACK_TRY(db.execute(kRecount));
  KVPACK_TRY(db.execute(kWithdraw));
  KVPACK_TRY(db.execute(kDropDangling));
  return db.execute(kRecount);
}

}  // namespace kvpack::store
