// The SHA-256 kernels under which an endpoint answers: those that KVPACK_SHA256_KERNEL names, else the
// machine's choice.
#pragma once

#include "conformance/line_protocol.h"
#include "kvpack/crypto/sha256_machine.h"
#include "support/sha256_sets.h"

namespace kvpack::conformance {

// They hash all that they can, whether they are faster than OpenSSL or not.
inline Sha256Kernels endpoint_kernels() {
  return testing::forced(machine_sha256_kernels());
}

// `kernels` of the line protocol: every set that the library knows on any machine.
inline void add_kernels(Session& session) {
  session.add_control("kernels", [](Arguments& a) -> Result<Words> {
    KVPACK_TRY(a.end());
    Words words;
    for (const char* name : {"openssl", "plain", "sha-ni", "avx512", "avx512-plain", "armv8"}) {
      const auto found = find_sha256_kernels(name);
      const bool taken = found.has_value() && *found == &machine_sha256_kernels();
      words.text(std::string(name) + (taken ? ":taken" : found.has_value() ? ":here" : ":absent"));
    }
    return words;
  });
}

}  // namespace kvpack::conformance
