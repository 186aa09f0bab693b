#include <gmock/gmock.h>

#include <set>
#include <thread>

#include "support/saves.h"
#include "support/upload_room.h"

namespace kvpack::upload_threads_test {
namespace {

using store::Upload;
using testing::cut_of_two_batches;
using testing::CutToUpload;
using testing::expect_no_orphans;
using testing::expect_sound;
using testing::FakeStoreFixture;
using testing::kPoisonedVerdict;
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

// --- batches that are linked beside the caller
// ----------------------------------------------------------------------------------------------------

// 600 objects: two full batches and a part of one.
CutToUpload cut_of_three_batches() {
  const std::vector<std::uint64_t> single(300, 1);
  return {.tokens = 300, .encrypt = false, .chunk_tokens = {single, single}};
}

bool is_chunk(const testing::Operation& operation) {
  return operation.path.ends_with(".kvchunk");
}

// Checks, while a save runs, what a power cut needs: nothing is linked that is not planned and synced, and no
// row is committed whose file a power cut could take.
class OrderWatch {
 public:
  explicit OrderWatch(MemoryRoom& room) : room_(room) {
    room_.files.before_operation([this](const testing::Operation& operation) { see(operation); });
    room_.context().catalog->on_commit([this](sqlite::Database& db) { check_rows(db); });
  }
  OrderWatch(const OrderWatch&) = delete;
  OrderWatch& operator=(const OrderWatch&) = delete;
  ~OrderWatch() {
    room_.files.before_operation({});
    room_.context().catalog->on_commit({});
  }

  std::set<std::thread::id> linkers{};
  std::size_t links = 0;
  std::size_t rows = 0;  // when most were there
  std::size_t most_staged = 0;

 private:
  void see(const testing::Operation& operation) {
    most_staged = std::max<std::size_t>(most_staged, room_.context().staged_files);
    if (operation.verb == "write") synced_.erase(operation.inode);
    if (operation.verb == "sync") synced_.insert(operation.inode);
    if (operation.verb != "link" || !is_chunk(operation)) return;
    ++links;
    linkers.insert(std::this_thread::get_id());
    EXPECT_TRUE(synced_.contains(operation.inode)) << operation.path;
    const auto id =
        store::object_id_of(store::ObjectKind::kChunk, operation.path.substr(operation.path.rfind('/') + 1));
    EXPECT_EQ(testing::catalog_number(
                  *room_.store, "SELECT count(*) FROM upload_objects WHERE object_id = ? AND phase = 1", *id),
              1)
        << operation.path;
  }
  void check_rows(sqlite::Database& db) {
    const auto now = room_.files.after_kill();
    const auto image = now.after_power_cut([](std::size_t) { return std::size_t{0}; });
    auto row = db.prepare("SELECT object_key, object_bytes FROM chunks");
    ASSERT_TRUE(row.has_value());
    std::size_t count = 0;
    for (;; ++count) {
      const auto more = row->step();
      ASSERT_TRUE(more.has_value());
      if (!*more) break;
      const auto file = image.file(room_.path(store::ObjectKind::kChunk, row->id(0)));
      ASSERT_TRUE(file.has_value()) << row->id(0).hex();
      EXPECT_EQ(file->size(), row->count(1));
      EXPECT_EQ(*file, now.file(room_.path(store::ObjectKind::kChunk, row->id(0))));
    }
    rows = std::max(rows, count);
  }

