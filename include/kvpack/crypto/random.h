/// Where salts, nonces and keys come from: a seam, so that tests and vectors can fix them.
#pragma once

#include <openssl/rand.h>

#include "kvpack/base/bytes.h"

namespace kvpack {

class RandomSource {
 public:
  virtual ~RandomSource() = default;
  /// Fills all of `out`. @error kIo when no randomness is to be had; `out` is then undefined
  virtual Status fill(MutableByteSpan out) = 0;
};

/// The operating system's generator through OpenSSL. Usable from any thread.
class SystemRandom final : public RandomSource {
 public:
  Status fill(MutableByteSpan out) override {
    constexpr std::size_t kPiece = 1 << 20;
    while (!out.empty()) {
      const std::size_t n = std::min(out.size(), kPiece);
      if (RAND_bytes(out.data(), static_cast<int>(n)) != 1)
        return fail(ErrorCode::kIo, "system random generator failed");
      out = out.subspan(n);
    }
    return success();
  }
};

}  // namespace kvpack
