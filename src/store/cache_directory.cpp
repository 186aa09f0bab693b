#include "kvpack/store/cache_directory.h"

#include "kvpack/base/publish.h"

namespace kvpack {

namespace {

constexpr std::string_view kCacheStoreName = "store";
constexpr std::string_view kCacheKeyName = "store.key";

/// Others may look into it: the key file itself is private.
Status check_key_directory(const Directory& directory) {
  KVPACK_TRY_ASSIGN(const FileFacts facts, directory.facts());
  if (!facts.ours || (facts.permissions & 022) != 0)
    return fail(ErrorCode::kState,
                "directory of a cache key must be writable by its owner alone: " + directory.path());
  return success();
}

/// @error kNotFound there is none
Result<SecretKey> read_cache_key(FileSystem& fs, const std::string& key_path) {
  KVPACK_TRY_ASSIGN(const Place place, open_place(fs, key_path));
  KVPACK_TRY(check_key_directory(*place.directory));
  KVPACK_TRY_ASSIGN(const FileFacts facts, place.directory->facts(place.name));
  if (!facts.ours)
    return fail(ErrorCode::kState, "cache key must be owned by the user who reads it: " + key_path);
  return read_key_file(fs, key_path);
}

Status make_cache_key(FileSystem& fs, RandomSource& random, const std::string& key_path) {
  std::array<std::uint8_t, SecretKey::kBytes> bytes{};
  const WipeOnExit wipe(bytes);
  KVPACK_TRY(random.fill(bytes));
  KVPACK_TRY_ASSIGN(const Place place, open_or_make_place(fs, key_path));
  KVPACK_TRY(check_key_directory(*place.directory));
  const auto published = publish_bytes(*place.directory, place.name, bytes);
  // Somebody else was faster, with a key that is as good.
  if (!published.has_value() && published.error().code != ErrorCode::kExpectation)
    return Error(published.error());
  return success();
}

}  // namespace

std::string cache_store_root(const std::string& directory) {
  return join_path(directory, kCacheStoreName);
}

std::string cache_key_path(const std::string& directory) {
  return join_path(directory, kCacheKeyName);
}

Result<SecretKey> open_cache_key(FileSystem& fs, RandomSource& random, const std::string& directory,
                                 const std::string& key_path, bool create) {
  auto key = read_cache_key(fs, key_path);
  if (key.has_value() || key.error().code != ErrorCode::kNotFound || !create) return key;
  KVPACK_TRY_ASSIGN(const auto opened, open_or_make_directory(fs, directory));
  const auto store = opened->facts(kCacheStoreName);
  // Asked for again behind the store: who made both meanwhile made the key first.
  key = read_cache_key(fs, key_path);
  if (key.has_value() || key.error().code != ErrorCode::kNotFound) return key;
  if (store.has_value())
    return fail(ErrorCode::kState, "cache key is missing, and there is a store that needs it: " + key_path);
  if (store.error().code != ErrorCode::kNotFound) return Error(store.error());
  KVPACK_TRY(make_cache_key(fs, random, key_path));
  return read_cache_key(fs, key_path);
}

Result<std::unique_ptr<Store>> open_cache_store(const StoreOptions& options, bool create) {
  auto opened = Store::open(options);
  if (opened.has_value() || !create) return opened;
  const ErrorCode why = opened.error().code;
  if (why != ErrorCode::kNotFound && why != ErrorCode::kState) return opened;
  SystemFileSystem system_files;
  FileSystem& fs = options.file_system != nullptr ? *options.file_system : system_files;
  // Not there yet where the key was not made in it.
  KVPACK_TRY(open_or_make_place(fs, options.root));
  auto created = Store::create(options);
  // What is there is a store by now, or opening it says what is wrong with it.
  if (!created.has_value() && created.error().code == ErrorCode::kExpectation) return Store::open(options);
  return created;
}

}  // namespace kvpack
