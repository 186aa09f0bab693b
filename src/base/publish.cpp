#include "kvpack/base/publish.h"

#include "kvpack/base/hex.h"

namespace kvpack {
namespace {

constexpr std::string_view kPrefix = ".kvpack.";
constexpr std::string_view kSuffix = ".partial";
constexpr std::string_view kDirectorySuffix = "-directory";
constexpr std::size_t kRandomDigits = 16;
constexpr std::size_t kPartialNameBytes = kPrefix.size() + kRandomDigits + kSuffix.size();
/// A name can be taken, or its file swept before it is locked; neither happens many times in a row.
constexpr int kMaxAttempts = 16;
/// One sweep looks at no more than this many leftovers; the next one goes on.
constexpr std::size_t kMaxSwept = 1024;
constexpr const char* kClosed = "publication failed or ended earlier";
constexpr std::size_t kCompareBytes = std::size_t{1} << 20;
/// Files that are open at once to be synced together.
constexpr std::size_t kMaxSyncedTogether = 64;
/// So much is appended before it is asked to be brought to the medium, so that the sync at the end is short.
constexpr std::uint64_t kWriteBackBytes = std::uint64_t{8} << 20;

bool is_partial_name(std::string_view name) {
  if (name.size() != kPartialNameBytes || !name.starts_with(kPrefix) || !name.ends_with(kSuffix))
    return false;
  return from_hex(name.substr(kPrefix.size(), kRandomDigits)).has_value();
}

bool is_partial_directory_name(std::string_view name) {
  return name.ends_with(kDirectorySuffix) &&
         is_partial_name(name.substr(0, name.size() - kDirectorySuffix.size()));
}

bool is_name_of_ours(std::string_view name) {
  return is_partial_name(name) || is_partial_directory_name(name);
}

std::string directory_name_of(std::string_view partial) {
  return std::string(partial).append(kDirectorySuffix);
}

bool still_named(const Directory& directory, const File& file, std::string_view name) {
  const auto open = file.facts();
  const auto named = directory.facts(name);
  return open.has_value() && named.has_value() && open->is_same_file(*named);
}

struct Partial {
  std::unique_ptr<File> file;
  std::string name;
};

/// A new partial file, locked, under a name of its own.
Result<Partial> create_partial(Directory& directory) {
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    KVPACK_TRY_ASSIGN(const std::uint64_t random, directory.random_bits());
    std::string name(kPrefix);
    name.append(to_hex(be_bytes(random))).append(kSuffix);
    auto file = directory.create(name);
    if (!file.has_value() && file.error().code == ErrorCode::kExpectation) continue;
    if (!file.has_value()) return std::move(file.error());
    const auto locked = (*file)->try_lock(LockMode::kExclusive);
    if (!locked.has_value()) {
      (void)directory.unlink(name);
      return locked.error();
    }
    // A sweeper that saw the file before the lock was taken removes it.
    if (*locked && still_named(directory, **file, name)) return Partial{*std::move(file), std::move(name)};
  }
  return fail(ErrorCode::kBusy, "no name for a partial file in " + directory.path());
}

/// Names in a directory, collected first because removing while listing leaves open what is seen.
Result<std::vector<std::string>> names_in(Directory& directory, std::size_t max,
                                          bool (*wanted)(std::string_view)) {
  std::vector<std::string> names;
  KVPACK_TRY(directory.list([&](std::string_view name) {
    if (wanted(name)) names.emplace_back(name);
    return names.size() < max;
  }));
  return names;
}

bool any_name(std::string_view) {
  return true;
}

/// Removes a directory and what is in it, following no link.
Status remove_tree(Directory& parent, std::string_view name, int depth) {
  if (depth == 0) return fail(ErrorCode::kLimit, "directory is nested too deeply");
  {
    KVPACK_TRY_ASSIGN(const auto directory, parent.open_directory(name));
    for (;;) {
      KVPACK_TRY_ASSIGN(const auto names, names_in(*directory, kMaxSwept, any_name));
      for (const std::string& inner : names) {
        KVPACK_TRY_ASSIGN(const FileFacts facts, directory->facts(inner));
        if (facts.kind == FileKind::kDirectory) {
          KVPACK_TRY(remove_tree(*directory, inner, depth - 1));
        } else {
          KVPACK_TRY(directory->unlink(inner));
        }
      }
      if (names.size() < kMaxSwept) break;
    }
  }
  return parent.remove_directory(name);
}

/// Syncs every file, then every directory from the inside out.
Status sync_tree(Directory& directory, FileWriter& writer, int depth) {
  if (depth == 0) return fail(ErrorCode::kLimit, "directory is nested too deeply");
  std::vector<std::string> names;
  KVPACK_TRY(directory.list([&](std::string_view name) {
    names.emplace_back(name);
    return true;
  }));
  std::vector<std::unique_ptr<File>> files;
  const auto sync_files = [&]() -> Status {
    std::vector<File*> together;
    for (const auto& file : files) together.push_back(file.get());
    KVPACK_TRY(writer.sync(std::span<File* const>(together)));
    files.clear();
    return success();
  };
  std::vector<std::string> directories;
  for (const std::string& name : names) {
    KVPACK_TRY_ASSIGN(const FileFacts facts, directory.facts(name));
    if (facts.kind == FileKind::kDirectory) {
      directories.push_back(name);
      continue;
    }
    KVPACK_TRY_ASSIGN(auto file, directory.open(name, OpenMode::kRead));
    file->start_write_back();
    files.push_back(std::move(file));
    if (files.size() == kMaxSyncedTogether) KVPACK_TRY(sync_files());
  }
  KVPACK_TRY(sync_files());
  for (const std::string& name : directories) {
    KVPACK_TRY_ASSIGN(const auto inner, directory.open_directory(name));
    KVPACK_TRY(sync_tree(*inner, writer, depth - 1));
  }
  return directory.sync();
}

/// Whether `name` is a regular file with the bytes of `file`; made durable when it is.
Result<bool> target_is_equal(Directory& directory, std::string_view name, const File& file) {
  KVPACK_TRY_ASSIGN(const FileFacts named, directory.facts(name));
  if (named.kind != FileKind::kRegular) return false;
  KVPACK_TRY_ASSIGN(const auto target, directory.open(name, OpenMode::kRead));
  KVPACK_TRY_ASSIGN(const FileFacts facts, target->facts());
  KVPACK_TRY_ASSIGN(const FileFacts own_facts, file.facts());
  const std::uint64_t size_bytes = own_facts.size_bytes;
  if (facts.size_bytes != size_bytes) return false;
  Bytes ours(static_cast<std::size_t>(std::min<std::uint64_t>(size_bytes, kCompareBytes)));
  Bytes theirs(ours.size());
  // What is published may be a key.
  const WipeOnExit wipe_ours(ours);
  const WipeOnExit wipe_theirs(theirs);
  for (std::uint64_t at = 0; at < size_bytes;) {
    const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(size_bytes - at, ours.size()));
    KVPACK_TRY(read_exactly(file, at, MutableByteSpan(ours).first(n)));
    KVPACK_TRY(read_exactly(*target, at, MutableByteSpan(theirs).first(n)));
    if (!std::ranges::equal(ByteSpan(ours).first(n), ByteSpan(theirs).first(n))) return false;
    at += n;
  }
  // Whoever wrote it may not have made it durable yet.
  KVPACK_TRY(target->sync());
  return true;
}

