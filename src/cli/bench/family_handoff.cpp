// G10 and G11: a transfer that is in memory goes through the receive loop into a sink that lends its places.
// N copies each segment and hashes the copy twice, once alone and once behind all others.
#include <numeric>

#include "cli/bench/baseline_hash.h"
#include "cli/bench/families.h"
#include "kvpack/handoff/receive_loop.h"
#include "kvpack/handoff/sender.h"

namespace kvpack::cli::bench {

namespace family_handoff {
namespace {

using namespace handoff;

constexpr std::uint64_t kTokens = 512;
constexpr std::uint64_t kElements = 1'024;
constexpr std::size_t kSegmentBytes = kTokens * kElements * 2;

BeginManifest make_begin() {
  const std::string digest(64, 'a');
  BeginManifest begin;
  begin.components = {{"target", ComponentKind::kTargetKv, true, std::string(64, 'f')}};
  begin.created_unix_ms = 1'000;
  begin.deferred_segments = true;
  begin.expires_unix_ms = 901'000;
  begin.generation = 1;
  begin.hmac = {.epoch = 1, .key_id = "bench"};
  begin.identity = {.adapter_sha256 = digest,
                    .chat_template_sha256 = digest,
                    .context_policy_sha256 = digest,
                    .model_revision = "revision",
                    .model_sha256 = digest,
                    .tokenizer_revision = "revision",
                    .tokenizer_sha256 = digest};
  begin.prompt_token_ids = {1};
  begin.transfer_id = "bench";
  return begin;
}

SegmentShape shape_of(std::uint64_t segment) {
  return {.component_id = "target",
          .role = SegmentRole::kNopeTile,
          .layer = std::nullopt,
          .logical_start = segment * kTokens,
          .logical_count = kTokens,
          .element_type = "f16_le",
          .elements_per_token = kElements};
}

/// Lends the places of one shadow; commits nothing.
class ShadowSink final : public Sink {
 public:
  explicit ShadowSink(std::size_t bytes) : shadow(bytes) {}
  Status begin(const ValidatedBegin&) override { return success(); }
  Status lend(const SegmentDescriptor& descriptor, std::size_t,
              std::vector<MutableByteSpan>& place) override {
    place.push_back(MutableByteSpan(shadow).subspan(descriptor.sequence * kSegmentBytes, kSegmentBytes));
    return success();
  }
  Status segment_ready(VerifiedSegment&) override { return success(); }
  Status prepare_commit(const VerifiedSeal&) override { return success(); }
  Result<CommittedGeneration> commit() override { return CommittedGeneration{}; }
  void abort() noexcept override {}

  Bytes shadow;
};

/// A transfer, made once: begin, a head for each segment, seal.
class Transfer {
 public:
  static Result<std::unique_ptr<Transfer>> make(std::size_t segments, const Sha256Kernels& kernels) {
    KVPACK_TRY_ASSIGN(MacKey key, MacKey::from_hex(std::string(64, '5')));
    std::unique_ptr<Transfer> out(new Transfer(std::move(key), segments));
    SenderOptions options;
    options.sha256 = &kernels;
    KVPACK_TRY_ASSIGN(Sender sender, Sender::open(make_begin(), 0, out->key_, options));
    out->heads_.push_back(sender.begin_frame());
    for (std::size_t i = 0; i < segments; ++i) {
      KVPACK_TRY_ASSIGN(Bytes head, sender.add_segment(shape_of(i), out->segment(i)));
      out->heads_.push_back(std::move(head));
    }
    KVPACK_TRY_ASSIGN(Bytes seal, sender.finish());
    out->heads_.push_back(std::move(seal));
    return out;
  }

  Variant n_push() {
    return {.work = [this]() -> Status {
      naive_.begin_stream();
      for (std::size_t i = 0; i < segments_; ++i) {
        const MutableByteSpan place = MutableByteSpan(sink_.shadow).subspan(i * kSegmentBytes, kSegmentBytes);
        copy_bytes(segment(i), place);
        naive_.sha256(place);
        naive_.stream(place);
      }
      naive_.end_stream();
      return success();
    }};
  }
  Variant n_pull() {
    return {.work = [this]() -> Status {
      naive_.begin_stream();
      for (std::size_t i = 0; i < segments_; ++i) {
        naive_.sha256(segment(i));
        naive_.stream(segment(i));
      }
      naive_.end_stream();
      return success();
    }};
  }
  Variant s1() {
    return {.work = [this]() -> Status {
      naive_.sha256(payload_);
      return success();
    }};
  }
  Variant push(const Sha256Kernels& kernels, unsigned threads) {
    return {.work =
                [this, &kernels, threads] {
                  return receive(kernels, threads, [this](ReceiveLoop& loop, std::size_t i) -> Status {
                    ByteSpan bytes = segment(i);
                    KVPACK_TRY(loop.push(bytes));
                    return success();
                  });
                },
            .cores = threads};
  }
  Variant pull(const Sha256Kernels& kernels, unsigned threads) {
    return {.work =
                [this, &kernels, threads] {
                  // The transport has already put the bytes where they belong.
                  return receive(kernels, threads, [](ReceiveLoop& loop, std::size_t) -> Status {
                    for (std::size_t left = kSegmentBytes; left > 0;) {
                      const std::size_t n = std::min(left, loop.want().size());
                      KVPACK_TRY(loop.advance(n));
                      left -= n;
                    }
                    return success();
                  });
                },
            .cores = threads,
            .before = [this]() -> Status {
              copy_bytes(payload_, sink_.shadow);
              return success();
            }};
  }

