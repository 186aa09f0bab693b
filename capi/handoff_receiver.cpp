// Handoff V2, the consumer's side: the receive loop with the caller's sink, ledger and schedule behind it.
#include <set>
#include <stdexcept>

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

namespace {

constexpr std::uint64_t kSinkV0 = KVPACK_SIZE_UP_TO(kvpack_handoff_sink, abort);
constexpr std::uint64_t kLedgerV0 = KVPACK_SIZE_UP_TO(kvpack_handoff_ledger, reserve);
constexpr std::uint64_t kReceiverOptionsV0 = KVPACK_SIZE_UP_TO(kvpack_handoff_receiver_options, reserved);
constexpr std::uint64_t kOfferV0 = KVPACK_SIZE_UP_TO(kvpack_handoff_offer, reserved);
constexpr std::uint64_t kExpectationsV0 = KVPACK_SIZE_UP_TO(kvpack_handoff_expectations, held_token_count);
// The size of the pointer is meant. NOLINTNEXTLINE(bugprone-sizeof-expression)
constexpr std::uint64_t kAcceptOptionsV0 = KVPACK_SIZE_UP_TO(kvpack_handoff_accept_options, expected);

std::uint32_t from_step(ReceiveStep step) noexcept {
  switch (step) {
    case ReceiveStep::kMore: return KVPACK_HANDOFF_MORE;
    case ReceiveStep::kBegin: return KVPACK_HANDOFF_BEGIN;
    case ReceiveStep::kCommitted: return KVPACK_HANDOFF_COMMITTED;
  }
  return KVPACK_HANDOFF_MORE;
}

/// A validated begin as the caller's sink sees it. Its texts are the begin's own.
class BeginView {
 public:
  BeginView(const BeginManifest& begin, std::uint64_t prefix_cut) {
    for (const Component& component : begin.components)
      components_.push_back({.id = component.id.c_str(),
                             .id_size = component.id.size(),
                             .identity_sha256 = from_digest(component.identity_sha256),
                             .kind = from_enum(component.kind),
                             .required = component.required ? 1U : 0U});
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
  BeginView(const BeginView&) = delete;
  BeginView& operator=(const BeginView&) = delete;

  const kvpack_handoff_begin* get() const noexcept { return &view_; }

 private:
  std::vector<kvpack_handoff_component> components_{};
  std::vector<kvpack_handoff_segment> segments_{};
  kvpack_handoff_multimodal multimodal_{};
  kvpack_handoff_begin view_{};
};

class HandoffCallbackSink final : public Sink {
 public:
  HandoffCallbackSink(const kvpack_handoff_sink& calls, std::uint64_t prefix_cut) noexcept
      : calls_(calls), prefix_cut_(prefix_cut) {}

  Status begin(const ValidatedBegin& begin) override {
    view_.emplace(begin.manifest(), prefix_cut_);
    committed_.transfer_id = begin.manifest().transfer_id;
    committed_.generation = begin.manifest().generation;
    return run_callback("begin", [&] { return calls_.begin(calls_.user, view_->get(), &room_); });
  }

  std::uint64_t max_total_bytes() const noexcept override { return room_; }

  Status lend(const SegmentDescriptor& descriptor, std::size_t component_index,
              std::vector<MutableByteSpan>& place) override {
    if (calls_.lend == nullptr) return success();
    const kvpack_handoff_segment segment = from_descriptor(descriptor);
    kvpack_handoff_place lent(place, descriptor.byte_len);
    KVPACK_TRY(
        run_callback("lend", [&] { return calls_.lend(calls_.user, &segment, component_index, &lent); }));
    if (place.empty() || lent.left == 0) return success();
    return misuse(KVPACK_ERR_CALLBACK, "lent place does not hold the segment").with("callback", "lend");
  }

  Status segment_ready(VerifiedSegment& verified) override {
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

  Status prepare_commit(const VerifiedSeal& verified) override {
    const kvpack_handoff_seal seal = from_seal(verified.manifest().core);
    return run_callback("prepare_commit", [&] { return calls_.prepare_commit(calls_.user, &seal); });
  }

  Result<CommittedGeneration> commit() override {
    CommittedGeneration committed = committed_;  // Copied first: nothing may fail behind a commit.
    KVPACK_TRY(run_callback("commit", [&] { return calls_.commit(calls_.user); }));
    return committed;
  }

  void abort() noexcept override {
    try {
      calls_.abort(calls_.user);
    } catch (...) {  // Thrown by the caller's own code; an abort cannot fail.
    }
  }

 private:
  kvpack_handoff_sink calls_;
  std::uint64_t prefix_cut_;
  std::optional<BeginView> view_{};
  std::uint64_t room_ = std::numeric_limits<std::uint64_t>::max();
  CommittedGeneration committed_{};
  std::vector<kvpack_span> pieces_{};
};

class CallbackLedger final : public ReplayLedger {
 public:
  explicit CallbackLedger(const kvpack_handoff_ledger& calls) noexcept : calls_(calls) {}

