/// HMAC-SHA-256 (RFC 2104) with the key's two hash states prepared once.
#pragma once

#include <openssl/crypto.h>

#include <initializer_list>

#include "kvpack/base/secret.h"
#include "kvpack/crypto/sha256.h"

namespace kvpack {

namespace detail {

/// The key as RFC 2104 xors it with its two constants. The caller wipes it.
inline void fill_hmac_pad(ByteSpan key, std::array<std::uint8_t, 64>& pad) {
  pad.fill(0);
  if (key.size() > pad.size()) {
    Digest32 hashed = sha256(key);
    const WipeOnExit wipe_hashed(hashed);
    std::ranges::copy(hashed, pad.begin());
  } else {
    std::ranges::copy(key, pad.begin());
  }
}

}  // namespace detail

/// A key ready for many messages: two compressions fewer per message, which the prefix chain feels.
/// Immutable once made, so usable from any thread. OpenSSL wipes the states when they are freed.
class HmacKey {
 public:
  /// @param key  any length; longer than 64 bytes is hashed first, as RFC 2104 says
  explicit HmacKey(ByteSpan key) : inner_(detail::new_md_ctx()), outer_(detail::new_md_ctx()) {
    std::array<std::uint8_t, 64> pad{};
    const WipeOnExit wipe_pad(pad);
    detail::fill_hmac_pad(key, pad);
    for (std::uint8_t& b : pad) b ^= 0x36;
    start(inner_.get(), pad);
    for (std::uint8_t& b : pad) b ^= 0x36 ^ 0x5c;
    start(outer_.get(), pad);
  }
  explicit HmacKey(const SecretKey& key) : HmacKey(ByteSpan(key.expose())) {}

  const EVP_MD_CTX* inner() const noexcept { return inner_.get(); }
  const EVP_MD_CTX* outer() const noexcept { return outer_.get(); }

 private:
  static void start(EVP_MD_CTX* ctx, ByteSpan pad) {
    detail::require(EVP_DigestInit_ex2(ctx, detail::sha256_algorithm(), nullptr) == 1);
    detail::require(EVP_DigestUpdate(ctx, pad.data(), pad.size()) == 1);
  }
  detail::MdCtx inner_;
  detail::MdCtx outer_;
};

/// An incremental HMAC under a prepared key, which must outlive it. One thread at a time.
class Hmac {
 public:
  explicit Hmac(const HmacKey& key) : key_(&key), ctx_(detail::new_md_ctx()) { reset(); }

  void reset() { detail::require(EVP_MD_CTX_copy_ex(ctx_.get(), key_->inner()) == 1); }
  void update(ByteSpan data) {
    if (!data.empty()) detail::require(EVP_DigestUpdate(ctx_.get(), data.data(), data.size()) == 1);
  }
  Digest32 finish() {
    Digest32 inner{};
    const WipeOnExit wipe_inner(inner);
    detail::require(EVP_DigestFinal_ex(ctx_.get(), inner.data(), nullptr) == 1);
    detail::require(EVP_MD_CTX_copy_ex(ctx_.get(), key_->outer()) == 1);
    detail::require(EVP_DigestUpdate(ctx_.get(), inner.data(), inner.size()) == 1);
    Digest32 out{};
    detail::require(EVP_DigestFinal_ex(ctx_.get(), out.data(), nullptr) == 1);
    return out;
  }

 private:
  const HmacKey* key_;
  detail::MdCtx ctx_;
};

/// HMAC-SHA-256 of the concatenation of `parts`.
inline Digest32 hmac_sha256(const HmacKey& key, std::initializer_list<ByteSpan> parts) {
  Hmac mac(key);
  for (const ByteSpan part : parts) mac.update(part);
  return mac.finish();
}

}  // namespace kvpack