/// Gives a complete file its name, or finds that the name stands for the same bytes already.
template <class GiveName>
Result<Published> name_or_adopt(Directory& directory, std::string_view name, const File& file,
                                GiveName&& give_name) {
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    auto named = give_name();
    if (named.has_value()) return Published::kNew;
    if (named.error().code != ErrorCode::kExpectation) return std::move(named.error());
    auto equal = target_is_equal(directory, name, file);
    // The target vanished again between the two looks.
    if (!equal.has_value() && equal.error().code == ErrorCode::kNotFound) continue;
    if (!equal.has_value()) return std::move(equal.error());
    if (!*equal) return fail(ErrorCode::kExpectation, "target exists with different bytes");
    return Published::kAlreadyThere;
  }
  return fail(ErrorCode::kBusy, "target comes and goes: " + join_path(directory.path(), name));
}

/// True when the partial file was stale and is gone, and with it the directory that it guards.
bool sweep_file(Directory& directory, const std::string& name) {
  const auto facts = directory.facts(name);
  if (!facts.has_value() || facts->kind != FileKind::kRegular || !facts->ours) return false;
  const auto file = directory.open(name, OpenMode::kRead);
  if (!file.has_value()) return false;
  const auto locked = (*file)->try_lock(LockMode::kExclusive);
  if (!locked.has_value() || !*locked) return false;
  // Its writer may have given it its final name before the lock came free.
  if (!still_named(directory, **file, name)) return false;
  const auto guarded = remove_tree(directory, directory_name_of(name), DirectoryPublication::kMaxDepth + 1);
  if (!guarded.has_value() && guarded.error().code != ErrorCode::kNotFound) return false;
  return directory.unlink(name).has_value();
}

