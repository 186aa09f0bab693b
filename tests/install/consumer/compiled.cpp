// A stranger that needs files.
#include <kvpack/base/fs.h>

#include <cstdio>

int main() {
  kvpack::SystemFileSystem fs;
  const auto folder = fs.open_directory(".", kvpack::Links::kFollow);
  std::printf("compiled: folder %s\n", folder.has_value() ? "opened" : "refused");
  return folder.has_value() ? 0 : 1;
}
