/// The two sides of byte storage that the formats need: read at a position, append at the end.
/// Memory-backed ones are here; file-backed ones are in base/fs.h.
#pragma once

#include "kvpack/base/bytes.h"

namespace kvpack {

/// Bytes that can be read at any position. The length is fixed while the source is open.
class ReadAt {
 public:
  virtual ~ReadAt() = default;
  virtual std::uint64_t size_bytes() const = 0;

  /// Fills all of `out` from `offset`. @error kTruncated the source ends early; kIo the device failed
  virtual Status read_at(std::uint64_t offset, MutableByteSpan out) = 0;
};

/// Bytes that grow at the end.
class Append {
 public:
  virtual ~Append() = default;
  /// Writes all of `data` behind what is there. @error kIo
  virtual Status append(ByteSpan data) = 0;
};

/// Reads from memory that the caller keeps alive and still.
class SpanSource final : public ReadAt {
 public:
  explicit SpanSource(ByteSpan bytes) noexcept : bytes_(bytes) {}
  std::uint64_t size_bytes() const override { return bytes_.size(); }
  Status read_at(std::uint64_t offset, MutableByteSpan out) override {
    if (offset > bytes_.size() || out.size() > bytes_.size() - offset)
      return fail(ErrorCode::kTruncated, "read past the end of the source");
    copy_bytes(bytes_.subspan(static_cast<std::size_t>(offset), out.size()), out);
    return success();
  }

 private:
  ByteSpan bytes_;
};

/// Appends to memory of its own.
class BytesSink final : public Append {
 public:
  Status append(ByteSpan data) override {
    bytes_.insert(bytes_.end(), data.begin(), data.end());
    return success();
  }
  const Bytes& view() const noexcept { return bytes_; }
  Bytes take() && { return std::move(bytes_); }

 private:
  Bytes bytes_;
};

}  // namespace kvpack
