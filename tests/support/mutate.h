// Damaged copies of byte strings.
#pragma once

#include "kvpack/base/bytes.h"

namespace kvpack::testing {

inline Bytes copy_of(ByteSpan bytes) {
  return Bytes(bytes.begin(), bytes.end());
}

inline Bytes with_xor(ByteSpan bytes, std::size_t offset, std::uint8_t mask) {
  Bytes out = copy_of(bytes);
  out.at(offset) ^= mask;
  return out;
}

// Bit 0 is the lowest of the first byte.
inline Bytes with_bit_flipped(ByteSpan bytes, std::size_t bit) {
  return with_xor(bytes, bit / 8, static_cast<std::uint8_t>(1U << bit % 8));
}

template <std::unsigned_integral U>
Bytes with_le(ByteSpan bytes, std::size_t offset, U value) {
  Bytes out = copy_of(bytes);
  store_le(out, offset, value);
  return out;
}

inline Bytes with_bytes(ByteSpan bytes, std::size_t offset, ByteSpan piece) {
  Bytes out = copy_of(bytes);
  for (std::size_t i = 0; i < piece.size(); ++i) out.at(offset + i) = piece[i];
  return out;
}

inline Bytes with_appended(ByteSpan bytes, std::uint8_t value) {
  Bytes out = copy_of(bytes);
  out.push_back(value);
  return out;
}

inline Bytes concat(std::initializer_list<ByteSpan> parts) {
  ByteWriter out;
  for (const ByteSpan part : parts) out.bytes(part);
  return std::move(out).take();
}

}  // namespace kvpack::testing
