/// Between the sequence state of llama.cpp (v0.5.0) and logical planes. Bytes only, without an engine header.
///
/// The state does not describe itself: which layers it holds, whether V lies transposed, even how many parts
/// there are follows from the model and the context. So nothing is guessed here. The caller says what the
/// model writes (StateLayout), how many tokens the sequence has, and in which form its context keeps them
/// (StateForm); every field that says something else is refused. The layout of the bytes: docs/llama-cpp.md
/// §The sequence state.
///
/// A plane is the rows of one layer and side in position order, `[tokens][row bytes]`, for Muse
/// `[tokens][kv_heads 2][head_dim 128]` in f16. Where a row lies in the state depends on the engine's past,
/// where it lies in a plane only on its position.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "kvpack/base/bytes.h"
#include "kvpack/base/result.h"
#include "kvpack/muse/geometry.h"

namespace kvpack::muse::llama {

inline constexpr std::uint32_t kSequenceMagic = 0xaf143cd8;
inline constexpr std::uint64_t kMaxTokens = std::numeric_limits<std::int32_t>::max();
inline constexpr std::size_t kMaxCaches = 8;
inline constexpr std::size_t kMaxLayersPerCache = 4096;
inline constexpr std::uint32_t kMaxRowBytes = 4'194'304;  ///< One row must fit a chunk.
inline constexpr std::uint32_t kMaxStreams = 256;

/// Element types as the engine numbers them. Rows of the quantised ones are opaque bytes.
inline constexpr std::int32_t kTypeF32 = 0, kTypeF16 = 1, kTypeQ4_0 = 2, kTypeQ8_0 = 8, kTypeBf16 = 30;

/// What one sub-cache of a model holds.
struct CacheLayout {
  std::vector<std::uint32_t>
      layers;  ///< Model layers, ascending: the order of the state, which does not name them.
  std::uint32_t window_tokens = 0;  ///< The last rows kept, for a sliding window; 0 keeps every row.
  std::int32_t key_type = kTypeF16;
  std::int32_t value_type = kTypeF16;
  std::uint32_t key_row_bytes = 0;
  std::uint32_t value_row_bytes = 0;
  std::uint32_t value_element_bytes = 0;  ///< 0 for types that cannot lie transposed (the quantised ones).
};

/// The sub-caches of a model, in the order of the state.
struct StateLayout {
  std::vector<CacheLayout> caches;
};

/// How a context keeps a sequence. Planes are the same in every form.
struct StateForm {
  std::int32_t sequence_id = 0;
  std::uint32_t stream_count =
      1;                     ///< 1 with a unified cache or one sequence, else the sequences of the context.
  std::uint32_t stream = 0;  ///< The stream of this sequence, below stream_count.
  bool value_transposed = false;  ///< True without flash attention.
};

/// Positions `start .. start + count`.
struct PositionRange {
  std::uint64_t start = 0;
  std::uint64_t count = 0;

