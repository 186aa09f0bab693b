/// The key options that commands share: --key, --epoch-key, --tenant-id or --tenant, --epoch, --min-epoch.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "kvpack/base/fs.h"
#include "kvpack/core/keys.h"

namespace kvpack::cli {

struct KeyOptions {
  std::string key_file;
  std::vector<std::string> epoch_keys;  ///< N=FILE
  std::string tenant_id;
  std::string tenant_hex;
  std::optional<std::uint64_t> epoch;
  std::optional<std::uint64_t> min_epoch;

  bool given() const noexcept { return !key_file.empty(); }
  std::uint64_t write_epoch() const noexcept { return epoch.value_or(1); }
  /// The epochs that are read, for commands that need both bounds: 1 alone without --epoch.
  EpochWindow window() const noexcept;

  void add_to(CLI::App& command);

  /// The ring, or nothing when no key was given. @error kState misuse, or a key file of the wrong size, type
  /// or mode; kIo a key file that cannot be opened
  Result<std::optional<KeyRing>> load(FileSystem& fs) const;
  /// The same where a command cannot do without. @error also kState `--key is needed`
  Result<KeyRing> require(FileSystem& fs) const;
};

}  // namespace kvpack::cli