  Status admit(std::string_view key_id, std::uint64_t epoch, std::uint64_t generation) override {
    return ask("admit", calls_.admit, key_id, epoch, generation);
  }
  Status reserve(std::string_view key_id, std::uint64_t epoch, std::uint64_t generation) override {
    return ask("reserve", calls_.reserve, key_id, epoch, generation);
  }

 private:
  Status ask(std::string_view name, decltype(kvpack_handoff_ledger::admit) call, std::string_view key_id,
             std::uint64_t epoch, std::uint64_t generation) {
    Status answer = run_callback(
        name, [&] { return call(calls_.user, key_id.data(), key_id.size(), epoch, generation); });
    if (answer.has_value()) return answer;
    // These two have texts of the format, which a refusal gives to the producer.
    if (answer.error().code == ErrorCode::kReplay) answer.error().message = "replayed or stale generation";
    if (answer.error().code == ErrorCode::kZeroGeneration)
      answer.error().message = "handoff generation zero is never installable";
    return answer;
  }

  kvpack_handoff_ledger calls_;
};

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

}  // namespace

}  // namespace kvpack::capi

using namespace kvpack;
using namespace kvpack::capi;

kvpack_status kvpack_handoff_place_add(kvpack_handoff_place* place, void* data, uint64_t size,
                                       kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(place, "place"));
    KVPACK_TRY_ASSIGN(const MutableByteSpan span, lend_bytes(data, size, "data"));
    if (size > place->left)
      return fail(ErrorCode::kLimit, "more bytes than the segment has")
          .with("expected", std::to_string(place->left))
          .with("found", std::to_string(size));
    place->spans->push_back(span);
    place->left -= size;
    return success();
  });
}

kvpack_status kvpack_handoff_schedule_add(kvpack_handoff_schedule* schedule, const kvpack_handoff_shape* row,
                                          kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(schedule, "schedule"));
    KVPACK_TRY(check_pointer(row, "row"));
    KVPACK_TRY(check_reserved(row->reserved));
    if (row->component_id != nullptr || row->component_id_size != 0)
      return bad_argument("component_id", "must be NULL");
    ScheduleRow made;
    KVPACK_TRY_ASSIGN(made.role, read_enum<SegmentRole>(row->role, KVPACK_ROLE_AUXILIARY, "role"));
    KVPACK_TRY_ASSIGN(made.layer, read_layer(*row));
    made.logical_start = row->logical_start;
    made.logical_count = row->logical_count;
    KVPACK_TRY_ASSIGN(made.element_type, read_element_type(row->dtype));
    made.elements_per_token = row->elements_per_token;
    schedule->rows.push_back(made);
    return success();
  });
}

struct kvpack_handoff_receiver final : Handle<handle_tag("KVhandrx")> {
  kvpack_handoff_receiver(ReceivePolicy policy, std::vector<std::shared_ptr<const MacKey>> with, bool refuses)
      : keys(std::move(with)), recording(policy.recorded), refusals(refuses), loop(std::move(policy)) {}

  std::vector<std::shared_ptr<const MacKey>> keys;
  bool recording;
  bool refusals;
  bool busy = false;
  bool committed = false;
  std::optional<CallbackLedger> ledger{};
  std::optional<RequestExpectations> expected{};
  std::optional<HandoffCallbackSink> sink{};
  ReceiveLoop loop;  ///< Aborts the sink when it dies, so it dies before it.
  std::optional<Error> failure{};
  Bytes refusal{};
};

