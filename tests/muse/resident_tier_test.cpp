#include "kvpack/muse/resident_tier.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "muse/muse_vectors.h"
#include "muse/resident_internal.h"
#include "support/muse_snapshots.h"

namespace kvpack::muse {
namespace resident_tier_test {

using kvpack::testing::counted_logits;
using kvpack::testing::counted_tokens;
using kvpack::testing::filled_snapshot;
using kvpack::testing::narrow_snapshot;
using kvpack::testing::snapshot_of;

const ResidentScope kUnscoped;

ResidentTier tier_of(std::uint64_t capacity_bytes = kResidentCapacityBytes) {
  return *ResidentTier::create({.capacity_bytes = capacity_bytes});
}

std::vector<std::uint32_t> other_tokens(std::size_t n) {
  auto tokens = counted_tokens(n);
  for (std::uint32_t& token : tokens) token += 1'000'000;
  return tokens;
}

bool put(ResidentTier& tier, const CacheSnapshot& snapshot, const ResidentScope& scope = kUnscoped) {
  return *tier.insert(scope, snapshot);
}
bool put_exact(ResidentTier& tier, const CacheSnapshot& snapshot, const ResidentScope& scope = kUnscoped) {
  return *tier.insert(scope, snapshot, counted_logits());
}

// Length of what is found for the request 0..n-1; 0 for nothing.
std::uint64_t found(ResidentTier& tier, std::size_t n, std::uint64_t max_cut = kAnyCut,
                    const ResidentScope& scope = kUnscoped) {
  const auto hit = tier.lookup(scope, counted_tokens(n), {.max_cut = max_cut});
  return hit ? hit->cut() : 0;
}

TEST(ResidentTier, CapacityMustBeNonzero) {
  const auto tier = ResidentTier::create({.capacity_bytes = 0});
  ASSERT_FALSE(tier.has_value());
  EXPECT_EQ(tier.error().verdict(), "state:resident cache capacity must be nonzero");
}

TEST(ResidentTier, ScopeWordsAreOneAndTheDigestOrNineZeros) {
  const auto words_of = [](const ResidentScope& scope) {
    const auto words = resident_scope_words(scope);
    return std::vector<std::uint64_t>(words.begin(), words.end());
  };
  EXPECT_EQ(words_of(muse::testing::vector_id({"muse_identity", "test", "digest"})),
            muse::testing::vector_numbers({"radix_scope_words", "test_identity"}));
  EXPECT_EQ(words_of(std::nullopt), muse::testing::vector_numbers({"radix_scope_words", "no_identity"}));
}

TEST(ResidentTier, FindsTheDeepestUsableCut) {
  ResidentTier tier = tier_of();
  EXPECT_TRUE(put(tier, narrow_snapshot(256)));
  EXPECT_TRUE(put(tier, narrow_snapshot(512)));
  const auto hit = tier.lookup(kUnscoped, counted_tokens(600));
  ASSERT_TRUE(hit.has_value());
  EXPECT_EQ(hit->cut(), 512U);
  EXPECT_FALSE(hit->exact());
  EXPECT_TRUE(hit->logits().empty());
  EXPECT_TRUE(std::ranges::equal(hit->tokens(), counted_tokens(512)));
  EXPECT_EQ(hit->materialize(), narrow_snapshot(512));

  EXPECT_TRUE(put(tier, narrow_snapshot(513)));
  const auto exact = tier.lookup(kUnscoped, counted_tokens(513));
  ASSERT_TRUE(exact.has_value());
  EXPECT_EQ(exact->cut(), 513U);
  EXPECT_TRUE(exact->exact());
  EXPECT_EQ(found(tier, 514), 512U);  // 513 is no multiple of 256
}

TEST(ResidentTier, CapsAreInclusive) {
  ResidentTier tier = tier_of();
  put(tier, narrow_snapshot(256));
  put(tier, narrow_snapshot(512));
  const std::pair<std::uint64_t, std::uint64_t> answers[] = {
      {512, 512}, {511, 256}, {256, 256}, {255, 0}, {0, 0}};
  for (const auto& [cap, cut] : answers) EXPECT_EQ(found(tier, 600, cap), cut) << cap;
  EXPECT_EQ(found(tier, 512, 511), 256U);
  EXPECT_EQ(tier.stats().queries, 6U);
  EXPECT_EQ(tier.stats().hits, 4U);
}

TEST(ResidentTier, ShortRequestsAndOtherTokensFindNothing) {
  ResidentTier tier = tier_of();
  put(tier, narrow_snapshot(256));
  EXPECT_EQ(found(tier, 0), 0U);
  EXPECT_EQ(found(tier, 255), 0U);
  EXPECT_EQ(found(tier, 256), 256U);
  EXPECT_FALSE(tier.lookup(kUnscoped, other_tokens(256)).has_value());
  auto changed = counted_tokens(600);
  changed[255] = 7;
  EXPECT_FALSE(tier.lookup(kUnscoped, changed).has_value());
}

TEST(ResidentTier, IdentitiesDoNotSeeEachOther) {
  ResidentTier tier = tier_of();
  const ResidentScope seven = Id32::filled(7), nine = Id32::filled(9);
  put(tier, narrow_snapshot(256), seven);
  EXPECT_EQ(found(tier, 256, kAnyCut, seven), 256U);
  EXPECT_EQ(found(tier, 256, kAnyCut, nine), 0U);
  EXPECT_EQ(found(tier, 256), 0U);
  put(tier, narrow_snapshot(512), nine);
  put(tier, narrow_snapshot(768));
  EXPECT_EQ(found(tier, 800, kAnyCut, seven), 256U);
  EXPECT_EQ(found(tier, 800, kAnyCut, nine), 512U);
  EXPECT_EQ(found(tier, 800), 768U);
}

TEST(ResidentTier, TokensCannotBeTakenForAScope) {
  ResidentTier tier = tier_of();
  // Without an identity, and with tokens that spell one.
  std::vector<std::uint32_t> tokens(256 + 9);
  const auto words = resident_scope_words(Id32::filled(7));
  std::ranges::copy(words, tokens.begin());
  put(tier, narrow_snapshot(tokens));
  EXPECT_FALSE(tier.lookup(ResidentScope(Id32::filled(7)), std::span(tokens).subspan(9)).has_value());
}

TEST(ResidentTier, BlocksAreSharedBetweenEntriesLayersAndIdentities) {
  ResidentTier tier = tier_of();
  put(tier, narrow_snapshot(256));
  const std::uint64_t first = tier.stats().unique_chunk_bytes;
  // K of a layer and of the next differ in one step; V likewise: 52 + 52 blocks of 512 bytes.
  EXPECT_EQ(first, 104U * 512);
  put(tier, narrow_snapshot(512));
  const std::uint64_t second = tier.stats().unique_chunk_bytes;
  EXPECT_EQ(second, 2 * first);  // the first block of every plane is there already
  put(tier, narrow_snapshot(512), Id32::filled(7));
  EXPECT_EQ(tier.stats().unique_chunk_bytes, second);

  ResidentTier constant = tier_of();
  put(constant, snapshot_of(counted_tokens(512), 1, [](auto, auto, auto) { return 5; }));
  EXPECT_EQ(constant.stats().unique_chunk_bytes, 512U);
}

TEST(ResidentTier, TheLastBlockOfAPlaneMayBeShort) {
  ResidentTier tier = tier_of();
  put(tier, narrow_snapshot(300));
  EXPECT_EQ(tier.stats().unique_chunk_bytes, 104U * (512 + 88));
  const auto hit = tier.lookup(kUnscoped, counted_tokens(300));
  ASSERT_TRUE(hit.has_value());
  const auto pieces = hit->pieces(3, PlaneKind::kValue);
  ASSERT_EQ(pieces.size(), 2U);
  EXPECT_EQ(pieces[0].size(), 512U);
  EXPECT_EQ(pieces[1].size(), 88U);
  EXPECT_EQ(load_le<std::uint16_t>(pieces[1], 0), 10'000 + 3 + 256);
  EXPECT_EQ(hit->payload_bytes(), 104U * 600);
  EXPECT_EQ(hit->materialize(), narrow_snapshot(300));
}

TEST(ResidentTier, WindowsAreCutFromTheirOwnStart) {
  ResidentTier tier = tier_of();
  put(tier, narrow_snapshot(2304));
  const std::uint64_t before = tier.stats().unique_chunk_bytes;
  put(tier, narrow_snapshot(2560));
  // Both windows begin at a multiple of 256: one new block for each of the 104 planes.
  EXPECT_EQ(tier.stats().unique_chunk_bytes, before + 104 * 512);
  const auto hit = tier.lookup(kUnscoped, counted_tokens(2560));
  ASSERT_TRUE(hit.has_value());
  EXPECT_EQ(hit->pieces(0, PlaneKind::kKey).size(), 8U);
  EXPECT_EQ(hit->pieces(3, PlaneKind::kKey).size(), 10U);
  EXPECT_EQ(hit->materialize(), narrow_snapshot(2560));
}

TEST(ResidentTier, EncodingsOfLayersAreKept) {
  ResidentTier tier = tier_of();
  CacheSnapshot snapshot = narrow_snapshot(256);
  snapshot.layers[9].encoding = ElementEncoding::kF32Le;
  snapshot.layers[9].key = SharedBytes::own(Bytes(1024, 1));
  snapshot.layers[9].value = SharedBytes::own(Bytes(1024, 2));
  put(tier, snapshot);
  EXPECT_EQ(tier.lookup(kUnscoped, snapshot.tokens)->materialize(), snapshot);
}

TEST(ResidentTier, RefusalsInOrderChangeNothing) {
  ResidentTier tier = tier_of();
  const auto refused = [&](const CacheSnapshot& snapshot, std::optional<std::span<const float>> logits,
                           std::optional<std::uint64_t> vocab = std::nullopt) {
    const auto result = tier.insert(kUnscoped, snapshot, logits, vocab);
    return result.has_value() ? std::string("ok") : result.error().verdict();
  };
  CacheSnapshot snapshot = narrow_snapshot(2);
  const std::vector<float> none, bad{1, std::numeric_limits<float>::quiet_NaN()}, good{1, 2};
  EXPECT_EQ(refused(snapshot, good, 3), "expectation:resident exact-final logits have length 2, expected 3");
  EXPECT_EQ(refused(snapshot, bad, 3), "expectation:resident exact-final logits are empty or nonfinite");
  EXPECT_EQ(refused(snapshot, none, 0), "expectation:resident exact-final logits are empty or nonfinite");
  snapshot.position = 3;
  EXPECT_EQ(refused(snapshot, bad),
            "expectation:invalid resident snapshot: cache snapshot carries 2 tokens for position 3");
  EXPECT_EQ(tier.stats().entries, 0U);
  EXPECT_EQ(tier.stats().nodes, 1U);
  EXPECT_EQ(tier.stats().unique_chunk_bytes, 0U);
  EXPECT_EQ(refused(narrow_snapshot(2), good, 2), "ok");
}

TEST(ResidentTier, TheTreeIsCompressed) {
  ResidentTier tier = tier_of();
  const auto nodes = [&] { return tier.stats().nodes; };
  EXPECT_EQ(nodes(), 1U);
  put(tier, narrow_snapshot(600));
  EXPECT_EQ(nodes(), 2U);
  put(tier, narrow_snapshot(256));  // splits the edge
  EXPECT_EQ(nodes(), 3U);
  put(tier, narrow_snapshot(800));  // a child of the first
  EXPECT_EQ(nodes(), 4U);
  auto parted = counted_tokens(700);
  parted[400] = 9;  // splits between 256 and 600
  put(tier, narrow_snapshot(parted));
  EXPECT_EQ(nodes(), 6U);
  put(tier, narrow_snapshot(256), Id32::filled(7));  // parts in the first word of the scope
  EXPECT_EQ(nodes(), 7U);
  put(tier, narrow_snapshot(256), Id32::filled(9));  // parts behind the word that both begin with
  EXPECT_EQ(nodes(), 9U);
  EXPECT_EQ(tier.stats().entries, 6U);
}

TEST(ResidentTier, ASecondInsertReplacesWithoutEviction) {
  ResidentTier tier = tier_of();
  put(tier, narrow_snapshot(256));
  const auto held = tier.lookup(kUnscoped, counted_tokens(256));
  const auto other = snapshot_of(counted_tokens(256), 1, [](auto, auto, auto token) { return token; });
  put_exact(tier, other);
  EXPECT_EQ(tier.stats().entries, 1U);
  EXPECT_EQ(tier.stats().evictions, 0U);
  EXPECT_EQ(tier.stats().nodes, 2U);
  EXPECT_EQ(tier.stats().resident_bytes, 512U + 128 * 4);  // all planes hold the same block now
  const auto hit = tier.lookup(kUnscoped, counted_tokens(256));
  EXPECT_EQ(hit->materialize(), other);
  EXPECT_EQ(hit->logits().size(), 128U);
  EXPECT_EQ(held->materialize(), narrow_snapshot(256));
}

TEST(ResidentTier, EvictsWhatWasUsedLongestAgo) {
  const std::uint64_t one = 104U * 512;
  // Room for two that share nothing.
  ResidentTier tier = tier_of(2 * one + 100);
  const auto fill = [](std::uint32_t base) {
    return [base](std::uint32_t layer, std::uint32_t kind, std::uint64_t token) {
      return base + token + layer + 300 * kind;
    };
  };
  const auto tokens_of = [](std::uint32_t first) {
    auto tokens = counted_tokens(256);
    tokens[0] = first;
    return tokens;
  };
  put(tier, snapshot_of(tokens_of(1), 1, fill(0)));
  put(tier, snapshot_of(tokens_of(2), 1, fill(20'000)));
  EXPECT_EQ(tier.stats().resident_bytes, 2 * one);
  ASSERT_TRUE(tier.lookup(kUnscoped, tokens_of(1)).has_value());
  EXPECT_TRUE(put(tier, snapshot_of(tokens_of(3), 1, fill(40'000))));
  EXPECT_EQ(tier.stats().evictions, 1U);
  EXPECT_EQ(tier.stats().entries, 2U);
  EXPECT_EQ(tier.stats().resident_bytes, 2 * one);
  EXPECT_FALSE(tier.lookup(kUnscoped, tokens_of(2)).has_value());
  EXPECT_TRUE(tier.lookup(kUnscoped, tokens_of(1)).has_value());
  EXPECT_TRUE(tier.lookup(kUnscoped, tokens_of(3)).has_value());
}

TEST(ResidentTier, OfEquallyOldEntriesTheLowestNumberGoes) {
  // The longer one is inserted first, so that the lower number is not the shorter one.
  for (const bool longer_first : {true, false}) {
    ResidentTier tier = tier_of(3 * 104 * 512);
    for (const std::size_t n : longer_first ? std::vector{512U, 256U} : std::vector{256U, 512U})
      put(tier, narrow_snapshot(n));
    ASSERT_EQ(found(tier, 512), 512U);  // touches both at one time
    auto apart =
        snapshot_of(other_tokens(512), 1, [](std::uint32_t layer, std::uint32_t kind, std::uint64_t token) {
          return 30'000 + token + layer + 10'000 * kind;
        });
    EXPECT_TRUE(put(tier, apart));
    if (longer_first) {
      EXPECT_EQ(tier.stats().evictions, 1U);
      EXPECT_EQ(found(tier, 600), 256U);
      continue;
    }
    // The shorter one frees nothing, because the longer one has its blocks: both go.
    EXPECT_EQ(tier.stats().evictions, 2U);
    EXPECT_EQ(found(tier, 600), 0U);
  }
}

TEST(ResidentTier, EvictionPrunesNodesAndJoinsNone) {
  const std::uint64_t one = 104U * 512;
  ResidentTier tier = tier_of(3 * one);
  auto left = counted_tokens(256), right = counted_tokens(256);
  right[255] = 9;
  put(tier, narrow_snapshot(left));
  put(tier, narrow_snapshot(right));
  EXPECT_EQ(tier.stats().nodes, 4U);  // root, what both share, two ends
  const auto apart =
      snapshot_of(other_tokens(768), 1, [](std::uint32_t layer, std::uint32_t kind, std::uint64_t token) {
        return 30'000 + token + layer + 10'000 * kind;
      });
  EXPECT_TRUE(put(tier, apart));
  EXPECT_EQ(tier.stats().entries, 1U);
  EXPECT_EQ(tier.stats().nodes, 3U);  // root, the scope's nine zeros, the new end
}

TEST(ResidentTier, AnEntryThatAloneExceedsTheBudgetDoesNotStay) {
  ResidentTier tier = tier_of(104 * 512 + 511);
  EXPECT_TRUE(put(tier, narrow_snapshot(256)));
  EXPECT_FALSE(put(tier, narrow_snapshot(512)));
  EXPECT_EQ(tier.stats().entries, 0U);
  EXPECT_EQ(tier.stats().evictions, 2U);
  EXPECT_EQ(tier.stats().nodes, 1U);
  EXPECT_EQ(tier.stats().resident_bytes, 0U);
  EXPECT_EQ(tier.stats().unique_chunk_bytes, 0U);
}

TEST(ResidentTier, LogitsCountAgainstTheBudget) {
  ResidentTier tier = tier_of(104 * 512 + 511);
  EXPECT_FALSE(put_exact(tier, narrow_snapshot(256)));
  ResidentTier wider = tier_of(104 * 512 + 512);
  EXPECT_TRUE(put_exact(wider, narrow_snapshot(256)));
  EXPECT_EQ(wider.stats().resident_bytes, 104U * 512 + 512);
}

TEST(ResidentTier, AHeldHitSurvivesEvictionAndTheTier) {
  std::optional<ResidentHit> hit;
  {
    ResidentTier tier = tier_of(104 * 512 + 1024);
    put_exact(tier, narrow_snapshot(256));
    hit = tier.lookup(kUnscoped, counted_tokens(256));
    ASSERT_TRUE(hit.has_value());
    EXPECT_FALSE(put(tier, narrow_snapshot(512)));
    EXPECT_EQ(tier.stats().entries, 0U);
    EXPECT_EQ(hit->materialize(), narrow_snapshot(256));
  }
  EXPECT_EQ(hit->materialize(), narrow_snapshot(256));
  EXPECT_TRUE(std::ranges::equal(hit->logits(), counted_logits()));
  EXPECT_TRUE(std::ranges::equal(hit->tokens(), counted_tokens(256)));
}

TEST(ResidentTier, WhatHitsHoldIsReportedAndNotCounted) {
  const std::uint64_t one = 104U * 512;
  ResidentTier tier = tier_of(one + 1024);
  put_exact(tier, narrow_snapshot(256));
  auto hit = tier.lookup(kUnscoped, counted_tokens(256));
  EXPECT_EQ(tier.stats().held_bytes, 0U);
  const auto apart =
      snapshot_of(other_tokens(256), 1, [](std::uint32_t layer, std::uint32_t kind, std::uint64_t token) {
        return 30'000 + token + layer + 10'000 * kind;
      });
  EXPECT_TRUE(put(tier, apart));  // the hit does not stand in its way
  ResidentStats stats = tier.stats();
  EXPECT_EQ(stats.resident_bytes, one);
  EXPECT_EQ(stats.held_bytes, one + 512);
  EXPECT_EQ(stats.unique_chunk_bytes, 2 * one);
  hit.reset();
  stats = tier.stats();
  EXPECT_EQ(stats.held_bytes, 0U);
  EXPECT_EQ(stats.unique_chunk_bytes, one);
}

TEST(ResidentTier, HeldBlocksAreFoundAgain) {
  const std::uint64_t one = 104U * 512;
  ResidentTier tier = tier_of(one);
  put(tier, narrow_snapshot(256));
  const auto hit = tier.lookup(kUnscoped, counted_tokens(256));
  EXPECT_FALSE(put(tier, narrow_snapshot(512)));
  EXPECT_EQ(tier.stats().held_bytes, one);
  EXPECT_TRUE(put(tier, narrow_snapshot(256)));
  EXPECT_EQ(tier.stats().held_bytes, 0U);
  EXPECT_EQ(tier.stats().unique_chunk_bytes, one);
}

TEST(ResidentTier, UpstreamAccountingLetsOneHeldHitEmptyTheTier) {
  const std::uint64_t one = 104U * 512;
  ResidentTier tier = *ResidentTier::create({.capacity_bytes = one + 1024, .upstream_accounting = true});
  put(tier, narrow_snapshot(256));
  const auto apart =
      snapshot_of(other_tokens(256), 1, [](std::uint32_t layer, std::uint32_t kind, std::uint64_t token) {
        return 30'000 + token + layer + 10'000 * kind;
      });
  // Nobody holds anything: the old entry makes room.
  EXPECT_TRUE(put(tier, apart));
  EXPECT_EQ(tier.stats().entries, 1U);
  const auto hit = tier.lookup(kUnscoped, apart.tokens);
  EXPECT_FALSE(put(tier, narrow_snapshot(256)));
  EXPECT_EQ(tier.stats().entries, 0U);
  EXPECT_EQ(tier.stats().resident_bytes, one);
  EXPECT_EQ(tier.stats().held_bytes, one);
}

TEST(ResidentTier, OverheadIsReportedApart) {
  ResidentTier tier = tier_of(104 * 512);
  const std::uint64_t empty = tier.stats().overhead_bytes;
  put(tier, narrow_snapshot(256));
  const std::uint64_t one = tier.stats().overhead_bytes;
  EXPECT_GE(one, empty + (9 + 256) * 4 + 104 * sizeof(void*));
  auto hit = tier.lookup(kUnscoped, counted_tokens(256));
  EXPECT_FALSE(put(tier, narrow_snapshot(512)));
  EXPECT_LT(tier.stats().overhead_bytes, one);
  EXPECT_GT(tier.stats().overhead_bytes, empty);
  hit.reset();
  EXPECT_EQ(tier.stats().overhead_bytes, empty);
}

TEST(ResidentTier, NoTokenListOutlivesItsEntry) {
  ResidentTier roomy = tier_of();
  put(roomy, narrow_snapshot(1024));
  const std::uint64_t bytes = roomy.stats().resident_bytes;
  ResidentTier tier = tier_of(bytes + bytes / 2);  // room for one
  const auto fork = [](std::size_t count) {
    auto tokens = counted_tokens(count);
    tokens.back() = 7;
    return snapshot_of(tokens, 1, [](std::uint32_t layer, std::uint32_t kind, std::uint64_t token) {
      return 30'000 + token + layer + 10'000 * kind;
    });
  };
  put(tier, narrow_snapshot(1024));
  const std::uint64_t alone = tier.stats().overhead_bytes;
  // Branches off near its end, so that the shared part lies in the list of the one that came first.
  put(tier, fork(1000));
  put(tier, narrow_snapshot(1024));
  EXPECT_EQ(tier.stats().entries, 1U);
  EXPECT_LE(tier.stats().overhead_bytes, alone + 1024);
}

TEST(ResidentTier, AnExactEntryWithoutLogitsHidesItsAncestorUnlessToldOtherwise) {
  ResidentTier tier = tier_of();
  put(tier, narrow_snapshot(512));
  put(tier, narrow_snapshot(768));
  const auto tokens = counted_tokens(768);
  EXPECT_EQ(tier.lookup(kUnscoped, tokens)->cut(), 768U);
  const auto passed = tier.lookup(kUnscoped, tokens, {.exact_needs_logits = true});
  ASSERT_TRUE(passed.has_value());
  EXPECT_EQ(passed->cut(), 512U);
  EXPECT_FALSE(passed->exact());
  // For a longer request it is an ancestor like any other.
  EXPECT_EQ(tier.lookup(kUnscoped, counted_tokens(800), {.exact_needs_logits = true})->cut(), 768U);
  put_exact(tier, narrow_snapshot(768));
  EXPECT_EQ(tier.lookup(kUnscoped, tokens, {.exact_needs_logits = true})->cut(), 768U);
}

TEST(ResidentTier, WhatIsPassedOverIsNotRefreshed) {
  ResidentTier tier = tier_of(3 * 104 * 512);
  put(tier, narrow_snapshot(300));
  put(tier, narrow_snapshot(256));
  ASSERT_EQ(tier.lookup(kUnscoped, counted_tokens(300), {.exact_needs_logits = true})->cut(), 256U);
  const auto apart =
      snapshot_of(other_tokens(512), 1, [](std::uint32_t layer, std::uint32_t kind, std::uint64_t token) {
        return 30'000 + token + layer + 10'000 * kind;
      });
  EXPECT_TRUE(put(tier, apart));
  EXPECT_EQ(tier.stats().evictions, 1U);
  EXPECT_EQ(found(tier, 300), 256U);
}

TEST(ResidentTier, BlocksOfEqualHashAreComparedByteForByte) {
  ResidentTier tier = *resident::TierMaker::make({}, [](ByteSpan) { return resident::ChunkDigest{1, 2}; });
  const auto other =
      snapshot_of(other_tokens(512), 1, [](std::uint32_t layer, std::uint32_t kind, std::uint64_t token) {
        return 30'000 + token + layer + 10'000 * kind;
      });
  put(tier, narrow_snapshot(300));
  put(tier, other);
  put(tier, narrow_snapshot(512));
  EXPECT_EQ(tier.lookup(kUnscoped, counted_tokens(300))->materialize(), narrow_snapshot(300));
  EXPECT_EQ(tier.lookup(kUnscoped, counted_tokens(512))->materialize(), narrow_snapshot(512));
  EXPECT_EQ(tier.lookup(kUnscoped, other.tokens)->materialize(), other);
  EXPECT_EQ(tier.stats().unique_chunk_bytes, 104U * (512 + 88 + 512 + 512 + 512));
}

// A tier as it is described: a list of entries, everything recomputed on every call.
class NaiveTier {
 public:
  explicit NaiveTier(std::uint64_t capacity) : capacity_(capacity) {}

  bool insert(const ResidentScope& scope, const CacheSnapshot& snapshot, const std::vector<float>& logits) {
    ++clock_;
    const std::uint64_t id = ++last_id_;
    std::erase_if(entries_,
                  [&](const Entry& e) { return e.scope == scope && e.snapshot.tokens == snapshot.tokens; });
    entries_.push_back({id, clock_, scope, snapshot, logits});
    while (resident_bytes() > capacity_ && !entries_.empty()) {
      entries_.erase(std::ranges::min_element(entries_, {},
                                              [](const Entry& e) { return std::pair(e.last_access, e.id); }));
      ++evictions;
    }
    return std::ranges::any_of(entries_, [&](const Entry& e) { return e.id == id; });
  }

  // Cut and snapshot, or 0.
  std::pair<std::uint64_t, CacheSnapshot> lookup(const ResidentScope& scope,
                                                 const std::vector<std::uint32_t>& tokens,
                                                 const ResidentLookup& how) {
    ++clock_;
    std::pair<std::uint64_t, CacheSnapshot> best;
    for (Entry& entry : entries_) {
      const auto& own = entry.snapshot.tokens;
      if (entry.scope != scope || own.size() > tokens.size() || own.size() > how.max_cut) continue;
      if (!std::equal(own.begin(), own.end(), tokens.begin())) continue;
      const bool exact = own.size() == tokens.size();
      if (!exact && own.size() % 256 != 0) continue;
      if (exact && how.exact_needs_logits && entry.logits.empty()) continue;
      entry.last_access = clock_;
      if (own.size() > best.first) best = {own.size(), entry.snapshot};
    }
    return best;
  }

  std::uint64_t resident_bytes() const {
    std::set<std::string_view> blocks;
    std::uint64_t sum = 0;
    for (const Entry& entry : entries_) {
      sum += 4 * entry.logits.size();
      for (const LayerSnapshot& layer : entry.snapshot.layers)
        for (const ByteSpan plane : {layer.key.view(), layer.value.view()})
          for (std::size_t at = 0; at < plane.size(); at += 512) {
            blocks.insert(text_view(plane.subspan(at, std::min<std::size_t>(512, plane.size() - at))));
          }
    }
    for (const std::string_view block : blocks) sum += block.size();
    return sum;
  }
  std::size_t entries() const { return entries_.size(); }
  std::uint64_t evictions = 0;

 private:
  struct Entry {
    std::uint64_t id, last_access;
    ResidentScope scope;
    CacheSnapshot snapshot;
    std::vector<float> logits;
  };
  std::uint64_t capacity_, clock_ = 0, last_id_ = 0;
  std::vector<Entry> entries_;
};

TEST(ResidentTier, AgreesWithANaiveModel) {
  std::mt19937 random(3);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  const ResidentScope scopes[] = {std::nullopt, Id32::filled(7), Id32::filled(9)};
  const std::size_t lengths[] = {1, 2, 3, 255, 256, 257, 300, 512, 513};
  for (const std::uint64_t capacity : {4'000U, 100'000U, 250'000U, 10'000'000U}) {
    ResidentTier tier = tier_of(capacity);
    NaiveTier naive(capacity);
    // Few tokens, so that inputs share prefixes of all lengths.
    const auto some_tokens = [&] {
      std::vector<std::uint32_t> tokens(lengths[below(std::size(lengths))]);
      if (below(3) == 0) tokens[below(tokens.size())] = 1;
      return tokens;
    };
    for (int step = 0; step < 150; ++step) {
      const ResidentScope& scope = scopes[below(3)];
      const auto tokens = some_tokens();
      if (below(2) == 0) {
        const std::size_t kind = below(3);
        const auto snapshot =
            snapshot_of(tokens, 1, [&](std::uint32_t layer, std::uint32_t, std::uint64_t token) {
              return kind == 0 ? token : token + layer + 1000 * kind;
            });
        const std::vector<float> logits(below(2) == 0 ? 0 : 16, 1.0F);
        const auto given = logits.empty() ? std::nullopt : std::optional(std::span<const float>(logits));
        ASSERT_EQ(*tier.insert(scope, snapshot, given), naive.insert(scope, snapshot, logits)) << step;
      } else {
        ResidentLookup how;
        if (below(2) == 0) how.max_cut = below(600);
        how.exact_needs_logits = below(2) == 0;
        const auto hit = tier.lookup(scope, tokens, how);
        const auto [cut, snapshot] = naive.lookup(scope, tokens, how);
        ASSERT_EQ(hit ? hit->cut() : 0, cut) << step;
        if (hit) {
          ASSERT_EQ(hit->materialize(), snapshot);
          ASSERT_EQ(hit->exact(), cut == tokens.size());
        }
      }
      const ResidentStats stats = tier.stats();
      ASSERT_EQ(stats.entries, naive.entries()) << step;
      ASSERT_EQ(stats.evictions, naive.evictions) << step;
      ASSERT_EQ(stats.resident_bytes, naive.resident_bytes()) << step;
      ASSERT_EQ(stats.held_bytes, 0U);
    }
  }
}

}  // namespace resident_tier_test
}  // namespace kvpack::muse
