/* docs/format/identities.md: what everything is called. */
#include <string.h>

#include "kv99.h"

static void add_le(struct kv99_hmac* mac, uint64_t value, size_t bytes) {
  uint8_t raw[8];
  size_t i;
  for (i = 0; i < 8; ++i) raw[i] = (uint8_t)(value >> 8 * i);
  kv99_hmac_add(mac, raw, bytes);
}

static void start(struct kv99_hmac* mac, const uint8_t key[32], const char* domain) {
  kv99_hmac_start(mac, kv99_bytes_of(key, 32));
  kv99_hmac_add(mac, domain, strlen(domain) + 1);
}

void kv99_domain_hash(const char* domain, struct kv99_bytes bytes, uint8_t id[32]) {
  struct kv99_sha256 hash;
  kv99_sha256_start(&hash);
  kv99_sha256_add(&hash, domain, strlen(domain) + 1);
  kv99_sha256_add(&hash, bytes.data, bytes.size);
  kv99_sha256_end(&hash, id);
}

void kv99_namespace_id(const uint8_t namespace_key[32], struct kv99_bytes operator_id, uint8_t id[32]) {
  struct kv99_hmac mac;
  start(&mac, namespace_key, "kvpack/v1/namespace");
  add_le(&mac, operator_id.size, 4);
  kv99_hmac_add(&mac, operator_id.data, operator_id.size);
  kv99_hmac_end(&mac, id);
}

bool kv99_content_id(struct kv99* kv, const struct kv99_keys* keys, const uint8_t family_id[32],
                     const struct kv99_state_key* state, const struct kv99_span* span,
                     struct kv99_bytes plaintext, uint8_t id[32]) {
  struct kv99_hmac mac;
  if (span->token_count == 0 || span->plaintext_bytes != plaintext.size)
    return kv99_refuse(kv, KV99_SEMANTICS, "chunk plaintext does not match its declared span");
  start(&mac, keys->chunk_identity, "kvpack/v1/chunk-content");
  kv99_hmac_add(&mac, keys->tenant, 32);
  kv99_hmac_add(&mac, family_id, 32);
  add_le(&mac, state->layer, 4);
  add_le(&mac, state->name.size, 2);
  kv99_hmac_add(&mac, state->name.data, state->name.size);
  add_le(&mac, span->token_start, 8);
  add_le(&mac, span->token_count, 8);
  add_le(&mac, span->plaintext_offset, 8);
  add_le(&mac, span->plaintext_bytes, 4);
  kv99_hmac_add(&mac, plaintext.data, plaintext.size);
  kv99_hmac_end(&mac, id);
  return true;
}

void kv99_make_object_key(const struct kv99_keys* keys, const struct kv99_object_key* parts, uint8_t id[32]) {
  static const char stats[] = "kvpack/v1/chunk-object-stats";
  struct kv99_hmac mac;
  start(&mac, keys->object_identity, "kvpack/v1/chunk-object");
  kv99_hmac_add(&mac, keys->tenant, 32);
  kv99_hmac_add(&mac, parts->family_id, 32);
  kv99_hmac_add(&mac, parts->content_id, 32);
  add_le(&mac, parts->epoch, 8);
  add_le(&mac, parts->codec, 2);
  add_le(&mac, parts->codec_version, 2);
  add_le(&mac, parts->encrypted ? 1 : 0, 1);
  kv99_hmac_add(&mac, parts->salt, KV99_SALT);
  kv99_hmac_add(&mac, parts->nonce, KV99_NONCE);
  if (parts->stats_digest != NULL) {
    kv99_hmac_add(&mac, stats, sizeof stats);
    kv99_hmac_add(&mac, parts->stats_digest, 32);
  }
  kv99_hmac_end(&mac, id);
}

void kv99_restore_chain_id(struct kv99_bytes manifest_ids, uint8_t id[32]) {
  static const char domain[] = "kvpack/v1/restore-chain";
  struct kv99_sha256 hash;
  uint8_t count[8];
  unsigned i;
  for (i = 0; i < 8; ++i) count[i] = (uint8_t)((uint64_t)(manifest_ids.size / 32) >> 8 * i);
  kv99_sha256_start(&hash);
  kv99_sha256_add(&hash, domain, sizeof domain);
  kv99_sha256_add(&hash, count, sizeof count);
  kv99_sha256_add(&hash, manifest_ids.data, manifest_ids.size);
  kv99_sha256_end(&hash, id);
}

void kv99_rotation_abi(const uint8_t base_abi[32], const uint8_t rotation_id[32], uint8_t id[32]) {
  uint8_t both[64];
  kv99_copy(both, base_abi, 32);
  kv99_copy(both + 32, rotation_id, 32);
  kv99_domain_hash("kvpack/v1/rotation-bound-engine-cache-abi", kv99_bytes_of(both, sizeof both), id);
}
