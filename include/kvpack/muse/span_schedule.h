/// What a transfer of a Muse cache sends, segment by segment: packed tiles of 13 layers in wire order, the
/// draft context behind them, and how many bytes that is. docs/protocol/delta.md §Span schedule.
#pragma once

#include <array>

#include "kvpack/handoff/admission.h"
#include "kvpack/muse/geometry.h"

namespace kvpack::muse {

inline constexpr std::uint64_t kTileTokens = 512;  ///< At the most; the last tile of a span may be shorter.
inline constexpr std::uint32_t kTileLayers = 13;
inline constexpr std::uint32_t kTilePlanes = kTileLayers * 2;
inline constexpr std::uint32_t kTileRowElements = kTilePlanes * kRowElements;
inline constexpr std::uint64_t kTileRowBytes = std::uint64_t{kTileRowElements} * 2;  ///< f16
/// The first layers of the three groups that the sliding layers are sent in.
inline constexpr std::array<std::uint32_t, 3> kSwaGroupHeads{0, 17, 34};
inline constexpr std::string_view kTargetComponent = "target";
inline constexpr std::string_view kDflashComponent = "dflash";

/// Half-open: rows [start, stop).
struct TokenRange {
  std::uint64_t start = 0;
  std::uint64_t stop = 0;

  constexpr std::uint64_t count() const noexcept { return stop - start; }
  friend bool operator==(const TokenRange&, const TokenRange&) = default;
};

/// Whether `layer` is the head of a group of sliding layers.
constexpr bool is_swa_group_head(std::uint32_t layer) noexcept {
  return std::ranges::find(kSwaGroupHeads, layer) != kSwaGroupHeads.end();
}

/// The layers of a packed tile, ascending, which is the order of its planes.
/// @param head  of a group of sliding layers; nothing: the NoPE layers
constexpr std::array<std::uint32_t, kTileLayers> tile_layers(std::optional<std::uint32_t> head) noexcept;

/// Whether tokens [cut, position) can be sent: `position` is not 0, and `cut` is below it and a multiple of
/// 256.
constexpr bool has_span(std::uint64_t position, std::uint64_t cut) noexcept {
  return position != 0 && cut < position && cut % handoff::kCutAlignmentTokens == 0;
}

/// The first token whose row of a sliding layer is sent. @pre cut < position
constexpr std::uint64_t first_swa_token(std::uint64_t position, std::uint64_t cut) noexcept {
  return std::max(cut, position > kWindowTokens ? position - kWindowTokens : 0);
}

/// The target segments that transfer tokens [cut, position), in wire order: the three groups of sliding
/// layers, then the NoPE layers. A cut of 0 is a full transfer.
/// @param position  tokens of the prompt without its boundary token: about position / 128 rows are made
/// @return  nothing where has_span is false
std::optional<std::vector<handoff::ScheduleRow>> span_schedule(std::uint64_t position, std::uint64_t cut);

/// The payload bytes of that schedule. @pre has_span, position <= 2^48
constexpr std::uint64_t span_payload_bytes(std::uint64_t position, std::uint64_t cut) noexcept {
  return kTileRowBytes * (position - cut) +
         kTileRowBytes * kSwaGroupHeads.size() * (position - first_swa_token(position, cut));
}

/// The segments of that schedule. @pre has_span
constexpr std::uint64_t span_segment_count(std::uint64_t position, std::uint64_t cut) noexcept;

/// After how many tokens of a prefill the first tile can go out. @pre has_span
constexpr std::uint64_t first_tile_complete_after_tokens(std::uint64_t position, std::uint64_t cut) noexcept {
  return std::min(cut + kTileTokens, position);
}

/// The draft model's context: f32 rows of its first and its last tokens.
struct DflashGeometry {
  std::uint32_t layers = 5;
  std::uint32_t elements_per_token = 1024;
  std::uint64_t sink_tokens = 64;
  std::uint64_t window_tokens = 2048;

