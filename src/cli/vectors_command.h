/// What `kvpack vectors` does: the reference vectors as a digest list, and as files.
#pragma once

#include <string_view>

#include "kvpack/base/fs.h"

namespace kvpack::cli {

/// The digest list of all 520 vectors, byte for byte the published production_v1.sha256.
/// @error as `out`
Status print_vectors(Append& out);

/// Creates the directory `path`, which must not exist, in one step, with `<suite>/<name>.bin` for every
/// vector and the digest list as production_v1.sha256.
/// @error kExpectation `target exists`; kIo kQuota; nothing is left behind
Status emit_vectors(FileSystem& fs, std::string_view path);

}  // namespace kvpack::cli
