// Opening a cut, and giving it back into memory that the caller lends.
#include <mutex>

#include "handles.h"
#include "kvpack/core/cut_restore.h"
#include "kvpack/crypto/sha256_machine.h"

namespace kvpack::capi {

namespace {

constexpr std::uint64_t kCutOptionsV0 = KVPACK_SIZE_UP_TO(kvpack_cut_options, max_memory_bytes);
constexpr std::uint64_t kPlaneInfoV0 = KVPACK_SIZE_UP_TO(kvpack_plane_info, token_count);
constexpr std::uint64_t kRestoreOptionsV0 = KVPACK_SIZE_UP_TO(kvpack_restore_options, progress_user);

/// Objects from the caller's callbacks.
class CallbackObjects final : public ObjectSource {
 public:
  CallbackObjects(kvpack_read_pack_fn pack, kvpack_read_chunk_fn chunk, void* user) noexcept
      : read_pack_(pack), read_chunk_(chunk), user_(user) {}

  Result<Bytes> read_pack(const Id32& manifest_id) override {
    const kvpack_id id = from_id(manifest_id);
    if (read_pack_ == nullptr)
      return fail(ErrorCode::kNotFound, "no callback gives packs").with("object", manifest_id.hex());
    kvpack_buffer buffer(kMaxPackBytes);
    auto status = run_callback("read_pack", [&] { return read_pack_(user_, &id, &buffer); });
    if (!status.has_value()) return std::move(status.error()).with("object", manifest_id.hex());
    return std::move(buffer.bytes);
  }

  Status read_chunk(const ChunkRef& ref, MutableByteSpan object) override {
    if (read_chunk_ == nullptr) return fail(ErrorCode::kNotFound, "no callback gives chunks");
    const kvpack_chunk_ref given = from_ref(ref);
    return run_callback("read_chunk",
                        [&] { return read_chunk_(user_, &given, object.data(), object.size()); });
  }

 private:
  kvpack_read_pack_fn read_pack_;
  kvpack_read_chunk_fn read_chunk_;
  void* user_;
};

/// Tells the caller about chunks as they have been read, and ends the work when it says so.
class ObservedObjects final : public ObjectSource {
 public:
  ObservedObjects(ObjectSource& objects, const RestorePlan& plan, kvpack_progress_fn progress,
                  void* user) noexcept
      : objects_(&objects), progress_(progress), user_(user) {
    for (const ChainChunk& chunk : plan.chunks()) total_bytes_ += chunk.ref.object_bytes;
  }

  Result<Bytes> read_pack(const Id32& manifest_id) override { return objects_->read_pack(manifest_id); }
  Status read_chunk(const ChunkRef& ref, MutableByteSpan object) override {
    KVPACK_TRY(objects_->read_chunk(ref, object));
    if (progress_ == nullptr) return success();
    const std::lock_guard lock(mutex_);
    done_bytes_ += object.size();
    return run_callback("progress", [&] { return progress_(user_, done_bytes_, total_bytes_); });
  }

