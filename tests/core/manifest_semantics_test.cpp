// Rules M1 to M44: the published verdicts, each rule alone, and the order of any two.
#include <gtest/gtest.h>

#include <functional>

#include "cli/reference_fixtures.h"
#include "support/random_manifest.h"
#include "support/tsv.h"
#include "support/verdict.h"

namespace kvpack::manifest_semantics_test {
namespace {

using kvpack::testing::context_of;
using kvpack::testing::ManifestGenerator;
using kvpack::testing::read_source_tsv;
using kvpack::testing::verdict;

const StateKey kKeys{0, "k"};
const StateKey kValues{0, "v"};
const StateKey kStrided{1, "k"};
const StateKey kUnknown{9, "k"};
constexpr std::uint64_t kTokens = 6;

void realize(CutManifest& manifest, const StaticState& fixed) {
  const auto& parent = manifest.schema.kind.parent;
  const bool tail = fixed.token_axis_rule == TokenAxisRule::kTailWindow;
  const std::uint64_t start = tail ? kTokens - 3 : parent ? parent->cut.token_count : 0;
  const std::uint64_t count = kTokens - start;
  const std::uint64_t full = tail ? count : kTokens;
  const std::uint64_t pitch = fixed.layout == Layout::kStrided ? 8 : 4;
  const std::uint64_t width = dtype_width_bytes(fixed.dtype);
  RealizedState state;
  state.key = fixed.key;
  state.full_shape = {{full, 4}};
  state.segment_shape = {{count, 4}};
  state.strides = {pitch, 1};
  state.logical_start = start;
  state.logical_count = count;
  state.physical_offset_bytes = tail ? 0 : start * pitch * width;
  state.physical_span_bytes = ((count - 1) * pitch + 4) * width;
  state.complete_physical_bytes = ((full - 1) * pitch + 4) * width;
  state.absolute_position = kTokens;
  PayloadState payload{fixed.key, {}};
  const auto add_chunk = [&](std::uint64_t first, std::uint64_t tokens) {
    const auto bytes = static_cast<std::uint32_t>(tokens * 4 * width);
    state.chunk_spans.push_back({first, tokens, first * 4 * width, bytes});
    payload.chunks.push_back({Id32::filled(40), Id32::filled(50), Id32::filled(60), 7, bytes, 8192});
  };
  add_chunk(start, 1);
  add_chunk(start + 1, count - 1);
  manifest.schema.segment_restored_bytes += count * 4 * width;
  manifest.schema.complete_restored_bytes += full * 4 * width;
  manifest.schema.states.push_back(std::move(state));
  manifest.payload.push_back(std::move(payload));
}

enum class Kind { kFull, kDelta };

/// Three states in two groups; the last is strided, the second depends on the first. The first may be a
/// tail window.
CutManifest sample(Kind kind, TokenAxisRule first_rule = TokenAxisRule::kDirect) {
  CutManifest manifest;
  manifest.tenant = fixtures::tenant();
  manifest.key_epoch = 7;
  manifest.semantic_model = fixtures::semantic_model();
  manifest.input_cut = {Id32::filled(30), Id32::filled(31), kTokens};
  manifest.family = fixtures::family(Codec::kRaw);
  manifest.family.states.resize(3, manifest.family.states[0]);
  manifest.family.states[0].key = kKeys;
  manifest.family.states[0].token_axis_rule = first_rule;
  manifest.family.states[1].key = kValues;
  manifest.family.states[1].dtype = DType::kF16;
  manifest.family.states[1].dependencies = {kKeys};
  manifest.family.states[2].key = kStrided;
  manifest.family.states[2].layout = Layout::kStrided;
  if (kind == Kind::kDelta)
    manifest.schema.kind = {3, DeltaParent{Id32::filled(32), {Id32::filled(33), Id32::filled(31), 2}}};
  manifest.schema.groups = {{1, {kKeys, kValues}}, {5, {kStrided}}};
  for (const StaticState& state : manifest.family.states) realize(manifest, state);
  return manifest;
}

using Edit = std::function<void(CutManifest&)>;

std::string judge(Kind kind, const Edit& edit, const ManifestLimits& limits = {}) {
  CutManifest manifest = sample(kind);
  edit(manifest);
  return verdict(validate_manifest(manifest, limits));
}

std::string judge_tail(Kind kind, const Edit& edit) {
  CutManifest manifest = sample(kind, TokenAxisRule::kTailWindow);
  edit(manifest);
  return verdict(validate_manifest(manifest));
}

TEST(ManifestRules, PublishedManifestsGetTheirVerdicts) {
  const auto rows = read_source_tsv("conformance/semantic.tsv");
  ASSERT_EQ(rows.size(), 105U);
  for (const auto& row : rows) {
    ASSERT_EQ(row.size(), 4U);
    const auto bytes = from_hex(row[3]);
    ASSERT_TRUE(bytes.has_value()) << row[1];
    const auto manifest = decode_manifest(*bytes);
    ASSERT_EQ(verdict(manifest), "ok") << row[1];
    EXPECT_EQ(*encode_manifest(*manifest), *bytes) << row[1];
    EXPECT_EQ(verdict(validate_manifest(*manifest)), row[2]) << row[0] << " " << row[1];
  }
}

TEST(ManifestRules, SamplesAreValid) {
  EXPECT_EQ(judge(Kind::kFull, [](auto&) {}), "ok");
  EXPECT_EQ(judge(Kind::kDelta, [](auto&) {}), "ok");
  EXPECT_EQ(judge_tail(Kind::kFull, [](auto&) {}), "ok");
}

struct Fault {
  std::string rule;
  std::string verdict;
  Edit apply;
};

RealizedState& state(CutManifest& m, std::size_t i) {
  return m.schema.states[i];
}
ChunkSpan& span(CutManifest& m, std::size_t i, std::size_t n) {
  return m.schema.states[i].chunk_spans[n];
}
ChunkRef& ref(CutManifest& m, std::size_t i, std::size_t n) {
  return m.payload[i].chunks[n];
}

/// Faults of a delta in the order in which they are found. Each edits a field of its own, so that any two can
/// be applied together.
std::vector<Fault> faults() {
  const std::string shape = "semantics:realized shape does not satisfy static family dimensions";
  const std::string range = "semantics:realized state range does not match the exact manifest cut";
  const std::string physical = "semantics:realized physical span is not canonical";
  const std::string partition = "semantics:chunk spans are not a contiguous token/byte partition";
  const std::string zero = "semantics:chunk reference contains a zero identity";
  const std::string totals = "bounds:manifest restored byte totals are invalid";
  return {
      {"M1", "semantics:tenant namespace is zero", [](auto& m) { m.tenant = {}; }},
      {"M2", "semantics:key epoch must be nonzero", [](auto& m) { m.key_epoch = 0; }},
      {"M3", "semantics:semantic model identity contains a zero component",
       [](auto& m) { m.semantic_model.adapters = {}; }},
      {"M4", "semantics:input cut identity is invalid", [](auto& m) { m.input_cut.token_root = {}; }},
      {"F2", "semantics:representation family page size must be nonzero",
       [](auto& m) { m.family.page_size_tokens = 0; }},
      {"F16", "graph:state dependencies are not unique canonical order",
       [](auto& m) {
         m.family.states[1].dependencies = {kStrided, kKeys};
       }},
      {"M6", "graph:delta parent identity is invalid",
       [](auto& m) { m.schema.kind.parent->manifest_id = {}; }},
      {"M7", "graph:delta depth is outside 1..=7", [](auto& m) { m.schema.kind.depth = 8; }},
      {"M8", "graph:delta parent cut is not a compatible strict prefix",
       [](auto& m) { m.schema.kind.parent->cut.auxiliary_input_root = Id32::filled(55); }},
      {"M9", "bounds:manifest, family, and schema state counts differ or exceed bounds",
       [](auto& m) { m.payload.push_back(m.payload[0]); }},
      {"M10", "semantics:atomic groups are not unique canonical order",
       [](auto& m) { m.schema.groups[0].id = 0; }},
      {"M12", "semantics:atomic-group states are not unique canonical order",
       [](auto& m) { std::swap(m.schema.groups[0].states[0], m.schema.groups[0].states[1]); }},
      {"M11", "graph:atomic group names an unknown state",
       [](auto& m) { m.schema.groups[1].states.push_back(kUnknown); }},
      {"M15", "semantics:family, realized schema, and payload state order differ",
       [](auto& m) { m.payload[0].key = kUnknown; }},
      {"M17", "semantics:realized shape rank does not match family rank",
       [](auto& m) { state(m, 0).full_shape.dimensions.push_back(1); }},
      {"M20", shape, [](auto& m) { state(m, 0).segment_shape.dimensions[0] = 5; }},
      {"M21 position", range, [](auto& m) { state(m, 0).absolute_position = 5; }},
      {"M21 window", range, [](auto& m) { state(m, 0).window = 1; }},
      {"M22", "semantics:realized state strides do not match its rank",
       [](auto& m) {
         state(m, 0).strides = {4, 1, 1};
       }},
      {"M29 offset", physical, [](auto& m) { state(m, 0).physical_offset_bytes = 7; }},
      {"M29 span", physical, [](auto& m) { state(m, 0).physical_span_bytes = 7; }},
      {"M29 complete", physical, [](auto& m) { state(m, 0).complete_physical_bytes = 7; }},
      {"M34", partition, [](auto& m) { span(m, 0, 0).plaintext_offset = 0; }},
      {"M36", "semantics:chunk span has a noncanonical plaintext size",
       [](auto& m) { ref(m, 0, 0).plaintext_bytes = 3; }},
      {"M37", zero, [](auto& m) { ref(m, 0, 0).object_key = {}; }},
      {"M38", "semantics:chunk object size is not aligned",
       [](auto& m) { ref(m, 0, 0).object_bytes = 8193; }},
      {"M34 second", partition, [](auto& m) { span(m, 0, 1).token_start = 4; }},
      {"M37 second", zero, [](auto& m) { ref(m, 0, 1).key_epoch = 0; }},
      {"M23", "semantics:contiguous state has noncanonical strides",
       [](auto& m) {
         state(m, 1).strides = {8, 1};
       }},
      {"M30", "bounds:state chunk count is outside bounds",
       [](auto& m) { m.payload[1].chunks.push_back(m.payload[1].chunks[0]); }},
      {"M35", "bounds:chunk span byte count overflows u64",
       [](auto& m) { span(m, 1, 1).token_count = 1ULL << 62; }},
      {"M28", "bounds:state physical footprint overflows u64",
       [](auto& m) { state(m, 2).strides[1] = 1ULL << 63; }},
      {"M42", "semantics:chunk spans do not cover the complete realized state segment",
       [](auto& m) {
         state(m, 2).chunk_spans.pop_back();
         m.payload[2].chunks.pop_back();
       }},
      {"M44", totals, [](auto& m) { m.schema.segment_restored_bytes = 1; }},
  };
}

TEST(ManifestRules, EachFaultGetsItsVerdict) {
  for (const Fault& fault : faults())
    EXPECT_EQ(judge(Kind::kDelta, fault.apply), fault.verdict) << fault.rule;
}

TEST(ManifestRules, OfTwoFaultsTheFirstInOrderWins) {
  const auto all = faults();
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::size_t j = i + 1; j < all.size(); ++j) {
      const auto both = [&](CutManifest& manifest) {
        all[j].apply(manifest);
        all[i].apply(manifest);
      };
      EXPECT_EQ(judge(Kind::kDelta, both), all[i].verdict) << all[i].rule << " before " << all[j].rule;
    }
  }
}

