/// What the figures were made on, and which cores they were made with.
#pragma once

#include <string>
#include <vector>

#include "kvpack/base/bytes.h"

namespace kvpack::cli::bench {

struct Machine {
  std::string cpu;       ///< As the system names it.
  std::string compiler;  ///< Of this program.
  std::string build_type;
  std::string openssl;
  std::string system;
  bool assertions = false;             ///< Of this program: figures are then lower than they could be.
  bool optimised = true;               ///< Of this program.
  bool sixteen_lanes = false;          ///< The processor runs the AVX-512 kernels, and they may be used.
  std::vector<std::string> kernels{};  ///< SHA-256 kernels that can run here.
};

Machine describe_machine();

/// The cores that this program may use. Threads inherit what the thread that starts them is kept to, so that
/// two threads share two cores and the system gives each its own: the library's threads are not pinned one by
/// one.
class Cores {
 public:
  Cores();
  Cores(const Cores&) = delete;
  Cores& operator=(const Cores&) = delete;
  /// Lets this thread use all of them again.
  ~Cores();

  unsigned count() const noexcept { return static_cast<unsigned>(numbers_.size()); }
  /// Keeps this thread to the first `count`, or to as many as there are.
  void use(unsigned count) const;

 private:
  std::vector<int> numbers_;
};

/// Seconds on the wall.
double wall_seconds();
/// Seconds that all threads of this program have been on a processor: what others do on the machine is not
/// in it.
double processor_seconds();

/// Bytes that look random and are the same each time.
void fill_with_noise(MutableByteSpan out, std::uint64_t seed);

/// Whether files in the directory lie in memory, so that nothing about disks can be learnt there.
bool lies_in_memory(const std::string& directory);
/// What the system calls the type of the file system, or its number.
std::string file_system_name(const std::string& directory);

/// Whether evict_file can do its work in the directory, found out with a file of its own, which goes again.
bool can_evict_files(const std::string& directory);

/// Makes the system forget what it has cached of a file whose bytes are on the disk.
/// @return whether nothing of it is left in memory
bool evict_file(const std::string& path);

/// The most memory of this process since the last reset that was resident at once, in bytes.
class PeakMemory {
 public:
  PeakMemory() = default;
  PeakMemory(const PeakMemory&) = delete;
  PeakMemory& operator=(const PeakMemory&) = delete;
  ~PeakMemory();
  /// Gives free memory back to the system and begins to count. @return false where the system cannot
  bool begin();
  /// Beyond what was resident at begin().
  std::uint64_t extra_bytes() const;

 private:
  std::uint64_t before_ = 0;
};

}  // namespace kvpack::cli::bench
