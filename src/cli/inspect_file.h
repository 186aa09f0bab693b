/// What a file says about itself, as JSON. Nothing in it is authenticated unless keys opened it.
#pragma once

#include "cli/commands.h"
#include "cli/cut_files.h"

namespace kvpack::cli {

/// @param keys  null works without: an encrypted manifest then gives what its header says
Result<JsonValue> inspect_file(const Environment& environment, const std::string& path, const KeyRing* keys);

/// The same of a set that is open already. @param keys  those that it was opened with
Result<JsonValue> inspect_set(const PackSet& set, const KeyRing* keys);

}  // namespace kvpack::cli
