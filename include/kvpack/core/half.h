/// binary16 to float and back, as the formats define it: docs/format/stats-sidecar.md §Half conversion.
#pragma once

#include <bit>
#include <cstdint>

namespace kvpack {

/// True for everything but infinities and NaNs.
constexpr bool half_is_finite(std::uint16_t bits) noexcept {
  return (bits & 0x7c00) != 0x7c00;
}

/// The float of the same value; exact. A NaN keeps sign and payload and becomes quiet.
constexpr float half_to_float(std::uint16_t bits) noexcept {
  const std::uint32_t sign = (std::uint32_t{bits} & 0x8000U) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1fU;
  const std::uint32_t mantissa = bits & 0x3ffU;
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24, which a float holds as a normal number
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
    return sign != 0 ? -magnitude : magnitude;
  }
  if (exponent == 31) {
    const std::uint32_t quiet = mantissa != 0 ? 0x00400000U : 0;
    return std::bit_cast<float>(sign | 0x7f800000U | quiet | (mantissa << 13));
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

/// Nearest binary16, ties to even, with two rules of the format: every NaN gives 0x7e00, and a magnitude
/// strictly between 2^-25 and 2^-24 gives zero, where IEEE 754 would give 2^-24. 65520 and above gives
/// infinity.
constexpr std::uint16_t float_to_half(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const int exponent = static_cast<int>((bits >> 23) & 0xffU) - 127;
  const std::uint32_t fraction = bits & 0x7fffffU;
  if (exponent == 128 && fraction != 0) return 0x7e00;
  if (exponent > 15) return static_cast<std::uint16_t>(sign | 0x7c00U);
  if (exponent < -24) return static_cast<std::uint16_t>(sign);

  const bool subnormal = exponent < -14;
  const std::uint32_t mantissa = subnormal ? fraction | 0x800000U : fraction;
  const int shift = subnormal ? 13 - 14 - exponent : 13;
  std::uint32_t kept = mantissa >> shift;
  const std::uint32_t dropped = mantissa & ((std::uint32_t{1} << shift) - 1);
  const std::uint32_t half_way = std::uint32_t{1} << (shift - 1);
  if (dropped > half_way || (dropped == half_way && (kept & 1) != 0)) ++kept;
  // A carry out of the mantissa lands in the exponent, which is what rounding up asks for.
  const std::uint32_t magnitude = subnormal ? kept : (static_cast<std::uint32_t>(exponent + 15) << 10) + kept;
  return static_cast<std::uint16_t>(sign | magnitude);
}

}  // namespace kvpack
