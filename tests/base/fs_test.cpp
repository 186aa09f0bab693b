#include "kvpack/base/fs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "kvpack/base/clock.h"
#include "kvpack/base/publish.h"
#include "support/fake_fs.h"
#include "support/temp_directory.h"

namespace kvpack::fs_test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

Bytes bytes_of(std::string_view text) {
  const ByteSpan view = byte_view(text);
  return Bytes(view.begin(), view.end());
}

std::vector<std::string> names_in(Directory& directory) {
  std::vector<std::string> names;
  EXPECT_TRUE(directory
                  .list([&](std::string_view name) {
                    names.emplace_back(name);
                    return true;
                  })
                  .has_value());
  std::ranges::sort(names);
  return names;
}

Bytes content(Directory& directory, std::string_view name) {
  const auto file = directory.open(name, OpenMode::kRead);
  if (!file.has_value()) return {};
  Bytes out(static_cast<std::size_t>((*file)->facts()->size_bytes));
  EXPECT_TRUE(read_exactly(**file, 0, out).has_value());
  return out;
}

enum class Kind { kSystem, kPortable, kFake, kPortableFake };

bool is_fake(Kind kind) {
  return kind == Kind::kFake || kind == Kind::kPortableFake;
}
bool is_portable(Kind kind) {
  return kind == Kind::kPortable || kind == Kind::kPortableFake;
}

/// The system's directory and the fake's behave alike, or tests on the fake would prove nothing; and so do
/// those that make do with what every system has.
class AnyFileSystem : public ::testing::TestWithParam<Kind> {
 protected:
  AnyFileSystem() : system_(is_portable(GetParam()) ? SystemCalls::kPortable : SystemCalls::kAll) {
    fake_.support_unnamed_files(!is_portable(GetParam()));
    fake_.support_exclusive_rename(!is_portable(GetParam()));
    FileSystem& fs =
        is_fake(GetParam()) ? static_cast<FileSystem&>(fake_) : static_cast<FileSystem&>(system_);
    auto opened = fs.open_directory(is_fake(GetParam()) ? "/" : temp_.path(), Links::kRefuse);
    EXPECT_TRUE(opened.has_value());
    directory_ = *std::move(opened);
  }
  void put(std::string_view name, std::string_view text) {
    auto file = directory_->create(name);
    ASSERT_TRUE(file.has_value());
    ASSERT_TRUE(write_all(**file, 0, byte_view(text)).has_value());
  }

  testing::TempDirectory temp_;
  SystemFileSystem system_;
  testing::FakeFileSystem fake_;
  std::unique_ptr<Directory> directory_;
};
INSTANTIATE_TEST_SUITE_P(SystemAndFake, AnyFileSystem,
                         ::testing::Values(Kind::kSystem, Kind::kPortable, Kind::kFake, Kind::kPortableFake),
                         [](const auto& any) {
                           return std::string(is_portable(any.param) ? "Portable" : "") +
                                  (is_fake(any.param) ? "Fake" : "System");
                         });

TEST_P(AnyFileSystem, CreatesPrivateFilesAndNeverOverAnother) {
  put("a", "one");
  const auto facts = directory_->facts("a");
  ASSERT_TRUE(facts.has_value());
  EXPECT_EQ(facts->kind, FileKind::kRegular);
  EXPECT_EQ(facts->permissions, 0600U);
  EXPECT_EQ(facts->size_bytes, 3U);
  EXPECT_EQ(facts->links, 1U);
  EXPECT_TRUE(facts->ours);
  EXPECT_TRUE(facts->is_private());
  const auto again = directory_->create("a");
  ASSERT_FALSE(again.has_value());
  EXPECT_EQ(again.error().code, ErrorCode::kExpectation);
  EXPECT_THAT(again.error().message, HasSubstr("File exists"));
}

