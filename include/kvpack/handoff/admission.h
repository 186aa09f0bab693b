/// Whether a transfer is the one that was asked for, and the rules on a delta's prefix cut.
/// docs/protocol/handoff.md §Request admission, docs/protocol/delta.md.
#pragma once

#include <functional>

#include "kvpack/handoff/sink.h"

namespace kvpack::handoff {

inline constexpr std::uint64_t kCutAlignmentTokens = 256;

/// One target segment of a span schedule. Its sequence is its place in the schedule.
struct ScheduleRow {
  SegmentRole role = SegmentRole::kAuxiliary;
  std::optional<std::uint32_t> layer;
  std::uint64_t logical_start = 0;
  std::uint64_t logical_count = 0;
  std::string_view element_type;  ///< A string literal.
  std::uint32_t elements_per_token = 0;

  friend bool operator==(const ScheduleRow&, const ScheduleRow&) = default;
};

/// The target segments that transfer tokens [cut, position), in wire order; nothing where there are none. The
/// model's layout supplies it.
using SpanSchedule =
    std::function<std::optional<std::vector<ScheduleRow>>(std::uint64_t position, std::uint64_t cut)>;

/// What the receiving session has asked for.
struct RequestExpectations {
  ExactIdentity identity;
  /// The request without its boundary token (prompt_of_request). Nothing: any prompt, as the seal binds it.
  std::optional<std::vector<std::uint32_t>> prompt_token_ids;
  std::uint64_t max_context_tokens = 0;
  std::optional<MultimodalIdentity> multimodal;
  std::string target_identity_sha256;
  std::optional<std::string> dflash_identity_sha256;  ///< Nothing: no such component may come.
  std::optional<std::string> request_id;              ///< Nothing: any transfer id.
  std::vector<std::uint32_t> held_token_ids;          ///< The session's own history, for a delta.
};

/// What a request expects as prompt: its tokens without the last one, which the receiving session evaluates
/// itself.
/// @error kValidation `remote prefill needs a held boundary token`
Result<std::vector<std::uint32_t>> prompt_of_request(std::span<const std::uint32_t> request_token_ids);

/// Whether a transfer id belongs to the request: it begins with the request id, or lies outside the namespace
/// that request ids are minted in.
/// @param strict  the request id must be the whole transfer id or be followed by `-`
bool request_matches(std::string_view transfer_id, std::string_view request_id, bool strict) noexcept;

/// The admission checks in their order, first violation wins. @error kValidation
Status admit_request(const BeginManifest& begin, std::uint64_t prefix_cut,
                     const RequestExpectations& expected, const SpanSchedule& schedule, bool strict);

/// A cut that is not 0 is aligned and inside the prompt. @error kValidation
Status check_cut(const BeginManifest& begin, std::uint64_t prefix_cut);
/// The declared target segments are the span schedule of the cut. @error kValidation
Status check_declared_schedule(const BeginManifest& begin, std::uint64_t prefix_cut,
                               const SpanSchedule& schedule);

/// Stands in front of an engine's sink: admits the request before the engine sees the begin, and compares the
/// segments of a delta with the span schedule before the engine prepares.
class AdmittingSink final : public Sink {
 public:
  /// @param inner     must outlive this
  /// @param expected  the armed request, or nullptr for a transfer that nobody has armed; must outlive this
  /// @param schedule  without one a delta is refused
  /// @param schedule_optional  without one a delta that nobody has armed is judged by its cut alone
  AdmittingSink(Sink& inner, const RequestExpectations* expected, std::uint64_t prefix_cut,
                SpanSchedule schedule, bool strict, bool schedule_optional = false)
      : inner_(&inner),
        expected_(expected),
        prefix_cut_(prefix_cut),
        schedule_(std::move(schedule)),
        strict_(strict),
        unscheduled_(schedule_optional && expected == nullptr && schedule_ == nullptr) {}

  Status begin(const ValidatedBegin& begin) override;
  std::uint64_t max_total_bytes() const noexcept override { return inner_->max_total_bytes(); }
  Status lend(const SegmentDescriptor& descriptor, std::size_t component_index,
              std::vector<MutableByteSpan>& place) override {
    KVPACK_TRY(passed_on(inner_->lend(descriptor, component_index, place)));
    return passed_on(check_lent_place(descriptor, place));
  }
  Status segment_ready(VerifiedSegment& segment) override;
  Status prepare_commit(const VerifiedSeal& seal) override;
  Result<CommittedGeneration> commit() override { return passed_on(inner_->commit()); }
  void abort() noexcept override { inner_->abort(); }

  /// Whether the latest failure was the engine's and not one of admission.
  bool failed_in_engine() const noexcept { return failed_in_engine_; }