TEST(ManifestRules, GroupMembersAreUnknownThenOutOfOrderThenTaken) {
  const auto groups = [](std::vector<AtomicGroup> list) {
    return judge(Kind::kFull, [&](auto& m) { m.schema.groups = std::move(list); });
  };
  const std::string unknown = "graph:atomic group names an unknown state";
  const std::string order = "semantics:atomic-group states are not unique canonical order";
  const std::string taken = "graph:state appears in multiple atomic groups";
  EXPECT_EQ(groups({{1, {kKeys, kValues, kStrided}}}), "ok");
  EXPECT_EQ(groups({{1, {kStrided}}, {0xffffffff, {kKeys, kValues}}}), "ok");
  EXPECT_EQ(groups({{1, {kKeys, kUnknown}}, {1, {kStrided}}}), unknown);
  EXPECT_EQ(groups({{1, {kValues, kKeys, kUnknown}}}), order);
  EXPECT_EQ(groups({{1, {kValues}}, {2, {kValues, kKeys}}}), taken);
  EXPECT_EQ(groups({{1, {kKeys, kKeys}}}), order);  // of one group: order, not "taken"
  EXPECT_EQ(groups({{1, {kKeys, kValues}}, {2, {kStrided, kKeys}}}), order);
  EXPECT_EQ(groups({{1, {kKeys}}, {3, {kValues}}, {2, {kStrided}}}),
            "semantics:atomic groups are not unique canonical order");
  EXPECT_EQ(groups({}), "graph:atomic groups do not cover the complete family inventory");
  EXPECT_EQ(groups({{1, {kKeys, kStrided}}}),
            "graph:atomic groups do not cover the complete family inventory");
}

