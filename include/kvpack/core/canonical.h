/// Fields and framing that all canonical binary objects share: docs/format/canonical-objects.md.
#pragma once

#include <string>
#include <string_view>

#include "kvpack/base/bytes.h"
#include "kvpack/base/utf8.h"
#include "kvpack/core/enums.h"
#include "kvpack/core/ids.h"
#include "kvpack/core/limits.h"

namespace kvpack {

/// What a standalone object is called in its error texts.
struct ObjectTexts {
  Magic magic;
  std::string_view bad_version;
  std::string_view bad_reserved;
  std::string_view not_canonical;
};

inline constexpr std::string_view kTruncatedObject = "truncated canonical object";

/// Reads the fields of a canonical object. Every short read is `truncated canonical object`.
class CanonicalReader {
 public:
  explicit CanonicalReader(ByteSpan bytes) noexcept : reader_(bytes) {}

  Result<ByteSpan> take(std::size_t n) { return reader_.take(n, kTruncatedObject); }
  template <std::unsigned_integral U>
  Result<U> le() {
    return reader_.le<U>(kTruncatedObject);
  }
  Result<Id32> id() {
    KVPACK_TRY_ASSIGN(const ByteSpan raw, take(32));
    return Id32::from_bytes(raw);
  }
  template <WireEnum E>
  Result<E> wire_enum() {
    KVPACK_TRY_ASSIGN(const auto value, le<std::uint16_t>());
    return enum_from_wire<E>(value);
  }
  /// A count field that must lie in 1..=max. @error kBounds with the text `what`
  template <std::unsigned_integral U>
  Result<U> count(U max, std::string_view what) {
    KVPACK_TRY_ASSIGN(const U n, le<U>());
    if (n == 0 || n > max) return fail(ErrorCode::kBounds, std::string(what));
    return n;
  }
  /// A field that must be zero. @error kReserved with the text `what`
  template <std::unsigned_integral U>
  Status zero(std::string_view what) {
    KVPACK_TRY_ASSIGN(const U value, le<U>());
    if (value != 0) return fail(ErrorCode::kReserved, std::string(what));
    return success();
  }
  /// Magic, then version. @error kTruncated kBadMagic
  Status begin(const Magic& expected, std::string_view bad_version) {
    KVPACK_TRY_ASSIGN(const ByteSpan found, take(expected.size()));
    if (!std::ranges::equal(found, expected))
      return fail(ErrorCode::kBadMagic, "invalid canonical object magic");
    KVPACK_TRY_ASSIGN(const auto version, le<std::uint16_t>());
    if (version != kWireVersion) return fail(ErrorCode::kBadMagic, std::string(bad_version));
    return success();
  }
  /// @error kReserved `trailing canonical bytes`
  Status end() const {
    if (!reader_.done()) return fail(ErrorCode::kReserved, "trailing canonical bytes");
    return success();
  }
  std::size_t remaining() const noexcept { return reader_.rest().size(); }

 private:
  ByteReader reader_;
};

/// The 12 bytes before the body of a standalone object.
inline void write_object_prefix(ByteWriter& out, const Magic& object_magic) {
  out.bytes(object_magic);
  out.le(kWireVersion);
  out.le(std::uint16_t{0});
}

/// Decodes a standalone object: prefix, body, end, and the proof that the bytes are the canonical ones.
/// @param read_body   CanonicalReader& -> Result<T>
/// @param encode      const T& -> Result<Bytes>, the complete standalone object
template <class T, class ReadBody, class Encode>
Result<T> decode_object(ByteSpan bytes, const ObjectTexts& texts, ReadBody&& read_body, Encode&& encode) {
  CanonicalReader reader(bytes);
  KVPACK_TRY(reader.begin(texts.magic, texts.bad_version));
  KVPACK_TRY(reader.template zero<std::uint16_t>(texts.bad_reserved));
  KVPACK_TRY_ASSIGN(T value, read_body(reader));
  KVPACK_TRY(reader.end());
  KVPACK_TRY_ASSIGN(const Bytes again, encode(value));
  if (!std::ranges::equal(again, bytes)) return fail(ErrorCode::kReserved, std::string(texts.not_canonical));
  return value;
}

}  // namespace kvpack
