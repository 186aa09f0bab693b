#include "kvpack/muse/durable_config.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "kvpack/core/canonical_json.h"
#include "support/temp_directory.h"
#include "support/verdict.h"

namespace kvpack::muse::durable_config_test {
namespace {

using namespace kvpack::testing;

class DurableConfigFile : public ::testing::Test {
 protected:
  DurableConfigFile() {
    JsonValue identity = JsonValue::object();
    for (std::size_t i = 0; i < kMuseDigestFields.size(); ++i)
      identity.set(kMuseDigestFields[i].name, Id32::filled(static_cast<std::uint8_t>(i)).hex());
    identity.set("model_revision", "m@1");
    identity.set("tokenizer_revision", "t@1");
    identity.set("weight_precision", "q4_k_xl");
    json_.set("schema_version", std::uint64_t{1});
    json_.set("root", "cache");
    json_.set("key_file", "store.key");
    json_.set("operator_tenant_id", "acme");
    json_.set("key_epoch", std::uint64_t{3});
    json_.set("minimum_readable_key_epoch", std::uint64_t{2});
    json_.set("catalog_epoch", std::uint64_t{4});
    json_.set("quota_bytes", std::uint64_t{1} << 36);
    json_.set("staging_quota_bytes", std::uint64_t{1} << 35);
    json_.set("endurance_bytes_per_five_minutes", std::uint64_t{1} << 34);
    json_.set("identity", std::move(identity));
    write("store.key", std::string(32, 'k'));
    ::chmod(folder_.path("store.key").c_str(), 0600);
  }

  void write(const std::string& name, std::string_view content) {
    std::ofstream(folder_.path(name), std::ios::binary) << content;
  }
  JsonValue& identity() {
    for (JsonMember& member : *json_.as_object())
      if (member.key == "identity") return member.value;
    return json_;
  }
  Result<DurableConfig> read() {
    write("muse.json", canonical_json_text(json_));
    return read_durable_config(fs_, folder_.path("muse.json"));
  }
  std::string refusal() { return verdict(read()); }

