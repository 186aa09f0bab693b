/// One transfer from its first byte to its acknowledgement, as a machine over bytes: the stream comes in,
/// what to do next goes out. No socket, no clock, no thread. docs/protocol/handoff.md §Receive loop.
///
///   ReceiveLoop loop(policy);
///   for (;;) {
///     MutableByteSpan place = loop.want();              // empty while the begin waits to be accepted
///     auto step = loop.advance(read(socket, place));    // or loop.push(bytes)
///     if (step is an error) { close; break; }
///     if (*step == ReceiveStep::kBegin) loop.accept_begin(now, sink, ledger, armed);
///     if (*step == ReceiveStep::kCommitted) { write(socket, loop.ack_frame()); break; }
///   }
#pragma once

#include <exception>

#include "kvpack/handoff/admission.h"
#include "kvpack/handoff/frame_decoder.h"
#include "kvpack/handoff/receiver.h"

namespace kvpack::handoff {

/// The replay ledger as the receive loop sees it: the highest generation committed per key id and epoch.
class ReplayLedger {
 public:
  virtual ~ReplayLedger() = default;
  /// Whether the generation is new. Writes nothing. @error kReplay kZeroGeneration kConfig
  virtual Status admit(std::string_view key_id, std::uint64_t epoch, std::uint64_t generation) = 0;
  /// Makes the generation the highest, durably. @error as admit, and kIo
  virtual Status reserve(std::string_view key_id, std::uint64_t epoch, std::uint64_t generation) = 0;
};

/// A key that seals are accepted from.
struct AcceptedKey {
  std::string key_id;
  std::uint64_t minimum_epoch = 0;
  const MacKey* key = nullptr;  ///< Must outlive the loop. Without one the id is not accepted.
};

/// How a stream is judged.
struct ReceivePolicy {
  std::vector<AcceptedKey> keys;  ///< Ids distinct.
  /// House rules on top of the format. Off gives upstream's verdicts, and then the three bounds below are
  /// off.
  bool strict = true;
  std::optional<TimeRules> times = TimeRules{};  ///< Nothing: a recording, judged without a receiver's clock.
  std::optional<std::uint32_t> max_segments = kDefaultMaxSegments;
  std::optional<std::uint64_t> max_total_bytes;
  /// The stream is a recording, which must end with its seal. The seal is then judged by end_of_stream.
  bool recorded = false;
  FrameLimits frame_limits;
  const Sha256Kernels* sha256 = &kOpensslSha256;  ///< Hash the payload. Outlive the loop; change no verdict.
  /// From 2 on the payload is hashed on a thread of its own, or its running digest is (PayloadHasher): for
  /// transfers that come faster than one thread hashes and copies. Changes no verdict.
  unsigned threads = 1;
  SpanSchedule schedule;  ///< Without one every delta is refused, unless schedule_optional says otherwise.
  /// Without a schedule, a delta that no request has armed is judged by its cut alone. For verifiers of
  /// recordings, which must then say that the segments were compared with no schedule.
  bool schedule_optional = false;
};

enum class ReceiveStep : std::uint8_t {
  kMore,       ///< Go on feeding.
  kBegin,      ///< The begin frame is complete: look at begin(), then accept_begin or drop the connection.
  kCommitted,  ///< Done: send ack_frame(). Nothing more is read.
};

class ReceiveLoop {
 public:
  explicit ReceiveLoop(ReceivePolicy policy)
      : policy_(std::move(policy)), decoder_({.strict = policy_.strict}, policy_.frame_limits) {}
  ReceiveLoop(const ReceiveLoop&) = delete;
  ReceiveLoop& operator=(const ReceiveLoop&) = delete;

