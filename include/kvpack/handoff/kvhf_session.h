/// KVHF receiver: one session from BEGIN to the answer, as a state machine over bytes.
/// Order of events: docs/protocol/kvhf.md §Session. No socket, clock, thread or waiting: bytes, times and
/// permits come in as arguments, layers and the answer go out.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvpack/handoff/kvhf_coordinator.h"
#include "kvpack/handoff/kvhf_frame.h"

namespace kvpack::kvhf {

/// The consumer's engine. Nothing live may change before seal_verified.
class SessionSink {
 public:
  virtual ~SessionSink() = default;
  virtual Status begin(const ValidatedBegin& begin) = 0;
  /// Once per layer, in walk order, after the layer is staged. Dropping `layer` frees its permit.
  virtual Status layer_ready(LayerReady layer) = 0;
  /// The seal has verified, its tag too where a key is armed. The engine may promote the state here, before
  /// the bundle is published; a pre-RoPE engine compares the canary first.
  virtual Status seal_verified(const SealWitness& witness) = 0;
  /// Discards the shadow. Called exactly once after any failure, and never when `begin` itself failed.
  virtual void abort() noexcept = 0;
};

struct SessionOptions {
  FrameLimits frames;
  Limits limits;                           ///< `now_unix_ms` is overwritten when BEGIN arrives.
  std::optional<ArmedExpectations> armed;  ///< Without it every valid begin is taken.
  const handoff::MacKey* key = nullptr;    ///< With it every artifact must carry its tag. Not owned.
  const Sha256Kernels* sha256 =
      &kOpensslSha256;  ///< Hash the planes; outlive the session. Change no verdict.
};

/// What a session did, for logs and metrics.
struct Receipt {
  std::string artifact_sha256;
  std::string transfer_id;
  std::uint32_t cached_token_count = 0;
  std::uint32_t layer_frames = 0;
  std::uint64_t payload_bytes = 0;
};

enum class SessionState : std::uint8_t { kAwaitBegin, kReceiving, kSealVerified, kPublished, kAborted };

/// The session as frames, in order. Session and SpraySession feed it from bytes. After a failure everything
/// is aborted, and an ABORT is the answer if the begin had been accepted.
class SessionCore {
 public:
  /// @param sink, store  must outlive the session
  SessionCore(SessionOptions options, SessionSink& sink, PlaneStore& store)
      : options_(std::move(options)), sink_(&sink), store_(&store) {}
  SessionCore(const SessionCore&) = delete;
  SessionCore& operator=(const SessionCore&) = delete;
  ~SessionCore() { stop(); }

  SessionState state() const noexcept { return state_; }
  const SessionOptions& options() const noexcept { return options_; }
  /// The begin once it has been accepted, or null.
  const ValidatedBegin* begin() const noexcept { return coordinator_ ? &coordinator_->begin() : nullptr; }
  bool has_all_layers() const noexcept {
    return coordinator_ && coordinator_->next_sequence() == coordinator_->begin().walk().size();
  }
  std::uint32_t next_sequence() const noexcept { return coordinator_ ? coordinator_->next_sequence() : 0; }
  /// The verified seal, or null.
  const SealWitness* witness() const noexcept { return coordinator_ ? coordinator_->witness() : nullptr; }

  /// @error kValidation; of sink and store
  Status on_begin(Begin begin, std::uint64_t now_unix_ms);
  /// What can be refused before a payload is read. @error kValidation
  Status check_layer(const LayerHeader& header);
  Status on_layer(LayerHeader header, Bytes payload, std::optional<LayerPermit> permit);
  /// Everything from the seal to the answer.
  Status on_seal(Seal seal);

  /// Ends the session with `error`: aborts sink and store and makes the answer. @return the error that ended
  /// it, which is an earlier one if there was one
  Error fail_with(Error error);
  const std::optional<Error>& failure() const noexcept { return failure_; }

  /// The frame to send back, ACK or ABORT, once; empty when there is none.
  Bytes take_answer() { return std::exchange(answer_, Bytes{}); }
  /// @pre state() == kPublished
  Receipt receipt() const;

 private:
  Status accept_begin(Begin begin, std::uint64_t now_unix_ms);
  Status accept_seal(Seal seal);
  Status ended(Status status);
  void stop() noexcept;

  SessionOptions options_;
  SessionSink* sink_;
  PlaneStore* store_;
  SessionState state_ = SessionState::kAwaitBegin;
  bool sink_open_ = false;
  std::optional<std::string> answerable_transfer_;  ///< Set once failures are answered with ABORT.
  std::optional<Coordinator> coordinator_;
  std::optional<Error> failure_;
  Bytes answer_;
};

/// One session over one connection.
///
///     push(bytes, now) as they come; while wants_permit(): grant(permit); send take_answer() at the end
class Session {
 public:
  Session(SessionOptions options, SessionSink& sink, PlaneStore& store)
      : reader_(options.frames), core_(std::move(options), sink, store) {}

