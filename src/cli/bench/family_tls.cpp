// G12: a transfer over TLS on loopback from a producer to a receiver, each in a thread of its own, into
// memory that is there already. T receives the same bytes and forgets them; N reads 1 MiB, hashes it twice,
// copies it.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <fstream>
#include <mutex>
#include <thread>

#include "cli/bench/baseline_hash.h"
#include "cli/bench/baseline_tls.h"
#include "cli/bench/families.h"
#include "cli/bench/workload.h"
#include "kvpack/net/producer.h"
#include "kvpack/net/receiver.h"
#include "net/tls_certificates.h"

namespace kvpack::cli::bench {

namespace family_tls {
namespace {

constexpr std::uint64_t kTokens = 512;
constexpr std::uint64_t kElements = 1'024;
constexpr std::size_t kSegmentBytes = kTokens * kElements * 2;
constexpr std::uint64_t kTimeoutMs = 120'000;

/// The system's clock, standing still while the receiver looks whether the volume is fast enough for its
/// ledger: that is no matter of this goal.
class SettlingClock final : public Clock {
 public:
  std::uint64_t wall_ms() const override { return system_.wall_ms(); }
  std::uint64_t monotonic_ns() const override {
    const std::uint64_t held = held_ns_.load();
    return held != 0 ? held : system_.monotonic_ns();
  }
  void hold() { held_ns_ = system_.monotonic_ns(); }
  void go_on() { held_ns_ = 0; }

 private:
  SystemClock system_{};
  std::atomic<std::uint64_t> held_ns_{0};
};

Status write_private(FileSystem& fs, const std::string& path, std::string_view content) {
  KVPACK_TRY_ASSIGN(const Place place, open_place(fs, path));
  KVPACK_TRY_ASSIGN(const auto file, place.directory->create(place.name));
  return write_all(*file, 0, byte_view(content));
}

/// A receiver and a producer that know each other, as files in a folder.
struct Ends {
  net::ReceiverConfig receiver{};
  net::ProducerConfig producer{};

