#include "kvpack/net/enrolment.h"

#include <algorithm>

#include "kvpack/base/publish.h"
#include "kvpack/crypto/sha256.h"
#include "kvpack/handoff/begin.h"
#include "kvpack/handoff/mac_key_file.h"
#include "kvpack/net/producer_config.h"
#include "kvpack/net/receiver_config.h"
#include "kvpack/net/receiver_settings.h"
#include "kvpack/net/replay_ledger.h"
#include "kvpack/net/volume_probe.h"
#include "net/settings_file.h"
#include "net/tls_certificates.h"
#include "net/tls_verification.h"

namespace kvpack::net {

namespace {

constexpr std::size_t kCheckDigits = 16;
constexpr std::size_t kMaxKeyNameBytes = 128;
constexpr std::size_t kMaxEnrolled = 65'536;
constexpr std::uint64_t kMaxRequestFileBytes = 65'536;

Error refuse(std::string text) {
  return fail(ErrorCode::kValidation, std::move(text));
}

/// What a file from elsewhere says wrong is a refusal, not a mistake in a configuration of this machine.
template <class T>
Result<T> as_refusal(Result<T> result) {
  if (!result.has_value() && result.error().code == ErrorCode::kConfig)
    result.error().code = ErrorCode::kValidation;
  return result;
}

Status check_key_id(std::string_view key_id) {
  if (key_id.empty() || key_id.size() > kMaxKeyNameBytes || !is_utf8(key_id))
    return fail(ErrorCode::kState, "key id must be 1 to 128 bytes of UTF-8");
  return success();
}

Status write_new_file(Directory& directory, std::string_view name, ByteSpan content) {
  KVPACK_TRY_ASSIGN(const auto file, directory.create(name));
  return write_all(*file, 0, content);
}

Status write_private_key(Directory& directory, std::string_view name, const PrivateKey& key) {
  KVPACK_TRY_ASSIGN(Bytes pem, private_key_pem(key));
  const WipeOnExit wipe(pem);
  return write_new_file(directory, name, pem);
}

Result<CertificateFacts> facts_of(const Certificate& certificate) {
  CertificateFacts out;
  out.name = certificate_name(certificate);
  KVPACK_TRY_ASSIGN(out.sha256, leaf_sha256(certificate));
  KVPACK_TRY_ASSIGN(out.ends_unix_s, certificate_end(certificate));
  return out;
}

}  // namespace

Result<std::string> mac_key_check(const handoff::MacKey& key, std::string_view key_id) {
  KVPACK_TRY(check_key_id(key_id));
  KVPACK_TRY_ASSIGN(std::string tag, key.tag_domain_hex(byte_view("kvpack-key-check-v1"), byte_view(key_id)));
  tag.resize(kCheckDigits);
  return tag;
}

// ---- CA

Result<CertificateFacts> make_enrolment_authority(FileSystem& fs, std::string_view directory,
                                                  const std::string& name) {
  const auto is_plain = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' ||
           c == '_' || c == ' ' || c == '-';
  };
  if (name.empty() || name.size() > 64 || !std::ranges::all_of(name, is_plain))
    return fail(ErrorCode::kState, "name of a CA must be 1 to 64 characters of [A-Za-z0-9._ -]");
  KVPACK_TRY_ASSIGN(const PrivateKey key, make_private_key());
  KVPACK_TRY_ASSIGN(const Certificate certificate, make_authority(key, name));
  KVPACK_TRY_ASSIGN(const CertificateFacts facts, facts_of(certificate));
  KVPACK_TRY_ASSIGN(const std::string pem, certificate_pem(certificate));
  KVPACK_TRY_ASSIGN(const Place place, open_or_make_place(fs, directory));
  KVPACK_TRY_ASSIGN(DirectoryPublication folder, DirectoryPublication::begin(*place.directory));
  KVPACK_TRY(write_private_key(folder.directory(), kAuthorityKeyFile, key));
  KVPACK_TRY(write_new_file(folder.directory(), kAuthorityFile, byte_view(pem)));
  KVPACK_TRY(folder.directory().make_directory(kEnrolledFolder));
  KVPACK_TRY(folder.commit(place.name));
  return facts;
}

