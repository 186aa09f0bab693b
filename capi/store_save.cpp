// Saving into a store: one call from planes.
#include "kvpack/store/save.h"
#include "store_handle.h"

namespace kvpack::capi {

namespace {

constexpr std::uint64_t kSaveOptionsV0 = KVPACK_SIZE_UP_TO(kvpack_store_save_options, label_size);
constexpr std::uint64_t kSavedInfoV0 = KVPACK_SIZE_UP_TO(kvpack_store_saved_info, manifest_bytes);

/// The request, and the memory that it points to.
struct Save {
  SaveRequest request;
  std::shared_ptr<const IdentifiedFamily> family;
  std::vector<AuxiliaryInputId> auxiliary;
  std::vector<SaveState> states;
  std::vector<ByteSpan> planes;
};

Result<SaveState> read_state(const kvpack_plane& plane, const StateKey& key, std::uint64_t cut_tokens) {
  KVPACK_TRY(check_reserved(plane.reserved));
  SaveState state{.key = key, .token_start = plane.token_start};
  if (plane.token_count != 0 &&
      (plane.token_start > cut_tokens || plane.token_count != cut_tokens - plane.token_start))
    return bad_argument("token_count", "does not reach the end of the cut");
  KVPACK_TRY_ASSIGN(state.byte_strides, read_plane_strides(plane));
  KVPACK_TRY_ASSIGN(state.sidecar_sinks, read_sidecar_sinks(plane));
  return state;
}

/// Planes lie as far apart as the caller's version of the struct is long.
Status read_planes(const kvpack_store_save_options& options, Save& save) {
  const std::vector<StaticState>& states = save.family->family().states;
  if (options.plane_count != states.size())
    return bad_argument("plane_count", "is not the number of states of the family");
  KVPACK_TRY(check_pointer(options.planes, "planes"));
  const auto* next = reinterpret_cast<const std::uint8_t*>(options.planes);
  const std::uint64_t distance = options.planes->struct_size;
  for (std::size_t i = 0; i < states.size(); ++i) {
    const auto* plane = reinterpret_cast<const kvpack_plane*>(next);
    KVPACK_TRY_ASSIGN(const auto known, read_options(plane, kPlaneV0, "planes"));
    if (known.struct_size != distance)
      return misuse(KVPACK_ERR_STRUCT_SIZE, "struct planes has several sizes").with("argument", "planes");
    KVPACK_TRY_ASSIGN(const ByteSpan bytes, read_bytes(known.data, known.data_size, "planes.data"));
    KVPACK_TRY_ASSIGN(SaveState state, read_state(known, states[i].key, options.token_count));
    if (options.atomic_groups != nullptr) state.atomic_group = options.atomic_groups[i];
    save.planes.push_back(bytes);
    save.states.push_back(std::move(state));
    next += distance;
  }
  return success();
}

Status read_kind(const kvpack_store_save_options& options, SaveRequest& request) {
  KVPACK_TRY_ASSIGN(request.spans,
                    read_spans(options.span_rule, options.grain_tokens, options.window_grain_tokens));
  if (options.export_stride_tokens == 0) return success();
  if (options.export_stride_tokens > std::numeric_limits<std::uint32_t>::max())
    return bad_argument("export_stride_tokens", "is too large");
  request.kind = SaveKind::kCutExport;
  request.checkpoint_stride_tokens = static_cast<std::uint32_t>(options.export_stride_tokens);
  return success();
}

Result<Save> read_save(const kvpack_store_save_options& options) {
  KVPACK_TRY(check_handle(options.family, "family"));
  KVPACK_TRY(check_reserved(options.reserved));
  Save save;
  save.family = options.family->family;
  SaveRequest& request = save.request;
  request.family = save.family.get();
  request.semantic_model = to_model(options.model);
  KVPACK_TRY_ASSIGN(request.tokens, read_array(options.tokens, options.token_count, "tokens"));
  KVPACK_TRY_ASSIGN(save.auxiliary, read_auxiliary(options.auxiliary, options.auxiliary_count));
  KVPACK_TRY(read_planes(options, save));
  KVPACK_TRY(read_kind(options, request));
  if (options.parent != nullptr) request.parent = to_id(*options.parent);
  if (options.idempotency_key != nullptr) request.idempotency_key = to_id(*options.idempotency_key);
  KVPACK_TRY_ASSIGN(const bool unencrypted, read_flag(options.unencrypted, "unencrypted"));
  request.encrypt = !unencrypted;
  if (options.parallelism > 256) return bad_argument("parallelism", "must be at most 256");
  request.parallelism = options.parallelism;
  if (options.max_restored_bytes != 0) request.max_restored_bytes = options.max_restored_bytes;
  if (options.publication != 0) request.publication = options.publication;
  if (options.time_to_live_ms != 0) request.time_to_live_ms = options.time_to_live_ms;
  KVPACK_TRY_ASSIGN(const std::string_view label, read_text(options.label, options.label_size, "label"));
  request.label = label;
  return save;
}

kvpack_stored_cut from_published(const PublishedCut& cut) noexcept {
  kvpack_stored_cut out{};
  out.manifest_id = from_id(cut.manifest_id);
  out.cut = from_cut(cut.cut);
  out.restored_bytes = cut.restored_bytes;
  out.depth = cut.depth;
  return out;
}

}  // namespace

}  // namespace kvpack::capi

