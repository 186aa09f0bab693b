/// The producer's side of a transfer: frames to send come out, the receiver's answer goes in.
/// docs/protocol/handoff.md §Seal, §Writing.
///
///   auto sender = Sender::open(begin, cut, key);        send(sender->begin_frame());
///   auto head = sender->add_segment(shape, payload);    send(*head); send(payload);     for every segment
///   auto seal = sender->finish();                       send(*seal);
///   sender->push_reply(received)                        until kAcknowledged or kRefused
#pragma once

#include "kvpack/handoff/admission.h"
#include "kvpack/handoff/frame_decoder.h"

namespace kvpack::handoff {

struct SenderOptions {
  FrameLimits frame_limits;
  bool refusals = false;  ///< The receiver may answer with a refusal: only where the peers have agreed on it.
  const Sha256Kernels* sha256 = &kOpensslSha256;  ///< Hash the payload. Outlive the sender; change no byte.
};

enum class SenderStep : std::uint8_t {
  kMore,          ///< No whole answer yet.
  kAcknowledged,  ///< The transfer is committed.
  kRefused,       ///< refusal() says why. Nothing more is sent.
};

/// Signs and frames one transfer. Payloads are read once and never kept. Nothing that has been refused can be
/// sealed: after a failure only abort_frame is left. One thread at a time.
class Sender {
 public:
  /// @param begin       in declared mode with every descriptor and its digest
  /// @param prefix_cut  tokens that the receiver already holds; written beside the manifest, never hashed
  /// @param key         must outlive the sender
  /// @error kValidation  what a receiver would refuse the begin for; kZeroGeneration; kInvalidFrame
  static Result<Sender> open(BeginManifest begin, std::uint64_t prefix_cut, const MacKey& key,
                             const SenderOptions& options = {});

  /// Goes out first.
  const Bytes& begin_frame() const noexcept { return begin_frame_; }

  /// Deferred mode: describes, hashes and checks a segment. The result goes out, then the payload: the digest
  /// stands in front of the bytes it is of, so the payload must stay as it is until it has been sent.
  /// @param payload  pieces in order
  /// @return preamble and header
  /// @error kValidation  the rules on segments; kInvalidFrame the payload is empty or too long; kState
  Result<Bytes> add_segment(const SegmentShape& shape, std::span<const ByteSpan> payload);
  Result<Bytes> add_segment(const SegmentShape& shape, ByteSpan payload) {
    return add_segment(shape, std::span(&payload, 1));
  }
  /// Declared mode: the payload of the next descriptor of the begin.
  /// @error kValidation `cannot sign mismatched segment material`, `extra segment`; kInvalidFrame kState
  Result<Bytes> add_declared_segment(std::span<const ByteSpan> payload);
  Result<Bytes> add_declared_segment(ByteSpan payload) {
    return add_declared_segment(std::span(&payload, 1));
  }

  /// The seal frame, which goes out last.
  /// @error kValidation `seal before every segment`, `required component has no deferred segment`; kState
  Result<Bytes> finish();

  /// What to send, if anything can still be sent, when the transfer is given up before its acknowledgement.
  static Result<Bytes> abort_frame(std::string_view reason = "producer failure") {
    return encode_abort_frame(reason);
  }

  /// Bytes from the receiver, shortened by what was read. They may come at any time: a refusal ends a
  /// transfer early.
  /// @error kValidation `receiver returned non-ACK frame: {kind}`, `receiver ACK identity differs from the
  ///        committed generation`, `receiver acknowledged an unsealed transfer`; kInvalidFrame kJson
  Result<SenderStep> push_reply(ByteSpan& bytes);
  /// The receiver has closed. @error kIo kInvalidFrame, unless it has answered
  Result<SenderStep> end_of_reply() const;
  /// After kRefused.
  const RefusalFrame& refusal() const noexcept { return refusal_; }

  /// Whether segments are described as they go, or were all declared by the begin.
  bool deferred() const noexcept { return manifest().deferred_segments; }
  std::uint32_t segment_count() const noexcept { return transcript_.segment_count(); }
  std::uint64_t total_bytes() const noexcept { return transcript_.total_bytes(); }
  /// After finish.
  const SealManifest& seal() const noexcept { return seal_; }

 private:
  enum class State : std::uint8_t { kSending, kSealed, kFailed };

