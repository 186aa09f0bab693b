#include "kvpack/base/fs.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <mutex>
#include <system_error>

#include "base/host.h"
#include "base/io_ring.h"
#include "base/system_calls.h"

namespace kvpack {
namespace {

constexpr mode_t kFileMode = 0600;
constexpr mode_t kDirectoryMode = 0700;
/// For what a FileQueue has under way, and some more.
constexpr unsigned kRingEntries = 32;

/// A call again while signals interrupt it.
template <class Call>
auto retry(Call&& call) {
  for (;;) {
    const auto result = call();
    if (result >= 0 || errno != EINTR) return result;
  }
}

/// A descriptor that closes itself. An error of close says nothing after a sync, so it is not looked at.
class Descriptor {
 public:
  explicit Descriptor(int fd) noexcept : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  Descriptor& operator=(Descriptor&&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const noexcept { return fd_; }
  bool ok() const noexcept { return fd_ >= 0; }
  void release() noexcept { fd_ = -1; }

 private:
  int fd_;
};

std::int64_t nanoseconds(const timespec& t) {
  return std::int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

FileKind kind_of(mode_t mode) {
  if (S_ISREG(mode)) return FileKind::kRegular;
  if (S_ISDIR(mode)) return FileKind::kDirectory;
  if (S_ISLNK(mode)) return FileKind::kSymbolicLink;
  return FileKind::kOther;
}

FileFacts facts_of(const struct stat& s) {
  FileFacts facts;
  facts.kind = kind_of(s.st_mode);
  facts.size_bytes = s.st_size < 0 ? 0 : static_cast<std::uint64_t>(s.st_size);
  facts.links = s.st_nlink;
  facts.permissions = s.st_mode & 07777;
  facts.owner = s.st_uid;
  facts.ours = s.st_uid == ::geteuid();
  facts.device = static_cast<std::uint64_t>(s.st_dev);
  facts.inode = s.st_ino;
  const system_calls::FileTimes times = system_calls::times_of(s);
  facts.access_time_ns = nanoseconds(times.access);
  facts.modification_time_ns = nanoseconds(times.modification);
  facts.change_time_ns = nanoseconds(times.change);
  return facts;
}

Result<FileFacts> facts_of_descriptor(int fd, const std::string& path) {
  struct stat s {};
  if (::fstat(fd, &s) != 0) return os_error(errno, "stat", path);
  return facts_of(s);
}

/// Offsets pass through the system's signed type.
Status check_range(std::uint64_t offset, std::size_t length, std::string_view operation,
                   std::string_view path) {
  const auto end = checked_add<std::uint64_t>(offset, length);
  if (!end || *end > static_cast<std::uint64_t>(std::numeric_limits<off_t>::max()))
    return os_error(EOVERFLOW, operation, path);
  return success();
}

class SystemFile final : public File {
 public:
  SystemFile(Descriptor fd, std::string path, SystemCalls calls)
      : fd_(std::move(fd)), path_(std::move(path)), calls_(calls) {}

  int fd() const noexcept { return fd_.get(); }
  const std::string& path() const override { return path_; }
  Result<FileFacts> facts() const override { return facts_of_descriptor(fd_.get(), path_); }

  Result<std::size_t> read_some(std::uint64_t offset, MutableByteSpan out) const override {
    KVPACK_TRY(check_range(offset, out.size(), "read", path_));
    const auto n =
        retry([&] { return ::pread(fd_.get(), out.data(), out.size(), static_cast<off_t>(offset)); });
    if (n < 0) return os_error(errno, "read", path_);
    return static_cast<std::size_t>(n);
  }
  Result<std::size_t> write_some(std::uint64_t offset, ByteSpan data) override {
    KVPACK_TRY(check_range(offset, data.size(), "write", path_));
    const auto n =
        retry([&] { return ::pwrite(fd_.get(), data.data(), data.size(), static_cast<off_t>(offset)); });
    if (n < 0) return os_error(errno, "write", path_);
    return static_cast<std::size_t>(n);
  }
  Status truncate(std::uint64_t size_bytes) override {
    KVPACK_TRY(check_range(size_bytes, 0, "truncate", path_));
    if (retry([&] { return ::ftruncate(fd_.get(), static_cast<off_t>(size_bytes)); }) != 0)
      return os_error(errno, "truncate", path_);
    return success();
  }
  Status preallocate(std::uint64_t size_bytes) override {
    if (size_bytes == 0) return success();
    KVPACK_TRY(check_range(size_bytes, 0, "preallocate", path_));
    if (retry([&] { return system_calls::preallocate(fd_.get(), static_cast<off_t>(size_bytes), calls_); }) !=
        0)
      return os_error(errno, "preallocate", path_);
    return success();
  }
  void start_write_back() override { system_calls::start_write_back(fd_.get(), calls_); }
  void start_read_ahead(std::uint64_t offset, std::uint64_t length) const override {
    constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<off_t>::max());
    if (offset > kMost || length > kMost - offset) return;
    system_calls::start_read_ahead(fd_.get(), static_cast<off_t>(offset), static_cast<off_t>(length), calls_);
  }
  Status sync() override {
    // Not retried: after EINTR or any other failure nobody knows what has reached the medium.
    if (system_calls::sync_content_to_medium(fd_.get(), calls_) != 0) return os_error(errno, "sync", path_);
    return success();
  }
  Result<bool> try_lock(LockMode mode) override {
    const int operation = (mode == LockMode::kShared ? LOCK_SH : LOCK_EX) | LOCK_NB;
    if (retry([&] { return ::flock(fd_.get(), operation); }) == 0) return true;
    if (errno == EWOULDBLOCK) return false;
    return os_error(errno, "lock", path_);
  }
  Status unlock() override {
    if (retry([&] { return ::flock(fd_.get(), LOCK_UN); }) != 0) return os_error(errno, "unlock", path_);
    return success();
  }

 private:
  Descriptor fd_;
  std::string path_;
  SystemCalls calls_;
};

/// A file just opened, once it has proved to be a regular one.
Result<std::unique_ptr<File>> accept_regular(Descriptor fd, std::string path, SystemCalls calls) {
  KVPACK_TRY_ASSIGN(const auto facts, facts_of_descriptor(fd.get(), path));
  if (facts.kind != FileKind::kRegular) return fail(ErrorCode::kIo, "open " + path + ": not a regular file");
  return std::unique_ptr<File>(std::make_unique<SystemFile>(std::move(fd), std::move(path), calls));
}

// A pipe or device in the place of a file must not make open wait or take a terminal; the kind is checked
// after.
constexpr int kOpenFlags = O_CLOEXEC | O_NONBLOCK | O_NOCTTY;

class SystemDirectory final : public Directory {
 public:
  SystemDirectory(Descriptor fd, std::string path, SystemCalls calls, std::optional<FileIo> io)
      : fd_(std::move(fd)), path_(std::move(path)), calls_(calls), io_(io) {}

