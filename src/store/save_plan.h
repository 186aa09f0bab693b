/// What a save request comes to: judged, identified, measured. Nothing has been reserved or written yet.
/// docs/operations.md §Saving
#pragma once

#include "kvpack/core/cut_checkpoints.h"
#include "kvpack/store/save.h"
#include "store/upload.h"

namespace kvpack::store {

/// Stays where it is made: the writer points into it.
struct SavePlan {
  explicit SavePlan(const SaveRequest& request) : kind(request.kind), family(*request.family) {}
  SavePlan(const SavePlan&) = delete;
  SavePlan& operator=(const SavePlan&) = delete;

  SaveKind kind;
  IdentifiedFamily family;
  Id32 semantic_id{};
  std::uint64_t stride_tokens = 0;  ///< Of a cut export.
  Pins::Pin parent_pin{};
  std::optional<ManifestChain> parent{};
  std::optional<CutWriter> writer{};
  UploadDeclaration declaration{};
  std::optional<std::uint64_t> time_to_live_ns{};
  std::string label{};

  /// The manifests to publish, base to head. @pre every state of `from` has been written
  /// @param from  this plan's writer, or a copy of it
  Result<std::vector<BuiltCut>> build_cuts(const CutWriter& from, const ChunkSink& sink,
                                           RandomSource& random) const;
};

PublishedCut published_cut(const BuiltCut& built);

/// @error as SaveSession::begin, but for what reserving and memory limits say
Result<std::unique_ptr<SavePlan>> plan_save(StoreContext& context, const SaveRequest& request);

}  // namespace kvpack::store
