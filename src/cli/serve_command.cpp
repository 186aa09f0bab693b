#include "cli/cluster_command.h"
#include "cli/signal_watch.h"
#include "cli/snapshot_segments.h"
#include "kvpack/net/control_server.h"

namespace kvpack::cli {

namespace {

struct ServeOptions {
  std::string config_file;
  ClusterStoreArguments store;
  std::string lock_file;
  bool once = false;
  std::optional<std::uint64_t> count;
};

/// Everything that is read before a socket is opened.
struct Serving {
  net::ProducerConfig config;
  muse::TargetModel model;
  std::string lock_file;
  std::optional<std::uint64_t> count;  ///< Requests after which it ends.
};

Result<Serving> prepare_serving(FileSystem& fs, const ServeOptions& options) {
  if (options.count == std::uint64_t{0}) return usage_error("--count begins at 1");
  if (options.once && options.count) return usage_error("--once and --count exclude each other");
  KVPACK_TRY_ASSIGN(net::ProducerConfig config, net::load_producer_config(fs, options.config_file));
  if (!config.control_listen) return fail(ErrorCode::kConfig, "producer settings name no control");
  if (config.dflash_identity_sha256)
    return fail(ErrorCode::kConfig, "a store keeps no draft context, and the settings name one");
  KVPACK_TRY_ASSIGN(muse::TargetModel model, read_target_model(fs, options.store.identity_file));
  KVPACK_TRY(check_configured_identity(model, config.identity, config.target_cache_identity_sha256));
  // Two that count generations in one ledger are one producer too many, whatever accelerator they use.
  std::string lock = options.lock_file.empty() ? config.generation_ledger + ".serve.lock" : options.lock_file;
  return Serving{std::move(config), std::move(model), std::move(lock),
                 options.once ? std::uint64_t{1} : options.count};
}

/// Answers out of a store: the prefill has been done before.
class StoreProducer final : public net::ControlHost {
 public:
  /// @param done  enough requests have come
  StoreProducer(const Environment& environment, const Serving& serving, Store& store,
                std::function<void()> done)
      : environment_(&environment),
        serving_(&serving),
        cache_(store, serving.model),
        done_(std::move(done)) {}

  Result<net::ControlReceipt> serve(const net::ControlRequest& request,
                                    const std::stop_token& stop) override {
    const std::uint64_t started_unix_ms = clock_.wall_ms();
    if (request.multimodal) return fail(ErrorCode::kControl, "a store answers requests of tokens alone");
    KVPACK_TRY_ASSIGN(const auto prompt, handoff::prompt_of_request(request.prompt_token_ids));
    KVPACK_TRY_ASSIGN(const auto cut, cache_.find_exactly(prompt));
    if (!cut) return fail(ErrorCode::kControl, "no cut of the store is exactly this prompt");
    KVPACK_TRY_ASSIGN(muse::ReadPrefix read, restore(*cut, prompt, stop));
    const std::uint64_t restored_unix_ms = clock_.wall_ms();
    KVPACK_TRY_ASSIGN(const muse::HandoffSource source,
                      muse::HandoffSource::open(std::move(read.snapshot), 0));
    SnapshotSegments segments(source);
    Progress progress(*environment_->common, "sending", source.payload_bytes());
    const net::SendOptions how{.progress =
                                   [&](std::uint64_t bytes) {
                                     progress.update(bytes);
                                     return success();
                                   },
                               .stop = stop};
    KVPACK_TRY_ASSIGN(
        const net::SendReceipt sent,
        net::send_requested(*environment_->fs, clock_, serving_->config, request, segments, how));
    constexpr std::uint64_t kNsPerMs = 1'000'000;
    return net::make_control_receipt(
        sent, {started_unix_ms * kNsPerMs, restored_unix_ms * kNsPerMs, restored_unix_ms * kNsPerMs},
        prompt.size());
  }

  void ended(const net::ControlAttempt& attempt) noexcept override {
    tell(attempt);
    // Whoever is not enrolled, or says nothing, ends nothing.
    const bool counts = attempt.end == net::ControlEnd::kCommitted ||
                        attempt.end == net::ControlEnd::kFailed || attempt.end == net::ControlEnd::kRefused;
    if (!counts || (serving_->count && counted_ == *serving_->count)) return;
    ++counted_;
    if (attempt.error) exit_code_ = std::max(exit_code_, cli::exit_code(*attempt.error));
    if (serving_->count && counted_ == *serving_->count) done_();
  }

  std::uint64_t counted() const noexcept { return counted_; }
  /// The largest exit code of the requests that counted.
  int exit_code() const noexcept { return exit_code_; }

