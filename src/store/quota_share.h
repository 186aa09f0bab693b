/// Thousandths of a quota, exactly.
#pragma once

#include <cstdint>

namespace kvpack::store {

/// ⌊quota · thousandths / 1000⌋. @param thousandths  at most 1,000
constexpr std::uint64_t quota_share(std::uint64_t quota_bytes, std::uint32_t thousandths) noexcept {
  return quota_bytes / 1'000 * thousandths + quota_bytes % 1'000 * thousandths / 1'000;
}

/// Whether `bytes` are at least this share of the quota.
constexpr bool reaches_share(std::uint64_t bytes, std::uint64_t quota_bytes,
                             std::uint32_t thousandths) noexcept {
  const std::uint64_t share = quota_share(quota_bytes, thousandths);
  const bool exact = quota_bytes % 1'000 * thousandths % 1'000 == 0;
  return exact ? bytes >= share : bytes > share;
}

}  // namespace kvpack::store
