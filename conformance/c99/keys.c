/* docs/format/keys.md: the schedule of a tenant and an epoch, and the tenant's namespace. */
#include "kv99.h"

static void put_le64(uint8_t* p, uint64_t value) {
  unsigned i;
  for (i = 0; i < 8; ++i) p[i] = (uint8_t)(value >> 8 * i);
}

bool kv99_derive_keys(struct kv99* kv, const uint8_t stable_root[32], const uint8_t epoch_root[32],
                      const uint8_t tenant[32], uint64_t epoch, struct kv99_keys* keys) {
  const struct kv99_bytes none = kv99_bytes_of(NULL, 0), stable = kv99_bytes_of(tenant, 32);
  uint8_t tenant_and_epoch[40];
  struct kv99_bytes salt;
  if (epoch == 0) return kv99_refuse(kv, KV99_SEMANTICS, "key epoch must be nonzero");
  kv99_copy(tenant_and_epoch, tenant, 32);
  put_le64(tenant_and_epoch + 32, epoch);
  salt = kv99_bytes_of(tenant_and_epoch, sizeof tenant_and_epoch);
  kv99_copy(keys->tenant, tenant, 32);
  keys->epoch = epoch;
  kv99_hkdf(stable, stable_root, kv99_text("kvpack/v1/stable/namespace"), none, keys->namespace_id);
  kv99_hkdf(stable, stable_root, kv99_text("kvpack/v1/stable/prefix"), none, keys->prefix);
  kv99_hkdf(stable, stable_root, kv99_text("kvpack/v1/stable/chunk-identity"), none, keys->chunk_identity);
  kv99_hkdf(salt, epoch_root, kv99_text("kvpack/v1/epoch/manifest-auth"), none, keys->manifest_auth);
  kv99_hkdf(salt, epoch_root, kv99_text("kvpack/v1/epoch/manifest-encryption"), none,
            keys->manifest_encryption);
  kv99_hkdf(salt, epoch_root, kv99_text("kvpack/v1/epoch/object-identity"), none, keys->object_identity);
  kv99_hkdf(salt, epoch_root, kv99_text("kvpack/v1/epoch/chunk-encryption"), none, keys->chunk_encryption);
  return true;
}

bool kv99_find_keys(struct kv99* kv, const struct kv99_ring* ring, uint64_t epoch,
                    const struct kv99_keys** keys) {
  size_t i;
  if (epoch == 0) return kv99_refuse(kv, KV99_SEMANTICS, "key epoch must be nonzero");
  for (i = 0; i < ring->count; ++i) {
    if (ring->keys[i].epoch != epoch) continue;
    *keys = &ring->keys[i];
    return true;
  }
  return kv99_refuse(kv, KV99_NOT_FOUND, "key epoch is outside the readable window");
}

bool kv99_tenant_namespace(struct kv99* kv, const uint8_t stable_root[32], const uint8_t epoch_root[32],
                           uint64_t epoch, struct kv99_bytes operator_id, uint8_t tenant[32]) {
  struct kv99_keys bootstrap;
  uint8_t seed[32];
  if (operator_id.size == 0) return kv99_refuse(kv, KV99_SEMANTICS, "tenant ID is empty");
  if (operator_id.size > UINT32_MAX) return kv99_refuse(kv, KV99_BOUNDS, "tenant ID is too long");
  kv99_hash(operator_id, seed);
  if (!kv99_derive_keys(kv, stable_root, epoch_root, seed, epoch, &bootstrap)) return false;
  kv99_namespace_id(bootstrap.namespace_id, operator_id, tenant);
  kv99_wipe(&bootstrap, sizeof bootstrap);
  return true;
}
