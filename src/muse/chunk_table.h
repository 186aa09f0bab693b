/// The blocks of the resident tier, each kept once: found by a hash, shared only after a comparison of every
/// byte. Not synchronised; the bytes of a block never change and may be read without the lock of its owner.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "kvpack/base/bytes.h"

namespace kvpack::muse::resident {

/// 128 bits of a hash that nobody has to trust.
struct ChunkDigest {
  std::uint64_t low = 0;
  std::uint64_t high = 0;

  friend bool operator==(const ChunkDigest&, const ChunkDigest&) = default;
};

/// For hash maps over digests.
struct ChunkDigestHash {
  std::size_t operator()(const ChunkDigest& digest) const noexcept {
    return static_cast<std::size_t>(digest.low);
  }
};

using ChunkHash = ChunkDigest (*)(ByteSpan);

/// XXH3-128.
ChunkDigest xxh3_digest(ByteSpan bytes);

struct Chunk {
  ChunkDigest digest{};
  std::unique_ptr<std::uint8_t[]> data{};
  std::size_t size = 0;
  std::uint64_t live_refs = 0;    ///< Snapshots that use it, and inserts that look at it.
  std::uint64_t tree_refs = 0;    ///< Snapshots of entries that use it.
  std::unique_ptr<Chunk> next{};  ///< Of those that are waiting to be freed.

  ByteSpan bytes() const noexcept { return {data.get(), size}; }
};

/// Blocks that nobody uses any more, to be freed when no lock is held: they may be gigabytes.
class ChunkPile {
 public:
  ChunkPile() = default;
  ChunkPile(const ChunkPile&) = delete;
  ChunkPile& operator=(const ChunkPile&) = delete;
  ~ChunkPile() {
    while (top_ != nullptr) top_ = std::move(top_->next);
  }
  void add(std::unique_ptr<Chunk> chunk) noexcept {
    chunk->next = std::move(top_);
    top_ = std::move(chunk);
  }

 private:
  std::unique_ptr<Chunk> top_;
};

inline bool same_bytes(ByteSpan a, ByteSpan b) noexcept {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

/// A block of its own, with a copy of `bytes`.
std::unique_ptr<Chunk> make_chunk(const ChunkDigest& digest, ByteSpan bytes);

class ChunkTable {
 public:
  /// Calls visit(Chunk&) for every block of that digest and size.
  template <class Visit>
  void for_each_candidate(const ChunkDigest& digest, std::size_t size, Visit&& visit) {
    const auto [first, last] = chunks_.equal_range(digest);
    for (auto it = first; it != last; ++it)
      if (it->second->size == size) visit(*it->second);
  }
  /// Adds a block that nobody uses yet. The table owns it.
  Chunk& add(std::unique_ptr<Chunk> chunk);

  void use(Chunk& chunk) noexcept { ++chunk.live_refs; }
  /// A block whose last use this was leaves the table for the pile.
  void unuse(Chunk& chunk, ChunkPile& pile) noexcept;
  void enter_tree(Chunk& chunk) noexcept;
  void leave_tree(Chunk& chunk) noexcept;

  std::uint64_t chunks() const noexcept { return chunks_.size(); }
  std::uint64_t live_bytes() const noexcept { return live_bytes_; }
  std::uint64_t tree_bytes() const noexcept { return tree_bytes_; }

 private:
  std::unordered_multimap<ChunkDigest, std::unique_ptr<Chunk>, ChunkDigestHash> chunks_{};
  std::uint64_t live_bytes_ = 0;
  std::uint64_t tree_bytes_ = 0;
};

}  // namespace kvpack::muse::resident
