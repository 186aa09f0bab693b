/// Eviction of cuts and collection of chunks, in steps that a crash may separate: an object is made invisible
/// and that is committed, then, unless somebody has it pinned or planned, its file and its row go.
/// docs/format/store.md §Removal
#pragma once

#include "kvpack/store/upkeep.h"
#include "store/store_context.h"

namespace kvpack::store {

/// Objects that one transaction selects or removes at most.
inline constexpr std::size_t kRemovalBatch = 64;

struct RemovalCounts {
  std::uint64_t manifests = 0;
  std::uint64_t chunks = 0;
  std::uint64_t bytes = 0;

  std::uint64_t objects() const noexcept { return manifests + chunks; }
  void add(const RemovalCounts& other) noexcept {
    manifests += other.manifests;
    chunks += other.chunks;
    bytes += other.bytes;
  }
};

/// Which rows a removal takes.
enum class Removable : std::uint8_t { kEvicting, kEvictingOrDamaged };

/// Removes all rows in such a state that nobody pins, plans or needs, and their files.
Result<RemovalCounts> remove_pending(StoreContext& context, Removable which);

/// One round of collecting what cannot be found: expired and damaged cuts, chunks without a cut. Nothing is
/// left to do when it has removed nothing.
Result<RemovalCounts> collect_round(StoreContext& context);

/// Evicts the least recently used cuts whose removal frees about `bytes`, at least one and at most
/// kRemovalBatch, with the chunks that nobody else names.
Result<RemovalCounts> evict_least_recent(StoreContext& context, std::uint64_t bytes);

}  // namespace kvpack::store
