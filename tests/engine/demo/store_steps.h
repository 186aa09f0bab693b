/// The demo's processes that use a store. main.cpp says how they are called.
#pragma once

#include "engine/demo/process.h"

namespace kvpack::demo {

/// Makes the store where there is none, saves at 512 and at 768 tokens, goes on without interruption and
/// writes its logits; then waits in the middle of a third save to be killed. @error kTimeout nobody did
Status keep(const Options& options);

/// Computes a prompt without a store, in the same steps as one that is saved and resumed.
Status compute(const Options& options);

/// Finds the deepest stored prefix of a prompt, restores it, computes the rest, goes on, and compares.
/// @return 0 as promised, 1 not
Result<int> resume(const Options& options);

}  // namespace kvpack::demo
