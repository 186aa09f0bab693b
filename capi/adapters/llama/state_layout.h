/// What the sequence state of llama.cpp (v0.5.0) of one model consists of, and the planes in it. Bytes only:
/// no header of the engine is known here.
///
/// The state does not describe itself: which layers it holds, whether there is a V, twelve bytes more for
/// each cell, or a recurrent part behind the caches, all follows from the model and the context. So nothing
/// is guessed: a StateLayout says what is expected, and every field that says something else is refused. The
/// layout of the bytes: docs/llama-cpp.md §The sequence state.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvpack/base/bytes.h"
#include "kvpack/base/result.h"

namespace kvpack::llama_state {

inline constexpr std::uint32_t kSequenceMagic = 0xaf143cd8;
inline constexpr std::uint64_t kMaxTokens = std::numeric_limits<std::int32_t>::max();
inline constexpr std::size_t kMaxCaches = 8;
inline constexpr std::size_t kMaxLayersPerCache = 4096;
inline constexpr std::uint32_t kMaxRowBytes = 4'194'304;               ///< One row must fit a chunk.
inline constexpr std::uint32_t kMaxRecurrentRowBytes = 1'073'741'824;  ///< Is split into columns.
inline constexpr std::uint32_t kMaxStreams = 256;

/// An element type as the engine numbers it. Rows of the quantised ones are opaque bytes.
struct ElementType {
  std::int32_t id = 0;
  std::string_view name{};
  std::uint32_t block_elements = 1;
  std::uint32_t block_bytes = 4;

  bool is_quantised() const noexcept { return block_elements > 1; }
  /// Of one element; 0 for quantised ones, which cannot lie transposed.
  std::uint32_t element_bytes() const noexcept { return is_quantised() ? 0 : block_bytes; }
};

inline constexpr std::int32_t kTypeF32 = 0, kTypeF16 = 1, kTypeQ4_0 = 2, kTypeQ8_0 = 8, kTypeBf16 = 30;

inline constexpr std::array<ElementType, 9> kElementTypes{{{kTypeF32, "f32", 1, 4},
                                                           {kTypeF16, "f16", 1, 2},
                                                           {kTypeQ4_0, "q4_0", 32, 18},
                                                           {3, "q4_1", 32, 20},
                                                           {6, "q5_0", 32, 22},
                                                           {7, "q5_1", 32, 24},
                                                           {kTypeQ8_0, "q8_0", 32, 34},
                                                           {20, "iq4_nl", 32, 18},
                                                           {kTypeBf16, "bf16", 1, 2}}};

/// Null for a type that caches are not kept in.
constexpr const ElementType* find_element_type(std::int32_t id) noexcept {
  for (const ElementType& type : kElementTypes)
    if (type.id == id) return &type;
  return nullptr;
}

/// Bytes of a row; nothing where elements do not fill whole blocks, or the row exceeds `most`.
constexpr std::optional<std::uint32_t> row_bytes(const ElementType& type, std::uint64_t elements,
                                                 std::uint32_t most = kMaxRowBytes) noexcept {
  if (elements % type.block_elements != 0) return std::nullopt;
  const auto bytes = checked_mul<std::uint64_t>(elements / type.block_elements, type.block_bytes);
  if (!bytes || *bytes > most) return std::nullopt;
  return static_cast<std::uint32_t>(*bytes);
}

/// Positions `start .. start + count`.
struct PositionRange {
  std::uint64_t start = 0;
  std::uint64_t count = 0;