  friend bool operator==(const PositionRange&, const PositionRange&) = default;
};

/// The planes of one sub-cache, one key and one value plane for each of its layers and in that order.
struct CachePlanes {
  PositionRange positions;
  std::vector<Bytes> keys;    ///< positions.count rows of key_row_bytes each.
  std::vector<Bytes> values;  ///< positions.count rows of value_row_bytes each.
};

/// The same as views: what a restore lends.
struct CacheView {
  std::vector<ByteSpan> keys;
  std::vector<ByteSpan> values;
};

/// Muse Glimmer 30B with an f16 cache: 13 full layers (3, 7, .., 51), then 39 with a window of 2,048.
StateLayout muse_glimmer_layout();

/// The positions that a sub-cache keeps of a sequence of `token_count` tokens.
PositionRange kept_positions(const CacheLayout& cache, std::uint64_t token_count) noexcept;

/// Size of the state in bytes, to compare with what the engine says before anything is read.
/// @param token_count  1 to kMaxTokens
/// @error kBounds  layout, token count or form is outside the limits above, or the size overflows
Result<std::uint64_t> state_bytes(const StateLayout& layout, std::uint64_t token_count,
                                  const StateForm& form);

/// Takes a state apart. Nothing is allocated for a plane before the whole state has been checked.
/// @param token_count  length of the sequence: every cache must hold exactly its kept_positions, each once
/// @return one CachePlanes for each cache of the layout
/// @error kBounds      as state_bytes
/// @error kTruncated   `state ends early`
/// @error kBadMagic    `not a llama.cpp sequence state`
/// @error kExpectation `state field {name} differs`, with found and expected in the context
/// @error kSemantics   `state position is outside the kept range`, `state position occurs twice`
/// @error kReserved    `bytes after the end of the state`
Result<std::vector<CachePlanes>> read_state(ByteSpan state, const StateLayout& layout,
                                            std::uint64_t token_count, const StateForm& form);

/// Puts a state together, cells in position order, for the context that `form` describes.
/// @param caches  one for each cache of the layout; every plane has exactly kept_positions(..).count rows
/// @error kBounds    as state_bytes
/// @error kSemantics `planes do not match the state layout`
Result<Bytes> write_state(const std::vector<CacheView>& caches, const StateLayout& layout,
                          std::uint64_t token_count, const StateForm& form);

/// Views of planes that the caller keeps alive.
std::vector<CacheView> view_planes(const std::vector<CachePlanes>& caches);

// ---------------------------------------------------------------------------------------------------------------

inline StateLayout muse_glimmer_layout() {
  CacheLayout full{{}, 0, kTypeF16, kTypeF16, kRowBytes, kRowBytes, 2};
  CacheLayout sliding{{}, kWindowTokens, kTypeF16, kTypeF16, kRowBytes, kRowBytes, 2};
  for (std::uint32_t layer = 0; layer < kLayers; ++layer)
    (is_sliding(layer) ? sliding : full).layers.push_back(layer);
  return {{std::move(full), std::move(sliding)}};
}

inline PositionRange kept_positions(const CacheLayout& cache, std::uint64_t token_count) noexcept {
  if (cache.window_tokens == 0 || token_count <= cache.window_tokens) return {0, token_count};
  return {token_count - cache.window_tokens, cache.window_tokens};
}

inline std::vector<CacheView> view_planes(const std::vector<CachePlanes>& caches) {
  std::vector<CacheView> views;
  views.reserve(caches.size());
  for (const CachePlanes& cache : caches)
    views.push_back({{cache.keys.begin(), cache.keys.end()}, {cache.values.begin(), cache.values.end()}});
  return views;
}

namespace detail {

inline constexpr std::string_view kShort = "state ends early";
inline constexpr std::uint64_t kCellBytes = 4 + 4 + 4;  // position, number of sequence ids, the id

inline Status check_cache(const CacheLayout& cache, const StateForm& form) {
  const auto bad = [](std::uint32_t row) { return row == 0 || row > kMaxRowBytes; };
  if (cache.layers.empty() || cache.layers.size() > kMaxLayersPerCache)
    return fail(ErrorCode::kBounds, "state layout: layer count is outside bounds");
  if (std::ranges::adjacent_find(cache.layers, std::ranges::greater_equal{}) != cache.layers.end())
    return fail(ErrorCode::kBounds, "state layout: layers are not ascending");
  if (bad(cache.key_row_bytes) || bad(cache.value_row_bytes))
    return fail(ErrorCode::kBounds, "state layout: row size is outside bounds");
  if (form.value_transposed &&
      (cache.value_element_bytes == 0 || cache.value_row_bytes % cache.value_element_bytes != 0))
    return fail(ErrorCode::kBounds, "state layout: value rows cannot lie transposed");
  return success();
}

inline Status check_request(const StateLayout& layout, std::uint64_t token_count, const StateForm& form) {
  if (layout.caches.empty() || layout.caches.size() > kMaxCaches)
    return fail(ErrorCode::kBounds, "state layout: cache count is outside bounds");
  if (token_count == 0 || token_count > kMaxTokens)
    return fail(ErrorCode::kBounds, "state token count is outside bounds");
  if (form.sequence_id < 0 || form.stream_count == 0 || form.stream_count > kMaxStreams ||
      form.stream >= form.stream_count)
    return fail(ErrorCode::kBounds, "state form is outside bounds");
  for (const CacheLayout& cache : layout.caches) KVPACK_TRY(check_cache(cache, form));
  return success();
}

/// One word of the state that the caller knows in advance.
template <std::unsigned_integral U>
Status expect(ByteReader& in, std::string_view field, U expected) {
  KVPACK_TRY_ASSIGN(const U found, in.le<U>(kShort));
  if (found == expected) return success();
  return fail(ErrorCode::kExpectation, "state field " + std::string(field) + " differs")
      .with("field", std::string(field))
      .with("found", std::to_string(found))
      .with("expected", std::to_string(expected));
}

/// @pre both factors are bounded, so that the product fits
inline Result<ByteSpan> take_rows(ByteReader& in, std::uint64_t rows, std::uint64_t row_bytes) {
  if (rows * row_bytes > in.rest().size()) return fail(ErrorCode::kTruncated, std::string(kShort));
  return in.take(static_cast<std::size_t>(rows * row_bytes), kShort);
}

/// A checked sub-cache: views into the state, and for each cell the row of the plane that it belongs to.
struct CacheSections {
  PositionRange positions;
  std::vector<std::size_t> row_of_cell;
  std::vector<ByteSpan> keys;
  std::vector<ByteSpan> values;
};

inline Result<std::vector<std::size_t>> read_cells(ByteReader& in, PositionRange kept,
                                                   const StateForm& form) {
  KVPACK_TRY_ASSIGN(const ByteSpan table, take_rows(in, kept.count, kCellBytes));
  ByteReader cells(table);
  std::vector<std::size_t> row_of_cell;
  row_of_cell.reserve(static_cast<std::size_t>(kept.count));
  std::vector<bool> seen(static_cast<std::size_t>(kept.count));
  for (std::uint64_t i = 0; i < kept.count; ++i) {
    KVPACK_TRY_ASSIGN(const auto position, cells.le<std::uint32_t>(kShort));
    KVPACK_TRY(expect<std::uint32_t>(cells, "sequence ids of a cell", 1));
    KVPACK_TRY(expect(cells, "sequence id of a cell", static_cast<std::uint32_t>(form.sequence_id)));
    if (position < kept.start || position - kept.start >= kept.count)
      return fail(ErrorCode::kSemantics, "state position is outside the kept range")
          .with("found", std::to_string(position));
    const auto row = static_cast<std::size_t>(position - kept.start);
    // As many cells as positions: when none occurs twice, none is missing either.
    if (seen[row])
      return fail(ErrorCode::kSemantics, "state position occurs twice")
          .with("found", std::to_string(position));
    seen[row] = true;
    row_of_cell.push_back(row);
  }
  return row_of_cell;
}

inline Result<CacheSections> read_cache(ByteReader& in, const CacheLayout& cache, PositionRange kept,
                                        const StateForm& form) {
  CacheSections out{kept, {}, {}, {}};
  KVPACK_TRY(expect(in, "stream count", form.stream_count));
  for (std::uint32_t stream = 0; stream < form.stream_count; ++stream) {
    if (stream != form.stream) {
      KVPACK_TRY(expect<std::uint32_t>(in, "cells of another stream", 0));
      continue;
    }
    KVPACK_TRY(expect(in, "cells", static_cast<std::uint32_t>(kept.count)));
    KVPACK_TRY_ASSIGN(out.row_of_cell, read_cells(in, kept, form));
    KVPACK_TRY(expect<std::uint32_t>(in, "value transposition", form.value_transposed ? 1 : 0));
    KVPACK_TRY(expect(in, "layers", static_cast<std::uint32_t>(cache.layers.size())));
    for (std::size_t layer = 0; layer < cache.layers.size(); ++layer) {
      KVPACK_TRY(expect(in, "key type", static_cast<std::uint32_t>(cache.key_type)));
      KVPACK_TRY(expect(in, "key row bytes", std::uint64_t{cache.key_row_bytes}));
      KVPACK_TRY_ASSIGN(const ByteSpan rows, take_rows(in, kept.count, cache.key_row_bytes));
      out.keys.push_back(rows);
    }
    for (std::size_t layer = 0; layer < cache.layers.size(); ++layer) {
      KVPACK_TRY(expect(in, "value type", static_cast<std::uint32_t>(cache.value_type)));
      if (form.value_transposed) {
        KVPACK_TRY(expect(in, "value element bytes", cache.value_element_bytes));
        KVPACK_TRY(expect(in, "value row elements", cache.value_row_bytes / cache.value_element_bytes));
      } else {
        KVPACK_TRY(expect(in, "value row bytes", std::uint64_t{cache.value_row_bytes}));
      }
      KVPACK_TRY_ASSIGN(const ByteSpan rows, take_rows(in, kept.count, cache.value_row_bytes));
      out.values.push_back(rows);
    }
  }
  return out;
}

inline Bytes sort_rows(ByteSpan cells, const std::vector<std::size_t>& row_of_cell, std::size_t row_bytes) {
  Bytes plane(cells.size());
  for (std::size_t cell = 0; cell < row_of_cell.size(); ++cell)
    std::ranges::copy(cells.subspan(cell * row_bytes, row_bytes),
                      MutableByteSpan(plane).subspan(row_of_cell[cell] * row_bytes, row_bytes).begin());
  return plane;
}

/// From `[row elements][cells]` to `[rows][row elements]`.
inline Bytes sort_transposed(ByteSpan cells, const std::vector<std::size_t>& row_of_cell,
                             std::size_t row_bytes, std::size_t element_bytes) {
  Bytes plane(cells.size());
  std::size_t from = 0;
  for (std::size_t column = 0; column < row_bytes; column += element_bytes)
    for (const std::size_t row : row_of_cell)
      for (std::size_t byte = 0; byte < element_bytes; ++byte)
        plane[row * row_bytes + column + byte] = cells[from++];
  return plane;
}

inline CachePlanes sort_cache(const CacheSections& sections, const CacheLayout& cache,
                              const StateForm& form) {
  CachePlanes planes{sections.positions, {}, {}};
  for (const ByteSpan keys : sections.keys)
    planes.keys.push_back(sort_rows(keys, sections.row_of_cell, cache.key_row_bytes));
  for (const ByteSpan values : sections.values)
    planes.values.push_back(
        form.value_transposed
            ? sort_transposed(values, sections.row_of_cell, cache.value_row_bytes, cache.value_element_bytes)
            : sort_rows(values, sections.row_of_cell, cache.value_row_bytes));
  return planes;
}

inline void write_values(ByteWriter& out, ByteSpan plane, const CacheLayout& cache, const StateForm& form) {
  out.le(static_cast<std::uint32_t>(cache.value_type));
  if (!form.value_transposed) {
    out.le(std::uint64_t{cache.value_row_bytes});
    out.bytes(plane);
    return;
  }
  out.le(cache.value_element_bytes);
  out.le(cache.value_row_bytes / cache.value_element_bytes);
  for (std::size_t column = 0; column < cache.value_row_bytes; column += cache.value_element_bytes)
    for (std::size_t at = column; at < plane.size(); at += cache.value_row_bytes)
      out.bytes(plane.subspan(at, cache.value_element_bytes));
}

inline void write_cache(ByteWriter& out, const CacheView& planes, const CacheLayout& cache,
                        PositionRange kept, const StateForm& form) {
  out.le(form.stream_count);
  for (std::uint32_t stream = 0; stream < form.stream_count; ++stream) {
    if (stream != form.stream) {
      out.le(std::uint32_t{0});
      continue;
    }
    out.le(static_cast<std::uint32_t>(kept.count));
    for (std::uint64_t position = kept.start; position < kept.start + kept.count; ++position) {
      out.le(static_cast<std::uint32_t>(position));
      out.le(std::uint32_t{1});
      out.le(static_cast<std::uint32_t>(form.sequence_id));
    }
    out.le(std::uint32_t{form.value_transposed});
    out.le(static_cast<std::uint32_t>(cache.layers.size()));
    for (const ByteSpan keys : planes.keys) {
      out.le(static_cast<std::uint32_t>(cache.key_type));
      out.le(std::uint64_t{cache.key_row_bytes});
      out.bytes(keys);
    }
    for (const ByteSpan values : planes.values) write_values(out, values, cache, form);
  }
}

inline bool planes_match(const CacheView& planes, const CacheLayout& cache, PositionRange kept) {
  const auto all_of_size = [&](const std::vector<ByteSpan>& side, std::uint32_t row_bytes) {
    return side.size() == cache.layers.size() &&
           std::ranges::all_of(side, [&](ByteSpan plane) { return plane.size() == kept.count * row_bytes; });
  };
  return all_of_size(planes.keys, cache.key_row_bytes) && all_of_size(planes.values, cache.value_row_bytes);
}

}  // namespace detail

inline Result<std::uint64_t> state_bytes(const StateLayout& layout, std::uint64_t token_count,
                                         const StateForm& form) {
  KVPACK_TRY(detail::check_request(layout, token_count, form));
  constexpr std::uint64_t kHeadBytes = 4 + 4;     // magic, sequence id
  constexpr std::uint64_t kSectionBytes = 4 + 8;  // type, row size; the same transposed
  std::uint64_t total = kHeadBytes;
  for (const CacheLayout& cache : layout.caches) {
    const PositionRange kept = kept_positions(cache, token_count);
    const std::uint64_t rows = std::uint64_t{cache.key_row_bytes} + cache.value_row_bytes;
    // At most 2^31 tokens, 2^23 bytes and 2^12 layers: only the last product and the sum can overflow.
    const auto payload = checked_mul(kept.count * rows, std::uint64_t{cache.layers.size()});
    const std::uint64_t heads = 4 + 4 * std::uint64_t{form.stream_count} + detail::kCellBytes * kept.count +
                                4 + 4 + 2 * kSectionBytes * cache.layers.size();
    const auto part = payload ? checked_add(*payload, heads) : std::nullopt;
    const auto sum = part ? checked_add(total, *part) : std::nullopt;
    if (!sum) return fail(ErrorCode::kBounds, "state size overflows u64");
    total = *sum;
  }
  return total;
}

inline Result<std::vector<CachePlanes>> read_state(ByteSpan state, const StateLayout& layout,
                                                   std::uint64_t token_count, const StateForm& form) {
  KVPACK_TRY(state_bytes(layout, token_count, form));
  ByteReader in(state);
  KVPACK_TRY_ASSIGN(const auto magic, in.le<std::uint32_t>(detail::kShort));
  if (magic != kSequenceMagic) return fail(ErrorCode::kBadMagic, "not a llama.cpp sequence state");
  KVPACK_TRY(detail::expect(in, "sequence id", static_cast<std::uint32_t>(form.sequence_id)));
  std::vector<detail::CacheSections> sections;
  for (const CacheLayout& cache : layout.caches) {
    KVPACK_TRY_ASSIGN(auto section, detail::read_cache(in, cache, kept_positions(cache, token_count), form));
    sections.push_back(std::move(section));
  }
  if (!in.done()) return fail(ErrorCode::kReserved, "bytes after the end of the state");

  std::vector<CachePlanes> planes;
  for (std::size_t i = 0; i < sections.size(); ++i)
    planes.push_back(detail::sort_cache(sections[i], layout.caches[i], form));
  return planes;
}

inline Result<Bytes> write_state(const std::vector<CacheView>& caches, const StateLayout& layout,
                                 std::uint64_t token_count, const StateForm& form) {
  KVPACK_TRY_ASSIGN(const auto total, state_bytes(layout, token_count, form));
  bool match = caches.size() == layout.caches.size();
  for (std::size_t i = 0; match && i < caches.size(); ++i)
    match = detail::planes_match(caches[i], layout.caches[i], kept_positions(layout.caches[i], token_count));
  if (!match) return fail(ErrorCode::kSemantics, "planes do not match the state layout");

  ByteWriter out;
  out.reserve(static_cast<std::size_t>(total));
  out.le(kSequenceMagic);
  out.le(static_cast<std::uint32_t>(form.sequence_id));
  for (std::size_t i = 0; i < caches.size(); ++i)
    detail::write_cache(out, caches[i], layout.caches[i], kept_positions(layout.caches[i], token_count),
                        form);
  return std::move(out).take();
}

}  // namespace kvpack::muse::llama
