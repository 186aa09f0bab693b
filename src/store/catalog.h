/// The catalog's connections: one that writes, behind a mutex, and a pool that reads. Who wants rows writes
/// SQL in its own file and runs it here. docs/format/store.md §Catalog
#pragma once

#include <functional>
#include <mutex>

#include "store/schema.h"

namespace kvpack::store {

class Catalog {
 public:
  /// Opens for writing and migrates. The file exists (empty for a new catalog), mode 0600.
  static Result<std::unique_ptr<Catalog>> open(const std::string& path,
                                               std::span<const Migration> migrations);
  /// Opens for reading.
  /// @param immutable  the medium cannot be written and there is no write-ahead log
  static Result<std::unique_ptr<Catalog>> open_read_only(const std::string& path, bool immutable,
                                                         std::size_t version_count);

  /// Runs `body(sqlite::Database&)`, which returns a Status or a Result, in one IMMEDIATE transaction:
  /// committed when it succeeds, else rolled back. Waits for other writers of this process. `body` must not
  /// call write(); what it reads by read() is what has been committed before.
  /// @error what body returns; kCatalog
  template <class Body>
  auto write(Body&& body) -> std::invoke_result_t<Body, sqlite::Database&> {
    const std::lock_guard lock(write_mutex_);
    KVPACK_TRY(begin());
    Unfinished transaction{this};
    auto result = body(*writer_);
    if (!result.has_value()) return result;
    transaction.catalog = nullptr;
    KVPACK_TRY(commit());
    return result;
  }

  /// Runs `body(sqlite::Database&)` in one read transaction on a connection of its own: a consistent view,
  /// which waits for no writer.
  template <class Body>
  auto read(Body&& body) -> std::invoke_result_t<Body, sqlite::Database&> {
    KVPACK_TRY_ASSIGN(Reader reader, borrow_reader());
    KVPACK_TRY(reader.database->execute("BEGIN"));
    auto result = body(*reader.database);
    const Status ended = reader.database->execute("COMMIT");
    // A connection whose transaction does not end is not used again.
    if (ended.has_value()) give_back(std::move(reader.database));
    return result;
  }

  /// Called after each commit of write(), with the writing connection, before anything else can write: for
  /// tests that simulate power cuts.
  void on_commit(std::function<void(sqlite::Database&)> hook) { commit_hook_ = std::move(hook); }

  /// Moves the write-ahead log into the database file, as far as readers allow.
  Status checkpoint();
  const std::string& path() const noexcept { return path_; }

 private:
  struct Reader {
    std::unique_ptr<sqlite::Database> database;
  };
  /// Rolls back what has not been committed, also when an exception passes through.
  struct Unfinished {
    Catalog* catalog;
    ~Unfinished() {
      if (catalog != nullptr) catalog->roll_back();
    }
  };
  explicit Catalog(std::string path) : path_(std::move(path)) {}
  Status begin();
  Status commit();
  void roll_back();
  Result<Reader> borrow_reader();
  void give_back(std::unique_ptr<sqlite::Database> database);

  std::string path_;
  sqlite::Access read_access_ = sqlite::Access::kReadOnly;
  std::mutex write_mutex_{};
  std::unique_ptr<sqlite::Database> writer_{};  ///< Null in a read-only catalog.
  std::function<void(sqlite::Database&)> commit_hook_{};
  std::mutex idle_mutex_{};
  std::vector<std::unique_ptr<sqlite::Database>> idle_readers_{};
};

}  // namespace kvpack::store
