/// What the commands over a store share: where it is, its keys, and how it is opened. docs/cli.md §store
#pragma once

#include <functional>

#include "cli/commands.h"
#include "cli/description.h"
#include "cli/key_options.h"
#include "kvpack/store/lookup.h"
#include "kvpack/store/status.h"
#include "kvpack/store/store.h"

namespace kvpack::cli {

/// DIR and the options of every command over a store.
struct StoreArguments {
  KeyOptions keys;
  std::string root;
  std::optional<std::uint64_t> catalog_epoch;

  void add_to(CLI::App& command);

  /// What the store is opened with. Faults that the store meets are told on standard error.
  /// @error as KeyOptions::require
  Result<StoreOptions> options(const Environment& environment) const;
};

/// --quota and --staging-quota, for the commands that may change them.
struct QuotaArguments {
  std::optional<std::uint64_t> quota_bytes;
  std::optional<std::uint64_t> staging_quota_bytes;

  void add_to(CLI::App& command, const std::string& otherwise);
  void apply(StoreOptions& options) const;
};

enum class Access : std::uint8_t { kCreate, kRead, kWrite };

/// Opens the store, runs `body` and closes it. @return the exit code
/// @param body  gives the result of the command; its error is one about `root`, unless it names a file itself
int with_store(const Environment& environment, const std::string& root, StoreOptions options, Access access,
               const std::function<int(Store& store, const Reporter& reporter)>& body);

/// Ends a command whose store cannot be had. A state that is refused (permissions, a missing catalog, a newer
/// schema) is exit code 4 with the category `state`, not misuse.
int store_refused(const Reporter& reporter, Error error, const std::string& root);

/// A cut that a description names by its tokens.
struct DescribedCut {
  Description description;
  std::string folder;  ///< What relative file names start at.
  std::vector<std::uint32_t> tokens{};

  /// Valid while this lives where it is.
  PrefixQuery query() const;
};
/// @error kIo kJson kState as read_named, parse_description, load_tokens; kState it has no tokens
Result<DescribedCut> read_described_cut(FileSystem& fs, const std::string& path);

/// `available` `evicting` `damaged`
std::string_view cut_state_name(CutState state);

/// The store has no prefix of the input. @error kNotFound, always
Error missed();

/// `{"ok":true,"kind":"store_<command>"}`, to be filled.
JsonValue store_result(std::string_view command);
JsonValue fault_json(const StoreFault& fault);
/// `64 lower-case hex digits`, of the option `name`. @error kState
Result<Id32> read_id_option(const std::string& name, const std::string& text);

void add_store_init(CLI::App& store, const Environment& environment);
void add_store_put(CLI::App& store, const Environment& environment);
void add_store_find(CLI::App& store, const Environment& environment);
void add_store_restore(CLI::App& store, const Environment& environment);
void add_store_ls(CLI::App& store, const Environment& environment);
void add_store_stat(CLI::App& store, const Environment& environment);
void add_store_report(CLI::App& store, const Environment& environment);
void add_store_gc(CLI::App& store, const Environment& environment);
void add_store_fsck(CLI::App& store, const Environment& environment);
void add_store_rebuild(CLI::App& store, const Environment& environment);
void add_store_import(CLI::App& store, const Environment& environment);
void add_store_export(CLI::App& store, const Environment& environment);

}  // namespace kvpack::cli
