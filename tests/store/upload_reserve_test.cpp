#include "support/upload_room.h"

namespace kvpack::upload_reserve_test {
namespace {

using store::Counter;
using store::ManifestToPublish;
using store::ObjectKind;
using store::Upload;
using store::UploadDeclaration;
using store::UploadKind;
using testing::catalog_number;
using testing::cut_of_two_batches;
using testing::CutToUpload;
using testing::expect_sound;
using testing::kAbortedState;
using testing::kPoisonedVerdict;
using testing::kPublishedState;
using testing::kSupersededVerdict;
using testing::MemoryRoom;
using testing::object_files;
using testing::planted_id;
using testing::Planter;
using testing::Room;
using testing::state_of;
using testing::StoreFixture;
using testing::UploadableCut;
using testing::verdict_of;

TEST(UploadReserve, InvalidReservationsAreRefused) {
  MemoryRoom room;
  const std::string invalid = "state:invalid write reservation";
  const UploadDeclaration good = room.declaration(1);
  UploadDeclaration d = good;
  d.idempotency_key = {};
  EXPECT_EQ(room.refusal(d), invalid);
  d = good;
  d.intent_digest = {};
  EXPECT_EQ(room.refusal(d), invalid);
  for (const std::uint64_t bad : {std::uint64_t{0}, std::uint64_t{1} << 63}) {
    d = good;
    d.expected_bytes = bad;
    EXPECT_EQ(room.refusal(d), invalid);
    d = good;
    d.publication = bad;
    EXPECT_EQ(room.refusal(d), invalid);
  }
  d = good;
  d.kind = UploadKind::kProvisional;
  EXPECT_EQ(room.refusal(d), invalid);
  EXPECT_EQ(room.uploads(), 0);
  EXPECT_EQ(room.context().counters.value(Counter::kSavesRefused), 7u);
}

TEST(UploadReserve, AKeyStandsForOneDeclaration) {
  MemoryRoom room;
  UploadableCut cut(*room.store, {});
  ASSERT_EQ(verdict_of(cut.save(1)), "success");
  const UploadDeclaration good = cut.declaration(1);
  UploadDeclaration d = good;
  d.expected_bytes += 1;
  d.publication = 2;
  d.intent_digest = planted_id(1);
  EXPECT_EQ(room.refusal(d), "expectation:idempotency key was reused with different write bounds");
  d.expected_bytes = good.expected_bytes;
  EXPECT_EQ(room.refusal(d),
            "expectation:idempotency key was reused with a different publication generation");
  d.publication = 1;
  EXPECT_EQ(room.refusal(d), "expectation:idempotency key was reused with a different immutable declaration");
  d = good;
  d.kind = UploadKind::kCutExport;
  EXPECT_EQ(room.refusal(d), "expectation:idempotency key was reused with a different immutable declaration");
  EXPECT_TRUE(room.reserve(good).is_replay());
}

TEST(UploadReserve, QuotasOfOneByteRefuseEach) {
  StoreFixture f;
  const auto refusal_of = [&](const std::string& expected) {
    const auto store = f.create();
    UploadableCut cut(*store, {});
    EXPECT_EQ(verdict_of(cut.save(1)), expected);
    EXPECT_EQ(catalog_number(*store, "SELECT count(*) FROM uploads"), 0);
    EXPECT_EQ(catalog_number(*store, "SELECT reserved_bytes FROM store"), 0);
    EXPECT_EQ(catalog_number(*store, "SELECT count(*) FROM endurance"), 0);
    f.options.root += "x";
  };
  const StoreOptions good = f.options;
  f.options.quota_bytes = 1;
  f.options.staging_quota_bytes = std::uint64_t{1} << 30;
  refusal_of("quota:tenant durable quota reservation refused");
  f.options.quota_bytes = good.quota_bytes;
  f.options.staging_quota_bytes = 1;
  refusal_of("quota:tenant staging quota reservation refused");
  // The first violation counts: endurance, then staging, then the quota.
  f.options.quota_bytes = 1;
  refusal_of("quota:tenant staging quota reservation refused");
  f.options.endurance_bytes_per_five_minutes = 1;
  refusal_of("endurance:five-minute endurance budget exhausted");
  f.options.endurance_bytes_per_five_minutes = 0;
  refusal_of("endurance:five-minute endurance budget exhausted");
}

TEST(UploadReserve, SumsBeyondAnyNumberAreRefused) {
  MemoryRoom room;
  room.context().options.staging_quota_bytes = std::uint64_t{1} << 62;
  EXPECT_EQ(room.refusal(room.declaration(1, (std::uint64_t{1} << 63) - 1)),
            "quota:tenant staging quota reservation refused");
  room.context().options.staging_quota_bytes = (std::uint64_t{1} << 63) - 1;
  EXPECT_EQ(room.refusal(room.declaration(1, (std::uint64_t{1} << 63) - 1)),
            "quota:tenant durable quota reservation refused");
}

TEST(UploadReserve, TheExactLimitIsAdmitted) {
  MemoryRoom room;
  room.context().options.staging_quota_bytes = 1'000'000;
  room.context().options.endurance_bytes_per_five_minutes = 1'000'000;
  const Upload first = room.reserve(room.declaration(1, 600'000));
  EXPECT_EQ(room.refusal(room.declaration(2, 400'001)), "endurance:five-minute endurance budget exhausted");
  room.context().options.endurance_bytes_per_five_minutes.reset();
  EXPECT_EQ(room.refusal(room.declaration(2, 400'001)), "quota:tenant staging quota reservation refused");
  const Upload second = room.reserve(room.declaration(2, 400'000));
  EXPECT_EQ(room.reserved(), 1'000'000);
}

TEST(UploadReserve, TheEnduranceBudgetIsOfTheLastFiveMinutes) {
  MemoryRoom room;
  room.context().options.endurance_bytes_per_five_minutes = 1'000'000;
  { const Upload dropped = room.reserve(room.declaration(1, 900'000)); }
  EXPECT_EQ(room.number("SELECT sum(bytes) FROM endurance"), 0) << "nothing was written";
  UploadableCut cut(*room.store, {});
  ASSERT_EQ(verdict_of(cut.save(2)), "success");
  const auto written = static_cast<std::uint64_t>(room.number("SELECT durable_bytes FROM store"));
  EXPECT_EQ(room.refusal(room.declaration(3, 1'000'001 - written)),
            "endurance:five-minute endurance budget exhausted");
  room.clock.advance_ms(299'000);
  EXPECT_EQ(room.refusal(room.declaration(3, 1'000'001 - written)),
            "endurance:five-minute endurance budget exhausted");
  room.clock.advance_ms(1'000);
  EXPECT_EQ(room.refusal(room.declaration(3, 1'000'001 - written)), "success");
}

TEST(UploadReserve, AFullStoreMakesRoomBeforeItRefuses) {
  MemoryRoom room;
  Planter plant(*room.store);
  room.context().options.quota_bytes = 1'000'000;
  room.context().options.staging_quota_bytes = 1'000'000;
  std::vector<Id32> cuts;
  for (int i = 0; i < 40; ++i) {
    room.clock.advance_ms(1'000);
    cuts.push_back(plant.cut({.chunks = {plant.chunk(12'288)}}));
  }
  ASSERT_EQ(room.number("SELECT durable_bytes FROM store"), 40 * (8'704 + 12'288));
  // At 84 % and 16 % projected: beyond what is served without evicting, and within what evicting can give.
  const Upload upload = room.reserve(room.declaration(1, 160'000));
  EXPECT_LE(room.number("SELECT durable_bytes + reserved_bytes FROM store"), 750'000);
  EXPECT_EQ(state_of(*room.store, cuts.front()), 0) << "the least recently used goes first";
  EXPECT_EQ(state_of(*room.store, cuts.back()), 1);
  expect_sound(*room.store);
}

TEST(UploadReserve, WhatCannotBeEvictedRefusesAtTheMarks) {
  MemoryRoom room;
  Planter plant(*room.store);
  room.context().options.quota_bytes = 1'000'000;
  room.context().options.staging_quota_bytes = 1'000'000;
  std::vector<store::Pins::Pin> pins;
  while (room.number("SELECT durable_bytes FROM store") < 800'000)
    pins.push_back(room.context().pins.pin(plant.cut({.file_bytes = 100'000})));
  ASSERT_EQ(room.number("SELECT durable_bytes FROM store"), 800'000);
  EXPECT_EQ(room.refusal(room.declaration(1, 200'001)), "quota:tenant durable quota reservation refused");
  EXPECT_EQ(room.refusal(room.declaration(1, 200'000)), "quota:cache promotion stopped at 95% utilization");
  EXPECT_EQ(room.refusal(room.declaration(1, 150'000)), "quota:cache promotion stopped at 95% utilization");
  EXPECT_EQ(room.refusal(room.declaration(1, 149'999)),
            "quota:cache is read-only under emergency utilization");
  EXPECT_EQ(room.refusal(room.declaration(1, 120'000)),
            "quota:cache is read-only under emergency utilization");
  EXPECT_EQ(room.uploads(), 0);
  EXPECT_EQ(room.refusal(room.declaration(1, 119'999)), "success");
}

TEST(UploadReserve, NothingIsEvictedForASaveThatCouldNeverFit) {
  MemoryRoom room;
  Planter plant(*room.store);
  room.context().options.quota_bytes = 1'000'000;
  room.context().options.staging_quota_bytes = 10'000'000;
  const Id32 cut = plant.cut({.file_bytes = 800'000});
  EXPECT_EQ(room.refusal(room.declaration(1, 1'000'001)), "quota:tenant durable quota reservation refused");
  EXPECT_EQ(room.refusal(room.declaration(1, 950'000)), "quota:cache promotion stopped at 95% utilization");
  EXPECT_EQ(state_of(*room.store, cut), 1);
}

TEST(UploadReserve, AnOverfullQuarantineRefuses) {
  MemoryRoom room;
  room.context().options.quota_bytes = 1'000'000;
  Planter(*room.store).run([&](sqlite::Database& db) -> Status {
    for (int i = 0; i < 1'025; ++i)
      KVPACK_TRY(
          db.run("INSERT INTO quarantine (path_token, kind, file_bytes, created_ns, expires_ns, reason)"
                 " VALUES (?, 5, 20000, ?2, ?2 + 1, 'test')",
                 std::to_string(i), std::uint64_t{1} << 61));
    return success();
  });
  EXPECT_EQ(room.refusal(room.declaration(1, 1'000)),
            "quota:quarantine capacity requires bounded maintenance");
  EXPECT_EQ(room.number("SELECT quarantine_bytes FROM store"), 20'000);
  EXPECT_EQ(room.uploads(), 0);
}

TEST(UploadReserve, AReaderAndARemovedStoreRefuse) {
  Room room;
  auto reader = Store::open_read_only(room.options);
  ASSERT_TRUE(reader.has_value());
  EXPECT_EQ(verdict_of(Upload::reserve((*reader)->context(), room.declaration(1))),
            "state:store is open for reading only");
  UploadableCut cut(*room.store, {});
  Upload upload = room.reserve(cut.declaration(1));
  ASSERT_EQ(verdict_of(cut.put(upload)), "success");
  std::filesystem::remove_all(room.options.root);
  EXPECT_EQ(verdict_of(cut.publish(upload)), "state:store directory was removed: " + room.options.root);
  EXPECT_EQ(room.refusal(room.declaration(2)), "state:store directory was removed: " + room.options.root);
  EXPECT_FALSE(std::filesystem::exists(room.options.root));
}

TEST(UploadReplay, APublishedKeyWritesNothing) {
  MemoryRoom room;
  UploadableCut cut(*room.store, {});
  ASSERT_EQ(verdict_of(cut.save(1)), "success");
  const std::int64_t updated = room.number("SELECT updated_ns FROM uploads");
  room.clock.advance_ms(1'000);
  room.context().options.quota_bytes = 1;  // A replay needs no room.
  room.context().options.endurance_bytes_per_five_minutes = 0;
  UploadableCut again(*room.store, {});
  {
    Upload upload = room.reserve(again.declaration(1));
    ASSERT_TRUE(upload.is_replay());
    EXPECT_EQ(upload.head_id(), cut.manifest_id());
    ASSERT_EQ(verdict_of(again.put(upload)), "success");
    ASSERT_EQ(verdict_of(again.publish(upload)), "success");
    EXPECT_EQ(again.manifest_id(), cut.manifest_id());
  }
  EXPECT_EQ(room.state(cut.declaration(1)), kPublishedState);
  EXPECT_EQ(room.number("SELECT updated_ns FROM uploads"), updated);
  EXPECT_EQ(room.number("SELECT fence FROM uploads"), 1);
  EXPECT_EQ(room.context().counters.value(Counter::kSavesReplayed), 1u);
  room.check();
}

TEST(UploadReplay, OtherBytesAreRefused) {
  MemoryRoom room;
  UploadableCut cut(*room.store, {});
  ASSERT_EQ(verdict_of(cut.save(1)), "success");
  UploadableCut other(*room.store, {.seed = 2});
  Upload upload = room.reserve(cut.declaration(1));
  EXPECT_EQ(verdict_of(other.put(upload)),
            "authentication:published export replay contains changed or unavailable chunk bytes");
  EXPECT_EQ(verdict_of(other.put(upload)), kPoisonedVerdict);
  EXPECT_EQ(room.state(cut.declaration(1)), kPublishedState);
}

TEST(UploadReplay, AnotherResultIsRefused) {
  MemoryRoom room;
  UploadableCut cut(*room.store, {});
  ASSERT_EQ(verdict_of(cut.save(1)), "success");
  UploadableCut other(*room.store, {.tokens = 301});
  ASSERT_EQ(verdict_of(other.save(2)), "success");
  const auto manifests_of = [&](UploadableCut& from) {
    ManifestToPublish entry;
    entry.manifest_id = from.manifest_id();
    entry.pack = from.pack().bytes;
    entry.manifest = &from.manifest();
    entry.exact_final = true;
    return std::vector{entry};
  };
  {
    Upload upload = room.reserve(cut.declaration(1));
    EXPECT_EQ(verdict_of(upload.publish([&] { return manifests_of(other); })),
              "authentication:published idempotency result changed");
  }
  Planter(*room.store).run([&](sqlite::Database& db) {
    return db.run("DELETE FROM prefixes WHERE prefix_id = ?", cut.manifest().input_cut.token_root);
  });
  Upload upload = room.reserve(cut.declaration(1));
  EXPECT_EQ(verdict_of(upload.publish([&] { return manifests_of(cut); })),
            "authentication:published cut set no longer matches its idempotent result");
}

TEST(UploadReplay, AKeyWhoseCutIsGoneIsPublishedAgain) {
  for (const std::string change : {"UPDATE manifests SET state = 2", "UPDATE manifests SET state = 3",
                                   "UPDATE manifests SET expires_ns = 1"}) {
    MemoryRoom room;
    UploadableCut cut(*room.store, {});
    ASSERT_EQ(verdict_of(cut.save(1)), "success");
    Planter(*room.store).run([&](sqlite::Database& db) -> Status {
      KVPACK_TRY(db.run("DELETE FROM prefixes"));
      return db.run(change);
    });
    UploadableCut again(*room.store, {});
    ASSERT_EQ(verdict_of(again.save(1)), "success") << change;
    again.expect_restorable();
    EXPECT_EQ(room.number("SELECT fence FROM uploads"), 2);
    EXPECT_EQ(room.number("SELECT count(*) FROM manifests WHERE expires_ns IS NULL"), 1);
    room.check();
  }
}

TEST(UploadReplay, AnAbortedKeyBeginsAgain) {
  MemoryRoom room;
  UploadableCut cut(*room.store, {});
  {
    Upload upload = room.reserve(cut.declaration(1));
    ASSERT_EQ(verdict_of(cut.put(upload)), "success");
  }
  EXPECT_EQ(room.state(cut.declaration(1)), kAbortedState);
  EXPECT_EQ(room.reserved(), 0);
  UploadableCut again(*room.store, {});
  ASSERT_EQ(verdict_of(again.save(1)), "success");
  again.expect_restorable();
  room.check();
}

TEST(UploadReplay, AQuarantinedUploadStaysSo) {
  MemoryRoom room;
  { const Upload upload = room.reserve(room.declaration(1)); }
  Planter(*room.store).run([&](sqlite::Database& db) { return db.run("UPDATE uploads SET state = 6"); });
  EXPECT_EQ(room.refusal(room.declaration(1)), "state:upload is not reserved");
}

TEST(UploadFence, TheNewestSessionWins) {
  MemoryRoom room;
  UploadableCut older_cut(*room.store, {});
  UploadableCut newer_cut(*room.store, {});
  auto older = std::optional(room.reserve(older_cut.declaration(1)));
  ASSERT_EQ(verdict_of(older_cut.put(*older)), "success");
  Upload newer = room.reserve(newer_cut.declaration(1));
  EXPECT_FALSE(newer.is_replay());
  EXPECT_EQ(verdict_of(older_cut.publish(*older)), kSupersededVerdict);
  EXPECT_EQ(verdict_of(older_cut.publish(*older)), kPoisonedVerdict);
  older.reset();
  EXPECT_EQ(room.state(newer_cut.declaration(1)), 1) << "the end of the older one does nothing";
  EXPECT_EQ(room.reserved(), static_cast<std::int64_t>(newer_cut.expected_bytes()));
  ASSERT_EQ(verdict_of(newer_cut.put(newer)), "success");
  ASSERT_EQ(verdict_of(newer_cut.publish(newer)), "success");
  newer_cut.expect_restorable();
  room.check();
}

TEST(UploadFence, WhatTheOlderSessionHasLinkedIsRemoved) {
  MemoryRoom room;
  const CutToUpload cut = cut_of_two_batches();
  UploadableCut older_cut(*room.store, cut);
  auto older = std::optional(room.reserve(older_cut.declaration(1)));
  ASSERT_EQ(verdict_of(older_cut.put(*older)), "success");
  ASSERT_EQ(object_files(room.context(), ObjectKind::kChunk).size(), 256u);
  UploadableCut newer_cut(*room.store, cut);
  Upload newer = room.reserve(newer_cut.declaration(1));
  EXPECT_EQ(object_files(room.context(), ObjectKind::kChunk).size(), 0u);
  EXPECT_EQ(verdict_of(older_cut.publish(*older)), kSupersededVerdict);
  older.reset();
  ASSERT_EQ(verdict_of(newer_cut.put(newer)), "success");
  ASSERT_EQ(verdict_of(newer_cut.publish(newer)), "success");
  newer_cut.expect_restorable();
  room.check();
}

TEST(UploadFence, ASessionWhosePlansAreBeingUndoneSettlesNothing) {
  MemoryRoom room;
  UploadableCut cut(*room.store, cut_of_two_batches());
  auto older = std::optional(room.reserve(cut.declaration(1)));
  ASSERT_EQ(verdict_of(cut.put(*older)), "success");
  // The take-over removes the files, and then its transaction fails.
  auto d = cut.declaration(1);
  d.parent_manifest = planted_id(1);
  EXPECT_EQ(room.refusal(d), "not_found:artifact not found");
  EXPECT_EQ(room.number("SELECT fence FROM uploads"), 1);
  EXPECT_EQ(object_files(room.context(), ObjectKind::kChunk).size(), 0u);
  EXPECT_EQ(verdict_of(cut.publish(*older)), kSupersededVerdict);
  older.reset();
  EXPECT_EQ(room.state(cut.declaration(1)), kAbortedState);
  room.check();
}

TEST(UploadFence, ASessionThatIsPublishedUnderItsOlderOneIsAReplay) {
  MemoryRoom room;
  UploadableCut first(*room.store, {});
  Upload upload = room.reserve(first.declaration(1));
  ASSERT_EQ(verdict_of(first.put(upload)), "success");
  ASSERT_EQ(verdict_of(first.publish(upload)), "success");
  EXPECT_TRUE(room.reserve(first.declaration(1)).is_replay());
  EXPECT_EQ(verdict_of(first.publish(upload)), "state:upload is not reserved");
  EXPECT_EQ(room.state(first.declaration(1)), kPublishedState);
}

TEST(UploadFence, AnUploadThatIsGoneIsNotFound) {
  MemoryRoom room;
  UploadableCut cut(*room.store, {});
  Upload upload = room.reserve(cut.declaration(1));
  ASSERT_EQ(verdict_of(cut.put(upload)), "success");
  Planter(*room.store).run([&](sqlite::Database& db) { return db.run("DELETE FROM uploads"); });
  EXPECT_EQ(verdict_of(cut.publish(upload)), "not_found:artifact not found");
}

}  // namespace
}  // namespace kvpack::upload_reserve_test
