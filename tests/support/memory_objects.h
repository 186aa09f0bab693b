// Objects kept in memory, for tests of saving and restoring.
#pragma once

#include <map>
#include <mutex>

#include "kvpack/core/object_store.h"

namespace kvpack::testing {

/// Both ends at once: what a save puts, a restore reads. Tests reach in to damage or remove objects.
class MemoryObjects final : public ObjectSource, public ChunkSink {
 public:
  std::map<Id32, Bytes> packs;
  std::map<Id32, Bytes> chunks;
  std::vector<ChunkSpan> put_order;
  std::vector<StateKey> put_states;
  std::size_t fail_put_at = static_cast<std::size_t>(-1);

  Result<Bytes> read_pack(const Id32& manifest_id) override {
    const auto found = packs.find(manifest_id);
    if (found == packs.end()) return fail(ErrorCode::kNotFound, "pack is absent");
    return found->second;
  }
  Status read_chunk(const ChunkRef& ref, MutableByteSpan object) override {
    const std::lock_guard lock(mutex_);
    const auto found = chunks.find(ref.object_key);
    if (found == chunks.end()) return fail(ErrorCode::kNotFound, "chunk is absent");
    if (found->second.size() < object.size()) return fail(ErrorCode::kTruncated, "chunk is too short");
    if (found->second.size() > object.size()) return fail(ErrorCode::kBounds, "chunk is too long");
    std::ranges::copy(found->second, object.begin());
    return success();
  }
  Status put(const StateKey& state, const ChunkSpan& span, const ChunkRef& ref, ByteSpan object) override {
    if (put_order.size() == fail_put_at) return fail(ErrorCode::kQuota, "no space");
    put_order.push_back(span);
    put_states.push_back(state);
    chunks[ref.object_key] = Bytes(object.begin(), object.end());
    return success();
  }

 private:
  std::mutex mutex_;
};

}  // namespace kvpack::testing