TEST(ManifestRules, EachZeroOfAnIdentityIsFound) {
  const std::string model = "semantics:semantic model identity contains a zero component";
  const std::string cut = "semantics:input cut identity is invalid";
  const std::string parent = "graph:delta parent identity is invalid";
  EXPECT_EQ(judge(Kind::kFull, [](auto& m) { m.semantic_model.weights_config = {}; }), model);
  EXPECT_EQ(judge(Kind::kFull, [](auto& m) { m.semantic_model.tokenizer_template = {}; }), model);
  EXPECT_EQ(judge(Kind::kFull, [](auto& m) { m.semantic_model.position_semantics = {}; }), model);
  EXPECT_EQ(judge(Kind::kFull, [](auto& m) { m.semantic_model.qualified_math = {}; }), model);
  EXPECT_EQ(judge(Kind::kFull, [](auto& m) { m.input_cut.auxiliary_input_root = {}; }), cut);
  EXPECT_EQ(judge(Kind::kFull, [](auto& m) { m.input_cut.token_count = 0; }), cut);
  EXPECT_EQ(judge(Kind::kDelta, [](auto& m) { m.schema.kind.parent->cut.token_root = {}; }), parent);
  EXPECT_EQ(judge(Kind::kDelta, [](auto& m) { m.schema.kind.parent->cut.auxiliary_input_root = {}; }),
            parent);
}

