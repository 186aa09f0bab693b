#include <chrono>
#include <condition_variable>
#include <mutex>

#include "cli/cluster_command.h"
#include "cli/signal_watch.h"
#include "cli/store_receiver.h"
#include "kvpack/muse/span_schedule.h"
#include "kvpack/net/receipt_log.h"
#include "kvpack/net/requesting_receiver.h"

namespace kvpack::cli {

namespace {

struct ReceiveOptions {
  std::string config_file;
  std::string settings_file;
  ClusterStoreArguments store;
  std::string tokens_file;
  bool request = false;
  bool inbox = false;
  bool once = false;
  std::optional<std::uint64_t> count;
};

/// Everything that is read before a socket is opened.
struct Receiving {
  net::ReceiverConfig config;
  net::ReceiverSettings settings;
  muse::TargetModel model;
  StoreReceiverTerms terms;
  std::uint64_t wait_ms = 0;             ///< Of an armed request; 0: for ever.
  std::vector<std::uint32_t> request{};  ///< To be asked for, with its boundary token; empty: nothing is.
};

Result<StoreReceiverTerms> read_terms(FileSystem& fs, const ReceiveOptions& options) {
  if (options.inbox == !options.tokens_file.empty())
    return usage_error("receive wants either --tokens or --inbox");
  if (options.count == std::uint64_t{0}) return usage_error("--count begins at 1");
  if (options.once && options.count) return usage_error("--once and --count exclude each other");
  StoreReceiverTerms terms;
  terms.count = options.once ? std::uint64_t{1} : options.count;
  if (options.request && options.inbox) return usage_error("--request goes with --tokens");
  if (options.inbox) return terms;
  if (options.count) return usage_error("--count goes with --inbox: --tokens arms one request");
  KVPACK_TRY_ASSIGN(const std::vector<std::uint32_t> request, read_tokens_file(fs, options.tokens_file));
  KVPACK_TRY_ASSIGN(terms.prompt, handoff::prompt_of_request(request));
  terms.count = 1;
  return terms;
}

Result<Receiving> prepare(FileSystem& fs, const ReceiveOptions& options) {
  KVPACK_TRY_ASSIGN(StoreReceiverTerms terms, read_terms(fs, options));
  KVPACK_TRY_ASSIGN(net::ReceiverConfig config, net::load_receiver_config(fs, options.config_file));
  net::ReceiverSettings settings;
  if (!options.settings_file.empty()) {
    KVPACK_TRY_ASSIGN(settings, net::load_receiver_settings(fs, options.settings_file));
  }
  if (config.dflash_identity_sha256)
    return fail(ErrorCode::kConfig, "a store keeps no draft context, and the configuration enrols one");
  KVPACK_TRY_ASSIGN(muse::TargetModel model, read_target_model(fs, options.store.identity_file));
  KVPACK_TRY(check_configured_identity(model, config.identity, config.target_cache_identity_sha256));
  Receiving out{std::move(config), std::move(settings), std::move(model), std::move(terms)};
  if (options.request) {
    if (!out.config.producer_control)
      return fail(ErrorCode::kConfig, "receiver configuration has no producer_control");
    KVPACK_TRY_ASSIGN(out.request, read_tokens_file(fs, options.tokens_file));
  }
  if (out.terms.prompt) out.wait_ms = net::producer_wait_ms(out.config, out.terms.prompt->size());
  return out;
}

std::string receipt_line(const net::AttemptReceipt& receipt, const StoreTransfer* transfer) {
  auto line = parse_json(byte_view(net::receipt_json(receipt)));
  if (!line.has_value()) return {};
  line->set("kind", "receipt");
  line->set("ok", !receipt.error.has_value());
  if (transfer != nullptr && transfer->saved()) {
    line->set("manifest_id", transfer->saved()->manifest_id.hex());
    line->set("replayed", transfer->saved()->replayed);
    line->set("token_count", transfer->token_count());
    line->set("prefix_cut", transfer->prefix_cut());
  }
  return canonical_json_text(*line) + "\n";
}

std::string receipt_prose(const net::AttemptReceipt& receipt, const StoreTransfer* transfer) {
  if (receipt.error)
    return fmt::format("{}: {}: {}", receipt.peer.empty() ? "unknown" : receipt.peer,
                       net::attempt_end_name(receipt.end), printable(error_text(*receipt.error, "")));
  if (transfer == nullptr || !transfer->saved()) return fmt::format("{}: committed", receipt.peer);
  return fmt::format("{}: committed {} tokens, {} bytes: {}", receipt.peer, transfer->token_count(),
                     receipt.installed_bytes, transfer->saved()->manifest_id.hex());
}

/// Ends a receiver after a while, unless it has ended before.
class Deadline {
 public:
  Deadline(std::uint64_t wait_ms, std::function<void()> stop) {
    if (wait_ms == 0) return;
    thread_ = std::jthread([this, wait_ms, stop = std::move(stop)] {
      std::unique_lock lock(mutex_);
      if (changed_.wait_for(lock, std::chrono::milliseconds(wait_ms), [this] { return over_; })) return;
      lapsed_ = true;
      stop();
    });
  }
  Deadline(const Deadline&) = delete;
  Deadline& operator=(const Deadline&) = delete;
  ~Deadline() { cancel(); }
  void cancel() noexcept {
    const std::scoped_lock lock(mutex_);
    over_ = true;
    changed_.notify_all();
  }
  bool has_lapsed() {
    const std::scoped_lock lock(mutex_);
    return lapsed_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  bool lapsed_ = false;
  std::jthread thread_;
};

/// Tells of each attempt, and remembers those that came to nothing.
class AttemptTeller {
 public:
  explicit AttemptTeller(const Common& common) : common_(&common) {}
  void operator()(const net::AttemptReceipt& receipt, const StoreTransfer* transfer) {
    const std::string line = receipt_line(receipt, transfer);
    if (common_->json) {
      print(stdout, line);
      std::fflush(stdout);
    } else {
      Reporter(*common_).note(receipt_prose(receipt, transfer));
    }
    if (receipt.error && receipt.end != net::AttemptEnd::kStopped) {
      ++dropped_;
      last_dropped_ = receipt.error->message;
    }
  }
  Error nobody_came() const {
    std::string text = "timed out waiting for the GX10 producer";
    if (dropped_ != 0)
      text += fmt::format(" (dropped {} stale connections, last: {})", dropped_, last_dropped_);
    return fail(ErrorCode::kTimeout, std::move(text));
  }

