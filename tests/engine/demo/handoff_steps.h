/// The demo's processes around a handoff between two stores. main.cpp says how they are called.
#pragma once

#include "engine/demo/process.h"

namespace kvpack::demo {

/// Writes what both ends are told about the model, as `--identity` and `--enrolment`, and the prompt as
/// `--tokens`.
Status describe_transfer(const Options& options);

/// Reads the cut that has arrived in a store and the one that it was sent from, compares every plane,
/// installs it, computes the rest of the prompt, goes on, and compares.
/// @return 0 as promised, 1 not
Result<int> arrived(const Options& options);

}  // namespace kvpack::demo
