#include "cli/bench/baseline_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "kvpack/base/fs.h"

namespace kvpack::cli::bench {

namespace bare_files {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{4} << 20;
constexpr std::size_t kBlockBytes = 4096;

/// A descriptor that closes itself.
class Descriptor {
 public:
  explicit Descriptor(int number) noexcept : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  int get() const noexcept { return number_; }

 private:
  int number_;
};

Error failed(const char* what, const std::string& path) {
  return os_error(errno, what, path);
}

/// Sends the writes of a file around the page cache, or through it. @return whether the file can do so
bool set_direct([[maybe_unused]] int file, [[maybe_unused]] bool direct) {
#ifdef O_DIRECT
  const int flags = ::fcntl(file, F_GETFL);
  return flags >= 0 && ::fcntl(file, F_SETFL, direct ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
#else
  return false;
#endif
}

bool is_direct([[maybe_unused]] int file) {
#ifdef O_DIRECT
  const int flags = ::fcntl(file, F_GETFL);
  return flags >= 0 && (flags & O_DIRECT) != 0;
#else
  return false;
#endif
}

Status write_whole(int file, std::size_t offset, ByteSpan bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t put = ::pwrite(file, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    // What the file system does not take around the page cache goes through it.
    if (put < 0 && errno == EINVAL && is_direct(file) && set_direct(file, false)) continue;
    if (put < 0) return failed("write", path);
    bytes = bytes.subspan(static_cast<std::size_t>(put));
    offset += static_cast<std::size_t>(put);
  }
  return success();
}

/// Room that direct writes may come from, with bytes in it.
class AlignedRoom {
 public:
  AlignedRoom() : bytes_(static_cast<std::uint8_t*>(std::aligned_alloc(kBlockBytes, kPieceBytes))) {
    if (bytes_ == nullptr) throw std::bad_alloc();
    std::fill_n(bytes_, kPieceBytes, std::uint8_t{0x5a});
  }
  AlignedRoom(const AlignedRoom&) = delete;
  AlignedRoom& operator=(const AlignedRoom&) = delete;
  ~AlignedRoom() { std::free(bytes_); }
  ByteSpan bytes() const noexcept { return {bytes_, kPieceBytes}; }

 private:
  std::uint8_t* bytes_;
};

/// Calls work(i, thread) for each file, on some threads. @return the first error that was met
template <class Work>
Status on_threads(std::size_t count, unsigned threads, const Work& work) {
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  Status first = success();
  const auto run = [&](unsigned thread) {
    for (std::size_t i = next++; i < count; i = next++) {
      Status done = work(i, thread);
      if (done.has_value()) continue;
      const std::lock_guard lock(mutex);
      if (first.has_value()) first = std::move(done);
      return;
    }
  };
  {
    std::vector<std::jthread> others;
    for (unsigned i = 1; i < threads; ++i) others.emplace_back(run, i);
    run(0);
  }
  return first;
}

/// @param direct  around the page cache, where the file system lets a file do so
Result<Descriptor> create(const std::string& path, bool direct) {
  Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (file.get() < 0) return failed("create", path);
  // Not when it is created: a refusal would leave it there.
  if (direct) (void)set_direct(file.get(), true);
  return file;
}

void start_write_back([[maybe_unused]] int file) {
#ifdef __linux__
  static_cast<void>(::sync_file_range(file, 0, 0, SYNC_FILE_RANGE_WRITE));
#endif
}

Status write_one(int file, std::size_t size, ByteSpan source, const std::string& path) {
#ifdef __linux__
  // Best effort: a file system may not be able to.
  static_cast<void>(::fallocate(file, 0, 0, static_cast<off_t>(size)));
#endif
  for (std::size_t at = 0; at < size; at += kPieceBytes)
    KVPACK_TRY(write_whole(file, at, source.first(std::min(size - at, kPieceBytes)), path));
  return success();
}

}  // namespace
}  // namespace bare_files

using namespace bare_files;

Result<BareFolder> BareFolder::open(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return failed("open", path);
  return BareFolder(descriptor, path);
}

BareFolder::BareFolder(BareFolder&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), path_(std::move(other.path_)) {}

BareFolder::~BareFolder() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Status BareFolder::fill(const std::string& name, ByteSpan bytes) {
  const Descriptor file(::openat(descriptor_, name.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (file.get() < 0) return failed("create", name);
  KVPACK_TRY(write_whole(file.get(), 0, bytes, name));
  return ::fsync(file.get()) == 0 ? success() : Status(failed("sync", name));
}

Status BareFolder::publish(const std::string& name, ByteSpan bytes) {
  const std::string temporary = name + ".tmp";
  KVPACK_TRY(fill(temporary, bytes));
  if (::renameat(descriptor_, temporary.c_str(), descriptor_, name.c_str()) != 0)
    return failed("rename", name);
  return ::fsync(descriptor_) == 0 ? success() : Status(failed("sync", path_));
}

Status BareFolder::write_durably(const std::string& name, ByteSpan bytes) {
  KVPACK_TRY(fill(name, bytes));
  return ::fsync(descriptor_) == 0 ? success() : Status(failed("sync", path_));
}

struct BareFiles::Buffers {
  explicit Buffers(unsigned readers) : in(readers, Bytes(kPieceBytes)) {}
  AlignedRoom out{};
  std::vector<Bytes> in;  ///< One for each thread that reads.
};

BareFiles::BareFiles(unsigned readers) : buffers_(std::make_unique<Buffers>(readers)) {}
BareFiles::~BareFiles() = default;

Status BareFiles::write(const std::string& folder, const std::string& name,
                        const std::vector<std::size_t>& sizes, const BareWay& way) const {
  std::vector<Descriptor> files;
  std::vector<std::string> paths;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    paths.push_back(join_path(folder, name + "-" + std::to_string(i)));
    // What has no whole number of blocks goes through the page cache.
    KVPACK_TRY_ASSIGN(Descriptor file, create(paths.back(), way.direct && sizes[i] % kBlockBytes == 0));
    files.push_back(std::move(file));
  }
  const auto write_file = [&](std::size_t i, unsigned) -> Status {
    KVPACK_TRY(write_one(files[i].get(), sizes[i], buffers_->out.bytes(), paths[i]));
    if (!is_direct(files[i].get())) start_write_back(files[i].get());
    return success();
  };
  const auto sync_file = [&](std::size_t i, unsigned) -> Status {
    return ::fsync(files[i].get()) == 0 ? success() : Status(failed("sync", paths[i]));
  };
  KVPACK_TRY(on_threads(files.size(), way.writers, write_file));
  KVPACK_TRY(on_threads(files.size(), way.syncers, sync_file));
  const Descriptor directory(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.get() < 0 || ::fsync(directory.get()) != 0) return failed("sync", folder);
  return success();
}

Status BareFiles::read(const std::vector<std::string>& files) {
  const auto readers = static_cast<unsigned>(buffers_->in.size());
  return on_threads(files.size(), readers, [&](std::size_t i, unsigned thread) -> Status {
    Bytes& buffer = buffers_->in[thread];
    const Descriptor file(::open(files[i].c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    if (file.get() < 0) return failed("open", files[i]);
    for (std::size_t at = 0;;) {
      const ssize_t got = ::pread(file.get(), buffer.data(), buffer.size(), static_cast<off_t>(at));
      if (got < 0) return failed("read", files[i]);
      if (got == 0) return success();
      at += static_cast<std::size_t>(got);
    }
  });
}

}  // namespace kvpack::cli::bench
