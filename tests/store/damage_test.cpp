#include "store/damage.h"

#include <gtest/gtest.h>

#include "kvpack/store/upkeep.h"
#include "support/planted_store.h"

namespace kvpack {
namespace {
namespace damage_test {

using namespace store;
using testing::catalog_number;
using testing::expect_sound;
using testing::FakeStoreFixture;
using testing::has_file;
using testing::has_row;
using testing::planted_id;
using testing::Planter;
using testing::state_of;
using Action = StoreFault::Action;

class StoreDamage : public ::testing::Test {
 protected:
  // A chain of four cuts, and a cut beside it. `shared_` is named by the base and by the cut beside.
  void SetUp() override {
    store_ = f_.create();
    Planter plant(*store_);
    shared_ = plant.chunk();
    own_ = plant.chunk();
    chain_.push_back(plant.cut({.chunks = {shared_}}));
    for (int depth = 1; depth < 4; ++depth)
      chain_.push_back(plant.cut({.parent = chain_.back(), .chunks = {depth == 2 ? own_ : plant.chunk()}}));
    beside_ = plant.cut({.chunks = {shared_}});
    apart_ = plant.cut({.chunks = {plant.chunk()}});
  }
  static Error wrong() { return fail(ErrorCode::kAuthentication, "chunk object digest mismatch"); }
  StoreFault damage(ObjectKind kind, const Id32& id, Error error = wrong()) {
    return handle_damage(store_->context(), kind, id, error, 512, [error](const Id32&) { return error; });
  }
  void expect_states(std::initializer_list<int> chain, int beside) {
    std::size_t i = 0;
    for (const int state : chain) {
      EXPECT_EQ(state_of(*store_, chain_[i]), state) << i;
      EXPECT_EQ(catalog_number(*store_, "SELECT count(*) FROM prefixes WHERE prefix_id = ?", chain_[i]),
                state == 1 ? 1 : 0)
          << i;
      ++i;
    }
    EXPECT_EQ(state_of(*store_, beside_), beside);
    EXPECT_EQ(state_of(*store_, apart_), 1);
    expect_sound(*store_);
  }

