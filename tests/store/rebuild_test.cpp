#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "kvpack/store/fsck.h"
#include "kvpack/store/status.h"
#include "store/catalog_swap.h"
#include "support/fake_fs.h"
#include "support/saved_cuts.h"
#include "support/store_checks.h"

namespace kvpack {
namespace {
namespace rebuild_test {

using namespace store;
using testing::chunks_of;
using testing::Conversation;
using testing::expect_sound;
using testing::FakeFileSystem;
using testing::flip_bit;
using testing::MemorySink;
using testing::path_of;
using testing::StoreFixture;
using testing::test_keys;
using testing::verdict;

class StoreRebuild : public ::testing::Test {
 protected:
  void SetUp() override { store_ = f_.create(); }
  void close() { store_.reset(); }
  void lose_catalog() {
    close();
    std::filesystem::remove_all(f_.options.root + "/catalog");
  }
  RebuildReport rebuild_and_open() {
    auto report = rebuild(f_.options);
    EXPECT_EQ(verdict(report), "ok");
    store_ = f_.open();
    expect_sound(*store_);
    return report.has_value() ? *std::move(report) : RebuildReport{};
  }
  void expect_restores(const Conversation& conversation, std::uint64_t tokens) {
    MemorySink sink;
    const auto restored = restore_deepest(*store_, conversation.query(), sink);
    ASSERT_EQ(verdict(restored), "ok");
    ASSERT_TRUE(restored->restored.has_value());
    EXPECT_EQ(sink.live_tokens, tokens);
    EXPECT_TRUE(sink.live == conversation.planes(tokens));
  }
  bool exists(const std::string& name) const { return std::filesystem::exists(f_.options.root + "/" + name); }
  std::string backup() const {
    for (const auto& entry : std::filesystem::directory_iterator(f_.options.root))
      if (entry.path().filename().string().starts_with("catalog.backup-")) return entry.path().string();
    return {};
  }

