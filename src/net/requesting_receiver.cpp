#include "kvpack/net/requesting_receiver.h"

#include <condition_variable>
#include <mutex>
#include <thread>

#include "net/config_error.h"
#include "net/start_thread.h"

namespace kvpack::net {

namespace {

constexpr std::string_view kRefusalPhase = "receiver refusal";
constexpr std::string_view kControlPhase = "producer control channel";
constexpr std::string_view kAcceptPhase = "waiting for the producer connection";
constexpr std::string_view kTransferPhase = "mid-transfer";

Error in_phase(Error error, std::string_view phase) {
  return std::move(error).with("phase", std::string(phase));
}

std::string_view phase_of(AttemptEnd end) noexcept {
  switch (end) {
    case AttemptEnd::kCommitted:
    case AttemptEnd::kExcess:
    case AttemptEnd::kBusy:
    case AttemptEnd::kStopped: return kRefusalPhase;
    case AttemptEnd::kHandshake:
    case AttemptEnd::kBegin:
    case AttemptEnd::kVerify:
    case AttemptEnd::kLedger:
    case AttemptEnd::kCount: return "producer verification";
    case AttemptEnd::kTransfer: return kTransferPhase;
    case AttemptEnd::kInstall: return "engine install";
  }
  return kRefusalPhase;
}

/// What is known of a request while it waits. Under the mutex of its owner.
struct ArmedRequest {
  std::string id;
  handoff::RequestExpectations expected;
  bool is_closed = false;    ///< Nothing is admitted any more.
  bool is_admitted = false;  ///< Its transfer runs, and uses the host's sink and `expected`.
  std::uint64_t admitted_ns = 0;
  std::optional<Error> refused_by_host;
  std::optional<AttemptReceipt> receipt;         ///< Its transfer has ended.
  std::optional<Result<ControlResponse>> heard;  ///< On the control stream, after `accepted`.
  std::uint64_t dropped = 0;
  std::string last_dropped;
  std::uint64_t changes = 0;
};

Error nobody_came(const ArmedRequest& armed) {
  std::string text = "timed out waiting for the GX10 producer";
  if (armed.dropped != 0)
    text += " (dropped " + std::to_string(armed.dropped) + " stale connections, last: " + armed.last_dropped +
            ")";
  return in_phase(fail(ErrorCode::kTimeout, std::move(text)), kAcceptPhase);
}

Error receiver_is_gone() {
  return fail(ErrorCode::kState, "receiver has ended by an exception");
}

/// What the control stream has said before any transfer came.
Error judge_heard(const Result<ControlResponse>& heard) {
  if (heard.has_value() && heard->status == ControlStatus::kFailed)
    return in_phase(fail(ErrorCode::kControl, *heard->error).with("refused_by", "producer"), kControlPhase);
  if (heard.has_value() || heard.error().code == ErrorCode::kIo)
    return in_phase(fail(ErrorCode::kControl, "GX10 producer closed the control stream"), kControlPhase);
  return in_phase(heard.error(), kControlPhase);
}

}  // namespace

struct RequestingReceiver::State final : ReceiverHost {
  State(FileSystem& file_system, const Clock& seam, ReceiverConfig enrolment, ReceiverHost& program)
      : fs(&file_system), clock(&seam), config(std::move(enrolment)), host(&program) {}
  ~State() override {
    if (receiver != nullptr) receiver->stop();
  }

  FileSystem* fs;
  const Clock* clock;
  ReceiverConfig config;
  ReceiverHost* host;
  std::mutex lease;  // of the one request
  std::mutex mutex;  // of what follows
  std::condition_variable_any changed;
  std::optional<ArmedRequest> armed;
  bool is_gone = false;  ///< The receiver's thread has ended by itself.
  std::unique_ptr<Receiver> receiver;
  std::jthread thread;  // Last: it ends before what it uses goes.

  void note_change() {
    ++armed->changes;
    changed.notify_all();
  }

  // ---- ReceiverHost, called by the receiver's thread

  Result<Admission> admit(const handoff::BeginFrame& begin) override {
    const std::string& transfer_id = begin.manifest.transfer_id;
    {
      const std::scoped_lock guard(mutex);
      // One that was admitted is the request's only one.
      if (!armed || armed->is_closed || armed->is_admitted || armed->refused_by_host ||
          !handoff::request_matches(transfer_id, armed->id, true))
        return fail(ErrorCode::kValidation, "transfer " +
                                                transfer_id.substr(0, handoff::kMaxTransferIdBytes) +
                                                " belongs to another request");
      armed->is_admitted = true;
      armed->admitted_ns = clock->monotonic_ns();
      note_change();
    }
    auto admission = ask_host(begin);
    const std::scoped_lock guard(mutex);
    if (!admission.has_value()) {
      armed->is_admitted = false;
      armed->refused_by_host = admission.error();
      note_change();
      return admission;
    }
    handoff::RequestExpectations& expected = armed->expected;
    if (admission->expected != nullptr) {
      expected.held_token_ids = admission->expected->held_token_ids;
      expected.max_context_tokens = admission->expected->max_context_tokens;
    }
    return Admission{admission->sink, &expected};
  }

