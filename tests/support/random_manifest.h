// Valid families and manifests of every shape the format allows, the same for the same seed everywhere.
#pragma once

#include <random>
#include <set>

#include "kvpack/core/manifest.h"

namespace kvpack::testing {

class ManifestGenerator {
 public:
  explicit ManifestGenerator(std::uint64_t seed) : engine_(seed) {}

  // Uniform enough for tests, and unlike the standard distributions the same on every library.
  std::uint64_t below(std::uint64_t n) { return engine_() % n; }
  std::uint64_t between(std::uint64_t low, std::uint64_t high) { return low + below(high - low + 1); }
  bool one_in(std::uint64_t n) { return below(n) == 0; }

  Id32 id() {
    Id32 id;
    for (std::uint8_t& b : id.bytes) b = static_cast<std::uint8_t>(below(256));
    id.bytes[0] |= 1;  // never zero
    return id;
  }
  Bytes bytes(std::size_t count) {
    Bytes out(count);
    for (std::uint8_t& b : out) b = static_cast<std::uint8_t>(engine_());
    return out;
  }

  RepresentationFamily family() {
    RepresentationFamily family;
    family.engine_cache_abi = id();
    family.mode = one_in(3) ? RepresentationMode::kPortable : RepresentationMode::kNative;
    family.page_size_tokens = static_cast<std::uint32_t>(between(1, 1024));
    family.topology = id();
    family.shard_map = id();
    for (const StateKey& key : keys()) family.states.push_back(state(key, family.mode));
    for (std::size_t i = 1; i < family.states.size(); ++i)
      for (std::size_t j = 0; j < i; ++j)
        if (one_in(4)) family.states[i].dependencies.push_back(family.states[j].key);
    return family;
  }

  CutManifest manifest() {
    CutManifest manifest;
    manifest.tenant = id();
    manifest.key_epoch = between(1, 1'000'000);
    manifest.semantic_model = {id(), id(), id(), id(), id()};
    manifest.family = family();
    const bool tail = std::ranges::any_of(manifest.family.states, [](const StaticState& s) {
      return s.token_axis_rule == TokenAxisRule::kTailWindow;
    });
    const bool delta = !tail && one_in(2);
    manifest.input_cut = {id(), id(), between(delta ? 2 : 1, 3000)};
    if (delta)
      manifest.schema.kind = {static_cast<std::uint8_t>(between(1, kMaxDeltaDepth)),
                              DeltaParent{id(),
                                          {id(), manifest.input_cut.auxiliary_input_root,
                                           between(1, manifest.input_cut.token_count - 1)}}};
    for (const StaticState& fixed : manifest.family.states) realize(manifest, fixed);
    group(manifest);
    return manifest;
  }

 private:
  std::set<StateKey> keys() {
    static const std::array<std::string, 6> kNames{
        "k", "v", "attention.k", "\xc3\xa9tat", std::string(255, 'n'), "kk"};
    std::set<StateKey> keys;
    for (std::uint64_t n = between(1, 6); n > 0; --n)
      keys.insert({static_cast<std::uint32_t>(below(3)), kNames[below(kNames.size())]});
    return keys;
  }

  StaticState state(const StateKey& key, RepresentationMode mode) {
    StaticState state;
    state.key = key;
    state.dtype = static_cast<DType>(between(1, 9));
    state.codec = static_cast<Codec>(between(1, 2));
    const std::uint64_t rank = between(1, 4);
    state.token_axis = static_cast<std::uint8_t>(below(rank));
    state.elements_per_token = 1;
    for (std::uint64_t i = 0; i < rank; ++i) {
      const std::uint64_t size = between(1, 9);
      state.dimensions.push_back(i == state.token_axis ? 0 : size);
      if (i != state.token_axis) state.elements_per_token *= size;
    }
    if (mode == RepresentationMode::kNative && one_in(2)) state.layout = Layout::kStrided;
    if (one_in(3))
      state.token_axis_rule = TokenAxisRule::kTailWindow;
    else if (state.layout == Layout::kStrided && one_in(2))
      state.token_axis_rule = TokenAxisRule::kGather;
    return state;
  }

  void realize(CutManifest& manifest, const StaticState& fixed) {
    const std::uint64_t cut = manifest.input_cut.token_count;
    const auto& parent = manifest.schema.kind.parent;
    const bool tail = fixed.token_axis_rule == TokenAxisRule::kTailWindow;
    RealizedState state;
    state.key = fixed.key;
    state.logical_count = tail ? between(1, cut) : cut - (parent ? parent->cut.token_count : 0);
    state.logical_start = cut - state.logical_count;
    state.absolute_position = cut;
    state.full_shape.dimensions = state.segment_shape.dimensions = fixed.dimensions;
    state.full_shape.dimensions[fixed.token_axis] = tail ? state.logical_count : cut;
    state.segment_shape.dimensions[fixed.token_axis] = state.logical_count;
    state.strides.resize(fixed.dimensions.size());
    std::uint64_t stride = 1;
    for (std::size_t i = state.strides.size(); i-- > 0;) {
      if (fixed.layout == Layout::kStrided) stride += below(3);
      state.strides[i] = stride;
      stride *= state.full_shape.dimensions[i];
    }
    const std::uint32_t width = dtype_width_bytes(fixed.dtype);
    state.physical_offset_bytes = tail ? 0 : state.logical_start * state.strides[fixed.token_axis] * width;
    state.physical_span_bytes = *physical_footprint_bytes(state.segment_shape, state.strides, width);
    state.complete_physical_bytes = *physical_footprint_bytes(state.full_shape, state.strides, width);
    manifest.schema.segment_restored_bytes += *shape_elements(state.segment_shape) * width;
    manifest.schema.complete_restored_bytes += *shape_elements(state.full_shape) * width;
    manifest.payload.push_back({fixed.key, {}});
    cut_into_chunks(state, fixed, manifest.payload.back());
    manifest.schema.states.push_back(std::move(state));
  }

  void cut_into_chunks(RealizedState& state, const StaticState& fixed, PayloadState& payload) {
    const std::uint64_t per_token = fixed.elements_per_token * dtype_width_bytes(fixed.dtype);
    const std::uint64_t most = std::min(state.logical_count, kMaxChunkPlaintextBytes / per_token);
    const std::uint64_t longest = one_in(2) ? most : between(1, most);
    std::uint64_t at = state.logical_start;
    for (std::uint64_t left = state.logical_count; left > 0;) {
      const std::uint64_t count = std::min(left, between((longest + 1) / 2, longest));
      const auto plaintext_bytes = static_cast<std::uint32_t>(count * per_token);
      state.chunk_spans.push_back({at, count, at * per_token, plaintext_bytes});
      payload.chunks.push_back({id(), id(), id(), between(1, 99), plaintext_bytes,
                                static_cast<std::uint32_t>(kAlignment * between(2, 1034))});
      at += count;
      left -= count;
    }
  }

  void group(CutManifest& manifest) {
    std::vector<std::vector<StateKey>> groups(between(1, 3));
    for (const StaticState& state : manifest.family.states) groups[below(groups.size())].push_back(state.key);
    std::uint32_t group_id = 0;
    for (auto& members : groups) {
      group_id += static_cast<std::uint32_t>(between(1, 50));
      if (!members.empty()) manifest.schema.groups.push_back({group_id, std::move(members)});
    }
  }

  std::mt19937_64 engine_;
};

}  // namespace kvpack::testing
