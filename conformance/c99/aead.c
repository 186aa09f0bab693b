/* ChaCha20-Poly1305 of RFC 8439, opening alone: docs/format/keys.md. */
#include <string.h>

#include "kv99.h"

/* ---- ChaCha20 */

static uint32_t rotated(uint32_t x, unsigned by) {
  return x << by | x >> (32 - by);
}

static void quarter(uint32_t s[16], unsigned a, unsigned b, unsigned c, unsigned d) {
  s[a] += s[b], s[d] = rotated(s[d] ^ s[a], 16);
  s[c] += s[d], s[b] = rotated(s[b] ^ s[c], 12);
  s[a] += s[b], s[d] = rotated(s[d] ^ s[a], 8);
  s[c] += s[d], s[b] = rotated(s[b] ^ s[c], 7);
}

/* The 64 bytes of key stream of one counter. */
static void key_stream(const uint8_t key[32], const uint8_t nonce[12], uint32_t counter, uint8_t block[64]) {
  uint32_t first[16] = {0x61707865, 0x3320646e, 0x79622d32, 0x6b206574}, s[16];
  unsigned i;
  for (i = 0; i < 8; ++i) first[4 + i] = kv99_le32(key + 4 * i);
  first[12] = counter;
  for (i = 0; i < 3; ++i) first[13 + i] = kv99_le32(nonce + 4 * i);
  memcpy(s, first, sizeof s);
  for (i = 0; i < 10; ++i) {
    quarter(s, 0, 4, 8, 12), quarter(s, 1, 5, 9, 13), quarter(s, 2, 6, 10, 14), quarter(s, 3, 7, 11, 15);
    quarter(s, 0, 5, 10, 15), quarter(s, 1, 6, 11, 12), quarter(s, 2, 7, 8, 13), quarter(s, 3, 4, 9, 14);
  }
  for (i = 0; i < 64; ++i) block[i] = (uint8_t)((s[i / 4] + first[i / 4]) >> 8 * (i % 4));
  kv99_wipe(first, sizeof first);
  kv99_wipe(s, sizeof s);
}

/* ---- Poly1305, in five limbs of 26 bits */

struct poly {
  uint32_t r[5], h[5];
  uint32_t s[4];
};

#define LIMB 0x3ffffffu

static void poly_start(struct poly* p, const uint8_t key[32]) {
  unsigned i;
  p->r[0] = kv99_le32(key) & 0x3ffffff;
  p->r[1] = kv99_le32(key + 3) >> 2 & 0x3ffff03;
  p->r[2] = kv99_le32(key + 6) >> 4 & 0x3ffc0ff;
  p->r[3] = kv99_le32(key + 9) >> 6 & 0x3f03fff;
  p->r[4] = kv99_le32(key + 12) >> 8 & 0x00fffff;
  for (i = 0; i < 5; ++i) p->h[i] = 0;
  for (i = 0; i < 4; ++i) p->s[i] = kv99_le32(key + 16 + 4 * i);
}

/* One block of 16 bytes, and a bit above them. */
static void poly_block(struct poly* p, const uint8_t block[16]) {
  uint64_t product[5], carry = 0;
  unsigned i, j;
  p->h[0] += kv99_le32(block) & LIMB;
  p->h[1] += kv99_le32(block + 3) >> 2 & LIMB;
  p->h[2] += kv99_le32(block + 6) >> 4 & LIMB;
  p->h[3] += kv99_le32(block + 9) >> 6 & LIMB;
  p->h[4] += kv99_le32(block + 12) >> 8 | UINT32_C(1) << 24;
  for (i = 0; i < 5; ++i) {
    product[i] = 0;
    for (j = 0; j < 5; ++j) /* 2^130 is 5 */
      product[i] += (uint64_t)p->h[j] * (j <= i ? p->r[i - j] : (uint64_t)p->r[5 + i - j] * 5);
  }
  for (i = 0; i < 5; ++i) {
    product[i] += carry;
    p->h[i] = (uint32_t)product[i] & LIMB;
    carry = product[i] >> 26;
  }
  carry = carry * 5 + p->h[0];
  p->h[0] = (uint32_t)carry & LIMB;
  p->h[1] += (uint32_t)(carry >> 26);
}

/* Bytes, filled up with zeros to a multiple of 16. */
static void poly_padded(struct poly* p, struct kv99_bytes bytes) {
  size_t at = 0;
  uint8_t last[16] = {0};
  for (; bytes.size - at >= 16; at += 16) poly_block(p, bytes.data + at);
  if (at == bytes.size) return;
  memcpy(last, bytes.data + at, bytes.size - at);
  poly_block(p, last);
}

static void poly_end(struct poly* p, uint8_t tag[16]) {
  uint32_t less[5], carry, keep, word[4];
  uint64_t sum = 0;
  unsigned i, round;
  for (round = 0; round < 2; ++round) {
    carry = 0;
    for (i = 0; i < 5; ++i) {
      p->h[i] += carry;
      carry = p->h[i] >> 26;
      p->h[i] &= LIMB;
    }
    p->h[0] += carry * 5;
  }
  /* h - (2^130 - 5), which is taken when it is not negative. */
  carry = 5;
  for (i = 0; i < 5; ++i) {
    less[i] = p->h[i] + carry;
    carry = less[i] >> 26;
    less[i] &= LIMB;
  }
  keep = carry - 1; /* all ones when h is below the prime */
  for (i = 0; i < 5; ++i) p->h[i] = (p->h[i] & keep) | (less[i] & ~keep);
  word[0] = p->h[0] | p->h[1] << 26;
  word[1] = p->h[1] >> 6 | p->h[2] << 20;
  word[2] = p->h[2] >> 12 | p->h[3] << 14;
  word[3] = p->h[3] >> 18 | p->h[4] << 8;
  for (i = 0; i < 4; ++i) {
    sum += (uint64_t)word[i] + p->s[i];
    word[i] = (uint32_t)sum;
    sum >>= 32;
  }
  for (i = 0; i < 16; ++i) tag[i] = (uint8_t)(word[i / 4] >> 8 * (i % 4));
}

bool kv99_aead_open(const uint8_t key[32], const uint8_t nonce[12], struct kv99_bytes aad,
                    struct kv99_bytes sealed, uint8_t* plaintext) {
  struct poly poly;
  struct kv99_bytes cipher;
  uint8_t block[64], lengths[16], tag[KV99_TAG];
  uint32_t counter = 1;
  size_t at, i;
  bool right;
  if (sealed.size < KV99_TAG) return false;
  cipher = kv99_part(sealed, 0, sealed.size - KV99_TAG);
  key_stream(key, nonce, 0, block);
  poly_start(&poly, block);
  poly_padded(&poly, aad);
  poly_padded(&poly, cipher);
  for (i = 0; i < 8; ++i) {
    lengths[i] = (uint8_t)((uint64_t)aad.size >> 8 * i);
    lengths[8 + i] = (uint8_t)((uint64_t)cipher.size >> 8 * i);
  }
  poly_block(&poly, lengths);
  poly_end(&poly, tag);
  right = kv99_equal_secret(tag, sealed.data + cipher.size, KV99_TAG);
  for (at = 0; right && at < cipher.size; at += 64, ++counter) {
    const size_t n = cipher.size - at < 64 ? cipher.size - at : 64;
    key_stream(key, nonce, counter, block);
    for (i = 0; i < n; ++i) plaintext[at + i] = cipher.data[at + i] ^ block[i];
  }
  kv99_wipe(&poly, sizeof poly);
  kv99_wipe(block, sizeof block);
  return right;
}
