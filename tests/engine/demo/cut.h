/// Between an engine's sequence and a saved cut: what an adapter for a real engine consists of.
#pragma once

#include "engine/demo/identity.h"
#include "kvpack/core/cut_builder.h"
#include "kvpack/core/cut_restore.h"
#include "kvpack/core/expectation.h"

namespace kvpack::demo {

/// Everything that a cut must agree with before its payload is looked at.
struct OwnIdentity {
  SemanticModelId model;
  IdentifiedFamily family;
  InputCutId cut;
};

/// The identity of `tokens` under this engine. @error as derive_input and IdentifiedFamily::create
Result<OwnIdentity> own_identity(const EngineFacts& facts, const KeySchedule& keys,
                                 std::span<const std::uint32_t> tokens);

/// The same as named fields, to expect of a manifest. The manifest's own id stays open.
Identity identity_fields(const OwnIdentity& own);

/// Saves the planes of a sequence as a full cut, the keys and values of a layer in one atomic group.
/// @error as save_cut
Result<SavedCut> save_planes(const std::vector<llama::CachePlanes>& caches, const OwnIdentity& own,
                             const KeySchedule& keys, std::span<const std::uint32_t> tokens, ChunkSink& sink);

/// Restores every plane of a chain, verified, in the order of the family.
/// @pre the head has the identity of this engine
/// @error kQuota more memory than these planes take in this engine; as restore_cut
Result<std::vector<Bytes>> restore_planes(const ManifestChain& chain, ObjectSource& source,
                                          const KeyRing& keys);

/// Planes in the order of the family, as the views that write_state takes.
std::vector<llama::CacheView> view_caches(const std::vector<Bytes>& planes, const llama::StateLayout& layout);

// ---------------------------------------------------------------------------------------------------------------

namespace detail {

/// Place of a layer's key plane in the order of the family, which is by layer; its value plane follows.
inline std::size_t plane_index(std::uint32_t layer) {
  return std::size_t{2} * layer;
}

inline constexpr unsigned kThreads = 2;

}  // namespace detail

inline Result<OwnIdentity> own_identity(const EngineFacts& facts, const KeySchedule& keys,
                                        std::span<const std::uint32_t> tokens) {
  const SemanticModelId model = semantic_model(facts);
  KVPACK_TRY_ASSIGN(IdentifiedFamily family, kv_family(facts, llama::muse_glimmer_layout()));
  KVPACK_TRY_ASSIGN(const DerivedInput input, derive_input(keys, model, family.id(), {}, tokens));
  return OwnIdentity{model, std::move(family), input.cut};
}

inline Identity identity_fields(const OwnIdentity& own) {
  const RepresentationFamily& family = own.family.family();
  Identity fields;
  fields["weights_config"] = own.model.weights_config.hex();
  fields["adapters"] = own.model.adapters.hex();
  fields["tokenizer_template"] = own.model.tokenizer_template.hex();
  fields["position_semantics"] = own.model.position_semantics.hex();
  fields["qualified_math"] = own.model.qualified_math.hex();
  fields["engine_cache_abi"] = family.engine_cache_abi.hex();
  fields["topology"] = family.topology.hex();
  fields["shard_map"] = family.shard_map.hex();
  fields["family_id"] = own.family.id().hex();
  fields["auxiliary_root"] = own.cut.auxiliary_input_root.hex();
  fields["token_count"] = std::to_string(own.cut.token_count);
  fields["token_root"] = own.cut.token_root.hex();
  return fields;
}

inline Result<SavedCut> save_planes(const std::vector<llama::CachePlanes>& caches, const OwnIdentity& own,
                                    const KeySchedule& keys, std::span<const std::uint32_t> tokens,
                                    ChunkSink& sink) {
  const llama::StateLayout layout = llama::muse_glimmer_layout();
  std::vector<PlaneView> planes(own.family.family().states.size());
  std::vector<AtomicGroup> groups(planes.size() / 2);
  for (std::size_t c = 0; c < caches.size(); ++c)
    for (std::size_t i = 0; i < caches[c].keys.size(); ++i) {
      const std::uint32_t layer = layout.caches[c].layers[i];
      const llama::PositionRange kept = caches[c].positions;
      planes[detail::plane_index(layer)] = {caches[c].keys[i], kept.start, kept.count};
      planes[detail::plane_index(layer) + 1] = {caches[c].values[i], kept.start, kept.count};
      groups[layer] = {layer + 1, {{layer, std::string(kKeyName)}, {layer, std::string(kValueName)}}};
    }
  const CutInput input{.keys = &keys,
                       .family = &own.family,
                       .semantic_model = own.model,
                       .tokens = tokens,
                       .planes = planes,
                       .groups = groups,
                       .parallelism = detail::kThreads};
  SystemRandom random;
  return save_cut(input, sink, random);
}

inline Result<std::vector<Bytes>> restore_planes(const ManifestChain& chain, ObjectSource& source,
                                                 const KeyRing& keys) {
  std::uint64_t expected_bytes = 0;
  for (const llama::CacheLayout& cache : llama::muse_glimmer_layout().caches)
    expected_bytes += llama::kept_positions(cache, chain.head().input_cut.token_count).count *
                      cache.layers.size() * (cache.key_row_bytes + cache.value_row_bytes);
  KVPACK_TRY_ASSIGN(const RestorePlan plan, RestorePlan::create(chain, expected_bytes));
  return restore_cut(plan, source, {.keys = &keys, .parallelism = detail::kThreads});
}

inline std::vector<llama::CacheView> view_caches(const std::vector<Bytes>& planes,
                                                 const llama::StateLayout& layout) {
  std::vector<llama::CacheView> views;
  for (const llama::CacheLayout& cache : layout.caches) {
    llama::CacheView view;
    for (const std::uint32_t layer : cache.layers) {
      view.keys.emplace_back(planes[detail::plane_index(layer)]);
      view.values.emplace_back(planes[detail::plane_index(layer) + 1]);
    }
    views.push_back(std::move(view));
  }
  return views;
}

}  // namespace kvpack::demo
