// Saving and restoring whole cuts: how much memory it takes beyond objects, planes and shadow, counted at the
// allocator, and how fast it is. The counters:
//   chunks_per_thread  peak of what was allocated beyond that, in chunks of 4 MiB with their frame and
//   header, per
//                      thread; at most 3, or the benchmark fails
#include <benchmark/benchmark.h>

#include <map>
#include <mutex>
#include <numeric>

#include "kvpack/core/cut_builder.h"
#include "kvpack/core/cut_restore.h"
#include "kvpack/core/family_builder.h"
#include "kvpack/crypto/sha256_machine.h"
#include "support/counted_memory.h"

namespace kvpack {
namespace {

constexpr std::uint64_t kTokens = 4'096;
constexpr std::uint64_t kHeads = 8;
constexpr std::uint64_t kHeadDim = 128;
constexpr std::uint64_t kPlaneBytes = kTokens * kHeads * kHeadDim * 2;  // 8 MiB
constexpr std::uint32_t kLayers = 4;
constexpr double kMaxChunksPerThread = 3;

/// Objects by name, in memory whose size is not counted as the library's.
class Objects final : public ChunkSink, public ObjectSource {
 public:
  Status put(const StateKey& state, const ChunkSpan& span, const ChunkRef& ref, ByteSpan object) override {
    return put_pieces(state, span, ref, std::span(&object, 1));
  }
  bool takes_pieces() const noexcept override { return true; }
  Status put_pieces(const StateKey&, const ChunkSpan&, const ChunkRef& ref,
                    std::span<const ByteSpan> pieces) override {
    const std::size_t size = sum_of_sizes(pieces);
    std::unique_ptr<std::uint8_t, void (*)(void*)> kept(static_cast<std::uint8_t*>(std::malloc(size)),
                                                        &std::free);
    if (kept == nullptr) return fail(ErrorCode::kNoMemory, "out of memory");
    join_pieces(pieces, {kept.get(), size});
    chunks_.insert_or_assign(ref.object_key, std::pair(std::move(kept), size));
    return success();
  }
  Status read_chunk_pieces(const ChunkRef& ref, std::span<const MutableByteSpan> pieces, Bytes&) override {
    const auto found = chunks_.find(ref.object_key);
    if (found == chunks_.end()) return fail(ErrorCode::kNotFound, "absent");
    split_into_pieces(ByteSpan(found->second.first.get(), found->second.second), pieces);
    return success();
  }
  Result<Bytes> read_pack(const Id32&) override { return fail(ErrorCode::kNotFound, "absent"); }
  Status read_chunk(const ChunkRef& ref, MutableByteSpan object) override {
    const auto found = chunks_.find(ref.object_key);
    if (found == chunks_.end()) return fail(ErrorCode::kNotFound, "absent");
    std::ranges::copy(ByteSpan(found->second.first.get(), found->second.second), object.begin());
    return success();
  }
  void clear() { chunks_.clear(); }

