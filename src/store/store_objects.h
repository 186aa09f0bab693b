/// Reading stored objects: bytes by identity, and whole chains that the catalog names. docs/format/store.md
/// §Reading
#pragma once

#include "kvpack/core/chain.h"
#include "store/store_context.h"

namespace kvpack::store {

/// The objects of a store as files, whatever the catalog says. Reads from several threads at once.
class StoreObjects final : public ObjectSource {
 public:
  /// @param files  must outlive it
  explicit StoreObjects(const StoreFiles& files) noexcept : files_(&files) {}

  /// @error kNotFound `artifact not found`; kAuthentication `manifest object length changed` (no regular
  ///        file, too long for a manifest, or changed meanwhile); kIo
  Result<Bytes> read_pack(const Id32& manifest_id) override;
  /// @error kNotFound `artifact not found`; kAuthentication `pinned chunk metadata mismatch` (no regular
  ///        file, another length); kIo
  Status read_chunk(const ChunkRef& ref, MutableByteSpan object) override;

 private:
  const StoreFiles* files_;
};

/// Opens a committed cut and all its parents: each is AVAILABLE in the catalog and in the readable window,
/// has the length that the catalog says, and is authenticated before its parent is asked for. An error about
/// an object names it as `object`.
/// @param limits  the caller's own; what they refuse is returned without `object`: nothing is wrong with it
/// @error kNotFound `artifact not found`; kAuthentication `catalog manifest size exceeds bound`, `manifest
///        object length changed`, `manifest candidate belongs to another tenant`, and as
///        ManifestChain::create; what open_pack says; kCatalog kIo
Result<ManifestChain> authenticate_chain(StoreContext& context, const Id32& manifest_id,
                                         const ManifestLimits& limits = {});

/// Whether an error says that the bytes of an object, or what refers to it, are wrong.
bool is_damage(const Error& error) noexcept;

}  // namespace kvpack::store
