/// SHA-256 of large files, remembered: a model is hashed once, and again when its file has changed. What is
/// remembered lies in a private file of ours, since whoever writes it decides what a model is.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kvpack/base/result.h"

namespace kvpack::llama_adapter {

using Digest = std::array<std::uint8_t, 32>;

/// By what a file is known to be the same as before.
struct FileStamp {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::uint64_t size_bytes = 0;
  std::int64_t modified_ns = 0;
  std::int64_t changed_ns = 0;

  friend bool operator==(const FileStamp&, const FileStamp&) = default;
};

/// Follows links. @error kNotFound, kIo; kIo `not a regular file: {path}`
Result<FileStamp> stamp_of(const std::string& path);

/// A file that is open: stamp and content are of one and the same, whatever its path comes to mean meanwhile.
class StampedFile {
 public:
  /// After each piece: how many bytes are read. What fails ends it.
  using Progress = std::function<Status(std::uint64_t done_bytes, std::uint64_t size_bytes)>;

  /// Follows links. @error as stamp_of
  static Result<StampedFile> open(const std::string& path);
  StampedFile(StampedFile&& other) noexcept;
  StampedFile(const StampedFile&) = delete;
  StampedFile& operator=(const StampedFile&) = delete;
  ~StampedFile();

  /// As it is now. @error kIo
  Result<FileStamp> stamp() const;
  /// SHA-256 of all of it. @error kIo, also where it is shorter than its stamp says; as `progress`
  Result<Digest> sha256(const Progress& progress) const;

 private:
  StampedFile(int number, std::string path) : number_(number), path_(std::move(path)) {}
  int number_;
  std::string path_;
};

/// Nanoseconds since 1970 of the clock by which files are stamped.
std::int64_t file_clock_ns();

/// Digests by stamp. For one thread at a time.
class FileDigests {
 public:
  /// A file that was changed within this time before it was hashed may have been changed again within the
  /// same tick of its clock, so that its stamp says nothing: two seconds, as coarse as file systems are.
  static constexpr std::int64_t kSettledNs = 2'000'000'000;
  static constexpr std::size_t kMaxEntries = 256;

  /// What a file holds; nothing when there is none. One that is not private to this user, or not in every
  /// byte as `store` writes it, counts for nothing: `problem` then says why.
  static FileDigests load(const std::string& path, std::string& problem);

  const Digest* find(const FileStamp& stamp) const noexcept;
  /// @param hashed_at_ns  file_clock_ns before the file was read
  /// @return whether it is worth storing
  bool add(const FileStamp& stamp, const Digest& digest, std::int64_t hashed_at_ns);
  /// In one step, with mode 0600. @error kIo
  Status store(const std::string& path) const;

 private:
  struct Entry {
    FileStamp stamp;
    Digest digest{};
  };
  static Result<std::vector<Entry>> parse(std::string_view text);
  std::string text() const;

  std::vector<Entry> entries_{};  ///< The latest last.
};

}  // namespace kvpack::llama_adapter
