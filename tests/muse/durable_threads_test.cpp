// One durable tier under several threads, each with a session of its own.
#include <mutex>
#include <thread>

#include "kvpack/muse/durable_cache.h"
#include "muse/memory_session.h"
#include "muse/memory_store.h"
#include "support/store_checks.h"
#include "support/verdict.h"

namespace kvpack::muse::durable_threads_test {
namespace {

using kvpack::testing::verdict;
using testing::counting_tokens;
using testing::logits_of;
using testing::MemorySession;
using testing::snapshot_of;

constexpr std::uint32_t kThreads = 3;

// A prompt of one thread, which shares no prefix with those of the others.
std::vector<std::uint32_t> prompt_of(std::uint32_t thread, std::size_t count) {
  std::vector<std::uint32_t> tokens = counting_tokens(count);
  for (std::uint32_t& token : tokens) token += thread * 1'000'000;
  return tokens;
}

std::string save_and_restore(const DurableCache& cache, std::uint32_t thread) {
  for (const std::size_t count : {40U, 256U, 260U}) {
    MemorySession session;
    session.compute(prompt_of(thread, count));
    if (const auto saved = cache.save(session); !saved.has_value()) return verdict(saved);
    MemorySession back;
    const auto restored = cache.restore_deepest(back, prompt_of(thread, count));
    if (!restored.has_value()) return verdict(restored);
    if (!restored->restored || restored->restored->hit.cut != count) return "another cut";
    if (back.live() != snapshot_of(prompt_of(thread, count))) return "other planes";
    const std::vector<float> logits(back.logits().begin(), back.logits().end());
    if (logits != logits_of(count)) return "other logits";
  }
  return "ok";
}

TEST(MuseDurableThreads, SaveAndRestoreBesideEachOther) {
  testing::MemoryStoreFixture fixture;
  const auto store = fixture.create();
  const auto cache = DurableCache::create(*store, testing::test_config(), testing::test_identity());
  ASSERT_EQ(verdict(cache), "ok");
  std::array<std::string, kThreads> results{};
  {
    std::vector<std::jthread> threads;
    for (std::uint32_t i = 0; i < kThreads; ++i)
      threads.emplace_back([&, i] { results[i] = save_and_restore(*cache, i); });
  }
  for (const std::string& result : results) EXPECT_EQ(result, "ok");
  kvpack::testing::expect_sound(*store);
  kvpack::testing::expect_no_orphans(*store);
}

// One prompt, saved by all at once, is one cut.
TEST(MuseDurableThreads, SavesOfOnePromptAreOneCut) {
  testing::MemoryStoreFixture fixture;
  const auto store = fixture.create();
  const auto cache = DurableCache::create(*store, testing::test_config(), testing::test_identity());
  ASSERT_EQ(verdict(cache), "ok");
  std::array<std::string, kThreads> results{};
  std::mutex retries;
  {
    std::vector<std::jthread> threads;
    for (std::uint32_t i = 0; i < kThreads; ++i)
      threads.emplace_back([&, i] {
        MemorySession session(256);
        results[i] = verdict(cache->save(session));
        // The newest session of a key supersedes the others. Those that try again do so one by one, so that
        // only first attempts can supersede them, of which there is an end.
        const std::lock_guard lock(retries);
        for (std::uint32_t attempt = 0; attempt < kThreads && results[i] != "ok"; ++attempt)
          results[i] = verdict(cache->save(session));
      });
  }
  for (const std::string& result : results) EXPECT_EQ(result, "ok");
  EXPECT_EQ(kvpack::testing::catalog_number(*store, "SELECT manifests FROM store"), 1);
  MemorySession back;
  ASSERT_EQ(verdict(cache->restore_deepest(back, counting_tokens(256))), "ok");
  EXPECT_TRUE(back.live() == snapshot_of(counting_tokens(256)));
  kvpack::testing::expect_sound(*store);
  kvpack::testing::expect_no_orphans(*store);
}

}  // namespace
}  // namespace kvpack::muse::durable_threads_test
