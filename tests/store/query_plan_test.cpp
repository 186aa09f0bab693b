// No statement of a store walks through a table that grows with what is stored, and no operation does more
// work because more is stored. Left out are those that look at everything by their nature: the check, the
// rebuild, and the sharing histogram of reports.
#include <gtest/gtest.h>
#include <sqlite3.h>

#include "kvpack/store/status.h"
#include "kvpack/store/upkeep.h"
#include "store/collect.h"
#include "store/damage.h"
#include "store/quarantine.h"
#include "support/planted_store.h"
#include "support/saved_cuts.h"

namespace kvpack {
namespace {
namespace query_plan_test {

using namespace store;
using testing::Conversation;
using testing::FakeStoreFixture;
using testing::MemorySink;
using testing::planted_id;
using testing::Planter;

void each_statement(sqlite::Database& db, const std::function<void(sqlite3_stmt*)>& visit) {
  for (sqlite3_stmt* s = sqlite3_next_stmt(db.handle(), nullptr); s != nullptr;
       s = sqlite3_next_stmt(db.handle(), s))
    visit(s);
}

// On the connection that writes and, since a test runs on one thread, on the one that reads.
void each_statement(Store& store, const std::function<void(sqlite::Database&, sqlite3_stmt*)>& visit) {
  const auto visit_all = [&](sqlite::Database& db) -> Status {
    std::vector<sqlite3_stmt*> statements;
    each_statement(db, [&](sqlite3_stmt* s) { statements.push_back(s); });
    for (sqlite3_stmt* s : statements) visit(db, s);
    return success();
  };
  ASSERT_TRUE(store.context().catalog->read(visit_all).has_value());
  if (!store.is_read_only()) {
    ASSERT_TRUE(store.context().catalog->write(visit_all).has_value());
  }
}

// What a plan may walk through: one row, a query's own rows, and the indexes of what is waiting to be
// removed, which are walked as far as a batch goes.
bool is_bounded_walk(const std::string& step) {
  for (const char* const allowed : {"SCAN store", "SCAN sqlite_master", "SCAN hit", "SCAN CONSTANT ROW",
                                    "INDEX manifest_pending", "INDEX chunk_pending", "INDEX manifest_victim",
                                    "INDEX chunk_victim", "INDEX upload_active", "INDEX quarantine_age"})
    if (step.find(allowed) != std::string::npos) return true;
  return step.find("SCAN") == std::string::npos;
}

std::map<std::string, std::vector<std::string>> plans_of(Store& store) {
  std::map<std::string, std::vector<std::string>> plans;
  each_statement(store, [&](sqlite::Database& db, sqlite3_stmt* statement) {
    const std::string sql = sqlite3_sql(statement);
    if (sql.starts_with("EXPLAIN") || plans.contains(sql)) return;
    std::vector<std::string>& steps = plans[sql];
    // Triggers and actions of foreign keys too.
    sqlite3_db_config(db.handle(), SQLITE_DBCONFIG_TRIGGER_EQP, 1, nullptr);
    auto plan = db.prepare("EXPLAIN QUERY PLAN " + sql);
    ASSERT_TRUE(plan.has_value()) << sql;
    for (;;) {
      const auto more = plan->step();
      ASSERT_TRUE(more.has_value()) << sql;
      if (!*more) break;
      steps.push_back(plan->text(3));
    }
  });
  return plans;
}

// One of everything that a store does.
class Workload {
 public:
  explicit Workload(FakeStoreFixture& f) : f_(f) {}

