// Saving a cut: planes are collected, then encoded into chunks that go to the caller.
#include "handles.h"
#include "kvpack/crypto/sha256_machine.h"

namespace kvpack::capi {

namespace {

constexpr std::uint64_t kCutBuilderOptionsV0 = KVPACK_SIZE_UP_TO(kvpack_cut_builder_options, random_user);

/// Gives chunks to the caller as the library makes them.
class ChunkCallback final : public ChunkSink {
 public:
  ChunkCallback(const RepresentationFamily& family, kvpack_chunk_sink_fn sink, void* user) noexcept
      : family_(&family), sink_(sink), user_(user) {}

  Status put(const StateKey& state, const ChunkSpan& span, const ChunkRef& ref, ByteSpan object) override {
    const StaticState* found = find_state(*family_, state);
    kvpack_saved_chunk chunk{};
    chunk.struct_size = sizeof(chunk);
    chunk.state_index = static_cast<std::uint64_t>(found - family_->states.data());
    chunk.span = from_span(span);
    chunk.ref = from_ref(ref);
    chunk.object = object.data();
    chunk.object_size = object.size();
    return run_callback("sink", [&] { return sink_(user_, &chunk); });
  }

 private:
  const RepresentationFamily* family_;
  kvpack_chunk_sink_fn sink_;
  void* user_;
};

}  // namespace

Result<SpanPolicy> read_spans(std::uint32_t rule, std::uint32_t grain_tokens,
                              std::uint32_t window_grain_tokens) {
  SpanPolicy policy;
  if (rule > KVPACK_SPANS_UPSTREAM) return bad_argument("span_rule", "is unknown");
  if (rule == KVPACK_SPANS_UPSTREAM) policy.rule = SpanPolicy::Rule::kUpstream;
  if (grain_tokens != 0) policy.grain_tokens = grain_tokens;
  policy.window_grain_tokens = window_grain_tokens;
  return policy;
}

Result<std::vector<std::uint64_t>> read_plane_strides(const kvpack_plane& plane) {
  KVPACK_TRY_ASSIGN(const auto strides,
                    read_array(plane.byte_strides, plane.byte_stride_count, "byte_strides"));
  if (strides.size() > kMaxRank) return bad_argument("byte_stride_count", "must be at most 8");
  return std::vector<std::uint64_t>(strides.begin(), strides.end());
}

Result<std::uint16_t> read_sidecar_sinks(const kvpack_plane& plane) {
  if (plane.sidecar_sinks > kMaxSidecarSinks) return bad_argument("sidecar_sinks", "must be at most 8");
  return static_cast<std::uint16_t>(plane.sidecar_sinks);
}

}  // namespace kvpack::capi

using namespace kvpack;        // NOLINT(google-build-using-namespace)
using namespace kvpack::capi;  // NOLINT(google-build-using-namespace)

struct kvpack_cut_builder final : Handle<handle_tag("KVcutbld")> {
  std::shared_ptr<const KeySchedule> schedule{};
  std::shared_ptr<const IdentifiedFamily> family{};
  std::shared_ptr<const OpenCut> parent{};
  SemanticModelId model{};
  std::vector<AuxiliaryInputId> auxiliary{};
  std::vector<std::uint32_t> tokens{};
  std::optional<InputCutId> known_cut{};
  SpanPolicy spans{};
  bool encrypt_chunks = false;
  bool encrypt_manifest = false;
  unsigned parallelism = 1;
  kvpack_random_fn random = nullptr;
  void* random_user = nullptr;
  std::vector<std::optional<PlaneView>> planes{};  ///< By state.
  std::vector<std::uint16_t> sidecar_sinks{};
  std::vector<std::vector<std::uint64_t>>
      chunk_tokens{};  ///< By state; an empty list: the span rule chooses.
  std::vector<AtomicGroup> groups{};

  std::uint64_t token_count() const noexcept { return known_cut ? known_cut->token_count : tokens.size(); }
};

struct kvpack_saved_cut final : Handle<handle_tag("KVsaved")> {
  explicit kvpack_saved_cut(SavedCut saved)
      : pack(std::move(saved.pack)),
        manifest(std::make_shared<const CutManifest>(std::move(saved.manifest))),
        manifest_id(from_id(pack.manifest_id)),
        chunk_count(saved.chunk_count),
        payload_bytes(saved.payload_bytes) {
    nodes.reserve(saved.prefix_nodes.size());
    for (const PrefixNode& node : saved.prefix_nodes) nodes.push_back(from_node(node));
  }
  EncodedPack pack;
  std::shared_ptr<const CutManifest> manifest;
  kvpack_id manifest_id;
  std::vector<kvpack_prefix_node> nodes{};
  std::uint64_t chunk_count;
  std::uint64_t payload_bytes;
};

