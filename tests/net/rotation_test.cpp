// Every change of a credential: transfers go on before, during and after it, and what was retired is refused.
#include "net/cluster_fixture.h"

namespace kvpack::net::rotation_test {

using ::testing::AnyOf;
using testing::Authority;
using testing::Cluster;
using ::testing::StartsWith;

constexpr const char* kWrongKey = "validation:wrong HMAC key id or replayed epoch";

class Rotation : public Cluster {
 protected:
  void restart() {
    stop();
    start();
  }
  /// The producer in this state is not let in, and the receiver says why.
  void expect_turned_away(const ProducerConfig& retired, const std::string& why) {
    ProducerConfig current = std::exchange(producer_config_, retired);
    producer_config_.receiver = current.receiver;
    producer_config_.generation_ledger = current.generation_ledger;
    const std::size_t before = ended();
    EXPECT_THAT(outcome(), AnyOf(StartsWith("io:"), StartsWith("tls:")));
    const AttemptReceipt receipt = host_.receipt(before);
    EXPECT_EQ(receipt.end, AttemptEnd::kHandshake);
    EXPECT_THAT(receipt.error->verdict(), StartsWith(why));
    producer_config_ = current;
  }
  /// How many receipts there are by now: all sessions of earlier sends have ended.
  std::size_t ended() {
    stop();
    start();
    return host_.receipt_count();
  }
  static void use_leaf(ProducerConfig& producer, const Authority::Leaf& leaf) {
    producer.certificate_chain = leaf.chain;
    producer.private_key = leaf.key;
  }
  std::string bundle(const std::string& name, std::initializer_list<std::string> files) {
    std::string all;
    for (const std::string& file : files) {
      std::ifstream in(file, std::ios::binary);
      all.append(std::istreambuf_iterator<char>(in), {});
    }
    testing::write_file(folder_.path(name), all, testing::kPrivate);
    return folder_.path(name);
  }
};

TEST_F(Rotation, ProducerLeaf) {
  start();
  EXPECT_EQ(outcome(), "acknowledged");
  const ProducerConfig retired = producer_config_;
  const std::string old_pin = *receiver_config_.peer_leaf_sha256.begin();
  const Authority::Leaf fresh = authority_.issue("producer-2");
  receiver_config_.peer_leaf_sha256.insert(fresh.sha256);
  restart();
  EXPECT_EQ(outcome(), "acknowledged");
  use_leaf(producer_config_, fresh);
  EXPECT_EQ(outcome(), "acknowledged");
  receiver_config_.peer_leaf_sha256.erase(old_pin);
  restart();
  EXPECT_EQ(outcome(), "acknowledged");
  expect_turned_away(retired, "leaf_pin:peer leaf certificate pin mismatch");
}

// Certificate and key are read for every connection: the receiver is not restarted.
TEST_F(Rotation, ReceiverLeaf) {
  start();
  EXPECT_EQ(outcome(), "acknowledged");
  const std::string old_pin = *producer_config_.peer_leaf_sha256.begin();
  const Authority::Leaf fresh = authority_.issue("receiver-2");
  producer_config_.peer_leaf_sha256.insert(fresh.sha256);
  EXPECT_EQ(outcome(), "acknowledged");
  const Authority::Leaf retired{folder_.path("retired.pem"), folder_.path("retired-key.pem"), old_pin};
  std::filesystem::copy_file(receiver_config_.certificate_chain, retired.chain);
  std::filesystem::copy_file(receiver_config_.private_key, retired.key);
  std::filesystem::rename(fresh.chain, receiver_config_.certificate_chain);
  std::filesystem::rename(fresh.key, receiver_config_.private_key);
  EXPECT_EQ(outcome(), "acknowledged");
  producer_config_.peer_leaf_sha256.erase(old_pin);
  EXPECT_EQ(outcome(), "acknowledged");
  // Whoever has the retired key is no receiver any more.
  std::filesystem::rename(retired.chain, receiver_config_.certificate_chain);
  std::filesystem::rename(retired.key, receiver_config_.private_key);
  EXPECT_EQ(outcome(), "leaf_pin:peer leaf certificate pin mismatch");
}

TEST_F(Rotation, Ca) {
  start();
  EXPECT_EQ(outcome(), "acknowledged");
  const ProducerConfig retired = producer_config_;
  const Authority next(folder_, "next");
  const std::string both = bundle("both.pem", {authority_.path(), next.path()});
  receiver_config_.peer_ca = both;
  producer_config_.peer_ca = both;
  restart();
  EXPECT_EQ(outcome(), "acknowledged");
  const Authority::Leaf producer = next.issue("producer-2");
  const Authority::Leaf receiver = next.issue("receiver-2");
  const std::string old_pin = *receiver_config_.peer_leaf_sha256.begin();
  receiver_config_.peer_leaf_sha256.insert(producer.sha256);
  producer_config_.peer_leaf_sha256.insert(receiver.sha256);
  restart();
  EXPECT_EQ(outcome(), "acknowledged");
  use_leaf(producer_config_, producer);
  EXPECT_EQ(outcome(), "acknowledged");
  receiver_config_.certificate_chain = receiver.chain;
  receiver_config_.private_key = receiver.key;
  restart();
  EXPECT_EQ(outcome(), "acknowledged");
  receiver_config_.peer_ca = next.path();
  producer_config_.peer_ca = next.path();
  restart();
  EXPECT_EQ(outcome(), "acknowledged");
  // Its pin is still there: it is the CA that retires it.
  ASSERT_TRUE(receiver_config_.peer_leaf_sha256.contains(old_pin));
  ProducerConfig old_leaf = retired;
  old_leaf.peer_ca = both;
  old_leaf.peer_leaf_sha256 = producer_config_.peer_leaf_sha256;
  expect_turned_away(old_leaf, "tls:");
}

TEST_F(Rotation, EpochOfTheSameKey) {
  start();
  EXPECT_EQ(outcome(), "acknowledged");
  const std::uint64_t old_epoch = producer_config_.hmac_epoch++;
  EXPECT_EQ(outcome(), "acknowledged");
  receiver_config_.minimum_hmac_epoch = producer_config_.hmac_epoch;
  restart();
  EXPECT_EQ(outcome(), "acknowledged");
  producer_config_.hmac_epoch = old_epoch;
  EXPECT_EQ(outcome(), kWrongKey);
}

TEST_F(Rotation, HmacKey) {
  start();
  EXPECT_EQ(outcome(), "acknowledged");
  const ProducerConfig retired = producer_config_;
  const std::string key = folder_.path("hmac-2.key");
  testing::write_file(key, std::string(64, 'c') + "\n", testing::kPrivate);
  settings_.hmac_previous = {
      {receiver_config_.hmac_key_id, receiver_config_.hmac_key_file, receiver_config_.minimum_hmac_epoch}};
  receiver_config_.hmac_key_id = "loop-key-2";
  receiver_config_.hmac_key_file = key;
  receiver_config_.minimum_hmac_epoch = 1;
  restart();
  EXPECT_EQ(outcome(), "acknowledged");
  producer_config_.hmac_key_id = "loop-key-2";
  producer_config_.hmac_key_file = key;
  producer_config_.hmac_epoch = 1;
  EXPECT_EQ(outcome(), "acknowledged");
  settings_.hmac_previous.clear();
  restart();
  EXPECT_EQ(outcome(), "acknowledged");
  producer_config_.hmac_key_id = retired.hmac_key_id;
  EXPECT_EQ(outcome(), kWrongKey);
  // The old key under the new name.
  producer_config_.hmac_key_id = "loop-key-2";
  producer_config_.hmac_key_file = retired.hmac_key_file;
  EXPECT_EQ(outcome(), "validation:artifact HMAC tag rejected");
}

TEST_F(Rotation, RevocationOfAPin) {
  const ProducerConfig revoked = producer_config_;
  const Authority::Leaf other = authority_.issue("other-producer");
  const std::string revoked_pin = *receiver_config_.peer_leaf_sha256.begin();
  receiver_config_.peer_leaf_sha256.insert(other.sha256);
  start();
  EXPECT_EQ(outcome(), "acknowledged");
  use_leaf(producer_config_, other);
  EXPECT_EQ(outcome(), "acknowledged");
  receiver_config_.peer_leaf_sha256.erase(revoked_pin);
  restart();
  EXPECT_EQ(outcome(), "acknowledged");
  expect_turned_away(revoked, "leaf_pin:peer leaf certificate pin mismatch");
}

TEST_F(Rotation, RevocationOfAKey) {
  const std::string key = folder_.path("other-hmac.key");
  testing::write_file(key, std::string(64, 'd') + "\n", testing::kPrivate);
  settings_.hmac_previous = {{"other-key", key, 1}};
  start();
  EXPECT_EQ(outcome(), "acknowledged");
  ProducerConfig revoked = producer_config_;
  revoked.hmac_key_id = "other-key";
  revoked.hmac_key_file = key;
  revoked.hmac_epoch = 1;
  std::swap(producer_config_, revoked);
  EXPECT_EQ(outcome(), "acknowledged");
  settings_.hmac_previous.clear();
  restart();
  EXPECT_EQ(outcome(), kWrongKey);
  const std::uint16_t port = producer_config_.receiver.port;
  std::swap(producer_config_, revoked);
  producer_config_.receiver.port = port;
  EXPECT_EQ(outcome(), "acknowledged");
}

}  // namespace kvpack::net::rotation_test
