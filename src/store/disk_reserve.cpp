#include "store/disk_reserve.h"

namespace kvpack::store {

Status make_reserve(Directory& root) {
  auto file = root.create(kReserveName);
  if (!file.has_value() && file.error().code == ErrorCode::kExpectation)
    file = root.open(kReserveName, OpenMode::kReadWrite);
  if (!file.has_value()) return std::move(file.error());
  // Of a file that has its room already this changes nothing.
  Status room = (*file)->preallocate(kReserveBytes);
  if (!room.has_value()) (void)root.unlink(kReserveName);
  return room;
}

bool release_reserve(Directory& root) noexcept {
  if (!root.unlink(kReserveName).has_value()) return false;
  // Some file systems give the room back with the next commit of their own journal only.
  (void)root.sync();
  return true;
}

}  // namespace kvpack::store
