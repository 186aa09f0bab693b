#include "store/store_files.h"

namespace kvpack::store {
namespace {

constexpr std::string_view suffix_of(ObjectKind kind) {
  return kind == ObjectKind::kChunk ? ".kvchunk" : ".kvpack";
}

Result<std::unique_ptr<Directory>> open_private(Directory& parent, std::string_view name, bool create) {
  if (create) {
    const Status made = parent.make_directory(name);
    if (!made.has_value() && made.error().code != ErrorCode::kExpectation) return Error(made.error());
  }
  KVPACK_TRY_ASSIGN(auto directory, parent.open_directory(name));
  KVPACK_TRY(check_private(*directory));
  return directory;
}

}  // namespace

std::string object_file_name(ObjectKind kind, const Id32& id) {
  return id.hex() + std::string(suffix_of(kind));
}

std::string shard_name(const Id32& id) {
  return id.hex().substr(0, 2);
}

std::optional<Id32> object_id_of(ObjectKind kind, std::string_view file_name) {
  if (!file_name.ends_with(suffix_of(kind))) return std::nullopt;
  file_name.remove_suffix(suffix_of(kind).size());
  return Id32::from_hex(file_name);
}

void DirtyDirectories::add(const std::string& path, std::unique_ptr<Directory> directory) {
  directories_.try_emplace(path, std::move(directory));
}

Status DirtyDirectories::sync_all() {
  for (auto& [path, directory] : directories_) KVPACK_TRY(directory->sync());
  directories_.clear();
  return success();
}

Status check_private(const Directory& directory) {
  KVPACK_TRY_ASSIGN(const FileFacts facts, directory.facts());
  if (!facts.ours || !facts.is_private())
    return fail(ErrorCode::kState, "store directory is not private: " + directory.path());
  return success();
}

Result<StoreFiles> StoreFiles::open_or_create(FileSystem& fs, const std::string& root, bool create) {
  StoreFiles files;
  KVPACK_TRY_ASSIGN(files.root_, fs.open_directory(root, Links::kRefuse));
  KVPACK_TRY(check_private(*files.root_));
  KVPACK_TRY_ASSIGN(files.objects_, open_private(*files.root_, "objects", create));
  const std::pair<std::string_view, std::unique_ptr<Directory>*> below_objects[] = {
      {"chunks", &files.chunks_},
      {"manifests", &files.manifests_},
      {"partials", &files.partials_},
      {"uploads", &files.uploads_},
      {"quarantine", &files.quarantine_}};
  for (const auto& [name, place] : below_objects) {
    KVPACK_TRY_ASSIGN(*place, open_private(*files.objects_, name, create));
  }
  KVPACK_TRY_ASSIGN(files.pins_, open_private(*files.root_, "pins", create));
  files.writer_ = std::make_unique<FileWriter>(*files.partials_);
  return files;
}

Result<StoreFiles> StoreFiles::open(FileSystem& fs, const std::string& root) {
  return open_or_create(fs, root, false);
}

Result<StoreFiles> StoreFiles::create(FileSystem& fs, const std::string& root) {
  return open_or_create(fs, root, true);
}

Status StoreFiles::check_present() const {
  KVPACK_TRY_ASSIGN(const FileFacts facts, root_->facts());
  if (facts.links == 0) return fail(ErrorCode::kState, "store directory was removed: " + root_->path());
  return success();
}

Result<FileFacts> StoreFiles::object_facts(ObjectKind kind, const Id32& id) const {
  KVPACK_TRY_ASSIGN(const auto shard, objects(kind).open_directory(shard_name(id)));
  return shard->facts(object_file_name(kind, id));
}

Result<std::unique_ptr<File>> StoreFiles::open_object(ObjectKind kind, const Id32& id) const {
  KVPACK_TRY_ASSIGN(const auto shard, objects(kind).open_directory(shard_name(id)));
  return shard->open(object_file_name(kind, id), OpenMode::kRead);
}

Result<bool> StoreFiles::unlink_object(ObjectKind kind, const Id32& id, DirtyDirectories& dirty) const {
  auto shard = objects(kind).open_directory(shard_name(id));
  if (!shard.has_value()) {
    if (shard.error().code == ErrorCode::kNotFound) return false;
    return std::move(shard.error());
  }
  const Status gone = (*shard)->unlink(object_file_name(kind, id));
  const bool existed = gone.has_value();
  if (!existed && gone.error().code != ErrorCode::kNotFound) return Error(gone.error());
  // An absent name may have been removed by a process that died before it synced.
  const std::string path = (*shard)->path();
  dirty.add(path, *std::move(shard));
  return existed;
}

std::string StoreFiles::object_path(ObjectKind kind, const Id32& id) const {
  return join_path(join_path(objects(kind).path(), shard_name(id)), object_file_name(kind, id));
}

Status StoreFiles::make_shard(ObjectKind kind, std::string_view name) const {
  const std::lock_guard lock(new_shards_->mutex);
  bool& is_new = kind == ObjectKind::kChunk ? new_shards_->of_chunks : new_shards_->of_manifests;
  const Status made = objects(kind).make_directory(name);
  if (!made.has_value() && made.error().code != ErrorCode::kExpectation) return Error(made.error());
  is_new = is_new || made.has_value();
  return success();
}

Status StoreFiles::sync_new_shards() const {
  // A name in a directory whose own name is lost is lost too. Somebody else may have made the shard that is
  // to be used: then it is synced here, or has been.
  const std::lock_guard lock(new_shards_->mutex);
  if (new_shards_->of_chunks) KVPACK_TRY(chunks_->sync());
  new_shards_->of_chunks = false;
  if (new_shards_->of_manifests) KVPACK_TRY(manifests_->sync());
  new_shards_->of_manifests = false;
  return success();
}

std::string StoreFiles::catalog_path() const {
  return join_path(join_path(root_->path(), kCatalogDirectoryName), kCatalogFileName);
}

}  // namespace kvpack::store
