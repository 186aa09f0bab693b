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
  Status read_chunk_pieces(const ChunkRef& ref, std::span<const MutableByteSpan> pieces,
                           Bytes& spare) override;

 private:
  const StoreFiles* files_;
};

/// Authenticates chains that may share manifests, each of which is read once. One thread at a time.
class ChainReader {
 public:
  /// @param limits  as for authenticate_chain
  ChainReader(StoreContext& context, const ManifestLimits& limits) noexcept
      : context_(&context), limits_(limits) {}
  /// As authenticate_chain.
  Result<ManifestChain> authenticate(const Id32& leaf_id);

 private:
  Result<const ChainLink*> read(const Id32& id, bool is_leaf);

  StoreContext* context_;
  ManifestLimits limits_;
  std::unordered_map<Id32, ChainLink, Id32Hash> links_{};
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

/// Whether an error that was met while reading an object says that the object is wrong (`Authentication`,
/// `Codec` and the other categories of the formats), as against absent, unreadable, or nothing to do with the
/// object.
bool is_damage(const Error& error) noexcept;

}  // namespace kvpack::store
