#include "cli/bench/baseline_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "cli/bench/workload.h"
#include "kvpack/core/limits.h"

namespace kvpack::cli::bench {

NaiveReader::~NaiveReader() {
  for (const int file : files_) ::close(file);
}

Status NaiveReader::open(const std::vector<std::string>& files) {
  std::size_t longest = 0;
  for (const std::string& path : files) {
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (file < 0) return os_error(errno, "open", path);
    files_.push_back(file);
    struct stat facts {};
    if (::fstat(file, &facts) != 0) return os_error(errno, "stat", path);
    longest = std::max(longest, static_cast<std::size_t>(facts.st_size));
  }
  object_.resize(longest);
  prefix_.resize(kContentPrefixBytes);
  return success();
}

Status NaiveReader::restore(MutableByteSpan shadow, std::size_t chunk_bytes) {
  for (std::size_t i = 0; i < files_.size(); ++i) {
    std::size_t size = 0;
    for (;;) {
      const ssize_t got =
          ::pread(files_[i], object_.data() + size, object_.size() - size, static_cast<off_t>(size));
      if (got < 0) return os_error(errno, "read", "object");
      if (got == 0 || (size += static_cast<std::size_t>(got)) == object_.size()) break;
    }
    crypto_.sha256(ByteSpan(object_).first(size));
    const ByteSpan plain = ByteSpan(object_).subspan(kPageBytes + kCodecFrameHeaderBytes, chunk_bytes);
    crypto_.hmac(prefix_, plain);
    copy_bytes(plain, shadow.subspan(i * chunk_bytes, chunk_bytes));
  }
  return success();
}

}  // namespace kvpack::cli::bench
