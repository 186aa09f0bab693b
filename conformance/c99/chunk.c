/* docs/format/chunk.md: chunk objects, codec frames, lossless packets. */
#include <string.h>

#include "kv99.h"

#define SIDECAR_AT 238u

/* ---- codec frame */

/* The encoder's own packets of a plaintext, held against packets that were read: canonical when they are the
 * same. */
struct packets {
  struct kv99_bytes expected;
  size_t at;
  bool same;
};

static void compare_packet(struct packets* packets, uint8_t control, const uint8_t* bytes, size_t size) {
  if (!packets->same) return;
  packets->same = packets->expected.size - packets->at >= 1 + size &&
                  packets->expected.data[packets->at] == control &&
                  memcmp(packets->expected.data + packets->at + 1, bytes, size) == 0;
  packets->at += 1 + size;
}

static size_t run_at(struct kv99_bytes text, size_t at) {
  size_t run = 1;
  while (run < 128 && at + run < text.size && text.data[at + run] == text.data[at]) ++run;
  return run;
}

static bool packets_are_canonical(struct kv99_bytes packets_read, struct kv99_bytes plaintext) {
  struct packets packets = {packets_read, 0, true};
  size_t i = 0;
  while (i < plaintext.size && packets.same) {
    size_t run = run_at(plaintext, i), literal;
    if (run >= 3) {
      compare_packet(&packets, (uint8_t)(0x80 | (run - 1)), plaintext.data + i, 1);
      i += run;
      continue;
    }
    literal = i;
    i += run;
    while (i < plaintext.size && i - literal < 128) {
      run = run_at(plaintext, i);
      if (run >= 3) break;
      if (i - literal + run > 128) {
        i = literal + 128;
        break;
      }
      i += run;
    }
    compare_packet(&packets, (uint8_t)(i - literal - 1), plaintext.data + literal, i - literal);
  }
  return packets.same && packets.at == packets_read.size;
}

static bool decode_packets(struct kv99* kv, struct kv99_bytes coded, size_t expected,
                           struct kv99_bytes* plaintext) {
  uint8_t* out = (uint8_t*)kv99_alloc(kv, expected, 1);
  size_t at = 0, made = 0;
  if (out == NULL) return false;
  while (at < coded.size) {
    const uint8_t control = coded.data[at++];
    const size_t length = (size_t)(control & 0x7f) + 1;
    const size_t own = control >= 0x80 ? 1 : length;
    if (coded.size - at < own)
      return kv99_refuse(
          kv, KV99_TRUNCATED,
          control >= 0x80 ? "truncated lossless repeat packet" : "truncated lossless literal packet");
    if (length > expected - made) return kv99_refuse(kv, KV99_BOUNDS, "lossless frame expands past bound");
    if (control >= 0x80) {
      memset(out + made, coded.data[at], length);
    } else {
      memcpy(out + made, coded.data + at, length);
    }
    at += own;
    made += length;
  }
  if (made != expected) return kv99_refuse(kv, KV99_BOUNDS, "lossless decoded length mismatch");
  *plaintext = kv99_bytes_of(out, made);
  if (!packets_are_canonical(coded, *plaintext))
    return kv99_refuse(kv, KV99_RESERVED, "codec frame is not canonical");
  return true;
}

bool kv99_decode_frame(struct kv99* kv, unsigned codec, struct kv99_bytes frame, uint64_t expected,
                       struct kv99_bytes* plaintext) {
  struct kv99_bytes coded;
  if (frame.size < 16) return kv99_refuse(kv, KV99_TRUNCATED, "truncated codec frame");
  if (memcmp(frame.data, codec == KV99_RAW ? "KVRAW1\0" : "KVRLE1\0", 8) != 0)
    return kv99_refuse(kv, KV99_BAD_MAGIC, "codec frame magic does not match codec");
  if (kv99_le16(frame.data + 8) != 1)
    return kv99_refuse(kv, KV99_BAD_MAGIC, "unsupported codec frame version");
  if (kv99_le16(frame.data + 10) != 0)
    return kv99_refuse(kv, KV99_RESERVED, "codec frame reserved field is nonzero");
  if (kv99_le32(frame.data + 12) != expected || expected == 0 || expected > KV99_MAX_PLAINTEXT)
    return kv99_refuse(kv, KV99_BOUNDS, "codec frame decoded length mismatch");
  coded = kv99_part(frame, 16, frame.size - 16);
  if (codec != KV99_RAW) return decode_packets(kv, coded, (size_t)expected, plaintext);
  if (coded.size != expected) return kv99_refuse(kv, KV99_BOUNDS, "raw frame length mismatch");
  *plaintext = coded;
  return true;
}

/* ---- chunk object */

