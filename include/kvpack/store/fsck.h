/// Checking a store against itself, repairing it, and making a lost catalog again from the objects.
/// docs/operations.md §Repair; docs/format/store.md §Rebuild
#pragma once

#include "kvpack/store/store.h"

namespace kvpack {

/// What is wrong.
enum class FsckProblem : std::uint8_t {
  kDatabase,       ///< SQLite's own check: only a rebuild helps.
  kInvariant,      ///< Rows contradict each other or their counters.
  kMissingFile,    ///< A row whose file is not there.
  kWrongFile,      ///< A row whose file has another length, or is no regular file.
  kDamagedObject,  ///< An object that does not authenticate, or is not what its row says.
  kUnreadable,     ///< A file that could not be read, or an object of an epoch without a key.
  kOrphanFile,     ///< An object file without a row.
  kForeignEntry,   ///< Something among the objects that is no object file. Never touched.
  kIncompleteCut,  ///< Rebuild: a manifest whose parent or chunks are not all there and authentic.
};
/// `database` `invariant` `missing_file` `wrong_file` `damaged_object` `unreadable` `orphan_file`
/// `foreign_entry` `incomplete_cut`
std::string_view fsck_problem_name(FsckProblem problem) noexcept;

struct FsckFinding {
  FsckProblem problem = FsckProblem::kInvariant;
  std::optional<StoreFault::Object> object{};  ///< Of which kind `id` is.
  std::optional<Id32> id{};
  std::string path{};       ///< Of the file; empty where there is none.
  std::uint64_t bytes = 0;  ///< Of the file or, when it is missing, of its row.
  std::string text;         ///< For people: what does not hold.
  bool repaired = false;    ///< Nothing of it is left: withdrawn, quarantined, removed or computed again.
};

struct FsckProgress {
  std::uint64_t objects = 0;  ///< Rows or files that have been looked at.
  std::uint64_t bytes = 0;    ///< Of objects that have been read.
};

struct FsckOptions {
  bool deep = false;                  ///< Also reads and authenticates every object.
  bool repair = false;                ///< Also repairs what is found; else nothing is changed.
  std::size_t max_findings = 10'000;  ///< Kept in the report; all are counted, and repaired.
  /// Told now and then, on the calling thread. False ends the check: kCancelled.
  std::function<bool(const FsckProgress&)> progress{};
};

struct FsckReport {
  std::vector<FsckFinding> findings{};
  std::uint64_t found = 0;     ///< Findings, those not kept included.
  std::uint64_t repaired = 0;  ///< Of these.
  std::uint64_t manifests = 0;
  std::uint64_t chunks = 0;
  std::uint64_t bytes_read = 0;

  bool is_sound() const noexcept { return found == repaired; }
};

/// Checks the database, the rows among each other, each row's file and each file's row; deep: every object
/// with the keys. Repair withdraws cuts that need what is missing or damaged, quarantines damaged files (at
/// most 64 objects in one opening), removes files without a row, and computes counters again. Saves and
/// restores may go on meanwhile.
/// @error kState `store is open for reading only`; kCancelled `operation was cancelled`; kExpectation
///        `fsck keeps 1 to 1000000 findings`; kCatalog kIo
Result<FsckReport> fsck(Store& store, const FsckOptions& options = {});

struct RebuildOptions {
  std::size_t max_findings = 10'000;
  std::function<bool(const FsckProgress&)> progress{};  ///< As FsckOptions.
};

struct RebuildReport {
  std::vector<FsckFinding> findings{};  ///< `repaired`: moved to quarantine. All else is left where it is.
  std::uint64_t found = 0;
  std::uint64_t manifests = 0;  ///< Published in the new catalog.
  std::uint64_t chunks = 0;
  std::uint64_t durable_bytes = 0;
  std::uint64_t foreign_manifests = 0;  ///< Of other tenants; passed over.
  std::uint64_t bytes_read = 0;
  std::string backup_path{};  ///< Where the old catalog is now; empty when there was none.
};

/// Makes the catalog of a store again from its objects and puts it in the place of the old one, which is kept
/// beside it. No writer may be open; readers follow. What the objects do not say is lost: access times,
/// expiry, labels, counters, unfinished uploads. Nothing is replaced before the new catalog is complete.
/// @param options  as for Store::open; quotas that are not given are those of a new store
/// @error kAuthentication `store belongs to another tenant or key`, `store key does not match epoch {n}`:
///        objects are there and the keys open none of them; nothing was touched. kBusy `store is open
///        elsewhere: pid {n}`; kState as Store::open, but for the catalog; kNotFound there is no store;
///        kExpectation `fsck keeps 1 to 1000000 findings`; kLimit `store has more than 10000000 manifests`;
///        kCancelled kCatalog kIo
Result<RebuildReport> rebuild(StoreOptions options, const RebuildOptions& how = {});

}  // namespace kvpack
