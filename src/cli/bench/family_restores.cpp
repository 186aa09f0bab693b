// G6 to G8 and G19: restoring from files that are in the page cache, into memory of the caller's that is
// there already. N reads an object, hashes it, makes the HMAC of prefix and plaintext, and copies the
// plaintext.
#include <algorithm>
#include <bit>

#include "cli/bench/baseline_hash.h"
#include "cli/bench/baseline_reader.h"
#include "cli/bench/families.h"
#include "cli/bench/workload.h"
#include "cli/object_folders.h"
#include "kvpack/crypto/sha256_machine.h"

namespace kvpack::cli::bench {

namespace family_restores {
namespace {

/// A cut in files, ready to be restored again and again.
class Restores {
 public:
  static Result<std::unique_ptr<Restores>> make(BenchRun& run, const CutShape& shape) {
    KVPACK_TRY_ASSIGN(BenchCut cut, BenchCut::make(shape));
    KVPACK_TRY_ASSIGN(FolderCut files,
                      FolderCut::save(run.fs(), run.options().directory, cut, shape.encrypt));
    std::unique_ptr<Restores> out(new Restores(run.fs(), std::move(cut), std::move(files)));
    KVPACK_TRY_ASSIGN(ManifestChain chain,
                      open_chain(out->files_.saved().pack.bytes, out->objects_, &out->cut_.ring()));
    out->chain_.emplace(std::move(chain));
    KVPACK_TRY_ASSIGN(RestorePlan plan, RestorePlan::create(*out->chain_));
    out->plan_.emplace(std::move(plan));
    KVPACK_TRY(out->naive_.open(out->files_.files()));
    return out;
  }

  Variant n() {
    return {.work = [this] { return naive_.restore(shadow_, cut_.shape().chunk_bytes); }};
  }
  Variant ours(const Sha256Kernels& kernels, unsigned threads) {
    return {.work = [this, &kernels, threads] { return restore(kernels, threads); }, .cores = threads};
  }
  Status restore(const Sha256Kernels& kernels, unsigned threads) {
    return restore_cut_into(*plan_, objects_,
                            {.keys = &cut_.ring(), .parallelism = threads, .sha256 = &kernels}, lent_);
  }
  /// Whether the latest restore has given back what was saved.
  bool is_exact() const {
    for (std::size_t i = 0; i < cut_.planes().size(); ++i)
      if (!std::ranges::equal(cut_.planes()[i], lent_[i])) return false;
    return true;
  }

 private:
  Restores(FileSystem& fs, BenchCut cut, FolderCut files)
      : cut_(std::move(cut)),
        files_(std::move(files)),
        objects_(fs, files_.folder(), files_.folder()),
        shadow_(static_cast<std::size_t>(cut_.bytes())) {
    std::size_t at = 0;
    for (const ByteSpan plane : cut_.planes()) {
      lent_.push_back(MutableByteSpan(shadow_).subspan(at, plane.size()));
      at += plane.size();
    }
  }

  BenchCut cut_;
  FolderCut files_;
  FolderObjects objects_;
  Bytes shadow_;
  std::vector<MutableByteSpan> lent_{};
  std::optional<ManifestChain> chain_{};
  std::optional<RestorePlan> plan_{};
  NaiveReader naive_{};
};

std::string few_chunks(const BenchRun& run) {
  return run.options().data_bytes < kGoalChunks * kGoalChunkBytes ? "fewer chunks than the goal speaks of"
                                                                  : "";
}

Status one_thread(BenchRun& run, Restores& restores) {
  const std::vector<Variant> variants{restores.n(), restores.ours(run.kernels(), 1)};
  KVPACK_TRY_ASSIGN(const Samples samples,
                    run.measure("restores on one thread: G6", variants, processor_seconds));
  Figure figure{
      .part = &goal_part("G6"), .kernel = std::string(run.kernels().name), .not_valid = few_chunks(run)};
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
                .not_valid = few_chunks(run)};
  if (samples.rounds() > 0) figure.ratio = ratio_of(samples, {0}, {1});
  run.add(std::move(figure), samples);
  return success();
}

/// One chunk takes some milliseconds, so that a turn is many of them.
Variant repeated(Variant variant, int times) {
  return {.work = [work = std::move(variant.work), times]() -> Status {
            for (int i = 0; i < times; ++i) KVPACK_TRY(work());
            return success();
          },
          .cores = variant.cores};
}

Status one_chunk(BenchRun& run) {
  constexpr int kTimes = 16;
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

/// Chunks that a thread reads before it judges them: with kernels for many messages half of the lanes, since
/// each chunk takes two.
std::size_t chunks_in_flight(const Sha256Kernels& kernels) {
  return std::max<std::size_t>(1, kernels.lanes / 2);
}

Status extra_memory(BenchRun& run, Restores& restores) {
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
