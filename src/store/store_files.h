/// The directories of a store and the names in them. Paths are made from ids alone, and every call is
/// relative to a directory that was opened once. docs/format/store.md §Files
#pragma once

#include <map>
#include <mutex>

#include "kvpack/base/file_writer.h"
#include "kvpack/core/ids.h"
#include "store/schema.h"

namespace kvpack::store {

inline constexpr std::string_view kLockName = "store.lock";
inline constexpr std::string_view kReserveName = "reserve.bin";
inline constexpr std::string_view kCatalogDirectoryName = "catalog";
inline constexpr std::string_view kCatalogFileName = "catalog.sqlite";
inline constexpr std::string_view kNewCatalogDirectoryName = "catalog.new";
inline constexpr std::string_view kCatalogCompleteName = "complete";

/// `<hex64>.kvchunk` or `<hex64>.kvpack`.
std::string object_file_name(ObjectKind kind, const Id32& id);
/// First two digits of the id.
std::string shard_name(const Id32& id);
/// The id in the name of an object file of this kind, or nothing.
std::optional<Id32> object_id_of(ObjectKind kind, std::string_view file_name);

/// Directories whose names have changed and must be made durable: gathered over a batch, synced once each.
class DirtyDirectories {
 public:
  void add(const std::string& path, std::unique_ptr<Directory> directory);
  bool empty() const noexcept { return directories_.empty(); }
  /// Syncs each once, in the order of their paths, and forgets them.
  Status sync_all();

 private:
  std::map<std::string, std::unique_ptr<Directory>> directories_;
};

/// Usable from several threads at once.
class StoreFiles {
 public:
  StoreFiles() = default;  ///< Nothing is open yet.
  /// Opens an existing root and its directories.
  /// @error kState `store directory is not private: {path}`; kNotFound kIo
  static Result<StoreFiles> open(FileSystem& fs, const std::string& root);
  /// The same, with directories that are missing being made. The root exists.
  static Result<StoreFiles> create(FileSystem& fs, const std::string& root);

  Directory& root() const noexcept { return *root_; }
  Directory& chunks() const noexcept { return *chunks_; }
  Directory& manifests() const noexcept { return *manifests_; }
  Directory& partials() const noexcept { return *partials_; }
  Directory& quarantine() const noexcept { return *quarantine_; }
  Directory& pins() const noexcept { return *pins_; }
  Directory& objects() const noexcept { return *objects_; }
  /// What objects are written and synced with.
  FileWriter& writer() const noexcept { return *writer_; }
  Directory& objects(ObjectKind kind) const noexcept {
    return kind == ObjectKind::kChunk ? *chunks_ : *manifests_;
  }

  /// The root has been removed while it was open. What is written below it would be lost.
  /// @error kState `store directory was removed: {path}`
  Status check_present() const;

  /// @error kNotFound the file or its shard is absent
  Result<FileFacts> object_facts(ObjectKind kind, const Id32& id) const;
  Result<std::unique_ptr<File>> open_object(ObjectKind kind, const Id32& id) const;
  /// Removes the file; its shard is added to `dirty`. @return false when it was absent
  Result<bool> unlink_object(ObjectKind kind, const Id32& id, DirtyDirectories& dirty) const;
  /// For messages.
  std::string object_path(ObjectKind kind, const Id32& id) const;

  /// Makes the directory in which objects are linked, unless it is there.
  Status make_shard(ObjectKind kind, std::string_view name) const;
  /// Makes durable the names of all shards that were made, here or elsewhere, before one of them is used.
  Status sync_new_shards() const;

  /// Path of the catalog's database, for SQLite.
  std::string catalog_path() const;

 private:
  /// Parents of shards that have been made, and whose sync has failed or not come yet.
  struct NewShards {
    std::mutex mutex{};
    bool of_chunks = false;
    bool of_manifests = false;
  };
  static Result<StoreFiles> open_or_create(FileSystem& fs, const std::string& root, bool create);
  std::unique_ptr<Directory> root_, objects_, chunks_, manifests_, partials_, uploads_, quarantine_, pins_;
  std::unique_ptr<NewShards> new_shards_ = std::make_unique<NewShards>();
  std::unique_ptr<FileWriter> writer_{};  ///< Ends before the directories do.
};

/// A directory of ours: owned by the effective user, no bit for group or others.
/// @error kState `store directory is not private: {path}`
Status check_private(const Directory& directory);

}  // namespace kvpack::store