  // Everything is in states that the next opening has something to do with.
  static void leave_undone(Store& store) {
    Planter plant(store, 5'000'000);
    plant.upload(Id32::filled(9));
    plant.upload(Id32::filled(9), UploadKind::kImport);
    plant.plan(1, ObjectKind::kChunk, planted_id(6'000'000), PlanPhase::kPlanned);
    const Id32 cut = plant.cut({.chunks = {plant.chunk()}});
    plant.run([&](sqlite::Database& db) -> Status {
      KVPACK_TRY(db.run("DELETE FROM prefixes WHERE prefix_id = ?", cut));
      return db.run("UPDATE manifests SET state = 2 WHERE manifest_id = ?", cut);
    });
  }
  void save_and_restore(Store& store) {
    const Conversation small(300);
    const Conversation grown(600);
    const SaveResult base = small.save(store);
    SaveRequest delta = grown.request();
    delta.parent = base.head().manifest_id;
    const std::vector<Bytes> planes = grown.planes();
    grown.save(store, delta);
    const Conversation checkpoints(700, 2);
    const SaveResult exported = checkpoints.save_checkpoints(store);
    checkpoints.save_checkpoints(store);
    damaged_ = testing::chunks_of(store, exported.cuts.back().manifest_id).back().object_key;
    {
      // A save that is given up.
      const Conversation abandoned(300, 3);
      auto session = SaveSession::begin(store, abandoned.request());
      ASSERT_TRUE(session.has_value()) << session.error().verdict();
    }
    ASSERT_TRUE(find_deepest(store, grown.query())->has_value());
    ASSERT_TRUE(resolve(store, grown.query(), 10).has_value());
    ASSERT_TRUE(candidates(store, grown.query()).has_value());
    MemorySink sink;
    auto restored = restore_deepest(store, grown.query(), sink, {.parallelism = 1});
    ASSERT_TRUE(restored.has_value() && restored->restored) << restored.error().verdict();
    ASSERT_TRUE(restored->restored->hold.release().has_value());
    ASSERT_TRUE(flush_counters(store.context()).has_value());
    ASSERT_TRUE(evict(store, base.head().manifest_id).error().code == ErrorCode::kBusy);
  }
  void upkeep(Store& store) {
    StoreContext& context = store.context();
    const Error wrong = fail(ErrorCode::kAuthentication, "chunk object digest mismatch");
    const auto look = [&](const Id32&) { return Status(wrong); };
    ASSERT_EQ(handle_damage(context, ObjectKind::kChunk, damaged_, wrong, 0, look).action,
              StoreFault::Action::kQuarantined);
    ASSERT_TRUE(withdraw_a_manifest(store).has_value());
    ASSERT_TRUE(collect(store).has_value());
    ASSERT_TRUE(evict_least_recent(context, 1).has_value());
    ASSERT_TRUE(maintain(store).has_value());
    ASSERT_TRUE(retire_epochs(store, 1, 10).has_value());
    ASSERT_TRUE(enforce_quarantine(context).has_value());
    ASSERT_TRUE(status(store).has_value());
    ASSERT_TRUE(list_cuts(store, [](const StoredCut&) { return false; }).has_value());
    ASSERT_TRUE(quarantined_files(store, 10).has_value());
  }
  std::unique_ptr<Store> reopen(std::unique_ptr<Store> store) {
    leave_undone(*store);
    store.reset();
    return f_.open();
  }

 private:
  static Status withdraw_a_manifest(Store& store) {
    const Id32 cut = Planter(store, 7'000'000).cut();
    return store.context().catalog->write([&](sqlite::Database& db) -> Status {
      KVPACK_TRY(withdraw(db, ObjectKind::kManifest, cut));
      return success();
    });
  }

  FakeStoreFixture& f_;
  Id32 damaged_{};
};

TEST(StoreQueryPlans, NoStatementWalksThroughATableThatGrows) {
  FakeStoreFixture f;
  auto store = f.create();
  Workload workload(f);
  std::size_t statements = 0;
  const auto check = [&](Store& of) {
    for (const auto& [sql, steps] : plans_of(of)) {
      ++statements;
      for (const std::string& step : steps) EXPECT_TRUE(is_bounded_walk(step)) << sql << "\n  " << step;
    }
  };
  workload.save_and_restore(*store);
  workload.upkeep(*store);
  check(*store);
  store = workload.reopen(std::move(store));
  check(*store);
  const auto reader = Store::open_read_only(f.options);
  ASSERT_TRUE(reader.has_value());
  const Conversation grown(600);
  ASSERT_TRUE(candidates(**reader, grown.query()).has_value());
  ASSERT_TRUE(status(**reader).has_value());
  check(**reader);
  EXPECT_GT(statements, 100u);
}

// What SQLite has done for all statements since the last call, triggers and checks of foreign keys included.
std::uint64_t take_steps(Store& store) {
  std::uint64_t steps = 0;
  each_statement(store, [&](sqlite::Database&, sqlite3_stmt* statement) {
    steps += static_cast<std::uint64_t>(sqlite3_stmt_status(statement, SQLITE_STMTSTATUS_VM_STEP, 1));
  });
  return steps;
}

std::map<std::string, std::uint64_t> steps_beside(int stored_cuts) {
  std::map<std::string, std::uint64_t> steps;
  FakeStoreFixture f;
  auto store = f.create();
  Workload workload(f);
  {
    // Cuts that nobody will ask for, one chain of four after the other, and uploads that have ended.
    Planter plant(*store);
    std::optional<Id32> parent;
    for (int n = 0; n < stored_cuts; ++n) {
      const Id32 cut =
          plant.cut({.parent = parent, .chunks = {plant.chunk()}, .expires_ns = std::uint64_t{1} << 62});
      parent = n % 4 == 3 ? std::nullopt : std::optional(cut);
      const std::int64_t upload = plant.upload(Id32::filled(9));
      plant.run([&](sqlite::Database& db) {
        return db.run("UPDATE uploads SET state = 4, reserved_bytes = 0 WHERE upload = ?", upload);
      });
    }
  }
  take_steps(*store);
  workload.save_and_restore(*store);
  steps["save and restore"] = take_steps(*store);
  workload.upkeep(*store);
  steps["upkeep"] = take_steps(*store);
  store = workload.reopen(std::move(store));
  steps["recovery"] = take_steps(*store);
  return steps;
}

TEST(StoreQueryPlans, NoOperationDoesMoreBecauseMoreIsStored) {
  // More than a page of a listing.
  const auto few = steps_beside(300);
  const auto many = steps_beside(1'200);
  for (const auto& [operation, steps] : few) {
    EXPECT_GT(steps, 100u) << operation;
    EXPECT_LT(many.at(operation), steps + steps / 10) << operation;
  }
}

}  // namespace query_plan_test
}  // namespace
}  // namespace kvpack
