// Saves that fail or are killed at any file operation: what was there stays, and the save can be repeated,
// under the same key or another one.
#include <cerrno>
#include <filesystem>

#include "kvpack/store/save.h"
#include "kvpack/store/upkeep.h"
#include "support/planted_store.h"
#include "support/saves.h"

namespace kvpack::store_save_faults_test {
namespace {

using testing::catalog_number;
using testing::expect_no_orphans;
using testing::expect_restores;
using testing::expect_saved;
using testing::expect_sound;
using testing::FakeFileSystem;
using testing::FakeStoreFixture;
using testing::SavableInput;
using testing::save_family;
using testing::save_key;
using testing::small_family;
using testing::verdict_of;

/// A save of something new on top of what is stored: an export, or a delta.
struct Attempt {
  SaveKind kind = SaveKind::kCutExport;
  bool encrypt = true;
  bool unnamed_files = true;
};

constexpr std::array kAttempts{
    Attempt{SaveKind::kCutExport, true, true}, Attempt{SaveKind::kCutExport, true, false},
    Attempt{SaveKind::kSingleCut, true, true}, Attempt{SaveKind::kSingleCut, false, false}};

/// The key of the first try, or another one: for each operation some attempts take this one, some that.
std::uint8_t retry_key(const Attempt& attempt, std::size_t k) {
  return static_cast<std::uint8_t>(1 + (k + static_cast<std::size_t>(&attempt - kAttempts.data())) % 2);
}

class Scene {
 public:
  explicit Scene(const Attempt& attempt)
      : attempt_(attempt), base_(small_family(), 300), input_(small_family(), 700) {
    f_.files.support_unnamed_files(attempt.unnamed_files);
    store_ = f_.create();
    SaveRequest request = base_.request(attempt.kind);
    request.encrypt = attempt.encrypt;
    saved_ = expect_saved(*store_, request, base_.planes());
  }

  SaveRequest request(std::uint8_t key) const {
    SaveRequest request = input_.request(attempt_.kind);
    request.encrypt = attempt_.encrypt;
    request.idempotency_key = save_key(key);
    request.parallelism = 1;  // so that the operations come in one order
    if (attempt_.kind == SaveKind::kSingleCut) request.parent = saved_.head().manifest_id;
    return request;
  }
  Result<SaveResult> attempt(std::uint8_t key) { return save(*store_, request(key), input_.planes()); }

