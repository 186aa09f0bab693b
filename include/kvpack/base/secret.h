/// Key bytes: wiped when they die, never copied or printed, compared in constant time.
#pragma once

#include <openssl/crypto.h>

#include <algorithm>
#include <array>
#include <span>

#include "kvpack/base/bytes.h"

namespace kvpack {

/// A 32-byte key, wiped when it dies. `expose` is the word to grep in an audit.
class SecretKey {
 public:
  static constexpr std::size_t kBytes = 32;

  explicit SecretKey(std::span<const std::uint8_t, kBytes> bytes) noexcept {
    std::ranges::copy(bytes, bytes_.begin());
  }
  SecretKey(SecretKey&& other) noexcept : bytes_(other.bytes_) { other.wipe(); }
  SecretKey& operator=(SecretKey&& other) noexcept {
    if (this != &other) {
      bytes_ = other.bytes_;
      other.wipe();
    }
    return *this;
  }
  SecretKey(const SecretKey&) = delete;
  SecretKey& operator=(const SecretKey&) = delete;
  ~SecretKey() { wipe(); }

  std::span<const std::uint8_t, kBytes> expose() const noexcept { return bytes_; }

  /// A second owner of the same key, said aloud because keys do not copy by themselves.
  SecretKey duplicate() const noexcept { return SecretKey(expose()); }

 private:
  void wipe() noexcept { OPENSSL_cleanse(bytes_.data(), bytes_.size()); }
  std::array<std::uint8_t, kBytes> bytes_{};
};

/// Wipes a buffer of the caller's when the scope ends, however it ends.
class WipeOnExit {
 public:
  explicit WipeOnExit(MutableByteSpan bytes) noexcept : bytes_(bytes) {}
  WipeOnExit(const WipeOnExit&) = delete;
  WipeOnExit& operator=(const WipeOnExit&) = delete;
  ~WipeOnExit() { OPENSSL_cleanse(bytes_.data(), bytes_.size()); }

 private:
  MutableByteSpan bytes_;
};

/// For tags, keys and digests. Time depends on the lengths alone.
inline bool constant_time_equal(ByteSpan a, ByteSpan b) noexcept {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace kvpack
