// Handoff V2, the consumer's side: the receive loop with the caller's sink, ledger and schedule behind it.
#include <set>
#include <stdexcept>

#include "handoff_callbacks.h"
#include "kvpack/crypto/sha256_machine.h"

namespace kvpack::capi {

namespace {

constexpr std::uint64_t kLedgerV0 = KVPACK_SIZE_UP_TO(kvpack_handoff_ledger, reserve);
constexpr std::uint64_t kReceiverOptionsV0 = KVPACK_SIZE_UP_TO(kvpack_handoff_receiver_options, reserved);
constexpr std::uint64_t kOfferV0 = KVPACK_SIZE_UP_TO(kvpack_handoff_offer, component_count);
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
  mutable std::vector<kvpack_handoff_component> offered{};  ///< What the latest offer points to.
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
  policy.sha256 = &machine_sha256_kernels();
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
    output.fill(describe_offer(*frame, receiver->offered));
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
  if (reply_size != nullptr) *reply_size = 0;
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
