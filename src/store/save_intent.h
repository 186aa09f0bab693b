/// Digests of what a save declares. docs/format/store.md §Intents
#pragma once

#include "kvpack/store/save.h"
#include "store/intent.h"

namespace kvpack::store {

/// What a save declares, beside what its writer has planned.
struct DeclaredSave {
  const CutWriter* writer = nullptr;
  const Id32* semantic_id = nullptr;
  const Id32* family_id = nullptr;
  std::vector<std::uint32_t> groups{};  ///< Per state, in family order.
  bool encrypt = true;
  std::uint64_t max_restored_bytes = 0;
};

/// @param stride_tokens  at whose multiples there are manifests
Id32 export_intent(const DeclaredSave& save, std::uint64_t stride_tokens);

/// @param parent  what a delta stands on, or a compaction; null: a full cut
Result<Id32> single_cut_intent(const DeclaredSave& save, const SpanPolicy& spans,
                               const ManifestChain* parent);

}  // namespace kvpack::store
