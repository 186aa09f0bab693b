// What must hold of a store between any two steps of a test.
#pragma once

#include <gtest/gtest.h>

#include <set>

#include "kvpack/store/store.h"
#include "store/invariants.h"
#include "store/store_context.h"

namespace kvpack::testing {

// The first number that a query gives; -1 when there is none.
template <class... Values>
std::int64_t catalog_number(Store& store, std::string_view sql, const Values&... values) {
  const auto found =
      store.context().catalog->read([&](sqlite::Database& db) { return db.number(sql, values...); });
  EXPECT_TRUE(found.has_value()) << found.error().verdict();
  return found.has_value() ? found->value_or(-1) : -1;
}

// An object as a row of the catalog has it.
struct ObjectRow {
  store::ObjectKind kind = store::ObjectKind::kChunk;
  Id32 id{};
  std::uint64_t bytes = 0;
  bool available = false;
};

inline std::vector<ObjectRow> object_rows(store::StoreContext& context) {
  std::vector<ObjectRow> rows;
  const Status read = context.catalog->read([&](sqlite::Database& db) -> Status {
    for (const auto& [kind, sql] :
         {std::pair(store::ObjectKind::kChunk, "SELECT object_key, object_bytes, state FROM chunks"),
          std::pair(store::ObjectKind::kManifest, "SELECT manifest_id, file_bytes, state FROM manifests")}) {
      KVPACK_TRY_ASSIGN(auto row, db.prepare(sql));
      for (;;) {
        KVPACK_TRY_ASSIGN(const bool more, row.step());
        if (!more) break;
        rows.push_back({kind, row.id(0), row.count(1), row.integer(2) == 1});
      }
    }
    return success();
  });
  EXPECT_TRUE(read.has_value()) << read.error().verdict();
  return rows;
}

// Names of object files of one kind, shards included.
inline std::set<std::string> object_files(store::StoreContext& context, store::ObjectKind kind) {
  std::set<std::string> names;
  Directory& shards = context.files.objects(kind);
  std::vector<std::string> shard_names;
  EXPECT_TRUE(shards
                  .list([&](std::string_view name) {
                    shard_names.emplace_back(name);
                    return true;
                  })
                  .has_value());
  for (const std::string& shard_name : shard_names) {
    const auto shard = shards.open_directory(shard_name);
    EXPECT_TRUE(shard.has_value() && (*shard)
                                         ->list([&](std::string_view name) {
                                           names.insert(shard_name + "/" + std::string(name));
                                           return true;
                                         })
                                         .has_value());
  }
  return names;
}

inline std::string object_name(store::ObjectKind kind, const Id32& id) {
  return store::shard_name(id) + "/" + store::object_file_name(kind, id);
}

// What does not hold: the invariants of the catalog; every available object has its whole file.
inline std::vector<std::string> store_faults(Store& store) {
  store::StoreContext& context = store.context();
  const auto violations = store::violated_invariants(context);
  if (!violations.has_value()) return {Error(violations.error()).verdict()};
  std::vector<std::string> faults = *violations;
  for (const ObjectRow& row : object_rows(context)) {
    if (!row.available) continue;
    const auto facts = context.files.object_facts(row.kind, row.id);
    if (!facts.has_value()) {
      faults.push_back(Error(facts.error()).verdict());
    } else if (facts->kind != FileKind::kRegular || facts->size_bytes != row.bytes) {
      faults.push_back("not the file of its row: " + object_name(row.kind, row.id));
    }
  }
  return faults;
}

// Object files without a row. None when no save is under way and none was cut short by a failure.
inline std::vector<std::string> store_leaks(Store& store) {
  store::StoreContext& context = store.context();
  std::map<store::ObjectKind, std::set<std::string>> known;
  for (const ObjectRow& row : object_rows(context)) known[row.kind].insert(object_name(row.kind, row.id));
  std::vector<std::string> leaks;
  for (const store::ObjectKind kind : {store::ObjectKind::kChunk, store::ObjectKind::kManifest})
    for (const std::string& name : object_files(context, kind))
      if (!known[kind].contains(name)) leaks.push_back("no row for " + name);
  return leaks;
}

inline void expect_sound(Store& store) {
  for (const std::string& fault : store_faults(store)) ADD_FAILURE() << fault;
}
inline void expect_no_orphans(Store& store) {
  for (const std::string& leak : store_leaks(store)) ADD_FAILURE() << leak;
}

}  // namespace kvpack::testing
