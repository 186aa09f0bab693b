#include "kvpack/base/file_writer.h"

#include <atomic>
#include <cerrno>
#include <exception>
#include <new>
#include <system_error>
#include <thread>

namespace kvpack {
namespace {

/// Tags below are numbers of blocks.
constexpr std::uint64_t kFirstSyncTag = std::uint64_t{1} << 32;

struct FreeAligned {
  void operator()(std::uint8_t* memory) const noexcept {
    ::operator delete[](memory, std::align_val_t{FileQueue::kAlignment});
  }
};
using AlignedMemory = std::unique_ptr<std::uint8_t[], FreeAligned>;

AlignedMemory aligned_memory(std::size_t bytes) {
  return AlignedMemory(
      static_cast<std::uint8_t*>(::operator new[](bytes, std::align_val_t{FileQueue::kAlignment})));
}

/// Calls use(part) for the parts of `pieces` that hold `length` bytes from `offset` on, until it fails.
template <class Use>
Status for_each_part(std::span<const ByteSpan> pieces, std::uint64_t offset, std::uint64_t length,
                     Use&& use) {
  for (const ByteSpan piece : pieces) {
    if (length == 0) break;
    if (offset >= piece.size()) {
      offset -= piece.size();
      continue;
    }
    ByteSpan part = piece.subspan(static_cast<std::size_t>(offset));
    part = part.first(static_cast<std::size_t>(std::min<std::uint64_t>(part.size(), length)));
    KVPACK_TRY(use(part));
    offset = 0;
    length -= part.size();
  }
  return success();
}

/// The pieces from `offset` on into the same place of the file.
Status write_rest(File& file, std::span<const ByteSpan> pieces, std::uint64_t offset, std::uint64_t total) {
  std::uint64_t at = offset;
  Status written = for_each_part(pieces, offset, total - offset, [&](ByteSpan part) {
    return write_all(file, std::exchange(at, at + part.size()), part);
  });
  if (written.has_value()) file.start_write_back();
  return written;
}

/// One call after the other, on several threads. The first error in order is that of the first object that
/// has one, since objects are begun in order and all that have been begun are ended.
template <class Object>
Status sync_on_threads(std::span<Object* const> objects, unsigned threads) {
  std::vector<Status> ends(objects.size(), success());
  std::atomic<std::size_t> next{0};
  std::atomic<bool> failed{false};
  std::exception_ptr thrown;
  std::mutex mutex;
  const auto run = [&] {
    while (!failed) {
      const std::size_t i = next++;
      if (i >= objects.size()) return;
      try {
        ends[i] = objects[i]->sync();
      } catch (...) {
        const std::lock_guard lock(mutex);
        thrown = std::current_exception();
        failed = true;
        return;
      }
      if (!ends[i].has_value()) failed = true;
    }
  };
  {
    std::vector<std::jthread> others;
    const std::size_t wanted = std::min<std::size_t>(threads, objects.size()) - 1;
    others.reserve(wanted);
    try {
      while (others.size() < wanted) others.emplace_back(run);
    } catch (const std::system_error&) {
      // The system gives no more threads: fewer do the same work.
    }
    run();
  }
  if (thrown) std::rethrow_exception(thrown);
  for (Status& end : ends) KVPACK_TRY(std::move(end));
  return success();
}

}  // namespace

/// Staging memory, and the write that it is used for.
struct FileWriter::Block {
  explicit Block(std::size_t bytes) : memory(aligned_memory(bytes)) {}
  /// Gives this block, and its memory, to the process for good.
  void abandon() noexcept {
    next_abandoned = abandoned.load();
    while (!abandoned.compare_exchange_weak(next_abandoned, this)) {
    }
  }

