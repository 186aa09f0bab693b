/// What the 4,096-byte header pages of chunks, packs and pack sets have in common.
#pragma once

#include "kvpack/core/limits.h"
#include "kvpack/crypto/sha256.h"

namespace kvpack::detail {

/// SHA-256 of a header page with its 32-byte digest field read as zero.
inline Digest32 header_page_digest(ByteSpan page, std::size_t digest_offset) {
  constexpr std::array<std::uint8_t, 32> kZero{};
  return sha256({page.first(digest_offset), kZero, page.subspan(digest_offset + kZero.size())});
}

/// Copies a field into a page. @pre it fits behind `offset`
inline void store_bytes(MutableByteSpan page, std::size_t offset, ByteSpan bytes) {
  copy_bytes(bytes, page.subspan(offset));
}

}  // namespace kvpack::detail
