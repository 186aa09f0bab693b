// A receiver of a cluster with the caller's engine behind it.
#include <atomic>
#include <list>

#include "cluster_handles.h"
#include "kvpack/muse/handoff_sink.h"
#include "kvpack/muse/span_schedule.h"
#include "kvpack/net/receipt_log.h"
#include "kvpack/net/receiver.h"

namespace kvpack::capi {

namespace {

constexpr std::uint64_t kReceiverFilesV0 = KVPACK_SIZE_UP_TO(kvpack_receiver_options, log_user);
constexpr std::uint64_t kReceiverRequestV0 = KVPACK_SIZE_UP_TO(kvpack_receiver_request, held_token_count);
constexpr std::uint64_t kReceiverInfoV0 = KVPACK_SIZE_UP_TO(kvpack_receiver_info, degraded);

std::uint32_t from_end(net::AttemptEnd end) noexcept {
  switch (end) {
    case net::AttemptEnd::kCommitted: return KVPACK_ATTEMPT_COMMITTED;
    case net::AttemptEnd::kExcess: return KVPACK_ATTEMPT_EXCESS;
    case net::AttemptEnd::kStopped: return KVPACK_ATTEMPT_STOPPED;
    case net::AttemptEnd::kHandshake: return KVPACK_ATTEMPT_HANDSHAKE;
    case net::AttemptEnd::kBegin: return KVPACK_ATTEMPT_BEGIN;
    case net::AttemptEnd::kBusy: return KVPACK_ATTEMPT_BUSY;
    case net::AttemptEnd::kVerify: return KVPACK_ATTEMPT_VERIFY;
    case net::AttemptEnd::kTransfer: return KVPACK_ATTEMPT_TRANSFER;
    case net::AttemptEnd::kInstall: return KVPACK_ATTEMPT_INSTALL;
    case net::AttemptEnd::kLedger: return KVPACK_ATTEMPT_LEDGER;
    case net::AttemptEnd::kCount: break;
  }
  return 0;
}

/// Receipts and metrics know the categories of the formats: a code that is none is the engine's refusal.
Error as_category(Error error) {
  if (static_cast<kvpack_status>(error.code) < KVPACK_ERR_UNKNOWN_ENUM) error.code = ErrorCode::kInstall;
  return error;
}
template <class T>
Result<T> as_category(Result<T> result) {
  if (result.has_value()) return result;
  return as_category(std::move(result.error()));
}

/// A Muse engine that waits for a transfer.
struct MuseInstall {
  explicit MuseInstall(MuseSession given) : session(std::move(given)) {}

  MuseSession session;
  muse::SessionInstaller installer{session};
  std::optional<muse::HandoffSink> sink{};
};

/// One transfer from its admission to its receipt: the sink behind the caller's, and what is expected of it.
class AdmittedTransfer final : public Sink {
 public:
  Status begin(const ValidatedBegin& begin) override { return as_category(inner().begin(begin)); }
  std::uint64_t max_total_bytes() const noexcept override { return inner().max_total_bytes(); }
  Status lend(const SegmentDescriptor& descriptor, std::size_t component_index,
              std::vector<MutableByteSpan>& place) override {
    return as_category(inner().lend(descriptor, component_index, place));
  }
  Status segment_ready(VerifiedSegment& segment) override {
    return as_category(inner().segment_ready(segment));
  }
  Status prepare_commit(const VerifiedSeal& seal) override {
    return as_category(inner().prepare_commit(seal));
  }
  Result<CommittedGeneration> commit() override { return as_category(inner().commit()); }
  void abort() noexcept override { inner().abort(); }

  bool has_sink() const noexcept { return callbacks.has_value() || muse != nullptr; }

  void* user = nullptr;
  std::optional<HandoffCallbackSink> callbacks{};
  std::unique_ptr<MuseInstall> muse{};
  RequestExpectations expected{};
  bool has_request = false;

