/// The SHA-256 kernels of the machine that the program runs on. Part of the compiled library.
/// docs/architecture.md §Kernels
#pragma once

#include "kvpack/base/result.h"
#include "kvpack/crypto/sha256_kernels.h"

namespace kvpack {

/// Every set that this build has and that this processor and operating system can run, OpenSSL first:
///   openssl       one message after the other
///   plain         the same in portable C++: what the kernels fall back to, here for tests
///   sha-ni        x86 with SHA and AVX2: up to four messages at once
///   avx512        x86 with AVX-512 F, BW and VL too: sixteen messages at once, fewer as sha-ni
///   avx512-plain  the same without the SHA extensions
///   armv8         Armv8 with SHA2: two messages at once
std::span<const Sha256Kernels* const> available_sha256_kernels();

/// A set by its name. @error kNotFound `no SHA-256 kernels have the name {name}`, kState `this machine cannot
/// run the SHA-256 kernels {name}`
Result<const Sha256Kernels*> find_sha256_kernels(std::string_view name);

/// The set called `wanted`, or, without a name, the fastest: a measurement over sixteen messages, which takes
/// about a millisecond. Either way a set is first held against OpenSSL, over some dozens of messages; one
/// that gives another digest is never taken. A name that cannot be had gives OpenSSL.
const Sha256Kernels& choose_sha256_kernels(const char* wanted);

/// What choose_sha256_kernels gave for the environment variable KVPACK_SHA256_KERNEL at the first call in
/// this process. A call that lacks the memory to choose gets OpenSSL, and the next one chooses. A program
/// that runs with more rights than who started it (secure_getenv) takes the fastest.
const Sha256Kernels& machine_sha256_kernels() noexcept;

}  // namespace kvpack
