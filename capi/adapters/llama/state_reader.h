/// Takes a sequence state of llama.cpp apart into planes: a checked view, of which nothing has been copied.
#pragma once

#include <memory>

#include "llama/state_layout.h"

namespace kvpack::llama_state {

/// A state that is in every byte what was expected, as planes in the order of planes_of. Views into the
/// state, which must keep still.
class StateReading {
 public:
  std::size_t plane_count() const noexcept { return planes_.size(); }
  PositionRange positions(std::size_t plane) const noexcept { return planes_[plane].positions; }
  std::size_t plane_bytes(std::size_t plane) const noexcept { return planes_[plane].rows.size(); }

  /// The plane itself, where its rows lie in order already; else empty.
  ByteSpan view(std::size_t plane) const noexcept {
    const Rows& rows = planes_[plane];
    const bool in_order = rows.element_bytes == 0 && (rows.order == nullptr || rows.order->is_sorted);
    return in_order ? rows.rows : ByteSpan{};
  }

  /// Puts each row into the place of its position. @pre out.size() == plane_bytes(plane)
  void copy(std::size_t plane, MutableByteSpan out) const;

 private:
  friend class StateReader;
  /// For each cell, the row of the plane that it belongs to.
  struct Order {
    std::vector<std::uint32_t> row_of_cell;
    bool is_sorted = true;
  };
  struct Rows {
    ByteSpan rows{};
    PositionRange positions{};
    std::shared_ptr<const Order> order{};  ///< Null: a single row.
    std::uint32_t row_bytes = 0;
    std::uint32_t element_bytes = 0;  ///< Not 0: the rows lie transposed, `[row elements][cells]`.
  };

  std::vector<Rows> planes_{};
};

/// How many streams a state claims to have, for contexts of which only the two possible numbers are known: a
/// word that read_state compares. Nothing where it is too short; 1 where the state has no cache.
std::optional<std::uint32_t> claimed_streams(ByteSpan state, const StateLayout& layout) noexcept;

/// Nothing is allocated for a plane, and for a cell only when there are bytes for all of them.
/// @error kBounds      as state_bytes; `tokens are not those of the sequence`
/// @error kTruncated   `state ends early`
/// @error kBadMagic    `not a llama.cpp sequence state`
/// @error kExpectation `state field {name} differs`, with field, found and expected in the context; of a
/// token
///                     with field alone
/// @error kSemantics   `state position is outside the kept range`, `state position occurs twice`
/// @error kReserved    `bytes after the end of the state`
Result<StateReading> read_state(ByteSpan state, const StateLayout& layout, const Sequence& sequence,
                                const StateForm& form);

// ---------------------------------------------------------------------------------------------------------------

inline void StateReading::copy(std::size_t plane, MutableByteSpan out) const {
  const Rows& from = planes_[plane];
  if (const ByteSpan whole = view(plane); !whole.empty() || from.rows.empty()) return copy_bytes(whole, out);
  const std::vector<std::uint32_t>& row_of_cell = from.order->row_of_cell;
  const std::size_t row_bytes = from.row_bytes;
  if (from.element_bytes == 0) {
    for (std::size_t cell = 0; cell < row_of_cell.size(); ++cell)
      copy_bytes(from.rows.subspan(cell * row_bytes, row_bytes),
                 out.subspan(row_of_cell[cell] * row_bytes, row_bytes));
    return;
  }
  const std::size_t element = from.element_bytes;
  std::size_t at = 0;
  for (std::size_t column = 0; column < row_bytes; column += element)
    for (const std::size_t row : row_of_cell) {
      copy_bytes(from.rows.subspan(at, element), out.subspan(row * row_bytes + column, element));
      at += element;
    }
}

/// Reads one state; each field in the order of the bytes.
class StateReader {
 public:
  StateReader(ByteSpan state, const Sequence& sequence, const StateForm& form) noexcept
      : in_(state), sequence_(sequence), form_(form) {}

  Result<StateReading> read(const StateLayout& layout) {
    KVPACK_TRY_ASSIGN(const auto magic, in_.le<std::uint32_t>(kShort));
    if (magic != kSequenceMagic) return fail(ErrorCode::kBadMagic, "not a llama.cpp sequence state");
    KVPACK_TRY(expect("sequence id", static_cast<std::uint32_t>(form_.sequence_id)));
    for (const CacheLayout& cache : layout.caches) KVPACK_TRY(read_cache(cache));
    if (layout.recurrent) KVPACK_TRY(read_recurrent(*layout.recurrent));
    if (!in_.done()) return fail(ErrorCode::kReserved, "bytes after the end of the state");
    return std::move(out_);
  }

