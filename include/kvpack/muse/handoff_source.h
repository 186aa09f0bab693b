/// The producing engine's side of a handoff: a snapshot as segments in wire order, for handoff::Sender.
/// docs/muse-handoff.md §Source
///
///   auto source = HandoffSource::open(snapshot, cut);
///   begin.prompt_token_ids = source->prompt_token_ids();
///   begin.components = {...};  begin.deferred_segments = true;      // or begin.segments =
///   source->descriptors() auto sender = handoff::Sender::open(std::move(begin), cut, key);
///   source->send(*sender, connection);
#pragma once

#include "kvpack/base/io.h"
#include "kvpack/handoff/sender.h"
#include "kvpack/muse/dflash_context.h"
#include "kvpack/muse/snapshot.h"

namespace kvpack::muse {

/// Views of a snapshot: no row is copied. The planes live as long as this does.
class HandoffSource {
 public:
  /// @param snapshot  f16; its history is the prompt without its boundary token
  /// @param cut       tokens that the receiver holds: 0, or a multiple of 256 below the position
  /// @param dflash    sent behind the target, whatever the cut
  /// @error kExpectation  validate_snapshot, validate_dflash, `handoff needs f16 planes of 256 elements`,
  ///        `draft context and cache differ in position`; kValidation `delta prefix cut is not a 256-aligned
  ///        cut inside the prompt`
  static Result<HandoffSource> open(CacheSnapshot snapshot, std::uint64_t cut,
                                    std::optional<DflashContext> dflash = std::nullopt);

  std::size_t segment_count() const noexcept { return rows_.size(); }
  std::uint64_t payload_bytes() const noexcept;
  const std::vector<std::uint32_t>& prompt_token_ids() const noexcept { return snapshot_.tokens; }

  /// @pre index < segment_count()
  handoff::SegmentShape shape(std::size_t index) const;
  /// The payload in order: 26 pieces of a tile, one of a draft segment. Views of the planes.
  std::vector<ByteSpan> payload(std::size_t index) const;
  /// All descriptors with their digests, for a declared begin: a pass over every byte.
  std::vector<handoff::SegmentDescriptor> descriptors() const;

  /// Writes the whole transfer: begin, every segment, seal. The answer is the caller's to read.
  /// @param sender  fresh, opened with a begin of this source, deferred or declared
  /// @error  whatever the sender or `out` says
  Status send(handoff::Sender& sender, Append& out) const;

 private:
  HandoffSource(CacheSnapshot snapshot, std::optional<DflashContext> dflash,
                std::vector<handoff::ScheduleRow> rows, std::size_t target_rows)
      : snapshot_(std::move(snapshot)),
        dflash_(std::move(dflash)),
        rows_(std::move(rows)),
        target_rows_(target_rows) {}

  CacheSnapshot snapshot_;
  std::optional<DflashContext> dflash_;
  std::vector<handoff::ScheduleRow> rows_;  ///< The target's, then the draft's.
  std::size_t target_rows_;
};

}  // namespace kvpack::muse
