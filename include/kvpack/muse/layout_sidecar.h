/// A layout as JSON beside a model file, for what the file itself does not say. docs/format/model-files.md
/// §Sidecars
#pragma once

#include "kvpack/muse/layout.h"

namespace kvpack::muse {

inline constexpr std::size_t kMaxSidecarBytes = std::size_t{1} << 20;
inline constexpr std::uint64_t kMaxSidecarLayers = 4096;

/// The result passes validate_owned_layout up to the lengths of labels; rotation is judged when a descriptor
/// is derived. Unknown keys are ignored, repeated ones refused.
/// @error kExpectation `prefill layout sidecar ...`
Result<Layout> parse_layout_sidecar(ByteSpan json);

}  // namespace kvpack::muse
