// Muse models: configurations and identities.
#include "kvpack/muse/config_json.h"
#include "kvpack/muse/model_config.h"
#include "kvpack/muse/model_identity.h"
#include "muse_handles.h"

namespace kvpack::capi {

namespace {

constexpr std::uint64_t kMuseConfigInfoV0 = KVPACK_SIZE_UP_TO(kvpack_muse_config_info, reserved);
constexpr std::uint64_t kMuseFieldsV0 = KVPACK_SIZE_UP_TO(kvpack_muse_identity_fields, weight_precision_size);
constexpr std::uint64_t kMuseModelV0 = KVPACK_SIZE_UP_TO(kvpack_muse_model_options, progress_user);

Result<FileSource> open_model(const char* path) {
  KVPACK_TRY(check_pointer(path, "path"));
  SystemFileSystem fs;
  KVPACK_TRY_ASSIGN(auto file, fs.open_file(path, Links::kFollow));
  return FileSource::open(std::move(file));
}

kvpack_muse_config_info describe_config(const kvpack_muse_config& handle) noexcept {
  const muse::MuseConfig& config = handle.config;
  kvpack_muse_config_info info{};
  info.hidden_dim = config.hidden_dim;
  info.head_count = config.n_heads;
  info.kv_head_count = config.n_kv_heads;
  info.head_dim = config.head_dim;
  info.value_head_dim = config.value_head_dim;
  info.intermediate_dim = config.intermediate_dim;
  info.vocab_size = config.vocab_size;
  info.context_tokens = config.context_length;
  info.window_tokens = config.sliding_window;
  info.rope_dim = config.rope_dim;
  info.layer_kinds = handle.layer_kinds.data();
  info.layer_count = handle.layer_kinds.size();
  info.eos_tokens = config.eos_tokens.data();
  info.eos_token_count = config.eos_tokens.size();
  info.bos_token = config.bos_token_id.value_or(0);
  info.has_bos_token = config.bos_token_id ? 1 : 0;
  info.rms_epsilon = config.rms_eps;
  info.post_norm_epsilon = config.post_norm_eps;
  info.rope_base_sliding = config.rope_base_swa;
  info.rope_base_full = config.rope_base_full;
  info.final_logit_softcap = config.final_logit_softcap;
  info.logit_scale = config.logit_scale;
  info.qk_scale = config.qk_scale_factor;
  return info;
}

Result<muse::MuseIdentity> read_muse_identity(const kvpack_muse_identity_fields& fields) {
  muse::MuseIdentity identity;
  identity.model_sha256 = to_id(fields.model_sha256);
  identity.adapter_sha256 = to_id(fields.adapter_sha256);
  identity.tokenizer_sha256 = to_id(fields.tokenizer_sha256);
  identity.chat_template_sha256 = to_id(fields.chat_template_sha256);
  identity.context_policy_sha256 = to_id(fields.context_policy_sha256);
  KVPACK_TRY_ASSIGN(identity.model_revision,
                    read_text(fields.model_revision, fields.model_revision_size, "model_revision"));
  KVPACK_TRY_ASSIGN(
      identity.tokenizer_revision,
      read_text(fields.tokenizer_revision, fields.tokenizer_revision_size, "tokenizer_revision"));
  KVPACK_TRY_ASSIGN(identity.weight_precision,
                    read_text(fields.weight_precision, fields.weight_precision_size, "weight_precision"));
  return identity;
}

Result<muse::ModelStatement> read_statement(const kvpack_muse_model_options& options) {
  muse::ModelStatement said;
  KVPACK_TRY_ASSIGN(said.model_revision,
                    read_text(options.model_revision, options.model_revision_size, "model_revision"));
  KVPACK_TRY_ASSIGN(
      said.tokenizer_revision,
      read_text(options.tokenizer_revision, options.tokenizer_revision_size, "tokenizer_revision"));
  KVPACK_TRY_ASSIGN(const std::string_view precision,
                    read_text(options.weight_precision, options.weight_precision_size, "weight_precision"));
  if (options.weight_precision != nullptr) said.weight_precision = std::string(precision);
  KVPACK_TRY_ASSIGN(const auto adapters, read_array(options.adapters, options.adapter_count, "adapters"));
  for (const kvpack_muse_adapter& adapter : adapters)
    said.adapters.push_back({.file_sha256 = to_id(adapter.file_sha256), .scale = adapter.scale});
  if (options.context_policy_sha256 != nullptr)
    said.context_policy_sha256 = to_id(*options.context_policy_sha256);
  return said;
}

Result<muse::MuseIdentity> identify_file(const kvpack_muse_model_options& options) {
  KVPACK_TRY(check_pointer(options.path, "path"));
  KVPACK_TRY_ASSIGN(const muse::ModelStatement said, read_statement(options));
  KVPACK_TRY(muse::check_statement(said));
  KVPACK_TRY_ASSIGN(FileSource source, open_model(options.path));
  KVPACK_TRY_ASSIGN(const muse::GgufFile file, muse::GgufFile::open(source, muse::is_model_key));
  KVPACK_TRY_ASSIGN(const muse::MuseConfig config, muse::read_model_config(file));
  std::optional<Error> ended;
  auto identity = muse::identify_model(file, config, said, [&](std::uint64_t done_bytes) {
    if (options.progress == nullptr) return true;
    const Status told = run_callback(
        "progress", [&] { return options.progress(options.progress_user, done_bytes, source.size_bytes()); });
    if (!told.has_value()) ended = told.error();
    return told.has_value();
  });
  if (ended) return *std::move(ended);
  return identity;
}

kvpack_muse_identity_fields describe_identity(const muse::MuseIdentity& identity) noexcept {
  kvpack_muse_identity_fields fields{};
  fields.model_sha256 = from_id(identity.model_sha256);
  fields.adapter_sha256 = from_id(identity.adapter_sha256);
  fields.tokenizer_sha256 = from_id(identity.tokenizer_sha256);
  fields.chat_template_sha256 = from_id(identity.chat_template_sha256);
  fields.context_policy_sha256 = from_id(identity.context_policy_sha256);
  fields.model_revision = identity.model_revision.c_str();
  fields.model_revision_size = identity.model_revision.size();
  fields.tokenizer_revision = identity.tokenizer_revision.c_str();
  fields.tokenizer_revision_size = identity.tokenizer_revision.size();
  fields.weight_precision = identity.weight_precision.c_str();
  fields.weight_precision_size = identity.weight_precision.size();
  return fields;
}

}  // namespace

}  // namespace kvpack::capi

