#include "kvpack/muse/prefix_cache.h"

#include <filesystem>

#include "kvpack/muse/durable_cache.h"
#include "kvpack/muse/prefix_installer.h"
#include "muse/memory_session.h"
#include "muse/memory_store.h"
#include "support/store_checks.h"
#include "support/verdict.h"

namespace kvpack::muse::prefix_cache_test {
namespace {

using kvpack::testing::verdict;
using testing::counting_tokens;
using testing::MemorySession;
using testing::snapshot_of;
using testing::test_config;
using testing::test_identity;

TargetModel test_model(const MuseIdentity& identity = test_identity()) {
  return *TargetModel::create(identity_label(test_config(), identity));
}

class MusePrefixCache : public ::testing::Test {
 protected:
  MusePrefixCache() : store_(fixture_.create()), cache_(*store_, test_model()) {}

  // A prefix of counting tokens, as a handoff leaves it.
  Id32 save(std::size_t count) {
    auto writer = cache_.write(snapshot_of(counting_tokens(count)));
    EXPECT_EQ(verdict(writer), "ok");
    if (!writer.has_value()) return {};
    const auto saved = writer->commit();
    EXPECT_EQ(verdict(saved), "ok");
    return saved.has_value() ? saved->manifest_id : Id32{};
  }
  // The same with final logits, as an engine saves its sessions.
  Id32 save_exact(std::size_t count, std::uint64_t vocabulary = testing::kTestVocabulary) {
    const auto durable = DurableCache::create(*store_, test_config(vocabulary), test_identity());
    EXPECT_EQ(verdict(durable), "ok");
    MemorySession session(count);
    const auto saved = durable->save(session);
    EXPECT_EQ(verdict(saved), "ok");
    return saved.has_value() ? saved->manifest_id : Id32{};
  }
  void damage(const Id32& manifest_id) {
    const std::string path = fixture_.options.root + "/objects/manifests/" +
                             kvpack::testing::object_name(kvpack::store::ObjectKind::kManifest, manifest_id);
    std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  }