TEST(ManifestRules, DeltaStandsOnAStrictPrefixAtDepthOneToSeven) {
  const auto depth = [](std::uint8_t d) {
    return judge(Kind::kDelta, [&](auto& m) { m.schema.kind.depth = d; });
  };
  for (std::uint8_t d = 1; d <= 7; ++d) EXPECT_EQ(depth(d), "ok");
  for (const int d : {0, 8, 255})
    EXPECT_EQ(depth(static_cast<std::uint8_t>(d)), "graph:delta depth is outside 1..=7");
  for (const std::uint64_t count : {0ULL, 6ULL, 7ULL, ~0ULL})
    EXPECT_EQ(judge(Kind::kDelta, [&](auto& m) { m.schema.kind.parent->cut.token_count = count; }),
              "graph:delta parent cut is not a compatible strict prefix");
}

TEST(ManifestRules, LimitsNarrowWhatIsAccepted) {
  const std::string counts = "bounds:manifest, family, and schema state counts differ or exceed bounds";
  const auto full = [](const ManifestLimits& limits) {
    return judge(
        Kind::kFull, [](auto&) {}, limits);
  };
  EXPECT_EQ(full({.max_states = 3}), "ok");
  EXPECT_EQ(full({.max_states = 2}), counts);
  EXPECT_EQ(full({.max_chunks_per_state = 2}), "ok");
  EXPECT_EQ(full({.max_chunks_per_state = 1}), "bounds:state chunk count is outside bounds");
  EXPECT_EQ(full({.max_restored_bytes = 96}), "ok");
  EXPECT_EQ(full({.max_restored_bytes = 95}), "bounds:manifest restored byte totals are invalid");
}

