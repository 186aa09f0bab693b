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

/// A way to write files and to make them durable. Which is the fastest is the disk's matter.
struct BareWay {
  const char* name;
  bool direct = false;  ///< Around the page cache, where there is such a way; else through it, each file sent
                        ///< on its way when complete.
  unsigned writers = 1;  ///< Threads that write, a file each.
  unsigned syncers = 1;  ///< Threads that sync, a file each, when all files are written.
};

/// Those that a program has: through the page cache with one sync after the other; through it with the syncs
/// of many files under way at once, written by one thread or by two; around it, several files at a time.
inline constexpr BareWay kBareWays[]{{"through the page cache, synced one by one", false, 1, 1},
                                     {"through the page cache, synced together", false, 1, 16},
                                     {"through the page cache by two threads, synced together", false, 2, 16},
                                     {"around the page cache if it can be, six files at a time", true, 6, 6}};

/// Writes and reads whole files. Its buffers are made once, before anything is measured.
class BareFiles {
 public:
  /// @param readers  threads that read
  explicit BareFiles(unsigned readers);
  BareFiles(const BareFiles&) = delete;
  BareFiles& operator=(const BareFiles&) = delete;
  ~BareFiles();

  /// Writes files `name-0`, `name-1`, ... of these sizes into a directory, with the same bytes, syncs all of
  /// them and then the directory. Nothing is hashed. Where there are no direct writes, what asks for them
  /// goes through the page cache. @error kIo
  Status write(const std::string& folder, const std::string& name, const std::vector<std::size_t>& sizes,
               const BareWay& way) const;
  /// Reads whole files. @error kIo
  Status read(const std::vector<std::string>& files);

 private:
  struct Buffers;
  std::unique_ptr<Buffers> buffers_;
};

}  // namespace kvpack::cli::bench
