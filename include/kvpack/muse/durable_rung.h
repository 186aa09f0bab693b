/// The durable tier as the reuse ladder sees it. docs/muse-durable.md
#pragma once

#include "kvpack/muse/durable_cache.h"
#include "kvpack/muse/rungs.h"

namespace kvpack::muse {

/// A DurableCache as a rung, which it must outlive.
class DurableCacheRung final : public DurableRung {
 public:
  explicit DurableCacheRung(const DurableCache& cache) : cache_(&cache) {}

  Id32 identity_digest() const override { return resident_digest(cache_->identity()); }
  bool is_strict() const override;
  Result<std::optional<RungCut>> find_deepest(std::span<const std::uint32_t> tokens) override;
  Result<std::uint64_t> restore(LiveSession& session, const RungCut& cut,
                                std::span<const std::uint32_t> tokens,
                                const std::stop_token& cancel) override;

 private:
  const DurableCache* cache_;
};

}  // namespace kvpack::muse