using namespace kvpack;        // NOLINT(google-build-using-namespace)
using namespace kvpack::capi;  // NOLINT(google-build-using-namespace)

struct kvpack_store_saved final : Handle<handle_tag("KVstsave")> {
  explicit kvpack_store_saved(const SaveResult& result) {
    cuts.reserve(result.cuts.size());
    for (const PublishedCut& cut : result.cuts) cuts.push_back(from_published(cut));
    info.replayed = result.replayed ? 1 : 0;
    info.publication = result.publication;
    info.source_bytes = result.source_bytes;
    info.written_chunks = result.written.chunks;
    info.written_object_bytes = result.written.object_bytes;
    info.shared_chunks = result.shared.chunks;
    info.shared_object_bytes = result.shared.object_bytes;
    info.manifest_bytes = result.manifest_bytes;
  }
  std::vector<kvpack_stored_cut> cuts{};
  kvpack_store_saved_info info{};
};

kvpack_status kvpack_store_save(kvpack_store* store, kvpack_store_saved** out,
                                const kvpack_store_save_options* options, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(store, "store"));
    KVPACK_TRY(check_pointer(out, "out"));
    KVPACK_TRY_ASSIGN(const auto known, read_options(options, kSaveOptionsV0, "options"));
    KVPACK_TRY_ASSIGN(Save given, read_save(known));
    given.request.states = given.states;
    given.request.auxiliary = given.auxiliary;
    KVPACK_TRY_ASSIGN(const SaveResult result, save(*store->open->store, given.request, given.planes));
    *out = new kvpack_store_saved(result);
    return success();
  });
}

uint64_t kvpack_store_saved_count(const kvpack_store_saved* saved) {
  return is_live(saved) ? saved->cuts.size() : 0;
}

const kvpack_stored_cut* kvpack_store_saved_cuts(const kvpack_store_saved* saved) {
  return is_live(saved) ? saved->cuts.data() : nullptr;
}

kvpack_status kvpack_store_saved_describe(const kvpack_store_saved* saved, kvpack_store_saved_info* out,
                                          kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(saved, "saved"));
    KVPACK_TRY_ASSIGN(const auto output,
                      OutputStruct<kvpack_store_saved_info>::check(out, kSavedInfoV0, "out"));
    output.fill(saved->info);
    return success();
  });
}

void kvpack_store_saved_free(kvpack_store_saved* saved) {
  free_handle(saved);
}
