/// Statistics sidecar KVSSC1: what a chunk of f16 keys looks like, kept in the tail of its header page so
/// that a cache policy need not read the chunk. Layout and order of checks: docs/format/stats-sidecar.md.
#pragma once

#include <cmath>
#include <limits>
#include <vector>

#include "kvpack/core/canonical.h"
#include "kvpack/core/half.h"
#include "kvpack/crypto/sha256.h"

namespace kvpack {

inline constexpr std::uint32_t kMaxSidecarChannels = 512;
inline constexpr std::uint32_t kMaxSidecarTokens = 768;
inline constexpr std::uint16_t kMaxSidecarSinks = 8;
inline constexpr std::size_t kMaxStatsSidecarBytes = 3858;  ///< Room in a chunk header behind offset 238.

/// Smallest and largest element of one channel over all tokens, as binary16 bits. Finite, min <= max.
struct ChannelRange {
  std::uint16_t min_bits = 0;
  std::uint16_t max_bits = 0;

  friend bool operator==(const ChannelRange&, const ChannelRange&) = default;
};

/// One of the tokens with the largest key norm.
struct AttentionSink {
  std::uint32_t token_index = 0;  ///< From the chunk's first token.
  std::uint16_t score_bits = 0;   ///< The norm of that token, bit for bit.

  friend bool operator==(const AttentionSink&, const AttentionSink&) = default;
};

struct StatsSidecar {
  std::vector<ChannelRange> channels;  ///< 1 to 512, in channel order.
  std::vector<std::uint16_t>
      norm_bits{};                     ///< L2 norm of each token, binary16; 1 to 768, finite, not below 0.
  std::vector<AttentionSink> sinks{};  ///< The 1 to 8 largest norms, larger first, then earlier token first.

