/// The sequence state of models that have nothing but caches of equal layers, with K and V of each layer side
/// by side: what engines of Muse models work with. Bytes only, without an engine header; state_reader.h and
/// state_writer.h do the work.
///
/// A plane is the rows of one layer and side in position order, `[tokens][row bytes]`, for Muse
/// `[tokens][kv_heads 2][head_dim 128]` in f16. Where a row lies in the state depends on the engine's past,
/// where it lies in a plane only on its position.
#pragma once

#include "kvpack/muse/geometry.h"
#include "llama/state_reader.h"
#include "llama/state_writer.h"

namespace kvpack::muse::llama {

using llama_state::kMaxCaches, llama_state::kMaxLayersPerCache, llama_state::kMaxRowBytes;
using llama_state::kMaxStreams, llama_state::kMaxTokens, llama_state::kSequenceMagic;
using llama_state::kTypeBf16, llama_state::kTypeF16, llama_state::kTypeF32;
using llama_state::kTypeQ4_0, llama_state::kTypeQ8_0;
using llama_state::PositionRange, llama_state::StateForm;

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
  return llama_state::kept_positions({llama_state::WindowRule::kSliding, cache.window_tokens}, token_count);
}

inline std::vector<CacheView> view_planes(const std::vector<CachePlanes>& caches) {
  std::vector<CacheView> views;
  views.reserve(caches.size());
  for (const CachePlanes& cache : caches)
    views.push_back({{cache.keys.begin(), cache.keys.end()}, {cache.values.begin(), cache.values.end()}});
  return views;
}

namespace detail {

inline Result<llama_state::StateLayout> checked_layout(const StateLayout& layout, std::uint64_t token_count) {
  if (layout.caches.empty() || layout.caches.size() > kMaxCaches)
    return fail(ErrorCode::kBounds, "state layout: cache count is outside bounds");
  if (token_count == 0) return fail(ErrorCode::kBounds, "state token count is outside bounds");
  llama_state::StateLayout out;
  for (const CacheLayout& cache : layout.caches) {
    if (cache.layers.empty() || cache.layers.size() > kMaxLayersPerCache)
      return fail(ErrorCode::kBounds, "state layout: layer count is outside bounds");
    if (cache.key_row_bytes == 0 || cache.value_row_bytes == 0)
      return fail(ErrorCode::kBounds, "state layout: row size is outside bounds");
    llama_state::CacheLayout& made = out.caches.emplace_back();
    for (const std::uint32_t layer : cache.layers)
      made.layers.push_back({layer, cache.key_row_bytes, cache.value_row_bytes});
    made.window = {llama_state::WindowRule::kSliding, cache.window_tokens};
    made.key_type = cache.key_type;
    made.value_type = cache.value_type;
    made.value_element_bytes = cache.value_element_bytes;
  }
  return out;
}

}  // namespace detail

inline Result<std::uint64_t> state_bytes(const StateLayout& layout, std::uint64_t token_count,
                                         const StateForm& form) {
  KVPACK_TRY_ASSIGN(const auto checked, detail::checked_layout(layout, token_count));
  return llama_state::state_bytes(checked, token_count, form);
}

inline Result<std::vector<CachePlanes>> read_state(ByteSpan state, const StateLayout& layout,
                                                   std::uint64_t token_count, const StateForm& form) {
  KVPACK_TRY_ASSIGN(const auto checked, detail::checked_layout(layout, token_count));
  KVPACK_TRY_ASSIGN(const auto reading,
                    llama_state::read_state(state, checked, {.token_count = token_count}, form));
  std::vector<CachePlanes> caches;
  std::size_t plane = 0;
  const auto take = [&](std::vector<Bytes>& side, std::size_t layers) {
    for (std::size_t i = 0; i < layers; ++i, ++plane)
      reading.copy(plane, side.emplace_back(reading.plane_bytes(plane)));
  };
  for (const CacheLayout& cache : layout.caches) {
    CachePlanes& out = caches.emplace_back(CachePlanes{kept_positions(cache, token_count), {}, {}});
    take(out.keys, cache.layers.size());
    take(out.values, cache.layers.size());
  }
  return caches;
}

inline Result<Bytes> write_state(const std::vector<CacheView>& caches, const StateLayout& layout,
                                 std::uint64_t token_count, const StateForm& form) {
  KVPACK_TRY_ASSIGN(const auto checked, detail::checked_layout(layout, token_count));
  KVPACK_TRY(llama_state::state_bytes(checked, token_count, form));
  std::vector<ByteSpan> planes;
  bool match = caches.size() == layout.caches.size();
  for (std::size_t i = 0; match && i < caches.size(); ++i) {
    match = caches[i].keys.size() == layout.caches[i].layers.size() &&
            caches[i].values.size() == layout.caches[i].layers.size();
    planes.insert(planes.end(), caches[i].keys.begin(), caches[i].keys.end());
    planes.insert(planes.end(), caches[i].values.begin(), caches[i].values.end());
  }
  if (!match) return fail(ErrorCode::kSemantics, "planes do not match the state layout");
  return llama_state::write_state(planes, checked, {.token_count = token_count}, form);
}

}  // namespace kvpack::muse::llama
