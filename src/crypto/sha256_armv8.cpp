// SHA-256 with the SHA2 instructions of Armv8, one and two lanes.
#include <arm_neon.h>

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

struct ArmState {
  uint32x4_t abcd;
  uint32x4_t efgh;
};

// Rounds 4 * kStep and on, of kMessages schedules with kChains states each. w holds the last sixteen words of
// each schedule, four to a register.
template <int kMessages, int kChains, int kStep>
KVPACK_INLINE void rounds_from(ArmState (&states)[kMessages * kChains], uint32x4_t (&w)[kMessages][4]) {
  constexpr int kNow = kStep & 3;
  const uint32x4_t constants = vld1q_u32(kRoundConstants + 4 * kStep);
  uint32x4_t words[kMessages];
  for (int m = 0; m < kMessages; ++m) words[m] = vaddq_u32(w[m][kNow], constants);
  for (int s = 0; s < kMessages * kChains; ++s) {
    const uint32x4_t abcd = states[s].abcd;
    states[s].abcd = vsha256hq_u32(abcd, states[s].efgh, words[s / kChains]);
    states[s].efgh = vsha256h2q_u32(states[s].efgh, abcd, words[s / kChains]);
  }
  if constexpr (kStep < 12)
    for (int m = 0; m < kMessages; ++m)
      w[m][kNow] = vsha256su1q_u32(vsha256su0q_u32(w[m][kNow], w[m][(kStep + 1) & 3]), w[m][(kStep + 2) & 3],
                                   w[m][(kStep + 3) & 3]);
  if constexpr (kStep < 15) rounds_from<kMessages, kChains, kStep + 1>(states, w);
}

template <int kMessages, int kChains>
KVPACK_INLINE void compress_armv8(uint32_t* const* lanes, const uint8_t* const* messages, size_t blocks) {
  ArmState states[kMessages * kChains];
  const uint8_t* next[kMessages];
  for (int s = 0; s < kMessages * kChains; ++s) states[s] = {vld1q_u32(lanes[s]), vld1q_u32(lanes[s] + 4)};
  for (int m = 0; m < kMessages; ++m) next[m] = messages[m];
  for (; blocks != 0; --blocks) {
    ArmState before[kMessages * kChains];
    uint32x4_t w[kMessages][4];
    for (int s = 0; s < kMessages * kChains; ++s) before[s] = states[s];
    for (int m = 0; m < kMessages; ++m) {
      for (int i = 0; i < 4; ++i) w[m][i] = vreinterpretq_u32_u8(vrev32q_u8(vld1q_u8(next[m] + 16 * i)));
      next[m] += 64;
    }
    rounds_from<kMessages, kChains, 0>(states, w);
    for (int s = 0; s < kMessages * kChains; ++s)
      states[s] = {vaddq_u32(states[s].abcd, before[s].abcd), vaddq_u32(states[s].efgh, before[s].efgh)};
  }
  for (int s = 0; s < kMessages * kChains; ++s) {
    vst1q_u32(lanes[s], states[s].abcd);
    vst1q_u32(lanes[s] + 4, states[s].efgh);
  }
}

}  // namespace

void kvsha256_armv8_1(uint32_t* const* states, const uint8_t* const* messages, size_t blocks) {
  compress_armv8<1, 1>(states, messages, blocks);
}
void kvsha256_armv8_2(uint32_t* const* states, const uint8_t* const* messages, size_t blocks) {
  compress_armv8<2, 1>(states, messages, blocks);
}
void kvsha256_armv8_2_same(uint32_t* const* states, const uint8_t* const* messages, size_t blocks) {
  compress_armv8<1, 2>(states, messages, blocks);
}
