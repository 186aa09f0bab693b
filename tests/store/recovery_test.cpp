#include <gtest/gtest.h>

#include "kvpack/store/upkeep.h"
#include "store/quarantine.h"
#include "support/planted_store.h"

namespace kvpack {
namespace {
namespace recovery_test {

using namespace store;
using testing::catalog_number;
using testing::expect_no_orphans;
using testing::expect_sound;
using testing::FakeStoreFixture;
using testing::has_file;
using testing::has_row;
using testing::planted_id;
using testing::Planter;
using testing::StoreFixture;

constexpr std::uint64_t kHourMs = 3'600'000;

std::string open_verdict(StoreFixture& f) {
  const auto opened = Store::open(f.options);
  return opened.has_value() ? "success" : opened.error().verdict();
}

void put(StoreFixture& f, const std::string& name, const std::string& bytes) {
  std::ofstream(f.options.root + "/objects/" + name) << bytes;
}

void set_state(Store& store, const Id32& id, RowState state) {
  Planter(store).run([&](sqlite::Database& db) -> Status {
    KVPACK_TRY(
        db.run("DELETE FROM prefixes WHERE manifest IN"
               " (SELECT manifest FROM manifests WHERE manifest_id = ?)",
               id));
    KVPACK_TRY(db.run("UPDATE manifests SET state = ?2 WHERE manifest_id = ?1", id, number(state)));
    return db.run("UPDATE chunks SET state = ?2 WHERE object_key = ?1", id, number(state));
  });
}

TEST(StoreRecovery, RemovalsAreFinishedWhetherTheirFilesAreGoneOrNot) {
  StoreFixture f;
  std::vector<Id32> cuts;
  std::vector<Id32> chunks;
  Id32 kept;
  {
    const auto store = f.create();
    Planter plant(*store);
    for (int i = 0; i < 2; ++i) {
      cuts.push_back(plant.cut());
      chunks.push_back(plant.chunk());
      set_state(*store, cuts.back(), RowState::kEvicting);
      set_state(*store, chunks.back(), RowState::kEvicting);
    }
    kept = plant.cut({.chunks = {plant.chunk()}});
    DirtyDirectories dirty;
    ASSERT_TRUE(store->context().files.unlink_object(ObjectKind::kManifest, cuts[0], dirty).has_value());
    ASSERT_TRUE(store->context().files.unlink_object(ObjectKind::kChunk, chunks[0], dirty).has_value());
  }
  const auto store = f.open();
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_FALSE(has_row(*store, cuts[i]));
    EXPECT_FALSE(has_row(*store, chunks[i]));
    EXPECT_FALSE(has_file(*store, ObjectKind::kManifest, cuts[i]));
    EXPECT_FALSE(has_file(*store, ObjectKind::kChunk, chunks[i]));
  }
  EXPECT_EQ(catalog_number(*store, "SELECT durable_bytes FROM store"), 8'704 + 8'192);
  EXPECT_TRUE(has_row(*store, kept));
  expect_sound(*store);
  expect_no_orphans(*store);
}

TEST(StoreRecovery, ADamagedObjectIsLeftToTheCollector) {
  StoreFixture f;
  Id32 cut;
  {
    const auto store = f.create();
    cut = Planter(*store).cut();
    set_state(*store, cut, RowState::kDamaged);
  }
  const auto store = f.open();
  EXPECT_TRUE(has_row(*store, cut));
  ASSERT_TRUE(collect(*store).has_value());
  EXPECT_FALSE(has_row(*store, cut));
  EXPECT_FALSE(has_file(*store, ObjectKind::kManifest, cut));
}

TEST(StoreRecovery, AnEvictedCutThatAReaderIsReadingStaysUntilItIsDone) {
  StoreFixture f;
  Id32 cut;
  {
    const auto store = f.create();
    cut = Planter(*store).cut();
    set_state(*store, cut, RowState::kEvicting);
  }
  Pins reader;
  auto files = StoreFiles::open(*std::make_unique<SystemFileSystem>(), f.options.root);
  ASSERT_TRUE(files.has_value());
  auto pin = reader.pin_file(files->pins(), cut);
  ASSERT_TRUE(pin.has_value());
  const auto store = f.open();
  EXPECT_TRUE(has_row(*store, cut));
  EXPECT_TRUE(has_file(*store, ObjectKind::kManifest, cut));
  pin->release();
  ASSERT_TRUE(collect(*store).has_value());
  EXPECT_FALSE(has_row(*store, cut));
  EXPECT_FALSE(has_file(*store, ObjectKind::kManifest, cut));
}

TEST(StoreRecovery, PinFilesOfDeadReadersAreRemoved) {
  StoreFixture f;
  f.create();
  const std::string pin = f.options.root + "/pins/" + planted_id(1).hex() + ".pin";
  std::ofstream(pin).flush();
  f.open();
  EXPECT_FALSE(std::filesystem::exists(pin));
}

TEST(StoreRecovery, UploadsOfDeadProcessesAreAborted) {
  StoreFixture f;
  Id32 with_row;
  const Id32 without_row = planted_id(900);
  const Id32 planned_twice = planted_id(901);
  std::int64_t foreign = 0;
  std::int64_t import = 0;
  {
    const auto store = f.create();
    Planter plant(*store);
    with_row = plant.chunk();
    foreign = plant.upload(Id32::filled(9));
    plant.plan(foreign, ObjectKind::kChunk, with_row, PlanPhase::kPlanned);
    plant.put_file(ObjectKind::kChunk, without_row, 8'192);
    plant.plan(foreign, ObjectKind::kChunk, without_row, PlanPhase::kPlanned);
    plant.plan(foreign, ObjectKind::kManifest, planted_id(902), PlanPhase::kPlanned);  // no file
    import = plant.upload(Id32::filled(9), UploadKind::kImport);
    plant.put_file(ObjectKind::kChunk, planned_twice, 8'192);
    for (const std::int64_t upload : {foreign, import})
      plant.plan(upload, ObjectKind::kChunk, planned_twice, PlanPhase::kPlanned);
    EXPECT_EQ(catalog_number(*store, "SELECT reserved_bytes FROM store"), 2'000);
  }
  {
    const auto store = f.open();
    EXPECT_EQ(catalog_number(*store, "SELECT state FROM uploads WHERE upload = ?", foreign),
              number(UploadState::kAborted));
    EXPECT_EQ(catalog_number(*store, "SELECT state FROM uploads WHERE upload = ?", import),
              number(UploadState::kReceiving));
    EXPECT_EQ(catalog_number(*store, "SELECT reserved_bytes FROM store"), 1'000);
    EXPECT_EQ(catalog_number(*store, "SELECT count(*) FROM upload_objects"), 1);
    EXPECT_TRUE(has_file(*store, ObjectKind::kChunk, with_row));
    EXPECT_FALSE(has_file(*store, ObjectKind::kChunk, without_row));
    EXPECT_TRUE(has_file(*store, ObjectKind::kChunk, planned_twice));
    expect_sound(*store);
  }
  f.clock.advance_ms(24 * kHourMs - 1);
  {
    const auto store = f.open();
    EXPECT_EQ(catalog_number(*store, "SELECT state FROM uploads WHERE upload = ?", import),
              number(UploadState::kReceiving));
  }
  f.clock.advance_ms(1);
  const auto store = f.open();
  EXPECT_EQ(catalog_number(*store, "SELECT state FROM uploads WHERE upload = ?", import),
            number(UploadState::kAborted));
  EXPECT_FALSE(has_file(*store, ObjectKind::kChunk, planned_twice));
  expect_sound(*store);
  expect_no_orphans(*store);
}

TEST(StoreRecovery, WhatADeadUploadHasPlannedToUseAgainIsRemovedAllTheSame) {
  StoreFixture f;
  Id32 chunk;
  {
    const auto store = f.create();
    Planter plant(*store);
    chunk = plant.chunk();
    set_state(*store, chunk, RowState::kEvicting);
    plant.plan(plant.upload(Id32::filled(9)), ObjectKind::kChunk, chunk, PlanPhase::kPlanned);
  }
  const auto store = f.open();
  EXPECT_FALSE(has_row(*store, chunk));
  EXPECT_FALSE(has_file(*store, ObjectKind::kChunk, chunk));
}

// Scenario 16 of the store's acceptance list, its second half.
TEST(StoreRecovery, PartialAndUnknownFilesAreKeptForADay) {
  StoreFixture f;
  f.create();
  put(f, "partials/0123456789abcdef0123456789abcdef.partial", std::string(13, 'p'));
  put(f, "quarantine/leftover", std::string(6, 'q'));
  {
    const auto store = f.open();
    EXPECT_EQ(catalog_number(*store, "SELECT quarantine_bytes FROM store"), 19);
    EXPECT_EQ(catalog_number(*store,
                             "SELECT count(*) FROM quarantine WHERE kind = 3 AND file_bytes = 13 AND"
                             " reason = 'partial recovered during restart'"),
              1);
    EXPECT_EQ(catalog_number(*store,
                             "SELECT count(*) FROM quarantine WHERE kind = 4 AND file_bytes = 6 AND"
                             " path_token = 'leftover' AND"
                             " reason = 'uncataloged quarantine file recovered during restart'"),
              1);
    EXPECT_EQ(catalog_number(*store, "SELECT max(expires_ns - created_ns) FROM quarantine"),
              static_cast<std::int64_t>(kQuarantineLifetimeNs));
    EXPECT_TRUE(std::filesystem::is_empty(f.options.root + "/objects/partials"));
    expect_sound(*store);
  }
  f.clock.advance_ms(24 * kHourMs - 1);
  EXPECT_EQ(catalog_number(*f.open(), "SELECT quarantine_bytes FROM store"), 19);
  f.clock.advance_ms(1);
  EXPECT_EQ(catalog_number(*f.open(), "SELECT quarantine_bytes FROM store"), 0);
  EXPECT_TRUE(std::filesystem::is_empty(f.options.root + "/objects/quarantine"));
}

TEST(StoreRecovery, APartialThatAPowerCutHasGivenBothNamesIsOneFile) {
  StoreFixture f;
  f.create();
  const std::string partial = f.options.root + "/objects/partials/0123456789abcdef0123456789abcdef.partial";
  put(f, "partials/0123456789abcdef0123456789abcdef.partial", "half");
  f.open();
  std::string quarantined;
  for (const auto& entry : std::filesystem::directory_iterator(f.options.root + "/objects/quarantine"))
    quarantined = entry.path();
  std::filesystem::create_hard_link(quarantined, partial);
  const auto store = f.open();
  EXPECT_FALSE(std::filesystem::exists(partial));
  EXPECT_TRUE(std::filesystem::exists(quarantined));
  EXPECT_EQ(catalog_number(*store, "SELECT quarantine_bytes FROM store"), 4);
}

TEST(StoreRecovery, WhatCannotBeOursFailsTheOpeningAndIsLeftAlone) {
  const std::string expected = "state:store directory holds an unexpected entry: ";
  for (const std::string directory : {"partials", "uploads", "quarantine"}) {
    StoreFixture f;
    f.create();
    const std::string path = f.options.root + "/objects/" + directory + "/";
    const auto refused = [&](const std::string& name, const std::string& shown) {
      EXPECT_EQ(open_verdict(f), expected + path + shown);
      EXPECT_TRUE(std::filesystem::is_symlink(path + name) || std::filesystem::exists(path + name));
      std::filesystem::remove_all(path + name);
    };
    const std::string name = planted_id(1).hex() + ".kvpack.partial";
    std::filesystem::create_symlink(f.options.root, path + name);
    refused(name, name);
    std::filesystem::create_directory(path + name);
    refused(name, name);
    if (directory != "partials") {
      std::ofstream(path + "a\nb\xff") << "x";
      refused("a\nb\xff", "a\\x0ab\\xff");
    }
    if (directory != "quarantine") {
      std::ofstream(path + "notes.txt") << "mine";
      refused("notes.txt", "notes.txt");
    }
    EXPECT_EQ(open_verdict(f), "success");
  }
  StoreFixture f;
  f.create();
  put(f, "uploads/" + planted_id(1).hex() + ".kvpack.partial", "staged");
  put(f, "uploads/nothex.kvpack.partial", "staged");
  EXPECT_EQ(open_verdict(f), expected + f.options.root + "/objects/uploads/nothex.kvpack.partial");
  std::filesystem::remove(f.options.root + "/objects/uploads/nothex.kvpack.partial");
  EXPECT_EQ(open_verdict(f), "success");
  EXPECT_TRUE(std::filesystem::exists(f.options.root + "/objects/uploads/" + planted_id(1).hex() +
                                      ".kvpack.partial"));
}

TEST(StoreRecovery, DirectoriesAreBounded) {
  for (const std::string directory : {"partials", "uploads", "quarantine"}) {
    FakeStoreFixture f;
    f.create();
    const std::string path = f.options.root + "/objects/" + directory;
    const auto add = [&](std::uint64_t n) {
      f.files.put_file(path + "/" + planted_id(n).hex() + ".kvpack.partial", {});
    };
    for (std::uint64_t n = 0; n < 10'000; ++n) add(n);
    if (directory == "uploads") {
      EXPECT_EQ(open_verdict(f), "success");
    }
    add(10'000);
    EXPECT_EQ(open_verdict(f), "state:store directory holds more than 10000 entries: " + path);
    EXPECT_EQ(f.files.names(path).size(), 10'001u);
  }
}

// What is known already does not count: a quarantine of any size opens.
TEST(StoreRecovery, EnteredQuarantineFilesAreNotBounded) {
  FakeStoreFixture f;
  f.create();
  const auto add = [&](std::uint64_t from, std::uint64_t count) {
    for (std::uint64_t n = from; n < from + count; ++n)
      f.files.put_file(f.options.root + "/objects/quarantine/" + std::to_string(n), {});
  };
  add(0, 10'000);
  EXPECT_EQ(open_verdict(f), "success");
  add(10'000, 100);
  const auto store = f.open();
  EXPECT_EQ(catalog_number(*store, "SELECT count(*) FROM quarantine"), 10'100);
}

TEST(StoreRecovery, ItsCostDoesNotDependOnWhatIsStored) {
  FakeStoreFixture f;
  const auto operations_of_open = [&] {
    const std::size_t before = f.files.operation_count();
    f.open();
    return f.files.operation_count() - before;
  };
  f.create();
  const std::size_t empty = operations_of_open();
  {
    const auto store = f.open();
    Planter plant(*store);
    for (int i = 0; i < 50; ++i) plant.cut({.chunks = {plant.chunk(), plant.chunk()}});
  }
  EXPECT_EQ(operations_of_open(), empty);
}

// A store in which every step of recovery has something to do.
void leave_everything_undone(FakeStoreFixture& f) {
  const auto store = f.create();
  Planter plant(*store);
  plant.cut({.chunks = {plant.chunk()}});
  const Id32 cut = plant.cut({.chunks = {plant.chunk()}});
  set_state(*store, cut, RowState::kEvicting);
  set_state(*store, plant.chunk(), RowState::kEvicting);
  const std::int64_t upload = plant.upload(Id32::filled(9));
  plant.put_file(ObjectKind::kChunk, planted_id(900), 8'192);
  plant.plan(upload, ObjectKind::kChunk, planted_id(900), PlanPhase::kPlanned);
  f.files.put_file(f.options.root + "/objects/partials/0123456789abcdef0123456789abcdef.partial",
                   Bytes(13, std::uint8_t{1}));
  f.files.put_file(f.options.root + "/objects/quarantine/leftover", Bytes(6, std::uint8_t{1}));
  f.files.put_file(f.options.root + "/pins/" + planted_id(5).hex() + ".pin", {});
}

void expect_recovered(FakeStoreFixture& f, Store& store) {
  expect_sound(store);
  expect_no_orphans(store);
  EXPECT_EQ(catalog_number(store, "SELECT count(*) FROM manifests WHERE state <> 1"), 0);
  EXPECT_EQ(catalog_number(store, "SELECT count(*) FROM chunks WHERE state <> 1"), 0);
  EXPECT_EQ(catalog_number(store, "SELECT reserved_bytes FROM store"), 0);
  EXPECT_EQ(catalog_number(store, "SELECT quarantine_bytes FROM store"), 19);
  EXPECT_TRUE(f.files.names(f.options.root + "/objects/partials").empty());
  EXPECT_TRUE(f.files.names(f.options.root + "/pins").empty());
}

TEST(StoreRecovery, AfterAnyFailureTheNextOpeningCompletesIt) {
  for (const int error : {EIO, ENOSPC}) {
    std::size_t failures = 0;
    for (std::size_t k = 0;; ++k) {
      FakeStoreFixture f;
      leave_everything_undone(f);
      f.files.fail_operation(k, error);
      const std::size_t before = f.files.operation_count();
      auto opened = Store::open(f.options);
      const bool reached = f.files.operation_count() - before > k;
      f.files.clear_faults();
      if (!opened.has_value()) {
        ++failures;
        EXPECT_TRUE(opened.error().code == ErrorCode::kIo || opened.error().code == ErrorCode::kState)
            << k << ": " << opened.error().verdict();
        opened = Store::open(f.options);
      }
      ASSERT_TRUE(opened.has_value()) << k << ": " << opened.error().verdict();
      // An object whose file could not be removed is left to the next collection.
      ASSERT_TRUE(collect(**opened).has_value());
      expect_recovered(f, **opened);
      if (::testing::Test::HasFailure() || !reached) break;
    }
    EXPECT_GT(failures, 30u);
  }
}

TEST(StoreRecovery, AFullDiskGivesUpItsReserveForIt) {
  FakeStoreFixture f;
  leave_everything_undone(f);
  f.files.fail_verb("unlink", ENOSPC);
  EXPECT_EQ(open_verdict(f).substr(0, 3), "io:");
  f.files.fail_verb("unlink", 0);
  // As if the room of the reserve were what was missing.
  const std::string reserve = f.options.root + "/reserve.bin";
  bool given_up = false;
  f.files.before_operation([&](const testing::Operation& operation) {
    if (operation.verb != "unlink" || operation.path != reserve) return;
    given_up = true;
    f.files.fail_verb("rename", 0);
  });
  f.files.fail_verb("rename", ENOSPC);
  const auto store = f.open();
  f.files.before_operation(nullptr);
  EXPECT_TRUE(given_up);
  EXPECT_TRUE(f.files.file(reserve).has_value()) << "made again";
  expect_recovered(f, *store);
}

}  // namespace recovery_test
}  // namespace
}  // namespace kvpack