TEST_P(AnyFileSystem, MissingNamesAreNotFoundInEveryOperation) {
  const auto code = [](const auto& result) { return result.has_value() ? ErrorCode{} : result.error().code; };
  EXPECT_EQ(code(directory_->facts("x")), ErrorCode::kNotFound);
  EXPECT_EQ(code(directory_->open("x", OpenMode::kRead)), ErrorCode::kNotFound);
  EXPECT_EQ(code(directory_->unlink("x")), ErrorCode::kNotFound);
  EXPECT_EQ(code(directory_->link("x", *directory_, "y")), ErrorCode::kNotFound);
  EXPECT_EQ(code(directory_->rename("x", *directory_, "y")), ErrorCode::kNotFound);
  EXPECT_EQ(code(rename_no_replace(*directory_, "x", *directory_, "y")), ErrorCode::kNotFound);
  EXPECT_EQ(code(directory_->open_directory("x")), ErrorCode::kNotFound);
  EXPECT_EQ(code(directory_->remove_directory("x")), ErrorCode::kNotFound);
  EXPECT_EQ(code(directory_->mark_accessed("x")), ErrorCode::kNotFound);
  EXPECT_THAT(directory_->facts("x").error().message,
              ::testing::AllOf(StartsWith("stat /"), ::testing::EndsWith("x: No such file or directory")));
}

TEST_P(AnyFileSystem, NamesThatAreNotOneComponentAreRefusedBeforeAnyOperation) {
  const std::string with_nul("a\0b", 3);
  for (const std::string& bad : {std::string(), std::string("."), std::string(".."), std::string("a/b"),
                                 std::string("/a"), with_nul, std::string(256, 'n')}) {
    const auto refused = directory_->create(bad);
    ASSERT_FALSE(refused.has_value()) << bad;
    EXPECT_EQ(refused.error().verdict(), "io:invalid file name");
    EXPECT_FALSE(directory_->facts(bad).has_value());
    EXPECT_FALSE(directory_->open(bad, OpenMode::kRead).has_value());
    EXPECT_FALSE(directory_->unlink(bad).has_value());
    EXPECT_FALSE(directory_->open_directory(bad).has_value());
    EXPECT_FALSE(directory_->make_directory(bad).has_value());
    EXPECT_FALSE(directory_->rename("a", *directory_, bad).has_value());
  }
  EXPECT_TRUE(directory_->create(std::string(255, 'n')).has_value());
}

TEST_P(AnyFileSystem, ReadsAndWritesAtPositions) {
  auto file = directory_->create("f");
  ASSERT_TRUE(file.has_value());
  ASSERT_TRUE(write_all(**file, 4, byte_view("efgh")).has_value());
  ASSERT_TRUE(write_all(**file, 0, byte_view("abcd")).has_value());
  ASSERT_TRUE((*file)->sync().has_value());
  Bytes out(3);
  ASSERT_TRUE(read_exactly(**file, 5, out).has_value());
  EXPECT_EQ(out, bytes_of("fgh"));
  const auto beyond = read_exactly(**file, 6, out);
  ASSERT_FALSE(beyond.has_value());
  EXPECT_EQ(beyond.error().code, ErrorCode::kTruncated);
  ASSERT_TRUE((*file)->truncate(2).has_value());
  EXPECT_EQ(content(*directory_, "f"), bytes_of("ab"));
  ASSERT_TRUE((*file)->preallocate(1 << 16).has_value());
  EXPECT_EQ((*file)->facts()->size_bytes, 2U);
}

TEST_P(AnyFileSystem, UnnamedFileAppearsOnlyByItsLinkAndNeverReplaces) {
  auto file = directory_->create_unnamed();
  ASSERT_TRUE(file.has_value());
  if (is_portable(GetParam())) {
    EXPECT_EQ(*file, nullptr);
    EXPECT_TRUE(names_in(*directory_).empty());
    return;
  }
  ASSERT_NE(*file, nullptr);
  ASSERT_TRUE(write_all(**file, 0, byte_view("text")).has_value());
  EXPECT_EQ((*file)->facts()->links, 0U);
  EXPECT_EQ((*file)->facts()->permissions, 0600U);
  EXPECT_TRUE(names_in(*directory_).empty());
  put("taken", "other");
  const auto refused = directory_->link_unnamed(**file, "taken");
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kExpectation);
  ASSERT_TRUE(directory_->link_unnamed(**file, "new").has_value());
  EXPECT_EQ(content(*directory_, "new"), bytes_of("text"));
  EXPECT_EQ(content(*directory_, "taken"), bytes_of("other"));
}

