// One accepted connection of a receiver, from the TLS handshake to the last byte. docs/protocol/receiver.md
// §Receiver
#pragma once

#include <stdlib.h>  // NOLINT(modernize-deprecated-headers): Asio asks for libstdc++'s macros first.

#include <asio/ip/tcp.hpp>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>
#include <memory>
#include <optional>

#include "kvpack/net/receiver.h"
#include "net/timed_sink.h"
#include "net/tls.h"

namespace kvpack::net {

class ReceiverSession;

// What all sessions of a receiver share, and how they hand the turn on.
class SessionOwner {
 public:
  virtual ~SessionOwner() = default;
  // A begin frame is complete: start_transfer is called when a transfer may run, perhaps before this returns.
  virtual void ask_for_turn(const std::shared_ptr<ReceiverSession>& session) = 0;
  // More of a begin frame has arrived. @return false: all begin frames that wait hold too much
  virtual bool hold_begin_bytes(std::size_t bytes) noexcept = 0;
  virtual void release_begin_bytes(std::size_t bytes) noexcept = 0;
  // The transfer of this session, if it had the turn, is over.
  virtual void give_up_turn(ReceiverSession& session) noexcept = 0;
  virtual void session_ended(ReceiverSession& session, const AttemptReceipt& receipt) noexcept = 0;

  FileSystem* fs = nullptr;
  const Clock* clock = nullptr;
  const ReceiverConfig* config = nullptr;
  const ReceiverSettings* settings = nullptr;
  handoff::ReplayLedger* ledger = nullptr;
  ReceiverHost* host = nullptr;
  const handoff::RequestExpectations* enrolled = nullptr;  // for an admission that expects nothing of its own
};

class ReceiverSession final : public std::enable_shared_from_this<ReceiverSession> {
 public:
  ReceiverSession(SessionOwner& owner, asio::ip::tcp::socket socket, handoff::ReceivePolicy policy);

  // Takes up the connection: handshake, begin frame, then its turn.
  void start();
  // It is this session's turn.
  void start_transfer();
  // Ends it unless it is in the middle of a transfer.
  void stop();
  // After an exception nobody knows how far it was: ends it wherever it is, without a word to the peer.
  void drop() noexcept;

 private:
  enum class Phase : std::uint8_t {
    kHandshake,
    kBegin,
    kWaiting,  // for its turn
    kTransfer,
    kReply,   // ACK or refusal is being written
    kLinger,  // what still comes is dropped
    kOver,
  };

  std::function<void(const asio::error_code&)> next_turn();
  void wait_for(TlsIo io);
  void wait_for_room();
  void arm(std::uint64_t deadline_ns);
  void watch_deadline();
  void on_ready();
  void on_deadline();
  // Each does one step. @return what to wait for, or nothing when the phase has changed or the session is
  // over
  std::optional<TlsIo> shake_hands();
  std::optional<TlsIo> read_some();
  std::optional<TlsIo> write_reply();
  std::optional<TlsIo> drop_input();
  void take_step(handoff::ReceiveStep step);
  bool note_begin_bytes(std::size_t n);
  void release_begin();
  void note_progress(std::uint64_t arrived_ns);
  void note_work(handoff::ReceiveStep step, std::uint64_t ns);
  void commit();
  void fail_with(Error error, AttemptEnd end);
  void fail_transfer(Error error);
  AttemptEnd judge_failure(const Error& error) const noexcept;
  void start_reply(Bytes frame);
  void end() noexcept;
  std::uint64_t now_ns() const { return owner_->clock->monotonic_ns(); }
  std::uint64_t in_ms(std::uint64_t ms) const { return now_ns() + ms * 1'000'000; }

  SessionOwner* owner_;
  asio::ip::tcp::socket socket_;
  asio::steady_timer timer_;
  std::optional<TlsConnection> tls_;
  AttemptReceipt receipt_;
  TimedLedger ledger_;
  std::optional<TimedSink> sink_;
  handoff::ReceiveLoop loop_;  // Behind its sink and ledger: it may abort the sink when it dies.
  Phase phase_ = Phase::kHandshake;
  std::uint64_t accepted_ns_;
  std::size_t begin_bytes_ = 0;      // held for the begin frame
  std::uint64_t begin_wall_ms_ = 0;  // when the begin frame was complete
  std::uint64_t admitted_ns_ = 0;
  std::uint64_t frame_started_ns_ = 0;  // 0 between frames
  std::uint64_t frame_work_ns_ = 0;     // spent on the frame, not waiting for it
  std::uint64_t deadline_ns_ = 0;
  std::uint64_t begin_deadline_ns_ = 0;
  std::uint64_t transfer_deadline_ns_ = 0;
  std::uint64_t timer_ns_ = 0;  // what the timer is set to; 0: it is not
  std::uint64_t turn_ = 0;      // of waits; only the latest counts
  Bytes reply_;
  std::size_t replied_ = 0;
  std::uint64_t reply_started_ns_ = 0;
  bool has_turn_ = false;
};

}  // namespace kvpack::net
