/// The receiver's end of the control channel: asks the resident producer for one exact prefill.
/// docs/protocol/receiver.md §Control channel
#pragma once

#include <memory>
#include <stop_token>

#include "kvpack/base/clock.h"
#include "kvpack/base/fs.h"
#include "kvpack/net/control.h"
#include "kvpack/net/receiver_config.h"

namespace kvpack::net {

/// How long a receiver whose transfer has been acknowledged waits for the producer's receipt, in
/// milliseconds.
inline constexpr std::uint64_t kControlReceiptWaitMs = 250;

/// A request that the producer has accepted. The open stream is what tells the producer that its receiver
/// still waits: closing it, or dropping this, cancels what has not been acknowledged. One thread at a time.
class ControlClient {
 public:
  /// Connects to the `producer_control` of the configuration under its own credentials, asks, and waits for
  /// `accepted`, all of it up to the request's deadline and no longer than the longest one there is.
  /// @param stop  ends the attempt at once
  /// @error kConfig `receiver configuration has no producer_control`; the rules on key and certificate files
  /// @error kControl  as check_control_request, decode_control_response, check_control_response;
  ///        what the producer says against it, with `refused_by`=`producer`, or `GX10 producer rejected the
  ///        request`
  /// @error kIo kTls kAlpn kLeafPin  of the connection; kTimeout `timed out talking to the peer`; kCancelled
  ///        `operation was cancelled`
  static Result<ControlClient> ask(FileSystem& fs, const Clock& clock, const ReceiverConfig& config,
                                   const ControlRequest& request, const std::stop_token& stop = {});
  ControlClient(ControlClient&&) noexcept;
  ControlClient& operator=(ControlClient&&) noexcept;
  ~ControlClient();

  /// What the producer says next: `committed`, or `failed` with its reason.
  /// @param wait_ms  at most this long
  /// @error kTimeout kCancelled, as above; kIo  the producer has closed the stream, or it broke off
  /// @error kControl  what came is no valid response
  Result<ControlResponse> next(std::uint64_t wait_ms, const std::stop_token& stop = {});

  /// What the producer has measured, after the acknowledgement: nothing unless a valid `committed` with a
  /// receipt comes in time. Never undoes a commit.
  std::optional<ControlReceipt> receipt(std::uint64_t wait_ms = kControlReceiptWaitMs,
                                        const std::stop_token& stop = {});

  void close() noexcept;

 private:
  struct State;
  explicit ControlClient(std::unique_ptr<State> state) noexcept;
  std::unique_ptr<State> state_;
};

/// `muser-{now}-{n}`, n counting from 0 in this process: no two are equal while the wall clock does not go
/// back.
std::string mint_request_id(std::uint64_t now_unix_ms);

}  // namespace kvpack::net
