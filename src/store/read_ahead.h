/// Chunks of a restore are asked for before they are read, so that the disk works while others are verified.
/// docs/operations.md §Restore
#pragma once

#include <mutex>
#include <vector>

#include "kvpack/core/chain.h"
#include "store/store_files.h"

namespace kvpack::store {

/// Of one restore, for all of its threads. What is in memory already is asked for in vain; that costs an open
/// file, so short objects are left alone.
class ReadAhead {
 public:
  static constexpr std::uint64_t kBytesAhead = std::uint64_t{64} << 20;
  static constexpr std::uint32_t kLeastObjectBytes = std::uint32_t{256} << 10;

  /// @param chunks  in the order in which they are read; must outlive this
  ReadAhead(const StoreFiles& files, std::span<const ChainChunk> chunks) : files_(&files), chunks_(chunks) {
    ends_.reserve(chunks.size());
    std::uint64_t end = 0;
    for (const ChainChunk& chunk : chunks) ends_.push_back(end += chunk.ref.object_bytes);
  }

  /// Asks for what follows from chunk `next` on, as far ahead as there is room for. Best effort.
  void reach(std::size_t next) {
    for (;;) {
      std::size_t mine = 0;
      {
        const std::lock_guard lock(mutex_);
        next = std::min(next, chunks_.size());
        asked_ = std::max(asked_, next);
        const std::uint64_t from = next == 0 ? 0 : ends_[next - 1];
        if (asked_ == chunks_.size() || ends_[asked_] > from + kBytesAhead) return;
        mine = asked_++;
      }
      ask_for(chunks_[mine].ref);
    }
  }

 private:
  void ask_for(const ChunkRef& ref) const {
    if (ref.object_bytes < kLeastObjectBytes) return;
    const auto file = files_->open_object(ObjectKind::kChunk, ref.object_key);
    if (file.has_value()) (*file)->start_read_ahead(0, ref.object_bytes);
  }

  const StoreFiles* files_;
  std::span<const ChainChunk> chunks_;
  std::vector<std::uint64_t> ends_{};  ///< Of each object, were they one behind the other.
  std::mutex mutex_{};
  std::size_t asked_ = 0;
};

}  // namespace kvpack::store
