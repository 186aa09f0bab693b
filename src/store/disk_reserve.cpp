#include "store/disk_reserve.h"

namespace kvpack::store {

Status make_reserve(Directory& root) {
  constexpr std::uint64_t kStep = std::uint64_t{1} << 20;
  auto file = root.create(kReserveName);
  if (!file.has_value() && file.error().code == ErrorCode::kExpectation)
    file = root.open(kReserveName, OpenMode::kReadWrite);
  if (!file.has_value()) return std::move(file.error());
  // Room that the file has already is not taken twice.
  Status room = (*file)->preallocate(kReserveBytes);
  for (std::uint64_t bytes = kReserveBytes - kStep;
       !room.has_value() && is_no_space(room.error()) && bytes != 0; bytes -= kStep)
    room = (*file)->preallocate(bytes);
  if (!room.has_value() && is_no_space(room.error())) room = (*file)->preallocate(kLeastReserveBytes);
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
