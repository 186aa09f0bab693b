#include "kvpack/muse/realized_ranges.h"

#include "muse/muse_fixtures.h"
#include "muse/muse_vectors.h"
#include "support/verdict.h"

namespace kvpack::muse::realized_ranges_test {
namespace {

using kvpack::testing::context_of;
using kvpack::testing::verdict;
using testing::kReleaseVocabulary;
using testing::test_config;
using testing::test_identity;
using testing::vector_at;
using testing::vector_id;
using testing::vector_number;
using testing::vector_numbers;
using testing::vector_text;

constexpr SpanPolicy kRuns{.rule = SpanPolicy::Rule::kUpstream};

PortableDescriptor descriptor_at(std::uint64_t cut, std::uint64_t vocabulary = kReleaseVocabulary) {
  auto descriptor = muse_descriptor(test_config(vocabulary), test_identity(), cut);
  EXPECT_EQ(verdict(descriptor), "ok");
  return *std::move(descriptor);
}

std::vector<std::uint64_t> range_of(const RealizedState& state) {
  return {state.logical_start, state.logical_count};
}
std::vector<std::uint64_t> numbers_of(const ChunkSpan& span) {
  return {span.token_start, span.token_count, span.plaintext_offset, span.plaintext_bytes};
}
std::vector<std::uint64_t> numbers_of(const JsonValue& list) {
  std::vector<std::uint64_t> numbers;
  for (const JsonValue& item : *list.as_array()) numbers.push_back(*item.as_unsigned());
  return numbers;
}

void expect_sizes(std::string_view cut_text) {
  constexpr std::string_view kSizes = "descriptor_sizes_vocab_202048";
  const auto number = [&](std::string_view field) { return vector_number({kSizes, cut_text, field}); };
  const auto numbers = [&](std::string_view field) { return vector_numbers({kSizes, cut_text, field}); };
  const std::uint64_t cut = std::stoull(std::string(cut_text));
  const PortableDescriptor descriptor = descriptor_at(cut);
  EXPECT_EQ(descriptor.states.size(), number("states"));
  EXPECT_EQ(descriptor.bytes_per_state, number("bytes_per_state"));
  EXPECT_EQ(descriptor.restored_bytes, number("restored_bytes"));
  EXPECT_EQ(kv_bytes(cut), number("kv_bytes"));

  const auto schema = realized_cut_schema(descriptor, cut, kRuns);
  ASSERT_EQ(verdict(schema), "ok");
  const RealizedState& swa = schema->states[0];
  const RealizedState& nope = schema->states[6];
  const RealizedState& logits = schema->states[104];
  EXPECT_EQ(swa.complete_physical_bytes, number("swa_state_bytes"));
  EXPECT_EQ(nope.complete_physical_bytes, number("nope_state_bytes"));
  EXPECT_EQ(logits.complete_physical_bytes, number("logits_state_bytes"));
  EXPECT_EQ(range_of(swa), numbers("swa_range"));
  EXPECT_EQ(range_of(nope), numbers("nope_range"));
  EXPECT_EQ(range_of(logits), numbers("logits_range"));
  EXPECT_EQ(nope.chunk_spans.size(), vector_number({kSizes, cut_text, "chunks", "nope_per_state"}));
  EXPECT_EQ(swa.chunk_spans.size(), vector_number({kSizes, cut_text, "chunks", "swa_per_state"}));
  EXPECT_EQ(logits.chunk_spans.size(), vector_number({kSizes, cut_text, "chunks", "logits"}));
  EXPECT_EQ(chunk_count(*schema), vector_number({kSizes, cut_text, "chunks", "total"}));
  const JsonArray& ends = *vector_at({kSizes, cut_text, "nope_first_and_last_span"}).as_array();
  EXPECT_EQ(numbers_of(nope.chunk_spans.front()), numbers_of(ends[0]));
  EXPECT_EQ(numbers_of(nope.chunk_spans.back()), numbers_of(ends[1]));
  EXPECT_EQ(numbers_of(swa.chunk_spans[0]), numbers("swa_span"));
  EXPECT_EQ(numbers_of(logits.chunk_spans[0]), numbers("logits_span"));
  EXPECT_EQ(schema->complete_restored_bytes, number("restored_bytes"));
  EXPECT_EQ(schema->groups.size(), 53u);
  EXPECT_EQ(schema->groups.back().states.size(), 1u);
  EXPECT_EQ(encode_schema(*schema)->size(), number("realized_schema_length"));
  EXPECT_EQ(*realized_cut_schema_id(*schema), vector_id({kSizes, cut_text, "realized_cut_schema_id"}));
}

TEST(MuseRealizedRanges, SizesRangesSpansAndSchemasEqualTheVectors) {
  const JsonObject& cuts = *vector_at({"descriptor_sizes_vocab_202048"}).as_object();
  EXPECT_EQ(cuts.size(), 12u);
  for (const JsonMember& cut : cuts) {
    SCOPED_TRACE(cut.key);
    expect_sizes(cut.key);
  }
}

TEST(MuseRealizedRanges, SmallVocabularyEqualsTheVectors) {
  constexpr std::string_view kName = "realized_schema_vocab_128_cut_256";
  const PortableDescriptor descriptor = descriptor_at(256, 128);
  EXPECT_EQ(descriptor.bytes_per_state, vector_number({kName, "bytes_per_state"}));
  EXPECT_EQ(descriptor.restored_bytes, vector_number({kName, "restored_bytes"}));
  const auto schema = realized_cut_schema(descriptor, 256, kRuns);
  ASSERT_EQ(verdict(schema), "ok");
  EXPECT_EQ(encode_schema(*schema)->size(), vector_number({kName, "length"}));
  EXPECT_EQ(*realized_cut_schema_id(*schema), vector_id({kName, "realized_cut_schema_id"}));
}

TEST(MuseRealizedRanges, DeclarationsEqualTheVectors) {
  const PortableDescriptor descriptor = descriptor_at(4'096);
  const auto realized = realized_states(descriptor, 4'096);
  ASSERT_EQ(verdict(realized), "ok");
  const auto declaration_hex = [&](std::size_t i) {
    return to_hex(
        *encode_state_declaration(state_declaration((*realized)[i], descriptor.states[i].atomic_group)));
  };
  EXPECT_EQ(declaration_hex(0), vector_text({"state_declaration_bytes_cut_4096", "layer0_attn.k"}));
  EXPECT_EQ(declaration_hex(6), vector_text({"state_declaration_bytes_cut_4096", "layer3_attn.k"}));
  EXPECT_EQ(declaration_hex(104), vector_text({"state_declaration_bytes_cut_4096", "logits_vocab_202048"}));
}

// Chunks that end on absolute multiples of 2,048 tokens, the way a store writes them.
TEST(MuseRealizedRanges, AlignedChunkCounts) {
  const auto chunks = [](std::uint64_t cut) {
    const auto schema = realized_cut_schema(descriptor_at(cut), cut, SpanPolicy{});
    return schema.has_value() ? chunk_count(*schema) : 0;
  };
  for (const std::uint64_t cut : {256U, 768U, 2'048U}) EXPECT_EQ(chunks(cut), 105u) << cut;
  EXPECT_EQ(chunks(4'096), 131u);
  EXPECT_EQ(chunks(6'144), 157u);
  EXPECT_EQ(chunks(65'535), 911u);
  EXPECT_EQ(chunks(65'536), 911u);
  EXPECT_EQ(chunks(130'815), 1'743u);
}

TEST(MuseRealizedRanges, ReservationIsPayloadAndOverhead) {
  const PortableDescriptor descriptor = descriptor_at(65'536);
  auto schema = realized_cut_schema(descriptor, 65'536, kRuns);
  ASSERT_EQ(verdict(schema), "ok");
  EXPECT_EQ(*upload_reservation_bytes(*schema),
            955'012'352u + 49'152u * 287 + 8'192u + 2'048u * 105 + 192u * 287);
  schema->complete_restored_bytes = ~std::uint64_t{0};
  EXPECT_EQ(verdict(upload_reservation_bytes(*schema)), "state:descriptor byte size overflow");
}

TEST(MuseRealizedRanges, TailCoverageIsOfAllWindowedStates) {
  const PortableDescriptor descriptor = descriptor_at(4'096);
  const auto realized = realized_states(descriptor, 4'096);
  const TailCoverage coverage = tail_coverage(descriptor, *realized);
  EXPECT_EQ(coverage.size(), 79u);
  EXPECT_EQ(coverage.at({52, "decoder.last_logits"}), 1u);
  EXPECT_EQ(coverage.at({0, "attn.k"}), 2'048u);
  EXPECT_FALSE(coverage.contains({3, "attn.k"}));

  const auto bare = derive_descriptor(muse_prefill_input(test_identity(), 2));
  EXPECT_EQ(tail_coverage(*bare, *realized_states(*bare, 2)).size(), 78u);
  EXPECT_EQ(tail_coverage(*bare, *realized_states(*bare, 2)).at({50, "attn.v"}), 2u);
}

TEST(MuseRealizedRanges, BareDescriptorOf4096TokensHasBothKindsOfRanges) {
  const auto bare = derive_descriptor(muse_prefill_input(test_identity(), 4'096));
  const auto realized = realized_states(*bare, 4'096);
  ASSERT_EQ(verdict(realized), "ok");
  ASSERT_EQ(realized->size(), 104u);
  for (const RealizedState& state : *realized)
    EXPECT_EQ(range_of(state), (is_sliding(state.key.layer) ? std::vector<std::uint64_t>{2'048, 2'048}
                                                            : std::vector<std::uint64_t>{0, 4'096}));
}

template <class Change>
std::string with(Change change, std::uint64_t tokens = 256) {
  PortableDescriptor descriptor = descriptor_at(256, 128);
  change(descriptor);
  return verdict(realized_states(descriptor, tokens));
}

TEST(MuseRealizedRanges, InventoriesMustAgree) {
  constexpr const char* kInventory = "expectation:Muse descriptor state inventories disagree";
  EXPECT_EQ(with([](PortableDescriptor& d) { d.states.pop_back(); }), kInventory);
  EXPECT_EQ(with([](PortableDescriptor& d) { d.family.states.pop_back(); }), kInventory);
  const auto shrink = [](PortableDescriptor& d) {
    d.states.pop_back();
    d.family.states.pop_back();
  };
  EXPECT_EQ(with(shrink), "ok");
  EXPECT_EQ(with([&](PortableDescriptor& d) {
              shrink(d);
              shrink(d);
            }),
            kInventory);
  EXPECT_EQ(with([](PortableDescriptor& d) {
              d.states.push_back(d.states.back());
              d.family.states.push_back(d.family.states.back());
            }),
            kInventory);
  constexpr const char* kOrder = "expectation:Muse descriptor state order is not canonical";
  EXPECT_EQ(with([](PortableDescriptor& d) { std::swap(d.states[0], d.states[1]); }), kOrder);
  // All keys before any geometry.
  EXPECT_EQ(with([](PortableDescriptor& d) {
              d.family.states[0].dtype = DType::kF32;
              std::swap(d.states[103], d.states[104]);
            }),
            kOrder);
}

TEST(MuseRealizedRanges, LogitsHaveOneGeometry) {
  constexpr const char* kDimensions = "expectation:Muse exact logits state has invalid dimensions";
  const auto logits = [](auto change) {
    return with([&](PortableDescriptor& d) { change(d.family.states[104], d.states[104]); });
  };
  EXPECT_EQ(logits([](StaticState& s, ExportDeclaration&) { s.dimensions = {0}; }), kDimensions);
  EXPECT_EQ(logits([](StaticState& s, ExportDeclaration&) { s.dimensions = {0, 128, 1}; }), kDimensions);
  EXPECT_EQ(logits([](StaticState& s, ExportDeclaration&) { s.dimensions = {1, 128}; }), kDimensions);
  EXPECT_EQ(logits([](StaticState& s, ExportDeclaration&) { s.dimensions = {0, 0}; }), kDimensions);
  constexpr const char* kGeometry = "expectation:Muse exact logits state geometry is invalid";
  EXPECT_EQ(logits([](StaticState& s, ExportDeclaration&) { s.dtype = DType::kF16; }), kGeometry);
  EXPECT_EQ(logits([](StaticState& s, ExportDeclaration&) { s.codec = Codec::kLossless; }), kGeometry);
  EXPECT_EQ(logits([](StaticState& s, ExportDeclaration&) { s.codec_version = 2; }), kGeometry);
  EXPECT_EQ(logits([](StaticState& s, ExportDeclaration&) { s.layout = kvpack::Layout::kStrided; }),
            kGeometry);
  EXPECT_EQ(logits([](StaticState& s, ExportDeclaration&) { s.token_axis_rule = TokenAxisRule::kDirect; }),
            kGeometry);
  EXPECT_EQ(logits([](StaticState& s, ExportDeclaration&) { s.token_axis = 1; }), kGeometry);
  EXPECT_EQ(logits([](StaticState& s, ExportDeclaration&) { s.elements_per_token = 127; }), kGeometry);
  EXPECT_EQ(logits([](StaticState& s, ExportDeclaration&) { s.dependencies = {{0, "attn.k"}}; }), kGeometry);
  EXPECT_EQ(logits([](StaticState&, ExportDeclaration& e) { e.strides = {128}; }), kGeometry);
  EXPECT_EQ(logits([](StaticState&, ExportDeclaration& e) { e.atomic_group = 52; }), kGeometry);
}

TEST(MuseRealizedRanges, PlanesHaveTheGeometryOfTheirClass) {
  constexpr const char* kLayer =
      "expectation:Muse descriptor state names a layer outside the registered layout";
  EXPECT_EQ(with([](PortableDescriptor& d) {
              d.family.states[104].key.name = d.states[104].key.name = "decoder.first_logits";
            }),
            kLayer);
  constexpr const char* kGeometry =
      "expectation:Muse descriptor state geometry disagrees with its registered layout class";
  const auto plane = [](auto change) {
    return with([&](PortableDescriptor& d) { change(d.family.states[6], d.states[6]); });
  };
  EXPECT_EQ(with([](PortableDescriptor&) {}, 0), kGeometry);
  EXPECT_EQ(plane([](StaticState& s, ExportDeclaration& e) { s.key.name = e.key.name = "attn.q"; }),
            kGeometry);
  EXPECT_EQ(plane([](StaticState& s, ExportDeclaration&) { s.dtype = DType::kF32; }), kGeometry);
  EXPECT_EQ(plane([](StaticState& s, ExportDeclaration&) { s.token_axis_rule = TokenAxisRule::kTailWindow; }),
            kGeometry);
  EXPECT_EQ(plane([](StaticState& s, ExportDeclaration&) { s.elements_per_token = 512; }), kGeometry);
  EXPECT_EQ(plane([](StaticState& s, ExportDeclaration&) { s.dimensions = {0, 256}; }), kGeometry);
  EXPECT_EQ(plane([](StaticState& s, ExportDeclaration&) { s.codec_version = 2; }), kGeometry);
  EXPECT_EQ(plane([](StaticState& s, ExportDeclaration&) { s.dependencies = {{0, "attn.k"}}; }), kGeometry);
  EXPECT_EQ(plane([](StaticState&, ExportDeclaration& e) { e.strides = {256, 1, 128}; }), kGeometry);
  EXPECT_EQ(plane([](StaticState&, ExportDeclaration& e) { e.atomic_group = 1; }), kGeometry);
  // The windowed class has another rule than the full one.
  EXPECT_EQ(with([](PortableDescriptor& d) { d.family.states[0].token_axis_rule = TokenAxisRule::kDirect; }),
            kGeometry);

  PortableDescriptor descriptor = descriptor_at(256, 128);
  descriptor.family.states[6].dtype = DType::kF32;
  const auto refused = realized_states(descriptor, 256);
  EXPECT_EQ(context_of(refused.error(), "layer"), "3");
  EXPECT_EQ(context_of(refused.error(), "state"), "attn.k");
}

TEST(MuseRealizedRanges, NumbersThatDoNotFitAreRefused) {
  EXPECT_EQ(with([](PortableDescriptor&) {}, ~std::uint64_t{0}), "state:descriptor byte size overflow");
  // One token's logits must fit one chunk.
  PortableDescriptor wide = descriptor_at(256, 1'048'576);
  EXPECT_EQ(verdict(realized_cut_schema(wide, 256, kRuns)), "ok");
  wide.family.states[104].dimensions[1] = wide.family.states[104].elements_per_token = 1'048'577;
  wide.states[104].strides = {1'048'577, 1};
  EXPECT_EQ(verdict(realized_cut_schema(wide, 256, kRuns)),
            "state:one logical state token does not fit in a bounded chunk");
  // What the span policy refuses is refused here.
  EXPECT_EQ(verdict(realized_cut_schema(descriptor_at(256, 128), 256, {.grain_tokens = 100})),
            "state:span grain must be a multiple of 256 tokens");
}

}  // namespace
}  // namespace kvpack::muse::realized_ranges_test
