#include "kvpack/store/cache_directory.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "kvpack/store/state_cache.h"
#include "support/failing_fs.h"
#include "support/saves.h"
#include "support/stores.h"
#include "support/temp_directory.h"
#include "support/verdict.h"

namespace kvpack::cache_directory_test {
namespace {

using testing::CountingRandom;
using testing::TempDirectory;
using testing::verdict;

class CacheDirectory : public ::testing::Test {
 protected:
  CacheDirectory() : directory_(temporary_.path() + "/cache") {}

  Result<SecretKey> open_key(bool create) {
    return open_cache_key(fs_, random_, directory_, cache_key_path(directory_), create);
  }
  StoreOptions store_options(const SecretKey& key) const {
    const Id32 tenant = *derive_tenant_namespace(key, byte_view("tenant"));
    StoreOptions options;
    options.root = cache_store_root(directory_);
    options.keys =
        std::make_shared<const KeyRing>(*KeyRing::create({.stable_root = key.duplicate(), .tenant = tenant}));
    return options;
  }
  bool exists() const { return std::filesystem::exists(directory_); }

  TempDirectory temporary_;
  std::string directory_;
  SystemFileSystem fs_;
  CountingRandom random_;
};

TEST_F(CacheDirectory, WithoutCreateNothingIsMade) {
  EXPECT_EQ(open_key(false).error().code, ErrorCode::kNotFound);
  EXPECT_FALSE(exists());
  const SecretKey key = testing::test_key(1);
  EXPECT_EQ(open_cache_store(store_options(key), false).error().code, ErrorCode::kNotFound);
  EXPECT_FALSE(exists());
}

TEST_F(CacheDirectory, CreateMakesAPrivateKeyOnce) {
  const auto made = open_key(true);
  ASSERT_EQ(verdict(made), "ok");
  struct stat facts {};
  ASSERT_EQ(::stat(cache_key_path(directory_).c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 07777, 0600U);
  EXPECT_EQ(facts.st_size, 32);
  ASSERT_EQ(::stat(directory_.c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 07777, 0700U);
  for (const bool create : {true, false}) {
    const auto again = open_key(create);
    ASSERT_EQ(verdict(again), "ok");
    EXPECT_TRUE(constant_time_equal(again->expose(), made->expose()));
  }
}

TEST_F(CacheDirectory, AFailedCallLeavesTheWholeKeyOrNone) {
  testing::FailingFileSystem failing(fs_);
  for (std::size_t call = 0;; ++call) {
    std::filesystem::remove_all(directory_);
    failing.fail_call(call, EIO);
    const auto made = open_cache_key(failing, random_, directory_, cache_key_path(directory_), true);
    const bool failed = failing.stop();
    const auto there = open_key(false);
    EXPECT_TRUE(there.has_value() || (!made.has_value() && there.error().code == ErrorCode::kNotFound))
        << call;
    EXPECT_EQ(verdict(open_key(true)), "ok") << call;
    if (failed) continue;
    EXPECT_GT(call, 5U);
    break;
  }
}

TEST_F(CacheDirectory, TheKeyMayLieElsewhere) {
  const std::string path = temporary_.path() + "/keys/mine.key";
  const auto made = open_cache_key(fs_, random_, directory_, path, true);
  ASSERT_EQ(verdict(made), "ok");
  EXPECT_TRUE(std::filesystem::exists(path));
  EXPECT_FALSE(std::filesystem::exists(cache_key_path(directory_)));
}

TEST_F(CacheDirectory, AKeyThatIsNotPrivateOrNotAKeyIsRefused) {
  ASSERT_EQ(verdict(open_key(true)), "ok");
  constexpr char kRefused[] = "state:store key must be private, single-link, and exactly 32 bytes";
  ASSERT_EQ(::chmod(cache_key_path(directory_).c_str(), 0640), 0);
  EXPECT_EQ(verdict(open_key(true)), kRefused);
  ASSERT_EQ(::chmod(cache_key_path(directory_).c_str(), 0600), 0);
  std::filesystem::resize_file(cache_key_path(directory_), 31);
  EXPECT_EQ(verdict(open_key(true)), kRefused);
}

TEST_F(CacheDirectory, NoKeyIsMadeWhereOthersWrite) {
  for (const mode_t mode : {0770U, 0702U}) {
    std::filesystem::remove_all(directory_);
    ASSERT_EQ(::mkdir(directory_.c_str(), 0700), 0);
    ASSERT_EQ(::chmod(directory_.c_str(), mode), 0);
    EXPECT_EQ(verdict(open_key(true)),
              "state:directory of a cache key must be writable by its owner alone: " + directory_);
    EXPECT_TRUE(std::filesystem::is_empty(directory_));
  }
  ASSERT_EQ(::chmod(directory_.c_str(), 0755), 0);
  EXPECT_EQ(verdict(open_key(true)), "ok");
}

TEST_F(CacheDirectory, NoKeyIsReadWhereOthersCouldHavePutIt) {
  ASSERT_EQ(verdict(open_key(true)), "ok");
  for (const mode_t mode : {0720U, 0702U}) {
    ASSERT_EQ(::chmod(directory_.c_str(), mode), 0);
    for (const bool create : {true, false})
      EXPECT_EQ(verdict(open_key(create)),
                "state:directory of a cache key must be writable by its owner alone: " + directory_);
  }
  ASSERT_EQ(::chmod(directory_.c_str(), 0755), 0);
  EXPECT_EQ(verdict(open_key(false)), "ok");
  const std::string path = cache_key_path(directory_);
  if (::chown(path.c_str(), 12'345, static_cast<gid_t>(-1)) != 0) GTEST_SKIP() << "needs another user's file";
  EXPECT_EQ(verdict(open_key(true)), "state:cache key must be owned by the user who reads it: " + path);
  ASSERT_EQ(::chown(directory_.c_str(), 12'345, static_cast<gid_t>(-1)), 0);
  EXPECT_EQ(verdict(open_key(true)),
            "state:directory of a cache key must be writable by its owner alone: " + directory_);
}

TEST_F(CacheDirectory, ADirectoryIsMadeForAStoreWhoseKeyLiesElsewhere) {
  const std::string path = temporary_.path() + "/mine.key";
  ASSERT_EQ(verdict(open_cache_key(fs_, random_, directory_, path, true)), "ok");
  std::filesystem::remove_all(directory_);
  const auto key = open_cache_key(fs_, random_, directory_, path, true);
  ASSERT_EQ(verdict(key), "ok");
  EXPECT_EQ(open_cache_store(store_options(*key), false).error().code, ErrorCode::kNotFound);
  EXPECT_FALSE(exists());
  EXPECT_EQ(verdict(open_cache_store(store_options(*key), true)), "ok");
  struct stat facts {};
  ASSERT_EQ(::stat(directory_.c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 07777, 0700U);
}

TEST_F(CacheDirectory, NoKeyIsMadeBesideAStore) {
  const auto key = open_key(true);
  ASSERT_EQ(verdict(key), "ok");
  ASSERT_EQ(verdict(open_cache_store(store_options(*key), true)), "ok");
  std::filesystem::remove(cache_key_path(directory_));
  EXPECT_EQ(verdict(open_key(true)),
            "state:cache key is missing, and there is a store that needs it: " + cache_key_path(directory_));
  EXPECT_FALSE(std::filesystem::exists(cache_key_path(directory_)));
}

TEST_F(CacheDirectory, TheStoreIsMadeOnceAndOpenedFromThenOn) {
  const auto key = open_key(true);
  ASSERT_EQ(verdict(key), "ok");
  const StoreOptions options = store_options(*key);
  for (const bool create : {true, true, false}) {
    const auto store = open_cache_store(options, create);
    ASSERT_EQ(verdict(store), "ok");
    EXPECT_EQ(open_cache_store(options, true).error().code, ErrorCode::kBusy);
  }
  EXPECT_EQ(verdict(open_cache_store(store_options(testing::test_key(9)), true)),
            "authentication:store belongs to another tenant or key");
}

TEST_F(CacheDirectory, AStoreThatAnotherProcessMakesMeanwhileIsOpenedAndRecovered) {
  const auto key = open_key(true);
  ASSERT_EQ(verdict(key), "ok");
  const std::string root = cache_store_root(directory_);
  const std::string partial = root + "/objects/partials/" + std::string(32, 'a') + ".partial";
  testing::FailingFileSystem watched(fs_);
  StoreOptions options = store_options(*key);
  options.file_system = &watched;
  for (std::size_t call = 0;; ++call) {
    std::filesystem::remove_all(root);
    bool made = false;
    watched.interrupt_call(call, [&] {
      made = Store::create(store_options(*key)).has_value();
      if (made) std::ofstream(partial) << "x";
    });
    const auto store = open_cache_store(options, true);
    ASSERT_TRUE(watched.stop()) << call;
    EXPECT_EQ(verdict(store), "ok") << call;
    EXPECT_FALSE(std::filesystem::exists(partial)) << call;
    if (made) continue;
    EXPECT_GT(call, 8U);  // The lock is ours from here on.
    break;
  }
}

TEST_F(CacheDirectory, WhatAnInterruptedCreationHasLeftIsFinished) {
  const auto key = open_key(true);
  ASSERT_EQ(verdict(key), "ok");
  const std::string root = cache_store_root(directory_);
  ASSERT_EQ(::mkdir(root.c_str(), 0700), 0);
  EXPECT_EQ(verdict(open_cache_store(store_options(*key), true)), "ok");
}

TEST_F(CacheDirectory, AStoreThatHasLostItsCatalogIsNotReplaced) {
  const auto key = open_key(true);
  ASSERT_EQ(verdict(key), "ok");
  const std::string root = cache_store_root(directory_);
  const auto object_files = [&] {
    std::vector<std::string> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root + "/objects"))
      if (entry.is_regular_file()) files.push_back(entry.path());
    std::ranges::sort(files);
    return files;
  };
  {
    const auto store = open_cache_store(store_options(*key), true);
    ASSERT_EQ(verdict(store), "ok");
    const auto cache = StateCache::create(**store, {.semantic_model = testing::save_model(),
                                                    .identity = {.engine_cache_abi = Id32::filled(2),
                                                                 .topology = Id32::filled(3),
                                                                 .shard_map = Id32::filled(4)}});
    ASSERT_EQ(verdict(cache), "ok");
    const std::vector<std::uint32_t> tokens(10, 7);
    const Bytes blob(100, 1);
    CacheSave given;
    given.tokens = tokens;
    given.blob = blob;
    ASSERT_EQ(verdict(cache->save(given)), "ok");
  }
  const auto saved = object_files();
  EXPECT_EQ(saved.size(), 2U);  // a chunk and a manifest
  std::filesystem::remove_all(root + "/catalog");
  const auto opened = open_cache_store(store_options(*key), true);
  EXPECT_EQ(verdict(opened), "state:catalog is missing, rebuild it: " + root + "/catalog/catalog.sqlite");
  EXPECT_EQ(object_files(), saved);
  EXPECT_FALSE(std::filesystem::exists(root + "/catalog"));
}

}  // namespace
}  // namespace kvpack::cache_directory_test
