#include "store/object_batch.h"

#include <map>

#include "kvpack/core/pack.h"
#include "store/damage.h"
#include "store/quarantine.h"
#include "store/store_objects.h"

namespace kvpack::store {
namespace {

constexpr std::size_t kCompareWindowBytes = std::size_t{64} << 10;
/// A random name is not taken, and a target does not come and go; both end in an error all the same.
constexpr int kMaxNameAttempts = 16;
constexpr int kMaxLinkAttempts = 4;
/// Directories that are open at once, of the many that a batch may have.
constexpr std::size_t kMaxOpenShards = 16;

struct NamedPartial {
  std::unique_ptr<File> file;
  std::string name;
};

Result<NamedPartial> create_named_partial(StoreContext& context) {
  for (int attempt = 0; attempt < kMaxNameAttempts; ++attempt) {
    KVPACK_TRY_ASSIGN(const Id32 random, random_id(context));
    std::string name = random.hex().substr(0, 32) + ".partial";
    auto file = context.files.partials().create(name);
    if (file.has_value()) return NamedPartial{*std::move(file), std::move(name)};
    if (file.error().code != ErrorCode::kExpectation) return std::move(file.error());
  }
  return fail(ErrorCode::kBusy, "resource is busy");
}

Error target_error(const StagedObject& object, const char* message) {
  return fail(ErrorCode::kAuthentication, message).with("object", object.id.hex());
}

Result<bool> has_equal_bytes(const File& target, std::uint64_t target_bytes, const StagedFile& ours) {
  if (target_bytes != ours.size_bytes()) return false;
  std::array<Bytes, 2> windows{Bytes(kCompareWindowBytes), Bytes(kCompareWindowBytes)};
  for (std::uint64_t at = 0; at < target_bytes;) {
    const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(target_bytes - at, kCompareWindowBytes));
    const MutableByteSpan there = MutableByteSpan(windows[0]).first(n);
    const MutableByteSpan here = MutableByteSpan(windows[1]).first(n);
    KVPACK_TRY(read_exactly(target, at, there));
    KVPACK_TRY(read_exactly(ours.file(), at, here));
    if (!std::ranges::equal(there, here)) return false;
    at += n;
  }
  return true;
}

/// A pack with other bytes may hold the same manifest: an encrypted one is salted anew each time, and one
/// that was saved without encryption is no damage either. As with chunks, what is there is used as it is.
Result<bool> holds_same_manifest(const StoreContext& context, const File& target, std::uint64_t target_bytes,
                                 const StagedObject& object) {
  if (object.manifest == nullptr || target_bytes < kMinPackBytes || target_bytes > kMaxPackBytes)
    return false;
  Bytes pack(static_cast<std::size_t>(target_bytes));
  KVPACK_TRY(read_exactly(target, 0, pack));
  const auto opened = open_pack(pack, context.keys());
  return opened.has_value() && opened->header.manifest_id == object.id &&
         opened->header.tenant == context.tenant &&
         context.options.epochs.contains(opened->header.key_epoch) && opened->manifest == *object.manifest;
}

Result<bool> can_be_adopted(const StoreContext& context, const File& target, std::uint64_t target_bytes,
                            const StagedObject& object) {
  KVPACK_TRY_ASSIGN(const bool equal, has_equal_bytes(target, target_bytes, object.file));
  if (equal) return true;
  return holds_same_manifest(context, target, target_bytes, object);
}

Result<bool> has_available_row(StoreContext& context, const StagedObject& object) {
  return context.catalog->read([&](sqlite::Database& db) -> Result<bool> {
    KVPACK_TRY_ASSIGN(const auto row,
                      db.number(object.kind == ObjectKind::kChunk
                                    ? "SELECT chunk FROM chunks WHERE object_key = ? AND state = 1"
                                    : "SELECT manifest FROM manifests WHERE manifest_id = ? AND state = 1",
                                object.id));
    return row.has_value();
  });
}

/// What is in the object's place, by its name, looked at once more.
Status look_at_target(const StoreContext& context, Directory& shard, const std::string& name,
                      const StagedObject& object) {
  KVPACK_TRY_ASSIGN(const auto target, shard.open(name, OpenMode::kRead));
  KVPACK_TRY_ASSIGN(const FileFacts facts, target->facts());
  KVPACK_TRY_ASSIGN(const bool adoptable, can_be_adopted(context, *target, facts.size_bytes, object));
  if (adoptable) return success();
  return target_error(object, "existing immutable target has different bytes");
}

/// Moves what is in the object's place, and is damaged, to quarantine, unless it is not there any more.
Status move_target_away(StoreContext& context, Directory& shard, const std::string& name,
                        const StagedObject& object) {
  const Error damage = target_error(object, "existing immutable target has different bytes");
  if (context.options.strict) return damage;
  KVPACK_TRY_ASSIGN(const bool visible, has_available_row(context, object));
  if (visible) {
    const StoreFault fault = handle_damage(context, object.kind, object.id, damage, 0, [&](const Id32&) {
      return look_at_target(context, shard, name, object);
    });
    if (fault.action == StoreFault::Action::kQuarantined) return success();
    // Left alone because somebody else has healed it, or has just moved it.
    const Status now = look_at_target(context, shard, name, object);
    return now.has_value() || !is_damage(now.error()) ? success() : Status(damage);
  }
  // Nobody can find it, so nothing is withdrawn: what a publication has left that was never completed.
  const Status moved =
      quarantine_file(context, shard, name, QuarantineKind::kDamagedObject, object.id, damage.message);
  if (!moved.has_value() && moved.error().code == ErrorCode::kNotFound) return success();
  KVPACK_TRY(moved);
  context.counters.add(Counter::kObjectsQuarantined);
  if (context.options.on_fault)
    context.options.on_fault({.object = object.kind == ObjectKind::kChunk ? StoreFault::Object::kChunk
                                                                          : StoreFault::Object::kManifest,
                              .action = StoreFault::Action::kQuarantined,
                              .id = object.id,
                              .path = join_path(shard.path(), name),
                              .error = damage});
  return success();
}

/// Judges what lies in the object's place. @return whether it is adopted; else to be tried again
Result<bool> adopt_or_move_away(StoreContext& context, Directory& shard, const std::string& name,
                                StagedObject& object) {
  const auto facts = shard.facts(name);
  if (!facts.has_value() && facts.error().code == ErrorCode::kNotFound) return false;
  if (!facts.has_value()) return Error(facts.error());
  if (facts->kind != FileKind::kRegular)
    return target_error(object, "existing immutable target has different bounds");
  auto target = shard.open(name, OpenMode::kRead);
  if (!target.has_value() && target.error().code == ErrorCode::kNotFound) return false;
  if (!target.has_value()) return std::move(target.error());
  KVPACK_TRY_ASSIGN(bool adoptable, can_be_adopted(context, **target, facts->size_bytes, object));
  // Read once more before it is called damaged.
  if (!adoptable) {
    KVPACK_TRY_ASSIGN(adoptable, can_be_adopted(context, **target, facts->size_bytes, object));
  }
  if (!adoptable) {
    KVPACK_TRY(move_target_away(context, shard, name, object));
    return false;
  }
  // Whoever wrote it may not have made it durable yet.
  KVPACK_TRY((*target)->sync());
  object.file_bytes = facts->size_bytes;
  return true;
}

Status link_object(StoreContext& context, Directory& shard, StagedObject& object) {
  const std::string name = object_file_name(object.kind, object.id);
  for (int attempt = 0; attempt < kMaxLinkAttempts; ++attempt) {
    Status linked = object.file.link_into(shard, name);
    if (linked.has_value()) {
      object.file_bytes = object.file.size_bytes();
      return linked;
    }
    if (linked.error().code != ErrorCode::kExpectation) return linked;
    // One at a time, so that nobody moves away what another has just linked over the same damage.
    const std::lock_guard lock(context.target_mutex);
    KVPACK_TRY_ASSIGN(const bool adopted, adopt_or_move_away(context, shard, name, object));
    if (adopted) return success();
  }
  return target_error(object, "existing immutable target has different bytes");
}

/// The objects of a batch by the directory that they are linked into.
using ShardsOfBatch = std::map<std::pair<ObjectKind, std::string>, std::vector<StagedObject*>>;

Status sync_files(StoreContext& context, std::span<StagedObject> objects, unsigned threads) {
  std::vector<File*> files;
  files.reserve(objects.size());
  for (const StagedObject& object : objects) files.push_back(&object.file.file());
  return context.files.writer().sync(files, threads);
}

Status sync_shards(StoreContext& context, const ShardsOfBatch& shards, unsigned threads) {
  std::vector<std::unique_ptr<Directory>> open;
  std::vector<Directory*> together;
  for (auto at = shards.begin(); at != shards.end();) {
    const auto& [kind, name] = at->first;
    KVPACK_TRY_ASSIGN(auto shard, context.files.objects(kind).open_directory(name));
    together.push_back(shard.get());
    open.push_back(std::move(shard));
    if (++at != shards.end() && open.size() < kMaxOpenShards) continue;
    KVPACK_TRY(context.files.writer().sync(std::span<Directory* const>(together), threads));
    together.clear();
    open.clear();
  }
  return success();
}

}  // namespace