  PipeEnd server() const { return {receiver.certificate_chain, receiver.private_key, receiver.peer_ca}; }
  PipeEnd client() const { return {producer.certificate_chain, producer.private_key, producer.peer_ca}; }
};

struct Leaf {
  std::string chain;
  std::string key;
  std::string sha256;
};

Result<Leaf> issue(FileSystem& fs, const std::string& folder, const std::string& name,
                   const net::PrivateKey& ca_key, const net::Certificate& ca) {
  KVPACK_TRY_ASSIGN(const net::PrivateKey key, net::make_private_key());
  KVPACK_TRY_ASSIGN(const auto request, net::make_request(key, "localhost"));
  KVPACK_TRY_ASSIGN(const net::Certificate leaf, net::sign_request(ca_key, ca, request, net::kLeafDays));
  KVPACK_TRY_ASSIGN(const auto chain, net::certificate_pem(leaf));
  KVPACK_TRY_ASSIGN(const auto pem, net::private_key_pem(key));
  Leaf out{join_path(folder, name + ".pem"), join_path(folder, name + ".key"), {}};
  KVPACK_TRY(write_private(fs, out.chain, chain));
  KVPACK_TRY(write_private(fs, out.key, text_view(pem)));
  KVPACK_TRY_ASSIGN(out.sha256, net::leaf_sha256(leaf));
  return out;
}

Result<Ends> enroll(FileSystem& fs, const std::string& folder) {
  KVPACK_TRY_ASSIGN(const net::PrivateKey ca_key, net::make_private_key());
  KVPACK_TRY_ASSIGN(const net::Certificate ca, net::make_authority(ca_key, "bench"));
  KVPACK_TRY_ASSIGN(const auto ca_pem, net::certificate_pem(ca));
  const std::string ca_file = join_path(folder, "ca.pem");
  KVPACK_TRY(write_private(fs, ca_file, ca_pem));
  KVPACK_TRY_ASSIGN(const Leaf receiver, issue(fs, folder, "receiver", ca_key, ca));
  KVPACK_TRY_ASSIGN(const Leaf producer, issue(fs, folder, "producer", ca_key, ca));
  const std::string hmac = join_path(folder, "hmac.key");
  KVPACK_TRY(write_private(fs, hmac, std::string(32, '\x07')));
  const std::string digest(64, 'a');
  handoff::ExactIdentity identity;
  identity.adapter_sha256 = identity.chat_template_sha256 = identity.context_policy_sha256 = digest;
  identity.model_sha256 = identity.tokenizer_sha256 = digest;
  identity.model_revision = identity.tokenizer_revision = "bench";
  Ends ends;
  ends.receiver.listen = {"127.0.0.1", 0};
  ends.receiver.certificate_chain = receiver.chain;
  ends.receiver.private_key = receiver.key;
  ends.receiver.peer_leaf_sha256 = {producer.sha256};
  ends.receiver.replay_ledger = join_path(folder, "replay.json");
  ends.receiver.wait_for_producer_ms = kTimeoutMs;
  ends.receiver.minimum_hmac_epoch = 1;
  ends.producer.server_name = "localhost";
  ends.producer.certificate_chain = producer.chain;
  ends.producer.private_key = producer.key;
  ends.producer.peer_leaf_sha256 = {receiver.sha256};
  ends.producer.generation_ledger = join_path(folder, "generation.json");
  ends.producer.pacing_bytes_per_second = 0;
  ends.producer.hmac_epoch = 1;
  const auto common = [&](auto& end) {
    end.peer_ca = ca_file;
    end.hmac_key_file = hmac;
    end.hmac_key_id = "bench";
    end.timeout_ms = kTimeoutMs;
    end.identity = identity;
    end.target_cache_identity_sha256 = std::string(64, 'f');
  };
  common(ends.receiver);
  common(ends.producer);
  return ends;
}

/// The engine: lends places of one shadow, and tells when an attempt has ended.
class Engine final : public net::ReceiverHost, public handoff::Sink {
 public:
  explicit Engine(std::size_t bytes) : shadow(bytes) {}

  Result<net::Admission> admit(const handoff::BeginFrame&) override { return net::Admission{.sink = this}; }
  void ended(const net::AttemptReceipt& receipt) noexcept override {
    if (receipt.sink == nullptr) return;
    const std::scoped_lock lock(mutex_);
    committed_ = receipt.end == net::AttemptEnd::kCommitted;
    has_ended_ = true;
    changed_.notify_all();
  }
  /// Waits for the end of the latest transfer. @return whether it was committed
  bool take_end() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return has_ended_; });
    has_ended_ = false;
    return committed_;
  }

  Status begin(const handoff::ValidatedBegin&) override { return success(); }
  Status lend(const handoff::SegmentDescriptor& descriptor, std::size_t,
              std::vector<MutableByteSpan>& place) override {
    place.push_back(MutableByteSpan(shadow).subspan(descriptor.sequence * kSegmentBytes, kSegmentBytes));
    return success();
  }
  Status segment_ready(handoff::VerifiedSegment&) override { return success(); }
  Status prepare_commit(const handoff::VerifiedSeal&) override { return success(); }
  Result<handoff::CommittedGeneration> commit() override { return handoff::CommittedGeneration{}; }
  void abort() noexcept override {}

  Bytes shadow;

 private:
  std::mutex mutex_{};
  std::condition_variable changed_{};
  bool has_ended_ = false;
  bool committed_ = false;
};

class Cargo final : public net::SegmentSource {
 public:
  explicit Cargo(ByteSpan payload) : rest_(payload) {}
  Result<std::optional<net::OutgoingSegment>> next() override {
    std::optional<net::OutgoingSegment> segment;
    if (rest_.empty()) return segment;
    segment = net::OutgoingSegment{{.component_id = "target",
                                    .role = handoff::SegmentRole::kNopeTile,
                                    .layer = std::nullopt,
                                    .logical_start = next_++ * kTokens,
                                    .logical_count = kTokens,
                                    .element_type = "f16_le",
                                    .elements_per_token = kElements},
                                   {rest_.first(kSegmentBytes)}};
    rest_ = rest_.subspan(kSegmentBytes);
    return segment;
  }

