/// T0 of a publication: room is reserved under an idempotency key. docs/format/store.md §Reserving
#pragma once

#include "store/upload.h"
#include "store/upload_rows.h"

namespace kvpack::store {

struct Reservation {
  UploadClaim claim;
  bool is_replay = false;                              ///< Everything is published; nothing has been changed.
  Id32 head_id{};                                      ///< Of a replay.
  std::uint64_t written_bytes = 0;                     ///< By earlier sessions of a resumed import.
  std::uint64_t settled_records = 0;                   ///< Likewise.
  std::uint64_t ticket_second = 0;                     ///< In which the endurance budget was charged.
  std::shared_ptr<UploadSessions::Session> session{};  ///< Null in a replay.
};

/// @error as Upload::reserve
Result<Reservation> reserve_upload(StoreContext& context, const UploadDeclaration& declaration);

}  // namespace kvpack::store
