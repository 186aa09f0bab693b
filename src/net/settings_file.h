// What the three configuration files have in common: paths from the file's own folder, and a look at whether
// they name files.
#pragma once

#include "kvpack/base/fs.h"
#include "kvpack/core/canonical_json.h"

namespace kvpack::net {

inline constexpr std::uint64_t kMaxSettingsBytes = 1U << 20;

/// A path as a configuration at `file` means it.
std::string resolve_beside(std::string_view file, const std::string& path);

/// Whether a regular file, or a link to one, is there.
bool is_file(FileSystem& fs, const std::string& path);

}  // namespace kvpack::net
