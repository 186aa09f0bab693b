// A process that saves, evicts and collects is killed at any time, again and again, while other processes
// look up and restore without pause. KVPACK_LONG_TESTS=1 kills more often.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <random>
#include <thread>

#include "kvpack/store/fsck.h"
#include "kvpack/store/lookup.h"
#include "kvpack/store/restore.h"
#include "kvpack/store/save.h"
#include "kvpack/store/upkeep.h"
#include "support/store_checks.h"
#include "support/stores.h"
#include "support/verdict.h"

namespace kvpack::testing::kill_test {
namespace {

using namespace std::chrono_literals;

constexpr std::uint32_t kSeeds = 6;
constexpr std::uint32_t kMaxTokens = 1'600;
constexpr std::size_t kReaders = 2;
constexpr std::size_t kMaxSaved = 1 << 18;
constexpr std::chrono::microseconds kLongestLife = 400ms;

// What a writer is doing.
enum Stage : std::uint32_t { kOpening, kChecking, kSaving, kEvicting, kCollecting, kStages };
constexpr std::array<const char*, kStages> kStageNames{"opening", "checking", "saving", "evicting",
                                                       "collecting"};

// A cut that a save has returned.
struct Saved {
  std::uint32_t seed = 0;
  std::uint32_t tokens = 0;
  std::atomic<bool> evicted{false};  // set before it is tried
};

// What all processes know of each other. A killed process leaves it as it was.
struct Shared {
  std::atomic<std::uint32_t> stage{kOpening};
  std::atomic<std::uint64_t> openings{0}, replays{0}, evictions{0}, restores{0}, ancestors{0}, misses{0};
  std::atomic<std::uint64_t> failures{0};
  std::atomic<std::uint64_t> saved_count{0};
  std::array<Saved, kMaxSaved> saved{};

  static Shared* map() {
    void* memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? nullptr : new (memory) Shared;
  }
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

std::atomic<bool> asked_to_end{false};

// An input of which every token and byte follows from its seed; the shorter is a prefix of the longer.
std::vector<std::uint32_t> tokens_of(std::uint32_t seed, std::uint32_t count) {
  std::vector<std::uint32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), 1'000'000 * (seed + 1));
  return tokens;
}
Bytes plane_of(std::uint32_t seed, std::size_t state, std::uint64_t tokens) {
  const std::size_t row = state == 0 ? 32 : 16;
  Bytes plane(static_cast<std::size_t>(tokens) * row);
  for (std::size_t i = 0; i < plane.size(); i += 8) {
    std::uint64_t x = (std::uint64_t{seed + 1} << 40) + (std::uint64_t{state} << 32) + i;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x ^= x >> 27;
    for (std::size_t b = 0; b < 8; ++b) plane[i + b] = static_cast<std::uint8_t>(x >> (8 * b));
  }
  return plane;
}

// What is live after a restore.
class PlaneSink final : public RestoreSink {
 public:
  Status begin_restore(const AuthenticatedPlan& plan) override {
    planes.clear();
    for (const PlannedState& state : plan.states())
      planes.emplace_back(static_cast<std::size_t>(state.complete_physical_bytes));
    return success();
  }
  MutableByteSpan lend(std::size_t state) override { return planes[state]; }
  Status write_verified_chunk(std::size_t, std::uint64_t, ByteSpan) override {
    return fail(ErrorCode::kInstall, "all memory is lent");
  }
  Status commit_restore() override { return success(); }
  void abort_restore() noexcept override { planes.clear(); }

  std::vector<Bytes> planes{};
};

// One process's view of the store.
class Client {
 public:
  // Every other one makes do with the calls that all systems have.
  Client(Shared& shared, const std::string& root, std::uint64_t seed)
      : shared_(shared), random_(seed), files_(seed % 2 == 0 ? SystemCalls::kAll : SystemCalls::kPortable) {
    auto family = build_family(
        {.engine_cache_abi = Id32::filled(1), .topology = Id32::filled(2), .shard_map = Id32::filled(3)},
        {{.layer = 0, .name = "k", .dtype = DType::kU8, .dimensions = {kTokenAxis, 32}},
         {.layer = 0, .name = "v", .dtype = DType::kU8, .dimensions = {kTokenAxis, 16}}});
    EXPECT_TRUE(family.has_value());
    family_.emplace(*std::move(family));
    options_.root = root;
    options_.keys = test_keys();
    options_.file_system = &files_;
    options_.quota_bytes = std::uint64_t{8} << 30;
    options_.memory.parallelism = 2;
    options_.on_fault = [](const StoreFault& fault) {
      ADD_FAILURE() << "fault: " << fault.error.verdict() << " " << fault.path;
    };
  }

