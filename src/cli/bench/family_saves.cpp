// G1 to G4: saving without a file. N does, chunk for chunk, what any writer must: one HMAC of prefix and
// plaintext, one copy into an object, one SHA-256 of the object; encrypted, one seal in place of the copy.
#include <algorithm>
#include <bit>

#include "cli/bench/families.h"
#include "cli/bench/saves.h"
#include "kvpack/crypto/sha256_machine.h"

namespace kvpack::cli::bench {

namespace family_saves {
namespace {

Status on_one_thread(BenchRun& run, Saves& saves) {
  std::vector<Variant> variants;
  const auto take = [&](Variant variant) {
    variants.push_back(std::move(variant));
    return variants.size() - 1;
  };
  const auto sha_ni = find_sha256_kernels("sha-ni");
  const bool with_sha_ni = sha_ni.has_value() && run.wants("G3");
  std::size_t n = 0, ours = 0, alone = 0, sealed_n = 0, sealed = 0;
  if (run.wants_any({"G1", "G3"})) n = take(saves.n(false));
  if (run.wants("G1")) ours = take(saves.ours(run.kernels(), 1, false));
  if (with_sha_ni) alone = take(saves.ours(**sha_ni, 1, false));
  if (run.wants("G4")) {
    sealed_n = take(saves.n(true));
    sealed = take(saves.ours(run.kernels(), 1, true));
  }
  KVPACK_TRY_ASSIGN(const Samples samples,
                    run.measure("saves on one thread: G1, G3, G4", variants, processor_seconds));
  const std::string kernel(run.kernels().name);
  const auto add = [&](const GoalPart& part, std::size_t baseline, std::size_t variant,
                       std::string_view name) {
    if (!run.wants(part.id)) return;
    Figure figure{.part = &part, .kernel = std::string(name), .not_valid = run.too_little_data()};
    if (samples.rounds() > 0) {
      figure.ratio = ratio_of(samples, {baseline}, {variant});
      figure.control.spread = spread_of(samples, baseline);
    }
    run.add(std::move(figure), samples);
  };
  add(goal_part("G1"), n, ours, kernel);
  if (with_sha_ni) {
    add(goal_part("G3"), n, alone, "sha-ni");
  } else if (run.wants("G3")) {
    run.skip("G3", sha_ni.error().message);
  }
  add(goal_part("G4", "1 thread"), sealed_n, sealed, kernel);
  return success();
}

Status on_two_threads(BenchRun& run, Saves& saves) {
  std::vector<Variant> variants;
  const auto take_pair = [&](std::string_view id, bool encrypt) {
    if (!run.wants(id)) return variants.size();
    variants.push_back(saves.n(encrypt));
    variants.push_back(saves.ours(run.kernels(), 2, encrypt));
    return variants.size() - 2;
  };
  const std::size_t plain = take_pair("G2", false);
  const std::size_t sealed = take_pair("G4", true);
  KVPACK_TRY_ASSIGN(const double before, run.two_thread_gain());
  KVPACK_TRY_ASSIGN(const Samples samples,
                    run.measure("saves on two threads: G2, G4", variants, wall_seconds));
  KVPACK_TRY_ASSIGN(const double after, run.two_thread_gain());
  const auto add = [&](const GoalPart& part, std::size_t baseline) {
    if (!run.wants(part.id)) return;
    Figure figure{.part = &part,
                  .control = {.gain_before = before, .gain_after = after},
                  .kernel = std::string(run.kernels().name),
                  .not_valid = run.too_little_data()};
    if (samples.rounds() > 0) figure.ratio = ratio_of(samples, {baseline}, {baseline + 1});
    run.add(std::move(figure), samples);
  };
  add(goal_part("G2"), plain);
  add(goal_part("G4", "2 threads"), sealed);
  return success();
}

}  // namespace
}  // namespace family_saves

Status measure_saves(BenchRun& run) {
  if (!run.wants_any({"G1", "G2", "G3", "G4"})) return success();
  const std::size_t chunks =
      std::bit_floor(std::max<std::size_t>(1, run.options().data_bytes / kGoalChunkBytes));
  KVPACK_TRY_ASSIGN(const BenchCut cut, BenchCut::make({.chunks = chunks}));
  Saves saves{cut};
  if (run.wants_any({"G1", "G3", "G4"})) KVPACK_TRY(family_saves::on_one_thread(run, saves));
  if (run.wants_any({"G2", "G4"})) KVPACK_TRY(family_saves::on_two_threads(run, saves));
  return success();
}

}  // namespace kvpack::cli::bench
