/// The sending end of a handoff over TLS. docs/protocol/receiver.md §Producer
#pragma once

#include <functional>
#include <optional>
#include <stop_token>

#include "kvpack/base/clock.h"
#include "kvpack/base/fs.h"
#include "kvpack/handoff/sender.h"
#include "kvpack/net/producer_config.h"

namespace kvpack::net {

/// A segment to be sent. The payload keeps still until the next one is asked for.
struct OutgoingSegment {
  handoff::SegmentShape shape;
  std::vector<ByteSpan> payload;
};

/// Where segments come from, in wire order, perhaps while a prefill is still running.
class SegmentSource {
 public:
  virtual ~SegmentSource() = default;
  /// The next segment, or nothing behind the last one. May block while it is being computed.
  virtual Result<std::optional<OutgoingSegment>> next() = 0;
};

/// What is sent beside the segments.
struct OutgoingTransfer {
  std::vector<std::uint32_t> prompt_token_ids;  ///< Without the boundary token.
  std::optional<handoff::MultimodalIdentity> multimodal;
  std::uint64_t prefix_cut = 0;           ///< Tokens that the receiver already holds.
  std::optional<std::string> request_id;  ///< Of the request that this answers.
  bool has_dflash = false;
};

struct SendOptions {
  bool refusals = true;  ///< Offer to take a refusal frame.
  /// Payload bytes sent so far. An error ends the transfer with an abort frame.
  std::function<Status(std::uint64_t)> progress{};
  std::stop_token stop{};  ///< Ends the transfer, with an abort frame where one can still be sent.
};

struct SendReceipt {
  std::string transfer_id;
  std::uint64_t generation = 0;
  std::uint64_t transfer_start_unix_ns = 0;
  std::uint64_t first_segment_sent_unix_ns = 0;
  std::uint64_t transfer_acked_unix_ns = 0;
  std::uint64_t payload_bytes = 0;
  std::uint64_t payload_wire_ns = 0;  ///< Time in which the socket took payload.
  std::uint32_t segments = 0;
  std::string payload_sha256;
  std::uint64_t payload_pacing_bps = 0;  ///< 0: not paced.
};
/// One line of canonical JSON without a line end.
std::string receipt_json(const SendReceipt& receipt);

/// Takes a new generation, connects, sends begin, segments and seal, and waits for the acknowledgement. A
/// refusal of the receiver is looked for between and during writes and ends the transfer at once. Every
/// attempt takes a generation of its own; one whose acknowledgement was lost may have been committed, and its
/// number is never used again.
/// @error kTimeout  the whole took longer than the configuration allows; kCancelled `operation was cancelled`
/// @error kReplay kValidation kBusy ...  the receiver refused: its category and text
/// @error kIo kTls kAlpn kLeafPin kConfig  of the connection; kIo `receiver closed the connection without an
/// answer`
/// @error also what `source` says, and allocate_generation
Result<SendReceipt> send_handoff(FileSystem& fs, const Clock& clock, const ProducerConfig& config,
                                 const OutgoingTransfer& transfer, SegmentSource& source,
                                 const SendOptions& options = {});

}  // namespace kvpack::net
