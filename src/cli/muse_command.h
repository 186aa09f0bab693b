/// The parts of `kvpack muse`, one file each, and the model file that they read. docs/cli.md §kvpack muse
#pragma once

#include "cli/commands.h"
#include "kvpack/muse/model_config.h"

namespace kvpack::cli {

void add_muse_identity(CLI::App& muse, const Environment& environment);
void add_muse_check(CLI::App& muse, const Environment& environment);
void add_muse_explain(CLI::App& muse, const Environment& environment);
void add_muse_sessions(CLI::App& muse, const Environment& environment);

/// Ends a command about a model file that was refused for what is in it, or could not be read.
/// @param seen  as Reporter::refusal
int model_refused(const Reporter& reporter, const Error& error, const std::string& path,
                  JsonValue seen = JsonValue::object());

}  // namespace kvpack::cli