/* Steps 11 to 14. */
static bool inspect_sidecar(struct kv99* kv, struct kv99_bytes object, struct kv99_chunk_header* header) {
  const size_t length = kv99_le16(object.data + SIDECAR_AT - 2);
  struct kv99_sidecar sidecar;
  if (length > KV99_MAX_SIDECAR)
    return kv99_refuse(kv, KV99_BOUNDS, "chunk stats sidecar length is outside bounds");
  header->sidecar = kv99_part(object, SIDECAR_AT, length);
  if (length == 0) {
    if (!kv99_zero(object.data + SIDECAR_AT, KV99_PAGE - SIDECAR_AT))
      return kv99_refuse(kv, KV99_RESERVED, "chunk header reserved bytes are nonzero");
    return true;
  }
  if (!kv99_decode_sidecar(kv, header->sidecar, &sidecar)) return false;
  if (!kv99_zero(object.data + SIDECAR_AT + length, KV99_PAGE - SIDECAR_AT - length))
    return kv99_refuse(kv, KV99_RESERVED, "chunk header sidecar padding is nonzero");
  return true;
}

bool kv99_inspect_chunk(struct kv99* kv, struct kv99_bytes object, struct kv99_chunk_header* header) {
  const uint8_t* p = object.data;
  uint32_t flags;
  uint64_t payload_end;
  if (object.size < KV99_PAGE || object.size > KV99_MAX_CHUNK_OBJECT || object.size % KV99_PAGE != 0)
    return kv99_refuse(kv, KV99_BOUNDS, "invalid chunk object length");
  if (memcmp(p, "KVCHK1\0", 8) != 0) return kv99_refuse(kv, KV99_BAD_MAGIC, "invalid production chunk magic");
  if (kv99_le16(p + 8) != 1 || kv99_le16(p + 10) != KV99_PAGE || kv99_le32(p + 12) != KV99_PAGE)
    return kv99_refuse(kv, KV99_BAD_MAGIC, "invalid chunk header contract");
  flags = kv99_le32(p + 16);
  if (flags > 1) return kv99_refuse(kv, KV99_RESERVED, "unknown chunk flags");
  header->encrypted = flags == 1;
  header->codec = kv99_le16(p + 20);
  header->codec_version = kv99_le16(p + 22);
  header->plaintext_bytes = kv99_le32(p + 24);
  header->frame_bytes = kv99_le32(p + 28);
  header->payload_bytes = kv99_le32(p + 32);
  header->object_bytes = kv99_le32(p + 36);
  header->epoch = kv99_le64(p + 40);
  header->tenant = p + 48;
  header->family_id = p + 80;
  header->content_id = p + 112;
  header->object_key = p + 144;
  header->salt = p + 176;
  header->nonce = p + 192;
  if (header->codec != KV99_RAW && header->codec != KV99_LOSSLESS)
    return kv99_refuse_value(kv, "codec", header->codec);
  if (header->codec_version != 1) return kv99_refuse(kv, KV99_CODEC, "unsupported chunk codec version");
  if (header->plaintext_bytes == 0 || header->plaintext_bytes > KV99_MAX_PLAINTEXT ||
      header->frame_bytes < 16 || header->frame_bytes > KV99_MAX_PLAINTEXT + KV99_MAX_CODEC_OVERHEAD ||
      header->object_bytes != object.size)
    return kv99_refuse(kv, KV99_BOUNDS, "invalid chunk size fields");
  if (header->payload_bytes != header->frame_bytes + (header->encrypted ? KV99_TAG : 0))
    return kv99_refuse(kv, KV99_BOUNDS, "chunk payload length does not match encryption mode");
  payload_end = (uint64_t)KV99_PAGE + header->payload_bytes;
  if (payload_end > object.size) return kv99_refuse(kv, KV99_TRUNCATED, "truncated chunk payload");
  if (!kv99_zero(p + payload_end, object.size - (size_t)payload_end))
    return kv99_refuse(kv, KV99_RESERVED, "chunk padding is nonzero");
  if (!inspect_sidecar(kv, object, header)) return false;
  if (!header->encrypted && !kv99_zero(header->salt, KV99_SALT + KV99_NONCE))
    return kv99_refuse(kv, KV99_RESERVED, "unencrypted chunk salt or nonce is nonzero");
  return true;
}

static bool is_id(const uint8_t* a, const uint8_t* b) {
  return kv99_equal_secret(a, b, KV99_ID);
}

static bool header_digest_is_right(const uint8_t* page) {
  static const uint8_t zero[KV99_ID] = {0};
  struct kv99_sha256 hash;
  uint8_t digest[KV99_ID];
  kv99_sha256_start(&hash);
  kv99_sha256_add(&hash, page, 204);
  kv99_sha256_add(&hash, zero, sizeof zero);
  kv99_sha256_add(&hash, page + 236, KV99_PAGE - 236);
  kv99_sha256_end(&hash, digest);
  return is_id(digest, page + 204);
}

