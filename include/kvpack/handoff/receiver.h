/// The atomic receiver: a transfer becomes live as a whole or not at all.
/// docs/protocol/handoff.md §Atomic receiver.
#pragma once

#include "kvpack/handoff/sink.h"

namespace kvpack::handoff {

/// Bounds on a transfer beyond those of the format; nothing means no bound.
struct TransferLimits {
  std::optional<std::uint32_t> max_segments = kDefaultMaxSegments;
  std::optional<std::uint64_t> max_total_bytes;
};

/// Checks segments and seal of one transfer and drives the sink. Every failure aborts the sink, and so does
/// destruction before a commit. One thread at a time.
class AtomicReceiver {
 public:
  /// Calls sink.begin; when that fails, its error is returned and abort is not called.
  /// @param key, sink, sha256  must outlive the receiver
  /// @error kValidation `transfer exceeds {n} payload bytes`, and whatever the sink says
  static Result<std::unique_ptr<AtomicReceiver>> open(ValidatedBegin begin, const MacKey& key, Sink& sink,
                                                      const TransferLimits& limits,
                                                      const Sha256Kernels& sha256 = kOpensslSha256,
                                                      unsigned threads = 1);
  AtomicReceiver(const AtomicReceiver&) = delete;
  AtomicReceiver& operator=(const AtomicReceiver&) = delete;
  ~AtomicReceiver() {
    abort();
    transcript_.release_payload();
  }

  /// A whole segment of a declared or of a deferred transfer.
  /// @error kValidation, and whatever the sink says
  Status segment(std::uint32_t sequence, ByteSpan payload);
  Status deferred_segment(const SegmentDescriptor& descriptor, ByteSpan payload);

  /// The same in parts: judges the segment before its payload is there and gives the place for it, whose
  /// spans sum to `payload_bytes` and stay valid until close_segment or a failure.
  /// @param descriptor  in deferred mode
  Result<std::span<const MutableByteSpan>> open_segment(std::uint32_t sequence,
                                                        std::optional<SegmentDescriptor> descriptor,
                                                        std::uint64_t payload_bytes);
  /// The next bytes of the place have been filled, in order: `piece` is where they lie.
  void received(ByteSpan piece) { transcript_.payload(piece); }
  /// All of the payload has been received. @error kValidation, and whatever the sink says
  Status close_segment();

  /// Judges the seal and lets the sink do what can still fail. @error kValidation, and whatever the sink says
  Status prepare_commit(const SealManifest& seal);
  /// Makes the transfer live. @error kValidation `commit before prepared seal`, and whatever the sink says
  Result<CommittedGeneration> commit();
  /// Drops the transfer; nothing to do after a commit or an abort.
  void abort() noexcept;

  const ValidatedBegin& begin() const noexcept { return begin_; }
  std::uint32_t segment_count() const noexcept { return transcript_.segment_count(); }
  std::uint64_t total_bytes() const noexcept { return transcript_.total_bytes(); }
  /// Whether the latest error came from the sink.
  bool failed_in_sink() const noexcept { return failed_in_sink_; }

 private:
  enum class State : std::uint8_t { kOpening, kReceiving, kPrepared, kCommitted, kAborted };

  AtomicReceiver(ValidatedBegin begin, const MacKey& key, Sink& sink, const TransferLimits& limits,
                 const Sha256Kernels& sha256, unsigned threads)
      : begin_(std::move(begin)),
        key_(&key),
        sink_(&sink),
        limits_(limits),
        transcript_(sha256, threads),
        components_(begin_.manifest().components),
        rules_(begin_.manifest().components),
        seen_(begin_.manifest().components.size(), false) {}

  const BeginManifest& manifest() const noexcept { return begin_.manifest(); }
  Error refuse(Error error) {
    abort();
    return error;
  }
  Error refuse(std::string text) { return refuse(detail::invalid_handoff(std::move(text))); }
  Error refuse_for_sink(Error error) {
    failed_in_sink_ = true;
    return refuse(std::move(error));
  }
  Status bound_bytes();
  Status admit_declared(std::uint32_t sequence);
  Status admit_deferred(SegmentDescriptor descriptor);
  Status borrow_place();
  Status whole_segment(ByteSpan payload);
  Status finish_segment(std::span<const ByteSpan> pieces, Bytes* buffer, bool lent);
  Status check_core(const SealCore& core);

