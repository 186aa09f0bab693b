// The resident tier under several threads: hits stay whole, counts stay exact, nothing is left behind.
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "kvpack/muse/resident_tier.h"
#include "muse/resident_internal.h"
#include "support/muse_snapshots.h"

namespace kvpack::muse {
namespace resident_threads_test {

using kvpack::testing::counted_logits;
using kvpack::testing::counted_tokens;
using kvpack::testing::snapshot_of;

constexpr std::size_t kThreads = 4;

// Snapshot number `i` of a few that share prefixes and blocks.
CacheSnapshot snapshot_number(std::size_t i) {
  auto tokens = counted_tokens(i % 2 == 0 ? 256 : 512);
  tokens.back() = static_cast<std::uint32_t>(i / 2);
  return snapshot_of(tokens, 1, [i](std::uint32_t layer, std::uint32_t kind, std::uint64_t token) {
    return token < 256 ? token + layer : token + 100 * kind + 1000 * (i % 5);
  });
}

template <class Work>
void on_threads(const Work& work) {
  std::vector<std::jthread> threads;
  for (std::size_t t = 0; t < kThreads; ++t) threads.emplace_back([&work, t] { work(t); });
}

class ResidentThreads : public ::testing::Test {
 protected:
  static constexpr std::size_t kSnapshots = 12;
  static void SetUpTestSuite() {
    snapshots_ = new std::vector<CacheSnapshot>;
    for (std::size_t i = 0; i < kSnapshots; ++i) snapshots_->push_back(snapshot_number(i));
  }
  static void TearDownTestSuite() { delete std::exchange(snapshots_, nullptr); }
  static inline std::vector<CacheSnapshot>* snapshots_ = nullptr;
};

TEST_F(ResidentThreads, HitsAreWholeWhileOthersInsertAndEvict) {
  ResidentTier tier = *ResidentTier::create({.capacity_bytes = 31'000});
  std::atomic<std::uint64_t> queries = 0, hits = 0, damaged = 0;
  on_threads([&](std::size_t t) {
    std::mt19937 random(static_cast<std::uint32_t>(t));
    std::vector<ResidentHit> held;
    for (int step = 0; step < 60; ++step) {
      const CacheSnapshot& snapshot = (*snapshots_)[random() % kSnapshots];
      if (random() % 2 == 0) {
        if (!tier.insert(std::nullopt, snapshot, counted_logits()).has_value()) ++damaged;
        continue;
      }
      ++queries;
      const auto hit = tier.lookup(std::nullopt, snapshot.tokens);
      if (!hit) continue;
      ++hits;
      if (!hit->exact() || hit->materialize() != snapshot || hit->logits().size() != 128) ++damaged;
      if (step % 8 == 0) held.push_back(*hit);
    }
  });
  EXPECT_EQ(damaged, 0U);
  const ResidentStats stats = tier.stats();
  EXPECT_EQ(stats.queries, queries);
  EXPECT_EQ(stats.hits, hits);
  EXPECT_EQ(stats.held_bytes, 0U);
  EXPECT_LE(stats.resident_bytes, 31'000U);
  EXPECT_GT(stats.evictions, 0U);
}

TEST_F(ResidentThreads, EqualBlocksAreKeptOnceWhoeverBringsThemFirst) {
  // All hashes are equal, so that every insert looks at the blocks of every other.
  for (const auto hash : {&resident::xxh3_digest, +[](ByteSpan) { return resident::ChunkDigest{}; }}) {
    ResidentTier together = *resident::TierMaker::make({}, hash);
    on_threads([&](std::size_t t) {
      for (std::size_t i = 0; i < 4; ++i)
        EXPECT_TRUE(*together.insert(std::nullopt, (*snapshots_)[(i + t) % 4]));
    });
    ResidentTier alone = *ResidentTier::create();
    for (std::size_t i = 0; i < 4; ++i) EXPECT_TRUE(*alone.insert(std::nullopt, (*snapshots_)[i]));
    EXPECT_EQ(together.stats().unique_chunk_bytes, alone.stats().unique_chunk_bytes);
    EXPECT_EQ(together.stats().resident_bytes, alone.stats().resident_bytes);
    EXPECT_EQ(together.stats().entries, 4U);
    EXPECT_EQ(together.stats().held_bytes, 0U);
  }
}

TEST_F(ResidentThreads, HitsMayOutliveTheTierOnOtherThreads) {
  std::vector<std::jthread> readers;
  {
    ResidentTier tier = *ResidentTier::create();
    for (std::size_t t = 0; t < kThreads; ++t) {
      const CacheSnapshot& snapshot = (*snapshots_)[t];
      ASSERT_TRUE(*tier.insert(std::nullopt, snapshot));
      readers.emplace_back([hit = *tier.lookup(std::nullopt, snapshot.tokens), &snapshot] {
        EXPECT_EQ(hit.materialize(), snapshot);
      });
    }
  }
}

}  // namespace resident_threads_test
}  // namespace kvpack::muse
