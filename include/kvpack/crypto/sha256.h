/// SHA-256 (FIPS 180-4) through OpenSSL.
#pragma once

#include <openssl/evp.h>

#include <array>
#include <initializer_list>
#include <memory>
#include <new>

#include "kvpack/base/bytes.h"

namespace kvpack {

using Digest32 = std::array<std::uint8_t, 32>;

namespace detail {

struct MdCtxFree {
  void operator()(EVP_MD_CTX* ctx) const noexcept { EVP_MD_CTX_free(ctx); }
};
using MdCtx = std::unique_ptr<EVP_MD_CTX, MdCtxFree>;

/// OpenSSL digests fail only for want of memory or of the algorithm itself; both end as bad_alloc.
inline void require(bool ok) {
  if (!ok) throw std::bad_alloc();
}

inline MdCtx new_md_ctx() {
  MdCtx ctx(EVP_MD_CTX_new());
  require(ctx != nullptr);
  return ctx;
}

/// Fetched once: a fetch per digest costs more than hashing a small object.
inline const EVP_MD* sha256_algorithm() {
  static const std::unique_ptr<EVP_MD, void (*)(EVP_MD*)> algorithm(EVP_MD_fetch(nullptr, "SHA256", nullptr),
                                                                    &EVP_MD_free);
  require(algorithm != nullptr);
  return algorithm.get();
}

}  // namespace detail

/// An incremental SHA-256. One thread at a time.
class Sha256 {
 public:
  Sha256() : ctx_(detail::new_md_ctx()) { reset(); }

  void reset() { detail::require(EVP_DigestInit_ex2(ctx_.get(), detail::sha256_algorithm(), nullptr) == 1); }
  void update(ByteSpan data) {
    if (!data.empty()) detail::require(EVP_DigestUpdate(ctx_.get(), data.data(), data.size()) == 1);
  }
  /// The digest of all bytes since the last reset. Call reset before the next message.
  Digest32 finish() {
    Digest32 out{};
    detail::require(EVP_DigestFinal_ex(ctx_.get(), out.data(), nullptr) == 1);
    return out;
  }

 private:
  detail::MdCtx ctx_;
};

/// SHA-256 of the concatenation of `parts`.
inline Digest32 sha256(std::initializer_list<ByteSpan> parts) {
  Sha256 hash;
  for (const ByteSpan part : parts) hash.update(part);
  return hash.finish();
}
inline Digest32 sha256(ByteSpan data) {
  return sha256({data});
}

}  // namespace kvpack