TEST(ManifestRules, ChunkListsAreNeverEmpty) {
  EXPECT_EQ(judge(Kind::kFull,
                  [](auto& m) {
                    state(m, 0).chunk_spans.clear();
                    m.payload[0].chunks.clear();
                  }),
            "bounds:state chunk count is outside bounds");
}

TEST(ManifestRules, ObjectSizesAreWholePagesInBounds) {
  const auto size = [](std::uint32_t bytes) {
    return judge(Kind::kFull, [&](auto& m) { ref(m, 0, 0).object_bytes = bytes; });
  };
  const std::string text = "semantics:chunk object size is not aligned";
  EXPECT_EQ(size(8192), "ok");
  EXPECT_EQ(size(4'235'264), "ok");
  for (const std::uint32_t bytes : {0U, 4096U, 8191U, 8193U, 4'235'296U, 4'239'360U, 0xfffff000U})
    EXPECT_EQ(size(bytes), text) << bytes;
}

TEST(ManifestRules, TailWindowIsOneNonemptyFullSnapshot) {
  const std::string text = "semantics:tail-window states require one nonempty full snapshot";
  EXPECT_EQ(judge_tail(Kind::kDelta, [](auto&) {}), text);
  EXPECT_EQ(judge_tail(Kind::kFull, [](auto& m) { state(m, 0).logical_count = 0; }), text);
  EXPECT_EQ(judge_tail(Kind::kFull, [](auto& m) { state(m, 0).logical_count = 7; }), text);
  EXPECT_EQ(judge_tail(Kind::kFull, [](auto& m) { state(m, 0).logical_count = ~0ULL; }), text);
  EXPECT_EQ(judge_tail(Kind::kFull, [](auto& m) { state(m, 0).physical_offset_bytes = 12; }),
            "semantics:realized physical span is not canonical");
  EXPECT_EQ(judge_tail(Kind::kFull, [](auto& m) { state(m, 0).logical_start = 0; }),
            "semantics:realized state range does not match the exact manifest cut");
}

/// One contiguous state [tokens, per_token] in one chunk of `tokens` tokens.
CutManifest alone(std::uint64_t tokens, std::uint64_t per_token, DType dtype) {
  CutManifest m = sample(Kind::kFull);
  m.family.states.resize(1);
  m.schema.states.resize(1);
  m.payload.resize(1);
  m.schema.groups = {{1, {kKeys}}};
  m.input_cut.token_count = tokens;
  m.family.states[0].dimensions = {0, per_token};
  m.family.states[0].elements_per_token = per_token;
  m.family.states[0].dtype = dtype;
  RealizedState& s = state(m, 0);
  s.full_shape = s.segment_shape = {{tokens, per_token}};
  s.strides = {per_token, 1};
  s.logical_count = s.absolute_position = tokens;
  const std::uint64_t bytes = tokens * per_token * dtype_width_bytes(dtype);
  s.physical_span_bytes = s.complete_physical_bytes = bytes;
  s.chunk_spans = {{0, tokens, 0, static_cast<std::uint32_t>(bytes)}};
  m.payload[0].chunks.resize(1);
  m.payload[0].chunks[0].plaintext_bytes = static_cast<std::uint32_t>(bytes);
  m.schema.segment_restored_bytes = m.schema.complete_restored_bytes = bytes;
  return m;
}

