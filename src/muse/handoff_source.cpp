#include "kvpack/muse/handoff_source.h"

namespace kvpack::muse {

using handoff::ScheduleRow;
using handoff::SegmentRole;

namespace {

/// Where the rows of one draft range begin in its planes.
std::uint64_t dflash_offset(const DflashContext& context, std::uint64_t start) {
  std::uint64_t before = 0;
  for (const TokenRange& range : dflash_ranges(context.position, context.geometry)) {
    if (range.start == start) return before;
    before += range.count();
  }
  return before;
}

}  // namespace

Result<HandoffSource> HandoffSource::open(CacheSnapshot snapshot, std::uint64_t cut,
                                          std::optional<DflashContext> dflash) {
  KVPACK_TRY(validate_snapshot(snapshot));
  if (snapshot.elements_per_token != kRowElements || snapshot_encoding(snapshot) != ElementEncoding::kF16Le)
    return fail(ErrorCode::kExpectation, "handoff needs f16 planes of 256 elements");
  auto rows = span_schedule(snapshot.position, cut);
  if (!rows.has_value())
    return fail(ErrorCode::kValidation, "delta prefix cut is not a 256-aligned cut inside the prompt");
  const std::size_t target_rows = rows->size();
  if (dflash.has_value()) {
    KVPACK_TRY(validate_dflash(*dflash));
    if (dflash->position != snapshot.position)
      return fail(ErrorCode::kExpectation, "draft context and cache differ in position");
    const auto draft = dflash_schedule(dflash->position, dflash->geometry);
    rows->insert(rows->end(), draft.begin(), draft.end());
  }
  return HandoffSource(std::move(snapshot), std::move(dflash), *std::move(rows), target_rows);
}

std::uint64_t HandoffSource::payload_bytes() const noexcept {
  std::uint64_t sum = 0;
  for (const ScheduleRow& row : rows_)
    sum += row.logical_count * row.elements_per_token * *handoff::element_bytes(row.element_type);
  return sum;
}

handoff::SegmentShape HandoffSource::shape(std::size_t index) const {
  const ScheduleRow& row = rows_[index];
  return {.component_id = std::string(index < target_rows_ ? kTargetComponent : kDflashComponent),
          .role = row.role,
          .layer = row.layer,
          .logical_start = row.logical_start,
          .logical_count = row.logical_count,
          .element_type = std::string(row.element_type),
          .elements_per_token = row.elements_per_token};
}

std::vector<ByteSpan> HandoffSource::payload(std::size_t index) const {
  const ScheduleRow& row = rows_[index];
  std::vector<ByteSpan> pieces;
  if (index >= target_rows_) {
    const DflashLayer& layer = dflash_->layers[*row.layer];
    const SharedBytes& plane = row.role == SegmentRole::kDflashKey ? layer.key : layer.value;
    const std::uint64_t row_bytes = std::uint64_t{row.elements_per_token} * 4;
    pieces.push_back(
        plane.view().subspan(static_cast<std::size_t>(dflash_offset(*dflash_, row.logical_start) * row_bytes),
                             static_cast<std::size_t>(row.logical_count * row_bytes)));
    return pieces;
  }
  for (const std::uint32_t number : tile_layers(row.layer)) {
    const LayerSnapshot& layer = snapshot_.layers[number];
    const auto offset = static_cast<std::size_t>((row.logical_start - layer.logical_start) * kRowBytes);
    const auto bytes = static_cast<std::size_t>(row.logical_count * kRowBytes);
    pieces.push_back(layer.key.view().subspan(offset, bytes));
    pieces.push_back(layer.value.view().subspan(offset, bytes));
  }
  return pieces;
}

std::vector<handoff::SegmentDescriptor> HandoffSource::descriptors() const {
  std::vector<handoff::SegmentDescriptor> out;
  out.reserve(rows_.size());
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    Sha256 digest;
    std::uint64_t bytes = 0;
    for (const ByteSpan piece : payload(i)) {
      digest.update(piece);
      bytes += piece.size();
    }
    out.push_back({.sequence = static_cast<std::uint32_t>(i),
                   .shape = shape(i),
                   .byte_len = bytes,
                   .sha256 = to_hex(digest.finish())});
  }
  return out;
}

Status HandoffSource::send(handoff::Sender& sender, Append& out) const {
  KVPACK_TRY(out.append(sender.begin_frame()));
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    const std::vector<ByteSpan> pieces = payload(i);
    KVPACK_TRY_ASSIGN(const Bytes head, sender.deferred() ? sender.add_segment(shape(i), pieces)
                                                          : sender.add_declared_segment(pieces));
    KVPACK_TRY(out.append(head));
    for (const ByteSpan piece : pieces) KVPACK_TRY(out.append(piece));
  }
  KVPACK_TRY_ASSIGN(const Bytes seal, sender.finish());
  return out.append(seal);
}

}  // namespace kvpack::muse
