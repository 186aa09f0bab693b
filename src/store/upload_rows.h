/// Steps on the rows of uploads that several transactions share. All run inside an open write transaction.
#pragma once

#include "store/store_context.h"

namespace kvpack::store {

/// Whose an upload is: the row, and the fence under which it was taken.
struct UploadClaim {
  std::int64_t upload = 0;
  std::uint64_t fence = 0;
};

/// The upload is still this session's and active.
/// @param refusal  text of the kState error when it has ended
/// @error kState `upload session was superseded`, `refusal`; kNotFound `artifact not found`
Status check_claim(sqlite::Database& db, const UploadClaim& claim, const char* refusal);

/// Number of a new row of chunks or manifests; never used twice.
Result<std::int64_t> next_generation(sqlite::Database& db);

/// Enters that an upload may link an object (planned) or relies on it (settled); the later phase stays.
Status plan_object(sqlite::Database& db, std::int64_t upload, ObjectKind kind, const Id32& id,
                   PlanPhase phase);

/// Unlinks an object that the upload has planned, unless it has a row of its own or another active upload has
/// a plan for it. What is not a regular file is left alone.
Status remove_planned_object(StoreContext& context, sqlite::Database& db, std::int64_t upload,
                             ObjectKind kind, const Id32& id, DirtyDirectories& dirty);

/// Undoes what an upload has planned and not settled. Its session, when one is alive, settles nothing any
/// more whether this commits or not.
Status undo_plans(StoreContext& context, sqlite::Database& db, std::int64_t upload);

/// Gives back to the endurance budget what was declared in that second and has not been written.
Status return_endurance(sqlite::Database& db, std::uint64_t ticket_second, std::uint64_t bytes);

}  // namespace kvpack::store
