/// The caller's side of a receiving end behind callbacks: where segments go, and what a delta consists of.
#pragma once

#include "handoff_values.h"

struct kvpack_handoff_place final : kvpack::capi::Handle<kvpack::capi::handle_tag("KVplace")> {
  kvpack_handoff_place(std::vector<kvpack::MutableByteSpan>& into, std::uint64_t bytes) noexcept
      : spans(&into), left(bytes) {}
  std::vector<kvpack::MutableByteSpan>* spans;
  std::uint64_t left;
};

struct kvpack_handoff_schedule final : kvpack::capi::Handle<kvpack::capi::handle_tag("KVsched")> {
  std::vector<kvpack::handoff::ScheduleRow> rows{};
};

namespace kvpack::capi {

/// A validated begin as the caller's sink sees it. Its texts are the begin's own.
class BeginView {
 public:
  BeginView(const BeginManifest& begin, std::uint64_t prefix_cut);
  BeginView(const BeginView&) = delete;
  BeginView& operator=(const BeginView&) = delete;

  const kvpack_handoff_begin* get() const noexcept { return &view_; }

 private:
  std::vector<kvpack_handoff_component> components_{};
  std::vector<kvpack_handoff_segment> segments_{};
  kvpack_handoff_multimodal multimodal_{};
  kvpack_handoff_begin view_{};
};

/// The caller's sink.
class HandoffCallbackSink final : public Sink {
 public:
  HandoffCallbackSink(const kvpack_handoff_sink& calls, std::uint64_t prefix_cut) noexcept
      : calls_(calls), prefix_cut_(prefix_cut) {}

  Status begin(const ValidatedBegin& begin) override;
  std::uint64_t max_total_bytes() const noexcept override { return room_; }
  Status lend(const SegmentDescriptor& descriptor, std::size_t component_index,
              std::vector<MutableByteSpan>& place) override;
  Status segment_ready(VerifiedSegment& verified) override;
  Status prepare_commit(const VerifiedSeal& verified) override;
  Result<CommittedGeneration> commit() override;
  void abort() noexcept override;

 private:
  kvpack_handoff_sink calls_;
  std::uint64_t prefix_cut_;
  std::optional<BeginView> view_{};
  std::uint64_t room_ = std::numeric_limits<std::uint64_t>::max();
  CommittedGeneration committed_{};
  std::vector<kvpack_span> pieces_{};
};

/// @error INVALID_ARGUMENT a callback that is needed is NULL; STRUCT_SIZE
Result<kvpack_handoff_sink> read_sink(const kvpack_handoff_sink* sink);

/// NULL gives no schedule.
SpanSchedule make_schedule(kvpack_handoff_schedule_fn callback, void* user);

/// A begin that nobody has judged. Its texts are the begin's own.
/// @param components  keeps what the result points to
kvpack_handoff_offer describe_offer(const BeginFrame& frame,
                                    std::vector<kvpack_handoff_component>& components);

}  // namespace kvpack::capi
