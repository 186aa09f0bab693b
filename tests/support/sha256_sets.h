// Sets of SHA-256 kernels as tests want them. A caller leaves to OpenSSL what a set would not make faster, so
// that under some sets hardly anything reaches their kernels.
#pragma once

#include <string>
#include <vector>

#include "kvpack/crypto/sha256_machine.h"

namespace kvpack::testing {

// The same functions, said to gain by any number of messages: everything that can go to them does. OpenSSL's
// stays as it is: where it hashes, one message comes after the other.
inline Sha256Kernels forced(Sha256Kernels kernels) {
  if (kernels.name == kOpensslSha256.name) return kernels;
  kernels.lanes = kMaxSha256Lanes;
  kernels.pairs = true;
  return kernels;
}

// Every set that this machine runs, and beside each that would leave few messages to OpenSSL the same one
// forced.
inline std::vector<Sha256Kernels> sha256_sets() {
  std::vector<Sha256Kernels> sets;
  for (const Sha256Kernels* kernels : available_sha256_kernels()) {
    sets.push_back(*kernels);
    if (!kernels->pairs && kernels->name != kOpensslSha256.name) sets.push_back(forced(*kernels));
  }
  return sets;
}

// For messages of tests. @return a name, with what tells a forced set from the one that it was made of
inline std::string label(const Sha256Kernels& kernels) {
  return std::string(kernels.name) + (kernels.pairs ? " in lanes" : "");
}

}  // namespace kvpack::testing
