#include "store/catalog_reading.h"

#include <chrono>
#include <thread>

namespace kvpack::store {
namespace {

/// @pre the gate is held
Result<bool> is_open_catalog_current(const StoreContext& context) {
  const auto now = catalog_file_facts(context);
  // Between the two renames of a swap there is none; the rows of the old one are as good as before.
  if (!now.has_value() && now.error().code == ErrorCode::kNotFound) return true;
  if (!now.has_value()) return Error(now.error());
  if (!now->is_same_file(context.catalog_file)) return false;
  // Somebody writes after all.
  return !context.catalog_is_immutable || !has_catalog_log(context);
}

}  // namespace

Result<FileFacts> catalog_file_facts(const StoreContext& context) {
  KVPACK_TRY_ASSIGN(const auto directory, context.files.root().open_directory(kCatalogDirectoryName));
  return directory->facts(kCatalogFileName);
}

bool has_catalog_log(const StoreContext& context) {
  const auto directory = context.files.root().open_directory(kCatalogDirectoryName);
  if (!directory.has_value()) return true;
  const auto log = (*directory)->facts(std::string(kCatalogFileName) + "-wal");
  return log.has_value() || log.error().code != ErrorCode::kNotFound;
}

bool is_catalog_moved(const StoreContext& context) {
  const auto now = catalog_file_facts(context);
  return now.has_value() ? !now->is_same_file(context.catalog_file)
                         : now.error().code == ErrorCode::kNotFound;
}

void wait_for_swap() {
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

Status follow_catalog(StoreContext& context) {
  {
    const std::shared_lock lock(context.catalog_gate);
    KVPACK_TRY_ASSIGN(const bool current, is_open_catalog_current(context));
    if (current) return success();
  }
  const std::unique_lock lock(context.catalog_gate);
  // While it is being opened it may be moved away too, by the next rebuild.
  for (int tries = 3;;) {
    KVPACK_TRY_ASSIGN(const bool current, is_open_catalog_current(context));
    if (current) return success();
    Status opened = open_reading_catalog(context);
    if (opened.has_value() || --tries == 0) return opened;
  }
}

}  // namespace kvpack::store
