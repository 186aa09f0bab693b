/// One restore: chunks are read, verified and placed, and the sink is left committed, or aborted and reset.
/// docs/format/store.md §Reading
#pragma once

#include "kvpack/store/restore.h"
#include "store/store_context.h"

namespace kvpack::store {

/// @error kCancelled `operation was cancelled`
Status check_not_cancelled(const std::stop_token& cancel);

/// Keeps a cut's files: in memory, or with a file in a reader. On a medium that nobody can write no pin is
/// needed, and none can be made.
Result<Pins::Pin> pin_cut(StoreContext& context, const Id32& manifest_id);

/// The pinned cut into the sink. What is wrong with a chunk names it as `object`; nothing is reported.
/// @error as restore()
Result<RestoredCut> run_restore(Store& store, const AuthenticatedPlan& plan, RestoreSink& sink,
                                const RestoreRequest& request, Pins::Pin pin);

}  // namespace kvpack::store