using namespace kvpack;        // NOLINT(google-build-using-namespace)
using namespace kvpack::capi;  // NOLINT(google-build-using-namespace)

kvpack_muse_config::kvpack_muse_config(muse::MuseConfig given) : config(std::move(given)) {
  layer_kinds.reserve(config.layer_kinds.size());
  for (const muse::LayerKind kind : config.layer_kinds)
    layer_kinds.push_back(kind == muse::LayerKind::kSlidingRope ? KVPACK_MUSE_LAYER_SLIDING
                                                                : KVPACK_MUSE_LAYER_FULL);
}

kvpack_muse_identity::kvpack_muse_identity(muse::MuseIdentity given)
    : identity(std::move(given)), digest(from_id(muse::resident_digest(identity))) {}

kvpack_status kvpack_muse_config_from_file(kvpack_muse_config** out, const char* path, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_pointer(out, "out"));
    KVPACK_TRY_ASSIGN(FileSource source, open_model(path));
    KVPACK_TRY_ASSIGN(const muse::GgufFile file, muse::GgufFile::open(source, muse::is_model_key));
    KVPACK_TRY_ASSIGN(muse::MuseConfig config, muse::read_model_config(file));
    *out = new kvpack_muse_config(std::move(config));
    return success();
  });
}

kvpack_status kvpack_muse_config_from_json(kvpack_muse_config** out, const void* json, uint64_t json_size,
                                           kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_pointer(out, "out"));
    KVPACK_TRY_ASSIGN(const ByteSpan text, read_bytes(json, json_size, "json"));
    KVPACK_TRY_ASSIGN(muse::MuseConfig config, muse::parse_muse_config(text));
    *out = new kvpack_muse_config(std::move(config));
    return success();
  });
}

