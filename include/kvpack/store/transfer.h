/// Cuts between stores, as pack sets: one file with one chain and every chunk of it. docs/operations.md §Pack
/// sets between stores; docs/format/store.md §Pack sets
#pragma once

#include <stop_token>

#include "kvpack/core/pack_set_writer.h"
#include "kvpack/store/lookup.h"
#include "kvpack/store/save.h"

namespace kvpack {

struct ImportOptions {
  ManifestLimits limits{};   ///< What the caller is willing to handle.
  unsigned parallelism = 1;  ///< Threads that verify. Above 1 the source is read from several at once.
  std::stop_token cancel{};
  /// Told how many bytes of records have been verified; then, from 0 again, how many are in the store.
  std::function<void(std::uint64_t bytes)> progress{};
};

struct ImportResult {
  std::vector<PublishedCut> cuts{};   ///< From the full base to the head.
  std::uint64_t records = 0;          ///< Of the set, packs included.
  std::uint64_t resumed_records = 0;  ///< Chunks that an earlier, interrupted import had settled.
  std::uint64_t file_bytes = 0;       ///< Of the set.
  bool replayed = false;              ///< The set had been imported already and is whole.
};

/// Publishes a pack set as it is. All of it is verified before anything is written; what the store has
/// already is not written again. An import that ends with kIo, kCatalog or kCancelled goes on where it
/// stopped when the same set is imported again within 24 hours, by whatever process; any other error undoes
/// it.
/// @param source  stays unchanged during the call
/// @error kAuthentication `pack set tenant mismatch`; kExpectation `pack set epoch {n} is outside the
/// readable
///        window`; as verify_pack_set, before anything is written; kIo `pack set changed while it was read`;
///        kQuota kEndurance there is no room; kState `store is open for reading only`; kCancelled `operation
///        was cancelled`; kCatalog
Result<ImportResult> import_pack_set(Store& store, ReadAt& source, const ImportOptions& options = {});

struct ExportOptions {
  ManifestLimits limits{};  ///< What the caller is willing to handle.
};

/// Writes a cut of the store as a pack set, signed under the epoch that the store writes. The cut stays
/// pinned; its chain is authenticated before the first byte, and each chunk before it is written. Also from a
/// read-only handle. After an error what has been appended is no pack set.
/// @error kNotFound `artifact not found`; damage, with `object`, which is reported and quarantined as in a
///        restore; what `out` returns; kCatalog kIo
Result<PackSetSummary> export_pack_set(Store& store, const Id32& manifest_id, Append& out,
                                       const ExportOptions& options = {});

/// The deepest cut of an input. @error kNotFound `artifact not found` also when there is none
Result<PackSetSummary> export_pack_set(Store& store, const PrefixQuery& query, Append& out,
                                       const ExportOptions& options = {});

/// The same into a file, which appears whole and durable or not at all.
/// @error kExpectation `target exists with different bytes`; as above
Result<PackSetSummary> export_pack_set_file(Store& store, const Id32& manifest_id, std::string_view path,
                                            const ExportOptions& options = {});

}  // namespace kvpack
