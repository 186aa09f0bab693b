/// A save that has been published already: what is stored, and whether it is what was declared.
/// docs/format/store.md §Uploads
#pragma once

#include <unordered_map>

#include "store/save_plan.h"

namespace kvpack::store {

/// What an earlier session published under the same key.
struct PublishedSave {
  CutWriter writer;  ///< As if it had written what is stored.
  std::vector<PublishedCut> cuts{};
  std::unordered_map<Id32, ChunkRef, Id32Hash> chunks{};  ///< Of the whole cut, by content.
};

/// Reads what the head stands for, and proves that it is what the plan would write from the stored chunks.
/// @return nothing when a part is gone or damaged, so that it should be written again; a strict store
///         returns damage as the error
/// @error kExpectation `idempotency key was reused for a different artifact declaration` (single cut);
///        kAuthentication `published idempotency result changed` (export); kIo kCatalog
Result<std::optional<PublishedSave>> find_published(StoreContext& context, const SavePlan& plan,
                                                    const Id32& head_id);

/// Lets a published upload begin again at the next reservation.
Status forget_publication(StoreContext& context, const Id32& idempotency_key);

/// Compares states that are written again with what is stored; takes nothing.
class ReplaySink final : public ChunkSink {
 public:
  explicit ReplaySink(const PublishedSave& published) noexcept : published_(&published) {}
  /// @error kAuthentication `published export replay contains changed or unavailable chunk bytes`
  Result<std::optional<ChunkRef>> find(const StateKey&, const ChunkSpan&, const Id32& content_id) override;
  Status put(const StateKey&, const ChunkSpan&, const ChunkRef&, ByteSpan) override;

 private:
  const PublishedSave* published_;
};

}  // namespace kvpack::store