kvpack_status kvpack_muse_config_encode(const kvpack_muse_config* config, kvpack_bytes** out,
                                        kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(config, "config"));
    KVPACK_TRY(check_pointer(out, "out"));
    *out = new kvpack_bytes(muse::encode_muse_config(config->config));
    return success();
  });
}

kvpack_status kvpack_muse_config_get_info(const kvpack_muse_config* config, kvpack_muse_config_info* out,
                                          kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(config, "config"));
    KVPACK_TRY_ASSIGN(const auto output,
                      OutputStruct<kvpack_muse_config_info>::check(out, kMuseConfigInfoV0, "out"));
    output.fill(describe_config(*config));
    return success();
  });
}

kvpack_status kvpack_muse_config_check(const kvpack_muse_config* config, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(config, "config"));
    KVPACK_TRY(muse::check_muse_geometry(config->config, 1));
    KVPACK_TRY(muse::check_model_rotation(config->config));
    KVPACK_TRY(muse::bind_scalar_math(Id32{}, muse::scalar_math(config->config)));
    return success();
  });
}

void kvpack_muse_config_free(kvpack_muse_config* config) {
  free_handle(config);
}

kvpack_status kvpack_muse_identity_new(kvpack_muse_identity** out, const kvpack_muse_identity_fields* fields,
                                       kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_pointer(out, "out"));
    KVPACK_TRY_ASSIGN(const auto known, read_options(fields, kMuseFieldsV0, "fields"));
    KVPACK_TRY_ASSIGN(muse::MuseIdentity identity, read_muse_identity(known));
    KVPACK_TRY(muse::check_resolved(identity));
    *out = new kvpack_muse_identity(std::move(identity));
    return success();
  });
}

kvpack_status kvpack_muse_identity_from_file(kvpack_muse_identity** out,
                                             const kvpack_muse_model_options* options, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_pointer(out, "out"));
    KVPACK_TRY_ASSIGN(const auto known, read_options(options, kMuseModelV0, "options"));
    KVPACK_TRY_ASSIGN(muse::MuseIdentity identity, identify_file(known));
    *out = new kvpack_muse_identity(std::move(identity));
    return success();
  });
}

kvpack_status kvpack_muse_identity_get_fields(const kvpack_muse_identity* identity,
                                              kvpack_muse_identity_fields* out, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(identity, "identity"));
    KVPACK_TRY_ASSIGN(const auto output,
                      OutputStruct<kvpack_muse_identity_fields>::check(out, kMuseFieldsV0, "out"));
    output.fill(describe_identity(identity->identity));
    return success();
  });
}

const kvpack_id* kvpack_muse_identity_digest(const kvpack_muse_identity* identity) {
  return is_live(identity) ? &identity->digest : nullptr;
}

kvpack_status kvpack_muse_identity_stored(const kvpack_muse_identity* identity, kvpack_model* model,
                                          kvpack_family** family, const kvpack_muse_config* config,
                                          kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(identity, "identity"));
    KVPACK_TRY(check_handle(config, "config"));
    KVPACK_TRY_ASSIGN(muse::PortableDescriptor descriptor,
                      muse::muse_descriptor(config->config, identity->identity, 1));
    KVPACK_TRY_ASSIGN(IdentifiedFamily identified, IdentifiedFamily::create(std::move(descriptor.family)));
    if (family != nullptr)
      *family = new kvpack_family(std::make_shared<const IdentifiedFamily>(std::move(identified)));
    if (model != nullptr) *model = from_model(descriptor.semantic_model);
    return success();
  });
}

void kvpack_muse_identity_free(kvpack_muse_identity* identity) {
  free_handle(identity);
}