  ValidatedBegin begin_;
  const MacKey* key_;
  Sink* sink_;
  TransferLimits limits_;
  State state_ = State::kOpening;
  bool failed_in_sink_ = false;
  SealTranscript transcript_;
  ComponentIndex components_;
  SegmentRules rules_;
  std::vector<bool> seen_;

  const SegmentDescriptor* current_ = nullptr;  ///< The segment that has been admitted and not yet finished.
  std::size_t current_component_ = 0;
  SegmentDescriptor deferred_;
  std::vector<MutableByteSpan> place_;
  bool lent_ = false;
  Bytes buffer_;
};

// ---------------------------------------------------------------------------------------------------------

inline Result<std::unique_ptr<AtomicReceiver>> AtomicReceiver::open(ValidatedBegin begin, const MacKey& key,
                                                                    Sink& sink, const TransferLimits& limits,
                                                                    const Sha256Kernels& sha256,
                                                                    unsigned threads) {
  std::unique_ptr<AtomicReceiver> receiver(
      new AtomicReceiver(std::move(begin), key, sink, limits, sha256, threads));
  KVPACK_TRY(sink.begin(receiver->begin_));
  receiver->state_ = State::kReceiving;
  KVPACK_TRY(receiver->bound_bytes());
  return receiver;
}

/// Joins the sink's bound to ours, and applies it to what a declared begin promises.
inline Status AtomicReceiver::bound_bytes() {
  const std::uint64_t room = sink_->max_total_bytes();
  limits_.max_total_bytes = std::min(limits_.max_total_bytes.value_or(room), room);
  std::uint64_t total = 0;
  for (const SegmentDescriptor& segment : manifest().segments)
    total = detail::saturating_add(total, segment.byte_len);
  if (total > *limits_.max_total_bytes) return refuse(detail::too_many_bytes(*limits_.max_total_bytes));
  return success();
}

inline Status AtomicReceiver::admit_declared(std::uint32_t sequence) {
  if (state_ != State::kReceiving || current_ != nullptr) return refuse("segment outside receiving state");
  const std::uint32_t next = transcript_.segment_count();
  if (next >= manifest().segments.size()) return refuse("extra segment");
  const SegmentDescriptor& descriptor = manifest().segments[next];
  if (descriptor.sequence != sequence) return refuse("dropped, duplicate, or reordered segment");
  current_component_ = *components_.find(descriptor.shape.component_id);
  current_ = &descriptor;
  return success();
}

inline Status AtomicReceiver::admit_deferred(SegmentDescriptor descriptor) {
  if (state_ != State::kReceiving || current_ != nullptr || !manifest().deferred_segments)
    return refuse("deferred segment outside deferred receiving mode");
  const std::uint32_t next = transcript_.segment_count();
  if (limits_.max_segments.has_value() && next >= *limits_.max_segments)
    return refuse(detail::too_many_segments(*limits_.max_segments));
  if (descriptor.sequence != next) return refuse("dropped, duplicate, or reordered deferred segment");
  auto component = rules_.admit(descriptor);
  if (!component.has_value()) return refuse(std::move(component.error()));
  if (detail::saturating_add(transcript_.total_bytes(), descriptor.byte_len) > *limits_.max_total_bytes)
    return refuse(detail::too_many_bytes(*limits_.max_total_bytes));
  current_component_ = *component;
  deferred_ = std::move(descriptor);
  current_ = &deferred_;
  return success();
}

inline Status AtomicReceiver::borrow_place() {
  place_.clear();
  if (auto lent = sink_->lend(*current_, current_component_, place_); !lent.has_value())
    return refuse_for_sink(std::move(lent.error()));
  if (auto good = check_lent_place(*current_, place_); !good.has_value())
    return refuse_for_sink(std::move(good.error()));
  lent_ = !place_.empty();
  return success();
}

inline Result<std::span<const MutableByteSpan>> AtomicReceiver::open_segment(
    std::uint32_t sequence, std::optional<SegmentDescriptor> descriptor, std::uint64_t payload_bytes) {
  if (descriptor.has_value()) {
    KVPACK_TRY(admit_deferred(*std::move(descriptor)));
  } else {
    KVPACK_TRY(admit_declared(sequence));
  }
  if (payload_bytes != current_->byte_len) return refuse("segment length or digest mismatch");
  KVPACK_TRY(borrow_place());
  if (!lent_) {
    // Kept from segment to segment, unless the sink takes it: only growing costs a pass over the memory. The
    // old one goes first, so that there are never two.
    if (buffer_.capacity() < payload_bytes) buffer_ = Bytes();
    buffer_.resize(static_cast<std::size_t>(payload_bytes));
    place_.assign(1, MutableByteSpan(buffer_));
  }
  return std::span<const MutableByteSpan>(place_);
}

inline Status AtomicReceiver::close_segment() {
  if (current_ == nullptr) return refuse("segment outside receiving state");
  const std::vector<ByteSpan> pieces(place_.begin(), place_.end());
  return finish_segment(pieces, lent_ ? nullptr : &buffer_, lent_);
}

inline Status AtomicReceiver::segment(std::uint32_t sequence, ByteSpan payload) {
  KVPACK_TRY(admit_declared(sequence));
  return whole_segment(payload);
}

inline Status AtomicReceiver::deferred_segment(const SegmentDescriptor& descriptor, ByteSpan payload) {
  KVPACK_TRY(admit_deferred(descriptor));
  return whole_segment(payload);
}

inline Status AtomicReceiver::whole_segment(ByteSpan payload) {
  if (payload.size() != current_->byte_len) return refuse("segment length or digest mismatch");
  KVPACK_TRY(borrow_place());
  if (!lent_) {
    received(payload);
    return finish_segment(std::span(&payload, 1), nullptr, false);
  }
  for (const MutableByteSpan span : place_) {
    copy_bytes(payload.first(span.size()), span);
    payload = payload.subspan(span.size());
    received(span);
  }
  return close_segment();
}

inline Status AtomicReceiver::finish_segment(std::span<const ByteSpan> pieces, Bytes* buffer, bool lent) {
  const SegmentDescriptor& descriptor = *std::exchange(current_, nullptr);
  if (to_hex(transcript_.finish_payload()) != descriptor.sha256)
    return refuse("segment length or digest mismatch");
  if (auto added = transcript_.add(descriptor); !added.has_value()) return refuse(std::move(added.error()));
  VerifiedSegment segment(descriptor, current_component_, pieces, buffer, lent);
  if (auto ready = sink_->segment_ready(segment); !ready.has_value())
    return refuse_for_sink(std::move(ready.error()));
  seen_[current_component_] = true;
  return success();
}

inline Status AtomicReceiver::check_core(const SealCore& core) {
  const std::uint32_t next = transcript_.segment_count();
  const bool deferred = manifest().deferred_segments;
  const bool complete = deferred ? next > 0 : next == manifest().segments.size();
  if (state_ != State::kReceiving || current_ != nullptr || !complete)
    return refuse("seal before every segment");
  for (std::size_t i = 0; deferred && i < seen_.size(); ++i)
    if (manifest().components[i].required && !seen_[i])
      return refuse("required component has no deferred segment");
  if (core != transcript_.finish(manifest(), begin_.sha256_hex()))
    return refuse("seal identity or digest mismatch");
  return success();
}

inline Status AtomicReceiver::prepare_commit(const SealManifest& seal) {
  KVPACK_TRY(check_core(seal.core));
  if (auto digest = detail::check_digest(seal.hmac_sha256, "seal HMAC"); !digest.has_value())
    return refuse(std::move(digest.error()));
  if (auto tag = key_->verify_hex(canonical_seal_core(seal.core), seal.hmac_sha256); !tag.has_value())
    return refuse(std::move(tag.error()));
  if (auto prepared = sink_->prepare_commit(VerifiedSeal(seal)); !prepared.has_value())
    return refuse_for_sink(std::move(prepared.error()));
  state_ = State::kPrepared;
  return success();
}

inline Result<CommittedGeneration> AtomicReceiver::commit() {
  if (state_ != State::kPrepared) return refuse("commit before prepared seal");
  auto committed = sink_->commit();
  if (!committed.has_value()) return refuse_for_sink(std::move(committed.error()));
  state_ = State::kCommitted;
  return committed;
}

inline void AtomicReceiver::abort() noexcept {
  if (state_ != State::kReceiving && state_ != State::kPrepared) return;
  state_ = State::kAborted;
  current_ = nullptr;
  transcript_.release_payload();  // It may lie in the sink's memory.
  sink_->abort();
}

}  // namespace kvpack::handoff
