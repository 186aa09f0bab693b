/* SHA-256 of FIPS 180-4, HMAC of RFC 2104, HKDF of RFC 5869: docs/format/keys.md. */
#include <string.h>

#include "kv99.h"

static const uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotated(uint32_t x, unsigned by) {
  return x >> by | x << (32 - by);
}

static uint32_t be32(const uint8_t* p) {
  return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static void compress(uint32_t state[8], const uint8_t* block) {
  uint32_t w[64], a = state[0], b = state[1], c = state[2], d = state[3];
  uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
  unsigned i;
  for (i = 0; i < 16; ++i) w[i] = be32(block + 4 * i);
  for (; i < 64; ++i) {
    const uint32_t s0 = rotated(w[i - 15], 7) ^ rotated(w[i - 15], 18) ^ w[i - 15] >> 3;
    const uint32_t s1 = rotated(w[i - 2], 17) ^ rotated(w[i - 2], 19) ^ w[i - 2] >> 10;
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  for (i = 0; i < 64; ++i) {
    const uint32_t s1 = rotated(e, 6) ^ rotated(e, 11) ^ rotated(e, 25);
    const uint32_t one = h + s1 + ((e & f) ^ (~e & g)) + kRound[i] + w[i];
    const uint32_t s0 = rotated(a, 2) ^ rotated(a, 13) ^ rotated(a, 22);
    const uint32_t two = s0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + one, d = c, c = b, b = a, a = one + two;
  }
  state[0] += a, state[1] += b, state[2] += c, state[3] += d;
  state[4] += e, state[5] += f, state[6] += g, state[7] += h;
}

void kv99_sha256_start(struct kv99_sha256* hash) {
  static const uint32_t first[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  memcpy(hash->state, first, sizeof first);
  hash->bytes = 0;
}

void kv99_sha256_add(struct kv99_sha256* hash, const void* data, size_t size) {
  const uint8_t* p = (const uint8_t*)data;
  size_t held = (size_t)(hash->bytes % 64);
  hash->bytes += size;
  while (size > 0) {
    if (held == 0 && size >= 64) {
      compress(hash->state, p);
      p += 64, size -= 64;
    } else {
      const size_t n = size < 64 - held ? size : 64 - held;
      memcpy(hash->block + held, p, n);
      held += n, p += n, size -= n;
      if (held < 64) return;
      compress(hash->state, hash->block);
      held = 0;
    }
  }
}

void kv99_sha256_end(struct kv99_sha256* hash, uint8_t digest[32]) {
  const uint64_t bits = hash->bytes * 8;
  size_t held = (size_t)(hash->bytes % 64);
  unsigned i;
  hash->block[held++] = 0x80;
  if (held > 56) {
    memset(hash->block + held, 0, 64 - held);
    compress(hash->state, hash->block);
    held = 0;
  }
  memset(hash->block + held, 0, 56 - held);
  for (i = 0; i < 8; ++i) hash->block[56 + i] = (uint8_t)(bits >> (56 - 8 * i));
  compress(hash->state, hash->block);
  for (i = 0; i < 32; ++i) digest[i] = (uint8_t)(hash->state[i / 4] >> (24 - 8 * (i % 4)));
}

void kv99_hash(struct kv99_bytes bytes, uint8_t digest[32]) {
  struct kv99_sha256 hash;
  kv99_sha256_start(&hash);
  kv99_sha256_add(&hash, bytes.data, bytes.size);
  kv99_sha256_end(&hash, digest);
}

void kv99_hmac_start(struct kv99_hmac* mac, struct kv99_bytes key) {
  uint8_t block[64] = {0};
  unsigned i;
  if (key.size > sizeof block) {
    kv99_hash(key, block);
  } else if (key.size != 0) {
    memcpy(block, key.data, key.size);
  }
  for (i = 0; i < sizeof block; ++i) block[i] ^= 0x36;
  kv99_sha256_start(&mac->inner);
  kv99_sha256_add(&mac->inner, block, sizeof block);
  for (i = 0; i < sizeof block; ++i) block[i] ^= 0x36 ^ 0x5c;
  kv99_sha256_start(&mac->outer);
  kv99_sha256_add(&mac->outer, block, sizeof block);
  kv99_wipe(block, sizeof block);
}

void kv99_hmac_add(struct kv99_hmac* mac, const void* data, size_t size) {
  kv99_sha256_add(&mac->inner, data, size);
}

void kv99_hmac_end(struct kv99_hmac* mac, uint8_t tag[32]) {
  uint8_t digest[32];
  kv99_sha256_end(&mac->inner, digest);
  kv99_sha256_add(&mac->outer, digest, sizeof digest);
  kv99_sha256_end(&mac->outer, tag);
  kv99_wipe(digest, sizeof digest);
  kv99_wipe(mac, sizeof *mac);
}

void kv99_hkdf(struct kv99_bytes salt, const uint8_t key[32], struct kv99_bytes info, struct kv99_bytes more,
               uint8_t out[32]) {
  static const uint8_t one = 1;
  struct kv99_hmac mac;
  uint8_t prk[32];
  kv99_hmac_start(&mac, salt);
  kv99_hmac_add(&mac, key, 32);
  kv99_hmac_end(&mac, prk);
  kv99_hmac_start(&mac, kv99_bytes_of(prk, sizeof prk));
  kv99_hmac_add(&mac, info.data, info.size);
  kv99_hmac_add(&mac, more.data, more.size);
  kv99_hmac_add(&mac, &one, 1);
  kv99_hmac_end(&mac, out);
  kv99_wipe(prk, sizeof prk);
}
