// Finding a prompt in the resident tier, and moving rows that do not rotate. `x_xxh3` is the time of a lookup
// over that of one XXH3 pass over the tokens of the prompt, `x_memcpy` the speed of relocation over that of
// memcpy; subject and baseline are timed in turns, and medians compared.
#include <benchmark/benchmark.h>

#include <chrono>
#include <cstring>
#include <numeric>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "kvpack/muse/relocation.h"
#include "kvpack/muse/resident_tier.h"

namespace kvpack::muse {
namespace {

constexpr std::size_t kPromptTokens = kMaxContextTokens;
constexpr std::size_t kSessions = 1'000;

// Planes of zeros, which all sessions share: only tokens tell them apart.
CacheSnapshot snapshot_of(std::vector<std::uint32_t> tokens) {
  static const SharedBytes zeros = SharedBytes::own(Bytes(kPromptTokens * 2));
  CacheSnapshot snapshot;
  snapshot.position = tokens.size();
  snapshot.elements_per_token = 1;
  for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
    const auto [start, count] = logical_range(layer, tokens.size());
    const SharedBytes plane = zeros.subspan(0, static_cast<std::size_t>(count) * 2);
    snapshot.layers.push_back({layer, start, count, ElementEncoding::kF16Le, plane, plane});
  }
  snapshot.tokens = std::move(tokens);
  return snapshot;
}

std::vector<std::uint32_t> prompt() {
  std::vector<std::uint32_t> tokens(kPromptTokens);
  for (std::size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<std::uint32_t>(i * 2'654'435'761U % 202'048);
  return tokens;
}

// The prompt, and sessions that part from it at `places` places and go on for a block of their own.
ResidentTier filled_tier(std::size_t places) {
  ResidentTier tier = *ResidentTier::create();
  const auto main = prompt();
  const std::vector<float> logits(16, 1.0F);
  (void)tier.insert(std::nullopt, snapshot_of(main), std::span<const float>(logits));
  for (std::size_t i = 0; i + 1 < kSessions; ++i) {
    const std::size_t parting = i % places * (kPromptTokens / places);
    std::vector<std::uint32_t> tokens(main.begin(), main.begin() + static_cast<std::ptrdiff_t>(parting));
    tokens.resize(parting + kBlockTokens, static_cast<std::uint32_t>(300'000 + i));
    (void)tier.insert(std::nullopt, snapshot_of(std::move(tokens)));
  }
  return tier;
}

template <class Work>
double seconds_of(const Work& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

struct Medians {
  double subject;
  double baseline;
};

// Rounds in turns, so that whatever else the machine does meets both.
template <class Subject, class Baseline>
Medians medians_of(int rounds, const Subject& subject, const Baseline& baseline) {
  std::vector<double> ours, theirs;
  for (int round = 0; round < rounds; ++round) {
    ours.push_back(seconds_of(subject));
    theirs.push_back(seconds_of(baseline));
  }
  const auto median = [](std::vector<double>& times) {
    const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
    std::nth_element(times.begin(), middle, times.end());
    return *middle;
  };
  return {median(ours), median(theirs)};
}

void lookup(benchmark::State& state) {
  ResidentTier tier = filled_tier(static_cast<std::size_t>(state.range(0)));
  const auto request = prompt();
  const auto find = [&] {
    const auto hit = tier.lookup(std::nullopt, request);
    if (!hit || !hit->exact()) state.SkipWithError("missed");
    benchmark::DoNotOptimize(hit);
  };
  const auto hash = [&] {
    benchmark::DoNotOptimize(XXH3_64bits(request.data(), request.size() * sizeof(request[0])));
  };
  const Medians medians = medians_of(301, find, hash);
  for (auto _ : state) find();
  state.counters["x_xxh3"] = medians.subject / medians.baseline;
  state.counters["xxh3_us"] = medians.baseline * 1e6;
  state.counters["nodes"] = static_cast<double>(tier.stats().nodes);
}
BENCHMARK(lookup)->ArgName("places")->Arg(1)->Arg(16)->Arg(512)->Unit(benchmark::kMicrosecond);

void relocate_nope(benchmark::State& state) {
  const Bytes plane(static_cast<std::size_t>(state.range(0)) * kRowBytes, 3);
  Bytes target(plane.size());
  const auto relocate = [&] {
    if (!relocate_plane_into(kMuseNoPe, "attn.k", plane, target, 512).has_value())
      state.SkipWithError("refused");
    benchmark::ClobberMemory();
  };
  const auto copy = [&] {
    std::memcpy(target.data(), plane.data(), plane.size());
    benchmark::ClobberMemory();
  };
  const Medians medians = medians_of(31, relocate, copy);
  for (auto _ : state) relocate();
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(plane.size()));
  state.counters["x_memcpy"] = medians.baseline / medians.subject;
}
BENCHMARK(relocate_nope)->ArgName("tokens")->Arg(2'048)->Arg(131'072)->Unit(benchmark::kMillisecond);

void rotate_sliding(benchmark::State& state) {
  Bytes plane(kWindowTokens * kRowBytes, 0x3c);
  for (auto _ : state) {
    if (!relocate_plane(kMuseSliding, "attn.k", plane, 1).has_value()) state.SkipWithError("refused");
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(plane.size()));
}
BENCHMARK(rotate_sliding)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace kvpack::muse