  int fd() const noexcept { return fd_.get(); }
  const std::string& path() const override { return path_; }
  Result<FileFacts> facts() const override { return facts_of_descriptor(fd_.get(), path_); }
  Result<FileFacts> facts(std::string_view name) const override {
    KVPACK_TRY(check_file_name(name));
    struct stat s {};
    if (::fstatat(fd_.get(), std::string(name).c_str(), &s, AT_SYMLINK_NOFOLLOW) != 0)
      return error("stat", name);
    return facts_of(s);
  }

  Result<std::unique_ptr<File>> open(std::string_view name, OpenMode mode) override {
    KVPACK_TRY(check_file_name(name));
    Descriptor fd = open_at(name, (mode == OpenMode::kRead ? O_RDONLY : O_RDWR) | O_NOFOLLOW | kOpenFlags);
    if (!fd.ok()) return error("open", name);
    return accept_regular(std::move(fd), join_path(path_, name), calls_);
  }
  Result<std::unique_ptr<File>> create(std::string_view name) override {
    KVPACK_TRY(check_file_name(name));
    Descriptor fd = open_at(name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | kOpenFlags);
    if (!fd.ok()) return error("create", name);
    return std::unique_ptr<File>(std::make_unique<SystemFile>(std::move(fd), join_path(path_, name), calls_));
  }
  Result<std::unique_ptr<File>> create_unnamed() override {
    Descriptor fd(retry([&] { return system_calls::open_unnamed(fd_.get(), kFileMode, calls_); }));
    if (!fd.ok()) {
      if (errno == ENOTSUP) return std::unique_ptr<File>();
      return os_error(errno, "create unnamed file in", path_);
    }
    // Without a way to a name it is of no use.
    if (::access(system_calls::path_of_descriptor(fd.get()).c_str(), F_OK) != 0)
      return std::unique_ptr<File>();
    return std::unique_ptr<File>(
        std::make_unique<SystemFile>(std::move(fd), join_path(path_, "(unnamed file)"), calls_));
  }
  Status link_unnamed(File& file, std::string_view name) override {
    KVPACK_TRY(check_file_name(name));
    const std::string from = system_calls::path_of_descriptor(static_cast<SystemFile&>(file).fd());
    const std::string to(name);
    if (::linkat(AT_FDCWD, from.c_str(), fd_.get(), to.c_str(), AT_SYMLINK_FOLLOW) == 0) return success();
    // The way may have gone since the file was made; then the descriptor alone must do, where the system lets
    // it. For a file whose name has been removed again both ways end like this.
    if (errno == ENOENT &&
        system_calls::link_descriptor(static_cast<SystemFile&>(file).fd(), fd_.get(), to.c_str()) == 0)
      return success();
    return error("link", name);
  }

