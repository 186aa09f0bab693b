/// Files that are written whole and made durable, many at a time: several writes and syncs are under way
/// while the caller makes the next file. docs/operations.md §Writing files.
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "kvpack/base/fs.h"

namespace kvpack {

/// Writes and syncs files of one file system. Each file's way to the medium is begun as soon as it is
/// written, and files are synced many at once, through the queue of the file system where it has one
/// (Directory::make_queue), else by threads. A queue that takes writes as well gets long files: they are
/// copied to aligned memory of the writer's own, at most writes x write_bytes of it (8 MiB), and go to the
/// medium while the caller goes on. All of these leave the same bytes. Usable from several threads at once.
class FileWriter {
 public:
  /// @param directory  any one of the file system; must outlive the writer
  explicit FileWriter(Directory& directory);
  /// Through this queue. @param queue  null: one call after the other
  explicit FileWriter(std::unique_ptr<FileQueue> queue);
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;
  /// Waits for what is under way. @pre every file that was handed over has been synced or forgotten
  ~FileWriter();

  /// Fills an empty file: reserves room, then writes all of `pieces`, one behind the other. May return before
  /// they are in the file: until sync() or forget() nobody else uses it, and one of the two is called before
  /// it is closed.
  /// @param pieces  valid during the call only
  /// @error kIo now, or from sync() later
  Status write(File& file, std::span<const ByteSpan> pieces);
  Status write(File& file, ByteSpan bytes) { return write(file, std::span(&bytes, 1)); }

  /// Waits until each of `files` has what was written to it, then syncs them together, whoever has written
  /// them. Call once per file: after a failure nothing is known about the content of any of them.
  /// @param threads  how many may sync where there is no queue, the caller's among them
  /// @error kIo of the first file that has one; what comes behind it may be synced or not
  Status sync(std::span<File* const> files, unsigned threads = 1);
  /// Syncs directories together. @error kIo of the first that has one
  Status sync(std::span<Directory* const> directories, unsigned threads = 1);

  /// Waits for what is being written to a file that is given up.
  void forget(const File& file) noexcept;

  /// Whether a queue is in use, as far as that has been tried.
  bool has_queue() const;

 private:
  struct Block;
  /// A file that something was written to through the queue.
  struct Target {
    std::size_t under_way = 0;
    std::optional<Error> error{};  ///< Of the first write that failed.
  };
  struct Sync {
    bool ended = false;
    Status status = success();
  };
  using Lock = std::unique_lock<std::mutex>;

  bool uses_queue();
  void take_queue(std::unique_ptr<FileQueue> queue);
  Status write_queued(Lock& lock, File& file, std::span<const ByteSpan> pieces, std::uint64_t total);
  Result<bool> begin_block(Lock& lock, File& file, std::span<const ByteSpan> pieces, std::uint64_t offset,
                           std::size_t length);
  Block* take_block(Lock& lock);
  void wait_for_one(Lock& lock);
  void end_one(FileQueue::Done done);
  void end_write(Block& block, FileQueue::Done& done);
  void give_up(const Error& error);
  std::optional<Error> wait_for(Lock& lock, const File& file);
  template <class Object>
  Status sync_together(Lock& lock, std::span<Object* const> objects, unsigned threads);
  template <class Object>
  Status sync_queued(Lock& lock, std::span<Object* const> objects);

  enum class State : std::uint8_t { kNotMade, kInUse, kNotUsed };

  Directory* directory_;
  mutable std::mutex mutex_{};
  std::condition_variable changed_{};
  /// Before the queue, which may look at them until its end; those that are read even then are not freed.
  std::vector<std::unique_ptr<Block>> blocks_{};
  std::unique_ptr<FileQueue> queue_{};
  FileQueue::Sizes sizes_{};
  State state_ = State::kNotMade;
  bool writes_queued_ = true;  ///< No file has been refused by the queue.
  bool waiting_ = false;       ///< A thread waits for the queue, with the mutex free.
  std::size_t under_way_ = 0;  ///< Operations of the queue.
  std::unordered_map<const File*, Target> targets_{};
  std::unordered_map<std::uint64_t, Sync> syncs_{};  ///< By tag.
  std::uint64_t next_sync_ = 0;
};

/// Files on their way to the medium together: written one after the other, synced at once, then closed. What
/// has not been synced is waited for at the end, and given up.
class FileBatch {
 public:
  /// @param writer  must outlive the batch
  explicit FileBatch(FileWriter& writer) noexcept : writer_(&writer) {}
  FileBatch(const FileBatch&) = delete;
  FileBatch& operator=(const FileBatch&) = delete;
  ~FileBatch();

  /// As FileWriter::write, for a file that the batch keeps open until sync().
  Status write(std::unique_ptr<File> file, std::span<const ByteSpan> pieces);
  Status write(std::unique_ptr<File> file, ByteSpan bytes) {
    return write(std::move(file), std::span(&bytes, 1));
  }
  /// As FileWriter::sync, for all files since the last call.
  Status sync(unsigned threads = 1);
  std::size_t size() const noexcept { return files_.size(); }

 private:
  FileWriter* writer_;
  std::vector<std::unique_ptr<File>> files_{};
};

}  // namespace kvpack
