/// The parts of `kvpack kvhf`, one file each.
#pragma once

#include "cli/handoff_command.h"

namespace kvpack::cli {

void add_kvhf_inspect(CLI::App& kvhf, const Environment& environment);
void add_kvhf_verify(CLI::App& kvhf, const Environment& environment);

/// A directory is a bundle; anything else is read as a recorded stream.
bool is_bundle(FileSystem& fs, const std::string& path);

}  // namespace kvpack::cli
