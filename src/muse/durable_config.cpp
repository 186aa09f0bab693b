#include "kvpack/muse/durable_config.h"

#include "kvpack/core/canonical_json.h"

namespace kvpack::muse {

namespace {

constexpr std::string_view kKeys[] = {
    "schema_version",
    "root",
    "key_file",
    "operator_tenant_id",
    "key_epoch",
    "minimum_readable_key_epoch",
    "catalog_epoch",
    "quota_bytes",
    "staging_quota_bytes",
    "endurance_bytes_per_five_minutes",
    "identity",
};

/// The file as it stands: digests are still texts.
struct Parsed {
  std::uint32_t schema_version = 0;
  DurableConfig config;
  std::array<std::string, kMuseDigestFields.size()> digests;
};

Error invalid_config(std::string_view what) {
  return fail(ErrorCode::kConfig, "durable config is invalid: " + std::string(what));
}

Status parse_identity(const JsonFields& fields, Parsed& parsed) {
  std::vector<std::string_view> keys;
  for (const MuseDigestField& field : kMuseDigestFields) keys.push_back(field.name);
  for (const MuseTextField& field : kMuseTextFields) keys.push_back(field.name);
  const JsonPath path = fields.path("identity");
  KVPACK_TRY_ASSIGN(const JsonValue* value, fields.required("identity"));
  KVPACK_TRY_ASSIGN(const JsonFields identity, JsonFields::open(*value, keys, UnknownKeys::kRefuse, path));
  for (std::size_t i = 0; i < kMuseDigestFields.size(); ++i) {
    KVPACK_TRY_ASSIGN(parsed.digests[i], identity.text(kMuseDigestFields[i].name));
  }
  for (const MuseTextField& field : kMuseTextFields) {
    KVPACK_TRY_ASSIGN(parsed.config.identity.*field.member, identity.text(field.name));
  }
  return success();
}

Result<Parsed> parse(ByteSpan json) {
  KVPACK_TRY_ASSIGN(const JsonValue value, parse_json(json, kMaxDurableConfigBytes));
  const JsonPath root;
  KVPACK_TRY_ASSIGN(const JsonFields fields, JsonFields::open(value, kKeys, UnknownKeys::kRefuse, root));
  Parsed parsed;
  DurableConfig& config = parsed.config;
  KVPACK_TRY_ASSIGN(parsed.schema_version, fields.number<std::uint32_t>("schema_version"));
  KVPACK_TRY_ASSIGN(config.root, fields.text("root"));
  KVPACK_TRY_ASSIGN(config.key_file, fields.text("key_file"));
  KVPACK_TRY_ASSIGN(config.operator_tenant_id, fields.text("operator_tenant_id"));
  KVPACK_TRY_ASSIGN(config.key_epoch, fields.number<std::uint64_t>("key_epoch"));
  KVPACK_TRY_ASSIGN(config.minimum_readable_key_epoch,
                    fields.number<std::uint64_t>("minimum_readable_key_epoch"));
  KVPACK_TRY_ASSIGN(config.catalog_epoch, fields.number<std::uint64_t>("catalog_epoch"));
  KVPACK_TRY_ASSIGN(config.quota_bytes, fields.number<std::uint64_t>("quota_bytes"));
  KVPACK_TRY_ASSIGN(config.staging_quota_bytes, fields.number<std::uint64_t>("staging_quota_bytes"));
  KVPACK_TRY_ASSIGN(config.endurance_bytes_per_five_minutes,
                    fields.number<std::uint64_t>("endurance_bytes_per_five_minutes"));
  KVPACK_TRY(parse_identity(fields, parsed));
  return parsed;
}

/// A path of the file, relative to where the file lies. Nothing stays nothing.
std::string resolve(const std::string& config_path, const std::string& path) {
  const std::size_t slash = config_path.rfind('/');
  if (path.empty() || path.front() == '/' || slash == std::string::npos) return path;
  return config_path.substr(0, slash + 1) + path;
}

bool limits_hold(const Parsed& parsed) {
  const DurableConfig& config = parsed.config;
  const MuseIdentity& identity = config.identity;
  const bool epochs = config.key_epoch != 0 && config.minimum_readable_key_epoch != 0 &&
                      config.catalog_epoch != 0 && config.minimum_readable_key_epoch <= config.key_epoch;
  const bool quotas = config.quota_bytes != 0 && config.staging_quota_bytes != 0 &&
                      config.endurance_bytes_per_five_minutes != 0;
  const bool labels = !config.operator_tenant_id.empty() &&
                      config.operator_tenant_id.size() <= kMaxTenantIdBytes &&
                      !identity.model_revision.empty() && !identity.tokenizer_revision.empty();
  const bool precision = identity.weight_precision == "q4_k_xl" || identity.weight_precision == "nvfp4";
  return parsed.schema_version == kDurableConfigSchema && epochs && quotas && labels && precision;
}

}  // namespace

Result<DurableConfig> read_durable_config(FileSystem& fs, const std::string& path) {
  auto json = read_file_bounded(fs, path, kMaxDurableConfigBytes);
  if (!json.has_value()) {
    Error error = std::move(json.error());
    error.message = "read durable config " + path + ": " + error.message;
    return error;
  }
  auto parsed = parse(*json);
  if (!parsed.has_value()) return fail(ErrorCode::kConfig, "parse durable config: " + parsed.error().message);
  DurableConfig& config = parsed->config;
  config.root = resolve(path, config.root);
  config.key_file = resolve(path, config.key_file);
  if (!limits_hold(*parsed)) return invalid_config("schema, epochs, quotas, labels, or weight precision");
  for (std::size_t i = 0; i < kMuseDigestFields.size(); ++i) {
    const auto digest = Id32::from_hex(parsed->digests[i]);
    if (!digest) return invalid_config(std::string(kMuseDigestFields[i].name) + " must be lowercase SHA-256");
    config.identity.*kMuseDigestFields[i].member = *digest;
  }
  if (config.root.empty() || !fs.open_file(config.key_file, Links::kFollow).has_value())
    return invalid_config("key file is absent or root is empty");
  if (const auto resolved = check_resolved(config.identity); !resolved.has_value())
    return invalid_config(resolved.error().message);
  return std::move(config);
}

Result<StoreOptions> store_options(FileSystem& fs, const DurableConfig& config) {
  KVPACK_TRY_ASSIGN(SecretKey root, read_key_file(fs, config.key_file));
  KVPACK_TRY_ASSIGN(const Id32 tenant, derive_tenant_namespace(root, byte_view(config.operator_tenant_id)));
  const EpochWindow epochs{.minimum_readable = config.minimum_readable_key_epoch, .active = config.key_epoch};
  KVPACK_TRY_ASSIGN(KeyRing ring,
                    KeyRing::create({.stable_root = std::move(root), .tenant = tenant, .window = epochs}));
  return StoreOptions{
      .root = config.root,
      .keys = std::make_shared<const KeyRing>(std::move(ring)),
      .epochs = epochs,
      .catalog_epoch = config.catalog_epoch,
      .quota_bytes = config.quota_bytes,
      .staging_quota_bytes = config.staging_quota_bytes,
      .endurance_bytes_per_five_minutes = config.endurance_bytes_per_five_minutes,
      .file_system = &fs,
  };
}

}  // namespace kvpack::muse
