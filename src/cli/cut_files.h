/// Cuts named on the command line: a pack with its parents and chunks in folders, or the head of a pack set.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>

#include "cli/object_folders.h"
#include "kvpack/core/chain.h"
#include "kvpack/core/expectation.h"
#include "kvpack/core/pack_set_proof.h"
#include "kvpack/core/pack_set_verify.h"

namespace kvpack::cli {

/// Where the objects of a pack are looked for. Empty: the folder of the pack.
struct FolderOptions {
  std::string chunks;
  std::string packs;
};

/// A file that is named on the command line, open. @error kIo it cannot be opened
Result<FileSource> open_named(FileSystem& fs, const std::string& path);
/// A named file, whole. @error kIo; kLimit it is longer
Result<Bytes> read_named(FileSystem& fs, const std::string& path, std::uint64_t max_bytes);
/// A named pack, whole. @error as read_pack_file
Result<Bytes> read_named_pack(FileSystem& fs, const std::string& path);
/// The first bytes of a file, at most one page.
Result<Bytes> read_head(FileSource& file);

/// A proof as `set prove` prints it: canonical JSON, with or without a line end behind it.
/// @error kReserved it is no proof, or not in canonical form; kBounds it is longer than any
Result<PackSetProof> read_proof(ByteSpan text);

/// A cut that has been opened: its chain and where its objects come from.
class OpenedCut {
 public:
  /// Opens a pack and its parents, or a pack set and the packs in it. A set is opened by its own checks (2.6)
  /// and each record as it is read; verify_pack_set is the full check.
  /// @param keys  null: integrity only; an encrypted manifest is then kNotFound `no key opens the manifest`
  static Result<OpenedCut> open(FileSystem& fs, const std::string& path, const FolderOptions& folders,
                                const KeyRing* keys);

  const ManifestChain& chain() const noexcept { return *chain_; }
  ObjectSource& objects() noexcept { return *objects_; }
  ObjectKind kind() const noexcept { return kind_; }

 private:
  ObjectKind kind_ = ObjectKind::kPack;
  std::unique_ptr<FileSource> file_;
  std::unique_ptr<PackSet> set_;
  std::unique_ptr<ObjectSource> objects_;
  std::unique_ptr<ManifestChain> chain_;
};

/// Reads --expect FILE. @error kIo kJson
Result<Identity> read_expectation(FileSystem& fs, const std::string& path);

/// --chunks and --packs.
void add_folder_options(CLI::App& command, FolderOptions& options);

}  // namespace kvpack::cli
