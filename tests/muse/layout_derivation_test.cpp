#include "kvpack/muse/layout_derivation.h"

#include <gtest/gtest.h>

#include <limits>

#include "support/gguf_writer.h"
#include "support/verdict.h"

namespace kvpack::muse::layout_derivation_test {
namespace {

using namespace kvpack::testing;

GgufWriter qwen() {
  GgufWriter file;
  file.string("general.architecture", "qwen2").string("general.name", "Qwen2.5 7B");
  file.u32("qwen2.block_count", 28).u32("qwen2.embedding_length", 3584);
  file.u32("qwen2.attention.head_count", 28).u32("qwen2.attention.head_count_kv", 4);
  file.f32("qwen2.rope.freq_base", 1'000'000.0F);
  return file;
}

GgufWriter deepseek() {
  GgufWriter file;
  file.string("general.architecture", "deepseek2").u32("deepseek2.block_count", 3);
  file.u32("deepseek2.attention.kv_lora_rank", 16).u32("deepseek2.attention.qk_rope_head_dim", 4);
  file.f32("deepseek2.rope.freq_base", 10'000.0F);
  return file;
}

Result<Layout> derived(const GgufWriter& writer, Result<Layout> (*derive)(const GgufFile&)) {
  const Bytes bytes = writer.finish();
  SpanSource source(bytes);
  KVPACK_TRY_ASSIGN(const GgufFile file, GgufFile::open(source, is_model_key));
  return derive(file);
}

std::string refusal(const GgufWriter& writer) {
  return verdict(derived(writer, derive_layout));
}
std::string mla_refusal(const GgufWriter& writer) {
  return verdict(derived(writer, derive_mla_layout));
}

const std::string kLayout = "expectation:gguf layout underivable: ";
const std::string kMla = "expectation:gguf mla layout underivable: ";
const std::string kRope = "expectation:gguf rope config underivable: ";

TEST(LayoutDerivation, ARegisteredModelDerivesToItsRegisteredLayout) {
  const auto layout = derived(qwen(), derive_layout);
  ASSERT_EQ(verdict(layout), "ok");
  EXPECT_EQ(layout->name, "Qwen2.5 7B");
  EXPECT_EQ(registry_name(*layout), "qwen2.5-7b");
  EXPECT_EQ(layout->classes, (*registered_layout("qwen2.5-7b"))->classes);
  EXPECT_EQ(verdict(validate_owned_layout(*layout)), "ok");
}

TEST(LayoutDerivation, TheArchitectureNamesWhatHasNoName) {
  EXPECT_EQ(derived(qwen().erase("general.name"), derive_layout)->name, "qwen2");
  EXPECT_EQ(derived(qwen().string("general.name", ""), derive_layout)->name, "qwen2");
}

TEST(LayoutDerivation, ExplicitHeadsCountBeforeTheWidth) {
  GgufWriter file = qwen();
  file.u64("qwen2.attention.key_length", 64).i32("qwen2.attention.value_length", 64);
  const auto layout = derived(file, derive_layout);
  ASSERT_EQ(verdict(layout), "ok");
  EXPECT_EQ(layout->classes[0].head_dim, 64U);
  EXPECT_EQ(layout->classes[0].rope_dims, 64U);
  EXPECT_EQ(registry_name(*layout), "");
}

TEST(LayoutDerivation, KvHeadsMayBeAListOfOneNumber) {
  GgufWriter file = qwen();
  const std::string key = "qwen2.attention.head_count_kv";
  file.array(key, GgufType::kI32, std::vector<std::uint32_t>(28, 4));
  EXPECT_EQ(registry_name(*derived(file, derive_layout)), "qwen2.5-7b");
  const std::string per_layer = kLayout + "per-layer attention.head_count_kv requires a sidecar descriptor";
  EXPECT_EQ(refusal(file.array(key, GgufType::kU32, std::vector<std::uint32_t>{4, 4, 2})), per_layer);
  EXPECT_EQ(refusal(file.array(key, GgufType::kU32, std::vector<std::uint32_t>{})), per_layer);
  EXPECT_EQ(refusal(file.array(key, GgufType::kU8, std::vector<std::uint8_t>(70'000, 4))), per_layer)
      << "more than is kept";
  const std::string no_integers = kLayout + "attention.head_count_kv is not an integer array";
  EXPECT_EQ(refusal(file.strings(key, {"4"})), no_integers);
  EXPECT_EQ(refusal(file.array(key, GgufType::kF32, std::vector<std::uint32_t>{4})), no_integers);
  EXPECT_EQ(refusal(file.array(key, GgufType::kI32, std::vector<std::uint32_t>{4, 0xffffffff})), no_integers);
  EXPECT_EQ(refusal(file.array(key, GgufType::kU32, std::vector<std::uint32_t>{0, 0})),
            kLayout + "attention.head_count_kv is zero");
}

TEST(LayoutDerivation, RefusesInTheOrderOfTheDocument) {
  // Each row repairs what the row before was refused for.
  GgufWriter file;
  EXPECT_EQ(refusal(file), kLayout + "general.architecture is missing");
  file.u32("general.architecture", 1);
  EXPECT_EQ(refusal(file), kLayout + "general.architecture is missing");
  file.string("general.architecture", "qwen3").u32("qwen3.attention.sliding_window", 1);
  EXPECT_EQ(refusal(file), kLayout + "hybrid sliding-window geometry requires a sidecar descriptor");
  file.erase("qwen3.attention.sliding_window");
  EXPECT_EQ(refusal(file), kLayout + "architecture is outside the derivation allowlist");
  file.string("general.architecture", "llama");
  const std::string missing = kLayout + "a required geometry key is missing or not an integer";
  const std::string no_integer = kLayout + "a geometry key is not an integer";
  EXPECT_EQ(refusal(file), missing);
  EXPECT_EQ(refusal(file.f32("llama.block_count", 2)), no_integer);
  file.u32("llama.block_count", 4097);
  EXPECT_EQ(refusal(file), missing);
  EXPECT_EQ(refusal(file.string("llama.attention.head_count", "8")), no_integer);
  EXPECT_EQ(refusal(file.u32("llama.attention.head_count", 0)), kLayout + "attention.head_count is zero");
  file.u32("llama.attention.head_count", 8);
  EXPECT_EQ(refusal(file), kLayout + "attention.head_count_kv is missing");
  EXPECT_EQ(refusal(file.i32("llama.attention.head_count_kv", -2)),
            kLayout + "attention.head_count_kv is not an integer");
  EXPECT_EQ(refusal(file.u32("llama.attention.head_count_kv", 0)),
            kLayout + "attention.head_count_kv is zero");
  file.u64("llama.attention.head_count_kv", std::uint64_t{1} << 32);
  EXPECT_EQ(refusal(file), missing);
  EXPECT_EQ(refusal(file.f32("llama.embedding_length", 1)), no_integer);
  EXPECT_EQ(refusal(file.u32("llama.embedding_length", 100)),
            kLayout + "embedding_length is not divisible by attention.head_count");
  EXPECT_EQ(refusal(file.string("llama.attention.key_length", "x")), no_integer);
  file.u32("llama.attention.key_length", 0);
  EXPECT_EQ(refusal(file.f32("llama.attention.value_length", 1)), no_integer);
  EXPECT_EQ(refusal(file.u32("llama.attention.value_length", 1)),
            kLayout + "key_length and value_length differ");
  const std::string bounds = kLayout + "geometry is outside the v2 bounds";
  EXPECT_EQ(refusal(file.u32("llama.attention.value_length", 0)), bounds);
  file.u32("llama.attention.key_length", 64).u32("llama.attention.value_length", 64);
  EXPECT_EQ(refusal(file), bounds);
  EXPECT_EQ(refusal(file.u32("llama.block_count", 0)), bounds);
  EXPECT_EQ(refusal(file.u32("llama.block_count", 4096)), bounds) << "KV heads";
  file.u32("llama.attention.head_count_kv", 8);
  EXPECT_EQ(refusal(file), kRope + "rope.freq_base is missing");
  file.f32("llama.rope.freq_base", 10'000.0F);
  EXPECT_EQ(refusal(file), "ok");
  file.u64("llama.attention.key_length", std::uint64_t{1} << 32)
      .u64("llama.attention.value_length", std::uint64_t{1} << 32);
  EXPECT_EQ(refusal(file), bounds);
}

TEST(LayoutDerivation, WindowsNeedASidecar) {
  const std::string hybrid = kLayout + "hybrid sliding-window geometry requires a sidecar descriptor";
  for (const char* key : {"attention.sliding_window", "attention.sliding_window_pattern",
                          "attention.key_length_swa", "rope.freq_base_swa", "attention.other.sliding_window"})
    EXPECT_EQ(refusal(qwen().u32(std::string("qwen2.") + key, 0)), hybrid) << key;
  for (const char* key :
       {"rope.sliding_window", "sliding_window", "attention.swa", "attention.sliding_windows"})
    EXPECT_EQ(refusal(qwen().u32(std::string("qwen2.") + key, 0)), "ok") << key;
  EXPECT_EQ(refusal(qwen().u32("llama.attention.sliding_window", 0)), "ok") << "another architecture's";
  EXPECT_EQ(refusal(small_muse_model()), hybrid);
}

TEST(LayoutDerivation, RotationIsReadOrRefused) {
  const auto with = [](auto change) {
    GgufWriter file = qwen();
    change(file);
    return refusal(file);
  };
  const std::string base = "qwen2.rope.freq_base";
  EXPECT_EQ(with([&](GgufWriter& f) { f.u32(base, 10'000); }), kRope + "rope.freq_base is not a float");
  for (const float value :
       {1.0F, -5.0F, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()})
    EXPECT_EQ(with([&](GgufWriter& f) { f.f32(base, value); }),
              kRope + "rope.freq_base is outside the supported bounds");
  const std::string dims = "qwen2.rope.dimension_count";
  EXPECT_EQ(with([&](GgufWriter& f) { f.f32(dims, 64); }), kRope + "rope.dimension_count is not an integer");
  for (const std::uint32_t value : {0U, 1U, 63U, 130U})
    EXPECT_EQ(with([&](GgufWriter& f) { f.u32(dims, value); }),
              kRope + "rope.dimension_count is outside the v2 bounds");
  EXPECT_EQ(with([&](GgufWriter& f) { f.u32(dims, 64); }), "ok");
  const std::string type = "qwen2.rope.scaling.type";
  const std::string factor = "qwen2.rope.scaling.factor";
  EXPECT_EQ(with([&](GgufWriter& f) { f.f32(factor, 4); }),
            kRope + "rope.scaling.factor requires a scaling type");
  EXPECT_EQ(with([&](GgufWriter& f) { f.u32(type, 1); }), kRope + "rope.scaling.type is not a string");
  EXPECT_EQ(with([&](GgufWriter& f) { f.string(type, "yarn"); }), kRope + "rope.scaling.factor is missing");
  EXPECT_EQ(with([&](GgufWriter& f) { f.string(type, "yarn").u32(factor, 4); }),
            kRope + "rope.scaling.factor is not a float");
  const std::string open_set = kRope + "rope.scaling is outside the closed canonical set";
  EXPECT_EQ(with([&](GgufWriter& f) { f.string(type, "longrope").f32(factor, 4); }), open_set);
  EXPECT_EQ(with([&](GgufWriter& f) { f.string(type, "none").f32(factor, 1); }), open_set);
  EXPECT_EQ(with([&](GgufWriter& f) { f.string(type, "yarn").f32(factor, 0); }), open_set);
}

TEST(LayoutDerivation, FactorsAreWidenedBeforeTheyBecomeALabel) {
  GgufWriter file = qwen();
  file.string("qwen2.rope.scaling.type", "linear").f32("qwen2.rope.scaling.factor", 1.1F);
  EXPECT_EQ(derived(file, derive_layout)->classes[0].rope_scaling, "linear:1.100000023841858");
  file.f64("qwen2.rope.scaling.factor", 0.5).f64("qwen2.rope.freq_base", 12.5);
  const auto layout = derived(file, derive_layout);
  EXPECT_EQ(layout->classes[0].rope_scaling, "linear:0.5");
  EXPECT_EQ(layout->classes[0].rope_base(), 12.5);
}

TEST(LayoutDerivation, LatentsAreOneRecordPerToken) {
  const auto layout = derived(deepseek(), derive_mla_layout);
  ASSERT_EQ(verdict(layout), "ok");
  const Layout wanted{"deepseek2",
                      3,
                      {{.label = "mla-latent",
                        .from = 0,
                        .until = 3,
                        .step = 1,
                        .kv_heads = 1,
                        .head_dim = 20,
                        .rope_base_bits = std::bit_cast<std::uint64_t>(10'000.0),
                        .rope_dims = 4,
                        .rope_convention = RopeConvention::kNeox}}};
  EXPECT_EQ(*layout, wanted);
  EXPECT_EQ(verdict(validate_owned_layout(*layout)), "ok");
  GgufWriter other = deepseek();
  other.u32("deepseek2.rope.dimension_count", 2);
  EXPECT_EQ(derived(other, derive_mla_layout)->classes[0].rope_dims, 2U);
}

TEST(LayoutDerivation, LatentsAreRefusedInTheOrderOfTheDocument) {
  GgufWriter file;
  EXPECT_EQ(mla_refusal(file), kMla + "general.architecture is missing");
  file.string("general.architecture", "deepseek3");
  EXPECT_EQ(mla_refusal(file), kMla + "not an MLA model (attention.kv_lora_rank is missing)");
  const std::string no_integer = kMla + "a geometry key is not an integer";
  EXPECT_EQ(mla_refusal(file.f32("deepseek3.attention.kv_lora_rank", 1)), no_integer);
  file.u64("deepseek3.attention.kv_lora_rank", ~std::uint64_t{0});
  EXPECT_EQ(mla_refusal(file), kMla + "not an MLA model (attention.qk_rope_head_dim is missing)");
  EXPECT_EQ(mla_refusal(file.f32("deepseek3.attention.qk_rope_head_dim", 1)), no_integer);
  file.u32("deepseek3.attention.qk_rope_head_dim", 1);
  EXPECT_EQ(mla_refusal(file), kMla + "block_count is missing");
  EXPECT_EQ(mla_refusal(file.f32("deepseek3.block_count", 1)), no_integer);
  file.u32("deepseek3.block_count", 2);
  EXPECT_EQ(mla_refusal(file), kMla + "latent record dim overflows");
  const std::string bounds = kMla + "geometry is outside the v2 bounds";
  const auto with = [&](std::uint64_t rank, std::uint64_t rope, std::uint64_t layers) {
    file.u64("deepseek3.attention.kv_lora_rank", rank).u64("deepseek3.attention.qk_rope_head_dim", rope);
    file.u64("deepseek3.block_count", layers);
    return mla_refusal(file);
  };
  EXPECT_EQ(with(0, 4, 2), bounds);
  EXPECT_EQ(with(65'537, 4, 2), bounds);
  EXPECT_EQ(with(16, 0, 2), bounds);
  EXPECT_EQ(with(16, 1025, 2), bounds);
  EXPECT_EQ(with(16, 4, 0), bounds);
  EXPECT_EQ(with(16, 4, std::uint64_t{1} << 32), bounds);
  EXPECT_EQ(with(65'536, 1024, 2), kRope + "rope.freq_base is missing");
  file.f32("deepseek3.rope.freq_base", 10'000.0F);
  EXPECT_EQ(mla_refusal(file), kRope + "architecture has no pinned rope convention");
}

TEST(LayoutDerivation, AnAbsurdNumberOfLatentLayersIsRefusedBeforeItIsUsed) {
  GgufWriter file = deepseek();
  file.u32("deepseek2.block_count", 0xffffffff);
  const auto layout = derived(file, derive_mla_layout);
  ASSERT_EQ(verdict(layout), "ok");
  EXPECT_EQ(verdict(validate_owned_layout(*layout)),
            "expectation:portable prefill v2 owned layout class bounds are outside the v2 bounds");
}

}  // namespace
}  // namespace kvpack::muse::layout_derivation_test
