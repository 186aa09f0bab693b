#include "kvpack/base/publish.h"
#include "kvpack/crypto/sha256.h"
#include "kvpack/store/transfer.h"
#include "store/cut_faults.h"
#include "store/restore_run.h"
#include "store/store_objects.h"

namespace kvpack {

using namespace store;  // the facade of what lives there

namespace {

/// Stored objects; remembers which one was asked for last. What is wrong once is read once more.
class ExportedObjects final : public ObjectSource {
 public:
  explicit ExportedObjects(const StoreContext& context) noexcept : objects_(context.files) {}

  Result<Bytes> read_pack(const Id32& manifest_id) override {
    last_ = ObjectKind::kManifest;
    return objects_.read_pack(manifest_id);
  }
  Status read_chunk(const ChunkRef& ref, MutableByteSpan object) override {
    last_ = ObjectKind::kChunk;
    Status read = read_and_compare(ref, object);
    if (!read.has_value() && is_damage(read.error())) read = read_and_compare(ref, object);
    return read;
  }
  ObjectKind last() const noexcept { return last_; }

 private:
  Status read_and_compare(const ChunkRef& ref, MutableByteSpan object) {
    KVPACK_TRY(objects_.read_chunk(ref, object));
    if (sha256(object) != ref.stored_object_digest.bytes)
      return fail(ErrorCode::kAuthentication, "chunk object digest mismatch");
    return success();
  }

  StoreObjects objects_;
  ObjectKind last_ = ObjectKind::kManifest;
};

}  // namespace

Result<PackSetSummary> export_pack_set(Store& store, const Id32& manifest_id, Append& out,
                                       const ExportOptions& options) {
  StoreContext& context = store.context();
  // Pinned before its rows and files are looked at, so that what is seen stays.
  KVPACK_TRY_ASSIGN(const Pins::Pin pin, pin_cut(context, manifest_id));
  const LookAgain look = look_at_cut(context, manifest_id, options.limits);
  auto chain = authenticate_chain(context, manifest_id, options.limits);
  if (!chain.has_value()) {
    (void)report_object_error(context, ObjectKind::kManifest, chain.error(), 0, look);
    return std::move(chain.error());
  }
  ExportedObjects objects(context);
  auto written = write_pack_set(*chain, objects, context.keys(), context.options.epochs.active, out);
  if (!written.has_value()) {
    (void)report_object_error(context, objects.last(), written.error(), chain->head().input_cut.token_count,
                              look);
    return written;
  }
  if (!context.read_only) context.accesses.note(manifest_id, context.now_ns());
  return written;
}

Result<PackSetSummary> export_pack_set(Store& store, const PrefixQuery& query, Append& out,
                                       const ExportOptions& options) {
  KVPACK_TRY_ASSIGN(const auto hit, find_deepest(store, query));
  if (!hit) return fail(ErrorCode::kNotFound, "artifact not found");
  return export_pack_set(store, hit->manifest_id, out, options);
}

Result<PackSetSummary> export_pack_set_file(Store& store, const Id32& manifest_id, std::string_view path,
                                            const ExportOptions& options) {
  KVPACK_TRY_ASSIGN(const Place place, open_place(store.context().fs(), path));
  KVPACK_TRY_ASSIGN(Publication publication, Publication::begin(*place.directory));
  KVPACK_TRY_ASSIGN(const PackSetSummary summary, export_pack_set(store, manifest_id, publication, options));
  KVPACK_TRY(publication.commit(place.name));
  return summary;
}

}  // namespace kvpack
