/// KVHF spray: one session over several connections, its LAYER frames dealt out among them.
/// docs/protocol/kvhf.md §Spray.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "kvpack/handoff/kvhf_session.h"

namespace kvpack::kvhf {

/// Puts what arrives under sequence numbers back in order. Each number of 0 to `count` - 1 comes once; a gap
/// holds back what is behind it.
template <class T>
class SprayOrder {
 public:
  explicit SprayOrder(std::uint32_t count) : count_(count) {}

  /// Claims a sequence number before its item is complete.
  /// @error kValidation  past the count; claimed before
  Status announce(std::uint32_t sequence) {
    if (sequence >= count_)
      return fail(ErrorCode::kValidation,
                  "sprayed layer sequence " + std::to_string(sequence) + " exceeds the declared frame count");
    if (sequence < next_ || !announced_.insert(sequence).second)
      return fail(ErrorCode::kValidation, "duplicate sprayed layer sequence " + std::to_string(sequence));
    return success();
  }

  /// Brings the item of an announced sequence number.
  void arrive(std::uint32_t sequence, T item) { waiting_.emplace(sequence, std::move(item)); }

  /// The next item in order, once it has arrived.
  std::optional<T> release() {
    const auto next = waiting_.find(next_);
    if (next == waiting_.end()) return std::nullopt;
    std::optional<T> item(std::move(next->second));
    waiting_.erase(next);
    announced_.erase(next_);
    ++next_;
    return item;
  }

 private:
  std::uint32_t count_;
  std::set<std::uint32_t> announced_;  ///< Not released yet.
  std::map<std::uint32_t, T> waiting_;
  std::uint32_t next_ = 0;
};

/// One session over several streams: BEGIN, SEAL and ABORT on stream 0, each LAYER on any one of them. The
/// answer goes out on stream 0. A header is checked when it arrives, so that what waits for its turn is
/// bounded by what the begin declares.
///
/// Grant permits to the lowest sequence first, and have more of them than streams: a pool whose permits are
/// all with planes that wait for an earlier one stands still.
class SpraySession {
 public:
  /// @param streams  at least 1
  SpraySession(std::size_t streams, SessionOptions options, SessionSink& sink, PlaneStore& store);

  /// Takes bytes of one stream as far as the session can use them. Takes none while a permit is wanted on
  /// that stream, and none on another stream than 0 before the begin has been accepted.
  /// @return how many bytes were taken
  /// @error kValidation kCanonical; of sink and store. The session is then over: send take_answer().
  Result<std::size_t> push(std::size_t stream, ByteSpan bytes, std::uint64_t now_unix_ms);

  /// The sequence of the key plane whose payload waits for a permit on this stream, or nothing.
  std::optional<std::uint32_t> wants_permit(std::size_t stream) const;
  /// @error kValidation  none is wanted on this stream
  Status grant(std::size_t stream, LayerPermit permit);

  /// The producer has closed a stream. @error kIo kValidation  the session cannot be completed any more
  Status end_of_stream(std::size_t stream);
  /// Gives the session up. @return the error that ended it
  Error cancel(Error reason) { return core_.fail_with(std::move(reason)); }

  SessionState state() const noexcept { return core_.state(); }
  const SealWitness* witness() const noexcept { return core_.witness(); }
  Bytes take_answer() { return core_.take_answer(); }
  Receipt receipt() const { return core_.receipt(); }

 private:
  struct Stream {
    FrameReader reader;
    bool announced = false;  ///< The pending LAYER has claimed its sequence.
    bool wants_permit = false;
    bool stopped = false;
    std::optional<LayerPermit> permit;
  };
  struct Plane {
    LayerHeader header;
    Bytes payload;
    std::optional<LayerPermit> permit;
  };

  bool takes_bytes(std::size_t stream) const noexcept;
  Status judge_layer(Stream& stream);
  Status consume(std::size_t stream, Frame frame, std::uint64_t now_unix_ms);
  Status consume_on_first(Frame frame, std::uint64_t now_unix_ms);
  Status deliver();

