/// The contract between a receiver and the engine that installs what is received.
/// docs/protocol/handoff.md §Sink.
#pragma once

#include "kvpack/handoff/seal.h"

namespace kvpack::handoff {

/// What a commit has made live.
struct CommittedGeneration {
  std::string transfer_id;
  std::uint64_t generation = 0;
  std::uint32_t installed_segments = 0;
  std::uint64_t installed_bytes = 0;

  friend bool operator==(const CommittedGeneration&, const CommittedGeneration&) = default;
};

/// A detached shadow of the state that is being received. Nothing live changes before `commit`; after any
/// failure the previous generation is live and untouched. Calls come from one thread at a time, in this
/// order: begin, then for each segment lend and segment_ready, then prepare_commit, then commit. `abort`
/// comes at most once, at any point behind a successful begin, and never after a successful commit.
class Sink {
 public:
  virtual ~Sink() = default;

  /// Opens the shadow. May refuse, and then cleans up itself: a failed begin is not followed by abort.
  /// @param begin  valid until commit or abort has returned
  virtual Status begin(const ValidatedBegin& begin) = 0;

  /// The most payload bytes that the shadow has room for, asked once after begin.
  virtual std::uint64_t max_total_bytes() const noexcept { return std::numeric_limits<std::uint64_t>::max(); }

  /// Lends the place that the payload of the segment is received into: spans, in payload order, whose sizes
  /// sum to descriptor.byte_len. They are written before the payload is known to be good, so their content is
  /// garbage until segment_ready. Lending nothing gives the segment a buffer of the library's.
  /// @param component_index  place of the descriptor's component in the begin
  /// @param place  empty; filled by the sink
  virtual Status lend([[maybe_unused]] const SegmentDescriptor& descriptor,
                      [[maybe_unused]] std::size_t component_index,
                      [[maybe_unused]] std::vector<MutableByteSpan>& place) {
    return success();
  }

  /// Stages one segment whose length and digest are right. In deferred mode the descriptor itself is vouched
  /// for only by the transport until the seal has verified.
  virtual Status segment_ready(VerifiedSegment& segment) = 0;

  /// Does everything that can still fail: completeness, allocation, uploads. Nothing live changes.
  virtual Status prepare_commit(const VerifiedSeal& seal) = 0;

  /// Makes the shadow live, all or nothing. The only call that changes live state.
  virtual Result<CommittedGeneration> commit() = 0;

  /// Drops the whole shadow. Cannot fail.
  virtual void abort() noexcept = 0;
};

/// What lend has given: nothing, or exactly the segment's size. @error kInternal
inline Status check_lent_place(const SegmentDescriptor& descriptor, std::span<const MutableByteSpan> place) {
  if (place.empty()) return success();
  std::uint64_t sum = 0;
  for (const MutableByteSpan span : place) sum = detail::saturating_add(sum, span.size());
  if (sum != descriptor.byte_len) return fail(ErrorCode::kInternal, "lent place does not hold the segment");
  return success();
}

}  // namespace kvpack::handoff