  Status link(std::string_view name, Directory& to, std::string_view to_name) override {
    KVPACK_TRY(check_file_name(name));
    KVPACK_TRY(check_file_name(to_name));
    auto& target = static_cast<SystemDirectory&>(to);
    if (::linkat(fd_.get(), std::string(name).c_str(), target.fd_.get(), std::string(to_name).c_str(), 0) !=
        0)
      return target.error("link", to_name);
    return success();
  }
  Status rename(std::string_view name, Directory& to, std::string_view to_name) override {
    KVPACK_TRY(check_file_name(name));
    KVPACK_TRY(check_file_name(to_name));
    auto& target = static_cast<SystemDirectory&>(to);
    if (::renameat(fd_.get(), std::string(name).c_str(), target.fd_.get(), std::string(to_name).c_str()) != 0)
      return target.error("rename to", to_name);
    return success();
  }
  Result<bool> rename_exclusive(std::string_view name, Directory& to, std::string_view to_name) override {
    KVPACK_TRY(check_file_name(name));
    KVPACK_TRY(check_file_name(to_name));
    auto& target = static_cast<SystemDirectory&>(to);
    if (system_calls::rename_exclusive(fd_.get(), std::string(name).c_str(), target.fd_.get(),
                                       std::string(to_name).c_str(), calls_) == 0)
      return true;
    if (errno == ENOTSUP) return false;
    return target.error("rename to", to_name);
  }
  Status unlink(std::string_view name) override {
    KVPACK_TRY(check_file_name(name));
    if (::unlinkat(fd_.get(), std::string(name).c_str(), 0) != 0) return error("unlink", name);
    return success();
  }

