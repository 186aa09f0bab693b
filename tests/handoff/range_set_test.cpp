#include "kvpack/handoff/range_set.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <random>

namespace kvpack::handoff::range_set_test {
namespace {

using Line = std::map<std::uint64_t, std::uint64_t>;  // start to stop, nothing merged

bool plain_add(std::map<std::uint64_t, Line>& lines, std::uint64_t line, std::uint64_t start,
               std::uint64_t stop) {
  for (const auto& [s, e] : lines[line])
    if (start < e && s < stop) return false;
  lines[line][start] = stop;
  return true;
}

std::size_t merged_count(const std::map<std::uint64_t, Line>& lines) {
  std::size_t count = 0;
  for (const auto& [line, ranges] : lines) {
    std::uint64_t end = 0;
    bool first = true;
    for (const auto& [s, e] : ranges) {
      if (first || s != end) ++count;
      first = false;
      end = e;
    }
  }
  return count;
}

TEST(RangeSet, AgreesWithAPlainScanOnRandomRanges) {
  for (const unsigned seed : {1U, 2U, 3U}) {
    std::mt19937 random(seed);
    RangeSet set;
    std::map<std::uint64_t, Line> plain;
    for (int i = 0; i < 6000; ++i) {
      const std::uint64_t line = random() % 3;
      const std::uint64_t start = random() % 9000;
      const std::uint64_t stop = start + 1 + random() % 6;
      ASSERT_EQ(set.add(line, start, stop), plain_add(plain, line, start, stop));
      if (i % 97 == 0) {
        ASSERT_EQ(set.size(), merged_count(plain));
      }
    }
    EXPECT_EQ(set.size(), merged_count(plain));
  }
}

// More than one block, filled from every side; then every gap is closed, in another order.
TEST(RangeSet, BlocksSplitGrowAndVanish) {
  constexpr std::uint64_t kCount = 3000;
  std::vector<std::uint64_t> order(kCount);
  std::iota(order.begin(), order.end(), std::uint64_t{0});
  for (int way = 0; way < 3; ++way) {
    if (way == 1) std::ranges::reverse(order);
    if (way == 2) std::shuffle(order.begin(), order.end(), std::mt19937(5));
    RangeSet set;
    for (const std::uint64_t i : order) ASSERT_TRUE(set.add(7, 2 * i, 2 * i + 1));
    EXPECT_EQ(set.size(), kCount);
    for (const std::uint64_t i : order) ASSERT_FALSE(set.add(7, 2 * i, 2 * i + 1));
    EXPECT_FALSE(set.add(7, 0, 2 * kCount));
    EXPECT_TRUE(set.add(6, 0, 2 * kCount));
    EXPECT_TRUE(set.add(8, 0, 2 * kCount));
    std::shuffle(order.begin(), order.end(), std::mt19937(9));
    for (const std::uint64_t i : order) ASSERT_TRUE(set.add(7, 2 * i + 1, 2 * i + 2));
    EXPECT_EQ(set.size(), 3U);
    EXPECT_FALSE(set.add(7, 2 * kCount - 1, 2 * kCount));
    EXPECT_TRUE(set.add(7, 2 * kCount, 2 * kCount + 1));
  }
}

TEST(RangeSet, ReachesToTheLastNumber) {
  constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();
  RangeSet set;
  EXPECT_TRUE(set.add(kMax, kMax - 1, kMax));
  EXPECT_TRUE(set.add(0, 0, kMax));
  EXPECT_FALSE(set.add(kMax, 0, kMax));
  EXPECT_TRUE(set.add(kMax, 0, kMax - 1));
  EXPECT_EQ(set.size(), 2U);
}

}  // namespace
}  // namespace kvpack::handoff::range_set_test