 private:
  Sink& inner() noexcept {
    return callbacks.has_value() ? static_cast<Sink&>(*callbacks) : static_cast<Sink&>(*muse->sink);
  }
  const Sink& inner() const noexcept {
    return callbacks.has_value() ? static_cast<const Sink&>(*callbacks) : *muse->sink;
  }
};

}  // namespace

/// What an admission is made from beside the caller's words.
struct EnrolledReceiver {
  net::ReceiverConfig config;
  std::uint64_t transfer_bytes = 0;  ///< Memory for one.
  std::optional<muse::TargetModel> model{};
  std::shared_ptr<PayloadMemory> memory{};  ///< Of what is received into a Muse engine.
};

}  // namespace kvpack::capi

struct kvpack_admission final : kvpack::capi::Handle<kvpack::capi::handle_tag("KVadmit")> {
  kvpack_admission(const kvpack::handoff::BeginFrame& offered, const kvpack::capi::EnrolledReceiver& by,
                   kvpack::capi::AdmittedTransfer& made) noexcept
      : begin(&offered), receiver(&by), transfer(&made) {}
  const kvpack::handoff::BeginFrame* begin;
  const kvpack::capi::EnrolledReceiver* receiver;
  kvpack::capi::AdmittedTransfer* transfer;
};

namespace kvpack::capi {

namespace {

kvpack_attempt describe_attempt(const net::AttemptReceipt& receipt, const std::string& json) noexcept {
  kvpack_attempt out{};
  out.struct_size = sizeof(out);
  out.message = receipt.error.has_value() ? receipt.error->message.c_str() : nullptr;
  out.peer = receipt.peer.c_str();
  out.peer_sha256 = receipt.peer_leaf_sha256.c_str();
  out.transfer_id = receipt.transfer_id.c_str();
  out.transfer_id_size = receipt.transfer_id.size();
  out.generation = receipt.generation;
  out.installed_bytes = receipt.installed_bytes;
  out.ended_unix_ms = receipt.ended_unix_ms;
  out.accept_ns = receipt.phases.accept_ns;
  out.segment_read_ns = receipt.phases.segment_read_ns;
  out.segment_process_ns = receipt.phases.segment_process_ns;
  out.sink_ns = receipt.phases.sink_ns;
  out.seal_ns = receipt.phases.seal_ns;
  out.reserve_ns = receipt.phases.reserve_ns;
  out.commit_ns = receipt.phases.commit_ns;
  out.ack_ns = receipt.phases.ack_ns;
  out.transfer_commit_ns = receipt.phases.transfer_commit_ns;
  out.total_ns = receipt.phases.total_ns;
  out.json = json.c_str();
  out.json_size = json.size();
  out.end = from_end(receipt.end);
  out.status = receipt.error.has_value() ? static_cast<kvpack_status>(receipt.error->code) : KVPACK_OK;
  out.installed_segments = receipt.installed_segments;
  out.refusal_sent = receipt.refusal_sent ? 1 : 0;
  return out;
}

/// The caller's callbacks, and the transfers that they have admitted.
class CallbackHost final : public net::ReceiverHost {
 public:
  CallbackHost(const kvpack_receiver_options& options, EnrolledReceiver enrolled)
      : admit_(options.admit),
        ended_(options.ended),
        user_(options.user),
        log_(options.log, options.log_user),
        enrolled_(std::move(enrolled)) {}

  Result<net::Admission> admit(const BeginFrame& begin) override {
    AdmittedTransfer& transfer = transfers_.emplace_back();
    transfer.expected.identity = enrolled_.config.identity;
    transfer.expected.target_identity_sha256 = enrolled_.config.target_cache_identity_sha256;
    transfer.expected.dflash_identity_sha256 = enrolled_.config.dflash_identity_sha256;
    transfer.expected.max_context_tokens = std::numeric_limits<std::uint64_t>::max();
    Status asked = ask(begin, transfer);
    if (!asked.has_value()) {
      transfers_.pop_back();
      return as_category(std::move(asked.error()));
    }
    return net::Admission{&transfer, &transfer.expected};
  }

  void ended(const net::AttemptReceipt& receipt) noexcept override {
    void* sink_user = nullptr;
    for (auto transfer = transfers_.begin(); transfer != transfers_.end(); ++transfer) {
      if (&*transfer != receipt.sink) continue;
      sink_user = transfer->user;
      transfers_.erase(transfer);
      break;
    }
    tell_end(receipt);
    if (ended_ == nullptr) return;
    try {
      const std::string json = net::receipt_json(receipt);
      kvpack_attempt attempt = describe_attempt(receipt, json);
      attempt.sink_user = sink_user;
      ended_(user_, &attempt);
    } catch (...) {  // Out of memory, or thrown by the caller's own code: what has ended has ended.
    }
  }

