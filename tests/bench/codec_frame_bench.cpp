// Lossless frames of 4 MiB on one thread. Rounds take turns in one process; figures are ratios of medians of
// seven rounds, in processor time.
//   x_rule    speed over that of the rule of docs/format/chunk.md, read byte by byte; of decoding, over
//             expanding the packets, encoding again and comparing
//   x_sha256  speed over one SHA-256 pass over the same plaintext: every payload byte is hashed at least
//             twice, so what is well above 1 hardly shows in a save
//   x_memcpy  speed over a copy of the same plaintext
#include "kvpack/core/codec_frame.h"

#include <benchmark/benchmark.h>

#include <random>

#include "kvpack/core/half.h"
#include "side_by_side.h"
#include "support/packbits_rule.h"

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

void report(benchmark::State& state, const bench::Rounds& rounds, std::size_t plaintext_bytes,
            std::size_t frame_bytes) {
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(plaintext_bytes));
  state.counters["x_rule"] = rounds.seconds(0) / rounds.seconds(1);
  state.counters["x_sha256"] = rounds.seconds(2) / rounds.seconds(1);
  state.counters["x_memcpy"] = rounds.seconds(3) / rounds.seconds(1);
  state.counters["encoded"] = static_cast<double>(frame_bytes) / static_cast<double>(plaintext_bytes);
  if (rounds.spread(0) > bench::kMostSpread)
    state.SetLabel("inconclusive: the baseline moves by more than 1.6");
}

void encode(benchmark::State& state, Data kind) {
  const Bytes plaintext = plaintext_of(kind);
  Bytes frame(max_codec_frame_bytes(Codec::kLossless, plaintext.size()));
  const MutableByteSpan packets = MutableByteSpan(frame).subspan(kCodecFrameHeaderBytes);
  const std::size_t frame_bytes = *encode_codec_frame_into(Codec::kLossless, plaintext, frame);
  const auto by_rule = [&] { benchmark::DoNotOptimize(packbits_rule::encode(plaintext, packets)); };
  const auto product = [&] {
    benchmark::DoNotOptimize(encode_codec_frame_into(Codec::kLossless, plaintext, frame));
    benchmark::ClobberMemory();
  };
  const auto copy = [&] {
    copy_bytes(plaintext, packets);
    benchmark::ClobberMemory();
  };
  bench::Rounds rounds({{by_rule}, {product}, {[&] { bench::hash_once(plaintext); }}, {copy}},
                       bench::processor_seconds);
  rounds.run(state, 1);
  report(state, rounds, plaintext.size(), frame_bytes);
}

void decode(benchmark::State& state, Data kind) {
  const Bytes plaintext = plaintext_of(kind);
  const Bytes frame = *encode_codec_frame(Codec::kLossless, plaintext);
  const ByteSpan packets = ByteSpan(frame).subspan(kCodecFrameHeaderBytes);
  Bytes target(plaintext.size());
  Bytes again(packbits_max_bytes(plaintext.size()));
  const auto by_rule = [&] {
    if (!packbits_rule::expand_canonical(packets, target, again)) state.SkipWithError("refused by the rule");
  };
  const auto product = [&] {
    const auto status = decode_codec_frame_into(Codec::kLossless, frame, plaintext.size(), target);
    if (!status.has_value()) state.SkipWithError("refused");
    benchmark::ClobberMemory();
  };
  const auto copy = [&] {
    copy_bytes(plaintext, target);
    benchmark::ClobberMemory();
  };
  bench::Rounds rounds({{by_rule}, {product}, {[&] { bench::hash_once(plaintext); }}, {copy}},
                       bench::processor_seconds);
  rounds.run(state, 1);
  report(state, rounds, plaintext.size(), frame.size());
}

BENCHMARK_CAPTURE(encode, half_normal, Data::kHalfNormal)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond)
    ->Iterations(7);
BENCHMARK_CAPTURE(encode, zero_heavy, Data::kZeroHeavy)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond)
    ->Iterations(7);
BENCHMARK_CAPTURE(encode, half_zero, Data::kHalfZero)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond)
    ->Iterations(7);
BENCHMARK_CAPTURE(encode, all_zero, Data::kAllZero)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond)
    ->Iterations(7);
BENCHMARK_CAPTURE(encode, runs_of_three, Data::kRunsOfThree)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond)
    ->Iterations(7);
BENCHMARK_CAPTURE(decode, half_normal, Data::kHalfNormal)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond)
    ->Iterations(7);
BENCHMARK_CAPTURE(decode, zero_heavy, Data::kZeroHeavy)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond)
    ->Iterations(7);
BENCHMARK_CAPTURE(decode, half_zero, Data::kHalfZero)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond)
    ->Iterations(7);
BENCHMARK_CAPTURE(decode, all_zero, Data::kAllZero)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond)
    ->Iterations(7);
BENCHMARK_CAPTURE(decode, runs_of_three, Data::kRunsOfThree)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond)
    ->Iterations(7);

}  // namespace
}  // namespace kvpack
