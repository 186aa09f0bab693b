#include "kvpack/core/span_policy.h"

#include <gtest/gtest.h>

#include <random>

namespace kvpack::span_policy_test {
namespace {

StaticState state_of(std::uint64_t bytes_per_token, TokenAxisRule rule = TokenAxisRule::kDirect) {
  return {.key = {0, "s"},
          .token_axis_rule = rule,
          .elements_per_token = bytes_per_token,
          .dimensions = {0, bytes_per_token}};
}

std::vector<std::uint64_t> counts(const StaticState& state, std::uint64_t start, std::uint64_t count,
                                  const SpanPolicy& policy) {
  std::vector<std::uint64_t> out;
  const auto spans = plan_spans(state, start, count, policy);
  for (const ChunkSpan& span : *spans) out.push_back(span.token_count);
  return out;
}

using Counts = std::vector<std::uint64_t>;

TEST(SpanPolicy, AlignedCutsFallOnAbsoluteMultiplesOfTheGrain) {
  const StaticState muse = state_of(512);  // 8,192 tokens fit 4 MiB
  EXPECT_EQ(counts(muse, 0, 4'096, {}), (Counts{2'048, 2'048}));
  EXPECT_EQ(counts(muse, 0, 5'000, {}), (Counts{2'048, 2'048, 904}));
  EXPECT_EQ(counts(muse, 1'000, 4'000, {}), (Counts{1'048, 2'048, 904}));
  EXPECT_EQ(counts(muse, 0, 700, {.grain_tokens = 256}), (Counts{256, 256, 188}));
}

TEST(SpanPolicy, TheGrainShrinksToWhatFitsAChunk) {
  const StaticState wide = state_of(4'194'304 / 600);  // 600 tokens fit
  EXPECT_EQ(counts(wide, 0, 1'100, {}), (Counts{512, 512, 76}));
  const StaticState wider =
      state_of(4'194'304 / 100);  // 100 tokens fit: runs, but never over a multiple of 256
  EXPECT_EQ(counts(wider, 0, 300, {}), (Counts{100, 100, 56, 44}));
  EXPECT_EQ(counts(wider, 200, 100, {}), (Counts{56, 44}));
}

TEST(SpanPolicy, UpstreamCutsInPlainRuns) {
  const StaticState wider = state_of(4'194'304 / 100);
  EXPECT_EQ(counts(wider, 200, 250, {.rule = SpanPolicy::Rule::kUpstream}), (Counts{100, 100, 50}));
  EXPECT_EQ(counts(state_of(512), 0, 20'000, {.rule = SpanPolicy::Rule::kUpstream}),
            (Counts{8'192, 8'192, 3'616}));
}

TEST(SpanPolicy, NoChunkOfAnExportCrossesACheckpoint) {
  const auto policy = [](std::uint32_t stride) { return SpanPolicy{SpanPolicy::Rule::kCheckpoints, stride}; };
  EXPECT_EQ(counts(state_of(32'768), 0, 300, policy(256)), (Counts{128, 128, 44}));
  EXPECT_EQ(counts(state_of(8), 0, 600, policy(256)), (Counts{256, 256, 88}));
  EXPECT_EQ(counts(state_of(8), 0, 1'100, policy(512)), (Counts{512, 512, 76}));
  EXPECT_EQ(counts(state_of(4'194'304 / 600), 0, 1'100, policy(1'024)), (Counts{600, 424, 76}));
}

TEST(SpanPolicy, TailWindowsAreCutInRunsUnlessTheyHaveAGrain) {
  const StaticState tail = state_of(512, TokenAxisRule::kTailWindow);
  EXPECT_EQ(counts(tail, 1'000, 2'048, {}), (Counts{2'048}));
  EXPECT_EQ(counts(tail, 1'000, 2'048, {.window_grain_tokens = 1'024}), (Counts{24, 1'024, 1'000}));
}

TEST(SpanPolicy, RefusesWhatCannotBeCut) {
  EXPECT_EQ(plan_spans(state_of(512), 0, 10, {.grain_tokens = 100}).error().verdict(),
            "state:span grain must be a multiple of 256 tokens");
  EXPECT_EQ(plan_spans(state_of(512), 0, 10, {.window_grain_tokens = 1}).error().verdict(),
            "state:span grain must be a multiple of 256 tokens");
  EXPECT_EQ(plan_spans(state_of(4'194'305), 0, 10, {}).error().verdict(),
            "bounds:one state token does not fit in a bounded chunk");
  EXPECT_EQ(plan_spans(state_of(4'194'304), 0, 65'537, {}).error().verdict(),
            "bounds:state chunk count is outside bounds");
  EXPECT_EQ(plan_spans(state_of(1), ~std::uint64_t{0}, 1, {}).error().code, ErrorCode::kBounds);
  EXPECT_EQ(plan_spans(state_of(1), ~std::uint64_t{0} - 1'000, 900, {}).error().code, ErrorCode::kBounds);
}

// Any range is partitioned, no chunk is too large, and aligned cuts inside a range are multiples of 256.
TEST(SpanPolicy, PartitionsAnyRange) {
  std::mt19937 engine(4);
  for (int round = 0; round < 300; ++round) {
    const std::uint64_t bytes = 1 + engine() % 60'000;
    const std::uint64_t start = engine() % 10'000;
    const std::uint64_t count = 1 + engine() % 10'000;
    SpanPolicy policy{.grain_tokens = 256 * (1 + static_cast<std::uint32_t>(engine() % 12))};
    if (round % 3 == 0) policy.rule = SpanPolicy::Rule::kUpstream;
    const auto spans = *plan_spans(state_of(bytes), start, count, policy);
    std::uint64_t token = start;
    for (const ChunkSpan& span : spans) {
      ASSERT_EQ(span.token_start, token);
      ASSERT_EQ(span.plaintext_offset, token * bytes);
      ASSERT_EQ(span.plaintext_bytes, span.token_count * bytes);
      ASSERT_GT(span.token_count, 0U);
      ASSERT_LE(span.plaintext_bytes, kMaxChunkPlaintextBytes);
      token += span.token_count;
      if (policy.rule == SpanPolicy::Rule::kAligned && 4'194'304 / bytes >= 256 && token != start + count) {
        ASSERT_EQ(token % 256, 0U);
      }
    }
    ASSERT_EQ(token, start + count);
  }
}

}  // namespace
}  // namespace kvpack::span_policy_test
