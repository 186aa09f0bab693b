// Files written and synced many at a time: through a queue that does things in an unkind order, through
// io_uring, through one that is short, late, broken or without memory, and without any.
#include "kvpack/base/file_writer.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <deque>
#include <filesystem>
#include <functional>
#include <new>
#include <random>
#include <set>

#include "base/io_ring.h"
#include "support/fake_fs.h"
#include "support/temp_directory.h"

namespace kvpack::file_writer_test {
namespace {

using testing::FakeFileSystem;
using testing::TempDirectory;

Bytes noise(std::size_t n, unsigned seed) {
  std::mt19937 engine(seed);
  Bytes out(n);
  for (std::uint8_t& b : out) b = static_cast<std::uint8_t>(engine());
  return out;
}

/// Header, payload and padding, as objects come; some of them empty.
std::vector<ByteSpan> pieces_of(const Bytes& bytes) {
  const ByteSpan all = bytes;
  const std::size_t first = std::min<std::size_t>(all.size(), 4'112);
  const std::size_t second = (all.size() - first) * 3 / 4;
  return {all.first(first), {}, all.subspan(first, second), all.subspan(first + second)};
}

Bytes content(const File& file) {
  Bytes out(static_cast<std::size_t>(file.facts()->size_bytes));
  EXPECT_TRUE(read_exactly(file, 0, out).has_value());
  return out;
}

const std::size_t kSizes[] = {0, 1, 4'095, 4'096, 4'097, 12'288, 70'000, 524'288, 2 * 1'048'576 + 4'096 + 13};

std::size_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

bool has_ring() {
  return probe_io_ring() == 0;
}

// ------------------------------------------------------------------------------------------ in every way

enum class Way {
  kFakePlain,
  kFakeQueue,
  kFakeQueueShuffled,
  kFakeShort,
  kSystemPlain,
  kSystemPortable,
  kCached,
  kDirect
};

class EveryFileIo : public ::testing::TestWithParam<Way> {
 protected:
  EveryFileIo()
      : system_(GetParam() == Way::kSystemPortable ? SystemCalls::kPortable : SystemCalls::kAll,
                GetParam() == Way::kCached   ? FileIo::kCached
                : GetParam() == Way::kDirect ? FileIo::kDirect
                                             : FileIo::kPlain) {
    fake_.support_queue(GetParam() != Way::kFakePlain, GetParam() == Way::kFakeQueueShuffled ? 7 : 0);
    if (GetParam() == Way::kFakeShort) fake_.limit_transfers(1'000);
    const bool is_fake = GetParam() <= Way::kFakeShort;
    FileSystem& fs = is_fake ? static_cast<FileSystem&>(fake_) : static_cast<FileSystem&>(system_);
    directory_ = *fs.open_directory(is_fake ? "/" : temp_.path(), Links::kRefuse);
  }
  std::unique_ptr<File> create(const std::string& name) { return *directory_->create(name); }

  TempDirectory temp_;
  SystemFileSystem system_;
  FakeFileSystem fake_;
  std::unique_ptr<Directory> directory_;
};
INSTANTIATE_TEST_SUITE_P(FileWriter, EveryFileIo,
                         ::testing::Values(Way::kFakePlain, Way::kFakeQueue, Way::kFakeQueueShuffled,
                                           Way::kFakeShort, Way::kSystemPlain, Way::kSystemPortable,
                                           Way::kCached, Way::kDirect));

TEST_P(EveryFileIo, FilesHaveTheBytesThatTheyWereGiven) {
  const std::size_t before = open_descriptors();
  {
    FileWriter writer(*directory_);
    std::vector<Bytes> wanted;
    std::vector<std::unique_ptr<File>> files;
    std::vector<File*> together;
    for (std::size_t i = 0; i < std::size(kSizes); ++i) {
      wanted.push_back(noise(kSizes[i], static_cast<unsigned>(i)));
      files.push_back(create("f" + std::to_string(i)));
      together.push_back(files.back().get());
      Bytes mine = wanted.back();
      ASSERT_TRUE(writer.write(*files.back(), pieces_of(mine)).has_value());
      std::ranges::fill(mine, std::uint8_t{0});  // the caller's memory is the caller's again
    }
    ASSERT_TRUE(writer.sync(std::span<File* const>(together), 3).has_value());
    for (std::size_t i = 0; i < files.size(); ++i) EXPECT_EQ(content(*files[i]), wanted[i]) << kSizes[i];
    std::vector<Directory*> directories(5, directory_.get());
    EXPECT_TRUE(writer.sync(std::span<Directory* const>(directories), 3).has_value());
    const bool queue = GetParam() >= Way::kCached
                           ? has_ring()
                           : GetParam() >= Way::kFakeQueue && GetParam() <= Way::kFakeShort;
    EXPECT_EQ(writer.has_queue(), queue);
    if (GetParam() >= Way::kCached && !has_ring()) std::cout << "io_uring is not allowed here: not run\n";
  }
  EXPECT_EQ(open_descriptors(), before);
  EXPECT_EQ(fake_.under_way(), 0u);
}

TEST_P(EveryFileIo, AFileThatIsForgottenCanBeClosedAtOnce) {
  FileWriter writer(*directory_);
  for (int i = 0; i < 20; ++i) {
    auto file = create("f" + std::to_string(i));
    ASSERT_TRUE(writer.write(*file, noise(1'200'000, 1)).has_value());
    writer.forget(*file);
    EXPECT_EQ(fake_.under_way(), 0u);
    writer.forget(*file);
  }
}

TEST_P(EveryFileIo, ABatchThatIsNotSyncedIsWaitedFor) {
  const std::size_t before = open_descriptors();
  FileWriter writer(*directory_);
  {
    FileBatch batch(writer);
    for (int i = 0; i < 5; ++i)
      ASSERT_TRUE(batch.write(create("f" + std::to_string(i)), noise(600'000, 1)).has_value());
    EXPECT_EQ(batch.size(), 5u);
  }
  EXPECT_EQ(fake_.under_way(), 0u);
  FileBatch batch(writer);
  ASSERT_TRUE(batch.write(create("g"), noise(600'000, 1)).has_value());
  ASSERT_TRUE(batch.sync().has_value());
  EXPECT_EQ(batch.size(), 0u);
  EXPECT_TRUE(batch.sync().has_value());
  EXPECT_EQ(content(**directory_->open("g", OpenMode::kRead)), noise(600'000, 1));
  // Of the ring itself.
  EXPECT_LE(open_descriptors(), before + 1);
}

// --------------------------------------------------------------------------------------- faults and power

class EveryQueueOrder : public ::testing::TestWithParam<std::uint32_t> {};
INSTANTIATE_TEST_SUITE_P(FileWriter, EveryQueueOrder, ::testing::Values(0, 1, 7, 99));

/// Two files of several writes each, one of them with an end that is no multiple of the alignment.
Status write_two(FakeFileSystem& fs, FileWriter& writer, Directory& root, bool& synced) {
  (void)fs;
  FileBatch batch(writer);
  for (const std::size_t size : {std::size_t{12'288}, std::size_t{9'000}}) {
    KVPACK_TRY_ASSIGN(auto file, root.create("f" + std::to_string(size)));
    KVPACK_TRY(batch.write(std::move(file), noise(size, 1)));
  }
  KVPACK_TRY(batch.sync());
  synced = true;
  return success();
}

TEST_P(EveryQueueOrder, WhatWasSyncedIsWholeWhateverAPowerCutLeaves) {
  FakeFileSystem fs;
  fs.support_queue(true, GetParam());
  auto root = *fs.open_directory("/", Links::kRefuse);
  FileWriter writer(*root);
  bool synced = false;
  std::size_t looked = 0;
  ASSERT_TRUE(write_two(fs, writer, *root, synced).has_value());
  ASSERT_TRUE(root->sync().has_value());
  fs.each_power_cut(64, [&](FakeFileSystem& image) {
    ++looked;
    for (const std::size_t size : {std::size_t{12'288}, std::size_t{9'000}})
      EXPECT_EQ(image.file("/f" + std::to_string(size)), noise(size, 1));
  });
  EXPECT_EQ(looked, 1u);  // nothing is open any more
}

TEST_P(EveryQueueOrder, ASyncNeverOvertakesAWrite) {
  FakeFileSystem fs;
  fs.support_queue(true, GetParam());
  auto root = *fs.open_directory("/", Links::kRefuse);
  FileWriter writer(*root);
  bool synced = false;
  ASSERT_TRUE(write_two(fs, writer, *root, synced).has_value());
  std::set<std::string> ended;
  for (const testing::Operation& operation : fs.log()) {
    if (operation.verb == "sync") ended.insert(operation.path);
    EXPECT_FALSE(operation.verb == "write" && ended.contains(operation.path)) << operation.path;
  }
  EXPECT_EQ(ended.size(), 2u);
}

TEST_P(EveryQueueOrder, EveryFaultIsToldAndNothingStaysUnderWay) {
  for (const int error_number : {EIO, ENOSPC, EDQUOT}) {
    for (std::size_t k = 0;; ++k) {
      FakeFileSystem fs;
      fs.support_queue(true, GetParam());
      auto root = *fs.open_directory("/", Links::kRefuse);
      FileWriter writer(*root);
      const std::size_t before = fs.operation_count();
      fs.fail_operation(k, error_number);
      bool synced = false;
      const Status written = write_two(fs, writer, *root, synced);
      const bool reached = fs.operation_count() > before + k;
      EXPECT_EQ(written.has_value(), !reached) << k;
      EXPECT_EQ(synced, !reached);
      EXPECT_EQ(fs.under_way(), 0u) << k;
      if (!reached) break;
      EXPECT_EQ(written.error().code, ErrorCode::kIo);
      EXPECT_EQ(written.error().context.size(), error_number == EIO ? 0u : 1u);
      ASSERT_LT(k, 40u);
      // The writer goes on with other files.
      auto file = *root->create("other");
      File* const other = file.get();
      ASSERT_TRUE(writer.write(*file, noise(9'000, 2)).has_value());
      ASSERT_TRUE(writer.sync(std::span<File* const>(&other, 1)).has_value());
      EXPECT_EQ(fs.file("/other"), noise(9'000, 2));
    }
  }
}

TEST_P(EveryQueueOrder, AQueueThatTakesNoMoreIsDoneWithout) {
  for (std::size_t taken = 0; taken < 6; ++taken) {
    FakeFileSystem fs;
    fs.support_queue(true, GetParam());
    fs.limit_queued_writes(taken);
    auto root = *fs.open_directory("/", Links::kRefuse);
    FileWriter writer(*root);
    bool synced = false;
    ASSERT_TRUE(write_two(fs, writer, *root, synced).has_value());
    EXPECT_EQ(fs.file("/f12288"), noise(12'288, 1));
    EXPECT_EQ(fs.file("/f9000"), noise(9'000, 1));
    EXPECT_EQ(fs.under_way(), 0u);
  }
}

TEST(FileWriter, TheFirstFileThatFailedIsTheOneThatCounts) {
  for (const bool queue : {false, true}) {
    for (const unsigned threads : {1u, 3u}) {
      FakeFileSystem fs;
      fs.support_queue(queue);
      auto root = *fs.open_directory("/", Links::kRefuse);
      FileWriter writer(*root);
      FileBatch batch(writer);
      for (const char* const name : {"a", "b", "c", "d"})
        ASSERT_TRUE(batch.write(*root->create(name), noise(5'000, 1)).has_value());
      fs.fail_verb("sync", EIO);
      const Status synced = batch.sync(threads);
      ASSERT_FALSE(synced.has_value());
      EXPECT_THAT(synced.error().message, ::testing::StartsWith("sync /a")) << queue << threads;
    }
  }
}

// ------------------------------------------------------------------------------------------ a scripted ring

/// Does what it is asked on the real descriptors, except for what it is told. Waiting gives the last that
/// was begun first.
class ScriptedRing final : public IoRing {
 public:
  struct Script {
    std::deque<std::int64_t> write_results{};  ///< Instead of the next writes; 1 and above: so many bytes.
    std::deque<std::int64_t> sync_results{};
    int refuse_write = 0;
    int refuse_sync = 0;
    int fail_wait = 0;
    std::size_t writes = 0;
    std::size_t syncs = 0;
  };
  explicit ScriptedRing(Script& script) : script_(&script) {}

  int begin_write(int fd, const std::uint8_t* data, std::size_t length, std::uint64_t offset,
                  std::uint64_t tag) override {
    if (script_->refuse_write != 0) return script_->refuse_write;
    ++script_->writes;
    EXPECT_EQ(offset % FileQueue::kAlignment, 0u);
    EXPECT_EQ(length % FileQueue::kAlignment, 0u);
    under_way_.push_back([this, fd, data, length, offset, tag]() -> Done {
      std::size_t n = length;
      if (!script_->write_results.empty()) {
        const std::int64_t told = script_->write_results.front();
        script_->write_results.pop_front();
        if (told <= 0) return {.tag = tag, .result = told};
        n = static_cast<std::size_t>(told);
      }
      // Whether the file system serves direct access with this length is not the question here.
      const int plain = ::open(("/proc/self/fd/" + std::to_string(fd)).c_str(), O_WRONLY | O_CLOEXEC);
      const auto written = ::pwrite(plain, data, n, static_cast<off_t>(offset));
      ::close(plain);
      return {.tag = tag, .result = written};
    });
    return 0;
  }
  int begin_sync(int fd, bool content_only, std::uint64_t tag) override {
    if (script_->refuse_sync != 0) return script_->refuse_sync;
    ++script_->syncs;
    under_way_.push_back([this, fd, content_only, tag]() -> Done {
      if (!script_->sync_results.empty()) {
        const std::int64_t told = script_->sync_results.front();
        script_->sync_results.pop_front();
        return {.tag = tag, .result = told};
      }
      return {.tag = tag, .result = content_only ? ::fdatasync(fd) : ::fsync(fd)};
    });
    return 0;
  }
  int wait(Done& done) override {
    if (script_->fail_wait != 0) return script_->fail_wait;
    if (under_way_.empty()) return EDEADLK;
    const auto act = std::move(under_way_.back());
    under_way_.pop_back();
    done = act();
    return 0;
  }

 private:
  Script* script_;
  std::vector<std::function<Done()>> under_way_{};
};

class BrokenRing : public ::testing::Test {
 protected:
  void SetUp() override {
    const Bytes probe(4'096);
    auto file = create();
    const auto queue = make_system_queue(std::make_unique<ScriptedRing>(script_), true);
    auto begun = queue->begin_write(*file, 0, probe, 0);
    script_.writes = 0;
    if (!begun.has_value() || !*begun) GTEST_SKIP() << "no direct access to files below " << temp_.path();
  }
  std::unique_ptr<File> create() { return *directory_->create("f" + std::to_string(count_++)); }
  /// Three files through one writer, which leaves no descriptor. @return the error of their sync
  Status write_three() {
    const std::size_t before = open_descriptors();
    Status first =
        write_three_with(FileWriter(make_system_queue(std::make_unique<ScriptedRing>(script_), true)));
    EXPECT_EQ(open_descriptors(), before);
    return first;
  }
  Status write_three_with(FileWriter&& writer) {
    std::vector<std::unique_ptr<File>> files;
    std::vector<File*> together;
    Status first = success();
    for (unsigned i = 0; i < 3; ++i) {
      files.push_back(create());
      together.push_back(files.back().get());
      Status written = writer.write(*files.back(), pieces_of(wanted_[i]));
      if (first.has_value()) first = std::move(written);
    }
    if (first.has_value()) first = writer.sync(std::span<File* const>(together));
    for (const auto& file : files) writer.forget(*file);
    for (unsigned i = 0; i < 3; ++i) EXPECT_TRUE(!first.has_value() || content(*files[i]) == wanted_[i]) << i;
    return first;
  }

  TempDirectory temp_;
  SystemFileSystem fs_{SystemCalls::kAll, FileIo::kPlain};
  std::unique_ptr<Directory> directory_ = *fs_.open_directory(temp_.path(), Links::kRefuse);
  ScriptedRing::Script script_;
  int count_ = 0;
  const std::vector<Bytes> wanted_{noise(3'000'000, 1), noise(1'048'576, 2), noise(600'001, 3)};
};

TEST_F(BrokenRing, WorksInAnyOrder) {
  EXPECT_TRUE(write_three().has_value());
  EXPECT_EQ(script_.writes, 5u);
  EXPECT_EQ(script_.syncs, 3u);
}

TEST_F(BrokenRing, ShortWritesAreContinued) {
  script_.write_results = {4'096, 1, 5'000, 1'048'575, 700};
  EXPECT_TRUE(write_three().has_value());
  EXPECT_TRUE(script_.write_results.empty());
}

TEST_F(BrokenRing, AWriteThatEndsWithoutAByteIsWrittenWithoutTheRing) {
  script_.write_results = {0};
  EXPECT_TRUE(write_three().has_value());
}

TEST_F(BrokenRing, WhatSaysNothingAboutTheFileIsWrittenWithoutTheRing) {
  for (const int error_number : {EINVAL, EOPNOTSUPP, EINTR, EAGAIN, ECANCELED}) {
    for (std::size_t k = 0; k < 5; ++k) {
      script_.write_results.assign(k, 4'096);
      script_.write_results.push_back(-error_number);
      EXPECT_TRUE(write_three().has_value()) << error_number << " " << k;
    }
  }
}

TEST_F(BrokenRing, AFailedWriteIsTheErrorOfItsFile) {
  for (const int error_number : {EIO, ENOSPC, EFBIG}) {
    for (std::size_t k = 0; k < 5; ++k) {
      script_.write_results.assign(k, 4'096);
      script_.write_results.push_back(-error_number);
      const Status written = write_three();
      ASSERT_FALSE(written.has_value());
      EXPECT_EQ(written.error().code, ErrorCode::kIo);
      EXPECT_THAT(written.error().message, ::testing::StartsWith("write " + temp_.path()));
      EXPECT_EQ(written.error().context.size(), error_number == ENOSPC ? 1u : 0u);
      EXPECT_EQ(script_.syncs, 0u);  // nothing is made durable that is not whole
    }
  }
}

TEST_F(BrokenRing, AFailedSyncIsAnErrorAndNotTriedAgain) {
  for (const int error_number : {EIO, ENOSPC, EINTR, ECANCELED}) {
    for (std::size_t k = 0; k < 3; ++k) {
      script_.syncs = 0;
      script_.sync_results.assign(k, 0);
      script_.sync_results.push_back(-error_number);
      const Status written = write_three();
      ASSERT_FALSE(written.has_value());
      EXPECT_EQ(written.error().code, ErrorCode::kIo);
      EXPECT_THAT(written.error().message, ::testing::StartsWith("sync " + temp_.path()));
      EXPECT_EQ(script_.syncs, 3u);
      script_.sync_results.clear();
    }
  }
}

TEST_F(BrokenRing, ARingThatTakesNothingIsDoneWithout) {
  script_.refuse_write = EBUSY;
  EXPECT_TRUE(write_three().has_value());
  EXPECT_EQ(script_.syncs, 3u);
  script_.refuse_sync = EBUSY;
  EXPECT_TRUE(write_three().has_value());
  EXPECT_EQ(script_.writes, 0u);
}

TEST_F(BrokenRing, ARingThatTellsNothingFailsWhatIsUnderWay) {
  script_.fail_wait = EBADF;
  const Status written = write_three();
  ASSERT_FALSE(written.has_value());
  EXPECT_THAT(written.error().message, ::testing::StartsWith("wait for io_uring"));
}

TEST_F(BrokenRing, AfterThatFilesAreWrittenWithoutIt) {
  FileWriter writer(make_system_queue(std::make_unique<ScriptedRing>(script_), true));
  auto file = create();
  ASSERT_TRUE(writer.write(*file, wanted_[0]).has_value());
  script_.fail_wait = EBADF;
  File* together = file.get();
  EXPECT_FALSE(writer.sync(std::span<File* const>(&together, 1)).has_value());
  EXPECT_FALSE(writer.has_queue());
  auto other = create();
  together = other.get();
  ASSERT_TRUE(writer.write(*other, wanted_[0]).has_value());
  EXPECT_TRUE(writer.sync(std::span<File* const>(&together, 1)).has_value());
  EXPECT_EQ(content(*other), wanted_[0]);
}

// ------------------------------------------------------------------------------------- a queue without
// memory

/// In memory. Its sync may find no memory.
class MemoryFile final : public File {
 public:
  explicit MemoryFile(std::string path = "memory") : path_(std::move(path)) {}
  const Bytes& bytes() const noexcept { return bytes_; }
  int syncs_without_memory = 0;

  const std::string& path() const override { return path_; }
  Result<FileFacts> facts() const override {
    FileFacts facts;
    facts.size_bytes = bytes_.size();
    return facts;
  }
  Result<std::size_t> read_some(std::uint64_t, MutableByteSpan) const override { return std::size_t{0}; }
  Result<std::size_t> write_some(std::uint64_t offset, ByteSpan data) override {
    const auto at = static_cast<std::size_t>(offset);
    bytes_.resize(std::max(bytes_.size(), at + data.size()));
    std::ranges::copy(data, bytes_.begin() + static_cast<std::ptrdiff_t>(at));
    return data.size();
  }
  Status truncate(std::uint64_t) override { return success(); }
  Status preallocate(std::uint64_t) override { return success(); }
  Status sync() override {
    if (syncs_without_memory != 0 && syncs_without_memory-- != 0) throw std::bad_alloc();
    return success();
  }
  Result<bool> try_lock(LockMode) override { return true; }
  Status unlock() override { return success(); }

 private:
  std::string path_;
  Bytes bytes_{};
};

/// Does what it is asked when it is waited for, the last first, except where it has no memory.
class PoorQueue final : public FileQueue {
 public:
  struct Script {
    std::size_t good_begins = 0;  ///< So many begin before the next count.
    std::size_t poor_begins = 0;  ///< So many throw then.
    bool poor_wait = false;
    bool lost = false;  ///< Waiting tells nothing.
    std::size_t page_bytes = kAlignment;
    std::size_t writes = 0;
    std::size_t syncs = 0;
    std::vector<std::uint64_t> write_ends{};
    std::vector<ByteSpan> memory{};  ///< Of the writes.
    std::size_t under_way = 0;
  };
  explicit PoorQueue(Script& script) : script_(&script) {}

  Sizes sizes() const override {
    return {.writes = 2,
            .write_bytes = 262'144,
            .syncs = 4,
            .least_file_bytes = 1,
            .page_bytes = script_->page_bytes};
  }
  Result<bool> begin_write(File& file, std::uint64_t offset, ByteSpan data, std::uint64_t tag) override {
    begin();
    ++script_->writes;
    script_->write_ends.push_back(offset + data.size());
    script_->memory.push_back(data);
    add([&file, offset, data, tag] {
      EXPECT_TRUE(write_all(file, offset, data).has_value());
      return Done{.tag = tag, .bytes = data.size()};
    });
    return true;
  }
  Status begin_sync(File&, std::uint64_t tag) override {
    begin();
    ++script_->syncs;
    add([tag] { return Done{.tag = tag}; });
    return success();
  }
  Status begin_sync(Directory& directory, std::uint64_t) override { return directory.sync(); }
  Result<Done> wait() override {
    if (script_->poor_wait) throw std::bad_alloc();
    if (script_->lost) return fail(ErrorCode::kIo, "nothing is known about what is under way any more");
    if (under_way_.empty()) return fail(ErrorCode::kIo, "nothing is under way");
    const auto act = std::move(under_way_.back());
    under_way_.pop_back();
    --script_->under_way;
    return act();
  }

 private:
  void begin() {
    if (script_->good_begins != 0) {
      --script_->good_begins;
    } else if (script_->poor_begins != 0) {
      --script_->poor_begins;
      throw std::bad_alloc();
    }
  }
  void add(std::function<Done()> act) {
    under_way_.push_back(std::move(act));
    ++script_->under_way;
  }

  Script* script_;
  std::vector<std::function<Done()>> under_way_{};
};

class PoorFileWriter : public ::testing::Test {
 protected:
  /// Six files, synced together, each with its content.
  void expect_files_can_be_written() {
    std::vector<MemoryFile> files(6);
    std::vector<File*> together;
    for (MemoryFile& file : files) {
      together.push_back(&file);
      EXPECT_TRUE(writer_.write(file, wanted_).has_value());
    }
    EXPECT_TRUE(writer_.sync(std::span<File* const>(together)).has_value());
    for (const MemoryFile& file : files) EXPECT_TRUE(file.bytes() == wanted_);
    EXPECT_EQ(script_.under_way, 0u);
  }

  PoorQueue::Script script_;
  FileWriter writer_{std::make_unique<PoorQueue>(script_)};
  const Bytes wanted_ = noise(3 * 262'144 + 4'096 + 13, 5);
};

TEST_F(PoorFileWriter, WritesWhatTheQueueHasNoMemoryForWithoutIt) {
  for (std::size_t good = 0; good < 5; ++good) {
    for (std::size_t poor = 1; poor < 9; ++poor) {
      script_.good_begins = good;
      script_.poor_begins = poor;
      expect_files_can_be_written();
    }
  }
  // And with it as soon as there is memory again.
  script_.poor_begins = 0;
  script_.writes = 0;
  script_.syncs = 0;
  expect_files_can_be_written();
  EXPECT_EQ(script_.writes, 6u * 4);
  EXPECT_EQ(script_.syncs, 6u);
  EXPECT_TRUE(writer_.has_queue());
}

TEST_F(PoorFileWriter, GivesItsPlaceToOthersWhenASyncFindsNoMemoryAtAll) {
  for (std::size_t good = 0; good < 6; ++good) {
    for (int round = 0; round < 5; ++round) {
      std::vector<MemoryFile> files(6);
      std::vector<File*> together;
      for (MemoryFile& file : files) {
        together.push_back(&file);
        file.syncs_without_memory = 1;
      }
      script_.good_begins = good;
      script_.poor_begins = 1;
      EXPECT_THROW((void)writer_.sync(std::span<File* const>(together)), std::bad_alloc);
      EXPECT_EQ(script_.under_way, 0u);
    }
  }
  script_.poor_begins = 0;
  script_.syncs = 0;
  expect_files_can_be_written();
  EXPECT_EQ(script_.syncs, 6u);
}

TEST_F(PoorFileWriter, FailsWhatIsUnderWayWhenItsEndCannotBeTold) {
  MemoryFile file;
  File* const together = &file;
  ASSERT_TRUE(writer_.write(file, ByteSpan(wanted_).first(262'144)).has_value());
  script_.poor_wait = true;
  const Status synced = writer_.sync(std::span<File* const>(&together, 1));
  ASSERT_FALSE(synced.has_value());
  EXPECT_EQ(synced.error().code, ErrorCode::kNoMemory);
  EXPECT_EQ(synced.error().message, "out of memory");
  EXPECT_FALSE(writer_.has_queue());
  script_.under_way = 0;
  expect_files_can_be_written();
}

TEST(FileWriter, NeverFreesMemoryThatAQueueWhichWasGivenUpMayStillRead) {
  PoorQueue::Script script;
  const Bytes wanted = noise(262'144, 5);
  {
    FileWriter writer(std::make_unique<PoorQueue>(script));
    MemoryFile file;
    ASSERT_TRUE(writer.write(file, wanted).has_value());
    script.lost = true;
    writer.forget(file);
    EXPECT_FALSE(writer.has_queue());
  }
  ASSERT_EQ(script.memory.size(), 1u);
  EXPECT_TRUE(std::ranges::equal(script.memory.front(), wanted));
}

TEST(FileWriter, WritesEveryPageWithTheQueueOrWithoutIt) {
  for (const std::size_t tail : {0u, 1u, 4'096u, 12'289u, 65'535u}) {
    PoorQueue::Script script;
    script.page_bytes = 65'536;
    FileWriter writer(std::make_unique<PoorQueue>(script));
    MemoryFile file;
    File* const together = &file;
    const Bytes wanted = noise(5 * 65'536 + tail, 6);
    ASSERT_TRUE(writer.write(file, wanted).has_value());
    ASSERT_TRUE(writer.sync(std::span<File* const>(&together, 1)).has_value());
    EXPECT_TRUE(file.bytes() == wanted);
    EXPECT_THAT(script.write_ends, ::testing::ElementsAre(262'144u, 327'680u)) << tail;
  }
}

// -------------------------------------------------------------------------------------------- the choice

TEST(FileIo, IsQueuedUnlessItIsRefusedOrNotWanted) {
  const auto given = [] { return 0; };
  const auto forbidden = [] { return EPERM; };
  const auto absent = [] { return ENOSYS; };
  for (const char* const wish : {static_cast<const char*>(nullptr), "", "cached", "something"}) {
    EXPECT_EQ(choose_file_io(wish, given).io, FileIo::kCached);
    EXPECT_EQ(choose_file_io(wish, forbidden).io, FileIo::kPlain);
    EXPECT_EQ(choose_file_io(wish, forbidden).reason, "io_uring: Operation not permitted");
    EXPECT_EQ(choose_file_io(wish, absent).reason, "io_uring: Function not implemented");
  }
  EXPECT_EQ(choose_file_io("direct", given).io, FileIo::kDirect);
  EXPECT_EQ(choose_file_io("direct", forbidden).io, FileIo::kPlain);
  EXPECT_EQ(choose_file_io("plain", given).io, FileIo::kPlain);
  EXPECT_EQ(choose_file_io("plain", given).reason, "KVPACK_IO=plain");
}

TEST(FileIo, OfThisMachineIsWhatItsKernelGives) {
  if (::getenv("KVPACK_IO") != nullptr) GTEST_SKIP() << "KVPACK_IO is set";
  EXPECT_EQ(machine_file_io().io, has_ring() ? FileIo::kCached : FileIo::kPlain);
  TempDirectory temp;
  const auto queue_of = [&](SystemCalls calls, std::optional<FileIo> io) {
    return (*SystemFileSystem(calls, io).open_directory(temp.path(), Links::kRefuse))->make_queue();
  };
  EXPECT_EQ(queue_of(SystemCalls::kAll, FileIo::kPlain), nullptr);
  EXPECT_EQ(queue_of(SystemCalls::kPortable, FileIo::kCached), nullptr);
  EXPECT_EQ(queue_of(SystemCalls::kAll, FileIo::kCached) != nullptr, has_ring());
  EXPECT_EQ(queue_of(SystemCalls::kAll, FileIo::kDirect) != nullptr, has_ring());
  EXPECT_EQ(queue_of(SystemCalls::kAll, std::nullopt) != nullptr, has_ring());
}

}  // namespace
}  // namespace kvpack::file_writer_test
