#include "kvpack/crypto/sha256_machine.h"

#include <chrono>
#include <string>
#include <vector>

#include "base/host.h"
#include "crypto/sha256_sets.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
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
#elif defined(__aarch64__) && defined(__APPLE__)
ProcessorFeatures processor_features() {
  int sha2 = 0;
  std::size_t size = sizeof sha2;
  const bool told = ::sysctlbyname("hw.optional.arm.FEAT_SHA256", &sha2, &size, nullptr, 0) == 0;
  return {.armv8 = told && sha2 == 1};
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

/// Bytes without a pattern that wrong kernels could share, the same in every process.
Bytes patternless_bytes(std::size_t size) {
  Bytes out(size);
  std::uint64_t word = 0x9e3779b97f4a7c15;
  for (std::uint8_t& b : out) {
    word ^= word << 13;
    word ^= word >> 7;
    word ^= word << 17;
    b = static_cast<std::uint8_t>(word >> 32);
  }
  return out;
}

/// Hashes that have the same beginning go on over messages from nothing to 1,100 bytes, then, each at another
/// place of its block, over some of equal length; what has ended begins anew.
bool lanes_agree(const Sha256Kernels& kernels, std::size_t count, ByteSpan bytes) {
  constexpr std::size_t kLongest = 1'100, kEqual = 320;
  const ByteSpan beginning = bytes.first(77);
  std::vector<ByteSpan> uneven, equal;
  for (std::size_t i = 0; i < count; ++i) {
    uneven.push_back(bytes.subspan(31 * i, kLongest * (count - 1 - i) / std::max<std::size_t>(count - 1, 1)));
    equal.push_back(bytes.subspan(900 + 13 * i, kEqual));
  }
  Sha256Lane begun(kernels);
  begun.update(beginning);
  std::vector<Sha256Lane> lanes(count, begun);
  advance_lanes(lanes, uneven);
  advance_lanes(lanes, equal);
  for (std::size_t i = 0; i < count; ++i)
    if (lanes[i].finish() != sha256({beginning, uneven[i], equal[i]})) return false;
  return lanes[0].finish() == sha256(ByteSpan{});
}

/// Two hashes that have got so far go on over the same bytes.
bool same_agrees(const Sha256Kernels& kernels, std::size_t before_a, std::size_t before_b, ByteSpan bytes) {
  const ByteSpan message = bytes.subspan(500, 700);
  Sha256Lane a(kernels);
  Sha256Lane b(kernels);
  a.update(bytes.first(before_a));
  b.update(bytes.subspan(200, before_b));
  advance_same(a, b, message);
  return a.finish() == sha256({bytes.first(before_a), message}) &&
         b.finish() == sha256({bytes.subspan(200, before_b), message});
}

/// Hashes sixteen messages.
std::chrono::nanoseconds time_of(const Sha256Kernels& kernels, ByteSpan message) {
  std::vector<Sha256Lane> lanes(kMaxSha256Lanes, Sha256Lane(kernels));
  const std::vector<ByteSpan> messages(kMaxSha256Lanes, message);
  const auto begin = std::chrono::steady_clock::now();
  advance_lanes(lanes, messages);
  return std::chrono::steady_clock::now() - begin;
}

/// Whether a set may be chosen.
bool may_choose(const Sha256Kernels& kernels) {
  return &kernels == &kOpensslSha256 || detail::agrees_with_openssl(kernels);
}

const Sha256Kernels& fastest_kernels(std::span<const detail::KnownKernels> known) {
  struct Candidate {
    const Sha256Kernels* kernels;
    std::chrono::nanoseconds best;
  };
  constexpr int kRounds = 5;
  const Bytes message = patternless_bytes(4'096);
  std::vector<Candidate> candidates;
  for (const detail::KnownKernels& each : known)
    if (each.usable && each.kernels != &detail::kPlainSha256 && may_choose(*each.kernels))
      candidates.push_back({each.kernels, std::chrono::nanoseconds::max()});
  // In turns, and the fastest turn counts: what else the machine does only makes a turn slower.
  for (int round = 0; round < kRounds; ++round)
    for (Candidate& candidate : candidates)
      candidate.best = std::min(candidate.best, time_of(*candidate.kernels, message));
  const auto fastest = std::ranges::min_element(candidates, {}, &Candidate::best);
  return fastest == candidates.end() ? kOpensslSha256 : *fastest->kernels;
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

bool detail::agrees_with_openssl(const Sha256Kernels& kernels) {
  const Bytes bytes = patternless_bytes(2'048);
  for (const std::size_t count : {1U, 2U, 3U, 4U, 16U})
    if (!lanes_agree(kernels, count, bytes)) return false;
  return same_agrees(kernels, 0, 0, bytes) && same_agrees(kernels, 13, 77, bytes) &&
         same_agrees(kernels, 13, 40, bytes);
}

const Sha256Kernels& detail::choose_kernels(std::span<const KnownKernels> known, const char* wanted) {
  if (wanted == nullptr || *wanted == '\0') return fastest_kernels(known);
  const auto found = find_kernels(known, wanted);
  return found.has_value() && may_choose(**found) ? **found : kOpensslSha256;
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
  return detail::choose_kernels(known_kernels(), wanted);
}

const Sha256Kernels& machine_sha256_kernels() noexcept {
  try {
    // Begun anew by the next call when it is left by an exception.
    static const Sha256Kernels& chosen = choose_sha256_kernels(environment_value("KVPACK_SHA256_KERNEL"));
    return chosen;
  } catch (...) {
    return kOpensslSha256;
  }
}

}  // namespace kvpack
