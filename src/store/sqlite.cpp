#include "store/sqlite.h"

#include <sqlite3.h>

#include <cassert>
#include <cerrno>
#include <limits>

namespace kvpack::sqlite {
namespace {

constexpr int kBusyTimeoutMs = 5'000;

/// @param system_error  errno of the call that failed, 0 when there was none
Error make_error(int status, const char* text, int system_error = 0) {
  if ((status & 0xff) == SQLITE_NOMEM || status == SQLITE_IOERR_NOMEM)
    return fail(ErrorCode::kNoMemory, "out of memory");
  Error error = fail(ErrorCode::kCatalog, "catalog: " + std::string(text));
  const int kind = status & 0xff;
  // What cannot be made or lengthened on a full volume is an I/O error to SQLite, but for the pages
  // themselves.
  const bool failed_call = kind == SQLITE_IOERR || kind == SQLITE_CANTOPEN;
  if (kind == SQLITE_FULL || (failed_call && (system_error == ENOSPC || system_error == EDQUOT)))
    error.context.push_back({"space", "full"});
  return error;
}

/// `file:` form of a path, so that open flags beyond the usual ones can be said.
std::string uri_of(const std::string& path, Access access) {
  std::string uri = "file:";
  for (const char c : path) {
    if (c == '?' || c == '#' || c == '%') {
      static constexpr char kHex[] = "0123456789abcdef";
      uri += '%';
      uri += kHex[(static_cast<unsigned char>(c) >> 4) & 15];
      uri += kHex[static_cast<unsigned char>(c) & 15];
    } else {
      uri += c;
    }
  }
  if (access == Access::kImmutable) uri += "?immutable=1";
  return uri;
}

}  // namespace

Statement::Statement(Statement&& other) noexcept
    : owner_(other.owner_),
      handle_(std::exchange(other.handle_, nullptr)),
      sql_(other.sql_),
      bind_status_(other.bind_status_) {}

Statement::~Statement() {
  if (handle_ == nullptr) return;
  sqlite3_reset(handle_);
  sqlite3_clear_bindings(handle_);
  owner_->give_back(handle_, *sql_);
}

// A failed binding (no memory) is reported by the next step, so that calls can be chained.
void Statement::bind_at(int index, std::int64_t value) {
  bind_status_ |= sqlite3_bind_int64(handle_, index, value);
}
void Statement::bind_at(int index, std::uint64_t value) {
  assert(value <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()));
  bind_at(index, static_cast<std::int64_t>(value));
}
void Statement::bind_at(int index, ByteSpan value) {
  // A null pointer would bind NULL instead of an empty blob.
  const void* data = value.empty() ? static_cast<const void*>("") : value.data();
  bind_status_ |= sqlite3_bind_blob64(handle_, index, data, value.size(), SQLITE_TRANSIENT);
}
void Statement::bind_at(int index, std::string_view value) {
  bind_status_ |= sqlite3_bind_text64(handle_, index, value.empty() ? "" : value.data(), value.size(),
                                      SQLITE_TRANSIENT, SQLITE_UTF8);
}
void Statement::bind_at(int index, std::nullopt_t) {
  bind_status_ |= sqlite3_bind_null(handle_, index);
}

Result<bool> Statement::step() {
  if (bind_status_ != SQLITE_OK) return make_error(bind_status_, "a parameter cannot be bound");
  const int status = sqlite3_step(handle_);
  if (status == SQLITE_ROW) return true;
  if (status == SQLITE_DONE) return false;
  return owner_->error(status);
}

Status Statement::run() {
  for (;;) {
    KVPACK_TRY_ASSIGN(const bool row, step());
    if (!row) break;
  }
  reset();
  return success();
}

void Statement::reset() {
  sqlite3_reset(handle_);
}

std::int64_t Statement::integer(int column) const {
  return sqlite3_column_int64(handle_, column);
}
std::uint64_t Statement::count(int column) const {
  const std::int64_t value = integer(column);
  return value < 0 ? 0 : static_cast<std::uint64_t>(value);
}
bool Statement::is_null(int column) const {
  return sqlite3_column_type(handle_, column) == SQLITE_NULL;
}
ByteSpan Statement::blob(int column) const {
  const void* data = sqlite3_column_blob(handle_, column);
  if (data == nullptr) return {};
  return {static_cast<const std::uint8_t*>(data),
          static_cast<std::size_t>(sqlite3_column_bytes(handle_, column))};
}
Id32 Statement::id(int column) const {
  const ByteSpan bytes = blob(column);
  return bytes.size() == 32 ? Id32::from_bytes(bytes) : Id32{};
}
std::string Statement::text(int column) const {
  const ByteSpan bytes = blob(column);
  return {bytes.begin(), bytes.end()};
}

Result<std::unique_ptr<Database>> Database::open(const std::string& path, Access access) {
  sqlite3* handle = nullptr;
  const int mode = access == Access::kReadWrite ? SQLITE_OPEN_READWRITE : SQLITE_OPEN_READONLY;
  const int status =
      sqlite3_open_v2(uri_of(path, access).c_str(), &handle,
                      mode | SQLITE_OPEN_URI | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE, nullptr);
  if (handle == nullptr) return make_error(SQLITE_NOMEM, "out of memory");
  std::unique_ptr<Database> database(new Database(handle));
  if (status != SQLITE_OK) return database->error(status);
  sqlite3_busy_timeout(handle, kBusyTimeoutMs);
  return database;
}

Database::~Database() {
  for (auto& [sql, handles] : idle_)
    for (sqlite3_stmt* statement : handles) sqlite3_finalize(statement);
  sqlite3_close(handle_);
}

Status Database::execute(const char* sql) {
  const int status = sqlite3_exec(handle_, sql, nullptr, nullptr, nullptr);
  if (status != SQLITE_OK) return error(status);
  return success();
}

Result<Statement> Database::prepare(std::string_view sql) {
  const auto kept = idle_.try_emplace(std::string(sql)).first;
  if (!kept->second.empty()) {
    sqlite3_stmt* handle = kept->second.back();
    kept->second.pop_back();
    return Statement(this, handle, &kept->first);
  }
  sqlite3_stmt* handle = nullptr;
  const int status = sqlite3_prepare_v3(handle_, sql.data(), static_cast<int>(sql.size()),
                                        SQLITE_PREPARE_PERSISTENT, &handle, nullptr);
  if (status != SQLITE_OK) return error(status);
  return Statement(this, handle, &kept->first);
}

std::int64_t Database::last_row() const {
  return sqlite3_last_insert_rowid(handle_);
}
std::int64_t Database::changed_rows() const {
  return sqlite3_changes64(handle_);
}

Error Database::error(int status) const {
  return make_error(status, sqlite3_errmsg(handle_), sqlite3_system_errno(handle_));
}

// Called where nothing may fail: without memory for the list the statement is not kept.
void Database::give_back(sqlite3_stmt* handle, const std::string& sql) {
  try {
    idle_[sql].push_back(handle);
  } catch (const std::bad_alloc&) {
    sqlite3_finalize(handle);
  }
}

}  // namespace kvpack::sqlite
