/// Files that are kept as evidence for 24 hours and never read as objects again. docs/format/store.md
/// §Quarantine
#pragma once

#include "store/store_context.h"

namespace kvpack::store {

inline constexpr std::uint64_t kQuarantineLifetimeNs = std::uint64_t{24} * 3'600 * 1'000'000'000;
/// Entries that one round of pruning removes at most.
inline constexpr std::size_t kQuarantineRound = 1'024;

/// How many bytes quarantined files may take.
std::uint64_t quarantine_cap_bytes(const StoreContext& context);

/// Removes expired entries, and the oldest ones while the cap is exceeded, in rounds until nothing more can
/// be removed. An over-full quarantine is no error here.
Status prune_quarantine(StoreContext& context);

/// One round, for a save that is about to reserve.
/// @error kQuota `quarantine capacity requires bounded maintenance`
Status enforce_quarantine(StoreContext& context);

}  // namespace kvpack::store
