/// Room for saves, and what is due from time to time. docs/operations.md §Upkeep
#pragma once

#include "kvpack/store/upkeep.h"
#include "store/store_context.h"

namespace kvpack::store {

/// Objects behind which a save removes no more to make room for itself.
inline constexpr std::uint64_t kRoomOperations = 1'024;

/// Evicts down to the mark 'stop' when durable, reserved and head-room bytes reach the mark 'begin', else
/// does nothing. Not inside a transaction.
/// @param operations  once so many objects have been removed, no further round begins
Result<MaintenanceReport> make_room(StoreContext& context, std::uint64_t head_room_bytes,
                                    std::uint64_t operations = kRoomOperations);

}  // namespace kvpack::store
