/// The primitives of OpenSSL as the naive programs use them: fetched once, contexts used again.
#pragma once

#include <memory>
#include <string>

#include "kvpack/base/bytes.h"

namespace kvpack::cli::bench {

std::string openssl_version();

/// SHA-256, HMAC-SHA-256 and ChaCha20-Poly1305 of one thread. Ends the program when OpenSSL does not work:
/// there is nothing to measure then.
class NaiveCrypto {
 public:
  NaiveCrypto();
  NaiveCrypto(const NaiveCrypto&) = delete;
  NaiveCrypto& operator=(const NaiveCrypto&) = delete;
  ~NaiveCrypto();

  void sha256(ByteSpan bytes);
  void hmac(ByteSpan prefix, ByteSpan bytes);
  /// @param out  16 bytes longer than `plain`
  void seal(ByteSpan plain, MutableByteSpan out);

  /// A second SHA-256 stream, which goes on from piece to piece.
  void begin_stream();
  void stream(ByteSpan bytes);
  void end_stream();

 private:
  struct Contexts;
  std::unique_ptr<Contexts> contexts_;
};

}  // namespace kvpack::cli::bench
