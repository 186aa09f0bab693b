/// Every file below `chunks/` or `manifests/`, shard by shard. docs/format/store.md §Files
#pragma once

#include <functional>

#include "store/store_files.h"

namespace kvpack::store {

/// Something in a directory of objects.
struct ObjectFile {
  Directory* shard = nullptr;  ///< Where it lies: a shard, or for a foreign entry the directory of shards.
  std::string name;
  /// The object that it is by its name and place: a regular file; nothing for a foreign entry.
  std::optional<Id32> id{};
  FileFacts facts{};
};

/// Calls `visit` for each entry, in the order of shards and names, until it fails. One shard's names are in
/// memory at a time. What comes or goes meanwhile may be visited or not.
Status visit_object_files(const StoreFiles& files, ObjectKind kind,
                          const std::function<Status(const ObjectFile&)>& visit);

}  // namespace kvpack::store
