/// A receiver that asks for what it takes: the control channel and the data plane as one call.
/// docs/protocol/receiver.md §Remote prefill
#pragma once

#include "kvpack/net/control_client.h"
#include "kvpack/net/receiver.h"

namespace kvpack::net {

/// What is asked for: tokens, or the segments of a multimodal request with its three digests.
struct PrefillOrder {
  std::vector<std::uint32_t> token_ids{};  ///< With the boundary token, which the receiver evaluates itself.
  std::vector<ControlSegment> segments{};
  std::optional<handoff::MultimodalIdentity> multimodal{};
};

/// A handoff that was asked for and has been committed.
struct PrefillReceipt {
  AttemptReceipt attempt;                    ///< Without its sink, which may be gone.
  std::optional<ControlReceipt> producer{};  ///< Telemetry, where it came in time.
  std::string request_id;
  std::uint64_t control_ns = 0;  ///< Until the producer has accepted.
  std::uint64_t accept_ns = 0;   ///< From there until its begin frame was admitted.
  std::uint64_t total_ns = 0;
};

/// Listens as long as it lives, and admits nothing but the transfer of the request that waits for it, whose
/// prompt, identity and transfer id are pinned. For several threads, one request at a time.
class RequestingReceiver {
 public:
  /// Binds a receiver and runs it in a thread of its own.
  /// @param host  says what the transfer of a request is installed into: its expectations count for what is
  ///        held and for the longest context alone. `admit` is called for that transfer only, `ended` for
  ///        every attempt, both by the receiver's thread. Must outlive this.
  /// @error kConfig `receiver configuration has no producer_control`; as Receiver::bind
  static Result<std::unique_ptr<RequestingReceiver>> start(FileSystem& fs, const Clock& clock,
                                                           ReceiverConfig config, ReceiverSettings settings,
                                                           handoff::SpanSchedule schedule,
                                                           ReceiverHost& host);
  RequestingReceiver(const RequestingReceiver&) = delete;
  RequestingReceiver& operator=(const RequestingReceiver&) = delete;
  /// Ends what runs, as a stop of each request does.
  ~RequestingReceiver();

  SocketAddress address() const;
  ReceiverCounters counters() const;

  /// Asks the producer, takes the transfer, and returns when it is committed or cannot be any more. What was
  /// committed is a success, whatever comes after it. A transfer that has been admitted is waited for also
  /// when `stop` comes, at most as long as the receiver's own deadlines are: the closed control stream ends
  /// it on the producer's side, and the sink is in use until then.
  /// @error kBusy `another remote prefill is running`; kValidation `remote prefill needs a held boundary
  /// token`
  /// @error as ControlClient::ask; kControl  what the producer says against it later, or `GX10 producer
  /// closed
  ///        the control stream`
  /// @error kTimeout `timed out waiting for the GX10 producer`, with ` (dropped {n} stale connections, last:
  ///        {text})` where there were any; kCancelled
  /// @error what the transfer was refused for
  /// Each with `phase`: `receiver refusal`, `producer control channel`, `waiting for the producer
  /// connection`, `producer verification`, `mid-transfer`, `engine install`.
  Result<PrefillReceipt> fetch(const PrefillOrder& order, const std::stop_token& stop = {});

 private:
  struct State;
  explicit RequestingReceiver(std::unique_ptr<State> state) noexcept;
  std::unique_ptr<State> state_;
};

}  // namespace kvpack::net
