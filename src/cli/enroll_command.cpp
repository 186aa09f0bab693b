#include <fmt/core.h>

#include <ctime>
#include <filesystem>

#include "cli/commands.h"
#include "kvpack/net/enrolment.h"
#include "kvpack/net/volume_probe.h"

namespace kvpack::cli {

namespace {

constexpr std::string_view kDefaultKeyId = "kvpack-1";

/// UTC, to the day.
std::string date_text(std::uint64_t unix_s) {
  const auto seconds = static_cast<std::time_t>(unix_s);
  std::tm time{};
  ::gmtime_r(&seconds, &time);
  return fmt::format("{:04}-{:02}-{:02}", time.tm_year + 1900, time.tm_mon + 1, time.tm_mday);
}

JsonValue certificate_json(const net::CertificateFacts& facts) {
  JsonValue out = JsonValue::object();
  out.set("name", facts.name);
  out.set("sha256", facts.sha256);
  out.set("ends_unix_s", facts.ends_unix_s);
  return out;
}

std::string certificate_text(const net::CertificateFacts& facts) {
  return fmt::format("{} until {}\n    sha256 {}", facts.name, date_text(facts.ends_unix_s), facts.sha256);
}

JsonValue done_json(std::string_view kind) {
  JsonValue out = JsonValue::object();
  out.set("ok", true);
  out.set("kind", kind);
  return out;
}

/// A folder as it was named, without the slashes at its end.
std::string folder_text(std::string folder) {
  while (folder.size() > 1 && folder.ends_with('/')) folder.pop_back();
  return folder;
}

/// A configuration starts relative paths at its own folder, a command line at the working directory.
std::string absolute(const std::string& path) {
  std::error_code error;
  const auto out = std::filesystem::absolute(path, error);
  return error ? path : out.lexically_normal().string();
}

// ---- ca

struct CaOptions {
  std::string folder;
  std::string name = "kvpack";
};

int run_ca(const Environment& environment, const CaOptions& options) {
  const Reporter reporter(*environment.common);
  const std::string folder = folder_text(options.folder);
  const auto made = net::make_enrolment_authority(*environment.fs, folder, options.name);
  if (!made.has_value()) return reporter.failure(as_named_file(made.error()), folder);
  JsonValue result = done_json("enroll_ca");
  result.set("folder", path_json(folder));
  result.set("certificate", certificate_json(*made));
  return reporter.success(result, fmt::format("{}: new CA {}\nKeep ca.key here; ca.pem goes to both ends.",
                                              printable(folder), certificate_text(*made)));
}

void add_ca(CLI::App& enroll, const Environment& environment) {
  auto* command = enroll.add_subcommand("ca", "Make the CA of a cluster in a new folder");
  command->footer(
      "Makes ca.key (0600, stays here), ca.pem (goes to both ends) and enrolled/, where every certificate is "
      "kept that\n"
      "was signed. The machine need not be on the network.\n\nExample:\n  kvpack enroll ca /root/kvpack-ca");
  const auto options = std::make_shared<CaOptions>();
  command->add_option("DIR", options->folder, "the folder to make")->required();
  command->add_option("--name", options->name, "shown to people (default: kvpack)")->type_name("TEXT");
  add_common(*command, *environment.common);
  when_chosen(*command, environment, options, run_ca);
}

// ---- request

const std::vector<std::string> kRoles{"receiver", "producer"};

net::EnrolmentRole role_of(const std::string& text) {
  return text == kRoles.front() ? net::EnrolmentRole::kReceiver : net::EnrolmentRole::kProducer;
}

struct RequestOptions {
  std::string folder;
  std::string role;
  std::string server_name;
  std::string key_id;
};

int run_request(const Environment& environment, const RequestOptions& options) {
  const Reporter reporter(*environment.common);
  const std::string folder = folder_text(options.folder);
  const net::EnrolmentRole role = role_of(options.role);
  const bool is_receiver = role == net::EnrolmentRole::kReceiver;
  if (!is_receiver && !options.key_id.empty())
    return reporter.failure(usage_error("--key-id is for a receiver, which makes the HMAC key"), "");
  const std::string key_id = options.key_id.empty() ? std::string(kDefaultKeyId) : options.key_id;
  SystemRandom random;
  const auto check =
      net::make_enrolment_request(*environment.fs, random, folder, role, options.server_name, key_id);
  if (!check.has_value()) return reporter.failure(as_named_file(check.error()), folder);
  JsonValue result = done_json("enroll_request");
  result.set("folder", path_json(folder));
  result.set("role", options.role);
  result.set("server_name", options.server_name);
  std::string prose = fmt::format("{}: new TLS key, and request.pem for {}\nTake request.pem to the CA.",
                                  printable(folder), printable(options.server_name));
  if (is_receiver) {
    result.set("key_id", key_id);
    result.set("key_check", *check);
    prose += fmt::format("\nHMAC key {}, check {}: carry hmac.key to the producer yourself.",
                         printable(key_id), *check);
  }
  return reporter.success(result, prose);
}

void add_request(CLI::App& enroll, const Environment& environment) {
  auto* command =
      enroll.add_subcommand("request", "Make an end's keys in a new folder, and a request for the CA");
  command->footer(
      "Run on the machine that the keys are for: tls.key (0600) never leaves it, request.pem goes to the CA. "
      "A receiver\n"
      "also makes hmac.key, the one secret that both ends need: carry it to the producer (scp -p, mode 0600) "
      "and compare\n"
      "the check that both ends print.\n\nExamples:\n"
      "  kvpack enroll request /etc/kvpack/receiver --role receiver --server-name gpu1.example\n"
      "  kvpack enroll request /etc/kvpack/producer --role producer --server-name gpu2.example");
  const auto options = std::make_shared<RequestOptions>();
  command->add_option("DIR", options->folder, "the folder to make")->required();
  command->add_option("--role", options->role, "receiver or producer")
      ->required()
      ->check(CLI::IsMember(kRoles))
      ->type_name("ROLE");
  command->add_option("--server-name", options->server_name, "name or address that the certificate is for")
      ->required()
      ->type_name("NAME");
  command->add_option("--key-id", options->key_id, "name of the HMAC key (default: kvpack-1)")
      ->type_name("TEXT");
  add_common(*command, *environment.common);
  when_chosen(*command, environment, options, run_request);
}

// ---- sign

struct SignOptions {
  std::string folder;
  std::string request;
  std::string out;
};

int run_sign(const Environment& environment, const SignOptions& options) {
  const Reporter reporter(*environment.common);
  const auto done =
      net::sign_enrolment_request(*environment.fs, folder_text(options.folder), options.request, options.out);
  if (!done.has_value()) return reporter.failure(as_named_file(done.error()), options.request);
  JsonValue result = done_json("enroll_sign");
  result.set("file", path_json(options.out));
  result.set("certificate", certificate_json(*done));
  return reporter.success(
      result, fmt::format("{}: certificate of {}", printable(options.out), certificate_text(*done)));
}

void add_sign(CLI::App& enroll, const Environment& environment) {
  auto* command = enroll.add_subcommand("sign", "Answer a request with a certificate");
  command->footer(
      "Run where the CA is. The certificate is for the name in the request, for both directions, for 397 "
      "days. A request\n"
      "whose public key was signed before is refused (exit code 4): two ends with one key could stand in for "
      "each other.\n"
      "Look at the name: it is what the request asks for, not what you know.\n\nExample:\n"
      "  kvpack enroll sign /root/kvpack-ca request.pem --out gpu1.pem");
  const auto options = std::make_shared<SignOptions>();
  command->add_option("CA", options->folder, "the folder of enroll ca")->required();
  command->add_option("REQUEST", options->request, "request.pem of the end")->required();
  command->add_option("--out", options->out, "where to put the certificate")->required()->type_name("FILE");
  add_common(*command, *environment.common);
  when_chosen(*command, environment, options, run_sign);
}

// ---- finish

struct FinishOptions {
  std::string folder;
  std::string role;
  std::string certificate;
  std::string authority;
  std::vector<std::string> peers;
  std::string model;
  std::string hmac_key;
  std::string key_id = std::string(kDefaultKeyId);
  std::uint64_t epoch = 1;
  std::uint64_t timeout_ms = 900'000;
  // receiver
  std::string listen;
  std::optional<std::uint64_t> wait_ms;
  std::string replay_ledger;
  std::string metrics_listen;
  std::string store;
  std::string receipts;
  // producer
  std::string receiver;
  std::string server_name;
  std::string generation_ledger;
  std::optional<std::uint64_t> pacing;
};

/// @error kState an option of the other role, or a missing one
Status check_roles(const FinishOptions& options) {
  const bool is_receiver = role_of(options.role) == net::EnrolmentRole::kReceiver;
  const std::pair<std::string_view, bool> of_receiver[]{{"--listen", !options.listen.empty()},
                                                        {"--wait-ms", options.wait_ms.has_value()},
                                                        {"--replay-ledger", !options.replay_ledger.empty()},
                                                        {"--metrics-listen", !options.metrics_listen.empty()},
                                                        {"--store", !options.store.empty()},
                                                        {"--receipts", !options.receipts.empty()}};
  const std::pair<std::string_view, bool> of_producer[]{
      {"--receiver", !options.receiver.empty()},
      {"--server-name", !options.server_name.empty()},
      {"--generation-ledger", !options.generation_ledger.empty()},
      {"--pacing", options.pacing.has_value()}};
  if (is_receiver) {
    for (const auto& [name, given] : of_producer)
      if (given) return usage_error(std::string(name) + " is for a producer");
    if (options.listen.empty()) return usage_error("a receiver needs --listen");
    return success();
  }
  for (const auto& [name, given] : of_receiver)
    if (given) return usage_error(std::string(name) + " is for a receiver");
  if (options.receiver.empty()) return usage_error("a producer needs --receiver");
  return success();
}

net::EnrolmentCredentials credentials_of(const FinishOptions& options) {
  net::EnrolmentCredentials out;
  out.directory = folder_text(options.folder);
  out.certificate_file = options.certificate;
  out.authority_file = options.authority;
  out.peer_files = options.peers;
  if (!options.hmac_key.empty()) out.hmac_key_file = absolute(options.hmac_key);
  out.hmac_key_id = options.key_id;
  out.hmac_epoch = options.epoch;
  out.timeout_ms = options.timeout_ms;
  return out;
}

std::optional<std::string> absolute_if_given(const std::string& path) {
  if (path.empty()) return std::nullopt;
  return absolute(path);
}

Result<net::FinishedEnrolment> finish(FileSystem& fs, const FinishOptions& options) {
  KVPACK_TRY(check_roles(options));
  KVPACK_TRY_ASSIGN(const net::EnrolledModel model, net::load_enrolled_model(fs, options.model));
  const SystemClock clock;
  if (role_of(options.role) == net::EnrolmentRole::kReceiver) {
    net::ReceiverEnrolment receiver;
    receiver.credentials = credentials_of(options);
    receiver.listen = options.listen;
    receiver.wait_for_producer_ms = options.wait_ms.value_or(receiver.wait_for_producer_ms);
    if (!options.replay_ledger.empty()) receiver.replay_ledger = absolute(options.replay_ledger);
    if (!options.metrics_listen.empty()) receiver.metrics_listen = options.metrics_listen;
    receiver.store = absolute_if_given(options.store);
    receiver.receipts = absolute_if_given(options.receipts);
    return net::finish_receiver_enrolment(fs, clock, receiver, model);
  }
  net::ProducerEnrolment producer;
  producer.credentials = credentials_of(options);
  producer.receiver = options.receiver;
  producer.server_name = options.server_name;
  if (!options.generation_ledger.empty()) producer.generation_ledger = absolute(options.generation_ledger);
  producer.pacing_bytes_per_second = options.pacing;
  return net::finish_producer_enrolment(fs, clock, producer, model);
}

int run_finish(const Environment& environment, const FinishOptions& options) {
  const Reporter reporter(*environment.common);
  const auto done = finish(*environment.fs, options);
  if (!done.has_value()) return reporter.failure(as_named_file(done.error()), "");
  JsonValue result = done_json("enroll_finish");
  result.set("role", options.role);
  result.set("config", path_json(done->config_file));
  result.set("certificate", certificate_json(done->certificate));
  JsonValue peers = JsonValue::array();
  std::string peer_lines;
  for (const net::CertificateFacts& peer : done->peers) {
    peers.push(certificate_json(peer));
    peer_lines += "\n  peer " + certificate_text(peer);
  }
  result.set("peers", std::move(peers));
  result.set("key_id", options.key_id);
  result.set("key_check", done->key_check);
  result.set("model_check", done->model_check);
  result.set("slowest_reservation_ns", done->slowest_reservation_ns);
  return reporter.success(
      result,
      fmt::format(
          "{}: {} is enrolled\n  own {}{}\n  key check {} of {}, model check {}: both must be the same on "
          "the other end\n  slowest reservation {}",
          printable(done->config_file), options.role, certificate_text(done->certificate), peer_lines,
          done->key_check, printable(options.key_id), done->model_check,
          net::duration_text(done->slowest_reservation_ns)));
}

void add_finish_files(CLI::App& command, FinishOptions& options) {
  command.add_option("DIR", options.folder, "the folder of enroll request")->required();
  command.add_option("--role", options.role, "receiver or producer")
      ->required()
      ->check(CLI::IsMember(kRoles))
      ->type_name("ROLE");
  command.add_option("--certificate", options.certificate, "this end's, from enroll sign")
      ->required()
      ->type_name("FILE");
  command.add_option("--ca", options.authority, "ca.pem")->required()->type_name("FILE");
  command.add_option("--peer", options.peers, "the other end's certificate (repeatable)")
      ->required()
      ->allow_extra_args(false)
      ->type_name("FILE");
  command.add_option("--model", options.model, "what is transferred; the same file on both ends")
      ->required()
      ->type_name("FILE");
  command.add_option("--hmac-key", options.hmac_key, "the shared key (default: hmac.key in DIR)")
      ->type_name("FILE");
  command.add_option("--key-id", options.key_id, "its name (default: kvpack-1)")->type_name("TEXT");
  command
      .add_option("--epoch", options.epoch, "its epoch, for a receiver the lowest it accepts (default: 1)")
      ->type_name("N");
  command.add_option("--timeout-ms", options.timeout_ms, "of one transfer (default: 900000)")
      ->type_name("MS");
}

void add_finish_roles(CLI::App& command, FinishOptions& options) {
  auto* receiver = command.add_option_group("Receiver");
  receiver->add_option("--listen", options.listen, "where producers connect")->type_name("IP:PORT");
  receiver->add_option("--wait-ms", options.wait_ms, "how long a producer may be silent (default: 60000)")
      ->type_name("MS");
  receiver->add_option("--replay-ledger", options.replay_ledger, "default: replay.json in DIR")
      ->type_name("FILE");
  receiver->add_option("--metrics-listen", options.metrics_listen, "loopback address for GET /metrics")
      ->type_name("IP:PORT");
  receiver->add_option("--store", options.store, "store to persist into")->type_name("FOLDER");
  receiver->add_option("--receipts", options.receipts, "file for one JSON line per attempt")
      ->type_name("FILE");
  auto* producer = command.add_option_group("Producer");
  producer->add_option("--receiver", options.receiver, "where to connect")->type_name("HOST:PORT");
  producer
      ->add_option("--server-name", options.server_name,
                   "what its certificate is for (default: the host of --receiver)")
      ->type_name("NAME");
  producer->add_option("--generation-ledger", options.generation_ledger, "default: generation.json in DIR")
      ->type_name("FILE");
  producer->add_option("--pacing", options.pacing, "bytes per second; 0: none (default: 1000000000)")
      ->type_name("BYTES");
}

void add_finish(CLI::App& enroll, const Environment& environment) {
  auto* command =
      enroll.add_subcommand("finish", "Check what came back from the CA and write an end's configuration");
  command->footer(
      "Checks that key, certificates, CA and names belong together, probes the volume of the ledger, and "
      "writes\n"
      "receiver.json, local.json and an empty replay.json, or producer.json, into DIR. Nothing is written "
      "unless all is\n"
      "well, and nothing that exists is replaced. Both ends print two checks; they must be the "
      "same.\n\nExamples:\n"
      "  kvpack enroll finish /etc/kvpack/receiver --role receiver --certificate gpu1.pem --ca ca.pem --peer "
      "gpu2.pem \\\n"
      "    --model model.json --listen 0.0.0.0:29590\n"
      "  kvpack enroll finish /etc/kvpack/producer --role producer --certificate gpu2.pem --ca ca.pem --peer "
      "gpu1.pem \\\n"
      "    --model model.json --hmac-key hmac.key --receiver gpu1.example:29590");
  const auto options = std::make_shared<FinishOptions>();
  add_finish_files(*command, *options);
  add_finish_roles(*command, *options);
  add_common(*command, *environment.common);
  when_chosen(*command, environment, options, run_finish);
}

}  // namespace

void add_enroll(CLI::App& app, const Environment& environment) {
  auto* enroll = app.add_subcommand(
      "enroll", "Let two machines trust each other: CA, keys, certificates, configurations");
  enroll->require_subcommand(1);
  enroll->footer(
      "In order: ca (once), request (on each machine), sign (where the CA is, for each request), finish (on "
      "each machine).\n"
      "Private keys stay where they are made. A walk through it, and how credentials are changed later: "
      "docs/operations.md.");
  add_ca(*enroll, environment);
  add_request(*enroll, environment);
  add_sign(*enroll, environment);
  add_finish(*enroll, environment);
}

}  // namespace kvpack::cli
