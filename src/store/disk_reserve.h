/// Room that a full disk can be emptied with: a collection needs a little to free a lot.
/// docs/operations.md §Full disks
#pragma once

#include "store/store_context.h"

namespace kvpack::store {

inline constexpr std::uint64_t kReserveBytes = std::uint64_t{8} << 20;
/// Less than this helps nobody, and is not kept.
inline constexpr std::uint64_t kLeastReserveBytes = std::uint64_t{1} << 19;

/// Makes the reserve file, or what is missing of it. On a disk that has not that much room left it becomes as
/// large as it can.
/// @error kIo with `space` when not even kLeastReserveBytes are left: then there is no such file
Status make_reserve(Directory& root);

/// Gives its room away. @return false when there was none
bool release_reserve(Directory& root) noexcept;

/// Runs `body`, and once more with the room of the reserve when it fails for want of room. What is left then
/// becomes the reserve again, so that it is there for the next one and not for whoever fills the disk.
template <class Body>
auto with_reserve(Directory& root, Body&& body) {
  auto result = body();
  if (result.has_value() || !is_no_space(result.error()) || !release_reserve(root)) return result;
  auto again = body();
  (void)make_reserve(root);
  return again;
}

}  // namespace kvpack::store