  std::uint32_t pick(std::uint32_t bound) { return static_cast<std::uint32_t>(random_() % bound); }
  std::uint32_t pick_tokens() { return 100 * (1 + pick(kMaxTokens / 100)) + pick(3); }

  PrefixQuery query(const std::vector<std::uint32_t>& tokens) const {
    return {.semantic_model = model(), .family = &*family_, .tokens = tokens};
  }

  // The deepest cut of an input, whole. @return its tokens, 0 for a miss
  std::uint64_t restore(std::uint32_t seed, std::uint32_t count) {
    const auto tokens = tokens_of(seed, count);
    PlaneSink sink;
    auto restored = restore_deepest(*store_, query(tokens), sink);
    if (!restored.has_value() && restored.error().code == ErrorCode::kNotFound) return 0;
    EXPECT_TRUE(restored.has_value()) << restored.error().verdict();
    if (!restored.has_value() || !restored->restored) return 0;
    const std::uint64_t depth = restored->restored->cut.token_count;
    EXPECT_LE(depth, count);
    EXPECT_TRUE(restored->faults.empty());
    for (std::size_t state = 0; state < 2; ++state)
      EXPECT_TRUE(sink.planes[state] == plane_of(seed, state, depth)) << seed << " " << depth;
    EXPECT_TRUE(restored->restored->hold.release().has_value());
    return depth;
  }

 protected:
  static SemanticModelId model() {
    return {Id32::filled(10), Id32::filled(11), Id32::filled(12), Id32::filled(13), Id32::filled(14)};
  }

  Shared& shared_;
  std::mt19937_64 random_;
  SystemFileSystem files_;
  std::optional<IdentifiedFamily> family_;
  StoreOptions options_;
  std::unique_ptr<Store> store_;
};

class Reader : public Client {
 public:
  using Client::Client;

  // Until it is asked to end.
  void run() {
    for (std::uint64_t round = 0; !asked_to_end; ++round) {
      if (round % 64 == 0) open();
      if (::testing::Test::HasFailure()) return;
      const std::uint32_t tokens = pick_tokens();
      const std::uint64_t depth = restore(pick(kSeeds), tokens);
      ++(depth == tokens ? shared_.restores : depth != 0 ? shared_.ancestors : shared_.misses);
      std::this_thread::sleep_for(500us);
    }
    store_.reset();
  }

 private:
  void open() {
    store_.reset();
    auto opened = Store::open_read_only(options_);
    ASSERT_TRUE(opened.has_value()) << opened.error().verdict();
    store_ = *std::move(opened);
  }
};

class Writer : public Client {
 public:
  using Client::Client;

  void create() {
    auto created = Store::create(options_);
    ASSERT_TRUE(created.has_value()) << created.error().verdict();
    store_ = *std::move(created);
    for (std::uint32_t seed = 0; seed < kSeeds; ++seed) save(seed, 300, SaveKind::kSingleCut, false);
    store_.reset();
  }

  // Until it is killed. @param steps  fewer for a life of known length
  void run(std::uint64_t steps = std::numeric_limits<std::uint64_t>::max()) {
    open();
    for (std::uint64_t step = 0; step < steps && !::testing::Test::HasFailure(); ++step) work();
  }

  void open() {
    shared_.stage = kOpening;
    auto opened = Store::open(options_);
    ASSERT_TRUE(opened.has_value()) << opened.error().verdict();
    store_ = *std::move(opened);
    ++shared_.openings;
    shared_.stage = kChecking;
    const std::uint64_t count = shared_.saved_count;
    for (std::uint64_t i = count - std::min<std::uint64_t>(count, 8); i < count; ++i) expect_found(i);
    if (count != 0) expect_restored(random_() % count);
  }