 private:
  std::map<Id32, std::pair<std::unique_ptr<std::uint8_t, void (*)(void*)>, std::size_t>> chunks_;
};

struct Form {
  Codec codec = Codec::kRaw;
  bool encrypt = false;
  bool strided = false;  ///< Heads outermost in memory, so that chunks are gathered and scattered.
};

/// A cut of 64 MiB: 8 planes of 8 MiB.
class Cut {
 public:
  explicit Cut(const Form& form, unsigned parallelism)
      : keys_(*KeySchedule::derive(root(), root(), Id32::filled(1), 1)),
        ring_(*KeyRing::create({.stable_root = root(), .tenant = Id32::filled(1)})),
        family_(*build_family({Id32::filled(2), Id32::filled(3), Id32::filled(4)}, states(form))),
        tokens_(kTokens),
        planes_(family_.family().states.size()) {
    std::iota(tokens_.begin(), tokens_.end(), 1U);
    std::uint32_t seed = 1;
    for (Bytes& plane : planes_) {
      plane.resize(kPlaneBytes);
      for (std::uint8_t& b : plane)
        b = static_cast<std::uint8_t>((seed = seed * 1'664'525U + 1'013'904'223U) >> 24);
      views_.push_back({.bytes = plane, .token_count = kTokens});
    }
    input_ = {.keys = &keys_,
              .family = &family_,
              .semantic_model = {Id32::filled(5), Id32::filled(6), Id32::filled(7), Id32::filled(8),
                                 Id32::filled(9)},
              .tokens = tokens_,
              .planes = views_,
              .encrypt_chunks = form.encrypt,
              .encrypt_manifest = form.encrypt,
              .parallelism = parallelism,
              .sha256 = &machine_sha256_kernels()};
  }

  SavedCut save() {
    SystemRandom random;
    auto saved = save_cut(input_, objects_, random);
    if (!saved.has_value()) std::abort();
    return *std::move(saved);
  }
  Objects& objects() noexcept { return objects_; }
  const KeyRing& ring() const noexcept { return ring_; }
  std::int64_t bytes() const noexcept { return static_cast<std::int64_t>(planes_.size() * kPlaneBytes); }
  const std::vector<Bytes>& planes() const noexcept { return planes_; }

 private:
  static SecretKey root() {
    std::array<std::uint8_t, 32> bytes{};
    bytes.fill(9);
    return SecretKey(bytes);
  }
  static std::vector<StateSpec> states(const Form& form) {
    std::vector<StateSpec> states;
    for (std::uint32_t layer = 0; layer < kLayers; ++layer)
      for (const char* name : {"attention.k", "attention.v"})
        states.push_back({.layer = layer,
                          .name = name,
                          .dtype = DType::kF16,
                          .dimensions = form.strided
                                            ? std::vector<std::uint64_t>{kHeads, kTokenAxis, kHeadDim}
                                            : std::vector<std::uint64_t>{kTokenAxis, kHeads, kHeadDim},
                          .codec = form.codec});
    return states;
  }

  KeySchedule keys_;
  KeyRing ring_;
  IdentifiedFamily family_;
  std::vector<std::uint32_t> tokens_;
  std::vector<Bytes> planes_;
  std::vector<PlaneView> views_;
  CutInput input_;
  Objects objects_;
};

/// Tells the peak beyond what was there before, in chunks per thread.
void report(benchmark::State& state, std::size_t peak, unsigned threads, std::int64_t bytes) {
  const double chunks = static_cast<double>(peak) / kMaxChunkObjectBytes / threads;
  state.counters["chunks_per_thread"] = chunks;
  state.SetBytesProcessed(state.iterations() * bytes);
  if (chunks > kMaxChunksPerThread) state.SkipWithError("more memory than three chunks per thread");
}

void save(benchmark::State& state, const Form& form, unsigned threads) {
  Cut cut(form, threads);
  std::size_t peak = 0;
  for (auto _ : state) {
    cut.objects().clear();
    peak = std::max(peak, testing::peak_of([&] { benchmark::DoNotOptimize(cut.save()); }));
  }
  report(state, peak, threads, cut.bytes());
}

void restore(benchmark::State& state, const Form& form, unsigned threads) {
  Cut cut(form, threads);
  const SavedCut saved = cut.save();
  std::vector<Bytes> shadow(cut.planes().size(), Bytes(kPlaneBytes));
  const std::vector<MutableByteSpan> lent(shadow.begin(), shadow.end());
  std::size_t peak = 0;
  for (auto _ : state) {
    const auto restore_lent = [&] {
      const auto chain = open_chain(saved.pack.bytes, cut.objects(), &cut.ring());
      const auto plan = RestorePlan::create(*chain);
      if (!restore_cut_into(
               *plan, cut.objects(),
               {.keys = &cut.ring(), .parallelism = threads, .sha256 = &machine_sha256_kernels()}, lent)
               .has_value())
        std::abort();
    };
    peak = std::max(peak, testing::peak_of(restore_lent));
  }
  if (shadow != cut.planes()) state.SkipWithError("restored planes differ");
  report(state, peak, threads, cut.bytes());
}

constexpr Form kPlain{};
constexpr Form kStrided{.strided = true};
constexpr Form kSealed{.encrypt = true};
constexpr Form kSealedStridedLossless{.codec = Codec::kLossless, .encrypt = true, .strided = true};

#define KVPACK_CUT_BENCH(function, ...) \
  BENCHMARK_CAPTURE(function, __VA_ARGS__)->UseRealTime()->Unit(benchmark::kMillisecond)
KVPACK_CUT_BENCH(save, plain, kPlain, 1);
KVPACK_CUT_BENCH(save, plain_2_threads, kPlain, 2);
KVPACK_CUT_BENCH(save, strided, kStrided, 1);
KVPACK_CUT_BENCH(save, encrypted, kSealed, 1);
KVPACK_CUT_BENCH(save, encrypted_strided_lossless_2_threads, kSealedStridedLossless, 2);
KVPACK_CUT_BENCH(restore, plain, kPlain, 1);
KVPACK_CUT_BENCH(restore, plain_2_threads, kPlain, 2);
KVPACK_CUT_BENCH(restore, strided, kStrided, 1);
KVPACK_CUT_BENCH(restore, encrypted, kSealed, 1);
KVPACK_CUT_BENCH(restore, encrypted_strided_lossless_2_threads, kSealedStridedLossless, 2);

}  // namespace
}  // namespace kvpack
