// A CA, and a receiver and a producer that know each other, as files in a temporary directory.
#pragma once

#include <fstream>

#include "kvpack/net/producer_config.h"
#include "kvpack/net/receiver_config.h"
#include "net/tls_certificates.h"
#include "support/temp_directory.h"

namespace kvpack::net::testing {

inline void write_file(const std::string& path, std::string_view content, std::filesystem::perms mode) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
  std::filesystem::permissions(path, mode);
}
inline constexpr auto kPrivate = std::filesystem::perms::owner_read | std::filesystem::perms::owner_write;

// A CA and what it has signed, as files.
class Authority {
 public:
  Authority(const kvpack::testing::TempDirectory& folder, const std::string& name)
      : folder_(&folder), name_(name), key_(*make_private_key()), certificate_(*make_authority(key_, name)) {
    write_file(path(), *certificate_pem(certificate_), kPrivate);
  }
  std::string path() const { return folder_->path(name_ + "-ca.pem"); }

  struct Leaf {
    std::string chain;
    std::string key;
    std::string sha256;
  };
  // A new key and certificate under `name`.
  Leaf issue(const std::string& name, const std::string& server_name = "localhost",
             int days = kLeafDays) const {
    const PrivateKey key = *make_private_key();
    const Certificate leaf = *sign_request(key_, certificate_, *make_request(key, server_name), days);
    const Leaf out{folder_->path(name + ".pem"), folder_->path(name + "-key.pem"), *leaf_sha256(leaf)};
    write_file(out.chain, *certificate_pem(leaf), kPrivate);
    write_file(out.key, text_view(*private_key_pem(key)), kPrivate);
    return out;
  }

 private:
  const kvpack::testing::TempDirectory* folder_;
  std::string name_;
  PrivateKey key_;
  Certificate certificate_;
};

struct EnrolledEnds {
  ReceiverConfig receiver;
  ProducerConfig producer;
};

// Both ends with one key, on loopback; the receiver's port is the system's to choose.
inline EnrolledEnds enroll_ends(const kvpack::testing::TempDirectory& folder, const Authority& authority) {
  const auto receiver = authority.issue("receiver");
  const auto producer = authority.issue("producer");
  const std::string hmac = folder.path("hmac.key");
  write_file(hmac, std::string(32, '\x07'), kPrivate);
  handoff::ExactIdentity identity;
  identity.adapter_sha256 = std::string(64, 'a');
  identity.chat_template_sha256 = std::string(64, 'b');
  identity.context_policy_sha256 = std::string(64, 'c');
  identity.model_revision = "m";
  identity.model_sha256 = std::string(64, 'd');
  identity.tokenizer_revision = "t";
  identity.tokenizer_sha256 = std::string(64, 'e');
  EnrolledEnds ends;
  ends.receiver.listen = {"127.0.0.1", 0};
  ends.receiver.certificate_chain = receiver.chain;
  ends.receiver.private_key = receiver.key;
  ends.receiver.peer_ca = authority.path();
  ends.receiver.peer_leaf_sha256 = {producer.sha256};
  ends.receiver.hmac_key_file = hmac;
  ends.receiver.hmac_key_id = "loop-key";
  ends.receiver.minimum_hmac_epoch = 4;
  ends.receiver.replay_ledger = folder.path("replay.json");
  ends.receiver.timeout_ms = 20'000;
  ends.receiver.wait_for_producer_ms = 20'000;
  ends.receiver.identity = identity;
  ends.receiver.target_cache_identity_sha256 = std::string(64, 'f');
  ends.producer.server_name = "localhost";
  ends.producer.certificate_chain = producer.chain;
  ends.producer.private_key = producer.key;
  ends.producer.peer_ca = authority.path();
  ends.producer.peer_leaf_sha256 = {receiver.sha256};
  ends.producer.hmac_key_file = hmac;
  ends.producer.hmac_key_id = "loop-key";
  ends.producer.hmac_epoch = 4;
  ends.producer.generation_ledger = folder.path("generation.json");
  ends.producer.pacing_bytes_per_second = 0;
  ends.producer.timeout_ms = 20'000;
  ends.producer.identity = identity;
  ends.producer.target_cache_identity_sha256 = std::string(64, 'f');
  return ends;
}

}  // namespace kvpack::net::testing
