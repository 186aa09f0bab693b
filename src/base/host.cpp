#include "base/host.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>

namespace kvpack {

std::uint64_t process_id() noexcept {
  return static_cast<std::uint64_t>(::getpid());
}

std::uint64_t physical_memory_bytes() noexcept {
  const long pages = ::sysconf(_SC_PHYS_PAGES);
  const long bytes = ::sysconf(_SC_PAGESIZE);
  if (pages <= 0 || bytes <= 0) return std::uint64_t{4} << 30;
  return static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(bytes);
}

std::size_t page_bytes() noexcept {
  const long bytes = ::sysconf(_SC_PAGESIZE);
  return bytes <= 0 ? 4'096 : static_cast<std::size_t>(bytes);
}

bool stderr_is_terminal() noexcept {
  return ::isatty(STDERR_FILENO) == 1;
}

bool open_standard_streams() noexcept {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd)
    if (::fcntl(fd, F_GETFD) < 0 && ::open("/dev/null", O_RDONLY) != fd) return false;
  return true;
}

const char* environment_value(const char* name) noexcept {
#if defined(__GLIBC__)
  return ::secure_getenv(name);
#else
  // What the C library's own answer would rest on.
  if (::geteuid() != ::getuid() || ::getegid() != ::getgid()) return nullptr;
  return std::getenv(name);
#endif
}

}  // namespace kvpack