  /// An exception of the host's goes on through the receiver; nobody waits for the transfer any more.
  Result<Admission> ask_host(const handoff::BeginFrame& begin) {
    try {
      return host->admit(begin);
    } catch (...) {
      const std::scoped_lock guard(mutex);
      armed->is_admitted = false;
      throw;
    }
  }

  /// The thread of the receiver. Once that is bound only an exception ends it before it is stopped.
  void run_receiver() noexcept {
    try {
      static_cast<void>(receiver->run());
      return;
    } catch (...) {  // Every attempt has had its end by now.
    }
    const std::scoped_lock guard(mutex);
    is_gone = true;
    if (armed) note_change();
  }

  void ended(const AttemptReceipt& attempt) noexcept override {
    host->ended(attempt);
    const std::scoped_lock guard(mutex);
    if (!armed) return;
    // Nothing else is given a sink while this request waits.
    if (armed->is_admitted && attempt.sink != nullptr) {
      armed->receipt = attempt;
      armed->receipt->sink = nullptr;
    } else if (attempt.error) {
      ++armed->dropped;
      armed->last_dropped = attempt.error->message;
    }
    note_change();
  }

  // ---- the request, in the thread that makes it

  Result<ControlRequest> arm(const PrefillOrder& order) {
    ControlRequest request;
    request.prompt_token_ids = order.token_ids;
    request.segments = order.segments;
    request.multimodal = order.multimodal;
    ArmedRequest arming;
    KVPACK_TRY_ASSIGN(arming.expected.prompt_token_ids,
                      handoff::prompt_of_request(request_positions(request)));
    const std::uint64_t now_unix_ms = clock->wall_ms();
    request.request_id = mint_request_id(now_unix_ms);
    request.deadline_unix_ms =
        now_unix_ms + producer_wait_ms(config, arming.expected.prompt_token_ids->size());
    request.receiver_host = config.advertised_receiver_host.value_or("");
    request.receiver_port = receiver->address().port;
    arming.id = request.request_id;
    arming.expected.identity = config.identity;
    arming.expected.max_context_tokens = std::numeric_limits<std::uint64_t>::max();
    arming.expected.multimodal = order.multimodal;
    arming.expected.target_identity_sha256 = config.target_cache_identity_sha256;
    arming.expected.dflash_identity_sha256 = config.dflash_identity_sha256;
    arming.expected.request_id = request.request_id;
    const std::scoped_lock guard(mutex);
    armed.emplace(std::move(arming));
    return request;
  }

  Result<PrefillReceipt> fetch(const PrefillOrder& order, const std::stop_token& stop) {
    {
      const std::scoped_lock guard(mutex);
      if (is_gone) return in_phase(receiver_is_gone(), kRefusalPhase);
    }
    const auto request = arm(order);
    if (!request.has_value()) return in_phase(request.error(), kRefusalPhase);
    auto fetched = take(*request, stop);
    const std::scoped_lock guard(mutex);
    armed.reset();
    return fetched;
  }

  Result<PrefillReceipt> take(const ControlRequest& request, const std::stop_token& stop) {
    const std::uint64_t started_ns = clock->monotonic_ns();
    PrefillReceipt out;
    out.request_id = request.request_id;
    std::optional<Error> why;
    std::uint64_t accepted_ns = 0;
    if (auto client = ControlClient::ask(*fs, *clock, config, request, stop); client.has_value()) {
      accepted_ns = clock->monotonic_ns();
      out.control_ns = accepted_ns - started_ns;
      why = await_transfer(*client, request, accepted_ns, stop, out.producer);
      client->close();
    } else {
      why = in_phase(std::move(client.error()), kControlPhase);
    }
    const std::optional<AttemptReceipt> attempt = give_up();
    const bool is_committed = attempt && attempt->end == AttemptEnd::kCommitted;
    // Why it was given up says more than how it then broke off.
    if (why && !is_committed) return *std::move(why);
    if (!is_committed) return in_phase(*attempt->error, phase_of(attempt->end));
    out.attempt = *attempt;
    out.accept_ns = admitted_ns() - std::min(admitted_ns(), accepted_ns);
    out.total_ns = clock->monotonic_ns() - started_ns;
    return out;
  }

