/// A save that has been published already: what is stored, and whether it is what was declared.
/// docs/format/store.md §Uploads
#pragma once

#include <unordered_map>

#include "store/save_plan.h"

namespace kvpack::store {

/// What an earlier session published under the same key. Its head stays while this lives.
struct PublishedSave {
  CutWriter writer;  ///< As if it had written what is stored.
  Pins::Pin pin{};
  std::vector<PublishedCut> cuts{};
  std::unordered_map<Id32, ChunkRef, Id32Hash> chunks{};  ///< Of the whole cut, by content.
};

/// Looks for a publication under the plan's key, reads it, and proves that it is what the plan would write
/// from the stored chunks. One of which a part is gone or damaged is forgotten, so that the next reservation
/// begins again; a strict store returns damage as the error.
/// @return nothing when there is none, when it was declared otherwise, or when it has been forgotten
/// @error kExpectation `idempotency key was reused for a different artifact declaration` (single cut);
///        kAuthentication `published idempotency result changed` (export); kIo kCatalog
Result<std::optional<PublishedSave>> find_published(StoreContext& context, const SavePlan& plan);

/// A replay counts as an access, and its cuts live at least as long as has been asked for this time.
/// @param expires_ns  nothing: for good
Status renew_published(StoreContext& context, const PublishedSave& published,
                       std::optional<std::uint64_t> expires_ns);

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
