/// The file system as a seam: every operation passes through here, so that tests can record it, make it fail
/// and simulate a power cut. docs/architecture.md §Files.
///
/// A path is text that a person gave; it is opened once. Everything after that is named by one component
/// relative to an open directory, and a symbolic link in that place is never followed.
///
/// Errors of all operations: kNotFound nothing has the name; kExpectation the name is taken; kIo anything
/// else, with `space`=`full` in the context when the volume or the user's quota is full. Messages are
/// `{operation} {path}: {system text}`.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "kvpack/base/io.h"
#include "kvpack/base/secret.h"

namespace kvpack {

enum class FileKind : std::uint8_t { kRegular, kDirectory, kSymbolicLink, kOther };

/// What the file system says about one file. Times are nanoseconds since 1970.
struct FileFacts {
  FileKind kind = FileKind::kOther;
  std::uint64_t size_bytes = 0;
  std::uint64_t links = 0;        ///< Names of the file; 0 once the last one is removed.
  std::uint32_t permissions = 0;  ///< The low twelve mode bits.
  std::uint32_t owner = 0;
  bool ours = false;  ///< The owner is the effective user of this process.
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::int64_t access_time_ns = 0;
  std::int64_t modification_time_ns = 0;
  std::int64_t change_time_ns = 0;

  /// No permission bit for group or others.
  bool is_private() const noexcept { return (permissions & 077) == 0; }
  bool is_same_file(const FileFacts& other) const noexcept {
    return device == other.device && inode == other.inode;
  }
};

enum class LockMode : std::uint8_t { kShared, kExclusive };
enum class OpenMode : std::uint8_t { kRead, kReadWrite };
/// Whether the last component of a path may be a symbolic link.
enum class Links : std::uint8_t { kFollow, kRefuse };

/// An open regular file. Reads may come from several threads at once; everything else from one at a time.
class File {
 public:
  virtual ~File() = default;
  /// For messages only: the path by which the file was opened.
  virtual const std::string& path() const = 0;
  virtual Result<FileFacts> facts() const = 0;

  /// Reads up to out.size() bytes. @return how many; 0 only at the end of the file or for an empty `out`
  virtual Result<std::size_t> read_some(std::uint64_t offset, MutableByteSpan out) const = 0;
  /// Writes up to data.size() bytes. @return how many; 0 only for empty `data`
  virtual Result<std::size_t> write_some(std::uint64_t offset, ByteSpan data) = 0;

  virtual Status truncate(std::uint64_t size_bytes) = 0;
  /// Reserves room for the first `size_bytes` without changing the length. Does nothing where the file system
  /// cannot. @error kIo
  virtual Status preallocate(std::uint64_t size_bytes) = 0;
  /// Asks for what has been written to be brought to the medium soon, so that a later sync has less to do.
  /// Does not wait, and promises nothing.
  virtual void start_write_back() {}
  /// Asks for a range to be brought into memory soon, so that reading it waits less. Does not wait, and
  /// promises nothing.
  virtual void start_read_ahead(std::uint64_t /*offset*/, std::uint64_t /*length*/) const {}
  /// Content and length are on the medium after success. After a failure they are undefined for good: another
  /// call proves nothing. Says nothing about the file's name.
  virtual Status sync() = 0;

  /// Takes the advisory lock of the whole file, or changes its mode, without waiting. It dies with this
  /// handle.
  /// @return false when another handle, of this process or not, holds it in the way
  virtual Result<bool> try_lock(LockMode mode) = 0;
  virtual Status unlock() = 0;
};

class Directory;

/// Operations on open files that are under way while the caller goes on, and whose end is waited for later.
/// They are done in any order: whoever needs one after another waits in between. A file that is being written
/// or synced is not closed, read or written otherwise meanwhile. Operations are begun by one thread at a
/// time, and waited for by one thread at a time, which may be another. base/file_writer.h is the one that
/// uses it.
class FileQueue {
 public:
  /// Writes begin and end at multiples of this, in the file and in memory.
  static constexpr std::size_t kAlignment = 4'096;

  /// What pays here.
  struct Sizes {
    std::size_t writes = 8;                               ///< Under way at once.
    std::size_t write_bytes = std::size_t{1} << 20;       ///< Most of one write: a multiple of kAlignment.
    std::size_t syncs = 16;                               ///< Under way at once.
    std::size_t least_file_bytes = std::size_t{1} << 19;  ///< Shorter files are better written without it.
    /// What the system keeps of a file in memory comes in pieces of this: a multiple of kAlignment. A piece
    /// is written with the queue or without it, since a write past that memory makes it stale.
    std::size_t page_bytes = kAlignment;
  };
  /// The end of one operation.
  struct Done {
    std::uint64_t tag = 0;
    std::size_t bytes = 0;         ///< Written, perhaps fewer than wanted.
    std::optional<Error> error{};  ///< kIo
    bool again = false;            ///< The error of a write that need not fail without the queue.
  };