  /// Takes bytes as far as the session can use them: less than all when a permit is wanted or the session has
  /// been published. Bytes behind the SEAL are never looked at.
  /// @param now_unix_ms  the time when `bytes` arrived; BEGIN is judged by it
  /// @return how many bytes were taken
  /// @error kValidation kCanonical; of sink and store. The session is then over: send take_answer().
  Result<std::size_t> push(ByteSpan bytes, std::uint64_t now_unix_ms);

  /// A key plane's payload waits for a permit.
  bool wants_permit() const noexcept { return wants_permit_; }
  /// @error kValidation  none is wanted
  Status grant(LayerPermit permit);

  /// The producer has closed the stream. A published session does not mind.
  /// @error kIo
  Status end_of_stream();
  /// Gives the session up, for example because its deadline has passed. @return the error that ended it
  Error cancel(Error reason) { return core_.fail_with(std::move(reason)); }

  SessionState state() const noexcept { return core_.state(); }
  const SealWitness* witness() const noexcept { return core_.witness(); }
  Bytes take_answer() { return core_.take_answer(); }
  Receipt receipt() const { return core_.receipt(); }

 private:
  Status judge_header();
  Status consume(Frame frame, std::uint64_t now_unix_ms);

  FrameReader reader_;
  SessionCore core_;
  bool wants_permit_ = false;
  std::optional<LayerPermit> permit_;
};

// ---------------------------------------------------------------------------------------------------------

namespace detail {

inline Error expected_begin() {
  return fail(ErrorCode::kValidation, "first live handoff frame must be BEGIN");
}
inline Error expected_layer(std::uint32_t sequence) {
  return fail(ErrorCode::kValidation, "expected ordered layer frame " + std::to_string(sequence));
}
inline Error producer_aborted(const Abort& abort) {
  return fail(ErrorCode::kValidation, "producer aborted handoff with code " + abort.code);
}
inline Error expected_seal() {
  return fail(ErrorCode::kValidation, "expected terminal SEAL after all layer frames");
}

}  // namespace detail

inline Status SessionCore::on_begin(Begin begin, std::uint64_t now_unix_ms) {
  return ended(accept_begin(std::move(begin), now_unix_ms));
}

inline Status SessionCore::accept_begin(Begin begin, std::uint64_t now_unix_ms) {
  assert(state_ == SessionState::kAwaitBegin);
  options_.limits.now_unix_ms = now_unix_ms;
  KVPACK_TRY_ASSIGN(ValidatedBegin validated, validate(std::move(begin), options_.limits));
  if (options_.armed) KVPACK_TRY(check_armed(validated.begin(), *options_.armed));
  answerable_transfer_ = validated.begin().transfer_id;
  KVPACK_TRY(sink_->begin(validated));
  sink_open_ = true;
  KVPACK_TRY_ASSIGN(Coordinator coordinator,
                    Coordinator::create(std::move(validated), *store_, *options_.sha256));
  coordinator_.emplace(std::move(coordinator));
  state_ = SessionState::kReceiving;
  return success();
}

inline Status SessionCore::check_layer(const LayerHeader& header) {
  assert(state_ == SessionState::kReceiving);
  if (header.sequence != next_sequence()) return ended(detail::expected_layer(next_sequence()));
  return ended(coordinator_->check_next_header(header));
}

inline Status SessionCore::on_layer(LayerHeader header, Bytes payload, std::optional<LayerPermit> permit) {
  assert(state_ == SessionState::kReceiving);
  auto ready = coordinator_->ingest(std::move(header), std::move(payload), std::move(permit));
  if (!ready.has_value()) return fail_with(std::move(ready.error()));
  if (!ready->has_value()) return success();
  return ended(sink_->layer_ready(**std::move(ready)));
}

inline Status SessionCore::on_seal(Seal seal) {
  return ended(accept_seal(std::move(seal)));
}

inline Status SessionCore::accept_seal(Seal seal) {
  assert(state_ == SessionState::kReceiving);
  KVPACK_TRY(coordinator_->prepare_seal(std::move(seal)));
  const SealWitness& sealed = *coordinator_->witness();
  if (options_.key != nullptr) {
    if (!begin()->begin().hmac_key_id)
      return fail(ErrorCode::kValidation,
                  "receiver armed for artifact HMAC but begin declares no hmac_key_id");
    KVPACK_TRY(sealed.authenticate(*options_.key));
  }
  state_ = SessionState::kSealVerified;
  KVPACK_TRY(sink_->seal_verified(sealed));
  KVPACK_TRY(coordinator_->publish());
  KVPACK_TRY(store_->verify_published());
  Ack ack;
  ack.artifact_sha256 = sealed.artifact_sha256();
  ack.transfer_id = sealed.transfer_id();
  KVPACK_TRY_ASSIGN(answer_, encode_frame(ack));
  state_ = SessionState::kPublished;
  sink_open_ = false;
  return success();
}

inline Status SessionCore::ended(Status status) {
  if (status.has_value()) return status;
  return fail_with(std::move(status.error()));
}

inline Error SessionCore::fail_with(Error error) {
  if (state_ == SessionState::kPublished) return error;
  if (failure_) return *failure_;
  stop();
  failure_ = std::move(error);
  if (answerable_transfer_) {
    Abort abort;
    abort.code = std::string(kReceiverRejected);
    abort.transfer_id = *answerable_transfer_;
    if (auto frame = encode_frame(abort); frame.has_value()) answer_ = *std::move(frame);
  }
  return *failure_;
}

inline void SessionCore::stop() noexcept {
  if (state_ == SessionState::kPublished) return;
  state_ = SessionState::kAborted;
  if (std::exchange(sink_open_, false)) sink_->abort();
  if (coordinator_) coordinator_->abort();
}

inline Receipt SessionCore::receipt() const {
  assert(state_ == SessionState::kPublished);
  const SealCore& core = witness()->seal().core;
  return {witness()->artifact_sha256(), core.transfer_id, begin()->begin().cached_token_count,
          core.frame_count, core.payload_bytes};
}

inline Result<std::size_t> Session::push(ByteSpan bytes, std::uint64_t now_unix_ms) {
  if (core_.failure()) return *core_.failure();
  std::size_t taken = 0;
  while (taken < bytes.size() && !wants_permit_ && state() != SessionState::kPublished) {
    auto count = reader_.push(bytes.subspan(taken));
    if (!count.has_value()) return core_.fail_with(std::move(count.error()));
    taken += *count;
    if (reader_.header() == nullptr) continue;
    if (!reader_.is_complete() && reader_.want().empty()) KVPACK_TRY(judge_header());
    if (!reader_.is_complete()) continue;
    KVPACK_TRY_ASSIGN(Frame frame, reader_.take());
    KVPACK_TRY(consume(std::move(frame), now_unix_ms));
  }
  return taken;
}

inline Status Session::judge_header() {
  const auto* layer = std::get_if<LayerHeader>(&reader_.header()->manifest);
  assert(layer != nullptr);  // Only a LAYER announces a payload.
  if (state() == SessionState::kAwaitBegin) return core_.fail_with(detail::expected_begin());
  if (core_.has_all_layers()) return core_.fail_with(detail::expected_seal());
  KVPACK_TRY(core_.check_layer(*layer));
  if (layer->role == Role::kValue) return reader_.accept_payload();
  wants_permit_ = true;
  return success();
}

inline Status Session::grant(LayerPermit permit) {
  if (core_.failure()) return *core_.failure();
  if (!wants_permit_) return fail(ErrorCode::kValidation, "no key plane waits for a layer permit");
  wants_permit_ = false;
  permit_ = std::move(permit);
  return reader_.accept_payload();
}

inline Status Session::consume(Frame frame, std::uint64_t now_unix_ms) {
  if (state() == SessionState::kAwaitBegin) {
    auto* begin = std::get_if<Begin>(&frame.manifest);
    if (begin == nullptr) return core_.fail_with(detail::expected_begin());
    return core_.on_begin(std::move(*begin), now_unix_ms);
  }
  if (core_.has_all_layers()) {
    auto* seal = std::get_if<Seal>(&frame.manifest);
    if (seal == nullptr) return core_.fail_with(detail::expected_seal());
    return core_.on_seal(std::move(*seal));
  }
  if (auto* layer = std::get_if<LayerHeader>(&frame.manifest)) {
    // A frame without payload has not been judged yet.
    KVPACK_TRY(core_.check_layer(*layer));
    return core_.on_layer(std::move(*layer), std::move(frame.payload), std::exchange(permit_, std::nullopt));
  }
  if (const auto* abort = std::get_if<Abort>(&frame.manifest))
    return core_.fail_with(detail::producer_aborted(*abort));
  return core_.fail_with(detail::expected_layer(core_.next_sequence()));
}

inline Status Session::end_of_stream() {
  if (state() == SessionState::kPublished) return success();
  return core_.fail_with(unexpected_end());
}

}  // namespace kvpack::kvhf
