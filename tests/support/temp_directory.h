// A private directory of the operating system that is gone with everything in it when the test ends.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

namespace kvpack::testing {

class TempDirectory {
 public:
  explicit TempDirectory(const std::filesystem::path& parent = std::filesystem::temp_directory_path()) {
    std::string text = (parent / "kvpack-test-XXXXXX").string();
    path_ = ::mkdtemp(text.data()) == nullptr ? std::string() : text;
  }
  TempDirectory(const TempDirectory&) = delete;
  TempDirectory& operator=(const TempDirectory&) = delete;
  ~TempDirectory() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }
  std::string path(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace kvpack::testing
