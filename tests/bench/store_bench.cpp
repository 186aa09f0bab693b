// Saving and restoring a cut of the Muse's shape through a store: 52 layers with a K and a V plane of 512
// bytes per token each, of which 13 layers hold all tokens and 39 the last 2,048. 954,190,848 bytes with the
// 65,535 tokens that are the default; `--store_tokens=N` makes it smaller. Not encrypted, chunks on multiples
// of 2,048 tokens, two threads. Stores lie in the directory for temporary files, which should be on a disk:
// TMPDIR says where. An iteration is one round, in which all variants take their turn:
//   x_hash       speed over hashing the same bytes twice with SHA-256 of OpenSSL, on two threads
//   x_write      speed over writing the same objects to the same files with the same syncs, on one thread,
//   and
//                nothing else
//   x_slower     the save over the slower of these two; to reach: 0.7
//   x_hash       of the restore, from the page cache and with all checks; to reach: 0.8
//   x_read       of the restore from the disk: speed over reading the same files on one thread, and nothing
//                else; both after the page cache was asked to drop them
//   sha256_gain  one SHA-256 pass on two threads over one; below 1.7 the result is inconclusive
#include <fcntl.h>
#include <unistd.h>

#include <memory>
#include <numeric>
#include <optional>

#include "bench/side_by_side.h"
#include "kvpack/core/family_builder.h"
#include "kvpack/crypto/random.h"
#include "kvpack/store/restore.h"
#include "kvpack/store/save.h"
#include "store/object_batch.h"
#include "support/temp_directory.h"

namespace kvpack::bench {
namespace {

constexpr std::uint32_t kLayers = 52;
constexpr std::uint64_t kHeads = 2;
constexpr std::uint64_t kHeadDim = 128;
constexpr std::uint64_t kBytesPerToken = kHeads * kHeadDim * 2;
constexpr std::uint64_t kWindow = 2'048;
constexpr unsigned kThreads = 2;
constexpr std::size_t kPieceBytes = std::size_t{1} << 20;
std::uint64_t store_tokens = 65'535;

bool holds_all_tokens(std::uint32_t layer) {
  return layer % 4 == 3;
}

SecretKey bench_key() {
  std::array<std::uint8_t, SecretKey::kBytes> bytes{};
  bytes.fill(9);
  return SecretKey(bytes);
}

std::vector<StateSpec> muse_states() {
  std::vector<StateSpec> states;
  for (std::uint32_t layer = 0; layer < kLayers; ++layer)
    for (const char* const name : {"attention.k", "attention.v"})
      states.push_back(
          {.layer = layer,
           .name = name,
           .dimensions = {kTokenAxis, kHeads, kHeadDim},
           .token_axis_rule = holds_all_tokens(layer) ? TokenAxisRule::kDirect : TokenAxisRule::kTailWindow});
  return states;
}

// The cut, its planes, and the pieces in which the naive program hashes them.
class MuseCut {
 public:
  MuseCut()
      : family_(must(build_family({Id32::filled(2), Id32::filled(3), Id32::filled(4)}, muse_states()))),
        tokens_(store_tokens) {
    std::iota(tokens_.begin(), tokens_.end(), 1U);
    std::uint64_t x = 1;
    for (const StaticState& state : family_.family().states) {
      const bool all = holds_all_tokens(state.key.layer);
      const std::uint64_t count = all ? store_tokens : std::min(store_tokens, kWindow);
      states_.push_back({.key = state.key, .token_start = store_tokens - count});
      Bytes& plane = planes_.emplace_back(static_cast<std::size_t>(count * kBytesPerToken));
      for (std::size_t at = 0; at < plane.size(); at += 8)
        store_le<std::uint64_t>(plane, at, x = x * 6'364'136'223'846'793'005u + 1'442'695'040'888'963'407u);
      bytes_ += plane.size();
      views_.push_back(plane);
      for (ByteSpan rest = plane; !rest.empty();) {
        pieces_.push_back(rest.first(std::min(rest.size(), kPieceBytes)));
        rest = rest.subspan(pieces_.back().size());
      }
    }
  }

  SaveRequest request() const {
    SaveRequest request;
    request.family = &family_;
    request.semantic_model = model();
    request.tokens = tokens_;
    request.states = states_;
    request.encrypt = false;
    request.parallelism = kThreads;
    return request;
  }
  PrefixQuery query() const {
    PrefixQuery query;
    query.semantic_model = model();
    query.family = &family_;
    query.tokens = tokens_;
    return query;
  }
  std::span<const ByteSpan> planes() const { return views_; }
  std::span<const ByteSpan> pieces() const { return pieces_; }
  std::uint64_t bytes() const { return bytes_; }