namespace {

struct LoadedAuthority {
  PrivateKey key;
  Certificate certificate;
};

Result<LoadedAuthority> load_authority(FileSystem& fs, std::string_view directory) {
  KVPACK_TRY_ASSIGN(PrivateKey key, read_private_key(fs, join_path(directory, kAuthorityKeyFile)));
  KVPACK_TRY_ASSIGN(std::vector<Certificate> certificates,
                    read_certificates(fs, join_path(directory, kAuthorityFile)));
  LoadedAuthority out{std::move(key), std::move(certificates.front())};
  KVPACK_TRY_ASSIGN(const Bytes of_key, private_key_public(out.key));
  KVPACK_TRY_ASSIGN(const Bytes of_certificate, certificate_public_key(out.certificate));
  if (of_key != of_certificate) return refuse("CA key and certificate do not belong together");
  return out;
}

/// @param folder  of enrolled certificates, locked
Status check_key_is_new(FileSystem& fs, Directory& folder, ByteSpan public_key) {
  std::vector<std::string> names;
  KVPACK_TRY(folder.list([&](std::string_view name) {
    // Those with a dot in front are ours on their way.
    if (!name.starts_with('.') && name.ends_with(".pem")) names.emplace_back(name);
    return names.size() <= kMaxEnrolled;
  }));
  if (names.size() > kMaxEnrolled) return fail(ErrorCode::kLimit, "too many enrolled certificates");
  for (const std::string& name : names) {
    KVPACK_TRY_ASSIGN(const auto enrolled, read_certificates(fs, join_path(folder.path(), name)));
    KVPACK_TRY_ASSIGN(const Bytes known, certificate_public_key(enrolled.front()));
    if (std::ranges::equal(known, public_key))
      return fail(ErrorCode::kExpectation, "public key is already enrolled")
          .with("object", name.substr(0, name.size() - std::string_view(".pem").size()));
  }
  return success();
}

/// Files that are published one after the other, and go again unless all of them came.
class FreshFiles {
 public:
  explicit FreshFiles(Directory& directory) : directory_(&directory) {}
  FreshFiles(const FreshFiles&) = delete;
  FreshFiles& operator=(const FreshFiles&) = delete;
  ~FreshFiles() {
    // What the first error left can be told no better than by that error.
    for (const std::string& name : names_) static_cast<void>(directory_->unlink(name));
  }

  Status publish(std::string_view name, ByteSpan content) {
    auto published = publish_bytes(*directory_, name, content);
    if (!published.has_value())
      return std::move(published.error()).with("object", join_path(directory_->path(), name));
    if (*published == Published::kNew) names_.emplace_back(name);
    return success();
  }
  void keep() noexcept { names_.clear(); }

 private:
  Directory* directory_;
  std::vector<std::string> names_;
};

}  // namespace