  Sender(std::unique_ptr<const ValidatedBegin> begin, const MacKey& key, const SenderOptions& options,
         Bytes begin_frame)
      : begin_(std::move(begin)),
        key_(&key),
        options_(options),
        begin_frame_(std::move(begin_frame)),
        transcript_(*options.sha256),
        rules_(begin_->manifest().components),
        seen_(begin_->manifest().components.size(), false),
        replies_({.strict = true, .refusals = options.refusals}, options.frame_limits) {}

  const BeginManifest& manifest() const noexcept { return begin_->manifest(); }
  Error refuse(Error error) {
    state_ = State::kFailed;
    return error;
  }
  Status check_sending() const;
  Result<std::uint64_t> hash(std::span<const ByteSpan> payload);
  Result<SenderStep> read_reply(ByteSpan& bytes);
  Result<SenderStep> take_reply(const Frame& frame);

  std::unique_ptr<const ValidatedBegin> begin_;  ///< On the heap: rules_ points into it, and senders move.
  const MacKey* key_;
  SenderOptions options_;
  Bytes begin_frame_;
  State state_ = State::kSending;
  SealTranscript transcript_;
  SegmentRules rules_;
  std::vector<bool> seen_;
  SealManifest seal_;
  FrameDecoder replies_;
  SenderStep answer_ = SenderStep::kMore;
  RefusalFrame refusal_;
  std::optional<Error> reply_failure_;
};

// ---------------------------------------------------------------------------------------------------------

namespace detail {

struct FrameKindName {
  std::string_view operator()(const BeginFrame&) const noexcept { return "begin"; }
  std::string_view operator()(const SegmentFrame&) const noexcept { return "segment"; }
  std::string_view operator()(const SealFrame&) const noexcept { return "seal"; }
  std::string_view operator()(const AckFrame&) const noexcept { return "ack"; }
  std::string_view operator()(const AbortFrame&) const noexcept { return "abort"; }
  std::string_view operator()(const RefusalFrame&) const noexcept { return "refusal"; }
};

}  // namespace detail

inline Result<Sender> Sender::open(BeginManifest begin, std::uint64_t prefix_cut, const MacKey& key,
                                   const SenderOptions& options) {
  if (begin.generation == 0)
    return fail(ErrorCode::kZeroGeneration, "handoff generation zero is never installable");
  // The receiver's own checks, with the times and the key that the begin names.
  const AcceptedKeyId own{.key_id = begin.hmac.key_id, .minimum_epoch = begin.hmac.epoch};
  const BeginRules rules{.now_unix_ms = begin.created_unix_ms,
                         .keys = std::span(&own, 1),
                         .max_segments = std::nullopt,
                         .max_total_bytes = std::nullopt};
  KVPACK_TRY_ASSIGN(ValidatedBegin validated, ValidatedBegin::validate(std::move(begin), rules));
  if (prefix_cut != 0) KVPACK_TRY(check_cut(validated.manifest(), prefix_cut));
  KVPACK_TRY_ASSIGN(Bytes frame, encode_begin_frame(validated.manifest(), prefix_cut, options.frame_limits));
  return Sender(std::make_unique<const ValidatedBegin>(std::move(validated)), key, options, std::move(frame));
}

inline Status Sender::check_sending() const {
  if (answer_ == SenderStep::kRefused) return fail(ErrorCode::kState, "receiver has refused the transfer");
  if (state_ != State::kSending) return fail(ErrorCode::kState, "sender takes no more segments");
  return success();
}

/// Hashes a payload and gives its length.
inline Result<std::uint64_t> Sender::hash(std::span<const ByteSpan> payload) {
  std::uint64_t total = 0;
  for (const ByteSpan piece : payload) total = detail::saturating_add(total, piece.size());
  if (total > options_.frame_limits.max_payload_bytes)
    return detail::invalid_frame("frame exceeds configured bounds");
  for (const ByteSpan piece : payload) transcript_.payload(piece);
  return total;
}

inline Result<Bytes> Sender::add_segment(const SegmentShape& shape, std::span<const ByteSpan> payload) {
  KVPACK_TRY(check_sending());
  if (!manifest().deferred_segments)
    return refuse(detail::invalid_handoff("deferred segment outside deferred receiving mode"));
  auto bytes = hash(payload);
  if (!bytes.has_value()) return refuse(std::move(bytes.error()));
  const SegmentDescriptor descriptor{.sequence = transcript_.segment_count(),
                                     .shape = shape,
                                     .byte_len = *bytes,
                                     .sha256 = to_hex(transcript_.finish_payload())};
  auto component = rules_.admit(descriptor);
  if (!component.has_value()) return refuse(std::move(component.error()));
  auto head = encode_segment_head(descriptor.sequence, &descriptor, *bytes, options_.frame_limits);
  if (!head.has_value()) return refuse(std::move(head.error()));
  if (auto added = transcript_.add(descriptor); !added.has_value()) return refuse(std::move(added.error()));
  seen_[*component] = true;
  return head;
}

inline Result<Bytes> Sender::add_declared_segment(std::span<const ByteSpan> payload) {
  KVPACK_TRY(check_sending());
  const std::uint32_t next = transcript_.segment_count();
  if (next >= manifest().segments.size()) return refuse(detail::invalid_handoff("extra segment"));
  const SegmentDescriptor& descriptor = manifest().segments[next];
  auto bytes = hash(payload);
  if (!bytes.has_value()) return refuse(std::move(bytes.error()));
  if (*bytes != descriptor.byte_len || to_hex(transcript_.finish_payload()) != descriptor.sha256)
    return refuse(detail::invalid_handoff("cannot sign mismatched segment material"));
  auto head = encode_segment_head(next, nullptr, *bytes, options_.frame_limits);
  if (!head.has_value()) return refuse(std::move(head.error()));
  if (auto added = transcript_.add(descriptor); !added.has_value()) return refuse(std::move(added.error()));
  return head;
}

inline Result<Bytes> Sender::finish() {
  KVPACK_TRY(check_sending());
  const bool deferred = manifest().deferred_segments;
  const std::uint32_t count = transcript_.segment_count();
  if (deferred ? count == 0 : count != manifest().segments.size())
    return refuse(detail::invalid_handoff("seal before every segment"));
  for (std::size_t i = 0; deferred && i < seen_.size(); ++i)
    if (manifest().components[i].required && !seen_[i])
      return refuse(detail::invalid_handoff("required component has no deferred segment"));
  seal_.core = transcript_.finish(manifest(), begin_->sha256_hex());
  seal_.hmac_sha256 = key_->tag_hex(canonical_seal_core(seal_.core));
  state_ = State::kSealed;
  return encode_seal_frame(seal_, options_.frame_limits);
}

inline Result<SenderStep> Sender::push_reply(ByteSpan& bytes) {
  if (reply_failure_.has_value()) return *reply_failure_;
  auto step = read_reply(bytes);
  if (step.has_value()) {
    answer_ = *step;
  } else {
    reply_failure_ = step.error();
  }
  return step;
}

inline Result<SenderStep> Sender::read_reply(ByteSpan& bytes) {
  while (answer_ == SenderStep::kMore && !bytes.empty()) {
    KVPACK_TRY_ASSIGN(const Arrival arrival, replies_.push(bytes));
    if (arrival == Arrival::kFrame) return take_reply(replies_.take_frame());
  }
  return answer_;
}

inline Result<SenderStep> Sender::take_reply(const Frame& frame) {
  if (const auto* refusal = std::get_if<RefusalFrame>(&frame)) {
    refusal_ = *refusal;
    return SenderStep::kRefused;
  }
  const auto* ack = std::get_if<AckFrame>(&frame);
  if (ack == nullptr)
    return detail::invalid_handoff("receiver returned non-ACK frame: " +
                                   std::string(std::visit(detail::FrameKindName{}, frame)));
  if (ack->transfer_id != manifest().transfer_id || ack->generation != manifest().generation)
    return detail::invalid_handoff("receiver ACK identity differs from the committed generation");
  if (state_ != State::kSealed) return detail::invalid_handoff("receiver acknowledged an unsealed transfer");
  return SenderStep::kAcknowledged;
}

inline Result<SenderStep> Sender::end_of_reply() const {
  if (reply_failure_.has_value()) return *reply_failure_;
  if (answer_ != SenderStep::kMore) return answer_;
  return replies_.end_of_stream();
}

}  // namespace kvpack::handoff
