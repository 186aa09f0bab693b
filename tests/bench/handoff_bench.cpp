// Handoff on one thread. An iteration is one round, in which the measured work and its baseline take their
// turn; figures are made of the medians of the rounds. Processor time: another program on the machine does
// not change a ratio much. Measure with --benchmark_min_time=2.
//   x_naive   speed over a loop that runs OpenSSL's SHA-256 twice over the same bytes, in the push form
//   behind one
//             memcpy of each segment; to reach: 0.95 for both forms of the receiver
//   x_t       time over t, one SHA-256 pass plus one nlohmann DOM parse of the same header; to reach: below
//             0.5 for BeginEncode, below 2 for BeginDecode, which judges the begin too
//   x_nlohmann  speed over parsing the same header with nlohmann and dumping it again; to reach: 45 for
//             HeaderEncode, 25 for HeaderDecode
//   ns_each   of 1,000,000 descriptors through all rules on segments, the average; to reach: below 2000
// The segments are those of a tile of 512 tokens in 26 planes: 6.5 MiB.
#include <benchmark/benchmark.h>
#include <openssl/evp.h>

#include <cstring>
#include <ctime>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>

#include "kvpack/handoff/receive_loop.h"
#include "kvpack/handoff/sender.h"

namespace kvpack::handoff {
namespace {

double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double timed(const std::function<void()>& work) {
  const double start = processor_seconds();
  work();
  return processor_seconds() - start;
}

double median(std::vector<double> seconds) {
  std::ranges::sort(seconds);
  return seconds[seconds.size() / 2];
}

// The seconds of a baseline and of the work that is held against it, round by round.
class Rounds {
 public:
  Rounds(std::function<void()> baseline, std::function<void()> work)
      : baseline_(std::move(baseline)), work_(std::move(work)) {
    baseline_();  // Both warm up.
    work_();
  }

  void run_all(benchmark::State& state) {
    for (auto _ : state) {
      baseline_seconds_.push_back(timed(baseline_));
      work_seconds_.push_back(timed(work_));
      state.SetIterationTime(work_seconds_.back());
    }
    if (work_seconds_.empty()) return;
    const auto [fastest, slowest] = std::ranges::minmax(baseline_seconds_);
    if (work_seconds_.size() < 5) {
      state.SetLabel("inconclusive: fewer than five rounds");
    } else if (slowest > 1.6 * fastest) {
      state.SetLabel("inconclusive: the baseline moves by more than 1.6");
    }
  }
  // Time of the work over that of the baseline.
  double ratio() const { return median(work_seconds_) / median(baseline_seconds_); }

 private:
  std::function<void()> baseline_;
  std::function<void()> work_;
  std::vector<double> baseline_seconds_;
  std::vector<double> work_seconds_;
};

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

void must(int openssl_result) {
  if (openssl_result != 1) std::abort();
}

// Two passes of OpenSSL over each tile; where `copy` has room, over a copy that is made first.
void naive(MutableByteSpan copy) {
  std::array<std::uint8_t, 32> digest{};
  EVP_MD_CTX* all = EVP_MD_CTX_new();
  must(EVP_DigestInit_ex(all, EVP_sha256(), nullptr));
  for (std::size_t i = 0; i < kTiles; ++i) {
    ByteSpan bytes = stream().tile(i);
    if (!copy.empty()) {
      std::memcpy(copy.data(), bytes.data(), bytes.size());
      bytes = copy.first(bytes.size());
    }
    must(EVP_Digest(bytes.data(), bytes.size(), digest.data(), nullptr, EVP_sha256(), nullptr));
    benchmark::DoNotOptimize(digest);
    must(EVP_DigestUpdate(all, bytes.data(), bytes.size()));
  }
  must(EVP_DigestFinal_ex(all, digest.data(), nullptr));
  benchmark::DoNotOptimize(digest);
  EVP_MD_CTX_free(all);
}

void against_naive(benchmark::State& state, std::size_t copy_bytes, const std::function<void()>& work) {
  Bytes copy(copy_bytes);
  Rounds rounds([&] { naive(copy); }, work);
  rounds.run_all(state);
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(kTiles * kTileBytes));
  state.counters["x_naive"] = 1 / rounds.ratio();
}

template <class Receive>
void receive(ShadowSink& sink, const Receive& payload_in) {
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
  if (loop.ack_frame().empty()) std::abort();
}

void ReceiverPull(benchmark::State& state) {
  ShadowSink sink;
  sink.shadow = stream().payload;  // The transport has already put the bytes where they belong.
  against_naive(state, 0, [&] {
    receive(sink, [](ReceiveLoop& loop, std::size_t) {
      for (std::size_t left = kTileBytes; left > 0;) {
        const std::size_t n = std::min(left, loop.want().size());
        if (!loop.advance(n).has_value()) return;
        left -= n;
      }
    });
  });
}
BENCHMARK(ReceiverPull)->UseManualTime()->Unit(benchmark::kMillisecond);

void ReceiverPush(benchmark::State& state) {
  ShadowSink sink;
  against_naive(state, kTileBytes, [&] {
    receive(sink, [](ReceiveLoop& loop, std::size_t i) {
      ByteSpan bytes = stream().tile(i);
      static_cast<void>(loop.push(bytes));
    });
  });
}
BENCHMARK(ReceiverPush)->UseManualTime()->Unit(benchmark::kMillisecond);

void SenderDeferred(benchmark::State& state) {
  against_naive(state, 0, [] {
    Sender sender = *Sender::open(bench_begin(), 0, stream().key);
    for (std::size_t i = 0; i < kTiles; ++i)
      benchmark::DoNotOptimize(sender.add_segment(tile_shape(i), stream().tile(i)));
    benchmark::DoNotOptimize(sender.finish());
  });
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

void against_t(benchmark::State& state, const std::function<void()>& work) {
  const Bytes& header = large_begin().header;
  Rounds rounds(
      [&] {
        std::array<std::uint8_t, 32> digest{};
        must(EVP_Digest(header.data(), header.size(), digest.data(), nullptr, EVP_sha256(), nullptr));
        benchmark::DoNotOptimize(digest);
        benchmark::DoNotOptimize(nlohmann::json::parse(header));
      },
      work);
  rounds.run_all(state);
  state.counters["x_t"] = rounds.ratio();
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(header.size()));
}

void BeginEncode(benchmark::State& state) {
  against_t(state, [] { benchmark::DoNotOptimize(canonical_begin(large_begin().manifest)); });
}
BENCHMARK(BeginEncode)->UseManualTime()->Unit(benchmark::kMillisecond);

void BeginDecode(benchmark::State& state) {
  against_t(state, [] {
    auto frame = decode_header(large_begin().header, 0, {});
    const AcceptedKeyId key{.key_id = "bench", .minimum_epoch = 1};
    auto begin = ValidatedBegin::validate(std::get<BeginFrame>(*std::move(frame)).manifest,
                                          {.now_unix_ms = 1'000,
                                           .keys = std::span(&key, 1),
                                           .max_segments = kDefaultMaxSegments,
                                           .max_total_bytes = std::nullopt});
    if (!begin.has_value()) std::abort();
    benchmark::DoNotOptimize(begin);
  });
}
BENCHMARK(BeginDecode)->UseManualTime()->Unit(benchmark::kMillisecond);

void against_nlohmann(benchmark::State& state, const std::function<void()>& work) {
  const Bytes& header = large_begin().header;
  Rounds rounds([&] { benchmark::DoNotOptimize(nlohmann::json::parse(header).dump()); }, work);
  rounds.run_all(state);
  state.counters["x_nlohmann"] = 1 / rounds.ratio();
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(header.size()));
}

