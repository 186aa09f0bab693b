/// Verified pieces of a cut on their way from the threads that read to the one thread that owns the sink.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>

#include "kvpack/store/restore.h"

namespace kvpack::store {

/// Each reading thread waits until its piece has been taken, so that no copy is kept.
class PieceQueue {
 public:
  /// From a reading thread. @return what the sink said
  Status hand_over(std::size_t state, std::uint64_t logical_offset, ByteSpan plaintext) {
    Piece piece{state, logical_offset, plaintext, std::nullopt};
    std::unique_lock lock(mutex_);
    waiting_.push_back(&piece);
    changed_.notify_all();
    changed_.wait(lock, [&] { return piece.answer.has_value(); });
    return *std::move(piece.answer);
  }

  /// No more pieces will come.
  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }

  /// From the sink's thread: gives it pieces until the queue is closed. What the sink throws is thrown then.
  void serve(RestoreSink& sink) {
    std::exception_ptr thrown;
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return closed_ || !waiting_.empty(); });
      if (waiting_.empty()) break;
      Piece& piece = *waiting_.front();
      waiting_.pop_front();
      lock.unlock();
      Status answer = fail(ErrorCode::kInternal, "the sink threw");
      try {
        if (!thrown) answer = sink.write_verified_chunk(piece.state, piece.logical_offset, piece.plaintext);
      } catch (...) {
        thrown = std::current_exception();
      }
      lock.lock();
      piece.answer.emplace(std::move(answer));
      changed_.notify_all();
    }
    if (thrown) std::rethrow_exception(thrown);
  }

 private:
  struct Piece {
    std::size_t state;
    std::uint64_t logical_offset;
    ByteSpan plaintext;
    std::optional<Status> answer;
  };
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Piece*> waiting_;
  bool closed_ = false;
};

}  // namespace kvpack::store