  testing::MemoryStoreFixture fixture_;
  std::unique_ptr<Store> store_;
  PrefixCache cache_;
};

TEST_F(MusePrefixCache, FindsTheDeepestPrefixAndAnExactOneOnly) {
  EXPECT_FALSE(cache_.find_deepest(counting_tokens(300))->has_value());
  const Id32 shallow = save(256);
  const Id32 deep = save(300);
  EXPECT_EQ(*cache_.find_deepest(counting_tokens(400)), (PrefixCut{shallow, 256, 0}));
  EXPECT_EQ(*cache_.find_deepest(counting_tokens(300)), (PrefixCut{deep, 300, 0}));
  EXPECT_EQ(*cache_.find_deepest(counting_tokens(299)), (PrefixCut{shallow, 256, 0}));
  EXPECT_FALSE(cache_.find_deepest(counting_tokens(255))->has_value());
  EXPECT_FALSE(cache_.find_deepest({})->has_value());
  EXPECT_FALSE(cache_.find_deepest(std::vector<std::uint32_t>(300, 7))->has_value());
  EXPECT_EQ(*cache_.find_exactly(counting_tokens(300)), (PrefixCut{deep, 300, 0}));
  EXPECT_EQ(*cache_.find_exactly(counting_tokens(256)), (PrefixCut{shallow, 256, 0}));
  EXPECT_FALSE(cache_.find_exactly(counting_tokens(299))->has_value());
}

TEST_F(MusePrefixCache, ReadsBackWhatWasWritten) {
  save(300);
  const auto cut = cache_.find_deepest(counting_tokens(300));
  ASSERT_TRUE(cut.has_value() && cut->has_value());
  const auto read = cache_.read(**cut, counting_tokens(310));
  ASSERT_EQ(verdict(read), "ok");
  EXPECT_TRUE(read->snapshot == snapshot_of(counting_tokens(300)));
  EXPECT_EQ(read->restored_bytes, kv_bytes(300));
}

TEST_F(MusePrefixCache, AnExactSessionIsAPrefixTooAndItsLogitsStayBehind) {
  const Id32 exact = save_exact(512);
  EXPECT_EQ(*cache_.find_deepest(counting_tokens(600)), (PrefixCut{exact, 512, testing::kTestVocabulary}));
  EXPECT_EQ(*cache_.identify(exact), (PrefixCut{exact, 512, testing::kTestVocabulary}));
  const auto read = cache_.read({exact, 512, testing::kTestVocabulary}, counting_tokens(512));
  ASSERT_EQ(verdict(read), "ok");
  EXPECT_TRUE(read->snapshot == snapshot_of(counting_tokens(512)));
  EXPECT_EQ(read->restored_bytes, kv_bytes(512) + 4 * testing::kTestVocabulary);
  // What a prefix has at the same depth is taken first; a deeper one of either kind wins.
  const Id32 prefix = save(512);
  EXPECT_EQ(*cache_.find_deepest(counting_tokens(512)), (PrefixCut{prefix, 512, 0}));
  const Id32 deeper = save_exact(768);
  EXPECT_EQ((*cache_.find_deepest(counting_tokens(800)))->manifest_id, deeper);
  const Id32 deepest = save(1024);
  EXPECT_EQ((*cache_.find_deepest(counting_tokens(1100)))->manifest_id, deepest);
}

TEST_F(MusePrefixCache, ADamagedSessionHidesNoPrefix) {
  const Id32 prefix = save(256);
  damage(save_exact(512));
  EXPECT_EQ(*cache_.find_deepest(counting_tokens(600)), (PrefixCut{prefix, 256, 0}));
}

TEST_F(MusePrefixCache, AnotherModelHasNothingHere) {
  const Id32 saved = save(256);
  MuseIdentity identity = test_identity();
  identity.model_sha256.bytes[0] ^= 1;
  const PrefixCache other(*store_, test_model(identity));
  EXPECT_FALSE(other.find_deepest(counting_tokens(300))->has_value());
  EXPECT_EQ(verdict(other.identify(saved)), "expectation:cut is of another model");
  const auto read = other.read({saved, 256, 0}, counting_tokens(256));
  EXPECT_EQ(read.error().code, ErrorCode::kAuthentication) << verdict(read);
}

TEST_F(MusePrefixCache, WhatIsNamedIsAuthenticated) {
  const Id32 saved = save(256);
  EXPECT_EQ(*cache_.identify(saved), (PrefixCut{saved, 256, 0}));
  Id32 unknown = saved;
  unknown.bytes[0] ^= 1;
  EXPECT_EQ(cache_.identify(unknown).error().code, ErrorCode::kNotFound);
  damage(saved);
  EXPECT_FALSE(cache_.identify(saved).has_value());
  EXPECT_FALSE(cache_.read({saved, 256, 0}, counting_tokens(256)).has_value());
}

TEST_F(MusePrefixCache, TokensAreComparedWhenACutIsRead) {
  const Id32 saved = save(256);
  EXPECT_EQ(verdict(cache_.read({saved, 256, 0}, counting_tokens(255))),
            "expectation:cut is longer than the tokens");
  auto other = counting_tokens(256);
  other[255] ^= 1;
  EXPECT_EQ(verdict(cache_.read({saved, 256, 0}, other)),
            "authentication:Muse session prompt-token identity mismatch");
  // A cut that says less than it has, or logits that it has not.
  EXPECT_FALSE(cache_.read({saved, 255, 0}, counting_tokens(255)).has_value());
  EXPECT_FALSE(cache_.read({saved, 256, 128}, counting_tokens(256)).has_value());
  std::stop_source stop;
  stop.request_stop();
  RestoreRequest how;
  how.cancel = stop.get_token();
  EXPECT_EQ(cache_.read({saved, 256, 0}, counting_tokens(256), how).error().code, ErrorCode::kCancelled);
}

TEST_F(MusePrefixCache, NobodySeesACutBeforeItsCommit) {
  {
    auto writer = cache_.write(snapshot_of(counting_tokens(256)));
    ASSERT_EQ(verdict(writer), "ok");
    EXPECT_FALSE(writer->is_replay());
    EXPECT_FALSE(cache_.find_deepest(counting_tokens(300))->has_value());
  }
  EXPECT_FALSE(cache_.find_deepest(counting_tokens(300))->has_value());
  save(256);
  auto again = cache_.write(snapshot_of(counting_tokens(256)));
  ASSERT_EQ(verdict(again), "ok");
  EXPECT_TRUE(again->is_replay());
  EXPECT_TRUE(again->commit()->replayed);
}

TEST_F(MusePrefixCache, OnlyWholeF16SnapshotsOfThisWidthAreWritten) {
  CacheSnapshot snapshot = snapshot_of(counting_tokens(3));
  snapshot.tokens.pop_back();
  EXPECT_EQ(verdict(cache_.write(snapshot)), "expectation:cache snapshot carries 2 tokens for position 3");
  snapshot = snapshot_of(counting_tokens(3));
  snapshot.elements_per_token = 128;
  for (LayerSnapshot& layer : snapshot.layers) {
    layer.key = SharedBytes::own(Bytes(3 * 256));
    layer.value = layer.key;
  }
  EXPECT_EQ(verdict(cache_.write(snapshot)), "expectation:prefix needs f16 planes of 256 elements");
  snapshot = snapshot_of(counting_tokens(3));
  for (LayerSnapshot& layer : snapshot.layers) {
    layer.encoding = ElementEncoding::kF32Le;
    layer.key = SharedBytes::own(Bytes(3 * 1024));
    layer.value = layer.key;
  }
  EXPECT_EQ(verdict(cache_.write(snapshot)), "expectation:prefix needs f16 planes of 256 elements");
}

TEST_F(MusePrefixCache, AnInstallerMakesACutOfWhatAHandoffHasCompleted) {
  PrefixInstaller installer(cache_);
  const CacheSnapshot snapshot = snapshot_of(counting_tokens(300));
  ASSERT_EQ(verdict(installer.prepare(snapshot, nullptr)), "ok");
  EXPECT_FALSE(cache_.find_exactly(counting_tokens(300))->has_value());
  installer.drop();
  EXPECT_FALSE(installer.saved().has_value());
  EXPECT_FALSE(cache_.find_exactly(counting_tokens(300))->has_value());
  ASSERT_EQ(verdict(installer.prepare(snapshot, nullptr)), "ok");
  ASSERT_EQ(verdict(installer.install(snapshot, std::nullopt)), "ok");
  ASSERT_TRUE(installer.saved().has_value());
  EXPECT_EQ((*cache_.find_exactly(counting_tokens(300)))->manifest_id, installer.saved()->manifest_id);
}

}  // namespace
}  // namespace kvpack::muse::prefix_cache_test
