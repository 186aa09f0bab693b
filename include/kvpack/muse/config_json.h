/// A Muse configuration as JSON: an object with exactly the fields of MuseConfig under their names. Scalars
/// are written as the bits of their f32, 8 hex digits, since a decimal number would leave open which float it
/// means, and the cache is bound to it. docs/adapters.md §Configuration as JSON
#pragma once

#include "kvpack/core/canonical_json.h"
#include "kvpack/muse/config.h"

namespace kvpack::muse {

/// Canonical JSON.
Bytes encode_muse_config(const MuseConfig& config);

/// Reads what encode_muse_config writes, in any order and with any blanks. Says nothing about whether the
/// numbers make sense together.
/// @error kJson naming the field: unknown, missing, or of another form; not JSON
Result<MuseConfig> parse_muse_config(ByteSpan json);

}  // namespace kvpack::muse
