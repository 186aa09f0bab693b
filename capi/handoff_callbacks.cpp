// What a receiving end is given as callbacks: the engine's sink, and the schedule of a delta.
#include "handoff_callbacks.h"

namespace kvpack::capi {

namespace {

constexpr std::uint64_t kSinkV0 = KVPACK_SIZE_UP_TO(kvpack_handoff_sink, abort);

void describe_components(std::span<const Component> given, std::vector<kvpack_handoff_component>& out) {
  out.reserve(given.size());
  for (const Component& component : given)
    out.push_back({.id = component.id.c_str(),
                   .id_size = component.id.size(),
                   .identity_sha256 = from_digest(component.identity_sha256),
                   .kind = from_enum(component.kind),
                   .required = component.required ? 1U : 0U});
}

}  // namespace

BeginView::BeginView(const BeginManifest& begin, std::uint64_t prefix_cut) {
  describe_components(begin.components, components_);
  segments_.reserve(begin.segments.size());
  for (const SegmentDescriptor& segment : begin.segments) segments_.push_back(from_descriptor(segment));
  if (begin.multimodal.has_value()) multimodal_ = from_multimodal(*begin.multimodal);
  view_.struct_size = sizeof(view_);
  view_.transfer_id = begin.transfer_id.c_str();
  view_.transfer_id_size = begin.transfer_id.size();
  view_.generation = begin.generation;
  view_.created_unix_ms = begin.created_unix_ms;
  view_.expires_unix_ms = begin.expires_unix_ms;
  view_.hmac_key_id = begin.hmac.key_id.c_str();
  view_.hmac_key_id_size = begin.hmac.key_id.size();
  view_.hmac_epoch = begin.hmac.epoch;
  view_.identity = from_identity(begin.identity);
  view_.multimodal = begin.multimodal.has_value() ? &multimodal_ : nullptr;
  view_.prompt_token_ids = begin.prompt_token_ids.data();
  view_.prompt_token_count = begin.prompt_token_ids.size();
  view_.components = components_.data();
  view_.component_count = components_.size();
  view_.segments = segments_.empty() ? nullptr : segments_.data();
  view_.segment_count = segments_.size();
  view_.prefix_cut = prefix_cut;
  view_.deferred = begin.deferred_segments ? 1 : 0;
}

Status HandoffCallbackSink::begin(const ValidatedBegin& begin) {
  view_.emplace(begin.manifest(), prefix_cut_);
  committed_.transfer_id = begin.manifest().transfer_id;
  committed_.generation = begin.manifest().generation;
  return run_callback("begin", [&] { return calls_.begin(calls_.user, view_->get(), &room_); });
}

Status HandoffCallbackSink::lend(const SegmentDescriptor& descriptor, std::size_t component_index,
                                 std::vector<MutableByteSpan>& place) {
  if (calls_.lend == nullptr) return success();
  const kvpack_handoff_segment segment = from_descriptor(descriptor);
  kvpack_handoff_place lent(place, descriptor.byte_len);
  KVPACK_TRY(
      run_callback("lend", [&] { return calls_.lend(calls_.user, &segment, component_index, &lent); }));
  if (place.empty() || lent.left == 0) return success();
  return misuse(KVPACK_ERR_CALLBACK, "lent place does not hold the segment").with("callback", "lend");
}

Status HandoffCallbackSink::segment_ready(VerifiedSegment& verified) {
  const kvpack_handoff_segment segment = from_descriptor(verified.descriptor());
  pieces_.clear();
  for (const ByteSpan piece : verified.pieces()) pieces_.push_back({piece.data(), piece.size()});
  ++committed_.installed_segments;
  committed_.installed_bytes += segment.byte_len;
  return run_callback("segment_ready", [&] {
    return calls_.segment_ready(calls_.user, &segment, verified.component_index(), pieces_.data(),
                                pieces_.size(), verified.in_lent_place() ? 1 : 0);
  });
}

Status HandoffCallbackSink::prepare_commit(const VerifiedSeal& verified) {
  const kvpack_handoff_seal seal = from_seal(verified.manifest().core);
  return run_callback("prepare_commit", [&] { return calls_.prepare_commit(calls_.user, &seal); });
}

Result<CommittedGeneration> HandoffCallbackSink::commit() {
  CommittedGeneration committed = committed_;  // Copied first: nothing may fail behind a commit.
  KVPACK_TRY(run_callback("commit", [&] { return calls_.commit(calls_.user); }));
  return committed;
}

void HandoffCallbackSink::abort() noexcept {
  try {
    calls_.abort(calls_.user);
  } catch (...) {  // Thrown by the caller's own code; an abort cannot fail.
  }
}

Result<kvpack_handoff_sink> read_sink(const kvpack_handoff_sink* sink) {
  KVPACK_TRY_ASSIGN(const auto known, read_options(sink, kSinkV0, "sink"));
  if (known.begin == nullptr) return bad_argument("sink.begin", "is NULL");
  if (known.segment_ready == nullptr) return bad_argument("sink.segment_ready", "is NULL");
  if (known.prepare_commit == nullptr) return bad_argument("sink.prepare_commit", "is NULL");
  if (known.commit == nullptr) return bad_argument("sink.commit", "is NULL");
  if (known.abort == nullptr) return bad_argument("sink.abort", "is NULL");
  return known;
}

SpanSchedule make_schedule(kvpack_handoff_schedule_fn callback, void* user) {
  if (callback == nullptr) return nullptr;
  return [callback, user](std::uint64_t position,
                          std::uint64_t cut) -> std::optional<std::vector<ScheduleRow>> {
    kvpack_handoff_schedule schedule;
    const Status given = run_callback("schedule", [&] { return callback(user, position, cut, &schedule); });
    if (!given.has_value()) return std::nullopt;
    return std::move(schedule.rows);
  };
}

kvpack_handoff_offer describe_offer(const BeginFrame& frame,
                                    std::vector<kvpack_handoff_component>& components) {
  const BeginManifest& begin = frame.manifest;
  components.clear();
  describe_components(begin.components, components);
  kvpack_handoff_offer offer{};
  offer.struct_size = sizeof(offer);
  offer.transfer_id = begin.transfer_id.c_str();
  offer.transfer_id_size = begin.transfer_id.size();
  offer.generation = begin.generation;
  offer.created_unix_ms = begin.created_unix_ms;
  offer.expires_unix_ms = begin.expires_unix_ms;
  offer.hmac_key_id = begin.hmac.key_id.c_str();
  offer.hmac_key_id_size = begin.hmac.key_id.size();
  offer.hmac_epoch = begin.hmac.epoch;
  offer.prompt_token_ids = begin.prompt_token_ids.empty() ? nullptr : begin.prompt_token_ids.data();
  offer.prompt_token_count = begin.prompt_token_ids.size();
  offer.prefix_cut = frame.prefix_cut;
  offer.deferred = begin.deferred_segments ? 1 : 0;
  offer.components = components.empty() ? nullptr : components.data();
  offer.component_count = components.size();
  return offer;
}

}  // namespace kvpack::capi
