/// Between the sequence state of llama.cpp and a snapshot of a Muse cache. Bytes only, without an engine
/// header. docs/llama-cpp.md §Muse
#pragma once

#include "kvpack/muse/snapshot.h"
#include "llama/plain_caches.h"

namespace kvpack::muse::llama {

/// What the engine's sequence state of `token_count` tokens takes, to compare with what the engine says
/// before anything is read.
/// @error kBounds  as state_bytes
Result<std::uint64_t> muse_state_bytes(std::uint64_t token_count, const StateForm& form);

/// A state as a snapshot: rows in the order of their positions, whatever their places in the engine were; V
/// the right way round. Each row is copied once.
/// @param state   what llama_state_seq_get_data has written
/// @param tokens  the history, of which the state says nothing; as many as the sequence has positions
/// @error  as read_state; kBounds `position {n} exceeds the context of 131072 tokens`
Result<CacheSnapshot> snapshot_of_state(ByteSpan state, std::span<const std::uint32_t> tokens,
                                        const StateForm& form);

/// A snapshot as the state that the context of `form` takes, cells in the order of their positions. Up to
/// 2,048 tokens that is the order in which the engine itself fills an empty context.
/// @error  kExpectation the snapshot is not valid, or `llama.cpp needs f16 planes of 256 elements`; as
///         write_state
Result<Bytes> state_of_snapshot(const CacheSnapshot& snapshot, const StateForm& form);

// ---------------------------------------------------------------------------------------------------------

inline Result<std::uint64_t> muse_state_bytes(std::uint64_t token_count, const StateForm& form) {
  return state_bytes(muse_glimmer_layout(), token_count, form);
}

inline Result<CacheSnapshot> snapshot_of_state(ByteSpan state, std::span<const std::uint32_t> tokens,
                                               const StateForm& form) {
  if (tokens.size() > kMaxContextTokens)
    return fail(ErrorCode::kBounds, "position " + std::to_string(tokens.size()) + " exceeds the context of " +
                                        std::to_string(kMaxContextTokens) + " tokens");
  const StateLayout layout = muse_glimmer_layout();
  KVPACK_TRY_ASSIGN(std::vector<CachePlanes> caches, read_state(state, layout, tokens.size(), form));
  CacheSnapshot out{.position = tokens.size(),
                    .tokens = std::vector<std::uint32_t>(tokens.begin(), tokens.end()),
                    .elements_per_token = kRowElements,
                    .layers = std::vector<LayerSnapshot>(kLayers)};
  for (std::size_t c = 0; c < caches.size(); ++c)
    for (std::size_t i = 0; i < layout.caches[c].layers.size(); ++i) {
      const std::uint32_t layer = layout.caches[c].layers[i];
      out.layers[layer] = {.layer = layer,
                           .logical_start = caches[c].positions.start,
                           .logical_count = caches[c].positions.count,
                           .encoding = ElementEncoding::kF16Le,
                           .key = SharedBytes::own(std::move(caches[c].keys[i])),
                           .value = SharedBytes::own(std::move(caches[c].values[i]))};
    }
  return out;
}

inline Result<Bytes> state_of_snapshot(const CacheSnapshot& snapshot, const StateForm& form) {
  KVPACK_TRY(validate_snapshot(snapshot));
  if (snapshot.elements_per_token != kRowElements || snapshot_encoding(snapshot) != ElementEncoding::kF16Le)
    return fail(ErrorCode::kExpectation, "llama.cpp needs f16 planes of 256 elements");
  const StateLayout layout = muse_glimmer_layout();
  std::vector<CacheView> views;
  for (const CacheLayout& cache : layout.caches) {
    CacheView view;
    for (const std::uint32_t layer : cache.layers) {
      view.keys.push_back(snapshot.layers[layer].key.view());
      view.values.push_back(snapshot.layers[layer].value.view());
    }
    views.push_back(std::move(view));
  }
  return write_state(views, layout, snapshot.position, form);
}

}  // namespace kvpack::muse::llama