  // At the end: everything that was saved and not evicted is there, and nothing else is on the disk.
  void check_all() {
    open();
    const std::uint64_t count = shared_.saved_count;
    for (std::uint64_t i = 0; i < count; ++i) expect_found(i);
    for (std::uint64_t i = count - std::min<std::uint64_t>(count, 100); i < count; ++i) expect_restored(i);
    const auto collected = collect(*store_);
    ASSERT_TRUE(collected.has_value()) << collected.error().verdict();
    expect_sound(*store_);
    expect_no_orphans(*store_);
    EXPECT_EQ(catalog_number(*store_, "SELECT count(*) FROM upload_objects"), 0);
    EXPECT_EQ(catalog_number(*store_, "SELECT reserved_bytes FROM store"), 0);
    const auto report = fsck(*store_, {.deep = true});
    ASSERT_TRUE(report.has_value()) << report.error().verdict();
    for (const FsckFinding& finding : report->findings) ADD_FAILURE() << finding.path << ": " << finding.text;
    EXPECT_TRUE(std::filesystem::is_empty(options_.root + "/objects/partials"));
    EXPECT_TRUE(std::filesystem::is_empty(options_.root + "/pins"));
  }

 private:
  void work() {
    const std::uint32_t dice = pick(20);
    if (dice < 14) return save(pick(kSeeds), pick_tokens(), SaveKind::kSingleCut, dice < 5);
    if (dice < 17) return save(pick(kSeeds), pick_tokens(), SaveKind::kCutExport, false);
    if (dice < 19) return evict_one();
    shared_.stage = kCollecting;
    const auto collected = pick(2) == 0 ? collect(*store_) : maintain(*store_);
    EXPECT_TRUE(collected.has_value()) << collected.error().verdict();
  }

  void save(std::uint32_t seed, std::uint32_t count, SaveKind kind, bool as_delta) {
    shared_.stage = kSaving;
    const auto tokens = tokens_of(seed, count);
    SaveRequest request;
    request.kind = kind;
    request.family = &*family_;
    request.semantic_model = model();
    request.tokens = tokens;
    request.encrypt = pick(2) == 0;
    request.spans.grain_tokens = 256;
    request.parallelism = 1 + pick(2);
    if (as_delta) request.parent = parent_of(tokens);
    const Bytes k = plane_of(seed, 0, count);
    const Bytes v = plane_of(seed, 1, count);
    const ByteSpan planes[] = {k, v};
    const auto saved = kvpack::save(*store_, request, planes);
    ASSERT_TRUE(saved.has_value()) << saved.error().verdict();
    if (saved->replayed) ++shared_.replays;
    for (const PublishedCut& cut : saved->cuts) {
      const std::uint64_t next = shared_.saved_count;
      ASSERT_LT(next, kMaxSaved);
      shared_.saved[next].seed = seed;
      shared_.saved[next].tokens = static_cast<std::uint32_t>(cut.cut.token_count);
      shared_.saved[next].evicted = false;
      shared_.saved_count = next + 1;
    }
  }

  std::optional<Id32> parent_of(const std::vector<std::uint32_t>& tokens) {
    const auto hits = resolve(*store_, query(tokens), kMaxPrefixHits);
    EXPECT_TRUE(hits.has_value()) << hits.error().verdict();
    if (hits.has_value())
      for (const PrefixHit& hit : *hits)
        if (hit.suffix_tokens != 0) return hit.manifest_id;
    return std::nullopt;
  }

  void evict_one() {
    shared_.stage = kEvicting;
    const std::uint64_t count = shared_.saved_count;
    const Saved& victim = shared_.saved[random_() % count];
    const auto tokens = tokens_of(victim.seed, victim.tokens);
    const auto hit = find_deepest(*store_, query(tokens));
    ASSERT_TRUE(hit.has_value()) << hit.error().verdict();
    if (!*hit || (*hit)->suffix_tokens != 0) return;
    for (std::uint64_t i = 0; i < count; ++i)
      if (shared_.saved[i].seed == victim.seed && shared_.saved[i].tokens == victim.tokens)
        shared_.saved[i].evicted = true;
    const auto evicted = evict(*store_, (*hit)->manifest_id);
    if (evicted.has_value()) {
      ++shared_.evictions;
    } else {
      EXPECT_EQ(evicted.error().code, ErrorCode::kBusy) << evicted.error().verdict();
    }
  }

