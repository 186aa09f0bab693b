/// Restoring a cut from files in a folder, against the naive program.
#pragma once

#include "cli/bench/baseline_reader.h"
#include "cli/bench/bench_run.h"
#include "cli/bench/workload.h"
#include "cli/object_folders.h"

namespace kvpack::cli::bench {

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

}  // namespace kvpack::cli::bench
