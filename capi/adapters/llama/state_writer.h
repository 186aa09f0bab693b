/// Puts planes together into a sequence state of llama.cpp, for a context of any form.
#pragma once

#include "llama/state_layout.h"

namespace kvpack::llama_state {

/// Cells in the order of their positions, under the sequence id and with the streams of the form: up to the
/// size of a window that is the order in which the engine itself fills an empty context.
/// @param planes   in the order of planes_of, each of them exactly its positions(..) x row_bytes
/// @param sequence  with tokens where cells name them
/// @error kBounds    as state_bytes; `tokens are not those of the sequence`
/// @error kSemantics `planes do not match the state layout`
Result<Bytes> write_state(std::span<const ByteSpan> planes, const StateLayout& layout,
                          const Sequence& sequence, const StateForm& form);

// ---------------------------------------------------------------------------------------------------------------

namespace detail {

class StateWriter {
 public:
  StateWriter(std::span<const ByteSpan> planes, const Sequence& sequence, const StateForm& form,
              std::uint64_t size)
      : planes_(planes), sequence_(sequence), form_(form) {
    out_.reserve(static_cast<std::size_t>(size));
  }

  Bytes write(const StateLayout& layout) {
    out_.le(kSequenceMagic);
    out_.le(static_cast<std::uint32_t>(form_.sequence_id));
    for (const CacheLayout& cache : layout.caches) write_cache(cache);
    if (layout.recurrent) write_recurrent(*layout.recurrent);
    return std::move(out_).take();
  }

 private:
  void write_cache(const CacheLayout& cache) {
    const PositionRange kept = kept_positions(cache.window, sequence_.token_count);
    out_.le(form_.stream_count);
    for (std::uint32_t stream = 0; stream < form_.stream_count; ++stream) {
      const bool is_own = stream == form_.stream;
      out_.le(static_cast<std::uint32_t>(is_own ? kept.count : 0));
      if (is_own && kept.count != 0) write_stream(cache, kept);
    }
  }

  void write_stream(const CacheLayout& cache, PositionRange kept) {
    for (std::uint64_t position = kept.start; position < kept.start + kept.count; ++position)
      write_cell(cache, static_cast<std::uint32_t>(position));
    out_.le(std::uint32_t{form_.value_transposed});
    out_.le(static_cast<std::uint32_t>(cache.layers.size()));
    for (const CacheLayer& layer : cache.layers) write_section(cache.key_type, layer.key_row_bytes);
    if (!cache.has_values) return;
    for (const CacheLayer& layer : cache.layers) {
      if (!form_.value_transposed) {
        write_section(cache.value_type, layer.value_row_bytes);
        continue;
      }
      out_.le(static_cast<std::uint32_t>(cache.value_type));
      out_.le(cache.value_element_bytes);
      out_.le(layer.value_row_bytes / cache.value_element_bytes);
      if (layer.value_row_bytes != 0)
        write_transposed(next_plane(), layer.value_row_bytes, cache.value_element_bytes);
    }
  }

  void write_cell(const CacheLayout& cache, std::uint32_t position) {
    out_.le(position);
    out_.le(std::uint32_t{1});
    if (cache.extended_cells) {
      out_.le(position);
      out_.le(position);
      out_.le(static_cast<std::uint32_t>(sequence_.tokens[position]));
    }
    out_.le(static_cast<std::uint32_t>(form_.sequence_id));
  }

  void write_section(std::int32_t type, std::uint32_t row_bytes) {
    out_.le(static_cast<std::uint32_t>(type));
    out_.le(std::uint64_t{row_bytes});
    if (row_bytes != 0) out_.bytes(next_plane());
  }

  void write_transposed(ByteSpan plane, std::size_t row_bytes, std::size_t element_bytes) {
    for (std::size_t column = 0; column < row_bytes; column += element_bytes)
      for (std::size_t at = column; at < plane.size(); at += row_bytes)
        out_.bytes(plane.subspan(at, element_bytes));
  }

  void write_recurrent(const RecurrentLayout& part) {
    const bool is_empty = sequence_.token_count == 0;
    out_.le(std::uint32_t{is_empty ? 0U : 1U});
    if (!is_empty) {
      out_.le(static_cast<std::uint32_t>(sequence_.token_count - 1));
      out_.le(std::uint32_t{0});
    }
    out_.le(std::uint32_t{0});
    out_.le(part.layer_count);
    for (const RecurrentLayer& layer : part.layers) write_row(layer.first_row_bytes, is_empty);
    for (const RecurrentLayer& layer : part.layers) write_row(layer.second_row_bytes, is_empty);
  }

  void write_row(std::uint32_t row_bytes, bool is_empty) {
    out_.le(static_cast<std::uint32_t>(kTypeF32));
    out_.le(std::uint64_t{row_bytes});
    if (row_bytes != 0 && !is_empty) out_.bytes(next_plane());
  }

  ByteSpan next_plane() { return planes_[next_++]; }

  std::span<const ByteSpan> planes_;
  std::size_t next_ = 0;
  Sequence sequence_;
  StateForm form_;
  ByteWriter out_{};
};

inline bool names_tokens(const StateLayout& layout) {
  return std::ranges::any_of(layout.caches, &CacheLayout::extended_cells);
}

}  // namespace detail

inline Result<Bytes> write_state(std::span<const ByteSpan> planes, const StateLayout& layout,
                                 const Sequence& sequence, const StateForm& form) {
  KVPACK_TRY_ASSIGN(const auto size, state_bytes(layout, sequence.token_count, form));
  if ((detail::names_tokens(layout) || !sequence.tokens.empty()) &&
      sequence.tokens.size() != sequence.token_count)
    return fail(ErrorCode::kBounds, "tokens are not those of the sequence");
  const std::vector<PlaneShape> shapes = planes_of(layout);
  const bool match = std::ranges::equal(planes, shapes, [&](ByteSpan plane, const PlaneShape& shape) {
    return plane.size() == shape.positions(sequence.token_count).count * shape.row_bytes;
  });
  if (!match) return fail(ErrorCode::kSemantics, "planes do not match the state layout");
  return detail::StateWriter(planes, sequence, form, size).write(layout);
}

}  // namespace kvpack::llama_state