  void hash(std::size_t passes, std::size_t first, std::size_t last) const {
    for (std::size_t i = first; i < last; ++i)
      for (std::size_t pass = 0; pass < passes; ++pass) hash_once(pieces_[i]);
  }

 private:
  static SemanticModelId model() {
    return {Id32::filled(5), Id32::filled(6), Id32::filled(7), Id32::filled(8), Id32::filled(9)};
  }

  IdentifiedFamily family_;
  std::vector<std::uint32_t> tokens_;
  std::vector<SaveState> states_;
  std::vector<Bytes> planes_;
  std::vector<ByteSpan> views_;
  std::vector<ByteSpan> pieces_;
  std::uint64_t bytes_ = 0;
};

const MuseCut& cut() {
  static const MuseCut made;
  return made;
}

// An empty store in a directory of its own.
struct FreshStore {
  testing::TempDirectory directory;
  std::unique_ptr<Store> store;

  FreshStore() {
    const auto tenant = must(derive_tenant_namespace(bench_key(), byte_view("bench")));
    store = must(Store::create({.root = directory.path() + "/store",
                                .keys = std::make_shared<const KeyRing>(
                                    must(KeyRing::create({.stable_root = bench_key(), .tenant = tenant})))}));
  }
};

// What a save has left: names and lengths of its files.
struct SavedObject {
  store::ObjectKind kind;
  Id32 id;
  std::size_t bytes;
};

std::vector<SavedObject> saved_objects(Store& store) {
  const auto found = must(find_deepest(store, cut().query()));
  const auto planned = must(plan(store, found->manifest_id));
  std::vector<SavedObject> objects;
  for (const ChainChunk& chunk : planned.operations().chunks())
    objects.push_back({store::ObjectKind::kChunk, chunk.ref.object_key, chunk.ref.object_bytes});
  const auto pack =
      must(store.context().files.object_facts(store::ObjectKind::kManifest, found->manifest_id));
  objects.push_back(
      {store::ObjectKind::kManifest, found->manifest_id, static_cast<std::size_t>(pack.size_bytes)});
  return objects;
}

// The files of a save, batch for batch, with bytes that nobody has to make first.
void write_only(Store& store, std::span<const SavedObject> objects) {
  constexpr std::size_t kBatchBytes = std::size_t{64} << 20;
  constexpr std::size_t kBatchObjects = 256;
  const ByteSpan source = *std::ranges::max_element(cut().planes(), {}, &ByteSpan::size);
  Bytes large;
  std::vector<store::StagedObject> batch;
  std::size_t batch_bytes = 0;
  const auto link = [&] {
    must(store::link_objects(store.context(), batch));
    batch.clear();
    batch_bytes = 0;
  };
  for (const SavedObject& object : objects) {
    if (object.kind == store::ObjectKind::kManifest && !batch.empty()) link();
    ByteSpan bytes = source.first(std::min(object.bytes, source.size()));
    if (bytes.size() < object.bytes) {
      large.resize(std::max(large.size(), object.bytes), 1);
      bytes = ByteSpan(large).first(object.bytes);
    }
    batch.push_back({.kind = object.kind,
                     .id = object.id,
                     .file = must(store::StagedFile::write(store.context(), bytes))});
    batch_bytes += bytes.size();
    if (batch_bytes >= kBatchBytes || batch.size() >= kBatchObjects) link();
  }
  if (!batch.empty()) link();
}

// Variants that every benchmark here has in front.
enum : std::size_t { kOneThread, kTwoThreads, kHash, kMeasured, kWrite, kRead = kWrite };

std::vector<Variant> hashing() {
  const std::size_t half = std::max<std::size_t>(2, cut().pieces().size() / 2);
  return {{[half] { cut().hash(1, 0, half); }},
          {[half] {
            on_two_threads(half, [](std::size_t first, std::size_t last) { cut().hash(1, first, last); });
          }},
          {[] {
            on_two_threads(cut().pieces().size(),
                           [](std::size_t first, std::size_t last) { cut().hash(2, first, last); });
          }}};
}

void report(benchmark::State& state, const Rounds& rounds) {
  const double gain = rounds.seconds(kOneThread) / rounds.seconds(kTwoThreads);
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(cut().bytes()));
  state.counters["x_hash"] = rounds.seconds(kHash) / rounds.seconds(kMeasured);
  state.counters["sha256_gain"] = gain;
  if (gain < kLeastGain) state.SetLabel("inconclusive: the machine does not give two threads now");
}

void save(benchmark::State& state) {
  std::vector<SavedObject> objects;
  {
    FreshStore first;
    must(kvpack::save(*first.store, cut().request(), cut().planes()));
    objects = saved_objects(*first.store);
  }
  std::optional<FreshStore> fresh;
  const auto make = [&] { fresh.emplace(); };
  const auto drop = [&] { fresh.reset(); };
  std::vector<Variant> variants = hashing();
  variants.push_back(
      {[&] { must(kvpack::save(*fresh->store, cut().request(), cut().planes())); }, make, drop});
  variants.push_back({[&] { write_only(*fresh->store, objects); }, make, drop});
  Rounds rounds(std::move(variants), wall_seconds);
  rounds.run(state, kMeasured);
  report(state, rounds);
  state.counters["x_write"] = rounds.seconds(kWrite) / rounds.seconds(kMeasured);
  state.counters["x_slower"] =
      std::max(rounds.seconds(kHash), rounds.seconds(kWrite)) / rounds.seconds(kMeasured);
  state.counters["write_spread"] = rounds.spread(kWrite);
  if (rounds.spread(kWrite) > kMostSpread)
    state.SetLabel("inconclusive: writing alone moves by more than 1.6");
}

// Lends its own planes and keeps them.
class PlaneSink final : public RestoreSink {
 public:
  Status begin_restore(const AuthenticatedPlan& plan) override {
    planes.resize(plan.states().size());
    for (std::size_t i = 0; i < planes.size(); ++i)
      planes[i].resize(static_cast<std::size_t>(plan.states()[i].complete_physical_bytes));
    return success();
  }
  MutableByteSpan lend(std::size_t state) override { return planes[state]; }
  Status write_verified_chunk(std::size_t, std::uint64_t, ByteSpan) override { std::abort(); }
  Status commit_restore() override { return success(); }
  void abort_restore() noexcept override {}

