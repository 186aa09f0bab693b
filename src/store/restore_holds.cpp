#include "store/restore_holds.h"

#include "kvpack/base/bytes.h"

namespace kvpack::store {
namespace {

bool fits(std::uint64_t held, std::uint64_t more, std::uint64_t limit) {
  const auto sum = checked_add(held, more);
  return sum && *sum <= limit;
}

bool fits(const MemoryCharge& held, const MemoryCharge& more, const StoreMemoryLimits& limits) {
  return fits(held.shadow_bytes, more.shadow_bytes, limits.shadow_bytes) &&
         fits(held.scratch_bytes, more.scratch_bytes, limits.scratch_bytes) &&
         fits(held.holds, more.holds, limits.holds);
}

}  // namespace

Status RestoreHolds::charge(const StoreMemoryLimits& limits, const MemoryCharge& charge) {
  if (!fits({}, charge, limits))
    return fail(ErrorCode::kQuota, "authenticated restore plan exceeds declared resource limits");
  const std::lock_guard lock(mutex_);
  if (!fits(held_, charge, limits))
    return fail(ErrorCode::kQuota, "concurrent restore resources exceed declared limits");
  held_.shadow_bytes += charge.shadow_bytes;
  held_.scratch_bytes += charge.scratch_bytes;
  held_.holds += charge.holds;
  return success();
}

void RestoreHolds::release(const MemoryCharge& charge) noexcept {
  const std::lock_guard lock(mutex_);
  held_.shadow_bytes -= charge.shadow_bytes;
  held_.scratch_bytes -= charge.scratch_bytes;
  held_.holds -= charge.holds;
}

MemoryCharge RestoreHolds::held() const {
  const std::lock_guard lock(mutex_);
  return held_;
}

}  // namespace kvpack::store
