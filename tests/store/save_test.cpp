// Saving into a store: single cuts, deltas, exports, streams, refusals, what sessions give back.
#include "kvpack/store/save.h"

#include <filesystem>
#include <random>
#include <thread>

#include "kvpack/store/lookup.h"
#include "store/save_plan.h"
#include "support/planted_store.h"
#include "support/saves.h"

namespace kvpack::store_save_test {
namespace {

using testing::catalog_number;
using testing::expect_no_orphans;
using testing::expect_restores;
using testing::expect_saved;
using testing::expect_sound;
using testing::FakeStoreFixture;
using testing::object_files;
using testing::restored_planes;
using testing::SavableInput;
using testing::save_family;
using testing::save_key;
using testing::save_model;
using testing::small_family;
using testing::StoreFixture;
using testing::verdict_of;

std::vector<std::uint64_t> token_counts(const SaveResult& result) {
  std::vector<std::uint64_t> counts;
  for (const PublishedCut& cut : result.cuts) counts.push_back(cut.cut.token_count);
  return counts;
}

std::vector<unsigned> depths(const SaveResult& result) {
  std::vector<unsigned> out;
  for (const PublishedCut& cut : result.cuts) out.push_back(cut.depth);
  return out;
}

std::int64_t manifests(Store& store) {
  return catalog_number(store, "SELECT manifests FROM store");
}
std::int64_t chunks(Store& store) {
  return catalog_number(store, "SELECT chunks FROM store");
}
std::int64_t reserved_bytes(Store& store) {
  return catalog_number(store, "SELECT reserved_bytes FROM store");
}

/// Gives a state's wire bytes in pieces; throws or fails when told to.
class PieceSource final : public StateSource {
 public:
  explicit PieceSource(Bytes bytes, std::size_t piece = 1'000) : bytes_(std::move(bytes)), piece_(piece) {}
  Result<std::size_t> read(MutableByteSpan out) override {
    if (fails) return fail(ErrorCode::kIo, "device failed");
    if (throws) throw std::runtime_error("source");
    const std::size_t n = std::min({out.size(), bytes_.size() - at_, piece_});
    std::ranges::copy(ByteSpan(bytes_).subspan(at_, n), out.begin());
    at_ += n;
    return n;
  }
  bool fails = false;
  bool throws = false;

 private:
  Bytes bytes_;
  std::size_t piece_;
  std::size_t at_ = 0;
};

// --- many checkpoints from one pass ---

TEST(StoreSave, AnExportOf600TokensHasThreeCutsThatEachRestore) {
  for (const bool encrypt : {true, false}) {
    StoreFixture f;
    const auto store = f.create();
    const SavableInput input(small_family(), 600);
    SaveRequest request = input.request(SaveKind::kCutExport);
    request.encrypt = encrypt;
    const SaveResult saved = expect_saved(*store, request, input.planes());
    EXPECT_EQ(token_counts(saved), (std::vector<std::uint64_t>{256, 512, 600}));
    EXPECT_EQ(depths(saved), (std::vector<unsigned>{0, 1, 2}));
    EXPECT_EQ(saved.source_bytes, 9'600U);
    EXPECT_EQ(saved.written.chunks, 6U);
    EXPECT_EQ(saved.shared, ChunkCounts());
    EXPECT_EQ(manifests(*store), 3);
    EXPECT_EQ(chunks(*store), 6);
    EXPECT_EQ(catalog_number(*store, "SELECT sum(file_bytes) FROM manifests"),
              static_cast<std::int64_t>(saved.manifest_bytes));
    EXPECT_EQ(catalog_number(*store, "SELECT sum(object_bytes) FROM chunks"),
              static_cast<std::int64_t>(saved.written.object_bytes));
    for (const PublishedCut& cut : saved.cuts) {
      EXPECT_EQ(cut.restored_bytes, cut.cut.token_count * 16);
      expect_restores(*store, input, cut);
    }
    const auto hit = find_deepest(
        *store, {.semantic_model = save_model(), .family = &input.family(), .tokens = input.tokens()});
    ASSERT_TRUE(hit.has_value() && hit->has_value());
    EXPECT_EQ((*hit)->manifest_id, saved.head().manifest_id);
    expect_sound(*store);
    expect_no_orphans(*store);
  }
}

TEST(StoreSave, AnExportOfWholeBlocksEndsWithItsLastCheckpoint) {
  StoreFixture f;
  const auto store = f.create();
  const SavableInput input(small_family(), 512);
  const SaveResult saved = expect_saved(*store, input, SaveKind::kCutExport);
  EXPECT_EQ(token_counts(saved), (std::vector<std::uint64_t>{256, 512}));
  EXPECT_EQ(manifests(*store), 2);
  EXPECT_EQ(catalog_number(*store, "SELECT sum(exact_final) FROM prefixes"), 1);
}

TEST(StoreSave, AnExportOfNineBlocksBeginsAnewBehindDepthSeven) {
  StoreFixture f;
  const auto store = f.create();
  const SavableInput input(small_family(), 9 * 256);
  const SaveResult saved = expect_saved(*store, input, SaveKind::kCutExport);
  EXPECT_EQ(depths(saved), (std::vector<unsigned>{0, 1, 2, 3, 4, 5, 6, 7, 0}));
  EXPECT_EQ(chunks(*store), 18);
  expect_restores(*store, input, saved.cuts[7]);
  expect_restores(*store, input, saved.cuts[8]);
  expect_sound(*store);
}

TEST(StoreSave, AStrideOfMoreBlocksMakesFewerCuts) {
  StoreFixture f;
  const auto store = f.create();
  const SavableInput input(small_family(), 1'700);
  SaveRequest request = input.request(SaveKind::kCutExport);
  request.checkpoint_stride_tokens = 512;
  const SaveResult saved = expect_saved(*store, request, input.planes());
  EXPECT_EQ(token_counts(saved), (std::vector<std::uint64_t>{512, 1'024, 1'536, 1'700}));
  EXPECT_EQ(saved.written.chunks, 8U);
  for (const PublishedCut& cut : saved.cuts) expect_restores(*store, input, cut);
}

TEST(StoreSave, AGrowingConversationSharesItsChunks) {
  for (const bool encrypt : {true, false}) {
    StoreFixture f;
    const auto store = f.create();
    std::vector<SaveResult> saved;
    for (const std::size_t tokens : {300U, 600U, 900U}) {
      const SavableInput input(small_family(), tokens);
      SaveRequest request = input.request(SaveKind::kCutExport);
      request.encrypt = encrypt;
      request.idempotency_key = save_key(static_cast<std::uint8_t>(tokens / 300));
      saved.push_back(expect_saved(*store, request, input.planes()));
      for (const PublishedCut& cut : saved.back().cuts) expect_restores(*store, input, cut);
      expect_sound(*store);
      expect_no_orphans(*store);
    }
    EXPECT_EQ(saved[1].shared.chunks, 2U);
    EXPECT_EQ(saved[1].written.chunks, 4U);
    EXPECT_EQ(saved[2].shared.chunks, 4U);
    EXPECT_EQ(saved[2].cuts[0], saved[0].cuts[0]);
    EXPECT_EQ(saved[2].cuts[1], saved[1].cuts[1]);
    // 256, 300, 512, 600, 768 and 900 tokens.
    EXPECT_EQ(manifests(*store), 6);
  }
}

// --- single cuts, deltas, compaction ---

TEST(StoreSave, EightAppendsMakeAChainThatEndsInACompaction) {
  for (const bool encrypt : {true, false}) {
    StoreFixture f;
    const auto store = f.create();
    const IdentifiedFamily family = save_family({{.layer = 0, .name = "k", .dimensions = {kTokenAxis, 4}}});
    SystemFileSystem files;
    std::map<std::string, Bytes> first_files;
    std::optional<Id32> parent;
    SaveRequest request;
    SaveResult saved;
    std::vector<PublishedCut> cuts;
    for (std::size_t tokens = 1; tokens <= 9; ++tokens) {
      SavableInput input(family, tokens);
      input.only_from(tokens - 1);
      request = input.request();
      request.encrypt = encrypt;
      request.parent = parent;
      saved = expect_saved(*store, request, input.planes());
      EXPECT_EQ(saved.written.chunks, 1U);
      EXPECT_EQ(saved.head().depth, tokens == 9 ? 0 : tokens - 1);
      parent = saved.head().manifest_id;
      cuts.push_back(saved.head());
      expect_restores(*store, SavableInput(family, tokens), saved.head());
      expect_sound(*store);
      for (const auto& entry :
           std::filesystem::recursive_directory_iterator(f.options.root + "/objects/chunks"))
        if (entry.is_regular_file()) {
          const Bytes bytes = *read_file_bounded(files, entry.path().string(), 1U << 20);
          const auto [known, is_new] = first_files.emplace(entry.path().string(), bytes);
          EXPECT_TRUE(is_new || known->second == bytes);
        }
    }
    EXPECT_EQ(manifests(*store), 9);
    EXPECT_EQ(chunks(*store), 9);
    EXPECT_EQ(first_files.size(), 9U);
    const auto head = store::authenticate_chain(store->context(), *parent);
    ASSERT_TRUE(head.has_value());
    EXPECT_EQ(head->links().size(), 1U);
    EXPECT_EQ(head->head().payload[0].chunks.size(), 9U);

    // The ninth again, and the second.
    SavableInput ninth(family, 9);
    ninth.only_from(8);
    request = ninth.request();
    request.encrypt = encrypt;
    request.parent = cuts[7].manifest_id;
    const SaveResult again = expect_saved(*store, request, ninth.planes());
    EXPECT_TRUE(again.replayed);
    EXPECT_EQ(again.cuts, saved.cuts);
    SavableInput second(family, 2);
    second.only_from(1);
    request = second.request();
    request.encrypt = encrypt;
    request.parent = cuts[0].manifest_id;
    EXPECT_EQ(expect_saved(*store, request, second.planes()).head(), cuts[1]);
    EXPECT_EQ(manifests(*store), 9);
    EXPECT_EQ(chunks(*store), 9);
  }
}

TEST(StoreSave, AWindowIsSavedWithTheCutAndAnExportRefusesIt) {
  StoreFixture f;
  const auto store = f.create();
  const IdentifiedFamily family = save_family({{.layer = 0, .name = "full", .dimensions = {kTokenAxis, 4}},
                                               {.layer = 1,
                                                .name = "swa",
                                                .dimensions = {2, kTokenAxis, 2},
                                                .token_axis_rule = TokenAxisRule::kTailWindow}});
  const SavableInput input(family, 700);
  const SaveResult saved = expect_saved(*store, input);
  expect_restores(*store, input, saved.head());
  EXPECT_EQ(verdict_of(SaveSession::begin(*store, input.request(SaveKind::kCutExport))),
            "semantics:tail-window states require one nonempty full snapshot");
  SavableInput longer(family, 800);
  SaveRequest delta = longer.request();
  delta.parent = saved.head().manifest_id;
  EXPECT_EQ(verdict_of(SaveSession::begin(*store, delta)),
            "semantics:tail-window states require one nonempty full snapshot");
}

TEST(StoreSave, AParentMustBeAStoredCutOfTheSameInput) {
  StoreFixture f;
  f.options.keys = testing::test_keys({.minimum_readable = 1, .active = 2});
  f.options.epochs = {.minimum_readable = 1, .active = 1};
  auto store = f.create();
  const SavableInput base(small_family(), 300);
  const Id32 parent = expect_saved(*store, base).head().manifest_id;
  const auto verdict = [&](const SavableInput& input, const Id32& on) {
    SaveRequest request = input.request();
    request.parent = on;
    return verdict_of(SaveSession::begin(*store, request));
  };
  const SavableInput longer(small_family(), 400);
  EXPECT_EQ(verdict(longer, parent), "success");
  EXPECT_EQ(verdict(longer, Id32::filled(9)), "not_found:artifact not found");
  EXPECT_EQ(verdict(base, parent), "expectation:delta parent cut is not a strict prefix of the child input");
  EXPECT_EQ(verdict(SavableInput(small_family(), 400, 2), parent),
            "expectation:delta parent cut does not identify the exact child prefix");
  SavableInput late(small_family(), 400);
  late.only_from(301);
  EXPECT_EQ(verdict(late, parent), "state:plane does not hold the tokens of the cut");
  store.reset();
  f.options.epochs = {.minimum_readable = 1, .active = 2};
  store = f.open();
  EXPECT_EQ(verdict(longer, parent), "expectation:delta parent is not compatible with the declared child");
  EXPECT_EQ(reserved_bytes(*store), 0);
}

TEST(StoreSave, TwoSavesOfOnePrefixShareUnderTheAlignedRuleAlone) {
  // 26 global states and as many windows: a grain of 2,048 tokens gives two chunks of each below 4,096.
  std::vector<StateSpec> states;
  for (std::uint32_t layer = 0; layer < 26; ++layer)
    for (const bool window : {false, true})
      states.push_back({.layer = layer / 2,
                        .name = std::string(layer % 2 == 0 ? "k" : "v") + (window ? ".swa" : ""),
                        .dimensions = {kTokenAxis, 2},
                        .token_axis_rule = window ? TokenAxisRule::kTailWindow : TokenAxisRule::kDirect});
  const IdentifiedFamily family = save_family(std::move(states));
  for (const auto rule : {SpanPolicy::Rule::kAligned, SpanPolicy::Rule::kUpstream}) {
    FakeStoreFixture f;
    const auto store = f.create();
    for (const std::size_t tokens : {4'096U, 6'144U}) {
      const SavableInput input(family, tokens);
      SaveRequest request = input.request();
      request.spans.rule = rule;
      request.encrypt = false;
      const SaveResult saved = expect_saved(*store, request, input.planes());
      const bool shares = tokens == 6'144 && rule == SpanPolicy::Rule::kAligned;
      EXPECT_EQ(saved.shared.chunks, shares ? 52U : 0U);
    }
    EXPECT_EQ(catalog_number(*store, "SELECT count(*) FROM chunks WHERE refcount = 2"),
              rule == SpanPolicy::Rule::kAligned ? 52 : 0);
  }
}

TEST(StoreSave, AnExportsChunksEndAtBlocksAndAtFourMebibytes) {
  StoreFixture f;
  const auto store = f.create();
  const SavableInput input(save_family({{.layer = 0, .name = "k", .dimensions = {kTokenAxis, 16'384}}}), 300);
  const SaveResult saved = expect_saved(*store, input, SaveKind::kCutExport);
  EXPECT_EQ(saved.written.chunks, 3U);
  const auto chain = store::authenticate_chain(store->context(), saved.head().manifest_id);
  ASSERT_TRUE(chain.has_value());
  std::vector<std::pair<std::uint64_t, std::uint64_t>> spans;
  for (const ChainChunk& chunk : chain_chunks(*chain))
    spans.emplace_back(chunk.span.token_start, chunk.span.token_count);
  EXPECT_EQ(spans, (std::vector<std::pair<std::uint64_t, std::uint64_t>>{{0, 128}, {128, 128}, {256, 44}}));
  expect_restores(*store, input, saved.head());
}

// --- sessions ---

TEST(StoreSave, PlanesAndStreamsStateByStateGiveTheSameCuts) {
  const IdentifiedFamily family =
      save_family({{.layer = 0, .name = "a", .dimensions = {kTokenAxis, 3}},
                   {.layer = 0, .name = "b", .dimensions = {3, kTokenAxis}, .codec = Codec::kLossless},
                   {.layer = 0, .name = "c", .dimensions = {2, kTokenAxis, 2}}});
  for (const SaveKind kind : {SaveKind::kCutExport, SaveKind::kSingleCut}) {
    FakeStoreFixture whole;
    FakeStoreFixture pieces;
    const auto first = whole.create();
    const auto second = pieces.create();
    const SavableInput input(family, 1'300);
    SaveRequest request = input.request(kind);
    request.encrypt = false;
    const SaveResult saved = expect_saved(*first, request, input.planes());
    auto session = SaveSession::begin(*second, request);
    ASSERT_TRUE(session.has_value()) << session.error().verdict();
    EXPECT_FALSE(session->is_replay());
    EXPECT_EQ(session->cut(), saved.head().cut);
    EXPECT_EQ(session->prefix_nodes().size(), 6U);
    ASSERT_EQ(*session->next_state(), (StateKey{0, "a"}));
    ASSERT_EQ(verdict_of(session->write_state({0, "a"}, input.planes()[0])), "success");
    PieceSource source(input.wire(1), 777);
    ASSERT_EQ(verdict_of(session->write_state({0, "b"}, source)), "success");
    ASSERT_EQ(*session->next_state(), (StateKey{0, "c"}));
    const std::vector<ByteSpan> rest{input.planes()[2]};
    ASSERT_EQ(verdict_of(session->write_states(rest)), "success");
    EXPECT_EQ(session->next_state(), nullptr);
    const auto committed = session->commit();
    ASSERT_TRUE(committed.has_value()) << committed.error().verdict();
    EXPECT_EQ(committed->cuts, saved.cuts);
    EXPECT_EQ(committed->written, saved.written);
    EXPECT_EQ(object_files(second->context(), store::ObjectKind::kChunk),
              object_files(first->context(), store::ObjectKind::kChunk));
    for (const PublishedCut& cut : committed->cuts) expect_restores(*second, input, cut);
  }
}

TEST(StoreSave, ADeltasStreamHoldsItsNewTokensAlone) {
  StoreFixture f;
  const auto store = f.create();
  const SavableInput base(small_family(), 300);
  const SavableInput whole(small_family(), 1'000);
  SavableInput longer(small_family(), 1'000);
  longer.only_from(300);
  SaveRequest request = whole.request();  // the states as they would lie in whole planes
  request.parent = expect_saved(*store, base).head().manifest_id;
  auto session = SaveSession::begin(*store, request);
  ASSERT_TRUE(session.has_value()) << session.error().verdict();
  for (std::size_t i = 0; i < 2; ++i) {
    PieceSource source(longer.wire(i));
    ASSERT_EQ(verdict_of(session->write_state(*session->next_state(), source)), "success");
  }
  const auto saved = session->commit();
  ASSERT_TRUE(saved.has_value()) << saved.error().verdict();
  EXPECT_EQ(saved->head().depth, 1);
  EXPECT_EQ(saved->source_bytes, 700U * 16);
  expect_restores(*store, whole, saved->head());
}

TEST(StoreSave, ParallelismChangesNothing) {
  const SavableInput input(small_family(), 5'000);
  std::vector<SaveResult> results;
  std::vector<std::set<std::string>> files;
  for (const unsigned parallelism : {1U, 2U, 4U}) {
    FakeStoreFixture f;
    const auto store = f.create();
    SaveRequest request = input.request(SaveKind::kCutExport);
    request.encrypt = false;
    request.parallelism = parallelism;
    results.push_back(expect_saved(*store, request, input.planes()));
    files.push_back(object_files(store->context(), store::ObjectKind::kChunk));
  }
  for (std::size_t i = 1; i < results.size(); ++i) {
    EXPECT_EQ(results[i].cuts, results[0].cuts);
    EXPECT_EQ(files[i], files[0]);
  }
}

/// After a failure the session says that it is poisoned, nothing of it stays, and the save can be repeated.
void expect_poisoned(Store& store, SaveSession& session, const SavableInput& input,
                     const SaveRequest& request) {
  EXPECT_EQ(verdict_of(session.write_state({0, "k"}, input.planes()[0])),
            "poisoned:export session is poisoned");
  EXPECT_EQ(verdict_of(session.commit()), "poisoned:export session is poisoned");
  EXPECT_EQ(reserved_bytes(store), 0);
  EXPECT_EQ(catalog_number(store, "SELECT state FROM uploads"), store::number(store::UploadState::kAborted));
  EXPECT_EQ(catalog_number(store, "SELECT count(*) FROM upload_objects"), 0);
  EXPECT_EQ(store.context().holds.held().scratch_bytes, 0U);
  EXPECT_EQ(manifests(store), 0);
  session.cancel();
  expect_no_orphans(store);
  const SaveResult saved = expect_saved(store, request, input.planes());
  expect_restores(store, input, saved.head());
  expect_sound(store);
}

TEST(StoreSave, AFailedWritePoisonsTheSession) {
  const SavableInput input(small_family(), 600);
  const auto attempt = [&](const std::string& verdict, auto write) {
    StoreFixture f;
    const auto store = f.create();
    const SaveRequest request = input.request(SaveKind::kCutExport);
    auto session = SaveSession::begin(*store, request);
    ASSERT_TRUE(session.has_value()) << session.error().verdict();
    EXPECT_EQ(verdict_of(write(*session)), verdict);
    expect_poisoned(*store, *session, input, request);
  };
  const std::string order = "state:next export state does not match canonical family order";
  attempt(order, [&](SaveSession& s) { return s.write_state({0, "v"}, input.planes()[1]); });
  attempt(order, [&](SaveSession& s) {
    EXPECT_EQ(verdict_of(s.write_states(input.planes())), "success");
    return s.write_state({0, "k"}, input.planes()[0]);
  });
  attempt("state:one plane is needed for each state of the family",
          [&](SaveSession& s) { return s.write_states({}); });
  attempt("state:plane is shorter than its shape", [&](SaveSession& s) {
    return s.write_state({0, "k"}, input.planes()[0].first(4'799));
  });
  attempt("state:export state source is shorter than its shape", [&](SaveSession& s) {
    Bytes wire = input.wire(0);
    wire.pop_back();
    PieceSource source(wire);
    return s.write_state({0, "k"}, source);
  });
  attempt("state:export state source is longer than its shape", [&](SaveSession& s) {
    Bytes wire = input.wire(0);
    wire.push_back(0);
    PieceSource source(wire);
    return s.write_state({0, "k"}, source);
  });
  attempt("io:read export state source: device failed", [&](SaveSession& s) {
    PieceSource source(input.wire(0));
    source.fails = true;
    return s.write_state({0, "k"}, source);
  });
  attempt("success", [&](SaveSession& s) -> Status {
    PieceSource source(input.wire(0));
    source.throws = true;
    EXPECT_THROW((void)s.write_state({0, "k"}, source).has_value(), std::runtime_error);
    return success();
  });
}

TEST(StoreSave, ACommitWithoutAllStatesIsRefusedAndTheSessionGoesOn) {
  StoreFixture f;
  const auto store = f.create();
  const SavableInput input(small_family(), 600);
  auto session = SaveSession::begin(*store, input.request());
  ASSERT_TRUE(session.has_value());
  ASSERT_EQ(verdict_of(session->write_state({0, "k"}, input.planes()[0])), "success");
  EXPECT_EQ(verdict_of(session->commit()), "state:not every declared export state was written");
  ASSERT_EQ(verdict_of(session->write_state({0, "v"}, input.planes()[1])), "success");
  EXPECT_EQ(verdict_of(session->commit()), "success");
  EXPECT_EQ(verdict_of(session->commit()), "state:save session has ended");
  EXPECT_EQ(verdict_of(session->write_state({0, "k"}, input.planes()[0])), "state:save session has ended");
  session->cancel();
  EXPECT_EQ(manifests(*store), 1);
  expect_sound(*store);
}

TEST(StoreSave, CancellingOrDroppingLeavesNothing) {
  for (const bool cancel : {true, false}) {
    StoreFixture f;
    const auto store = f.create();
    const SavableInput input(small_family(), 600);
    {
      auto session = SaveSession::begin(*store, input.request());
      ASSERT_TRUE(session.has_value());
      EXPECT_GT(reserved_bytes(*store), 0);
      EXPECT_GT(store->context().holds.held().scratch_bytes, 0U);
      ASSERT_EQ(verdict_of(session->write_states(input.planes())), "success");
      if (cancel) {
        session->cancel();
        EXPECT_EQ(reserved_bytes(*store), 0);
        EXPECT_EQ(verdict_of(session->commit()), "state:save session has ended");
      }
    }
    EXPECT_EQ(reserved_bytes(*store), 0);
    EXPECT_EQ(store->context().holds.held().scratch_bytes, 0U);
    EXPECT_EQ(manifests(*store), 0);
    expect_sound(*store);
    expect_no_orphans(*store);
  }
}

TEST(StoreSave, TheNewestSessionOfAKeyWins) {
  StoreFixture f;
  const auto store = f.create();
  const SavableInput input(small_family(), 600);
  auto older = SaveSession::begin(*store, input.request());
  auto newer = SaveSession::begin(*store, input.request());
  ASSERT_TRUE(older.has_value() && newer.has_value());
  EXPECT_EQ(verdict_of(newer->write_states(input.planes())), "success");
  const Status late = older->write_states(input.planes());
  EXPECT_EQ(late.has_value() ? verdict_of(older->commit()) : late.error().verdict(),
            "state:upload session was superseded");
  older->cancel();
  const auto saved = newer->commit();
  ASSERT_TRUE(saved.has_value()) << saved.error().verdict();
  expect_restores(*store, input, saved->head());
  expect_sound(*store);
}

TEST(StoreSave, SavesFromSeveralThreadsShareOneStore) {
  StoreFixture f;
  const auto store = f.create();
  std::vector<std::thread> threads;
  std::vector<std::string> verdicts(4);
  for (std::size_t i = 0; i < verdicts.size(); ++i)
    threads.emplace_back([&, i] {
      const SavableInput input(small_family(), 700 + 256 * i);
      SaveRequest request = input.request(SaveKind::kCutExport);
      request.encrypt = true;
      verdicts[i] = verdict_of(save(*store, request, input.planes()));
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(verdicts, std::vector<std::string>(4, "success"));
  // 256 to 1,280 by blocks, and four ends.
  EXPECT_EQ(manifests(*store), 5 + 4);
  expect_sound(*store);
  expect_no_orphans(*store);
}

// --- what is reserved, kept and counted ---

TEST(StoreSave, ExactlyWhatASaveMayTakeIsReserved) {
  const auto reserved_for = [&](const SaveRequest& request, Store& store) {
    const auto session = SaveSession::begin(store, request);
    EXPECT_TRUE(session.has_value()) << session.error().verdict();
    return static_cast<std::uint64_t>(reserved_bytes(store));
  };
  StoreFixture f;
  const auto store = f.create();
  // Export of 600 tokens: three manifests that name 2, 4 and 6 chunks.
  const SavableInput input(small_family(), 600);
  EXPECT_EQ(reserved_for(input.request(SaveKind::kCutExport), *store),
            9'600U + 6 * 49'152 + 3 * (8'192 + 2 * 2'048) + 192 * (2 + 4 + 6));
  SaveRequest strided = input.request(SaveKind::kCutExport);
  strided.idempotency_key = save_key(1);
  strided.checkpoint_stride_tokens = 512;
  EXPECT_EQ(reserved_for(strided, *store), 9'600U + 4 * 49'152 + 2 * (8'192 + 2 * 2'048) + 192 * (2 + 4));
  // A single cut, under the policy in force: one chunk of each state, or three.
  EXPECT_EQ(reserved_for(input.request(), *store), 9'600U + 2 * (49'152 + 192) + 8'192 + 2 * 2'048);
  SaveRequest fine = input.request();
  fine.idempotency_key = save_key(2);
  fine.spans.grain_tokens = 256;
  EXPECT_EQ(reserved_for(fine, *store), 9'600U + 6 * (49'152 + 192) + 8'192 + 2 * 2'048);
  // A delta reserves for its segment; a compaction also for what it takes over.
  const IdentifiedFamily family = save_family({{.layer = 0, .name = "k", .dimensions = {kTokenAxis, 4}}});
  std::optional<Id32> parent;
  for (std::size_t tokens = 1; tokens <= 8; ++tokens) {
    const SavableInput longer(family, tokens);
    SaveRequest request = longer.request();
    request.parent = parent;
    EXPECT_EQ(reserved_for(request, *store), 8U * (parent ? 1 : tokens) + 49'152 + 192 + 8'192 + 2'048);
    parent = expect_saved(*store, request, longer.planes()).head().manifest_id;
  }
  const SavableInput ninth(family, 9);
  SaveRequest compaction = ninth.request();
  compaction.parent = parent;
  EXPECT_EQ(reserved_for(compaction, *store), 8U + 49'152 + 9 * 192 + 8'192 + 2'048);
}

TEST(StoreSave, QuotasRefuseBeforeAnythingIsMade) {
  const SavableInput input(small_family(), 600);
  const auto attempt = [&](const std::string& verdict, auto change) {
    StoreFixture f;
    change(f.options);
    const auto store = f.create();
    EXPECT_EQ(verdict_of(SaveSession::begin(*store, input.request())), verdict);
    EXPECT_EQ(catalog_number(*store, "SELECT count(*) FROM uploads"), 0);
    EXPECT_EQ(store->context().holds.held().scratch_bytes, 0U);
    expect_no_orphans(*store);
  };
  attempt("quota:tenant durable quota reservation refused", [](StoreOptions& o) {
    o.quota_bytes = 1;
    o.staging_quota_bytes = std::uint64_t{1} << 30;
  });
  attempt("quota:tenant staging quota reservation refused",
          [](StoreOptions& o) { o.staging_quota_bytes = 1; });
  attempt("endurance:five-minute endurance budget exhausted",
          [](StoreOptions& o) { o.endurance_bytes_per_five_minutes = 1; });
  attempt("quota:save buffers exceed the memory limits of the store",
          [](StoreOptions& o) { o.memory.scratch_bytes = 1'000; });
}

TEST(StoreSave, FewerThreadsAreTakenWhereMemoryIsShort) {
  StoreFixture f;
  // 600 tokens of 8 bytes in one chunk, and its object: room for one thread.
  f.options.memory.scratch_bytes = 20'000;
  const auto store = f.create();
  const SavableInput input(small_family(), 600);
  {
    auto session = SaveSession::begin(*store, input.request());
    ASSERT_TRUE(session.has_value()) << session.error().verdict();
    const std::uint64_t held = store->context().holds.held().scratch_bytes;
    EXPECT_GT(held, 4'800U * 2);
    EXPECT_LE(held, 20'000U);
    SaveRequest other = input.request();
    other.idempotency_key = save_key(1);
    EXPECT_EQ(verdict_of(SaveSession::begin(*store, other)),
              "quota:concurrent restore resources exceed declared limits");
  }
  expect_saved(*store, input);
}

TEST(StoreSave, TheTimeToLiveIsKeptWithEveryCut) {
  StoreFixture f;
  const auto store = f.create();
  const SavableInput input(small_family(), 600);
  SaveRequest request = input.request(SaveKind::kCutExport);
  request.time_to_live_ms = 60'000;
  expect_saved(*store, request, input.planes());
  const auto expected = static_cast<std::int64_t>((f.clock.wall_ms() + 60'000) * 1'000'000);
  EXPECT_EQ(catalog_number(*store, "SELECT count(*) FROM manifests WHERE expires_ns = ?1", expected), 3);
  const PrefixQuery query{
      .semantic_model = save_model(), .family = &input.family(), .tokens = input.tokens()};
  EXPECT_TRUE(find_deepest(*store, query)->has_value());
  f.clock.advance_ms(60'000);
  EXPECT_FALSE(find_deepest(*store, query)->has_value());
  // Saved again it is found again.
  EXPECT_FALSE(expect_saved(*store, request, input.planes()).replayed);
  EXPECT_TRUE(find_deepest(*store, query)->has_value());
  expect_sound(*store);
}

TEST(StoreSave, TheLabelIsKeptForPeople) {
  StoreFixture f;
  const auto store = f.create();
  const SavableInput input(small_family(), 300);
  SaveRequest request = input.request();
  request.label = "muse · fp16";
  expect_saved(*store, request, input.planes());
  EXPECT_EQ(catalog_number(*store, "SELECT count(*) FROM identities WHERE label = ?1 AND family_id = ?2",
                           request.label, input.family().id()),
            1);
  const SavableInput longer(small_family(), 400);
  request = longer.request();
  request.label = "muse";
  expect_saved(*store, request, longer.planes());
  EXPECT_EQ(catalog_number(*store, "SELECT count(*) FROM identities WHERE label = 'muse'"), 1);
  EXPECT_EQ(catalog_number(*store, "SELECT count(*) FROM identities"), 1);
}

TEST(StoreSave, GroupsStridesAndSidecarsAreKept) {
  StoreFixture f;
  const auto store = f.create();
  const IdentifiedFamily family = save_family({{.layer = 0, .name = "a", .dimensions = {kTokenAxis, 2}},
                                               {.layer = 0,
                                                .name = "b",
                                                .dtype = DType::kU8,
                                                .dimensions = {kTokenAxis, 2},
                                                .layout = Layout::kStrided},
                                               {.layer = 1, .name = "a", .dimensions = {kTokenAxis, 2}}});
  SavableInput input(family, 300);
  input.states()[0].atomic_group = 7;
  input.states()[1].atomic_group = 3;
  input.states()[1].byte_strides = {4, 1};
  input.states()[2].atomic_group = 7;
  input.states()[2].sidecar_sinks = 2;
  for (std::size_t i = 1; i < input.plane_bytes()[2].size(); i += 2)
    input.plane_bytes()[2][i] = static_cast<std::uint8_t>(0x30 + i % 12);  // numbers, no NaN
  const Bytes strided(300 * 4, 5);
  std::vector<ByteSpan> planes = input.planes();
  planes[1] = strided;
  const SaveResult saved = expect_saved(*store, input.request(), planes);
  const auto chain = store::authenticate_chain(store->context(), saved.head().manifest_id);
  ASSERT_TRUE(chain.has_value());
  const RealizedCutSchema& schema = chain->head().schema;
  EXPECT_EQ(schema.groups, (std::vector<AtomicGroup>{{3, {{0, "b"}}}, {7, {{0, "a"}, {1, "a"}}}}));
  EXPECT_EQ(schema.states[1].strides, (std::vector<std::uint64_t>{4, 1}));
  EXPECT_EQ(schema.states[1].complete_physical_bytes, 299U * 4 + 2);
}

TEST(StoreSave, SavesAreCounted) {
  StoreFixture f;
  const auto store = f.create();
  const auto counted = [&](store::Counter counter) { return store->context().counters.value(counter); };
  const SavableInput input(small_family(), 600);
  const SaveResult saved = expect_saved(*store, input, SaveKind::kCutExport);
  EXPECT_EQ(counted(store::Counter::kSaveBytesWritten), saved.written.object_bytes + saved.manifest_bytes);
  expect_saved(*store, input, SaveKind::kCutExport);
  SaveRequest bad = input.request();
  bad.tokens = {};
  EXPECT_FALSE(SaveSession::begin(*store, bad).has_value());
  EXPECT_EQ(counted(store::Counter::kSavesAttempted), 3U);
  EXPECT_EQ(counted(store::Counter::kSavesCommitted), 1U);
  EXPECT_EQ(counted(store::Counter::kSavesReplayed), 1U);
  EXPECT_EQ(counted(store::Counter::kSavesRefused), 1U);
  const SavableInput longer(small_family(), 900);
  const SaveResult more = expect_saved(*store, longer, SaveKind::kCutExport);
  EXPECT_EQ(counted(store::Counter::kSaveBytesShared), more.shared.object_bytes);
}

// --- refusals ---

TEST(StoreSave, RequestsAreJudgedInOrderBeforeAnythingIsReserved) {
  StoreFixture f;
  const auto store = f.create();
  const SavableInput input(small_family(), 600);
  const auto verdict = [&](SaveKind kind, auto change) {
    SaveRequest request = input.request(kind);
    change(request);
    const std::string said = verdict_of(SaveSession::begin(*store, request));
    EXPECT_EQ(catalog_number(*store, "SELECT count(*) FROM uploads"), 0) << said;
    return said;
  };
  constexpr SaveKind kExport = SaveKind::kCutExport;
  constexpr SaveKind kSingle = SaveKind::kSingleCut;
  for (const SaveKind kind : {kExport, kSingle}) {
    const std::string widen = "expectation:writer restored-byte bound cannot widen production policy";
    EXPECT_EQ(verdict(kind, [](SaveRequest& r) { r.max_restored_bytes = 0; }), widen);
    EXPECT_EQ(verdict(kind, [](SaveRequest& r) { r.max_restored_bytes = kDefaultMaxRestoredBytes + 1; }),
              widen);
    const std::string generation = "state:invalid publication generation";
    EXPECT_EQ(verdict(kind, [](SaveRequest& r) { r.publication = 0; }), generation);
    EXPECT_EQ(verdict(kind, [](SaveRequest& r) { r.publication = std::uint64_t{1} << 63; }), generation);
    const std::string ttl = "state:time to live is outside its bounds";
    EXPECT_EQ(verdict(kind, [](SaveRequest& r) { r.time_to_live_ms = 0; }), ttl);
    EXPECT_EQ(verdict(kind, [](SaveRequest& r) { r.time_to_live_ms = 9'223'372'036'855; }), ttl);
    const std::string label = "state:label is not UTF-8 of at most 16384 bytes";
    EXPECT_EQ(verdict(kind, [](SaveRequest& r) { r.label = std::string(16'385, 'x'); }), label);
    EXPECT_EQ(verdict(kind, [](SaveRequest& r) { r.label = "\xff"; }), label);
    EXPECT_EQ(verdict(kind, [](SaveRequest& r) { r.idempotency_key = Id32{}; }),
              "state:invalid write reservation");
  }
  const std::string policy = "expectation:request cannot widen the immutable production cut policy";
  EXPECT_EQ(verdict(kExport, [](SaveRequest& r) { r.checkpoint_stride_tokens = 0; }), policy);
  EXPECT_EQ(verdict(kExport, [](SaveRequest& r) { r.checkpoint_stride_tokens = 300; }), policy);
  EXPECT_EQ(verdict(kExport, [](SaveRequest& r) { r.parent = Id32::filled(1); }),
            "state:a cut export takes no parent");
  EXPECT_EQ(verdict(kExport, [](SaveRequest& r) { r.tokens = {}; }),
            "state:zero is a recomputation cut, not a durable export");
  EXPECT_EQ(verdict(kSingle, [](SaveRequest& r) { r.tokens = {}; }),
            "state:zero is a recomputation cut, not a durable artifact");
  EXPECT_EQ(verdict(kSingle, [](SaveRequest& r) { r.spans.grain_tokens = 100; }),
            "state:span grain must be a multiple of 256 tokens");
  const std::vector<AuxiliaryInputId> zero{{Id32{}, Id32::filled(1)}};
  EXPECT_EQ(verdict(kSingle, [&](SaveRequest& r) { r.auxiliary = zero; }),
            "semantics:auxiliary identity contains a zero component");
  EXPECT_EQ(verdict(kSingle, [](SaveRequest& r) { r.semantic_model.adapters = Id32{}; }),
            "semantics:semantic model identity contains a zero component");
  EXPECT_EQ(verdict(kExport, [](SaveRequest& r) { r.max_restored_bytes = 9'599; }),
            "quota:export exceeds writer resource bound");
  EXPECT_EQ(verdict(kSingle, [](SaveRequest& r) { r.max_restored_bytes = 9'599; }),
            "quota:artifact exceeds writer bound");
  // Two faults at once: the first of the order is said.
  EXPECT_EQ(verdict(kExport,
                    [](SaveRequest& r) {
                      r.publication = 0;
                      r.checkpoint_stride_tokens = 1;
                      r.tokens = {};
                    }),
            "state:invalid publication generation");
}

TEST(StoreSave, StatesAreDeclaredAsTheFamilyHasThem) {
  StoreFixture f;
  const auto store = f.create();
  for (const SaveKind kind : {SaveKind::kCutExport, SaveKind::kSingleCut}) {
    const auto verdict = [&](auto change) {
      SavableInput input(small_family(), 600);
      change(input.states());
      return verdict_of(SaveSession::begin(*store, input.request(kind)));
    };
    const std::string refusal =
        kind == SaveKind::kCutExport
            ? "state:export state order, strides, or atomic group is invalid"
            : "state:state declaration rank, strides, token axis, or atomic group is invalid";
    using States = std::vector<SaveState>;
    EXPECT_EQ(verdict([](States&) {}), "success");
    EXPECT_EQ(verdict([](States& s) { s.clear(); }), "success");
    EXPECT_EQ(verdict([](States& s) { s.pop_back(); }), refusal);
    EXPECT_EQ(verdict([](States& s) { std::swap(s[0], s[1]); }), refusal);
    EXPECT_EQ(verdict([](States& s) { s[1].key.layer = 5; }), refusal);
    EXPECT_EQ(verdict([](States& s) { s[1].atomic_group = 0; }), refusal);
    EXPECT_EQ(verdict([](States& s) { s[0].byte_strides = {8, 4}; }), refusal);
    EXPECT_EQ(verdict([](States& s) { s[0].byte_strides = {8, 4, 0}; }), refusal);
    EXPECT_EQ(verdict([](States& s) {
                s[0].byte_strides = {8, 3, 2};
              }),
              "state:plane strides do not match the state");
    EXPECT_EQ(verdict([](States& s) { s[0].token_start = 1; }),
              "state:plane does not hold the tokens of the cut");
    EXPECT_EQ(verdict([](States& s) { s[0].token_start = 601; }),
              "state:plane does not hold the tokens of the cut");
    EXPECT_EQ(verdict([](States& s) { s[0].token_start = std::numeric_limits<std::uint64_t>::max(); }),
              "state:plane does not hold the tokens of the cut");
  }
  const SavableInput wide(save_family({{.layer = 0, .name = "k", .dimensions = {kTokenAxis, 2'097'153}}}), 1);
  EXPECT_EQ(verdict_of(SaveSession::begin(*store, wide.request(SaveKind::kCutExport))),
            "state:one logical export token does not fit in a bounded chunk");
  EXPECT_EQ(verdict_of(SaveSession::begin(*store, wide.request())),
            "bounds:one state token does not fit in a bounded chunk");
}

TEST(StoreSave, AReaderSavesNothing) {
  StoreFixture f;
  const auto writer = f.create();
  const auto reader = Store::open_read_only(f.options);
  ASSERT_TRUE(reader.has_value());
  const SavableInput input(small_family(), 300);
  EXPECT_EQ(verdict_of(SaveSession::begin(**reader, input.request())),
            "state:store is open for reading only");
}

TEST(StoreSave, WithoutItsDirectoryAStoreSavesNothing) {
  StoreFixture f;
  const auto store = f.create();
  const SavableInput input(small_family(), 300);
  auto session = SaveSession::begin(*store, input.request());
  ASSERT_TRUE(session.has_value());
  std::filesystem::remove_all(f.options.root);
  EXPECT_EQ(verdict_of(SaveSession::begin(*store, input.request())),
            "state:store directory was removed: " + f.options.root);
  EXPECT_FALSE(session->write_states(input.planes()).has_value() && session->commit().has_value());
}

TEST(StoreSave, ASaveWithoutAKeyGetsOneOfWhatItDeclares) {
  StoreFixture f;
  const auto store = f.create();
  const SavableInput input(small_family(), 300);
  for (const SaveKind kind : {SaveKind::kCutExport, SaveKind::kSingleCut}) {
    const auto session = SaveSession::begin(*store, input.request(kind));
    ASSERT_TRUE(session.has_value());
    Sha256 adapter;
    adapter.update(with_nul("kvpack-store/v1/idempotency"));
    adapter.update(store->tenant());
    adapter.update(semantic_model_id(save_model()));
    adapter.update(input.family().id());
    adapter.update(session->cut().token_root);
    adapter.update(session->cut().auxiliary_input_root);
    adapter.update(le_bytes(std::uint64_t{300}));
    adapter.update(le_bytes(static_cast<std::uint8_t>(kind)));
    const Id32 adapter_key{adapter.finish()};
    EXPECT_EQ(adapter_key, adapter_idempotency_key(store->tenant(), save_model(), input.family().id(),
                                                   session->cut(), kind));
    Id32 intent;
    ASSERT_TRUE(store->context()
                    .catalog
                    ->read([&](sqlite::Database& db) -> Status {
                      KVPACK_TRY_ASSIGN(auto row,
                                        db.prepare("SELECT intent_digest FROM uploads WHERE kind = ?"));
                      KVPACK_TRY(row.bind(static_cast<int>(kind)).step());
                      intent = row.id(0);
                      return success();
                    })
                    .has_value());
    Sha256 key;
    key.update(with_nul("kvpack-store/v1/declared-save"));
    key.update(adapter_key);
    key.update(intent);
    key.update(le_bytes(std::uint64_t{1}));
    EXPECT_EQ(session->idempotency_key(), Id32{key.finish()});
  }
}

// --- any history ---

// Growing inputs of several seeds, saved in every way: each cut that a save has returned restores exactly as
// long as the store lives, also after it has been opened again.
TEST(StoreSave, WhateverWasSavedRestores) {
  for (const std::uint32_t round : {1U, 2U, 3U}) {
    std::mt19937 numbers(round);
    const auto engine = [&] { return static_cast<std::uint32_t>(numbers()); };
    FakeStoreFixture f;
    auto store = f.create();
    const IdentifiedFamily family =
        save_family({{.layer = 0, .name = "a", .dimensions = {kTokenAxis, 3}},
                     {.layer = 0, .name = "b", .dimensions = {2, kTokenAxis}, .codec = Codec::kLossless},
                     {.layer = 1, .name = "a", .dtype = DType::kU8, .dimensions = {5, kTokenAxis, 1}}});
    std::map<std::uint64_t, std::vector<PublishedCut>> by_seed;
    for (std::uint32_t step = 0; step < 25; ++step) {
      const std::uint64_t seed = 1 + engine() % 3;
      const std::size_t tokens = 1 + engine() % 1'500;
      SavableInput input(family, tokens, seed);
      auto& cuts = by_seed[seed];
      SaveRequest request;
      std::optional<PublishedCut> parent;
      for (const PublishedCut& cut : cuts)
        if (cut.cut.token_count < tokens && engine() % 3 != 0) parent = cut;
      const bool exports = engine() % 3 == 0;
      if (!exports && parent) input.only_from(engine() % (parent->cut.token_count + 1));
      request = input.request(exports ? SaveKind::kCutExport : SaveKind::kSingleCut);
      request.idempotency_key = Id32{sha256({le_bytes(round), le_bytes(step)})};
      if (!exports && parent) request.parent = parent->manifest_id;
      request.encrypt = engine() % 2 == 0;
      request.checkpoint_stride_tokens = 256 * (1 + engine() % 3);
      request.spans.grain_tokens = 256 * (1 + engine() % 4);
      if (engine() % 4 == 0) request.spans.rule = SpanPolicy::Rule::kUpstream;
      request.parallelism = 1 + engine() % 3;
      const SaveResult saved = expect_saved(*store, request, input.planes());
      cuts.insert(cuts.end(), saved.cuts.begin(), saved.cuts.end());
      for (const PublishedCut& cut : saved.cuts)
        expect_restores(*store, SavableInput(family, cut.cut.token_count, seed), cut);
      expect_sound(*store);
      if (step % 10 == 9) {
        store.reset();
        store = f.open();
      }
    }
    expect_no_orphans(*store);
    EXPECT_TRUE(f.faults.empty());
    for (const auto& [seed, cuts] : by_seed)
      for (const PublishedCut& cut : cuts)
        expect_restores(*store, SavableInput(family, cut.cut.token_count, seed), cut);
  }
}

}  // namespace
}  // namespace kvpack::store_save_test
