#include "store/stored_chunks.h"

#include "store/catalog_reading.h"

namespace kvpack::store {
namespace {

enum class RowVerdict : std::uint8_t { kAbsent, kAgrees, kDisagrees };

/// The row of a reference's object that can be used, against the reference.
Result<RowVerdict> judge_chunk_row(sqlite::Database& db, const ChunkRef& ref) {
  KVPACK_TRY_ASSIGN(auto row, db.prepare("SELECT content_id, object_digest, key_epoch, plaintext_bytes,"
                                         " object_bytes FROM chunks WHERE object_key = ?1 AND state = 1"));
  KVPACK_TRY_ASSIGN(const bool found, row.bind(ref.object_key).step());
  if (!found) return RowVerdict::kAbsent;
  const bool agrees = row.id(0) == ref.content_id && row.id(1) == ref.stored_object_digest &&
                      row.count(2) == ref.key_epoch && row.count(3) == ref.plaintext_bytes &&
                      row.count(4) == ref.object_bytes;
  return agrees ? RowVerdict::kAgrees : RowVerdict::kDisagrees;
}

/// Calls `use` with each reference of the chain until it fails.
template <class Use>
Status for_each_reference(const ManifestChain& chain, Use&& use) {
  for (const ChainLink& link : chain.links())
    for (const PayloadState& state : link.manifest.payload)
      for (const ChunkRef& ref : state.chunks) KVPACK_TRY(use(ref));
  return success();
}

Status check_stored_row(sqlite::Database& db, const ChunkRef& ref) {
  KVPACK_TRY_ASSIGN(const RowVerdict verdict, judge_chunk_row(db, ref));
  if (verdict == RowVerdict::kAbsent)
    return fail(ErrorCode::kNotFound, "artifact not found").with("object", ref.object_key.hex());
  if (verdict == RowVerdict::kDisagrees)
    return fail(ErrorCode::kAuthentication, "local chunk catalog disagrees with authenticated manifest")
        .with("object", ref.object_key.hex());
  return success();
}

Status check_stored_file(const StoreFiles& files, const ChunkRef& ref) {
  const auto facts = files.object_facts(ObjectKind::kChunk, ref.object_key);
  if (!facts.has_value()) {
    Error error = facts.error();
    if (error.code == ErrorCode::kNotFound) error = fail(ErrorCode::kNotFound, "artifact not found");
    return std::move(error).with("object", ref.object_key.hex());
  }
  if (facts->kind != FileKind::kRegular || facts->size_bytes != ref.object_bytes)
    return fail(ErrorCode::kAuthentication,
                "local chunk object metadata disagrees with authenticated manifest")
        .with("object", ref.object_key.hex());
  return success();
}

}  // namespace

Status check_stored_chunks(StoreContext& context, const ManifestChain& chain) {
  KVPACK_TRY(read_catalog(context, [&](sqlite::Database& db) -> Status {
    return for_each_reference(chain, [&](const ChunkRef& ref) { return check_stored_row(db, ref); });
  }));
  return for_each_reference(chain,
                            [&](const ChunkRef& ref) { return check_stored_file(context.files, ref); });
}

Status check_rows_again(StoreContext& context, const ManifestChain& chain) {
  return read_catalog(context, [&](sqlite::Database& db) -> Status {
    for (const ChainLink& link : chain.links()) {
      KVPACK_TRY_ASSIGN(
          const auto row,
          db.number("SELECT manifest FROM manifests WHERE manifest_id = ?1 AND state = 1", link.manifest_id));
      if (!row)
        return fail(ErrorCode::kNotFound, "artifact not found").with("object", link.manifest_id.hex());
    }
    return for_each_reference(chain, [&](const ChunkRef& ref) -> Status {
      KVPACK_TRY_ASSIGN(const RowVerdict verdict, judge_chunk_row(db, ref));
      if (verdict != RowVerdict::kAgrees)
        return fail(ErrorCode::kAuthentication, "chunk catalog reference mismatch");
      return success();
    });
  });
}

}  // namespace kvpack::store
