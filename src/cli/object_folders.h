/// Objects in folders, by name: chunk objects as <object key hex>.kvchunk, packs as <manifest id hex>.kvpack.
#pragma once

#include <memory>
#include <string>

#include "kvpack/base/publish.h"
#include "kvpack/core/object_store.h"
#include "kvpack/core/pack.h"

namespace kvpack::cli {

/// A file named on the command line, read whole. What it may hold is told by its magic.
enum class ObjectKind { kChunk, kPack, kPackSet, kProof };

/// @param head  the first bytes of a file
/// @error kTruncated shorter than a magic; kBadMagic none of ours
Result<ObjectKind> kind_of(ByteSpan head);

inline std::string chunk_file_name(const Id32& object_key) {
  return object_key.hex() + ".kvchunk";
}
inline std::string pack_file_name(const Id32& manifest_id) {
  return manifest_id.hex() + ".kvpack";
}

/// The folder that a path lies in, as a path.
std::string folder_of(const std::string& path);

/// A pack, whole. One that is too long for any pack is judged by its first and last page.
/// @error as check_pack_frame for a file that is too long; as read_file_bounded
Result<Bytes> read_pack_file(FileSystem& fs, const std::string& path, Links links);

/// Reads objects that manifests name. Links are not followed. Usable from several threads.
class FolderObjects final : public ObjectSource {
 public:
  /// Folders are opened when the first object is asked for: a folder that is never needed may be missing.
  FolderObjects(FileSystem& fs, std::string chunk_folder, std::string pack_folder)
      : fs_(&fs), chunk_folder_(std::move(chunk_folder)), pack_folder_(std::move(pack_folder)) {}

  Result<Bytes> read_pack(const Id32& manifest_id) override;
  Status read_chunk(const ChunkRef& ref, MutableByteSpan object) override;
  Status read_chunk_pieces(const ChunkRef& ref, std::span<const MutableByteSpan> pieces,
                           Bytes& spare) override;

 private:
  FileSystem* fs_;
  std::string chunk_folder_;
  std::string pack_folder_;
};

/// Objects on their way into a folder: chunk objects, and packs that name them (GroupPublication).
class StagedObjects {
 public:
  /// Creates the folder when it is missing. @error kIo
  static Result<StagedObjects> begin(FileSystem& fs, const std::string& folder);

  StagedObjects(StagedObjects&&) noexcept = default;
  StagedObjects& operator=(StagedObjects&&) = delete;
  ~StagedObjects();

  /// @error kGraph two objects have the same name; kIo
  Status add_chunk(const Id32& object_key, ByteSpan object) {
    return publication_->add(chunk_file_name(object_key), object);
  }
  Status add_pack(const Id32& manifest_id, ByteSpan pack) {
    return publication_->add_head(pack_file_name(manifest_id), pack);
  }

  /// Gives every object its name, packs last. @error as GroupPublication::commit
  Status commit();

 private:
  StagedObjects(Place place, std::unique_ptr<Directory> folder, GroupPublication publication)
      : place_(std::move(place)),
        folder_(std::move(folder)),
        publication_(std::make_unique<GroupPublication>(std::move(publication))) {}

  Place place_;  ///< Of a folder that is ours to remove while nothing has been committed; else empty.
  std::unique_ptr<Directory> folder_;
  std::unique_ptr<GroupPublication> publication_;
};

}  // namespace kvpack::cli