  TempDirectory folder_;
  SystemFileSystem fs_;
  JsonValue json_ = JsonValue::object();
};

constexpr std::string_view kCombined =
    "config:durable config is invalid: schema, epochs, quotas, labels, or weight precision";

TEST_F(DurableConfigFile, IsReadWithPathsRelativeToIt) {
  const auto config = read();
  ASSERT_EQ(verdict(config), "ok");
  EXPECT_EQ(config->root, folder_.path("cache"));
  EXPECT_EQ(config->key_file, folder_.path("store.key"));
  EXPECT_EQ(config->operator_tenant_id, "acme");
  EXPECT_EQ(config->key_epoch, 3U);
  EXPECT_EQ(config->minimum_readable_key_epoch, 2U);
  EXPECT_EQ(config->catalog_epoch, 4U);
  EXPECT_EQ(config->quota_bytes, std::uint64_t{1} << 36);
  EXPECT_EQ(config->staging_quota_bytes, std::uint64_t{1} << 35);
  EXPECT_EQ(config->endurance_bytes_per_five_minutes, std::uint64_t{1} << 34);
  EXPECT_EQ(config->identity, (MuseIdentity{.model_sha256 = Id32::filled(0),
                                            .adapter_sha256 = Id32::filled(1),
                                            .tokenizer_sha256 = Id32::filled(2),
                                            .chat_template_sha256 = Id32::filled(3),
                                            .context_policy_sha256 = Id32::filled(4),
                                            .model_revision = "m@1",
                                            .tokenizer_revision = "t@1",
                                            .weight_precision = "q4_k_xl"}));
  json_.set("root", "/var/cache/muse");
  EXPECT_EQ(read()->root, "/var/cache/muse");
}

TEST_F(DurableConfigFile, OpensAStore) {
  const auto config = read();
  ASSERT_EQ(verdict(config), "ok");
  const auto options = store_options(fs_, *config);
  ASSERT_EQ(verdict(options), "ok");
  EXPECT_EQ(options->root, config->root);
  EXPECT_EQ(options->epochs.active, 3U);
  EXPECT_EQ(options->epochs.minimum_readable, 2U);
  EXPECT_EQ(options->catalog_epoch, 4U);
  EXPECT_EQ(options->quota_bytes, config->quota_bytes);
  EXPECT_EQ(options->staging_quota_bytes, config->staging_quota_bytes);
  EXPECT_EQ(options->endurance_bytes_per_five_minutes, config->endurance_bytes_per_five_minutes);
  const SecretKey key = *read_key_file(fs_, config->key_file);
  EXPECT_EQ(options->keys->tenant(), *derive_tenant_namespace(key, byte_view("acme")));
  ::chmod(folder_.path("store.key").c_str(), 0644);
  EXPECT_EQ(verdict(store_options(fs_, *config)),
            "state:store key must be private, single-link, and exactly 32 bytes");
}

TEST_F(DurableConfigFile, AnAbsentFileIsNamed) {
  const auto config = read_durable_config(fs_, folder_.path("no.json"));
  ASSERT_FALSE(config.has_value());
  EXPECT_EQ(config.error().code, ErrorCode::kNotFound);
  EXPECT_TRUE(config.error().message.starts_with("read durable config " + folder_.path("no.json") + ": "))
      << config.error().message;
}

TEST_F(DurableConfigFile, AHugeFileIsNotRead) {
  write("muse.json", std::string(kMaxDurableConfigBytes + 1, ' '));
  const auto config = read_durable_config(fs_, folder_.path("muse.json"));
  ASSERT_FALSE(config.has_value());
  EXPECT_EQ(config.error().code, ErrorCode::kLimit);
  EXPECT_TRUE(config.error().message.starts_with("read durable config "));
}

TEST_F(DurableConfigFile, FieldsAreExactlyThese) {
  const JsonValue good = json_.clone();
  for (const JsonMember& member : *good.as_object()) {
    json_ = JsonValue::object();
    for (const JsonMember& other : *good.as_object())
      if (other.key != member.key) json_.set(other.key, other.value.clone());
    EXPECT_EQ(refusal(), "config:parse durable config: `" + member.key + "` is missing");
  }
  json_ = good.clone();
  const JsonValue whole = identity().clone();
  for (const JsonMember& member : *whole.as_object()) {
    JsonValue part = JsonValue::object();
    for (const JsonMember& other : *whole.as_object())
      if (other.key != member.key) part.set(other.key, other.value.clone());
    identity() = std::move(part);
    EXPECT_EQ(refusal(), "config:parse durable config: `identity." + member.key + "` is missing");
  }
  json_ = good.clone();
  identity().set("more", true);
  EXPECT_EQ(refusal(), "config:parse durable config: `identity.more` is not a known key");
  json_ = good.clone();
  json_.set("more", true);
  EXPECT_EQ(refusal(), "config:parse durable config: `more` is not a known key");
  json_ = good.clone();
  json_.set("quota_bytes", "1");
  EXPECT_TRUE(refusal().starts_with("config:parse durable config: `quota_bytes` "));
  json_ = good.clone();
  json_.set("schema_version", std::uint64_t{1} << 32);
  EXPECT_TRUE(refusal().starts_with("config:parse durable config: `schema_version` "));
  write("muse.json", "{");
  EXPECT_TRUE(verdict(read_durable_config(fs_, folder_.path("muse.json")))
                  .starts_with("config:parse durable config: "));
}

TEST_F(DurableConfigFile, NumbersAndLabelsAreJudgedTogether) {
  const JsonValue good = json_.clone();
  const auto with = [&](std::string_view key, JsonValue value) {
    json_ = good.clone();
    json_.set(key, std::move(value));
    return refusal();
  };
  EXPECT_EQ(with("schema_version", std::uint64_t{2}), kCombined);
  EXPECT_EQ(with("operator_tenant_id", ""), kCombined);
  EXPECT_EQ(with("operator_tenant_id", std::string(257, 't')), kCombined);
  EXPECT_EQ(with("operator_tenant_id", std::string(256, 't')), "ok");
  for (const char* key : {"key_epoch", "minimum_readable_key_epoch", "catalog_epoch", "quota_bytes",
                          "staging_quota_bytes", "endurance_bytes_per_five_minutes"})
    EXPECT_EQ(with(key, std::uint64_t{0}), kCombined) << key;
  EXPECT_EQ(with("minimum_readable_key_epoch", std::uint64_t{3}), "ok");
  EXPECT_EQ(with("minimum_readable_key_epoch", std::uint64_t{4}), kCombined);
  const auto identity_with = [&](std::string_view key, JsonValue value) {
    json_ = good.clone();
    identity().set(key, std::move(value));
    return refusal();
  };
  EXPECT_EQ(identity_with("model_revision", ""), kCombined);
  EXPECT_EQ(identity_with("tokenizer_revision", ""), kCombined);
  EXPECT_EQ(identity_with("weight_precision", "nvfp4"), "ok");
  EXPECT_EQ(identity_with("weight_precision", "q4_k_m"), kCombined);
}

TEST_F(DurableConfigFile, ThenDigestsThenTheKeyThenTheRoot) {
  json_.set("root", "");
  const JsonValue good = json_.clone();
  for (const char* text : {"", "00", "0g"}) {
    json_ = good.clone();
    for (auto field = kMuseDigestFields.rbegin(); field != kMuseDigestFields.rend(); ++field) {
      identity().set(field->name, text);
      EXPECT_EQ(refusal(), "config:durable config is invalid: " + std::string(field->name) +
                               " must be lowercase SHA-256");
    }
  }
  for (const MuseDigestField& field : kMuseDigestFields) identity().set(field.name, std::string(64, 'A'));
  EXPECT_EQ(refusal(), "config:durable config is invalid: model_sha256 must be lowercase SHA-256");
  for (const MuseDigestField& field : kMuseDigestFields) identity().set(field.name, std::string(64, 'a'));
  const std::string place = "config:durable config is invalid: key file is absent or root is empty";
  EXPECT_EQ(refusal(), place);
  json_.set("root", "cache");
  EXPECT_EQ(refusal(), "ok");
  json_.set("key_file", "other.key");
  EXPECT_EQ(refusal(), place);
  json_.set("key_file", ".");
  EXPECT_EQ(refusal(), place);
  json_.set("key_file", "");
  EXPECT_EQ(refusal(), place);
}

TEST_F(DurableConfigFile, RevisionsMustBeResolved) {
  identity().set("model_revision", "auto");
  EXPECT_EQ(refusal(),
            "config:durable config is invalid: identity field model_revision must be a resolved value");
}

}  // namespace
}  // namespace kvpack::muse::durable_config_test