  friend bool operator==(const DflashGeometry&, const DflashGeometry&) = default;
};

/// Bounds that keep every sum and product of a draft geometry inside 64 bits.
inline constexpr std::uint32_t kMaxDflashLayers = 256;
inline constexpr std::uint32_t kMaxDflashElements = 65'536;
inline constexpr std::uint64_t kMaxDflashTokens = kMaxContextTokens;

constexpr bool is_bounded(const DflashGeometry& geometry) noexcept {
  return geometry.layers != 0 && geometry.layers <= kMaxDflashLayers && geometry.elements_per_token != 0 &&
         geometry.elements_per_token <= kMaxDflashElements && geometry.window_tokens != 0 &&
         geometry.sink_tokens <= kMaxDflashTokens && geometry.window_tokens <= kMaxDflashTokens;
}

/// The rows that a draft context holds: [0, position) while all fit, else sink and window.
/// @pre position is not 0, is_bounded
std::vector<TokenRange> dflash_ranges(std::uint64_t position, const DflashGeometry& geometry = {});

/// The draft segments, which follow the target's and do not depend on a cut. @pre as dflash_ranges
std::vector<handoff::ScheduleRow> dflash_schedule(std::uint64_t position,
                                                  const DflashGeometry& geometry = {});

/// Bytes of the draft context at `position`, and the most that any position has. @pre is_bounded
constexpr std::uint64_t dflash_payload_bytes(std::uint64_t position,
                                             const DflashGeometry& geometry = {}) noexcept {
  return std::uint64_t{geometry.layers} * 2 *
         std::min(position, geometry.sink_tokens + geometry.window_tokens) * geometry.elements_per_token * 4;
}
constexpr std::uint64_t dflash_bound_bytes(const DflashGeometry& geometry = {}) noexcept {
  return dflash_payload_bytes(geometry.sink_tokens + geometry.window_tokens, geometry);
}

// ---------------------------------------------------------------------------------------------------------

constexpr std::array<std::uint32_t, kTileLayers> tile_layers(std::optional<std::uint32_t> head) noexcept {
  std::array<std::uint32_t, kTileLayers> out{};
  std::uint32_t layer = head.value_or(0);
  for (std::uint32_t& slot : out) {
    while (is_sliding(layer) != head.has_value()) ++layer;
    slot = layer++;
  }
  return out;
}

static_assert(tile_layers(std::nullopt).front() == 3 && tile_layers(std::nullopt).back() == 51);
static_assert(tile_layers(0).back() == 16 && tile_layers(17).back() == 33 && tile_layers(34).back() == 50);

constexpr std::uint64_t span_segment_count(std::uint64_t position, std::uint64_t cut) noexcept {
  const std::uint64_t tiles = (position - cut + kTileTokens - 1) / kTileTokens;
  // Tiles that end at or before the first row of the sliding layers bring none.
  const std::uint64_t without = (first_swa_token(position, cut) - cut) / kTileTokens;
  return tiles + kSwaGroupHeads.size() * (tiles - without);
}

inline std::optional<std::vector<handoff::ScheduleRow>> span_schedule(std::uint64_t position,
                                                                      std::uint64_t cut) {
  using handoff::SegmentRole;
  if (!has_span(position, cut)) return std::nullopt;
  std::vector<handoff::ScheduleRow> rows;
  const auto emit = [&](SegmentRole role, std::optional<std::uint32_t> layer, std::uint64_t first_token) {
    for (std::uint64_t start = cut; start < position;) {
      const std::uint64_t stop = start + std::min(kTileTokens, position - start);
      if (stop > first_token) {
        const std::uint64_t first = std::max(start, first_token);
        rows.push_back({role, layer, first, stop - first, "f16_le", kTileRowElements});
      }
      start = stop;
    }
  };
  for (const std::uint32_t head : kSwaGroupHeads)
    emit(SegmentRole::kSwaTile, head, first_swa_token(position, cut));
  emit(SegmentRole::kNopeTile, std::nullopt, cut);
  return rows;
}

inline std::vector<TokenRange> dflash_ranges(std::uint64_t position, const DflashGeometry& geometry) {
  if (position <= geometry.sink_tokens + geometry.window_tokens) return {{0, position}};
  std::vector<TokenRange> out;
  if (geometry.sink_tokens != 0) out.push_back({0, geometry.sink_tokens});
  out.push_back({position - geometry.window_tokens, position});
  return out;
}

inline std::vector<handoff::ScheduleRow> dflash_schedule(std::uint64_t position,
                                                         const DflashGeometry& geometry) {
  using handoff::SegmentRole;
  const std::vector<TokenRange> ranges = dflash_ranges(position, geometry);
  std::vector<handoff::ScheduleRow> rows;
  for (std::uint32_t layer = 0; layer < geometry.layers; ++layer)
    for (const SegmentRole role : {SegmentRole::kDflashKey, SegmentRole::kDflashValue})
      for (const TokenRange& range : ranges)
        rows.push_back({role, layer, range.start, range.count(), "f32_le", geometry.elements_per_token});
  return rows;
}

}  // namespace kvpack::muse