  friend bool operator==(const PositionRange&, const PositionRange&) = default;
};

/// Which positions a cache keeps.
enum class WindowRule : std::uint8_t {
  kNone,     ///< All.
  kSliding,  ///< The last `tokens`.
  kChunked,  ///< Those since the last multiple of `tokens`.
};
struct Window {
  WindowRule rule = WindowRule::kNone;
  std::uint32_t tokens = 0;
};

/// Of a sequence of `token_count` tokens.
constexpr PositionRange kept_positions(const Window& window, std::uint64_t token_count) noexcept {
  if (window.rule == WindowRule::kNone || window.tokens == 0 || token_count <= window.tokens)
    return {0, token_count};
  if (window.rule == WindowRule::kSliding) return {token_count - window.tokens, window.tokens};
  const std::uint64_t start = (token_count - 1) / window.tokens * window.tokens;
  return {start, token_count - start};
}

/// Rows of a layer. Those of 0 bytes have their header in the state, and no plane.
struct CacheLayer {
  std::uint32_t layer = 0;
  std::uint32_t key_row_bytes = 0;
  std::uint32_t value_row_bytes = 0;
};

/// What one cache of a model holds.
struct CacheLayout {
  std::vector<CacheLayer> layers{};  ///< Ascending: the order of the state, which does not name them. May be
                                     ///< none: the cells are there all the same.
  Window window{};
  std::int32_t key_type = kTypeF16;
  std::int32_t value_type = kTypeF16;
  std::uint32_t value_element_bytes = 2;  ///< 0 for types that cannot lie transposed.
  bool has_values = true;                 ///< False for latents (MLA): nothing stands for V.
  bool extended_cells = false;            ///< M-RoPE: x, y and token of each cell.
  bool is_index = false;                  ///< Keys of an indexer.
};

/// Rows of f32 of a recurrent layer; 0 bytes have a header and no plane.
struct RecurrentLayer {
  std::uint32_t layer = 0;
  std::uint32_t first_row_bytes = 0;   ///< Convolution, or token shift.
  std::uint32_t second_row_bytes = 0;  ///< The state itself.
};
struct RecurrentLayout {
  std::uint32_t layer_count = 0;  ///< As the state says it: all layers of the model.
  std::vector<RecurrentLayer> layers{};
};

/// The parts of a state, in its order: caches, then a recurrent part.
struct StateLayout {
  std::vector<CacheLayout> caches{};
  std::optional<RecurrentLayout> recurrent{};
};

/// What a sequence is made from.
struct Sequence {
  std::uint64_t token_count = 0;           ///< 0: an empty one, of which the state has headers alone.
  std::span<const std::int32_t> tokens{};  ///< Compared where cells name their tokens; empty: not compared.
};

/// How a context keeps a sequence. Planes are the same in every form.
struct StateForm {
  std::int32_t sequence_id = 0;
  std::uint32_t stream_count =
      1;                     ///< 1 with a unified cache or one sequence, else the sequences of the context.
  std::uint32_t stream = 0;  ///< The stream of this sequence, below stream_count.
  bool value_transposed = false;  ///< True without flash attention.
};

enum class Side : std::uint8_t { kKeys, kValues, kFirst, kSecond };

/// A plane: the rows of one layer and side in the order of their positions, `[positions][row bytes]`.
struct PlaneShape {
  Side side = Side::kKeys;
  std::size_t cache = 0;  ///< For keys and values.
  std::uint32_t layer = 0;
  std::uint32_t row_bytes = 0;
  std::int32_t type = kTypeF32;
  Window window{};