 private:
  void tell_end(const net::AttemptReceipt& receipt) const noexcept {
    const bool committed = receipt.end == net::AttemptEnd::kCommitted;
    log_.tell(committed ? KVPACK_LOG_INFO : KVPACK_LOG_WARNING, [&] {
      std::string text = committed ? "received " : "refused ";
      text += receipt.transfer_id.empty() ? std::string("a connection") : "transfer " + receipt.transfer_id;
      text += " of " + (receipt.peer.empty() ? std::string("a peer that left") : receipt.peer);
      if (committed) text += ": " + std::to_string(receipt.installed_bytes) + " bytes";
      if (receipt.error.has_value()) text += ": " + receipt.error->verdict();
      return text;
    });
  }

  Status ask(const BeginFrame& begin, AdmittedTransfer& transfer) {
    std::vector<kvpack_handoff_component> components;
    const kvpack_handoff_offer offer = describe_offer(begin, components);
    kvpack_admission admission(begin, enrolled_, transfer);
    KVPACK_TRY(run_callback("admit", [&] { return admit_(user_, &offer, &admission); }));
    if (transfer.has_sink()) return success();
    return misuse(KVPACK_ERR_CALLBACK, "the admit callback has given no sink").with("callback", "admit");
  }

  decltype(kvpack_receiver_options::admit) admit_;
  decltype(kvpack_receiver_options::ended) ended_;
  void* user_;
  Log log_;
  EnrolledReceiver enrolled_;
  std::list<AdmittedTransfer> transfers_{};
};

}  // namespace

}  // namespace kvpack::capi

struct kvpack_receiver final : kvpack::capi::Handle<kvpack::capi::handle_tag("KVrecv")> {
  kvpack::SystemFileSystem fs{};
  kvpack::SystemClock clock{};
  std::unique_ptr<kvpack::capi::CallbackHost> host{};
  std::unique_ptr<kvpack::net::ReceiptLog> log{};
  std::unique_ptr<kvpack::net::Receiver> receiver{};  ///< Aborts sinks when it dies, so it dies before them.
  std::string address{};
  std::optional<std::string> metrics_address{};
  std::atomic<bool> has_run{false};
};

