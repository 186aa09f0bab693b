/// A directory that holds all that a cache needs: `store.key`, and the store in `store`. docs/adopt.md
/// §The directory
#pragma once

#include "kvpack/store/store.h"

namespace kvpack {

/// The operator's name of the tenant, where nobody gives another.
inline constexpr std::string_view kDefaultCacheTenant = "cache";

/// The store of a cache directory.
std::string cache_store_root(const std::string& directory);
/// Its key file, unless the caller keeps it elsewhere.
std::string cache_key_path(const std::string& directory);

/// Reads the key of a cache directory. With `create` it makes what is missing: the directory, and 32 random
/// bytes under `key_path`, mode 0600, complete and durable or not at all; of several that do so at once, one
/// makes the key and all have it. Never beside a store that is there already, since another key cannot open
/// it. The directory that holds the key, and the key, must belong to the effective user; others may look into
/// that directory (0755), but not write into it.
/// @error kNotFound there is no key file, and `create` is not set; kState `cache key is missing, and there is
///        a store that needs it: {key path}`, `directory of a cache key must be writable by its owner alone:
///        {directory}`, `cache key must be owned by the user who reads it: {key path}`; as read_key_file; kIo
Result<SecretKey> open_cache_key(FileSystem& fs, RandomSource& random, const std::string& directory,
                                 const std::string& key_path, bool create);

/// Opens the store of a cache for writing. With `create` it makes one, and the directory around it, where
/// there is none, or only what an interrupted creation has left.
/// @error as Store::open, and Store::create
Result<std::unique_ptr<Store>> open_cache_store(const StoreOptions& options, bool create);

}  // namespace kvpack