 private:
  Transfer(MacKey key, std::size_t segments)
      : key_(std::move(key)),
        segments_(segments),
        payload_(segments * kSegmentBytes),
        sink_(payload_.size()) {
    fill_with_noise(payload_, 2);
  }
  ByteSpan segment(std::size_t i) const {
    return ByteSpan(payload_).subspan(i * kSegmentBytes, kSegmentBytes);
  }

  template <class PayloadIn>
  Status receive(const Sha256Kernels& kernels, unsigned threads, const PayloadIn& payload_in) {
    ReceivePolicy policy;
    policy.keys = {{"bench", 1, &key_}};
    policy.times.reset();
    policy.sha256 = &kernels;
    policy.threads = threads;
    ReceiveLoop loop(std::move(policy));
    const auto head_in = [&](std::size_t i) -> Status {
      ByteSpan head = heads_[i];
      KVPACK_TRY_ASSIGN(const ReceiveStep step, loop.push(head));
      if (step == ReceiveStep::kBegin) KVPACK_TRY(loop.accept_begin(1'000, sink_, nullptr, nullptr));
      return success();
    };
    KVPACK_TRY(head_in(0));
    for (std::size_t i = 0; i < segments_; ++i) {
      KVPACK_TRY(head_in(i + 1));
      KVPACK_TRY(payload_in(loop, i));
    }
    KVPACK_TRY(head_in(segments_ + 1));
    if (loop.ack_frame().empty()) return fail(ErrorCode::kInternal, "the transfer was not committed");
    return success();
  }

  MacKey key_;
  std::size_t segments_;
  Bytes payload_;
  ShadowSink sink_;
  NaiveCrypto naive_{};
  std::vector<Bytes> heads_{};
};

}  // namespace
}  // namespace family_handoff

Status measure_handoff(BenchRun& run) {
  using namespace family_handoff;
  if (!run.wants_any({"G10", "G11"})) return success();
  const std::size_t segments =
      std::clamp<std::size_t>(run.options().data_bytes / 2 / kSegmentBytes, 1, std::size_t{256});
  KVPACK_TRY_ASSIGN(const auto transfer, Transfer::make(segments, run.kernels()));
  const std::string kernel(run.kernels().name);
  if (run.wants("G10")) {
    enum : std::size_t { kNPush, kPush, kNPull, kPull };
    const std::vector<Variant> variants{transfer->n_push(), transfer->push(run.kernels(), 1),
                                        transfer->n_pull(), transfer->pull(run.kernels(), 1)};
    KVPACK_TRY_ASSIGN(const Samples samples,
                      run.measure("handoff on one thread: G10", variants, processor_seconds));
    Figure figure{.part = &goal_part("G10"), .kernel = kernel};
    if (samples.rounds() > 0) {
      figure.ratio = ratio_of(samples, {kNPush}, {kPush});
      figure.control.spread = spread_of(samples, kNPush);
      run.add_row({.operation = "handoff: receive in the pull form, 1 thread",
                   .unit = "x N without the copy",
                   .value = ratio_of(samples, {kNPull}, {kPull}),
                   .kernel = kernel});
    }
    run.add(std::move(figure), samples);
  }
  if (run.wants("G11")) {
    const std::vector<Variant> variants{transfer->s1(), transfer->push(run.kernels(), 2)};
    KVPACK_TRY_ASSIGN(const double before, run.two_thread_gain());
    KVPACK_TRY_ASSIGN(const Samples samples,
                      run.measure("handoff on two threads: G11", variants, wall_seconds));
    KVPACK_TRY_ASSIGN(const double after, run.two_thread_gain());
    Figure figure{.part = &goal_part("G11"),
                  .control = {.gain_before = before, .gain_after = after},
                  .kernel = kernel,
                  .not_valid = run.too_little_data()};
    if (samples.rounds() > 0) figure.ratio = ratio_of(samples, {0}, {1});
    run.add(std::move(figure), samples);
  }
  return success();
}

}  // namespace kvpack::cli::bench
