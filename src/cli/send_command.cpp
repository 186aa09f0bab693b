#include "cli/cluster_command.h"
#include "cli/signal_watch.h"
#include "cli/snapshot_segments.h"

namespace kvpack::cli {

namespace {

struct SendCommandOptions {
  std::string config_file;
  ClusterStoreArguments store;
  std::string tokens_file;
  std::string cut;
  std::uint64_t prefix_cut = 0;
};

/// Everything that a transfer needs beside its store, read and compared.
struct Sending {
  net::ProducerConfig config;
  muse::TargetModel model;
  std::vector<std::uint32_t> tokens;
  std::optional<Id32> cut;  ///< Nothing: the deepest.
};

Result<Sending> prepare(FileSystem& fs, const SendCommandOptions& options) {
  KVPACK_TRY_ASSIGN(net::ProducerConfig config, net::load_producer_config(fs, options.config_file));
  KVPACK_TRY_ASSIGN(muse::TargetModel model, read_target_model(fs, options.store.identity_file));
  KVPACK_TRY(check_configured_identity(model, config.identity, config.target_cache_identity_sha256));
  Sending out{std::move(config), std::move(model), {}, {}};
  KVPACK_TRY_ASSIGN(out.tokens, read_tokens_file(fs, options.tokens_file));
  if (!options.cut.empty()) {
    KVPACK_TRY_ASSIGN(out.cut, read_id_option("--cut", options.cut));
  }
  return out;
}

Result<muse::PrefixCut> choose_cut(const muse::PrefixCache& cache, const Sending& sending) {
  if (sending.cut) return cache.identify(*sending.cut);
  KVPACK_TRY_ASSIGN(const auto found, cache.find_deepest(sending.tokens));
  if (!found) return missed();
  return *found;
}

Status check_prefix_cut(std::uint64_t prefix_cut, std::uint64_t position) {
  if (prefix_cut % muse::kBlockTokens == 0 && prefix_cut < position) return success();
  return usage_error(fmt::format("--prefix-cut must be a multiple of {} below the {} tokens of the cut",
                                 muse::kBlockTokens, position));
}

Result<JsonValue> send_from(const Environment& environment, const SendCommandOptions& options,
                            const Sending& sending, Store& store, const std::stop_token& stop) {
  const muse::PrefixCache cache(store, sending.model);
  KVPACK_TRY_ASSIGN(const muse::PrefixCut cut, choose_cut(cache, sending));
  KVPACK_TRY(check_prefix_cut(options.prefix_cut, cut.cut));
  std::optional<Progress> progress;
  RestoreRequest how;
  how.parallelism = environment.common->parallelism();
  how.cancel = stop;
  how.progress = [&](std::uint64_t done, std::uint64_t total) {
    if (done == 0) progress.emplace(*environment.common, "restoring", total);
    progress->update(done);
    return success();
  };
  KVPACK_TRY_ASSIGN(muse::ReadPrefix read, cache.read(cut, sending.tokens, how));
  progress.reset();
  KVPACK_TRY_ASSIGN(const muse::HandoffSource source,
                    muse::HandoffSource::open(std::move(read.snapshot), options.prefix_cut));
  net::OutgoingTransfer transfer;
  transfer.prompt_token_ids = source.prompt_token_ids();
  transfer.prefix_cut = options.prefix_cut;
  progress.emplace(*environment.common, "sending", source.payload_bytes());
  net::SendOptions how_to_send;
  how_to_send.stop = stop;
  how_to_send.progress = [&](std::uint64_t bytes) {
    progress->update(bytes);
    return success();
  };
  SnapshotSegments segments(source);
  const SystemClock clock;
  KVPACK_TRY_ASSIGN(const net::SendReceipt receipt, net::send_handoff(*environment.fs, clock, sending.config,
                                                                      transfer, segments, how_to_send));
  KVPACK_TRY_ASSIGN(JsonValue result, parse_json(byte_view(net::receipt_json(receipt))));
  result.set("ok", true);
  result.set("kind", "send");
  result.set("manifest_id", cut.manifest_id.hex());
  result.set("token_count", cut.cut);
  result.set("prefix_cut", options.prefix_cut);
  return result;
}

bool is_refusal_of_receiver(const Error& error) {
  return std::ranges::any_of(error.context, [](const Context& fact) { return fact.key == "refused_by"; });
}

int run_send(const Environment& environment, const SendCommandOptions& options) {
  const Reporter reporter(*environment.common);
  const auto sending = prepare(*environment.fs, options);
  if (!sending.has_value()) return reporter.failure(sending.error(), options.config_file);
  auto opening = options.store.store.options(environment);
  if (!opening.has_value()) return reporter.failure(opening.error(), "");
  std::stop_source stop;
  const SignalWatch signals([&stop] { stop.request_stop(); });
  return with_store(environment, options.store.store.root, *std::move(opening), Access::kRead,
                    [&](Store& store, const Reporter&) {
                      const auto sent = send_from(environment, options, *sending, store, stop.get_token());
                      if (!sent.has_value() && is_refusal_of_receiver(sent.error()))
                        return reporter.refusal(sent.error(), options.config_file);
                      if (!sent.has_value()) return reporter.failure(sent.error(), options.config_file);
                      return reporter.success(
                          *sent, fmt::format("sent {} tokens, {} bytes in {} segments: generation {}",
                                             *sent->find("token_count")->as_unsigned(),
                                             *sent->find("payload_bytes")->as_unsigned(),
                                             *sent->find("segments")->as_unsigned(),
                                             *sent->find("generation")->as_unsigned()));
                    });
}

}  // namespace

void add_send(CLI::App& app, const Environment& environment) {
  auto* command = app.add_subcommand("send", "Hand a Muse session of a store over to a receiver");
  command->footer(
      "Restores the deepest cut of the tokens from the store, verified, and streams its planes over TLS 1.3; "
      "final\nlogits do not travel. Nothing is sent when the configuration is of another identity than the "
      "store. Every attempt\ntakes a generation of its own, and one is never used twice.\n\n"
      "Exit code 4: refused by the receiver, with its text. 3: the store has no prefix of the tokens.\n\n"
      "Examples:\n"
      "  kvpack send producer.json --store cache.store --identity muse.json --key store.key --tenant-id acme "
      "--tokens p.u32\n"
      "  kvpack send producer.json ... --tokens p.u32 --prefix-cut 32768    what the receiver's store has "
      "not");
  const auto options = std::make_shared<SendCommandOptions>();
  command->add_option("CONFIG", options->config_file, "settings of the producer (kvpack.producer.v1)")
      ->required();
  options->store.add_to(*command, "store to send from", true);
  command->add_option("--tokens", options->tokens_file, "the prompt, as u32 little-endian")
      ->required()
      ->type_name("FILE");
  command->add_option("--cut", options->cut, "send this cut of the tokens (default: the deepest)")
      ->type_name("MANIFEST-ID");
  command
      ->add_option("--prefix-cut", options->prefix_cut,
                   "leave out the first N tokens, which the receiver's store holds; a multiple of 256")
      ->type_name("N");
  add_common(*command, *environment.common);
  when_chosen(*command, environment, options, run_send);
}

}  // namespace kvpack::cli
