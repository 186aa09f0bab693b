#include "kvpack/net/producer_config.h"

#include <algorithm>

#include "kvpack/net/receiver_config.h"
#include "net/settings_file.h"

namespace kvpack::net {

namespace {

constexpr std::string_view kProducerSchema = "kvpack.producer.v1";

constexpr std::array<std::string_view, 17> kProducerKeys{"schema",
                                                         "receiver",
                                                         "server_name",
                                                         "certificate_chain",
                                                         "private_key",
                                                         "peer_ca",
                                                         "peer_leaf_sha256",
                                                         "hmac_key_file",
                                                         "hmac_key_id",
                                                         "hmac_epoch",
                                                         "generation_ledger",
                                                         "pacing_bytes_per_second",
                                                         "timeout_ms",
                                                         "identity",
                                                         "target_cache_identity_sha256",
                                                         "dflash_identity_sha256",
                                                         "control"};

Result<std::string> read_digest(const JsonFields& fields, std::string_view key) {
  KVPACK_TRY_ASSIGN(std::string text, fields.text(key));
  if (!handoff::is_digest_text(text)) return json_field_error(fields.path(key), "must be lowercase SHA-256");
  return text;
}

Status parse_identities(const JsonFields& fields, ProducerConfig& out) {
  const JsonPath path = fields.path("identity");
  KVPACK_TRY_ASSIGN(const JsonValue* identity, fields.required("identity"));
  KVPACK_TRY_ASSIGN(out.identity, handoff::parse_exact_identity(*identity, path));
  const std::pair<std::string_view, const std::string*> digests[]{
      {"adapter_sha256", &out.identity.adapter_sha256},
      {"chat_template_sha256", &out.identity.chat_template_sha256},
      {"context_policy_sha256", &out.identity.context_policy_sha256},
      {"model_sha256", &out.identity.model_sha256},
      {"tokenizer_sha256", &out.identity.tokenizer_sha256}};
  for (const auto& [key, digest] : digests)
    if (!handoff::is_digest_text(*digest)) return json_field_error({path, key}, "must be lowercase SHA-256");
  KVPACK_TRY_ASSIGN(out.target_cache_identity_sha256, read_digest(fields, "target_cache_identity_sha256"));
  if (fields.optional("dflash_identity_sha256") != nullptr) {
    KVPACK_TRY_ASSIGN(out.dflash_identity_sha256, read_digest(fields, "dflash_identity_sha256"));
  }
  return success();
}

Status parse_pins(const JsonFields& fields, ProducerConfig& out) {
  KVPACK_TRY_ASSIGN(const JsonArray* pins, fields.array("peer_leaf_sha256"));
  const JsonPath path = fields.path("peer_leaf_sha256");
  if (pins->empty()) return json_field_error(path, "must pin at least one receiver TLS leaf");
  for (std::size_t i = 0; i < pins->size(); ++i) {
    const JsonPath place(path, i);
    KVPACK_TRY_ASSIGN(std::string pin, json_text((*pins)[i], place));
    if (!handoff::is_digest_text(pin)) return json_field_error(place, "must be lowercase SHA-256");
    out.peer_leaf_sha256.insert(std::move(pin));
  }
  return success();
}

Status parse_endpoints(const JsonFields& fields, ProducerConfig& out) {
  KVPACK_TRY_ASSIGN(const std::string receiver, fields.text("receiver"));
  auto host_port = parse_host_port(receiver);
  if (!host_port.has_value()) return json_field_error(fields.path("receiver"), "must be host:port");
  out.receiver = *std::move(host_port);
  KVPACK_TRY_ASSIGN(out.server_name, fields.text("server_name"));
  if (out.server_name.empty() || out.server_name.size() > 253)
    return json_field_error(fields.path("server_name"), "must be 1 to 253 bytes");
  KVPACK_TRY_ASSIGN(const auto pacing, fields.optional_number<std::uint64_t>("pacing_bytes_per_second"));
  out.pacing_bytes_per_second = pacing.value_or(out.pacing_bytes_per_second);
  KVPACK_TRY_ASSIGN(const auto timeout, fields.optional_number<std::uint64_t>("timeout_ms"));
  out.timeout_ms = timeout.value_or(out.timeout_ms);
  if (out.timeout_ms == 0 || out.timeout_ms > kMaxTimeoutMs)
    return json_field_error(fields.path("timeout_ms"), "must be in 1 to 900000");
  if (const JsonValue* control = fields.optional("control")) {
    static constexpr std::array<std::string_view, 1> kControlKeys{"listen"};
    const JsonPath path = fields.path("control");
    KVPACK_TRY_ASSIGN(const JsonFields inner,
                      JsonFields::open(*control, kControlKeys, UnknownKeys::kRefuse, path));
    KVPACK_TRY_ASSIGN(const std::string listen, inner.text("listen"));
    auto address = parse_socket_address(listen);
    if (!address.has_value()) return json_field_error(inner.path("listen"), "must be ip:port");
    out.control_listen = *std::move(address);
  }
  return success();
}

Status parse_credentials(const JsonFields& fields, std::string_view file, ProducerConfig& out) {
  const std::pair<std::string_view, std::string*> paths[]{{"certificate_chain", &out.certificate_chain},
                                                          {"private_key", &out.private_key},
                                                          {"peer_ca", &out.peer_ca},
                                                          {"hmac_key_file", &out.hmac_key_file},
                                                          {"generation_ledger", &out.generation_ledger}};
  for (const auto& [key, place] : paths) {
    KVPACK_TRY_ASSIGN(const std::string text, fields.text(key));
    if (text.empty()) return json_field_error(fields.path(key), "must not be empty");
    *place = resolve_beside(file, text);
  }
  KVPACK_TRY_ASSIGN(out.hmac_key_id, fields.text("hmac_key_id"));
  if (out.hmac_key_id.empty() || out.hmac_key_id.size() > 128)
    return json_field_error(fields.path("hmac_key_id"), "must be 1 to 128 bytes");
  KVPACK_TRY_ASSIGN(out.hmac_epoch, fields.number<std::uint64_t>("hmac_epoch"));
  if (out.hmac_epoch == 0) return json_field_error(fields.path("hmac_epoch"), "must be at least 1");
  return success();
}

Status check_files(FileSystem& fs, const JsonFields& fields, const ProducerConfig& config) {
  const std::pair<std::string_view, const std::string*> files[]{
      {"certificate_chain", &config.certificate_chain},
      {"private_key", &config.private_key},
      {"peer_ca", &config.peer_ca},
      {"hmac_key_file", &config.hmac_key_file}};
  for (const auto& [key, path] : files)
    if (!is_file(fs, *path)) return json_field_error(fields.path(key), "is not a file: " + *path);
  return success();
}

Result<ProducerConfig> parse(FileSystem& fs, ByteSpan content, std::string_view file) {
  KVPACK_TRY_ASSIGN(const JsonValue value, parse_json(content, kMaxSettingsBytes));
  const JsonPath root;
  KVPACK_TRY_ASSIGN(const JsonFields fields,
                    JsonFields::open(value, kProducerKeys, UnknownKeys::kRefuse, root));
  KVPACK_TRY_ASSIGN(const std::string schema, fields.text("schema"));
  if (schema != kProducerSchema)
    return json_field_error(fields.path("schema"), "must be " + std::string(kProducerSchema));
  ProducerConfig out;
  KVPACK_TRY(parse_endpoints(fields, out));
  KVPACK_TRY(parse_credentials(fields, file, out));
  KVPACK_TRY(parse_pins(fields, out));
  KVPACK_TRY(parse_identities(fields, out));
  KVPACK_TRY(check_files(fs, fields, out));
  return out;
}

}  // namespace

Result<ProducerConfig> load_producer_config(FileSystem& fs, const std::string& path) {
  const auto content = read_file_bounded(fs, path, kMaxSettingsBytes);
  if (!content.has_value())
    return fail(ErrorCode::kConfig, "read producer settings " + path + ": " + content.error().message);
  auto config = parse(fs, *content, path);
  if (!config.has_value())
    return fail(ErrorCode::kConfig, "producer settings " + path + ": " + config.error().message);
  return config;
}

}  // namespace kvpack::net
