// SHA-256 kernels against OpenSSL, on one thread, in processor time; rounds take turns in one process, and
// figures are ratios of medians. Every set of kernels that the machine can run is measured; the label says
// which one machine_sha256_kernels() takes. Measure with --benchmark_min_time=2.
//   x_evp    bytes hashed per second over those of one OpenSSL SHA-256 stream. lanes: so many messages of 256
//   KiB;
//            same: two hashes over the same bytes, at the same place of their blocks; shifted: at other
//            places
//   x_naive  speed over the same work with OpenSSL's kernels. open: one raw chunk of 1 MiB, all checks; save:
//   a cut of
//            64 MiB in 64 raw chunks, objects dropped
#include <benchmark/benchmark.h>

#include <numeric>

#include "kvpack/core/cut_builder.h"
#include "kvpack/core/family_builder.h"
#include "kvpack/crypto/sha256_machine.h"
#include "side_by_side.h"

namespace kvpack::bench {
namespace {

constexpr std::size_t kMessageBytes = std::size_t{256} << 10;
constexpr std::size_t kRoom = kMaxSha256Lanes * kMessageBytes;

Bytes noise(std::size_t size) {
  Bytes out(size);
  std::uint32_t x = 1;
  for (std::uint8_t& b : out) b = static_cast<std::uint8_t>((x = x * 1'664'525U + 1'013'904'223U) >> 24);
  return out;
}
const Bytes& payload() {
  static const Bytes bytes = noise(kRoom);
  return bytes;
}

void say_which(benchmark::State& state, const Rounds& rounds) {
  std::string label = "this machine takes " + std::string(machine_sha256_kernels().name);
  if (rounds.spread(0) > kMostSpread) label += "; inconclusive: the baseline moves by more than 1.6";
  state.SetLabel(label);
}

/// `work` hashes `hashed` bytes.
void against_evp(benchmark::State& state, std::size_t hashed, std::function<void()> work) {
  Rounds rounds({{[] { hash_once(ByteSpan(payload()).first(kMessageBytes)); }}, {std::move(work)}},
                processor_seconds);
  rounds.run(state, 1);
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(hashed));
  const double evp = static_cast<double>(kMessageBytes) / rounds.seconds(0);
  state.counters["x_evp"] = static_cast<double>(hashed) / rounds.seconds(1) / evp;
  say_which(state, rounds);
}

void lanes(benchmark::State& state, const Sha256Kernels& kernels, std::size_t count) {
  std::vector<Sha256Lane> hashes(count, Sha256Lane(kernels));
  std::vector<ByteSpan> messages;
  for (std::size_t i = 0; i < count; ++i)
    messages.push_back(ByteSpan(payload()).subspan(i * kMessageBytes, kMessageBytes));
  against_evp(state, count * kMessageBytes, [&] {
    advance_lanes(hashes, messages);
    for (Sha256Lane& hash : hashes) benchmark::DoNotOptimize(hash.finish());
  });
}

/// Two hashes over the same bytes, one `behind` bytes behind the other in its block.
void twice(benchmark::State& state, const Sha256Kernels& kernels, std::size_t behind) {
  Sha256Lane a(kernels);
  Sha256Lane b(kernels);
  const ByteSpan bytes = ByteSpan(payload()).first(4 * kMessageBytes);
  against_evp(state, 2 * bytes.size(), [&] {
    a.update(bytes.first(16));
    b.update(bytes.first(16 + behind));
    advance_same(a, b, bytes);
    benchmark::DoNotOptimize(a.finish());
    benchmark::DoNotOptimize(b.finish());
  });
}

class DroppingSink final : public ChunkSink {
 public:
  Status put(const StateKey&, const ChunkSpan& span, const ChunkRef& ref, ByteSpan object) override {
    if (first.empty()) {
      first.assign(object.begin(), object.end());
      first_ref = ref;
      first_span = span;
    }
    return success();
  }
  bool takes_pieces() const noexcept override { return true; }
  Status put_pieces(const StateKey& state, const ChunkSpan& span, const ChunkRef& ref,
                    std::span<const ByteSpan> pieces) override {
    if (!first.empty()) return success();
    Bytes object(sum_of_sizes(pieces));
    join_pieces(pieces, object);
    return put(state, span, ref, object);
  }
  Bytes first;
  ChunkRef first_ref;
  ChunkSpan first_span;
};

/// A cut of 64 raw chunks of 1 MiB.
struct Cut {
  static constexpr std::uint64_t kTokens = 4'096;
  static constexpr std::size_t kPlaneBytes = kTokens * 1'024 * 2;

  Cut() : planes(kLayers, noise(kPlaneBytes)), tokens(kTokens) {
    std::vector<StateSpec> states;
    for (std::uint32_t layer = 0; layer < kLayers; ++layer)
      states.push_back(
          {.layer = layer, .name = "k", .dtype = DType::kF16, .dimensions = {kTokenAxis, 8, 128}});
    family = must(build_family({Id32::filled(2), Id32::filled(3), Id32::filled(4)}, states));
    std::iota(tokens.begin(), tokens.end(), 1U);
    for (const Bytes& plane : planes) views.push_back({.bytes = plane, .token_count = kTokens});
  }
  void save(const Sha256Kernels& kernels, ChunkSink& sink) {
    SystemRandom random;
    const CutInput input{.keys = &keys,
                         .family = &*family,
                         .semantic_model = {Id32::filled(5), Id32::filled(6), Id32::filled(7),
                                            Id32::filled(8), Id32::filled(9)},
                         .tokens = tokens,
                         .planes = views,
                         .spans = {.grain_tokens = 512},
                         .sha256 = &kernels};
    benchmark::DoNotOptimize(must(save_cut(input, sink, random)));
  }

  static constexpr std::uint32_t kLayers = 8;
  SecretKey root{Id32::filled(9).bytes};
  KeySchedule keys = must(KeySchedule::derive(root, root, Id32::filled(1), 1));
  std::optional<IdentifiedFamily> family;
  std::vector<Bytes> planes;
  std::vector<std::uint32_t> tokens;
  std::vector<PlaneView> views;
};

void against_openssl(benchmark::State& state, std::size_t bytes,
                     const std::function<void(const Sha256Kernels&)>& work, const Sha256Kernels& kernels) {
  Rounds rounds({{[&] { work(kOpensslSha256); }}, {[&] { work(kernels); }}}, processor_seconds);
  rounds.run(state, 1);
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(bytes));
  state.counters["x_naive"] = rounds.seconds(0) / rounds.seconds(1);
  say_which(state, rounds);
}

void save(benchmark::State& state, const Sha256Kernels& kernels) {
  Cut cut;
  DroppingSink sink;
  against_openssl(
      state, Cut::kLayers * Cut::kPlaneBytes, [&](const Sha256Kernels& with) { cut.save(with, sink); },
      kernels);
}

void open(benchmark::State& state, const Sha256Kernels& kernels) {
  Cut cut;
  DroppingSink sink;
  cut.save(kOpensslSha256, sink);
  const StateKey key{0, "k"};
  const auto work = [&](const Sha256Kernels& with) {
    ChunkScratch scratch(with);
    for (int i = 0; i < 4; ++i)
      benchmark::DoNotOptimize(
          must(open_chunk(sink.first, sink.first_ref, sink.first_span, key, *cut.family, cut.keys, scratch)));
  };
  against_openssl(state, 4 * sink.first_span.plaintext_bytes, work, kernels);
}

const bool registered = [] {
  for (const Sha256Kernels* kernels : available_sha256_kernels()) {
    const auto add = [&](const std::string& what, const std::function<void(benchmark::State&)>& run) {
      benchmark::RegisterBenchmark((what + "/" + std::string(kernels->name)).c_str(), run)
          ->UseManualTime()
          ->Unit(benchmark::kMillisecond);
    };
    for (const std::size_t count : {1UL, 2UL, 3UL, 4UL, 8UL, 16UL})
      add("lanes_" + std::to_string(count), [=](benchmark::State& state) { lanes(state, *kernels, count); });
    add("same", [=](benchmark::State& state) { twice(state, *kernels, 0); });
    add("shifted", [=](benchmark::State& state) { twice(state, *kernels, 42); });
    add("open", [=](benchmark::State& state) { open(state, *kernels); });
    add("save", [=](benchmark::State& state) { save(state, *kernels); });
  }
  return true;
}();

}  // namespace
}  // namespace kvpack::bench
