// Where the repository lies, for tests that read the conformance data. Not compiled in, so that equal sources
// give equal objects in any folder: ctest says it, and a test started by hand finds it above the current
// folder.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

namespace kvpack::testing {

inline std::string source_dir() {
  if (const char* said = std::getenv("KVPACK_SOURCE_DIR")) return said;
  auto folder = std::filesystem::current_path();
  while (!std::filesystem::exists(folder / "conformance" / "vectors") && folder != folder.root_path())
    folder = folder.parent_path();
  return folder.string();
}

}  // namespace kvpack::testing
