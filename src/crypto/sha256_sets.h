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

/// Whether a set gives OpenSSL's digests: of messages of even and uneven lengths, one to four and sixteen at
/// once, of hashes that were copied half way, and of two over the same bytes. Takes microseconds.
bool agrees_with_openssl(const Sha256Kernels& kernels);

/// As choose_sha256_kernels, among these.
const Sha256Kernels& choose_kernels(std::span<const KnownKernels> known, const char* wanted);

extern const Sha256Kernels kPlainSha256;
#if defined(__x86_64__)
extern const Sha256Kernels kShaniSha256;
extern const Sha256Kernels kAvx512Sha256;  ///< What does not fill sixteen lanes goes to the SHA extensions,
extern const Sha256Kernels kAvx512PlainSha256;  ///< or to plain C++.
#elif defined(__aarch64__)
extern const Sha256Kernels kArmv8Sha256;
#endif

}  // namespace kvpack::detail