namespace {

/// Ends the transfer, and makes what the producer may be told of it.
void end_with(kvpack_handoff_receiver& receiver, const Error& failure) {
  receiver.loop.abort(failure);
  receiver.failure = failure;
  // Memory may run out behind the commit: then there is nothing to refuse.
  const bool is_live = !receiver.loop.committed().transfer_id.empty();
  if (!receiver.refusals || receiver.loop.reservation_asked() || is_live) return;
  auto frame = encode_refusal_frame(make_refusal(failure, receiver.loop.failed_in_engine()));
  if (frame.has_value()) receiver.refusal = *std::move(frame);
}

/// Runs one call of the loop. However it fails, the sink has been aborted and the failure is kept.
template <class Call>
Result<ReceiveStep> drive(kvpack_handoff_receiver& receiver, Call&& call) {
  if (receiver.failure.has_value()) return *receiver.failure;
  const BusyScope busy(receiver.busy);
  try {
    Result<ReceiveStep> step = call();
    if (!step.has_value()) {
      end_with(receiver, step.error());
    } else if (*step == ReceiveStep::kCommitted) {
      receiver.committed = true;
    }
    return step;
  } catch (const std::bad_alloc&) {
    end_with(receiver, fail(ErrorCode::kNoMemory, "out of memory"));
  } catch (const std::length_error&) {  // A payload within the caller's bounds and beyond any memory.
    end_with(receiver, fail(ErrorCode::kNoMemory, "out of memory"));
  } catch (...) {
    end_with(receiver, fail(ErrorCode::kInternal, "internal error"));
  }
  return *receiver.failure;
}

Status check_receiver(kvpack_handoff_receiver* receiver) {
  KVPACK_TRY(check_handle(receiver, "receiver"));
  return check_idle(receiver->busy);
}

TimeRules to_times(const kvpack_handoff_receiver_options& options) {
  TimeRules times;
  if (options.max_clock_skew_ms != 0) times.max_clock_skew_ms = options.max_clock_skew_ms;
  if (options.max_lifetime_ms != 0) times.max_lifetime_ms = options.max_lifetime_ms;
  if (options.started_unix_ms != 0) times.started_unix_ms = options.started_unix_ms;
  return times;
}

/// @param keys  keep what the policy points to
Result<ReceivePolicy> read_policy(const kvpack_handoff_receiver_options& options,
                                  std::vector<std::shared_ptr<const MacKey>>& keys) {
  KVPACK_TRY(check_reserved(options.reserved));
  ReceivePolicy policy;
  KVPACK_TRY_ASSIGN(const auto given, read_array(options.keys, options.key_count, "keys"));
  std::set<std::string_view> ids;
  for (const kvpack_handoff_accepted_key& accepted : given) {
    KVPACK_TRY_ASSIGN(const std::string_view id, read_text(accepted.key_id, accepted.key_id_size, "key_id"));
    KVPACK_TRY(check_handle(accepted.key, "key"));
    if (!ids.insert(id).second) return bad_argument("keys", "name a key id twice");
    keys.push_back(accepted.key->key);
    policy.keys.push_back({std::string(id), accepted.minimum_epoch, keys.back().get()});
  }
  KVPACK_TRY_ASSIGN(const bool lenient, read_flag(options.lenient, "lenient"));
  policy.strict = !lenient;
  KVPACK_TRY_ASSIGN(const bool skip_times, read_flag(options.skip_times, "skip_times"));
  policy.times = skip_times ? std::nullopt : std::optional<TimeRules>(to_times(options));
  if (options.max_segments != 0) policy.max_segments = options.max_segments;
  if (options.max_total_bytes != 0) policy.max_total_bytes = options.max_total_bytes;
  KVPACK_TRY_ASSIGN(policy.recorded, read_flag(options.recording, "recording"));
  policy.frame_limits = read_frame_limits(options.max_header_bytes, options.max_payload_bytes);
  policy.schedule = make_schedule(options.schedule, options.schedule_user);
  KVPACK_TRY_ASSIGN(policy.schedule_optional, read_flag(options.unscheduled_deltas, "unscheduled_deltas"));
  return policy;
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

Result<std::optional<CallbackLedger>> read_ledger(const kvpack_handoff_ledger* ledger, bool recording) {
  if (ledger == nullptr && recording) return std::optional<CallbackLedger>();
  KVPACK_TRY_ASSIGN(const auto known, read_options(ledger, kLedgerV0, "ledger"));
  if (known.admit == nullptr) return bad_argument("ledger.admit", "is NULL");
  if (known.reserve == nullptr) return bad_argument("ledger.reserve", "is NULL");
  return std::optional<CallbackLedger>(known);
}

Result<std::optional<RequestExpectations>> read_expectations(const kvpack_handoff_expectations* expected) {
  if (expected == nullptr) return std::optional<RequestExpectations>();
  KVPACK_TRY_ASSIGN(const auto known, read_options(expected, kExpectationsV0, "expected"));
  if (known.max_context_tokens == 0) return bad_argument("max_context_tokens", "must not be 0");
  RequestExpectations out;
  KVPACK_TRY_ASSIGN(out.identity, read_identity(known.identity));
  KVPACK_TRY_ASSIGN(auto prompt,
                    read_tokens(known.prompt_token_ids, known.prompt_token_count, "prompt_token_ids"));
  if (known.prompt_token_ids != nullptr) out.prompt_token_ids = std::move(prompt);
  out.max_context_tokens = known.max_context_tokens;
  out.multimodal = to_multimodal(known.multimodal);
  out.target_identity_sha256 = to_digest(known.target_identity_sha256);
  if (known.dflash_identity_sha256 != nullptr)
    out.dflash_identity_sha256 = to_digest(*known.dflash_identity_sha256);
  KVPACK_TRY_ASSIGN(std::string request_id,
                    read_string(known.request_id, known.request_id_size, "request_id"));
  if (known.request_id != nullptr) out.request_id = std::move(request_id);
  KVPACK_TRY_ASSIGN(out.held_token_ids,
                    read_tokens(known.held_token_ids, known.held_token_count, "held_token_ids"));
  return std::optional<RequestExpectations>(std::move(out));
}

Status accept_offer(kvpack_handoff_receiver& receiver, const kvpack_handoff_accept_options& options) {
  if (receiver.failure.has_value()) return *receiver.failure;
  const BeginFrame* begin = receiver.loop.begin();
  if (begin == nullptr) return wrong_state("no begin waits to be accepted");
  KVPACK_TRY_ASSIGN(const kvpack_handoff_sink sink, read_sink(options.sink));
  KVPACK_TRY_ASSIGN(receiver.ledger, read_ledger(options.ledger, receiver.recording));
  KVPACK_TRY_ASSIGN(receiver.expected, read_expectations(options.expected));
  receiver.sink.emplace(sink, begin->prefix_cut);
  const auto step = drive(receiver, [&]() -> Result<ReceiveStep> {
    KVPACK_TRY(receiver.loop.accept_begin(options.now_unix_ms, *receiver.sink,
                                          receiver.ledger ? &*receiver.ledger : nullptr,
                                          receiver.expected ? &*receiver.expected : nullptr));
    return ReceiveStep::kMore;
  });
  if (!step.has_value()) return step.error();
  return success();
}

Result<std::string_view> read_reason(kvpack_status reason, const char* text) {
  if (reason < KVPACK_ERR_UNKNOWN_ENUM || kvpack_status_name(reason) == nullptr)
    return bad_argument("reason", "is no code from 100 on");
  if (text != nullptr) return std::string_view(text);
  if (reason == KVPACK_ERR_CANCELLED) return std::string_view("live handoff cancelled");
  if (reason == KVPACK_ERR_DEADLINE_EXCEEDED) return std::string_view("live handoff deadline exceeded");
  return bad_argument("text", "is NULL");
}

}  // namespace

kvpack_status kvpack_handoff_receiver_new(kvpack_handoff_receiver** out,
                                          const kvpack_handoff_receiver_options* options,
                                          kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_pointer(out, "out"));
    KVPACK_TRY_ASSIGN(const auto known, read_options(options, kReceiverOptionsV0, "options"));
    KVPACK_TRY_ASSIGN(const bool refusals, read_flag(known.refusals, "refusals"));
    std::vector<std::shared_ptr<const MacKey>> keys;
    KVPACK_TRY_ASSIGN(ReceivePolicy policy, read_policy(known, keys));
    *out = new kvpack_handoff_receiver(std::move(policy), std::move(keys), refusals);
    return success();
  });
}

