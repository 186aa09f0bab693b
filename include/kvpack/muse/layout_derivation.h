/// Layouts of models that are not registered, from their files. docs/format/model-files.md §Layouts
#pragma once

#include "kvpack/muse/gguf.h"
#include "kvpack/muse/layout.h"

namespace kvpack::muse {

/// The layout of an ordinary model, every layer of which caches all tokens in one shape. What the file cannot
/// say is refused, not guessed: models with windows need a sidecar.
/// @param file  opened with is_model_key
/// @error kExpectation `gguf layout underivable: ...`, `gguf rope config underivable: ...`
Result<Layout> derive_layout(const GgufFile& file);

/// The layout of a model with multi-head latent attention: one record per token and layer.
/// @param file  opened with is_model_key
/// @error kExpectation `gguf mla layout underivable: ...`, `gguf rope config underivable: ...`
Result<Layout> derive_mla_layout(const GgufFile& file);

}  // namespace kvpack::muse
