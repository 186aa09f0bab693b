/* docs/format/pack.md: one manifest, committed. */
#include <string.h>

#include "kv99.h"

/* Header checks 2 to 6. */
static bool header_fields(struct kv99* kv, const uint8_t* p, struct kv99_pack_header* header) {
  uint32_t flags;
  if (memcmp(p, "KVPKP1\0", 8) != 0) return kv99_refuse(kv, KV99_BAD_MAGIC, "invalid production pack magic");
  if (kv99_le16(p + 8) != 1 || kv99_le16(p + 10) != KV99_PAGE || kv99_le32(p + 12) != KV99_PAGE)
    return kv99_refuse(kv, KV99_BAD_MAGIC, "invalid production pack header contract");
  flags = kv99_le32(p + 16);
  if (flags > 1) return kv99_refuse(kv, KV99_RESERVED, "unknown pack flags");
  if (!kv99_zero(p + 20, 4) || !kv99_zero(p + 48, 8) || !kv99_zero(p + 180, KV99_PAGE - 180))
    return kv99_refuse(kv, KV99_RESERVED, "pack header reserved bytes are nonzero");
  header->encrypted = flags == 1;
  header->stored_bytes = kv99_le64(p + 24);
  header->plaintext_bytes = kv99_le64(p + 32);
  header->epoch = kv99_le64(p + 40);
  header->tenant = p + 56;
  header->manifest_id = p + 88;
  header->salt = p + 120;
  header->nonce = p + 136;
  if (!header->encrypted && !kv99_zero(header->salt, KV99_SALT + KV99_NONCE))
    return kv99_refuse(kv, KV99_RESERVED, "unencrypted manifest salt or nonce is nonzero");
  return true;
}

static bool header_digest(struct kv99* kv, const uint8_t* page) {
  static const uint8_t zero[KV99_ID] = {0};
  struct kv99_sha256 hash;
  uint8_t digest[KV99_ID];
  kv99_sha256_start(&hash);
  kv99_sha256_add(&hash, page, 148);
  kv99_sha256_add(&hash, zero, sizeof zero);
  kv99_sha256_add(&hash, page + 180, KV99_PAGE - 180);
  kv99_sha256_end(&hash, digest);
  return memcmp(digest, page + 148, KV99_ID) == 0 ||
         kv99_refuse(kv, KV99_CHECKSUM, "pack header digest mismatch");
}

bool kv99_inspect_pack(struct kv99* kv, struct kv99_bytes pack, struct kv99_pack_header* header) {
  if (pack.size < KV99_PAGE) return kv99_refuse(kv, KV99_TRUNCATED, "truncated production pack header");
  return header_fields(kv, pack.data, header) && header_digest(kv, pack.data);
}

bool kv99_check_pack(struct kv99* kv, struct kv99_bytes pack, struct kv99_pack_header* header) {
  const uint8_t* footer;
  if (pack.size < 2 * KV99_PAGE) return kv99_refuse(kv, KV99_TRUNCATED, "truncated production pack");
  if (!header_fields(kv, pack.data, header)) return false;
  if (header->stored_bytes > KV99_MAX_MANIFEST + KV99_TAG || header->plaintext_bytes > KV99_MAX_MANIFEST)
    return kv99_refuse(kv, KV99_BOUNDS, "manifest exceeds production bound");
  footer = pack.data + pack.size - KV99_PAGE;
  if (memcmp(footer, "KVCMT1\0", 8) != 0)
    return kv99_refuse(kv, KV99_BAD_MAGIC, "invalid production commit footer magic");
  if (kv99_le16(footer + 8) != 1 || kv99_le16(footer + 10) != KV99_PAGE || !kv99_zero(footer + 12, 4) ||
      !kv99_zero(footer + 32, 8) || !kv99_zero(footer + 112, KV99_PAGE - 112))
    return kv99_refuse(kv, KV99_RESERVED, "invalid production commit footer");
  if (header->stored_bytes != pack.size - 2 * KV99_PAGE || kv99_le64(footer + 16) != header->stored_bytes ||
      kv99_le64(footer + 24) != header->epoch || kv99_le64(footer + 40) != pack.size ||
      memcmp(footer + 48, header->manifest_id, KV99_ID) != 0)
    return kv99_refuse(kv, KV99_BOUNDS, "pack footer binding mismatch");
  return header_digest(kv, pack.data);
}

