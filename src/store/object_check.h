/// One stored object against the keys, for whoever looks at all of them. docs/operations.md §Repair
#pragma once

#include "kvpack/core/chunk.h"
#include "kvpack/core/pack.h"
#include "kvpack/crypto/sha256_machine.h"
#include "store/store_context.h"

namespace kvpack::store {

/// A pack that has been looked at.
struct StoredManifest {
  PackHeader header{};
  std::uint64_t file_bytes = 0;
  /// What it holds, authenticated; nothing when it is another tenant's.
  std::optional<CutManifest> manifest{};
};

/// Reads a pack and opens it with the keys, whatever the catalog says. What seems damaged is read once more.
/// @param header  set as soon as the frame is intact, also when the call then fails
/// @error kNotFound `artifact not found`, `key epoch is outside the readable window`; is_damage(); kIo
Result<StoredManifest> open_stored_manifest(StoreContext& context, const Id32& id,
                                            std::optional<PackHeader>* header = nullptr);

/// Reads chunks and authenticates them. Buffers are used again. One thread at a time.
class ChunkCheck {
 public:
  explicit ChunkCheck(StoreContext& context) noexcept : context_(&context) {}
  /// All that a manifest says about a chunk. What seems damaged is read once more.
  /// @error kNotFound as above; is_damage(); kIo
  Status check(const ChunkRef& ref, const ChunkSpan& span, const StateKey& state,
               const IdentifiedFamily& family);
  /// The same without knowing what it holds: for a chunk that no manifest names.
  Status check(const ChunkRef& ref);

 private:
  template <class Verify>
  Status read_and(const ChunkRef& ref, Verify&& verify);

  StoreContext* context_;
  Bytes buffer_{};
  ChunkScratch scratch_{machine_sha256_kernels()};
};

}  // namespace kvpack::store
