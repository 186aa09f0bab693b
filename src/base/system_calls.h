// The calls in which systems differ, one function each: what Linux has, what macOS has instead, and what is
// left where neither is there or `calls` forbids it. docs/portability.md §Files
//
// The Apple branches are written to its manual pages and compiled by nothing here; the last branch of each is
// what every test runs under SystemCalls::kPortable.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#if defined(__APPLE__)
#include <stdio.h>  // renameatx_np
#include <sys/random.h>
#endif

#include <cerrno>
#include <cstdint>
#include <string>

#include "kvpack/base/fs.h"

namespace kvpack::system_calls {

/// Brings what was written to the medium. @return 0, or -1 with errno
inline int sync_to_medium(int fd, [[maybe_unused]] SystemCalls calls) {
#if defined(__APPLE__)
  // There fsync stops at the drive's cache. A volume that knows no more, such as one of a server, gives
  // fsync's word.
  if (calls == SystemCalls::kAll) {
    if (::fcntl(fd, F_FULLFSYNC) == 0) return 0;
    if (errno != ENOTSUP && errno != EOPNOTSUPP && errno != EINVAL && errno != ENOTTY) return -1;
  }
#endif
  return ::fsync(fd);
}

/// The same for a file's content and length, without times and the like. @return 0, or -1 with errno
inline int sync_content_to_medium(int fd, SystemCalls calls) {
#if defined(__linux__)
  if (calls == SystemCalls::kAll) return ::fdatasync(fd);
#endif
  return sync_to_medium(fd, calls);
}

/// A file without a name in the directory. @return -1 with errno; ENOTSUP where there is no such thing
inline int open_unnamed([[maybe_unused]] int directory, [[maybe_unused]] mode_t mode, SystemCalls calls) {
#if defined(__linux__)
  if (calls == SystemCalls::kAll) {
    const int fd = ::openat(directory, ".", O_RDWR | O_TMPFILE | O_CLOEXEC, mode);
    // EISDIR and ENOENT come from kernels that do not know the flag.
    if (fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == ENOENT || errno == EINVAL))
      errno = ENOTSUP;
    return fd;
  }
#endif
  static_cast<void>(calls);
  errno = ENOTSUP;
  return -1;
}

/// The way to a name for an unnamed file leads through /proc, which a container may lack.
inline std::string path_of_descriptor(int fd) {
  return "/proc/self/fd/" + std::to_string(fd);
}

/// Gives the file of a descriptor a name, without a path. @return 0, or -1 with errno; ENOENT also where the
/// process may not
inline int link_descriptor([[maybe_unused]] int fd, [[maybe_unused]] int directory,
                           [[maybe_unused]] const char* name) {
#if defined(__linux__)
  return ::linkat(fd, "", directory, name, AT_EMPTY_PATH);
#else
  errno = ENOENT;
  return -1;
#endif
}

/// Renames unless the new name is taken. @return 0, or -1 with errno; ENOTSUP where it cannot be had in one
/// step
inline int rename_exclusive([[maybe_unused]] int from, [[maybe_unused]] const char* name,
                            [[maybe_unused]] int to, [[maybe_unused]] const char* to_name,
                            SystemCalls calls) {
  if (calls == SystemCalls::kAll) {
#if defined(__linux__)
    const int done = ::renameat2(from, name, to, to_name, RENAME_NOREPLACE);
    if (done != 0 && (errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP)) errno = ENOTSUP;
    return done;
#elif defined(__APPLE__)
    const int done = ::renameatx_np(from, name, to, to_name, RENAME_EXCL);
    if (done != 0 && (errno == EINVAL || errno == EOPNOTSUPP)) errno = ENOTSUP;
    return done;
#endif
  }
  errno = ENOTSUP;
  return -1;
}

/// Reserves room for the first `size_bytes` and keeps the length. @return 0, also where the system has no
/// such call or this file system does not serve it; or -1 with errno
inline int preallocate([[maybe_unused]] int fd, [[maybe_unused]] off_t size_bytes, SystemCalls calls) {
  if (calls == SystemCalls::kAll) {
#if defined(__linux__)
    const int done = ::fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, size_bytes);
    return done != 0 && (errno == EOPNOTSUPP || errno == ENOSYS) ? 0 : done;
#elif defined(__APPLE__)
    // Counted from the end of what the file has room for already.
    struct stat s {};
    if (::fstat(fd, &s) != 0) return -1;
    const off_t held = static_cast<off_t>(s.st_blocks) * 512;
    if (held >= size_bytes) return 0;
    fstore_t room{F_ALLOCATEALL, F_PEOFPOSMODE, 0, size_bytes - held, 0};
    const int done = ::fcntl(fd, F_PREALLOCATE, &room);
    if (done >= 0 || errno == ENOTSUP || errno == EOPNOTSUPP || errno == EINVAL) return 0;
    return -1;
#endif
  }
  return 0;
}

/// Begins to write out, without waiting. A hint: where there is no such call nothing happens.
inline void start_write_back([[maybe_unused]] int fd, [[maybe_unused]] SystemCalls calls) {
#if defined(__linux__)
  if (calls == SystemCalls::kAll) (void)::sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE);
#endif
}

/// Begins to bring a range into memory, without waiting. A hint as well.
inline void start_read_ahead([[maybe_unused]] int fd, [[maybe_unused]] off_t offset,
                             [[maybe_unused]] off_t length, [[maybe_unused]] SystemCalls calls) {
#if defined(__linux__)
  if (calls == SystemCalls::kAll) (void)::posix_fadvise(fd, offset, length, POSIX_FADV_WILLNEED);
#endif
}

/// An open file once more, for writing past the page cache. @return -1 with errno where that is not to be had
inline int open_direct([[maybe_unused]] const char* path) {
#if defined(__linux__)
  return ::open(path, O_WRONLY | O_DIRECT | O_CLOEXEC);
#else
  errno = ENOTSUP;
  return -1;
#endif
}

struct FileTimes {
  timespec access;
  timespec modification;
  timespec change;
};

inline FileTimes times_of(const struct stat& s) {
#if defined(__APPLE__)
  return {s.st_atimespec, s.st_mtimespec, s.st_ctimespec};
#else
  return {s.st_atim, s.st_mtim, s.st_ctim};
#endif
}

}  // namespace kvpack::system_calls
