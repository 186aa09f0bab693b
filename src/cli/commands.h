/// Every command adds itself to the application and says what to run. One file per command.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>

#include "cli/outcome.h"
#include "kvpack/base/fs.h"

namespace kvpack::cli {

/// What all commands are given.
struct Environment {
  FileSystem* fs = nullptr;
  Common* common = nullptr;
  /// Set by the command that was chosen; main runs it after parsing.
  std::function<int()>* chosen = nullptr;
};

void add_keygen(CLI::App& app, const Environment& environment);
void add_pack(CLI::App& app, const Environment& environment);
void add_unpack(CLI::App& app, const Environment& environment);
void add_inspect(CLI::App& app, const Environment& environment);
void add_verify(CLI::App& app, const Environment& environment);
void add_set_verify(CLI::App& set, const Environment& environment);
void add_set(CLI::App& app, const Environment& environment);
void add_explain(CLI::App& app, const Environment& environment);
void add_vectors(CLI::App& app, const Environment& environment);
void add_handoff(CLI::App& app, const Environment& environment);
void add_kvhf(CLI::App& app, const Environment& environment);
void add_muse(CLI::App& app, const Environment& environment);
void add_store(CLI::App& app, const Environment& environment);
void add_probe(CLI::App& app, const Environment& environment);
void add_economics(CLI::App& app, const Environment& environment);
void add_enroll(CLI::App& app, const Environment& environment);
void add_bench(CLI::App& app, const Environment& environment);
void add_completion(CLI::App& app, const Environment& environment);

/// Runs `run` with the options when the command is chosen.
template <class Options>
void when_chosen(CLI::App& command, const Environment& environment, std::shared_ptr<Options> options,
                 int (*run)(const Environment&, const Options&)) {
  command.callback([environment, options, run] {
    *environment.chosen = [environment, options, run] { return run(environment, *options); };
  });
}

/// --json, --quiet and --threads, which every command takes behind its name too. To be called when the
/// command has all its other options: none of them takes an empty value, and numbers (those of type N, M, T,
/// MS, BYTES or INDEX) are decimal digits.
void add_common(CLI::App& command, Common& common);

}  // namespace kvpack::cli
