// What a receiver holds in memory, counted at the allocators of C++ and of OpenSSL; its peers are a process
// of their own. The time means nothing.
//   idle             KiB for each of 50 connections that have shaken hands and say nothing; it fails at 256
//   segments_taken   the most that a transfer holds beyond its shadow, in segments of 6.5 MiB, with a sink
//   that
//                    takes over the library's buffer; it fails above 2
//   segments_lent    the same with a sink that lends its shadow
//   segments_beside  the same beside the idle connections
#include <benchmark/benchmark.h>
#include <openssl/crypto.h>
#include <sys/wait.h>
#include <unistd.h>

#include <condition_variable>
#include <mutex>
#include <thread>

#include "bench/side_by_side.h"
#include "kvpack/muse/span_schedule.h"
#include "kvpack/net/producer.h"
#include "kvpack/net/receiver.h"
#include "net/client_connection.h"
#include "net/enrolled_ends.h"
#include "net/patient_clock.h"
#include "support/counted_memory.h"

namespace kvpack::bench {
namespace {

constexpr std::size_t kIdleConnections = 50;
constexpr double kMostIdleKib = 256;
constexpr double kMostSegments = 2;
constexpr std::uint64_t kTimeoutMs = 120'000;
constexpr std::uint64_t kTileTokens = 512;
constexpr std::size_t kTileBytes = kTileTokens * muse::kTileRowBytes;
constexpr std::size_t kTiles = 8;

void* counted_reallocation(void* old, std::size_t bytes, const char*, int) {
  if (bytes == 0) {
    testing::counted_free(old);
    return nullptr;
  }
  void* memory = testing::counted_allocation(bytes);
  if (memory != nullptr && old != nullptr) {
    std::memcpy(memory, old, std::min(bytes, malloc_usable_size(old)));
    testing::counted_free(old);
  }
  return memory;
}

// Before OpenSSL has allocated anything.
void count_openssl() {
  const int counted = CRYPTO_set_mem_functions(
      [](std::size_t bytes, const char*, int) { return testing::counted_allocation(bytes); },
      counted_reallocation, [](void* memory, const char*, int) { testing::counted_free(memory); });
  if (counted != 1) std::abort();
}

class TileSource final : public net::SegmentSource {
 public:
  Result<std::optional<net::OutgoingSegment>> next() override {
    if (sent_ == kTiles) return std::optional<net::OutgoingSegment>();
    net::OutgoingSegment out;
    out.shape.component_id = "target";
    out.shape.role = handoff::SegmentRole::kNopeTile;
    out.shape.logical_start = kTileTokens * sent_++;
    out.shape.logical_count = kTileTokens;
    out.shape.element_type = "f16_le";
    out.shape.elements_per_token = muse::kTileRowElements;
    out.payload = {payload_};
    return std::optional<net::OutgoingSegment>(std::move(out));
  }

 private:
  Bytes payload_ = Bytes(kTileBytes, 7);
  std::uint64_t sent_ = 0;
};

// Keeps all payloads, in memory that it lends or that it takes over.
class KeepingSink final : public handoff::Sink {
 public:
  bool lends = false;

  Status begin(const handoff::ValidatedBegin&) override { return success(); }
  Status lend(const handoff::SegmentDescriptor& descriptor, std::size_t,
              std::vector<MutableByteSpan>& place) override {
    if (!lends) return success();
    shadow_.emplace_back(static_cast<std::size_t>(descriptor.byte_len));
    place.push_back(shadow_.back());
    return success();
  }
  Status segment_ready(handoff::VerifiedSegment& segment) override {
    if (!lends) shadow_.push_back(segment.take_payload());
    return success();
  }
  Status prepare_commit(const handoff::VerifiedSeal&) override { return success(); }
  Result<handoff::CommittedGeneration> commit() override { return handoff::CommittedGeneration{}; }
  void abort() noexcept override {}
  void let_go() { shadow_ = {}; }

 private:
  std::vector<Bytes> shadow_;
};

class Host final : public net::ReceiverHost {
 public:
  KeepingSink sink;

  Result<net::Admission> admit(const handoff::BeginFrame&) override { return net::Admission{.sink = &sink}; }
  void ended(const net::AttemptReceipt& receipt) noexcept override {
    if (receipt.sink == nullptr) return;
    if (receipt.end != net::AttemptEnd::kCommitted) std::abort();
    const std::scoped_lock lock(mutex_);
    ++committed_;
    changed_.notify_all();
  }
  void wait_for(std::size_t committed) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return committed_ >= committed; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t committed_ = 0;
};

// Lets two processes wait for each other, one byte at a time.
class Gate {
 public:
  Gate() {
    if (::pipe(ends_.data()) != 0) std::abort();
  }
  ~Gate() {
    for (const int end : ends_) ::close(end);
  }
  void open() const {
    if (::write(ends_[1], "x", 1) != 1) std::abort();
  }
  void pass() const {
    char byte = 0;
    if (::read(ends_[0], &byte, 1) != 1) std::abort();
  }

