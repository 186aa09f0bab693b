#include "store/background_task.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <stdexcept>

namespace kvpack::background_task_test {
namespace {

using store::BackgroundTask;

Status broken() {
  return fail(ErrorCode::kIo, "broken");
}

TEST(BackgroundTask, RunsBesideTheThreadThatBegins) {
  BackgroundTask task;
  std::mutex mutex;
  std::condition_variable changed;
  bool begun = false;
  std::thread::id id;
  task.begin([&] {
    id = std::this_thread::get_id();
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return begun; });
    return success();
  });
  {
    const std::lock_guard lock(mutex);
    begun = true;
  }
  changed.notify_all();
  EXPECT_TRUE(task.wait().has_value());
  EXPECT_NE(id, std::this_thread::get_id());
  EXPECT_FALSE(task.has_failed());
}

TEST(BackgroundTask, AFailureIsToldOnce) {
  BackgroundTask task;
  EXPECT_TRUE(task.wait().has_value());
  task.begin(broken);
  while (!task.has_failed()) std::this_thread::yield();
  const Status first = task.wait();
  ASSERT_FALSE(first.has_value());
  EXPECT_EQ(first.error().verdict(), "io:broken");
  EXPECT_FALSE(task.has_failed());
  EXPECT_TRUE(task.wait().has_value());
  task.begin([] { return success(); });
  EXPECT_TRUE(task.wait().has_value());
}

TEST(BackgroundTask, WhatTheWorkThrowsIsThrownOnceToTheOneWhoWaits) {
  BackgroundTask task;
  task.begin([]() -> Status { throw std::runtime_error("thrown"); });
  EXPECT_THROW((void)task.wait(), std::runtime_error);
  EXPECT_FALSE(task.has_failed());
  EXPECT_TRUE(task.wait().has_value());
}

TEST(BackgroundTask, WhoFinishesWaitsAndForgets) {
  BackgroundTask task;
  task.finish();
  for (int i = 0; i < 2; ++i) {
    std::atomic<bool> ended = false;
    task.begin([&ended, i]() -> Status {
      ended = true;
      if (i == 0) throw std::runtime_error("thrown");
      return broken();
    });
    task.finish();
    EXPECT_TRUE(ended);
    EXPECT_FALSE(task.has_failed());
    EXPECT_TRUE(task.wait().has_value());
  }
}

TEST(BackgroundTask, ItsEndWaits) {
  std::atomic<bool> ended = false;
  {
    BackgroundTask task;
    task.begin([&] {
      std::this_thread::yield();
      ended = true;
      return broken();
    });
  }
  EXPECT_TRUE(ended);
}

}  // namespace
}  // namespace kvpack::background_task_test
