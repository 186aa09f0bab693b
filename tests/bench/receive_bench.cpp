// A Muse cache from a producer to a receiver over TLS on loopback: deferred mode, both ends on the same two
// cores, into the engine's sink as it is (muse/handoff_sink.h), with every check and the durable reservation.
// 954,190,848 bytes with the 65,535 tokens that are the default; `--receive_tokens=N` makes it smaller. The
// replay ledger lies in the directory for temporary files: TMPDIR says on which disk. An iteration is one
// round, in which all variants take their turn; figures are made of the medians of the rounds.
//   x_b            speed over B = 1 / (1/T + 2/S1): T receives the same bytes with the same cipher and
//                  discards them, S1 is one SHA-256 stream over them; to reach: 0.85
//   x_b_fresh      x_b into memory that the system provides page by page meanwhile; else the engine's
//                  memory is there already, as in an engine that keeps what it lets go
//   x_b_plain      x_b of the shortest program that hashes twice at each end, for orientation
//   x_idle         time beside 50 idle connections over time without them; to reach: at most 1.05
//   sha256_gain    S1 on two threads over one; below 1.7 the result is inconclusive
//   %_...          share of the transfer that each phase of the receipt takes: `read` is TLS and waiting,
//                  `verify` hashing and judging, `install` the engine's sink while segments come
// seal_to_ack sends 41 transfers of one token, or `--receive_reservations=N`:
//   x_seal_to_ack  median from the seal to the acknowledgement, over 2 x the volume's own median
//                  reservation plus 5 ms; to reach: below 1
//   x_reserve      reservation over the volume's own
#include <sched.h>

#include <condition_variable>
#include <mutex>
#include <numeric>
#include <optional>

#include "bench/kept_memory.h"
#include "bench/plain_tls.h"
#include "bench/side_by_side.h"
#include "kvpack/muse/handoff_sink.h"
#include "kvpack/muse/handoff_source.h"
#include "kvpack/muse/span_schedule.h"
#include "kvpack/net/producer.h"
#include "kvpack/net/receiver.h"
#include "kvpack/net/volume_probe.h"
#include "net/client_connection.h"
#include "net/patient_clock.h"

namespace kvpack::bench {
namespace {

constexpr std::size_t kIdleConnections = 50;
constexpr std::uint64_t kTimeoutMs = net::kMaxTimeoutMs;
constexpr double kNsPerSecond = 1e9;
std::uint64_t receive_tokens = 65'535;
std::uint64_t receive_reservations = 41;

muse::CacheSnapshot make_snapshot(std::uint64_t tokens) {
  muse::CacheSnapshot snapshot;
  snapshot.position = tokens;
  snapshot.tokens.resize(tokens);
  std::iota(snapshot.tokens.begin(), snapshot.tokens.end(), 1U);
  std::uint64_t x = 1;
  const auto plane = [&](std::uint64_t rows) {
    Bytes bytes(static_cast<std::size_t>(rows * muse::kRowBytes));
    for (std::size_t at = 0; at < bytes.size(); at += 8)
      store_le<std::uint64_t>(bytes, at, x = x * 6'364'136'223'846'793'005u + 1'442'695'040'888'963'407u);
    return muse::SharedBytes::own(std::move(bytes));
  };
  for (std::uint32_t layer = 0; layer < muse::kLayers; ++layer) {
    const muse::LogicalRange range = muse::logical_range(layer, tokens);
    snapshot.layers.push_back({.layer = layer,
                               .logical_start = range.start,
                               .logical_count = range.count,
                               .key = plane(range.count),
                               .value = plane(range.count)});
  }
  return snapshot;
}

// What is sent, and its pieces as the naive program sees them.
struct Cargo {
  muse::HandoffSource source;
  std::vector<std::vector<ByteSpan>> segments;
  std::vector<ByteSpan> pieces;

