#include "store/object_check.h"

#include "store/store_objects.h"

namespace kvpack::store {
namespace {

/// A schedule of an epoch that this handle may read.
Result<std::shared_ptr<const KeySchedule>> readable_keys(const StoreContext& context, std::uint64_t epoch) {
  if (!context.options.epochs.contains(epoch))
    return fail(ErrorCode::kNotFound, "key epoch is outside the readable window");
  return context.keys().schedule(epoch);
}

Result<StoredManifest> open_once(StoreContext& context, const Id32& id, std::optional<PackHeader>* header) {
  KVPACK_TRY_ASSIGN(const Bytes pack, StoreObjects(context.files).read_pack(id));
  StoredManifest stored;
  stored.file_bytes = pack.size();
  KVPACK_TRY_ASSIGN(stored.header, check_pack_frame(pack));
  if (header != nullptr) *header = stored.header;
  if (stored.header.tenant != context.tenant) return stored;
  KVPACK_TRY_ASSIGN(const auto keys, readable_keys(context, stored.header.key_epoch));
  KVPACK_TRY_ASSIGN(OpenedPack opened, open_pack(pack, *keys));
  if (stored.header.manifest_id != id)
    return fail(ErrorCode::kAuthentication, "manifest content identity mismatch");
  stored.manifest = std::move(opened.manifest);
  return stored;
}

}  // namespace

Result<StoredManifest> open_stored_manifest(StoreContext& context, const Id32& id,
                                            std::optional<PackHeader>* header) {
  auto stored = open_once(context, id, header);
  if (!stored.has_value() && is_damage(stored.error())) stored = open_once(context, id, header);
  return stored;
}

template <class Verify>
Status ChunkCheck::read_and(const ChunkRef& ref, Verify&& verify) {
  const auto once = [&]() -> Status {
    KVPACK_TRY_ASSIGN(const auto keys, readable_keys(*context_, ref.key_epoch));
    const MutableByteSpan object = room_in(buffer_, ref.object_bytes);
    KVPACK_TRY(StoreObjects(context_->files).read_chunk(ref, object));
    return verify(ByteSpan(object), *keys);
  };
  Status status = once();
  if (!status.has_value() && is_damage(status.error())) status = once();
  return status;
}

Status ChunkCheck::check(const ChunkRef& ref, const ChunkSpan& span, const StateKey& state,
                         const IdentifiedFamily& family) {
  return read_and(ref, [&](ByteSpan object, const KeySchedule& keys) -> Status {
    KVPACK_TRY(open_chunk(object, ref, span, state, family, keys, scratch_));
    return success();
  });
}

Status ChunkCheck::check(const ChunkRef& ref) {
  return read_and(ref, [&](ByteSpan object, const KeySchedule& keys) {
    return check_chunk(object, {.ref = &ref, .tenant = &context_->tenant, .keys = &keys}, scratch_);
  });
}

}  // namespace kvpack::store
