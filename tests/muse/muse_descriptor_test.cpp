#include "kvpack/muse/muse_descriptor.h"

#include "muse/muse_fixtures.h"
#include "muse/muse_vectors.h"
#include "support/verdict.h"

namespace kvpack::muse::muse_descriptor_test {
namespace {

using kvpack::testing::verdict;
using testing::kReleaseVocabulary;
using testing::kTestVocabulary;
using testing::test_config;
using testing::test_identity;
using testing::vector_at;
using testing::vector_id;
using testing::vector_number;
using testing::vector_text;

std::string bits_of(double value) {
  return to_hex(be_bytes(std::bit_cast<std::uint64_t>(value)));
}
std::string bits_of(float value) {
  return to_hex(be_bytes(std::bit_cast<std::uint32_t>(value)));
}

ScalarMath literals() {
  return {.qk_scale_factor = 3.87,
          .output_multiplier = 1.0 / std::sqrt(26.0),
          .final_logit_softcap = 20.0,
          .post_norm_eps = 1e-8};
}

void expect_scalar_bits(const ScalarMath& scalars, std::string_view name) {
  EXPECT_EQ(bits_of(scalars.qk_scale_factor), vector_text({"k4", name, "bits", "qk_scale_factor"}));
  EXPECT_EQ(bits_of(scalars.output_multiplier), vector_text({"k4", name, "bits", "output_multiplier"}));
  EXPECT_EQ(bits_of(scalars.final_logit_softcap),
            vector_text({"k4", name, "bits", "final_logit_softcapping"}));
  EXPECT_EQ(bits_of(scalars.post_norm_eps), vector_text({"k4", name, "bits", "post_norm_eps"}));
}

TEST(MuseDescriptor, ScalarMathEqualsTheVectors) {
  const MuseConfig config = test_config();
  EXPECT_EQ(bits_of(config.qk_scale_factor), vector_text({"k4", "f32_bits", "qk_scale_factor"}));
  EXPECT_EQ(bits_of(config.logit_scale), vector_text({"k4", "f32_bits", "output_multiplier"}));
  EXPECT_EQ(bits_of(config.final_logit_softcap), vector_text({"k4", "f32_bits", "final_logit_softcap"}));
  EXPECT_EQ(bits_of(config.post_norm_eps), vector_text({"k4", "f32_bits", "post_norm_eps"}));
  expect_scalar_bits(scalar_math(config), "adapter_f32_widened");
  expect_scalar_bits(literals(), "config_json_f64");
  for (const auto& [name, scalars] :
       {std::pair("adapter_f32_widened", scalar_math(config)), std::pair("config_json_f64", literals())})
    EXPECT_EQ(*bind_scalar_math(vector_id({"k4", name, "prior_weights_config"}), scalars),
              vector_id({"k4", name, "bound_weights_config"}));
}

TEST(MuseDescriptor, EachScalarAloneChangesTheModel) {
  const Id32 prior = Id32::filled(1);
  const Id32 base = *bind_scalar_math(prior, literals());
  for (double ScalarMath::*field : {&ScalarMath::qk_scale_factor, &ScalarMath::output_multiplier,
                                    &ScalarMath::final_logit_softcap, &ScalarMath::post_norm_eps}) {
    ScalarMath scalars = literals();
    scalars.*field = std::nextafter(scalars.*field, 100.0);
    EXPECT_NE(*bind_scalar_math(prior, scalars), base);
  }
  EXPECT_NE(*bind_scalar_math(Id32::filled(2), literals()), base);
}

TEST(MuseDescriptor, ScalarsOutsideTheirBoundsAreRefused) {
  constexpr const char* kRefused =
      "expectation:portable prefill v2 weights scalar-math fields are outside the supported bounds";
  const double nan = std::nan("");
  const double infinite = std::numeric_limits<double>::infinity();
  const auto with = [](double ScalarMath::*field, double value) {
    ScalarMath scalars = literals();
    scalars.*field = value;
    return verdict(bind_scalar_math(Id32::filled(1), scalars));
  };
  for (double ScalarMath::*field :
       {&ScalarMath::qk_scale_factor, &ScalarMath::output_multiplier, &ScalarMath::post_norm_eps})
    for (const double bad : {0.0, -0.0, -1.0, nan, infinite, -infinite})
      EXPECT_EQ(with(field, bad), kRefused) << bad;
  for (const double bad : {-1.0, nan, infinite})
    EXPECT_EQ(with(&ScalarMath::final_logit_softcap, bad), kRefused) << bad;
  EXPECT_EQ(with(&ScalarMath::final_logit_softcap, 0.0), "ok");
  EXPECT_EQ(with(&ScalarMath::final_logit_softcap, -0.0), "ok");
}

void expect_model(const SemanticModelId& model, std::initializer_list<std::string_view> path) {
  const JsonValue& vector = vector_at(path);
  EXPECT_EQ(model.weights_config.hex(), *vector.find("weights_config")->as_string());
  EXPECT_EQ(model.adapters.hex(), *vector.find("adapters")->as_string());
  EXPECT_EQ(model.tokenizer_template.hex(), *vector.find("tokenizer_template")->as_string());
  EXPECT_EQ(model.position_semantics.hex(), *vector.find("position_semantics")->as_string());
  EXPECT_EQ(model.qualified_math.hex(), *vector.find("qualified_math")->as_string());
  EXPECT_EQ(semantic_model_id(model).hex(), *vector.find("semantic_model_id")->as_string());
}

TEST(MuseDescriptor, SemanticModelsEqualTheVectors) {
  const auto unbound = derive_descriptor(muse_prefill_input(test_identity(), 1));
  ASSERT_EQ(verdict(unbound), "ok");
  expect_model(unbound->semantic_model, {"semantic_models", "test_identity.unbound"});
  const auto bound = muse_descriptor(test_config(), test_identity(), 1);
  ASSERT_EQ(verdict(bound), "ok");
  expect_model(bound->semantic_model, {"semantic_models", "test_identity.bound"});

  const auto id = [](std::string_view field) {
    return vector_id({"muse_identity", "release_shaped", "fields", field});
  };
  const auto text = [](std::string_view field) {
    return vector_text({"muse_identity", "release_shaped", "fields", field});
  };
  const MuseIdentity release{.model_sha256 = id("model_sha256"),
                             .adapter_sha256 = id("adapter_sha256"),
                             .tokenizer_sha256 = id("tokenizer_sha256"),
                             .chat_template_sha256 = id("chat_template_sha256"),
                             .context_policy_sha256 = id("context_policy_sha256"),
                             .model_revision = text("model_revision"),
                             .tokenizer_revision = text("tokenizer_revision"),
                             .weight_precision = text("weight_precision")};
  const auto shaped = muse_descriptor(test_config(kReleaseVocabulary), release, 4'096);
  ASSERT_EQ(verdict(shaped), "ok");
  expect_model(shaped->semantic_model, {"semantic_models", "release_shaped.bound"});
}

void expect_family(const RepresentationFamily& family, std::string_view name) {
  EXPECT_EQ(family.states.size(), vector_number({"muse_family", name, "states"}));
  const auto encoded = encode_family(family);
  ASSERT_EQ(verdict(encoded), "ok");
  EXPECT_EQ(encoded->size(), vector_number({"muse_family", name, "canonical_length"}));
  EXPECT_EQ(Id32{sha256(*encoded)}, vector_id({"muse_family", name, "canonical_sha256"}));
  EXPECT_EQ(IdentifiedFamily::create(family)->id(),
            vector_id({"muse_family", name, "representation_family_id"}));
}

std::string state_hex(const StaticState& state) {
  ByteWriter out;
  EXPECT_EQ(verdict(kvpack::detail::write_static_state(out, state)), "ok");
  return to_hex(out.view());
}

TEST(MuseDescriptor, FamiliesEqualTheVectors) {
  const auto bare = derive_descriptor(muse_prefill_input(test_identity(), 1));
  ASSERT_EQ(verdict(bare), "ok");
  expect_family(bare->family, "without_logits");
  const auto small = muse_descriptor(test_config(kTestVocabulary), test_identity(), 1);
  ASSERT_EQ(verdict(small), "ok");
  expect_family(small->family, "with_logits_vocab_128");
  const auto release = muse_descriptor(test_config(kReleaseVocabulary), test_identity(), 1);
  ASSERT_EQ(verdict(release), "ok");
  expect_family(release->family, "with_logits_vocab_202048");
  EXPECT_EQ(release->family.engine_cache_abi, vector_id({"muse_family", "engine_cache_abi"}));
  EXPECT_EQ(release->family.topology, vector_id({"muse_family", "topology"}));
  EXPECT_EQ(release->family.shard_map, vector_id({"muse_family", "shard_map"}));
  EXPECT_EQ(state_hex(release->family.states[0]), vector_text({"muse_family", "first_state_bytes"}));
  EXPECT_EQ(state_hex(release->family.states[6]), vector_text({"muse_family", "nope_state_layer3_k_bytes"}));
  EXPECT_EQ(state_hex(release->family.states[104]),
            vector_text({"muse_family", "logits_state_bytes_vocab_202048"}));
}

TEST(MuseDescriptor, LogitsAreTheLastStateInAGroupOfTheirOwn) {
  const auto descriptor = muse_descriptor(test_config(), test_identity(), 256);
  ASSERT_EQ(verdict(descriptor), "ok");
  ASSERT_EQ(descriptor->states.size(), 105u);
  const ExportDeclaration& logits = descriptor->states.back();
  EXPECT_EQ(logits.key, (StateKey{52, "decoder.last_logits"}));
  EXPECT_EQ(logits.strides, (std::vector<std::uint64_t>{128, 1}));
  EXPECT_EQ(logits.atomic_group, 53u);
}

TEST(MuseDescriptor, SessionFixtureWithoutLogitsEqualsTheVectors) {
  const MuseIdentity identity{.model_sha256 = Id32::filled(0x82),
                              .adapter_sha256 = {},
                              .tokenizer_sha256 = Id32::filled(0x11),
                              .chat_template_sha256 = Id32::filled(0x22),
                              .context_policy_sha256 = Id32::filled(0x33),
                              .model_revision = "muse-glimmer-30b@Q4_K_XL",
                              .tokenizer_revision = "muse-glimmer-30b-tokenizer@1",
                              .weight_precision = "q4_k_m"};
  PrefillInput input = muse_prefill_input(identity, 4'096);
  input.producer_engine_abi = "llama.cpp-pr26841";
  input.consumer_engine_abi = "ferrite-metal-v1";
  auto descriptor = derive_descriptor(input);
  ASSERT_EQ(verdict(descriptor), "ok");
  descriptor->semantic_model.weights_config =
      *bind_scalar_math(descriptor->semantic_model.weights_config, literals());
  constexpr std::string_view kFixture = "session_fixture_104_states";
  expect_model(descriptor->semantic_model, {kFixture, "semantic"});
  EXPECT_EQ(descriptor->states.size(), vector_number({kFixture, "states"}));
  EXPECT_EQ(descriptor->bytes_per_state, vector_number({kFixture, "bytes_per_state"}));
  EXPECT_EQ(descriptor->restored_bytes, vector_number({kFixture, "restored_bytes"}));
  EXPECT_EQ(descriptor->family.engine_cache_abi, vector_id({kFixture, "engine_cache_abi"}));
  EXPECT_EQ(descriptor->family.topology, vector_id({kFixture, "topology"}));
  EXPECT_EQ(descriptor->family.shard_map, vector_id({kFixture, "shard_map"}));
  EXPECT_EQ(IdentifiedFamily::create(descriptor->family)->id(),
            vector_id({kFixture, "representation_family_id"}));
  EXPECT_EQ(semantic_model_id(descriptor->semantic_model), vector_id({kFixture, "semantic_model_id"}));
}

template <class Change>
std::string with(Change change, std::uint64_t cached = 256) {
  MuseConfig config = test_config();
  change(config);
  return verdict(muse_descriptor(config, test_identity(), cached));
}

std::string gate(std::string_view what) {
  return "expectation:Muser Muse geometry disagrees with the qualified kvpack layout: " + std::string(what);
}

TEST(MuseDescriptor, GateRefusesInOrder) {
  const auto wrong_from = [](int first) {
    return [first](MuseConfig& c) {
      if (first <= 1) c.n_layers = 51;
      if (first <= 2) c.head_dim = 64;
      if (first <= 3) c.sliding_window = 1'024;
      if (first <= 4) c.context_length = 4'096;
      c.layer_kinds[3] = LayerKind::kSlidingRope;
    };
  };
  EXPECT_EQ(with(wrong_from(1), 0), gate("layer count"));
  EXPECT_EQ(with(wrong_from(2), 0), gate("KV head geometry"));
  EXPECT_EQ(with(wrong_from(3), 0), gate("SWA window"));
  EXPECT_EQ(with(wrong_from(4), 0), gate("maximum context"));
  EXPECT_EQ(with(wrong_from(5), 0), gate("cached token count"));
  EXPECT_EQ(with(wrong_from(6)), gate("39-SWA/13-NoPE partition"));
  EXPECT_EQ(with([](MuseConfig& c) { c.n_kv_heads = 4; }), gate("KV head geometry"));
  EXPECT_EQ(with([](MuseConfig& c) { c.layer_kinds[0] = LayerKind::kFullNoPe; }),
            gate("39-SWA/13-NoPE partition"));
  EXPECT_EQ(with([](MuseConfig& c) { c.layer_kinds.pop_back(); }), gate("39-SWA/13-NoPE partition"));
  EXPECT_EQ(with([](MuseConfig& c) { c.layer_kinds.push_back(LayerKind::kSlidingRope); }),
            gate("39-SWA/13-NoPE partition"));
}

// Fields that a cache does not depend on are not looked at.
TEST(MuseDescriptor, GateLooksAtTheCacheAlone) {
  EXPECT_EQ(with([](MuseConfig& c) {
              c.n_heads = 7;
              c.value_head_dim = 64;
              c.rope_base_swa = 1;
              c.rope_dim = 64;
              c.hidden_dim = 1;
            }),
            "ok");
}

TEST(MuseDescriptor, TheWholeContextPassesTheGateAndIsNoCut) {
  EXPECT_EQ(verdict(check_muse_geometry(test_config(), 131'072)), "ok");
  EXPECT_EQ(with([](MuseConfig&) {}, 131'072),
            "expectation:portable prefill v2 descriptor is outside the qualified bounds");
  EXPECT_EQ(with([](MuseConfig&) {}, 131'073), gate("cached token count"));
  EXPECT_EQ(with([](MuseConfig&) {}, std::uint64_t{1} << 32), gate("cached token count"));
  EXPECT_EQ(with([](MuseConfig&) {}, 131'071), "ok");
}

TEST(MuseDescriptor, VocabularyIsBounded) {
  constexpr const char* kVocabulary = "expectation:vocabulary is outside 1..1048576";
  EXPECT_EQ(with([](MuseConfig& c) { c.vocab_size = 0; }), kVocabulary);
  EXPECT_EQ(with([](MuseConfig& c) { c.vocab_size = 1'048'577; }), kVocabulary);
  EXPECT_EQ(with([](MuseConfig& c) { c.vocab_size = ~std::uint64_t{0}; }), kVocabulary);
  EXPECT_EQ(with([](MuseConfig& c) { c.vocab_size = 1'048'576; }), "ok");
  EXPECT_EQ(with([](MuseConfig& c) { c.vocab_size = 1; }), "ok");
  // The scalars come first.
  EXPECT_EQ(with([](MuseConfig& c) {
              c.vocab_size = 0;
              c.qk_scale_factor = 0;
            }),
            "expectation:portable prefill v2 weights scalar-math fields are outside the supported bounds");

  auto full = muse_descriptor(test_config(), test_identity(), 1);
  full->restored_bytes = ~std::uint64_t{0};
  EXPECT_EQ(verdict(add_logits_state(*full, 1)), "state:descriptor byte size overflow");
  // A second logits plane is no valid family.
  full->restored_bytes = 0;
  EXPECT_EQ(verdict(add_logits_state(*full, 1)), "semantics:family states are not unique canonical order");
}

}  // namespace
}  // namespace kvpack::muse::muse_descriptor_test
