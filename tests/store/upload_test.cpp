#include "store/upload.h"

#include <gmock/gmock.h>

#include <thread>

#include "kvpack/store/upkeep.h"
#include "store/intent.h"
#include "store/object_batch.h"
#include "support/uploads.h"

namespace kvpack::upload_test {
namespace {

using store::Counter;
using store::ManifestToPublish;
using store::ObjectKind;
using store::Upload;
using store::UploadDeclaration;
using store::UploadKind;
using testing::catalog_number;
using testing::CutToUpload;
using testing::expect_no_orphans;
using testing::expect_sound;
using testing::FakeStoreFixture;
using testing::object_files;
using testing::planted_id;
using testing::Planter;
using testing::state_of;
using testing::StoreFixture;
using testing::UploadableCut;

constexpr std::int64_t kPublished = 4;
constexpr std::int64_t kAborted = 5;
constexpr const char* kSuperseded = "state:upload session was superseded";
constexpr const char* kPoisonedText = "poisoned:export session is poisoned";

std::string verdict_of(const Status& status) {
  return status.has_value() ? "success" : status.error().verdict();
}
std::string verdict_of(const Result<Upload>& upload) {
  return upload.has_value() ? "success" : upload.error().verdict();
}

// An open store, with what tests ask and do of it.
template <class Fixture>
struct RoomOn : Fixture {
  std::unique_ptr<Store> store = Fixture::create();

