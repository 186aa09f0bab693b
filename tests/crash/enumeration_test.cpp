// A save, an eviction and a collection, interrupted at every operation, by a kill or by a power cut; and the
// recovery from each of these states interrupted in turn. KVPACK_LONG_TESTS=1 tries more combinations, and
// more ways of writing files.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <optional>

#include "crash/crash_recorder.h"
#include "kvpack/store/restore.h"
#include "kvpack/store/save.h"
#include "kvpack/store/upkeep.h"
#include "support/store_checks.h"
#include "support/stores.h"

namespace kvpack::testing::crash {
namespace {

constexpr std::uint64_t kBytesPerToken = 8;

// What the scenarios save: one state, deterministic planes and tokens.
struct Model {
  IdentifiedFamily family;
  SemanticModelId semantic;

  static Model make() {
    auto family = build_family(
        {.engine_cache_abi = Id32::filled(1), .topology = Id32::filled(2), .shard_map = Id32::filled(3)},
        {{.layer = 0, .name = "k", .dtype = DType::kU8, .dimensions = {kTokenAxis, kBytesPerToken}}});
    EXPECT_TRUE(family.has_value()) << family.error().verdict();
    return {*std::move(family),
            {Id32::filled(4), Id32::filled(5), Id32::filled(6), Id32::filled(7), Id32::filled(8)}};
  }
};

std::vector<std::uint32_t> tokens_of(std::size_t count) {
  std::vector<std::uint32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), 100);
  return tokens;
}
Bytes plane_of(std::size_t token_count) {
  Bytes plane(token_count * kBytesPerToken);
  for (std::size_t i = 0; i < plane.size(); ++i) plane[i] = static_cast<std::uint8_t>(i * 7 + (i >> 8));
  return plane;
}

// A sink that keeps what it is given.
class KeepingSink final : public RestoreSink {
 public:
  Status begin_restore(const AuthenticatedPlan& plan) override {
    plane.assign(static_cast<std::size_t>(plan.states()[0].complete_physical_bytes), 0);
    return success();
  }
  Status write_verified_chunk(std::size_t, std::uint64_t offset, ByteSpan plaintext) override {
    std::ranges::copy(plaintext, plane.begin() + static_cast<std::ptrdiff_t>(offset));
    return success();
  }
  Status commit_restore() override {
    committed = true;
    return success();
  }
  void abort_restore() noexcept override { plane.clear(); }

  Bytes plane;
  bool committed = false;
};

// How far a scenario was when it was interrupted.
enum Phase : std::size_t { kSaving, kSaved, kEvicting, kEvicted };

constexpr std::size_t kOldTokens = 256;
constexpr std::size_t kNewTokens = 1'024;

struct Variant {
  std::string name;
  bool unnamed_files = true;
  bool exclusive_rename = true;
  bool encrypt = false;
  // Syncs, and with queue_writes writes too, begin together and happen in an order of their own.
  std::optional<std::uint32_t> queue_seed{};
  bool queue_writes = true;
  // A rule of the protocol that is switched off: the enumeration must then find states that are wrong.
  std::function<bool(const Operation&)> ignored_syncs{};
  Phase ignored_from = kSaving;  // when that begins
  bool ignored_in_recovery = false;
  bool forget_plans = false;
};

// Runs one variant and collects what is wrong with any of its states.
class Enumeration {
 public:
  explicit Enumeration(Variant variant) : variant_(std::move(variant)), model_(Model::make()) {
    root_ = directory_.path() + "/store";
    std::filesystem::create_directories(root_ + "/catalog");
    std::filesystem::permissions(root_ + "/catalog", std::filesystem::perms::owner_all);
    CatalogCopy{}.put(catalog_path());
    std::string path;
    for (const auto& part : std::filesystem::path(directory_.path())) {
      path = path.empty() || path == "/" ? path + part.string() : path + "/" + part.string();
      if (path != "/") files_.put_directory(path);
    }
    files_.support_unnamed_files(variant_.unnamed_files);
    files_.support_exclusive_rename(variant_.exclusive_rename);
    if (variant_.queue_seed) files_.support_queue(true, *variant_.queue_seed, variant_.queue_writes);
  }

  void run() {
    {
      auto store = *Store::create(options(files_));
      old_id_ = save_cut_of(*store, kOldTokens);
    }
    CrashRecorder recorder(catalog_path());
    {
      auto store = *Store::open(options(files_));
      if (variant_.forget_plans) forget_plans(*store);
      recorder.start(files_);
      if (variant_.ignored_from == kSaving && !variant_.ignored_in_recovery)
        files_.ignore_syncs(variant_.ignored_syncs);
      new_id_ = save_cut_of(*store, kNewTokens);
      recorder.set_phase(kSaved);
      if (variant_.ignored_from == kSaved) files_.ignore_syncs(variant_.ignored_syncs);
      recorder.set_phase(kEvicting);
      note(evict(*store, old_id_), "evict");
      note(collect(*store), "collect");
      recorder.set_phase(kEvicted);
    }
    recorder.stop();
    std::size_t checked = 0;
    counts = each_crash_state(recorder.moments(), cap(), [&](const Moment& moment, FakeFileSystem& image) {
      if (is_broken() && wrong.size() >= 10) return;  // it has shown what it is for
      const bool with_recovery =
          (!is_broken() || variant_.ignored_in_recovery) && checked++ % recovery_stride() == 0;
      check(moment, recorder.catalog(moment.catalog), image, with_recovery);
    });
  }