namespace {

Result<std::unique_ptr<kvpack_cut_builder>> make_builder(const kvpack_cut_builder_options& options) {
  KVPACK_TRY(check_keys(options.keys));
  KVPACK_TRY(check_handle(options.family, "family"));
  KVPACK_TRY(check_optional_handle(options.parent, "parent"));
  auto builder = std::make_unique<kvpack_cut_builder>();
  builder->family = options.family->family;
  if (options.parent != nullptr) builder->parent = options.parent->open;
  builder->model = to_model(options.model);
  KVPACK_TRY_ASSIGN(const auto tokens, read_array(options.tokens, options.token_count, "tokens"));
  builder->tokens.assign(tokens.begin(), tokens.end());
  KVPACK_TRY_ASSIGN(builder->auxiliary, read_auxiliary(options.auxiliary, options.auxiliary_count));
  if (options.known_cut != nullptr) builder->known_cut = to_cut(*options.known_cut);
  KVPACK_TRY_ASSIGN(builder->spans,
                    read_spans(options.span_rule, options.grain_tokens, options.window_grain_tokens));
  KVPACK_TRY_ASSIGN(builder->encrypt_chunks, read_flag(options.encrypt_chunks, "encrypt_chunks"));
  KVPACK_TRY_ASSIGN(builder->encrypt_manifest, read_flag(options.encrypt_manifest, "encrypt_manifest"));
  KVPACK_TRY_ASSIGN(builder->parallelism, read_parallelism(options.parallelism));
  builder->random = options.random;
  builder->random_user = options.random_user;
  const std::size_t states = builder->family->family().states.size();
  builder->planes.resize(states);
  builder->sidecar_sinks.resize(states);
  KVPACK_TRY_ASSIGN(builder->schedule, schedule_to_write(*options.keys->keys, options.epoch));
  return builder;
}

Result<std::size_t> check_state_index(const kvpack_cut_builder& builder, std::uint64_t index) {
  if (index >= builder.planes.size()) return bad_argument("state_index", "is outside the family");
  return static_cast<std::size_t>(index);
}

Result<PlaneView> read_plane(const kvpack_plane& plane, std::uint64_t cut_tokens) {
  KVPACK_TRY(check_reserved(plane.reserved));
  PlaneView view;
  KVPACK_TRY_ASSIGN(view.bytes, read_bytes(plane.data, plane.data_size, "data"));
  KVPACK_TRY_ASSIGN(view.byte_strides, read_plane_strides(plane));
  view.token_start = plane.token_start;
  view.token_count = plane.token_count;
  if (plane.token_count == 0 && plane.token_start < cut_tokens)
    view.token_count = cut_tokens - plane.token_start;
  return view;
}

Result<SavedCut> save(const kvpack_cut_builder& builder, kvpack_chunk_sink_fn sink, void* user) {
  const RepresentationFamily& family = builder.family->family();
  std::vector<PlaneView> planes;
  planes.reserve(builder.planes.size());
  for (std::size_t i = 0; i < builder.planes.size(); ++i) {
    if (!builder.planes[i])
      return in_state(misuse(KVPACK_ERR_WRONG_STATE, "a state has no plane"), family.states[i].key);
    planes.push_back(*builder.planes[i]);
  }
  ChunkCallback objects(family, sink, user);
  Random random(builder.random, builder.random_user);
  return save_cut({.keys = builder.schedule.get(),
                   .family = builder.family.get(),
                   .semantic_model = builder.model,
                   .auxiliary = builder.auxiliary,
                   .tokens = builder.tokens,
                   .known_cut = builder.known_cut ? &*builder.known_cut : nullptr,
                   .planes = planes,
                   .groups = builder.groups,
                   .sidecar_sinks = builder.sidecar_sinks,
                   .spans = builder.spans,
                   .chunk_tokens = builder.chunk_tokens,
                   .encrypt_chunks = builder.encrypt_chunks,
                   .encrypt_manifest = builder.encrypt_manifest,
                   .parent = builder.parent == nullptr ? nullptr : &*builder.parent->chain,
                   .parallelism = builder.parallelism,
                   .sha256 = &machine_sha256_kernels()},
                  objects, random);
}

}  // namespace