TEST(ManifestRules, ArithmeticOfHugeNumbersIsChecked) {
  const auto of = [](const CutManifest& m) { return verdict(validate_manifest(m)); };
  EXPECT_EQ(of(alone(1 << 20, 4, DType::kU8)), "ok");
  EXPECT_EQ(of(alone(1, kMaxChunkPlaintextBytes, DType::kU8)), "ok");
  EXPECT_EQ(of(alone((1 << 20) + 1, 4, DType::kU8)),
            "semantics:chunk span has a noncanonical plaintext size");
  EXPECT_EQ(of(alone(1ULL << 62, 4, DType::kU8)), "bounds:contiguous stride calculation overflows u64");
  EXPECT_EQ(of(alone(1ULL << 61, 4, DType::kF64)), "bounds:segment byte count overflows u64");
  EXPECT_EQ(of(alone(1, kMaxChunkPlaintextBytes + 1, DType::kU8)),
            "bounds:one state token does not fit in a bounded chunk");
  EXPECT_EQ(of(alone(1, kMaxChunkPlaintextBytes / 8 + 1, DType::kF64)),
            "bounds:one state token does not fit in a bounded chunk");
  // The complete state overflows where the segment does not: a delta on a huge parent.
  CutManifest delta = sample(Kind::kDelta);
  const std::uint64_t tokens = (1ULL << 62) + 6;
  delta.input_cut.token_count = tokens;
  delta.schema.kind.parent->cut.token_count = tokens - 4;
  RealizedState& s = state(delta, 0);
  s.logical_start = tokens - 4;
  s.absolute_position = tokens;
  s.full_shape.dimensions[0] = tokens;
  EXPECT_EQ(of(delta), "bounds:contiguous stride calculation overflows u64");
  delta.family.states[0].layout = Layout::kStrided;
  EXPECT_EQ(of(delta), "bounds:shape element count overflows u64");
}

/// The last `window` tokens of a cut of `tokens`, one span of `span_tokens` tokens, `per_token` bytes each.
CutManifest window_of(std::uint64_t tokens, std::uint64_t window, std::uint64_t span_tokens,
                      std::uint64_t per_token) {
  CutManifest m = alone(window, per_token, DType::kU8);
  m.family.states[0].token_axis_rule = TokenAxisRule::kTailWindow;
  m.input_cut.token_count = tokens;
  RealizedState& s = state(m, 0);
  s.logical_start = tokens - window;
  s.absolute_position = tokens;
  const auto bytes = static_cast<std::uint32_t>(span_tokens * per_token);
  s.chunk_spans = {{s.logical_start, span_tokens, s.logical_start * per_token, bytes}};
  m.payload[0].chunks[0].plaintext_bytes = bytes;
  return m;
}

TEST(ManifestRules, PositionsNearTheEndOfU64AreChecked) {
  const auto of = [](const CutManifest& m) { return verdict(validate_manifest(m)); };
  EXPECT_EQ(of(window_of(~0ULL, 3, 3, 1)), "ok");
  EXPECT_EQ(of(window_of(~0ULL, 3, 4, 1)), "bounds:chunk token range overflows u64");
  EXPECT_EQ(of(window_of(~0ULL, 3, 3, 2)), "bounds:state plaintext base offset overflows u64");
  EXPECT_EQ(of(window_of((1ULL << 63) - 1, 3, 3, 2)), "ok");
  EXPECT_EQ(of(window_of((1ULL << 63) - 1, 3, 4, 2)), "bounds:chunk byte range overflows u64");
  EXPECT_EQ(of(window_of(1ULL << 63, 3, 3, 2)), "bounds:chunk byte range overflows u64");
  EXPECT_EQ(of(window_of(1ULL << 63, 3, 2, 2)), "bounds:state plaintext end offset overflows u64");
}

/// A delta of four tokens on a parent so long that every complete state has `tokens` tokens.
CutManifest long_delta(std::uint64_t tokens, DType dtype) {
  CutManifest m = sample(Kind::kDelta);
  m.input_cut.token_count = tokens;
  m.schema.states.clear();
  m.payload.clear();
  for (StaticState& fixed : m.family.states) {
    fixed.dtype = dtype;
    fixed.layout = Layout::kStrided;
    realize(m, fixed);
    RealizedState& s = m.schema.states.back();
    const std::uint64_t width = dtype_width_bytes(dtype);
    s.strides = {1, 1};
    s.full_shape = {{tokens, 4}};
    s.logical_start = tokens - 4;
    s.logical_count = 4;
    s.absolute_position = tokens;
    s.physical_offset_bytes = (tokens - 4) * width;
    s.physical_span_bytes = 7 * width;
    s.complete_physical_bytes = (tokens + 3) * width;
    std::uint64_t at = tokens - 4;
    for (ChunkSpan& chunk : s.chunk_spans) {
      chunk.token_start = at;
      chunk.plaintext_offset = at * 4 * width;
      at += chunk.token_count;
    }
  }
  m.schema.kind.parent->cut.token_count = tokens - 4;  // only now: realize() knows cuts of six tokens
  return m;
}

