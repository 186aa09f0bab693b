/// Immutable bytes that several owners hold, so that a plane of a gigabyte is named without being copied.
/// docs/muse-reuse.md §Snapshot
#pragma once

#include <memory>
#include <utility>

#include "kvpack/base/bytes.h"

namespace kvpack::muse {

/// A view and whoever keeps it alive. Copying one copies neither the bytes nor their owner. The bytes must
/// not change while any copy lives; then all copies may be read from any thread.
class SharedBytes {
 public:
  /// No bytes, no owner.
  SharedBytes() = default;

  /// Takes the bytes over, without copying them.
  static SharedBytes own(Bytes bytes) {
    auto owner = std::make_shared<const Bytes>(std::move(bytes));
    const ByteSpan view(*owner);
    return {view, std::move(owner)};
  }
  /// @param view   lies in memory that `owner` keeps alive: a mapped file, an engine's generation
  /// @param owner  may be null, when the caller keeps the memory longer than every copy
  static SharedBytes share(ByteSpan view, std::shared_ptr<const void> owner) {
    return {view, std::move(owner)};
  }

  ByteSpan view() const noexcept { return view_; }
  std::size_t size() const noexcept { return view_.size(); }
  bool empty() const noexcept { return view_.empty(); }
  operator ByteSpan() const noexcept { return view_; }

  /// A part of the bytes, under the same owner. @pre offset + count <= size()
  SharedBytes subspan(std::size_t offset, std::size_t count) const {
    return {view_.subspan(offset, count), owner_};
  }

  /// Equal bytes, wherever they lie.
  friend bool operator==(const SharedBytes& a, const SharedBytes& b) noexcept {
    return a.size() == b.size() && (a.empty() || std::memcmp(a.view_.data(), b.view_.data(), a.size()) == 0);
  }

 private:
  SharedBytes(ByteSpan view, std::shared_ptr<const void> owner) : view_(view), owner_(std::move(owner)) {}
  ByteSpan view_{};
  std::shared_ptr<const void> owner_{};
};

}  // namespace kvpack::muse
