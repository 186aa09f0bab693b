// Lossless frames of 4 MiB on one thread. `x_sha256` is the speed over that of one SHA-256 pass over the same
// plaintext, timed beside it: every payload byte is hashed at least twice, so what is well above 1 hardly
// shows in a save.
#include "kvpack/core/codec_frame.h"

#include <benchmark/benchmark.h>

#include <ctime>
#include <limits>
#include <random>

#include "kvpack/core/half.h"
#include "kvpack/crypto/sha256.h"

namespace kvpack {
namespace {

enum class Data { kHalfNormal, kZeroHeavy, kHalfZero, kAllZero, kRunsOfThree };

Bytes plaintext_of(Data kind) {
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal;
  Bytes out(kMaxChunkPlaintextBytes);
  const auto put = [&](std::size_t at) { store_le<std::uint16_t>(out, at, float_to_half(normal(random))); };
  switch (kind) {
    case Data::kHalfNormal:
      for (std::size_t at = 0; at < out.size(); at += 2) put(at);
      break;
    case Data::kZeroHeavy:  // nine of ten cache lines are zero
      for (std::size_t line = 0; line < out.size(); line += 64)
        if (random() % 10 == 0)
          for (std::size_t at = line; at < line + 64; at += 2) put(at);
      break;
    case Data::kHalfZero:
      for (std::size_t at = 0; at < out.size(); at += 2)
        if (random() % 2 == 0) put(at);
      break;
    case Data::kAllZero: break;
    case Data::kRunsOfThree:
      for (std::size_t at = 0; at < out.size(); ++at) out[at] = static_cast<std::uint8_t>(at / 3);
      break;
  }
  return out;
}

// Processor time, so that a busy machine does not change the ratio.
double seconds_since(std::clock_t start) {
  return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

double sha256_pass_seconds(ByteSpan plaintext) {
  double best = std::numeric_limits<double>::max();
  for (int round = 0; round < 5; ++round) {
    const std::clock_t start = std::clock();
    benchmark::DoNotOptimize(sha256(plaintext));
    best = std::min(best, seconds_since(start));
  }
  return best;
}

template <class Work>
void run(benchmark::State& state, ByteSpan plaintext, std::size_t frame_bytes, const Work& work) {
  const double baseline = sha256_pass_seconds(plaintext);
  const std::clock_t start = std::clock();
  for (auto _ : state) work();
  const double each = seconds_since(start) / static_cast<double>(state.iterations());
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(plaintext.size()));
  state.counters["x_sha256"] = baseline / each;
  state.counters["encoded"] = static_cast<double>(frame_bytes) / static_cast<double>(plaintext.size());
}

void encode(benchmark::State& state, Data kind) {
  const Bytes plaintext = plaintext_of(kind);
  Bytes frame(max_codec_frame_bytes(Codec::kLossless, plaintext.size()));
  const std::size_t frame_bytes = *encode_codec_frame_into(Codec::kLossless, plaintext, frame);
  run(state, plaintext, frame_bytes, [&] {
    benchmark::DoNotOptimize(encode_codec_frame_into(Codec::kLossless, plaintext, frame));
    benchmark::ClobberMemory();
  });
}

void decode(benchmark::State& state, Data kind) {
  const Bytes plaintext = plaintext_of(kind);
  const Bytes frame = *encode_codec_frame(Codec::kLossless, plaintext);
  Bytes target(plaintext.size());
  run(state, plaintext, frame.size(), [&] {
    const auto status = decode_codec_frame_into(Codec::kLossless, frame, plaintext.size(), target);
    if (!status.has_value()) state.SkipWithError("refused");
    benchmark::ClobberMemory();
  });
}

BENCHMARK_CAPTURE(encode, half_normal, Data::kHalfNormal);
BENCHMARK_CAPTURE(encode, zero_heavy, Data::kZeroHeavy);
BENCHMARK_CAPTURE(encode, half_zero, Data::kHalfZero);
BENCHMARK_CAPTURE(encode, all_zero, Data::kAllZero);
BENCHMARK_CAPTURE(encode, runs_of_three, Data::kRunsOfThree);
BENCHMARK_CAPTURE(decode, half_normal, Data::kHalfNormal);
BENCHMARK_CAPTURE(decode, zero_heavy, Data::kZeroHeavy);
BENCHMARK_CAPTURE(decode, half_zero, Data::kHalfZero);
BENCHMARK_CAPTURE(decode, all_zero, Data::kAllZero);
BENCHMARK_CAPTURE(decode, runs_of_three, Data::kRunsOfThree);

}  // namespace
}  // namespace kvpack