  FakeStoreFixture f_;
  std::unique_ptr<Store> store_;
  Id32 shared_, own_, beside_, apart_;
  std::vector<Id32> chain_;
};

TEST_F(StoreDamage, AChunkTakesEveryCutThatNeedsItOutOfSight) {
  const std::string path = store_->context().files.object_path(ObjectKind::kChunk, shared_);
  const StoreFault fault = damage(ObjectKind::kChunk, shared_);
  EXPECT_EQ(fault.object, StoreFault::Object::kChunk);
  EXPECT_EQ(fault.action, Action::kQuarantined);
  EXPECT_EQ(fault.id, shared_);
  EXPECT_EQ(fault.path, path);
  EXPECT_EQ(fault.error.verdict(), "authentication:chunk object digest mismatch");
  EXPECT_EQ(fault.token_count, 512u);
  EXPECT_EQ(state_of(*store_, shared_), 3);
  expect_states({3, 3, 3, 3}, 3);
  EXPECT_FALSE(has_file(*store_, ObjectKind::kChunk, shared_));
  EXPECT_EQ(catalog_number(*store_,
                           "SELECT file_bytes FROM quarantine WHERE kind = 5 AND object_id = ?1"
                           " AND reason = 'chunk object digest mismatch'",
                           shared_),
            8'192);
  EXPECT_EQ(f_.files.names(f_.options.root + "/objects/quarantine").size(), 1u);
  EXPECT_EQ(store_->context().counters.value(Counter::kObjectsQuarantined), 1u);
  ASSERT_EQ(f_.faults.size(), 1u);
  EXPECT_EQ(f_.faults[0].path, path);
}

TEST_F(StoreDamage, DescendantsOfACutThatNeedsItGoAndAncestorsStay) {
  damage(ObjectKind::kChunk, own_);
  expect_states({1, 1, 3, 3}, 1);
}

TEST_F(StoreDamage, AManifestTakesItsDescendantsWithIt) {
  const StoreFault fault = damage(ObjectKind::kManifest, chain_[1]);
  EXPECT_EQ(fault.object, StoreFault::Object::kManifest);
  EXPECT_EQ(fault.action, Action::kQuarantined);
  expect_states({1, 3, 3, 3}, 1);
  EXPECT_FALSE(has_file(*store_, ObjectKind::kManifest, chain_[1]));
  EXPECT_TRUE(has_file(*store_, ObjectKind::kManifest, chain_[2]));
}

TEST_F(StoreDamage, ACollectionRemovesWhatIsLeft) {
  damage(ObjectKind::kChunk, shared_);
  const auto report = collect(*store_);
  ASSERT_TRUE(report.has_value());
  EXPECT_EQ(report->manifests_evicted, 5u);
  EXPECT_EQ(report->chunks_collected, 4u);
  EXPECT_EQ(catalog_number(*store_, "SELECT durable_bytes FROM store"), 8'704 + 8'192);
  testing::expect_no_orphans(*store_);
}

TEST_F(StoreDamage, ItIsMetOnce) {
  EXPECT_EQ(damage(ObjectKind::kChunk, shared_).action, Action::kQuarantined);
  EXPECT_EQ(damage(ObjectKind::kChunk, shared_).action, Action::kSkipped);
  EXPECT_EQ(catalog_number(*store_, "SELECT count(*) FROM quarantine"), 1);
  EXPECT_EQ(store_->context().quarantined_objects.load(), 1u);
  EXPECT_EQ(f_.faults.size(), 2u);
}

TEST_F(StoreDamage, AbsentAndUnreadableObjectsAreLeftAlone) {
  for (const ErrorCode code : {ErrorCode::kNotFound, ErrorCode::kIo}) {
    EXPECT_EQ(damage(ObjectKind::kChunk, shared_, fail(code, "text")).action, Action::kSkipped);
    expect_states({1, 1, 1, 1}, 1);
  }
  f_.files.remove(store_->context().files.object_path(ObjectKind::kChunk, own_));
  EXPECT_EQ(damage(ObjectKind::kChunk, own_).action, Action::kSkipped);
  EXPECT_EQ(state_of(*store_, own_), 1);
  EXPECT_EQ(damage(ObjectKind::kChunk, planted_id(999)).action, Action::kSkipped);
  EXPECT_EQ(f_.faults.size(), 4u);
}

TEST_F(StoreDamage, WhatASecondLookDoesNotFindDamagedIsLeftAlone) {
  const Status looks[] = {success(), fail(ErrorCode::kNotFound, "artifact not found"),
                          fail(ErrorCode::kIo, "read"), wrong().with("object", own_.hex())};
  for (const Status& found : looks) {
    const StoreFault fault =
        handle_damage(store_->context(), ObjectKind::kChunk, shared_, wrong(), 512, [&](const Id32& id) {
          EXPECT_EQ(id, shared_);
          return found;
        });
    EXPECT_EQ(fault.action, Action::kSkipped);
    EXPECT_EQ(fault.error.verdict(), "authentication:chunk object digest mismatch");
    EXPECT_TRUE(has_file(*store_, ObjectKind::kChunk, shared_));
    expect_states({1, 1, 1, 1}, 1);
  }
  EXPECT_EQ(store_->context().quarantined_objects.load(), 0u);
  EXPECT_EQ(f_.faults.size(), 4u);
  EXPECT_EQ(damage(ObjectKind::kChunk, shared_, wrong().with("object", shared_.hex())).action,
            Action::kQuarantined);
}

// Between the withdrawal and the move a save has put a new file in the place of the damaged one.
TEST_F(StoreDamage, OnlyTheFileThatWasLookedAtIsMoved) {
  const std::string path = store_->context().files.object_path(ObjectKind::kChunk, shared_);
  store_->context().catalog->on_commit([&](sqlite::Database&) {
    f_.files.remove(path);
    f_.files.put_file(path, byte_view("healed"));
  });
  EXPECT_EQ(damage(ObjectKind::kChunk, shared_).action, Action::kQuarantined);
  store_->context().catalog->on_commit(nullptr);
  const ByteSpan healed = byte_view("healed");
  EXPECT_EQ(f_.files.file(path), Bytes(healed.begin(), healed.end()));
  EXPECT_TRUE(f_.files.names(f_.options.root + "/objects/quarantine").empty());
}

TEST_F(StoreDamage, AStrictStoreMovesNothing) {
  store_->context().options.strict = true;
  EXPECT_EQ(damage(ObjectKind::kChunk, shared_).action, Action::kSkipped);
  expect_states({1, 1, 1, 1}, 1);
  EXPECT_TRUE(has_file(*store_, ObjectKind::kChunk, shared_));
  EXPECT_EQ(f_.faults.size(), 1u);
}

TEST_F(StoreDamage, AReaderMovesNothing) {
  const auto reader = Store::open_read_only(f_.options);
  ASSERT_TRUE(reader.has_value());
  const StoreFault fault = handle_damage((*reader)->context(), ObjectKind::kChunk, shared_, wrong(), 0,
                                         [](const Id32&) -> Status { return wrong(); });
  EXPECT_EQ(fault.action, Action::kSkipped);
  expect_states({1, 1, 1, 1}, 1);
  EXPECT_EQ(f_.faults.size(), 1u);
}

TEST_F(StoreDamage, AHandleMovesABoundedNumberOfObjects) {
  Planter plant(*store_, 1'000);
  std::vector<Id32> chunks;
  for (int n = 0; n < 66; ++n) chunks.push_back(plant.chunk());
  for (int n = 0; n < 66; ++n)
    EXPECT_EQ(damage(ObjectKind::kChunk, chunks[static_cast<std::size_t>(n)]).action,
              n < 64 ? Action::kQuarantined : Action::kSkipped);
  EXPECT_TRUE(has_file(*store_, ObjectKind::kChunk, chunks[65]));
  EXPECT_EQ(state_of(*store_, chunks[65]), 1);
  EXPECT_EQ(f_.faults.size(), 66u);
  // Another handle begins to count anew.
  store_.reset();
  store_ = f_.open();
  EXPECT_EQ(damage(ObjectKind::kChunk, chunks[65]).action, Action::kQuarantined);
}

TEST_F(StoreDamage, AQuarantineThatIsTooSmallKeepsNothing) {
  store_->context().options.quota_bytes = 100'000;  // of which it may take 1,000
  EXPECT_EQ(damage(ObjectKind::kChunk, shared_).action, Action::kQuarantined);
  EXPECT_EQ(catalog_number(*store_, "SELECT quarantine_bytes FROM store"), 0);
  EXPECT_TRUE(f_.files.names(f_.options.root + "/objects/quarantine").empty());
  expect_states({3, 3, 3, 3}, 3);
}

TEST_F(StoreDamage, AfterAnyFailureTheObjectIsEitherThereOrWithdrawn) {
  std::size_t withdrawn = 0;
  std::size_t k = 0;
  for (bool reached = true; reached; ++k) {
    Planter plant(*store_, 10'000 * (k + 1));
    const Id32 chunk = plant.chunk();
    const Id32 cut = plant.cut({.chunks = {chunk}});
    f_.files.fail_operation(k, EIO);
    const std::size_t before = f_.files.operation_count();
    const StoreFault fault = damage(ObjectKind::kChunk, chunk);
    reached = f_.files.operation_count() - before > k;
    f_.files.clear_faults();
    store_->context().quarantined_objects = 0;
    expect_sound(*store_);
    EXPECT_EQ(state_of(*store_, cut), fault.action == Action::kQuarantined ? 3 : 1);
    withdrawn += fault.action == Action::kQuarantined ? 1 : 0;
    ASSERT_TRUE(collect(*store_).has_value());
    testing::expect_no_orphans(*store_);
  }
  EXPECT_GT(withdrawn, 3u);
  EXPECT_LT(withdrawn, k);
}

}  // namespace damage_test
}  // namespace
}  // namespace kvpack