 private:
  Result<muse::ReadPrefix> restore(const muse::PrefixCut& cut, std::span<const std::uint32_t> prompt,
                                   const std::stop_token& stop) const {
    std::optional<Progress> progress;
    RestoreRequest how;
    how.parallelism = environment_->common->parallelism();
    how.cancel = stop;
    how.progress = [&](std::uint64_t done, std::uint64_t total) {
      if (done == 0) progress.emplace(*environment_->common, "restoring", total);
      progress->update(done);
      return success();
    };
    return cache_.read(cut, prompt, how);
  }

  void tell(const net::ControlAttempt& attempt) const {
    if (!environment_->common->json) {
      const std::string who = attempt.request_id.empty() ? attempt.peer : printable(attempt.request_id);
      const std::string what = attempt.error ? ": " + printable(error_text(*attempt.error, ""))
                                             : fmt::format(": {} tokens", attempt.positions);
      Reporter(*environment_->common)
          .note(fmt::format("{}: {}{}", who, net::control_end_name(attempt.end), what));
      return;
    }
    auto line = parse_json(byte_view(net::receipt_json(attempt)));
    if (!line.has_value()) return;
    line->set("kind", "request");
    line->set("ok", !attempt.error.has_value());
    print(stdout, canonical_json_text(*line) + "\n");
    std::fflush(stdout);
  }

  const Environment* environment_;
  const Serving* serving_;
  muse::PrefixCache cache_;
  std::function<void()> done_;
  SystemClock clock_;
  std::uint64_t counted_ = 0;
  int exit_code_ = kExitDone;
};

int run_on_serving_store(const Environment& environment, const ServeOptions& options, const Serving& serving,
                         Store& store) {
  const Reporter reporter(*environment.common);
  const SystemClock clock;
  std::unique_ptr<net::ControlServer> server;
  StoreProducer producer(environment, serving, store, [&server] { server->stop(); });
  net::ControlServerOptions how;
  how.lock_file = serving.lock_file;
  auto bound = net::ControlServer::bind(*environment.fs, clock, serving.config, how, producer);
  if (!bound.has_value()) return reporter.failure(bound.error(), options.config_file);
  server = *std::move(bound);
  // Whoever reads the announcement may send a signal at once.
  const SignalWatch signals([&server] { server->stop(); });
  announce_listening(environment, server->address().text());
  const Status served = server->run();
  if (!served.has_value()) return reporter.failure(served.error(), options.config_file);
  // Ended by a signal: what single requests came to has been told.
  if (!serving.count) return kExitDone;
  if (producer.counted() == *serving.count) return producer.exit_code();
  return reporter.failure(fail(ErrorCode::kIo, "stopped before all requests had come"), options.config_file);
}

int run_serve(const Environment& environment, const ServeOptions& options) {
  const Reporter reporter(*environment.common);
  const auto serving = prepare_serving(*environment.fs, options);
  if (!serving.has_value()) return reporter.failure(serving.error(), options.config_file);
  auto opening = options.store.store.options(environment);
  if (!opening.has_value()) return reporter.failure(opening.error(), "");
  return with_store(environment, options.store.store.root, *std::move(opening), Access::kRead,
                    [&](Store& store, const Reporter&) {
                      return run_on_serving_store(environment, options, *serving, store);
                    });
}

}  // namespace

void add_serve(CLI::App& app, const Environment& environment) {
  auto* command =
      app.add_subcommand("serve", "Answer a receiver's requests over the control channel, out of a store");
  command->footer(
      "A request names a prompt; the cut of exactly that prompt is restored, verified, and handed over to "
      "the "
      "receiver of the\nconfiguration. One request at a time. The receiver that closes its control stream "
      "ends "
      "the transfer; what it has\nacknowledged counts.\n\n"
      "With --json the first line says where it listens, and each request is a line. SIGINT and SIGTERM end "
      "it: exit code 0.\nWith --once or --count the largest code of the requests is the result.\n\n"
      "Examples:\n"
      "  kvpack serve producer.json --store cache.store --identity muse.json --key store.key --tenant-id "
      "acme\n"
      "  kvpack serve producer.json ... --once");
  const auto options = std::make_shared<ServeOptions>();
  command
      ->add_option("CONFIG", options->config_file,
                   "settings of the producer (kvpack.producer.v1), with control")
      ->required();
  options->store.add_to(*command, "store to answer from", true);
  command
      ->add_option("--lock", options->lock_file,
                   "file that one producer at a time locks (default: beside the generation ledger)")
      ->type_name("FILE");
  command->add_flag("--once", options->once, "end after one request, committed, failed or refused");
  command->add_option("--count", options->count, "end after N requests")->type_name("N");
  add_common(*command, *environment.common);
  when_chosen(*command, environment, options, run_serve);
}

}  // namespace kvpack::cli
