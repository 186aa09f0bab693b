/// ChaCha20-Poly1305 (RFC 8439): 32-byte key, 12-byte nonce, 16-byte tag appended.
#pragma once

#include <openssl/evp.h>

#include <initializer_list>
#include <memory>

#include "kvpack/base/secret.h"
#include "kvpack/crypto/sha256.h"

namespace kvpack {

inline constexpr std::size_t kAeadTagBytes = 16;
inline constexpr std::size_t kAeadNonceBytes = 12;
inline constexpr std::size_t kAeadSaltBytes = 16;
using AeadNonce = std::array<std::uint8_t, kAeadNonceBytes>;
using AeadSalt = std::array<std::uint8_t, kAeadSaltBytes>;

namespace detail {

struct CipherCtxFree {
  void operator()(EVP_CIPHER_CTX* ctx) const noexcept { EVP_CIPHER_CTX_free(ctx); }
};
using CipherCtx = std::unique_ptr<EVP_CIPHER_CTX, CipherCtxFree>;

inline const EVP_CIPHER* chacha20_poly1305() {
  static const std::unique_ptr<EVP_CIPHER, void (*)(EVP_CIPHER*)> cipher(
      EVP_CIPHER_fetch(nullptr, "ChaCha20-Poly1305", nullptr), &EVP_CIPHER_free);
  require(cipher != nullptr);
  return cipher.get();
}

enum class AeadDirection { kOpen = 0, kSeal = 1 };

inline CipherCtx start_aead(AeadDirection direction, const SecretKey& key, const AeadNonce& nonce,
                            ByteSpan aad) {
  CipherCtx ctx(EVP_CIPHER_CTX_new());
  require(ctx != nullptr);
  require(EVP_CipherInit_ex2(ctx.get(), chacha20_poly1305(), key.expose().data(), nonce.data(),
                             static_cast<int>(direction), nullptr) == 1);
  int written = 0;
  require(EVP_CipherUpdate(ctx.get(), nullptr, &written, aad.data(), static_cast<int>(aad.size())) == 1);
  return ctx;
}

/// A manifest may be 256 MiB and OpenSSL counts in int, so long inputs go in pieces.
inline void cipher_update(EVP_CIPHER_CTX* ctx, ByteSpan input, std::uint8_t* output) {
  constexpr std::size_t kPiece = std::size_t{1} << 30;
  while (!input.empty()) {
    const std::size_t n = std::min(input.size(), kPiece);
    int written = 0;
    require(EVP_CipherUpdate(ctx, output, &written, input.data(), static_cast<int>(n)) == 1);
    require(static_cast<std::size_t>(written) == n);
    input = input.subspan(n);
    output += n;
  }
}

}  // namespace detail

/// Encrypts the concatenation of `parts` into `out`, the tag behind it. One copy: plaintext to ciphertext.
/// @pre out.size() == sum of parts + kAeadTagBytes; a part is exactly where its ciphertext goes, or outside
/// `out`
inline void aead_seal(const SecretKey& key, const AeadNonce& nonce, ByteSpan aad,
                      std::initializer_list<ByteSpan> parts, MutableByteSpan out) {
  const auto ctx = detail::start_aead(detail::AeadDirection::kSeal, key, nonce, aad);
  std::size_t at = 0;
  for (const ByteSpan part : parts) {
    assert(part.size() + kAeadTagBytes <= out.size() - at);
    detail::cipher_update(ctx.get(), part, out.data() + at);
    at += part.size();
  }
  assert(at + kAeadTagBytes == out.size());
  int written = 0;
  std::array<std::uint8_t, kAeadTagBytes> unused{};
  detail::require(EVP_CipherFinal_ex(ctx.get(), unused.data(), &written) == 1);
  detail::require(EVP_CIPHER_CTX_ctrl(ctx.get(), EVP_CTRL_AEAD_GET_TAG, static_cast<int>(kAeadTagBytes),
                                      out.data() + at) == 1);
}

/// Decrypts `sealed` (ciphertext and tag) into `out`. False when it is not authentic; `out` is then wiped.
/// @pre out.size() + kAeadTagBytes == sealed.size(); out is sealed's own start, or does not overlap it
[[nodiscard]] inline bool aead_open(const SecretKey& key, const AeadNonce& nonce, ByteSpan aad,
                                    ByteSpan sealed, MutableByteSpan out) {
  assert(out.size() + kAeadTagBytes == sealed.size());
  std::array<std::uint8_t, kAeadTagBytes> tag{};
  std::ranges::copy(sealed.last(kAeadTagBytes), tag.begin());
  const auto ctx = detail::start_aead(detail::AeadDirection::kOpen, key, nonce, aad);
  detail::cipher_update(ctx.get(), sealed.first(out.size()), out.data());
  detail::require(EVP_CIPHER_CTX_ctrl(ctx.get(), EVP_CTRL_AEAD_SET_TAG, static_cast<int>(kAeadTagBytes),
                                      tag.data()) == 1);
  int written = 0;
  std::array<std::uint8_t, kAeadTagBytes> unused{};
  if (EVP_CipherFinal_ex(ctx.get(), unused.data(), &written) == 1) return true;
  OPENSSL_cleanse(out.data(), out.size());
  return false;
}

/// Decrypts parts of one ciphertext, in order, each in its place. False when it is not authentic with this
/// `tag`; the parts are then wiped.
[[nodiscard]] inline bool aead_open_in_place(const SecretKey& key, const AeadNonce& nonce, ByteSpan aad,
                                             std::initializer_list<MutableByteSpan> parts,
                                             std::span<const std::uint8_t, kAeadTagBytes> tag) {
  std::array<std::uint8_t, kAeadTagBytes> expected{};
  std::ranges::copy(tag, expected.begin());
  const auto ctx = detail::start_aead(detail::AeadDirection::kOpen, key, nonce, aad);
  for (const MutableByteSpan part : parts) detail::cipher_update(ctx.get(), part, part.data());
  detail::require(EVP_CIPHER_CTX_ctrl(ctx.get(), EVP_CTRL_AEAD_SET_TAG, static_cast<int>(kAeadTagBytes),
                                      expected.data()) == 1);
  int written = 0;
  std::array<std::uint8_t, kAeadTagBytes> unused{};
  if (EVP_CipherFinal_ex(ctx.get(), unused.data(), &written) == 1) return true;
  for (const MutableByteSpan part : parts) OPENSSL_cleanse(part.data(), part.size());
  return false;
}

}  // namespace kvpack