kvpack_status kvpack_handoff_receiver_push(kvpack_handoff_receiver* receiver, uint32_t* step, uint64_t* used,
                                           const void* data, uint64_t size, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_receiver(receiver));
    KVPACK_TRY(check_pointer(step, "step"));
    KVPACK_TRY(check_pointer(used, "used"));
    KVPACK_TRY_ASSIGN(const ByteSpan bytes, read_bytes(data, size, "data"));
    ByteSpan rest = bytes;
    KVPACK_TRY_ASSIGN(const ReceiveStep reached, drive(*receiver, [&] {
                        return rest.empty() ? receiver->loop.advance(0) : receiver->loop.push(rest);
                      }));
    *step = from_step(reached);
    *used = bytes.size() - rest.size();
    return success();
  });
}

kvpack_status kvpack_handoff_receiver_want(kvpack_handoff_receiver* receiver, uint8_t** place,
                                           uint64_t* place_size, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_receiver(receiver));
    KVPACK_TRY(check_pointer(place, "place"));
    KVPACK_TRY(check_pointer(place_size, "place_size"));
    const MutableByteSpan wanted = receiver->loop.want();
    *place = wanted.empty() ? nullptr : wanted.data();
    *place_size = wanted.size();
    return success();
  });
}

kvpack_status kvpack_handoff_receiver_advance(kvpack_handoff_receiver* receiver, uint32_t* step,
                                              uint64_t size, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_receiver(receiver));
    KVPACK_TRY(check_pointer(step, "step"));
    // Where nothing is wanted, the answer does not depend on the size.
    const std::size_t room = receiver->loop.want().size();
    if (room != 0 && size > room) return bad_argument("size", "is more than the place holds");
    KVPACK_TRY_ASSIGN(const ReceiveStep reached, drive(*receiver, [&] {
                        return receiver->loop.advance(room == 0 ? 0 : static_cast<std::size_t>(size));
                      }));
    *step = from_step(reached);
    return success();
  });
}