bool kv99_authenticate_pack(struct kv99* kv, struct kv99_bytes pack, const struct kv99_pack_header* header,
                            const struct kv99_keys* keys) {
  static const char domain[] = "kvpack/v1/manifest-auth";
  const uint8_t* footer = pack.data + pack.size - KV99_PAGE;
  struct kv99_hmac mac;
  uint8_t tag[32], numbers[24];
  unsigned i;
  for (i = 0; i < 8; ++i) {
    numbers[i] = (uint8_t)(header->stored_bytes >> 8 * i);
    numbers[8 + i] = (uint8_t)(header->epoch >> 8 * i);
    numbers[16 + i] = (uint8_t)((uint64_t)pack.size >> 8 * i);
  }
  kv99_hmac_start(&mac, kv99_bytes_of(keys->manifest_auth, 32));
  kv99_hmac_add(&mac, domain, sizeof domain);
  kv99_hmac_add(&mac, pack.data, pack.size - KV99_PAGE);
  kv99_hmac_add(&mac, numbers, sizeof numbers);
  kv99_hmac_end(&mac, tag);
  return kv99_equal_secret(tag, footer + 80, 32) ||
         kv99_refuse(kv, KV99_AUTHENTICATION, "manifest HMAC authentication failed");
}

static bool open_manifest(struct kv99* kv, struct kv99_bytes pack, const struct kv99_pack_header* header,
                          const struct kv99_keys* keys, struct kv99_bytes* plaintext) {
  static const char info[] = "kvpack/v1/manifest-aead";
  const struct kv99_bytes sealed = kv99_part(pack, KV99_PAGE, pack.size - 2 * KV99_PAGE);
  uint8_t* opened = (uint8_t*)kv99_alloc(kv, sealed.size - KV99_TAG, 1);
  uint8_t key[32];
  bool right;
  if (opened == NULL) return false;
  kv99_hkdf(kv99_bytes_of(header->salt, KV99_SALT), keys->manifest_encryption,
            kv99_bytes_of(info, sizeof info), kv99_bytes_of(header->manifest_id, KV99_ID), key);
  right = kv99_aead_open(key, header->nonce, kv99_part(pack, 0, KV99_PAGE), sealed, opened);
  kv99_wipe(key, sizeof key);
  if (!right) return kv99_refuse(kv, KV99_AUTHENTICATION, "manifest AEAD authentication failed");
  *plaintext = kv99_bytes_of(opened, sealed.size - KV99_TAG);
  return true;
}

bool kv99_read_pack(struct kv99* kv, struct kv99_bytes pack, const struct kv99_pack_header* header,
                    const struct kv99_keys* keys, const struct kv99_limits* limits,
                    struct kv99_manifest* manifest, struct kv99_bytes* plaintext, bool* readable) {
  uint8_t id[KV99_ID];
  *readable = false;
  *plaintext = kv99_part(pack, KV99_PAGE, pack.size - 2 * KV99_PAGE);
  if (header->encrypted) {
    if (header->stored_bytes < KV99_TAG)
      return kv99_refuse(kv, KV99_TRUNCATED, "truncated encrypted manifest");
    if (keys == NULL) return true;
    if (!open_manifest(kv, pack, header, keys, plaintext)) return false;
  }
  kv99_manifest_id(*plaintext, id);
  if (plaintext->size != header->plaintext_bytes || memcmp(id, header->manifest_id, KV99_ID) != 0)
    return kv99_refuse(kv, KV99_AUTHENTICATION, "manifest content identity mismatch");
  if (!kv99_decode_manifest(kv, *plaintext, manifest)) return false;
  if (memcmp(manifest->tenant, header->tenant, KV99_ID) != 0 || manifest->epoch != header->epoch)
    return kv99_refuse(kv, KV99_AUTHENTICATION, "manifest header identity mismatch");
  if (!kv99_manifest_rules(kv, manifest, limits)) return false;
  *readable = true;
  return true;
}
