/// The receiving engine's side of a handoff: what arrives is staged in a detached shadow, tile by tile, and
/// becomes one snapshot. docs/muse-handoff.md §Sink
#pragma once

#include "kvpack/handoff/sink.h"
#include "kvpack/muse/dflash_context.h"
#include "kvpack/muse/live_session.h"
#include "kvpack/store/payload_memory.h"

namespace kvpack::muse {

/// Where a complete transfer goes. The final logits never travel: whoever installs drops those it has, and
/// evaluates the boundary token itself.
class HandoffInstaller {
 public:
  virtual ~HandoffInstaller() = default;

  /// Does everything that can fail, into a detached generation: nothing live changes.
  /// @param dflash  or nullptr; both stay valid until install or drop
  virtual Status prepare([[maybe_unused]] const CacheSnapshot& snapshot,
                         [[maybe_unused]] const DflashContext* dflash) {
    return success();
  }
  /// Makes the draft context live, where there is one, then the snapshot: all or nothing. Row `o` of a window
  /// goes where filling it token by token would have put it, because that order can show in a sum.
  virtual Status install(CacheSnapshot snapshot, std::optional<DflashContext> dflash) = 0;
  /// Gives up what prepare has made, or may have begun to make. Never after an install that succeeded.
  virtual void drop() noexcept {}
};

/// Installs into a live session, which must outlive this.
class SessionInstaller final : public HandoffInstaller {
 public:
  explicit SessionInstaller(LiveSession& session) : session_(&session) {}
  Status prepare(const CacheSnapshot& snapshot, const DflashContext*) override {
    return check_install(snapshot, session_->geometry());
  }
  Status install(CacheSnapshot snapshot, std::optional<DflashContext>) override {
    return session_->install(snapshot);
  }

 private:
  LiveSession* session_;
};

struct HandoffSinkOptions {
  /// Tokens that the receiver puts in front itself, as the begin frame says (ReceiveLoop::begin); 0: none.
  std::uint64_t prefix_cut = 0;
  /// What the receiving session holds, for a cut that is not 0: at least `prefix_cut` tokens, f16.
  std::optional<CacheSnapshot> held{};
  /// The draft model that the receiver runs; nothing: a draft context is ignored, a required one refused.
  std::optional<DflashGeometry> dflash{};
  std::uint64_t max_context_tokens = kMaxContextTokens;
  /// The most that the shadow may take, in bytes. What the held rows take already is not counted.
  std::uint64_t memory_limit_bytes = std::numeric_limits<std::uint64_t>::max();
  std::shared_ptr<PayloadMemory> memory{};  ///< Of the shadow; null: the heap.
};

/// Takes packed tiles of 13 layers and single planes, each row once and in any order, straight into the
/// planes of the shadow. That begin and request belong together is handoff::AdmittingSink's to judge, which
/// the receive loop puts in front. One thread at a time; one transfer after the other, each with its own
/// begin.
///
/// Memory: the planes of the snapshot, the draft context, and one bit for each row of each plane.
class HandoffSink final : public handoff::Sink {
 public:
  /// @param installer  must outlive this
  HandoffSink(HandoffInstaller& installer, HandoffSinkOptions options);
  ~HandoffSink() override;

  /// @error kValidation `required DFlash component needs the combined Muse sink`,
  ///        `required vision context cannot be installed by this sink`,
  ///        `remote prefix is outside the armed context bound`, the rules on a cut;
  ///        kQuota `handoff shadow exceeds the memory limit`; kNoMemory
  Status begin(const handoff::ValidatedBegin& begin) override;
  std::uint64_t max_total_bytes() const noexcept override;
  /// @error kValidation  the rules on tiles, planes and draft segments, docs/muse-handoff.md §Segments
  Status lend(const handoff::SegmentDescriptor& descriptor, std::size_t component_index,
              std::vector<MutableByteSpan>& place) override;
  Status segment_ready(handoff::VerifiedSegment& segment) override;
  /// @error kValidation  docs/muse-handoff.md §Completeness; whatever the installer says
  Status prepare_commit(const handoff::VerifiedSeal& seal) override;
  /// @error kState  nothing is prepared; whatever the installer says
  Result<handoff::CommittedGeneration> commit() override;
  void abort() noexcept override;

 private:
  struct Shadow;
  struct Place;

  Status check_begin(const handoff::BeginManifest& begin) const;
  Status check_held(const handoff::BeginManifest& begin) const;
  Result<Place> place_of(const handoff::SegmentDescriptor& descriptor, std::size_t component_index) const;
  Result<Place> place_of_target(const handoff::SegmentDescriptor& descriptor) const;
  Result<Place> place_of_dflash(const handoff::SegmentDescriptor& descriptor) const;

  HandoffInstaller* installer_;
  HandoffSinkOptions options_;
  std::unique_ptr<Shadow> shadow_;
};

}  // namespace kvpack::muse
