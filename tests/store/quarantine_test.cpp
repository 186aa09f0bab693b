#include "store/quarantine.h"

#include <gtest/gtest.h>

#include "kvpack/store/status.h"
#include "kvpack/store/upkeep.h"
#include "store/quota_share.h"
#include "support/planted_store.h"
#include "support/verdict.h"

namespace kvpack {
namespace {
namespace quarantine_test {

using namespace store;
using testing::catalog_number;
using testing::FakeStoreFixture;
using testing::planted_id;
using testing::Planter;

constexpr std::uint64_t kDayMs = 24 * 3'600'000;

std::string quarantine_path(const FakeStoreFixture& f) {
  return f.options.root + "/objects/quarantine";
}

// An entry with its file, as recovery would have made it.
void add_entry(FakeStoreFixture& f, Store& store, const std::string& token, std::uint64_t bytes) {
  f.files.put_file(quarantine_path(f) + "/" + token, Bytes(static_cast<std::size_t>(bytes)));
  Planter(store).run([&](sqlite::Database& db) {
    return insert_quarantine_entry(store.context(), db,
                                   {.path_token = token,
                                    .kind = QuarantineKind::kRestartPartial,
                                    .file_bytes = bytes,
                                    .reason = "partial recovered during restart"});
  });
}

TEST(StoreQuarantine, SharesOfAQuotaAreExact) {
  EXPECT_EQ(quota_share(1'999, 10), 19u);
  EXPECT_EQ(quota_share(99, 10), 0u);
  EXPECT_EQ(quota_share(1'000'000, 10), 10'000u);
  const std::uint64_t largest = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(quota_share(largest, 1'000), largest);
  EXPECT_TRUE(reaches_share(850, 1'000, 850));
  EXPECT_FALSE(reaches_share(849, 1'000, 850));
  EXPECT_FALSE(reaches_share(850, 1'001, 850));  // of which 850 are a little less
  EXPECT_TRUE(reaches_share(851, 1'001, 850));
  EXPECT_TRUE(reaches_share(largest, largest, 1'000));
}

// Scenario 18 of the store's acceptance list.
TEST(StoreQuarantine, OneReservationPrunesOneRound) {
  FakeStoreFixture f;
  f.options.quota_bytes = 1'000'000;
  const auto store = f.create();
  for (int n = 0; n < 1'025; ++n) add_entry(f, *store, std::to_string(n), 20'000);
  EXPECT_EQ(testing::verdict(enforce_quarantine(store->context())),
            "quota:quarantine capacity requires bounded maintenance");
  EXPECT_EQ(catalog_number(*store, "SELECT quarantine_bytes FROM store"), 20'000);
  EXPECT_EQ(f.files.names(quarantine_path(f)), std::vector<std::string>{"1024"});
  // Maintenance does not stop there.
  ASSERT_TRUE(maintain(*store).has_value());
  EXPECT_EQ(catalog_number(*store, "SELECT quarantine_bytes FROM store"), 0);
  EXPECT_EQ(testing::verdict(enforce_quarantine(store->context())), "ok");
  testing::expect_sound(*store);
}

TEST(StoreQuarantine, MaintenanceAndOpeningPruneAllRounds) {
  FakeStoreFixture f;
  f.options.quota_bytes = 1'000'000;
  {
    const auto store = f.create();
    for (int n = 0; n < 2'500; ++n) add_entry(f, *store, std::to_string(n), 20'000);
  }
  const auto store = f.open();
  EXPECT_EQ(catalog_number(*store, "SELECT count(*) FROM quarantine"), 0);
  EXPECT_TRUE(f.files.names(quarantine_path(f)).empty());
}

TEST(StoreQuarantine, TheOldestGoWhenTheCapIsExceeded) {
  FakeStoreFixture f;
  f.options.quota_bytes = 1'000'000;
  const auto store = f.create();
  for (int n = 0; n < 4; ++n) {
    add_entry(f, *store, std::to_string(n), 3'000);
    f.clock.advance_ms(1);
  }
  ASSERT_TRUE(prune_quarantine(store->context()).has_value());
  EXPECT_EQ(f.files.names(quarantine_path(f)), (std::vector<std::string>{"1", "2", "3"}));
  f.clock.advance_ms(kDayMs - 2);
  ASSERT_TRUE(prune_quarantine(store->context()).has_value());
  EXPECT_EQ(f.files.names(quarantine_path(f)), (std::vector<std::string>{"3"}));
}

TEST(StoreQuarantine, AnEntryWhoseFileIsGoneOrHasNoNameGoesToo) {
  FakeStoreFixture f;
  const auto store = f.create();
  Planter(*store).run([&](sqlite::Database& db) -> Status {
    for (const std::string token : {"absent", "../escape", "..", ""})
      KVPACK_TRY(insert_quarantine_entry(store->context(), db, {.path_token = token, .file_bytes = 7}));
    return success();
  });
  f.files.put_file(f.options.root + "/objects/escape", {});
  f.clock.advance_ms(kDayMs);
  ASSERT_TRUE(prune_quarantine(store->context()).has_value());
  EXPECT_EQ(catalog_number(*store, "SELECT quarantine_bytes FROM store"), 0);
  EXPECT_TRUE(f.files.file(f.options.root + "/objects/escape").has_value());
}

TEST(StoreQuarantine, AFileIsMovedAndEntered) {
  FakeStoreFixture f;
  const auto store = f.create();
  StoreContext& context = store->context();
  f.files.put_file(f.options.root + "/objects/partials/loser", Bytes(100, std::uint8_t{1}));
  ASSERT_TRUE(quarantine_file(context, context.files.partials(), "loser", QuarantineKind::kDuplicateChunk,
                              planted_id(1), "conflicting chunk publication")
                  .has_value());
  EXPECT_TRUE(f.files.names(f.options.root + "/objects/partials").empty());
  const auto listed = quarantined_files(*store, 10);
  ASSERT_TRUE(listed.has_value());
  ASSERT_EQ(listed->size(), 1u);
  const QuarantinedFile& file = (*listed)[0];
  EXPECT_EQ(f.files.file(file.path), Bytes(100, std::uint8_t{1}));
  EXPECT_EQ(file.kind, "duplicate_chunk");
  EXPECT_EQ(file.object, planted_id(1));
  EXPECT_EQ(file.file_bytes, 100u);
  EXPECT_EQ(file.created_ns, context.now_ns());
  EXPECT_EQ(file.expires_ns, context.now_ns() + kDayMs * 1'000'000);
  EXPECT_EQ(file.reason, "conflicting chunk publication");
  EXPECT_TRUE(quarantined_files(*store, 0)->empty());
}

TEST(StoreQuarantine, FilesAreGroupedByKindAndReason) {
  FakeStoreFixture f;
  const auto store = f.create();
  EXPECT_TRUE(quarantine_groups(*store, 10)->empty());
  StoreContext& context = store->context();
  const std::uint64_t first = context.now_ns();
  add_entry(f, *store, "a", 300);
  f.clock.advance_ms(5);
  add_entry(f, *store, "b", 400);
  Planter(*store).run([&](sqlite::Database& db) {
    return insert_quarantine_entry(
        context, db,
        {.path_token = "c", .kind = QuarantineKind::kRestartPartial, .file_bytes = 9, .reason = "another"});
  });
  for (const bool as_reader : {false, true}) {
    const auto reader = Store::open_read_only(f.options);
    ASSERT_TRUE(reader.has_value());
    const auto groups = quarantine_groups(as_reader ? **reader : *store, 10);
    ASSERT_TRUE(groups.has_value());
    ASSERT_EQ(groups->size(), 2u);
    const QuarantineGroup& most = (*groups)[0];
    EXPECT_EQ(most.kind, "restart_partial");
    EXPECT_EQ(most.reason, "partial recovered during restart");
    EXPECT_EQ(most.files, 2u);
    EXPECT_EQ(most.file_bytes, 700u);
    EXPECT_EQ(most.newest_ns, first + 5'000'000);
    EXPECT_EQ(most.next_expiry_ns, first + kDayMs * 1'000'000);
    EXPECT_EQ((*groups)[1].reason, "another");
    EXPECT_EQ((*groups)[1].files, 1u);
  }
  EXPECT_EQ(quarantine_groups(*store, 1)->size(), 1u);
}

TEST(StoreQuarantine, OnlyRegularFilesAreTaken) {
  FakeStoreFixture f;
  const auto store = f.create();
  StoreContext& context = store->context();
  const std::string partials = f.options.root + "/objects/partials";
  f.files.put_file(partials + "/link", {}, 0600, FileKind::kSymbolicLink);
  const auto take = [&](const std::string& name) {
    return testing::verdict(quarantine_file(context, context.files.partials(), name,
                                            QuarantineKind::kDuplicateChunk, std::nullopt, "text"));
  };
  EXPECT_EQ(take("link"), "state:quarantine takes regular files: " + partials + "/link");
  EXPECT_EQ(take("absent").substr(0, 10), "not_found:");
  EXPECT_EQ(f.files.names(partials).size(), 1u);
  EXPECT_TRUE(f.files.names(quarantine_path(f)).empty());
}

TEST(StoreQuarantine, AfterAnyFailureNothingIsLostOrCountedTwice) {
  for (std::size_t k = 0;; ++k) {
    FakeStoreFixture f;
    std::size_t before = 0;
    bool moved = false;
    {
      const auto store = f.create();
      StoreContext& context = store->context();
      f.files.put_file(f.options.root + "/objects/partials/0.partial", Bytes(100, std::uint8_t{1}));
      f.files.fail_operation(k, EIO);
      before = f.files.operation_count();
      moved = quarantine_file(context, context.files.partials(), "0.partial", QuarantineKind::kDuplicateChunk,
                              std::nullopt, "text")
                  .has_value();
      f.files.clear_faults();
    }
    const bool reached = f.files.operation_count() - before > k;
    const auto store = f.open();
    testing::expect_sound(*store);
    EXPECT_EQ(catalog_number(*store, "SELECT quarantine_bytes FROM store"), 100) << k;
    EXPECT_EQ(catalog_number(*store, "SELECT count(*) FROM quarantine"), 1) << k;
    EXPECT_EQ(f.files.names(quarantine_path(f)).size(), 1u) << k;
    if (moved || ::testing::Test::HasFailure() || !reached) break;
  }
}

}  // namespace quarantine_test
}  // namespace
}  // namespace kvpack
