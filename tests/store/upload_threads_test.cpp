#include <gmock/gmock.h>

#include <thread>

#include "support/upload_room.h"

namespace kvpack::upload_threads_test {
namespace {

using store::Upload;
using testing::cut_of_two_batches;
using testing::CutToUpload;
using testing::expect_no_orphans;
using testing::expect_sound;
using testing::FakeStoreFixture;
using testing::kSupersededVerdict;
using testing::MemoryRoom;
using testing::UploadableCut;
using testing::verdict_of;

TEST(UploadThreads, SessionsSaveTheSameAndOtherCutsAtOnce) {
  for (const bool encrypt : {false, true}) {
    MemoryRoom room;
    constexpr std::uint64_t kThreads = 6;
    constexpr std::uint64_t kRounds = 3;
    std::vector<std::vector<std::string>> verdicts(kThreads);
    {
      std::vector<std::jthread> threads;
      for (std::uint64_t t = 0; t < kThreads; ++t)
        threads.emplace_back([&, t] {
          for (std::uint64_t round = 0; round < kRounds; ++round) {
            // Every other thread saves what all of its kind save in this round.
            UploadableCut cut(*room.store,
                              {.tokens = 300 + 256 * (t % 3),
                               .seed = static_cast<unsigned>(t % 2 == 0 ? round : 100 + t * 10 + round),
                               .encrypt = encrypt});
            verdicts[t].push_back(verdict_of(cut.save(1'000 * t + round)));
            cut.expect_restorable();
          }
        });
    }
    for (const auto& of_thread : verdicts) EXPECT_THAT(of_thread, ::testing::Each("success"));
    room.check();
    // Contents that were saved by several are there once.
    EXPECT_EQ(room.number("SELECT count(*) FROM chunks"),
              room.number("SELECT count(DISTINCT content_id) FROM chunks"));
    EXPECT_EQ(room.reserved(), 0);
    EXPECT_EQ(room.context().staged_files, 0u);
  }
}

TEST(UploadThreads, OneKeyIsPublishedOnceHoweverManyTryIt) {
  MemoryRoom room;
  const CutToUpload what = cut_of_two_batches();
  std::mutex mutex;
  std::map<std::string, int> verdicts;
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&] {
        for (int round = 0; round < 5; ++round) {
          UploadableCut cut(*room.store, what);
          const std::string verdict = verdict_of(cut.save(1));
          const std::lock_guard lock(mutex);
          ++verdicts[verdict];
        }
      });
  }
  EXPECT_EQ(verdicts["success"] + verdicts[kSupersededVerdict], 20);
  EXPECT_GE(verdicts["success"], 1);
  UploadableCut cut(*room.store, what);
  ASSERT_EQ(verdict_of(cut.save(2)), "success");
  cut.expect_restorable();
  EXPECT_EQ(room.number("SELECT count(*) FROM manifests"), 1);
  EXPECT_EQ(room.number("SELECT count(*) FROM chunks"), 260);
  room.check();
}

TEST(UploadThreads, ATakeOverWaitsForWhatIsBeingLinked) {
  FakeStoreFixture f;
  const auto store = f.create();
  UploadableCut older_cut(*store, {});
  auto older = std::optional(*Upload::reserve(store->context(), older_cut.declaration(1)));
  ASSERT_EQ(verdict_of(older_cut.put(*older)), "success");
  std::jthread rival;
  std::string rival_verdict;
  bool first = true;
  f.files.before_operation([&](const testing::Operation& operation) {
    if (operation.verb != "link" || !std::exchange(first, false)) return;
    // While the older session links, another one takes its key.
    rival = std::jthread([&] {
      UploadableCut newer_cut(*store, {});
      rival_verdict = verdict_of(newer_cut.save(1));
    });
    std::this_thread::yield();
  });
  const std::string published = verdict_of(older_cut.publish(*older));
  rival.join();
  f.files.before_operation({});
  older.reset();
  // Between its chunks and its manifests the older session links nothing, and may lose its key there.
  EXPECT_TRUE(published == "success" || published == kSupersededVerdict) << published;
  EXPECT_EQ(rival_verdict, "success");
  expect_sound(*store);
  expect_no_orphans(*store);
}

}  // namespace
}  // namespace kvpack::upload_threads_test