TEST_P(AnyFileSystem, AnUnnamedFileWhoseNameWasRemovedGetsNoOther) {
  auto file = *directory_->create_unnamed();
  if (file == nullptr) return;  // is_portable
  ASSERT_TRUE(directory_->link_unnamed(*file, "a").has_value());
  ASSERT_TRUE(directory_->unlink("a").has_value());
  EXPECT_EQ(directory_->link_unnamed(*file, "b").error().code, ErrorCode::kNotFound);
  EXPECT_TRUE(names_in(*directory_).empty());
}

TEST_P(AnyFileSystem, LinksAndRenames) {
  put("a", "one");
  put("b", "two");
  ASSERT_TRUE(directory_->link("a", *directory_, "c").has_value());
  EXPECT_EQ(directory_->facts("a")->links, 2U);
  EXPECT_TRUE(directory_->facts("a")->is_same_file(*directory_->facts("c")));
  EXPECT_FALSE(directory_->facts("a")->is_same_file(*directory_->facts("b")));
  EXPECT_EQ(directory_->link("a", *directory_, "b").error().code, ErrorCode::kExpectation);
  if (is_portable(GetParam())) {
    EXPECT_FALSE(*directory_->rename_exclusive("a", *directory_, "b"));
    EXPECT_FALSE(*directory_->rename_exclusive("a", *directory_, "d"));
  } else {
    EXPECT_EQ(directory_->rename_exclusive("a", *directory_, "b").error().code, ErrorCode::kExpectation);
  }
  EXPECT_EQ(rename_no_replace(*directory_, "a", *directory_, "b").error().code, ErrorCode::kExpectation);
  EXPECT_EQ(content(*directory_, "b"), bytes_of("two"));
  EXPECT_TRUE(rename_no_replace(*directory_, "a", *directory_, "d").has_value());
  ASSERT_TRUE(directory_->rename("d", *directory_, "b").has_value());
  EXPECT_EQ(content(*directory_, "b"), bytes_of("one"));
  EXPECT_EQ(names_in(*directory_), (std::vector<std::string>{"b", "c"}));
  ASSERT_TRUE(directory_->unlink("c").has_value());
  EXPECT_EQ(directory_->facts("b")->links, 1U);
  ASSERT_TRUE(directory_->sync().has_value());
}

TEST_P(AnyFileSystem, ADirectoryIsRenamedOverNothingThatHoldsAnything) {
  for (const char* name : {"from", "to"}) {
    ASSERT_TRUE(directory_->make_directory(name).has_value());
    const auto inner = *directory_->open_directory(name);
    ASSERT_TRUE(inner->create(name).has_value());
  }
  EXPECT_EQ(rename_no_replace(*directory_, "from", *directory_, "to").error().code, ErrorCode::kExpectation);
  EXPECT_EQ(names_in(*directory_), (std::vector<std::string>{"from", "to"}));
  ASSERT_TRUE(rename_no_replace(*directory_, "from", *directory_, "new").has_value());
  EXPECT_EQ(names_in(*directory_), (std::vector<std::string>{"new", "to"}));
}

TEST_P(AnyFileSystem, PublishesAndNeverOverAnother) {
  EXPECT_EQ(*publish_bytes(*directory_, "set", byte_view("one")), Published::kNew);
  EXPECT_EQ(*publish_bytes(*directory_, "set", byte_view("one")), Published::kAlreadyThere);
  EXPECT_EQ(publish_bytes(*directory_, "set", byte_view("two")).error().verdict(),
            "expectation:target exists with different bytes");
  EXPECT_EQ(content(*directory_, "set"), bytes_of("one"));
  EXPECT_EQ(directory_->facts("set")->links, 1U);
  EXPECT_EQ(names_in(*directory_), std::vector<std::string>{"set"});
}

