/// KVHF envelope: 20 bytes, big-endian, in front of every frame's JSON and payload.
/// Layout and order of checks: docs/protocol/kvhf.md §Frames.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "kvpack/base/bytes.h"

namespace kvpack::kvhf {

enum class FrameKind : std::uint8_t { kBegin = 1, kLayer, kSeal, kAbort, kAck };

/// Largest lengths that a frame may announce, both inclusive. Checked before anything is allocated.
struct FrameLimits {
  std::uint64_t max_json_bytes = 1'048'576;
  std::uint64_t max_payload_bytes = 67'108'864;
};

inline constexpr std::size_t kEnvelopeBytes = 20;
inline constexpr std::array<std::uint8_t, 4> kEnvelopeMagic = without_nul("KVHF");
inline constexpr std::uint8_t kEnvelopeVersion = 1;

struct Envelope {
  FrameKind kind = FrameKind::kBegin;
  std::uint32_t json_bytes = 0;
  std::uint64_t payload_bytes = 0;  ///< Nonzero only for a LAYER frame.
};

/// The word of a kind in reports: begin layer seal abort ack.
std::string_view frame_kind_name(FrameKind kind) noexcept;
std::optional<FrameKind> frame_kind_from_name(std::string_view name) noexcept;

/// @param bytes  the first 20 bytes of a frame
/// @error kValidation  magic, version or reserved; kind; lengths, in this order
Result<Envelope> decode_envelope(std::span<const std::uint8_t, kEnvelopeBytes> bytes,
                                 const FrameLimits& limits);

/// Envelope and JSON of a frame; the payload follows them on the wire, so that it need not be copied.
/// @param json  canonical JSON
/// @error kValidation  a length is outside the limits
Result<Bytes> encode_frame_head(FrameKind kind, ByteSpan json, std::uint64_t payload_bytes,
                                const FrameLimits& limits = {});

// ---------------------------------------------------------------------------------------------------------

namespace detail {
inline constexpr std::array<std::string_view, 5> kFrameKindNames{"begin", "layer", "seal", "abort", "ack"};
}  // namespace detail

inline std::string_view frame_kind_name(FrameKind kind) noexcept {
  return detail::kFrameKindNames[static_cast<std::size_t>(kind) - 1];
}

inline std::optional<FrameKind> frame_kind_from_name(std::string_view name) noexcept {
  for (std::size_t i = 0; i < detail::kFrameKindNames.size(); ++i)
    if (detail::kFrameKindNames[i] == name) return static_cast<FrameKind>(i + 1);
  return std::nullopt;
}

inline Result<Envelope> decode_envelope(std::span<const std::uint8_t, kEnvelopeBytes> bytes,
                                        const FrameLimits& limits) {
  static constexpr std::string_view kBadHead = "invalid frame magic, version, or reserved flags";
  ByteReader reader{ByteSpan(bytes)};
  KVPACK_TRY_ASSIGN(const ByteSpan magic, reader.take(kEnvelopeMagic.size(), kBadHead));
  KVPACK_TRY_ASSIGN(const auto version, reader.be<std::uint8_t>(kBadHead));
  KVPACK_TRY_ASSIGN(const auto kind, reader.be<std::uint8_t>(kBadHead));
  KVPACK_TRY_ASSIGN(const auto reserved, reader.be<std::uint16_t>(kBadHead));
  KVPACK_TRY_ASSIGN(const auto json_bytes, reader.be<std::uint32_t>(kBadHead));
  KVPACK_TRY_ASSIGN(const auto payload_bytes, reader.be<std::uint64_t>(kBadHead));
  if (!std::ranges::equal(magic, kEnvelopeMagic) || version != kEnvelopeVersion || reserved != 0)
    return fail(ErrorCode::kValidation, std::string(kBadHead));
  if (kind == 0 || kind > detail::kFrameKindNames.size())
    return fail(ErrorCode::kValidation, "unknown live handoff frame kind " + std::to_string(kind));
  const Envelope out{static_cast<FrameKind>(kind), json_bytes, payload_bytes};
  if (json_bytes == 0 || json_bytes > limits.max_json_bytes || payload_bytes > limits.max_payload_bytes ||
      (payload_bytes != 0 && out.kind != FrameKind::kLayer))
    return fail(ErrorCode::kValidation, "frame lengths violate the configured bounds or frame kind");
  return out;
}

inline Result<Bytes> encode_frame_head(FrameKind kind, ByteSpan json, std::uint64_t payload_bytes,
                                       const FrameLimits& limits) {
  if (json.empty() || json.size() > limits.max_json_bytes ||
      json.size() > std::numeric_limits<std::uint32_t>::max())
    return fail(ErrorCode::kValidation,
                "frame JSON length " + std::to_string(json.size()) + " is outside configured bounds");
  if (payload_bytes > limits.max_payload_bytes)
    return fail(ErrorCode::kValidation, "frame payload length " + std::to_string(payload_bytes) +
                                            " exceeds " + std::to_string(limits.max_payload_bytes));
  ByteWriter out;
  out.reserve(kEnvelopeBytes + json.size());
  out.bytes(kEnvelopeMagic);
  out.le(kEnvelopeVersion);
  out.le(static_cast<std::uint8_t>(kind));
  out.bytes(be_bytes<std::uint16_t>(0));
  out.bytes(be_bytes(static_cast<std::uint32_t>(json.size())));
  out.bytes(be_bytes(payload_bytes));
  out.bytes(json);
  return std::move(out).take();
}

}  // namespace kvpack::kvhf
