/// The receiver of a cluster: takes handoffs from enrolled producers over TLS and installs them into an
/// engine. docs/protocol/receiver.md §Receiver
#pragma once

#include <array>
#include <functional>
#include <memory>

#include "kvpack/base/clock.h"
#include "kvpack/base/fs.h"
#include "kvpack/handoff/receive_loop.h"
#include "kvpack/net/receiver_config.h"
#include "kvpack/net/receiver_settings.h"

namespace kvpack::net {

/// How an attempt ended. Every accepted socket is one attempt.
enum class AttemptEnd : std::uint8_t {
  kCommitted,
  kExcess,     ///< Closed at once: too many connections, or one that had gone before it was looked at.
  kStopped,    ///< The receiver was stopped.
  kHandshake,  ///< TLS, certificate, pin or ALPN; also a peer that never finished it.
  kBegin,      ///< No begin frame came, or it could not be read.
  kBusy,       ///< Its turn did not come in time, or waiting begin frames hold all the memory they may.
  kVerify,     ///< The producer's statements were refused.
  kTransfer,   ///< The stream broke off, was malformed, aborted by the producer, or too slow.
  kInstall,    ///< The engine refused.
  kLedger,     ///< The ledger refused or could not be written.
  kCount,
};
std::string_view attempt_end_name(AttemptEnd end) noexcept;

/// Nanoseconds. Sums saturate.
struct AttemptPhases {
  std::uint64_t accept_ns = 0;           ///< From accept to the end of the begin frame.
  std::uint64_t segment_read_ns = 0;     ///< Waiting inside frames, from the first byte of each to its last.
  std::uint64_t segment_process_ns = 0;  ///< Hashing and judging what came, and the sink's part of it.
  std::uint64_t sink_ns = 0;             ///< In the engine's sink, while segments came.
  std::uint64_t seal_ns = 0;             ///< Seal check and the sink's prepare.
  std::uint64_t reserve_ns = 0;          ///< The ledger.
  std::uint64_t commit_ns = 0;           ///< The sink's commit.
  std::uint64_t ack_ns = 0;
  std::uint64_t transfer_commit_ns = 0;  ///< From admission to the end of the ACK.
  std::uint64_t total_ns = 0;            ///< From accept.
};

/// What is known of one attempt. Holds no token, no key and no payload.
struct AttemptReceipt {
  AttemptEnd end = AttemptEnd::kCommitted;
  std::optional<Error> error;  ///< Absent when committed.
  std::uint64_t ended_unix_ms = 0;
  std::string peer;              ///< `ip:port`
  std::string peer_leaf_sha256;  ///< Empty before the handshake was done.
  std::string transfer_id;       ///< Empty before a begin frame was read.
  std::uint64_t generation = 0;
  std::uint32_t installed_segments = 0;
  std::uint64_t installed_bytes = 0;
  bool refusal_sent = false;
  const handoff::Sink* sink = nullptr;  ///< What admit has given for it; null when it was not asked.
  AttemptPhases phases;
};
/// One line of canonical JSON without a line end.
std::string receipt_json(const AttemptReceipt& receipt);

/// What a transfer is installed into.
struct Admission {
  handoff::Sink* sink = nullptr;  ///< Lives until the receipt of the attempt.
  const handoff::RequestExpectations* expected =
      nullptr;  ///< The same; null: any prompt under the enrolled identity.
};

/// The embedding program's side. Calls come from the thread that runs the receiver.
class ReceiverHost {
 public:
  virtual ~ReceiverHost() = default;
  /// A begin frame has come from an enrolled producer and nothing of it is verified. Called when it is its
  /// turn.
  virtual Result<Admission> admit(const handoff::BeginFrame& begin) = 0;
  /// Every attempt ends here, once.
  virtual void ended(const AttemptReceipt& receipt) noexcept = 0;
};

/// Counters since the start.
struct ReceiverCounters {
  std::array<std::uint64_t, static_cast<std::size_t>(AttemptEnd::kCount)> ends{};
  std::uint64_t accepted = 0;
  std::uint64_t open_connections = 0;
  std::uint64_t installed_bytes = 0;
  std::uint64_t refusals_sent = 0;
  bool ledger_was_missing = false;
  bool degraded = false;  ///< The ledger is latched: nothing is accepted until a restart.
};

/// Accepts, handshakes and reads begin frames of all connections at the same time; admitted transfers are as
/// many as the settings allow, in the order of their begin frames. Everything runs in the thread that calls
/// run, so a peer that stalls holds up nobody, and the engine's sink is called by one thread.
class Receiver {
 public:
  /// Key, ledger, volume probe, socket, socket of the metrics, in this order; any failure refuses the whole
  /// receiver.
  /// @param schedule  the span schedule of the model, for delta transfers; may be empty, then those are
  /// refused
  /// @param host      must outlive the receiver
  /// @error kConfig kIo  of each of them; kIo `bind {address}: {e}`
  static Result<std::unique_ptr<Receiver>> bind(FileSystem& fs, const Clock& clock, ReceiverConfig config,
                                                ReceiverSettings settings, handoff::SpanSchedule schedule,
                                                ReceiverHost& host);
  Receiver(const Receiver&) = delete;
  Receiver& operator=(const Receiver&) = delete;
  ~Receiver();

  /// With the port that the system chose where the configuration says 0.
  SocketAddress address() const;
  /// Where `GET /metrics` is answered, or nothing when the settings name no place.
  std::optional<SocketAddress> metrics_address() const;

  /// Serves until stop. Admitted transfers are finished; everything else is closed.
  Status run();
  /// From any thread, but not from a signal handler; may come before run.
  void stop() noexcept;

  ReceiverCounters counters() const;

 private:
  struct State;
  explicit Receiver(std::unique_ptr<State> state) noexcept;
  std::unique_ptr<State> state_;
};

}  // namespace kvpack::net
