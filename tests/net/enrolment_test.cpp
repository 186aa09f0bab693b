#include "kvpack/net/enrolment.h"

#include <sys/stat.h>

#include <algorithm>
#include <map>

#include "kvpack/net/producer_config.h"
#include "kvpack/net/receiver_config.h"
#include "kvpack/net/receiver_settings.h"
#include "net/cluster_fixture.h"
#include "net/settings_fixture.h"

namespace kvpack::net::enrolment_test {

using kvpack::testing::TempDirectory;
using testing::Cluster;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::identity_json;
using ::testing::IsEmpty;
using ::testing::StartsWith;

/// Two machines and a CA, each a folder.
class Enrolment : public Cluster {
 protected:
  Enrolment() {
    JsonValue model = JsonValue::object();
    model.set("identity", identity_json());
    model.set("target_cache_identity_sha256", testing::digest_of('f'));
    put("model.json", canonical_json_text(model));
  }
  void put(const std::string& name, const std::string& content) {
    testing::write_file(folder_.path(name), content, testing::kPrivate);
  }
  std::string text(const std::string& name) const {
    std::ifstream in(folder_.path(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  /// Names and contents of all files of a folder but locks.
  std::map<std::string, std::string> snapshot(const std::string& name) const {
    std::map<std::string, std::string> out;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_.path(name)))
      if (entry.is_regular_file() && entry.path().extension() != ".lock")
        out[entry.path().lexically_relative(folder_.path(name)).string()] =
            text(entry.path().lexically_relative(folder_.path()).string());
    return out;
  }
  template <class T>
  static std::string verdict(const Result<T>& result) {
    return result.has_value() ? "done" : result.error().verdict();
  }

  std::string make_ca() { return verdict(make_enrolment_authority(fs_, folder_.path("ca"), "test")); }
  Result<std::string> request(const std::string& name, EnrolmentRole role,
                              const std::string& server_name = "localhost") {
    return make_enrolment_request(fs_, random_, folder_.path(name), role, server_name, "k1");
  }
  std::string sign(const std::string& request_file, const std::string& out) {
    return verdict(
        sign_enrolment_request(fs_, folder_.path("ca"), folder_.path(request_file), folder_.path(out)));
  }
  /// Up to the signed certificates `r.pem` and `p.pem`. @return the receiver's key check
  std::string prepare() {
    EXPECT_EQ(make_ca(), "done");
    const auto check = request("r", EnrolmentRole::kReceiver);
    EXPECT_EQ(verdict(check), "done");
    EXPECT_EQ(verdict(request("p", EnrolmentRole::kProducer)), "done");
    EXPECT_EQ(sign("r/request.pem", "r.pem"), "done");
    EXPECT_EQ(sign("p/request.pem", "p.pem"), "done");
    std::filesystem::copy_file(folder_.path("r/hmac.key"), folder_.path("p/hmac.key"));
    return check.has_value() ? *check : "";
  }
  EnrolmentCredentials credentials(const std::string& own, const std::string& peer) const {
    EnrolmentCredentials out;
    out.directory = folder_.path(own);
    out.certificate_file = folder_.path(own + ".pem");
    out.authority_file = folder_.path("ca/ca.pem");
    out.peer_files = {folder_.path(peer + ".pem")};
    out.hmac_key_id = "k1";
    out.timeout_ms = 20'000;
    return out;
  }
  ReceiverEnrolment receiver() const {
    ReceiverEnrolment out;
    out.credentials = credentials("r", "p");
    out.listen = "127.0.0.1:0";
    return out;
  }
  ProducerEnrolment producer() const {
    ProducerEnrolment out;
    out.credentials = credentials("p", "r");
    out.receiver = "127.0.0.1:9";
    out.server_name = "localhost";
    return out;
  }
  Result<FinishedEnrolment> finish(const ReceiverEnrolment& receiver) {
    KVPACK_TRY_ASSIGN(const EnrolledModel model, load_enrolled_model(fs_, folder_.path("model.json")));
    clock_.hold();
    auto done = finish_receiver_enrolment(fs_, clock_, receiver, model);
    clock_.go_on();
    return done;
  }
  Result<FinishedEnrolment> finish(const ProducerEnrolment& producer) {
    KVPACK_TRY_ASSIGN(const EnrolledModel model, load_enrolled_model(fs_, folder_.path("model.json")));
    clock_.hold();
    auto done = finish_producer_enrolment(fs_, clock_, producer, model);
    clock_.go_on();
    return done;
  }

  SystemRandom random_;
};

TEST_F(Enrolment, TheTwoConfigurationsTransfer) {
  const std::string check = prepare();
  ReceiverEnrolment receiving = receiver();
  receiving.metrics_listen = "127.0.0.1:0";
  receiving.receipts = "receipts.jsonl";
  const auto received = finish(receiving);
  ASSERT_EQ(verdict(received), "done");
  const auto produced = finish(producer());
  ASSERT_EQ(verdict(produced), "done");
  EXPECT_EQ(received->key_check, check);
  EXPECT_EQ(produced->key_check, check);
  EXPECT_EQ(check.size(), 16U);
  EXPECT_EQ(received->model_check, produced->model_check);
  EXPECT_EQ(received->peers.at(0).sha256, produced->certificate.sha256);
  EXPECT_EQ(text("r/replay.json"), "{\n  \"highest_generation\": {}\n}\n");

  const auto config = load_receiver_config(fs_, received->config_file);
  ASSERT_EQ(verdict(config), "done");
  const auto settings = load_receiver_settings(fs_, folder_.path("r/local.json"));
  ASSERT_EQ(verdict(settings), "done");
  EXPECT_EQ(settings->receipts, folder_.path("r/receipts.jsonl"));
  const auto sending = load_producer_config(fs_, produced->config_file);
  ASSERT_EQ(verdict(sending), "done");
  receiver_config_ = *config;
  settings_ = *settings;
  producer_config_ = *sending;
  start();
  EXPECT_EQ(outcome(), "acknowledged");
  EXPECT_FALSE(receiver_->counters().ledger_was_missing);
}

TEST_F(Enrolment, SecretsArePrivateAndStay) {
  prepare();
  EXPECT_EQ(verdict(finish(receiver())), "done");
  EXPECT_EQ(verdict(finish(producer())), "done");
  for (const char* name : {"ca/ca.key", "r/tls.key", "r/hmac.key", "p/tls.key"}) {
    struct stat facts {};
    ASSERT_EQ(::stat(folder_.path(name).c_str(), &facts), 0) << name;
    EXPECT_EQ(facts.st_mode & 07777U, 0600U) << name;
  }
  EXPECT_THAT(text("r/tls.key"), StartsWith("-----BEGIN PRIVATE KEY-----\n"));
  EXPECT_EQ(text("r/hmac.key").size(), 65U);
  for (const char* name :
       {"r/request.pem", "r.pem", "r/receiver.json", "r/certificate.pem", "p/producer.json"}) {
    EXPECT_EQ(text(name).find("PRIVATE"), std::string::npos) << name;
    EXPECT_EQ(text(name).find(text("r/hmac.key").substr(0, 64)), std::string::npos) << name;
  }
}

TEST_F(Enrolment, NothingIsReplaced) {
  prepare();
  const auto ca = snapshot("ca");
  const auto end = snapshot("r");
  EXPECT_EQ(make_ca(), "expectation:target exists");
  EXPECT_EQ(verdict(request("r", EnrolmentRole::kReceiver)), "expectation:target exists");
  EXPECT_EQ(snapshot("ca"), ca);
  EXPECT_EQ(snapshot("r"), end);
  ASSERT_EQ(verdict(finish(receiver())), "done");
  const auto finished = snapshot("r");
  // The same again is the same.
  EXPECT_EQ(verdict(finish(receiver())), "done");
  EXPECT_EQ(snapshot("r"), finished);
  // But for a ledger that has gone: what it knew would be forgotten without a word.
  const std::string ledger = folder_.path("r/replay.json");
  std::filesystem::rename(ledger, ledger + ".aside");
  EXPECT_EQ(verdict(finish(receiver())), "config:replay ledger " + ledger +
                                             " of a finished enrolment is missing: raise the epoch, and the "
                                             "receiver creates it at its next start");
  std::filesystem::rename(ledger + ".aside", ledger);
  EXPECT_EQ(snapshot("r"), finished);
  ReceiverEnrolment other = receiver();
  other.listen = "127.0.0.1:1";
  const auto refused = finish(other);
  EXPECT_EQ(verdict(refused), "expectation:target exists with different bytes");
  ASSERT_FALSE(refused.error().context.empty());
  EXPECT_EQ(refused.error().context.back().value, folder_.path("r/receiver.json"));
  EXPECT_EQ(snapshot("r"), finished);
}

TEST_F(Enrolment, AKeyIsSignedOnce) {
  prepare();
  const auto before = snapshot("ca");
  EXPECT_EQ(sign("r/request.pem", "again.pem"), "expectation:public key is already enrolled");
  EXPECT_FALSE(std::filesystem::exists(folder_.path("again.pem")));
  EXPECT_EQ(snapshot("ca"), before);
  EXPECT_EQ(before.size(), 4U);  // key, certificate, two that were signed
  ASSERT_EQ(verdict(request("x", EnrolmentRole::kProducer)), "done");
  put("taken.pem", "something else");
  EXPECT_EQ(sign("x/request.pem", "taken.pem"), "expectation:target exists with different bytes");
  EXPECT_EQ(text("taken.pem"), "something else");
  EXPECT_EQ(snapshot("ca"), before);
  EXPECT_EQ(sign("x/request.pem", "x.pem"), "done");
}

TEST_F(Enrolment, WhatIsNoRequestIsNotSigned) {
  prepare();
  ASSERT_EQ(verdict(request("x", EnrolmentRole::kProducer)), "done");
  put("junk.pem", "junk");
  EXPECT_EQ(sign("junk.pem", "o.pem"), "validation:certificate request is malformed");
  EXPECT_EQ(sign("r.pem", "o.pem"), "validation:certificate request is malformed");
  EXPECT_THAT(sign("missing.pem", "o.pem"), StartsWith("not_found:"));
  put("long.pem", std::string(70'000, 'x'));
  EXPECT_THAT(sign("long.pem", "o.pem"), StartsWith("limit:"));
  EXPECT_FALSE(std::filesystem::exists(folder_.path("o.pem")));
  std::filesystem::permissions(folder_.path("ca/ca.key"), std::filesystem::perms::group_read,
                               std::filesystem::perm_options::add);
  EXPECT_EQ(sign("x/request.pem", "o.pem"), "config:TLS private key must not be accessible by group/other");
  std::filesystem::remove(folder_.path("ca/ca.key"));
  std::filesystem::copy_file(folder_.path("r/tls.key"), folder_.path("ca/ca.key"));
  EXPECT_EQ(sign("x/request.pem", "o.pem"), "validation:CA key and certificate do not belong together");
}

TEST_F(Enrolment, BadNamesMakeNoFolder) {
  EXPECT_EQ(verdict(request("x", EnrolmentRole::kReceiver, "a b")), "config:invalid server name: a b");
  EXPECT_EQ(
      verdict(make_enrolment_request(fs_, random_, folder_.path("x"), EnrolmentRole::kReceiver, "a", "")),
      "state:key id must be 1 to 128 bytes of UTF-8");
  EXPECT_EQ(verdict(make_enrolment_request(fs_, random_, folder_.path("x"), EnrolmentRole::kReceiver, "a",
                                           std::string(129, 'k'))),
            "state:key id must be 1 to 128 bytes of UTF-8");
  EXPECT_EQ(verdict(make_enrolment_authority(fs_, folder_.path("x"), "a/b")),
            "state:name of a CA must be 1 to 64 characters of [A-Za-z0-9._ -]");
  EXPECT_FALSE(std::filesystem::exists(folder_.path("x")));
}

// Whatever is mixed up, the folder stays as it was.
TEST_F(Enrolment, WhatDoesNotBelongTogetherIsNotFinished) {
  prepare();
  ASSERT_EQ(verdict(make_enrolment_authority(fs_, folder_.path("other-ca"), "other")), "done");
  const auto before_receiver = snapshot("r");
  const auto before_producer = snapshot("p");
  const auto refusal = [&](auto change) {
    ReceiverEnrolment changed = receiver();
    change(changed);
    const std::string out = verdict(finish(changed));
    EXPECT_EQ(snapshot("r"), before_receiver) << out;
    return out;
  };
  EXPECT_EQ(refusal([&](auto& r) { r.credentials.certificate_file = folder_.path("p.pem"); }),
            "validation:certificate is not for the key in " + folder_.path("r/tls.key"));
  EXPECT_EQ(refusal([&](auto& r) { r.credentials.peer_files = {folder_.path("r.pem")}; }),
            "validation:peer certificate has this end's own key");
  EXPECT_THAT(refusal([&](auto& r) { r.credentials.authority_file = folder_.path("other-ca/ca.pem"); }),
              StartsWith("tls:certificate does not verify against the CA: "));
  EXPECT_THAT(refusal([&](auto& r) { r.credentials.authority_file = folder_.path("model.json"); }),
              StartsWith("validation:certificate chain is empty: "));
  EXPECT_THAT(refusal([&](auto& r) { r.credentials.hmac_key_file = folder_.path("model.json"); }),
              StartsWith("config:"));
  EXPECT_THAT(refusal([&](auto& r) { r.credentials.hmac_key_file = folder_.path("missing"); }),
              StartsWith("not_found:"));
  EXPECT_EQ(refusal([&](auto& r) { r.credentials.hmac_key_id.clear(); }),
            "state:key id must be 1 to 128 bytes of UTF-8");
  EXPECT_THAT(refusal([&](auto& r) { r.listen = "gpu1:29590"; }), HasSubstr("must be ip:port"));
  EXPECT_THAT(refusal([&](auto& r) { r.metrics_listen = "192.0.2.1:9"; }),
              HasSubstr("must be a loopback ip:port"));
  EXPECT_EQ(refusal([&](auto& r) { r.credentials.hmac_epoch = 0; }),
            "config:cluster config timing or HMAC bounds are invalid");
  EXPECT_EQ(refusal([&](auto& r) { r.credentials.timeout_ms = 900'001; }),
            "config:cluster config timing or HMAC bounds are invalid");
  EXPECT_EQ(refusal([&](auto& r) { r.credentials.peer_files.clear(); }),
            "config:cluster config must pin at least one producer TLS leaf");
  ProducerEnrolment misnamed = producer();
  misnamed.server_name.clear();
  EXPECT_EQ(verdict(finish(misnamed)), "validation:certificate is not for 127.0.0.1");
  EXPECT_EQ(snapshot("p"), before_producer);
  // A ledger that a receiver would not start with.
  put("r/replay.json", "{");
  EXPECT_THAT(verdict(finish(receiver())), StartsWith("config:replay ledger: "));
  EXPECT_EQ(text("r/replay.json"), "{");
  EXPECT_FALSE(std::filesystem::exists(folder_.path("r/receiver.json")));
}

TEST_F(Enrolment, AnExpiredCertificateIsNotFinished) {
  const testing::Authority::Leaf expired = authority_.issue("expired", "localhost", 0);
  ASSERT_TRUE(std::filesystem::create_directory(folder_.path("e")));
  std::filesystem::rename(expired.key, folder_.path("e/tls.key"));
  ReceiverEnrolment receiving = receiver();
  receiving.credentials.directory = folder_.path("e");
  receiving.credentials.certificate_file = expired.chain;
  receiving.credentials.authority_file = authority_.path();
  const auto before = snapshot("e");
  const auto done = finish(receiving);
  EXPECT_THAT(verdict(done), StartsWith("tls:certificate does not verify against the CA: "));
  EXPECT_EQ(snapshot("e"), before);
}

TEST_F(Enrolment, TheKeyCheckIsOfKeyAndName) {
  const handoff::MacKey seven(std::array<std::uint8_t, 32>{7});
  const handoff::MacKey eight(std::array<std::uint8_t, 32>{8});
  const std::string check = *mac_key_check(seven, "k1");
  EXPECT_EQ(check, seven.tag_domain_hex(byte_view("kvpack-key-check-v1"), byte_view("k1"))->substr(0, 16));
  EXPECT_NE(check, *mac_key_check(seven, "k2"));
  EXPECT_NE(check, *mac_key_check(eight, "k1"));
}

TEST_F(Enrolment, AModelFileIsClosed) {
  const auto refusal = [&](const std::string& content) {
    put("m.json", content);
    return verdict(load_enrolled_model(fs_, folder_.path("m.json")));
  };
  const std::string good = text("model.json");
  EXPECT_EQ(refusal(good), "done");
  EXPECT_THAT(refusal("{"), StartsWith("json:"));
  EXPECT_EQ(refusal("{}"), "json:`identity` is missing");
  EXPECT_THAT(refusal(good.substr(0, good.size() - 1) + ",\"x\":1}"), HasSubstr("`x` is not a known key"));
  std::string loud = good;
  loud.replace(loud.find(std::string(64, 'd')), 1, "D");
  EXPECT_EQ(refusal(loud), "json:`identity.model_sha256` must be lowercase SHA-256");
}

}  // namespace kvpack::net::enrolment_test
