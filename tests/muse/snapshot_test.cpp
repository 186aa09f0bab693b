#include "kvpack/muse/snapshot.h"

#include <gtest/gtest.h>

#include "support/muse_snapshots.h"

namespace kvpack::muse {
namespace snapshot_test {

using kvpack::testing::filled_snapshot;
using kvpack::testing::narrow_snapshot;

std::string verdict(const CacheSnapshot& snapshot, std::uint64_t window = kWindowTokens) {
  const Status status = validate_snapshot(snapshot, window);
  return status.has_value() ? "ok" : status.error().verdict();
}

TEST(MuseSnapshot, RangesAreAllTokensOrTheWindow) {
  EXPECT_EQ(logical_range(3, 5000), (LogicalRange{0, 5000}));
  EXPECT_EQ(logical_range(0, 5000), (LogicalRange{2952, 2048}));
  EXPECT_EQ(logical_range(0, 2048), (LogicalRange{0, 2048}));
  EXPECT_EQ(logical_range(51, 2049), (LogicalRange{0, 2049}));
  EXPECT_EQ(logical_range(50, 2049), (LogicalRange{1, 2048}));
  EXPECT_EQ(logical_range(0, 10, 4), (LogicalRange{6, 4}));
}

TEST(MuseSnapshot, ValidOnesPassAtEveryKindOfPosition) {
  for (const std::size_t position : {1U, 255U, 256U, 2047U, 2048U, 2049U, 4096U})
    EXPECT_EQ(verdict(narrow_snapshot(position)), "ok") << position;
  EXPECT_EQ(verdict(filled_snapshot(2)), "ok");
}

TEST(MuseSnapshot, PayloadIsTheSumOfPlanes) {
  EXPECT_EQ(payload_bytes(filled_snapshot(2)), kv_bytes(2));
  EXPECT_EQ(payload_bytes(narrow_snapshot(4096)), kv_bytes(4096) / 256);
}

TEST(MuseSnapshot, WindowIsTheSessions) {
  auto snapshot = narrow_snapshot(8);
  EXPECT_EQ(verdict(snapshot, 4), "expectation:cache snapshot layer 0 has range 0..8, expected 4..8");
  for (LayerSnapshot& layer : snapshot.layers) {
    if (!is_sliding(layer.layer)) continue;
    layer.logical_start = 4;
    layer.logical_count = 4;
    layer.key = layer.key.subspan(8, 8);
    layer.value = layer.value.subspan(8, 8);
  }
  EXPECT_EQ(verdict(snapshot, 4), "ok");
  EXPECT_EQ(verdict(snapshot), "expectation:cache snapshot layer 0 has range 4..8, expected 0..8");
}

TEST(MuseSnapshot, EachViolationHasItsText) {
  const CacheSnapshot good = narrow_snapshot(3);
  const auto broken = [&](auto&& change) {
    CacheSnapshot snapshot = good;
    change(snapshot);
    return verdict(snapshot);
  };
  EXPECT_EQ(broken([](auto& s) { s.position = 0; }), "expectation:cache snapshot position must be nonzero");
  EXPECT_EQ(broken([](auto& s) { s.position = 4; }),
            "expectation:cache snapshot carries 3 tokens for position 4");
  EXPECT_EQ(broken([](auto& s) { s.tokens.clear(); }),
            "expectation:cache snapshot carries 0 tokens for position 3");
  EXPECT_EQ(broken([](auto& s) { s.elements_per_token = 0; }),
            "expectation:cache snapshot row width must be nonzero");
  EXPECT_EQ(broken([](auto& s) { s.layers.pop_back(); }),
            "expectation:cache snapshot carries 51 layers, expected 52");
  EXPECT_EQ(broken([](auto& s) { s.layers.push_back(s.layers[0]); }),
            "expectation:cache snapshot carries 53 layers, expected 52");
  EXPECT_EQ(broken([](auto& s) { std::swap(s.layers[4], s.layers[9]); }),
            "expectation:cache snapshot layer order has 9 at ordinal 4");
  EXPECT_EQ(broken([](auto& s) { s.layers[3].logical_start = 1; }),
            "expectation:cache snapshot layer 3 has range 1..4, expected 0..3");
  EXPECT_EQ(broken([](auto& s) { s.layers[51].logical_count = 2; }),
            "expectation:cache snapshot layer 51 has range 0..2, expected 0..3");
  EXPECT_EQ(broken([](auto& s) { s.layers[5].key = s.layers[5].key.subspan(0, 5); }),
            "expectation:cache snapshot layer 5 has K/V bytes 5/6, expected 6");
  EXPECT_EQ(broken([](auto& s) { s.layers[5].value = {}; }),
            "expectation:cache snapshot layer 5 has K/V bytes 6/0, expected 6");
  EXPECT_EQ(broken([](auto& s) { s.elements_per_token = 2; }),
            "expectation:cache snapshot layer 0 has K/V bytes 6/6, expected 12");
  EXPECT_EQ(broken([](auto& s) { s.layers[7].encoding = ElementEncoding::kF32Le; }),
            "expectation:cache snapshot layer 7 has K/V bytes 6/6, expected 12");
}

TEST(MuseSnapshot, ARangePastTheNumbersIsRefusedAndNotWrapped) {
  CacheSnapshot snapshot = narrow_snapshot(3);
  snapshot.layers[0].logical_start = std::numeric_limits<std::uint64_t>::max();
  EXPECT_EQ(verdict(snapshot),
            "expectation:cache snapshot layer 0 has range 18446744073709551615..18446744073709551615, "
            "expected 0..3");
}

TEST(MuseSnapshot, TheFirstViolationWins) {
  CacheSnapshot snapshot = narrow_snapshot(3);
  snapshot.layers[2].value = {};
  EXPECT_EQ(verdict(snapshot), "expectation:cache snapshot layer 2 has K/V bytes 6/0, expected 6");
  snapshot.layers[2].logical_start = 9;
  EXPECT_EQ(verdict(snapshot), "expectation:cache snapshot layer 2 has range 9..12, expected 0..3");
  snapshot.layers[2].layer = 3;
  EXPECT_EQ(verdict(snapshot), "expectation:cache snapshot layer order has 3 at ordinal 2");
  snapshot.layers[1].key = {};
  EXPECT_EQ(verdict(snapshot), "expectation:cache snapshot layer 1 has K/V bytes 0/6, expected 6");
  snapshot.layers.pop_back();
  EXPECT_EQ(verdict(snapshot), "expectation:cache snapshot carries 51 layers, expected 52");
  snapshot.elements_per_token = 0;
  EXPECT_EQ(verdict(snapshot), "expectation:cache snapshot row width must be nonzero");
  snapshot.tokens.pop_back();
  EXPECT_EQ(verdict(snapshot), "expectation:cache snapshot carries 2 tokens for position 3");
  snapshot.position = 0;
  EXPECT_EQ(verdict(snapshot), "expectation:cache snapshot position must be nonzero");
}

TEST(MuseSnapshot, PlaneSizesAreCheckedAgainst64Bits) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
  EXPECT_EQ(plane_bytes(2048, 256, ElementEncoding::kF16Le), 1'048'576U);
  EXPECT_EQ(plane_bytes(2048, 256, ElementEncoding::kF32Le), 2'097'152U);
  EXPECT_EQ(plane_bytes(kMost / 2, 1, ElementEncoding::kF16Le), kMost - 1);
  EXPECT_EQ(plane_bytes(kMost / 2 + 1, 1, ElementEncoding::kF16Le), std::nullopt);
  EXPECT_EQ(plane_bytes(std::uint64_t{1} << 31, 0xffff'ffff, ElementEncoding::kF32Le), std::nullopt);
}

TEST(MuseSnapshot, EncodingIsDefinedOnlyWhenAllLayersAgree) {
  CacheSnapshot snapshot = narrow_snapshot(2);
  EXPECT_EQ(snapshot_encoding(snapshot), ElementEncoding::kF16Le);
  snapshot.layers[51].encoding = ElementEncoding::kF32Le;
  EXPECT_EQ(snapshot_encoding(snapshot), std::nullopt);
  for (LayerSnapshot& layer : snapshot.layers) layer.encoding = ElementEncoding::kF32Le;
  EXPECT_EQ(snapshot_encoding(snapshot), ElementEncoding::kF32Le);
  snapshot.layers.clear();
  EXPECT_EQ(snapshot_encoding(snapshot), std::nullopt);
}

TEST(MuseSnapshot, CopiesShareTheirPlanes) {
  const CacheSnapshot snapshot = narrow_snapshot(3);
  const CacheSnapshot copy = snapshot;
  EXPECT_EQ(copy.layers[3].key.view().data(), snapshot.layers[3].key.view().data());
  EXPECT_EQ(copy, snapshot);
}

TEST(MuseSharedBytes, OwnersLiveAsLongAsTheLastView) {
  auto owner = std::make_shared<const Bytes>(Bytes{1, 2, 3, 4});
  const std::weak_ptr<const Bytes> watch = owner;
  SharedBytes all = SharedBytes::share(*owner, owner);
  owner.reset();
  const SharedBytes part = all.subspan(1, 2);
  EXPECT_EQ(part.view().data(), all.view().data() + 1);
  all = SharedBytes();
  EXPECT_FALSE(watch.expired());
  EXPECT_TRUE(std::ranges::equal(part.view(), Bytes{2, 3}));
}

TEST(MuseSharedBytes, ComparesBytesAndNotPlaces) {
  EXPECT_EQ(SharedBytes::own({1, 2}), SharedBytes::own({1, 2}));
  EXPECT_FALSE(SharedBytes::own({1, 2}) == SharedBytes::own({1, 3}));
  EXPECT_FALSE(SharedBytes::own({1, 2}) == SharedBytes::own({1}));
  EXPECT_EQ(SharedBytes(), SharedBytes::own({}));
}

TEST(MuseLogits, NoInfinityAndNoNan) {
  EXPECT_TRUE(all_finite(std::vector<float>{0, -1, 3.4e38F}));
  EXPECT_FALSE(all_finite(std::vector<float>{0, std::numeric_limits<float>::infinity()}));
  EXPECT_FALSE(all_finite(std::vector<float>{std::numeric_limits<float>::quiet_NaN()}));
}

}  // namespace snapshot_test
}  // namespace kvpack::muse
