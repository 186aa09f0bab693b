// What a receiver holds, with every allocation counted, OpenSSL's too: little per connection that idles, a
// begin header as it arrives, a shadow and two segments per transfer, and nothing that grows with time.
#include <openssl/crypto.h>

#include "net/proof_fixture.h"
#include "support/counted_memory.h"

namespace kvpack::net::receiver_memory_test {

using kvpack::testing::live_bytes;
using kvpack::testing::peak_of;
using ::testing::AnyOf;
using testing::Descriptor;
using testing::dial_loopback;
using testing::KeepingSink;
using testing::MemorySource;
using testing::Relay;
using ::testing::StartsWith;

constexpr std::size_t kKiB = 1024;
constexpr std::size_t kMiB = 1024 * kKiB;
constexpr std::size_t kIdleBytes = 256 * kKiB;  // what one idle connection may cost at the most
constexpr std::size_t kIdle = 50;

void* counted_malloc(std::size_t bytes, const char*, int) {
  return kvpack::testing::counted_allocation(bytes);
}
void counted_release(void* memory, const char*, int) {
  kvpack::testing::counted_free(memory);
}
void* counted_realloc(void* memory, std::size_t bytes, const char*, int) {
  if (memory == nullptr) return kvpack::testing::counted_allocation(bytes);
  void* moved = kvpack::testing::counted_allocation(bytes);
  if (moved != nullptr) std::memcpy(moved, memory, std::min(bytes, malloc_usable_size(memory)));
  if (moved != nullptr) kvpack::testing::counted_free(memory);
  return moved;
}
// Before OpenSSL has allocated anything.
const bool openssl_is_counted =
    CRYPTO_set_mem_functions(counted_malloc, counted_realloc, counted_release) == 1;

// Has one sink at a time, and forgets what is over.
class ForgettingHost final : public ReceiverHost {
 public:
  Result<Admission> admit(const handoff::BeginFrame&) override {
    sinks_.push_back(std::make_unique<KeepingSink>());
    return Admission{sinks_.back().get(), nullptr};
  }
  void ended(const AttemptReceipt& receipt) noexcept override {
    std::erase_if(sinks_, [&](const auto& sink) { return sink.get() == receipt.sink; });
    ++ended_;
  }
  std::size_t ended_count() const { return ended_.load(); }

 private:
  std::vector<std::unique_ptr<KeepingSink>> sinks_;
  std::atomic<std::size_t> ended_{0};
};

class ReceiverMemory : public testing::ProofCluster {
 protected:
  void SetUp() override {
    ASSERT_TRUE(openssl_is_counted);
    receiver_host_ = &forgetting_;
    receiver_config_.timeout_ms = receiver_config_.wait_for_producer_ms = 60'000;
    settings_.handshake_timeout_ms = 60'000;
    start();
    // Tables that are made once.
    for (int i = 0; i < 3; ++i) transfer();
    settle();
  }
  void TearDown() override { stop(); }
  void transfer() { EXPECT_EQ(outcome_of(honest()), "acknowledged"); }
  void wait_for_open(std::uint64_t connections) {
    EXPECT_TRUE(eventually([&] { return receiver_->counters().open_connections == connections; }));
  }
  // Until nothing is going on any more.
  void settle() {
    wait_for_open(0);
    EXPECT_TRUE(eventually([&] { return forgetting_.ended_count() == receiver_->counters().accepted; }));
  }
  // What stays when nothing is going on: the least that is seen in a while.
  std::size_t settled_bytes() {
    settle();
    std::size_t least = live_bytes;
    for (int i = 0; i < 50; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      least = std::min<std::size_t>(least, live_bytes);
    }
    return least;
  }

