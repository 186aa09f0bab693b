// Digests of files that are remembered by their stamps.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "kvpack/crypto/sha256.h"
#include "llama/file_digests.h"
#include "support/temp_directory.h"

namespace kvpack::llama_file_digests_test {
namespace {

using llama_adapter::Digest;
using llama_adapter::FileDigests;
using llama_adapter::FileStamp;
using llama_adapter::stamp_of;

constexpr std::int64_t kNow = 1'700'000'000'000'000'000;
constexpr FileStamp kStamp{1, 2, 3, kNow - 10'000'000'000, kNow - 9'000'000'000};

Digest digest_of(std::uint8_t byte) {
  Digest digest;
  digest.fill(byte);
  return digest;
}

class LlamaFileDigests : public ::testing::Test {
 protected:
  std::string path() const { return folder_.path() + "/llama.digests"; }
  void write(const std::string& text, mode_t mode = 0600) const {
    std::ofstream(path(), std::ios::binary) << text;
    ASSERT_EQ(::chmod(path().c_str(), mode), 0);
  }
  std::string read() const {
    std::ifstream file(path(), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::string problem() const {
    std::string text;
    (void)FileDigests::load(path(), text);
    return text;
  }

  kvpack::testing::TempDirectory folder_;
};

TEST_F(LlamaFileDigests, WhatIsStoredIsFoundAgain) {
  FileDigests digests;
  EXPECT_TRUE(digests.add(kStamp, digest_of(0xab), kNow));
  ASSERT_TRUE(digests.store(path()).has_value());
  struct stat facts {};
  ASSERT_EQ(::stat(path().c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0600U);
  std::string text;
  const FileDigests loaded = FileDigests::load(path(), text);
  EXPECT_EQ(text, "");
  ASSERT_NE(loaded.find(kStamp), nullptr);
  EXPECT_EQ(*loaded.find(kStamp), digest_of(0xab));
}

TEST_F(LlamaFileDigests, EveryPartOfAStampCounts) {
  FileDigests digests;
  EXPECT_TRUE(digests.add(kStamp, digest_of(1), kNow));
  for (int part = 0; part < 5; ++part) {
    FileStamp other = kStamp;
    if (part == 0) ++other.device;
    if (part == 1) ++other.inode;
    if (part == 2) ++other.size_bytes;
    if (part == 3) ++other.modified_ns;
    if (part == 4) ++other.changed_ns;
    EXPECT_EQ(digests.find(other), nullptr) << part;
  }
}

TEST_F(LlamaFileDigests, AFileThatChangedJustNowIsNotRemembered) {
  FileDigests digests;
  FileStamp fresh = kStamp;
  fresh.changed_ns = kNow - FileDigests::kSettledNs + 1;
  EXPECT_FALSE(digests.add(fresh, digest_of(1), kNow));
  fresh.changed_ns = kNow + 1;  // In the future: no clock to trust.
  EXPECT_FALSE(digests.add(fresh, digest_of(1), kNow));
  EXPECT_EQ(digests.find(fresh), nullptr);
  fresh.changed_ns = kNow - FileDigests::kSettledNs;
  EXPECT_TRUE(digests.add(fresh, digest_of(1), kNow));
}

TEST_F(LlamaFileDigests, OfOneFileTheLatestStateIsKeptAndOfManyTheLatest) {
  FileDigests digests;
  FileStamp stamp = kStamp;
  EXPECT_TRUE(digests.add(stamp, digest_of(1), kNow));
  ++stamp.size_bytes;
  EXPECT_TRUE(digests.add(stamp, digest_of(2), kNow));
  EXPECT_EQ(digests.find(kStamp), nullptr);
  for (std::uint64_t i = 0; i < FileDigests::kMaxEntries; ++i) {
    FileStamp more = kStamp;
    more.inode = 100 + i;
    EXPECT_TRUE(digests.add(more, digest_of(3), kNow));
  }
  EXPECT_EQ(digests.find(stamp), nullptr);
  ASSERT_TRUE(digests.store(path()).has_value());
  EXPECT_EQ(problem(), "");
}

TEST_F(LlamaFileDigests, WhatOthersCouldHaveWrittenCountsForNothing) {
  FileDigests digests;
  EXPECT_TRUE(digests.add(kStamp, digest_of(1), kNow));
  ASSERT_TRUE(digests.store(path()).has_value());
  for (const mode_t mode : {0604U, 0640U, 0666U}) {
    ASSERT_EQ(::chmod(path().c_str(), mode), 0);
    EXPECT_EQ(problem(), "is not private");
  }
  ASSERT_EQ(::chmod(path().c_str(), 0600), 0);
  ASSERT_EQ(::link(path().c_str(), (path() + ".other").c_str()), 0);
  EXPECT_EQ(problem(), "is not private");
  std::filesystem::remove(path());
  ASSERT_EQ(::symlink((path() + ".other").c_str(), path().c_str()), 0);
  EXPECT_NE(problem(), "");
  std::filesystem::remove(path());
  std::filesystem::create_directory(path());
  EXPECT_EQ(problem(), "is not private");
  std::filesystem::remove(path());
  EXPECT_EQ(problem(), "");  // None is none.
}

TEST_F(LlamaFileDigests, EveryTruncationAndEveryOtherByteCountsForNothing) {
  FileDigests digests;
  EXPECT_TRUE(digests.add(kStamp, digest_of(0x0f), kNow));
  ASSERT_TRUE(digests.store(path()).has_value());
  const std::string good = read();
  const std::string head = "kvpack llama digests 1\n";
  ASSERT_TRUE(good.starts_with(head));
  for (std::size_t n = 0; n < good.size(); ++n) {
    if (n == head.size()) continue;  // A file without entries.
    write(good.substr(0, n));
    EXPECT_EQ(problem(), "is malformed") << n;
  }
  for (const std::string& bad :
       {good + "x", head + "01 2 3 4 5 " + std::string(64, '0') + "\n",
        head + "+1 2 3 4 5 " + std::string(64, '0') + "\n", head + "1 2 3 4 5 " + std::string(64, 'A') + "\n",
        head + "1 2 3 4 5  " + std::string(63, '0') + "\n",
        head + "18446744073709551616 2 3 4 5 " + std::string(64, '0') + "\n"}) {
    write(bad);
    EXPECT_EQ(problem(), "is malformed") << bad;
  }
  write(std::string(70'000, 'x'));
  EXPECT_EQ(problem(), "is too long");
}

TEST_F(LlamaFileDigests, AStampIsThatOfTheFile) {
  write("abc");
  const auto stamp = stamp_of(path());
  ASSERT_TRUE(stamp.has_value());
  EXPECT_EQ(stamp->size_bytes, 3U);
  EXPECT_EQ(*stamp_of(path()), *stamp);
  write("abcd");
  EXPECT_FALSE(*stamp_of(path()) == *stamp);
  EXPECT_EQ(stamp_of(path() + ".none").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(stamp_of(folder_.path()).error().verdict(), "io:not a regular file: " + folder_.path());
}

TEST_F(LlamaFileDigests, WhereNothingCanBeWrittenNothingIsStored) {
  const std::string nowhere = folder_.path() + "/gone/llama.digests";
  const Status stored = FileDigests().store(nowhere);
  ASSERT_FALSE(stored.has_value());
  EXPECT_EQ(stored.error().code, ErrorCode::kNotFound);
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

TEST_F(LlamaFileDigests, AnOpenFileIsHashedWhateverItsPathComesToMean) {
  using llama_adapter::StampedFile;
  const std::string first = folder_.path("first"), second = folder_.path("second"),
                    link = folder_.path("link");
  std::ofstream(first) << "abc";
  std::ofstream(second) << "xyz";
  std::filesystem::create_symlink(first, link);
  const auto file = StampedFile::open(link);
  ASSERT_TRUE(file.has_value());
  EXPECT_EQ(*file->stamp(), *stamp_of(first));
  std::filesystem::remove(link);
  std::filesystem::create_symlink(second, link);
  std::vector<std::uint64_t> told;
  const auto digest = file->sha256([&](std::uint64_t done_bytes, std::uint64_t size_bytes) -> Status {
    told.insert(told.end(), {done_bytes, size_bytes});
    return success();
  });
  ASSERT_TRUE(digest.has_value());
  EXPECT_EQ(*digest, sha256(byte_view("abc")));
  EXPECT_EQ(told, (std::vector<std::uint64_t>{3, 3}));
  EXPECT_EQ(*file->stamp(), *stamp_of(first));

  const auto stopped = file->sha256(
      [](std::uint64_t, std::uint64_t) -> Status { return fail(ErrorCode::kCancelled, "stop"); });
  EXPECT_EQ(stopped.error().verdict(), "cancelled:stop");
  EXPECT_EQ(StampedFile::open(folder_.path("none")).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(StampedFile::open(folder_.path()).error().verdict(), "io:not a regular file: " + folder_.path());
}

}  // namespace
}  // namespace kvpack::llama_file_digests_test
