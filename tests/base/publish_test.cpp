#include "kvpack/base/publish.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "support/fake_fs.h"
#include "support/temp_directory.h"

namespace kvpack::publish_test {
namespace {

using testing::FakeFileSystem;

constexpr std::string_view kDifferent = "expectation:target exists with different bytes";
const Bytes kContent(100'000, 0x5a);
const Bytes kOld{1, 2, 3};

std::unique_ptr<Directory> root_of(FakeFileSystem& fs) {
  return *fs.open_directory("/", Links::kRefuse);
}

/// Two appends, so that a publication has a middle.
Result<Published> publish(Directory& directory, std::string_view name, const Bytes& content) {
  KVPACK_TRY_ASSIGN(auto publication, Publication::begin(directory));
  const std::size_t half = content.size() / 2;
  KVPACK_TRY(publication.append(ByteSpan(content).first(half)));
  KVPACK_TRY(publication.append(ByteSpan(content).subspan(half)));
  return publication.commit(name);
}

/// How a file comes to its name.
enum class Way { kUnnamed, kExclusiveRename, kLinkAndUnlink };

void configure(FakeFileSystem& fs, Way way) {
  fs.support_unnamed_files(way == Way::kUnnamed);
  fs.support_exclusive_rename(way == Way::kExclusiveRename);
  fs.limit_transfers(40'000);
}

class EveryWay : public ::testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(Publication, EveryWay,
                         ::testing::Values(Way::kUnnamed, Way::kExclusiveRename, Way::kLinkAndUnlink));

TEST_P(EveryWay, TheFileAppearsWholeAndPrivateAndNothingElseStays) {
  FakeFileSystem fs;
  configure(fs, GetParam());
  auto root = root_of(fs);
  EXPECT_EQ(*publish(*root, "set", kContent), Published::kNew);
  EXPECT_EQ(fs.names("/"), std::vector<std::string>{"set"});
  EXPECT_EQ(fs.file("/set"), kContent);
  EXPECT_EQ(root->facts("set")->permissions, 0600U);
  EXPECT_EQ(root->facts("set")->links, 1U);
}

TEST_P(EveryWay, AnEqualTargetIsSuccess) {
  FakeFileSystem fs;
  configure(fs, GetParam());
  fs.put_file("/set", kContent, 0444);
  auto root = root_of(fs);
  EXPECT_EQ(*publish(*root, "set", kContent), Published::kAlreadyThere);
  EXPECT_EQ(fs.names("/"), std::vector<std::string>{"set"});
  EXPECT_EQ(root->facts("set")->permissions, 0444U);
}

TEST_P(EveryWay, AnyOtherTargetIsRefusedAndKept) {
  Bytes last_differs = kContent;
  last_differs.back() ^= 1;
  Bytes longer = kContent;
  longer.push_back(0);
  for (const Bytes& target : {Bytes{}, kOld, last_differs, longer}) {
    FakeFileSystem fs;
    configure(fs, GetParam());
    fs.put_file("/set", target);
    auto root = root_of(fs);
    EXPECT_EQ(publish(*root, "set", kContent).error().verdict(), kDifferent);
    EXPECT_EQ(fs.names("/"), std::vector<std::string>{"set"});
    EXPECT_EQ(fs.file("/set"), target);
  }
  for (const FileKind kind : {FileKind::kDirectory, FileKind::kSymbolicLink, FileKind::kOther}) {
    FakeFileSystem fs;
    configure(fs, GetParam());
    fs.put_file("/set", {}, 0600, kind);
    auto root = root_of(fs);
    EXPECT_EQ(publish(*root, "set", kContent).error().verdict(), kDifferent);
    EXPECT_EQ(fs.names("/"), std::vector<std::string>{"set"});
  }
}

TEST_P(EveryWay, EveryFailedCallLeavesNoPartialContentAndNoLeftover) {
  for (const bool target_exists : {false, true}) {
    std::size_t failures = 0;
    for (std::size_t k = 0;; ++k) {
      FakeFileSystem fs;
      configure(fs, GetParam());
      if (target_exists) fs.put_file("/set", kContent);
      auto root = root_of(fs);
      const std::size_t begin = fs.operation_count();
      fs.fail_operation(k, k % 2 == 0 ? EIO : ENOSPC);
      const auto result = publish(*root, "set", kContent);
      const bool reached = fs.operation_count() - begin > k;
      fs.clear_faults();
      // Whole or absent. Present after an error only when the last step, the directory's sync, failed.
      const auto found = fs.file("/set");
      if (found.has_value()) {
        EXPECT_EQ(*found, kContent) << k;
      }
      EXPECT_TRUE(result.has_value() || target_exists || !found.has_value() || k + 2 >= fs.log().size()) << k;
      failures += result.has_value() ? 0 : 1;
      // Only a failed removal leaves something, and the next sweep takes it.
      ASSERT_TRUE(sweep_partials(*root).has_value());
      for (const std::string& name : fs.names("/")) EXPECT_EQ(name, "set") << k;
      if (!reached) break;
    }
    EXPECT_GE(failures, 5U);
  }
}

TEST_P(EveryWay, EveryPowerCutLeavesTheWholeFileOrNone) {
  for (const bool target_exists : {false, true}) {
    FakeFileSystem fs;
    configure(fs, GetParam());
    const Bytes content(5000, 7);
    if (target_exists) fs.put_file("/other", kOld);
    std::size_t images = 0;
    const auto check_images = [&](bool published) {
      EXPECT_TRUE(fs.each_power_cut(4096, [&](FakeFileSystem& image) {
        ++images;
        const auto found = image.file("/set");
        EXPECT_TRUE(found.has_value() || !published);
        if (found.has_value()) {
          EXPECT_EQ(*found, content);
        }
        EXPECT_EQ(image.file("/other").has_value(), target_exists);
        // After the restart the next publication tidies up and succeeds.
        auto root = *image.open_directory("/", Links::kRefuse);
        EXPECT_TRUE(publish(*root, "set", content).has_value());
        EXPECT_EQ(image.file("/set"), content);
        EXPECT_EQ(image.names("/").size(), target_exists ? 2U : 1U);
      }));
    };
    auto root = root_of(fs);
    fs.before_operation([&](const testing::Operation&) { check_images(false); });
    ASSERT_EQ(*publish(*root, "set", content), Published::kNew);
    fs.before_operation({});
    check_images(true);
    EXPECT_GT(images, 10U);
  }
}

TEST(Publication, WithoutACommitNothingStays) {
  for (const Way way : {Way::kUnnamed, Way::kExclusiveRename}) {
    FakeFileSystem fs;
    configure(fs, way);
    auto root = root_of(fs);
    {
      auto publication = Publication::begin(*root);
      ASSERT_TRUE(publication.has_value());
      ASSERT_TRUE(publication->append(kContent).has_value());
      EXPECT_EQ(publication->size_bytes(), kContent.size());
      EXPECT_EQ(fs.names("/").size(), way == Way::kUnnamed ? 0U : 1U);
    }
    EXPECT_TRUE(fs.names("/").empty());
  }
}

TEST(Publication, IsPoisonedByAFailedAppendAndClosedByItsCommit) {
  FakeFileSystem fs;
  auto root = root_of(fs);
  {
    auto publication = *Publication::begin(*root);
    fs.fail_operation(0, ENOSPC);
    EXPECT_EQ(publication.append(kContent).error().code, ErrorCode::kIo);
    EXPECT_EQ(publication.append(kContent).error().verdict(), "poisoned:publication failed or ended earlier");
    EXPECT_EQ(publication.commit("set").error().code, ErrorCode::kPoisoned);
  }
  EXPECT_TRUE(fs.names("/").empty());
  auto publication = *Publication::begin(*root);
  ASSERT_TRUE(publication.append(kOld).has_value());
  ASSERT_TRUE(publication.commit("set").has_value());
  EXPECT_EQ(publication.append(kContent).error().code, ErrorCode::kPoisoned);
  EXPECT_EQ(publication.commit("again").error().code, ErrorCode::kPoisoned);
  EXPECT_EQ(fs.file("/set"), kOld);
}

TEST(Publication, NamesThatAreNotOneComponentAreRefused) {
  FakeFileSystem fs;
  auto root = root_of(fs);
  EXPECT_EQ(publish(*root, "a/b", kOld).error().verdict(), "io:invalid file name");
  EXPECT_EQ(publish(*root, "..", kOld).error().verdict(), "io:invalid file name");
}

TEST(Publication, AFailedSyncIsNotTriedAgain) {
  FakeFileSystem fs;
  auto root = root_of(fs);
  fs.fail_verb("sync", EIO);
  EXPECT_EQ(publish(*root, "set", kOld).error().code, ErrorCode::kIo);
  std::size_t syncs = 0;
  for (const auto& operation : fs.log()) syncs += operation.verb == "sync" ? 1 : 0;
  EXPECT_EQ(syncs, 1U);
  EXPECT_TRUE(fs.names("/").empty());
}

TEST(Publication, ATargetThatVanishesWhileItIsComparedIsPublishedAnew) {
  FakeFileSystem fs;
  fs.put_file("/set", kOld);
  auto root = root_of(fs);
  auto other = root_of(fs);
  bool removed = false;
  fs.before_operation([&](const testing::Operation& operation) {
    if (operation.verb != "stat" || removed) return;
    removed = true;
    ASSERT_TRUE(other->unlink("set").has_value());
  });
  EXPECT_EQ(*publish(*root, "set", kContent), Published::kNew);
  EXPECT_EQ(fs.file("/set"), kContent);
}

TEST(Publication, ATargetThatComesAndGoesForeverEndsTheTry) {
  FakeFileSystem fs;
  auto root = root_of(fs);
  fs.fail_verb("link", EEXIST);
  EXPECT_EQ(publish(*root, "set", kOld).error().verdict(), "busy:target comes and goes: /set");
  EXPECT_TRUE(fs.names("/").empty());
}

TEST(Publication, WithoutAListOfTheDirectoryItStillPublishes) {
  FakeFileSystem fs;
  auto root = root_of(fs);
  fs.fail_verb("list", EACCES);
  EXPECT_TRUE(publish(*root, "set", kOld).has_value());
  EXPECT_FALSE(sweep_partials(*root).has_value());
}

TEST(Publication, ABatchOfTakenNamesIsLeftAlone) {
  FakeFileSystem fs;
  configure(fs, Way::kExclusiveRename);
  auto root = root_of(fs);
  fs.fail_verb("create", EEXIST);
  EXPECT_EQ(publish(*root, "set", kOld).error().verdict(), "busy:no name for a partial file in /");
}

TEST(Publication, APartialSweptBeforeItsLockIsMadeAgain) {
  FakeFileSystem fs;
  configure(fs, Way::kExclusiveRename);
  auto root = root_of(fs);
  auto sweeper = root_of(fs);
  bool swept = false;
  fs.before_operation([&](const testing::Operation& operation) {
    if (operation.verb != "lock" || swept) return;
    swept = true;
    EXPECT_EQ(*sweep_partials(*sweeper), 1U);
  });
  EXPECT_EQ(*publish(*root, "set", kContent), Published::kNew);
  EXPECT_TRUE(swept);
  EXPECT_EQ(fs.names("/"), std::vector<std::string>{"set"});
}

TEST(Sweep, TakesOnlyOurUnlockedRegularFilesOfThePattern) {
  FakeFileSystem fs;
  configure(fs, Way::kExclusiveRename);
  const std::vector<std::string> kept{
      ".kvpack.0123456789abcde.partial",    // 15 digits
      ".kvpack.0123456789abcdeff.partial",  // 17
      ".kvpack.0123456789abcdeF.partial",   // upper case
      ".kvpack.0123456789abcdef.partia",   "kvpack.0123456789abcdef.partial", "set",
  };
  for (const std::string& name : kept) fs.put_file("/" + name, kOld);
  fs.put_file("/.kvpack.0123456789abcdef.partial", kOld);
  fs.put_file("/.kvpack.1123456789abcdef.partial", kOld);
  fs.set_owner("/.kvpack.1123456789abcdef.partial", 7);
  fs.put_file("/.kvpack.2123456789abcdef.partial", {}, 0600, FileKind::kSymbolicLink);
  fs.put_directory("/.kvpack.3123456789abcdef.partial");
  auto root = root_of(fs);
  auto living = *Publication::begin(*root);  // Sweeps the one stale file.
  ASSERT_TRUE(living.append(kContent).has_value());
  EXPECT_EQ(*sweep_partials(*root), 0U);
  EXPECT_EQ(fs.names("/").size(), kept.size() + 4);
  EXPECT_FALSE(fs.file("/.kvpack.0123456789abcdef.partial").has_value());
  EXPECT_EQ(*living.commit("new"), Published::kNew);
}

TEST(Sweep, LeavesAFileThatItsWriterJustNamed) {
  FakeFileSystem fs;
  configure(fs, Way::kExclusiveRename);
  auto root = root_of(fs);
  auto sweeper = root_of(fs);
  auto publication = std::make_unique<Publication>(*Publication::begin(*root));
  ASSERT_TRUE(publication->append(kContent).has_value());
  // Between the sweeper's open and its lock, the writer commits and lets go.
  bool done = false;
  fs.before_operation([&](const testing::Operation& operation) {
    if (operation.verb != "lock" || done) return;
    done = true;
    EXPECT_TRUE(publication->commit("set").has_value());
    publication.reset();
  });
  EXPECT_EQ(*sweep_partials(*sweeper), 0U);
  EXPECT_EQ(fs.file("/set"), kContent);
}

// -------------------------------------------------------------------------------------------------
// directories

Status fill(Directory& directory) {
  KVPACK_TRY(directory.make_directory("inner"));
  KVPACK_TRY_ASSIGN(const auto inner, directory.open_directory("inner"));
  KVPACK_TRY_ASSIGN(const auto a, directory.create("a"));
  KVPACK_TRY(write_all(*a, 0, kOld));
  KVPACK_TRY_ASSIGN(const auto b, inner->create("b"));
  return write_all(*b, 0, kContent);
}

Status publish_directory(Directory& parent, std::string_view name) {
  KVPACK_TRY_ASSIGN(auto publication, DirectoryPublication::begin(parent));
  KVPACK_TRY(fill(publication.directory()));
  return publication.commit(name);
}

/// The published directory is whole, whatever else is there.
void expect_whole(const FakeFileSystem& fs) {
  EXPECT_EQ(fs.names("/out"), (std::vector<std::string>{"a", "inner"}));
  EXPECT_EQ(fs.file("/out/a"), kOld);
  EXPECT_EQ(fs.file("/out/inner/b"), kContent);
}

TEST(DirectoryPublication, AppearsWholeInOneStep) {
  for (const bool exclusive : {true, false}) {
    FakeFileSystem fs;
    fs.support_exclusive_rename(exclusive);
    auto root = root_of(fs);
    ASSERT_TRUE(publish_directory(*root, "out").has_value());
    EXPECT_EQ(fs.names("/"), std::vector<std::string>{"out"});
    expect_whole(fs);
  }
}

TEST(DirectoryPublication, AnExistingTargetIsRefusedAndKept) {
  for (const FileKind kind : {FileKind::kDirectory, FileKind::kRegular}) {
    FakeFileSystem fs;
    fs.put_file("/out", {}, 0700, kind);
    auto root = root_of(fs);
    EXPECT_EQ(publish_directory(*root, "out").error().verdict(), "expectation:target exists");
    EXPECT_EQ(fs.names("/"), std::vector<std::string>{"out"});
    EXPECT_TRUE(fs.names("/out").empty());
  }
}

TEST(DirectoryPublication, WithoutACommitNothingStays) {
  FakeFileSystem fs;
  auto root = root_of(fs);
  {
    auto publication = DirectoryPublication::begin(*root);
    ASSERT_TRUE(publication.has_value());
    ASSERT_TRUE(fill(publication->directory()).has_value());
    EXPECT_EQ(fs.names("/").size(), 2U);
    EXPECT_EQ(*sweep_partials(*root), 0U);  // It is alive.
  }
  EXPECT_TRUE(fs.names("/").empty());
}

TEST(DirectoryPublication, EndsWithItsCommit) {
  FakeFileSystem fs;
  auto root = root_of(fs);
  auto publication = *DirectoryPublication::begin(*root);
  ASSERT_TRUE(publication.commit("out").has_value());
  EXPECT_EQ(publication.commit("again").error().verdict(), "poisoned:publication failed or ended earlier");
}

/// Whether the directory comes to its name in one step that replaces nothing, or after a look.
class EitherRename : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(DirectoryPublication, EitherRename, ::testing::Bool(),
                         [](const auto& either) { return either.param ? "Exclusive" : "AfterALook"; });

TEST_P(EitherRename, EveryFailedCallLeavesNoPartialContentAndNoLeftover) {
  std::size_t failures = 0;
  for (std::size_t k = 0;; ++k) {
    FakeFileSystem fs;
    fs.support_exclusive_rename(GetParam());
    auto root = root_of(fs);
    const std::size_t begin = fs.operation_count();
    fs.fail_operation(k, EIO);
    const auto result = publish_directory(*root, "out");
    const bool reached = fs.operation_count() - begin > k;
    fs.clear_faults();
    failures += result.has_value() ? 0 : 1;
    if (fs.names("/out").empty()) {
      EXPECT_FALSE(result.has_value()) << k;
    } else {
      expect_whole(fs);
    }
    ASSERT_TRUE(sweep_partials(*root).has_value());
    for (const std::string& name : fs.names("/")) EXPECT_EQ(name, "out") << k;
    if (!reached) break;
  }
  EXPECT_GE(failures, 10U);
}

TEST_P(EitherRename, EveryPowerCutLeavesTheWholeDirectoryOrNone) {
  FakeFileSystem fs;
  fs.support_exclusive_rename(GetParam());
  auto root = root_of(fs);
  std::size_t images = 0;
  const auto check_images = [&](bool published) {
    fs.each_power_cut(300, [&](FakeFileSystem& image) {
      ++images;
      const auto names = image.names("/");
      const bool there = std::ranges::find(names, "out") != names.end();
      EXPECT_TRUE(there || !published);
      if (there) expect_whole(image);
      auto again = *image.open_directory("/", Links::kRefuse);
      ASSERT_TRUE(sweep_partials(*again).has_value());
      for (const std::string& name : image.names("/")) EXPECT_EQ(name, "out");
    });
  };
  fs.before_operation([&](const testing::Operation&) { check_images(false); });
  ASSERT_TRUE(publish_directory(*root, "out").has_value());
  fs.before_operation({});
  check_images(true);
  EXPECT_GT(images, 100U);
}

TEST(DirectoryPublication, NestingIsBounded) {
  FakeFileSystem fs;
  auto root = root_of(fs);
  {
    auto publication = *DirectoryPublication::begin(*root);
    std::vector<std::unique_ptr<Directory>> chain;
    Directory* at = &publication.directory();
    for (int depth = 0; depth <= DirectoryPublication::kMaxDepth; ++depth) {
      ASSERT_TRUE(at->make_directory("d").has_value());
      chain.push_back(*at->open_directory("d"));
      at = chain.back().get();
    }
    EXPECT_EQ(publication.commit("out").error().verdict(), "limit:directory is nested too deeply");
  }
  for (const std::string& name : fs.names("/")) EXPECT_NE(name, "out");
}

// -------------------------------------------------------------------------------------------- the real
// system

TEST(PublicationOnTheSystem, PublishesComparesAndRefuses) {
  const testing::TempDirectory temp;
  SystemFileSystem fs;
  auto directory = *fs.open_directory(temp.path(), Links::kRefuse);
  EXPECT_EQ(*publish(*directory, "set", kContent), Published::kNew);
  EXPECT_EQ(*publish(*directory, "set", kContent), Published::kAlreadyThere);
  EXPECT_EQ(publish(*directory, "set", kOld).error().verdict(), kDifferent);
  EXPECT_EQ(*publish_bytes(*directory, "empty", {}), Published::kNew);
  EXPECT_EQ(*publish_bytes(*directory, "empty", {}), Published::kAlreadyThere);
  EXPECT_EQ(*read_file_bounded(fs, temp.path("set"), kContent.size()), kContent);
  EXPECT_EQ(directory->facts("set")->permissions, 0600U);
  std::filesystem::create_symlink("empty", temp.path("link"));
  EXPECT_EQ(publish_bytes(*directory, "link", {}).error().verdict(), kDifferent);
  ASSERT_TRUE(publish_directory(*directory, "out").has_value());
  EXPECT_EQ(publish_directory(*directory, "out").error().verdict(), "expectation:target exists");
  EXPECT_EQ(*read_file_bounded(fs, temp.path("out/inner/b"), kContent.size()), kContent);
  std::size_t names = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(temp.path())) ++names;
  EXPECT_EQ(names, 4U);
}

TEST(PublicationOnTheSystem, SweepsAStalePartialAndKeepsALockedOne) {
  const testing::TempDirectory temp;
  SystemFileSystem fs;
  auto directory = *fs.open_directory(temp.path(), Links::kRefuse);
  auto stale = *directory->create(".kvpack.0123456789abcdef.partial");
  auto locked = *directory->create(".kvpack.1123456789abcdef.partial");
  ASSERT_TRUE(*locked->try_lock(LockMode::kExclusive));
  ASSERT_TRUE(directory->make_directory(".kvpack.2123456789abcdef.partial-directory").has_value());
  EXPECT_EQ(*sweep_partials(*directory), 2U);
  EXPECT_FALSE(directory->facts(".kvpack.0123456789abcdef.partial").has_value());
  EXPECT_TRUE(directory->facts(".kvpack.1123456789abcdef.partial").has_value());
  locked.reset();
  EXPECT_EQ(*sweep_partials(*directory), 1U);
}

}  // namespace
}  // namespace kvpack::publish_test