TEST_P(AnyFileSystem, DirectoriesArePrivateAndRemovedOnlyWhenEmpty) {
  ASSERT_TRUE(directory_->make_directory("d").has_value());
  EXPECT_EQ(directory_->make_directory("d").error().code, ErrorCode::kExpectation);
  EXPECT_EQ(directory_->facts("d")->permissions, 0700U);
  EXPECT_EQ(directory_->facts("d")->kind, FileKind::kDirectory);
  const auto inner = directory_->open_directory("d");
  ASSERT_TRUE(inner.has_value());
  EXPECT_TRUE((*inner)->facts()->is_same_file(*directory_->facts("d")));
  put("f", "x");
  ASSERT_TRUE(directory_->rename("f", **inner, "g").has_value());
  EXPECT_EQ(content(**inner, "g"), bytes_of("x"));
  EXPECT_EQ(directory_->remove_directory("d").error().code, ErrorCode::kExpectation);
  EXPECT_EQ(directory_->open("d", OpenMode::kRead).error().code, ErrorCode::kIo);
  EXPECT_THAT(directory_->open("d", OpenMode::kRead).error().message, HasSubstr("not a regular file"));
  EXPECT_FALSE((*inner)->open_directory("g").has_value());
  ASSERT_TRUE((*inner)->unlink("g").has_value());
  EXPECT_TRUE(directory_->remove_directory("d").has_value());
  // A handle of a removed directory sees it, and creates nothing.
  EXPECT_EQ((*inner)->facts()->links, 0U);
  EXPECT_EQ((*inner)->create("z").error().code, ErrorCode::kNotFound);
}

TEST_P(AnyFileSystem, ListingStopsWhenToldTo) {
  for (const char* name : {"a", "b", "c"}) put(name, "");
  std::size_t seen = 0;
  ASSERT_TRUE(directory_->list([&](std::string_view) { return ++seen < 2; }).has_value());
  EXPECT_EQ(seen, 2U);
  EXPECT_EQ(names_in(*directory_).size(), 3U);
}

TEST_P(AnyFileSystem, LocksExcludeOtherHandlesAndDieWithTheirOwn) {
  put("l", "");
  auto a = *directory_->open("l", OpenMode::kRead);
  auto b = *directory_->open("l", OpenMode::kReadWrite);
  EXPECT_TRUE(*a->try_lock(LockMode::kShared));
  EXPECT_TRUE(*b->try_lock(LockMode::kShared));
  EXPECT_FALSE(*b->try_lock(LockMode::kExclusive));
  ASSERT_TRUE(a->unlock().has_value());
  EXPECT_TRUE(*b->try_lock(LockMode::kExclusive));
  EXPECT_FALSE(*a->try_lock(LockMode::kShared));
  b.reset();
  EXPECT_TRUE(*a->try_lock(LockMode::kExclusive));
}

TEST_P(AnyFileSystem, MarkingAsAccessedLeavesTheModificationTime) {
  put("f", "x");
  const auto before = *directory_->facts("f");
  ASSERT_TRUE(directory_->mark_accessed("f").has_value());
  const auto after = *directory_->facts("f");
  EXPECT_EQ(after.modification_time_ns, before.modification_time_ns);
  EXPECT_GE(after.access_time_ns, before.access_time_ns);
}

TEST_P(AnyFileSystem, RandomBitsDiffer) {
  EXPECT_NE(*directory_->random_bits(), *directory_->random_bits());
}

TEST_P(AnyFileSystem, SourceAndAppendMoveWholeBuffers) {
  auto file = *directory_->create("f");
  FileAppend sink(*file, 2);
  ASSERT_TRUE(sink.append(byte_view("cdef")).has_value());
  ASSERT_TRUE(sink.append(byte_view("gh")).has_value());
  EXPECT_EQ(sink.offset(), 8U);
  auto source = FileSource::open(std::move(file));
  ASSERT_TRUE(source.has_value());
  EXPECT_EQ(source->size_bytes(), 8U);
  Bytes out(6);
  ASSERT_TRUE(source->read_at(2, out).has_value());
  EXPECT_EQ(out, bytes_of("cdefgh"));
  EXPECT_EQ(source->read_at(3, out).error().code, ErrorCode::kTruncated);
  EXPECT_EQ(source->read_at(std::numeric_limits<std::uint64_t>::max(), out).error().code,
            ErrorCode::kTruncated);
}

