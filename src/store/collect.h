/// Eviction of cuts and collection of chunks, in steps that a crash may separate: an object is made invisible
/// and that is committed, then, unless somebody has it pinned or planned, its file and its row go.
/// docs/format/store.md §Removal
#pragma once

#include "store/store_context.h"

namespace kvpack::store {

/// Objects that one transaction selects or removes at most.
inline constexpr std::size_t kRemovalBatch = 64;

/// What one or several removals have done.
struct Removal {
  std::uint64_t manifests = 0;
  std::uint64_t chunks = 0;
  std::uint64_t bytes = 0;     ///< Of both, by their rows.
  std::uint64_t selected = 0;  ///< Objects that have become invisible; they may have been removed or not.
  /// The first object whose file could not be removed. It stays invisible, and the next removal tries again.
  std::optional<Error> fault{};

  std::uint64_t objects() const noexcept { return manifests + chunks; }
  /// Whether another round may find more to do.
  bool has_progressed() const noexcept { return objects() + selected != 0; }
  void add(Removal other);
};

/// Which rows a removal takes.
enum class Removable : std::uint8_t { kEvicting, kEvictingOrDamaged };

/// Removes all such rows that nobody pins, plans or needs, and their files. Not inside a transaction, like
/// everything below.
Result<Removal> remove_pending(StoreContext& context, Removable which);

/// One round of collecting what cannot be found: at most kRemovalBatch expired cuts and as many chunks that
/// no cut names, and all damaged ones.
Result<Removal> collect_round(StoreContext& context);

/// Evicts the least recently used cuts whose removal frees `bytes`, at least one and at most kRemovalBatch.
/// Chunks that nobody names any more are left to collect_round.
Result<Removal> evict_least_recent(StoreContext& context, std::uint64_t bytes);

/// Evicts one cut.
/// @error kNotFound `artifact not found`; kBusy `resource is busy`
Result<Removal> evict_manifest(StoreContext& context, const Id32& manifest_id);

}  // namespace kvpack::store
