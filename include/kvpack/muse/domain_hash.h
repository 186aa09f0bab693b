/// The domain hash of the Muse adapter: parts that cannot run into each other. docs/format/muse.md §Notation
#pragma once

#include <initializer_list>

#include "kvpack/core/ids.h"
#include "kvpack/crypto/sha256.h"

namespace kvpack::muse {

/// SHA-256 over the domain, then of each part its length as u64 and its bytes.
/// @param domain  with its terminating NUL, see with_nul; has no length in front
inline Id32 domain_hash(ByteSpan domain, std::span<const ByteSpan> parts) {
  Sha256 hash;
  hash.update(domain);
  for (const ByteSpan part : parts) {
    hash.update(le_bytes(std::uint64_t{part.size()}));
    hash.update(part);
  }
  return Id32{hash.finish()};
}
inline Id32 domain_hash(ByteSpan domain, std::initializer_list<ByteSpan> parts) {
  return domain_hash(domain, std::span<const ByteSpan>(parts.begin(), parts.size()));
}

}  // namespace kvpack::muse
