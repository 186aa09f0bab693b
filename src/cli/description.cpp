#include "cli/description.h"

#include <numeric>

#include "cli/npy.h"
#include "cli/outcome.h"
#include "kvpack/core/plane.h"

namespace kvpack::cli {

namespace {

constexpr std::uint64_t kMaxTokensFileBytes = std::uint64_t{1} << 30;

Result<Id32> read_id(const JsonFields& fields, std::string_view key) {
  KVPACK_TRY_ASSIGN(const std::string text, fields.text(key));
  const auto id = Id32::from_hex(text);
  if (!id) return json_field_error(fields.path(key), "must be 64 lower-case hex digits");
  return *id;
}

template <WireEnum E>
Result<E> read_enum(const JsonFields& fields, std::string_view key, E fallback) {
  if (fields.optional(key) == nullptr) return fallback;
  KVPACK_TRY_ASSIGN(const std::size_t index, fields.choice(key, EnumTraits<E>::kNames));
  return static_cast<E>(index + 1);
}

Result<std::vector<std::uint64_t>> read_numbers(const JsonFields& fields, std::string_view key) {
  std::vector<std::uint64_t> numbers;
  if (fields.optional(key) == nullptr) return numbers;
  KVPACK_TRY_ASSIGN(const JsonArray* items, fields.array(key));
  const JsonPath path = fields.path(key);
  for (std::size_t i = 0; i < items->size(); ++i) {
    KVPACK_TRY_ASSIGN(const auto number, json_unsigned<std::uint64_t>((*items)[i], JsonPath(path, i)));
    numbers.push_back(number);
  }
  return numbers;
}

Result<std::vector<StateKey>> read_state_keys(const JsonFields& fields, std::string_view key) {
  static constexpr std::string_view kKeys[]{"layer", "name"};
  std::vector<StateKey> keys;
  if (fields.optional(key) == nullptr) return keys;
  KVPACK_TRY_ASSIGN(const JsonArray* items, fields.array(key));
  const JsonPath path = fields.path(key);
  for (std::size_t i = 0; i < items->size(); ++i) {
    const JsonPath item_path(path, i);
    KVPACK_TRY_ASSIGN(const JsonFields item,
                      JsonFields::open((*items)[i], kKeys, UnknownKeys::kRefuse, item_path));
    StateKey state;
    KVPACK_TRY_ASSIGN(state.layer, item.number<std::uint32_t>("layer"));
    KVPACK_TRY_ASSIGN(state.name, item.text("name"));
    keys.push_back(std::move(state));
  }
  return keys;
}

struct StateEntry {
  StateSpec spec;
  DescribedPlane plane;
  std::size_t sort_place = 0;
};

Result<StateEntry> read_state(const JsonValue& value, const JsonPath& path) {
  static constexpr std::string_view kKeys[]{"layer",           "name",         "dtype",         "shape",
                                            "token_axis",      "token_start",  "codec",         "layout",
                                            "token_axis_rule", "dependencies", "sidecar_sinks", "file",
                                            "format",          "byte_strides", "chunk_tokens"};
  static constexpr std::string_view kFormats[]{"raw", "npy"};
  KVPACK_TRY_ASSIGN(const JsonFields fields, JsonFields::open(value, kKeys, UnknownKeys::kRefuse, path));
  StateEntry entry;
  KVPACK_TRY_ASSIGN(entry.spec.layer, fields.number<std::uint32_t>("layer"));
  KVPACK_TRY_ASSIGN(entry.spec.name, fields.text("name"));
  KVPACK_TRY_ASSIGN(const std::size_t dtype, fields.choice("dtype", EnumTraits<DType>::kNames));
  entry.spec.dtype = static_cast<DType>(dtype + 1);
  KVPACK_TRY_ASSIGN(entry.spec.codec, read_enum(fields, "codec", Codec::kRaw));
  KVPACK_TRY_ASSIGN(entry.spec.layout, read_enum(fields, "layout", Layout::kContiguous));
  KVPACK_TRY_ASSIGN(entry.spec.token_axis_rule, read_enum(fields, "token_axis_rule", TokenAxisRule::kDirect));
  KVPACK_TRY_ASSIGN(entry.spec.dependencies, read_state_keys(fields, "dependencies"));
  KVPACK_TRY(fields.required("shape"));
  KVPACK_TRY_ASSIGN(entry.spec.dimensions, read_numbers(fields, "shape"));
  KVPACK_TRY_ASSIGN(const auto axis, fields.optional_number<std::uint32_t>("token_axis"));
  if (axis.value_or(0) >= entry.spec.dimensions.size())
    return json_field_error(fields.path("token_axis"), "must name a dimension of the shape");
  for (const std::uint64_t d : entry.spec.dimensions)
    if (d == 0) return json_field_error(fields.path("shape"), "must have no zero dimension");
  entry.plane.token_count = std::exchange(entry.spec.dimensions[axis.value_or(0)], kTokenAxis);
  KVPACK_TRY_ASSIGN(entry.plane.file, fields.text("file"));
  if (fields.optional("format") != nullptr) {
    KVPACK_TRY_ASSIGN(const std::size_t format, fields.choice("format", kFormats));
    entry.plane.npy = format == 1;
  }
  KVPACK_TRY_ASSIGN(const auto token_start, fields.optional_number<std::uint64_t>("token_start"));
  entry.plane.token_start = token_start.value_or(0);
  KVPACK_TRY_ASSIGN(entry.plane.byte_strides, read_numbers(fields, "byte_strides"));
  KVPACK_TRY_ASSIGN(entry.plane.chunk_tokens, read_numbers(fields, "chunk_tokens"));
  KVPACK_TRY_ASSIGN(const auto sinks, fields.optional_number<std::uint16_t>("sidecar_sinks"));
  entry.plane.sidecar_sinks = sinks.value_or(0);
  return entry;
}

/// Family and planes, the planes brought into family order.
Status read_states(const JsonFields& top, const FamilyIdentity& identity,
                   std::optional<IdentifiedFamily>& family, std::vector<DescribedPlane>& planes) {
  KVPACK_TRY_ASSIGN(const JsonArray* items, top.array("states"));
  const JsonPath path = top.path("states");
  std::vector<StateEntry> entries;
  for (std::size_t i = 0; i < items->size(); ++i) {
    KVPACK_TRY_ASSIGN(StateEntry entry, read_state((*items)[i], JsonPath(path, i)));
    entries.push_back(std::move(entry));
  }
  std::ranges::sort(entries, [](const StateEntry& a, const StateEntry& b) {
    return StateKey{a.spec.layer, a.spec.name} < StateKey{b.spec.layer, b.spec.name};
  });
  std::vector<StateSpec> specs;
  for (StateEntry& entry : entries) {
    specs.push_back(std::move(entry.spec));
    planes.push_back(std::move(entry.plane));
  }
  KVPACK_TRY_ASSIGN(IdentifiedFamily built, build_family(identity, std::move(specs)));
  family = std::move(built);
  return success();
}

Result<FamilyIdentity> read_family_identity(const JsonFields& top) {
  static constexpr std::string_view kKeys[]{"engine_cache_abi", "topology", "shard_map", "mode",
                                            "page_size_tokens"};
  KVPACK_TRY_ASSIGN(const JsonValue* value, top.required("family"));
  const JsonPath path = top.path("family");
  KVPACK_TRY_ASSIGN(const JsonFields fields, JsonFields::open(*value, kKeys, UnknownKeys::kRefuse, path));
  FamilyIdentity identity;
  KVPACK_TRY_ASSIGN(identity.engine_cache_abi, read_id(fields, "engine_cache_abi"));
  KVPACK_TRY_ASSIGN(identity.topology, read_id(fields, "topology"));
  KVPACK_TRY_ASSIGN(identity.shard_map, read_id(fields, "shard_map"));
  KVPACK_TRY_ASSIGN(identity.mode, read_enum(fields, "mode", RepresentationMode::kNative));
  KVPACK_TRY_ASSIGN(const auto page, fields.optional_number<std::uint32_t>("page_size_tokens"));
  identity.page_size_tokens = page.value_or(kPrefixBlockTokens);
  return identity;
}

Result<SemanticModelId> read_model(const JsonFields& top) {
  static constexpr std::string_view kKeys[]{"weights_config", "adapters", "tokenizer_template",
                                            "position_semantics", "qualified_math"};
  KVPACK_TRY_ASSIGN(const JsonValue* value, top.required("model"));
  const JsonPath path = top.path("model");
  KVPACK_TRY_ASSIGN(const JsonFields fields, JsonFields::open(*value, kKeys, UnknownKeys::kRefuse, path));
  SemanticModelId model;
  KVPACK_TRY_ASSIGN(model.weights_config, read_id(fields, "weights_config"));
  KVPACK_TRY_ASSIGN(model.adapters, read_id(fields, "adapters"));
  KVPACK_TRY_ASSIGN(model.tokenizer_template, read_id(fields, "tokenizer_template"));
  KVPACK_TRY_ASSIGN(model.position_semantics, read_id(fields, "position_semantics"));
  KVPACK_TRY_ASSIGN(model.qualified_math, read_id(fields, "qualified_math"));
  return model;
}

Result<std::vector<AuxiliaryInputId>> read_auxiliary(const JsonFields& top) {
  static constexpr std::string_view kKeys[]{"type_id", "value_id"};
  std::vector<AuxiliaryInputId> auxiliary;
  if (top.optional("auxiliary") == nullptr) return auxiliary;
  KVPACK_TRY_ASSIGN(const JsonArray* items, top.array("auxiliary"));
  const JsonPath path = top.path("auxiliary");
  for (std::size_t i = 0; i < items->size(); ++i) {
    const JsonPath item_path(path, i);
    KVPACK_TRY_ASSIGN(const JsonFields item,
                      JsonFields::open((*items)[i], kKeys, UnknownKeys::kRefuse, item_path));
    AuxiliaryInputId id;
    KVPACK_TRY_ASSIGN(id.type_id, read_id(item, "type_id"));
    KVPACK_TRY_ASSIGN(id.value_id, read_id(item, "value_id"));
    auxiliary.push_back(id);
  }
  return auxiliary;
}

Result<std::optional<InputCutId>> read_known_cut(const JsonFields& top) {
  static constexpr std::string_view kKeys[]{"token_root", "auxiliary_root", "token_count"};
  const JsonValue* value = top.optional("input_cut");
  if (value == nullptr) return std::optional<InputCutId>();
  const JsonPath path = top.path("input_cut");
  KVPACK_TRY_ASSIGN(const JsonFields fields, JsonFields::open(*value, kKeys, UnknownKeys::kRefuse, path));
  InputCutId cut;
  KVPACK_TRY_ASSIGN(cut.token_root, read_id(fields, "token_root"));
  KVPACK_TRY_ASSIGN(cut.auxiliary_input_root, read_id(fields, "auxiliary_root"));
  KVPACK_TRY_ASSIGN(cut.token_count, fields.number<std::uint64_t>("token_count"));
  return std::optional<InputCutId>(cut);
}

Result<SpanPolicy> read_span_policy(const JsonFields& top) {
  static constexpr std::string_view kKeys[]{"rule", "grain_tokens", "window_grain_tokens"};
  static constexpr std::string_view kRules[]{"aligned", "upstream"};
  SpanPolicy policy;
  const JsonValue* value = top.optional("spans");
  if (value == nullptr) return policy;
  const JsonPath path = top.path("spans");
  KVPACK_TRY_ASSIGN(const JsonFields fields, JsonFields::open(*value, kKeys, UnknownKeys::kRefuse, path));
  KVPACK_TRY_ASSIGN(const std::size_t rule, fields.choice("rule", kRules));
  policy.rule = rule == 0 ? SpanPolicy::Rule::kAligned : SpanPolicy::Rule::kUpstream;
  KVPACK_TRY_ASSIGN(const auto grain, fields.optional_number<std::uint32_t>("grain_tokens"));
  KVPACK_TRY_ASSIGN(const auto window_grain, fields.optional_number<std::uint32_t>("window_grain_tokens"));
  policy.grain_tokens = grain.value_or(policy.grain_tokens);
  policy.window_grain_tokens = window_grain.value_or(policy.window_grain_tokens);
  return policy;
}

Result<std::vector<AtomicGroup>> read_groups(const JsonFields& top) {
  static constexpr std::string_view kKeys[]{"id", "states"};
  std::vector<AtomicGroup> groups;
  if (top.optional("groups") == nullptr) return groups;
  KVPACK_TRY_ASSIGN(const JsonArray* items, top.array("groups"));
  const JsonPath path = top.path("groups");
  for (std::size_t i = 0; i < items->size(); ++i) {
    const JsonPath item_path(path, i);
    KVPACK_TRY_ASSIGN(const JsonFields item,
                      JsonFields::open((*items)[i], kKeys, UnknownKeys::kRefuse, item_path));
    AtomicGroup group;
    KVPACK_TRY_ASSIGN(group.id, item.number<std::uint32_t>("id"));
    KVPACK_TRY_ASSIGN(group.states, read_state_keys(item, "states"));
    groups.push_back(std::move(group));
  }
  return groups;
}

JsonValue key_json(const StateKey& key) {
  JsonValue value = JsonValue::object();
  value.set("layer", key.layer);
  value.set("name", key.name);
  return value;
}

JsonValue keys_json(const std::vector<StateKey>& keys) {
  JsonValue array = JsonValue::array();
  for (const StateKey& key : keys) array.push(key_json(key));
  return array;
}

JsonValue state_json(const StaticState& fixed, const RealizedState& realized,
                     const std::vector<std::uint64_t>& chunk_tokens, const std::string& file) {
  JsonValue state = key_json(fixed.key);
  state.set("dtype", enum_name(fixed.dtype));
  state.set("codec", enum_name(fixed.codec));
  state.set("layout", enum_name(fixed.layout));
  state.set("token_axis_rule", enum_name(fixed.token_axis_rule));
  state.set("token_axis", fixed.token_axis);
  state.set("shape", numbers_json(realized.full_shape.dimensions));
  state.set("dependencies", keys_json(fixed.dependencies));
  state.set("file", file);
  state.set("chunk_tokens", numbers_json(chunk_tokens));
  if (fixed.token_axis_rule == TokenAxisRule::kTailWindow) state.set("token_start", realized.logical_start);
  if (fixed.layout == Layout::kStrided) {
    std::vector<std::uint64_t> byte_strides = realized.strides;
    for (std::uint64_t& stride : byte_strides) stride *= dtype_width_bytes(fixed.dtype);
    state.set("byte_strides", numbers_json(byte_strides));
  }
  return state;
}

Result<Bytes> read_beside(FileSystem& fs, const std::string& folder, const std::string& name,
                          std::uint64_t max_bytes) {
  const std::string path = name.starts_with('/') ? name : join_path(folder, name);
  auto bytes = read_file_bounded(fs, path, max_bytes);
  if (!bytes.has_value()) return as_named_file(std::move(bytes.error()));
  return bytes;
}

/// A .npy header that is longer than this is none that NumPy writes.
constexpr std::uint64_t kMaxNpyHeaderBytes = 65'536 + 12;

Result<PlaneView> load_plane(FileSystem& fs, const StaticState& state, const DescribedPlane& plane,
                             const std::string& folder, Bytes& file) {
  if (plane.npy && !plane.byte_strides.empty())
    return usage_error("a .npy plane is row-major and takes no byte_strides");
  KVPACK_TRY_ASSIGN(const PlaneLayout layout,
                    plane.byte_strides.empty()
                        ? PlaneLayout::row_major(state, plane.token_count)
                        : PlaneLayout::strided(state, plane.token_count, plane.byte_strides));
  const auto wrong_size = [&](const std::string& found) {
    return fail(ErrorCode::kState, "plane file does not have the size of its shape")
        .with("found", found)
        .with("expected", std::to_string(layout.footprint_bytes()));
  };
  const auto max = checked_add(layout.footprint_bytes(), plane.npy ? kMaxNpyHeaderBytes : 0);
  auto bytes = read_beside(fs, folder, plane.file, max.value_or(layout.footprint_bytes()));
  if (!bytes.has_value() && bytes.error().code == ErrorCode::kLimit) return wrong_size("more");
  if (!bytes.has_value()) return std::move(bytes.error());
  file = *std::move(bytes);
  PlaneView view;
  view.token_start = plane.token_start;
  view.token_count = plane.token_count;
  view.byte_strides = plane.byte_strides;
  std::size_t offset = 0;
  if (plane.npy) {
    KVPACK_TRY_ASSIGN(const NpyHeader header, parse_npy(file, state.dtype));
    if (header.shape != detail::shape_with_tokens(state, plane.token_count).dimensions)
      return fail(ErrorCode::kState, "shape of the .npy plane is not that of the description");
    offset = header.data_offset;
  }
  if (file.size() - offset != layout.footprint_bytes())
    return wrong_size(std::to_string(file.size() - offset));
  view.bytes = ByteSpan(file).subspan(offset);
  return view;
}

}  // namespace

Result<Description> parse_description(ByteSpan json) {
  static constexpr std::string_view kKeys[]{"schema",    "family", "model",  "auxiliary", "tokens",
                                            "input_cut", "spans",  "groups", "states"};
  KVPACK_TRY_ASSIGN(const JsonValue value, parse_json(json, 256U << 20));
  const JsonPath root;
  KVPACK_TRY_ASSIGN(const JsonFields top, JsonFields::open(value, kKeys, UnknownKeys::kRefuse, root));
  KVPACK_TRY_ASSIGN(const std::string schema, top.text("schema"));
  if (schema != kDescriptionSchema)
    return json_field_error(top.path("schema"), "must be \"" + std::string(kDescriptionSchema) + "\"");
  KVPACK_TRY_ASSIGN(const FamilyIdentity identity, read_family_identity(top));
  std::optional<IdentifiedFamily> family;
  std::vector<DescribedPlane> planes;
  KVPACK_TRY(read_states(top, identity, family, planes));
  Description description{.family = *std::move(family), .semantic_model = {}, .planes = std::move(planes)};
  KVPACK_TRY_ASSIGN(description.semantic_model, read_model(top));
  KVPACK_TRY_ASSIGN(description.auxiliary, read_auxiliary(top));
  KVPACK_TRY_ASSIGN(const auto tokens, top.optional_text("tokens"));
  KVPACK_TRY_ASSIGN(description.known_cut, read_known_cut(top));
  if (tokens.has_value() == description.known_cut.has_value())
    return fail(ErrorCode::kJson, "exactly one of `tokens` and `input_cut` is needed");
  if (description.known_cut && !description.auxiliary.empty())
    return fail(ErrorCode::kJson,
                "`auxiliary` goes with `tokens`: `input_cut` names the auxiliary root itself");
  description.tokens_file = tokens.value_or("");
  KVPACK_TRY_ASSIGN(description.spans, read_span_policy(top));
  KVPACK_TRY_ASSIGN(description.groups, read_groups(top));
  return description;
}

JsonValue describe_cut(const CutManifest& head, const std::vector<std::vector<std::uint64_t>>& chunk_tokens,
                       const std::vector<std::string>& plane_files) {
  JsonValue family = JsonValue::object();
  family.set("engine_cache_abi", head.family.engine_cache_abi.hex());
  family.set("topology", head.family.topology.hex());
  family.set("shard_map", head.family.shard_map.hex());
  family.set("mode", enum_name(head.family.mode));
  family.set("page_size_tokens", head.family.page_size_tokens);
  JsonValue model = JsonValue::object();
  model.set("weights_config", head.semantic_model.weights_config.hex());
  model.set("adapters", head.semantic_model.adapters.hex());
  model.set("tokenizer_template", head.semantic_model.tokenizer_template.hex());
  model.set("position_semantics", head.semantic_model.position_semantics.hex());
  model.set("qualified_math", head.semantic_model.qualified_math.hex());
  JsonValue cut = JsonValue::object();
  cut.set("token_root", head.input_cut.token_root.hex());
  cut.set("auxiliary_root", head.input_cut.auxiliary_input_root.hex());
  cut.set("token_count", head.input_cut.token_count);
  JsonValue groups = JsonValue::array();
  for (const AtomicGroup& group : head.schema.groups) {
    JsonValue item = JsonValue::object();
    item.set("id", group.id);
    item.set("states", keys_json(group.states));
    groups.push(std::move(item));
  }
  JsonValue states = JsonValue::array();
  for (std::size_t i = 0; i < head.family.states.size(); ++i)
    states.push(state_json(head.family.states[i], head.schema.states[i], chunk_tokens[i], plane_files[i]));
  JsonValue value = JsonValue::object();
  value.set("schema", kDescriptionSchema);
  value.set("family", std::move(family));
  value.set("model", std::move(model));
  value.set("input_cut", std::move(cut));
  value.set("groups", std::move(groups));
  value.set("states", std::move(states));
  return value;
}

Result<std::vector<std::uint32_t>> load_tokens(FileSystem& fs, const Description& description,
                                               const std::string& folder) {
  std::vector<std::uint32_t> tokens;
  if (description.tokens_file.empty()) return tokens;
  KVPACK_TRY_ASSIGN(const Bytes bytes, read_beside(fs, folder, description.tokens_file, kMaxTokensFileBytes));
  if (bytes.size() % 4 != 0) return usage_error("tokens file is no list of u32");
  tokens.resize(bytes.size() / 4);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = load_le<std::uint32_t>(bytes, i * 4);
  return tokens;
}

Result<LoadedInput> load_input(FileSystem& fs, const Description& description, const std::string& folder) {
  LoadedInput input;
  KVPACK_TRY_ASSIGN(input.tokens, load_tokens(fs, description, folder));
  const auto& states = description.family.family().states;
  input.files.reserve(states.size());
  bool chosen = false;
  for (std::size_t i = 0; i < states.size(); ++i) {
    const DescribedPlane& plane = description.planes[i];
    input.files.emplace_back();
    auto view = load_plane(fs, states[i], plane, folder, input.files.back());
    if (!view.has_value()) return in_state(std::move(view.error()), states[i].key);
    input.planes.push_back(*std::move(view));
    input.sidecar_sinks.push_back(plane.sidecar_sinks);
    input.chunk_tokens.push_back(plane.chunk_tokens);
    chosen = chosen || !plane.chunk_tokens.empty();
  }
  if (!chosen) input.chunk_tokens.clear();
  return input;
}

Identity identity_of(const Description& description) {
  Identity identity;
  identity["weights_config"] = description.semantic_model.weights_config.hex();
  identity["adapters"] = description.semantic_model.adapters.hex();
  identity["tokenizer_template"] = description.semantic_model.tokenizer_template.hex();
  identity["position_semantics"] = description.semantic_model.position_semantics.hex();
  identity["qualified_math"] = description.semantic_model.qualified_math.hex();
  const RepresentationFamily& family = description.family.family();
  identity["engine_cache_abi"] = family.engine_cache_abi.hex();
  identity["topology"] = family.topology.hex();
  identity["shard_map"] = family.shard_map.hex();
  identity["family_id"] = description.family.id().hex();
  if (description.known_cut) {
    identity["auxiliary_root"] = description.known_cut->auxiliary_input_root.hex();
    identity["token_count"] = std::to_string(description.known_cut->token_count);
    identity["token_root"] = description.known_cut->token_root.hex();
  } else {
    const DescribedPlane& plane = description.planes.front();
    identity["token_count"] = std::to_string(plane.token_start + plane.token_count);
  }
  return identity;
}

Result<Identity> parse_identity(ByteSpan json) {
  KVPACK_TRY_ASSIGN(const JsonValue value, parse_json(json, 1U << 20));
  const JsonPath root;
  KVPACK_TRY_ASSIGN(const JsonFields fields,
                    JsonFields::open(value, kIdentityFieldNames, UnknownKeys::kRefuse, root));
  Identity identity;
  bool any = false;
  for (const std::string_view name : kIdentityFieldNames) {
    if (fields.find(name) == nullptr)
      continue;  // A null is refused below: a check must not fall away by accident.
    any = true;
    if (name == "token_count") {
      KVPACK_TRY_ASSIGN(const auto count, fields.number<std::uint64_t>(name));
      identity[name] = std::to_string(count);
    } else {
      KVPACK_TRY_ASSIGN(const Id32 id, read_id(fields, name));
      identity[name] = id.hex();
    }
  }
  if (!any) return fail(ErrorCode::kJson, "an identity needs at least one field");
  return identity;
}

bool is_description(const JsonValue& value) noexcept {
  return value.find("schema") != nullptr;
}

}  // namespace kvpack::cli
