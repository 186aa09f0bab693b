#include "kvpack/net/receiver_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "net/settings_fixture.h"

namespace kvpack::net::receiver_config_test {

using testing::digest_of;
using ::testing::HasSubstr;
using testing::identity_json;
using ::testing::StartsWith;
using testing::without;

const std::string kPath = "/etc/kvpack/receiver.json";

class ReceiverConfigTest : public ::testing::Test {
 protected:
  ReceiverConfigTest() {
    testing::put_credentials(fs_);
    good_.set("schema_version", 1U);
    good_.set("listen", "127.0.0.1:29590");
    good_.set("certificate_chain", "chain.pem");
    good_.set("private_key", "/etc/kvpack/key.pem");
    good_.set("peer_ca", "ca.pem");
    JsonValue pins = JsonValue::array();
    pins.push(digest_of('1')).push(digest_of('2')).push(digest_of('1'));
    good_.set("peer_leaf_sha256", std::move(pins));
    good_.set("hmac_key_file", "hmac.key");
    good_.set("hmac_key_id", "loop-key");
    good_.set("minimum_hmac_epoch", 4U);
    good_.set("replay_ledger", "ledger/replay.json");
    good_.set("timeout_ms", 900'000U);
    good_.set("wait_for_producer_ms", 1000U);
    good_.set("identity", identity_json());
    good_.set("target_cache_identity_sha256", digest_of('f'));
  }
  Result<ReceiverConfig> load(const JsonValue& value) {
    testing::put_json(fs_, kPath, value);
    return load_receiver_config(fs_, kPath);
  }
  std::string verdict(const JsonValue& value) {
    const auto config = load(value);
    if (config.has_value()) return "ok";
    EXPECT_EQ(config.error().code, ErrorCode::kConfig);
    return config.error().message;
  }
  std::string with(std::string_view key, JsonValue value) {
    JsonValue changed = good_.clone();
    changed.set(key, std::move(value));
    return verdict(changed);
  }
  std::string with_identity(std::string_view key, JsonValue value) {
    JsonValue identity = identity_json();
    identity.set(key, std::move(value));
    return with("identity", std::move(identity));
  }
  JsonValue control(std::string_view address = "127.0.0.1:7", std::string_view name = "producer") {
    JsonValue out = JsonValue::object();
    out.set("address", address);
    out.set("server_name", name);
    return out;
  }
  JsonValue geometry(std::uint64_t layers = 5, std::uint64_t elements = 1024, std::uint64_t sink = 64,
                     std::uint64_t window = 2048) {
    JsonValue out = JsonValue::object();
    out.set("layers", layers);
    out.set("elements_per_token", elements);
    out.set("sink_size", sink);
    out.set("window_size", window);
    return out;
  }

  kvpack::testing::FakeFileSystem fs_;
  JsonValue good_ = JsonValue::object();
};

TEST_F(ReceiverConfigTest, AGoodFileIsReadAndItsPathsStartAtItsFolder) {
  const auto config = load(good_);
  ASSERT_TRUE(config.has_value()) << config.error().message;
  EXPECT_EQ(config->listen.text(), "127.0.0.1:29590");
  EXPECT_EQ(config->certificate_chain, "/etc/kvpack/chain.pem");
  EXPECT_EQ(config->private_key, "/etc/kvpack/key.pem");
  EXPECT_EQ(config->replay_ledger, "/etc/kvpack/ledger/replay.json");
  EXPECT_EQ(config->peer_leaf_sha256.size(), 2U);
  EXPECT_EQ(config->minimum_hmac_epoch, 4U);
  EXPECT_EQ(config->identity.model_sha256, digest_of('d'));
  EXPECT_FALSE(config->producer_control.has_value());
  EXPECT_FALSE(config->dflash_context_geometry.has_value());
  EXPECT_EQ(with("listen", "[::1]:1"), "ok");
  for (const char* optional : {"advertised_receiver_host", "producer_control", "producer_mode",
                               "dflash_identity_sha256", "dflash_context_geometry"})
    EXPECT_EQ(with(optional, JsonValue()), "ok") << optional;
}

TEST_F(ReceiverConfigTest, EveryKeyIsNeededKnownAndGivenOnce) {
  for (const JsonMember& member : *good_.as_object())
    EXPECT_EQ(verdict(without(good_, member.key)),
              "parse cluster config " + kPath + ": `" + member.key + "` is missing");
  EXPECT_EQ(with("max_transfers", 1U),
            "parse cluster config " + kPath + ": `max_transfers` is not a known key");
  EXPECT_EQ(with_identity("x", "y"), "parse cluster config " + kPath + ": `identity.x` is not a known key");
  JsonValue odd_control = control();
  odd_control.set("x", 1U);
  EXPECT_EQ(with("producer_control", std::move(odd_control)),
            "parse cluster config " + kPath + ": `producer_control.x` is not a known key");
  JsonValue odd_geometry = geometry();
  odd_geometry.set("x", 1U);
  EXPECT_EQ(with("dflash_context_geometry", std::move(odd_geometry)),
            "parse cluster config " + kPath + ": `dflash_context_geometry.x` is not a known key");
  const std::string text = canonical_json_text(good_);
  fs_.put_file(kPath, byte_view(text.substr(0, text.size() - 1) + ",\"timeout_ms\":5}"));
  const auto twice = load_receiver_config(fs_, kPath);
  ASSERT_FALSE(twice.has_value());
  EXPECT_THAT(twice.error().message, StartsWith("parse cluster config " + kPath + ": "));
}

TEST_F(ReceiverConfigTest, WrongTypesAreRefusedByName) {
  EXPECT_THAT(with("listen", "localhost:29590"), HasSubstr("`listen` must be ip:port"));
  EXPECT_THAT(with("listen", "::1:29590"), HasSubstr("`listen` must be ip:port"));
  EXPECT_THAT(with("listen", "127.0.0.1:65536"), HasSubstr("`listen` must be ip:port"));
  EXPECT_THAT(with("schema_version", 4'294'967'296U),
              HasSubstr("`schema_version` must be an unsigned integer"));
  EXPECT_THAT(with("timeout_ms", "5"), HasSubstr("`timeout_ms` must be an unsigned integer"));
  EXPECT_THAT(with("peer_leaf_sha256", "x"), HasSubstr("`peer_leaf_sha256` must be an array"));
  EXPECT_THAT(with("producer_mode", "fast"), HasSubstr("`producer_mode` is not one of the known names"));
  EXPECT_THAT(with("producer_control", control("host:1")), HasSubstr("`producer_control.address` must be"));
}

TEST_F(ReceiverConfigTest, TheRulesHaveTheirTextsInTheirOrder) {
  EXPECT_EQ(with("schema_version", 2U), "cluster config schema_version must be 1");
  const std::string bounds = "cluster config timing or HMAC bounds are invalid";
  EXPECT_EQ(with("timeout_ms", 0U), bounds);
  EXPECT_EQ(with("timeout_ms", 900'001U), bounds);
  EXPECT_EQ(with("wait_for_producer_ms", 0U), bounds);
  EXPECT_EQ(with("wait_for_producer_ms", 900'001U), bounds);
  EXPECT_EQ(with("minimum_hmac_epoch", 0U), bounds);
  EXPECT_EQ(with("hmac_key_id", ""), bounds);
  EXPECT_EQ(with("hmac_key_id", std::string(129, 'k')), bounds);
  EXPECT_EQ(with("hmac_key_id", std::string(128, 'k')), "ok");

  const std::string upper(64, 'A');
  const std::pair<const char*, const char*> identities[]{{"model_sha256", "model"},
                                                         {"tokenizer_sha256", "tokenizer"},
                                                         {"chat_template_sha256", "chat template"},
                                                         {"context_policy_sha256", "context policy"},
                                                         {"adapter_sha256", "adapter"}};
  for (const auto& [key, label] : identities)
    EXPECT_EQ(with_identity(key, upper), std::string(label) + " identity must be lowercase SHA-256");
  EXPECT_EQ(with_identity("model_revision", ""), "ok");
  EXPECT_EQ(with("target_cache_identity_sha256", "f"), "target cache identity must be lowercase SHA-256");

  EXPECT_EQ(with("peer_leaf_sha256", JsonValue::array()),
            "cluster config must pin at least one producer TLS leaf");
  JsonValue pins = JsonValue::array();
  pins.push(upper);
  EXPECT_EQ(with("peer_leaf_sha256", std::move(pins)),
            "producer TLS leaf identity must be lowercase SHA-256");
}

TEST_F(ReceiverConfigTest, DflashIsEnrolledWholeOrNotAtAll) {
  const std::string together = "DFlash identity and dflash_context_geometry must be declared together";
  EXPECT_EQ(with("dflash_identity_sha256", digest_of('9')), together);
  EXPECT_EQ(with("dflash_context_geometry", geometry()), together);
  JsonValue both = good_.clone();
  both.set("dflash_identity_sha256", digest_of('9'));
  both.set("dflash_context_geometry", geometry());
  EXPECT_EQ(verdict(both), "ok");
  const auto broken = [&](JsonValue bad) {
    JsonValue changed = both.clone();
    changed.set("dflash_context_geometry", std::move(bad));
    return verdict(changed);
  };
  EXPECT_EQ(broken(geometry(0, 0, 0, 0)), "DFlash context geometry layers must be positive");
  EXPECT_EQ(broken(geometry(1, 0, 0, 0)), "DFlash context geometry elements_per_token must be positive");
  EXPECT_EQ(broken(geometry(1, 1, 0, 0)), "DFlash context geometry sink_size must be positive");
  EXPECT_EQ(broken(geometry(1, 1, 1, 0)), "DFlash context geometry window_size must be positive");
  EXPECT_EQ(broken(geometry(1ULL << 62, 4, 1, 1)), "DFlash context geometry overflows");
  JsonValue digest = both.clone();
  digest.set("dflash_identity_sha256", "9");
  EXPECT_EQ(verdict(digest), "DFlash identity must be lowercase SHA-256");
  JsonValue native = both.clone();
  native.set("producer_mode", "native");
  EXPECT_EQ(verdict(native), "native producer mode cannot enroll DFlash context geometry");
  native.set("producer_mode", "exact");
  EXPECT_EQ(verdict(native), "ok");
}

TEST_F(ReceiverConfigTest, ControlNeedsAWayBack) {
  EXPECT_EQ(with("producer_control", control()), "producer_control requires advertised_receiver_host");
  JsonValue both = good_.clone();
  both.set("advertised_receiver_host", "receiver.local");
  both.set("producer_control", control());
  EXPECT_EQ(verdict(both), "ok");
  const std::string invalid = "producer control server/receiver host is invalid";
  for (const std::string_view name : {"", "a:b", "a b", "a/b"}) {
    both.set("producer_control", control("127.0.0.1:7", name));
    EXPECT_EQ(verdict(both), invalid) << name;
  }
  both.set("producer_control", control("127.0.0.1:7", std::string(254, 'a')));
  EXPECT_EQ(verdict(both), invalid);
  both.set("producer_control", control());
  both.set("advertised_receiver_host", "::1");
  EXPECT_EQ(verdict(both), "ok");
  both.set("advertised_receiver_host", "");
  EXPECT_EQ(verdict(both), invalid);
  both.set("advertised_receiver_host", "::1");
  both.set("listen", "127.0.0.1:0");
  EXPECT_EQ(verdict(both), "producer_control requires a listen port");
  EXPECT_EQ(with("listen", "127.0.0.1:0"), "ok");
}

TEST_F(ReceiverConfigTest, FilesThatAreNotThereAreNamed) {
  const std::pair<const char*, const char*> files[]{{"certificate_chain", "certificate chain"},
                                                    {"private_key", "private key"},
                                                    {"peer_ca", "peer CA"},
                                                    {"hmac_key_file", "HMAC key"}};
  for (const auto& [key, label] : files) {
    EXPECT_EQ(with(key, "absent"), std::string(label) + " is not a file: /etc/kvpack/absent");
    EXPECT_EQ(with(key, "/etc"), std::string(label) + " is not a file: /etc");
  }
  const auto absent = load_receiver_config(fs_, "/etc/kvpack/none.json");
  ASSERT_FALSE(absent.has_value());
  EXPECT_THAT(absent.error().message, StartsWith("read cluster config /etc/kvpack/none.json: "));
}

TEST_F(ReceiverConfigTest, ALongPromptIsWaitedForLonger) {
  const auto config = load(good_);
  EXPECT_EQ(producer_wait_ms(*config, 2), 1000U);
  EXPECT_EQ(producer_wait_ms(*config, 1000), 35'000U);
  EXPECT_EQ(producer_wait_ms(*config, 131'072), 900'000U);
  EXPECT_EQ(producer_wait_ms(*config, std::numeric_limits<std::uint64_t>::max()), 900'000U);
}

TEST(SocketAddress, LiteralAddressesAlone) {
  EXPECT_EQ(parse_socket_address("10.0.0.1:0")->text(), "10.0.0.1:0");
  EXPECT_EQ(parse_socket_address("[fe80::1]:80")->text(), "[fe80::1]:80");
  EXPECT_TRUE(parse_socket_address("127.8.9.1:1")->is_loopback());
  EXPECT_TRUE(parse_socket_address("[::1]:1")->is_loopback());
  EXPECT_FALSE(parse_socket_address("10.0.0.1:1")->is_loopback());
  for (const std::string_view bad : {"", ":", "1.2.3.4", "1.2.3.4:", "1.2.3:5", "1.2.3.4:-1", "1.2.3.4:65536",
                                     "::1:5", "[::1]", "[1.2.3.4]:5", "a:5", " 1.2.3.4:5", "1.2.3.4:5 "})
    EXPECT_FALSE(parse_socket_address(bad).has_value()) << bad;
}

TEST(HostPort, NamesToo) {
  EXPECT_EQ(parse_host_port("decoder.local:29590")->host, "decoder.local");
  EXPECT_EQ(parse_host_port("[::1]:1")->host, "::1");
  for (const std::string_view bad : {"", "a", "a:", "a:0", ":1", "a b:1", "::1:1", "[x]:1", "a/b:1"})
    EXPECT_FALSE(parse_host_port(bad).has_value()) << bad;
}

}  // namespace kvpack::net::receiver_config_test
