/// What `send`, `serve` and `receive` share: the store at their end, and the Muse identity that it is of.
/// docs/cluster.md
#pragma once

#include <fmt/core.h>

#include "cli/store_command.h"
#include "kvpack/muse/prefix_cache.h"

namespace kvpack::cli {

/// --store, --identity, and the keys of the store.
struct ClusterStoreArguments {
  StoreArguments store;
  std::string identity_file;

  void add_to(CLI::App& command, const std::string& store_help, bool store_is_required);
};

/// A file that holds an identity label, with or without a line end behind it.
/// @error kIo; kExpectation `{what}` of the label; as TargetModel::create
Result<muse::TargetModel> read_target_model(FileSystem& fs, const std::string& path);

/// Tokens: u32, little-endian. @error kIo; kState the file is no list of 1 to 131,072 of them
Result<std::vector<std::uint32_t>> read_tokens_file(FileSystem& fs, const std::string& path);

/// Says where a command listens: `{"address":..,"kind":"listening"}`, or a line for people.
void announce_listening(const Environment& environment, const std::string& address);

void add_send(CLI::App& app, const Environment& environment);
void add_serve(CLI::App& app, const Environment& environment);
void add_receive(CLI::App& app, const Environment& environment);

}  // namespace kvpack::cli