  /// Until the transfer has ended, or why it will not come.
  std::optional<Error> await_transfer(ControlClient& client, const ControlRequest& request,
                                      std::uint64_t accepted_ns, const std::stop_token& stop,
                                      std::optional<ControlReceipt>& producer) {
    const auto listener = start_thread([&](const std::stop_token& over) { listen(client, over); });
    if (!listener.has_value()) return in_phase(listener.error(), kRefusalPhase);
    const std::uint64_t prompt_tokens = request_positions(request).size() - 1;
    const std::uint64_t deadline_ns = accepted_ns + producer_wait_ms(config, prompt_tokens) * 1'000'000;
    std::unique_lock guard(mutex);
    while (!armed->receipt) {
      if (is_gone) return in_phase(receiver_is_gone(), kRefusalPhase);
      if (armed->refused_by_host) return in_phase(*armed->refused_by_host, kRefusalPhase);
      if (!armed->is_admitted && armed->heard) return judge_heard(*armed->heard);
      const std::uint64_t now_ns = clock->monotonic_ns();
      if (!armed->is_admitted && now_ns >= deadline_ns) return nobody_came(*armed);
      const auto has_changed = [this, seen = armed->changes] { return armed->changes != seen; };
      if (armed->is_admitted)
        changed.wait(guard, stop, has_changed);
      else
        changed.wait_for(guard, stop, std::chrono::nanoseconds(deadline_ns - now_ns), has_changed);
      if (stop.stop_requested() && !armed->receipt)
        return in_phase(fail(ErrorCode::kCancelled, "operation was cancelled"),
                        armed->is_admitted ? kTransferPhase : kAcceptPhase);
    }
    if (armed->receipt->end != AttemptEnd::kCommitted) return std::nullopt;
    // Telemetry can neither delay nor undo the commit.
    changed.wait_for(guard, stop, std::chrono::milliseconds(kControlReceiptWaitMs),
                     [this] { return armed->heard.has_value(); });
    if (armed->heard && armed->heard->has_value()) producer = (**armed->heard).receipt;
    return std::nullopt;
  }

  /// Hears what the producer says next, beside the transfer.
  void listen(ControlClient& client, const std::stop_token& over) {
    while (!over.stop_requested()) {
      auto heard = client.next(kMaxTimeoutMs, over);
      if (!heard.has_value() && heard.error().code == ErrorCode::kTimeout) continue;
      const std::scoped_lock guard(mutex);
      armed->heard.emplace(std::move(heard));
      return note_change();
    }
  }

  /// From now on nothing is admitted. @return how the transfer ended that was admitted before, if one was
  std::optional<AttemptReceipt> give_up() {
    std::unique_lock guard(mutex);
    armed->is_closed = true;
    changed.wait(guard, [this] { return is_gone || !armed->is_admitted || armed->receipt; });
    return armed->receipt;
  }
  std::uint64_t admitted_ns() {
    const std::scoped_lock guard(mutex);
    return armed->admitted_ns;
  }
};

RequestingReceiver::RequestingReceiver(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
RequestingReceiver::~RequestingReceiver() = default;

Result<std::unique_ptr<RequestingReceiver>> RequestingReceiver::start(FileSystem& fs, const Clock& clock,
                                                                      ReceiverConfig config,
                                                                      ReceiverSettings settings,
                                                                      handoff::SpanSchedule schedule,
                                                                      ReceiverHost& host) {
  if (!config.producer_control) return config_error("receiver configuration has no producer_control");
  auto state = std::make_unique<State>(fs, clock, config, host);
  KVPACK_TRY_ASSIGN(state->receiver, Receiver::bind(fs, clock, std::move(config), std::move(settings),
                                                    std::move(schedule), *state));
  KVPACK_TRY_ASSIGN(state->thread, start_thread([s = state.get()] { s->run_receiver(); }));
  return std::unique_ptr<RequestingReceiver>(new RequestingReceiver(std::move(state)));
}

SocketAddress RequestingReceiver::address() const {
  return state_->receiver->address();
}

ReceiverCounters RequestingReceiver::counters() const {
  return state_->receiver->counters();
}

Result<PrefillReceipt> RequestingReceiver::fetch(const PrefillOrder& order, const std::stop_token& stop) {
  const std::unique_lock lease(state_->lease, std::try_to_lock);
  if (!lease.owns_lock())
    return in_phase(fail(ErrorCode::kBusy, "another remote prefill is running"), kRefusalPhase);
  return state_->fetch(order, stop);
}

}  // namespace kvpack::net
