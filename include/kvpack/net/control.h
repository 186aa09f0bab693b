/// The control channel: a receiver asks the resident producer for one exact prefill. Frames, messages and
/// their rules; no cache byte travels here. docs/protocol/receiver.md §Control channel
#pragma once

#include <array>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "kvpack/handoff/begin.h"

namespace kvpack::net {

inline constexpr std::array<std::uint8_t, 8> kControlMagic{'M', 'U', 'P', 'C', 'T', 'L', '1', 0};
inline constexpr std::size_t kControlPreambleBytes = 12;  ///< Magic, then the length as u32le.
inline constexpr std::uint32_t kMaxControlFrameBytes = 67'108'864;
inline constexpr std::uint64_t kMaxControlPositions = 131'072;   ///< With the boundary token.
inline constexpr std::uint32_t kControlTokenBound = 0x7fffffff;  ///< Token ids are below; images stand as it.

/// A request: tokens alone (version 1), or tokens and images (version 2, then `multimodal` is there).
struct ControlImage {
  std::string data_base64;
  std::string sha256;
  std::uint64_t projected_tokens = 0;

  friend bool operator==(const ControlImage&, const ControlImage&) = default;
};
using ControlSegment = std::variant<std::vector<std::uint32_t>, ControlImage>;

struct ControlRequest {
  std::string request_id;
  std::uint64_t deadline_unix_ms = 0;
  std::string receiver_host;  ///< Where the producer connects back to.
  std::uint64_t receiver_port = 0;
  std::vector<std::uint32_t> prompt_token_ids{};  ///< Version 1; with the boundary token.
  std::vector<ControlSegment> segments{};         ///< Version 2.
  std::optional<handoff::MultimodalIdentity> multimodal{};

  friend bool operator==(const ControlRequest&, const ControlRequest&) = default;
};

enum class ControlStatus : std::uint8_t { kAccepted, kCommitted, kFailed };

/// What the producer has measured. Unix nanoseconds unless the name says otherwise.
struct ControlReceipt {
  std::uint64_t prefill_start_unix_ns = 0;
  std::uint64_t prefill_end_unix_ns = 0;
  std::uint64_t state_saved_unix_ns = 0;
  std::uint64_t transfer_start_unix_ns = 0;
  std::uint64_t first_segment_sent_unix_ns = 0;
  std::uint64_t transfer_acked_unix_ns = 0;
  std::uint64_t prefill_tokens = 0;
  std::uint64_t payload_bytes = 0;
  std::uint64_t payload_wire_ns = 0;  ///< Nanoseconds.

  friend bool operator==(const ControlReceipt&, const ControlReceipt&) = default;
};

struct ControlResponse {
  std::string request_id;
  ControlStatus status = ControlStatus::kFailed;
  std::optional<std::string> error{};
  std::optional<ControlReceipt> receipt{};

  friend bool operator==(const ControlResponse&, const ControlResponse&) = default;
};

/// Puts preamble and body together. @error kControl `prefill control frame exceeds bounds`
Result<Bytes> encode_control_frame(ByteSpan body);
/// How long the body behind a preamble is.
/// @error kControl `prefill control frame magic mismatch`, `prefill control frame length is outside bounds`
Result<std::uint32_t> read_control_preamble(std::span<const std::uint8_t, kControlPreambleBytes> preamble);

/// Canonical JSON. @pre texts are UTF-8
Bytes encode_control_request(const ControlRequest& request);
Bytes encode_control_response(const ControlResponse& response);

/// Members by their names, as in a response.
JsonValue control_receipt_json(const ControlReceipt& receipt);

/// @error kControl  not JSON, a key that is missing, unknown or of another type, `JSON is not in the
/// canonical
///        compact sorted-key encoding`
Result<ControlRequest> decode_control_request(ByteSpan body);
Result<ControlResponse> decode_control_response(ByteSpan body);

/// What a producer takes.
struct ControlLimits {
  std::uint64_t vocabulary = kControlTokenBound;       ///< Token ids are below.
  std::uint64_t max_positions = kMaxControlPositions;  ///< With the boundary token.
};
/// Whether a producer may begin on a request.
/// @error kControl  the texts of docs/protocol/receiver.md §Control channel, first violation
Status check_control_request(const ControlRequest& request, std::uint64_t now_unix_ms,
                             const ControlLimits& limits = {});
/// The tokens of a request as a handoff witnesses them, with the boundary token: an image is as many
/// kControlTokenBound as it has positions. @pre check_control_request has passed
std::vector<std::uint32_t> request_positions(const ControlRequest& request);
/// What a producer that takes images looks at before it decodes any: strict base64 of 1 to 33,554,432 bytes,
/// the digest of each, and the digest over all. Passes where there are none.
/// @return the images, decoded, in their order
/// @error kControl `multimodal image segment violates its closed bounds`, `multimodal image digest mismatch`,
///        `multimodal image sequence digest mismatch`
Result<std::vector<Bytes>> decode_control_images(const ControlRequest& request);
/// Whether a response answers this request. @error kControl, as above
Status check_control_response(const ControlResponse& response, std::string_view request_id);
/// @error kControl `prefill producer receipt phase order is invalid`
Status check_control_receipt(const ControlReceipt& receipt);

}  // namespace kvpack::net