  bool is_recurrent() const noexcept { return side == Side::kFirst || side == Side::kSecond; }
  /// A recurrent row stands for the last token.
  PositionRange positions(std::uint64_t token_count) const noexcept {
    if (is_recurrent()) return token_count == 0 ? PositionRange{} : PositionRange{token_count - 1, 1};
    return kept_positions(window, token_count);
  }
};

/// All planes, in the order in which reader and writer have them: that of the state.
inline std::vector<PlaneShape> planes_of(const StateLayout& layout) {
  std::vector<PlaneShape> planes;
  for (std::size_t c = 0; c < layout.caches.size(); ++c) {
    const CacheLayout& cache = layout.caches[c];
    for (const CacheLayer& layer : cache.layers)
      if (layer.key_row_bytes != 0)
        planes.push_back({Side::kKeys, c, layer.layer, layer.key_row_bytes, cache.key_type, cache.window});
    for (const CacheLayer& layer : cache.layers)
      if (cache.has_values && layer.value_row_bytes != 0)
        planes.push_back(
            {Side::kValues, c, layer.layer, layer.value_row_bytes, cache.value_type, cache.window});
  }
  if (!layout.recurrent) return planes;
  for (const RecurrentLayer& layer : layout.recurrent->layers)
    if (layer.first_row_bytes != 0)
      planes.push_back({Side::kFirst, 0, layer.layer, layer.first_row_bytes, kTypeF32, {}});
  for (const RecurrentLayer& layer : layout.recurrent->layers)
    if (layer.second_row_bytes != 0)
      planes.push_back({Side::kSecond, 0, layer.layer, layer.second_row_bytes, kTypeF32, {}});
  return planes;
}

/// Size of the state in bytes, to compare with what the engine says before anything is read.
/// @error kBounds  layout, token count or form is outside the limits above, or the size overflows
Result<std::uint64_t> state_bytes(const StateLayout& layout, std::uint64_t token_count,
                                  const StateForm& form);

// ---------------------------------------------------------------------------------------------------------------

namespace detail {

inline constexpr std::uint64_t kCellBytes = 4 + 4 + 4;       // position, number of sequence ids, the id
inline constexpr std::uint64_t kExtensionBytes = 4 + 4 + 4;  // x, y, token

constexpr std::uint64_t cell_bytes(const CacheLayout& cache) noexcept {
  return kCellBytes + (cache.extended_cells ? kExtensionBytes : 0);
}

template <class Layer>
bool are_ascending(const std::vector<Layer>& layers) {
  return std::ranges::adjacent_find(layers, std::ranges::greater_equal{}, &Layer::layer) == layers.end();
}

inline Status check_cache(const CacheLayout& cache, const StateForm& form) {
  if (cache.layers.size() > kMaxLayersPerCache)
    return fail(ErrorCode::kBounds, "state layout: layer count is outside bounds");
  if (!are_ascending(cache.layers)) return fail(ErrorCode::kBounds, "state layout: layers are not ascending");
  for (const CacheLayer& layer : cache.layers) {
    if (layer.key_row_bytes > kMaxRowBytes || layer.value_row_bytes > kMaxRowBytes)
      return fail(ErrorCode::kBounds, "state layout: row size is outside bounds");
    if (form.value_transposed && cache.has_values &&
        (cache.value_element_bytes == 0 || layer.value_row_bytes % cache.value_element_bytes != 0))
      return fail(ErrorCode::kBounds, "state layout: value rows cannot lie transposed");
  }
  return success();
}

inline Status check_recurrent(const RecurrentLayout& part) {
  if (part.layers.empty() || part.layers.size() > kMaxLayersPerCache)
    return fail(ErrorCode::kBounds, "state layout: layer count is outside bounds");
  if (!are_ascending(part.layers)) return fail(ErrorCode::kBounds, "state layout: layers are not ascending");
  for (const RecurrentLayer& layer : part.layers)
    if (layer.first_row_bytes > kMaxRecurrentRowBytes || layer.second_row_bytes > kMaxRecurrentRowBytes)
      return fail(ErrorCode::kBounds, "state layout: row size is outside bounds");
  return success();
}

inline Status check_request(const StateLayout& layout, std::uint64_t token_count, const StateForm& form) {
  if ((layout.caches.empty() && !layout.recurrent) || layout.caches.size() > kMaxCaches)
    return fail(ErrorCode::kBounds, "state layout: cache count is outside bounds");
  if (token_count > kMaxTokens) return fail(ErrorCode::kBounds, "state token count is outside bounds");
  if (form.sequence_id < 0 || form.stream_count == 0 || form.stream_count > kMaxStreams ||
      form.stream >= form.stream_count)
    return fail(ErrorCode::kBounds, "state form is outside bounds");
  for (const CacheLayout& cache : layout.caches) KVPACK_TRY(check_cache(cache, form));
  if (layout.recurrent) KVPACK_TRY(check_recurrent(*layout.recurrent));
  return success();
}

/// Adds a * b to `total`; false on overflow.
inline bool add_product(std::uint64_t& total, std::uint64_t a, std::uint64_t b) noexcept {
  const auto product = checked_mul(a, b);
  const auto sum = product ? checked_add(total, *product) : std::nullopt;
  if (sum) total = *sum;
  return sum.has_value();
}

}  // namespace detail

inline Result<std::uint64_t> state_bytes(const StateLayout& layout, std::uint64_t token_count,
                                         const StateForm& form) {
  KVPACK_TRY(detail::check_request(layout, token_count, form));
  constexpr std::uint64_t kHeadBytes = 4 + 4;     // magic, sequence id
  constexpr std::uint64_t kSectionBytes = 4 + 8;  // type, row size; the same transposed
  std::uint64_t total = kHeadBytes;
  bool fits = true;
  for (const CacheLayout& cache : layout.caches) {
    const std::uint64_t count = kept_positions(cache.window, token_count).count;
    total += 4 + 4 * std::uint64_t{form.stream_count};
    if (count == 0) continue;
    total += 4 + 4;
    fits = fits && detail::add_product(total, count, detail::cell_bytes(cache));
    for (const CacheLayer& layer : cache.layers) {
      const std::uint64_t values = cache.has_values ? layer.value_row_bytes : 0;
      fits = fits && detail::add_product(total, 1, kSectionBytes * (cache.has_values ? 2 : 1)) &&
             detail::add_product(total, count, layer.key_row_bytes + values);
    }
  }
  if (layout.recurrent) {
    const std::uint64_t count = token_count == 0 ? 0 : 1;
    fits = fits && detail::add_product(total, 1, 4 + 8 * count + 4 + 4);
    for (const RecurrentLayer& layer : layout.recurrent->layers)
      fits = fits && detail::add_product(total, 1, 2 * kSectionBytes) &&
             detail::add_product(total, count, std::uint64_t{layer.first_row_bytes} + layer.second_row_bytes);
  }
  if (!fits) return fail(ErrorCode::kBounds, "state size overflows u64");
  return total;
}

}  // namespace kvpack::llama_state
