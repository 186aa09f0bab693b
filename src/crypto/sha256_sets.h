/// The sets of own kernels. Only what the processor has may be called.
#pragma once

#include "kvpack/base/result.h"
#include "kvpack/crypto/sha256_kernels.h"

namespace kvpack::detail {

/// A set of this build, and whether the machine can run it.
struct KnownKernels {
  const Sha256Kernels* kernels;
  bool usable;
};

/// As find_sha256_kernels, among these.
Result<const Sha256Kernels*> find_kernels(std::span<const KnownKernels> known, std::string_view name);

extern const Sha256Kernels kPlainSha256;
#if defined(__x86_64__)
extern const Sha256Kernels kShaniSha256;
extern const Sha256Kernels kAvx512Sha256;  ///< What does not fill sixteen lanes goes to the SHA extensions,
extern const Sha256Kernels kAvx512PlainSha256;  ///< or to plain C++.
#elif defined(__aarch64__)
extern const Sha256Kernels kArmv8Sha256;
#endif

}  // namespace kvpack::detail