  /// Does not wait: memory of a write whose end wait() has not told may be read for longer than the queue
  /// lasts, and is not to be freed.
  virtual ~FileQueue() = default;
  virtual Sizes sizes() const { return {}; }

  /// @param data  stays as it is until the operation has ended
  /// @return false, and nothing has begun, when this file is not to be written in this way. @error kIo
  /// nothing has begun, as when it throws for want of memory
  virtual Result<bool> begin_write(File& file, std::uint64_t offset, ByteSpan data, std::uint64_t tag) = 0;
  /// As File::sync and Directory::sync. @error kIo nothing has begun, as when it throws for want of memory
  virtual Status begin_sync(File& file, std::uint64_t tag) = 0;
  virtual Status begin_sync(Directory& directory, std::uint64_t tag) = 0;

  /// Waits until one operation has ended. @pre one is under way
  /// @error kIo nothing will be known any more of what is under way
  virtual Result<Done> wait() = 0;
};

/// An open directory. Usable from several threads at once. `name` is always one component.
class Directory {
 public:
  virtual ~Directory() = default;
  /// The path by which the directory was opened. For messages, and for libraries that open files themselves.
  virtual const std::string& path() const = 0;
  virtual Result<FileFacts> facts() const = 0;
  virtual Result<FileFacts> facts(std::string_view name) const = 0;

  /// Opens a regular file. @error kIo also when it is anything else
  virtual Result<std::unique_ptr<File>> open(std::string_view name, OpenMode mode) = 0;
  /// Creates a file that did not exist, with mode 0600, for reading and writing. @error kExpectation
  virtual Result<std::unique_ptr<File>> create(std::string_view name) = 0;
  /// Creates a file without a name, mode 0600, which vanishes unless it is linked.
  /// @return null where files without a name, or giving them one, are not supported
  virtual Result<std::unique_ptr<File>> create_unnamed() = 0;
  /// Gives a file of create_unnamed, of any directory of this file system, its first name. Never replaces.
  /// @error kExpectation
  virtual Status link_unnamed(File& file, std::string_view name) = 0;

  /// A second name for a file. Never replaces. `to` is of the same file system object. @error kExpectation
  virtual Status link(std::string_view name, Directory& to, std::string_view to_name) = 0;
  /// Renames, replacing what `to_name` names.
  virtual Status rename(std::string_view name, Directory& to, std::string_view to_name) = 0;
  /// Renames unless `to_name` is taken, in one step. @return false, and nothing done, where that is not
  /// supported. @error kExpectation
  virtual Result<bool> rename_exclusive(std::string_view name, Directory& to, std::string_view to_name) = 0;
  virtual Status unlink(std::string_view name) = 0;

  virtual Result<std::unique_ptr<Directory>> open_directory(std::string_view name) = 0;
  /// Creates a directory with mode 0700. @error kExpectation
  virtual Status make_directory(std::string_view name) = 0;
  /// Removes an empty directory.
  virtual Status remove_directory(std::string_view name) = 0;

  /// Calls `visit` with each name in no order, without `.` and `..`, until it returns false. Whether a name
  /// that is created or removed meanwhile is among them is open.
  virtual Status list(const std::function<bool(std::string_view)>& visit) = 0;
  /// Sets the access time of `name` to now and leaves its other times alone.
  virtual Status mark_accessed(std::string_view name) = 0;
  /// Takes the advisory lock of the directory, waiting for another handle, of this process or not, to let go
  /// of it. It dies with this handle. @return false where it cannot be had
  virtual bool lock() = 0;
  /// 64 random bits for the name of a temporary file.
  virtual Result<std::uint64_t> random_bits() = 0;
  /// The names in this directory are on the medium after success; not its own name, not the files' content.
  virtual Status sync() = 0;

