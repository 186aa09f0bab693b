#include "muse/chunk_table.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace kvpack::muse::resident {

ChunkDigest xxh3_digest(ByteSpan bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {hash.low64, hash.high64};
}

std::unique_ptr<Chunk> make_chunk(const ChunkDigest& digest, ByteSpan bytes) {
  auto chunk = std::make_unique<Chunk>();
  chunk->digest = digest;
  chunk->data.reset(new std::uint8_t[bytes.size()]);
  chunk->size = bytes.size();
  copy_bytes(bytes, {chunk->data.get(), chunk->size});
  return chunk;
}

Chunk& ChunkTable::add(std::unique_ptr<Chunk> chunk) {
  const ChunkDigest digest = chunk->digest;
  Chunk& added = *chunks_.emplace(digest, std::move(chunk))->second;
  live_bytes_ += added.size;
  return added;
}

void ChunkTable::unuse(Chunk& chunk, ChunkPile& pile) noexcept {
  if (--chunk.live_refs != 0) return;
  live_bytes_ -= chunk.size;
  const auto [first, last] = chunks_.equal_range(chunk.digest);
  for (auto it = first; it != last; ++it) {
    if (it->second.get() != &chunk) continue;
    pile.add(std::move(it->second));
    chunks_.erase(it);
    return;
  }
}

void ChunkTable::enter_tree(Chunk& chunk) noexcept {
  if (chunk.tree_refs++ == 0) tree_bytes_ += chunk.size;
}

void ChunkTable::leave_tree(Chunk& chunk) noexcept {
  if (--chunk.tree_refs == 0) tree_bytes_ -= chunk.size;
}

}  // namespace kvpack::muse::resident
