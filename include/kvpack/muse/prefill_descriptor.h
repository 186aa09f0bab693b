/// Portable descriptors: model, representation and sizes of a prefill cache, derived from what an engine and
/// its operator declare. Version 2 for any layout, version 1 for two closed ones. docs/format/muse.md
/// §Descriptor
#pragma once

#include "kvpack/core/family.h"
#include "kvpack/muse/engine_cache_abi.h"
#include "kvpack/muse/identity.h"

namespace kvpack::muse {

inline constexpr std::string_view kPreRopeAbi = "canonical-kv-prerope-v2";  ///< Keys are f32 and unrotated.
inline constexpr std::string_view kPortableAbiV1 = "canonical-kv-f16-le-v1";
inline constexpr std::string_view kFloat16 = "float16";

/// What a descriptor is derived from.
struct PrefillInput {
  MuseIdentity identity{};
  std::string producer_engine_abi{};
  std::string consumer_engine_abi{};
  std::string portable_abi{};
  std::string compute_precision{};
  std::string kv_precision{};
  std::uint32_t cached_token_count = 0;
  std::uint32_t max_context_tokens = 0;
  std::string layout_name{};  ///< Of a registered layout. Never hashed.
  std::optional<Id32> transform{};
  std::optional<RotationKernelPin> pin{};  ///< With kPreRopeAbi, and only with it.
};

/// How one state is given out.
struct ExportDeclaration {
  StateKey key;
  std::vector<std::uint64_t> strides{};  ///< In elements, one per dimension.
  std::uint32_t atomic_group = 0;        ///< States of one group become live together.

  friend bool operator==(const ExportDeclaration&, const ExportDeclaration&) = default;
};

/// Everything that is known of a cache at one cut before a byte of it is read.
struct PortableDescriptor {
  SemanticModelId semantic_model{};
  RepresentationFamily family{};
  std::vector<ExportDeclaration> states{};  ///< In the order of the family's states.
  std::uint64_t bytes_per_state = 0;        ///< Of the largest state.
  std::uint64_t restored_bytes = 0;         ///< Of all.

  friend bool operator==(const PortableDescriptor&, const PortableDescriptor&) = default;
};

/// The five digests of a model.
SemanticModelId prefill_semantic_model(const PrefillInput& input);

/// Of a registered layout.
/// @error kExpectation kState, in the order of docs/format/muse.md §Descriptor; then as validate_family
Result<PortableDescriptor> derive_descriptor(const PrefillInput& input);
/// Of a layout of the caller's, which is validated first; `layout_name` is not looked at.
Result<PortableDescriptor> derive_descriptor(const PrefillInput& input, const Layout& owned);

/// The geometries of version 1.
struct PrefillGeometryV1 {
  std::uint32_t layers = 0;
  std::uint32_t kv_heads = 0;
  std::uint32_t head_dim = 0;

  friend bool operator==(const PrefillGeometryV1&, const PrefillGeometryV1&) = default;
};
inline constexpr std::array<PrefillGeometryV1, 2> kGeometriesV1{{{24, 2, 64}, {28, 4, 128}}};

/// Version 1; layout name, transform and pin are not looked at.
/// @error kExpectation kState, in the order of docs/format/muse.md §Version 1
Result<PortableDescriptor> derive_descriptor_v1(const PrefillInput& input, const PrefillGeometryV1& geometry);

/// Adds a state's bytes to a descriptor's sizes. @error kState `descriptor byte size overflow`
Status add_state_bytes(PortableDescriptor& descriptor, std::uint64_t bytes);

// ---------------------------------------------------------------------------------------------------------------

namespace detail {

inline constexpr std::uint32_t kMaxContextTokensV1 = 32'768;
inline constexpr std::size_t kMaxIdentityTextBytes = 1'024;
inline constexpr std::array<std::string_view, 5> kWeightPrecisions{"q4_k_m", "q4_k_xl", "nvfp4", "mxfp4",
                                                                   "bf16"};

inline Status check_identity_text(std::string_view text) {
  const bool ascii = std::ranges::all_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x80; });
  if (text.empty() || text.size() > kMaxIdentityTextBytes || !ascii)
    return fail(ErrorCode::kExpectation, "portable prefill identity strings must be bounded nonempty ASCII");
  return success();
}

inline Status check_identity_texts(const PrefillInput& input) {
  for (const std::string* text : {&input.identity.model_revision, &input.identity.tokenizer_revision,
                                  &input.producer_engine_abi, &input.consumer_engine_abi})
    KVPACK_TRY(check_identity_text(*text));
  return success();
}

