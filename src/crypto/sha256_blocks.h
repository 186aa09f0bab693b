/// Compression functions of SHA-256 (FIPS 180-4, 6.2.2), each in a file of its own, compiled for the
/// instructions it uses. Such a file includes nothing that defines inline functions or templates which
/// another file could define too: the linker might keep its copy, with its instructions, for everybody. This
/// header is all that they share.
///
/// All have one form. Each lane is one hash state, eight words a to h, and one message of whole blocks of 64
/// bytes at any alignment; lanes may read the same bytes, and no two lanes share a state. The number of lanes
/// is in the name. A `_same` function advances two states over one message, whose schedule it computes once.
/// Time and memory accesses depend on the number of blocks alone. The names do not begin as those that the
/// shared library exports, and are hidden: no shared library around this code hands them on.
#pragma once

#include <stddef.h>
#include <stdint.h>

extern "C" {

#pragma GCC visibility push(hidden)

using kvsha256_blocks = void(uint32_t* const* states, const uint8_t* const* messages, size_t blocks);

// Plain C++, any machine.
kvsha256_blocks kvsha256_plain_1;

// x86: SHA, SSE4.1, AVX2.
kvsha256_blocks kvsha256_shani_1;
kvsha256_blocks kvsha256_shani_2;
kvsha256_blocks kvsha256_shani_3;
kvsha256_blocks kvsha256_shani_4;
kvsha256_blocks kvsha256_shani_2_same;

// x86: AVX-512 F, BW, VL, with the zmm registers enabled by the operating system.
kvsha256_blocks kvsha256_avx512_16;

// Armv8: SHA2.
kvsha256_blocks kvsha256_armv8_1;
kvsha256_blocks kvsha256_armv8_2;
kvsha256_blocks kvsha256_armv8_2_same;

#pragma GCC visibility pop

}  // extern "C"
