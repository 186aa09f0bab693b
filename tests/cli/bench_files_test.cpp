// The bare files that disks are judged by: whatever the file system can do, every way writes all bytes.
#include "cli/bench/baseline_files.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "support/temp_directory.h"

namespace kvpack::cli::bench {
namespace bench_files_test {
namespace {

using kvpack::testing::TempDirectory;

std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Whole blocks, more than one piece of them, and what has no whole number of blocks.
const std::vector<std::size_t> kSizes{4096, (std::size_t{4} << 20) + 8192, 4097};

void expect_files_in(const TempDirectory& folder) {
  BareFiles bare(2);
  for (std::size_t way = 0; way < std::size(kBareWays); ++way) {
    SCOPED_TRACE(kBareWays[way].name);
    const std::string name = "w" + std::to_string(way);
    const Status written = bare.write(folder.path(), name, kSizes, kBareWays[way]);
    ASSERT_TRUE(written.has_value()) << written.error().message;
    std::vector<std::string> paths;
    for (std::size_t i = 0; i < kSizes.size(); ++i) {
      paths.push_back(folder.path(name + "-" + std::to_string(i)));
      const std::string content = content_of(paths.back());
      EXPECT_EQ(content.size(), kSizes[i]);
      EXPECT_TRUE(std::ranges::all_of(content, [](char c) { return c == '\x5a'; }));
    }
    EXPECT_TRUE(bare.read(paths).has_value());
    // Names are given once.
    EXPECT_FALSE(bare.write(folder.path(), name, kSizes, kBareWays[way]).has_value());
  }
}

TEST(BenchFiles, EveryWayWritesAllBytes) {
  expect_files_in(TempDirectory());
}

/// Some of them refuse writes around the page cache.
TEST(BenchFiles, EveryWayWritesAllBytesIntoMemoryToo) {
  if (!std::filesystem::is_directory("/dev/shm")) GTEST_SKIP() << "there is no /dev/shm";
  expect_files_in(TempDirectory{"/dev/shm"});
}

}  // namespace
}  // namespace bench_files_test
}  // namespace kvpack::cli::bench