  Result<std::unique_ptr<Directory>> open_directory(std::string_view name) override {
    KVPACK_TRY(check_file_name(name));
    Descriptor fd = open_at(name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (!fd.ok()) return error("open directory", name);
    return std::unique_ptr<Directory>(
        std::make_unique<SystemDirectory>(std::move(fd), join_path(path_, name), calls_, io_));
  }
  Status make_directory(std::string_view name) override {
    KVPACK_TRY(check_file_name(name));
    if (::mkdirat(fd_.get(), std::string(name).c_str(), kDirectoryMode) != 0)
      return error("make directory", name);
    return success();
  }
  Status remove_directory(std::string_view name) override {
    KVPACK_TRY(check_file_name(name));
    if (::unlinkat(fd_.get(), std::string(name).c_str(), AT_REMOVEDIR) != 0)
      return error("remove directory", name);
    return success();
  }

  Status list(const std::function<bool(std::string_view)>& visit) override {
    // A second descriptor: the position of a listing belongs to the open file, and this one may be shared.
    Descriptor fd = open_at(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (!fd.ok()) return os_error(errno, "list", path_);
    const std::unique_ptr<DIR, int (*)(DIR*)> stream(::fdopendir(fd.get()), &::closedir);
    if (stream == nullptr) return os_error(errno, "list", path_);
    fd.release();
    for (;;) {
      errno = 0;
      const dirent* const entry = ::readdir(stream.get());
      if (entry == nullptr) break;
      const std::string_view name = entry->d_name;
      if (name != "." && name != ".." && !visit(name)) return success();
    }
    if (errno != 0) return os_error(errno, "list", path_);
    return success();
  }
  Status mark_accessed(std::string_view name) override {
    KVPACK_TRY(check_file_name(name));
    const timespec times[2] = {{0, UTIME_NOW}, {0, UTIME_OMIT}};
    if (::utimensat(fd_.get(), std::string(name).c_str(), times, AT_SYMLINK_NOFOLLOW) != 0)
      return error("mark accessed", name);
    return success();
  }
  bool lock() override {
    return retry([&] { return ::flock(fd_.get(), LOCK_EX); }) == 0;
  }
  Result<std::uint64_t> random_bits() override {
    std::array<std::uint8_t, 8> bytes{};
    if (::getentropy(bytes.data(), bytes.size()) != 0) return os_error(errno, "random name in", path_);
    return load_le<std::uint64_t>(bytes, 0);
  }
  Status sync() override {
    if (system_calls::sync_to_medium(fd_.get(), calls_) != 0) return os_error(errno, "sync directory", path_);
    return success();
  }
  std::unique_ptr<FileQueue> make_queue() override {
    if (calls_ != SystemCalls::kAll) return nullptr;
    const FileIo io = io_ ? *io_ : machine_file_io().io;
    if (io == FileIo::kPlain) return nullptr;
    int error_number = 0;
    auto ring = make_io_ring(kRingEntries, error_number);
    return ring == nullptr ? nullptr : make_system_queue(std::move(ring), io == FileIo::kDirect);
  }

 private:
  Descriptor open_at(std::string_view name, int flags) const {
    return Descriptor(
        retry([&] { return ::openat(fd_.get(), std::string(name).c_str(), flags, kFileMode); }));
  }
  Error error(std::string_view operation, std::string_view name) const {
    const int error_number = errno;
    return os_error(error_number, operation, join_path(path_, name));
  }

  Descriptor fd_;
  std::string path_;
  SystemCalls calls_;
  std::optional<FileIo> io_;  ///< Nothing: machine_file_io().
};

/// Writes go through a descriptor of their own, which is open for direct access and lasts as long as they do.
class SystemQueue final : public FileQueue {
 public:
  SystemQueue(std::unique_ptr<IoRing> ring, bool direct) : ring_(std::move(ring)), direct_(direct) {}

  Sizes sizes() const override {
    Sizes sizes;
    sizes.page_bytes = std::max(kAlignment, page_bytes());
    if (!direct_) sizes.least_file_bytes = std::numeric_limits<std::size_t>::max();
    return sizes;
  }

  Result<bool> begin_write(File& file, std::uint64_t offset, ByteSpan data, std::uint64_t tag) override {
    KVPACK_TRY(check_range(offset, data.size(), "write", file.path()));
    Descriptor direct = open_direct(static_cast<SystemFile&>(file).fd());
    if (!direct.ok()) return false;
    const int fd = direct.get();
    const std::uint64_t slot = take_slot({.tag = tag, .path = file.path(), .direct = std::move(direct)});
    const int refused = ring_->begin_write(fd, data.data(), data.size(), offset, slot);
    if (refused == 0) return true;
    (void)leave_slot(slot);
    return os_error(refused, "write", file.path());
  }
  Status begin_sync(File& file, std::uint64_t tag) override {
    return begin_sync(static_cast<SystemFile&>(file).fd(), true,
                      {.tag = tag, .verb = "sync", .path = file.path()});
  }
  Status begin_sync(Directory& directory, std::uint64_t tag) override {
    return begin_sync(static_cast<SystemDirectory&>(directory).fd(), false,
                      {.tag = tag, .verb = "sync directory", .path = directory.path()});
  }
  Result<Done> wait() override {
    IoRing::Done end;
    if (const int failed = ring_->wait(end); failed != 0) return os_error(failed, "wait for", "io_uring");
    const Slot slot = leave_slot(end.tag);
    Done done{.tag = slot.tag};
    if (end.result >= 0) {
      done.bytes = static_cast<std::size_t>(end.result);
    } else {
      const auto error_number = static_cast<int>(-end.result);
      done.error = os_error(error_number, slot.verb, slot.path);
      done.again = may_pass_plainly(error_number);
    }
    return done;
  }

 private:
  struct Slot {
    std::uint64_t tag = 0;
    const char* verb = "write";
    std::string path{};
    Descriptor direct{-1};
  };

  Status begin_sync(int fd, bool content_only, Slot slot) {
    const std::string path = slot.path;
    const char* const verb = slot.verb;
    const std::uint64_t number = take_slot(std::move(slot));
    const int refused = ring_->begin_sync(fd, content_only, number);
    if (refused == 0) return success();
    (void)leave_slot(number);
    return os_error(refused, verb, path);
  }

  static Descriptor open_direct(int fd) {
    const std::string path = system_calls::path_of_descriptor(fd);
    return Descriptor(retry([&] { return system_calls::open_direct(path.c_str()); }));
  }
  /// What says nothing about the file: direct access with this alignment is not to be had, or the call ended
  /// because its thread did.
  static bool may_pass_plainly(int error_number) {
    return error_number == EINVAL || error_number == EOPNOTSUPP || error_number == EINTR ||
           error_number == EAGAIN || error_number == ECANCELED;
  }

  std::uint64_t take_slot(Slot slot) {
    const std::lock_guard lock(mutex_);
    const std::uint64_t number = next_slot_++;
    slots_.emplace(number, std::move(slot));
    return number;
  }
  Slot leave_slot(std::uint64_t number) {
    const std::lock_guard lock(mutex_);
    auto node = slots_.extract(number);
    return node.empty() ? Slot{} : std::move(node.mapped());
  }

  std::unique_ptr<IoRing> ring_;
  bool direct_;
  std::mutex mutex_{};  ///< Who waits is perhaps another thread.
  std::uint64_t next_slot_ = 0;
  std::map<std::uint64_t, Slot> slots_{};
};

int link_flag(Links links) {
  return links == Links::kRefuse ? O_NOFOLLOW : 0;
}

Status check_path(std::string_view path) {
  if (path.empty() || path.find('\0') != std::string_view::npos) return fail(ErrorCode::kIo, "invalid path");
  return success();
}

}  // namespace

SystemCalls wanted_system_calls() noexcept {
  const char* const portable = environment_value("KVPACK_FS_PORTABLE");
  return portable != nullptr && *portable != '\0' ? SystemCalls::kPortable : SystemCalls::kAll;
}

std::unique_ptr<FileQueue> make_system_queue(std::unique_ptr<IoRing> ring, bool direct) {
  return std::make_unique<SystemQueue>(std::move(ring), direct);
}

Result<std::unique_ptr<Directory>> SystemFileSystem::open_directory(std::string_view path, Links links) {
  KVPACK_TRY(check_path(path));
  std::string text(path);
  Descriptor fd(
      retry([&] { return ::open(text.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | link_flag(links)); }));
  if (!fd.ok()) return os_error(errno, "open directory", text);
  return std::unique_ptr<Directory>(
      std::make_unique<SystemDirectory>(std::move(fd), std::move(text), calls_, io_));
}

Result<std::unique_ptr<File>> SystemFileSystem::open_file(std::string_view path, Links links) {
  KVPACK_TRY(check_path(path));
  std::string text(path);
  Descriptor fd(retry([&] { return ::open(text.c_str(), O_RDONLY | kOpenFlags | link_flag(links)); }));
  if (!fd.ok()) return os_error(errno, "open", text);
  return accept_regular(std::move(fd), std::move(text), calls_);
}

namespace {

/// The directory above the last component, and that component. Slashes at the end are ignored.
struct SplitPath {
  std::string_view parent;
  std::string_view name;
};

SplitPath split_path(std::string_view path) {
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  const std::size_t slash = path.rfind('/');
  if (slash == std::string_view::npos) return {".", path};
  return {slash == 0 ? "/" : path.substr(0, slash), path.substr(slash + 1)};
}

Result<Place> place_in(Result<std::unique_ptr<Directory>> directory, std::string_view name) {
  if (!directory.has_value()) return std::move(directory.error());
  return Place{*std::move(directory), std::string(name)};
}

Status check_last_component(std::string_view name, std::string_view path) {
  if (check_file_name(name).has_value()) return success();
  return fail(ErrorCode::kIo, "path does not end in a file name: " + std::string(path));
}

}  // namespace

Result<Place> open_place(FileSystem& fs, std::string_view path) {
  const auto [parent, name] = split_path(path);
  KVPACK_TRY(check_last_component(name, path));
  return place_in(fs.open_directory(parent, Links::kFollow), name);
}

Result<Place> open_or_make_place(FileSystem& fs, std::string_view path) {
  const auto [parent, name] = split_path(path);
  KVPACK_TRY(check_last_component(name, path));
  return place_in(open_or_make_directory(fs, parent), name);
}

Result<std::unique_ptr<Directory>> open_or_make_directory(FileSystem& fs, std::string_view path) {
  auto opened = fs.open_directory(path, Links::kFollow);
  if (opened.has_value() || opened.error().code != ErrorCode::kNotFound) return opened;
  KVPACK_TRY_ASSIGN(const Place place, open_or_make_place(fs, path));
  const Status made = place.directory->make_directory(place.name);
  if (!made.has_value() && made.error().code != ErrorCode::kExpectation) return made.error();
  KVPACK_TRY(place.directory->sync());
  return fs.open_directory(path, Links::kFollow);
}

Error os_error(int error_number, std::string_view operation, std::string_view path) {
  ErrorCode code = ErrorCode::kIo;
  if (error_number == ENOENT) code = ErrorCode::kNotFound;
  if (error_number == EEXIST || error_number == ENOTEMPTY) code = ErrorCode::kExpectation;
  std::string message(operation);
  message.append(" ").append(path).append(": ").append(std::generic_category().message(error_number));
  Error error = fail(code, std::move(message));
  if (error_number == ENOSPC || error_number == EDQUOT) error.context.push_back({"space", "full"});
  return error;
}

Status check_file_name(std::string_view name) {
  constexpr std::string_view kForbidden("/\0", 2);
  if (name.empty() || name.size() > 255 || name == "." || name == ".." ||
      name.find_first_of(kForbidden) != std::string_view::npos)
    return fail(ErrorCode::kIo, "invalid file name");
  return success();
}

std::string join_path(std::string_view directory, std::string_view name) {
  std::string out(directory);
  if (!out.ends_with('/')) out += '/';
  out += name;
  return out;
}

Status read_exactly(const File& file, std::uint64_t offset, MutableByteSpan out) {
  while (!out.empty()) {
    KVPACK_TRY_ASSIGN(const std::size_t n, file.read_some(offset, out));
    if (n == 0) return fail(ErrorCode::kTruncated, "read past the end of " + file.path());
    offset += n;
    out = out.subspan(n);
  }
  return success();
}

Status write_all(File& file, std::uint64_t offset, ByteSpan data) {
  while (!data.empty()) {
    KVPACK_TRY_ASSIGN(const std::size_t n, file.write_some(offset, data));
    if (n == 0) return os_error(EIO, "write", file.path());
    offset += n;
    data = data.subspan(n);
  }
  return success();
}

Status rename_no_replace(Directory& from, std::string_view name, Directory& to, std::string_view to_name) {
  KVPACK_TRY_ASSIGN(const bool renamed, from.rename_exclusive(name, to, to_name));
  if (renamed) return success();
  KVPACK_TRY_ASSIGN(const FileFacts facts, from.facts(name));
  if (facts.kind == FileKind::kDirectory) {
    // Directories cannot be linked. A plain rename replaces at most an empty directory.
    const auto target = to.facts(to_name);
    if (target.has_value()) return os_error(EEXIST, "rename to", join_path(to.path(), to_name));
    if (target.error().code != ErrorCode::kNotFound) return target.error();
    return from.rename(name, to, to_name);
  }
  KVPACK_TRY(from.link(name, to, to_name));
  auto unlinked = from.unlink(name);
  // The first error counts; the new name goes again so that a failed rename leaves what there was.
  if (!unlinked.has_value()) (void)to.unlink(to_name);
  return unlinked;
}

Result<Bytes> read_file_bounded(FileSystem& fs, std::string_view path, std::uint64_t max_bytes, Links links) {
  KVPACK_TRY_ASSIGN(const auto file, fs.open_file(path, links));
  KVPACK_TRY_ASSIGN(const FileFacts facts, file->facts());
  if (facts.size_bytes > max_bytes)
    return fail(ErrorCode::kLimit,
                "file is longer than " + std::to_string(max_bytes) + " bytes: " + std::string(path));
  Bytes bytes(static_cast<std::size_t>(facts.size_bytes));
  const auto read = read_exactly(*file, 0, bytes);
  std::uint8_t probe = 0;
  std::size_t more = 0;
  if (read.has_value()) {
    KVPACK_TRY_ASSIGN(more, file->read_some(facts.size_bytes, {&probe, 1}));
  }
  KVPACK_TRY_ASSIGN(const FileFacts after, file->facts());
  const bool same = after.size_bytes == facts.size_bytes &&
                    after.modification_time_ns == facts.modification_time_ns &&
                    after.change_time_ns == facts.change_time_ns;
  if (more != 0 || !same || (!read.has_value() && read.error().code == ErrorCode::kTruncated))
    return fail(ErrorCode::kIo, "file changed while it was read: " + std::string(path));
  if (!read.has_value()) return read.error();
  return bytes;
}

Result<SecretKey> read_key_file(FileSystem& fs, std::string_view path) {
  const auto refuse = [] {
    return fail(ErrorCode::kState, "store key must be private, single-link, and exactly 32 bytes");
  };
  KVPACK_TRY_ASSIGN(const Place place, open_place(fs, path));
  KVPACK_TRY_ASSIGN(const FileFacts named, place.directory->facts(place.name));
  if (named.kind != FileKind::kRegular) return refuse();
  KVPACK_TRY_ASSIGN(const auto file, place.directory->open(place.name, OpenMode::kRead));
  KVPACK_TRY_ASSIGN(const FileFacts facts, file->facts());
  if (!facts.is_private() || facts.links != 1 || facts.size_bytes != SecretKey::kBytes) return refuse();
  std::array<std::uint8_t, SecretKey::kBytes> bytes{};
  const WipeOnExit wipe(bytes);
  KVPACK_TRY(read_exactly(*file, 0, bytes));
  if (all_zero(bytes)) return fail(ErrorCode::kState, "store key is all zero");
  return SecretKey(bytes);
}

Result<FileSource> FileSource::open(std::unique_ptr<File> file) {
  KVPACK_TRY_ASSIGN(const FileFacts facts, file->facts());
  return FileSource(std::move(file), facts.size_bytes);
}

Status FileSource::read_at(std::uint64_t offset, MutableByteSpan out) {
  if (offset > size_bytes_ || out.size() > size_bytes_ - offset)
    return fail(ErrorCode::kTruncated, "read past the end of " + file_->path());
  return read_exactly(*file_, offset, out);
}

Status FileAppend::append(ByteSpan data) {
  const auto end = checked_add<std::uint64_t>(offset_, data.size());
  if (!end) return os_error(EFBIG, "write", file_->path());
  KVPACK_TRY(write_all(*file_, offset_, data));
  offset_ = *end;
  return success();
}

}  // namespace kvpack
