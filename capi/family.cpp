// Families: described state by state, or decoded from their canonical object.
#include "handles.h"
#include "kvpack/core/family_builder.h"

namespace kvpack::capi {

namespace {

constexpr std::uint64_t kFamilyOptionsV0 = KVPACK_SIZE_UP_TO(kvpack_family_options, page_size_tokens);
constexpr std::uint64_t kStateInfoV0 = KVPACK_SIZE_UP_TO(kvpack_state_info, dependency_count);

/// An enum member of an options struct; 0 is the first value.
template <WireEnum E>
Result<E> read_wire_enum(std::uint32_t value) {
  return enum_from_wire<E>(value == 0 ? 1 : value);
}

Result<FamilyIdentity> read_family_options(const kvpack_family_options& options) {
  FamilyIdentity identity{.engine_cache_abi = to_id(options.engine_cache_abi),
                          .topology = to_id(options.topology),
                          .shard_map = to_id(options.shard_map)};
  KVPACK_TRY_ASSIGN(identity.mode, read_wire_enum<RepresentationMode>(options.mode));
  if (options.page_size_tokens != 0) identity.page_size_tokens = options.page_size_tokens;
  return identity;
}

kvpack_state_info describe_state(const StaticState& state) noexcept {
  kvpack_state_info info{};
  info.name = state.key.name.c_str();
  info.name_size = state.key.name.size();
  info.layer = state.key.layer;
  info.dtype = static_cast<std::uint32_t>(state.dtype);
  info.dtype_bytes = dtype_width_bytes(state.dtype);
  info.codec = static_cast<std::uint32_t>(state.codec);
  info.layout = static_cast<std::uint32_t>(state.layout);
  info.token_axis_rule = static_cast<std::uint32_t>(state.token_axis_rule);
  info.token_axis = state.token_axis;
  info.rank = static_cast<std::uint32_t>(std::min<std::size_t>(state.dimensions.size(), kMaxRank));
  std::copy_n(state.dimensions.begin(), info.rank, std::begin(info.dimensions));
  info.elements_per_token = state.elements_per_token;
  info.dependency_count = state.dependencies.size();
  return info;
}

Result<const StaticState*> state_at(const kvpack_family* family, std::uint64_t index) {
  KVPACK_TRY(check_handle(family, "family"));
  const auto& states = family->family->family().states;
  if (index >= states.size()) return bad_argument("state_index", "is outside the family");
  return &states[static_cast<std::size_t>(index)];
}

}  // namespace

Result<StateSpec> read_state_options(const kvpack_state_options& options) {
  KVPACK_TRY(check_reserved(options.reserved));
  StateSpec spec;
  spec.layer = options.layer;
  KVPACK_TRY_ASSIGN(const auto name, read_text(options.name, options.name_size, "name"));
  if (name.size() > kMaxStateNameBytes || !is_utf8(name))
    return bad_argument("name", "must be at most 255 bytes of UTF-8");
  spec.name = name;
  KVPACK_TRY_ASSIGN(spec.dtype, enum_from_wire<DType>(options.dtype));
  KVPACK_TRY_ASSIGN(const auto dimensions,
                    read_array(options.dimensions, options.dimension_count, "dimensions"));
  if (dimensions.empty() || dimensions.size() > kMaxRank)
    return bad_argument("dimension_count", "must be 1 to 8");
  spec.dimensions.assign(dimensions.begin(), dimensions.end());
  KVPACK_TRY_ASSIGN(spec.token_axis_rule, read_wire_enum<TokenAxisRule>(options.token_axis_rule));
  KVPACK_TRY_ASSIGN(spec.codec, read_wire_enum<Codec>(options.codec));
  KVPACK_TRY_ASSIGN(spec.layout, read_wire_enum<Layout>(options.layout));
  KVPACK_TRY_ASSIGN(const auto dependencies,
                    read_array(options.dependencies, options.dependency_count, "dependencies"));
  if (dependencies.size() > kMaxDependenciesPerState)
    return bad_argument("dependency_count", "must be at most 64");
  for (const kvpack_state_key& dependency : dependencies) {
    KVPACK_TRY_ASSIGN(StateKey key, read_state_key_argument(&dependency, "dependencies"));
    spec.dependencies.push_back(std::move(key));
  }
  return spec;
}

Result<StateKey> read_state_key_argument(const kvpack_state_key* key, std::string_view name) {
  KVPACK_TRY(check_pointer(key, name));
  KVPACK_TRY(check_reserved(key->reserved));
  KVPACK_TRY_ASSIGN(const auto text, read_text(key->name, key->name_size, name));
  return StateKey{key->layer, std::string(text)};
}

kvpack_state_key from_state_key(const StateKey& key) noexcept {
  return {key.name.c_str(), key.name.size(), key.layer, 0};
}

}  // namespace kvpack::capi

using namespace kvpack;        // NOLINT(google-build-using-namespace)
using namespace kvpack::capi;  // NOLINT(google-build-using-namespace)

