#include "kvpack/muse/identity.h"

#include <gtest/gtest.h>

#include "support/verdict.h"

namespace kvpack::muse::identity_test {
namespace {

using namespace kvpack::testing;

MuseIdentity test_identity() {
  return {.model_sha256 = Id32::filled(1),
          .adapter_sha256 = Id32::filled(0),
          .tokenizer_sha256 = Id32::filled(2),
          .chat_template_sha256 = Id32::filled(3),
          .context_policy_sha256 = Id32::filled(4),
          .model_revision = "test-muse",
          .tokenizer_revision = "test-tokenizer",
          .weight_precision = "nvfp4"};
}

TEST(MuseIdentity, ResidentDigestsAreTheKnownOnes) {
  MuseIdentity identity = test_identity();
  EXPECT_EQ(resident_digest(identity).hex(),
            "d2dc70375aec7d4687311e968e42ced33641d0993a3f9a3410f4474e29db962c");
  identity.model_sha256.bytes[0] ^= 1;
  EXPECT_EQ(resident_digest(identity).hex(),
            "30bbc04d5946e725776b811d2d57281c13a3fb0d2bdd2104f3e1a4c32ffc874e");
  identity = test_identity();
  identity.weight_precision = "q4_k_xl";
  EXPECT_EQ(resident_digest(identity).hex(),
            "188020fc2ec02d1c728807359351e80d3450ab5043fa17ea6032841a780e658b");
  identity = test_identity();
  identity.tokenizer_revision = "other-tokenizer";
  EXPECT_EQ(resident_digest(identity).hex(),
            "9bcb7a57ced7c566b8d0367ea4fb3f38bc778e42cbdd3a8912475a53bf8bbc46");
}

TEST(MuseIdentity, TextsDoNotFlowIntoEachOther) {
  MuseIdentity identity = test_identity();
  identity.model_revision = "test-mus";
  identity.tokenizer_revision = "etest-tokenizer";
  EXPECT_EQ(resident_digest(identity).hex(),
            "a5a75c1da2c585d58b17cf87f96a340c6c4cd9b98e3cbc97b67358dc81ca84ed");
}

TEST(MuseIdentity, AReleaseHasTheKnownDigest) {
  const MuseIdentity identity{
      .model_sha256 = *Id32::from_hex("7e9b74b7c8875e9e265695df9613bf6290f2392e479ce740495a129019c488d8"),
      .tokenizer_sha256 = *Id32::from_hex("61e73226502f8f54455555990c0000852247bbec32b107730ec544bc0b738055"),
      .chat_template_sha256 =
          *Id32::from_hex("114f55ebdc1804c1af371197b9fdf2d6bb925966c9dfe46b73782a71bc07965e"),
      .context_policy_sha256 = Id32::filled(4),
      .model_revision = "a0532f7263ee67f1e0a5f5c5fdcd50dd62fc9aa4",
      .tokenizer_revision = "embedded",
      .weight_precision = "q4_k_xl"};
  EXPECT_EQ(resident_digest(identity).hex(),
            "af088a3dddc68b7a0a50776fd48a2cb9b671c79a4e394ce9200847f09fa0abbe");
}

TEST(MuseIdentity, EachFieldAloneChangesTheDigest) {
  const Id32 base = resident_digest(test_identity());
  for (const MuseDigestField& field : kMuseDigestFields) {
    MuseIdentity identity = test_identity();
    (identity.*field.member).bytes[31] ^= 0x80;
    EXPECT_NE(resident_digest(identity), base) << field.name;
  }
  for (const MuseTextField& field : kMuseTextFields) {
    MuseIdentity identity = test_identity();
    (identity.*field.member) += "x";
    EXPECT_NE(resident_digest(identity), base) << field.name;
  }
}

TEST(MuseIdentity, NamesOfWhatIsChosenLaterAreNotResolved) {
  for (const char* text :
       {"", " ", "\t \n", "auto", "AUTO", " Auto ", "a u t o", "default", "DeFault\n", "d efault"})
    EXPECT_FALSE(is_resolved(text)) << text;
  for (const char* text :
       {"a", "aut", "auto1", "autos", "defaults", "default-7", "nvfp4", "0", "autodefault"})
    EXPECT_TRUE(is_resolved(text)) << text;
}

TEST(MuseIdentity, EveryTextMustBeResolvedWhenAnIdentityIsBuilt) {
  EXPECT_EQ(verdict(check_resolved(test_identity())), "ok");
  MuseIdentity identity = test_identity();
  for (auto field = kMuseTextFields.rbegin(); field != kMuseTextFields.rend(); ++field) {
    identity.*field->member = "Auto";
    EXPECT_EQ(verdict(check_resolved(identity)),
              "expectation:identity field " + std::string(field->name) + " must be a resolved value");
  }
}

}  // namespace
}  // namespace kvpack::muse::identity_test