 private:
  std::array<int, 2> ends_{};
};

// The peers' process: what it does at which gate is in `run`.
class Peers {
 public:
  explicit Peers(const net::testing::EnrolledEnds& ends) : ends_(&ends), process_(::fork()) {
    if (process_ < 0) std::abort();
    if (process_ == 0) {
      run();
      ::_exit(0);
    }
  }
  ~Peers() {
    int status = 0;
    if (::waitpid(process_, &status, 0) != process_ || status != 0) std::abort();
  }
  void send() const { go_.open(); }
  void open_idle() const {
    go_.open();
    done_.pass();
  }
  void leave() const { go_.open(); }

 private:
  void send_one() const {
    TileSource source;
    net::OutgoingTransfer transfer;
    transfer.prompt_token_ids = {1};
    must(net::send_handoff(fs_, clock_, ends_->producer, transfer, source));
  }
  // A transfer for each kind of sink, then idle connections, then a transfer beside them.
  void run() const {
    for (int i = 0; i < 2; ++i) {
      go_.pass();
      send_one();
    }
    go_.pass();
    const net::ProducerConfig& own = ends_->producer;
    std::vector<net::ClientConnection> idle;
    for (std::size_t i = 0; i < kIdleConnections; ++i)
      idle.push_back(must(net::ClientConnection::open(
          fs_, clock_, own.receiver, {own.certificate_chain, own.private_key, own.peer_ca},
          {.leaf_sha256 = own.peer_leaf_sha256, .alpn = {net::kHandoffAlpn}, .server_name = own.server_name},
          clock_.monotonic_ns() + kTimeoutMs * 1'000'000)));
    done_.open();
    go_.pass();
    send_one();
    go_.pass();
  }

  const net::testing::EnrolledEnds* ends_;
  mutable SystemFileSystem fs_;
  SystemClock clock_;
  Gate go_;
  Gate done_;
  ::pid_t process_;
};

// One transfer: the most that the receiver held beyond its shadow, in segments.
double segments_beyond_shadow(Host& host, const Peers& peers, std::size_t transfer) {
  host.sink.let_go();
  const std::size_t peak = testing::peak_of([&] {
    peers.send();
    host.wait_for(transfer);
  });
  return (static_cast<double>(peak) - static_cast<double>(kTiles * kTileBytes)) /
         static_cast<double>(kTileBytes);
}

void receiver(benchmark::State& state) {
  SystemFileSystem fs;
  net::testing::PatientClock clock;
  testing::TempDirectory folder;
  net::testing::Authority authority(folder, "bench");
  net::testing::EnrolledEnds ends = net::testing::enroll_ends(folder, authority);
  ends.receiver.timeout_ms = ends.receiver.wait_for_producer_ms = ends.producer.timeout_ms = kTimeoutMs;
  Host host;
  clock.hold();
  const auto receiver = must(net::Receiver::bind(fs, clock, ends.receiver, {}, muse::span_schedule, host));
  clock.go_on();
  ends.producer.receiver = {"127.0.0.1", receiver->address().port};
  const Peers peers(ends);
  const std::jthread thread([&] { must(receiver->run()); });
  for (auto _ : state) {
    const double taken = segments_beyond_shadow(host, peers, 1);
    host.sink.lends = true;
    const double lent = segments_beyond_shadow(host, peers, 2);
    const std::size_t before = testing::live_bytes;
    peers.open_idle();
    const auto idle = static_cast<double>(testing::live_bytes - before) / 1024 / kIdleConnections;
    const double beside = segments_beyond_shadow(host, peers, 3);
    state.counters["idle"] = idle;
    state.counters["segments_taken"] = taken;
    state.counters["segments_lent"] = lent;
    state.counters["segments_beside"] = beside;
    if (idle >= kMostIdleKib) state.SkipWithError("an idle connection holds 256 KiB or more");
    if (std::max({taken, lent, beside}) > kMostSegments)
      state.SkipWithError("a transfer holds more than its shadow and two segments");
  }
  peers.leave();
  receiver->stop();
}

BENCHMARK(receiver)->Iterations(1)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace kvpack::bench

int main(int argc, char** argv) {
  kvpack::bench::count_openssl();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
