// A save that is made again: replays, changed bytes, other declarations, and healing of what is not whole.
#include <filesystem>

#include "kvpack/store/lookup.h"
#include "kvpack/store/save.h"
#include "kvpack/store/upkeep.h"
#include "support/planted_store.h"
#include "support/saves.h"

namespace kvpack::store_save_replay_test {
namespace {

using testing::catalog_number;
using testing::expect_no_orphans;
using testing::expect_restores;
using testing::expect_saved;
using testing::expect_sound;
using testing::FakeStoreFixture;
using testing::object_files;
using testing::SavableInput;
using testing::save_family;
using testing::save_key;
using testing::save_model;
using testing::small_family;
using testing::StoreFixture;
using testing::verdict_of;

constexpr const char* kChangedBytes =
    "authentication:published export replay contains changed or unavailable chunk bytes";

constexpr std::array kKinds{SaveKind::kCutExport, SaveKind::kSingleCut};

std::vector<std::set<std::string>> all_files(Store& store) {
  return {object_files(store.context(), store::ObjectKind::kChunk),
          object_files(store.context(), store::ObjectKind::kManifest)};
}

TEST(StoreSaveReplay, TheSameSaveAgainWritesNothingAndGivesTheSameResult) {
  for (const SaveKind kind : kKinds) {
    for (const bool encrypt : {true, false}) {
      FakeStoreFixture f;
      auto store = f.create();
      const SavableInput input(small_family(), 600);
      SaveRequest request = input.request(kind);
      request.encrypt = encrypt;
      const SaveResult first = expect_saved(*store, request, input.planes());
      EXPECT_FALSE(first.replayed);
      const auto files = all_files(*store);
      for (const bool reopened : {false, true}) {
        if (reopened) {
          store.reset();
          store = f.open();
        }
        const SaveResult again = expect_saved(*store, request, input.planes());
        EXPECT_TRUE(again.replayed);
        EXPECT_EQ(again.cuts, first.cuts);
        EXPECT_EQ(again.written, ChunkCounts());
        EXPECT_EQ(again.shared, first.written);
        EXPECT_EQ(again.source_bytes, first.source_bytes);
        EXPECT_EQ(again.manifest_bytes, 0U);
        EXPECT_EQ(all_files(*store), files);
        expect_sound(*store);
      }
    }
  }
}

TEST(StoreSaveReplay, ChangedBytesAreRefused) {
  for (const SaveKind kind : kKinds) {
    for (const unsigned parallelism : {1U, 3U}) {
      FakeStoreFixture f;
      const auto store = f.create();
      const SavableInput input(small_family(), 600);
      SaveRequest request = input.request(kind);
      request.parallelism = parallelism;
      const SaveResult first = expect_saved(*store, request, input.planes());
      SavableInput changed(small_family(), 600);
      changed.plane_bytes()[1][4'000] ^= 1;
      EXPECT_EQ(verdict_of(save(*store, request, changed.planes())), kChangedBytes);
      // Also where another save has stored just these bytes.
      SaveRequest other = request;
      other.idempotency_key = save_key(1);
      expect_saved(*store, other, changed.planes());
      auto session = SaveSession::begin(*store, request);
      ASSERT_TRUE(session.has_value());
      ASSERT_EQ(verdict_of(session->write_state({0, "k"}, changed.planes()[0])), "success");
      ASSERT_EQ(verdict_of(session->write_state({0, "v"}, changed.planes()[1])), kChangedBytes);
      EXPECT_EQ(verdict_of(session->commit()), "poisoned:export session is poisoned");
      expect_restores(*store, input, first.head());
      expect_sound(*store);
    }
  }
}

TEST(StoreSaveReplay, ASingleCutNeedNotBeWrittenAgainAnExportMust) {
  FakeStoreFixture f;
  const auto store = f.create();
  const SavableInput input(small_family(), 600);
  for (const SaveKind kind : kKinds) {
    const SaveResult first = expect_saved(*store, input, kind);
    auto session = SaveSession::begin(*store, input.request(kind));
    ASSERT_TRUE(session.has_value() && session->is_replay());
    const auto committed = session->commit();
    if (kind == SaveKind::kSingleCut) {
      ASSERT_TRUE(committed.has_value()) << committed.error().verdict();
      EXPECT_EQ(committed->cuts, first.cuts);
      continue;
    }
    EXPECT_EQ(verdict_of(committed), "state:not every declared export state was written");
    ASSERT_EQ(verdict_of(session->write_state({0, "k"}, input.planes()[0])), "success");
    EXPECT_EQ(verdict_of(session->commit()), "state:not every declared export state was written");
  }
  auto half = SaveSession::begin(*store, input.request());
  ASSERT_EQ(verdict_of(half->write_state({0, "k"}, input.planes()[0])), "success");
  EXPECT_EQ(verdict_of(half->commit()), "state:not every declared export state was written");
}

TEST(StoreSaveReplay, AKeyStandsForOneDeclaration) {
  for (const SaveKind kind : kKinds) {
    FakeStoreFixture f;
    const auto store = f.create();
    const SavableInput input(small_family(), 600);
    SaveRequest request = input.request(kind);
    request.idempotency_key = save_key(1);
    expect_saved(*store, request, input.planes());
    const auto verdict = [&](auto change) {
      SaveRequest other = request;
      change(other);
      return verdict_of(SaveSession::begin(*store, other));
    };
    const std::string declaration =
        "expectation:idempotency key was reused with a different immutable declaration";
    const std::string bounds = "expectation:idempotency key was reused with different write bounds";
    EXPECT_EQ(verdict([](SaveRequest&) {}), "success");
    EXPECT_EQ(verdict([](SaveRequest& r) { r.encrypt = false; }), declaration);
    EXPECT_EQ(verdict([](SaveRequest& r) { r.max_restored_bytes = 1'000'000; }), declaration);
    EXPECT_EQ(verdict([](SaveRequest& r) { r.publication = 2; }),
              "expectation:idempotency key was reused with a different publication generation");
    const std::vector<AuxiliaryInputId> image{{Id32::filled(1), Id32::filled(2)}};
    EXPECT_EQ(verdict([&](SaveRequest& r) { r.auxiliary = image; }), declaration);
    std::vector<SaveState> states =
        input.request().states.empty() ? std::vector<SaveState>()
                                       : std::vector<SaveState>(request.states.begin(), request.states.end());
    states[1].atomic_group = 2;
    EXPECT_EQ(verdict([&](SaveRequest& r) { r.states = states; }), declaration);
    states[1].atomic_group = 1;
    states[1].sidecar_sinks = 1;
    EXPECT_EQ(verdict([&](SaveRequest& r) { r.states = states; }), declaration);
    const SavableInput longer(small_family(), 900);
    EXPECT_EQ(verdict([&](SaveRequest& r) { r.tokens = longer.tokens(); }), bounds);
    if (kind == SaveKind::kSingleCut) {
      EXPECT_EQ(verdict([](SaveRequest& r) { r.spans.grain_tokens = 4'096; }), declaration);
      EXPECT_EQ(verdict([](SaveRequest& r) { r.spans.rule = SpanPolicy::Rule::kUpstream; }), declaration);
    } else {
      EXPECT_EQ(verdict([](SaveRequest& r) { r.checkpoint_stride_tokens = 512; }), bounds);
      EXPECT_EQ(verdict([](SaveRequest& r) { r.spans.grain_tokens = 256; }), "success");
    }
    // What says nothing about the bytes may differ.
    EXPECT_EQ(verdict([](SaveRequest& r) {
                r.label = "name";
                r.parallelism = 2;
                r.time_to_live_ms = 1;
              }),
              "success");
  }
}

TEST(StoreSaveReplay, AfterARotationTheSameTokensAreSavedInTheNewEpochAndThenReplayed) {
  for (const SaveKind kind : kKinds) {
    StoreFixture f;
    f.options.keys = testing::test_keys({.minimum_readable = 1, .active = 2});
    f.options.epochs = {.minimum_readable = 1, .active = 1};
    auto store = f.create();
    const SavableInput input(small_family(), 600);
    const SaveResult first = expect_saved(*store, input, kind);
    store.reset();
    f.options.epochs = {.minimum_readable = 1, .active = 2};
    store = f.open();
    const SaveResult rotated = expect_saved(*store, input, kind);
    EXPECT_FALSE(rotated.replayed);
    EXPECT_EQ(rotated.shared, ChunkCounts());  // what is stored in an epoch is of that epoch's keys
    EXPECT_NE(rotated.head().manifest_id, first.head().manifest_id);
    expect_restores(*store, input, first.head());
    expect_restores(*store, input, rotated.head());
    EXPECT_TRUE(expect_saved(*store, input, kind).replayed);
    // The key of an adapter of its own knows no epoch: its first save is what it stands for.
    SaveRequest own = input.request(kind);
    own.idempotency_key =
        adapter_idempotency_key(store->tenant(), save_model(), input.family().id(), rotated.head().cut, kind);
    expect_saved(*store, own, input.planes());
    store.reset();
    f.options.epochs = {.minimum_readable = 1, .active = 3};
    f.options.keys = testing::test_keys({.minimum_readable = 1, .active = 3});
    store = f.open();
    EXPECT_EQ(verdict_of(SaveSession::begin(*store, own)),
              "expectation:idempotency key was reused with a different immutable declaration");
    EXPECT_EQ(verdict_of(save(*store, input.request(kind), input.planes())), "success");
    expect_sound(*store);
  }
}

TEST(StoreSaveReplay, TheSameTokensSavedInAnotherWayAreAnotherSave) {
  for (const SaveKind kind : kKinds) {
    FakeStoreFixture f;
    const auto store = f.create();
    const SavableInput input(small_family(), 900);
    const SavableInput base(small_family(), 300);
    const SaveResult first = expect_saved(*store, input, kind);
    const Id32 parent = expect_saved(*store, base, kind).head().manifest_id;
    const auto declared = input.request().states;
    std::vector<SaveState> states(declared.begin(), declared.end());
    states[1].atomic_group = 2;
    using Change = std::function<void(SaveRequest&)>;
    std::vector<Change> ways{
        [](SaveRequest& r) { r.encrypt = false; }, [](SaveRequest& r) { r.max_restored_bytes = 1'000'000; },
        [](SaveRequest& r) { r.publication = 2; }, [&](SaveRequest& r) { r.states = states; }};
    if (kind == SaveKind::kSingleCut) {
      ways.push_back([](SaveRequest& r) { r.spans.grain_tokens = 256; });
      ways.push_back([](SaveRequest& r) { r.spans.rule = SpanPolicy::Rule::kUpstream; });
      ways.push_back([&](SaveRequest& r) { r.parent = parent; });
    } else {
      ways.push_back([](SaveRequest& r) { r.checkpoint_stride_tokens = 512; });
    }
    for (std::size_t way = 0; way < ways.size(); ++way) {
      SaveRequest request = input.request(kind);
      ways[way](request);
      const SaveResult saved = expect_saved(*store, request, input.planes());
      EXPECT_FALSE(saved.replayed) << way;
      for (const PublishedCut& cut : saved.cuts) expect_restores(*store, input, cut);
      // Again it is the same one, as is the first, which may be committed at once.
      EXPECT_TRUE(expect_saved(*store, request, input.planes()).replayed) << way;
      auto session = SaveSession::begin(*store, input.request(kind));
      ASSERT_TRUE(session.has_value() && session->is_replay()) << way;
      if (kind == SaveKind::kSingleCut) {
        EXPECT_EQ(session->commit()->cuts, first.cuts) << way;
      }
    }
    // The cipher is no part of what a cut is: the same cut is stored once.
    SaveRequest plain = input.request(kind);
    plain.encrypt = false;
    EXPECT_EQ(expect_saved(*store, plain, input.planes()).cuts, first.cuts);
    expect_sound(*store);
    expect_no_orphans(*store);
  }
}

// The catalog says that a key stands for a cut that it never stood for.
TEST(StoreSaveReplay, AnotherCutUnderTheKeyIsNotGivenBack) {
  for (const SaveKind kind : kKinds) {
    FakeStoreFixture f;
    const auto store = f.create();
    const SavableInput input(small_family(), 600);
    SaveRequest request = input.request(kind);
    request.idempotency_key = save_key(1);
    expect_saved(*store, request, input.planes());
    std::vector<Id32> others;
    const SavableInput shorter(small_family(), 300);  // other spans
    others.push_back(expect_saved(*store, shorter, kind).head().manifest_id);
    const SavableInput one(save_family({{.layer = 0, .name = "k", .dimensions = {kTokenAxis, 2, 2}}}), 600);
    others.push_back(expect_saved(*store, one, kind).head().manifest_id);
    const SavableInput another(small_family(), 600, 2);  // the same spans, other tokens
    others.push_back(expect_saved(*store, another, kind).head().manifest_id);
    for (const Id32& head : others) {
      ASSERT_EQ(verdict_of(store->context().catalog->write([&](sqlite::Database& db) {
                  return db.run("UPDATE uploads SET head_id = ? WHERE idempotency_key = ?", head,
                                save_key(1));
                })),
                "success");
      EXPECT_EQ(verdict_of(SaveSession::begin(*store, request)),
                kind == SaveKind::kSingleCut
                    ? "expectation:idempotency key was reused for a different artifact declaration"
                    : "authentication:published idempotency result changed");
    }
    EXPECT_EQ(store->context().counters.value(store::Counter::kSavesRefused), 3U);
  }
}

TEST(StoreSaveReplay, AKeyThatOthersPublishAgainAndAgainIsBusy) {
  FakeStoreFixture f;
  const auto store = f.create();
  const SavableInput input(small_family(), 600);
  const SaveResult first = expect_saved(*store, input);
  f.files.remove(store->context().files.object_path(store::ObjectKind::kManifest, first.head().manifest_id));
  // Whenever the key has been forgotten, somebody has published it.
  store->context().catalog->on_commit([&](sqlite::Database& db) {
    ASSERT_EQ(verdict_of(db.run("UPDATE uploads SET state = 4 WHERE state = 5")), "success");
  });
  EXPECT_EQ(verdict_of(SaveSession::begin(*store, input.request())), "busy:resource is busy");
  store->context().catalog->on_commit(nullptr);
  EXPECT_EQ(verdict_of(save(*store, input.request(), input.planes())), "success");
}

TEST(StoreSaveReplay, ADeltaAndAFullCutOfTheSameInputAreTwoDeclarations) {
  FakeStoreFixture f;
  const auto store = f.create();
  const SavableInput base(small_family(), 300);
  const SavableInput longer(small_family(), 301);
  const Id32 parent = expect_saved(*store, base).head().manifest_id;
  SaveRequest full = longer.request();
  full.idempotency_key = save_key(1);
  expect_saved(*store, full, longer.planes());
  SaveRequest delta = full;
  delta.parent = parent;
  EXPECT_EQ(verdict_of(SaveSession::begin(*store, delta)),
            "expectation:idempotency key was reused with different write bounds");
}

/// Removes something of a saved export and saves again under the same key.
template <class Spoil>
void expect_healed(SaveKind kind, Spoil&& spoil) {
  for (const bool encrypt : {true, false}) {
    StoreFixture f;
    const auto store = f.create();
    const SavableInput input(small_family(), 600);
    SaveRequest request = input.request(kind);
    request.encrypt = encrypt;
    const SaveResult first = expect_saved(*store, request, input.planes());
    spoil(*store, f.options.root, first);
    const SaveResult again = expect_saved(*store, request, input.planes());
    EXPECT_FALSE(again.replayed);
    ASSERT_EQ(again.cuts.size(), first.cuts.size());
    for (const PublishedCut& cut : again.cuts) {
      expect_restores(*store, input, cut);
      const SavableInput prefix(small_family(), static_cast<std::size_t>(cut.cut.token_count));
      const auto hit = find_deepest(
          *store, {.semantic_model = save_model(), .family = &prefix.family(), .tokens = prefix.tokens()});
      ASSERT_TRUE(hit.has_value() && hit->has_value());
      EXPECT_EQ((*hit)->token_count, cut.cut.token_count);
    }
    expect_sound(*store);
    EXPECT_TRUE(expect_saved(*store, request, input.planes()).replayed);
  }
}

void remove_files(const std::string& root, const std::string& folder, std::size_t how_many) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root + "/objects/" + folder))
    if (entry.is_regular_file()) files.push_back(entry.path());
  std::ranges::sort(files);
  for (std::size_t i = 0; i < std::min(how_many, files.size()); ++i) std::filesystem::remove(files[i]);
}

TEST(StoreSaveReplay, WhatIsNotWholeIsSavedAgain) {
  for (const SaveKind kind : kKinds) {
    expect_healed(
        kind, [](Store&, const std::string& root, const SaveResult&) { remove_files(root, "chunks", 1); });
    expect_healed(
        kind, [](Store&, const std::string& root, const SaveResult&) { remove_files(root, "manifests", 9); });
    expect_healed(kind, [](Store& store, const std::string&, const SaveResult& saved) {
      const std::string path =
          store.context().files.object_path(store::ObjectKind::kManifest, saved.head().manifest_id);
      std::filesystem::resize_file(path, 9'000);
    });
    // Every shard directory removed by hand.
    expect_healed(kind, [](Store&, const std::string& root, const SaveResult&) {
      for (const std::string folder : {"/objects/chunks", "/objects/manifests"})
        for (const auto& entry : std::filesystem::directory_iterator(root + folder))
          std::filesystem::remove_all(entry.path());
    });
    expect_healed(kind, [](Store& store, const std::string&, const SaveResult& saved) {
      EXPECT_EQ(verdict_of(evict(store, saved.head().manifest_id)), "success");
    });
  }
}

TEST(StoreSaveReplay, AnExportWhoseCheckpointIsGoneIsPublishedAgain) {
  FakeStoreFixture f;
  const auto store = f.create();
  const SavableInput input(small_family(), 9 * 256);
  const SaveResult first = expect_saved(*store, input, SaveKind::kCutExport);
  // The ninth is a full one, so the eighth can go without it.
  ASSERT_EQ(verdict_of(evict(*store, first.cuts[7].manifest_id)), "success");
  EXPECT_EQ(catalog_number(*store, "SELECT manifests FROM store"), 8);
  const SaveResult again = expect_saved(*store, input, SaveKind::kCutExport);
  EXPECT_FALSE(again.replayed);
  EXPECT_EQ(again.cuts, first.cuts);
  EXPECT_EQ(catalog_number(*store, "SELECT manifests FROM store"), 9);
  expect_sound(*store);
}

TEST(StoreSaveReplay, AStrictStoreSaysWhatIsDamaged) {
  StoreFixture f;
  f.options.strict = true;
  const auto store = f.create();
  const SavableInput input(small_family(), 600);
  const SaveResult first = expect_saved(*store, input);
  const std::string path =
      store->context().files.object_path(store::ObjectKind::kManifest, first.head().manifest_id);
  std::filesystem::resize_file(path, 9'000);
  EXPECT_EQ(verdict_of(SaveSession::begin(*store, input.request())),
            "authentication:manifest object length changed");
  std::filesystem::remove(path);
  EXPECT_EQ(verdict_of(save(*store, input.request(), input.planes())), "success");
}

TEST(StoreSaveReplay, AReplayRenewsTheTimeToLive) {
  FakeStoreFixture f;
  const auto store = f.create();
  const SavableInput input(small_family(), 600);
  SaveRequest request = input.request(SaveKind::kCutExport);
  const auto save_for = [&](std::optional<std::uint64_t> ttl_ms) {
    request.time_to_live_ms = ttl_ms;
    return expect_saved(*store, request, input.planes()).replayed;
  };
  const auto ending_at = [&](std::uint64_t ms) {
    return catalog_number(*store, "SELECT count(*) FROM manifests WHERE expires_ns = ?1",
                          static_cast<std::int64_t>(ms * 1'000'000));
  };
  EXPECT_FALSE(save_for(60'000));
  const std::uint64_t first = f.clock.wall_ms() + 60'000;
  f.clock.advance_ms(30'000);
  EXPECT_TRUE(save_for(10'000));
  EXPECT_EQ(ending_at(first), 3);
  EXPECT_TRUE(save_for(60'000));
  EXPECT_EQ(ending_at(first + 30'000), 3);
  EXPECT_TRUE(save_for(std::nullopt));
  EXPECT_EQ(catalog_number(*store, "SELECT count(*) FROM manifests WHERE expires_ns IS NULL"), 3);
  EXPECT_TRUE(save_for(60'000));
  EXPECT_EQ(catalog_number(*store, "SELECT count(*) FROM manifests WHERE expires_ns IS NULL"), 3);
}

TEST(StoreSaveReplay, WhatIsReplayedIsNotEvictedMeanwhile) {
  FakeStoreFixture f;
  const auto store = f.create();
  const SavableInput input(small_family(), 600);
  const SaveResult first = expect_saved(*store, input);
  auto session = SaveSession::begin(*store, input.request());
  ASSERT_TRUE(session.has_value() && session->is_replay());
  EXPECT_EQ(verdict_of(evict(*store, first.head().manifest_id)), "busy:resource is busy");
  EXPECT_EQ(verdict_of(session->commit()), "success");
  EXPECT_EQ(verdict_of(evict(*store, first.head().manifest_id)), "success");
}

TEST(StoreSaveReplay, AParentStaysWhileADeltaOnItIsSaved) {
  FakeStoreFixture f;
  const auto store = f.create();
  const SavableInput base(small_family(), 300);
  SavableInput longer(small_family(), 600);
  const Id32 parent = expect_saved(*store, base).head().manifest_id;
  SaveRequest request = longer.request();
  request.parent = parent;
  auto session = SaveSession::begin(*store, request);
  ASSERT_TRUE(session.has_value());
  EXPECT_EQ(verdict_of(evict(*store, parent)), "busy:resource is busy");
  EXPECT_EQ(verdict_of(session->write_states(longer.planes())), "success");
  EXPECT_EQ(verdict_of(session->commit()), "success");
  expect_sound(*store);
}

}  // namespace
}  // namespace kvpack::store_save_replay_test