void HeaderEncode(benchmark::State& state) {
  against_nlohmann(state, [] { benchmark::DoNotOptimize(canonical_begin(large_begin().manifest)); });
}
BENCHMARK(HeaderEncode)->UseManualTime()->Unit(benchmark::kMillisecond)->Iterations(9);

void HeaderDecode(benchmark::State& state) {
  against_nlohmann(state, [] {
    const auto frame = decode_header(large_begin().header, 0, {});
    if (!frame.has_value()) std::abort();
    benchmark::DoNotOptimize(frame);
  });
}
BENCHMARK(HeaderDecode)->UseManualTime()->Unit(benchmark::kMillisecond)->Iterations(9);

constexpr std::uint64_t kDescriptors = 1'000'000;

void check_ranges(benchmark::State& state, const std::vector<std::uint64_t>& starts) {
  const std::vector<Component> components = bench_begin().components;
  SegmentDescriptor segment{
      .sequence = 0, .shape = tile_shape(0), .byte_len = 6656 * 2, .sha256 = std::string(64, 'a')};
  segment.shape.logical_count = 1;
  std::vector<double> seconds;
  for (auto _ : state) {
    SegmentRules rules(components);
    seconds.push_back(timed([&] {
      for (const std::uint64_t start : starts) {
        segment.shape.logical_start = start;
        if (!rules.admit(segment).has_value()) std::abort();
      }
    }));
    state.SetIterationTime(seconds.back());
    state.counters["ranges"] = static_cast<double>(rules.range_count());
  }
  state.counters["ns_each"] = median(seconds) * 1e9 / static_cast<double>(starts.size());
}

std::vector<std::uint64_t> starts_of(std::uint64_t stride) {
  std::vector<std::uint64_t> out(kDescriptors);
  for (std::uint64_t i = 0; i < kDescriptors; ++i) out[i] = i * stride;
  return out;
}

void RangesInOrder(benchmark::State& state) {
  check_ranges(state, starts_of(1));
}
BENCHMARK(RangesInOrder)->UseManualTime()->Unit(benchmark::kMillisecond)->Iterations(5);

void RangesNeverMerging(benchmark::State& state) {
  check_ranges(state, starts_of(2));
}
BENCHMARK(RangesNeverMerging)->UseManualTime()->Unit(benchmark::kMillisecond)->Iterations(5);

void RangesNeverMergingShuffled(benchmark::State& state) {
  std::vector<std::uint64_t> starts = starts_of(2);
  std::shuffle(starts.begin(), starts.end(), std::mt19937_64(3));
  check_ranges(state, starts);
}
BENCHMARK(RangesNeverMergingShuffled)->UseManualTime()->Unit(benchmark::kMillisecond)->Iterations(5);

}  // namespace
}  // namespace kvpack::handoff
