/// Describes a representation family in the order that is natural to an engine. docs/format/family.md
#pragma once

#include "kvpack/core/family.h"

namespace kvpack {

/// Stands for the token axis in StateSpec::dimensions.
inline constexpr std::uint64_t kTokenAxis = 0;

/// One state as an engine knows it.
struct StateSpec {
  std::uint32_t layer = 0;
  std::string name;  ///< 1 to 255 bytes of UTF-8, e.g. `attention.k`.
  DType dtype = DType::kF16;
  std::vector<std::uint64_t>
      dimensions{};  ///< Outermost first, kTokenAxis once: {kTokenAxis, kv_heads, head_dim}.
  TokenAxisRule token_axis_rule = TokenAxisRule::kDirect;
  Codec codec = Codec::kRaw;
  Layout layout = Layout::kContiguous;
  std::vector<StateKey> dependencies{};
};

/// Identities that a family carries. All three come from the engine's adapter and none may be zero.
struct FamilyIdentity {
  Id32 engine_cache_abi;  ///< Changes whenever the meaning or order of cache bytes does.
  Id32 topology;
  Id32 shard_map;
  RepresentationMode mode = RepresentationMode::kNative;
  std::uint32_t page_size_tokens = kPrefixBlockTokens;
};

/// Sorts the states by key, computes what follows from their shapes, and validates the whole.
/// @error as validate_family
Result<IdentifiedFamily> build_family(const FamilyIdentity& identity, std::vector<StateSpec> states);

// ---------------------------------------------------------------------------------------------------------------

inline Result<IdentifiedFamily> build_family(const FamilyIdentity& identity, std::vector<StateSpec> states) {
  RepresentationFamily family{.engine_cache_abi = identity.engine_cache_abi,
                              .mode = identity.mode,
                              .page_size_tokens = identity.page_size_tokens,
                              .topology = identity.topology,
                              .shard_map = identity.shard_map};
  for (StateSpec& spec : states) {
    StaticState state{.key = {spec.layer, std::move(spec.name)},
                      .dtype = spec.dtype,
                      .codec = spec.codec,
                      .layout = spec.layout,
                      .token_axis_rule = spec.token_axis_rule,
                      .dimensions = std::move(spec.dimensions),
                      .dependencies = std::move(spec.dependencies)};
    const auto axis = std::ranges::find(state.dimensions, kTokenAxis);
    if (axis == state.dimensions.end() || state.dimensions.size() > kMaxRank)
      return in_state(fail(ErrorCode::kSemantics, "family token axis is outside its rank"), state.key);
    state.token_axis = static_cast<std::uint8_t>(axis - state.dimensions.begin());
    state.elements_per_token = 1;
    for (const std::uint64_t d : state.dimensions) {
      const auto product = checked_mul(state.elements_per_token, d == kTokenAxis ? 1 : d);
      if (!product)
        return in_state(fail(ErrorCode::kBounds, "family elements-per-token overflows u64"), state.key);
      state.elements_per_token = *product;
    }
    std::ranges::sort(state.dependencies);
    family.states.push_back(std::move(state));
  }
  std::ranges::sort(family.states, {}, &StaticState::key);
  KVPACK_TRY(validate_family(family));
  return IdentifiedFamily::create(std::move(family));
}

}  // namespace kvpack
