#include "kvpack/store/upkeep.h"
#include "support/upload_room.h"

namespace kvpack::upload_end_test {
namespace {

using store::Counter;
using store::ObjectKind;
using store::Upload;
using store::UploadDeclaration;
using store::UploadKind;
using testing::catalog_number;
using testing::cut_of_two_batches;
using testing::expect_no_orphans;
using testing::expect_sound;
using testing::FakeStoreFixture;
using testing::kAbortedState;
using testing::kPoisonedVerdict;
using testing::kPublishedState;
using testing::MemoryRoom;
using testing::object_files;
using testing::planted_id;
using testing::Planter;
using testing::UploadableCut;
using testing::verdict_of;

TEST(UploadAbort, ADroppedSessionLeavesNothing) {
  for (const bool explicitly : {false, true}) {
    MemoryRoom room;
    room.context().options.endurance_bytes_per_five_minutes = std::uint64_t{1} << 40;
    UploadableCut cut(*room.store, cut_of_two_batches());
    {
      Upload upload = room.reserve(cut.declaration(1));
      ASSERT_EQ(verdict_of(cut.put(upload)), "success");
      EXPECT_EQ(room.state(cut.declaration(1)), 2);
      if (explicitly) {
        upload.abort();
        EXPECT_EQ(verdict_of(cut.publish(upload)), kPoisonedVerdict);
      }
    }
    EXPECT_EQ(room.state(cut.declaration(1)), kAbortedState);
    EXPECT_EQ(room.reserved(), 0);
    EXPECT_EQ(room.number("SELECT sum(bytes) FROM endurance"), 0);
    EXPECT_EQ(room.number("SELECT count(*) FROM upload_objects"), 0);
    EXPECT_TRUE(object_files(room.context(), ObjectKind::kChunk).empty());
    EXPECT_EQ(room.context().counters.value(Counter::kSavesRefused), 0u) << "given up, not refused";
    room.check();
  }
}

TEST(UploadAbort, SettledChunksStayForTheCollector) {
  MemoryRoom room;
  std::vector<std::uint64_t> single(260, 1);
  UploadableCut cut(*room.store, {.tokens = 260, .chunk_tokens = {single, single}});
  const auto expected = static_cast<std::int64_t>(cut.expected_bytes());
  {
    Upload upload = room.reserve(cut.declaration(1));
    ASSERT_EQ(verdict_of(cut.put(upload)), "success");  // two batches of 256: the first is settled
    EXPECT_EQ(room.number("SELECT count(*) FROM chunks"), 256);
    EXPECT_EQ(room.reserved(), expected - 256 * 8'192);
    EXPECT_EQ(room.number("SELECT durable_bytes FROM store"), 256 * 8'192);
  }
  EXPECT_EQ(room.number("SELECT count(*) FROM chunks WHERE refcount = 0 AND state = 1"), 256);
  EXPECT_EQ(room.number("SELECT sum(bytes) FROM endurance"), 256 * 8'192);
  EXPECT_EQ(room.reserved(), 0);
  room.check();
  const auto collected = collect(*room.store);
  ASSERT_TRUE(collected.has_value()) << collected.error().verdict();
  EXPECT_EQ(collected->chunks_collected, 256u);
  room.check();
}

TEST(UploadAbort, OneThatFailsIsDoneByTheNextReservation) {
  FakeStoreFixture f;
  const auto store = f.create();
  UploadableCut cut(*store, cut_of_two_batches());
  {
    auto upload = Upload::reserve(store->context(), cut.declaration(1));
    ASSERT_TRUE(upload.has_value());
    ASSERT_EQ(verdict_of(cut.put(*upload)), "success");
    f.files.fail_verb("unlink", EIO);
  }
  f.files.fail_verb("unlink", 0);
  EXPECT_EQ(catalog_number(*store, "SELECT state FROM uploads"), 2);
  EXPECT_EQ(object_files(store->context(), ObjectKind::kChunk).size(), 256u);
  UploadableCut other(*store, {.seed = 2});
  ASSERT_EQ(verdict_of(other.save(2)), "success");
  EXPECT_EQ(catalog_number(*store, "SELECT reserved_bytes FROM store"), 0);
  expect_sound(*store);
  expect_no_orphans(*store);
}

TEST(UploadAbort, ALapsedSessionIsAborted) {
  MemoryRoom room;
  UploadableCut cut(*room.store, {});
  Upload silent = room.reserve(cut.declaration(1));
  room.clock.advance_ms(10 * 60'000);
  ASSERT_EQ(verdict_of(cut.put(silent)), "success");
  room.clock.advance_ms(15 * 60'000 - 1);
  ASSERT_TRUE(store::abort_lapsed_uploads(room.context()).has_value());
  EXPECT_NE(room.state(cut.declaration(1)), kAbortedState) << "each call renews the lease";
  room.clock.advance_ms(1);
  const Upload other = room.reserve(room.declaration(2));
  EXPECT_EQ(room.state(cut.declaration(1)), kAbortedState);
  EXPECT_EQ(verdict_of(cut.publish(silent)), "state:upload is not reserved");
  room.check();
}

TEST(UploadAbort, AnotherHandlesUploadsAreNotLapsed) {
  MemoryRoom room;
  Planter plant(*room.store);
  plant.upload(planted_id(77));
  room.clock.advance_ms(60 * 60'000);
  ASSERT_TRUE(store::abort_lapsed_uploads(room.context()).has_value());
  EXPECT_EQ(room.number("SELECT count(*) FROM uploads WHERE state = 5"), 0);
}

TEST(UploadAbort, AnUploadThatHasEndedIsLeftAsItIs) {
  MemoryRoom room;
  UploadableCut cut(*room.store, {});
  ASSERT_EQ(verdict_of(cut.save(1)), "success");
  const std::int64_t upload = room.number("SELECT upload FROM uploads");
  Planter(*room.store).run([&](sqlite::Database& db) -> Status {
    KVPACK_TRY(store::abort_upload(room.context(), db, upload));
    return store::abort_upload(room.context(), db, upload + 1);
  });
  EXPECT_EQ(room.state(cut.declaration(1)), kPublishedState);
  cut.expect_restorable();
}

struct Import {
  MemoryRoom& room;
  UploadDeclaration d;
  std::vector<std::pair<ChunkRef, Bytes>> chunks;

  explicit Import(MemoryRoom& in) : room(in), d(in.declaration(1, 10'000'000)) {
    d.kind = UploadKind::kImport;
    for (std::uint64_t i = 0; i < 600; ++i) {
      Bytes object(8'192);
      store_le<std::uint64_t>(object, 0, i);
      // Two objects of each content.
      chunks.push_back({{.content_id = planted_id(5'000 + i / 2),
                         .object_key = planted_id(6'000 + i),
                         .stored_object_digest = Id32{sha256(object)},
                         .key_epoch = 1,
                         .plaintext_bytes = 100,
                         .object_bytes = 8'192},
                        object});
    }
  }
  Status put(Upload& upload, std::size_t from, std::size_t to) {
    for (std::size_t i = from; i < to; ++i) KVPACK_TRY(upload.put_chunk(chunks[i].first, chunks[i].second));
    return success();
  }
};

TEST(UploadImport, AnInterruptedImportGoesOnWhereItsRecordsAreSettled) {
  MemoryRoom room;
  Import import(room);
  {
    Upload upload = room.reserve(import.d);
    EXPECT_EQ(upload.settled_records(), 0u);
    ASSERT_EQ(verdict_of(import.put(upload, 0, 520)), "success");
    EXPECT_EQ(upload.settled_records(), 256u);
    upload.suspend();
    EXPECT_EQ(verdict_of(upload.put_chunk(import.chunks[0].first, import.chunks[0].second)),
              kPoisonedVerdict);
  }
  EXPECT_EQ(room.state(import.d), 2);
  room.clock.advance_ms(60 * 60'000);
  room.reopen();
  EXPECT_EQ(room.state(import.d), 2);
  Upload upload = room.reserve(import.d);
  EXPECT_EQ(upload.settled_records(), 256u);
  EXPECT_EQ(object_files(room.context(), ObjectKind::kChunk).size(), 256u)
      << "what was not settled is undone";
  EXPECT_EQ(room.number("SELECT count(*) FROM upload_objects WHERE phase = 2"), 256);
  ASSERT_EQ(verdict_of(import.put(upload, 256, 600)), "success");
  UploadableCut cut(*room.store, {});
  ASSERT_EQ(verdict_of(cut.save(9)), "success");
  ASSERT_EQ(verdict_of(cut.publish(upload)), "success");
  EXPECT_EQ(upload.settled_records(), 600u);
  EXPECT_EQ(room.number("SELECT count(*) FROM chunks WHERE plaintext_bytes = 100"), 600)
      << "a second object of a known content is kept";
  room.check();
}

TEST(UploadImport, ObjectsThatAreThereAreAdopted) {
  MemoryRoom room;
  Import import(room);
  import.chunks.resize(100);
  {
    Upload upload = room.reserve(import.d);
    ASSERT_EQ(verdict_of(import.put(upload, 0, 100)), "success");
    UploadableCut cut(*room.store, {});
    ASSERT_EQ(verdict_of(cut.save(9)), "success");
    ASSERT_EQ(verdict_of(cut.publish(upload)), "success");
  }
  import.d.idempotency_key = planted_id(99);
  Upload upload = room.reserve(import.d);
  ASSERT_EQ(verdict_of(import.put(upload, 0, 100)), "success");
  ASSERT_EQ(verdict_of(import.put(upload, 0, 1)), "success");
  const auto found = upload.find_chunk(import.chunks[0].first.content_id, 100);
  ASSERT_TRUE(found.has_value());
  EXPECT_FALSE(found->has_value()) << "an import finds nothing by content";
  UploadableCut cut(*room.store, {.tokens = 301});
  ASSERT_EQ(verdict_of(cut.save(10)), "success");
  ASSERT_EQ(verdict_of(cut.publish(upload)), "success");
  EXPECT_EQ(upload.settled_records(), 101u);
  EXPECT_EQ(room.number("SELECT count(*) FROM chunks WHERE plaintext_bytes = 100"), 100);
  room.check();
}

TEST(UploadImport, AnObjectThatContradictsItsRowIsRefused) {
  MemoryRoom room;
  Import import(room);
  {
    Upload upload = room.reserve(import.d);
    ASSERT_EQ(verdict_of(import.put(upload, 0, 512)), "success");
    upload.suspend();
  }
  import.chunks[0].first.stored_object_digest = planted_id(1);
  import.d.idempotency_key = planted_id(99);
  Upload upload = room.reserve(import.d);
  EXPECT_EQ(verdict_of(import.put(upload, 0, 256)),
            "authentication:manifest references a mismatched chunk catalog row");
}

TEST(UploadImport, AnAbandonedImportLapsesAfterADay) {
  MemoryRoom room;
  Import import(room);
  {
    Upload upload = room.reserve(import.d);
    ASSERT_EQ(verdict_of(import.put(upload, 0, 300)), "success");
    upload.suspend();
  }
  room.reopen();
  room.clock.advance_ms(24 * 3'600'000 - 1);
  ASSERT_TRUE(store::abort_lapsed_uploads(room.context()).has_value());
  EXPECT_EQ(room.state(import.d), 2);
  room.clock.advance_ms(1);
  ASSERT_TRUE(store::abort_lapsed_uploads(room.context()).has_value());
  EXPECT_EQ(room.state(import.d), kAbortedState);
  EXPECT_EQ(room.reserved(), 0);
  room.check();
}

TEST(UploadImport, AnImportThatIsDroppedIsAborted) {
  MemoryRoom room;
  Import import(room);
  {
    Upload upload = room.reserve(import.d);
    ASSERT_EQ(verdict_of(import.put(upload, 0, 300)), "success");
  }
  EXPECT_EQ(room.state(import.d), kAbortedState);
  EXPECT_EQ(room.reserve(import.d).settled_records(), 0u);
}

}  // namespace
}  // namespace kvpack::upload_end_test
