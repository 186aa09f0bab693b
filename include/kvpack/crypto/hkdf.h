/// HKDF-SHA-256 (RFC 5869) with a 32-byte output: docs/format/keys.md.
#pragma once

#include <initializer_list>

#include "kvpack/base/secret.h"
#include "kvpack/crypto/hmac.h"

namespace kvpack {

/// Extract-and-expand to one block. @param info  parts of the info string, concatenated
inline SecretKey hkdf_sha256(ByteSpan salt, const SecretKey& input_key,
                             std::initializer_list<ByteSpan> info) {
  Digest32 extracted = hmac_sha256(HmacKey(salt), {input_key.expose()});
  const WipeOnExit wipe_extracted(extracted);
  const HmacKey expand_key((ByteSpan(extracted)));
  Hmac expand(expand_key);
  for (const ByteSpan part : info) expand.update(part);
  expand.update(le_bytes(std::uint8_t{1}));
  Digest32 output = expand.finish();
  const WipeOnExit wipe_output(output);
  return SecretKey(output);
}

}  // namespace kvpack
