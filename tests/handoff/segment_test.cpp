#include "kvpack/handoff/segment.h"

#include <random>

#include "handoff/handoff_support.h"
#include "kvpack/crypto/sha256_machine.h"

namespace kvpack::handoff::segment_test {
namespace {

using namespace kvpack::handoff::testing;

const std::vector<Component>& components() {
  static const std::vector<Component> list{{"target", ComponentKind::kTargetKv, true, digits('f')},
                                           {"a", ComponentKind::kDflashContext, true, digits('f')},
                                           {"z", ComponentKind::kVisionContext, false, digits('f')}};
  return list;
}

SegmentDescriptor range(std::uint64_t start, std::uint64_t count) {
  SegmentDescriptor out = small_descriptor();
  out.shape.logical_start = start;
  out.shape.logical_count = count;
  out.byte_len = count * 2;
  return out;
}

TEST(SegmentDescriptor, CanonicalBytesAreThoseOfTheProtocolDocument) {
  const Bytes canonical = canonical_descriptor(small_descriptor());
  EXPECT_EQ(canonical.size(), 238U);
  EXPECT_EQ(to_hex(sha256(canonical)), "735145d0511dc6993d673b7f98ce6f2cd01bfeec2fca89742526f87d73bba416");
  SegmentDescriptor no_layer = small_descriptor();
  no_layer.shape.layer.reset();
  EXPECT_NE(text_view(canonical_descriptor(no_layer)).find(R"("layer":null)"), std::string_view::npos);
  const JsonPath root;
  EXPECT_EQ(*parse_descriptor(*parse_json(canonical), root), small_descriptor());
}

TEST(SegmentDescriptor, EveryFieldIsNeededExceptTheLayer) {
  const JsonPath root;
  const JsonValue whole = *parse_json(canonical_descriptor(small_descriptor()));
  for (const JsonMember& member : *whole.as_object()) {
    JsonValue less = JsonValue::object();
    for (const JsonMember& other : *whole.as_object())
      if (other.key != member.key) less.set(other.key, other.value.clone());
    EXPECT_EQ(verdict(parse_descriptor(less, root)),
              member.key == "layer" ? "ok" : "json:`" + member.key + "` is missing");
  }
}

TEST(SegmentRules, RefuseInTheirOrder) {
  struct Fault {
    void (*make)(SegmentDescriptor&);
    std::string text;
  };
  // Later faults are made first, so that each earlier one must win over all of them.
  const std::vector<Fault> faults{
      {[](SegmentDescriptor& d) { d.shape.logical_start = std::numeric_limits<std::uint64_t>::max(); },
       "segment logical range overflow"},
      {[](SegmentDescriptor& d) { d.byte_len = 3; }, "segment byte length disagrees with row geometry"},
      {[](SegmentDescriptor& d) { d.shape.logical_count = std::numeric_limits<std::uint64_t>::max(); },
       "segment byte geometry overflow"},
      {[](SegmentDescriptor& d) { d.shape.element_type = "bf16_le"; }, "unsupported segment element type"},
      {[](SegmentDescriptor& d) { d.sha256 = digits('A'); }, "segment digest must be lowercase SHA-256"},
      {[](SegmentDescriptor& d) { d.shape.component_id = "nobody"; },
       "segment has unknown component or empty range"},
  };
  SegmentDescriptor descriptor = small_descriptor();
  for (const Fault& fault : faults) {
    fault.make(descriptor);
    SegmentRules rules(components());
    EXPECT_EQ(verdict(rules.admit(descriptor)), "validation:" + fault.text);
    EXPECT_EQ(rules.range_count(), 0U);
  }
}

TEST(SegmentRules, EmptyRangesAreRefused) {
  for (const int field : {0, 1, 2}) {
    SegmentDescriptor descriptor = small_descriptor();
    if (field == 0) descriptor.shape.logical_count = 0;
    if (field == 1) descriptor.shape.elements_per_token = 0;
    if (field == 2) descriptor.byte_len = 0;
    SegmentRules rules(components());
    EXPECT_EQ(verdict(rules.admit(descriptor)), "validation:segment has unknown component or empty range");
  }
}

TEST(SegmentRules, RangesReachToTheLastRow) {
  constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();
  SegmentRules rules(components());
  EXPECT_TRUE(rules.admit(range(kMax - 1, 1)).has_value());
  EXPECT_EQ(verdict(rules.admit(range(kMax, 1))), "validation:segment logical range overflow");
  EXPECT_EQ(verdict(rules.admit(range(kMax - 2, 2))), "validation:overlapping segment logical ranges");
  EXPECT_TRUE(rules.admit(range(kMax - 3, 2)).has_value());
  EXPECT_EQ(rules.range_count(), 1U);
}

TEST(SegmentRules, NeighboursMergeAndEveryOverlapIsFound) {
  SegmentRules rules(components());
  ASSERT_TRUE(rules.admit(range(10, 10)).has_value());
  ASSERT_TRUE(rules.admit(range(30, 10)).has_value());
  for (const auto& [start, count] : std::vector<std::pair<std::uint64_t, std::uint64_t>>{
           {10, 10}, {9, 2}, {19, 1}, {19, 2}, {12, 3}, {5, 100}, {15, 20}, {29, 2}, {39, 5}, {20, 11}})
    EXPECT_EQ(verdict(rules.admit(range(start, count))), "validation:overlapping segment logical ranges")
        << start << "+" << count;
  EXPECT_EQ(rules.range_count(), 2U);
  ASSERT_TRUE(rules.admit(range(20, 5)).has_value());  // joins the one before
  ASSERT_TRUE(rules.admit(range(28, 2)).has_value());  // joins the one behind
  EXPECT_EQ(rules.range_count(), 2U);
  ASSERT_TRUE(rules.admit(range(25, 3)).has_value());  // joins both
  EXPECT_EQ(rules.range_count(), 1U);
  EXPECT_EQ(verdict(rules.admit(range(0, 11))), "validation:overlapping segment logical ranges");
  ASSERT_TRUE(rules.admit(range(0, 5)).has_value());
  EXPECT_EQ(rules.range_count(), 2U);
}

TEST(SegmentRules, PlanesDoNotTouchEachOther) {
  SegmentRules rules(components());
  SegmentDescriptor descriptor = range(0, 4);
  EXPECT_EQ(*rules.admit(descriptor), 0U);
  descriptor.shape.layer.reset();
  EXPECT_EQ(*rules.admit(descriptor), 0U);
  descriptor.shape.layer = 0;
  EXPECT_EQ(*rules.admit(descriptor), 0U);
  descriptor.shape.layer = std::numeric_limits<std::uint32_t>::max();
  EXPECT_EQ(*rules.admit(descriptor), 0U);
  descriptor.shape.role = SegmentRole::kAuxiliary;
  EXPECT_EQ(*rules.admit(descriptor), 0U);
  descriptor.shape.component_id = "a";
  EXPECT_EQ(*rules.admit(descriptor), 1U);
  descriptor.shape.component_id = "z";
  EXPECT_EQ(*rules.admit(descriptor), 2U);
  EXPECT_EQ(verdict(rules.admit(descriptor)), "validation:overlapping segment logical ranges");
  EXPECT_EQ(rules.range_count(), 7U);
}

// The same verdicts as comparing with every earlier range.
TEST(SegmentRules, AgreeWithAPlainScanOnRandomRanges) {
  std::mt19937 random(7);
  SegmentRules rules(components());
  std::vector<std::pair<std::uint64_t, std::uint64_t>> held;
  for (int i = 0; i < 4000; ++i) {
    const std::uint64_t start = random() % 20000;
    const std::uint64_t stop = start + 1 + random() % 8;
    const bool overlaps = std::ranges::any_of(
        held, [&](const auto& other) { return start < other.second && other.first < stop; });
    EXPECT_EQ(rules.admit(range(start, stop - start)).has_value(), !overlaps);
    if (!overlaps) held.emplace_back(start, stop);
  }
  EXPECT_LT(rules.range_count(), held.size());
}

TEST(SegmentRules, AnInOrderPlaneCostsOneEntry) {
  SegmentRules rules(components());
  for (std::uint64_t i = 0; i < 10000; ++i) ASSERT_TRUE(rules.admit(range(i * 4, 4)).has_value());
  EXPECT_EQ(rules.range_count(), 1U);
}

TEST(PayloadHasher, BothDigestsAreThoseOfTheBytes) {
  std::mt19937 random(1);
  Bytes all(200'000);
  for (auto& b : all) b = static_cast<std::uint8_t>(random());
  for (const Sha256Kernels* kernels : available_sha256_kernels())
    for (const unsigned threads : {1U, 2U, 3U}) {
      PayloadHasher hasher(*kernels, threads);
      std::size_t done = 0;
      for (const std::size_t length : {1U, 16384U, 100'000U, 63U, 64U, 65U, 83423U}) {
        const ByteSpan segment = ByteSpan(all).subspan(done, length);
        ByteSpan rest = segment;
        while (!rest.empty()) {
          const std::size_t n = std::min<std::size_t>(rest.size(), 1 + random() % 40'000);
          hasher.update(rest.first(n));
          rest = rest.subspan(n);
        }
        EXPECT_EQ(hasher.finish_segment(), sha256(segment)) << kernels->name;
        done += length;
      }
      EXPECT_EQ(done, all.size());
      EXPECT_EQ(hasher.finish_all(), sha256(all)) << kernels->name;
    }
}

TEST(PayloadHasher, WhatHasBeenReleasedMayChange) {
  const Bytes before(300'000, 1);
  for (const unsigned threads : {1U, 2U}) {
    PayloadHasher hasher(kOpensslSha256, threads);
    Bytes memory = before;
    hasher.update(ByteSpan(memory).first(10));
    hasher.update(ByteSpan(memory).subspan(10));
    hasher.release();
    std::ranges::fill(memory, std::uint8_t{2});
    hasher.update({});
    EXPECT_EQ(hasher.finish_segment(), sha256(before));
    EXPECT_EQ(hasher.finish_all(), sha256(before));
  }
}

}  // namespace
}  // namespace kvpack::handoff::segment_test
