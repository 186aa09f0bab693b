#include "store/catalog.h"

#include <sqlite3.h>

namespace kvpack::store {
namespace {

constexpr std::size_t kMaxIdleReaders = 8;

// fullfsync matters on Apple systems alone, where fsync does not reach the medium; elsewhere it does nothing.
constexpr const char* kWriterPragmas =
    "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON; PRAGMA trusted_schema = "
    "OFF;"
    "PRAGMA recursive_triggers = OFF; PRAGMA wal_autocheckpoint = 1000; PRAGMA journal_size_limit = 67108864;"
    "PRAGMA fullfsync = ON; PRAGMA checkpoint_fullfsync = ON;";
constexpr const char* kReaderPragmas = "PRAGMA trusted_schema = OFF; PRAGMA query_only = ON;";

}  // namespace

Result<std::unique_ptr<Catalog>> Catalog::open(const std::string& path,
                                               std::span<const Migration> migrations) {
  std::unique_ptr<Catalog> catalog(new Catalog(path));
  KVPACK_TRY_ASSIGN(catalog->writer_, sqlite::Database::open(path, sqlite::Access::kReadWrite));
  KVPACK_TRY(catalog->writer_->execute(kWriterPragmas));
  KVPACK_TRY_ASSIGN(sqlite::Statement mode, catalog->writer_->prepare("PRAGMA journal_mode"));
  KVPACK_TRY(mode.step());
  if (mode.text(0) != "wal")
    return fail(ErrorCode::kCatalog, "catalog: write-ahead logging is not possible here");
  mode.reset();
  KVPACK_TRY(migrate(*catalog->writer_, migrations));
  return catalog;
}

Result<std::unique_ptr<Catalog>> Catalog::open_read_only(const std::string& path, bool immutable,
                                                         std::size_t version_count) {
  std::unique_ptr<Catalog> catalog(new Catalog(path));
  catalog->read_access_ = immutable ? sqlite::Access::kImmutable : sqlite::Access::kReadOnly;
  KVPACK_TRY_ASSIGN(Reader reader, catalog->borrow_reader());
  KVPACK_TRY(check_schema(*reader.database, version_count));
  catalog->give_back(std::move(reader.database));
  return catalog;
}

Status Catalog::checkpoint() {
  const std::lock_guard lock(write_mutex_);
  return writer_->execute("PRAGMA wal_checkpoint(PASSIVE)");
}

Status Catalog::begin() {
  if (writer_ == nullptr) return fail(ErrorCode::kState, "store is open for reading only");
  // A rollback that failed for want of memory is made up for.
  if (sqlite3_get_autocommit(writer_->handle()) == 0) KVPACK_TRY(writer_->execute("ROLLBACK"));
  return writer_->execute("BEGIN IMMEDIATE");
}

Status Catalog::commit() {
  Status status = writer_->execute("COMMIT");
  if (!status.has_value()) {
    roll_back();
    return status;
  }
  if (commit_hook_) commit_hook_(*writer_);
  return success();
}

void Catalog::roll_back() {
  // SQLite has rolled back already after some errors; then this one says so and changes nothing. Called where
  // nothing may be thrown, so no error is made of it.
  sqlite3_exec(writer_->handle(), "ROLLBACK", nullptr, nullptr, nullptr);
}

Result<Catalog::Reader> Catalog::borrow_reader() {
  {
    const std::lock_guard lock(idle_mutex_);
    if (!idle_readers_.empty()) {
      Reader reader{std::move(idle_readers_.back())};
      idle_readers_.pop_back();
      return reader;
    }
  }
  KVPACK_TRY_ASSIGN(auto database, sqlite::Database::open(path_, read_access_));
  KVPACK_TRY(database->execute(kReaderPragmas));
  return Reader{std::move(database)};
}

void Catalog::give_back(std::unique_ptr<sqlite::Database> database) {
  const std::lock_guard lock(idle_mutex_);
  if (idle_readers_.size() < kMaxIdleReaders) idle_readers_.push_back(std::move(database));
}

}  // namespace kvpack::store
