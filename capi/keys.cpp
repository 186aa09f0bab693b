// Key rings: roots from memory or key files, tenant, window of epochs.
#include "handles.h"

namespace kvpack::capi {

namespace {

constexpr std::uint64_t kKeysOptionsV0 = KVPACK_SIZE_UP_TO(kvpack_keys_options, reserved);

Result<SecretKey> read_root(const void* root, std::uint64_t size, const char* path, std::string_view name) {
  if ((root != nullptr) == (path != nullptr))
    return bad_argument(name, "must be given as bytes or as a path, and not as both");
  if (path != nullptr) {
    SystemFileSystem fs;
    return read_key_file(fs, path);
  }
  KVPACK_TRY_ASSIGN(const ByteSpan bytes, read_exact_bytes(root, size, SecretKey::kBytes, name));
  return SecretKey(bytes.first<SecretKey::kBytes>());
}

Result<Id32> read_tenant(const kvpack_keys_options& options, const SecretKey& stable_root) {
  if ((options.operator_id != nullptr) == (options.tenant != nullptr))
    return bad_argument("tenant", "must be given as operator_id or as tenant, and not as both");
  if (options.tenant != nullptr) return to_id(*options.tenant);
  KVPACK_TRY_ASSIGN(const ByteSpan name,
                    read_bytes(options.operator_id, options.operator_id_size, "operator_id"));
  return derive_tenant_namespace(stable_root, name);
}

Result<std::optional<EpochWindow>> read_window(const kvpack_keys_options& options) {
  if (options.active_epoch == 0) {
    if (options.minimum_epoch != 0) return bad_argument("minimum_epoch", "needs active_epoch");
    return std::optional<EpochWindow>();
  }
  const std::uint64_t oldest =
      options.active_epoch >= kMaxReadableEpochs ? options.active_epoch - (kMaxReadableEpochs - 1) : 1;
  return std::optional<EpochWindow>(
      {.minimum_readable = options.minimum_epoch == 0 ? oldest : options.minimum_epoch,
       .active = options.active_epoch});
}

Result<Keys> make_keys(const kvpack_keys_options& options) {
  KVPACK_TRY(check_reserved(options.reserved));
  KVPACK_TRY_ASSIGN(const bool only_epoch_roots, read_flag(options.only_epoch_roots, "only_epoch_roots"));
  KVPACK_TRY_ASSIGN(const auto window, read_window(options));
  KVPACK_TRY_ASSIGN(SecretKey root, read_root(options.stable_root, options.stable_root_size,
                                              options.stable_root_path, "stable_root"));
  KVPACK_TRY_ASSIGN(const Id32 tenant, read_tenant(options, root));
  KVPACK_TRY_ASSIGN(KeySchedule stable, KeySchedule::derive(root, root, tenant, 1));
  KVPACK_TRY_ASSIGN(const auto given,
                    read_array(options.epoch_roots, options.epoch_root_count, "epoch_roots"));
  KeyRing::Options ring{.stable_root = std::move(root),
                        .only_epoch_roots = only_epoch_roots,
                        .tenant = tenant,
                        .window = window};
  for (const kvpack_epoch_root& own : given) {
    KVPACK_TRY_ASSIGN(SecretKey epoch_root,
                      read_root(own.root, own.root_size, own.root_path, "epoch_roots.root"));
    ring.epoch_roots.push_back({own.epoch, std::move(epoch_root)});
  }
  KVPACK_TRY_ASSIGN(KeyRing made, KeyRing::create(std::move(ring)));
  return Keys(std::make_shared<const KeyMaterial>(
      KeyMaterial{std::move(made), std::move(stable), window.value_or(EpochWindow{}), from_id(tenant)}));
}

}  // namespace

Result<Keys> read_optional_keys(const kvpack_keys* keys) {
  KVPACK_TRY(check_optional_handle(keys, "keys"));
  return keys == nullptr ? Keys() : keys->keys;
}

Result<std::shared_ptr<const KeySchedule>> schedule_to_write(const KeyMaterial& keys, std::uint64_t epoch) {
  return keys.ring.schedule(epoch == 0 ? keys.epochs.active : epoch);
}

}  // namespace kvpack::capi

using namespace kvpack;        // NOLINT(google-build-using-namespace)
using namespace kvpack::capi;  // NOLINT(google-build-using-namespace)

kvpack_status kvpack_keys_new(kvpack_keys** out, const kvpack_keys_options* options, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_pointer(out, "out"));
    KVPACK_TRY_ASSIGN(const auto known, read_options(options, kKeysOptionsV0, "options"));
    KVPACK_TRY_ASSIGN(Keys keys, make_keys(known));
    *out = new kvpack_keys(std::move(keys));
    return success();
  });
}

const kvpack_id* kvpack_keys_tenant(const kvpack_keys* keys) {
  return is_live(keys) ? &keys->keys->tenant : nullptr;
}

kvpack_status kvpack_keys_check_epoch(const kvpack_keys* keys, uint64_t epoch, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_keys(keys));
    KVPACK_TRY(keys->keys->ring.schedule(epoch));
    return success();
  });
}

kvpack_status kvpack_tenant_namespace(kvpack_id* out, const void* stable_root, uint64_t stable_root_size,
                                      const void* operator_id, uint64_t operator_id_size,
                                      kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_pointer(out, "out"));
    KVPACK_TRY_ASSIGN(const ByteSpan root,
                      read_exact_bytes(stable_root, stable_root_size, SecretKey::kBytes, "stable_root"));
    KVPACK_TRY_ASSIGN(const ByteSpan name, read_bytes(operator_id, operator_id_size, "operator_id"));
    KVPACK_TRY_ASSIGN(const Id32 id,
                      derive_tenant_namespace(SecretKey(root.first<SecretKey::kBytes>()), name));
    *out = from_id(id);
    return success();
  });
}

kvpack_status kvpack_keys_namespace_id(const kvpack_keys* keys, kvpack_id* out, const void* name,
                                       uint64_t name_size, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_keys(keys));
    KVPACK_TRY(check_pointer(out, "out"));
    KVPACK_TRY_ASSIGN(const ByteSpan bytes, read_bytes(name, name_size, "name"));
    KVPACK_TRY_ASSIGN(const Id32 id, namespace_id(keys->keys->stable.key(KeyPurpose::kNamespace), bytes));
    *out = from_id(id);
    return success();
  });
}

void kvpack_keys_free(kvpack_keys* keys) {
  free_handle(keys);
}
