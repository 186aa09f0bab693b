#include "net/private_file.h"

#include "base/host.h"

namespace kvpack::net {

Result<std::unique_ptr<File>> take_lock_file(Directory& directory, std::string_view name) {
  return lock_or_create(directory, "." + std::string(name) + ".lock");
}

Result<std::unique_ptr<File>> lock_or_create(Directory& directory, const std::string& lock_name) {
  auto lock = directory.open(lock_name, OpenMode::kReadWrite);
  if (!lock.has_value() && lock.error().code == ErrorCode::kNotFound) {
    lock = directory.create(lock_name);
    // Another process may have been faster.
    if (!lock.has_value() && lock.error().code == ErrorCode::kExpectation)
      lock = directory.open(lock_name, OpenMode::kReadWrite);
  }
  if (!lock.has_value()) return std::move(lock.error());
  KVPACK_TRY_ASSIGN(const bool held, (*lock)->try_lock(LockMode::kExclusive));
  if (!held) return fail(ErrorCode::kBusy, lock_name + " is locked by another process");
  return lock;
}

Result<std::unique_ptr<File>> replace_file(Directory& directory, std::string_view name, ByteSpan content) {
  const std::string temporary = "." + std::string(name) + "." + std::to_string(process_id()) + ".tmp";
  KVPACK_TRY_ASSIGN(std::unique_ptr<File> file, directory.create(temporary));
  Status done = write_all(*file, 0, content);
  if (done.has_value()) done = file->sync();
  if (done.has_value()) done = directory.rename(temporary, directory, name);
  if (!done.has_value()) {
    // The first error says more than one of the removal.
    static_cast<void>(directory.unlink(temporary));
    return std::move(done.error());
  }
  KVPACK_TRY(directory.sync());
  return file;
}

Status sweep_replacements(Directory& directory, std::string_view name) {
  const std::string prefix = "." + std::string(name) + ".";
  constexpr std::string_view kSuffix = ".tmp";
  std::vector<std::string> stale;
  KVPACK_TRY(directory.list([&](std::string_view found) {
    if (found.size() > prefix.size() + kSuffix.size() && found.starts_with(prefix) &&
        found.ends_with(kSuffix))
      stale.emplace_back(found);
    return true;
  }));
  for (const std::string& found : stale) KVPACK_TRY(directory.unlink(found));
  return success();
}

}  // namespace kvpack::net