  explicit Cargo(std::uint64_t tokens) : source(must(muse::HandoffSource::open(make_snapshot(tokens), 0))) {
    for (std::size_t i = 0; i < source.segment_count(); ++i) {
      segments.push_back(source.payload(i));
      pieces.insert(pieces.end(), segments.back().begin(), segments.back().end());
    }
  }
  void hash(std::size_t first, std::size_t last) const {
    Sha256 stream;
    for (std::size_t i = first; i < last; ++i) stream.update(pieces[i]);
    benchmark::DoNotOptimize(stream.finish());
  }
};

const Cargo& cargo() {
  static const Cargo made(receive_tokens);
  return made;
}

class CargoSource final : public net::SegmentSource {
 public:
  explicit CargoSource(const Cargo& cargo) : cargo_(&cargo) {}
  Result<std::optional<net::OutgoingSegment>> next() override {
    std::optional<net::OutgoingSegment> segment;
    if (next_ == cargo_->segments.size()) return segment;
    segment = net::OutgoingSegment{cargo_->source.shape(next_), cargo_->segments[next_]};
    ++next_;
    return segment;
  }

 private:
  const Cargo* cargo_;
  std::size_t next_ = 0;
};

// The engine: what it held before is let go after the acknowledgement, as an engine that switches would.
class BenchEngine final : public net::ReceiverHost, public muse::HandoffInstaller {
 public:
  Result<net::Admission> admit(const handoff::BeginFrame&) override { return net::Admission{.sink = &sink_}; }
  Status install(muse::CacheSnapshot snapshot, std::optional<muse::DflashContext>) override {
    retired_ = std::exchange(live_, std::move(snapshot));
    return success();
  }
  void ended(const net::AttemptReceipt& receipt) noexcept override {
    if (receipt.sink == nullptr) return;
    retired_ = {};
    const std::scoped_lock lock(mutex_);
    receipt_ = receipt;
    changed_.notify_all();
  }
  // The receipt of the transfer that was acknowledged last.
  net::AttemptReceipt take_receipt() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return receipt_.has_value(); });
    if (receipt_->end != net::AttemptEnd::kCommitted) std::abort();
    return *std::exchange(receipt_, std::nullopt);
  }
  const muse::CacheSnapshot& live() const { return live_; }

 private:
  muse::CacheSnapshot live_;
  muse::CacheSnapshot retired_;
  muse::HandoffSink sink_{*this, {}};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<net::AttemptReceipt> receipt_;
};

// A receiver that runs, and what it needs.
class Loopback {
 public:
  Loopback() {
    ends_.receiver.timeout_ms = ends_.receiver.wait_for_producer_ms = kTimeoutMs;
    ends_.producer.timeout_ms = kTimeoutMs;
    clock_.hold();
    receiver_ = must(net::Receiver::bind(fs_, clock_, ends_.receiver, {}, muse::span_schedule, engine_));
    clock_.go_on();
    ends_.producer.receiver = {"127.0.0.1", receiver_->address().port};
    thread_ = std::jthread([this] { must(receiver_->run()); });
  }
  ~Loopback() { receiver_->stop(); }

  void send(const Cargo& cargo) {
    CargoSource source(cargo);
    net::OutgoingTransfer transfer;
    transfer.prompt_token_ids = cargo.source.prompt_token_ids();
    must(net::send_handoff(fs_, clock_, ends_.producer, transfer, source));
  }
  net::AttemptReceipt take_receipt() { return engine_.take_receipt(); }

  // Connections that have shaken hands and say nothing.
  void open_idle() {
    const net::TlsFiles files{ends_.producer.certificate_chain, ends_.producer.private_key,
                              ends_.producer.peer_ca};
    for (std::size_t i = 0; i < kIdleConnections; ++i)
      idle_.push_back(must(net::ClientConnection::open(fs_, clock_, ends_.producer.receiver, files,
                                                       {.leaf_sha256 = ends_.producer.peer_leaf_sha256,
                                                        .alpn = {net::kHandoffAlpn},
                                                        .server_name = ends_.producer.server_name},
                                                       clock_.monotonic_ns() + kTimeoutMs * 1'000'000)));
  }
  void close_idle() {
    idle_.clear();
    while (receiver_->counters().open_connections != 0) std::this_thread::yield();
  }
  // How long the volume takes for one reservation.
  double reserve_seconds() {
    return static_cast<double>(
               must(net::probe_volume(fs_, clock_, folder_.path(), {.iterations = 1})).front()) /
           kNsPerSecond;
  }
  const net::testing::EnrolledEnds& ends() const { return ends_; }
  const BenchEngine& engine() const { return engine_; }

