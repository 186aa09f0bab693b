/// Digests of token lists. docs/format/muse.md §Session
#pragma once

#include "kvpack/core/ids.h"
#include "kvpack/crypto/sha256.h"

namespace kvpack::muse {

/// SHA-256 over a domain and the tokens, u32 each.
/// @param domain  with its terminating NUL
inline Id32 token_digest(ByteSpan domain, std::span<const std::uint32_t> tokens) {
  Sha256 hash;
  hash.update(domain);
  std::array<std::uint8_t, 4'096> block{};
  std::size_t filled = 0;
  for (const std::uint32_t token : tokens) {
    store_le(MutableByteSpan(block), filled, token);
    filled += sizeof(token);
    if (filled < block.size()) continue;
    hash.update(block);
    filled = 0;
  }
  hash.update(ByteSpan(block).first(filled));
  return Id32{hash.finish()};
}

/// By which a session's receipt names its input. Says nothing to those who hold the tokens, and lets the
/// others guess them: keep it away from where prompts may not be.
inline Id32 session_token_digest(std::span<const std::uint32_t> tokens) {
  return token_digest(with_nul("kvpack-live-token-ids-v1"), tokens);
}

/// Idempotency key that upstream's engine gives a published prompt. It names the tokens alone: under another
/// identity the same key is refused. A save that is given no key takes the store's, which names both.
inline Id32 durable_prompt_key(std::span<const std::uint32_t> tokens) {
  return token_digest(with_nul("muser-durable-prompt-v1"), tokens);
}

}  // namespace kvpack::muse