 private:
  ObjectSource* objects_;
  kvpack_progress_fn progress_;
  void* user_;
  std::mutex mutex_{};
  std::uint64_t done_bytes_ = 0;
  std::uint64_t total_bytes_ = 0;
};

/// Where the head pack comes from: the caller's bytes, or a record of the set.
struct Head {
  ByteSpan pack;
  Bytes owned;
};

Result<Head> read_head(const kvpack_cut_options& options, OpenCut& cut) {
  Head head;
  if (options.pack_set != nullptr) {
    if (options.pack != nullptr || options.pack_size != 0 || options.read_pack != nullptr ||
        options.read_chunk != nullptr || options.read_user != nullptr)
      return bad_argument("pack_set", "stands instead of pack and callbacks");
    KVPACK_TRY(check_handle(options.pack_set, "pack_set"));
    cut.set = options.pack_set->open;
    if (cut.keys == nullptr) cut.keys = cut.set->keys;
    cut.objects = std::make_unique<PackSetObjects>(*cut.set->set);
    KVPACK_TRY_ASSIGN(head.owned, cut.objects->read_pack(cut.set->set->footer().head_manifest_id));
    head.pack = head.owned;
    return head;
  }
  KVPACK_TRY(check_pointer(options.pack, "pack"));
  KVPACK_TRY_ASSIGN(head.pack, read_bytes(options.pack, options.pack_size, "pack"));
  cut.objects = std::make_unique<CallbackObjects>(options.read_pack, options.read_chunk, options.read_user);
  return head;
}

Result<std::shared_ptr<const OpenCut>> open_cut(const kvpack_cut_options& options) {
  auto cut = std::make_shared<OpenCut>();
  KVPACK_TRY_ASSIGN(cut->keys, read_optional_keys(options.keys));
  KVPACK_TRY_ASSIGN(const ManifestLimits limits, read_limits(options.limits));
  KVPACK_TRY_ASSIGN(const Head head, read_head(options, *cut));
  KVPACK_TRY_ASSIGN(ManifestChain chain, open_chain(head.pack, *cut->objects, ring_of(cut->keys), limits));
  cut->chain = std::make_shared<const ManifestChain>(std::move(chain));
  const std::uint64_t memory =
      options.max_memory_bytes == 0 ? kDefaultMaxRestoredBytes : options.max_memory_bytes;
  KVPACK_TRY_ASSIGN(RestorePlan plan, RestorePlan::create(*cut->chain, memory));
  cut->plan = std::make_shared<const RestorePlan>(std::move(plan));
  cut->manifest_id = from_id(cut->chain->head_id());
  std::vector<Id32> ids;
  for (const ChainLink& link : cut->chain->links()) ids.push_back(link.manifest_id);
  cut->restore_chain_id = from_id(restore_chain_id(ids));
  return std::shared_ptr<const OpenCut>(std::move(cut));
}

/// Options of a restore, and the keys of the cut as the library wants them.
struct Restore {
  RestoreOptions options;
  kvpack_progress_fn progress = nullptr;
  void* progress_user = nullptr;
};

Result<Restore> read_restore_options(const OpenCut& cut, const kvpack_restore_options* options) {
  KVPACK_TRY_ASSIGN(const auto known, read_optional_options(options, kRestoreOptionsV0, "options"));
  Restore restore;
  restore.options.keys = ring_of(cut.keys);
  restore.options.sha256 = &machine_sha256_kernels();
  KVPACK_TRY_ASSIGN(restore.options.integrity_only, read_flag(known.integrity_only, "integrity_only"));
  KVPACK_TRY_ASSIGN(restore.options.parallelism, read_parallelism(known.parallelism));
  restore.progress = known.progress;
  restore.progress_user = known.progress_user;
  return restore;
}

/// The shadows, and the layout of each: the manifest's, or the caller's own.
struct Shadows {
  std::vector<MutableByteSpan> memory;
  std::vector<PlaneLayout> layouts;
  bool own_layouts = false;
};

/// A layout of the caller's must reach no further than its memory and give each element its own place.
Result<PlaneLayout> read_shadow_layout(const kvpack_shadow& shadow, const StateRestore& state) {
  KVPACK_TRY_ASSIGN(const auto strides,
                    read_array(shadow.byte_strides, shadow.byte_stride_count, "byte_strides"));
  KVPACK_TRY_ASSIGN(PlaneLayout layout, PlaneLayout::strided(*state.fixed, state.token_count, strides));
  if (layout.footprint_bytes() > shadow.size)
    return fail(ErrorCode::kState, "shadow memory does not match the restore plan")
        .with("expected", std::to_string(layout.footprint_bytes()))
        .with("found", std::to_string(shadow.size));
  if (layout.may_overlap()) return fail(ErrorCode::kState, "elements of a shadow overlap");
  return layout;
}

Result<Shadows> read_shadows(const RestorePlan& plan, const kvpack_shadow* shadows, std::uint64_t count) {
  KVPACK_TRY_ASSIGN(const auto given, read_array(shadows, count, "shadows"));
  Shadows out;
  for (const kvpack_shadow& shadow : given) {
    KVPACK_TRY_ASSIGN(const MutableByteSpan memory, lend_bytes(shadow.data, shadow.size, "shadows"));
    out.memory.push_back(memory);
    out.own_layouts |= shadow.byte_stride_count != 0;
  }
  if (!out.own_layouts) return out;
  if (given.size() != plan.states().size())
    return fail(ErrorCode::kState, "shadow memory does not match the restore plan");
  for (std::size_t i = 0; i < given.size(); ++i) {
    const StateRestore& state = plan.states()[i];
    if (given[i].byte_stride_count != 0) {
      auto layout = read_shadow_layout(given[i], state);
      if (!layout.has_value()) return in_state(std::move(layout.error()), state.key);
      out.layouts.push_back(*std::move(layout));
      continue;
    }
    if (given[i].size < state.complete_physical_bytes || state.layout.may_overlap())
      return in_state(fail(ErrorCode::kState, "shadow memory does not match the restore plan"), state.key);
    out.layouts.push_back(state.layout);
  }
  return out;
}

Status restore(const OpenCut& cut, const kvpack_shadow* shadows, std::uint64_t count,
               const Restore& options) {
  const RestorePlan& plan = *cut.plan;
  KVPACK_TRY_ASSIGN(const Shadows lent, read_shadows(plan, shadows, count));
  ObservedObjects objects(*cut.objects, plan, options.progress, options.progress_user);
  if (!lent.own_layouts) return restore_cut_into(plan, objects, options.options, lent.memory);
  return stream_cut(plan, objects, options.options, [&](const ChainChunk& chunk, ByteSpan plaintext) {
    const StateRestore& state = plan.states()[chunk.state_index];
    lent.layouts[chunk.state_index].scatter(plaintext, chunk.span.token_start - state.token_start,
                                            lent.memory[chunk.state_index]);
    return success();
  });
}

Status stream(const OpenCut& cut, const Restore& options, kvpack_chunk_visit_fn visit, void* user) {
  ObservedObjects objects(*cut.objects, *cut.plan, options.progress, options.progress_user);
  return stream_cut(*cut.plan, objects, options.options, [&](const ChainChunk& chunk, ByteSpan plaintext) {
    kvpack_restored_chunk given{};
    given.struct_size = sizeof(given);
    given.state_index = chunk.state_index;
    given.span = from_span(chunk.span);
    given.ref = from_ref(chunk.ref);
    given.plaintext = plaintext.data();
    given.plaintext_size = plaintext.size();
    return run_callback("visit", [&] { return visit(user, &given); });
  });
}

}  // namespace

}  // namespace kvpack::capi

