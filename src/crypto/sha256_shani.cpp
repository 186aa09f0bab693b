// SHA-256 with the SHA extensions of x86. One message keeps the unit half busy, because each of its rounds
// waits for the one before; rounds of several lanes fill the gaps.
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

// The working variables of a lane, in the order of the instructions: a b e f, and c d g h.
struct ShaniState {
  __m128i abef;
  __m128i cdgh;
};

KVPACK_INLINE ShaniState load_state(const uint32_t* words) {
  const __m128i badc = _mm_shuffle_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(words)), 0xB1);
  const __m128i hgfe = _mm_shuffle_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(words + 4)), 0x1B);
  return {_mm_alignr_epi8(badc, hgfe, 8), _mm_blend_epi16(hgfe, badc, 0xF0)};
}

KVPACK_INLINE void store_state(const ShaniState& state, uint32_t* words) {
  const __m128i feba = _mm_shuffle_epi32(state.abef, 0x1B);
  const __m128i dchg = _mm_shuffle_epi32(state.cdgh, 0xB1);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(words), _mm_blend_epi16(feba, dchg, 0xF0));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(words + 4), _mm_alignr_epi8(dchg, feba, 8));
}

// Rounds 4 * kStep and on, of kMessages schedules with kChains states each. w holds the last sixteen words of
// each schedule, four to a register.
template <int kMessages, int kChains, int kStep>
KVPACK_INLINE void rounds_from(ShaniState (&states)[kMessages * kChains], __m128i (&w)[kMessages][4]) {
  constexpr int kNow = kStep & 3, kNext = (kStep + 1) & 3, kBefore = (kStep + 3) & 3;
  const __m128i constants = _mm_load_si128(reinterpret_cast<const __m128i*>(kRoundConstants + 4 * kStep));
  // Lane after lane, each with its part of the schedule first: the processor looks far enough ahead to mix
  // them, and the words of all of them at once would want more registers than there are.
  for (int m = 0; m < kMessages; ++m) {
    if constexpr (kStep >= 3 && kStep < 15) {
      const __m128i seven_back = _mm_alignr_epi8(w[m][kNow], w[m][kBefore], 4);
      w[m][kNext] = _mm_sha256msg2_epu32(_mm_add_epi32(w[m][kNext], seven_back), w[m][kNow]);
    }
    if constexpr (kStep >= 1 && kStep < 13) w[m][kBefore] = _mm_sha256msg1_epu32(w[m][kBefore], w[m][kNow]);
    __m128i words = _mm_add_epi32(w[m][kNow], constants);
    for (int s = m * kChains; s < (m + 1) * kChains; ++s)
      states[s].cdgh = _mm_sha256rnds2_epu32(states[s].cdgh, states[s].abef, words);
    words = _mm_shuffle_epi32(words, 0x0E);
    for (int s = m * kChains; s < (m + 1) * kChains; ++s)
      states[s].abef = _mm_sha256rnds2_epu32(states[s].abef, states[s].cdgh, words);
  }
  if constexpr (kStep < 15) rounds_from<kMessages, kChains, kStep + 1>(states, w);
}

template <int kMessages, int kChains>
KVPACK_INLINE void compress_shani(uint32_t* const* lanes, const uint8_t* const* messages, size_t blocks) {
  const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  ShaniState states[kMessages * kChains];
  const uint8_t* next[kMessages];
  for (int s = 0; s < kMessages * kChains; ++s) states[s] = load_state(lanes[s]);
  for (int m = 0; m < kMessages; ++m) next[m] = messages[m];
  for (; blocks != 0; --blocks) {
    ShaniState before[kMessages * kChains];
    __m128i w[kMessages][4];
    for (int s = 0; s < kMessages * kChains; ++s) before[s] = states[s];
    for (int m = 0; m < kMessages; ++m) {
      for (int i = 0; i < 4; ++i)
        w[m][i] =
            _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(next[m] + 16 * i)), big_endian);
      next[m] += 64;
    }
    rounds_from<kMessages, kChains, 0>(states, w);
    for (int s = 0; s < kMessages * kChains; ++s)
      states[s] = {_mm_add_epi32(states[s].abef, before[s].abef),
                   _mm_add_epi32(states[s].cdgh, before[s].cdgh)};
  }
  for (int s = 0; s < kMessages * kChains; ++s) store_state(states[s], lanes[s]);
}

}  // namespace

void kvsha256_shani_1(uint32_t* const* states, const uint8_t* const* messages, size_t blocks) {
  compress_shani<1, 1>(states, messages, blocks);
}
void kvsha256_shani_2(uint32_t* const* states, const uint8_t* const* messages, size_t blocks) {
  compress_shani<2, 1>(states, messages, blocks);
}
void kvsha256_shani_3(uint32_t* const* states, const uint8_t* const* messages, size_t blocks) {
  compress_shani<3, 1>(states, messages, blocks);
}
void kvsha256_shani_4(uint32_t* const* states, const uint8_t* const* messages, size_t blocks) {
  compress_shani<4, 1>(states, messages, blocks);
}
void kvsha256_shani_2_same(uint32_t* const* states, const uint8_t* const* messages, size_t blocks) {
  compress_shani<1, 2>(states, messages, blocks);
}