  /// Reachable, so that tools which look for leaks see that nothing was forgotten.
  static inline std::atomic<Block*> abandoned{nullptr};
  Block* next_abandoned = nullptr;
  AlignedMemory memory;
  bool taken = false;  ///< Being filled, or given to a write whose end has not been told.
  File* file = nullptr;
  std::uint64_t offset = 0;
  std::size_t length = 0;
  MutableByteSpan bytes() const noexcept { return {memory.get(), length}; }
};

FileWriter::FileWriter(Directory& directory) : directory_(&directory) {}

FileWriter::FileWriter(std::unique_ptr<FileQueue> queue) : directory_(nullptr) {
  take_queue(std::move(queue));
}

FileWriter::~FileWriter() {
  Lock lock(mutex_);
  while (under_way_ != 0) wait_for_one(lock);
  queue_.reset();
  // Writes of a queue that was given up may go on in the system for as long as they like, and read from here.
  for (std::unique_ptr<Block>& block : blocks_)
    if (block->taken) block.release()->abandon();
}

bool FileWriter::has_queue() const {
  const std::lock_guard lock(mutex_);
  return state_ == State::kInUse;
}

/// Makes the queue the first time.
bool FileWriter::uses_queue() {
  if (state_ == State::kNotMade) take_queue(directory_->make_queue());
  return state_ == State::kInUse;
}

void FileWriter::take_queue(std::unique_ptr<FileQueue> queue) {
  queue_ = std::move(queue);
  if (queue_ != nullptr) sizes_ = queue_->sizes();
  state_ = queue_ != nullptr ? State::kInUse : State::kNotUsed;
}

Status FileWriter::write(File& file, std::span<const ByteSpan> pieces) {
  const std::uint64_t total = sum_of_sizes(pieces);
  KVPACK_TRY(file.preallocate(total));
  {
    Lock lock(mutex_);
    if (uses_queue() && writes_queued_ && total >= sizes_.least_file_bytes)
      return write_queued(lock, file, pieces, total);
  }
  return write_rest(file, pieces, 0, total);
}

Status FileWriter::write_queued(Lock& lock, File& file, std::span<const ByteSpan> pieces,
                                std::uint64_t total) {
  const std::uint64_t aligned = total - total % sizes_.page_bytes;
  std::uint64_t at = 0;
  while (at < aligned) {
    const auto length = static_cast<std::size_t>(std::min<std::uint64_t>(sizes_.write_bytes, aligned - at));
    KVPACK_TRY_ASSIGN(const bool begun, begin_block(lock, file, pieces, at, length));
    if (!begun) break;
    at += length;
  }
  lock.unlock();
  // The end of a file that is no whole page, or what the queue does not take.
  return at == total ? success() : write_rest(file, pieces, at, total);
}

/// @return false when the queue is not to be used for it
Result<bool> FileWriter::begin_block(Lock& lock, File& file, std::span<const ByteSpan> pieces,
                                     std::uint64_t offset, std::size_t length) {
  Block* const block = take_block(lock);
  if (block == nullptr) return false;
  block->file = &file;
  block->offset = offset;
  block->length = length;
  lock.unlock();
  MutableByteSpan room = block->bytes();
  KVPACK_TRY(for_each_part(pieces, offset, length, [&](ByteSpan part) -> Status {
    copy_bytes(part, room);
    room = room.subspan(part.size());
    return success();
  }));
  lock.lock();
  const auto tag = static_cast<std::uint64_t>(
      std::ranges::find(blocks_, block, &std::unique_ptr<Block>::get) - blocks_.begin());
  bool begun = false;
  try {
    Target& target = targets_[&file];
    if (state_ == State::kInUse && writes_queued_) {
      const Result<bool> answer = queue_->begin_write(file, offset, block->bytes(), tag);
      begun = answer.has_value() && *answer;
      writes_queued_ = begun;
    }
    if (begun) ++target.under_way;
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch)
    // There may be memory for the next one.
  }
  if (begun) {
    ++under_way_;
  } else {
    block->taken = false;  // Nothing has begun, so the same can be tried without the queue.
  }
  changed_.notify_all();  // somebody may be without anything to wait for
  return begun;
}

/// @return null once writes are not queued any more
FileWriter::Block* FileWriter::take_block(Lock& lock) {
  for (;;) {
    if (state_ != State::kInUse || !writes_queued_) return nullptr;
    for (const auto& block : blocks_)
      if (!std::exchange(block->taken, true)) return block.get();
    if (blocks_.size() < sizes_.writes) {
      blocks_.push_back(std::make_unique<Block>(sizes_.write_bytes));
      blocks_.back()->taken = true;
      return blocks_.back().get();
    }
    wait_for_one(lock);
  }
}

/// Returns after something has changed. One thread waits for the queue, others for that one.
void FileWriter::wait_for_one(Lock& lock) {
  if (waiting_ || under_way_ == 0) {
    changed_.wait(lock);
    return;
  }
  struct Turn {
    FileWriter& writer;
    Lock& lock;
    Turn(FileWriter& of, Lock& held) : writer(of), lock(held) {
      writer.waiting_ = true;
      lock.unlock();
    }
    ~Turn() {
      lock.lock();
      writer.waiting_ = false;
      writer.changed_.notify_all();
    }
  };
  try {
    auto done = [&] {
      const Turn turn(*this, lock);
      return queue_->wait();
    }();
    if (!done.has_value()) return give_up(done.error());
    end_one(*std::move(done));
  } catch (const std::bad_alloc&) {
    give_up(fail(ErrorCode::kNoMemory, "out of memory"));  // short enough to need none
  }
}

void FileWriter::end_one(FileQueue::Done done) {
  --under_way_;
  if (done.tag < kFirstSyncTag) {
    Block& block = *blocks_[static_cast<std::size_t>(done.tag)];
    end_write(block, done);
    block.taken = false;
    return;
  }
  Sync& sync = syncs_[done.tag];
  sync.ended = true;
  if (done.error) sync.status = *std::move(done.error);
}

/// What the queue has left over of a write, because it was short or cannot be done in this way, is written
/// without it.
void FileWriter::end_write(Block& block, FileQueue::Done& done) {
  Target& target = targets_[block.file];
  Status end = success();
  if (done.error && !done.again) {
    end = *std::move(done.error);
  } else if (done.bytes != block.length) {
    end = write_all(*block.file, block.offset + done.bytes, block.bytes().subspan(done.bytes));
  }
  if (!end.has_value() && !target.error) target.error = std::move(end.error());
  --target.under_way;
}

