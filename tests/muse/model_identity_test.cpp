#include "kvpack/muse/model_identity.h"

#include <gtest/gtest.h>

#include <limits>

#include "kvpack/muse/geometry.h"
#include "kvpack/muse/model_config.h"
#include "support/gguf_writer.h"
#include "support/verdict.h"

namespace kvpack::muse::model_identity_test {
namespace {

using namespace kvpack::testing;

// A file that stays open while a test looks at it.
struct Opened {
  explicit Opened(const GgufWriter& writer) : bytes(writer.finish()), source(bytes) {
    auto file_or = GgufFile::open(source, is_model_key);
    EXPECT_EQ(verdict(file_or), "ok");
    if (file_or.has_value()) file.emplace(*std::move(file_or));
  }
  Bytes bytes;
  SpanSource source;
  std::optional<GgufFile> file;
};

std::string hex_or_verdict(const Result<Id32>& result) {
  return result.has_value() ? result->hex() : verdict(result);
}

std::string tokenizer_of(const GgufWriter& writer) {
  const Opened opened(writer);
  return hex_or_verdict(tokenizer_sha256(*opened.file));
}

TEST(ModelIdentity, TokenizerDigestsAreTheKnownOnes) {
  GgufWriter file;
  file.string("tokenizer.ggml.model", "none");
  EXPECT_EQ(tokenizer_of(file), "3c95a3a397d8e672a8a58969b2922079af3b77ef129d537fb40c20fcd1aa1f53");
  file.u32("tokenizer.ggml.bos_token_id", 1);
  EXPECT_EQ(tokenizer_of(file), "d8ebfceb0406781afb3156f4a0bf3434d28f2684bf3e33f1e89f7f869a2fc091");
}

TEST(ModelIdentity, TheTokenizerIsItsKeysInByteOrderAndNothingElse) {
  GgufWriter file;
  file.u32("tokenizer.ggml.bos_token_id", 1)
      .string("general.name", "x")
      .string("tokenizer.ggml.model", "none");
  file.string("tokenizer.chat_template", "{{ messages }}").u32("tokenizers", 4);
  EXPECT_EQ(tokenizer_of(file), "d8ebfceb0406781afb3156f4a0bf3434d28f2684bf3e33f1e89f7f869a2fc091");
}

// The digest of one key `tokenizer.k` with a value, put together by hand.
std::string digest_of_value(const Bytes& value) {
  ByteWriter out;
  out.bytes(with_nul("muser.gguf-tokenizer-metadata.v1"));
  out.bytes(GgufWriter::string_bytes("tokenizer.k"));
  out.bytes(value);
  return Id32{sha256(out.view())}.hex();
}

TEST(ModelIdentity, EveryTypeOfATokenizerValueHasATagOfItsOwn) {
  struct Row {
    GgufType type;
    std::uint8_t tag;
    std::size_t bytes;
  };
  for (const Row& row : {Row{GgufType::kU8, 0, 1}, Row{GgufType::kI8, 1, 1}, Row{GgufType::kU16, 2, 2},
                         Row{GgufType::kI16, 3, 2}, Row{GgufType::kU32, 4, 4}, Row{GgufType::kI32, 5, 4},
                         Row{GgufType::kU64, 6, 8}, Row{GgufType::kI64, 7, 8}, Row{GgufType::kF32, 8, 4},
                         Row{GgufType::kF64, 9, 8}}) {
    Bytes payload;
    for (std::size_t i = 0; i < row.bytes; ++i) payload.push_back(static_cast<std::uint8_t>(i + 1));
    GgufWriter file;
    file.raw("tokenizer.k", row.type, payload);
    Bytes wanted{row.tag};
    wanted.insert(wanted.end(), payload.begin(), payload.end());
    EXPECT_EQ(tokenizer_of(file), digest_of_value(wanted)) << int{row.tag};
  }
  EXPECT_EQ(tokenizer_of(GgufWriter().boolean("tokenizer.k", 9)), digest_of_value({10, 1}));
  EXPECT_EQ(tokenizer_of(GgufWriter().boolean("tokenizer.k", 0)), digest_of_value({10, 0}));
  EXPECT_EQ(tokenizer_of(GgufWriter().string("tokenizer.k", "ab")),
            digest_of_value({11, 2, 0, 0, 0, 0, 0, 0, 0, 'a', 'b'}));
  EXPECT_EQ(tokenizer_of(GgufWriter().strings("tokenizer.k", {"a", ""})),
            digest_of_value(
                {12, 2, 0, 0, 0, 0, 0, 0, 0, 11, 1, 0, 0, 0, 0, 0, 0, 0, 'a', 11, 0, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(tokenizer_of(GgufWriter().array("tokenizer.k", GgufType::kBool, std::vector<std::uint8_t>{0, 2})),
            digest_of_value({12, 2, 0, 0, 0, 0, 0, 0, 0, 10, 0, 10, 1}));
}

TEST(ModelIdentity, TokenizerKeysAreBounded) {
  const std::string bounds = "expectation:gguf tokenizer metadata is outside the parse bounds";
  GgufWriter file;
  for (int i = 0; i < 1024; ++i) file.u8("tokenizer." + std::to_string(i), 1);
  EXPECT_EQ(tokenizer_of(file).size(), 64U);
  EXPECT_EQ(tokenizer_of(file.u8("tokenizer.x", 1)), bounds);
  EXPECT_EQ(tokenizer_of(GgufWriter().u8("tokenizer." + std::string(1010, 'k'), 1)).size(), 64U);
  EXPECT_EQ(tokenizer_of(GgufWriter().u8("tokenizer." + std::string(1011, 'k'), 1)), bounds);
  GgufWriter bytes;
  for (int i = 0; i < 140; ++i) bytes.u8("tokenizer." + std::to_string(i) + std::string(1000, 'k'), 1);
  EXPECT_EQ(tokenizer_of(bytes), bounds);
}

TEST(ModelIdentity, TheChatTemplateIsHashedAsItStands) {
  const auto of = [](const GgufWriter& writer) {
    const Opened opened(writer);
    return hex_or_verdict(chat_template_sha256(*opened.file));
  };
  EXPECT_EQ(of(GgufWriter()), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(of(GgufWriter().string("tokenizer.chat_template", "abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  const std::string longer(200'000, 'x');
  EXPECT_EQ(of(GgufWriter().string("tokenizer.chat_template", longer)),
            Id32{sha256(byte_view(longer))}.hex());
  EXPECT_EQ(of(GgufWriter().u32("tokenizer.chat_template", 1)),
            "expectation:unexpected type of GGUF metadata key: tokenizer.chat_template");
}

MuseConfig release_config(float softcap) {
  MuseConfig config{.context_length = 131'072,
                    .rms_eps = 1e-5F,
                    .post_norm_eps = 1e-8F,
                    .rope_base_swa = 500'000.0F,
                    .rope_dim = 128,
                    .sliding_window = 2048,
                    .final_logit_softcap = softcap};
  for (std::uint32_t layer = 0; layer < kLayers; ++layer)
    config.layer_kinds.push_back(is_sliding(layer) ? LayerKind::kSlidingRope : LayerKind::kFullNoPe);
  return config;
}

TEST(ModelIdentity, ContextPoliciesAreTheKnownOnes) {
  EXPECT_EQ(context_policy_sha256(release_config(20.0F)).hex(),
            "2c2d83b49e71f5c4e39178c8229117b0bb60f0d4f2a5e42b3accd1cf5eaa8a37");
  EXPECT_EQ(context_policy_sha256(release_config(30.0F)).hex(),
            "becb2021926ba8df312f3e342f8686aec9cb262b8a1f0fd4ccf50a2a18928f2b");
}

TEST(ModelIdentity, EverythingOfAPolicyCounts) {
  const Id32 base = context_policy_sha256(release_config(20.0F));
  const auto changed = [&](auto change) {
    MuseConfig config = release_config(20.0F);
    change(config);
    return context_policy_sha256(config) != base;
  };
  EXPECT_TRUE(changed([](MuseConfig& c) { c.context_length = 131'071; }));
  EXPECT_TRUE(changed([](MuseConfig& c) { c.sliding_window = 1024; }));
  EXPECT_TRUE(changed([](MuseConfig& c) { c.rope_base_swa = 10'000; }));
  EXPECT_TRUE(changed([](MuseConfig& c) { c.rope_dim = 64; }));
  EXPECT_TRUE(changed([](MuseConfig& c) { c.rms_eps = 1e-6F; }));
  EXPECT_TRUE(changed([](MuseConfig& c) { c.post_norm_eps = 1e-5F; }));
  EXPECT_TRUE(changed([](MuseConfig& c) { c.layer_kinds[3] = LayerKind::kSlidingRope; }));
  EXPECT_FALSE(changed([](MuseConfig& c) { c.vocab_size = 7; }));
}

TEST(ModelIdentity, AdaptersCountWithContentOrderAndScale) {
  EXPECT_TRUE(adapters_sha256({})->is_zero());
  const AppliedAdapter a{Id32::filled(1), 1.0};
  const AppliedAdapter b{Id32::filled(2), 1.0};
  ByteWriter wanted;
  wanted.bytes(with_nul("kvpack/muse-adapters/v1"));
  wanted.bytes(Id32::filled(1));
  wanted.le(std::uint64_t{0x3ff0000000000000});
  wanted.bytes(Id32::filled(2));
  wanted.le(std::uint64_t{0x3ff0000000000000});
  const Id32 both = *adapters_sha256(std::vector{a, b});
  EXPECT_EQ(both, Id32{sha256(wanted.view())});
  EXPECT_NE(*adapters_sha256(std::vector{b, a}), both);
  EXPECT_NE(*adapters_sha256(std::vector{a}), both);
  EXPECT_NE(*adapters_sha256(std::vector{a, AppliedAdapter{b.file_sha256, 0.5}}), both);
  for (const double scale :
       {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()})
    EXPECT_EQ(verdict(adapters_sha256(std::vector{AppliedAdapter{a.file_sha256, scale}})),
              "expectation:adapter scale must be finite");
}

std::string precision(const GgufWriter& writer, const std::optional<std::string>& said = {}) {
  const Opened opened(writer);
  const auto found = weight_precision(*opened.file, said);
  return found.has_value() ? *found : verdict(found);
}

TEST(ModelIdentity, ThePrecisionIsWhatTheFileSays) {
  const std::string key = "muser.weight_precision";
  GgufWriter plain;
  plain.tensor("w", 12, {256}, Bytes(144));
  EXPECT_EQ(precision(plain), "q4_k_xl");
  EXPECT_EQ(precision(plain, "q4_k_xl"), "q4_k_xl");
  EXPECT_EQ(precision(plain, "bf16"), "bf16") << "the file is silent";
  EXPECT_EQ(precision(plain, "nvfp4"),
            "expectation:weight precision nvfp4 contradicts the model file, which is q4_k_xl");
  plain.string(key, "q4_k_xl");
  EXPECT_EQ(precision(plain), "q4_k_xl");
  EXPECT_EQ(precision(plain, "q4_k_xl"), "q4_k_xl");
  EXPECT_EQ(precision(plain, "bf16"),
            "expectation:weight precision bf16 contradicts the model file, which is q4_k_xl");
  for (const char* other : {"mxfp4", "nvfp4", ""}) {
    plain.string(key, other);
    EXPECT_EQ(precision(plain), "expectation:muser.weight_precision is " + std::string(other) +
                                    ": the weight precision must be named");
    EXPECT_EQ(precision(plain, "mxfp4"), "mxfp4");
  }
  plain.u32(key, 4);
  EXPECT_EQ(precision(plain, "mxfp4"),
            "expectation:unexpected type of GGUF metadata key: muser.weight_precision");
}

TEST(ModelIdentity, Nvfp4TensorsBindThePrecision) {
  const std::string key = "muser.weight_precision";
  GgufWriter file;
  file.tensor("v", 12, {256}, Bytes(144)).tensor("w", kGgufTensorNvfp4, {64}, Bytes(36));
  const std::string must = "expectation:muser.weight_precision must be nvfp4 for a model with NVFP4 tensors";
  EXPECT_EQ(precision(file), must);
  EXPECT_EQ(precision(file, "nvfp4"), must);
  file.string(key, "q4_k_xl");
  EXPECT_EQ(precision(file), must);
  file.string(key, "nvfp4");
  EXPECT_EQ(precision(file), "nvfp4");
  EXPECT_EQ(precision(file, "nvfp4"), "nvfp4");
  EXPECT_EQ(precision(file, "q4_k_xl"),
            "expectation:weight precision q4_k_xl contradicts the model file, which is nvfp4");
}

TEST(ModelIdentity, HashesAFileInPiecesAndTellsHowFarItIs) {
  const Bytes bytes((std::size_t{2} << 20) + 5, 7);
  SpanSource source(bytes);
  std::vector<std::uint64_t> told;
  const auto digest = source_sha256(source, [&](std::uint64_t done) {
    told.push_back(done);
    return true;
  });
  ASSERT_EQ(verdict(digest), "ok");
  EXPECT_EQ(digest->bytes, sha256(bytes));
  EXPECT_EQ(told, (std::vector<std::uint64_t>{1U << 20, 2U << 20, (2U << 20) + 5}));
  EXPECT_EQ(verdict(source_sha256(source, [](std::uint64_t) { return false; })),
            "cancelled:hashing was cancelled");
  SpanSource empty({});
  EXPECT_EQ(source_sha256(empty)->bytes, sha256(ByteSpan{}));
}

Result<MuseIdentity> identify(const GgufWriter& writer, const ModelStatement& said) {
  const Opened opened(writer);
  KVPACK_TRY_ASSIGN(const MuseConfig config, read_model_config(*opened.file));
  return identify_model(*opened.file, config, said);
}

TEST(ModelIdentity, ComesFromTheFileAndTheOperator) {
  const GgufWriter file = small_muse_model();
  const Opened opened(file);
  const auto config = read_model_config(*opened.file);
  ASSERT_EQ(verdict(config), "ok");
  ModelStatement said{.model_revision = "m@1", .tokenizer_revision = "t@1"};
  const auto identity = identify(file, said);
  ASSERT_EQ(verdict(identity), "ok");
  EXPECT_EQ(*identity, (MuseIdentity{.model_sha256 = {sha256(opened.bytes)},
                                     .adapter_sha256 = {},
                                     .tokenizer_sha256 = *Id32::from_hex(
                                         "3c95a3a397d8e672a8a58969b2922079af3b77ef129d537fb40c20fcd1aa1f53"),
                                     .chat_template_sha256 = {sha256(ByteSpan{})},
                                     .context_policy_sha256 = context_policy_sha256(*config),
                                     .model_revision = "m@1",
                                     .tokenizer_revision = "t@1",
                                     .weight_precision = "q4_k_xl"}));
  said.adapters = {{Id32::filled(9), 0.5}};
  said.context_policy_sha256 = Id32::filled(8);
  said.weight_precision = "bf16";
  const auto other = identify(file, said);
  ASSERT_EQ(verdict(other), "ok");
  EXPECT_EQ(other->adapter_sha256, *adapters_sha256(said.adapters));
  EXPECT_EQ(other->context_policy_sha256, Id32::filled(8));
  EXPECT_EQ(other->weight_precision, "bf16");
}

TEST(ModelIdentity, UnresolvedTextsAreRefusedBeforeAnythingIsHashed) {
  const Opened opened(small_muse_model());
  const auto config = read_model_config(*opened.file);
  ASSERT_EQ(verdict(config), "ok");
  bool hashed = false;
  const auto with = [&](ModelStatement said) {
    return verdict(identify_model(*opened.file, *config, said, [&](std::uint64_t) { return hashed = true; }));
  };
  const auto text = [](std::string_view name) {
    return "expectation:identity field " + std::string(name) + " must be a resolved value";
  };
  EXPECT_EQ(with({.model_revision = "", .tokenizer_revision = ""}), text("model_revision"));
  EXPECT_EQ(with({.model_revision = "m", .tokenizer_revision = "default"}), text("tokenizer_revision"));
  EXPECT_EQ(with({.model_revision = "m", .tokenizer_revision = "t", .weight_precision = "AUTO"}),
            text("weight_precision"));
  EXPECT_FALSE(hashed);
}

}  // namespace
}  // namespace kvpack::muse::model_identity_test
