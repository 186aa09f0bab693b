/// A buffered walk through a byte source that claims its own lengths.
#pragma once

#include <functional>

#include "kvpack/crypto/sha256.h"
#include "kvpack/muse/gguf.h"

namespace kvpack::muse {

class GgufCursor {
 public:
  GgufCursor(ReadAt& source, std::uint64_t position)
      : source_(&source), size_(source.size_bytes()), position_(position), buffer_(kBufferBytes) {}

  std::uint64_t position() const noexcept { return position_; }
  std::uint64_t remaining() const noexcept { return position_ < size_ ? size_ - position_ : 0; }

  /// Passes over bytes without reading them. @error kIo
  Status skip(std::uint64_t bytes);

  /// The next bytes, at least one and at most `most`; the view holds until the next call. @pre most != 0
  /// @error kIo
  Result<ByteSpan> piece(std::uint64_t most);

  template <std::unsigned_integral U>
  Result<U> le() {
    std::array<std::uint8_t, sizeof(U)> raw{};
    KVPACK_TRY(fill(raw));
    return load_le<U>(raw, 0);
  }

  /// A number of that many bytes, zero-extended. @pre 1 to 8 bytes
  Result<std::uint64_t> number(std::size_t bytes);

  /// The length of a string, which lies inside the file. @error bounds, kIo
  Result<std::uint64_t> string_length();

  /// Gives the next bytes piece by piece.
  Status pieces(std::uint64_t bytes, const std::function<void(ByteSpan)>& take);

  /// A string of that length. Keeps up to `shown` bytes of it, cut before a character that does not fit.
  /// @param hash  null, or given all bytes
  /// @error not UTF-8, kIo
  Result<std::string> text(std::uint64_t length, std::size_t shown, Sha256* hash);

 private:
  static constexpr std::size_t kBufferBytes = std::size_t{64} << 10;
  Status fill(MutableByteSpan out);

  ReadAt* source_;
  std::uint64_t size_;
  std::uint64_t position_;
  Bytes buffer_;
  std::uint64_t buffered_at_ = 0;
  std::size_t buffered_ = 0;
};

/// What stands between a key and the first byte of its value.
struct GgufValueHead {
  GgufType type = GgufType::kU8;
  GgufType element_type = GgufType::kU8;
  std::uint64_t count = 1;
};
Result<GgufValueHead> read_gguf_value_head(GgufCursor& cursor);

}  // namespace kvpack::muse
