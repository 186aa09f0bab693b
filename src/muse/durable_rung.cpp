#include "kvpack/muse/durable_rung.h"

#include "store/store_context.h"

namespace kvpack::muse {

bool DurableCacheRung::is_strict() const {
  return cache_->store().context().options.strict;
}

Result<std::optional<RungCut>> DurableCacheRung::find_deepest(std::span<const std::uint32_t> tokens) {
  std::optional<RungCut> cut;
  KVPACK_TRY_ASSIGN(const auto hit, cache_->find_deepest(tokens));
  if (hit) cut = RungCut{hit->cut, hit->manifest_id};
  return cut;
}

Result<std::uint64_t> DurableCacheRung::restore(LiveSession& session, const RungCut& cut,
                                                std::span<const std::uint32_t> tokens,
                                                const std::stop_token& cancel) {
  KVPACK_TRY_ASSIGN(const DurableRestore restored,
                    cache_->restore_manifest(session, {cut.cut, cut.manifest_id}, tokens, cancel));
  return restored.restored_bytes;
}

}  // namespace kvpack::muse
