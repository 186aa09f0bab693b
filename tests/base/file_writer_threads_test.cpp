// One writer for several threads: batches that are written and synced at the same time, through a queue with
// room for three writes, and through the system's.
#include <gtest/gtest.h>

#include <thread>

#include "base/io_ring.h"
#include "kvpack/base/file_writer.h"
#include "support/fake_fs.h"
#include "support/temp_directory.h"

namespace kvpack::file_writer_threads_test {
namespace {

constexpr int kThreads = 3;
constexpr int kFiles = 6;

Bytes content_of(int thread, int file, std::size_t size) {
  return Bytes(size, static_cast<std::uint8_t>(1 + thread * kFiles + file));
}

std::string name_of(int thread, int file) {
  return std::to_string(thread) + "-" + std::to_string(file);
}

void write_on_threads(Directory& directory, std::size_t size) {
  FileWriter writer(directory);
  std::vector<Status> ends(kThreads, success());
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        ends[static_cast<std::size_t>(t)] = [&]() -> Status {
          FileBatch batch(writer);
          for (int i = 0; i < kFiles; ++i) {
            KVPACK_TRY_ASSIGN(auto file, directory.create(name_of(t, i)));
            KVPACK_TRY(batch.write(std::move(file), content_of(t, i, size)));
            if (i % 3 == 2) KVPACK_TRY(batch.sync(2));
          }
          return success();
        }();
      });
    }
  }
  for (const Status& end : ends) EXPECT_TRUE(end.has_value());
  for (int t = 0; t < kThreads; ++t) {
    for (int i = 0; i < kFiles; ++i) {
      const auto file = *directory.open(name_of(t, i), OpenMode::kRead);
      Bytes found(size);
      ASSERT_TRUE(read_exactly(*file, 0, found).has_value());
      EXPECT_EQ(found, content_of(t, i, size));
    }
  }
}

TEST(FileWriterThreads, ShareOneQueue) {
  for (const std::uint32_t seed : {0u, 7u}) {
    testing::FakeFileSystem fs;
    fs.support_queue(true, seed);
    write_on_threads(**fs.open_directory("/", Links::kRefuse), 20'000);
    EXPECT_EQ(fs.under_way(), 0u);
  }
}

TEST(FileWriterThreads, DoWithoutOne) {
  testing::FakeFileSystem fs;
  write_on_threads(**fs.open_directory("/", Links::kRefuse), 20'000);
}

TEST(FileWriterThreads, ShareTheRingOfTheSystem) {
  for (const FileIo io : {FileIo::kCached, FileIo::kDirect}) {
    testing::TempDirectory temp;
    SystemFileSystem fs(SystemCalls::kAll, io);
    write_on_threads(**fs.open_directory(temp.path(), Links::kRefuse), 2'100'000);
  }
}

}  // namespace
}  // namespace kvpack::file_writer_threads_test
