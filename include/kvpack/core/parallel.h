/// Work over the chunks of a cut on the caller's choice of threads, with the verdict of doing it one by one.
#pragma once

#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <system_error>
#include <thread>
#include <vector>

#include "kvpack/base/result.h"

namespace kvpack {

/// Lets workers that finish out of order act in order: item i's turn comes when all before it have ended.
class OrderedTurns {
 public:
  /// Blocks until it is item `i`'s turn. False when an earlier item has failed: nothing is to be done any
  /// more.
  bool wait(std::size_t i) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stopped_ || next_ == i; });
    return !stopped_;
  }
  /// @param ok  false: nothing later gets its turn
  void end_turn(bool ok) {
    {
      const std::lock_guard lock(mutex_);
      if (!ok) stopped_ = true;
      ++next_;
    }
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t next_ = 0;
  bool stopped_ = false;
};

/// Ends the turn of one item however its scope is left; a turn that was not reached is waited for first.
class TurnGuard {
 public:
  TurnGuard(OrderedTurns& turns, std::size_t i) noexcept : turns_(&turns), item_(i) {}
  TurnGuard(const TurnGuard&) = delete;
  TurnGuard& operator=(const TurnGuard&) = delete;
  ~TurnGuard() {
    if (!reached_) turns_->wait(item_);
    turns_->end_turn(ok_);
  }
  /// As OrderedTurns::wait.
  bool wait() {
    reached_ = true;
    return turns_->wait(item_);
  }
  void succeed() noexcept { ok_ = true; }

 private:
  OrderedTurns* turns_;
  std::size_t item_;
  bool reached_ = false;
  bool ok_ = false;
};

/// Things that are done once, by one thread, and waited for by others.
class Milestones {
 public:
  explicit Milestones(std::size_t count) : reached_(count, false) {}
  void reach(std::size_t i) {
    {
      const std::lock_guard lock(mutex_);
      reached_[i] = true;
    }
    changed_.notify_all();
  }
  void wait(std::size_t i) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return bool{reached_[i]}; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<bool> reached_;
};

/// Reaches milestones however its scope is left.
class MilestoneGuard {
 public:
  MilestoneGuard(Milestones& milestones, std::size_t first, std::size_t count = 1) noexcept
      : milestones_(&milestones), first_(first), count_(count) {}
  MilestoneGuard(const MilestoneGuard&) = delete;
  MilestoneGuard& operator=(const MilestoneGuard&) = delete;
  ~MilestoneGuard() {
    for (std::size_t i = 0; i < count_; ++i) milestones_->reach(first_ + i);
  }

 private:
  Milestones* milestones_;
  std::size_t first_;
  std::size_t count_;
};

/// Calls job(worker, i) once for each i in [0, count), on up to `parallelism` threads (the caller's is one of
/// them).
///
/// Items are begun in order, and none is begun after a failure, so that every item before the first failure
/// has ended: the result is the error of the smallest failing i, as if the items had been done one by one.
/// What a job throws ends the work like a failure of its item and is thrown again to the caller once all
/// threads have ended.
/// @param make_worker  () -> W, called once per thread before it starts: buffers that are reused from item to
/// item
/// @param job          (W&, std::size_t) -> Status
template <class MakeWorker, class Job>
Status for_each_in_parallel(std::size_t count, unsigned parallelism, MakeWorker&& make_worker, Job&& job) {
  struct Failure {
    std::size_t index;
    Error error;
  };
  std::mutex mutex;
  std::size_t next = 0;
  std::optional<Failure> first_failure;
  std::exception_ptr thrown;

  const auto run = [&](auto& worker) {
    for (;;) {
      std::size_t i = 0;
      {
        const std::lock_guard lock(mutex);
        if (first_failure || next == count) return;
        i = next++;
      }
      Status status = [&]() -> Status {
        try {
          return job(worker, i);
        } catch (...) {
          const std::lock_guard lock(mutex);
          if (!thrown) thrown = std::current_exception();
          return fail(ErrorCode::kInternal, "a job threw");
        }
      }();
      if (status.has_value()) continue;
      const std::lock_guard lock(mutex);
      if (!first_failure || i < first_failure->index) first_failure = Failure{i, std::move(status.error())};
    }
  };

  auto own_worker = make_worker();
  std::vector<decltype(own_worker)> workers;
  const std::size_t extra =
      count == 0 ? 0 : std::min<std::size_t>(parallelism == 0 ? 0 : parallelism - 1, count - 1);
  workers.reserve(extra);
  for (std::size_t k = 0; k < extra; ++k) workers.push_back(make_worker());
  {
    std::vector<std::jthread> threads;
    threads.reserve(extra);
    for (auto& worker : workers) {
      try {
        threads.emplace_back([&run, &worker] { run(worker); });
      } catch (const std::system_error&) {
        break;  // The system gives no more threads: fewer do the same work.
      }
    }
    run(own_worker);
  }
  if (thrown) std::rethrow_exception(thrown);
  if (first_failure) return std::move(first_failure->error);
  return success();
}

}  // namespace kvpack