  /// Pull form: where the next bytes of the stream belong, valid until the next call. Payload goes straight
  /// into the place that the sink lends. Empty before accept_begin, after the end and after a failure.
  MutableByteSpan want();
  /// The first `n` bytes of want() have been filled.
  /// @error  any category of the protocol; the sink has then been aborted, and every later call gives the
  /// same
  Result<ReceiveStep> advance(std::size_t n);
  /// Push form: copies from the front of `bytes`, which it shortens, until they are used up or a step other
  /// than kMore is reached. @error as advance
  Result<ReceiveStep> push(ByteSpan& bytes);
  /// Whether no byte of the next frame has arrived.
  bool between_frames() const noexcept { return decoder_.between_frames(); }
  /// No more bytes will come. @return kCommitted when the transfer is committed, now or before
  /// @error kIo kInvalidFrame  the stream breaks off; with a recording also what its seal is refused for
  Result<ReceiveStep> end_of_stream();

  /// The begin frame between kBegin and accept_begin.
  const BeginFrame* begin() const noexcept { return begin_.has_value() ? &*begin_ : nullptr; }

  /// Ledger, times, validation, admission and the sink's begin, in this order.
  /// @param now_unix_ms  the wall clock when the last byte of the begin frame arrived
  /// @param sink      must outlive the loop
  /// @param ledger    or nullptr for a recording; must outlive the loop
  /// @param expected  the armed request, or nullptr; must outlive the loop
  /// @error  as advance; kState when no begin waits
  Status accept_begin(std::uint64_t now_unix_ms, Sink& sink, ReplayLedger* ledger,
                      const RequestExpectations* expected);

  /// After kCommitted.
  const CommittedGeneration& committed() const noexcept { return committed_; }
  const Bytes& ack_frame() const noexcept { return ack_frame_; }

  /// Drops the transfer, for a cancellation or a timeout: the sink is aborted unless it has committed.
  /// @param reason  what every later call answers
  void abort(Error reason);

  /// The accepted begin, or nullptr.
  const BeginManifest* manifest() const noexcept {
    return receiver_ == nullptr ? nullptr : &receiver_->begin().manifest();
  }
  std::uint64_t prefix_cut() const noexcept { return prefix_cut_; }
  std::uint32_t segment_count() const noexcept {
    return receiver_ == nullptr ? 0 : receiver_->segment_count();
  }
  std::uint64_t total_bytes() const noexcept { return receiver_ == nullptr ? 0 : receiver_->total_bytes(); }
  /// Whether the failure was the engine's own.
  bool failed_in_engine() const noexcept { return sink_.has_value() && sink_->failed_in_engine(); }
  /// Whether the ledger was asked to reserve. From then on the producer is told success or nothing.
  bool reservation_asked() const noexcept { return reservation_asked_; }

 private:
  enum class State : std::uint8_t { kAwaitingBegin, kBeginRead, kReceiving, kSealRead, kDone, kFailed };

  /// Ends the transfer when an exception leaves a call: what was going on cannot be taken up again.
  class EndOnThrow {
   public:
    explicit EndOnThrow(ReceiveLoop& loop) noexcept : loop_(&loop) {}
    EndOnThrow(const EndOnThrow&) = delete;
    EndOnThrow& operator=(const EndOnThrow&) = delete;
    ~EndOnThrow() {
      if (std::uncaught_exceptions() > before_) loop_->abort(fail(ErrorCode::kNoMemory, "out of memory"));
    }

   private:
    ReceiveLoop* loop_;
    int before_ = std::uncaught_exceptions();
  };

  Error latch(Error error);
  Result<ReceiveStep> take(Arrival arrival);
  Result<ReceiveStep> take_frame(Frame frame);
  Result<ReceiveStep> take_payload(bool last);
  Result<ReceiveStep> finish(const SealManifest& seal);
  Status judge_begin(std::uint64_t now_unix_ms, Sink& sink, const RequestExpectations* expected);

