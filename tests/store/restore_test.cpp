#include "kvpack/store/restore.h"

#include <atomic>

#include "kvpack/store/upkeep.h"
#include "support/planted_store.h"
#include "support/saved_cuts.h"

namespace kvpack::restore_test {
namespace {

using testing::chunks_of;
using testing::context_of;
using testing::Conversation;
using testing::flip_bit;
using testing::MemorySink;
using testing::path_of;
using testing::StoreFixture;
using testing::verdict;

using store::Counter;
using store::ObjectKind;
using Calls = std::vector<std::string>;

const Calls kUndone{"begin", "abort", "reset"};

// Nothing of a restore is left behind.
void expect_nothing_held(Store& store) {
  const store::MemoryCharge held = store.context().holds.held();
  EXPECT_EQ(held.shadow_bytes, 0u);
  EXPECT_EQ(held.scratch_bytes, 0u);
  EXPECT_EQ(held.holds, 0u);
}

bool is_pinned(Store& store, const Id32& id) {
  const auto pinned = store.context().pins.is_pinned(&store.context().files.pins(), id);
  EXPECT_EQ(verdict(pinned), "ok");
  return pinned.has_value() && *pinned;
}

// A restore by a plan made for it.
Result<RestoredCut> restore_cut_of(Store& store, const Id32& manifest_id, RestoreSink& sink,
                                   const RestoreRequest& request = {}) {
  KVPACK_TRY_ASSIGN(const AuthenticatedPlan planned, plan(store, manifest_id));
  return restore(store, planned, sink, request);
}

RestoreRequest on_threads(unsigned parallelism) {
  RestoreRequest request;
  request.parallelism = parallelism;
  return request;
}

TEST(StoreRestore, GivesBackTheSavedBytesHoweverItIsDone) {
  for (const bool encrypt : {false, true}) {
    StoreFixture f;
    const auto store = f.create();
    const Conversation cut(700);
    const SaveResult saved = cut.save_checkpoints(*store, kPrefixBlockTokens, encrypt);
    for (const PublishedCut& published : saved.cuts)
      for (const bool lends : {false, true})
        for (const unsigned parallelism : {0u, 1u, 2u, 4u}) {
          MemorySink sink;
          sink.lends = lends;
          auto restored = restore_cut_of(*store, published.manifest_id, sink, on_threads(parallelism));
          ASSERT_EQ(verdict(restored), "ok");
          EXPECT_EQ(restored->manifest_id, published.manifest_id);
          EXPECT_EQ(restored->cut, published.cut);
          EXPECT_EQ(restored->restored_bytes, published.restored_bytes);
          EXPECT_EQ(sink.live, cut.planes(published.cut.token_count));
          EXPECT_EQ(sink.calls, lends ? (Calls{"begin", "commit"}) : (Calls{"begin", "write", "commit"}));
          EXPECT_EQ(verdict(restored->hold.release()), "ok");
        }
    expect_nothing_held(*store);
  }
}

TEST(StoreRestore, APlanSaysEverythingBeforehand) {
  StoreFixture f;
  const auto store = f.create();
  const Conversation cut(512);
  const SaveResult saved = cut.save_checkpoints(*store);
  const auto planned = plan(*store, saved.head().manifest_id);
  ASSERT_EQ(verdict(planned), "ok");
  EXPECT_EQ(planned->manifest_id(), saved.head().manifest_id);
  EXPECT_EQ(planned->chain_id(),
            restore_chain_id(std::array{saved.cuts[0].manifest_id, saved.cuts[1].manifest_id}));
  EXPECT_EQ(planned->cut(), saved.head().cut);
  EXPECT_EQ(planned->restored_bytes(), 512u * 16);
  EXPECT_EQ(planned->key_epoch(), 1u);
  ASSERT_EQ(planned->states().size(), 2u);
  const PlannedState& v = planned->states()[1];
  EXPECT_EQ(v.key, (StateKey{0, "v"}));
  EXPECT_EQ(v.token_start, 0u);
  EXPECT_EQ(v.token_count, 512u);
  EXPECT_EQ(v.plaintext_bytes, 512u * 8);
  EXPECT_EQ(v.complete_physical_bytes, 512u * 8);
  EXPECT_EQ(v.group, 1u);
  EXPECT_EQ(v.chunk_count, 2u);
  EXPECT_EQ(planned->resources().shadow_bytes, 512u * 16);
  EXPECT_EQ(planned->resources().pinned_bytes, 4u * 8'192);
  EXPECT_EQ(planned->resources().references, 4u);
  EXPECT_EQ(planned->resources().scratch_bytes_per_thread, 8'192u + 256 * 8);
}

TEST(StoreRestore, ACandidateIsPlannedWhenItIsStillTheSame) {
  StoreFixture f;
  const auto store = f.create();
  const Conversation cut(512);
  cut.save_checkpoints(*store);
  const auto found = candidates(*store, cut.query());
  ASSERT_EQ(verdict(found), "ok");
  const RestoreCandidate good = found->candidates[0];
  EXPECT_EQ(verdict(plan(*store, good)), "ok");
  EXPECT_EQ(verdict(plan(*store, found->candidates.back())),
            "expectation:restore candidate is no cut of this store");
  const std::string changed = "authentication:restore candidate changed before plan construction";
  RestoreCandidate other = good;
  other.chain_id = Id32::filled(1);
  EXPECT_EQ(verdict(plan(*store, other)), changed);
  other = good;
  ++other.restored_bytes;
  EXPECT_EQ(verdict(plan(*store, other)), changed);
  other = good;
  ++other.resources.references;
  EXPECT_EQ(verdict(plan(*store, other)), changed);
  other = good;
  ++other.key_epoch;
  EXPECT_EQ(verdict(plan(*store, other)), changed);
  other = good;
  ++other.matched_cut.token_count;
  EXPECT_EQ(verdict(plan(*store, other)), changed);
  other = good;
  other.manifest_id = Id32::filled(1);
  EXPECT_EQ(verdict(plan(*store, other)), "not_found:artifact not found");
  EXPECT_TRUE(f.faults.empty());
}

TEST(StoreRestore, LimitsThatFitExactlyAdmitOneRestoreAndRefuseTheNext) {
  StoreFixture f;
  const Conversation cut(512);
  f.options.memory = {
      .shadow_bytes = 512 * 16, .scratch_bytes = 2 * (8'192 + 256 * 8), .holds = 8, .parallelism = 2};
  const auto store = f.create();
  const SaveResult saved = cut.save_checkpoints(*store);
  MemorySink first;
  auto restored = restore_cut_of(*store, saved.head().manifest_id, first);
  ASSERT_EQ(verdict(restored), "ok");
  MemorySink second;
  EXPECT_EQ(verdict(restore_cut_of(*store, saved.head().manifest_id, second)),
            "quota:concurrent restore resources exceed declared limits");
  EXPECT_TRUE(second.calls.empty());
  EXPECT_EQ(verdict(restored->hold.release()), "ok");
  EXPECT_EQ(verdict(restore_cut_of(*store, saved.head().manifest_id, second)), "ok");
}

TEST(StoreRestore, WhatIsAloneBeyondALimitIsRefused) {
  const std::string refused = "quota:authenticated restore plan exceeds declared resource limits";
  const StoreMemoryLimits fits{
      .shadow_bytes = 512 * 16, .scratch_bytes = 2 * (8'192 + 256 * 8), .holds = 1, .parallelism = 2};
  for (int which = 0; which < 4; ++which) {
    SCOPED_TRACE(which);
    StoreFixture f;
    const Conversation cut(512);
    Id32 head;
    {
      const auto store = f.create();
      head = cut.save_checkpoints(*store).head().manifest_id;
    }
    f.options.memory = fits;
    if (which == 0) --f.options.memory.shadow_bytes;
    if (which == 1) --f.options.memory.scratch_bytes;
    if (which == 2) f.options.memory.holds = 0;
    const auto store = f.open();
    MemorySink sink;
    EXPECT_EQ(verdict(plan(*store, head)), which == 0 || which == 2 ? refused : "ok");
    const auto restored =
        which == 3 ? restore_cut_of(*store, head, sink, on_threads(3)) : restore_cut_of(*store, head, sink);
    EXPECT_EQ(verdict(restored), refused);
    // One thread needs half the buffers.
    EXPECT_EQ(verdict(restore_cut_of(*store, head, sink, on_threads(1))),
              which == 1 || which == 3 ? "ok" : refused);
    EXPECT_EQ(sink.calls.size(), which == 1 || which == 3 ? 2u : 0u);
  }
}

TEST(StoreRestore, AHoldKeepsTheCutUntilItIsReleasedOnce) {
  StoreFixture f;
  const auto store = f.create();
  const Conversation cut(512);
  const SaveResult saved = cut.save_checkpoints(*store);
  const Id32 head = saved.head().manifest_id;
  MemorySink sink;
  auto restored = restore_cut_of(*store, head, sink);
  ASSERT_EQ(verdict(restored), "ok");
  EXPECT_TRUE(is_pinned(*store, head));
  EXPECT_EQ(verdict(evict(*store, head)), "busy:resource is busy");
  EXPECT_EQ(store->context().holds.held().shadow_bytes, 512u * 16);
  EXPECT_EQ(store->context().holds.held().scratch_bytes, 0u);
  EXPECT_EQ(store->context().holds.held().holds, 1u);
  EXPECT_EQ(verdict(restored->hold.release()), "ok");
  EXPECT_EQ(verdict(restored->hold.release()),
            "state:restore resources were already released or are unknown");
  EXPECT_FALSE(release_restore(*store, restored->hold.restore_id()));
  expect_nothing_held(*store);
  EXPECT_FALSE(is_pinned(*store, head));
  EXPECT_EQ(verdict(RestoreHold().release()), "state:restore resources were already released or are unknown");
}

TEST(StoreRestore, ADroppedHandleHoldsOnAndIsReleasedByItsId) {
  StoreFixture f;
  const auto store = f.create();
  const Id32 head = Conversation(256).save(*store).head().manifest_id;
  Id32 restore_id;
  {
    MemorySink sink;
    auto restored = restore_cut_of(*store, head, sink);
    ASSERT_EQ(verdict(restored), "ok");
    const RestoreHold moved = std::move(restored->hold);
    restore_id = moved.restore_id();
    EXPECT_EQ(verdict(restored->hold.release()),
              "state:restore resources were already released or are unknown");
  }
  EXPECT_TRUE(is_pinned(*store, head));
  EXPECT_TRUE(release_restore(*store, restore_id));
  EXPECT_FALSE(release_restore(*store, restore_id));
  EXPECT_FALSE(is_pinned(*store, head));
}

TEST(StoreRestore, TwoRestoresOfACutAreHeldEachForItself) {
  StoreFixture f;
  const auto store = f.create();
  const Id32 head = Conversation(256).save(*store).head().manifest_id;
  MemorySink sink;
  auto first = restore_cut_of(*store, head, sink);
  auto second = restore_cut_of(*store, head, sink);
  ASSERT_TRUE(first.has_value() && second.has_value());
  EXPECT_NE(first->hold.restore_id(), second->hold.restore_id());
  EXPECT_EQ(verdict(first->hold.release()), "ok");
  EXPECT_TRUE(is_pinned(*store, head));
  EXPECT_EQ(verdict(second->hold.release()), "ok");
  EXPECT_FALSE(is_pinned(*store, head));
}

TEST(StoreRestore, WhateverTheSinkRefusesItIsAbortedAndResetAndCanTryAgain) {
  for (const unsigned parallelism : {1u, 3u})
    for (const std::string point : {"begin", "write", "commit"}) {
      SCOPED_TRACE(point);
      StoreFixture f;
      const auto store = f.create();
      const Conversation cut(700);
      const Id32 head = cut.save_checkpoints(*store).head().manifest_id;
      MemorySink sink;
      sink.lends = false;
      sink.live = {Bytes{1, 2, 3}};
      sink.fail_at = point;
      EXPECT_EQ(verdict(restore_cut_of(*store, head, sink, on_threads(parallelism))),
                "install:the engine refused to " + point);
      ASSERT_GE(sink.calls.size(), 3u);
      EXPECT_EQ(Calls(sink.calls.end() - 2, sink.calls.end()), (Calls{"abort", "reset"}));
      EXPECT_EQ(sink.live, std::vector<Bytes>{(Bytes{1, 2, 3})});
      expect_nothing_held(*store);
      EXPECT_FALSE(is_pinned(*store, head));
      EXPECT_TRUE(f.faults.empty());
      sink.fail_at.clear();
      EXPECT_EQ(verdict(restore_cut_of(*store, head, sink, on_threads(parallelism))), "ok");
      EXPECT_EQ(sink.live, cut.planes());
    }
}

TEST(StoreRestore, AFailedResetOutranksTheErrorThatItFollowed) {
  class TwiceFailing : public MemorySink {
   public:
    Status commit_restore() override { return fail(ErrorCode::kInstall, "half live"); }
    Status reset_restore() override { return fail(ErrorCode::kInternal, "the state is unknown"); }
  };
  StoreFixture f;
  const auto store = f.create();
  const Id32 head = Conversation(256).save(*store).head().manifest_id;
  TwiceFailing sink;
  EXPECT_EQ(verdict(restore_cut_of(*store, head, sink)), "internal:the state is unknown");
  EXPECT_EQ(sink.calls, (Calls{"begin", "abort"}));
  expect_nothing_held(*store);
}

TEST(StoreRestore, ASinkThatThrowsIsAbortedAndResetToo) {
  for (const unsigned parallelism : {1u, 3u}) {
    StoreFixture f;
    const auto store = f.create();
    const Id32 head = Conversation(700).save_checkpoints(*store).head().manifest_id;
    MemorySink sink;
    sink.lends = false;
    sink.on_write = [] { throw std::bad_alloc(); };
    EXPECT_THROW((void)restore_cut_of(*store, head, sink, on_threads(parallelism)), std::bad_alloc);
    EXPECT_EQ(sink.calls, (Calls{"begin", "write", "abort", "reset"}));
    expect_nothing_held(*store);
    EXPECT_FALSE(is_pinned(*store, head));
  }
}

TEST(StoreRestore, AnErrorOfTheSinkIsNeverTakenForDamageOrAMiss) {
  class Misleading : public MemorySink {
   public:
    Id32 object;
    ErrorCode code = ErrorCode::kAuthentication;
    Status commit_restore() override { return fail(code, "mine").with("object", object.hex()); }
  };
  StoreFixture f;
  const auto store = f.create();
  const Conversation cut(256);
  const Id32 head = cut.save(*store).head().manifest_id;
  Misleading sink;
  sink.object = chunks_of(*store, head)[0].object_key;
  EXPECT_EQ(verdict(restore_cut_of(*store, head, sink)), "authentication:mine");
  EXPECT_EQ(verdict(restore_deepest(*store, cut.query(), sink)), "authentication:mine");
  sink.code = ErrorCode::kNotFound;
  EXPECT_EQ(verdict(restore_deepest(*store, cut.query(), sink)), "not_found:mine");
  EXPECT_TRUE(f.faults.empty());
}

TEST(StoreRestore, LentMemoryThatIsTooShortIsRefused) {
  StoreFixture f;
  const auto store = f.create();
  const Id32 head = Conversation(256).save(*store).head().manifest_id;
  MemorySink sink;
  sink.short_by = 1;
  const auto restored = restore_cut_of(*store, head, sink);
  EXPECT_EQ(verdict(restored), "state:shadow memory does not match the restore plan");
  EXPECT_EQ(context_of(restored.error(), "state"), "k");
  EXPECT_EQ(sink.calls, kUndone);
}

TEST(StoreRestore, SomeStatesMayBeLentAndOthersWritten) {
  class Mixed : public MemorySink {
   public:
    MutableByteSpan lend(std::size_t state) override {
      return state == 0 ? MemorySink::lend(state) : MutableByteSpan{};
    }
  };
  for (const unsigned parallelism : {1u, 3u}) {
    StoreFixture f;
    const auto store = f.create();
    const Conversation cut(700);
    const Id32 head = cut.save_checkpoints(*store).head().manifest_id;
    Mixed sink;
    EXPECT_EQ(verdict(restore_cut_of(*store, head, sink, on_threads(parallelism))), "ok");
    EXPECT_EQ(sink.live, cut.planes());
  }
}

TEST(StoreRestore, CancellingBeforeItBeginsTouchesNothing) {
  StoreFixture f;
  const auto store = f.create();
  const Conversation cut(256);
  const Id32 head = cut.save(*store).head().manifest_id;
  std::stop_source stop;
  stop.request_stop();
  RestoreRequest request;
  request.cancel = stop.get_token();
  MemorySink sink;
  EXPECT_EQ(verdict(restore_cut_of(*store, head, sink, request)), "cancelled:operation was cancelled");
  EXPECT_EQ(verdict(restore_deepest(*store, cut.query(), sink, request)),
            "cancelled:operation was cancelled");
  EXPECT_TRUE(sink.calls.empty());
  expect_nothing_held(*store);
}

TEST(StoreRestore, CancellingDuringWritesOrBeforeTheCommitAborts) {
  for (const unsigned parallelism : {1u, 3u})
    for (const unsigned after_writes : {1u, 6u}) {  // of 6
      StoreFixture f;
      const auto store = f.create();
      const Conversation cut(700);
      const Id32 head = cut.save_checkpoints(*store).head().manifest_id;
      std::stop_source stop;
      unsigned writes = 0;
      MemorySink sink;
      sink.lends = false;
      sink.on_write = [&] {
        if (++writes == after_writes) stop.request_stop();
      };
      RestoreRequest request = on_threads(parallelism);
      request.cancel = stop.get_token();
      EXPECT_EQ(verdict(restore_cut_of(*store, head, sink, request)), "cancelled:operation was cancelled");
      EXPECT_EQ(sink.calls, (Calls{"begin", "write", "abort", "reset"}));
      EXPECT_TRUE(sink.live.empty());
      expect_nothing_held(*store);
      EXPECT_FALSE(is_pinned(*store, head));
    }
}

// What the progress callback is told, and whether the rules of its calls are kept.
struct Listener {
  std::vector<std::uint64_t> done{};
  std::uint64_t total = 0;
  std::size_t refuse_at = SIZE_MAX;  // the call that is answered with `answer`
  Status answer = success();
  std::atomic<bool> busy = false;

  std::function<Status(std::uint64_t, std::uint64_t)> callback() {
    return [this](std::uint64_t bytes, std::uint64_t of) -> Status {
      EXPECT_FALSE(busy.exchange(true));
      done.push_back(bytes);
      total = of;
      Status said = done.size() > refuse_at ? answer : success();
      busy = false;
      return said;
    };
  }
};

TEST(StoreRestore, ProgressGoesFromNothingToEveryByteBeforeTheCommit) {
  for (const bool lends : {false, true})
    for (const unsigned parallelism : {1u, 3u}) {
      StoreFixture f;
      const auto store = f.create();
      const Conversation cut(700);
      const Id32 head = cut.save_checkpoints(*store).head().manifest_id;
      Listener listener;
      RestoreRequest request = on_threads(parallelism);
      request.progress = listener.callback();
      class Checking : public MemorySink {
       public:
        const Listener* listener = nullptr;
        Status commit_restore() override {
          EXPECT_EQ(listener->done.back(), listener->total);
          return MemorySink::commit_restore();
        }
      } sink;
      sink.listener = &listener;
      sink.lends = lends;
      const auto restored = restore_cut_of(*store, head, sink, request);
      ASSERT_EQ(verdict(restored), "ok");
      EXPECT_EQ(listener.total, restored->restored_bytes);
      ASSERT_EQ(listener.done.size(), 7u);  // 6 chunks
      EXPECT_EQ(listener.done.front(), 0u);
      EXPECT_TRUE(std::ranges::is_sorted(listener.done));
      EXPECT_EQ(std::ranges::adjacent_find(listener.done), listener.done.end());
      EXPECT_EQ(listener.done.back(), listener.total);
    }
}

TEST(StoreRestore, WhatTheProgressCallbackSaysEndsTheRestoreAndIsNeverDamage) {
  for (const unsigned parallelism : {1u, 3u})
    for (const ErrorCode code : {ErrorCode::kCancelled, ErrorCode::kAuthentication, ErrorCode::kNotFound})
      for (const std::size_t call : {0u, 3u, 6u}) {
        StoreFixture f;
        const auto store = f.create();
        const Conversation cut(700);
        const Id32 head = cut.save_checkpoints(*store).head().manifest_id;
        Listener listener;
        listener.refuse_at = call;
        listener.answer = fail(code, "enough").with("object", chunks_of(*store, head)[0].object_key.hex());
        RestoreRequest request = on_threads(parallelism);
        request.progress = listener.callback();
        MemorySink sink;
        const auto ended = restore_deepest(*store, cut.query(), sink, request);
        ASSERT_FALSE(ended.has_value());
        EXPECT_EQ(ended.error().code, code);
        EXPECT_EQ(ended.error().message, "enough");
        EXPECT_EQ(context_of(ended.error(), "object"), "");
        EXPECT_EQ(sink.calls, kUndone);
        EXPECT_EQ(listener.done.size(), call + 1);
        EXPECT_TRUE(f.faults.empty());
        expect_nothing_held(*store);
      }
}

TEST(StoreRestore, ProgressBeginsAgainForEachCutThatIsTried) {
  StoreFixture f;
  const auto store = f.create();
  const Conversation cut(512);
  const SaveResult saved = cut.save_checkpoints(*store);
  const auto chunks = chunks_of(*store, saved.head().manifest_id);
  flip_bit(path_of(*store, ObjectKind::kChunk, chunks.back().object_key), 4'200);
  Listener listener;
  RestoreRequest request = on_threads(1);
  request.progress = listener.callback();
  MemorySink sink;
  const auto deepest = restore_deepest(*store, cut.query(), sink, request);
  ASSERT_EQ(verdict(deepest), "ok");
  ASSERT_TRUE(deepest->restored.has_value());
  EXPECT_EQ(deepest->restored->cut.token_count, 256u);
  EXPECT_EQ(std::ranges::count(listener.done, 0u), 2);
  EXPECT_EQ(listener.total, 256u * 16);
  EXPECT_EQ(listener.done.back(), listener.total);
}

TEST(StoreRestore, ADamagedChunkIsTheSameErrorOnAnyNumberOfThreads) {
  std::vector<std::string> verdicts;
  for (const bool lends : {false, true})
    for (const unsigned parallelism : {1u, 2u, 4u}) {
      StoreFixture f;
      const auto store = f.create();
      const Conversation cut(1'000);
      const SaveResult saved = cut.save_checkpoints(*store);
      const auto planned = plan(*store, saved.head().manifest_id);
      ASSERT_EQ(verdict(planned), "ok");
      // Two of them, different in kind: the first in order counts.
      const auto& chunks = planned->operations().chunks();
      flip_bit(path_of(*store, ObjectKind::kChunk, chunks[3].ref.object_key));
      std::filesystem::remove(path_of(*store, ObjectKind::kChunk, chunks[5].ref.object_key));
      MemorySink sink;
      sink.lends = lends;
      const auto restored = restore(*store, *planned, sink, on_threads(parallelism));
      ASSERT_FALSE(restored.has_value());
      verdicts.push_back(restored.error().verdict() + context_of(restored.error(), "object") +
                         context_of(restored.error(), "state") + context_of(restored.error(), "tokens"));
      EXPECT_EQ(context_of(restored.error(), "object"), chunks[3].ref.object_key.hex());
      EXPECT_EQ(Calls(sink.calls.end() - 2, sink.calls.end()), (Calls{"abort", "reset"}));
      EXPECT_TRUE(sink.live.empty());
      expect_nothing_held(*store);
      ASSERT_EQ(f.faults.size(), 1u);
      EXPECT_EQ(f.faults[0].object, StoreFault::Object::kChunk);
      EXPECT_EQ(f.faults[0].action, StoreFault::Action::kQuarantined);
      EXPECT_EQ(f.faults[0].token_count, 1'000u);
    }
  for (const std::string& verdict : verdicts) EXPECT_EQ(verdict, verdicts[0]);
}

// A sink that does something between a failure and its report.
class InterruptedSink final : public MemorySink {
 public:
  std::function<void()> on_abort{};
  void abort_restore() noexcept override {
    MemorySink::abort_restore();
    if (on_abort) std::exchange(on_abort, nullptr)();
  }
};

TEST(StoreRestore, DamageThatHasBeenHealedBeforeItIsReportedIsLeftAlone) {
  for (const bool encrypt : {false, true}) {
    StoreFixture f;
    const auto store = f.create();
    const Conversation cut(512);
    SaveRequest request = cut.request();
    request.encrypt = encrypt;
    const Id32 head = cut.save(*store, request).head().manifest_id;
    const auto planned = plan(*store, head);
    ASSERT_EQ(verdict(planned), "ok");
    const std::string path =
        path_of(*store, ObjectKind::kChunk, planned->operations().chunks()[0].ref.object_key);
    flip_bit(path);
    // While one restore has met the damage and not told yet, another one tells, and a save heals it.
    InterruptedSink late;
    late.on_abort = [&] {
      MemorySink early;
      EXPECT_EQ(restore_deepest(*store, cut.query(), early)->faults.size(), 1u);
      EXPECT_FALSE(cut.save(*store, request).replayed);
    };
    EXPECT_EQ(verdict(restore(*store, *planned, late)), "authentication:chunk object digest mismatch");
    ASSERT_EQ(f.faults.size(), 2u);
    EXPECT_EQ(f.faults[0].action, StoreFault::Action::kQuarantined);
    EXPECT_EQ(f.faults[1].action, StoreFault::Action::kSkipped);
    EXPECT_EQ(f.faults[1].path, path);
    // Encrypted again it has another name.
    EXPECT_EQ(std::filesystem::exists(path), !encrypt);
    EXPECT_EQ(store->context().counters.value(Counter::kObjectsQuarantined), 1u);
    MemorySink sink;
    const auto again = restore_deepest(*store, cut.query(), sink);
    ASSERT_TRUE(again.has_value() && again->restored);
    EXPECT_TRUE(again->faults.empty());
    EXPECT_EQ(sink.live, cut.planes());
    testing::expect_sound(*store);
  }
}

TEST(StoreRestore, EveryWayInWhichAChunkCanChangeAfterThePlanIsNoticed) {
  const auto attempt = [](const std::function<void(const std::string&)>& change) {
    StoreFixture f;
    const auto store = f.create();
    const SaveResult saved = Conversation(256).save(*store);
    const auto planned = plan(*store, saved.head().manifest_id);
    const auto& chunks = planned->operations().chunks();
    change(path_of(*store, ObjectKind::kChunk, chunks[0].ref.object_key));
    MemorySink sink;
    const auto restored = restore(*store, *planned, sink);
    EXPECT_EQ(sink.calls, kUndone);
    return verdict(restored);
  };
  const std::string mismatch = "authentication:pinned chunk metadata mismatch";
  EXPECT_EQ(attempt([](const std::string& path) { std::filesystem::remove(path); }),
            "not_found:artifact not found");
  EXPECT_EQ(attempt([](const std::string& path) { std::filesystem::resize_file(path, 8'191); }), mismatch);
  EXPECT_EQ(attempt([](const std::string& path) { std::filesystem::resize_file(path, 8'193); }), mismatch);
  EXPECT_EQ(attempt([](const std::string& path) {
              std::filesystem::rename(path, path + ".away");
              std::filesystem::create_symlink(path + ".away", path);
            }),
            mismatch);
  EXPECT_EQ(attempt([](const std::string& path) {
              std::filesystem::remove(path);
              std::filesystem::create_directory(path);
            }),
            mismatch);
  EXPECT_EQ(attempt([](const std::string& path) { flip_bit(path, 0); }),
            "bad_magic:invalid production chunk magic");
  EXPECT_EQ(attempt([](const std::string& path) { flip_bit(path, 4'200); }),
            "authentication:chunk object digest mismatch");
}

TEST(StoreRestore, RowsAreLookedAtAgainOnceTheCutIsPinned) {
  StoreFixture f;
  const auto store = f.create();
  const Conversation cut(512);
  const SaveResult saved = cut.save_checkpoints(*store);
  const Id32 head = saved.head().manifest_id;
  const auto planned = plan(*store, head);
  ASSERT_EQ(verdict(planned), "ok");
  const Id32 chunk = chunks_of(*store, head)[0].object_key;
  const auto change = [&](const char* sql, const Id32& id) {
    const Status done =
        store->context().catalog->write([&](sqlite::Database& db) { return db.run(sql, id); });
    ASSERT_EQ(verdict(done), "ok");
  };
  MemorySink sink;
  change("UPDATE chunks SET object_digest = zeroblob(32) WHERE object_key = ?", chunk);
  EXPECT_EQ(verdict(restore(*store, *planned, sink)), "authentication:chunk catalog reference mismatch");
  change("UPDATE chunks SET state = 2 WHERE object_key = ?", chunk);
  EXPECT_EQ(verdict(restore(*store, *planned, sink)), "authentication:chunk catalog reference mismatch");
  change("UPDATE manifests SET state = 2 WHERE manifest_id = ?", saved.cuts[0].manifest_id);
  EXPECT_EQ(verdict(restore(*store, *planned, sink)), "not_found:artifact not found");
  EXPECT_TRUE(sink.calls.empty());
  EXPECT_TRUE(f.faults.empty());
  expect_nothing_held(*store);
}

TEST(StoreRestore, APlanOfACutThatWasEvictedMeanwhileIsNotFound) {
  StoreFixture f;
  const auto store = f.create();
  const Id32 head = Conversation(256).save(*store).head().manifest_id;
  const auto planned = plan(*store, head);
  ASSERT_EQ(verdict(evict(*store, head)), "ok");
  MemorySink sink;
  EXPECT_EQ(verdict(restore(*store, *planned, sink)), "not_found:artifact not found");
  EXPECT_TRUE(sink.calls.empty());
  EXPECT_EQ(verdict(plan(*store, head)), "not_found:artifact not found");
}

TEST(StoreRestore, DeepestRestoresTheDeepestAndSaysWhatIsLeft) {
  StoreFixture f;
  const auto store = f.create();
  const Conversation cut(512);
  const SaveResult saved = cut.save_checkpoints(*store);
  MemorySink sink;
  auto deepest = restore_deepest(*store, Conversation(600).query(), sink);
  ASSERT_EQ(verdict(deepest), "ok");
  ASSERT_TRUE(deepest->restored.has_value());
  EXPECT_EQ(deepest->restored->manifest_id, saved.head().manifest_id);
  EXPECT_EQ(deepest->suffix_tokens, 88u);
  EXPECT_TRUE(deepest->faults.empty());
  EXPECT_EQ(sink.live, cut.planes());
  EXPECT_EQ(verdict(deepest->restored->hold.release()), "ok");

  MemorySink untouched;
  const auto miss = restore_deepest(*store, Conversation(600, 2).query(), untouched);
  ASSERT_EQ(verdict(miss), "ok");
  EXPECT_FALSE(miss->restored.has_value());
  EXPECT_EQ(miss->suffix_tokens, 600u);
  EXPECT_TRUE(untouched.calls.empty());
  PrefixQuery query = cut.query();
  query.minimum_epoch = 0;
  EXPECT_EQ(verdict(restore_deepest(*store, query, untouched)),
            "expectation:restore request epoch or candidate bound is invalid");
}

TEST(StoreRestore, DeepestFallsBackToTheNextWholeCut) {
  StoreFixture f;
  const auto store = f.create();
  const Conversation cut(768);
  const SaveResult saved = cut.save_checkpoints(*store);
  const Id32 damaged = chunks_of(*store, saved.cuts[1].manifest_id)[1].object_key;
  const std::string path = path_of(*store, ObjectKind::kChunk, damaged);
  flip_bit(path, 4'200);
  MemorySink sink;
  auto deepest = restore_deepest(*store, cut.query(), sink);
  ASSERT_EQ(verdict(deepest), "ok");
  ASSERT_TRUE(deepest->restored.has_value());
  EXPECT_EQ(deepest->restored->cut.token_count, 256u);
  EXPECT_EQ(deepest->suffix_tokens, 512u);
  EXPECT_EQ(sink.live, cut.planes(256));
  EXPECT_EQ(sink.calls, (Calls{"begin", "abort", "reset", "begin", "commit"}));
  // The cuts of 768 and of 512 tokens stand on it.
  ASSERT_EQ(deepest->faults.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(deepest->faults[i].id, damaged);
    EXPECT_EQ(deepest->faults[i].token_count, 768 - 256 * i);
    EXPECT_EQ(deepest->faults[i].error.verdict(), "authentication:chunk object digest mismatch");
  }
  EXPECT_EQ(f.faults.size(), 2u);
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_EQ((*find_deepest(*store, cut.query()))->token_count, 256u);
  testing::expect_sound(*store);
}

TEST(StoreRestore, AStrictStoreReturnsTheDamageOfTheDeepestAndMovesNothing) {
  StoreFixture f;
  f.options.strict = true;
  const auto store = f.create();
  const Conversation cut(512);
  const SaveResult saved = cut.save_checkpoints(*store);
  const Id32 damaged = chunks_of(*store, saved.head().manifest_id)[0].object_key;
  const std::string path = path_of(*store, ObjectKind::kChunk, damaged);
  flip_bit(path, 4'200);
  MemorySink sink;
  EXPECT_EQ(verdict(restore_deepest(*store, cut.query(), sink)),
            "authentication:chunk object digest mismatch");
  EXPECT_EQ(sink.calls, kUndone);
  EXPECT_TRUE(std::filesystem::exists(path));
  ASSERT_EQ(f.faults.size(), 1u);
  EXPECT_EQ(f.faults[0].action, StoreFault::Action::kSkipped);
  EXPECT_EQ((*find_deepest(*store, cut.query()))->token_count, 512u);
  // An absent file is a miss in any mode.
  std::filesystem::remove(path);
  EXPECT_EQ(restore_deepest(*store, cut.query(), sink)->restored->cut.token_count, 256u);
}

TEST(StoreRestore, ADamagedBaseOfFourCutsIsReportedOncePerCutAndHealedByTheNextSave) {
  for (const bool encrypt : {false, true}) {
    StoreFixture f;
    const auto store = f.create();
    const Conversation cut(1'024);
    const SaveResult saved = cut.save_checkpoints(*store, kPrefixBlockTokens, encrypt);
    ASSERT_EQ(saved.cuts.size(), 4u);
    const Id32 damaged = chunks_of(*store, saved.cuts[0].manifest_id)[0].object_key;
    flip_bit(path_of(*store, ObjectKind::kChunk, damaged), 4'200);
    MemorySink sink;
    const auto deepest = restore_deepest(*store, cut.query(), sink);
    ASSERT_EQ(verdict(deepest), "ok");
    EXPECT_FALSE(deepest->restored.has_value());
    EXPECT_EQ(deepest->suffix_tokens, 1'024u);
    ASSERT_EQ(deepest->faults.size(), 4u);
    for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(deepest->faults[i].token_count, 1'024 - 256 * i);
    const auto offered = candidates(*store, cut.query());
    ASSERT_EQ(verdict(offered), "ok");
    ASSERT_EQ(offered->candidates.size(), 1u);
    EXPECT_EQ(offered->candidates[0].tier, RestoreTier::kRecompute);
    EXPECT_EQ(f.faults.size(), 4u);
    testing::expect_sound(*store);
    cut.save_checkpoints(*store, kPrefixBlockTokens, encrypt);
    MemorySink healed;
    EXPECT_EQ(restore_deepest(*store, cut.query(), healed)->restored->cut.token_count, 1'024u);
    EXPECT_EQ(healed.live, cut.planes());
    testing::expect_sound(*store);
  }
}

TEST(StoreRestore, AFileThatVanishesDuringTheRestoreMakesItLookAgain) {
  StoreFixture f;
  const auto store = f.create();
  const Conversation cut(768);
  const SaveResult saved = cut.save_checkpoints(*store);
  const std::string path =
      path_of(*store, ObjectKind::kChunk, chunks_of(*store, saved.head().manifest_id)[1].object_key);
  MemorySink sink;
  sink.lends = false;
  // The plan has seen the file; it goes when the first piece is written.
  sink.on_write = [&] { std::filesystem::remove(path); };
  const auto deepest = restore_deepest(*store, cut.query(), sink, on_threads(1));
  ASSERT_EQ(verdict(deepest), "ok");
  EXPECT_EQ(deepest->restored->cut.token_count, 512u);
  EXPECT_EQ(sink.calls, (Calls{"begin", "write", "abort", "reset", "begin", "write", "commit"}));
  EXPECT_TRUE(f.faults.empty());
}

TEST(StoreRestore, QuotaCancelAndSinkErrorsEndTheSearch) {
  StoreFixture f;
  const Conversation cut(512);
  {
    const auto store = f.create();
    cut.save_checkpoints(*store);
    MemorySink sink;
    sink.fail_at = "begin";
    EXPECT_EQ(verdict(restore_deepest(*store, cut.query(), sink)), "install:the engine refused to begin");
    EXPECT_EQ(sink.calls, kUndone);
  }
  f.options.memory.shadow_bytes = 512 * 16 - 1;
  const auto store = f.open();
  MemorySink sink;
  EXPECT_EQ(verdict(restore_deepest(*store, cut.query(), sink)),
            "quota:authenticated restore plan exceeds declared resource limits");
  EXPECT_TRUE(sink.calls.empty());
}

TEST(StoreRestore, RestoresAreCountedAndAccessesWrittenDown) {
  StoreFixture f;
  const auto store = f.create();
  const Conversation cut(512);
  const SaveResult saved = cut.save_checkpoints(*store);
  const auto count = [&](Counter counter) { return store->context().counters.value(counter); };
  MemorySink sink;
  f.clock.advance_ms(5'000);
  const std::uint64_t used_ns = f.clock.wall_ms() * 1'000'000;
  ASSERT_EQ(verdict(restore_cut_of(*store, saved.head().manifest_id, sink)), "ok");
  sink.fail_at = "commit";
  ASSERT_EQ(verdict(restore_cut_of(*store, saved.head().manifest_id, sink)),
            "install:the engine refused to commit");
  EXPECT_EQ(count(Counter::kRestoresAttempted), 2u);
  EXPECT_EQ(count(Counter::kRestoresCommitted), 1u);
  EXPECT_EQ(count(Counter::kRestoresRefused), 1u);
  EXPECT_EQ(count(Counter::kRestoreBytes), 512u * 16);
  // 30 seconds after the last time the next restore writes it all down.
  f.clock.advance_ms(30'000);
  (void)restore_cut_of(*store, saved.head().manifest_id, sink);
  EXPECT_EQ(count(Counter::kRestoresAttempted), 0u);
  for (const PublishedCut& published : saved.cuts) {
    const auto access = store->context().catalog->read([&](sqlite::Database& db) {
      return db.number("SELECT access_ns FROM manifests WHERE manifest_id = ?", published.manifest_id);
    });
    EXPECT_EQ(**access, static_cast<std::int64_t>(used_ns));
  }
}

TEST(StoreRestore, ThreadsRestoreWhileAnotherSavesAndEvicts) {
  StoreFixture f;
  f.options.on_fault = nullptr;
  const auto store = f.create();
  const Conversation cut(700);
  cut.save_checkpoints(*store);
  std::atomic<bool> ended{false};
  std::atomic<unsigned> whole{0};
  std::vector<std::jthread> readers;
  for (unsigned t = 0; t < 3; ++t)
    readers.emplace_back([&, t] {
      while (!ended) {
        MemorySink sink;
        sink.lends = t != 0;
        sink.thread = std::this_thread::get_id();
        auto deepest = restore_deepest(*store, cut.query(), sink, on_threads(2));
        ASSERT_EQ(verdict(deepest), "ok");
        ASSERT_TRUE(deepest->faults.empty());
        if (!deepest->restored) continue;
        ++whole;
        ASSERT_EQ(sink.live, cut.planes(sink.live_tokens));
        ASSERT_EQ(verdict(deepest->restored->hold.release()), "ok");
      }
    });
  for (int round = 0; round < 10; ++round) {
    SaveResult saved = cut.save_checkpoints(*store);
    for (; !saved.cuts.empty(); saved.cuts.pop_back()) {
      const std::string evicted = verdict(evict(*store, saved.cuts.back().manifest_id));
      EXPECT_TRUE(evicted == "ok" || evicted == "busy:resource is busy" ||
                  evicted == "not_found:artifact not found")
          << evicted;
    }
  }
  cut.save_checkpoints(*store);
  while (whole == 0) std::this_thread::yield();
  ended = true;
  readers.clear();
  expect_nothing_held(*store);
  testing::expect_sound(*store);
}

TEST(StoreRestore, WhatWasReadWronglyOnceIsReadAgain) {
  for (const ObjectKind kind : {ObjectKind::kManifest, ObjectKind::kChunk}) {
    testing::FakeStoreFixture f;
    const auto store = f.create();
    const Conversation cut(512);
    const Id32 head = cut.save_checkpoints(*store).head().manifest_id;
    const std::string path =
        path_of(*store, kind, kind == ObjectKind::kManifest ? head : chunks_of(*store, head)[0].object_key);
    const Bytes good = *f.files.file(path);
    Bytes bad = good;
    bad[4'200] ^= 1;
    unsigned opened = 0;
    f.files.before_operation([&](const testing::Operation& operation) {
      if (operation.verb == "open" && operation.path == path)
        f.files.put_file(path, opened++ == 0 ? bad : good);
    });
    MemorySink sink;
    const auto deepest = restore_deepest(*store, cut.query(), sink);
    f.files.before_operation(nullptr);
    ASSERT_EQ(verdict(deepest), "ok");
    EXPECT_EQ(deepest->restored->cut.token_count, 512u);
    EXPECT_EQ(sink.live, cut.planes());
    EXPECT_EQ(opened, 2u);
    EXPECT_TRUE(f.faults.empty());
  }
}

TEST(StoreRestore, EveryFailingFileOperationEndsInAWholeCutOrInAnError) {
  for (const bool read_only : {false, true}) {
    testing::FakeStoreFixture f;
    auto writer = f.create();
    const Conversation cut(512);
    cut.save_checkpoints(*writer);
    std::unique_ptr<Store> reader;
    if (read_only) reader = *Store::open_read_only(f.options);
    Store& store = read_only ? *reader : *writer;
    const auto attempt = [&] {
      MemorySink sink;
      auto deepest = restore_deepest(store, cut.query(), sink);
      if (!deepest.has_value()) {
        EXPECT_EQ(deepest.error().code, ErrorCode::kIo) << deepest.error().verdict();
        EXPECT_TRUE(sink.live.empty());
        return std::uint64_t{0};
      }
      if (!deepest->restored) {
        EXPECT_TRUE(sink.live.empty());
        return std::uint64_t{0};
      }
      EXPECT_EQ(sink.live, cut.planes(sink.live_tokens));
      EXPECT_EQ(verdict(deepest->restored->hold.release()), "ok");
      return sink.live_tokens;
    };
    const std::size_t before = f.files.operation_count();
    ASSERT_EQ(attempt(), 512u);
    const std::size_t operations = f.files.operation_count() - before;
    ASSERT_GT(operations, 20u);
    for (std::size_t k = 0; k < operations; ++k)
      for (const int error : {EIO, ENOSPC}) {
        SCOPED_TRACE(std::to_string(k));
        f.files.fail_operation(k, error);
        attempt();
        f.files.clear_faults();
        expect_nothing_held(store);
        EXPECT_EQ(attempt(), 512u);
      }
    testing::expect_sound(*writer);
    // Reading errors are no damage.
    for (const StoreFault& fault : f.faults) EXPECT_EQ(fault.action, StoreFault::Action::kSkipped);
  }
}

}  // namespace
}  // namespace kvpack::restore_test