using namespace kvpack;        // NOLINT(google-build-using-namespace)
using namespace kvpack::capi;  // NOLINT(google-build-using-namespace)

kvpack_status kvpack_cut_open(kvpack_cut** out, const kvpack_cut_options* options, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_pointer(out, "out"));
    KVPACK_TRY_ASSIGN(const auto known, read_options(options, kCutOptionsV0, "options"));
    KVPACK_TRY_ASSIGN(auto cut, open_cut(known));
    *out = new kvpack_cut(std::move(cut));
    return success();
  });
}

uint32_t kvpack_cut_level(const kvpack_cut* cut) {
  if (!is_live(cut)) return 0;
  return cut->open->keys != nullptr ? KVPACK_LEVEL_AUTHENTICATED : KVPACK_LEVEL_INTEGRITY;
}

uint64_t kvpack_cut_token_count(const kvpack_cut* cut) {
  return is_live(cut) ? cut->open->chain->head().input_cut.token_count : 0;
}

uint32_t kvpack_cut_depth(const kvpack_cut* cut) {
  return is_live(cut) ? cut->open->chain->head().schema.kind.depth : 0;
}

const kvpack_id* kvpack_cut_manifest_id(const kvpack_cut* cut) {
  return is_live(cut) ? &cut->open->manifest_id : nullptr;
}

