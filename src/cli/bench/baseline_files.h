/// Files written, synced and read by bare calls: what the goals about disks are held against.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kvpack/base/bytes.h"
#include "kvpack/base/result.h"

namespace kvpack::cli::bench {

/// A directory, open for bare calls.
class BareFolder {
 public:
  /// @error kIo
  static Result<BareFolder> open(const std::string& path);
  BareFolder(BareFolder&& other) noexcept;
  BareFolder& operator=(BareFolder&&) = delete;
  ~BareFolder();

  /// What a careful program does for one file: a temporary name, all bytes, fsync, rename, fsync of the
  /// directory. @error kIo
  Status publish(const std::string& name, ByteSpan bytes);
  /// One pwrite under the name itself, fsync, fsync of the directory. @error kIo
  Status write_durably(const std::string& name, ByteSpan bytes);

 private:
  BareFolder(int descriptor, std::string path) : descriptor_(descriptor), path_(std::move(path)) {}
  Status fill(const std::string& name, ByteSpan bytes);

  int descriptor_;
  std::string path_;
};

/// How many bytes are written to files at once. Which is faster is the disk's matter.
enum class BareWrites : std::uint8_t {
  kCached,  ///< Through the page cache, each file sent on its way when it is complete.
  kDirect,  ///< Around the page cache, several files at a time.
};

/// Writes files `name-0`, `name-1`, ... of these sizes into a directory, with the same bytes, syncs all of
/// them together and then the directory. Nothing is hashed. @error kIo; also where there are no direct writes
Status write_bare_files(const std::string& folder, const std::string& name,
                        const std::vector<std::size_t>& sizes, BareWrites way);

/// Reads whole files on `threads` threads into buffers that are used again. @error kIo
Status read_bare_files(const std::vector<std::string>& files, unsigned threads);

}  // namespace kvpack::cli::bench