inline Status check_qualified(const PrefillInput& input) {
  const bool known_abi = input.portable_abi == kPortableAbi || input.portable_abi == kPreRopeAbi;
  const bool known_weights =
      std::ranges::find(kWeightPrecisions, input.identity.weight_precision) != kWeightPrecisions.end();
  if (input.cached_token_count == 0 || input.cached_token_count >= input.max_context_tokens ||
      input.max_context_tokens > kMaxContextTokens || !known_abi || input.compute_precision != kFloat16 ||
      input.kv_precision != kFloat16 || !known_weights)
    return fail(ErrorCode::kExpectation, "portable prefill v2 descriptor is outside the qualified bounds");
  const bool pre_rope = input.portable_abi == kPreRopeAbi;
  if (pre_rope && !input.pin)
    return fail(ErrorCode::kExpectation,
                "portable prefill v2 pre-rope representation requires the pinned rotation kernel identity");
  if (!pre_rope && input.pin)
    return fail(
        ErrorCode::kExpectation,
        "portable prefill v2 pinned rotation kernel identity requires the pre-rope representation label");
  KVPACK_TRY(check_identity_texts(input));
  if (input.pin)
    for (const std::string* text : {&input.pin->engine, &input.pin->kernel, &input.pin->dtype_path})
      KVPACK_TRY(check_identity_text(*text));
  return success();
}

inline Status check_class_rotation(const LayoutClass& c, const std::optional<RotationKernelPin>& pin) {
  KVPACK_TRY(validate_rope(c));
  if (!pin) return success();
  if (pin->convention != c.rope_convention)
    return fail(
        ErrorCode::kExpectation,
        "portable prefill v2 pre-rope kernel pin convention disagrees with the class rope convention");
  if (c.is_latent())
    return fail(ErrorCode::kExpectation,
                "portable prefill v2 pre-rope representation does not support mla-latent classes");
  if (c.rope_convention == RopeConvention::kNone)
    return fail(
        ErrorCode::kExpectation,
        "portable prefill v2 pre-rope representation does not support NoPE (rope_convention None) classes");
  return success();
}

/// One state of a class, with its declaration and its bytes.
inline Status add_class_state(PortableDescriptor& descriptor, const LayoutClass& c, const StateKey& key,
                              DType dtype, std::uint32_t cached) {
  const std::uint64_t row = c.row_elements();
  descriptor.family.states.push_back(
      {.key = key,
       .dtype = dtype,
       .token_axis_rule = c.window_tokens == 0 ? TokenAxisRule::kDirect : TokenAxisRule::kTailWindow,
       .elements_per_token = row,
       .dimensions = {0, c.kv_heads, c.head_dim}});
  descriptor.states.push_back({key, {row, c.head_dim, 1}, key.layer + 1});
  const std::uint64_t tokens = c.window_tokens == 0 ? cached : std::min(c.window_tokens, cached);
  const auto elements = checked_mul(tokens, row);
  const auto bytes =
      elements ? checked_mul<std::uint64_t>(*elements, dtype_width_bytes(dtype)) : std::nullopt;
  if (!bytes) return fail(ErrorCode::kState, "descriptor byte size overflow");
  return add_state_bytes(descriptor, *bytes);
}

/// @pre the layout is registered or has been validated
inline Result<PortableDescriptor> derive_from_layout(const PrefillInput& input, const Layout& layout) {
  KVPACK_TRY(check_qualified(input));
  for (const LayoutClass& c : layout.classes) KVPACK_TRY(check_class_rotation(c, input.pin));
  PortableDescriptor descriptor;
  descriptor.semantic_model = prefill_semantic_model(input);
  descriptor.family = {
      .engine_cache_abi = engine_cache_abi_id({.portable_abi = input.portable_abi,
                                               .consumer_engine_abi = input.consumer_engine_abi,
                                               .layout = &layout,
                                               .max_context_tokens = input.max_context_tokens,
                                               .transform = input.transform ? &*input.transform : nullptr,
                                               .pin = input.pin ? &*input.pin : nullptr}),
      .mode = RepresentationMode::kPortable,
      .page_size_tokens = kBlockTokens,
      .topology = topology_id(layout, input.max_context_tokens),
      .shard_map = shard_map_id()};
  const std::vector<std::uint32_t> classes = class_of_layer(layout);
  for (std::uint32_t layer = 0; layer < layout.num_layers; ++layer) {
    const LayoutClass& c = layout.classes[classes[layer]];
    for (const std::string_view name : state_names(c)) {
      const bool unrotated = name == "attn.k" && input.portable_abi == kPreRopeAbi;
      KVPACK_TRY(add_class_state(descriptor, c, {layer, std::string(name)},
                                 unrotated ? DType::kF32 : DType::kF16, input.cached_token_count));
    }
  }
  KVPACK_TRY(validate_family(descriptor.family));
  return descriptor;
}

}  // namespace detail

