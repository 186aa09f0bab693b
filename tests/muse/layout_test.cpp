#include "kvpack/muse/layout.h"

#include "muse/muse_vectors.h"
#include "support/verdict.h"

namespace kvpack::muse::layout_test {
namespace {

using kvpack::testing::verdict;
using testing::vector_numbers;

const Layout& muse() {
  return **registered_layout("muse-glimmer-30b");
}

std::vector<std::uint64_t> layers_of(const Layout& layout, std::uint32_t wanted) {
  std::vector<std::uint64_t> layers;
  const auto classes = class_of_layer(layout);
  for (std::uint32_t layer = 0; layer < classes.size(); ++layer)
    if (classes[layer] == wanted) layers.push_back(layer);
  return layers;
}

TEST(MuseLayout, RegistryHoldsFourLayoutsInOrder) {
  std::vector<std::string> names;
  for (const Layout& layout : registered_layouts()) names.push_back(layout.name);
  EXPECT_EQ(names,
            (std::vector<std::string>{"qwen2.5-7b", "gpt-oss-120b", "gemma4-31b", "muse-glimmer-30b"}));
  EXPECT_EQ(verdict(registered_layout("muse-glimmer-30B")),
            "expectation:portable prefill layout is outside the registered v2 layouts");
  EXPECT_EQ(verdict(registered_layout("")),
            "expectation:portable prefill layout is outside the registered v2 layouts");
}

TEST(MuseLayout, EveryRegisteredLayoutIsAValidPartitionWithValidRotations) {
  for (const Layout& layout : registered_layouts()) {
    EXPECT_EQ(verdict(validate_owned_layout(layout)), "ok") << layout.name;
    for (const LayoutClass& c : layout.classes) EXPECT_EQ(verdict(validate_rope(c)), "ok") << layout.name;
    EXPECT_EQ(registry_name(layout), layout.name);
  }
}

// Three ways of saying which layers slide: the vectors, the classes of the table, and the rule of the
// geometry.
TEST(MuseLayout, SlidingLayersAreTheSameInTableGeometryAndVectors) {
  EXPECT_EQ(layers_of(muse(), 0), vector_numbers({"muse_layers", "swa"}));
  EXPECT_EQ(layers_of(muse(), 1), vector_numbers({"muse_layers", "nope"}));
  const auto classes = class_of_layer(muse());
  ASSERT_EQ(classes.size(), kLayers);
  std::uint32_t sliding = 0;
  for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
    const LayoutClass& c = muse().classes[classes[layer]];
    EXPECT_EQ(is_sliding(layer), c.window_tokens == kWindowTokens) << layer;
    EXPECT_EQ(is_sliding(layer), c.rope_convention == RopeConvention::kInterleaved) << layer;
    sliding += is_sliding(layer) ? 1 : 0;
  }
  EXPECT_EQ(sliding, kSlidingLayers);
  // What the windowed class excepts is what the full class covers.
  std::vector<std::uint64_t> excepted(muse().classes[0].except.begin(), muse().classes[0].except.end());
  EXPECT_EQ(excepted, layers_of(muse(), 1));
  EXPECT_EQ(excepted.size(), kNoPeLayers);
}

TEST(MuseLayout, NoPeClassHasAllZeroBaseBits) {
  EXPECT_EQ(muse().classes[1].rope_base_bits, 0u);
  EXPECT_EQ(muse().classes[1].rope_dims, 0u);
  EXPECT_EQ(muse().classes[0].rope_base(), 500'000.0);
}

TEST(MuseLayout, StateNamesDependOnTheLabelAlone) {
  LayoutClass c = muse().classes[0];
  EXPECT_EQ(std::vector<std::string_view>(state_names(c).begin(), state_names(c).end()),
            (std::vector<std::string_view>{"attn.k", "attn.v"}));
  c.label = "mla-latent";
  EXPECT_EQ(std::vector<std::string_view>(state_names(c).begin(), state_names(c).end()),
            (std::vector<std::string_view>{"attn.kv_latent"}));
  EXPECT_EQ(rope_convention_label(RopeConvention::kNeox), "neox");
  EXPECT_EQ(rope_convention_label(RopeConvention::kInterleaved), "interleaved");
  EXPECT_EQ(rope_convention_label(RopeConvention::kNone), "none");
}

constexpr const char* kBounds =
    "expectation:portable prefill v2 owned layout class bounds are outside the v2 bounds";

TEST(MuseLayout, OwnedLayoutsAreRefusedInOrder) {
  const auto with = [](auto change) {
    Layout layout = muse();
    change(layout);
    return verdict(validate_owned_layout(layout));
  };
  constexpr const char* kNothing = "expectation:portable prefill v2 owned layout has no layers or no classes";
  EXPECT_EQ(with([](Layout& l) { l.num_layers = 0; }), kNothing);
  EXPECT_EQ(with([](Layout& l) { l.classes.clear(); }), kNothing);
  EXPECT_EQ(with([](Layout& l) { l.classes[1].from = l.classes[1].until; }), kBounds);
  EXPECT_EQ(with([](Layout& l) { l.classes[1].until = 53; }), kBounds);
  EXPECT_EQ(with([](Layout& l) { l.classes[1].step = 0; }), kBounds);
  EXPECT_EQ(with([](Layout& l) { l.classes[1].kv_heads = 0; }), kBounds);
  EXPECT_EQ(with([](Layout& l) { l.classes[1].head_dim = 0; }), kBounds);
  EXPECT_EQ(with([](Layout& l) { l.classes[1].label.clear(); }), kBounds);
  EXPECT_EQ(with([](Layout& l) { l.classes[1].label.assign(kMaxLayoutLabelBytes + 1, 'x'); }), kBounds);
  EXPECT_EQ(with([](Layout& l) { l.classes[1].rope_scaling.assign(kMaxLayoutLabelBytes + 1, 'x'); }),
            kBounds);
  EXPECT_EQ(with([](Layout& l) { l.classes[1].except = {2}; }), kBounds);
  EXPECT_EQ(with([](Layout& l) { l.classes[1].except = {52}; }), kBounds);
  EXPECT_EQ(with([](Layout& l) { l.num_layers = kMaxLayoutLayers + 1; }), kBounds);

  constexpr const char* kOverlap = "expectation:portable prefill v2 owned layout classes overlap";
  EXPECT_EQ(with([](Layout& l) { l.classes[0].except.pop_back(); }), kOverlap);
  // The first class that is out of bounds comes before a later overlap, and an overlap before a bad latent.
  EXPECT_EQ(with([](Layout& l) {
              l.classes[0].head_dim = 0;
              l.classes[0].except.clear();
            }),
            kBounds);
  EXPECT_EQ(with([](Layout& l) {
              l.classes[0].except.pop_back();
              l.classes[1].label = "mla-latent";
            }),
            kOverlap);

  constexpr const char* kLatent =
      "expectation:portable prefill v2 mla-latent class must be a single-vector full-coverage record";
  EXPECT_EQ(with([](Layout& l) { l.classes[1].label = "mla-latent"; }), kLatent);
  EXPECT_EQ(with([](Layout& l) {
              l.classes[1].label = "mla-latent";
              l.classes[1].kv_heads = 1;
              l.classes[1].window_tokens = 1;
            }),
            kLatent);
  EXPECT_EQ(with([](Layout& l) {
              l.classes[1].label = "mla-latent";
              l.classes[1].kv_heads = 1;
            }),
            "ok");

  constexpr const char* kPartition =
      "expectation:portable prefill v2 owned layout classes do not partition the layer range";
  EXPECT_EQ(with([](Layout& l) { l.classes.pop_back(); }), kPartition);
  EXPECT_EQ(with([](Layout& l) { l.num_layers = 53; }), kPartition);
}

// A class near the top of u32 ends; what is too long for a family is refused before anything is as long as
// it.
TEST(MuseLayout, HugeLayerNumbersEnd) {
  Layout layout{"huge", 0xffffffffU, {muse().classes[1]}};
  layout.classes[0].from = 0xfffffff0U;
  layout.classes[0].until = 0xffffffffU;
  layout.classes[0].step = 0xffffffffU;
  EXPECT_EQ(verdict(validate_owned_layout(layout)), kBounds);
  layout.num_layers = kMaxLayoutLayers;
  layout.classes[0].from = 0;
  layout.classes[0].until = kMaxLayoutLayers;
  layout.classes[0].step = 0xffffffffU;
  EXPECT_EQ(verdict(validate_owned_layout(layout)),
            "expectation:portable prefill v2 owned layout classes do not partition the layer range");
  layout.classes[0].step = 1;
  EXPECT_EQ(verdict(validate_owned_layout(layout)), "ok");
}

TEST(MuseLayout, RotationOfNoPeClassesIsNothing) {
  constexpr const char* kNoPe =
      "expectation:NoPE class (rope_convention None) must have freq_base 0 and dimension_count 0";
  LayoutClass c = muse().classes[1];
  c.rope_base_bits = std::bit_cast<std::uint64_t>(10'000.0);
  EXPECT_EQ(verdict(validate_rope(c)), kNoPe);
  c = muse().classes[1];
  c.rope_dims = 2;
  EXPECT_EQ(verdict(validate_rope(c)), kNoPe);
  c.rope_base_bits = std::bit_cast<std::uint64_t>(std::nan(""));
  c.rope_dims = 0;
  EXPECT_EQ(verdict(validate_rope(c)), kNoPe);
  // Compared as a number, so negative zero passes; and nothing else is looked at.
  c.rope_base_bits = std::bit_cast<std::uint64_t>(-0.0);
  c.rope_scaling = "not a label";
  EXPECT_EQ(verdict(validate_rope(c)), "ok");
}

TEST(MuseLayout, RotationOfRotatingClassesIsBounded) {
  const auto with = [](auto change) {
    LayoutClass c = muse().classes[0];
    change(c);
    return verdict(validate_rope(c));
  };
  constexpr const char* kBase =
      "expectation:portable prefill v2 rope freq_base is outside the supported bounds";
  for (const double base : {1.0, 0.0, -500'000.0, std::numeric_limits<double>::infinity(), std::nan("")})
    EXPECT_EQ(with([&](LayoutClass& c) { c.rope_base_bits = std::bit_cast<std::uint64_t>(base); }), kBase)
        << base;
  constexpr const char* kDims =
      "expectation:portable prefill v2 rope dimension_count is outside the v2 bounds";
  for (const std::uint32_t dims : {0U, 1U, 3U, 130U})
    EXPECT_EQ(with([&](LayoutClass& c) { c.rope_dims = dims; }), kDims) << dims;
  EXPECT_EQ(with([](LayoutClass& c) { c.rope_dims = 2; }), "ok");
  EXPECT_EQ(with([](LayoutClass& c) { c.rope_scaling = "yarn:32.0"; }),
            "expectation:portable prefill v2 rope scaling label is not canonical");
  EXPECT_EQ(with([](LayoutClass& c) {
              c.rope_dims = 3;
              c.rope_scaling = "";
            }),
            kDims);
}

TEST(MuseLayout, ScalingLabelsAreShortestDecimalsWithoutExponent) {
  EXPECT_EQ(canonical_scaling_label("yarn", 32.0), "yarn:32");
  EXPECT_EQ(canonical_scaling_label("linear", 0.5), "linear:0.5");
  EXPECT_EQ(canonical_scaling_label("ntk", 1e21), "ntk:1000000000000000000000");
  EXPECT_EQ(canonical_scaling_label("ntk", 1e23), "ntk:100000000000000000000000");
  EXPECT_EQ(canonical_scaling_label("ntk", 1.5e-7), "ntk:0.00000015");
  EXPECT_EQ(canonical_scaling_label("linear", static_cast<double>(1.1F)), "linear:1.100000023841858");
  EXPECT_EQ(canonical_scaling_label("linear", 123456.789), "linear:123456.789");
  EXPECT_EQ(canonical_scaling_label("linear", 1e-300).size(), 7u + 302u);
  EXPECT_EQ(canonical_scaling_label("longrope", 32.0), "");
  for (const double factor : {0.0, -0.0, -1.0, std::numeric_limits<double>::infinity(), std::nan("")})
    EXPECT_EQ(canonical_scaling_label("yarn", factor), "") << factor;
}

// Any number comes back from its label, which is the one text that is taken for it.
TEST(MuseLayout, ScalingLabelsSayExactlyOneNumber) {
  std::uint64_t state = 1;
  for (int i = 0; i < 5'000; ++i) {
    state = state * 6'364'136'223'846'793'005u + 1'442'695'040'888'963'407u;
    const double factor = std::bit_cast<double>(state & ~(std::uint64_t{1} << 63));
    const std::string label = canonical_scaling_label("yarn", factor);
    if (!std::isfinite(factor) || factor == 0.0) {
      EXPECT_EQ(label, "");
      continue;
    }
    EXPECT_EQ(std::strtod(label.c_str() + 5, nullptr), factor) << label;
    EXPECT_EQ(label.find_first_not_of("0123456789.", 5), std::string::npos) << label;
    EXPECT_TRUE(is_canonical_scaling_label(label)) << label;
    EXPECT_FALSE(is_canonical_scaling_label(label + (label.find('.') == std::string::npos ? ".0" : "0")))
        << label;
    EXPECT_FALSE(is_canonical_scaling_label("yarn:0" + label.substr(5))) << label;
  }
}

TEST(MuseLayout, OnlyCanonicalScalingLabelsAreTaken) {
  for (const std::string good : {"none", "yarn:32", "linear:0.5", "ntk:1000000000000000000000",
                                 "linear:1.100000023841858", "yarn:0.1", "ntk:4.9"})
    EXPECT_TRUE(is_canonical_scaling_label(good)) << good;
  for (const double factor : {5e-324, std::numeric_limits<double>::max(), 0.1 + 0.2, 1.0 / 3.0})
    EXPECT_TRUE(is_canonical_scaling_label(canonical_scaling_label("ntk", factor))) << factor;
  for (const std::string bad : {"",
                                "None",
                                "none ",
                                "yarn",
                                "yarn:",
                                "yarn:32.0",
                                "yarn:032",
                                "yarn:+32",
                                "yarn: 32",
                                "yarn:32 ",
                                "yarn:3.2e1",
                                "yarn:.5",
                                "yarn:5.",
                                "yarn:-1",
                                "yarn:0",
                                "yarn:inf",
                                "yarn:nan",
                                "YARN:32",
                                "longrope:4",
                                "yarn:0x20",
                                "yarn:1e999",
                                "none:1",
                                ":32",
                                "linear:1.1000000238418580",
                                "linear:1.10000002384185791"})
    EXPECT_FALSE(is_canonical_scaling_label(bad)) << bad;
  EXPECT_FALSE(is_canonical_scaling_label("yarn:1" + std::string(2'000, '0')));
}

// A layout of somebody's is the registered one when it equals it in every field but the name.
TEST(MuseLayout, RegistryNameComparesEveryField) {
  Layout owned = muse();
  owned.name = "of a file";
  EXPECT_EQ(registry_name(owned), "muse-glimmer-30b");
  const auto with = [&](auto change) {
    Layout layout = owned;
    change(layout);
    return registry_name(layout);
  };
  EXPECT_EQ(with([](Layout& l) { l.num_layers = 51; }), "");
  EXPECT_EQ(with([](Layout& l) { std::swap(l.classes[0], l.classes[1]); }), "");
  EXPECT_EQ(with([](Layout& l) { l.classes.pop_back(); }), "");
  EXPECT_EQ(with([](Layout& l) { l.classes[1].label = "gqa"; }), "");
  EXPECT_EQ(with([](Layout& l) { l.classes[1].from = 7; }), "");
  EXPECT_EQ(with([](Layout& l) { l.classes[0].until = 51; }), "");
  EXPECT_EQ(with([](Layout& l) { l.classes[1].step = 8; }), "");
  EXPECT_EQ(with([](Layout& l) { l.classes[0].except.pop_back(); }), "");
  EXPECT_EQ(with([](Layout& l) { l.classes[0].kv_heads = 4; }), "");
  EXPECT_EQ(with([](Layout& l) { l.classes[0].head_dim = 64; }), "");
  EXPECT_EQ(with([](Layout& l) { l.classes[0].window_tokens = 2'047; }), "");
  EXPECT_EQ(with([](Layout& l) { l.classes[1].rope_base_bits = std::bit_cast<std::uint64_t>(-0.0); }), "");
  EXPECT_EQ(with([](Layout& l) { l.classes[0].rope_dims = 64; }), "");
  EXPECT_EQ(with([](Layout& l) { l.classes[0].rope_scaling = "yarn:2"; }), "");
  EXPECT_EQ(with([](Layout& l) { l.classes[0].rope_convention = RopeConvention::kNeox; }), "");
}

// Window starts at cuts that are multiples of 256 are multiples of 256 too.
TEST(MuseLayout, WindowsOfAlignedCutsBeginAligned) {
  for (std::uint64_t n = 2'048; n <= 131'072; n += 256)
    EXPECT_EQ((n - std::min<std::uint64_t>(n, kWindowTokens)) % kBlockTokens, 0u) << n;
}

}  // namespace
}  // namespace kvpack::muse::layout_test