namespace kvpack::capi {

namespace {

SpanSchedule schedule_of(const kvpack_receiver_options& options, const EnrolledReceiver& enrolled) {
  if (enrolled.model.has_value()) return muse::span_schedule;
  return make_schedule(options.schedule, options.schedule_user);
}

Status open_receiver(kvpack_receiver& out, const kvpack_receiver_options& options) {
  KVPACK_TRY_ASSIGN(const std::string config_path, read_path(options.config_path, "config_path"));
  if (options.admit == nullptr) return bad_argument("admit", "is NULL");
  EnrolledReceiver enrolled;
  KVPACK_TRY_ASSIGN(enrolled.model, read_target_model(options.muse_config, options.muse_identity));
  if (enrolled.model.has_value() && options.schedule != nullptr)
    return bad_argument("schedule", "must be NULL beside a Muse model");
  KVPACK_TRY_ASSIGN(enrolled.memory, read_memory(options.allocate, options.release, options.memory_user));
  KVPACK_TRY_ASSIGN(enrolled.config, net::load_receiver_config(out.fs, config_path));
  net::ReceiverSettings settings;
  if (options.settings_path != nullptr) {
    KVPACK_TRY_ASSIGN(settings, net::load_receiver_settings(out.fs, options.settings_path));
  }
  if (enrolled.model.has_value())
    KVPACK_TRY(muse::check_configured_identity(*enrolled.model, enrolled.config.identity,
                                               enrolled.config.target_cache_identity_sha256));
  enrolled.transfer_bytes = settings.memory_limit_bytes / settings.max_transfers;
  SpanSchedule schedule = schedule_of(options, enrolled);
  net::ReceiverConfig config = enrolled.config;
  out.host = std::make_unique<CallbackHost>(options, std::move(enrolled));
  net::ReceiverHost* host = out.host.get();
  if (settings.receipts.has_value()) {
    KVPACK_TRY_ASSIGN(out.log, net::ReceiptLog::open(out.fs, *settings.receipts, *host));
    host = out.log.get();
  }
  KVPACK_TRY_ASSIGN(out.receiver, net::Receiver::bind(out.fs, out.clock, std::move(config),
                                                      std::move(settings), std::move(schedule), *host));
  out.address = out.receiver->address().text();
  if (const auto metrics = out.receiver->metrics_address()) out.metrics_address = metrics->text();
  return success();
}

Status check_no_sink(const AdmittedTransfer& transfer) {
  if (transfer.has_sink()) return wrong_state("the admission has a sink already");
  return success();
}

/// Whether the prompt goes on from what the session holds, at the begin's cut.
bool goes_on_from(const BeginFrame& begin, std::span<const std::uint32_t> held) {
  const auto& prompt = begin.manifest.prompt_token_ids;
  if (begin.prefix_cut == 0 || begin.prefix_cut >= prompt.size() || begin.prefix_cut > held.size())
    return false;
  const auto cut = static_cast<std::size_t>(begin.prefix_cut);
  return std::ranges::equal(std::span(prompt).first(cut), held.first(cut));
}

Status admit_into_muse(const kvpack_admission& admission, const kvpack_muse_engine* engine) {
  AdmittedTransfer& transfer = *admission.transfer;
  KVPACK_TRY_ASSIGN(MuseSession opened, MuseSession::open(engine));
  auto made = std::make_unique<MuseInstall>(std::move(opened));
  const auto held = made->session.tokens();
  muse::HandoffSinkOptions options;
  options.prefix_cut = admission.begin->prefix_cut;
  options.max_context_tokens = made->session.geometry().max_context_tokens;
  options.memory_limit_bytes = admission.receiver->transfer_bytes;
  options.memory = admission.receiver->memory;
  // Planes of another history are not asked for: such a delta is refused before the sink is begun.
  if (goes_on_from(*admission.begin, held)) {
    KVPACK_TRY_ASSIGN(options.held, made->session.export_snapshot());
  }
  transfer.expected.held_token_ids.assign(held.begin(), held.end());
  transfer.expected.max_context_tokens =
      std::min(transfer.expected.max_context_tokens, options.max_context_tokens);
  made->sink.emplace(made->installer, std::move(options));
  transfer.muse = std::move(made);
  transfer.user = engine->user;
  return success();
}

Status expect_request(AdmittedTransfer& transfer, const kvpack_receiver_request& request) {
  KVPACK_TRY_ASSIGN(auto prompt,
                    read_tokens(request.prompt_token_ids, request.prompt_token_count, "prompt_token_ids"));
  KVPACK_TRY_ASSIGN(std::string request_id,
                    read_string(request.request_id, request.request_id_size, "request_id"));
  KVPACK_TRY_ASSIGN(auto held,
                    read_tokens(request.held_token_ids, request.held_token_count, "held_token_ids"));
  if (!held.empty() && transfer.muse != nullptr)
    return bad_argument("held_token_ids", "must be NULL for a Muse engine");
  RequestExpectations& expected = transfer.expected;
  if (request.prompt_token_ids != nullptr) expected.prompt_token_ids = std::move(prompt);
  if (request.request_id != nullptr) expected.request_id = std::move(request_id);
  if (request.max_context_tokens != 0)
    expected.max_context_tokens = std::min(expected.max_context_tokens, request.max_context_tokens);
  expected.multimodal = to_multimodal(request.multimodal);
  if (!held.empty()) expected.held_token_ids = std::move(held);
  transfer.has_request = true;
  return success();
}

kvpack_receiver_info describe_receiver(const kvpack_receiver& receiver) noexcept {
  const net::ReceiverCounters counters = receiver.receiver->counters();
  const auto ends = [&](net::AttemptEnd end) { return counters.ends[static_cast<std::size_t>(end)]; };
  kvpack_receiver_info out{};
  out.accepted = counters.accepted;
  out.open_connections = counters.open_connections;
  out.committed = ends(net::AttemptEnd::kCommitted);
  out.excess = ends(net::AttemptEnd::kExcess);
  out.stopped = ends(net::AttemptEnd::kStopped);
  out.handshake = ends(net::AttemptEnd::kHandshake);
  out.begin = ends(net::AttemptEnd::kBegin);
  out.busy = ends(net::AttemptEnd::kBusy);
  out.verify = ends(net::AttemptEnd::kVerify);
  out.transfer = ends(net::AttemptEnd::kTransfer);
  out.install = ends(net::AttemptEnd::kInstall);
  out.ledger = ends(net::AttemptEnd::kLedger);
  out.installed_bytes = counters.installed_bytes;
  out.refusals_sent = counters.refusals_sent;
  out.lost_receipts = receiver.log == nullptr ? 0 : receiver.log->lost_count();
  out.ledger_was_missing = counters.ledger_was_missing ? 1 : 0;
  out.degraded = counters.degraded ? 1 : 0;
  return out;
}

}  // namespace

}  // namespace kvpack::capi