/// The queue tells nothing any more: whatever is under way counts as failed, and is not waited for. Its
/// memory stays, since it may be read still. When there is no memory for the error it can be called again.
void FileWriter::give_up(const Error& error) {
  state_ = State::kNotUsed;
  under_way_ = 0;
  for (auto& [file, target] : targets_) {
    if (target.under_way != 0 && !target.error) target.error = error;
    target.under_way = 0;
  }
  for (auto& [tag, sync] : syncs_) {
    if (!sync.ended) sync.status = error;
    sync.ended = true;
  }
}

std::optional<Error> FileWriter::wait_for(Lock& lock, const File& file) {
  for (;;) {
    const auto found = targets_.find(&file);
    if (found == targets_.end()) return std::nullopt;
    if (found->second.under_way == 0) {
      std::optional<Error> error = std::move(found->second.error);
      targets_.erase(found);
      return error;
    }
    wait_for_one(lock);
  }
}

void FileWriter::forget(const File& file) noexcept {
  Lock lock(mutex_);
  (void)wait_for(lock, file);
}

Status FileWriter::sync(std::span<File* const> files, unsigned threads) {
  Lock lock(mutex_);
  std::optional<Error> first;
  for (const File* const file : files) {
    auto error = wait_for(lock, *file);
    if (error && !first) first = std::move(error);
  }
  if (first) return *std::move(first);
  return sync_together(lock, files, threads);
}

Status FileWriter::sync(std::span<Directory* const> directories, unsigned threads) {
  Lock lock(mutex_);
  return sync_together(lock, directories, threads);
}

template <class Object>
Status FileWriter::sync_together(Lock& lock, std::span<Object* const> objects, unsigned threads) {
  if (objects.size() > 1 && uses_queue()) return sync_queued(lock, objects);
  lock.unlock();
  if (objects.size() > 1 && threads > 1) return sync_on_threads(objects, threads);
  for (Object* const object : objects) KVPACK_TRY(object->sync());
  return success();
}

template <class Object>
Status FileWriter::sync_queued(Lock& lock, std::span<Object* const> objects) {
  std::vector<std::uint64_t> tags;  // of the objects begun so far
  tags.reserve(objects.size());
  std::size_t ended = 0;
  // However this is left: what has begun is waited for, and gives its place to others.
  struct Rest {
    FileWriter& writer;
    Lock& lock;
    const std::vector<std::uint64_t>& tags;
    const std::size_t& ended;
    ~Rest() {
      for (std::size_t i = ended; i < tags.size(); ++i) {
        while (!writer.syncs_.find(tags[i])->second.ended) writer.wait_for_one(lock);
        writer.syncs_.erase(tags[i]);
      }
      writer.changed_.notify_all();
    }
  } const rest{*this, lock, tags, ended};
  Status first = success();
  while (ended < objects.size()) {
    // Some more, as long as all is well.
    while (first.has_value() && tags.size() < objects.size() && syncs_.size() < sizes_.syncs &&
           state_ == State::kInUse) {
      const std::uint64_t tag = kFirstSyncTag + next_sync_++;
      Sync& sync = syncs_.emplace(tag, Sync{}).first->second;
      tags.push_back(tag);
      Object& object = *objects[tags.size() - 1];
      bool begun = false;
      try {
        begun = queue_->begin_sync(object, tag).has_value();
        if (!begun) state_ = State::kNotUsed;
      } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch)
        // There may be memory for the next one.
      }
      if (begun) {
        ++under_way_;
        changed_.notify_all();
        continue;
      }
      sync.ended = true;  // Nothing has begun, so the same is done without the queue.
      sync.status = object.sync();
    }
    if (ended == tags.size()) {
      if (!first.has_value()) return first;
      if (state_ == State::kInUse) {
        wait_for_one(lock);  // others have all of the queue
        continue;
      }
      lock.unlock();
      for (Object* const object : objects.subspan(ended)) KVPACK_TRY(object->sync());
      return success();
    }
    const auto sync = syncs_.find(tags[ended]);
    if (!sync->second.ended) {
      wait_for_one(lock);
      continue;
    }
    if (first.has_value()) first = std::move(sync->second.status);
    syncs_.erase(sync);
    changed_.notify_all();  // there is room for others' syncs
    ++ended;
  }
  return first;
}

FileBatch::~FileBatch() {
  for (const auto& file : files_) writer_->forget(*file);
}

Status FileBatch::write(std::unique_ptr<File> file, std::span<const ByteSpan> pieces) {
  files_.push_back(std::move(file));
  return writer_->write(*files_.back(), pieces);
}

Status FileBatch::sync(unsigned threads) {
  std::vector<File*> together;
  together.reserve(files_.size());
  for (const auto& file : files_) together.push_back(file.get());
  KVPACK_TRY(writer_->sync(std::span<File* const>(together), threads));
  files_.clear();
  return success();
}

}  // namespace kvpack
