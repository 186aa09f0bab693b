#include "store/upload.h"

#include "store/object_batch.h"
#include "support/upload_room.h"

namespace kvpack::upload_test {
namespace {

using store::Counter;
using store::ManifestToPublish;
using store::ObjectKind;
using store::Upload;
using store::UploadDeclaration;
using testing::catalog_number;
using testing::cut_of_two_batches;
using testing::CutToUpload;
using testing::FakeStoreFixture;
using testing::kAbortedState;
using testing::kPoisonedVerdict;
using testing::kPublishedState;
using testing::MemoryRoom;
using testing::object_files;
using testing::planted_id;
using testing::Planter;
using testing::Room;
using testing::state_of;
using testing::UploadableCut;
using testing::verdict_of;

TEST(Upload, APublishedCutCanBeFoundAndRestored) {
  for (const bool encrypt : {false, true}) {
    Room room;
    UploadableCut cut(*room.store, {.encrypt = encrypt});
    ASSERT_EQ(verdict_of(cut.save(1)), "success");
    cut.expect_restorable();
    room.check();
    EXPECT_EQ(room.state(cut.declaration(1)), kPublishedState);
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
  int commits = 0;
  MemoryRoom room;
  room.context().catalog->on_commit([&](sqlite::Database&) { ++commits; });
  UploadableCut cut(*room.store, {});
  ASSERT_EQ(verdict_of(cut.save(1)), "success");
  // Pruning the quarantine is a transaction of its own.
  EXPECT_EQ(commits, 4 + 1);
}

TEST(Upload, ABatchEndsAtTwoHundredAndFiftySixObjects) {
  int commits = 0;
  MemoryRoom room;
  UploadableCut cut(*room.store, cut_of_two_batches());
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
    EXPECT_EQ(verdict_of(cut.publish(upload)), kPoisonedVerdict);
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
  EXPECT_EQ(room_.state(cut.declaration(1)), kAbortedState);
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

}  // namespace
}  // namespace kvpack::upload_test
