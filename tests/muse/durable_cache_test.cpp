#include "kvpack/muse/durable_cache.h"

#include <filesystem>
#include <fstream>

#include "kvpack/store/status.h"
#include "muse/memory_session.h"
#include "muse/memory_store.h"
#include "support/store_checks.h"
#include "support/stores.h"
#include "support/verdict.h"

namespace kvpack::muse::durable_cache_test {
namespace {

using kvpack::testing::expect_no_orphans;
using kvpack::testing::expect_sound;
using kvpack::testing::verdict;
using testing::counting_tokens;
using testing::kTestVocabulary;
using testing::logits_of;
using testing::MemorySession;
using testing::MemoryStoreFixture;
using testing::snapshot_of;
using testing::test_config;
using testing::test_identity;

std::string mismatch(std::string_view what) {
  return "expectation:cache snapshot does not match its descriptor: " + std::string(what);
}

struct Tier : MemoryStoreFixture {
  std::unique_ptr<Store> store;
  std::optional<DurableCache> cache;

  explicit Tier(bool strict = false) {
    options.strict = strict;
    store = create();
    attach(test_identity());
  }
  void attach(const MuseIdentity& identity) {
    auto made = DurableCache::create(*store, test_config(), identity);
    ASSERT_EQ(verdict(made), "ok");
    cache.emplace(*std::move(made));
  }
  SessionReceipt save(std::size_t count, const SessionTerms& terms = {}) {
    MemorySession session(count);
    auto receipt = cache->save(session, terms);
    EXPECT_EQ(verdict(receipt), "ok") << count;
    return receipt.has_value() ? *std::move(receipt) : SessionReceipt{};
  }
  // The cut that a request of this many tokens finds; 0: none.
  std::uint64_t found(std::size_t request) {
    const auto hit = cache->find_deepest(counting_tokens(request));
    EXPECT_EQ(verdict(hit), "ok");
    return hit.has_value() && *hit ? (*hit)->cut : 0;
  }
  std::string path_of(kvpack::store::ObjectKind kind, const Id32& id) const {
    return options.root +
           (kind == kvpack::store::ObjectKind::kChunk ? "/objects/chunks/" : "/objects/manifests/") +
           kvpack::testing::object_name(kind, id);
  }
  void flip(kvpack::store::ObjectKind kind, const Id32& id) const {
    const std::string path = path_of(kind, id);
    const auto at = static_cast<std::streamoff>(std::filesystem::file_size(path) / 2);
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(at);
    const char byte = static_cast<char>(file.get() ^ 1);
    file.seekp(at);
    file.put(byte);
    ASSERT_TRUE(file.good());
  }
  // A chunk that only this cut names.
  Id32 own_chunk(const Id32& manifest_id) {
    Id32 key;
    const Status read = store->context().catalog->read([&](sqlite::Database& db) -> Status {
      KVPACK_TRY_ASSIGN(
          auto row, db.prepare("SELECT c.object_key FROM manifests m JOIN manifest_chunks USING (manifest)"
                               " JOIN chunks c USING (chunk) WHERE m.manifest_id = ?1 AND c.refcount = 1"));
      row.bind(manifest_id);
      KVPACK_TRY_ASSIGN(const bool there, row.step());
      if (there) key = row.id(0);
      return success();
    });
    EXPECT_EQ(verdict(read), "ok");
    return key;
  }
};

void expect_live(const MemorySession& session, std::size_t cut) {
  EXPECT_TRUE(session.live() == snapshot_of(counting_tokens(cut))) << cut;
  EXPECT_EQ(std::vector<float>(session.logits().begin(), session.logits().end()), logits_of(cut));
}

TEST(MuseDurableCache, FindsTheDeepestCutThatIsAPrefix) {
  Tier t;
  EXPECT_EQ(t.found(256), 0u);
  EXPECT_EQ(t.found(0), 0u);
  t.save(256);
  EXPECT_EQ(t.found(255), 0u);
  EXPECT_EQ(t.found(256), 256u);
  EXPECT_EQ(t.found(257), 256u);
  t.save(257);
  // A cut that is no multiple of 256 answers the identical request alone.
  EXPECT_EQ(t.found(257), 257u);
  EXPECT_EQ(t.found(258), 256u);
  const auto other = t.cache->find_deepest(std::vector<std::uint32_t>(256, 7));
  EXPECT_FALSE(other->has_value());
  expect_sound(*t.store);
  expect_no_orphans(*t.store);
}

TEST(MuseDurableCache, EachOfTheEightFieldsSeparates) {
  Tier t;
  t.save(256);
  const auto finds = [&](auto change) {
    MuseIdentity identity = test_identity();
    change(identity);
    t.attach(identity);
    return t.found(256);
  };
  EXPECT_EQ(finds([](MuseIdentity&) {}), 256u);
  EXPECT_EQ(finds([](MuseIdentity& i) { i.model_sha256.bytes[0] ^= 1; }), 0u);
  EXPECT_EQ(finds([](MuseIdentity& i) { i.adapter_sha256.bytes[31] ^= 1; }), 0u);
  EXPECT_EQ(finds([](MuseIdentity& i) { i.tokenizer_sha256.bytes[0] ^= 1; }), 0u);
  EXPECT_EQ(finds([](MuseIdentity& i) { i.chat_template_sha256.bytes[0] ^= 1; }), 0u);
  EXPECT_EQ(finds([](MuseIdentity& i) { i.context_policy_sha256.bytes[0] ^= 1; }), 0u);
  EXPECT_EQ(finds([](MuseIdentity& i) { i.model_revision += "x"; }), 0u);
  EXPECT_EQ(finds([](MuseIdentity& i) { i.tokenizer_revision += "x"; }), 0u);
  EXPECT_EQ(finds([](MuseIdentity& i) { i.weight_precision = "q4_k_xl"; }), 0u);
  // So does another vocabulary, and another scalar of the graph.
  for (const bool vocabulary : {true, false}) {
    MuseConfig config = test_config();
    if (vocabulary) config.vocab_size = 129;
    if (!vocabulary) config.final_logit_softcap = 30;
    const auto cache = DurableCache::create(*t.store, config, test_identity());
    ASSERT_EQ(verdict(cache), "ok");
    EXPECT_FALSE(cache->find_deepest(counting_tokens(256))->has_value());
  }
}

TEST(MuseDurableCache, RestoresExactlyWhatWasSaved) {
  Tier t;
  const SessionReceipt receipt = t.save(2'300);
  EXPECT_EQ(receipt.tail_coverage.size(), 79u);
  EXPECT_EQ(receipt.restored_bytes, kv_bytes(2'300) + kTestVocabulary * 4);
  t.store.reset();
  t.store = t.open();
  t.attach(test_identity());

  MemorySession session(3);
  const auto restored = t.cache->restore_deepest(session, counting_tokens(2'300));
  ASSERT_EQ(verdict(restored), "ok");
  ASSERT_TRUE(restored->restored.has_value());
  EXPECT_EQ(restored->restored->hit, (DurableHit{2'300, receipt.manifest_id}));
  EXPECT_EQ(restored->restored->restored_bytes, receipt.restored_bytes);
  EXPECT_TRUE(restored->faults.empty());
  expect_live(session, 2'300);

  MemorySession empty;
  ASSERT_EQ(verdict(t.cache->restore_manifest(empty, {2'300, receipt.manifest_id}, counting_tokens(2'400))),
            "ok");
  expect_live(empty, 2'300);
  // Nothing of either is held any more.
  EXPECT_EQ(status(*t.store)->holds, 0u);
}

TEST(MuseDurableCache, ReadsACutWithoutMakingItLive) {
  Tier t;
  const SessionReceipt receipt = t.save(256);
  const auto read = t.cache->read_manifest({256, receipt.manifest_id}, counting_tokens(300));
  ASSERT_EQ(verdict(read), "ok");
  EXPECT_TRUE(read->session.snapshot == snapshot_of(counting_tokens(256)));
  EXPECT_EQ(read->session.logits, logits_of(256));
  EXPECT_EQ(read->restored_bytes, receipt.restored_bytes);
  EXPECT_EQ(status(*t.store)->holds, 0u);
}

TEST(MuseDurableCache, AMissLeavesTheSessionAsItIs) {
  Tier t;
  MemorySession session(5);
  for (const std::size_t request : {0U, 256U}) {
    const auto missed = t.cache->restore_deepest(session, counting_tokens(request));
    ASSERT_EQ(verdict(missed), "ok");
    EXPECT_FALSE(missed->restored.has_value());
  }
  expect_live(session, 5);
  EXPECT_EQ(session.installs, 0);
}

TEST(MuseDurableCache, HitsOutsideOfTheRequestAreRefused) {
  Tier t;
  const SessionReceipt receipt = t.save(256);
  MemorySession session;
  const auto tokens = counting_tokens(256);
  const std::string outside = mismatch("durable prefix result is outside the request");
  EXPECT_EQ(verdict(t.cache->restore_manifest(session, {0, receipt.manifest_id}, tokens)), outside);
  EXPECT_EQ(verdict(t.cache->restore_manifest(session, {257, receipt.manifest_id}, tokens)), outside);
  EXPECT_EQ(verdict(t.cache->restore_manifest(session, {255, receipt.manifest_id}, tokens)),
            "authentication:Muse session prompt-token identity mismatch");
  auto changed = tokens;
  changed[100] ^= 1;
  EXPECT_EQ(verdict(t.cache->restore_manifest(session, {256, receipt.manifest_id}, changed)),
            "authentication:Muse session prompt-token identity mismatch");
  EXPECT_EQ(verdict(t.cache->restore_manifest(session, {256, Id32::filled(9)}, tokens)),
            "not_found:artifact not found");
  EXPECT_EQ(session.installs, 0);
}

// A save per cut shares what both have whole: two runs of 2,048 tokens of each of the 26 NoPE planes.
TEST(MuseDurableCache, TwoCutsOfOneSessionShareTheirNoPeChunks) {
  Tier t;
  const SessionReceipt first = t.save(4'096);
  EXPECT_EQ(first.written.chunks, 131u);
  EXPECT_EQ(first.shared.chunks, 0u);
  const SessionReceipt second = t.save(6'144);
  EXPECT_EQ(second.shared.chunks, 52u);
  EXPECT_EQ(second.written.chunks, 157u - 52u);
  EXPECT_EQ(kvpack::testing::catalog_number(*t.store, "SELECT chunks FROM store"), 131 + 157 - 52);
  expect_sound(*t.store);
  expect_no_orphans(*t.store);
  MemorySession session;
  const auto restored = t.cache->restore_deepest(session, counting_tokens(7'000));
  ASSERT_EQ(verdict(restored), "ok");
  EXPECT_EQ(restored->restored->hit.cut, 6'144u);
  expect_live(session, 6'144);
}

// Runs from the first token have an end that moves with the cut: nothing is shared.
TEST(MuseDurableCache, TwoCutsInPlainRunsShareNothing) {
  Tier t;
  SessionTerms terms;
  terms.spans.rule = SpanPolicy::Rule::kUpstream;
  EXPECT_EQ(t.save(256, terms).written.chunks, 105u);
  const SessionReceipt second = t.save(512, terms);
  EXPECT_EQ(second.shared.chunks, 0u);
  EXPECT_EQ(second.written.chunks, 105u);
}

TEST(MuseDurableCache, ASavedCutIsNotWrittenAgain) {
  Tier t;
  const SessionReceipt first = t.save(256);
  const SessionReceipt again = t.save(256);
  EXPECT_TRUE(again.replayed);
  EXPECT_EQ(again.manifest_id, first.manifest_id);
  EXPECT_EQ(again.input_cut, first.input_cut);
  EXPECT_EQ(again.token_digest, first.token_digest);
  EXPECT_EQ(again.tail_coverage, first.tail_coverage);
  EXPECT_EQ(again.written.chunks, 0u);
  // The same prompt under another identity is another save.
  MuseIdentity other = test_identity();
  other.model_revision = "another";
  t.attach(other);
  const SessionReceipt apart = t.save(256);
  EXPECT_FALSE(apart.replayed);
  EXPECT_NE(apart.manifest_id, first.manifest_id);
}

// Upstream's key names the tokens alone, and so cannot be used under a second identity.
TEST(MuseDurableCache, APromptKeyIsForOneIdentity) {
  Tier t;
  SessionTerms terms;
  terms.idempotency_key = durable_prompt_key(counting_tokens(256));
  t.save(256, terms);
  EXPECT_TRUE(t.save(256, terms).replayed);
  MuseIdentity other = test_identity();
  other.model_revision = "another";
  t.attach(other);
  MemorySession session(256);
  EXPECT_EQ(verdict(t.cache->save(session, terms)),
            "expectation:idempotency key was reused with a different immutable declaration");
}

TEST(MuseDurableCache, TheWholeContextIsLookedUpAndNotSaved) {
  Tier t;
  t.save(256);
  EXPECT_EQ(t.found(131'071), 256u);
  EXPECT_EQ(t.found(131'072), 256u);
  EXPECT_EQ(t.found(131'073), 256u);
  EXPECT_EQ(t.found(200'000), 256u);
  MemorySession restored;
  const auto deepest = t.cache->restore_deepest(restored, counting_tokens(131'073));
  ASSERT_EQ(verdict(deepest), "ok");
  expect_live(restored, 256);

  // Refused before a plane is read.
  MemorySession session;
  session.pretend_position(131'072);
  EXPECT_EQ(verdict(t.cache->save(session)),
            "expectation:durable cut must be below the model context: 131072 of 131072");
  session.pretend_position(131'073);
  EXPECT_EQ(verdict(t.cache->save(session)),
            "expectation:durable cut must be below the model context: 131073 of 131072");
  EXPECT_EQ(session.exports, 0);
  EXPECT_EQ(verdict(t.cache->save_snapshot({.position = 131'072}, {})),
            "expectation:durable cut must be below the model context: 131072 of 131072");
}

TEST(MuseDurableCache, ACutWithoutLogitsIsNotSaved) {
  Tier t;
  MemorySession session(256);
  session.drop_logits();
  EXPECT_EQ(verdict(t.cache->save(session)), mismatch("durable cut has no final logits"));
  EXPECT_EQ(t.found(256), 0u);
  MemorySession empty;
  EXPECT_EQ(verdict(t.cache->save(empty)), "state:zero is not a durable Muse session cut");
  EXPECT_EQ(empty.exports, 0);
}

TEST(MuseDurableCache, OnlyCompleteF16SnapshotsAreSaved) {
  Tier t;
  const auto with = [&](auto change, std::vector<float> logits = logits_of(2)) {
    CacheSnapshot snapshot = snapshot_of(counting_tokens(2));
    change(snapshot);
    return verdict(t.cache->save_snapshot(snapshot, logits));
  };
  EXPECT_EQ(with([](CacheSnapshot& s) { s.position = 0; }),
            mismatch("cache snapshot position must be nonzero"));
  EXPECT_EQ(with([](CacheSnapshot& s) { s.tokens.pop_back(); }),
            mismatch("cache snapshot carries 1 tokens for position 2"));
  EXPECT_EQ(with([](CacheSnapshot& s) { s.layers.pop_back(); }),
            mismatch("cache snapshot carries 51 layers, expected 52"));
  EXPECT_EQ(with([](CacheSnapshot& s) { std::swap(s.layers[3], s.layers[7]); }),
            mismatch("cache snapshot layer order has 7 at ordinal 3"));
  const auto widen = [](LayerSnapshot& layer) {
    layer.encoding = ElementEncoding::kF32Le;
    layer.key = layer.value = SharedBytes::own(Bytes(2'048));
  };
  constexpr const char* kF16 = "expectation:durable Muse artifacts require production F16 cache planes";
  EXPECT_EQ(with([&](CacheSnapshot& s) { widen(s.layers[51]); }), kF16);
  EXPECT_EQ(with(
                [&](CacheSnapshot& s) {
                  for (LayerSnapshot& layer : s.layers) widen(layer);
                },
                {}),
            kF16);
  const std::string logits = mismatch("durable exact-final logits have invalid geometry or values");
  const auto nothing = [](CacheSnapshot&) {};
  EXPECT_EQ(with(nothing, {}), logits);
  EXPECT_EQ(with(nothing, logits_of(2, 127)), logits);
  EXPECT_EQ(with(nothing, logits_of(2, 129)), logits);
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    std::vector<float> values = logits_of(2);
    values.back() = bad;
    EXPECT_EQ(with(nothing, values), logits);
  }
  EXPECT_EQ(with([](CacheSnapshot& s) {
              s.elements_per_token = 512;
              for (LayerSnapshot& layer : s.layers) layer.key = layer.value = SharedBytes::own(Bytes(2'048));
            }),
            mismatch("row width is 512, expected 256"));
  EXPECT_EQ(t.found(2), 0u);
  EXPECT_EQ(with(nothing), "ok");
}

TEST(MuseDurableCache, ModelsThatAreNotMuseHaveNoTier) {
  MemoryStoreFixture fixture;
  const auto store = fixture.create();
  MuseConfig config = test_config();
  config.n_layers = 51;
  EXPECT_EQ(verdict(DurableCache::create(*store, config, test_identity())),
            "expectation:Muser Muse geometry disagrees with the qualified kvpack layout: layer count");
}

TEST(MuseDurableCache, DamagedCutsArePassedOver) {
  for (const bool chunk : {false, true}) {
    Tier t;
    t.save(256);
    const SessionReceipt deep = t.save(512);
    if (chunk) {
      t.flip(kvpack::store::ObjectKind::kChunk, t.own_chunk(deep.manifest_id));
    } else {
      t.flip(kvpack::store::ObjectKind::kManifest, deep.manifest_id);
    }
    MemorySession session(5);
    const auto restored = t.cache->restore_deepest(session, counting_tokens(512));
    ASSERT_EQ(verdict(restored), "ok");
    EXPECT_EQ(restored->restored->hit.cut, 256u);
    expect_live(session, 256);
    ASSERT_EQ(restored->faults.size(), 1u);
    EXPECT_EQ(restored->faults[0].token_count, 512u);
    EXPECT_EQ(restored->faults[0].action, StoreFault::Action::kQuarantined);
    // It is found no more, and saving it again heals it.
    EXPECT_EQ(t.found(512), 256u);
    t.save(512);
    EXPECT_EQ(t.found(512), 512u);
  }
}

TEST(MuseDurableCache, AStrictStoreReturnsDamage) {
  Tier t(true);
  t.save(256);
  const SessionReceipt deep = t.save(512);
  t.flip(kvpack::store::ObjectKind::kChunk, t.own_chunk(deep.manifest_id));
  MemorySession session(5);
  const auto refused = t.cache->restore_deepest(session, counting_tokens(512));
  ASSERT_FALSE(refused.has_value());
  EXPECT_LE(refused.error().code, ErrorCode::kCodec);
  const auto by_id = t.cache->restore_manifest(session, {512, deep.manifest_id}, counting_tokens(512));
  ASSERT_FALSE(by_id.has_value());
  EXPECT_LE(by_id.error().code, ErrorCode::kCodec);
  expect_live(session, 5);
  EXPECT_EQ(session.installs, 0);
}

TEST(MuseDurableCache, ACancelledRestoreChangesNothing) {
  Tier t;
  const SessionReceipt receipt = t.save(256);
  std::stop_source stop;
  stop.request_stop();
  MemorySession session(5);
  EXPECT_EQ(verdict(t.cache->restore_deepest(session, counting_tokens(256), stop.get_token())),
            "cancelled:operation was cancelled");
  EXPECT_EQ(verdict(t.cache->restore_manifest(session, {256, receipt.manifest_id}, counting_tokens(256),
                                              stop.get_token())),
            "cancelled:operation was cancelled");
  expect_live(session, 5);
  EXPECT_EQ(session.installs, 0);
  EXPECT_EQ(status(*t.store)->holds, 0u);
}

// KV and logits are accepted together or not at all.
TEST(MuseDurableCache, RefusedLogitsBringTheOldSessionBack) {
  Tier t;
  t.save(256);
  MemorySession session(5);
  session.refused_first_logit = logits_of(256).front();
  EXPECT_EQ(verdict(t.cache->restore_deepest(session, counting_tokens(256))), "install:logits refused");
  expect_live(session, 5);
  MemorySession empty;
  empty.refused_first_logit = logits_of(256).front();
  EXPECT_EQ(verdict(t.cache->restore_deepest(empty, counting_tokens(256))), "install:logits refused");
  EXPECT_TRUE(empty.tokens().empty());
  EXPECT_EQ(empty.resets, 1);
  EXPECT_EQ(status(*t.store)->holds, 0u);
}

TEST(MuseDurableCache, PublicationSchedule) {
  using enum PublishReason;
  EXPECT_TRUE(should_publish(2'048, kInterval));
  EXPECT_TRUE(should_publish(4'096, kInterval));
  EXPECT_TRUE(should_publish(513, kPromptBoundary));
  EXPECT_TRUE(should_publish(777, kTurnBoundary));
  EXPECT_TRUE(should_publish(1, kExplicit));
  EXPECT_FALSE(should_publish(513, kInterval));
  EXPECT_FALSE(should_publish(256, kInterval));
  for (const PublishReason reason : {kInterval, kPromptBoundary, kTurnBoundary, kExplicit, kAlignedBoundary})
    EXPECT_FALSE(should_publish(0, reason, 100));
  EXPECT_TRUE(should_publish(768, kAlignedBoundary, 1'023));
  EXPECT_TRUE(should_publish(768, kAlignedBoundary, 768));
  EXPECT_FALSE(should_publish(768, kAlignedBoundary, 1'024));
  EXPECT_FALSE(should_publish(767, kAlignedBoundary, 767));
  EXPECT_EQ(aligned_boundary(255), 0u);
  EXPECT_EQ(aligned_boundary(131'072), 131'072u);
}

TEST(MuseDurableCache, PublishesOnScheduleWhenThereIsATier) {
  Tier t;
  MemorySession session(256);
  EXPECT_FALSE(*publish_durable(nullptr, session, PublishReason::kExplicit));
  EXPECT_FALSE(*publish_durable(&*t.cache, session, PublishReason::kInterval));
  EXPECT_FALSE(*publish_durable(&*t.cache, session, PublishReason::kAlignedBoundary, {}, 600));
  EXPECT_EQ(session.exports, 0);
  EXPECT_TRUE(*publish_durable(&*t.cache, session, PublishReason::kAlignedBoundary, {}, 300));
  EXPECT_TRUE(*publish_durable(&*t.cache, session, PublishReason::kExplicit));
  EXPECT_EQ(t.found(300), 256u);
  session.drop_logits();
  EXPECT_EQ(verdict(publish_durable(&*t.cache, session, PublishReason::kExplicit)),
            mismatch("durable cut has no final logits"));
}

// A chat turn rarely ends on a multiple of 256. The cut saved on the way is what the next turn finds.
TEST(MuseDurableCache, TheAlignedCutAnswersTheNextTurn) {
  Tier t;
  MemorySession session(aligned_boundary(600));
  ASSERT_TRUE(*publish_durable(&*t.cache, session, PublishReason::kAlignedBoundary, {}, 600));
  session.compute(counting_tokens(600));
  ASSERT_TRUE(*publish_durable(&*t.cache, session, PublishReason::kPromptBoundary, {}, 600));
  EXPECT_EQ(t.found(600), 600u);
  EXPECT_EQ(t.found(650), 512u);
}

TEST(MuseDurableCache, EachCutIsLabelledWithItsIdentity) {
  Tier t;
  t.save(256);
  std::vector<std::string> labels;
  ASSERT_EQ(verdict(list_cuts(*t.store,
                              [&](const StoredCut& cut) {
                                labels.push_back(cut.label);
                                return true;
                              })),
            "ok");
  ASSERT_EQ(labels.size(), 1u);
  EXPECT_EQ(labels[0], t.cache->label());
  const auto stored = read_identity_label(labels[0]);
  ASSERT_EQ(verdict(stored), "ok");
  MuseIdentity asked = test_identity();
  asked.tokenizer_revision = "test-tokenizer-2";
  EXPECT_EQ(compare_identity_labels(*stored, identity_label(test_config(), asked)),
            (std::vector<LabelDifference>{{"tokenizer_revision", "test-tokenizer", "test-tokenizer-2"}}));
}

}  // namespace
}  // namespace kvpack::muse::durable_cache_test
