/// The files of a publication: objects are written to temporary files at once, and later all synced and
/// linked into their places together. docs/format/store.md §Publication, F1 to F5
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "kvpack/core/manifest.h"
#include "store/store_context.h"

namespace kvpack::store {

/// Temporary files of all sessions beyond which a batch ends early: each holds a descriptor.
inline constexpr std::size_t kMaxStagedFiles = 512;

/// An object's bytes in a file of `partials/` that has no name there, or where that is not possible a random
/// one. It is gone with its owner unless it has been linked. Must not outlive the store.
class StagedFile {
 public:
  /// Reserves room, then writes, or begins to (FileWriter). The file is not synced.
  /// @param pieces  the object, in order
  static Result<StagedFile> write(StoreContext& context, std::span<const ByteSpan> pieces);
  static Result<StagedFile> write(StoreContext& context, ByteSpan bytes) {
    return write(context, std::span(&bytes, 1));
  }

  StagedFile(StagedFile&& other) noexcept;
  StagedFile& operator=(StagedFile&& other) noexcept;
  ~StagedFile();

  /// Not to be read before it has been synced.
  File& file() const noexcept { return *file_; }
  std::uint64_t size_bytes() const noexcept { return size_bytes_; }

  /// Gives the file a name in `shard`. Never replaces. @error kExpectation the name is taken
  Status link_into(Directory& shard, std::string_view name);
  /// Removes the temporary name and closes. @return whether there was a name, so that `partials/` needs a
  /// sync
  Result<bool> finish();

 private:
  StagedFile(StoreContext& context, std::unique_ptr<File> file, std::string partial,
             std::uint64_t size_bytes) noexcept;
  void discard() noexcept;

  StoreContext* context_;
  std::unique_ptr<File> file_;  ///< Null once finished or moved from.
  std::string partial_;         ///< Name in `partials/`; empty for a file without a name.
  std::uint64_t size_bytes_;
};

/// One object on its way.
struct StagedObject {
  ObjectKind kind = ObjectKind::kChunk;
  Id32 id{};
  StagedFile file;
  /// Of a manifest: what its pack holds, to be compared with a pack that is in its place already.
  const CutManifest* manifest = nullptr;
  std::uint64_t file_bytes = 0;  ///< After link_objects: size of the file in the object's place.
};

/// Whether the object has its file: regular and of this length. @error kIo it cannot be told
Result<bool> object_is_whole(const StoreContext& context, ObjectKind kind, const Id32& id,
                             std::uint64_t file_bytes);

/// Makes each object durable and links it into its place, and makes the names durable. Every object must have
/// been planned and the plan committed. What lies in an object's place already is adopted when it is equal,
/// or is a pack that authenticates as the same manifest; otherwise it is damaged and moved to quarantine. The
/// temporary files are gone afterwards. An error leaves some of the objects linked.
/// @param threads  how many may sync where the system has no queue for it
/// @error kAuthentication `existing immutable target has different bounds` (no regular file),
///        `existing immutable target has different bytes` (damage that this handle must not move); kIo
///        kCatalog
Status link_objects(StoreContext& context, std::span<StagedObject> objects, unsigned threads = 1);

}  // namespace kvpack::store
