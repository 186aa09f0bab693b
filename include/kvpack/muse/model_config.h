/// A Muse model's configuration out of its file. docs/format/model-files.md §Muse configuration
#pragma once

#include "kvpack/muse/config.h"
#include "kvpack/muse/gguf.h"

namespace kvpack::muse {

inline constexpr std::uint64_t kMaxBlockCount = 4096;

/// Reads keys, the list of tensors, and the data of the Q and K norms, of which the QK scale is the constant
/// value.
/// @param file  opened with is_model_key
/// @error kExpectation, in this order: architecture, required keys, zero or absurd counts, the sliding window
///        pattern, optional keys of another type, head geometry, tensors, norms; kIo
Result<MuseConfig> read_model_config(const GgufFile& file);

/// Whether the model rotates and shapes its rows as the registered layout says, which the geometry gate does
/// not look at: rotary base and dimensions of the sliding layers, and rows of V as wide as those of K.
/// @error kExpectation `model disagrees with layout muse-glimmer-30b: {rotary base|rotary dimensions|value
/// head
///        dimension}`
Status check_model_rotation(const MuseConfig& config);

}  // namespace kvpack::muse
