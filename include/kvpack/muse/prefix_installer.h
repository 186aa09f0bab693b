/// A handoff into a store: what a transfer has completed becomes a cut. docs/muse-handoff.md §Stores
#pragma once

#include "kvpack/muse/handoff_sink.h"
#include "kvpack/muse/prefix_cache.h"

namespace kvpack::muse {

/// Every plane is written in prepare, visible in install, and gone otherwise. One transfer.
class PrefixInstaller final : public HandoffInstaller {
 public:
  /// @param cache        must outlive this
  /// @param parallelism  threads; 0: as many as the store allows
  explicit PrefixInstaller(const PrefixCache& cache, unsigned parallelism = 0)
      : cache_(&cache), parallelism_(parallelism) {}

  /// @error as PrefixCache::write
  Status prepare(const CacheSnapshot& snapshot, const DflashContext*) override {
    SessionTerms terms;
    terms.parallelism = parallelism_;
    KVPACK_TRY_ASSIGN(SessionWriter writer, cache_->write(snapshot, terms));
    writer_.emplace(std::move(writer));
    return success();
  }
  /// @error as SessionWriter::commit
  Status install(CacheSnapshot, std::optional<DflashContext>) override {
    KVPACK_TRY_ASSIGN(saved_, writer_->commit());
    writer_.reset();
    return success();
  }
  void drop() noexcept override { writer_.reset(); }

  /// The cut, once it is visible.
  const std::optional<SessionReceipt>& saved() const noexcept { return saved_; }

 private:
  const PrefixCache* cache_;
  unsigned parallelism_;
  std::optional<SessionWriter> writer_;
  std::optional<SessionReceipt> saved_;
};

}  // namespace kvpack::muse
