#include "kvpack/crypto/sha256_machine.h"

#include <chrono>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "crypto/sha256_sets.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace kvpack {
namespace {

/// What the processor has and the operating system lets programs use.
struct ProcessorFeatures {
  bool shani = false;   ///< x86: SHA, and AVX2, which its file is compiled for.
  bool avx512 = false;  ///< x86: AVX-512 F, BW, VL.
  bool armv8 = false;   ///< Armv8: SHA2.
};

#if defined(__x86_64__)
/// Which registers the operating system saves: XCR0. @pre the processor has XGETBV enabled
std::uint64_t enabled_registers() {
  std::uint32_t low = 0;
  std::uint32_t high = 0;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (std::uint64_t{high} << 32) | low;
}

ProcessorFeatures processor_features() {
  constexpr std::uint32_t kSsse3 = 1U << 9, kSse41 = 1U << 19, kOsxsave = 1U << 27;  // leaf 1, ECX
  constexpr std::uint32_t kAvx2 = 1U << 5, kAvx512f = 1U << 16, kSha = 1U << 29;     // leaf 7, EBX
  constexpr std::uint32_t kAvx512bw = 1U << 30, kAvx512vl = 1U << 31;                // leaf 7, EBX
  constexpr std::uint64_t kYmm = 0x06, kZmm = 0xe6;                                  // XCR0
  ProcessorFeatures features;
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr std::uint32_t kBasic = kSsse3 | kSse41 | kOsxsave;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & kBasic) != kBasic) return features;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (b & kAvx2) == 0) return features;
  const std::uint64_t registers = enabled_registers();
  constexpr std::uint32_t kWide = kAvx512f | kAvx512bw | kAvx512vl;
  features.shani = (b & kSha) != 0 && (registers & kYmm) == kYmm;
  features.avx512 = (b & kWide) == kWide && (registers & kZmm) == kZmm;
  return features;
}
#elif defined(__aarch64__) && defined(__linux__)
ProcessorFeatures processor_features() {
  constexpr unsigned long kSha2 = 1UL << 6;
  return {.armv8 = (getauxval(AT_HWCAP) & kSha2) != 0};
}
#else
ProcessorFeatures processor_features() {
  return {};
}
#endif

std::vector<detail::KnownKernels> known_kernels() {
  [[maybe_unused]] const ProcessorFeatures features = processor_features();
  return {
    {&kOpensslSha256, true}, {&detail::kPlainSha256, true},
#if defined(__x86_64__)
        {&detail::kShaniSha256, features.shani}, {&detail::kAvx512Sha256, features.shani && features.avx512},
        {&detail::kAvx512PlainSha256, features.avx512},
#elif defined(__aarch64__)
        {&detail::kArmv8Sha256, features.armv8},
#endif
  };
}

/// Hashes sixteen messages of the same bytes. @return nothing when one of the digests is not `expected`
std::optional<std::chrono::nanoseconds> time_of(const Sha256Kernels& kernels, ByteSpan message,
                                                const Digest32& expected) {
  std::vector<Sha256Lane> lanes(kMaxSha256Lanes, Sha256Lane(kernels));
  const std::vector<ByteSpan> messages(kMaxSha256Lanes, message);
  const auto begin = std::chrono::steady_clock::now();
  advance_lanes(lanes, messages);
  const auto time = std::chrono::steady_clock::now() - begin;
  for (Sha256Lane& lane : lanes)
    if (lane.finish() != expected) return std::nullopt;
  return time;
}

const Sha256Kernels& fastest_kernels() {
  constexpr int kRounds = 5;
  constexpr std::size_t kMessageBytes = 4096;
  const Bytes message(kMessageBytes, 0x5a);
  const Digest32 expected = sha256(message);
  const std::span<const Sha256Kernels* const> candidates = available_sha256_kernels();
  std::vector<std::chrono::nanoseconds> best(candidates.size(), std::chrono::nanoseconds::max());
  std::vector<bool> wrong(candidates.size(), false);
  // In turns, and the fastest turn counts: what else the machine does only makes a turn slower.
  for (int round = 0; round < kRounds; ++round) {
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      if (candidates[i] == &detail::kPlainSha256 || wrong[i]) continue;
      const auto time = time_of(*candidates[i], message, expected);
      wrong[i] = !time.has_value();
      if (time.has_value()) best[i] = std::min(best[i], *time);
    }
  }
  const Sha256Kernels* chosen = &kOpensslSha256;
  auto least = std::chrono::nanoseconds::max();
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (wrong[i] || best[i] >= least) continue;
    least = best[i];
    chosen = candidates[i];
  }
  return *chosen;
}

}  // namespace

Result<const Sha256Kernels*> detail::find_kernels(std::span<const KnownKernels> known,
                                                  std::string_view name) {
  const auto found =
      std::ranges::find(known, name, [](const KnownKernels& candidate) { return candidate.kernels->name; });
  if (found == known.end())
    return fail(ErrorCode::kNotFound, "no SHA-256 kernels have the name " + std::string(name));
  if (!found->usable)
    return fail(ErrorCode::kState, "this machine cannot run the SHA-256 kernels " + std::string(name));
  return found->kernels;
}

std::span<const Sha256Kernels* const> available_sha256_kernels() {
  static const std::vector<const Sha256Kernels*> available = [] {
    std::vector<const Sha256Kernels*> usable;
    for (const detail::KnownKernels& known : known_kernels())
      if (known.usable) usable.push_back(known.kernels);
    return usable;
  }();
  return available;
}

Result<const Sha256Kernels*> find_sha256_kernels(std::string_view name) {
  return detail::find_kernels(known_kernels(), name);
}

const Sha256Kernels& choose_sha256_kernels(const char* wanted) {
  if (wanted == nullptr || *wanted == '\0') return fastest_kernels();
  const auto found = find_sha256_kernels(wanted);
  return found.has_value() ? **found : kOpensslSha256;
}

const Sha256Kernels& machine_sha256_kernels() {
  static const Sha256Kernels& chosen = choose_sha256_kernels(std::getenv("KVPACK_SHA256_KERNEL"));
  return chosen;
}

}  // namespace kvpack
