/// KVHF layer permits: how many layers may be in memory at once.
/// docs/protocol/kvhf.md §Coordinator and permits.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <utility>

#include "kvpack/base/result.h"

namespace kvpack::kvhf {

/// The right to hold one layer, from before its key payload is read until the consumer drops the ready layer.
/// Given back when it dies, on whatever thread that is.
class LayerPermit {
 public:
  LayerPermit(LayerPermit&& other) noexcept : free_(std::move(other.free_)) {}
  LayerPermit& operator=(LayerPermit&& other) noexcept {
    std::swap(free_, other.free_);
    return *this;
  }
  ~LayerPermit() {
    if (free_) free_->fetch_add(1, std::memory_order_release);
  }

 private:
  friend class PermitPool;
  explicit LayerPermit(std::shared_ptr<std::atomic<std::size_t>> free) noexcept : free_(std::move(free)) {}
  std::shared_ptr<std::atomic<std::size_t>> free_;
};

/// Hands out permits and never waits: who finds none asks again after a ready layer was dropped. May be
/// shared by several sessions; usable from any thread.
class PermitPool {
 public:
  static constexpr std::size_t kMaxCapacity = 64;
  static constexpr std::size_t kDefaultCapacity = 2;

  /// @param capacity  1 to kMaxCapacity
  /// @error kValidation
  static Result<PermitPool> create(std::size_t capacity = kDefaultCapacity) {
    if (capacity == 0 || capacity > kMaxCapacity)
      return fail(ErrorCode::kValidation, "layer permit capacity must be in 1..=64");
    return PermitPool(capacity);
  }

  /// A permit, or nothing when all are out.
  std::optional<LayerPermit> try_acquire() {
    std::size_t free = free_->load(std::memory_order_acquire);
    do {
      if (free == 0) return std::nullopt;
    } while (!free_->compare_exchange_weak(free, free - 1, std::memory_order_acq_rel));
    return LayerPermit(free_);
  }

  std::size_t available() const noexcept { return free_->load(std::memory_order_acquire); }

 private:
  explicit PermitPool(std::size_t capacity) : free_(std::make_shared<std::atomic<std::size_t>>(capacity)) {}
  std::shared_ptr<std::atomic<std::size_t>> free_;
};

}  // namespace kvpack::kvhf