  void expect_found(std::uint64_t i) {
    const Saved& saved = shared_.saved[i];
    if (saved.evicted) return;
    const auto tokens = tokens_of(saved.seed, saved.tokens);
    const auto hit = find_deepest(*store_, query(tokens));
    ASSERT_TRUE(hit.has_value()) << hit.error().verdict();
    EXPECT_TRUE(*hit && (*hit)->suffix_tokens == 0) << "a cut that was saved has gone: " << saved.tokens;
  }
  void expect_restored(std::uint64_t i) {
    const Saved& saved = shared_.saved[i];
    if (saved.evicted) return;
    EXPECT_EQ(restore(saved.seed, saved.tokens), saved.tokens);
  }
};

// Runs `body` in a process of its own, which dies with this one. What fails there is counted.
template <class Body>
pid_t in_child(Shared& shared, Body&& body) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::signal(SIGTERM, [](int) { asked_to_end = true; });
  body();
  const bool failed = ::testing::Test::HasFailure();
  if (failed) ++shared.failures;
  std::cout.flush();
  ::_exit(failed ? 1 : 0);
}

// @return its exit code, or the negative number of the signal that it died from
int wait_for(pid_t child) {
  int status = 0;
  if (::waitpid(child, &status, 0) != child) return 255;
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

TEST(StoreKill, NothingThatWasSavedIsLostAndNothingElseIsLeft) {
  const std::size_t kills = std::getenv("KVPACK_LONG_TESTS") != nullptr ? 4'000 : 200;
  const TempDirectory directory;
  const std::string root = directory.path("store");
  Shared* shared = Shared::map();
  ASSERT_NE(shared, nullptr);
  ASSERT_EQ(wait_for(in_child(*shared, [&] { Writer(*shared, root, 1).create(); })), 0);

  // How long a writer takes to open and do a few things.
  const auto start = std::chrono::steady_clock::now();
  ASSERT_EQ(wait_for(in_child(*shared, [&] { Writer(*shared, root, 2).run(5); })), 0);
  const auto life = std::chrono::duration_cast<std::chrono::microseconds>(
      std::min<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start, kLongestLife));

  std::array<pid_t, kReaders> readers{};
  std::uint64_t reader_seed = 1'000;
  const auto start_reader = [&](pid_t& reader) {
    reader = in_child(*shared, [&] { Reader(*shared, root, ++reader_seed).run(); });
    ++reader_seed;
  };
  for (pid_t& reader : readers) start_reader(reader);

  std::mt19937_64 random(1);
  std::array<std::size_t, kStages> killed{};
  std::size_t killed_readers = 0;
  for (std::size_t kill = 0; kill < kills && shared->failures == 0; ++kill) {
    shared->stage = kOpening;
    const pid_t writer = in_child(*shared, [&] { Writer(*shared, root, 10 + kill).run(); });
    ASSERT_GT(writer, 0);
    std::this_thread::sleep_for(std::chrono::microseconds(
        random() % static_cast<std::uint64_t>(std::chrono::microseconds(life).count())));
    ::kill(writer, SIGKILL);
    ASSERT_EQ(wait_for(writer), -SIGKILL) << "a writer has ended by itself";
    ++killed[shared->stage];
    if (kill % 16 == 15) {
      pid_t& reader = readers[kill / 16 % kReaders];
      ::kill(reader, SIGKILL);
      ASSERT_EQ(wait_for(reader), -SIGKILL) << "a reader has ended by itself";
      ++killed_readers;
      start_reader(reader);
    }
  }
  for (const pid_t reader : readers) ::kill(reader, SIGTERM);
  for (const pid_t reader : readers) EXPECT_EQ(wait_for(reader), 0);
  EXPECT_EQ(wait_for(in_child(*shared, [&] { Writer(*shared, root, 3).check_all(); })), 0);
  EXPECT_EQ(shared->failures, 0u);

  std::cout << kills << " kills of a writer (";
  for (std::size_t stage = 0; stage < kStages; ++stage)
    std::cout << (stage == 0 ? "" : ", ") << killed[stage] << " " << kStageNames[stage];
  std::cout << "), " << killed_readers << " of a reader; " << shared->openings << " openings, "
            << shared->saved_count << " cuts saved, " << shared->replays << " replays, " << shared->evictions
            << " evictions; " << shared->restores << " restores, " << shared->ancestors << " of a prefix, "
            << shared->misses << " misses\n";
  EXPECT_GT(killed[kOpening], 0u);
  EXPECT_GT(killed[kSaving], 0u);
  EXPECT_GT(shared->restores, 0u);
  EXPECT_GT(shared->evictions, 0u);
  ::munmap(shared, sizeof(Shared));
}

}  // namespace
}  // namespace kvpack::testing::kill_test