Result<CertificateFacts> sign_enrolment_request(FileSystem& fs, std::string_view authority_directory,
                                                std::string_view request_file,
                                                std::string_view certificate_file) {
  KVPACK_TRY_ASSIGN(const LoadedAuthority authority, load_authority(fs, authority_directory));
  KVPACK_TRY_ASSIGN(const Bytes request, read_file_bounded(fs, request_file, kMaxRequestFileBytes));
  const std::string_view pem = text_view(request);
  KVPACK_TRY_ASSIGN(const Bytes public_key, as_refusal(request_public_key(pem)));
  KVPACK_TRY_ASSIGN(const Bytes authority_key, certificate_public_key(authority.certificate));
  if (public_key == authority_key) return refuse("request has the key of the CA");
  KVPACK_TRY_ASSIGN(const auto folder,
                    fs.open_directory(join_path(authority_directory, kEnrolledFolder), Links::kRefuse));
  // Two requests with one key at the same time: the second finds the first.
  if (!folder->lock()) return fail(ErrorCode::kIo, "lock " + folder->path() + ": not supported");
  KVPACK_TRY(check_key_is_new(fs, *folder, public_key));
  KVPACK_TRY_ASSIGN(const Certificate certificate,
                    as_refusal(sign_request(authority.key, authority.certificate, pem)));
  KVPACK_TRY_ASSIGN(const CertificateFacts facts, facts_of(certificate));
  KVPACK_TRY_ASSIGN(const std::string signed_pem, certificate_pem(certificate));
  KVPACK_TRY_ASSIGN(const Place place, open_place(fs, certificate_file));
  // Recorded before it is handed out: no certificate is in the world that the CA does not know.
  FreshFiles record(*folder);
  KVPACK_TRY(record.publish(facts.sha256 + ".pem", byte_view(signed_pem)));
  FreshFiles answer(*place.directory);
  KVPACK_TRY(answer.publish(place.name, byte_view(signed_pem)));
  answer.keep();
  record.keep();
  return facts;
}

// ---- an end

Result<std::string> make_enrolment_request(FileSystem& fs, RandomSource& random, std::string_view directory,
                                           EnrolmentRole role, const std::string& server_name,
                                           std::string_view key_id) {
  KVPACK_TRY_ASSIGN(const PrivateKey key, make_private_key());
  KVPACK_TRY_ASSIGN(const std::string request, make_request(key, server_name));
  KVPACK_TRY(check_key_id(key_id));
  KVPACK_TRY_ASSIGN(const Place place, open_or_make_place(fs, directory));
  KVPACK_TRY_ASSIGN(DirectoryPublication folder, DirectoryPublication::begin(*place.directory));
  KVPACK_TRY(write_private_key(folder.directory(), kTlsKeyFile, key));
  KVPACK_TRY(write_new_file(folder.directory(), kRequestFile, byte_view(request)));
  std::string check;
  if (role == EnrolmentRole::kReceiver) {
    std::array<std::uint8_t, handoff::MacKey::kBytes> secret{};
    const WipeOnExit wipe(secret);
    KVPACK_TRY(random.fill(secret));
    const handoff::MacKey mac(secret);
    KVPACK_TRY_ASSIGN(check, mac_key_check(mac, key_id));
    KVPACK_TRY(handoff::write_mac_key(fs, join_path(folder.directory().path(), kHmacKeyFile), mac));
  }
  KVPACK_TRY(folder.commit(place.name));
  return check;
}

namespace {

Status check_model_digests(const handoff::ExactIdentity& identity, const JsonPath& path) {
  const std::pair<std::string_view, const std::string*> digests[]{
      {"adapter_sha256", &identity.adapter_sha256},
      {"chat_template_sha256", &identity.chat_template_sha256},
      {"context_policy_sha256", &identity.context_policy_sha256},
      {"model_sha256", &identity.model_sha256},
      {"tokenizer_sha256", &identity.tokenizer_sha256}};
  for (const auto& [key, digest] : digests)
    if (!handoff::is_digest_text(*digest)) return json_field_error({path, key}, "must be lowercase SHA-256");
  return success();
}

}  // namespace

