#include "cli/bench/machine.h"

#include <fmt/core.h>
#include <sys/utsname.h>
#ifdef __linux__
#include <fcntl.h>
#include <malloc.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <chrono>
#include <ctime>
#include <fstream>
#include <sstream>
#include <thread>

#include "cli/bench/baseline_hash.h"
#include "kvpack/crypto/sha256_machine.h"

namespace kvpack::cli::bench {

namespace machine_facts {
namespace {

constexpr long kTmpfs = 0x01021994;
constexpr long kRamfs = 0x858458f6;
constexpr long kExt4 = 0xef53;
constexpr long kXfs = 0x58465342;
constexpr long kBtrfs = 0x9123683e;
constexpr long kOverlay = 0x794c7630;

std::string cpu_name() {
  std::ifstream facts("/proc/cpuinfo");
  std::string name;
  std::string family;
  std::string model;
  for (std::string line; std::getline(facts, line) && (name.empty() || family.empty() || model.empty());) {
    const std::size_t colon = line.find(": ");
    if (colon == std::string::npos) continue;
    const std::string value = line.substr(colon + 2);
    if (line.starts_with("model name")) name = value;
    if (line.starts_with("cpu family")) family = value;
    if (line.starts_with("model\t")) model = value;
  }
  if (name.empty()) return "unknown";
  return family.empty() ? name : fmt::format("{} (family {}, model {})", name, family, model);
}

long type_of([[maybe_unused]] const std::string& directory) {
#ifdef __linux__
  struct statfs facts {};
  if (::statfs(directory.c_str(), &facts) == 0) return static_cast<long>(facts.f_type);
#endif
  return 0;
}

/// A figure of /proc/self/status, in bytes.
std::uint64_t status_bytes(std::string_view key) {
  std::ifstream facts("/proc/self/status");
  for (std::string line; std::getline(facts, line);) {
    if (!line.starts_with(key)) continue;
    std::uint64_t kib = 0;
    std::istringstream(line.substr(key.size() + 1)) >> kib;
    return kib * 1024;
  }
  return 0;
}

}  // namespace
}  // namespace machine_facts

Machine describe_machine() {
  Machine machine;
  machine.cpu = machine_facts::cpu_name();
#if defined(__clang__)
  machine.compiler = "clang " __clang_version__;
#else
  machine.compiler = "g++ " __VERSION__;
#endif
  machine.build_type = KVPACK_BUILD_TYPE;
#ifndef NDEBUG
  machine.assertions = true;
#endif
#ifndef __OPTIMIZE__
  machine.optimised = false;
#endif
  machine.openssl = openssl_version();
  utsname system{};
  if (::uname(&system) == 0) machine.system = fmt::format("{} {}", system.sysname, system.release);
  for (const Sha256Kernels* const kernels : available_sha256_kernels()) {
    machine.kernels.emplace_back(kernels->name);
    machine.sixteen_lanes = machine.sixteen_lanes || kernels->name == "avx512";
  }
  return machine;
}

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double processor_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

void fill_with_noise(MutableByteSpan out, std::uint64_t seed) {
  std::uint64_t x = seed * 2 + 1;
  std::size_t at = 0;
  for (; out.size() - at >= sizeof x; at += sizeof x) {
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    store_le<std::uint64_t>(out, at, x);
  }
  for (; at < out.size(); ++at) out[at] = static_cast<std::uint8_t>(at);
}

bool lies_in_memory(const std::string& directory) {
  const long type = machine_facts::type_of(directory);
  return type == machine_facts::kTmpfs || type == machine_facts::kRamfs;
}

std::string file_system_name(const std::string& directory) {
  switch (const long type = machine_facts::type_of(directory)) {
    case machine_facts::kTmpfs: return "tmpfs";
    case machine_facts::kRamfs: return "ramfs";
    case machine_facts::kExt4: return "ext4";
    case machine_facts::kXfs: return "xfs";
    case machine_facts::kBtrfs: return "btrfs";
    case machine_facts::kOverlay: return "overlayfs";
    default: return fmt::format("0x{:x}", type);
  }
}

Cores::~Cores() {
  use(count());
}

#ifdef __linux__

Cores::Cores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  for (int number = 0; number < CPU_SETSIZE; ++number)
    if (CPU_ISSET(static_cast<std::size_t>(number), &allowed)) numbers_.push_back(number);
}

void Cores::use(unsigned count) const {
  cpu_set_t some;
  CPU_ZERO(&some);
  for (std::size_t i = 0; i < numbers_.size() && i < count; ++i)
    CPU_SET(static_cast<std::size_t>(numbers_[i]), &some);
  // Where it is refused, the controls show what came of it.
  if (!numbers_.empty()) static_cast<void>(::sched_setaffinity(0, sizeof some, &some));
}

bool evict_file(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (file < 0) return false;
  struct stat facts {};
  bool gone = ::fsync(file) == 0 && ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED) == 0 &&
              ::fstat(file, &facts) == 0;
  if (gone && facts.st_size > 0) {
    const auto bytes = static_cast<std::size_t>(facts.st_size);
    void* const place = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file, 0);
    if (place == MAP_FAILED) {
      gone = false;
    } else {
      const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
      std::vector<unsigned char> resident((bytes + page - 1) / page);
      gone = ::mincore(place, bytes, resident.data()) == 0 &&
             std::ranges::none_of(resident, [](unsigned char one) { return (one & 1) != 0; });
      ::munmap(place, bytes);
    }
  }
  ::close(file);
  return gone;
}

bool can_evict_files(const std::string& directory) {
  constexpr std::size_t kBytes = std::size_t{1} << 20;
  std::string name = directory + "/kvpack-bench-probe.XXXXXX";
  const int file = ::mkostemp(name.data(), O_CLOEXEC);
  if (file < 0) return false;
  const Bytes bytes(kBytes, 0x5a);
  const bool written = ::write(file, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size());
  ::close(file);
  const bool evicted = written && evict_file(name);
  ::unlink(name.c_str());
  return evicted;
}

bool PeakMemory::begin() {
  // Blocks of any size go back to the system when they are freed, so that they count again when they are used
  // again.
  ::mallopt(M_MMAP_THRESHOLD, 128 * 1024);
  ::malloc_trim(0);
  {
    std::ofstream reset("/proc/self/clear_refs");
    reset << "5";
    reset.flush();
    if (!reset.good()) return false;
  }
  before_ = machine_facts::status_bytes("VmRSS");
  return before_ != 0;
}

PeakMemory::~PeakMemory() {
  // The threshold does not grow by itself any more: as far as it could have grown.
  ::mallopt(M_MMAP_THRESHOLD, 32 * 1024 * 1024);
}

std::uint64_t PeakMemory::extra_bytes() const {
  const std::uint64_t peak = machine_facts::status_bytes("VmHWM");
  return peak > before_ ? peak - before_ : 0;
}

#else

// Elsewhere threads run where the system lets them, no file counts as cold, and nobody counts the peak.
Cores::Cores() {
  for (unsigned i = 0; i < std::max(1U, std::thread::hardware_concurrency()); ++i)
    numbers_.push_back(static_cast<int>(i));
}
void Cores::use(unsigned) const {}
bool evict_file(const std::string&) {
  return false;
}
bool can_evict_files(const std::string&) {
  return false;
}
bool PeakMemory::begin() {
  return false;
}
PeakMemory::~PeakMemory() = default;
std::uint64_t PeakMemory::extra_bytes() const {
  return 0;
}

#endif

}  // namespace kvpack::cli::bench
