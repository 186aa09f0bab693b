/// The closed enums of the wire, all u16. An unlisted value is an error. docs/format/conventions.md §Enums.
#pragma once

#include <concepts>
#include <optional>
#include <string_view>

#include "kvpack/base/bytes.h"

namespace kvpack {

enum class CacheKind : std::uint16_t { kOrdinaryKv = 1 };
enum class DType : std::uint16_t { kU8 = 1, kU32, kI8, kI16, kI32, kF16, kBf16, kF32, kF64 };
enum class Codec : std::uint16_t { kRaw = 1, kLossless = 2 };
enum class Layout : std::uint16_t { kContiguous = 1, kStrided = 2 };
enum class RepresentationMode : std::uint16_t { kNative = 1, kPortable = 2 };
enum class TokenAxisRule : std::uint16_t { kDirect = 1, kGather = 2, kTailWindow = 3 };

/// Name of each enum as error texts spell it, its largest value, and the words for its values from 1 on.
template <class E>
struct EnumTraits;
template <>
struct EnumTraits<CacheKind> {
  static constexpr std::string_view kWhat = "cache kind";
  static constexpr std::array<std::string_view, 1> kNames{"ordinary-kv"};
};
template <>
struct EnumTraits<DType> {
  static constexpr std::string_view kWhat = "dtype";
  static constexpr std::array<std::string_view, 9> kNames{"u8",  "u32",  "i8",  "i16", "i32",
                                                          "f16", "bf16", "f32", "f64"};
};
template <>
struct EnumTraits<Codec> {
  static constexpr std::string_view kWhat = "codec";
  static constexpr std::array<std::string_view, 2> kNames{"raw", "lossless"};
};
template <>
struct EnumTraits<Layout> {
  static constexpr std::string_view kWhat = "layout";
  static constexpr std::array<std::string_view, 2> kNames{"contiguous", "strided"};
};
template <>
struct EnumTraits<RepresentationMode> {
  static constexpr std::string_view kWhat = "representation mode";
  static constexpr std::array<std::string_view, 2> kNames{"native", "portable"};
};
template <>
struct EnumTraits<TokenAxisRule> {
  static constexpr std::string_view kWhat = "token axis rule";
  static constexpr std::array<std::string_view, 3> kNames{"direct", "gather", "tail-window"};
};

template <class E>
concept WireEnum = requires {
  EnumTraits<E>::kNames.size();
};

/// @error kUnknownEnum `unknown {what} {value}`
template <WireEnum E>
Result<E> enum_from_wire(std::uint64_t value) {
  if (value == 0 || value > EnumTraits<E>::kNames.size())
    return fail_unknown_enum(EnumTraits<E>::kWhat, value);
  return static_cast<E>(value);
}

/// The word for a value in descriptions and reports. @pre the value is listed
template <WireEnum E>
constexpr std::string_view enum_name(E value) noexcept {
  return EnumTraits<E>::kNames[static_cast<std::size_t>(value) - 1];
}

template <WireEnum E>
constexpr std::optional<E> enum_from_name(std::string_view name) noexcept {
  for (std::size_t i = 0; i < EnumTraits<E>::kNames.size(); ++i)
    if (EnumTraits<E>::kNames[i] == name) return static_cast<E>(i + 1);
  return std::nullopt;
}

/// Bytes of one element.
constexpr std::uint32_t dtype_width_bytes(DType dtype) noexcept {
  switch (dtype) {
    case DType::kU8:
    case DType::kI8: return 1;
    case DType::kI16:
    case DType::kF16:
    case DType::kBf16: return 2;
    case DType::kU32:
    case DType::kI32:
    case DType::kF32: return 4;
    case DType::kF64: return 8;
  }
  return 0;
}

}  // namespace kvpack