 private:
  using Order = StateReading::Order;
  static constexpr std::string_view kShort = "state ends early";

  /// One word of the state that is known in advance.
  template <std::unsigned_integral U>
  static Status expect(ByteReader& in, std::string_view field, U expected) {
    KVPACK_TRY_ASSIGN(const U found, in.le<U>(kShort));
    if (found == expected) return success();
    return fail(ErrorCode::kExpectation, "state field " + std::string(field) + " differs")
        .with("field", std::string(field))
        .with("found", std::to_string(found))
        .with("expected", std::to_string(expected));
  }
  template <std::unsigned_integral U>
  Status expect(std::string_view field, U expected) {
    return expect(in_, field, expected);
  }

  /// @pre both factors are bounded, so that the product fits
  Result<ByteSpan> take_rows(std::uint64_t rows, std::uint64_t row_bytes) {
    if (rows * row_bytes > in_.rest().size()) return fail(ErrorCode::kTruncated, std::string(kShort));
    return in_.take(static_cast<std::size_t>(rows * row_bytes), kShort);
  }

  Status read_cache(const CacheLayout& cache) {
    const PositionRange kept = kept_positions(cache.window, sequence_.token_count);
    KVPACK_TRY(expect("stream count", form_.stream_count));
    for (std::uint32_t stream = 0; stream < form_.stream_count; ++stream) {
      if (stream != form_.stream) {
        KVPACK_TRY(expect<std::uint32_t>("cells of another stream", 0));
        continue;
      }
      KVPACK_TRY(expect("cells", static_cast<std::uint32_t>(kept.count)));
      if (kept.count != 0) {
        KVPACK_TRY(read_stream(cache, kept));
      } else {
        add_empty_planes(cache);
      }
    }
    return success();
  }

  void add_empty_planes(const CacheLayout& cache) {
    for (const CacheLayer& layer : cache.layers)
      if (layer.key_row_bytes != 0) out_.planes_.push_back({.row_bytes = layer.key_row_bytes});
    for (const CacheLayer& layer : cache.layers)
      if (cache.has_values && layer.value_row_bytes != 0)
        out_.planes_.push_back({.row_bytes = layer.value_row_bytes});
  }

  Status read_stream(const CacheLayout& cache, PositionRange kept) {
    KVPACK_TRY_ASSIGN(const auto order, read_cells(cache, kept));
    KVPACK_TRY(expect<std::uint32_t>("value transposition", form_.value_transposed ? 1 : 0));
    KVPACK_TRY(expect("layers", static_cast<std::uint32_t>(cache.layers.size())));
    for (const CacheLayer& layer : cache.layers) {
      KVPACK_TRY(expect("key type", static_cast<std::uint32_t>(cache.key_type)));
      KVPACK_TRY(expect("key row bytes", std::uint64_t{layer.key_row_bytes}));
      KVPACK_TRY(read_rows(kept, order, layer.key_row_bytes, 0));
    }
    if (!cache.has_values) return success();
    for (const CacheLayer& layer : cache.layers) {
      KVPACK_TRY(expect("value type", static_cast<std::uint32_t>(cache.value_type)));
      if (form_.value_transposed) {
        KVPACK_TRY(expect("value element bytes", cache.value_element_bytes));
        KVPACK_TRY(expect("value row elements", layer.value_row_bytes / cache.value_element_bytes));
      } else {
        KVPACK_TRY(expect("value row bytes", std::uint64_t{layer.value_row_bytes}));
      }
      KVPACK_TRY(read_rows(kept, order, layer.value_row_bytes,
                           form_.value_transposed ? cache.value_element_bytes : 0));
    }
    return success();
  }

  Status read_rows(PositionRange positions, const std::shared_ptr<const Order>& order,
                   std::uint32_t row_bytes, std::uint32_t element_bytes) {
    KVPACK_TRY_ASSIGN(const ByteSpan rows, take_rows(positions.count, row_bytes));
    if (row_bytes != 0) out_.planes_.push_back({rows, positions, order, row_bytes, element_bytes});
    return success();
  }