  MemoryRoom& room_;
  std::set<std::uint64_t> synced_{};
};

TEST(UploadBatches, AreLinkedByAnotherThreadInTheOrderThatAPowerCutNeeds) {
  for (const unsigned threads : {1u, 2u}) {
    MemoryRoom room;
    UploadableCut cut(*room.store, cut_of_three_batches());
    {
      Upload upload = room.reserve(cut.declaration(1));
      upload.set_parallelism(threads);
      OrderWatch watch(room);
      ASSERT_EQ(verdict_of(cut.put(upload)), "success");
      ASSERT_EQ(verdict_of(cut.publish(upload)), "success");
      EXPECT_EQ(watch.links, 600u);
      EXPECT_EQ(watch.rows, 600u);
      EXPECT_EQ(watch.linkers.contains(std::this_thread::get_id()), threads == 1);
      EXPECT_LE(watch.most_staged, 512u);
    }
    cut.expect_restorable();
    room.check();
    EXPECT_EQ(room.reserved(), 0);
    EXPECT_EQ(room.context().staged_files, 0u);
  }
}

TEST(UploadBatches, AnErrorBesideTheCallerIsThatOfALaterCallAndLeavesNothing) {
  for (const std::string verb : {"sync", "make directory", "link", "sync directory"}) {
    std::vector<std::string> verdicts;
    for (const unsigned threads : {1u, 2u}) {
      MemoryRoom room;
      UploadableCut cut(*room.store, cut_of_three_batches());
      {
        Upload upload = room.reserve(cut.declaration(1));
        upload.set_parallelism(threads);
        room.files.fail_verb(verb, EIO);
        std::string verdict = verdict_of(cut.put(upload));
        if (verdict == "success") verdict = verdict_of(cut.publish(upload));
        EXPECT_EQ(verdict_of(cut.publish(upload)), kPoisonedVerdict);
        EXPECT_EQ(verdict_of(upload.wait_for_batch()), "success") << "an error is told once";
        verdicts.push_back(verdict.substr(0, verdict.find(room.place.path())));
        room.files.fail_verb(verb, 0);
      }
      EXPECT_EQ(room.context().staged_files, 0u);
      EXPECT_EQ(room.reserved(), 0);
      EXPECT_EQ(room.number("SELECT count(*) FROM upload_objects"), 0);
      room.check();
      UploadableCut again(*room.store, cut_of_three_batches());
      ASSERT_EQ(verdict_of(again.save(1)), "success");
      again.expect_restorable();
    }
    EXPECT_EQ(verdicts[0], "io:" + verb + " ");
    EXPECT_EQ(verdicts[1], verdicts[0]);
  }
}

TEST(UploadBatches, GivingUpWaitsForWhatIsBeingLinked) {
  MemoryRoom room;
  {
    UploadableCut cut(*room.store, cut_of_two_batches());
    Upload upload = room.reserve(cut.declaration(1));
    upload.set_parallelism(2);
    ASSERT_EQ(verdict_of(cut.put(upload)), "success");
  }
  EXPECT_EQ(room.context().staged_files, 0u);
  EXPECT_EQ(room.reserved(), 0);
  EXPECT_EQ(room.number("SELECT count(*) FROM chunks"), 0);
  room.check();
}

TEST(UploadBatches, ATakeOverWaitsForWhatIsBeingLinkedBesideTheCaller) {
  MemoryRoom room;
  UploadableCut older_cut(*room.store, cut_of_two_batches());
  auto older = std::optional(room.reserve(older_cut.declaration(1)));
  older->set_parallelism(2);
  ASSERT_EQ(verdict_of(older_cut.put(*older)), "success");
  UploadableCut newer_cut(*room.store, cut_of_two_batches());
  Upload newer = room.reserve(newer_cut.declaration(1));
  EXPECT_EQ(verdict_of(older_cut.publish(*older)), kSupersededVerdict);
  older.reset();
  ASSERT_EQ(verdict_of(newer_cut.put(newer)), "success");
  ASSERT_EQ(verdict_of(newer_cut.publish(newer)), "success");
  newer_cut.expect_restorable();
  room.check();
}

// Gives bytes that do not repeat, and fails behind so many.
class FailingSource final : public StateSource {
 public:
  explicit FailingSource(std::size_t good_bytes) : left_(good_bytes) {}
  Result<std::size_t> read(MutableByteSpan out) override {
    if (left_ == 0) return fail(ErrorCode::kIo, "the source broke");
    const std::size_t n = std::min(left_, out.size());
    for (std::uint8_t& byte : out.first(n))
      byte = static_cast<std::uint8_t>((++given_ * 0x9e3779b97f4a7c15u) >> 56);
    left_ -= n;
    return n;
  }

 private:
  std::size_t left_;
  std::uint64_t given_ = 0;
};

TEST(UploadBatches, TheEarlierErrorCountsWhateverTheNumberOfThreads) {
  constexpr std::size_t kChunkBytes = 256 * 8;  // of a grain of 256 tokens
  const testing::SavableInput input(testing::small_family(), std::size_t{256} * 300);
  for (const bool broken_disk : {true, false}) {
    std::set<std::string> verdicts;
    for (const unsigned threads : {1u, 2u, 4u}) {
      MemoryRoom room;
      SaveRequest request = input.request();
      request.spans.grain_tokens = 256;
      request.encrypt = false;
      request.parallelism = threads;
      auto session = SaveSession::begin(*room.store, request);
      ASSERT_TRUE(session.has_value()) << session.error().verdict();
      // The first batch is full with chunk 256; the source breaks a little later.
      if (broken_disk) room.files.fail_verb("sync", EIO);
      FailingSource source(kChunkBytes * 260);
      const Status written = session->write_state(*session->next_state(), source);
      room.files.fail_verb("sync", 0);
      const std::string verdict = verdict_of(written);
      verdicts.insert(verdict.substr(0, verdict.find(room.place.path())));
      session->cancel();
      EXPECT_EQ(room.context().staged_files, 0u);
      EXPECT_EQ(room.reserved(), 0);
      room.check();
    }
    EXPECT_THAT(verdicts, ::testing::ElementsAre(
                              broken_disk ? "io:sync " : "io:read export state source: the source broke"));
  }
}

}  // namespace
}  // namespace kvpack::upload_threads_test
