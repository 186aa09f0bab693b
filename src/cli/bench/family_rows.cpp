// What is measured beside the goals: other kernels than the machine's, and what is small.
#include <fmt/core.h>

#include "cli/bench/families.h"
#include "cli/bench/restores.h"
#include "cli/bench/saves.h"
#include "kvpack/crypto/sha256_machine.h"

namespace kvpack::cli::bench {

namespace family_rows {
namespace {

constexpr std::size_t kSmallBytes = std::size_t{64} << 10;
constexpr std::size_t kMiddleBytes = std::size_t{1} << 20;

/// Sixteen chunks saved and restored, with each set of kernels that can run here.
Status every_kernels(BenchRun& run) {
  KVPACK_TRY_ASSIGN(const BenchCut cut, BenchCut::make({.chunks = 16, .chunk_bytes = kMiddleBytes}));
  KVPACK_TRY_ASSIGN(const auto restores, Restores::make(run, {.chunks = 16, .chunk_bytes = kMiddleBytes}));
  Saves saves{cut};
  std::vector<Variant> variants{saves.n(false), restores->n()};
  for (const Sha256Kernels* const kernels : available_sha256_kernels()) {
    variants.push_back(saves.ours(*kernels, 1, false));
    variants.push_back(restores->ours(*kernels, 1));
  }
  KVPACK_TRY_ASSIGN(const Samples samples, run.measure("every set of kernels", variants, processor_seconds));
  if (samples.rounds() == 0) return success();
  std::size_t at = 2;
  for (const Sha256Kernels* const kernels : available_sha256_kernels()) {
    const std::string name(kernels->name);
    run.add_row(
        {"save of 16 chunks of 1 MiB, no file, 1 thread", "x N", ratio_of(samples, {0}, {at++}), name});
    run.add_row({"restore of 16 chunks of 1 MiB, 1 thread", "x N", ratio_of(samples, {1}, {at++}), name});
  }
  return success();
}

/// One small chunk: what a save and a restore cost beside their bytes shows here.
Status one_small_chunk(BenchRun& run) {
  constexpr std::size_t kTimes = 100;
  KVPACK_TRY_ASSIGN(const BenchCut cut, BenchCut::make({.chunks = 1, .chunk_bytes = kSmallBytes}));
  KVPACK_TRY_ASSIGN(const auto restores, Restores::make(run, {.chunks = 1, .chunk_bytes = kSmallBytes}));
  Saves saves{cut};
  const std::vector<Variant> variants{
      repeated(saves.n(false), kTimes), repeated(saves.ours(run.kernels(), 1, false), kTimes),
      repeated(restores->n(), kTimes), repeated(restores->ours(run.kernels(), 1), kTimes)};
  KVPACK_TRY_ASSIGN(const Samples samples, run.measure("one small chunk", variants, processor_seconds));
  if (samples.rounds() == 0) return success();
  const std::string name(run.kernels().name);
  run.add_row({"save of one chunk of 64 KiB, cut and pack included, no file", "x N",
               ratio_of(samples, {0}, {1}), name});
  run.add_row({"restore of one chunk of 64 KiB", "x N", ratio_of(samples, {2}, {3}), name});
  return success();
}

}  // namespace
}  // namespace family_rows

Status measure_rows(BenchRun& run) {
  if (!run.wants_rows()) return success();
  KVPACK_TRY(family_rows::every_kernels(run));
  return family_rows::one_small_chunk(run);
}

}  // namespace kvpack::cli::bench
