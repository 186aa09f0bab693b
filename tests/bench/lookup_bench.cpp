// Looking up in stores that hold many cuts. Rows are put into the catalog directly; of the objects there is
// no file, since a lookup reads none. `--lookup_manifests=N` is the size of the largest store, 100,000 unless
// it is given.
//   find    the deepest prefix of 65,536 tokens, that is 256 nodes. x_chain is its time over that of
//           deriving the nodes, which nobody can do without; to reach: at most 2. Processor time
//   ladder  a request of 65,536 tokens that no tier has, in a store of the Muse adapter: x_chain as above; to
//           reach: at most 2
//   grow    opening a store, one lookup that misses, one save of two small chunks, in stores of three sizes
//           side by side. ms_N is processor time of one thread with N cuts, clock_ms_N the clock's, growth
//           the largest over the smallest. tests/bench/plot_growth.py draws it
//   beside  the slowest of many lookups by three reading processes while another one saves and collects:
//           x_without over the slowest without a writer, x_other over the slowest beside a writer of another
//           store, which takes its share of the machine and of the disk as well. Clock time;
//           `--lookup_beside_ms=N` is how long they read each time, 500 unless it is given
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <memory>
#include <numeric>
#include <optional>

#include "bench/side_by_side.h"
#include "kvpack/core/family_builder.h"
#include "kvpack/crypto/sha256.h"
#include "kvpack/muse/durable_rung.h"
#include "kvpack/muse/reuse_ladder.h"
#include "kvpack/store/lookup.h"
#include "kvpack/store/save.h"
#include "kvpack/store/upkeep.h"
#include "muse/muse_fixtures.h"
#include "store/store_context.h"
#include "support/temp_directory.h"

namespace kvpack::bench {
namespace {

constexpr std::size_t kTokens = 65'536;
std::uint64_t largest_store = 100'000;
std::uint64_t beside_ms = 500;

SecretKey bench_key() {
  std::array<std::uint8_t, SecretKey::kBytes> bytes{};
  bytes.fill(9);
  return SecretKey(bytes);
}

SemanticModelId model() {
  return {Id32::filled(5), Id32::filled(6), Id32::filled(7), Id32::filled(8), Id32::filled(9)};
}

const IdentifiedFamily& family() {
  static const IdentifiedFamily made =
      must(build_family({Id32::filled(2), Id32::filled(3), Id32::filled(4)},
                        {{.layer = 0, .name = "k", .dimensions = {kTokenAxis, 2, 64}},
                         {.layer = 0, .name = "v", .dimensions = {kTokenAxis, 2, 64}}}));
  return made;
}

StoreOptions options_of(const std::string& root) {
  static const auto keys = [] {
    const auto tenant = must(derive_tenant_namespace(bench_key(), byte_view("bench")));
    return std::make_shared<const KeyRing>(
        must(KeyRing::create({.stable_root = bench_key(), .tenant = tenant})));
  }();
  return {.root = root, .keys = keys};
}

// Inputs of equal seed are prefixes of each other.
std::vector<std::uint32_t> tokens_of(std::uint32_t seed, std::size_t count = kTokens) {
  std::vector<std::uint32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), seed * 1'000'000U);
  return tokens;
}

PrefixQuery query_of(std::span<const std::uint32_t> tokens) {
  PrefixQuery query;
  query.semantic_model = model();
  query.family = &family();
  query.tokens = tokens;
  return query;
}

DerivedInput derive(const KeySchedule& keys, std::span<const std::uint32_t> tokens) {
  return must(derive_input(keys, model(), family().id(), {}, tokens));
}

// Cuts of inputs that nobody asks for, and at these nodes cuts that are found.
void plant(Store& store, std::uint64_t count, std::span<const PrefixNode> nodes = {}) {
  store::StoreContext& context = store.context();
  const Id32 semantic_id = semantic_model_id(model());
  const Id32 family_id = family().id();
  const auto insert = [&](sqlite::Database& db, const Id32& manifest_id, const Id32& prefix_id,
                          std::uint64_t tokens) -> Status {
    KVPACK_TRY(
        db.run("INSERT INTO manifests (manifest_id, depth, key_epoch, semantic_id, family_id,"
               " token_count, file_bytes, restored_bytes, generation, publication, published_ns,"
               " access_ns) VALUES (?1, 0, 1, ?2, ?3, ?4, 8704, 1, 1, 1, ?5, ?5)",
               manifest_id, semantic_id, family_id, tokens, context.now_ns()));
    return db.run("INSERT INTO prefixes (prefix_id, manifest, exact_final) VALUES (?, ?, 1)", prefix_id,
                  db.last_row());
  };
  must(context.catalog->write([&](sqlite::Database& db) -> Status {
    for (std::uint64_t i = 0; i < count; ++i) {
      const Id32 id{sha256({byte_view("planted"), le_bytes(i)})};
      KVPACK_TRY(insert(db, id, id, 256));
    }
    for (const PrefixNode& node : nodes)
      KVPACK_TRY(insert(db, Id32{sha256({byte_view("planted"), node.id})}, node.id, node.token_count));
    return success();
  }));
  must(context.catalog->checkpoint());
}