 private:
  SystemFileSystem fs_;
  net::testing::PatientClock clock_;
  testing::TempDirectory folder_;
  net::testing::Authority authority_{folder_, "bench"};
  net::testing::EnrolledEnds ends_ = net::testing::enroll_ends(folder_, authority_);
  BenchEngine engine_;
  std::unique_ptr<net::Receiver> receiver_;
  std::vector<net::ClientConnection> idle_;
  std::jthread thread_;
};

// T: everything is decrypted and forgotten.
void receive_and_discard(PlainPipe& pipe) {
  const std::jthread sender([&] {
    for (const ByteSpan piece : cargo().pieces) pipe.send(piece);
  });
  Bytes buffer(PlainPipe::kReadBytes);
  for (std::uint64_t left = cargo().source.payload_bytes(); left > 0;) {
    const std::size_t n = static_cast<std::size_t>(std::min<std::uint64_t>(left, buffer.size()));
    pipe.receive(MutableByteSpan(buffer).first(n));
    left -= n;
  }
}

// The program without framing, checks, ledger and engine: both digests of each segment at each end.
void receive_plainly(PlainPipe& pipe, MutableByteSpan shadow) {
  const std::jthread sender([&] {
    handoff::PayloadHasher hasher;
    for (const auto& segment : cargo().segments) {
      for (const ByteSpan piece : segment) hasher.update(piece);
      benchmark::DoNotOptimize(hasher.finish_segment());
      for (const ByteSpan piece : segment) pipe.send(piece);
    }
    benchmark::DoNotOptimize(hasher.finish_all());
  });
  handoff::PayloadHasher hasher;
  for (const auto& segment : cargo().segments) {
    for (const ByteSpan piece : segment) {
      const MutableByteSpan place = shadow.first(piece.size());
      shadow = shadow.subspan(piece.size());
      pipe.receive(place);
      hasher.update(place);
    }
    benchmark::DoNotOptimize(hasher.finish_segment());
  }
  benchmark::DoNotOptimize(hasher.finish_all());
}

struct NamedPhase {
  const char* name;
  std::uint64_t (*ns)(const net::AttemptPhases&);
};
constexpr std::array<NamedPhase, 7> kPhases{
    {{"%_read", [](const net::AttemptPhases& p) { return p.segment_read_ns; }},
     {"%_verify", [](const net::AttemptPhases& p) { return p.segment_process_ns - p.sink_ns; }},
     {"%_install", [](const net::AttemptPhases& p) { return p.sink_ns; }},
     {"%_seal", [](const net::AttemptPhases& p) { return p.seal_ns; }},
     {"%_reserve", [](const net::AttemptPhases& p) { return p.reserve_ns; }},
     {"%_commit", [](const net::AttemptPhases& p) { return p.commit_ns; }},
     {"%_ack", [](const net::AttemptPhases& p) { return p.ack_ns; }}}};

template <class Figure>
double median_of(std::span<const net::AttemptPhases> phases, const Figure& figure) {
  std::vector<double> values;
  for (const net::AttemptPhases& each : phases) values.push_back(figure(each));
  return median(std::move(values));
}

void report_phases(benchmark::State& state, std::span<const net::AttemptPhases> phases) {
  for (const NamedPhase& phase : kPhases)
    state.counters[phase.name] = median_of(phases, [&](const net::AttemptPhases& p) {
      return 100 * static_cast<double>(phase.ns(p)) / static_cast<double>(p.transfer_commit_ns);
    });
}

bool arrived_whole(const muse::CacheSnapshot& live) {
  const muse::HandoffSource back = must(muse::HandoffSource::open(live, 0));
  for (std::size_t i = 0; i < cargo().segments.size(); ++i)
    if (!std::ranges::equal(back.payload(i), cargo().segments[i],
                            [](ByteSpan a, ByteSpan b) { return std::ranges::equal(a, b); }))
      return false;
  return true;
}

