/// Blob: bytes of any length as a state of whole rows, for engines whose state cannot be taken apart.
/// Layout and order of checks: docs/format/blob.md.
#pragma once

#include <bit>
#include <limits>
#include <optional>
#include <string>

#include "kvpack/core/cut_writer.h"
#include "kvpack/core/family_builder.h"

namespace kvpack {

inline constexpr std::uint64_t kMinBlobRowBytes = std::uint64_t{4} << 10;
inline constexpr std::uint64_t kMaxBlobRowBytes = std::uint64_t{4} << 20;
inline constexpr std::uint64_t kDefaultBlobRowBytes = std::uint64_t{64} << 10;
/// In front of the blob: its length.
inline constexpr std::size_t kBlobLengthBytes = 8;

/// The state that holds a blob: u8, raw, contiguous, a tail window `[rows][row_bytes]`.
StateSpec blob_state(std::string name, std::uint64_t row_bytes);

/// A power of two from 4 KiB to 4 MiB. @error kBounds
Status check_blob_row_bytes(std::uint64_t row_bytes);

/// Rows that a blob takes: its length and it, in whole rows; nothing when that exceeds u64. At least 1.
/// @pre row_bytes is valid
std::optional<std::uint64_t> blob_rows(std::uint64_t blob_bytes, std::uint64_t row_bytes) noexcept;

/// The same, for a cut: a row stands for a token, so there can be no more of them than tokens.
/// @error kState `blob of {n} bytes takes {rows} rows of {row bytes} bytes, but the cut has {tokens} tokens:
///        row bytes {the least that would do} would do`, or `no row bytes would do`; with `expected`, the row
///        bytes that would do
Result<std::uint64_t> blob_rows_in_cut(std::uint64_t blob_bytes, std::uint64_t row_bytes,
                                       std::uint64_t token_count);

/// The rows of a blob: `rows x row_bytes` bytes. @pre the rows fit into memory
Bytes encode_blob(ByteSpan blob, std::uint64_t row_bytes);

/// The blob in its rows, as a view into them. @pre row_bytes is valid
/// @error kTruncated kBounds kReserved  first violation
Result<ByteSpan> decode_blob(ByteSpan rows, std::uint64_t row_bytes);

/// The rows of a blob, to be saved without a copy of it being made. The blob must keep still.
class BlobSource final : public StateSource {
 public:
  /// @pre the rows fit into 64 bits
  BlobSource(ByteSpan blob, std::uint64_t row_bytes) noexcept
      : length_(le_bytes(std::uint64_t{blob.size()})),
        blob_(blob),
        padding_bytes_(blob_rows(blob.size(), row_bytes).value_or(0) * row_bytes - kBlobLengthBytes -
                       blob.size()) {}

  Result<std::size_t> read(MutableByteSpan out) override;

 private:
  std::array<std::uint8_t, kBlobLengthBytes> length_;
  ByteSpan blob_;
  std::uint64_t padding_bytes_;
  std::uint64_t position_ = 0;
};

// ---------------------------------------------------------------------------------------------------------------

inline StateSpec blob_state(std::string name, std::uint64_t row_bytes) {
  return {.name = std::move(name),
          .dtype = DType::kU8,
          .dimensions = {kTokenAxis, row_bytes},
          .token_axis_rule = TokenAxisRule::kTailWindow};
}

inline Status check_blob_row_bytes(std::uint64_t row_bytes) {
  if (!std::has_single_bit(row_bytes) || row_bytes < kMinBlobRowBytes || row_bytes > kMaxBlobRowBytes)
    return fail(ErrorCode::kBounds, "blob row bytes must be a power of two from 4096 to 4194304");
  return success();
}

inline std::optional<std::uint64_t> blob_rows(std::uint64_t blob_bytes, std::uint64_t row_bytes) noexcept {
  const auto content = checked_add<std::uint64_t>(blob_bytes, kBlobLengthBytes);
  if (!content) return std::nullopt;
  const std::uint64_t rows = *content / row_bytes + (*content % row_bytes == 0 ? 0 : 1);
  return checked_mul(rows, row_bytes) ? std::optional(rows) : std::nullopt;
}

inline Result<std::uint64_t> blob_rows_in_cut(std::uint64_t blob_bytes, std::uint64_t row_bytes,
                                              std::uint64_t token_count) {
  const auto rows = blob_rows(blob_bytes, row_bytes);
  if (rows && *rows <= token_count) return *rows;
  std::string text = "blob of " + std::to_string(blob_bytes) + " bytes takes ";
  text += (rows ? std::to_string(*rows) : std::string("too many")) + " rows of " + std::to_string(row_bytes);
  text += " bytes, but the cut has " + std::to_string(token_count) + " tokens: ";
  for (std::uint64_t larger = row_bytes * 2; larger <= kMaxBlobRowBytes; larger *= 2) {
    const auto fewer = blob_rows(blob_bytes, larger);
    if (fewer && *fewer <= token_count)
      return fail(ErrorCode::kState, text + "row bytes " + std::to_string(larger) + " would do")
          .with("expected", std::to_string(larger));
  }
  return fail(ErrorCode::kState, text + "no row bytes would do");
}

inline Bytes encode_blob(ByteSpan blob, std::uint64_t row_bytes) {
  Bytes rows(static_cast<std::size_t>(*blob_rows(blob.size(), row_bytes) * row_bytes));
  store_le(rows, 0, std::uint64_t{blob.size()});
  copy_bytes(blob, MutableByteSpan(rows).subspan(kBlobLengthBytes, blob.size()));
  return rows;
}

inline Result<ByteSpan> decode_blob(ByteSpan rows, std::uint64_t row_bytes) {
  ByteReader reader(rows);
  KVPACK_TRY_ASSIGN(const auto length, reader.le<std::uint64_t>("blob ends inside its length"));
  if (rows.size() % row_bytes != 0) return fail(ErrorCode::kBounds, "blob is not a number of whole rows");
  if (length > reader.rest().size()) return fail(ErrorCode::kBounds, "blob is longer than its rows");
  if (blob_rows(length, row_bytes) != rows.size() / row_bytes)
    return fail(ErrorCode::kBounds, "blob has more rows than it needs");
  const auto size = static_cast<std::size_t>(length);
  if (!all_zero(reader.rest().subspan(size))) return fail(ErrorCode::kReserved, "blob padding is nonzero");
  return reader.rest().first(size);
}

inline Result<std::size_t> BlobSource::read(MutableByteSpan out) {
  const auto take = [&](std::uint64_t n) {
    return static_cast<std::size_t>(std::min<std::uint64_t>(n, out.size()));
  };
  std::size_t got = 0;
  if (position_ < kBlobLengthBytes) {
    got = take(kBlobLengthBytes - position_);
    copy_bytes(ByteSpan(length_).subspan(static_cast<std::size_t>(position_), got), out.first(got));
  } else if (position_ - kBlobLengthBytes < blob_.size()) {
    const std::uint64_t at = position_ - kBlobLengthBytes;
    got = take(blob_.size() - at);
    copy_bytes(blob_.subspan(static_cast<std::size_t>(at), got), out.first(got));
  } else {
    got = take(padding_bytes_ - (position_ - kBlobLengthBytes - blob_.size()));
    std::ranges::fill(out.first(got), std::uint8_t{0});
  }
  position_ += got;
  return got;
}

}  // namespace kvpack
