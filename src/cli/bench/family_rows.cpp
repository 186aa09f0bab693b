// What is measured beside the goals: other kernels than the machine's, and what is small.
#include <fmt/core.h>

#include "cli/bench/again.h"
#include "cli/bench/baseline_hash.h"
#include "cli/bench/families.h"
#include "cli/bench/restores.h"
#include "cli/bench/saves.h"
#include "kvpack/crypto/sha256_machine.h"

namespace kvpack::cli::bench {

namespace family_rows {
namespace {

constexpr std::size_t kSmallBytes = std::size_t{64} << 10;
constexpr std::size_t kMiddleBytes = std::size_t{1} << 20;

constexpr const char* kSaveMany = "save of 16 chunks of 1 MiB, no file, 1 thread";
constexpr const char* kRestoreMany = "restore of 16 chunks of 1 MiB, 1 thread";

/// Sets that hash chunks by themselves: one that hashes a message at a time leaves them to OpenSSL.
std::vector<const Sha256Kernels*> sets_of_their_own() {
  std::vector<const Sha256Kernels*> sets{&kOpensslSha256};
  for (const Sha256Kernels* const kernels : available_sha256_kernels())
    if (kernels->lanes > 1) sets.push_back(kernels);
  return sets;
}

/// Sixteen chunks saved and restored, with each of the sets.
Status many_chunks(BenchRun& run, const std::vector<const Sha256Kernels*>& sets, const std::string& where) {
  KVPACK_TRY(run.time_left());
  KVPACK_TRY_ASSIGN(const BenchCut cut, BenchCut::make({.chunks = 16, .chunk_bytes = kMiddleBytes}));
  KVPACK_TRY_ASSIGN(const auto restores, Restores::make(run, {.chunks = 16, .chunk_bytes = kMiddleBytes}));
  Saves saves{cut};
  std::vector<Variant> variants{saves.n(false), restores->n()};
  for (const Sha256Kernels* const kernels : sets) {
    variants.push_back(saves.ours(*kernels, 1, false));
    variants.push_back(restores->ours(*kernels, 1));
  }
  KVPACK_TRY_ASSIGN(const Samples samples,
                    run.measure("every set of kernels" + where, variants, processor_seconds));
  if (samples.rounds() == 0) return success();
  std::size_t at = 2;
  for (const Sha256Kernels* const kernels : sets) {
    const std::string name(kernels->name);
    run.add_row({kSaveMany + where, "x N", ratio_of(samples, {0}, {at++}), name});
    run.add_row({kRestoreMany + where, "x N", ratio_of(samples, {1}, {at++}), name});
  }
  return success();
}

/// The same as on a processor without SHA instructions, in a process whose OpenSSL does not know of them.
Status without_sha(BenchRun& run) {
  KVPACK_TRY(run.time_left());
  const auto left = static_cast<unsigned>(run.options().seconds - run.seconds_used());
  KVPACK_TRY_ASSIGN(const std::string lines,
                    run_again({"bench", kWithoutShaOption, "--quiet", "--dir", run.options().directory,
                               "--seconds", std::to_string(left)},
                              kOpensslWithoutSha));
  KVPACK_TRY_ASSIGN(std::vector<Row> rows, rows_of_lines(lines));
  for (Row& row : rows) run.add_row(std::move(row));
  return success();
}

/// One small chunk: what a save and a restore cost beside their bytes shows here.
Status one_small_chunk(BenchRun& run) {
  constexpr std::size_t kTimes = 100;
  KVPACK_TRY(run.time_left());
  KVPACK_TRY_ASSIGN(const BenchCut cut, BenchCut::make({.chunks = 1, .chunk_bytes = kSmallBytes}));
  KVPACK_TRY_ASSIGN(const auto restores, Restores::make(run, {.chunks = 1, .chunk_bytes = kSmallBytes}));
  Saves saves{cut};
  std::vector<const Sha256Kernels*> sets{&run.kernels()};
  if (&run.kernels() != &kOpensslSha256) sets.push_back(&kOpensslSha256);
  std::vector<Variant> variants{repeated(saves.n(false), kTimes), repeated(restores->n(), kTimes)};
  for (const Sha256Kernels* const kernels : sets) {
    variants.push_back(repeated(saves.ours(*kernels, 1, false), kTimes));
    variants.push_back(repeated(restores->ours(*kernels, 1), kTimes));
  }
  KVPACK_TRY_ASSIGN(const Samples samples, run.measure("one small chunk", variants, processor_seconds));
  if (samples.rounds() == 0) return success();
  std::size_t at = 2;
  for (const Sha256Kernels* const kernels : sets) {
    const std::string name(kernels->name);
    run.add_row({"save of one chunk of 64 KiB, cut and pack included, no file", "x N",
                 ratio_of(samples, {0}, {at++}), name});
    run.add_row({"restore of one chunk of 64 KiB", "x N", ratio_of(samples, {1}, {at++}), name});
  }
  return success();
}

}  // namespace
}  // namespace family_rows

Status measure_rows(BenchRun& run) {
  using namespace family_rows;
  if (!run.wants_rows()) return success();
  KVPACK_TRY(many_chunks(run, sets_of_their_own(), ""));
  KVPACK_TRY(one_small_chunk(run));
  return openssl_has_sha_instructions() ? without_sha(run) : success();
}

Status measure_without_sha(BenchRun& run) {
  using namespace family_rows;
  if (openssl_has_sha_instructions())
    return fail(ErrorCode::kState,
                "OpenSSL has SHA instructions here; start with " + std::string(kOpensslWithoutSha));
  std::vector<const Sha256Kernels*> sets{&kOpensslSha256};
  const auto wide = find_sha256_kernels("avx512-plain");
  if (wide.has_value()) sets.push_back(*wide);
  return many_chunks(run, sets, ", without SHA instructions");
}

}  // namespace kvpack::cli::bench
