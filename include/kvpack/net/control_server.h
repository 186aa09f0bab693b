/// The resident producer's end of the control channel: takes requests of enrolled receivers, one after the
/// other, and says what became of each. docs/protocol/receiver.md §Control channel
#pragma once

#include <memory>
#include <stop_token>

#include "kvpack/base/clock.h"
#include "kvpack/base/fs.h"
#include "kvpack/net/control.h"
#include "kvpack/net/producer.h"

namespace kvpack::net {

/// How a connection to the control channel ended.
enum class ControlEnd : std::uint8_t {
  kCommitted,  ///< The job has succeeded: the receiver has acknowledged its handoff.
  kFailed,     ///< The job has not.
  kRefused,    ///< The request is outside its bounds, or names a receiver that is not configured.
  kAbandoned,  ///< The receiver was gone before the job began.
  kHandshake,  ///< TLS, certificate, pin or ALPN; also a peer that never finished it.
  kUnreadable  ///< No request came in time, or what came is none.
};
std::string_view control_end_name(ControlEnd end) noexcept;

/// What is known of one connection. Holds no token.
struct ControlAttempt {
  ControlEnd end = ControlEnd::kCommitted;
  std::optional<Error> error{};             ///< Absent when committed.
  std::optional<ControlReceipt> receipt{};  ///< What the job has measured.
  std::uint64_t ended_unix_ms = 0;
  std::string peer;              ///< `ip:port`
  std::string peer_leaf_sha256;  ///< Empty before the handshake was done.
  std::string request_id;        ///< Empty before a request was read.
  std::uint64_t positions = 0;   ///< Of the request, with the boundary token.
  bool receiver_left = false;    ///< The receiver closed or spoke before the job ended, which cancels it.
};
/// One line of canonical JSON without a line end.
std::string receipt_json(const ControlAttempt& attempt);

/// The embedding program's side.
class ControlHost {
 public:
  virtual ~ControlHost() = default;
  /// Does what an accepted request asks for: prefills, hands over, and returns when the receiver has
  /// acknowledged it. Called by the thread that runs the server, one call at a time. The request has passed
  /// check_control_request and its receiver is the configured one.
  /// @param stop  the receiver has gone, or the server is being stopped. What has been acknowledged already
  /// is a success all the same.
  /// @return what was measured; a receipt that check_control_receipt refuses is not sent
  virtual Result<ControlReceipt> serve(const ControlRequest& request, const std::stop_token& stop) = 0;
  /// Every connection ends here, once, after the reply has been written: one call at a time, those of jobs
  /// from the thread of serve.
  virtual void ended([[maybe_unused]] const ControlAttempt& attempt) noexcept {}
};

struct ControlServerOptions {
  std::uint64_t handshake_timeout_ms = 10'000;  ///< From accept to the end of the handshake.
  std::uint64_t request_timeout_ms = 10'000;    ///< From there to the end of the request.
  std::uint64_t reply_timeout_ms = 10'000;      ///< For each reply.
  /// The longest request that is read: room for all tokens. One with images needs up to
  /// kMaxControlFrameBytes, which each of 16 connections may then hold.
  std::uint32_t max_request_bytes = 2'097'152;
  ControlLimits limits{};
  /// Locked, exclusively and without waiting, as long as the server lives: whoever else would use the same
  /// accelerator names the same file. Created where it is missing; empty: no lock.
  std::string lock_file{};
};

/// Handshakes and requests of up to 16 connections are read at the same time, each up to its deadline, so
/// that a silent peer holds up nobody; further ones wait in the system's queue of 8. Requests are served in
/// the order in which they came in whole.
class ControlServer {
 public:
  /// Lock, then socket.
  /// @param config  whose `control` and `receiver` count, and under whose credentials it answers
  /// @param host    must outlive the server
  /// @error kConfig `producer settings name no control`; kBusy `another process holds {lock_file}`; kIo of
  /// the
  ///        lock; kIo `bind {address}: {e}`
  static Result<std::unique_ptr<ControlServer>> bind(FileSystem& fs, const Clock& clock,
                                                     ProducerConfig config, ControlServerOptions options,
                                                     ControlHost& host);
  ControlServer(const ControlServer&) = delete;
  ControlServer& operator=(const ControlServer&) = delete;
  ~ControlServer();

  /// With the port that the system chose where the settings say 0.
  SocketAddress address() const;
  /// Serves until stop. May be called once.
  Status run();
  /// From any thread, but not from a signal handler; may come before run. A job that runs is told to stop,
  /// and its receiver is told that it failed; requests that wait are dropped.
  void stop() noexcept;

 private:
  struct State;
  explicit ControlServer(std::unique_ptr<State> state) noexcept;
  std::unique_ptr<State> state_;
};

/// Whether a request may be answered under these settings: it connects back to the configured host, at a port
/// of its own choice. @error kControl `prefill control request names another receiver`
Status check_requested_receiver(const ControlRequest& request, const ProducerConfig& config);

/// Sends what a request asks for: to where it says, its positions without the boundary token as prompt, under
/// its id. @error as send_handoff, check_requested_receiver
Result<SendReceipt> send_requested(FileSystem& fs, const Clock& clock, const ProducerConfig& config,
                                   const ControlRequest& request, SegmentSource& source,
                                   const SendOptions& options = {});

/// When a prefill ran. Unix nanoseconds.
struct PrefillTimes {
  std::uint64_t start_unix_ns = 0;
  std::uint64_t end_unix_ns = 0;
  std::uint64_t saved_unix_ns = 0;  ///< Its state has left the engine.
};
/// What a job says of a transfer that was acknowledged.
ControlReceipt make_control_receipt(const SendReceipt& sent, const PrefillTimes& prefill,
                                    std::uint64_t prefill_tokens);

}  // namespace kvpack::net
