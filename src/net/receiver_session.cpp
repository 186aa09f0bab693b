#include "net/receiver_session.h"

#include <algorithm>

namespace kvpack::net {

namespace {

constexpr std::uint64_t kMinBeginWaitMs = 250;
constexpr std::uint64_t kLingerMs = 2'000;
/// So that one busy connection lets the others have their say.
constexpr std::size_t kReadBudgetBytes = 4U << 20;
constexpr std::size_t kLeastCharge = 4096;
constexpr std::size_t kMaxReceiptTextBytes = 512;
constexpr std::size_t kDropBufferBytes = 16'384;

Error timed_out(std::string_view what) {
  return fail(ErrorCode::kTimeout, "timed out waiting for " + std::string(what));
}

std::string peer_text(const asio::ip::tcp::socket& socket) {
  asio::error_code error;
  const auto endpoint = socket.remote_endpoint(error);
  if (error) return "unknown";
  return SocketAddress{endpoint.address().to_string(), endpoint.port()}.text();
}

}  // namespace

ReceiverSession::ReceiverSession(SessionOwner& owner, asio::ip::tcp::socket socket,
                                 handoff::ReceivePolicy policy)
    : owner_(&owner),
      socket_(std::move(socket)),
      timer_(socket_.get_executor()),
      ledger_(*owner.ledger, *owner.clock, receipt_.phases),
      loop_(std::move(policy)),
      accepted_ns_(owner.clock->monotonic_ns()) {
  receipt_.peer = peer_text(socket_);
}

void ReceiverSession::start() {
  TlsPeer peer{.leaf_sha256 = owner_->config->peer_leaf_sha256, .alpn = {kHandoffAlpn}, .server_name = {}};
  if (owner_->settings->refusals) peer.alpn.insert(peer.alpn.begin(), kRefusalAlpn);
  const ReceiverConfig& config = *owner_->config;
  auto tls = TlsConnection::server(
      *owner_->fs, {config.certificate_chain, config.private_key, config.peer_ca}, std::move(peer));
  if (!tls.has_value()) return fail_with(std::move(tls.error()), AttemptEnd::kHandshake);
  tls_.emplace(*std::move(tls));
  if (auto attached = tls_->attach(socket_.native_handle()); !attached.has_value())
    return fail_with(std::move(attached.error()), AttemptEnd::kHandshake);
  arm(in_ms(owner_->settings->handshake_timeout_ms));
  on_ready();
}

// ---- waiting

/// A later wait takes the place of an earlier one, which then comes to nothing.
std::function<void(const asio::error_code&)> ReceiverSession::next_turn() {
  return [self = shared_from_this(), turn = ++turn_](const asio::error_code& error) {
    // Any other error shows in the next read or write, with its cause.
    if (error != asio::error::operation_aborted && turn == self->turn_ && self->phase_ != Phase::kOver)
      self->on_ready();
  };
}

void ReceiverSession::wait_for(TlsIo io) {
  socket_.async_wait(io == TlsIo::kWantWrite ? asio::socket_base::wait_write : asio::socket_base::wait_read,
                     next_turn());
}

/// The budget is used up and more may be there already, inside TLS too: let the others run, then go on.
void ReceiverSession::wait_for_room() {
  asio::post(socket_.get_executor(), [go_on = next_turn()] { go_on({}); });
}

/// The deadline moves with every frame and the timer does not: when it goes off too early it is set again.
void ReceiverSession::arm(std::uint64_t deadline_ns) {
  deadline_ns_ = deadline_ns;
  if (timer_ns_ == 0 || deadline_ns < timer_ns_) watch_deadline();
}

void ReceiverSession::watch_deadline() {
  timer_ns_ = deadline_ns_;
  const std::uint64_t now = now_ns();
  timer_.expires_after(std::chrono::nanoseconds(deadline_ns_ > now ? deadline_ns_ - now : 0));
  timer_.async_wait([self = shared_from_this()](const asio::error_code& error) {
    if (error == asio::error::operation_aborted || self->phase_ == Phase::kOver) return;
    if (self->now_ns() < self->deadline_ns_) return self->watch_deadline();
    self->timer_ns_ = 0;
    self->on_deadline();
  });
}

void ReceiverSession::on_deadline() {
  switch (phase_) {
    case Phase::kHandshake: return fail_with(timed_out("the TLS handshake"), AttemptEnd::kHandshake);
    case Phase::kBegin: return fail_with(timed_out("the begin frame"), AttemptEnd::kBegin);
    case Phase::kWaiting:
      return fail_with(fail(ErrorCode::kBusy, "receiver is busy with another transfer"), AttemptEnd::kBusy);
    case Phase::kTransfer:
      return fail_transfer(timed_out(now_ns() >= transfer_deadline_ns_ ? "the end of the transfer"
                                     : frame_started_ns_ != 0          ? "the rest of a frame"
                                                                       : "the next frame"));
    case Phase::kReply:
    case Phase::kLinger:
    case Phase::kOver: return end();
  }
}

// ---- one step after the other

void ReceiverSession::on_ready() {
  for (;;) {
    std::optional<TlsIo> io;
    switch (phase_) {
      case Phase::kHandshake: io = shake_hands(); break;
      case Phase::kBegin:
      case Phase::kTransfer: io = read_some(); break;
      case Phase::kReply: io = write_reply(); break;
      case Phase::kLinger: io = drop_input(); break;
      case Phase::kWaiting:
      case Phase::kOver: return;
    }
    if (!io.has_value()) continue;
    if (*io == TlsIo::kDone) return wait_for_room();
    return wait_for(*io);
  }
}

std::optional<TlsIo> ReceiverSession::shake_hands() {
  auto io = tls_->handshake();
  if (!io.has_value()) {
    fail_with(std::move(io.error()), AttemptEnd::kHandshake);
    return std::nullopt;
  }
  if (*io != TlsIo::kDone) return *io;
  receipt_.peer_leaf_sha256 = tls_->peer_leaf_sha256();
  phase_ = Phase::kBegin;
  begin_deadline_ns_ = in_ms(std::clamp(owner_->config->wait_for_producer_ms, kMinBeginWaitMs,
                                        std::max(kMinBeginWaitMs, owner_->config->timeout_ms)));
  arm(begin_deadline_ns_);
  return std::nullopt;
}

std::optional<TlsIo> ReceiverSession::read_some() {
  for (std::size_t budget = kReadBudgetBytes; budget != 0;) {
    const MutableByteSpan place = loop_.want();
    std::size_t n = 0;
    auto io = tls_->read(place.first(std::min(place.size(), budget)), n);
    if (!io.has_value()) {
      fail_transfer(std::move(io.error()));
      return std::nullopt;
    }
    if (*io == TlsIo::kClosed) {
      auto step = loop_.end_of_stream();
      fail_transfer(step.has_value() ? fail(ErrorCode::kIo, "I/O: unexpected end of file")
                                     : std::move(step.error()));
      return std::nullopt;
    }
    if (*io != TlsIo::kDone) return *io;
    // Tiny records cost as much as larger ones.
    budget -= std::min(budget, std::max(n, kLeastCharge));
    if (phase_ == Phase::kBegin && !note_begin_bytes(n)) {
      fail_with(fail(ErrorCode::kBusy, "receiver is busy with other begin frames"), AttemptEnd::kBusy);
      return std::nullopt;
    }
    const std::uint64_t arrived_ns = now_ns();
    auto step = loop_.advance(n);
    note_progress(arrived_ns);
    if (step.has_value()) note_work(*step, now_ns() - arrived_ns);
    if (!step.has_value()) {
      fail_transfer(std::move(step.error()));
      return std::nullopt;
    }
    if (*step != handoff::ReceiveStep::kMore) {
      take_step(*step);
      return std::nullopt;
    }
  }
  return TlsIo::kDone;
}

bool ReceiverSession::note_begin_bytes(std::size_t n) {
  if (!owner_->hold_begin_bytes(n)) return false;
  begin_bytes_ += n;
  return true;
}

void ReceiverSession::release_begin() {
  owner_->release_begin_bytes(std::exchange(begin_bytes_, 0));
}

/// A byte now and then extends nothing: the deadline of a frame counts from its first byte.
/// @param arrived_ns  when the bytes came, before anything was done with them
void ReceiverSession::note_progress(std::uint64_t arrived_ns) {
  if (phase_ != Phase::kTransfer) return;
  if (loop_.between_frames()) {
    if (frame_started_ns_ != 0)
      receipt_.phases.segment_read_ns += arrived_ns - frame_started_ns_ - frame_work_ns_;
    frame_started_ns_ = 0;
    frame_work_ns_ = 0;
    // A deep prefill sends its begin first and the next frame much later.
    arm(std::min(transfer_deadline_ns_,
                 std::max(now_ns() + owner_->config->timeout_ms * 1'000'000, begin_deadline_ns_)));
  } else if (frame_started_ns_ == 0) {
    frame_started_ns_ = arrived_ns;
    arm(std::min(transfer_deadline_ns_, arrived_ns + owner_->config->timeout_ms * 1'000'000));
  }
}

/// Where the time of one call of the loop belongs.
void ReceiverSession::note_work(handoff::ReceiveStep step, std::uint64_t ns) {
  if (phase_ != Phase::kTransfer) return;
  AttemptPhases& phases = receipt_.phases;
  if (step == handoff::ReceiveStep::kCommitted) {
    phases.seal_ns = ns - phases.reserve_ns - phases.commit_ns;
  } else {
    phases.segment_process_ns += ns;
    if (frame_started_ns_ != 0) frame_work_ns_ += ns;
  }
}

void ReceiverSession::take_step(handoff::ReceiveStep step) {
  if (step == handoff::ReceiveStep::kCommitted) return commit();
  const handoff::BeginManifest& begin = loop_.begin()->manifest;
  // Only after validation is it known to be a short text; before, it goes into no receipt.
  if (begin.transfer_id.size() <= handoff::kMaxTransferIdBytes) receipt_.transfer_id = begin.transfer_id;
  receipt_.generation = begin.generation;
  begin_wall_ms_ = owner_->clock->wall_ms();
  receipt_.phases.accept_ns = now_ns() - accepted_ns_;
  transfer_deadline_ns_ = in_ms(owner_->settings->max_transfer_ms);
  phase_ = Phase::kWaiting;
  arm(in_ms(owner_->config->timeout_ms));
  owner_->ask_for_turn(shared_from_this());
}

void ReceiverSession::start_transfer() {
  // Its wait may have ended while it was in the queue.
  if (phase_ != Phase::kWaiting) return owner_->give_up_turn(*this);
  release_begin();
  phase_ = Phase::kTransfer;
  has_turn_ = true;
  admitted_ns_ = now_ns();
  auto admission = owner_->host->admit(*loop_.begin());
  if (!admission.has_value()) return fail_transfer(std::move(admission.error()));
  receipt_.sink = admission->sink;
  sink_.emplace(*admission->sink, *owner_->clock, receipt_.phases);
  auto accepted = loop_.accept_begin(begin_wall_ms_, *sink_, &ledger_,
                                     admission->expected == nullptr ? owner_->enrolled : admission->expected);
  if (!accepted.has_value()) return fail_transfer(std::move(accepted.error()));
  note_progress(now_ns());
  wait_for_room();
}

// ---- ends

void ReceiverSession::commit() {
  const handoff::CommittedGeneration& committed = loop_.committed();
  receipt_.installed_segments = committed.installed_segments;
  receipt_.installed_bytes = committed.installed_bytes;
  receipt_.end = AttemptEnd::kCommitted;
  start_reply(loop_.ack_frame());
}

AttemptEnd ReceiverSession::judge_failure(const Error& error) const noexcept {
  if (loop_.failed_in_engine()) return AttemptEnd::kInstall;
  if (ledger_.has_refused()) return AttemptEnd::kLedger;
  switch (error.code) {
    case ErrorCode::kIo:
    case ErrorCode::kInvalidFrame:
    case ErrorCode::kJson:
    case ErrorCode::kTls:
    case ErrorCode::kTimeout:
    case ErrorCode::kProducerAbort: return AttemptEnd::kTransfer;
    default: return AttemptEnd::kVerify;
  }
}

void ReceiverSession::fail_transfer(Error error) {
  if (phase_ == Phase::kBegin) return fail_with(std::move(error), AttemptEnd::kBegin);
  const AttemptEnd end = judge_failure(error);
  fail_with(std::move(error), end);
}

void ReceiverSession::fail_with(Error error, AttemptEnd attempt_end) {
  // A peer that could not be judged, or has gone, is told nothing.
  const bool may_refuse = tls_.has_value() && phase_ != Phase::kHandshake && tls_->alpn() == kRefusalAlpn &&
                          !loop_.reservation_asked() && error.code != ErrorCode::kTls &&
                          !(error.code == ErrorCode::kIo && !loop_.failed_in_engine());
  loop_.abort(error);
  receipt_.end = attempt_end;
  receipt_.error = error;
  // The producer may have chosen it.
  std::string& text = receipt_.error->message;
  text.resize(utf8_prefix(text, kMaxReceiptTextBytes).size());
  if (!may_refuse) return end();
  auto frame = handoff::encode_refusal_frame(handoff::make_refusal(error, loop_.failed_in_engine()));
  if (!frame.has_value()) return end();
  receipt_.refusal_sent = true;
  start_reply(*std::move(frame));
}

void ReceiverSession::start_reply(Bytes frame) {
  phase_ = Phase::kReply;
  reply_ = std::move(frame);
  reply_started_ns_ = now_ns();
  deadline_ns_ = in_ms(std::min(owner_->config->timeout_ms, std::uint64_t{10'000}));
  watch_deadline();
  // The caller may be deep inside a step of its own.
  wait_for_room();
}

std::optional<TlsIo> ReceiverSession::write_reply() {
  while (replied_ < reply_.size()) {
    std::size_t n = 0;
    auto io = tls_->write(ByteSpan(reply_).subspan(replied_), n);
    if (!io.has_value() || *io == TlsIo::kClosed) {
      end();
      return std::nullopt;
    }
    if (*io != TlsIo::kDone) return *io;
    replied_ += n;
  }
  const std::uint64_t now = now_ns();
  if (receipt_.end == AttemptEnd::kCommitted) {
    receipt_.phases.ack_ns = now - reply_started_ns_;
    receipt_.phases.transfer_commit_ns = now - admitted_ns_;
  }
  // What cannot be sent at once is left out: the frame is out, and the close says the same.
  static_cast<void>(tls_->close_notify());
  phase_ = Phase::kLinger;
  deadline_ns_ = in_ms(kLingerMs);
  watch_deadline();
  // Others need not wait for the peer's goodbye.
  if (std::exchange(has_turn_, false)) owner_->give_up_turn(*this);
  return std::nullopt;
}

/// Closing with unread input would reset the connection and might take our last frame with it.
std::optional<TlsIo> ReceiverSession::drop_input() {
  std::array<std::uint8_t, kDropBufferBytes> buffer;
  for (std::size_t budget = kReadBudgetBytes; budget > buffer.size(); budget -= buffer.size()) {
    std::size_t n = 0;
    const auto io = tls_->read(buffer, n);
    if (!io.has_value() || *io == TlsIo::kClosed) {
      end();
      return std::nullopt;
    }
    if (*io != TlsIo::kDone) return *io;
  }
  return TlsIo::kDone;
}

void ReceiverSession::stop() {
  if (phase_ == Phase::kTransfer || phase_ == Phase::kReply || phase_ == Phase::kLinger ||
      phase_ == Phase::kOver)
    return;
  fail_with(fail(ErrorCode::kBusy, "receiver is stopping"), AttemptEnd::kStopped);
}

void ReceiverSession::drop() noexcept {
  if (phase_ == Phase::kOver) return;
  // Short enough to need no memory: there may be none.
  static constexpr std::string_view kText = "an exception";
  loop_.abort(fail(ErrorCode::kInternal, std::string(kText)));
  // One that has committed or has been refused stays so.
  if (phase_ != Phase::kReply && phase_ != Phase::kLinger) {
    receipt_.end = AttemptEnd::kStopped;
    receipt_.error = fail(ErrorCode::kInternal, std::string(kText));
  }
  end();
}

void ReceiverSession::end() noexcept {
  if (phase_ == Phase::kOver) return;
  release_begin();
  if (phase_ == Phase::kReply && receipt_.end == AttemptEnd::kCommitted)
    receipt_.error = fail(ErrorCode::kIo, "handoff ACK failed after commit");
  phase_ = Phase::kOver;
  asio::error_code ignored;
  timer_.cancel();
  socket_.close(ignored);
  receipt_.phases.total_ns = now_ns() - accepted_ns_;
  receipt_.ended_unix_ms = owner_->clock->wall_ms();
  if (std::exchange(has_turn_, false)) owner_->give_up_turn(*this);
  owner_->session_ended(*this, receipt_);
}

}  // namespace kvpack::net