 private:
  ByteSpan rest_;
  std::uint64_t next_ = 0;
};

class Loopback {
 public:
  static Result<std::unique_ptr<Loopback>> make(BenchRun& run, std::size_t segments) {
    std::unique_ptr<Loopback> out(new Loopback(run.fs(), segments));
    KVPACK_TRY_ASSIGN(out->folder_, make_bench_folder(run.options().directory));
    KVPACK_TRY_ASSIGN(out->ends_, enroll(run.fs(), out->folder_));
    out->clock_.hold();
    auto receiver = net::Receiver::bind(run.fs(), out->clock_, out->ends_.receiver, {}, {}, out->engine_);
    out->clock_.go_on();
    if (!receiver.has_value()) return std::move(receiver.error());
    out->receiver_ = *std::move(receiver);
    out->ends_.producer.receiver = {"127.0.0.1", out->receiver_->address().port};
    out->thread_ = std::jthread([loop = out.get()] { loop->ended_ = loop->receiver_->run(); });
    return out;
  }
  Loopback(const Loopback&) = delete;
  Loopback& operator=(const Loopback&) = delete;
  ~Loopback() {
    if (receiver_ != nullptr) receiver_->stop();
    if (thread_.joinable()) thread_.join();
    if (!folder_.empty()) remove_bench_folder(folder_);
  }

  Variant s1() {
    return {.work = [this]() -> Status {
      naive_.sha256(payload_);
      return success();
    }};
  }
  /// T, or N with both hashes and the copy.
  Variant plain(bool hashed) { return plain(hashed, payload_.size(), {}); }
  /// T of so many bytes, with a suite that was asked for.
  Variant discard(std::size_t bytes, const std::string& suite) {
    return plain(false, std::min(bytes, payload_.size()), suite);
  }
  Variant ours() {
    return {.work = [this] { return send(); },
            .cores = 2,
            .after = [this]() -> Status {
              return engine_.take_end() ? success() : Status(fail(ErrorCode::kInternal, "not committed"));
            }};
  }
  bool is_exact() const { return engine_.shadow == payload_; }
  /// Of the latest plain connection.
  const std::string& suite() const noexcept { return suite_; }

 private:
  Loopback(FileSystem& fs, std::size_t segments)
      : fs_(&fs), payload_(segments * kSegmentBytes), engine_(payload_.size()), buffer_(kSegmentBytes) {
    fill_with_noise(payload_, 6);
  }

  Variant plain(bool hashed, std::size_t bytes, const std::string& suite) {
    return {.work = [this, hashed, bytes]() -> Status { return receive_plainly(hashed, bytes); },
            .cores = 2,
            .before = [this, suite]() -> Status {
              KVPACK_TRY_ASSIGN(pipe_, PlainPipe::connect(ends_.server(), ends_.client(), suite));
              suite_ = pipe_->suite();
              return success();
            },
            .after = [this]() -> Status {
              pipe_.reset();
              return success();
            }};
  }
  Status send() {
    Cargo cargo(payload_);
    net::OutgoingTransfer transfer;
    transfer.prompt_token_ids = {1};
    KVPACK_TRY(net::send_handoff(*fs_, clock_, ends_.producer, transfer, cargo));
    return success();
  }
  Status receive_plainly(bool hashed, std::size_t bytes) {
    std::atomic<bool> sent{true};
    bool received = true;
    {
      const std::jthread sender([&] { sent = pipe_->send(ByteSpan(payload_).first(bytes)); });
      if (hashed) naive_.begin_stream();
      for (std::size_t at = 0; received && at < bytes; at += kSegmentBytes) {
        received = pipe_->receive(buffer_);
        if (!received || !hashed) continue;
        naive_.sha256(buffer_);
        naive_.stream(buffer_);
        copy_bytes(buffer_, MutableByteSpan(engine_.shadow).subspan(at, kSegmentBytes));
      }
      if (hashed) naive_.end_stream();
    }
    return sent && received ? success() : Status(fail(ErrorCode::kIo, "the connection broke off"));
  }

