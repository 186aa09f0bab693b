/// Room that a full disk can be emptied with: a collection needs a little to free a lot.
/// docs/operations.md §Full disks
#pragma once

#include "store/store_context.h"

namespace kvpack::store {

inline constexpr std::uint64_t kReserveBytes = std::uint64_t{8} << 20;

/// Makes the reserve file, or what is missing of it. None is left when there is no room for all of it.
/// @error kIo
Status make_reserve(Directory& root);

/// Gives its room away. @return false when there was none
bool release_reserve(Directory& root) noexcept;

/// Runs `body`, and once more with the room of the reserve when it fails for want of room. Whoever calls this
/// makes the reserve again when room has been made.
template <class Body>
auto with_reserve(Directory& root, Body&& body) {
  auto result = body();
  if (result.has_value() || !is_no_space(result.error()) || !release_reserve(root)) return result;
  return body();
}

}  // namespace kvpack::store
