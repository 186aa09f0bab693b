#include "net/settings_file.h"

namespace kvpack::net {

std::string resolve_beside(std::string_view file, const std::string& path) {
  const std::size_t slash = file.rfind('/');
  if (path.starts_with('/') || slash == std::string_view::npos) return path;
  return std::string(file.substr(0, slash + 1)) + path;
}

bool is_file(FileSystem& fs, const std::string& path) {
  return fs.open_file(path, Links::kFollow).has_value();
}

}  // namespace kvpack::net