  std::vector<Bytes> planes;
};

void restore(benchmark::State& state) {
  FreshStore fresh;
  must(kvpack::save(*fresh.store, cut().request(), cut().planes()));
  PlaneSink sink;
  std::vector<Variant> variants = hashing();
  variants.push_back({[&] {
    auto restored = must(restore_deepest(*fresh.store, cut().query(), sink, {.parallelism = kThreads}));
    must(restored.restored.value().hold.release());
  }});
  Rounds rounds(std::move(variants), wall_seconds);
  rounds.run(state, kMeasured);
  report(state, rounds);
  if (!std::ranges::equal(sink.planes, cut().planes(),
                          [](const Bytes& a, ByteSpan b) { return std::ranges::equal(a, b); }))
    state.SkipWithError("restored planes differ");
}

// So that the next one who reads it waits for the disk.
void drop_from_cache(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0 || ::fsync(fd) != 0 || ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) != 0) std::abort();
  ::close(fd);
}

void read_only(const std::string& path, Bytes& room) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) std::abort();
  while (::read(fd, room.data(), room.size()) > 0) continue;
  ::close(fd);
}

void restore_cold(benchmark::State& state) {
  FreshStore fresh;
  must(kvpack::save(*fresh.store, cut().request(), cut().planes()));
  std::vector<std::string> paths;
  for (const SavedObject& object : saved_objects(*fresh.store))
    paths.push_back(fresh.store->context().files.object_path(object.kind, object.id));
  const auto drop = [&] { std::ranges::for_each(paths, drop_from_cache); };
  PlaneSink sink;
  Bytes room(std::size_t{4} << 20);
  std::vector<Variant> variants = hashing();
  variants.push_back({[&] {
                        auto restored = must(
                            restore_deepest(*fresh.store, cut().query(), sink, {.parallelism = kThreads}));
                        must(restored.restored.value().hold.release());
                      },
                      drop});
  variants.push_back({[&] {
                        for (const std::string& path : paths) read_only(path, room);
                      },
                      drop});
  Rounds rounds(std::move(variants), wall_seconds);
  rounds.run(state, kMeasured);
  report(state, rounds);
  state.counters["x_read"] = rounds.seconds(kRead) / rounds.seconds(kMeasured);
  state.counters["read_spread"] = rounds.spread(kRead);
  if (rounds.spread(kRead) > kMostSpread)
    state.SetLabel("inconclusive: reading alone moves by more than 1.6");
}

BENCHMARK(save)->UseManualTime()->Unit(benchmark::kMillisecond)->Iterations(kRounds);
BENCHMARK(restore)->UseManualTime()->Unit(benchmark::kMillisecond)->Iterations(kRounds);
BENCHMARK(restore_cold)->UseManualTime()->Unit(benchmark::kMillisecond)->Iterations(kRounds);

}  // namespace
}  // namespace kvpack::bench

int main(int argc, char** argv) {
  using namespace kvpack::bench;
  store_tokens = std::max<std::uint64_t>(1, take_option(argc, argv, "store_tokens", store_tokens));
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
