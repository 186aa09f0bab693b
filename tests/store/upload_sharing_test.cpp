#include "support/upload_room.h"

namespace kvpack::upload_sharing_test {
namespace {

using store::Counter;
using store::ObjectKind;
using store::Upload;
using testing::cut_of_two_batches;
using testing::CutToUpload;
using testing::expect_sound;
using testing::first_chunk;
using testing::kAbortedState;
using testing::MemoryRoom;
using testing::object_files;
using testing::Planter;
using testing::Room;
using testing::state_of;
using testing::UploadableCut;
using testing::verdict_of;

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
  const CutToUpload cut = cut_of_two_batches();
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
    const CutToUpload cut = cut_of_two_batches(false);
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
  EXPECT_EQ(room.state(again.declaration(2)), kAbortedState);
  EXPECT_EQ(room.reserved(), 0);
}

}  // namespace
}  // namespace kvpack::upload_sharing_test