/* Steps 16 to 22. */
static bool check_claim(struct kv99* kv, struct kv99_bytes object, const struct kv99_chunk_header* header,
                        const struct kv99_chunk_claim* claim) {
  uint8_t digest[KV99_ID];
  if (claim->span != NULL &&
      (object.size != claim->ref.object_bytes || header->plaintext_bytes != claim->ref.plaintext_bytes ||
       header->plaintext_bytes != claim->span->plaintext_bytes))
    return kv99_refuse(kv, KV99_BOUNDS, "chunk reference size mismatch");
  kv99_hash(object, digest);
  if (!is_id(digest, claim->ref.digest))
    return kv99_refuse(kv, KV99_AUTHENTICATION, "chunk object digest mismatch");
  if (!header_digest_is_right(object.data))
    return kv99_refuse(kv, KV99_AUTHENTICATION, "chunk header digest mismatch");
  if (claim->span != NULL) {
    const struct kv99_static_state* state = kv99_family_state(claim->family, claim->state);
    if (state == NULL)
      return kv99_refuse(kv, KV99_SEMANTICS, "chunk state is absent from representation family");
    if (state->codec != header->codec || state->codec_version != header->codec_version)
      return kv99_refuse(kv, KV99_SEMANTICS, "chunk codec does not match representation family");
    if (!is_id(header->tenant, claim->tenant) || !is_id(header->family_id, claim->family_id) ||
        header->epoch != claim->ref.epoch)
      return kv99_refuse(kv, KV99_AUTHENTICATION, "chunk namespace, family, or epoch mismatch");
  }
  if (!is_id(header->content_id, claim->ref.content_id) || !is_id(header->object_key, claim->ref.object_key))
    return kv99_refuse(kv, KV99_AUTHENTICATION, "chunk identity or object key mismatch");
  if (claim->keys != NULL) {
    struct kv99_object_key parts;
    uint8_t stats[KV99_ID], key[KV99_ID];
    parts.family_id = header->family_id;
    parts.content_id = header->content_id;
    parts.epoch = header->epoch;
    parts.codec = header->codec;
    parts.codec_version = header->codec_version;
    parts.encrypted = header->encrypted;
    parts.salt = header->salt;
    parts.nonce = header->nonce;
    parts.stats_digest = header->sidecar.size == 0 ? NULL : stats;
    kv99_hash(header->sidecar, stats);
    kv99_make_object_key(claim->keys, &parts, key);
    if (!is_id(key, header->object_key))
      return kv99_refuse(kv, KV99_AUTHENTICATION, "chunk identity or object key mismatch");
  }
  return true;
}

static bool open_payload(struct kv99* kv, struct kv99_bytes object, const struct kv99_chunk_header* header,
                         const struct kv99_keys* keys, struct kv99_bytes* frame) {
  static const char info[] = "kvpack/v1/chunk-aead";
  const struct kv99_bytes sealed = kv99_part(object, KV99_PAGE, header->payload_bytes);
  uint8_t* opened = (uint8_t*)kv99_alloc(kv, header->frame_bytes, 1);
  uint8_t key[32];
  bool right;
  if (opened == NULL) return false;
  /* Content id and object key stand side by side in the header. */
  kv99_hkdf(kv99_bytes_of(header->salt, KV99_SALT), keys->chunk_encryption, kv99_bytes_of(info, sizeof info),
            kv99_bytes_of(header->content_id, 2 * KV99_ID), key);
  right = kv99_aead_open(key, header->nonce, kv99_part(object, 0, KV99_PAGE), sealed, opened);
  kv99_wipe(key, sizeof key);
  if (!right) return kv99_refuse(kv, KV99_AUTHENTICATION, "chunk AEAD authentication failed");
  *frame = kv99_bytes_of(opened, header->frame_bytes);
  return true;
}

bool kv99_open_chunk(struct kv99* kv, struct kv99_bytes object, const struct kv99_chunk_claim* claim,
                     struct kv99_chunk_header* header, struct kv99_bytes* plaintext) {
  struct kv99_bytes frame, text;
  uint8_t id[KV99_ID];
  *plaintext = kv99_bytes_of(NULL, 0);
  if (!kv99_inspect_chunk(kv, object, header) || !check_claim(kv, object, header, claim)) return false;
  if (header->encrypted && claim->keys == NULL) return true;
  frame = kv99_part(object, KV99_PAGE, header->frame_bytes);
  if (header->encrypted && !open_payload(kv, object, header, claim->keys, &frame)) return false;
  if (!kv99_decode_frame(kv, header->codec, frame, header->plaintext_bytes, &text)) return false;
  if (claim->keys != NULL && claim->span != NULL) {
    if (!kv99_content_id(kv, claim->keys, header->family_id, claim->state, claim->span, text, id))
      return false;
    if (!is_id(id, header->content_id))
      return kv99_refuse(kv, KV99_AUTHENTICATION, "chunk plaintext identity mismatch");
  }
  *plaintext = text;
  return true;
}
