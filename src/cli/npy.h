/// NumPy's .npy container, as far as planes need it: little-endian, C order, versions 1 to 3.
#pragma once

#include <vector>

#include "kvpack/core/enums.h"

namespace kvpack::cli {

/// What a .npy header says, and where its data begins.
struct NpyHeader {
  std::vector<std::uint64_t> shape;
  std::size_t data_offset = 0;
};

/// @param dtype  what the elements must be; bf16 has no name in NumPy and is taken as two-byte `V2` or `u2`
/// @error kState the file is no such array, with what was found
Result<NpyHeader> parse_npy(ByteSpan file, DType dtype);

}  // namespace kvpack::cli