  SessionCore core_;
  std::vector<Stream> streams_;
  std::optional<SprayOrder<Plane>> order_;
  std::optional<Seal> seal_;
};

// ---------------------------------------------------------------------------------------------------------

inline SpraySession::SpraySession(std::size_t streams, SessionOptions options, SessionSink& sink,
                                  PlaneStore& store)
    : core_(std::move(options), sink, store) {
  assert(streams > 0);
  for (std::size_t i = 0; i < streams; ++i)
    streams_.push_back({FrameReader(core_.options().frames), false, false, false, std::nullopt});
}

inline bool SpraySession::takes_bytes(std::size_t stream) const noexcept {
  if (state() == SessionState::kPublished || streams_[stream].wants_permit) return false;
  // Nothing follows the seal on its stream; the others may not run ahead of the begin.
  return stream == 0 ? !seal_ : core_.begin() != nullptr;
}

inline Result<std::size_t> SpraySession::push(std::size_t stream, ByteSpan bytes, std::uint64_t now_unix_ms) {
  assert(stream < streams_.size());
  if (core_.failure()) return *core_.failure();
  Stream& from = streams_[stream];
  std::size_t taken = 0;
  while (taken < bytes.size() && takes_bytes(stream)) {
    auto count = from.reader.push(bytes.subspan(taken));
    if (!count.has_value()) return core_.fail_with(std::move(count.error()));
    taken += *count;
    if (from.reader.header() == nullptr) continue;
    if (!from.announced && std::holds_alternative<LayerHeader>(from.reader.header()->manifest))
      KVPACK_TRY(judge_layer(from));
    if (!from.reader.is_complete()) continue;
    from.announced = false;
    KVPACK_TRY_ASSIGN(Frame frame, from.reader.take());
    KVPACK_TRY(consume(stream, std::move(frame), now_unix_ms));
  }
  return taken;
}

inline Status SpraySession::judge_layer(Stream& stream) {
  if (core_.begin() == nullptr)
    return core_.fail_with(fail(ErrorCode::kValidation, "first sprayed frame must be BEGIN on stream 0"));
  const auto& header = std::get<LayerHeader>(stream.reader.header()->manifest);
  if (Status announced = order_->announce(header.sequence); !announced.has_value())
    return core_.fail_with(std::move(announced.error()));
  if (Status checked = check_layer_header(*core_.begin(), header.sequence, header); !checked.has_value())
    return core_.fail_with(std::move(checked.error()));
  stream.announced = true;
  if (header.role == Role::kValue) return stream.reader.accept_payload();
  stream.wants_permit = true;
  return success();
}

inline std::optional<std::uint32_t> SpraySession::wants_permit(std::size_t stream) const {
  assert(stream < streams_.size());
  if (core_.failure() || !streams_[stream].wants_permit) return std::nullopt;
  return std::get<LayerHeader>(streams_[stream].reader.header()->manifest).sequence;
}

inline Status SpraySession::grant(std::size_t stream, LayerPermit permit) {
  assert(stream < streams_.size());
  if (core_.failure()) return *core_.failure();
  Stream& to = streams_[stream];
  if (!to.wants_permit) return fail(ErrorCode::kValidation, "no key plane waits for a layer permit");
  to.wants_permit = false;
  to.permit = std::move(permit);
  return to.reader.accept_payload();
}

inline Status SpraySession::consume(std::size_t stream, Frame frame, std::uint64_t now_unix_ms) {
  if (auto* layer = std::get_if<LayerHeader>(&frame.manifest)) {
    const std::uint32_t sequence = layer->sequence;
    order_->arrive(sequence, Plane{std::move(*layer), std::move(frame.payload),
                                   std::exchange(streams_[stream].permit, std::nullopt)});
    return deliver();
  }
  if (stream != 0)
    return core_.fail_with(fail(ErrorCode::kValidation, "non-layer frame on an auxiliary spray stream"));
  return consume_on_first(std::move(frame), now_unix_ms);
}

inline Status SpraySession::consume_on_first(Frame frame, std::uint64_t now_unix_ms) {
  if (auto* begin = std::get_if<Begin>(&frame.manifest)) {
    if (core_.begin() != nullptr)
      return core_.fail_with(fail(ErrorCode::kValidation, "duplicate BEGIN on a sprayed session"));
    KVPACK_TRY(core_.on_begin(std::move(*begin), now_unix_ms));
    order_.emplace(core_.begin()->begin().expected_layer_frames);
    return success();
  }
  if (core_.begin() == nullptr)
    return core_.fail_with(fail(ErrorCode::kValidation, "first sprayed frame must be BEGIN on stream 0"));
  if (const auto* abort = std::get_if<Abort>(&frame.manifest))
    return core_.fail_with(detail::producer_aborted(*abort));
  auto* seal = std::get_if<Seal>(&frame.manifest);
  if (seal == nullptr)
    return core_.fail_with(fail(ErrorCode::kValidation, "unexpected terminal frame on spray stream 0"));
  seal_ = std::move(*seal);
  return deliver();
}

inline Status SpraySession::deliver() {
  while (auto plane = order_->release())
    KVPACK_TRY(core_.on_layer(std::move(plane->header), std::move(plane->payload), std::move(plane->permit)));
  if (!seal_ || !core_.has_all_layers()) return success();
  return core_.on_seal(std::move(*seal_));
}

inline Status SpraySession::end_of_stream(std::size_t stream) {
  assert(stream < streams_.size());
  if (state() == SessionState::kPublished) return success();
  if (!streams_[stream].reader.is_between_frames()) return core_.fail_with(unexpected_end());
  streams_[stream].stopped = true;
  if (stream == 0 && core_.begin() == nullptr)
    return core_.fail_with(fail(ErrorCode::kValidation, "spray readers stopped before BEGIN"));
  const bool all_stopped = std::ranges::all_of(streams_, [](const Stream& s) { return s.stopped; });
  if (all_stopped || (stream == 0 && !seal_))
    return core_.fail_with(
        fail(ErrorCode::kValidation, "spray readers stopped before the session completed"));
  return success();
}

}  // namespace kvpack::kvhf