// A store of so many cuts in a directory of its own, which are gone with it.
class PlantedStore {
 public:
  explicit PlantedStore(std::uint64_t count) {
    store = must(Store::create(options()));
    plant(*store, count);
  }
  StoreOptions options() const { return options_of(directory_.path() + "/store"); }

 private:
  testing::TempDirectory directory_;

 public:
  std::unique_ptr<Store> store;
};

// --- find
// ---------------------------------------------------------------------------------------------------------

enum class Stored { kNothing, kWholeInput, kFirstBlock, kEveryBlock };

void find(benchmark::State& state, Stored stored) {
  constexpr int kRepeats = 20;
  PlantedStore planted(largest_store);
  const auto tokens = tokens_of(1);
  const KeySchedule& keys = planted.store->active_keys();
  const DerivedInput input = derive(keys, tokens);
  const std::span<const PrefixNode> nodes = input.nodes;
  std::uint64_t expected = stored == Stored::kNothing ? 0 : kTokens;
  if (stored == Stored::kFirstBlock) expected = kPrefixBlockTokens;
  if (stored == Stored::kWholeInput) plant(*planted.store, 0, nodes.last(1));
  if (stored == Stored::kFirstBlock) plant(*planted.store, 0, nodes.first(1));
  if (stored == Stored::kEveryBlock) plant(*planted.store, 0, nodes);
  Rounds rounds({{[&] {
                   for (int i = 0; i < kRepeats; ++i) benchmark::DoNotOptimize(derive(keys, tokens));
                 }},
                 {[&] {
                   for (int i = 0; i < kRepeats; ++i) {
                     const auto hit = must(find_deepest(*planted.store, query_of(tokens)));
                     if ((hit ? hit->token_count : 0) != expected) std::abort();
                   }
                 }}},
                processor_seconds);
  rounds.run(state, 1);
  state.counters["x_chain"] = rounds.seconds(1) / rounds.seconds(0);
  state.counters["find_us"] = rounds.seconds(1) / kRepeats * 1e6;
  if (rounds.spread(0) > kMostSpread)
    state.SetLabel("inconclusive: deriving the nodes alone moves by more than 1.6");
}

#define KVPACK_FIND_BENCH(...) \
  BENCHMARK_CAPTURE(find, __VA_ARGS__)->UseManualTime()->Unit(benchmark::kMillisecond)->Iterations(kRounds)
KVPACK_FIND_BENCH(hit, Stored::kWholeInput);
KVPACK_FIND_BENCH(hit_of_the_first_block, Stored::kFirstBlock);
KVPACK_FIND_BENCH(hit_with_a_cut_at_every_block, Stored::kEveryBlock);
KVPACK_FIND_BENCH(miss, Stored::kNothing);

// --- ladder
// -------------------------------------------------------------------------------------------------------

// An engine that holds nothing and is given nothing.
class IdleSession final : public muse::LiveSession {
 public:
  muse::SessionGeometry geometry() const override { return {.vocab_size = 128}; }
  std::span<const std::uint32_t> tokens() const override { return {}; }
  std::span<const float> logits() const override { return {}; }
  Result<muse::CacheSnapshot> export_snapshot() override {
    return fail(ErrorCode::kState, "nothing is live");
  }
  Status install(const muse::CacheSnapshot&) override {
    return fail(ErrorCode::kState, "nothing is to come");
  }
  Status install_logits(std::span<const float>) override {
    return fail(ErrorCode::kState, "nothing is to come");
  }
  Status reset() override { return success(); }
};

void ladder(benchmark::State& state) {
  constexpr int kRepeats = 20;
  PlantedStore planted(largest_store);
  const auto cache = must(muse::DurableCache::create(*planted.store, muse::testing::test_config(),
                                                     muse::testing::test_identity()));
  muse::DurableCacheRung durable(cache);
  muse::ResidentTier resident = must(muse::ResidentTier::create());
  const muse::ReuseLadder tiers({.resident = &resident, .durable = &durable});
  const auto tokens = tokens_of(1);
  const KeySchedule& keys = planted.store->active_keys();
  IdleSession session;
  Rounds rounds({{[&] {
                   for (int i = 0; i < kRepeats; ++i)
                     benchmark::DoNotOptimize(
                         must(derive_input(keys, cache.semantic_model(), cache.family().id(), {}, tokens)));
                 }},
                 {[&] {
                   for (int i = 0; i < kRepeats; ++i)
                     if (must(tiers.prepare(session, tokens)).source != muse::ReuseSource::kMiss)
                       std::abort();
                 }}},
                processor_seconds);
  rounds.run(state, 1);
  state.counters["x_chain"] = rounds.seconds(1) / rounds.seconds(0);
  state.counters["miss_us"] = rounds.seconds(1) / kRepeats * 1e6;
  if (rounds.spread(0) > kMostSpread)
    state.SetLabel("inconclusive: deriving the nodes alone moves by more than 1.6");
}
BENCHMARK(ladder)->UseManualTime()->Unit(benchmark::kMillisecond)->Iterations(kRounds);