using namespace kvpack;        // NOLINT(google-build-using-namespace)
using namespace kvpack::capi;  // NOLINT(google-build-using-namespace)

kvpack_status kvpack_receiver_open(kvpack_receiver** out, const kvpack_receiver_options* options,
                                   kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_pointer(out, "out"));
    KVPACK_TRY_ASSIGN(const auto known, read_options(options, kReceiverFilesV0, "options"));
    auto receiver = std::make_unique<kvpack_receiver>();
    if (const Status opened = open_receiver(*receiver, known); !opened.has_value()) {
      Log(known.log, known.log_user).tell_failure("opening", opened.error());
      return opened;
    }
    *out = receiver.release();
    return success();
  });
}

kvpack_status kvpack_admission_into_sink(kvpack_admission* admission, const kvpack_handoff_sink* sink,
                                         kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(admission, "admission"));
    KVPACK_TRY_ASSIGN(const kvpack_handoff_sink known, read_sink(sink));
    AdmittedTransfer& transfer = *admission->transfer;
    KVPACK_TRY(check_no_sink(transfer));
    transfer.callbacks.emplace(known, admission->begin->prefix_cut);
    transfer.user = known.user;
    return success();
  });
}

kvpack_status kvpack_admission_into_muse(kvpack_admission* admission, const kvpack_muse_engine* engine,
                                         kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(admission, "admission"));
    KVPACK_TRY(check_no_sink(*admission->transfer));
    if (!admission->receiver->model.has_value())
      return wrong_state("the receiver was opened without a Muse model");
    if (!admission->transfer->expected.held_token_ids.empty())
      return bad_argument("held_token_ids", "must be NULL for a Muse engine");
    return admit_into_muse(*admission, engine);
  });
}

kvpack_status kvpack_admission_expect(kvpack_admission* admission, const kvpack_receiver_request* request,
                                      kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(admission, "admission"));
    KVPACK_TRY_ASSIGN(const auto known, read_options(request, kReceiverRequestV0, "request"));
    if (admission->transfer->has_request) return wrong_state("the admission has a request already");
    return expect_request(*admission->transfer, known);
  });
}

kvpack_status kvpack_receiver_run(kvpack_receiver* receiver, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(receiver, "receiver"));
    if (receiver->has_run.exchange(true)) return wrong_state("the receiver runs or has run");
    return receiver->receiver->run();
  });
}

void kvpack_receiver_stop(kvpack_receiver* receiver) {
  if (is_live(receiver)) receiver->receiver->stop();
}

const char* kvpack_receiver_address(const kvpack_receiver* receiver) {
  return is_live(receiver) ? receiver->address.c_str() : nullptr;
}

const char* kvpack_receiver_metrics_address(const kvpack_receiver* receiver) {
  return is_live(receiver) && receiver->metrics_address.has_value() ? receiver->metrics_address->c_str()
                                                                    : nullptr;
}

kvpack_status kvpack_receiver_get_info(const kvpack_receiver* receiver, kvpack_receiver_info* out,
                                       kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(receiver, "receiver"));
    KVPACK_TRY_ASSIGN(const auto output,
                      OutputStruct<kvpack_receiver_info>::check(out, kReceiverInfoV0, "out"));
    output.fill(describe_receiver(*receiver));
    return success();
  });
}

void kvpack_receiver_free(kvpack_receiver* receiver) {
  free_handle(receiver);
}