kvpack_status kvpack_cut_builder_new(kvpack_cut_builder** out, const kvpack_cut_builder_options* options,
                                     kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_pointer(out, "out"));
    KVPACK_TRY_ASSIGN(const auto known, read_options(options, kCutBuilderOptionsV0, "options"));
    KVPACK_TRY_ASSIGN(auto builder, make_builder(known));
    *out = builder.release();
    return success();
  });
}

kvpack_status kvpack_cut_builder_set_plane(kvpack_cut_builder* builder, uint64_t state_index,
                                           const kvpack_plane* plane, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(builder, "builder"));
    KVPACK_TRY_ASSIGN(const std::size_t index, check_state_index(*builder, state_index));
    KVPACK_TRY_ASSIGN(const auto known, read_options(plane, kPlaneV0, "plane"));
    KVPACK_TRY_ASSIGN(const std::uint16_t sinks, read_sidecar_sinks(known));
    KVPACK_TRY_ASSIGN(PlaneView view, read_plane(known, builder->token_count()));
    builder->planes[index] = std::move(view);
    builder->sidecar_sinks[index] = sinks;
    return success();
  });
}

kvpack_status kvpack_cut_builder_set_chunk_tokens(kvpack_cut_builder* builder, uint64_t state_index,
                                                  const uint64_t* token_counts, uint64_t token_count_count,
                                                  kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(builder, "builder"));
    KVPACK_TRY_ASSIGN(const std::size_t index, check_state_index(*builder, state_index));
    KVPACK_TRY_ASSIGN(const auto counts, read_array(token_counts, token_count_count, "token_counts"));
    std::vector<std::uint64_t> list(counts.begin(), counts.end());
    builder->chunk_tokens.resize(builder->planes.size());
    builder->chunk_tokens[index] = std::move(list);
    return success();
  });
}

kvpack_status kvpack_cut_builder_add_group(kvpack_cut_builder* builder, uint32_t group_id,
                                           const uint64_t* state_indices, uint64_t state_index_count,
                                           kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(builder, "builder"));
    KVPACK_TRY_ASSIGN(const auto members, read_array(state_indices, state_index_count, "state_indices"));
    AtomicGroup group{.id = group_id};
    for (const std::uint64_t member : members) {
      KVPACK_TRY_ASSIGN(const std::size_t index, check_state_index(*builder, member));
      group.states.push_back(builder->family->family().states[index].key);
    }
    builder->groups.push_back(std::move(group));
    return success();
  });
}

kvpack_status kvpack_cut_builder_save(const kvpack_cut_builder* builder, kvpack_saved_cut** out,
                                      kvpack_chunk_sink_fn sink, void* sink_user, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(builder, "builder"));
    KVPACK_TRY(check_pointer(out, "out"));
    if (sink == nullptr) return bad_argument("sink", "is NULL");
    KVPACK_TRY_ASSIGN(SavedCut saved, save(*builder, sink, sink_user));
    *out = new kvpack_saved_cut(std::move(saved));
    return success();
  });
}

void kvpack_cut_builder_free(kvpack_cut_builder* builder) {
  free_handle(builder);
}

const uint8_t* kvpack_saved_cut_pack(const kvpack_saved_cut* saved, uint64_t* pack_size) {
  if (pack_size != nullptr) *pack_size = 0;
  if (!is_live(saved) || pack_size == nullptr) return nullptr;
  *pack_size = saved->pack.bytes.size();
  return saved->pack.bytes.data();
}

const kvpack_id* kvpack_saved_cut_manifest_id(const kvpack_saved_cut* saved) {
  return is_live(saved) ? &saved->manifest_id : nullptr;
}

uint64_t kvpack_saved_cut_node_count(const kvpack_saved_cut* saved) {
  return is_live(saved) ? saved->nodes.size() : 0;
}

const kvpack_prefix_node* kvpack_saved_cut_nodes(const kvpack_saved_cut* saved) {
  return is_live(saved) && !saved->nodes.empty() ? saved->nodes.data() : nullptr;
}

uint64_t kvpack_saved_cut_chunk_count(const kvpack_saved_cut* saved) {
  return is_live(saved) ? saved->chunk_count : 0;
}

uint64_t kvpack_saved_cut_payload_bytes(const kvpack_saved_cut* saved) {
  return is_live(saved) ? saved->payload_bytes : 0;
}

kvpack_status kvpack_saved_cut_manifest(const kvpack_saved_cut* saved, kvpack_manifest** out,
                                        kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(saved, "saved"));
    KVPACK_TRY(check_pointer(out, "out"));
    *out = new kvpack_manifest(saved->manifest, saved->pack.manifest_id);
    return success();
  });
}

void kvpack_saved_cut_free(kvpack_saved_cut* saved) {
  free_handle(saved);
}