TEST_P(AnyFileSystem, AppendPastTheLargestOffsetIsRefused) {
  auto file = *directory_->create("f");
  FileAppend sink(*file, std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(sink.append(byte_view("ab")).error().code, ErrorCode::kIo);
}

// --------------------------------------------------------------------------------------- the system's alone

TEST(SystemCallsWanted, AreThoseThatTheEnvironmentAllows) {
  ::unsetenv("KVPACK_FS_PORTABLE");
  EXPECT_EQ(wanted_system_calls(), SystemCalls::kAll);
  ::setenv("KVPACK_FS_PORTABLE", "", 1);
  EXPECT_EQ(wanted_system_calls(), SystemCalls::kAll);
  ::setenv("KVPACK_FS_PORTABLE", "1", 1);
  EXPECT_EQ(wanted_system_calls(), SystemCalls::kPortable);
  testing::TempDirectory temp;
  auto directory = *SystemFileSystem().open_directory(temp.path(), Links::kRefuse);
  EXPECT_EQ(*directory->create_unnamed(), nullptr);
  ::unsetenv("KVPACK_FS_PORTABLE");
}

class SystemFiles : public ::testing::Test {
 protected:
  SystemFiles() : directory_(*fs_.open_directory(temp_.path(), Links::kRefuse)) {}
  void write(const std::string& name, std::string_view text, mode_t mode = 0600) {
    std::ofstream(temp_.path(name), std::ios::binary)
        .write(text.data(), static_cast<std::streamsize>(text.size()));
    ASSERT_EQ(::chmod(temp_.path(name).c_str(), mode), 0);
  }
  testing::TempDirectory temp_;
  SystemFileSystem fs_;
  std::unique_ptr<Directory> directory_;
};

TEST_F(SystemFiles, NeverFollowALinkInsideAnOpenDirectory) {
  write("f", "x");
  std::filesystem::create_symlink("f", temp_.path("to_file"));
  std::filesystem::create_directory(temp_.path("d"));
  std::filesystem::create_directory_symlink("d", temp_.path("to_directory"));
  EXPECT_EQ(directory_->open("to_file", OpenMode::kRead).error().code, ErrorCode::kIo);
  EXPECT_EQ(directory_->open_directory("to_directory").error().code, ErrorCode::kIo);
  EXPECT_EQ(directory_->facts("to_file")->kind, FileKind::kSymbolicLink);
  EXPECT_EQ(directory_->create("to_file").error().code, ErrorCode::kExpectation);
  EXPECT_EQ(fs_.open_directory(temp_.path("to_directory"), Links::kRefuse).error().code, ErrorCode::kIo);
  EXPECT_TRUE(fs_.open_directory(temp_.path("to_directory"), Links::kFollow).has_value());
  EXPECT_EQ(fs_.open_file(temp_.path("to_file"), Links::kRefuse).error().code, ErrorCode::kIo);
  EXPECT_TRUE(fs_.open_file(temp_.path("to_file"), Links::kFollow).has_value());
}

TEST_F(SystemFiles, APipeIsRefusedWithoutWaiting) {
  ASSERT_EQ(::mkfifo(temp_.path("pipe").c_str(), 0600), 0);
  const auto refused = fs_.open_file(temp_.path("pipe"), Links::kFollow);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().verdict(), "io:open " + temp_.path("pipe") + ": not a regular file");
  EXPECT_EQ(directory_->facts("pipe")->kind, FileKind::kOther);
}

TEST_F(SystemFiles, PathsWithoutTextOrWithNulAreRefused) {
  EXPECT_EQ(fs_.open_file("", Links::kFollow).error().verdict(), "io:invalid path");
  EXPECT_EQ(fs_.open_file(std::string_view("a\0b", 3), Links::kFollow).error().verdict(), "io:invalid path");
  EXPECT_EQ(fs_.open_directory("", Links::kFollow).error().verdict(), "io:invalid path");
  EXPECT_EQ(fs_.open_directory(temp_.path("none"), Links::kFollow).error().code, ErrorCode::kNotFound);
}

