/// SQLite with values for errors and statements that reset themselves. Knows no table.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kvpack/core/ids.h"

struct sqlite3;
struct sqlite3_stmt;

namespace kvpack::sqlite {

/// A prepared statement on loan from its database: bind from 1 on, step, read columns from 0 on. It goes
/// back, reset and without bindings, when it dies. Views of columns live until the next step.
class Statement {
 public:
  Statement(Statement&& other) noexcept;
  Statement& operator=(Statement&&) = delete;
  ~Statement();

  /// Binds all parameters in order: integers, Id32, byte spans, text, optionals of these (nullopt is NULL).
  template <class... Values>
  Statement& bind(const Values&... values) {
    int index = 0;
    (bind_at(++index, values), ...);
    return *this;
  }
  /// One parameter, where a statement is run often and few of them change.
  void bind_at(int index, std::int64_t value);
  void bind_at(int index,
               std::uint64_t value);  ///< @pre at most 2^63 - 1: every such column is bounded on its way in
  void bind_at(int index, int value) { bind_at(index, std::int64_t{value}); }
  void bind_at(int index, unsigned value) { bind_at(index, std::int64_t{value}); }
  void bind_at(int index, bool value) { bind_at(index, std::int64_t{value ? 1 : 0}); }
  void bind_at(int index, const Id32& value) { bind_at(index, ByteSpan(value.bytes)); }
  void bind_at(int index, ByteSpan value);
  void bind_at(int index, std::string_view value);
  void bind_at(int index, const char* value) { bind_at(index, std::string_view(value)); }
  void bind_at(int index, std::nullopt_t);
  template <class T>
  void bind_at(int index, const std::optional<T>& value) {
    if (value) {
      bind_at(index, *value);
    } else {
      bind_at(index, std::nullopt);
    }
  }

  /// @return whether there is a row. @error kCatalog
  Result<bool> step();
  /// Steps to the end and forgets rows: for statements that change something. Ready to be bound again.
  Status run();
  /// Ready to be stepped from the start again. Bindings stay.
  void reset();

  std::int64_t integer(int column) const;
  std::uint64_t count(int column) const;  ///< A number that is never negative; a negative one reads as 0.
  bool is_null(int column) const;
  ByteSpan blob(int column) const;
  Id32 id(int column) const;  ///< Zero when the column does not hold 32 bytes.
  std::string text(int column) const;

 private:
  friend class Database;
  Statement(class Database* owner, sqlite3_stmt* handle, const std::string* sql)
      : owner_(owner), handle_(handle), sql_(sql) {}
  Database* owner_;
  sqlite3_stmt* handle_;
  const std::string* sql_;
  int bind_status_ = 0;
};

enum class Access { kReadWrite, kReadOnly, kImmutable };

/// One connection. One thread at a time.
class Database {
 public:
  /// @param path  of an existing file; that it is a regular one of ours is for the caller to check
  /// @error kCatalog `catalog: {SQLite's text}`; context `space`=`full` when the volume is full
  static Result<std::unique_ptr<Database>> open(const std::string& path, Access access);
  ~Database();
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  /// Runs statements that take no parameters and whose rows do not matter.
  Status execute(const char* sql);
  /// The statement of this text, kept for the next caller.
  Result<Statement> prepare(std::string_view sql);
  /// Prepare, bind, run.
  template <class... Values>
  Status run(std::string_view sql, const Values&... values) {
    KVPACK_TRY_ASSIGN(Statement statement, prepare(sql));
    return statement.bind(values...).run();
  }
  /// The first column of the first row as a number; nothing when there is no row or it is NULL.
  template <class... Values>
  Result<std::optional<std::int64_t>> number(std::string_view sql, const Values&... values) {
    KVPACK_TRY_ASSIGN(Statement statement, prepare(sql));
    KVPACK_TRY_ASSIGN(const bool row, statement.bind(values...).step());
    if (!row || statement.is_null(0)) return std::optional<std::int64_t>();
    return std::optional<std::int64_t>(statement.integer(0));
  }

  std::int64_t last_row() const;
  std::int64_t changed_rows() const;  ///< By the last statement, triggers not counted.
  sqlite3* handle() const noexcept { return handle_; }

 private:
  friend class Statement;
  explicit Database(sqlite3* handle) : handle_(handle) {}
  Error error(int status) const;
  void give_back(sqlite3_stmt* handle, const std::string& sql);

  sqlite3* handle_;
  std::unordered_map<std::string, std::vector<sqlite3_stmt*>> idle_{};
};

}  // namespace kvpack::sqlite
