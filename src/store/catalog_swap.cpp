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

}  // namespace kvpack::store
