/// Keeping a store within its quota and free of what nobody can find. docs/operations.md §Upkeep
#pragma once

#include "kvpack/store/store.h"

namespace kvpack {

/// What one round of upkeep has done.
struct MaintenanceReport {
  std::uint64_t before_bytes = 0;  ///< Durable and reserved bytes, and the head-room that was asked for.
  std::uint64_t after_bytes = 0;
  std::uint64_t manifests_evicted = 0;
  std::uint64_t chunks_collected = 0;
  std::uint64_t bytes_freed = 0;  ///< Of the files that were removed.
  bool emergency = false;         ///< After it the store is at the emergency mark or above.
  /// The target was not reached: everything left is in use, or the bound on operations was met.
  bool blocked = false;
};

/// Removes what cannot be found any more: expired and damaged cuts, and chunks that no cut names. Cuts that
/// can be found stay. Works on a full disk too.
/// @error kState `store is open for reading only`; kCatalog kIo
Result<MaintenanceReport> collect(Store& store);

/// Everything that is due: lapsed uploads are aborted, quarantine and history are pruned, what cannot be
/// found is collected, and above the mark 'begin' the least recently used cuts are evicted down to 'stop'.
/// @param head_room_bytes  of the quota to be left free beyond that
/// @error as collect
Result<MaintenanceReport> maintain(Store& store, std::uint64_t head_room_bytes = 0);

/// Evicts one cut and collects what only it has used.
/// @error kNotFound there is no such cut; kBusy `resource is busy`: it is pinned, has descendants, or an
///        unfinished save needs it; and as collect
Result<MaintenanceReport> evict(Store& store, const Id32& manifest_id);

struct RetirementReport {
  std::uint64_t manifests = 0;  ///< Withdrawn by this call.
  std::uint64_t chunks = 0;
  std::uint64_t remaining = 0;  ///< Objects of older epochs that are still to be withdrawn.
};

inline constexpr std::uint64_t kMaxRetirementObjects = 10'000;

/// Withdraws objects of epochs below the readable window, for a collection to remove. Call it until nothing
/// remains.
/// @param minimum_epoch  must be the store's minimum readable epoch
/// @param max_objects  1 to kMaxRetirementObjects
/// @error kExpectation another minimum or bound; and as collect
Result<RetirementReport> retire_epochs(Store& store, std::uint64_t minimum_epoch, std::uint64_t max_objects);

}  // namespace kvpack
