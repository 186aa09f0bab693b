#include "kvpack/store/adapter.h"

#include "support/saved_cuts.h"
#include "support/store_checks.h"

namespace kvpack::adapter_test {
namespace {

using testing::context_of;
using testing::Conversation;
using testing::StoreFixture;
using testing::verdict;

using Calls = std::vector<std::string>;

// Reads a plane in small pieces.
class PieceSource final : public StateSource {
 public:
  explicit PieceSource(ByteSpan bytes) : rest_(bytes) {}
  Result<std::size_t> read(MutableByteSpan out) override {
    const std::size_t n = std::min({out.size(), rest_.size(), std::size_t{100}});
    std::ranges::copy(rest_.first(n), out.begin());
    rest_ = rest_.subspan(n);
    return n;
  }

 private:
  ByteSpan rest_;
};

// An engine whose state is what a conversation's planes say, and that fails where it is told to.
class FakeEngine {
 public:
  explicit FakeEngine(const Conversation& conversation) : conversation_(conversation) {}

  std::string fail_at{};
  bool lends = true;
  bool streams = false;
  bool names_a_state_twice = false;
  bool leaves_a_state_out = false;
  bool has_a_state_too_many = false;
  std::vector<std::uint32_t> tokens{};
  std::vector<Bytes> planes{};
  std::uint64_t live_tokens = 0;
  bool known_good = true;  // false: nobody knows what is live
  Calls calls{};

  // As after computing the first tokens of the conversation.
  void compute(std::uint64_t count) {
    tokens.assign(conversation_.tokens().begin(),
                  conversation_.tokens().begin() + static_cast<std::ptrdiff_t>(count));
    planes = conversation_.planes(count);
    live_tokens = count;
  }

  EngineIdentity identity() const {
    return {.semantic_model = Conversation::model(), .family = &conversation_.family()};
  }
  Status exclude_mutation() { return answer("exclude"); }
  void allow_mutation() noexcept { calls.emplace_back("allow"); }
  Status synchronize() { return answer("synchronize"); }
  Result<EngineInventory> inventory() {
    KVPACK_TRY(answer("inventory"));
    EngineInventory all;
    all.tokens = tokens;
    sources_.clear();
    // Not in family order.
    for (const std::size_t i : {std::size_t{1}, std::size_t{0}}) {
      if (leaves_a_state_out && i == 0) continue;
      EnginePlane plane;
      plane.layout.key = conversation_.family().family().states[i].key;
      plane.bytes = planes[i];
      if (streams && i == 1)
        plane.source = sources_.emplace_back(std::make_unique<PieceSource>(planes[i])).get();
      all.planes.push_back(plane);
      if (names_a_state_twice) all.planes.push_back(plane);
    }
    if (has_a_state_too_many) all.planes.emplace_back().layout.key = {7, "x"};
    return all;
  }
  Status check_restore(const AuthenticatedPlan& plan) {
    EXPECT_EQ(plan.states().size(), 2u);
    return answer("check");
  }
  Status begin_restore(const AuthenticatedPlan& plan) {
    staged_.clear();
    staged_tokens_ = plan.cut().token_count;
    for (const PlannedState& state : plan.states())
      staged_.emplace_back(static_cast<std::size_t>(state.complete_physical_bytes));
    return answer("begin");
  }
  MutableByteSpan lend(std::size_t state) {
    return lends ? MutableByteSpan(staged_[state]) : MutableByteSpan{};
  }
  Status write_verified_chunk(std::size_t state, std::uint64_t offset, ByteSpan plaintext) {
    std::ranges::copy(plaintext, staged_[state].begin() + static_cast<std::ptrdiff_t>(offset));
    return answer("write");
  }
  Status commit_restore() {
    if (fail_at == "commit") known_good = false;
    KVPACK_TRY(answer("commit"));
    planes = std::move(staged_);
    live_tokens = staged_tokens_;
    return success();
  }
  void abort_restore() noexcept {
    calls.emplace_back("abort");
    staged_.clear();
  }
  Status reset_restore() {
    KVPACK_TRY(answer("reset"));
    known_good = true;
    return success();
  }

