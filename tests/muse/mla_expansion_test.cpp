#include "kvpack/muse/mla_expansion.h"

#include <gtest/gtest.h>

#include <bit>

#include "kvpack/core/canonical_json.h"
#include "support/verdict.h"

namespace kvpack::muse::mla_expansion_test {
namespace {

using namespace kvpack::testing;

JsonValue descriptor() {
  JsonValue json = JsonValue::object();
  json.set("schema_version", std::uint64_t{1});
  json.set("w_kvb_sha256", Id32::filled(1).hex());
  json.set("rope_config_sha256", Id32::filled(2).hex());
  json.set("latent_dim", std::uint64_t{2});
  json.set("rope_dim", std::uint64_t{1});
  json.set("num_heads", std::uint64_t{2});
  json.set("head_dim", std::uint64_t{1});
  json.set("target_layout", "naive-per-head");
  return json;
}

std::string with(std::string_view key, JsonValue value) {
  JsonValue json = descriptor();
  json.set(key, std::move(value));
  return verdict(parse_mla_expansion(canonical_json(json)));
}

std::string text(std::string_view why) {
  return "expectation:mla expansion descriptor " + std::string(why);
}

MlaExpansion small() {
  return *parse_mla_expansion(canonical_json(descriptor()));
}

TEST(MlaExpansion, IsReadFromItsDescriptor) {
  EXPECT_EQ(small(), (MlaExpansion{.w_kvb_sha256 = Id32::filled(1),
                                   .rope_config_sha256 = Id32::filled(2),
                                   .latent_dim = 2,
                                   .rope_dim = 1,
                                   .num_heads = 2,
                                   .head_dim = 1,
                                   .target = MlaTarget::kNaivePerHead}));
  EXPECT_EQ(with("target_layout", "absorbed-mqa"), "ok");
  EXPECT_EQ(with("latent_dim", std::uint64_t{65'536}), "ok");
  for (const char* key : {"rope_dim", "num_heads", "head_dim"})
    EXPECT_EQ(with(key, std::uint64_t{1'024}), "ok");
}

TEST(MlaExpansion, DescriptorsAreRefusedInOrder) {
  EXPECT_EQ(verdict(parse_mla_expansion(byte_view("{}"))), text("is not valid json"));
  EXPECT_EQ(with("more", true), text("is not valid json"));
  EXPECT_EQ(with("target_layout", "other"), text("is not valid json"));
  EXPECT_EQ(with("latent_dim", std::uint64_t{1} << 32), text("is not valid json"));
  EXPECT_EQ(with("latent_dim", "2"), text("is not valid json"));
  EXPECT_EQ(with("schema_version", std::uint64_t{2}), text("schema version is unsupported"));
  const std::string hashes = text("hashes must be 64 lowercase hexadecimal digits");
  EXPECT_EQ(with("w_kvb_sha256", std::string(64, 'A')), hashes);
  EXPECT_EQ(with("rope_config_sha256", std::string(63, 'a')), hashes);
  const std::string geometry = text("geometry is outside the bounded nonzero dims");
  EXPECT_EQ(with("latent_dim", std::uint64_t{65'537}), geometry);
  for (const char* key : {"rope_dim", "num_heads", "head_dim"})
    EXPECT_EQ(with(key, std::uint64_t{1'025}), geometry);
  for (const char* key : {"latent_dim", "rope_dim", "num_heads", "head_dim"})
    EXPECT_EQ(with(key, std::uint64_t{0}), geometry);
  JsonValue several = descriptor();
  several.set("schema_version", std::uint64_t{0}).set("w_kvb_sha256", "x").set("rope_dim", std::uint64_t{0});
  EXPECT_EQ(verdict(parse_mla_expansion(canonical_json(several))), text("schema version is unsupported"));
  several.set("schema_version", std::uint64_t{1});
  EXPECT_EQ(verdict(parse_mla_expansion(canonical_json(several))), hashes);
}

TEST(MlaExpansion, ProjectsKeysAndValuesOfEachHead) {
  // Rows of the projection: keys of heads 0 and 1, then values of heads 0 and 1.
  const std::vector<float> w_kvb = {1, 2, 3, 4, 10, 20, 30, 40};
  const std::vector<float> latents = {1, 1, 7, 2, 0.5F, 8};
  const auto out = expand_latents(small(), latents, w_kvb, 1'000);
  ASSERT_EQ(verdict(out), "ok");
  EXPECT_EQ(out->k_nope, (std::vector<float>{11, 22, 7, 14}));
  EXPECT_EQ(out->v, (std::vector<float>{33, 44, 21, 28}));
  EXPECT_EQ(out->k_rope, (std::vector<float>{7, 8}));
}

TEST(MlaExpansion, SumsAreOfRoundedProductsInAscendingOrder) {
  MlaExpansion one = small();
  one.latent_dim = 3;
  one.num_heads = 1;
  // 2^24 + 1 + 1 is 2^24 in f32 from the left, and 2^24 + 2 from the right.
  const auto out =
      expand_latents(one, std::vector<float>{0x1p24F, 1, 1, 0}, std::vector<float>{1, 1, 1, 1, 1, 1}, 100);
  ASSERT_EQ(verdict(out), "ok");
  EXPECT_EQ(out->k_nope[0], 0x1p24F);
  // (1 + 2^-12)^2 is 1 + 2^-11 once it is rounded; a fused operation would leave 2^-24 of the difference.
  one.latent_dim = 2;
  const float a = 1 + 0x1p-12F;
  const auto product =
      expand_latents(one, std::vector<float>{-(1 + 0x1p-11F), a, 0}, std::vector<float>{1, 1, a, a}, 100);
  ASSERT_EQ(verdict(product), "ok");
  EXPECT_EQ(product->k_nope[0], 0.0F);
  EXPECT_EQ(product->v[0], 0.0F);
}

TEST(MlaExpansion, InputsAreRefusedInOrder) {
  const std::vector<float> w_kvb(8);
  const std::vector<float> latents(6);
  MlaExpansion broken = small();
  broken.head_dim = 0;
  broken.target = MlaTarget::kAbsorbedMqa;
  EXPECT_EQ(verdict(expand_latents(broken, {}, {}, 0)), text("geometry is outside the bounded nonzero dims"));
  MlaExpansion absorbed = small();
  absorbed.target = MlaTarget::kAbsorbedMqa;
  EXPECT_EQ(verdict(expand_latents(absorbed, {}, {}, 0)),
            "expectation:mla expansion target absorbed-mqa consumes latents without expansion");
  const std::string records =
      "expectation:mla latent stream is empty or not a whole number of per-token records";
  EXPECT_EQ(verdict(expand_latents(small(), {}, {}, 0)), records);
  EXPECT_EQ(verdict(expand_latents(small(), std::span(latents).first(5), {}, 0)), records);
  const std::string count = "expectation:mla W_KVb element count does not match the descriptor geometry";
  EXPECT_EQ(verdict(expand_latents(small(), latents, std::span(w_kvb).first(7), 0)), count);
  EXPECT_EQ(verdict(expand_latents(small(), latents, std::vector<float>(9), 0)), count);
  EXPECT_EQ(verdict(expand_latents(small(), latents, w_kvb, 39)),
            "limit:expanded latents exceed the memory limit");
  EXPECT_EQ(verdict(expand_latents(small(), latents, w_kvb, 40)), "ok");
}

}  // namespace
}  // namespace kvpack::muse::mla_expansion_test