const kvpack_id* kvpack_cut_restore_chain_id(const kvpack_cut* cut) {
  return is_live(cut) ? &cut->open->restore_chain_id : nullptr;
}

uint64_t kvpack_cut_state_count(const kvpack_cut* cut) {
  return is_live(cut) ? cut->open->plan->states().size() : 0;
}

uint64_t kvpack_cut_chunk_count(const kvpack_cut* cut) {
  return is_live(cut) ? cut->open->plan->chunks().size() : 0;
}

uint64_t kvpack_cut_total_bytes(const kvpack_cut* cut) {
  return is_live(cut) ? cut->open->plan->total_bytes() : 0;
}

kvpack_status kvpack_cut_state(const kvpack_cut* cut, kvpack_plane_info* out, uint64_t state_index,
                               kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(cut, "cut"));
    KVPACK_TRY_ASSIGN(const auto output, OutputStruct<kvpack_plane_info>::check(out, kPlaneInfoV0, "out"));
    const CutManifest& head = cut->open->chain->head();
    if (state_index >= head.family.states.size()) return bad_argument("state_index", "is outside the family");
    const auto index = static_cast<std::size_t>(state_index);
    output.fill(describe_plane(head.family.states[index], head.schema.states[index]));
    return success();
  });
}

kvpack_status kvpack_cut_chunk(const kvpack_cut* cut, uint64_t* state_index, kvpack_chunk_span* span,
                               kvpack_chunk_ref* ref, uint64_t index, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(cut, "cut"));
    const auto& chunks = cut->open->plan->chunks();
    if (index >= chunks.size()) return bad_argument("index", "is outside the cut");
    const ChainChunk& chunk = chunks[static_cast<std::size_t>(index)];
    if (state_index != nullptr) *state_index = chunk.state_index;
    if (span != nullptr) *span = from_span(chunk.span);
    if (ref != nullptr) *ref = from_ref(chunk.ref);
    return success();
  });
}

kvpack_status kvpack_cut_manifest(const kvpack_cut* cut, kvpack_manifest** out, uint32_t depth,
                                  kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(cut, "cut"));
    KVPACK_TRY(check_pointer(out, "out"));
    const auto& links = cut->open->chain->links();
    if (depth >= links.size()) return bad_argument("depth", "is outside the chain");
    const ChainLink& link = links[depth];
    *out =
        new kvpack_manifest(std::shared_ptr<const CutManifest>(cut->open, &link.manifest), link.manifest_id);
    return success();
  });
}

kvpack_status kvpack_cut_restore(const kvpack_cut* cut, const kvpack_shadow* shadows, uint64_t shadow_count,
                                 const kvpack_restore_options* options, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(cut, "cut"));
    KVPACK_TRY_ASSIGN(const Restore known, read_restore_options(*cut->open, options));
    return restore(*cut->open, shadows, shadow_count, known);
  });
}

kvpack_status kvpack_cut_stream(const kvpack_cut* cut, const kvpack_restore_options* options,
                                kvpack_chunk_visit_fn visit, void* visit_user, kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(cut, "cut"));
    KVPACK_TRY_ASSIGN(const Restore known, read_restore_options(*cut->open, options));
    if (visit == nullptr) return bad_argument("visit", "is NULL");
    return stream(*cut->open, known, visit, visit_user);
  });
}

kvpack_status kvpack_cut_verify(const kvpack_cut* cut, const kvpack_restore_options* options,
                                kvpack_error** error) {
  return guard(error, [&]() -> Status {
    KVPACK_TRY(check_handle(cut, "cut"));
    KVPACK_TRY_ASSIGN(const Restore known, read_restore_options(*cut->open, options));
    ObservedObjects objects(*cut->open->objects, *cut->open->plan, known.progress, known.progress_user);
    return verify_cut_chunks(*cut->open->plan, objects, known.options.keys, known.options.parallelism, {},
                             *known.options.sha256);
  });
}

void kvpack_cut_free(kvpack_cut* cut) {
  free_handle(cut);
}
