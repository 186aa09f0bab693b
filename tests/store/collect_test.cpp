#include "store/collect.h"

#include <gtest/gtest.h>

#include "kvpack/store/upkeep.h"
#include "store/disk_reserve.h"
#include "store/maintain.h"
#include "support/planted_store.h"
#include "support/verdict.h"

namespace kvpack {
namespace {
namespace collect_test {

using namespace store;
using testing::catalog_number;
using testing::expect_no_orphans;
using testing::expect_sound;
using testing::FakeStoreFixture;
using testing::has_file;
using testing::has_row;
using testing::planted_id;
using testing::Planter;
using testing::state_of;

constexpr std::uint64_t kChunkBytes = 8'192;
constexpr std::uint64_t kCutBytes = 8'704;
constexpr std::uint64_t kHourMs = 3'600'000;

class StoreCollect : public ::testing::Test {
 protected:
  void SetUp() override {
    store_ = f_.create();
    plant_.emplace(*store_);
  }
  void TearDown() override {
    if (store_ == nullptr) return;
    // A test's hook does not outlive its variables.
    context().catalog->on_commit(nullptr);
    expect_sound(*store_);
    expect_no_orphans(*store_);
  }

  StoreContext& context() { return store_->context(); }
  std::string path(ObjectKind kind, const Id32& id) { return context().files.object_path(kind, id); }
  // Makes a quota of which what is stored is that share.
  void set_use(std::uint32_t thousandths) {
    const auto used = static_cast<std::uint64_t>(catalog_number(*store_, "SELECT durable_bytes FROM store"));
    context().options.quota_bytes = used * 1'000 / thousandths;
  }
  Removal evicted(std::uint64_t bytes) {
    auto removal = evict_least_recent(context(), bytes);
    EXPECT_TRUE(removal.has_value()) << removal.error().verdict();
    return removal.has_value() ? *std::move(removal) : Removal{};
  }
  MaintenanceReport collected() {
    const auto report = collect(*store_);
    EXPECT_TRUE(report.has_value()) << report.error().verdict();
    return report.has_value() ? *report : MaintenanceReport{};
  }
  MaintenanceReport made_room(std::uint64_t head_room, std::uint64_t operations = kRoomOperations) {
    const auto report = make_room(context(), head_room, operations);
    EXPECT_TRUE(report.has_value()) << report.error().verdict();
    return report.has_value() ? *report : MaintenanceReport{};
  }

