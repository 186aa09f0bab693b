// Inputs whose planes follow from their tokens, to be saved into a store and read back. Inputs of one seed
// are prefixes of each other, bytes and all.
#pragma once

#include <gtest/gtest.h>

#include <numeric>

#include "kvpack/core/cut_restore.h"
#include "kvpack/core/family_builder.h"
#include "kvpack/store/save.h"
#include "store/store_objects.h"
#include "support/store_checks.h"

namespace kvpack::testing {

inline SemanticModelId save_model() {
  return {Id32::filled(10), Id32::filled(11), Id32::filled(12), Id32::filled(13), Id32::filled(14)};
}

inline IdentifiedFamily save_family(std::vector<StateSpec> states) {
  return *build_family(
      {.engine_cache_abi = Id32::filled(2), .topology = Id32::filled(3), .shard_map = Id32::filled(4)},
      std::move(states));
}

// States k and v of 8 bytes per token.
inline IdentifiedFamily small_family() {
  return save_family({{.layer = 0, .name = "k", .dimensions = {kTokenAxis, 2, 2}},
                      {.layer = 0, .name = "v", .dimensions = {kTokenAxis, 2, 2}}});
}

// A plane of a state that holds tokens [start, start + count), row-major.
inline Bytes seeded_plane(const StaticState& state, std::size_t index, std::uint64_t start,
                          std::uint64_t count, std::uint64_t seed) {
  const PlaneLayout layout = *PlaneLayout::row_major(state, count);
  const auto per_token = static_cast<std::size_t>(layout.bytes_per_token());
  Bytes wire(static_cast<std::size_t>(count) * per_token);
  for (std::uint64_t token = 0; token < count; ++token) {
    std::uint64_t x = (seed * 1'000'003 + index) * 1'000'003 + start + token;
    for (std::size_t i = 0; i < per_token; ++i) {
      if (i % 8 == 0) {
        x += 0x9e3779b97f4a7c15u;
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
        x ^= x >> 27;
      }
      wire[static_cast<std::size_t>(token) * per_token + i] = static_cast<std::uint8_t>(x >> (8 * (i % 8)));
    }
  }
  if (layout.is_wire_order()) return wire;
  Bytes plane(wire.size());
  layout.scatter(wire, 0, plane);
  return plane;
}

class SavableInput {
 public:
  // Tail-window states hold the last `window` tokens.
  SavableInput(IdentifiedFamily family, std::size_t token_count, std::uint64_t seed = 1,
               std::uint64_t window = 100)
      : family_(std::move(family)), seed_(seed), tokens_(token_count) {
    std::iota(tokens_.begin(), tokens_.end(), static_cast<std::uint32_t>(1'000'000 * seed));
    for (const StaticState& state : family_.family().states) {
      const bool tail = state.token_axis_rule == TokenAxisRule::kTailWindow;
      states_.push_back({.key = state.key});
      states_.back().token_start = tail ? token_count - std::min<std::uint64_t>(window, token_count) : 0;
    }
    make_planes();
  }

  // What a delta on a cut of `parent_tokens` tokens needs of the planes.
  SavableInput& only_from(std::uint64_t parent_tokens) {
    for (SaveState& state : states_) state.token_start = parent_tokens;
    make_planes();
    return *this;
  }

  // Valid while the input lives and is not moved.
  SaveRequest request(SaveKind kind = SaveKind::kSingleCut) const {
    SaveRequest request;
    request.kind = kind;
    request.family = &family_;
    request.semantic_model = save_model();
    request.tokens = tokens_;
    request.states = states_;
    return request;
  }
  std::vector<ByteSpan> planes() const { return {planes_.begin(), planes_.end()}; }
  std::vector<Bytes>& plane_bytes() { return planes_; }
  std::vector<SaveState>& states() { return states_; }
  const IdentifiedFamily& family() const { return family_; }
  const std::vector<std::uint32_t>& tokens() const { return tokens_; }

  // A state's tokens in wire order.
  Bytes wire(std::size_t state) const {
    const StaticState& fixed = family_.family().states[state];
    const PlaneLayout layout = *PlaneLayout::row_major(fixed, tokens_.size() - states_[state].token_start);
    Bytes out(planes_[state].size());
    layout.gather(planes_[state], 0, out);
    return out;
  }

  // The planes of the cut of the first `token_count` tokens.
  std::vector<Bytes> expected(std::uint64_t token_count, std::uint64_t window = 100) const {
    std::vector<Bytes> planes;
    for (std::size_t i = 0; i < states_.size(); ++i) {
      const StaticState& state = family_.family().states[i];
      const bool tail = state.token_axis_rule == TokenAxisRule::kTailWindow;
      const std::uint64_t start = tail ? token_count - std::min(window, token_count) : 0;
      planes.push_back(seeded_plane(state, i, start, token_count - start, seed_));
    }
    return planes;
  }

 private:
  void make_planes() {
    planes_.clear();
    for (std::size_t i = 0; i < states_.size(); ++i)
      planes_.push_back(seeded_plane(family_.family().states[i], i, states_[i].token_start,
                                     tokens_.size() - states_[i].token_start, seed_));
  }

  IdentifiedFamily family_;
  std::uint64_t seed_;
  std::vector<std::uint32_t> tokens_;
  std::vector<SaveState> states_;
  std::vector<Bytes> planes_;
};

// A key of the caller's own.
inline Id32 save_key(std::uint8_t n) {
  return Id32::filled(static_cast<std::uint8_t>(0x80 + n));
}

inline SaveResult expect_saved(Store& store, const SaveRequest& request, std::span<const ByteSpan> planes) {
  auto saved = save(store, request, planes);
  EXPECT_TRUE(saved.has_value()) << saved.error().verdict();
  return saved.has_value() ? *std::move(saved) : SaveResult{.cuts = {PublishedCut{}}};
}
inline SaveResult expect_saved(Store& store, const SavableInput& input,
                               SaveKind kind = SaveKind::kSingleCut) {
  return expect_saved(store, input.request(kind), input.planes());
}

// A stored cut, authenticated and restored by the core alone.
inline Result<std::vector<Bytes>> restored_planes(Store& store, const Id32& manifest_id,
                                                  unsigned parallelism = 1) {
  KVPACK_TRY_ASSIGN(const ManifestChain chain, store::authenticate_chain(store.context(), manifest_id));
  KVPACK_TRY_ASSIGN(const RestorePlan plan, RestorePlan::create(chain));
  store::StoreObjects objects(store.context().files);
  return restore_cut(plan, objects, {.keys = &store.keys(), .parallelism = parallelism});
}

// The cut is there, and is that of the input's first tokens.
inline void expect_restores(Store& store, const SavableInput& input, const PublishedCut& cut) {
  const auto planes = restored_planes(store, cut.manifest_id);
  ASSERT_TRUE(planes.has_value()) << planes.error().verdict();
  EXPECT_TRUE(*planes == input.expected(cut.cut.token_count)) << cut.cut.token_count << " tokens";
}

template <class T>
std::string verdict_of(const Result<T>& result) {
  return result.has_value() ? "success" : result.error().verdict();
}

}  // namespace kvpack::testing
