#include "kvpack/handoff/mac_key.h"

#include <sys/stat.h>

#include "handoff/handoff_support.h"
#include "kvpack/handoff/mac_key_file.h"
#include "support/fake_fs.h"
#include "support/temp_directory.h"

namespace kvpack::handoff::mac_key_test {
namespace {

using namespace kvpack::handoff::testing;
using kvpack::testing::FakeFileSystem;
using kvpack::testing::Operation;
using kvpack::testing::TempDirectory;

TEST(MacKey, TagsMatchTheVectors) {
  for (const JsonValue& c : list(at(vectors(), "mac"), "plain"))
    EXPECT_EQ(key_of(c).tag_hex(bytes(c, "stream_hex")), text(c, "tag"));
  for (const JsonValue& c : list(at(vectors(), "mac"), "domain"))
    EXPECT_EQ(*key_of(c).tag_domain_hex(byte_view(text(c, "domain")), bytes(c, "stream_hex")),
              text(c, "tag"));
}

TEST(MacKey, VerificationMatchesTheVectors) {
  for (const JsonValue& c : list(at(vectors(), "mac"), "verify"))
    expect_outcome(key_of(c).verify_hex(bytes(c, "stream_hex"), text(c, "expected")), c);
  for (const JsonValue& c : list(at(vectors(), "mac"), "domain_verify"))
    expect_outcome(key_of(c).verify_domain_hex(byte_view(text(c, "domain")), bytes(c, "stream_hex"),
                                               text(c, "expected")),
                   c);
}

TEST(MacKey, EveryBitOfATagCounts) {
  const MacKey key = small_key();
  const Bytes tag = *from_hex(key.tag_hex(small_payload()));
  for (std::size_t bit = 0; bit < tag.size() * 8; ++bit) {
    Bytes changed = tag;
    changed[bit / 8] = static_cast<std::uint8_t>(changed[bit / 8] ^ (1U << bit % 8));
    EXPECT_EQ(verdict(key.verify_hex(small_payload(), to_hex(changed))),
              "validation:artifact HMAC tag rejected");
  }
}

TEST(MacKey, DomainLengthIsBounded) {
  const MacKey key = small_key();
  const Bytes longest(65535, 'd');
  const Bytes too_long(65536, 'd');
  EXPECT_TRUE(key.tag_domain_hex(longest, {}).has_value());
  EXPECT_EQ(verdict(key.tag_domain_hex(too_long, {})), "validation:MAC domain must contain 1..=65535 bytes");
  EXPECT_EQ(verdict(key.tag_domain_hex({}, {})), "validation:MAC domain must contain 1..=65535 bytes");
}

TEST(MacKey, ConstructorsRefuseOtherLengthsAndSpellings) {
  EXPECT_EQ(verdict(MacKey::from_slice(Bytes(31))), "validation:MAC key must be exactly 32 bytes");
  EXPECT_EQ(verdict(MacKey::from_slice(Bytes(33))), "validation:MAC key must be exactly 32 bytes");
  EXPECT_TRUE(MacKey::from_slice(Bytes(32)).has_value());
  for (const std::string& text :
       {std::string(63, '0'), std::string(64, 'Z'), std::string(64, 'A'), std::string()})
    EXPECT_EQ(verdict(MacKey::from_hex(text)), "validation:MAC key must be 64 lowercase hexadecimal digits");
  EXPECT_EQ(small_key().duplicate().tag_hex({}), small_key().tag_hex({}));
}

TEST(MacKeyFile, ConsumerContentMatchesTheVectors) {
  for (const JsonValue& c : list(at(vectors(), "mac"), "key_files")) {
    Bytes content;
    if (at(c, "content_hex").is_null()) {
      // The long ones: the hex form with line feeds behind it.
      content = Bytes(number(c, "bytes"), '\n');
      std::ranges::copy(byte_view("000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"),
                        content.begin());
    } else {
      content = bytes(c, "content_hex");
    }
    const auto key = parse_consumer_mac_key(content);
    SCOPED_TRACE(text(c, "name"));
    expect_outcome(key, at(c, "consumer"));
    if (key.has_value()) {
      EXPECT_EQ(key->tag_hex({}), key_of(c).tag_hex({}));
    }
  }
}

constexpr std::string_view kHex = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

std::string producer(std::string_view content) {
  const auto key = parse_producer_mac_key(byte_view(content));
  if (!key.has_value()) return key.error().verdict();
  return key->tag_hex({}) == MacKey::from_hex(kHex)->tag_hex({}) ? "the key" : "another key";
}

TEST(MacKeyFile, ProducerContentTakesBlanksAroundTheHexForm) {
  const std::string hex(kHex);
  EXPECT_EQ(producer(hex), "the key");
  EXPECT_EQ(producer(" \t" + hex + "\r\n \v\f"), "the key");
  std::string raw(32, '\0');
  for (std::size_t i = 0; i < raw.size(); ++i) raw[i] = static_cast<char>(i);
  EXPECT_EQ(producer(raw), "the key");
  EXPECT_EQ(producer(std::string(32, ' ')), "another key");
  EXPECT_EQ(producer(raw + "\n"), "config:HMAC key must be 32 raw bytes or 64 lowercase hex digits");
  EXPECT_EQ(producer(hex.substr(1)), "config:HMAC key must be 32 raw bytes or 64 lowercase hex digits");
  EXPECT_EQ(producer(""), "config:HMAC key must be 32 raw bytes or 64 lowercase hex digits");
  EXPECT_EQ(producer(hex.substr(0, 63) + "g"), "config:HMAC key is not lowercase hexadecimal");
  EXPECT_EQ(producer(hex.substr(0, 63) + "F"), "config:HMAC key must use lowercase hexadecimal");
  EXPECT_EQ(producer(hex + std::string(4032, '\n')), "the key");
  EXPECT_EQ(producer(hex + std::string(4033, '\n')), "config:HMAC key file is unexpectedly large");
}

class MacKeyFileOnDisk : public ::testing::Test {
 protected:
  void write(const std::string& name, std::string_view content, unsigned mode) {
    std::ofstream(directory_.path(name), std::ios::binary) << content;
    ASSERT_EQ(::chmod(directory_.path(name).c_str(), mode), 0);
  }
  std::string consumer(const std::string& name) {
    return verdict(read_consumer_mac_key(fs_, directory_.path(name)));
  }
  std::string producer(const std::string& name) {
    return verdict(read_producer_mac_key(fs_, directory_.path(name)));
  }