 private:
  template <class T>
  Result<T> passed_on(Result<T> result) {
    failed_in_engine_ = !result.has_value();
    return result;
  }
  Status check_delta() const;

  Sink* inner_;
  const RequestExpectations* expected_;
  std::uint64_t prefix_cut_;
  SpanSchedule schedule_;
  bool strict_;
  bool unscheduled_;  ///< The segments of a delta are compared with nothing.
  bool failed_in_engine_ = false;
  const BeginManifest* begin_ = nullptr;
  /// Of a deferred delta: what must come, how far it has come, and whether anything else came.
  std::optional<std::vector<ScheduleRow>> rows_;
  std::size_t next_row_ = 0;
  bool strayed_ = false;
};

// ---------------------------------------------------------------------------------------------------------

namespace detail {

inline constexpr std::string_view kRequestNamespace = "muser-";

inline bool is_row(const SegmentDescriptor& segment, std::size_t index, const ScheduleRow& row) {
  const SegmentShape& shape = segment.shape;
  return segment.sequence == index && shape.role == row.role && shape.layer == row.layer &&
         shape.logical_start == row.logical_start && shape.logical_count == row.logical_count &&
         shape.element_type == row.element_type && shape.elements_per_token == row.elements_per_token;
}

/// The schedule of a cut that check_cut has passed.
inline std::optional<std::vector<ScheduleRow>> schedule_of(const BeginManifest& begin,
                                                           std::uint64_t prefix_cut,
                                                           const SpanSchedule& schedule) {
  if (schedule == nullptr) return std::nullopt;
  return schedule(begin.prompt_token_ids.size(), prefix_cut);
}

/// Exactly one component of the kind, required, with the identity.
inline bool is_sole_component(const BeginManifest& begin, ComponentKind kind,
                              std::string_view identity_sha256) {
  const auto of_kind = [&](const Component& c) { return c.kind == kind; };
  if (std::ranges::count_if(begin.components, of_kind) != 1) return false;
  const Component& component = *std::ranges::find_if(begin.components, of_kind);
  return component.required && component.identity_sha256 == identity_sha256;
}

inline bool has_component(const BeginManifest& begin, ComponentKind kind) {
  return std::ranges::any_of(begin.components, [&](const Component& c) { return c.kind == kind; });
}

inline Status admit_components(const BeginManifest& begin, const RequestExpectations& expected) {
  if (!is_sole_component(begin, ComponentKind::kTargetKv, expected.target_identity_sha256))
    return invalid_handoff("target cache component identity mismatch");
  const bool dflash_is_right =
      expected.dflash_identity_sha256.has_value()
          ? is_sole_component(begin, ComponentKind::kDflashContext, *expected.dflash_identity_sha256)
          : !has_component(begin, ComponentKind::kDflashContext);
  if (!dflash_is_right) return invalid_handoff("DFlash component identity or requirement mismatch");
  if (has_component(begin, ComponentKind::kVisionContext))
    return invalid_handoff("vision state is represented by the multimodal identity, not a cache component");
  return success();
}

inline Status admit_cut(const BeginManifest& begin, std::uint64_t prefix_cut,
                        const RequestExpectations& expected, const SpanSchedule& schedule) {
  KVPACK_TRY(check_cut(begin, prefix_cut));
  // Inside the prompt, so it fits the platform's sizes.
  const auto cut = static_cast<std::size_t>(prefix_cut);
  const auto& held = expected.held_token_ids;
  if (held.size() < cut || !std::equal(held.begin(), held.begin() + static_cast<std::ptrdiff_t>(cut),
                                       begin.prompt_token_ids.begin()))
    return invalid_handoff("delta prefix cut names a prefix the receiving session does not hold");
  if (begin.deferred_segments) return success();
  return check_declared_schedule(begin, prefix_cut, schedule);
}

}  // namespace detail

inline Result<std::vector<std::uint32_t>> prompt_of_request(
    std::span<const std::uint32_t> request_token_ids) {
  if (request_token_ids.size() < 2)
    return detail::invalid_handoff("remote prefill needs a held boundary token");
  return std::vector<std::uint32_t>(request_token_ids.begin(), request_token_ids.end() - 1);
}

inline bool request_matches(std::string_view transfer_id, std::string_view request_id, bool strict) noexcept {
  if (!transfer_id.starts_with(request_id)) return !transfer_id.starts_with(detail::kRequestNamespace);
  return !strict || transfer_id.size() == request_id.size() || transfer_id[request_id.size()] == '-';
}

inline Status check_cut(const BeginManifest& begin, std::uint64_t prefix_cut) {
  if (prefix_cut % kCutAlignmentTokens != 0 || prefix_cut >= begin.prompt_token_ids.size())
    return detail::invalid_handoff("delta prefix cut is not a 256-aligned cut inside the prompt");
  return success();
}

inline Status check_declared_schedule(const BeginManifest& begin, std::uint64_t prefix_cut,
                                      const SpanSchedule& schedule) {
  const auto refuse = [] {
    return detail::invalid_handoff("declared target schedule is not the span schedule for the prefix cut");
  };
  const auto rows = detail::schedule_of(begin, prefix_cut, schedule);
  if (!rows.has_value()) return refuse();
  ComponentIndex components(begin.components);
  std::size_t next = 0;
  for (const SegmentDescriptor& segment : begin.segments) {
    const auto component = components.find(segment.shape.component_id);
    if (!component.has_value() || begin.components[*component].kind != ComponentKind::kTargetKv) continue;
    if (next == rows->size() || !detail::is_row(segment, next, (*rows)[next])) return refuse();
    ++next;
  }
  if (next != rows->size()) return refuse();
  return success();
}

inline Status admit_request(const BeginManifest& begin, std::uint64_t prefix_cut,
                            const RequestExpectations& expected, const SpanSchedule& schedule, bool strict) {
  if (begin.generation == 0) return detail::invalid_handoff("handoff generation zero is never installable");
  if (expected.request_id.has_value() && !request_matches(begin.transfer_id, *expected.request_id, strict))
    return detail::invalid_handoff("handoff transfer id names a different request");
  if (begin.identity != expected.identity)
    return detail::invalid_handoff("model/tokenizer/template/adapter identity mismatch");
  if (expected.prompt_token_ids.has_value() && begin.prompt_token_ids != *expected.prompt_token_ids)
    return detail::invalid_handoff("remote prompt tokens differ from the exact request");
  if (begin.prompt_token_ids.empty() || begin.prompt_token_ids.size() > expected.max_context_tokens)
    return detail::invalid_handoff("remote prefix is outside the armed context bound");
  if (begin.multimodal != expected.multimodal)
    return detail::invalid_handoff("multimodal identity differs from the armed request");
  KVPACK_TRY(detail::admit_components(begin, expected));
  if (prefix_cut == 0) return success();
  return detail::admit_cut(begin, prefix_cut, expected, schedule);
}

inline Status AdmittingSink::begin(const ValidatedBegin& begin) {
  begin_ = &begin.manifest();
  if (expected_ != nullptr) KVPACK_TRY(admit_request(*begin_, prefix_cut_, *expected_, schedule_, strict_));
  // A cut that is out of range has no schedule and is refused before the engine prepares.
  if (prefix_cut_ != 0 && begin_->deferred_segments && check_cut(*begin_, prefix_cut_).has_value())
    rows_ = detail::schedule_of(*begin_, prefix_cut_, schedule_);
  return passed_on(inner_->begin(begin));
}

inline Status AdmittingSink::segment_ready(VerifiedSegment& segment) {
  const Component& component = begin_->components[segment.component_index()];
  if (rows_.has_value() && component.kind == ComponentKind::kTargetKv) {
    const SegmentShape& shape = segment.descriptor().shape;
    const bool expected = next_row_ < rows_->size() && shape.role == (*rows_)[next_row_].role &&
                          shape.layer == (*rows_)[next_row_].layer &&
                          shape.logical_start == (*rows_)[next_row_].logical_start &&
                          shape.logical_count == (*rows_)[next_row_].logical_count;
    strayed_ = strayed_ || !expected;
    ++next_row_;
  }
  return passed_on(inner_->segment_ready(segment));
}

inline Status AdmittingSink::check_delta() const {
  KVPACK_TRY(check_cut(*begin_, prefix_cut_));
  if (unscheduled_) return success();
  // An armed request's declared schedule was compared when it began.
  if (!begin_->deferred_segments)
    return expected_ != nullptr ? success() : check_declared_schedule(*begin_, prefix_cut_, schedule_);
  if (!rows_.has_value()) return detail::invalid_handoff("delta prefix cut cannot form a span schedule");
  if (strayed_ || next_row_ != rows_->size())
    return detail::invalid_handoff("deferred target stream is not the span schedule for the prefix cut");
  return success();
}

inline Status AdmittingSink::prepare_commit(const VerifiedSeal& seal) {
  if (prefix_cut_ != 0) {
    if (auto delta = check_delta(); !delta.has_value()) {
      failed_in_engine_ = false;
      return delta;
    }
  }
  return passed_on(inner_->prepare_commit(seal));
}

}  // namespace kvpack::handoff
