// Handoff on one thread. Every ratio is taken against a baseline that is timed in turn with the measured
// work:
//   x_naive   speed over a loop that runs SHA-256 twice over the same bytes (push form: and copies them once)
//   x_t       time over t, one SHA-256 pass plus one nlohmann DOM parse of the same header
// The segments are those of a tile of 512 tokens in 26 planes: 6.5 MiB.
#include <benchmark/benchmark.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <random>

#include "kvpack/handoff/receive_loop.h"
#include "kvpack/handoff/sender.h"

namespace kvpack::handoff {
namespace {

using Seconds = std::chrono::duration<double>;
using Clock = std::chrono::steady_clock;

template <class Work>
Seconds timed(const Work& work) {
  const auto start = Clock::now();
  work();
  return Clock::now() - start;
}

MacKey bench_key() {
  return *MacKey::from_hex(std::string(64, '5'));
}

BeginManifest bench_begin() {
  BeginManifest begin;
  begin.components = {{"target", ComponentKind::kTargetKv, true, std::string(64, 'f')}};
  begin.created_unix_ms = 1'000;
  begin.deferred_segments = true;
  begin.expires_unix_ms = 901'000;
  begin.generation = 1;
  begin.hmac = {.epoch = 1, .key_id = "bench"};
  const std::string digest(64, 'a');
  begin.identity = {.adapter_sha256 = digest,
                    .chat_template_sha256 = digest,
                    .context_policy_sha256 = digest,
                    .model_revision = "revision",
                    .model_sha256 = digest,
                    .tokenizer_revision = "revision",
                    .tokenizer_sha256 = digest};
  begin.prompt_token_ids = {1};
  begin.transfer_id = "bench";
  return begin;
}

SegmentShape tile_shape(std::uint64_t tile) {
  return {.component_id = "target",
          .role = SegmentRole::kNopeTile,
          .layer = std::nullopt,
          .logical_start = tile * 512,
          .logical_count = 512,
          .element_type = "f16_le",
          .elements_per_token = 6656};
}
constexpr std::size_t kTileBytes = 512 * 6656 * 2;
constexpr std::size_t kTiles = 4;

// Lends the places of one shadow; commits nothing.
class ShadowSink final : public Sink {
 public:
  ShadowSink() : shadow(kTiles * kTileBytes) {}
  Status begin(const ValidatedBegin&) override { return success(); }
  Status lend(const SegmentDescriptor& descriptor, std::size_t,
              std::vector<MutableByteSpan>& place) override {
    // 26 planes, as the tile of a real layout has.
    constexpr std::size_t kPlaneBytes = kTileBytes / 26;
    for (std::size_t plane = 0; plane < 26; ++plane)
      place.push_back(MutableByteSpan(shadow).subspan(descriptor.sequence * kTileBytes + plane * kPlaneBytes,
                                                      kPlaneBytes));
    return success();
  }
  Status segment_ready(VerifiedSegment&) override { return success(); }
  Status prepare_commit(const VerifiedSeal&) override { return success(); }
  Result<CommittedGeneration> commit() override { return CommittedGeneration{}; }
  void abort() noexcept override {}

  Bytes shadow;
};

struct Stream {
  Stream() : key(bench_key()), payload(kTiles * kTileBytes) {
    std::mt19937_64 random(1);
    for (std::size_t i = 0; i < payload.size(); i += 8) store_le<std::uint64_t>(payload, i, random());
    Sender sender = *Sender::open(bench_begin(), 0, key);
    heads.push_back(sender.begin_frame());
    for (std::size_t i = 0; i < kTiles; ++i) heads.push_back(*sender.add_segment(tile_shape(i), tile(i)));
    heads.push_back(*sender.finish());
  }
  ByteSpan tile(std::size_t i) const { return ByteSpan(payload).subspan(i * kTileBytes, kTileBytes); }
  ReceivePolicy policy() const {
    ReceivePolicy out;
    out.keys = {{"bench", 1, &key}};
    out.times.reset();
    return out;
  }

