#include "kvpack/net/receiver_config.h"

#include <algorithm>

#include "kvpack/core/canonical_json.h"
#include "net/config_error.h"
#include "net/settings_file.h"

namespace kvpack::net {

namespace {

using handoff::is_digest_text;

constexpr std::uint64_t kMsPerPromptToken = 35;

// ---- parsing

Result<DflashGeometry> parse_geometry(const JsonValue& value, const JsonPath& path) {
  static constexpr std::array<std::string_view, 4> kGeometryKeys{"layers", "elements_per_token", "sink_size",
                                                                 "window_size"};
  KVPACK_TRY_ASSIGN(const JsonFields fields,
                    JsonFields::open(value, kGeometryKeys, UnknownKeys::kRefuse, path));
  DflashGeometry out;
  KVPACK_TRY_ASSIGN(out.layers, fields.number<std::uint64_t>("layers"));
  KVPACK_TRY_ASSIGN(out.elements_per_token, fields.number<std::uint64_t>("elements_per_token"));
  KVPACK_TRY_ASSIGN(out.sink_size, fields.number<std::uint64_t>("sink_size"));
  KVPACK_TRY_ASSIGN(out.window_size, fields.number<std::uint64_t>("window_size"));
  return out;
}

Result<SocketAddress> parse_address(const JsonFields& fields, std::string_view key) {
  KVPACK_TRY_ASSIGN(const std::string text, fields.text(key));
  auto address = parse_socket_address(text);
  if (!address.has_value()) return json_field_error(fields.path(key), "must be ip:port");
  return address;
}

Result<ProducerControl> parse_control(const JsonValue& value, const JsonPath& path) {
  static constexpr std::array<std::string_view, 2> kControlKeys{"address", "server_name"};
  KVPACK_TRY_ASSIGN(const JsonFields fields,
                    JsonFields::open(value, kControlKeys, UnknownKeys::kRefuse, path));
  ProducerControl out;
  KVPACK_TRY_ASSIGN(out.address, parse_address(fields, "address"));
  KVPACK_TRY_ASSIGN(out.server_name, fields.text("server_name"));
  return out;
}

constexpr std::array<std::string_view, 19> kConfigKeys{"schema_version",
                                                       "listen",
                                                       "certificate_chain",
                                                       "private_key",
                                                       "peer_ca",
                                                       "peer_leaf_sha256",
                                                       "hmac_key_file",
                                                       "hmac_key_id",
                                                       "minimum_hmac_epoch",
                                                       "replay_ledger",
                                                       "timeout_ms",
                                                       "wait_for_producer_ms",
                                                       "advertised_receiver_host",
                                                       "producer_control",
                                                       "producer_mode",
                                                       "identity",
                                                       "target_cache_identity_sha256",
                                                       "dflash_identity_sha256",
                                                       "dflash_context_geometry"};

Status parse_endpoints(const JsonFields& fields, ReceiverConfig& out) {
  KVPACK_TRY_ASSIGN(out.listen, parse_address(fields, "listen"));
  KVPACK_TRY_ASSIGN(out.timeout_ms, fields.number<std::uint64_t>("timeout_ms"));
  KVPACK_TRY_ASSIGN(out.wait_for_producer_ms, fields.number<std::uint64_t>("wait_for_producer_ms"));
  KVPACK_TRY_ASSIGN(out.advertised_receiver_host, fields.optional_text("advertised_receiver_host"));
  if (const JsonValue* control = fields.optional("producer_control")) {
    KVPACK_TRY_ASSIGN(out.producer_control, parse_control(*control, fields.path("producer_control")));
  }
  if (fields.optional("producer_mode") != nullptr) {
    static constexpr std::array<std::string_view, 2> kModes{"exact", "native"};
    KVPACK_TRY_ASSIGN(const std::size_t mode, fields.choice("producer_mode", kModes));
    out.producer_mode = static_cast<ProducerMode>(mode);
  }
  return success();
}

Status parse_credentials(const JsonFields& fields, ReceiverConfig& out) {
  KVPACK_TRY_ASSIGN(out.certificate_chain, fields.text("certificate_chain"));
  KVPACK_TRY_ASSIGN(out.private_key, fields.text("private_key"));
  KVPACK_TRY_ASSIGN(out.peer_ca, fields.text("peer_ca"));
  KVPACK_TRY_ASSIGN(out.hmac_key_file, fields.text("hmac_key_file"));
  KVPACK_TRY_ASSIGN(out.hmac_key_id, fields.text("hmac_key_id"));
  KVPACK_TRY_ASSIGN(out.minimum_hmac_epoch, fields.number<std::uint64_t>("minimum_hmac_epoch"));
  KVPACK_TRY_ASSIGN(out.replay_ledger, fields.text("replay_ledger"));
  KVPACK_TRY_ASSIGN(const JsonArray* pins, fields.array("peer_leaf_sha256"));
  const JsonPath path = fields.path("peer_leaf_sha256");
  for (std::size_t i = 0; i < pins->size(); ++i) {
    KVPACK_TRY_ASSIGN(std::string pin, json_text((*pins)[i], JsonPath(path, i)));
    out.peer_leaf_sha256.insert(std::move(pin));
  }
  return success();
}

Status parse_identities(const JsonFields& fields, ReceiverConfig& out) {
  KVPACK_TRY_ASSIGN(const JsonValue* identity, fields.required("identity"));
  KVPACK_TRY_ASSIGN(out.identity, handoff::parse_exact_identity(*identity, fields.path("identity")));
  KVPACK_TRY_ASSIGN(out.target_cache_identity_sha256, fields.text("target_cache_identity_sha256"));
  KVPACK_TRY_ASSIGN(out.dflash_identity_sha256, fields.optional_text("dflash_identity_sha256"));
  if (const JsonValue* geometry = fields.optional("dflash_context_geometry")) {
    KVPACK_TRY_ASSIGN(out.dflash_context_geometry,
                      parse_geometry(*geometry, fields.path("dflash_context_geometry")));
  }
  return success();
}

/// @param schema_version  of the file; judged with the rules, not with the syntax
Result<ReceiverConfig> parse(ByteSpan content, std::uint32_t& schema_version) {
  KVPACK_TRY_ASSIGN(const JsonValue file, parse_json(content, kMaxSettingsBytes));
  const JsonPath root;
  KVPACK_TRY_ASSIGN(const JsonFields fields, JsonFields::open(file, kConfigKeys, UnknownKeys::kRefuse, root));
  ReceiverConfig out;
  KVPACK_TRY_ASSIGN(schema_version, fields.number<std::uint32_t>("schema_version"));
  KVPACK_TRY(parse_endpoints(fields, out));
  KVPACK_TRY(parse_credentials(fields, out));
  KVPACK_TRY(parse_identities(fields, out));
  return out;
}

// ---- rules

Status check_digest(std::string_view label, std::string_view digest) {
  if (is_digest_text(digest)) return success();
  return config_error(std::string(label) + " identity must be lowercase SHA-256");
}

Status check_geometry(const DflashGeometry& geometry) {
  const std::pair<std::string_view, std::uint64_t> fields[]{
      {"layers", geometry.layers},
      {"elements_per_token", geometry.elements_per_token},
      {"sink_size", geometry.sink_size},
      {"window_size", geometry.window_size}};
  for (const auto& [name, value] : fields)
    if (value == 0) return config_error("DFlash context geometry " + std::string(name) + " must be positive");
  std::uint64_t bytes = 0;
  bool overflows = __builtin_add_overflow(geometry.sink_size, geometry.window_size, &bytes);
  for (const std::uint64_t factor : {geometry.layers, geometry.elements_per_token, std::uint64_t{8}})
    overflows = overflows || __builtin_mul_overflow(bytes, factor, &bytes);
  if (overflows) return config_error("DFlash context geometry overflows");
  return success();
}

Status check_identities(const ReceiverConfig& config) {
  KVPACK_TRY(check_digest("model", config.identity.model_sha256));
  KVPACK_TRY(check_digest("tokenizer", config.identity.tokenizer_sha256));
  KVPACK_TRY(check_digest("chat template", config.identity.chat_template_sha256));
  KVPACK_TRY(check_digest("context policy", config.identity.context_policy_sha256));
  KVPACK_TRY(check_digest("adapter", config.identity.adapter_sha256));
  KVPACK_TRY(check_digest("target cache", config.target_cache_identity_sha256));
  if (config.dflash_identity_sha256.has_value() != config.dflash_context_geometry.has_value())
    return config_error("DFlash identity and dflash_context_geometry must be declared together");
  if (!config.dflash_identity_sha256.has_value()) return success();
  KVPACK_TRY(check_digest("DFlash", *config.dflash_identity_sha256));
  KVPACK_TRY(check_geometry(*config.dflash_context_geometry));
  if (config.producer_mode == ProducerMode::kNative)
    return config_error("native producer mode cannot enroll DFlash context geometry");
  return success();
}

bool is_host_text(std::string_view text, std::string_view punctuation) {
  const auto ok = [&](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           punctuation.find(c) != std::string_view::npos;
  };
  return !text.empty() && text.size() <= 253 && std::ranges::all_of(text, ok);
}

Status check_control(const ReceiverConfig& config) {
  if (!config.producer_control.has_value()) return success();
  if (!config.advertised_receiver_host.has_value())
    return config_error("producer_control requires advertised_receiver_host");
  if (!is_host_text(config.producer_control->server_name, "._-") ||
      !is_host_text(*config.advertised_receiver_host, ".:_-"))
    return config_error("producer control server/receiver host is invalid");
  // The producer would be told to come back to port 0.
  if (config.listen.port == 0) return config_error("producer_control requires a listen port");
  return success();
}

Status check_files(FileSystem& fs, const ReceiverConfig& config) {
  const std::pair<std::string_view, const std::string*> files[]{
      {"certificate chain", &config.certificate_chain},
      {"private key", &config.private_key},
      {"peer CA", &config.peer_ca},
      {"HMAC key", &config.hmac_key_file}};
  for (const auto& [label, path] : files)
    if (!is_file(fs, *path)) return config_error(std::string(label) + " is not a file: " + *path);
  return success();
}

Status validate(FileSystem& fs, const ReceiverConfig& config, std::uint32_t schema_version) {
  if (schema_version != 1) return config_error("cluster config schema_version must be 1");
  if (config.timeout_ms == 0 || config.timeout_ms > kMaxTimeoutMs || config.wait_for_producer_ms == 0 ||
      config.wait_for_producer_ms > config.timeout_ms || config.minimum_hmac_epoch == 0 ||
      config.hmac_key_id.empty() || config.hmac_key_id.size() > 128)
    return config_error("cluster config timing or HMAC bounds are invalid");
  KVPACK_TRY(check_identities(config));
  if (config.peer_leaf_sha256.empty())
    return config_error("cluster config must pin at least one producer TLS leaf");
  KVPACK_TRY(check_control(config));
  for (const std::string& pin : config.peer_leaf_sha256) KVPACK_TRY(check_digest("producer TLS leaf", pin));
  return check_files(fs, config);
}

}  // namespace

Result<ReceiverConfig> load_receiver_config(FileSystem& fs, const std::string& path) {
  const auto content = read_file_bounded(fs, path, kMaxSettingsBytes);
  if (!content.has_value())
    return config_error("read cluster config " + path + ": " + content.error().message);
  std::uint32_t schema_version = 0;
  auto config = parse(*content, schema_version);
  if (!config.has_value())
    return config_error("parse cluster config " + path + ": " + config.error().message);
  for (std::string* file : {&config->certificate_chain, &config->private_key, &config->peer_ca,
                            &config->hmac_key_file, &config->replay_ledger})
    *file = resolve_beside(path, *file);
  KVPACK_TRY(validate(fs, *config, schema_version));
  return config;
}

std::uint64_t producer_wait_ms(const ReceiverConfig& config, std::uint64_t prompt_tokens) noexcept {
  const std::uint64_t tokens = std::min(prompt_tokens, kMaxTimeoutMs);
  return std::min(std::max(config.wait_for_producer_ms, kMsPerPromptToken * tokens), kMaxTimeoutMs);
}

}  // namespace kvpack::net
