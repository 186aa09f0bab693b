#include "store/catalog_swap.h"

#include <vector>

namespace kvpack::store {
namespace {

Result<bool> exists(Directory& directory, std::string_view name) {
  const auto facts = directory.facts(name);
  if (facts.has_value()) return true;
  if (facts.error().code == ErrorCode::kNotFound) return false;
  return Error(facts.error());
}

/// Removes a directory of plain files.
Status remove_with_files(Directory& parent, std::string_view name) {
  KVPACK_TRY_ASSIGN(auto directory, parent.open_directory(name));
  std::vector<std::string> names;
  KVPACK_TRY(directory->list([&](std::string_view file) {
    names.emplace_back(file);
    return true;
  }));
  for (const std::string& file : names) KVPACK_TRY(directory->unlink(file));
  KVPACK_TRY(directory->sync());
  return parent.remove_directory(name);
}

}  // namespace

Status finish_catalog_swap(Directory& root) {
  KVPACK_TRY_ASSIGN(const bool pending, exists(root, kNewCatalogDirectoryName));
  if (!pending) return success();
  KVPACK_TRY_ASSIGN(const bool current, exists(root, kCatalogDirectoryName));
  bool complete = false;
  if (!current) {
    KVPACK_TRY_ASSIGN(const auto fresh, root.open_directory(kNewCatalogDirectoryName));
    KVPACK_TRY_ASSIGN(complete, exists(*fresh, kCatalogCompleteName));
  }
  if (complete) {
    KVPACK_TRY(root.rename(kNewCatalogDirectoryName, root, kCatalogDirectoryName));
  } else {
    KVPACK_TRY(remove_with_files(root, kNewCatalogDirectoryName));
  }
  return root.sync();
}

Result<std::string> swap_in_new_catalog(Directory& root, const Clock& clock) {
  {
    KVPACK_TRY_ASSIGN(const auto fresh, root.open_directory(kNewCatalogDirectoryName));
    KVPACK_TRY_ASSIGN(const auto database, fresh->open(kCatalogFileName, OpenMode::kReadWrite));
    KVPACK_TRY(database->sync());
    KVPACK_TRY(fresh->sync());
    // The mark is made when everything that it stands for is durable.
    KVPACK_TRY_ASSIGN(const auto mark, fresh->create(kCatalogCompleteName));
    KVPACK_TRY(mark->sync());
    KVPACK_TRY(fresh->sync());
    KVPACK_TRY(root.sync());
  }
  std::string backup;
  KVPACK_TRY_ASSIGN(const bool current, exists(root, kCatalogDirectoryName));
  if (current) {
    for (std::uint64_t seconds = clock.wall_ms() / 1'000;; ++seconds) {
      backup = "catalog.backup-" + std::to_string(seconds);
      KVPACK_TRY_ASSIGN(const bool taken, exists(root, backup));
      if (!taken) break;
    }
    KVPACK_TRY(root.rename(kCatalogDirectoryName, root, backup));
    KVPACK_TRY(root.sync());
  }
  KVPACK_TRY(root.rename(kNewCatalogDirectoryName, root, kCatalogDirectoryName));
  KVPACK_TRY(root.sync());
  return backup.empty() ? backup : join_path(root.path(), backup);
}

}  // namespace kvpack::store
