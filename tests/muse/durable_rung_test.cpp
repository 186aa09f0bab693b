#include "kvpack/muse/durable_rung.h"

#include <filesystem>

#include "kvpack/muse/reuse_ladder.h"
#include "muse/memory_session.h"
#include "muse/memory_store.h"
#include "support/store_checks.h"
#include "support/verdict.h"

namespace kvpack::muse::durable_rung_test {
namespace {

using kvpack::testing::verdict;
using testing::counting_tokens;
using testing::logits_of;
using testing::MemorySession;
using testing::MemoryStoreFixture;
using testing::snapshot_of;
using testing::test_config;
using testing::test_identity;

struct Rung : MemoryStoreFixture {
  std::unique_ptr<Store> store;
  std::optional<DurableCache> cache;
  std::optional<DurableCacheRung> rung;

  explicit Rung(bool strict = false) {
    options.strict = strict;
    store = create();
    auto made = DurableCache::create(*store, test_config(), test_identity());
    EXPECT_EQ(verdict(made), "ok");
    cache.emplace(*std::move(made));
    rung.emplace(*cache);
  }
  Id32 save(std::size_t count) {
    MemorySession session(count);
    const auto receipt = cache->save(session);
    EXPECT_EQ(verdict(receipt), "ok");
    return receipt.has_value() ? receipt->manifest_id : Id32{};
  }
  ReuseLadder ladder() { return ReuseLadder({.durable = &*rung}); }
};

void expect_live(const MemorySession& session, std::size_t cut) {
  EXPECT_TRUE(session.live() == snapshot_of(counting_tokens(cut))) << cut;
  EXPECT_EQ(std::vector<float>(session.logits().begin(), session.logits().end()), logits_of(cut));
}

TEST(MuseDurableRung, SaysUnderWhatItLooks) {
  Rung lenient;
  EXPECT_EQ(lenient.rung->identity_digest(), resident_digest(test_identity()));
  EXPECT_FALSE(lenient.rung->is_strict());
  EXPECT_TRUE(Rung(true).rung->is_strict());
  EXPECT_FALSE(lenient.rung->find_deepest(counting_tokens(256))->has_value());
  const Id32 id = lenient.save(256);
  EXPECT_EQ(*lenient.rung->find_deepest(counting_tokens(300)), (RungCut{256, id}));
}

TEST(MuseDurableRung, TheLadderServesFromTheStore) {
  Rung r;
  r.save(256);
  r.save(300);
  for (const auto& [request, cut] : {std::pair<std::size_t, std::size_t>{300, 300}, {301, 256}, {256, 256}}) {
    MemorySession session;
    const auto served = r.ladder().prepare(session, counting_tokens(request));
    ASSERT_EQ(verdict(served), "ok");
    EXPECT_EQ(served->source, ReuseSource::kDurable);
    EXPECT_EQ(served->cut, cut);
    EXPECT_EQ(served->tokens_to_compute, request - cut);
    EXPECT_GE(served->bytes_read, kv_bytes(cut));
    expect_live(session, cut);
  }
  MemorySession session(3);
  const auto missed = r.ladder().prepare(session, std::vector<std::uint32_t>(300, 7));
  ASSERT_EQ(verdict(missed), "ok");
  EXPECT_EQ(missed->source, ReuseSource::kMiss);
  expect_live(session, 3);
}

TEST(MuseDurableRung, ADamagedCutIsReportedAndAShallowerOneServes) {
  Rung r;
  r.save(256);
  const Id32 deep = r.save(512);
  const std::string path = r.options.root + "/objects/manifests/" +
                           kvpack::testing::object_name(kvpack::store::ObjectKind::kManifest, deep);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  MemorySession session;
  const auto served = r.ladder().prepare(session, counting_tokens(600));
  ASSERT_EQ(verdict(served), "ok");
  EXPECT_EQ(served->source, ReuseSource::kDurable);
  EXPECT_EQ(served->cut, 256u);
  EXPECT_EQ(served->faults.size(), 1u);
  expect_live(session, 256);
}

TEST(MuseDurableRung, DamageFailsARequestOfAStrictStore) {
  Rung r(true);
  r.save(256);
  const Id32 deep = r.save(512);
  const std::string path = r.options.root + "/objects/manifests/" +
                           kvpack::testing::object_name(kvpack::store::ObjectKind::kManifest, deep);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  MemorySession session(3);
  EXPECT_EQ(verdict(r.ladder().prepare(session, counting_tokens(600))),
            "authentication:manifest object length changed");
  expect_live(session, 3);
}

}  // namespace
}  // namespace kvpack::muse::durable_rung_test