  friend bool operator==(const StatsSidecar&, const StatsSidecar&) = default;
};

/// The canonical bytes, at most 3670. Everything that decode_stats_sidecar checks is checked here too, with
/// the same errors, so what is written can be read: a derived norm may have overflowed to infinity, for
/// example.
/// @error kBounds kSemantics
Result<Bytes> encode_stats_sidecar(const StatsSidecar& sidecar);

/// @error kBounds kTruncated kBadMagic kReserved kSemantics  first violation
Result<StatsSidecar> decode_stats_sidecar(ByteSpan bytes);

/// Statistics of a plane `[tokens, channels]`, row-major, little-endian binary16.
/// @param tokens     1 to 768
/// @param channels   1 to 512: the elements per token of the state
/// @param max_sinks  1 to 8; with fewer tokens, every token is a sink
/// @error kBounds a number is out of range, or plane.size() != 2 * tokens * channels; kSemantics an infinity
/// or NaN
Result<StatsSidecar> derive_stats_sidecar(ByteSpan plane, std::uint64_t tokens, std::uint64_t channels,
                                          std::uint64_t max_sinks);

/// What enters the object key: SHA-256 of the canonical bytes.
Digest32 stats_digest(ByteSpan sidecar_bytes);

// -----------------------------------------------------------------------------------------------------------

inline constexpr ObjectTexts kStatsSidecarTexts{magic("KVSSC1"), "unsupported stats sidecar version",
                                                "stats sidecar reserved field is nonzero",
                                                "stats sidecar is not canonical"};

static_assert(22 + 4 * kMaxSidecarChannels + 2 * kMaxSidecarTokens + 8 * kMaxSidecarSinks <=
              kMaxStatsSidecarBytes);

namespace detail {

inline constexpr std::string_view kChannelCountText = "stats sidecar channel count is outside bounds";
inline constexpr std::string_view kTokenCountText = "stats sidecar token count is outside bounds";
inline constexpr std::string_view kSinkCountText = "stats sidecar sink count is outside bounds";

inline Status check_sidecar_count(std::size_t count, std::size_t max, std::string_view what) {
  if (count == 0 || count > max) return fail(ErrorCode::kBounds, std::string(what));
  return success();
}

inline Status check_channel_range(const ChannelRange& range) {
  if (!half_is_finite(range.min_bits) || !half_is_finite(range.max_bits) ||
      half_to_float(range.min_bits) > half_to_float(range.max_bits))
    return fail(ErrorCode::kSemantics, "stats sidecar channel range is not finite and ordered");
  return success();
}

inline Status check_key_norm(std::uint16_t bits) {
  if (!half_is_finite(bits) || half_to_float(bits) < 0)
    return fail(ErrorCode::kSemantics, "stats sidecar key norm is not a finite non-negative value");
  return success();
}

/// Orders binary16 bits as IEEE 754 totalOrder does: -0 is below +0.
constexpr std::int32_t half_total_order(std::uint16_t bits) noexcept {
  const std::int32_t magnitude = bits & 0x7fff;
  return (bits & 0x8000) != 0 ? -1 - magnitude : magnitude;
}

/// The `count` largest norms, equal ones by token. @pre count <= norms.size()
inline std::vector<AttentionSink> top_norms(const std::vector<std::uint16_t>& norms, std::size_t count) {
  std::vector<AttentionSink> sinks;
  sinks.reserve(norms.size());
  for (std::size_t i = 0; i < norms.size(); ++i) sinks.push_back({static_cast<std::uint32_t>(i), norms[i]});
  const auto before = [](const AttentionSink& a, const AttentionSink& b) {
    const auto score_a = half_total_order(a.score_bits);
    const auto score_b = half_total_order(b.score_bits);
    return score_a != score_b ? score_a > score_b : a.token_index < b.token_index;
  };
  std::ranges::partial_sort(sinks, sinks.begin() + static_cast<std::ptrdiff_t>(count), before);
  sinks.resize(count);
  return sinks;
}

inline Status check_stats_sidecar(const StatsSidecar& sidecar) {
  KVPACK_TRY(check_sidecar_count(sidecar.channels.size(), kMaxSidecarChannels, kChannelCountText));
  for (const ChannelRange& range : sidecar.channels) KVPACK_TRY(check_channel_range(range));
  KVPACK_TRY(check_sidecar_count(sidecar.norm_bits.size(), kMaxSidecarTokens, kTokenCountText));
  for (const std::uint16_t bits : sidecar.norm_bits) KVPACK_TRY(check_key_norm(bits));
  KVPACK_TRY(check_sidecar_count(sidecar.sinks.size(), kMaxSidecarSinks, kSinkCountText));
  if (sidecar.sinks.size() > sidecar.norm_bits.size() ||
      sidecar.sinks != top_norms(sidecar.norm_bits, sidecar.sinks.size()))
    return fail(ErrorCode::kSemantics, "stats sidecar sink scores are not the exact top-m norms");
  return success();
}

inline Result<StatsSidecar> read_stats_sidecar_body(CanonicalReader& in) {
  StatsSidecar sidecar;
  KVPACK_TRY_ASSIGN(const auto channels, in.count(kMaxSidecarChannels, kChannelCountText));
  for (std::uint32_t i = 0; i < channels; ++i) {
    ChannelRange range;
    KVPACK_TRY_ASSIGN(range.min_bits, in.le<std::uint16_t>());
    KVPACK_TRY_ASSIGN(range.max_bits, in.le<std::uint16_t>());
    KVPACK_TRY(check_channel_range(range));
    sidecar.channels.push_back(range);
  }
  KVPACK_TRY_ASSIGN(const auto tokens, in.count(kMaxSidecarTokens, kTokenCountText));
  for (std::uint32_t i = 0; i < tokens; ++i) {
    KVPACK_TRY_ASSIGN(const auto bits, in.le<std::uint16_t>());
    KVPACK_TRY(check_key_norm(bits));
    sidecar.norm_bits.push_back(bits);
  }
  KVPACK_TRY_ASSIGN(const auto sinks, in.count(kMaxSidecarSinks, kSinkCountText));
  for (std::uint16_t i = 0; i < sinks; ++i) {
    AttentionSink sink;
    KVPACK_TRY_ASSIGN(sink.token_index, in.le<std::uint32_t>());
    KVPACK_TRY_ASSIGN(sink.score_bits, in.le<std::uint16_t>());
    KVPACK_TRY(in.zero<std::uint16_t>("stats sidecar sink reserved field is nonzero"));
    sidecar.sinks.push_back(sink);
  }
  return sidecar;
}

}  // namespace detail

inline Result<Bytes> encode_stats_sidecar(const StatsSidecar& sidecar) {
  KVPACK_TRY(detail::check_stats_sidecar(sidecar));
  ByteWriter out;
  write_object_prefix(out, kStatsSidecarTexts.magic);
  out.le(static_cast<std::uint32_t>(sidecar.channels.size()));
  for (const ChannelRange& range : sidecar.channels) {
    out.le(range.min_bits);
    out.le(range.max_bits);
  }
  out.le(static_cast<std::uint32_t>(sidecar.norm_bits.size()));
  for (const std::uint16_t bits : sidecar.norm_bits) out.le(bits);
  out.le(static_cast<std::uint16_t>(sidecar.sinks.size()));
  for (const AttentionSink& sink : sidecar.sinks) {
    out.le(sink.token_index);
    out.le(sink.score_bits);
    out.le(std::uint16_t{0});
  }
  return std::move(out).take();
}

inline Result<StatsSidecar> decode_stats_sidecar(ByteSpan bytes) {
  if (bytes.size() > kMaxStatsSidecarBytes)
    return fail(ErrorCode::kBounds, "stats sidecar exceeds the chunk header capacity");
  // The order of the sinks is a matter of the whole object: the encoder checks it behind the end of input.
  return decode_object<StatsSidecar>(bytes, kStatsSidecarTexts, detail::read_stats_sidecar_body,
                                     encode_stats_sidecar);
}

inline Result<StatsSidecar> derive_stats_sidecar(ByteSpan plane, std::uint64_t tokens, std::uint64_t channels,
                                                 std::uint64_t max_sinks) {
  if (tokens == 0 || tokens > kMaxSidecarTokens || channels == 0 || channels > kMaxSidecarChannels ||
      max_sinks == 0 || max_sinks > kMaxSidecarSinks)
    return fail(ErrorCode::kBounds, "stats sidecar shape is outside bounded limits");
  if (plane.size() != 2 * tokens * channels)
    return fail(ErrorCode::kBounds, "stats sidecar source bytes do not match the declared shape");
  for (std::size_t at = 0; at < plane.size(); at += 2)
    if (!half_is_finite(load_le<std::uint16_t>(plane, at)))
      return fail(ErrorCode::kSemantics, "stats sidecar source contains a non-finite element");

  StatsSidecar sidecar;
  const auto channel_count = static_cast<std::size_t>(channels);
  std::vector<float> low(channel_count, std::numeric_limits<float>::infinity());
  std::vector<float> high(channel_count, -std::numeric_limits<float>::infinity());
  for (std::size_t at = 0; at < plane.size();) {
    double sum_of_squares =
        0;  // the square of a half is exact in f64, so a fused multiply-add changes nothing
    for (std::size_t channel = 0; channel < channel_count; ++channel, at += 2) {
      const float value = half_to_float(load_le<std::uint16_t>(plane, at));
      sum_of_squares += double{value} * double{value};
      // Strictly: of zeros with both signs the first one met stays.
      if (value < low[channel]) low[channel] = value;
      if (value > high[channel]) high[channel] = value;
    }
    sidecar.norm_bits.push_back(float_to_half(static_cast<float>(std::sqrt(sum_of_squares))));
  }
  for (std::size_t channel = 0; channel < channel_count; ++channel)
    sidecar.channels.push_back({float_to_half(low[channel]), float_to_half(high[channel])});
  sidecar.sinks = detail::top_norms(sidecar.norm_bits, static_cast<std::size_t>(std::min(max_sinks, tokens)));
  return sidecar;
}

inline Digest32 stats_digest(ByteSpan sidecar_bytes) {
  return sha256(sidecar_bytes);
}

}  // namespace kvpack
