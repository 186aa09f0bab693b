/// What tests of the resident tier may replace.
#pragma once

#include "kvpack/muse/resident_tier.h"
#include "muse/chunk_table.h"

namespace kvpack::muse::resident {

class TierMaker {
 public:
  /// A tier whose blocks are found by another hash.
  static Result<ResidentTier> make(const ResidentOptions& options, ChunkHash hash);
};

}  // namespace kvpack::muse::resident
