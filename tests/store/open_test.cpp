#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "support/stores.h"

namespace kvpack::open_test {
namespace {

using testing::StoreFixture;
using testing::test_keys;

std::string verdict_of(const Result<std::unique_ptr<Store>>& result) {
  return result.has_value() ? "success" : result.error().verdict();
}

TEST(StoreOpen, ACreatedStoreCanBeOpenedAgain) {
  StoreFixture f;
  const Id32 tenant = f.create()->tenant();
  EXPECT_EQ(f.open()->tenant(), tenant);
}

TEST(StoreOpen, EverythingInTheRootIsPrivate) {
  StoreFixture f;
  const auto store = f.create();
  for (const auto& entry : std::filesystem::recursive_directory_iterator(f.options.root)) {
    const auto mode = static_cast<unsigned>(entry.status().permissions());
    EXPECT_EQ(mode, entry.is_directory() ? 0700u : 0600u) << entry.path();
  }
}

TEST(StoreOpen, ASecondWriterIsRefused) {
  StoreFixture f;
  const auto store = f.create();
  EXPECT_EQ(verdict_of(Store::open(f.options)),
            "busy:store is open elsewhere: pid " + std::to_string(::getpid()));
}

TEST(StoreOpen, ConfigurationIsCheckedBeforeAnythingIsMade) {
  StoreFixture f;
  const auto refused = [&](const std::string& verdict) {
    EXPECT_EQ(verdict_of(Store::create(f.options)), verdict);
    EXPECT_FALSE(std::filesystem::exists(f.options.root));
  };
  const std::string invalid = "state:store epochs, readable window, or durable/staging quotas are invalid";
  const StoreOptions good = f.options;
  f.options.epochs = {.minimum_readable = 0, .active = 1};
  refused(invalid);
  f.options.epochs = {.minimum_readable = 2, .active = 1};
  refused(invalid);
  f.options.epochs = {.minimum_readable = 1, .active = 65};
  refused(invalid);
  f.options = good;
  f.options.quota_bytes = 0;
  refused(invalid);
  f.options = good;
  f.options.staging_quota_bytes = 0;
  refused(invalid);
  f.options = good;
  f.options.catalog_epoch = 0;
  refused(invalid);
  f.options = good;
  f.options.keys = nullptr;
  refused(invalid);
  f.options = good;
  f.options.epochs = {.minimum_readable = 1, .active = 2};
  f.options.keys = test_keys({.minimum_readable = 1, .active = 1});
  refused("state:store key does not contain the complete readable epoch window");
  f.options = good;
  f.options.watermarks.stop = 900;
  refused("state:store watermarks are invalid");
}

TEST(StoreOpen, CreateRefusesARootThatHoldsAnything) {
  StoreFixture f;
  f.create();
  EXPECT_EQ(verdict_of(Store::create(f.options)), "expectation:store root is not empty: " + f.options.root);
  f.options.root += "2";
  std::filesystem::create_directory(f.options.root);
  std::filesystem::permissions(f.options.root, std::filesystem::perms::owner_all);
  std::ofstream(f.options.root + "/notes.txt") << "mine";
  EXPECT_EQ(verdict_of(Store::create(f.options)), "expectation:store root is not empty: " + f.options.root);
}

TEST(StoreOpen, AnInterruptedCreationIsRepeated) {
  StoreFixture f;
  f.create();
  // What is there before the catalog's first commit: its file, empty.
  const std::string catalog = f.options.root + "/catalog/catalog.sqlite";
  std::filesystem::remove(catalog + "-wal");
  std::filesystem::remove(catalog + "-shm");
  std::filesystem::resize_file(catalog, 0);
  EXPECT_EQ(verdict_of(Store::create(f.options)), "success");
}

TEST(StoreOpen, AMissingCatalogIsSaid) {
  StoreFixture f;
  f.create();
  const std::string catalog = f.options.root + "/catalog/catalog.sqlite";
  std::filesystem::remove(catalog);
  EXPECT_EQ(verdict_of(Store::open(f.options)), "state:catalog is missing, rebuild it: " + catalog);
  std::filesystem::remove_all(f.options.root + "/catalog");
  EXPECT_EQ(verdict_of(Store::open(f.options)), "state:catalog is missing, rebuild it: " + catalog);
}

TEST(StoreOpen, ACatalogThatIsNoDatabaseIsRefused) {
  StoreFixture f;
  f.create();
  const std::string catalog = f.options.root + "/catalog/catalog.sqlite";
  std::filesystem::remove(catalog + "-wal");
  std::ofstream(catalog, std::ios::trunc) << std::string(8192, 'x');
  EXPECT_EQ(verdict_of(Store::open(f.options)), "catalog:catalog: file is not a database");
}

TEST(StoreOpen, ASymbolicLinkIsNotFollowed) {
  StoreFixture f;
  f.create();
  const std::string catalog = f.options.root + "/catalog/catalog.sqlite";
  std::filesystem::rename(catalog, f.directory.path() + "/elsewhere");
  std::filesystem::create_symlink(f.directory.path() + "/elsewhere", catalog);
  EXPECT_EQ(verdict_of(Store::open(f.options)), "state:catalog is not a private regular file: " + catalog);
  const std::string link = f.directory.path() + "/link";
  std::filesystem::create_directory_symlink(f.options.root, link);
  f.options.root = link;
  EXPECT_FALSE(Store::open(f.options).has_value());
}

TEST(StoreOpen, PermissiveDirectoriesAreRefusedAndLeftAsTheyAre) {
  for (const std::string name :
       {"", "/objects", "/objects/chunks", "/objects/quarantine", "/pins", "/catalog"}) {
    StoreFixture f;
    f.create();
    const std::string path = f.options.root + name;
    ASSERT_EQ(::chmod(path.c_str(), 0750), 0);
    EXPECT_EQ(verdict_of(Store::open(f.options)), "state:store directory is not private: " + path);
    struct stat facts {};
    ASSERT_EQ(::stat(path.c_str(), &facts), 0);
    EXPECT_EQ(facts.st_mode & 0777, 0750u);
  }
}

TEST(StoreOpen, AnotherTenantOrKeyIsRefused) {
  StoreFixture f;
  f.create();
  f.options.keys = test_keys({}, 0x11, "another");
  EXPECT_EQ(verdict_of(Store::open(f.options)), "authentication:store belongs to another tenant or key");
  f.options.keys = test_keys({}, 0x22);
  EXPECT_EQ(verdict_of(Store::open(f.options)), "authentication:store belongs to another tenant or key");
}

TEST(StoreOpen, AWrongEpochRootIsRefused) {
  StoreFixture f;
  f.create();
  const Id32 tenant = f.options.keys->tenant();
  std::vector<EpochRoot> roots;
  roots.push_back({.epoch = 1, .root = testing::test_key(0x33)});
  f.options.keys = std::make_shared<const KeyRing>(*KeyRing::create(
      {.stable_root = testing::test_key(0x11), .epoch_roots = std::move(roots), .tenant = tenant}));
  EXPECT_EQ(verdict_of(Store::open(f.options)), "authentication:store key does not match epoch 1");
}

TEST(StoreOpen, EpochsMoveForwardOnly) {
  StoreFixture f;
  f.options.keys = test_keys({.minimum_readable = 1, .active = 3});
  f.options.epochs = {.minimum_readable = 2, .active = 3};
  f.options.catalog_epoch = 5;
  f.create();
  const std::string backward = "state:key epochs cannot move backward in an existing catalog";
  f.options.epochs = {.minimum_readable = 2, .active = 2};
  EXPECT_EQ(verdict_of(Store::open(f.options)), backward);
  f.options.epochs = {.minimum_readable = 1, .active = 3};
  EXPECT_EQ(verdict_of(Store::open(f.options)), backward);
  f.options.epochs = {.minimum_readable = 3, .active = 3};
  f.options.catalog_epoch = 4;
  EXPECT_EQ(verdict_of(Store::open(f.options)),
            "state:catalog epoch cannot move backward in an existing catalog");
  f.options.catalog_epoch = 5;
  EXPECT_EQ(verdict_of(Store::open(f.options)), "success");
}

TEST(StoreOpen, ANewerCatalogIsRefused) {
  StoreFixture f;
  f.create();
  {
    auto db = *sqlite::Database::open(f.options.root + "/catalog/catalog.sqlite", sqlite::Access::kReadWrite);
    ASSERT_TRUE(db->execute("PRAGMA user_version = 2").has_value());
  }
  EXPECT_EQ(verdict_of(Store::open(f.options)),
            "state:catalog contains an unknown or newer schema migration");
}

TEST(StoreOpen, AMigrationIsRunOnceAndRecorded) {
  StoreFixture f;
  f.create();
  const std::string path = f.options.root + "/catalog/catalog.sqlite";
  const auto known = store::catalog_migrations();
  std::vector<store::Migration> migrations(known.begin(), known.end());
  migrations.emplace_back(
      [](sqlite::Database& db) { return db.execute("CREATE TABLE later (a INTEGER) STRICT"); });
  ASSERT_TRUE(store::Catalog::open(path, migrations).has_value());
  ASSERT_TRUE(store::Catalog::open(path, migrations).has_value());
  EXPECT_EQ(verdict_of(Store::open(f.options)),
            "state:catalog contains an unknown or newer schema migration");
}

TEST(StoreOpen, AReaderOpensBesideTheWriterAndAfterIt) {
  StoreFixture f;
  auto writer = f.create();
  auto reader = Store::open_read_only(f.options);
  ASSERT_TRUE(reader.has_value()) << reader.error().verdict();
  EXPECT_TRUE((*reader)->is_read_only());
  writer.reset();
  EXPECT_EQ(verdict_of(Store::open_read_only(f.options)), "success");
}

TEST(StoreOpen, GarbageAmongTheObjectsDoesNotPreventOpening) {
  StoreFixture f;
  f.create();
  std::filesystem::create_directory(f.options.root + "/objects/chunks/zz");
  std::ofstream(f.options.root + "/objects/chunks/junk") << "junk";
  EXPECT_EQ(verdict_of(Store::open(f.options)), "success");
}

TEST(StoreOpen, AStoreWhoseRootIsRemovedStaysDeadAndANewOneCanBeMade) {
  StoreFixture f;
  const auto dead = f.create();
  std::filesystem::remove_all(f.options.root);
  EXPECT_EQ(store::check_writable(dead->context()).error().verdict(),
            "state:store directory was removed: " + f.options.root);
  EXPECT_EQ(verdict_of(Store::create(f.options)), "success");
}

}  // namespace
}  // namespace kvpack::open_test