  MacKey key;
  Bytes payload;
  std::vector<Bytes> heads;  // begin, one per tile, seal
};

const Stream& stream() {
  static const Stream value;
  return value;
}

// Two passes over each tile; a third buffer takes the copy where the push form makes one.
void naive(MutableByteSpan copy) {
  Sha256 all;
  for (std::size_t i = 0; i < kTiles; ++i) {
    ByteSpan bytes = stream().tile(i);
    if (!copy.empty()) {
      copy_bytes(bytes, copy);
      bytes = copy.first(kTileBytes);
    }
    benchmark::DoNotOptimize(sha256(bytes));
    all.update(bytes);
  }
  benchmark::DoNotOptimize(all.finish());
}

template <class Receive>
void receive(benchmark::State& state, bool copies, const Receive& payload_in) {
  ShadowSink sink;
  sink.shadow = stream().payload;
  Bytes copy(copies ? kTileBytes : 0);
  Seconds ours{};
  Seconds baseline{};
  for (auto _ : state) {
    baseline += timed([&] { naive(copy); });
    const Seconds one = timed([&] {
      ReceiveLoop loop(stream().policy());
      const auto head_in = [&](std::size_t i) {
        ByteSpan head = stream().heads[i];
        auto step = loop.push(head);
        if (step.has_value() && *step == ReceiveStep::kBegin)
          static_cast<void>(loop.accept_begin(1'000, sink, nullptr, nullptr));
      };
      head_in(0);
      for (std::size_t i = 0; i < kTiles; ++i) {
        head_in(i + 1);
        payload_in(loop, i);
      }
      head_in(kTiles + 1);
      if (loop.ack_frame().empty()) state.SkipWithError("transfer was refused");
    });
    ours += one;
    state.SetIterationTime(one.count());
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations() * kTiles * kTileBytes));
  state.counters["x_naive"] = baseline / ours;
}

void ReceiverPull(benchmark::State& state) {
  receive(state, false, [](ReceiveLoop& loop, std::size_t) {
    // The transport has already put the bytes where they belong.
    for (std::size_t left = kTileBytes; left > 0;) {
      const std::size_t n = std::min(left, loop.want().size());
      if (!loop.advance(n).has_value()) return;
      left -= n;
    }
  });
}
BENCHMARK(ReceiverPull)->UseManualTime()->Unit(benchmark::kMillisecond);

void ReceiverPush(benchmark::State& state) {
  receive(state, true, [](ReceiveLoop& loop, std::size_t i) {
    ByteSpan bytes = stream().tile(i);
    static_cast<void>(loop.push(bytes));
  });
}
BENCHMARK(ReceiverPush)->UseManualTime()->Unit(benchmark::kMillisecond);

void SenderDeferred(benchmark::State& state) {
  Seconds ours{};
  Seconds baseline{};
  for (auto _ : state) {
    baseline += timed([&] { naive({}); });
    const Seconds one = timed([&] {
      Sender sender = *Sender::open(bench_begin(), 0, stream().key);
      for (std::size_t i = 0; i < kTiles; ++i)
        benchmark::DoNotOptimize(sender.add_segment(tile_shape(i), stream().tile(i)));
      benchmark::DoNotOptimize(sender.finish());
    });
    ours += one;
    state.SetIterationTime(one.count());
  }
  state.counters["x_naive"] = baseline / ours;
}
BENCHMARK(SenderDeferred)->UseManualTime()->Unit(benchmark::kMillisecond);

// 131,072 tokens and 5,000 declared segments: about 2 MB of header.
struct LargeBegin {
  LargeBegin() : manifest(bench_begin()) {
    std::mt19937 random(2);
    manifest.deferred_segments = false;
    manifest.prompt_token_ids.resize(131'072);
    for (std::uint32_t& token : manifest.prompt_token_ids)
      token = static_cast<std::uint32_t>(random() % 200'000);
    for (std::uint32_t i = 0; i < 5'000; ++i) {
      SegmentDescriptor segment{.sequence = i, .shape = tile_shape(i), .byte_len = kTileBytes, .sha256 = {}};
      segment.sha256 = to_hex(sha256(le_bytes(i)));
      manifest.segments.push_back(std::move(segment));
    }
    const Bytes frame = *encode_begin_frame(manifest, 0);
    header.assign(frame.begin() + kPreambleBytes, frame.end());
  }
  BeginManifest manifest;
  Bytes header;
};

const LargeBegin& large_begin() {
  static const LargeBegin value;
  return value;
}

template <class Work>
void against_t(benchmark::State& state, const Work& work) {
  const Bytes& header = large_begin().header;
  Seconds ours{};
  Seconds t{};
  for (auto _ : state) {
    t += timed([&] {
      benchmark::DoNotOptimize(sha256(header));
      benchmark::DoNotOptimize(nlohmann::json::parse(header));
    });
    const Seconds one = timed(work);
    ours += one;
    state.SetIterationTime(one.count());
  }
  state.counters["x_t"] = ours / t;
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(header.size()));
}

void BeginEncode(benchmark::State& state) {
  against_t(state, [] { benchmark::DoNotOptimize(canonical_begin(large_begin().manifest)); });
}
BENCHMARK(BeginEncode)->UseManualTime()->Unit(benchmark::kMillisecond);

void BeginDecode(benchmark::State& state) {
  against_t(state, [&] {
    auto frame = decode_header(large_begin().header, 0, {});
    const AcceptedKeyId key{.key_id = "bench", .minimum_epoch = 1};
    auto begin = ValidatedBegin::validate(std::get<BeginFrame>(*std::move(frame)).manifest,
                                          {.now_unix_ms = 1'000,
                                           .keys = std::span(&key, 1),
                                           .max_segments = kDefaultMaxSegments,
                                           .max_total_bytes = std::nullopt});
    if (!begin.has_value()) state.SkipWithError("begin was refused");
    benchmark::DoNotOptimize(begin);
  });
}
BENCHMARK(BeginDecode)->UseManualTime()->Unit(benchmark::kMillisecond);

constexpr std::uint64_t kDescriptors = 1'000'000;

// Each descriptor through all the rules; `ns_each` is the average.
void check_ranges(benchmark::State& state, const std::vector<std::uint64_t>& starts) {
  const std::vector<Component> components = bench_begin().components;
  SegmentDescriptor segment{
      .sequence = 0, .shape = tile_shape(0), .byte_len = 6656 * 2, .sha256 = std::string(64, 'a')};
  segment.shape.logical_count = 1;
  for (auto _ : state) {
    SegmentRules rules(components);
    const Seconds one = timed([&] {
      for (const std::uint64_t start : starts) {
        segment.shape.logical_start = start;
        if (!rules.admit(segment).has_value()) state.SkipWithError("range was refused");
      }
    });
    state.SetIterationTime(one.count());
    state.counters["ns_each"] = one.count() * 1e9 / static_cast<double>(starts.size());
    state.counters["ranges"] = static_cast<double>(rules.range_count());
  }
}

std::vector<std::uint64_t> starts_of(std::uint64_t stride) {
  std::vector<std::uint64_t> out(kDescriptors);
  for (std::uint64_t i = 0; i < kDescriptors; ++i) out[i] = i * stride;
  return out;
}

void RangesInOrder(benchmark::State& state) {
  check_ranges(state, starts_of(1));
}
BENCHMARK(RangesInOrder)->UseManualTime()->Unit(benchmark::kMillisecond)->Iterations(3);

void RangesNeverMerging(benchmark::State& state) {
  check_ranges(state, starts_of(2));
}
BENCHMARK(RangesNeverMerging)->UseManualTime()->Unit(benchmark::kMillisecond)->Iterations(3);

void RangesNeverMergingShuffled(benchmark::State& state) {
  std::vector<std::uint64_t> starts = starts_of(2);
  std::shuffle(starts.begin(), starts.end(), std::mt19937_64(3));
  check_ranges(state, starts);
}
BENCHMARK(RangesNeverMergingShuffled)->UseManualTime()->Unit(benchmark::kMillisecond)->Iterations(3);

}  // namespace
}  // namespace kvpack::handoff