TEST_F(SystemFiles, OffsetsBeyondTheSystemsTypeAreErrors) {
  auto file = *directory_->create("f");
  const std::uint64_t huge = std::numeric_limits<std::uint64_t>::max() - 1;
  Bytes one(1);
  EXPECT_EQ(file->read_some(huge, one).error().code, ErrorCode::kIo);
  EXPECT_EQ(file->write_some(huge, one).error().code, ErrorCode::kIo);
  EXPECT_EQ(file->truncate(huge).error().code, ErrorCode::kIo);
  EXPECT_EQ(file->preallocate(huge).error().code, ErrorCode::kIo);
  EXPECT_EQ(file->read_some(std::numeric_limits<std::uint64_t>::max(), one).error().code, ErrorCode::kIo);
}

TEST_F(SystemFiles, PlaceSplitsAPersonsPath) {
  const auto place = open_place(fs_, temp_.path("name"));
  ASSERT_TRUE(place.has_value());
  EXPECT_EQ(place->name, "name");
  EXPECT_TRUE(place->directory->facts()->is_same_file(*directory_->facts()));
  EXPECT_EQ(open_place(fs_, temp_.path("name//"))->name, "name");
  EXPECT_EQ(open_place(fs_, "name")->directory->path(), ".");
  EXPECT_EQ(open_place(fs_, "/name")->directory->path(), "/");
  for (const char* bad : {"", "/", ".", "..", "a/..", "a/."}) {
    const auto refused = open_place(fs_, bad);
    ASSERT_FALSE(refused.has_value()) << bad;
    EXPECT_EQ(refused.error().verdict(), std::string("io:path does not end in a file name: ") + bad);
  }
  EXPECT_EQ(open_place(fs_, temp_.path("none/name")).error().code, ErrorCode::kNotFound);
}

TEST_F(SystemFiles, BoundedReadTakesTheWholeFileOrNothing) {
  write("f", "12345");
  EXPECT_EQ(*read_file_bounded(fs_, temp_.path("f"), 5), bytes_of("12345"));
  EXPECT_EQ(read_file_bounded(fs_, temp_.path("f"), 4).error().verdict(),
            "limit:file is longer than 4 bytes: " + temp_.path("f"));
  write("empty", "");
  EXPECT_TRUE(read_file_bounded(fs_, temp_.path("empty"), 0)->empty());
  EXPECT_EQ(read_file_bounded(fs_, temp_.path("none"), 4).error().code, ErrorCode::kNotFound);
}

TEST_F(SystemFiles, KeyFileMustBePrivateSingleLinkRegularAnd32Bytes) {
  const std::string refusal = "state:store key must be private, single-link, and exactly 32 bytes";
  const std::string key(32, 'k');
  write("key", key);
  const auto good = read_key_file(fs_, temp_.path("key"));
  ASSERT_TRUE(good.has_value());
  EXPECT_TRUE(constant_time_equal(good->expose(), byte_view(key)));

  write("short", key.substr(1));
  write("long", key + "k");
  write("group", key, 0640);
  write("others", key, 0601);
  write("twice", key);
  std::filesystem::create_hard_link(temp_.path("twice"), temp_.path("twice_too"));
  std::filesystem::create_symlink("key", temp_.path("symbolic"));
  std::filesystem::create_directory(temp_.path("directory"));
  for (const char* name : {"short", "long", "group", "others", "twice", "symbolic", "directory"}) {
    const auto refused = read_key_file(fs_, temp_.path(name));
    ASSERT_FALSE(refused.has_value()) << name;
    EXPECT_EQ(refused.error().verdict(), refusal) << name;
  }
  write("zero", std::string(32, '\0'));
  EXPECT_EQ(read_key_file(fs_, temp_.path("zero")).error().verdict(), "state:store key is all zero");
  EXPECT_EQ(read_key_file(fs_, temp_.path("none")).error().code, ErrorCode::kNotFound);
}

// --------------------------------------------------------------------------------------- what only a fake
// can show

