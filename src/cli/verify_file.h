/// Verifying one file, whatever it is.
#pragma once

#include <optional>
#include <string>

#include "cli/commands.h"
#include "cli/cut_files.h"

namespace kvpack::cli {

struct VerifyOptions {
  FolderOptions folders;
  std::string pack_file;    ///< For a lone chunk.
  std::string record_file;  ///< For a proof.
  std::optional<Identity> expected;
};

/// @return  the JSON result: ok, kind, authenticated, level, unchecked, counts
/// @error   the first failure in the order of the format documents
Result<JsonValue> verify_file(const Environment& environment, const std::string& path,
                              const VerifyOptions& options, const KeyRing* keys);

}  // namespace kvpack::cli