  TempDirectory directory_;
  SystemFileSystem fs_;
};

TEST_F(MacKeyFileOnDisk, OwnFormIsReadByBothSidesAndNeverReplaced) {
  const MacKey key = *MacKey::from_hex(kHex);
  ASSERT_TRUE(write_mac_key(fs_, directory_.path("key"), key).has_value());
  EXPECT_EQ(read_consumer_mac_key(fs_, directory_.path("key"))->tag_hex({}), key.tag_hex({}));
  EXPECT_EQ(read_producer_mac_key(fs_, directory_.path("key"))->tag_hex({}), key.tag_hex({}));
  struct stat facts {};
  ASSERT_EQ(::stat(directory_.path("key").c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 07777U, 0600U);
  EXPECT_EQ(facts.st_size, 65);
  EXPECT_EQ(write_mac_key(fs_, directory_.path("key"), key).error().code, ErrorCode::kExpectation);
}

TEST_F(MacKeyFileOnDisk, AccessForOthersIsRefused) {
  for (const unsigned mode : {0644U, 0640U, 0604U, 0601U, 0620U}) {
    write("key", kHex, mode);
    EXPECT_EQ(consumer("key"), "config:HMAC key must not be accessible by group/other");
    EXPECT_EQ(producer("key"), "config:HMAC key file must not be accessible by group/other");
  }
  write("key", kHex, 0400);
  EXPECT_EQ(consumer("key"), "ok");
  EXPECT_EQ(producer("key"), "ok");
}

TEST_F(MacKeyFileOnDisk, LinksAndOtherThingsThanFilesAreRefused) {
  write("key", kHex, 0600);
  std::filesystem::create_symlink(directory_.path("key"), directory_.path("link"));
  std::filesystem::create_directory(directory_.path("folder"));
  EXPECT_EQ(consumer("link"), "config:HMAC key must be a regular non-symlink file");
  EXPECT_EQ(consumer("folder"), "config:HMAC key must be a regular non-symlink file");
  EXPECT_EQ(producer("link").substr(0, 3), "io:");
  EXPECT_EQ(producer("folder").substr(0, 3), "io:");
  EXPECT_EQ(consumer("missing").substr(0, 10), "not_found:");
  EXPECT_EQ(producer("missing").substr(0, 10), "not_found:");
}

TEST_F(MacKeyFileOnDisk, SizeIsBoundedBeforeTheContentIsJudged) {
  write("key", std::string(kHex) + std::string(4033, '\n'), 0600);
  EXPECT_EQ(consumer("key"), "config:HMAC key file is too large");
  EXPECT_EQ(producer("key"), "config:HMAC key file is unexpectedly large");
}

TEST(MacKeyFileRaces, AFileThatIsExchangedWhileItIsOpenedIsRefused) {
  FakeFileSystem fs;
  fs.put_file("/key", byte_view(kHex));
  fs.before_operation([&](const Operation& operation) {
    if (operation.verb == "open") fs.put_file("/key", Bytes(32));
  });
  EXPECT_EQ(verdict(read_consumer_mac_key(fs, "/key")), "config:HMAC key file changed while it was opened");
}

TEST(MacKeyFileRaces, ShortReadsAreContinued) {
  FakeFileSystem fs;
  fs.put_file("/key", byte_view(kHex));
  fs.limit_transfers(7);
  EXPECT_EQ(read_consumer_mac_key(fs, "/key")->tag_hex({}), MacKey::from_hex(kHex)->tag_hex({}));
  EXPECT_EQ(read_producer_mac_key(fs, "/key")->tag_hex({}), MacKey::from_hex(kHex)->tag_hex({}));
}

TEST(MacKeyFileRaces, EveryFailureIsToldAndAFailedWriteLeavesNothing) {
  const MacKey key = *MacKey::from_hex(kHex);
  for (std::size_t k = 0;; ++k) {
    ASSERT_LT(k, 50U);
    FakeFileSystem fs;
    fs.fail_operation(k, EIO);
    const auto written = write_mac_key(fs, "/key", key);
    if (fs.operation_count() <= k) {
      EXPECT_TRUE(written.has_value());
      break;
    }
    EXPECT_EQ(written.error().code, ErrorCode::kIo);
    EXPECT_EQ(fs.file("/key"), std::nullopt);
  }
  for (std::size_t k = 0;; ++k) {
    ASSERT_LT(k, 50U);
    FakeFileSystem fs;
    fs.put_file("/key", byte_view(kHex));
    fs.fail_operation(k, EIO);
    const auto read = read_consumer_mac_key(fs, "/key");
    if (fs.operation_count() <= k) {
      EXPECT_TRUE(read.has_value());
      break;
    }
    EXPECT_EQ(read.error().code, ErrorCode::kIo);
  }
}

}  // namespace
}  // namespace kvpack::handoff::mac_key_test
