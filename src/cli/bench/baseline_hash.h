/// The primitives of OpenSSL as the naive programs use them: fetched once, contexts used again.
#pragma once

#include <memory>
#include <string>

#include "kvpack/base/bytes.h"

namespace kvpack::cli::bench {

std::string openssl_version();

/// Whether OpenSSL hashes with the SHA instructions of an x86 processor: they are there, and OPENSSL_ia32cap
/// did not take them away when this process was started.
bool openssl_has_sha_instructions();
/// The variable of the environment that takes them away, as `NAME=value`: bit 29 of EBX of CPUID's leaf 7.
inline constexpr const char* kOpensslWithoutSha = "OPENSSL_ia32cap=:~0x20000000";

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
