// G6 to G8 and G19: restoring from files that are in the page cache, into memory of the caller's that is
// there already. N reads an object, hashes it, makes the HMAC of prefix and plaintext, and copies the
// plaintext.
#include <algorithm>
#include <bit>

#include "cli/bench/families.h"
#include "cli/bench/restores.h"
#include "kvpack/core/chunk_reader.h"
#include "kvpack/crypto/sha256_machine.h"

namespace kvpack::cli::bench {

namespace family_restores {
namespace {

Status one_thread(BenchRun& run, Restores& restores) {
  const std::vector<Variant> variants{restores.n(), restores.ours(run.kernels(), 1)};
  KVPACK_TRY_ASSIGN(const Samples samples,
                    run.measure("restores on one thread: G6", variants, processor_seconds));
  Figure figure{.part = &goal_part("G6"),
                .kernel = std::string(run.kernels().name),
                .not_valid = run.too_little_data()};
  if (samples.rounds() > 0) {
    figure.ratio = ratio_of(samples, {0}, {1});
    figure.control.spread = spread_of(samples, 0);
  }
  run.add(std::move(figure), samples);
  return success();
}

Status two_threads(BenchRun& run, Restores& restores) {
  const std::vector<Variant> variants{restores.n(), restores.ours(run.kernels(), 2)};
  KVPACK_TRY_ASSIGN(const double before, run.two_thread_gain());
  KVPACK_TRY_ASSIGN(const Samples samples,
                    run.measure("restores on two threads: G7", variants, wall_seconds));
  KVPACK_TRY_ASSIGN(const double after, run.two_thread_gain());
  Figure figure{.part = &goal_part("G7"),
                .control = {.gain_before = before, .gain_after = after},
                .kernel = std::string(run.kernels().name),
                .not_valid = run.too_little_data()};
  if (samples.rounds() > 0) figure.ratio = ratio_of(samples, {0}, {1});
  run.add(std::move(figure), samples);
  return success();
}

Status one_chunk(BenchRun& run) {
  KVPACK_TRY(run.time_left());
  constexpr std::size_t kTimes = 16;
  KVPACK_TRY_ASSIGN(const auto restores, Restores::make(run, {.chunks = 1}));
  const std::vector<Variant> variants{repeated(restores->n(), kTimes),
                                      repeated(restores->ours(run.kernels(), 1), kTimes)};
  KVPACK_TRY_ASSIGN(const Samples samples,
                    run.measure("restores of one chunk: G8", variants, processor_seconds));
  Figure figure{.part = &goal_part("G8"), .kernel = std::string(run.kernels().name)};
  if (samples.rounds() > 0) {
    figure.ratio = ratio_of(samples, {0}, {1});
    figure.control.spread = spread_of(samples, 0);
  }
  run.add(std::move(figure), samples);
  return success();
}

/// Chunks that a thread reads before it judges them.
std::size_t chunks_in_flight(const Sha256Kernels& kernels) {
  return kernels.lanes > 1 ? kMaxChunkReads : 1;
}

Status extra_memory(BenchRun& run, Restores& restores) {
  KVPACK_TRY(run.time_left());
  constexpr double kKib = 1024;
  PeakMemory memory;
  KVPACK_TRY(restores.restore(run.kernels(), 1));
  if (!memory.begin()) {
    run.skip("G19", "the system does not count the peak of memory");
    return success();
  }
  KVPACK_TRY(restores.restore(run.kernels(), 1));
  const double kib = static_cast<double>(memory.extra_bytes()) / kKib;
  const auto add = [&](const GoalPart& part, double value) {
    run.add({.part = &part, .ratio = {value, value, value}, .kernel = std::string(run.kernels().name)});
  };
  add(goal_part("G19", "thread"), kib);
  add(goal_part("G19", "chunk"), kib / static_cast<double>(chunks_in_flight(run.kernels())));
  return success();
}

}  // namespace
}  // namespace family_restores

Status measure_restores(BenchRun& run) {
  using namespace family_restores;
  if (run.wants_any({"G6", "G7", "G19"})) {
    const std::size_t chunks =
        std::bit_floor(std::max<std::size_t>(1, run.options().data_bytes / kGoalChunkBytes));
    KVPACK_TRY_ASSIGN(const auto restores, Restores::make(run, {.chunks = chunks}));
    KVPACK_TRY(restores->restore(run.kernels(), 1));
    if (!restores->is_exact()) return fail(ErrorCode::kInternal, "the restored planes differ");
    if (run.wants("G6")) KVPACK_TRY(one_thread(run, *restores));
    if (run.wants("G7")) KVPACK_TRY(two_threads(run, *restores));
    if (run.wants("G19")) KVPACK_TRY(extra_memory(run, *restores));
  }
  if (run.wants("G8")) KVPACK_TRY(one_chunk(run));
  return success();
}

}  // namespace kvpack::cli::bench
