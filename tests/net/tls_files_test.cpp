#include "net/tls_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "net/tls_certificates.h"
#include "support/fake_fs.h"

namespace kvpack::net::tls_files_test {

using kvpack::testing::FakeFileSystem;
using ::testing::StartsWith;

template <class T>
std::string verdict(const Result<T>& result) {
  return result.has_value() ? "ok" : result.error().verdict();
}

class TlsFilesTest : public ::testing::Test {
 protected:
  std::string key_verdict() { return verdict(read_private_key(fs_, "/key.pem")); }
  std::string chain_verdict(std::string_view content) {
    fs_.put_file("/chain.pem", byte_view(content));
    return verdict(read_certificates(fs_, "/chain.pem"));
  }
  FakeFileSystem fs_;
};

TEST_F(TlsFilesTest, AKeyIsReadFromAPrivateFileAlone) {
  const Bytes pem = *private_key_pem(*make_private_key());
  fs_.put_file("/key.pem", pem);
  EXPECT_EQ(key_verdict(), "ok");
  for (const std::uint32_t mode : {0640U, 0604U, 0660U}) {
    fs_.put_file("/key.pem", pem, mode);
    EXPECT_EQ(key_verdict(), "config:TLS private key must not be accessible by group/other");
  }
  fs_.put_file("/key.pem", {}, 0777, FileKind::kSymbolicLink);
  EXPECT_EQ(key_verdict(), "config:TLS private key must be a regular non-symlink file");
  fs_.put_file("/key.pem", {});
  EXPECT_EQ(key_verdict(), "config:TLS private key size is outside 1..=1048576 bytes");
  fs_.put_file("/key.pem", Bytes(1'048'577, 'x'));
  EXPECT_EQ(key_verdict(), "config:TLS private key size is outside 1..=1048576 bytes");
  fs_.put_file("/key.pem", byte_view("no key"));
  EXPECT_THAT(key_verdict(), StartsWith("config:invalid private-key PEM: "));
  for (std::size_t n = 1; n + 1 < pem.size(); n += 7) {
    fs_.put_file("/key.pem", ByteSpan(pem).first(n));
    EXPECT_THAT(key_verdict(), StartsWith("config:invalid private-key PEM: ")) << n;
  }
}

// Replaced between the look at the name and the look at the open file.
TEST_F(TlsFilesTest, AKeyThatChangesMeanwhileIsRefused) {
  const Bytes pem = *private_key_pem(*make_private_key());
  fs_.put_file("/key.pem", pem);
  fs_.before_operation([&](const kvpack::testing::Operation& operation) {
    if (operation.verb == "open") fs_.put_file("/key.pem", pem);
  });
  EXPECT_EQ(key_verdict(), "config:TLS private key changed while it was opened");
}

TEST_F(TlsFilesTest, AChainIsOneOrMoreCertificatesAndNothingBroken) {
  const PrivateKey key = *make_private_key();
  const std::string one = *certificate_pem(*make_authority(key, "a"));
  EXPECT_EQ(chain_verdict(one), "ok");
  EXPECT_EQ(chain_verdict(one + one), "ok");
  EXPECT_EQ(read_certificates(fs_, "/chain.pem")->size(), 2U);
  EXPECT_EQ(chain_verdict(""), "config:certificate chain is empty: /chain.pem");
  EXPECT_EQ(chain_verdict("text"), "config:certificate chain is empty: /chain.pem");
  EXPECT_THAT(chain_verdict(one + one.substr(0, one.size() / 2)),
              StartsWith("config:invalid certificate PEM: "));
}

TEST(TlsCertificates, ARequestIsAnsweredForTheNameItAsksFor) {
  const PrivateKey authority_key = *make_private_key();
  const Certificate authority = *make_authority(authority_key, "house");
  const PrivateKey key = *make_private_key();
  for (const std::string name : {"decoder.local", "10.0.0.7", "::1"}) {
    const std::string request = *make_request(key, name);
    const auto leaf = sign_request(authority_key, authority, request);
    ASSERT_TRUE(leaf.has_value()) << leaf.error().verdict();
    EXPECT_EQ(*certificate_public_key(*leaf), *request_public_key(request));
    EXPECT_EQ(leaf_sha256(*leaf)->size(), 64U);
  }
}

TEST(TlsCertificates, BrokenRequestsAndNamesAreRefused) {
  const PrivateKey authority_key = *make_private_key();
  const Certificate authority = *make_authority(authority_key, "house");
  const PrivateKey key = *make_private_key();
  EXPECT_EQ(verdict(make_request(key, "a b")), "config:invalid server name: a b");
  EXPECT_EQ(verdict(make_request(key, "")), "config:invalid server name: ");
  EXPECT_EQ(verdict(make_request(key, "a,DNS:b")), "config:invalid server name: a,DNS:b");
  EXPECT_EQ(verdict(sign_request(authority_key, authority, "")), "config:certificate request is malformed");
  std::string request = *make_request(key, "decoder.local");
  EXPECT_EQ(verdict(sign_request(authority_key, authority, request.substr(0, 100))),
            "config:certificate request is malformed");
}

}  // namespace kvpack::net::tls_files_test