kvpack_status kvpack_handoff_receiver_end(kvpack_handoff_receiver* receiver, uint32_t* step,
                                          kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_receiver(receiver));
    KVPACK_TRY(check_pointer(step, "step"));
    KVPACK_TRY_ASSIGN(const ReceiveStep reached,
                      drive(*receiver, [&] { return receiver->loop.end_of_stream(); }));
    *step = from_step(reached);
    return success();
  });
}

kvpack_status kvpack_handoff_receiver_offer(const kvpack_handoff_receiver* receiver,
                                            kvpack_handoff_offer* out, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(receiver, "receiver"));
    KVPACK_TRY(check_idle(receiver->busy));
    KVPACK_TRY_ASSIGN(const auto output, OutputStruct<kvpack_handoff_offer>::check(out, kOfferV0, "out"));
    const BeginFrame* frame = receiver->loop.begin();
    if (frame == nullptr || receiver->failure.has_value())
      return wrong_state("no begin waits to be accepted");
    const BeginManifest& begin = frame->manifest;
    kvpack_handoff_offer offer{};
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
    offer.prefix_cut = frame->prefix_cut;
    offer.deferred = begin.deferred_segments ? 1 : 0;
    output.fill(offer);
    return success();
  });
}

kvpack_status kvpack_handoff_receiver_accept(kvpack_handoff_receiver* receiver,
                                             const kvpack_handoff_accept_options* options,
                                             kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_receiver(receiver));
    KVPACK_TRY_ASSIGN(const auto known, read_options(options, kAcceptOptionsV0, "options"));
    return accept_offer(*receiver, known);
  });
}

kvpack_status kvpack_handoff_receiver_abort(kvpack_handoff_receiver* receiver, kvpack_status reason,
                                            const char* text, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_receiver(receiver));
    KVPACK_TRY_ASSIGN(const std::string_view words, read_reason(reason, text));
    if (receiver->failure.has_value() || receiver->committed) return success();
    const BusyScope busy(receiver->busy);
    end_with(*receiver, fail(static_cast<ErrorCode>(reason), std::string(words)));
    return success();
  });
}

const uint8_t* kvpack_handoff_receiver_reply(const kvpack_handoff_receiver* receiver, uint64_t* reply_size) {
  if (!is_live(receiver) || reply_size == nullptr) return nullptr;
  const Bytes& reply = receiver->committed ? receiver->loop.ack_frame() : receiver->refusal;
  *reply_size = reply.size();
  return reply.empty() ? nullptr : reply.data();
}

uint64_t kvpack_handoff_receiver_segment_count(const kvpack_handoff_receiver* receiver) {
  return is_live(receiver) ? receiver->loop.segment_count() : 0;
}

uint64_t kvpack_handoff_receiver_total_bytes(const kvpack_handoff_receiver* receiver) {
  return is_live(receiver) ? receiver->loop.total_bytes() : 0;
}

void kvpack_handoff_receiver_free(kvpack_handoff_receiver* receiver) {
  free_handle(receiver);
}