inline SemanticModelId prefill_semantic_model(const PrefillInput& input) {
  const MuseIdentity& identity = input.identity;
  const auto context_bytes = le_bytes(input.max_context_tokens);
  return {.weights_config = domain_hash(with_nul("kvpack/spark-prefill/weights-config/v1"),
                                        {identity.model_sha256, byte_view(identity.model_revision),
                                         byte_view(identity.weight_precision)}),
          .adapters = domain_hash(with_nul("kvpack/spark-prefill/adapters/v1"), {identity.adapter_sha256}),
          .tokenizer_template = domain_hash(with_nul("kvpack/spark-prefill/tokenizer-template/v1"),
                                            {identity.tokenizer_sha256, identity.chat_template_sha256,
                                             byte_view(identity.tokenizer_revision)}),
          .position_semantics = domain_hash(with_nul("kvpack/spark-prefill/position-semantics/v1"),
                                            {identity.context_policy_sha256, context_bytes}),
          .qualified_math =
              domain_hash(with_nul("kvpack/spark-prefill/qualified-math/v1"),
                          {byte_view(input.producer_engine_abi), byte_view(input.consumer_engine_abi),
                           byte_view(input.compute_precision), byte_view(input.kv_precision)})};
}

inline Status add_state_bytes(PortableDescriptor& descriptor, std::uint64_t bytes) {
  const auto sum = checked_add(descriptor.restored_bytes, bytes);
  if (!sum) return fail(ErrorCode::kState, "descriptor byte size overflow");
  descriptor.restored_bytes = *sum;
  descriptor.bytes_per_state = std::max(descriptor.bytes_per_state, bytes);
  return success();
}

inline Result<PortableDescriptor> derive_descriptor(const PrefillInput& input) {
  KVPACK_TRY_ASSIGN(const Layout* layout, registered_layout(input.layout_name));
  return detail::derive_from_layout(input, *layout);
}

inline Result<PortableDescriptor> derive_descriptor(const PrefillInput& input, const Layout& owned) {
  KVPACK_TRY(validate_owned_layout(owned));
  return detail::derive_from_layout(input, owned);
}

inline Result<PortableDescriptor> derive_descriptor_v1(const PrefillInput& input,
                                                       const PrefillGeometryV1& geometry) {
  if (std::ranges::find(kGeometriesV1, geometry) == kGeometriesV1.end())
    return fail(ErrorCode::kExpectation, "portable prefill geometry is outside the qualified closed tuples");
  if (input.cached_token_count == 0 || input.cached_token_count >= detail::kMaxContextTokensV1 ||
      input.max_context_tokens != detail::kMaxContextTokensV1 || input.portable_abi != kPortableAbiV1 ||
      input.compute_precision != kFloat16 || input.kv_precision != kFloat16 ||
      input.identity.weight_precision != "q4_k_m")
    return fail(ErrorCode::kExpectation,
                "portable prefill descriptor is outside the qualified Qwen2.5 tuple");
  KVPACK_TRY(detail::check_identity_texts(input));

  const auto layers = le_bytes(geometry.layers);
  const auto kv_heads = le_bytes(geometry.kv_heads);
  const auto head_dim = le_bytes(geometry.head_dim);
  const auto context = le_bytes(input.max_context_tokens);
  PortableDescriptor descriptor;
  descriptor.semantic_model = prefill_semantic_model(input);
  descriptor.family = {
      .engine_cache_abi = domain_hash(with_nul("kvpack/spark-prefill/engine-cache-abi/v1"),
                                      {byte_view(input.portable_abi), byte_view(input.consumer_engine_abi),
                                       layers, kv_heads, head_dim, context}),
      .mode = RepresentationMode::kPortable,
      .page_size_tokens = kBlockTokens,
      .topology =
          domain_hash(with_nul("kvpack/spark-prefill/topology/v1"), {layers, kv_heads, head_dim, context}),
      .shard_map = domain_hash(with_nul("kvpack/spark-prefill/shard-map/v1"),
                               {byte_view("single-rank-layer-ascending-k-then-v")})};
  const LayoutClass full = detail::full_class(0, geometry.layers, 1, geometry.kv_heads, geometry.head_dim,
                                              0.0, 0, RopeConvention::kNone);
  for (std::uint32_t layer = 0; layer < geometry.layers; ++layer)
    for (const std::string_view name : state_names(full))
      KVPACK_TRY(detail::add_class_state(descriptor, full, {layer, std::string(name)}, DType::kF16,
                                         input.cached_token_count));
  KVPACK_TRY(validate_family(descriptor.family));
  return descriptor;
}

}  // namespace kvpack::muse
