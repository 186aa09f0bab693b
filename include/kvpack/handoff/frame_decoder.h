/// Reads KVPKV2 frames out of a stream that comes in any pieces. docs/protocol/handoff.md §Frames.
///
/// Pull form: `want` names the place where the next bytes belong, the caller fills some of it and tells
/// `advance`. Push form: `push` copies. No byte beyond the current frame is ever asked for.
#pragma once

#include "kvpack/handoff/frame.h"

namespace kvpack::handoff {

/// What the latest bytes have completed.
enum class Arrival : std::uint8_t {
  kPartial,     ///< Nothing yet.
  kFrame,       ///< A header; of a segment the payload is still to come, and needs a place.
  kPayload,     ///< Payload bytes: arrived().
  kPayloadEnd,  ///< The last payload bytes of the segment: arrived().
};

class FrameDecoder {
 public:
  explicit FrameDecoder(const HeaderRules& rules = {}, const FrameLimits& limits = {})
      : rules_(rules), limits_(limits) {}

  /// Where the next bytes of the stream belong; valid until the next call. Empty when a payload waits for its
  /// place, and after a failure.
  MutableByteSpan want();

  /// The first `n` bytes of want() have been filled. @pre n <= want().size()
  /// @error kInvalidFrame kJson  The stream cannot be read on: every later call gives the same error.
  Result<Arrival> advance(std::size_t n);

  /// Copies from the front of `bytes` until something has arrived or none are left, and shortens `bytes`.
  /// Payload comes in pieces of at most kPushBlockBytes, so that it is still in the cache when it is hashed.
  Result<Arrival> push(ByteSpan& bytes);

  /// The frame of the latest kFrame.
  Frame take_frame() { return std::move(frame_); }

  /// Where the payload of the segment goes. The spans must stay valid until its end.
  /// @pre a segment frame has just arrived and the sizes sum to its payload_bytes
  void set_place(std::span<const MutableByteSpan> place);

  /// The payload bytes of the latest kPayload or kPayloadEnd, where they lie.
  ByteSpan arrived() const noexcept { return arrived_; }

  /// Whether no byte of the next frame has arrived.
  bool between_frames() const noexcept { return part_ == Part::kPreamble && filled_ == 0; }

  /// What it means that the stream ends here.
  /// @return kInvalidFrame `truncated segment payload` inside a payload, else kIo
  Error end_of_stream() const;

  static constexpr std::size_t kPushBlockBytes = 65'536;

 private:
  enum class Part : std::uint8_t { kPreamble, kHeader, kUnplaced, kPayload };

  Result<Arrival> end_preamble();
  Result<Arrival> end_header();
  Arrival take_payload(std::size_t n);
  Error latch(Error error) {
    failure_ = error;
    return error;
  }

  HeaderRules rules_;
  FrameLimits limits_;
  Part part_ = Part::kPreamble;
  std::array<std::uint8_t, kPreambleBytes> preamble_{};
  Preamble lengths_;
  Bytes header_;
  std::size_t filled_ = 0;  ///< Bytes of the current part; of a payload, those of the current span.
  std::vector<MutableByteSpan> place_;
  std::size_t place_index_ = 0;
  ByteSpan arrived_;
  Frame frame_;
  std::optional<Error> failure_;
};

// ---------------------------------------------------------------------------------------------------------

inline MutableByteSpan FrameDecoder::want() {
  if (failure_.has_value()) return {};
  switch (part_) {
    case Part::kPreamble: return MutableByteSpan(preamble_).subspan(filled_);
    case Part::kHeader: {
      // The buffer grows with what has come, so that a length alone costs nothing.
      constexpr std::size_t kFirstBytes = 65'536;
      const std::size_t reach = std::max(kFirstBytes, 2 * filled_);
      header_.resize(std::min<std::size_t>(lengths_.header_bytes, reach));
      return MutableByteSpan(header_).subspan(filled_);
    }
    case Part::kUnplaced: return {};
    case Part::kPayload: return place_[place_index_].subspan(filled_);
  }
  return {};
}

inline Result<Arrival> FrameDecoder::advance(std::size_t n) {
  if (failure_.has_value()) return *failure_;
  if (n == 0) return Arrival::kPartial;
  if (part_ == Part::kPayload) return take_payload(n);
  assert(part_ != Part::kUnplaced && n <= want().size());
  filled_ += n;
  if (part_ == Part::kPreamble) {
    if (filled_ < kPreambleBytes) return Arrival::kPartial;
    return end_preamble();
  }
  if (filled_ < lengths_.header_bytes) return Arrival::kPartial;
  return end_header();
}

inline Result<Arrival> FrameDecoder::end_preamble() {
  auto lengths = decode_preamble(preamble_, limits_);
  if (!lengths.has_value()) return latch(std::move(lengths.error()));
  lengths_ = *lengths;
  part_ = Part::kHeader;
  filled_ = 0;
  return Arrival::kPartial;
}

inline Result<Arrival> FrameDecoder::end_header() {
  auto frame = decode_header(header_, lengths_.payload_bytes, rules_);
  header_ = Bytes();
  filled_ = 0;
  if (!frame.has_value()) return latch(std::move(frame.error()));
  frame_ = *std::move(frame);
  part_ = std::holds_alternative<SegmentFrame>(frame_) ? Part::kUnplaced : Part::kPreamble;
  return Arrival::kFrame;
}

inline void FrameDecoder::set_place(std::span<const MutableByteSpan> place) {
  assert(part_ == Part::kUnplaced);
  place_.clear();
  for (const MutableByteSpan span : place)
    if (!span.empty()) place_.push_back(span);
  assert(!place_.empty());
  place_index_ = 0;
  filled_ = 0;
  part_ = Part::kPayload;
}

inline Arrival FrameDecoder::take_payload(std::size_t n) {
  const MutableByteSpan span = place_[place_index_];
  assert(n <= span.size() - filled_);
  arrived_ = span.subspan(filled_, n);
  filled_ += n;
  if (filled_ < span.size()) return Arrival::kPayload;
  filled_ = 0;
  if (++place_index_ < place_.size()) return Arrival::kPayload;
  part_ = Part::kPreamble;
  return Arrival::kPayloadEnd;
}

inline Result<Arrival> FrameDecoder::push(ByteSpan& bytes) {
  while (!bytes.empty()) {
    const MutableByteSpan place = want();
    if (place.empty()) break;
    const std::size_t n = std::min({bytes.size(), place.size(), kPushBlockBytes});
    copy_bytes(bytes.first(n), place);
    bytes = bytes.subspan(n);
    KVPACK_TRY_ASSIGN(const Arrival arrival, advance(n));
    if (arrival != Arrival::kPartial) return arrival;
  }
  if (failure_.has_value()) return *failure_;
  return Arrival::kPartial;
}

inline Error FrameDecoder::end_of_stream() const {
  if (failure_.has_value()) return *failure_;
  if (part_ == Part::kUnplaced || part_ == Part::kPayload)
    return detail::invalid_frame("truncated segment payload");
  if (part_ == Part::kPreamble && filled_ == 0) return fail(ErrorCode::kIo, "stream ended between frames");
  return fail(ErrorCode::kIo, "stream ended inside a frame");
}

}  // namespace kvpack::handoff
