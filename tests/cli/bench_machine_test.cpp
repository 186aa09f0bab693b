// What is found out about the machine is the business of Linux alone.
#ifdef __linux__

#include "cli/bench/machine.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "cli/bench/baseline_hash.h"
#include "support/temp_directory.h"

namespace kvpack::cli::bench {
namespace bench_machine_test {
namespace {

using kvpack::testing::TempDirectory;

constexpr std::size_t kFileBytes = std::size_t{1} << 20;
constexpr const char* kMemoryFolder = "/dev/shm";

std::string make_file(const TempDirectory& folder, std::size_t bytes) {
  const std::string path = folder.path("file");
  std::ofstream(path, std::ios::binary) << std::string(bytes, 'x');
  return path;
}

/// What the system's own list of mounts says lies in memory.
bool memory_folder_is_tmpfs() {
  std::ifstream mounts("/proc/mounts");
  bool found = false;
  for (std::string line; std::getline(mounts, line);)
    if (line.find(" /dev/shm ") != std::string::npos)
      found = line.find(" /dev/shm tmpfs ") != std::string::npos;
  return found;
}

/// Whether a file of a disk's file system can be made cold: what stands between is left out.
bool is_on_a_disk(const TempDirectory& folder) {
  const std::string name = file_system_name(folder.path());
  return name == "ext4" || name == "xfs";
}

TEST(BenchMachine, FilesInMemoryAreKnown) {
  EXPECT_FALSE(lies_in_memory("/proc"));
  EXPECT_FALSE(lies_in_memory("/proc/no such directory"));
  if (!memory_folder_is_tmpfs()) GTEST_SKIP() << kMemoryFolder << " is no tmpfs";
  EXPECT_TRUE(lies_in_memory(kMemoryFolder));
  EXPECT_EQ(file_system_name(kMemoryFolder), "tmpfs");
}

TEST(BenchMachine, FileInMemoryIsNeverCold) {
  if (!memory_folder_is_tmpfs()) GTEST_SKIP() << kMemoryFolder << " is no tmpfs";
  const TempDirectory folder{kMemoryFolder};
  EXPECT_FALSE(evict_file(make_file(folder, kFileBytes)));
  EXPECT_FALSE(can_evict_files(folder.path()));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1) << "the probe stays";
}

TEST(BenchMachine, FileOnADiskCanBeMadeCold) {
  const TempDirectory folder;
  if (!is_on_a_disk(folder)) GTEST_SKIP() << folder.path() << " is on no disk";
  const std::string path = make_file(folder, kFileBytes);
  EXPECT_TRUE(evict_file(path));
  EXPECT_TRUE(evict_file(path)) << "a cold file";
  EXPECT_TRUE(can_evict_files(folder.path()));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1) << "the probe stays";
}

TEST(BenchMachine, FileThatSomebodyHasMappedIsNotCold) {
  const TempDirectory folder;
  const std::string path = make_file(folder, kFileBytes);
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_GE(file, 0);
  void* const place = ::mmap(nullptr, kFileBytes, PROT_READ, MAP_SHARED | MAP_POPULATE, file, 0);
  ASSERT_NE(place, MAP_FAILED);
  EXPECT_FALSE(evict_file(path));
  ::munmap(place, kFileBytes);
  ::close(file);
}

TEST(BenchMachine, OnlyFilesAreMadeCold) {
  const TempDirectory folder;
  const std::string path = make_file(folder, 0);
  EXPECT_TRUE(evict_file(path)) << "nothing of an empty file is in memory";
  EXPECT_FALSE(evict_file(folder.path("missing")));
  const std::string link = folder.path("link");
  std::filesystem::create_symlink(path, link);
  EXPECT_FALSE(evict_file(link));
  EXPECT_FALSE(can_evict_files(folder.path("missing")));
}

TEST(BenchMachine, PeakOfMemoryIsCountedFromItsBeginning) {
  constexpr std::size_t kBytes = std::size_t{32} << 20;
  constexpr std::size_t kSlack = std::size_t{8} << 20;
  const auto use = [] {
    Bytes block(kBytes);
    fill_with_noise(block, 1);
  };
  use();
  PeakMemory memory;
  if (!memory.begin()) GTEST_SKIP() << "the system does not count the peak";
  EXPECT_LT(memory.extra_bytes(), kSlack) << "what was used before counts too";
  use();
  EXPECT_GT(memory.extra_bytes(), kBytes - kSlack);
  ASSERT_TRUE(memory.begin());
  EXPECT_LT(memory.extra_bytes(), kSlack);
}

TEST(BenchMachine, ThreadsInheritTheCoresThatAreInUse) {
  const auto allowed = [] {
    cpu_set_t cores;
    CPU_ZERO(&cores);
    EXPECT_EQ(::sched_getaffinity(0, sizeof cores, &cores), 0);
    return CPU_COUNT(&cores);
  };
  const int all = allowed();
  {
    const Cores cores;
    EXPECT_EQ(static_cast<int>(cores.count()), all);
    cores.use(1);
    EXPECT_EQ(allowed(), 1);
    int inherited = 0;
    std::thread([&] { inherited = allowed(); }).join();
    EXPECT_EQ(inherited, 1);
    cores.use(2);
    EXPECT_EQ(allowed(), std::min(all, 2));
  }
  EXPECT_EQ(allowed(), all);
}

TEST(BenchMachine, ShaInstructionsOfOpensslAreThoseOfTheProcessor) {
  if (::getenv("OPENSSL_ia32cap") != nullptr) GTEST_SKIP() << "they may have been taken away";
  std::ifstream facts("/proc/cpuinfo");
  bool there = false;
  for (std::string line; std::getline(facts, line);)
    there = there || (line.starts_with("flags") && line.find(" sha_ni") != std::string::npos);
  EXPECT_EQ(openssl_has_sha_instructions(), there);
}

}  // namespace
}  // namespace bench_machine_test
}  // namespace kvpack::cli::bench

#endif