  Result<std::shared_ptr<const Order>> read_cells(const CacheLayout& cache, PositionRange kept) {
    KVPACK_TRY_ASSIGN(const ByteSpan table, take_rows(kept.count, detail::cell_bytes(cache)));
    ByteReader cells(table);
    auto order = std::make_shared<Order>();
    order->row_of_cell.reserve(static_cast<std::size_t>(kept.count));
    std::vector<bool> seen(static_cast<std::size_t>(kept.count));
    for (std::uint64_t cell = 0; cell < kept.count; ++cell) {
      KVPACK_TRY_ASSIGN(const auto position, cells.le<std::uint32_t>(kShort));
      KVPACK_TRY(expect<std::uint32_t>(cells, "sequence ids of a cell", 1));
      if (cache.extended_cells) KVPACK_TRY(read_extension(cells, position));
      KVPACK_TRY(expect(cells, "sequence id of a cell", static_cast<std::uint32_t>(form_.sequence_id)));
      if (position < kept.start || position - kept.start >= kept.count)
        return fail(ErrorCode::kSemantics, "state position is outside the kept range")
            .with("found", std::to_string(position));
      const auto row = static_cast<std::uint32_t>(position - kept.start);
      // As many cells as positions: when none occurs twice, none is missing either.
      if (seen[row])
        return fail(ErrorCode::kSemantics, "state position occurs twice")
            .with("found", std::to_string(position));
      seen[row] = true;
      order->is_sorted = order->is_sorted && row == cell;
      order->row_of_cell.push_back(row);
    }
    return std::shared_ptr<const Order>(std::move(order));
  }

  /// Of a text both coordinates are the position. An image has others, and its place among the positions says
  /// less than planes need.
  Status read_extension(ByteReader& cells, std::uint32_t position) {
    KVPACK_TRY(expect(cells, "x of a cell", position));
    KVPACK_TRY(expect(cells, "y of a cell", position));
    KVPACK_TRY_ASSIGN(const auto token, cells.le<std::uint32_t>(kShort));
    if (position >= sequence_.tokens.size() ||
        token == static_cast<std::uint32_t>(sequence_.tokens[position]))
      return success();
    // Neither token is told: an error may be logged, and tokens are somebody's text.
    return fail(ErrorCode::kExpectation, "state field token of a cell differs")
        .with("field", "token of a cell");
  }

  Status read_recurrent(const RecurrentLayout& part) {
    const PositionRange last =
        sequence_.token_count == 0 ? PositionRange{} : PositionRange{sequence_.token_count - 1, 1};
    KVPACK_TRY(expect("recurrent cells", static_cast<std::uint32_t>(last.count)));
    if (last.count != 0) {
      KVPACK_TRY(expect("recurrent position", static_cast<std::uint32_t>(last.start)));
      KVPACK_TRY(expect<std::uint32_t>("sequence ids of a recurrent cell", 0));
    }
    KVPACK_TRY(expect<std::uint32_t>("recurrent transposition", 0));
    KVPACK_TRY(expect("recurrent layers", part.layer_count));
    for (const RecurrentLayer& layer : part.layers)
      KVPACK_TRY(read_recurrent_row("first", layer.first_row_bytes, last));
    for (const RecurrentLayer& layer : part.layers)
      KVPACK_TRY(read_recurrent_row("second", layer.second_row_bytes, last));
    return success();
  }

  Status read_recurrent_row(const char* which, std::uint32_t row_bytes, PositionRange last) {
    KVPACK_TRY(expect(std::string(which) + " recurrent type", static_cast<std::uint32_t>(kTypeF32)));
    KVPACK_TRY(expect(std::string(which) + " recurrent row bytes", std::uint64_t{row_bytes}));
    return read_rows(last, nullptr, row_bytes, 0);
  }

  ByteReader in_;
  Sequence sequence_;
  StateForm form_;
  StateReading out_{};
};

inline std::optional<std::uint32_t> claimed_streams(ByteSpan state, const StateLayout& layout) noexcept {
  if (layout.caches.empty()) return 1;
  ByteReader in(state);
  const auto head = in.le<std::uint64_t>("");
  if (!head.has_value()) return std::nullopt;
  const auto streams = in.le<std::uint32_t>("");
  return streams.has_value() ? std::optional<std::uint32_t>(*streams) : std::nullopt;
}

inline Result<StateReading> read_state(ByteSpan state, const StateLayout& layout, const Sequence& sequence,
                                       const StateForm& form) {
  KVPACK_TRY(state_bytes(layout, sequence.token_count, form));
  if (!sequence.tokens.empty() && sequence.tokens.size() != sequence.token_count)
    return fail(ErrorCode::kBounds, "tokens are not those of the sequence");
  return StateReader(state, sequence, form).read(layout);
}

}  // namespace kvpack::llama_state
