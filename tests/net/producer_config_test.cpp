#include "kvpack/net/producer_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "net/settings_fixture.h"

namespace kvpack::net::producer_config_test {

using testing::digest_of;
using ::testing::HasSubstr;
using testing::identity_json;
using ::testing::StartsWith;
using testing::without;

const std::string kPath = "/etc/kvpack/producer.json";

class ProducerConfigTest : public ::testing::Test {
 protected:
  ProducerConfigTest() {
    testing::put_credentials(fs_);
    good_.set("schema", "kvpack.producer.v1");
    good_.set("receiver", "decoder.local:29590");
    good_.set("server_name", "decoder.local");
    good_.set("certificate_chain", "chain.pem");
    good_.set("private_key", "key.pem");
    good_.set("peer_ca", "ca.pem");
    JsonValue pins = JsonValue::array();
    pins.push(digest_of('1'));
    good_.set("peer_leaf_sha256", std::move(pins));
    good_.set("hmac_key_file", "hmac.key");
    good_.set("hmac_key_id", "k");
    good_.set("hmac_epoch", 4U);
    good_.set("generation_ledger", "generation.json");
    good_.set("identity", identity_json());
    good_.set("target_cache_identity_sha256", digest_of('f'));
  }
  std::string verdict(const JsonValue& value) {
    testing::put_json(fs_, kPath, value);
    const auto config = load_producer_config(fs_, kPath);
    if (config.has_value()) return "ok";
    EXPECT_EQ(config.error().code, ErrorCode::kConfig);
    EXPECT_THAT(config.error().message, StartsWith("producer settings " + kPath + ": "));
    return config.error().message.substr(kPath.size() + 20);
  }
  std::string with(std::string_view key, JsonValue value) {
    JsonValue changed = good_.clone();
    changed.set(key, std::move(value));
    return verdict(changed);
  }
  kvpack::testing::FakeFileSystem fs_;
  JsonValue good_ = JsonValue::object();
};

TEST_F(ProducerConfigTest, AGoodFileIsRead) {
  testing::put_json(fs_, kPath, good_);
  const auto config = load_producer_config(fs_, kPath);
  ASSERT_TRUE(config.has_value()) << config.error().message;
  EXPECT_EQ(config->receiver.host, "decoder.local");
  EXPECT_EQ(config->receiver.port, 29590);
  EXPECT_EQ(config->generation_ledger, "/etc/kvpack/generation.json");
  EXPECT_EQ(config->pacing_bytes_per_second, 1'000'000'000U);
  EXPECT_EQ(config->timeout_ms, 900'000U);
  EXPECT_FALSE(config->control_listen.has_value());
  JsonValue control = JsonValue::object();
  control.set("listen", "0.0.0.0:29591");
  EXPECT_EQ(with("control", std::move(control)), "ok");
  EXPECT_EQ(with("dflash_identity_sha256", digest_of('9')), "ok");
}

TEST_F(ProducerConfigTest, ViolationsNameTheKey) {
  for (const JsonMember& member : *good_.as_object())
    EXPECT_EQ(verdict(without(good_, member.key)), "`" + member.key + "` is missing");
  EXPECT_EQ(with("listen", "x"), "`listen` is not a known key");
  EXPECT_EQ(with("schema", "kvpack.producer.v2"), "`schema` must be kvpack.producer.v1");
  EXPECT_EQ(with("receiver", "decoder"), "`receiver` must be host:port");
  EXPECT_EQ(with("server_name", ""), "`server_name` must be 1 to 253 bytes");
  EXPECT_EQ(with("timeout_ms", 900'001U), "`timeout_ms` must be in 1 to 900000");
  EXPECT_EQ(with("hmac_epoch", 0U), "`hmac_epoch` must be at least 1");
  EXPECT_EQ(with("hmac_key_id", ""), "`hmac_key_id` must be 1 to 128 bytes");
  EXPECT_EQ(with("peer_leaf_sha256", JsonValue::array()),
            "`peer_leaf_sha256` must pin at least one receiver TLS leaf");
  EXPECT_EQ(with("target_cache_identity_sha256", "f"),
            "`target_cache_identity_sha256` must be lowercase SHA-256");
  JsonValue identity = identity_json();
  identity.set("model_sha256", "m");
  EXPECT_EQ(with("identity", std::move(identity)), "`identity.model_sha256` must be lowercase SHA-256");
  EXPECT_EQ(with("private_key", "absent.pem"), "`private_key` is not a file: /etc/kvpack/absent.pem");
  JsonValue control = JsonValue::object();
  control.set("listen", "host:1");
  EXPECT_EQ(with("control", std::move(control)), "`control.listen` must be ip:port");
}

}  // namespace kvpack::net::producer_config_test
