#include "kvpack/store/status.h"

#include <gtest/gtest.h>

#include "kvpack/store/upkeep.h"
#include "support/planted_store.h"

namespace kvpack {
namespace {
namespace status_test {

using namespace store;
using testing::FakeStoreFixture;
using testing::planted_id;
using testing::Planter;

StoreStatus status_of(Store& store) {
  auto result = status(store);
  EXPECT_TRUE(result.has_value()) << result.error().verdict();
  return result.has_value() ? *std::move(result) : StoreStatus{};
}

std::vector<StoredCut> cuts_of(Store& store) {
  std::vector<StoredCut> cuts;
  const Status listed = list_cuts(store, [&](const StoredCut& cut) {
    cuts.push_back(cut);
    return true;
  });
  EXPECT_TRUE(listed.has_value()) << listed.error().verdict();
  return cuts;
}

TEST(StoreStatus, AnEmptyStoreSaysWhatItWasMadeWith) {
  FakeStoreFixture f;
  f.options.quota_bytes = 5'000'000;
  f.options.staging_quota_bytes = 4'000'000;
  f.options.catalog_epoch = 9;
  f.options.keys = testing::test_keys({.minimum_readable = 2, .active = 3});
  f.options.epochs = {.minimum_readable = 2, .active = 3};
  const auto store = f.create();
  const StoreStatus status = status_of(*store);
  EXPECT_EQ(status.quota_bytes, 5'000'000u);
  EXPECT_EQ(status.staging_quota_bytes, 4'000'000u);
  EXPECT_EQ(status.quarantine_cap_bytes, 50'000u);
  EXPECT_EQ(status.key_epoch, 3u);
  EXPECT_EQ(status.minimum_epoch, 2u);
  EXPECT_EQ(status.catalog_epoch, 9u);
  EXPECT_EQ(status.created_ns, f.clock.wall_ms() * 1'000'000);
  EXPECT_EQ(status.durable_bytes + status.reserved_bytes + status.shared_bytes + status.quarantine_bytes +
                status.manifests + status.chunks + status.pending_manifests + status.pending_chunks +
                status.active_uploads + status.holds,
            0u);
  EXPECT_EQ(status.pressure, StorePressure::kNormal);
  EXPECT_EQ(status.counters.size(), kCounterNames.size());
}

TEST(StoreStatus, SizesAndCountsAreThoseOfTheRows) {
  FakeStoreFixture f;
  const auto store = f.create();
  StoreContext& context = store->context();
  Planter plant(*store);
  const Id32 shared = plant.chunk(8'192);
  plant.cut({.chunks = {shared, plant.chunk(12'288)}});
  plant.cut({.chunks = {shared}});
  plant.cut({.chunks = {shared}});
  plant.run([](sqlite::Database& db) -> Status {
    KVPACK_TRY(db.run("UPDATE chunks SET state = 2 WHERE refcount = 1"));
    KVPACK_TRY(db.run("DELETE FROM prefixes WHERE manifest = 1"));
    return db.run("UPDATE manifests SET state = 3 WHERE manifest = 1");
  });
  plant.upload(Id32::filled(9), UploadKind::kImport);
  const MemoryCharge hold{.shadow_bytes = 1, .holds = 1};
  ASSERT_TRUE(context.holds.charge(context.options.memory, hold).has_value());
  const StoreStatus status = status_of(*store);
  EXPECT_EQ(status.durable_bytes, 8'192u + 12'288 + 3 * 8'704);
  EXPECT_EQ(status.shared_bytes, 2 * 8'192u);
  EXPECT_EQ(status.reserved_bytes, 1'000u);
  EXPECT_EQ(status.manifests, 3u);
  EXPECT_EQ(status.chunks, 2u);
  EXPECT_EQ(status.pending_manifests, 1u);
  EXPECT_EQ(status.pending_chunks, 1u);
  EXPECT_EQ(status.active_uploads, 1u);
  EXPECT_EQ(status.holds, 1u);
  context.holds.release(hold);
}

TEST(StoreStatus, PressureIsWhereTheBytesStand) {
  FakeStoreFixture f;
  const auto store = f.create();
  Planter(*store).cut({.file_bytes = 100'000});
  const auto pressure_at = [&](std::uint64_t quota) {
    Planter(*store).run(
        [&](sqlite::Database& db) { return db.run("UPDATE store SET quota_bytes = ?", quota); });
    return pressure_name(status_of(*store).pressure);
  };
  EXPECT_EQ(pressure_at(117'648), "normal");  // 849.99 thousandths
  EXPECT_EQ(pressure_at(117'647), "evicting");
  EXPECT_EQ(pressure_at(108'695), "emergency");
  EXPECT_EQ(pressure_at(105'263), "promotion stopped");
}

TEST(StoreStatus, SilentSavesAreAbortedFirst) {
  FakeStoreFixture f;
  const auto store = f.create();
  Planter(*store).upload(store->context().incarnation);
  EXPECT_EQ(status_of(*store).reserved_bytes, 0u);
}

TEST(StoreStatus, CountersAreThoseOfTheCatalogAndOfTheHandle) {
  FakeStoreFixture f;
  const auto store = f.create();
  store->context().counters.add(Counter::kLookupsExact, 3);
  ASSERT_TRUE(flush_counters(store->context()).has_value());
  store->context().counters.add(Counter::kLookupsExact, 2);
  const auto reader = Store::open_read_only(f.options);
  ASSERT_TRUE(reader.has_value());
  (*reader)->context().counters.add(Counter::kLookupsExact, 7);
  for (const auto& [handle, pending] : {std::pair(store.get(), 2u), std::pair(reader->get(), 7u)}) {
    const StoreCounter counter = status_of(*handle).counters.at(6);
    EXPECT_EQ(counter.name, "lookups_exact");
    EXPECT_EQ(counter.recorded, 3u);
    EXPECT_EQ(counter.pending, pending);
  }
}

TEST(StoreStatus, CutsAreListedWithWhatTheyTake) {
  FakeStoreFixture f;
  const auto store = f.create();
  Planter plant(*store);
  const Id32 shared = plant.chunk();
  const Id32 base = plant.cut({.chunks = {shared, plant.chunk(12'288)}, .access_ns = 5, .expires_ns = 77});
  const Id32 delta = plant.cut({.parent = base, .chunks = {shared}, .token_count = 512});
  plant.run([&](sqlite::Database& db) -> Status {
    KVPACK_TRY(db.run("DELETE FROM prefixes WHERE prefix_id = ?", delta));
    KVPACK_TRY(db.run("UPDATE manifests SET state = 3 WHERE manifest_id = ?", delta));
    return db.run("INSERT INTO identities (semantic_id, family_id, label) VALUES (?1, ?1, 'a model')",
                  Id32::filled(7));
  });
  const auto cuts = cuts_of(*store);
  ASSERT_EQ(cuts.size(), 2u);
  const StoredCut& first = cuts[0];
  EXPECT_EQ(first.manifest_id, base);
  EXPECT_FALSE(first.parent_id.has_value());
  EXPECT_EQ(first.depth, 0u);
  EXPECT_EQ(first.children, 1u);
  EXPECT_EQ(first.token_count, 256u);
  EXPECT_EQ(first.key_epoch, 1u);
  EXPECT_EQ(first.semantic_id, Id32::filled(7));
  EXPECT_EQ(first.family_id, Id32::filled(7));
  EXPECT_EQ(first.label, "a model");
  EXPECT_EQ(first.file_bytes, 8'704u);
  EXPECT_EQ(first.restored_bytes, 1u);
  EXPECT_EQ(first.chunks, 2u);
  EXPECT_EQ(first.chunk_bytes, 8'192u + 12'288);
  EXPECT_EQ(first.shared_bytes, 8'192u);
  EXPECT_EQ(first.published_ns, store->context().now_ns());
  EXPECT_EQ(first.access_ns, 5u);
  EXPECT_EQ(first.expires_ns, 77u);
  EXPECT_EQ(first.state, CutState::kAvailable);
  EXPECT_EQ(cuts[1].parent_id, base);
  EXPECT_EQ(cuts[1].depth, 1u);
  EXPECT_FALSE(cuts[1].expires_ns.has_value());
  EXPECT_EQ(cuts[1].state, CutState::kDamaged);
}

TEST(StoreStatus, ALongListingComesInPagesAndCanStop) {
  FakeStoreFixture f;
  const auto store = f.create();
  Planter plant(*store);
  for (int n = 0; n < 600; ++n) plant.cut();
  EXPECT_EQ(cuts_of(*store).size(), 600u);
  std::size_t visited = 0;
  // The visitor may call the store, and what it removes is not listed.
  const Status listed = list_cuts(*store, [&](const StoredCut& cut) {
    if (visited == 0) {
      EXPECT_TRUE(evict(*store, planted_id(600)).has_value());
    }
    EXPECT_NE(cut.manifest_id, planted_id(600));
    return ++visited < 1'000;
  });
  EXPECT_TRUE(listed.has_value());
  EXPECT_EQ(visited, 599u);
  visited = 0;
  EXPECT_TRUE(list_cuts(*store, [&](const StoredCut&) { return ++visited < 300; }).has_value());
  EXPECT_EQ(visited, 300u);
}

TEST(StoreStatus, SharingIsAHistogram) {
  FakeStoreFixture f;
  const auto store = f.create();
  Planter plant(*store);
  plant.chunk();
  const Id32 shared = plant.chunk();
  plant.cut({.chunks = {shared, plant.chunk(12'288)}});
  plant.cut({.chunks = {shared}});
  const auto sharing = chunk_sharing(*store);
  ASSERT_TRUE(sharing.has_value());
  ASSERT_EQ(sharing->size(), 3u);
  for (std::size_t users = 0; users < 3; ++users) {
    EXPECT_EQ((*sharing)[users].users, users);
    EXPECT_EQ((*sharing)[users].chunks, 1u);
    EXPECT_EQ((*sharing)[users].object_bytes, users == 1 ? 12'288u : 8'192u);
  }
}

TEST(StoreStatus, AReaderMayAskAllOfIt) {
  FakeStoreFixture f;
  const auto store = f.create();
  Planter plant(*store);
  plant.cut({.chunks = {plant.chunk()}});
  const auto reader = Store::open_read_only(f.options);
  ASSERT_TRUE(reader.has_value());
  EXPECT_EQ(status_of(**reader).durable_bytes, 8'704u + 8'192);
  EXPECT_EQ(cuts_of(**reader).size(), 1u);
  EXPECT_EQ(chunk_sharing(**reader)->size(), 1u);
  EXPECT_TRUE(quarantined_files(**reader, 1)->empty());
}

}  // namespace status_test
}  // namespace
}  // namespace kvpack