void receive(benchmark::State& state) {
  Loopback loopback;
  Bytes shadow(static_cast<std::size_t>(cargo().source.payload_bytes()));
  std::optional<PlainPipe> pipe;
  std::string cipher;
  std::vector<net::AttemptPhases> phases;
  const auto connect = [&] {
    pipe.emplace(loopback.ends());
    cipher = pipe->cipher();
  };
  const auto disconnect = [&] { pipe.reset(); };
  const auto forget = [&] { static_cast<void>(loopback.take_receipt()); };
  enum : std::size_t { kOneThread, kTwoThreads, kDiscard, kPlain, kReceive, kBesideIdle, kFresh };
  const std::size_t count = cargo().pieces.size();
  Rounds rounds(
      {
          {[&] { cargo().hash(0, count); }},
          {[&] {
            on_two_threads(count, [](std::size_t first, std::size_t last) { cargo().hash(first, last); });
          }},
          {[&] { receive_and_discard(*pipe); }, connect, disconnect},
          {[&] { receive_plainly(*pipe, shadow); }, connect, disconnect},
          {[&] { loopback.send(cargo()); }, {}, [&] { phases.push_back(loopback.take_receipt().phases); }},
          {[&] { loopback.send(cargo()); }, [&] { loopback.open_idle(); },
           [&] {
             forget();
             loopback.close_idle();
           }},
          {[&] { loopback.send(cargo()); }, [] { KeptMemory::instance().forget(); }, forget},
      },
      wall_seconds);
  rounds.run(state, kReceive);
  if (!arrived_whole(loopback.engine().live())) return state.SkipWithError("received planes differ");

  const double b_seconds = rounds.seconds(kDiscard) + 2 * rounds.seconds(kOneThread);
  const double gain = rounds.seconds(kOneThread) / rounds.seconds(kTwoThreads);
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(cargo().source.payload_bytes()));
  state.counters["x_b"] = b_seconds / rounds.seconds(kReceive);
  state.counters["x_b_fresh"] = b_seconds / rounds.seconds(kFresh);
  state.counters["x_b_plain"] = b_seconds / rounds.seconds(kPlain);
  state.counters["x_idle"] = rounds.seconds(kBesideIdle) / rounds.seconds(kReceive);
  state.counters["sha256_gain"] = gain;
  state.counters["discard_spread"] = rounds.spread(kDiscard);
  state.counters["t_over_s1"] = rounds.seconds(kOneThread) / rounds.seconds(kDiscard);
  // The first round has warmed up.
  report_phases(state, std::span<const net::AttemptPhases>(phases).subspan(1));
  state.SetLabel(gain < kLeastGain ? "inconclusive: the machine does not give two threads now"
                 : rounds.spread(kDiscard) > kMostSpread ? "inconclusive: T alone moves by more than 1.6"
                                                         : cipher);
}

// Transfers of one token, each beside a reservation that a probe of the volume makes.
void seal_to_ack(benchmark::State& state) {
  const Cargo small(1);
  Loopback loopback;
  std::vector<double> probes;
  std::vector<net::AttemptPhases> phases;
  const auto seconds = [](const net::AttemptPhases& p) {
    return static_cast<double>(p.seal_ns + p.reserve_ns + p.commit_ns + p.ack_ns) / kNsPerSecond;
  };
  for (auto _ : state) {
    probes.push_back(loopback.reserve_seconds());
    loopback.send(small);
    phases.push_back(loopback.take_receipt().phases);
    state.SetIterationTime(seconds(phases.back()));
  }
  state.counters["x_seal_to_ack"] = median_of(phases, seconds) / (2 * median(probes) + 0.005);
  state.counters["x_reserve"] = median_of(phases,
                                          [](const net::AttemptPhases& p) {
                                            return static_cast<double>(p.reserve_ns) / kNsPerSecond;
                                          }) /
                                median(probes);
}

BENCHMARK(receive)->UseManualTime()->Unit(benchmark::kMillisecond)->Iterations(kRounds);

// Both ends share two cores, whatever the machine has.
void keep_to_two_cores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  cpu_set_t two;
  CPU_ZERO(&two);
  for (std::size_t cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&two) < 2; ++cpu)
    if (CPU_ISSET(cpu, &allowed)) CPU_SET(cpu, &two);
  static_cast<void>(sched_setaffinity(0, sizeof two, &two));
}

}  // namespace
}  // namespace kvpack::bench

int main(int argc, char** argv) {
  using namespace kvpack::bench;
  receive_tokens = std::max<std::uint64_t>(1, take_option(argc, argv, "receive_tokens", receive_tokens));
  receive_reservations =
      std::max<std::uint64_t>(1, take_option(argc, argv, "receive_reservations", receive_reservations));
  benchmark::RegisterBenchmark("seal_to_ack", seal_to_ack)
      ->UseManualTime()
      ->Unit(benchmark::kMillisecond)
      ->Iterations(static_cast<benchmark::IterationCount>(receive_reservations));
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  keep_to_two_cores();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