struct kvpack_family_builder final : Handle<handle_tag("KVfambld")> {
  explicit kvpack_family_builder(const FamilyIdentity& given) : identity(given) {}
  FamilyIdentity identity;
  std::vector<StateSpec> states{};
};

kvpack_status kvpack_family_builder_new(kvpack_family_builder** out, const kvpack_family_options* options,
                                        kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_pointer(out, "out"));
    KVPACK_TRY_ASSIGN(const auto known, read_options(options, kFamilyOptionsV0, "options"));
    KVPACK_TRY_ASSIGN(const FamilyIdentity identity, read_family_options(known));
    *out = new kvpack_family_builder(identity);
    return success();
  });
}

kvpack_status kvpack_family_builder_add_state(kvpack_family_builder* builder,
                                              const kvpack_state_options* options, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(builder, "builder"));
    KVPACK_TRY_ASSIGN(const auto known, read_options(options, kStateOptionsV0, "options"));
    KVPACK_TRY_ASSIGN(StateSpec spec, read_state_options(known));
    if (builder->states.size() == kMaxStates)
      return fail(ErrorCode::kBounds, "family state count is outside bounds");
    builder->states.push_back(std::move(spec));
    return success();
  });
}

kvpack_status kvpack_family_builder_build(const kvpack_family_builder* builder, kvpack_family** out,
                                          kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(builder, "builder"));
    KVPACK_TRY(check_pointer(out, "out"));
    KVPACK_TRY_ASSIGN(IdentifiedFamily family, build_family(builder->identity, builder->states));
    *out = new kvpack_family(std::make_shared<const IdentifiedFamily>(std::move(family)));
    return success();
  });
}

void kvpack_family_builder_free(kvpack_family_builder* builder) {
  free_handle(builder);
}

kvpack_status kvpack_family_decode(kvpack_family** out, const void* object, uint64_t object_size,
                                   kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_pointer(out, "out"));
    KVPACK_TRY_ASSIGN(const ByteSpan bytes, read_bytes(object, object_size, "object"));
    KVPACK_TRY_ASSIGN(RepresentationFamily family, decode_family(bytes));
    KVPACK_TRY_ASSIGN(IdentifiedFamily identified, IdentifiedFamily::create(std::move(family)));
    *out = new kvpack_family(std::make_shared<const IdentifiedFamily>(std::move(identified)));
    return success();
  });
}

kvpack_status kvpack_family_validate(const kvpack_family* family, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(family, "family"));
    return validate_family(family->family->family());
  });
}

kvpack_status kvpack_family_encode(const kvpack_family* family, kvpack_bytes** out, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(family, "family"));
    KVPACK_TRY(check_pointer(out, "out"));
    KVPACK_TRY_ASSIGN(Bytes object, encode_family(family->family->family()));
    *out = new kvpack_bytes(std::move(object));
    return success();
  });
}

const kvpack_id* kvpack_family_id(const kvpack_family* family) {
  return is_live(family) ? &family->id : nullptr;
}

uint64_t kvpack_family_state_count(const kvpack_family* family) {
  return is_live(family) ? family->family->family().states.size() : 0;
}

kvpack_status kvpack_family_state(const kvpack_family* family, kvpack_state_info* out, uint64_t state_index,
                                  kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY_ASSIGN(const StaticState* const state, state_at(family, state_index));
    KVPACK_TRY_ASSIGN(const auto output, OutputStruct<kvpack_state_info>::check(out, kStateInfoV0, "out"));
    output.fill(describe_state(*state));
    return success();
  });
}

kvpack_status kvpack_family_dependency(const kvpack_family* family, kvpack_state_key* out,
                                       uint64_t state_index, uint64_t index, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY_ASSIGN(const StaticState* const state, state_at(family, state_index));
    KVPACK_TRY(check_pointer(out, "out"));
    if (index >= state->dependencies.size()) return bad_argument("index", "is outside the dependencies");
    *out = from_state_key(state->dependencies[static_cast<std::size_t>(index)]);
    return success();
  });
}

kvpack_status kvpack_family_find_state(const kvpack_family* family, uint64_t* state_index,
                                       const kvpack_state_key* key, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(family, "family"));
    KVPACK_TRY(check_pointer(state_index, "state_index"));
    KVPACK_TRY_ASSIGN(const StateKey wanted, read_state_key_argument(key, "key"));
    const RepresentationFamily& known = family->family->family();
    const StaticState* found = find_state(known, wanted);
    if (found == nullptr) {  // A family that has not been validated may be out of order.
      const auto any = std::ranges::find(known.states, wanted, &StaticState::key);
      if (any == known.states.end())
        return in_state(fail(ErrorCode::kNotFound, "the family has no such state"), wanted);
      found = &*any;
    }
    *state_index = static_cast<std::uint64_t>(found - known.states.data());
    return success();
  });
}

void kvpack_family_free(kvpack_family* family) {
  free_handle(family);
}