// --- grow
// ---------------------------------------------------------------------------------------------------------

// A save of one block, of which no two have a chunk in common.
void save_small(Store& store, std::uint32_t seed, std::optional<std::uint64_t> time_to_live_ms = {}) {
  const auto tokens = tokens_of(seed, kPrefixBlockTokens);
  Bytes plane(kPrefixBlockTokens * std::size_t{256});
  for (std::size_t at = 0; at < plane.size(); at += 4)
    store_le(plane, at, seed * 2'654'435'761U + static_cast<std::uint32_t>(at));
  const std::vector<ByteSpan> planes(2, plane);
  SaveRequest request;
  request.family = &family();
  request.semantic_model = model();
  request.tokens = tokens;
  request.encrypt = false;
  request.parallelism = 1;
  request.time_to_live_ms = time_to_live_ms;
  must(save(store, request, planes));
}

enum class Action { kOpen, kFind, kSave };

void grow(benchmark::State& state, Action action) {
  std::vector<std::unique_ptr<PlantedStore>> stores;
  std::vector<std::uint64_t> sizes{largest_store / 100, largest_store / 10, largest_store};
  for (const std::uint64_t size : sizes) stores.push_back(std::make_unique<PlantedStore>(size));
  const auto tokens = tokens_of(1);
  std::uint32_t seed = 1;
  std::vector<std::vector<double>> clock(stores.size());
  std::vector<Variant> variants;
  for (std::size_t i = 0; i < stores.size(); ++i) {
    PlantedStore& planted = *stores[i];
    const auto work = [&, i] {
      const double start = wall_seconds();
      if (action == Action::kOpen) planted.store = must(Store::open(planted.options()));
      if (action == Action::kFind) must(find_deepest(*planted.store, query_of(tokens)));
      if (action == Action::kSave) save_small(*planted.store, ++seed);
      clock[i].push_back(wall_seconds() - start);
    };
    const auto close = [&, action] {
      if (action == Action::kOpen) planted.store.reset();
    };
    variants.push_back({work, close});
  }
  Rounds rounds(std::move(variants), processor_seconds);
  rounds.run(state, 2);
  for (std::size_t i = 0; i < stores.size(); ++i) {
    state.counters["ms_" + std::to_string(sizes[i])] = rounds.seconds(i) * 1e3;
    state.counters["clock_ms_" + std::to_string(sizes[i])] = median(clock[i]) * 1e3;
  }
  state.counters["growth"] = rounds.seconds(2) / rounds.seconds(0);
}

#define KVPACK_GROW_BENCH(...) \
  BENCHMARK_CAPTURE(grow, __VA_ARGS__)->UseManualTime()->Unit(benchmark::kMillisecond)->Iterations(21)
KVPACK_GROW_BENCH(open, Action::kOpen);
KVPACK_GROW_BENCH(find, Action::kFind);
KVPACK_GROW_BENCH(save, Action::kSave);

// --- beside
// -------------------------------------------------------------------------------------------------------

// What processes tell each other, in memory that they share.
struct Tally {
  struct Reader {
    double slowest_seconds = 0;
    std::uint64_t lookups = 0;
  };
  static constexpr std::size_t kReaders = 3;
  std::array<Reader, kReaders> readers{};
  std::uint64_t saves = 0;
};

class SharedTally {
 public:
  SharedTally()
      : memory_(mmap(nullptr, sizeof(Tally), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
    if (memory_ == MAP_FAILED) std::abort();
    tally_ = new (memory_) Tally();
  }
  SharedTally(const SharedTally&) = delete;
  SharedTally& operator=(const SharedTally&) = delete;
  ~SharedTally() { munmap(memory_, sizeof(Tally)); }
  Tally* operator->() noexcept { return tally_; }

 private:
  void* memory_;
  Tally* tally_;
};

// Another process, which has begun when it is made, and is told to end and waited for when it goes. No store
// may be open when it is made: SQLite must not be carried over.
class Process {
 public:
  using Begun = std::function<void()>;
  using Wanted = std::function<bool()>;

  explicit Process(const std::function<void(const Begun&, const Wanted&)>& run) {
    int stop[2];
    int begun[2];
    if (pipe2(stop, O_CLOEXEC) != 0 || pipe2(begun, O_CLOEXEC) != 0) std::abort();
    pid_ = fork();
    if (pid_ < 0) std::abort();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      fcntl(stop[0], F_SETFL, O_NONBLOCK);
      run(
          [&] {
            if (write(begun[1], "", 1) != 1) _exit(1);
          },
          [&] {
            char byte = 0;
            return read(stop[0], &byte, 1) < 0;
          });
      _exit(0);
    }
    close(stop[0]);
    close(begun[1]);
    stop_ = stop[1];
    char byte = 0;
    if (read(begun[0], &byte, 1) != 1) std::abort();
    close(begun[0]);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  ~Process() {
    // A word, not the end of the pipe: processes that were made later have that open too.
    if (write(stop_, "", 1) != 1) std::abort();
    close(stop_);
    int status = 0;
    if (waitpid(pid_, &status, 0) != pid_ || status != 0) std::abort();
  }

 private:
  int stop_ = -1;
  pid_t pid_ = -1;
};

// Saves cuts that are gone at once, and collects them.
void write_until_told(const StoreOptions& options, std::uint32_t first_seed, std::uint64_t& saves,
                      const Process::Begun& begun, const Process::Wanted& wanted) {
  const auto store = must(Store::open(options));
  begun();
  for (std::uint32_t seed = first_seed; wanted(); ++seed) {
    save_small(*store, seed, 1);
    ++saves;
    if (seed % 4 == 0) must(collect(*store));
  }
  must(collect(*store));
}

void read_until_told(const StoreOptions& options, std::span<const std::uint32_t> tokens, Tally::Reader& tally,
                     const Process::Begun& begun, const Process::Wanted& wanted) {
  const auto store = must(Store::open_read_only(options));
  must(find_deepest(*store, query_of(tokens)));
  begun();
  while (wanted()) {
    const double start = wall_seconds();
    if (!must(find_deepest(*store, query_of(tokens)))) std::abort();
    tally.slowest_seconds = std::max(tally.slowest_seconds, wall_seconds() - start);
    ++tally.lookups;
  }
}

void beside(benchmark::State& state) {
  constexpr std::size_t kNodes = 16;
  const auto tokens = tokens_of(1, kNodes * kPrefixBlockTokens);
  PlantedStore read(largest_store / 10);
  PlantedStore other(largest_store / 10);
  plant(*read.store, 0, derive(read.store->active_keys(), tokens).nodes);
  read.store.reset();
  other.store.reset();
  SharedTally tally;
  std::uint32_t seed = 1'000;
  const auto slowest = [&](const PlantedStore* written) {
    std::unique_ptr<Process> writer;
    seed += 100'000;
    if (written != nullptr)
      writer = std::make_unique<Process>([&](const auto& begun, const auto& wanted) {
        write_until_told(written->options(), seed, tally->saves, begun, wanted);
      });
    for (Tally::Reader& reader : tally->readers) reader.slowest_seconds = 0;
    {
      std::vector<std::unique_ptr<Process>> readers;
      for (Tally::Reader& reader : tally->readers)
        readers.push_back(std::make_unique<Process>([&](const auto& begun, const auto& wanted) {
          read_until_told(read.options(), tokens, reader, begun, wanted);
        }));
      std::this_thread::sleep_for(std::chrono::milliseconds(beside_ms));
    }
    return std::ranges::max(tally->readers, {}, &Tally::Reader::slowest_seconds).slowest_seconds;
  };
  std::array<std::vector<double>, 3> seconds;
  for (auto _ : state) {
    const std::array<const PlantedStore*, 3> written{nullptr, &other, &read};
    for (std::size_t i = 0; i < written.size(); ++i) seconds[i].push_back(slowest(written[i]));
    state.SetIterationTime(seconds[2].back());
  }
  state.counters["slowest_ms"] = median(seconds[2]) * 1e3;
  state.counters["x_without"] = median(seconds[2]) / median(seconds[0]);
  state.counters["x_other"] = median(seconds[2]) / median(seconds[1]);
  state.counters["saves"] = static_cast<double>(tally->saves);
  for (const Tally::Reader& reader : tally->readers)
    state.counters["lookups"] += static_cast<double>(reader.lookups);
}

BENCHMARK(beside)->UseManualTime()->Unit(benchmark::kMillisecond)->Iterations(kRounds);

}  // namespace
}  // namespace kvpack::bench

int main(int argc, char** argv) {
  using namespace kvpack::bench;
  largest_store = std::max<std::uint64_t>(100, take_option(argc, argv, "lookup_manifests", largest_store));
  beside_ms = take_option(argc, argv, "lookup_beside_ms", beside_ms);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