StagedFile::StagedFile(StoreContext& context, std::unique_ptr<File> file, std::string partial,
                       std::uint64_t size_bytes) noexcept
    : context_(&context), file_(std::move(file)), partial_(std::move(partial)), size_bytes_(size_bytes) {
  ++context_->staged_files;
}

StagedFile::StagedFile(StagedFile&& other) noexcept
    : context_(other.context_),
      file_(std::move(other.file_)),
      partial_(std::exchange(other.partial_, {})),
      size_bytes_(other.size_bytes_) {}

StagedFile& StagedFile::operator=(StagedFile&& other) noexcept {
  if (this != &other) {
    discard();
    context_ = other.context_;
    file_ = std::move(other.file_);
    partial_ = std::exchange(other.partial_, {});
    size_bytes_ = other.size_bytes_;
  }
  return *this;
}

StagedFile::~StagedFile() {
  discard();
}

void StagedFile::discard() noexcept {
  // Best effort: opening moves what stays to quarantine.
  if (!partial_.empty()) (void)context_->files.partials().unlink(partial_);
  partial_.clear();
  if (file_ != nullptr) {
    context_->files.writer().forget(*file_);
    --context_->staged_files;
  }
  file_.reset();
}

Result<StagedFile> StagedFile::write(StoreContext& context, std::span<const ByteSpan> pieces) {
  std::string name;
  KVPACK_TRY_ASSIGN(auto file, context.files.partials().create_unnamed());
  if (file == nullptr) {
    KVPACK_TRY_ASSIGN(NamedPartial partial, create_named_partial(context));
    file = std::move(partial.file);
    name = std::move(partial.name);
  }
  StagedFile staged(context, std::move(file), std::move(name), sum_of_sizes(pieces));
  KVPACK_TRY(context.files.writer().write(*staged.file_, pieces));
  return staged;
}

