#include "kvpack/muse/prefill_descriptor.h"

#include "muse/muse_vectors.h"
#include "support/verdict.h"

namespace kvpack::muse::prefill_descriptor_test {
namespace {

using kvpack::testing::verdict;
using testing::vector_at;
using testing::vector_id;
using testing::vector_number;
using testing::vector_text;

// registry_fixture_input of the vectors.
PrefillInput fixture_input(std::string_view layout_name) {
  const auto text = [](std::string_view name) { return vector_text({"registry_fixture_input", name}); };
  const auto id = [](std::string_view name) { return vector_id({"registry_fixture_input", name}); };
  const auto number = [](std::string_view name) {
    return static_cast<std::uint32_t>(vector_number({"registry_fixture_input", name}));
  };
  return {.identity = {.model_sha256 = id("model_sha256"),
                       .adapter_sha256 = id("adapter_sha256"),
                       .tokenizer_sha256 = id("tokenizer_sha256"),
                       .chat_template_sha256 = id("chat_template_sha256"),
                       .context_policy_sha256 = id("context_policy_sha256"),
                       .model_revision = text("model_revision"),
                       .tokenizer_revision = text("tokenizer_revision"),
                       .weight_precision = text("weight_precision")},
          .producer_engine_abi = text("producer_engine_abi"),
          .consumer_engine_abi = text("consumer_engine_abi"),
          .portable_abi = text("portable_abi"),
          .compute_precision = text("compute_precision"),
          .kv_precision = text("kv_precision"),
          .cached_token_count = number("cached_token_count"),
          .max_context_tokens = number("max_context_tokens"),
          .layout_name = std::string(layout_name)};
}

RotationKernelPin reference_pin() {
  return {"ferrite-metal", "rope_store_kv_batch_cached", "f32-k-in-f16-cache", RopeConvention::kNeox};
}

Layout mla_layout() {
  return {"mla-fixture",
          3,
          {{.label = "mla-latent",
            .from = 0,
            .until = 3,
            .kv_heads = 1,
            .head_dim = 20,
            .rope_base_bits = std::bit_cast<std::uint64_t>(10'000.0),
            .rope_dims = 4,
            .rope_convention = RopeConvention::kNeox}}};
}

void expect_fixture(const Result<PortableDescriptor>& derived, std::string_view name) {
  ASSERT_EQ(verdict(derived), "ok") << name;
  const auto number = [&](std::string_view field) {
    return vector_number({"registry_fixture", name, field});
  };
  const auto id = [&](std::string_view field) { return vector_id({"registry_fixture", name, field}); };
  EXPECT_EQ(derived->family.states.size(), number("states")) << name;
  EXPECT_EQ(derived->states.size(), number("states")) << name;
  EXPECT_EQ(derived->bytes_per_state, number("bytes_per_state")) << name;
  EXPECT_EQ(derived->restored_bytes, number("restored_bytes")) << name;
  EXPECT_EQ(derived->family.engine_cache_abi, id("engine_cache_abi")) << name;
  EXPECT_EQ(derived->family.topology, id("topology")) << name;
  EXPECT_EQ(derived->family.shard_map, id("shard_map")) << name;
  EXPECT_EQ(IdentifiedFamily::create(derived->family)->id(), id("representation_family_id")) << name;
  EXPECT_EQ(semantic_model_id(derived->semantic_model), id("semantic_model_id")) << name;
}

TEST(PrefillDescriptor, RegisteredLayoutsEqualTheVectors) {
  for (const Layout& layout : registered_layouts())
    expect_fixture(derive_descriptor(fixture_input(layout.name)), layout.name);
}

TEST(PrefillDescriptor, TransformAndPinEqualTheVectors) {
  PrefillInput input = fixture_input("qwen2.5-7b");
  input.transform = Id32::filled(7);
  expect_fixture(derive_descriptor(input), "qwen2.5-7b+transform07");

  input = fixture_input("qwen2.5-7b");
  input.portable_abi = "canonical-kv-prerope-v2";
  input.pin = reference_pin();
  const auto derived = derive_descriptor(input);
  expect_fixture(derived, "qwen2.5-7b+prerope");
  EXPECT_EQ(derived->family.states[0].dtype, DType::kF32);  // attn.k
  EXPECT_EQ(derived->family.states[1].dtype, DType::kF16);  // attn.v
}

TEST(PrefillDescriptor, LatentLayoutEqualsTheVectors) {
  const auto derived = derive_descriptor(fixture_input("anything"), mla_layout());
  expect_fixture(derived, "mla-fixture");
  EXPECT_EQ(derived->family.states[0].key, (StateKey{0, "attn.kv_latent"}));
  EXPECT_EQ(derived->states[0].strides, (std::vector<std::uint64_t>{20, 20, 1}));
}

// A registered layout given as one's own is the same representation.
TEST(PrefillDescriptor, OwnedCopyOfARegisteredLayoutDerivesTheSame) {
  for (const Layout& layout : registered_layouts()) {
    Layout owned = layout;
    owned.name.clear();
    const auto by_name = derive_descriptor(fixture_input(layout.name));
    const auto as_owned = derive_descriptor(fixture_input(""), owned);
    ASSERT_EQ(verdict(as_owned), "ok");
    EXPECT_EQ(*as_owned, *by_name) << layout.name;
  }
}

TEST(PrefillDescriptor, StatesAscendByLayerAndGroupsAreLayers) {
  const auto derived = derive_descriptor(fixture_input("muse-glimmer-30b"));
  ASSERT_EQ(verdict(derived), "ok");
  for (std::uint32_t layer = 0; layer < kLayers; ++layer)
    for (const std::size_t i : {std::size_t{0}, std::size_t{1}}) {
      const StaticState& state = derived->family.states[layer * 2 + i];
      const ExportDeclaration& declared = derived->states[layer * 2 + i];
      EXPECT_EQ(state.key, (StateKey{layer, i == 0 ? "attn.k" : "attn.v"}));
      EXPECT_EQ(declared.key, state.key);
      EXPECT_EQ(declared.strides, (std::vector<std::uint64_t>{256, 128, 1}));
      EXPECT_EQ(declared.atomic_group, layer + 1);
      EXPECT_EQ(state.token_axis_rule,
                is_sliding(layer) ? TokenAxisRule::kTailWindow : TokenAxisRule::kDirect);
    }
}

TEST(PrefillDescriptor, FamilyIsTheSameAtEveryCut) {
  PrefillInput input = fixture_input("muse-glimmer-30b");
  const auto at_many = derive_descriptor(input);
  input.cached_token_count = 1;
  const auto at_one = derive_descriptor(input);
  EXPECT_EQ(at_one->family, at_many->family);
  EXPECT_EQ(at_one->semantic_model, at_many->semantic_model);
  EXPECT_EQ(at_one->restored_bytes, kv_bytes(1));
  EXPECT_NE(*at_one, *at_many);
}

TEST(PrefillDescriptor, ModelRevisionIsSemanticAlone) {
  PrefillInput input = fixture_input("muse-glimmer-30b");
  const auto before = derive_descriptor(input);
  input.identity.model_revision = "model@another";
  const auto after = derive_descriptor(input);
  EXPECT_EQ(after->family, before->family);
  EXPECT_NE(after->semantic_model.weights_config, before->semantic_model.weights_config);
  EXPECT_EQ(after->semantic_model.tokenizer_template, before->semantic_model.tokenizer_template);
}

template <class Change>
std::string with(std::string_view layout, Change change) {
  PrefillInput input = fixture_input(layout);
  change(input);
  return verdict(derive_descriptor(input));
}

TEST(PrefillDescriptor, RefusesWhatIsNotQualified) {
  constexpr const char* kQualified =
      "expectation:portable prefill v2 descriptor is outside the qualified bounds";
  const auto refused = [&](auto change) { EXPECT_EQ(with("muse-glimmer-30b", change), kQualified); };
  refused([](PrefillInput& in) { in.cached_token_count = 0; });
  refused([](PrefillInput& in) { in.cached_token_count = in.max_context_tokens; });
  refused([](PrefillInput& in) { in.max_context_tokens = 131'073; });
  refused([](PrefillInput& in) { in.portable_abi = "canonical-kv-v3"; });
  refused([](PrefillInput& in) { in.compute_precision = "bfloat16"; });
  refused([](PrefillInput& in) { in.kv_precision = "float32"; });
  refused([](PrefillInput& in) { in.identity.weight_precision = "q8_0"; });
  for (const char* weights : {"q4_k_m", "q4_k_xl", "nvfp4", "mxfp4", "bf16"})
    EXPECT_EQ(with("muse-glimmer-30b", [&](PrefillInput& in) { in.identity.weight_precision = weights; }),
              "ok");
  EXPECT_EQ(
      with("muse-glimmer-30b", [](PrefillInput& in) { in.cached_token_count = in.max_context_tokens - 1; }),
      "ok");
}

TEST(PrefillDescriptor, PinAndPreRopeLabelNeedEachOther) {
  EXPECT_EQ(
      with("qwen2.5-7b", [](PrefillInput& in) { in.portable_abi = "canonical-kv-prerope-v2"; }),
      "expectation:portable prefill v2 pre-rope representation requires the pinned rotation kernel identity");
  EXPECT_EQ(
      with("qwen2.5-7b", [](PrefillInput& in) { in.pin = reference_pin(); }),
      "expectation:portable prefill v2 pinned rotation kernel identity requires the pre-rope representation "
      "label");
}

TEST(PrefillDescriptor, RefusesUnboundedTexts) {
  constexpr const char* kTexts =
      "expectation:portable prefill identity strings must be bounded nonempty ASCII";
  for (const std::string& bad : {std::string(), std::string(1'025, 'x'), std::string("caf\xc3\xa9")}) {
    EXPECT_EQ(with("qwen2.5-7b", [&](PrefillInput& in) { in.identity.model_revision = bad; }), kTexts);
    EXPECT_EQ(with("qwen2.5-7b", [&](PrefillInput& in) { in.identity.tokenizer_revision = bad; }), kTexts);
    EXPECT_EQ(with("qwen2.5-7b", [&](PrefillInput& in) { in.producer_engine_abi = bad; }), kTexts);
    EXPECT_EQ(with("qwen2.5-7b", [&](PrefillInput& in) { in.consumer_engine_abi = bad; }), kTexts);
    for (std::string RotationKernelPin::*field :
         {&RotationKernelPin::engine, &RotationKernelPin::kernel, &RotationKernelPin::dtype_path})
      EXPECT_EQ(with("qwen2.5-7b",
                     [&](PrefillInput& in) {
                       in.portable_abi = "canonical-kv-prerope-v2";
                       in.pin = reference_pin();
                       (*in.pin).*field = bad;
                     }),
                kTexts);
  }
  EXPECT_EQ(with("qwen2.5-7b", [](PrefillInput& in) { in.identity.model_revision.assign(1'024, 'x'); }),
            "ok");
}

// No pin fits Muse: a neox one disagrees with its first class, an interleaved one with its second.
TEST(PrefillDescriptor, NoPinFitsALayoutWithNoPeLayers) {
  constexpr const char* kConvention =
      "expectation:portable prefill v2 pre-rope kernel pin convention disagrees with the class rope "
      "convention";
  const auto pinned = [](RopeConvention convention) {
    return [convention](PrefillInput& in) {
      in.portable_abi = "canonical-kv-prerope-v2";
      in.pin = reference_pin();
      in.pin->convention = convention;
    };
  };
  for (const RopeConvention convention :
       {RopeConvention::kNeox, RopeConvention::kInterleaved, RopeConvention::kNone})
    EXPECT_EQ(with("muse-glimmer-30b", pinned(convention)), kConvention);

  // The further refusals, each with a layout whose convention the pin meets.
  PrefillInput input = fixture_input("");
  pinned(RopeConvention::kNeox)(input);
  EXPECT_EQ(verdict(derive_descriptor(input, mla_layout())),
            "expectation:portable prefill v2 pre-rope representation does not support mla-latent classes");
  Layout nope{"", 1, {detail::full_class(0, 1, 1, 2, 128, 0.0, 0, RopeConvention::kNone)}};
  pinned(RopeConvention::kNone)(input);
  EXPECT_EQ(
      verdict(derive_descriptor(input, nope)),
      "expectation:portable prefill v2 pre-rope representation does not support NoPE (rope_convention None) "
      "classes");
}

TEST(PrefillDescriptor, ChecksComeInOrder) {
  // Layout, bounds, pin, texts, classes.
  PrefillInput input = fixture_input("unknown");
  input.cached_token_count = 0;
  EXPECT_EQ(verdict(derive_descriptor(input)),
            "expectation:portable prefill layout is outside the registered v2 layouts");
  Layout broken = mla_layout();
  broken.classes[0].rope_dims = 3;
  EXPECT_EQ(verdict(derive_descriptor(input, broken)),
            "expectation:portable prefill v2 descriptor is outside the qualified bounds");
  input.cached_token_count = 1;
  input.portable_abi = "canonical-kv-prerope-v2";
  input.consumer_engine_abi.clear();
  EXPECT_EQ(
      verdict(derive_descriptor(input, broken)),
      "expectation:portable prefill v2 pre-rope representation requires the pinned rotation kernel identity");
  input.pin = reference_pin();
  EXPECT_EQ(verdict(derive_descriptor(input, broken)),
            "expectation:portable prefill identity strings must be bounded nonempty ASCII");
  input.consumer_engine_abi = "x";
  EXPECT_EQ(verdict(derive_descriptor(input, broken)),
            "expectation:portable prefill v2 rope dimension_count is outside the v2 bounds");
  broken.classes[0].kv_heads = 2;
  input.cached_token_count = 0;
  EXPECT_EQ(verdict(derive_descriptor(input, broken)),
            "expectation:portable prefill v2 mla-latent class must be a single-vector full-coverage record");
}

TEST(PrefillDescriptor, SizesThatDoNotFitAreRefused) {
  Layout wide{"", 1, {detail::full_class(0, 1, 1, 0xffffffffU, 0xffffffffU, 0.0, 0, RopeConvention::kNone)}};
  EXPECT_EQ(verdict(derive_descriptor(fixture_input(""), wide)), "state:descriptor byte size overflow");
  // Each plane fits and their sum does not.
  Layout two{"", 1, {detail::full_class(0, 1, 1, 0x80000000U, 0x40000000U, 0.0, 0, RopeConvention::kNone)}};
  PrefillInput input = fixture_input("");
  input.cached_token_count = 2;
  EXPECT_EQ(verdict(derive_descriptor(input, two)), "state:descriptor byte size overflow");
  input.cached_token_count = 1;
  EXPECT_EQ(verdict(derive_descriptor(input, two)), "ok");
  // More states than a family may have.
  Layout deep{"", 32'769, {detail::full_class(0, 32'769, 1, 1, 2, 0.0, 0, RopeConvention::kNone)}};
  EXPECT_EQ(verdict(derive_descriptor(fixture_input(""), deep)),
            "bounds:family state count is outside bounds");
}

// Made with an independent implementation of the same text.
TEST(PrefillDescriptor, VersionOneEqualsKnownAnswers) {
  PrefillInput input = fixture_input("");
  input.portable_abi = "canonical-kv-f16-le-v1";
  const auto small = derive_descriptor_v1(input, {24, 2, 64});
  ASSERT_EQ(verdict(small), "ok");
  EXPECT_EQ(small->family.engine_cache_abi.hex(),
            "0d62d7446cd0e615576e3210797c0663c57e0a739e8b31a776ea46da6b8a8d86");
  EXPECT_EQ(small->family.topology.hex(), "c77037f137633f0037007c0eff84e3857795d201e239c55620350879fe38a43f");
  EXPECT_EQ(small->family.shard_map.hex(),
            "8c9058df37d973e0ca7684e903c47df491b3e964e954309ed72d6a441be02651");
  EXPECT_EQ(IdentifiedFamily::create(small->family)->id().hex(),
            "fcec8aec77fb3850d6fe70649f3920125e998205b38a678b1e12188e33c61158");
  EXPECT_EQ(small->bytes_per_state, 4'194'048u);
  EXPECT_EQ(small->restored_bytes, 201'314'304u);
  const auto large = derive_descriptor_v1(input, {28, 4, 128});
  ASSERT_EQ(verdict(large), "ok");
  EXPECT_EQ(large->family.engine_cache_abi.hex(),
            "b952498775e9134a65e912894f715380b280c94ca79f547ca206a58a799db05b");
  EXPECT_EQ(IdentifiedFamily::create(large->family)->id().hex(),
            "b3d1745fb6f93609280bcb64d9ef607fca6e1db169897905121a017830c07615");
  EXPECT_EQ(large->restored_bytes, 939'466'752u);
  EXPECT_EQ(semantic_model_id(large->semantic_model),
            vector_id({"registry_fixture", "qwen2.5-7b", "semantic_model_id"}));
}

TEST(PrefillDescriptor, VersionOneIsClosed) {
  const auto v1 = [](auto change, const PrefillGeometryV1& geometry = {24, 2, 64}) {
    PrefillInput input = fixture_input("");
    input.portable_abi = "canonical-kv-f16-le-v1";
    change(input);
    return verdict(derive_descriptor_v1(input, geometry));
  };
  constexpr const char* kGeometry =
      "expectation:portable prefill geometry is outside the qualified closed tuples";
  constexpr const char* kTuple =
      "expectation:portable prefill descriptor is outside the qualified Qwen2.5 tuple";
  EXPECT_EQ(v1([](PrefillInput& in) { in.cached_token_count = 0; }, {28, 2, 64}), kGeometry);
  EXPECT_EQ(v1([](PrefillInput&) {}, {24, 4, 64}), kGeometry);
  EXPECT_EQ(v1([](PrefillInput&) {}, {24, 2, 128}), kGeometry);
  EXPECT_EQ(v1([](PrefillInput& in) { in.cached_token_count = 0; }), kTuple);
  EXPECT_EQ(v1([](PrefillInput& in) { in.cached_token_count = 32'768; }), kTuple);
  EXPECT_EQ(v1([](PrefillInput& in) { in.cached_token_count = 32'767; }), "ok");
  EXPECT_EQ(v1([](PrefillInput& in) { in.max_context_tokens = 32'767; }), kTuple);
  EXPECT_EQ(v1([](PrefillInput& in) { in.portable_abi = "canonical-kv-v2"; }), kTuple);
  EXPECT_EQ(v1([](PrefillInput& in) { in.compute_precision = "float32"; }), kTuple);
  EXPECT_EQ(v1([](PrefillInput& in) { in.kv_precision = "float32"; }), kTuple);
  EXPECT_EQ(v1([](PrefillInput& in) { in.identity.weight_precision = "nvfp4"; }), kTuple);
  EXPECT_EQ(v1([](PrefillInput& in) { in.producer_engine_abi.clear(); }),
            "expectation:portable prefill identity strings must be bounded nonempty ASCII");
}

}  // namespace
}  // namespace kvpack::muse::prefill_descriptor_test
