/// The demo's processes that reuse what is nearest. main.cpp says how they are called.
#pragma once

#include "engine/demo/process.h"

namespace kvpack::demo {

/// Serves requests, each in a session of its own, from a resident tier that begins empty and from a store,
/// which is made where there is none; computes the rest, publishes and keeps it. `--requests` says what is
/// asked and from where it must come: `PROMPT:SOURCE[:TOKENS]` with commas in between, PROMPT one of first,
/// long, forked, and SOURCE one of miss, resident, durable.
/// @return 0 as promised, 1 not
Result<int> serve(const Options& options);

}  // namespace kvpack::demo
