#include "kvpack/net/receiver_settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "net/settings_fixture.h"

namespace kvpack::net::receiver_settings_test {

using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::string kPath = "/etc/kvpack/local.json";

class ReceiverSettingsTest : public ::testing::Test {
 protected:
  ReceiverSettingsTest() { testing::put_credentials(fs_); }
  Result<ReceiverSettings> load(std::string_view members) {
    fs_.put_file(kPath, byte_view("{\"schema\":\"kvpack.receiver.local.v1\"" + std::string(members) + "}"));
    return load_receiver_settings(fs_, kPath);
  }
  std::string verdict(std::string_view members) {
    const auto settings = load(members);
    if (settings.has_value()) return "ok";
    EXPECT_EQ(settings.error().code, ErrorCode::kConfig);
    EXPECT_THAT(settings.error().message, StartsWith("receiver settings " + kPath + ": "));
    return settings.error().message.substr(kPath.size() + 20);
  }
  kvpack::testing::FakeFileSystem fs_;
};

TEST_F(ReceiverSettingsTest, EverythingHasADefault) {
  const auto settings = load("");
  ASSERT_TRUE(settings.has_value()) << settings.error().message;
  EXPECT_EQ(settings->max_connections, 64U);
  EXPECT_EQ(settings->max_transfers, 1U);
  EXPECT_EQ(settings->handshake_timeout_ms, 10'000U);
  EXPECT_EQ(settings->max_transfer_ms, 1'800'000U);
  EXPECT_EQ(settings->max_clock_skew_ms, 30'000U);
  EXPECT_EQ(settings->max_lifetime_ms, 3'600'000U);
  EXPECT_EQ(settings->max_segments, 1'048'576U);
  EXPECT_EQ(settings->max_segment_bytes, 67'108'864U);
  EXPECT_EQ(settings->memory_limit_bytes, 4'294'967'296U);
  EXPECT_TRUE(settings->refusals);
  EXPECT_TRUE(settings->hmac_previous.empty());
  EXPECT_FALSE(settings->metrics_listen.has_value());
  EXPECT_FALSE(settings->store.has_value());
}

TEST_F(ReceiverSettingsTest, EveryKeyIsRead) {
  const auto settings = load(
      R"(,"max_connections":1,"max_transfers":2,"handshake_timeout_ms":3,"max_transfer_ms":4,)"
      R"("max_clock_skew_ms":0,"max_lifetime_ms":6,"max_segments":7,"max_segment_bytes":8,)"
      R"("memory_limit_bytes":9,"refusals":false,"metrics_listen":"[::1]:9","store":"s","receipts":"/r",)"
      R"("hmac_previous":[{"key_id":"a","key_file":"old.key","minimum_epoch":3}])");
  ASSERT_TRUE(settings.has_value()) << settings.error().message;
  EXPECT_EQ(settings->max_connections, 1U);
  EXPECT_EQ(settings->max_clock_skew_ms, 0U);
  EXPECT_EQ(settings->memory_limit_bytes, 9U);
  EXPECT_FALSE(settings->refusals);
  EXPECT_EQ(settings->metrics_listen->text(), "[::1]:9");
  EXPECT_EQ(settings->store, "/etc/kvpack/s");
  EXPECT_EQ(settings->receipts, "/r");
  ASSERT_EQ(settings->hmac_previous.size(), 1U);
  EXPECT_EQ(settings->hmac_previous[0].key_file, "/etc/kvpack/old.key");
  EXPECT_EQ(settings->hmac_previous[0].minimum_epoch, 3U);
}

TEST_F(ReceiverSettingsTest, ViolationsNameTheKey) {
  EXPECT_EQ(verdict(R"(,"max_conections":1)"), "`max_conections` is not a known key");
  EXPECT_EQ(verdict(R"(,"max_connections":0)"), "`max_connections` must be in 1 to 65536");
  EXPECT_EQ(verdict(R"(,"max_transfers":1025)"), "`max_transfers` must be in 1 to 1024");
  EXPECT_EQ(verdict(R"(,"handshake_timeout_ms":0)"), "`handshake_timeout_ms` must be in 1 to 86400000");
  EXPECT_EQ(verdict(R"(,"max_segment_bytes":536870913)"), "`max_segment_bytes` must be in 1 to 536870912");
  EXPECT_EQ(verdict(R"(,"metrics_listen":"10.0.0.1:9")"), "`metrics_listen` must be a loopback ip:port");
  EXPECT_EQ(verdict(R"(,"store":"")"), "`store` must not be empty");
  EXPECT_THAT(verdict(R"(,"refusals":1)"), HasSubstr("`refusals` must be true or false"));
  EXPECT_EQ(verdict(R"(,"hmac_previous":[{},{},{},{},{}])"), "`hmac_previous` must have at most 4 keys");
  EXPECT_EQ(verdict(R"(,"hmac_previous":[{"key_id":"","key_file":"f","minimum_epoch":1}])"),
            "`hmac_previous[0].key_id` must be 1 to 128 bytes");
  EXPECT_EQ(verdict(R"(,"hmac_previous":[{"key_id":"a","key_file":"f","minimum_epoch":0}])"),
            "`hmac_previous[0].minimum_epoch` must be at least 1");
  EXPECT_EQ(verdict(R"(,"hmac_previous":[{"key_id":"a","key_file":"f","minimum_epoch":1},)"
                    R"({"key_id":"a","key_file":"g","minimum_epoch":1}])"),
            "`hmac_previous[1].key_id` is given twice");
}

TEST_F(ReceiverSettingsTest, OtherSchemasAndMissingFilesAreRefused) {
  fs_.put_file(kPath, byte_view(R"({"schema":"kvpack.receiver.local.v2"})"));
  const auto other = load_receiver_settings(fs_, kPath);
  ASSERT_FALSE(other.has_value());
  EXPECT_THAT(other.error().message, HasSubstr("`schema` must be kvpack.receiver.local.v1"));
  const auto absent = load_receiver_settings(fs_, "/etc/kvpack/none.json");
  ASSERT_FALSE(absent.has_value());
  EXPECT_THAT(absent.error().message, StartsWith("read receiver settings /etc/kvpack/none.json: "));
}

}  // namespace kvpack::net::receiver_settings_test