  store::StoreContext& context() { return store->context(); }
  Upload reserve(const UploadDeclaration& d) {
    auto upload = Upload::reserve(context(), d);
    EXPECT_TRUE(upload.has_value()) << upload.error().verdict();
    return *std::move(upload);
  }
  std::string refusal(const UploadDeclaration& d) { return verdict_of(Upload::reserve(context(), d)); }
  UploadDeclaration declaration(std::uint64_t key, std::uint64_t expected_bytes = 1'000'000) {
    UploadDeclaration d;
    d.idempotency_key = planted_id(1'000'000 + key);
    d.intent_digest = planted_id(2'000'000 + key);
    d.expected_bytes = expected_bytes;
    return d;
  }
  std::int64_t state(const UploadDeclaration& d) {
    return catalog_number(*store, "SELECT state FROM uploads WHERE idempotency_key = ?", d.idempotency_key);
  }
  std::int64_t number(std::string_view sql) { return catalog_number(*store, sql); }
  std::int64_t reserved() { return number("SELECT reserved_bytes FROM store"); }
  std::int64_t uploads() { return number("SELECT count(*) FROM uploads"); }
  void reopen() {
    store.reset();
    store = Fixture::open();
  }
  void check() {
    expect_sound(*store);
    expect_no_orphans(*store);
    EXPECT_TRUE(context()
                    .files.partials()
                    .list([](std::string_view name) {
                      ADD_FAILURE() << name << " is left";
                      return true;
                    })
                    .has_value());
  }
  std::string path(ObjectKind kind, const Id32& id) { return context().files.object_path(kind, id); }
  static void overwrite(const std::string& file, const std::string& bytes) {
    std::ofstream(file, std::ios::trunc | std::ios::binary) << bytes;
  }
  static void flip(const std::string& file, std::streamoff at) {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(at);
    const char byte = static_cast<char>(stream.get() ^ 1);
    stream.seekp(at);
    stream.put(byte);
  }
};
using Room = RoomOn<StoreFixture>;
// Where nothing but the catalog has to be on a disk.
using MemoryRoom = RoomOn<FakeStoreFixture>;

Id32 first_chunk(const UploadableCut& cut) {
  return cut.manifest().payload[0].chunks[0].object_key;
}

// --- one save
// -----------------------------------------------------------------------------------------------------------------------

TEST(Upload, APublishedCutCanBeFoundAndRestored) {
  for (const bool encrypt : {false, true}) {
    Room room;
    UploadableCut cut(*room.store, {.encrypt = encrypt});
    ASSERT_EQ(verdict_of(cut.save(1)), "success");
    cut.expect_restorable();
    room.check();
    EXPECT_EQ(room.state(cut.declaration(1)), kPublished);
    EXPECT_EQ(room.reserved(), 0);
    EXPECT_EQ(room.number("SELECT count(*) FROM chunks"), 4);
    EXPECT_EQ(room.number("SELECT min(refcount) FROM chunks"), 1);
    EXPECT_EQ(room.number("SELECT exact_final FROM prefixes"), 1);
    EXPECT_EQ(room.number("SELECT restored_bytes FROM manifests"), 2 * 16 * 300);
    EXPECT_EQ(room.number("SELECT count(*) FROM upload_objects"), 0);
    EXPECT_EQ(room.number("SELECT written_bytes FROM uploads"),
              room.number("SELECT durable_bytes FROM store"));
    EXPECT_EQ(room.number("SELECT sum(bytes) FROM endurance"),
              room.number("SELECT durable_bytes FROM store"));
    const auto& counters = room.context().counters;
    EXPECT_EQ(counters.value(Counter::kSavesAttempted), 1u);
    EXPECT_EQ(counters.value(Counter::kSavesCommitted), 1u);
    EXPECT_EQ(counters.value(Counter::kSavesRefused), 0u);
    EXPECT_EQ(static_cast<std::int64_t>(counters.value(Counter::kSaveBytesWritten)),
              room.number("SELECT durable_bytes FROM store"));
    EXPECT_EQ(counters.value(Counter::kSaveBytesShared), 0u);
    room.reopen();
    UploadableCut again(*room.store, {.encrypt = encrypt});
    ASSERT_EQ(verdict_of(again.save(1)), "success");
    again.expect_restorable();
    EXPECT_EQ(room.number("SELECT count(*) FROM manifests"), 1);
  }
}

TEST(Upload, ASaveOfOneBatchIsFourCommits) {
  MemoryRoom room;
  int commits = 0;
  room.context().catalog->on_commit([&](sqlite::Database&) { ++commits; });
  UploadableCut cut(*room.store, {});
  ASSERT_EQ(verdict_of(cut.save(1)), "success");
  // Pruning the quarantine is a transaction of its own.
  EXPECT_EQ(commits, 4 + 1);
}

TEST(Upload, ABatchEndsAtTwoHundredAndFiftySixObjects) {
  MemoryRoom room;
  std::vector<std::uint64_t> single(130, 1);
  UploadableCut cut(*room.store, {.tokens = 130, .chunk_tokens = {single, single}});
  int commits = 0;
  room.context().catalog->on_commit([&](sqlite::Database&) { ++commits; });
  Upload upload = room.reserve(cut.declaration(1));
  commits = 0;
  ASSERT_EQ(verdict_of(cut.put(upload)), "success");
  EXPECT_EQ(commits, 1);
  EXPECT_EQ(room.number("SELECT count(*) FROM upload_objects WHERE phase = 1"), 256);
  EXPECT_EQ(object_files(room.context(), ObjectKind::kChunk).size(), 256u);
  EXPECT_EQ(room.context().staged_files, 4u);
  ASSERT_EQ(verdict_of(cut.publish(upload)), "success");
  EXPECT_EQ(commits, 4);
  EXPECT_EQ(upload.settled_records(), 260u);
  cut.expect_restorable();
  room.check();
}

TEST(Upload, ABatchEndsEarlyWhenTooManyTemporaryFilesAreOpen) {
  MemoryRoom room;
  std::vector<std::uint64_t> single(10, 1);
  UploadableCut cut(*room.store, {.tokens = 10, .chunk_tokens = {single, single}});
  Upload upload = room.reserve(cut.declaration(1));
  room.context().staged_files += store::kMaxStagedFiles;
  ASSERT_EQ(verdict_of(cut.put(upload)), "success");
  EXPECT_EQ(room.context().staged_files, store::kMaxStagedFiles + 1);
  ASSERT_EQ(verdict_of(cut.publish(upload)), "success");
  room.context().staged_files -= store::kMaxStagedFiles;
  EXPECT_EQ(room.context().staged_files, 0u);
  cut.expect_restorable();
}

TEST(Upload, NothingIsLinkedBeforeItsPlanIsDurableNorARowMadeBeforeItsFileIs) {
  for (const bool unnamed : {true, false}) {
    FakeStoreFixture f;
    f.files.support_unnamed_files(unnamed);
    const auto store = f.create();
    store::StoreContext& context = store->context();
    int links = 0;
    f.files.before_operation([&](const testing::Operation& operation) {
      const std::string name = operation.path.substr(operation.path.rfind('/') + 1);
      // With a name, the operation is told with the old one.
      if (operation.verb != "link") return;
      ++links;
      if (!unnamed) return;
      const auto id = Id32::from_hex(name.substr(0, 64));
      ASSERT_TRUE(id.has_value());
      EXPECT_EQ(catalog_number(*store,
                               "SELECT count(*) FROM upload_objects WHERE object_id = ? AND phase = 1", *id),
                1);
    });
    int rows = 0;
    context.catalog->on_commit([&](sqlite::Database& db) {
      // The oldest of all states that a power cut may leave now.
      const auto image = f.files.after_power_cut([](std::size_t) { return std::size_t{0}; });
      for (const auto& [kind, sql] :
           {std::pair(ObjectKind::kChunk, "SELECT object_key, object_bytes FROM chunks WHERE state = 1"),
            std::pair(ObjectKind::kManifest,
                      "SELECT manifest_id, file_bytes FROM manifests WHERE state = 1")}) {
        auto row = *db.prepare(sql);
        while (*row.step()) {
          const auto file = image.file(context.files.object_path(kind, row.id(0)));
          ASSERT_TRUE(file.has_value());
          EXPECT_EQ(file->size(), row.count(1));
          ++rows;
        }
      }
    });
    UploadableCut cut(*store, {.tokens = 600});
    ASSERT_EQ(verdict_of(cut.save(1)), "success");
    EXPECT_EQ(links, 7);
    EXPECT_GT(rows, 6);
    context.catalog->on_commit({});
    cut.expect_restorable();
  }
}

TEST(Upload, AContentThatIsPutTwiceIsOneObject) {
  MemoryRoom room;
  UploadableCut cut(*room.store, {.tokens = 256});
  Upload upload = room.reserve(cut.declaration(1));
  ASSERT_EQ(verdict_of(cut.put(upload)), "success");
  const ChunkRef ref = cut.writer().plans()[0].refs[0];
  ChunkRef other = ref;
  other.object_key = planted_id(1);
  ASSERT_EQ(verdict_of(upload.put_chunk(other, Bytes(other.object_bytes))), "success");
  EXPECT_EQ(upload.settled(other), ref);
  const auto found = upload.find_chunk(ref.content_id, ref.plaintext_bytes);
  ASSERT_TRUE(found.has_value() && found->has_value());
  EXPECT_EQ(**found, ref);
  ASSERT_EQ(verdict_of(cut.publish(upload)), "success");
  EXPECT_EQ(room.number("SELECT count(*) FROM chunks"), 2);
  EXPECT_EQ(upload.head_id(), cut.manifest_id());
  cut.expect_restorable();
  room.check();
}

TEST(Upload, AReferenceMustFitItsObject) {
  MemoryRoom room;
  ChunkRef ref{.content_id = planted_id(1),
               .object_key = planted_id(2),
               .stored_object_digest = planted_id(3),
               .key_epoch = 1,
               .plaintext_bytes = 1,
               .object_bytes = 8'192};
  const auto refusal_of = [&](const ChunkRef& bad, std::size_t size) {
    Upload upload = room.reserve(room.declaration(1));
    return verdict_of(upload.put_chunk(bad, Bytes(size)));
  };
  EXPECT_EQ(refusal_of(ref, 8'191), "state:chunk object does not have the length of its reference");
  ref.object_bytes = 8'193;
  EXPECT_EQ(refusal_of(ref, 8'193), "semantics:chunk object size is not aligned");
  ref.object_bytes = 8'192;
  ref.content_id = {};
  EXPECT_EQ(refusal_of(ref, 8'192), "semantics:chunk reference contains a zero identity");
}

// --- reserving
// ----------------------------------------------------------------------------------------------------------------------

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

// --- the same key again
// -------------------------------------------------------------------------------------------------------------

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
  EXPECT_EQ(room.state(cut.declaration(1)), kPublished);
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
  EXPECT_EQ(verdict_of(other.put(upload)), kPoisonedText);
  EXPECT_EQ(room.state(cut.declaration(1)), kPublished);
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
  EXPECT_EQ(room.state(cut.declaration(1)), kAborted);
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

// --- fencing
// ------------------------------------------------------------------------------------------------------------------------

TEST(UploadFence, TheNewestSessionWins) {
  MemoryRoom room;
  UploadableCut older_cut(*room.store, {});
  UploadableCut newer_cut(*room.store, {});
  auto older = std::optional(room.reserve(older_cut.declaration(1)));
  ASSERT_EQ(verdict_of(older_cut.put(*older)), "success");
  Upload newer = room.reserve(newer_cut.declaration(1));
  EXPECT_FALSE(newer.is_replay());
  EXPECT_EQ(verdict_of(older_cut.publish(*older)), kSuperseded);
  EXPECT_EQ(verdict_of(older_cut.publish(*older)), kPoisonedText);
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
  std::vector<std::uint64_t> single(130, 1);
  const CutToUpload cut{.tokens = 130, .chunk_tokens = {single, single}};
  UploadableCut older_cut(*room.store, cut);
  auto older = std::optional(room.reserve(older_cut.declaration(1)));
  ASSERT_EQ(verdict_of(older_cut.put(*older)), "success");
  ASSERT_EQ(object_files(room.context(), ObjectKind::kChunk).size(), 256u);
  UploadableCut newer_cut(*room.store, cut);
  Upload newer = room.reserve(newer_cut.declaration(1));
  EXPECT_EQ(object_files(room.context(), ObjectKind::kChunk).size(), 0u);
  EXPECT_EQ(verdict_of(older_cut.publish(*older)), kSuperseded);
  older.reset();
  ASSERT_EQ(verdict_of(newer_cut.put(newer)), "success");
  ASSERT_EQ(verdict_of(newer_cut.publish(newer)), "success");
  newer_cut.expect_restorable();
  room.check();
}

TEST(UploadFence, ASessionWhosePlansAreBeingUndoneSettlesNothing) {
  MemoryRoom room;
  std::vector<std::uint64_t> single(130, 1);
  UploadableCut cut(*room.store, {.tokens = 130, .chunk_tokens = {single, single}});
  auto older = std::optional(room.reserve(cut.declaration(1)));
  ASSERT_EQ(verdict_of(cut.put(*older)), "success");
  // The take-over removes the files, and then its transaction fails.
  auto d = cut.declaration(1);
  d.parent_manifest = planted_id(1);
  EXPECT_EQ(room.refusal(d), "not_found:artifact not found");
  EXPECT_EQ(room.number("SELECT fence FROM uploads"), 1);
  EXPECT_EQ(object_files(room.context(), ObjectKind::kChunk).size(), 0u);
  EXPECT_EQ(verdict_of(cut.publish(*older)), kSuperseded);
  older.reset();
  EXPECT_EQ(room.state(cut.declaration(1)), kAborted);
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
  EXPECT_EQ(room.state(first.declaration(1)), kPublished);
}

TEST(UploadFence, AnUploadThatIsGoneIsNotFound) {
  MemoryRoom room;
  UploadableCut cut(*room.store, {});
  Upload upload = room.reserve(cut.declaration(1));
  ASSERT_EQ(verdict_of(cut.put(upload)), "success");
  Planter(*room.store).run([&](sqlite::Database& db) { return db.run("DELETE FROM uploads"); });
  EXPECT_EQ(verdict_of(cut.publish(upload)), "not_found:artifact not found");
}

// --- sharing
// ------------------------------------------------------------------------------------------------------------------------

TEST(UploadSharing, AGrowingConversationUnderNewKeysSharesItsChunks) {
  MemoryRoom room;
  std::vector<std::unique_ptr<UploadableCut>> cuts;
  std::uint64_t key = 0;
  for (const std::size_t tokens : {std::size_t{300}, std::size_t{600}, std::size_t{900}, std::size_t{900}}) {
    cuts.push_back(std::make_unique<UploadableCut>(*room.store, CutToUpload{.tokens = tokens}));
    ASSERT_EQ(verdict_of(cuts.back()->save(++key)), "success");
  }
  for (const auto& cut : cuts) cut->expect_restorable();
  EXPECT_EQ(cuts[2]->manifest_id(), cuts[3]->manifest_id());
  EXPECT_EQ(room.number("SELECT count(*) FROM manifests"), 3);
  EXPECT_EQ(room.number("SELECT count(*) FROM chunks"), 2 * (2 + 2 + 2));
  EXPECT_EQ(room.number("SELECT max(refcount) FROM chunks"), 3);
  EXPECT_GT(room.context().counters.value(Counter::kSaveBytesShared), 0u);
  EXPECT_EQ(room.number("SELECT sum(bytes) FROM endurance"), room.number("SELECT durable_bytes FROM store"));
  room.check();
}

TEST(UploadSharing, AChunkThatAnotherSessionPublishesFirstIsAdopted) {
  MemoryRoom room;
  UploadableCut slow(*room.store, {});
  UploadableCut quick(*room.store, {});
  Upload upload = room.reserve(slow.declaration(1));
  ASSERT_EQ(verdict_of(slow.put(upload)), "success");
  ASSERT_EQ(verdict_of(quick.save(2)), "success");
  ASSERT_EQ(verdict_of(slow.publish(upload)), "success");
  EXPECT_EQ(slow.manifest_id(), quick.manifest_id());
  EXPECT_EQ(room.number("SELECT count(*) FROM chunks"), 4);
  room.check();
}

TEST(UploadSharing, AChunkThatWasLinkedAndLostIsRemoved) {
  MemoryRoom room;
  std::vector<std::uint64_t> single(130, 1);
  const CutToUpload cut{.tokens = 130, .chunk_tokens = {single, single}};
  UploadableCut slow(*room.store, cut);
  UploadableCut quick(*room.store, cut);
  Upload upload = room.reserve(slow.declaration(1));
  ASSERT_EQ(verdict_of(slow.put(upload)), "success");  // 256 are linked
  ASSERT_EQ(verdict_of(quick.save(2)), "success");
  EXPECT_EQ(object_files(room.context(), ObjectKind::kChunk).size(), 260u + 256u);
  ASSERT_EQ(verdict_of(slow.publish(upload)), "success");
  EXPECT_EQ(slow.manifest_id(), quick.manifest_id());
  EXPECT_EQ(object_files(room.context(), ObjectKind::kChunk).size(), 260u);
  EXPECT_EQ(room.number("SELECT count(*) FROM chunks"), 260);
  slow.expect_restorable();
  room.check();
}

TEST(UploadSharing, EqualFilesOfTwoSessionsAreOneAndOutliveEither) {
  for (const bool first_publishes : {true, false}) {
    MemoryRoom room;
    std::vector<std::uint64_t> single(130, 1);
    const CutToUpload cut{.tokens = 130, .encrypt = false, .chunk_tokens = {single, single}};
    UploadableCut first_cut(*room.store, cut);
    UploadableCut second_cut(*room.store, cut);
    auto first = std::optional(room.reserve(first_cut.declaration(1)));
    auto second = std::optional(room.reserve(second_cut.declaration(2)));
    ASSERT_EQ(verdict_of(first_cut.put(*first)), "success");
    ASSERT_EQ(verdict_of(second_cut.put(*second)), "success");
    EXPECT_EQ(object_files(room.context(), ObjectKind::kChunk).size(), 256u);
    if (first_publishes) {
      ASSERT_EQ(verdict_of(first_cut.publish(*first)), "success");
    }
    first.reset();
    EXPECT_GE(object_files(room.context(), ObjectKind::kChunk).size(), 256u);
    ASSERT_EQ(verdict_of(second_cut.publish(*second)), "success");
    second_cut.expect_restorable();
    room.check();
  }
}

TEST(UploadSharing, AFoundChunkIsPinnedUntilItIsPlanned) {
  MemoryRoom room;
  UploadableCut cut(*room.store, {.tokens = 256});
  ASSERT_EQ(verdict_of(cut.save(1)), "success");
  const ChunkRef ref = cut.manifest().payload[0].chunks[0];
  UploadableCut again(*room.store, {.tokens = 256});
  Upload upload = room.reserve(again.declaration(2));
  ASSERT_EQ(verdict_of(again.put(upload)), "success");
  EXPECT_TRUE(*room.context().pins.is_pinned(nullptr, ref.object_key));
  // A collector has made the chunk invisible meanwhile, and finds it pinned.
  Planter(*room.store).run([&](sqlite::Database& db) -> Status {
    KVPACK_TRY(db.run("DELETE FROM prefixes"));
    KVPACK_TRY(db.run("UPDATE manifests SET state = 2"));
    KVPACK_TRY(db.run("DELETE FROM manifest_chunks"));
    return db.run("UPDATE chunks SET state = 2");
  });
  ASSERT_EQ(verdict_of(again.publish(upload)), "success");
  EXPECT_FALSE(*room.context().pins.is_pinned(nullptr, ref.object_key));
  EXPECT_EQ(state_of(*room.store, ref.object_key), 1);
  again.expect_restorable();
  room.check();
}

TEST(UploadSharing, AFoundChunkThatIsGoneAfterAllEndsTheSave) {
  for (const bool file_alone : {true, false}) {
    Room room;
    UploadableCut cut(*room.store, {.tokens = 256});
    ASSERT_EQ(verdict_of(cut.save(1)), "success");
    UploadableCut again(*room.store, {.tokens = 256});
    Upload upload = room.reserve(again.declaration(2));
    ASSERT_EQ(verdict_of(again.put(upload)), "success");
    std::filesystem::remove(room.path(ObjectKind::kChunk, first_chunk(cut)));
    if (!file_alone)
      Planter(*room.store).run([&](sqlite::Database& db) { return db.run("UPDATE chunks SET state = 3"); });
    EXPECT_EQ(verdict_of(again.publish(upload)), "not_found:artifact not found");
  }
}

// --- healing
// ------------------------------------------------------------------------------------------------------------------------

TEST(UploadHealing, AChunkWhoseFileIsAbsentOrTornIsWrittenAgain) {
  for (const bool encrypt : {false, true})
    for (const bool absent : {false, true}) {
      Room room;
      UploadableCut cut(*room.store, {.encrypt = encrypt});
      ASSERT_EQ(verdict_of(cut.save(1)), "success");
      const std::string path = room.path(ObjectKind::kChunk, first_chunk(cut));
      if (absent) {
        std::filesystem::remove(path);
      } else {
        room.overwrite(path, "torn");
      }
      UploadableCut again(*room.store, {.encrypt = encrypt});
      ASSERT_EQ(verdict_of(again.save(2)), "success");
      again.expect_restorable();
      expect_sound(*room.store);
      ASSERT_FALSE(room.faults.empty());
      EXPECT_EQ(room.faults[0].id, first_chunk(cut));
      EXPECT_EQ(room.faults[0].path, path);
      EXPECT_EQ(again.manifest_id() == cut.manifest_id(), !encrypt);
    }
}

TEST(UploadHealing, ADamagedManifestIsReplacedBySavingAgain) {
  for (const bool encrypt : {false, true}) {
    Room room;
    UploadableCut cut(*room.store, {.encrypt = encrypt});
    ASSERT_EQ(verdict_of(cut.save(1)), "success");
    room.flip(room.path(ObjectKind::kManifest, cut.manifest_id()), 5'000);
    ASSERT_FALSE(cut.chain().has_value());
    UploadableCut again(*room.store, {.encrypt = encrypt});
    ASSERT_EQ(verdict_of(again.save(2)), "success");
    EXPECT_EQ(again.manifest_id(), cut.manifest_id());
    again.expect_restorable();
    EXPECT_EQ(room.number("SELECT count(*) FROM quarantine WHERE kind = 5"), 1);
    room.check();
  }
}

TEST(UploadHealing, EveryShardRemovedByHandIsHealed) {
  Room room;
  UploadableCut cut(*room.store, {});
  ASSERT_EQ(verdict_of(cut.save(1)), "success");
  for (const std::string kind : {"chunks", "manifests"})
    for (const auto& shard : std::filesystem::directory_iterator(room.options.root + "/objects/" + kind))
      std::filesystem::remove_all(shard);
  UploadableCut again(*room.store, {});
  ASSERT_EQ(verdict_of(again.save(2)), "success");
  again.expect_restorable();
  expect_sound(*room.store);
}

TEST(UploadHealing, OrphansOfAStoreThatLostItsCatalogRowsAreAdopted) {
  // What a crash between linking and committing leaves where nobody has planned it.
  MemoryRoom room;
  UploadableCut cut(*room.store, {.encrypt = false});
  ASSERT_EQ(verdict_of(cut.save(1)), "success");
  Planter(*room.store).run([&](sqlite::Database& db) -> Status {
    for (const char* table : {"prefixes", "manifest_chunks", "manifests", "chunks", "uploads"})
      KVPACK_TRY(db.execute((std::string("DELETE FROM ") + table).c_str()));
    return success();
  });
  UploadableCut again(*room.store, {.encrypt = false});
  ASSERT_EQ(verdict_of(again.save(1)), "success");
  again.expect_restorable();
  EXPECT_EQ(room.number("SELECT count(*) FROM quarantine"), 0);
  room.check();
}

TEST(UploadHealing, AForeignThingInAnObjectsPlaceIsRefusedAndLeftAlone) {
  Room room;
  UploadableCut cut(*room.store, {.encrypt = false});
  ASSERT_EQ(verdict_of(cut.save(1)), "success");
  const std::string path = room.path(ObjectKind::kChunk, first_chunk(cut));
  std::filesystem::remove(path);
  std::filesystem::create_symlink("/etc/hostname", path);
  UploadableCut again(*room.store, {.encrypt = false});
  EXPECT_EQ(verdict_of(again.save(2)), "authentication:existing immutable target has different bounds");
  EXPECT_TRUE(std::filesystem::is_symlink(path));
  EXPECT_EQ(room.state(again.declaration(2)), kAborted);
  EXPECT_EQ(room.reserved(), 0);
}

// --- ending
// -------------------------------------------------------------------------------------------------------------------------

TEST(UploadAbort, ADroppedSessionLeavesNothing) {
  for (const bool explicitly : {false, true}) {
    MemoryRoom room;
    room.context().options.endurance_bytes_per_five_minutes = std::uint64_t{1} << 40;
    std::vector<std::uint64_t> single(130, 1);
    UploadableCut cut(*room.store, {.tokens = 130, .chunk_tokens = {single, single}});
    {
      Upload upload = room.reserve(cut.declaration(1));
      ASSERT_EQ(verdict_of(cut.put(upload)), "success");
      EXPECT_EQ(room.state(cut.declaration(1)), 2);
      if (explicitly) {
        upload.abort();
        EXPECT_EQ(verdict_of(cut.publish(upload)), kPoisonedText);
      }
    }
    EXPECT_EQ(room.state(cut.declaration(1)), kAborted);
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
  std::vector<std::uint64_t> single(130, 1);
  UploadableCut cut(*store, {.tokens = 130, .chunk_tokens = {single, single}});
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
  EXPECT_NE(room.state(cut.declaration(1)), kAborted) << "each call renews the lease";
  room.clock.advance_ms(1);
  const Upload other = room.reserve(room.declaration(2));
  EXPECT_EQ(room.state(cut.declaration(1)), kAborted);
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
  EXPECT_EQ(room.state(cut.declaration(1)), kPublished);
  cut.expect_restorable();
}

// --- publishing
// ---------------------------------------------------------------------------------------------------------------------

TEST(UploadPublish, MoreThanWasReservedIsRefused) {
  MemoryRoom room;
  UploadableCut cut(*room.store, {});
  UploadDeclaration d = cut.declaration(1);
  const std::string refused = "quota:actual durable publication exceeds reservation";
  const std::uint64_t chunk_bytes = 2 * (12'288 + 8'192);
  d.expected_bytes = chunk_bytes - 1;
  EXPECT_EQ(verdict_of(cut.save(d)), refused);
  EXPECT_EQ(room.number("SELECT count(*) FROM chunks"), 0);
  room.check();
  UploadableCut again(*room.store, {});
  d = again.declaration(2);
  d.expected_bytes = chunk_bytes + 8'192;
  EXPECT_EQ(verdict_of(again.save(d)), refused);
  EXPECT_EQ(room.number("SELECT count(*) FROM manifests"), 0);
  EXPECT_EQ(room.reserved(), 0);
  room.check();
}

struct Batch {
  std::vector<std::unique_ptr<UploadableCut>> cuts;
  std::vector<BuiltCut> built;
};

class UploadBatch : public ::testing::Test {
 protected:
  // Manifests of the chain 100, 200, .. tokens, the chunks of which are in the store.
  std::vector<ManifestToPublish> chain(std::size_t count) {
    std::vector<ManifestToPublish> all;
    for (std::size_t i = 0; i < count; ++i) {
      std::optional<ManifestChain> parent;
      if (i > 0) parent.emplace(*cuts_.back()->chain());
      cuts_.push_back(std::make_unique<UploadableCut>(
          *room_.store, CutToUpload{.tokens = 100 * (i + 1), .parent = parent ? &*parent : nullptr}));
      const Status saved = cuts_.back()->save(i + 1);
      EXPECT_TRUE(saved.has_value()) << saved.error().verdict();
      ManifestToPublish entry;
      entry.manifest_id = cuts_.back()->manifest_id();
      entry.pack = cuts_.back()->pack().bytes;
      entry.manifest = &cuts_.back()->manifest();
      all.push_back(std::move(entry));
    }
    all.back().exact_final = true;
    return all;
  }
  std::string publish(std::vector<ManifestToPublish> manifests) {
    Upload upload = room_.reserve(room_.declaration(++key_));
    return verdict_of(upload.publish([&]() -> Result<std::vector<ManifestToPublish>> { return manifests; }));
  }

  MemoryRoom room_;
  std::vector<std::unique_ptr<UploadableCut>> cuts_;
  std::uint64_t key_ = 100;
};

TEST_F(UploadBatch, AChainIsPublishedAsAWhole) {
  const auto manifests = chain(9);
  EXPECT_EQ(manifests[7].manifest->schema.kind.depth, 7);
  EXPECT_FALSE(manifests[8].manifest->schema.kind.is_delta());
  Planter(*room_.store).run([&](sqlite::Database& db) -> Status {
    KVPACK_TRY(db.run("DELETE FROM prefixes"));
    return db.run("UPDATE manifests SET state = 2");
  });
  EXPECT_EQ(publish(manifests), "success");
  for (const auto& cut : cuts_) cut->expect_restorable();
  EXPECT_EQ(room_.number("SELECT count(*) FROM manifests WHERE state = 1"), 9);
  EXPECT_EQ(room_.number("SELECT sum(exact_final) FROM prefixes"), 1);
  room_.check();
}

TEST_F(UploadBatch, ExactlyTheLastIsFinal) {
  const std::string refused = "state:manifest batch requires one final publication in last position";
  auto manifests = chain(2);
  EXPECT_EQ(publish({}), refused);
  manifests[0].exact_final = true;
  EXPECT_EQ(publish(manifests), refused);
  manifests[1].exact_final = false;
  EXPECT_EQ(publish(manifests), refused);
  manifests[0].exact_final = false;
  EXPECT_EQ(publish(manifests), refused);
}

TEST_F(UploadBatch, IdentitiesAndOrderMustAgree) {
  const std::string refused = "expectation:manifest batch identities, order, or exact prefix nodes disagree";
  const auto good = chain(2);
  auto manifests = good;
  manifests[0].manifest_id = planted_id(1);
  EXPECT_EQ(publish(manifests), refused);
  manifests = good;
  manifests[1].manifest_id = manifests[0].manifest_id;
  EXPECT_EQ(publish(manifests), refused);
  manifests = good;
  manifests[1].pack = manifests[0].pack;
  EXPECT_EQ(publish(manifests), refused);
  manifests = good;
  manifests[1].pack[8] ^= 1;
  EXPECT_EQ(publish(manifests), refused);
  manifests = {good[1], good[0]};
  manifests[0].exact_final = false;
  manifests[1].exact_final = true;
  EXPECT_EQ(publish(manifests), refused);
  for (int field = 0; field < 3; ++field) {
    manifests = good;
    CutManifest other = *good[1].manifest;
    if (field == 0) other.tenant = planted_id(1);
    if (field == 1) other.semantic_model.adapters = planted_id(1);
    if (field == 2) other.family.topology = planted_id(1);
    manifests[1].manifest = &other;
    EXPECT_EQ(publish(manifests), refused);
  }
}

TEST_F(UploadBatch, TheManifestsMustBeOneChain) {
  const std::string refused =
      "expectation:manifest batch is not one full plus bounded deltas and compactions";
  const auto good = chain(3);
  auto manifests = std::vector{good[1], good[2]};
  EXPECT_EQ(publish(manifests), refused) << "a delta first";
  manifests = {good[0], good[2]};
  EXPECT_EQ(publish(manifests), refused) << "a parent that is left out";
  UploadableCut full(*room_.store, {.tokens = 200});
  ASSERT_EQ(verdict_of(full.save(50)), "success");
  manifests = good;
  manifests[1].manifest_id = full.manifest_id();
  manifests[1].pack = full.pack().bytes;
  manifests[1].manifest = &full.manifest();
  EXPECT_EQ(publish(manifests), refused) << "a full one behind depth 0";
}

TEST_F(UploadBatch, WhatAManifestStandsOnMustBeAvailable) {
  const std::string refused = "authentication:manifest references a mismatched chunk catalog row";
  const auto manifests = chain(2);
  auto second = std::vector{manifests[1]};
  const auto with = [&](const std::string& change) {
    std::string verdict;
    Upload upload = room_.reserve(room_.declaration(++key_));
    Planter(*room_.store).run([&](sqlite::Database& db) { return db.execute("SAVEPOINT test"); });
    Planter plant(*room_.store);
    plant.run([&](sqlite::Database& db) { return db.run(change); });
    verdict = verdict_of(upload.publish([&]() -> Result<std::vector<ManifestToPublish>> { return second; }));
    return verdict;
  };
  EXPECT_EQ(with("UPDATE chunks SET state = 3"), refused);
  EXPECT_EQ(with("UPDATE chunks SET state = 1, object_digest = zeroblob(32)"), refused);
  Planter(*room_.store).run([&](sqlite::Database& db) -> Status {
    for (const auto& cut : cuts_)
      for (const PayloadState& state : cut->manifest().payload)
        for (const ChunkRef& ref : state.chunks)
          KVPACK_TRY(db.run("UPDATE chunks SET object_digest = ? WHERE object_key = ?",
                            ref.stored_object_digest, ref.object_key));
    return success();
  });
  EXPECT_EQ(publish(second), "success");
  EXPECT_EQ(with("UPDATE manifests SET state = 3 WHERE depth = 0"), refused);
  EXPECT_EQ(with("UPDATE manifests SET state = 1, token_count = token_count + 1 WHERE depth = 0"), refused);
  EXPECT_EQ(room_.number("SELECT count(*) FROM uploads WHERE state IN (1, 2, 3)"), 0);
}

TEST_F(UploadBatch, ARowThatContradictsItsManifestIsRefused) {
  const auto manifests = chain(1);
  for (const std::string column : {"key_epoch", "token_count", "restored_bytes"}) {
    const auto change = [&](const char* by) {
      Planter(*room_.store).run([&](sqlite::Database& db) {
        return db.execute(("UPDATE manifests SET " + column + " = " + column + by).c_str());
      });
    };
    change(" + 1");
    EXPECT_EQ(publish(manifests),
              "authentication:existing manifest catalog row disagrees with immutable bytes");
    change(" - 1");
  }
  EXPECT_EQ(publish(manifests), "success");
}

TEST_F(UploadBatch, ALaterExpiryStaysAndNoneStays) {
  auto manifests = chain(1);
  const auto expiry = [&] { return room_.number("SELECT coalesce(expires_ns, -1) FROM manifests"); };
  EXPECT_EQ(expiry(), -1);
  const std::uint64_t now = room_.context().now_ns();
  manifests[0].expires_ns = now + 100;
  EXPECT_EQ(publish(manifests), "success");
  EXPECT_EQ(expiry(), -1) << "somebody keeps it for good";
  Planter(*room_.store).run([&](sqlite::Database& db) { return db.run("UPDATE manifests SET state = 3"); });
  EXPECT_EQ(publish(manifests), "success");
  EXPECT_EQ(expiry(), static_cast<std::int64_t>(now + 100)) << "what was withdrawn begins anew";
  manifests[0].expires_ns = now + 50;
  EXPECT_EQ(publish(manifests), "success");
  EXPECT_EQ(expiry(), static_cast<std::int64_t>(now + 100));
  manifests[0].expires_ns = std::numeric_limits<std::uint64_t>::max();
  EXPECT_EQ(publish(manifests), "success");
  EXPECT_EQ(expiry(), std::numeric_limits<std::int64_t>::max());
}

TEST_F(UploadBatch, AnErrorOfTheCallerIsReturnedAndNothingStays) {
  UploadableCut cut(*room_.store, {});
  {
    Upload upload = room_.reserve(cut.declaration(1));
    ASSERT_EQ(verdict_of(cut.put(upload)), "success");
    EXPECT_EQ(verdict_of(upload.publish([]() -> Result<std::vector<ManifestToPublish>> {
                return fail(ErrorCode::kCancelled, "operation was cancelled");
              })),
              "cancelled:operation was cancelled");
    EXPECT_EQ(verdict_of(cut.publish(upload)), kPoisonedText);
  }
  EXPECT_EQ(room_.number("SELECT count(*) FROM chunks"), 0);
  EXPECT_EQ(room_.context().counters.value(Counter::kSavesRefused), 1u);
  room_.check();
}

TEST_F(UploadBatch, AnExceptionOfTheCallerLeavesTheStoreUsable) {
  UploadableCut cut(*room_.store, {});
  {
    Upload upload = room_.reserve(cut.declaration(1));
    ASSERT_EQ(verdict_of(cut.put(upload)), "success");
    EXPECT_THROW(
        (void)upload.publish([]() -> Result<std::vector<ManifestToPublish>> { throw std::bad_alloc(); }),
        std::bad_alloc);
  }
  EXPECT_EQ(room_.state(cut.declaration(1)), kAborted);
  room_.check();
  UploadableCut again(*room_.store, {});
  ASSERT_EQ(verdict_of(again.save(1)), "success");
  again.expect_restorable();
}

TEST_F(UploadBatch, AFullCatalogPublishesNothing) {
  UploadableCut cut(*room_.store, {});
  Upload upload = room_.reserve(cut.declaration(1));
  ASSERT_EQ(verdict_of(cut.put(upload)), "success");
  const Status published = upload.publish([&]() -> Result<std::vector<ManifestToPublish>> {
    KVPACK_TRY_ASSIGN(auto manifests, cut.manifests(upload));
    return manifests;
  });
  ASSERT_TRUE(published.has_value());
  UploadableCut next(*room_.store, {.seed = 2});
  Upload second = room_.reserve(next.declaration(2));
  ASSERT_EQ(verdict_of(next.put(second)), "success");
  Planter plant(*room_.store);
  plant.run([](sqlite::Database& db) { return db.execute("PRAGMA max_page_count = 1"); });
  // Rows that need no new page still fit; what needs one does not.
  Status status = success();
  for (std::uint64_t key = 10; status.has_value(); ++key) {
    ASSERT_LT(key, 2'000u);
    const auto more = Upload::reserve(room_.context(), room_.declaration(key, 1));
    if (!more.has_value()) status = Error(more.error());
  }
  EXPECT_EQ(status.error().code, ErrorCode::kCatalog);
  EXPECT_TRUE(store::is_no_space(status.error()));
  plant.run([](sqlite::Database& db) { return db.execute("PRAGMA max_page_count = 1073741823"); });
  ASSERT_EQ(verdict_of(next.publish(second)), "success");
  room_.check();
}

// --- deltas
// -------------------------------------------------------------------------------------------------------------------------

TEST(UploadParent, TheParentIsKeptUntilTheUploadEnds) {
  MemoryRoom room;
  UploadableCut base(*room.store, {.tokens = 300});
  ASSERT_EQ(verdict_of(base.save(1)), "success");
  const ManifestChain chain = *base.chain();
  UploadableCut delta(*room.store, {.tokens = 400, .parent = &chain});
  {
    Upload upload = room.reserve(delta.declaration(2));
    EXPECT_EQ(catalog_number(*room.store, "SELECT phase FROM upload_objects WHERE kind = 2 AND object_id = ?",
                             base.manifest_id()),
              2);
    ASSERT_EQ(verdict_of(delta.put(upload)), "success");
    ASSERT_EQ(verdict_of(delta.publish(upload)), "success");
  }
  EXPECT_EQ(room.number("SELECT count(*) FROM upload_objects"), 0);
  delta.expect_restorable();
  EXPECT_EQ(room.number("SELECT children FROM manifests WHERE depth = 0"), 1);
  room.check();
}

TEST(UploadParent, AParentThatIsGoneIsNotFound) {
  Room room;
  UploadableCut base(*room.store, {});
  ASSERT_EQ(verdict_of(base.save(1)), "success");
  UploadDeclaration d = room.declaration(2);
  d.parent_manifest = planted_id(1);
  EXPECT_EQ(room.refusal(d), "not_found:artifact not found");
  d.parent_manifest = base.manifest_id();
  Planter plant(*room.store);
  const auto set_state = [&](int state) {
    plant.run([&](sqlite::Database& db) -> Status {
      KVPACK_TRY(db.run("DELETE FROM prefixes"));
      return db.run("UPDATE manifests SET state = ?", state);
    });
  };
  set_state(3);
  EXPECT_EQ(room.refusal(d), "not_found:artifact not found");
  set_state(2);
  EXPECT_EQ(room.refusal(d), "success");
  EXPECT_EQ(state_of(*room.store, base.manifest_id()), 1) << "one that was being evicted is brought back";
  set_state(2);
  std::filesystem::remove(room.path(ObjectKind::kManifest, base.manifest_id()));
  EXPECT_EQ(room.refusal(d), "not_found:artifact not found");
  EXPECT_EQ(room.reserved(), 0);
}

// --- imports
// ------------------------------------------------------------------------------------------------------------------------

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
    EXPECT_EQ(verdict_of(upload.put_chunk(import.chunks[0].first, import.chunks[0].second)), kPoisonedText);
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
  EXPECT_EQ(room.state(import.d), kAborted);
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
  EXPECT_EQ(room.state(import.d), kAborted);
  EXPECT_EQ(room.reserve(import.d).settled_records(), 0u);
}

// --- several sessions
// ---------------------------------------------------------------------------------------------------------------

TEST(UploadThreads, SessionsSaveTheSameAndOtherCutsAtOnce) {
  for (const bool encrypt : {false, true}) {
    MemoryRoom room;
    constexpr std::uint64_t kThreads = 6;
    constexpr std::uint64_t kRounds = 3;
    std::vector<std::vector<std::string>> verdicts(kThreads);
    {
      std::vector<std::jthread> threads;
      for (std::uint64_t t = 0; t < kThreads; ++t)
        threads.emplace_back([&, t] {
          for (std::uint64_t round = 0; round < kRounds; ++round) {
            // Every other thread saves what all of its kind save in this round.
            UploadableCut cut(*room.store,
                              {.tokens = 300 + 256 * (t % 3),
                               .seed = static_cast<unsigned>(t % 2 == 0 ? round : 100 + t * 10 + round),
                               .encrypt = encrypt});
            verdicts[t].push_back(verdict_of(cut.save(1'000 * t + round)));
            cut.expect_restorable();
          }
        });
    }
    for (const auto& of_thread : verdicts) EXPECT_THAT(of_thread, ::testing::Each("success"));
    room.check();
    // Contents that were saved by several are there once.
    EXPECT_EQ(room.number("SELECT count(*) FROM chunks"),
              room.number("SELECT count(DISTINCT content_id) FROM chunks"));
    EXPECT_EQ(room.reserved(), 0);
    EXPECT_EQ(room.context().staged_files, 0u);
  }
}

TEST(UploadThreads, OneKeyIsPublishedOnceHoweverManyTryIt) {
  MemoryRoom room;
  std::vector<std::uint64_t> single(130, 1);
  const CutToUpload what{.tokens = 130, .chunk_tokens = {single, single}};
  std::mutex mutex;
  std::map<std::string, int> verdicts;
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&] {
        for (int round = 0; round < 5; ++round) {
          UploadableCut cut(*room.store, what);
          const std::string verdict = verdict_of(cut.save(1));
          const std::lock_guard lock(mutex);
          ++verdicts[verdict];
        }
      });
  }
  EXPECT_EQ(verdicts["success"] + verdicts[kSuperseded], 20);
  EXPECT_GE(verdicts["success"], 1);
  UploadableCut cut(*room.store, what);
  ASSERT_EQ(verdict_of(cut.save(2)), "success");
  cut.expect_restorable();
  EXPECT_EQ(room.number("SELECT count(*) FROM manifests"), 1);
  EXPECT_EQ(room.number("SELECT count(*) FROM chunks"), 260);
  room.check();
}

TEST(UploadThreads, ATakeOverWaitsForWhatIsBeingLinked) {
  FakeStoreFixture f;
  const auto store = f.create();
  UploadableCut older_cut(*store, {});
  auto older = std::optional(*Upload::reserve(store->context(), older_cut.declaration(1)));
  ASSERT_EQ(verdict_of(older_cut.put(*older)), "success");
  std::jthread rival;
  std::string rival_verdict;
  bool first = true;
  f.files.before_operation([&](const testing::Operation& operation) {
    if (operation.verb != "link" || !std::exchange(first, false)) return;
    // While the older session links, another one takes its key.
    rival = std::jthread([&] {
      UploadableCut newer_cut(*store, {});
      rival_verdict = verdict_of(newer_cut.save(1));
    });
    std::this_thread::yield();
  });
  const std::string published = verdict_of(older_cut.publish(*older));
  rival.join();
  f.files.before_operation({});
  older.reset();
  EXPECT_EQ(published, "success");
  EXPECT_EQ(rival_verdict, "success");
  expect_sound(*store);
  expect_no_orphans(*store);
}

// --- failing disks
// ------------------------------------------------------------------------------------------------------------------

struct FaultCase {
  bool unnamed = true;
  bool encrypt = true;
};

class UploadFaults : public ::testing::TestWithParam<FaultCase> {
 protected:
  UploadFaults() {
    f_.files.support_unnamed_files(GetParam().unnamed);
    store_ = f_.create();
  }
  CutToUpload cut(unsigned seed) const {
    return {.tokens = 300, .seed = seed, .encrypt = GetParam().encrypt};
  }
  std::int64_t number(std::string_view sql) { return catalog_number(*store_, sql); }
  void expect_nothing_of(const UploadableCut& failed, const UploadDeclaration& d) {
    EXPECT_EQ(number("SELECT reserved_bytes FROM store"), 0);
    EXPECT_EQ(number("SELECT count(*) FROM upload_objects"), 0);
    EXPECT_EQ(catalog_number(*store_, "SELECT count(*) FROM uploads WHERE idempotency_key = ? AND state <> 5",
                             d.idempotency_key),
              0);
    EXPECT_EQ(catalog_number(*store_, "SELECT count(*) FROM prefixes WHERE prefix_id = ?",
                             failed.writer().cut().token_root),
              0);
    EXPECT_TRUE(f_.files.names(f_.options.root + "/objects/partials").empty());
    expect_sound(*store_);
    expect_no_orphans(*store_);
  }

  FakeStoreFixture f_;
  std::unique_ptr<Store> store_;
};

INSTANTIATE_TEST_SUITE_P(Modes, UploadFaults,
                         ::testing::Values(FaultCase{true, true}, FaultCase{true, false},
                                           FaultCase{false, true}, FaultCase{false, false}),
                         [](const auto& mode) {
                           return std::string(mode.param.unnamed ? "Unnamed" : "Named") +
                                  (mode.param.encrypt ? "Encrypted" : "Plain");
                         });

TEST_P(UploadFaults, AfterAnyFailureASaveIsUndoneAndCanBeRepeated) {
  unsigned seed = 0;
  std::uint64_t key = 0;
  for (const int error_number : {EIO, ENOSPC}) {
    for (std::size_t k = 0;; ++k) {
      ++seed;
      UploadableCut failing(*store_, cut(seed));
      const UploadDeclaration d = failing.declaration(++key);
      const std::size_t before = f_.files.operation_count();
      f_.files.fail_operation(k, error_number);
      std::string poisoned = kPoisonedText;
      const auto save = [&]() -> Status {
        KVPACK_TRY_ASSIGN(Upload upload, Upload::reserve(store_->context(), d));
        Status done = failing.put(upload);
        if (done.has_value()) done = failing.publish(upload);
        if (!done.has_value())
          poisoned = verdict_of(upload.publish([&] { return failing.manifests(upload); }));
        return done;
      };
      const Status saved = save();
      const bool reached = f_.files.operation_count() > before + k;
      f_.files.clear_faults();
      EXPECT_EQ(saved.has_value(), !reached) << k;
      EXPECT_EQ(poisoned, kPoisonedText) << k;
      if (!saved.has_value()) {
        EXPECT_EQ(saved.error().code, ErrorCode::kIo) << k;
        EXPECT_EQ(store::is_no_space(saved.error()), error_number == ENOSPC) << k;
        expect_nothing_of(failing, d);
      }
      // Under the same key and under another one, in turns which comes first.
      for (const bool same_key : {k % 2 == 0, k % 2 != 0}) {
        UploadableCut again(*store_, cut(seed));
        ASSERT_EQ(verdict_of(again.save(same_key ? d : again.declaration(++key))), "success") << k;
        again.expect_restorable();
      }
      EXPECT_EQ(number("SELECT reserved_bytes FROM store"), 0);
      if (::testing::Test::HasFailure()) FAIL() << "operation " << k;
      if (!reached) break;
      ASSERT_LT(k, 200u);
    }
  }
  expect_sound(*store_);
  expect_no_orphans(*store_);
}

TEST_P(UploadFaults, ADiskThatStaysBrokenIsCleanedUpAtTheNextOpening) {
  for (std::size_t k = 0; k < 60; k += 7) {
    UploadableCut failing(*store_, cut(static_cast<unsigned>(k) + 1));
    const UploadDeclaration d = failing.declaration(k);
    {
      auto upload = Upload::reserve(store_->context(), d);
      ASSERT_TRUE(upload.has_value());
      for (std::size_t i = k; i < k + 300; ++i) f_.files.fail_operation(i, EIO);
      Status done = failing.put(*upload);
      if (done.has_value()) done = failing.publish(*upload);
      EXPECT_TRUE(!done.has_value() || k >= 42);
    }
    f_.files.clear_faults();
    store_.reset();
    store_ = f_.open();
    ASSERT_NE(store_, nullptr);
    EXPECT_EQ(number("SELECT reserved_bytes FROM store"), 0);
    EXPECT_EQ(number("SELECT count(*) FROM upload_objects"), 0);
    EXPECT_TRUE(f_.files.names(f_.options.root + "/objects/partials").empty());
    expect_sound(*store_);
    expect_no_orphans(*store_);
    UploadableCut again(*store_, cut(static_cast<unsigned>(k) + 1));
    ASSERT_EQ(verdict_of(again.save(d)), "success");
  }
}

// --- intents
// ------------------------------------------------------------------------------------------------------------------------

TEST(Intent, FieldsAreFramedSoThatNoTwoListsReadTheSame) {
  const auto hex_of = [](store::IntentHash& hash) { return hash.finish().hex(); };
  store::IntentHash hash("d");
  hash.byte(1).u32(2).u64(3).id(Id32::filled(4)).bytes(byte_view("ab"));
  // SHA-256 of u64(1) "d" 01 02000000 0300000000000000 04 x 32 u64(2) "ab".
  Bytes framed{1, 0, 0, 0, 0, 0, 0, 0, 'd', 1, 2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0};
  framed.insert(framed.end(), 32, 4);
  for (const int b : {2, 0, 0, 0, 0, 0, 0, 0, int{'a'}, int{'b'}})
    framed.push_back(static_cast<std::uint8_t>(b));
  EXPECT_EQ(hex_of(hash), Id32{sha256(framed)}.hex());
  store::IntentHash cut("d");
  cut.cut({Id32::filled(1), Id32::filled(2), 3});
  store::IntentHash fields("d");
  fields.id(Id32::filled(1)).id(Id32::filled(2)).u64(3);
  EXPECT_EQ(hex_of(cut), hex_of(fields));
}

TEST(Intent, AnAdaptersKeyIsOfWhatIsSavedAndHow) {
  const InputCutId cut{Id32::filled(4), Id32::filled(5), 600};
  const auto key = [&](const Id32& tenant, const InputCutId& of, UploadKind kind) {
    return store::adapter_idempotency_key(tenant, Id32::filled(2), Id32::filled(3), of, kind);
  };
  const Id32 base = key(Id32::filled(1), cut, UploadKind::kSingleCut);
  Bytes framed;
  for (const char c : std::string_view("kvpack-store/v1/idempotency"))
    framed.push_back(static_cast<std::uint8_t>(c));
  framed.push_back(0);
  for (std::uint8_t byte = 1; byte <= 5; ++byte) framed.insert(framed.end(), 32, byte);
  for (const int b : {0x58, 2, 0, 0, 0, 0, 0, 0, 2}) framed.push_back(static_cast<std::uint8_t>(b));
  EXPECT_EQ(base, Id32{sha256(framed)});
  EXPECT_NE(base, key(Id32::filled(9), cut, UploadKind::kSingleCut));
  EXPECT_NE(base, key(Id32::filled(1), cut, UploadKind::kCutExport));
}

}  // namespace
}  // namespace kvpack::upload_test
