#include "store/quarantine.h"

namespace kvpack::store {

std::uint64_t quarantine_cap_bytes(const StoreContext& context) {
  return *context.options.quota_bytes / 1'000 * context.options.watermarks.quarantine;
}

Status prune_quarantine(StoreContext&) {
  return success();
}

}  // namespace kvpack::store
