// Repairs and rebuilds in which one call of the file system fails: what is healthy stays, and the next one
// succeeds.
#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>

#include "kvpack/store/fsck.h"
#include "support/failing_fs.h"
#include "support/planted_store.h"
#include "support/saved_cuts.h"

namespace kvpack::store_repair_faults_test {
namespace {

using store::ObjectKind;
using testing::catalog_number;
using testing::chunks_of;
using testing::Conversation;
using testing::expect_no_orphans;
using testing::expect_sound;
using testing::FailingFileSystem;
using testing::FakeStoreFixture;
using testing::flip_bit;
using testing::MemorySink;
using testing::path_of;
using testing::planted_id;
using testing::StoreFixture;
using testing::TempDirectory;
using testing::verdict;

// EIO and ENOSPC by turns.
int error_of(std::size_t k) {
  return k % 2 == 0 ? EIO : ENOSPC;
}

bool is_found(Store& store, const Conversation& conversation) {
  const auto hit = find_deepest(store, conversation.query());
  EXPECT_EQ(verdict(hit), "ok");
  return hit.has_value() && hit->has_value() && (*hit)->suffix_tokens == 0;
}

void expect_whole(Store& store, const Conversation& conversation) {
  MemorySink sink;
  const auto restored = restore_deepest(store, conversation.query(), sink);
  ASSERT_EQ(verdict(restored), "ok");
  EXPECT_TRUE(restored->faults.empty());
  EXPECT_EQ(restored->suffix_tokens, 0u);
  EXPECT_TRUE(sink.live == conversation.planes());
}

// The first chunk of the deepest cut.
std::string chunk_path(Store& store, const SaveResult& saved) {
  return path_of(store, ObjectKind::kChunk, chunks_of(store, saved.head().manifest_id)[0].object_key);
}

// A store with something of everything that a repair deals with, beside two cuts that are healthy.
class BrokenStore {
 public:
  BrokenStore() {
    store_ = f_.create();
    healthy_.save_checkpoints(*store_);
    flip(chunk_path(*store_, damaged_.save(*store_)));
    f_.files.remove(chunk_path(*store_, incomplete_.save(*store_)));
    const Id32 cut = gone_.save(*store_).head().manifest_id;
    flip(path_of(*store_, ObjectKind::kManifest, cut));
    testing::Planter plant(*store_);
    plant.put_file(ObjectKind::kChunk, planted_id(1), 8'192);
    plant.put_file(ObjectKind::kManifest, planted_id(2), 8'704);
    plant.run([](sqlite::Database& db) { return db.run("UPDATE store SET durable_bytes = 1"); });
  }

  Result<FsckReport> repair() { return fsck(*store_, {.deep = true, .repair = true}); }
  void expect_healthy_cut() { expect_whole(*store_, healthy_); }
  void expect_repaired() {
    const auto report = repair();
    ASSERT_EQ(verdict(report), "ok");
    EXPECT_TRUE(report->is_sound());
    const auto checked = fsck(*store_, {.deep = true});
    ASSERT_EQ(verdict(checked), "ok");
    EXPECT_EQ(checked->found, 0u);
    expect_sound(*store_);
    expect_no_orphans(*store_);
    expect_healthy_cut();
    for (const Conversation* lost : {&damaged_, &incomplete_, &gone_}) EXPECT_FALSE(is_found(*store_, *lost));
    EXPECT_EQ(catalog_number(*store_, "SELECT manifests FROM store"), 2);
  }
  void reopen() {
    store_.reset();
    store_ = f_.open();
  }

  FakeStoreFixture f_;

 private:
  void flip(const std::string& path) {
    Bytes bytes = *f_.files.file(path);
    bytes[bytes.size() / 2] ^= 1;
    f_.files.remove(path);
    f_.files.put_file(path, bytes);
  }

  Conversation healthy_{512, 1};
  Conversation damaged_{256, 2};
  Conversation incomplete_{256, 3};
  Conversation gone_{256, 4};
  std::unique_ptr<Store> store_;
};

TEST(StoreRepairFaults, ARepairThatFailsAnywhereKeepsWhatIsHealthyAndTheNextOneEndsIt) {
  std::size_t failed = 0;
  std::size_t k = 0;
  for (bool reached = true; reached; ++k) {
    BrokenStore broken;
    broken.f_.files.fail_operation(k, error_of(k));
    const std::size_t before = broken.f_.files.operation_count();
    const auto report = broken.repair();
    reached = broken.f_.files.operation_count() - before > k;
    broken.f_.files.clear_faults();
    if (!report.has_value()) {
      ++failed;
      EXPECT_EQ(report.error().code, ErrorCode::kIo) << report.error().verdict();
    }
    broken.expect_healthy_cut();
    if (k % 3 == 0) broken.reopen();
    broken.expect_repaired();
    if (::testing::Test::HasFailure()) FAIL() << "operation " << k;
  }
  EXPECT_GT(k, 100u);
  EXPECT_GT(failed, 5u);
  EXPECT_LT(failed, k);
}

// A store whose catalog is to be made again. Each attempt works on a copy.
class LostStore {
 public:
  explicit LostStore(bool keep_old_catalog)
      : place_(std::filesystem::is_directory("/dev/shm") ? "/dev/shm"
                                                         : std::filesystem::temp_directory_path()) {
    f_.options.root = place_.path("original");
    f_.options.file_system = &files_;
    {
      const auto store = f_.create();
      healthy_.save_checkpoints(*store);
      const std::string path = chunk_path(*store, damaged_.save(*store));
      flip_bit(path);
      damaged_path_ = std::filesystem::relative(path, f_.options.root).string();
    }
    if (!keep_old_catalog) std::filesystem::remove_all(f_.options.root + "/catalog");
  }

  void begin() {
    f_.options.root = place_.path("attempt");
    std::filesystem::remove_all(f_.options.root);
    std::filesystem::copy(place_.path("original"), f_.options.root, std::filesystem::copy_options::recursive);
  }
  Result<RebuildReport> attempt() { return rebuild(f_.options); }

  // Whatever has happened, no healthy object has gone.
  void expect_objects() {
    const std::filesystem::path original = place_.path("original");
    for (const auto& entry : std::filesystem::recursive_directory_iterator(original / "objects")) {
      const auto name = std::filesystem::relative(entry.path(), original);
      if (!entry.is_regular_file() || name == damaged_path_) continue;
      EXPECT_TRUE(std::filesystem::exists(f_.options.root / name)) << name;
    }
  }
  // The old catalog, or the new one, or none: then another rebuild is asked for.
  void expect_catalog() {
    const auto store = Store::open(f_.options);
    if (store.has_value()) {
      // A file that was moved as damaged is missing in the old one, as it would be were it removed.
      const auto violations = store::violated_invariants((*store)->context());
      EXPECT_TRUE(violations.has_value() && violations->empty());
      if (is_found(**store, healthy_)) expect_whole(**store, healthy_);
      return;
    }
    EXPECT_EQ(store.error().verdict(),
              "state:catalog is missing, rebuild it: " + f_.options.root + "/catalog/catalog.sqlite");
  }
  void expect_rebuilt() {
    const auto report = attempt();
    ASSERT_EQ(verdict(report), "ok");
    EXPECT_EQ(report->manifests, 2u);
    const auto store = f_.open();
    ASSERT_NE(store, nullptr);
    expect_sound(*store);
    expect_whole(*store, healthy_);
    EXPECT_FALSE(is_found(*store, damaged_));
  }

  FailingFileSystem& files() { return files_; }

 private:
  SystemFileSystem system_;
  FailingFileSystem files_{system_};
  TempDirectory place_;
  StoreFixture f_;
  Conversation healthy_{512, 1};
  Conversation damaged_{256, 2};
  std::filesystem::path damaged_path_;
};

TEST(StoreRepairFaults, ARebuildThatFailsAnywhereLosesNothingAndTheNextOneEndsIt) {
  for (const bool keep_old_catalog : {true, false}) {
    LostStore lost(keep_old_catalog);
    std::size_t failed = 0;
    std::size_t k = 0;
    for (bool reached = true; reached; ++k) {
      lost.begin();
      lost.files().fail_call(k, error_of(k));
      const auto report = lost.attempt();
      reached = lost.files().stop();
      failed += report.has_value() ? 0 : 1;
      lost.expect_objects();
      if (k % 2 == 0) lost.expect_catalog();
      lost.expect_rebuilt();
      if (::testing::Test::HasFailure())
        FAIL() << "call " << k << (report.has_value() ? "" : ": " + Error(report.error()).verdict());
    }
    EXPECT_GT(k, 100u);
    EXPECT_GT(failed, 20u);
    EXPECT_LT(failed, k);
  }
}

}  // namespace
}  // namespace kvpack::store_repair_faults_test
