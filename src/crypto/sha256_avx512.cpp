// SHA-256 of sixteen messages at once with AVX-512: one register for each working variable and each word of
// the schedules, one 32-bit element of it for each message.
#include <immintrin.h>

#include "crypto/sha256_blocks.h"

namespace {

alignas(64) constexpr uint32_t kRoundConstants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

#define KVPACK_INLINE inline __attribute__((always_inline))

constexpr int kWideLanes = 16;

// Element j of row i and element i of row j change places.
KVPACK_INLINE void transpose(__m512i (&rows)[16]) {
  __m512i pairs[16];
  for (int i = 0; i < 16; i += 2) {
    pairs[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    pairs[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  __m512i quads[16];
  for (int i = 0; i < 16; i += 4)
    for (int j = 0; j < 2; ++j) {
      quads[i + 2 * j] = _mm512_unpacklo_epi64(pairs[i + j], pairs[i + j + 2]);
      quads[i + 2 * j + 1] = _mm512_unpackhi_epi64(pairs[i + j], pairs[i + j + 2]);
    }
  // quads[4 * r + c] has columns c, c + 4, c + 8, c + 12 of rows 4 * r to 4 * r + 3.
  for (int c = 0; c < 4; ++c) {
    const __m512i low_even = _mm512_shuffle_i32x4(quads[c], quads[c + 4], 0x88);
    const __m512i low_odd = _mm512_shuffle_i32x4(quads[c], quads[c + 4], 0xDD);
    const __m512i high_even = _mm512_shuffle_i32x4(quads[c + 8], quads[c + 12], 0x88);
    const __m512i high_odd = _mm512_shuffle_i32x4(quads[c + 8], quads[c + 12], 0xDD);
    rows[c] = _mm512_shuffle_i32x4(low_even, high_even, 0x88);
    rows[c + 4] = _mm512_shuffle_i32x4(low_odd, high_odd, 0x88);
    rows[c + 8] = _mm512_shuffle_i32x4(low_even, high_even, 0xDD);
    rows[c + 12] = _mm512_shuffle_i32x4(low_odd, high_odd, 0xDD);
  }
}

KVPACK_INLINE __m512i xor3(__m512i x, __m512i y, __m512i z) {
  return _mm512_ternarylogic_epi32(x, y, z, 0x96);
}

// One round. What the next round waits for longest, the sum with Sigma1(e), is added last.
template <int kRound>
KVPACK_INLINE void one_round(__m512i a, __m512i b, __m512i c, __m512i& d, __m512i e, __m512i f, __m512i g,
                             __m512i& h, __m512i (&w)[16]) {
  const __m512i choice = _mm512_ternarylogic_epi32(e, f, g, 0xCA);
  const __m512i majority = _mm512_ternarylogic_epi32(a, b, c, 0xE8);
  const __m512i sigma1 = xor3(_mm512_ror_epi32(e, 6), _mm512_ror_epi32(e, 11), _mm512_ror_epi32(e, 25));
  const __m512i sigma0 = xor3(_mm512_ror_epi32(a, 2), _mm512_ror_epi32(a, 13), _mm512_ror_epi32(a, 22));
  const __m512i constant = _mm512_set1_epi32(static_cast<int>(kRoundConstants[kRound]));
  const __m512i early =
      _mm512_add_epi32(_mm512_add_epi32(_mm512_add_epi32(w[kRound & 15], constant), h), choice);
  d = _mm512_add_epi32(_mm512_add_epi32(d, early), sigma1);
  h = _mm512_add_epi32(_mm512_add_epi32(_mm512_add_epi32(sigma0, majority), early), sigma1);
  if constexpr (kRound < 48) {
    const __m512i x = w[(kRound + 1) & 15];
    const __m512i y = w[(kRound + 14) & 15];
    const __m512i small0 = xor3(_mm512_ror_epi32(x, 7), _mm512_ror_epi32(x, 18), _mm512_srli_epi32(x, 3));
    const __m512i small1 = xor3(_mm512_ror_epi32(y, 17), _mm512_ror_epi32(y, 19), _mm512_srli_epi32(y, 10));
    w[kRound & 15] = _mm512_add_epi32(
        _mm512_add_epi32(_mm512_add_epi32(w[kRound & 15], w[(kRound + 9) & 15]), small0), small1);
  }
}

template <int kRound>
KVPACK_INLINE void rounds_from(__m512i (&s)[8], __m512i (&w)[16]) {
  one_round<kRound>(s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7], w);
  one_round<kRound + 1>(s[7], s[0], s[1], s[2], s[3], s[4], s[5], s[6], w);
  one_round<kRound + 2>(s[6], s[7], s[0], s[1], s[2], s[3], s[4], s[5], w);
  one_round<kRound + 3>(s[5], s[6], s[7], s[0], s[1], s[2], s[3], s[4], w);
  one_round<kRound + 4>(s[4], s[5], s[6], s[7], s[0], s[1], s[2], s[3], w);
  one_round<kRound + 5>(s[3], s[4], s[5], s[6], s[7], s[0], s[1], s[2], w);
  one_round<kRound + 6>(s[2], s[3], s[4], s[5], s[6], s[7], s[0], s[1], w);
  one_round<kRound + 7>(s[1], s[2], s[3], s[4], s[5], s[6], s[7], s[0], w);
  if constexpr (kRound + 8 < 64) rounds_from<kRound + 8>(s, w);
}

}  // namespace

void kvsha256_avx512_16(uint32_t* const* states, const uint8_t* const* messages, size_t blocks) {
  const __m512i big_endian = _mm512_broadcast_i32x4(_mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203));
  __m512i rows[16];
  for (int lane = 0; lane < kWideLanes; ++lane)
    rows[lane] = _mm512_zextsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(states[lane])));
  transpose(rows);
  __m512i s[8];
  for (int i = 0; i < 8; ++i) s[i] = rows[i];
  for (size_t offset = 0; blocks != 0; --blocks, offset += 64) {
    __m512i w[16];
    for (int lane = 0; lane < kWideLanes; ++lane)
      w[lane] = _mm512_shuffle_epi8(_mm512_loadu_si512(messages[lane] + offset), big_endian);
    transpose(w);
    __m512i before[8];
    for (int i = 0; i < 8; ++i) before[i] = s[i];
    rounds_from<0>(s, w);
    for (int i = 0; i < 8; ++i) s[i] = _mm512_add_epi32(s[i], before[i]);
  }
  for (int i = 0; i < 8; ++i) rows[i] = s[i];
  for (int i = 8; i < 16; ++i) rows[i] = _mm512_setzero_si512();
  transpose(rows);
  for (int lane = 0; lane < kWideLanes; ++lane)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(states[lane]), _mm512_castsi512_si256(rows[lane]));
}