  FileSystem* fs_;
  std::string folder_{};
  SettlingClock clock_{};
  Ends ends_{};
  Bytes payload_;
  Engine engine_;
  Bytes buffer_;
  NaiveCrypto naive_{};
  std::unique_ptr<PlainPipe> pipe_{};
  std::string suite_{};
  std::unique_ptr<net::Receiver> receiver_{};
  Status ended_ = success();
  std::jthread thread_{};
};

/// Beside G12: what each suite of TLS 1.3 costs the shortest program.
Status suites(BenchRun& run, Loopback& loopback, const std::string& goal_suite) {
  constexpr std::size_t kBytes = std::size_t{64} << 20;
  constexpr std::array kSuites{"TLS_AES_256_GCM_SHA384", "TLS_AES_128_GCM_SHA256",
                               "TLS_CHACHA20_POLY1305_SHA256"};
  KVPACK_TRY(run.time_left());
  std::vector<Variant> variants;
  for (const char* const suite : kSuites) variants.push_back(loopback.discard(kBytes, suite));
  KVPACK_TRY_ASSIGN(const Samples samples, run.measure("suites of TLS 1.3", variants, wall_seconds));
  for (std::size_t i = 0; samples.rounds() > 0 && i < kSuites.size(); ++i)
    run.add_row({.operation = fmt::format("TLS on loopback, receive and discard, {}{}", kSuites[i],
                                          kSuites[i] == goal_suite ? " (that of G12)" : ""),
                 .unit = fmt::format("x {}", kSuites[0]),
                 .value = ratio_of(samples, {0}, {i})});
  return success();
}

}  // namespace
}  // namespace family_tls

Status measure_tls(BenchRun& run) {
  using namespace family_tls;
  if (!run.wants("G12")) return success();
  const std::size_t segments = std::max<std::size_t>(1, run.options().data_bytes / kSegmentBytes);
  // The receiver's thread starts here, and is to be kept to the cores of all that follows.
  run.use_cores(2);
  auto made = Loopback::make(run, segments);
  run.use_cores(run.cores());
  KVPACK_TRY_ASSIGN(const auto loopback, std::move(made));
  enum : std::size_t { kS1, kT, kN, kOurs };
  const std::vector<Variant> variants{loopback->s1(), loopback->plain(false), loopback->plain(true),
                                      loopback->ours()};
  KVPACK_TRY_ASSIGN(const Samples samples,
                    run.measure("handoff over TLS on loopback: G12", variants, wall_seconds));
  if (samples.rounds() > 0 && !loopback->is_exact())
    return fail(ErrorCode::kInternal, "the received bytes differ");
  const std::string suite = loopback->suite();
  const Term b[]{{kT}, {kS1, 2}};
  const Term n[]{{kN}};
  const Term ours[]{{kOurs}};
  const auto add = [&](const GoalPart& part, std::span<const Term> baseline, std::size_t control) {
    Figure figure{.part = &part,
                  .kernel = fmt::format("{}{}{}", run.kernels().name, suite.empty() ? "" : ", ", suite),
                  .not_valid = run.too_little_data()};
    if (samples.rounds() > 0) {
      figure.ratio = ratio_of(samples, baseline, ours);
      figure.control.spread = spread_of(samples, control);
    }
    run.add(std::move(figure), samples);
  };
  add(goal_part("G12", "B"), b, kT);
  add(goal_part("G12", "N"), n, kN);
  return run.wants_rows() ? suites(run, *loopback, suite) : success();
}

}  // namespace kvpack::cli::bench