  StoreFixture f_;
  std::unique_ptr<Store> store_;
};

// Scenario: a store that has lost its catalog is made again from the objects alone.
TEST_F(StoreRebuild, ReproducesBytesManifestsAndChunksFromObjectsAlone) {
  const Conversation conversation(256);
  conversation.save(*store_);
  const StoreStatus before = *status(*store_);
  ASSERT_EQ(before.manifests, 1u);
  ASSERT_EQ(before.chunks, 2u);
  lose_catalog();
  EXPECT_EQ(verdict(Store::open(f_.options)),
            "state:catalog is missing, rebuild it: " + f_.options.root + "/catalog/catalog.sqlite");
  const RebuildReport report = rebuild_and_open();
  EXPECT_EQ(report.found, 0u);
  EXPECT_EQ(report.manifests, 1u);
  EXPECT_EQ(report.chunks, 2u);
  EXPECT_EQ(report.durable_bytes, before.durable_bytes);
  EXPECT_EQ(report.bytes_read, before.durable_bytes);
  EXPECT_EQ(report.backup_path, "");
  const StoreStatus after = *status(*store_);
  EXPECT_EQ(after.durable_bytes, before.durable_bytes);
  EXPECT_EQ(after.manifests, 1u);
  EXPECT_EQ(after.chunks, 2u);
  const auto scrub = fsck(*store_, {.deep = true});
  ASSERT_EQ(verdict(scrub), "ok");
  EXPECT_EQ(scrub->found, 0u);
  expect_restores(conversation, 256);
}

TEST_F(StoreRebuild, ChainsAndSharedChunksComeBack) {
  const Conversation conversation(1'280);
  conversation.save_checkpoints(*store_);
  const Conversation other(512, 3);
  other.save_checkpoints(*store_, 256, true);
  const StoreStatus before = *status(*store_);
  lose_catalog();
  const RebuildReport report = rebuild_and_open();
  EXPECT_EQ(report.found, 0u);
  const StoreStatus after = *status(*store_);
  EXPECT_EQ(after.durable_bytes, before.durable_bytes);
  EXPECT_EQ(after.shared_bytes, before.shared_bytes);
  EXPECT_EQ(after.manifests, before.manifests);
  EXPECT_EQ(after.chunks, before.chunks);
  expect_restores(conversation, 1'280);
  expect_restores(other, 512);
  // A save of the same goes on as if nothing had happened.
  conversation.save_checkpoints(*store_);
  EXPECT_EQ(status(*store_)->manifests, before.manifests);
}

TEST_F(StoreRebuild, ADamagedCatalogIsKeptBeside) {
  const Conversation conversation(256);
  conversation.save(*store_);
  close();
  std::ofstream(f_.options.root + "/catalog/catalog.sqlite") << "this is no database";
  EXPECT_FALSE(Store::open(f_.options).has_value());
  const RebuildReport report = rebuild_and_open();
  EXPECT_EQ(report.backup_path, backup());
  EXPECT_TRUE(std::filesystem::exists(report.backup_path + "/catalog.sqlite"));
  EXPECT_FALSE(exists("catalog.new"));
  expect_restores(conversation, 256);
  // The name of the backup is never taken twice.
  close();
  const RebuildReport again = rebuild_and_open();
  EXPECT_NE(again.backup_path, report.backup_path);
}

TEST_F(StoreRebuild, ADamagedChunkIsQuarantinedAndItsCutsAreReported) {
  const Conversation conversation(768);
  const SaveResult saved = conversation.save_checkpoints(*store_);
  ASSERT_EQ(saved.cuts.size(), 3u);
  const ChunkRef chunk = chunks_of(*store_, saved.cuts[1].manifest_id)[0];
  flip_bit(path_of(*store_, ObjectKind::kChunk, chunk.object_key));
  lose_catalog();
  const RebuildReport report = rebuild_and_open();
  ASSERT_EQ(report.findings.size(), 6u);  // the last three: chunks that no complete cut needs
  EXPECT_EQ(report.findings[0].problem, FsckProblem::kDamagedObject);
  EXPECT_EQ(report.findings[0].id, chunk.object_key);
  EXPECT_TRUE(report.findings[0].repaired);
  EXPECT_EQ(report.findings[1].problem, FsckProblem::kIncompleteCut);
  EXPECT_EQ(report.findings[1].id, saved.cuts[1].manifest_id);
  EXPECT_EQ(report.findings[1].text,
            "a chunk of it is absent, damaged or unreadable: " + chunk.object_key.hex());
  EXPECT_EQ(report.findings[2].problem, FsckProblem::kIncompleteCut);
  EXPECT_EQ(report.findings[2].text,
            "its parent is absent or incomplete: " + saved.cuts[1].manifest_id.hex());
  for (std::size_t i = 3; i < 6; ++i) EXPECT_EQ(report.findings[i].problem, FsckProblem::kOrphanFile);
  expect_restores(conversation, 256);
  // A save heals it, and takes up what was left.
  conversation.save_checkpoints(*store_);
  expect_restores(conversation, 768);
  EXPECT_EQ(fsck(*store_, {.deep = true})->found, 0u);
}

TEST_F(StoreRebuild, ADamagedManifestIsQuarantined) {
  const Conversation first(256), second(256, 2);
  const SaveResult saved = first.save(*store_);
  second.save(*store_);
  flip_bit(path_of(*store_, ObjectKind::kManifest, saved.cuts[0].manifest_id), 4'200);
  lose_catalog();
  const RebuildReport report = rebuild_and_open();
  EXPECT_EQ(report.manifests, 1u);
  ASSERT_EQ(report.found, 3u);  // and two chunks that nothing names
  EXPECT_EQ(report.findings[0].problem, FsckProblem::kDamagedObject);
  EXPECT_TRUE(report.findings[0].repaired);
  EXPECT_EQ(testing::catalog_number(*store_, "SELECT count(*) FROM quarantine"), 1);
  expect_restores(second, 256);
  // What is left over goes with a repair.
  const auto repaired = fsck(*store_, {.repair = true});
  ASSERT_EQ(verdict(repaired), "ok");
  EXPECT_TRUE(repaired->is_sound());
  testing::expect_no_orphans(*store_);
}

TEST_F(StoreRebuild, WrongKeysTouchNothing) {
  Conversation(256).save(*store_);
  lose_catalog();
  const StoreOptions right = f_.options;
  f_.options.keys = test_keys({}, 0x22);
  EXPECT_EQ(verdict(rebuild(f_.options)), "authentication:store belongs to another tenant or key");
  // The right stable root, and a wrong one of the epoch.
  std::vector<EpochRoot> roots;
  roots.push_back({1, testing::test_key(0x33)});
  f_.options.keys = std::make_shared<const KeyRing>(*KeyRing::create({.stable_root = testing::test_key(0x11),
                                                                      .epoch_roots = std::move(roots),
                                                                      .tenant = right.keys->tenant()}));
  EXPECT_EQ(verdict(rebuild(f_.options)), "authentication:store key does not match epoch 1");
  EXPECT_FALSE(exists("catalog"));
  EXPECT_FALSE(exists("catalog.new"));
  f_.options = right;
  EXPECT_EQ(rebuild_and_open().found, 0u);
}

TEST_F(StoreRebuild, NeedsTheLockAndAStore) {
  EXPECT_EQ(verdict(rebuild(f_.options)).substr(0, 34), "busy:store is open elsewhere: pid ");
  close();
  f_.options.root = f_.directory.path() + "/absent";
  EXPECT_EQ(rebuild(f_.options).error().code, ErrorCode::kNotFound);
  std::filesystem::create_directory(f_.options.root);
  std::filesystem::permissions(f_.options.root, std::filesystem::perms::owner_all);
  EXPECT_EQ(rebuild(f_.options).error().code, ErrorCode::kNotFound);
}

TEST_F(StoreRebuild, CanBeCancelledAndLeavesTheOldCatalog) {
  Conversation(256).save(*store_);
  close();
  int calls = 0;
  const RebuildOptions how{.progress = [&](const FsckProgress&) { return ++calls < 2; }};
  EXPECT_EQ(verdict(rebuild(f_.options, how)), "cancelled:operation was cancelled");
  EXPECT_EQ(calls, 2);
  EXPECT_TRUE(exists("catalog"));
  EXPECT_FALSE(exists("catalog.new"));
  store_ = f_.open();
  EXPECT_EQ(status(*store_)->manifests, 1u);
}

TEST_F(StoreRebuild, AnInterruptedSwapIsEndedByTheNextOpening) {
  const Conversation conversation(256);
  conversation.save(*store_);
  close();
  ASSERT_EQ(verdict(rebuild(f_.options)), "ok");
  // As it was between the two renames.
  std::filesystem::rename(f_.options.root + "/catalog", f_.options.root + "/catalog.new");
  store_ = f_.open();
  expect_restores(conversation, 256);
  close();
  // And before it was complete.
  std::filesystem::create_directory(f_.options.root + "/catalog.new");
  std::ofstream(f_.options.root + "/catalog.new/catalog.sqlite") << "half";
  store_ = f_.open();
  EXPECT_FALSE(exists("catalog.new"));
  expect_restores(conversation, 256);
}

TEST_F(StoreRebuild, ReadersFollow) {
  const Conversation conversation(256);
  conversation.save(*store_);
  close();
  auto reader = Store::open_read_only(f_.options);
  ASSERT_EQ(verdict(reader), "ok");
  ASSERT_EQ(verdict(rebuild(f_.options)), "ok");
  const auto hit = find_deepest(**reader, conversation.query());
  ASSERT_EQ(verdict(hit), "ok");
  EXPECT_TRUE(hit->has_value());
}

// --- the swap alone, on a file system that fails and loses power -------------------------------------------

class CatalogSwap : public ::testing::Test {
 protected:
  // A store with its catalog, and a new one as a rebuild has just closed it: nothing of it is durable.
  void SetUp() override {
    files_.put_directory("/store");
    files_.put_directory("/store/catalog");
    files_.put_file("/store/catalog/catalog.sqlite", byte_view("old"));
    root_ = *files_.open_directory("/store", Links::kRefuse);
    ASSERT_EQ(verdict(root_->make_directory("catalog.new")), "ok");
    const auto fresh = *root_->open_directory("catalog.new");
    ASSERT_EQ(verdict(write_all(**fresh->create("catalog.sqlite"), 0, byte_view("new"))), "ok");
  }
  static std::string content(FakeFileSystem& files, const std::string& directory) {
    const auto bytes = read_file_bounded(files, directory + "/catalog.sqlite", 100);
    return bytes.has_value() ? std::string(text_view(*bytes)) : verdict(bytes).substr(0, 9);
  }
  // What an opening finds. @return the catalog's content
  static std::string recovered(FakeFileSystem& files) {
    const auto root = files.open_directory("/store", Links::kRefuse);
    EXPECT_EQ(verdict(root), "ok");
    EXPECT_EQ(verdict(finish_catalog_swap(**root)), "ok");
    EXPECT_EQ((*root)->facts("catalog.new").error().code, ErrorCode::kNotFound);
    return content(files, "/store/catalog");
  }

  FakeFileSystem files_;
  testing::FakeClock clock_;
  std::unique_ptr<Directory> root_;
  const std::string backup_ = "/store/catalog.backup-1800000000";
};

TEST_F(CatalogSwap, KeepsTheOldCatalog) {
  const auto backup = swap_in_new_catalog(*root_, clock_);
  ASSERT_EQ(verdict(backup), "ok");
  EXPECT_EQ(*backup, backup_);
  EXPECT_EQ(content(files_, "/store/catalog"), "new");
  EXPECT_EQ(content(files_, backup_), "old");
  EXPECT_EQ(recovered(files_), "new");
}

TEST_F(CatalogSwap, AFailingOperationLeavesTheOldCatalogOrTheNewOne) {
  bool succeeded = false;
  for (std::size_t k = 0; !succeeded; ++k) {
    ASSERT_LT(k, 100u);
    files_ = FakeFileSystem();
    SetUp();
    files_.fail_operation(k, EIO);
    const auto backup = swap_in_new_catalog(*root_, clock_);
    files_.clear_faults();
    succeeded = backup.has_value();
    const std::string found = recovered(files_);
    EXPECT_TRUE(found == "new" || (!succeeded && found == "old")) << k << ": " << found;
  }
}

TEST_F(CatalogSwap, APowerCutLeavesTheOldCatalogOrTheNewOne) {
  std::map<std::string, int> seen;
  const auto cut = [&] {
    files_.each_power_cut(512, [&](FakeFileSystem& image) {
      const std::string found = recovered(image);
      ++seen[found];
      // The last rename may lose both names. Then there is still what it was made from, and the backup.
      if (found == "not_found") {
        EXPECT_EQ(content(image, backup_), "old");
      } else {
        EXPECT_TRUE(found == "old" || found == "new") << found;
      }
    });
  };
  files_.before_operation([&](const testing::Operation&) { cut(); });
  ASSERT_EQ(verdict(swap_in_new_catalog(*root_, clock_)), "ok");
  files_.before_operation({});
  EXPECT_GT(seen["old"], 0);
  EXPECT_GT(seen["new"], 0);
  seen.clear();
  cut();
  EXPECT_EQ(seen.size(), 1u);
  EXPECT_GT(seen["new"], 0);
}

}  // namespace rebuild_test
}  // namespace
}  // namespace kvpack
