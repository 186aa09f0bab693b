/// What names and measures one state of a cache: StateKey, Shape, ChunkSpan. docs/format/conventions.md
/// §Scalars.
#pragma once

#include <compare>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "kvpack/core/canonical.h"

namespace kvpack {

/// A state is one plane of one layer, for example the keys of layer 3.
/// Ordered by layer, then by the name's bytes as unsigned.
struct StateKey {
  std::uint32_t layer = 0;
  std::string
      name;  ///< 1 to 255 bytes of UTF-8 without NUL where a family is valid; decoding demands UTF-8 only.

  friend bool operator==(const StateKey&, const StateKey&) = default;
  friend std::strong_ordering operator<=>(const StateKey& a, const StateKey& b) noexcept {
    if (const auto order = a.layer <=> b.layer; order != 0) return order;
    return a.name.compare(b.name) <=> 0;
  }
};

/// Dimensions in elements, outermost first. Rank 1 to 8, no dimension zero.
struct Shape {
  std::vector<std::uint64_t> dimensions;

  friend bool operator==(const Shape&, const Shape&) = default;
};

/// Where one chunk's plaintext lies in the logical stream of its state. Positions are absolute.
struct ChunkSpan {
  static constexpr std::size_t kWireBytes = 28;

  std::uint64_t token_start = 0;
  std::uint64_t token_count = 0;
  std::uint64_t plaintext_offset = 0;  ///< Bytes from the start of the state's stream.
  std::uint32_t plaintext_bytes = 0;

  friend bool operator==(const ChunkSpan&, const ChunkSpan&) = default;
};

/// @error kBounds the name does not fit its u16 length
Status write_state_key(ByteWriter& out, const StateKey& key);
/// @error kTruncated; kSemantics the name is not UTF-8
Result<StateKey> read_state_key(CanonicalReader& in);

/// @error kBounds rank or a dimension is outside the format
Status write_shape(ByteWriter& out, const Shape& shape);
/// @error kTruncated kBounds
Result<Shape> read_shape(CanonicalReader& in);

/// Product of the dimensions. @error kBounds `shape element count overflows u64`
Result<std::uint64_t> shape_elements(const Shape& shape);

void write_chunk_span(ByteWriter& out, const ChunkSpan& span);
Result<ChunkSpan> read_chunk_span(CanonicalReader& in);

/// `tokens` context of errors: `[start,count]`.
std::string token_range_text(const ChunkSpan& span);

// ---------------------------------------------------------------------------------------------------------------

inline Status write_state_key(ByteWriter& out, const StateKey& key) {
  if (key.name.size() > std::numeric_limits<std::uint16_t>::max())
    return fail(ErrorCode::kBounds, "string is too long");
  out.le(key.layer);
  out.le(static_cast<std::uint16_t>(key.name.size()));
  out.bytes(byte_view(key.name));
  return success();
}

inline Result<StateKey> read_state_key(CanonicalReader& in) {
  KVPACK_TRY_ASSIGN(const auto layer, in.le<std::uint32_t>());
  KVPACK_TRY_ASSIGN(const auto name_bytes, in.le<std::uint16_t>());
  KVPACK_TRY_ASSIGN(const ByteSpan name, in.take(name_bytes));
  if (!is_utf8(text_view(name))) return fail(ErrorCode::kSemantics, "state name is not UTF-8");
  return StateKey{layer, std::string(text_view(name))};
}

inline Status write_shape(ByteWriter& out, const Shape& shape) {
  if (shape.dimensions.empty() || shape.dimensions.size() > kMaxRank)
    return fail(ErrorCode::kBounds, "state rank must be in 1..=8");
  if (std::ranges::find(shape.dimensions, std::uint64_t{0}) != shape.dimensions.end())
    return fail(ErrorCode::kBounds, "state dimensions must be nonzero");
  out.le(static_cast<std::uint8_t>(shape.dimensions.size()));
  for (const std::uint64_t d : shape.dimensions) out.le(d);
  return success();
}

inline Result<Shape> read_shape(CanonicalReader& in) {
  KVPACK_TRY_ASSIGN(const auto rank, in.count<std::uint8_t>(kMaxRank, "state rank must be in 1..=8"));
  Shape shape;
  shape.dimensions.reserve(rank);
  for (std::uint8_t i = 0; i < rank; ++i) {
    KVPACK_TRY_ASSIGN(const auto d, in.le<std::uint64_t>());
    shape.dimensions.push_back(d);
  }
  if (std::ranges::find(shape.dimensions, std::uint64_t{0}) != shape.dimensions.end())
    return fail(ErrorCode::kBounds, "state dimensions must be nonzero");
  return shape;
}

inline Result<std::uint64_t> shape_elements(const Shape& shape) {
  std::uint64_t product = 1;
  for (const std::uint64_t d : shape.dimensions) {
    const auto next = checked_mul(product, d);
    if (!next) return fail(ErrorCode::kBounds, "shape element count overflows u64");
    product = *next;
  }
  return product;
}

inline void write_chunk_span(ByteWriter& out, const ChunkSpan& span) {
  out.le(span.token_start);
  out.le(span.token_count);
  out.le(span.plaintext_offset);
  out.le(span.plaintext_bytes);
}

inline Result<ChunkSpan> read_chunk_span(CanonicalReader& in) {
  ChunkSpan span;
  KVPACK_TRY_ASSIGN(span.token_start, in.le<std::uint64_t>());
  KVPACK_TRY_ASSIGN(span.token_count, in.le<std::uint64_t>());
  KVPACK_TRY_ASSIGN(span.plaintext_offset, in.le<std::uint64_t>());
  KVPACK_TRY_ASSIGN(span.plaintext_bytes, in.le<std::uint32_t>());
  return span;
}

inline std::string token_range_text(const ChunkSpan& span) {
  std::string text = "[";
  text.append(std::to_string(span.token_start))
      .append(",")
      .append(std::to_string(span.token_count))
      .append("]");
  return text;
}

}  // namespace kvpack