/// A living writer's directory always has its lock file beside it, so one without is stale.
bool sweep_directory(Directory& directory, const std::string& name) {
  const auto lock = directory.facts(std::string_view(name).substr(0, kPartialNameBytes));
  if (lock.has_value() || lock.error().code != ErrorCode::kNotFound) return false;
  const auto facts = directory.facts(name);
  if (!facts.has_value() || facts->kind != FileKind::kDirectory || !facts->ours) return false;
  return remove_tree(directory, name, DirectoryPublication::kMaxDepth + 1).has_value();
}

}  // namespace

Result<std::size_t> sweep_partials(Directory& directory) {
  KVPACK_TRY_ASSIGN(const auto names, names_in(directory, kMaxSwept, is_name_of_ours));
  std::size_t removed = 0;
  for (const std::string& name : names)
    if (is_partial_name(name)) removed += sweep_file(directory, name) ? 1 : 0;
  // Those whose file has just gone went with it.
  for (const std::string& name : names)
    if (is_partial_directory_name(name)) removed += sweep_directory(directory, name) ? 1 : 0;
  return removed;
}

Publication::Publication(Directory& directory, std::unique_ptr<File> file, std::string partial)
    : directory_(&directory), file_(std::move(file)), partial_(std::move(partial)), sink_(*file_) {}

Publication::Publication(Publication&& other) noexcept
    : directory_(other.directory_),
      file_(std::move(other.file_)),
      partial_(std::exchange(other.partial_, {})),
      sink_(other.sink_),
      written_back_(other.written_back_),
      closed_(other.closed_) {}

Publication::~Publication() {
  discard();
}

void Publication::discard() noexcept {
  // While the lock is held, so that no sweeper can be at the same name.
  if (!partial_.empty()) (void)directory_->unlink(partial_);
  partial_.clear();
  file_.reset();
}

Result<Publication> Publication::begin(Directory& directory) {
  (void)sweep_partials(directory);  // What cannot be removed takes room but does no harm.
  KVPACK_TRY_ASSIGN(auto unnamed, directory.create_unnamed());
  if (unnamed != nullptr) return Publication(directory, std::move(unnamed), {});
  KVPACK_TRY_ASSIGN(auto partial, create_partial(directory));
  return Publication(directory, std::move(partial.file), std::move(partial.name));
}

Status Publication::append(ByteSpan data) {
  if (closed_) return fail(ErrorCode::kPoisoned, kClosed);
  auto appended = sink_.append(data);
  if (!appended.has_value()) {
    closed_ = true;
    return appended;
  }
  if (sink_.offset() - written_back_ >= kWriteBackBytes) {
    file_->start_write_back();
    written_back_ = sink_.offset();
  }
  return success();
}

Status Publication::give_name(std::string_view name) {
  if (partial_.empty()) return directory_->link_unnamed(*file_, name);
  KVPACK_TRY(rename_no_replace(*directory_, partial_, *directory_, name));
  partial_.clear();
  return success();
}

Result<Published> Publication::commit(std::string_view name) {
  if (closed_) return fail(ErrorCode::kPoisoned, kClosed);
  closed_ = true;
  KVPACK_TRY(check_file_name(name));
  KVPACK_TRY(file_->sync());
  KVPACK_TRY_ASSIGN(const Published published,
                    name_or_adopt(*directory_, name, *file_, [&] { return give_name(name); }));
  if (published == Published::kAlreadyThere) discard();
  KVPACK_TRY(directory_->sync());
  return published;
}

DirectoryPublication::DirectoryPublication(Directory& parent, std::unique_ptr<File> lock,
                                           std::string lock_name, std::unique_ptr<Directory> directory)
    : parent_(&parent),
      lock_(std::move(lock)),
      lock_name_(std::move(lock_name)),
      directory_(std::move(directory)) {}