  ReceivePolicy policy_;
  FrameDecoder decoder_;
  State state_ = State::kAwaitingBegin;
  std::optional<BeginFrame> begin_;
  std::uint64_t prefix_cut_ = 0;
  ReplayLedger* ledger_ = nullptr;
  bool reservation_asked_ = false;
  // The receiver aborts its sink when it dies, so it stands behind the sink.
  std::optional<AdmittingSink> sink_;
  std::unique_ptr<AtomicReceiver> receiver_;
  SealManifest seal_;
  std::uint8_t probe_ = 0;  ///< Where a byte behind a recording's seal would go.
  CommittedGeneration committed_;
  Bytes ack_frame_;
  std::optional<Error> failure_;
};

// ---------------------------------------------------------------------------------------------------------

inline MutableByteSpan ReceiveLoop::want() {
  switch (state_) {
    case State::kAwaitingBegin:
    case State::kReceiving: return decoder_.want();
    case State::kSealRead: return {&probe_, 1};
    case State::kBeginRead:
    case State::kDone:
    case State::kFailed: return {};
  }
  return {};
}

inline Error ReceiveLoop::latch(Error error) {
  abort(error);
  return error;
}

inline void ReceiveLoop::abort(Error reason) {
  if (state_ == State::kDone || state_ == State::kFailed) return;
  state_ = State::kFailed;
  if (receiver_ != nullptr) receiver_->abort();
  failure_ = std::move(reason);
}

inline Result<ReceiveStep> ReceiveLoop::advance(std::size_t n) {
  if (state_ == State::kFailed) return *failure_;
  if (state_ == State::kDone) return ReceiveStep::kCommitted;
  if (state_ == State::kBeginRead) return ReceiveStep::kBegin;
  if (n == 0) return ReceiveStep::kMore;
  if (state_ == State::kSealRead)
    return latch(detail::invalid_frame("recorded stream carries bytes after the seal"));
  const EndOnThrow guard(*this);
  auto arrival = decoder_.advance(n);
  if (!arrival.has_value()) return latch(std::move(arrival.error()));
  return take(*arrival);
}

inline Result<ReceiveStep> ReceiveLoop::push(ByteSpan& bytes) {
  if (bytes.empty()) return advance(0);
  const EndOnThrow guard(*this);
  while (!bytes.empty()) {
    if (state_ != State::kAwaitingBegin && state_ != State::kReceiving) return advance(bytes.size());
    auto arrival = decoder_.push(bytes);
    if (!arrival.has_value()) return latch(std::move(arrival.error()));
    KVPACK_TRY_ASSIGN(const ReceiveStep step, take(*arrival));
    if (step != ReceiveStep::kMore) return step;
  }
  return ReceiveStep::kMore;
}

inline Result<ReceiveStep> ReceiveLoop::take(Arrival arrival) {
  switch (arrival) {
    case Arrival::kPartial: return ReceiveStep::kMore;
    case Arrival::kFrame: return take_frame(decoder_.take_frame());
    case Arrival::kPayload: return take_payload(false);
    case Arrival::kPayloadEnd: return take_payload(true);
  }
  return ReceiveStep::kMore;
}

inline Result<ReceiveStep> ReceiveLoop::take_frame(Frame frame) {
  if (state_ == State::kAwaitingBegin) {
    auto* begin = std::get_if<BeginFrame>(&frame);
    if (begin == nullptr) return latch(fail(ErrorCode::kMissingBegin, "expected begin frame"));
    begin_ = std::move(*begin);
    state_ = State::kBeginRead;
    return ReceiveStep::kBegin;
  }
  if (auto* segment = std::get_if<SegmentFrame>(&frame)) {
    auto place =
        receiver_->open_segment(segment->sequence, std::move(segment->descriptor), segment->payload_bytes);
    if (!place.has_value()) return latch(std::move(place.error()));
    decoder_.set_place(*place);
    return ReceiveStep::kMore;
  }
  if (auto* seal = std::get_if<SealFrame>(&frame)) {
    if (!policy_.recorded) return finish(seal->manifest);
    seal_ = std::move(seal->manifest);
    state_ = State::kSealRead;
    return ReceiveStep::kMore;
  }
  if (auto* producer = std::get_if<AbortFrame>(&frame))
    return latch(fail(ErrorCode::kProducerAbort, std::move(producer->reason)));
  if (std::holds_alternative<BeginFrame>(frame)) return latch(detail::invalid_handoff("duplicate begin"));
  return latch(detail::invalid_handoff("producer sent an ACK to the receiver"));
}

inline Result<ReceiveStep> ReceiveLoop::take_payload(bool last) {
  receiver_->received(decoder_.arrived());
  if (!last) return ReceiveStep::kMore;
  auto closed = receiver_->close_segment();
  if (!closed.has_value()) return latch(std::move(closed.error()));
  return ReceiveStep::kMore;
}

inline Status ReceiveLoop::accept_begin(std::uint64_t now_unix_ms, Sink& sink, ReplayLedger* ledger,
                                        const RequestExpectations* expected) {
  if (state_ == State::kFailed) return *failure_;
  if (state_ != State::kBeginRead) return fail(ErrorCode::kState, "no begin waits to be accepted");
  const EndOnThrow guard(*this);
  ledger_ = ledger;
  auto judged = judge_begin(now_unix_ms, sink, expected);
  begin_.reset();
  if (!judged.has_value()) return latch(std::move(judged.error()));
  state_ = State::kReceiving;
  return success();
}

inline Status ReceiveLoop::judge_begin(std::uint64_t now_unix_ms, Sink& sink,
                                       const RequestExpectations* expected) {
  BeginManifest& begin = begin_->manifest;
  prefix_cut_ = begin_->prefix_cut;
  if (ledger_ != nullptr) KVPACK_TRY(ledger_->admit(begin.hmac.key_id, begin.hmac.epoch, begin.generation));
  KVPACK_TRY(check_not_expired(begin, now_unix_ms));
  if (policy_.strict && policy_.times.has_value())
    KVPACK_TRY(check_times(begin, now_unix_ms, *policy_.times));
  std::vector<AcceptedKeyId> key_ids;
  for (const AcceptedKey& key : policy_.keys)
    if (key.key != nullptr) key_ids.push_back({key.key_id, key.minimum_epoch});
  TransferLimits limits;
  limits.max_segments = policy_.strict ? policy_.max_segments : std::nullopt;
  limits.max_total_bytes = policy_.strict ? policy_.max_total_bytes : std::nullopt;
  KVPACK_TRY_ASSIGN(ValidatedBegin validated,
                    ValidatedBegin::validate(std::move(begin), {.now_unix_ms = now_unix_ms,
                                                                .keys = key_ids,
                                                                .max_segments = limits.max_segments,
                                                                .max_total_bytes = limits.max_total_bytes}));
  const auto key = std::ranges::find_if(policy_.keys, [&](const AcceptedKey& accepted) {
    return accepted.key != nullptr && accepted.key_id == validated.manifest().hmac.key_id;
  });
  sink_.emplace(sink, expected, prefix_cut_, policy_.schedule, policy_.strict, policy_.schedule_optional);
  KVPACK_TRY_ASSIGN(receiver_, AtomicReceiver::open(std::move(validated), *key->key, *sink_, limits,
                                                    *policy_.sha256, policy_.threads));
  return success();
}

inline Result<ReceiveStep> ReceiveLoop::finish(const SealManifest& seal) {
  if (auto prepared = receiver_->prepare_commit(seal); !prepared.has_value())
    return latch(std::move(prepared.error()));
  const BeginManifest& begin = receiver_->begin().manifest();
  // Made first, so that nothing can fail behind the commit. A validated transfer id is short ASCII, so this
  // frame has no bound to break.
  Bytes ack = *encode_ack_frame(begin.transfer_id, begin.generation);
  if (ledger_ != nullptr) {
    reservation_asked_ = true;
    auto reserved = ledger_->reserve(begin.hmac.key_id, begin.hmac.epoch, begin.generation);
    if (!reserved.has_value()) return latch(std::move(reserved.error()));
  }
  auto committed = receiver_->commit();
  if (!committed.has_value()) return latch(std::move(committed.error()));
  committed_ = *std::move(committed);
  state_ = State::kDone;
  ack_frame_ = std::move(ack);
  return ReceiveStep::kCommitted;
}

inline Result<ReceiveStep> ReceiveLoop::end_of_stream() {
  if (state_ == State::kFailed) return *failure_;
  if (state_ == State::kDone) return ReceiveStep::kCommitted;
  const EndOnThrow guard(*this);
  if (state_ == State::kSealRead) return finish(seal_);
  return latch(decoder_.end_of_stream());
}

}  // namespace kvpack::handoff
