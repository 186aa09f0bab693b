/// What a store holds: totals, counters, cuts, quarantined files. docs/operations.md §Status
#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "kvpack/store/store.h"

namespace kvpack {

/// One counter. Names: docs/operations.md §Counters.
struct StoreCounter {
  std::string_view name;
  std::uint64_t recorded = 0;  ///< In the catalog.
  std::uint64_t pending = 0;   ///< By this handle and not in the catalog yet; a reader's never get there.
};

/// How close a store is to its quota: where durable and reserved bytes stand among the watermarks.
enum class StorePressure : std::uint8_t { kNormal, kEvicting, kEmergency, kPromotionStopped };
std::string_view pressure_name(StorePressure pressure);

struct StoreStatus {
  std::uint64_t quota_bytes = 0;
  std::uint64_t staging_quota_bytes = 0;
  std::uint64_t durable_bytes = 0;   ///< Of objects that have a row.
  std::uint64_t reserved_bytes = 0;  ///< By saves that have not ended.
  std::uint64_t shared_bytes = 0;    ///< What the same cuts would take more if no chunk were shared.
  std::uint64_t quarantine_bytes = 0;
  std::uint64_t quarantine_cap_bytes = 0;
  std::uint64_t manifests = 0;
  std::uint64_t chunks = 0;
  std::uint64_t pending_manifests = 0;  ///< Being evicted, or damaged.
  std::uint64_t pending_chunks = 0;
  std::uint64_t active_uploads = 0;
  std::uint64_t holds = 0;  ///< Restored cuts that this handle keeps from eviction.
  std::uint64_t key_epoch = 0;
  std::uint64_t minimum_epoch = 0;
  std::uint64_t catalog_epoch = 0;
  std::uint64_t created_ns = 0;  ///< Nanoseconds since 1970.
  StorePressure pressure = StorePressure::kNormal;
  std::vector<StoreCounter> counters{};
};

/// Also of a read-only handle. The cost does not depend on what is stored. In a writer, lapsed uploads are
/// aborted first.
/// @error kCatalog kIo
Result<StoreStatus> status(Store& store);

enum class CutState : std::uint8_t { kAvailable = 1, kEvicting = 2, kDamaged = 3 };

struct StoredCut {
  Id32 manifest_id;
  std::optional<Id32> parent_id{};
  unsigned depth = 0;  ///< Manifests between this cut and its full base.
  std::uint64_t children = 0;
  std::uint64_t token_count = 0;
  std::uint64_t key_epoch = 0;
  Id32 semantic_id;
  Id32 family_id;
  std::string label;                 ///< A readable name of its identity; may be empty.
  std::uint64_t file_bytes = 0;      ///< Of the manifest.
  std::uint64_t restored_bytes = 0;  ///< Of the whole cut's planes.
  std::uint64_t chunks = 0;          ///< Objects that this manifest names; its ancestors name others.
  std::uint64_t chunk_bytes = 0;     ///< Of these objects.
  std::uint64_t shared_bytes = 0;    ///< Part of chunk_bytes that other manifests name too.
  std::uint64_t published_ns = 0;    ///< Nanoseconds since 1970.
  std::uint64_t access_ns = 0;
  std::optional<std::uint64_t> expires_ns{};
  CutState state = CutState::kAvailable;
};

/// Calls `visit` with each cut, in the order in which they were first published, until it returns false.
/// Cuts that come or go meanwhile may be among them or not. `visit` may call the store.
/// @error kCatalog
Status list_cuts(Store& store, const std::function<bool(const StoredCut&)>& visit);

/// How many chunks are named by how many manifests.
struct ChunkSharing {
  std::uint64_t users = 0;
  std::uint64_t chunks = 0;
  std::uint64_t object_bytes = 0;
};
/// In ascending order of users. Reads every chunk's row.
Result<std::vector<ChunkSharing>> chunk_sharing(Store& store);

/// A file in quarantine.
struct QuarantinedFile {
  std::string path;
  std::string kind;  ///< `duplicate_chunk` `upload_manifest` `restart_partial` `recovered_quarantine`
                     ///< `damaged_object`
  std::optional<Id32> object{};
  std::uint64_t file_bytes = 0;
  std::uint64_t created_ns = 0;
  std::uint64_t expires_ns = 0;
  std::string reason;
};
/// Files in quarantine of one kind and for one reason.
struct QuarantineGroup {
  std::string kind;  ///< As QuarantinedFile.
  std::string reason;
  std::uint64_t files = 0;
  std::uint64_t file_bytes = 0;
  std::uint64_t newest_ns = 0;       ///< When the last of them was moved. Nanoseconds since 1970.
  std::uint64_t next_expiry_ns = 0;  ///< When the first of them goes.
};
/// The first `max_groups`, those with most files.
/// @error kCatalog kIo
Result<std::vector<QuarantineGroup>> quarantine_groups(Store& store, std::size_t max_groups);

/// The first `max_files`, those that expire first.
Result<std::vector<QuarantinedFile>> quarantined_files(Store& store, std::size_t max_files);

}  // namespace kvpack