  /// What was saved before is there, and nothing contradicts itself.
  void expect_old_cuts() {
    for (const PublishedCut& cut : saved_.cuts) expect_restores(*store_, base_, cut);
    expect_sound(*store_);
  }
  /// The save succeeds now, and afterwards nothing is left of the attempts before.
  void expect_repeated(std::uint8_t key) {
    const auto result = attempt(key);
    ASSERT_TRUE(result.has_value()) << result.error().verdict();
    for (const PublishedCut& cut : result->cuts) expect_restores(*store_, input_, cut);
    expect_old_cuts();
    // An abort that failed too is repeated by maintenance, when its session is given up.
    f_.clock.advance_ms(16 * 60'000);
    ASSERT_EQ(verdict_of(maintain(*store_)), "success");
    EXPECT_EQ(catalog_number(*store_, "SELECT count(*) FROM upload_objects"), 0);
    EXPECT_EQ(catalog_number(*store_, "SELECT reserved_bytes FROM store"), 0);
    expect_sound(*store_);
    expect_no_orphans(*store_);
    EXPECT_TRUE(f_.faults.empty());
  }

  FakeStoreFixture f_;
  std::unique_ptr<Store> store_;

 private:
  Attempt attempt_;
  SavableInput base_;
  SavableInput input_;
  SaveResult saved_;
};

TEST(StoreSaveFaults, AnyFailingOperationLeavesTheOldCutsAndTheSaveCanBeRepeated) {
  for (const Attempt& attempt : kAttempts) {
    bool failed_once = false;
    for (std::size_t k = 0;; ++k) {
      Scene scene(attempt);
      scene.f_.files.fail_operation(k, k % 2 == 0 ? EIO : ENOSPC);
      const std::size_t before = scene.f_.files.operation_count();
      const auto result = scene.attempt(1);
      const bool reached = scene.f_.files.operation_count() - before > k;
      scene.f_.files.clear_faults();
      if (!result.has_value()) {
        failed_once = true;
        EXPECT_TRUE(result.error().code == ErrorCode::kIo || result.error().code == ErrorCode::kState)
            << k << " " << result.error().verdict();
        scene.expect_old_cuts();
      }
      scene.expect_repeated(retry_key(attempt, k));
      if (::testing::Test::HasFailure()) FAIL() << "operation " << k;
      if (!reached) break;
    }
    EXPECT_TRUE(failed_once);
  }
}

TEST(StoreSaveFaults, AKillBeforeAnyOperationLeavesTheOldCutsAndTheSaveCanBeRepeated) {
  for (const Attempt& attempt : kAttempts) {
    for (std::size_t k = 0;; ++k) {
      Scene scene(attempt);
      const std::string catalog = scene.f_.options.root + "/catalog";
      const std::string copy = scene.f_.options.root + "-copy";
      std::optional<FakeFileSystem> killed;
      std::size_t count = 0;
      scene.f_.files.before_operation([&](const testing::Operation&) {
        if (count++ != k) return;
        killed.emplace(scene.f_.files.after_kill());
        std::filesystem::copy(catalog, copy, std::filesystem::copy_options::recursive);
      });
      ASSERT_EQ(verdict_of(scene.attempt(1)), "success");
      if (!killed) break;
      scene.f_.files.before_operation(nullptr);
      scene.store_.reset();
      std::filesystem::remove_all(catalog);
      std::filesystem::rename(copy, catalog);
      killed->support_unnamed_files(attempt.unnamed_files);
      scene.f_.options.file_system = &*killed;
      scene.store_ = scene.f_.open();
      ASSERT_NE(scene.store_, nullptr);
      scene.expect_old_cuts();
      EXPECT_EQ(catalog_number(*scene.store_, "SELECT reserved_bytes FROM store"), 0);
      EXPECT_TRUE(killed->names(scene.f_.options.root + "/objects/partials").empty());
      scene.expect_repeated(retry_key(attempt, k));
      scene.store_.reset();  // before its file system
      if (::testing::Test::HasFailure()) FAIL() << "operation " << k;
    }
  }
}

TEST(StoreSaveFaults, AReplayThatFailsAnywhereChangesNothingAndCanBeRepeated) {
  for (const Attempt& attempt : kAttempts) {
    Scene scene(attempt);
    const auto first = scene.attempt(1);
    ASSERT_TRUE(first.has_value()) << first.error().verdict();
    for (std::size_t k = 0;; ++k) {
      scene.f_.files.fail_operation(k, EIO);
      const std::size_t before = scene.f_.files.operation_count();
      const auto again = scene.attempt(1);
      const bool reached = scene.f_.files.operation_count() - before > k;
      scene.f_.files.clear_faults();
      if (again.has_value()) {
        EXPECT_TRUE(again->replayed);
        EXPECT_EQ(again->cuts, first->cuts);
      } else {
        EXPECT_EQ(again.error().code, ErrorCode::kIo) << k << " " << again.error().verdict();
      }
      scene.expect_old_cuts();
      if (!reached) break;
    }
    scene.expect_repeated(1);
  }
}

TEST(StoreSaveFaults, ADiskThatStaysFullRefusesAndAcceptsAgainWhenThereIsRoom) {
  Scene scene({});
  scene.f_.files.fail_verb("preallocate", ENOSPC);
  for (int i = 0; i < 3; ++i) {
    const auto result = scene.attempt(1);
    ASSERT_FALSE(result.has_value());
    EXPECT_EQ(result.error().code, ErrorCode::kIo);
    EXPECT_TRUE(store::is_no_space(result.error()));
    scene.expect_old_cuts();
  }
  scene.f_.files.fail_verb("preallocate", 0);
  scene.expect_repeated(1);
}

}  // namespace
}  // namespace kvpack::store_save_faults_test