  ForgettingHost forgetting_;
};

TEST_F(ReceiverMemory, OfConnectionsThatNeverSayAnything) {
  std::vector<Descriptor> idle;
  const std::size_t peak = peak_of([&] {
    for (std::size_t i = 0; i < kIdle; ++i) idle.push_back(dial_loopback(producer_config_.receiver.port));
    wait_for_open(kIdle);
  });
  EXPECT_LE(peak, kIdle * kIdleBytes);
  std::printf("%zu bytes per silent connection\n", peak / kIdle);
}

// Producer's and receiver's end together: both are in this process.
TEST_F(ReceiverMemory, OfConnectionsThatIdleBehindTheHandshake) {
  std::vector<ClientConnection> idle;
  const std::size_t peak = peak_of([&] {
    for (std::size_t i = 0; i < kIdle; ++i) {
      auto peer = dial();
      ASSERT_TRUE(peer.has_value()) << peer.error().verdict();
      idle.push_back(*std::move(peer));
    }
    // What a transfer needs beside them.
    transfer();
  });
  EXPECT_LE(peak, kIdle * kIdleBytes);
  std::printf("%zu bytes per connection behind its handshake, both ends together\n", peak / kIdle);
}

// Eight megabytes are announced and one kilobyte has come.
TEST_F(ReceiverMemory, OfABeginHeaderIsWhatHasArrived) {
  Bytes opening{'K', 'V', 'P', 'K', 'V', '2', 0, 0, 0, 0, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0};
  opening.resize(opening.size() + kKiB, ' ');
  std::vector<ClientConnection> idle;
  const std::size_t peak = peak_of([&] {
    for (std::size_t i = 0; i < kIdle; ++i) {
      auto peer = dial();
      ASSERT_TRUE(peer.has_value()) << peer.error().verdict();
      ASSERT_TRUE(put(*peer, opening));
      idle.push_back(*std::move(peer));
    }
    transfer();
  });
  EXPECT_EQ(receiver_->counters().ends[static_cast<std::size_t>(AttemptEnd::kBegin)], 0U);
  EXPECT_LE(peak, kIdle * kIdleBytes);
  std::printf("%zu bytes per begin that has announced 8 MiB, both ends together\n", peak / kIdle);
}

TEST_F(ReceiverMemory, OfATransferIsItsShadowAndTwoSegments) {
  MemorySource source(8, 4 * kMiB);
  const Attempt attempt = honest();
  const std::size_t peak = peak_of([&] { EXPECT_EQ(outcome_of(attempt, source), "acknowledged"); });
  EXPECT_GE(peak, 32 * kMiB);
  EXPECT_LE(peak, 32 * kMiB + 2 * 4 * kMiB + 2 * kIdleBytes);
  std::printf("%zu bytes beside a shadow of 32 MiB, both ends together\n", peak - 32 * kMiB);
}

std::size_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

// Committed, refused, cut and scanned, again and again: nothing is left of any of them.
TEST_F(ReceiverMemory, DoesNotGrowWithTime) {
  const std::size_t rounds = std::getenv("KVPACK_LONG_TESTS") == nullptr ? 30 : 500;
  const auto round = [&](std::size_t i) {
    transfer();
    if (i % 5 == 1) {
      Attempt foreign = honest();
      foreign.config.identity.adapter_sha256[5] = '0';
      EXPECT_THAT(outcome_of(foreign), StartsWith("validation:"));
    }
    if (i % 5 == 3) {
      Relay relay(producer_config_.receiver.port);
      Attempt cut = honest();
      cut.config.receiver.port = relay.port();
      MemorySource source(3, 4096);
      source.before_next = [&](std::size_t sent) -> Status {
        if (sent == 2) relay.cut(Relay::Cut::kReset);
        return success();
      };
      EXPECT_THAT(outcome_of(cut, source), AnyOf(StartsWith("io:"), StartsWith("tls:")));
    }
    if (i % 5 == 4) dial_loopback(producer_config_.receiver.port).reset();
  };
  for (std::size_t i = 0; i < 10; ++i) round(i);
  const std::size_t bytes_before = settled_bytes();
  const std::size_t descriptors_before = open_descriptors();
  for (std::size_t i = 0; i < rounds; ++i) round(i);
  settle();
  const auto growth = [&] {
    const std::size_t now = live_bytes;
    return now - std::min(bytes_before, now);
  };
  // Error queues of threads and the like; a session is larger. The last one is counted as over before its
  // memory has gone, and a connection that was cut before it was accepted may still come up.
  EXPECT_TRUE(eventually([&] { return growth() <= 16 * kKiB; })) << growth();
  EXPECT_TRUE(eventually([&] { return open_descriptors() == descriptors_before; })) << open_descriptors();
  EXPECT_EQ(receiver_->counters().ends[static_cast<std::size_t>(AttemptEnd::kCommitted)], rounds + 10 + 3);
  std::printf("%zu transfers, %zu bytes more than before\n", rounds, growth());
}

}  // namespace kvpack::net::receiver_memory_test
