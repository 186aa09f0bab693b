/// PackBits as one writes it first: byte after byte, with the copies and fills of the C library.
#pragma once

#include "kvpack/base/bytes.h"

namespace kvpack::cli::bench {

/// Canonical packets of `plain`. @param out  as packbits_encode @return bytes written
std::size_t scalar_packbits_encode(ByteSpan plain, MutableByteSpan out);

/// Fills `out` from packets. @return false when they do not fit
bool scalar_packbits_decode(ByteSpan packets, MutableByteSpan out);

}  // namespace kvpack::cli::bench