Status StagedFile::link_into(Directory& shard, std::string_view name) {
  if (partial_.empty()) return shard.link_unnamed(*file_, name);
  return context_->files.partials().link(partial_, shard, name);
}

Result<bool> StagedFile::finish() {
  const bool named = !partial_.empty();
  if (named) KVPACK_TRY(context_->files.partials().unlink(partial_));
  partial_.clear();
  discard();
  return named;
}

Result<bool> object_is_whole(const StoreContext& context, ObjectKind kind, const Id32& id,
                             std::uint64_t file_bytes) {
  const auto facts = context.files.object_facts(kind, id);
  if (facts.has_value()) return facts->kind == FileKind::kRegular && facts->size_bytes == file_bytes;
  if (facts.error().code == ErrorCode::kNotFound) return false;
  return Error(facts.error());
}

Status link_objects(StoreContext& context, std::span<StagedObject> objects, unsigned threads) {
  KVPACK_TRY(sync_files(context, objects, threads));
  ShardsOfBatch shards;
  for (StagedObject& object : objects) shards[{object.kind, shard_name(object.id)}].push_back(&object);
  for (const auto& [place, members] : shards) KVPACK_TRY(context.files.make_shard(place.first, place.second));
  KVPACK_TRY(context.files.sync_new_shards());
  bool partials_dirty = false;
  for (const auto& [place, members] : shards) {
    KVPACK_TRY_ASSIGN(const auto shard, context.files.objects(place.first).open_directory(place.second));
    for (StagedObject* const object : members) {
      KVPACK_TRY(link_object(context, *shard, *object));
      KVPACK_TRY_ASSIGN(const bool named, object->file.finish());
      partials_dirty = partials_dirty || named;
    }
  }
  // All are linked before any directory is synced, so that one commit of the file system's journal serves
  // all.
  KVPACK_TRY(sync_shards(context, shards, threads));
  if (partials_dirty) KVPACK_TRY(context.files.partials().sync());
  return success();
}

}  // namespace kvpack::store
