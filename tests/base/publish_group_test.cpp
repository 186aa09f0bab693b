// Several files into one directory: objects first, then the heads that name them.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>

#include "kvpack/base/publish.h"
#include "support/fake_fs.h"
#include "support/temp_directory.h"

namespace kvpack::publish_group_test {
namespace {

using testing::FakeFileSystem;
using testing::Operation;

const Bytes kFirst(5000, 1);
const Bytes kSecond(70'000, 2);
const Bytes kHead(300, 3);
const Bytes kOther(300, 4);

std::unique_ptr<Directory> root_of(FakeFileSystem& fs) {
  return *fs.open_directory("/", Links::kRefuse);
}

Status publish(Directory& directory) {
  KVPACK_TRY_ASSIGN(auto group, GroupPublication::begin(directory));
  KVPACK_TRY(group.add("first", kFirst));
  KVPACK_TRY(group.add_head("head", kHead));
  KVPACK_TRY(group.add("second", kSecond));
  return group.commit();
}

bool has(const FakeFileSystem& fs, const std::string& name) {
  return fs.file("/" + name).has_value();
}

/// Whoever finds the head finds what it names; whatever is there is whole.
void expect_sound(const FakeFileSystem& fs) {
  EXPECT_TRUE(!has(fs, "first") || *fs.file("/first") == kFirst);
  EXPECT_TRUE(!has(fs, "second") || *fs.file("/second") == kSecond);
  if (!has(fs, "head")) return;
  EXPECT_EQ(*fs.file("/head"), kHead);
  EXPECT_TRUE(has(fs, "first"));
  EXPECT_TRUE(has(fs, "second"));
}

TEST(GroupPublication, NamesObjectsMakesThemDurableThenNamesHeads) {
  FakeFileSystem fs;
  auto root = root_of(fs);
  ASSERT_TRUE(publish(*root).has_value());
  EXPECT_EQ(fs.names("/"), (std::vector<std::string>{"first", "head", "second"}));
  expect_sound(fs);
  std::vector<std::string> steps;
  for (const Operation& operation : fs.log())
    if (operation.verb == "link" || operation.verb == "lock directory" ||
        (operation.verb == "sync directory" && operation.path == "/"))
      steps.push_back(operation.verb + operation.path.substr(operation.path.rfind('/') + 1));
  EXPECT_EQ(steps, (std::vector<std::string>{"lock directory", "linkfirst", "linksecond", "sync directory",
                                             "linkhead", "sync directory"}));
}

TEST(GroupPublication, AdoptsEqualFilesWhoeverWroteThem) {
  FakeFileSystem fs;
  fs.put_file("/second", kSecond, 0444);
  fs.put_file("/head", kHead, 0444);
  auto root = root_of(fs);
  ASSERT_TRUE(publish(*root).has_value());
  EXPECT_EQ(root->facts("second")->permissions, 0444U);
  expect_sound(fs);
}

TEST(GroupPublication, ATargetWithOtherBytesIsRefusedAndNewNamesGoAgain) {
  for (const std::string taken : {"first", "second", "head"}) {
    for (const FileKind kind : {FileKind::kRegular, FileKind::kDirectory, FileKind::kSymbolicLink}) {
      FakeFileSystem fs;
      fs.put_file("/" + taken, kOther, 0600, kind);
      auto root = root_of(fs);
      const Status status = publish(*root);
      ASSERT_FALSE(status.has_value());
      EXPECT_EQ(status.error().verdict(), "expectation:target exists with different bytes");
      ASSERT_EQ(status.error().context.size(), 1U);
      EXPECT_EQ(status.error().context[0].value, "/" + taken);
      EXPECT_EQ(fs.names("/"), std::vector<std::string>{taken});
    }
  }
}

TEST(GroupPublication, WithoutALockNewObjectsStayBecauseOthersMayHaveAdoptedThem) {
  FakeFileSystem fs;
  fs.put_file("/head", kOther);
  fs.fail_verb("lock directory", ENOLCK);
  auto root = root_of(fs);
  EXPECT_EQ(publish(*root).error().code, ErrorCode::kExpectation);
  EXPECT_EQ(fs.names("/"), (std::vector<std::string>{"first", "head", "second"}));
  EXPECT_EQ(*fs.file("/head"), kOther);
}

TEST(GroupPublication, OnceAHeadHasItsNameEverythingStays) {
  FakeFileSystem fs;
  auto root = root_of(fs);
  // The second sync of the directory is the last step.
  std::size_t syncs = 0;
  fs.before_operation([&](const Operation& operation) {
    if (operation.verb == "sync directory" && operation.path == "/" && ++syncs == 2)
      fs.fail_verb("sync directory", EIO);
  });
  EXPECT_EQ(publish(*root).error().code, ErrorCode::kIo);
  fs.fail_verb("sync directory", 0);
  EXPECT_EQ(fs.names("/"), (std::vector<std::string>{"first", "head", "second"}));
  EXPECT_TRUE(publish(*root).has_value());
}

struct Queue {
  const char* name;
  bool there = true;
  std::uint32_t seed = 0;
  bool writes = true;
};

/// Without a queue, with those that do things in one order and another, and with one for syncs alone.
class EveryQueue : public ::testing::TestWithParam<Queue> {
 protected:
  static void configure(FakeFileSystem& fs) {
    fs.support_queue(GetParam().there, GetParam().seed, GetParam().writes);
  }
};
INSTANTIATE_TEST_SUITE_P(GroupPublication, EveryQueue,
                         ::testing::Values(Queue{.name = "none", .there = false}, Queue{.name = "last_first"},
                                           Queue{.name = "shuffled", .seed = 7},
                                           Queue{.name = "syncs_alone", .seed = 7, .writes = false}),
                         [](const auto& with) { return with.param.name; });

TEST_P(EveryQueue, EveryFailedCallLeavesAllOrNothing) {
  std::size_t failures = 0;
  for (std::size_t k = 0;; ++k) {
    FakeFileSystem fs;
    configure(fs);
    auto root = root_of(fs);
    const std::size_t begin = fs.operation_count();
    fs.fail_operation(k, EIO);
    const Status status = publish(*root);
    const bool reached = fs.operation_count() - begin > k;
    fs.clear_faults();
    failures += status.has_value() ? 0 : 1;
    expect_sound(fs);
    ASSERT_TRUE(sweep_partials(*root).has_value());
    if (status.has_value() || has(fs, "head")) {
      EXPECT_EQ(fs.names("/"), (std::vector<std::string>{"first", "head", "second"})) << k;
    } else {
      EXPECT_TRUE(fs.names("/").empty()) << k;
    }
    if (!reached) break;
  }
  EXPECT_GE(failures, 15U);
}

TEST_P(EveryQueue, EveryPowerCutLeavesNoHeadWithoutItsObjects) {
  FakeFileSystem fs;
  configure(fs);
  auto root = root_of(fs);
  std::size_t images = 0;
  std::size_t with_head = 0;
  const auto check_images = [&](bool published) {
    fs.each_power_cut(200, [&](FakeFileSystem& image) {
      ++images;
      with_head += has(image, "head") ? 1 : 0;
      EXPECT_TRUE(has(image, "head") || !published);
      expect_sound(image);
    });
  };
  fs.before_operation([&](const Operation&) { check_images(false); });
  ASSERT_TRUE(publish(*root).has_value());
  fs.before_operation({});
  check_images(true);
  EXPECT_GT(images, 500U);
  EXPECT_GT(with_head, 0U);
}

TEST(GroupPublication, WithoutACommitNothingStays) {
  FakeFileSystem fs;
  auto root = root_of(fs);
  {
    auto group = *GroupPublication::begin(*root);
    ASSERT_TRUE(group.add("first", kFirst).has_value());
    EXPECT_EQ(group.file_count(), 1U);
    EXPECT_FALSE(has(fs, "first"));
  }
  EXPECT_TRUE(fs.names("/").empty());
}

TEST(GroupPublication, EndsWithItsCommitOrItsFirstError) {
  constexpr std::string_view kEnded = "poisoned:publication failed or ended earlier";
  FakeFileSystem fs;
  auto root = root_of(fs);
  auto group = *GroupPublication::begin(*root);
  ASSERT_TRUE(group.commit().has_value());
  EXPECT_EQ(group.commit().error().verdict(), kEnded);
  EXPECT_EQ(group.add("late", kFirst).error().verdict(), kEnded);

  auto twice = *GroupPublication::begin(*root);
  ASSERT_TRUE(twice.add("same", kFirst).has_value());
  EXPECT_EQ(twice.add_head("same", kHead).error().verdict(), "graph:two objects have the same name");
  EXPECT_EQ(twice.commit().error().verdict(), kEnded);
  EXPECT_FALSE(has(fs, "same"));

  auto bad_name = *GroupPublication::begin(*root);
  EXPECT_EQ(bad_name.add("a/b", kFirst).error().verdict(), "io:invalid file name");
}

TEST(DirectoryLock, IsHeldAgainstOthersUntilItsHandleGoes) {
  const testing::TempDirectory temp;
  SystemFileSystem fs;
  const int other = ::open(temp.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  ASSERT_GE(other, 0);
  {
    auto directory = *fs.open_directory(temp.path(), Links::kRefuse);
    ASSERT_TRUE(directory->lock());
    EXPECT_TRUE(directory->lock());
    EXPECT_NE(::flock(other, LOCK_EX | LOCK_NB), 0);
  }
  EXPECT_EQ(::flock(other, LOCK_EX | LOCK_NB), 0);
  ::close(other);
}

class GroupPublicationOnTheSystem : public ::testing::TestWithParam<SystemCalls> {};
INSTANTIATE_TEST_SUITE_P(Calls, GroupPublicationOnTheSystem,
                         ::testing::Values(SystemCalls::kAll, SystemCalls::kPortable));

TEST_P(GroupPublicationOnTheSystem, PublishesAdoptsAndRefuses) {
  const testing::TempDirectory temp;
  SystemFileSystem fs(GetParam());
  auto directory = *fs.open_directory(temp.path(), Links::kRefuse);
  ASSERT_TRUE(publish(*directory).has_value());
  ASSERT_TRUE(publish(*directory).has_value());
  EXPECT_EQ(directory->facts("head")->links, 1U);
  EXPECT_EQ(directory->facts("head")->permissions, 0600U);
  ASSERT_TRUE(directory->unlink("head").has_value());
  ASSERT_TRUE(publish_bytes(*directory, "head", kOther).has_value());
  ASSERT_TRUE(directory->unlink("first").has_value());
  EXPECT_EQ(publish(*directory).error().code, ErrorCode::kExpectation);
  std::vector<std::string> names;
  ASSERT_TRUE(directory
                  ->list([&](std::string_view name) {
                    names.emplace_back(name);
                    return true;
                  })
                  .has_value());
  std::ranges::sort(names);
  EXPECT_EQ(names, (std::vector<std::string>{"head", "second"}));
}

}  // namespace
}  // namespace kvpack::publish_group_test