TEST(FakedFiles, ShortTransfersAreFinished) {
  testing::FakeFileSystem fs;
  fs.limit_transfers(3);
  auto directory = *fs.open_directory("/", Links::kRefuse);
  auto file = *directory->create("f");
  ASSERT_TRUE(write_all(*file, 0, byte_view("0123456789")).has_value());
  Bytes out(10);
  ASSERT_TRUE(read_exactly(*file, 0, out).has_value());
  EXPECT_EQ(out, bytes_of("0123456789"));
  EXPECT_EQ(*read_file_bounded(fs, "/f", 10), bytes_of("0123456789"));
}

TEST(FakedFiles, AFileThatTakesNothingIsAnErrorAndNotALoop) {
  testing::FakeFileSystem fs;
  fs.limit_transfers(0);
  auto directory = *fs.open_directory("/", Links::kRefuse);
  auto file = *directory->create("f");
  EXPECT_EQ(write_all(*file, 0, byte_view("x")).error().verdict(), "io:write /f: Input/output error");
}

TEST(FakedFiles, BoundedReadNoticesAChangeWhileReading) {
  testing::FakeFileSystem fs;
  fs.put_file("/f", bytes_of("12345"));
  fs.before_operation([&](const testing::Operation& operation) {
    if (operation.verb == "read") fs.put_file("/g", {});
  });
  EXPECT_TRUE(read_file_bounded(fs, "/f", 9).has_value());
  for (const std::size_t length : {std::size_t{4}, std::size_t{6}}) {
    auto directory = *fs.open_directory("/", Links::kRefuse);
    fs.put_file("/f", bytes_of("12345"));
    auto writer = *directory->open("f", OpenMode::kReadWrite);
    bool changed = false;
    fs.before_operation([&](const testing::Operation& operation) {
      if (operation.verb != "read" || changed) return;
      changed = true;
      ASSERT_TRUE(writer->truncate(length).has_value());
    });
    EXPECT_EQ(read_file_bounded(fs, "/f", 9).error().verdict(), "io:file changed while it was read: /f");
    fs.before_operation({});
  }
}

TEST(FakedFiles, EveryFailedCallSurfacesFromTheKeyFile) {
  testing::FakeFileSystem fs;
  fs.put_file("/key", Bytes(32, 7));
  const std::size_t begin = fs.operation_count();
  ASSERT_TRUE(read_key_file(fs, "/key").has_value());
  const std::size_t calls = fs.operation_count() - begin;
  for (std::size_t k = 0; k < calls; ++k) {
    fs.clear_faults();
    fs.fail_operation(k, EIO);
    const auto refused = read_key_file(fs, "/key");
    ASSERT_FALSE(refused.has_value()) << k;
    EXPECT_EQ(refused.error().code, ErrorCode::kIo);
  }
}

TEST(FakedFiles, RenameWithoutReplacementFallsBackToALink) {
  testing::FakeFileSystem fs;
  fs.support_exclusive_rename(false);
  fs.put_file("/a", bytes_of("one"));
  fs.put_file("/b", bytes_of("two"));
  auto root = *fs.open_directory("/", Links::kRefuse);
  EXPECT_EQ(rename_no_replace(*root, "a", *root, "b").error().code, ErrorCode::kExpectation);
  EXPECT_EQ(fs.names("/"), (std::vector<std::string>{"a", "b"}));
  ASSERT_TRUE(rename_no_replace(*root, "a", *root, "c").has_value());
  EXPECT_EQ(fs.names("/"), (std::vector<std::string>{"b", "c"}));

  // The old name cannot be removed: the new one goes again.
  fs.fail_operation(3, EIO);  // rename exclusive, stat, link, unlink
  EXPECT_EQ(rename_no_replace(*root, "c", *root, "d").error().code, ErrorCode::kIo);
  EXPECT_EQ(fs.names("/"), (std::vector<std::string>{"b", "c"}));
}

