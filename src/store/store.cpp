#include "kvpack/store/store.h"

#include <array>

#include "base/host.h"
#include "store/catalog_reading.h"
#include "store/catalog_swap.h"
#include "store/disk_reserve.h"
#include "store/opening.h"
#include "store/quarantine.h"
#include "store/recovery.h"
#include "store/store_context.h"
#include "store/store_counters.h"

namespace kvpack {

using namespace store;  // the facade of what lives there

namespace {

constexpr std::uint64_t kDefaultQuotaBytes = std::uint64_t{64} << 30;
constexpr std::uint64_t kMaxCount = std::numeric_limits<std::int64_t>::max();
constexpr std::uint64_t kFlushIntervalNs = std::uint64_t{30} * 1'000'000'000;

// --- configuration
// -------------------------------------------------------------------------------------------------

bool is_count(const std::optional<std::uint64_t>& value) {
  return !value || (*value >= 1 && *value <= kMaxCount);
}

bool are_valid(const StoreWatermarks& marks) {
  return marks.stop < marks.begin && marks.begin < marks.emergency && marks.emergency < marks.promotion &&
         marks.promotion <= 1'000 && marks.quarantine <= 100;
}

Status check_options(const StoreOptions& options) {
  const EpochWindow& epochs = options.epochs;
  if (options.keys == nullptr || !epochs.validate().has_value() || options.catalog_epoch < 1 ||
      options.catalog_epoch > kMaxCount || epochs.active > kMaxCount || !is_count(options.quota_bytes) ||
      !is_count(options.staging_quota_bytes))
    return fail(ErrorCode::kState, "store epochs, readable window, or durable/staging quotas are invalid");
  if (!are_valid(options.watermarks)) return fail(ErrorCode::kState, "store watermarks are invalid");
  if (options.memory.parallelism == 0 || options.memory.parallelism > 1'024)
    return fail(ErrorCode::kState, "store parallelism must be 1 to 1024");
  for (std::uint64_t epoch = epochs.minimum_readable; epoch <= epochs.active; ++epoch)
    if (!options.keys->schedule(epoch).has_value())
      return fail(ErrorCode::kState, "store key does not contain the complete readable epoch window");
  return success();
}

Result<std::unique_ptr<StoreContext>> make_context(StoreOptions options) {
  static SystemFileSystem system_files;
  static SystemClock system_clock;
  static SystemRandom system_random;
  KVPACK_TRY(check_options(options));
  if (options.file_system == nullptr) options.file_system = &system_files;
  if (options.clock == nullptr) options.clock = &system_clock;
  if (options.random == nullptr) options.random = &system_random;
  if (options.memory.shadow_bytes == 0) options.memory.shadow_bytes = physical_memory_bytes() / 2;
  auto context = std::make_unique<StoreContext>();
  context->options = std::move(options);
  context->tenant = context->keys().tenant();
  KVPACK_TRY_ASSIGN(context->active_keys, context->keys().schedule(context->options.epochs.active));
  KVPACK_TRY_ASSIGN(context->incarnation, random_id(*context));
  context->flushed_ns = context->clock().monotonic_ns();
  return context;
}

// --- root and lock
// -------------------------------------------------------------------------------------------------

/// The process number in a lock file's text, for the message; `unknown` when it says nothing.
std::string owner_of(const File& lock) {
  std::array<std::uint8_t, 64> text{};
  const auto n = lock.read_some(0, text);
  const std::string_view prefix = "pid ";
  std::string pid;
  for (std::size_t i = prefix.size(); n.has_value() && i < *n && text[i] >= '0' && text[i] <= '9'; ++i)
    pid += static_cast<char>(text[i]);
  return pid.empty() ? "unknown" : pid;
}

Result<std::unique_ptr<File>> take_lock(Directory& root, const Id32& incarnation) {
  auto file = root.open(kLockName, OpenMode::kReadWrite);
  if (!file.has_value() && file.error().code == ErrorCode::kNotFound) file = root.create(kLockName);
  if (!file.has_value() && file.error().code == ErrorCode::kExpectation)
    file = root.open(kLockName, OpenMode::kReadWrite);
  if (!file.has_value()) return file;
  KVPACK_TRY_ASSIGN(const bool locked, (*file)->try_lock(LockMode::kExclusive));
  if (!locked) return fail(ErrorCode::kBusy, "store is open elsewhere: pid " + owner_of(**file));
  const std::string text = "pid " + std::to_string(process_id()) + " incarnation " + incarnation.hex() + "\n";
  // Advisory: who reads it wants to know whom to ask. It need not be durable.
  KVPACK_TRY((*file)->truncate(0));
  KVPACK_TRY(write_all(**file, 0, byte_view(text)));
  return file;
}

/// The catalog's file is a regular one of ours, so that SQLite follows no link.
Status check_catalog_file(Directory& root) {
  const auto missing = [&] {
    return fail(ErrorCode::kState,
                "catalog is missing, rebuild it: " +
                    join_path(join_path(root.path(), kCatalogDirectoryName), kCatalogFileName));
  };
  auto directory = root.open_directory(kCatalogDirectoryName);
  if (!directory.has_value() && directory.error().code == ErrorCode::kNotFound) return missing();
  if (!directory.has_value()) return std::move(directory.error());
  KVPACK_TRY(check_private(**directory));
  const auto facts = (*directory)->facts(kCatalogFileName);
  if (!facts.has_value() && facts.error().code == ErrorCode::kNotFound) return missing();
  if (!facts.has_value()) return Error(facts.error());
  if (facts->kind != FileKind::kRegular || !facts->ours || !facts->is_private())
    return fail(ErrorCode::kState, "catalog is not a private regular file: " +
                                       join_path((*directory)->path(), kCatalogFileName));
  return success();
}

/// Linking is how objects are published, so a file system without it is refused before anything is saved.
Status check_hard_links(StoreContext& context) {
  Directory& partials = context.files.partials();
  KVPACK_TRY_ASSIGN(const Id32 random, random_id(context));
  const std::string name = random.hex().substr(0, 32) + ".partial";
  const std::string second = random.hex().substr(32) + ".partial";
  KVPACK_TRY(partials.create(name));
  const Status linked = partials.link(name, partials, second);
  (void)partials.unlink(name);
  if (!linked.has_value())
    return fail(ErrorCode::kState, "file system has no hard links: " + context.files.root().path());
  return partials.unlink(second);
}

// --- the store row and the key check
// -------------------------------------------------------------------------------

Digest32 key_check(const KeySchedule& keys) {
  return hmac_sha256(keys.manifest_auth_mac(), {with_nul("kvpack-store/v1/key-check"), keys.tenant()});
}

Status insert_store_row(StoreContext& context, sqlite::Database& db) {
  StoreOptions& o = context.options;
  o.quota_bytes = o.quota_bytes.value_or(kDefaultQuotaBytes);
  o.staging_quota_bytes = o.staging_quota_bytes.value_or(*o.quota_bytes);
  return db.run(
      "INSERT INTO store (one, tenant, key_epoch, minimum_epoch, catalog_epoch, quota_bytes, "
      "staging_quota_bytes,"
      " created_ns) VALUES (1, ?, ?, ?, ?, ?, ?, ?)",
      context.tenant, o.epochs.active, o.epochs.minimum_readable, o.catalog_epoch, *o.quota_bytes,
      *o.staging_quota_bytes, context.now_ns());
}

/// The row against the configuration: the tenant is ours, epochs move forward only. Fills in quotas not
/// given.
Status check_store_row(StoreContext& context, sqlite::Database& db) {
  StoreOptions& o = context.options;
  KVPACK_TRY_ASSIGN(auto row,
                    db.prepare("SELECT tenant, key_epoch, minimum_epoch, catalog_epoch, quota_bytes,"
                               " staging_quota_bytes FROM store"));
  KVPACK_TRY_ASSIGN(const bool found, row.step());
  if (!found) return fail(ErrorCode::kCatalog, "catalog: the store row is missing");
  if (row.id(0) != context.tenant)
    return fail(ErrorCode::kAuthentication, "store belongs to another tenant or key");
  // A reader may lag behind a writer that has rotated; what it may read is decided by its keys.
  if (!context.read_only) {
    if (o.epochs.active < row.count(1) || o.epochs.minimum_readable < row.count(2))
      return fail(ErrorCode::kState, "key epochs cannot move backward in an existing catalog");
    if (o.catalog_epoch < row.count(3))
      return fail(ErrorCode::kState, "catalog epoch cannot move backward in an existing catalog");
  }
  if (!o.quota_bytes || context.read_only) o.quota_bytes = row.count(4);
  if (!o.staging_quota_bytes || context.read_only) o.staging_quota_bytes = row.count(5);
  return success();
}

/// Without this a wrong key would make every object look damaged.
Status check_epoch_keys(StoreContext& context, sqlite::Database& db) {
  const EpochWindow& window = context.options.epochs;
  for (std::uint64_t epoch = window.minimum_readable; epoch <= window.active; ++epoch) {
    KVPACK_TRY_ASSIGN(const auto keys, context.keys().schedule(epoch));
    const Digest32 check = key_check(*keys);
    KVPACK_TRY_ASSIGN(auto row, db.prepare("SELECT key_check FROM epochs WHERE epoch = ?"));
    KVPACK_TRY_ASSIGN(const bool known, row.bind(epoch).step());
    if (known && !constant_time_equal(row.blob(0), check))
      return fail(ErrorCode::kAuthentication, "store key does not match epoch " + std::to_string(epoch));
    if (!known && !context.read_only)
      KVPACK_TRY(db.run("INSERT INTO epochs (epoch, key_check) VALUES (?, ?)", epoch, ByteSpan(check)));
  }
  return success();
}

Status register_configuration(StoreContext& context) {
  return context.catalog->write([&](sqlite::Database& db) -> Status {
    KVPACK_TRY_ASSIGN(const auto rows, db.number("SELECT count(*) FROM store"));
    if (rows.value_or(0) == 0) {
      KVPACK_TRY(insert_store_row(context, db));
    } else {
      KVPACK_TRY(check_store_row(context, db));
    }
    KVPACK_TRY(check_epoch_keys(context, db));
    const StoreOptions& o = context.options;
    return db.run(
        "UPDATE store SET key_epoch = ?, minimum_epoch = ?, catalog_epoch = ?, quota_bytes = ?,"
        " staging_quota_bytes = ?",
        o.epochs.active, o.epochs.minimum_readable, o.catalog_epoch, *o.quota_bytes, *o.staging_quota_bytes);
  });
}

// --- creation
// ------------------------------------------------------------------------------------------------------

/// Whether a root holds nothing, or only what a creation leaves that was interrupted before its catalog
/// committed.
Status check_creatable(Directory& root) {
  bool foreign = false;
  KVPACK_TRY(root.list([&](std::string_view name) {
    foreign = foreign || (name != kLockName && name != kReserveName && name != kCatalogDirectoryName &&
                          name != "objects" && name != "pins");
    return !foreign;
  }));
  if (!foreign && check_catalog_file(root).has_value()) {
    const std::string path = join_path(join_path(root.path(), kCatalogDirectoryName), kCatalogFileName);
    auto database = sqlite::Database::open(path, sqlite::Access::kReadOnly);
    if (!database.has_value()) return std::move(database.error());
    const auto complete = has_schema(**database);
    foreign = !complete.has_value() || *complete;
  }
  if (!foreign) {
    // Objects without a catalog are a store that has lost it, not an interrupted creation.
    auto objects = root.open_directory("objects");
    for (const std::string_view kind : {"chunks", "manifests"}) {
      if (!objects.has_value()) break;
      auto shards = (*objects)->open_directory(kind);
      if (!shards.has_value()) continue;
      KVPACK_TRY((*shards)->list([&](std::string_view) {
        foreign = true;
        return false;
      }));
    }
  }
  if (foreign) return fail(ErrorCode::kExpectation, "store root is not empty: " + root.path());
  return success();
}

Status make_catalog_file(Directory& root) {
  const Status made = root.make_directory(kCatalogDirectoryName);
  if (!made.has_value() && made.error().code != ErrorCode::kExpectation) return made;
  KVPACK_TRY_ASSIGN(auto directory, root.open_directory(kCatalogDirectoryName));
  KVPACK_TRY(check_private(*directory));
  // Created by us, so that SQLite gives its log and its index the same mode.
  auto file = directory->create(kCatalogFileName);
  if (!file.has_value() && file.error().code != ErrorCode::kExpectation) return std::move(file.error());
  KVPACK_TRY(directory->sync());
  return root.sync();
}

Status open_catalog(StoreContext& context) {
  KVPACK_TRY_ASSIGN(context.catalog, Catalog::open(context.files.catalog_path(), catalog_migrations()));
  return register_configuration(context);
}

/// A shard directory that a killed process made may be known to the cache only.
Status sync_directories(const StoreFiles& files) {
  for (Directory* directory : {&files.root(), &files.objects(), &files.chunks(), &files.manifests()})
    KVPACK_TRY(directory->sync());
  return success();
}

/// SQLite cannot open a catalog in write-ahead mode where it can make no index beside it, unless it is told
/// that nobody writes. That is so when there is no log, and where not even a pin can be made.
bool is_medium_read_only(StoreContext& context) {
  if (has_catalog_log(context)) return false;
  const auto probe = random_id(context);
  if (!probe.has_value()) return false;
  const auto pin = context.pins.pin_file(context.files.pins(), *probe);
  return !pin.has_value() && pin.error().code == ErrorCode::kIo && !is_no_space(pin.error());
}

}  // namespace

namespace store {

Result<std::unique_ptr<StoreContext>> make_closed_context(StoreOptions options) {
  return make_context(std::move(options));
}

Result<std::unique_ptr<Directory>> lock_root(StoreContext& context) {
  KVPACK_TRY_ASSIGN(auto root, context.fs().open_directory(context.options.root, Links::kRefuse));
  KVPACK_TRY(check_private(*root));
  KVPACK_TRY_ASSIGN(context.lock, take_lock(*root, context.incarnation));
  return root;
}

Status register_in_catalog(StoreContext& context) {
  return register_configuration(context);
}

}  // namespace store

Result<std::unique_ptr<Store>> Store::create(StoreOptions options) {
  KVPACK_TRY_ASSIGN(auto context, make_context(std::move(options)));
  KVPACK_TRY_ASSIGN(const Place place, open_place(context->fs(), context->options.root));
  const Status made = place.directory->make_directory(place.name);
  if (!made.has_value() && made.error().code != ErrorCode::kExpectation) return Error(made.error());
  KVPACK_TRY(place.directory->sync());
  KVPACK_TRY_ASSIGN(auto root, context->fs().open_directory(context->options.root, Links::kRefuse));
  KVPACK_TRY(check_private(*root));
  // Before, so that nothing is left in a folder of somebody else's; and again, since until the lock was ours
  // another process may have made its store here.
  KVPACK_TRY(check_creatable(*root));
  KVPACK_TRY_ASSIGN(context->lock, take_lock(*root, context->incarnation));
  KVPACK_TRY(check_creatable(*root));
  KVPACK_TRY_ASSIGN(context->files, StoreFiles::create(context->fs(), context->options.root));
  KVPACK_TRY(check_hard_links(*context));
  KVPACK_TRY(make_reserve(*root));
  KVPACK_TRY(make_catalog_file(*root));
  KVPACK_TRY(sync_directories(context->files));
  KVPACK_TRY(open_catalog(*context));
  return std::unique_ptr<Store>(new Store(std::move(context)));
}

Result<std::unique_ptr<Store>> Store::open(StoreOptions options) {
  KVPACK_TRY_ASSIGN(auto context, make_context(std::move(options)));
  KVPACK_TRY_ASSIGN(const auto root, lock_root(*context));
  KVPACK_TRY_ASSIGN(context->files, StoreFiles::open(context->fs(), context->options.root));
  KVPACK_TRY(finish_catalog_swap(*root));
  KVPACK_TRY(check_catalog_file(*root));
  // A store on a full disk can be opened, so that it can be emptied.
  KVPACK_TRY(with_reserve(*root, [&] { return open_catalog(*context); }));
  KVPACK_TRY(sync_directories(context->files));
  KVPACK_TRY(recover(*context));
  KVPACK_TRY(prune_quarantine(*context));
  return std::unique_ptr<Store>(new Store(std::move(context)));
}

Result<std::unique_ptr<Store>> Store::open_read_only(StoreOptions options) {
  KVPACK_TRY_ASSIGN(auto context, make_context(std::move(options)));
  context->read_only = true;
  KVPACK_TRY_ASSIGN(context->files, StoreFiles::open(context->fs(), context->options.root));
  KVPACK_TRY(open_reading_catalog(*context));
  return std::unique_ptr<Store>(new Store(std::move(context)));
}

Store::Store(std::unique_ptr<StoreContext> context) : context_(std::move(context)) {}

Store::~Store() {
  // Best effort: what is lost is a count.
  if (!context_->read_only) (void)flush_counters(*context_);
}

bool Store::is_read_only() const noexcept {
  return context_->read_only;
}
const Id32& Store::tenant() const noexcept {
  return context_->tenant;
}
const KeyRing& Store::keys() const noexcept {
  return context_->keys();
}
const KeySchedule& Store::active_keys() const noexcept {
  return *context_->active_keys;
}

namespace store {

Status check_writable(const StoreContext& context) {
  if (context.read_only) return fail(ErrorCode::kState, "store is open for reading only");
  return context.files.check_present();
}

Result<Id32> random_id(StoreContext& context) {
  Id32 id;
  do {
    KVPACK_TRY(context.random().fill(id.bytes));
  } while (id.is_zero());
  return id;
}

bool is_no_space(const Error& error) {
  return std::ranges::any_of(error.context, [](const Context& fact) { return fact.key == "space"; });
}

Status open_reading_catalog(StoreContext& context) {
  for (int attempt = 0; attempt < 100; ++attempt) {
    KVPACK_TRY(check_catalog_file(context.files.root()));
    KVPACK_TRY_ASSIGN(const FileFacts before, catalog_file_facts(context));
    bool immutable = false;
    auto catalog =
        Catalog::open_read_only(context.files.catalog_path(), immutable, catalog_migrations().size());
    if (!catalog.has_value() && catalog.error().code == ErrorCode::kCatalog && is_medium_read_only(context)) {
      immutable = true;
      catalog = Catalog::open_read_only(context.files.catalog_path(), immutable, catalog_migrations().size());
    }
    // A rebuild may swap catalogs while one is being opened.
    KVPACK_TRY_ASSIGN(const FileFacts after, catalog_file_facts(context));
    if (!after.is_same_file(before)) continue;
    if (!catalog.has_value()) return std::move(catalog.error());
    Status ours = (*catalog)->read([&](sqlite::Database& db) -> Status {
      KVPACK_TRY(check_store_row(context, db));
      return check_epoch_keys(context, db);
    });
    if (!ours.has_value()) return ours;
    context.catalog = *std::move(catalog);
    context.catalog_file = after;
    context.catalog_is_immutable = immutable;
    return success();
  }
  return fail(ErrorCode::kBusy, "resource is busy");
}

Status flush_counters(StoreContext& context) {
  context.flushed_ns = context.clock().monotonic_ns();
  std::array<std::uint64_t, static_cast<std::size_t>(Counter::kCount)> taken{};
  bool any = false;
  for (std::size_t i = 0; i < taken.size(); ++i) {
    taken[i] = context.counters.take(static_cast<Counter>(i));
    any = any || taken[i] != 0;
  }
  const AccessLog::Times accesses = context.accesses.take();
  if (!any && accesses.empty()) return success();
  Status written = context.catalog->write([&](sqlite::Database& db) -> Status {
    for (std::size_t i = 0; i < taken.size(); ++i)
      if (taken[i] != 0)
        KVPACK_TRY(
            db.run("INSERT INTO counters (name, value) VALUES (?1, ?2)"
                   " ON CONFLICT (name) DO UPDATE SET value = value + ?2",
                   kCounterNames[i], taken[i]));
    for (const auto& [manifest_id, time_ns] : accesses)
      KVPACK_TRY(db.run("UPDATE manifests SET access_ns = max(access_ns, ?2) WHERE manifest_id = ?1",
                        manifest_id, time_ns));
    return success();
  });
  if (!written.has_value()) {
    for (std::size_t i = 0; i < taken.size(); ++i) context.counters.add(static_cast<Counter>(i), taken[i]);
    for (const auto& [manifest_id, time_ns] : accesses) context.accesses.note(manifest_id, time_ns);
  }
  return written;
}

void flush_counters_when_due(StoreContext& context) {
  if (context.read_only) return;
  if (context.clock().monotonic_ns() - context.flushed_ns >= kFlushIntervalNs) (void)flush_counters(context);
}

}  // namespace store
}  // namespace kvpack