Result<EnrolledModel> load_enrolled_model(FileSystem& fs, std::string_view path) {
  static constexpr std::array<std::string_view, 4> kKeys{"identity", "target_cache_identity_sha256",
                                                         "dflash_identity_sha256", "dflash_context_geometry"};
  KVPACK_TRY_ASSIGN(const Bytes content, read_file_bounded(fs, path, kMaxSettingsBytes));
  KVPACK_TRY_ASSIGN(const JsonValue file, parse_json(content, kMaxSettingsBytes));
  const JsonPath root;
  KVPACK_TRY_ASSIGN(const JsonFields fields, JsonFields::open(file, kKeys, UnknownKeys::kRefuse, root));
  EnrolledModel out;
  const JsonPath identity_path = fields.path("identity");
  KVPACK_TRY_ASSIGN(const JsonValue* identity, fields.required("identity"));
  KVPACK_TRY_ASSIGN(const auto parsed, handoff::parse_exact_identity(*identity, identity_path));
  KVPACK_TRY(check_model_digests(parsed, identity_path));
  out.identity = identity->clone();
  KVPACK_TRY_ASSIGN(out.target_cache_identity_sha256, fields.text("target_cache_identity_sha256"));
  KVPACK_TRY_ASSIGN(out.dflash_identity_sha256, fields.optional_text("dflash_identity_sha256"));
  if (!handoff::is_digest_text(out.target_cache_identity_sha256))
    return json_field_error(fields.path("target_cache_identity_sha256"), "must be lowercase SHA-256");
  if (out.dflash_identity_sha256.has_value() && !handoff::is_digest_text(*out.dflash_identity_sha256))
    return json_field_error(fields.path("dflash_identity_sha256"), "must be lowercase SHA-256");
  if (const JsonValue* geometry = fields.optional("dflash_context_geometry"))
    out.dflash_context_geometry = geometry->clone();
  out.check = to_hex(sha256(canonical_json(file))).substr(0, kCheckDigits);
  return out;
}

