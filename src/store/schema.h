/// The catalog's tables and how a catalog of an older version becomes one of today's. docs/format/store.md
/// §Catalog
#pragma once

#include <functional>
#include <span>

#include "store/sqlite.h"

namespace kvpack::store {

/// Kinds and states as the columns hold them.
enum class ObjectKind : std::int64_t { kChunk = 1, kManifest = 2 };
enum class RowState : std::int64_t { kAvailable = 1, kEvicting = 2, kDamaged = 3 };
enum class UploadKind : std::int64_t { kCutExport = 1, kSingleCut = 2, kImport = 3, kProvisional = 4 };
enum class UploadState : std::int64_t {
  kReserved = 1,
  kReceiving = 2,
  kVerified = 3,
  kPublished = 4,
  kAborted = 5,
  kQuarantined = 6
};
enum class PlanPhase : std::int64_t { kPlanned = 1, kSettled = 2 };
enum class QuarantineKind : std::int64_t {
  kDuplicateChunk = 1,
  kUploadManifest = 2,
  kRestartPartial = 3,
  kRecoveredQuarantine = 4,
  kDamagedObject = 5
};
template <class E>
requires std::is_enum_v<E>
constexpr std::int64_t number(E value) noexcept {
  return static_cast<std::int64_t>(value);
}

inline constexpr std::int64_t kApplicationId = 0x4B565053;  // KVPS

/// Makes version i + 1 out of version i.
using Migration = std::function<Status(sqlite::Database&)>;
/// All migrations: element i makes version i + 1. An empty database has version 0.
std::span<const Migration> catalog_migrations();

/// Brings a database to the newest version, each step and its record in one transaction. An empty one is
/// given the application id.
/// @error kState `catalog contains an unknown or newer schema migration`; kCatalog
Status migrate(sqlite::Database& database, std::span<const Migration> migrations);

/// Whether the first migration has been committed. A creation that was interrupted leaves a file without it.
Result<bool> has_schema(sqlite::Database& database);
/// The refusal of migrate() without changing anything: what a read-only handle asks.
Status check_schema(sqlite::Database& database, std::size_t version_count);

}  // namespace kvpack::store