TEST(FakedFiles, RenameOfADirectoryWithoutReplacementFallsBackToALook) {
  testing::FakeFileSystem fs;
  fs.support_exclusive_rename(false);
  fs.put_directory("/d");
  fs.put_file("/d/f", bytes_of("x"));
  fs.put_file("/taken", {});
  auto root = *fs.open_directory("/", Links::kRefuse);
  EXPECT_EQ(rename_no_replace(*root, "d", *root, "taken").error().code, ErrorCode::kExpectation);
  fs.fail_operation(2, EIO);  // rename exclusive, stat of the directory, stat of the target
  EXPECT_EQ(rename_no_replace(*root, "d", *root, "e").error().code, ErrorCode::kIo);
  ASSERT_TRUE(rename_no_replace(*root, "d", *root, "e").has_value());
  EXPECT_EQ(fs.file("/e/f"), bytes_of("x"));
}

TEST(FakedFiles, ErrorNumbersBecomeCategories) {
  EXPECT_EQ(os_error(ENOENT, "open", "/p").verdict(), "not_found:open /p: No such file or directory");
  EXPECT_EQ(os_error(EEXIST, "link", "/p").code, ErrorCode::kExpectation);
  EXPECT_EQ(os_error(ENOTEMPTY, "rename to", "/p").code, ErrorCode::kExpectation);
  EXPECT_EQ(os_error(ENOSPC, "write", "/p").verdict(), "io:write /p: No space left on device");
  for (const int full : {ENOSPC, EDQUOT}) {
    const Error error = os_error(full, "write", "/p");
    ASSERT_EQ(error.context.size(), 1u);
    EXPECT_EQ(error.context[0].key, "space");
    EXPECT_EQ(error.context[0].value, "full");
  }
  EXPECT_EQ(os_error(EACCES, "open", "/p").code, ErrorCode::kIo);
}

TEST(FakedFiles, APowerCutKeepsWhatWasSyncedAndNothingElseForSure) {
  testing::FakeFileSystem fs;
  auto root = *fs.open_directory("/", Links::kRefuse);
  auto file = *root->create("f");
  ASSERT_TRUE(write_all(*file, 0, byte_view("abcd")).has_value());
  std::set<std::pair<bool, Bytes>> images;
  const auto collect = [&] {
    images.clear();
    EXPECT_TRUE(fs.each_power_cut(100, [&](testing::FakeFileSystem& image) {
      const auto bytes = image.file("/f");
      images.emplace(bytes.has_value(), bytes.value_or(Bytes{}));
    }));
  };
  collect();  // Name lost or kept; content empty, zeros, torn, whole.
  EXPECT_EQ(images.size(), 5U);
  ASSERT_TRUE(root->sync().has_value());
  collect();
  EXPECT_EQ(images.size(), 4U);
  ASSERT_TRUE(file->sync().has_value());
  collect();
  EXPECT_EQ(images, (std::set<std::pair<bool, Bytes>>{{true, bytes_of("abcd")}}));
  // After a failed sync a later one proves nothing.
  ASSERT_TRUE(write_all(*file, 0, byte_view("xy")).has_value());
  fs.fail_operation(0, EIO);
  EXPECT_FALSE(file->sync().has_value());
  ASSERT_TRUE(file->sync().has_value());
  collect();
  EXPECT_EQ(images.size(), 4U);
}

TEST(FakedFiles, ARenameIsTwoNamesToAPowerCut) {
  testing::FakeFileSystem fs;
  fs.put_file("/a", bytes_of("x"));
  auto root = *fs.open_directory("/", Links::kRefuse);
  ASSERT_TRUE(root->rename("a", *root, "b").has_value());
  std::set<std::vector<std::string>> images;
  EXPECT_TRUE(
      fs.each_power_cut(100, [&](testing::FakeFileSystem& image) { images.insert(image.names("/")); }));
  EXPECT_EQ(images, (std::set<std::vector<std::string>>{{}, {"a"}, {"b"}, {"a", "b"}}));
}

TEST(SystemClock, GoesForward) {
  const SystemClock clock;
  const auto first = clock.monotonic_ns();
  EXPECT_GE(clock.monotonic_ns(), first);
  EXPECT_GT(clock.wall_ms(), 1'600'000'000'000U);
}

}  // namespace
}  // namespace kvpack::fs_test
