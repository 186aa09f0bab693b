// Saving into a store: one call from planes.
#include "store_engine.h"
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
  GivenPlanes given;
};

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

/// How it is saved, whatever it is.
Result<SaveRequest> read_how(const kvpack_store_save_options& options) {
  KVPACK_TRY(check_reserved(options.reserved));
  SaveRequest request;
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
  return request;
}

Result<Save> read_save(const kvpack_store_save_options& options) {
  KVPACK_TRY(check_handle(options.family, "family"));
  Save save;
  KVPACK_TRY_ASSIGN(save.request, read_how(options));
  save.family = options.family->family;
  save.request.family = save.family.get();
  save.request.semantic_model = to_model(options.model);
  KVPACK_TRY_ASSIGN(save.request.tokens, read_array(options.tokens, options.token_count, "tokens"));
  KVPACK_TRY_ASSIGN(save.auxiliary, read_auxiliary(options.auxiliary, options.auxiliary_count));
  KVPACK_TRY_ASSIGN(save.given, read_planes(options.planes, options.plane_count, options.atomic_groups,
                                            save.family->family(), options.token_count));
  return save;
}

/// @error INVALID_ARGUMENT the caller says what the engine says
Status check_left_to_engine(const kvpack_store_save_options& options) {
  static constexpr kvpack_model kNoModel{};
  if (options.family != nullptr) return bad_argument("family", "is the engine's to give");
  if (std::memcmp(&options.model, &kNoModel, sizeof(kNoModel)) != 0)
    return bad_argument("model", "is the engine's to give");
  if (options.tokens != nullptr || options.token_count != 0)
    return bad_argument("tokens", "is the engine's to give");
  if (options.auxiliary != nullptr || options.auxiliary_count != 0)
    return bad_argument("auxiliary", "is the engine's to give");
  if (options.planes != nullptr || options.plane_count != 0)
    return bad_argument("planes", "is the engine's to give");
  if (options.atomic_groups != nullptr) return bad_argument("atomic_groups", "is the engine's to give");
  return success();
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
  /// Room for the cuts of a save of that many tokens: what has become durable can no longer fail.
  void make_room(const SaveRequest& request, std::uint64_t token_count) {
    std::uint64_t most = 1;
    if (request.kind == SaveKind::kCutExport)
      most += token_count / std::max<std::uint64_t>(request.checkpoint_stride_tokens, kPrefixBlockTokens);
    cuts.reserve(static_cast<std::size_t>(most));
  }
  void describe(const SaveResult& result) {
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

namespace {

void log_published(const Log& log, const SaveResult& result) noexcept {
  log.tell(KVPACK_LOG_INFO, [&] {
    std::string text = result.replayed ? "already there: " : "saved: ";
    text += std::to_string(result.cuts.back().cut.token_count) + " tokens, " +
            std::to_string(result.cuts.back().restored_bytes) + " bytes";
    if (!result.replayed)
      text += "; " + std::to_string(result.written.object_bytes) + " bytes written, " +
              std::to_string(result.shared.object_bytes) + " shared";
    return text;
  });
}

/// @param work  (Store&, kvpack_store_saved&) -> Result<SaveResult>; makes room before it saves
template <class Work>
Status publish(const OpenStore& open, kvpack_store_saved** out, Work&& work) {
  auto saved = std::make_unique<kvpack_store_saved>();
  KVPACK_TRY_ASSIGN(const SaveResult result, open.log.watch("save", work(*open.store, *saved)));
  log_published(open.log, result);
  saved->describe(result);
  *out = saved.release();
  return success();
}

}  // namespace

kvpack_status kvpack_store_save(kvpack_store* store, kvpack_store_saved** out,
                                const kvpack_store_save_options* options, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(store, "store"));
    KVPACK_TRY(check_pointer(out, "out"));
    KVPACK_TRY_ASSIGN(const auto known, read_options(options, kSaveOptionsV0, "options"));
    KVPACK_TRY_ASSIGN(Save given, read_save(known));
    given.request.states = given.given.states;
    given.request.auxiliary = given.auxiliary;
    return publish(*store->open, out, [&](Store& open, kvpack_store_saved& saved) {
      saved.make_room(given.request, given.request.tokens.size());
      return save(open, given.request, given.given.planes);
    });
  });
}

kvpack_status kvpack_store_save_from_engine(kvpack_store* store, kvpack_store_saved** out,
                                            const kvpack_engine* engine,
                                            const kvpack_store_save_options* options, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(store, "store"));
    KVPACK_TRY(check_pointer(out, "out"));
    KVPACK_TRY_ASSIGN(const auto known, read_engine(engine));
    if (known.inventory == nullptr) return bad_argument("inventory", "is NULL");
    KVPACK_TRY_ASSIGN(const auto how, read_optional_options(options, kSaveOptionsV0, "options"));
    KVPACK_TRY(check_left_to_engine(how));
    KVPACK_TRY_ASSIGN(const SaveRequest request, read_how(how));
    return publish(*store->open, out, [&](Store& open, kvpack_store_saved& saved) {
      CallbackEngine source(store->open->keys, known, {});
      source.on_inventory = [&](std::uint64_t token_count) { saved.make_room(request, token_count); };
      return save_from_engine(open, source, request);
    });
  });
}

uint64_t kvpack_store_saved_cut_count(const kvpack_store_saved* saved) {
  return is_live(saved) ? saved->cuts.size() : 0;
}

const kvpack_stored_cut* kvpack_store_saved_cuts(const kvpack_store_saved* saved) {
  return is_live(saved) ? saved->cuts.data() : nullptr;
}

kvpack_status kvpack_store_saved_get_info(const kvpack_store_saved* saved, kvpack_store_saved_info* out,
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