namespace {

/// Credentials that were found to belong together.
struct JudgedCredentials {
  Bytes certificate;
  Bytes authority;
  CertificateFacts own;
  std::vector<CertificateFacts> peers;
};

Result<JudgedCredentials> judge(FileSystem& fs, const EnrolmentCredentials& given, EnrolmentRole role,
                                const std::string& server_name) {
  const bool is_receiver = role == EnrolmentRole::kReceiver;
  JudgedCredentials out;
  const std::string key_file = join_path(given.directory, kTlsKeyFile);
  KVPACK_TRY_ASSIGN(const PrivateKey key, read_private_key(fs, key_file));
  KVPACK_TRY_ASSIGN(const Bytes own_key, private_key_public(key));
  KVPACK_TRY_ASSIGN(out.certificate, read_file_bounded(fs, given.certificate_file, kMaxSettingsBytes));
  KVPACK_TRY_ASSIGN(out.authority, read_file_bounded(fs, given.authority_file, kMaxSettingsBytes));
  KVPACK_TRY_ASSIGN(const auto chain, as_refusal(read_certificates(fs, given.certificate_file)));
  KVPACK_TRY_ASSIGN(const auto authorities, as_refusal(read_certificates(fs, given.authority_file)));
  KVPACK_TRY_ASSIGN(const Bytes certified, certificate_public_key(chain.front()));
  if (certified != own_key) return refuse("certificate is not for the key in " + key_file);
  KVPACK_TRY(check_chain(chain, authorities, is_receiver ? LeafUse::kServer : LeafUse::kClient));
  KVPACK_TRY_ASSIGN(out.own, facts_of(chain.front()));
  for (const std::string& file : given.peer_files) {
    KVPACK_TRY_ASSIGN(const auto peer, as_refusal(read_certificates(fs, file)));
    KVPACK_TRY_ASSIGN(const Bytes peer_key, certificate_public_key(peer.front()));
    if (peer_key == own_key) return refuse("peer certificate has this end's own key");
    KVPACK_TRY(check_chain(peer, authorities, is_receiver ? LeafUse::kClient : LeafUse::kServer));
    if (!is_receiver) KVPACK_TRY(check_server_name(peer.front(), server_name));
    KVPACK_TRY_ASSIGN(CertificateFacts facts, facts_of(peer.front()));
    out.peers.push_back(std::move(facts));
  }
  return out;
}

void set_model(JsonValue& config, const EnrolledModel& model) {
  config.set("identity", model.identity.clone());
  config.set("target_cache_identity_sha256", model.target_cache_identity_sha256);
  if (model.dflash_identity_sha256.has_value())
    config.set("dflash_identity_sha256", *model.dflash_identity_sha256);
}

void set_credentials(JsonValue& config, const EnrolmentCredentials& given, const JudgedCredentials& judged) {
  config.set("certificate_chain", kCertificateFile);
  config.set("private_key", kTlsKeyFile);
  config.set("peer_ca", kAuthorityFile);
  std::vector<std::string> pins;
  for (const CertificateFacts& peer : judged.peers) pins.push_back(peer.sha256);
  std::ranges::sort(pins);
  pins.erase(std::unique(pins.begin(), pins.end()), pins.end());
  JsonValue list = JsonValue::array();
  for (std::string& pin : pins) list.push(std::move(pin));
  config.set("peer_leaf_sha256", std::move(list));
  config.set("hmac_key_file", given.hmac_key_file);
  config.set("hmac_key_id", given.hmac_key_id);
  config.set("timeout_ms", given.timeout_ms);
}

Bytes file_content(const JsonValue& value) {
  const std::string text = pretty_json_text(value) + "\n";
  return {text.begin(), text.end()};
}

std::string directory_above(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

/// @return the slowest of the samples
Result<std::uint64_t> probe(FileSystem& fs, const Clock& clock, const std::string& ledger) {
  const std::string directory = directory_above(ledger);
  KVPACK_TRY_ASSIGN(const auto samples, probe_volume(fs, clock, directory));
  KVPACK_TRY(judge_volume(directory, samples));
  return summarize_samples(samples).max_ns;
}

FinishedEnrolment report(std::string config_file, JudgedCredentials judged, std::string key_check,
                         const EnrolledModel& model, std::uint64_t slowest_ns) {
  FinishedEnrolment out;
  out.config_file = std::move(config_file);
  out.certificate = std::move(judged.own);
  out.peers = std::move(judged.peers);
  out.key_check = std::move(key_check);
  out.model_check = model.check;
  out.slowest_reservation_ns = slowest_ns;
  return out;
}

}  // namespace

Result<FinishedEnrolment> finish_receiver_enrolment(FileSystem& fs, const Clock& clock,
                                                    const ReceiverEnrolment& receiver,
                                                    const EnrolledModel& model) {
  const EnrolmentCredentials& given = receiver.credentials;
  KVPACK_TRY_ASSIGN(JudgedCredentials judged, judge(fs, given, EnrolmentRole::kReceiver, {}));
  const std::string config_file = join_path(given.directory, kReceiverConfigFile);
  const std::string settings_file = join_path(given.directory, kReceiverSettingsFile);
  KVPACK_TRY_ASSIGN(const handoff::MacKey mac,
                    handoff::read_consumer_mac_key(fs, resolve_beside(config_file, given.hmac_key_file)));
  KVPACK_TRY_ASSIGN(std::string check, mac_key_check(mac, given.hmac_key_id));
  JsonValue config = JsonValue::object();
  config.set("schema_version", std::uint32_t{1});
  config.set("listen", receiver.listen);
  set_credentials(config, given, judged);
  config.set("minimum_hmac_epoch", given.hmac_epoch);
  config.set("replay_ledger", receiver.replay_ledger);
  config.set("wait_for_producer_ms", std::min(receiver.wait_for_producer_ms, given.timeout_ms));
  set_model(config, model);
  if (!model.dflash_context_geometry.is_null())
    config.set("dflash_context_geometry", model.dflash_context_geometry.clone());
  JsonValue settings = JsonValue::object();
  settings.set("schema", "kvpack.receiver.local.v1");
  if (receiver.metrics_listen.has_value()) settings.set("metrics_listen", *receiver.metrics_listen);
  if (receiver.store.has_value()) settings.set("store", *receiver.store);
  if (receiver.receipts.has_value()) settings.set("receipts", *receiver.receipts);

  const std::string ledger = resolve_beside(config_file, receiver.replay_ledger);
  KVPACK_TRY_ASSIGN(const std::uint64_t slowest_ns, probe(fs, clock, ledger));
  KVPACK_TRY_ASSIGN(const auto directory, fs.open_directory(given.directory, Links::kFollow));
  KVPACK_TRY_ASSIGN(const Place ledger_place, open_place(fs, ledger));
  FreshFiles files(*directory);
  FreshFiles ledgers(*ledger_place.directory);
  KVPACK_TRY(files.publish(kCertificateFile, judged.certificate));
  KVPACK_TRY(files.publish(kAuthorityFile, judged.authority));
  KVPACK_TRY(files.publish(kReceiverSettingsFile, file_content(settings)));
  KVPACK_TRY(load_receiver_settings(fs, settings_file));
  const auto known = ledger_place.directory->facts(ledger_place.name);
  if (!known.has_value() && known.error().code == ErrorCode::kNotFound) {
    // A new one would hide that the old one has gone, and with it what was taken before.
    if (directory->facts(kReceiverConfigFile).has_value())
      return fail(ErrorCode::kConfig, "replay ledger " + ledger +
                                          " of a finished enrolment is missing: raise the epoch, and the "
                                          "receiver creates it at its next start");
    KVPACK_TRY(ledgers.publish(ledger_place.name, encode_replay_watermarks({})));
  }
  // Also when it was there: an enrolment that a receiver would not start with is not finished.
  KVPACK_TRY(ReplayLedgerFile::open(fs, clock, ledger));
  KVPACK_TRY(files.publish(kReceiverConfigFile, file_content(config)));
  KVPACK_TRY(load_receiver_config(fs, config_file));
  files.keep();
  ledgers.keep();
  return report(config_file, std::move(judged), std::move(check), model, slowest_ns);
}

Result<FinishedEnrolment> finish_producer_enrolment(FileSystem& fs, const Clock& clock,
                                                    const ProducerEnrolment& producer,
                                                    const EnrolledModel& model) {
  const EnrolmentCredentials& given = producer.credentials;
  KVPACK_TRY_ASSIGN(const HostPort receiver, parse_host_port(producer.receiver));
  const std::string& server_name = producer.server_name.empty() ? receiver.host : producer.server_name;
  KVPACK_TRY_ASSIGN(JudgedCredentials judged, judge(fs, given, EnrolmentRole::kProducer, server_name));
  const std::string config_file = join_path(given.directory, kProducerConfigFile);
  KVPACK_TRY_ASSIGN(const handoff::MacKey mac,
                    handoff::read_producer_mac_key(fs, resolve_beside(config_file, given.hmac_key_file)));
  KVPACK_TRY_ASSIGN(std::string check, mac_key_check(mac, given.hmac_key_id));
  JsonValue config = JsonValue::object();
  config.set("schema", "kvpack.producer.v1");
  config.set("receiver", producer.receiver);
  config.set("server_name", server_name);
  set_credentials(config, given, judged);
  config.set("hmac_epoch", given.hmac_epoch);
  config.set("generation_ledger", producer.generation_ledger);
  if (producer.pacing_bytes_per_second.has_value())
    config.set("pacing_bytes_per_second", *producer.pacing_bytes_per_second);
  set_model(config, model);

  KVPACK_TRY_ASSIGN(const std::uint64_t slowest_ns,
                    probe(fs, clock, resolve_beside(config_file, producer.generation_ledger)));
  KVPACK_TRY_ASSIGN(const auto directory, fs.open_directory(given.directory, Links::kFollow));
  FreshFiles files(*directory);
  KVPACK_TRY(files.publish(kCertificateFile, judged.certificate));
  KVPACK_TRY(files.publish(kAuthorityFile, judged.authority));
  KVPACK_TRY(files.publish(kProducerConfigFile, file_content(config)));
  KVPACK_TRY(load_producer_config(fs, config_file));
  files.keep();
  return report(config_file, std::move(judged), std::move(check), model, slowest_ns);
}

}  // namespace kvpack::net
