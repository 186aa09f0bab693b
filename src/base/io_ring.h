/// io_uring as far as files are written with it, on descriptors; and how the files of the system are written.
/// Virtual so that tests can put a ring in its place that is short, late or broken.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kvpack/base/fs.h"

namespace kvpack {

/// Begun by one thread at a time, and waited for by one thread at a time, which may be another. Functions
/// give 0 or an error number.
class IoRing {
 public:
  struct Done {
    std::uint64_t tag = 0;
    std::int64_t result = 0;  ///< Of the system call: bytes, or a negated error number.
  };
  virtual ~IoRing() = default;
  virtual int begin_write(int fd, const std::uint8_t* data, std::size_t length, std::uint64_t offset,
                          std::uint64_t tag) = 0;
  /// @param content_only  fdatasync instead of fsync
  virtual int begin_sync(int fd, bool content_only, std::uint64_t tag) = 0;
  virtual int wait(Done& done) = 0;
};

/// A ring of the kernel. @param error_number  why there is none; ENOSYS also when the library was built
/// without
std::unique_ptr<IoRing> make_io_ring(unsigned entries, int& error_number);

/// Whether the kernel gives a ring that can do what is needed. @return 0 or an error number
int probe_io_ring();

/// The queue over a ring for files and directories of SystemFileSystem.
/// @param direct  whether it takes writes as well
std::unique_ptr<FileQueue> make_system_queue(std::unique_ptr<IoRing> ring, bool direct);

/// What machine_file_io() would be. @param wish  of the environment, or null
/// @param probe  as probe_io_ring
FileIoChoice choose_file_io(const char* wish, int (*probe)());

}  // namespace kvpack