 private:
  const Common* common_;
  std::uint64_t dropped_ = 0;
  std::string last_dropped_;
};

/// The receipts of the local settings in front of a host, where they are wanted.
struct WithReceipts {
  std::unique_ptr<net::ReceiptLog> log{};
  net::ReceiverHost* outer = nullptr;
};
Result<WithReceipts> with_receipts(FileSystem& fs, const Receiving& receiving, net::ReceiverHost& host) {
  WithReceipts out{.outer = &host};
  if (!receiving.settings.receipts) return out;
  auto log = net::ReceiptLog::open(fs, *receiving.settings.receipts, host);
  if (!log.has_value()) return std::move(log.error()).with("object", *receiving.settings.receipts);
  out.log = *std::move(log);
  out.outer = out.log.get();
  return out;
}

constexpr const char* kLedgerWasMissing = "kvpack: replay ledger was missing and has been created empty";

int run_on_store(const Environment& environment, const ReceiveOptions& options, Receiving& receiving,
                 Store& store) {
  const Reporter reporter(*environment.common);
  AttemptTeller teller(*environment.common);
  const SystemClock clock;
  const muse::PrefixCache cache(store, receiving.model);
  std::unique_ptr<net::Receiver> receiver;
  StoreReceiver host(cache, *environment.common, receiving.config, receiving.settings.memory_limit_bytes,
                     receiving.terms, std::ref(teller), [&receiver] { receiver->stop(); });
  const auto receipts = with_receipts(*environment.fs, receiving, host);
  if (!receipts.has_value()) return reporter.failure(receipts.error(), "");
  auto bound = net::Receiver::bind(*environment.fs, clock, receiving.config, receiving.settings,
                                   muse::span_schedule, *receipts->outer);
  if (!bound.has_value()) return reporter.failure(bound.error(), options.config_file);
  receiver = *std::move(bound);
  if (receiver->counters().ledger_was_missing) reporter.note(kLedgerWasMissing);
  // Whoever reads the announcement may send a signal at once.
  const SignalWatch signals([&receiver] { receiver->stop(); });
  announce_listening(environment, receiver->address().text());
  Deadline deadline(receiving.wait_ms, [&receiver] { receiver->stop(); });
  const Status served = receiver->run();
  deadline.cancel();
  if (!served.has_value()) return reporter.failure(served.error(), options.config_file);
  // Ended by a signal: what single transfers came to has been told.
  if (!receiving.terms.count) return kExitDone;
  if (host.counted() == *receiving.terms.count) return host.exit_code();
  if (deadline.has_lapsed()) return reporter.failure(teller.nobody_came(), options.config_file);
  return reporter.failure(fail(ErrorCode::kIo, "stopped before all transfers had come"), options.config_file);
}

JsonValue prefill_json(const net::PrefillReceipt& fetched) {
  JsonValue out = JsonValue::object();
  out.set("kind", "prefill");
  out.set("ok", true);
  out.set("request_id", fetched.request_id);
  out.set("transfer_id", fetched.attempt.transfer_id);
  out.set("generation", fetched.attempt.generation);
  out.set("installed_bytes", fetched.attempt.installed_bytes);
  out.set("control_ns", fetched.control_ns);
  out.set("accept_ns", fetched.accept_ns);
  out.set("total_ns", fetched.total_ns);
  out.set("producer", fetched.producer ? net::control_receipt_json(*fetched.producer) : JsonValue());
  return out;
}

std::string prefill_prose(const net::PrefillReceipt& fetched) {
  constexpr std::uint64_t kNsPerMs = 1'000'000;
  std::string text = fmt::format("{}: {} bytes in {} ms, of them {} ms until the producer had accepted",
                                 fetched.request_id, fetched.attempt.installed_bytes,
                                 fetched.total_ns / kNsPerMs, fetched.control_ns / kNsPerMs);
  if (!fetched.producer) return text;
  const net::ControlReceipt& producer = *fetched.producer;
  return text + fmt::format("; prefill {} ms, sending {} ms",
                            (producer.prefill_end_unix_ns - producer.prefill_start_unix_ns) / kNsPerMs,
                            (producer.transfer_acked_unix_ns - producer.transfer_start_unix_ns) / kNsPerMs);
}

/// Asks the resident producer for what --tokens names.
int run_asking(const Environment& environment, const ReceiveOptions& options, const Receiving& receiving,
               Store& store) {
  const Reporter reporter(*environment.common);
  AttemptTeller teller(*environment.common);
  const SystemClock clock;
  const muse::PrefixCache cache(store, receiving.model);
  StoreReceiver host(cache, *environment.common, receiving.config, receiving.settings.memory_limit_bytes,
                     receiving.terms, std::ref(teller), [] {});
  const auto receipts = with_receipts(*environment.fs, receiving, host);
  if (!receipts.has_value()) return reporter.failure(receipts.error(), "");
  std::stop_source stop;
  const SignalWatch signals([&stop] { stop.request_stop(); });
  auto receiver = net::RequestingReceiver::start(*environment.fs, clock, receiving.config, receiving.settings,
                                                 muse::span_schedule, *receipts->outer);
  if (!receiver.has_value()) return reporter.failure(receiver.error(), options.config_file);
  if ((*receiver)->counters().ledger_was_missing) reporter.note(kLedgerWasMissing);
  announce_listening(environment, (*receiver)->address().text());
  const auto fetched = (*receiver)->fetch({.token_ids = receiving.request}, stop.get_token());
  // What still lingers is told of before the result is.
  receiver->reset();
  if (fetched.has_value()) return reporter.success(prefill_json(*fetched), prefill_prose(*fetched));
  if (fetched.error().code == ErrorCode::kCancelled)
    return reporter.failure(fail(ErrorCode::kIo, "stopped before the transfer had come"),
                            options.config_file);
  return reporter.failure(fetched.error(), options.config_file);
}

int run_receive(const Environment& environment, const ReceiveOptions& options) {
  const Reporter reporter(*environment.common);
  auto receiving = prepare(*environment.fs, options);
  if (!receiving.has_value()) return reporter.failure(receiving.error(), options.config_file);
  ClusterStoreArguments place = options.store;
  if (place.store.root.empty()) place.store.root = receiving->settings.store.value_or("");
  if (place.store.root.empty())
    return reporter.failure(usage_error("receive wants a store: --store, or `store` in the local settings"),
                            "");
  auto opening = place.store.options(environment);
  if (!opening.has_value()) return reporter.failure(opening.error(), "");
  return with_store(environment, place.store.root, *std::move(opening), Access::kWrite,
                    [&](Store& store, const Reporter&) {
                      return options.request ? run_asking(environment, options, *receiving, store)
                                             : run_on_store(environment, options, *receiving, store);
                    });
}

}  // namespace

void add_receive(CLI::App& app, const Environment& environment) {
  auto* command = app.add_subcommand("receive", "Take handoffs over TLS and keep what arrives in a store");
  command->footer(
      "With --tokens one exact request is armed: the prompt that must come is the tokens without the last "
      "one. With --request\nthe producer is asked for it over the control channel first. With --inbox "
      "whatever enrolled producers send is taken, a delta only on a prefix that the store "
      "holds. What is kept is a reusable\nprefix without final logits. A transfer that fails leaves nothing "
      "in the store.\n\n"
      "With --json the first line says where it listens, and each attempt is a line. SIGINT and SIGTERM end "
      "an inbox after\nthe transfers that are running: exit code 0. With --once or --count the largest code "
      "of the transfers is the result.\n\n"
      "Examples:\n"
      "  kvpack receive receiver.json --store cache.store --identity muse.json --key store.key --tenant-id "
      "acme --inbox\n"
      "  kvpack receive receiver.json ... --tokens request.u32\n"
      "  kvpack receive receiver.json ... --tokens request.u32 --request");
  const auto options = std::make_shared<ReceiveOptions>();
  command->add_option("CONFIG", options->config_file, "enrolment of the receiver (ReceiverConfigV2)")
      ->required();
  command
      ->add_option("--local", options->settings_file, "settings of this machine (kvpack.receiver.local.v1)")
      ->type_name("FILE");
  options->store.add_to(*command, "store to keep into (default: `store` of the local settings)", false);
  command->add_option("--tokens", options->tokens_file, "the request, as u32 little-endian")
      ->type_name("FILE");
  command->add_flag("--request", options->request,
                    "ask the producer for them (`producer_control` of the configuration)");
  command->add_flag("--inbox", options->inbox, "take what enrolled producers send");
  command->add_flag("--once", options->once, "end after one transfer, committed or refused");
  command->add_option("--count", options->count, "end after N transfers")->type_name("N");
  add_common(*command, *environment.common);
  when_chosen(*command, environment, options, run_receive);
}

}  // namespace kvpack::cli
