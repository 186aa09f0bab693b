#include "store/schema.h"

#include <array>

namespace kvpack::store {
namespace {

// Counters are kept by the triggers and by nothing else, so they cannot drift from the rows.
constexpr const char* kVersion1 = R"sql(
CREATE TABLE store (  -- exactly one row; the counters are kept by the triggers below and by nothing else
  one INTEGER PRIMARY KEY CHECK (one = 1), tenant BLOB NOT NULL CHECK (length(tenant) = 32),
  key_epoch INTEGER NOT NULL CHECK (key_epoch >= 1), minimum_epoch INTEGER NOT NULL CHECK (minimum_epoch BETWEEN 1 AND key_epoch),
  catalog_epoch INTEGER NOT NULL CHECK (catalog_epoch >= 1), quota_bytes INTEGER NOT NULL CHECK (quota_bytes >= 1),
  staging_quota_bytes INTEGER NOT NULL CHECK (staging_quota_bytes >= 1),
  sequence INTEGER NOT NULL DEFAULT 1,  -- next row generation, never reused
  durable_bytes INTEGER NOT NULL DEFAULT 0 CHECK (durable_bytes >= 0), reserved_bytes INTEGER NOT NULL DEFAULT 0 CHECK (reserved_bytes >= 0),
  shared_bytes INTEGER NOT NULL DEFAULT 0 CHECK (shared_bytes >= 0), quarantine_bytes INTEGER NOT NULL DEFAULT 0 CHECK (quarantine_bytes >= 0),
  manifests INTEGER NOT NULL DEFAULT 0 CHECK (manifests >= 0), chunks INTEGER NOT NULL DEFAULT 0 CHECK (chunks >= 0),
  created_ns INTEGER NOT NULL) STRICT;

CREATE TABLE epochs (epoch INTEGER PRIMARY KEY CHECK (epoch >= 1), key_check BLOB NOT NULL CHECK (length(key_check) = 32)) STRICT;

CREATE TABLE chunks (
  chunk INTEGER PRIMARY KEY,  -- local number, never leaves the catalog
  object_key BLOB NOT NULL UNIQUE CHECK (length(object_key) = 32), content_id BLOB NOT NULL CHECK (length(content_id) = 32),
  object_digest BLOB NOT NULL CHECK (length(object_digest) = 32), key_epoch INTEGER NOT NULL CHECK (key_epoch >= 1),
  plaintext_bytes INTEGER NOT NULL CHECK (plaintext_bytes BETWEEN 1 AND 4194304),
  object_bytes INTEGER NOT NULL CHECK (object_bytes BETWEEN 8192 AND 4235264),
  refcount INTEGER NOT NULL DEFAULT 0 CHECK (refcount >= 0), state INTEGER NOT NULL DEFAULT 1 CHECK (state IN (1, 2, 3)),
  generation INTEGER NOT NULL, created_ns INTEGER NOT NULL) STRICT;
CREATE INDEX chunk_content ON chunks (content_id, key_epoch) WHERE state = 1;  -- not unique: an import may bring a second object
CREATE INDEX chunk_victim ON chunks (created_ns, chunk) WHERE refcount = 0 AND state = 1;
CREATE INDEX chunk_pending ON chunks (chunk) WHERE state <> 1;

CREATE TABLE manifests (
  manifest INTEGER PRIMARY KEY, manifest_id BLOB NOT NULL UNIQUE CHECK (length(manifest_id) = 32),
  parent INTEGER REFERENCES manifests (manifest), depth INTEGER NOT NULL CHECK (depth BETWEEN 0 AND 7),
  children INTEGER NOT NULL DEFAULT 0 CHECK (children >= 0), key_epoch INTEGER NOT NULL CHECK (key_epoch >= 1),
  semantic_id BLOB NOT NULL CHECK (length(semantic_id) = 32), family_id BLOB NOT NULL CHECK (length(family_id) = 32),
  token_count INTEGER NOT NULL CHECK (token_count >= 1), file_bytes INTEGER NOT NULL CHECK (file_bytes > 8192),
  restored_bytes INTEGER NOT NULL CHECK (restored_bytes >= 1), state INTEGER NOT NULL DEFAULT 1 CHECK (state IN (1, 2, 3)),
  generation INTEGER NOT NULL, publication INTEGER NOT NULL CHECK (publication >= 1),
  published_ns INTEGER NOT NULL, access_ns INTEGER NOT NULL, expires_ns INTEGER,  -- NULL: no TTL
  CHECK ((parent IS NULL) = (depth = 0))) STRICT;
CREATE INDEX manifest_victim ON manifests (access_ns, manifest) WHERE children = 0 AND state = 1;
CREATE INDEX manifest_expiry ON manifests (expires_ns) WHERE expires_ns IS NOT NULL;
CREATE INDEX manifest_parent ON manifests (parent) WHERE parent IS NOT NULL;
CREATE INDEX manifest_epoch ON manifests (key_epoch);
CREATE INDEX manifest_pending ON manifests (manifest) WHERE state <> 1;

CREATE TABLE manifest_chunks (  -- the distinct objects of a manifest; order and spans are in the manifest itself
  manifest INTEGER NOT NULL REFERENCES manifests (manifest), chunk INTEGER NOT NULL REFERENCES chunks (chunk),
  PRIMARY KEY (manifest, chunk)) STRICT, WITHOUT ROWID;
CREATE INDEX chunk_users ON manifest_chunks (chunk, manifest);

CREATE TABLE prefixes (  -- one prefix may have several manifests; the node id already binds tenant, model and family
  prefix_id BLOB NOT NULL CHECK (length(prefix_id) = 32), manifest INTEGER NOT NULL REFERENCES manifests (manifest),
  exact_final INTEGER NOT NULL CHECK (exact_final IN (0, 1)), PRIMARY KEY (prefix_id, manifest)) STRICT, WITHOUT ROWID;
CREATE INDEX prefix_manifest ON prefixes (manifest);

CREATE TABLE uploads (
  upload INTEGER PRIMARY KEY, idempotency_key BLOB NOT NULL UNIQUE CHECK (length(idempotency_key) = 32),
  kind INTEGER NOT NULL CHECK (kind BETWEEN 1 AND 4),    -- 1 cut export, 2 single cut, 3 import, 4 reserved
  state INTEGER NOT NULL CHECK (state BETWEEN 1 AND 6),  -- 1 RESERVED 2 RECEIVING 3 VERIFIED 4 PUBLISHED 5 ABORTED 6 QUARANTINED
  fence INTEGER NOT NULL CHECK (fence >= 1), owner BLOB NOT NULL CHECK (length(owner) = 32),
  intent_digest BLOB NOT NULL CHECK (length(intent_digest) = 32), seal_digest BLOB CHECK (length(seal_digest) = 32),
  expected_bytes INTEGER NOT NULL CHECK (expected_bytes >= 1), written_bytes INTEGER NOT NULL DEFAULT 0 CHECK (written_bytes >= 0),
  reserved_bytes INTEGER NOT NULL CHECK (reserved_bytes >= 0), publication INTEGER NOT NULL CHECK (publication >= 1),
  next_ordinal INTEGER NOT NULL DEFAULT 0, head_id BLOB CHECK (length(head_id) = 32),
  ticket_second INTEGER NOT NULL, updated_ns INTEGER NOT NULL, reason TEXT) STRICT;
CREATE INDEX upload_active ON uploads (updated_ns) WHERE state IN (1, 2, 3);
CREATE INDEX upload_done ON uploads (updated_ns) WHERE state IN (4, 5, 6);

CREATE TABLE upload_objects (  -- names an upload may have linked; also what it keeps from the collector
  upload INTEGER NOT NULL REFERENCES uploads (upload) ON DELETE CASCADE, kind INTEGER NOT NULL CHECK (kind IN (1, 2)),  -- chunk, manifest
  object_id BLOB NOT NULL CHECK (length(object_id) = 32), phase INTEGER NOT NULL CHECK (phase IN (1, 2)),  -- planned, settled
  PRIMARY KEY (upload, kind, object_id)) STRICT, WITHOUT ROWID;
CREATE INDEX upload_object ON upload_objects (kind, object_id);

CREATE TABLE endurance (second INTEGER PRIMARY KEY, bytes INTEGER NOT NULL CHECK (bytes >= 0)) STRICT;

CREATE TABLE removals (  -- barriers: 1 ReplicaEvicted 2 ArtifactSuperseded 3 ArtifactRevoked 4 EpochRetired 5 PhysicallyReclaimed
  kind INTEGER NOT NULL CHECK (kind IN (1, 2, 3)), object_id BLOB NOT NULL CHECK (length(object_id) = 32),  -- chunk, manifest, prefix
  meaning INTEGER NOT NULL CHECK (meaning BETWEEN 1 AND 5), generation INTEGER NOT NULL, created_ns INTEGER NOT NULL,
  PRIMARY KEY (kind, object_id, meaning)) STRICT, WITHOUT ROWID;

CREATE TABLE quarantine (
  entry INTEGER PRIMARY KEY, path_token TEXT NOT NULL UNIQUE,
  kind INTEGER NOT NULL CHECK (kind BETWEEN 1 AND 5),  -- 1 duplicate_chunk 2 upload_manifest 3 restart_partial 4 recovered_quarantine 5 damaged_object
  object_id BLOB, file_bytes INTEGER NOT NULL CHECK (file_bytes >= 0),
  created_ns INTEGER NOT NULL, expires_ns INTEGER NOT NULL, reason TEXT NOT NULL) STRICT;
CREATE INDEX quarantine_age ON quarantine (expires_ns, created_ns);

CREATE TABLE identities (  -- readable names for `explain`, `ls`, `report`; never a token, a prompt or a key
  semantic_id BLOB NOT NULL CHECK (length(semantic_id) = 32), family_id BLOB NOT NULL CHECK (length(family_id) = 32),
  label TEXT NOT NULL CHECK (length(label) <= 16384), PRIMARY KEY (semantic_id, family_id)) STRICT, WITHOUT ROWID;

CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID;  -- for `stat` and `report`

CREATE TRIGGER chunk_in AFTER INSERT ON chunks BEGIN
  UPDATE store SET durable_bytes = durable_bytes + NEW.object_bytes, chunks = chunks + 1; END;
CREATE TRIGGER chunk_out AFTER DELETE ON chunks BEGIN
  UPDATE store SET durable_bytes = durable_bytes - OLD.object_bytes, chunks = chunks - 1; END;
CREATE TRIGGER manifest_in AFTER INSERT ON manifests BEGIN
  UPDATE store SET durable_bytes = durable_bytes + NEW.file_bytes, manifests = manifests + 1;
  UPDATE manifests SET children = children + 1 WHERE manifest = NEW.parent; END;
CREATE TRIGGER manifest_out AFTER DELETE ON manifests BEGIN
  UPDATE store SET durable_bytes = durable_bytes - OLD.file_bytes, manifests = manifests - 1;
  UPDATE manifests SET children = children - 1 WHERE manifest = OLD.parent; END;
CREATE TRIGGER manifest_resize AFTER UPDATE OF file_bytes ON manifests BEGIN
  UPDATE store SET durable_bytes = durable_bytes + NEW.file_bytes - OLD.file_bytes; END;
CREATE TRIGGER reference_in AFTER INSERT ON manifest_chunks BEGIN
  UPDATE store SET shared_bytes = shared_bytes + coalesce((SELECT object_bytes FROM chunks WHERE chunk = NEW.chunk AND refcount >= 1), 0);
  UPDATE chunks SET refcount = refcount + 1 WHERE chunk = NEW.chunk; END;
CREATE TRIGGER reference_out AFTER DELETE ON manifest_chunks BEGIN
  UPDATE chunks SET refcount = refcount - 1 WHERE chunk = OLD.chunk;
  UPDATE store SET shared_bytes = shared_bytes - coalesce((SELECT object_bytes FROM chunks WHERE chunk = OLD.chunk AND refcount >= 1), 0); END;
CREATE TRIGGER upload_in AFTER INSERT ON uploads BEGIN UPDATE store SET reserved_bytes = reserved_bytes + NEW.reserved_bytes; END;
CREATE TRIGGER upload_change AFTER UPDATE OF reserved_bytes ON uploads BEGIN
  UPDATE store SET reserved_bytes = reserved_bytes + NEW.reserved_bytes - OLD.reserved_bytes; END;
CREATE TRIGGER upload_out AFTER DELETE ON uploads BEGIN UPDATE store SET reserved_bytes = reserved_bytes - OLD.reserved_bytes; END;
CREATE TRIGGER quarantine_in AFTER INSERT ON quarantine BEGIN UPDATE store SET quarantine_bytes = quarantine_bytes + NEW.file_bytes; END;
CREATE TRIGGER quarantine_out AFTER DELETE ON quarantine BEGIN UPDATE store SET quarantine_bytes = quarantine_bytes - OLD.file_bytes; END;
)sql";

Status set_number(sqlite::Database& database, const std::string& pragma, std::size_t value) {
  return database.execute(("PRAGMA " + pragma + " = " + std::to_string(value)).c_str());
}

Result<std::int64_t> pragma(sqlite::Database& database, const std::string& name) {
  KVPACK_TRY_ASSIGN(const auto value, database.number("PRAGMA " + name));
  return value.value_or(0);
}

Status check_version(sqlite::Database& database, std::size_t newest, std::int64_t& version) {
  const auto refuse = [] {
    return fail(ErrorCode::kState, "catalog contains an unknown or newer schema migration");
  };
  KVPACK_TRY_ASSIGN(const std::int64_t application, pragma(database, "application_id"));
  KVPACK_TRY_ASSIGN(version, pragma(database, "user_version"));
  if (version < 0 || version > static_cast<std::int64_t>(newest)) return refuse();
  if (version != 0) {
    if (application != kApplicationId) return refuse();
    return success();
  }
  // Somebody else's database has version 0 too, but it is not empty.
  KVPACK_TRY_ASSIGN(const auto tables, database.number("SELECT count(*) FROM sqlite_schema"));
  if (application != 0 || tables.value_or(0) != 0) return refuse();
  return success();
}

Status apply(sqlite::Database& database, const Migration& migration, std::size_t version) {
  KVPACK_TRY(migration(database));
  KVPACK_TRY(set_number(database, "application_id", static_cast<std::size_t>(kApplicationId)));
  return set_number(database, "user_version", version);
}

}  // namespace