TEST(ManifestRules, CompleteSizesAndTheirTotalAreChecked) {
  const auto of = [](const CutManifest& m) { return verdict(validate_manifest(m)); };
  EXPECT_EQ(of(long_delta(1ULL << 60, DType::kF32)), "bounds:complete byte count overflows u64");
  EXPECT_EQ(of(long_delta((1ULL << 61) - 1, DType::kU8)),
            "bounds:complete restored byte total overflows u64");
  CutManifest accepted = long_delta(1ULL << 38, DType::kU8);
  accepted.schema.segment_restored_bytes = 3 * 4 * 4;
  accepted.schema.complete_restored_bytes = 3 * (1ULL << 40);
  EXPECT_EQ(of(accepted), "ok");
}

TEST(ManifestRules, PhysicalOffsetIsChecked) {
  EXPECT_EQ(judge(Kind::kDelta,
                  [](auto& m) {
                    state(m, 2).strides = {1ULL << 63, 1};
                  }),
            "bounds:physical token offset overflows u64");
  EXPECT_EQ(judge(Kind::kDelta,
                  [](auto& m) {
                    state(m, 2).strides = {1ULL << 62, 1};
                  }),
            "bounds:state physical footprint overflows u64");
}

TEST(ManifestRules, ErrorsNameStateAndTokens) {
  CutManifest manifest = sample(Kind::kFull);
  ref(manifest, 1, 1).object_key = {};
  const auto status = validate_manifest(manifest);
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(context_of(status.error(), "layer"), "0");
  EXPECT_EQ(context_of(status.error(), "state"), "v");
  EXPECT_EQ(context_of(status.error(), "tokens"), "[1,5]");
}

// A delta and its base, appended by reference, validate as one full manifest.
TEST(ManifestRules, ConcatenatedChunksOfAChainValidateAsFull) {
  const auto stages = fixtures::delta_chain({});
  CutManifest full = stages.back().manifest;
  full.schema.kind = {};
  RealizedState& s = state(full, 0);
  s.segment_shape = s.full_shape;
  s.logical_start = s.physical_offset_bytes = 0;
  s.logical_count = s.absolute_position;
  s.physical_span_bytes = s.complete_physical_bytes;
  s.chunk_spans.clear();
  full.payload[0].chunks.clear();
  for (const fixtures::Stage& stage : stages) {
    s.chunk_spans.push_back(stage.span);
    full.payload[0].chunks.push_back(stage.ref);
  }
  full.schema.segment_restored_bytes = full.schema.complete_restored_bytes;
  EXPECT_EQ(verdict(validate_manifest(full)), "ok");
}

// Each number of a valid manifest is bound to the others: any other value in its place is refused.
TEST(ManifestProperties, EveryRealizedNumberIsExact) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    ManifestGenerator random(seed);
    const CutManifest valid = random.manifest();
    CutManifest manifest = valid;
    const std::size_t i = random.below(manifest.schema.states.size());
    RealizedState& s = state(manifest, i);
    const std::size_t n = random.below(s.chunk_spans.size());
    for (std::uint64_t* field :
         {&s.logical_start, &s.logical_count, &s.physical_offset_bytes, &s.physical_span_bytes,
          &s.complete_physical_bytes, &s.absolute_position, &s.window, &s.chunk_spans[n].token_start,
          &s.chunk_spans[n].token_count, &s.chunk_spans[n].plaintext_offset,
          &manifest.schema.segment_restored_bytes, &manifest.schema.complete_restored_bytes}) {
      const std::uint64_t kept = *field;
      for (const std::uint64_t other : {kept + 1, kept - 1, ~kept, std::uint64_t{1} << random.below(64)}) {
        if (other == kept) continue;
        *field = other;
        EXPECT_FALSE(validate_manifest(manifest).has_value()) << seed;
      }
      *field = kept;
    }
    EXPECT_EQ(manifest, valid);
  }
}

}  // namespace
}  // namespace kvpack::manifest_semantics_test