  /// A queue for files and directories of the same file system object.
  /// @return null where there is none, or none is wanted
  virtual std::unique_ptr<FileQueue> make_queue() { return nullptr; }
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;
  /// Directories above the last component are always followed through links.
  virtual Result<std::unique_ptr<Directory>> open_directory(std::string_view path, Links links) = 0;
  /// Opens a regular file for reading.
  virtual Result<std::unique_ptr<File>> open_file(std::string_view path, Links links) = 0;
};

/// Which of the operating system's calls may be used. docs/portability.md §Files
enum class SystemCalls : std::uint8_t {
  kAll,
  /// Those that every system of POSIX has: no files without a name, no rename that refuses to replace, no
  /// preallocation and no hint. What stands in for them is what other systems rest on; here it is for tests.
  kPortable,
};

/// kPortable when the environment variable KVPACK_FS_PORTABLE is set and not empty. It is not read by a
/// program that runs with more rights than who started it.
SystemCalls wanted_system_calls() noexcept;

/// How the files of the operating system are written.
enum class FileIo : std::uint8_t {
  kPlain,   ///< One system call after the other.
  kCached,  ///< Into the page cache, and to the medium by io_uring: many syncs at once.
  kDirect,  ///< All of it by io_uring, long files past the page cache.
};

/// What is used, and why, for people to read.
struct FileIoChoice {
  FileIo io = FileIo::kPlain;
  std::string reason{};
};

/// How this process writes files, chosen at first use: cached, unless the environment variable KVPACK_IO
/// says `direct` or `plain`. Where the library was built without liburing, or the kernel forbids io_uring, as
/// in many containers, everything is plain. The variable is not read by a program with more rights than who
/// started it. docs/operations.md §Writing files
const FileIoChoice& machine_file_io();

/// The operating system's. Immutable: usable from any thread, and one serves all.
class SystemFileSystem final : public FileSystem {
 public:
  /// @param io  nothing: machine_file_io(). Without all calls it is always plain
  explicit SystemFileSystem(SystemCalls calls = wanted_system_calls(),
                            std::optional<FileIo> io = std::nullopt) noexcept
      : calls_(calls), io_(io) {}

  Result<std::unique_ptr<Directory>> open_directory(std::string_view path, Links links) override;
  Result<std::unique_ptr<File>> open_file(std::string_view path, Links links) override;

 private:
  SystemCalls calls_;
  std::optional<FileIo> io_{};
};

/// A place that a person's path names: the directory, open, and one component in it, which need not exist.
struct Place {
  std::unique_ptr<Directory> directory;
  std::string name;
};

/// Opens the directory above the last component of `path`. Slashes at the end are ignored.
/// @error kIo also when the last component is missing, `.` or `..`
Result<Place> open_place(FileSystem& fs, std::string_view path);

/// Opens a directory, and makes it and those above it where they are missing, each with mode 0700 and its
/// name on the medium.
Result<std::unique_ptr<Directory>> open_or_make_directory(FileSystem& fs, std::string_view path);
/// As open_place, and makes missing directories. @error as open_place
Result<Place> open_or_make_place(FileSystem& fs, std::string_view path);

/// The error of a failed system call, for implementations of this seam.
Error os_error(int error_number, std::string_view operation, std::string_view path);

/// A single component: not empty, not `.` or `..`, without `/` and NUL, at most 255 bytes.
/// @error kIo `invalid file name`
Status check_file_name(std::string_view name);

/// `directory/name`, for messages.
std::string join_path(std::string_view directory, std::string_view name);

/// Fills all of `out`. @error kTruncated the file ends early
Status read_exactly(const File& file, std::uint64_t offset, MutableByteSpan out);
Status write_all(File& file, std::uint64_t offset, ByteSpan data);

/// Renames a file or directory and never replaces anything, except that where the file system cannot promise
/// it an empty directory may be replaced by a directory. Both directories are of the same file system object.
/// @error kExpectation `to_name` is taken; nothing changed
Status rename_no_replace(Directory& from, std::string_view name, Directory& to, std::string_view to_name);

/// The whole of a regular file.
/// @error kLimit it is longer than `max_bytes`; kIo its length or its times changed meanwhile
Result<Bytes> read_file_bounded(FileSystem& fs, std::string_view path, std::uint64_t max_bytes,
                                Links links = Links::kFollow);

/// A key file: exactly 32 bytes, regular, one link, no permission for group or others, not a symbolic link,
/// not all zero. docs/format/keys.md §Key files. The buffer in between is wiped.
/// @error kNotFound kIo it cannot be opened or read
/// @error kState `store key must be private, single-link, and exactly 32 bytes`, `store key is all zero`
Result<SecretKey> read_key_file(FileSystem& fs, std::string_view path);

/// A file as a byte source. Its length is that at opening.
class FileSource final : public ReadAt {
 public:
  static Result<FileSource> open(std::unique_ptr<File> file);

  std::uint64_t size_bytes() const override { return size_bytes_; }
  Status read_at(std::uint64_t offset, MutableByteSpan out) override;

 private:
  FileSource(std::unique_ptr<File> file, std::uint64_t size_bytes)
      : file_(std::move(file)), size_bytes_(size_bytes) {}
  std::unique_ptr<File> file_;
  std::uint64_t size_bytes_;
};

/// Appends to a file that must outlive it, from an offset on.
class FileAppend final : public Append {
 public:
  explicit FileAppend(File& file, std::uint64_t offset = 0) noexcept : file_(&file), offset_(offset) {}

  Status append(ByteSpan data) override;
  /// Bytes from the start of the file to the end of what was appended.
  std::uint64_t offset() const noexcept { return offset_; }

 private:
  File* file_;
  std::uint64_t offset_;
};

}  // namespace kvpack