DirectoryPublication::DirectoryPublication(DirectoryPublication&& other) noexcept = default;

DirectoryPublication::~DirectoryPublication() {
  if (lock_ == nullptr) return;
  // The lock file goes last: a directory without one would belong to nobody.
  directory_.reset();
  const auto removed = remove_tree(*parent_, directory_name_of(lock_name_), kMaxDepth + 1);
  if (removed.has_value() || removed.error().code == ErrorCode::kNotFound) (void)parent_->unlink(lock_name_);
}

Result<DirectoryPublication> DirectoryPublication::begin(Directory& parent) {
  (void)sweep_partials(parent);
  KVPACK_TRY_ASSIGN(auto lock, create_partial(parent));
  DirectoryPublication publication(parent, std::move(lock.file), lock.name, nullptr);
  const std::string name = directory_name_of(lock.name);
  KVPACK_TRY(parent.make_directory(name));
  KVPACK_TRY_ASSIGN(publication.directory_, parent.open_directory(name));
  return publication;
}

Status DirectoryPublication::commit(std::string_view name) {
  if (lock_ == nullptr) return fail(ErrorCode::kPoisoned, kClosed);
  KVPACK_TRY(check_file_name(name));
  FileWriter writer(*directory_);
  KVPACK_TRY(sync_tree(*directory_, writer, kMaxDepth + 1));
  auto renamed = rename_no_replace(*parent_, directory_name_of(lock_name_), *parent_, name);
  if (!renamed.has_value() && renamed.error().code == ErrorCode::kExpectation)
    return fail(ErrorCode::kExpectation, "target exists");
  KVPACK_TRY(std::move(renamed));
  (void)parent_->unlink(lock_name_);  // The next sweep takes it otherwise.
  lock_.reset();
  return parent_->sync();
}

Result<GroupPublication> GroupPublication::begin(Directory& directory) {
  KVPACK_TRY_ASSIGN(DirectoryPublication staging, DirectoryPublication::begin(directory));
  return GroupPublication(directory, std::move(staging));
}

Status GroupPublication::stage(std::string_view name, ByteSpan bytes, std::vector<std::string>& names) {
  if (closed_) return fail(ErrorCode::kPoisoned, kClosed);
  const auto write = [&]() -> Status {
    auto file = staging_.directory().create(name);
    if (!file.has_value() && file.error().code == ErrorCode::kExpectation)
      return fail(ErrorCode::kGraph, "two objects have the same name").with("object", std::string(name));
    if (!file.has_value()) return std::move(file.error());
    FileBatch& files = unsynced_->files;
    KVPACK_TRY(files.write(*std::move(file), bytes));
    return files.size() < kMaxSyncedTogether ? success() : files.sync();
  };
  auto written = write();
  if (!written.has_value()) {
    closed_ = true;
    return written;
  }
  names.emplace_back(name);
  return success();
}

Status GroupPublication::name_all(const std::vector<std::string>& names, std::vector<std::string>& fresh) {
  if (names.empty()) return success();
  Directory& staged = staging_.directory();
  for (const std::string& name : names) {
    KVPACK_TRY_ASSIGN(const auto file, staged.open(name, OpenMode::kRead));
    auto published =
        name_or_adopt(*directory_, name, *file, [&] { return staged.link(name, *directory_, name); });
    if (!published.has_value())
      return std::move(published.error()).with("object", join_path(directory_->path(), name));
    if (*published == Published::kNew) fresh.push_back(name);
  }
  return directory_->sync();
}

Status GroupPublication::commit() {
  if (closed_) return fail(ErrorCode::kPoisoned, kClosed);
  closed_ = true;
  KVPACK_TRY(unsynced_->files.sync());
  const bool alone = directory_->lock();
  std::vector<std::string> new_objects;
  std::vector<std::string> new_heads;
  auto status = name_all(objects_, new_objects);
  if (status.has_value()) status = name_all(heads_, new_heads);
  if (!status.has_value() && alone && new_heads.empty())
    for (const std::string& name : new_objects) (void)directory_->unlink(name);
  return status;
}

Result<Published> publish_bytes(Directory& directory, std::string_view name, ByteSpan bytes) {
  KVPACK_TRY_ASSIGN(auto publication, Publication::begin(directory));
  KVPACK_TRY(publication.append(bytes));
  return publication.commit(name);
}

}  // namespace kvpack
