/// Objects in folders, by name: chunk objects as <object key hex>.kvchunk, packs as <manifest id hex>.kvpack.
#pragma once

#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

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

 private:
  FileSystem* fs_;
  std::string chunk_folder_;
  std::string pack_folder_;
};

/// Files on their way into a folder, all or none: staged in a hidden folder inside, then linked one by one,
/// the last one last. Without a commit, or when it fails, nothing stays.
class StagedFiles {
 public:
  /// Creates the folder when it is missing. @error kIo kQuota
  static Result<StagedFiles> begin(FileSystem& fs, const std::string& folder);

  StagedFiles(StagedFiles&&) noexcept = default;
  StagedFiles& operator=(StagedFiles&&) = delete;
  ~StagedFiles();

  /// @error kIo kQuota
  Status add(const std::string& name, ByteSpan bytes);

  /// Gives every file its name, in the order in which they were added, and makes all durable.
  /// @error kExpectation `target exists with different bytes`; kIo kQuota; the names that were new are
  /// removed again
  Status commit();

  std::size_t file_count() const noexcept { return names_.size(); }

 private:
  StagedFiles(Place place, std::unique_ptr<Directory> folder, DirectoryPublication staging)
      : place_(std::move(place)),
        folder_(std::move(folder)),
        staging_(std::make_unique<DirectoryPublication>(std::move(staging))) {}
  Status link_one(const std::string& name, std::vector<std::string>& fresh);

  Place place_;  ///< Of a folder that is ours to remove while nothing has been committed; else empty.
  std::unique_ptr<Directory> folder_;
  std::unique_ptr<DirectoryPublication> staging_;
  std::vector<std::string> names_;
  std::unordered_set<std::string> known_;
};

}  // namespace kvpack::cli