  CrashCounts counts{};
  CrashCounts recovery_counts{};
  std::vector<std::string> wrong{};

 private:
  bool is_broken() const { return variant_.ignored_syncs != nullptr || variant_.forget_plans; }
  static bool is_long() { return std::getenv("KVPACK_LONG_TESTS") != nullptr; }
  static std::size_t cap() { return is_long() ? 4'096 : 96; }
  static std::size_t recovery_stride() { return is_long() ? 1 : 16; }

  std::string catalog_path() const { return root_ + "/catalog/catalog.sqlite"; }
  StoreOptions options(FakeFileSystem& files) {
    StoreOptions options;
    options.root = root_;
    options.keys = keys_;
    options.quota_bytes = std::uint64_t{1} << 30;
    options.clock = &clock_;
    options.random = &random_;
    options.file_system = &files;
    return options;
  }
  template <class T>
  void note(const Result<T>& result, const std::string& what) {
    if (!result.has_value()) wrong.push_back(what + ": " + Error(result.error()).verdict());
  }

  SaveRequest request(const std::vector<std::uint32_t>& tokens) const {
    SaveRequest request;
    request.family = &model_.family;
    request.semantic_model = model_.semantic;
    request.tokens = tokens;
    request.spans.grain_tokens = 256;
    request.encrypt = variant_.encrypt;
    request.parallelism = 1;
    return request;
  }
  Id32 save_cut_of(Store& store, std::size_t token_count) {
    const auto tokens = tokens_of(token_count);
    const Bytes plane = plane_of(token_count);
    const ByteSpan planes[] = {plane};
    const auto saved = save(store, request(tokens), planes);
    note(saved, "save");
    return saved.has_value() ? saved->head().manifest_id : Id32{};
  }

  // The whole cut, nothing, or a complaint.
  bool is_there(Store& store, const Id32& id, std::size_t token_count, const std::string& where) {
    const auto planned = plan(store, id);
    if (!planned.has_value()) {
      if (planned.error().code != ErrorCode::kNotFound)
        wrong.push_back(where + ": " + Error(planned.error()).verdict());
      return false;
    }
    KeepingSink sink;
    auto restored = restore(store, *planned, sink);
    if (!restored.has_value()) {
      wrong.push_back(where + ": " + restored.error().verdict());
      return false;
    }
    if (!restored->hold.release().has_value()) wrong.push_back(where + ": hold");
    if (sink.plane != plane_of(token_count)) wrong.push_back(where + ": wrong bytes");
    return true;
  }

  void check(const Moment& moment, const CatalogCopy& catalog, FakeFileSystem& image, bool with_recovery) {
    const std::string where = variant_.name + ", before " + moment.before;
    catalog.put(catalog_path());
    CrashRecorder recovery(catalog_path());
    if (variant_.ignored_in_recovery) image.ignore_syncs(variant_.ignored_syncs);
    if (with_recovery) recovery.start(image);
    auto store = Store::open(options(image));
    if (!store.has_value()) {
      wrong.push_back(where + ": open: " + store.error().verdict());
      return;
    }
    if (with_recovery) recovery.stop();
    image.ignore_syncs(nullptr);
    check_open(moment, **store, where);
    store->reset();
    if (!with_recovery) return;
    const CrashCounts inside =
        each_crash_state(recovery.moments(), cap() / 8, [&](const Moment& at, FakeFileSystem& second) {
          recovery.catalog(at.catalog).put(catalog_path());
          const std::string deeper = where + ", recovery before " + at.before;
          auto again = Store::open(options(second));
          if (!again.has_value()) {
            wrong.push_back(deeper + ": open: " + again.error().verdict());
            return;
          }
          check_open(moment, **again, deeper);
        });
    recovery_counts.moments += inside.moments;
    recovery_counts.states += inside.states;
    recovery_counts.distinct += inside.distinct;
  }

  void check_open(const Moment& moment, Store& store, const std::string& where) {
    for (const std::string& fault : store_faults(store)) wrong.push_back(where + ": " + fault);
    const bool old_there = is_there(store, old_id_, kOldTokens, where + ", old cut");
    if (!old_there && moment.phase < kEvicting) wrong.push_back(where + ": the old cut is gone");
    const bool new_there = is_there(store, new_id_, kNewTokens, where + ", new cut");
    if (!new_there && moment.phase >= kSaved) wrong.push_back(where + ": the new cut is gone");
    note(collect(store), where + ": collect");
    for (const std::string& fault : store_leaks(store))
      wrong.push_back(where + ", after collecting: " + fault);
    const Id32 again = save_cut_of(store, kNewTokens);
    if (!is_there(store, again, kNewTokens, where + ", saved again"))
      wrong.push_back(where + ": saved again and not there");
  }

  // As if nothing were planned before it is linked.
  void forget_plans(Store& store) {
    note(store.context().catalog->write([](sqlite::Database& db) {
      return db.execute(
          "CREATE TRIGGER forget AFTER INSERT ON upload_objects WHEN NEW.phase = 1 BEGIN"
          " DELETE FROM upload_objects WHERE upload = NEW.upload AND object_id = NEW.object_id; END");
    }),
         "trigger");
  }

  Variant variant_;
  Model model_;
  TempDirectory directory_;
  std::string root_;
  FakeFileSystem files_;
  FakeClock clock_;
  CountingRandom random_;
  std::shared_ptr<const KeyRing> keys_ = test_keys();
  Id32 old_id_;
  Id32 new_id_;
};

void report(const std::string& name, const Enumeration& e) {
  std::cout << name << ": " << e.counts.moments << " moments, " << e.counts.states << " states, "
            << e.counts.distinct << " distinct" << (e.counts.sampled ? " (sampled)" : "")
            << "; inside recovery " << e.recovery_counts.states << " states, " << e.recovery_counts.distinct
            << " distinct; " << e.wrong.size() << " wrong\n";
}

class EveryCrash : public ::testing::TestWithParam<Variant> {};

TEST_P(EveryCrash, LeavesTheOldGenerationWholeAndTheNewOneWholeOrAbsent) {
  Enumeration e(GetParam());
  e.run();
  report(GetParam().name, e);
  EXPECT_GT(e.counts.distinct, 20u);
  EXPECT_GT(e.recovery_counts.distinct, 5u);
  for (std::size_t i = 0; i < std::min<std::size_t>(e.wrong.size(), 10); ++i) ADD_FAILURE() << e.wrong[i];
  EXPECT_TRUE(e.wrong.empty());
}

// Where the system has a queue, a store writes through the page cache and queues its syncs, unless it was
// told to write directly: then it queues both. What happens of a batch happens in an order of its own.
std::vector<Variant> protocols() {
  std::vector<Variant> all{{.name = "portable_calls", .unnamed_files = false, .exclusive_rename = false},
                           {.name = "unnamed_temporaries"},
                           {.name = "syncs_queued", .queue_seed = 7, .queue_writes = false},
                           {.name = "queued", .queue_seed = 0},
                           {.name = "encrypted_queued", .encrypt = true, .queue_seed = 7}};
  if (std::getenv("KVPACK_LONG_TESTS") == nullptr) return all;
  all.push_back({.name = "encrypted", .encrypt = true});
  all.push_back({.name = "encrypted_syncs_queued", .encrypt = true, .queue_seed = 0, .queue_writes = false});
  all.push_back({.name = "named_temporaries_queued", .unnamed_files = false, .queue_seed = 7});
  all.push_back({.name = "named_temporaries_syncs_queued",
                 .unnamed_files = false,
                 .queue_seed = 7,
                 .queue_writes = false});
  return all;
}

INSTANTIATE_TEST_SUITE_P(Protocols, EveryCrash, ::testing::ValuesIn(protocols()),
                         [](const auto& param) { return param.param.name; });

// A test of the test: without any one rule there are states that are wrong.
class WithoutARule : public ::testing::TestWithParam<Variant> {};

TEST_P(WithoutARule, TheEnumerationFindsWhatItIsFor) {
  Enumeration e(GetParam());
  e.run();
  report(GetParam().name, e);
  EXPECT_FALSE(e.wrong.empty());
}

bool is_shard(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash != std::string::npos && path.size() - slash == 3;
}
bool is_sync_of_shard(const Operation& o) {
  return o.verb == "sync directory" && is_shard(o.path);
}

INSTANTIATE_TEST_SUITE_P(
    Protocols, WithoutARule,
    ::testing::Values(Variant{.name = "no_sync_of_files",
                              .ignored_syncs = [](const Operation& o) { return o.verb == "sync"; }},
                      Variant{.name = "no_sync_of_files_queued",
                              .queue_seed = 0,
                              .ignored_syncs = [](const Operation& o) { return o.verb == "sync"; }},
                      Variant{.name = "no_sync_of_files_syncs_queued",
                              .queue_seed = 7,
                              .queue_writes = false,
                              .ignored_syncs = [](const Operation& o) { return o.verb == "sync"; }},
                      Variant{.name = "no_sync_of_target_directories", .ignored_syncs = is_sync_of_shard},
                      Variant{.name = "no_sync_of_removals_before_their_rows_go",
                              .ignored_syncs = is_sync_of_shard,
                              .ignored_from = kSaved},
                      Variant{.name = "recovery_commits_before_it_syncs",
                              .ignored_syncs = [](const Operation& o) { return o.verb == "sync directory"; },
                              .ignored_in_recovery = true},
                      Variant{.name = "no_sync_of_the_parents_of_new_shards",
                              .ignored_syncs =
                                  [](const Operation& o) {
                                    return o.verb == "sync directory" &&
                                           (o.path.ends_with("/chunks") || o.path.ends_with("/manifests"));
                                  }},
                      Variant{.name = "no_plans_before_links", .unnamed_files = false, .forget_plans = true}),
    [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace kvpack::testing::crash