 private:
  Status answer(const std::string& call) {
    if (calls.empty() || calls.back() != call) calls.push_back(call);
    if (call == fail_at) return fail(ErrorCode::kInstall, "the engine fails to " + call);
    return success();
  }
  const Conversation& conversation_;
  std::vector<Bytes> staged_{};
  std::uint64_t staged_tokens_ = 0;
  std::vector<std::unique_ptr<PieceSource>> sources_{};
};
static_assert(EngineAdapter<FakeEngine>);
static_assert(!EngineAdapter<testing::MemorySink>);

TEST(StoreAdapter, SavesAndGoesOnInAnotherEngine) {
  for (const bool lends : {false, true})
    for (const bool streams : {false, true})
      for (const SaveKind kind : {SaveKind::kSingleCut, SaveKind::kCutExport}) {
        StoreFixture f;
        const auto store = f.create();
        const Conversation conversation(700);
        FakeEngine engine(conversation);
        engine.compute(600);
        engine.streams = streams;
        SaveRequest how;
        how.kind = kind;
        const auto saved = save_from_engine(*store, engine, how);
        ASSERT_EQ(verdict(saved), "ok");
        EXPECT_EQ(engine.calls, (Calls{"exclude", "synchronize", "inventory", "allow"}));
        EXPECT_EQ(saved->head().cut.token_count, 600u);

        FakeEngine other(conversation);
        other.lends = lends;
        const auto deepest = restore_into_engine(*store, other, conversation.tokens());
        ASSERT_EQ(verdict(deepest), "ok");
        // The cut of 600 tokens ends inside a block, so a longer input finds the last full block.
        const std::uint64_t expected = kind == SaveKind::kCutExport ? 512 : 0;
        EXPECT_EQ(deepest->suffix_tokens, 700 - expected);
        EXPECT_EQ(other.live_tokens, expected);
        const auto exact = restore_into_engine(*store, other, conversation.tokens().first(600));
        ASSERT_EQ(verdict(exact), "ok");
        EXPECT_EQ(exact->suffix_tokens, 0u);
        EXPECT_EQ(other.planes, conversation.planes(600));
        EXPECT_EQ(store->context().holds.held().holds, 0u);
        testing::expect_sound(*store);
      }
}

TEST(StoreAdapter, TheOrderOfCallsOfARestore) {
  StoreFixture f;
  const auto store = f.create();
  const Conversation conversation(256);
  conversation.save(*store);
  FakeEngine engine(conversation);
  engine.lends = false;
  auto deepest = restore_into_engine(*store, engine, conversation.tokens(), {}, {}, AfterRestore::kHold);
  ASSERT_EQ(verdict(deepest), "ok");
  EXPECT_EQ(engine.calls, (Calls{"synchronize", "check", "begin", "write", "commit"}));
  EXPECT_EQ(store->context().holds.held().holds, 1u);
  EXPECT_EQ(verdict(deepest->restored->hold.release()), "ok");
}

TEST(StoreAdapter, AMissLeavesTheEngineAsItIs) {
  StoreFixture f;
  const auto store = f.create();
  const Conversation conversation(256);
  FakeEngine engine(conversation);
  const auto deepest = restore_into_engine(*store, engine, conversation.tokens());
  ASSERT_EQ(verdict(deepest), "ok");
  EXPECT_FALSE(deepest->restored.has_value());
  EXPECT_EQ(deepest->suffix_tokens, 256u);
  EXPECT_EQ(engine.calls, (Calls{"synchronize"}));
}

TEST(StoreAdapter, SavingTheSameAgainWritesNothing) {
  StoreFixture f;
  const auto store = f.create();
  const Conversation conversation(600);
  FakeEngine engine(conversation);
  engine.compute(600);
  ASSERT_EQ(verdict(save_from_engine(*store, engine)), "ok");
  const auto again = save_from_engine(*store, engine);
  ASSERT_EQ(verdict(again), "ok");
  EXPECT_TRUE(again->replayed);
  EXPECT_EQ(again->written.chunks, 0u);
}

TEST(StoreAdapter, AnInventoryMustBeTheFamilysAndNameEachStateOnce) {
  StoreFixture f;
  const auto store = f.create();
  const Conversation conversation(256);
  const auto refused = [&](bool FakeEngine::*fault, const std::string& text, const std::string& state) {
    FakeEngine engine(conversation);
    engine.compute(256);
    engine.*fault = true;
    const auto saved = save_from_engine(*store, engine);
    EXPECT_EQ(verdict(saved), text);
    ASSERT_FALSE(saved.has_value());
    EXPECT_EQ(context_of(saved.error(), "state"), state);
    EXPECT_EQ(engine.calls, (Calls{"exclude", "synchronize", "inventory", "allow"}));
  };
  const std::string mismatch = "expectation:engine inventory does not match its representation family";
  refused(&FakeEngine::names_a_state_twice, "state:engine inventory names one state twice", "k");
  refused(&FakeEngine::leaves_a_state_out, mismatch, "k");
  refused(&FakeEngine::has_a_state_too_many, mismatch, "x");
  EXPECT_FALSE(find_deepest(*store, conversation.query())->has_value());
}

TEST(StoreAdapter, AnEngineThatFailsToBeSavedPublishesNothingAndGoesOn) {
  for (const std::string point : {"exclude", "synchronize", "inventory"}) {
    SCOPED_TRACE(point);
    StoreFixture f;
    const auto store = f.create();
    const Conversation conversation(256);
    FakeEngine engine(conversation);
    engine.compute(256);
    engine.fail_at = point;
    EXPECT_EQ(verdict(save_from_engine(*store, engine)), "install:the engine fails to " + point);
    EXPECT_EQ(engine.calls.back(), point == "exclude" ? "exclude" : "allow");
    EXPECT_FALSE(find_deepest(*store, conversation.query())->has_value());
    engine.fail_at.clear();
    EXPECT_EQ(verdict(save_from_engine(*store, engine)), "ok");
  }
}

TEST(StoreAdapter, AStreamThatEndsEarlyPublishesNothing) {
  StoreFixture f;
  const auto store = f.create();
  const Conversation conversation(600);
  FakeEngine engine(conversation);
  engine.compute(600);
  engine.streams = true;
  engine.planes[1].resize(engine.planes[1].size() - 1);
  EXPECT_FALSE(save_from_engine(*store, engine).has_value());
  EXPECT_EQ(engine.calls.back(), "allow");
  EXPECT_FALSE(find_deepest(*store, conversation.query())->has_value());
  testing::expect_sound(*store);
  engine.compute(600);
  EXPECT_EQ(verdict(save_from_engine(*store, engine)), "ok");
}

TEST(StoreAdapter, EveryFailureOfARestoreLeavesAKnownStateAndCanBeTriedAgain) {
  const std::map<std::string, Calls> ends{
      {"synchronize", {"synchronize"}},
      {"check", {"synchronize", "check"}},
      {"begin", {"synchronize", "check", "begin", "abort", "reset"}},
      {"write", {"synchronize", "check", "begin", "write", "abort", "reset"}},
      {"commit", {"synchronize", "check", "begin", "write", "commit", "abort", "reset"}}};
  for (const auto& [point, calls] : ends) {
    SCOPED_TRACE(point);
    StoreFixture f;
    const auto store = f.create();
    const Conversation conversation(256);
    conversation.save(*store);
    FakeEngine engine(conversation);
    engine.lends = false;
    engine.fail_at = point;
    EXPECT_EQ(verdict(restore_into_engine(*store, engine, conversation.tokens())),
              "install:the engine fails to " + point);
    EXPECT_EQ(engine.calls, calls);
    EXPECT_TRUE(engine.known_good);
    EXPECT_TRUE(engine.planes.empty());
    EXPECT_EQ(store->context().holds.held().holds, 0u);
    engine.fail_at.clear();
    EXPECT_EQ(verdict(restore_into_engine(*store, engine, conversation.tokens())), "ok");
    EXPECT_EQ(engine.planes, conversation.planes());
  }
}

TEST(StoreAdapter, ADamagedCutIsResetBeforeTheNextIsTried) {
  StoreFixture f;
  const auto store = f.create();
  const Conversation conversation(512);
  const SaveResult saved = conversation.save_checkpoints(*store);
  testing::flip_bit(testing::path_of(*store, store::ObjectKind::kChunk,
                                     testing::chunks_of(*store, saved.head().manifest_id)[0].object_key),
                    4'200);
  FakeEngine engine(conversation);
  const auto deepest = restore_into_engine(*store, engine, conversation.tokens());
  ASSERT_EQ(verdict(deepest), "ok");
  EXPECT_EQ(engine.live_tokens, 256u);
  EXPECT_EQ(engine.calls,
            (Calls{"synchronize", "check", "begin", "abort", "reset", "check", "begin", "commit"}));
  EXPECT_EQ(deepest->faults.size(), 1u);
}

}  // namespace
}  // namespace kvpack::adapter_test
