/// The rows that make cuts visible. docs/format/store.md §Committing
#pragma once

#include <span>

#include "store/upload.h"

namespace kvpack::store {

/// What manifests of one upload must be, before anything is written.
/// @error kState `manifest batch requires one final publication in last position`;
///        kExpectation `manifest batch identities, order, or exact prefix nodes disagree`, `manifest batch is
///        not one full plus bounded deltas and compactions`; and as encode_manifest
Status check_manifest_batch(const StoreContext& context, std::span<const ManifestToPublish> manifests);

/// Makes the rows of manifests whose files are in place, or brings back those that are there, inside an open
/// write transaction. Chunks and parents must be available; a parent may be among the manifests.
/// @param file_bytes  of each manifest's file, as it is in its place
/// @param publication  the upload's generation
/// @return bytes of the manifests that are new to the catalog
/// @error kAuthentication `manifest references a mismatched chunk catalog row`, `existing manifest catalog
/// row
///        disagrees with immutable bytes`, with `object`; kNotFound the file has gone; kCatalog kIo
Result<std::uint64_t> publish_manifest_rows(StoreContext& context, sqlite::Database& db,
                                            std::span<const ManifestToPublish> manifests,
                                            std::span<const std::uint64_t> file_bytes,
                                            std::uint64_t publication);

/// Whether what an upload has published is still what a retry would publish.
/// @error kAuthentication `published idempotency result changed`, `published cut set no longer matches its
///        idempotent result`
Status check_published(sqlite::Database& db, const Id32& head_id,
                       std::span<const ManifestToPublish> manifests);

}  // namespace kvpack::store