std::span<const Migration> catalog_migrations() {
  static const std::array<Migration, 1> kMigrations{
      [](sqlite::Database& database) { return database.execute(kVersion1); }};
  return kMigrations;
}

Status migrate(sqlite::Database& database, std::span<const Migration> migrations) {
  std::int64_t version = 0;
  KVPACK_TRY(check_version(database, migrations.size(), version));
  for (auto next = static_cast<std::size_t>(version); next < migrations.size(); ++next) {
    KVPACK_TRY(database.execute("BEGIN IMMEDIATE"));
    Status status = apply(database, migrations[next], next + 1);
    if (status.has_value()) status = database.execute("COMMIT");
    if (!status.has_value()) {
      (void)database.execute("ROLLBACK");
      return status;
    }
  }
  return success();
}

Result<bool> has_schema(sqlite::Database& database) {
  KVPACK_TRY_ASSIGN(const std::int64_t version, pragma(database, "user_version"));
  return version != 0;
}

Status check_schema(sqlite::Database& database, std::size_t version_count) {
  std::int64_t version = 0;
  KVPACK_TRY(check_version(database, version_count, version));
  // A read-only handle cannot bring an older catalog up to date.
  if (version != static_cast<std::int64_t>(version_count))
    return fail(ErrorCode::kState, "catalog must be opened for writing once, to bring it to this version");
  return success();
}

}  // namespace kvpack::store