  FakeStoreFixture f_;
  std::unique_ptr<Store> store_;
  std::optional<Planter> plant_;
};

// --- what goes first -----------------------------------------------------------------------------------

TEST_F(StoreCollect, TheLeastRecentlyUsedCutGoesFirst) {
  const Id32 second = plant_->cut({.access_ns = 20});
  const Id32 first = plant_->cut({.access_ns = 10});
  const Id32 third = plant_->cut({.access_ns = 30});
  EXPECT_EQ(evicted(1).manifests, 1u);
  EXPECT_FALSE(has_row(*store_, first));
  EXPECT_FALSE(has_file(*store_, ObjectKind::kManifest, first));
  EXPECT_EQ(evicted(1).bytes, kCutBytes);
  EXPECT_FALSE(has_row(*store_, second));
  EXPECT_TRUE(has_row(*store_, third));
}

TEST_F(StoreCollect, AsManyGoAsFreeTheBytes) {
  const Id32 shared = plant_->chunk();
  for (std::uint64_t n = 0; n < 4; ++n)
    plant_->cut({.chunks = {shared, plant_->chunk()}, .access_ns = 10 + n});
  // Two cuts free themselves and one chunk each; the shared one stays as long as anybody names it.
  EXPECT_EQ(evicted(2 * (kCutBytes + kChunkBytes)).manifests, 2u);
  EXPECT_EQ(evicted(2 * (kCutBytes + kChunkBytes) + 1).manifests, 2u);
  EXPECT_EQ(collected().chunks_collected, 5u);
}

TEST_F(StoreCollect, WhatThisProcessHasUsedCounts) {
  const Id32 used = plant_->cut({.access_ns = 10});
  const Id32 unused = plant_->cut({.access_ns = 20});
  context().accesses.note(used, 30);
  set_use(900);
  made_room(0);
  EXPECT_TRUE(has_row(*store_, used));
  EXPECT_FALSE(has_row(*store_, unused));
}

TEST_F(StoreCollect, WhatAReaderHasUsedIsKnownByTheTimeOfItsFile) {
  const Id32 used = plant_->cut({.access_ns = 10});
  const Id32 between = plant_->cut({.access_ns = 20});
  const Id32 last = plant_->cut({.access_ns = std::uint64_t{5'000'000'000'000}});
  const auto shard = context().files.manifests().open_directory(shard_name(used));
  ASSERT_TRUE((*shard)->mark_accessed(object_file_name(ObjectKind::kManifest, used)).has_value());
  evicted(1);
  EXPECT_FALSE(has_row(*store_, between));
  EXPECT_TRUE(has_row(*store_, used));
  // It has moved to its place, and is written there.
  EXPECT_GT(catalog_number(*store_, "SELECT access_ns FROM manifests WHERE manifest_id = ?", used), 20);
  evicted(1);
  EXPECT_FALSE(has_row(*store_, used));
  EXPECT_TRUE(has_row(*store_, last));
}

TEST_F(StoreCollect, AReadersTimeInTheFutureIsNow) {
  const Id32 touched = plant_->cut({.access_ns = 10});
  const std::uint64_t now = context().now_ns();
  plant_->cut({.access_ns = now + 1});
  f_.files.set_access_time(path(ObjectKind::kManifest, touched), std::numeric_limits<std::int64_t>::max());
  evicted(1);
  EXPECT_FALSE(has_row(*store_, touched));
}

TEST_F(StoreCollect, TheEndOfAChainGoesFirst) {
  const Id32 base = plant_->cut({.access_ns = 1});
  const Id32 middle = plant_->cut({.parent = base, .access_ns = 2});
  const Id32 tip = plant_->cut({.parent = middle, .access_ns = 3});
  const Id32 other = plant_->cut({.access_ns = 100});
  EXPECT_EQ(evicted(1).manifests, 1u);
  EXPECT_FALSE(has_row(*store_, tip));
  evicted(1);
  EXPECT_FALSE(has_row(*store_, middle));
  evicted(1);
  EXPECT_FALSE(has_row(*store_, base));
  EXPECT_TRUE(has_row(*store_, other));
}

TEST_F(StoreCollect, ExpiredCutsAreCollectedAndNoOthers) {
  const std::uint64_t now = context().now_ns();
  const Id32 expired = plant_->cut({.chunks = {plant_->chunk()}, .expires_ns = now});
  const Id32 later = plant_->cut({.expires_ns = now + 1'000'000});
  const Id32 never = plant_->cut({.access_ns = 1});
  const MaintenanceReport report = collected();
  EXPECT_EQ(report.manifests_evicted, 1u);
  EXPECT_EQ(report.chunks_collected, 1u);
  EXPECT_EQ(report.bytes_freed, kCutBytes + kChunkBytes);
  EXPECT_EQ(report.before_bytes - report.after_bytes, report.bytes_freed);
  EXPECT_FALSE(has_row(*store_, expired));
  f_.clock.advance_ms(1);
  collected();
  EXPECT_FALSE(has_row(*store_, later));
  EXPECT_TRUE(has_row(*store_, never));
}

TEST_F(StoreCollect, AnExpiredCutWaitsForWhatStandsOnIt) {
  const std::uint64_t now = context().now_ns();
  const Id32 base = plant_->cut({.expires_ns = now});
  const Id32 delta = plant_->cut({.parent = base, .expires_ns = now + 1'000'000});
  collected();
  EXPECT_EQ(state_of(*store_, base), 1);
  f_.clock.advance_ms(1);
  collected();
  EXPECT_FALSE(has_row(*store_, base));
  EXPECT_FALSE(has_row(*store_, delta));
}

TEST_F(StoreCollect, DamagedCutsGoFromTheirEnds) {
  Id32 parent = plant_->cut({.chunks = {plant_->chunk()}});
  for (int depth = 1; depth < 8; ++depth)
    parent = plant_->cut({.parent = parent, .chunks = {plant_->chunk()}});
  plant_->run([](sqlite::Database& db) -> Status {
    KVPACK_TRY(db.run("DELETE FROM prefixes"));
    KVPACK_TRY(db.run("UPDATE chunks SET state = 3 WHERE chunk = 1"));
    return db.run("UPDATE manifests SET state = 3");
  });
  const MaintenanceReport report = collected();
  EXPECT_EQ(report.manifests_evicted, 8u);
  EXPECT_EQ(report.chunks_collected, 8u);
  EXPECT_EQ(catalog_number(*store_, "SELECT durable_bytes FROM store"), 0);
}

// --- what does not go ----------------------------------------------------------------------------------

TEST_F(StoreCollect, APinnedCutStaysVisible) {
  const Id32 cut = plant_->cut({.chunks = {plant_->chunk()}, .expires_ns = 1});
  const Id32 read = plant_->cut({.access_ns = 1});
  {
    const auto pin = context().pins.pin(cut);
    Pins reader;
    const auto file = reader.pin_file(context().files.pins(), read);
    EXPECT_EQ(collected().manifests_evicted, 0u);
    EXPECT_FALSE(evicted(1).has_progressed());
    EXPECT_EQ(state_of(*store_, cut), 1);
    EXPECT_EQ(state_of(*store_, read), 1);
  }
  EXPECT_EQ(collected().manifests_evicted, 1u);
  EXPECT_EQ(evicted(1).manifests, 1u);
}

TEST_F(StoreCollect, APinThatComesBeforeTheRemovalKeepsTheFiles) {
  const Id32 cut = plant_->cut({.chunks = {plant_->chunk()}, .expires_ns = 1});
  std::optional<Pins::Pin> pin;
  context().catalog->on_commit([&](sqlite::Database& db) {
    const auto evicting = db.number("SELECT count(*) FROM manifests WHERE state = 2");
    if (!pin && evicting.has_value() && *evicting == 1) pin = context().pins.pin(cut);
  });
  collected();
  ASSERT_TRUE(pin.has_value());
  EXPECT_EQ(state_of(*store_, cut), 2);
  EXPECT_TRUE(has_file(*store_, ObjectKind::kManifest, cut));
  EXPECT_EQ(catalog_number(*store_, "SELECT count(*) FROM prefixes"), 0);
  EXPECT_EQ(catalog_number(*store_, "SELECT count(*) FROM chunks WHERE refcount = 1 AND state = 1"), 1);
  pin->release();
  const MaintenanceReport report = collected();
  EXPECT_EQ(report.manifests_evicted, 1u);
  EXPECT_EQ(report.chunks_collected, 1u);
}

TEST_F(StoreCollect, WhatAnUploadHasPlannedStays) {
  const std::int64_t upload = plant_->upload(context().incarnation);
  const Id32 planned_cut = plant_->cut({.access_ns = 1, .expires_ns = 1});
  const Id32 planned_chunk = plant_->chunk();
  const Id32 free_cut = plant_->cut({.access_ns = 2, .expires_ns = 1});
  const Id32 free_chunk = plant_->chunk();
  plant_->plan(upload, ObjectKind::kManifest, planned_cut, PlanPhase::kSettled);
  plant_->plan(upload, ObjectKind::kChunk, planned_chunk, PlanPhase::kSettled);
  collected();
  EXPECT_EQ(state_of(*store_, planned_cut), 1);
  EXPECT_EQ(state_of(*store_, planned_chunk), 1);
  EXPECT_FALSE(has_row(*store_, free_cut));
  EXPECT_FALSE(has_row(*store_, free_chunk));
  // Also when the plan came after the selection.
  plant_->run([](sqlite::Database& db) -> Status {
    KVPACK_TRY(db.run("DELETE FROM prefixes"));
    KVPACK_TRY(db.run("UPDATE chunks SET state = 2"));
    return db.run("UPDATE manifests SET state = 2");
  });
  collected();
  EXPECT_TRUE(has_file(*store_, ObjectKind::kManifest, planned_cut));
  EXPECT_TRUE(has_file(*store_, ObjectKind::kChunk, planned_chunk));
  plant_->run([](sqlite::Database& db) { return db.run("DELETE FROM uploads"); });
  collected();
  EXPECT_FALSE(has_row(*store_, planned_cut));
  EXPECT_FALSE(has_row(*store_, planned_chunk));
}

TEST_F(StoreCollect, AChunkThatASaveHasFoundStays) {
  const Id32 chunk = plant_->chunk();
  {
    const auto pin = context().pins.pin(chunk);
    EXPECT_EQ(collected().chunks_collected, 0u);
    EXPECT_EQ(state_of(*store_, chunk), 1);
  }
  EXPECT_EQ(collected().chunks_collected, 1u);
}

TEST_F(StoreCollect, ChunksThatAreNamedStay) {
  const Id32 shared = plant_->chunk();
  plant_->cut({.chunks = {shared}, .expires_ns = 1});
  const Id32 other = plant_->cut({.chunks = {shared}});
  EXPECT_EQ(collected().chunks_collected, 0u);
  EXPECT_TRUE(has_row(*store_, shared));
  EXPECT_EQ(state_of(*store_, other), 1);
}

// --- transactions --------------------------------------------------------------------------------------

TEST_F(StoreCollect, NoTransactionSelectsOrRemovesMoreThanABatch) {
  for (int n = 0; n < 100; ++n) plant_->cut({.chunks = {plant_->chunk()}, .expires_ns = 1});
  std::int64_t rows = 200;
  std::int64_t evicting = 0;
  std::size_t commits = 0;
  context().catalog->on_commit([&](sqlite::Database& db) {
    const std::int64_t left =
        **db.number("SELECT (SELECT count(*) FROM manifests) + (SELECT count(*) FROM chunks)");
    const std::int64_t chosen = **db.number(
        "SELECT (SELECT count(*) FROM manifests WHERE state = 2)"
        " + (SELECT count(*) FROM chunks WHERE state = 2)");
    EXPECT_LE(rows - left, 64);
    EXPECT_LE(chosen - evicting, 64);
    rows = left;
    evicting = chosen;
    ++commits;
  });
  const MaintenanceReport report = collected();
  EXPECT_EQ(report.manifests_evicted, 100u);
  EXPECT_EQ(report.chunks_collected, 100u);
  EXPECT_LT(commits, 30u);
}

TEST_F(StoreCollect, FilesAreSyncedAwayBeforeTheirRowsGo) {
  plant_->cut({.chunks = {plant_->chunk()}, .expires_ns = 1});
  f_.files.clear_log();
  std::size_t at_commit = 0;
  context().catalog->on_commit([&](sqlite::Database& db) {
    const std::int64_t rows =
        **db.number("SELECT (SELECT count(*) FROM manifests) + (SELECT count(*) FROM chunks)");
    if (rows == 2) return;
    // Behind the last unlink, its directory has been synced.
    std::string unsynced;
    for (; at_commit < f_.files.log().size(); ++at_commit) {
      const testing::Operation& operation = f_.files.log()[at_commit];
      if (operation.verb == "unlink" && operation.path.find("/objects/") != std::string::npos)
        unsynced = operation.path.substr(0, operation.path.rfind('/'));
      if (operation.verb == "sync directory" && operation.path == unsynced) unsynced.clear();
    }
    EXPECT_EQ(unsynced, "");
  });
  collected();
  EXPECT_GT(at_commit, 0u);
}

TEST_F(StoreCollect, AFileThatCannotBeRemovedDoesNotKeepTheOthers) {
  const Id32 stuck = plant_->chunk();
  for (int n = 0; n < 3; ++n) plant_->chunk();
  // Somebody has put a directory there.
  const std::string at = path(ObjectKind::kChunk, stuck);
  f_.files.remove(at);
  f_.files.put_directory(at);
  const auto report = collect(*store_);
  ASSERT_FALSE(report.has_value());
  EXPECT_EQ(report.error().code, ErrorCode::kIo);
  ASSERT_EQ(report.error().context.size(), 1u);
  EXPECT_EQ(report.error().context[0].value, stuck.hex());
  EXPECT_EQ(catalog_number(*store_, "SELECT count(*) FROM chunks"), 1);
  EXPECT_EQ(state_of(*store_, stuck), 2);
  f_.files.remove(at);
  collected();
  EXPECT_FALSE(has_row(*store_, stuck));
}

TEST_F(StoreCollect, AShardThatIsGoneIsNoObstacle) {
  const Id32 chunk = plant_->chunk();
  f_.files.remove(path(ObjectKind::kChunk, chunk));
  f_.files.remove(path(ObjectKind::kChunk, chunk).substr(0, path(ObjectKind::kChunk, chunk).rfind('/')));
  EXPECT_EQ(collected().chunks_collected, 1u);
}

TEST_F(StoreCollect, WhatIsRemovedIsCounted) {
  plant_->cut({.chunks = {plant_->chunk(), plant_->chunk()}, .expires_ns = 1});
  collected();
  EXPECT_EQ(context().counters.value(Counter::kManifestsEvicted), 1u);
  EXPECT_EQ(context().counters.value(Counter::kChunksCollected), 2u);
  EXPECT_EQ(context().counters.value(Counter::kBytesCollected), kCutBytes + 2 * kChunkBytes);
}

TEST_F(StoreCollect, AReaderCollectsNothing) {
  const auto reader = Store::open_read_only(f_.options);
  ASSERT_TRUE(reader.has_value()) << reader.error().verdict();
  const std::string refusal = "state:store is open for reading only";
  EXPECT_EQ(testing::verdict(collect(**reader)), refusal);
  EXPECT_EQ(testing::verdict(maintain(**reader)), refusal);
  EXPECT_EQ(testing::verdict(evict(**reader, planted_id(1))), refusal);
  EXPECT_EQ(testing::verdict(retire_epochs(**reader, 1, 1)), refusal);
}

// --- one cut -------------------------------------------------------------------------------------------

TEST_F(StoreCollect, OneCutCanBeEvictedWithWhatOnlyItHasUsed) {
  const Id32 shared = plant_->chunk();
  const Id32 cut = plant_->cut({.chunks = {shared, plant_->chunk()}});
  plant_->cut({.chunks = {shared}});
  const auto report = evict(*store_, cut);
  ASSERT_TRUE(report.has_value()) << report.error().verdict();
  EXPECT_EQ(report->manifests_evicted, 1u);
  EXPECT_EQ(report->chunks_collected, 1u);
  EXPECT_EQ(testing::verdict(evict(*store_, cut)), "not_found:artifact not found");
}

TEST_F(StoreCollect, ACutInUseIsNotEvicted) {
  const Id32 base = plant_->cut();
  const Id32 delta = plant_->cut({.parent = base});
  const std::int64_t upload = plant_->upload(context().incarnation);
  const std::string busy = "busy:resource is busy";
  EXPECT_EQ(testing::verdict(evict(*store_, base)), busy);
  {
    const auto pin = context().pins.pin(delta);
    EXPECT_EQ(testing::verdict(evict(*store_, delta)), busy);
  }
  plant_->plan(upload, ObjectKind::kManifest, delta, PlanPhase::kSettled);
  EXPECT_EQ(testing::verdict(evict(*store_, delta)), busy);
  EXPECT_EQ(state_of(*store_, base), 1);
  EXPECT_EQ(state_of(*store_, delta), 1);
}

// --- making room ---------------------------------------------------------------------------------------

TEST_F(StoreCollect, BelowTheMarkNothingIsEvicted) {
  for (int n = 0; n < 10; ++n) plant_->cut({.chunks = {plant_->chunk()}});
  const Id32 unused = plant_->chunk();
  context().options.quota_bytes = 1'000'000;  // of which 177,152 are used
  const std::uint64_t used = 10 * (kCutBytes + kChunkBytes) + kChunkBytes;
  const MaintenanceReport report = made_room(850'000 - used - 1);
  EXPECT_EQ(report.before_bytes, 849'999u);
  EXPECT_EQ(report.after_bytes, 849'999u);
  EXPECT_FALSE(report.blocked);
  EXPECT_TRUE(has_row(*store_, unused));
  EXPECT_LE(made_room(850'000 - used).after_bytes, 750'000u);
  EXPECT_FALSE(has_row(*store_, unused));
}

TEST_F(StoreCollect, FromTheMarkOnItIsEvictedDownToTheLowerOne) {
  for (std::uint64_t n = 0; n < 20; ++n) plant_->cut({.chunks = {plant_->chunk()}, .access_ns = 1 + n});
  const std::uint64_t each = kCutBytes + kChunkBytes;
  context().options.quota_bytes = each * 20;
  const MaintenanceReport report = made_room(0);
  EXPECT_EQ(report.before_bytes, each * 20);
  EXPECT_EQ(report.after_bytes, each * 15);
  EXPECT_EQ(report.manifests_evicted, 5u);
  EXPECT_EQ(report.chunks_collected, 5u);
  EXPECT_FALSE(report.blocked);
  EXPECT_FALSE(report.emergency);
  // Room that is asked for is free beyond that.
  EXPECT_EQ(made_room(each * 2).after_bytes, each * 15);
  EXPECT_EQ(catalog_number(*store_, "SELECT count(*) FROM manifests"), 13);
}

TEST_F(StoreCollect, ReservedBytesTakeRoomToo) {
  for (std::uint64_t n = 0; n < 20; ++n) plant_->cut({.access_ns = 1 + n});
  plant_->upload(context().incarnation);
  context().options.quota_bytes = kCutBytes * 20;
  const MaintenanceReport report = made_room(0);
  EXPECT_EQ(report.before_bytes, kCutBytes * 20 + 1'000);
  EXPECT_EQ(report.manifests_evicted, 6u);
}

TEST_F(StoreCollect, WhenEverythingIsInUseItIsBlocked) {
  std::vector<Pins::Pin> pins;
  for (int n = 0; n < 10; ++n) pins.push_back(context().pins.pin(plant_->cut()));
  set_use(930);
  const MaintenanceReport report = made_room(0);
  EXPECT_TRUE(report.blocked);
  EXPECT_TRUE(report.emergency);
  EXPECT_EQ(report.before_bytes, report.after_bytes);
  pins.clear();
  EXPECT_FALSE(made_room(0).blocked);
}

TEST_F(StoreCollect, ASaveWaitsForABoundedNumberOfRemovals) {
  for (int n = 0; n < 150; ++n) plant_->chunk();
  set_use(900);
  const MaintenanceReport report = made_room(*context().options.quota_bytes / 2, 10);
  EXPECT_TRUE(report.blocked);
  EXPECT_EQ(report.chunks_collected, 64u);
}

TEST_F(StoreCollect, HeadRoomBeyondAllBoundsEvictsEverything) {
  for (int n = 0; n < 3; ++n) plant_->cut({.chunks = {plant_->chunk()}});
  const MaintenanceReport report = made_room(std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(report.manifests_evicted, 3u);
  EXPECT_EQ(report.chunks_collected, 3u);
  EXPECT_TRUE(report.emergency);
  EXPECT_FALSE(report.blocked);
}

// --- maintenance ---------------------------------------------------------------------------------------

TEST_F(StoreCollect, MaintenanceForgetsOldHistory) {
  const auto upload_in = [&](UploadState state) {
    const std::int64_t upload = plant_->upload(Id32::filled(9));
    plant_->run([&](sqlite::Database& db) {
      return db.run("UPDATE uploads SET state = ?, reserved_bytes = 0 WHERE upload = ?", number(state),
                    upload);
    });
  };
  for (const UploadState state : {UploadState::kPublished, UploadState::kAborted, UploadState::kQuarantined})
    upload_in(state);
  plant_->run([&](sqlite::Database& db) {
    return db.run("INSERT INTO endurance (second, bytes) VALUES (?, 1)", context().now_second());
  });
  const auto counts = [&] {
    EXPECT_TRUE(maintain(*store_).has_value());
    return std::pair(catalog_number(*store_, "SELECT count(*) FROM uploads"),
                     catalog_number(*store_, "SELECT count(*) FROM endurance"));
  };
  EXPECT_EQ(counts(), std::pair(std::int64_t{3}, std::int64_t{1}));
  f_.clock.advance_ms(300'000);
  EXPECT_EQ(counts(), std::pair(std::int64_t{3}, std::int64_t{1}));
  f_.clock.advance_ms(1'000);
  EXPECT_EQ(counts(), std::pair(std::int64_t{3}, std::int64_t{0}));
  f_.clock.advance_ms(24 * kHourMs - 301'001);
  EXPECT_EQ(counts().first, 3);
  f_.clock.advance_ms(1);
  EXPECT_EQ(counts().first, 1);
  // What fails later is forgotten later.
  upload_in(UploadState::kAborted);
  f_.clock.advance_ms(24 * kHourMs - 1);
  EXPECT_EQ(counts().first, 2);
  f_.clock.advance_ms(1);
  EXPECT_EQ(counts().first, 1);
  f_.clock.advance_ms(5 * 24 * kHourMs - 1);
  EXPECT_EQ(counts().first, 1);
  f_.clock.advance_ms(1);
  EXPECT_EQ(counts().first, 0);
}

TEST_F(StoreCollect, MaintenanceWritesCountersDownAndAbortsSilentSaves) {
  context().counters.add(Counter::kLookupsMiss, 5);
  plant_->upload(context().incarnation);
  EXPECT_TRUE(maintain(*store_).has_value());
  EXPECT_EQ(catalog_number(*store_, "SELECT value FROM counters WHERE name = 'lookups_miss'"), 5);
  EXPECT_EQ(context().counters.value(Counter::kLookupsMiss), 0u);
  EXPECT_EQ(catalog_number(*store_, "SELECT reserved_bytes FROM store"), 0);
}

TEST_F(StoreCollect, MaintenanceCollectsAndMakesRoom) {
  plant_->cut({.expires_ns = 1});
  for (std::uint64_t n = 0; n < 20; ++n) plant_->cut({.access_ns = 1 + n});
  context().options.quota_bytes = kCutBytes * 20;
  const auto report = maintain(*store_);
  ASSERT_TRUE(report.has_value()) << report.error().verdict();
  EXPECT_EQ(report->before_bytes, kCutBytes * 21);
  EXPECT_EQ(report->after_bytes, kCutBytes * 15);
  EXPECT_EQ(report->manifests_evicted, 6u);
  EXPECT_EQ(report->bytes_freed, kCutBytes * 6);
}

// --- failures ------------------------------------------------------------------------------------------

TEST_F(StoreCollect, AFullDiskIsEmptiedWithTheRoomOfTheReserve) {
  plant_->cut({.chunks = {plant_->chunk()}, .expires_ns = 1});
  const std::string reserve = f_.options.root + "/reserve.bin";
  ASSERT_TRUE(f_.files.file(reserve).has_value());
  // Nothing works until the reserve has been given up.
  f_.files.fail_verb("sync directory", ENOSPC);
  f_.files.before_operation([&](const testing::Operation& operation) {
    if (operation.verb == "unlink" && operation.path == reserve) f_.files.fail_verb("sync directory", 0);
  });
  EXPECT_EQ(collected().manifests_evicted, 1u);
  f_.files.before_operation(nullptr);
  EXPECT_TRUE(f_.files.file(reserve).has_value()) << "made again";
}

TEST_F(StoreCollect, TheReserveIsAsLargeAsTheDiskAllows) {
  const std::string reserve = f_.options.root + "/reserve.bin";
  std::vector<std::uint64_t> tried;
  std::uint64_t free_bytes = 0;
  f_.files.before_operation([&](const testing::Operation& operation) {
    if (operation.verb != "preallocate") return;
    EXPECT_EQ(operation.path, reserve);
    tried.push_back(operation.length);
    f_.files.fail_verb("preallocate", operation.length > free_bytes ? ENOSPC : 0);
  });
  const auto made = [&](std::uint64_t bytes) {
    free_bytes = bytes;
    tried.clear();
    return make_reserve(context().files.root()).has_value() && f_.files.file(reserve).has_value();
  };
  constexpr std::uint64_t kMiB = 1 << 20;
  EXPECT_TRUE(made(9 * kMiB));
  EXPECT_EQ(tried, (std::vector{8 * kMiB}));
  EXPECT_TRUE(made(6 * kMiB + 1));
  EXPECT_EQ(tried, (std::vector{8 * kMiB, 7 * kMiB, 6 * kMiB}));
  EXPECT_TRUE(made(kMiB / 2));
  EXPECT_EQ(tried.back(), kMiB / 2);
  // A file that only pretends to be a reserve is not kept.
  EXPECT_FALSE(made(kMiB / 2 - 1));
  EXPECT_FALSE(f_.files.file(reserve).has_value());
  EXPECT_TRUE(made(kMiB));
  f_.files.before_operation(nullptr);
  f_.files.fail_verb("preallocate", 0);
}

TEST_F(StoreCollect, AFullDiskThatTheReserveDoesNotHelpIsAnError) {
  plant_->cut({.expires_ns = 1});
  f_.files.fail_verb("unlink", ENOSPC);
  const auto report = collect(*store_);
  ASSERT_FALSE(report.has_value());
  EXPECT_TRUE(is_no_space(report.error()));
  f_.files.fail_verb("unlink", 0);
  EXPECT_EQ(collected().manifests_evicted, 1u);
}

TEST_F(StoreCollect, AfterAnyFailureTheNextCollectionCompletesIt) {
  for (const int error : {EIO, ENOSPC}) {
    std::size_t failures = 0;
    for (std::size_t k = 0;; ++k) {
      const Id32 base = plant_->cut({.chunks = {plant_->chunk()}, .expires_ns = 1});
      plant_->cut({.parent = base, .chunks = {plant_->chunk()}, .expires_ns = 1});
      const Id32 kept = plant_->cut({.chunks = {plant_->chunk()}});
      f_.files.fail_operation(k, error);
      const std::size_t before = f_.files.operation_count();
      const auto report = collect(*store_);
      const bool reached = f_.files.operation_count() - before > k;
      f_.files.clear_faults();
      failures += report.has_value() ? 0 : 1;
      expect_sound(*store_);
      collected();
      expect_sound(*store_);
      expect_no_orphans(*store_);
      EXPECT_EQ(catalog_number(*store_, "SELECT count(*) FROM manifests"), 1) << k;
      EXPECT_EQ(catalog_number(*store_, "SELECT count(*) FROM chunks"), 1) << k;
      ASSERT_TRUE(evict(*store_, kept).has_value());
      if (::testing::Test::HasFailure() || !reached) break;
    }
    EXPECT_GT(failures, error == EIO ? 10u : 0u);
  }
}

TEST_F(StoreCollect, AfterAnyFailureAnOpeningCompletesIt) {
  for (std::size_t k = 0;; ++k) {
    plant_->cut({.chunks = {plant_->chunk()}, .expires_ns = 1});
    f_.files.fail_operation(k, EIO);
    const std::size_t before = f_.files.operation_count();
    (void)collect(*store_);
    const bool reached = f_.files.operation_count() - before > k;
    f_.files.clear_faults();
    store_.reset();
    store_ = f_.open();
    plant_.emplace(*store_, 10'000 * (k + 1));
    expect_sound(*store_);
    expect_no_orphans(*store_);
    EXPECT_EQ(catalog_number(*store_, "SELECT count(*) FROM manifests WHERE state <> 1"), 0);
    collected();
    EXPECT_EQ(catalog_number(*store_, "SELECT durable_bytes FROM store"), 0);
    if (::testing::Test::HasFailure() || !reached) break;
  }
}

}  // namespace collect_test
}  // namespace
}  // namespace kvpack
